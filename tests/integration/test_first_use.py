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
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import Gateway  # noqa: E402


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
        return listens(self.socket)

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
        d.wait_ready()
        os.kill(t.pid, signal.SIGHUP)  # the terminal is there: it is a manager's or a person's
        wait_for(lambda: "the configuration was read again" in d.log(), "the reload", 10)
        check(t.lives(), "it runs on")
        t.hang_up()
        wait_for(lambda: not t.lives(), "the daemon's end", 15)
        check("the terminal that it was started from has gone" in d.log() and "ended" in d.log(), "why", d.log())
        check(not os.path.exists(d.socket), "the socket is gone")
        check(") lost: " not in d.log(), "no worker was lost", d.log())


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
def closed_standard_files():
    """A program whose caller closed them: no file or socket that is opened later takes their place."""
    def closing(what):
        return ["/bin/sh", "-c", f'exec "$@" {what}', "sh"]

    every = ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")
    for what in every:
        with Daemon(prefix=closing(what)) as d:
            d.wait_ready()
            equal(len(d.generate(n=3).ids), 3, f"a daemon {what}")
            for fd, sign in enumerate(("<&-", ">&-", "2>&-")):
                if sign in what.split(" "):
                    equal(os.readlink(f"/proc/{d.process.pid}/fd/{fd}"), "/dev/null", f"descriptor {fd} {what}")
    with Daemon() as d:
        want = d.cli("generate", "-n", "3", "--temp", "0", "Once", check_exit=0).stdout
        for what in every:
            r = subprocess.run([*closing(what), os.path.join(BIN, "tandem"), "--socket", d.socket, "generate", "-n",
                                "3", "--temp", "0", "Once"], env=d.environment(), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, timeout=60 * SLOW)
            lost = ">&-" in what.split(" ")
            equal((r.returncode, r.stdout), (1, b"") if lost else (0, want), f"tandem {what}")
            if what == ">&-":
                check(b"cannot write to standard output: Bad file" in r.stderr, "why", r.stderr)


