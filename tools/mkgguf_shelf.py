#!/usr/bin/env python3
"""Write a random-weight GGUF of a Granite, Gemma 2, Command R, Ministral, Phi, GLM, OLMo, EXAONE, Hunyuan or Seed
shape, or one of Qwen2 with experts, for parity checks.

usage: mkgguf_shelf.py OUT --arch ARCH --size SIZE [--type T] [--seed N] [--key NAME=TYPE:VALUE]
--key puts in another key, or another value of a key: for files that are refused, or must mean the same.
The sizes are those of the golden files in tests/golden/shelf: the same seed gives the weights for which those values
were computed. The order of the draws is the order of the tensors. --type is for the matrices; norms, biases and routers
are f32, as converters write them.

Weights are honest random draws: gains near 1, matrices N(0, s/sqrt(fan_in)), queries and keys sharpened so that
positions and masks matter. The vocabulary is SentencePiece bytes and made-up pieces, whatever the model's own is: what
is scored are ids. Needs numpy.
"""
import argparse
import sys
import numpy as np
sys.dont_write_bytecode = True  # nothing of a run stays in the tree
from gguf_types import TYPES  # noqa: E402
from gguf_write import fitting_type, kv, kv_str, letters_vocabulary, write_file, write_matrix  # noqa: E402
from mkgguf_archs import encode, write_values as write_usual_values  # noqa: E402

N_VOCAB = 2304
BASE = {"layers": 3, "d": 256, "heads": 8, "kv": 2, "head": 32, "ff": 448, "context": 4096, "base": 1e4, "tied": True}
K = {"layers": 2, "d": 512, "heads": 4, "kv": 2, "head": 128, "ff": 768}  # widths of 256 for K-quants
SIZES = {
    ("granite", "dev"): {"embedding": 12.0, "residual": 0.22, "attention": 0.0234375, "logits": 6.0, "tied": False},
    ("granite", "nope"): {"head": 64, "heads": 4, "kv": 4, "residual": 0.5, "logits": 1.5, "turns": False,
                          "tied": False},
    ("granite", "k"): {**K, "heads": 8, "head": 64, "embedding": 12.0, "residual": 0.22, "attention": 0.015625,
                       "logits": 8.0, "tied": False},
    ("granitemoe", "noshare"): {"embedding": 6.0, "residual": 0.3, "attention": 0.03125, "logits": 4.0,
                                "experts": (8, 2), "ff": 96, "tied": False},
    ("granitemoe", "dev"): {"embedding": 12.0, "residual": 0.22, "attention": 0.03125, "logits": 4.0,
                            "experts": (32, 4), "ff": 96, "shared": 128, "tied": False},
    ("phi3", "dev"): {"head": 96, "d": 384, "heads": 4},
    ("phi3", "win"): {"head": 64, "heads": 4, "kv": 4, "window": 32},
    ("phi3", "long"): {"head": 64, "heads": 4, "turned": 48, "original": 32},
    # of a context of 16384, of which the file keeps 4096: what the short divisors are for
    ("phi3", "short"): {"head": 64, "heads": 4, "turned": 48, "original": 4096, "stretched": 16384},
    ("phi3", "k"): {**K, "ff": 1024},
    ("command-r", "dev"): {"kv": 8, "logits": 0.0625, "base": 8e6},
    ("command-r", "plus"): {"layers": 64, "d": 64, "heads": 2, "kv": 1, "ff": 96, "logits": 0.8, "base": 75e3,
                            "own": True},
    ("cohere2", "dev"): {"layers": 5, "window": 32, "logits": 0.25, "base": 5e4},
    ("cohere2", "k"): {**K, "layers": 4, "window": 32, "logits": 0.25},
    ("gemma2", "dev"): {"layers": 4, "head": 64, "heads": 4, "window": 32, "caps": (50.0, 30.0), "eps": 1e-6},
    ("gemma2", "tight"): {"head": 48, "heads": 6, "kv": 3, "window": 17, "caps": (2.0, 3.0), "eps": 1e-6},
    ("gemma2", "27b"): {"layers": 46, "d": 96, "heads": 4, "ff": 96, "window": 32, "caps": (5.0, 30.0), "eps": 1e-6},
    ("gemma2", "k"): {**K, "window": 32, "caps": (50.0, 30.0), "eps": 1e-6},
    ("glm4", "dev"): {"head": 64, "turned": 32, "heads": 6, "tied": False},
    ("glm4", "odd"): {"head": 80, "turned": 40, "heads": 4, "kv": 1, "d": 192, "ff": 320, "biases": False},
    ("glm4", "k"): {**K, "turned": 64, "tied": False},
    ("olmo2", "dev"): {"base": 5e5, "kv": 8, "tied": False},
    ("olmo2", "olmo3"): {"base": 5e5, "layers": 5, "tied": False, "window": 32, "yarn": (8.0, 64)},
    ("olmo2", "k"): {**K, "kv": 4, "tied": False},
    ("olmoe", "dev"): {"kv": 8, "experts": (64, 8), "ff": 64, "tied": False},
    ("qwen2moe", "dev"): {"experts": (60, 4), "ff": 512, "expert": 64, "shared": 256, "tied": False, "base": 1e6},
    ("qwen2moe", "k"): {"layers": 2, "heads": 4, "kv": 4, "head": 64, "experts": (16, 4), "ff": 512, "expert": 256,
                        "shared": 512, "tied": False},
    ("mistral3", "dev"): {"head": 64, "heads": 6, "base": 1e6, "context": 1024, "yarn": (16.0, 64), "multiplier": 1.0,
                          "growth": 0.1, "tied": False},
    ("mistral3", "yarn"): {"base": 1e6, "context": 1024, "yarn": (4.0, 32), "growth": 0.4},
    ("mistral3", "k"): {**K, "context": 1024, "yarn": (16.0, 64), "multiplier": 1.0, "growth": 0.1, "tied": False},
    ("seed_oss", "dev"): {"head": 64, "heads": 6, "base": 1e7, "tied": False},
    ("hunyuan-dense", "dev"): {"head": 64, "heads": 6},
    ("hunyuan-dense", "alpha"): {"head": 64, "heads": 4, "alpha": 1000.0},
    ("exaone4", "dev"): {"base": 1e6, "divided": (16.0, 1.0, 4.0, 64)},
    ("exaone4", "swa"): {"layers": 64, "d": 64, "heads": 2, "kv": 1, "ff": 96, "window": 32, "base": 1e6},
}
POST_ONLY = ("olmo2", "exaone4")  # norms after attention and FFN, none before
WIDE = ("olmo2", "olmoe")  # one norm of all heads
OWN = ("hunyuan-dense", "exaone4")  # one of each head
PARALLEL = ("command-r", "cohere2")  # one norm, which takes the mean off
FUSED = ("phi3", "glm4")  # gate and up


