"""Seeing what goes on: `tandem trace` tells which worker ran which block when, `tandem top` shows it on a screen, and
the counters in status are what rates are made of. A trace costs the daemon a fixed amount, whoever reads it and however
slowly."""
import fcntl
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

LAYERS = 12  # of tale
TANDEMD, NPU, GPU = 1, 2, 3  # threads of the file
NAMES = {TANDEMD: "tandemd", NPU: "npu worker", GPU: "gpu worker"}
BLOCK = re.compile(r"(attention|ffn) (\d+)|embed|head|sample")


def let_go(job):
    """Cancels a job. On a busy machine it may have run to its end while the test looked; that is as good."""
    try:
        job.cancel()
    except Refused as e:
        equal(e.code, "no-job", e.message)


class Trace:
    """A file in Chrome's format, checked as far as any such file can be."""

    def __init__(self, path):
        with open(path) as f:
            events = json.load(f)["traceEvents"]
        self.threads = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
        for tid, name in NAMES.items():
            equal(self.threads.get(tid), name, f"name of thread {tid}")
        self.events = [e for e in events if e["ph"] != "M"]
        for e in self.events:
            check(e["ph"] in "Xbesfi" and e["ts"] > 0 and e["pid"] == 1, "an event of a known kind", e)
        self.blocks = {t: self.track(t) for t in (NPU, GPU)}
        self.steps = [e for e in self.events if e["ph"] in "be"]
        self.notes = [e["name"] for e in self.events if e["ph"] == "i"]

    def track(self, tid):
        """Blocks of a worker, in order; they never overlap."""
        out = sorted((e for e in self.events if e["ph"] == "X" and e["tid"] == tid), key=lambda e: e["ts"])
        end = 0
        for e in out:
            check(BLOCK.fullmatch(e["name"]), "a block's name", e)
            check(e["args"]["rows"] >= 1 and e["args"]["step"] >= 1, "a block's step and rows", e)
            check(e["ts"] >= end - 0.0011, f"blocks of the {NAMES[tid]} overlap: one ends at {end}, then", e)
            end = e["ts"] + e["dur"]
        return out

    def kinds(self, tid):
        return {e["name"].split()[0] for e in self.blocks[tid]}


def trace(d, name, *args, **more):
    path = os.path.join(d.dir, name)
    r = d.cli("trace", "-o", path, *args, check_exit=0, **more)
    return Trace(path), r.stderr.decode()


def trace_of_a_job(d, **job):
    """All of it, what the command says, and the ids."""
    for attempt, pause in enumerate((0.3, 2, 10, 10, 10)):  # nothing says from when on it records
        path = os.path.join(d.dir, f"t-{attempt}.json")
        recorder = d.popen_cli("trace", "-o", path, "--seconds", "300")
        time.sleep(pause * SLOW)
        first = d.status().get("steps_done", 0)
        ids = d.generate(speculation=1, **job).ids
        n_steps = d.status()["steps_done"] - first
        time.sleep(0.1)
        recorder.send_signal(signal.SIGINT)  # ends it early, with what there is
        out, err = recorder.communicate(timeout=60 * SLOW)
        equal(recorder.returncode, 0, "exit status of a trace that was ended by Ctrl-C")
        t = Trace(path)
        arrows = [[e["id"] for e in t.events if e["ph"] == phase] for phase in "sf"]
        # A worker hands a step on, and tells the trace so a moment later.
        if len({e["args"]["step"] for e in t.steps}) == n_steps and set(arrows[0]) == set(arrows[1]) and not any(
                "unfinished" in e["args"] for blocks in t.blocks.values() for e in blocks):
            break
    return t, err.decode(), ids


