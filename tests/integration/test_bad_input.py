"""What people and programs get wrong: each gets a clear error, and the daemon still serves."""
import resource
import signal
import shutil
import struct
import subprocess
import tempfile
import time

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403


def refused(d, code, **fields):
    try:
        r = d.generate(**fields)
    except Refused as e:
        equal(e.code, code, f"error code ({e.message})")
        check(len(e.message) > 15, "a message for people", e.message)
        return e.message
    raise AssertionError(f"accepted: {r.ids[:5]}")


def serves(d):
    equal(len(d.generate(n=3).ids), 3, "the daemon still serves")


@test
def requests():
    with Daemon() as d:
        message = refused(d, "no-model", model="no-such-model")
        check("no-such-model" in message, "the message names the model", message)
        refused(d, "bad-request", prompt="")
        message = refused(d, "too-long", ids=[2] + [300] * 5000)
        check("4096" in message and "5001" in message, "the message names both lengths", message)
        refused(d, "too-long", prompt="word " * 20000)
        refused(d, "bad-request", ids=[2, 999999])
        refused(d, "bad-request", ids=[2, 300], placement="sideways")
        for bad in ({"temp": -1.0}, {"temp": float("nan")}, {"temp": float("inf")}, {"top_p": float("nan")},
                    {"top_p": -0.5},
                    {"min_p": float("nan")}, {"min_p": 2.0}, {"repeat_penalty": float("inf")},
                    {"repeat_penalty": -1.0}, {"frequency_penalty": 2.1}, {"presence_penalty": float("nan")},
                    {"top_logprobs": 21}, {"logit_bias": "5"}, {"logit_bias": "5:"}, {"logit_bias": "5:101"},
                    {"logit_bias": "5:nan"}, {"logit_bias": "-5:1"}, {"logit_bias": "5:1;6:1"},
                    {"logit_bias": "5:1,5:2"}, {"logit_bias": "99999999999:1"}, {"logit_bias": "999999:1"},
                    {"logit_bias": ",".join(f"{i}:1" for i in range(513))}):
            refused(d, "bad-request", **bad)
        refused(d, "bad-request", prompt="x", stop=["a" * 100000])
        refused(d, "bad-request", prompt="x", stop=["a"] * 5000)
        for kind, values, code in (("cancel", {"job": 12345}, "no-job"), ("restart", {"worker": "tpu"}, "bad-request"),
                                   ("unload", {"name": "nothing"}, "no-model"),
                                   ("load", {"model": {"name": "nothing"}}, "no-model"),
                                   ("load", {"model": {"from_fd": True}}, "bad-request"),
                                   ("tokenize", {"model": {"name": "nothing"}, "text": b"x"}, "no-model"),
                                   ("score", {"ids": []}, "bad-request"),
                                   ("score", {"ids": [999999, 1]}, "bad-request"),
                                   ("score", {"ids": [2, 3], "top": 1000000}, "bad-request")):
            try:
                d.call(kind, values)
                raise AssertionError(f"{kind} {values} was accepted")
            except Refused as e:
                equal(e.code, code, f"{kind} {values} ({e.message})")
        serves(d)


@test
def names():
    """Names and paths come from file systems and from clients, and neither promises UTF-8: what is shown is UTF-8 (this
    client decodes strictly), and the model works."""
    bad = b"/somewhere/" + b"\xe2\x82\xac\xa2" * 700 + b"/caf\xe9-" + b"\xf0\x9f\xa6\x8a" * 40 + b".gguf"
    with tempfile.TemporaryDirectory() as tmp:
        for name in (b"latin-\xe9.gguf", "grüße.gguf".encode()):
            os.symlink(SPROUT, os.path.join(tmp.encode(), name))
        with Daemon(env={"TANDEM_MODEL_PATH": tmp}) as d, open(SPROUT, "rb") as f, d.wire(timeout=60 * SLOW) as w:
            listed = [m["name"] for m in d.call("models")["models"]]
            check("grüße" in listed, "a name in UTF-8 is listed", listed)
            check(not any("latin" in name for name in listed), "what is no name is not", listed)
            rid = w.send("generate", dict(request(ids=[2, 300], n=2), model={"name": bad, "from_fd": True}),
                         fd=f.fileno())
            while True:
                kind, m = w.receive(rid)
                if kind == "done":
                    break
            check("error" not in m, "a job of the model with such a name", m)
            for models in (d.call("models")["models"], d.status()["models"]):
                shown = [m for m in models if m["name"].startswith("caf?-")]
                equal(len(shown), 1, f"the model in the list {[m['name'] for m in models]}")
                check(shown[0]["path"].startswith("/somewhere/\u20ac?\u20ac?"), "its path", shown[0]["path"])
            serves(d)


