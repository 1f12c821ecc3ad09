"""Jobs on D-Bus outlive the daemon where the service manager keeps their journals and pipes; this file plays it. A
client reads on in its pipe, and finds its job under the same path."""
import atexit
import contextlib
import functools
import itertools
import os
import random
import resource
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from lives import Held, ask_to_end, leave, let_go  # noqa: E402
from tandem_bus import *  # noqa: E402,F403
from tandem_test import *  # noqa: E402,F403

N = 200  # tokens
TOOL = json.dumps([{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 400}}, "required": ["city"]}}}])
CHATS = {"tools": {"tools": TOOL, "tool-choice": "required", "temperature": 1.2, "seed": 13},
         "thoughts": {"thinking": "on", "thinking-budget": 90, "temperature": 1.8, "seed": 9}}
JOBS = {"text": {}, "events": {"output": "events", "top-logprobs": 2},
        "sampled": {"output": "events", "temperature": 0.9, "repeat-penalty": 1.3},
        "stop": {"output": "events", "stop": ["no text says this"], "temperature": 0.7},
        "regex": {"output": "events", "temperature": 1.3, "regex": "(a|é|字| ){150,200}"}, **CHATS}
REQUEST_AT, TOKENS_AT, TEXT_AT, LOG_AT = 4096, 8 << 20, 16 << 20, 32 << 20  # daemon/faces/dbus/journal.c


class Keeping(Held):
    """The manager keeps what the daemon gives it, and passes it to the next one."""

    def __init__(self, bus, store=512, **more):
        super().__init__(hang_ms=STANDING_MS, **more)
        self.extra_env.update(FDSTORE=str(store), DBUS_SYSTEM_BUS_ADDRESS="unix:path=/none")
        self.bus, self.kept, self.notified, self.most = bus.address, {}, None, store
        self.reads, self.stands = threading.Event(), threading.Event()

    def start(self):
        if not self.notified:
            path = os.path.join(self.dir, "notify")
            self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.notified.bind(path)
            self.extra_env["NOTIFY_SOCKET"] = path
            threading.Thread(target=self._listen, daemon=True).start()
        self._hear()
        super().start()

    def _hear(self):
        """Returns when all that was sent before is heard."""
        heard = "heard-" + str(time.monotonic_ns())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s, tempfile.TemporaryFile() as f:
            s.connect(self.extra_env["NOTIFY_SOCKET"])
            socket.send_fds(s, [b"FDSTORE=1\nFDNAME=" + heard.encode()], [f.fileno()])
        wait_for(lambda: heard in self.kept, "the manager has heard all")
        os.close(self.kept.pop(heard))

    def _listen(self):
        while True:
            message, fds, _, _ = socket.recv_fds(self.notified, 4096, 8)
            fields = dict(line.split("=", 1) for line in message.decode().splitlines() if "=" in line)
            name = fields.get("FDNAME", "")
            if "STAND" in fields:
                self.stands.set()
                self.reads.wait()
            elif "FDSTORE" in fields and len(self.kept) >= self.most and not name.startswith("heard-"):
                os.close(fds[0])  # without a word, as systemd does
            elif "FDSTORE" in fields:
                self.kept[name], = fds
            elif "FDSTOREREMOVE" in fields and name in self.kept:
                os.close(self.kept.pop(name))

    @contextlib.contextmanager
    def reads_nothing(self):
        """The manager stands still meanwhile, and its queue has no room."""
        self.reads.clear()
        self.stands.clear()
        with contextlib.ExitStack() as senders:
            def sender():
                s = senders.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
                s.connect(self.extra_env["NOTIFY_SOCKET"])
                return s

            def sent(s):
                """How many messages this socket gets rid of: it has a limit of its own, beside the queue's."""
                s.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    for n in itertools.count():
                        s.send(b"STATUS=waiting")
                return n
            sender().send(b"STAND=1")
            wait_for(self.stands.is_set, "the manager stands still")
            while sent(sender()) > 0:
                pass
        try:
            yield
        finally:
            self.reads.set()

    def stored(self):
        return list(self.kept.items())

    def journals(self):
        return [name for name in list(self.kept) if not name.endswith("-pipe")]

    def __exit__(self, *exc):
        try:
            return super().__exit__(*exc)
        finally:
            for fd in self.kept.values():
                os.close(fd)


