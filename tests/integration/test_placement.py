"""Where blocks run: `measured` on two sets of CPUs and on one, pieces of a prompt on both workers at once, losses in the
middle of them, and that nobody can tell any of it from the ids."""
import random
import signal
import time

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

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
    with Daemon(env={"TANDEM_PLACEMENT": "measured"}) as d:
        d.wait_ready()
        want = d.generate(n=600)
        check(ran(d)["npu"] == 0 and ran(d)["gpu"] > 0, "the gpu worker ran everything", ran(d))
        check(d.model("tale")["placement"].startswith("measured: single gpu"), "placement", d.model("tale"))
        pid = d.worker_pid("gpu")
        job = d.start_job(n=600)
        job.until(20)
        os.kill(pid, signal.SIGKILL)
        r = job.wait()
        same_ids(r.ids, want.ids, "ids of a job that changed its worker")
        equal(r.done["numerics_id"], want.done["numerics_id"], "numerics id")
        check(not r.done.get("degraded"), "not degraded")
        check(ran(d)["npu"] > 0, "the npu worker went on meanwhile", ran(d))


@test
def reserve_does_not_wear_out():
    """A worker in reserve that is killed more often than a broken one may die is still there."""
    with Daemon(env={"TANDEM_PLACEMENT": "measured"}) as d:
        d.wait_ready()
        for _ in range(7):
            pid = d.worker_pid("npu")
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: d.worker_pid("npu") not in (0, pid), "a new npu worker")
            d.wait_ready()
            d.generate(n=2)


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
    with pinned() as d:
        d.wait_ready()
        before = d.workers()
        compare([d.generate(**q) for q in jobs], want, "one at a time")
        rows = {n: sum(b.get("rows", 0) for b in w["blocks"]) for n, w in d.workers().items()}
        check(min(rows.values()) * 10 > sum(rows.values()), "both had their share of rows", rows, before)


@test
def killed_in_a_prompt():
    """SIGKILL and SIGSTOP while both workers read one prompt."""
    rng = random.Random(SEED + 2)
    jobs = requests(8, SEED + 3, (500, 900))
    want = alone(jobs)
    hits = 0
    with pinned() as d:
        d.wait_ready()
        for i in range(times(12, 80, 5)):
            wait_for(lambda: all(w.get("state") == "ready" for w in d.workers().values()), "both workers", 60)
            k = rng.randrange(len(jobs))
            others = [d.start_job(**q) for q in rng.sample(jobs, rng.choice((0, 0, 2)))]
            job = d.start_job(**jobs[k])
            while not job.result.job:
                job.step()
            time.sleep(rng.random() * 0.05 * SLOW)
            victims = rng.choice((["npu"], ["gpu"], ["npu", "gpu"]))
            pids = [d.worker_pid(v) for v in victims]
            for pid in pids:
                if pid:
                    os.kill(pid, signal.SIGSTOP if rng.random() < 0.2 else signal.SIGKILL)
            r = job.wait()
            hits += r.recoveries > 0
            compare([r], [want[k]], f"round {i}, {'+'.join(victims)}")
            for o in others:
                equal(o.wait().reason, "DONE_LENGTH", f"round {i}: another job")
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)  # one that was stopped when nothing was owed
                except (ProcessLookupError, PermissionError):
                    pass
    check(hits > 0, "a signal met a running job")


@test
def bad_cpus():
    for value, message in (("0-", "list of CPUs"), ("1023", "may only use")):
        d = Daemon(env={"TANDEM_NPU_CPUS": value}, wait=False)
        d.expect_exit = None
        with d:
            equal(d.process.wait(20 * SLOW), 2, "exit status")
            check(message in d.log(), "the message", d.log())


main()
