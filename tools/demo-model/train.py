#!/usr/bin/env python3
"""Train the small Gemma-3-architecture story models that Tandem ships as its embedded default.

usage: train.py TALES.txt.xz OUTDIR [--minutes M]

Needs torch, transformers, sentencepiece and one GPU. Writes the two models (tale: the default; sprout: a draft
model for speculative decoding, same tokenizer); golden.py then computes their reference values:
  OUTDIR/NAME.gguf         Q8_0 matrices, F32 norms, tokenizer and chat template inside (models/ in this tree)
The text is public-domain children's literature (Lang, Grimm, Andersen, Jacobs, Carroll, Baum, ...), UTF-8, xz-packed:
a line <|endofbook|> between books, an empty line between paragraphs. See README.md.
"""
import argparse, collections, lzma, math, os, random, re, struct, time
import numpy as np, sentencepiece as spm, torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

VOCAB, CTX = 6144, 768
CHAT = ("{{ bos_token }}{% for m in messages %}"
        "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n'"
        " + m['content'] | trim + '<end_of_turn>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}")
MODELS = {  # layers, hidden, heads, kv heads, head dim, ff, window, share of the time
    "tale": (12, 256, 4, 1, 64, 1024, 128, 0.68),
    "sprout": (4, 128, 2, 1, 64, 512, 128, 0.32),
}


def load_text(path):
    t = lzma.open(path, "rt", encoding="utf-8").read()
    books = [b.strip() for b in t.split("<|endofbook|>")]
    return [[p.strip() for p in b.split("\n\n") if p.strip()] for b in books]


def train_tokenizer(books, out):
    txt = os.path.join(out, "spm.txt")
    with open(txt, "w") as f:
        for b in books:
            for p in b:
                f.write(p + "\n")
    spm.SentencePieceTrainer.train(
        input=txt, model_prefix=os.path.join(out, "spm"), model_type="bpe", vocab_size=VOCAB, byte_fallback=True,
        character_coverage=0.9998, split_digits=True, add_dummy_prefix=False, remove_extra_whitespaces=False,
        normalization_rule_name="identity", pad_id=0, eos_id=1, bos_id=2, unk_id=3,
        pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>",
        user_defined_symbols=["<start_of_turn>", "<end_of_turn>", "\n"],
        max_sentence_length=20000, num_threads=16, minloglevel=1)
    return spm.SentencePieceProcessor(model_file=os.path.join(out, "spm.model"))


def passages(books, sp, rng):
    """Token sequences: running text, and 'tell me a story about X' turns built from passages that speak of X."""
    df = collections.Counter()
    noun = re.compile(r"\b(?:the|a|an|little|old|young|poor|great) ([a-z]{3,12})\b")
    paras = [(i, j, p) for i, b in enumerate(books) for j, p in enumerate(b)]
    for _, _, p in paras:
        df.update(set(noun.findall(p)))
    plain, chat = [], []
    sot, eot = sp.piece_to_id("<start_of_turn>"), sp.piece_to_id("<end_of_turn>")
    for b in books:
        ids = []
        for p in b:
            ids += sp.encode(p + "\n")
        plain.append(ids)
        n = len(b)
        for j in range(0, n):
            if len(b[j]) < 60 or b[j].isupper() or rng.random() < 0.6:
                continue
            body, k = b[j], j + 1
            while k < n and len(body) + len(b[k]) < 2300:
                body += "\n" + b[k]; k += 1
            if len(body) < 350:
                continue
            c = collections.Counter(noun.findall(body))
            best = [(v * math.log(len(paras) / (1 + df[w])), w) for w, v in c.items() if v >= 2 and 25 < df[w] < 6000]
            if not best:
                continue
            w = max(best)[1]
            ask = rng.choice(["Tell me a story about a {}.", "Tell me about a {}.",
                              "A story about the {}, please.", "Tell me a tale of a {}."]).format(w)
            q = [sot] + sp.encode("user\n" + ask) + [eot] + sp.encode("\n") + [sot] + sp.encode("model\n")
            chat.append(([2] + q + sp.encode(body) + [eot] + sp.encode("\n"))[:CTX + 1])
    return plain, chat


