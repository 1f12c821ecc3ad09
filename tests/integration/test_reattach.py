"""The daemon is killed, or told to end, and started again while jobs run over libtandem and HTTP: they are sent to the
next one with the tokens that they have. Each ends with the tokens of an undisturbed run, and nobody reconnects by
hand."""
import contextlib
import functools
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403
from lives import PATIENT, Cli, Held, end, leave  # noqa: E402

TOOL = json.dumps([{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 400}}, "required": ["city"]}}}])
N = 400  # tokens: a second or so, eight jobs beside each other


class Http:
    """A stream of events."""

    def __init__(self, g, path, body):
        self.g, self.path, self.body = g, path, dict(body, stream=True, logprobs=1)
        self.events, self.error = [], None
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        c = http.client.HTTPConnection("127.0.0.1", self.g.port, timeout=PATIENCE * 3)
        try:
            c.request("POST", self.path, json.dumps(self.body), {"Content-Type": "application/json"})
            r = c.getresponse()
            while line := r.readline():
                if line.startswith(b"data: {"):
                    self.events.append(json.loads(line[6:]))
        except (OSError, http.client.HTTPException) as e:
            self.error = e
        finally:
            c.close()

    def n(self):
        return len(self.events)

    def runs(self):
        return self.reader.is_alive()

    def wait(self):
        self.reader.join()

    def told(self):
        self.reader.join()
        check(not self.error and not any("error" in e for e in self.events), f"{self.path}: it ended well", self.error,
              self.events[-1:])
        choices = [e["choices"][0] for e in self.events if e.get("choices")]
        return ("".join(c.get("text", "") for c in choices), [c.get("logprobs") for c in choices],
                [c["finish_reason"] for c in choices if c.get("finish_reason")])

    def recovered(self):
        return False  # nothing tells


@functools.cache
def requests():
    """Whatever a job's next token depends on. Made once: the files stay open for as long as this process runs."""
    grammar = kept_file('root ::= ("a" | "é" | "字" | " "){300,400}', ".gbnf")
    tools = kept_file(TOOL, ".json")
    raw = ["-m", "tale", "--raw", "-n", str(N)]
    return {"greedy": [*raw, "--temp", "0", PROMPT],
            "sampled": [*raw, "--seed", "3", "--repeat-penalty", "1.2", PROMPT],
            "stop": [*raw, "--seed", "5", "--stop", "no text says this", "--frequency-penalty", "0.5", "Two kings"],
            "grammar": ["-m", "tale", "-n", str(N), "--grammar", grammar, "--temp", "1.3", "--seed", "4", "x"],
            "tools": ["-m", "npu", "--chat", "--tools", tools, "--tool-choice", "required", "--temp", "1.2", "--seed",
                      "13", "-n", "200", "hi"],
            "thoughts": ["-m", "npu", "--chat", "--think", "on", "--think-budget", "90", "--temp", "1.8",
                         "--seed", "9", "-n", "200", "hi"]}


def begin(d, g, names):
    made = {}
    for name in names:
        if name.startswith("/"):
            made[name] = Http(g, name, {"model": "tale", "prompt": PROMPT, "max_tokens": N, "seed": 7})
        else:
            made[name] = Cli(d, *requests()[name])
    return made


@contextlib.contextmanager
def models():
    """Tale, and a random one that goes by the name that requests() has."""
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder:
        renamed = os.path.join(folder, "npu.gguf")
        os.symlink(make_model("npu", "q8_0", arch="qwen3", chat="qwen3-thinking"), renamed)
        yield (TALE, renamed)


def n_descriptors():
    return len(os.listdir("/proc/self/fd"))


