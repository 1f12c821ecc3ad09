"""Workers as units of their own, without systemd: this script plays the manager, listening on their sockets and
starting a worker when tandemd connects. What happens under the real one is test_nspawn.py's subject."""
import contextlib
import ctypes
import os
import platform
import pwd
import select
import signal
import socket
import struct
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

ACTIVATE = 'export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=control; exec "$@"'
NAMES = ("npu", "gpu")
HANG_TOKEN = 311


def as_on_linux_6_1():
    """This process and what it becomes know neither SO_PASSPIDFD (6.5) nor PIDFD_GET_INFO (6.13)."""
    ioctl, setsockopt = {"x86_64": (16, 54), "aarch64": (29, 208)}[platform.machine()]
    load, equal_, ret = 0x20, 0x15, 0x06
    allow, error = 0x7fff0000, 0x00050000
    program = [(load, 0, 0, 0), (equal_, 0, 3, ioctl), (load, 0, 0, 24), (equal_, 5, 0, 0xc040ff0b), (ret, 0, 0, allow),
               (equal_, 0, 2, setsockopt), (load, 0, 0, 32), (equal_, 2, 0, 76), (ret, 0, 0, allow),
               (ret, 0, 0, error | 25), (ret, 0, 0, error | 92)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, head, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no seccomp")


class Units:
    """Two listening sockets; whoever connects gets a worker, one after the other."""

    def __init__(self, folder, program=None, user=None, env=None):
        self.folder, self.user, self.env = folder, user, dict(env or {})
        self.program = program or (lambda name: os.path.join(BIN, f"tandem-{name}-worker"))
        self.starts, self.running, self.exits = {n: 0 for n in NAMES}, {}, []
        self.over, self.wake = False, os.pipe()

    def __enter__(self):
        self.listening = {}
        for name in NAMES:
            s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            s.bind(os.path.join(self.folder, f"{name}-worker.socket"))
            s.listen(16)
            s.setblocking(False)
            self.listening[name] = s
        self.threads = [threading.Thread(target=self._manage, args=(n,), daemon=True) for n in NAMES]
        for t in self.threads:
            t.start()
        return self

    def _manage(self, name):
        fd = self.listening[name].fileno()
        ids = pwd.getpwnam(self.user) if self.user else None
        while True:
            select.select([fd, self.wake[0]], [], [])
            if self.over:
                return

            def child():
                os.dup2(fd, 3)
                if ids:
                    os.setgroups([])
                    os.setgid(ids.pw_gid)
                    os.setuid(ids.pw_uid)
            env = {k: v for k, v in os.environ.items()
                   if k in ("PATH", "ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS")}
            env.update(self.env, TANDEM_LOG="debug", TANDEM_THREADS="1")
            log = open(os.path.join(self.folder, f"{name}.log"), "ab")
            p = subprocess.Popen(["/bin/sh", "-c", ACTIVATE, "sh", self.program(name)], env=env,
                                 stdin=subprocess.DEVNULL, stdout=log, stderr=log, close_fds=False, preexec_fn=child)
            log.close()
            self.starts[name] += 1
            self.running[name] = p
            self.exits.append((name, p.wait()))
            del self.running[name]

    def __exit__(self, kind, value, trace):
        self.over = True
        os.write(self.wake[1], b"x")
        if kind:
            for name in NAMES:
                try:
                    with open(os.path.join(self.folder, f"{name}.log"), errors="replace") as f:
                        print(f"---- the {name} worker's log\n" + f.read()[-2000:])
                except OSError:
                    pass
        for p in list(self.running.values()):
            p.kill()
        for t in self.threads:
            t.join(5)
        for s in self.listening.values():
            s.close()


class Unit(Daemon):
    """A tandemd that starts no worker itself."""

    def __init__(self, program=None, user=None, faults=None, older=None, **more):
        """root tandemd could kill anybody: with a user it gives up that right, as its unit does."""
        super().__init__(**more)
        self.program, self.user, self.faults, self.older = program, user, faults, older
        self.daemon = ("setpriv", "--bounding-set=-kill", "--inh-caps=-kill") if user else ()

    def start(self):
        self.environment()
        folder = os.path.join(self.dir, "run")
        self.extra_env["TANDEM_WORKER_SOCKETS"] = folder
        os.chmod(self.dir, 0o711)
        os.chmod(folder, 0o711)
        self.units = Units(folder, self.program, self.user, self.faults)
        self.units.__enter__()
        command = [*self.daemon, os.path.join(BIN, "tandemd"), "--user", "--socket", self.socket, "--bus", "none"]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command + [a for m in self.models for a in ("--model", m)],
                                            env=self.environment(), cwd=self.dir, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, start_new_session=True, preexec_fn=self.older)
        wait_for(self._listens, "tandemd's socket", 20)

    def __exit__(self, kind, value, trace):
        try:
            super().__exit__(kind, value, trace)
        finally:
            self.units.__exit__(kind, value, trace)

    def worker(self, name):
        return next(w for w in self.status()["workers"] if w["name"] == name)

    def pid(self, name):
        return self.worker(name).get("pid", 0)


