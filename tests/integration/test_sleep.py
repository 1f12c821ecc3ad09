"""The machine sleeps: running steps end before it does, nothing runs meanwhile, devices are opened anew afterwards, and
the jobs go on with the same ids. systemd-logind is played by this file, on a private bus; nothing here sleeps really.
"""
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_bus import Bus  # noqa: E402
from tandem_emulated import Control  # noqa: E402
from tandem_test import *  # noqa: E402,F403

NAME = "org.freedesktop.login1"
PROGRAMS = os.path.join(BIN, "..", "lib", "npu-emulated", "programs", "manifest")


class Logind:
    """A process that owns logind's name. Each answer tells what it saw."""

    def __init__(self, bus):
        try:
            import gi  # noqa: F401
        except ImportError:
            raise Skip("python3-gi is missing") from None
        self.process = subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), "--logind", bus.address],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        equal(self.process.stdout.readline(), "ready\n", "the test's logind")

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def inhibited(self):
        return wait_for(lambda: self.ask("look")["open"] > 0, "the inhibitor", 20)

    def sleep(self):
        self.ask("sleep")
        self.asleep()

    def asleep(self):
        """Seconds until nobody held the sleep up, which has been told."""
        begin = time.monotonic()
        wait_for(lambda: self.ask("look")["open"] == 0, "the inhibitor is given up", 8, 0.002)
        return time.monotonic() - begin

    def end(self):
        self.process.terminate()
        self.process.wait()


def logind(address):
    import gi
    gi.require_version("Gio", "2.0")
    from gi.repository import Gio, GLib
    flags = Gio.DBusConnectionFlags
    c = Gio.DBusConnection.new_for_address_sync(address, flags.AUTHENTICATION_CLIENT | flags.MESSAGE_BUS_CONNECTION,
                                                None, None)
    c.set_exit_on_close(True)  # with the test's bus, however the test ended
    xml = f"""<node><interface name="{NAME}.Manager"><method name="Inhibit">
      <arg type="s" direction="in"/><arg type="s" direction="in"/><arg type="s" direction="in"/>
      <arg type="s" direction="in"/><arg type="h" direction="out"/></method></interface></node>"""
    held, asked = [], []

    def on_call(connection, sender, path, interface, method, args, invocation):
        asked.append(list(args.unpack()))
        mine, theirs = os.pipe()
        held.append(mine)
        fds = Gio.UnixFDList.new()
        fds.append(theirs)
        os.close(theirs)
        invocation.return_value_with_unix_fd_list(GLib.Variant("(h)", (0,)), fds)

    def answer(channel, condition):
        line = sys.stdin.readline().strip()
        if not line:
            loop.quit()
            return False
        for fd in [fd for fd in held if select.select([fd], [], [], 0)[0]]:  # its other end was closed
            os.close(fd)
            held.remove(fd)
        if line in ("sleep", "wake"):
            c.emit_signal(None, "/org/freedesktop/login1", NAME + ".Manager", "PrepareForSleep",
                          GLib.Variant("(b)", (line == "sleep",)))
            c.flush_sync(None)
        print(json.dumps({"open": len(held), "asked": asked}), flush=True)
        return True

    c.register_object("/org/freedesktop/login1", Gio.DBusNodeInfo.new_for_xml(xml).interfaces[0], on_call, None, None)
    c.call_sync("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "RequestName",
                GLib.Variant("(su)", (NAME, 0)), None, Gio.DBusCallFlags.NONE, -1, None)
    loop = GLib.MainLoop()
    GLib.io_add_watch(sys.stdin.fileno(), GLib.IO_IN | GLib.IO_HUP, answer)
    print("ready", flush=True)
    loop.run()


def daemon(bus, hang_ms=None, **env):
    device = "emulated" if os.path.exists(PROGRAMS) else "host"
    return bus.daemon(env={"TANDEM_NPU": device, "TANDEM_GPU": "host", "DBUS_SYSTEM_BUS_ADDRESS": bus.address, **env},
                      placement="split", hang_ms=hang_ms)


N = times(300, 1200, 40)


def wanted():
    return [{"prompt": PROMPT + " and" * i, "n": N, "temp": (0.0, 0.8)[i % 2], "seed": i} for i in range(4)]


def long(request):
    """It is not done before tandemd hears of the sleep, on fast machines too: only its first tokens are compared."""
    return dict(request, n=min(10 * N, 3500))