class Reader:
    """A job, and what its pipe says."""

    def __init__(self, client, name, read=True, **more):
        self.client, self.data, self.ended = client, b"", threading.Event()
        options = {"model": "npu" if name in CHATS else "tale", "max-tokens": N, "seed": 7, **JOBS[name], **more}
        if name in CHATS:
            options["output"] = "events"
            messages = client.dbus.Array([("user", "hi")], signature="(ss)")
            path, fd = client.call(ROOT, MANAGER, "Chat", "a(ss)a{sv}", messages, client.options(options))
            self.path, self.fd = str(path), fd.take()
        else:
            self.path, self.fd = client.generate("Two kings", **options)
        self.thread = threading.Thread(target=self._read, daemon=True)
        if read:
            self.thread.start()

    def _read(self):
        while piece := os.read(self.fd, 4096):
            self.data += piece
        os.close(self.fd)
        self.ended.set()

    def has(self, n):
        return len(self.data) >= n or self.ended.is_set()

    def read_now(self):
        """Of one that was not read."""
        self.thread.start()
        wait_for(self.ended.is_set, "the end of the pipe", 120)
        return self.data

    def said(self):
        """What must be the same: all but times, the numbers of events and the ids of calls."""
        wait_for(self.ended.is_set, "the end of the pipe", 120)
        if not self.data.startswith(b"{"):
            return self.data
        events = [json.loads(line) for line in self.data.splitlines()]
        equal([e["seq"] for e in events], list(range(len(events))), "numbers of events")
        equal([e["event"] for e in events].count("accepted"), 1, "accepted, once")
        tokens = [e for e in events if e["event"] == "token"]
        equal([e["index"] for e in tokens], list(range(len(tokens))), "indices of tokens")
        done = events[-1]
        equal(done["event"], "done", "the last event")
        told = [{k: v for k, v in e.items() if k not in ("seq", "numerics_id") and (k, e["event"]) != ("id", "call")}
                for e in events if e["event"] in ("token", "call", "arguments", "thinking")]
        return told, {k: done.get(k) for k in ("reason", "text", "prompt_tokens", "generated_tokens",
                                               "thinking_tokens", "incomplete", "degraded")}


class Drawn(Reader):
    """It counts tokens that were told, where there are events, and not bytes: progress makes those too."""

    def has(self, n):
        told = self.data.count(b'"event":"token"') if self.data.startswith(b"{") else len(self.data)
        return told >= n or self.ended.is_set()


@functools.cache
def models():
    """Tale, and a random one that thinks and calls tools."""
    folder = make_folder()
    atexit.register(shutil.rmtree, folder)
    renamed = os.path.join(folder, "npu.gguf")
    os.symlink(make_model("npu", "q8_0", arch="qwen3", chat="qwen3-thinking"), renamed)
    return TALE, renamed


@contextlib.contextmanager
def on_a_bus(**more):
    with Bus() as bus, contextlib.closing(Client(bus)) as client, Keeping(bus, **more) as d:
        client.wait()
        d.wait_ready()
        yield bus, d, client


def forgotten(d):
    """Their objects are gone, so that nothing is kept."""
    wait_for(lambda: not d.kept, "nothing is kept any more")


def follow(d, client):
    """Starts the next daemon, when the bus knows that the earlier one is gone."""
    wait_for(lambda: not client.connection.name_has_owner(NAME), "the name is free")
    d.start()
    client.wait()


def kill(d, workers):
    d.kill()
    d._hear()


def caught(d, begin, n, way=kill, of=all):
    """Ends the daemon while all (or any) jobs that begin() makes are in their midst, and have said n bytes."""
    for _ in range(20):
        d.wait_ready()
        with d.standing() as workers:
            jobs = begin()
            run_in_slices(workers, lambda: all(job.has(n) for job in jobs), "output")
            left = len(d.jobs())
            if left == len(jobs) or left > 0 and of is any:
                way(d, workers)
                d.expect_exit = 0
                return jobs
        for job in jobs:
            job.said()
    raise AssertionError("the jobs were never in their midst")


