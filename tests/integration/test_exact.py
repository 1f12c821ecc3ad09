"""The same job gives the same ids whatever happens around it: company, chunks, threads, placements,
instruction sets.

The reference is the job alone in a daemon with one thread and default settings; everything else is compared with
it, id for id and log-probability for log-probability.
"""
import random

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from cpu_tables import tables  # noqa: E402
from tandem_test import *  # noqa: E402,F403

SENTENCE = "Once upon a time there was a king who had three sons, and the youngest of them was called Simpleton. "
LONG = (SENTENCE * 8).strip()
KINDS = {"greedy": {"temp": 0.0}, "seeded": {"temp": 0.9, "seed": 7}}
N = times(96, 256, 40)


def reference():
    with Daemon() as d:
        out = {}
        for kind, sampling in KINDS.items():
            for name, prompt in (("short", PROMPT), ("long", LONG)):
                out[kind, name] = d.generate(prompt=prompt, n=N, **sampling)
        check(len(set(out["seeded", "short"].ids)) > 10, "a story that varies", out["seeded", "short"].ids)
        return out


REFERENCE = {}


def compare(d, what, **more):
    if not REFERENCE:
        REFERENCE.update(reference())
    for (kind, name), want in REFERENCE.items():
        got = d.generate(prompt=LONG if name == "long" else PROMPT, n=N, **KINDS[kind], **more)
        same_ids(got.ids, want.ids, f"{what}, {kind}, {name} prompt")
        check(got.logprobs == want.logprobs, f"{what}, {kind}, {name} prompt: log-probabilities differ")


@test
def again_and_in_another_daemon():
    with Daemon() as d:
        compare(d, "another daemon")
        compare(d, "the same daemon again")


@test
def beside_others():
    """Seven other jobs of all kinds come and go meanwhile."""
    if not REFERENCE:
        REFERENCE.update(reference())
    rng = random.Random(6)
    with Daemon(hang_ms=STANDING_MS) as d:
        d.generate(n=1)
        for (kind, name), want in REFERENCE.items():
            requests = [{"prompt": LONG if name == "long" else PROMPT, "n": N, **KINDS[kind]}]
            for _ in range(7):
                ids = [2] + [rng.randrange(300, 6000) for _ in range(rng.choice((1, 5, 30, 200, 500)))]
                requests.append({"ids": ids, "n": rng.choice((5, 40, 120)), "temp": rng.choice((0.0, 0.7, 1.3)),
                                 "seed": rng.randrange(100), "chunk": rng.choice((0, 0, 5, 33))})
            rng.shuffle(requests)
            mine = next(i for i, q in enumerate(requests) if "prompt" in q)
            steps = d.status().get("steps_done", 0)
            results = all_there(d, requests)  # or each may be over before the next one comes
            steps = d.status().get("steps_done", 0) - steps
            same_ids(results[mine].ids, want.ids, f"beside 7 others, {kind}, {name} prompt")
            check(results[mine].logprobs == want.logprobs, "log-probabilities beside 7 others")
            rows = sum(len(r.ids) for r in results)
            check(steps < rows, f"jobs shared steps ({steps} steps for {rows} tokens)")


@test
def prefill_chunks():
    with Daemon() as d:
        for chunk in (1, 7, 64, 4096):
            compare(d, f"prefill chunks of {chunk}", chunk=chunk)


@test
def placements():
    with Daemon(hang_ms=STANDING_MS) as d:  # a new worker counts its blocks from 0
        d.wait_ready()
        for placement in ("split", "npu", "gpu"):
            before = {n: blocks(w) for n, w in d.workers().items()}
            compare(d, f"placement {placement}", placement=placement)
            ran = {n: {k for k, v in blocks(w).items() if v > before[n].get(k, 0)} for n, w in d.workers().items()}
            want = {"split": {"npu", "gpu"}, "npu": {"npu"}, "gpu": {"gpu"}}[placement]
            equal({n for n in ran if ran[n]}, want, f"workers that ran blocks with placement {placement}")


@test
def threads():
    for n in (1, 2, 3):
        with Daemon(threads=n) as d:
            compare(d, f"{n} threads")


@test
def the_daemons_own_choice():
    """No placement forced: steps may go to either worker, prompts to both. Alone and in company."""
    with Daemon(placement=None, threads=0) as d:
        compare(d, "measured placement")
        requests = [{"prompt": LONG if name == "long" else PROMPT, "n": N, **KINDS[kind]}
                    for kind, name in REFERENCE] * 2
        for result, want in zip(together(d, requests), list(REFERENCE.values()) * 2):
            same_ids(result.ids, want.ids, "eight together, measured placement")


@test
def instruction_sets():
    for cpu in tables():
        with Daemon(env={"TANDEM_CPU": cpu}) as d:
            compare(d, f"TANDEM_CPU={cpu}")


main()
