#!/usr/bin/env python3
"""Write a random projector ("mmproj"): the file that makes rows for a text model of pictures. Gemma 3's SigLIP. With
--text the text model of the same size, which those rows fit.

usage: mkgguf_mmproj.py OUT --size a|b|full|siglip [--text [--template]] [--type f32|f16|q8_0] [--seed N]
The first three sizes are those of tests/golden/images/towers.json and texts.json: seed 1 of a projector and seed 2 of a
text model give the weights for which those values were computed. `siglip` has the sizes of the released projectors.
Needs numpy.
"""
import argparse
import sys
import numpy as np
sys.dont_write_bytecode = True  # nothing of a run stays in the tree
import mkgguf  # noqa: E402
from gguf_types import TYPES  # noqa: E402
from gguf_write import kv, letters_vocabulary, write_file  # noqa: E402

# picture, patch, d, heads, ff, layers, patches that make a row, width of the text
SIZES = {"a": (112, 14, 64, 4, 160, 3, 2, 128), "b": (224, 14, 72, 3, 172, 4, 4, 160),
         "full": (896, 14, 32, 2, 64, 2, 4, 128), "siglip": (896, 14, 1152, 16, 4304, 27, 4, 2560)}
# layers, d, heads, kv heads, head size, ff, window
TEXTS = {"a": (7, 128, 4, 2, 32, 384, 64), "b": (6, 160, 5, 1, 48, 416, 40), "full": (6, 128, 4, 1, 32, 256, 512)}
N_VOCAB = 2048
MARKERS = [(text, 3) for text in ("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>",
                                  "<image_soft_token>")]