@test
def a_log_that_nobody_reads_any_more():
    """As of `tandemd 2>&1 | head`."""
    with Daemon() as d:
        other = d.socket + "2"
        p = subprocess.Popen([os.path.join(BIN, "tandemd"), "--user", "--bus", "none", "--socket", other, "--model",
                              TALE], env=d.environment(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            check(b"serves its user" in p.stderr.readline(), "the first line")
            p.stderr.close()
            p.send_signal(signal.SIGHUP)  # which is logged
            r = subprocess.run([os.path.join(BIN, "tandem"), "--socket", other, "generate", "-n", "2", "Once"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=60 * SLOW)
            equal((r.returncode, p.poll()), (0, None), "a job's status, and the daemon's")
        finally:
            p.terminate()
        equal(exit_of(p), 0, "its end")


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


def on_terminal(d, *args, until, env=None):
    """What `tandem` says on a terminal up to some words."""
    master, slave = pty.openpty()
    process = subprocess.Popen([os.path.join(BIN, "tandem"), "--socket", d.socket, *args], stdin=slave, stdout=slave,
                               stderr=slave, env=dict(d.environment(), TERM="xterm", **(env or {})))
    os.close(slave)
    said = b""

    def came():
        nonlocal said
        with contextlib.suppress(OSError):
            said += os.read(master, 65536)
        return until in said.decode(errors="replace") or process.poll() is not None

    try:
        wait_for(came, until, 30)
    finally:
        process.kill()
        process.wait()
        os.close(master)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", said.decode(errors="replace"))


@test
def a_chat_without_a_template():
    """It is said before anything is typed, and who answers."""
    plain = make_model("tiny")
    name = os.path.basename(plain)[:-len(".gguf")]
    with Daemon(models=(TALE, plain)) as d:
        said = " ".join(on_terminal(d, "chat", "-m", name, until="raw text").split())
        check(f"{name} has no chat template" in said, "at the start", said)
        check("/model NAME takes another" in said, "what to do", said)
        said = on_terminal(d, "chat", until="> ")
        check("tale answers" in said and "template" not in said, "a model that can", said)
        said = on_terminal(d, "run", "tale", until="> ")
        check("tale answers" in said, "run without a message is a chat", said)
        for args, text in ((("run", "tale", "Hello"), None), (("run", "tale"), b"Hello\n"),
                           (("generate", "-m", "tale", "--chat", "Hello"), None)):
            r = d.cli(*args, "-n", "8", "--temp", "0", input=text, check_exit=0)
            equal(r.stdout, d.cli("generate", "--chat", "-n", "8", "--temp", "0", "Hello").stdout, f"{args}")
        check("MODEL is missing" in d.cli("run", check_exit=2).stderr.decode(), "run needs a model")
        lines = d.cli("ps", check_exit=0).stdout.decode().splitlines()
        equal([line.split()[0] for line in lines], ["NAME", "tale"], "what is in memory")
        d.cli("stop", "tale", check_exit=0)
        check("no model in memory" in d.cli("ps", check_exit=0).stdout.decode(), "it is gone")
        said = d.cli("chat", input=b"", check_exit=0).stderr.decode()
        check("standard input has no message" in said, "nothing to answer", said)


@test
def two_of_one_name():
    """The list says which file a name means, and it is the one that is taken, before and after it is loaded."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(make_model("tiny"), os.path.join(folder, "two.gguf"))
        with Daemon(system=True, models=(), env={"TANDEM_MODEL_PATH": folder}) as d:
            mine = {"XDG_DATA_HOME": os.path.join(d.dir, "mine")}
            os.makedirs(os.path.join(d.dir, "mine/tandem/models"))
            own = shutil.copyfile(SPROUT, os.path.join(d.dir, "mine/tandem/models/two.gguf"))

            def rows():
                said = d.cli("models", env=mine, check_exit=0).stdout.decode()
                return [x for x in said.splitlines() if "two.gguf" in x]

            which = {x.split()[4]: " ".join(x.split()[5:]) for x in rows()}
            equal(which, {own: "(this one is taken by its name)",
                          folder + "/two.gguf": "(hidden by another of its name; -m takes the file)"}, "what is listed")
            want = d.cli("tokenize", "-m", SPROUT, "Once upon a time", check_exit=0).stdout
            for _ in range(2):
                got = d.cli("tokenize", "-m", "two", "Once upon a time", env=mine, check_exit=0).stdout
                equal(got, want, "the ids of one's own")
                d.cli("generate", "-m", "two", "-n", "2", "Once", env=mine, check_exit=0)
                check(own in rows()[0] and " loaded " in rows()[0], "what is loaded", rows())


@test
def a_model_without_its_daemon():
    """What a daemon listed is shown when it has gone."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(SPROUT, os.path.join(folder, "placed.gguf"))
        with Daemon(env={"TANDEM_MODEL_PATH": folder}) as d:
            check("placed" in d.cli("models", check_exit=0).stdout.decode(), "listed")
            equal(d.stop(), None, "the daemon's end")
            d.expect_exit = None
            check(folder in d.cli("show", "placed", check_exit=0).stdout.decode(), "shown")
            said = d.cli("show", "nosuch", check_exit=1).stderr.decode()
            check(folder in said and "no tandemd answers, which may know it from elsewhere" in said, "why not", said)


@test
def no_socket():
    with tempfile.NamedTemporaryFile() as file:
        r = subprocess.run([os.path.join(BIN, "tandem"), "--socket", file.name, "status"], stderr=subprocess.PIPE)
        equal(r.returncode, 1, "the status")
        check(f"{file.name} (no socket: " in r.stderr.decode(), "what it is", r.stderr)


class Held(Folder):
    """A socket that a service manager holds while one daemon ends and the next begins. One job runs at a time."""

    def __enter__(self):
        super().__enter__()
        self.held = socket.socket(socket.AF_UNIX)
        os.makedirs(os.path.dirname(self.socket), exist_ok=True)
        self.held.bind(self.socket)
        self.held.listen(16)
        self.one_job = config("[daemon]\nmax-running-per-user = 1\n")
        self.daemons, self.clients, self.stopped = [], [], []
        return self

    def __exit__(self, *why):
        for p in self.daemons + self.clients:
            p.kill()
            p.wait()
        self.held.close()
        return super().__exit__(*why)

    def begin(self):
        args = ["export LISTEN_PID=$$; exec \"$@\"", "sh", os.path.join(BIN, "tandemd"), "--user", "--bus", "none",
                *self.one_job]
        for model in self.models:
            args += ["--model", model]
        with open(self.log_path, "ab") as log:
            self.daemons.append(subprocess.Popen(
                ["/bin/sh", "-c", *args], env=dict(self.environment(), LISTEN_FDS="1"), stderr=log, close_fds=False,
                preexec_fn=lambda: (os.dup2(self.held.fileno(), 3), os.set_inheritable(3, True))))

    def ask(self, *args, **more):
        self.clients.append(self.popen_cli(*args, **more))
        return self.clients[-1]

    def keep_busy(self):
        # Its workers stand still until it is cancelled, so that it does not end before all the others wait.
        self.wait_ready()
        self.stop()
        # Its client does not take it to the next daemon, where it would keep the others waiting.
        self.ask("generate", "-n", "3000", "--ignore-end", "Once", env={"TANDEM_REATTACH": "0"})
        # While its model is loaded, jobs of another one would still run.
        run_in_slices(self.stopped, lambda: any(j.get("generated_tokens") for j in self.jobs()), "a job that runs")

    def ask_to_end(self):
        n = self.log().count(": ending; ")
        self.daemons[-1].terminate()
        wait_for(lambda: self.log().count(": ending; ") > n, "it has heard the signal")

    def end(self):
        """The second signal cancels what runs."""
        self.ask_to_end()
        self.daemons[-1].terminate()
        self.go_on()
        equal(exit_of(self.daemons[-1]), 0, "its end")

    def stop(self):
        self.stopped = self.worker_pids()
        for pid in self.stopped:
            send_signal(pid, signal.SIGSTOP)

    def go_on(self):
        for pid in self.stopped:
            send_signal(pid, signal.SIGCONT)
        self.stopped = []


def answer_of(p):
    out, err = p.communicate(timeout=60 * SLOW)
    equal((p.returncode, err.decode()), (0, ""), "what had not begun")
    return out


@test
def a_job_that_had_not_begun():
    """It is asked for again where the next daemon listens, by each command."""
    vectors = make_model("a", arch="gemma-embedding")
    with Held(models=(TALE, SPROUT, vectors), hang_ms=STANDING_MS) as d:
        d.begin()
        d.keep_busy()
        n = ("-n", "4", "--temp", "0", "Once")
        commands = [("generate", *n), ("score", "Once upon"),
                    ("embed", "-m", os.path.basename(vectors)[:-len(".gguf")], "Once", "upon")]
        waits = [d.ask(*c) for c in commands] + [d.ask("run", "tale", *n)]
        wait_for(lambda: len(d.call("jobs")["jobs"]) == 6, "five that wait", 30)
        d.end()
        d.begin()
        for p, command in zip(waits, commands + [("generate", "--chat", *n)]):
            equal(answer_of(p), d.cli(*command, check_exit=0).stdout, f"{command}")


@test
def a_load_that_had_not_ended():
    with Held(models=(TALE, SPROUT), hang_ms=STANDING_MS) as d:
        d.begin()
        d.wait_ready()
        for pid in d.worker_pids():
            send_signal(pid, signal.SIGSTOP)  # so that no model becomes ready
        load = d.ask("load", "sprout")
        wait_for(lambda: "loading" in [m["state"] for m in d.status()["models"]], "a model that loads", 30)
        d.end()
        d.begin()
        check(b"sprout: loaded" in answer_of(load), "it is loaded")
        equal([m["state"] for m in d.status()["models"] if m["name"] == "sprout"], ["loaded"], "by the second daemon")


@test
def a_request_of_http_that_had_not_begun():
    """Of a request for several texts some may have ended already."""
    vectors = make_model("a", arch="gemma-embedding")
    name = os.path.basename(vectors)[:-len(".gguf")]
    chat = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 4, "temperature": 0}
    requests = [("/v1/completions", {"prompt": ["Once", "A king"], "max_tokens": 4, "temperature": 0}),
                ("/v1/completions", {"prompt": "Once", "max_tokens": 4, "temperature": 0, "stream": True}),
                ("/v1/chat/completions", chat), ("/v1/messages", dict(chat, model="tale")),
                ("/api/generate", {"model": "tale", "prompt": "Once", "options": {"num_predict": 4, "temperature": 0}}),
                ("/v1/embeddings", {"model": name, "input": ["Once", "upon", "a time"]})]

    def texts(path, body, gateway):
        status, _, data = gateway.request("POST", path, dict({"model": "tale"}, **body))
        equal(status, 200, f"{path} {data[:300]}")
        return re.findall(rb'"(?:text|content|response|embedding)":("[^"]*"|\[[0-9][^]]*)', data)

    with Held(models=(TALE, SPROUT, vectors), hang_ms=STANDING_MS) as d:
        d.begin()
        with Gateway(d) as gateway:
            want = [texts(*r, gateway) for r in requests]
            check(all(want), "texts", want)
            d.keep_busy()
            answers = [None] * len(requests)

            def ask(i):
                answers[i] = texts(*requests[i], gateway)

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(requests))]
            for t in threads:
                t.start()
            wait_for(lambda: len(d.call("jobs")["jobs"]) == 10, "nine that wait", 30)
            d.ask_to_end()  # one connection is kept, so this one goes to the daemon that ends
            loads = threading.Thread(target=lambda: answers.append(gateway.post("/api/generate", {"model": "sprout"})))
            loads.start()
            time.sleep(0.2)
            d.daemons[-1].terminate()
            d.go_on()
            equal(exit_of(d.daemons[-1]), 0, "its end")
            d.begin()
            for t in [*threads, loads]:
                t.join(60 * SLOW)
            equal(answers[:-1], want, "the texts")
            equal((answers[-1]["done_reason"], answers[-1]["done"]), ("load", True), "a model that was asked for")


