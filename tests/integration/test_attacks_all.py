"""All attacks at once, from three users, for minutes (--minutes N, 10 by default with --full, else half a minute). A
bystander asks for status and generates with the demo model meanwhile. Needs root, to be several users.

What must hold:
- status answers within 200 ms at p99;
- two tokens of the bystander are at most 1 s further apart than its fair share of the device makes them. It has a
  quarter of the device: three attackers and it have work. Users take turns by device time, in steps that the scheduler
  bounds (SHARED_STEP_NS, 250 ms), and four steps may be in flight. So between two of its tokens the others may have
  three steps of 250 ms each, and its own step has to run: allowed are 0.75 s + its own step alone + 1 s, in time that
  the daemon and its workers had a CPU for (the attackers' own processes are nicer than the daemon's);
- the memory of all processes together stays below what was there before and 1,536 MiB: 7/8 of what users may hold of
  frames (256 MiB), waiting texts (128 MiB) and vocabularies (1 GiB), and 300 MiB for caches and small models;
- afterwards, when the attackers have left and idle models are unloaded, it is within 10% of before. Before is a daemon
  that has had WARM_S of all attacks, so that its threads run and its tables and the workers' segments have been written
  once. Both times the same models were described last, as the cache of what is known of models holds megabytes.
  Pages of programs and files count as they did before, since the kernel drops and reads them as it likes;
- it is within 4 MiB of a daemon that has described these models and was never attacked. What grows are tables and
  stacks that have been written once.

The attackers run in a process for each user."""
import argparse
import json
import multiprocessing
import os
import random
import resource
import socket
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from attacks import *  # noqa: E402,F403
from hung_files import *  # noqa: E402,F403
import process_memory  # noqa: E402

STEP_S, OTHERS, BEYOND_S = 0.25, 3, 1.0
WARM_S = 15
KEPT_GRAMMARS = 16  # TDM_GRAMMAR_CACHE_USER_ENTRIES
MEMORY_BYTES = 1536 << 20
TEXT = b"Once upon a time there was a little girl named Lily. She liked to play outside in the park. "


# ---- attackers: each is called again and again with a connection of its own, and may lose it


def long_texts(wire, _):
    rids = [wire.send("tokenize", {"text": (TEXT * 200)[:16 << 10]}) for _ in range(20)]
    for rid in rids:
        wire.receive(rid, 30)


def huge_texts(wire, _):
    wire.receive(wire.send("tokenize", {"text": (TEXT * 12000)[:1 << 20]}), 60)


def many_jobs(wire, _):
    rids = [wire.send("generate", request(prompt=(TEXT * 20).decode(), n=200, seed=i)) for i in range(40)]
    for rid in rids:
        with contextlib.suppress(Refused):
            while wire.receive(rid, 60)[0] not in ("done", "error"):
                pass


def jobs_and_gone(wire, _):
    for i in range(20):
        wire.send("generate", dict(request(prompt="A cat", n=2000, seed=i), ignore_end=True))
    time.sleep(random.random())


def never_reads(wire, _):
    for i in range(30):
        wire.send("models", {})
        wire.send("generate", dict(request(prompt="A dog", n=4000, seed=i), ignore_end=True))
    time.sleep(5)


def costly_model(wire, shared):
    with open(shared["costly"], "rb") as f:
        rid = wire.send("generate", dict(request(prompt="x" * 400, n=60), ignore_end=True,
                                         model={"name": "costly", "from_fd": True}), fd=f.fileno())
        while wire.receive(rid, 120)[0] not in ("done", "error"):
            pass


def small_models(wire, shared):
    for path in random.sample(shared["copies"], 8):
        with open(path, "rb") as f, contextlib.suppress(Refused):
            rid = wire.send("generate", dict(request(ids=[2, 3, 4], n=2), model={"name": TALE, "from_fd": True}),
                            fd=f.fileno())
            while wire.receive(rid, 60)[0] not in ("done", "error"):
                pass


def described(wire, shared):
    for path in random.sample(shared["copies"], 8) + shared["sparse"]:
        with open(path, "rb") as f:
            rid = wire.send("tokenize", {"text": b"Once", "model": {"name": "a\x1b[2Jb", "from_fd": True}},
                            fd=f.fileno())
            wire.receive(rid, 60)


