"""Gemma 3n and Gemma 4 with rows of the file that travel in steps: the same ids alone and in company, with every chunk
and placement and after a worker's death; the second embedding is not copied; a file that was cut short is an error."""
import shutil
import tempfile

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from process_memory import mappings  # noqa: E402

IDS = [2] + [300 + i * 37 % 1500 for i in range(90)]
N = times(40, 80, 20)
KINDS = {"greedy": {"temp": 0.0}, "seeded": {"temp": 0.9, "seed": 5}}


def models():
    return {"gemma3n": make_model("a", "q4_0", arch="gemma3n"), "gemma4": make_model("e", "q8_0", arch="gemma4")}


def name_of(path):
    return os.path.basename(path)[:-len(".gguf")]


def compare(d, path, want, what, **more):
    for kind, sampling in KINDS.items():
        got = d.generate(model=name_of(path), ids=IDS, n=N, **sampling, **more)
        same_ids(got.ids, want[kind].ids, f"{what}, {kind}")
        check(got.logprobs == want[kind].logprobs, f"{what}, {kind}: log-probabilities differ")


def reference(path):
    with Daemon(models=[path]) as d:
        return {kind: d.generate(model=name_of(path), ids=IDS, n=N, **s) for kind, s in KINDS.items()}


@test
def same_ids_whatever_happens():
    """Alone is the reference: chunks, neighbours of this model and another, placements, threads, dead workers."""
    for path in models().values():
        want = reference(path)
        with Daemon(models=[path, TALE], threads=2, placement=None) as d:
            for chunk in (1, 7, 64):
                compare(d, path, want, f"chunks of {chunk}", chunk=chunk)
            for placement in ("npu", "gpu", "split"):
                compare(d, path, want, f"placement {placement}", placement=placement)
            requests = [{"model": name_of(path), "ids": IDS, "n": N, "temp": 0.0}]
            requests += [{"model": name_of(path), "ids": IDS[:5 + 9 * i], "n": 20, "temp": 1.1, "seed": i,
                          "chunk": 5 * (i % 2)} for i in range(4)]
            requests += [{"model": "tale", "prompt": PROMPT, "n": 30, "temp": 0.7, "seed": i} for i in range(4)]
            same_ids(together(d, requests)[0].ids, want["greedy"].ids, "in company")
            for victim in ("npu", "gpu"):
                job = d.start_job(model=name_of(path), ids=IDS, n=N, temp=0.0, placement="split")
                job.until(N // 4)
                d.signal_worker(victim)
                same_ids(job.wait().ids, want["greedy"].ids, f"with {victim} killed")
                d.wait_ready(60)


@test
def not_copied():
    """The second embedding is in no segment, and no process maps the file."""
    path = models()["gemma3n"]
    embedding, size = 2048 * 25 * 256 // 32 * 18, os.path.getsize(path)
    with Daemon(models=[path]) as d:
        d.generate(model=name_of(path), ids=IDS, n=4, temp=0.0)
        try:
            held = [mappings(pid) for pid in d.pids()]
        except PermissionError:
            raise Skip("only root may read a worker's smaps")
        weights = sum(size for m in held for kind, size in m.items() if kind.endswith("weights"))
        print(f"FIGURE file {size >> 10} KiB, second embedding {embedding >> 10}, weights in memory (PSS) "
              f"{weights >> 10}", flush=True)
        check(0 < weights < size - embedding + (1 << 20), "weights in memory without the second embedding", weights)
        check(all(os.path.basename(path) not in m for m in held), "nobody maps the file", held)


@test
def cut_short():
    """The rows of the second embedding are at the file's beginning or end; what is behind is gone."""
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "victim.gguf")
        shutil.copyfile(models()["gemma3n"], path)
        with Daemon(models=[TALE, path], hang_ms=STANDING_MS) as d:
            want = d.generate(model="tale", prompt=PROMPT, n=10)
            good = d.generate(model="victim", ids=IDS, n=300, temp=0.0)
            with d.in_midst(dict(model="victim", ids=IDS, n=300, temp=0.0), tokens=3) as (job,):
                os.truncate(path, 100000)
            r = job.wait()
            check(r.reason == "DONE_ERROR", "the job ends", r.reason)
            equal(r.error["code"], "model-changed", "the running job's error")
            check("cut short" in r.error["message"] or "changed" in r.error["message"], "it says why", r.error)
            same_ids(r.ids, good.ids[:len(r.ids)], "what came before")
            same_ids(d.generate(model="tale", prompt=PROMPT, n=10).ids, want.ids, "the other model")
            check(d.process.poll() is None, "tandemd lives")


main()
