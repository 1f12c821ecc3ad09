"""Gemma 3n, Gemma 4 and EmbeddingGemma against float64: random models (tools/mkgguf_gemma.py, mkgguf_embedding.py)
whose reference values another program computed stay within a stated distance of them; and what a sequence gets is the
same bits in every company. test_embed.py compares EmbeddingGemma on the host device, behind a daemon.

usage: test_gemma.py distance GOLDEN_HOST | bits GOLDEN_HOST | exact TEST_HOST_EXACT [--full] | vulkan GOLDEN_VULKAN
--full: the C reference computes as many rows as the other tables.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from cpu_tables import tables  # noqa: E402
from goldens import F32_LIMIT, main, n_differing, run  # noqa: E402
from tandem_test import TREE, make_model  # noqa: E402

# How the model is made, and the mean distance (see golden-host.c) that is allowed as shipped: three quarters of
# llama.cpp's own, which rounds activations to 8 bits and keeps f32 in the cache; 0.005 where weights are f32. The first
# is of the generated positions of a text, the second of all positions of random ids.
MODELS = {
    ("gemma3n", "a", "f32"): ({}, 0.0077, 0.0081), ("gemma3n", "a", "q8_0"): ({}, 0.0829, 0.0913),
    ("gemma3n", "a", "q4_0"): ({}, 0.0818, 0.0819),
    ("gemma3n", "b", "f32"): ({"seed": 2, "mid_type": "f16"}, 0.0052, 0.0066),
    ("gemma3n", "b", "q8_0"): ({"seed": 2, "mid_type": "f16"}, 0.0646, 0.0709),
    ("gemma3n", "b", "q4_0"): ({"seed": 2, "mid_type": "f16"}, 0.0713, 0.0739),
    ("gemma3n", "k", "q4_k"): ({"seed": 4, "embd_type": "q6_k"}, 0.1315, 0.1427),
    ("gemma3n", "gen", "f32"): ({"seed": 6}, 0.005, 0.005),
    ("gemma4", "e", "f32"): ({}, 0.005, 0.005), ("gemma4", "e", "q8_0"): ({}, 0.0787, 0.1023),
    ("gemma4", "e", "q4_0"): ({}, 0.0790, 0.0970), ("gemma4", "x", "f32"): ({"seed": 3}, 0.005, 0.005),
    ("gemma4", "m", "f32"): ({"seed": 2}, 0.005, 0.005), ("gemma4", "m", "q8_0"): ({"seed": 2}, 0.0926, 0.1250),
    ("gemma4", "m", "q4_0"): ({"seed": 2}, 0.1067, 0.1243),
    ("gemma4", "k", "q4_k"): ({"seed": 6, "embd_type": "q6_k"}, 0.1887, 0.3517),
}
# An expert that was chosen otherwise at one position moves the positions after it: there the median counts.
BY_MEDIAN = (("gemma4", "m", "f32"),)
EXACT = (("gemma3n", "a", "q4_0"), ("gemma3n", "gen", "f32"), ("gemma4", "e", "q8_0"), ("gemma4", "x", "f32"),
         ("gemma4", "m", "q4_0"), ("gemma4", "k", "q4_k"))


# EmbeddingGemma: the seed. Distances are of cosines and of the worst text.
EMBEDDING = {"a": 1, "b": 2}
EMBEDDING_LIMITS = {"f32": 1e-5, "default": 2e-3}

VULKAN = (("gemma4", "e", "q8_0"), ("gemma4", "e", "q4_0"), ("gemma4", "x", "f32"), ("gemma3n", "a", "q8_0"),
          ("gemma3n", "b", "q4_0"), ("gemma3n", "k", "q4_k"), ("gemma3n", "gen", "f32"), ("gemma4", "m", "q8_0"),
          ("gemma4", "k", "q4_k"))
VULKAN_EXACT = (("gemma4", "e", "q4_0"), ("gemma3n", "a", "q4_0"), ("gemma4", "m", "q4_0"))


def model(arch, size, kind):
    return make_model(size, kind, arch=arch, **MODELS[arch, size, kind][0])


def golden(key, which):
    return os.path.join(TREE, "tests", "golden", "archs", "-".join(key) + f".{which}.json")


def distance(program, _full):
    """All instruction sets give the same bits (the test of kernels), so the slow C reference has one file."""
    failed = 0
    for key, (_, text, rows) in MODELS.items():
        for which, limit in (("golden", text), ("rows", rows)):
            runs = [("default", limit, tables()[-1]), ("f32", F32_LIMIT, tables()[-1])]
            if which == "golden" and key[1:] == ("e", "q4_0"):
                runs += [("default", limit, cpu) for cpu in tables()[:-1]]
            for precision, mean, cpu in runs:
                failed += run(program, model(*key), golden(key, which), "--precision", precision, "--cpu", cpu,
                              "--median" if key in BY_MEDIAN else "--mean", str(mean))
    return failed


def bits(program, _full):
    return n_differing(program, [(model(*key), golden(key, which), "--precision", precision)
                                 for key in MODELS for which in ("golden", "rows") for precision in ("default", "f32")])


def exact(program, full):
    return sum(run(program, model(*key), golden(key, "rows"), *["--full"] * full) for key in EXACT)


def vulkan(program, _full):
    """Distances; the same bits in chunks, alone and in company, with rows that are copied and kernels that wait on
    their own; attention, and all else, on another device."""
    failed = 0
    for key in VULKAN:
        for which, limit in zip(("golden", "rows"), MODELS[key][1:]):
            args = (model(*key), golden(key, which))
            failed += run(program, *args, "--mean", str(limit))
            failed += run(program, *args, "--precision", "f32", "--cases", "1", "--mean", str(F32_LIMIT))
    for key in VULKAN_EXACT:
        args = (model(*key), golden(key, "rows"))
        failed += run(program, *args, "--exact")
        failed += run(program, *args, "--exact", TANDEM_VULKAN_CHAIN="on", TANDEM_VULKAN_MEMORY="copy")
        args += ("--mean", str(MODELS[key][2]))
        failed += run(program, *args, "--split")
        failed += run(program, *args, "--swapped", TANDEM_VULKAN_MEMORY="copy")
    for size, seed in EMBEDDING.items():
        for kind in ("f32", "q8_0", "q4_0"):
            path = make_model(size, kind, arch="gemma-embedding", seed=seed)
            for precision, limit in EMBEDDING_LIMITS.items():
                args = (path, golden(("gemma-embedding", size, kind), "golden"), "--precision", precision, "--mean",
                        str(limit))
                failed += run(program, *args)
                if (size, kind, precision) == ("a", "q8_0", "default"):
                    failed += run(program, *args, TANDEM_VULKAN_CHAIN="on", TANDEM_VULKAN_MEMORY="copy")
                    failed += run(program, *args, "--split")
                    failed += run(program, *args, "--swapped", TANDEM_VULKAN_MEMORY="copy")
    return failed


if __name__ == "__main__":
    main({"distance": distance, "bits": bits, "exact": exact, "vulkan": vulkan})
