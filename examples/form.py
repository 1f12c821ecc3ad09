#!/usr/bin/python3
"""Fills a form from an e-mail over D-Bus. The option `json-schema` makes every answer that ends by itself a valid form,
so there is nothing to parse twice and nothing to ask again.

    python3 form.py [--system] E-MAIL        Debian: python3-gi
"""
import json
import os
import sys

try:
    from gi.repository import Gio, GLib
except ImportError:
    sys.exit("this example needs python3-gi (Debian: sudo apt install python3-gi)")

NAME, PATH = "dev.tandem.Tandem1", "/dev/tandem/Tandem1"
FORM = {
    "type": "object",
    "properties": {
        "sender": {"type": "string", "maxLength": 60},
        "wants": {"enum": ["offer", "invoice", "complaint", "other"]},
        "items": {"type": "array", "maxItems": 3,
                  "items": {"type": "object",
                            "properties": {"name": {"type": "string", "maxLength": 30},
                                           "pieces": {"type": "integer", "minimum": 1, "maximum": 9999}},
                            "required": ["name", "pieces"], "additionalProperties": False}},
        "urgent": {"type": "boolean"},
    },
    "required": ["sender", "wants", "items", "urgent"],
    "additionalProperties": False,
}


def main():
    arguments = [a for a in sys.argv[1:] if a != "--system"]
    if len(arguments) != 1:
        sys.exit(f"usage: {sys.argv[0]} [--system] E-MAIL")
    with open(arguments[0], errors="replace") as f:
        prompt = f"An e-mail:\n\n{f.read()}\n\nThe same as a form in JSON:\n"
    bus = Gio.bus_get_sync(Gio.BusType.SYSTEM if "--system" in sys.argv else Gio.BusType.SESSION)
    options = {"json-schema": GLib.Variant("s", json.dumps(FORM)), "max-tokens": GLib.Variant("u", 400),
               "output": GLib.Variant("s", "events")}
    try:
        answer, fds = bus.call_with_unix_fd_list_sync(
            NAME, PATH, NAME + ".Manager", "Generate", GLib.Variant("(sa{sv})", (prompt, options)),
            GLib.VariantType("(oh)"), Gio.DBusCallFlags.NONE, -1, None, None)
    except GLib.Error as e:
        sys.exit(e.message)
    with os.fdopen(fds.get(answer.unpack()[1])) as pipe:
        events = [json.loads(line) for line in pipe]
    end = events[-1]
    if end.get("incomplete", True) or end["reason"] != "stop":
        sys.exit(f"the form is incomplete: {end.get('message') or end['reason']}")
    form = json.loads("".join(e.get("text", "") for e in events))
    for key, value in form.items():
        print(f"{key}: {value}")


main()
