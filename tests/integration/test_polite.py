"""Someone at the screen beside work in the background: how soon the first token comes, and what the background keeps.

Both halves of each comparison are taken alternately on the same daemon, so that other load on the machine slows
both."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

OFF = "[engine]\nprefix-cache = off\n"  # or nothing would be read the second time


class Background:
    """16 jobs with prompts of 1,000 tokens at all times."""

    def __init__(self, d, n=16):
        self.d, self.stop, self.failed = d, False, []
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(n)]

    def run(self, i):
        k = 0
        try:
            while not self.stop:
                k += 1
                ids = [2] + [300 + (x * 7 + i * 1009 + k * 31) % 5000 for x in range(999)]
                job = self.d.start_job(ids=ids, n=60, priority=1, temp=0.7, seed=i)
                while not self.stop and job.step():
                    pass
                if self.stop:
                    job.vanish()
        except BaseException as e:
            self.failed.append(e)

    def __enter__(self):
        for t in self.threads:
            t.start()
        wait_for(lambda: self.d.status().get("jobs_running", 0) >= len(self.threads), "the background runs")
        return self

    def __exit__(self, *_):
        self.stop = True
        for t in self.threads:
            t.join()
        wait_for(lambda: self.d.status().get("jobs_running", 0) == 0, "the background is gone")
        check(not self.failed, "the background failed", self.failed[:2])


def rows(d):
    s = d.status()
    return s.get("prefill_tokens", 0) + s.get("decode_tokens", 0)


def ask(d, i, pause):
    """An interactive job; its time to first token in ms, and its rows."""
    time.sleep(pause)
    r = d.generate(ids=[2] + [300 + (x * 3 + i * 17) % 5000 for x in range(63)], n=8)
    return r.done["ttft_ms"], 64 + 7


@test
def politeness():
    if SANITIZER:
        raise Skip("measures time")
    idle, beside, alone, kept = [], [], [], []
    n, seconds = times(20, 60), times(1.5, 5)
    with Daemon(threads=0, args=config(OFF)) as d:
        d.generate(n=2)
        for round in range(times(2, 4)):
            idle += [ask(d, round * 1000 + i, 0.02)[0] for i in range(n)]
            with Background(d):
                begin, at = rows(d), time.monotonic()
                own = 0
                for i in range(n):
                    ms, mine = ask(d, round * 1000 + 500 + i, 0.05)
                    beside.append(ms)
                    own += mine
                kept.append((rows(d) - begin - own) / (time.monotonic() - at))
            time.sleep(10.5)  # nobody at the screen any more
            with Background(d):
                begin, at = rows(d), time.monotonic()
                time.sleep(seconds)
                alone.append((rows(d) - begin) / (time.monotonic() - at))
    for x in (idle, beside):
        x.sort()
    p95, median = beside[int(0.95 * (len(beside) - 1))], idle[len(idle) // 2]
    share = sum(kept) / sum(alone)
    print(f"FIGURE time to first token of 64 tokens: "
          f"idle {median:.1f} ms (p95 {idle[int(0.95 * (len(idle) - 1))]:.1f}), "
          f"beside 16 background jobs median {beside[len(beside) // 2]:.1f}, "
          f"p95 {p95:.1f} ms = {p95 / median:.2f} times")
    print(f"FIGURE background throughput: alone {sum(alone) / len(alone):.0f} tokens/s, "
          f"beside interactive jobs {share:.2f} of it")
    check(p95 < 3 * median, "time to first token beside background jobs", p95, median)
    check(share >= 0.5, "throughput of the background", share)


main()
