"""tandemd and a service manager, without one: this script plays the manager's side of socket activation ($LISTEN_FDS),
readiness and watchdog ($NOTIFY_SOCKET, $WATCHDOG_USEC) and SIGHUP. The real one is test_nspawn.py's subject."""
import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

ACTIVATE = 'export LISTEN_PID=$$ WATCHDOG_PID=$$; exec "$@"'


class Managed(Daemon):
    """A tandemd as a unit would have it: its socket is there before it is."""

    def __init__(self, config="", **more):
        super().__init__(**more)
        self.config = config

    def start(self):
        env = self.environment()
        self.conf = os.path.join(env["XDG_CONFIG_HOME"], "tandem", "tandem.conf")
        os.makedirs(self.conf + ".d")
        self.write_config(self.config)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(os.path.join(self.dir, "notify"))
        self.told = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(self.socket)
        listening.listen(16)
        env.update(NOTIFY_SOCKET=os.path.join(self.dir, "notify"), LISTEN_FDS="1", LISTEN_FDNAMES="client",
                   WATCHDOG_USEC=str(int(600000 * SLOW)))
        command = ["/bin/sh", "-c", ACTIVATE, "sh", os.path.join(BIN, "tandemd"), "--user", "--bus", "none"]
        for m in self.models:
            command += ["--model", m]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command + self.args, env=env, cwd=self.dir, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, start_new_session=True, close_fds=False,
                                            preexec_fn=lambda: os.dup2(listening.fileno(), 3))
        listening.close()

    def write_config(self, text):
        with open(self.conf, "w") as f:
            f.write(text)

    def _listen(self):
        """Always: a socket holds ten messages, as some machines are set up, and tandemd waits for no manager."""
        while True:
            self.told.put(self.notify.recv(4096).decode())

    def heard(self, seconds):
        """What the manager is told until it is quiet for so long."""
        out = []
        with contextlib.suppress(queue.Empty):
            while True:
                out.append(self.told.get(seconds > 0, seconds))
        return out

    def wait_told(self, word, timeout=20):
        told = []

        def said():
            with contextlib.suppress(queue.Empty):
                told.append(self.told.get(timeout=0.1))
                return any(line.startswith(word) for line in told[-1].splitlines())
        try:
            wait_for(said, f"the manager is told {word}", timeout, 0)
        except AssertionError:
            print(f"it was told {told}")
            raise
        return told


@test
def activation_and_end():
    """A client that came before the daemon is served; the passed socket is not removed at the end."""
    with Managed() as d:
        r = d.cli("generate", "--temp", "0", "-n", "8", PROMPT, check_exit=0)
        check(len(r.stdout) > 5, "text", r.stdout)
        d.wait_told("READY=1")
        check(not os.path.exists(d.socket + ".lock"), "no lock for a socket that is somebody else's")
        d.process.send_signal(signal.SIGTERM)
        d.wait_told("STOPPING=1")
        equal(exit_of(d.process), 0, "exit status")
        check(os.path.exists(d.socket), "the manager's socket is still there")
        d.expect_exit = None


def stands(pid):
    """Whether the process is stopped."""
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "T"


@test
def watchdog():
    """Pings come while it is idle and while it works, with a line for the status; none from a stopped process."""
    with Managed(hang_ms=STANDING_MS) as d:
        d.wait_told("READY=1")
        idle = d.wait_told("WATCHDOG=1")
        check(any("STATUS=Idle" in m for m in idle), "status line", idle)
        with d.in_midst(dict(n=3000), tokens=3) as (job,):
            d.wait_told("STATUS=1 running")
            job.cancel()
        job.wait()
        os.kill(d.process.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: stands(d.process.pid), "it stands")
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:  # behind all that it has said
                s.sendto(b"MARK=1", os.path.join(d.dir, "notify"))
            d.wait_told("MARK=1")
            equal(d.heard(0.8), [], "what a stopped daemon says")
        finally:
            os.kill(d.process.pid, signal.SIGCONT)
        d.wait_told("WATCHDOG=1")


@test
def hangup():
    """SIGHUP: what can change does, the rest is said; a broken file changes nothing; the daemon goes on."""
    with Managed(config="[daemon]\nmax-jobs-per-user = 3\n", hang_ms=STANDING_MS) as d:
        d.wait_told("READY=1")
        with d.in_midst(dict(n=3000), tokens=2) as (job,):
            d.write_config("[daemon]\nmax-jobs-per-user = 1\nodd = 1\n[engine]\nmax-sequences = 7\n")
            with open(os.path.join(d.conf + ".d", "50-log.conf"), "w") as f:
                f.write("[daemon]\nlog = debug\n")
            d.process.send_signal(signal.SIGHUP)
            told = d.wait_told("RELOADING=1")
            check("MONOTONIC_USEC=" in told[-1], "with the time", told)
            d.wait_told("READY=1")
            try:
                d.start_job(n=4).step()
                check(False, "a second job of this user was taken")
            except Refused as e:
                check("quota" in str(e).lower() or "limit" in str(e).lower(), "refused for the quota", str(e))
        log = d.log()
        check("max-jobs-per-user = 1, was 3; takes effect now" in log, "said", log)
        check("max-sequences = 7, was 64; takes effect at the next start" in log, "said", log)
        check("tandem.conf:3: key odd" in log, "unknown key with its line", log)
        d.write_config("[daemon]\nmax-jobs-per-user = many\n")
        d.process.send_signal(signal.SIGHUP)
        d.wait_told("RELOADING=1")
        d.wait_told("READY=1")
        check("stays as it was" in d.log() and 'tandem.conf:2: max-jobs-per-user: "many"' in d.log(), "refused",
              d.log())
        d.write_config("")
        d.process.send_signal(signal.SIGHUP)
        d.wait_told("RELOADING=1")
        d.wait_told("READY=1")
        equal(len(d.start_job(n=4).wait().ids), 4, "tokens beside the first job")
        with contextlib.suppress(Refused):  # it may have ended
            job.cancel()
        job.wait()


@test
def check_config():
    with Daemon() as d:
        path = os.path.join(d.dir, "x.conf")
        env = dict(d.environment())

        def run(text):
            with open(path, "w") as f:
                f.write(text)
            return subprocess.run([os.path.join(BIN, "tandemd"), "--config", path, "--check-config"], env=env,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=20 * SLOW)
        good = run("[engine]\nkv-memory = 2M\n")
        equal((good.returncode, good.stderr), (0, ""), "a good one")
        check("kv-memory = 2097152\n" in good.stdout and f"# {path}\n" in good.stdout, "what it comes to", good.stdout)
        odd = run("[engine]\nkv-memori = 2M\n")
        check(odd.returncode == 0 and f"{path}:2: key kv-memori" in odd.stderr, "an unknown key", odd.stderr)
        bad = run("[engine]\n\nthreads = -4\n")
        check(bad.returncode == 2 and f"{path}:3: threads" in bad.stderr and not bad.stdout, "a bad value", bad.stderr)


main()
