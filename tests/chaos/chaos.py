"""Many jobs, many faults. Sixteen jobs with random parameters run at all times. Meanwhile workers are killed, stopped,
restarted, starved of fds and memory, and replaced by programs that leave at once, and their rings are overwritten
(faults.py).

Every job's ids are compared with those of the same job alone. At the end this prints the faults by kind, the
recoveries, the pause they cost (the longest silence over all jobs from a fault to the next), and the false alarms (a
worker called hung that this script had not stopped). Before each fault it waits until both workers are back and tokens
flow again.

usage: chaos.py [--faults N | --seconds S] [--jobs N] [--seed K] [--placement P] [--full]
"""
import argparse
import os
import random
import re
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import SANITIZER, Closed, Daemon, Refused, check, main, same_ids, test, wait_for  # noqa: E402
from faults import HANG_S, Faults  # noqa: E402
from private_bin import PrivateBin  # noqa: E402

CRASHES = ("kill", "both", "exits at start", "no memory at start", "out of fds", "out of memory")
WORDS = "the king his daughter a fox and an old mill in the wood once upon time said rode away golden apple sea".split()


def random_request(rng):
    prompt = " ".join(rng.choice(WORDS) for _ in range(rng.choice((1, 4, 12, 60, 250))))
    return {"prompt": prompt, "n": rng.choice((3, 30, 120, 300)), "temp": rng.choice((0.0, 0.0, 0.7, 1.1)),
            "seed": rng.randrange(1 << 40), "top_k": rng.choice((0, 40)), "top_p": rng.choice((0.0, 0.9)),
            "repeat_penalty": rng.choice((0.0, 1.2)), "chunk": rng.choice((0, 0, 1, 17)),
            "placement": rng.choice(("", "", "", "split", "npu", "gpu"))}


