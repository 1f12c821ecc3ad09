#!/usr/bin/python3
"""What the tests of the tandem command share: the fake daemon (test-fake-daemon.h says what its models do), the command
on pipes and on a pseudo-terminal. sys.argv begins with the paths of TANDEM and FAKE_DAEMON. Standard library only."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time

TANDEM, FAKE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
# Time limits are the interface's; a sanitizer gets a little more for starting and ending the process.
SLACK = float(os.environ.get("TANDEM_TEST_SLACK", "1"))
PATIENCE = 60  # seconds until a test gives up that waits for something without a limit of its own


children = []


def spawn(*args, **kwargs):
    """A process that does not outlive the tests, however they end."""
    children.append(subprocess.Popen(*args, **kwargs))
    return children[-1]


def waited(pid):
    """Seconds that the main thread of a process was ready to run and had no CPU; it may have ended, not reaped."""
    try:
        with open("/proc/%d/schedstat" % pid) as f:
            return int(f.read().split()[1]) / 1e9
    except OSError:
        return 0.0


class Stopwatch:
    """Time in which a process and this one have a CPU or want none: on an idle machine the time on the clock."""

    def __init__(self, pid):
        self.pid, self.begin, self.before = pid, time.monotonic(), waited(pid) + waited(os.getpid())

    def seconds(self):
        return time.monotonic() - self.begin - max(0.0, waited(self.pid) + waited(os.getpid()) - self.before)


def ended(process, limit):
    """Waits for a process's end without reaping it; whether it came in time."""
    end = time.monotonic() + limit
    while process.returncode is None and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def state(pid):
    with open("/proc/%d/stat" % pid) as f:
        return f.read().rsplit(")", 1)[1].split()[0]


def settle(seconds, process):
    """Lets a process and the fake daemon do what they have to do: both had so long with a CPU, and now sleep, or have
    ended. The process is looked at again behind the fake daemon, which may have answered it between the two looks."""
    begin, before = time.monotonic(), waited(process.pid) + waited(fake.process.pid)
    while True:
        time.sleep(0.005)
        passed = time.monotonic() - begin
        had = passed - (waited(process.pid) + waited(fake.process.pid) - before)
        if passed > PATIENCE or had >= seconds and all(state(pid) in "SZX" for pid in
                                                       (process.pid, fake.process.pid, process.pid)):
            return


class Fake:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="tandem-test-")
        self.path = self.dir + "/socket"
        self.log_path = self.dir + "/log"
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen([FAKE, self.path], stdin=subprocess.PIPE, stdout=log)
        self.wait_for(lambda r: r.get("request") == "listening")
        self.seen = len(self.requests())

    def requests(self):
        with open(self.log_path) as log:
            return [json.loads(line) for line in log.read().split("\n")[:-1]]

    def fresh(self):
        """Requests since the last call."""
        all_requests = self.requests()
        new, self.seen = all_requests[self.seen:], len(all_requests)
        return new

    def wait_for(self, wanted, since=0, limit=PATIENCE):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            for r in self.requests()[since:]:
                if wanted(r):
                    return r
            time.sleep(0.005)
        raise AssertionError("the fake daemon never got it: %r" % self.requests()[since:])

    def stop(self):
        self.process.stdin.close()
        self.process.wait()
        for name in os.listdir(self.dir):
            os.unlink(self.dir + "/" + name)
        os.rmdir(self.dir)


fake = None  # of this run, from set_up() on
state_home = None  # where this run keeps the chat's history


def set_up():
    global fake, state_home
    fake = Fake()
    state_home = tempfile.mkdtemp(prefix="tandem-test-state-")


def tear_down():
    for child in children:
        if child.poll() is None:
            child.kill()
            child.wait()
    fake.stop()
    shutil.rmtree(state_home)


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_") and k != "XDG_RUNTIME_DIR"}
    env["TERM"] = "xterm"
    env["XDG_STATE_HOME"] = state_home
    env.update(more)
    return env


