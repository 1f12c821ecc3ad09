#!/usr/bin/env python3
"""How many requests a second a server takes before its users wait: arrivals at random, at growing rates.

usage: TANDEM_BIN=build/bin bench-serving.py [MODEL.gguf] [--over socket,http] [--peer NAME=URL]... [--peer-model NAME]
       [--load chat|documents|agents|mixed] [--scale X] [--rates R,R,...] [--seconds S] [--first-ms 1000]
       [--gap-ms 100] [--seed N] [--threads N] [--out FILE] [--json]

Requests arrive as a Poisson process: nobody waits for another's answer before asking. Lengths are drawn from lognormal
distributions (LOADS below), as people's are: most are short, a few are very long. `agents` begin with the same long
text. --scale makes all lengths longer or shorter.

A rate is held if, over all requests that arrived at it, the p95 of the first token is at most --first-ms and the p95 of
the gaps is at most --gap-ms. A first token counts from the arrival, not from when the client came to send it. A gap is
the time between two pieces of text of one answer. A request that is refused or breaks off counts as one that waited for
ever. Rates double until one is not held; then the border is halved three times. --rates measures the given rates alone.

  goodput   requests a second whose own first token and whose own p95 of gaps were within the limits; the highest of
            all rates that were held is a server's figure

All servers get requests of the same lengths at the same times, one server after the other, in an order that turns.
--peer is any server that speaks OpenAI's /v1/completions with streams. Without MODEL only peers are measured if there
are any, else the demo model. FILE gets a line of JSON after each run. It prints figures and judges none. The machine
should be quiet.
"""
import argparse
import contextlib
import json
import math
import os
import random
import re
import selectors
import signal
import socket
import struct
import sys
import time
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from http_test import Gateway  # noqa: E402
from tandem_test import Daemon, TALE, request  # noqa: E402
from tandem_wire import SCHEMA, read_varint  # noqa: E402

WORDS = ("the king said to his youngest son that he must go into the wood and bring back what the old woman had hidden "
         "under a stone by the river before the sun went down and no one knew where it was").split()
# words of a prompt: common, median, sigma; tokens of an answer: median, sigma
LOADS = {"chat": (0, 80, 0.9, 120, 0.7), "documents": (0, 1200, 0.5, 80, 0.6), "agents": (1200, 60, 0.8, 60, 0.8)}
PARTS = {"mixed": ("chat", "chat", "agents", "documents"), **{name: (name,) for name in LOADS}}
MOST = 8  # times the median: longer ones are cut
DRAIN_S = 30  # for what has begun when no more arrive
HALVINGS = 3
TOKENS, DONE, ERROR = (SCHEMA.messages["Reply"][n].number for n in ("tokens", "done", "error"))


class Trace:
    """The requests of one rate: when each arrives, its prompt and the length of its answer. The words differ from
    server to server, since two of them may be doors of one daemon, which knows what it has read."""

    def __init__(self, rate, server, options):
        self.rate, rng = rate, random.Random(f"{options.seed} {rate}")
        words_of_all, words_of_one = (random.Random(f"{options.seed} {server} {x}") for x in ("all", rate))
        common = self.text(words_of_all, round(LOADS["agents"][0] * options.scale))
        self.asks, at = [], 0.0
        while True:
            at += rng.expovariate(rate)
            if at > options.seconds:
                break
            shared, words, words_sigma, tokens, tokens_sigma = LOADS[rng.choice(PARTS[options.load])]
            own = self.text(words_of_one, self.length(rng, words * options.scale, words_sigma))
            self.asks.append({"at": at, "prompt": f"{common} {own}" if shared else own, "seed": len(self.asks),
                              "n": self.length(rng, tokens * options.scale, tokens_sigma)})

    @staticmethod
    def text(rng, n_words):
        return " ".join(rng.choice(WORDS) for _ in range(n_words))

    @staticmethod
    def length(rng, median, sigma):
        return max(2, round(median * min(MOST, rng.lognormvariate(0, sigma))))


class Answer:
    """One request and what came of it. `take` is given bytes as they come, and says when it is over."""

    def __init__(self, ask, due):
        self.due, self.wanted = due, ask["n"]
        self.times, self.n, self.failed = [], 0, None
        self.rest = b""

    def piece(self, now):
        self.times.append(now)

    def first_ms(self):
        return 1e3 * (self.times[0] - self.due) if self.times and not self.failed else math.inf

    def gaps_ms(self):
        return [1e3 * (b - a) for a, b in zip(self.times, self.times[1:])]