class Chaos:
    def __init__(self, daemon, private, seconds, n_faults, n_jobs, seed):
        self.d, self.n_jobs, self.n_faults = daemon, n_jobs, n_faults
        self.rng = random.Random(seed)
        self.requests = [random_request(self.rng) for _ in range(times_for_pool(n_jobs))]
        self.alone = [daemon.generate(**q) for q in self.requests]
        self.makers = Faults(daemon, private, self.rng)
        self.end = time.monotonic() + seconds
        self.over = False
        self.lock = threading.Lock()
        self.token_times, self.faults, self.errors = [], [], []
        self.counts = {"whole": 0, "cancelled": 0, "vanished": 0}
        self.recovered_jobs = 0

    def client(self, seed):
        rng = random.Random(seed)
        try:
            while not self.over and not self.errors:
                self.one_job(rng)
        except BaseException as e:
            self.errors.append(e)

    def one_job(self, rng):
        i = rng.randrange(len(self.requests))
        want = self.alone[i].ids
        job = self.d.start_job(**self.requests[i])
        leave = rng.choice((None,) * 8 + ("cancel", "vanish"))
        after = rng.randrange(len(want)) if leave else len(want) + 1
        counted = 0
        while True:
            more = job.step()
            with self.lock:
                self.token_times += job.result.times[counted:]
            counted = len(job.result.times)
            if not more:
                break
            if leave and len(job.result.ids) > after:
                if leave == "vanish":
                    job.vanish()
                    self.counts["vanished"] += 1
                    return
                leave = None
                try:
                    job.cancel()
                except Refused as e:
                    check(e.code == "no-job", "cancel", e)  # the job had ended before
        r = job.result
        self.recovered_jobs += r.recoveries > 0
        if r.reason == "DONE_CANCELLED":
            self.counts["cancelled"] += 1
            same_ids(r.ids, want[:len(r.ids)], f"cancelled job {self.requests[i]}")
            return
        check(r.reason != "DONE_ERROR", f"job {self.requests[i]} failed", r.error, self.recent())
        same_ids(r.ids, want, f"job {self.requests[i]} (recoveries {r.recoveries}; {self.recent()})")
        self.counts["whole"] += 1

    def recent(self):
        now = time.monotonic()
        return "last faults: " + ", ".join(f"{k} {now - t:.2f} s ago" for t, k in self.faults[-3:])

    def fault(self):
        kind, at = self.makers.pick(), time.monotonic()
        self.faults.append((at, kind))
        if not self.makers.carry_out(kind):
            self.faults.remove((at, kind))

    def run(self):
        clients = [threading.Thread(target=self.client, args=(self.rng.randrange(1 << 30),))
                   for _ in range(self.n_jobs)]
        for c in clients:
            c.start()
        try:
            while time.monotonic() < self.end and len(self.faults) < self.n_faults and not self.errors:
                time.sleep(self.rng.random() * 0.2)
                self.d.wait_ready(90)
                with self.lock:
                    n = len(self.token_times)
                wait_for(lambda n=n: len(self.token_times) > n + 20 or self.errors, "tokens flow again", 60)
                if not self.errors:
                    self.fault()
            wait_for(lambda n=len(self.token_times): len(self.token_times) > n + 20 or self.errors,
                     "tokens flow at the end", 60)
            self.d.wait_ready(90)
        except BaseException as e:
            self.errors.append(e)
        self.over = True
        for c in clients:
            c.join()
        if self.errors:
            raise self.errors[0]

    def pauses(self, verbs):
        """The longest silence, over all jobs, between each of these faults and the next fault."""
        out, all_times = [], sorted(self.token_times)
        bounds = [t for t, _ in self.faults] + [float("inf")]
        for i, (t, verb) in enumerate(self.faults):
            if verb in verbs:
                at = [t] + [x for x in all_times if t < x < bounds[i + 1]]
                if len(at) > 1:
                    out.append(max(b - a for a, b in zip(at, at[1:])))
        return sorted(out)

    def alarms(self):
        """Workers that were called hung though this script had not stopped them."""
        lost = re.findall(r"worker \(pid (\d+)\) (lost: no (?:progress|answer)[^\n]*)", self.d.log())
        return [f"pid {pid} {text}" for pid, text in lost if int(pid) not in self.makers.hung]

    def figures(self, full):
        s = self.d.status()
        by_kind = {}
        for _, kind in self.faults:
            by_kind[kind] = by_kind.get(kind, 0) + 1
        alarms = self.alarms()
        print(f"FIGURE chaos: {len(self.faults)} faults {by_kind} ({self.makers.harmless} scribbles without effect), "
              f"{self.n_jobs} jobs at a time, {s.get('recoveries', 0)} recoveries, jobs {self.counts}, "
              f"{self.recovered_jobs} of them recovered, none lost or changed, {len(self.token_times)} tokens, "
              f"false alarms {len(alarms)} {alarms}")
        p95 = {}
        for kinds, name in ((CRASHES, "crash"), (("kill",), "SIGKILL"), (("hang",), "hang"), (("restart",), "restart"),
                            (("scribble",), "scribbled ring"), (("pause",), "pause")):
            p = self.pauses(kinds)
            if p:
                p95[name] = p[int(len(p) * 0.95)]
                print(f"FIGURE chaos: from {name} to the next token p50 {1000 * p[len(p) // 2]:.0f} ms, "
                      f"p95 {1000 * p95[name]:.0f} ms, longest {1000 * p[-1]:.0f} ms (of {len(p)})", flush=True)
        check(self.faults and self.counts["whole"], "faults and whole jobs", self.counts)
        check(not alarms or SANITIZER, "false alarms", alarms)
        if full and not SANITIZER:
            check(p95["crash"] < 1.0, "p95 from a crash to the next token is under a second", p95)
            check(p95["hang"] < HANG_S + 1.0,
                  "p95 from a hang to the next token is under its deadline and a second", p95)


def times_for_pool(n_jobs):
    return max(12, n_jobs * (1 if SANITIZER else 2))


@test
def chaos():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--faults", type=int)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TANDEM_TEST_SEED", str(int(time.time())))))
    parser.add_argument("--placement", default="split",
                        help="as TANDEM_PLACEMENT; measured: what the daemon finds best")
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    faults = args.faults or (60 if SANITIZER and args.full else 300 if args.full else 1 << 30)
    seconds = args.seconds or (1100.0 if args.full or args.faults else 20.0)
    print(f"seed {args.seed}", flush=True)
    private = PrivateBin()
    with Daemon(placement=args.placement) as d:
        d.wait_ready()
        c = Chaos(d, private, seconds, faults, args.jobs, args.seed)
        try:
            c.run()
        except (Closed, Refused):
            check(d.process.poll() is None, f"tandemd left with {d.process.poll()}")
            raise
        wait_for(lambda: d.status().get("jobs_running", 0) == 0, "idle at the end", 10)
        c.figures(args.full)
        if args.full and not SANITIZER:
            check(len(c.faults) >= faults, f"{len(c.faults)} faults in {seconds:.0f} s")
        m = d.model("tale")
        used = m.get("kv_pages_full_used", 0) + m.get("kv_pages_window_used", 0)
        check(used == 0, f"{used} KV pages in use while idle")


if __name__ == "__main__":
    main(every=True)
