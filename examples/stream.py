#!/usr/bin/python3
"""Streams a text over D-Bus: GLib's own bus code, no library of Tandem. The text comes through a pipe, so that it is
plain reading and nobody else on the bus sees it; the job ends when this program does.

    python3 stream.py [--system] [PROMPT]        Debian: python3-gi
"""
import os
import sys

try:
    from gi.repository import Gio, GLib
except ImportError:
    sys.exit("this example needs python3-gi (Debian: sudo apt install python3-gi)")

NAME, PATH = "dev.tandem.Tandem1", "/dev/tandem/Tandem1"


def main():
    arguments = sys.argv[1:]
    system = "--system" in arguments
    prompt = " ".join(a for a in arguments if a != "--system") or "Once upon a time"
    bus = Gio.bus_get_sync(Gio.BusType.SYSTEM if system else Gio.BusType.SESSION)
    options = {"max-tokens": GLib.Variant("u", 120), "temperature": GLib.Variant("d", 0.8)}
    try:
        answer, fds = bus.call_with_unix_fd_list_sync(
            NAME, PATH, NAME + ".Manager", "Generate", GLib.Variant("(sa{sv})", (prompt, options)),
            GLib.VariantType("(oh)"), Gio.DBusCallFlags.NONE, -1, None, None)
    except GLib.Error as e:
        sys.exit(Gio.DBusError.get_remote_error(e) and e.message or str(e))
    job, handle = answer.unpack()
    with os.fdopen(fds.get(handle), "rb", buffering=0) as pipe:
        while chunk := pipe.read(4096):
            sys.stdout.buffer.write(chunk)
            sys.stdout.flush()
    result = bus.call_sync(NAME, job, "org.freedesktop.DBus.Properties", "Get",
                           GLib.Variant("(ss)", (NAME + ".Job", "Result")), GLib.VariantType("(v)"),
                           Gio.DBusCallFlags.NONE, -1, None).unpack()[0]
    print(f"\n[{result or 'not over yet'}]")


main()
