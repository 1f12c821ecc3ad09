"""Guesses change the time and nothing else: ids, log-probabilities and texts are those of one token a step.

The reference of each job is the job with speculation off. Then its guesses are scripted: TANDEM_GUESSES names a file
with all the texts, of which the daemon gives any number as guesses, right ones up to any place
(daemon/schedule/guess-file.h)."""
import glob
import random
import signal
import time

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

SENTENCE = "Once upon a time there was a king who had three sons, and the youngest of them was called Simpleton. "
OFF, LOOKUP = 1, 2
ALL = {"TANDEM_GUESSES": "all"}
MOST = 8  # draft-max
KEPT = []  # files that go with this process
SCHEMA = '{"type":"object","properties":{"name":{"type":"string","maxLength":20}},"required":["name"]}'


def config(text):
    f = tempfile.NamedTemporaryFile("w", prefix="tandem-", suffix=".conf")
    f.write("[engine]\n" + text)
    f.flush()
    KEPT.append(f)
    return ["--config", f.name]


def some_jobs(n, seed):
    """Half of them have prompts that repeat, so that there is something to look up."""
    rng = random.Random(seed)
    jobs = []
    for _ in range(n):
        job = {"n": rng.choice((1, 2, 9, 60, 200)), "seed": rng.randrange(1000), "chunk": rng.choice((0, 0, 7, 40)),
               "temp": rng.choice((0.0, 0.0, 0.3, 0.8, 1.2)), "top_k": rng.choice((0, 1, 40)),
               "repeat_penalty": rng.choice((0.0, 0.0, 1.1, 1.5)), "priority": rng.randrange(2)}
        if rng.randrange(4) == 0:
            job.update(frequency_penalty=rng.choice((0.0, 0.4)), presence_penalty=rng.choice((0.0, 0.7)),
                       logit_bias=rng.choice(("", "323:2.5,400:-100")))
        if rng.randrange(8) == 0:
            job.update(json_schema=SCHEMA, ignore_end=False)
        if rng.randrange(4) == 0:
            job["ignore_end"] = False
        if rng.randrange(4) == 0:
            job["stop"] = [rng.choice((" king", "\n", "the", "Simpleton", "s"))]
        if rng.randrange(2):
            job["prompt"] = (SENTENCE * rng.randrange(2, 9))[:-rng.randrange(1, 60)]
        else:
            part = [rng.randrange(300, 6000) for _ in range(rng.randrange(4, 40))]
            job["ids"] = ([2] + part * rng.choice((1, 2, 5)))[:rng.randrange(5, 150)]
        jobs.append(job)
    return jobs


def compare(got, want, where):
    same_ids(got.ids, want.ids, where)
    check(got.logprobs == want.logprobs, f"{where}: log-probabilities differ")
    equal((got.reason, got.text), (want.reason, want.text), f"{where}: end and text")


def references(d, jobs):
    want = []
    for i in range(0, len(jobs), 64):
        want += together(d, [dict(q, speculation=OFF) for q in jobs[i:i + 64]])
    for r in want:
        equal(r.done.get("drafted", 0), 0, "guesses while speculation is off")
        if len(r.ids) > 1:  # the step that ends a prompt draws the first
            equal(r.done.get("unguessed"), "off", "why there were none")
    return want


def script(results):
    """The environment of a daemon that guesses from these texts."""
    f = tempfile.NamedTemporaryFile("w", prefix="tandem-", suffix=".ids")
    f.write("\n4294967295\n".join(" ".join(map(str, r.ids)) for r in results))
    f.flush()
    KEPT.append(f)
    return {"TANDEM_GUESSES": f.name}


def count(results, at_right, at_wrong):
    for r in results:
        for i, (drafted, right) in enumerate(zip(r.done["drafted_at"], r.done["accepted_at"])):
            at_right[i] += right
            at_wrong[i] += drafted - right


@test
def the_same_tokens():
    """Alone, together, and by each placement."""
    at_right, at_wrong = [0] * 16, [0] * 16
    jobs = some_jobs(times(24, 300, 16), 1)
    with Daemon(threads=0) as d:
        want = references(d, jobs)
    with Daemon(env=script(want), threads=0) as d:
        for size in (1, 4, 16, 64):
            part = jobs if size > 1 else jobs[:times(12, 60, 6)]
            for i in range(0, len(part), size):
                got = together(d, [dict(q, speculation=LOOKUP) for q in part[i:i + size]])
                for k, r in enumerate(got):
                    compare(r, want[i + k], f"job {i + k}, {size} together")
                count(got, at_right, at_wrong)
        for placement in ("npu", "gpu"):
            for i in range(0, len(jobs), 20):
                got = together(d, [dict(q, placement=placement) for q in jobs[i:i + 20]])
                for k, r in enumerate(got):
                    compare(r, want[i + k], f"job {i + k}, placement {placement}")
    print(f"FIGURE right guesses by place {at_right[:MOST]}, wrong ones {at_wrong[:MOST]}")
    for i in range(MOST):
        check(at_right[i] > 0 and at_wrong[i] > 0, f"guess {i + 1} of a step was right and was wrong", at_right,
              at_wrong)
    equal(at_right[MOST:] + at_wrong[MOST:], [0] * 16, "guesses behind draft-max")


