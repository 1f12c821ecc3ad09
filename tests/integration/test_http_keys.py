"""Each key of tandem-http is a user of its own for tandemd: what its owner asks for is seen, cancelled and counted as
that one's alone, and its prompts are cached for it alone. Only the gateway's user may say for whom it speaks."""
import contextlib
import os
import pwd
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from attacks import as_user, config, system_daemon  # noqa: E402
from http_test import *  # noqa: E402,F403
from tandem_wire import Refused  # noqa: E402

KEYS = "alice sk-alice-1\nbob sk-bob-2\nalice sk-alice-3\nsk-nameless-4\nsk-nameless-5\n"
ALICE, BOB, ALICE_TOO, NAMELESS, NAMELESS_TOO = [line.split()[-1] for line in KEYS.splitlines()]
NOBODY = pwd.getpwnam("nobody").pw_uid
LONG = " ".join(["Once upon a time there was a king."] * 20)  # more than two pages of the cache


def key_file(d, text=KEYS, mode=0o600, name="keys"):
    path = os.path.join(d.dir, name)
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as f:
        f.write(text)
    os.chmod(path, mode)
    return path


def ask(g, key, want=200, prompt=PROMPT, n=2, **more):
    body = {"model": "tale", "prompt": prompt, "max_tokens": n, "temperature": 0, **more}
    status, _, data = g.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {key}"})
    equal(status, want, f"{key}: {data[:400]}")
    return json.loads(data)


def cached(g, key):
    """Of the long prompt, the tokens that were not read again."""
    return ask(g, key, prompt=LONG)["usage"]["prompt_tokens_details"]["cached_tokens"]


class Stream:
    """A request that lasts until it is closed: the slow model, and no token that ends a text."""

    def __init__(self, g, model, key):
        body = json.dumps({"model": model, "prompt": PROMPT, "max_tokens": 3000, "stream": True,
                           "logit_bias": {"1": -100, "106": -100}})
        self.data = b""
        self.socket = g.connect()
        self.socket.sendall((f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
                             f"Content-Length: {len(body)}\r\n\r\n{body}").encode())

    def ended(self):
        self.socket.setblocking(False)
        try:
            while piece := self.socket.recv(65536):
                self.data += piece
        except BlockingIOError:
            pass
        return b"data: [DONE]" in self.data or b'data: {"error"' in self.data  # no text of the model has these

    def close(self):
        self.socket.close()


def jobs_of(d, label):
    with d.wire(speaks_for=label) as w:
        return w.call("jobs", {})["jobs"]


def refused(code, call, what):
    """Calls it; the message of the daemon's refusal."""
    try:
        got = call()
    except Refused as e:
        equal(e.code, code, f"{what}: {e.message}")
        return e.message
    raise AssertionError(f"{what}: not refused but {got}")


def greet(d, label):
    with d.wire(speaks_for=label) as w:
        return w.hello["speaks_for"]


@test
def cached_prompts():
    """What one owner has asked is new to another; a name is one owner, whatever its key and through which gateway."""
    with Daemon() as d:  # one plan for all: pages of one are no use to another
        path = key_file(d)
        with Gateway(d, "--api-key-file", path) as g:
            equal(cached(g, ALICE), 0, "alice's first")
            hit = cached(g, ALICE)
            check(hit >= 64, "alice's second", hit)
            equal(cached(g, BOB), 0, "bob's first is as slow as if alice were not there")
            equal(cached(g, BOB), hit, "bob's second")
            equal(cached(g, ALICE_TOO), hit, "another key of alice's")
            equal(cached(g, NAMELESS), 0, "a key without a name")
            equal(cached(g, NAMELESS), hit, "again")
            equal(cached(g, NAMELESS_TOO), 0, "another one without a name")
        with Gateway(d) as g:
            equal(cached(g, "anything"), 0, "the gateway's own user")
        # two lines less: no key may become another's heir
        path = key_file(d, KEYS.replace(f"{NAMELESS}\n", "").replace(f"alice {ALICE}\n", ""))
        with Gateway(d, "--api-key-file", path) as g:
            equal(cached(g, ALICE_TOO), hit, "alice's after a restart of the gateway")
            equal(cached(g, NAMELESS_TOO), 0, "one without a name is new after a restart")
            ask(g, ALICE, 401)


