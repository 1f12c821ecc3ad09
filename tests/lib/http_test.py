"""A private tandem-http in front of a test's daemon, and requests to it. The standard library only."""
import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import threading
import time

from tandem_test import BIN, REPORT, SLOW, Skip, check, equal, make_folder, parallel, wait_for  # noqa: F401
from tandem_wire import SCHEMA

PATIENCE = 60.0 * SLOW


class Gateway:
    """Use it in a `with`, inside the daemon's."""

    def __init__(self, daemon, *args, listen="127.0.0.1:0"):
        self.daemon, self.args, self.listen = daemon, list(args), listen
        self.key = None
        self.expect_exit = 0

    def __enter__(self):
        self.log_path = os.path.join(self.daemon.dir, f"tandem-http-{time.monotonic_ns()}.log")
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [os.path.join(BIN, "tandem-http"), "--socket", self.daemon.socket, "--listen", self.listen] + self.args,
                env=self.daemon.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.port = int(wait_for(self._port, "tandem-http's port"))
        return self

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def _port(self):
        check(self.process.poll() is None, "tandem-http left before it listened", self.log())
        found = re.search(r"answering on .*, port (\d+)", self.log())
        return found and found[1]

    def __exit__(self, kind, value, trace):
        wrong = None
        if self.process.poll() is not None and self.expect_exit is not None:
            wrong = f"tandem-http had left already, with {self.process.returncode}"
        self.process.terminate()
        try:
            wait_for(lambda: self.process.poll() is not None, "tandem-http's end", 15, 0.005)
        except AssertionError:
            wrong = "tandem-http did not leave"
            self.process.kill()
            self.process.wait()
        if not wrong and self.expect_exit is not None and self.process.returncode != self.expect_exit:
            wrong = f"tandem-http left with {self.process.returncode}"
        if REPORT.search(self.log()):
            wrong = "a sanitizer reported"
        if wrong or kind not in (None, Skip):
            print(f"---- tandem-http's log\n{self.log()[-6000:]}\n----", flush=True)
        if wrong and kind in (None, Skip):
            raise AssertionError(wrong)
        return False

    def memory_kb(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])

    def memory_peak_kb(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmHWM:\s+(\d+)", f.read())[1])

    def holds(self, port):
        """Whether it has its end of the connection from this port of a client's."""
        with open("/proc/net/tcp") as f:
            rows = [line.split() for line in f.readlines()[1:]]
        return any(int(r[1].split(":")[1], 16) == self.port and int(r[2].split(":")[1], 16) == port and
                   r[3] in ("01", "08") for r in rows)  # established; or only the client has closed

    # -- requests

    def connect(self, rcvbuf=None, timeout=PATIENCE):
        s = socket.socket()
        if rcvbuf:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        s.settimeout(timeout)
        s.connect(("127.0.0.1", self.port))
        return s

    def request(self, method, path, body=None, headers=None):
        """(status, headers with small letters, bytes)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            headers = dict(headers or {})
            if self.key:
                headers.setdefault("Authorization", "Bearer " + self.key)
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
                headers.setdefault("Content-Type", "application/json")
            c.request(method, path, body=body, headers=headers)
            r = c.getresponse()
            return r.status, {k.lower(): v for k, v in r.getheaders()}, r.read()
        finally:
            c.close()

    def get(self, path, want=200):
        status, _, data = self.request("GET", path)
        equal(status, want, f"GET {path}: {data[:300]}")
        return json.loads(data)

    def post(self, path, body, want=200):
        status, _, data = self.request("POST", path, body)
        equal(status, want, f"POST {path} {str(body)[:200]}: {data[:400]}")
        return json.loads(data)

    def stream(self, path, body):
        """The whole of a stream's text."""
        status, headers, data = self.request("POST", path, body)
        equal(status, 200, f"POST {path}: {data[:400]}")
        return headers["content-type"], data.decode()

    def events(self, path, body):
        """[(event or None, data as JSON or text)] of server-sent events; comments are left out."""
        kind, text = self.stream(path, dict(body, stream=True))
        equal(kind.split(";")[0], "text/event-stream", "content type")
        return parse_events(text)

    def lines(self, path, body):
        kind, text = self.stream(path, body)
        equal(kind, "application/x-ndjson", "content type")
        return [json.loads(line) for line in text.splitlines()]

    def raw(self, data, timeout=PATIENCE):
        """Sends bytes; all that comes back until the server closes, or for `timeout` seconds."""
        with self.connect(timeout=timeout) as s:
            try:
                s.sendall(data)
            except OSError:
                pass
            return read_all(s)


class FakeDaemon:
    """Answers each job with the same tokens (dicts of a Token's fields), and keeps what was asked: for what no model of
    the tests says by itself. {"progress": fields of Progress} among them is told at its place. Tokens None: no job is
    ever answered. deaf: a label that gets no answer to anything, as if all that it asks for took for ever; `heard`
    counts its connections. said: answers to questions (fields of Status or Models). Else models are an empty list, and
    status is never answered. Use it in a `with`, the gateway inside."""

    def __init__(self, tokens, deaf=None, said=None, max_frame=1 << 20, **done):
        self.tokens, self.done, self.asked, self.max_frame = tokens, done, [], max_frame
        self.said = {"models": {}, "load": {}, **(said or {})}
        self.deaf, self.heard = deaf, 0

    def __enter__(self):
        self.dir = make_folder()
        self.socket = os.path.join(self.dir, "socket")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.socket)
        self.listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc):
        # Wakes the thread that accepts. Closing does not, and it might go on with the next socket of that number.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def environment(self):
        return {k: os.environ[k] for k in ("PATH", "ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS",
                                           "LD_LIBRARY_PATH") if k in os.environ}

    def refusal(self, generate):
        """Why a job is refused (fields of Error). None: it is not."""

    def _accept(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(s,), daemon=True).start()

    def _serve(self, s):
        def reply(request, kind, values):
            data = SCHEMA.encode("Reply", {"id": request["id"], kind: values})
            s.sendall(struct.pack("<I", len(data)) + data)

        with contextlib.suppress(BrokenPipeError, ConnectionResetError), s, s.makefile("rb") as f:
            while size := f.read(4):
                request = SCHEMA.decode("Request", f.read(struct.unpack("<I", size)[0]))
                if self.deaf and request.get("hello", {}).get("speaks_for") == self.deaf:
                    self.heard += 1
                    f.read()
                    return
                for question, answer in (("models", "models"), ("status", "status"), ("load", "ok")):
                    if question in request and question in self.said:
                        reply(request, answer, self.said[question])
                if "hello" in request:
                    reply(request, "hello", {"protocol": 1, "version": "fake", "max_frame_bytes": self.max_frame,
                                             "speaks_for": request["hello"].get("speaks_for", "")})
                if "generate" in request:
                    self.asked.append(request["generate"])
                    if self.tokens is None:
                        continue
                    if why := self.refusal(request["generate"]):
                        reply(request, "error", why)
                        continue
                    n = sum("progress" not in token for token in self.tokens)
                    reply(request, "accepted", {"job": 1, "prompt_tokens": 3, "model": "tale", "max_tokens": n})
                    i = 0
                    for token in self.tokens:
                        if "progress" in token:
                            reply(request, "progress", dict(token["progress"], job=1))
                            continue
                        reply(request, "tokens", {"job": 1, "index": i, "tokens": [dict({"id": i + 1}, **token)]})
                        i += 1
                    reply(request, "done", dict({"job": 1, "prompt_tokens": 3, "generated_tokens": n}, **self.done))


