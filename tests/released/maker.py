"""What the makers' implementations say of a released file: run in an environment with torch, transformers, tokenizers
and gguf, by released.py. One line of JSON on standard input names the work, standard output has the answer.

The weights are those of the GGUF file, made f32 by the package gguf and put into transformers' model class by the names
below, not by transformers' own reader of GGUF files: so both readers are looked at (compare_readers). In a GGUF file,
gains of Gemma's norms are 1 + w, and rows of Llama's q and k are in the order of the half-split rotation of pairs."""
import json
import sys

import numpy as np

GEMMA_NORMS = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
               "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
               "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
LLAMA_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
MATRICES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj"}


class File:
    def __init__(self, path):
        from gguf import GGUFReader
        self.reader = GGUFReader(path)
        self.arch = self.key("general.architecture")

    def key(self, name, otherwise=None):
        field = self.reader.get_field(name)
        return otherwise if field is None else field.contents()

    def of_arch(self, name, otherwise=None):
        return self.key(f"{self.arch}.{name}", otherwise)

    def tensors(self):
        from gguf.quants import dequantize
        for t in self.reader.tensors:
            yield t.name, dequantize(t.data, t.tensor_type).astype(np.float32)


def config_gemma3(file):
    from transformers import Gemma3TextConfig
    n = file.of_arch("block_count")
    return Gemma3TextConfig(
        vocab_size=len(file.key("tokenizer.ggml.tokens")), hidden_size=file.of_arch("embedding_length"),
        intermediate_size=file.of_arch("feed_forward_length"), num_hidden_layers=n,
        num_attention_heads=file.of_arch("attention.head_count"), head_dim=file.of_arch("attention.key_length"),
        num_key_value_heads=file.of_arch("attention.head_count_kv"),
        rms_norm_eps=file.of_arch("attention.layer_norm_rms_epsilon"), sliding_window=file.of_arch(
            "attention.sliding_window"), query_pre_attn_scalar=file.of_arch("attention.key_length"),
        layer_types=["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(n)],
        max_position_embeddings=file.of_arch("context_length"), tie_word_embeddings=True,
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                         "full_attention": {"rope_type": "default", "rope_theta": file.of_arch("rope.freq_base")}})


def config_llama(file):
    from transformers import LlamaConfig
    return LlamaConfig(
        vocab_size=len(file.key("tokenizer.ggml.tokens")), hidden_size=file.of_arch("embedding_length"),
        intermediate_size=file.of_arch("feed_forward_length"), num_hidden_layers=file.of_arch("block_count"),
        num_attention_heads=file.of_arch("attention.head_count"),
        num_key_value_heads=file.of_arch("attention.head_count_kv"),
        rms_norm_eps=file.of_arch("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=file.of_arch("context_length"), tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": file.of_arch("rope.freq_base")})


def halves_to_pairs(w, n_heads):
    """Undoes what the converter does to q and k."""
    head = w.shape[0] // n_heads
    return w.reshape(n_heads, head // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def state(file):
    """transformers' names and f32 values of all tensors."""
    import torch
    gemma = file.arch == "gemma3"
    norms = GEMMA_NORMS if gemma else LLAMA_NORMS
    out = {}
    for name, w in file.tensors():
        kind = name.removesuffix(".weight")
        if kind == "token_embd":
            to = "model.embed_tokens"
        elif kind == "output_norm":
            to, w = "model.norm", w - 1 if gemma else w
        elif kind == "output":
            to = "lm_head"
        else:
            _, layer, kind = kind.split(".")
            to = f"model.layers.{layer}." + (norms.get(kind) or MATRICES[kind])
            if kind in norms and gemma:
                w = w - 1
            if file.arch == "llama" and kind in ("attn_q", "attn_k"):
                w = halves_to_pairs(w, file.of_arch("attention.head_count" + ("_kv" if kind == "attn_k" else "")))
        out[to + ".weight"] = torch.from_numpy(np.ascontiguousarray(w))
    return out


def model_of(file):
    import torch
    from transformers import Gemma3ForCausalLM, LlamaForCausalLM
    torch.set_grad_enabled(False)
    config = (config_gemma3 if file.arch == "gemma3" else config_llama)(file)
    config._attn_implementation = "eager"
    model = (Gemma3ForCausalLM if file.arch == "gemma3" else LlamaForCausalLM)(config).float()
    missing, unexpected = model.load_state_dict(state(file), strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model.eval()


def compare_readers(file, path):
    """The largest difference between these weights and those that transformers reads from the file."""
    import os
    import torch
    from transformers import AutoModelForCausalLM
    theirs = AutoModelForCausalLM.from_pretrained(os.path.dirname(path), gguf_file=os.path.basename(path),
                                                  dtype=torch.float32)
    names, worst = dict(theirs.named_parameters()), {}
    for name, w in state(file).items():
        if name not in names:
            worst[name] = "missing"
        else:
            worst[name] = float((names[name] - w).abs().max())
    wrong = {k: v for k, v in worst.items() if v == "missing" or v > 1e-5}
    return {"tensors": len(worst), "wrong": wrong}


def score(file, sequences, top):
    """For each sequence of ids: nll of each next id, and the top ids with their log-probabilities."""
    import torch
    model, out = model_of(file), []
    for ids in sequences:
        logits = model(torch.tensor([ids])).logits[0]
        nll, tops = [], []
        for at in range(0, len(ids), 128):  # a part at a time: f64 of a large vocabulary
            p = torch.log_softmax(logits[at:at + 128].double(), -1)
            nll += [-float(p[i, ids[at + i + 1]]) for i in range(len(p)) if at + i + 1 < len(ids)]
            if top:
                values, which = p.topk(top)
                tops += [[[int(k), float(v)] for k, v in zip(which[i], values[i])] for i in range(len(p))]
        out.append({"ids": ids, "nll": nll, "top": tops})
    return out


def tokenizer_of(file, json_file):
    """The makers' tokenizer.json; else the pipeline of SmolLM2's, on the vocabulary of the file."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    control = {p for p, kind in zip(file.key("tokenizer.ggml.tokens"), file.key("tokenizer.ggml.token_type"))
               if kind == 3}
    if json_file:
        with open(json_file, encoding="utf-8") as f:
            pipeline = json.load(f)
        for token in pipeline["added_tokens"]:  # <unused5>: a marker to the file, and a word to tokenizer.json
            token["special"] = token["special"] or token["content"] in control
        return Tokenizer.from_str(json.dumps(pipeline))
    assert file.key("tokenizer.ggml.pre") == "smollm", file.key("tokenizer.ggml.pre")
    pieces = file.key("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in file.key("tokenizer.ggml.merges")]
    out = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges))
    out.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)])
    out.decoder = decoders.ByteLevel()
    out.add_special_tokens([AddedToken(p, special=True) for p in pieces if p in control])
    return out


def tokens(file, json_file, plain, marked):
    """Ids of texts whose markers are text, and of texts whose markers are tokens."""
    tokenizer = tokenizer_of(file, json_file)
    tokenizer.encode_special_tokens = True
    first = [e.ids for e in tokenizer.encode_batch(plain, add_special_tokens=False)]
    tokenizer.encode_special_tokens = False
    return {"plain": first, "marked": [e.ids for e in tokenizer.encode_batch(marked, add_special_tokens=False)]}


def main():
    work = json.load(sys.stdin)
    file = File(work["file"])
    if work["task"] == "tokens":
        out = tokens(file, work.get("tokenizer"), work["plain"], work["marked"])
    elif work["task"] == "score":
        out = score(file, work["sequences"], work["top"])
    else:
        out = compare_readers(file, work["file"])
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