@test
def jobs():
    """What each may see and cancel, the cap of each, and turns: one key's long jobs leave another its places."""
    conf = config("[daemon]\nmax-jobs-per-user = 6\n[engine]\nmax-sequences = 4\n")
    with contextlib.ExitStack() as stack:
        d = stack.enter_context(Daemon([slow_model()], placement=None, args=conf))
        slow = d.call("models")["models"][0]["name"]
        g = stack.enter_context(Gateway(d, "--api-key-file", key_file(d)))
        ask(g, BOB, model=slow)  # loads it
        streams = [Stream(g, slow, ALICE) for _ in range(6)]
        for s in streams:
            stack.callback(s.close)
        wait_for(lambda: len(jobs_of(d, "key:alice")) == 6, "alice's jobs")

        for label in ("", "key:alice"):
            equal([j["label"] for j in jobs_of(d, label)], ["key:alice"] * 6, f"{label or 'the user'} sees whose")
        for label in ("key:bob", "key:carol", "alice"):
            equal(jobs_of(d, label), [], f"{label} sees none")
        equal([j["label"] for j in d.cli_json("jobs", "--json")[0]["jobs"]], ["key:alice"] * 6, "tandem jobs --json")
        check(b"/key:alice" in d.cli("jobs", check_exit=0).stdout, "tandem jobs")

        error = ask(g, ALICE_TOO, 429, model=slow)["error"]
        check("key:alice" in error["message"] and "max-jobs-per-user" in error["message"], "alice has her share", error)
        ask(g, BOB, model=slow)  # of one user, it would wait until some of the 3000 tokens are done
        equal(len(jobs_of(d, "key:alice")), 6, "alice's, when bob's short job is done")

        first, second = [j["job"] for j in jobs_of(d, "key:alice")][:2]
        with d.wire(speaks_for="key:bob") as w:
            for kind, values, code in (("cancel", {"job": first}, "no-job"), ("unload", {"name": slow}, "denied"),
                                       ("restart", {"worker": "gpu"}, "denied"),
                                       ("trace", {"duration_ms": 10}, "denied")):
                refused(code, lambda: w.call(kind, values), f"bob's {kind}")
        status, _, data = g.request("POST", "/api/generate", {"model": slow, "keep_alive": 0},
                                    {"Authorization": f"Bearer {BOB}"})
        equal(status, 403, f"no key's owner may unload: {data}")
        equal(len(jobs_of(d, "key:alice")), 6, "all go on")
        with d.wire(speaks_for="key:alice") as w:
            w.call("cancel", {"job": first})
        d.call("cancel", {"job": second})  # the user of both, without a label
        wait_for(lambda: len(jobs_of(d, "key:alice")) == 4, "two are cancelled")
        wait_for(lambda: sum(s.ended() for s in streams) == 2, "and their streams have ended")


@test
def passed_files():
    """The name that one gave to a file is not shown to another."""
    with Daemon(placement=None) as d:
        fd = os.open(SPROUT, os.O_RDONLY)
        with d.wire(speaks_for="key:alice") as w:
            w.call("tokenize", {"model": {"name": "secret", "from_fd": True}, "text": b"x"}, fd=fd)
            os.close(fd)
            check("secret" in str(w.call("status", {})), "alice's own")
        for label, sees in (("key:bob", False), ("", True)):
            with d.wire(speaks_for=label) as w:
                equal("secret" in str(w.call("models", {})) + str(w.call("status", {})), sees, label or "the user")


