"""Two devices that differ in bits: what each plan costs is measured again while jobs run, new jobs take the cheapest,
running ones keep their plan and their ids.

Devices are host devices that say they differ and whose speed the test sets while they run
(tests/chaos/faulty-worker.c), or the emulated NPU and such a host device. Each worker has a CPU of its own. With --full
throughput is judged too; a machine with other work would decide that, and not the plan.
"""
import itertools
import json
import statistics
import threading
import time

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "chaos"))
from tandem_test import *  # noqa: E402,F403
import tandem_test  # noqa: E402
from private_bin import PrivateBin, Speed  # noqa: E402

CORES = sorted(os.sched_getaffinity(0))
WITHIN_S = 10 * SLOW
PROMPT_IDS = [2] + list(range(400, 420))


def two_cores():
    if len(CORES) < 2:
        raise Skip("needs two CPUs")
    return {"TANDEM_NPU_CPUS": str(CORES[0]), "TANDEM_GPU_CPUS": str(CORES[1])}


class Load:
    """Long jobs one after the other, so that there is always one that runs. speculation=1: one row a step."""

    def __init__(self, d):
        self.d, self.results, self.ending = d, [], False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ending:
            seed = len(self.results)
            self.results.append(self.d.generate(ids=PROMPT_IDS, n=400, temp=0.8, seed=seed, speculation=1))

    def end(self):
        self.ending = True
        self.thread.join()
        return self.results


def plan_of(result):
    return "npu" if "-n" in result.done["numerics_id"] and "split" not in result.done["numerics_id"] else \
        "gpu" if "-g" in result.done["numerics_id"] and "split" not in result.done["numerics_id"] else "both"


def rate(result):
    return (len(result.times) - 1) / (result.times[-1] - result.times[0])


def short(d, seed, **more):
    return d.generate(ids=PROMPT_IDS, n=60, temp=0.8, seed=seed, speculation=1, **more)


def moved(d, want, what, within_s=WITHIN_S):
    """Starts short jobs until one takes the plan. Returns how long that took."""
    begin = time.monotonic()
    while want not in d.model("tale")["placement"]:
        check(time.monotonic() - begin < within_s, f"{what}: new jobs take {want} within {within_s} s",
              d.model("tale")["placement"], d.log()[-2000:])
        short(d, 1)
    took = time.monotonic() - begin
    print(f"    {what}: {want} after {took:.1f} s", flush=True)
    return took


def same_as_fixed(d, results, placement, what):
    for seed, r in enumerate(results):
        want = d.generate(ids=PROMPT_IDS, n=400, temp=0.8, seed=seed, speculation=1, placement=placement)
        same_ids(r.ids, want.ids, f"{what}: ids of job {seed}")
        same_ids(r.logprobs, want.logprobs, f"{what}: log-probabilities of job {seed}")


@test
def new_jobs_move():
    """The device of the running jobs gets less than half its speed."""
    private = PrivateBin(faulty=True)
    npu, gpu = Speed(900), Speed(500)
    try:
        with Daemon(placement="measured", threads=0,
                    env=dict(two_cores(), TANDEM_FAULT_NPU=npu.fault("n"), TANDEM_FAULT_GPU=gpu.fault("g"))) as d:
            d.wait_ready()
            equal(plan_of(short(d, 0)), "gpu", "the plan found at load")
            job = d.start_job(ids=PROMPT_IDS, n=1800, temp=0.8, seed=7, speculation=1)
            job.until(50)
            time.sleep(3)
            gpu.set(1800)
            moved(d, "npu alone", "slowed")
            check(len(job.result.ids) < 1800 or not job.step(0.01), "the first job still runs")
            new = short(d, 3)
            equal(plan_of(new), "npu", "the plan of a new job")
            gpu.set(500)  # for the comparison; new jobs come back when the next round has seen it
            first = job.wait()
            equal(plan_of(first), "gpu", "the plan of the job that ran meanwhile")
            want = d.generate(ids=PROMPT_IDS, n=1800, temp=0.8, seed=7, speculation=1, placement="gpu")
            same_ids(first.ids, want.ids, "ids of the job that ran meanwhile")
            same_ids(first.logprobs, want.logprobs, "its log-probabilities")
            same_ids(new.ids, short(d, 3, placement="npu").ids, "ids of the new job")
            check("is the cheapest plan now, for new jobs" in d.log(), "the log says so")
    finally:
        tandem_test.BIN = private.built


def need_emulated():
    if not os.path.exists(os.path.join(tandem_test.BIN, "..", "lib", "npu-emulated", "programs", "manifest")):
        raise Skip("the emulated NPU is not in this build (Debian: libxrt-dev, uuid-dev)")


fresh = itertools.count(500, 31)


def cost(d, placement, seed):
    """By a job, as the daemon reckons it by probes: 32 steps of one row and one of 32, in milliseconds."""
    first = next(fresh)  # no beginning that was read before
    r = d.generate(ids=[2] + list(range(first, first + 31)), n=40, temp=0.8, seed=seed, speculation=1,
                   placement=placement)
    return 32e3 / rate(r) + r.done["ttft_ms"]


