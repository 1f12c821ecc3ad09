#!/usr/bin/env python3
"""Write a random-weight GGUF of a Gemma 3 shape, for speed and parity checks.

usage: mkgguf.py OUT --size tiny|odd|270m|1b|4b|12b|27b
                 [--type f32|f16|bf16|q4_0|q4_1|q5_0|q5_1|q8_0|q2_k|…|q6_k|iq4_nl|iq4_xs|mxfp4]
                 [--embd-type T] [--more-type T] [--vocab N | --vocab-json tokenizer.json] [--seed N] [--layers N]
                 [--gain G] [--outliers] [--fast]
Needs numpy. The models know no chat template: generate with --raw.
Weights are honest random draws (never zeros): norm-like gains near 1, matrices N(0, s/sqrt(fan_in)).
"""
import argparse, json, struct, sys
import numpy as np
sys.dont_write_bytecode = True  # nothing of a run stays in the tree
from gguf_types import TYPES

SIZES = {  # layers, d, heads, kv, head_dim, ff, window, ctx, rope_factor
    "tiny": (6, 256, 4, 2, 64, 768, 64, 4096, 0),
    "odd": (7, 320, 5, 1, 96, 928, 48, 4096, 8),
    "270m": (18, 640, 4, 1, 256, 2048, 512, 32768, 0),
    "1b": (26, 1152, 4, 1, 256, 6912, 512, 32768, 0),
    "4b": (34, 2560, 8, 4, 256, 10240, 1024, 131072, 8),
    "12b": (48, 3840, 16, 8, 256, 15360, 1024, 131072, 8),
    "27b": (62, 5376, 32, 16, 128, 21504, 1024, 131072, 8),
}


def kv_str(s):
    b = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(b)) + b


