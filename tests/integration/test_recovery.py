"""Losing a worker costs a pause and nothing else: SIGKILL and SIGSTOP at random moments of a generation."""
import random
import signal
import time

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

PROMPT_LONG = ("Once upon a time there was a king who had three sons. " * 60).strip()
CASES = {  # prompt, tokens, sampling
    "greedy": {"prompt": PROMPT, "n": 400},
    "seeded": {"prompt": PROMPT, "n": 400, "temp": 0.9, "seed": 7},
    "long prompt": {"prompt": PROMPT_LONG, "n": 60, "temp": 0.9, "seed": 11},
}
SEED = int(os.environ.get("TANDEM_TEST_SEED", "20"))


def disturb(kind, rounds, send):
    """Runs jobs and sends a signal to workers at a random moment of each; ids must be those of the undisturbed job."""
    rng = random.Random(SEED + sum(map(ord, kind)))
    with Daemon() as d:
        d.wait_ready()
        want = {name: d.generate(**q) for name, q in CASES.items()}
        hits, gaps, i = 0, [], 0
        # Where this process waits for a CPU a job may be over before it is hit. Then there are more rounds.
        while i < rounds or (hits * 2 < rounds and i < 5 * rounds):
            i += 1
            name = rng.choice(list(CASES))
            d.wait_ready(60)
            pids = {n: w["pid"] for n, w in d.workers().items()}
            victims = {"npu": ["npu"], "gpu": ["gpu"], "both": ["npu", "gpu"]}[rng.choice(("npu", "gpu", "both"))]
            job = d.start_job(**CASES[name])
            after = rng.choice((0, 1, rng.randrange(2, CASES[name]["n"] // 2)))
            while not job.result.job:
                job.step()
            job.until(after)
            time.sleep(rng.random() * (0.05 if after == 0 else 0.003))
            at = time.monotonic()
            for v in victims:
                send(pids[v])
            r = job.wait()
            where = f"{kind}, round {i} ({name}, {'+'.join(victims)} after {after} tokens)"
            equal(r.reason, "DONE_LENGTH", where)
            same_ids(r.ids, want[name].ids, where)
            check(r.logprobs == want[name].logprobs, f"{where}: log-probabilities differ")
            later = [t for t in r.times if t > at]
            if r.recoveries:
                hits += 1
                check("JOB_RECOVERING" in r.states, f"{where}: the client saw 'recovering'", r.states)
                times_ = [at] + later
                gaps.append(max(b - a for a, b in zip(times_, times_[1:])) if later else 0)
            else:
                # The job was over first. A stopped worker is found when work is owed to it, so the next job meets it.
                same_ids(d.generate(**CASES[name]).ids, want[name].ids, f"{where}, the job after it")
            for v in victims:
                wait_for(lambda: not alive(pids[v]), f"{where}: the old {v} worker (pid {pids[v]}) is reaped", 30)
        s = d.status()
        check(hits * 2 >= rounds, f"{kind}: {hits} of {i} signals met a running job")
        check(s.get("recoveries", 0) >= hits, "recoveries in status", s.get("recoveries"))
        check(sum(w.get("restarts", 0) for w in s["workers"]) >= rounds, "restarts in status", s["workers"])
        check(any(w.get("last_exit") for w in s["workers"]), "last_exit in status", s["workers"])
        gaps.sort()
        print(f"FIGURE {kind}: {i} faults, {hits} while a job ran, {s.get('recoveries', 0)} recoveries, "
              f"longest gap between tokens p50 {1000 * gaps[len(gaps) // 2]:.0f} ms, "
              f"p95 {1000 * gaps[int(len(gaps) * 0.95)]:.0f} ms", flush=True)


@test
def killed():
    disturb("kill -9", times(10, 50, 4), lambda pid: send_signal(pid, signal.SIGKILL))


@test
def hung():
    disturb("SIGSTOP", times(4, 50, 2), lambda pid: send_signal(pid, signal.SIGSTOP))


@test
def measured_placement():
    """The daemon places the steps itself: whichever worker a job runs on, or is read by, may be killed."""
    rng = random.Random(SEED)
    with Daemon(placement=None, threads=0) as d:
        want = {name: d.generate(**q) for name, q in CASES.items()}
        for i in range(times(8, 40, 3)):
            name = rng.choice(list(CASES))
            job = d.start_job(**CASES[name])
            job.until(rng.choice((0, 1, CASES[name]["n"] // 3)))
            time.sleep(rng.random() * 0.01)
            for victim in rng.choice((["npu"], ["gpu"], ["npu", "gpu"])):
                d.signal_worker(victim)
            r = job.wait()
            same_ids(r.ids, want[name].ids, f"measured, round {i} ({name})")
            for w in d.workers().values():
                if w.get("state") == "quarantined":  # too many deaths in a row without a step of its own: as documented
                    d.call("restart", {"worker": w["name"]})
            d.wait_ready(60)


@test
def killed_while_idle():
    with Daemon() as d:
        d.wait_ready()
        want = d.generate(n=40)
        for victim in ("npu", "gpu"):
            pid = d.worker_pid(victim)
            send_signal(pid, signal.SIGKILL)
            wait_for(lambda: d.worker_pid(victim) not in (0, pid), f"a new {victim} worker")
            same_ids(d.generate(n=40).ids, want.ids, f"ids after {victim} died while idle")


@test
def many_jobs_survive():
    """Eight jobs in one batch; every one of them goes on."""
    with Daemon(hang_ms=STANDING_MS) as d:
        d.wait_ready()
        requests = [{"n": 150, "temp": 0.8, "seed": s, "prompt": PROMPT + " number " * s} for s in range(8)]
        alone = [d.generate(**q) for q in requests]
        with d.in_midst(*requests, tokens=30, of=3) as jobs:
            d.signal_worker("gpu")
        for job, want in zip(jobs, alone):
            same_ids(job.wait().ids, want.ids, "a job of eight")
        check(any(j.result.recoveries for j in jobs), "recoveries counted")


@test
def workers_leave_with_the_daemon():
    """kill -9 of tandemd: the workers do not outlive it."""
    with Daemon(hang_ms=STANDING_MS) as d:
        d.wait_ready()
        pids = d.worker_pids()
        with d.in_midst(dict(n=4000), tokens=5) as (job,):
            d.expect_exit = None
            d.process.kill()
            d.process.wait()
        for pid in pids:
            wait_for(lambda: not alive(pid), f"worker {pid} leaves", 10)
        try:
            job.wait()
            check(False, "the job ended without its daemon")
        except (Closed, OSError):
            pass


@test
def killed_while_it_loads():
    """A worker dies while the weights of a model come to it, chunk by chunk: its successor gets them all, and neither
    the job that waits for them nor one on another model says anything else."""
    path = make_model("270m", "f16", vocab=32768)
    name = os.path.basename(path)[:-5]
    prompt = [2, 260, 300, 301]
    with Daemon(models=[TALE, path]) as d:
        want, other = d.generate(model=name, ids=prompt, n=6), d.generate(model="tale", n=150)
    met = i = 0
    while i < times(6, 20, 3) or (met == 0 and i < 40):  # a model may be there before the signal comes
        with Daemon(models=[TALE, path]) as d:
            beside = d.start_job(model="tale", n=150)
            beside.until(2)
            job = d.start_job(model=name, ids=prompt, n=6)
            for worker in (("gpu",), ("npu",), ("gpu", "npu"))[i % 3]:
                d.signal_worker(worker)
            # Where the job has not even been looked at yet, status does not name its model.
            met += any(m.get("name") == name and m.get("state") == "loading" for m in d.status()["models"])
            same_ids(job.wait().ids, want.ids, f"the job that waited, kill {i}")
            same_ids(beside.wait().ids, other.ids, f"the job beside it, kill {i}")
        i += 1
    print(f"{met} kills met the loading", flush=True)
    check(met > 0, "no kill met the loading", met)


main()