def hung_files(wire, shared):
    for fd in shared["hung"]:
        wire.receive(wire.send("tokenize", {"text": b"a", "model": {"name": "h", "from_fd": True}}, fd=fd), 20)


def odd_fds(wire, _):
    a, b = socket.socketpair()
    r, w = os.pipe()
    for fd in (a.fileno(), r, w, os.memfd_create("x"), b.fileno()):
        wire.receive(wire.send("tokenize", {"text": b"a", "model": {"name": "o", "from_fd": True}}, fd=fd), 20)
        os.close(fd)
    a.detach(), b.detach()


def half_frames(wire, _):
    wire.socket.settimeout(5)
    wire.socket.sendall(struct.pack("<I", 8 << 20) + bytes(7 << 20))
    time.sleep(3)


def dripped(wire, _):
    wire.socket.sendall(struct.pack("<I", 1000))
    for _ in range(50):
        time.sleep(0.2)
        wire.socket.sendall(b"\x00")


def nonsense(wire, _):
    for _ in range(50):
        wire.socket.sendall(struct.pack("<I", random.randrange(300)) + random.randbytes(300))


def many_connections(wire, shared):
    held = []
    with contextlib.suppress(Refused, Closed, OSError):
        for _ in range(300):
            held.append(Wire(shared["socket"], timeout=20))
    time.sleep(1)
    for w in held:
        w.close()


def denied(wire, _):
    for kind, fields in (("load", {"model": {"name": "tale"}}), ("unload", {"name": "tale"}),
                         ("restart", {"worker": "gpu"}), ("trace", {"duration_ms": 1000}), ("cancel", {"job": 1})):
        with contextlib.suppress(Refused, KeyError):
            wire.receive(wire.send(kind, fields), 20)


def finish(wire, *requests):
    """Sends them all, and reads each to its end."""
    rids = [wire.send("generate", r) for r in requests]
    for rid in rids:
        with contextlib.suppress(Refused):
            while wire.receive(rid, 60)[0] not in ("done", "error"):
                pass


def many_alternatives(wire, _):
    finish(wire, *[request(prompt="A king", n=120, temp=1.5, seed=i, top_logprobs=20) for i in range(20)])


def many_biases(wire, _):
    bias = ",".join(f"{random.randrange(2000)}:{random.uniform(-100, 100):.3f}" for _ in range(512))
    finish(wire, *[request(prompt="A king", n=80, temp=1, seed=i, logit_bias=bias) for i in range(20)])


def heavy_penalties(wire, _):
    finish(wire, *[request(prompt="A king", n=300, temp=2, seed=i, repeat_penalty=100, frequency_penalty=2,
                           presence_penalty=-2, min_p=0.999 * (i % 2), top_k=1024) for i in range(20)])


def every_option(wire, _):
    finish(wire, *[request(prompt="A king", n=60, temp=100, seed=i, top_logprobs=20, logit_bias="5:100,6:-100",
                           frequency_penalty=-2, presence_penalty=2, stop=["x" * 256] * 16) for i in range(20)])


def schema(n):
    return json.dumps({"type": "object", "properties": {f"p{i}": {"enum": [f"v{i}{k}" for k in range(20)]}
                                                        for i in range(n)}, "required": [f"p{i}" for i in range(n)]})


def new_schemas(wire, _):
    finish(wire, *[request(prompt="A king", n=60, temp=1, json_schema=schema(random.randrange(5, 60)))
                   for _ in range(8)])


def deep_schemas(wire, _):
    deep = '{"type":"array","items":' * 40 + "{}" + "}" * 40
    finish(wire, *[request(prompt="A king", n=60, temp=1, json_schema=deep, seed=i) for i in range(8)])


def hard_patterns(wire, _):
    finish(wire, *[request(prompt="A king", n=60, temp=1, regex=r) for r in
                   ("(a|b|ab)*c{200}", "(.*a){20}", "[a-z]{1,400}" * 4, "((a?){30}a{30}){3}")])


