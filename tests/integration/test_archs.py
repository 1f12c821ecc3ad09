"""A job of each architecture gives the same ids and log-probabilities whatever happens around it, through a real
tandemd: beside jobs of its own and of another model, in chunks, by placement, when workers are killed; with attention's
products on the emulated NPU; with --full on Vulkan.
"""
import json
import random
import tempfile

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

# Of tale's shape, for which the emulated NPU has programs.
MODELS = (("llama", "q8_0"), ("qwen2", "q4_0"), ("qwen3", "q4_k"), ("qwen3moe", "q4_k"), ("gpt-oss", "mxfp4"),
          ("smollm3", "q8_0"))
# Whose rows come from the file, and whose rows without logits stop early. On the host device: test_file_rows.py.
FILE_ROWS = (("gemma3n", "a", "q4_0"), ("gemma4", "e", "q8_0"))
PROGRAMS = os.path.join(BIN, "..", "lib", "npu-emulated", "programs")
N = times(40, 100, 24)
N_VOCAB = 2048  # the smallest
SEED = int(os.environ.get("TANDEM_TEST_SEED", "27"))


def path_of(arch, kind):
    return make_model("npu", kind, arch=arch)


def name_of(path):
    return os.path.basename(path)[:-len(".gguf")]


def text(rng, n):
    return [2] + [rng.randrange(260, N_VOCAB) for _ in range(n - 1)]


def jobs():
    rng = random.Random(SEED)
    return [{"ids": text(rng, 5), "n": N}, {"ids": text(rng, 90), "n": N, "temp": 0.9, "seed": 7}]


def compare(d, model, want, what, **more):
    for job, alone in zip(jobs(), want):
        got = d.generate(model=model, **job, **more)
        same_ids(got.ids, alone.ids, f"{model}, {what}")
        check(got.logprobs == alone.logprobs, f"{model}, {what}: log-probabilities differ")


def in_company(d, model, want):
    """Of its own model's jobs, and of another model's."""
    rng = random.Random(SEED)
    for job, alone in zip(jobs(), want):
        requests = [dict(job, model=model)]
        for i in range(7):
            requests.append({"ids": text(rng, rng.choice((1, 20, 150))), "n": rng.choice((5, 30)), "seed": i,
                             "temp": rng.choice((0.0, 0.8)), "chunk": rng.choice((0, 5)),
                             "model": rng.choice((model, "tale"))})
        rng.shuffle(requests)
        mine = next(i for i, q in enumerate(requests) if "chunk" not in q)
        got = together(d, requests)[mine]
        same_ids(got.ids, alone.ids, f"{model}, beside 7 others")
        check(got.logprobs == alone.logprobs, f"{model}, beside 7 others: log-probabilities differ")


def killed(d, model, want, rounds):
    """A job may be over before the signal arrives, so it goes on until some kills have met one."""
    rng = random.Random(SEED)
    met = i = 0
    while i < rounds or (met < 1 and i < 20 * rounds):
        d.wait_ready(60)
        job = d.start_job(model=model, **jobs()[1])
        job.until(rng.randrange(1, N // 2))
        victim = d.signal_worker(("npu", "gpu")[i % 2])
        got = job.wait()
        equal(got.reason, "DONE_LENGTH", f"{model}, kill {i}")
        same_ids(got.ids, want[1].ids, f"{model}, kill {i}")
        check(got.logprobs == want[1].logprobs, f"{model}, kill {i}: log-probabilities differ")
        met += got.recoveries > 0
        i += 1
        wait_for(lambda: not alive(victim), "the killed worker is reaped", 30)
    check(met > 0, f"{model}: no kill met the job")


def alone(d, model):
    want = [d.generate(model=model, **job) for job in jobs()]
    check(len(set(want[1].ids)) > 5, "a text that varies", want[1].ids)
    return want


@test
def exact():
    for kind in MODELS:
        path = path_of(*kind)
        model = name_of(path)
        with Daemon(models=[path]) as d:
            want = alone(d, model)
        with Daemon(models=[path, TALE], threads=2) as d:
            d.wait_ready()
            compare(d, model, want, "two threads")
            for chunk in (1, 7, 64):
                compare(d, model, want, f"chunks of {chunk}", chunk=chunk)
            for placement in ("split", "npu", "gpu"):
                compare(d, model, want, f"placement {placement}", placement=placement)
            in_company(d, model, want)
            killed(d, model, want, times(4, 20, 2))


def score(d, model, ids):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(ids, f)
        f.flush()
        return d.cli_json("score", "-m", model, "--top", "10", "--ids", f.name)[0]["nll"]


@test
def products_on_the_npu():
    """Near the host's, and not the same: bf16 was at work. The same in every company."""
    if not os.path.exists(os.path.join(PROGRAMS, "manifest")):
        raise Skip("the emulated NPU is not in this build (Debian: libxrt-dev, uuid-dev)")
    ids = text(random.Random(SEED), 100)
    for kind in MODELS:
        path = path_of(*kind)
        model = name_of(path)
        with Daemon(models=[path]) as d:
            on_host = score(d, model, ids)
        with Daemon(models=[path, TALE], env={"TANDEM_NPU": "emulated", "TANDEM_GPU": "host"}) as d:
            want = alone(d, model)
            plan = d.workers()["npu"]["plan"]
            check(f"{model}: 4 of 4 attention layers on the NPU" in plan, "where attention runs", plan)
            on_npu = score(d, model, ids)
            distance = sum(abs(a - b) for a, b in zip(on_host, on_npu)) / len(on_host)
            print(f"FIGURE {model}: nll on the NPU off by {distance:.4f} in the mean", flush=True)
            check(0 < distance < 0.15, f"{model}: distance of the NPU from the host", distance)
            compare(d, model, want, "chunks of 7 on the NPU", chunk=7)
            in_company(d, model, want)
            killed(d, model, want, 2)


@full_only
def on_vulkan():
    shaders = os.path.join(os.environ.get("TANDEM_TEST_CACHE", tempfile.gettempdir()), "shaders")
    os.makedirs(shaders, exist_ok=True)
    env = {"TANDEM_GPU": "vulkan", "TANDEM_NPU": "host", "MESA_SHADER_CACHE_DIR": shaders}
    paths = [path_of(*kind) for kind in MODELS] + [make_model(size, t, arch=arch) for arch, size, t in FILE_ROWS]
    for path in paths:
        model = name_of(path)
        with Daemon(models=[path], env=env, hang_ms=STANDING_MS, placement="gpu") as d:
            d.wait_ready(600)
            check("vulkan" in json.dumps(d.workers()["gpu"]), "the device", d.workers()["gpu"])
            short = [dict(job, ids=job["ids"][:30], n=8) for job in jobs()]  # a CPU implementation is slow
            want = [d.generate(model=model, **job) for job in short]
            for chunk in (1, 7):
                for job, first in zip(short, want):
                    same_ids(d.generate(model=model, chunk=chunk, **job).ids, first.ids, f"{model}, chunks of {chunk}")
            for got, first in zip(together(d, [dict(job, model=model) for job in short * 2]), want * 2):
                same_ids(got.ids, first.ids, f"{model}, four together")
                check(got.logprobs == first.logprobs, f"{model}, four together: log-probabilities differ")
            with d.in_midst(dict(short[1], model=model), tokens=2) as (job,):
                d.signal_worker("gpu")
            got = job.wait(120)
            same_ids(got.ids, want[1].ids, f"{model}, a kill")
            check(got.recoveries > 0, f"{model}: the kill met the job")


main()