def kv(key, typ, val):
    out = kv_str(key)
    t = {"u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8}
    if typ in t:
        out += struct.pack("<I", t[typ])
        out += {"u32": lambda v: struct.pack("<I", v), "i32": lambda v: struct.pack("<i", v),
                "f32": lambda v: struct.pack("<f", v), "bool": lambda v: struct.pack("<?", v),
                "str": kv_str}[typ](val)
        return out
    et = typ[1:]
    out += struct.pack("<IIQ", 9, t[et], len(val))
    if et == "str":
        return out + b"".join(kv_str(v) for v in val)
    return out + np.asarray(val, dtype={"f32": "<f4", "i32": "<i4", "u32": "<u4"}[et]).tobytes()


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
    elif typ == "q6_k":
        sc = rng.integers(24, 48, size=(nb, 16), dtype=np.int8)
        out[:, 192:208] = sc.view(np.uint8)
        out[:, 208:210] = (u * (std / (18.5 * 36))).astype("<f2").view(np.uint8).reshape(nb, 2)
    return out.tobytes()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out"); ap.add_argument("--size", default="tiny", choices=SIZES)
    ap.add_argument("--type", default="q4_0", choices=TYPES); ap.add_argument("--embd-type")
    ap.add_argument("--more-type",
                    help="of attn_v and ffn_down in the layers that llama-quantize's _M mixes give more bits")
    ap.add_argument("--vocab", type=int, default=0); ap.add_argument("--vocab-json")
    ap.add_argument("--seed", type=int, default=1); ap.add_argument("--layers", type=int)
    ap.add_argument("--gain", type=float, default=1.0)
    ap.add_argument("--outliers", action="store_true",
                    help="residuals of 5e5 in 3 channels, gelu*up past 1e5: what real Gemma 3 does to f16")
    ap.add_argument("--fast", action="store_true", help="reuse a pool of random blocks (speed runs of large shapes)")
    a = ap.parse_args()
    L, d, H, KV, hd, ff, win, ctx, rf = SIZES[a.size]
    L = a.layers or L
    rng = np.random.default_rng(a.seed)
    et = a.embd_type or ("q8_0" if a.type in ("q4_0", "q8_0")
                         else "q6_k" if a.type in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs")
                         else a.type)
    if d % TYPES[et][1]:
        et = "q8_0"
    if a.vocab_json:
        tj = json.load(open(a.vocab_json)); voc = tj["model"]["vocab"]
        n = max(max(voc.values()), max((t["id"] for t in tj["added_tokens"]), default=0)) + 1
        toks = [f"<unused_{i}>".encode() for i in range(n)]; types = [5] * n; scores = [0.0] * n
        for t, i in voc.items():
            toks[i] = t.encode(); types[i] = 1; scores[i] = -float(i)
            if len(t) == 6 and t.startswith("<0x"): types[i] = 6
        for t in tj["added_tokens"]:
            toks[t["id"]] = t["content"].encode(); types[t["id"]] = 3 if t.get("special") else 4
        types[3] = 2
    else:
        n = a.vocab or (262144 if a.size in ("270m", "1b", "4b", "12b", "27b") else 1024)
        toks = [b"<pad>", b"<eos>", b"<bos>", b"<unk>"] + [f"<0x{i:02X}>".encode() for i in range(256)]
        types = [3, 3, 3, 2] + [6] * 256
        base = ["\u2581"] + [chr(c) for c in range(33, 127)]
        i = 0
        while len(toks) < n:
            if i < len(base): t = base[i]
            else:
                j = i - len(base)
                t = ("\u2581" if j & 1 else "") + "".join(chr(97 + (j >> (5 * k)) % 26) for k in range(2 + j % 4))
                t += str(j) if j > 20000 else ""
            i += 1
            toks.append(t.encode()); types.append(1)
        seen = {}
        for k, t in enumerate(toks):
            if t in seen: toks[k] = f"<dup{k}>".encode(); types[k] = 5
            seen[toks[k]] = k
        scores = [-float(k) for k in range(len(toks))]
    A = "gemma3"
    meta = [kv("general.architecture", "str", A), kv("general.name", "str", f"random-{a.size}-{a.type}"),
            kv(f"{A}.context_length", "u32", ctx), kv(f"{A}.embedding_length", "u32", d),
            kv(f"{A}.block_count", "u32", L), kv(f"{A}.feed_forward_length", "u32", ff),
            kv(f"{A}.attention.head_count", "u32", H), kv(f"{A}.attention.head_count_kv", "u32", KV),
            kv(f"{A}.attention.key_length", "u32", hd), kv(f"{A}.attention.value_length", "u32", hd),
            kv(f"{A}.attention.layer_norm_rms_epsilon", "f32", 1e-6),
            kv(f"{A}.attention.sliding_window", "u32", win), kv(f"{A}.rope.freq_base", "f32", 1e6)]
    if rf:
        meta += [kv(f"{A}.rope.scaling.type", "str", "linear"), kv(f"{A}.rope.scaling.factor", "f32", float(rf))]
    meta += [kv("tokenizer.ggml.model", "str", "llama"), kv("tokenizer.ggml.pre", "str", "default"),
             kv("tokenizer.ggml.tokens", "astr", toks), kv("tokenizer.ggml.scores", "af32", scores),
             kv("tokenizer.ggml.token_type", "ai32", types), kv("tokenizer.ggml.bos_token_id", "u32", 2),
             kv("tokenizer.ggml.eos_token_id", "u32", 1), kv("tokenizer.ggml.unknown_token_id", "u32", 3),
             kv("tokenizer.ggml.padding_token_id", "u32", 0), kv("tokenizer.ggml.add_bos_token", "bool", True),
             kv("tokenizer.ggml.add_eos_token", "bool", False), kv("tokenizer.ggml.add_space_prefix", "bool", False),
             kv("general.file_type", "u32", 2)]
    T = [("token_embd.weight", (n, d), et, 1.0 / np.sqrt(d) * 1.0), ("output_norm.weight", (d,), "f32", None)]
    for i in range(L):
        b = f"blk.{i}."
        more = a.more_type if a.more_type and (i < L // 8 or i >= 7 * L // 8 or (i - L // 8) % 3 == 2) else a.type
        T += [(b + "attn_norm.weight", (d,), "f32", None), (b + "attn_q.weight", (H * hd, d), a.type, d ** -0.5),
              (b + "attn_k.weight", (KV * hd, d), a.type, d ** -0.5),
              (b + "attn_v.weight", (KV * hd, d), more, d ** -0.5),
              (b + "attn_output.weight", (d, H * hd), a.type, (H * hd) ** -0.5),
              (b + "attn_q_norm.weight", (hd,), "f32", None), (b + "attn_k_norm.weight", (hd,), "f32", None),
              (b + "post_attention_norm.weight", (d,), "f32", None), (b + "ffn_norm.weight", (d,), "f32", None),
              (b + "ffn_gate.weight", (ff, d), a.type, d ** -0.5), (b + "ffn_up.weight", (ff, d), a.type, d ** -0.5),
              (b + "ffn_down.weight", (d, ff), more, ff ** -0.5), (b + "post_ffw_norm.weight", (d,), "f32", None)]
    infos, off, al, pool, done = [], 0, 32, {}, []
    rows = []
    for name, shape, t, std in T:
        cols = shape[-1]
        if t != "f32" and cols % TYPES[t][1]: t = "q8_0" if cols % 32 == 0 else "f16"
        size = int(np.prod(shape)) // TYPES[t][1] * TYPES[t][2]
        dims = b"".join(struct.pack("<Q", s) for s in reversed(shape))
        infos.append(kv_str(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", TYPES[t][0], off))
        rows.append((shape, t, std, off, size)); off += (size + al - 1) // al * al
    with open(a.out, "wb") as f:
        f.write(struct.pack("<IIQQ", 0x46554747, 3, len(T), len(meta)) + b"".join(meta) + b"".join(infos))
        f.write(b"\0" * (-f.tell() % al)); base = f.tell()
        for shape, t, std, o, size in rows:
            f.write(b"\0" * (base + o - f.tell()))
            if std is None:
                g = 1.0 + 0.1 * rng.standard_normal(shape[0], dtype=np.float32)
                if a.outliers and shape[0] == d:
                    name, hot = T[len(done)][0], [d // 7, d // 3, d - 5]
                    if name == "blk.1.post_ffw_norm.weight": g[hot] = 5e5
                    layer = int(name.split(".")[1]) if name.startswith("blk.") else L
                    if layer > 1 and "post_" not in name:   # later norms undo it, as trained gains do
                        g *= float(5e5 * np.sqrt(3.0 / d) / 3); g[hot] = 0.02
                done.append(1); f.write(g.astype("<f4").tobytes()); continue
            if a.outliers and T[len(done)][0] in ("blk.2.ffn_gate.weight", "blk.2.ffn_up.weight"): std = std * 400
            done.append(1)
            r, c = shape; step = max(1, (1 << 26) // c)
            if a.fast and r * c > (1 << 22):
                key = (t, c, std)
                if key not in pool:
                    pool[key] = encode(rng, (max(1, (1 << 24) // c), c), t, std * a.gain)
                b = pool[key]; rb = c // TYPES[t][1] * TYPES[t][2]
                left = size; o2 = int(rng.integers(0, len(b) // rb)) * rb
                while left:
                    n2 = min(left, len(b) - o2); f.write(b[o2:o2 + n2]); left -= n2; o2 = 0
                continue
            for s in range(0, r, step):
                f.write(encode(rng, (min(step, r - s), c), t, std * a.gain))
        f.write(b"\0" * (-f.tell() % al))
    print(a.out, "layers", L, "d", d, "vocab", n)


if __name__ == "__main__":
    main()
