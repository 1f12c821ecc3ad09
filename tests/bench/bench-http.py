#!/usr/bin/env python3
"""What the HTTP gateway costs: the same requests through tandem-http and over tandemd's socket, in turns.

usage: TANDEM_BIN=build/bin bench-http.py [MODEL.gguf] [--rounds N] [--seconds S] [--tokens N] [--prompt N]
       [--streams 1,64] [--threads N] [--idle N] [--out FILE] [--json]

A round asks three times: over the socket, through the gateway, over the socket again, in an order that changes. So the
gateway's ratio to the sockets around it stands beside the sockets' ratio to each other, which is the noise. Both sides
keep their connections and send texts of the same number of words and the same seeds. The client makes all requests
before its clock starts. It looks into the bytes for the first token and the end, and parses nothing else, so that it
costs the same on both sides.

  ttft   milliseconds from a request to its first token: the median over the streams. `more` is what the gateway adds
  speed  tokens a second of all streams, from the first request to the last end

It ends after N rounds or S seconds for each number of streams, whichever comes first. FILE gets a line of JSON after
each round, so that a run which is cut off leaves what it has measured.

Then it opens idle connections, with a request answered on each, and says what memory they take. It prints figures and
judges none. The machine should be quiet.
"""
import argparse
import json
import math
import os
import random
import re
import select
import signal
import statistics
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from http_test import Gateway  # noqa: E402
from tandem_test import Daemon, TALE, check, equal, request  # noqa: E402
from tandem_wire import SCHEMA, Wire, read_varint  # noqa: E402

WORDS = ("the king said to his youngest son that he must go into the wood and bring back what the old woman had hidden "
         "under a stone by the river before the sun went down and no one knew where it was").split()
TOKENS, DONE, ERROR = (SCHEMA.messages["Reply"][n].number for n in ("tokens", "done", "error"))


class OverSocket:
    def __init__(self, daemon, gateway):
        self.wire = Wire(daemon.socket)
        self.socket = self.wire.socket

    def prepare(self, ask):
        self.wire.next_id += 1
        frame = SCHEMA.encode("Request", {"id": self.wire.next_id, "generate": request(
            ask["prompt"], n=ask["max_tokens"], temp=ask["temperature"], seed=ask["seed"], model=ask["model"],
            ignore_end=False)})
        self.bytes = struct.pack("<I", len(frame)) + frame
        self.first = self.n = None
        self.rest = b""

    def take(self, data, now):
        """True at the end."""
        self.rest += data
        while len(self.rest) >= 4:
            size = int.from_bytes(self.rest[:4], "little")
            if len(self.rest) < 4 + size:
                break
            frame, self.rest = self.rest[4:4 + size], self.rest[4 + size:]
            _, at = read_varint(frame, 1)
            kind = read_varint(frame, at)[0] >> 3
            check(kind != ERROR, "the daemon's answer", frame)
            if kind == TOKENS and self.first is None:
                self.first = now
            if kind == DONE:
                self.n = SCHEMA.decode("Reply", frame)["done"]["generated_tokens"]
                return True
        return False


class ThroughGateway:
    def __init__(self, daemon, gateway):
        self.socket = gateway.connect()

    def prepare(self, ask):
        body = json.dumps(dict(ask, stream=True, stream_options={"include_usage": True})).encode()
        self.bytes = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.first = self.n = None
        self.rest = b""

    def take(self, data, now):
        if self.first is None and b'"text":' in self.rest + data:
            self.first = now
        self.rest = (self.rest + data)[-800:]
        if not self.rest.endswith(b"\r\n0\r\n\r\n"):
            return False
        found = re.search(rb'"completion_tokens":(\d+)', self.rest)
        check(found, "a stream's usage", self.rest)
        self.n = int(found[1])
        return True


def ask_all(clients, asks):
    """(median ms to the first token, tokens a second, tokens of all)"""
    poll, by_fd, sent = select.epoll(), {}, {}
    for c, ask in zip(clients, asks):
        c.prepare(ask)
        by_fd[c.socket.fileno()] = c
        poll.register(c.socket.fileno(), select.EPOLLIN)
    begin = time.perf_counter()
    for c in clients:
        sent[c] = time.perf_counter()
        c.socket.sendall(c.bytes)
    left = len(asks)
    while left:
        events = poll.poll(120)
        check(events, "an answer within two minutes")
        for fd, _ in events:
            data = by_fd[fd].socket.recv(1 << 17)
            check(data, "the connection ended")
            now = time.perf_counter()
            if by_fd[fd].take(data, now):
                left -= 1
    poll.close()
    n_tokens = sum(c.n for c in clients)
    return 1e3 * statistics.median(c.first - sent[c] for c in clients), n_tokens / (now - begin), n_tokens


def cpu_s(pid):
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as f:
            total += int(f.read().split()[0])
    return total / 1e9


