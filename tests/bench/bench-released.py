#!/usr/bin/env python3
"""Released files beside llama.cpp on this machine's CPU, in pairs: alone, a prompt of 512, 8 and 32 together.

usage: TANDEM_BIN=bin TANDEM_LLAMA_CPP=COMMAND bench-released.py [--pairs 5] [--threads 2] [--processor] [NAME...]

NAME is one of tests/released/models.json. A pair is one run of each, one after the other, so that both meet the same
state of the machine; what is printed is the median of the ratios with their range, and the medians in tokens/s. Use a
machine that does nothing else.

--processor is for a busy machine: one thread each, and in place of tokens/s the processor time of a token, in ms. It is
what a longer run takes more than a short one, of all processes: tandemd, workers and client.

The same for both: the file, the threads, a cache of f16, prompts of the same length that differ from each other, one
run that is not counted before each that is. Decoding counts from each sequence's first token on.

Not the same, each time to llama.cpp's advantage:
- Tandem is measured by a client of its daemon (placement gpu, speculation off). A step then includes drawing its
  tokens, greedily, and telling the client. llama-batched-bench runs in one process and draws nothing: it goes on with
  random tokens.
- Tandem's prefill ends when the client has the first token of every job. llama.cpp's ends with the logits.

llama.cpp runs on the CPU alone and keeps its defaults otherwise: flash attention where it thinks fit, batches of 512
rows, weights packed anew for the processor where it can."""
import argparse
import contextlib
import functools
import glob
import json
import os
import resource
import signal
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "released"))
from released import FILES  # noqa: E402
from tandem_test import ENDS_WITH_TEST, Daemon  # noqa: E402

#        what, prompt, tokens, together, figure, wanted
CASES = (("alone", 16, 64, 1, "decode", 1.1), ("prompt of 512", 512, 2, 1, "prefill", 2.0),
         ("8 together", 16, 48, 8, "decode", 2.5), ("32 together", 16, 32, 32, "decode", None))
SHORT_PROMPT, FEW_TOKENS = 16, 4  # of the shorter run
THEIR_RUNS = 2  # in one process: the first one meets memory for the first time


def ours(d, model, prompt, n, together, figure):
    got = d.cli_json("bench", "-m", model, "-p", str(prompt), "-n", str(n), "-b", str(together), "--json", timeout=900)
    return got[0]["results"][0][figure + "_tps"]


def theirs(path, threads, prompt, n, together, figure):
    command = [*ENDS_WITH_TEST, *os.environ["TANDEM_LLAMA_CPP"].split(), "llama-batched-bench", "-m", path, "-t",
               str(threads), "-c", str(together * (prompt + n) + 512), "-npp", ",".join([str(prompt)] * THEIR_RUNS),
               "-ntg", str(n), "-npl", str(together), "--device", "none", "--output-format", "jsonl"]
    r = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       timeout=1800)
    rows = [json.loads(line) for line in r.stdout.splitlines() if line.startswith("{")]
    if r.returncode or len(rows) != THEIR_RUNS:
        sys.exit(f"{' '.join(command)}: {r.stderr[-1500:]}")
    return rows[-1]["speed_tg" if figure == "decode" else "speed_pp"]


def processor_s(d):
    """Of all that this process has started and waited for, and of what the daemon consists of."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    ns = 0
    for pid in d.pids():
        for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
            with contextlib.suppress(OSError), open(path, encoding="ascii") as f:  # a thread may have left
                ns += int(f.read().split()[0])
    return used.ru_utime + used.ru_stime + ns / 1e9


def processor_ms(d, run, prompt, n, together, figure):
    """run(prompt, n, together, figure): how much processor time a token of it takes."""
    less = (prompt, FEW_TOKENS) if figure == "decode" else (SHORT_PROMPT, n)
    took = []
    for length in ((prompt, n), less):
        before = processor_s(d)
        run(*length, together, figure)
        took.append(processor_s(d) - before)
    return (took[0] - took[1]) * 1e3 / (together * (prompt + n - sum(less)))


def pair(d, released, threads, processor, case):
    """Tandem's figure and llama.cpp's."""
    runs = [functools.partial(ours, d, released.model), functools.partial(theirs, released.path(), threads)]
    if not processor:
        return [run(*case) for run in runs]
    mine, other = (processor_ms(d, run, *case) for run in runs)
    return mine, other / THEIR_RUNS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor", action="store_true")
    args = parser.parse_args()
    threads = 1 if args.processor else args.threads
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # then the daemon ends in order
    if not os.environ.get("TANDEM_LLAMA_CPP"):
        sys.exit("TANDEM_LLAMA_CPP has to name a command that starts llama.cpp's programs")
    print("| file | case | Tandem | llama.cpp | ratio | wanted |\n|---|---|---|---|---|---|")
    for released in FILES:
        if args.names and released.name not in args.names:
            continue
        with Daemon(models=(released.path(),), threads=threads, placement="gpu") as d:
            for what, *case, wanted in CASES:
                # the first pair warms caches
                pairs = [pair(d, released, threads, args.processor, case) for _ in range(args.pairs + 1)][1:]
                ratios = [b / a if args.processor else a / b for a, b in pairs]
                print(f"| {released.name} | {what} | {statistics.median(a for a, _ in pairs):.4g} | "
                      f"{statistics.median(b for _, b in pairs):.4g} | **{statistics.median(ratios):.2f}** "
                      f"({min(ratios):.2f} to {max(ratios):.2f}) | {wanted or ''} |", flush=True)


main()
