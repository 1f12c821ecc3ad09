"""tandem-http and those who mean it ill: each gets the status that is due, the others are served meanwhile, and memory
stays flat."""
import contextlib
import os
import random
import resource
import select
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403

BODY = json.dumps({"model": "tale", "prompt": PROMPT, "max_tokens": 2, "temperature": 0}).encode()
PATHS = ["/", "/health", "/metrics", "/v1/models", "/v1/models/tale", "/api/tags", "/nope"]


def post(body, *lines, path="/v1/completions", **more):
    return head("POST", path, f"Content-Length: {len(body)}", *lines, **more) + body


def ok(g):
    equal(len(g.post("/v1/completions", json.loads(BODY))["choices"]), 1, "others are served")


def key_file(d):
    path = os.path.join(d.dir, "keys")
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
        f.write("alice sk-alice-1\nbob sk-bob-12\n")
    return path


@test
def smuggling():
    """The second request, hidden in what one side takes for a body, is never answered."""
    hidden = head("GET", "/v1/models")
    chunked = b"0\r\n\r\n"
    with Daemon(placement=None) as d, Gateway(d) as g:
        for lines, body in (
                (("Content-Length: 5", "Content-Length: 6"), b"hello" + hidden),
                (("Content-Length: 5", "Content-Length: 5"), b"hello" + hidden),
                (("Content-Length: 5", "Transfer-Encoding: chunked"), chunked + hidden),
                (("Transfer-Encoding: chunked", "Content-Length: 5"), chunked + hidden),
                (("Transfer-Encoding: chunked", "Transfer-Encoding: identity"), chunked + hidden),
                (("Transfer-Encoding: gzip, chunked",), chunked + hidden),
                (("Transfer-Encoding: xchunked",), chunked + hidden),
                (("Content-Length: +5",), b"hello" + hidden),
                (("Content-Length: 5, 5",), b"hello" + hidden),
                (("Content-Length: -1",), hidden),
                (("Content-Length: 0x5",), b"hello" + hidden),
                (("Content-Length: 99999999999999999999999",), hidden),
                # Framing that a proxy may read otherwise; what stands behind is as long as they say.
                ((f"Content-Length : {len(hidden)}",), hidden),
                ((f"Content-Length\t: {len(hidden)}",), hidden),
                ((f"Content-Length:\r\n {len(hidden)}",), hidden),
                ((f"Content-Length: {len(hidden)}\r\n 0",), hidden),
                ((f"Content-Length: 0\0{len(hidden)}",), hidden),
                ((f"X-A:b\r\n\tc\r\nContent-Length: 0\0{len(hidden)}", "X-B:c"), hidden),
                (("Content-Length: 0", "X-A: b\0c"), hidden),
                (("Transfer-Encoding: chunked\0x",), chunked + hidden),
                (("Transfer-Encoding : chunked",), chunked + hidden),
                (("Host: localhost", "Content-Length: 0"), hidden)):
            data = g.raw(head("POST", "/v1/completions", *lines) + body)
            # libmicrohttpd 0.9.75 writes the head of its own answers twice. Newer ones answer 501 to a transfer coding
            # that they do not know, as RFC 9112 has it (6.1).
            unknown = any("gzip" in line or "xchunked" in line for line in lines)
            check(set(statuses(data)) in ({400}, {413}, {501} if unknown else {400}) and b"list" not in data,
                  f"answers to {lines}", data[:300])
        equal(statuses(g.raw(head("POST", "/v1/completions", "Transfer-Encoding: chunked",
                                  version="HTTP/1.0") + chunked)), [400], "HTTP/1.0 has no chunks")
        ok(g)


@test
def targets_and_encodings():
    """A target in absolute form, as proxies get it; of the server itself; and bodies that are packed."""
    with Daemon(placement=None) as d, Gateway(d) as g:
        for host in (f"127.0.0.1:{g.port}", "localhost", "LOCALHOST:80"):
            answer = g.raw(head("GET", f"http://{host}/health", "Connection: close", host="localhost"))
            equal((statuses(answer), answer[-15:]), ([200], b'{"status":"ok"}'), f"by way of a proxy: {host}")
        equal(statuses(g.raw(head("GET", "HTTP://localhost", "Connection: close"))), [200], "without a path")
        # The target's host goes before the header's (RFC 9112, 3.2.2): the guard looks at it.
        answer = g.raw(head("GET", "http://evil.example/health", "Connection: close"))
        check(statuses(answer) == [403] and b"host_not_allowed" in answer, "another host", answer)
        equal(statuses(g.raw(head("GET", "http://localhost/health", "Connection: close", host="evil.example"))), [200],
              "the header does not count then")
        for target in ("ftp://localhost/health", "https://localhost/health", "http:///health"):
            check(statuses(g.raw(head("GET", target, "Connection: close"))) in ([400], [403], [404]), target)
        answer = g.raw(head("OPTIONS", "*", "Connection: close"))
        check(statuses(answer) == [200] and b"Allow: GET, HEAD, POST" in answer, "of the server", answer)
        equal(statuses(g.raw(head("GET", "*", "Connection: close"))), [404], "only OPTIONS has it")
        packed = b"\x1f\x8b\x08\0\0\0\0\0\0\x03"
        for path in ("/v1/completions", "/v1/messages", "/api/chat", "/tandem/generate"):
            status, headers, data = g.request("POST", path, packed, {"Content-Encoding": "gzip"})
            check(status == 415 and b"gzip" in data and headers["accept-encoding"] == "identity", path, status, data)
        equal(g.request("POST", "/v1/completions", BODY, {"Content-Encoding": "identity"})[0], 200, "not packed")


