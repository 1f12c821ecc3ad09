"""A job on which its device dies, or hangs, among sixteen: it alone ends, with device-fault, and nobody else notices.
The workers are those of tests/chaos/faulty-worker.c, whose device dies on a token that only this job has."""
import time

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "chaos"))
from tandem_test import *  # noqa: E402,F403
from private_bin import PrivateBin  # noqa: E402

POISON = 5  # a byte token that no story has
N_JOBS = 16


def requests():
    import random
    rng = random.Random(3)
    return [{"ids": [2] + [rng.randrange(300, 2000) for _ in range(rng.choice((3, 20, 90)))], "n": 80,
             "temp": rng.choice((0.0, 0.8)), "seed": i} for i in range(N_JOBS)]


def among_sixteen(fault, placement, where):
    jobs = requests()
    with Daemon(placement=placement) as d:
        alone = [d.generate(**q) for q in jobs]
    for r in alone:
        check(POISON not in r.ids, "the poison is in nobody's story")
    culprit = 7
    jobs[culprit]["ids"].insert(where, POISON)
    private = PrivateBin(faulty=True)
    try:
        env = {f"TANDEM_FAULT_{w}": f"{fault}={POISON}" for w in ("NPU", "GPU")}
        with Daemon(placement=placement, env=env) as d:
            d.wait_ready()
            begin = time.monotonic()
            running = [d.start_job(**q) for q in jobs]
            results = [j.wait() for j in running]
            took = time.monotonic() - begin
            bad = results[culprit]
            equal(bad.reason, "DONE_ERROR", f"{fault} ({placement}): the culprit's end")
            equal(bad.error.get("code"), "device-fault", f"{fault} ({placement}): the culprit's error")
            for i, r in enumerate(results):
                if i != culprit:
                    equal(r.reason, "DONE_LENGTH", f"{fault} ({placement}): job {i} of sixteen")
                    same_ids(r.ids, alone[i].ids, f"{fault} ({placement}): job {i} of sixteen")
                    check(not r.done.get("degraded"), f"job {i} is not degraded")
            deaths = sum(w.get("restarts", 0) for w in d.workers().values())
            print(f"FIGURE {fault} among {N_JOBS} jobs ({placement}): {deaths} deaths, "
                  f"all others done after {took:.2f} s", flush=True)
            d.wait_ready(60)
            same_ids(d.generate(**requests()[0]).ids, alone[0].ids, "a job afterwards")
    finally:
        import tandem_test
        tandem_test.BIN = private.built


@test
def poison_in_a_prompt():
    among_sixteen("poison", "split", 2)


@test
def poison_where_the_daemon_places():
    among_sixteen("poison", "measured", 2)


@test
def hang_in_a_prompt():
    among_sixteen("hang", "split", 1)


main()