def hard_grammars(wire, _):
    rules = "root ::= " + " | ".join(f"r{i}" for i in range(200)) + "\n" + "".join(
        f"r{i} ::= [a-z]* r{(i + 1) % 200} | \"x\"\n" for i in range(200))
    finish(wire, *[request(prompt="A king", n=60, temp=1, grammar=rules + f"# {i}\n") for i in range(4)])


def large_tools(wire, _):
    tools = json.dumps([{"type": "function", "function": {"name": f"f{i}", "description": "d" * 500,
                                                          "parameters": json.loads(schema(5))}} for i in range(60)])
    finish(wire, *[request(chat=[("user", "x")], n=40, tools=tools, tool_choice="required") for _ in range(4)])


def long_chats(wire, _):
    chat = [(("user", "assistant")[i % 2], "x" * 30) for i in range(3999)]
    finish(wire, *[request(chat=chat, n=10) for _ in range(4)])


def lists_of_ids(wire, _):
    finish(wire, *[request(ids=[random.randrange(2, 1000) for _ in range(3000)], n=5) for _ in range(8)])


def lists_of_everything(wire, _):
    rids = [wire.send(kind, {}) for _ in range(60) for kind in ("models", "jobs", "status")]
    for rid in rids:
        wire.receive(rid, 60)


def many_guesses(wire, _):
    finish(wire, *[request(prompt="A king and a king and a king", n=200, seed=i, speculation=2, draft_max=16)
                   for i in range(20)])


def long_scores(wire, _):
    rids = [wire.send("score", {"ids": [2 + i % 500 for i in range(2000)], "top": 20}) for _ in range(6)]
    for rid in rids:
        while wire.receive(rid, 60)[0] not in ("done", "error"):
            pass


def cancelled_at_once(wire, _):
    for i in range(100):
        rid = wire.send("generate", request(prompt="A king", n=500, seed=i))
        what, m = wire.receive(rid, 60)
        if what == "accepted":
            wire.send("cancel", {"job": m["job"]})


ATTACKS = [long_texts, long_texts, huge_texts, many_jobs, jobs_and_gone, never_reads, costly_model, small_models,
           described, hung_files, odd_fds, half_frames, half_frames, dripped, nonsense, many_connections, denied,
           many_alternatives, many_biases, heavy_penalties, every_option, new_schemas, deep_schemas, hard_patterns,
           hard_grammars, large_tools, long_chats, lists_of_ids, lists_of_everything, many_guesses, long_scores,
           cancelled_at_once]
assert len(set(ATTACKS)) == 30


def attack(function, shared, over, counts):
    while not over.is_set():
        counts[function.__name__] = counts.get(function.__name__, 0) + 1
        try:
            with Wire(shared["socket"], timeout=60) as wire:
                function(wire, shared)
        except (Refused, Closed, OSError, TimeoutError, KeyError):
            time.sleep(0.1)


def attacker(uid, shared, over, results):
    os.setgroups([])
    os.setresuid(uid, uid, uid)
    os.nice(10)
    random.seed(SEED + uid)  # a process that is forked would draw from a new one
    counts = {}
    threads = [threading.Thread(target=attack, args=(f, shared, over, counts), daemon=True) for f in ATTACKS]
    for t in threads:
        t.start()
    over.wait()
    time.sleep(2)
    results.put((uid, dict(counts)))
    results.close()
    results.join_thread()
    os._exit(0)


class Attackers:
    def __init__(self, shared):
        self.over, self.results = multiprocessing.Event(), multiprocessing.Queue()
        self.processes = [multiprocessing.Process(target=attacker, args=(uid, shared, self.over, self.results),
                                                  daemon=True) for uid in (ATTACKER, SECOND, THIRD)]
        for p in self.processes:
            p.start()

    def end(self):
        """How often each attack was run. A process stays until its hung files do not hang any more."""
        counts = {}
        self.over.set()
        for _ in self.processes:
            for name, n in self.results.get(timeout=120)[1].items():
                counts[name] = counts.get(name, 0) + n
        return counts

    def join(self):
        for p in self.processes:
            p.join(30)


# ---- the bystander


