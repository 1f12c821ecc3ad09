#!/usr/bin/env python3
"""Write a random-weight GGUF of a Gemma 3 shape, for speed and parity checks.

usage: mkgguf.py OUT --size tiny|odd|270m|1b|4b|12b|27b
                 [--type f32|f16|bf16|q4_0|q4_1|q5_0|q5_1|q8_0|q2_k|…|q6_k|iq1_s|…|iq4_xs|tq1_0|tq2_0|mxfp4|nvfp4]
                 [--embd-type T] [--more-type T] [--vocab N | --vocab-json tokenizer.json] [--seed N] [--layers N]
                 [--gain G] [--outliers] [--fast]
Needs numpy. The models know no chat template: generate with --raw.
Weights are honest random draws (never zeros): norm-like gains near 1, matrices N(0, s/sqrt(fan_in)).
"""
import argparse
import json
import sys
import numpy as np
sys.dont_write_bytecode = True  # nothing of a run stays in the tree
from gguf_types import TYPES  # noqa: E402
from gguf_write import fitting_type, kv, vocabulary_keys, write_file  # noqa: E402

SIZES = {  # layers, d, heads, kv, head_dim, ff, window, ctx, rope_factor
    "tiny": (6, 256, 4, 2, 64, 768, 64, 4096, 0),
    "odd": (7, 320, 5, 1, 96, 928, 48, 4096, 8),
    "270m": (18, 640, 4, 1, 256, 2048, 512, 32768, 0),
    "1b": (26, 1152, 4, 1, 256, 6912, 512, 32768, 0),
    "4b": (34, 2560, 8, 4, 256, 10240, 1024, 131072, 8),
    "12b": (48, 3840, 16, 8, 256, 15360, 1024, 131072, 8),
    "27b": (62, 5376, 32, 16, 128, 21504, 1024, 131072, 8),
}


