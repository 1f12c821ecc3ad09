"""Llama, SmolLM3, Qwen, gpt-oss, LFM2, Qwen 3.5 and Qwen3-Next against float64: random models (tools/mkgguf_archs.py,
mkgguf_hybrids.py), whose reference values another program computed, stay within a stated distance of them, on the host
device and on Vulkan; and what a sequence gets on the host device is the same bits in every company.

usage: test_archs.py distance GOLDEN_HOST [--full] | refused GOLDEN_HOST | bits GOLDEN_HOST |
       exact TEST_HOST_EXACT [--full] | vulkan GOLDEN_VULKAN; behind it architectures: only files of these
--full: every instruction set computes every file, and the C reference, which is slow, as many rows as the others.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from cpu_tables import tables  # noqa: E402
from goldens import Family, main  # noqa: E402

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
    ("lfm2moe", "dev", "f32"): (1, 0.005), ("lfm2moe", "dev", "q8_0"): (1, 0.1432),
    ("lfm2moe", "dev", "q4_0"): (1, 0.1191), ("lfm2moe", "k", "q4_k"): (3, 0.2682),
    ("lfm2moe", "k", "q6_k"): (3, 0.2790),
    ("qwen35", "dev", "f32"): (1, 0.005), ("qwen35", "dev", "q8_0"): (1, 0.1467),
    ("qwen35", "dev", "q4_0"): (1, 0.1237), ("qwen35", "k", "q4_k"): (3, 0.1709), ("qwen35", "k", "q6_k"): (3, 0.1537),
    ("qwen35", "odd", "f32"): (4, 0.005), ("qwen35", "odd", "q8_0"): (4, 0.0621), ("qwen35", "mtp", "f32"): (5, 0.005),
    ("qwen35", "mtp", "q8_0"): (5, 0.0824),
    ("qwen35moe", "dev", "f32"): (1, 0.005), ("qwen35moe", "dev", "q8_0"): (1, 0.1604),
    ("qwen35moe", "dev", "q4_0"): (1, 0.1467), ("qwen35moe", "k", "q4_k"): (3, 0.2470),
    ("qwen35moe", "k", "q6_k"): (3, 0.2615), ("qwen35moe", "mtp", "f32"): (5, 0.005),
    ("qwen35moe", "mtp", "q8_0"): (5, 0.1189),
    ("qwen3next", "dev", "f32"): (1, 0.005), ("qwen3next", "dev", "q8_0"): (1, 0.1616),
    ("qwen3next", "dev", "q4_0"): (1, 0.1496), ("qwen3next", "k", "q4_k"): (3, 0.2627),
    ("qwen3next", "k", "q6_k"): (3, 0.2312),
}
# What is not computed, or makes no sense, is refused by its name.
REFUSED = (
    ("lfm2", "dev", "lfm2.leading_dense_block_count=u32:2", "lfm2.leading_dense_block_count is 2"),
    ("lfm2", "dev", "lfm2.expert_count=u32:16", "a mixture of 16 experts"),
    ("lfm2moe", "dev", "lfm2moe.expert_gating_func=u32:1", "function 1, only a sigmoid"),
    ("lfm2moe", "dev", "lfm2moe.expert_weights_norm=bool:0", "lfm2moe.expert_weights_norm"),
    ("lfm2moe", "dev", "lfm2moe.expert_weights_scale=f32:2.5", "lfm2moe.expert_weights_scale is 2.5"),
    ("lfm2moe", "dev", "lfm2moe.expert_group_count=u32:4", "lfm2moe.expert_group_count is 4"),
    ("lfm2moe", "dev", "lfm2moe.expert_shared_count=u32:1", "lfm2moe.expert_shared_count is 1"),
    ("lfm2moe", "dev", "lfm2moe.expert_count", "lfm2moe.expert_count is missing"),
    ("lfm2moe", "dev", "lfm2moe.leading_dense_block_count=u32:5", "leading_dense_block_count is 5, it must be from 0"),
    ("lfm2moe", "dev", "lfm2moe.leading_dense_block_count=u32:3", "tensor blk.2.ffn_gate.weight is missing"),
    ("lfm2moe", "dev", "lfm2moe.leading_dense_block_count", "tensor blk.0.ffn_gate_inp.weight is missing"),
    ("lfm2moe", "dev", "lfm2moe.shortconv.l_cache", "lfm2moe.shortconv.l_cache is 0"),
    ("lfm2moe", "dev", "lfm2moe.attention.head_count_kv=ai32:0,0,0,0,0", "no layer of it has attention"),
    ("qwen35", "dev", "qwen35.ssm.state_size", "qwen35.ssm.state_size is 0"),
    ("qwen35moe", "dev", "qwen35moe.expert_shared_feed_forward_length",
     "qwen35moe.expert_shared_feed_forward_length is missing"),
    ("qwen35moe", "dev", "qwen35moe.expert_count", "qwen35moe.expert_count is missing"),
    ("qwen35moe", "dev", "qwen35moe.expert_used_count=u32:25", "an impossible number of experts in use"),
    ("qwen35moe", "dev", "qwen35moe.ssm.time_step_rank", "qwen35moe.ssm.time_step_rank is 0"),
    ("qwen35moe", "dev", "qwen35moe.ssm.inner_size=u32:64", "qwen35moe.ssm.inner_size is 64"),
    ("qwen35moe", "dev", "qwen35moe.expert_shared_count=u32:2", "only one shared expert"),
    ("qwen35moe", "dev", "qwen35moe.expert_gating_func=u32:2", "function 2, a sigmoid"),
    ("qwen35moe", "dev", "qwen35moe.full_attention_interval=u32:5", "no layer of it has attention"),
    ("qwen35moe", "dev", "qwen35moe.attention.recurrent_layers=abool:1,1,0", "says of 4 layers"),
    ("qwen35moe", "dev", "qwen35moe.attention.recurrent_layers=abool:1,1,0,0", "tensor blk.2.attn_q.weight is missing"),
    ("qwen35moe", "dev", "qwen35moe.feed_forward_length qwen35moe.expert_feed_forward_length",
     "qwen35moe.feed_forward_length is missing"),
    ("qwen3next", "dev", "qwen3next.ssm.group_count=u32:4", "tensor blk.0.attn_qkv.weight has the shape"),
    ("qwen3next", "dev", "qwen3next.ssm.group_count=u32:3", "4 heads of 32 values for 3 heads of keys"),
)
# Forms of the same model.
NEUTRAL = (
    ("lfm2moe", "dev", "lfm2moe.expert_gating_func"),
    ("lfm2moe", "dev", "lfm2moe.expert_weights_norm=bool:1 lfm2moe.expert_weights_scale=f32:1"),
    ("qwen35moe", "dev", "qwen35moe.feed_forward_length"),
    ("qwen35moe", "dev", "qwen35moe.full_attention_interval"),
    ("qwen35moe", "dev", "qwen35moe.full_attention_interval=u32:2 "
                         "qwen35moe.attention.recurrent_layers=abool:1,1,1,0"),
    ("qwen3next", "dev", "qwen3next.expert_shared_count=u32:1"),
)
# An expert that was chosen otherwise at one position moves the positions after it: there the median counts.
BY_MEDIAN = (("gpt-oss", "dev", "f32"),)
# Whose reference rounds YaRN's range.
ROUNDED = (("gpt-oss", "dev", "bf16"),)
# Which all instruction sets compute without --full: one of each architecture, and each way of its own to turn.
BY_ALL = (("llama", "dev", "q4_0"), ("llama", "linear", "f32"), ("llama", "rope120", "q8_0"), ("llama", "part", "f32"),
          ("smollm3", "dev", "q8_0"), ("qwen2", "dev", "q4_0"), ("qwen3", "yarn", "f32"), ("qwen3moe", "k", "q6_k"),
          ("gpt-oss", "dev", "mxfp4"), ("lfm2", "dev", "q8_0"), ("lfm2moe", "dev", "q8_0"),
          ("qwen35", "dev", "q8_0"), ("qwen35moe", "dev", "q4_0"), ("qwen3next", "dev", "q8_0"))
VULKAN = (("llama", "dev", "q8_0"), ("llama", "k", "q4_k"), ("llama", "rope80", "q8_0"), ("llama", "rope100", "f32"),
          ("llama", "rope120", "q8_0"), ("llama", "part", "f32"), ("smollm3", "dev", "q8_0"), ("smollm3", "k", "q4_k"),
          ("qwen2", "dev", "q8_0"), ("qwen2", "dev", "f32"), ("qwen3", "yarn", "f32"),
          ("qwen3moe", "dev", "q8_0"), ("qwen3moe", "k", "q4_k"), ("gpt-oss", "dev", "mxfp4"))
# With states of a text: also read in steps of 50 rows and of one.
STATEFUL = (("lfm2", "dev", "f32"), ("lfm2", "odd", "f32"), ("lfm2moe", "dev", "f32"), ("qwen35", "dev", "f32"),
            ("qwen35", "odd", "f32"), ("qwen35moe", "dev", "f32"), ("qwen3next", "dev", "f32"))
EXACT = (("llama", "dev", "q8_0"), ("llama", "rope120", "q8_0"), ("smollm3", "dev", "q4_0"), ("qwen2", "dev", "q4_0"),
         ("qwen3", "k", "q4_k"), ("qwen3moe", "dev", "q4_0"), ("qwen3moe", "k", "q6_k"), ("gpt-oss", "dev", "mxfp4"),
         ("lfm2", "dev", "q8_0"), ("lfm2", "odd", "f32"), ("lfm2moe", "dev", "q4_0"), ("qwen35", "dev", "q8_0"),
         ("qwen35", "odd", "f32"), ("qwen35moe", "dev", "q8_0"), ("qwen3next", "dev", "q4_0"))
FAMILY = Family("archs", {key: limit for key, (_, limit) in MODELS.items()}, lambda key: MODELS[key][0],
                lambda key: ["--rounded"] * (key in ROUNDED), BY_MEDIAN)


def distance(program, full):
    failed = FAMILY.distance(program, {key: tables() if full or key in BY_ALL else tables()[-1:] for key in MODELS})
    return failed + FAMILY.chunks(program, STATEFUL, (50, 1))


if __name__ == "__main__":
    main({"distance": distance, "bits": lambda program, full: FAMILY.bits(program),
          "refused": lambda program, full: FAMILY.refused(program, REFUSED, NEUTRAL),
          "exact": lambda program, full: FAMILY.exact(program, EXACT, full),
          "vulkan": lambda program, full: FAMILY.vulkan(program, [(key, precision) for key in VULKAN
                                                                  for precision in ("default", "f32")])})
