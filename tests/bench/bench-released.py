#!/usr/bin/env python3
"""Released files beside llama.cpp on this machine's CPU, in pairs: alone, a prompt of 512, 8 and 32 together.

usage: TANDEM_BIN=bin TANDEM_LLAMA_CPP=COMMAND bench-released.py [--pairs 5] [--threads 2] [NAME...]

NAME is one of tests/released/models.json. A pair is one run of each, one after the other, so that both meet the same
state of the machine; what is printed is the median of the ratios with their range, and the medians in tokens/s. Use a
machine that does nothing else.

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
import json
import os
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


def ours(d, model, prompt, n, together, figure):
    got = d.cli_json("bench", "-m", model, "-p", str(prompt), "-n", str(n), "-b", str(together), "--json", timeout=900)
    return got[0]["results"][0][figure + "_tps"]


def theirs(path, threads, prompt, n, together, figure):
    # The prompt's length twice: the first run meets memory for the first time.
    command = [*ENDS_WITH_TEST, *os.environ["TANDEM_LLAMA_CPP"].split(), "llama-batched-bench", "-m", path, "-t",
               str(threads), "-c", str(together * (prompt + n) + 512), "-npp", f"{prompt},{prompt}", "-ntg", str(n),
               "-npl", str(together), "--device", "none", "--output-format", "jsonl"]
    r = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       timeout=1800)
    rows = [json.loads(line) for line in r.stdout.splitlines() if line.startswith("{")]
    if r.returncode or len(rows) != 2:
        sys.exit(f"{' '.join(command)}: {r.stderr[-1500:]}")
    return rows[-1]["speed_tg" if figure == "decode" else "speed_pp"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # then the daemon ends in order
    if not os.environ.get("TANDEM_LLAMA_CPP"):
        sys.exit("TANDEM_LLAMA_CPP has to name a command that starts llama.cpp's programs")
    print("| file | case | Tandem | llama.cpp | ratio | wanted |\n|---|---|---|---|---|---|")
    for released in FILES:
        if args.names and released.name not in args.names:
            continue
        with Daemon(models=(released.path(),), threads=args.threads, placement="gpu") as d:
            for what, prompt, n, together, figure, wanted in CASES:
                pairs = []
                for i in range(args.pairs + 1):
                    pair = (ours(d, released.model, prompt, n, together, figure),
                            theirs(released.path(), args.threads, prompt, n, together, figure))
                    if i:  # the first pair warms caches
                        pairs.append(pair)
                ratios = [a / b for a, b in pairs]
                print(f"| {released.name} | {what} | {statistics.median(a for a, _ in pairs):.1f} | "
                      f"{statistics.median(b for _, b in pairs):.1f} | **{statistics.median(ratios):.2f}** "
                      f"({min(ratios):.2f} to {max(ratios):.2f}) | {wanted or ''} |", flush=True)


main()