def other_user():
    if os.geteuid() != 0:
        raise Skip("needs root to become another user")
    return "nobody"


@test
def same_ids_as_children():
    """The text is the same, both workers have run their part, and they leave with the daemon."""
    with Daemon() as d:
        want = d.generate(n=60).ids
    with Unit(hang_ms=STANDING_MS) as d:
        same_ids(d.generate(n=60).ids, want, "workers that are units")
        pids = {n: d.pid(n) for n in NAMES}
        equal(pids, {n: d.units.running[n].pid for n in NAMES}, "the processes that tandemd knows")
        children = subprocess.run(["ps", "-o", "args=", "--ppid", str(d.process.pid)],
                                  stdout=subprocess.PIPE, text=True).stdout
        check("worker" not in children, "tandemd has started none itself", children)
        check(all(blocks(w) for w in d.workers().values()), "both have worked")
        equal(d.stop(), None, "the daemon's end")
        d.expect_exit = None
        # Their manager goes on until then: it kills at its end what is left.
        wait_for(lambda: len(d.units.exits) == 2, "the workers leave with the daemon")
        equal(sorted(d.units.exits), [("gpu", 0), ("npu", 0)], "how they left")


@test
def killed_and_stopped():
    """Mid-generation, by signals from outside, by `tandem restart`, by the manager: ids are unchanged each time, and
    each time tandemd knows how the old process ended."""
    def is_known(d, what, name, before, said):
        wait_for(lambda: d.pid(name) not in (0, before) and d.worker(name)["state"] == "ready", "a new process")
        check(said in d.log() or what == "restart", f"{what}: how it ended is known", d.log()[-800:])

    with Unit(hang_ms=STANDING_MS) as d:
        want = d.generate(n=700).ids
        for what, name, said in (("KILL", "gpu", "signal 9"), ("TERM", "npu", "signal 15"),
                                 ("restart", "gpu", "asked")):
            with d.in_midst(dict(n=700), tokens=20) as (job,):
                before = d.pid(name)
                if what == "restart":
                    d.cli("restart", name, check_exit=0)
                else:
                    send_signal(before, getattr(signal, "SIG" + what))
            r = job.wait()
            same_ids(r.ids, want, what)
            check(r.recoveries >= 1, f"{what}: a recovery")
            is_known(d, what, name, before, said)
    with Unit() as d:  # which sees soon that a worker stands
        for _ in range(20):  # on a busy machine the job may be over before
            d.wait_ready()
            job = d.start_job(n=700)
            job.until(20)
            before = d.pid("npu")
            send_signal(before, signal.SIGSTOP)
            r = job.wait()
            same_ids(r.ids, want, "STOP")
            if r.recoveries >= 1:
                break
            with contextlib.suppress(ProcessLookupError):  # the daemon may have ended it
                send_signal(before, signal.SIGCONT)
        check(r.recoveries >= 1, "STOP: a recovery")
        is_known(d, "STOP", "npu", before, "stopped by a signal")


@test
def on_an_older_kernel():
    """Debian 12's says less: the process is found by its number, and how it ended stays unknown. Jobs do not notice."""
    with Unit(older=as_on_linux_6_1, hang_ms=STANDING_MS) as d:
        want = d.generate(n=700).ids
        for name, signo in (("gpu", signal.SIGKILL), ("npu", signal.SIGSEGV)):
            with d.in_midst(dict(n=700), tokens=20) as (job,):
                equal(d.pid(name), d.units.running[name].pid, "the process that tandemd knows")
                send_signal(d.pid(name), signo)
            same_ids(job.wait().ids, want, name)
            check("this kernel does not say how" in d.worker(name)["last_exit"], "what is known", d.worker(name))


