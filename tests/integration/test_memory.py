"""Weights are shared, not doubled: proportional set sizes of all processes against file size and pools, by
kind of mapping.

A model of 130 MB is used, so that code, heap and tokenizer tables (a constant, stated below) do not hide anything."""
import glob
import os
import re
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from process_memory import memory_of_all, open_files  # noqa: E402

CONSTANT = 24 << 20  # code, heap, tokenizer tables, thread stacks of three processes


def pss(d):
    """{kind: bytes} of all processes of a daemon, and their sum."""
    kinds = memory_of_all(d.pids(), d.status()["arena_bytes"])
    return kinds, sum(kinds.values())


def measure(d, name, path, what):
    kinds, total = pss(d)
    m = d.model(name)
    file_bytes = os.path.getsize(path)
    pools = m.get("kv_bytes", 0) + m.get("activations_bytes", 0) + m.get("scratch_bytes", 0)
    kv = sum(v for k, v in kinds.items() if re.search(r"\bkv\b|-kv", k))
    print(f"FIGURE memory {what}: file {file_bytes >> 20} MiB, weights {m.get('weights_bytes', 0) >> 20}, kv budget "
          f"{m.get('kv_bytes', 0) >> 20} (touched {kv >> 20}), activations {m.get('activations_bytes', 0) >> 20}, "
          f"scratch {m.get('scratch_bytes', 0) >> 20}; PSS {total >> 20}, without kv {(total - kv) >> 20}", flush=True)
    for k, v in sorted(kinds.items(), key=lambda x: -x[1])[:12]:
        print(f"    {k:40} {v / 1048576:8.1f} MiB")
    check(total <= 1.3 * file_bytes + pools, f"{what}: PSS {total} over 1.3 times the file and the pools")
    # Stricter: the budget of the KV cache must not be what lets the rest pass.
    limit = 1.3 * file_bytes + m.get("activations_bytes", 0) + m.get("scratch_bytes", 0) + CONSTANT
    check(total - kv <= limit, f"{what}: PSS without KV {total - kv}, limit {limit:.0f}", kinds)
    return total


@test
def shared_weights():
    if SANITIZER:
        raise Skip("a sanitizer's shadow memory is many times the program's own")
    path = make_model("270m", "q8_0", vocab=32768)
    name = os.path.basename(path)[:-5]
    with Daemon(models=[path], threads=0) as d:
        prompt = [2] + list(range(300, 500))
        d.generate(model=name, ids=prompt, n=16)
        measure(d, name, path, "split")
        d.generate(model=name, ids=prompt, n=16, placement="gpu")
        measure(d, name, path, "after the gpu worker ran attention too")
        d.generate(model=name, ids=prompt, n=16, placement="npu")
        measure(d, name, path, "after both ran everything")
        together(d, [{"model": name, "ids": prompt + [i + 300], "n": 8} for i in range(8)])
        measure(d, name, path, "after eight jobs together")


def experts(arch, size, type, layers, constant):
    """Experts of a real shape lie in memory once, whichever worker computes them. constant: what is allowed beside 1.1
    times the file; 0 also counts the pools, so that nothing at all lies beside."""
    path = make_model(size, type, arch=arch, layers=layers, vocab=8192, fast=True)
    model, file_bytes = os.path.basename(path)[:-5], os.path.getsize(path)
    with Daemon(models=[path], threads=0, placement=None) as d:
        prompt = [2] + list(range(300, 500))
        for placement in ("split", "gpu", "npu"):
            d.generate(model=model, ids=prompt, n=4, placement=placement)
            together(d, [{"model": model, "ids": prompt[:20] + [i + 300], "n": 4, "placement": placement}
                         for i in range(8)])
            kinds, total = pss(d)
            m = d.model(model)
            limit = 1.1 * file_bytes
            if constant:
                limit += constant + m.get("activations_bytes", 0) + m.get("scratch_bytes", 0)
            print(f"FIGURE memory of experts {arch} {placement}: file {file_bytes >> 20} MiB, PSS {total >> 20} MiB, "
                  f"{total / file_bytes:.3f} of it", flush=True)
            check(total <= limit, f"{arch} {placement}: PSS {total}, limit {limit:.0f}", kinds)