class Batches:
    def __init__(self, plain, chat, rng):
        self.flat = [np.array(p, dtype=np.int32) for p in plain if len(p) > CTX + 2]
        self.w = np.array([len(p) for p in self.flat], dtype=float); self.w /= self.w.sum()
        self.chat, self.rng = chat, np.random.default_rng(rng.randrange(1 << 30))

    def take(self, n):
        x = np.zeros((n, CTX + 1), dtype=np.int64)
        for i in range(n):
            if self.rng.random() < 0.5:
                p = self.flat[self.rng.choice(len(self.flat), p=self.w)]
                s = self.rng.integers(0, len(p) - CTX - 1)
                x[i] = p[s:s + CTX + 1]; x[i, 0] = 2
            else:
                c = self.chat[self.rng.integers(0, len(self.chat))]
                x[i, :len(c)] = c
        t = torch.from_numpy(x).cuda(non_blocking=True)
        return t[:, :-1], torch.where(t[:, 1:] == 0, -100, t[:, 1:])


def train(name, shape, batches, held, seconds, sp, teacher=None):
    L, d, H, KV, hd, ff, win, _ = shape
    cfg = Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=d, intermediate_size=ff, num_hidden_layers=L, num_attention_heads=H,
        num_key_value_heads=KV, head_dim=hd, query_pre_attn_scalar=hd, sliding_window=win,
        max_position_embeddings=4096, rms_norm_eps=1e-6, pad_token_id=0, bos_token_id=2, eos_token_id=1,
        attn_implementation="sdpa",
        layer_types=["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(L)])
    torch.manual_seed(7)
    m = Gemma3ForCausalLM(cfg).cuda(); m.train()
    decay = [p for p in m.parameters() if p.dim() > 1]; rest = [p for p in m.parameters() if p.dim() < 2]
    noise = 0.06 if teacher is None else 0.0
    peak = 2.5e-3 if d < 200 else 1.5e-3
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.3}, {"params": rest, "weight_decay": 0.0}],
                            lr=peak, betas=(0.9, 0.95), fused=True)
    fwd = torch.compile(lambda x: m(input_ids=x, use_cache=False).logits)
    t0, step, B = time.time(), 0, 64
    rng = np.random.default_rng(3)
    while True:
        f = (time.time() - t0) / seconds
        if f >= 1: break
        lr = peak * min(1.0, (step + 1) / 200) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, f))))
        for g in opt.param_groups: g["lr"] = lr
        x, y = batches.take(B)
        if noise:  # a few wrong input tokens: the model must lean on more than the last one
            hit = torch.rand(x.shape, device="cuda") < noise
            x = torch.where(hit & (x > 270), torch.randint(270, VOCAB, x.shape, device="cuda"), x)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            lg = fwd(x)
            loss = torch.nn.functional.cross_entropy(lg.float().reshape(-1, VOCAB), y.reshape(-1), ignore_index=-100)
            if teacher is not None:  # a draft model learns what its target would say
                with torch.no_grad():
                    tp = torch.softmax(teacher(input_ids=x, use_cache=False).logits.float(), -1)
                keep = (y != -100).float()
                loss = 0.3 * loss + 0.7 * -((tp * torch.log_softmax(lg.float(), -1)).sum(-1) * keep).sum() / keep.sum()
        loss.backward(); torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step(); opt.zero_grad(set_to_none=True); step += 1
        if step % 200 == 0:
            m.eval()
            with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
                hl = [torch.nn.functional.cross_entropy(fwd(a).float().reshape(-1, VOCAB), b.reshape(-1),
                                                        ignore_index=-100).item() for a, b in held]
            m.train()
            print(f"{name} step {step} {time.time()-t0:.0f}s loss {loss.item():.3f} held {np.mean(hl):.3f} lr {lr:.2e}",
                  flush=True)
    m.eval()
    for ask in ("fox", "princess", "wolf"):
        ids = [2] + sp.encode("<start_of_turn>user\nTell me a story about a %s.<end_of_turn>\n"
                              "<start_of_turn>model\n" % ask)
        with torch.no_grad():
            for _ in range(120):
                logits = m(input_ids=torch.tensor([ids]).cuda(), use_cache=False).logits[0, -1].float()
                p = torch.softmax(logits / 0.8, -1)
                v, i = p.topk(40); ids.append(int(i[torch.multinomial(v, 1)]))
        print("SAMPLE", name, repr(sp.decode(ids)), flush=True)
    return m, cfg