def go_on_as(jobs, want):
    for job, w in zip(jobs, want):
        check(job.until(N), "all tokens")
        same_ids(job.result.ids[:N], w.ids, "ids")
        same_ids(job.result.logprobs[:N], w.logprobs, "log-probabilities")
        job.vanish()


@test
def jobs_go_on():
    with Bus() as bus:
        fake = Logind(bus)
        with daemon(bus, hang_ms=STANDING_MS) as d:
            d.wait_ready()
            want = [d.generate(**q) for q in wanted()]
            fake.inhibited()
            equal(fake.ask("look")["asked"][0][0::3], ["sleep", "delay"], "what is inhibited, and how")

            def sleeps():
                pid = d.worker_pid("npu")
                fake.ask("sleep")
                return pid

            def slept(pid):
                took = fake.asleep()
                time.sleep(0.1)
                equal(d.status().get("steps_in_flight", 0), 0, "steps that run while the machine sleeps")
                steps = d.status()["steps_done"]
                time.sleep(0.5)
                equal(d.status()["steps_done"], steps, "steps done while the machine sleeps")
                check(d.status().get("jobs_running", 0) > 0, "jobs wait", d.status())
                fake.ask("wake")
                fake.inhibited()
                wait_for(lambda: d.status()["steps_done"] > steps, "the jobs go on", 20)
                if os.path.exists(PROGRAMS):
                    wait_for(lambda: d.worker_pid("npu") not in (0, pid), "the NPU is opened anew", 20)
                print(f"    the machine could sleep after {1e3 * took:.0f} ms", flush=True)

            for _ in range(20):  # the jobs may end between the two, when nobody holds them
                with d.in_midst(*map(long, wanted()), tokens=10) as jobs:
                    pid = sleeps()
                slept(pid)
                with d.sliced(lambda: all([job.has(20) for job in jobs]), "more tokens"):
                    # Those near their end may reach it before tandemd hears that it is to sleep.
                    go_on = len(d.jobs()) == len(jobs) and all(len(job.result.ids) <= 5 * N for job in jobs)
                    if go_on:
                        pid = sleeps()
                if go_on:
                    break
                for job in jobs:
                    job.vanish()
                wait_for(lambda: not d.jobs(), "the jobs are gone")
            check(go_on, "jobs that sleep twice")
            slept(pid)
            go_on_as(jobs, want)
        fake.end()


@test
def the_device_comes_late():
    """It is back seconds after the machine. It is waited for, and the jobs go on with its bits."""
    if not os.path.exists(PROGRAMS):
        raise Skip("the emulated NPU is not in this build (Debian: libxrt-dev, uuid-dev)")
    late = 6.0  # longer than a device that goes without a sleep is waited for
    control = Control()
    with Bus() as bus:
        fake = Logind(bus)
        with daemon(bus, hang_ms=STANDING_MS, TANDEM_NPU_EMULATED_CONTROL=control.path) as d:
            d.wait_ready()
            want = [d.generate(**q) for q in wanted()]
            fake.inhibited()
            with d.in_midst(*map(long, wanted()), tokens=10) as jobs:
                fake.ask("sleep")
            fake.asleep()
            control.absent(3600)
            back = time.monotonic() + late
            fake.ask("wake")
            wait_for(lambda: "no emulated device" in d.workers()["npu"].get("last_exit", ""), "the device is missed",
                     20)
            steps = d.status()["steps_done"]
            back = max(back, time.monotonic() + 0.5)  # where it was looked for late, it is not there yet either
            control.absent(back - time.monotonic())
            check(d.status().get("jobs_running", 0) > 0, "jobs wait", d.status())
            while time.monotonic() < back:
                check(d.workers()["npu"]["state"] != "quarantined", "it is waited for", d.workers()["npu"])
                now = d.status()["steps_done"]
                check(now == steps or time.monotonic() >= back, "steps done without the device", now, steps)
                time.sleep(0.1)
            wait_for(lambda: d.workers()["npu"]["state"] == "ready", "the device is opened", 10)
            wait_for(lambda: d.status()["steps_done"] > steps, "the jobs go on", 20)
            took = time.monotonic() - back
            restarts = d.workers()["npu"]["restarts"]
            go_on_as(jobs[1:], want[1:])
            check(jobs[0].until(N), "all tokens")
            with contextlib.suppress(Refused):  # it may have ended
                jobs[0].cancel()
            r = jobs[0].wait()
            same_ids(r.ids[:N], want[0].ids, "ids")
            check(not r.done.get("degraded"), "the same plan", r.done)
            print(f"    {restarts} tries; the jobs went on {1e3 * took:.0f} ms after the device was back", flush=True)
        fake.end()


