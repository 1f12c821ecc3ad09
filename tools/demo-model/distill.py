#!/usr/bin/env python3
"""A better draft for tale: four of its layers and its embedding, distilled on its own samples.

usage: distill.py TALES.txt.xz DIR OUT.gguf [--sample SECONDS] [--train SECONDS]

DIR holds tale.gguf and spm.model, as train.py writes them. Needs torch, transformers, sentencepiece and one GPU;
models/sprout-4x256.gguf took 8 minutes on an H200. It levels off after two: tale's own text is high in entropy, so
more training of four layers brings little.
"""
import argparse, math, os, random, time
import numpy as np, sentencepiece as spm, torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from gemma_ref import read
from train import MODELS, VOCAB, Batches, export, load_text, passages

KEPT = (0, 3, 7, 10)  # layers of tale
LENGTH, BATCH = 640, 96
TEMPERATURE = 0.8     # at which the demo's text is drawn
NAMES = (("attn_norm", "input_layernorm"), ("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"),
         ("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"), ("attn_q_norm", "self_attn.q_norm"),
         ("attn_k_norm", "self_attn.k_norm"), ("post_attention_norm", "post_attention_layernorm"),
         ("ffn_norm", "pre_feedforward_layernorm"), ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"),
         ("ffn_down", "mlp.down_proj"), ("post_ffw_norm", "post_feedforward_layernorm"))


def build(gguf, layers):
    """These layers of tale, with its embedding."""
    _, d, H, KV, hd, ff, win, _ = MODELS["tale"]
    cfg = Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=d, intermediate_size=ff, num_hidden_layers=len(layers), num_attention_heads=H,
        num_key_value_heads=KV, head_dim=hd, query_pre_attn_scalar=hd, sliding_window=win,
        max_position_embeddings=4096, rms_norm_eps=1e-6, pad_token_id=0, bos_token_id=2, eos_token_id=1,
        attn_implementation="sdpa",
        layer_types=["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(len(layers))])
    _, w = read(gguf)
    m = Gemma3ForCausalLM(cfg); sd = m.state_dict()

    def put(key, value):  # GGUF stores Gemma's gain as 1 + w
        sd[key].copy_(torch.from_numpy((value - 1.0 if value.ndim == 1 else value).astype(np.float32)))

    put("model.embed_tokens.weight", w["token_embd.weight"]); put("model.norm.weight", w["output_norm.weight"])
    for i, layer in enumerate(layers):
        for g, h in NAMES:
            put(f"model.layers.{i}.{h}.weight", w[f"blk.{layer}.{g}.weight"])
    if "lm_head.weight" in sd:
        sd["lm_head.weight"].copy_(sd["model.embed_tokens.weight"])
    return m.cuda(), cfg


def draw_samples(model, corpus, seconds):
    """Texts that tale continues: sampled and greedy, from beginnings of three lengths."""
    pool, begin = [], time.time()
    while time.time() - begin < seconds:
        n, temp = (4, 24, 64)[len(pool) % 3], (0.8, 0.8, 0.0, 1.0)[len(pool) % 4]
        prompts = corpus.take(1536)[0][:, :n].contiguous()
        more = {"temperature": temp, "top_k": 40} if temp else {"temperature": None, "top_k": None}
        with torch.no_grad():
            text = model.generate(input_ids=prompts, attention_mask=torch.ones_like(prompts), max_length=LENGTH,
                                  min_length=LENGTH, do_sample=temp > 0, top_p=None, pad_token_id=0, **more)
        pool.append(text.cpu())
        print("samples", len(pool) * 1536 * LENGTH / 1e6, "M", time.time() - begin, flush=True)
    return pool


def agreement(teacher, student, x):
    """How often the student's first choice is the teacher's, and the text's."""
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        t = teacher(input_ids=x, use_cache=False).logits[:, 64:].argmax(-1)
        s = student(input_ids=x, use_cache=False).logits[:, 64:-1].argmax(-1)
        return (s == t[:, :-1]).float().mean().item(), (s == x[:, 65:]).float().mean().item()


def train(teacher, student, corpus, pool, held, seconds):
    peak = 1.5e-3
    decay = [p for p in student.parameters() if p.dim() > 1]; rest = [p for p in student.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.02}, {"params": rest, "weight_decay": 0.0}],
                            lr=peak, betas=(0.9, 0.95), fused=True)
    of_student = torch.compile(lambda x: student(input_ids=x, use_cache=False).logits)
    of_teacher = torch.compile(lambda x: teacher(input_ids=x, use_cache=False).logits)
    student.train(); begin, step = time.time(), 0
    while True:
        f = (time.time() - begin) / seconds
        if f >= 1: break
        lr = peak * min(1.0, (step + 1) / 100) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * f)))
        for g in opt.param_groups: g["lr"] = lr
        if step % 4 == 0: x = corpus.take(BATCH)[0][:, :LENGTH].contiguous()
        else: x = pool[torch.randint(0, len(pool), (BATCH,))].cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            with torch.no_grad():
                t = torch.softmax(of_teacher(x).float() / TEMPERATURE, -1)
            s, keep = of_student(x), (x != 0).float()
            loss = -((t * torch.log_softmax(s.float() / TEMPERATURE, -1)).sum(-1) * keep).sum() / keep.sum()
        loss.backward(); torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        opt.step(); opt.zero_grad(set_to_none=True); step += 1
        if step % 150 == 0:
            student.eval()
            print(f"step {step} {time.time() - begin:.0f}s loss {loss.item():.3f} agrees with samples "
                  f"{agreement(teacher, student, held[0])}, with greedy text {agreement(teacher, student, held[1])}",
                  flush=True)
            student.train()
    student.eval()


def main():
    ap = argparse.ArgumentParser(); ap.add_argument("tales"); ap.add_argument("dir"); ap.add_argument("out")
    ap.add_argument("--sample", type=float, default=180); ap.add_argument("--train", type=float, default=240)
    a = ap.parse_args(); tale = os.path.join(a.dir, "tale.gguf")
    torch.manual_seed(5); torch.set_float32_matmul_precision("high"); rng = random.Random(11)
    sp = spm.SentencePieceProcessor(model_file=os.path.join(a.dir, "spm.model")); books = load_text(a.tales)
    plain, chat = passages([b[:len(b) * 98 // 100] for b in books], sp, rng); corpus = Batches(plain, chat, rng)
    everything = range(MODELS["tale"][0])
    teacher, half = build(tale, everything)[0].eval(), build(tale, everything)[0].bfloat16().eval()
    student, cfg = build(tale, KEPT)
    pool = draw_samples(half, corpus, a.sample)
    greedy = min(2, len(pool) - 1)
    held = pool[0][:BATCH].cuda(), pool[greedy][:BATCH].cuda()  # not trained on
    for i in {0, greedy}: pool[i] = pool[i][BATCH:]
    train(teacher, student, corpus, torch.cat(pool), held, a.train)
    export("sprout", student, cfg, sp, a.out)
    print("agrees", agreement(teacher, student, held[0]), agreement(teacher, student, held[1]), flush=True)


if __name__ == "__main__": main()