def q8(w):
    """Q8_0 bytes of a float32 matrix and the matrix that those bytes stand for."""
    b = w.reshape(-1, 32); d = np.abs(b).max(1) / 127
    d16 = d.astype(np.float16); inv = np.where(d > 0, 1 / np.maximum(d, 1e-30), 0)
    q = np.clip(np.rint(b * inv[:, None]), -127, 127).astype(np.int8)
    out = np.zeros((b.shape[0], 34), np.uint8)
    out[:, :2] = d16.view(np.uint8).reshape(-1, 2); out[:, 2:] = q.view(np.uint8)
    return out.tobytes(), (q.astype(np.float32) * d16.astype(np.float32)[:, None]).reshape(w.shape)


def s8(s):
    b = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(b)) + b


def export(name, m, cfg, sp, path):
    T = {"u32": (4, "<I"), "f32": (6, "<f"), "bool": (7, "<?")}
    def kv(k, t, v):
        if t == "str": return s8(k) + struct.pack("<I", 8) + s8(v)
        return s8(k) + struct.pack("<I", T[t][0]) + struct.pack(T[t][1], v)
    def arr(k, et, vals):
        body = b"".join(s8(v) for v in vals) if et == 8 else np.asarray(vals, {6: "<f4", 5: "<i4"}[et]).tobytes()
        return s8(k) + struct.pack("<IIQ", 9, et, len(vals)) + body
    A = "gemma3"
    types = [2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 5 if sp.is_unused(i) else 1
             for i in range(VOCAB)]
    for s in ("<start_of_turn>", "<end_of_turn>"): types[sp.piece_to_id(s)] = 3
    types[sp.piece_to_id("\n")] = 4
    story = "Small story model, trained from scratch on public-domain children's books"
    meta = [kv("general.architecture", "str", A), kv("general.name", "str", f"Tandem {name}"),
            kv("general.license", "str", "CC0-1.0"), kv("general.description", "str", story),
            kv("general.file_type", "u32", 7), kv("general.quantization_version", "u32", 2),
            kv("general.alignment", "u32", 32),
            kv(f"{A}.context_length", "u32", 4096), kv(f"{A}.embedding_length", "u32", cfg.hidden_size),
            kv(f"{A}.block_count", "u32", cfg.num_hidden_layers),
            kv(f"{A}.feed_forward_length", "u32", cfg.intermediate_size),
            kv(f"{A}.attention.head_count", "u32", cfg.num_attention_heads),
            kv(f"{A}.attention.head_count_kv", "u32", cfg.num_key_value_heads),
            kv(f"{A}.attention.key_length", "u32", cfg.head_dim),
            kv(f"{A}.attention.value_length", "u32", cfg.head_dim),
            kv(f"{A}.attention.layer_norm_rms_epsilon", "f32", 1e-6),
            kv(f"{A}.attention.sliding_window", "u32", cfg.sliding_window), kv(f"{A}.rope.freq_base", "f32", 1e6),
            kv("tokenizer.ggml.model", "str", "llama"), kv("tokenizer.ggml.pre", "str", "default"),
            arr("tokenizer.ggml.tokens", 8, [sp.id_to_piece(i) for i in range(VOCAB)]),
            arr("tokenizer.ggml.scores", 6, [sp.get_score(i) for i in range(VOCAB)]),
            arr("tokenizer.ggml.token_type", 5, types),
            kv("tokenizer.ggml.bos_token_id", "u32", 2), kv("tokenizer.ggml.eos_token_id", "u32", 1),
            kv("tokenizer.ggml.eot_token_id", "u32", sp.piece_to_id("<end_of_turn>")),
            kv("tokenizer.ggml.unknown_token_id", "u32", 3), kv("tokenizer.ggml.padding_token_id", "u32", 0),
            kv("tokenizer.ggml.add_bos_token", "bool", True), kv("tokenizer.ggml.add_eos_token", "bool", False),
            kv("tokenizer.ggml.add_space_prefix", "bool", False), kv("tokenizer.chat_template", "str", CHAT)]
    sd = {k: v.detach().float().cpu().numpy() for k, v in m.state_dict().items()}
    names = [("token_embd.weight", "model.embed_tokens.weight"), ("output_norm.weight", "model.norm.weight")]
    for i in range(cfg.num_hidden_layers):
        h, g = f"model.layers.{i}.", f"blk.{i}."
        names += [(g + "attn_norm.weight", h + "input_layernorm.weight"),
                  (g + "attn_q.weight", h + "self_attn.q_proj.weight"),
                  (g + "attn_k.weight", h + "self_attn.k_proj.weight"),
                  (g + "attn_v.weight", h + "self_attn.v_proj.weight"),
                  (g + "attn_output.weight", h + "self_attn.o_proj.weight"),
                  (g + "attn_q_norm.weight", h + "self_attn.q_norm.weight"),
                  (g + "attn_k_norm.weight", h + "self_attn.k_norm.weight"),
                  (g + "post_attention_norm.weight", h + "post_attention_layernorm.weight"),
                  (g + "ffn_norm.weight", h + "pre_feedforward_layernorm.weight"),
                  (g + "ffn_gate.weight", h + "mlp.gate_proj.weight"),
                  (g + "ffn_up.weight", h + "mlp.up_proj.weight"),
                  (g + "ffn_down.weight", h + "mlp.down_proj.weight"),
                  (g + "post_ffw_norm.weight", h + "post_feedforward_layernorm.weight")]
    infos, blobs, off = [], [], 0
    for gn, hn in names:
        w = sd[hn]
        if w.ndim == 1: data, tid = (w + 1.0).astype("<f4").tobytes(), 0      # GGUF stores Gemma's gain as 1 + w
        else:
            data, back = q8(w); tid = 8; sd[hn] = back
        dims = b"".join(struct.pack("<Q", s) for s in reversed(w.shape))
        infos.append(s8(gn) + struct.pack("<I", w.ndim) + dims + struct.pack("<IQ", tid, off))
        blobs.append(data); off += (len(data) + 31) // 32 * 32
    with open(path, "wb") as f:
        f.write(struct.pack("<IIQQ", 0x46554747, 3, len(names), len(meta)) + b"".join(meta) + b"".join(infos))
        f.write(b"\0" * (-f.tell() % 32))
        for b in blobs: f.write(b); f.write(b"\0" * (-f.tell() % 32))
    # The head is tied to the embedding: a head of its own would put the float weights back over the dequantised ones.
    sd["lm_head.weight"] = sd["model.embed_tokens.weight"]
    m.load_state_dict({k: torch.from_numpy(v) for k, v in sd.items()}); return m.float()


