"""A long mixed load: two models, short and long prompts, jobs that finish, are cancelled or vanish, status and tokenize
calls. In the first part a worker is killed now and then. Nothing may grow: memory (Pss without the KV cache, which has
a budget), file descriptors and threads of each process are sampled in the second part, when the last killed worker is
back, and the second half of the samples is compared with the first. tandemd starts a thread of a pool when it is first
needed, so its threads have a bound instead. There must be no false alarm, and no job may be lost.

usage: soak.py [--seconds S] [--full] [--seed K] [--placement P]
20 s; 20 minutes in full, 5 of them under a sanitizer.
"""
import argparse
import os
import random
import re
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from process_memory import SHARED, mappings, open_files, resident, threads  # noqa: E402
from tandem_test import (SANITIZER, SPROUT, TALE, Closed, Daemon, Refused, check, main,  # noqa: E402
                         same_ids, test, wait_for)

WORDS = "the king his daughter a fox and an old mill in the wood once upon time said rode away golden apple sea".split()
CLIENTS = 6
DAEMON_THREADS = 14  # the event loop, the server's own, and pools of 4: prompts, requests, files to close
GROWTH_BYTES = 6 << 20  # malloc's arenas and the pages of the trace rings may still grow by this much in the last half
KILLS = 0.4  # the part of the time in which workers are killed
SAMPLES = 20  # at least; a busy machine takes its time for each


def random_request(rng):
    prompt = " ".join(rng.choice(WORDS) for _ in range(rng.choice((1, 5, 30, 200, 600))))
    return {"prompt": prompt, "n": rng.choice((1, 10, 60, 200)), "temp": rng.choice((0.0, 0.8)),
            "seed": rng.randrange(99), "model": rng.choice(("tale", "tale", "sprout")), "priority": rng.choice((0, 1))}


def process_figures(pid):
    """(bytes without the KV cache, fds, threads); None if the process is gone."""
    try:
        try:
            size = sum(v for kind, v in mappings(pid).items() if "tandem-kv" not in kind)
        except PermissionError:  # without smaps the KV cache cannot be told from other shared pages: all are left out
            size = sum(v for kind, v in resident(pid).items() if kind != SHARED)
        return size, open_files(pid), threads(pid)
    except (OSError, AttributeError):
        return None


