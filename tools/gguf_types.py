"""The tensor types of GGUF files in numpy: how many bytes a block has, and what its values are, in float64.

For tests and tools: written from the format, not from the engine, so that each can be held against the other.
"""
import numpy as np
import gguf_grids

# name: (id, values of a block, bytes of a block)
TYPES = {"f32": (0, 1, 4), "f16": (1, 1, 2), "q4_0": (2, 32, 18), "q4_1": (3, 32, 20), "q5_0": (6, 32, 22),
         "q5_1": (7, 32, 24), "q8_0": (8, 32, 34), "q2_k": (10, 256, 84), "q3_k": (11, 256, 110),
         "q4_k": (12, 256, 144), "q5_k": (13, 256, 176), "q6_k": (14, 256, 210), "iq4_nl": (20, 32, 18),
         "iq4_xs": (23, 256, 136), "bf16": (30, 1, 2), "tq1_0": (34, 256, 54), "tq2_0": (35, 256, 66),
         "mxfp4": (39, 32, 17), "nvfp4": (40, 64, 36), **gguf_grids.TYPES}
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float64)
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64)


def _f16(x):
    return x.copy().view("<f2").astype(np.float64)


def _nibbles(x):
    return np.concatenate([x & 15, x >> 4], 1).astype(np.int64)


def _bits(x):
    """[n][4] bytes -> [n][32] bits."""
    return np.unpackbits(x.copy(), axis=1, bitorder="little").astype(np.int64)


def _thirds(x, n):
    """The first n digits to the base 3 of each byte, a fraction of 256: [blocks][bytes] -> [blocks][n * bytes]."""
    left, digits = x.astype(np.int64), []
    for _ in range(n):
        left = left * 3
        digits.append(left >> 8)
        left &= 255
    return np.concatenate(digits, 1)


def _scales_4k(s):
    """12 bytes -> 8 scales, 8 minima."""
    s = s.astype(np.int64)
    scale = np.concatenate([s[:, :4] & 63, (s[:, 8:] & 15) | (s[:, :4] >> 6 << 4)], 1)
    low = np.concatenate([s[:, 4:8] & 63, (s[:, 8:] >> 4) | (s[:, 4:8] >> 6 << 4)], 1)
    return scale, low


def values(blocks, name):
    """blocks: uint8 [n][bytes of a block]; returns float64 [n][values of a block]."""
    x = blocks
    if name == "f32":
        return x.copy().view("<f4").astype(np.float64)
    if name == "f16":
        return _f16(x)
    if name == "bf16":
        return (x.copy().view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if name in gguf_grids.TYPES:
        return gguf_grids.values(x, name)
    if name == "q8_0":
        return _f16(x[:, :2]) * x[:, 2:].view(np.int8)
    if name == "q4_0":
        return _f16(x[:, :2]) * (_nibbles(x[:, 2:]) - 8)
    if name == "q4_1":
        return _f16(x[:, :2]) * _nibbles(x[:, 4:]) + _f16(x[:, 2:4])
    if name == "q5_0":
        return _f16(x[:, :2]) * (_nibbles(x[:, 6:]) + 16 * _bits(x[:, 2:6]) - 16)
    if name == "q5_1":
        return _f16(x[:, :2]) * (_nibbles(x[:, 8:]) + 16 * _bits(x[:, 4:8])) + _f16(x[:, 2:4])
    if name == "iq4_nl":
        return _f16(x[:, :2]) * IQ4[_nibbles(x[:, 2:])]
    if name == "mxfp4":
        return 2.0 ** (x[:, :1].astype(np.float64) - 127) * E2M1[_nibbles(x[:, 1:])]
    if name == "tq2_0":
        q = x[:, :64].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
        return _f16(x[:, 64:]) * (q.reshape(-1, 256).astype(np.int64) - 1)
    if name == "tq1_0":
        q = np.concatenate([_thirds(x[:, :32], 5), _thirds(x[:, 32:48], 5), _thirds(x[:, 48:52], 4)], 1)
        return _f16(x[:, 52:]) * (q - 1)
    if name == "nvfp4":
        e, m = x[:, :4] >> 3 & 15, (x[:, :4] & 7).astype(np.float64)
        scale = np.where(e == 0, m * 2.0 ** -9, (1 + m / 8) * 2.0 ** (e.astype(np.float64) - 7))
        q = np.stack([_nibbles(x[:, 4 + 8 * i:12 + 8 * i]) for i in range(4)], 1)
        return (scale[:, :, None] * E2M1[q]).reshape(-1, 64)
    n, parts = len(x), range(8)
    if name in ("q4_k", "q5_k"):
        scale, low = _scales_4k(x[:, 4:16])
        quants = x[:, 16:] if name == "q4_k" else x[:, 48:]
        q = np.stack([quants[:, 32 * (j // 2):32 * (j // 2) + 32] >> 4 * (j % 2) & 15
                      for j in parts], 1).astype(np.int64)
        if name == "q5_k":
            q += 16 * np.stack([x[:, 16:48] >> j & 1 for j in parts], 1).astype(np.int64)
        d, m = _f16(x[:, :2])[:, :, None], _f16(x[:, 2:4])[:, :, None]
        return (d * scale[:, :, None] * q - m * low[:, :, None]).reshape(n, 256)
    if name == "iq4_xs":
        high = x[:, 2:4].copy().view("<u2").astype(np.int64)
        scale = np.stack([(x[:, 4 + j // 2] >> 4 * (j % 2) & 15).astype(np.int64) | (high[:, 0] >> 2 * j & 3) << 4
                          for j in parts], 1) - 32
        q = np.stack([_nibbles(x[:, 8 + 16 * j:24 + 16 * j]) for j in parts], 1)
        return (_f16(x[:, :2])[:, :, None] * scale[:, :, None] * IQ4[q]).reshape(n, 256)
    # The others have sub-blocks of 16, two bits of four values in a byte.
    two = {"q2_k": slice(16, 80), "q3_k": slice(32, 96), "q6_k": slice(128, 192)}[name]
    two = x[:, two].reshape(n, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    two = two.reshape(n, 8, 32).astype(np.int64)
    if name == "q2_k":
        q, scale = two, (x[:, :16] & 15).astype(np.int64)
        low = _f16(x[:, 82:84]) * (x[:, :16] >> 4)
        out = (_f16(x[:, 80:82]) * scale)[:, :, None] * q.reshape(n, 16, 16) - low[:, :, None]
    elif name == "q3_k":
        q = two + 4 * np.stack([x[:, :32] >> j & 1 for j in parts], 1) - 4
        s = x[:, 96:108].astype(np.int64)
        scale = np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], 1)
        scale |= np.concatenate([s[:, 8:] >> 2 * i & 3 for i in range(4)], 1) << 4
        out = (_f16(x[:, 108:110]) * (scale - 32))[:, :, None] * q.reshape(n, 16, 16)
    else:
        low = np.stack([x[:, 64 * (j // 4) + 32 * (j % 2):][:, :32] >> 4 * (j % 4 // 2) & 15 for j in parts], 1)
        q = low + 16 * two - 32
        out = (_f16(x[:, 208:210]) * x[:, 192:208].view(np.int8))[:, :, None] * q.reshape(n, 16, 16)
    return out.reshape(n, 256)


def name_of(type_id):
    for name, (i, _, _) in TYPES.items():
        if i == type_id:
            return name
    raise ValueError(f"no decoder for tensor type {type_id}")


def dequantise(data, name):
    """data: bytes of whole blocks; returns a flat float64 array."""
    return values(np.frombuffer(data, np.uint8).reshape(-1, TYPES[name][2]), name).reshape(-1)
