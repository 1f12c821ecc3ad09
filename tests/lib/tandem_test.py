"""What the integration tests share: a private tandemd, jobs, the command line, and a small runner.

Every test starts its own daemon with its own socket and home in a temporary directory, so that tests run in
parallel and leave no files behind. The standard library only. The binaries are those of $TANDEM_BIN (set by CTest),
else build/bin. A daemon that dies, exits with an error or has a report of a sanitizer in its log fails the test that
used it, even if all checks of the test hold. This file never retries: a test that passes only the second time has
failed.
"""
import contextlib
import functools
import glob
import hashlib
import json
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from processes import alive, let_go, send_signal, stand_still  # noqa: E402,F401
from tandem_wire import SCHEMA, TREE, Closed, Refused, Wire  # noqa: E402,F401

BIN = os.environ.get("TANDEM_BIN") or os.path.join(TREE, "build", "bin")
SANITIZER = os.environ.get("TANDEM_TEST_SANITIZER", "")  # "", "address,undefined", "thread"
FULL = "--full" in sys.argv
SLOW = 12.0 if SANITIZER else 1.0  # what a wait is multiplied by
TALE = os.path.join(TREE, "models", "tale.gguf")
SPROUT = os.path.join(TREE, "models", "sprout.gguf")
PROMPT = "Once upon a time"
STANDING_MS = 120000  # for Daemon.standing()
REPORT = re.compile(r"ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error:|"
                    r"ThreadSanitizer: |AddressSanitizer:|SUMMARY: \w+Sanitizer|FATAL: ThreadSanitizer")


class Skip(Exception):
    """Raised by a test that cannot run here; says why."""


def check(condition, message, *more):
    """An assertion that stays with -O and says what was seen."""
    if not condition:
        raise AssertionError(" ".join([str(message)] + [repr(m)[:2000] for m in more]))


def equal(got, want, what):
    check(got == want, f"{what}: got {str(got)[:600]}, want {str(want)[:600]}")


def same_ids(got, want, what):
    if got != want:
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        raise AssertionError(f"{what}: ids differ from index {at} on ({len(got)} and {len(want)} of them): "
                             f"got {got[at:at + 8]}, want {want[at:at + 8]}")