def begun(d, reader):
    """The manager has heard of it: a socket holds ten messages, as some machines are set up."""
    d._hear()
    return reader


def survive(way, rounds, seed):
    with on_a_bus(models=models()) as (bus, d, client):
        want = {name: Reader(client, name).said() for name in JOBS}
        rng = random.Random(seed)
        for i in range(rounds):
            jobs = caught(d, lambda: [begun(d, Reader(client, name)) for name in JOBS], rng.randrange(1, 400), way, any)
            follow(d, client)
            for name, job in zip(JOBS, jobs):
                equal(job.said(), want[name], f"{name}, round {i}")
                done = client.until_done(job.path)
                check(done["Result"] in ("length", "stop"), f"{name}: result", done)
                equal(str(done["Owner"]), client.connection.get_unique_name(), "its owner")
            equal(client.text(jobs[0].path).encode(), want["text"], "GetText")
            check(d.log().count("of an earlier daemon goes on") > i, "jobs that went on")


@test
def killed():
    survive(kill, times(2, 40), 1)


@test
def told_to_end():
    survive(leave, times(1, 40), 2)


@test
def killed_again_and_again():
    """The next daemon dies over them too, some tokens further."""
    def begin():
        # The next daemon goes on with it before its workers can be stopped.
        return Reader(client, "sampled", **{"max-tokens": 2000})
    with on_a_bus() as (bus, d, client):
        want = begin().said()
        job, = caught(d, lambda: [begin()], 300)
        n_more = 0
        for _ in range(20):
            follow(d, client)
            d.wait_ready()
            with d.standing() as workers:
                run_in_slices(workers, lambda n=len(job.data): job.has(n + 300), "more output")
                again = len(d.jobs()) > 0
                if again:
                    d.kill()
            n_more += again
            if n_more == 3:
                break
            if not again:  # it ended before it was caught
                equal(job.said(), want, "the job")
                job, = caught(d, lambda: [begin()], 300)
        equal(n_more, 3, "daemons that died over it")
        follow(d, client)
        equal(job.said(), want, "the job")
        d.expect_exit = 0


@test
def owners_and_those_that_linger():
    """A job whose owner left while no daemon was there is forgotten, but for one that lingers."""
    with on_a_bus() as (bus, d, client):
        want = Reader(client, "text").said()
        leaver = Client(bus)

        tries = itertools.count()

        def begin():
            i = next(tries)
            return [begun(d, Reader(leaver, "text", token=f"gone{i}")),
                    begun(d, Reader(leaver, "text", token=f"lingers{i}", linger=True)),
                    begun(d, Reader(client, "text", token=f"stays{i}"))]
        gone, lingers, stays = caught(d, begin, 10)
        leaver.close()
        follow(d, client)
        equal((stays.said(), lingers.said()), (want, want), "those that stay")
        check(len(gone.said()) < len(want), "the pipe of one that is forgotten ends")
        equal(str(client.until_done(lingers.path)["Owner"]), "", "the owner of one that lingers")
        equal(client.text(lingers.path).encode(), want, "GetText")
        equal(client.refused(gone.path, JOB, "GetText", "t", 0), "org.freedesktop.DBus.Error.UnknownObject",
              "one that is forgotten")
        check("its owner has left the bus" in d.log(), "it is said", d.log()[-2000:])
        d._hear()
        n = len(d.journals())
        client.call(lingers.path, JOB, "Release", "")
        wait_for(lambda: len(d.journals()) == n - 1, "one that was released is not kept")