@test
def a_refused_file_is_not_remembered():
    """A file that was refused is listed as failed, then leaves the list; when it is mended, it works at once."""
    with tempfile.TemporaryDirectory() as tmp, Daemon() as d:
        path = os.path.join(tmp, "broken.gguf")
        with open(TALE, "rb") as f, open(path, "wb") as g:
            g.write(f.read(1 << 20))

        def listed():
            """For three seconds, which may be over before this process asks."""
            d.cli("generate", "-m", path, "-n", "2", "x", check_exit=1)
            return [m["state"] for m in d.call("models")["models"] if m["name"] == "broken"]
        equal(wait_for(listed, "it is listed"), ["failed"], "listed")
        wait_for(lambda: not any(m["name"] == "broken" for m in d.call("models")["models"]), "it leaves the list", 6)
        shutil.copy(SPROUT, path)
        d.cli("generate", "-m", path, "-n", "2", "x", check_exit=0)


@test
def paths_of_others():
    """A daemon that serves several users shows none of them in which folder another's file lies."""
    with Daemon(system=True) as d, open(SPROUT, "rb") as f, d.wire(timeout=60 * SLOW) as w:
        model = {"name": b"/home/somebody/secret/own.gguf", "from_fd": True}
        rid = w.send("generate", dict(request(ids=[2, 300], n=2), model=model), fd=f.fileno())
        while w.receive(rid)[0] != "done":
            pass
        for models in (d.call("models")["models"], d.status()["models"]):
            own = [m for m in models if m["name"] == "own"]
            equal([m["path"] for m in own], ["own.gguf"], "the path")
            check("secret" not in str(own), "the folder", own)


@test
def frames():
    """100 MB announced, 100 MB sent, nonsense, an empty frame, half a frame and silence."""
    with Daemon() as d:
        before = d.status().get("arena_bytes", 0), rss(d.process.pid)
        for name, data in (("100 MB", struct.pack("<I", 100 << 20) + b"\1" * (1 << 20)), ("4 GB", b"\xff" * 4096),
                           ("not protobuf", struct.pack("<I", 100) + b"\xff" * 100),
                           ("nothing in it", struct.pack("<I", 0)),
                           ("no kind", struct.pack("<I", 2) + b"\x08\x05"),
                           ("unknown kind", struct.pack("<I", 4) + b"\x08\x05\xfa\x07"[:4])):
            with d.wire(timeout=20 * SLOW) as w:
                try:
                    w.send_bytes(data)
                    kind, m = w.receive(5)
                    equal(kind, "error", f"{name}: answer")
                except (Refused, Closed, BrokenPipeError, ConnectionResetError):
                    pass
            serves(d)
        check(rss(d.process.pid) < before[1] + (40 << 20), "tandemd grew", before, rss(d.process.pid))
        # The whole 100 MB, from a client that does not listen.
        with d.wire(timeout=20 * SLOW) as w:
            try:
                w.send_bytes(struct.pack("<I", 100 << 20))
                for _ in range(100):
                    w.send_bytes(b"\0" * (1 << 20))
                raise AssertionError("tandemd read 100 MB")
            except (BrokenPipeError, ConnectionResetError):
                pass
        serves(d)


@test
def half_a_frame_and_silence():
    """The daemon hangs up after its stall time; others do not notice. A silent one without half a frame may stay."""
    with Daemon() as d:
        with d.wire(timeout=60 * SLOW) as w, d.wire(hello=False) as quiet:
            begin, watch = time.monotonic(), Stopwatch()
            w.send_bytes(struct.pack("<I", 1000) + b"\0" * 10)
            serves(d)
            check(watch.seconds() < 5 * SLOW, "others wait for the half frame", watch.seconds())
            try:
                w.wait_closed()
            except TimeoutError:
                raise AssertionError("tandemd holds half a frame for ever") from None
            took = time.monotonic() - begin
            check(took > 0.5, f"hung up after {took:.1f} s already")
            quiet.call("hello", {"protocol": 1})
        serves(d)


