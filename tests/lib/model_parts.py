"""One model file as several, as llama.cpp's gguf-split writes them."""
import os
import struct

from gguf_peek import Gguf

ALIGNMENT = 32
U16, I32 = 2, 5  # types of values


def text(s):
    return struct.pack("<Q", len(s)) + s


def number(key, kind, value):
    return text(key) + struct.pack({U16: "<IH", I32: "<Ii"}[kind], kind, value)


def part_name(name, no, n):
    return f"{name}-{no:05d}-of-{n:05d}.gguf"


def split(path, directory, name, n, count=None, total=None):
    """Writes n files as llama.cpp's gguf-split does: all keys in the first one, the tensors shared out in order.
    count and total: what they say of themselves."""
    g = Gguf(path)
    with open(path, "rb") as f:
        data = f.read()
    keys_end = min(t["place"] for t in g.tensors.values()) - 8 - len(next(iter(g.tensors)))
    n_keys, = struct.unpack_from("<Q", data, 16)
    start = -(-g.head_bytes // ALIGNMENT) * ALIGNMENT
    names = list(g.tensors)
    ends = sorted(t["offset"] for t in g.tensors.values()) + [len(data) - start]
    paths = []
    for no in range(n):
        mine = names[len(names) * no // n:len(names) * (no + 1) // n]
        keys = [number(b"split.no", U16, no), number(b"split.count", U16, count or n),
                number(b"split.tensors.count", I32, total or len(names))]
        head = struct.pack("<IIQQ", 0x46554747, 3, len(mine), len(keys) + (n_keys if no == 0 else 0))
        head += (data[24:keys_end] if no == 0 else b"") + b"".join(keys)
        body = b""
        for tensor in mine:
            t = g.tensors[tensor]
            head += text(tensor.encode()) + struct.pack("<I", len(t["shape"]))
            head += b"".join(struct.pack("<Q", d) for d in t["shape"]) + struct.pack("<IQ", t["type"], len(body))
            body += data[start + t["offset"]:start + ends[ends.index(t["offset"]) + 1]]
            body += b"\0" * (-len(body) % ALIGNMENT)
        paths.append(os.path.join(directory, part_name(name, no + 1, n)))
        with open(paths[-1], "wb") as f:
            f.write(head + b"\0" * (-len(head) % ALIGNMENT) + body)
    return paths