@test
def of_another_user():
    """The workers' user is one whom tandemd may not signal: files and rings are fds, so nothing else changes. A worker
    that is lost in a loop leaves when tandemd hangs up; one that is stopped needs its manager, and without a bus that
    is said."""
    user = other_user()
    faulty = os.path.join(os.path.dirname(BIN), "faulty")
    if not os.path.exists(faulty):
        raise Skip("this build has no faulty workers")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for name in NAMES:  # where another user may look
            shutil.copy(os.path.join(faulty, f"tandem-{name}-worker"), folder)
        with Unit(user=user, program=lambda n: os.path.join(folder, f"tandem-{n}-worker"),
                  faults={"TANDEM_FAULT_GPU": f"hang={HANG_TOKEN}"}) as d:
            want = d.generate(n=700).ids
            uid = pwd.getpwnam(user).pw_uid
            for name in NAMES:
                with open(f"/proc/{d.pid(name)}/status") as f:
                    equal(next(line for line in f if line.startswith("Uid:")).split()[1], str(uid), "whose process")
            job = d.start_job(n=700)
            job.until(20)
            send_signal(d.pid("gpu"), signal.SIGKILL)
            same_ids(job.wait().ids, want, "after a loss")
            d.wait_ready()  # the other worker may have ended the job alone, and would run the next one
            before = d.pid("gpu")
            d.generate(ids=[2, HANG_TOKEN], n=1, may_fail=True)
            check(d.pid("gpu") != before, "the one that hung has left")
            check("no progress for" in d.log(), "a hang was found", d.log()[-600:])
            before = d.pid("npu")
            send_signal(before, signal.SIGSTOP)
            wait_for(lambda: "cannot ask systemd to kill tandem-npu-worker.service" in d.log(), "the manager is needed")
            os.kill(before, signal.SIGKILL)
            wait_for(lambda: d.worker("npu")["state"] == "ready" and d.pid("npu") != before, "a new process")
            same_ids(d.generate(n=700).ids, want, "after it was stopped")


@test
def nobody_listens():
    """It is said, it is not replaced by a child, and the daemon stays."""
    with tempfile.TemporaryDirectory() as folder:
        with Daemon(env={"TANDEM_WORKER_SOCKETS": folder}, placement=None) as d:
            wait_for(lambda: all(w["state"] == "quarantined" for w in d.workers().values()), "both are given up")
            for w in d.workers().values():
                check(f"{folder}/{w['name']}-worker.socket" in w["last_exit"], "why", w)
            check(d.process.poll() is None, "tandemd goes on")


@test
def silent_listener():
    """Somebody who accepts and says nothing, or the wrong thing, is given nothing."""
    with tempfile.TemporaryDirectory() as folder:
        s = {}
        for name in NAMES:
            s[name] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            s[name].bind(os.path.join(folder, f"{name}-worker.socket"))
            s[name].listen(16)
            s[name].settimeout(60 * SLOW)
        with Daemon(env={"TANDEM_WORKER_SOCKETS": folder}, placement=None) as d:
            c, _ = s["npu"].accept()
            c.send(b"X")
            c.settimeout(60 * SLOW)
            equal(c.recv(100), b"", "what an impostor hears")
            c2, _ = s["gpu"].accept()
            wait_for(lambda: "left before it said who it is" in d.log(), "said")
            time.sleep(0.3)
            c2.setblocking(False)
            try:
                equal(c2.recv(100), None, "what a silent one hears")
            except BlockingIOError:
                pass
            d.expect_exit = 0


@test
def worker_alone():
    """A worker that is passed something else than a listening socket says so."""
    for name in NAMES:
        a, b = socket.socketpair()
        r = subprocess.run(["/bin/sh", "-c", ACTIVATE, "sh", os.path.join(BIN, f"tandem-{name}-worker")],
                           stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, close_fds=False,
                           preexec_fn=lambda: os.dup2(a.fileno(), 3), timeout=60 * SLOW)
        equal(r.returncode, 1, "exit status")
        check("listening Unix stream socket" in r.stdout, "why", r.stdout)
        a.close()
        b.close()


main()
