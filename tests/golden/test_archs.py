"""Llama, SmolLM3, Qwen, gpt-oss and LFM2 against float64: random models (tools/mkgguf_archs.py, mkgguf_hybrids.py),
whose reference values another program computed, stay within a stated distance of them, on the host device and on
Vulkan; and what a sequence gets on the host device is the same bits in every company.

usage: test_archs.py distance GOLDEN_HOST [--full] | bits GOLDEN_HOST | exact TEST_HOST_EXACT [--full] |
       vulkan GOLDEN_VULKAN
--full: every instruction set computes every file, and the C reference, which is slow, as many rows as the others.
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from bits import n_differing  # noqa: E402
from cpu_tables import tables  # noqa: E402
from tandem_test import TREE, Skip, make_model  # noqa: E402

# Seed, and the mean distance (see golden-host.c) that is allowed as shipped: three quarters of llama.cpp's own, which
# rounds activations to 8 bits and keeps f32 in the cache; 0.005 where weights are f32. Measured: a half of these.
MODELS = {
    ("llama", "dev", "f32"): (1, 0.005), ("llama", "dev", "q8_0"): (1, 0.0596), ("llama", "dev", "q4_0"): (1, 0.0672),
    ("llama", "k", "q4_k"): (3, 0.0915), ("llama", "k", "q6_k"): (3, 0.0892), ("llama", "linear", "f32"): (4, 0.005),
    ("llama", "rope80", "f32"): (7, 0.005), ("llama", "rope80", "q8_0"): (7, 0.0596),
    ("llama", "rope100", "f32"): (7, 0.005), ("llama", "rope120", "f32"): (7, 0.005),
    ("llama", "rope120", "q8_0"): (7, 0.0596), ("llama", "part", "f32"): (7, 0.005),
    ("smollm3", "dev", "f32"): (1, 0.005), ("smollm3", "dev", "q8_0"): (1, 0.0805),
    ("smollm3", "dev", "q4_0"): (1, 0.0821), ("smollm3", "k", "q4_k"): (3, 0.0944),
    ("qwen2", "dev", "f32"): (1, 0.005), ("qwen2", "dev", "q8_0"): (1, 0.0515), ("qwen2", "dev", "q4_0"): (1, 0.0544),
    ("qwen2", "k", "q4_k"): (3, 0.0785), ("qwen2", "k", "q6_k"): (3, 0.0795),
    ("qwen3", "dev", "f32"): (1, 0.005), ("qwen3", "dev", "q8_0"): (1, 0.0596), ("qwen3", "dev", "q4_0"): (1, 0.0600),
    ("qwen3", "k", "q4_k"): (3, 0.0909), ("qwen3", "k", "q6_k"): (3, 0.0927), ("qwen3", "yarn", "f32"): (4, 0.005),
    ("qwen3moe", "dev", "f32"): (1, 0.005), ("qwen3moe", "dev", "q8_0"): (1, 0.1025),
    ("qwen3moe", "dev", "q4_0"): (1, 0.0867), ("qwen3moe", "k", "q4_k"): (3, 0.0742),
    ("qwen3moe", "k", "q6_k"): (3, 0.0735),
    ("gpt-oss", "dev", "f32"): (1, 0.005), ("gpt-oss", "dev", "bf16"): (1, 0.0233),
    ("gpt-oss", "dev", "q8_0"): (1, 0.0964), ("gpt-oss", "dev", "mxfp4"): (1, 0.1280),
    ("gpt-oss", "real", "mxfp4"): (5, 0.0516),
    ("lfm2", "dev", "f32"): (1, 0.005), ("lfm2", "dev", "q8_0"): (1, 0.0702), ("lfm2", "dev", "q4_0"): (1, 0.0656),
    ("lfm2", "k", "q4_k"): (3, 0.0843), ("lfm2", "k", "q6_k"): (3, 0.0905), ("lfm2", "odd", "f32"): (4, 0.005),
    ("lfm2", "odd", "q8_0"): (4, 0.0714),
}
# An expert that was chosen otherwise at one position moves the positions after it: there the median counts.
BY_MEDIAN = (("gpt-oss", "dev", "f32"),)
# Whose reference rounds YaRN's range.
ROUNDED = (("gpt-oss", "dev", "bf16"),)
F32_LIMIT = 0.001  # in precision f32, of any file
# Which all instruction sets compute without --full: one of each architecture, and each way of its own to turn.
BY_ALL = (("llama", "dev", "q4_0"), ("llama", "linear", "f32"), ("llama", "rope120", "q8_0"), ("llama", "part", "f32"),
          ("smollm3", "dev", "q8_0"), ("qwen2", "dev", "q4_0"), ("qwen3", "yarn", "f32"), ("qwen3moe", "k", "q6_k"),
          ("gpt-oss", "dev", "mxfp4"), ("lfm2", "dev", "q8_0"))
VULKAN = (("llama", "dev", "q8_0"), ("llama", "k", "q4_k"), ("llama", "rope80", "q8_0"), ("llama", "rope100", "f32"),
          ("llama", "rope120", "q8_0"), ("llama", "part", "f32"), ("smollm3", "dev", "q8_0"), ("smollm3", "k", "q4_k"),
          ("qwen2", "dev", "q8_0"), ("qwen2", "dev", "f32"), ("qwen3", "yarn", "f32"),
          ("qwen3moe", "dev", "q8_0"), ("qwen3moe", "k", "q4_k"), ("gpt-oss", "dev", "mxfp4"))
EXACT = (("llama", "dev", "q8_0"), ("llama", "rope120", "q8_0"), ("smollm3", "dev", "q4_0"), ("qwen2", "dev", "q4_0"),
         ("qwen3", "k", "q4_k"), ("qwen3moe", "dev", "q4_0"), ("qwen3moe", "k", "q6_k"), ("gpt-oss", "dev", "mxfp4"),
         ("lfm2", "dev", "q8_0"), ("lfm2", "odd", "f32"))


def model(arch, size, kind):
    return make_model(size, kind, arch=arch, seed=MODELS[arch, size, kind][0])


def golden(arch, size, kind):
    return os.path.join(TREE, "tests", "golden", "archs", f"{arch}-{size}-{kind}.golden.json")


def distance(program, full):
    failed = 0
    for key, (_, limit) in MODELS.items():
        runs = [("default", limit, cpu) for cpu in tables() if full or cpu == tables()[-1] or key in BY_ALL]
        runs += [("f32", F32_LIMIT, tables()[-1])]
        for precision, mean, cpu in runs:
            failed += subprocess.run([program, model(*key), golden(*key), "--precision", precision, "--cpu", cpu,
                                      "--median" if key in BY_MEDIAN else "--mean", str(mean),
                                      *["--rounded"] * (key in ROUNDED)]).returncode != 0
    return failed


def bits(program, _full):
    return n_differing(program, [(model(*key), golden(*key), "--precision", precision)
                                 for key in MODELS for precision in ("default", "f32")])


def exact(program, full):
    return sum(subprocess.run([program, model(*key), golden(*key)] + ["--full"] * full).returncode != 0
               for key in EXACT)


def vulkan(program, _full):
    """One text of each: a CPU implementation takes seconds for it, and longer to compile kernels."""
    failed = 0
    for key in VULKAN:
        for precision, mean in (("default", MODELS[key][1]), ("f32", F32_LIMIT)):
            r = subprocess.run([program, model(*key), golden(*key), "--cases", "1", "--precision", precision,
                                "--mean", str(mean)]).returncode
            if r == 77:
                raise Skip("no Vulkan device")
            failed += r != 0
    return failed


try:
    modes = {"distance": distance, "bits": bits, "exact": exact, "vulkan": vulkan}
    sys.exit(1 if modes[sys.argv[1]](sys.argv[2], "--full" in sys.argv) else 0)
except Skip as e:
    print(f"SKIP {e}")
    sys.exit(77)