def tandem(*args, stdin=b"", socket=True, **env):
    before = ["--socket", fake.path] if socket else []
    return subprocess.run([TANDEM, *before, *args], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=30, env=environment(**env))


def screen(output, columns):
    """The rows that a terminal of this width shows of it, which begins at a row's first column."""
    rows, x, y = [[]], 0, 0
    for m in re.finditer(r"\x1b\[([0-9;?]*)([@-~])|(.)", output.decode(), re.S):
        n = int(m[1]) if m[1] and m[1].isdigit() else 1
        if m[2] == "A":
            y = max(y - n, 0)
        elif m[2] == "C":
            x = min(x + n, columns - 1)
        elif m[2] == "D" or m[3] == "\b":
            x = max(min(x, columns - 1) - n, 0)
        elif m[2] == "G":
            x = n - 1
        elif m[2] == "@":
            rows[y][x:x] = " " * n
            del rows[y][columns:]
        elif m[2] == "P":
            del rows[y][x:x + n]
        elif m[2] in ("K", "J"):
            del rows[y][x:]
            if m[2] == "J":
                del rows[y + 1:]
        elif m[3] == "\r":
            x = 0
        elif m[3] == "\n" or m[3] and m[3] >= " ":
            if m[3] == "\n" or x == columns:
                x, y = x if m[3] == "\n" else 0, y + 1
                rows += [[] for _ in range(y + 1 - len(rows))]
            if m[3] != "\n":
                rows[y] += " " * (x + 1 - len(rows[y]))
                rows[y][x] = m[3]
                x += 1
    shown = ["".join(row).rstrip() for row in rows]
    return shown[:max([i + 1 for i, row in enumerate(shown) if row], default=0)]


class Terminal:
    """The command on a pseudo-terminal: stdin, stdout and stderr, unless told otherwise."""

    def __init__(self, *args, env=None, columns=None, **fds):
        self.master, slave = pty.openpty()
        if columns:
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.modes = termios.tcgetattr(slave)  # as the command finds them
        self.modes_after = None                # and as it leaves them
        os.set_inheritable(slave, True)
        fds = {**{"stdin": slave, "stdout": slave, "stderr": slave}, **fds}

        def session():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = spawn([TANDEM, "--socket", fake.path, *args], env=environment(**(env or {})), preexec_fn=session,
                                        pass_fds=[slave], **fds)
        os.close(slave)
        self.output = b""

    def resize(self, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def read(self, limit):
        end = time.monotonic() + limit
        while True:
            ready = select.select([self.master], [], [], max(0, end - time.monotonic()))[0]
            if not ready:
                return True
            try:
                data = os.read(self.master, 65536)
            except OSError:  # the last user of the terminal has gone
                return False
            if not data:
                return False
            self.output += data
            return True

    def until(self, text, limit=PATIENCE, times=1):
        end = time.monotonic() + limit
        while self.output.count(text) < times:
            if time.monotonic() > end or not self.read(end - time.monotonic()):
                raise AssertionError("%r never came, only %r" % (text, self.output))

    def until_prompt(self):
        """Until chat waits at its prompt, whose mark is bold."""
        end = time.monotonic() + PATIENCE
        while not re.search(rb"> (\x1b\[[0-9;]*m)*$", self.output):
            if time.monotonic() > end or not self.read(end - time.monotonic()):
                raise AssertionError("no prompt: %r" % self.output)

    def type(self, data):
        os.write(self.master, data)

    def finish(self, limit=5):
        """The exit status of a process that ends within so many seconds that it had a CPU."""
        watch = Stopwatch(self.process.pid)
        while not ended(self.process, 0) and watch.seconds() < limit:
            self.read(0.02)
        while self.process.poll() is not None and select.select([self.master], [], [], 0)[0] and self.read(0.1):
            pass
        if self.process.poll() is None:
            self.process.kill()
            raise AssertionError("it does not end: %r" % self.output)
        self.modes_after = termios.tcgetattr(self.master)
        os.close(self.master)
        return self.process.returncode
