"""One worker is lost and does not come back for a while: the other one carries on alone, but only where both devices
give the same bits; where they do not, jobs wait. The lost one joins again in the middle of the work, and nobody can
tell any of it from the ids."""
import signal
import time

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "chaos"))
from tandem_test import *  # noqa: E402,F403
import tandem_test  # noqa: E402
from private_bin import PrivateBin  # noqa: E402

JOB = {"n": 900, "temp": 0.8, "seed": 4}


class Away:
    """A worker that is killed, and whose place is taken by a program that never says hello until it may come back."""

    def __init__(self, daemon, private, name):
        self.d, self.private, self.name = daemon, private, name
        self.faulty = "faulty" in os.readlink(os.path.join(private.dir, f"tandem-{name}-worker"))

    def go(self):
        self.private.put_script(self.name, "exec sleep 1000\n")
        pid = self.d.worker_pid(self.name)
        send_signal(pid, signal.SIGKILL)
        wait_for(lambda: self.d.worker_pid(self.name) not in (0, pid), f"the next {self.name} process")

    def come_back(self):
        self.private.put(self.name, self.private.worker(self.name, self.faulty))
        self.d.signal_worker(self.name)
        self.d.wait_ready(30)


def carries_on(placement):
    private = PrivateBin()
    try:
        gaps = []
        with Daemon(placement=placement, hang_ms=STANDING_MS) as d:
            d.wait_ready()
            want = d.generate(**JOB)
            for victim in ("gpu", "npu"):
                away = Away(d, private, victim)
                with d.in_midst(JOB, JOB, tokens=20) as jobs:
                    away.go()
                    at = Stopwatch()
                check(jobs[0].until(500, timeout=30), f"{victim} is away, tokens come")
                later = [t for t in jobs[0].result.times if t > at.begin]
                gaps.append((later[0] - at.begin) * at.share())
                state = d.workers()[victim].get("state")  # after 10 s without a hello there is another process
                check(state in ("starting", "restarting"), f"state of the {victim} worker meanwhile", state)
                check(not any(w.get("state") == "quarantined" for w in d.workers().values()), "nobody is quarantined")
                away.come_back()
                for job in jobs:
                    r = job.wait()
                    same_ids(r.ids, want.ids, f"{placement}, {victim} away")
                    check(r.logprobs == want.logprobs, f"{placement}, {victim} away: log-probabilities")
                    check(not r.done.get("degraded"), "not degraded")
                same_ids(d.generate(**JOB).ids, want.ids, f"{placement}: after the {victim} worker came back")
        print(f"FIGURE survivor ({placement}): the next token comes {1000 * max(gaps):.0f} ms after the survivor may "
              "go on, the other worker away", flush=True)
        # One that waited for the other would wait for ever. Tokens that came while this process had to wait count late.
        check(max(gaps) < 3.0 * SLOW, f"the survivor goes on at once: {gaps}")
    finally:
        tandem_test.BIN = private.built


@test
def carries_on_under_split():
    carries_on("split")


@test
def carries_on_where_the_daemon_places():
    carries_on("measured")


@test
def other_bits_wait():
    """Devices of different numerics ids: nobody stands in for anybody, the job waits and then goes on."""
    private = PrivateBin(faulty=True)
    try:
        with Daemon(env={"TANDEM_FAULT_NPU": "numerics=-other"}, hang_ms=STANDING_MS) as d:
            d.wait_ready()
            long = dict(JOB, n=1200)
            want = d.generate(**long)
            check(want.done["numerics_id"].startswith("split:"), "the numerics id names both", want.done["numerics_id"])
            away = Away(d, private, "npu")
            with d.in_midst(long, tokens=20) as (job,):
                away.go()
            try:
                while job.step(timeout=1.0):  # what was made before
                    pass
                check(False, "it went on alone", len(job.result.ids))
            except TimeoutError:
                pass
            away.come_back()
            r = job.wait()
            same_ids(r.ids, want.ids, "ids of a job that waited")
            equal(r.done["numerics_id"], want.done["numerics_id"], "numerics id")
    finally:
        tandem_test.BIN = private.built


main()