def ratio(d, slow, other):
    """Of the costs, by jobs that follow each other: a machine that changes its speed meets both alike."""
    return statistics.median(cost(d, slow, seed) / cost(d, other, seed) for seed in range(times(3, 7)))


def tune(d, speed, slow, other, share):
    """Slows the device of plan `slow` until the plan costs that share of the other one. Returns the percent."""
    seen = []
    for _ in range(8):
        now = ratio(d, slow, other)
        seen.append((speed.percent, round(now, 2)))
        if abs(now / share - 1) < 0.06:
            return speed.percent
        speed.set(max(100, speed.percent * share / now))
    raise Skip(f"this machine is not quiet enough to make a plan cost {share} of another: {seen}")


def slowed_to_half(d, speed, slow, other):
    """speed is that of the device of plan `slow`. Jobs run on it while it is about as quick as the other one, at 0.95
    of its cost. Then it is slowed to half."""
    short(d, 0)
    if ratio(d, slow, other) > 0.6:
        raise Skip(f"{slow} is not quick enough beside {other} here")
    half = tune(d, speed, slow, other, 1.9)
    speed.set(half / 2)
    quick = tune(d, speed, slow, other, 0.95)
    print(f"    {slow}: {quick}, then {half} percent of the device's time", flush=True)
    # For new jobs to come to it, it has to be a good deal quicker once. No job runs on it, so nobody sees that until
    # the next round: at most a minute.
    speed.set(quick * 0.6)
    moved(d, slow + " alone", "much quicker", 70 * SLOW)
    speed.set(quick)
    load = Load(d)
    time.sleep(20 * SLOW)  # that was a change too: what it makes the daemon do is over then
    n_before = len(load.results)
    speed.set(half)
    moved(d, other + " alone", "slowed to half")
    results = load.end()
    old = results[:n_before + 1]
    check(all(plan_of(r) == slow for r in old), "jobs that ran before kept their plan",
          [r.done["numerics_id"] for r in old])
    same_as_fixed(d, old, slow, "running ones")
    equal([r.done["numerics_id"] for r in (short(d, 5),)], [short(d, 5, placement=other).done["numerics_id"]],
          "a new job's plan")
    pairs = [rate(short(d, s)) / rate(short(d, s, placement=other)) for s in range(times(5, 15))]
    print(f"    rate of new jobs to that of the better fixed plan: {statistics.median(pairs):.3f} (of {len(pairs)} "
          f"pairs); its cost to the other's: {1 / ratio(d, slow, other):.2f}", flush=True)
    if FULL:
        check(statistics.median(pairs) >= 0.9, "throughput of new jobs", pairs)


@test
def emulated_npu_and_host():
    """The host device is slowed."""
    need_emulated()
    private = PrivateBin(faulty=True)
    gpu = Speed()
    try:
        private.restore("npu")
        with Daemon(placement="measured", threads=0,
                    env=dict(two_cores(), TANDEM_NPU="emulated", TANDEM_GPU="host",
                             TANDEM_FAULT_GPU=gpu.fault("g"))) as d:
            equal(d.wait_ready()["npu"]["device"], "emulated", "the npu worker's device")
            slowed_to_half(d, gpu, "gpu", "npu")
    finally:
        tandem_test.BIN = private.built


def overlap(path):
    """Of the time from the first to the last block: the share in which both tracks were in one."""
    with open(path) as f:
        events = [e for e in json.load(f)["traceEvents"] if e["ph"] == "X"]
    edges = sorted([(e["ts"], 1, e["tid"]) for e in events] + [(e["ts"] + e["dur"], -1, e["tid"]) for e in events])
    inside, both, last = {}, 0.0, edges[0][0]
    for ts, change, tid in edges:
        if sum(1 for n in inside.values() if n > 0) > 1:
            both += ts - last
        inside[tid] = inside.get(tid, 0) + change
        last = ts
    return both / (edges[-1][0] - edges[0][0])


@test
def both_at_work():
    """Under split with 8 sequences, attention of one step and the FFN of another run at once."""
    private = PrivateBin(faulty=True)
    try:
        with Daemon(threads=0, env=dict(two_cores(), TANDEM_FAULT_NPU="numerics=-n,slow=300",
                                        TANDEM_FAULT_GPU="numerics=-g,slow=300")) as d:
            d.wait_ready()
            d.generate(n=4)
            jobs = [d.start_job(ids=PROMPT_IDS, n=400, seed=i, temp=0.8, speculation=1) for i in range(8)]
            for j in jobs:
                j.until(10)
            path = os.path.join(d.dir, "t.json")
            d.cli("trace", "-o", path, "--seconds", "0.4", check_exit=0)
            share = overlap(path)
            print(f"    both tracks at work: {100 * share:.0f}% of the time", flush=True)
            check(share > 0.2, "both tracks at work at once", share)
            for i, j in enumerate(jobs):
                ids = j.wait().ids
                if i < 2:
                    same_ids(ids, d.generate(ids=PROMPT_IDS, n=400, seed=i, temp=0.8, speculation=1).ids, "ids")
    finally:
        tandem_test.BIN = private.built


main()
