"""A BERT encoder with a head, in float64 numpy: what the product is held to where transformers has no golden file.

It shares no code with the product, and is itself held to transformers' scores of rerankers (tests/golden/rerank) by
whoever uses it. Weights are f32. Texts are words of the vocabulary's letters in lower case with a space between, which
need no normalization."""
import math

import numpy as np

from gguf_peek import Gguf

ERF = np.vectorize(math.erf, otypes=[np.float64])


def layer_norm(x, gain, bias, eps):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain + bias


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Bert:
    def __init__(self, path):
        head = Gguf(path)
        self.keys = head.kv
        self.pieces = {p.decode(): i for i, p in enumerate(head.kv["tokenizer.ggml.tokens"])}
        alignment = head.kv.get("general.alignment", 32)
        begin = (head.head_bytes + alignment - 1) // alignment * alignment
        self.w = {}
        for name, t in head.tensors.items():
            assert t["type"] == 0, "f32 is read"
            self.w[name] = np.fromfile(path, "<f4", math.prod(t["shape"]), offset=begin + t["offset"]).astype(
                np.float64).reshape(t["shape"][::-1])
        self.is_unigram = head.kv["tokenizer.ggml.model"] == b"t5"
        names = ("bos_token_id", "eos_token_id") if self.is_unigram else ("cls_token_id", "seperator_token_id")
        self.first, self.last = (head.kv["tokenizer.ggml." + n] for n in names)

    def _best_cut(self, word):
        """Unigram: the cut whose sum of scores is the largest."""
        best = [(0.0, [])] + [None] * len(word)
        for end in range(1, len(word) + 1):
            ways = [(best[at][0] + self.keys["tokenizer.ggml.scores"][self.pieces[word[at:end]]],
                     best[at][1] + [self.pieces[word[at:end]]])
                    for at in range(end) if best[at] and word[at:end] in self.pieces]
            best[end] = max(ways, key=lambda way: way[0]) if ways else None
        return best[len(word)][1]

    def _longest_first(self, word):
        """WordPiece: from the front, the longest piece that fits."""
        ids = []
        while word:
            n = next(n for n in range(len(word), 0, -1) if word[:n] in self.pieces)
            ids, word = ids + [self.pieces[word[:n]]], word[n:]
        return ids

    def encode(self, text):
        cut = self._best_cut if self.is_unigram else self._longest_first
        return [i for word in text.split() for i in cut("\u2581" + word)]

    def ids(self, text, second=None):
        """(ids, types)"""
        a = [self.first] + self.encode(text) + [self.last]
        if second is None:
            return a, [0] * len(a)
        a += [self.last] * self.is_unigram
        b = self.encode(second) + [self.last]
        has_types = len(self.w.get("token_types.weight", ())) > 1
        return a + b, [0] * len(a) + [int(has_types)] * len(b)

    def _linear(self, x, name):
        return x @ self.w[name + ".weight"].T + self.w[name + ".bias"]

    def _norm(self, x, name):
        return layer_norm(x, self.w[name + ".weight"], self.w[name + ".bias"],
                          self.keys["bert.attention.layer_norm_epsilon"])

    def rows(self, ids, types):
        w, n_heads = self.w, self.keys["bert.attention.head_count"]
        x = w["token_embd.weight"][ids] + w["position_embd.weight"][:len(ids)]
        if "token_types.weight" in w:
            x = x + w["token_types.weight"][types]
        x = self._norm(x, "token_embd_norm")
        for i in range(self.keys["bert.block_count"]):
            layer = f"blk.{i}."
            q, k, v = (self._linear(x, f"{layer}attn_{part}").reshape(len(ids), n_heads, -1).transpose(1, 0, 2)
                       for part in "qkv")
            a = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])) @ v
            x = self._norm(x + self._linear(a.transpose(1, 0, 2).reshape(len(ids), -1), layer + "attn_output"),
                           layer + "attn_output_norm")
            f = self._linear(x, layer + "ffn_up")
            f = f * (1 + ERF(f / math.sqrt(2))) / 2
            x = self._norm(x + self._linear(f, layer + "ffn_down"), layer + "layer_output_norm")
        return x

    def logits(self, text, second=None):
        """What the head makes of a text or a pair. DistilBERT has no types of tokens, and relu before its head."""
        v = self.rows(*self.ids(text, second))[0]
        if "cls.weight" in self.w:
            v = self._linear(v, "cls")
            v = np.tanh(v) if "token_types.weight" in self.w else np.maximum(v, 0)
        return self._linear(v, "cls.output")
