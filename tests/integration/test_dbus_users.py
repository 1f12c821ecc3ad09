"""Who may do what over D-Bus: two real users on one bus, polkit played by the test, and no polkit at all. What another
user's job says stays between it and its user."""
import contextlib
import inspect
import itertools
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from tandem_bus import *  # noqa: E402,F403
from hung_files import *  # noqa: E402,F403

ALICE, BOB = pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("games").pw_uid  # accounts that every Debian has
UNKNOWN = "org.freedesktop.DBus.Error.UnknownObject"
DENIED = ERROR + "Denied"


def python_of(function, address):
    """A command line that runs function(address) and needs no file: another user may not be able to read this tree."""
    names = {"NAME": NAME, "ROOT": ROOT, "MANAGER": MANAGER}
    lines = ["import json, sys"] + [f"{k} = {v!r}" for k, v in names.items()]
    return [sys.executable, "-B", "-c", "\n".join(lines) + "\n" + inspect.getsource(function) +
            f"\n{function.__name__}(sys.argv[1])", address]


class User:
    """A process of another user, with a connection of its own; told what to call on its standard input."""

    def __init__(self, bus, uid):
        if os.geteuid() != 0:
            raise Skip("becoming another user needs root")
        dbus_module()
        self.process = subprocess.Popen(python_of(caller, bus.address),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=uid, group=uid,
                                        extra_groups=[], cwd="/", text=True)
        self.name = self.do("name")

    def do(self, what, *args):
        self.process.stdin.write(json.dumps([what, *args]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        check(line, "a caller left")
        return json.loads(line)

    def call(self, path, interface, method, signature, *args):
        """The answer, or the name of the error."""
        return self.do("call", path, interface, method, signature, list(args))

    def generate(self, **options):
        return self.do("generate", options)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def caller(address):
    """The other side of User."""
    import dbus
    connection = dbus.bus.BusConnection(address)

    def plain(v):
        if isinstance(v, (dbus.Dictionary, dict)):
            return {str(k): plain(x) for k, x in v.items()}
        if isinstance(v, (list, tuple)):
            return [plain(x) for x in v]
        if isinstance(v, (dbus.Boolean, bool)):
            return bool(v)
        if isinstance(v, (int, float)):
            return float(v) if isinstance(v, float) else int(v)
        return str(v)
    for line in sys.stdin:
        what, *args = json.loads(line)
        try:
            if what == "name":
                out = connection.get_unique_name()
            elif what == "generate":
                path, fd = connection.call_blocking(NAME, ROOT, MANAGER, "Generate", "sa{sv}", (
                    "Once upon a time", dbus.Dictionary(args[0], signature="sv")), timeout=60)
                fd = fd.take()  # kept open: the reader that stays
                out = str(path)
            else:
                path, interface, method, signature, values = args
                m = dbus.lowlevel.MethodCallMessage(NAME, path, interface, method)
                m.append(*values, signature=signature)
                out = plain(connection.send_message_with_reply_and_block(m, 60).get_args_list())
        except dbus.DBusException as e:
            out = e.get_dbus_name()
        print(json.dumps(out), flush=True)


class Polkit:
    """Plays org.freedesktop.PolicyKit1: a process with its own main loop that answers from a table of
    {"uid action": yes}, and can be told to hold its answers back until it may go on. Written with GDBus."""

    def __init__(self, bus, table, answer="normal"):
        try:
            import gi  # noqa: F401
        except ImportError:
            raise Skip("python3-gi is missing") from None
        self.process = subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), "--polkit", bus.address,
                                         json.dumps(table), answer], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        equal(self.process.stdout.readline(), "ready\n", "the test's polkit")

    def wait_asked(self, n):
        for _ in range(n):
            self.process.stdout.readline()

    def go_on(self):
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def asked(self):
        """Stops it; what it was asked."""
        self.process.terminate()
        return [json.loads(line) for line in self.process.communicate(timeout=60 * SLOW)[0].splitlines()]