@test
def experts_once():
    if SANITIZER:
        raise Skip("a sanitizer's shadow memory is many times the program's own")
    experts("qwen3moe", "30b", "q4_0", 1, CONSTANT)
    if FULL:
        experts("qwen3moe", "30b", "q4_0", 3, 0)
        experts("gpt-oss", "20b", "mxfp4", 3, 0)


@test
def sparse_layers_once():
    """A row alone reads live neurons only, of the weights that a prompt reads. Nothing is copied for it: E2B's ten
    sparse layers would be 189 MB."""
    if SANITIZER:
        raise Skip("a sanitizer's shadow memory is many times the program's own")
    path = make_model("e2b", "q4_0", arch="gemma3n", layers=15, vocab=2048, fast=True)
    model, file_bytes = os.path.basename(path)[:-5], os.path.getsize(path)
    embedding = 2048 * 15 * 256 // 32 * 18
    with Daemon(models=[path], threads=0, placement=None) as d:
        prompt = [2] + list(range(300, 500))
        for placement in ("split", "gpu", "npu"):
            d.generate(model=model, ids=prompt, n=1, placement=placement)
        _, before = pss(d)
        for placement in ("split", "gpu", "npu"):
            d.generate(model=model, ids=prompt[:20], n=8, placement=placement)
        kinds, after = pss(d)
        m = d.model(model)
        limit = (file_bytes - embedding + m.get("kv_bytes", 0) + m.get("activations_bytes", 0) +
                 m.get("scratch_bytes", 0) + CONSTANT)
        print(f"FIGURE memory of sparse layers: file {file_bytes >> 20} MiB, scratch "
              f"{m.get('scratch_bytes', 0) >> 20}, PSS {before >> 20} MiB behind prompts, {after >> 20} behind single "
              f"rows", flush=True)
        check(after - before < 16 << 20, f"PSS grew from {before} to {after} with single rows", kinds)
        check(after <= limit, f"PSS {after}, limit {limit}", kinds)


@test
def of_a_device():
    """A KV cache is no larger than what a GPU has for it, whatever the machine has. lavapipe imports segments up to a
    size; with copies it is a GPU with memory of its own, of which gpu-memory leaves little."""
    icd = glob.glob("/usr/share/vulkan/icd.d/lvp_icd*.json")
    if not icd:
        raise Skip("no lavapipe (Debian: mesa-vulkan-drivers)")
    model = make_model("a", "q8_0", arch="gemma3n")  # 32,768 positions: 16 jobs of it are more than that
    name = os.path.basename(model)[:-5]
    env = {"TANDEM_GPU": "vulkan", "TANDEM_NPU": "host", "VK_ICD_FILENAMES": icd[0]}
    job = {"model": name, "ids": [2] + list(range(300, 340)), "n": 3, "placement": "gpu"}
    config = os.path.join(tempfile.mkdtemp(prefix="tandem-test-"), "tandem.conf")
    for memory, limit, conf in (("auto", None, ""), ("copy", 320 << 20, "gpu-memory = 320M\nkv-memory = 4G\n")):
        with open(config, "w") as f:
            f.write("[engine]\n" + conf)
        with Daemon(models=[model], env={**env, "TANDEM_VULKAN_MEMORY": memory}, hang_ms=60000, placement=None,
                    threads=0, args=["--config", config]) as d:
            d.wait_ready(120)
            equal(len(d.generate(**job).ids), 3, f"tokens with {memory}")
            m = d.model(name)
            print(f"FIGURE a device's memory, {memory}: weights {m['weights_bytes'] >> 20} MiB, KV cache up to "
                  f"{m['kv_bytes'] >> 20} MiB", flush=True)
            check(not limit or m["weights_bytes"] + m["kv_bytes"] < limit, "weights and cache fit the device", m)
            equal([x for x in d.log().splitlines() if "tried out" in x], [], "plans that failed")


