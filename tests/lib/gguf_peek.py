"""Reads (and spoils) the head of a GGUF file: metadata, tensor table, where each value lies. An independent reader,
so that what the daemon says about a file can be compared with something that shares no code with it. No tensor data
is decoded."""
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Gguf:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read(64 << 20)
        magic, self.version, n_tensors, n_kv = struct.unpack_from("<IIQQ", self.data)
        assert magic == 0x46554747
        self.at = 24
        self.kv, self.place = {}, {}
        for _ in range(n_kv):
            key = self._string().decode()
            kind = self._number("I")
            self.place[key] = self.at
            self.kv[key] = self._value(kind)
        self.tensors = {}
        for _ in range(n_tensors):
            name = self._string().decode()
            start = self.at
            shape = [self._number("Q") for _ in range(self._number("I"))]
            self.tensors[name] = {"place": start, "shape": shape, "type": self._number("I"),
                                  "offset": self._number("Q")}
        self.head_bytes = self.at
        del self.data

    def _number(self, fmt):
        v = struct.unpack_from("<" + fmt, self.data, self.at)[0]
        self.at += struct.calcsize(fmt)
        return v

    def _string(self):
        n = self._number("Q")
        s = self.data[self.at:self.at + n]
        self.at += n
        return s

    def _value(self, kind):
        if kind == 8:
            return self._string()
        if kind == 9:
            inner, n = self._number("I"), self._number("Q")
            if inner in (8, 9):
                return [self._value(inner) for _ in range(n)]
            v = struct.unpack_from(f"<{n}{FORMATS[inner]}", self.data, self.at)
            self.at += n * SIZES[inner]
            return list(v)
        return self._number(FORMATS[kind])

    def decode(self, ids):
        """The bytes of these ids as text, control pieces and BOS left out."""
        out = b""
        types = self.kv["tokenizer.ggml.token_type"]
        pieces = self.kv["tokenizer.ggml.tokens"]
        for i in ids:
            if types[i] == 6:
                out += bytes([int(pieces[i][3:5], 16)])
            elif types[i] == 1:
                out += pieces[i].replace("\u2581".encode(), b" ")
            elif types[i] == 4:
                out += pieces[i]
        return out
