"""Damaged model files through the daemon: an error or, where only weights were hit, tokens; never a crash, never a
lost worker, never memory that the file does not justify. The bulk (thousands) runs in-process, in the engine's own
tests."""
import random
import tempfile

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

from gguf_peek import Gguf  # noqa: E402

CODES = {"bad-model", "unsupported", "no-memory", "no-model", "model-changed"}


def attempt(d, path):
    """Loads by fd and asks for a few tokens. The error code, or "" when it ran."""
    with d.wire() as w, open(path, "rb") as f:
        fields = request(ids=[2, 300, 301], n=4)
        fields["model"] = {"name": path, "from_fd": True}
        rid = w.send("generate", fields, fd=f.fileno())
        while True:
            kind, m = w.receive(rid, 120 * SLOW)
            if kind == "error" or kind == "done" and m.get("reason") == "DONE_ERROR":
                e = m if kind == "error" else m["error"]
                check(e["code"] in CODES, "an error that fits", e)
                check(len(e["message"]) > 20, "a message for people", e)
                return e["code"]
            if kind == "done":
                return ""


def peak(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) << 10


def batch(spoil, rounds):
    source = open(SPROUT, "rb").read()
    head = Gguf(SPROUT).head_bytes
    rng = random.Random(int(os.environ.get("TANDEM_TEST_SEED", "8")) + rounds)
    seen = {}
    with Daemon() as d, tempfile.TemporaryDirectory() as tmp:
        want = d.generate(n=10)
        before = {n: w["pid"] for n, w in d.wait_ready().items()}
        start_peak = peak(d.process.pid)
        path = os.path.join(tmp, "bad.gguf")
        for i in range(rounds):
            with open(path, "wb") as f:
                f.write(spoil(rng, source, head))
            code = attempt(d, path)
            seen[code] = seen.get(code, 0) + 1
        same_ids(d.generate(n=10).ids, want.ids, "tale afterwards")
        equal({n: w["pid"] for n, w in d.workers().items()}, before, "the workers are the same processes")
        if not SANITIZER:
            check(peak(d.process.pid) < start_peak + 12 * len(source) + (64 << 20), "tandemd's peak memory",
                  start_peak, peak(d.process.pid))
        print(f"{rounds} files: {seen}")
        return seen


@test
def truncated():
    seen = batch(lambda rng, s, head: s[:rng.choice((rng.randrange(len(s)), rng.randrange(head), rng.randrange(64)))],
                 times(40, 1000, 15))
    check("" not in seen, "a truncated file loaded", seen)


@test
def flipped():
    def spoil(rng, s, head):
        out = bytearray(s)
        for _ in range(rng.choice((1, 1, 2, 8, 64))):
            at = rng.choice((rng.randrange(head), rng.randrange(400), rng.randrange(head - 6000, head),
                             rng.randrange(len(s))))
            out[at] = rng.choice((rng.randrange(256), 0, 255, out[at] ^ (1 << rng.randrange(8))))
        return bytes(out)
    seen = batch(spoil, times(60, 10000, 15))
    check(seen.get("bad-model"), "some were refused", seen)


@test
def one_after_another():
    """Every file another model, each gone before the next: a job must not miss that its model is there."""
    def spoil(rng, s, head):
        at = rng.randrange(len(s) - 4096, len(s))
        return s[:at] + bytes([s[at] ^ 1]) + s[at + 1:]
    seen = batch(spoil, times(300, 1000, 15))
    equal(set(seen), {""}, "all loaded")


@test
def headers():
    """Wrong magic, version, counts; an empty file; not a model at all."""
    cases = {"empty": lambda s: b"", "magic": lambda s: b"GGML" + s[4:],
             "version 1": lambda s: s[:4] + b"\1\0\0\0" + s[8:],
             "version 99": lambda s: s[:4] + b"\x63\0\0\0" + s[8:],
             "tensor count": lambda s: s[:8] + b"\xff" * 8 + s[16:],
             "key count": lambda s: s[:16] + b"\xff" * 7 + b"\x7f" + s[24:],
             "text": lambda s: b"Once upon a time " * 1000,
             "big endian": lambda s: s[:4] + b"\0\0\0\3" + s[8:]}
    for name, spoil in cases.items():
        seen = batch(lambda rng, s, head, spoil=spoil: spoil(s), 1)
        check("" not in seen, f"{name}: it loaded", seen)


main()