@full_only
def on_lavapipe():
    """On another Vulkan device the bits are that device's."""
    if not glob.glob("/usr/share/vulkan/icd.d/lvp_icd*.json"):
        raise Skip("no lavapipe (Debian: mesa-vulkan-drivers)")
    jobs = [dict(q, n=min(q["n"], 24), placement="gpu") for q in some_jobs(16, 7)]
    env = {"TANDEM_GPU": "vulkan", "TANDEM_NPU": "host"}
    with Daemon(models=(SPROUT,), env=env, hang_ms=60000) as d:
        want = references(d, jobs)
    with Daemon(models=(SPROUT,), env={**env, **script(want)}, hang_ms=60000) as d:
        at_right, at_wrong = [0] * 16, [0] * 16
        for size in (1, 16):
            for i in range(0, len(jobs), size):
                got = together(d, [dict(q, speculation=LOOKUP) for q in jobs[i:i + size]])
                for k, r in enumerate(got):
                    compare(r, want[i + k], f"job {i + k}, {size} together")
                count(got, at_right, at_wrong)
        print(f"FIGURE right guesses by place {at_right[:MOST]}, wrong ones {at_wrong[:MOST]}")
        check(sum(at_right) > 0 and sum(at_wrong) > 0, "guesses were right and wrong", at_right, at_wrong)


@test
def by_their_cost():
    """As it is meant to be used: the daemon decides how many guesses there are."""
    jobs = some_jobs(times(16, 100, 10), 2)
    with Daemon(threads=0, placement=None) as d:
        want = references(d, jobs)
        for i, (r, w) in enumerate(zip(together(d, jobs), want)):
            compare(r, w, f"job {i}")


@test
def workers_killed():
    jobs = [q for q in some_jobs(60, 3) if q["n"] >= 60 and "stop" not in q][:10]
    rng = random.Random(4)
    with Daemon(threads=0) as d:
        want = references(d, jobs)
    with Daemon(env=script(want), threads=0) as d:
        d.wait_ready()
        recoveries = drafted = 0
        for i in range(times(2, 30, 2)):
            d.wait_ready(60)
            pids = [w["pid"] for w in d.workers().values()]
            running = [d.start_job(**q) for q in jobs]
            running[0].until(rng.randrange(1, 20))
            os.kill(rng.choice(pids), signal.SIGKILL)
            for k, job in enumerate(running):
                r = job.wait()
                compare(r, want[k], f"round {i}, job {k}")
                recoveries += r.recoveries
                drafted += r.done.get("drafted", 0)
        check(recoveries > 0 and drafted > 0, "a worker was lost while jobs had guesses", recoveries, drafted)


@test
def too_few_pages():
    jobs = [dict(q, n=200) for q in some_jobs(60, 5) if "stop" not in q and q.get("ignore_end", True)][:12]
    with Daemon(threads=0) as d:
        want = references(d, jobs)
    with Daemon(env=script(want), threads=0, args=config("kv-memory = 4M\n")) as d:
        got = together(d, jobs)
        for i, (r, w) in enumerate(zip(got, want)):
            compare(r, w, f"job {i} on few pages")
        check(sum(r.done.get("evictions", 0) for r in got) > 0, "jobs were pushed out")
        check(sum(r.done.get("accepted", 0) for r in got) > 0, "guesses were right")


@test
def what_is_told():
    with Daemon(env=ALL, args=config("draft-max = 3\n")) as d:
        r = d.generate(prompt=SENTENCE * 6, n=300)
        check(r.done.get("drafted", 0) >= r.done.get("accepted", 0) > 0, "guesses in the last event", r.done)
        equal(sum(r.done["accepted_at"]), r.done["accepted"], "right guesses by place")
        check(r.done["drafted_at"][2] > 0 and r.done["drafted_at"][3] == 0, "draft-max = 3", r.done["drafted_at"])
        r = d.generate(prompt=SENTENCE * 6, n=300, draft_max=1)
        check(r.done["drafted_at"][0] > 0 and r.done["drafted_at"][1] == 0, "a job's own draft-max")
        r = d.generate(prompt=SENTENCE, n=60, ignore_end=False, json_schema=SCHEMA)
        equal((r.done.get("drafted", 0), r.done["unguessed"]), (0, "its text follows a grammar"), "a job with a schema")
    with Daemon(args=config("speculation = off\n")) as d:
        r = d.generate(prompt=SENTENCE * 6, n=60)
        equal((r.done.get("drafted", 0), r.done["unguessed"]), (0, "off"), "speculation = off")


main()
