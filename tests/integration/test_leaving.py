"""SIGTERM while jobs run: the daemon leaves at once where each job goes on at the next one, and gives jobs their time
where one does not. systemd is played by this file, on a private bus."""
import contextlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from lives import Cli, Held, ask_to_end, leave, let_go  # noqa: E402
from tandem_bus import Bus  # noqa: E402
from tandem_test import *  # noqa: E402,F403

SYSTEMD = "org.freedesktop.systemd1"
LONG, SHORT = 4000, 1500  # tokens: more than FINISH_S beside each other, and some of it
ELSEWHERE = "its client takes it to the next daemon"
FINISH_S = 5  # that jobs have to end


class Systemd:
    """A process that owns systemd's name and has one job: what it does to a unit."""

    def __init__(self, bus, unit, does):
        try:
            import gi  # noqa: F401
        except ImportError:
            raise Skip("python3-gi is missing") from None
        self.process = subprocess.Popen(
            [*ENDS_WITH_TEST, sys.executable, "-B", os.path.abspath(__file__), "--systemd", bus.address, unit, does],
            stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        equal(self.process.stdout.readline(), "ready\n", "the test's systemd")
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def systemd(address, unit, does):
    import gi
    gi.require_version("Gio", "2.0")
    from gi.repository import Gio, GLib
    flags = Gio.DBusConnectionFlags
    c = Gio.DBusConnection.new_for_address_sync(address, flags.AUTHENTICATION_CLIENT | flags.MESSAGE_BUS_CONNECTION,
                                                None, None)
    xml = f"""<node><interface name="{SYSTEMD}.Manager"><method name="ListJobs">
      <arg type="a(usssoo)" direction="out"/></method></interface></node>"""

    def on_call(connection, sender, path, interface, method, args, invocation):
        jobs = [(1, "another.socket", "stop", "waiting", "/a", "/b"), (2, unit, does, "waiting", "/c", "/d")]
        if does != "silent":
            invocation.return_value(GLib.Variant("(a(usssoo))", (jobs,)))

    c.register_object("/org/freedesktop/systemd1", Gio.DBusNodeInfo.new_for_xml(xml).interfaces[0], on_call, None, None)
    c.call_sync("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "RequestName",
                GLib.Variant("(su)", (SYSTEMD, 0)), None, Gio.DBusCallFlags.NONE, -1, None)
    print("ready", flush=True)
    GLib.MainLoop().run()


def running(d, n, tokens=LONG, **env):
    """Commands that have much to say yet, and workers that stand still in their midst. On a busy machine a command may
    have said all before it is looked at: then there are new ones."""
    for _ in range(20):
        d.wait_ready()
        workers, others = d.worker_pids(), len(d.jobs())
        for pid in workers:
            send_signal(pid, signal.SIGSTOP)
        clis = [Cli(d, "--raw", "--ignore-end", "-n", str(tokens), "--seed", str(i), PROMPT, **env) for i in range(n)]
        run_in_slices(workers, lambda: all(c.n() >= 5 or not c.runs() for c in clis), "tokens")
        if len(d.jobs()) == n + others:
            return clis, workers
        let_go(workers)
        give_up(clis)
        wait_for(lambda: len(d.jobs()) <= others, "their jobs have ended")
    raise AssertionError("the commands were never in their midst")


def give_up(clis):
    for cli in clis:
        cli.process.kill()
        cli.wait()


def seconds_to_leave(d, stopped=()):
    watch = Stopwatch()
    leave(d, stopped)
    return watch.seconds()


@test
def as_fast_as_an_idle_one():
    """Jobs that last longer than FINISH_S hold it no longer than their absence does."""
    with Held(hang_ms=STANDING_MS) as d:
        d.wait_ready()
        idle = seconds_to_leave(d)
        d.start()
        clis, workers = running(d, 8)
        took = seconds_to_leave(d, workers)
        give_up(clis)
        check(d.log().count(ELSEWHERE) == 8, "jobs that go on elsewhere", d.log()[-2000:])
        print(f"FIGURE leaving: {took:.2f} s with eight jobs, {idle:.2f} s idle")
        check(took < idle + FINISH_S / 2, "seconds to leave", took, idle)
        d.expect_exit = None


def job_has_its_time():
    """False: this test did not read for 1.2 s, so that the daemon left without telling all of it."""
    with Held(hang_ms=STANDING_MS) as d:
        clis, workers = running(d, 1)
        job = d.start_job(n=SHORT)
        wait_for(lambda: len(d.jobs()) == 2, "the other job")
        ask_to_end(d)
        let_go(workers)
        with contextlib.suppress(Closed):
            job.wait()
        equal(d.wait_end(), None, "what was wrong with its end")
        give_up(clis)
        d.expect_exit = None
        reason = job.result.reason
        check(reason in (None, "DONE_LENGTH") or "not done in time" in d.log(), "it was waited for", reason,
              d.log()[-2000:])
        return reason is not None


@test
def others_have_their_time():
    """A job that no client takes to the next daemon, one beside it that a client does, and one whose socket goes."""
    check(any(job_has_its_time() for _ in range(10)), "all that was told of a job came")
    with Daemon(hang_ms=STANDING_MS) as d:
        clis, workers = running(d, 1, SHORT, TANDEM_REATTACH="1")
        ask_to_end(d)
        let_go(workers)
        equal(d.wait_end(), None, "what was wrong with its end")
        give_up(clis)
        check(ELSEWHERE not in d.log(), "it was waited for", d.log()[-2000:])
        d.expect_exit = None


def told_by_systemd(unit, does):
    """Whether the daemon leaves at once."""
    with Bus() as bus, Systemd(bus, unit, does):
        d = Held(env={"DBUS_SYSTEM_BUS_ADDRESS": "unix:path=/none"}, hang_ms=STANDING_MS)
        d.bus = bus.address
        with d:
            wait_for(lambda: "serving on bus" in d.log(), "the name on the bus")
            clis, workers = running(d, 1)
            ask_to_end(d)
            let_go(workers)
            equal(d.wait_end(), None, "what was wrong with its end")
            give_up(clis)
            d.expect_exit = None
            said, elsewhere = d.log().find("no daemon follows"), d.log().find(ELSEWHERE)
            check(not 0 <= said < elsewhere, "no daemon follows, and yet", d.log()[-2000:])
            return said < 0 or elsewhere >= 0


@test
def the_socket_is_stopped_too():
    """Only systemd knows that no daemon follows. It is waited for for 0.3 s, in which it may have no CPU: not ten
    times in a row."""
    for unit, does, at_once in (("tandemd.socket", "stop", False), ("tandemd.socket", "restart", True),
                                ("tandemd.service", "stop", True), ("tandemd.socket", "silent", True)):
        check(any(told_by_systemd(unit, does) == at_once for _ in range(10)), "whether it leaves at once", unit, does)


if "--systemd" in sys.argv:
    systemd(*sys.argv[sys.argv.index("--systemd") + 1:])
else:
    main()