def times(quick, full=None, slow=None):
    """How often to repeat something: in the quick run, in the full one, under a sanitizer (its full run: four times
    that)."""
    if SANITIZER:
        slow = slow if slow is not None else max(1, quick // 2) if isinstance(quick, int) else quick
        return min(full, 4 * slow) if FULL and isinstance(slow, int) and full else slow
    return full if FULL and full is not None else quick


def machine_ticks():
    """(busy ticks, all ticks) of all CPUs since boot. Busy also counts the time for which the host had taken a CPU away
    from this virtual machine."""
    with open("/proc/stat") as f:
        user, nice, system, idle, iowait, irq, softirq, steal = (int(x) for x in f.readline().split()[1:9])
    busy = user + nice + system + irq + softirq + steal
    return busy, busy + idle + iowait


def own_ticks():
    """Ticks that this process and its descendants have used."""
    used, children = {}, {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as f:
                fields = f.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        pid = int(path.split("/")[2])
        used[pid] = sum(int(x) for x in fields[11:15])
        children.setdefault(int(fields[1]), []).append(pid)
    total, todo = 0, [os.getpid()]
    while todo:
        pid = todo.pop()
        total += used.get(pid, 0)
        todo += children.get(pid, [])
    return total


class Stopwatch:
    """Time that does not grow with the load of other programs: the time on the clock, times the part of the CPUs that
    was idle or used by this test and the processes it started. So a limit on it holds beside any load. On a machine
    that runs nothing else it is the time on the clock."""

    def __init__(self, own=True):
        self.own = own_ticks() if own else None  # None: the test's own use counts as that of others
        self.busy, self.all = machine_ticks()
        self.begin = time.monotonic()

    def share(self):
        """The part of the machine that other programs left free. At least a tenth, so that a limit is still a limit."""
        busy, ticks = machine_ticks()
        others = busy - self.busy - (own_ticks() - self.own if self.own is not None else 0)
        return 1.0 - min(0.9, max(0.0, others / max(1, ticks - self.all)))

    def seconds(self):
        return (time.monotonic() - self.begin) * self.share()


def wait_for(condition, what, timeout=30.0, pause=0.02):
    watch = Stopwatch(own=False)
    while True:
        value = condition()
        if value:
            return value
        passed = time.monotonic() - watch.begin
        if passed > timeout * SLOW and watch.seconds() > timeout * SLOW:
            raise AssertionError(f"waited {passed:.0f} s in vain for: {what}")
        time.sleep(pause)


def exit_of(process, what="its end", timeout=20.0):
    """The status of a process that is about to leave."""
    wait_for(lambda: process.poll() is not None, what, timeout, 0.005)
    return process.returncode


def listens(path):
    """Whether somebody listens on a socket. It lies in its place a moment before that."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        return s.connect_ex(path) == 0


def run_in_slices(workers, condition, what, timeout=60.0, slice_s=0.004):
    """Lets these workers run for a few milliseconds at a time until the condition holds, and leaves them stopped. A
    short answer cannot end between two looks at it, as it could on a machine that lets this process wait."""
    def after_a_slice():
        for signo, length in ((signal.SIGCONT, slice_s), (signal.SIGSTOP, 0.004)):  # the 2nd: what was drawn arrives
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):  # tandemd has replaced it
                    send_signal(pid, signo)
            time.sleep(length)
        return condition()
    wait_for(after_a_slice, what, timeout, 0)


# ---- jobs


class Result:
    def __init__(self):
        self.ids, self.logprobs, self.pieces, self.times, self.states = [], [], [], [], []
        self.thoughts = []  # of each token
        self.calls = []  # what tokens add to calls
        self.calls_at = []  # the same, of each token
        self.numerics = ""  # what drew them
        self.job = self.reason = self.error = None
        self.done = {}

    @property
    def text(self):
        return b"".join(self.pieces).decode()

    @property
    def recoveries(self):
        return self.done.get("recoveries", 0)


class Job:
    """A generation under way on a connection of its own."""

    def __init__(self, daemon, **request):
        self.result = Result()
        with contextlib.suppress(ValueError):  # what it begins with is not told again
            self.result.ids = [int(i) for i in request.get("drawn", "").split(",")]
        self.wire = Wire(daemon.socket, timeout=120 * SLOW)
        try:
            self.id = self.wire.send("generate", request)
        except OSError:
            self.wire.close()
            raise

    def step(self, timeout=None):
        """Handles one reply. False when the job is over."""
        r = self.result
        if r.reason is not None:
            return False
        kind, m = self.wire.receive(self.id, timeout)
        if kind == "accepted":
            r.job = m.get("job", 0)
        elif kind == "progress":
            r.states.append(m.get("state", "JOB_QUEUED"))
        elif kind == "tokens":
            equal(m.get("index", 0), len(r.ids), "index of the first token of a reply")
            now = time.monotonic()
            r.numerics = m.get("numerics_id", r.numerics)
            for token in m["tokens"]:
                r.ids.append(token.get("id", 0))
                r.logprobs.append(token.get("logprob", 0.0))
                r.pieces.append(token.get("text", b""))
                r.thoughts.append(token.get("thinking", b""))
                r.calls += token.get("calls", [])
                r.calls_at.append(token.get("calls", []))
                r.times.append(now)
        elif kind == "done":
            r.done, r.reason, r.error = m, m.get("reason", "DONE_STOP"), m.get("error")
            r.pieces.append(m.get("text", b""))
            equal(m.get("generated_tokens", 0), len(r.ids), "tokens said to be generated and tokens received")
            self.wire.close()
            return False
        elif kind == "error":
            self.wire.close()
            raise Refused(m)
        return True

    def until(self, n_tokens, timeout=None):
        """Waits for so many tokens; False when the job ended before."""
        while len(self.result.ids) < n_tokens:
            if not self.step(timeout):
                return False
        return True

    def wait(self, timeout=None):
        while self.step(timeout):
            pass
        return self.result

    def has(self, n_tokens):
        """Handles what has come, and waits for nothing. Whether there are so many tokens."""
        while self.result.reason is None and (self.wire.inbox.get(self.id) or
                                              select.select([self.wire.socket], [], [], 0)[0]):
            self.step()
        return len(self.result.ids) >= n_tokens

    def cancel(self):
        with Wire(self.wire.socket.getpeername()) as w:
            return w.call("cancel", {"job": self.result.job})

    def vanish(self):
        self.wire.close()


def request(prompt=PROMPT, n=64, temp=0.0, seed=0, top_k=0, top_p=0.0, min_p=0.0, repeat_penalty=0.0, model=None,
            ids=None,
             chunk=0, placement="", ignore_end=True, stop=(), chat=None, priority=0, frequency_penalty=0.0,
             presence_penalty=0.0, logit_bias="", top_logprobs=0, speculation=0, draft_max=0, **more):
    """The fields of a Generate message."""
    out = {"max_tokens": n, "ignore_end": ignore_end, "prefill_chunk": chunk, "placement": placement,
           "priority": priority, "speculation": speculation, "draft_max": draft_max, **more,
           "sampling": {"temperature": temp, "seed": seed, "top_k": top_k, "top_p": top_p, "min_p": min_p,
                        "repeat_penalty": repeat_penalty, "frequency_penalty": frequency_penalty,
                        "presence_penalty": presence_penalty, "logit_bias": logit_bias},
           "top_logprobs": top_logprobs,
           "stop": [s.encode() if isinstance(s, str) else s for s in stop]}
    if model:
        out["model"] = {"name": model}
    if ids is not None:
        out["prompt_ids"] = ids
    elif chat is not None:
        out["chat"] = [{"role": r, "text": t.encode()} for r, t in chat]
    else:
        out["prompt"] = prompt.encode() if isinstance(prompt, str) else prompt
    return out


# ---- the daemon


def make_folder(prefix="tandem-test-"):
    """A new folder for this user alone, named by digits: a name of letters may spell a word that a test looks for in a
    log. One that ended in "qsrlosto" did."""
    while True:
        path = os.path.join(tempfile.gettempdir(), prefix + str(secrets.randbelow(10 ** 9)))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            return path


# What a test starts by this ends with it, however the test ends. Start it from the main thread: to the kernel, the
# thread that starts a process is its parent.
ENDS_WITH_TEST = (shutil.which("setpriv") or "setpriv", "--pdeathsig", "KILL")


class Daemon:
    """A private tandemd. Use it in a `with`."""

    def __init__(self, models=(TALE,), env=None, threads=1, args=(), hang_ms=None, wait=True, placement="split",
                 system=False, prefix=()):
        """placement: with split every job needs both workers, which most tests want; with None the daemon chooses.
        prefix: a command that becomes tandemd (by exec: it keeps its pid)."""
        self.placement, self.prefix = placement, list(prefix)
        self.system = system  # serves every user who can reach the socket
        self.models, self.threads, self.args, self.wait = list(models), threads, list(args), wait
        self.extra_env = dict(env or {})
        self.hang_ms = hang_ms if hang_ms is not None else (8000 if SANITIZER else None)
        self.process = None
        self.expect_exit = 0  # a test that kills the daemon itself sets None

    def __enter__(self):
        self.dir = make_folder()
        self.socket = os.path.join(self.dir, "run", "socket")
        self.log_path = os.path.join(self.dir, "tandemd.log")
        try:
            self.start()
        except BaseException:
            self._print_log()
            self._kill()
            shutil.rmtree(self.dir, ignore_errors=True)
            raise
        return self

    def environment(self):
        """Only the variables that are needed, so that the processes under test see nothing of the caller's session."""
        env = {k: os.environ[k] for k in ("PATH", "LANG", "ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS",
                                          "LSAN_OPTIONS",
                                          "LD_LIBRARY_PATH") if k in os.environ}
        for name, sub in (("HOME", "home"), ("XDG_RUNTIME_DIR", "run"), ("XDG_DATA_HOME", "data"),
                          ("XDG_CONFIG_HOME", "config"), ("XDG_CACHE_HOME", "cache"), ("XDG_STATE_HOME", "state")):
            env[name] = os.path.join(self.dir, sub)
            os.makedirs(env[name], mode=0o700, exist_ok=True)
        env["MEMORY_PRESSURE_WATCH"] = "/dev/null"  # what else runs on this machine unloads no model of a test
        if self.threads:
            env["TANDEM_THREADS"] = str(self.threads)
        if self.hang_ms:
            env["TANDEM_HANG_MS"] = str(self.hang_ms)
        env["TANDEM_PREFIX_STORE"] = "off"  # what a test's first daemon has read, its second one reads anew
        if self.placement:
            env["TANDEM_PLACEMENT"] = self.placement
        env.update(self.extra_env)
        return env

    def start(self):
        command = [*ENDS_WITH_TEST, *self.prefix, os.path.join(BIN, "tandemd"), "--system" if self.system else "--user",
                   "--socket", self.socket, "--bus", "none"]
        for m in self.models:
            command += ["--model", m]
        log = open(self.log_path, "ab")
        self.process = subprocess.Popen(command + self.args, env=self.environment(), cwd=self.dir,
                                        stdin=subprocess.DEVNULL,
                                        stdout=log, stderr=log, start_new_session=True)
        log.close()
        if self.wait:
            wait_for(self._listens, "tandemd's socket", 20)

    def _listens(self):
        check(self.process.poll() is None, f"tandemd left with {self.process.poll()} before its socket was there")
        try:
            self.wire().close()
            return True
        except (OSError, Closed):
            return False

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def _print_log(self):
        try:
            lines = self.log().splitlines()
        except OSError:
            return
        cut = f" (last 120 of {len(lines)} lines)" if len(lines) > 120 else ""
        print(f"---- tandemd's log{cut}\n" + "\n".join(lines[-120:]) + "\n----", flush=True)

    def pids(self):
        """tandemd and everything in its session."""
        out = []
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                with open(path) as f:
                    fields = f.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid and fields[0] not in "ZX":
                out.append(int(path.split("/")[2]))
        return out

    def kill(self):
        """tandemd and its workers at once, as when a machine loses its power. They are gone when it returns: until then
        the socket would answer, and another tandemd refuse to start."""
        self.expect_exit = None
        self._kill()
        wait_for(lambda: not self.pids(), "the end of its processes")

    def _kill(self):
        if not self.process:
            return
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def stop(self):
        """Asks tandemd to leave. Returns what was wrong with its end, or None."""
        if self.process.poll() is not None:
            return f"tandemd had left already, with {self.process.returncode}"
        self.process.send_signal(signal.SIGTERM)
        return self.wait_end()

    def wait_end(self):
        """After it was asked to leave. Returns what was wrong with its end, or None."""
        try:
            wait_for(lambda: self.process.poll() is not None, "tandemd's end", 15, 0.005)
        except AssertionError:
            return f"tandemd did not leave within {15 * SLOW:.0f} s of the signal"
        if self.process.returncode != 0:
            return f"tandemd left with {self.process.returncode}"
        try:
            wait_for(lambda: not self.pids(), "the end of its processes", 5)
        except AssertionError:
            return f"processes left behind: {self.pids()}"
        return None

    def __exit__(self, kind, value, trace):
        wrong = None
        if self.expect_exit is not None:
            wrong = self.stop()
        self._kill()
        log = self.log()
        if REPORT.search(log):
            wrong = "a sanitizer reported"
        if wrong or kind not in (None, Skip):
            self._print_log()
        shutil.rmtree(self.dir, ignore_errors=True)
        if wrong and kind in (None, Skip):
            raise AssertionError(wrong)
        if wrong:
            print(f"also: {wrong}", flush=True)
        return False

    # -- talking to it

    def wire(self, **more):
        more.setdefault("timeout", 60 * SLOW)
        return Wire(self.socket, **more)

    def call(self, kind, values=None, **more):
        with self.wire() as w:
            return w.call(kind, values or {}, **more)

    def status(self):
        return self.call("status")

    def jobs(self):
        return self.call("jobs")["jobs"]

    def workers(self):
        return {w["name"]: w for w in self.status()["workers"]}

    def worker_pid(self, name):
        return self.workers()[name].get("pid", 0)

    def signal_worker(self, name, signo=signal.SIGKILL):
        """Signals the process that this worker is now; its pid. Status may name for a moment one that an earlier signal
        has ended already, or none at all: then it is asked again."""
        def sent():
            pid = self.worker_pid(name)
            try:
                if pid > 0:
                    os.kill(pid, signo)
                return pid
            except ProcessLookupError:
                return 0
        return wait_for(sent, f"a {name} worker to signal", 30)

    def worker_pids(self):
        return [pid for pid in (self.worker_pid(name) for name in ("npu", "gpu")) if pid > 0]

    @contextlib.contextmanager
    def sliced(self, condition, what, workers=None):
        """The workers run in slices until the condition holds, stand still meanwhile, and go on afterwards. workers:
        asked before, where asking takes as long as what the condition waits for."""
        check(self.hang_ms and self.hang_ms >= STANDING_MS, "hang_ms=STANDING_MS")
        workers = self.worker_pids() if workers is None else workers
        try:
            run_in_slices(workers, condition, what)
            yield
        finally:
            let_go(workers)

    @contextlib.contextmanager
    def standing(self):
        """The workers stand still meanwhile: no step ends. Only beside hang_ms=STANDING_MS, or tandemd ends them. It
        is asked again while its status names a worker whose end it has not seen yet."""
        check(self.hang_ms and self.hang_ms >= STANDING_MS, "hang_ms=STANDING_MS")

        def stopped():
            pids = self.worker_pids()
            return (pids,) if stand_still(pids) else let_go(pids)
        (pids,) = wait_for(stopped, "workers that stand still")
        try:
            yield pids
        finally:
            let_go(pids)

    @contextlib.contextmanager
    def in_midst(self, *requests, tokens=1, of=None):
        """Jobs that have so many tokens (of: the number of the job that has them) and more to come. The workers stand
        still, run in slices until then, and stand still meanwhile, so the jobs are in their midst however long this
        test takes to do something. Where a slice lasted to the second half of that, the next are shorter."""
        for s in [max(0.004 / n, 0.0005) for n in range(1, 21)]:
            with self.standing() as workers:
                jobs = [self.start_job(**r) for r in requests]
                late = list(zip(jobs, requests)) if of is None else [(jobs[of], requests[of])]
                run_in_slices(workers, lambda: all([j.has(tokens) or j.result.reason for j, _ in late]), "ids", 60, s)
                running = {j["job"] for j in self.jobs()}
                made = [(j, len(j.result.ids), (tokens + r.get("n", 64)) // 2) for j, r in late]
                if all(tokens <= n <= half and j.result.job in running for j, n, half in made):
                    return (yield jobs)
            for job in jobs:
                job.vanish()
            wait_for(lambda: not self.jobs(), "the jobs have ended")
        raise AssertionError("the jobs were never in their midst")

    @contextlib.contextmanager
    def begun(self, start, is_there, what, n_jobs=1):
        """As in_midst(), for jobs that start() begins in another way: what it has made, when is_there(made) holds and
        its n_jobs jobs, which have no others beside them, have more to come."""
        for _ in range(20):
            self.wait_ready()
            with self.standing() as workers:
                made = start()
                wait_for(lambda: len(self.jobs()) >= n_jobs, f"jobs that begin, to have {what}")
                run_in_slices(workers, lambda: is_there(made) or len(self.jobs()) < n_jobs, what)
                if len(self.jobs()) >= n_jobs and is_there(made):
                    return (yield made)
            wait_for(lambda: not self.jobs(), "the jobs have ended")
        raise AssertionError(f"the jobs were never in their midst: {what}")

    def model(self, name):
        for m in self.status()["models"]:
            if m.get("name") == name:
                return m
        raise AssertionError(f"no model {name} in status")

    def wait_ready(self, timeout=30.0):
        def ready():
            w = self.workers()
            there = [x.get("state") == "off" or x.get("state") == "ready" and alive(x["pid"]) for x in w.values()]
            return w if all(there) else None
        return wait_for(ready, "both workers ready", timeout)

    def start_job(self, **fields):
        return Job(self, **request(**fields))

    def generate(self, **fields):
        """Runs a job to its end and returns its Result. DONE_ERROR raises Refused unless may_fail."""
        may_fail = fields.pop("may_fail", False)
        r = self.start_job(**fields).wait()
        if r.reason == "DONE_ERROR" and not may_fail:
            raise Refused(r.error or {})
        return r

    def tokenize(self, text, model=None, special=False, no_bos=False):
        values = {"text": text.encode() if isinstance(text, str) else text, "special": special, "no_bos": no_bos}
        if model:
            values["model"] = {"name": model}
        return self.call("tokenize", values)["ids"]

    def cli(self, *args, input=None, timeout=60.0, env=None, cwd=None, check_exit=None):
        r = subprocess.run([os.path.join(BIN, "tandem"), "--socket", self.socket, *args], input=input,
                           stdin=subprocess.DEVNULL if input is None else None,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout * SLOW, cwd=cwd,
                           env=dict(self.environment(), **(env or {})))
        if check_exit is not None:
            check(r.returncode == check_exit, f"tandem {' '.join(args)}: exit {r.returncode}, want {check_exit}",
                  r.stdout[-600:], r.stderr[-600:])
        return r

    def cli_json(self, *args, **more):
        out = self.cli(*args, check_exit=0, **more).stdout.decode()
        return [json.loads(line) for line in out.splitlines() if line.strip()]

    def popen_cli(self, *args, env=None, **more):
        return subprocess.Popen([os.path.join(BIN, "tandem"), "--socket", self.socket, *args],
                                env=dict(self.environment(), **(env or {})), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


def blocks(worker):
    """{kind: blocks done} of a WorkerStatus."""
    return {b.get("kind", ""): b.get("blocks", 0) for b in worker["blocks"]}


def parallel(functions):
    """Runs functions at the same time, each on a thread; their results in order. The first exception is raised."""
    out = [None] * len(functions)

    def run(i):
        try:
            out[i] = functions[i]()
        except BaseException as e:
            out[i] = e
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(functions))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for r in out:
        if isinstance(r, BaseException):
            raise r
    return out


def together(daemon, requests):
    """Runs jobs at the same time; their Results in order."""
    return parallel([functools.partial(daemon.generate, **request) for request in requests])


def all_there(daemon, requests):
    """The same, and none is begun before all are there, however slowly they come: what they need together is needed.
    Their model is loaded."""
    with daemon.standing():
        jobs = [daemon.start_job(**request) for request in requests]
        wait_for(lambda: len(daemon.jobs()) == len(jobs), "all jobs are there")
    results = parallel([job.wait for job in jobs])
    for r in results:
        if r.reason == "DONE_ERROR":
            raise Refused(r.error or {})
    return results


_kept = []  # files that go with this process


def kept_file(text, suffix):
    """The name of a file with that text, which goes with this process."""
    f = tempfile.NamedTemporaryFile("w", prefix="tandem-", suffix=suffix)
    f.write(text)
    f.flush()
    _kept.append(f)
    return f.name


def config(text):
    """Arguments for a daemon with that configuration."""
    return ["--config", kept_file(text, ".conf")]


@contextlib.contextmanager
def as_user(uid):
    """Connections that are made meanwhile come from that user."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


# ---- models


MKGGUF_ARCHS = ("llama", "qwen2", "qwen3", "qwen3moe", "gpt-oss", "smollm3")


def make_model(size="tiny", type="q8_0", keep=True, **options):
    """A random-weight model by tools/mkgguf.py, or by the tool of its arch, made once for each build directory (any
    number of tests may ask)."""
    import fcntl
    cache = os.environ.get("TANDEM_TEST_CACHE") or os.path.join(tempfile.gettempdir(),
                                                                f"tandem-test-models-{os.getuid()}")
    os.makedirs(cache, exist_ok=True)
    args, tags = [], []
    for k, v in sorted(options.items()):
        args += ["--" + k.replace("_", "-")] + ([] if v is True else [str(v)])
        tags.append(k if v is True else f"{k}{v}")
        if k == "chat" and v != "rerank":  # a changed template makes another model
            with open(os.path.join(TREE, "tests", "golden", "chat", "templates", v + ".jinja"), "rb") as f:
                tags.append(hashlib.sha256(f.read()).hexdigest()[:8])
    path = os.path.join(cache, "-".join(["random", size, type] + tags) + ".gguf")
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            part = path + ".part"
            arch = options.get("arch", "")
            tool = "mkgguf_gemma.py" if arch.startswith("gemma") else "mkgguf_shelf.py" if arch else "mkgguf.py"
            tool = "mkgguf_shelf.py" if arch == "gemma2" else tool
            tool = "mkgguf_embedding.py" if arch == "gemma-embedding" else tool
            tool = "mkgguf_archs.py" if arch in MKGGUF_ARCHS else tool
            tool = "mkgguf_hybrids.py" if arch in ("lfm2", "lfm2moe", "qwen35", "qwen35moe", "qwen3next") else tool
            tool = "mkgguf_bert.py" if arch == "bert" else tool
            if arch == "mmproj":  # one kind so far; with text=True the text model that goes with it
                tool, args = "mkgguf_mmproj.py", [arg for arg in args if arg not in ("--arch", "mmproj")]
            r = subprocess.run(["/usr/bin/python3", os.path.join(TREE, "tools", tool), part, "--size", size,
                                "--type", type] + args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if b"No module named 'numpy'" in r.stdout:
                raise Skip("python3-numpy is missing")
            check(r.returncode == 0, f"{tool} failed", r.stdout[-2000:])
            os.rename(part, path)
    return path


def slow_model():
    """A slow model: some 40 tokens a second on two cores, where tale makes thousands. A job of 4000 tokens lasts longer
    than the steps of a test beside it, on a busy machine too."""
    return TALE if SANITIZER else make_model("270m", "q8_0", vocab=32768)


def golden(name):
    path = os.path.join(TREE, "tests", "golden", f"{name}.golden.json")
    with open(path) as f:
        return json.load(f)


def golden_distances(d, model):
    """Of score against the golden file: mean and worst distance, equal first choices, worst difference of nll."""
    worst, first, n, nll = [], 0, 0, 0.0
    for g in golden(model):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(g["ids"], f)
            f.flush()
            got = d.cli_json("score", "-m", model, "--top", "64", "--ids", f.name, timeout=120)[0]
        same_ids(got["ids"], g["ids"], "ids that score gives back")
        nll = max([nll] + [abs(a - b) for a, b in zip(got["nll"], g["nll"])])
        for i, want in enumerate(g["top"]):
            have = dict((int(k), v) for k, v in got["top"][g["prompt_len"] - 1 + i])
            missing = [k for k, _ in want if k not in have]
            check(not missing, f"golden top ten within {model}'s top 64 at position {i}", missing)
            worst.append(max(abs(have[k] - v) for k, v in want))
            first += max(have, key=have.get) == want[0][0]
            n += 1
    return sum(worst) / n, max(worst), first / n, nll


# ---- the runner

TESTS = []


def test(function):
    TESTS.append((function.__name__, function))
    return function


def full_only(function):
    """A test of the full run only."""
    if FULL:
        TESTS.append((function.__name__, function))
    return function


def main(every=False):
    """Runs the tests of the file (or those named on the command line, unless every). Exit 0, 1 or 77 (all skipped)."""
    wanted = [] if every else [a for a in sys.argv[1:] if not a.startswith("-")]
    if not os.path.exists(os.path.join(BIN, "tandemd")):
        print(f"FAIL no tandemd in {BIN} (set TANDEM_BIN to the build's bin)")
        sys.exit(1)
    failed = skipped = passed = 0
    for name, function in TESTS:
        if wanted and name not in wanted:
            continue
        begin = time.monotonic()
        try:
            function()
        except Skip as e:
            skipped += 1
            print(f"SKIP {name}: {e}", flush=True)
            continue
        except BaseException as e:
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"FAIL {name}: {type(e).__name__}: {e}", flush=True)
            if isinstance(e, KeyboardInterrupt):
                break
            continue
        passed += 1
        print(f"ok   {name} ({time.monotonic() - begin:.2f} s)", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    sys.exit(1 if failed else 77 if skipped and not passed else 0)