def polkit(address, table, answer):
    import gi
    gi.require_version("Gio", "2.0")
    from gi.repository import Gio, GLib
    flags = Gio.DBusConnectionFlags
    c = Gio.DBusConnection.new_for_address_sync(address, flags.AUTHENTICATION_CLIENT | flags.MESSAGE_BUS_CONNECTION,
                                                None, None)
    c.set_exit_on_close(True)  # with the test's bus, however the test ended
    xml = """<node><interface name="org.freedesktop.PolicyKit1.Authority"><method name="CheckAuthorization">
      <arg type="(sa{sv})" direction="in"/><arg type="s" direction="in"/><arg type="a{ss}" direction="in"/>
      <arg type="u" direction="in"/><arg type="s" direction="in"/><arg type="(bba{ss})" direction="out"/>
      </method></interface></node>"""

    held = []

    def on_call(connection, sender, path, interface, method, args, invocation):
        (kind, details), action, _, asked, _ = args.unpack()
        if kind == "unix-process":  # as polkit: the process that started then
            with open(f"/proc/{details['pid']}/stat") as f:
                started = int(f.read().rsplit(")", 1)[1].split()[19])
            uid = details["uid"] if started == details["start-time"] else -1
        else:
            r = c.call_sync("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus",
                            "GetConnectionUnixUser", GLib.Variant("(s)", (details["name"],)), None,
                            Gio.DBusCallFlags.NONE, -1, None)
            uid = r.unpack()[0]
        print(json.dumps([kind, uid, action, asked]), flush=True)

        def reply():
            if answer == "error":
                invocation.return_dbus_error("org.freedesktop.PolicyKit1.Error.Failed", "no such action")
            elif answer == "silent":
                pass
            else:
                yes = table.get(f"{uid} {action.rsplit('.', 1)[1]}", False)
                invocation.return_value(GLib.Variant("((bba{ss}))", ((yes, not yes, {}),)))
            return False
        held.append(reply) if answer == "held" else reply()

    def on_go_on(channel, condition):
        sys.stdin.readline()
        while held:
            held.pop(0)()
        return False

    if answer == "held":
        GLib.io_add_watch(sys.stdin.fileno(), GLib.IO_IN, on_go_on)
    c.register_object("/org/freedesktop/PolicyKit1/Authority", Gio.DBusNodeInfo.new_for_xml(xml).interfaces[0],
                      on_call, None, None)
    c.call_sync("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "RequestName",
                GLib.Variant("(su)", ("org.freedesktop.PolicyKit1", 0)), None, Gio.DBusCallFlags.NONE, -1, None)
    print("ready", flush=True)
    GLib.MainLoop().run()


@test
def a_users_bus_is_that_users():
    with Bus() as bus, bus.daemon(hang_ms=STANDING_MS) as d:
        c, bob = Client(bus).wait(), User(bus, BOB)
        d.generate(n=1)  # a worker that stands while it begins, or takes a model, is replaced after 10 s
        with d.standing():  # the job lasts
            path, fd = c.generate(max_tokens=2000, ignore_end=True)
            for call in ((ROOT, MANAGER, "GetStatus", "a{sv}", {}), (ROOT, OBJECTS, "GetManagedObjects", ""),
                         (path, JOB, "Cancel", ""), (path, JOB, "GetText", "t", 0),
                         (path, PROPERTIES, "GetAll", "s", JOB),
                         (ROOT, "org.freedesktop.DBus.Introspectable", "Introspect", "")):
                equal(bob.call(*call), DENIED, f"{call[2]} by another user")
            equal(bob.generate(), DENIED, "Generate by another user")
            check(c.get(path, JOB, "State") != "done", "the job goes on")
            c.call(path, JOB, "Cancel", "")
        os.close(fd)
        bob.close()


def look(user, path):
    """Everything that one might try on a job."""
    return {"Cancel": user.call(path, JOB, "Cancel", ""), "GetText": user.call(path, JOB, "GetText", "t", 0),
            "Watch": user.call(path, JOB, "Watch", ""), "Release": user.call(path, JOB, "Release", ""),
            "Get": user.call(path, PROPERTIES, "Get", "ss", JOB, "State"),
            "GetAll": user.call(path, PROPERTIES, "GetAll", "s", JOB),
            "Set": user.call(path, PROPERTIES, "Set", "ssv", JOB, "State", "x"),
            "Introspect": user.call(path, "org.freedesktop.DBus.Introspectable", "Introspect", "")}


