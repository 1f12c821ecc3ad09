"""Many jobs, many faults: workers are killed, stopped and restarted at random while jobs with random
parameters come and go.

Every job's ids are compared with those of the same job alone. What is printed at the end: faults by kind,
recoveries, the pause they cost (the longest silence over all jobs from a fault to the next), and false alarms
(restarts that no fault explains). A fault waits until tokens flow again after the one before, because a worker that
dies again and again without a finished step is rightly taken out of service.

usage: chaos.py [--seconds S] [--jobs N] [--seed K] [--full]
"""
import argparse
import os
import random
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import (SANITIZER, SLOW, Closed, Daemon, Refused, alive, check, main, same_ids, test,
                         wait_for)  # noqa: E402

WORDS = "the king his daughter a fox and an old mill in the wood once upon time said rode away golden apple sea".split()


def random_request(rng):
    prompt = " ".join(rng.choice(WORDS) for _ in range(rng.choice((1, 4, 12, 60, 250))))
    return {"prompt": prompt, "n": rng.choice((3, 30, 120, 300)), "temp": rng.choice((0.0, 0.0, 0.7, 1.1)),
            "seed": rng.randrange(1 << 40), "top_k": rng.choice((0, 40)), "top_p": rng.choice((0.0, 0.9)),
            "repeat_penalty": rng.choice((0.0, 1.2)), "chunk": rng.choice((0, 0, 1, 17)),
            "placement": rng.choice(("", "", "", "split", "npu", "gpu"))}


class Chaos:
    def __init__(self, daemon, seconds, n_jobs, seed):
        self.d, self.n_jobs = daemon, n_jobs
        self.rng = random.Random(seed)
        self.requests = [random_request(self.rng) for _ in range(times_for_pool(n_jobs))]
        self.alone = [daemon.generate(**q) for q in self.requests]
        self.end = time.monotonic() + seconds
        self.lock = threading.Lock()
        self.token_times, self.faults, self.errors = [], [], []
        self.counts = {"whole": 0, "cancelled": 0, "vanished": 0}
        self.expected_restarts = 0
        self.recovered_jobs = 0

    def client(self, seed):
        rng = random.Random(seed)
        try:
            while time.monotonic() < self.end and not self.errors:
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
                    check(e.code == "no-job", "cancel", e)  # it was done already
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

    def pid(self, name):
        return self.d.worker_pid(name)

    def fault(self):
        kind = self.rng.choice(("kill npu", "kill gpu", "kill both", "hang npu", "hang gpu", "pause npu", "pause gpu",
                                "restart npu", "restart gpu"))
        verb, who = kind.split()
        names = ["npu", "gpu"] if who == "both" else [who]
        pids = [self.pid(n) for n in names]
        if not all(pids):
            return
        self.faults.append((time.monotonic(), verb))
        if verb == "restart":
            self.d.call("restart", {"worker": who})
            self.expected_restarts += 1
        elif verb == "pause":  # well under the hang deadline: nothing may happen
            send(pids, signal.SIGSTOP)
            time.sleep(self.rng.random() * 0.15)
            send(pids, signal.SIGCONT)
        else:
            send(pids, signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
            self.expected_restarts += len(pids)
        if verb != "pause":
            deadline = time.monotonic() + 3 * SLOW
            while self.d.placement != "split" and any(map(alive, pids)) and time.monotonic() < deadline:
                time.sleep(0.02)
            if self.d.placement != "split":
                send(pids, signal.SIGKILL)  # one in reserve is not missed before it is needed
            for p in pids:
                wait_for(lambda p=p: not alive(p), f"{kind}: pid {p} reaped", 30)

    def run(self):
        clients = [threading.Thread(target=self.client, args=(self.rng.randrange(1 << 30),
                                                              )) for _ in range(self.n_jobs)]
        for c in clients:
            c.start()
        try:
            while time.monotonic() < self.end and not self.errors:
                time.sleep(0.1 + self.rng.random() * 0.4 * min(SLOW, 3))
                self.d.wait_ready(60)
                with self.lock:
                    n = len(self.token_times)
                wait_for(lambda n=n: len(self.token_times) > n + 20 or time.monotonic() > self.end or self.errors,
                         "tokens flow again", 60)
                if time.monotonic() < self.end and not self.errors:
                    self.fault()
        except BaseException as e:
            self.errors.append(e)
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

    def figures(self):
        s = self.d.status()
        by_kind = {}
        for _, verb in self.faults:
            by_kind[verb] = by_kind.get(verb, 0) + 1
        restarts = sum(w.get("restarts", 0) for w in s["workers"])
        alarms = restarts - self.expected_restarts
        print(f"FIGURE chaos: {len(self.faults)} faults {by_kind}, {s.get('recoveries', 0)} recoveries, "
              f"jobs {self.counts}, {self.recovered_jobs} of them recovered, {len(self.token_times)} tokens, false alarms {alarms}")
        for verbs, name in ((("kill",), "SIGKILL"), (("hang",), "hang"), (("restart",), "restart")):
            p = self.pauses(verbs)
            if p:
                print(f"FIGURE chaos: from {name} to the next token p50 {1000 * p[len(p) // 2]:.0f} ms, "
                      f"p95 {1000 * p[int(len(p) * 0.95)]:.0f} ms (of {len(p)})", flush=True)
        check(not any(w.get("state") == "quarantined" for w in s["workers"]), "a worker is quarantined", s["workers"])
        check(self.faults and self.counts["whole"], "faults and whole jobs", self.counts)
        # On a loaded machine a worker may truly stand still for longer than the deadline: that is slow, and no error.
        check(alarms <= 1 + len(self.faults) // 10 or SANITIZER, f"{alarms} false alarms for {len(self.faults)} faults")


def times_for_pool(n_jobs):
    return n_jobs * (2 if SANITIZER else 4)


def send(pids, signum):
    for p in pids:
        try:
            os.kill(p, signum)
        except ProcessLookupError:
            pass


@test
def chaos():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TANDEM_TEST_SEED", str(int(time.time())))))
    parser.add_argument("--placement", default="split", help="as TANDEM_PLACEMENT; measured: what the daemon finds best")
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    seconds = args.seconds or (180.0 if args.full else 20.0)
    print(f"seed {args.seed}", flush=True)
    with Daemon(placement=args.placement) as d:
        d.wait_ready()
        c = Chaos(d, seconds, args.jobs, args.seed)
        try:
            c.run()
        except (Closed, Refused):
            check(d.process.poll() is None, f"tandemd left with {d.process.poll()}")
            raise
        wait_for(lambda: d.status().get("jobs_running", 0) == 0, "idle at the end", 10)
        c.figures()
        m = d.model("tale")
        used = m.get("kv_pages_full_used", 0) + m.get("kv_pages_window_used", 0)
        check(used == 0, f"{used} KV pages in use while idle")


main(every=True)
