"""Jobs over D-Bus: the pipe, the text, the object, the options, who hears of it, and who keeps it alive. With callers
that nobody here wrote: python3-dbus, GDBus through gi, busctl, gdbus and dbus-send."""
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from tandem_bus import *  # noqa: E402,F403

from gguf_edit import GgufEdit  # noqa: E402


def gio():
    try:
        import gi
        gi.require_version("Gio", "2.0")
        from gi.repository import Gio, GLib
        return Gio, GLib
    except (ImportError, ValueError):
        raise Skip("python3-gi is missing") from None


class Listener:
    """A GDBus connection that writes down the signals it gets."""

    def __init__(self, bus):
        self.Gio, self.GLib = gio()
        self.context = self.GLib.MainContext.new()
        self.context.push_thread_default()
        flags = self.Gio.DBusConnectionFlags
        self.connection = self.Gio.DBusConnection.new_for_address_sync(
            bus.address, flags.AUTHENTICATION_CLIENT | flags.MESSAGE_BUS_CONNECTION, None, None)
        self.signals = []
        self.connection.signal_subscribe(NAME, None, None, None, None, self.Gio.DBusSignalFlags.NONE, self.heard)
        # GDBus subscribes without waiting. When the bus has answered this, it has the subscription too.
        self.connection.call_sync("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "GetId",
                                  None, None, self.Gio.DBusCallFlags.NONE, 30000 * int(SLOW), None)

    def heard(self, connection, sender, path, interface, signal, args, *more):
        self.signals.append((time.monotonic(), path, interface, signal, args.unpack()))

    def until(self, condition, what, timeout=30):
        def met():
            while self.context.iteration(False):
                pass
            return condition()
        wait_for(met, f"{what}, after {self.signals[-5:]}", timeout, 0.002)

    def spin(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.context.iteration(False) or time.sleep(0.002)

    def call(self, path, interface, method, args, fds=False):
        v = self.GLib.Variant(*args) if args else None
        if fds:
            result, out = self.connection.call_with_unix_fd_list_sync(
                NAME, path, interface, method, v, None, self.Gio.DBusCallFlags.NONE, 30000 * int(SLOW), None, None)
            values = result.unpack()
            return values[0], out.get(values[1])
        return self.connection.call_sync(NAME, path, interface, method, v, None, self.Gio.DBusCallFlags.NONE,
                                         30000 * int(SLOW), None).unpack()

    def generate(self, prompt, **options):
        types = {"max-tokens": "u", "temperature": "d", "seed": "t", "linger": "b", "output": "s", "token": "s",
                 "ignore-end": "b", "priority": "s"}
        o = {k.replace("_", "-"): v for k, v in options.items()}
        o = {k: self.GLib.Variant(types[k], v) for k, v in o.items()}
        return self.call(ROOT, MANAGER, "Generate", ("(sa{sv})", (prompt, o)), fds=True)

    def of(self, path, signal):
        return [s for s in self.signals if s[1] == path and s[3] == signal]

    def close(self):
        self.connection.close_sync(None)
        self.context.pop_thread_default()


@test
def python_reads_a_story():
    with Bus() as bus, bus.daemon() as d:
        c = Client(bus).wait()
        want = d.generate(n=60, seed=7, temp=0.8, top_k=40, ignore_end=True)
        path, fd = c.generate(PROMPT, max_tokens=60, seed=7, temperature=0.8, top_k=40, ignore_end=True)
        text = read_all(fd).decode()
        equal(text, want.text, "text by pipe and by socket")
        p = c.until_done(path)
        equal(c.text(path), text, "GetText and the pipe")
        equal((int(p["GeneratedTokens"]), str(p["Result"]), int(p["TextBytes"])), (60, "length", len(text.encode())),
              "end")
        equal((int(p["StartedByUID"]), str(p["Model"]), float(p["Progress"])), (os.getuid(), "tale", 1.0), "properties")
        equal(str(p["Owner"]), c.connection.get_unique_name(), "owner")
        check(not p["TextTruncated"] and not p["OutputCut"] and str(p["ErrorName"]) == "", "nothing was lost", p)
        # By ids, and with a stop string.
        ids = d.tokenize(PROMPT)
        path, fd = c.generate("", prompt_ids=ids, max_tokens=60, seed=7, temperature=0.8, top_k=40, ignore_end=True)
        equal(read_all(fd).decode(), want.text, "text of the same prompt as ids")
        stop = want.text[40:44]
        path, fd = c.generate(PROMPT, stop=[stop], max_tokens=60, seed=7, temperature=0.8, top_k=40, ignore_end=True)
        equal(read_all(fd).decode(), want.text[:want.text.index(stop)], "text before the stop string")
        equal(str(c.until_done(path)["Result"]), "stop", "result")
        c.call(path, JOB, "Release", "")
        equal(c.refused(path, JOB, "Cancel", ""), "org.freedesktop.DBus.Error.UnknownObject", "released")


@test
def drawing_as_the_file_recommends():
    """Options that are not there are what the model's file recommends; those that are go before it."""
    with tempfile.TemporaryDirectory() as folder, Bus() as bus:
        gguf = GgufEdit(TALE).set("general.sampling.temp", "f32", 0.9).set("general.sampling.top_k", "i32", 40)
        lively = gguf.write(os.path.join(folder, "lively.gguf"))
        with bus.daemon(models=[TALE, lively]) as d:
            c = Client(bus).wait()

            def text(model, **options):
                return read_all(c.generate(PROMPT, model=model, max_tokens=24, seed=7, ignore_end=True,
                                           **options)[1]).decode()

            plain, drawn = text("tale"), text("tale", temperature=0.9, top_k=40)
            check(plain != drawn, "that the options change something", plain)
            equal(text("lively"), drawn, "nothing said")
            equal(text("lively", temperature=0.0), plain, "a temperature said")
            equal(d.generate(model="tale", n=24, seed=7, temp=0.9, top_k=40).text, drawn, "the socket")


@test
def goes_on_behind_drawn_tokens():
    """The text that is told is that behind them, and another arithmetic is refused by name."""
    with Bus() as bus, bus.daemon() as d:
        c = Client(bus).wait()
        want = d.generate(n=24, seed=7, temp=0.9)
        drawn, rest = ",".join(map(str, want.ids[:10])), b"".join(want.pieces[10:])

        def text(**options):
            return read_all(c.generate(PROMPT, max_tokens=24, seed=7, temperature=0.9, ignore_end=True, **options)[1])

        equal(text(drawn=drawn, drawn_numerics=want.numerics), rest, "the rest")
        equal(text(drawn=drawn), rest, "the rest, where nobody said what drew the others")
        check(text(drawn=drawn, drawn_numerics="another", may_degrade=True), "it goes on, degraded")
        equal(text(drawn=drawn, drawn_numerics="another"), b"", "text of another arithmetic")
        equal(c.refused(ROOT, MANAGER, "Generate", "sa{sv}", PROMPT, c.options({"drawn": "1,x"})),
              ERROR + "BadRequest", "what is no list of ids")


@test
def gdbus_hears_the_end():
    with Bus() as bus, bus.daemon(hang_ms=STANDING_MS) as d:
        Client(bus).wait()
        me, other = Listener(bus), Listener(bus)
        name = me.connection.get_unique_name()[1:].replace(".", "_")
        begin = time.monotonic()
        path, fd = me.generate(PROMPT, max_tokens=600, ignore_end=True, token="my_job", output="events")
        equal(path, f"{ROOT}/jobs/{name}/my_job", "the path is known beforehand")
        me.until(lambda: me.of(path, "Finished"), "Finished")
        took = time.monotonic() - begin
        events = [json.loads(line) for line in read_all(fd).splitlines()]
        equal([e["seq"] for e in events], list(range(len(events))), "sequence numbers")
        equal([events[0]["event"], events[-1]["event"]], ["accepted", "done"], "first and last event")
        tokens = [e for e in events if e["event"] == "token"]
        equal([e["index"] for e in tokens], list(range(600)), "token indices")
        text = "".join(e["text"] for e in tokens) + events[-1]["text"]
        want = d.generate(n=600, ignore_end=True)
        equal(text, want.text, "text by events and by socket")
        same_ids([e["id"] for e in tokens], want.ids, "ids by events and by socket")
        result, details = me.of(path, "Finished")[0][4]
        equal((result, details["generated-tokens"], details["text-bytes"]), ("length", 600, len(text.encode())),
              "Finished")
        # The last change may come after Finished.
        me.until(lambda: any(s[4][1].get("State") == "done" for s in me.of(path, "PropertiesChanged")),
                 "the last change")
        me.spin(0.3)
        changed = me.of(path, "PropertiesChanged")
        check(2 <= len(changed) <= 10 * (took + 0.5) + 2, f"{len(changed)} PropertiesChanged in {took:.2f} s")
        equal(changed[-1][4][1]["State"], "done", "the last change")
        check("Id" not in changed[-1][4][1], "what never changes is not told")
        print(f"FIGURE {len(changed)} PropertiesChanged for 600 tokens in {took:.2f} s")
        # The other, of the same user, hears nothing of it unless it watches.
        other.spin(0.2)
        equal([s for s in other.signals if "/jobs/" in str(s)], [], "signals that are not its own")
        with d.standing():  # so that it is watched before it ends
            path, fd = me.generate(PROMPT, max_tokens=300, ignore_end=True, output="none")
            equal(read_all(fd), b"", "a pipe that was not wanted is at its end")
            other.call(path, JOB, "Watch", None)
        other.until(lambda: other.of(path, "Finished"), "Finished, for a watcher")
        other.until(lambda: other.of(path, "PropertiesChanged"), "changes, for a watcher")
        # A token names one job only.
        with d.standing():
            path, fd = me.generate(PROMPT, max_tokens=4000, ignore_end=True, token="twice")
            try:
                me.generate(PROMPT, token="twice")
                raise AssertionError("a token was taken twice")
            except me.GLib.Error as e:
                check(ERROR + "BadRequest" in e.message, "token twice", e.message)
            path2, fd2 = other.generate(PROMPT, max_tokens=3, token="twice")
            check(path2 != path, "another caller's token is another's")
            me.call(path, JOB, "Cancel", None)
        me.until(lambda: me.of(path, "Finished"), "the end of the cancelled job")
        equal(me.of(path, "Finished")[0][4][0], "cancelled", "result")
        for f in (fd, fd2):
            os.close(f)
        other.close()
        me.close()


@test
def chat_and_options():
    with Bus() as bus, bus.daemon(models=(TALE, SPROUT)) as d:
        c = Client(bus).wait()
        D = c.dbus

        def refused(prompt, options, method="Generate", signature="sa{sv}"):
            return c.refused(ROOT, MANAGER, method, signature, prompt, D.Dictionary(options, signature="sv"))
        for options in ({"max_tokens": 1}, {"": 1}, {"Temperature": 1.0}, {"\u00fc": 1},
                        {"max-tokens": -1}, {"max-tokens": "7"}, {"max-tokens": D.UInt64(1 << 40)}, {"max-tokens": 1.5},
                        {"temperature": "hot"}, {"temperature": float("nan")}, {"temperature": float("inf")},
                        {"temperature": 1e300}, {"temperature": -1.0}, {"top-p": 7.0}, {"min-p": -0.5},
                        {"repeat-penalty": -2.0}, {"repeat-last": D.UInt32(1 << 31)}, {"top-k": -4},
                        {"seed": "x"}, {"stop": "word"}, {"stop": D.Array(["x"] * 17, signature="s")},
                        {"stop": D.Array([""], signature="s")}, {"stop": D.Array(["y" * 300], signature="s")},
                        {"stop": D.Array([1], signature="i")}, {"priority": "urgent"}, {"priority": 1},
                        {"ignore-end": 1}, {"placement": "cloud"}, {"output": "video"}, {"linger": "yes"},
                        {"token": ""}, {"token": "a/b"}, {"token": "x" * 65}, {"token": "\u00e4"}, {"token": 5},
                        {"prompt-ids": D.Array([1], signature="i")}, {"prompt-ids": D.Array([5], signature="u")},
                        {"model-fd": 3}):
            equal(refused(PROMPT, options), ERROR + "BadRequest", f"options {options}")
        equal(refused("", {}), ERROR + "BadRequest", "no prompt")
        equal(refused(PROMPT, {"model": "nonesuch"}), ERROR + "NoModel", "no such model")
        equal(refused(PROMPT, {"model": "../x"}), ERROR + "NoModel", "a model's path")
        for messages in ([], [("robot", "hi")]):
            equal(refused(D.Array(messages, signature="(ss)"), {}, "Chat", "a(ss)a{sv}"), ERROR + "BadRequest",
                  f"chat {messages}")
        # What is asked for asynchronously fails asynchronously, and says so.
        path, fd = c.generate("word " * 20000, max_tokens=1)
        p = c.until_done(path)
        equal((str(p["Result"]), str(p["ErrorName"])), ("error", ERROR + "TooLong"), "a prompt past the context")
        check("context" in p["ErrorMessage"] and read_all(fd) == b"", "it says why, and the pipe is at its end", p)
        # All at once.
        path, fd = c.generate(PROMPT, model="tale", max_tokens=5, temperature=1, top_k=5, top_p=0.9, min_p=0.05,
                              repeat_penalty=1.1, repeat_last=32, seed=3, frequency_penalty=0.5,
                              presence_penalty=-0.5, logit_bias="5:-2,300:1.5", top_logprobs=3,
                              stop=["zebra"], priority="background",
                              ignore_end=True, prefill_chunk=2, placement="gpu", token="all", linger=True,
                              output="text")
        text = read_all(fd)
        p = c.until_done(path)
        equal((str(p["Priority"]), int(p["GeneratedTokens"]), bool(p["Lingers"])), ("background", 5, True),
              "all options")
        equal(c.text(path).encode(), text, "text")
        # A model as a file.
        with open(SPROUT, "rb") as f:
            path, fd = c.generate(PROMPT, model="mine", model_fd=D.types.UnixFd(f), max_tokens=4)
        read_all(fd)
        equal(str(c.until_done(path)["Result"]) in ("length", "stop"), True, "a model passed as a file")
        r, w = os.pipe()
        for f, what in ((r, "pipe"), (w, "pipe's end"), (os.open("/", os.O_RDONLY), "directory"),
                        (os.open("/dev/null", os.O_RDONLY), "device"), (os.open(SPROUT, os.O_PATH), "O_PATH")):
            name = refused(PROMPT, {"model-fd": D.types.UnixFd(f)})
            check(name.startswith(ERROR) and name != ERROR + "Internal", f"a {what} as a model", name)
            os.close(f)
        equal(len(d.generate(n=3).ids), 3, "the daemon still serves")


@test
def chat():
    with Bus() as bus, bus.daemon(models=(TALE, SPROUT)) as d:
        c = Client(bus).wait()
        for model in ("tale", "sprout"):
            D = c.dbus
            path, fd = c.call(ROOT, MANAGER, "Chat", "a(ss)a{sv}", D.Array([("system", "Be brief."), ("user", "Hello")],
                                                                          signature="(ss)"),
                              c.options({"model": model, "max_tokens": 20, "seed": 5}))
            got = read_all(fd.take()).decode()
            p = c.until_done(str(path))
            r = d.generate(chat=[("system", "Be brief."), ("user", "Hello")], model=model, n=20, seed=5,
                           ignore_end=False, may_fail=True)
            if r.reason == "DONE_ERROR":
                equal(str(p["ErrorName"]), ERROR + "Unsupported", f"{model}, which has no chat template")
            else:
                equal((got, int(p["GeneratedTokens"])), (r.text, len(r.ids)), f"chat with {model} by bus and by socket")


@test
def slow_and_dead_readers():
    with Bus() as bus, bus.daemon() as d:
        c = Client(bus).wait()
        n = 1200
        still = [c.generate(PROMPT, max_tokens=n, ignore_end=True, output="events", seed=i, temperature=1.0)
                 for i in range(4)]
        dead, dead_fd = c.generate(PROMPT, max_tokens=n, ignore_end=True)
        os.close(dead_fd)
        begin = time.monotonic()
        other = d.generate(n=200)
        print(f"FIGURE 200 tokens beside 4 stopped readers and a dead one: {time.monotonic() - begin:.2f} s")
        equal(len(other.ids), 200, "somebody else is served meanwhile")
        # Nobody reads, and yet they end: each wrote more than a pipe holds (64 KiB).
        for path, fd in still:
            p = c.until_done(path, 120)
            equal((str(p["Result"]), int(p["GeneratedTokens"])), ("length", n), "a job whose reader stands still")
        p = c.until_done(dead)
        equal(str(p["Result"]), "length", "a job whose reader has gone")
        equal(len(c.text(dead).encode()), int(p["TextBytes"]), "its text is there all the same")
        for path, fd in still:
            data = read_all(fd)
            events = [json.loads(line) for line in data.splitlines()]
            check(len(data) > 65536, "more than a pipe holds", len(data))
            equal((len([e for e in events if e["event"] == "token"]), events[-1]["event"]), (n, "done"),
                  "what was kept for the slow reader")
            equal("".join(e.get("text", "") for e in events), c.text(path), "text of the events")


@test
def the_owner_leaves():
    with Bus() as bus, bus.daemon(hang_ms=STANDING_MS) as d:
        c, me = Client(bus).wait(), Client(bus)

        def start():
            return (*me.generate(max_tokens=4000, ignore_end=True),
                    *me.generate(max_tokens=300, ignore_end=True, linger=True))

        with d.begun(start, lambda made: c.get(made[0], JOB, "GeneratedTokens") > 3, "tokens", 2) as made:
            gone, fd, stays, fd2 = made
            equal(c.get(stays, JOB, "Owner"), me.connection.get_unique_name(), "owner")
            me.close()
        wait_for(lambda: gone not in c.managed(), "the job to end with its owner", 10)
        check(len(read_all(fd)) < 20000, "its pipe was closed early")
        equal(str(c.get(stays, JOB, "Owner")), "", "owner of the lingering job")
        p = c.until_done(stays)
        equal((str(p["Result"]), int(p["GeneratedTokens"])), ("length", 300), "the lingering job")
        equal(c.text(stays).encode(), read_all(fd2), "its text")
        wait_for(lambda: not d.jobs(), "no job left", 5)


@test
def the_example_of_the_page():
    """The shell commands of docs/dbus-api.md, as they stand there, end with a text."""
    with open(os.path.join(TREE, "docs", "dbus-api.md")) as f:
        script = re.search(r"```\n(job=.*?)```", f.read(), re.S)[1]
    with Bus() as bus, bus.daemon() as d:
        Client(bus).wait()
        want = d.generate(n=100).text
        code, out, err = bus.run("bash", "-ec", script.replace("--user", f"--address={bus.address}"))
        equal(code, 0, err)
        check(want[:20] in out.replace("\\'", "'"), "the text", out)


@test
def tools_that_leave_after_each_call():
    """busctl, gdbus and dbus-send start a job that lingers, look at it, fetch its text and cancel it."""
    with Bus() as bus, bus.daemon(hang_ms=STANDING_MS) as d:
        c = Client(bus).wait()
        want = d.generate(n=40, ignore_end=True).text
        job = re.compile(r"/dev/tandem/Tandem1/jobs/\d+")

        def run(*command):
            code, out, err = bus.run(*command)
            equal(code, 0, f"{' '.join(command)}: {err}")
            return out
        busctl = ("busctl", f"--address={bus.address}")
        out = run(*busctl, "call", NAME, ROOT, MANAGER, "Generate", "sa{sv}", PROMPT, "3", "max-tokens", "u", "40",
                  "ignore-end", "b", "true", "linger", "b", "true")
        path = job.search(out).group()
        wait_for(lambda: '"done"' in run(*busctl, "get-property", NAME, path, JOB, "State"), "busctl to see the end")
        out = json.loads(run(*busctl, "--json=short", "call", NAME, path, JOB, "GetText", "t", "0"))
        equal(out["data"], [want, len(want.encode()), True], "GetText by busctl")
        out = json.loads(run(*busctl, "--json=short", "call", NAME, path, JOB, "GetText", "t", "5"))
        equal(out["data"][0], want[5:], "GetText from an offset")
        check(JOB in run(*busctl, "introspect", NAME, path), "busctl introspect")
        check(path in run(*busctl, "tree", NAME), "busctl tree")
        # gdbus
        gdbus = ("gdbus", "call", "--address", bus.address, "--dest", NAME)

        def by_gdbus():
            out = run(*gdbus, "--object-path", ROOT, "--method", MANAGER + ".Generate", PROMPT,
                      "{'max-tokens': <uint32 4000>, 'ignore-end': <true>, 'linger': <true>, 'token': <'by_gdbus'>}")
            return re.search(r"/dev/tandem/Tandem1/jobs/\w+/by_gdbus", out).group()

        with d.begun(by_gdbus, lambda path: c.get(path, JOB, "State") == "decode", "it runs") as path:
            said = run(*gdbus, "--object-path", path, "--method", PROPERTIES + ".Get", JOB, "State")
            check("decode" in said, "gdbus sees it run", said)
            run(*gdbus, "--object-path", path, "--method", JOB + ".Cancel")
        wait_for(lambda: "cancelled" in run(*gdbus, "--object-path", path,
                                            "--method", PROPERTIES + ".Get", JOB, "Result"),
                 "gdbus to see the end")
        check("interface " + MANAGER in run("gdbus", "introspect", "--address", bus.address, "--dest", NAME,
                                            "--object-path", ROOT), "gdbus introspect")
        # dbus-send cannot nest a variant in a dictionary of its own making but string to string; the options are empty.
        send = ("dbus-send", f"--bus={bus.address}", "--print-reply", "--dest=" + NAME)
        check("tale" in run(*send, ROOT, PROPERTIES + ".Get", "string:" + MANAGER, "string:DefaultModel"),
              "dbus-send Get")

        def by_busctl():
            out = run(*busctl, "call", NAME, ROOT, MANAGER, "Generate", "sa{sv}", PROMPT, "3", "max-tokens", "u",
                      "4000", "ignore-end", "b", "true", "linger", "b", "true")
            return job.search(out).group()

        with d.begun(by_busctl, lambda path: c.get(path, JOB, "TextBytes") > 0, "a text") as path:
            said = run(*send, path, PROPERTIES + ".Get", "string:" + JOB, "string:State")
            check("decode" in said, "dbus-send State", said)
            said = run(*send, path, JOB + ".GetText", "uint64:0")
            check("string \"" in said and "uint64 0" not in said, "dbus-send GetText", said)
            run(*send, path, JOB + ".Cancel")
        wait_for(lambda: "cancelled" in run(*send, path, PROPERTIES + ".Get", "string:" + JOB, "string:Result"),
                 "dbus-send to see the end")
        run(*send, path, JOB + ".Release")
        code, out, err = bus.run(*send, path, JOB + ".Cancel")
        check(code == 1 and "UnknownObject" in err, "released", err)


@test
def quotas_are_those_of_the_socket():
    with Bus() as bus, bus.daemon(hang_ms=STANDING_MS) as d:
        c = Client(bus).wait()
        d.generate(n=1)
        jobs = []
        with d.standing():  # so that none ends and makes room
            while True:
                try:
                    jobs.append(c.generate(max_tokens=4000, ignore_end=True, priority="background"))
                except c.dbus.DBusException as e:
                    equal(e.get_dbus_name(), ERROR + "Quota",
                          f"refused after {len(jobs)} jobs ({e.get_dbus_message()})")
                    break
                check(len(jobs) <= 200, "no end of jobs")
            print(f"FIGURE jobs of one user over the bus: {len(jobs)}")
            try:
                d.generate(n=1)
                raise AssertionError("the socket took one more")
            except Refused as e:
                check("quota" in str(e), "refused over the socket too", e)
            c.close()
        wait_for(lambda: not d.jobs(), "all to end with their owner", 20)
        for path, fd in jobs:
            os.close(fd)
        equal(len(d.generate(n=3).ids), 3, "served again")


@test
def another_default():
    """SIGHUP: clients keep what a property was until they are told that it changed."""
    with Bus() as bus, tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
        f.write("[daemon]\ndefault-model = tale\n")
        f.flush()
        with bus.daemon(models=(), args=("--config", f.name)) as d:
            c, me = Client(bus).wait(), Listener(bus)
            equal(c.get(ROOT, MANAGER, "DefaultModel"), "tale", "at first")
            with open(f.name, "w") as again:
                again.write("[daemon]\ndefault-model = sprout\n")
            d.process.send_signal(signal.SIGHUP)
            me.until(lambda: any(s[3] == "PropertiesChanged" and s[4][1].get("DefaultModel") == "sprout"
                                 for s in me.signals), "DefaultModel")
            equal(c.get(ROOT, MANAGER, "DefaultModel"), "sprout", "afterwards")
            me.close()


@test
def ending_politely():
    """SIGTERM: a job that is nearly done is finished, its text read, its end told."""
    with Bus() as bus, bus.daemon(hang_ms=STANDING_MS) as d:
        c, me = Client(bus).wait(), Listener(bus)
        d.wait_ready()
        begin = time.monotonic()
        n = len(d.generate(n=40).ids)
        # Few enough that this machine is done with them in a tenth of the 5 s that tandemd gives them.
        n = max(20, min(300, int(n * 0.5 / (time.monotonic() - begin))))
        with d.begun(lambda: me.generate(PROMPT, max_tokens=n, ignore_end=True),
                     lambda made: c.get(made[0], JOB, "GeneratedTokens") > 3, "tokens") as (path, fd):
            d.process.terminate()
        me.until(lambda: me.of(path, "Finished"), "Finished")
        equal(me.of(path, "Finished")[0][4][0], "length", "result")
        equal(len(read_all(fd)), me.of(path, "Finished")[0][4][1]["text-bytes"], "text")
        me.until(lambda: any(s[3] == "PropertiesChanged" and s[4][1].get("Draining") for s in me.signals), "Draining")
        exit_of(d.process)
        equal(d.process.returncode, 0, "exit status")
        d.expect_exit = None
        me.close()


class NextDaemon:
    """What a service manager does: the bus starts a daemon for a call when the first one has given up its name."""

    def __init__(self, bus, d):
        self.bus, self.d = bus, d

    def __enter__(self):
        self.d.expect_exit = None
        self.bus.starts(os.path.join(BIN, "tandemd"), "--user", "--socket", self.d.socket, "--bus", self.bus.address,
                        *[x for m in self.d.models for x in ("--model", m)], env=self.d.environment())
        return self

    def pid(self):
        """Of the daemon that owns the name, which is started where none does."""
        pid = int(Client(self.bus).call(ROOT, MANAGER, "GetStatus", "a{sv}", {})["pid"])
        check(pid != self.d.process.pid, "the next daemon", pid)
        return pid

    def __exit__(self, *what):
        pid = self.pid()
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not alive(pid), "the next daemon's end", 20)


