#!/usr/bin/env python3
"""Holds a released file to its makers' values on a machine that has neither their programs nor a network, such as one
with a GPU: the values are recorded elsewhere and carried there.

    recorded.py record NAME OUT       writes the makers' values of a file of released.py (the variables are told there)
    recorded.py check OUT MODEL       prints the distance of MODEL on this machine's CPU and on its GPU, and whether
                                      jobs have the same bits in company and when the GPU's worker is killed

TANDEM_BIN names the programs. Exit status of check: 0, or 1 if the GPU is farther from the makers than 1.25 times the
CPU, a first choice differs at more than 1% of the positions without a near tie, or bits differ."""
import gzip
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tandem_test import Daemon, check, same_ids, together  # noqa: E402
from distance import of_sequences, positions  # noqa: E402

ON_GPU = {"TANDEM_GPU": "vulkan", "TANDEM_NPU": "host", "TANDEM_PLACEMENT": "gpu"}
ON_CPU = {"TANDEM_GPU": "host", "TANDEM_NPU": "host"}


def record(name, path):
    from released import FILES, maker, sequences
    r = next(r for r in FILES if r.name == name)
    with Daemon(models=(r.path(),), placement=None, threads=0) as d:
        ids = sequences(r, d)
    wanted = maker(r, "score", sequences=ids, top=64)
    for s, w in zip(ids, wanted):
        w["top"] = {i: w["top"][i][:10] for i in positions(s)}
    with gzip.open(path, "wt") as f:
        json.dump({"name": name, "model": r.model, "ids": ids,
                   "wanted": [{"nll": w["nll"], "top": w["top"]} for w in wanted]}, f)


def same_bits(model, name):
    jobs = [dict(prompt=p, n=48, temp=(0.0, 0.8)[i % 2], seed=i, model=name) for i, p in enumerate(
        ("Once upon a time", "The capital of France is", "int main(void)\n{", "Le chat est assis sur", "1, 2, 3, 4,",
         "Dear Sir or Madam,", "The recipe for pancakes is", "In the year 1969"))]
    with Daemon(models=(model,), env=ON_GPU, placement=None, threads=0, hang_ms=60000) as d:
        want = [d.generate(**q) for q in jobs]
        runs = [together(d, jobs)]
        started = [d.start_job(**q) for q in jobs]
        started[0].until(9)
        d.signal_worker("gpu")
        runs.append([job.wait() for job in started])
    for got in runs:
        for i, (a, b) in enumerate(zip(got, want)):
            same_ids(a.ids, b.ids, f"job {i}")
            check(a.logprobs == b.logprobs, f"job {i}: log-probabilities differ")
    recoveries = sum(x.recoveries for x in runs[1])
    check(recoveries > 0, "the GPU's worker was killed while jobs ran")
    return f"8 jobs the same together, and through {recoveries} recoveries"


def look(path, model):
    with gzip.open(path, "rt") as f:
        kept = json.load(f)
    wanted = [dict(w, top={int(i): v for i, v in w["top"].items()}) for w in kept["wanted"]]
    out = {}
    for where, env in (("CPU", ON_CPU), ("GPU", ON_GPU)):
        for precision in ("default", "f32"):
            with Daemon(models=(model,), env=dict(env, TANDEM_PRECISION=precision), placement=None, threads=0,
                        hang_ms=60000) as d:
                out[where, precision], nll = of_sequences(d, kept["model"], kept["ids"], wanted)
                device = d.workers()["gpu"].get("detail", "")
            print(f"FIGURE released {kept['name']} {where}, {precision}: {out[where, precision]}, worst nll difference "
                  f"{nll:.5f} ({device})", flush=True)
    print(f"FIGURE released {kept['name']} GPU, bits: {same_bits(model, kept['model'])}", flush=True)
    cpu, gpu = out["CPU", "default"], out["GPU", "default"]
    check(gpu.mean() <= 1.25 * cpu.mean(), "distance on the GPU", str(gpu), str(cpu))
    check(gpu.same() >= 0.99, "first choices on the GPU", str(gpu))


def main(arguments):
    if len(arguments) != 3 or arguments[0] not in ("record", "check"):
        sys.exit(__doc__)
    (record if arguments[0] == "record" else look)(*arguments[1:])


main(sys.argv[1:])
