"""What the tools that make random models share: keys and tensors into a GGUF file, and made-up vocabularies."""
import struct
import numpy as np
from gguf_types import TYPES

ALIGNMENT = 32
BLOCK = 1 << 24  # values that are drawn at once; and with --fast how many different ones there are


def kv_str(s):
    b = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(b)) + b


def kv(key, typ, val):
    """typ: u32, i32, f32, bool or str; with an a in front an array of them."""
    out = kv_str(key)
    t = {"u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8}
    if typ in t:
        out += struct.pack("<I", t[typ])
        out += {"u32": lambda v: struct.pack("<I", v), "i32": lambda v: struct.pack("<i", v),
                "f32": lambda v: struct.pack("<f", v), "bool": lambda v: struct.pack("<?", v),
                "str": kv_str}[typ](val)
        return out
    et = typ[1:]
    out += struct.pack("<IIQ", 9, t[et], len(val))
    if et == "str":
        return out + b"".join(kv_str(v) for v in val)
    return out + np.asarray(val, dtype={"f32": "<f4", "i32": "<i4", "u32": "<u4", "bool": "?"}[et]).tobytes()


def vocabulary_keys(pieces, scores, types):
    return [kv("tokenizer.ggml.model", "str", "llama"), kv("tokenizer.ggml.pre", "str", "default"),
            kv("tokenizer.ggml.tokens", "astr", pieces), kv("tokenizer.ggml.scores", "af32", scores),
            kv("tokenizer.ggml.token_type", "ai32", types), kv("tokenizer.ggml.bos_token_id", "u32", 2),
            kv("tokenizer.ggml.eos_token_id", "u32", 1), kv("tokenizer.ggml.unknown_token_id", "u32", 3),
            kv("tokenizer.ggml.padding_token_id", "u32", 0), kv("tokenizer.ggml.add_bos_token", "bool", True),
            kv("tokenizer.ggml.add_eos_token", "bool", False), kv("tokenizer.ggml.add_space_prefix", "bool", False)]


def letters_vocabulary(n, markers=()):
    """Keys of n pieces: special ones, bytes, the markers (text, type), then short words of letters."""
    pieces = [b"<pad>", b"<eos>", b"<bos>", b"<unk>"] + [b"<0x%02X>" % i for i in range(256)]
    types = [3, 3, 3, 2] + [6] * 256
    pieces += [text.encode() for text, _ in markers]
    types += [kind for _, kind in markers]
    seen = set()
    i = 0
    while len(pieces) < n:
        letters = "".join(chr(97 + (i >> (5 * k)) % 26) for k in range(1 + i % 4))
        text = ("\u2581" if i & 1 else "") + letters + (str(i) if i > 20000 else "")
        i += 1
        if text not in seen:
            seen.add(text)
            pieces.append(text.encode())
            types.append(1)
    return vocabulary_keys(pieces, [-float(k) for k in range(n)], types)


def write_matrix(f, rng, pool, shape, name, std, encode):
    """encode(rng, shape, name, std): bytes of a random matrix. pool: None, or where large ones take their blocks
    from."""
    cols, rows = shape[-1], int(np.prod(shape[:-1]))
    row_bytes, at_once = cols // TYPES[name][1] * TYPES[name][2], max(1, BLOCK // cols)
    if pool is None or rows <= at_once:
        for first in range(0, rows, at_once):
            f.write(encode(rng, (min(at_once, rows - first), cols), name, std))
        return
    if (name, cols, std) not in pool:
        pool[name, cols, std] = encode(rng, (at_once, cols), name, std)
    data, at, left = pool[name, cols, std], int(rng.integers(0, at_once)) * row_bytes, rows * row_bytes
    while left:
        n = min(left, len(data) - at)
        f.write(data[at:at + n])
        left -= n
        at = 0


def fitting_type(name, cols):
    """The type, or another one where a row is no whole number of its blocks."""
    return name if cols % TYPES[name][1] == 0 else "q8_0" if cols % 32 == 0 else "f16"


def write_file(path, keys, tensors, write_tensor):
    """tensors: (name, shape, type, what is drawn). write_tensor(f, name, shape, type, drawn) writes its bytes."""
    infos, places, offset = [], [], 0
    for name, shape, kind, _ in tensors:
        infos.append(kv_str(name) + struct.pack("<I", len(shape)) +
                     b"".join(struct.pack("<Q", n) for n in shape[::-1]) +
                     struct.pack("<IQ", TYPES[kind][0], offset))
        places.append(offset)
        offset += -(int(np.prod(shape)) // TYPES[kind][1] * TYPES[kind][2] // -ALIGNMENT) * ALIGNMENT
    with open(path, "wb") as f:
        f.write(struct.pack("<IIQQ", 0x46554747, 3, len(infos), len(keys)) + b"".join(keys) + b"".join(infos))
        f.write(b"\0" * (-f.tell() % ALIGNMENT))
        start = f.tell()
        for tensor, at in zip(tensors, places):
            f.write(b"\0" * (start + at - f.tell()))
            write_tensor(f, *tensor)
        f.write(b"\0" * (-f.tell() % ALIGNMENT))