class Bystander:
    """Status on one connection, one generation after another on a second."""

    def __init__(self, d):
        self.d, self.over = d, False
        self.times, self.gaps, self.n_tokens, self.errors = [], [], 0, []
        self.threads = [threading.Thread(target=f) for f in (self.ask, self.generate)]
        self.wires = [wire_of(d, BYSTANDER) for _ in range(2)]
        for t in self.threads:
            t.start()

    def ask(self):
        while not self.over:
            watch = Stopwatch()
            begin = time.monotonic()
            try:
                self.wires[0].call("status", {})
            except Exception as e:  # noqa: BLE001
                self.errors.append(repr(e))
                return
            taken = time.monotonic() - begin
            self.times.append(taken if taken < 0.02 else taken * watch.share())
            time.sleep(0.02)

    def generate(self):
        seed = 0
        while not self.over:
            seed += 1
            w = self.wires[1]
            try:
                rid = w.send("generate", dict(request(n=400, seed=seed, temp=0.8), ignore_end=True))
                last, watch = None, Stopwatch()
                while True:
                    what, m = w.receive(rid, 60 * SLOW)
                    now = time.monotonic()
                    if what == "tokens":
                        self.n_tokens += len(m["tokens"])
                        if last is not None:
                            gap = now - last
                            self.gaps.append(gap if gap < 0.5 else gap * watch.share())
                        last, watch = now, Stopwatch()
                    if what == "error" or what == "done" and m.get("reason") == "DONE_ERROR":
                        self.errors.append(str(m))
                    if what in ("done", "error"):
                        break
                    if self.over:
                        return
            except Exception as e:  # noqa: BLE001
                self.errors.append(repr(e))
                return

    def stop(self):
        self.over = True
        for t in self.threads:
            t.join()
        for w in self.wires:
            w.close()


def parts(d, files=True):
    """{(program, kind of mapping): bytes} of tandemd, its workers and gates; what they share counts once."""
    kinds = {}
    for pid in d.pids():
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{pid}/comm") as f:
                name = f.read().strip()
            for kind, size in process_memory.mappings(pid, files).items():
                kinds[name, kind] = kinds.get((name, kind), 0) + size
    return kinds


def memory(d):
    return sum(parts(d).values())


def grown(before, after):
    """What changed by a quarter of a megabyte or more, in KiB."""
    changes = {k: after.get(k, 0) - before.get(k, 0) for k in before.keys() | after.keys()}
    return {f"{k[0]} {k[1]}": n >> 10 for k, n in changes.items() if abs(n) >= 256 << 10}


def settled(d, seconds=6):
    """Idle models are unloaded after 2 s."""
    end = time.monotonic() + seconds
    while time.monotonic() < end or any(m["state"] == "loaded" for m in d.status()["models"]):
        check(time.monotonic() < end + 60 * SLOW, "idle models are unloaded", d.status()["models"])
        time.sleep(0.5)
    return parts(d, files=False)


def own_gap(d):
    """The longest between two tokens without any other user."""
    b = Bystander(d)
    time.sleep(3)
    b.stop()
    check(not b.errors and b.gaps, "the bystander alone", b.errors)
    return sorted(b.gaps)[int(len(b.gaps) * 0.99)]


def few_grammars(wire, _):
    """As many as are kept for a user: they push out those that are kept."""
    finish(wire, *[request(prompt="A king", n=1, regex=f"a{{{i + 1}}}") for i in range(KEPT_GRAMMARS)])


def warm_up(d, shared, paths):
    """What the daemon keeps by design is there: the described models and compiled grammars that it caches, and its
    threads. Each time these are the same."""
    for uid in (ATTACKER, SECOND, THIRD, BYSTANDER):
        with wire_of(d, uid) as w:
            long_texts(w, shared)
            few_grammars(w, shared)
    with wire_of(d, BYSTANDER) as w:
        costly_model(w, shared)
        small_models(w, shared)
    for path in paths:
        with_file(d, BYSTANDER, path, "tokenize", {"text": b"Once"})


def at_rest(d, shared, paths):
    """What is held when no job runs and the same models were described last."""
    wait_for(lambda: not d.call("jobs").get("jobs"), "jobs end", 30)
    warm_up(d, shared, paths)
    return settled(d)