def divisors(head_dim, base, factor, low, high, n_ctx):
    """What each pair's angle is divided by in Llama 3.1 and later."""
    frequency = base ** (-np.arange(0, head_dim, 2) / head_dim)
    share = np.clip((n_ctx / (2 * np.pi / frequency) - low) / (high - low), 0, 1)
    return 1 / ((1 - share) / factor + share)


def metadata(arch, c, name):
    def key(what, kind, value):
        return kv(f"{arch}.{what}", kind, value)

    meta = [kv("general.architecture", "str", arch), kv("general.name", "str", name),
            key("block_count", "u32", c["layers"]), key("context_length", "u32", c["context"]),
            key("embedding_length", "u32", c["d"]), key("feed_forward_length", "u32", c["ff"]),
            key("attention.head_count", "u32", c["heads"]), key("attention.head_count_kv", "u32", c["kv"]),
            key("rope.freq_base", "f32", c["base"]), key("vocab_size", "u32", N_VOCAB),
            key("attention.layer_norm_epsilon" if arch in PARALLEL else "attention.layer_norm_rms_epsilon", "f32",
                 c.get("eps", 1e-5)),
            key("attention.key_length", "u32", c["head"]), key("attention.value_length", "u32", c["head"])]
    for what, name in (("embedding", "embedding_scale"), ("residual", "residual_scale"),
                       ("attention", "attention.scale"), ("logits", "logit_scale"), ("alpha", "rope.scaling.alpha"),
                       ("growth", "attention.temperature_scale"), ("multiplier", "rope.scaling.yarn_log_multiplier")):
        if what in c:
            meta.append(key(name, "f32", c[what]))
    for what, name in (("window", "attention.sliding_window"), ("turned", "rope.dimension_count"),
                       ("original", "rope.scaling.original_context_length")):
        if what in c:
            meta.append(key(name, "u32", c[what]))
    if "caps" in c:
        meta += [key("attn_logit_softcapping", "f32", c["caps"][0]),
                 key("final_logit_softcapping", "f32", c["caps"][1])]
    if not c.get("turns", True):
        meta.append(key("rope.scaling.finetuned", "bool", False))
    if "yarn" in c:
        meta += [key("rope.scaling.type", "str", "yarn"), key("rope.scaling.factor", "f32", c["yarn"][0]),
                 key("rope.scaling.original_context_length", "u32", c["yarn"][1])]
    if "original" in c:
        longer = c.get("stretched", c["context"]) / c["original"]
        meta.append(key("rope.scaling.attn_factor", "f32", float(np.sqrt(1 + np.log(longer) / np.log(c["original"])))))
    if "experts" in c:
        meta += [key("expert_count", "u32", c["experts"][0]), key("expert_used_count", "u32", c["experts"][1])]
    for what, name in (("expert", "expert_feed_forward_length"), ("shared", "expert_shared_feed_forward_length")):
        if what in c:
            meta.append(key(name, "u32", c[what]))
    return meta + letters_vocabulary(N_VOCAB)


