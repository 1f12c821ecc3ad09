"""A private bus for the integration tests: a dbus-daemon of its own in a temporary directory, a tandemd on it, and
callers that come from other projects (python3-dbus, GDBus through gi, busctl, gdbus, dbus-send)."""
import os
import shlex
import shutil
import signal
import subprocess
import sys

from tandem_test import SLOW, Daemon, Skip, check, exit_of, listens, make_folder, wait_for

NAME = "dev.tandem.Tandem1"
ROOT = "/dev/tandem/Tandem1"
MANAGER, JOB, WORKER, MODEL = (NAME + "." + x for x in ("Manager", "Job", "Worker", "Model"))
PROPERTIES = "org.freedesktop.DBus.Properties"
OBJECTS = "org.freedesktop.DBus.ObjectManager"
ERROR = NAME + ".Error."

CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>%s</type>
  <listen>unix:path=%s</listen>
  <servicedir>%s</servicedir>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow send_destination="*" eavesdrop="false"/>
    <allow receive_sender="*"/>
    <allow own="*"/>
  </policy>
  <limit name="max_incoming_bytes">1000000000</limit>
  <limit name="max_outgoing_bytes">1000000000</limit>
  <limit name="max_message_size">128000000</limit>
  <limit name="max_message_unix_fds">4096</limit>
  <limit name="max_incoming_unix_fds">10000</limit>
  <limit name="max_outgoing_unix_fds">10000</limit>
  <limit name="max_completed_connections">4000</limit>
  <limit name="max_connections_per_user">4000</limit>
  <limit name="max_pending_service_starts">100</limit>
  <limit name="max_replies_per_connection">50000</limit>
  <limit name="max_match_rules_per_connection">5000</limit>
</busconfig>
"""


def need(*programs):
    for p in programs:
        if not shutil.which(p):
            raise Skip(f"{p} is missing")


def dbus_module():
    try:
        import dbus
        return dbus
    except ImportError:
        raise Skip("python3-dbus is missing") from None


class Bus:
    """A private message bus. Use it in a `with`."""

    def __init__(self, kind="session"):
        need("dbus-daemon")
        self.kind = kind

    def __enter__(self):
        self.dir = make_folder("tandem-bus-")
        os.chmod(self.dir, 0o755)
        self.path = os.path.join(self.dir, "bus")
        self.address = f"unix:path={self.path}"
        with open(os.path.join(self.dir, "bus.conf"), "w") as f:
            f.write(CONFIG % (self.kind, self.path, os.path.join(self.dir, "services")))
        os.mkdir(os.path.join(self.dir, "services"))
        self.start()
        return self

    def start(self):
        self.process = subprocess.Popen(["dbus-daemon", "--nofork", "--nopidfile", "--nosyslog",
                                         "--config-file=" + os.path.join(self.dir, "bus.conf")],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        wait_for(lambda: listens(self.path), "the bus's socket", 10)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        exit_of(self.process, "the end of the bus")
        if os.path.exists(self.path):
            os.unlink(self.path)

    def __exit__(self, *what):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def starts(self, *command, env):
        """From now on the bus starts this command for a call to tandemd's name."""
        script = os.path.join(self.dir, "next-daemon")
        with open(script, "w") as f:
            f.write(f"#!/bin/sh\nexec {shlex.join(['env', '-i', *[f'{k}={v}' for k, v in env.items()], *command])}"
                    f" >>{self.dir}/next.log 2>&1\n")
        os.chmod(script, 0o755)
        with open(os.path.join(self.dir, "services", NAME + ".service"), "w") as f:
            f.write(f"[D-BUS Service]\nName={NAME}\nExec={script}\n")

    def connect(self):
        """A connection of python3-dbus's own, not shared."""
        return dbus_module().bus.BusConnection(self.address)

    def daemon(self, **more):
        """A tandemd on this bus, in a `with`."""
        if more.pop("system", False):
            more["args"] = ["--system"] + list(more.get("args", ()))
            cls = SystemDaemon
        else:
            cls = Daemon
        more["args"] = list(more.get("args", ())) + ["--bus", self.address]
        return cls(**more)

    def run(self, *command, timeout=120, **more):
        """A command line tool on this bus; its output."""
        need(command[0])
        r = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           timeout=timeout * SLOW, env=dict(os.environ, DBUS_SESSION_BUS_ADDRESS=self.address,
                                                            DBUS_SYSTEM_BUS_ADDRESS=self.address), **more)
        return r.returncode, r.stdout.decode(), r.stderr.decode()


class SystemDaemon(Daemon):
    system = True

    def __enter__(self):
        super().__enter__()
        os.chmod(self.dir, 0o755)
        return self

    def __init__(self, **more):
        args = more.pop("args")
        super().__init__(args=[a for a in args if a != "--system"], **more)
        self.system = True


class Client:
    """What a small program with python3-dbus does."""

    def __init__(self, bus, connection=None):
        self.dbus = dbus_module()
        self.connection = connection or bus.connect()

    def wait(self, timeout=20):
        """Until tandemd is on the bus."""
        wait_for(lambda: self.connection.name_has_owner(NAME), "tandemd's name on the bus", timeout)
        return self

    def call(self, path, interface, method, signature, *args, timeout=60):
        return self.connection.call_blocking(NAME, path, interface, method, signature, args, timeout=timeout * SLOW)

    def generate(self, prompt="Once upon a time", **options):
        path, fd = self.call(ROOT, MANAGER, "Generate", "sa{sv}", prompt, self.options(options))
        return str(path), fd.take()

    def options(self, options):
        d = self.dbus
        types = {"seed": d.UInt64, "stop": lambda v: d.Array(v, signature="s"),
                 "prompt_ids": lambda v: d.Array(v, signature="u")}
        return d.Dictionary({k.replace("_", "-"): types.get(k, lambda v: v)(v) for k, v in options.items()},
                            signature="sv")

    def get(self, path, interface, name):
        return self.call(path, PROPERTIES, "Get", "ss", interface, name)

    def all(self, path, interface):
        return {str(k): v for k, v in self.call(path, PROPERTIES, "GetAll", "s", interface).items()}

    def managed(self):
        return {str(p): i for p, i in self.call(ROOT, OBJECTS, "GetManagedObjects", "").items()}

    def refused(self, path, interface, method, signature, *args):
        """The name of the error a call ends with."""
        try:
            got = self.call(path, interface, method, signature, *args)
        except self.dbus.DBusException as e:
            check(e.get_dbus_message(), "an error says why", e.get_dbus_name())
            return e.get_dbus_name()
        raise AssertionError(f"{method} was answered with {got!r:.200}")

    def until_done(self, path, timeout=60):
        return wait_for(lambda: self.get(path, JOB, "State") == "done" and self.all(path, JOB),
                        f"end of {path}", timeout)

    def text(self, path):
        """All of GetText()."""
        out, offset = "", 0
        while True:
            piece, after, finished = self.call(path, JOB, "GetText", "t", offset)
            out += str(piece)
            if finished or after == offset:
                return out
            offset = after

    def close(self):
        self.connection.close()


def read_all(fd, timeout=60):
    """A pipe to its end."""
    import select
    out = b""
    while True:
        if not select.select([fd], [], [], timeout * SLOW)[0]:
            raise AssertionError(f"nothing to read for {timeout} s after {len(out)} bytes")
        piece = os.read(fd, 65536)
        if not piece:
            os.close(fd)
            return out
        out += piece
