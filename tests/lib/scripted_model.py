"""Writes models that say what a test wants: GGUF files whose weights hold a script, for programs that are not the
test's own and so cannot be told what to expect.

Everything about such a model is real but for its knowledge: template, tokenizer, cache, grammar, sampling. It has one
block, and three heads look at three marks of the prompt:

- the mark of a tool's result. All heads also see the one BOS with the same score, so k results weigh k / (k + 1).
  That number says which turn it is;
- the mark of a list of tools, which says whether there is one;
- the end of a thought: a template that is told not to think writes an empty one.

The last token says where in a turn the model is: each piece of a script is a token of its own, with a dimension of its
own. A row of the output matrix adds a large number where the piece comes next, and a line over k / (k + 1). Lines that
touch a parabola are each the largest around their own point: so the piece of the right turn wins.

What a script wants to say may be forbidden by a schema. Then the next best piece is drawn: a text's `else_text`, else
what ends strings, objects and answers soonest.
"""
import os
import sys

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TREE, "tools"))
import numpy as np  # noqa: E402
from gguf_write import kv, vocabulary_keys, write_file  # noqa: E402
from gguf_peek import Gguf  # noqa: E402

HEADS, HEAD, FEED_FORWARD = 3, 64, 32
ROWS = HEADS * HEAD  # numbers in a hidden row
TURNED = 32  # of a head's numbers by RoPE: what is looked at lies behind these
BASE, RESULT, TOOLS, THOUGHT, IS_RESULT, IS_TOOLS, IS_THOUGHT, SEEN_RESULTS, SEEN_TOOLS, SEEN_THOUGHT, REST, \
    FIRST_STATE = range(12)
LOOKS = [("<tool_response>", IS_RESULT, RESULT, SEEN_RESULTS), ("<tools>", IS_TOOLS, TOOLS, SEEN_TOOLS),
         ("</think>", IS_THOUGHT, THOUGHT, SEEN_THOUGHT)]  # of each head: mark, key, value, where it goes
STATE, NORM = 8.0, 16.0  # a state's number in a row, and the length of all rows
SCORE = 40.0  # of a mark in a head; e^-40 times 100,000 rows is nothing
NEXT, LINE, LISTED, LATER = 1e5, 2e3, 1e4, 4e4  # a hundredth of NEXT is less than a third of LISTED
PIECE_BYTES = 40
EOS = "<|im_end|>"
MARKS = [("<|im_start|>", 3), (EOS, 3), ("<tool_call>", 4), ("</tool_call>", 4), ("<tool_response>", 4),
         ("</tool_response>", 4), ("<tools>", 4), ("</tools>", 4), ("<think>", 4), ("</think>", 4)]
SOON = [EOS, '"', "}", "]", ",", ":", "0", "t"]  # what ends a text bound by a schema, the best first


class Vocabulary:
    """Tale's pieces, so that English takes few tokens, then the marks and the pieces of scripts."""

    def __init__(self):
        tale = Gguf(os.path.join(TREE, "models", "tale.gguf")).kv
        self.pieces, self.types = list(tale["tokenizer.ggml.tokens"]), list(tale["tokenizer.ggml.token_type"])
        self.scores = list(tale["tokenizer.ggml.scores"])
        self.ids = {p: i for i, p in enumerate(self.pieces)}
        for text, kind in MARKS:
            self.add(text, kind)

    def add(self, text, kind=1):
        piece = text.replace(" ", "\u2581").encode() if kind == 1 else text.encode()
        if piece in self.ids:
            return None
        self.ids[piece] = len(self.pieces)
        self.pieces.append(piece)
        self.types.append(kind)
        self.scores.append(-float(len(self.pieces)))
        return self.ids[piece]

    def find(self, text):
        piece = text.replace(" ", "\u2581").encode()
        if piece not in self.ids and len(piece) == 1:
            piece = b"<0x%02X>" % piece[0]
        return self.ids[piece]