@test
def the_watchdog_sleeps_too():
    """While steps are held the service manager is told that all is well, however long that takes."""
    interval = 4.0 if SANITIZER else 1.0
    with Bus() as bus, tempfile.TemporaryDirectory(prefix="tandem-test-sleep-") as directory, \
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(os.path.join(directory, "notify"))
        manager.settimeout(20 * SLOW)
        fake = Logind(bus)
        with daemon(bus, hang_ms=STANDING_MS, NOTIFY_SOCKET=manager.getsockname(),
                    WATCHDOG_USEC=str(int(interval * 1e6))) as d:
            d.wait_ready()
            want = d.generate(**wanted()[1])
            fake.inhibited()
            with d.in_midst(long(wanted()[1]), tokens=10) as (job,):
                fake.ask("sleep")
            fake.asleep()
            silences = d.log().count("the watchdog is not told")  # while the workers stood until it slept
            while select.select([manager], [], [], 0)[0]:  # what it was told before
                manager.recv(4096)
            begin, n = time.monotonic(), 0
            while time.monotonic() - begin < 3 * interval or n < 6:
                check(d.status().get("jobs_running", 0) > 0, "the job waits", d.status())
                n += manager.recv(4096).startswith(b"WATCHDOG=1")
            equal(d.log().count("the watchdog is not told"), silences, f"it was told all the time: {d.log()}")
            fake.ask("wake")
            go_on_as([job], [want])
        fake.end()


@test
def what_hangs_does_not_keep_it_awake():
    """A step that does not end holds the sleep up for 4 s, not for ever."""
    with Bus() as bus:
        fake = Logind(bus)
        with daemon(bus) as d:
            d.wait_ready()
            fake.inhibited()
            want = d.generate(**wanted()[1])
            job = d.start_job(**wanted()[1])
            job.until(10)
            pid = d.worker_pid("gpu")
            send_signal(pid, signal.SIGSTOP)
            watch = Stopwatch()
            fake.ask("sleep")
            wait_for(lambda: fake.ask("look")["open"] == 0, "the inhibitor is given up", 20)
            check(watch.seconds() < 15 * SLOW, "seconds until the machine may sleep", watch.seconds())
            try:
                send_signal(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass  # the daemon has noticed and ended it
            fake.ask("wake")
            same_ids(job.wait().ids, want.ids, "ids")
        fake.end()


@test
def others_are_not_believed():
    """A signal that is not logind's changes nothing; a logind that is started anew is asked again."""
    with Bus() as bus:
        fake = Logind(bus)
        with daemon(bus) as d:
            d.wait_ready()
            fake.inhibited()
            connection = bus.connect()
            names = [str(n) for n in connection.list_names() if str(n).startswith(":")]
            for name in names:
                code, _, err = bus.run("dbus-send", "--system", "--type=signal", f"--dest={name}",
                                       "/org/freedesktop/login1", NAME + ".Manager.PrepareForSleep", "boolean:true")
                equal(code, 0, f"dbus-send: {err}")
            time.sleep(0.3)
            check(fake.ask("look")["open"] > 0, "the inhibitor is still held")
            d.generate(n=8)
            fake.end()
            fake = Logind(bus)
            fake.inhibited()
            d.generate(n=8)
            connection.close()
        fake.end()


@test
def without_logind():
    """Neither a bus without it nor no bus keeps the daemon from its work."""
    with Bus() as bus:
        with daemon(bus) as d:
            d.generate(n=8)
            bus.stop()
            d.generate(n=8)


@test
def logind_dies_meanwhile():
    """Nobody is left to say that the machine is awake, and a new logind knows nothing of it."""
    with Bus() as bus:
        fake = Logind(bus)
        with daemon(bus) as d:
            d.wait_ready()
            for comes_back in (True, False):
                fake.inhibited()
                fake.sleep()
                fake.end()
                if comes_back:
                    fake = Logind(bus)
                    fake.inhibited()
                d.generate(n=8)


if len(sys.argv) > 2 and sys.argv[1] == "--logind":
    logind(sys.argv[2])
else:
    main()