@test
def of_a_device_that_leaves_a_model():
    """What a GPU's worker runs on the CPU takes nothing of the GPU's memory: neither less cache for itself nor for the
    model beside it."""
    icd = glob.glob("/usr/share/vulkan/icd.d/lvp_icd*.json")
    if not icd:
        raise Skip("no lavapipe (Debian: mesa-vulkan-drivers)")
    left, other = make_model("dev", "q8_0", arch="lfm2", seed=1), make_model("dev", "q8_0", arch="qwen3", seed=1)
    env = {"TANDEM_GPU": "vulkan", "TANDEM_NPU": "host", "VK_ICD_FILENAMES": icd[0], "TANDEM_VULKAN_MEMORY": "copy"}
    folder, little = tempfile.mkdtemp(prefix="tandem-test-"), "gpu-memory = 128M"

    def caches(gpu_memory, models):
        config = os.path.join(folder, f"{gpu_memory}.conf")
        with open(config, "w") as f:
            f.write(f"[engine]\nkv-memory = 256M\n{gpu_memory}\n")
        with Daemon(models=models, env=env, hang_ms=60000, args=["--config", config]) as d:
            d.wait_ready(120)  # the cache is planned with what the GPU says by then
            found = []
            for path in models:
                name = os.path.basename(path)[:-5]
                d.generate(model=name, ids=[2, 300, 301], n=1, placement="gpu")
                found.append(d.model(name)["kv_bytes"])
            return found

    (wide,), (alone,) = caches("", [left]), caches(little, [other])
    print(f"FIGURE caches: {wide >> 20} MiB of a model on the CPU, {alone >> 20} of one beside it on a GPU with little "
          f"memory", flush=True)
    check(alone < 256 << 20, "the device's memory limits the other model's cache", alone)
    equal(caches(little, [left, other]), [wide, alone], "caches of both")


@test
def no_growth():
    """200 jobs of all kinds, some cancelled: what the processes hold alone stays as it was."""
    if SANITIZER:
        raise Skip("a sanitizer's quarantine grows by design")

    def round_of(d, n):
        for i in range(n):
            if i % 10 == 9:
                job = d.start_job(n=500, temp=1.0, seed=i)
                job.until(3)
                job.vanish()
            else:
                d.generate(n=12, temp=1.0, seed=i, prompt=PROMPT + " x" * (i % 40))
        wait_for(lambda: d.status().get("jobs_running", 0) == 0, "idle")

    with Daemon() as d:
        round_of(d, 30)
        before, _ = pss(d)
        files = settled_fds(d)
        round_of(d, times(200, 1000))
        after, _ = pss(d)
        grown = {k: v - before.get(k, 0) for k, v in after.items() if abs(v - before.get(k, 0)) > 64 << 10}
        print(f"FIGURE growth over 200 jobs: anonymous {(after['anonymous'] - before['anonymous']) >> 10} KiB; {grown}")
        check(after["anonymous"] - before["anonymous"] < 2 << 20, "anonymous memory grew", grown)
        equal(settled_fds(d), files, "open files of all processes")
        kv = d.model("tale")
        equal(kv.get("kv_pages_full_used", 0) + kv.get("kv_pages_window_used", 0), 0, "KV pages in use while idle")


def settled_fds(d):
    """Open files of all processes. A connection that its client has closed stays open in tandemd until the loop comes
    to it, so the loop answers before each count, over a connection that is always one of them. This waits until the
    numbers have stayed the same for half a second."""
    fds, since = None, time.monotonic()
    with d.wire() as w:
        while time.monotonic() - since < 0.5:
            w.call("status", {})
            now = sorted(open_files(p) for p in d.pids())
            if now != fds:
                fds, since = now, time.monotonic()
            time.sleep(0.02)
    return fds


main()
