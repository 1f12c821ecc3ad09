#!/usr/bin/env python3
"""Write a random-weight GGUF of an LFM2, Qwen 3.5 or Qwen3-Next shape, whose layers keep a state or keys, for parity
and speed checks.

usage: mkgguf_hybrids.py OUT --arch lfm2|lfm2moe|qwen35|qwen35moe|qwen3next --size SIZE [--type T] [--embd-type T]
                         [--seed N] [--layers N] [--vocab N] [--key "NAME[=TYPE:VALUE] …"] [--fast]
--key puts in other keys, or other values of keys, or without a value leaves one out: for files that are refused, or
must mean the same.
The small sizes (dev, k, odd, mtp) are those of the golden files in tests/golden/archs: the same seed gives the weights
for which those values were computed. The others are of released models. --type is for the matrices; norms and
convolutions are f32, as converters write them.

Weights are honest random draws: gains near 1, matrices N(0, s/sqrt(fan_in)). Decays of delta nets are spread: one head
keeps about a hundred tokens, one only a few. The vocabulary is SentencePiece bytes and
made-up pieces, whatever the model's own is: what is scored are ids. The models have no chat template: generate with
--raw. Needs numpy.
"""
import argparse
import sys
import numpy as np
sys.dont_write_bytecode = True  # nothing of a run stays in the tree
from gguf_types import TYPES  # noqa: E402
from gguf_write import kv, kv_str, letters_vocabulary  # noqa: E402
from mkgguf_archs import write_model  # noqa: E402

# LFM2: layers, d, heads, kv heads, ff, context, RoPE base, layers with attention; a convolution of three rows in the
# others
SIZES = {
    ("lfm2", "dev"): (6, 192, 6, 2, 352, 4096, 1e6, (2, 4)),
    ("lfm2", "k"): (4, 256, 4, 2, 768, 4096, 1e6, (2,)),
    ("lfm2", "odd"): (7, 160, 5, 1, 416, 4096, 1e6, (1, 3, 6)),
    ("lfm2", "long"): (6, 192, 6, 2, 352, 16384, 1e6, (2, 4)),  # for conversations
    ("lfm2", "350m"): (16, 1024, 16, 8, 4608, 32768, 1e6, (2, 5, 8, 10, 12, 14)),
    ("lfm2", "1.2b"): (16, 2048, 32, 8, 8192, 32768, 1e6, (2, 5, 8, 10, 12, 14)),
}
# The same with experts: their number, in use, neurons of one, and how many layers before them have a dense FFN.
EXPERTS = {
    "dev": ((5, 192, 6, 2, 352, 4096, 1e6, (2, 4)), (16, 4, 64, 2)),
    "k": ((4, 256, 4, 2, 512, 4096, 1e6, (2,)), (8, 2, 256, 1)),
    "long": ((5, 192, 6, 2, 352, 16384, 1e6, (2, 4)), (16, 4, 64, 2)),
    "8b-a1b": ((24, 2048, 32, 8, 7168, 32768, 1e6, (2, 6, 10, 14, 18, 21)), (32, 4, 1792, 2)),
}
SMALL = ("dev", "k", "odd", "long", "mtp")
TAPS = 3


class Qwen:
    """Delta nets but for every `every`-th layer. delta: size, key heads, value heads; rot: turned dimensions; experts:
    number, in use, neurons of one, of the shared one."""
    def __init__(self, layers, d, heads, kv_heads, head_dim, ff, base, tied, delta, rot, every=4, n_ctx=4096, drafts=0,
                 experts=None):
        self.layers, self.d, self.heads, self.kv_heads = layers, d, heads, kv_heads
        self.head_dim, self.ff, self.base, self.tied = head_dim, ff, base, tied
        self.delta, self.rot, self.every = delta, rot, every
        self.n_ctx, self.drafts, self.experts = n_ctx, drafts, experts


