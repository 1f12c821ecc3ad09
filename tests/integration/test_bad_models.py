"""Damaged model files through the daemon: an error or, where only weights were hit, tokens; never a crash, never a
lost worker, never memory that the file does not justify. The bulk (thousands) runs in-process, in the engine's own
tests."""
import random
import resource
import struct
import subprocess
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


TOOLS = os.path.join(TREE, "tools")


def unlike(tool, path, arch, table, size, *args):
    """A model of sizes that no released one has, by a tool of the tree: table is a line that adds them."""
    code = f"import sys; sys.path.insert(0, {TOOLS!r}); import {tool} as m; {table}; m.main()"
    r = subprocess.run(["/usr/bin/python3", "-B", "-c", code, path, "--arch", arch, "--size", size, *args],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if b"No module named 'numpy'" in r.stdout:
        raise Skip("python3-numpy is missing")
    check(r.returncode == 0, f"{tool} failed", r.stdout[-2000:])
    return path


@test
def large_sizes():
    """Heads whose tables of angles would take gigabytes in each worker."""
    with Daemon() as d, tempfile.TemporaryDirectory() as tmp:
        before = {n: w["pid"] for n, w in d.wait_ready().items()}
        g = Gguf(SPROUT)
        data = bytearray(open(SPROUT, "rb").read())
        for key in ("key_length", "value_length"):
            struct.pack_into("<I", data, g.place[f"gemma3.attention.{key}"], 16384)
        path = os.path.join(tmp, "wide.gguf")
        with open(path, "wb") as f:
            f.write(data)
        r = d.cli("generate", "-m", path, "x")
        check(b"the head dimension is 16384, it must be from 1 to 1024" in r.stderr, "head dimension", r.stderr)
        equal({n: w["pid"] for n, w in d.workers().items()}, before, "the workers are the same processes")


@test
def scratch_of_experts():
    """Each row of a step wants 64 experts with wide outputs: the workers' scratch is planned for."""
    with Daemon() as d, tempfile.TemporaryDirectory() as tmp:
        path = unlike("mkgguf_archs", os.path.join(tmp, "experts.gguf"), "qwen3moe",
                      'm.SIZES["qwen3moe", "wide"] = (1, 8192, 2, 1, 32, 64, 512, 1e6, True, '
                      '{"experts": (64, 64, 32)})', "wide", "--type", "q4_0", "--vocab", "512")
        d.generate(n=2)
        with open(f"/proc/{d.process.pid}/statm") as f:
            used = int(f.read().split()[0]) * 4096
        resource.prlimit(d.process.pid, resource.RLIMIT_AS, (used + (800 << 20), -1))
        r = d.cli("generate", "-m", path, "x")
        check(b"no-memory" in r.stderr and b"scratch of the workers" in r.stderr, "refused", r.stderr)
        resource.prlimit(d.process.pid, resource.RLIMIT_AS, (-1, -1))
        d.generate(n=2)


@test
def bytes_of_a_token():
    """The rows of a second embedding that a step carries."""
    with tempfile.TemporaryDirectory() as tmp:
        path = unlike("mkgguf_gemma", os.path.join(tmp, "inputs.gguf"), "gemma4",
                      'm.GEMMA4["wide"] = m.GEMMA4["e"][:12] + (256,) + m.GEMMA4["e"][13:]', "wide", "--type", "f32",
                      "--vocab", "1024")
        for rows in (512, 2200):
            config = os.path.join(tmp, "tandem.conf")
            with open(config, "w") as f:
                f.write(f"[engine]\nmax-rows = {rows}\n")
            with Daemon(models=(TALE, path), args=("--config", config)) as d:
                before = {n: w["pid"] for n, w in d.wait_ready().items()}
                r = d.cli("generate", "-m", path, "--raw", "-n", "2", "x")
                if rows == 512:
                    check(r.returncode == 0, "with 512 rows", r.stderr)
                else:
                    check(b"15360 bytes for each token" in r.stderr and b"max-rows to 2184 or less" in r.stderr,
                          "refused", r.stderr)
                d.generate(n=2)
                equal({n: w["pid"] for n, w in d.workers().items()}, before, "the workers are the same processes")


main()
