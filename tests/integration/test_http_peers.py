"""tandem-http --peers: a daemon is killed with -9 in the midst of streams, and they go on at another gateway with the
same tokens; or end with an error, where no peer has the same model, but never with other tokens."""
import contextlib
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403

STANDS = {"placement": None, "hang_ms": STANDING_MS}  # of a daemon whose workers stand still
HI = [{"role": "user", "content": "Tell me of a king"}]
LONG = {"model": "tale", "prompt": PROMPT, "max_tokens": 240, "seed": 5, "stream": True}
CHAT = {"model": "tale", "messages": HI, "max_tokens": 240, "seed": 9, "stream": True}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 40}}, "required": ["city"]}}}
# Whatever a job's next token depends on: the prompt's form, sampling, the answer's own past, what it must follow.
REQUESTS = {
    "greedy": ("/v1/completions", dict(LONG, temperature=0)),
    "sampled": ("/v1/completions", LONG),
    "filters": ("/v1/completions", dict(LONG, temperature=1.3, top_k=50, top_p=0.9, min_p=0.01)),
    "penalties": ("/v1/completions", dict(LONG, frequency_penalty=0.7, presence_penalty=-0.4, repetition_penalty=1.2,
                                          logit_bias={"300": 2.5, "400": -100})),
    "log-probabilities": ("/v1/completions", dict(LONG, logprobs=5)),
    "stop": ("/v1/completions", dict(LONG, stop=["nothing says this", "\n\n\n\n"])),
    "ids": ("/v1/completions", dict(LONG, prompt=[2, 300, 400, 500, 600])),
    "chat": ("/v1/chat/completions", CHAT),
    "three choices": ("/v1/chat/completions", dict(CHAT, n=3, logprobs=True, top_logprobs=2)),
    "schema": ("/v1/chat/completions", dict(CHAT, response_format={"type": "json_schema", "json_schema": {
        "name": "it", "schema": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 30,
                                 "maxItems": 60}}})),
    "whole": ("/v1/completions", dict(LONG, stream=False, logprobs=2)),
    "responses": ("/v1/responses", {"model": "tale", "input": "Tell me of a king", "max_output_tokens": 240, "seed": 3,
                                    "stream": True}),
    "Anthropic": ("/v1/messages", dict(CHAT, stop_sequences=["nothing says this"])),
    "Ollama": ("/api/chat", {"model": "tale", "messages": HI, "options": {"num_predict": 240, "seed": 4}}),
}


class Reader(threading.Thread):
    """One request: what has come so far, and all of it in the end."""

    def __init__(self, g, path, body):
        super().__init__()
        self.g, self.path, self.body = g, path, body
        self.n, self.data, self.status, self.error = 0, b"", None, None
        self.start()

    def run(self):
        c = http.client.HTTPConnection("127.0.0.1", self.g.port, timeout=PATIENCE)
        try:
            c.request("POST", self.path, json.dumps(self.body), {"Content-Type": "application/json"})
            r = c.getresponse()
            self.status = r.status
            while line := r.readline():
                self.data += line
                self.n += line.startswith((b"data: ", b"{"))
        except (OSError, http.client.HTTPException) as e:
            self.error = e
        finally:
            c.close()

    def told(self):
        """What a client makes of the answer: texts, log-probabilities, ends; not what names the answer or its times."""
        out = {}

        def walk(value, path):
            if isinstance(value, dict):
                for k, v in value.items():
                    if k not in ("id", "item_id", "created", "created_at", "system_fingerprint", "sequence_number",
                                 "prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens",
                                 "cached_tokens", "input_tokens", "total_tokens",
                                 "completed_at") and "duration" not in k:
                        walk(v, path + (k,))
            elif isinstance(value, list):
                for v in value:
                    walk(v, path)
            elif isinstance(value, str):
                out[path] = out.get(path, "") + value
            elif value is not None:
                out.setdefault(path, []).append(value)
        for line in self.data.decode().splitlines():
            line = line[6:] if line.startswith("data: ") else line
            if line.startswith("{"):
                event = json.loads(line)
                if event.get("type") == "ping":  # as many as it takes seconds
                    continue
                choice = (event.get("choices") or [{}])[0].get("index") if len(event.get("choices", [])) == 1 else None
                walk(event, (choice,))
        return out


