#!/usr/bin/env python3
"""Compares what two builds' Vulkan devices record (list-dispatches.c) for every model of the tests, as each kind of GPU
that tests/spirv-executor and the TANDEM_VULKAN_* switches can stand for. Prints the first lines that differ, and how
many kernels are compiled and bytes allocated in each build. Exits 1 if any list of dispatches differs.

usage: compare-dispatches.py OLD NEW EXECUTOR_FOLDER [--save FOLDER] [--model WORD] [--gpu WORD]

OLD and NEW are list-dispatches of two builds. OLD may be a folder that --save made, with the lists of NEW.
"""
import argparse
import difflib
import gzip
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import TREE, make_model  # noqa: E402

COPY = {"TANDEM_VULKAN_MEMORY": "copy", "TANDEM_VULKAN_KERNELS": "all"}
GPUS = {
    "cpu": {"TANDEM_VULKAN_MATRICES": "off"},
    "plain": {**COPY, "TANDEM_VULKAN_MATRICES": "off"},
    "few-registers": {"TANDEM_VULKAN_MATRICES": "off", "TANDEM_VULKAN_KERNELS": "few-registers"},
    "chained": {**COPY, "TANDEM_VULKAN_MATRICES": "off", "TANDEM_VULKAN_CHAIN": "on"},
    "int8": {**COPY, "TANDEM_VULKAN_HALVES": "off"},
    "int8-chained": {**COPY, "TANDEM_VULKAN_HALVES": "off", "TANDEM_VULKAN_CHAIN": "on"},
    "f16": {**COPY, "TANDEM_VULKAN_HALVES": "on"},
    "f16-chained": {**COPY, "TANDEM_VULKAN_HALVES": "on", "TANDEM_VULKAN_CHAIN": "on"},
    "f16-flagged": {**COPY, "TANDEM_VULKAN_HALVES": "on", "TANDEM_VULKAN_CHAIN": "on", "TANDEM_VULKAN_ROWS": "on"},
    "f16-apart": {**COPY, "TANDEM_VULKAN_HALVES": "on", "TANDEM_VULKAN_CHAIN": "on", "TANDEM_VULKAN_ROWS": "apart"},
    "any": {**COPY, "TANDEM_VULKAN_MATRICES": "any"},
    "rdna3": {**COPY, "TANDEM_EXECUTOR_UNITS": "rdna3"},
}
# Size and types of random models, as tests/random-model.h and GGUF number them.
RANDOM = [("tiny", 2, 2), ("tiny", 8, 8), ("tiny", 1, 1), ("tiny-128", 2, 2), ("tiny-128", 12, 14),
          ("tiny-128", 13, 8), ("tiny-128", 23, 11), ("tiny-128", 30, 1), ("tiny-256", 8, 8), ("tiny-k", 12, 12),
          ("tiny-k-1280", 2, 3), ("1b", 2, 2), ("27b-4", 12, 14)]
FILES = [("llama", "dev", "q8_0", {"seed": 1}), ("llama", "k", "q4_k", {"seed": 3}),
         ("smollm3", "dev", "q8_0", {"seed": 1}), ("qwen2", "dev", "q8_0", {"seed": 1}),
         ("qwen2", "dev", "f32", {"seed": 1}), ("qwen3", "yarn", "f32", {"seed": 4}),
         ("qwen3moe", "dev", "q8_0", {"seed": 1}), ("qwen3moe", "k", "q4_k", {"seed": 3}),
         ("qwen3moe", "k", "q4_0", {"seed": 3}), ("gpt-oss", "dev", "mxfp4", {"seed": 1}),
         ("gpt-oss", "real", "mxfp4", {"seed": 5}), ("gemma4", "e", "q8_0", {}), ("gemma4", "x", "f32", {"seed": 3}),
         ("gemma3n", "a", "q8_0", {}), ("gemma3n", "b", "q4_0", {"seed": 2, "mid_type": "f16"}),
         ("gemma3n", "k", "q4_k", {"seed": 4, "embd_type": "q6_k"}), ("gemma3n", "gen", "f32", {"seed": 6}),
         ("gemma4", "m", "q8_0", {"seed": 2}), ("gemma4", "k", "q4_k", {"seed": 6, "embd_type": "q6_k"}),
         ("gemma-embedding", "a", "q8_0", {"seed": 1})]


def models():
    for name in ("sprout", "tale"):
        yield name, [os.path.join(TREE, "models", f"{name}.gguf")]
    for size, first, more in RANDOM:
        yield f"random-{size}-{first}-{more}", [size, str(first), str(more)]
    for arch, size, kind, options in FILES:
        yield f"{arch}-{size}-{kind}", [make_model(size, kind, arch=arch, **options)]


def run(program, arguments, env):
    r = subprocess.run([program] + arguments, env={**os.environ, **env}, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True)
    return r.stdout.splitlines() + ([f"exit {r.returncode}"] if r.returncode else [])


def renamed(lines):
    """Buffers by the order in which commands name them, whatever the order of their creation is."""
    names = {}
    return [re.sub(r"\bb\d+\+", lambda m: f"b{names.setdefault(m[0], len(names))}+", line) for line in lines]


def listed(program, name, arguments, env):
    if os.path.isdir(program):
        with gzip.open(os.path.join(program, name + ".gz"), "rt") as f:
            lines = f.read().splitlines()
    else:
        lines = run(program, arguments, env)
    kernels = sum(line.startswith("kernel ") for line in lines)
    sizes = [int(m[1]) for m in (re.match(r"buffer b\d+ of (\d+) bytes", line) for line in lines) if m]
    return renamed([line for line in lines if not line.startswith(("kernel ", "buffer "))]), kernels, sum(sizes), lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("executor")
    parser.add_argument("--save")
    parser.add_argument("--model", default="")
    parser.add_argument("--gpu", default="")
    args = parser.parse_args()
    n = n_differ = n_lines = n_failed = 0
    totals = [[0, 0], [0, 0]]
    for name, arguments in models():
        for gpu, switches in GPUS.items():
            if args.model not in name or args.gpu not in gpu:
                continue
            env = {"LD_LIBRARY_PATH": args.executor, "XDG_CACHE_HOME": "/nonexistent", **switches}
            lists = [listed(program, f"{name}-{gpu}", arguments, env) for program in (args.old, args.new)]
            if args.save:
                with gzip.open(os.path.join(args.save, f"{name}-{gpu}.gz"), "wt", 1) as f:
                    f.write("\n".join(lists[1][3]))
            n += 1
            n_lines += len(lists[0][0])
            n_failed += any(line.startswith("exit ") for line in lists[0][0])
            for total, (_, kernels, size, _) in zip(totals, lists):
                total[0] += kernels
                total[1] += size
            if lists[0][0] == lists[1][0]:
                continue
            n_differ += 1
            print(f"{name} as {gpu}: differs")
            for line in list(difflib.unified_diff(lists[0][0], lists[1][0], "old", "new", lineterm="", n=1))[:24]:
                print("   ", line[:240])
    print(f"{n} lists of {n_lines} lines, {n_differ} differ, {n_failed} end with an error in the old build; kernels "
          f"{totals[0][0]} and {totals[1][0]}, bytes {totals[0][1]} and {totals[1][1]}")
    return n_differ > 0


sys.exit(main())