@test
def a_request_of_http_that_no_daemon_takes():
    """Where no other daemon listens, the client is told what the last one said."""
    with Daemon(args=config("[daemon]\nmax-running-per-user = 1\n"), hang_ms=STANDING_MS) as d, \
            Gateway(d) as gateway:
        answers = []
        body = {"model": "tale", "prompt": "Once"}
        with d.in_midst(dict(n=3000)):
            d.expect_exit = None
            t = threading.Thread(target=lambda: answers.append(gateway.post("/v1/completions", body, want=503)))
            t.start()
            wait_for(lambda: len(d.jobs()) == 2, "one that waits", 30)
            d.process.terminate()
        t.join(60 * SLOW)
        equal(answers[0]["error"]["code"], "draining", "why not")
        d.process.terminate()
        equal(d.wait_end(), None, "the daemon's end")


@test
def all_are_asked_to_end():
    """A service manager, a container's end and Ctrl-C reach all processes at once. A running job ends with all its
    tokens, and no worker is called lost."""
    for signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with Daemon(hang_ms=STANDING_MS) as d:
            d.expect_exit = None
            d.wait_ready()
            with d.in_midst(dict(n=24), tokens=6) as (job,):  # few: they have the 5 s that tandemd gives them
                for pid in d.pids():
                    if pid != d.process.pid or signo != signal.SIGHUP:
                        os.kill(pid, signo)
                if signo == signal.SIGHUP:
                    d.process.send_signal(signal.SIGTERM)
                wait_for(lambda: ": ending; " in d.log(), "tandemd has heard the signal")
            result = job.wait()
            equal((result.reason, len(result.ids)), ("DONE_LENGTH", 24), "the job's end")
            equal(d.wait_end(), None, "the daemon's end")
            check(") lost: " not in d.log() and "restart" not in d.log(), "the log", d.log())


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