@test
def all_at_once():
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with contextlib.ExitStack() as stack:
        d = stack.enter_context(system_daemon(args=config("[engine]\nidle-unload = 2s\n"), placement=None))
        paths = stack.enter_context(copies(40))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-all-"))
        os.chmod(folder, 0o755)
        shared = {"socket": d.socket, "copies": paths, "costly": slow_model(), "hung": [], "sparse": [
            array_of_strings(os.path.join(folder, f"{n}.gguf"), b"tokenizer.ggml.tokens", n, TEBIBYTE)
            for n in (TEBIBYTE // 16, 4 << 20)]}
        os.chmod(os.path.dirname(paths[0]), 0o755)
        d.generate(n=50)
        warm_up(d, shared, paths)
        alone = own_gap(d)
        first = sum(settled(d).values())
        earlier = Attackers(shared)
        time.sleep(WARM_S)
        earlier.end()
        earlier.join()
        parts_before, files_before = at_rest(d, shared, paths), process_memory.open_files(d.process.pid)
        before, whole = sum(parts_before.values()), memory(d)
        if available():  # not earlier: who has such a file open cannot leave
            files = stack.enter_context(HungFiles(os.path.join(folder, "mnt"), make_model("tiny"), ATTACKER))
            shared["hung"].append(os.open(files.path, os.O_RDONLY))
            files.hang("flush")
        limit = OTHERS * STEP_S + alone + BEYOND_S
        attackers = Attackers(shared)
        bystander, most, end = Bystander(d), 0, time.monotonic() + 60 * MINUTES
        while time.monotonic() < end and not bystander.errors:
            check(d.process.poll() is None, "tandemd has left", d.process.returncode)
            most = max(most, memory(d))
            time.sleep(2)
        bystander.stop()
        counts = attackers.end()
        if shared["hung"]:
            files.end()
            with contextlib.suppress(OSError):
                os.close(shared["hung"][0])
        attackers.join()
        times, gaps = sorted(bystander.times), sorted(bystander.gaps)
        print(f"attacks, times run: {counts}")
        print(f"FIGURE all_at_once: {MINUTES} min; {len(times)} statuses, p99 {1000 * p99(times):.0f} ms, most "
              f"{1000 * times[-1]:.0f} ms; {bystander.n_tokens} tokens, gaps p99 {1000 * p99(gaps):.0f} ms, most "
              f"{1000 * gaps[-1]:.0f} ms, allowed {1000 * limit:.0f} ms (alone {1000 * alone:.0f} ms); memory before "
              f"{before >> 20} MiB, most {most >> 20} MiB", flush=True)
        check(not bystander.errors, "the bystander", bystander.errors[:3])
        check(all(counts.get(f.__name__) for f in ATTACKS), "every attack ran",
              [f.__name__ for f in ATTACKS if not counts.get(f.__name__)], counts)
        check(p99(times) < 0.2 * SLOW, "status", p99(times))
        check(gaps[-1] < limit * SLOW, "the longest gap between two tokens", gaps[-1], limit)
        check(SANITIZER or most < before + MEMORY_BYTES, "memory", before, most)
        parts_after = at_rest(d, shared, paths)
        after = sum(parts_after.values())
        print(f"FIGURE all_at_once: memory at first {first >> 10} KiB, before {before >> 10} KiB, after "
              f"{after >> 10} KiB; open files before {files_before}, after "
              f"{process_memory.open_files(d.process.pid)}; changed, KiB: {grown(parts_before, parts_after)}",
              flush=True)
        check(SANITIZER or after < before + whole * 0.10, "memory afterwards", before, after, whole)
        check(SANITIZER or after < first + (4 << 20), "memory afterwards, against the beginning", first, after)
        check(process_memory.open_files(d.process.pid) <= files_before + 8, "open files afterwards")


parser = argparse.ArgumentParser(add_help=False)
parser.add_argument("--minutes", type=float)
known, rest = parser.parse_known_args()
MINUTES = known.minutes or (10 if "--full" in rest else 0.5)
sys.argv[1:] = rest
main()