@test
def labels():
    """A connection says once, at first, for whom it speaks. Labels have a form, and a bound in number."""
    with Daemon(placement=None) as d:
        with d.wire(speaks_for="key:a") as w:
            equal(w.hello["speaks_for"], "key:a", "greeting")
            for label in ("key:a", "key:b"):
                again = {"protocol": 1, "client": "test", "speaks_for": label}
                check("first request" in refused("bad-request", lambda: w.call("hello", again), "again"), "again")
        with d.wire() as w:
            refused("bad-request", lambda: w.call("hello", again), "after another request")
        for label in ("x" * 81, "a b", "a\n", "\u00e4", "\x7f"):
            refused("bad-request", lambda: greet(d, label), repr(label))
        for n, known in ((100, True), (600, False)):
            with Gateway(d, "--api-key-file", key_file(d)) as g:
                ask(g, ALICE, prompt=LONG)
                check(cached(g, ALICE) > 0, "alice is known")
            for i in range(n):
                equal(greet(d, f"hostile-{i}"), f"hostile-{i}", "the oldest makes room")
            with Gateway(d, "--api-key-file", key_file(d)) as g:
                equal(cached(g, ALICE) > 0, known, f"alice's prompt after {n} other labels")
        equal(jobs_of(d, "x" * 80), [], "the daemon serves")


@test
def who_may():
    """Of the system's daemon only the gateway's user speaks for others: not root, and no other user."""
    for user in (NOBODY, "nobody"):
        with system_daemon(args=config(f"[daemon]\ngateway-user = {user}\n"), placement=None) as d:
            with as_user(NOBODY):
                wait_for(lambda: is_known(d), "the gateway's user is known")
                equal(greet(d, "key:alice"), "key:alice", "the gateway's user")
            for uid in (0, NOBODY - 1):
                with as_user(uid):
                    message = refused("denied", lambda: greet(d, "key:alice"), f"user {uid}")
                    check("gateway-user" in message, "what to do", message)
            with Gateway(d, "--api-key-file", key_file(d)) as g:  # as root
                error = ask(g, ALICE, 403)["error"]
                check(error["code"] == "denied" and "may not speak for others" in error["message"], "a gateway", error)
                check("requests with keys are refused" in g.log(), "and it says so", g.log())
                equal(g.get("/health"), {"status": "ok"}, "without a key")
            with Gateway(d) as g:
                ask(g, "anything")
    with system_daemon(args=config("[daemon]\ngateway-user = no-such-user\n"), placement=None) as d:
        wait_for(lambda: "there is no user no-such-user" in d.log(), "the log")
        refused("denied", lambda: greet(d, "key:alice"), "no user")


def is_known(d):
    try:
        return greet(d, "key:x")
    except Refused as e:
        equal(e.code, "busy", "while the name is looked up")
        return False


@test
def key_files():
    with Daemon(placement=None) as d:
        def start(path):
            return subprocess.run([os.path.join(BIN, "tandem-http"), "--socket", d.socket, "--listen", "127.0.0.1:0",
                                   "--api-key-file", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=60 * SLOW)
        for mode in (0o644, 0o640, 0o604, 0o620, 0o611):
            r = start(key_file(d, mode=mode))
            check(r.returncode == 1 and f"(mode {mode:04o})" in r.stdout and "chmod 600" in r.stdout, oct(mode),
                  r.stdout)
        for text, why in (("alice sk-alice-1\nbob sk-alice-1\n", "keys:2: this key stands in the file twice"),
                          ("x" * 64 + " sk-alice-1\n", "at most 63"), ("\u00e4 sk-alice-1\n", "printing ASCII"),
                          ("a" + " " * 1100 + "sk-alice-1\n", "too long"),
                          ("me sk-test\n", "keys:1: a key has 8 to 255 bytes, this one has 7"),
                          ("b" * 256, "a key has 8 to 255 bytes, this one has 256"),
                          ("a b sk-alice-1\n", "KEY or NAME KEY"), ("# none\n", "holds no key")):
            r = start(key_file(d, text))
            check(r.returncode == 2 and why in r.stdout, text[:40], r.stdout)
        r = start(d.dir)
        check(r.returncode == 1 and "no regular file" in r.stdout, "a folder", r.stdout)
        if os.geteuid() == 0:
            path = key_file(d)
            os.chown(path, NOBODY, -1)
            r = start(path)
            check(r.returncode == 1 and f"belongs to user {NOBODY}" in r.stdout, "another's file", r.stdout)


if __name__ == "__main__":
    main()