def encode(rng, shape, typ, std):
    """shape is (rows, cols); returns the bytes of a random matrix in this type."""
    n = int(np.prod(shape))
    tid, blk, size = TYPES[typ]
    std = float(std)  # numpy 2 keeps a float64 scalar's type, and float32 arrays times it become float64
    if typ in ("f32", "f16", "bf16"):
        x = (rng.standard_normal(n, dtype=np.float32) * std)
        if typ == "f32":
            return x.tobytes()
        if typ == "f16":
            return x.astype("<f2").tobytes()
        return (x.view(np.uint32) >> 16).astype("<u2").tobytes()
    nb = n // blk
    out = rng.integers(0, 256, size=(nb, size), dtype=np.uint8)
    u = (0.75 + 0.5 * rng.random(nb, dtype=np.float32))
    if typ == "q4_0":      # q in [-8,7], std 4.6
        out[:, :2] = (u * (std / 4.6)).astype("<f2").view(np.uint8).reshape(nb, 2)
    elif typ == "q5_0":    # 5-bit q in [-16,15], std 9.2
        out[:, :2] = (u * (std / 9.2)).astype("<f2").view(np.uint8).reshape(nb, 2)
    elif typ == "q8_0":    # uniform bytes, std 74
        out[:, :2] = (u * (std / 74)).astype("<f2").view(np.uint8).reshape(nb, 2)
    elif typ in ("q4_k", "q5_k"):  # d*sc*q - dmin*m: keep mins so the mean is near zero
        lv = 4.6 if typ == "q4_k" else 9.2
        d = u * (std / (lv * 36))
        out[:, 0:2] = d.astype("<f2").view(np.uint8).reshape(nb, 2)
        out[:, 2:4] = (d * (7.5 if typ == "q4_k" else 15.5)).astype("<f2").view(np.uint8).reshape(nb, 2)
        # same 6-bit number as scale and min in every sub-block -> zero-mean weights
        sc = rng.integers(24, 48, size=(nb, 4), dtype=np.uint8)
        hi = rng.integers(24, 48, size=(nb, 4), dtype=np.uint8)
        out[:, 4:8] = sc | ((hi >> 4) << 6)
        out[:, 8:12] = sc | ((hi >> 4) << 6)
        out[:, 12:16] = (hi & 15) | ((hi & 15) << 4)
    elif typ in ("q4_1", "q5_1"):  # minima that make the mean zero
        d = u * (std / (4.6 if typ == "q4_1" else 9.2))
        out[:, 0:2] = d.astype("<f2").view(np.uint8).reshape(nb, 2)
        out[:, 2:4] = (-d * (7.5 if typ == "q4_1" else 15.5)).astype("<f2").view(np.uint8).reshape(nb, 2)
    elif typ == "q2_k":    # q in [0,3], std 1.1; the same 4-bit number as scale and min: zero mean
        d = u * (std / (1.12 * 11.5)); sc = rng.integers(8, 16, size=(nb, 16), dtype=np.uint8)
        out[:, 0:16] = sc | sc << 4
        out[:, 80:82] = d.astype("<f2").view(np.uint8).reshape(nb, 2)
        out[:, 82:84] = (d * 1.5).astype("<f2").view(np.uint8).reshape(nb, 2)
    elif typ == "q3_k":    # q in [-4,3], std 2.3; 6-bit scales of both signs, std 18.5
        out[:, 108:110] = (u * (std / (2.3 * 18.5))).astype("<f2").view(np.uint8).reshape(nb, 2)
    elif typ in ("iq4_nl", "iq4_xs"):  # table values, std 67
        scale = u * (std / (67.0 if typ == "iq4_nl" else 67.0 * 18.5))
        out[:, :2] = scale.astype("<f2").view(np.uint8).reshape(nb, 2)
    elif typ == "mxfp4":   # values of uniform nibbles have std 2.94; exponents of two neighbours
        out[:, 0] = np.round(np.log2(std / 2.94)) + 127 - rng.integers(0, 2, nb)
    elif typ in ("tq1_0", "tq2_0"):  # -1, 0 and 1 times d, std 0.82; two bits of 3 are no weight of a ternary model
        at = size - 2
        if typ == "tq2_0":
            q = rng.integers(0, 3, size=(nb, 4, 64), dtype=np.uint8)
            out[:, :at] = q[:, 0] | q[:, 1] << 2 | q[:, 2] << 4 | q[:, 3] << 6
        out[:, at:] = (u * (std / 0.82)).astype("<f2").view(np.uint8).reshape(nb, 2)
    elif typ == "nvfp4":   # values of uniform nibbles have std 2.94; scales of 2^-9 and more
        steps = np.clip(np.round(std / 2.94 * 512 * (0.75 + 0.5 * rng.random((nb, 4)))), 1, 15).astype(np.uint8)
        out[:, :4] = steps  # up to 15 the byte is the scale's number of such steps
    elif typ[:3] in ("iq1", "iq2", "iq3"):  # random indices and signs; d times the deviation of a type's numbers
        lv = {"iq1": 0.8 * 9.2, "iq2": 3.0 * 18.5, "iq3_xxs": 7.5 * 18.5, "iq3_s": 8.0 * 18.5}[
            typ if typ[:3] == "iq3" else typ[:3]]
        d = (u * (std / lv)).astype("<f2").view(np.uint8).reshape(nb, 2)
        if typ == "iq1_m":  # four bits of d on top of each word of scales
            parts = [d[:, 0] << 4, d[:, 0] & 240, d[:, 1] << 4, d[:, 1] & 240]
            out[:, 49:56:2] = out[:, 49:56:2] & 15 | np.stack(parts, 1)
        else:
            out[:, :2] = d
    elif typ == "q6_k":
        sc = rng.integers(24, 48, size=(nb, 16), dtype=np.int8)
        out[:, 192:208] = sc.view(np.uint8)
        out[:, 208:210] = (u * (std / (18.5 * 36))).astype("<f2").view(np.uint8).reshape(nb, 2)
    return out.tobytes()


