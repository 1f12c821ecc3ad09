#!/usr/bin/env python3
"""Tandem beside llama.cpp on this machine's GPU: the same files, one after the other in one call. Prints one table, and
writes a file with everything to send in. For owners of GPUs that nobody measured yet: one command.

usage: TANDEM_BIN=bin bench-gpu.py [--llama FOLDER | --llama-run PROGRAM] [--models FOLDER] [--sizes 4b,llama:8b]
                                   [--types q4_0,q4_k_m] [--rounds N] [--quick] [--keep] [--out FILE] [FILE.gguf ...]
  --llama      where llama-bench and llama-batched-bench lie (built with a backend for this GPU); else those on PATH
  --llama-run  a program that is given the name of one of them and its arguments, where they need surroundings of
               their own
  --models     where models of random weights are made (room for one at a time; a tmpfs is best), /dev/shm by default
  --sizes      of Gemma 3, or ARCH:SIZE of tools/mkgguf_archs.py (needs numpy); none where files are named
  --rounds     each file so often, in turns: the median counts
  --quick      fewer tokens
  --keep       models that were made stay
  --out        where the file to send in is written, bench-gpu.json by default

Needs python3 alone. Both run everything on the GPU: Tandem through the daemon, with its sandbox and exactness on,
llama.cpp with its own choices. "8 together" of llama.cpp is what llama-batched-bench says of generating. Nothing is
judged: times is Tandem's figure by llama.cpp's.
"""
import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from gpu_bench import Server, measure, model

#       what, prompt, tokens, together, figure
ROWS = (("alone", 64, 128, 1, "decode_tps"), ("8 together", 64, 128, 8, "decode_tps"),
        ("32 together", 64, 128, 32, "decode_tps"), ("prompt of 512", 512, 2, 1, "prefill_tps"))
MINUTES = 15  # that one program may take


def tandem(path, cache, args, about):
    """{what: tokens a second}; what could not be measured is missing, and about["errors"] says why."""
    found = {}
    with Server(cache) as server:
        for what, prompt, n, together, figure in ROWS:
            try:
                found[what] = measure(server, path, prompt, n // 2 if args.quick else n, together)[figure]
            except (RuntimeError, subprocess.TimeoutExpired) as e:
                about["errors"].append(f"tandem, {os.path.basename(path)}, {what}: {e}")
        gpu = server.gpu()
        about["device"] = gpu.get("detail", "")
        about["plans"][os.path.basename(path)] = gpu.get("plan", "")
        with open(server.log_path, errors="replace") as f:
            about["loads"] += [line.strip() for line in f if " loaded in " in line]
    return found


def llama_lines(args, about, program, path, *rest):
    command = [*([args.llama_run, program] if args.llama_run else [os.path.join(args.llama, program)]), "-m", path,
               "-ngl", "999", *rest]
    try:
        r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60 * MINUTES)
    except (OSError, subprocess.TimeoutExpired) as e:
        about["errors"].append(f"{program}, {os.path.basename(path)}: {e}")
        return []
    if r.returncode != 0:
        about["errors"].append(f"{program}, {os.path.basename(path)}: {r.stderr.decode(errors='replace')[-500:]}")
    found = []
    for line in r.stdout.decode(errors="replace").splitlines():
        if line.startswith("{"):
            found.append(json.loads(line))
    return found


def llama(path, args, about):
    n = "64" if args.quick else "128"
    found = {}
    for x in llama_lines(args, about, "llama-bench", path, "-p", "512", "-n", n, "-r", "2", "-o", "jsonl"):
        found["alone" if x["n_gen"] else "prompt of 512"] = x["avg_ts"]
        about["llama"] = {k: x.get(k) for k in ("build_commit", "build_number", "backends", "gpu_info", "cpu_info")}
    together = [str(r[3]) for r in ROWS if r[3] > 1]
    for x in llama_lines(args, about, "llama-batched-bench", path, "-npp", "64", "-ntg", n, "-npl", ",".join(together),
                         "-c", str((64 + int(n)) * max(map(int, together))), "--output-format", "jsonl"):
        found[f"{x['pl']} together"] = x["speed_tg"]
    return found


def measure_file(path, name, cache, args, about, out):
    rounds = []
    for _ in range(args.rounds):
        begin = time.monotonic()
        ours = tandem(path, cache, args, about)
        theirs = llama(path, args, about) if args.llama or args.llama_run else {}
        rounds.append((ours, theirs))
        print(f"({name}: {time.monotonic() - begin:.0f} s)", file=sys.stderr, flush=True)
    for what, *_ in ROWS:
        all_ours, all_theirs = ([r[i][what] for r in rounds if what in r[i]] for i in (0, 1))
        out.append(dict(file=name, bytes=os.path.getsize(path), what=what, tandem=all_ours, llama=all_theirs))


def of_machine():
    def first(path, key):
        try:
            with open(path) as f:
                return next((line.split(":", 1)[1].strip() for line in f if line.startswith(key)), "")
        except OSError:
            return ""

    return dict(cpu=first("/proc/cpuinfo", "model name"), cpus=os.cpu_count(),
                memory=first("/proc/meminfo", "MemTotal"), kernel=platform.release(), date=time.strftime("%Y-%m-%d"))


def show(about, rows):
    print(f"device: {about.get('device', 'none')}")
    print(f"llama.cpp: {about.get('llama', 'not run')}")
    print(f"{'tokens/s':44}{'Tandem':>10}{'llama.cpp':>11}{'times':>7}")
    for r in rows:
        ours, theirs = (statistics.median(r[k]) if r[k] else None for k in ("tandem", "llama"))
        print(f"{r['file'] + ' ' + r['what']:44}{f'{ours:.1f}' if ours else '-':>10}"
              f"{f'{theirs:.1f}' if theirs else '-':>11}{f'{ours / theirs:.2f}' if ours and theirs else '':>7}")
    for line in about["errors"]:
        print(line, file=sys.stderr)


def main():
    p = argparse.ArgumentParser(description="Tandem beside llama.cpp on this machine's GPU.")
    p.add_argument("--llama", default=os.path.dirname(shutil.which("llama-bench") or ""))
    p.add_argument("--llama-run")
    p.add_argument("--models", default="/dev/shm")
    p.add_argument("--sizes")
    p.add_argument("--types", default="q4_0,q4_k_m")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--keep", action="store_true")
    p.add_argument("--out", default="bench-gpu.json")
    p.add_argument("files", nargs="*")
    args = p.parse_args()
    sizes = args.sizes.split(",") if args.sizes else [] if args.files else ["4b"]
    about, rows = {"machine": of_machine(), "errors": [], "plans": {}, "loads": []}, []
    cache = tempfile.mkdtemp(prefix="tandem-bench-cache-")
    try:
        for path in args.files:
            measure_file(os.path.abspath(path), os.path.basename(path), cache, args, about, rows)
        for size, kind in [(s, k) for s in sizes for k in args.types.split(",")]:
            made = not os.path.exists(os.path.join(args.models, f"{size}-{kind}.gguf"))
            path = model(args.models, size, kind)
            measure_file(path, f"{size} {kind.upper()}", cache, args, about, rows)
            if made and not args.keep:
                os.unlink(path)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
        with open(args.out, "w", encoding="utf-8") as f:
            json.dump(dict(about, rows=rows), f, indent=1)
            f.write("\n")
        show(about, rows)
        print(f"{args.out} has all of it, to send in")


main()
