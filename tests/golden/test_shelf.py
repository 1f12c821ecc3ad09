"""Granite, Phi, GLM, OLMo, EXAONE, Hunyuan and Seed against float64: random models (tools/mkgguf_shelf.py), whose
reference values another program computed, stay within a stated distance of them, on the host device and on Vulkan; and
what a sequence gets on the host device is the same bits in every company.

usage: test_shelf.py distance GOLDEN_HOST [--full] [ARCH...] | refused GOLDEN_HOST | bits GOLDEN_HOST |
       exact TEST_HOST_EXACT [--full] | vulkan GOLDEN_VULKAN [ARCH...]
--full: all files, on every instruction set. ARCH: only files of these.
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from bits import n_differing  # noqa: E402
from cpu_tables import tables  # noqa: E402
from tandem_test import TREE, Skip, make_model  # noqa: E402

# The mean distance (see golden-host.c) that is allowed as shipped: three quarters of llama.cpp's own, which rounds
# activations to 8 bits and keeps f32 in the cache; 0.005 where weights are f32.
MODELS = {
    ("seed_oss", "dev", "f32"): 0.005, ("seed_oss", "dev", "q8_0"): 0.0844, ("seed_oss", "dev", "q4_0"): 0.0892,
    ("granite", "dev", "f32"): 0.005, ("granite", "dev", "q8_0"): 0.0284, ("granite", "dev", "q4_0"): 0.0304,
    ("granite", "nope", "f32"): 0.005, ("granite", "k", "q4_k"): 0.0346, ("granitemoe", "noshare", "f32"): 0.005,
    ("phi3", "dev", "f32"): 0.005, ("phi3", "dev", "q8_0"): 0.1049, ("phi3", "dev", "q4_0"): 0.1125,
    ("phi3", "k", "q4_k"): 0.1151, ("phi3", "win", "f32"): 0.005, ("phi3", "long", "f32"): 0.005,
    ("phi3", "short", "f32"): 0.005,
    ("glm4", "dev", "f32"): 0.005, ("glm4", "dev", "q8_0"): 0.0766, ("glm4", "dev", "q4_0"): 0.0694,
    ("glm4", "k", "q4_k"): 0.0989, ("glm4", "odd", "f32"): 0.005,
    ("hunyuan-dense", "dev", "f32"): 0.005, ("hunyuan-dense", "dev", "q8_0"): 0.1138,
    ("hunyuan-dense", "dev", "q4_0"): 0.1016, ("hunyuan-dense", "alpha", "f32"): 0.005,
    ("exaone4", "dev", "f32"): 0.005, ("exaone4", "dev", "q8_0"): 0.0834, ("exaone4", "dev", "q4_0"): 0.0983,
    ("exaone4", "swa", "f32"): 0.005,
    ("olmo2", "dev", "f32"): 0.005, ("olmo2", "dev", "q8_0"): 0.0815, ("olmo2", "dev", "q4_0"): 0.0941,
    ("olmo2", "k", "q4_k"): 0.1000, ("olmo2", "olmo3", "f32"): 0.005,
    ("olmoe", "dev", "f32"): 0.005, ("olmoe", "dev", "q8_0"): 0.0476, ("olmoe", "dev", "q4_0"): 0.0471,
}
# What is not computed, or makes no sense, is refused by its name.
REFUSED = (
    ("granite", "dev", "granite.logit_scale=f32:0", "logit_scale is missing"),
    ("granite", "dev", "granite.residual_scale=f32:-0.5", "residual_scale is -0.5"),
    ("granite", "dev", "granite.expert_count=u32:4", "mixture of 4 experts"),
    ("granitemoe", "noshare", "granitemoe.expert_shared_feed_forward_length=u32:128",
     "expert_shared_feed_forward_length is 128"),
    ("glm4", "odd", "glm4.rope.dimension_sections=au32:20", "glm4.rope.dimension_sections"),
    ("hunyuan-dense", "dev", "hunyuan-dense.rope.scaling.attn_factor=f32:1.5", "multiplies by 1.5 before a norm"),
    ("hunyuan-dense", "dev", "hunyuan-dense.rope.scaling.alpha=f32:-1", "rope.scaling.alpha is -1"),
    ("seed_oss", "dev", "seed_oss.logit_scale=f32:0.5", "seed_oss.logit_scale is 0.5"),
    ("olmo2", "dev", "olmo2.attention.clamp_kqv=f32:8", "olmo2.attention.clamp_kqv is 8"),
    ("olmo2", "olmo3", "olmo2.rope.scaling.yarn_attn_factor=f32:1.5", "yarn_attn_factor is 1.5"),
    ("phi3", "dev", "phi3.rope.scaling.type=str:longrope", "RoPE scaling is \"longrope\""),
    ("olmoe", "dev", "olmoe.expert_gating_func=u32:2", "function 2, a sigmoid"),
    ("phi3", "long", "phi3.rope.dimension_count=u32:50", "the shape 24"),
)
# What some converters write beside the rest: it changes nothing.
NEUTRAL = (
    ("olmo2", "olmo3", "olmo2.rope.scaling.attn_factor=f32:1.2079441"),
    ("olmo2", "olmo3", "olmo2.rope.scaling.yarn_attn_factor=f32:1.2079441"),
    ("phi3", "long", "phi3.rope.scaling.type=str:longrope"),
)
F32_LIMIT = 0.001  # in precision f32, of any file
# A cache of f16 alone costs these 0.007 and 0.034: RoPE's magnitude makes scores large, and 64 layers of random weights
# make every error larger. So their keys and values are f32, as llama.cpp's were.
KV_F32 = (("phi3", "long", "f32"), ("exaone4", "swa", "f32"))
# Without --full: each way of an architecture's own, and one rounded file of each.
QUICK = tuple(key for key in MODELS if key[2] in ("f32", "q8_0"))
VULKAN = tuple(key for key in MODELS if key[2] in ("f32", "q8_0"))
EXACT = (("granite", "dev", "q8_0"), ("phi3", "long", "f32"), ("hunyuan-dense", "dev", "q4_0"),
         ("exaone4", "dev", "q8_0"), ("olmo2", "k", "q4_k"), ("olmoe", "dev", "q8_0"))


def model(arch, size, kind):
    return make_model(size, kind, arch=arch, seed=3 if size == "k" else 1)


def golden(arch, size, kind):
    return os.path.join(TREE, "tests", "golden", "shelf", f"{arch}-{size}-{kind}.golden.json")


def kv(key):
    return ["--kv", "f32"] if key in KV_F32 else []


def chosen(keys):
    archs = [a for a in sys.argv[3:] if not a.startswith("-")]
    return [key for key in keys if not archs or key[0] in archs]


def distance(program, full):
    failed = 0
    for key in chosen(MODELS if full else QUICK):
        runs = [("default", MODELS[key], cpu) for cpu in (tables() if full else tables()[-1:])]
        for precision, mean, cpu in runs + [("f32", F32_LIMIT, tables()[-1])]:
            failed += subprocess.run([program, model(*key), golden(*key), "--precision", precision, "--cpu", cpu,
                                      "--mean", str(mean), *kv(key)]).returncode != 0
    return failed


def refused(program, _full):
    failed = 0
    for arch, size, key, words in REFUSED:
        path = make_model(size, "q8_0", arch=arch, key=key)
        r = subprocess.run([program, path, golden(arch, size, "f32")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = r.stdout.decode(errors="replace")
        if r.returncode == 0 or words not in said:
            print(f"{key}: not refused with \"{words}\": {said}")
            failed += 1
    for arch, size, key in NEUTRAL:
        path = make_model(size, "f32", arch=arch, key=key, seed=1)
        failed += subprocess.run([program, path, golden(arch, size, "f32"), "--precision", "f32",
                                  "--mean", str(F32_LIMIT), *kv((arch, size, "f32"))]).returncode != 0
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
    for key in chosen(VULKAN):
        precision, mean = ("f32", F32_LIMIT) if key[2] == "f32" else ("default", MODELS[key])
        r = subprocess.run([program, model(*key), golden(*key), "--cases", "1", "--precision", precision,
                            "--mean", str(mean)]).returncode
        if r == 77:
            raise Skip("no Vulkan device")
        failed += r != 0
    return failed


try:
    modes = {"distance": distance, "refused": refused, "bits": bits, "exact": exact, "vulkan": vulkan}
    sys.exit(1 if modes[sys.argv[1]](sys.argv[2], "--full" in sys.argv) else 0)
except Skip as e:
    print(f"SKIP {e}")
    sys.exit(77)
