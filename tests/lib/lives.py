"""Daemons that follow one another, on a socket that may stay between them, and a client that goes on with its job."""
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

from processes import let_go
from tandem_test import BIN, ENDS_WITH_TEST, Daemon, check, equal, wait_for

PATIENT = "120"  # seconds: a busy machine starts a daemon late
# Passes descriptors as a service manager does: the arguments are their numbers and names, and then the command.
ACTIVATE = '''import os, sys
fds, names, command = sys.argv[1].split(","), sys.argv[2], sys.argv[3:]
kept = [os.dup(int(fd)) for fd in fds]
while any(fd < 3 + len(fds) for fd in kept):
    kept = [os.dup(fd) for fd in kept]
for i, fd in enumerate(kept):
    os.dup2(fd, 3 + i)
os.closerange(3 + len(fds), max(kept + [int(fd) for fd in fds]) + 1)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=names)
os.execvp(command[0], command)'''


class Held(Daemon):
    """Its socket is held by this test, as a service manager would: between two daemons, clients wait in it."""

    bus = "none"

    def start(self):
        if not getattr(self, "listener", None):
            os.makedirs(os.path.dirname(self.socket), mode=0o700, exist_ok=True)
            self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.listener.bind(self.socket)
            self.listener.listen(64)
        passed = [("client", self.listener.fileno()), *self.stored()]
        fds = [fd for _, fd in passed]
        command = [*ENDS_WITH_TEST, sys.executable, "-S", "-c", ACTIVATE, ",".join(map(str, fds)),
                   ":".join(name for name, _ in passed), os.path.join(BIN, "tandemd"), "--user", "--bus", self.bus]
        for m in self.models:
            command += ["--model", m]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command + self.args, env=self.environment(), cwd=self.dir,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                            pass_fds=fds)

    def stored(self):
        """What an earlier daemon gave to the manager: names and descriptors."""
        return []

    def __exit__(self, *exc):
        try:
            return super().__exit__(*exc)
        finally:
            self.listener.close()


class Cli:
    """A command that says JSON, what it has said so far, and when."""

    def __init__(self, d, *args, command=("generate", "--json"), **env):
        self.lines, self.times = [], []
        self.process = subprocess.Popen([os.path.join(BIN, "tandem"), "--socket", d.socket, *command, *args],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=dict(d.environment(), **{"TANDEM_REATTACH": PATIENT, **env}))
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.times.append(time.monotonic())
            self.lines.append(json.loads(line))

    def n(self):
        return len(self.lines)

    def runs(self):
        return self.reader.is_alive()

    def wait(self):
        self.reader.join()
        self.stderr = self.process.stderr.read().decode()
        self.process.stdout.close()
        self.process.stderr.close()
        return self.process.wait()

    def told(self):
        """Checks that it ended well; all that a reader sees of the text."""
        equal(self.wait(), 0, f"exit status: {self.stderr} {self.lines[-1:]}")
        done = self.lines[-1]
        tokens = [e for e in self.lines if e["event"] == "token"]
        equal([e["id"] for e in tokens], done["ids"], "tokens told, and ids in the end")
        calls = [{k: v for k, v in e.items() if k != "id"} for e in self.lines if e["event"] not in ("token", "done")]
        return tokens, calls, {k: done.get(k) for k in ("reason", "tail", "generated_tokens", "thinking_tokens",
                                                        "prompt_tokens", "numerics_id", "degraded", "incomplete")}

    def recovered(self):
        return self.lines[-1].get("recoveries", 0) > 0

    def error(self):
        return self.lines[-1].get("error", {}).get("code")


def ask_to_end(d):
    """SIGTERM; returns when tandemd has heard it."""
    n = d.log().count(": ending; ")
    d.process.terminate()
    wait_for(lambda: d.log().count(": ending; ") > n, "tandemd has heard the signal")


def leave(d, stopped=()):
    """SIGTERM where every job goes on at the next daemon: none is waited for. Workers that were stopped, so that their
    jobs are in their midst, go on when it is heard."""
    ask_to_end(d)
    let_go(stopped)
    equal(d.wait_end(), None, "what was wrong with its end")
    check("not done in time" not in d.log(), "a job was waited for", d.log()[-2000:])


def end(d, stopped=()):
    """SIGTERM; by the second one it cancels what runs, which else has 5 s. stopped: as for leave()."""
    ask_to_end(d)
    with contextlib.suppress(ProcessLookupError):
        d.process.send_signal(signal.SIGTERM)
    let_go(stopped)
    equal(d.wait_end(), None, "what was wrong with its end")