@test
def own_address():
    """Listening on all addresses: the one that a client used is a name for us, others are not."""
    with Daemon(placement=None) as d, Gateway(d, "--without-keys", listen="0.0.0.0:0") as g:
        own = own_ip()
        for to, host, want in ((own, own, 200), ("127.0.0.1", "127.0.0.1", 200), (own, "198.51.100.7", 403),
                               (own, "0.0.0.0", 403), (own, "evil.example", 403)):
            with socket.create_connection((to, g.port), timeout=PATIENCE) as s:
                s.sendall(head("GET", "/health", "Connection: close", host=host))
                equal(statuses(read_all(s)), [want], f"{host} at {to}")
        if own != "127.0.0.1":
            equal(statuses(g.raw(head("GET", "/health", "Connection: close", host=own), timeout=PATIENCE)), [403],
                  "the other address on a loopback connection")


@test
def hosts_and_origins():
    with Daemon(placement=None) as d, Gateway(d, "--host", "box.example", "--host", "*.lan.example",
                                              "--origin", "app://obsidian.md", "--origin", "tauri://*") as g:
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "lan.example", "10.0.0.1",
                     "0.0.0.0",
                     "[::]", "evil.example:11434", "xlan.example", "local", ".local", "evil.local.example",
                     "localx", "internal.example"):
            for method in ("GET", "POST", "HEAD", "OPTIONS", "DELETE", "PUT"):
                for path in PATHS + ["/v1/completions"]:
                    data = g.raw(head(method, path, "Connection: close", "Content-Length: 0", host=host))
                    equal(statuses(data), [403], f"{method} {path} of {host}")
        for host in ("", "local host", "a@localhost", "localhost:x", "localhost/", "[::1"):
            check(statuses(g.raw(head("GET", "/health", "Connection: close", host=host)))[0] in (400, 403), host)
        equal(statuses(g.raw(head("GET", "/health", "Connection: close", host=None)))[:1], [400],
              "no Host")
        equal(statuses(g.raw(head("GET", "/health", host=None, version="HTTP/1.0"))), [400],
              "nor in 1.0")
        for host in ("localhost", "LOCALHOST:80", "localhost.", "127.0.0.1", "127.1.2.3:5", "[::1]", "[::1]:8080",
                     "box.example", "nas.local", "Gateway.INTERNAL:11434", socket.gethostname(),
                     "Box.Example:1", "a.lan.example"):
            equal(statuses(g.raw(head("GET", "/health", "Connection: close", host=host))), [200],
                  host)
        for origin in ("http://evil.example", "https://localhost.evil.example", "null", "file://", "app://other",
                       "http://",
                       "http://127.0.0.1@evil.example", "chrome-extension://x", "http://nas.local",
                       "https://gateway.internal"):
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("OPTIONS", "/v1/completions"),
                                 ("POST", "/api/pull")):
                status, headers, data = g.request(method, path, BODY if method == "POST" else None, {"Origin": origin})
                equal(status, 403, f"{method} {path} from {origin}")
                check("access-control-allow-origin" not in headers, "no CORS for it", headers)
        equal(d.status().get("jobs_done", 0), 0, "nothing ran for any of them")
        for origin in ("http://localhost:3000", "https://127.0.0.1", "http://[::1]:5", "app://obsidian.md",
                       "tauri://anything",
                       "http://box.example"):
            status, headers, data = g.request("POST", "/v1/completions", BODY, {"Origin": origin})
            equal((status, headers["access-control-allow-origin"], headers["vary"]), (200, origin, "Origin"), origin)
        wanted = "authorization, content-type, x-stainless-arch, x-stainless-os, x-stainless-retry-count"
        status, headers, data = g.request("OPTIONS", "/v1/chat/completions", None, {
            "Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": wanted})
        equal((status, headers["access-control-allow-headers"], headers["access-control-allow-methods"]),
              (204, wanted, "POST, OPTIONS"), "preflight")
        status, headers, _ = g.request("OPTIONS", "/v1/models")
        equal((status, headers["allow"]), (204, "GET, HEAD, OPTIONS"), "OPTIONS without an origin")
        ok(g)


