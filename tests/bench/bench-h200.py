#!/usr/bin/env python3
"""The GPU worker on Vulkan, through the daemon, with everything on the GPU (placement gpu): random Gemma 3 weights, one
table with the targets of an NVIDIA H200, llama.cpp's Vulkan backend there, and how far each figure is from what the
memory or the arithmetic allows. Then golden distances, models with large values, kills of the GPU worker, and how long
loading takes.

usage: TANDEM_BIN=bin bench-h200.py [--models FOLDER] [--unit FOLDER] [--disk FOLDER] [--quick]
                                    [--only speed,golden,kill,load] [--sizes 27b,4b]
                                    [--types q4_0,q4_k_m] [--json]
  --models  where weights are made and kept (24 GB; a tmpfs is best), /dev/shm by default
  --unit    where golden-vulkan and bench-upload lie; without it no golden distances, and no word of what PCIe gives
  --disk    a folder on a disk with room for the models: loading is also measured from there, with an empty page cache
  --sizes   of Gemma 3, or ARCH:SIZE of tools/mkgguf_archs.py: llama:8b, qwen3moe:30b, gpt-oss:20b (needs numpy)
  --quick   fewer tokens

Needs python3 alone, and beside the programs whatever of liburing, protobuf-c and libdbus the machine lacks
(LD_LIBRARY_PATH). It judges nothing: it prints which device it ran on, and a figure from another device is no figure
for an H200. Decoding is measured behind short prompts (64 tokens), so that all sequences really generate together;
before each measurement a few tokens of the same shape are run, as llama-bench does. All of it is with exactness on,
since there is no other mode.
"""
import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from gpu_bench import BIN, TREE, Server, measure, model

MEMORY = 4.3e12         # bytes a second that an H200 reads
F16 = 989e12 / 2        # multiplications and additions a second of its f16 units, dense
READERS = 8             # threads that read a file alone
KILLS = 5  # a worker that dies more often in a row, with no step between, is taken out of service
WEIGHTS = {"27b": 27.0e9, "12b": 11.8e9, "4b": 3.88e9, "1b": 1.0e9}  # that a token passes, with the head
#         size, what, prompt, tokens, together, figure, target, llama.cpp
SPEEDS = (("27b", "alone", 64, 128, 1, "decode_tps", 170, 85.7),
          ("27b", "8 together", 64, 128, 8, "decode_tps", 1000, 249),
          ("27b", "32 together", 64, 128, 32, "decode_tps", 3200, 428),
          ("27b", "prompt of 512", 512, 2, 1, "prefill_tps", 4600, 3077),
          ("27b", "prompt of 8,192", 8192, 2, 1, "prefill_tps", None, None),
          ("27b", "alone behind 8,192", 8192, 64, 1, "decode_tps", 150, 79.5),
          ("4b", "alone", 64, 128, 1, "decode_tps", 550, 276))


def limit_of(size, figure, together, path):
    """The most tokens a second that the memory (decoding reads the weights once a step) or the f16 units (a prompt)
    allow."""
    if size not in WEIGHTS:  # of experts a step reads those that are wanted
        return None, ""
    if figure == "prefill_tps":
        return F16 / WEIGHTS[size], "f16 units"
    memory, arithmetic = together * MEMORY / os.path.getsize(path), F16 / WEIGHTS[size]
    return (memory, "memory") if memory < arithmetic else (arithmetic, "f16 units")


def rows_of(size, kind):
    """Of SPEEDS; targets and peers are of Q4_0. Other sizes and types have the first four of the 27B."""
    known = [s for s in SPEEDS if s[0] == size] if kind == "q4_0" else []
    return known or [(size, *s[1:6], None, None) for s in SPEEDS[:4]]


