#!/usr/bin/env python3
"""Writes the table of engine/weights/test-grids.c: what random blocks of IQ1, IQ2 and IQ3 stand for, as the package
`gguf` of the format's makers computes it. With --tables it writes the codebooks of engine/weights/grids.c instead.

usage: make-grid-goldens.py [--tables]
Needs numpy and gguf (0.19).
"""
import sys
import numpy as np
from gguf import GGMLQuantizationType, quants

TYPES = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
UNITS = {"IQ1": 8, "IQ2": 8, "IQ3_XXS": 4, "IQ3_S": 1}  # of d, so that values are whole numbers
BLOCKS, SHOWN = 1024, 32


def random_blocks(size, d_byte):
    """The bytes that the test makes: the top one of each word of a generator of 64 bits."""
    state, out = 1, bytearray()
    for _ in range(BLOCKS * size):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2 ** 64
        out.append(state >> 56)
    blocks = np.frombuffer(bytes(out), np.uint8).reshape(BLOCKS, size).copy()
    blocks[:, d_byte] &= 0xbf  # d is finite
    return blocks


def fnv(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 % 2 ** 64
    return value


def goldens():
    for name in TYPES:
        kind = GGMLQuantizationType[name]
        size = quants.quant_shape_to_byte_shape((256,), kind)[0]
        blocks = random_blocks(size, 55 if name == "IQ1_M" else 1)
        values = quants.dequantize(blocks, kind).astype("<f4")
        if name == "IQ1_M":
            words = blocks[0, 48:].view("<u2") >> 12
            d = np.array([words[0] | words[1] << 4 | words[2] << 8 | words[3] << 12], np.uint16).view(np.float16)[0]
        else:
            d = blocks[0, :2].view("<f2")[0]
        units = UNITS.get(name, UNITS.get(name[:3]))
        shown = values.reshape(-1)[:SHOWN].astype(np.float64) / (float(d) / units)
        assert np.all(shown == np.round(shown))
        print(f"        {{ TDM_TYPE_{name},\n          {units},\n          UINT64_C(0x{fnv(values.tobytes()):016x}),\n"
              f"          {{ {', '.join(str(int(v)) for v in shown)} }} }},")


def tables():
    for name, cls, bits in (("iq2_xxs", quants.IQ2_XXS, 2), ("iq2_xs", quants.IQ2_XS, 2), ("iq2_s", quants.IQ2_S, 2),
                            ("iq1", quants.IQ1_S, 2), ("iq3_xxs", quants.IQ3_XXS, 3), ("iq3_s", quants.IQ3_S, 3)):
        cls.init_grid()
        code = {float(v): i for i, v in enumerate(cls.grid_map)}
        rows = cls.grid.reshape(cls.grid_shape)
        entries = [sum(code[float(v)] << bits * i for i, v in enumerate(row)) for row in rows]
        print(f"\nconst uint16_t tdm_grid_{name}[{len(entries)}] = {{")
        for i in range(0, len(entries), 14):
            print("        " + " ".join(f"0x{v:04x}," for v in entries[i:i + 14]))
        print("};")


if "--tables" in sys.argv:
    tables()
else:
    goldens()
