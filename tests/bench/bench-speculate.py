#!/usr/bin/env python3
"""What speculation gains and costs: pairs of off and auto, in turns, on one daemon, medians of N.

usage: TANDEM_BIN=build/bin bench-speculate.py MODEL.gguf [--draft DRAFT.gguf] [--rounds N] [--tokens N] [--json]
       [--gpu] [--only greedy,sampled,8,32,lookup,edit,others,steps]

  greedy   twelve texts, one after the other
  sampled  the same at temperature 0.8, top-k 40
  8, 32    so many together
  lookup   greedy with lookup alone
  edit     the model writes its text, and the guesses are copied from that text with every 16th token replaced
           (TANDEM_GUESSES, daemon/speculate/guess-file.h), as by lookup in a text that is to be edited
  steps    no times: how many tokens a step has where a draft always makes k guesses, of the same texts, greedy and at
           temperature 0.8, top-k 40
  others   a job with guesses beside one without: the gap between that one's tokens, and the time to the first token of
           jobs that come, each at p95

With --draft, auto has that draft model too. With --gpu the model runs on Vulkan and the draft where the daemon has
measured it to be faster, the GPU or the CPU. The ids of each pair have to be equal. It prints figures and judges none.
The machine should be quiet.
"""
import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import Daemon, same_ids, together  # noqa: E402

OFF, AUTO, LOOKUP, DRAFT = 1, 0, 2, 3
TEXTS = ("Once upon a time there was a king who had three sons, and the youngest of them was called Simpleton.",
         "There was once a miller who was poor, but he had a beautiful daughter.",
         "A fox met a wolf in the forest, and the wolf said, I am so hungry that I could eat you.",
         "The old woman lived alone in a little house at the edge of the wood.",
         "Far out in the sea, where the water is as blue as the cornflower, there stood a castle.",
         "There was a soldier who had served the king for many years, and now he was sent away.",
         "The children walked all day, and when the evening came they were so tired that they sat down under a tree.",
         "In a village near the mountains there lived a tailor with his wife.",
         "The princess looked out of the window and saw a ship with white sails.",
         "One morning the mouse said to the bird, Today I shall stay at home and you shall fetch the wood.",
         "When the giant heard this he was very angry, and he struck the table with his fist.",
         "A man had an ass which had carried the sacks to the mill for many a long year.")
ALL = "greedy,sampled,8,32,lookup,edit"


class Bench:
    def __init__(self, daemon, draft, rounds, on_gpu):
        self.daemon, self.draft, self.rounds = daemon, draft, rounds
        self.more = {"placement": "gpu"} if on_gpu else {}

    def options(self, mode):
        return dict(self.more, speculation=mode, **({"draft": self.draft} if self.draft and mode == AUTO else {}))

    def requests(self, n_jobs, n_tokens, **sampling):
        rng = random.Random(n_jobs)
        if n_jobs == 1:
            return [{"prompt": text, "n": n_tokens, "seed": 1, **sampling} for text in TEXTS]
        return [{"prompt": TEXTS[i % 3] + " " + " ".join(rng.sample(TEXTS[0].split(), 8)), "n": n_tokens, "seed": i,
                 **sampling} for i in range(n_jobs)]

    def speed(self, jobs, mode, alone):
        """Tokens a second from the last first token to the first last one, and the results."""
        tokens = seconds = 0
        results = []
        for group in [[q] for q in jobs] if alone else [jobs]:
            got = together(self.daemon, [dict(q, **self.options(mode)) for q in group])
            begin, end = max(r.times[0] for r in got), min(r.times[-1] for r in got)
            tokens += sum(sum(begin < t <= end for t in r.times) for r in got)
            seconds += end - begin
            results += got
        return tokens / seconds, results

    def pairs(self, jobs, alone, on=AUTO):
        speeds = {OFF: [], on: []}
        results = {}
        self.speed(jobs, OFF, alone)
        self.speed(jobs, on, alone)
        for i in range(self.rounds):
            for mode in ((OFF, on), (on, OFF))[i % 2]:
                got, results[mode] = self.speed(jobs, mode, alone)
                speeds[mode].append(got)
            for a, b in zip(results[OFF], results[on]):
                same_ids(b.ids, a.ids, "auto against off")
        ratios = [b / a for a, b in zip(speeds[OFF], speeds[on])]
        done = [r.done for r in results[on]]
        places = [[sum(d[key][i] for d in done) for i in range(16)] for key in ("drafted_at", "accepted_at")]
        return {"off": statistics.median(speeds[OFF]), "on": statistics.median(speeds[on]),
                "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
                "drafted": places[0], "accepted": places[1]}

    def others(self, n_tokens):
        """Off and auto of one job; the others have no guesses in either."""
        gaps, firsts = {OFF: [], AUTO: []}, {OFF: [], AUTO: []}

        def visit(stop, out):
            while not stop.wait(0.1):
                begin = time.monotonic()
                r = self.daemon.generate(prompt=TEXTS[2], n=1, temp=0.0, **self.options(OFF))
                out.append(r.times[0] - begin)

        for i in range(2 * self.rounds):
            for mode in ((OFF, AUTO), (AUTO, OFF))[i % 2]:
                stop = threading.Event()
                thread = threading.Thread(target=visit, args=(stop, firsts[mode] if i >= self.rounds else []))
                if i >= self.rounds:  # first without visitors, then with them
                    thread.start()
                jobs = [dict({"prompt": TEXTS[0], "n": n_tokens, "temp": 0.0}, **self.options(mode)),
                        dict({"prompt": TEXTS[1], "n": n_tokens, "temp": 0.0}, **self.options(OFF))]
                first, other = together(self.daemon, jobs)
                stop.set()
                if i >= self.rounds:
                    thread.join()
                    continue
                end = min(first.times[-1], other.times[-1])
                times = [t for t in other.times if first.times[0] < t <= end]
                gaps[mode] += [b - a for a, b in zip(times, times[1:])]

        def p95(of):
            return sorted(of)[int(0.95 * len(of))] * 1e3

        return {"gap_off_ms": p95(gaps[OFF]), "gap_on_ms": p95(gaps[AUTO]), "gap": p95(gaps[AUTO]) / p95(gaps[OFF]),
                "mean_gap": statistics.mean(gaps[AUTO]) / statistics.mean(gaps[OFF]),
                "first_off_ms": p95(firsts[OFF]), "first_on_ms": p95(firsts[AUTO]),
                "first": p95(firsts[AUTO]) / p95(firsts[OFF]), "n": [len(gaps[AUTO]), len(firsts[AUTO])]}


    def steps(self, n_tokens):
        """Tokens a step by k. All guesses are checked (TANDEM_GUESSES=all)."""
        out = {}
        for name, sampling in (("greedy", {"temp": 0.0}), ("sampled", {"temp": 0.8, "top_k": 40})):
            for k in (1, 2, 3, 4, 6, 8):
                got = together(self.daemon, [dict(q, seed=i, draft=self.draft, draft_max=k, speculation=DRAFT)
                                             for i, q in enumerate(self.requests(1, n_tokens, **sampling))])
                tokens, right = sum(len(r.ids) for r in got), sum(r.done.get("accepted", 0) for r in got)
                out.setdefault(name, {})[k] = round(tokens / (tokens - right), 3)
        return out


