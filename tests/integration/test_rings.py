"""A worker gone mad: indices and descriptors in the shared rings are scribbled over while jobs run. The epoch ends,
the jobs go on with the same ids, nothing else happens. Writing into another process's memory needs root."""
import random
import re
import struct
import time

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403


def rings(pids):
    """[(pid, address, size)] of every ring mapped by one of them, each memfd once."""
    out, seen = [], set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps") as f:
                for line in f:
                    m = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw-s \S+ \S+ (\d+)\s+/memfd:tandem-ring", line)
                    if m and m.group(3) not in seen:
                        seen.add(m.group(3))
                        out.append((pid, int(m.group(1), 16), int(m.group(2), 16) - int(m.group(1), 16)))
        except OSError:
            continue
    return out


def scribble(ring, offset, data):
    pid, address, _ = ring
    try:
        fd = os.open(f"/proc/{pid}/mem", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False  # the worker has just been replaced
    try:
        os.pwrite(fd, data, address + offset)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


@test
def scribbles():
    if os.geteuid() != 0:
        raise Skip("writing into another process's memory needs root")
    rng = random.Random(int(os.environ.get("TANDEM_TEST_SEED", "11")))
    with Daemon() as d:
        d.wait_ready()
        requests = [{"n": 600, "temp": 0.8, "seed": s} for s in range(3)]
        want = [d.generate(**q) for q in requests]
        check(len(rings(d.pids())) >= 3, "rings found", rings(d.pids()))
        done = recoveries = 0
        kinds = {}
        for _ in range(times(12, 100, 4)):
            d.wait_ready(60)
            jobs = [d.start_job(**q) for q in requests]
            jobs[0].until(rng.randrange(2, 200))
            ring = rng.choice(rings(d.pids()))
            entry_bytes = ring[2] - 256
            kind = rng.choice(("produced", "consumed", "sleep", "descriptor", "descriptors", "header", "all"))
            if kind == "produced":
                scribble(ring, 64, struct.pack("<I", rng.randrange(1 << 32)))
            elif kind == "consumed":
                scribble(ring, 128, struct.pack("<I", rng.randrange(1 << 32)))
            elif kind == "sleep":
                scribble(ring, 192, struct.pack("<I", rng.randrange(1 << 32)))
            elif kind == "header":
                scribble(ring, 0, rng.randbytes(32))
            elif kind == "all":
                scribble(ring, 0, rng.randbytes(ring[2]))
            else:  # descriptors that have not been taken yet, again and again while the job runs
                for _ in range(200 if kind == "descriptors" else 20):
                    scribble(ring, 256 + 64 * rng.randrange(entry_bytes // 64), rng.randbytes(64))
            kinds[kind] = kinds.get(kind, 0) + 1
            done += 1
            for job, w in zip(jobs, want):
                r = job.wait()
                equal(r.reason, "DONE_LENGTH", f"{kind}: {r.error}")
                same_ids(r.ids, w.ids, f"scribble on {kind}")
                recoveries += r.recoveries
        check(d.process.poll() is None, "tandemd lives")
        s = d.status()
        print(f"FIGURE scribbles: {done} ({kinds}), {s.get('recoveries', 0)} epochs ended, "
              f"seen by jobs {recoveries} times")
        check(s.get("recoveries", 0) >= 1, "at least one scribble ended an epoch")
        same_ids(d.generate(**requests[0]).ids, want[0].ids, "a job afterwards")


main()
