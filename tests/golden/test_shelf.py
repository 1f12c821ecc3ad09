"""Granite, Gemma 2, Command R, Ministral 3, Phi, GLM, OLMo, EXAONE, Hunyuan, Seed and Qwen2 with experts against
float64: random models (tools/mkgguf_shelf.py), whose reference values another program computed, stay within a stated
distance of them, on the host device and on Vulkan; and what a sequence gets on the host device is the same bits in
every company.

usage: test_shelf.py distance GOLDEN_HOST [--full] | refused GOLDEN_HOST | bits GOLDEN_HOST |
       exact TEST_HOST_EXACT [--full] | vulkan GOLDEN_VULKAN; behind it architectures: only files of these
--full: all files, on every instruction set.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from cpu_tables import tables  # noqa: E402
from goldens import Family, main  # noqa: E402

# The mean distance (see golden-host.c) that is allowed as shipped: three quarters of llama.cpp's own, which rounds
# activations to 8 bits and keeps f32 in the cache; 0.005 where weights are f32.
MODELS = {
    ("seed_oss", "dev", "f32"): 0.005, ("seed_oss", "dev", "q8_0"): 0.0844, ("seed_oss", "dev", "q4_0"): 0.0892,
    ("granite", "dev", "f32"): 0.005, ("granite", "dev", "q8_0"): 0.0284, ("granite", "dev", "q4_0"): 0.0304,
    ("granite", "nope", "f32"): 0.005, ("granite", "k", "q4_k"): 0.0346, ("granitemoe", "noshare", "f32"): 0.005,
    ("granitemoe", "dev", "f32"): 0.005, ("granitemoe", "dev", "q8_0"): 0.0302, ("granitemoe", "dev", "q4_0"): 0.0324,
    ("qwen2moe", "dev", "f32"): 0.005, ("qwen2moe", "dev", "q8_0"): 0.0634, ("qwen2moe", "dev", "q4_0"): 0.0566,
    ("qwen2moe", "k", "q4_k"): 0.1010,
    ("phi3", "dev", "f32"): 0.005, ("phi3", "dev", "q8_0"): 0.1049, ("phi3", "dev", "q4_0"): 0.1125,
    ("phi3", "k", "q4_k"): 0.1151, ("phi3", "win", "f32"): 0.005, ("phi3", "long", "f32"): 0.005,
    ("phi3", "short", "f32"): 0.005,
    ("command-r", "dev", "f32"): 0.005, ("command-r", "dev", "q8_0"): 0.0756, ("command-r", "dev", "q4_0"): 0.0618,
    ("command-r", "plus", "f32"): 0.005,
    ("cohere2", "dev", "f32"): 0.005, ("cohere2", "dev", "q8_0"): 0.0791, ("cohere2", "dev", "q4_0"): 0.0893,
    ("cohere2", "k", "q4_k"): 0.1149,
    ("gemma2", "dev", "f32"): 0.005, ("gemma2", "dev", "q8_0"): 0.0979, ("gemma2", "dev", "q4_0"): 0.0941,
    ("gemma2", "tight", "f32"): 0.005, ("gemma2", "27b", "f32"): 0.005, ("gemma2", "k", "q4_k"): 0.0865,
    ("glm4", "dev", "f32"): 0.005, ("glm4", "dev", "q8_0"): 0.0766, ("glm4", "dev", "q4_0"): 0.0694,
    ("glm4", "k", "q4_k"): 0.0989, ("glm4", "odd", "f32"): 0.005,
    ("hunyuan-dense", "dev", "f32"): 0.005, ("hunyuan-dense", "dev", "q8_0"): 0.1138,
    ("hunyuan-dense", "dev", "q4_0"): 0.1016, ("hunyuan-dense", "alpha", "f32"): 0.005,
    ("exaone4", "dev", "f32"): 0.005, ("exaone4", "dev", "q8_0"): 0.0834, ("exaone4", "dev", "q4_0"): 0.0983,
    ("exaone4", "swa", "f32"): 0.005,
    ("olmo2", "dev", "f32"): 0.005, ("olmo2", "dev", "q8_0"): 0.0815, ("olmo2", "dev", "q4_0"): 0.0941,
    ("olmo2", "k", "q4_k"): 0.1000, ("olmo2", "olmo3", "f32"): 0.005,
    ("mistral3", "dev", "f32"): 0.005, ("mistral3", "dev", "q8_0"): 0.0976, ("mistral3", "dev", "q4_0"): 0.1149,
    ("mistral3", "yarn", "f32"): 0.005, ("mistral3", "k", "q4_k"): 0.1272,
    ("olmoe", "dev", "f32"): 0.005, ("olmoe", "dev", "q8_0"): 0.0476, ("olmoe", "dev", "q4_0"): 0.0471,
}
# What is not computed, or makes no sense, is refused by its name.
REFUSED = (
    ("granite", "dev", "granite.logit_scale=f32:0", "logit_scale is missing"),
    ("granite", "dev", "granite.residual_scale=f32:-0.5", "residual_scale is -0.5"),
    ("granite", "dev", "granite.expert_count=u32:4", "mixture of 4 experts"),
    ("granitemoe", "noshare", "granitemoe.expert_shared_feed_forward_length=u32:128",
     "tensor blk.0.ffn_gate_shexp.weight is missing"),
    ("qwen2moe", "dev", "qwen2moe.expert_shared_feed_forward_length=u32:100",
     "expert_shared_feed_forward_length is 100: only multiples of 32"),
    ("qwen2moe", "dev", "qwen2moe.expert_shared_feed_forward_length=u32:4294967295",
     "expert_shared_feed_forward_length is 4294967295"),
    ("qwen2moe", "dev", "qwen2moe.expert_shared_feed_forward_length=u32:64",
     "tensor blk.0.ffn_gate_shexp.weight has the shape"),
    ("qwen2moe", "dev", "qwen2moe.expert_shared_feed_forward_length=u32:0",
     "tensor blk.0.ffn_gate_shexp.weight is not part"),
    ("qwen2moe", "dev", "qwen2moe.expert_shared_count=u32:2", "only one shared expert"),
    ("olmoe", "dev", "olmoe.expert_shared_feed_forward_length=u32:64", "expert_shared_feed_forward_length is 64"),
    ("glm4", "odd", "glm4.rope.dimension_sections=au32:20", "glm4.rope.dimension_sections"),
    ("hunyuan-dense", "dev", "hunyuan-dense.rope.scaling.attn_factor=f32:1.5", "multiplies by 1.5 before a norm"),
    ("hunyuan-dense", "dev", "hunyuan-dense.rope.scaling.alpha=f32:-1", "rope.scaling.alpha is -1"),
    ("seed_oss", "dev", "seed_oss.logit_scale=f32:0.5", "seed_oss.logit_scale is 0.5"),
    ("olmo2", "dev", "olmo2.attention.clamp_kqv=f32:8", "olmo2.attention.clamp_kqv is 8"),
    ("olmo2", "olmo3", "olmo2.rope.scaling.yarn_attn_factor=f32:1.5", "yarn_attn_factor is 1.5"),
    ("phi3", "dev", "phi3.rope.scaling.type=str:longrope", "RoPE scaling is \"longrope\""),
    ("olmoe", "dev", "olmoe.expert_gating_func=u32:2", "function 2, a sigmoid"),
    ("command-r", "dev", "command-r.logit_scale=f32:-1", "an impossible scale of logits"),
    ("command-r", "dev", "command-r.attention.layer_norm_epsilon=f32:0", "layer_norm_epsilon is missing"),
    ("cohere2", "dev", "cohere2.attention.sliding_window=u32:0", "sliding_window is missing"),
    ("gemma2", "dev", "gemma2.attn_logit_softcapping=f32:-2", "the soft-capping of attention is -2"),
    ("gemma2", "dev", "gemma2.final_logit_softcapping=f32:-2", "the logit soft-capping is -2"),
    ("gemma2", "dev", "gemma2.rope.dimension_count=u32:32", "rotates 32 of 64 dimensions"),
    ("mistral3", "dev", "mistral3.attention.temperature_scale=f32:-0.5", "queries that grow"),
    ("phi3", "long", "phi3.rope.dimension_count=u32:50", "the shape 24"),
)
# What some converters write beside the rest: it changes nothing.
NEUTRAL = (
    ("olmo2", "olmo3", "olmo2.rope.scaling.attn_factor=f32:1.2079441"),
    ("olmo2", "olmo3", "olmo2.rope.scaling.yarn_attn_factor=f32:1.2079441"),
    ("phi3", "long", "phi3.rope.scaling.type=str:longrope"),
    ("gemma2", "dev", "gemma2.rope.freq_base=f32:10000"),
    ("qwen2moe", "dev", "qwen2moe.expert_shared_count=u32:1"),
    ("granitemoe", "noshare", "granitemoe.expert_shared_feed_forward_length=u32:0"),
)
# A cache of f16 alone costs these 0.007, 0.034, 0.006 and 0.008: RoPE's magnitude makes scores large, and 64 layers of
# random weights make every error larger. So their keys and values are f32, as llama.cpp's were.
KV_F32 = (("phi3", "long", "f32"), ("exaone4", "swa", "f32"), ("mistral3", "yarn", "f32"),
          ("command-r", "plus", "f32"))
# Without --full: each way of an architecture's own, and one rounded file of each.
QUICK = tuple(key for key in MODELS if key[2] in ("f32", "q8_0"))
# What Vulkan does not compute.
ON_HOST = (("qwen2moe", "dev"), ("granitemoe", "dev"), ("command-r", "plus"))
VULKAN = tuple(key for key in MODELS if key[2] in ("f32", "q8_0") and key[:2] not in ON_HOST)
EXACT = (("granite", "dev", "q8_0"), ("cohere2", "dev", "q8_0"), ("gemma2", "tight", "f32"), ("phi3", "long", "f32"),
         ("hunyuan-dense", "dev", "q4_0"), ("exaone4", "dev", "q8_0"), ("olmo2", "k", "q4_k"), ("olmoe", "dev", "q8_0"),
         ("mistral3", "dev", "q8_0"), ("qwen2moe", "dev", "q8_0"), ("granitemoe", "dev", "f32"))


def kv(key):
    return ["--kv", "f32"] if key in KV_F32 else []


FAMILY = Family("shelf", MODELS, lambda key: 3 if key[1] == "k" else 1, kv)


def distance(program, full):
    return FAMILY.distance(program, {key: tables() if full else tables()[-1:] for key in (MODELS if full else QUICK)})


if __name__ == "__main__":
    main({"distance": distance, "refused": lambda program, full: FAMILY.refused(program, REFUSED, NEUTRAL),
          "bits": lambda program, full: FAMILY.bits(program),
          "exact": lambda program, full: FAMILY.exact(program, EXACT, full),
          "vulkan": lambda program, full: FAMILY.vulkan(program, [(key, "f32" if key[2] == "f32" else "default")
                                                                  for key in VULKAN])})