def vocabulary_of_file(path):
    """Pieces, scores and types of a tokenizer.json with merges: scores that follow the ids."""
    with open(path, encoding="utf-8") as f:
        tokenizer = json.load(f)
    ids, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    n = max(max(ids.values()), max((t["id"] for t in added), default=0)) + 1
    pieces, types, scores = [f"<unused_{i}>".encode() for i in range(n)], [5] * n, [0.0] * n
    for text, i in ids.items():
        pieces[i] = text.encode()
        types[i] = 6 if len(text) == 6 and text.startswith("<0x") else 1
        scores[i] = -float(i)
    for t in added:
        pieces[t["id"]] = t["content"].encode()
        types[t["id"]] = 3 if t.get("special") else 4
    types[3] = 2
    return pieces, scores, types


def random_vocabulary(n):
    """Special pieces, bytes, characters, then made-up words."""
    pieces = [b"<pad>", b"<eos>", b"<bos>", b"<unk>"] + [f"<0x{i:02X}>".encode() for i in range(256)]
    types = [3, 3, 3, 2] + [6] * 256
    base = ["\u2581"] + [chr(c) for c in range(33, 127)]
    for i in range(n - len(pieces)):
        if i < len(base):
            text = base[i]
        else:
            j = i - len(base)
            text = ("\u2581" if j & 1 else "") + "".join(chr(97 + (j >> (5 * k)) % 26) for k in range(2 + j % 4))
            text += str(j) if j > 20000 else ""
        pieces.append(text.encode())
        types.append(1)
    seen = {}
    for i, text in enumerate(pieces):
        if text in seen:
            pieces[i] = f"<dup{i}>".encode()
            types[i] = 5
        seen[pieces[i]] = i
    return pieces, [-float(i) for i in range(len(pieces))], types


def metadata(a, n_layers):
    _, d, heads, kv_heads, head_dim, ff, window, n_ctx, rope_factor = SIZES[a.size]

    def key(what, kind, value):
        return kv(f"gemma3.{what}", kind, value)

    keys = [kv("general.architecture", "str", "gemma3"), kv("general.name", "str", f"random-{a.size}-{a.type}"),
            key("context_length", "u32", n_ctx), key("embedding_length", "u32", d),
            key("block_count", "u32", n_layers), key("feed_forward_length", "u32", ff),
            key("attention.head_count", "u32", heads), key("attention.head_count_kv", "u32", kv_heads),
            key("attention.key_length", "u32", head_dim), key("attention.value_length", "u32", head_dim),
            key("attention.layer_norm_rms_epsilon", "f32", 1e-6), key("attention.sliding_window", "u32", window),
            key("rope.freq_base", "f32", 1e6)]
    if rope_factor:
        keys += [key("rope.scaling.type", "str", "linear"), key("rope.scaling.factor", "f32", float(rope_factor))]
    return keys


def tensors(a, n_layers, n_vocab, embd_type):
    """(name, shape, type, deviation of a matrix; None: a vector of gains)."""
    _, d, heads, kv_heads, head_dim, ff, *_ = SIZES[a.size]
    out = [("token_embd.weight", (n_vocab, d), embd_type, 1.0 / np.sqrt(d) * 1.0),
           ("output_norm.weight", (d,), "f32", None)]
    for i in range(n_layers):
        is_more = i < n_layers // 8 or i >= 7 * n_layers // 8 or (i - n_layers // 8) % 3 == 2
        more = a.more_type if a.more_type and is_more else a.type
        layer = [("attn_norm", (d,), "f32", None), ("attn_q", (heads * head_dim, d), a.type, d ** -0.5),
                 ("attn_k", (kv_heads * head_dim, d), a.type, d ** -0.5),
                 ("attn_v", (kv_heads * head_dim, d), more, d ** -0.5),
                 ("attn_output", (d, heads * head_dim), a.type, (heads * head_dim) ** -0.5),
                 ("attn_q_norm", (head_dim,), "f32", None), ("attn_k_norm", (head_dim,), "f32", None),
                 ("post_attention_norm", (d,), "f32", None), ("ffn_norm", (d,), "f32", None),
                 ("ffn_gate", (ff, d), a.type, d ** -0.5), ("ffn_up", (ff, d), a.type, d ** -0.5),
                 ("ffn_down", (d, ff), more, ff ** -0.5), ("post_ffw_norm", (d,), "f32", None)]
        out += [(f"blk.{i}.{name}.weight", *what) for name, *what in layer]
    return [(name, shape, fitting_type(kind, shape[-1]), std) for name, shape, kind, std in out]