@test
def ended_ones():
    """A job that had ended is there again: its result, its text, and what its pipe had not taken."""
    with on_a_bus() as (bus, d, client):
        slow = Reader(client, "events", read=False, **{"top-logprobs": 20})  # more than a pipe holds
        read = Reader(client, "text")
        want = read.said()
        ended = client.until_done(slow.path), client.until_done(read.path)
        cancelled = Reader(client, "text", **{"max-tokens": 100000})
        client.call(cancelled.path, JOB, "Cancel", "")
        cancelled.said()
        wait_for(lambda: len(d.kept) == 4, "three journals, and one pipe that is not read")
        for way in (lambda: d.kill(), lambda: leave(d)):
            way()
            follow(d, client)
            for job, before in zip((slow, read), ended):
                after = client.all(job.path, JOB)
                equal({k: v for k, v in after.items() if k != "Id"}, {k: v for k, v in before.items() if k != "Id"},
                      "its properties")
            equal(client.text(read.path).encode(), want, "GetText")
        slow.thread.start()
        told, done = slow.said()
        equal((len(told), done["reason"]), (N, "length"), "what was read late")
        equal("".join(e["text"] for e in told) + done["text"], client.text(slow.path), "the same text")
        client.close()
        forgotten(d)
        d.expect_exit = 0


def damaged(fd, rng):
    """A copy with other bytes where bytes are in use, or cut off, or with another offset."""
    copy = os.memfd_create("damaged")
    for at, size in ((0, REQUEST_AT + 4096), (TOKENS_AT, 4096), (TEXT_AT, 4096), (LOG_AT, 65536)):
        os.pwrite(copy, os.pread(fd, size, at), at)
    kind = rng.randrange(8)
    if kind == 0:
        os.ftruncate(copy, rng.randrange(LOG_AT))
    for _ in range(rng.randrange(1, 5) if kind > 0 else 0):
        at, size = rng.choice(((0, 776), (2048, 300), (REQUEST_AT, 150), (TOKENS_AT, 80), (TEXT_AT, 20)))
        at += rng.randrange(size)
        os.pwrite(copy, bytes([os.pread(copy, 1, at)[0] ^ rng.randrange(1, 256)]), at)
    os.lseek(copy, os.lseek(fd, 0, os.SEEK_CUR) if kind != 1 else rng.randrange(LOG_AT), os.SEEK_SET)
    return copy


