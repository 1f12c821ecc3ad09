#!/usr/bin/env python3
"""Write a random-weight GGUF of an LFM2 shape, whose layers keep a state or keys, for parity and speed checks.

usage: mkgguf_hybrids.py OUT --arch lfm2 --size SIZE [--type T] [--embd-type T] [--seed N] [--layers N] [--vocab N]
                         [--fast]
The small sizes (dev, k, odd) are those of the golden files in tests/golden/archs: the same seed gives the weights for
which those values were computed. The others are of released models. --type is for the matrices; norms and convolutions
are f32, as converters write them.

Weights are honest random draws: gains near 1, matrices N(0, s/sqrt(fan_in)). The vocabulary is SentencePiece bytes and
made-up pieces, whatever the model's own is: what is scored are ids. The models have no chat template: generate with
--raw. Needs numpy.
"""
import argparse
import sys
import numpy as np
sys.dont_write_bytecode = True  # nothing of a run stays in the tree
from gguf_types import TYPES  # noqa: E402
from gguf_write import kv, letters_vocabulary  # noqa: E402
from mkgguf_archs import write_model  # noqa: E402

# layers, d, heads, kv heads, ff, context, RoPE base, layers with attention; a convolution of three rows in the others
SIZES = {
    ("lfm2", "dev"): (6, 192, 6, 2, 352, 4096, 1e6, (2, 4)),
    ("lfm2", "k"): (4, 256, 4, 2, 768, 4096, 1e6, (2,)),
    ("lfm2", "odd"): (7, 160, 5, 1, 416, 4096, 1e6, (1, 3, 6)),
    ("lfm2", "long"): (6, 192, 6, 2, 352, 16384, 1e6, (2, 4)),  # for conversations
    ("lfm2", "350m"): (16, 1024, 16, 8, 4608, 32768, 1e6, (2, 5, 8, 10, 12, 14)),
    ("lfm2", "1.2b"): (16, 2048, 32, 8, 8192, 32768, 1e6, (2, 5, 8, 10, 12, 14)),
}
SMALL = ("dev", "k", "odd", "long")
TAPS = 3


def metadata(arch, size, name, n_layers, n_vocab):
    _, d, heads, kv_heads, ff, n_ctx, base, attention = size

    def key(what, kind, value):
        return kv(f"{arch}.{what}", kind, value)

    return [kv("general.architecture", "str", arch), kv("general.name", "str", name),
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


def tensors(size, n_layers, n_vocab, kind, embd_type):
    """Name, shape, type and what is drawn: a standard deviation, or "gain", "bias" or "value" with a number."""
    _, d, _, _, ff, _, _, attention = size
    gain = ("gain", 1.0)
    out = [("token_embd.weight", (n_vocab, d), embd_type, d ** -0.5), ("token_embd_norm.weight", (d,), "f32", gain)]
    for i in range(n_layers):
        b = f"blk.{i}."
        out += [(b + "attn_norm.weight", (d,), "f32", gain)] + mixer(size, b, i in attention, kind)
        out += [(b + "ffn_norm.weight", (d,), "f32", gain), (b + "ffn_gate.weight", (ff, d), kind, 1.5 * d ** -0.5),
                (b + "ffn_up.weight", (ff, d), kind, d ** -0.5), (b + "ffn_down.weight", (d, ff), kind, ff ** -0.5)]
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--arch", required=True, choices=sorted({k[0] for k in SIZES}))
    ap.add_argument("--size", default="dev")
    ap.add_argument("--type", default="f32", choices=TYPES)
    ap.add_argument("--embd-type", choices=TYPES)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--layers", type=int)
    ap.add_argument("--vocab", type=int)
    ap.add_argument("--fast", action="store_true", help="reuse random blocks: for large files whose speed is measured")
    a = ap.parse_args()
    if (a.arch, a.size) not in SIZES:
        ap.error(f"{a.arch} has the sizes " + ", ".join(k[1] for k in SIZES if k[0] == a.arch))
    size = SIZES[a.arch, a.size]
    n_layers, n_vocab = a.layers or size[0], a.vocab or (2304 if a.size in SMALL else 65536)
    embd_type = a.embd_type or ("q8_0" if a.type in ("q4_0", "q8_0") else "q6_k" if a.type.endswith("_k") else a.type)
    write_model(a.out, metadata(a.arch, size, f"random-{a.arch}-{a.size}-{a.type}", n_layers, n_vocab),
                tensors(size, n_layers, n_vocab, a.type, embd_type), np.random.default_rng(a.seed), a.fast)
    print(a.out, "layers", n_layers, "d", size[1], "vocab", n_vocab)


if __name__ == "__main__":
    main()