def survive(daemon, how, names, rounds=1, seed=1):
    """A round counts when jobs were in their midst, which those that have said all are not."""
    rng = random.Random(seed)
    with models() as files, daemon(models=files, env={"TANDEM_REATTACH": PATIENT}, hang_ms=STANDING_MS) as d, \
            Gateway(d) as g:
        want = {name: r.told() for name, r in begin(d, g, names).items()}
        n, n_open = 0, n_descriptors()
        for attempt in range(20 * rounds):
            least, way = rng.randrange(1, 100), rng.choice(how)
            d.wait_ready()
            with d.standing() as workers:
                running = begin(d, g, names)
                run_in_slices(workers, lambda: all(r.n() >= least or not r.runs() for r in running.values()), "tokens")
                way(d, workers)
            d.start()
            for name, r in running.items():
                equal(r.told(), want[name], f"{name}, attempt {attempt}")
            d.expect_exit = 0
            n += any(r.recovered() for r in running.values())
            if n == rounds:
                break
        equal(n, rounds, "times that jobs were in their midst")
        check(n_descriptors() <= n_open, "descriptors that rounds leave open here", n_descriptors(), n_open)


def caught(d, begin, n_tokens):
    """Kills the daemon while the jobs that begin() makes are in their midst. They have many tokens to go."""
    for _ in range(20):
        d.wait_ready()
        with d.standing() as workers:
            running = begin()
            run_in_slices(workers, lambda: all(r.n() >= n_tokens or not r.runs() for r in running), "tokens")
            if len(d.jobs()) == len(running):
                d.killed_at = time.monotonic()
                d.kill()
                return running
        for r in running:  # one had ended before it was looked at
            r.wait()
    raise AssertionError("the jobs were never in their midst")


def killed_now(d, workers):
    d.kill()


EIGHT = ("greedy", "sampled", "stop", "grammar", "tools", "thoughts", "/v1/completions", "/v1/completions?2")


@test
def killed():
    survive(Daemon, [killed_now], EIGHT)


@test
def killed_behind_a_held_socket():
    survive(Held, [killed_now], ("sampled", "/v1/completions"))


@test
def ended():
    """One signal is enough: the socket stays, and each client takes its job to the next daemon."""
    survive(Held, [leave], EIGHT)


@test
def ended_and_bound_anew():
    survive(Daemon, [end], ("greedy", "/v1/completions"))


def again_and_again():
    survive(Held, [killed_now, leave], EIGHT, rounds=times(1, 100), seed=int(time.time()))


if FULL:
    test(again_and_again)


@test
def reads_and_does_not_draw():
    """What was drawn is read by the next daemon."""
    with Daemon(hang_ms=STANDING_MS) as d:
        cli, = caught(d, lambda: [Cli(d, "--raw", "-n", "1500", "--seed", "2", PROMPT)], 500)
        n = cli.n()
        d.start()
        equal(len(cli.told()[0]), 1500, "tokens")
        drawn = d.status()["tokens_generated"]
        check(drawn <= 1500 - n + 2, "the next daemon draws the rest, and two that are compared", drawn, n)


@test
def not_wanted():
    """Off, or no daemon comes: the error that it always was, by its name and within the time."""
    with Daemon(hang_ms=STANDING_MS) as d:
        for seconds in ("0", "2"):
            cli, = caught(d, lambda: [Cli(d, "-n", "4000", "--raw", "x", TANDEM_REATTACH=seconds)], 3)
            equal(cli.wait(), 1, "exit status")
            took = cli.times[-1] - d.killed_at
            equal(cli.error(), "daemon-lost", cli.lines[-1])
            check("tokens: tandemd at" in cli.stderr, "what it says", cli.stderr)
            if seconds == "2":
                check(took > 1, "it has waited", took)
            d.start()


def daemon_with(d, args=(), models=None):
    """The next one."""
    d.args, d.models = list(args), list(models or d.models)
    d.start()


@test
def answered_by_the_dead():
    """The kernel ends a killed process's rings behind its end, so that its socket still takes connections. Here this
    test keeps the socket of a process that has died."""
    with Daemon() as d:
        end(d)
        here, there = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
                s.bind(d.socket)
                s.listen(8)
                socket.send_fds(there, [b"x"], [s.fileno()])
            os._exit(0)
        kept = socket.recv_fds(here, 1, 1)[1][0]
        os.waitpid(pid, 0)
        d.wait = False  # who asks too soon waits at the kept socket
        d.start()
        wait_for(lambda: d.process.poll() is not None or d.log().count("serves its user") == 2, "the next daemon")
        check(d.process.poll() is None, "the next daemon has left", d.log()[-200:])
        equal(len(d.generate(n=3).ids), 3, "tokens")
        os.close(kept)
        here.close()
        there.close()


