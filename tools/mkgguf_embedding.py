#!/usr/bin/env python3
"""Write a small random-weight GGUF of an embedding model.

usage: mkgguf_embedding.py OUT [--arch gemma-embedding] --size a|b|300m [--type T] [--seed N] [--vocab N] [--layers N]
                           [--no-pair] [--pair-from-0]
The sizes a and b are those of the golden files in tests/golden/archs: the same seed gives the weights for which those
values were computed. 300m is EmbeddingGemma's. The pieces are those of models/tale.gguf. Needs numpy.
"""
import argparse
import os
import struct
import sys
import numpy as np
sys.dont_write_bytecode = True  # nothing of a run stays in the tree
from gguf_types import TYPES  # noqa: E402
from gguf_write import kv  # noqa: E402
from mkgguf_gemma import write  # noqa: E402

# layers, d, heads, kv heads, head size, ff, window, period, width between the pair behind the pooling (0: no pair)
SIZES = {"a": (12, 128, 4, 1, 32, 320, 24, 6, 512), "b": (7, 192, 3, 3, 64, 288, 33, 3, 0),
         "300m": (24, 768, 3, 1, 256, 1152, 512, 6, 3072)}
TALE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "tale.gguf")
NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


def read_keys(path):
    with open(path, "rb") as f:
        raw = f.read()
    at = 24

    def string():
        nonlocal at
        n, = struct.unpack_from("<Q", raw, at)
        at += 8 + n
        return raw[at - n:at]

    def value(kind):
        nonlocal at
        if kind == 8:
            return string()
        if kind == 9:
            of, n = struct.unpack_from("<IQ", raw, at)
            at += 12
            return [value(of) for _ in range(n)]
        at += struct.calcsize(NUMBERS[kind])
        return struct.unpack_from(NUMBERS[kind], raw, at - struct.calcsize(NUMBERS[kind]))[0]

    keys = {}
    for _ in range(struct.unpack_from("<Q", raw, 16)[0]):
        name = string().decode()
        kind, = struct.unpack_from("<I", raw, at)
        at += 4
        keys[name] = value(kind)
    return keys


def vocabulary(n):
    """Special pieces, bytes and single characters, then the rest from the best scored on, in the file's order."""
    keys = read_keys(TALE)
    tokens, scores, types = (keys["tokenizer.ggml." + k] for k in ("tokens", "scores", "token_type"))
    first = [i for i in range(len(tokens)) if types[i] != 1 or len(tokens[i].decode()) == 1]
    have = set(first)
    keep = sorted((first + [i for i in range(len(tokens)) if i not in have])[:n])
    ids = [kv(f"tokenizer.ggml.{k}_token_id", "u32", keys[f"tokenizer.ggml.{k}_token_id"])
           for k in ("bos", "eos", "unknown", "padding")]
    return len(keep), [kv("tokenizer.ggml.model", "str", "llama"), kv("tokenizer.ggml.pre", "str", "default"),
                       kv("tokenizer.ggml.tokens", "astr", [tokens[i] for i in keep]),
                       kv("tokenizer.ggml.scores", "af32", [scores[i] for i in keep]),
                       kv("tokenizer.ggml.token_type", "ai32", [types[i] for i in keep])] + ids + [
                           kv("tokenizer.ggml.add_bos_token", "bool", True),
                           kv("tokenizer.ggml.add_eos_token", "bool", True),
                           kv("tokenizer.ggml.add_space_prefix", "bool", False)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--arch", default="gemma-embedding", choices=("gemma-embedding",))
    ap.add_argument("--size", default="a", choices=SIZES)
    ap.add_argument("--type", default="f32", choices=TYPES)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--vocab", type=int, default=2048)
    ap.add_argument("--layers", type=int)
    ap.add_argument("--no-pair", action="store_true", help="without the matrices behind the pooling")
    ap.add_argument("--pair-from-0", action="store_true", help="with the names that some files have for them")
    a = ap.parse_args()
    n_layers, d, heads, kv_heads, head, ff, window, period, pair = SIZES[a.size]
    n_layers, pair, t, s = a.layers or n_layers, 0 if a.no_pair else pair, a.type, d ** -0.5
    n_vocab, pieces = vocabulary(a.vocab)

    def key(what, kind, value):
        return kv(f"gemma-embedding.{what}", kind, value)

    keys = [kv("general.architecture", "str", "gemma-embedding"),
            kv("general.name", "str", f"random-gemma-embedding-{d}-{t}"), key("context_length", "u32", 2048),
            key("embedding_length", "u32", d), key("block_count", "u32", n_layers),
            key("feed_forward_length", "u32", ff), key("attention.head_count", "u32", heads),
            key("attention.head_count_kv", "u32", kv_heads), key("attention.key_length", "u32", head),
            key("attention.value_length", "u32", head), key("attention.layer_norm_rms_epsilon", "f32", 1e-6),
            key("attention.sliding_window", "u32", window), key("rope.freq_base", "f32", 1e6),
            key("pooling_type", "u32", 1)]
    if period != 6:
        keys.append(key("attention.sliding_window_pattern", "u32", period))
    gain, added = ("gain", 1.0, 0.2), ("gain", 0.5, 0.1)
    tensors = [("token_embd.weight", (n_vocab, d), t, s), ("output_norm.weight", (d,), "f32", ("gain", 3.0, 0.6))]
    if pair:
        names = ("dense.0", "dense.1") if a.pair_from_0 else ("dense_2", "dense_3")
        tensors += [(names[0] + ".weight", (pair, d), t, s), (names[1] + ".weight", (d, pair), t, pair ** -0.5)]
    for i in range(n_layers):
        layer = [("attn_norm", (d,), "f32", gain), ("attn_q", (heads * head, d), t, s),
                 ("attn_k", (kv_heads * head, d), t, s), ("attn_v", (kv_heads * head, d), t, s),
                 ("attn_output", (d, heads * head), t, (heads * head) ** -0.5),
                 ("attn_q_norm", (head,), "f32", ("gain", 1.5, 0.2)),
                 ("attn_k_norm", (head,), "f32", ("gain", 1.3, 0.2)), ("post_attention_norm", (d,), "f32", added),
                 ("ffn_norm", (d,), "f32", gain), ("ffn_gate", (ff, d), t, s), ("ffn_up", (ff, d), t, s),
                 ("ffn_down", (d, ff), t, ff ** -0.5), ("post_ffw_norm", (d,), "f32", added)]
        tensors += [(f"blk.{i}.{name}.weight", *what) for name, *what in layer]
    write(a.out, keys + pieces, tensors, np.random.default_rng(a.seed), None)
    print(a.out, "layers", n_layers, "d", d, "vocab", n_vocab)


if __name__ == "__main__":
    main()
