#!/usr/bin/python3
"""Asks a model that sees about a picture, over D-Bus. The picture goes as a file in memory (a memfd), which a daemon of
the system takes as well as one's own.

    python3 look.py [--system] [--model NAME] PICTURE QUESTION        Debian: python3-gi
"""
import argparse
import os
import sys

try:
    from gi.repository import Gio, GLib
except ImportError:
    sys.exit("this example needs python3-gi (Debian: sudo apt install python3-gi)")

NAME, PATH = "dev.tandem.Tandem1", "/dev/tandem/Tandem1"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", action="store_true")
    parser.add_argument("--model")
    parser.add_argument("picture")
    parser.add_argument("question")
    a = parser.parse_args()
    memory = os.memfd_create("picture")
    with open(a.picture, "rb") as f, open(memory, "wb", closefd=False) as to:
        to.write(f.read())
    files = Gio.UnixFDList.new()
    # It stands before the first byte of message 0. The number is that of the file in the list.
    picture = (0, 0, GLib.Variant("h", files.append(memory)))
    options = {"pictures": GLib.Variant("a(uuv)", [picture]), "max-tokens": GLib.Variant("u", 300)}
    if a.model:
        options["model"] = GLib.Variant("s", a.model)
    bus = Gio.bus_get_sync(Gio.BusType.SYSTEM if a.system else Gio.BusType.SESSION)
    try:
        answer, fds = bus.call_with_unix_fd_list_sync(
            NAME, PATH, NAME + ".Manager", "Chat", GLib.Variant("(a(ss)a{sv})", ([("user", a.question)], options)),
            GLib.VariantType("(oh)"), Gio.DBusCallFlags.NONE, -1, files, None)
    except GLib.Error as e:
        sys.exit(e.message)
    job, pipe = answer.unpack()
    with os.fdopen(fds.get(pipe), encoding="utf-8") as text:
        for line in text:
            print(line, end="", flush=True)
    print()
    properties = bus.call_sync(NAME, job, "org.freedesktop.DBus.Properties", "GetAll",
                               GLib.Variant("(s)", (NAME + ".Job",)), GLib.VariantType("(a{sv})"),
                               Gio.DBusCallFlags.NONE, -1, None).unpack()[0]
    if properties["Result"] == "error":
        sys.exit(properties["ErrorMessage"])


main()