def speeds(args, cache, out):
    for size, kind in [(s, k) for s in args.sizes for k in args.types]:
        path = model(args.models, size, kind)
        with Server(cache) as server:
            for _, what, prompt, n, together, figure, target, peer in rows_of(size, kind):
                try:
                    r = measure(server, path, prompt, n // 2 if args.quick else n, together)
                except RuntimeError as e:
                    print(f"{size} {kind} {what}: {e}", file=sys.stderr)
                    continue
                limit, by = limit_of(size, figure, together, path)
                out["speeds"].append(dict(size=size, type=kind, what=what, tps=r[figure], target=target, peer=peer,
                                          limit=limit, limit_by=by, recoveries=r["recoveries"]))
                out["device"] = server.gpu()["detail"]
            out["plans"][f"{size} {kind}"] = server.gpu().get("plan", "")


def golden(args, out):
    for precision, halves in (("default", ""), ("default", "on"), ("precise", ""), ("f32", "")):
        r = subprocess.run([os.path.join(args.unit, "golden-vulkan"), os.path.join(TREE, "models", "tale.gguf"),
                            os.path.join(TREE, "tests", "golden", "tale.golden.json"), "--precision", precision],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
                           env=dict(os.environ, TANDEM_VULKAN_HALVES=halves))  # rows of f16, as large models have them
        said = r.stdout.decode().strip()[-300:] or f"golden-vulkan {precision}: ended with {r.returncode}"
        out["golden"].append(("rows of f16: " if halves else "") + said)


def outliers(cache, out):
    """Models with residuals of 5e5 and hidden values of 1e8, with rows of f16, against f32 on the host."""
    text = os.path.join(cache, "text")
    with open(text, "w") as f:
        f.write("the quick brown fox jumps over the lazy dog and then some more words to score, " * 6)
    for kind in ("q8_0", "q4_0"):
        path = os.path.join(cache, f"outliers-{kind}.gguf")
        subprocess.run([sys.executable, os.path.join(TREE, "tools", "mkgguf.py"), "--size", "tiny", "--type", kind,
                        "--outliers", path],
                       check=True, stdout=subprocess.DEVNULL)
        scores = []
        for env in ({"TANDEM_GPU": "host", "TANDEM_PRECISION": "f32"}, {"TANDEM_VULKAN_HALVES": "on"}):
            with Server(cache, **env) as server:
                scores.append(
                    json.loads(server.cli("score", "-m", path, "--top", 64, "--text", text).splitlines()[0])["top"])
                rows = server.gpu().get("plan", "").partition("rows ")[2].partition(",")[0]
        worst = [max(abs(dict(b).get(k, -99) - v) for k, v in a[:10]) for a, b in zip(*scores)]  # the ten best
        out["golden"].append(f"outliers, {kind}, rows {rows}: mean distance {sum(worst) / len(worst):.4f} "
                             f"of {len(worst)} (limit 0.15)")


def kills(args, cache, out):
    path = os.path.join(TREE, "models", "tale.gguf")
    sampling = ("--temp", "0.8", "--seed", "3")
    with Server(cache, TANDEM_VULKAN_HALVES="on") as server:  # rows of f16, as large models have them
        want = server.generate(path, 400, *sampling)
        command = [os.path.join(BIN, "tandem"), "--socket", server.socket, "generate", "-m", path, "-n", "400",
                   "--json", *sampling, "Once upon a time"]
        out["kills"] = k = dict(killed=0, jobs=0, identical=True, recoveries=0, device=server.gpu()["detail"])
        while k["killed"] < KILLS and k["jobs"] < 2 * KILLS:  # a job is over soon
            job = subprocess.Popen(command, stdout=subprocess.PIPE)
            while job.poll() is None and k["killed"] < KILLS:
                time.sleep(0.02)
                worker = server.gpu()
                if worker.get("state") == "ready" and job.poll() is None:
                    os.kill(worker["pid"], signal.SIGKILL)
                    k["killed"] += 1
            got = json.loads(job.communicate()[0].decode().strip().splitlines()[-1])
            k["jobs"] += 1
            k["identical"] = k["identical"] and got["ids"] == want["ids"]
            k["recoveries"] += got["recoveries"]


def load(path, cache):
    """Seconds from the daemon's start to the first token, and those that the daemon says loading took."""
    with Server(cache) as server:
        server.generate(path, 1)
        seconds = time.monotonic() - server.begin
        with open(server.log_path, errors="replace") as f:
            line = next((x for x in f if " loaded in " in x), "")
    return seconds, int(line.split(" loaded in ")[1].split()[0]) / 1e3 if line else 0


def forget(path):
    """Nothing of the file stays in the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def read_alone(path):
    """Seconds for reading the file and nothing else: threads that each ask for the next piece."""
    piece, size, fd = 1 << 20, os.path.getsize(path), os.open(path, os.O_RDONLY)
    pieces = iter(range(0, size, piece))
    begin = time.monotonic()

    def reader():
        buffer = bytearray(piece)
        for at in pieces:  # next() of a range's iterator is one step of the interpreter
            os.preadv(fd, [buffer], at)

    threads = [threading.Thread(target=reader) for _ in range(READERS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    os.close(fd)
    return time.monotonic() - begin


def loads(args, cache, out):
    """The second start: the file is in the page cache, the kernels are on disk. Then from the disk, in turns with
    reading alone."""
    for size, kind in [(s, k) for s in args.sizes for k in args.types]:
        path = model(args.models, size, kind)
        gb = os.path.getsize(path) / 1e9
        load(path, cache)
        for _ in range(1 if args.quick else 3):
            seconds, load_s = load(path, cache)
            out["loads"].append(dict(size=size, type=kind, start_to_first_token_s=seconds, load_s=load_s, gb=gb,
                                     cold=False))
        if not args.disk:
            continue
        cold = os.path.join(args.disk, os.path.basename(path))
        if not os.path.exists(cold):
            shutil.copyfile(path, cold)
        for _ in range(1 if args.quick else 2):
            forget(cold)
            alone = read_alone(cold)
            forget(cold)
            seconds, load_s = load(cold, cache)
            out["loads"].append(dict(size=size, type=kind, start_to_first_token_s=seconds, load_s=load_s, gb=gb,
                                     cold=True, read_alone_s=alone))
    upload = args.unit and os.path.join(args.unit, "bench-upload")
    if upload and os.path.exists(upload):
        r = subprocess.run([upload], stdout=subprocess.PIPE, timeout=120)
        out["upload"] = r.stdout.decode().strip().splitlines()[1:]


def show(out):
    print(f"device: {out.get('device', 'none')}")
    print(f"{'':28}{'tokens/s':>10}{'target':>8}{'peer':>8}{'limit':>10}   of the limit")
    for s in out["speeds"]:
        name = f"{s['size']} {s['type'].upper()} {s['what']}"
        limit = (f"{s['limit']:10.0f}   {100 * s['tps'] / s['limit']:.0f}% ({s['limit_by']})" if s["limit"] else "")
        print(f"{name:28}{s['tps']:10.1f}{s['target'] or '':>8}{s['peer'] or '':>8}{limit}")
    for size, plan in out["plans"].items():
        print(f"{size}: {plan}")
    for line in out["golden"]:
        print(line)
    if "kills" in out:
        k = out["kills"]
        if not k["killed"]:
            print("no kill: the jobs were over before, so this showed nothing")
        print(f"{k['killed']} kills of the GPU worker ({k['device']}) in {k['jobs']} jobs of 400 tokens: ids "
              f"{'identical' if k['identical'] else 'DIFFER'}, {k['recoveries']} recoveries")
    for x in out["loads"]:
        print(f"{x['size']} {x['type'].upper()}: loaded in {x['load_s']:.2f} s "
              f"({x['gb']:.1f} GB, {x['gb'] / (x['load_s'] or 1):.1f} GB/s), "
              f"{x['start_to_first_token_s']:.2f} s from the daemon's start to the first token, file "
              + (f"on disk; reading it alone, {READERS} threads: {x['read_alone_s']:.2f} s "
                 f"({x['gb'] / x['read_alone_s']:.1f} GB/s)"
                 if x["cold"] else "in the page cache"))
    for line in out.get("upload", []):
        print(f"onto the GPU: {line}")


class Ended(Exception):
    pass


def ended(*_):
    raise Ended()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--models", default="/dev/shm")
    p.add_argument("--unit")
    p.add_argument("--disk")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--only", default="speed,golden,kill,load")
    p.add_argument("--sizes", default="27b,4b")
    p.add_argument("--types", default="q4_0", help="of weights, as mkgguf.py knows them, and q4_k_m, q5_k_m")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    args.sizes, args.types = args.sizes.split(","), args.types.split(",")
    out = {"speeds": [], "plans": {}, "golden": [], "loads": []}
    cache = tempfile.mkdtemp(prefix="tandem-h200-cache-")
    parts = args.only.split(",")
    signal.signal(signal.SIGTERM, ended)  # what is there by then is shown
    try:
        for name, part in (("golden", lambda: args.unit and golden(args, out)),
                           ("golden", lambda: outliers(cache, out)), ("kill", lambda: kills(args, cache, out)),
                           ("speed", lambda: speeds(args, cache, out)), ("load", lambda: loads(args, cache, out))):
            if name in parts:
                begin = time.monotonic()
                try:
                    part()
                except Ended:
                    break
                except (RuntimeError, OSError, subprocess.SubprocessError, StopIteration, KeyError, ValueError) as e:
                    print(f"{name}: {type(e).__name__}: {e}", file=sys.stderr)
                print(f"({name}: {time.monotonic() - begin:.0f} s)", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    print(json.dumps(out)) if args.json else show(out)


main()