@test
def another_model():
    """A file under the same name is another one: no token of it comes behind those of the first."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "it.gguf")
        shutil.copy(make_model("tiny", seed=1), path)
        with Daemon(models=(path,), hang_ms=STANDING_MS) as d:
            cli, = caught(d, lambda: [Cli(d, "--raw", "-n", "4000", "--seed", "2", "x")], 5)
            shutil.copy(make_model("tiny", seed=2), path + ".new")
            os.rename(path + ".new", path)
            d.start()
            equal(cli.wait(), 1, "exit status")
            equal(cli.error(), "model-changed", cli.lines[-1])


@test
def another_arithmetic():
    other = config("[engine]\nkv-type = f32\n")
    with Daemon(hang_ms=STANDING_MS) as d:
        strict, lax = caught(d, lambda: [Cli(d, "--raw", "-n", "1500", "--seed", "2", *more, PROMPT)
                                         for more in ([], ["--may-degrade"])], 5)
        daemon_with(d, other)
        equal((strict.wait(), strict.error()), (1, "unsupported"), strict.lines[-1])
        check("drawn-numerics" in strict.stderr, "what it says", strict.stderr)
        equal(lax.wait(), 0, lax.stderr)
        equal((lax.lines[-1]["degraded"], len(lax.lines[-1]["ids"])), (True, 1500), "degraded")


@test
def no_room_yet():
    """The next daemon takes one job at a time: the others are sent until it takes them."""
    with Daemon(hang_ms=STANDING_MS) as d:
        clis = caught(d, lambda: [Cli(d, "--raw", "-n", "800", "--seed", str(i), PROMPT) for i in range(3)], 5)
        daemon_with(d, config("[daemon]\nmax-jobs = 1\n"))
        equal([len(c.told()[0]) for c in clis], [800] * 3, "tokens")


@test
def scores_and_vectors():
    """They begin anew. Their workers stand still until they are killed, so the first daemon answers nothing."""
    vectors = make_model("a", "q8_0", arch="gemma-embedding", seed=1)
    text = kept_file("Once upon a time there was a king. " * 90, ".txt")
    with Daemon(models=(TALE, vectors), hang_ms=STANDING_MS) as d:
        for command in (("score", "-m", "tale", "--top", "2", "--text", text),
                        ("embed", "-m", os.path.basename(vectors)[:-len(".gguf")], PROMPT)):
            want = Cli(d, command=command)
            equal(want.wait(), 0, want.stderr)
            for worker in ("npu", "gpu"):
                d.signal_worker(worker, signal.SIGSTOP)
            again = Cli(d, command=command)
            wait_for(d.jobs, "the job")
            d.kill()
            d.start()
            equal((again.wait(), again.lines), (0, want.lines), again.stderr)


@test
def own_socket_before_peers():
    """A gateway with peers goes on at its own daemon where a service manager holds the socket, and at a peer where
    nobody listens."""
    with Daemon(models=(TALE,)) as other, Gateway(other) as peer:
        for daemon, handoffs in ((Held, 0), (Daemon, 1)):
            path = kept_file(f"http://127.0.0.1:{peer.port}\n", ".peers")
            os.chmod(path, 0o600)
            with daemon(models=(TALE,), env={"TANDEM_REATTACH": "3600"}, hang_ms=STANDING_MS) as d, \
                    Gateway(d, "--peers", path) as g:
                body = {"model": "tale", "prompt": PROMPT, "max_tokens": 1000, "seed": 7}
                want = Http(g, "/v1/completions", body).told()
                again, = caught(d, lambda: [Http(g, "/v1/completions", body)], 5)
                if not handoffs:
                    d.start()
                equal(again.told(), want, "the stream")
                status, _, metrics = g.request("GET", "/metrics")
                check(f"tandem_http_handoffs_total {handoffs}\n".encode() in metrics, f"{handoffs} handoffs",
                      [line for line in metrics.splitlines() if b"handoffs" in line])


main()
