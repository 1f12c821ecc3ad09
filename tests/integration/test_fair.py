"""Three users with models of very different cost, all busy: each gets a third of the device's time, and a deadline
is kept.

Each user keeps JOBS jobs outstanding. Its share of the device's time is the rate of its prompts, divided by the rate
that it has when it is alone. A step of 512 rows takes up to three jobs of 400 tokens. A user with four or more always
has one that waits when a step ends, so it is busy; the list of jobs is looked at all the time to show that. With two
jobs a user of a cheap model is not: both are in one step, and until its client has come back, a step of a costly model
has the device for a quarter of a second (`test-daemon-device-time` has that with a clock of its own)."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

OFF = "[engine]\nprefix-cache = off\n"  # or nothing would be read the second time
SECONDS = times(20, 120, 60)
JOBS = 12  # of each user
IN_STEP = 3  # jobs of 400 tokens of which a step of 512 rows has rows


def prompt(i, n):
    return [2] + [300 + (x * 7 + i * 1009) % 1500 for x in range(n - 1)]


class User:
    """JOBS jobs at all times, prompts of 400 tokens; counts the tokens of those that are read."""

    def __init__(self, d, uid, model):
        self.d, self.uid, self.model = d, uid, model
        self.tokens, self.failed, self.stop, self.threads = 0, None, False, []

    def run(self, k):
        try:
            while not self.stop:
                k += JOBS
                with LOCK, as_user(self.uid):
                    job = self.d.start_job(ids=prompt(k, 400), n=1, model=self.model)
                job.wait()
                self.tokens += 400
        except BaseException as e:
            self.failed = e

    def start(self):
        self.stop = False
        self.threads = [threading.Thread(target=self.run, args=(k,)) for k in range(JOBS)]
        for t in self.threads:
            t.start()
        time.sleep(2)

    def finish(self):
        self.stop = True
        for t in self.threads:
            t.join()
        if self.failed:
            raise self.failed


LOCK = threading.Lock()


def rate(users, seconds):
    """Tokens a second of each, and the part of the time for which each had a job that no step had."""
    before, begin, n, waits = [u.tokens for u in users], time.monotonic(), 0, [0] * len(users)
    with LOCK:  # as root, who sees all jobs
        wire = users[0].d.wire()
    with wire:
        while time.monotonic() < begin + seconds:
            jobs = wire.call("jobs", {})["jobs"]
            n += 1
            for i, u in enumerate(users):
                waits[i] += sum(j.get("uid") == u.uid for j in jobs) > IN_STEP
            time.sleep(0.05)
    took = time.monotonic() - begin
    return [(u.tokens - b) / took for u, b in zip(users, before)], [w / n for w in waits]


@full_only
def thirds():
    if os.getuid() != 0:
        raise Skip("needs root, to be three users")
    if SANITIZER:
        raise Skip("a sanitizer changes what models cost")
    names = (TALE, make_model("270m", "q8_0", vocab=32768), SPROUT)
    with Daemon(models=names, system=True, threads=0, placement=None, args=config(OFF)) as d:
        for path in (d.dir, os.path.dirname(d.socket)):
            os.chmod(path, 0o755)
        os.chmod(d.socket, 0o666)
        models = [os.path.splitext(os.path.basename(p))[0] for p in names]
        users = [User(d, 65531 + i, m) for i, m in enumerate(models)]
        alone = []
        for u in users:
            u.start()
            alone.append(rate([u], max(5, SECONDS // 6))[0][0])
            u.finish()
        for u in users:
            u.start()
        time.sleep(3)
        together, busy = rate(users, SECONDS)
        begin = time.monotonic()
        late = Job(d, **dict(request(ids=prompt(5, 1000), n=3000, model=models[1]), deadline_ms=10000)).wait()
        took = time.monotonic() - begin
        for u in users:
            u.finish()
        shares = [t / a for t, a in zip(together, alone)]
        mean = sum(shares) / len(shares)
        print(f"FIGURE fair: alone {[f'{a:.0f}/s' for a in alone]}, together {[f'{t:.0f}/s' for t in together]}, "
              f"shares {[f'{s:.3f}' for s in shares]}, busy {[f'{b:.3f}' for b in busy]}, "
              f"a deadline of 10 s ended after {took:.2f} s", flush=True)
        equal(late.error.get("code"), "deadline", "the long job's end")
        check(took < 11, "the deadline is kept", took)
        check(all(b > 0.98 for b in busy), "all users have work all the time", busy)
        check(all(abs(s / mean - 1) < 0.15 for s in shares), "each has a third", shares)


main()