class Soak:
    def __init__(self, daemon, seconds, seed):
        self.d, self.seconds, self.rng = daemon, seconds, random.Random(seed)
        self.pool = [random_request(self.rng) for _ in range(24)]
        self.want = [daemon.generate(**q) for q in self.pool]
        self.over, self.errors, self.lock = False, [], threading.Lock()
        self.counts = {"jobs": 0, "tokens": 0, "cancelled": 0, "vanished": 0, "calls": 0, "kills": 0}
        self.samples = []  # (time, {name: (bytes, fds, threads)})
        self.killed = set()

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] += n

    def client(self, seed):
        rng = random.Random(seed)
        try:
            while not self.over and not self.errors:
                self.one(rng)
                time.sleep(rng.random() * 0.05)
        except BaseException as e:
            self.errors.append(e)

    def one(self, rng):
        i, what = rng.randrange(len(self.pool)), rng.random()
        if what < 0.1:
            self.d.tokenize("Es war einmal " * rng.randrange(1, 200), model="tale")
            self.d.status()
            self.count("calls", 2)
            return
        job = self.d.start_job(**self.pool[i])
        if what < 0.25:
            job.until(rng.randrange(1, 20))
            if what < 0.18 or job.result.done:
                job.vanish()
                self.count("vanished")
                return
            try:
                job.cancel()
            except Refused as e:
                check(e.code == "no-job", "cancel", e)
            job.wait()
            self.count("cancelled")
            return
        r = job.wait()
        check(r.reason != "DONE_ERROR", "a job failed", r.error)
        same_ids(r.ids, self.want[i].ids, f"job {self.pool[i]}")
        self.count("jobs")
        self.count("tokens", len(r.ids))

    def sample(self):
        workers = self.d.workers()
        pids = {"tandemd": self.d.process.pid, **{n: w.get("pid", 0) for n, w in workers.items()}}
        figures = {n: process_figures(p) for n, p in pids.items()}
        if all(figures.values()):
            self.samples.append((time.monotonic(), figures))

    def run(self):
        clients = [threading.Thread(target=self.client, args=(self.rng.randrange(1 << 30),)) for _ in range(CLIENTS)]
        begin = time.monotonic()
        next_kill = begin + self.seconds * 0.1
        for c in clients:
            c.start()
        try:
            while time.monotonic() - begin < KILLS * self.seconds and not self.errors:
                time.sleep(min(2.0, self.seconds / 60))
                if time.monotonic() > next_kill:  # rare and early, so that the workers that are sampled are old ones
                    self.killed.add(self.d.signal_worker(self.rng.choice(("npu", "gpu"))))
                    self.count("kills")
                    next_kill += self.seconds * 0.1
            if not self.errors:
                self.d.wait_ready(90)
            begin = time.monotonic()
            while not self.errors and (time.monotonic() - begin < (1 - KILLS) * self.seconds or
                                       len(self.samples) < SAMPLES):
                time.sleep(min(2.0, self.seconds / 60))
                self.sample()
        except BaseException as e:
            self.errors.append(e)
        self.over = True
        for c in clients:
            c.join()
        if self.errors:
            raise self.errors[0]

    def judge(self):
        end, begin = self.samples[-1][0], self.samples[0][0]
        half = len(self.samples) // 2
        parts = [[f for _, f in part] for part in (self.samples[:half], self.samples[half:])]
        grown = []
        for name in ("tandemd", "npu", "gpu"):
            for k, what, slack in ((0, "bytes", GROWTH_BYTES), (1, "fds", 3), (2, "threads", 0)):
                a, b = (statistics.median(f[name][k] for f in part) for part in parts)
                if what == "fds":  # each client's connection is one fd of tandemd
                    slack = CLIENTS + 3 if name == "tandemd" else 0
                if what == "threads" and name == "tandemd":
                    slack = DAEMON_THREADS - a
                if b > a + slack:
                    grown.append(f"{what} of {name}: {a:.0f} → {b:.0f}")
                print(f"FIGURE soak: {name} {what}: first half {a / (1 << 20 if k == 0 else 1):.1f}, "
                      f"second half {b / (1 << 20 if k == 0 else 1):.1f}{' MiB' if k == 0 else ''}")
        lost = re.findall(r"worker \(pid (\d+)\) lost: (.*)", self.d.log())
        alarms = [f"{pid}: {text}" for pid, text in lost if int(pid) not in self.killed]
        print(f"FIGURE soak: {end - begin:.0f} s, {self.counts}, false alarms {len(alarms)} {alarms}", flush=True)
        check(not grown or SANITIZER, "nothing grows", grown)
        check(not alarms or SANITIZER, "no false alarm", alarms)
        check(self.counts["jobs"] > 0, "jobs ran", self.counts)


@test
def soak():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TANDEM_TEST_SEED", str(int(time.time())))))
    parser.add_argument("--placement", default="measured", help="as TANDEM_PLACEMENT")
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    with Daemon([TALE, SPROUT], placement=args.placement, threads=0) as d:
        d.wait_ready()
        s = Soak(d, args.seconds or (20 if not args.full else 300 if SANITIZER else 1200), args.seed)
        try:
            s.run()
        except (Closed, Refused):
            check(d.process.poll() is None, f"tandemd left with {d.process.poll()}")
            raise
        wait_for(lambda: d.status().get("jobs_running", 0) == 0, "idle at the end", 10)
        s.judge()


if __name__ == "__main__":
    main(every=True)