def peers_file(d, *lines):
    path = os.path.join(d.dir, f"peers-{time.monotonic_ns()}")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
        f.write("# the others\n" + "".join(line + "\n" for line in lines))
    return path


def url(g):
    return f"http://127.0.0.1:{g.port}"


def stop(pids):
    for pid in pids:
        send_signal(pid, signal.SIGSTOP)


def requests_handed_over(g):
    """The ids of the requests that went on at a peer, as the gateway's log has them."""
    return set(re.findall(r"(req_\w+): goes on at", g.log()))


def die_in_the_midst(d, g, requests, enough=6, n_cut=1):
    """Starts all, lets each streaming one get some tokens, kills the daemon with all its workers. How many answers are
    whole by then depends on the machine: it is done anew until `n_cut` of the requests are cut off. Returns the readers
    and how many of their requests went on at a peer."""
    for attempt in range(20):
        if attempt:
            d.start()
        before = requests_handed_over(g)
        d.wait_ready()
        with d.standing() as workers:
            readers = {name: Reader(g, *requests[name]) for name in requests}
            run_in_slices(workers, lambda: all(r.n >= enough or r.error or not r.is_alive()
                                               or r.body.get("stream") is False for r in readers.values()),
                          "tokens in each stream")
            d.kill()
        for r in readers.values():
            r.join()
        n = len(requests_handed_over(g) - before)
        if n >= n_cut:
            return readers, n
    raise AssertionError(f"of {list(requests)} {n} were cut off, and {n_cut} should be")


