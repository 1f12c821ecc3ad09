#!/usr/bin/env python3
"""How long do streams pause when a worker or the daemon goes? Four streams of libtandem run, and then: a worker is
killed with -9; the daemon is told to end, as by a restart; it is killed with -9. The script holds the socket and starts
the next daemon at once, as a service manager does that waits for nothing (RestartSec= comes on top of a kill). A pause
is the longest time between two tokens of a stream. How long the daemon took to leave is told too.

usage: TANDEM_BIN=build/bin bench-restarts.py [MODEL.gguf] [--rounds N] [--json]

It prints figures and judges nothing. The machine should be quiet.
"""
import argparse
import contextlib
import json
import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from lives import Cli, Held, leave  # noqa: E402
from tandem_test import PROMPT, TALE, check, wait_for  # noqa: E402

STREAMS, TOKENS = 4, 4000
AFTER = 20  # tokens that come before something happens, and behind it


def restart(d):
    """Seconds that the daemon took to leave."""
    begin = time.monotonic()
    leave(d)
    took = time.monotonic() - begin
    d.start()
    return took


def killed(d):
    d.kill()
    d.start()


def worker_killed(d):
    d.signal_worker("gpu", signal.SIGKILL)


def streams(d):
    out = [Cli(d, "--raw", "-n", str(TOKENS), "--seed", str(i), PROMPT) for i in range(STREAMS)]
    wait_for(lambda: all(c.n() >= AFTER or not c.runs() for c in out), "tokens", 120)
    return out


def pauses(d, happens):
    """(of the streams that saw it, what it returns)"""
    running = streams(d)
    check(all(c.n() >= AFTER for c in running), "streams that run", [c.lines[-1:] for c in running])
    at = time.monotonic()
    result = happens(d)
    seen = [c for c in running if c.runs()]
    counts = {c: c.n() for c in seen}
    wait_for(lambda: all(c.n() >= counts[c] + AFTER or not c.runs() for c in seen), "tokens behind it", 120)
    out = []
    for c in seen:
        times = list(c.times)
        out += [max((b - a for a, b in zip(times, times[1:]) if b > at), default=0.0)]
    for c in running:
        c.process.kill()
        c.wait()
    return out, result


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model", nargs="?", default=TALE)
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    figures, left = {}, []
    with Held(models=(args.model,)) as d:
        d.wait_ready()
        for name, happens in (("worker killed", worker_killed), ("restart", restart), ("daemon killed", killed)):
            all_pauses = []
            for _ in range(args.rounds):
                found, took = pauses(d, happens)
                all_pauses += found
                left += [took] * (took is not None)
            figures[name] = [round(percentile(all_pauses, share), 3) for share in (0.5, 0.95, 1)]
        figures["leaving"] = [round(percentile(left, share), 3) for share in (0.5, 0.95, 1)]
        with contextlib.suppress(AssertionError):
            d.stop()
        d.expect_exit = None
    if args.json:
        print(json.dumps(figures))
        return
    print(f"{'':16} {'p50':>8} {'p95':>8} {'most':>8}   seconds, {args.rounds} times, {STREAMS} streams")
    for name, values in figures.items():
        print(f"{name:16} " + " ".join(f"{v:8.3f}" for v in values))


main()
