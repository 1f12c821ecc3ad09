"""Guesses change the time and nothing else: ids, log-probabilities and texts are those of one token a step.

The reference of each job is the job with speculation off. Then its guesses are scripted: TANDEM_GUESSES names a file
with all the texts, of which the daemon gives any number as guesses, right ones up to any place
(daemon/speculate/guess-file.h)."""
import glob
import random
import struct
import tempfile
import time

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

SENTENCE = "Once upon a time there was a king who had three sons, and the youngest of them was called Simpleton. "
OFF, LOOKUP, DRAFT = 1, 2, 3
ALL = {"TANDEM_GUESSES": "all"}
PLACES = times(8, 16, 8)  # of the 16 in a step, so many are reached by the jobs of a run
SCHEMA = '{"type":"object","properties":{"name":{"type":"string","maxLength":20}},"required":["name"]}'


def settings(text):
    return config("[engine]\n" + text)


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
    text = "\n4294967295\n".join(" ".join(map(str, r.ids)) for r in results)
    return {"TANDEM_GUESSES": kept_file(text, ".ids")}


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
        for size in times((1, 4, 64), (1, 4, 16, 64)):
            part = jobs if size > 1 else jobs[:times(8, 60, 6)]
            for i in range(0, len(part), size):
                got = together(d, [dict(q, speculation=LOOKUP) for q in part[i:i + size]])
                for k, r in enumerate(got):
                    compare(r, want[i + k], f"job {i + k}, {size} together")
                count(got, at_right, at_wrong)
        for placement in ("npu", "gpu"):
            part = jobs[:times(12, 300)]
            for i in range(0, len(part), 20):
                got = together(d, [dict(q, placement=placement) for q in part[i:i + 20]])
                for k, r in enumerate(got):
                    compare(r, want[i + k], f"job {i + k}, placement {placement}")
    print(f"FIGURE right guesses by place {at_right[:PLACES]}, wrong ones {at_wrong[:PLACES]}")
    for i in range(PLACES):
        check(at_right[i] > 0 and at_wrong[i] > 0, f"guess {i + 1} of a step was right and was wrong", at_right,
              at_wrong)


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
        print(f"FIGURE right guesses by place {at_right[:PLACES]}, wrong ones {at_wrong[:PLACES]}")
        check(sum(at_right) > 0 and sum(at_wrong) > 0, "guesses were right and wrong", at_right, at_wrong)


@test
def by_their_cost():
    """As it is meant to be used: the daemon decides how many guesses there are."""
    jobs = some_jobs(times(12, 100, 10), 2)
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
    with Daemon(env=script(want), threads=0, hang_ms=STANDING_MS) as d:
        d.wait_ready()
        recoveries = drafted = 0
        for i in range(times(2, 30, 2)):
            d.wait_ready(60)
            with d.in_midst(*jobs, tokens=rng.randrange(1, 20), of=0) as running:
                d.signal_worker(rng.choice(("npu", "gpu")))
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
    with Daemon(env=script(want), threads=0, args=settings("kv-memory = 4M\n"), hang_ms=STANDING_MS) as d:
        d.generate(n=1)
        got = all_there(d, jobs)
        for i, (r, w) in enumerate(zip(got, want)):
            compare(r, w, f"job {i} on few pages")
        check(sum(r.done.get("evictions", 0) for r in got) > 0, "jobs were pushed out")
        check(sum(r.done.get("accepted", 0) for r in got) > 0, "guesses were right")


def drafted_as(d, jobs, want, draft, sizes=(1, 16), **more):
    """All of them with this draft. Right and wrong guesses by place."""
    at_right, at_wrong = [0] * 16, [0] * 16
    for size in sizes:
        part = jobs if size > 1 else jobs[:times(5, 60, 3)]
        for i in range(0, len(part), size):
            got = together(d, [dict(q, draft=draft, **more) for q in part[i:i + size]])
            for k, r in enumerate(got):
                compare(r, want[i + k], f"job {i + k}, {size} together, drafted by {draft}")
            count(got, at_right, at_wrong)
    print(f"FIGURE {draft}: right guesses by place {at_right[:PLACES]}, wrong ones {at_wrong[:PLACES]}")
    return at_right, at_wrong


