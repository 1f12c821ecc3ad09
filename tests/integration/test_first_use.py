"""What a first use stumbles over: a terminal that ends, a second daemon, an end that reaches every process at once, a
build folder that is moved."""
import contextlib
import glob
import os
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403


class InTerminal:
    """A daemon that a shell started on a terminal of its own."""

    def __init__(self, d, before=""):
        self.d, (self.master, slave) = d, pty.openpty()
        os.set_inheritable(slave, True)
        command = f"{before} {BIN}/tandemd --user --bus none --socket {d.socket} --model {TALE} "
        command += f">/dev/null 2>{d.log_path} & wait"

        def on_terminal():
            os.setsid()
            import fcntl
            import termios
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.shell = subprocess.Popen(["/bin/sh", "-c", command], stdin=slave, stdout=slave, preexec_fn=on_terminal,
                                      env=d.environment(), pass_fds=[slave])
        os.close(slave)
        wait_for(d._listens, "the socket", 30)
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as s:
            s.connect(d.socket)
            self.pid = struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]

    def lives(self):
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
        return False

    def hang_up(self):
        os.close(self.master)
        self.shell.wait()


class Folder(Daemon):
    """The folders of a daemon that something else starts."""

    def start(self):
        self.expect_exit = None
        self.process = subprocess.Popen(["true"])

    def _listens(self):
        return os.path.exists(self.socket)

    def __exit__(self, *why):
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            with contextlib.suppress(OSError), open(path) as f:
                if self.socket in f.read().split("\0"):
                    os.kill(int(path.split("/")[2]), signal.SIGKILL)
        return super().__exit__(*why)


@test
def a_terminal_ends():
    with Folder() as d:
        t = InTerminal(d)
        os.kill(t.pid, signal.SIGHUP)  # the terminal is there: it is a manager's or a person's
        wait_for(lambda: "the configuration was read again" in d.log(), "the reload", 10)
        check(t.lives(), "it runs on")
        t.hang_up()
        wait_for(lambda: not t.lives(), "the daemon's end", 15)
        check("the terminal that it was started from has gone" in d.log() and "ended" in d.log(), "why", d.log())
        check(not os.path.exists(d.socket), "the socket is gone")
        check("lost" not in d.log(), "no worker was lost", d.log())


@test
def a_shell_says_so_before_it_ends():
    """zsh sends SIGHUP to its jobs while the terminal is still theirs."""
    with Folder() as d:
        t = InTerminal(d)
        os.kill(t.pid, signal.SIGHUP)
        os.kill(t.shell.pid, signal.SIGKILL)
        wait_for(lambda: not t.lives(), "the daemon's end", 15)
        t.hang_up()


@test
def nohup_outlives_a_terminal():
    with Folder() as d:
        t = InTerminal(d, before="nohup")
        t.hang_up()
        os.kill(t.pid, signal.SIGHUP)
        wait_for(lambda: "the configuration was read again" in d.log(), "the reload", 10)
        time.sleep(1.5)  # it looks at the terminal once more after a second
        check(t.lives(), "it runs on", d.log())


@test
def whose_socket():
    with Daemon() as d:
        r = subprocess.run([os.path.join(BIN, "tandemd"), "--user", "--bus", "none", "--socket", d.socket],
                           env=d.environment(), stderr=subprocess.PIPE)
        equal(r.returncode, 1, "the status")
        said = r.stderr.decode()
        check(f"another tandemd (pid {d.process.pid}) serves {d.socket} already" in said, "whose", said)


@test
def a_taken_port():
    """Whose it is: a process where /proc shows this user that, else its user."""
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        nobody = ["setpriv", "--reuid=65534", "--clear-groups"]
        for prefix, owner in (([], f"(pid {os.getpid()})"), (nobody, "user root")):
            if prefix and (os.geteuid() != 0 or not shutil.which(prefix[0])):
                continue
            r = subprocess.run([*prefix, os.path.join(BIN, "tandem-http"), "--listen", address], stderr=subprocess.PIPE)
            equal(r.returncode, 1, "the status")
            for words in (f"{address} is taken by ", owner, "--listen 127.0.0.1:11435"):
                check(words in r.stderr.decode(), words, r.stderr)


@test
def all_are_asked_to_end():
    """A service manager, a container's end and Ctrl-C reach all processes at once. A running job ends with all its
    tokens, and no worker is called lost."""
    for signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with Daemon() as d:
            d.expect_exit = None
            d.wait_ready()
            job = d.start_job(n=400)
            check(job.until(20), "tokens")
            for pid in d.pids():
                if pid != d.process.pid or signo != signal.SIGHUP:
                    os.kill(pid, signo)
            if signo == signal.SIGHUP:
                d.process.send_signal(signal.SIGTERM)
            result = job.wait()
            equal((result.reason, len(result.ids)), ("DONE_LENGTH", 400), "the job's end")
            equal(d.wait_end(), None, "the daemon's end")
            check("lost" not in d.log() and "restart" not in d.log(), "the log", d.log())


@test
def a_build_folder_moves():
    """Programs find libtandem beside them, and look for libraries nowhere else than where the system has them: an empty
    entry would be the current directory."""
    if not os.path.exists(os.path.join(BIN, "..", "build.ninja")):
        raise Skip("installed programs")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("bin", "lib"):
            shutil.copytree(os.path.join(BIN, "..", name), os.path.join(folder, name), symlinks=True)
        for name in ("tandem", "tandemd", "tandem-http", "tandem-pull", "tandem-npu-worker", "tandem-gpu-worker"):
            path = os.path.join(folder, "bin", name)
            said = subprocess.run(["readelf", "-d", path], stdout=subprocess.PIPE, check=True).stdout.decode()
            for entry in (re.findall(r"R(?:UN)?PATH.*\[(.*)\]", said) or ["$ORIGIN"])[0].split(":"):
                check(entry.startswith("$ORIGIN"), f"{name} looks in '{entry}'")
            needs = subprocess.run(["ldd", path], stdout=subprocess.PIPE).stdout.decode()
            for found in re.findall(r"libtandem\S* => (\S+)", needs):
                equal(os.path.realpath(os.path.dirname(found)), os.path.realpath(os.path.join(folder, "lib")), name)
        check(subprocess.run([os.path.join(folder, "bin/tandem"), "--version"]).returncode == 0, "it runs there")


main()
