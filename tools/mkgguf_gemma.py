#!/usr/bin/env python3
"""Write a random-weight GGUF of a Gemma 3n or Gemma 4 shape, for parity and speed checks.

usage: mkgguf_gemma.py OUT --arch gemma3n|gemma4 --size SIZE [--type T] [--mid-type T] [--embd-type T] [--seed N]
                       [--layers N] [--vocab N] [--fast]
The small sizes (a, b, gen, k; e, x, m, k) are those of the golden files in tests/golden/archs: the same seed gives the
weights for which those values were computed. The others are of released models. --mid-type is for the matrices between
the streams, which llama-quantize leaves as they were; --embd-type for both embeddings. Norms are f32.

Weights are honest random draws: gains near 1, matrices N(0, s/sqrt(fan_in)). The vocabulary is SentencePiece bytes and
made-up pieces, whatever the model's own is: what is scored are ids. The models know no chat template: generate with
--raw. Needs numpy.
"""
import argparse
import struct
import sys
import numpy as np
sys.dont_write_bytecode = True  # nothing of a run stays in the tree
from gguf_types import TYPES  # noqa: E402
import mkgguf  # noqa: E402
from gguf_write import kv, kv_str, letters_vocabulary, write_file, write_matrix  # noqa: E402

# layers, d, heads, kv heads, head size, ff, window, shared, sparse, period, streams, rank, input width, context
GEMMA3N = {
    "a": (25, 128, 4, 2, 32, 512, 24, 5, 10, 5, 4, 64, 256, 32768),
    "b": (14, 192, 6, 2, 64, 640, 16, 0, 10, 5, 4, 64, 256, 32768),
    "gen": (12, 128, 4, 1, 32, 384, 20, 4, 5, 4, 4, 32, 64, 32768),
    "k": (25, 256, 4, 2, 64, 1024, 24, 5, 10, 5, 4, 64, 256, 32768),
    "e2b": (30, 2048, 8, 2, 256, 8192, 512, 10, 10, 5, 4, 64, 256, 32768),
    "e4b": (35, 2048, 8, 2, 256, 16384, 512, 15, 10, 5, 4, 64, 256, 32768),
}
# layers, d, heads, kv heads sliding, full, head size sliding, full, ff, wider where keys are shared, window, shared,
# period, input width, values are keys in full layers, sharing layers have keys that nobody reads, experts beside the
# dense FFN: how many, used, their width
GEMMA4 = {
    "e": (15, 128, 4, 1, 1, 32, 64, 256, True, 20, 5, 5, 64, False, True, None),
    "x": (12, 160, 8, 4, 2, 32, 64, 640, False, 33, 0, 6, 0, True, False, None),
    "m": (12, 192, 8, 4, 2, 32, 64, 160, False, 24, 0, 6, 0, True, False, (16, 4, 96)),
    "k": (10, 256, 4, 2, 1, 64, 128, 512, False, 32, 0, 5, 0, True, False, (8, 2, 256)),
    "e2b": (35, 1536, 8, 1, 1, 256, 512, 6144, True, 512, 20, 5, 256, False, True, None),
    "e4b": (42, 2560, 8, 2, 2, 256, 512, 10240, False, 512, 18, 6, 256, False, True, None),
    "31b": (60, 5376, 32, 16, 4, 256, 512, 21504, False, 1024, 0, 6, 0, True, False, None),
    "26b": (30, 2816, 16, 8, 2, 256, 512, 2112, False, 1024, 0, 6, 0, True, False, (128, 8, 704)),
}
SMALL = ("a", "b", "gen", "k", "e", "x", "m")
GAIN, ADDED = ("gain", 1.0, 0.2), ("gain", 0.35, 0.07)
SPARSITY = 1.6448533535003662  # 95 % of a normal distribution are below


