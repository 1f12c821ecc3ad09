"""IQ1, IQ2 and IQ3 in numpy: what their blocks stand for, in float64. Written from the format as gguf_types.py is. The
codebooks alone are those of engine/weights/grids.c; test-grids.c holds them against the package of the format's makers.
"""
import os
import re
import numpy as np

TYPES = {"iq2_xxs": (16, 256, 66), "iq2_xs": (17, 256, 74), "iq3_xxs": (18, 256, 98), "iq1_s": (19, 256, 50),
         "iq3_s": (21, 256, 110), "iq2_s": (22, 256, 82), "iq1_m": (29, 256, 56)}
MAGNITUDES = {"iq1": [-1, 0, 1, np.nan], "iq2": [8, 25, 43, np.nan], "iq3_xxs": [4, 12, 20, 28, 36, 44, 52, 62],
              "iq3_s": [1, 3, 5, 7, 9, 11, 13, 15]}
GRIDS = {}


def grid(name):
    """[entries][columns] of magnitudes."""
    if name not in GRIDS:
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "engine", "weights", "grids.c")
        with open(path, encoding="utf-8") as f:
            table = re.search(rf"tdm_grid_{name}\[\d+\] = {{(.*?)}}", f.read(), re.S).group(1)
        codes = np.array([int(v, 16) for v in re.findall(r"0x[0-9a-f]+", table)])
        bits, n = (3, 4) if name.startswith("iq3") else (2, 8)
        values = np.array(MAGNITUDES[name if bits == 3 else name[:3]], np.float64)
        GRIDS[name] = values[codes[:, None] >> bits * np.arange(n) & (1 << bits) - 1]
    return GRIDS[name]


def _u16(x):
    return x.copy().view("<u2").astype(np.int64)


def _u32(x):
    return x.copy().view("<u4").astype(np.int64)


def _fields(x, width, n):
    """[...][m] numbers -> [...][m * n]: n fields of that width each, the lowest first."""
    return (x[..., None] >> width * np.arange(n) & (1 << width) - 1).reshape(*x.shape[:-1], -1)


def _signs(eight):
    """[n][groups] bytes -> [n][8 * groups] of 1 and -1."""
    return 1 - 2 * _fields(eight, 1, 8)


def _seven(index):
    """The eighth sign makes the number of negative ones even."""
    return index | _fields(index, 1, 7).reshape(*index.shape, 7).sum(-1) % 2 << 7


def _scaled(d, scale, values):
    """[n][1] times [n][sub-blocks] times [n][256]."""
    n = len(d)
    return (d[:, :, None] * scale[:, :, None] * values.reshape(n, scale.shape[1], -1)).reshape(n, 256)


def values(x, name):
    """x: uint8 [n][bytes of a block]; returns float64 [n][256]."""
    n, b = len(x), x.astype(np.int64)
    if name == "iq1_m":
        words = _u16(x[:, 48:])
        d = (words >> 12 << 4 * np.arange(4)).sum(1).astype("<u2").view("<f2").astype(np.float64)[:, None]
        more = _fields(b[:, 32:48], 4, 2)
        groups = grid("iq1")[b[:, :32] | (more & 7) << 8] + np.where(more & 8, -0.125, 0.125)[:, :, None]
        return _scaled(d, 2 * _fields(words & 0xfff, 3, 4) + 1, groups)
    d = x[:, :2].copy().view("<f2").astype(np.float64)
    if name == "iq1_s":
        words = _u16(x[:, 34:])
        groups = grid("iq1")[b[:, 2:34] | _fields(words, 3, 4) << 8].reshape(n, 8, 32)
        return _scaled(d, 2 * (words >> 12 & 7) + 1, groups + np.where(words >> 15, -0.125, 0.125)[:, :, None])
    if name == "iq2_xxs":
        pairs = _u32(x[:, 2:]).reshape(n, 8, 2)
        index, word = _fields(pairs[:, :, 0], 8, 4), pairs[:, :, 1]
        signs, scale = _seven(_fields(word, 7, 4)), (word >> 28) * 2 + 1
    elif name == "iq2_xs":
        words = _u16(x[:, 2:66])
        index, signs, scale = words & 511, _seven(words >> 9), 2 * _fields(b[:, 66:], 4, 2) + 1
    elif name == "iq2_s":
        index = b[:, 2:34] | _fields(b[:, 66:74], 2, 4) << 8
        signs, scale = b[:, 34:66], 2 * _fields(b[:, 74:], 4, 2) + 1
    elif name == "iq3_xxs":
        word = _u32(x[:, 66:])
        index, signs, scale = b[:, 2:66], _seven(_fields(word, 7, 4)), 2 * (word >> 28) + 1
    else:
        index = b[:, 2:66] | _fields(b[:, 66:74], 1, 8) << 8
        signs, scale = b[:, 74:106], 2 * _fields(b[:, 106:], 4, 2) + 1
    unit = {"iq2": 0.125, "iq3_xxs": 0.25, "iq3_s": 1}[name if name in ("iq3_xxs", "iq3_s") else "iq2"]
    return _scaled(d, scale * unit, grid(name)[index].reshape(n, 256) * _signs(signs))
