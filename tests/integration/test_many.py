"""Many jobs at once: random prompts, lengths, priorities, seeds and cancels, up to 64 in a step. Each job's ids are
those of the same job alone; also with the prefix cache off, with prompts cut at random, with a KV cache so small that
jobs are pushed out and read again, and with workers being killed meanwhile. Nothing is measured here."""
import contextlib
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

N = times(30, 200, 20)


def settings(text):
    return config(f"[daemon]\nmax-jobs-per-user = {N + 20}\n[engine]\n" + text)


def make_jobs():
    """Some begin alike, as a conversation's turns do; one in eight is cancelled somewhere."""
    rng = random.Random(11)
    jobs = []
    for i in range(N):
        ids = [2] + [rng.randrange(300, 6000) for _ in range(rng.choice((3, 20, 60, 150, 400) if i % 10 else (900,)))]
        if i and rng.random() < 0.4:
            like = rng.choice(jobs)["ids"]
            ids = like[:rng.randrange(1, len(like) + 1)] + ids[1:1 + rng.choice((1, 30, 100))]
        sampling = rng.choice(({"temp": 0.0}, {"temp": 0.8, "top_k": 40}, {"temp": 1.2, "top_p": 0.9},
                               {"temp": 0.7, "repeat_penalty": 1.2}))
        jobs.append({"ids": ids, "n": rng.choice((1, 7, 30, 80, 250)), "seed": rng.randrange(1 << 40),
                     "priority": rng.choice((0, 0, 1)), **sampling})
    cancels = {i: rng.randrange(0, jobs[i]["n"]) for i in range(N) if rng.random() < 0.125}
    cancels[max(range(N), key=lambda i: jobs[i]["n"])] = 2  # at least one job that still runs when its cancel comes
    return jobs, cancels


JOBS, CANCELS = make_jobs()
ALONE = []


def alone():
    """The reference: one after the other, nothing kept from the one before."""
    if not ALONE:
        with Daemon(threads=0, args=settings("prefix-cache = off\n")) as d:
            ALONE.extend(d.generate(**q) for q in JOBS)
    return ALONE


def run_one(d, i, out, **more):
    try:
        job = d.start_job(**dict(JOBS[i], **more))
        if i in CANCELS:
            if job.until(CANCELS[i]) and job.result.job:
                d.call("cancel", {"job": job.result.job})
        out[i] = job.wait(300 * SLOW)
    except Refused as e:
        out[i] = None if i in CANCELS else e  # cancelled before it began
    except BaseException as e:
        out[i] = e


def run(d, what, meanwhile=None, chunks=False, held=False):
    """All at once; returns the largest number that ran together. held: none is begun before all are there."""
    want = alone()
    rng = random.Random(5)
    out = [None] * N
    threads = [threading.Thread(target=run_one, args=(d, i, out),
                                kwargs={"chunk": rng.choice((1, 5, 16, 33, 100))} if chunks else {})
               for i in range(N)]
    most = 0
    if held:
        d.generate(n=1)
    with d.standing() if held else contextlib.nullcontext():
        for i, t in enumerate(threads):
            t.start()
            if i % 20 == 19:
                time.sleep(0.02)
        if held:
            wait_for(lambda: len(d.jobs()) == N, "all jobs are there")
    while any(t.is_alive() for t in threads):
        most = max(most, d.status().get("jobs_running", 0))
        if meanwhile:
            meanwhile()
        time.sleep(0.02)
    for t in threads:
        t.join()
    cut = 0
    for i, r in enumerate(out):
        if i in CANCELS and r is None:
            cut += 1
            continue
        if isinstance(r, BaseException):
            raise r
        if i in CANCELS and r.reason == "DONE_CANCELLED":
            cut += 1
            same_ids(r.ids, want[i].ids[:len(r.ids)], f"{what}: job {i}, cancelled after {len(r.ids)}")
            check(r.logprobs == want[i].logprobs[:len(r.ids)], f"{what}: log-probabilities of job {i}")
            continue
        equal(r.reason, want[i].reason, f"{what}: end of job {i} ({r.error})")
        same_ids(r.ids, want[i].ids, f"{what}: job {i}, pushed out {r.done.get('evictions', 0)} times")
        check(r.logprobs == want[i].logprobs, f"{what}: log-probabilities of job {i}")
    check(cut >= 1, "jobs that were cancelled", cut)
    s = d.status()
    equal(s.get("jobs_failed", 0), 0, f"{what}: failed jobs")
    equal(s.get("jobs_running", 0) + s.get("jobs_queued", 0), 0, f"{what}: jobs left over")
    m = d.model("tale")
    equal(m.get("kv_pages_full_used", 0) + m.get("kv_pages_window_used", 0), 0, f"{what}: pages in use afterwards")
    return most


@test
def together_as_alone():
    with Daemon(threads=0, args=settings("")) as d:
        most = run(d, "together")
        s = d.status()
        hits = s.get("prefix_hits", 0)
        print(f"FIGURE {N} jobs, up to {most} at once, "
              f"{hits} began with something known ({s.get('cached_tokens', 0)} tokens)")
        check(hits > 0, "something was known")
        if FULL and not SANITIZER:
            equal(most, 64, "jobs at once")


@test
def chunks_at_random():
    with Daemon(threads=0, args=settings("prefix-cache = off\n")) as d:
        run(d, "random chunks, no prefix cache", chunks=True)
        equal(d.status().get("prefix_hits", 0), 0, "prefix hits with the cache off")


@test
def little_memory():
    evictions = reread = 0
    wanted = times(1, 20, 1)
    for size in ("10M", "8M")[:times(1, 2, 1)]:
        with Daemon(threads=0, args=settings(f"kv-memory = {size}\n"), hang_ms=STANDING_MS) as d:
            run(d, f"little memory ({size})", held=True)
            s = d.status()
            evictions += s.get("evictions", 0)
            reread += s.get("reread_tokens", 0)
    print(f"FIGURE little memory: pushed out {evictions} times, {reread} tokens read again")
    check(evictions >= wanted, "jobs that were pushed out", evictions)


@test
def workers_die():
    """One after the other, while memory is short too."""
    rng = random.Random(3)
    killed = []
    last = [0.0]

    def kill():
        if time.monotonic() - last[0] < 0.5 or len(killed) >= times(4, 20, 2):
            return
        if not killed and not d.status().get("prefill_tokens", 0):
            return  # the model is being loaded: nobody would have lost anything
        last[0] = time.monotonic()
        name = rng.choice(("npu", "gpu"))
        if not killed:  # while there are jobs for sure
            with d.standing():
                if d.status().get("jobs_running", 0):
                    d.signal_worker(name)
                    killed.append(name)
            return
        pid = d.worker_pid(name)
        if pid:
            with contextlib.suppress(ProcessLookupError):  # an earlier signal has ended it
                send_signal(pid, signal.SIGKILL)
                killed.append(name)

    with Daemon(threads=0, args=settings("kv-memory = 12M\n"), hang_ms=STANDING_MS) as d:
        for _ in range(10):  # on a busy machine all jobs may have ended before one is killed
            run(d, "workers die", meanwhile=kill)
            if killed:
                break
        s = d.status()
        print(f"FIGURE workers die: {len(killed)} killed, {s.get('recoveries', 0)} recoveries, "
              f"{s.get('evictions', 0)} pushed out")
        check(s.get("recoveries", 0) >= 1, "a worker was lost")


@full_only
def all_of_it():
    with Daemon(threads=0, placement=None, args=settings("")) as d:
        run(d, "the daemon's own placement", chunks=True)


main()