@test
def damaged_ones():
    """Beside one that is whole: they are said and dropped."""
    with on_a_bus() as (bus, d, client):
        want = Reader(client, "sampled").said()
        rng = random.Random(3)
        n = 0
        for _ in range(2):
            job, = caught(d, lambda: [Reader(client, "sampled")], 2500)
            whole = d.kept[d.journals()[-1]]
            for _ in range(times(200, 2000) // 2):
                n += 1
                d.kept[f"job-{n:016x}"] = damaged(whole, rng)
            follow(d, client)
            equal(job.said(), want, "the one that is whole")
            wait_for(lambda: not any(name.startswith("job-000000") for name in list(d.kept)), "none of them is kept")
        text = d.log()
        equal(text.count("an earlier daemon is forgotten: "), n, "each is said")
        check(text.count("its journal cannot be used, it") > n * 0.9, "why", text[-3000:])
        for what in ("its head is damaged", "its state is damaged", "its request is damaged", "its tokens are damaged",
                     "its text is damaged"):
            check(what in text, what)


@test
def of_another_version():
    with on_a_bus() as (bus, d, client):
        want = Reader(client, "text").said()
        job, = caught(d, lambda: [Reader(client, "text")], 10)
        os.pwrite(d.kept[d.journals()[-1]], b"\x02", 8)
        follow(d, client)
        check(len(job.said()) < len(want), "its pipe ends")
        check("it is of version 2; this daemon reads version 1" in d.log(), "it is said", d.log()[-2000:])
        equal(client.refused(job.path, JOB, "GetText", "t", 0), "org.freedesktop.DBus.Error.UnknownObject", "the job")


@test
def no_room():
    """The journal cannot grow, or is not taken: the job is what it was before there were journals. All is told."""
    with on_a_bus() as (bus, d, client):
        want = {name: Reader(client, name).said() for name in ("text", "events")}
        for limit in (LOG_AT + 2000, TEXT_AT + 5, TOKENS_AT + 80):
            with d.standing() as workers:
                jobs = {name: Reader(client, name) for name in want}
                resource.prlimit(d.process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            for name, job in jobs.items():
                equal(job.said(), want[name], f"{name}, up to {limit} bytes")
            resource.prlimit(d.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            check("ends with this daemon: " not in d.log(), "no word")
        check("cannot be kept: File too large; the job ends with this daemon" in d.log(), "it is said")
    with on_a_bus(store=4) as (bus, d, client):
        jobs = caught(d, lambda: [begun(d, Reader(client, "text")) for _ in range(4)], 10)
        equal(len(d.journals()), 2, "no more than the manager keeps")
        follow(d, client)
        equal(sum(job.said() == want["text"] for job in jobs), 2, "those that go on")
        equal(Reader(client, "text").said(), want["text"], "one that ended makes room")


@test
def cut_before():
    """More was said than is kept for a reader that stands still. The next daemon tells what was kept, and no more."""
    class Cut(Reader):
        def __init__(self):
            super().__init__(client, "events", model="random", read=False, **{"max-tokens": 3500, "top-logprobs": 20})

        def has(self, n):
            return client.get(self.path, JOB, "OutputCut")

        def said(self):
            return self.read_now()

    model = make_model("tiny", seed=1)
    folder = make_folder()
    os.symlink(model, os.path.join(folder, "random.gguf"))
    try:
        with on_a_bus(models=(os.path.join(folder, "random.gguf"),)) as (bus, d, client):
            job, = caught(d, lambda: [begun(d, Cut())], 0)
            follow(d, client)
            done = client.until_done(job.path)
            equal((done["Result"], done["OutputCut"]), ("length", True), "how it ends")
            lines = job.read_now().splitlines(keepends=True)
            check(lines[-1].endswith(b"\n"), "whole lines", lines[-1])
            events = [json.loads(line) for line in lines]
            equal([e["seq"] for e in events], list(range(len(events))), "numbers of events")
            tokens = [e for e in events if e["event"] == "token"]
            equal([e["index"] for e in tokens], list(range(len(tokens))), "indices of tokens")
            check(len(job.data) > 1 << 20 and events[-1]["event"] == "token", "a beginning", events[-1])
            whole = client.text(job.path)
            check(whole.startswith("".join(e["text"] for e in tokens)), "GetText has all")
            again = Reader(client, "text", model="random", **{"max-tokens": 3500})
            equal(again.said().decode(), whole, "the text of a job that nothing befell")
    finally:
        shutil.rmtree(folder)


CHANGED = "dev.tandem.Tandem1.Error.ModelChanged"


@test
def another_model():
    """A model is exchanged while no daemon is there. No word of the other one is told."""
    folder = make_folder()
    path = os.path.join(folder, "named.gguf")
    first = make_model("tiny", seed=1)
    others = [make_model("tiny", seed=2), make_model("tiny", type="q4_0", seed=1),
              make_model("tiny", vocab=400, seed=1)]
    os.symlink(first, path)
    try:
        with on_a_bus(models=(path,)) as (bus, d, client):
            kinds = ("events", "sampled", "text")
            want = {kind: Reader(client, kind, model="named").said() for kind in kinds}
            for other in others:
                jobs = caught(d, lambda: [begun(d, Drawn(client, kind, model="named")) for kind in kinds], 5)
                os.unlink(path)
                os.symlink(other, path)
                follow(d, client)
                for kind, job in zip(kinds, jobs):
                    said, done = job.said(), client.until_done(job.path)
                    equal((done["Result"], done["ErrorName"]), ("error", CHANGED), f"{kind}, {other}")
                    text = client.text(job.path)
                    if kind == "text":
                        equal(said.decode(), text, "what the reader has")
                        check(want[kind].startswith(said), "no other text", said)
                    else:
                        told, end = said
                        equal(told, want[kind][0][:len(told)], "no other tokens")
                        equal((end["reason"], end["text"]), ("error", ""), "the last event")
                        equal("".join(e["text"] for e in told), text, "GetText")
                os.unlink(path)
                os.symlink(first, path)
                d.kill()
                follow(d, client)
            d.expect_exit = 0
    finally:
        shutil.rmtree(folder)


@test
def no_model_any_more():
    """A model is removed while no daemon is there. A job of it says how it ended; one that had ended is there again."""
    def begin():
        return [begun(d, Drawn(client, kind, model="leaves")) for kind in ("events", "regex", "text")]
    with on_a_bus() as (bus, d, client):
        folder = os.path.join(d.environment()["XDG_DATA_HOME"], "tandem", "models")
        path = os.path.join(folder, "leaves.gguf")
        os.makedirs(folder)
        os.symlink(TALE, path)
        ended = Reader(client, "text", model="leaves")
        whole = ended.said()
        before = client.until_done(ended.path)
        jobs = caught(d, begin, 20)
        os.unlink(path)
        follow(d, client)
        for job in jobs:
            said, done = job.said(), client.until_done(job.path)
            equal((done["Result"], done["ErrorName"], done["Model"]),
                  ("error", "dev.tandem.Tandem1.Error.NoModel", "leaves"), "how it ends")
            check("no model is named leaves" in done["ErrorMessage"], "why", done["ErrorMessage"])
            text = client.text(job.path)
            if isinstance(said, bytes):
                equal((said.decode(), whole.startswith(said)), (text, True), "what the reader has")
                continue
            told, end = said
            equal("".join(e["text"] for e in told), text, "GetText")
            equal((end["reason"], end["text"], end["generated_tokens"]), ("error", "", len(told)), "the last event")
            equal(done["GeneratedTokens"], len(told), "tokens that were told")
        after = client.all(ended.path, JOB)
        equal({k: v for k, v in after.items() if k != "Id"}, {k: v for k, v in before.items() if k != "Id"},
              "the properties of one that had ended")
        equal(client.text(ended.path).encode(), whole, "its text")
        client.close()
        forgotten(d)


@test
def a_manager_that_reads_late():
    """It is told again: what it is to drop first, since it has room for three jobs only."""
    with on_a_bus(store=6) as (bus, d, client):
        want = Reader(client, "text").said()
        for _ in range(2):
            Reader(client, "text").said()
        wait_for(lambda: len(d.journals()) == len(d.kept) == 3, "three that ended")

        def begin():
            wait_for(lambda: len(d.journals()) == len(d.kept) == 3, "three that ended")
            before = set(d.kept)
            with d.reads_nothing():
                jobs = [Reader(client, "text") for _ in range(3)]
                equal(set(d.kept), before, "what the manager has")
            wait_for(lambda: len(d.kept) == 6 and not before & set(d.kept), "three that run, with their pipes")
            return jobs
        jobs = caught(d, begin, 10)
        follow(d, client)
        equal([job.said() for job in jobs], [want] * 3, "those that went on")
        with d.reads_nothing():
            for job in jobs:
                client.until_done(job.path)
                client.call(job.path, JOB, "Release", "")
        forgotten(d)
        check("cannot be kept" not in d.log(), "a journal was given up", d.log()[-2000:])
        d.expect_exit = 0


@test
def a_manager_that_never_reads():
    """A daemon that ends waits for a job of which the manager has not heard, and tells its end."""
    def told_to_end(d, workers):
        ask_to_end(d)
        wait_for(lambda: "it was not done in time" in d.log(), "the job's time is over")
        let_go(workers)
    with on_a_bus() as (bus, d, client):
        with d.reads_nothing():
            job, = caught(d, lambda: [Drawn(client, "events")], 1, told_to_end)
            equal(job.said()[1]["reason"], "error", "its end")
            equal(d.wait_end(), None, "what was wrong with its end")
        equal(d.journals(), [], "what the manager has")
        follow(d, client)
        equal(client.refused(job.path, JOB, "GetText", "t", 0), "org.freedesktop.DBus.Error.UnknownObject", "the job")


@test
def no_bus_any_more():
    """Nobody is left who could read: the pipes end."""
    with on_a_bus() as (bus, d, client):
        job, = caught(d, lambda: [Reader(client, "text")], 10)
        d.bus = "none"
        d.start()
        job.said()
        forgotten(d)


main()