@test
def many_connections():
    """There is a cap, and it is told; afterwards everything is as before."""
    with Daemon() as d:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        wires = []
        try:
            for _ in range(1500):
                wires.append(d.wire(timeout=20 * SLOW))
        except (Refused, Closed, OSError):
            pass
        count = len(wires)
        check(20 <= count < 1500, f"{count} connections from one user, no cap")
        for w in wires:
            w.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        wait_for(lambda: connects(d), "a connection again")
        serves(d)


def connects(d):
    try:
        d.wire().close()
        return True
    except (Refused, Closed, OSError):
        return False


@test
def many_jobs():
    """A client that submits without end meets a quota, and its jobs end with it."""
    with Daemon() as d:
        with d.wire(timeout=60 * SLOW) as w:
            for i in range(3000):
                w.send("generate", request(n=4000, ids=[2, 300 + i % 1000]))
            seen = set()
            for rid in range(2, 3002):
                try:
                    kind, m = w.receive(rid)
                except (Refused, Closed, TimeoutError) as e:
                    seen.add(getattr(e, "code", type(e).__name__))
                    break
                if kind == "error":
                    seen.add(m.get("code"))
                    break
            check(seen & {"quota", "busy"}, "a quota for 3,000 jobs of one client", seen)
        wait_for(lambda: not d.status().get("jobs_running", 0) and not d.status().get("jobs_queued", 0),
                 "all jobs gone", 20)
        serves(d)


def rss(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) << 10


@test
def vanishing_client():
    with Daemon(hang_ms=STANDING_MS) as d:
        with d.in_midst(dict(n=4000), tokens=3) as (job,):
            at_first = d.status()
            cancelled, before = at_first.get("jobs_cancelled", 0), at_first["tokens_generated"]
            job.vanish()
        def stopped():
            s = d.status()
            return s if s.get("jobs_running", 0) + s.get("steps_in_flight", 0) == 0 else None
        s = wait_for(stopped, "the job stops", 5, 0.005)
        equal(s.get("jobs_cancelled", 0), cancelled + 1, "jobs cancelled")
        check(s["tokens_generated"] - before < 3900, "it stopped before its end", s["tokens_generated"])
        time.sleep(0.3)
        equal(d.status()["tokens_generated"], s["tokens_generated"], "tokens generated after the client went")
        equal(d.status()["steps_done"], s["steps_done"], "steps done after the client went")
        # In its prompt, and in the queue.
        jobs = [d.start_job(ids=[2] + [400 + i] * 3000, n=50) for i in range(6)]
        for j in jobs:
            j.vanish()
        wait_for(lambda: d.status().get("jobs_running", 0) + d.status().get("jobs_queued", 0) == 0, "all six stop", 10)
        serves(d)


@test
def a_client_that_does_not_read():
    """Its socket fills; others go on."""
    with Daemon() as d:
        jobs = [d.start_job(n=4000, temp=1.0, seed=i) for i in range(4)]
        time.sleep(0.2)
        watch = Stopwatch()
        equal(len(d.generate(n=20).ids), 20, "another client's job")
        check(watch.seconds() < 10 * SLOW, "another client waited")
        for j in jobs:
            j.vanish()
        serves(d)


