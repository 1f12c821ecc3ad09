"""One model of several families as each converter writes it: the same ids of a text, the same ends, the same tokens.

llama.cpp's form is the first of each. Files on Hugging Face are of that converter, whoever put them there. Ollama's
converter has its own names of keys, tensors and types of pieces, which changed more than once."""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

from gguf_edit import GgufEdit  # noqa: E402

NORMAL, CONTROL, ADDED, UNUSED, BYTE = 1, 3, 4, 5, 6
MXFP4, MXFP4_PAIRS, BF16 = 39, 4, 30
TEXTS = ["Once upon a time", " a space in front", "  two  spaces\n\n\nthree lines\n", "\ta tab\t\tand two", "",
         "na\u00efve caf\u00e9 \U0001f98a\U0001f98a \u4f60\u597d", "12345 + 678 = 13023", "it's <b>bold</b>, isn't it?",
         "<|im_start|>user\nhi<|im_end|>\n", "<start_of_turn>user\nhi<end_of_turn>\n", "<|turn>user\nhi<turn|>\n",
         "<|start|>user<|message|>hi<|end|>", "[PAD3] <unused5> <think>"]


def byte_character(byte):
    """GPT-2's character of a byte."""
    seen = [b for b in range(256) if 33 <= b <= 126 or (b >= 161 and b != 173)]
    return chr(byte) if byte in seen else chr(256 + [b for b in range(256) if b not in seen].index(byte))


class Vocabulary:
    """A small vocabulary with the original's merges, from tests/golden/tokens."""

    def __init__(self, name):
        self.pieces, self.types, self.merges, specials = [], [], [], []
        with open(os.path.join(TREE, "tests", "golden", "tokens", name + ".tokens"), encoding="utf-8") as f:
            for line in f:
                word, _, rest = line.rstrip("\n").partition(" ")
                if word == "merge":
                    self.merges.append(rest)
                elif word in ("piece", "special"):
                    kind, _, text = rest.partition(" ")
                    (specials if word == "special" else self.pieces).append(text)
                    if word == "piece":
                        self.types.append(int(kind))
                    else:
                        specials[-1] = (text, int(kind))
        if not self.pieces:
            self.pieces = [byte_character(b) for b in range(256)] + [m.replace(" ", "") for m in self.merges]
            self.types = [NORMAL] * len(self.pieces)
            for text, kind in specials:
                self.add(text, kind)
            self.first_padding = len(self.pieces)
            for i in range(-len(self.pieces) % 64 + 64):
                self.add(f"[PAD{i}]", UNUSED)

    def add(self, text, kind):
        self.pieces.append(text)
        self.types.append(kind)

    def id(self, text):
        return self.pieces.index(text)

    def write(self, gguf, model, pre, types=None, more=()):
        """more: pieces behind the last one, for which the embedding has no rows."""
        pieces, types = self.pieces + [text for text, _ in more], (types or self.types) + [kind for _, kind in more]
        gguf.drop("tokenizer.ggml.scores").set("tokenizer.ggml.model", "str", model)
        gguf.set("tokenizer.ggml.tokens", "astr", pieces).set("tokenizer.ggml.token_type", "ai32", types)
        if pre:
            gguf.set("tokenizer.ggml.pre", "str", pre)
        return gguf.set("tokenizer.ggml.merges", "astr", self.merges)

    def write_of_ollama(self, gguf, model, pre, types, ends):
        """Scores are there and only count, and several ends are named."""
        self.write(gguf, model, pre, types)
        gguf.set("tokenizer.ggml.scores", "af32", [float(i) for i in range(len(self.pieces))])
        return gguf.set("tokenizer.ggml.eos_token_ids", "ai32", ends)


def ends_of(d, model, ids, candidates):
    """Those pieces with which an answer ends where they are the likeliest."""
    found = []
    for piece in candidates:
        r = d.generate(model=model, ids=ids, n=2, ignore_end=False, logit_bias=f"{piece}:100")
        found += [piece] if r.reason == "DONE_STOP" else []
    return found