TEMPLATE = """{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else 'user' }}
{% if m.content is string %}{{ m.content | trim }}{% else %}{% for part in m.content %}{% if part.type == 'image' -%}
<start_of_image>{% elif part.type == 'text' %}{{ part.text | trim }}{% endif %}{% endfor %}{% endif %}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
GAIN, ZERO = ("gain", 1.0, 0.2), ("gain", 0.0, 0.1)


def fitting(kind, cols):
    """What converters do with a width that no block divides."""
    return kind if cols % TYPES[kind][1] == 0 else "f16"


def keys_of(a):
    side, patch, d, heads, ff, layers, merge, out = SIZES[a.size]
    vision = "clip.vision."
    keys = [kv("general.architecture", "str", "clip"), kv("general.name", "str", f"random-gemma3-{a.type}"),
            kv("general.type", "str", "mmproj"),
            kv("general.file_type", "u32", {"f32": 0, "f16": 1, "q8_0": 7}[a.type]),
            kv("clip.has_vision_encoder", "bool", True), kv("clip.projector_type", "str", "gemma3")]
    keys += [kv(vision + name, "u32", value) for name, value in (
        ("image_size", side), ("patch_size", patch), ("embedding_length", d), ("feed_forward_length", ff),
        ("block_count", layers), ("attention.head_count", heads), ("projection_dim", out))]
    keys += [kv(vision + "attention.layer_norm_epsilon", "f32", 1e-6), kv(vision + "image_mean", "af32", [0.5] * 3),
             kv(vision + "image_std", "af32", [0.5] * 3), kv("clip.use_gelu", "bool", True)]
    return keys + ([] if merge == 4 else [kv(vision + "projector.scale_factor", "u32", merge)])


def tensors_of(a):
    """Each tensor's name, shape, type and what is drawn: a deviation, or a gain's mean and spread."""
    side, patch, d, _, ff, layers, _, out = SIZES[a.size]
    root = d ** -0.5
    tensors = [("mm.input_projection.weight", (d, out), "f16" if a.type == "q8_0" else a.type, root),
               ("mm.soft_emb_norm.weight", (d,), "f32", ("gain", 1.0, 0.3)),
               ("v.patch_embd.weight", (d, 3, patch, patch), "f32", 1.2 * (3 * patch * patch) ** -0.5),
               ("v.patch_embd.bias", (d,), "f32", ZERO),
               ("v.position_embd.weight", ((side // patch) ** 2, d), "f32", 0.7),
               ("v.post_ln.weight", (d,), "f32", GAIN), ("v.post_ln.bias", (d,), "f32", ZERO)]
    for i in range(layers):
        block = f"v.blk.{i}."
        for name in ("ln1", "ln2"):
            tensors += [(block + name + ".weight", (d,), "f32", GAIN), (block + name + ".bias", (d,), "f32", ZERO)]
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            tensors += [(block + name + ".weight", (d, d), fitting(a.type, d), 1.5 * root),
                        (block + name + ".bias", (d,), "f32", ZERO)]
        tensors += [(block + "ffn_up.weight", (ff, d), fitting(a.type, d), 1.3 * root),
                    (block + "ffn_up.bias", (ff,), "f32", ZERO),
                    (block + "ffn_down.weight", (d, ff), fitting(a.type, ff), 1.3 * ff ** -0.5),
                    (block + "ffn_down.bias", (d,), "f32", ZERO)]
    return tensors


def text_keys_of(a):
    layers, d, heads, kv_heads, head_dim, ff, window = TEXTS[a.size]
    keys = [kv("general.architecture", "str", "gemma3"), kv("general.name", "str", f"random-gemma3-text-{a.type}"),
            kv("general.file_type", "u32", {"f32": 0, "f16": 1, "q8_0": 7}[a.type])]
    keys += [kv("gemma3." + name, "u32", value) for name, value in (
        ("context_length", 8192), ("embedding_length", d), ("block_count", layers), ("feed_forward_length", ff),
        ("attention.head_count", heads), ("attention.head_count_kv", kv_heads), ("attention.key_length", head_dim),
        ("attention.value_length", head_dim), ("attention.sliding_window", window))]
    keys += [kv("gemma3.attention.layer_norm_rms_epsilon", "f32", 1e-6), kv("gemma3.rope.freq_base", "f32", 1e6)]
    if a.template:
        keys.append(kv("tokenizer.chat_template", "str", TEMPLATE))
    return keys + letters_vocabulary(N_VOCAB, MARKERS)


def text_tensors_of(a):
    layers, d, heads, kv_heads, head_dim, ff, _ = TEXTS[a.size]
    added = ("gain", 0.6, 0.1)
    tensors = [("token_embd.weight", (N_VOCAB, d), fitting(a.type, d), d ** -0.5),
               ("output_norm.weight", (d,), "f32", ("gain", 2.0, 0.3))]
    for i in range(layers):
        block = f"blk.{i}."
        tensors += [(block + name + ".weight", (n,), "f32", drawn) for name, n, drawn in (
            ("attn_norm", d, GAIN), ("ffn_norm", d, GAIN), ("post_attention_norm", d, added),
            ("post_ffw_norm", d, added), ("attn_q_norm", head_dim, ("gain", 1.3, 0.2)),
            ("attn_k_norm", head_dim, GAIN))]
        tensors += [(block + name + ".weight", (rows, cols), fitting(a.type, cols), cols ** -0.5)
                    for name, rows, cols in (
                        ("attn_q", heads * head_dim, d), ("attn_k", kv_heads * head_dim, d),
                        ("attn_v", kv_heads * head_dim, d), ("attn_output", d, heads * head_dim),
                        ("ffn_gate", ff, d), ("ffn_up", ff, d), ("ffn_down", d, ff))]
    return tensors


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--size", required=True, choices=SIZES)
    ap.add_argument("--text", action="store_true")
    ap.add_argument("--template", action="store_true", help="the text model has a chat template, with pictures")
    ap.add_argument("--type", default="f32", choices=("f32", "f16", "q8_0"))
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    if a.text and a.size not in TEXTS:
        ap.error(f"there is no text model of size {a.size}")
    rng = np.random.default_rng(a.seed)

    def write_tensor(f, _name, shape, kind, drawn):
        if isinstance(drawn, tuple):
            f.write((drawn[1] + drawn[2] * rng.standard_normal(shape, dtype=np.float32)).astype("<f4").tobytes())
        else:
            f.write(mkgguf.encode(rng, shape, kind, drawn))

    if a.text:
        write_file(a.out, text_keys_of(a), text_tensors_of(a), write_tensor)
    else:
        write_file(a.out, keys_of(a), tensors_of(a), write_tensor)


main()
