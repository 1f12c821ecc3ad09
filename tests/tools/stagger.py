"""Runs a test as on a machine that has no CPU for it: stops one of its processes at random, for 0.1 to 1 s, and then
another one.

    tests/tools/stagger.py [--seed N] [--most SECONDS] [--spare PART] COMMAND...

Processes whose name has PART in it are left alone. These are the workers, unless said otherwise: tandemd is right to
replace one that is stopped for long. The exit status is the command's."""
import argparse
import glob
import os
import random
import signal
import subprocess
import sys
import time


def family(root):
    """Processes below this one: {pid: name}."""
    children, names = {}, {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as f:
                text = f.read()
        except OSError:
            continue
        pid, rest = int(path.split("/")[2]), text.rsplit(")", 1)[1].split()
        children.setdefault(int(rest[1]), []).append(pid)
        names[pid] = (text.split("(", 1)[1].rsplit(")", 1)[0], rest[0])
    out, todo = {}, [root]
    while todo:
        pid = todo.pop()
        if pid in names:
            out[pid] = names[pid]
        todo += children.get(pid, [])
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--most", type=float, default=1.0)
    parser.add_argument("--spare", default="-work")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    a = parser.parse_args()
    print("stagger: seed", a.seed, flush=True)
    rng, n, rest = random.Random(a.seed), 0, {}
    process = subprocess.Popen(a.command)
    while process.poll() is None:
        time.sleep(0.05 + 0.25 * rng.random())
        now = time.monotonic()
        # What the test itself has stopped stays so.
        ready = [pid for pid, (name, state) in family(process.pid).items()
                 if a.spare not in name and state not in "TtZX" and rest.get(pid, 0) < now]
        if not ready:
            continue
        pid, length = rng.choice(sorted(ready)), rng.uniform(0.1, a.most)
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(length)
            os.kill(pid, signal.SIGCONT)
            n += 1
            rest[pid] = time.monotonic() + 0.3
        except ProcessLookupError:
            pass
    print(f"stagger: {n} stops, seed {a.seed}, status {process.returncode}", flush=True)
    sys.exit(process.returncode if process.returncode >= 0 else 128 - process.returncode)


main()
