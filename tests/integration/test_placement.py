"""Where blocks run: `measured` on two sets of CPUs and on one, pieces of a prompt on both workers at once, losses in
the middle of them, and that nobody can tell any of it from the ids."""
import contextlib
import random
import signal
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
SEED = int(os.environ.get("TANDEM_TEST_SEED", "20"))


def pinned(**more):
    if len(CORES) < 2:
        raise Skip("needs two CPUs")
    return Daemon(threads=0, env=dict(TANDEM_NPU_CPUS=str(CORES[0]), TANDEM_GPU_CPUS=str(CORES[1]),
                                      TANDEM_PLACEMENT="measured", **more))


def requests(n, seed, lengths=(1, 9, 70, 200, 500)):
    rng = random.Random(seed)
    return [{"ids": [2] + [rng.randrange(300, 2000) for _ in range(rng.choice(lengths))], "n": rng.choice((1, 6, 40)),
             "temp": rng.choice((0.0, 0.9)), "seed": i, "chunk": rng.choice((0, 0, 33))} for i in range(n)]


def ran(daemon):
    return {n: sum(blocks(w).values()) for n, w in daemon.workers().items()}


def compare(results, want, what):
    for i, (r, w) in enumerate(zip(results, want)):
        same_ids(r.ids, w.ids, f"{what}: ids of job {i}")
        same_ids(r.logprobs, w.logprobs, f"{what}: log-probabilities of job {i} ({r.recoveries} recoveries)")
        equal(r.done["numerics_id"], w.done["numerics_id"], f"{what}: numerics id of job {i}")


def alone(all_requests):
    with Daemon(env={"TANDEM_PLACEMENT": "gpu"}) as d:
        return [d.generate(**q) for q in all_requests]


@test
def one_resource():
    """Two workers on the same cores: one does all, the other takes over and is nobody's loss."""
    private = PrivateBin()
    try:
        with Daemon(placement=None, hang_ms=STANDING_MS) as d:  # it is the default
            d.wait_ready()
            want = d.generate(n=1200)
            check(d.model("tale")["placement"].startswith("measured: one worker, the other in reserve"), "placement",
                  d.model("tale"))
            for _ in range(40):  # on a busy machine the plan moves over when a worker gets too little: not always
                before = ran(d)
                d.generate(n=300)
                share = {n: blocks_run - before[n] for n, blocks_run in ran(d).items()}
                first = max(share, key=share.get)
                other = "npu" if first == "gpu" else "gpu"
                if share[other] * 10 < share[first]:
                    break
            check(share[other] * 10 < share[first], "one worker ran nearly everything", share)
            # Its next life begins when the other one has had a turn, or it may be back before that.
            gate = os.path.join(private.dir, "gate")
            open(gate, "w").close()
            private.put_script(first, f'while [ -e {gate} ]; do sleep 0.1; done\nexec {private.worker(first)} "$@"\n')
            with d.in_midst(dict(n=1200), tokens=20) as (job,):
                before = ran(d)[other]
                d.signal_worker(first)
            wait_for(lambda: ran(d)[other] > before, "the other one goes on meanwhile")
            os.unlink(gate)
            r = job.wait()
            same_ids(r.ids, want.ids, "ids of a job that changed its worker")
            equal(r.done["numerics_id"], want.done["numerics_id"], "numerics id")
            check(not r.done.get("degraded"), "not degraded")
    finally:
        tandem_test.BIN = private.built


@test
def reserve_does_not_wear_out():
    """A worker in reserve that is killed more often than a broken one may die is still there."""
    with Daemon(env={"TANDEM_PLACEMENT": "measured"}) as d:
        d.wait_ready()
        for _ in range(7):
            pid = d.worker_pid("npu")
            send_signal(pid, signal.SIGKILL)
            wait_for(lambda: d.worker_pid("npu") not in (0, pid), "a new npu worker")
            d.wait_ready()
            d.generate(n=2)


@test
def quarantine_and_back():
    """A worker that leaves at every start is quarantined: jobs go on, degraded. When it can start again it comes back
    by itself, and so does the flag."""
    private = PrivateBin()
    try:
        with Daemon(placement="measured") as d:
            d.wait_ready()
            want = d.generate(n=40)
            private.put_script("npu", "exit 3\n")
            d.signal_worker("npu")
            wait_for(lambda: d.workers()["npu"].get("state") == "quarantined", "the npu worker is quarantined", 30)
            r = d.generate(n=40)
            same_ids(r.ids, want.ids, "ids meanwhile")
            check(r.done.get("degraded"), "degraded", r.done)
            check("degraded" in d.model("tale").get("placement"), "degraded in status", d.model("tale"))
            private.restore("npu")
            job = d.start_job(n=1500)
            d.wait_ready(30)
            equal(job.wait().reason, "DONE_LENGTH", "a job that ran meanwhile")
            r = d.generate(n=40)
            same_ids(r.ids, want.ids, "ids afterwards")
            check(not r.done.get("degraded"), "not degraded any more", r.done)
    finally:
        tandem_test.BIN = private.built


