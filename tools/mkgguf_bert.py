#!/usr/bin/env python3
"""Write a small random-weight GGUF of a BERT kind, with the keys and tensors of llama.cpp's converter.

usage: mkgguf_bert.py OUT [--arch bert] --size SIZE [--type T] [--seed N]
mean and cls have a WordPiece tokenizer, and are pooled so; unigram is XLM-RoBERTa's kind, with a small map by which
text is normalized. The others are rerankers: rank and bare-rank have a WordPiece tokenizer and two types of tokens, as
ms-marco's have, and bare-rank no matrix before its head; xlm-rank is as bge-reranker's. The same seed gives the
weights for which the golden files in tests/golden/archs and rerank were computed. What ends in classes has a head of
several labels: classes is BERT's with a pooler, xlm-classes XLM-RoBERTa's, distil-classes DistilBERT's (no types of
tokens), many-classes BERT's without a pooler and without names.
Needs numpy.
"""
import argparse
import struct
import sys
import numpy as np
sys.dont_write_bytecode = True  # nothing of a run stays in the tree
from gguf_types import TYPES  # noqa: E402
from gguf_write import kv, kv_str  # noqa: E402
from mkgguf_gemma import write  # noqa: E402

# layers, d, heads, ff, positions, types of tokens, pooling
SIZES = {"mean": (3, 64, 4, 160, 512, 2, 1), "cls": (2, 96, 3, 128, 64, 0, 2), "unigram": (3, 64, 2, 96, 256, 1, 1),
         "rank": (3, 64, 4, 160, 128, 2, None), "bare-rank": (2, 96, 3, 128, 64, 2, None),
         "xlm-rank": (3, 64, 2, 96, 256, 1, 4), "classes": (3, 64, 4, 160, 128, 2, None),
         "xlm-classes": (3, 64, 2, 96, 256, 1, None), "distil-classes": (2, 96, 3, 128, 64, 0, None),
         "many-classes": (2, 64, 2, 96, 64, 2, None)}
# names of a head's labels, or how many it has without names
LABELS = {"rank": ["LABEL_0"], "bare-rank": ["LABEL_0"], "xlm-rank": ["LABEL_0"],
          "classes": ["sadness", "joy", "\u00e9merveillement \"<&>\"", "anger", "fear"],
          "xlm-classes": ["contradiction", "neutral", "entailment"], "distil-classes": ["NEGATIVE", "POSITIVE"],
          "many-classes": 40}
WORDS = ("the of and to in a is that it was for on are with as his they be at one have this from or had by "
         "hot but some what there we can out other were all your when up use word how said an each she "
         "which do their time if will way about many then them would write like so these her long make "
         "thing see him two has look more day could go come did my sound no most number who over know "
         "water than call first people may down side been now find head tower paris plant light donau "
         "москва столица россии").split()
ENDINGS = ("s", "ed", "ing", "er", "ly", "tion", "est", "e", "n", "al", "ment", "ness")
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789абвгдежзийклмнопрстуфхцчшщыьэюяßøæ日本山富士のはで"
MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~—。、«»"


def wordpiece():
    """Pieces as the converter writes them: U+2581 begins a word, and what goes on with one has no mark."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = dict.fromkeys("\u2581" + w for w in [*CHARACTERS, *MARKS, *WORDS])
    pieces.update(dict.fromkeys([*CHARACTERS, *ENDINGS, *(w[1:] for w in WORDS if len(w) > 3)]))
    texts = special + [p for p in pieces if p != "\u2581q"]  # one letter that no word begins with
    return texts, [kv("tokenizer.ggml.model", "str", "bert"), kv("tokenizer.ggml.pre", "str", "default"),
                   kv("tokenizer.ggml.tokens", "astr", texts),
                   kv("tokenizer.ggml.token_type", "ai32", [3] * len(special) + [1] * (len(texts) - len(special))),
                   kv("tokenizer.ggml.token_type_count", "u32", 2), kv("tokenizer.ggml.unknown_token_id", "u32", 1),
                   kv("tokenizer.ggml.seperator_token_id", "u32", 3), kv("tokenizer.ggml.padding_token_id", "u32", 0),
                   kv("tokenizer.ggml.cls_token_id", "u32", 2), kv("tokenizer.ggml.mask_token_id", "u32", 4)]


def charsmap(replacements):
    """SentencePiece's map: the bytes of a double array in the form of darts-clone, the array, and the new texts."""
    texts, at, tree = b"", {}, {}
    for old, new in replacements.items():
        at[old] = len(texts)
        texts += new.encode() + b"\0"
        node = tree
        for byte in old.encode():
            node = node.setdefault(byte, {})
        node[0] = at[old]
    units = {0: 0}

    def place(node, index):
        base = next(b for b in range(1, 1 << 20) if all(b ^ label not in units for label in [0, *node]))
        offset = index ^ base
        units[index] |= offset << 10 | (256 if 0 in node else 0)
        for label in node:
            units[base ^ label] = node[0] | 1 << 31 if label == 0 else label
        for label, child in node.items():
            if label:
                place(child, base ^ label)

    place(tree, 0)
    size = (max(units) + 256) // 256 * 256
    array = struct.pack(f"<{size}I", *(units.get(i, 0) for i in range(size)))
    return struct.pack("<I", len(array)) + array + texts