class Script:
    """States and what follows each: ids of tokens, with a weight; the heaviest that is allowed comes next."""

    def __init__(self):
        self.vocabulary = Vocabulary()
        self.states = {}  # of an id: its dimension
        self.follow = {}  # (dimension, id): weight
        self.turns = {}  # of an id: the point of its line, or None: where no tools are listed
        self.start = self.state(self.vocabulary.find("\n"))

    def state(self, token):
        return self.states.setdefault(token, FIRST_STATE + len(self.states))

    def mark(self, text):
        return self.vocabulary.find(text)

    def text(self, text):
        """Ids of new pieces that make this text, the first that are to be had from its beginning on."""
        out, data = [], text
        while data:
            size = min(PIECE_BYTES, len(data))
            token = None
            while size and (token := self.vocabulary.add(data[:size])) is None:
                size -= 1
            if token is None:
                raise ValueError(f"no new piece at the beginning of {data!r}")
            out.append(token)
            data = data[size:]
        return out

    def chain(self, states, tokens, weight=1.0):
        """After any of the states the first token, and so on; the state of the last one."""
        for token in tokens:
            for state in states:
                self.follow[state, token] = max(weight, self.follow.get((state, token), 0.0))
            states, weight = [self.state(token)], 1.0
        return states[0]

    def call_turn(self, k, text, name, arguments):
        """After k results of tools: a text, then a call. arguments: JSON as it is to be written."""
        text, call = self.text(text + "\n"), self.text(f'\n{{"name": "{name}", "arguments": {arguments}}}\n')
        self.chain([self.start], text + [self.mark("<tool_call>")])
        end = self.chain([self.state(self.mark("<tool_call>"))], call + [self.mark("</tool_call>")])
        self.chain([end], [self.mark(EOS)])
        for token in (text[0], call[0]):
            self.turns[token] = k

    def last_turn(self, k, text):
        """After k results, or more, a text that ends the answer."""
        tokens = self.text(text)
        self.chain([self.start], tokens + [self.mark(EOS)])
        self.turns[tokens[0]] = k

    def plain_turn(self, thought, text, else_text="{}"):
        """Where no tools are listed: a thought where that is allowed, then one of the texts."""
        behind = [self.start]
        if thought:
            opens = self.mark("<think>")
            tokens = [opens] + self.text(f"\n{thought}\n") + [self.mark("</think>")] + self.text("\n\n")
            behind.append(self.chain([self.start], tokens))
            self.turns[opens] = None
        for what, weight in ((text, 0.99), (else_text, 0.98)):
            tokens = self.text(what)
            self.chain(behind, tokens + [self.mark(EOS)], weight)
            self.turns[tokens[0]] = None

    # -- the file

    def embeddings(self):
        e = np.zeros((len(self.vocabulary.pieces), ROWS), np.float32)
        e[:, BASE] = STATE
        for token, state in self.states.items():
            e[token, state] = STATE
        for mark, key, value, _ in LOOKS:
            e[self.mark(mark), [key, value]] = STATE
            e[self.vocabulary.find("<bos>"), key] = STATE
        e[:, REST] = np.sqrt(NORM ** 2 - (e ** 2).sum(1))
        return e

    def outputs(self):
        w = np.zeros((len(self.vocabulary.pieces), ROWS), np.float32)
        w[:, BASE] = -LATER
        for i, text in enumerate(SOON):
            w[self.mark(text) if text in dict(MARKS) else self.vocabulary.find(text), BASE] = -LATER / 2 - 100 * i
        for (state, token), weight in self.follow.items():
            w[token, state] = weight * NEXT
            w[token, BASE] = min(w[token, BASE], -LATER)
        for token, k in self.turns.items():
            at = (k or 0) / ((k or 0) + 1)
            w[token, SEEN_RESULTS] += 0.0 if k is None else 2 * at * LINE
            w[token, BASE] -= at * at * LINE - (LISTED / 3 if k is None else 0.0)
            w[token, SEEN_TOOLS] += 0.0 if k is None else LISTED
        w[self.mark("<think>"), SEEN_THOUGHT] = -2 * NEXT
        return w * (NORM / np.sqrt(ROWS)) / STATE  # what is seen has the size of STATE, and rows come at length sqrt

    def tensors(self):
        unit = NORM / np.sqrt(ROWS)  # a normed row times this is the row
        q, k, v, o = (np.zeros((ROWS, ROWS), np.float32) for _ in range(4))
        for head, (_, key, value, to) in enumerate(LOOKS):
            row = head * HEAD + TURNED + 8
            q[row, BASE] = k[row, key] = np.sqrt(SCORE * np.sqrt(HEAD)) / STATE * unit
            v[head * HEAD, value] = unit
            o[to, head * HEAD] = 1.0
        ones, nothing = np.ones(ROWS, np.float32), np.zeros((FEED_FORWARD, ROWS), np.float32)
        named = {"token_embd": self.embeddings(), "output_norm": ones, "output": self.outputs(),
                 "blk.0.attn_norm": ones, "blk.0.attn_q": q, "blk.0.attn_k": k, "blk.0.attn_v": v,
                 "blk.0.attn_output": o, "blk.0.ffn_norm": ones, "blk.0.ffn_gate": nothing, "blk.0.ffn_up": nothing,
                 "blk.0.ffn_down": nothing.T}
        return [(name + ".weight", a.shape, "f32", a) for name, a in named.items()]

    def write(self, path, template, context=131072):
        """A file with this chat template, whose form of calls is Qwen 3's."""
        if FIRST_STATE + len(self.states) > ROWS:
            raise ValueError(f"the script has {len(self.states)} states")
        v = self.vocabulary
        keys = [kv("general.architecture", "str", "llama"), kv("general.name", "str", "scripted")]
        for name, kind, value in (("block_count", "u32", 1), ("context_length", "u32", context),
                                  ("embedding_length", "u32", ROWS), ("feed_forward_length", "u32", FEED_FORWARD),
                                  ("attention.head_count", "u32", HEADS), ("attention.head_count_kv", "u32", HEADS),
                                  ("attention.key_length", "u32", HEAD), ("attention.value_length", "u32", HEAD),
                                  ("rope.dimension_count", "u32", TURNED), ("rope.freq_base", "f32", 1e4),
                                  ("attention.layer_norm_rms_epsilon", "f32", 1e-6),
                                  ("vocab_size", "u32", len(v.pieces))):
            keys.append(kv("llama." + name, kind, value))
        keys += [kv("tokenizer.ggml.eos_token_id", "u32", self.mark(EOS)) if b"eos_token_id" in key else key
                 for key in vocabulary_keys(v.pieces, v.scores, v.types)]
        keys.append(kv("tokenizer.chat_template", "str", template))
        write_file(path, keys, self.tensors(), lambda f, name, shape, kind, a: f.write(a.astype("<f4").tobytes()))