@test
def calls_while_a_daemon_ends():
    """They wait at the bus for the next one, though the first one still works for a client of its socket."""
    with Bus() as bus, bus.daemon(models=(TALE, SPROUT), hang_ms=STANDING_MS) as d, NextDaemon(bus, d) as following:
        c = Client(bus).wait()
        want = read_all(c.generate(PROMPT, max_tokens=6)[1])
        with d.in_midst(dict(n=3000)):
            d.process.terminate()
            wait_for(lambda: not c.connection.name_has_owner(NAME), "the name to be given up", 10)
        equal(read_all(c.generate(PROMPT, max_tokens=6)[1]), want, "the text")
        following.pid()
        model = c.call(ROOT, MANAGER, "LoadModel", "sa{sv}", "sprout", {"wait": True})
        equal(c.get(model, MODEL, "State"), "loaded", "a model of the next daemon")


@test
def calls_that_an_ending_daemon_refuses():
    """Its own job of the bus keeps the name. What is refused meanwhile hears of it when the name is free, so that a
    second call comes to the next daemon."""
    for _ in range(10):  # a call may come too late to be refused
        with Bus() as bus, bus.daemon(hang_ms=STANDING_MS) as d, NextDaemon(bus, d) as following:
            if a_call_is_refused(bus, d, following):
                return
    check(False, "no call came in time")