def same_in_all_forms(source, forms, ends, not_ends):
    """forms: {name: function that edits the file}, llama.cpp's first. ends, not_ends: special pieces of that one."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, change in forms.items():
            gguf = GgufEdit(source)
            change(gguf)
            paths.append(gguf.write(os.path.join(folder, name + ".gguf")))
        with Daemon(models=paths) as d:
            first, *others = forms
            prompt = d.tokenize(TEXTS[0], model=first)
            tokens = d.generate(model=first, ids=prompt, n=24)
            equal(ends_of(d, first, prompt, ends + not_ends), ends, f"ends of {first}")
            for name in others:
                for special in (False, True):
                    for text in TEXTS:
                        equal(d.tokenize(text, model=name, special=special),
                              d.tokenize(text, model=first, special=special), f"{name}: ids of {text!r}, {special}")
                equal(ends_of(d, name, prompt, ends + not_ends), ends, f"ends of {name}")
                got = d.generate(model=name, ids=prompt, n=24)
                same_ids(got.ids, tokens.ids, name)
                equal(got.logprobs, tokens.logprobs, f"{name}: log-probabilities")


# ---- Gemma 3 ----

def gemma3_of_ollama(gguf):
    """As it converts the models that only read: added pieces are ordinary ones with the score 0, and one piece more
    than the embedding has rows."""
    tokens, types = gguf.strings("tokenizer.ggml.tokens"), gguf.numbers("tokenizer.ggml.token_type")
    scores = gguf.numbers("tokenizer.ggml.scores")
    scores = [0.0 if kind == ADDED else score for kind, score in zip(types, scores)]
    gguf.set("tokenizer.ggml.tokens", "astr", tokens + ["<image_soft_token>"])
    gguf.set("tokenizer.ggml.token_type", "ai32", [NORMAL if kind == ADDED else kind for kind in types] + [ADDED])
    gguf.set("tokenizer.ggml.scores", "af32", scores + [-1000.0])
    gguf.set("tokenizer.ggml.eos_token_ids", "ai32", [1, tokens.index("<end_of_turn>")])
    gguf.set("gemma3.rope.local.freq_base", "f32", 10000.0).drop("gemma3.rope.freq_base_swa")
    gguf.set("tokenizer.ggml.add_padding_token", "bool", False)
    return gguf.drop("tokenizer.ggml.add_space_prefix", "tokenizer.ggml.eot_token_id")


def gemma3_that_sees(gguf):
    """As it converts the models that see: no epsilon, and the tower in the same file."""
    gemma3_of_ollama(gguf).drop("gemma3.attention.layer_norm_rms_epsilon", "gemma3.rope.local.freq_base")
    gguf.set("gemma3.vision.block_count", "u32", 1).set("gemma3.mm.tokens_per_image", "u32", 256)
    return gguf.put("v.blk.0.attn_q.weight", (4, 4), 0, bytes(64))


@test
def gemma3():
    tokens = GgufEdit(TALE).strings("tokenizer.ggml.tokens")
    same_in_all_forms(TALE, {"llama-cpp": lambda g: g, "ollama": gemma3_of_ollama, "ollama-sees": gemma3_that_sees},
                      [1, tokens.index("<end_of_turn>")], [tokens.index("<start_of_turn>")])


@test
def gemma3n():
    """Of Ollama: pieces for pictures and sound, with rows in one of the two embeddings alone."""
    source = make_model("gen", "q8_0", arch="gemma3n", seed=1, layers=10)

    def of_ollama(g):
        more = 64
        (cols, rows), kind, data = g.take("token_embd.weight")
        g.put("token_embd.weight", (cols, rows + more), kind, data + data[:more * len(data) // rows])
        for key, form, value in (("tokens", "astr", "<sound>"), ("token_type", "ai32", CONTROL),
                                 ("scores", "af32", 0.0)):
            old = (g.strings if form == "astr" else g.numbers)("tokenizer.ggml." + key)
            g.set("tokenizer.ggml." + key, form, old + [value] * more)
        return g.drop("tokenizer.ggml.add_space_prefix")

    def of_llama_cpp(g):
        return g.set("tokenizer.ggml.add_space_prefix", "bool", False)

    same_in_all_forms(source, {"llama-cpp": of_llama_cpp, "ollama": of_ollama}, [1], [])


# ---- Gemma 4 ----

@test
def gemma4():
    v = Vocabulary("gemma4")
    for marker in ("<|turn>", "<turn|>", "<|channel>"):
        v.add(marker, ADDED)
    ends, others = [v.id("<eos>"), v.id("<turn|>")], [v.id("<|turn>"), v.id("<|channel>")]
    source = make_model("m", "q8_0", arch="gemma4", seed=1, vocab=len(v.pieces))

    def of_llama_cpp(g):
        return v.write(g, "gemma4", None)

    def of_ollama(g):
        types = [NORMAL if kind == ADDED else kind for kind in v.types]
        v.write_of_ollama(g, "llama", "gemma4", types, ends)
        return g.put("a.blk.0.ln1.weight", (4,), 0, bytes(16)).put("model.vision_tower.std_bias", (4,), 0, bytes(16))

    def of_ollamas_library(g):
        """The experts' gate and up apart, and another name of their scales."""
        of_ollama(g)
        for i in range(g.number("gemma4.block_count")):
            dims, kind, data = g.take(f"blk.{i}.ffn_gate_up_exps.weight")
            half = (dims[0], dims[1] // 2, dims[2])
            size = len(data) // dims[2] // 2
            for n, name in enumerate(("gate", "up")):
                g.put(f"blk.{i}.ffn_{name}_exps.weight", half, kind,
                      b"".join(data[(2 * e + n) * size:(2 * e + n + 1) * size] for e in range(dims[2])))
        return g.rename_tensors("ffn_down_exps.scale", "ffn_gate_inp.per_expert_scale")

    same_in_all_forms(source, {"llama-cpp": of_llama_cpp, "ollama": of_ollama, "ollama-library": of_ollamas_library},
                      ends, others)


# ---- gpt-oss ----

def in_pairs(data):
    """MXFP4 as OpenAI's files have it, and Ollama's first ones: neighbours share a byte."""
    out = bytearray(data)
    for at in range(0, len(data), 17):
        block = data[at + 1:at + 17]
        values = [b & 15 for b in block] + [b >> 4 for b in block]
        out[at + 1:at + 17] = bytes(values[2 * i] | values[2 * i + 1] << 4 for i in range(16))
    return bytes(out)


@test
def gpt_oss():
    v = Vocabulary("gpt-4o")
    ends, others = [v.id("<|return|>"), v.id("<|call|>"), v.id("<|endoftext|>")], [v.id("<|end|>"), v.id("<|start|>")]
    source = make_model("dev", "mxfp4", arch="gpt-oss", seed=1, layers=2, vocab=len(v.pieces))
    filled = [ADDED if kind == UNUSED else kind for kind in v.types]

    def of_llama_cpp(g):
        v.write(g, "gpt2", "gpt-4o").set("tokenizer.ggml.eos_token_id", "u32", ends[0])
        return g.set("tokenizer.ggml.bos_token_id", "u32", v.id("<|startoftext|>"))

    def of_ollama(g):
        """Of what Hugging Face has: today's names are llama.cpp's."""
        of_llama_cpp(g)
        v.write_of_ollama(g, "gpt2", "gpt-4o", filled, [v.id("<|endoftext|>"), *ends])
        return g.set("tokenizer.ggml.eos_token_id", "u32", v.id("<|endoftext|>"))

    def join(g, in_turn, experts=True):
        for i in range(g.number("gpt-oss.block_count")):
            for end in ("weight", "bias"):
                g.join(f"blk.{i}.attn_qkv.{end}", [f"blk.{i}.attn_{n}.{end}" for n in "qkv"])
                if experts:
                    g.join(f"blk.{i}.ffn_gate_up_exps.{end}", [f"blk.{i}.ffn_{n}_exps.{end}" for n in ("gate", "up")],
                           in_turn)
        return g

    def of_openai_by_ollama(g):
        """Of OpenAI's own files: queries, keys and values are one."""
        return join(of_ollama(g), False, experts=False)

    def of_llama_cpp_fused(g):
        return join(of_llama_cpp(g), False)

    def old_names(g):
        of_ollama(g).drop("gpt-oss.rope.scaling.type", "gpt-oss.rope.scaling.yarn_beta_fast",
                          "gpt-oss.rope.scaling.yarn_beta_slow", "gpt-oss.expert_feed_forward_length")
        g.rename_keys("gpt-oss.", "gptoss.").set("general.architecture", "str", "gptoss")
        g.set("tokenizer.ggml.pre", "str", "default")
        g.rename_tensors("attn_output.", "attn_out.").rename_tensors("attn_sinks.weight", "attn_sinks")
        return g.rename_tensors("post_attention_norm", "ffn_norm")

    def of_ollama_in_autumn(g):
        """2025, October on: architecture gptoss."""
        return old_names(g)

    def of_ollama_in_one_piece(g):
        """2025, end of August."""
        return old_names(join(g, True))

    def of_ollama_at_first(g):
        """2025, August 5: MXFP4 has another number and another order."""
        of_ollama_in_one_piece(g)
        for name in [name for name, _ in g.tensors if "_exps.weight" in name]:
            dims, kind, data = g.take(name)
            equal(kind, MXFP4, name)
            g.put(name, dims, MXFP4_PAIRS, in_pairs(data))
        return g

    same_in_all_forms(source, {f.__name__: f for f in (
        of_llama_cpp, of_llama_cpp_fused, of_ollama, of_openai_by_ollama, of_ollama_in_autumn, of_ollama_in_one_piece,
        of_ollama_at_first)}, ends, others)


# ---- Qwen ----

@test
def qwen():
    v = Vocabulary("qwen2")
    ends, others = [v.id("<|im_end|>"), v.id("<|endoftext|>")], [v.id("<|im_start|>"), v.id("<think>")]
    source = make_model("dev", "q8_0", arch="qwen2", seed=1, layers=2, vocab=len(v.pieces))

    def of_llama_cpp(g):
        v.write(g, "gpt2", "qwen2").set("tokenizer.ggml.eos_token_id", "u32", ends[0])
        return g.set("tokenizer.ggml.add_bos_token", "bool", False).drop("tokenizer.ggml.bos_token_id")

    def of_llama_cpp_fused(g):
        of_llama_cpp(g)
        for i in range(g.number("qwen2.block_count")):
            for end in ("weight", "bias"):
                g.join(f"blk.{i}.attn_qkv.{end}", [f"blk.{i}.attn_{n}.{end}" for n in "qkv"])

    def of_ollama(g):
        of_llama_cpp(g)
        return v.write_of_ollama(g, "gpt2", "qwen2", [ADDED if kind == UNUSED else kind for kind in v.types], ends)

    same_in_all_forms(source, {f.__name__: f for f in (of_llama_cpp, of_llama_cpp_fused, of_ollama)}, ends, others)


@test
def qwen_with_experts():
    """Gate and up as one, and what two converters call weights that are not made to have the sum 1."""
    source = make_model("dev", "q8_0", arch="qwen3moe", seed=1, layers=2)

    def fused(g):
        for i in range(g.number("qwen3moe.block_count")):
            g.join(f"blk.{i}.ffn_gate_up_exps.weight", [f"blk.{i}.ffn_{n}_exps.weight" for n in ("gate", "up")])
            g.join(f"blk.{i}.attn_qkv.weight", [f"blk.{i}.attn_{n}.weight" for n in "qkv"])
        return g

    def of_ollama(g):
        """The width of an expert follows from that of a dense FFN."""
        g.set("qwen3moe.feed_forward_length", "u32", 8 * g.number("qwen3moe.expert_feed_forward_length"))
        return g.drop("qwen3moe.expert_feed_forward_length").set("qwen3moe.norm_top_k_prob", "bool", True)

    forms = {"plain": lambda g: g, "fused": fused, "ollama": of_ollama,
             "raw": lambda g: g.set("qwen3moe.expert_weights_norm", "bool", False),
             "ollama-raw": lambda g: of_ollama(g).set("qwen3moe.norm_top_k_prob", "bool", False)}
    with tempfile.TemporaryDirectory() as folder:
        paths = [change(GgufEdit(source)).write(os.path.join(folder, name + ".gguf")) for name, change in forms.items()]
        sigmoid = GgufEdit(source).set("qwen3moe.expert_gating_func", "u32", 2)
        with Daemon(models=[*paths, sigmoid.write(os.path.join(folder, "sigmoid.gguf"))]) as d:
            logprobs = {name: d.generate(model=name, ids=[2, 300, 301, 302], n=16).logprobs for name in forms}
            equal((logprobs["fused"], logprobs["ollama"]), (logprobs["plain"],) * 2, "of the same model")
            equal(logprobs["ollama-raw"], logprobs["raw"], "by either name of the key")
            check(logprobs["raw"] != logprobs["plain"], "that the key is followed")
            said = d.cli("generate", "-m", "sigmoid", "-n", "2", "Once", check_exit=1).stderr.decode()
            check("by function 2, a sigmoid, only softmax is supported" in said, "the refusal", said)


@test
def lfm2_with_experts():
    """Gate and up as one. Without the bias of the choice, or where another router has one, the tensor is named."""
    source = make_model("dev", "q8_0", arch="lfm2moe", seed=1)
    other = GgufEdit(make_model("dev", "q8_0", arch="qwen3moe", seed=1, layers=2))

    def fused(g):
        for i in range(g.number("lfm2moe.leading_dense_block_count"), g.number("lfm2moe.block_count")):
            g.join(f"blk.{i}.ffn_gate_up_exps.weight", [f"blk.{i}.ffn_{n}_exps.weight" for n in ("gate", "up")])
        return g

    unbiased, fused_one = GgufEdit(source), fused(GgufEdit(source))
    bias = unbiased.take("blk.3.exp_probs_b.bias")
    wrong = {"unbiased": (unbiased, "tensor blk.3.exp_probs_b.bias is missing"),
             "biased": (other.put("blk.1.exp_probs_b.bias", *bias), "tensor blk.1.exp_probs_b.bias is not part of")}
    with tempfile.TemporaryDirectory() as folder:
        paths = [g.write(os.path.join(folder, name + ".gguf")) for name, g in
                 (("plain", GgufEdit(source)), ("fused", fused_one), *((name, g) for name, (g, _) in wrong.items()))]
        with Daemon(models=paths) as d:
            plain, one = (d.generate(model=name, ids=[2, 300, 301, 302], n=16) for name in ("plain", "fused"))
            equal((one.ids, one.logprobs), (plain.ids, plain.logprobs), "of the same model")
            for name, (_, words) in wrong.items():
                said = d.cli("generate", "-m", name, "-n", "2", "Once", check_exit=1).stderr.decode()
                check(words in said, f"{name}: the refusal", said)


main()