class SocketAnswer(Answer):
    def __init__(self, server, ask, due):
        super().__init__(ask, due)
        frames = b""
        for fields in ({"id": 1, "hello": {"protocol": 1, "client": "bench-serving"}},
                       {"id": 2, "generate": request(ask["prompt"], n=ask["n"], temp=0.8, seed=ask["seed"],
                                                     model=server.model, ignore_end=False)}):
            frame = SCHEMA.encode("Request", fields)
            frames += struct.pack("<I", len(frame)) + frame
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(server.path)
        self.socket.sendall(frames)

    def take(self, data, now):
        self.rest += data
        while len(self.rest) >= 4:
            size = int.from_bytes(self.rest[:4], "little")
            if len(self.rest) < 4 + size:
                return False
            frame, self.rest = self.rest[4:4 + size], self.rest[4 + size:]
            _, at = read_varint(frame, 1)
            kind = read_varint(frame, at)[0] >> 3
            if kind == TOKENS:
                self.piece(now)
            elif kind == ERROR:
                self.failed = str(SCHEMA.decode("Reply", frame)["error"])
                return True
            elif kind == DONE:
                self.n = SCHEMA.decode("Reply", frame)["done"]["generated_tokens"]
                return True
        return False


class HttpAnswer(Answer):
    def __init__(self, server, ask, due):
        super().__init__(ask, due)
        body = json.dumps({"model": server.model, "prompt": ask["prompt"], "max_tokens": ask["n"], "temperature": 0.8,
                           "seed": ask["seed"], "stream": True, "stream_options": {"include_usage": True}}).encode()
        self.socket = socket.create_connection((server.host, server.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: {server.host}:{server.port}\r\n"
                            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        self.head, self.lines, self.left = True, b"", 0

    def take(self, data, now):
        self.rest += data
        if self.head:
            at = self.rest.find(b"\r\n\r\n")
            if at < 0:
                return False
            self.head = False
            status = self.rest[:at].split(b"\r\n")[0].decode()
            if " 200 " not in status + " ":
                self.failed = status
                return True
            self.rest = b"\r\n" + self.rest[at + 4:]  # before a chunk's size stands the end of the one before it
        return self.chunks(now)

    def chunks(self, now):
        while True:
            if self.left:
                part, self.rest = self.rest[:self.left], self.rest[self.left:]
                self.left -= len(part)
                self.events(part, now)
                if self.left:
                    return False
            end = self.rest.find(b"\r\n", 2)
            if end < 0:
                return False
            self.left, self.rest = int(self.rest[2:end].split(b";")[0], 16), self.rest[end + 2:]
            if not self.left:
                return True

    def events(self, data, now):
        *lines, self.lines = (self.lines + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: ") and re.search(rb'"text":\s*"[^"]', line):
                self.piece(now)
            elif line.startswith((b"data: {\"error\"", b"error:")):
                self.failed = line[:200].decode(errors="replace")
            found = re.search(rb'"completion_tokens":\s*(\d+)', line)
            if found:
                self.n = int(found[1])


class Server:
    """`kind` makes an answer: over tandemd's socket, or over HTTP."""

    def __init__(self, name, kind, model, **where):
        self.name, self.kind, self.model = name, kind, model
        self.__dict__.update(where)


def run(server, trace):
    """Sends what the trace says when it says so. All answers, and the seconds from the first arrival to the last end
    or to the end of patience."""
    selector, answers, waiting = selectors.DefaultSelector(), [], list(reversed(trace.asks))
    begin = time.perf_counter()
    patience = begin + trace.asks[-1]["at"] + DRAIN_S
    open_ones = 0
    while waiting or open_ones:
        now = time.perf_counter()
        if now > patience:
            break
        if waiting and now >= begin + waiting[-1]["at"]:
            ask = waiting.pop()
            try:
                a = server.kind(server, ask, begin + ask["at"])
            except OSError as e:
                a = Answer(ask, now)
                a.failed = str(e)
            else:
                selector.register(a.socket, selectors.EVENT_READ, a)
                open_ones += 1
            answers.append(a)
            continue
        until = begin + waiting[-1]["at"] if waiting else patience
        for key, _ in selector.select(max(0.0, until - now)):
            a = key.data
            try:
                data = a.socket.recv(1 << 17)
            except OSError:
                data = b""
            over = a.take(data, time.perf_counter()) if data else True
            if not data:
                a.failed = a.failed or "the connection ended"
            if over:
                selector.unregister(a.socket)
                a.socket.close()
                open_ones -= 1
    end = time.perf_counter()
    for key in list(selector.get_map().values()):
        key.data.failed = f"no end within {DRAIN_S} s of the last arrival"
        key.data.socket.close()
    selector.close()
    return answers, end - begin


def quantile(values, q):
    v = sorted(values)
    return v[min(len(v) - 1, int(q * len(v)))] if v else math.inf


def rounded(x):
    return round(x, 1) if math.isfinite(x) else None


def figures(server, trace, answers, seconds, options):
    first = [a.first_ms() for a in answers]
    gaps = [g for a in answers for g in ([math.inf] if a.failed else a.gaps_ms())]
    good = [a for a in answers if a.first_ms() <= options.first_ms and not a.failed and
            quantile(a.gaps_ms() or [0], 0.95) <= options.gap_ms]
    failed = [a.failed for a in answers if a.failed]
    span = max(seconds, options.seconds)
    r = {"server": server.name, "load": options.load, "rate": round(trace.rate, 3), "requests": len(answers),
         "failed": len(failed), "first_failure": failed[0] if failed else None,
         "goodput": round(len(good) / span, 3), "good_share": round(len(good) / len(answers), 3),
         "tokens_per_s": round(sum(a.n or len(a.times) for a in answers) / span, 1), "seconds": round(seconds, 1)}
    for name, values in (("first_ms", first), ("gap_ms", gaps)):
        r[name] = {f"p{round(100 * q)}": rounded(quantile(values, q)) for q in (0.5, 0.95, 0.99)}
    r["held"] = quantile(first, 0.95) <= options.first_ms and quantile(gaps, 0.95) <= options.gap_ms
    return r


class Bench:
    def __init__(self, servers, options):
        self.servers, self.options = servers, options
        self.results = {s.name: [] for s in servers}
        self.turn = 0

    def note(self, r):
        if self.options.out:
            with open(self.options.out, "a") as f:
                f.write(json.dumps(r) + "\n")
        if self.options.json:
            print(json.dumps(r), flush=True)
            return
        def three(name):
            return " / ".join("never" if v is None else f"{v:g}" for v in r[name].values())
        print(f"{r['rate']:8.3f}/s {r['server']:<12} {'held' if r['held'] else 'not held':<8}  first token "
              f"{three('first_ms')} ms, gap {three('gap_ms')} ms (p50 / p95 / p99); {r['tokens_per_s']} tokens/s, "
              f"goodput {r['goodput']}/s, {r['failed']} of {r['requests']} failed"
              + (f": {r['first_failure']}" if r["failed"] else ""), flush=True)

    def measure(self, rate, servers):
        """{name: whether it held this rate}"""
        held = {}
        self.turn += 1
        for s in servers[self.turn % len(servers):] + servers[:self.turn % len(servers)]:
            trace = Trace(rate, s.name, self.options)
            if not trace.asks:
                sys.exit(f"bench-serving: no request arrives in {self.options.seconds:g} s at {rate:g} a second; give "
                         "more --seconds")
            answers, seconds = run(s, trace)
            r = figures(s, trace, answers, seconds, self.options)
            self.results[s.name].append(r)
            self.note(r)
            held[s.name] = r["held"]
        return held

    def sweep(self):
        left, rate, low, high = list(self.servers), self.options.start, {}, {}
        while left:
            for name, ok in self.measure(rate, left).items():
                (low if ok else high)[name] = rate
            left = [s for s in left if s.name not in high]
            rate *= 2
        for s in self.servers:
            for _ in range(HALVINGS if s.name in low else 0):
                rate = math.sqrt(low[s.name] * high[s.name])
                (low if self.measure(rate, [s])[s.name] else high)[s.name] = rate

    def summary(self):
        for s in self.servers:
            held = [r for r in self.results[s.name] if r["held"]]
            best = max(held, key=lambda r: r["goodput"], default=None)
            r = {"summary": s.name, "goodput": best["goodput"] if best else 0,
                 "rate": best["rate"] if best else None, "tokens_per_s": best["tokens_per_s"] if best else None}
            if self.options.json:
                print(json.dumps(r), flush=True)
            elif best:
                print(f"{s.name}: goodput {r['goodput']} requests/s (at {r['rate']}/s; {r['tokens_per_s']} tokens/s)")
            else:
                print(f"{s.name}: no rate was held")


def peer(text, model):
    name, url = text.split("=", 1)
    u = urllib.parse.urlsplit(url)
    if u.scheme != "http" or not u.hostname:
        sys.exit(f"bench-serving: --peer {text}: NAME=http://HOST:PORT is needed")
    return Server(name, HttpAnswer, model, host=u.hostname, port=u.port or 80)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--over", default="socket,http")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--peer-model", default="default")
    parser.add_argument("--load", choices=sorted(PARTS), default="mixed")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--start", type=float, default=0.5, help="the first rate")
    parser.add_argument("--rates")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--first-ms", type=float, default=1000)
    parser.add_argument("--gap-ms", type=float, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the daemon and the gateway end with it
    with contextlib.ExitStack() as stack:
        servers = [peer(p, options.peer_model) for p in options.peer]
        if options.model or not servers:
            path = os.path.abspath(options.model or TALE)
            name = os.path.basename(path).removesuffix(".gguf")
            # TANDEM_GPU=host and the like are the daemon's.
            env = {k: v for k, v in os.environ.items() if k in ("TANDEM_NPU", "TANDEM_GPU", "TANDEM_PLACEMENT")}
            d = stack.enter_context(Daemon(models=[path], threads=options.threads or None, placement=None, env=env))
            d.generate(ids=[1, 2, 3], n=2, model=name)
            for over in options.over.split(","):
                if over == "socket":
                    servers.append(Server("socket", SocketAnswer, name, path=d.socket))
                else:
                    g = stack.enter_context(Gateway(d))
                    servers.append(Server("http", HttpAnswer, name, host="127.0.0.1", port=g.port))
        bench = Bench(servers, options)
        if options.rates:
            for rate in options.rates.split(","):
                bench.measure(float(rate), servers)
        else:
            bench.sweep()
        bench.summary()


main()
