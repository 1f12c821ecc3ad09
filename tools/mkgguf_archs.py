#!/usr/bin/env python3
"""Write a random-weight GGUF of a Llama, SmolLM, Qwen or gpt-oss shape, for parity and speed checks.

usage: mkgguf_archs.py OUT --arch llama|qwen2|qwen3|qwen3moe|gpt-oss|smollm3 --size SIZE [--type T] [--more-type T]
                       [--embd-type T] [--seed N] [--layers N] [--vocab N] [--fast]
The small sizes (dev, k, yarn, linear, real, rope80, rope100, rope120, part) are those of the golden files in
tests/golden/archs: the same seed gives the weights for which those values were computed. The others are of released
models. --type is for the matrices (mxfp4: for the experts only, the others are q8_0); norms, biases, sinks and routers
are f32, as converters write them.

Weights are honest random draws: gains near 1, matrices N(0, s/sqrt(fan_in)), queries and keys sharpened so that
positions and masks matter. The vocabulary is SentencePiece bytes and made-up pieces, whatever the model's own is: what
is scored are ids. Without --chat the models have no chat template: generate with --raw. Needs numpy.
"""
import argparse
import os
import sys
import numpy as np
sys.dont_write_bytecode = True  # nothing of a run stays in the tree
from gguf_types import TYPES  # noqa: E402
import mkgguf  # noqa: E402
from gguf_write import fitting_type, kv, letters_vocabulary, write_file, write_matrix  # noqa: E402