@test
def two_users_without_polkit():
    with Bus("system") as bus, bus.daemon(system=True, hang_ms=STANDING_MS) as d:
        root, alice, bob = Client(bus).wait(), User(bus, ALICE), User(bus, BOB)
        tries = itertools.count()

        def start():
            token = f"hers{next(tries)}"  # one that ended before keeps its token
            path = alice.generate(**{"max-tokens": 4000, "ignore-end": True, "linger": True, "token": token})
            check(path.startswith(ROOT + "/jobs/"), "alice generates", path)
            return path, alice.generate(**{"max-tokens": 4000, "ignore-end": True})

        with d.begun(start, lambda made: root.get(made[0], JOB, "TextBytes") > 0, "a text", 2) as (path, plain):
            # For Bob there is no such thing: the same answers as for what does not exist.
            for p in (path, plain):
                nothing = look(bob, p + "9")
                equal(set(nothing.values()), {UNKNOWN}, "answers about a job that does not exist")
                equal(look(bob, p), nothing, "answers about another user's job")
            equal(bob.call(os.path.dirname(path), "org.freedesktop.DBus.Introspectable", "Introspect", ""), UNKNOWN,
                  "the folder of another user's jobs")
            check("jobs/" not in json.dumps(bob.call(ROOT, OBJECTS, "GetManagedObjects", "")), "Bob's managed objects")
            seen = bob.call(ROOT + "/jobs", "org.freedesktop.DBus.Introspectable", "Introspect", "")[0]
            check("node name" not in seen, "Bob's list of jobs")
            check(path in json.dumps(alice.call(ROOT, OBJECTS, "GetManagedObjects", "")), "Alice's managed objects")
            # Another connection of Alice's sees them; root sees all.
            again = User(bus, ALICE)
            check(again.call(path, JOB, "GetText", "t", 0)[1] > 0, "text, for the same user")
            check(isinstance(again.call(path, PROPERTIES, "GetAll", "s", JOB), list), "properties, for the same user")
            equal(int(root.get(path, JOB, "StartedByUID")), ALICE, "root sees whose it is")
            check(path in root.managed() and plain in root.managed(), "root sees all")
            # Managing is root's.
            for call in ((ROOT, MANAGER, "LoadModel", "sa{sv}", "tale", {}),
                         (ROOT, MANAGER, "UnloadModel", "sa{sv}", "tale", {}),
                         (ROOT, MANAGER, "RestartWorker", "sa{sv}", "npu", {}),
                         (ROOT + "/workers/npu", WORKER, "Restart", "a{sv}", {})):
                equal(bob.call(*call), DENIED, f"{call[2]} without polkit")
            # The same over the socket: Bob sees and ends nothing of Alice's.
            jobs = {j["uid"] for j in d.jobs()}
            equal(jobs, {ALICE}, "whose jobs run")
            equal(again.call(path, JOB, "Cancel", ""), [], "the same user cancels")
            root.call(plain, JOB, "Cancel", "")
        wait_for(lambda: not d.jobs(), "both to end")
        root.call(ROOT, MANAGER, "RestartWorker", "sa{sv}", "npu", {})
        for u in (alice, bob, again):
            u.close()


@test
def polkit_decides():
    table = {f"{ALICE} generate": True, f"{BOB} manage-models": True, f"{BOB} view-others": True}
    with Bus("system") as bus, bus.daemon(system=True, models=(TALE, SPROUT), hang_ms=STANDING_MS) as d:
        root, alice, bob = Client(bus).wait(), User(bus, ALICE), User(bus, BOB)
        p = Polkit(bus, table)
        equal(bob.generate(), DENIED, "Bob may not")
        equal(alice.call(ROOT, MANAGER, "LoadModel", "sa{sv}", "sprout", {}), DENIED, "Alice may not load")
        check(isinstance(bob.call(ROOT, MANAGER, "LoadModel", "sa{sv}", "sprout", {"wait": True}), list), "Bob loads")
        equal(bob.call(ROOT, MANAGER, "UnloadModel", "sa{sv}", "sprout", {}), [], "and unloads")
        for u in (alice, bob):
            equal(u.call(ROOT, MANAGER, "RestartWorker", "sa{sv}", "gpu", {}), DENIED, "nobody restarts")
        equal(alice.call(ROOT, MANAGER, "Generate", "sa{sv}", "x", {"nonsense": True}), ERROR + "BadRequest",
              "an error after polkit's yes")

        def start():
            path = alice.generate(**{"max-tokens": 4000, "ignore-end": True})
            check(path.startswith(ROOT), "alice may generate", path)
            return path

        # To view others is to look, and no more: no text, no cancelling.
        with d.begun(start, lambda path: root.get(path, JOB, "TextBytes") > 0, "a text") as path:
            seen = bob.call(path, PROPERTIES, "GetAll", "s", JOB)
            equal(seen[0]["StartedByUID"], ALICE, "Bob sees whose it is")
            check(path in json.dumps(bob.call(ROOT, OBJECTS, "GetManagedObjects", "")), "Bob's managed objects")
            for method, signature, args in (("GetText", "t", [0]), ("Cancel", "", []),
                                            ("Watch", "", []), ("Release", "", [])):
                equal(bob.call(path, JOB, method, signature, *args), DENIED, f"{method} on a job that is only seen")
            alice.call(path, JOB, "Cancel", "")
        # busctl offers a dialogue, and that reaches polkit.
        code, out, err = bus.run("busctl", f"--address={bus.address}", "call", NAME, ROOT, MANAGER, "UnloadModel",
                                 "sa{sv}", "tale", "0", user=ALICE, group=ALICE, extra_groups=[], cwd="/")
        check(code == 1 and "not granted" in err, "busctl without the right", code, err)
        asked = p.asked()
        equal([a for a in asked if a[3]], [["system-bus-name", ALICE, NAME + ".manage-models", 1]], "with a dialogue")
        check(all(k == "system-bus-name" for k, *_ in asked), "subjects", asked)
        equal({(u, a.rsplit(".", 1)[1]) for _, u, a, _ in asked},
              {(ALICE, "generate"), (BOB, "generate"), (ALICE, "manage-models"), (BOB, "manage-models"),
               (ALICE, "restart-worker"), (BOB, "restart-worker"), (BOB, "view-others")}, "what was asked")
        for u in (alice, bob):
            u.close()