@test
def draft_models():
    """A small model of the same vocabulary, and the model itself, which is right as often as it has time."""
    jobs = [dict(q, n=min(q["n"], times(60, 200))) for q in some_jobs(times(12, 300), 11)]
    with Daemon(models=(TALE, SPROUT), threads=0, env=ALL) as d:
        want = references(d, jobs)
        d.generate(model="sprout", n=1)
        at_right, at_wrong = drafted_as(d, jobs, want, "sprout", speculation=DRAFT)
        check(at_right[0] > 0 and at_right[1] > 0 and at_wrong[0] > 0, "sprout was right and wrong", at_right, at_wrong)
        at_right, at_wrong = drafted_as(d, jobs, want, "tale", sizes=(1, 4), speculation=DRAFT)
        check(at_right[PLACES - 1] > 0, "tale guesses as tale", at_right)
        if FULL:
            drafted_as(d, jobs, want, "sprout", sizes=(64,))
        for placement in ("npu", "gpu"):
            drafted_as(d, jobs[:times(8, 300)], want, "sprout", sizes=(8,), placement=placement)
    better = SPROUT.replace("sprout", "sprout-4x256")
    with Daemon(models=(TALE, SPROUT, better), threads=0, placement=None) as d:  # as it is meant to be used
        for draft in times(("sprout-4x256",), ("sprout", "sprout-4x256")):
            d.generate(model=draft, n=1)
            drafted_as(d, jobs, want, draft, sizes=(1, 16))


