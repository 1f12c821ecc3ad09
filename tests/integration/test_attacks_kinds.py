"""Two more attacks of each kind that docs/security.md knows, one after the other against one system daemon, while a
bystander asks for status. ATTACKS is the table: kind, attack, what must hold. Beside what it names, each must leave the
bystander's status within 200 ms in nine cases of ten and its generation served. Needs root, to be several users.

The kinds of workers (7: false accusations, 12: figures that cannot be) need a hostile worker. Their further attacks are
in daemon/fleet/test-fleet-rings.c (gpu_cries, false_progress) and tests/hostile (lying-worker), which this table
names."""
import os
import random
import resource
import socket
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from attacks import *  # noqa: E402,F403

LINE = b"Once upon a time there was a little girl named Lily. She liked to play outside in the park. "
LOUD = "evil \x1b[2J\x07" + "é" * 300


class Place:
    """The daemon and the files of all attacks."""

    def __init__(self, d, folder, paths):
        self.d, self.folder, self.paths = d, folder, paths

    def file(self, name, data, size=None):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as f:
            f.write(data)
            if size is not None:
                f.truncate(size)
        return path

    def wires(self, n, uid=ATTACKER):
        return [wire_of(self.d, uid, timeout=60 * SLOW) for _ in range(n)]


def answer(wire, rid):
    """The code of the last answer; None: it went well."""
    while True:
        what, m = wire.receive(rid, 60 * SLOW)
        if what == "error":
            return m["code"]
        if what == "done":
            return (m.get("error") or {}).get("code") or m.get("reason") if m.get("reason") == "DONE_ERROR" else None
        if what in ("tokenize", "ok"):
            return None


def send_file(wire, path, kind, fields, name=None):
    with open(path, "rb") as f:
        return wire.send(kind, dict(fields, model={"name": name or path, "from_fd": True}), fd=f.fileno())


def use(place, uid, path=None, **more):
    """A short generation of that user, with the default model or a file of its own: None, or the error's code."""
    fields = dict(request(ids=[2, 3, 4], n=2), **more)
    with wire_of(place.d, uid, timeout=60 * SLOW) as w:
        return answer(w, send_file(w, path, "generate", fields) if path else w.send("generate", fields))


# ---- 1: places for models


def busy_models(place):
    wires = place.wires(12)
    for w, path in zip(wires, place.paths):
        send_file(w, path, "generate", request(ids=[2, 3, 4], n=4000))
    time.sleep(0.5)
    equal(use(place, BYSTANDER, place.paths[30]), None, "a bystander's model beside models that are all in use")
    close_all(wires)


def failed_models(place):
    for i in range(60):
        path = place.file(f"failed-{i}.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(i))
        equal(use(place, ATTACKER, path), "bad-model", "a file without anything")
    wait_for(lambda: len([m for m in place.d.status()["models"] if "failed-" in m["name"]]) <= 16, "they go", 5)
    equal(use(place, BYSTANDER, place.paths[30]), None, "a bystander's model")


# ---- 2: texts that are bad for a vocabulary


def nearly_control_pieces(place):
    tokenize_slowly(place, [b"<start_of_turn" * 70000, b"<end_of_turn<" * 70000])


def one_endless_word(place):
    tokenize_slowly(place, [b"a" * 1000000, b"\xe2\x96\x81" * 300000, b"\xff\xfe" * 500000])


def tokenize_slowly(place, texts):
    for text in texts:
        watch = Stopwatch()
        with place.wires(1)[0] as w:
            equal(answer(w, w.send("tokenize", {"text": text[:1 << 20], "special": True})), None, "a megabyte")
        check(watch.seconds() < 5 * SLOW, "its time", watch.seconds())


# ---- 3: floods of texts


def short_texts(place):
    push(place, {"text": LINE[:60]})  # these are tokenized on the event loop


def texts_just_too_long_for_the_loop(place):
    push(place, {"text": (LINE * 3)[:257]})


def push(place, values):
    pusher = Pusher(place.wires(60), "tokenize", values)
    time.sleep(2)
    pusher.stop()
    equal(pusher.lost, 0, "connections that were cut")
    check(pusher.sent > 100, "frames", pusher.sent)


# ---- 4: what files claim


def endless_counts(place):
    for i, (n_tensors, n_keys) in enumerate(((1 << 62, 0), (0, 1 << 62), ((1 << 64) - 1, (1 << 64) - 1))):
        path = place.file(f"counts-{i}.gguf", b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys), TEBIBYTE)
        refused_at_once(place, path)


