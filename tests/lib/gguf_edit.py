"""A GGUF file with its keys and tensors changed: the forms that other converters write, made from the tests' own
models."""
import os
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
FORMS = {"u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?")}
BLOCKS = {0: (1, 4), 1: (1, 2), 8: (32, 34), 30: (1, 2), 39: (32, 17), 4: (32, 17)}  # of a tensor's type: values, bytes


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
        """form: str, one of FORMS, or one of these behind an "a" for an array."""
        if form == "str":
            self.keys[name] = (8, text(value))
        elif form == "astr":
            self.keys[name] = (9, struct.pack("<IQ", 8, len(value)) + b"".join(map(text, value)))
        elif form[0] == "a":
            kind, code = FORMS[form[1:]]
            self.keys[name] = (9, struct.pack(f"<IQ{len(value)}{code[1]}", kind, len(value), *value))
        else:
            kind, code = FORMS[form]
            self.keys[name] = (kind, struct.pack(code, value))
        return self

    def number(self, name):
        kind, value = self.keys[name]
        return struct.unpack(dict(FORMS.values())[kind], value)[0]

    def numbers(self, name):
        """Those of an array."""
        kind, n = struct.unpack_from("<IQ", self.keys[name][1])
        return list(struct.unpack_from(f"<{n}{dict(FORMS.values())[kind][1]}", self.keys[name][1], 12))

    def strings(self, name):
        data, at, out = self.keys[name][1], 12, []
        while at < len(data):
            n = struct.unpack_from("<Q", data, at)[0]
            out.append(data[at + 8:at + 8 + n].decode())
            at += 8 + n
        return out

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

    def take(self, name):
        """Takes a tensor out: its dimensions, type, and bytes."""
        for i, (tensor, rest) in enumerate(self.tensors):
            if tensor == name:
                n_dims = struct.unpack_from("<I", rest)[0]
                dims = struct.unpack_from(f"<{n_dims}Q", rest, 4)
                kind, offset = struct.unpack_from("<IQ", rest, 4 + 8 * n_dims)
                n = 1
                for d in dims:
                    n *= d
                del self.tensors[i]
                at = self.start + offset
                return dims, kind, self.data[at:at + n // BLOCKS[kind][0] * BLOCKS[kind][1]]
        raise KeyError(name)

    def put(self, name, dims, kind, data):
        """A tensor more, behind all others."""
        self.data += b"\0" * (-(len(self.data) - self.start) % 32)
        rest = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(self.data) - self.start)
        self.tensors.append([name, rest])
        self.data += data
        return self

    def join(self, name, parts, in_turn=False):
        """Tensors as one: below each other, within each expert, or their rows in turn. A vector's rows are its
        numbers."""
        taken = [self.take(part) for part in parts]
        vector = not parts[0].endswith(".weight")
        n_experts = taken[0][0][-1] if "_exps" in name else 1
        rows = []
        for dims, kind, data in taken:
            n = dims[0] if vector else dims[1]
            size = len(data) // (n * n_experts)
            rows.append([[data[(e * n + i) * size:(e * n + i + 1) * size] for i in range(n)]
                         for e in range(n_experts)])
        out, n_rows = [], sum(len(r[0]) for r in rows)
        for e in range(n_experts):
            out += [row for several in zip(*(r[e] for r in rows)) for row in several] if in_turn else \
                [row for r in rows for row in r[e]]
        dims = ((n_rows,) if vector else (taken[0][0][0], n_rows)) + ((n_experts,) if n_experts > 1 else ())
        return self.put(name, dims, taken[0][1], b"".join(out))

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


def with_other_bytes(path, folder, *changes):
    """A copy of the file in which (old, new) of equal length are exchanged, wherever old stands."""
    with open(path, "rb") as f:
        data = f.read()
    for old, new in changes:
        assert old in data and len(old) == len(new), f"the file has {old}"
        data = data.replace(old, new)
    out = os.path.join(folder, "changed.gguf")
    with open(out, "wb") as f:
        f.write(data)
    return out