@test
def bodies():
    with Daemon(placement=None) as d, Gateway(d) as g:
        def refused(body, why, code=None):
            got, _, data = g.request("POST", "/v1/completions", body)
            equal(got, 400, f"{why}: {data[:200]}")
            error = json.loads(data)["error"]
            check(code is None or error["code"] == code, f"{why}: the code", error)
            return error["message"]
        for body in (b"", b"{", b"[]", b"5", b"null", BODY + b"x", BODY[:-1], b"{\"a\":1,\"a\":2}", b"\xff\xfe{}",
                     b"{'a':1}",
                     b"{\"model\":\"\xc3\x28\"}", b"{\"model\":\"\\ud800\"}", b"{\"model\":\"a\\u0000b\"}",
                     b"{\"a\":NaN}",
                     b"{\"a\":1e400.5}", b"{\"a\":01}", b"\0" * 100, b"{}" * 2,
                     b"{\"a\":\"\x01\"}", b"{\"a\":" + b"[" * 65 + b"]" * 65 + b"}", b"{\"a\":" + b"[" * 100000,
                     b"{\"a\":[" + b"1," * 300001 + b"1]}", b"{\"\xed\xa0\x80\":1}"):
            refused(body, f"body {body[:40]}", "invalid_json")
        check("deeper" in refused(b"{\"a\":" + b"[" * 65 + b"]" * 65 + b"}", "depth"), "says so")
        check("values" in refused(b"{\"a\":[" + b"1," * 300001 + b"1]}", "values"), "says so")
        for key, value in (
                ("seed", "1e30"), ("seed", "\"x\""), ("max_tokens", "-2"), ("max_tokens", "0"), ("max_tokens", "1.5"),
                ("max_tokens", "4294967297"), ("max_tokens", "9223372036854775807"), ("n", "1000000"),
                ("temperature", "-1"), ("temperature", "1e300"), ("top_p", "2"), ("stream", "1"), ("model", "[]")):
            refused(BODY[:-1] + f",\"{key}\":{value}}}".encode() if f'"{key}"'.encode() not in BODY else
                    re.sub(rb'"' + key.encode() + rb'": [^,}]+', f'"{key}": {value}'.encode(), BODY), f"{key} {value}")
        equal(g.request("POST", "/v1/completions", b"x" * (9 << 20))[0], 413, "9 MiB")
        watch = Stopwatch()
        for size in (9 << 20, 100 << 20, 1 << 60):
            data = g.raw(head("POST", "/v1/completions", f"Content-Length: {size}", "Expect: 100-continue"))
            equal(statuses(data), [413], "told before it is sent")
        equal(statuses(g.raw(head("POST", "/v1/completions", f"Content-Length: {1 << 60}"))), [413],
              "at once")
        check(watch.seconds() < 4 * SLOW, "without waiting", watch.seconds())
        chunks = b"".join(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n" for _ in range(9)) + b"0\r\n\r\n"
        with g.connect() as s:
            s.sendall(head("POST", "/v1/completions", "Transfer-Encoding: chunked", "Connection: close") + chunks)
            equal(statuses(read_all(s)), [413], "9 MiB in chunks")
        with g.connect() as s:
            s.sendall(head("POST", "/v1/completions", "Transfer-Encoding: chunked", "Connection: close") +
                      b"".join(b"%x\r\n" % 1 + BODY[i:i + 1] + b"\r\n" for i in range(len(BODY))) + b"0\r\n\r\n")
            equal(statuses(read_all(s)), [200], "a good body in chunks of one byte")
        for lines in (["X-A: " + "a" * 60000], [f"X-{i}: " + "a" * 100 for i in range(500)]):
            got = statuses(g.raw(head("GET", "/health", *lines)))
            check(got in ([431], [413], [400], []), "headers too large", got)
        equal(statuses(g.raw(head("GET", "/" + "a" * 60000)))[:1] or [414], [414], "a path too long")
        ok(g)


@test
def values():
    """A few bytes of JSON are many in memory. There is a limit to each kind of value, and what they take is charged to
    the key that sent them."""
    objects = b'{"model":"tale","prompt":"x","metadata":[' + b"{}," * 49000 + b"0]}"  # 150 KB, 12 MB in memory
    with FakeDaemon(None) as d:
        def ask(g, body, key="sk-alice-1"):
            s = g.connect()
            s.sendall(post(body, f"Authorization: Bearer {key}"))
            return s

        def answered(sockets):
            return select.select(sockets, [], [], 0)[0]
        with Gateway(d, "--api-key-file", key_file(d)) as g:
            g.key = "sk-alice-1"
            for kind, fits, more in (
                    ("arrays, objects and texts", b"[]," * 49000, b"[]," * 50001),
                    ("arrays, objects and texts", b'"",' * 49000, b'"",' * 50001),
                    ("members", b'{"a":1,"b":2,"c":3,"d":4},' * 9990, b'{"a":1,"b":2,"c":3,"d":4},' * 10001),
                    ("values", b"1," * 290000, b"1," * 300001)):
                for part, says in ((more, kind), (fits, "'prompt' is missing")):
                    status, _, data = g.request("POST", "/v1/completions", b'{"none":[' + part + b"0]}")
                    check(status == 400 and says in json.loads(data)["error"]["message"], says, status, data[:200])
            before = g.memory_kb()
            sockets = [ask(g, objects) for _ in range(24)]
            wait_for(lambda: len(d.asked) + len(answered(sockets)) == 24, "each is refused or with the daemon")
            refused = len(answered(sockets))
            check(SANITIZER or g.memory_kb() - before < 160 << 10, "memory of 24 requests", before, g.memory_kb())
            print(f"24 requests of {len(objects)} bytes: {g.memory_kb() - before} KiB, {refused} refused")
            check(4 <= 24 - refused <= 10, "so many have a share of memory", refused)
            with ask(g, objects) as s:
                answer = first_answer(s)
                equal(statuses(answer), [429], "one more of alice's")
                check(b"your share" in answer and b"retry-after-ms: 1000" in answer.lower(), "and says why", answer)
            n = len(d.asked)
            with ask(g, objects, "sk-bob-12"):
                wait_for(lambda: len(d.asked) == n + 1, "bob's is taken")
            for s in sockets:
                s.close()
            wait_for(lambda: SANITIZER or g.memory_kb() - before < 32 << 10, "memory goes back", 8)
            with ask(g, objects):
                wait_for(lambda: len(d.asked) == n + 2, "and alice's again")


@test
def many_choices():
    """Each choice sends the whole prompt to the daemon, and that is charged too."""
    body = json.dumps({"model": "tale", "prompt": "king " * 180000, "n": 16}).encode()  # 900 KB, 14 MB in all
    with FakeDaemon(None) as d, Gateway(d) as g, contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(g.connect()) for _ in range(12)]
        for s in sockets:
            s.sendall(post(body))
        ended = wait_for(lambda: len(select.select(sockets, [], [], 0)[0]) >= 3 and
                         select.select(sockets, [], [], 0)[0], "some are refused", 5)
        for s in ended:
            answer = first_answer(s)
            check(statuses(answer) == [429] and b"your share" in answer, "why", answer)


