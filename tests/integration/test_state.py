"""A model whose layers keep a state: jobs give the ids and log-probabilities that they give alone, and the prefix cache
finds states of beginnings, so that a conversation reads few rows again. LFM2 and Qwen 3.5 in small, with
experts and without."""
import glob
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

SEED = int(os.environ.get("TANDEM_TEST_SEED", "56"))
N_VOCAB = 2304
PAGE = 32
SMALL = {"lfm2": "[engine]\nkv-memory = 2M\n", "lfm2moe": "[engine]\nkv-memory = 2M\n",
         "qwen35": "[engine]\nkv-memory = 4M\n", "qwen35moe": "[engine]\nkv-memory = 4M\n"}
OFF = "[engine]\nprefix-cache = off\n"


def path(size="dev", arch="lfm2"):
    return make_model(size, "q8_0", arch=arch, seed=1)


def text(rng, n):
    return [2] + [rng.randrange(300, N_VOCAB) for _ in range(n - 1)]


def some_jobs(n):
    """Half of them begin as another one does: any part of it, borders of pages and their neighbours in particular."""
    rng, jobs = random.Random(SEED), []
    for i in range(n):
        ids = text(rng, rng.choice((1, 3, 31, 32, 33, 40, 70, 130, 300, 700)))
        if jobs and rng.randrange(2):
            other = rng.choice(jobs)["ids"]
            at = rng.choice((rng.randrange(1, len(other) + 1), len(other) // PAGE * PAGE + rng.choice((-1, 0, 1, 8))))
            ids = other[:max(at, 1)] + ids[1:]
        jobs.append({"ids": ids, "n": rng.choice((1, 2, 30, 33, 64, 100)), "temp": rng.choice((0.0, 0.8)), "seed": i,
                     "chunk": rng.choice((0, 0, 1, 7, 32, 100)), "priority": rng.randrange(2),
                     "placement": rng.choice((None, "split", "npu", "gpu"))})
    return jobs


def compare(got, want, what):
    same_ids(got.ids, want.ids, what)
    check(got.logprobs == want.logprobs, f"{what}: log-probabilities differ")


def random_jobs(arch, n):
    """At random: company, chunks, beginnings that are known, placements, few pages, workers that are killed."""
    jobs = some_jobs(n)
    rng = random.Random(SEED + 1)
    with Daemon(models=[path(arch=arch)], args=config(OFF)) as d:
        want = [d.generate(**dict(q, chunk=0, placement=None)) for q in jobs]
    check(len({tuple(r.ids) for r in want}) > len(jobs) // 2, "texts that vary")
    with Daemon(models=[path(arch=arch)], args=config(SMALL[arch]), threads=2) as d:
        n_cached = n_evicted = n_met = first = 0
        while first < len(jobs):
            batch = list(range(first, min(first + rng.choice((1, 6, 12, 24)), len(jobs))))
            d.wait_ready(60)
            running = [d.start_job(**jobs[i]) for i in batch]
            victim = d.signal_worker(rng.choice(("npu", "gpu"))) if rng.randrange(2) else None
            for i, job in zip(batch, running):
                got = job.wait(120)
                compare(got, want[i], f"job {i} of {len(jobs[i]['ids'])} tokens, beside {len(batch) - 1}")
                n_cached += got.done.get("cached_tokens", 0)
                n_evicted += got.done.get("evictions", 0)
                n_met += got.recoveries > 0
            if victim:
                wait_for(lambda: not alive(victim), "the killed worker is reaped", 30)
            first += len(batch)
        print(f"FIGURE {len(jobs)} jobs of {arch}: {n_cached} tokens from the cache, {n_evicted} times pushed out, "
              f"{n_met} jobs met a kill", flush=True)


@test
def exact():
    random_jobs("lfm2", times(40, 300, 12))


@test
def exact_delta():
    random_jobs("qwen35", times(20, 300, 8))


@test
def exact_experts():
    random_jobs("qwen35moe", times(8, 300, 4))


@test
def exact_sigmoid():
    random_jobs("lfm2moe", times(12, 300, 4))


def kills(arch):
    """While it reads, and while it generates. A job may be over before the signal arrives."""
    job = {"ids": text(random.Random(SEED), 300), "n": 100, "temp": 0.8, "seed": 5, "chunk": 20}
    rng, met = random.Random(SEED), 0
    with Daemon(models=[path(arch=arch)], args=config(OFF)) as d:
        want = d.generate(**job)
        for i in range(100):
            d.wait_ready(60)
            running = d.start_job(**job)
            if i % 2:
                running.until(rng.randrange(1, 60))
            victim = d.signal_worker(("npu", "gpu")[i // 2 % 2])
            got = running.wait(120)
            compare(got, want, f"kill {i}")
            met += got.recoveries > 0
            wait_for(lambda: not alive(victim), "the killed worker is reaped", 30)
            if i + 1 >= times(4, 20, 2) and met > 0:
                break
        check(met > 0, "a kill met the job")


@test
def killed():
    kills("lfm2")


@test
def killed_delta():
    kills("qwen35")


@test
def every_distance():
    """A beginning is found up to a state that is kept, wherever the next text leaves it."""
    begin = text(random.Random(SEED), 200)
    lengths = range(1, 200, times(13, 1, 40))
    with Daemon(models=[path()], args=config(OFF)) as plain, Daemon(models=[path()]) as d:
        d.generate(ids=begin, n=60)
        for i, n in enumerate(lengths):
            ids = begin[:n] + [1000 + i, 1001, 1002]
            got, again = d.generate(ids=ids, n=12), d.generate(ids=ids + [7, 8], n=3)
            compare(got, plain.generate(ids=ids, n=12), f"{n} tokens as before")
            known = (len(ids) - 8) // PAGE * PAGE
            check(again.done.get("cached_tokens", 0) >= known, f"after {n} tokens as before: what is found again",
                  again.done)


def turns(arch):
    """Each turn has the ones before it, answers included. Beside its new text it reads a page and a half at most."""
    rng = random.Random(SEED)
    long = path("long", arch)
    with Daemon(models=[long], threads=0) as d, Daemon(models=[long], args=config(OFF), threads=0) as plain:
        ids, known, worst = text(rng, times(600, 8000, 200)), 0, 0
        for turn in range(times(6, 20, 3)):
            r = d.generate(ids=ids, n=20 + turn * 7, temp=0.7, seed=turn)
            compare(r, plain.generate(ids=ids, n=20 + turn * 7, temp=0.7, seed=turn), f"turn {turn}")
            again = known - r.done.get("cached_tokens", 0)
            worst = max(worst, again)
            check(again <= PAGE * 3 // 2, f"turn {turn}: rows read again", again)
            ids, known = ids + r.ids + text(rng, 30)[1:], len(ids) + len(r.ids)
        print(f"FIGURE rows of {arch} read again in a turn: {worst} at most", flush=True)


@test
def conversation():
    turns("lfm2")


@full_only
def conversation_delta():
    turns("qwen35")


@test
def another_answer():
    """The answer is dropped, as thinking is: the prompt's own state is found, before the words that ask for it."""
    rng = random.Random(SEED)
    with Daemon(models=[path()]) as d:
        for n in (90, 96, 100, 104, 127, 128, 129):
            ids = text(rng, n)
            d.generate(ids=ids, n=50)
            r = d.generate(ids=ids[:-5] + text(rng, 40), n=2)
            check(n - 5 - r.done.get("cached_tokens", 0) <= PAGE * 3 // 2, f"prompt of {n} tokens", r.done)


@test
def shown():
    """Two layers have keys: 512 bytes a token. Four have a state of 3 KiB, of which a text has two."""
    with Daemon(models=[path()]) as d:
        out = d.cli("show", path(), check_exit=0).stdout.decode()
        check("; 512 B a token;" in out, "bytes of a token", out)


@test
def on_a_machine_with_vulkan():
    """Vulkan computes no such layers: its worker runs the model on the CPU, with the bits of a machine without."""
    icd = glob.glob("/usr/share/vulkan/icd.d/lvp_icd*.json")
    if SANITIZER or not icd:
        raise Skip("no lavapipe (Debian: mesa-vulkan-drivers), or too slow under a sanitizer")
    for arch, needs in (("lfm2", "short convolutions"), ("qwen35", "gated delta nets"),
                        ("qwen35moe", "shared experts"), ("lfm2moe", "experts chosen by a sigmoid")):
        beside_vulkan(arch, needs, {"TANDEM_GPU": "vulkan", "TANDEM_NPU": "host", "VK_DRIVER_FILES": icd[0]})


def beside_vulkan(arch, needs, env):
    jobs = [dict(q, placement=p) for q in some_jobs(times(4, 20)) for p in ("gpu", "split", "npu", None)]
    long = dict(jobs[0], n=100, placement="gpu")
    with Daemon(models=[path(arch=arch)], args=config(OFF)) as d:
        want = [d.generate(**dict(q, placement=None)) for q in jobs + [long]]
    with Daemon(models=[path(arch=arch)], env=env, hang_ms=60000) as d:
        d.wait_ready(120)
        for i in range(0, len(jobs), 6):
            running = [d.start_job(**q) for q in jobs[i:i + 6]]
            for k, job in enumerate(running):
                got, placement = job.wait(120), jobs[i + k]["placement"]
                compare(got, want[i + k], f"job {i + k}, placement {placement}")
                equal(got.numerics, want[i + k].numerics, f"whose bits they are, placement {placement}")
        at = len(want[-1].ids) // 2
        got = d.generate(**dict(long, drawn=",".join(map(str, want[-1].ids[:at])), drawn_numerics=want[-1].numerics))
        same_ids(got.ids, want[-1].ids, "tokens behind those that a machine without a GPU drew")
        gpu = d.workers()["gpu"]
        equal(gpu["device"], "vulkan", "the GPU worker's device")
        check("runs on the CPU" in gpu["plan"] and f"does not compute {needs}" in gpu["plan"], "the plan",
              gpu)
        check("runs on the CPU" in d.cli("status", "-v", check_exit=0).stdout.decode(), "tandem status -v says it")
        job = d.start_job(**long)
        job.until(1)
        victim = d.signal_worker("gpu")
        compare(job.wait(120), want[-1], "a kill of the worker that owns the GPU")
        wait_for(lambda: not alive(victim), "the killed worker is reaped", 30)


@test
def refused():
    """No guesses of a draft, and none by such a model; and no memory that is held when all is over."""
    with Daemon(models=[path(), TALE]) as d:
        name = os.path.basename(path())[:-len(".gguf")]
        ids = text(random.Random(SEED), 40)
        plain = d.generate(model=name, ids=ids * 3, n=60)
        equal(plain.done.get("drafted", 0), 0, "guesses that were checked")
        check("state" in plain.done.get("unguessed", ""), "why there were none", plain.done)
        for model, draft in ((name, name), ("tale", name), (name, "tale")):
            try:
                d.generate(model=model, ids=ids, n=4, draft=draft)
                raise AssertionError(f"{draft} guesses for {model}")
            except Refused as e:
                check("keeps a state" in str(e), "the refusal", e)
        wait_for(lambda: d.model(name).get("kv_used_bytes", 0) == 0, "no page is in use", 10)


main()