@test
def goes_on():
    """Every kind of request, on a daemon that dies; what the peer makes of each in peace is what has to come."""
    with Daemon(placement=None) as other, Gateway(other) as b, Daemon(**STANDS) as d, \
            Gateway(d, "--peers", peers_file(d, url(b))) as a:
        want = {}
        for name, (path, body) in REQUESTS.items():
            r = Reader(b, path, body)
            r.join()
            equal((r.status, r.error), (200, None), f"{name} in peace: {r.data[:300]}")
            want[name] = r.told()
        # a few at a time, so that none has ended before the others have begun
        names = list(REQUESTS)
        n_handed_over = 0
        for at in range(0, len(names), 5):
            if at:
                d.start()
                d.expect_exit = 0
                a.post("/v1/completions", {"model": "tale", "prompt": PROMPT, "max_tokens": 1})
            group = {n: REQUESTS[n] for n in names[at:at + 5]}
            readers, n = die_in_the_midst(d, a, group, n_cut=len(group) // 2)
            n_handed_over += n
            for name, r in readers.items():
                equal((r.status, r.error), (200, None), f"{name}: {r.data[-300:]}")
                got = r.told()
                for path in sorted(set(got) | set(want[name]), key=str):
                    equal(got.get(path), want[name].get(path), f"{name}, {path}")
        handoffs = int(re.search(r"^tandem_http_handoffs_total (\d+)", a.request("GET", "/metrics")[2].decode(),
                                 re.M)[1])
        check(handoffs >= n_handed_over, "handed over", handoffs, n_handed_over)
        print(f"     {n_handed_over} of {len(names)} requests were cut off, and went on")
        # The daemon is away: new requests go to the peer from their first token on.
        text = a.post("/v1/completions", dict(LONG, stream=False, max_tokens=20))["choices"][0]["text"]
        equal(text, b.post("/v1/completions", dict(LONG, stream=False, max_tokens=20))["choices"][0]["text"], "new")
        # What is wrong with a request is wrong here too, and no peer is asked in vain twice.
        check(a.post("/v1/completions", dict(LONG, stream=False, model="no-such"), 503)["error"], "an unknown model")


@test
def reads_what_was_drawn():
    """The peer draws only the last few of the client's tokens again, and reads the others."""
    body = dict(LONG, max_tokens=900, temperature=0.9)
    with Daemon(placement=None) as other, Gateway(other) as b, Daemon(**STANDS) as d, \
            Gateway(d, "--peers", peers_file(d, url(b))) as a:
        want = Reader(b, "/v1/completions", body)
        want.join()
        before = other.status()["tokens_generated"]
        readers, _ = die_in_the_midst(d, a, {"it": ("/v1/completions", body)}, 300)
        equal(readers["it"].told(), want.told(), "the answer")
        n = other.status()["tokens_generated"] - before
        check(n <= 900 - 300 + 8, f"the peer drew {n} tokens of 900, of which 300 and more were there")


@test
def tools():
    model = make_model("npu", "q8_0", arch="qwen3", chat="qwen3")
    name = os.path.basename(model)[:-len(".gguf")]
    ask = {"model": name, "messages": [{"role": "user", "content": "Weather?"},
                                       {"role": "assistant", "content": "", "tool_calls": [
                                           {"id": "call00001", "type": "function", "function": {
                                               "name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}}]},
                                       {"role": "tool", "tool_call_id": "call00001", "content": "rain"},
                                       {"role": "user", "content": "And in Rome?"}],
           "tools": [TOOL], "tool_choice": "required", "temperature": 1.5, "max_tokens": 120, "seed": 11,
           "stream": True}
    with Daemon(models=(model,), placement=None) as other, Gateway(other) as b, \
            Daemon(models=(model,), **STANDS) as d, Gateway(d, "--peers", peers_file(d, url(b))) as a:
        r = Reader(b, "/v1/chat/completions", ask)
        r.join()
        equal(r.status, 200, f"in peace: {r.data[:300]}")
        want = r.told()
        check(any("arguments" in path for path in want), "a call", want)
        readers, _ = die_in_the_midst(d, a, {"tools": ("/v1/chat/completions", ask)}, 3)
        got = readers["tools"].told()
        for path in set(got) | set(want):
            if path[-1] != "id":
                equal(got.get(path), want.get(path), f"{path}")


@test
def another_model():
    """A peer whose model of the same name is another one tells other tokens: it is left, for one that is right, or the
    stream ends with an error. What came before is right, and nothing that is wrong comes."""
    longer = dict(LONG, max_tokens=960)
    with Daemon(placement=None) as right, Gateway(right) as c, Daemon(**STANDS) as d:
        false_tale = os.path.join(d.dir, "tale.gguf")
        shutil.copy(SPROUT, false_tale)
        want = Reader(c, "/v1/completions", longer)
        want.join()
        with Daemon(models=(false_tale,), placement=None) as wrong, Gateway(wrong) as b:
            with Gateway(d, "--peers", peers_file(d, url(b))) as a:
                readers, _ = die_in_the_midst(d, a, {"it": ("/v1/completions", longer)})
                r = readers["it"]
                check(b'"code":"daemon_lost"' in r.data and b"[DONE]" not in r.data, "an error", r.data[-400:])
                got = r.told()[(0, "choices", "text")]
                check(got and want.told()[(0, "choices", "text")].startswith(got), "a beginning of the right text", got)
                check("tells other tokens" in a.log(), "the log says why", a.log())
                d.start()
            with Gateway(d, "--peers", peers_file(d, url(b), url(c))) as a:
                readers, _ = die_in_the_midst(d, a, {"it": ("/v1/completions", longer)})
                equal(readers["it"].told(), want.told(), "the second peer is right")


@test
def peers_that_are_no_good():
    """Dead, silent, with another key, speaking no HTTP, dying in their turn; the last in the list is good."""
    with Daemon(placement=None) as good, Daemon(**STANDS) as d, Daemon(**STANDS) as dying, \
            Gateway(dying) as b, socket.socket() as babbler, socket.socket() as deaf:
        key = os.path.join(good.dir, "keys")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write("fleet fleets-key-0123\n")
        for s in (babbler, deaf):
            s.bind(("127.0.0.1", 0))
            s.listen()

        def babble():
            while True:
                try:
                    c, _ = babbler.accept()
                except OSError:
                    return
                c.sendall(b"220 this is no HTTP\r\n\r\n")
                c.close()
        threading.Thread(target=babble, daemon=True).start()
        with Gateway(good, "--api-key-file", key) as c:
            want = c
            c.key = "fleets-key-0123"
            text = c.post("/v1/completions", dict(LONG, stream=False))["choices"][0]["text"]
            closed = socket.socket()
            closed.bind(("127.0.0.1", 0))
            # Nobody listens on a port that is only bound, and nobody else takes it.
            bad = [f"http://127.0.0.1:{closed.getsockname()[1]}", f"http://127.0.0.1:{babbler.getsockname()[1]}",
                   url(c), url(c) + " wrong-key-0123"]
            with Gateway(d, "--peers", peers_file(d, *bad, url(b), url(c) + " fleets-key-0123")) as a:
                asked = f"goes on at 127.0.0.1:{b.port}"
                for attempt in range(20):
                    d.wait_ready()
                    with d.standing() as workers:
                        r = Reader(a, "/v1/completions", LONG)
                        run_in_slices(workers, lambda: r.n >= 5 or not r.is_alive(), "tokens")
                        stop(dying.worker_pids())  # it takes the job, and says nothing but that it lives
                        d.kill()
                    wait_for(lambda: asked in a.log() or not r.is_alive(), "the peer that dies is asked")
                    if asked in a.log():
                        break
                    d.start()  # on a busy machine the job may be over before its daemon dies
                check(asked in a.log(), "the peer that dies is asked", a.log(), r.data[-400:])
                dying.kill()
                r.join()
                equal("".join(e["choices"][0]["text"] for _, e in parse_events(r.data.decode()) if isinstance(e, dict)),
                      text, "the text")
                for said in ("Connection refused", "it answers in no HTTP", "it does not know our key"):
                    check(said in a.log(), said, a.log())
            # none left: an error, as without peers
            with Gateway(d, "--peers", peers_file(d, *bad)) as a:
                equal(a.post("/v1/completions", dict(LONG, stream=False), 503)["error"]["code"], "no_daemon", "no peer")
            closed.close()
            del want


@test
def room_for_bodies():
    """What a client may send in full has room at a peer too, with the tokens that the client has beside it."""
    with Daemon(placement=None) as d, Gateway(d) as g:
        for path, most in (("/v1/completions", 8 << 20), ("/tandem/generate", 9 << 20)):
            for size, want in ((most, 400), (most + 1, 413)):
                body = b"{}" + b" " * (size - 2)
                for chunked in (False, True):
                    status, _, data = g.request("POST", path, iter([body]) if chunked else body)
                    equal(status, want, f"{path}, {size} bytes, chunked {chunked}: {data[:300]}")


class FalsePeer:
    """Answers each job with the same lines of JSON. Use it in a `with`."""

    def __init__(self, *lines):
        self.data = b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def __enter__(self):
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *exc):
        self.listener.shutdown(socket.SHUT_RDWR)  # else the thread waits on a number that the next socket may get
        self.listener.close()

    def _serve(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), s:
                s.settimeout(PATIENCE)
                data, piece = b"", b"x"  # all of it: with some of it unread, the end would be a reset
                while piece and not ((found := re.search(rb"(?is)content-length: (\d+).*?\r\n\r\n", data)) and
                                     len(data) >= found.end() + int(found[1])):
                    piece = s.recv(65536)
                    data += piece
                s.sendall(self.data)
                s.shutdown(socket.SHUT_WR)
                s.recv(1)


def token(i, text, **more):
    return {"id": i, "logprob": 0, "text": text, **more}


def done(n, reason="length"):
    return {"done": reason, "prompt_tokens": 3, "cached_tokens": 0, "generated_tokens": n}


@contextlib.contextmanager
def left_to(*peers):
    """A gateway whose daemon has gone, before peers that answer with these lines."""
    with contextlib.ExitStack() as stack:
        d = stack.enter_context(FakeDaemon([]))
        urls = [stack.enter_context(FalsePeer(*lines)).url for lines in peers]
        os.unlink(d.socket)
        yield stack.enter_context(Gateway(d, "--peers", peers_file(d, *urls)))


@test
def what_a_peer_held_back():
    """A tail belongs to the text, and is counted. One of a peer that left says nothing of the next one's text."""
    body = {"model": "tale", "prompt": "x", "max_tokens": 5}
    whole = [{"accepted": 3}, token(5, "Hello"), {"tail": " wor"}, {"tail": "ld"}, done(1)]
    for peers in ([whole], [[{"accepted": 3}, token(5, "Hello"), {"tail": " nobody"}], whole],
                  [[{"accepted": 3}, token(5, "Hello"), token(6, " world"), token(7, "!"), {"tail": "x"}],
                   [{"accepted": 3}, token(5, "Hello"), token(6, " world"), token(7, "!"), done(3, "stop")]]):
        want = "Hello world!" if any("!" in str(line) for line in peers[0]) else "Hello world"
        with left_to(*peers) as g:
            g.post("/v1/completions", body)
            for path, request in (("/v1/completions", body),
                                  ("/v1/chat/completions", {"model": "tale", "messages": HI, "max_tokens": 5})):
                text = "".join(c.get("text") or c.get("delta", {}).get("content") or ""
                               for _, e in g.events(path, request) if isinstance(e, dict) for c in e["choices"])
                equal(text, want, f"{path} after {peers}")


@test
def hostile_peers():
    """A peer's numbers, orders and lengths are not believed: the next peer makes the job, and this gateway lives."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    body = {"model": "tale", "messages": HI, "tools": tools, "max_tokens": 5}

    def call(number, **more):
        return {"call": number, "id": "abcdefghi", "name": "f", "text": "{}", **more}
    good = [{"accepted": 3}, token(5, "", calls=[call(0, text='{"a":')]),
            token(6, "", calls=[call(0, name="", text="1}")]), done(2, "stop")]
    bad = [[{"accepted": 3}, token(5, "", calls=[call(n)]), done(1)] for n in (1, 2, 7000000, 0xffffffff, -1, 1e300)]
    bad += [[{"accepted": 3}, token(5, "", calls=[call(0), call(2)]), done(1)],
            [{"accepted": 3}, token(5, "", calls=[call(0, name="")]), done(1)],
            [{"accepted": 3}, token(5, "", calls=[call(0), call(0)]), done(1)],
            [{"accepted": 3}, {"tail": "x" * 100000}, done(0)],
            [{"accepted": 3}, {"tail": 5}, done(0)],
            [{"accepted": 3}, token(5, "", top=[{"id": 1, "logprob": 0, "hex": "xyz"}])],
            [{"accepted": 3}, token(5, "", piece="0g")],
            [token(5, "", calls={"a": 1}, top=5, piece=[1], thinking={})],
            [{"accepted": 3}, {"done": "nonsense"}]]
    bad += [[{"accepted": n}, token(5, "x"), done(1)] for n in (-1, 1e300, "3", 1 << 32)]
    bad += [[{"accepted": 3}, dict(done(0), **{name: n})] for name, n in
            (("prompt_tokens", -3), ("cached_tokens", 1 << 53), ("generated_tokens", 1.5))]
    one = {"id": 1, "logprob": 0, "hex": "41"}
    bad += [[{"accepted": 3}, token(5, "", top=top)] for top in
            ([one] * 21, [None], [dict(one, id=-1)], [dict(one, logprob=1 << 33)], [dict(one, hex="414")])]
    bad += [[{"accepted": 3}, dict(token(5, ""), logprob=1 << 33)], [{"accepted": 3}, token(5, "", piece="414")]]
    for lines in bad:
        with left_to(lines, good) as g:
            for stream in (False, True):
                if stream:
                    deltas = [c["delta"] for _, e in g.events("/v1/chat/completions", body) if isinstance(e, dict)
                              for c in e["choices"]]
                    calls = [f["function"]["arguments"] for x in deltas for f in x.get("tool_calls", [])]
                else:
                    message = g.post("/v1/chat/completions", body)["choices"][0]["message"]
                    calls = [c["function"]["arguments"] for c in message["tool_calls"]]
                check("".join(calls).endswith('{"a":1}') or "".join(calls).endswith("1}"), f"after {lines}", calls)
            equal(g.process.poll(), None, "it lives")
    with left_to([{"accepted": 3}] + [token(i, "x") for i in range(9)] + [done(9)]) as g:
        g.post("/v1/chat/completions", body, 503)
        check("more tokens than were asked for" in g.log(), "as many as were asked for", g.log())


@test
def files():
    with Daemon(placement=None) as d:
        open_file = peers_file(d, "http://127.0.0.1:1")
        os.chmod(open_file, 0o644)
        for path, why in ((open_file, "can be read by others"), (peers_file(d), "holds no peer"),
                          (peers_file(d, "https://127.0.0.1:1"), "a line is http"),
                          (peers_file(d, "http://box.example:1"), "names are not looked up"),
                          (peers_file(d, "http://127.0.0.1:1 short"), "a key has 8 to 255 bytes, this one has 5"),
                          (peers_file(d, "http://127.0.0.1:1 key-0123456 more"), "a line is http"),
                          (peers_file(d, *[f"http://127.0.0.1:{i}" for i in range(1, 10)]), "more than 8"),
                          (os.path.join(d.dir, "none"), "cannot read")):
            r = subprocess.run([os.path.join(BIN, "tandem-http"), "--socket", d.socket, "--listen", "127.0.0.1:0",
                                "--peers", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               timeout=30 * SLOW)
            check(r.returncode in (1, 2) and why in r.stdout, f"refusal: {why}", r.stdout)


main()