def head_tensors(arch, c, embd_type, rng):
    """The tensors before the layers. Divisors of long contexts are drawn here, before all weights."""
    d, logits, is_granite = c["d"], c.get("logits", 1.0), arch.startswith("granite")
    embedding = 1 / c.get("embedding", 1.0) if is_granite else 1.0 if "experts" in c else 4 * d ** -0.5
    output = 2 * d ** -0.5 * (logits if is_granite else 1.0)  # logits are of the usual size after the scale
    gain = output / embedding if c["tied"] else 1.0
    if arch in PARALLEL:
        gain /= logits
    if arch == "gemma2":
        embedding, gain = 0.5 * d ** -0.5, 4.0
    out = [("token_embd.weight", (N_VOCAB, d), embd_type, embedding),
           ("output_norm.weight", (d,), "f32", ("gain", gain))]
    if not c["tied"]:
        out.append(("output.weight", (N_VOCAB, d), embd_type, output))
    if "divided" in c:
        out.append(("rope_freqs.weight", (c["head"] // 2,), "f32",
                    ("value", divisors(c["head"], c["base"], *c["divided"]))))
    if "original" in c:
        n = c["turned"] // 2
        u = np.arange(n) / (n - 1)
        out += [("rope_factors_long.weight", (n,), "f32", ("value", 1.0 + 60 * u ** 2 + 0.1 * rng.random(n))),
                ("rope_factors_short.weight", (n,), "f32", ("value", 1.0 + 2.5 * u + 0.1 * rng.random(n)))]
    return out


def attention_tensors(arch, c, b, kind):
    d, q, k, std = c["d"], c["heads"] * c["head"], c["kv"] * c["head"], c["d"] ** -0.5
    sharp = 2.2 * (c["attention"] * c["head"] ** 0.5) ** -0.5 if "attention" in c else 1.5
    if arch in POST_ONLY + WIDE + OWN:
        sharp = 1.0
    out = []
    if arch not in POST_ONLY:
        out.append((b + "attn_norm.weight", (d,), "f32", ("gain", 1.0)))
    if arch == "phi3":
        out.append((b + "attn_qkv.weight", (q + 2 * k, d), kind, sharp * std))
    else:
        for n, rows, s in (("q", q, sharp), ("k", k, sharp), ("v", k, 1.0)):
            out.append((b + f"attn_{n}.weight", (rows, d), kind, s * std))
            if arch in ("seed_oss", "qwen2moe") or (arch == "glm4" and c.get("biases", True)):
                out.append((b + f"attn_{n}.bias", (rows,), "f32", ("bias", 0.3 if n == "v" else 1.0)))
    out.append((b + "attn_output.weight", (d, q), kind, q ** -0.5 * (1.5 if arch.startswith("granite") else 1.0)))
    if arch in WIDE:
        out += [(b + f"attn_{n}_norm.weight", (rows,), "f32", ("gain", 1.5)) for n, rows in (("q", q), ("k", k))]
    if "own" in c:  # gains of each head
        out += [(b + f"attn_{n}_norm.weight", (c[what], c["head"]), "f32", ("gain", 1.5))
                for n, what in (("q", "heads"), ("k", "kv"))]
    if arch in OWN:
        out += [(b + f"attn_{n}_norm.weight", (c["head"],), "f32", ("uneven", 1.5)) for n in "qk"]
    return out


def ffn_tensors(arch, c, b, kind):
    d, ff, std = c["d"], c["ff"], c["d"] ** -0.5
    out = []
    if arch in POST_ONLY + ("glm4", "gemma2"):
        out += [(b + n + ".weight", (d,), "f32", ("gain", 0.6)) for n in ("post_attention_norm", "post_ffw_norm")]
    if arch not in POST_ONLY + PARALLEL:
        out.append((b + ("post_attention_norm" if arch == "seed_oss" else "ffn_norm") + ".weight", (d,), "f32",
                    ("gain", 1.0)))
    if "experts" in c:
        n, ff, shared = c["experts"][0], c.get("expert", ff), c.get("shared")
        out += [(b + "ffn_gate_inp.weight", (n, d), "f32", 2 * std),
                (b + "ffn_gate_exps.weight", (n, ff, d), kind, 1.5 * std),
                (b + "ffn_up_exps.weight", (n, ff, d), kind, std),
                (b + "ffn_down_exps.weight", (n, d, ff), kind, ff ** -0.5)]
        if shared:
            out += [(b + "ffn_gate_shexp.weight", (shared, d), kind, 1.5 * std),
                    (b + "ffn_up_shexp.weight", (shared, d), kind, std),
                    (b + "ffn_down_shexp.weight", (d, shared), kind, shared ** -0.5)]
        if arch == "qwen2moe":
            out.append((b + "ffn_gate_inp_shexp.weight", (d,), "f32", ("bias", 1.5 * std)))
        return out
    if arch in FUSED:
        out.append((b + "ffn_up.weight", (2 * ff, d), kind, 1.3 * std))
    else:
        out += [(b + "ffn_gate.weight", (ff, d), kind, 1.5 * std), (b + "ffn_up.weight", (ff, d), kind, std)]
    return out + [(b + "ffn_down.weight", (d, ff), kind, ff ** -0.5)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--arch", required=True, choices=sorted({k[0] for k in SIZES}))
    ap.add_argument("--size", default="dev")
    ap.add_argument("--type", default="f32", choices=TYPES)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--key", help="NAME=TYPE:VALUE, as granite.logit_scale=f32:0")
    a = ap.parse_args()
    if (a.arch, a.size) not in SIZES:
        ap.error(f"{a.arch} has the sizes " + ", ".join(k[1] for k in SIZES if k[0] == a.arch))
    c = {**BASE, **SIZES[a.arch, a.size]}
    embd_type = "q8_0" if a.type in ("q4_0", "q8_0") else "q6_k" if a.type.endswith("_k") else a.type
    rng = np.random.default_rng(a.seed)
    meta = metadata(a.arch, c, f"random-{a.arch}-{a.size}-{a.type}")
    if a.key:
        name, kind, value = a.key.replace("=", ":", 1).split(":")
        value = value if kind == "str" else float(value) if kind.endswith("f32") else int(value)
        meta = [m for m in meta if not m.startswith(kv_str(name))]
        meta.append(kv(name, kind, [value] if kind.startswith("a") else value))
    made = head_tensors(a.arch, c, embd_type, rng)
    for i in range(c["layers"]):
        made += attention_tensors(a.arch, c, f"blk.{i}.", a.type) + ffn_tensors(a.arch, c, f"blk.{i}.", a.type)

    def write_tensor(f, name, shape, kind, drawn):
        if not isinstance(drawn, tuple):
            write_matrix(f, rng, None, shape, kind, drawn, encode)
        elif drawn[0] == "uneven":
            f.write((drawn[1] * (1 + 0.4 * rng.standard_normal(shape))).astype("<f4").tobytes())
        else:
            write_usual_values(f, rng, shape, *drawn)

    write_file(a.out, meta, [(name, shape, fitting_type(kind, shape[-1]), drawn) for name, shape, kind, drawn in made],
               write_tensor)
    print(a.out, "layers", c["layers"], "d", c["d"], "vocab", N_VOCAB)


if __name__ == "__main__":
    main()