def middle(values):
    """The median, the interval that holds it in 95 of 100 cases (by order), and the quartiles."""
    v = sorted(values)
    reach = 0.98 * math.sqrt(len(v))
    low, high = max(0, math.floor(len(v) / 2 - reach)), min(len(v) - 1, math.ceil(len(v) / 2 + reach) - 1)
    q = statistics.quantiles(v, n=4) if len(v) > 1 else v * 3
    return {"median": round(statistics.median(v), 4), "interval": [round(v[low], 4), round(v[high], 4)],
            "quartiles": [round(q[0], 4), round(q[2], 4)]}


def compare(daemon, gateway, n_streams, options, model, note):
    rng = random.Random(n_streams)
    sockets = [OverSocket(daemon, gateway) for _ in range(n_streams)]
    doors = [ThroughGateway(daemon, gateway) for _ in range(n_streams)]
    rounds, cpu, n_tokens = [], 0.0, 0
    until = time.monotonic() + options.seconds if options.seconds else math.inf
    for i in range(options.rounds + 1):
        # New prompts in each turn, or the later turns would find them cached.
        turns = [("socket", sockets), ("gateway", doors), ("again", sockets)]
        this = {"streams": n_streams, "round": i}
        for kind, clients in (turns[i % 3:] + turns[:i % 3]):
            asks = [{"model": model, "prompt": " ".join(rng.choice(WORDS) for _ in range(options.prompt)),
                     "max_tokens": options.tokens, "temperature": 0.8, "seed": s} for s in range(n_streams)]
            before = cpu_s(gateway.process.pid)
            ttft, speed, n = ask_all(clients, asks)
            if kind == "gateway" and i > 0:
                cpu += cpu_s(gateway.process.pid) - before
                n_tokens += n
            this[kind] = {"ttft": round(ttft, 4), "speed": round(speed, 2), "tokens": n}
        note(this)
        if i > 0:  # in the first one caches and connections settle
            rounds.append(this)
        if time.monotonic() > until and rounds:
            break
    for c in sockets + doors:
        c.socket.close()
    result = {"streams": n_streams, "rounds": len(rounds), "gateway_cpu_us_per_token": round(1e6 * cpu / n_tokens, 2)}
    for name in ("ttft", "speed"):
        a, g, b = ([r[kind][name] for r in rounds] for kind in ("socket", "gateway", "again"))
        result[name] = {"socket": round(statistics.median(a + b), 3), "gateway": round(statistics.median(g), 3),
                        "ratio": middle([y / math.sqrt(x * z) for x, y, z in zip(a, g, b)]),
                        "noise": middle([z / x for x, z in zip(a, b)]),
                        "more": middle([y - (x + z) / 2 for x, y, z in zip(a, g, b)])}
    return result


def idle(gateway, n):
    """KiB that n connections take, each with an answered request behind it."""
    before = gateway.memory_kb()
    held = []
    for _ in range(n):
        s = gateway.connect()
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        equal(s.recv(65536)[:12], b"HTTP/1.1 200", "an answer")
        held.append(s)
    after = gateway.memory_kb()
    for s in held:
        s.close()
    return {"connections": n, "before_kib": before, "after_kib": after}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default=TALE)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--streams", default="1,64")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    name = os.path.basename(options.model).removesuffix(".gguf")

    def note(line):
        if options.out:
            with open(options.out, "a") as f:
                f.write(json.dumps(line) + "\n")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the daemon and the gateway end with it
    # TANDEM_GPU=host and the like are the daemon's.
    env = {k: v for k, v in os.environ.items() if k in ("TANDEM_NPU", "TANDEM_GPU", "TANDEM_PLACEMENT")}
    with Daemon(models=[options.model], threads=options.threads or None, placement=None, env=env) as d, Gateway(d) as g:
        for n in (int(n) for n in options.streams.split(",")):
            r = compare(d, g, n, options, name, note)
            note({"summary": r})
            if options.json:
                print(json.dumps(r), flush=True)
                continue
            print(f"{n} streams, {r['rounds']} rounds; the gateway uses {r['gateway_cpu_us_per_token']} µs of CPU "
                  "a token")
            for key, unit in (("ttft", "ms to the first token"), ("speed", "tokens a second")):
                v, words = r[key], []
                for what in ("ratio", "noise", "more"):
                    m = v[what]
                    words.append(f"{m['median']} (median within {m['interval'][0]} to {m['interval'][1]}, quartiles "
                                 f"{m['quartiles'][0]} to {m['quartiles'][1]})")
                print(f"  {unit}: socket {v['socket']}, gateway {v['gateway']}\n    gateway to socket {words[0]}\n"
                      f"    socket to socket {words[1]}\n    more {words[2]}", flush=True)
        if options.idle:
            r = idle(g, options.idle)
            note({"idle": r})
            print(json.dumps(r) if options.json else f"{r['connections']} idle connections: {r['before_kib']} -> "
                  f"{r['after_kib']} KiB resident")


main()