def main():
    ap = argparse.ArgumentParser(); ap.add_argument("tales"); ap.add_argument("out")
    ap.add_argument("--minutes", type=float, default=5.5)
    a = ap.parse_args(); os.makedirs(a.out, exist_ok=True); rng = random.Random(11)
    books = load_text(a.tales); t0 = time.time()
    sp = train_tokenizer(books, a.out); print("tokenizer", time.time() - t0, flush=True)
    cut = [b[:len(b) * 98 // 100] for b in books]; tail = [b[len(b) * 98 // 100:] for b in books]
    plain, chat = passages(cut, sp, rng)
    print("tokens", sum(map(len, plain)), "chats", len(chat), time.time() - t0, flush=True)
    hp, hc = passages(tail, sp, rng)
    hb = Batches(plain=[sum(hp, [])], chat=hc, rng=rng); held = [hb.take(64) for _ in range(4)]
    torch.set_float32_matmul_precision("high")
    teacher = None
    for name, shape in MODELS.items():
        m, cfg = train(name, shape, Batches(plain, chat, rng), held, a.minutes * 60 * shape[-1], sp, teacher)
        teacher = m = export(name, m, cfg, sp, os.path.join(a.out, name + ".gguf"))
    print("done", time.time() - t0)


if __name__ == "__main__": main()
