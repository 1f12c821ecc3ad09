"""A GGUF file with its keys and tensors changed: the forms that other converters write, made from the tests' own
models."""
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
FORMS = {"u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?")}


def text(s):
    data = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(data)) + data


class GgufEdit:
    """keys: {name: (type, bytes of the value)}; tensors: [name, bytes behind the name in the table], in order."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data, self.at = f.read(), 8
        n_tensors, n_keys = self._take("<QQ")
        self.keys, self.tensors = {}, []
        for _ in range(n_keys):
            name, kind = self._text(), self._take("<I")[0]
            start = self.at
            self._skip(kind)
            self.keys[name] = (kind, self.data[start:self.at])
        for _ in range(n_tensors):
            name, start = self._text(), self.at
            n_dims = self._take("<I")[0]
            self._take(f"<{n_dims}QIQ")
            self.tensors.append([name, self.data[start:self.at]])
        self.at += -self.at % 32
        self.start = self.at  # of the tensors' data

    def _take(self, form):
        v = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return v

    def _text(self):
        n = self._take("<Q")[0]
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def _skip(self, kind):
        if kind == 8:
            self._text()
        elif kind == 9:
            kind, n = self._take("<IQ")
            if kind in SIZES:
                self.at += n * SIZES[kind]
            else:
                for _ in range(n):
                    self._skip(kind)
        else:
            self.at += SIZES[kind]

    def set(self, name, form, value):
        """form: str, one of FORMS, or ai32, af32, astr for an array."""
        if form == "str":
            self.keys[name] = (8, text(value))
        elif form == "ai32":
            self.keys[name] = (9, struct.pack(f"<IQ{len(value)}i", 5, len(value), *value))
        elif form == "af32":
            self.keys[name] = (9, struct.pack(f"<IQ{len(value)}f", 6, len(value), *value))
        elif form == "astr":
            self.keys[name] = (9, struct.pack("<IQ", 8, len(value)) + b"".join(text(v) for v in value))
        else:
            kind, code = FORMS[form]
            self.keys[name] = (kind, struct.pack(code, value))
        return self

    def drop(self, *names):
        for name in names:
            self.keys.pop(name, None)
        return self

    def rename_keys(self, old, new):
        self.keys = {new + k[len(old):] if k.startswith(old) else k: v for k, v in self.keys.items()}
        return self

    def rename_tensors(self, old, new):
        for tensor in self.tensors:
            tensor[0] = tensor[0].replace(old, new)
        return self

    def set_floats(self, name, value):
        """Every number of an f32 tensor."""
        for tensor, rest in self.tensors:
            if tensor == name:
                n_dims = struct.unpack_from("<I", rest)[0]
                n = 1
                for d in struct.unpack_from(f"<{n_dims}Q", rest, 4):
                    n *= d
                kind, offset = struct.unpack_from("<IQ", rest, 4 + 8 * n_dims)
                assert kind == 0, name
                at = self.start + offset
                self.data = self.data[:at] + struct.pack("<f", value) * n + self.data[at + 4 * n:]
                return self
        raise KeyError(name)

    def write(self, path):
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))
        head += b"".join(text(k) + struct.pack("<I", kind) + value for k, (kind, value) in self.keys.items())
        head += b"".join(text(name) + rest for name, rest in self.tensors)
        with open(path, "wb") as f:
            f.write(head + b"\0" * (-len(head) % 32) + self.data[self.start:])
        return path
