"""Ctrl-C and cancel: the client leaves within 100 ms with 130, the job leaves the batch at the next step."""
import select
import signal
import time

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403


@test
def ctrl_c():
    took = []
    with Daemon(hang_ms=STANDING_MS) as d:
        def start():
            return d.popen_cli("generate", "-m", "tale", "--raw", "-n", "4000", "--ignore-end", "--temp", "1",
                               "--seed", str(len(took)), PROMPT)

        # A command that is kept waiting takes longer than it needs. The limit is for the quickest of them, and one that
        # keeps it is enough: not twenty times in a row.
        while len(took) < times(5, 20, 3) or (min(took) >= 100 * SLOW and len(took) < 20):
            before = d.status().get("jobs_cancelled", 0)
            with d.begun(start, lambda p: select.select([p.stdout], [], [], 0)[0], "text") as p:
                watch = Stopwatch()
                p.send_signal(signal.SIGINT)
                p.wait(60 * SLOW)
                took.append(1000 * watch.seconds())
                equal(p.returncode, 130, f"exit status ({p.stderr.read()[-300:]})")
                p.stdout.close()
                p.stderr.close()
            wait_for(lambda: d.status().get("jobs_running", 0) == 0, "the job leaves", pause=0.002)
            equal(d.status().get("jobs_cancelled", 0), before + 1, "jobs cancelled")
        took.sort()
        print(f"FIGURE Ctrl-C to exit: median {took[len(took) // 2]:.1f} ms, worst {took[-1]:.1f} ms")
        check(took[0] < 100 * SLOW, f"exit after {took} ms")
        # A prompt that is being read.
        with d.standing(), d.popen_cli("generate", "-m", "tale", "--raw", "-n", "10", "word " * 3500) as p:
            wait_for(d.jobs, "the job")  # a command that has just begun hears no signal yet, and dies of it
            p.send_signal(signal.SIGINT)
            p.wait(60 * SLOW)
            equal(p.returncode, 130, "exit status while the prompt is read")
        equal(len(d.generate(n=3).ids), 3, "the daemon still serves")


@test
def leaves_at_the_next_step():
    with Daemon(hang_ms=STANDING_MS) as d:
        with d.in_midst(dict(n=3000), dict(n=3000, temp=1.0, seed=3), tokens=20) as (other, job):
            d.call("cancel", {"job": job.result.job})
        begin = time.monotonic()
        r = job.wait()
        equal(r.reason, "DONE_CANCELLED", "reason")
        check(len(r.ids) < 3000, "it was cut short")
        print(f"FIGURE cancel to done: {1000 * (time.monotonic() - begin):.1f} ms")
        other.vanish()
        wait_for(lambda: d.status().get("jobs_running", 0) + d.status().get("steps_in_flight", 0) == 0, "both gone")
        tokens = d.status()["tokens_generated"]
        time.sleep(0.2)
        equal(d.status()["tokens_generated"], tokens, "no token after the last job left")
        # From another client, by the command line.
        with d.in_midst(dict(n=3000), tokens=5) as (job,):
            equal([j["job"] for j in d.jobs()], [job.result.job], "the job list")
            d.cli("cancel", str(job.result.job), check_exit=0)
        equal(job.wait().reason, "DONE_CANCELLED", "reason")


main()