@test
def long_answers():
    """Log-probabilities of an answer that is not a stream are kept until its end: as text, and charged."""
    def tokens(n, piece):
        top = [{"id": i, "text": piece + b"%02d" % i, "logprob": -1.5 - i} for i in range(20)]
        return [{"text": b"ab", "logprob": -0.5, "top": top}] * n
    chat = ("/v1/chat/completions", {"model": "tale", "messages": [{"role": "user", "content": "x"}], "logprobs": True,
                                     "top_logprobs": 20, "max_tokens": 2000})
    raw = ("/v1/completions", dict(json.loads(BODY), logprobs=20, max_tokens=2000))
    for path, body in (chat, raw):
        with FakeDaemon(tokens(2000, b"a word")) as d, Gateway(d) as g:
            g.get("/api/version")
            before = g.memory_kb()
            choice = g.post(path, body)["choices"][0]
            print(f"{path}: 2000 tokens with 20 alternatives: {g.memory_peak_kb() - before} KiB")
            check(SANITIZER or g.memory_peak_kb() - before < 20 << 10, "memory", before, g.memory_peak_kb())
            logprobs = choice["logprobs"]
            if path == chat[0]:
                equal([len(logprobs["content"]), logprobs["content"][7]["top_logprobs"][3]],
                      [2000, {"token": "a word03", "logprob": -4.5, "bytes": list(b"a word03")}], "all of them")
            else:
                equal([len(logprobs[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")],
                      [2000] * 4, "all of them")
                equal([logprobs["text_offset"][3], logprobs["top_logprobs"][9]["a word19"]], [6, -20.5], "the columns")
        with FakeDaemon(tokens(400, b"a" * 16000)) as d, Gateway(d) as g:
            before = g.memory_kb()
            status, headers, data = g.request("POST", path, body)
            equal((status, headers["x-should-retry"]), (429, "false"), data[:200])
            check("your share" in json.loads(data)["error"]["message"], "and says why", data)
            check(SANITIZER or g.memory_peak_kb() - before < 256 << 10, "memory", before, g.memory_peak_kb())
            equal(g.get("/api/version")["version"] != "", True, "others are served")


LOAD = json.dumps({"model": "tale"}).encode()  # without a prompt: it loads


@test
def slow_questions():
    """What the daemon does for one key for long delays no other key's connects, questions and loads."""
    with FakeDaemon([{"text": b"Hm"}], deaf="key:alice") as d, Gateway(d, "--api-key-file", key_file(d)) as g:
        alice = []
        for what in [post(BODY, "Authorization: Bearer sk-alice-1"),
                     head("GET", "/v1/models", "Authorization: Bearer sk-alice-1"),
                     post(LOAD, "Authorization: Bearer sk-alice-1", path="/api/generate")] * 6:
            alice.append(g.connect())
            alice[-1].sendall(what)
        wait_for(lambda: d.heard >= 3, "alice's wait", 5)
        g.key = "sk-bob-12"
        watch = Stopwatch()
        g.post("/v1/completions", json.loads(BODY))
        g.get("/v1/models")
        g.post("/api/generate", json.loads(LOAD))
        check(watch.seconds() < 3 * SLOW, "bob's are answered at once", watch.seconds())
        equal(d.heard, 3, "one of alice's at a time of each kind")
        for s in alice:
            s.close()


@test
def half_requests():
    """A request that does not come whole in time is closed, even when a byte comes now and then."""
    with Daemon(placement=None) as d, Gateway(d, "--request-timeout", "2", "--idle-timeout", "3") as g:
        watch = Stopwatch()
        sockets = [g.connect() for _ in range(30)]
        parts = [head("GET", "/health")[:-2] + b"X-A: ", head("POST", "/v1/completions",
                                                              "Content-Length: 100") + b"{", b"", b"G",
                 head("POST", "/v1/completions", "Transfer-Encoding: chunked") + b"64\r\n{"]
        for i, s in enumerate(sockets):
            s.sendall(parts[i % len(parts)])
        open_ = set(range(30))
        while open_ and watch.seconds() < 12 * SLOW:
            time.sleep(0.3)
            for i in list(open_):
                try:
                    if parts[i % len(parts)]:
                        sockets[i].send(b"a")
                    sockets[i].settimeout(0.001)
                    if sockets[i].recv(100) == b"":
                        open_.discard(i)
                except socket.timeout:
                    pass
                except OSError:
                    open_.discard(i)
            # In one piece: between a head and its body this test may wait for a CPU longer than the gateway waits.
            equal(statuses(g.raw(post(BODY, "Connection: close"))), [200], "others are served")
        check(not open_, "all are closed", open_, watch.seconds())
        for s in sockets:
            s.close()


@test
def half_requests_make_room():
    """Those who send half of a request hold up nobody: the oldest of the greediest go first."""
    need_descriptors()
    with FakeDaemon(None) as d, Gateway(d, "--api-key-file", key_file(d)) as g, contextlib.ExitStack() as stack:
        def send(data):
            s = stack.enter_context(g.connect())
            s.sendall(data)
            return s
        half = post(BODY, "Authorization: Bearer sk-alice-1")[:-1]
        alice = [send(half) for _ in range(500)]
        bob = [send(post(BODY, "Authorization: Bearer sk-bob-12")[:-1]) for _ in range(10)]
        g.key = "sk-bob-12"
        g.get("/api/version")  # the gateway has come to what was sent before: it counts a second from there
        time.sleep(1.5 * SLOW)
        s = send(post(BODY, "Authorization: Bearer sk-alice-1"))  # the 501st of hers
        wait_for(lambda: len(d.asked) == 1, "a whole one runs")
        equal(alice[0].recv(100), b"", "the oldest half has made room")
        for other in alice[-2:] + bob + [s]:
            other.settimeout(0.05)
            try:
                check(False, "the others wait", other.recv(100))
            except socket.timeout:
                pass


@test
def descriptors_run_out():
    """With no descriptor left for a connection the gateway accepts again as soon as there are some; and the idle ones
    that took them make room."""
    with Daemon(placement=None) as d, Gateway(d) as g:
        old = resource.prlimit(g.process.pid, resource.RLIMIT_NOFILE)
        n = len(os.listdir(f"/proc/{g.process.pid}/fd")) + 8
        resource.prlimit(g.process.pid, resource.RLIMIT_NOFILE, (n, old[1]))
        crowd = [g.connect() for _ in range(40)]
        equal(g.request("GET", "/")[0], 200, "one more is served beside those that wait")
        time.sleep(1.5)
        resource.prlimit(g.process.pid, resource.RLIMIT_NOFILE, old)
        for s in crowd:
            s.close()
        ok(g)


@test
def pipelining():
    with Daemon(placement=None) as d, Gateway(d) as g:
        stream = json.dumps(dict(json.loads(BODY), stream=True)).encode()
        data = g.raw(post(BODY) + post(stream) + head("GET", "/nope") + head("GET", "/health", "Connection: close"))
        equal(statuses(data), [200, 200, 404, 200], "four answers in order")
        check(data.rstrip().endswith(b'{"status":"ok"}'), "the last is health's", data[-60:])
        equal(data.count(b"[DONE]"), 1, "one stream")
        # those whose answer is known early do not break what follows
        data = g.raw(post(BODY, path="/nope") + post(BODY, path="/api/pull") + post(BODY, "Connection: close"))
        equal(statuses(data), [404, 403, 200], "bodies of refused requests are skipped")


@test
def keys():
    with Daemon(placement=None) as d:
        path = os.path.join(d.dir, "keys")
        with open(path, "w") as f:
            f.write("# comment\n\nlaptop sk-laptop-1234\nsk-bare-5678\n")

        def start(*args, listen="127.0.0.1:0"):
            return subprocess.run([os.path.join(BIN, "tandem-http"), "--socket", d.socket, "--listen", listen, *args],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60 * SLOW)
        os.chmod(path, 0o644)
        r = start("--api-key-file", path)
        check(r.returncode == 1 and "chmod 600" in r.stdout, "a file that others can read", r.stdout)
        os.chmod(path, 0o600)
        for listen in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0"):
            r = start(listen=listen)
            check(r.returncode == 2 and "--api-key-file" in r.stdout, f"{listen} without keys", r.stdout)
        for args in (["--nonsense"], ["--listen", "x"], ["--listen", "localhost:99999"], ["x"]):
            equal(start(*args).returncode, 2, f"usage {args}")
        with Gateway(d, "--api-key-file", path) as g:
            r = start(listen=f"127.0.0.1:{g.port}")
            check(r.returncode == 1 and "is taken" in r.stdout, "a port that is taken", r.stdout)
            for headers in ({}, {"Authorization": "Bearer sk-nope"}, {"Authorization": "Bearer sk-laptop-123"},
                            {"Authorization": "Bearer sk-laptop-12345"}, {"x-api-key": ""},
                            {"Authorization": "Basic x"},
                            {"Authorization": "Bearer " + "x" * 5000}):
                for path_, kind in (("/v1/completions", "OpenAI"), ("/v1/messages", "Anthropic"), ("/api/chat",
                                                                                                   "Ollama")):
                    status, h, data = g.request("POST", path_, BODY, headers)
                    equal((status, h["www-authenticate"]), (401, "Bearer"), f"{path_} with {headers}")
                    error = json.loads(data)["error"]
                    if kind == "OpenAI":
                        equal(error["code"], "invalid_api_key", "code")
                    elif kind == "Anthropic":
                        equal(error["type"], "authentication_error", "type")
            for path_ in ("/v1/models", "/metrics", "/api/tags", "/tokenize"):
                equal(g.request("GET" if path_ != "/tokenize" else "POST", path_)[0], 401, path_)
            equal(g.request("GET", "/health")[0], 200, "health needs no key")
            for headers in ({"Authorization": "Bearer sk-laptop-1234"}, {"authorization": "bearer sk-bare-5678"},
                            {"x-api-key": "sk-laptop-1234"}):
                equal(g.request("POST", "/v1/completions", BODY, headers)[0], 200, f"{headers}")
        with Gateway(d) as g:
            equal(g.request("POST", "/v1/completions", BODY, {"Authorization": "Bearer anything"})[0], 200,
                  "without a file every key is accepted")


@test
def many_malformed():
    """Random bytes into good requests; the gateway stays as it was."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    r = random.Random(seed)
    good = [post(BODY, "Connection: close"), post(b'{"model":"tale"}', "Connection: close", path="/api/show"),
            head("GET", "/v1/models", "Connection: close"),
            post(json.dumps({"model": "tale", "max_tokens": 1, "messages": [{"role": "user",
                                                                             "content": "x"}]}).encode(),
                 "Connection: close", path="/v1/messages")]
    with Daemon(placement=None) as d, Gateway(d, "--request-timeout", "5") as g:
        def some(n):
            parallel([lambda seed=r.random(): mangle(random.Random(seed), n // 20) for _ in range(20)])

        def mangle(r, n):
            for _ in range(n):
                data = bytearray(r.choice(good))
                for _ in range(r.choice((1, 1, 2, 8))):
                    at = r.randrange(len(data))
                    kind = r.randrange(4)
                    if kind == 0:
                        data[at] = r.randrange(256)
                    elif kind == 1:
                        del data[at:at + r.randrange(1, 20)]
                    elif kind == 2:
                        data[at:at] = bytes(r.randrange(256) for _ in range(r.randrange(1, 20)))
                    else:
                        data[at:at] = data[r.randrange(len(data)):][:r.randrange(1, 50)]
                    if not data:
                        break
                with g.connect() as s:
                    with contextlib.suppress(OSError):  # it may be closed as soon as it is known to be wrong
                        s.sendall(bytes(data))
                        s.shutdown(socket.SHUT_WR)
                    if r.randrange(4):
                        got = statuses(read_all(s))
                        check(all(200 <= x < 506 for x in got), "statuses", got, bytes(data))
        some(times(200, 1000, 100))
        before = g.memory_kb()
        some(times(600, 9000, 200))
        check(SANITIZER or g.memory_kb() < before + 4096, "memory stays flat", before, g.memory_kb())
        ok(g)
        wait_for(lambda: not d.jobs(), "no job is left")


@test
def folders():
    """No answer tells a folder of this machine: not where a model or tandemd was looked for, nor whose file is bad."""
    def asked(want):
        hi = [{"role": "user", "content": "hi"}]
        bodies = [(path, dict(body, stream=stream, model=model, **more)) for path, body in (
            ("/v1/completions", {"prompt": "hi"}), ("/v1/chat/completions", {"messages": hi}),
            ("/v1/responses", {"input": "hi"}), ("/v1/messages", {"messages": hi, "max_tokens": 1}),
            ("/api/generate", {"prompt": "hi"}), ("/api/chat", {"messages": hi}), ("/tokenize", {"content": "hi"}))
            for stream in (False, True) for model, more in (
                ("tale", {"speculation": "draft", "draft": "nix"}), ("nix", {}), ("broken", {}))]
        answers = [(path, *g.request("POST", path, body)) for path, body in bodies]
        answers += [(path, *g.request("GET", path)) for path in PATHS + ["/props", "/api/ps", "/api/version"]]
        for path, status, headers, data in answers:
            text = str(headers) + data.decode()
            for part in (d.dir, TREE, "/models", "/socket", ".socket", "/var/", "/run/", "/home/", "/tmp/"):
                check(path == "/" or part not in text.replace("/v1/models", ""), f"{path}: {part}", text)
        for path, code in want:
            check(any(p == path and code in data.decode() for p, _, _, data in answers), f"{path}: {code}", answers)

    with Daemon(placement=None) as d, Gateway(d) as g:
        models = os.path.join(d.environment()["XDG_DATA_HOME"], "tandem", "models")
        os.makedirs(models)
        with open(os.path.join(models, "broken.gguf"), "wb") as f:
            f.write(b"GGUF\3\0\0\0" + bytes(100))
        asked([("/v1/completions", "draft: no model is named nix"), ("/v1/messages", "cannot use model broken.gguf"),
               ("/api/chat", "the model 'nix' does not exist"), ("/health", "ok")])
        equal(d.stop(), None, "the daemon leaves")
        asked([("/health", "no tandemd answers; start it"), ("/api/chat", "no tandemd answers"),
               ("/v1/models", "no tandemd answers"), ("/v1/messages", "no tandemd answers")])
        equal(g.log().count(d.socket), 1, "where it was looked for, in the log")
        d.start()
        ok(g)


@test
def idle_connections():
    with Daemon(placement=None) as d, Gateway(d) as g:
        ok(g)
        before = g.memory_kb()
        sockets = [g.connect() for _ in range(times(1000, 1000, 200))]
        ok(g) if len(sockets) < 1000 else None
        for s in sockets[:5] + sockets[-5:]:
            s.sendall(head("GET", "/health"))
            equal(statuses(s.recv(4096)), [200], "each is served")
        check(SANITIZER or g.memory_kb() - before < 50 * 1024, "memory of idle connections", before, g.memory_kb())
        print(f"{len(sockets)} idle connections: {g.memory_kb() - before} KiB")
        for s in sockets:
            s.close()
        time.sleep(0.2)
        ok(g)


def need_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 8192:
        raise Skip("needs 8192 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, hard))


@test
def many_requests():
    """One key has half of the requests that may be under way; another is served beside it."""
    need_descriptors()
    with FakeDaemon(None) as d, Gateway(d, "--api-key-file", key_file(d)) as g, contextlib.ExitStack() as stack:
        def ask(key):
            s = stack.enter_context(g.connect())
            s.sendall(post(BODY, f"Authorization: Bearer {key}"))
            return s
        for _ in range(500):
            ask("sk-alice-1")
        wait_for(lambda: len(d.asked) == 500, "alice's")
        answer = first_answer(ask("sk-alice-1"))
        check(statuses(answer) == [429] and b"500 requests of yours" in answer, "one more", answer)
        ask("sk-bob-12")
        wait_for(lambda: len(d.asked) == 501, "bob's")


@test
def crowds():
    """Connections of many addresses of the loopback are one network's. What waits for a client makes room for new ones,
    of the network that has most first; what runs goes on."""
    need_descriptors()
    own = own_ip()
    with FakeDaemon(None) as d, Gateway(d, "--without-keys", listen="0.0.0.0:0") as g, contextlib.ExitStack() as stack:
        def connect(to, source):
            s = stack.enter_context(socket.socket())
            s.settimeout(PATIENCE)
            s.bind((source, 0))
            s.connect((to, g.port))
            return s

        def served(s):
            s.sendall(head("GET", "/api/version"))
            equal(statuses(s.recv(4096)), [200], "it is served")

        def closed(sockets):
            poll = select.poll()  # which takes any number of them
            for s in sockets:
                poll.register(s, select.POLLIN)
            fds = {fd for fd, _ in poll.poll(0)}
            return [s for s in sockets if s.fileno() in fds]
        running = [connect("127.0.0.1", "127.0.0.1"), connect(own, own)]
        for s in running:
            s.sendall(post(BODY))
        wait_for(lambda: len(d.asked) == 2, "both run")
        crowd = [connect("127.0.0.1", f"127.0.{i % 7}.{1 + i % 200}") for i in range(1100)]
        served(crowd[-1])
        gone = wait_for(lambda: len(closed(crowd[:200])) >= 77 and closed(crowd[:200]), "the loopback has its number")
        check(len(gone) == 77 and gone == crowd[:77], "the oldest made room", len(gone))
        equal(closed(crowd[77:] + running), [], "all others are there")
        served(connect("127.0.0.1", "127.0.0.1"))
        if own.startswith("127."):
            return
        others = [connect(own, own) for _ in range(980)]
        served(others[0])
        served(others[-1])
        equal(closed(running + others), [], "those of the smaller network, and what runs")
        served(connect("127.0.0.1", "127.0.0.1"))
        wait_for(lambda: len(closed(crowd)) > 90, "the larger network's made room")
        equal(g.process.poll(), None, "it lives")


@test
def leaving_a_load():
    """SIGTERM while tandemd answers nothing: requests have their eight seconds, threads no longer."""
    for n, limit in ((1, 12), (0, 3)):  # with the client that waits for it, and without
        with FakeDaemon([], deaf="key:alice") as d, Gateway(d, "--api-key-file", key_file(d)) as g:
            with g.connect() as s:
                s.sendall(post(LOAD, "Authorization: Bearer sk-alice-1", path="/api/generate"))
                wait_for(lambda: d.heard == 1, "the load is asked for", 5)
                if n == 0:
                    port = s.getsockname()[1]
                    s.close()
                    wait_for(lambda: not g.holds(port), "the gateway sees that the client has gone")
                watch = Stopwatch()
                g.process.send_signal(signal.SIGTERM)
                equal(exit_of(g.process, timeout=60), 0, "status")
                check(watch.seconds() < limit * SLOW, "it leaves in time", watch.seconds())
            g.expect_exit = None


@test
def leaving():
    """SIGTERM: what runs ends, what comes is sent elsewhere, and it leaves with 0."""
    body = json.dumps({"model": "tale", "prompt": PROMPT, "max_tokens": 100, "stream": True, "seed": 1}).encode()
    with Daemon(placement=None, hang_ms=STANDING_MS) as d, Gateway(d) as g, contextlib.ExitStack() as stack:
        def start():
            s = stack.enter_context(g.connect())
            s.sendall(post(body))
            return s

        with d.begun(start, lambda s: select.select([s], [], [], 0)[0], "it streams") as s:
            g.process.send_signal(signal.SIGTERM)
        data = read_all(s)
        check(b" 200 " in data[:100] and b"[DONE]" in data, "the stream comes to its end", data)
        equal(exit_of(g.process), 0, "status")
        g.expect_exit = None


main()
