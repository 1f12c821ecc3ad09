"""A KV cache that is too small for what runs: the least important job makes room, reads its tokens again later, and
gives the ids it would have given alone, without a gap or a repeat (Job.step checks the index of every token)."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

SMALL = "[engine]\nkv-memory = 4M\n"


def pages(d):
    m = d.model("tale")
    return m.get("kv_pages_full", 0), m.get("kv_pages_window", 0)


def requests(n):
    return [{"ids": [2] + [300 + (i * 91 + k * 7) % 5000 for k in range(20 + i * 17 % 150)], "n": 250 + i * 31 % 200,
             "temp": 0.8 if i % 2 else 0.0, "seed": i, "priority": i % 3 == 0} for i in range(n)]


def push_out(jobs, want, more):
    """All at once on little memory; how many were pushed out, how many tokens were read again."""
    with Daemon(threads=0, args=config(SMALL + more), hang_ms=STANDING_MS) as d:
        d.generate(n=1)
        got = all_there(d, jobs)
        for i, (a, b) in enumerate(zip(got, want)):
            same_ids(a.ids, b.ids, f"job {i}, pushed out {a.done.get('evictions', 0)} times")
            check(a.logprobs == b.logprobs, f"log-probabilities of job {i}")
        s = d.status()
        total = sum(r.done.get("evictions", 0) for r in got)
        reread = sum(r.done.get("reread_tokens", 0) for r in got)
        print(f"FIGURE {len(jobs)} jobs on {pages(d)} pages: pushed out {total} times, {reread} tokens read again")
        equal(s.get("evictions", 0), total, "evictions in status")
        equal(s.get("reread_tokens", 0), reread, "tokens read again in status")
        equal(got[0 if not jobs[0]["priority"] else 1].done.get("evictions", 0), 0,
              "the oldest interactive job is never pushed out")
        equal(s.get("jobs_failed", 0), 0, "failed jobs")
        m = d.model("tale")
        equal(m.get("kv_pages_full_used", 0) + m.get("kv_pages_window_used", 0), 0, "pages in use afterwards")
        return total, reread


@test
def pushed_out():
    """With a prefix cache (what was pushed out may still be found) and without (all of it is read again)."""
    jobs = requests(times(10, 40, 8))
    with Daemon(threads=0) as d:
        want = [d.generate(**q) for q in jobs]
    for more in ("", "prefix-cache = off\n"):
        total, reread = push_out(jobs, want, more)
        check(total > 0, "jobs were pushed out")
        check(reread > 0 or not more, "without a prefix cache tokens are read again")


@test
def scores_are_told_once():
    """Scoring that is pushed out by someone at the screen goes on where it was."""
    with Daemon() as d, Daemon(args=config(SMALL)) as small:
        ids = [2] + [300 + k * 13 % 5000 for k in range(900)]
        text = json.dumps(ids)
        path = os.path.join(d.dir, "ids.json")
        with open(path, "w") as f:
            f.write(text)
        want = d.cli("score", "-m", "tale", "--ids", path, check_exit=0).stdout
        with small.popen_cli("score", "-m", "tale", "--ids", path) as p:
            runs = [small.start_job(ids=[2] + [400 + i] * 400, n=200) for i in range(4)]
            for r in runs:
                r.wait()
            equal(p.stdout.read(), want, "scores beside jobs that need the cache")


main()