@test
def balanced():
    with pinned() as d:
        w = d.wait_ready()
        for name, core in (("npu", CORES[0]), ("gpu", CORES[1])):
            check(w[name]["detail"].endswith(f"CPUs {core}"), "CPUs in status", w[name]["detail"])
            for task in os.listdir(f"/proc/{w[name]['pid']}/task"):
                equal(os.sched_getaffinity(int(task)), {core}, f"CPUs of thread {task} of the {name} worker")
        jobs = requests(times(20, 60, 8), SEED)
        want = alone(jobs)
        equal(d.model("tale").get("placement") if d.generate(n=1) else "", "measured: balanced", "placement in status")
        compare([j.wait() for j in [d.start_job(**q) for q in jobs]], want, "balanced")
        check(min(ran(d).values()) > 0, "both workers had blocks", ran(d))


@test
def one_prompt_on_both():
    """A prompt alone is read by both workers; single steps are exact whatever its pieces."""
    jobs = requests(6, SEED + 1, (300, 600, 900))
    want = alone(jobs)

    def rows(d):
        return [sum(b.get("rows", 0) for b in w["blocks"]) for w in d.workers().values()]
    with pinned() as d:
        d.wait_ready()
        compare([d.generate(**q) for q in jobs], want, "one at a time")
        share = rows(d)
        for i in range(20):  # a worker whose CPU others take for a while rightly gets less
            if min(share) * 10 > sum(share):
                break
            before = rows(d)
            for q in requests(6, SEED + 100 + i, (300, 600, 900)):
                d.generate(**q)
            share = [now - then for now, then in zip(rows(d), before)]
        check(min(share) * 10 > sum(share), "both had their share of rows", share)


@test
def killed_in_a_prompt():
    """SIGKILL and SIGSTOP while both workers read one prompt."""
    rng = random.Random(SEED + 2)
    jobs = requests(8, SEED + 3, (500, 900))
    want = alone(jobs)
    hits = i = 0
    with pinned() as d:
        d.wait_ready()
        while i < times(8, 80, 5) or (hits == 0 and i < 80):  # a prompt may have been read before the signal comes
            i += 1
            wait_for(lambda: all(w.get("state") == "ready" for w in d.workers().values()), "both workers", 60)
            k = rng.randrange(len(jobs))
            others = [d.start_job(**q) for q in rng.sample(jobs, rng.choice((0, 0, 2)))]
            job = d.start_job(**jobs[k])
            while not job.result.job:
                job.step()
            time.sleep(rng.random() * 0.05 * SLOW)
            victims = rng.choice((["npu"], ["gpu"], ["npu", "gpu"]))
            pids = [d.signal_worker(v, signal.SIGSTOP if rng.random() < 0.2 else signal.SIGKILL) for v in victims]
            r = job.wait()
            hits += r.recoveries > 0
            compare([r], [want[k]], f"round {i}, {'+'.join(victims)}")
            for o in others:
                equal(o.wait().reason, "DONE_LENGTH", f"round {i}: another job")
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    send_signal(pid, signal.SIGKILL)  # one that was stopped when nothing was owed
            wait_for(lambda: not any(alive(pid) for pid in pids), f"round {i}: the old workers are reaped", 30)
    check(hits > 0, "a signal met a running job")


def part(rows):
    return sum(npu for npu, _ in rows) / max(1, sum(both for _, both in rows))


def shares(daemon, seconds, load, moved=lambda share: True):
    """[(FFN rows of the npu worker, of both)] of each half second in the time given, while `load` runs; longer on a
    slow machine, until the npu worker's part of the last second has moved."""
    def rows():
        return {n: next(b.get("rows", 0) for b in w["blocks"] if b["kind"] == "ffn")
                for n, w in daemon.workers().items()}
    over, threads = [], [threading.Thread(
        target=lambda q=q: [daemon.generate(**q) for _ in iter(lambda: not over, False)])
                         for q in load]
    for t in threads:
        t.start()
    try:
        out, before = [], rows()
        for i in range(int(seconds * 20)):
            if i >= seconds * 2 and moved(part(out[-2:])):
                break
            time.sleep(0.5)
            now = rows()
            out.append((now["npu"] - before["npu"], sum(now.values()) - sum(before.values())))
            before = now
    finally:
        over.append(True)
        for t in threads:
            t.join()
    return out