LLAMA3 = {"low": 1.0, "high": 4.0}
# layers, d, heads, kv heads, head size, ff, context, RoPE base, tied; then what only some have
SIZES = {
    ("llama", "dev"): (4, 256, 8, 2, 64, 704, 4096, 5e5, True, {"llama3": (8.0, 64)}),
    ("llama", "k"): (2, 512, 8, 4, 64, 1280, 2048, 5e5, False, {"llama3": (8.0, 64)}),
    ("llama", "linear"): (2, 192, 3, 3, 64, 352, 4096, 1e4, False, {"linear": 4.0}),
    # Heads of 80 and 120 numbers, as in released models, of 100, and 80 of 128 numbers that are turned.
    ("llama", "rope80"): (2, 320, 4, 2, 80, 352, 2048, 1e4, False, {}),
    ("llama", "rope100"): (2, 320, 8, 4, 100, 352, 2048, 1e4, False, {}),
    ("llama", "rope120"): (2, 320, 4, 1, 120, 352, 2048, 1e4, True, {}),
    ("llama", "part"): (2, 256, 4, 2, 128, 352, 2048, 1e4, True, {"turned": 80}),
    ("qwen2", "dev"): (4, 256, 4, 2, 64, 704, 4096, 1e6, True, {}),
    ("qwen2", "k"): (2, 512, 8, 2, 64, 1280, 2048, 1e6, False, {}),
    ("qwen3", "dev"): (4, 256, 8, 2, 64, 704, 4096, 1e6, True, {}),
    ("qwen3", "k"): (2, 512, 8, 2, 64, 1280, 2048, 1e6, False, {}),
    ("qwen3", "yarn"): (2, 192, 3, 3, 64, 352, 4096, 1e6, False, {"yarn": (4.0, 128)}),
    ("qwen3moe", "dev"): (3, 192, 8, 2, 64, 384, 4096, 1e6, False, {"experts": (128, 8, 64)}),
    ("qwen3moe", "k"): (2, 256, 4, 2, 64, 1024, 2048, 1e6, False, {"experts": (16, 4, 256)}),
    ("gpt-oss", "dev"): (4, 288, 8, 2, 64, 288, 4096, 1.5e5, False,
                         {"experts": (32, 4, 288), "window": 32, "yarn": (32.0, 128)}),
    ("gpt-oss", "real"): (2, 576, 8, 1, 64, 576, 131072, 1.5e5, False,
                          {"experts": (32, 4, 576), "window": 128, "yarn": (32.0, 4096)}),
    # tale's shape, for which an emulated NPU has programs
    ("llama", "npu"): (4, 256, 4, 1, 64, 704, 1024, 5e5, True, {"llama3": (8.0, 64)}),
    ("smollm3", "npu"): (4, 256, 4, 1, 64, 704, 1024, 5e6, True, {}),
    ("qwen2", "npu"): (4, 256, 4, 1, 64, 704, 1024, 1e6, True, {}),
    ("qwen3", "npu"): (4, 256, 4, 1, 64, 704, 1024, 1e6, True, {}),
    ("qwen3moe", "npu"): (4, 256, 4, 1, 64, 512, 1024, 1e6, False, {"experts": (16, 4, 256)}),
    ("gpt-oss", "npu"): (4, 256, 4, 1, 64, 256, 1024, 1.5e5, False,
                         {"experts": (8, 2, 256), "window": 128, "yarn": (32.0, 128)}),
    ("smollm3", "dev"): (6, 256, 8, 2, 64, 704, 4096, 5e6, True, {}),
    ("smollm3", "k"): (4, 512, 8, 4, 64, 1280, 2048, 5e6, True, {}),
    ("smollm3", "3b"): (36, 2048, 16, 4, 128, 11008, 65536, 5e6, True, {}),
    ("llama", "1b"): (16, 2048, 32, 8, 64, 8192, 131072, 5e5, True, {"llama3": (32.0, 8192)}),
    ("llama", "3b"): (28, 3072, 24, 8, 128, 8192, 131072, 5e5, True, {"llama3": (32.0, 8192)}),
    ("llama", "8b"): (32, 4096, 32, 8, 128, 14336, 131072, 5e5, False, {"llama3": (8.0, 8192)}),
    ("qwen2", "7b"): (28, 3584, 28, 4, 128, 18944, 32768, 1e6, False, {}),
    ("qwen3", "4b"): (36, 2560, 32, 8, 128, 9728, 40960, 1e6, True, {}),
    ("qwen3", "8b"): (36, 4096, 32, 8, 128, 12288, 40960, 1e6, False, {}),
    ("qwen3moe", "30b"): (48, 2048, 32, 4, 128, 6144, 40960, 1e6, False, {"experts": (128, 8, 768)}),
    ("gpt-oss", "20b"): (24, 2880, 64, 8, 64, 2880, 131072, 1.5e5, False,
                         {"experts": (32, 4, 2880), "window": 128, "yarn": (32.0, 4096)}),
}
SMALL = ("dev", "k", "yarn", "linear", "real", "npu", "rope80", "rope100", "rope120", "part")
SHARP = 1.5  # of queries and keys