@test
def trace_of_a_split_generation():
    """Attention in the NPU worker's track, everything else in the GPU worker's; every step has all its blocks."""
    with Daemon() as d:
        d.wait_ready()
        t, err, ids = trace_of_a_job(d, n=60, placement="split")
        equal(t.kinds(NPU), {"attention"}, "blocks in the npu worker's track")
        equal(t.kinds(GPU), {"embed", "ffn", "head", "sample"}, "blocks in the gpu worker's track")
        steps = {}
        for tid in (NPU, GPU):
            for e in t.blocks[tid]:
                check("unfinished" not in e["args"], "every block has its end", e)
                steps.setdefault(e["args"]["step"], []).append((e["ts"], e["name"]))
        whole = ["embed"] + [f"{k} {i}" for i in range(LAYERS) for k in ("attention", "ffn")]
        check(len(steps) >= 60, "a step for each token", len(steps))
        for step, blocks in steps.items():
            names = [name for _, name in sorted(blocks)]
            equal([n for n in names if n not in ("head", "sample")], whole, f"blocks of step {step} in order of time")
        equal(sorted({e["args"]["step"] for e in t.steps}), sorted(steps), "steps in tandemd's track")
        # An arrow from worker to worker for each change of hands, both ends within a block of their track.
        starts = {e["id"]: e for e in t.events if e["ph"] == "s"}
        ends = {e["id"]: e for e in t.events if e["ph"] == "f"}
        equal(len(starts), 2 * LAYERS * len(steps), "hand-overs")
        equal(set(starts), set(ends), "both ends of the arrows")
        for id, s in starts.items():
            f = ends[id]
            check(s["tid"] != f["tid"] and s["ts"] <= f["ts"], "an arrow goes to the other worker and forward", s, f)
        for tid in (NPU, GPU):
            for phase in "sf":
                at = [e["ts"] for e in t.events if e["ph"] == phase and e["tid"] == tid]
                spans = iter(t.blocks[tid])
                span = next(spans)
                for ts in sorted(at):
                    while span["ts"] + span["dur"] < ts - 0.0011:
                        span = next(spans)
                    check(span["ts"] <= ts + 0.0011, f"an arrow's {phase} is in a block", ts, span)
        for word in ("npu worker", "gpu worker", "busy", "hand-overs", "gaps", "between", "steps"):
            check(word in err, f"'{word}' in the summary", err)
        same_ids(d.generate(n=60, speculation=1, placement="split").ids, ids, "ids with and without a trace")


@test
def one_worker():
    with Daemon() as d:
        d.wait_ready()
        t, _, _ = trace_of_a_job(d, n=30, placement="npu")
        equal(t.kinds(NPU), {"embed", "attention", "ffn", "head", "sample"}, "all blocks in the npu worker's track")
        equal(t.blocks[GPU], [], "none in the gpu worker's")
        equal(len([e for e in t.events if e["ph"] in "sf"]), 0, "no hand-overs between workers")


@test
def what_a_dead_worker_did_last():
    """The ring outlives its writer: --past shows the blocks up to its death, the loss and the new life."""
    with Daemon(hang_ms=STANDING_MS) as d:
        d.wait_ready()
        # Few tokens: the rings still hold the loss when all of them are there.
        with d.in_midst(dict(n=200, placement="split"), tokens=20) as (job,):
            pid = d.signal_worker("gpu")
            wait_for(lambda: d.worker_pid("gpu") not in (0, pid), "another gpu worker")
        check(job.until(len(job.result.ids) + 5), "more tokens")
        let_go(job)
        d.wait_ready()
        d.generate(n=5, placement="split")  # the other one may have done all until then
        t, err = trace(d, "t.json", "--past", "--seconds", "0")
        check("gpu worker lost" in t.notes and "gpu worker started" in t.notes, "the loss is in the trace", t.notes)
        check(any(n.startswith("epoch ") for n in t.notes), "the epoch is in the trace", t.notes)
        lost = next(e["ts"] for e in t.events if e["name"] == "gpu worker lost")
        before = [e for e in t.blocks[GPU] if e["ts"] < lost]
        check(len(before) > 100, "blocks of the life that ended", len(before))
        check(any(e["ts"] > lost for e in t.blocks[GPU]), "blocks of the life after it")
        check("1 workers lost" in err, "the loss in the summary", err)


