"""One user attacks, another wants to be served: each limit of docs/security.md, against a system daemon. Attackers and
the bystander are different users, so this needs root."""
import contextlib
import os
import resource
import signal
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from attacks import *  # noqa: E402,F403


@test
def connections():
    """Three users take all the connections they can get: a fourth and root still get some. A user's subordinate uids
    are that user."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    with system_daemon() as d:
        held, counts = [], []
        for uid in (ATTACKER, SUBUIDS[0], SUBUIDS[0] + 777, SECOND, THIRD):
            wires, refusal = connect_all(d, uid)
            held += wires
            counts.append(len(wires))
            check(refusal, "more than a share is refused", uid, len(wires))
        print(f"connections of each: {counts}")
        equal(counts[1:3], [0, 0], "connections of subordinate uids beside their owner's")
        check(all(n >= 20 for n in (counts[0], *counts[3:])), "each user gets a share", counts)
        for uid in (BYSTANDER, 0):
            others, _ = connect_all(d, uid, most=8)
            equal(len(others), 8, f"connections of user {uid}")
            others[0].call("status", {})
            held += others
        for w in held:
            w.close()
        wait_for(lambda: len(connect_all(d, SUBUIDS[0] + 1, most=40)[0]) == 40, "all is given back")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@test
def tokenizing():
    """60 connections of one user send texts of 16 KiB without end: nobody else waits."""
    text = (b"Once upon a time there was a little girl named Lily. " * 400)[:16 << 10]
    with system_daemon() as d:
        d.generate(n=2)
        with wire_of(d, BYSTANDER) as w:
            want = w.call("tokenize", {"text": text})
        pusher = Pusher([wire_of(d, ATTACKER) for _ in range(60)], "tokenize",
                        {"text": text})
        try:
            time.sleep(0.5)
            times = status_times(d, 3.0)
            watch = Stopwatch()
            with wire_of(d, BYSTANDER) as w:
                equal(w.call("tokenize", {"text": text}), want, "the bystander's text")
            own = watch.seconds()
        finally:
            pusher.stop()
        equal(pusher.lost, 0, "connections that were cut")
        print(f"FIGURE tokenizing: {pusher.sent} frames; {len(times)} statuses, p99 {1000 * p99(times):.0f} ms, most "
              f"{1000 * times[-1]:.0f} ms; the bystander's own text after {1000 * own:.0f} ms")
        check(p90(times) < 0.2 * SLOW, "a bystander's status", p90(times))
        check(own < 1.0 * SLOW, "a bystander's text", own)


@test
def many_parts():
    """A request of more parts than any that is documented is refused by name; its connection goes on."""
    with system_daemon() as d, wire_of(d, ATTACKER) as w:
        for wrong in ({"chat": [{}] * 75000}, {"chat": [{"calls": [{"id": "x"}] * 20000}] * 2},
                      {"prompt_ids": [1] * 1500000}):
            try:
                w.call("generate", wrong)
            except Refused as e:
                equal(e.code, "too-long", f"answer {e}")
            else:
                raise AssertionError("it was taken")
        for i, wrong in enumerate(({"chat": [{"role": "user", "text": b"a"}] * 5000},
                                   {"chat": [{"role": "assistant", "calls": [{"id": "x", "name": "y"}] * 4097}]})):
            try:
                w.call("generate", wrong)
            except Refused as e:
                equal((e.code, "at most 4096" in str(e)), ("bad-request", True), f"answer {e}")
            else:
                raise AssertionError("it was taken")
        # The largest chat that is documented: 4096 messages with all texts, 4096 calls. The model's context is shorter.
        call = {"id": "i", "name": "n", "arguments": b"{}"}
        full = [{"role": r, "text": b"t", "thinking": b"t", "call_id": "c", "name": "n", "calls": [call]}
                for r in ("user", "assistant") * 2048][1:] + [{"role": "user", "text": b"end", "calls": [call]}]
        rid = w.send("generate", {"chat": full, "tools": "[]", "stop": [b"x%d" % i for i in range(16)]})
        what, m = w.receive(rid, 60 * SLOW)
        while what not in ("error", "done"):
            what, m = w.receive(rid, 60 * SLOW)
        check("parts" not in str(m), "the largest chat is unpacked", what, m)


@test
def tiny_messages():
    """100 connections of one user send requests of tens of thousands of empty messages without end: nobody else waits
    for them to be unpacked."""
    with system_daemon() as d:
        d.generate(n=2)
        for n in (47000, 75000):
            pusher = Pusher([wire_of(d, ATTACKER) for _ in range(100)], "generate", {"chat": [{}] * n})
            try:
                time.sleep(0.5)
                times = status_times(d, 3.0)
            finally:
                pusher.stop()
            equal(pusher.lost, 0, "connections that were cut")
            print(f"FIGURE tiny_messages: {pusher.sent} frames of {n}; {len(times)} statuses, p99 "
                  f"{1000 * p99(times):.0f} ms, most {1000 * times[-1]:.0f} ms")
            check(pusher.sent > 100, "frames", pusher.sent)
            check(p90(times) < 0.1 * SLOW, "a bystander's status", p90(times))


@test
def idle_models():
    """One user's idle models fill the places of the fleet: another user's model finds one, and so does root's."""
    with system_daemon() as d, copies(36) as paths:
        d.generate(n=2)
        for path in paths[:34]:
            ok, m = generates(d, ATTACKER, path)
            check(ok, "the attacker's own idle models make room", m)
        listed = [m["name"] for m in d.status()["models"] if m["state"] == "loaded"]
        print(f"{len(listed)} models are loaded")
        check("tale" in listed, "the default model stays", listed)
        check(len(listed) <= 16, "one user's models", listed)
        for uid, path in ((BYSTANDER, paths[34]), (0, paths[35])):
            ok, m = generates(d, uid, path)
            check(ok, f"a model of user {uid}", m)
        check(len([m for m in d.status()["models"] if m["state"] == "loaded"]) == len(listed) + 2, "nobody's had to go")


