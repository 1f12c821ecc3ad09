#!/usr/bin/env python3
"""Do two devices add up? Each worker on the host device and on a core of its own (`measured`), against one worker that
has both cores (`gpu`), in turns: 32 sequences that generate, and a prompt of 512 tokens. Then one worker is slowed down
by half from outside (stopped and continued in short turns), and the shares have to follow. Then what `split` costs a
single stream, how many times a single stream's tokens 32 give together, and how much of the time each worker's lane in
`tandem trace` is busy with blocks while they do.

usage: TANDEM_BIN=build/bin bench-two-devices.py MODEL.gguf [--rounds N] [--json]
                                                 [--only decode,prefill,slow,split,scale,lanes]

It prints figures and judges them only with --check. The machine should be quiet: others' load is measured too.
"""
import argparse
import json
import os
import random
import signal
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import Daemon  # noqa: E402

SEQUENCES, PROMPT_TOKENS = 32, 512
WANTED = {"decode": 0.9, "prefill": 0.9, "slow": 0.9, "split": 0.95, "split pinned": 0.95, "scale": 6}
LANE_BUSY = 0.8


def ids(rng, n):
    return [2] + [rng.randrange(300, 2000) for _ in range(n - 1)]


def warm_up(daemon):
    daemon.generate(ids=ids(random.Random(0), 64), n=4)


def all_at_once(daemon, n_tokens, rng):
    jobs = [daemon.start_job(ids=ids(rng, 8), n=n_tokens) for _ in range(SEQUENCES)]
    threads = [threading.Thread(target=j.wait) for j in jobs]
    for t in threads:
        t.start()
    return jobs, threads


def decode_speed(daemon, n_tokens, rng):
    """Tokens a second of all, while all of them generate."""
    jobs, threads = all_at_once(daemon, n_tokens, rng)
    for t in threads:
        t.join()
    times = [j.result.times for j in jobs]
    begin, end = max(t[1] for t in times), min(t[-1] for t in times)
    return sum(sum(begin < x <= end for x in t) for t in times) / (end - begin)


def prefill_speed(daemon, rng):
    return daemon.generate(ids=ids(rng, PROMPT_TOKENS), n=1).done["prefill_tps"]


def single_speed(daemon, n_tokens, rng):
    times = daemon.generate(ids=ids(rng, 8), n=n_tokens).times
    return (len(times) - 2) / (times[-1] - times[1])


def pairs(rounds, one, other):
    """Medians of both and of their quotient, taken in turns so that the machine's moods hit both."""
    a, b = [], []
    for i in range(rounds):
        for f, to in ((one, a), (other, b)) if i % 2 else ((other, b), (one, a)):
            to.append(f())
    return statistics.median(a), statistics.median(b), statistics.median(x / y for x, y in zip(a, b))