@test
def a_reader_that_does_not_read():
    """It misses events and is told how many; the daemon's memory stays as it is and jobs go on."""
    def rss():
        with open(f"/proc/{d.process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))
    with Daemon() as d:
        d.wait_ready()
        d.generate(n=50)
        with d.wire() as lazy:
            rid = lazy.send("trace", {"duration_ms": 600000})
            d.generate(n=100, placement="split")
            before = rss()
            for _ in range(times(1, 10, 1)):
                equal(len(d.generate(n=800, placement="split").ids), 800, "tokens while somebody does not read")
            grown = rss() - before
            check(grown < (16384 if SANITIZER else 4096), f"tandemd grew by {grown} KiB")
            lazy.send("stop_trace", {"request": rid})
            events = {}
            lost = {}
            while True:
                kind, chunk = lazy.receive(rid)
                equal(kind, "trace", "kind of reply")
                track = chunk.get("track", "TRACK_TANDEMD")
                events.setdefault(track, []).extend(chunk["events"])
                lost[track] = chunk.get("lost", 0)
                if chunk.get("last"):
                    break
            check(lost["TRACK_NPU"] > 0 and lost["TRACK_GPU"] > 0, "events were lost, and that is told", lost)
            for track, list in events.items():
                times_ns = [e["time_ns"] for e in list]
                equal(times_ns, sorted(times_ns), f"order of {track}")
            equal(lazy.call("stop_trace", {"request": rid}), {}, "stopping what is over")


@test
def limits():
    with Daemon() as d:
        def refused(values, code):
            try:
                with d.wire() as w:
                    kind, m = w.receive(w.send("trace", values))
                    raise Refused(m) if kind == "error" else AssertionError(f"{values} was not refused")
            except Refused as e:
                equal(e.code, code, f"refusal of {values}")
        refused({"duration_ms": 600001}, "bad-request")
        refused({"duration_ms": 2 ** 32 - 1}, "bad-request")
        open_traces = [d.wire() for _ in range(4)]
        for w in open_traces:
            w.send("trace", {"duration_ms": 500000})
            w.call("status", {})
        refused({"duration_ms": 10}, "busy")
        open_traces[0].close()  # one that leaves makes room

        def taken():
            with d.wire() as w:
                try:
                    return w.receive(w.send("trace", {"duration_ms": 10}))[0] != "error"
                except Refused as e:
                    equal(e.code, "busy", "as long as it is not noticed")
        wait_for(taken, "the room")
        for w in open_traces[1:]:
            w.close()
        equal(d.cli("trace", check_exit=2).stdout, b"", "no -o is wrong usage")
        r = d.cli("trace", "-o", "/dev/null/t.json", check_exit=1)
        check(b"/dev/null/t.json" in r.stderr, "what cannot be written", r.stderr)


class SystemDaemon(Daemon):
    """Serves everybody."""

    def start(self):
        real = subprocess.Popen

        def popen(command, **more):
            return real(["--system" if a == "--user" else a for a in command], **more)
        subprocess.Popen = popen
        try:
            os.chmod(self.dir, 0o755)
            self.environment()
            os.chmod(os.path.dirname(self.socket), 0o755)
            super().start()
        finally:
            subprocess.Popen = real


@test
def who_may():
    """A trace shows everybody's steps: it is for root and the daemon's own user."""
    if os.geteuid() != 0:
        raise Skip("becoming another user needs root")
    with SystemDaemon() as d:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            said = b"nothing"
            try:
                os.setgid(65534)
                os.setuid(65534)
                with d.wire() as w:
                    kind, m = w.receive(w.send("trace", {"duration_ms": 10}))
                    w.call("status", {})
                    said = f"{kind} {m.get('code')}".encode()
            except BaseException as e:  # told below
                said = repr(e).encode()
            os.write(writer, said)
            os._exit(0)
        os.waitpid(child, 0)
        equal(os.read(reader, 1000), b"error denied", "answer to another user")
        os.close(reader)
        os.close(writer)
        trace(d, "t.json", "--seconds", "0.1")


@test
def counters():
    """What rates are computed from rises as it should."""
    with Daemon() as d:
        d.wait_ready()
        t0, a = time.monotonic_ns(), d.cli_json("status", "--json")[0]
        ids = d.generate(n=50, placement="split").ids

        def handed(status, name):
            return next(w["handovers"] for w in status["workers"] if w["name"] == name)

        def whole():
            """A worker counts a block a moment after its end, so maybe after the last token is here."""
            s = d.cli_json("status", "--json")[0]
            n_steps = s["steps_done"] - a["steps_done"]
            return s if all(handed(s, name) - handed(a, name) >= LAYERS * n_steps for name in ("npu", "gpu")) else None

        b, t1 = wait_for(whole, "the workers' counts"), time.monotonic_ns()
        equal(b["decode_tokens"] - a["decode_tokens"], len(ids) - 1, "decode rows: the first token comes of the prompt")
        equal(b["prefill_tokens"] - a["prefill_tokens"], 5, "rows of the prompt")
        equal(b["steps_in_flight"], 0, "steps in flight when nothing runs")
        workers = {w["name"]: (w, next(x for x in a["workers"] if x["name"] == w["name"])) for w in b["workers"]}
        n_steps = b["steps_done"] - a["steps_done"]
        for name, (after, before) in workers.items():
            n = after["handovers"] - before["handovers"]
            want = LAYERS * n_steps + (n_steps if name == "gpu" else 0)
            equal(n, want, f"hand-overs to the {name} worker")
            check(after["handover_ns"] > before["handover_ns"], f"hand-over time of {name}", after)
            busy, waiting = after["busy_ns"] - before["busy_ns"], after["waiting_ns"] - before["waiting_ns"]
            check(busy > 0 and waiting > 0 and busy + waiting <= t1 - t0, f"time of the {name} worker", busy,
                  waiting, t1 - t0)
            check(abs(after["busy_s"] - after["busy_ns"] / 1e9) < 1e-3, "busy_s and busy_ns agree", after)


# ---- top


class Screen:
    """`tandem top` on a terminal of its own. What it shows last is found by the sequence that begins a screen."""

    def __init__(self, d, *args, rows=30, columns=120):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(os.path.join(BIN, "tandem"), ["tandem", "--socket", d.socket, "top", *args],
                      dict(d.environment(), TERM="xterm"))
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.fd)
        self.seen = b""

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def pump(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not select.select([self.fd], [], [], 0.02)[0]:
                continue
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                return False
            if not data:
                return False
            self.seen += data
        return True

    def last(self):
        whole = self.seen.split(b"\x1b[H")[1:]
        if whole and b"\x1b[J" in whole[-1]:
            text = whole[-1].split(b"\x1b[J")[0]
        else:
            text = whole[-2] if len(whole) > 1 else b""
        return re.sub(r"\x1b\[[0-9?]*[a-zA-Z]|\r", "", text.decode()).split("\n")

    def wait_for(self, pattern, timeout=15):
        def seen():
            self.pump(0.05)
            return re.search(pattern, "\n".join(self.last()))
        try:
            return wait_for(seen, f"{pattern} on the screen", timeout)
        except AssertionError:
            print("\n".join(self.last()))
            raise

    def leave(self, key=None, signo=None):
        if key:
            os.write(self.fd, key)
        if signo:
            send_signal(self.pid, signo)
        def left():
            self.pump(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return pid and (status,)
        status = wait_for(left, "top leaves", 10)[0]
        wait_for(lambda: not self.pump(0.05), "the terminal's end, with what it wrote at last", 10)
        check(self.seen.rstrip().endswith(b"\x1b[?1049l") or b"\x1b[?25h\x1b[?1049l" in self.seen[-400:],
              "the screen is given back", self.seen[-200:])
        # The terminal is as it was: lines, and an echo.
        after = termios.tcgetattr(self.fd)
        equal(after[3] & (termios.ICANON | termios.ECHO), termios.ICANON | termios.ECHO, "the terminal's mode")
        os.close(self.fd)
        return status


@test
def top_on_a_terminal():
    with Daemon(models=[slow_model()]) as d:
        d.wait_ready()
        job = d.start_job(n=4000, placement="split")
        check(job.until(3), "tokens")
        s = Screen(d, "-d", "0.2")
        s.wait_for(rf"(?m)^ *{job.result.job} +decode +\S+ .*/4000 +[1-9][0-9.]* +")
        s.wait_for(r"tokens +[1-9][0-9.]*/s generated")
        for worker in ("npu", "gpu"):
            s.wait_for(rf"(?m)^{worker} +busy \[[#.]+\] +\d+% +ready +host +hand-over [0-9.]+ us, \d+/s")
        s.wait_for(r"jobs +1 running, 0 queued")
        s.wait_for(r"KV pages full \[[#.]+\] [1-9]\d*/\d+")
        d.signal_worker("gpu")
        s.wait_for(r"1 recovery")
        s.wait_for(r"recovered 1 time")
        s.resize(9, 40)

        def fits():
            s.pump(0.05)
            return len(s.last()) <= 9 and all(len(line) <= 40 for line in s.last())
        wait_for(fits, "no more than the window holds")
        s.resize(12, 80)
        s.wait_for(rf"(?m)^JOB  *STATE .* TOKENS/S  *AGE *\n *{job.result.job} +\S+ .*/4000 +[0-9.]+ +[0-9.]+ \S+$")
        s.resize(30, 120)
        let_go(job)
        s.wait_for("no jobs")
        equal(s.leave(key=b"q"), 0, "exit status after q")


@test
def why_auto_took_it():
    """The GPU worker says why "auto" took its device, as the NPU worker does. A device asked for by name needs no
    reason."""
    with Daemon(env={"TANDEM_GPU": "auto"}) as d:
        w = d.wait_ready()["gpu"]
        check(re.match(r"auto took (the CPU|vulkan): \w", w["reason"]), "the reason", w)
        equal("the CPU" in w["reason"], w["device"] == "host", "it is about the device that runs")
        shown = d.cli("status", "-v", check_exit=0).stdout.decode()
        check(f"because  {w['reason']}\n" in shown, "tandem status shows it", w)
        d.signal_worker("gpu")
        wait_for(lambda: d.workers()["gpu"].get("restarts") and d.workers()["gpu"]["state"] == "ready", "a new one")
        equal(d.workers()["gpu"]["reason"], w["reason"], "the reason after a restart")
    with Daemon(env={"TANDEM_GPU": "host"}) as d:
        equal(d.wait_ready()["gpu"].get("reason", ""), "", "no reason")


@test
def top_gives_the_terminal_back():
    with Daemon() as d:
        for signo, want in ((signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGHUP, None), (signal.SIGQUIT, None)):
            s = Screen(d)
            s.wait_for("tandemd ")
            status = s.leave(signo=signo)
            if want is not None:
                equal(os.waitstatus_to_exitcode(status), want, f"exit status after {signo.name}")
            else:
                equal(os.WTERMSIG(status), signo, f"the signal that ended it")
        s = Screen(d)
        s.wait_for("tandemd ")
        d.process.send_signal(signal.SIGTERM)  # the daemon goes: top says so on a terminal that is in order
        d.expect_exit = None
        equal(os.waitstatus_to_exitcode(s.leave()), 1, "exit status without a daemon")
        check(b"tandem: " in s.seen.split(b"\x1b[?1049l")[-1], "it says why", s.seen[-300:])


@test
def top_without_a_terminal():
    with Daemon(hang_ms=STANDING_MS) as d:
        d.wait_ready()
        with d.in_midst(dict(n=4000), tokens=3) as (job,):
            out = d.cli("top", "-n", "2", "-d", "0.3", check_exit=0).stdout.decode()
        check("\x1b" not in out and "\x01" not in out, "plain text", out)
        equal(len(re.findall(r"(?m)^tandemd ", out)), 2, "rounds")
        equal(len(re.findall(rf"(?m)^ *{job.result.job} +decode +tale ", out)), 2, "the job in each")
        let_go(job)
        d.cli("top", "-d", "0", check_exit=2)


main()