def own_ip():
    """This machine's address in a network; that of the loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))  # sends nothing; the kernel chooses a source
            return s.getsockname()[0]
        except OSError:
            return "127.0.0.1"


def read_all(s):
    out = b""
    try:
        while True:
            piece = s.recv(65536)
            if not piece:
                return out
            out += piece
    except (socket.timeout, ConnectionResetError):
        return out


def first_answer(s):
    """Of a connection that may go on: head and body."""
    data, length = b"", 1
    while len(data.split(b"\r\n\r\n", 1)[-1]) < length or b"\r\n\r\n" not in data:
        piece = s.recv(65536)
        check(piece, "a whole answer", data[-300:])
        data += piece
        found = re.search(rb"(?i)content-length: (\d+)", data)
        length = int(found[1]) if found else 0
    return data


def parse_events(text):
    out = []
    for block in text.split("\n\n"):
        event = data = None
        for line in block.split("\n"):
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: "):
                data = line[6:]
        if data is not None:
            out.append((event, json.loads(data) if data.startswith("{") else data))
    return out


def statuses(data):
    """Of all answers in a raw text."""
    return [int(s) for s in re.findall(rb"HTTP/1\.[01] (\d{3}) ", data)]


def head(method, path, *lines, host="localhost", version="HTTP/1.1"):
    first = f"{method} {path} {version}\r\n" + (f"Host: {host}\r\n" if host is not None else "")
    return (first + "".join(line + "\r\n" for line in lines) + "\r\n").encode("latin-1")