QWEN_TAPS = 4
DENSE = {
    "dev": Qwen(8, 192, 3, 1, 64, 352, 1e7, True, (32, 2, 6), 16),
    "k": Qwen(4, 256, 4, 2, 128, 512, 1e7, False, (64, 2, 4), 32),
    "odd": Qwen(5, 160, 5, 1, 48, 416, 1e6, True, (48, 1, 3), 12, every=3),
    "mtp": Qwen(4, 192, 3, 1, 64, 352, 1e7, True, (32, 2, 4), 16, drafts=1),
    "long": Qwen(8, 192, 3, 1, 64, 352, 1e7, True, (32, 2, 6), 16, n_ctx=16384),
    "0.8b": Qwen(24, 1024, 8, 2, 256, 3584, 1e7, True, (128, 16, 16), 64, n_ctx=32768),
    "4b": Qwen(32, 2560, 16, 4, 256, 9216, 1e7, True, (128, 16, 32), 64, n_ctx=32768),
}
MIXTURES = {
    "dev": Qwen(4, 192, 4, 2, 64, 352, 1e7, False, (32, 2, 4), 16, experts=(24, 4, 64, 96)),
    "k": Qwen(4, 256, 2, 1, 128, 512, 1e7, False, (64, 2, 4), 32, experts=(8, 2, 256, 256)),
    "mtp": Qwen(4, 192, 4, 2, 64, 352, 1e7, False, (32, 2, 6), 16, drafts=1, experts=(16, 4, 64, 64)),
    "long": Qwen(4, 192, 4, 2, 64, 352, 1e7, False, (32, 2, 4), 16, n_ctx=16384, experts=(24, 4, 64, 96)),
    "35b": Qwen(40, 2048, 16, 2, 256, 512, 1e7, False, (128, 16, 32), 64, n_ctx=32768, experts=(256, 8, 512, 512)),
}
NEXT = {
    "dev": Qwen(4, 192, 4, 2, 64, 352, 1e7, False, (32, 2, 4), 16, experts=(16, 3, 64, 96)),
    "k": MIXTURES["k"],
    "80b": Qwen(48, 2048, 16, 2, 256, 5120, 1e7, False, (128, 16, 32), 64, n_ctx=32768, experts=(512, 10, 512, 512)),
}
QWEN_SIZES = {"qwen35": DENSE, "qwen35moe": MIXTURES, "qwen3next": NEXT}


