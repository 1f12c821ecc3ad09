#!/usr/bin/env python3
"""Write the golden files of random BERT models: what the makers' implementations say of a GGUF's own numbers.

usage: make-bert-goldens.py MODEL OUT [--texts FILE [--vectors N]]
FILE: a JSON array of texts, in place of those for golden files; N: only so many get vectors. Ids are those of
Hugging Face tokenizers, vectors those of transformers' BertModel in f64. Texts go one by one, so that none is padded.
Needs gguf, tokenizers, torch and transformers. A golden file is of a MODEL by tools/mkgguf_bert.py in f32.
"""
import json
import sys
import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertModel

TEXTS = ["", " ", "a", "the hot water", "Hello, WORLD!", "The  Tower\tof\nParis.", "q quick ~ q~q",
         "nested (words) [in] {marks}",
         "ünïcödé Åre ÀÉÎ straße İI ΑΣ", "e\u0301a\u0308 n\u0303 ﬁne ² ½…x",
         "москва — столица россии. МОСКВА", "日本の富士山は山で",
         "a\u200bb\u00a0c\u3000d\u2028e\u0007f\x0bg", "word" * 30,
         "x" * 100 + " " + "x" * 101, "[CLS] [SEP] <s> </s> [unk]",
         "\U0001f6b2 \ufffd \u0378 \ue000", "ＡＢＣ ａｂ", "1,234.5%", "한국어 조선", "ⅷ Ⅷ Ǆ ß",
         "the long day of the people " * 8, "there is no water in the house , but all of them came down"]


def keys_of(reader):
    return {name: field.contents() for name, field in reader.fields.items()}


def first_of(k):
    """Older converters call what begins a text otherwise."""
    return k.get("tokenizer.ggml.cls_token_id", k.get("tokenizer.ggml.bos_token_id"))


def tokenizer(k):
    tokens = k["tokenizer.ggml.tokens"]
    if k["tokenizer.ggml.model"] == "t5":
        # SentencePiece makes no control piece of text; here each gets a name that no text spells.
        named = [t if kind in (1, 4) else f"\0{i}" for i, (t, kind) in
                 enumerate(zip(tokens, k["tokenizer.ggml.token_type"]))]
        t = Tokenizer(models.Unigram(list(zip(named, map(float, k["tokenizer.ggml.scores"]))), 3))
        t.normalizer = normalizers.Precompiled(bytes(k["tokenizer.ggml.precompiled_charsmap"]))
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                                   pre_tokenizers.Metaspace("\u2581", "always")])
        return t, k["tokenizer.ggml.bos_token_id"], k["tokenizer.ggml.eos_token_id"]
    special = {first_of(k)} | {k["tokenizer.ggml." + s] for s in ("padding_token_id", "unknown_token_id",
                                                                  "seperator_token_id", "mask_token_id")}
    vocabulary = {text if i in special else text[1:] if text[0] == "\u2581" else "##" + text: i
                  for i, text in enumerate(tokens)}
    t = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return t, first_of(k), k["tokenizer.ggml.seperator_token_id"]


def model(k, tensors):
    names = {"token_embd": "embeddings.word_embeddings", "position_embd": "embeddings.position_embeddings",
             "token_embd_norm": "embeddings.LayerNorm", "attn_q": "attention.self.query",
             "attn_k": "attention.self.key", "attn_v": "attention.self.value", "attn_output": "attention.output.dense",
             "attn_output_norm": "attention.output.LayerNorm", "ffn_up": "intermediate.dense",
             "ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm"}
    config = BertConfig(vocab_size=len(tensors["token_embd.weight"]), hidden_size=k["bert.embedding_length"],
                        num_hidden_layers=k["bert.block_count"], num_attention_heads=k["bert.attention.head_count"],
                        intermediate_size=k["bert.feed_forward_length"],
                        max_position_embeddings=k["bert.context_length"], hidden_act="gelu",
                        layer_norm_eps=k["bert.attention.layer_norm_epsilon"],
                        type_vocab_size=max(1, len(tensors.get("token_types.weight", []))))
    bert = BertModel(config, add_pooling_layer=False).double().eval()
    state = {"embeddings.token_type_embeddings.weight": torch.zeros(1, config.hidden_size, dtype=torch.float64)}
    for name, values in tensors.items():
        *layer, what, kind = name.split(".")
        place = f"encoder.layer.{layer[1]}." if layer else ""
        to = "embeddings.token_type_embeddings" if what == "token_types" else names[what]
        state[f"{place}{to}.{kind}"] = torch.from_numpy(values)
    missing, unexpected = bert.load_state_dict(state, strict=False)
    assert not unexpected and all("position_ids" in m or "token_type_ids" in m for m in missing), (missing, unexpected)
    return bert


def main():
    reader, texts, n_vectors = gguf.GGUFReader(sys.argv[1]), TEXTS, sys.maxsize
    if "--texts" in sys.argv:
        with open(sys.argv[sys.argv.index("--texts") + 1], encoding="utf-8") as f:
            texts = json.load(f)
    if "--vectors" in sys.argv:
        n_vectors = int(sys.argv[sys.argv.index("--vectors") + 1])
    k = keys_of(reader)
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
    tok, first, last = tokenizer(k)
    bert, cases = model(k, tensors), []
    for text in texts:
        ids = [first] + tok.encode(text, add_special_tokens=False).ids + [last]
        case = {"text": text, "ids": ids}
        if len(ids) <= k["bert.context_length"] and len(cases) < n_vectors:
            with torch.no_grad():
                rows = bert(torch.tensor([ids])).last_hidden_state[0]
            v = rows.mean(0) if k["bert.pooling_type"] == 1 else rows[0]
            case["vector"] = [float(f"{x:.9g}") for x in v / v.norm()]
        cases.append(case)
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        f.write("{\"cases\": [\n" + ",\n".join(" " + json.dumps(c) for c in cases) + "\n]}\n")


if __name__ == "__main__":
    main()
