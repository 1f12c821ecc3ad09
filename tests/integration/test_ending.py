"""SIGTERM at any moment, whatever is under way: tandemd ends with status 0, within its limit, and leaves no process.
What its threads encode, load, look up and close comes back to a daemon that is being taken down."""
import collections
import os
import random
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

TEXT = "Once upon a time there was a king. " * 150
LAST = ("ok", "done", "error", "tokenize", "status")  # replies
JSON_SCHEMA = json.dumps({"type": "object", "required": ["a"],
                          "properties": {"a": {"type": "array", "items": {"type": "string"}}}})


def embedding():
    return make_model("a", "q8_0", arch="gemma-embedding", seed=1)


def own_file():
    return make_model("tiny")


def generate(d, rng, **more):
    n, temp = rng.choice((3, 40, d.most_tokens)), rng.choice((0.0, 1.0))
    job = Job(d, **request(n=n, temp=temp, seed=rng.randrange(99), **more))
    if rng.random() < 0.3:
        time.sleep(rng.random() / 10)
        job.vanish()
    else:
        job.wait(60 * SLOW)


def call(d, kind, values, path=None):
    """Until the last reply."""
    with contextlib.ExitStack() as open_now, d.wire(timeout=60 * SLOW) as w:
        more = {"fd": open_now.enter_context(open(path, "rb")).fileno()} if path else {}
        rid = w.send(kind, values, **more)
        while True:
            what, m = w.receive(rid)
            if what == "error":
                raise Refused(m)
            if what in LAST or what == "trace" and m.get("last"):
                return


def half_a_frame(d, rng):
    with d.wire(timeout=10 * SLOW) as w:
        w.send_bytes(b"\x00\x10\x00\x00" + bytes(rng.randrange(100)))
        time.sleep(rng.random() / 5)


MINE = {"name": "mine.gguf", "from_fd": True}
ACTIONS = {
    "generate": generate,
    "long prompt": lambda d, rng: generate(d, rng, prompt=TEXT),
    "schema": lambda d, rng: generate(d, rng, json_schema=JSON_SCHEMA, ignore_end=False),
    "another model": lambda d, rng: generate(d, rng, model="sprout"),
    "draft": lambda d, rng: generate(d, rng, draft="sprout"),
    "tokenize": lambda d, rng: call(d, "tokenize", {"text": TEXT.encode() * 20}),
    "own file": lambda d, rng: call(d, "tokenize", {"text": b"Once", "model": MINE}, own_file()),
    "load": lambda d, rng: call(d, "load", {"model": MINE}, own_file()),
    "unload": lambda d, rng: call(d, "unload", {"name": "mine"}),
    "score": lambda d, rng: call(d, "score", {"ids": [rng.randrange(300, 4000) for _ in range(200)], "top": 3}),
    "embed": lambda d, rng: call(d, "embed", {"text": TEXT.encode()[:2000],
                                              "model": {"name": os.path.basename(embedding())[:-len(".gguf")]}}),
    "restart": lambda d, rng: call(d, "restart", {"worker": rng.choice(("npu", "gpu"))}),
    "trace": lambda d, rng: call(d, "trace", {"duration_ms": 100, "past": True}),
    "status": lambda d, rng: call(d, "status", {}),
    "half a frame": half_a_frame,
}


def daemon(rng, most_tokens):
    d = Daemon(models=(TALE, SPROUT, embedding()), system=rng.random() < 0.5,
               placement=rng.choice((None, "split", "gpu")))
    d.most_tokens = most_tokens
    return d


def client(d, rng, stop, begun):
    while not stop.is_set():
        name = rng.choice(list(ACTIONS))
        begun[name] += 1
        try:
            ACTIONS[name](d, rng)
        except (OSError, EOFError, Closed, Refused, AssertionError):  # the daemon ends
            time.sleep(0.01)


def end(d, rng):
    """Sometimes asked twice, as by an admin who does not wait: then it cancels what runs."""
    begin, watch = time.monotonic(), Stopwatch()
    d.process.send_signal(rng.choice((signal.SIGTERM, signal.SIGINT)))
    if rng.random() < 0.3:
        time.sleep(rng.random() / 10)
        d.process.send_signal(rng.choice((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)))
    equal(d.wait_end(), None, "what was wrong with its end")
    # Said 12 s after the signal. Where others had the CPUs for the most of them, a thread that works is still there.
    check(SANITIZER or "ended without it" not in d.log() or watch.seconds() < 6, "no thread hung", d.log())
    d.expect_exit = None
    return time.monotonic() - begin


@test
def each_is_served():
    """Else the other test would end a daemon that does nothing."""
    rng = random.Random(1)
    with daemon(rng, 100) as d:
        for name, action in ACTIONS.items():
            print(name, flush=True)
            action(d, rng)


@test
def at_any_moment():
    seed = int(os.environ.get("TANDEM_TEST_SEED", str(int(time.time()))))
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    begun, took = collections.Counter(), []
    for i in range(times(8, 100, 4)):
        stop, clients = threading.Event(), []
        try:
            with daemon(rng, 4000) as d:
                clients = [threading.Thread(target=client, args=(d, random.Random(rng.random()), stop, begun))
                           for _ in range(rng.choice((0, 1, 4, 12)))]
                for c in clients:
                    c.start()
                time.sleep(rng.choice((0, 0.02, 0.1, 0.5, 1.5)) * rng.random() * SLOW)
                took.append(end(d, rng))
        except BaseException:
            print(f"round {i} of seed {seed}", flush=True)
            raise
        finally:
            stop.set()
            for c in clients:
                c.join()
    print(f"FIGURE ending: {len(took)} times, the longest took {max(took):.1f} s; begun: {dict(begun)}")


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from tandem_test import Daemon
with Daemon() as d:
    print(d.dir, *d.pids(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@test
def a_killed_test_leaves_no_daemon():
    r = subprocess.run([sys.executable, "-B", "-c", KILLED, os.path.dirname(sys.modules["tandem_test"].__file__)],
                       stdout=subprocess.PIPE, text=True, timeout=60 * SLOW)
    equal(r.returncode, -signal.SIGKILL, "how the other test ended")
    folder, *pids = r.stdout.split()
    try:
        check(len(pids) > 1, "tandemd and its workers", r.stdout)
        wait_for(lambda: not any(alive(int(pid)) for pid in pids), f"the end of {pids}", 15)
    finally:
        for pid in filter(alive, map(int, pids)):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder)


main()