def a_call_is_refused(bus, d, following):
    """False: it came to the next daemon."""
    c, answers, connected = Client(bus).wait(), [], threading.Event()
    want = read_all(c.generate(PROMPT, max_tokens=6)[1])

    def ask():
        me = Client(bus)
        connected.set()
        try:
            answers.append(me.refused(ROOT, MANAGER, "Generate", "sa{sv}", PROMPT, me.options({})))
        except AssertionError:
            return
        answers.append(read_all(me.generate(PROMPT, max_tokens=6)[1]))

    t = threading.Thread(target=ask)
    with d.begun(lambda: c.generate(PROMPT, max_tokens=20000, ignore_end=True),
                 lambda made: c.get(made[0], JOB, "GeneratedTokens") > 3, "tokens") as (path, fd):
        begin = time.monotonic()
        d.process.terminate()
        wait_for(lambda: c.get(ROOT, MANAGER, "Draining"), "Draining", 10)
        t.start()
        connected.wait()
        time.sleep(0.3)
        state = early = None
        with contextlib.suppress(c.dbus.DBusException):
            state, early = str(c.get(path, JOB, "State")), list(answers)
            c.call(path, JOB, "Cancel", "")
        late = time.monotonic() > begin + 4.5  # the job has 5 s: its end may be what was seen
        if not late:
            equal((early, state), ([], "decode"), "while a job runs")
    t.join(60 * SLOW)
    os.close(fd)
    following.pid()
    if late or not answers:
        return False
    equal(answers[0], ERROR + "Draining", "why not")
    equal(answers[1:], [want], "the text at the second call")
    return True


if __name__ == "__main__":
    main()
