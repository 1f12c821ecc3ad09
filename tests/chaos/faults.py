"""The faults of chaos.py. Each does one bad thing to the workers of a running daemon, and knows which processes will
end by it (those are no false alarms). A fault undoes its changes to the machine before it returns."""
import mmap
import os
import random
import resource
import signal
import struct
import time

from tandem_test import SANITIZER, SLOW, alive, send_signal, wait_for

HANG_S = 0.5  # tandemd's deadline
PRODUCED, CONSUMED, RING_HEADER = 64, 128, 256  # common/ring-layout.h


def send(pids, signum):
    for p in pids:
        try:
            send_signal(p, signum)
        except ProcessLookupError:
            pass


class Faults:
    """KINDS: the faults and how often each comes. do_…() carries one out and returns whether it was possible."""

    KINDS = {"kill": 6, "both": 2, "hang": 3, "pause": 2, "restart": 2, "exits at start": 1, "out of fds": 2,
             "out of memory": 2, "no memory at start": 1, "scribble": 4}

    def __init__(self, daemon, private, rng):
        self.d, self.private, self.rng = daemon, private, rng
        self.hung = set()  # pids that were really stopped
        self.harmless = 0  # scribbles that the honest end overwrote before the other end read them

    def pick(self):
        # The runtime of a sanitizer reports that it gets no memory, and the report would count as a finding.
        names = [k for k in self.KINDS if not (SANITIZER and "memory" in k)]
        return self.rng.choices(names, [self.KINDS[n] for n in names])[0]

    def carry_out(self, kind):
        """Carries out one fault. True if it was possible."""
        return getattr(self, "do_" + kind.replace(" ", "_"))()

    def victims(self, n=1):
        names = self.rng.sample(("npu", "gpu"), n)
        pids = [self.d.worker_pid(name) for name in names]
        return (names, pids) if all(pids) else (names, None)

    def gone(self, pids):
        for p in pids:
            wait_for(lambda p=p: not alive(p), f"worker {p} reaped", 30)
        return True

    def do_kill(self, n=1):
        _, pids = self.victims(n)
        if not pids:
            return False
        send(pids, signal.SIGKILL)
        return self.gone(pids)

    def do_both(self):
        return self.do_kill(2)

    def do_hang(self):
        _, pids = self.victims(self.rng.choice((1, 1, 1, 2)))
        if not pids:
            return False
        self.hung.update(pids)
        send(pids, signal.SIGSTOP)
        return self.gone(pids)

    def do_pause(self):
        """Stops a worker for much less than the hang deadline: tandemd must not react."""
        _, pids = self.victims()
        if not pids:
            return False
        begin = time.monotonic()
        send(pids, signal.SIGSTOP)
        time.sleep(self.rng.random() * 0.15)
        send(pids, signal.SIGCONT)
        if time.monotonic() - begin > HANG_S / 2:  # this process had to wait: that was no short pause
            self.hung.update(pids)
        return True

    def do_restart(self):
        names, pids = self.victims()
        if not pids:
            return False
        self.d.call("restart", {"worker": names[0]})
        return self.gone(pids)

    def _bad_starts(self, make_script):
        """Puts a bad program in the worker's place for a few starts."""
        names, pids = self.victims()
        if not pids:
            return False
        before = self.d.workers()[names[0]].get("restarts", 0)
        self.private.put_script(names[0], make_script(self.private.worker(names[0])))
        try:
            send(pids, signal.SIGKILL)
            deadline = time.monotonic() + 5 * SLOW
            while self.d.workers()[names[0]].get("restarts", 0) < before + 2 and time.monotonic() < deadline:
                time.sleep(0.005)
        finally:
            self.private.restore(names[0])
        return self.gone(pids)

    def do_exits_at_start(self):
        return self._bad_starts(lambda path: f"exit {self.rng.choice((0, 1, 77))}\n")

    def do_no_memory_at_start(self):
        """Memory for a start, but not for a model (the weights of tale are 14 MB)."""
        kib = self.rng.choice((30000, 60000))
        return self._bad_starts(lambda path: f'ulimit -v {kib}\nexec {path} "$@"\n')

    def do_out_of_fds(self):
        return self._limited(resource.RLIMIT_NOFILE, 3)

    def do_out_of_memory(self):
        return self._limited(resource.RLIMIT_AS, 1 << 20)

    def _limited(self, what, value):
        """Sets a running worker's limit of fds or memory below what it has. It fails only when it needs more. So the
        other worker is killed too, and the limited one cannot take the rings of the new epoch."""
        names, pids = self.victims(2)
        if not pids:
            return False
        try:
            resource.prlimit(pids[0], what, (value, value))
        except (ProcessLookupError, PermissionError):
            return False
        send(pids[1:], signal.SIGKILL)
        self.gone(pids[1:])
        deadline = time.monotonic() + 2 * SLOW
        while alive(pids[0]) and time.monotonic() < deadline:
            time.sleep(0.01)
        send(pids[:1], signal.SIGKILL)  # a worker that had enough must not keep its limits
        return self.gone(pids[:1])

    def rings(self):
        """Ring memfds that tandemd has open, as writable mappings."""
        base, out = f"/proc/{self.d.process.pid}/fd", []
        for name in os.listdir(base):
            try:
                if "tandem-ring" not in os.readlink(f"{base}/{name}"):
                    continue
                fd = os.open(f"{base}/{name}", os.O_RDWR)
            except OSError:
                continue
            try:
                out.append(mmap.mmap(fd, 0))
            except (OSError, ValueError):
                pass
            finally:
                os.close(fd)
        return out

    def do_scribble(self):
        """Writes random descriptors and indices into one ring until the daemon notices or the traffic passes it."""
        rings = self.rings()
        if not rings:
            return False  # not root, and so no right to open them
        before = self.d.status().get("recoveries", 0)
        ring = self.rng.choice(rings)
        size = len(ring) - RING_HEADER
        kind = self.rng.choice(("entries", "produced", "consumed", "all"))
        for _ in range(30):
            if kind in ("entries", "all"):
                ring[RING_HEADER:RING_HEADER + size] = random.Random(self.rng.random()).randbytes(size)
            if kind in ("produced", "all"):
                ring[PRODUCED:PRODUCED + 4] = struct.pack("<I", self.rng.randrange(1 << 32))
            if kind in ("consumed", "all"):
                ring[CONSUMED:CONSUMED + 4] = struct.pack("<I", self.rng.randrange(1 << 32))
            if self.d.status().get("recoveries", 0) != before:
                break
            time.sleep(0.002)
        else:
            self.harmless += 1
        for r in rings:
            r.close()
        return True