def unigram():
    spaces = {c: " " for c in "\t\n\r\x0b\u00a0\u2028\u3000"}
    wide = {chr(0xff21 + i): chr(65 + i) for i in range(26)} | {chr(0xff41 + i): chr(97 + i) for i in range(26)}
    others = {"ﬁ": "fi", "²": "2", "½": "1\u20442", "…": "...", "e\u0301": "é", "a\u0308": "ä",
              "\u200b": " ", "\u0007": ""}
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = dict.fromkeys(["\u2581", *CHARACTERS, *MARKS, *"ABCDEPéä", *("\u2581" + w for w in WORDS), *ENDINGS])
    pieces.update(dict.fromkeys(w[:k] for w in WORDS for k in (2, 3) if len(w) > k))
    texts = special + [p for p in pieces if p not in ("q", "~")]
    # As many bits as released scores have; that two ways of cutting have the same sum is unlikely.
    scores = np.random.default_rng(7).uniform(-12, -3, len(texts)).astype(np.float32)
    scores[:4] = 0
    data = charsmap(spaces | wide | others)
    return texts, [kv("tokenizer.ggml.model", "str", "t5"), kv("tokenizer.ggml.pre", "str", "default"),
                   kv("tokenizer.ggml.tokens", "astr", texts), kv("tokenizer.ggml.scores", "af32", scores),
                   kv("tokenizer.ggml.token_type", "ai32", [3, 3, 3, 2] + [1] * (len(texts) - 4)),
                   kv("tokenizer.ggml.add_space_prefix", "bool", True),
                   kv("tokenizer.ggml.token_type_count", "u32", 1),
                   kv("tokenizer.ggml.remove_extra_whitespaces", "bool", True),
                   kv_str("tokenizer.ggml.precompiled_charsmap") + struct.pack("<IIQ", 9, 0, len(data)) + data,
                   kv("tokenizer.ggml.bos_token_id", "u32", 0), kv("tokenizer.ggml.eos_token_id", "u32", 2),
                   kv("tokenizer.ggml.unknown_token_id", "u32", 3), kv("tokenizer.ggml.padding_token_id", "u32", 1),
                   kv("tokenizer.ggml.add_bos_token", "bool", True), kv("tokenizer.ggml.add_eos_token", "bool", True)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--arch", default="bert", choices=("bert",))
    ap.add_argument("--size", default="mean", choices=SIZES)
    ap.add_argument("--type", default="f32", choices=TYPES)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    n_layers, d, heads, ff, n_ctx, n_types, pooling = SIZES[a.size]
    texts, pieces = unigram() if a.size in ("unigram", "xlm-rank", "xlm-classes") else wordpiece()
    keys = [kv("general.architecture", "str", "bert"), kv("general.name", "str", f"random-bert-{a.size}-{a.type}"),
            kv("bert.context_length", "u32", n_ctx), kv("bert.embedding_length", "u32", d),
            kv("bert.block_count", "u32", n_layers), kv("bert.feed_forward_length", "u32", ff),
            kv("bert.attention.head_count", "u32", heads), kv("bert.attention.layer_norm_epsilon", "f32", 1e-12),
            kv("bert.attention.causal", "bool", False)]
    if pooling is not None:  # converters write none for rerankers, unless told
        keys.append(kv("bert.pooling_type", "u32", pooling))
    labels = LABELS.get(a.size)
    if isinstance(labels, list):
        keys.append(kv("bert.classifier.output_labels", "astr", labels))
    t, s, gain, bias = a.type, 1.5 * d ** -0.5, ("gain", 1.0, 0.2), ("bias", 0.0, 0.2)
    tensors = [("token_embd.weight", (len(texts), d), t, 1.0),
               ("position_embd.weight", (n_ctx, d), "f32", ("p", 0, 0.7)),
               ("token_embd_norm.weight", (d,), "f32", gain), ("token_embd_norm.bias", (d,), "f32", bias)]
    if n_types:
        tensors.append(("token_types.weight", (n_types, d), "f32", ("p", 0, 0.5)))
    for i in range(n_layers):
        for name, rows, cols in (("attn_q", d, d), ("attn_k", d, d), ("attn_v", d, d), ("attn_output", d, d),
                                 ("ffn_up", ff, d), ("ffn_down", d, ff)):
            tensors += [(f"blk.{i}.{name}.weight", (rows, cols), t, s), (f"blk.{i}.{name}.bias", (rows,), "f32", bias)]
        for name in ("attn_output_norm", "layer_output_norm"):
            tensors += [(f"blk.{i}.{name}.weight", (d,), "f32", gain), (f"blk.{i}.{name}.bias", (d,), "f32", bias)]
    if labels:
        n = len(labels) if isinstance(labels, list) else labels
        if a.size not in ("bare-rank", "many-classes"):
            tensors += [("cls.weight", (d, d), t, s), ("cls.bias", (d,), "f32", bias)]
        tensors += [("cls.output.weight", (n, d), "f32" if n == 1 else t, 0.3 * d ** -0.5 if n == 1 else s),
                    ("cls.output.bias", (n,), "f32", bias)]
    write(a.out, keys + pieces, tensors, np.random.default_rng(a.seed), None)
    print(a.out, "layers", n_layers, "d", d, "vocab", len(texts))


if __name__ == "__main__":
    main()