def endless_texts_and_arrays(place):
    key = string(b"general.name")
    for i, value in enumerate((struct.pack("<IQ", 8, (1 << 64) - 1), struct.pack("<IQ", 8, TEBIBYTE // 2),
                               struct.pack("<IIQ", 9, 10, 1 << 61), struct.pack("<IIQ", 9, 9, 1 << 40))):
        path = place.file(f"texts-{i}.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + value, TEBIBYTE)
        refused_at_once(place, path)


def refused_at_once(place, path):
    before, watch = anonymous(place.d.process.pid), Stopwatch()
    code = use(place, ATTACKER, path)
    check(code in ("bad-model", "unsupported"), path, code)
    check(watch.seconds() < 1.0 * SLOW, "the refusal", watch.seconds())
    check(SANITIZER or anonymous(place.d.process.pid) < before + (16 << 20), "memory")


# ---- 5: memory of what is only described


def a_file_that_is_always_new(place):
    path = place.file("new.gguf", open(place.paths[0], "rb").read())
    for i in range(40):
        with open(path, "ab") as f:
            f.write(b"x")
        with place.wires(1)[0] as w:
            answer(w, send_file(w, path, "tokenize", {"text": b"Once"}))
    wait_for(lambda: len([m for m in place.d.status()["models"] if m["name"] == "new"]) <= 1, "older versions go", 10)


def large_vocabularies_that_fail(place):
    before = anonymous(place.d.process.pid)
    for i in range(12):
        path = array_of_strings(os.path.join(place.folder, f"large-{i}.gguf"), b"tokenizer.ggml.tokens", 2 << 20,
                                20 << 20)
        equal(use(place, ATTACKER, path), "bad-model", "two million pieces and no model")
    wait_for(lambda: SANITIZER or anonymous(place.d.process.pid) < before + (24 << 20), "memory is given back", 10)


# ---- 6: what waits


def many_loads(place):
    wires = place.wires(24)
    for w, path in zip(wires, place.paths):
        send_file(w, path, "generate", request(ids=[2, 3, 4], n=2))
    watch = Stopwatch()
    equal(use(place, BYSTANDER), None, "the default model")
    check(watch.seconds() < 5 * SLOW, "the bystander's job", watch.seconds())
    close_all(wires)


def many_long_prompts(place):
    wires = place.wires(12, ATTACKER) + place.wires(12, SECOND)
    text = (LINE * 12000)[:1000000].decode()
    for w in wires:
        w.send("generate", request(prompt=text, n=2))
    watch = Stopwatch()
    equal(use(place, BYSTANDER), None, "a bystander's job beside prompts that wait")
    check(watch.seconds() < 5 * SLOW, "the bystander's job", watch.seconds())
    close_all(wires)


# ---- 8: identity


def the_real_file_under_a_false_name(place):
    with place.wires(1)[0] as w:
        equal(answer(w, send_file(w, TALE, "generate", request(ids=[2, 3, 4], n=2), name=LOUD)), None, "the model")
    with wire_of(place.d, BYSTANDER) as w:
        models = w.call("models", {})["models"]
    equal([m["name"] for m in models if m.get("is_default")], ["tale"], "the default's name")
    check(not any("evil" in m["name"] for m in models), "a stranger's name for it", models)


def garbage_under_the_real_name(place):
    path = place.file("tale.gguf", b"GGUF" + struct.pack("<I", 3) + random.randbytes(4000))
    with place.wires(1)[0] as w:
        equal(answer(w, send_file(w, path, "generate", request(ids=[2, 3, 4], n=2), name=TALE)), "bad-model", "garbage")
    equal(use(place, BYSTANDER), None, "the real one")
    with wire_of(place.d, BYSTANDER) as w:
        wrong = [m for m in w.call("models", {})["models"] if m.get("is_default") and m["state"] == "failed"]
    equal(wrong, [], "the default model's state")


# ---- 9: the device


def costly_jobs_beside_a_deadline(place):
    wires = place.wires(4)
    for w in wires:
        send_file(w, slow_model(), "generate", request(ids=list(range(2, 258)), n=2000))
    time.sleep(1)
    watch = Stopwatch()
    code = use(place, BYSTANDER, max_tokens=100000, deadline_ms=1500)
    check(code in ("deadline", None), "how the job ended", code)
    check(watch.seconds() < 3.0 * SLOW, "a deadline of 1.5 s", watch.seconds())
    close_all(wires)


def many_sequences_of_one_user(place):
    wires = place.wires(4)
    for w in wires:
        for i in range(15):
            w.send("generate", request(prompt="A cat", n=3000, seed=i))
    watch = Stopwatch()
    with wire_of(place.d, BYSTANDER, timeout=60 * SLOW) as w:
        equal(answer(w, w.send("generate", request(n=64))), None, "the bystander's job")
    check(watch.seconds() < 10 * SLOW, "64 tokens beside 60 jobs of another", watch.seconds())
    close_all(wires)


# ---- 10: connections


def silent_connections(place):
    held = []
    for uid in (ATTACKER, SECOND, THIRD):
        with as_user(uid):
            for _ in range(200):
                s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                s.setblocking(False)
                with contextlib.suppress(OSError):
                    s.connect(place.d.socket)
                held.append(s)
    equal([use(place, uid) for uid in (BYSTANDER, 0)], [None, None], "the bystander and root")
    close_all(held)


def connections_that_come_and_go(place):
    end, n = time.monotonic() + 2, 0
    while time.monotonic() < end:
        with contextlib.suppress(Refused, Closed, OSError):
            place.wires(1)[0].close()
            n += 1
    equal(use(place, BYSTANDER), None, f"after {n} connections")


# ---- 11: rights


def management(place):
    place.d.generate(n=1)
    with place.wires(1)[0] as w:
        job = wire_of(place.d, BYSTANDER, timeout=60 * SLOW)
        rid = job.send("generate", request(n=2000))
        number = job.receive(rid)[1]["job"]
        for kind, fields in (("unload", {"name": "tale"}), ("restart", {"worker": "gpu"}),
                             ("trace", {"duration_ms": 100}), ("cancel", {"job": number})):
            code = answer(w, w.send(kind, fields))
            check(code in ("denied", "no-job"), f"{kind} by a stranger", code)
        while (end := job.receive(rid))[0] != "done":
            pass
        equal((end[1].get("reason"), end[1].get("generated_tokens")), ("DONE_LENGTH", 2000), "the bystander's job")
        job.close()


def loads_that_are_refused(place):
    with place.wires(1)[0] as w:
        equal(answer(w, send_file(w, place.paths[35], "load", {}, name="refused-one")), "denied", "a load with a file")
    with wire_of(place.d, 0) as w:
        check(not any("refused-one" in m["name"] for m in w.call("models", {})["models"]), "nothing was opened")


# ---- 13: frames, texts of errors


def lengths_that_cannot_be(place):
    for head in (b"\xff\xff\xff\xff", b"\x01\x00\x80\x00", b"\x00\x00\x00\x80", b"\x00\x00\x00\x00" * 300):
        with place.wires(1)[0] as w, contextlib.suppress(OSError, Closed, Refused):
            w.socket.sendall(head + random.randbytes(1000))
            w.receive(1, 0.2)
        check(place.d.process.poll() is None, "tandemd lives", head)


def names_that_command_terminals(place):
    for name in (LOUD, "é" * 3000, "../" * 900, "\u202egpj.exe"):
        with place.wires(1)[0] as w:
            rid = w.send("generate", request(ids=[2, 3, 4], n=2, model=name))
            what, m = w.receive(rid, 20 * SLOW)
        equal(what, "error", name[:20])
        check(not any(ord(c) < 32 or ord(c) == 127 for c in m["message"]), "control characters", m["message"])
        check(len(m["message"].encode()) < 1024, "its length", m["message"])


ATTACKS = [  # kind, attack, what holds
    (1, busy_models, "a model of another user finds a place beside models that are all in use"),
    (1, failed_models, "files that fail take no place"),
    (2, nearly_control_pieces, "a megabyte of control pieces' beginnings takes under 5 s, beside the loop"),
    (2, one_endless_word, "so does a megabyte that is one word, or no text at all"),
    (3, short_texts, "60 connections of texts short enough for the event loop do not fill it"),
    (3, texts_just_too_long_for_the_loop, "nor do those that go to the threads"),
    (4, endless_counts, "2^62 tensors or keys are refused at once, without memory"),
    (4, endless_texts_and_arrays, "so are a text and arrays longer than the file"),
    (5, a_file_that_is_always_new, "a file that changes before each request leaves no older versions"),
    (5, large_vocabularies_that_fail, "memory for what turns out to be no model comes back"),
    (6, many_loads, "24 loads at once do not delay the default model"),
    (6, many_long_prompts, "24 prompts of a megabyte do not keep another user's out"),
    (8, the_real_file_under_a_false_name, "the default model keeps its name"),
    (8, garbage_under_the_real_name, "the default model stays usable"),
    (9, costly_jobs_beside_a_deadline, "a deadline is kept beside costly jobs"),
    (9, many_sequences_of_one_user, "60 jobs of one user do not starve another's"),
    (10, silent_connections, "600 connections that say nothing keep nobody out"),
    (10, connections_that_come_and_go, "nor do connections without end"),
    (11, management, "a stranger unloads, restarts, traces and cancels nothing"),
    (11, loads_that_are_refused, "a refused load has opened nothing"),
    (13, lengths_that_cannot_be, "frames of impossible lengths end their connection alone"),
    (13, names_that_command_terminals, "errors hold no control characters and are cut"),
]
ELSEWHERE = {7: "test-daemon-fleet-rings", 12: "integration-lying-worker"}


def close_all(held):
    for h in held:
        h.close()


class Asker:
    """The bystander's status while an attack runs, on a connection from before."""

    def __init__(self, d):
        self.wire, self.times, self.over, self.error = wire_of(d, BYSTANDER, timeout=60 * SLOW), [], False, None
        self.watch = Stopwatch()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.over:
            begin = time.monotonic()
            try:
                self.wire.call("status", {})
            except Exception as e:  # noqa: BLE001
                self.error = repr(e)
                return
            self.times.append(time.monotonic() - begin)
            time.sleep(0.01)

    def stop(self):
        self.over = True
        self.thread.join()
        self.wire.close()
        return sorted(t * self.watch.share() for t in self.times)


@test
def table():
    """Every attack of the table."""
    equal(sorted({kind for kind, _, _ in ATTACKS} | set(ELSEWHERE)), list(range(1, 14)), "kinds")
    check(all(len([k for k, _, _ in ATTACKS if k == kind]) >= 2 for kind in range(1, 14) if kind not in ELSEWHERE),
          "two of each kind")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    slow_model()
    with tempfile.TemporaryDirectory(prefix="tandem-kinds-") as folder, copies(36) as paths, system_daemon() as d:
        place = Place(d, folder, paths)
        d.generate(n=2)
        for kind, attack, holds in ATTACKS:
            asker = Asker(d)
            begin = time.monotonic()
            try:
                attack(place)
            finally:
                times = asker.stop()
            check(not asker.error, f"{attack.__name__}: the bystander", asker.error)
            wait_for(lambda: not d.call("jobs").get("jobs"), "jobs end", 30)
            equal(use(place, BYSTANDER), None, f"{attack.__name__}: the bystander's generation")
            print(f"FIGURE kinds: {kind:2} {attack.__name__}: {holds}; {time.monotonic() - begin:.1f} s, "
                  f"{len(times)} statuses, p99 {1000 * p99(times):.0f} ms", flush=True)
            check(p90(times) < 0.2 * SLOW, f"{attack.__name__}: a bystander's status", p99(times))


main()