LOADER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from tandem_wire import *
pid = os.fork()
if pid:  # the one that connected ends, and a child asks over its connection
    print(os.waitpid(pid, 0)[1] >> 8)
    sys.exit()
w = Wire(sys.argv[2], timeout=120)
me = os.getpid()
if sys.argv[3] == "child" and os.fork():
    os._exit(0)
while sys.argv[3] == "child" and os.path.exists(f"/proc/{me}"):
    time.sleep(0.01)
try:
    w.call("load", {"model": {"name": sys.argv[4]}})
    print("loaded")
except Refused as e:
    print(e.code, e)
"""


def load_over_the_socket(d, uid, how, model):
    if os.geteuid() != 0:
        raise Skip("becoming another user needs root")
    with tempfile.TemporaryDirectory(prefix="tandem-test-wire-") as tree:  # another user may not read this one
        for path in ("tests/lib/tandem_wire.py", "proto/tandem.proto"):
            os.makedirs(os.path.join(tree, os.path.dirname(path)))
            shutil.copyfile(os.path.join(TREE, path), os.path.join(tree, path))
        subprocess.run(["chmod", "-R", "a+rX", tree], check=True)
        r = subprocess.run([sys.executable, "-B", "-c", LOADER, os.path.join(tree, "tests", "lib"), d.socket, how,
                            model], user=uid, group=uid, extra_groups=[], cwd="/", stdout=subprocess.PIPE, text=True,
                           timeout=120 * SLOW)
    return r.stdout.replace("\n", " ")


@test
def the_socket_asks_too():
    """Who may load over the bus may over the socket: polkit is asked about the process that connected, by its pid and
    the time at which it started, and never about one that has ended."""
    with Bus("system") as bus, bus.daemon(system=True, models=(TALE, SPROUT)) as d:
        Client(bus).wait()
        for path in (d.dir, os.path.dirname(d.socket)):
            os.chmod(path, 0o755)
        os.chmod(d.socket, 0o666)
        out = load_over_the_socket(d, ALICE, "self", "sprout")
        check("denied" in out and "no polkit" in out, "without polkit", out)
        p = Polkit(bus, {f"{BOB} manage-models": True})
        out = load_over_the_socket(d, ALICE, "self", "sprout")
        check("denied" in out and "not granted" in out, "Alice may not", out)
        equal([m["state"] for m in d.status()["models"] if m["name"] == "sprout" and m["state"] == "loaded"], [],
              "not loaded")
        check("loaded" in load_over_the_socket(d, BOB, "self", "sprout"), "Bob may")
        equal(d.model("sprout")["state"], "loaded", "the model")
        out = load_over_the_socket(d, BOB, "child", "tale")
        check("denied" in out and "No such process" in out, "the process that connected has ended", out)
        equal([(kind, uid) for kind, uid, *_ in p.asked()], [("unix-process", ALICE), ("unix-process", BOB)],
              "what polkit was asked")


@test
def polkit_fails_or_sleeps():
    with Bus("system") as bus, bus.daemon(system=True) as d:
        root, alice, bob = Client(bus).wait(), User(bus, ALICE), User(bus, BOB)
        p = Polkit(bus, {}, answer="error")
        equal(alice.generate(), DENIED, "polkit that fails means no")
        p.asked()
        d.generate(n=3)  # what a first job takes is not to be part of polkit's 10 s below
        p = Polkit(bus, {f"{ALICE} generate": True}, answer="held")
        # Root and the socket are served while polkit thinks, and a caller that leaves meanwhile is forgotten.
        alice.process.stdin.write(json.dumps(["generate", {"max-tokens": 3}]) + "\n")
        alice.process.stdin.flush()
        bob.process.stdin.write(json.dumps(["generate", {"max-tokens": 3}]) + "\n")
        bob.process.stdin.flush()
        p.wait_asked(2)
        bob.process.kill()
        path, fd = root.generate(max_tokens=3)
        read_all(fd)
        equal(len(d.generate(n=3).ids), 3, "nobody else waits for polkit")
        p.go_on()
        check(json.loads(alice.process.stdout.readline()).startswith(ROOT), "a late yes is a yes")
        p.asked()
        # Silence: refused in the end, and the floor is not left with calls that wait. More than may wait are refused.
        p = Polkit(bus, {}, answer="silent")
        c = subprocess.run(python_of(flood, bus.address), user=ALICE, group=ALICE,
                           extra_groups=[], cwd="/", stdout=subprocess.PIPE, timeout=240 * SLOW)
        errors = json.loads(c.stdout)
        check(errors.get(ERROR + "Quota", 0) >= 36 and errors.get(DENIED, 0) == 64, "a flood while polkit is silent",
              errors)
        p.asked()
        equal(len(d.generate(n=3).ids), 3, "the daemon still serves")
        for u in (alice, bob):
            u.close()


def flood(address):
    """A hundred calls at once that polkit never answers; how they ended."""
    from collections import Counter
    import gi
    gi.require_version("Gio", "2.0")
    from gi.repository import Gio, GLib
    flags = Gio.DBusConnectionFlags
    c = Gio.DBusConnection.new_for_address_sync(address, flags.AUTHENTICATION_CLIENT | flags.MESSAGE_BUS_CONNECTION,
                                                None, None)
    c.set_exit_on_close(True)
    loop, ends = GLib.MainLoop(), Counter()

    def done(connection, result):
        try:
            connection.call_finish(result)
            ends["answered"] += 1
        except GLib.Error as e:
            ends[Gio.DBusError.get_remote_error(e)] += 1
        if sum(ends.values()) == 100:
            loop.quit()
    # One first, so that the uid is known and all the others come to polkit.
    c.call_sync(NAME, ROOT, MANAGER, "GetStatus", GLib.Variant("(a{sv})", ({},)),
                None, Gio.DBusCallFlags.NONE, -1, None)
    for _ in range(100):
        c.call(NAME, ROOT, MANAGER, "Generate", GLib.Variant("(sa{sv})", ("x", {})),
               None, Gio.DBusCallFlags.NONE, 200000, None, done)
    loop.run()
    print(json.dumps(ends))


@test
def a_hung_file():
    """A file whose flush hangs for tandemd alone: neither its loop nor the bus waits for it."""
    if not available():
        raise Skip("needs root and /dev/fuse, to serve a file that hangs")
    with contextlib.ExitStack() as stack:
        bus = stack.enter_context(Bus("system"))
        d = stack.enter_context(bus.daemon(system=True, models=(TALE,)))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-hung-"))
        files = stack.enter_context(HungFiles(os.path.join(folder, "mnt"), make_model("tiny"), ALICE,
                                              spared=(bus.process.pid, os.getpid())))
        c = Client(bus).wait()
        d.generate(n=2)
        fd = os.open(files.path, os.O_RDONLY)
        files.hang("flush")
        wrong = {"model-fd": c.dbus.types.UnixFd(fd), "max-tokens": "many"}
        took = []
        for i in range(12):
            watch = Stopwatch()
            name = c.refused(ROOT, MANAGER, "Generate", "sa{sv}", "x", wrong)
            check(name.startswith(ERROR), "a call that is refused", name)
            with contextlib.suppress(c.dbus.DBusException):
                c.generate("x", model="mine", model_fd=c.dbus.types.UnixFd(fd), max_tokens=2)
            equal(c.refused(ROOT, MANAGER, "LoadModel", "sa{sv}", "mine", {"model-fd": c.dbus.types.UnixFd(fd),
                                                                          "odd": 1})[:len(ERROR)], ERROR, "a load")
            d.status()
            took.append(watch.seconds())
        took.sort()
        print(f"FIGURE a_hung_file: three calls and a status took {1000 * took[-1]:.0f} ms at most")
        check(took[9] < 1.0 * SLOW, "nothing waits", took)  # the longest two may be those of a machine that stood still
        os.close(fd)
        files.end()
        equal(len(d.generate(n=3).ids), 3, "the daemon serves")


if __name__ == "__main__":
    if "--polkit" in sys.argv:
        polkit(sys.argv[2], json.loads(sys.argv[3]), sys.argv[4])
    else:
        main()