def lanes(daemon, n_tokens, rng):
    """Share of the time that each worker computes blocks while all sequences generate, from the trace."""
    path = os.path.join(daemon.dir, "lanes.json")
    jobs, threads = all_at_once(daemon, n_tokens, rng)
    while any(len(j.result.times) < 2 for j in jobs):
        time.sleep(0.02)
    daemon.cli("trace", "-o", path, "--seconds", "1", check_exit=0)
    traced = time.monotonic()
    for t in threads:
        t.join()
    if min(j.result.times[-1] for j in jobs) < traced:
        raise RuntimeError("the sequences ended before the trace did: ask for more --tokens")
    with open(path, encoding="utf-8") as f:
        events = json.load(f)["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    blocks = {}
    for e in events:
        if e["ph"] == "X" and e.get("cat") == "block":
            blocks.setdefault(names[e["pid"], e["tid"]], []).append((e["ts"], e["ts"] + e["dur"]))
    begin, end = min(b[0][0] for b in blocks.values()), max(b[-1][1] for b in blocks.values())
    return {lane: sum(y - x for x, y in spans) / (end - begin) for lane, spans in blocks.items()}


class Slowed:
    """A worker that is stopped half of the time, in turns far shorter than what counts as a hang."""

    def __init__(self, pid, turn=0.01):
        self.pid, self.turn, self.over = pid, turn, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over.is_set():
            os.kill(self.pid, signal.SIGSTOP)
            time.sleep(self.turn)
            os.kill(self.pid, signal.SIGCONT)
            time.sleep(self.turn)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        os.kill(self.pid, signal.SIGCONT)


def ffn_rows(daemon):
    return {n: next(b.get("rows", 0) for b in w["blocks"] if b["kind"] == "ffn") for n, w in daemon.workers().items()}


def slow(daemon, n_tokens, rng):
    """Shares of rows and tokens a second before a worker is slowed down, and from a few seconds after it on."""
    warm = decode_speed(daemon, n_tokens, rng)
    before = ffn_rows(daemon)
    warm = max(warm, decode_speed(daemon, n_tokens, rng))
    middle = ffn_rows(daemon)
    with Slowed(daemon.worker_pid("npu")):
        decode_speed(daemon, n_tokens, rng)  # it learns
        start = ffn_rows(daemon)
        slowed = decode_speed(daemon, n_tokens, rng)
        end = ffn_rows(daemon)
    share = [(b["npu"] - a["npu"]) / max(1, sum(b.values()) - sum(a.values()))
             for a, b in ((before, middle), (start, end))]
    return warm, slowed, share


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--only", default="decode,prefill,slow,split,scale,lanes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("needs two cores")
        return 77
    rng, out, only = random.Random(1), {}, args.only.split(",")
    model = os.path.abspath(args.model)
    pinned = {"TANDEM_NPU_CPUS": str(cores[0]), "TANDEM_GPU_CPUS": str(cores[1])}
    two = f"{cores[0]},{cores[1]}"
    both = {"TANDEM_NPU_CPUS": two, "TANDEM_GPU_CPUS": two}
    with Daemon([model], env=dict(pinned, TANDEM_PLACEMENT="measured"), threads=0) as own, \
            Daemon([model], env=dict(both, TANDEM_PLACEMENT="gpu"), threads=0) as one:
        warm_up(own)
        warm_up(one)
        if "decode" in only:
            out["decode"] = pairs(args.rounds, lambda: decode_speed(own, args.tokens, rng),
                                  lambda: decode_speed(one, args.tokens, rng))
        if "prefill" in only:
            out["prefill"] = pairs(args.rounds, lambda: prefill_speed(own, rng), lambda: prefill_speed(one, rng))
        if "slow" in only:
            warm, slowed, share = slow(own, args.tokens, rng)
            # Half of one of two: three quarters of the whole are left.
            out["slow"] = (slowed, 0.75 * warm, slowed / (0.75 * warm))
            out["shares"] = share
        if "lanes" in only:
            out["lanes"] = lanes(own, 5 * args.tokens, rng)
        if "scale" in only:
            a, b, ratio = pairs(args.rounds, lambda: decode_speed(one, args.tokens, rng),
                                lambda: single_speed(one, args.tokens, rng))
            out["scale"] = (a, b, ratio)
    for name, env, single in (("split", both, "gpu"), ("split pinned", pinned, "gpu")):
        if "split" not in only:
            break
        with Daemon([model], env=dict(env, TANDEM_PLACEMENT="split"), threads=0) as a, \
                Daemon([model], env=dict(env, TANDEM_PLACEMENT=single), threads=0) as b:
            warm_up(a)
            warm_up(b)
            out[name] = pairs(args.rounds, lambda: single_speed(a, args.tokens, rng),
                              lambda: single_speed(b, args.tokens, rng))
    if args.json:
        print(json.dumps(out))
    else:
        for name, (a, b, ratio) in ((n, v) for n, v in out.items() if n not in ("shares", "lanes")):
            print(f"{name:14} {a:8.2f} tokens/s against {b:8.2f}: {ratio:.3f}")
        if "shares" in out:
            print("share of the slowed worker: %.2f before, %.2f after" % tuple(out["shares"]))
        for name, busy in out.get("lanes", {}).items():
            print(f"{name:14} computes {100 * busy:.0f}% of the time")
    if args.check:
        bad = [n for n, want in WANTED.items() if n in out and out[n][2] < want]
        bad += [n for n, busy in out.get("lanes", {}).items() if busy < LANE_BUSY]
        if "shares" in out and out["shares"][1] > 0.8 * out["shares"][0]:
            bad.append("shares")
        if bad:
            print("below what is wanted:", ", ".join(bad))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