def encode(rng, shape, name, std):
    """As mkgguf.py, but for a type whose quants are -7 to 7 here, so that their mean is zero."""
    if name != "q4_0":
        return mkgguf.encode(rng, shape, name, std)
    n = int(np.prod(shape)) // 32
    out = rng.integers(0, 256, size=(n, 18), dtype=np.uint8)
    scale = 0.75 + 0.5 * rng.random(n, dtype=np.float32)
    quants = rng.integers(1, 16, size=(n, 32), dtype=np.uint8)
    out[:, 2:] = quants[:, :16] | quants[:, 16:] << 4
    out[:, :2] = (scale * np.float32(float(std) / 4.32)).astype("<f2").view(np.uint8).reshape(n, 2)
    return out.tobytes()


def kv_bools(key, values):
    return kv_str(key) + struct.pack("<IIQ", 9, 7, len(values)) + bytes(values)


def gemma3n(size, a, n_layers, n_vocab, mid):
    """Keys; then each tensor's name, shape, type and what is drawn: a deviation, or a gain's mean and spread."""
    _, d, heads, kv_heads, head_dim, ff, window, shared, sparse, period, streams, rank, width, n_ctx = size
    ffs = [ff + 64 * (i % 3) if a.size == "gen" else ff for i in range(n_layers)]

    def key(what, kind, value):
        return kv(f"gemma3n.{what}", kind, value)

    keys = [key("context_length", "u32", n_ctx), key("embedding_length", "u32", d), key("block_count", "u32", n_layers),
            key("feed_forward_length", "u32", ff) if a.size == "b" else key("feed_forward_length", "ai32", ffs),
            key("attention.head_count", "u32", heads), key("attention.head_count_kv", "u32", kv_heads),
            key("attention.key_length", "u32", head_dim), key("attention.value_length", "u32", head_dim),
            key("attention.layer_norm_rms_epsilon", "f32", 1e-6), key("attention.sliding_window", "u32", window),
            key("attention.shared_kv_layers", "u32", shared),
            kv_bools("gemma3n.attention.sliding_window_pattern", [(i + 1) % period != 0 for i in range(n_layers)]),
            key("rope.freq_base", "f32", 1e6), key("altup.active_idx", "u32", 0),
            key("altup.num_inputs", "u32", streams),
            key("embedding_length_per_layer_input", "u32", width),
            key("activation_sparsity_scale", "af32", [SPARSITY if i < sparse else -np.inf for i in range(n_layers)]),
            key("final_logit_softcapping", "f32", 30.0)]
    t, s, q_width, kv_width = a.type, d ** -0.5, heads * head_dim, kv_heads * head_dim
    inputs = t if n_layers * width % TYPES[t][1] == 0 else "q8_0"
    out = [("token_embd.weight", (n_vocab, d), a.embd_type or t, s),
           ("per_layer_token_embd.weight", (n_vocab, n_layers * width), a.embd_type or inputs, width ** -0.5),
           ("per_layer_model_proj.weight", (n_layers * width, d), mid, 1.0),
           ("per_layer_proj_norm.weight", (width,), "f32", GAIN),
           ("altup_proj.weight", (streams - 1, d, d), mid, s),
           ("altup_unembd_proj.weight", (streams - 1, d, d), mid, s),
           ("output_norm.weight", (d,), "f32", ("gain", 3.5, 0.5))]
    for i in range(n_layers):
        layer = [("attn_norm", (d,), "f32", GAIN), ("attn_q", (q_width, d), t, s), ("attn_k", (kv_width, d), t, s),
                 ("attn_v", (kv_width, d), t, s), ("attn_output", (d, q_width), t, q_width ** -0.5),
                 ("attn_q_norm", (head_dim,), "f32", ("gain", 0.25, 0.04)), ("attn_k_norm", (head_dim,), "f32", GAIN),
                 ("post_attention_norm", (d,), "f32", ADDED), ("ffn_norm", (d,), "f32", GAIN),
                 ("ffn_gate", (ffs[i], d), t, s), ("ffn_up", (ffs[i], d), t, s),
                 ("ffn_down", (d, ffs[i]), t, ffs[i] ** -0.5), ("post_ffw_norm", (d,), "f32", ADDED),
                 ("inp_gate", (width, d), t, s), ("proj", (d, width), t, width ** -0.5),
                 ("post_norm", (d,), "f32", ("gain", 0.3, 0.06)),
                 ("altup_correct_coef", (streams, streams), "f32", 0.15),
                 ("altup_correct_scale", (d,), "f32", GAIN),
                 ("altup_predict_coef", (streams * streams, streams), "f32", 0.06),
                 ("altup_router", (streams, d), mid, 0.5 * d ** 0.5), ("altup_router_norm", (d,), "f32", GAIN),
                 ("laurel_l", (rank, d), mid, s), ("laurel_r", (d, rank), mid, rank ** -0.5),
                 ("laurel_post_norm", (d,), "f32", ("gain", 0.3, 0.06))]
        out += [(f"blk.{i}.{name}.weight", *what) for name, *what in layer]
    return keys, out