@test
def wrong_flags():
    with Daemon() as d:
        for args in (["generate", "--no-such-flag", "x"], ["generate", "-n", "many", "x"],
                     ["generate", "-n", "-5", "x"],
                     ["generate", "--temp", "hot", "x"], ["generate", "--top-k", "-2", "x"],
                     ["generate", "--seed", "x1", "x"],
                     ["frobnicate"], [], ["restart"], ["restart", "tpu"], ["cancel"], ["cancel", "seven"],
                     ["generate", "--priority", "urgent", "x"], ["generate", "--raw", "--chat", "x"]):
            r = d.cli(*args, check_exit=2)
            check(r.stderr.strip(), f"tandem {' '.join(args)} says something")
        for args in ((b"\xff",), (b"\x1b[31mred",), (b"help", b"\x1b[31m"), (b"generate", b"--\x1b\xff"),
                     (b"generate", b"-n", b"\x1b\xff")):
            r = d.cli(*args)
            check(r.returncode == 2 and r.stderr.decode().strip().isprintable(), f"what is told of {args}", r.stderr)
        for args, words in ((["generate", "-m", "no-such-model", "x"], ["no-such-model"]),
                            (["generate", "-m", "/no/such.gguf", "x"], ["/no/such.gguf"]),
                            (["generate", "-m", "/dev/null", "x"], ["/dev/null"]),
                            (["generate", "-m", "/tmp", "x"], ["/tmp"]),
                            (["generate", "--raw", ""], ["empty"]), (["cancel", "987654"], ["987654"])):
            r = d.cli(*args, check_exit=1)
            for w in words:
                check(w in r.stderr.decode(), f"tandem {' '.join(args)} names {w!r}", r.stderr)
        for args in (["--help"], ["--version"], ["generate", "--help"]):
            r = d.cli(*args, check_exit=0)
            check(r.stdout.strip(), f"tandem {' '.join(args)} answers on stdout")
        serves(d)


def tandemd(*args):
    return subprocess.run([os.path.join(BIN, "tandemd"), *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=30 * SLOW)


@test
def wrong_daemon_flags():
    for args in (["--no-such-flag"], ["--socket"], ["--config"], ["--user", "--system"]):
        r = tandemd(*args)
        equal(r.returncode, 2, f"tandemd {' '.join(args)}: exit ({r.stderr[-200:]})")
        check(r.stderr.strip(), "it says something")
    with tempfile.TemporaryDirectory() as tmp:
        r = tandemd("--user", "--bus", "none", "--socket", "/no/such/dir/socket")
        equal(r.returncode, 1, f"a socket in a directory that cannot be ({r.stderr[-300:]})")
        long = os.path.join(tmp, "x" * 200)
        r = tandemd("--user", "--bus", "none", "--socket", long)
        check(r.returncode in (1, 2) and b"long" in r.stderr, "a socket path that is too long", r.returncode,
              r.stderr[-300:])
        r = tandemd("--user", "--bus", "none", "--socket", os.path.join(tmp, "s"), "--model", "/no/such.gguf")
        check(r.returncode == 1 and b"/no/such.gguf" in r.stderr, "a model that is not there", r.returncode,
              r.stderr[-300:])


@test
def two_daemons_on_one_socket():
    with Daemon() as d:
        r = tandemd("--user", "--bus", "none", "--socket", d.socket)
        equal(r.returncode, 1, f"the second daemon ({r.stderr[-300:]})")
        check(d.socket.encode() in r.stderr, "it names the socket", r.stderr[-300:])
        serves(d)


@test
def no_daemon():
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "nobody")
        for args in (["generate", "x"], ["status"], ["models"], ["jobs"], ["cancel", "1"], ["tokenize", "x"],
                     ["restart", "npu"]):
            watch = Stopwatch()
            r = subprocess.run([os.path.join(BIN, "tandem"), "--socket", path, *args], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30 * SLOW)
            equal(r.returncode, 1, f"tandem {args[0]} without a daemon")
            said = r.stderr.decode()
            check(path in said and "tandemd" in said, "it says what to start", said)
            check(watch.seconds() < 5 * SLOW, "at once", watch.seconds())


@test
def daemon_dies_under_a_client():
    with Daemon(hang_ms=STANDING_MS) as d:
        def start():
            return d.popen_cli("generate", "-m", "tale", "--raw", "-n", "4000", "--temp", "0", PROMPT)

        with d.begun(start, lambda p: select.select([p.stdout], [], [], 0)[0], "text") as p, p:
            d.expect_exit = None
            d.process.send_signal(signal.SIGKILL)
            out, err = p.communicate(timeout=20 * SLOW)
            equal(p.returncode, 1, "exit status of the client")
            check(b"tandemd" in err, "it says that the daemon is gone", err)


main()