@test
def bursts():
    """On one worker a draft's tokens are fed to it by the worker itself. The model guesses for itself: if anything of
    a draw of a burst differed from one of a step of its own, some guess would be wrong."""
    jobs = [dict(q, n=min(q["n"], times(40, 200))) for q in some_jobs(times(10, 300, 6), 12)]
    jobs += [{"prompt": "Once", "n": 90, "seed": i, "temp": 0.6 * i, "repeat_penalty": (1.0, 1.7)[i % 2],
              "frequency_penalty": (0.0, 1.5)[i // 2], "ignore_end": True} for i in range(4)]  # these look back far
    for placement in ("npu", "gpu"):
        with Daemon(models=(TALE, SPROUT), threads=0, env=ALL, placement=placement) as d:
            want = references(d, jobs)
            sizes = (1, 4) if FULL or placement == "gpu" else (4,)
            at_right, at_wrong = drafted_as(d, jobs[::-1], want[::-1], "tale", sizes=sizes, speculation=DRAFT)
            check(at_right[PLACES - 1] > 0 and sum(at_wrong) == 0, "tale guesses as tale", at_right, at_wrong)
            if placement == "npu" and not FULL:
                continue
            d.generate(model="sprout", n=1)
            drafted_as(d, jobs, want, "sprout", sizes=(4,), speculation=DRAFT)


@test
def texts_with_a_schema():
    """Each row of a guess has a mask of its own. The draft knows nothing of the schema; guesses it forbids are cut."""
    jobs = [{"prompt": SENTENCE + f" {i}", "n": 80, "seed": i, "temp": (0.0, 0.8)[i % 2], "ignore_end": False,
             "json_schema": SCHEMA} for i in range(times(8, 60, 4))]
    with Daemon(models=(TALE, SPROUT), threads=0, env=ALL) as d:
        want = references(d, jobs)
        d.generate(model="sprout", n=1)
        for size, drafts in ((1, times(("sprout",), ("tale", "sprout"))), (8, ("tale", "sprout"))):
            for draft in drafts:
                at_right, at_wrong = drafted_as(d, jobs, want, draft, sizes=(size,), speculation=DRAFT)
                check(at_right[0] > 0 and at_right[1] > 0, "guesses in a schema's text are right", at_right)
                check(draft == "tale" or at_wrong[0] > 0, "sprout is wrong", at_wrong)


@test
def a_prefix_of_the_vocabulary():
    """A random draft that knows fewer tokens than the model says."""
    target, draft = make_model("tiny", "q8_0", vocab=1024), make_model("tiny", "q8_0", vocab=700, seed=5)
    rng = random.Random(6)
    jobs = [{"n": 80, "ids": [2] + [rng.randrange(260, 1024) for _ in range(rng.randrange(4, 60))], "seed": i,
             "temp": (0.0, 0.8)[i % 2], "ignore_end": True} for i in range(times(12, 60, 6))]
    name, guesser = (os.path.basename(path)[:-len(".gguf")] for path in (target, draft))
    with Daemon(models=(target, draft), threads=0, env=ALL) as d:
        want = references(d, jobs)
        check(any(i >= 700 for r in want for i in r.ids), "tokens that the draft does not know")
        d.generate(model=guesser, n=1)
        drafted = drafted_as(d, jobs, want, guesser, speculation=DRAFT)
        check(sum(drafted[1]) > 0, "a random draft guesses")
        refused = None
        try:
            d.generate(model=guesser, draft=name, n=1)
        except Refused as e:
            refused = str(e)
        check(refused and "differs" in refused and "token id 700" in refused and "1024" in refused, "a longer one",
              refused)


@test
def another_vocabulary():
    """One piece differs: it is refused, and its id is named. A draft that is missing is an error too."""
    with open(SPROUT, "rb") as f:
        data = f.read()
    piece, other = "\u2581king".encode(), "\u2581kinh".encode()
    at = data.index(struct.pack("<Q", len(piece)) + piece) + 8
    with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
        path = os.path.join(folder, "odd.gguf")
        with open(path, "wb") as f:
            f.write(data[:at] + other + data[at + len(piece):])
        conf = settings("draft = tale=odd, sprout=nothing\n")
        with Daemon(models=(TALE, SPROUT, path), threads=0, args=conf) as d:
            id = d.call("tokenize", {"text": " king".encode(), "no_bos": True}).get("ids", [])[0]
            for more, text in (({"draft": "odd"}, f"at token id {id}: "),
                               ({"draft": "nothing"}, "no model is named nothing"),
                               ({"speculation": DRAFT}, f"at token id {id}: "),
                               ({"model": "sprout", "speculation": DRAFT}, "no model is named nothing"),
                               ({"draft": "odd", "speculation": OFF}, f"at token id {id}: "),
                               ({"draft": "../tale"}, "tale")):
                try:
                    d.generate(n=4, **more)
                    refused = None
                except Refused as e:
                    refused = str(e)
                check(refused and "draft" in refused and text in refused, "it is refused", more, refused)
            # A job that asks for none goes on without what the configuration has.
            # It ends within its text, because the step of the last token has another reason.
            r = d.generate(n=400, stop=["."])
            equal(r.done.get("unguessed"), "the draft model of the configuration has another vocabulary", "the reason")
            r = d.generate(model="sprout", n=400, stop=["."])
            equal(r.done.get("unguessed"), "the draft model of the configuration cannot be opened", "the reason")
    with Daemon(models=(TALE, SPROUT), env=ALL, args=settings("speculation = draft\n")) as d:
        r = d.generate(n=400, stop=["."])
        equal(r.done.get("unguessed"), "the configuration names no draft model", "the reason")
        try:
            d.generate(n=4, speculation=DRAFT)
            refused = None
        except Refused as e:
            refused = str(e)
        check(refused and "has no draft model" in refused, "speculation = draft without one", refused)
    with Daemon(models=(TALE, SPROUT), env=ALL, args=settings("draft = tale=sprout\n")) as d:
        d.generate(model="sprout", n=1)
        check(d.generate(n=100).done.get("accepted", 0) > 0, "the draft of the configuration")


@test
def drafts_and_workers_killed():
    jobs = [q for q in some_jobs(60, 13) if q["n"] >= 60 and "stop" not in q][:8]
    jobs = [dict(q, n=min(q["n"], times(100, 200))) for q in jobs]
    rng = random.Random(14)
    with Daemon(models=(TALE, SPROUT), threads=0, env=ALL, hang_ms=STANDING_MS) as d:
        want = references(d, jobs)
        d.generate(model="sprout", n=1)
        recoveries = drafted = 0
        for i in range(times(2, 30, 2)):
            d.wait_ready(60)
            drafting = [dict(q, draft="sprout", speculation=DRAFT) for q in jobs]
            with d.in_midst(*drafting, tokens=rng.randrange(1, 20), of=0) as running:
                d.signal_worker(rng.choice(("npu", "gpu")))
            for k, job in enumerate(running):
                r = job.wait()
                compare(r, want[k], f"round {i}, job {k}")
                recoveries += r.recoveries
                drafted += r.done.get("drafted", 0)
        check(recoveries > 0 and drafted > 0, "a worker was lost while jobs had drafts", recoveries, drafted)


@test
def a_draft_unloaded():
    """In mid-job. The job is told why it has no guesses, and asks for nothing."""
    with Daemon(models=(TALE, SPROUT), threads=0, env=ALL, hang_ms=STANDING_MS) as d:
        want = d.generate(n=600, speculation=OFF)
        for at in (30, 1, 200)[:times(1, 3)]:
            d.generate(model="sprout", n=1)
            job = d.start_job(n=600, draft="sprout", speculation=DRAFT)
            job.until(at)
            d.call("unload", {"name": "sprout"})
            wait_for(lambda: "sprout" not in [m["name"] for m in d.status()["models"]], "sprout leaves")
            compare(job.wait(), want, f"unloaded after {at} tokens")
            d.generate(model="sprout", n=1)  # it can be loaded again
        reason, lost = set(), "its draft model was lost"

        def told():
            reason.update(j.get("unguessed") for j in d.jobs())
            return lost in reason or job.has(600)
        for _ in range(20):  # where a slice lasts long, the job ends in it and nobody has asked
            with d.in_midst(dict(n=600, draft="sprout", speculation=DRAFT), tokens=30) as (job,):
                d.call("unload", {"name": "sprout"})
                run_in_slices(d.worker_pids(), told, "why it has no guesses")
            compare(job.wait(), want, "unloaded")
            if lost in reason:
                break
            d.generate(model="sprout", n=1)
        check(lost in reason, "why it has no guesses", reason)


@test
def drafts_on_few_pages():
    """The model's own companions share its cache. They take no page that a job needs."""
    jobs = [dict(q, n=200) for q in some_jobs(60, 15) if "stop" not in q and q.get("ignore_end", True)][:12]
    with Daemon(threads=0) as d:
        want = references(d, jobs)
    with Daemon(env=ALL, threads=0, args=settings("kv-memory = 4M\n"), hang_ms=STANDING_MS) as d:
        d.generate(n=1)
        got = all_there(d, [dict(q, draft="tale", speculation=DRAFT) for q in jobs])
        for i, (r, w) in enumerate(zip(got, want)):
            compare(r, w, f"job {i} on few pages")
        check(sum(r.done.get("evictions", 0) for r in got) > 0, "jobs were pushed out")
        check(sum(r.done.get("accepted", 0) for r in got) > 0, "guesses were right")


@test
def what_is_told():
    with Daemon(env=ALL, args=settings("draft-max = 3\n")) as d:
        r = d.generate(prompt=SENTENCE * 6, n=300)
        check(r.done.get("drafted", 0) >= r.done.get("accepted", 0) > 0, "guesses in the last event", r.done)
        equal(sum(r.done["accepted_at"]), r.done["accepted"], "right guesses by place")
        check(r.done["drafted_at"][2] > 0 and r.done["drafted_at"][3] == 0, "draft-max = 3", r.done["drafted_at"])
        r = d.generate(prompt=SENTENCE * 6, n=300, draft_max=1)
        check(r.done["drafted_at"][0] > 0 and r.done["drafted_at"][1] == 0, "a job's own draft-max")
    with Daemon(args=settings("speculation = off\n")) as d:
        r = d.generate(prompt=SENTENCE * 6, n=60)
        equal((r.done.get("drafted", 0), r.done["unguessed"]), (0, "off"), "speculation = off")


main()
