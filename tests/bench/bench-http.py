#!/usr/bin/env python3
"""What the HTTP gateway costs: the same requests through tandem-http and over tandemd's socket, in turns.

usage: TANDEM_BIN=build/bin bench-http.py [MODEL.gguf] [--rounds N] [--tokens N] [--prompt N] [--streams 1,64]
       [--threads N] [--idle N] [--json]

A round asks three times: over the socket, through the gateway, over the socket again, in an order that changes. So the
gateway's ratio to the socket stands beside the socket's ratio to itself, which is the noise. Both sides keep their
connections, send the same ids and seeds, and have to get the same number of tokens. The client looks into the bytes for
the first token and the end, and parses nothing else, so that it costs the same on both sides.

  ttft   milliseconds from the request to the first token: the median over the streams
  speed  tokens a second of all streams, from the first request to the last end

Then it opens idle connections, with a request answered on each, and says what memory they take. It prints figures and
judges none. The machine should be quiet.
"""
import argparse
import json
import os
import random
import re
import select
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from http_test import Gateway  # noqa: E402
from tandem_test import Daemon, TALE, check, equal, request  # noqa: E402
from tandem_wire import SCHEMA, Wire, read_varint  # noqa: E402

TOKENS, DONE, ERROR = (SCHEMA.messages["Reply"][n].number for n in ("tokens", "done", "error"))


class OverSocket:
    def __init__(self, daemon, gateway):
        self.wire = Wire(daemon.socket)
        self.socket = self.wire.socket

    def send(self, ask):
        self.first = self.n = None
        self.rest = b""
        self.wire.send("generate", request(ids=ask["prompt"], n=ask["max_tokens"], temp=ask["temperature"],
                                           seed=ask["seed"], model=ask["model"], ignore_end=False))

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

    def send(self, ask):
        self.first = self.n = None
        self.rest = b""
        body = json.dumps(dict(ask, stream=True, stream_options={"include_usage": True})).encode()
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def take(self, data, now):
        if self.first is None and b'"text":' in self.rest + data:
            self.first = now
        self.rest = (self.rest + data)[-800:]
        if not self.rest.endswith(b"\r\n0\r\n\r\n"):
            return False
        self.n = int(re.search(rb'"completion_tokens":(\d+)', self.rest)[1])
        return True


def ask_all(clients, asks):
    """(median ms to the first token, tokens a second, tokens of each)"""
    poll, by_fd, sent = select.epoll(), {}, {}
    for c, ask in zip(clients, asks):
        fd = c.socket.fileno()
        by_fd[fd] = c
        poll.register(fd, select.EPOLLIN)
    begin = time.perf_counter()
    for c, ask in zip(clients, asks):
        sent[c] = time.perf_counter()
        c.send(ask)
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
    seconds = now - begin
    poll.close()
    used = clients[:len(asks)]
    return (1e3 * statistics.median(c.first - sent[c] for c in used), sum(c.n for c in used) / seconds,
            [c.n for c in used])


def cpu_s(pid):
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as f:
            total += int(f.read().split()[0])
    return total / 1e9


def spread(values):
    q = statistics.quantiles(values, n=4)
    return {"median": round(statistics.median(values), 4), "quartiles": [round(q[0], 4), round(q[2], 4)]}


def compare(daemon, gateway, n_streams, options, model):
    rng = random.Random(n_streams)
    sockets = [OverSocket(daemon, gateway) for _ in range(n_streams)]
    doors = [ThroughGateway(daemon, gateway) for _ in range(n_streams)]
    out = {"socket": [], "gateway": [], "again": []}
    cpu, n_tokens = 0.0, 0
    for i in range(options.rounds + 1):
        # New prompts in each turn, or the later turns would find them cached.
        turns = [("socket", sockets), ("gateway", doors), ("again", sockets)]
        for kind, clients in (turns[i % 3:] + turns[:i % 3]):
            asks = [{"model": model, "prompt": [2] + [rng.randrange(300, 4000) for _ in range(options.prompt - 1)],
                     "max_tokens": options.tokens, "temperature": 0.8, "seed": s} for s in range(n_streams)]
            before = cpu_s(gateway.process.pid)
            ttft, speed, counts = ask_all(clients, asks)
            if i == 0:
                continue  # caches and connections settle
            if kind == "gateway":
                cpu += cpu_s(gateway.process.pid) - before
                n_tokens += sum(counts)
            out[kind].append((ttft, speed))
    for c in sockets + doors:
        c.socket.close()
    result = {"streams": n_streams, "rounds": options.rounds,
              "gateway_cpu_us_per_token": round(1e6 * cpu / n_tokens, 2)}
    for at, name in enumerate(("ttft", "speed")):
        base = [x[at] for x in out["socket"]]
        result[name] = {"socket": round(statistics.median(base), 3),
                        "gateway": round(statistics.median(x[at] for x in out["gateway"]), 3),
                        "ratio": spread([x[at] / b for x, b in zip(out["gateway"], base)]),
                        "noise": spread([x[at] / b for x, b in zip(out["again"], base)])}
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
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--streams", default="1,64")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    name = os.path.basename(options.model).removesuffix(".gguf")
    out = []
    # TANDEM_GPU=host and the like are the daemon's.
    env = {k: v for k, v in os.environ.items() if k in ("TANDEM_NPU", "TANDEM_GPU", "TANDEM_PLACEMENT")}
    with Daemon(models=[options.model], threads=options.threads or None, placement=None, env=env) as d, Gateway(d) as g:
        for n in (int(n) for n in options.streams.split(",")):
            r = compare(d, g, n, options, name)
            out.append(r)
            if options.json:
                continue
            print(f"{n} streams, {options.rounds} rounds; the gateway uses {r['gateway_cpu_us_per_token']} µs of CPU "
                  "a token")
            for key, unit in (("ttft", "ms to the first token"), ("speed", "tokens a second")):
                v = r[key]
                print(f"  {unit}: socket {v['socket']}, gateway {v['gateway']}; ratio {v['ratio']['median']} "
                      f"{v['ratio']['quartiles']}, socket to socket {v['noise']['median']} {v['noise']['quartiles']}")
        r = idle(g, options.idle) if options.idle else None
    if options.json:
        print(json.dumps({"pairs": out, "idle": r}))
    elif r:
        print(f"{r['connections']} idle connections: {r['before_kib']} -> {r['after_kib']} KiB resident")


main()
