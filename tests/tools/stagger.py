"""Runs tests as on a machine that has no CPU for them: stops one of their processes at random, for 0.1 to 1 s, and then
another one.

    tests/tools/stagger.py [--seed N] [--most SECONDS] [--at-once N] [--spare PART]... COMMAND...

COMMAND is a test, or ctest with many of them. With --at-once so many processes stand at a time. Processes whose name
has PART in it are left alone. These are the workers, unless said otherwise: tandemd is right to replace one that is
stopped for long. The exit status is the command's. A seed names the random numbers and not the moments, so a failure
may take some runs to come again."""
import argparse
import glob
import os
import random
import signal
import subprocess
import sys
import threading
import time


def family(root):
    """Processes below this one, and not itself: {pid: (name, state)}."""
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
    out, todo = {}, list(children.get(root, ()))
    while todo:
        pid = todo.pop()
        out[pid] = names[pid]
        todo += children.get(pid, [])
    return out


class Stagger:
    """Stops processes of a command's family until the command has ended."""

    def __init__(self, command, most, spare):
        self.most, self.spare = most, spare
        self.lock = threading.Lock()
        self.rest = {}  # of each pid, when it may stand again
        self.stops = 0
        self.process = subprocess.Popen(command)

    def choice(self, rng, length):
        """A process that runs, taken for so long; or None. What a test itself has stopped stays so."""
        now = time.monotonic()
        with self.lock:
            ready = [pid for pid, (name, state) in family(self.process.pid).items()
                     if state not in "TtZX" and self.rest.get(pid, 0) < now and not any(s in name for s in self.spare)]
            if not ready:
                return None
            pid = rng.choice(sorted(ready))
            self.rest[pid] = now + length + 0.3
            return pid

    def hand(self, seed):
        """Stops one process after another."""
        rng = random.Random(seed)
        while self.process.poll() is None:
            time.sleep(0.05 + 0.25 * rng.random())
            length = rng.uniform(0.1, self.most)
            pid = self.choice(rng, length)
            if pid is None:
                continue
            try:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(length)
                os.kill(pid, signal.SIGCONT)
                self.stops += 1
            except ProcessLookupError:
                pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--most", type=float, default=1.0)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--spare", action="append")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    a = parser.parse_args()
    print("stagger: seed", a.seed, flush=True)
    stagger = Stagger(a.command, a.most, a.spare or ["-work"])
    hands = [threading.Thread(target=stagger.hand, args=(a.seed + i,)) for i in range(a.at_once)]
    for hand in hands:
        hand.start()
    for hand in hands:
        hand.join()
    status = stagger.process.returncode
    print(f"stagger: {stagger.stops} stops, seed {a.seed}, status {status}", flush=True)
    sys.exit(status if status >= 0 else 128 - status)


main()
