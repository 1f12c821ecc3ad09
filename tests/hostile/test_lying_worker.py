"""A worker that was taken over and lies to tandemd: it accuses its peer, or returns results that cannot be. The jobs
give the same ids on the honest worker, no client sees a lie, the liar is quarantined, and epochs and log stay few.

The workers are those of tests/chaos/faulty-worker.c, one of them with a fault."""
import os
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "chaos"))
from tandem_test import *  # noqa: E402,F403
from private_bin import PrivateBin  # noqa: E402

JOBS = [{"ids": [2] + [300 + (37 * i + 11 * k) % 1700 for k in range(20)], "n": 24, "temp": 0.8, "seed": i}
        for i in range(4)]
alone = []
private = []


def honest():
    if not alone:
        with Daemon(placement=None) as d:
            alone.extend(d.generate(**q).ids for q in JOBS)
        private.append(PrivateBin(faulty=True))
    return alone


def lies(who, fault, words):
    want = honest()
    other = "npu" if who == "gpu" else "gpu"
    with Daemon(placement=None, env={f"TANDEM_FAULT_{who.upper()}": fault}) as d:
        begin = time.monotonic()
        rounds, workers = 0, d.workers()
        while rounds < 3 or (workers[who]["state"] != "quarantined" and time.monotonic() - begin < 60 * SLOW):
            running = [d.start_job(**q) for q in JOBS]
            for i, job in enumerate(running):
                r = job.wait()
                equal(r.reason, "DONE_LENGTH", f"{who} {fault}: job {i}, round {rounds}")
                same_ids(r.ids, want[i], f"{who} {fault}: job {i}, round {rounds}")
            rounds += 1
            time.sleep(0.2)
            workers = d.workers()  # its next try may begin in a moment
        took = time.monotonic() - begin
        recoveries, log = d.status().get("recoveries", 0), d.log()
        equal(workers[who]["state"], "quarantined", f"{who} {fault}: the liar")
        check(workers[other]["state"] == "ready", f"{who} {fault}: the honest worker is up", workers[other])
        check(workers[other].get("restarts", 0) <= 1, f"{who} {fault}: restarts of the honest worker", workers[other])
        check(recoveries < 40 + 8 * took, f"{who} {fault}: epochs", recoveries)
        check(re.search(words, log), f"{who} {fault}: the log says why", log[-600:])
        check(len(log.splitlines()) < 300, f"{who} {fault}: lines of log", len(log.splitlines()))
        print(f"     {who} {fault}: {rounds} rounds, {recoveries} recoveries, {len(log.splitlines())} lines of log in "
              f"{took:.1f} s", flush=True)


@test
def accusations():
    lies("gpu", "accuse=0", "accuses a peer")
    lies("npu", "accuse=300", "accuses a peer")
    lies("gpu", "cry=500", "reports a ring|accuses a peer")


@test
def results():
    for kind in ("nan", "inf", "minus-inf", "positive", "id", "n-top"):
        lies("gpu", f"results={kind}", "its results make no sense")


main()