def show(name, f, as_json):
    if as_json or name == "steps":
        print(json.dumps({"case": name, **f}), flush=True)
    elif "gap" in f:
        print(f"{name}: gap {f['gap_off_ms']:.2f} ms off, {f['gap_on_ms']:.2f} auto, {f['gap']:.3f} times; first token "
              f"{f['first_off_ms']:.1f} ms off, {f['first_on_ms']:.1f} auto, {f['first']:.3f} times {f['n']}",
              flush=True)
    else:
        print(f"{name}: {f['off']:.1f} off, {f['on']:.1f} auto tokens/s, {f['ratio']:.3f} times "
              f"({f['least']:.3f} to {f['most']:.3f}), right by place {f['accepted'][:8]} of {f['drafted'][:8]}",
              flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--draft", help="a model file")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default=ALL)
    args = parser.parse_args()
    wanted = args.only.split(",")
    models = [os.path.abspath(args.model)] + ([os.path.abspath(args.draft)] if args.draft else [])
    draft = os.path.basename(args.draft)[:-len(".gguf")] if args.draft else None
    env = {"TANDEM_GPU": "vulkan", "TANDEM_NPU": "host"} if args.gpu else {}
    env.update({k: os.environ[k] for k in ("VK_DRIVER_FILES",) if k in os.environ})
    placement = None if args.gpu else "gpu"
    text = []
    with Daemon(models=models, threads=0, placement=placement, env=env) as d:
        b = Bench(d, draft, args.rounds, args.gpu)
        if draft:
            d.generate(model=draft, n=1)
            print(*[line for line in d.log().splitlines() if "cheapest" in line], sep="\n", flush=True)
        for name in wanted:
            if name in ("greedy", "sampled", "lookup"):
                sampling = {"temp": 0.8, "top_k": 40} if name == "sampled" else {"temp": 0.0}
                show(name, b.pairs(b.requests(1, args.tokens, **sampling), True, LOOKUP if name == "lookup" else AUTO),
                     args.json)
            elif name.isdigit():
                show(f"{name} together", b.pairs(b.requests(int(name), args.tokens, temp=0.0), False), args.json)
            elif name == "others":
                show(name, b.others(args.tokens), args.json)
        job = b.requests(1, max(args.tokens, 240), temp=0.0)[:1]
        if "edit" in wanted:
            text = d.generate(**dict(job[0], **b.options(OFF))).ids
    if "steps" in wanted and draft:
        with Daemon(models=models, threads=0, placement=placement, env=dict(env, TANDEM_GUESSES="all")) as d:
            d.generate(model=draft, n=1)
            show("steps", Bench(d, draft, args.rounds, args.gpu).steps(args.tokens), args.json)
    if text:
        with tempfile.NamedTemporaryFile("w", suffix=".ids") as f:
            f.write(" ".join(str(300 + i if i % 16 == 15 else id) for i, id in enumerate(text)))
            f.flush()
            with Daemon(models=models[:1], threads=0, placement=placement,
                        env=dict(env, TANDEM_GUESSES="copy:" + f.name)) as d:
                show("edit", Bench(d, None, args.rounds, args.gpu).pairs(job, True), args.json)


main()
