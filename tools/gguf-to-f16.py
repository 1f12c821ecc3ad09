#!/usr/bin/env python3
"""Write a copy of a GGUF whose matrices are F16: the same weights without their quantisation's speed, to tell apart
what a kernel loses and what the file lost already.

usage: gguf-to-f16.py IN.gguf OUT.gguf

Vectors stay as they are. A value that does not fit F16 is an error. Needs numpy.
"""
import struct
import sys

import numpy as np

sys.dont_write_bytecode = True  # nothing of a run stays in the tree
from gguf_types import TYPES, dequantise, name_of

CHUNK = 1 << 22  # values converted at a time
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        v = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return v[0] if len(v) == 1 else v

    def string(self):
        n = self.take("<Q")
        self.at += n
        return bytes(self.data[self.at - n:self.at])

    def value(self, kind):
        """Skips a value; returns it where it is a 32-bit number."""
        if kind == 8:
            self.string()
        elif kind == 9:
            kind, n = self.take("<IQ")
            for _ in range(n):
                self.value(kind)
        else:
            self.at += SIZES[kind]
            if kind == 4:
                return struct.unpack_from("<I", self.data, self.at - 4)[0]
        return None


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.split("\n\n")[1])
    data = np.memmap(sys.argv[1], np.uint8, "r")
    r = Reader(data)
    magic, version, n_tensors, n_keys = r.take("<IIQQ")
    if magic != 0x46554747 or version != 3:
        sys.exit(f"{sys.argv[1]} is not a GGUF of version 3")
    alignment = 32
    for _ in range(n_keys):
        key = r.string()
        value = r.value(r.take("<I"))
        if key == b"general.alignment":
            alignment = value
    infos_at, tensors, offset, infos = r.at, [], 0, b""
    for _ in range(n_tensors):
        name = r.string()
        dims = [r.take("<Q") for _ in range(r.take("<I"))]
        kind, at = r.take("<IQ")
        kind = name_of(kind)
        to = kind if len(dims) < 2 else "f16"
        n = int(np.prod(dims))
        tensors.append((name, kind, to, at, n, offset))
        infos += struct.pack("<Q", len(name)) + name
        infos += struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, TYPES[to][0], offset)
        offset += -(-(n // TYPES[to][1] * TYPES[to][2]) // alignment) * alignment
    base = -(-r.at // alignment) * alignment
    with open(sys.argv[2], "wb") as out:
        out.write(data[:infos_at].tobytes() + infos)
        out.write(b"\0" * (-out.tell() % alignment))
        start = out.tell()
        for name, kind, to, at, n, offset in tensors:
            _, values, size = TYPES[kind]
            out.write(b"\0" * (start + offset - out.tell()))
            for i in range(0, n, CHUNK):
                m = min(CHUNK, n - i)
                raw = data[base + at + i // values * size:][:m // values * size].tobytes()
                if to != kind:
                    x = dequantise(raw, kind)
                    if not (np.abs(x) <= 65504).all():
                        sys.exit(f"tensor {name.decode()} has values that do not fit F16")
                    raw = x.astype("<f2").tobytes()
                out.write(raw)
        out.write(b"\0" * (-out.tell() % alignment))


main()
