#!/usr/bin/python3
"""Streams a text over D-Bus: GLib's own bus code, no library of Tandem. The text comes through a pipe, so that it is
plain reading and nobody else on the bus sees it; the job ends when this program does. Where the daemon goes meanwhile
(an upgrade, say), the next one goes on behind the tokens that came.

    python3 stream.py [--system] [--tokens N] [PROMPT]        Debian: python3-gi
"""
import argparse
import json
import os
import sys
import time

try:
    from gi.repository import Gio, GLib
except ImportError:
    sys.exit("this example needs python3-gi (Debian: sudo apt install python3-gi)")

NAME, PATH = "dev.tandem.Tandem1", "/dev/tandem/Tandem1"
PATIENCE = float(os.environ.get("TANDEM_REATTACH", 5))  # seconds in which the next daemon comes
# What a call gets while no daemon is there, or one that ends.
AWAY = ("org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner",
        "org.freedesktop.DBus.Error.NoReply", NAME + ".Error.Draining")


def ask(bus, prompt, n, drawn, numerics):
    """The reading end of the job's events, which begin behind the drawn tokens."""
    options = {"max-tokens": GLib.Variant("u", n), "temperature": GLib.Variant("d", 0.8),
               "output": GLib.Variant("s", "events")}
    if drawn:
        options["drawn"] = GLib.Variant("s", ",".join(map(str, drawn)))
        options["drawn-numerics"] = GLib.Variant("s", numerics)
    answer, fds = bus.call_with_unix_fd_list_sync(
        NAME, PATH, NAME + ".Manager", "Generate", GLib.Variant("(sa{sv})", (prompt, options)),
        GLib.VariantType("(oh)"), Gio.DBusCallFlags.NONE, -1, None, None)
    return os.fdopen(fds.get(answer.unpack()[1]), "rb")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--system", action="store_true")
    p.add_argument("--tokens", type=int, default=120)
    p.add_argument("prompt", nargs="*", default=["Once upon a time"])
    args = p.parse_args()
    bus = Gio.bus_get_sync(Gio.BusType.SYSTEM if args.system else Gio.BusType.SESSION)
    drawn, numerics, lost_at = [], "", None
    while True:
        try:
            events = ask(bus, " ".join(args.prompt), args.tokens, drawn, numerics)
        except GLib.Error as e:
            name = Gio.DBusError.get_remote_error(e)
            if lost_at and name in AWAY and time.monotonic() - lost_at < PATIENCE:
                time.sleep(0.1)
                continue
            sys.exit(e.message if name else str(e))
        with events:
            for line in events:
                if not line.endswith(b"\n"):
                    break  # the daemon died over it
                event = json.loads(line)
                numerics = event.get("numerics_id", numerics)
                if event.get("error") in AWAY:
                    break
                if event["event"] == "token":
                    drawn.append(event["id"])
                    lost_at = None
                if event["event"] in ("token", "done"):
                    sys.stdout.write(event["text"])
                    sys.stdout.flush()
                if event["event"] == "done":
                    print(f"\n[{event.get('message') or event['reason']}]")
                    return
        lost_at = lost_at or time.monotonic()  # the pipe has ended, and the job has not
        if time.monotonic() - lost_at >= PATIENCE:
            sys.exit("\nthe service went, again and again")


main()