def encode(rng, shape, name, std):
    """As mkgguf.py, but for two types whose draws the golden values want in another order."""
    n, std = int(np.prod(shape)), float(std)
    if name not in ("q4_0", "mxfp4"):
        return mkgguf.encode(rng, shape, name, std)
    values, size = TYPES[name][1:]
    out = rng.integers(0, 256, size=(n // values, size), dtype=np.uint8)
    u = 0.75 + 0.5 * rng.random(n // values, dtype=np.float32)
    if name == "mxfp4":  # values of uniform nibbles have std 2.94
        out[:, 0] = np.round(np.log2(std / 2.94)) + 127 + rng.integers(-1, 2, n // values)
        return out.tobytes()
    # Nibbles average -0.5: without signs each matrix would have a part of rank one.
    scale = u * (std / 4.6) * rng.choice(np.float32([-1, 1]), n // values)
    out[:, :2] = scale.astype("<f2").view(np.uint8).reshape(-1, 2)
    return out.tobytes()


def rope_freqs(head_dim, base, factor, n_ctx):
    """What each pair's angle is divided by in Llama 3.1 and later."""
    wavelength = 2 * np.pi * base ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    low, high = n_ctx / LLAMA3["low"], n_ctx / LLAMA3["high"]
    share = (n_ctx / wavelength - LLAMA3["low"]) / (LLAMA3["high"] - LLAMA3["low"])
    return np.where(wavelength > low, factor,
                    np.where(wavelength < high, 1.0, 1 / ((1 - share) / factor + share)))


# The markers of a chat template, and their types. The template is tests/golden/chat/templates/NAME.jinja.
CHATS = {
    "qwen3": [("<|im_start|>", 3), ("<|im_end|>", 3), ("<tool_call>", 4), ("</tool_call>", 4), ("<tool_response>", 4),
              ("</tool_response>", 4), ("<think>", 4), ("</think>", 4)],
    "rerank": [("<|im_start|>", 3), ("<|im_end|>", 3), ("<think>", 4), ("</think>", 4)],
    "qwen3-thinking": [("<|im_start|>", 3), ("<|im_end|>", 3), ("<tool_call>", 4), ("</tool_call>", 4),
                       ("<think>", 4), ("</think>", 4)],
    "llama3.1": [("<|start_header_id|>", 3), ("<|end_header_id|>", 3), ("<|eot_id|>", 3)],
    "mistral": [("[INST]", 3), ("[/INST]", 3), ("[AVAILABLE_TOOLS]", 3), ("[/AVAILABLE_TOOLS]", 3),
                ("[TOOL_CALLS]", 3), ("[TOOL_RESULTS]", 3), ("[/TOOL_RESULTS]", 3), ("</s>", 3)],
    "gpt-oss": [("<|start|>", 4), ("<|message|>", 4), ("<|end|>", 4), ("<|channel|>", 4), ("<|constrain|>", 4),
                ("<|call|>", 3), ("<|return|>", 3)],
}


# Qwen3-Reranker's, as llama.cpp's converter writes it.
RERANK = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
          "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
          "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
          "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")


def template(chat):
    path = os.path.join(os.path.dirname(__file__), "..", "tests", "golden", "chat", "templates", chat + ".jinja")
    with open(path, encoding="utf-8") as f:
        return f.read()


def vocabulary(n, chat=None):
    return letters_vocabulary(n, CHATS[chat] if chat else []) + (
        [kv("tokenizer.chat_template.rerank", "str", RERANK)] if chat == "rerank" else
        [kv("tokenizer.chat_template", "str", template(chat))] if chat else [])


def metadata(arch, size, name, n_layers, n_vocab, chat):
    _, d, heads, kv_heads, head_dim, ff, n_ctx, base, _, more = size

    def key(what, kind, value):
        return kv(f"{arch}.{what}", kind, value)

    meta = [kv("general.architecture", "str", arch), kv("general.name", "str", name),
            key("block_count", "u32", n_layers), key("embedding_length", "u32", d),
            key("context_length", "u32", 4 * n_ctx if chat else n_ctx),  # tools take many of these short pieces
            key("feed_forward_length", "u32", ff), key("attention.head_count", "u32", heads),
            key("attention.head_count_kv", "u32", kv_heads), key("rope.freq_base", "f32", base),
            key("attention.layer_norm_rms_epsilon", "f32", 1e-6 if arch.startswith("qwen") else 1e-5)]
    if arch != "qwen2":
        meta += [key("attention.key_length", "u32", head_dim), key("attention.value_length", "u32", head_dim)]
    if arch in ("llama", "smollm3"):
        meta += [key("vocab_size", "u32", n_vocab), key("rope.dimension_count", "u32", more.get("turned", head_dim))]
    if "experts" in more:
        meta += [key("expert_count", "u32", more["experts"][0]), key("expert_used_count", "u32", more["experts"][1]),
                 key("expert_feed_forward_length", "u32", more["experts"][2])]
    if "window" in more:
        meta += [key("attention.sliding_window", "u32", more["window"])]
    if "yarn" in more:
        meta += [key("rope.scaling.type", "str", "yarn"), key("rope.scaling.factor", "f32", more["yarn"][0]),
                 key("rope.scaling.original_context_length", "u32", more["yarn"][1]),
                 key("rope.scaling.yarn_beta_fast", "f32", 32.0), key("rope.scaling.yarn_beta_slow", "f32", 1.0)]
    if "linear" in more:
        meta += [key("rope.scaling.type", "str", "linear"), key("rope.scaling.factor", "f32", more["linear"])]
    return meta + vocabulary(n_vocab, chat)


def tensors(arch, size, n_layers, n_vocab, matrix_type, more_type, embd_type, expert_type):
    """Name, shape, type and what is drawn: a standard deviation, or "gain", "bias" or "value" with a number."""
    _, d, heads, kv_heads, head_dim, ff, _, base, tied, more = size
    n_experts, d_expert = more.get("experts", (0, 0, 0))[0], more.get("experts", (0, 0, 0))[2]
    gain = ("gain", 1.0)
    # With experts a large residual: one that was chosen otherwise does not change everything.
    out = [("token_embd.weight", (n_vocab, d), embd_type, 0.7 if n_experts else d ** -0.5),
           ("output_norm.weight", (d,), "f32", gain)]
    if not tied:
        out += [("output.weight", (n_vocab, d), embd_type, 1.5 * d ** -0.5)]
    if "llama3" in more:
        out += [("rope_freqs.weight", (head_dim // 2,), "f32", ("value", rope_freqs(head_dim, base, *more["llama3"])))]
    for i in range(n_layers):
        b = f"blk.{i}."
        # The layers to which the _M mixes of llama-quantize give more bits.
        eighth = n_layers // 8
        mixed = more_type if i < eighth or i >= 7 * n_layers // 8 or (i - eighth) % 3 == 2 else matrix_type
        sharp = 1.0 if "qwen3" in arch else SHARP
        out += [(b + "attn_norm.weight", (d,), "f32", gain)]
        for n, rows, s in (("q", heads * head_dim, sharp), ("k", kv_heads * head_dim, sharp),
                           ("v", kv_heads * head_dim, 1.0)):
            out += [(b + f"attn_{n}.weight", (rows, d), mixed if n == "v" else matrix_type, s * d ** -0.5)]
            if arch in ("qwen2", "gpt-oss"):
                out += [(b + f"attn_{n}.bias", (rows,), "f32", ("bias", 0.3 if n == "v" else 1.0))]
        out += [(b + "attn_output.weight", (d, heads * head_dim), matrix_type, (heads * head_dim) ** -0.5)]
        if arch == "gpt-oss":
            out += [(b + "attn_output.bias", (d,), "f32", ("bias", 0.3)),
                    (b + "attn_sinks.weight", (heads,), "f32", ("bias", 2.0))]
        if "qwen3" in arch:
            out += [(b + f"attn_{n}_norm.weight", (head_dim,), "f32", ("gain", SHARP)) for n in "qk"]
        out += [(b + ("post_attention_norm" if arch == "gpt-oss" else "ffn_norm") + ".weight", (d,), "f32", gain)]
        if not n_experts:
            out += [(b + "ffn_gate.weight", (ff, d), matrix_type, 1.5 * d ** -0.5),
                    (b + "ffn_up.weight", (ff, d), matrix_type, d ** -0.5),
                    (b + "ffn_down.weight", (d, ff), mixed, ff ** -0.5)]
            continue
        out += [(b + "ffn_gate_inp.weight", (n_experts, d), "f32", 2.0 * d ** -0.5),
                (b + "ffn_gate_exps.weight", (n_experts, d_expert, d), expert_type, 1.5 * d ** -0.5),
                (b + "ffn_up_exps.weight", (n_experts, d_expert, d), expert_type, d ** -0.5),
                (b + "ffn_down_exps.weight", (n_experts, d, d_expert),
                 mixed if expert_type == matrix_type else expert_type, d_expert ** -0.5)]
        if arch == "gpt-oss":  # wide enough that both clamps are met
            out += [(b + "ffn_gate_inp.bias", (n_experts,), "f32", ("bias", 1.0)),
                    (b + "ffn_gate_exps.bias", (n_experts, d_expert), "f32", ("bias", 3.0)),
                    (b + "ffn_up_exps.bias", (n_experts, d_expert), "f32", ("bias", 3.0)),
                    (b + "ffn_down_exps.bias", (n_experts, d), "f32", ("bias", 0.5))]
    return out


def write_values(f, rng, shape, kind, value):
    if kind == "gain":
        value = value * (1 + 0.1 * rng.standard_normal(shape))
    elif kind == "bias":
        value = value * rng.standard_normal(shape)
    f.write(np.asarray(value, "<f4").tobytes())


def write_model(path, keys, tensors, rng, fast):
    """tensors: name, shape, type and what is drawn. fast: large matrices take their blocks from a pool."""
    pool = {} if fast else None

    def write_tensor(f, name, shape, kind, drawn):
        if isinstance(drawn, tuple):
            write_values(f, rng, shape, *drawn)
        else:
            write_matrix(f, rng, pool, shape, kind, drawn, encode)

    write_file(path, keys, [(name, shape, fitting_type(kind, shape[-1]), drawn)
                            for name, shape, kind, drawn in tensors], write_tensor)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--arch", required=True, choices=sorted({k[0] for k in SIZES}))
    ap.add_argument("--size", default="dev")
    ap.add_argument("--type", default="f32", choices=TYPES)
    ap.add_argument("--more-type", choices=TYPES, help="of some attn_v and ffn_down, as in files of Q4_K_M")
    ap.add_argument("--embd-type", choices=TYPES)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--layers", type=int)
    ap.add_argument("--vocab", type=int)
    ap.add_argument("--pooling", type=int, help="a model of vectors: 1 mean, 2 first row, 3 last row; 4: a reranker")
    ap.add_argument("--chat", choices=sorted(CHATS), help="pieces and template of that form; rerank: with --pooling 4")
    ap.add_argument("--fast", action="store_true", help="reuse random blocks: for large files whose speed is measured")
    a = ap.parse_args()
    if (a.arch, a.size) not in SIZES:
        ap.error(f"{a.arch} has the sizes " + ", ".join(k[1] for k in SIZES if k[0] == a.arch))
    size = SIZES[a.arch, a.size]
    n_layers, n_vocab = a.layers or size[0], a.vocab or (2304 if a.size in SMALL else 131072)
    matrix_type = "q8_0" if a.type == "mxfp4" else a.type
    embd_type = a.embd_type or ("q8_0" if matrix_type in ("q4_0", "q8_0") else
                                "q6_k" if matrix_type.endswith("_k") else matrix_type)
    rng = np.random.default_rng(a.seed)
    meta = metadata(a.arch, size, f"random-{a.arch}-{a.size}-{a.type}", n_layers, n_vocab, a.chat)
    if a.pooling:
        eos = kv("tokenizer.ggml.add_eos_token", "bool", False)
        meta = [kv("tokenizer.ggml.add_eos_token", "bool", True) if m == eos else m for m in meta]
        meta.append(kv(f"{a.arch}.pooling_type", "u32", a.pooling))
    if a.chat == "rerank":
        meta.append(kv(f"{a.arch}.classifier.output_labels", "astr", ["yes", "no"]))
    made = tensors(a.arch, size, n_layers, n_vocab, matrix_type, a.more_type or matrix_type, embd_type, a.type)
    if a.chat == "rerank":
        made.append(("cls.output.weight", (2, size[1]), embd_type, 0.3 * size[1] ** -0.5))
    write_model(a.out, meta, made, rng, a.fast)
    print(a.out, "layers", n_layers, "d", size[1], "vocab", n_vocab)


if __name__ == "__main__":
    main()