class Writer:
    """Draws the values of tensors, in their order."""

    def __init__(self, a, d):
        self.a, self.d, self.rng, self.pool = a, d, np.random.default_rng(a.seed), {}

    def __call__(self, f, name, shape, kind, std):
        if std is None:
            f.write(self.gains(name, shape[0]).astype("<f4").tobytes())
        else:
            if self.a.outliers and name in ("blk.2.ffn_gate.weight", "blk.2.ffn_up.weight"):
                std = std * 400
            self.matrix(f, shape, kind, std)

    def gains(self, name, n):
        g = 1.0 + 0.1 * self.rng.standard_normal(n, dtype=np.float32)
        if self.a.outliers and n == self.d:
            hot = [self.d // 7, self.d // 3, self.d - 5]
            if name == "blk.1.post_ffw_norm.weight":
                g[hot] = 5e5
            is_later = not name.startswith("blk.") or int(name.split(".")[1]) > 1
            if is_later and "post_" not in name:  # later norms undo it, as trained gains do
                g *= float(5e5 * np.sqrt(3.0 / self.d) / 3)
                g[hot] = 0.02
        return g

    def matrix(self, f, shape, kind, std):
        rows, cols = shape
        if not self.a.fast or rows * cols <= 1 << 22:
            step = max(1, (1 << 26) // cols)
            for first in range(0, rows, step):
                f.write(encode(self.rng, (min(step, rows - first), cols), kind, std * self.a.gain))
            return
        if (kind, cols, std) not in self.pool:
            block = (max(1, (1 << 24) // cols), cols)
            self.pool[kind, cols, std] = encode(self.rng, block, kind, std * self.a.gain)
        data, row_bytes = self.pool[kind, cols, std], cols // TYPES[kind][1] * TYPES[kind][2]
        left, at = rows * row_bytes, int(self.rng.integers(0, len(data) // row_bytes)) * row_bytes
        while left:
            n = min(left, len(data) - at)
            f.write(data[at:at + n])
            left -= n
            at = 0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--size", default="tiny", choices=SIZES)
    ap.add_argument("--type", default="q4_0", choices=TYPES)
    ap.add_argument("--embd-type")
    ap.add_argument("--more-type",
                    help="of attn_v and ffn_down in the layers that llama-quantize's _M mixes give more bits")
    ap.add_argument("--vocab", type=int, default=0)
    ap.add_argument("--vocab-json")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--layers", type=int)
    ap.add_argument("--gain", type=float, default=1.0)
    ap.add_argument("--outliers", action="store_true",
                    help="residuals of 5e5 in 3 channels, gelu*up past 1e5: what real Gemma 3 does to f16")
    ap.add_argument("--fast", action="store_true", help="reuse a pool of random blocks (speed runs of large shapes)")
    a = ap.parse_args()
    d, n_layers = SIZES[a.size][1], a.layers or SIZES[a.size][0]
    embd_type = a.embd_type or ("q8_0" if a.type in ("q4_0", "q8_0") else
                                "q6_k" if a.type in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs", "tq1_0",
                                                  "tq2_0") or a.type[:3] in ("iq1", "iq2", "iq3") else
                                "q8_0" if a.type == "nvfp4" else a.type)
    if d % TYPES[embd_type][1]:
        embd_type = "q8_0"
    is_large = a.size in ("270m", "1b", "4b", "12b", "27b")
    pieces, scores, types = (vocabulary_of_file(a.vocab_json) if a.vocab_json else
                             random_vocabulary(a.vocab or (262144 if is_large else 1024)))
    keys = metadata(a, n_layers) + vocabulary_keys(pieces, scores, types) + [kv("general.file_type", "u32", 2)]
    write_file(a.out, keys, tensors(a, n_layers, len(pieces), embd_type), Writer(a, d))
    print(a.out, "layers", n_layers, "d", d, "vocab", len(pieces))


if __name__ == "__main__":
    main()