def cpu_left(daemon):
    """For each worker, which has one of CORES to itself: (ticks in which that CPU was busy, ticks that the worker used,
    all ticks)."""
    with open("/proc/stat") as f:
        lines = {line.split()[0]: [int(x) for x in line.split()[1:9]] for line in f if line.startswith("cpu")}
    out = {}
    for name, core in zip(("npu", "gpu"), CORES):
        ticks = lines[f"cpu{core}"]
        with open(f"/proc/{daemon.worker_pid(name)}/stat") as f:
            used = sum(int(x) for x in f.read().rsplit(")", 1)[1].split()[11:13])
        out[name] = (sum(ticks) - ticks[3] - ticks[4], used, sum(ticks))
    return out


def part_left(before, after, name):
    """The part of a worker's CPU that nobody else used between two calls of cpu_left()."""
    busy, used, ticks = (b - a for a, b in zip(before[name], after[name]))
    return 1.0 - min(0.95, max(0.0, (busy - used) / max(1, ticks)))


def slowed(env, load, moved, holds):
    """The last shares, and what other programs left of the CPUs meanwhile: of the first two seconds in which that
    holds. A plan follows what it has measured, so it is late where other programs begin or end."""
    private = PrivateBin(faulty=True)
    try:
        with Daemon(threads=0, env=dict(env, TANDEM_FAULT_GPU="slow=300,slow-after=3000"), placement="measured") as d:
            d.wait_ready()
            want = [d.generate(**q).ids for q in load]
            shares(d, 5 if not SANITIZER else 18, load, moved)
            for _ in range(10):
                before = cpu_left(d)
                out = shares(d, 2, load)
                after = cpu_left(d)
                left = {n: part_left(before, after, n) for n in before}
                if holds(part(out), left):
                    break
            for q, ids in zip(load, want):
                same_ids(d.generate(**q).ids, ids, "ids after the plan has moved")
            return out, left
    finally:
        tandem_test.BIN = private.built


@test
def plan_moves_on_one_resource():
    """The worker that has everything gets slower: within seconds the other one has it."""
    out, _ = slowed({}, [{"n": 80, "seed": i, "temp": 0.7} for i in range(3)],
                    lambda share: share > 0.8, lambda share, _: share > 0.8)
    check(part(out) > 0.8, "the npu worker has nearly all of the rows", out)


@test
def plan_moves_on_two_resources():
    """One of two gets slower: its share shrinks within seconds. Where other programs use the two CPUs unequally, the
    share that follows the speeds is another one: three quarters if they do not."""
    if len(CORES) < 2:
        raise Skip("needs two CPUs")

    def holds(share, left):
        return share > min(0.6, 0.8 * left["npu"] / (left["npu"] + left["gpu"] / 3))
    out, left = slowed({"TANDEM_NPU_CPUS": str(CORES[0]), "TANDEM_GPU_CPUS": str(CORES[1])},
                       [{"n": 60, "seed": i, "temp": 0.7} for i in range(8)], lambda share: share > 0.6, holds)
    check(holds(part(out), left), "the npu worker has the larger share", out, left)


@test
def devices_that_differ():
    """Other bits: a plan that was tried out at load, shown, and named by the job. A job that runs while the device gets
    slow keeps it (test_balance.py has the jobs that come then)."""
    private = PrivateBin(faulty=True)
    try:
        for slow, want in (("NPU", "gpu alone"), ("GPU", "npu alone")):
            other = "GPU" if slow == "NPU" else "NPU"
            quick = Speed()
            faults = {f"TANDEM_FAULT_{slow}": "numerics=-slow,slow=900", f"TANDEM_FAULT_{other}": quick.fault("quick")}
            with Daemon(placement="measured", env=faults) as d:
                d.wait_ready()
                r = d.generate(n=30)
                equal(d.model("tale").get("placement"), f"measured: {want}", "placement in status")
                check("-quick" in r.done["numerics_id"] and "-slow" not in r.done["numerics_id"], "numerics id", r.done)
                check("is the cheapest plan" in d.log(), "the log says what was measured")
                job = d.start_job(n=200)
                job.until(10)
                quick.set(900 if not SANITIZER else 100)  # now the quick one is slow too
                again = job.wait()
                same_ids(again.ids[:30], r.ids, "ids")
                equal(again.done["numerics_id"], r.done["numerics_id"], "numerics id when the load has changed")
    finally:
        tandem_test.BIN = private.built


@test
def bad_cpus():
    for value, message in (("0-", "list of CPUs"), ("1023", "may only use")):
        d = Daemon(env={"TANDEM_NPU_CPUS": value}, wait=False)
        d.expect_exit = None
        with d:
            equal(exit_of(d.process), 2, "exit status")
            check(message in d.log(), "the message", d.log())


main()
