"""Random and half-right frames at a running daemon. Whatever comes, it answers or hangs up, and goes on
serving others.

Valid requests are mutated (bytes, lengths, fields said twice, a stray fd, a wrong order), because noise alone never
passes the first check. The decoder itself is protobuf-c; what is fuzzed here is everything behind it.

usage: fuzz_frames.py [--full]
"""
import os
import random
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import (SCHEMA, SLOW, Closed, Daemon, Refused, SPROUT, check, main, request, same_ids, test,
                         # noqa: E402
                         times, wait_for)


def valid(rng):
    kind, values = rng.choice((
        ("hello", {"protocol": rng.choice((0, 1, 2, 1 << 31)), "client": "x" * rng.choice((0, 5, 5000))}),
        ("generate", request(prompt="Once upon", n=rng.choice((0, 1, 5)), temp=rng.choice((0.0, 1.0)))),
        ("generate", request(ids=[rng.randrange(7000) for _ in range(rng.randrange(40))], n=3,
                             chunk=rng.randrange(1 << 32))),
        ("generate", request(chat=[(rng.choice(("user", "system", "ghost")), "hi")] * rng.randrange(1, 40), n=2)),
        ("render", request(chat=[(rng.choice(("user", "assistant", "ghost")), "hi")] * rng.randrange(40), n=2)),
        ("generate", request(prompt=rng.randbytes(30), n=2, stop=[rng.randbytes(3)] * rng.randrange(9))),
        ("score", {"ids": [rng.randrange(7000) for _ in range(rng.randrange(30))],
                   "top": rng.choice((0, 3, 64, 65, 1 << 31))}),
        ("tokenize", {"text": rng.randbytes(rng.choice((0, 1, 100, 20000))), "special": True}),
        ("cancel", {"job": rng.choice((0, 1, 2, 1 << 63))}), ("status", {}), ("models", {}), ("jobs", {}),
        ("load", {"model": {"name": rng.choice(("", "tale", "../../etc/passwd", "x" * 3000)),
                            "from_fd": rng.random() < 0.5}}),
        ("unload", {"name": rng.choice(("", "nothing", "\U0001F98A"))})))
    return SCHEMA.encode("Request", {"id": rng.choice((0, 1, 1, 2, 1 << 31)), kind: values})


def mutate(rng, data):
    out = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 5, 20))):
        what = rng.randrange(5)
        at = rng.randrange(len(out) + 1)
        if what == 0 and at < len(out):
            out[at] = rng.randrange(256)
        elif what == 1:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif what == 2:
            del out[at:at + rng.randrange(1, 9)]
        elif what == 3:
            out += valid(rng)
        elif at < len(out):
            out[at] ^= 1 << rng.randrange(8)
    return bytes(out)


@test
def frames():
    seed = int(os.environ.get("TANDEM_TEST_SEED", str(int(time.time()))))
    rng = random.Random(seed)
    print(f"seed {seed}", flush=True)
    answers = hangups = 0
    with Daemon(models=[SPROUT]) as d, open(SPROUT, "rb") as model, open("/dev/null", "rb") as null:
        want = d.generate(n=10)
        for _ in range(times(1500, 10000, 150)):
            with d.wire(timeout=20 * SLOW, hello=rng.random() < 0.8) as w:
                try:
                    for _ in range(rng.randrange(1, 6)):
                        payload = mutate(rng, valid(rng))
                        size = len(payload) if rng.random() < 0.97 else rng.choice((0, len(payload) + 1, 1 << 31))
                        fd = rng.choice((None,) * 8 + (model.fileno(), null.fileno()))
                        w.send_bytes(struct.pack("<I", size) + payload, fd)
                    if rng.random() < 0.5:
                        w.receive(1, 0.02)
                        answers += 1
                except (Refused, Closed, BrokenPipeError, ConnectionResetError):
                    hangups += 1
                except TimeoutError:
                    pass
        wait_for(lambda: d.status().get("jobs_running", 0) + d.status().get("jobs_queued", 0) == 0, "idle at the end",
                 20)
        same_ids(d.generate(n=10).ids, want.ids, "a job afterwards")
        check(all(w_.get("restarts", 0) == 0 for w_ in d.status()["workers"]), "no worker was lost",
              d.status()["workers"])
        print(f"{answers} answers read, {hangups} hang-ups")


main()