@test
def described_models():
    """Models that were only tokenized with do not stay for ever."""
    with system_daemon() as d, copies(40) as paths:
        for path in paths:
            what, m = with_file(d, ATTACKER, path, "tokenize", {"text": b"Once"})
            equal(what, "tokenize", f"answer {m}")
        wait_for(lambda: len(d.status()["models"]) <= 16, "the oldest are dropped", 5)


@test
def a_vocabulary_of_others():
    """A user names a model first and then uses up its share of memory for vocabularies: a grammar of another user with
    that model is charged to that one, and is followed."""
    schema, own = '{"type": "boolean"}', make_model("tiny", seed=77)
    with system_daemon(models=[TALE, make_model("tiny")]) as d, \
            tempfile.TemporaryDirectory(prefix="tandem-sparse-") as folder:
        name = os.path.basename(make_model("tiny"))[:-len(".gguf")]
        d.generate(n=2)
        with wire_of(d, ATTACKER) as w:
            rid = w.send("generate", request(ids=[2, 3, 4], n=2, model=name))
            equal(wait_for_end(w, rid), ("done", None), "the attacker's job")
        for attempt in range(10):  # on some machines the files may be read before the next request comes
            with contextlib.ExitStack() as stack:
                for i in range(4):  # while these are read, their user has no more
                    path = array_of_strings(os.path.join(folder, f"long-{attempt}-{i}.gguf"), b"tokenizer.ggml.tokens",
                                            7 << 20, 60 << 20)
                    w = stack.enter_context(wire_of(d, ATTACKER))
                    with open(path, "rb") as f:
                        w.send("tokenize", {"text": b"a", "model": {"name": path, "from_fd": True}}, fd=f.fileno())
                what, m = with_file(d, ATTACKER, own, "tokenize", {"text": b"a"})
                if what == "tokenize":
                    continue
                equal((what, m.get("code")), ("error", "quota"), f"the attacker's share is used up: {m}")
                with wire_of(d, BYSTANDER) as w:
                    rid = w.send("generate", dict(request(ids=[2, 3, 4], n=8, model=name), ignore_end=False,
                                                   json_schema=schema))
                    equal(wait_for_end(w, rid), ("done", None), "the bystander's grammar")
                return
        check(False, "the attacker's share was never used up")


def wait_for_end(wire, rid):
    """The last answer's kind, and its error."""
    while True:
        what, m = wire.receive(rid, 20 * SLOW)
        if what in ("error", "done"):
            return what, m.get("error") or m.get("message")


