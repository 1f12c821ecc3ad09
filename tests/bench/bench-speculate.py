#!/usr/bin/env python3
"""What speculation gains and costs: pairs of off and auto, in turns, on one daemon, medians of N.

usage: TANDEM_BIN=build/bin bench-speculate.py MODEL.gguf [--draft DRAFT.gguf] [--rounds N] [--json]
       [--only edit,prose,sampled,many]

  edit     the model writes its text, and the guesses are copied from that text with every 16th token replaced
           (TANDEM_GUESSES, daemon/schedule/guess-file.h), as by lookup in a text that is to be edited
  prose    greedy, lookup alone
  sampled  temperature 0.8, top-k 40, lookup alone
  many     8 and 32 together, lookup alone

With --draft, auto has that draft model too. The ids of each pair have to be equal. It prints figures and judges none.
The machine should be quiet.
"""
import argparse
import json
import os
import random
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import Daemon, same_ids, together  # noqa: E402

OFF, AUTO = 1, 0
SENTENCE = "Once upon a time there was a king who had three sons, and the youngest of them was called Simpleton. "


def requests(kind, n_jobs, n_tokens):
    sampling = {"temp": 0.8, "top_k": 40} if kind == "sampled" else {"temp": 0.0}
    rng = random.Random(n_jobs)
    out = []
    for i in range(n_jobs):
        prompt = SENTENCE * 2 if n_jobs == 1 else SENTENCE + " ".join(rng.sample(SENTENCE.split(), 8))
        out.append({"prompt": prompt.strip(), "n": n_tokens, "seed": i, **sampling})
    return out


DRAFT = {}


def speed(daemon, jobs, speculation):
    """Tokens a second from the last first token to the first last one, and the results."""
    draft = {} if speculation == OFF else DRAFT
    results = together(daemon, [dict(q, speculation=speculation, **draft) for q in jobs])
    begin, end = max(r.times[0] for r in results), min(r.times[-1] for r in results)
    return sum(sum(begin < t <= end for t in r.times) for r in results) / (end - begin), results


def pairs(daemon, jobs, rounds):
    off, on = [], []
    speed(daemon, jobs, OFF)
    speed(daemon, jobs, AUTO)
    for i in range(rounds):
        for mode in ((OFF, AUTO), (AUTO, OFF))[i % 2]:
            got, results = speed(daemon, jobs, mode)
            (off if mode == OFF else on).append(got)
            if mode == OFF:
                want = results
            else:
                checked = results
        for a, b in zip(want, checked):
            same_ids(b.ids, a.ids, "auto against off")
    ratios = [b / a for a, b in zip(off, on)]
    drafted = sum(r.done.get("drafted", 0) for r in checked)
    accepted = sum(r.done.get("accepted", 0) for r in checked)
    return {"off": statistics.median(off), "auto": statistics.median(on), "ratio": statistics.median(ratios),
            "least": min(ratios), "most": max(ratios), "drafted": drafted, "accepted": accepted}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--draft", help="a model file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="edit,prose,sampled,many")
    args = parser.parse_args()
    wanted = args.only.split(",")
    out = {}
    models = [os.path.abspath(args.model)]
    if args.draft:
        models.append(os.path.abspath(args.draft))
        DRAFT["draft"] = os.path.basename(args.draft)[:-len(".gguf")]
    with Daemon(models=models, threads=0, placement="gpu") as d:
        if args.draft:
            d.generate(model=DRAFT["draft"], n=1)
        if "prose" in wanted:
            out["prose"] = pairs(d, requests("prose", 1, args.tokens), args.rounds)
        if "sampled" in wanted:
            out["sampled"] = pairs(d, requests("sampled", 1, args.tokens), args.rounds)
        if "many" in wanted:
            for n in (8, 32):
                out[f"{n} together"] = pairs(d, requests("prose", n, args.tokens), args.rounds)
        if "edit" in wanted:
            job = requests("prose", 1, args.tokens)
            text = d.generate(**dict(job[0], speculation=OFF)).ids
    if "edit" in wanted:
        DRAFT.clear()  # the guesses are scripted
        with tempfile.NamedTemporaryFile("w", suffix=".ids") as f:
            f.write(" ".join(str(300 + i if i % 16 == 15 else id) for i, id in enumerate(text)))
            f.flush()
            with Daemon(models=[args.model], threads=0, placement="gpu", env={"TANDEM_GUESSES": "copy:" + f.name}) as d:
                out["edit"] = pairs(d, job, args.rounds)
    for name, figures in out.items():
        print(json.dumps({"case": name, **figures}) if args.json else
              f"{name}: {figures['off']:.1f} off, {figures['auto']:.1f} auto tokens/s, {figures['ratio']:.2f} times "
              f"({figures['least']:.2f} to {figures['most']:.2f}), {figures['accepted']} of {figures['drafted']} right")


main()