def qwen_metadata(arch, s, name, n_layers, n_vocab):
    def key(what, kind, value):
        return kv(f"{arch}.{what}", kind, value)

    size, k_heads, v_heads = s.delta
    sections = [s.rot // 2 - 2 * (s.rot // 6), s.rot // 6, s.rot // 6, 0]
    more = [] if arch == "qwen3next" else [key("rope.dimension_sections", "ai32", sections)]
    if s.experts:
        for what, value in zip(("count", "used_count", "feed_forward_length", "shared_feed_forward_length"), s.experts):
            more.append(key("expert_" + what, "u32", value))
    return more + [kv("general.architecture", "str", arch), kv("general.name", "str", name),
            key("block_count", "u32", n_layers + s.drafts), key("context_length", "u32", s.n_ctx),
            key("embedding_length", "u32", s.d), key("feed_forward_length", "u32", s.ff),
            key("attention.head_count", "u32", s.heads), key("attention.head_count_kv", "u32", s.kv_heads),
            key("attention.key_length", "u32", s.head_dim), key("attention.value_length", "u32", s.head_dim),
            key("rope.freq_base", "f32", s.base), key("rope.dimension_count", "u32", s.rot),
            key("attention.layer_norm_rms_epsilon", "f32", 1e-6),
            key("ssm.conv_kernel", "u32", QWEN_TAPS), key("ssm.state_size", "u32", size),
            key("ssm.group_count", "u32", k_heads), key("ssm.time_step_rank", "u32", v_heads),
            key("ssm.inner_size", "u32", size * v_heads), key("full_attention_interval", "u32", s.every)] + \
        ([key("nextn_predict_layers", "u32", s.drafts)] if s.drafts else []) + letters_vocabulary(n_vocab)


def qwen_mixer(arch, s, rng, b, in_attention, kind):
    d, size, k_heads, v_heads = s.d, *s.delta
    width, v_width, q_width = (2 * k_heads + v_heads) * size, v_heads * size, s.heads * s.head_dim
    if not in_attention:
        dt = rng.uniform(-2.5, 1.0, v_heads)
        decay = -np.exp(np.linspace(-3.2, 0.7, v_heads) + rng.uniform(-0.3, 0.3, v_heads))
        numbers = [(b + "ssm_beta.weight", (v_heads, d), kind, 1.8 * d ** -0.5),
                   (b + "ssm_alpha.weight", (v_heads, d), kind, 1.2 * d ** -0.5)]
        if arch == "qwen3next":  # of each head of keys the betas of its heads, then the alphas
            numbers = [(b + "ssm_ba.weight", (2 * v_heads, d), kind, 1.5 * d ** -0.5)]
        return [(b + "attn_qkv.weight", (width, d), kind, d ** -0.5),
                (b + "attn_gate.weight", (v_width, d), kind, 1.3 * d ** -0.5),
                (b + "ssm_conv1d.weight", (width, QWEN_TAPS), "f32", ("bias", 0.7)),
                (b + "ssm_dt.bias", (v_heads,), "f32", ("value", dt)),
                (b + "ssm_a", (v_heads,), "f32", ("value", decay)), *numbers,
                (b + "ssm_norm.weight", (size,), "f32", ("gain", 1.0)),
                (b + "ssm_out.weight", (d, v_width), kind, 1.6 * v_width ** -0.5)]
    return [(b + "attn_q.weight", (2 * q_width, d), kind, 1.3 * d ** -0.5),  # of each head its query, then its gate
            (b + "attn_k.weight", (s.kv_heads * s.head_dim, d), kind, d ** -0.5),
            (b + "attn_v.weight", (s.kv_heads * s.head_dim, d), kind, d ** -0.5),
            (b + "attn_q_norm.weight", (s.head_dim,), "f32", ("gain", 1.5)),
            (b + "attn_k_norm.weight", (s.head_dim,), "f32", ("gain", 1.5)),
            (b + "attn_output.weight", (d, q_width), kind, 1.6 * q_width ** -0.5)]


def qwen_ffn(s, b, kind):
    d = s.d
    if not s.experts:
        return [(b + "ffn_gate.weight", (s.ff, d), kind, 1.5 * d ** -0.5),
                (b + "ffn_up.weight", (s.ff, d), kind, d ** -0.5),
                (b + "ffn_down.weight", (d, s.ff), kind, s.ff ** -0.5)]
    n, _, ff, shared = s.experts
    return [(b + "ffn_gate_inp.weight", (n, d), "f32", 3 * d ** -0.5),
            (b + "ffn_gate_exps.weight", (n, ff, d), kind, 1.5 * d ** -0.5),
            (b + "ffn_up_exps.weight", (n, ff, d), kind, d ** -0.5),
            (b + "ffn_down_exps.weight", (n, d, ff), kind, ff ** -0.5),
            (b + "ffn_gate_inp_shexp.weight", (d,), "f32", ("bias", 1.5 * d ** -0.5)),
            (b + "ffn_gate_shexp.weight", (shared, d), kind, 1.5 * d ** -0.5),
            (b + "ffn_up_shexp.weight", (shared, d), kind, d ** -0.5),
            (b + "ffn_down_shexp.weight", (d, shared), kind, shared ** -0.5)]


def qwen_tensors(arch, s, rng, n_layers, n_vocab, kind, embd_type):
    d, gain = s.d, ("gain", 1.0)
    # With experts a large residual: one that was chosen otherwise does not change everything.
    embedding = 0.7 if s.experts else d ** -0.5
    out = [("token_embd.weight", (n_vocab, d), embd_type, embedding), ("output_norm.weight", (d,), "f32", gain)]
    out += [] if s.tied else [("output.weight", (n_vocab, d), embd_type, 1.5 * d ** -0.5)]
    for i in range(n_layers + s.drafts):
        b = f"blk.{i}."
        in_attention = i >= n_layers or (i + 1) % s.every == 0
        out += [(b + "attn_norm.weight", (d,), "f32", gain)] + qwen_mixer(arch, s, rng, b, in_attention, kind)
        out += [(b + "post_attention_norm.weight", (d,), "f32", gain)] + qwen_ffn(s, b, kind)
        if i >= n_layers:
            out += [(b + "nextn.eh_proj.weight", (d, 2 * d), kind, (2 * d) ** -0.5)]
            out += [(b + f"nextn.{norm}.weight", (d,), "f32", gain) for norm in ("enorm", "hnorm", "shared_head_norm")]
    return out


def metadata(arch, size, experts, name, n_layers, n_vocab):
    _, d, heads, kv_heads, ff, n_ctx, base, attention = size

    def key(what, kind, value):
        return kv(f"{arch}.{what}", kind, value)

    names = ("expert_count", "expert_used_count", "expert_feed_forward_length", "leading_dense_block_count")
    more = [key(what, "u32", value) for what, value in zip(names, experts)]
    more += [key("expert_gating_func", "u32", 2)] if experts else []  # a sigmoid
    return more + [kv("general.architecture", "str", arch), kv("general.name", "str", name),
            key("block_count", "u32", n_layers), key("embedding_length", "u32", d), key("context_length", "u32", n_ctx),
            key("feed_forward_length", "u32", ff), key("attention.head_count", "u32", heads),
            key("attention.head_count_kv", "ai32", [kv_heads if i in attention else 0 for i in range(n_layers)]),
            key("rope.freq_base", "f32", base), key("attention.layer_norm_rms_epsilon", "f32", 1e-5),
            key("shortconv.l_cache", "u32", TAPS), key("vocab_size", "u32", n_vocab)] + letters_vocabulary(n_vocab)


def mixer(size, b, in_attention, kind):
    _, d, heads, kv_heads, *_ = size
    head_dim = d // heads
    if not in_attention:
        return [(b + "shortconv.conv.weight", (d, TAPS), "f32", ("bias", 0.8)),
                (b + "shortconv.in_proj.weight", (3 * d, d), kind, d ** -0.5),
                (b + "shortconv.out_proj.weight", (d, d), kind, 1.3 * d ** -0.5)]
    return [(b + "attn_q.weight", (heads * head_dim, d), kind, 1.3 * d ** -0.5),
            (b + "attn_k.weight", (kv_heads * head_dim, d), kind, d ** -0.5),
            (b + "attn_v.weight", (kv_heads * head_dim, d), kind, d ** -0.5),
            (b + "attn_q_norm.weight", (head_dim,), "f32", ("gain", 1.5)),
            (b + "attn_k_norm.weight", (head_dim,), "f32", ("gain", 1.5)),
            (b + "attn_output.weight", (d, heads * head_dim), kind, 1.6 * (heads * head_dim) ** -0.5)]


def ffn(d, ff, experts, b, kind):
    if not experts:
        return [(b + "ffn_gate.weight", (ff, d), kind, 1.5 * d ** -0.5),
                (b + "ffn_up.weight", (ff, d), kind, d ** -0.5),
                (b + "ffn_down.weight", (d, ff), kind, ff ** -0.5)]
    n, _, ff, _ = experts
    return [(b + "ffn_gate_inp.weight", (n, d), "f32", 3 * d ** -0.5),
            (b + "ffn_gate_exps.weight", (n, ff, d), kind, 1.5 * d ** -0.5),
            (b + "ffn_up_exps.weight", (n, ff, d), kind, d ** -0.5),
            (b + "ffn_down_exps.weight", (n, d, ff), kind, ff ** -0.5),
            (b + "exp_probs_b.bias", (n,), "f32", ("bias", 0.15))]


def tensors(size, experts, n_layers, n_vocab, kind, embd_type):
    """Name, shape, type and what is drawn: a standard deviation, or "gain", "bias" or "value" with a number."""
    _, d, _, _, ff, _, _, attention = size
    gain = ("gain", 1.0)
    embedding = 2 * d ** -0.5 if experts else d ** -0.5  # as in qwen_tensors()
    out = [("token_embd.weight", (n_vocab, d), embd_type, embedding), ("token_embd_norm.weight", (d,), "f32", gain)]
    for i in range(n_layers):
        b = f"blk.{i}."
        out += [(b + "attn_norm.weight", (d,), "f32", gain)] + mixer(size, b, i in attention, kind)
        out += [(b + "ffn_norm.weight", (d,), "f32", gain)]
        out += ffn(d, ff, experts if experts and i >= experts[3] else (), b, kind)
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--arch", required=True, choices=("lfm2", "lfm2moe", *QWEN_SIZES))
    ap.add_argument("--size", default="dev")
    ap.add_argument("--type", default="f32", choices=TYPES)
    ap.add_argument("--embd-type", choices=TYPES)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--layers", type=int)
    ap.add_argument("--vocab", type=int)
    ap.add_argument("--key", help="NAME, or NAME=TYPE:VALUE, as qwen35moe.expert_shared_count=u32:2; or several")
    ap.add_argument("--fast", action="store_true", help="reuse random blocks: for large files whose speed is measured")
    a = ap.parse_args()
    sizes = QWEN_SIZES.get(a.arch) or ({k: v[0] for k, v in EXPERTS.items()} if a.arch == "lfm2moe" else
                                       {k[1]: v for k, v in SIZES.items()})
    if a.size not in sizes:
        ap.error(f"{a.arch} has the sizes " + ", ".join(sizes))
    size = sizes[a.size]
    is_lfm2 = a.arch not in QWEN_SIZES
    experts = EXPERTS[a.size][1] if a.arch == "lfm2moe" else ()
    n_layers = a.layers or (size[0] if is_lfm2 else size.layers)
    n_vocab = a.vocab or (2304 if a.size in SMALL else 65536)
    embd_type = a.embd_type or ("q8_0" if a.type in ("q4_0", "q8_0") else "q6_k" if a.type.endswith("_k") else a.type)
    rng, name = np.random.default_rng(a.seed), f"random-{a.arch}-{a.size}-{a.type}"
    if not is_lfm2:
        made = qwen_tensors(a.arch, size, rng, n_layers, n_vocab, a.type, embd_type)
        keys = qwen_metadata(a.arch, size, name, n_layers, n_vocab)
    else:
        made = tensors(size, experts, n_layers, n_vocab, a.type, embd_type)
        keys = metadata(a.arch, size, experts, name, n_layers, n_vocab)
    for key, _, value in (changed.partition("=") for changed in (a.key or "").split()):
        keys = [k for k in keys if not k.startswith(kv_str(key))]
        if value:
            kind, _, value = value.partition(":")
            values = [float(v) if kind.endswith("f32") else int(v) for v in value.split(",")]
            keys.append(kv(key, kind, values if kind.startswith("a") else values[0]))
    write_model(a.out, keys, made, rng, a.fast)
    print(a.out, "layers", n_layers, "vocab", n_vocab)


if __name__ == "__main__":
    main()