@test
def terabytes():
    """Sparse files whose metadata claim a terabyte: refused by arithmetic, at once, without memory."""
    with system_daemon() as d, tempfile.TemporaryDirectory(prefix="tandem-sparse-") as folder:
        d.generate(n=2)
        before = anonymous(d.process.pid)
        paths = [array_of_strings(os.path.join(folder, f"{i}.gguf"), b"tokenizer.ggml.tokens", n, TEBIBYTE)
                 for i, n in enumerate((TEBIBYTE // 16, TEBIBYTE // 8, (1 << 64) - 1, 1 << 61, 1 << 26))]
        slowest = 0
        for _ in range(3):
            for path in paths:
                watch = Stopwatch()
                what, m = with_file(d, ATTACKER, path, "tokenize", {"text": b"Once"})
                slowest = max(slowest, watch.seconds())
                equal((what, m.get("code")), ("error", "bad-model"), m)
        grown = anonymous(d.process.pid) - before
        print(f"FIGURE terabytes: refused after {1000 * slowest:.0f} ms, {grown >> 10} KiB more; {m['message']}")
        check(slowest < 1.0 * SLOW, "the refusal", slowest)
        check(SANITIZER or grown < 16 << 20, "memory", grown)
        equal([os.stat(path).st_blocks <= 16 for path in paths], [True] * len(paths), "holes stay holes")


@test
def reading_is_cancelled():
    """Files that take long to read, whose clients leave: nobody waits for what they say, and SIGTERM neither."""
    with system_daemon() as d, tempfile.TemporaryDirectory(prefix="tandem-sparse-") as folder:
        d.generate(n=2)

        def long_files(which, n):
            return [array_of_strings(os.path.join(folder, f"long-{which}-{i}.gguf"), b"tokenizer.ggml.tokens", 4 << 20,
                                     40 << 20) for i in range(n)]
        watch = Stopwatch()
        what, m = with_file(d, ATTACKER, long_files("whole", 1)[0], "tokenize", {"text": b"Once"})
        whole = watch.seconds()
        equal((what, m.get("code")), ("error", "bad-model"), "one that is read to its end")
        asked, failed = 0, [""]
        while asked < 70 and len(failed) - 1 == asked:  # some are, where this process waits before its client leaves
            for path in long_files(asked, 7):  # one after the other: the account has room for one
                with wire_of(d, ATTACKER) as w, open(path, "rb") as f:
                    w.send("tokenize", {"text": b"a", "model": {"name": path, "from_fd": True}}, fd=f.fileno())
                    w.call("status", {})  # by now it is being read
                wait_for(lambda: not any("long" in m["name"] and m["state"] == "loading"
                                         for m in d.status()["models"]), "reading ends", 10)
            asked += 7
            failed = [line for line in d.log().splitlines() if "model long-" in line and "failed" in line]
        print(f"FIGURE cancelled: {1000 * whole:.0f} ms to read one; of {asked} that nobody waits for "
              f"{len(failed) - 1} were read to their end")
        check(len(failed) - 1 < asked, "reads that nobody waits for end", failed)
        with wire_of(d, ATTACKER) as w:
            for path in long_files("last", 8):
                with open(path, "rb") as f:
                    w.send("tokenize", {"text": b"a", "model": {"name": path, "from_fd": True}}, fd=f.fileno())
            watch = Stopwatch()
            wrong = d.stop()
            check(not wrong, wrong)
            check(watch.seconds() < 4 * SLOW, "the end", watch.seconds())
        d.expect_exit = None


@test
def jobs_of_all():
    """Two users submit all the jobs they can: a third and root get some. Subordinate uids count as their owner."""
    with system_daemon(args=config("[daemon]\nmax-jobs = 32\nmax-jobs-per-user = 32\n")) as d:
        d.generate(n=2)
        wires, counts = [], []
        for uid in (ATTACKER, SUBUIDS[0] + 5, SECOND, BYSTANDER, 0):
            w = wire_of(d, uid)
            wires.append(w)
            rids = [w.send("generate", dict(request(n=3000, seed=i), ignore_end=True)) for i in range(32)]
            w.call("status", {})
            n = 0
            for rid in rids:
                with contextlib.suppress(TimeoutError):
                    what, m = w.receive(rid, 0.02)
                    if what == "error" or what == "done" and m.get("reason") == "DONE_ERROR":
                        n += 1
            counts.append(32 - n)
        print(f"jobs of two uids of one user, of a second, a third and root: {counts}")
        equal(counts[:3], [15, 0, 7], "jobs of the two who come first")
        check(counts[3] >= 3 and counts[4] >= 2, "jobs of those who come later", counts)
        for w in wires:
            w.close()


@test
def subuids_are_read_again():
    """SIGHUP: ranges that are new in /etc/subuid count as their owner from then on, and others no more."""
    with system_daemon() as d:
        held = connect_all(d, ATTACKER)[0]
        other = 500000
        others, _ = connect_all(d, other + 1, most=8)
        equal(len(others), 8, "connections of a uid of nobody's range")
        for w in others:
            w.close()
        with open(d.subuids, "w") as f:
            f.write(f"# new\n{ATTACKER}:{other}:100\nnobody:x\n")
        d.process.send_signal(signal.SIGHUP)
        wait_for(lambda: not close_all(connect_all(d, other + 1, most=8)[0]), "it counts as its owner's", 5)
        others, _ = connect_all(d, SUBUIDS[0] + 1, most=8)
        equal(len(others), 8, "connections of a range that is no more its owner's")
        close_all(held + others)


def close_all(wires):
    for w in wires:
        w.close()
    return len(wires)


@test
def a_false_name():
    """A file of one's own under the path of a real model: the real one stays, and remains the default."""
    with system_daemon(hang_ms=STANDING_MS) as d, copies(1) as paths:
        d.generate(n=2)
        ok, m = generates(d, ATTACKER, paths[0], name=TALE)
        check(ok, "the attacker's model", m)
        with wire_of(d, BYSTANDER) as w:
            models = [m for m in w.call("models", {})["models"] if m["name"] == "tale"]
        print([(m["state"], m.get("is_default", False), m["file_bytes"]) for m in models])
        real = [m for m in models if m["file_bytes"] == os.path.getsize(TALE)]
        equal([m["state"] for m in real], ["loaded"], "the real model")
        equal([m["file_bytes"] for m in models if m.get("is_default")], [os.path.getsize(TALE)], "the default")
        with d.in_midst(dict(n=2000)) as (job,), d.wire() as w:
            try:
                w.call("unload", {"name": "tale"})
            except Refused as e:
                equal(e.code, "busy", "unloading means the real one")
            else:
                raise AssertionError("a model in use was unloaded")
            job.vanish()


@test
def a_short_keep_alive():
    """What root has loaded stays, whatever other users' jobs say; what nobody else wants goes when they say."""
    with system_daemon(models=(TALE, SPROUT)) as d:
        d.call("load", {"model": {"name": "sprout"}})
        for n in (2, 3):
            for name in ("sprout", "tale"):
                with wire_of(d, ATTACKER) as w:
                    rid = w.send("generate", dict(request(ids=[2, 3, 4], n=n, keep_alive=1), model={"name": name}))
                    while w.receive(rid)[0] != "done":
                        pass
        wait_for(lambda: [m["name"] for m in d.status()["models"]] == ["sprout"], "the other one goes", 5)
        time.sleep(1.5)
        equal([m["name"] for m in d.status()["models"]], ["sprout"], "root's stays")


@test
def counts_of_others():
    """Root reads exact counts; a user its own jobs exactly, and what others do to a power of two."""
    with contextlib.ExitStack() as stack:
        d = stack.enter_context(system_daemon(hang_ms=STANDING_MS))
        for _ in range(3):
            d.generate(n=5)
        workers, held = stack.enter_context(d.standing()), []  # so that none ends meanwhile
        for uid in (ATTACKER,) * 5 + (BYSTANDER,):
            with as_user(uid):
                held.append(d.start_job(ids=[2, 3, 4], n=4000))
        run_in_slices(workers, lambda: all([job.has(1) for job in held]), "tokens")

        def told(uid):
            with wire_of(d, uid) as w:
                return w.call("status", {})

        def jobs(status):
            return status.get("jobs_running", 0) + status.get("jobs_queued", 0)
        all_ = d.status()
        equal((jobs(all_), all_["jobs_done"]), (6, 3), "root's")
        # 5 of its own and 1; 1 of its own and 5, which is 8; 6, which is 8.
        equal([jobs(told(uid)) for uid in (ATTACKER, BYSTANDER, SECOND)], [6, 9, 8], "users'")
        mine = told(SECOND)
        for field in ("jobs_done", "tokens_generated", "prompt_tokens", "steps_done", "prefill_tokens",
                      "decode_tokens"):
            n = mine.get(field, 0)
            check(n & (n - 1) == 0 and n >= all_.get(field, 0), field, n, all_.get(field))
        for m in mine["models"]:
            for kind in ("full", "window"):
                eighth = -(-m.get(f"kv_pages_{kind}", 0) // 8)
                used = m.get(f"kv_pages_{kind}_used", 0)
                check(used in (0, m.get(f"kv_pages_{kind}", 0)) or used % eighth == 0, "pages in eighths", m)
        for job in held:
            job.vanish()


@test
def names_of_files():
    """One file, passed by two users under names of their own: each reads its own name, nobody the other's, in lists, in
    status and in errors."""
    with system_daemon() as d, copies(1) as paths, open(paths[0], "rb") as f:
        d.generate(n=2)
        held = []
        for uid, name in ((ATTACKER, "/srv/alice/salaries.gguf"), (BYSTANDER, "/srv/bob/poems.gguf")):
            w = wire_of(d, uid, timeout=60 * SLOW)
            job = request(ids=[2, 3, 4], n=2000, top_logprobs=20)
            rid = w.send("generate", dict(job, model={"name": name, "from_fd": True}), fd=f.fileno())
            while w.receive(rid)[0] != "tokens":
                pass
            held.append((w, rid))
        for uid, own, other in ((ATTACKER, "salaries", ("poems", "bob")), (BYSTANDER, "poems", ("salaries", "alice")),
                                (SECOND, "(another user's)", ("poems", "salaries", "alice", "bob"))):
            with wire_of(d, uid) as w:
                told = {kind: w.call(kind, {}) for kind in ("models", "status", "jobs")}
            check(own in [m["name"] for m in told["models"]["models"]], f"user {uid}: its own name", told["models"])
            if uid != SECOND:
                equal([j["model"] for j in told["jobs"]["jobs"]], [own], f"user {uid}: its job's model")
            for word in other:
                check(word not in str(told), f"user {uid} reads of {word}", told)
        os.truncate(paths[0], 1000)
        wait_for(lambda: "failed" in [m["state"] for m in d.status()["models"]], "the change is seen", 10)
        for (w, rid), other in zip(held, (("poems", "bob"), ("salaries", "alice"))):
            while (answer := w.receive(rid))[0] != "done":
                pass
            equal(answer[1]["error"]["code"], "model-changed", "answer")
            for word in other:
                check(word not in str(answer), f"an error tells of {word}", answer)
            w.close()


ONE_RUNS = "[daemon]\nmax-running-per-user = 1\n"


def occupied(d, uid):
    """Where one job of a user may run, this one does, and its client reads no more."""
    w = wire_of(d, uid, timeout=60 * SLOW)
    rid = w.send("generate", request(ids=[2, 3, 4], n=2000, top_logprobs=20))
    while w.receive(rid)[0] != "tokens":
        pass
    return w


def ask(w, path, n):
    with open(path, "rb") as f:
        return w.send("generate", dict(request(ids=[2, 3, 4], n=n), model={"name": path, "from_fd": True}),
                      fd=f.fileno())


def end_of(w, rid, timeout=60):
    """How a job ended: None, or what its client was told. False: it waits."""
    what, m = None, {}
    try:
        while what not in ("error", "done"):
            what, m = w.receive(rid, timeout * SLOW)
    except TimeoutError:
        return False
    return None if (what, m.get("reason")) == ("done", "DONE_LENGTH") else m


def waits(d, uid, w, path, rid):
    """False: the job has been accepted, and waits. Else what its client was told."""
    name = os.path.basename(path)[:-len(".gguf")]
    while True:
        # Its prompt is looked at last, and then it is accepted or ends.
        accepted = any(j["uid"] == uid and j["model"] == name and j.get("prompt_tokens") for j in d.jobs())
        end = end_of(w, rid, timeout=0.02)
        if end is not False or accepted:
            return end


def fill(d, uid, w, paths):
    """Jobs that wait, each on a model of its own, until one is refused: those, and what the client was told."""
    rids = []
    for path in paths:
        rid = ask(w, path, 2)
        refused = waits(d, uid, w, path, rid)
        if refused:
            return rids, refused
        rids.append(rid)
    raise AssertionError("places of one user have an end")


def all_end(occupying, *waiting):
    """The jobs that kept others waiting are given up, and then those that waited are done."""
    for w in occupying:
        w.close()
    for w, rids in waiting:
        for rid in rids:
            equal(end_of(w, rid), None, "jobs that waited")


@test
def a_full_quota():
    """Who has jobs on as many models as its share is does not get jobs on others' models either, and the others lose
    nothing by asking together with it."""
    with copies(40) as paths, system_daemon(args=config(ONE_RUNS)) as d:
        first = occupied(d, ATTACKER)  # further jobs wait, so no model of theirs is idle
        w = wire_of(d, ATTACKER, timeout=60 * SLOW)
        waiting, _ = fill(d, ATTACKER, w, paths[:20])
        for i, path in enumerate(paths[len(waiting) + 1:][:14]):
            both = [wire_of(d, uid, timeout=60 * SLOW) for uid in (ATTACKER, BYSTANDER)]
            send_signal(d.process.pid, signal.SIGSTOP)
            rids = {one: ask(one, path, 2) for one in (both if i % 2 == 0 else both[::-1])}
            send_signal(d.process.pid, signal.SIGCONT)
            equal(end_of(both[1], rids[both[1]]), None, f"the other one's job on model {i}")
            refused = end_of(both[0], rids[both[0]])
            equal((refused.get("error") or refused).get("code"), "quota", "the attacker's")
        print(f"the one without a place: {refused}")
        for one in (first, w):
            one.close()


@test
def guests():
    """Jobs of others on one's models use up none of one's places: who has them takes the models over."""
    with copies(40) as paths, system_daemon(args=config(ONE_RUNS)) as d:
        wires = [occupied(d, ATTACKER)]
        attacker, bystander = (wire_of(d, uid, timeout=60 * SLOW) for uid in (ATTACKER, BYSTANDER))
        theirs = []
        for path in paths[:6]:
            equal(end_of(bystander, ask(bystander, path, 2)), None, "the bystander's job")
            theirs.append(ask(attacker, path, 2))
            equal(waits(d, ATTACKER, attacker, path, theirs[-1]), False, "a guest's job")
        wires.append(occupied(d, BYSTANDER))
        own, refused = fill(d, BYSTANDER, bystander, paths[6:])
        print(f"beside 6 guests' jobs the bystander has {len(own)} models; then: {refused}")
        # Of 30 places one is the default model's, 6 are the attacker's now, and half of the 23 that are left are the
        # bystander's. If it held those 6 still, it would have half of 29, less 6.
        equal(len(own), 11, "the bystander's models")
        all_end(wires, (attacker, theirs), (bystander, own))


@test
def guests_with_models():
    """Who has idle models of its own gets no more by first being a guest, and then using these."""
    with copies(40) as paths, system_daemon(args=config(ONE_RUNS)) as d:
        attacker, bystander = (wire_of(d, uid, timeout=60 * SLOW) for uid in (ATTACKER, BYSTANDER))
        idle, used, more = paths[:14], paths[14:21], paths[21:]
        for w, some in ((attacker, idle), (bystander, used)):
            for path in some:
                equal(end_of(w, ask(w, path, 2)), None, "a job")
        wires = [occupied(d, ATTACKER)]
        theirs = [ask(attacker, path, 2) for path in used + idle]
        ends = [waits(d, ATTACKER, attacker, path, rid) for path, rid in zip(used + idle, theirs)]
        waiting = [rid for rid, end in zip(theirs, ends) if end is False]
        print(f"the attacker's jobs wait on {len(waiting)} models, and then: {ends[-1]}")
        # Of 30 places one is the default model's and 7 are the bystander's: half of 22.
        equal(len(waiting), 11, "models that the attacker has jobs on")
        equal(end_of(bystander, ask(bystander, idle[0], 2)), None, "the bystander's job on a model of the attacker's")
        wires.append(occupied(d, BYSTANDER))
        own, refused = fill(d, BYSTANDER, bystander, more)
        print(f"beside those the bystander has {len(own)} models; then: {refused}")
        equal(len(own), 9, "the bystander's models")  # half of 29 less 11
        all_end(wires, (attacker, waiting), (bystander, own))


@test
def the_default_as_a_file():
    """Who passes the default model's file before anybody names it does not hold it once somebody does."""
    with copies(20) as paths, system_daemon() as d:
        ok, m = generates(d, ATTACKER, TALE)
        check(ok, "the default model's file", m)
        d.generate(n=2)
        for path in paths:
            ok, m = generates(d, ATTACKER, path)
            check(ok, "the attacker's own idle models make room", m)
        listed = [m["name"] for m in d.status()["models"] if m["state"] == "loaded"]
        check("tale" in listed, "the default model stays", listed)


@test
def loading():
    """Over the socket of the system only an administrator loads without asking for text."""
    with system_daemon() as d:
        with wire_of(d, ATTACKER) as w:
            try:
                w.call("load", {"model": {"name": "tale"}})
            except Refused as e:
                equal(e.code, "denied", "answer")
            else:
                raise AssertionError("anybody may load")
            equal(d.status().get("models", []), [], "models")
        d.call("load", {"model": {"name": "tale"}})
        equal(d.model("tale")["state"], "loaded", "root's request")


@test
def half_frames():
    """One user's half frames hold no more than that user's share, and others' frames arrive."""
    with system_daemon() as d:
        before, size, wires = anonymous(d.process.pid), 7 << 20, []
        for _ in range(48):
            w = wire_of(d, ATTACKER)
            wires.append(w)
            w.socket.settimeout(5 * SLOW)
            with contextlib.suppress(OSError):
                w.socket.sendall(struct.pack("<I", 8 << 20) + bytes(size))
        time.sleep(0.2)
        grown = anonymous(d.process.pid) - before
        with wire_of(d, BYSTANDER) as w:
            w.call("tokenize", {"text": b"Once " * 100000, "model": {"name": "tale"}})
        for w in wires:
            w.close()
        print(f"FIGURE half_frames: the daemon grew {grown >> 20} MiB")
        check(SANITIZER or grown < 160 << 20, "memory for one user's half frames", grown)
        wait_for(lambda: SANITIZER or anonymous(d.process.pid) - before < 40 << 20, "memory is given back", 5)


@test
def short_visits_keep_no_memory():
    """What was freed goes back to the system, also where somebody asks for the status all the time."""
    if SANITIZER:
        raise Skip("a sanitizer keeps what was freed")
    with system_daemon() as d, copies(1) as paths:
        d.status()
        before, wires = anonymous(d.process.pid), []
        for _ in range(48):
            w = wire_of(d, ATTACKER)
            wires.append(w)
            w.socket.sendall(struct.pack("<I", 100000) + bytes(99999))
        wait_for(lambda: anonymous(d.process.pid) > before + (4 << 20), "the half frames are there", 5)
        with_file(d, BYSTANDER, paths[0], "tokenize", {"text": b"Once"})  # what is known of it lies behind them
        for w in wires:
            w.close()
        wait_for(lambda: d.status() and anonymous(d.process.pid) < before + (2 << 20), "memory is given back", 8, 0.3)


@test
def no_thread_keeps_what_was_freed():
    """tandemd runs without malloc's caches of threads. What it starts has the environment that it was given."""
    def environment(pid):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                return f.read().replace(b":", b"\0").split(b"\0")
        except PermissionError:
            raise Skip("may not read the environment of a process that is not dumpable") from None
    own, given = b"glibc.malloc.tcache_count=0", "glibc.malloc.arena_test=3"
    for env in ({}, {"GLIBC_TUNABLES": given}):
        with Daemon(env=env) as d:
            d.wait_ready()
            check(own in b" ".join(environment(d.process.pid)), "tandemd's", environment(d.process.pid))
            for pid in d.worker_pids():
                got = environment(pid)
                check(not any(own in e or b"TANDEM_SECOND_START" in e for e in got), "a worker's", got)
                equal(f"GLIBC_TUNABLES={given}".encode() in got, bool(env), "what was given")
            with open(f"/proc/{d.process.pid}/comm") as f:
                equal(f.read().strip(), "tandemd", "its name")


@test
def signals_and_the_end():
    """A file size limit does not end the daemon, and work that waits does not hold up its end."""
    text = (b"Once upon a time there was a little girl named Lily. " * 20000)[:1 << 20]
    with system_daemon() as d:
        os.kill(d.process.pid, signal.SIGXFSZ)
        d.generate(n=2)
        wires = [wire_of(d, ATTACKER) for _ in range(24)]
        for w in wires:
            w.send("tokenize", {"text": text})
        watch = Stopwatch()
        wrong = d.stop()
        check(not wrong, wrong)
        print(f"FIGURE end: {watch.seconds():.2f} s with texts that wait")
        check(watch.seconds() < 4 * SLOW, "the end", watch.seconds())
        d.expect_exit = None
        for w in wires:
            w.close()


main()