def gemma4(size, a, n_layers, n_vocab, mid):
    (_, d, heads, kv_window, kv_full, head_window, head_full, ff, wide, window, shared, period, width, values_are_keys,
     unread, experts) = size
    slides = [(i + 1) % period != 0 and i != n_layers - 1 for i in range(n_layers)]
    own, turned = n_layers - shared, int(head_full * 0.25 / 2)
    ffs = [2 * ff if wide and i >= own else ff for i in range(n_layers)]

    def key(what, kind, value):
        return kv(f"gemma4.{what}", kind, value)

    def fit(cols):
        return a.type if cols % TYPES[a.type][1] == 0 else "q8_0"

    keys = [key("context_length", "u32", 131072), key("embedding_length", "u32", d),
            key("block_count", "u32", n_layers),
            key("feed_forward_length", "ai32", ffs) if wide else key("feed_forward_length", "u32", ff),
            key("attention.head_count", "u32", heads),
            key("attention.head_count_kv", "u32", kv_window) if kv_window == kv_full else
            key("attention.head_count_kv", "ai32", [kv_window if s else kv_full for s in slides]),
            key("attention.key_length", "u32", head_full), key("attention.value_length", "u32", head_full),
            key("attention.key_length_swa", "u32", head_window), key("attention.value_length_swa", "u32", head_window),
            key("attention.layer_norm_rms_epsilon", "f32", 1e-6), key("attention.sliding_window", "u32", window),
            key("attention.shared_kv_layers", "u32", shared),
            kv_bools("gemma4.attention.sliding_window_pattern", slides), key("rope.freq_base", "f32", 1e6),
            key("rope.freq_base_swa", "f32", 1e4), key("rope.dimension_count", "u32", head_full),
            key("rope.dimension_count_swa", "u32", head_window), key("embedding_length_per_layer_input", "u32", width),
            key("final_logit_softcapping", "f32", 30.0)]
    if experts:
        keys += [key("expert_count", "u32", experts[0]), key("expert_used_count", "u32", experts[1]),
                 key("expert_feed_forward_length", "u32", experts[2])]
    s = d ** -0.5
    out = [("token_embd.weight", (n_vocab, d), a.embd_type or fit(d), s),
           ("output_norm.weight", (d,), "f32", ("gain", 2.5 * (128 / d) ** 0.5, 0.3)),
           ("rope_freqs.weight", (head_full // 2,), "f32",
            np.array([1.0] * turned + [1e30] * (head_full // 2 - turned)))]
    if width:
        out += [("per_layer_token_embd.weight", (n_vocab, n_layers * width), a.embd_type or fit(n_layers * width),
                 width ** -0.5), ("per_layer_model_proj.weight", (n_layers * width, d), mid, 1.0),
                ("per_layer_proj_norm.weight", (width,), "f32", GAIN)]
    for i in range(n_layers):
        head, kv_heads = (head_window, kv_window) if slides[i] else (head_full, kv_full)
        layer = [("attn_norm", (d,), "f32", GAIN), ("attn_q", (heads * head, d), fit(d), s),
                 ("attn_q_norm", (head,), "f32", ("gain", 0.25, 0.04))]
        if i < own or unread:
            layer += [("attn_k", (kv_heads * head, d), fit(d), s), ("attn_k_norm", (head,), "f32", GAIN)]
            if slides[i] or not values_are_keys:
                layer += [("attn_v", (kv_heads * head, d), fit(d), s)]
        layer += [("attn_output", (d, heads * head), fit(heads * head), (heads * head) ** -0.5),
                  ("post_attention_norm", (d,), "f32", ADDED), ("ffn_norm", (d,), "f32", GAIN),
                  ("ffn_gate", (ffs[i], d), fit(d), s), ("ffn_up", (ffs[i], d), fit(d), s),
                  ("ffn_down", (d, ffs[i]), fit(ffs[i]), ffs[i] ** -0.5), ("post_ffw_norm", (d,), "f32", ADDED),
                  ("layer_output_scale", (1,), "f32", ("gain", 0.6 if i == 0 else 1.0, 0.07))]
        if experts:
            n, _, ffe = experts
            layer += [("ffn_gate_inp", (n, d), "f32", 3.0), ("ffn_gate_inp.scale", (d,), "f32", ("gain", 1.0, 0.3)),
                      ("pre_ffw_norm_2", (d,), "f32", GAIN), ("post_ffw_norm_1", (d,), "f32", GAIN),
                      ("post_ffw_norm_2", (d,), "f32", ("gain", 0.6, 0.12)),
                      ("ffn_down_exps.scale", (n,), "f32", ("gain", 1.0, 0.3)),
                      ("ffn_gate_up_exps", (n, 2 * ffe, d), fit(d), s),
                      ("ffn_down_exps", (n, d, ffe), fit(ffe), ffe ** -0.5)]
        if width:
            layer += [("inp_gate", (width, d), fit(d), s), ("proj", (d, width), fit(width), width ** -0.5),
                      ("post_norm", (d,), "f32", ("gain", 0.25, 0.05))]
        out += [(f"blk.{i}.{name}" + ("" if name.endswith(".scale") else ".weight"), *what)
                for name, *what in layer]
    return keys, out


def write(path, keys, tensors, rng, pool):
    def write_tensor(f, name, shape, kind, drawn):
        if isinstance(drawn, tuple):
            values = drawn[1] + drawn[2] * rng.standard_normal(shape, dtype=np.float32)
            f.write(values.astype("<f4").tobytes())
        elif isinstance(drawn, np.ndarray):
            f.write(drawn.astype("<f4").tobytes())
        else:
            write_matrix(f, rng, pool, shape, kind, drawn, encode)

    write_file(path, keys, tensors, write_tensor)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--arch", required=True, choices=("gemma3n", "gemma4"))
    ap.add_argument("--size", required=True)
    ap.add_argument("--type", default="f32", choices=TYPES)
    ap.add_argument("--mid-type", choices=TYPES)
    ap.add_argument("--embd-type", choices=TYPES)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--layers", type=int)
    ap.add_argument("--vocab", type=int)
    ap.add_argument("--fast", action="store_true", help="reuse random blocks: for large files whose speed is measured")
    a = ap.parse_args()
    sizes, make = (GEMMA3N, gemma3n) if a.arch == "gemma3n" else (GEMMA4, gemma4)
    if a.size not in sizes:
        ap.error(f"{a.arch} has the sizes " + ", ".join(sizes))
    n_layers, n_vocab = a.layers or sizes[a.size][0], a.vocab or (2048 if a.size in SMALL else 262144)
    mid = a.mid_type or (a.type if a.type in ("f32", "f16", "q8_0") else "bf16")
    name = f"random-{a.arch}-{a.size}-{a.type}"
    keys, tensors = make(sizes[a.size], a, n_layers, n_vocab, mid)
    keys = [kv("general.architecture", "str", a.arch), kv("general.name", "str", name)] + keys
    keys += letters_vocabulary(n_vocab)
    write(a.out, keys, tensors, np.random.default_rng(a.seed), {} if a.fast else None)
    print(a.out, "layers", n_layers, "d", sizes[a.size][1], "vocab", n_vocab)


if __name__ == "__main__":
    main()
