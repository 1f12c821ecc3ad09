"""The faces of one table: what common/job-options.def says of an option, the wire, the library's header, the command, its
completions, the manual and a running daemon say too. This test reads the rows by itself, so that a face that is made from
the table wrongly is found as well as one that is a copy."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
import tandem_wire  # noqa: E402

BUILD = os.path.dirname(BIN)
# What a job is made of, beside its options.
NOT_OPTIONS = {"model", "prompt", "chat", "prompt_ids"}


def read(*path):
    with open(os.path.join(*path)) as f:
        return f.read()


class Row:
    def __init__(self, text):
        self.type, self.message, self.field = re.match(r"OPTION\((\w+), (\w+), (\w+),", text).groups()
        self.name = re.search(r'\.name = "([^"]+)"', text)[1]
        flag, letter = re.search(r'\.flag = "([^"]+)"', text), re.search(r"\.letter = '(.)'", text)
        self.flag, self.letter = "--" + (flag[1] if flag else self.name), "-" + letter[1] if letter else None
        self.brief = re.search(r'\.brief = "([^"]+)"', text)[1]
        self.for_tests = ".for_tests = true" in text
        choices = re.search(r"\.range\.choices = [^{]*\{ (.*?), NULL", text)
        self.choices = re.findall(r'"([^"]+)"', choices[1]) if choices else []

        def number(key, otherwise):
            found = re.search(r"\.range\.%s = ([0-9.]+)" % key, text)
            return found[1] if found else otherwise
        self.min, self.max = number("min", "0"), number("max", None)
        self.below, self.or_zero = ".below_max = true" in text, ".or_zero = true" in text

    def wants(self):
        """What comes behind "is not"."""
        if self.type in ("U32", "U64"):
            return f"a whole number from {self.min} to {self.max or 2 ** int(self.type[1:]) - 1}"
        if self.type == "REAL":
            return f"{'0 or ' * self.or_zero}a number from {self.min} to {'less than ' * self.below}{self.max}"
        if self.choices:
            return " or ".join([", ".join(self.choices[:-1]), self.choices[-1]])
        return f"a text of {self.min} to {self.max} bytes"

    def bad(self):
        """A value that is out of range, as text; None: every value of the type is in range."""
        if self.type == "BOOL" or self.type in ("TEXT", "TEXTS"):
            return None
        if self.choices:
            return "nonesuch"
        if self.type == "REAL":
            return self.max if self.below else str(float(self.max) + 1).replace(".0", "")
        return str(int(self.max) + 1) if self.max else None


ROWS = [Row(text) for text in re.findall(r"^OPTION\(.*?\)$", read(TREE, "common", "job-options.def"), re.M | re.S)]


def differ(a, b, what):
    equal(sorted(a), sorted(b), what)


@test
def wire():
    """Every row is a field of its message with a type that fits, and the other way round."""
    proto = read(TREE, "proto", "tandem.proto")
    types = {"BOOL": "bool", "U32": "uint32", "U64": "uint64", "REAL": "float", "CHOICE": None, "NAME": "string",
             "TEXT": "string", "TEXTS": "repeated bytes"}
    for message in ("Generate", "Sampling"):
        body = re.search(r"^message %s \{(.*?)^\}" % message, proto, re.M | re.S)[1]
        fields = {f: t for t, f in re.findall(r"^  ((?:repeated )?\w+) (\w+) = \d+;", body, re.M)}
        rows = {r.field: r for r in ROWS if r.message == message.lower()}
        differ(set(fields) - NOT_OPTIONS - {"sampling"}, rows, f"fields of {message} and rows")
        for name, row in rows.items():
            check(types[row.type] in (None, fields[name]), f"type of {message}.{name}", fields[name], row.type)


@test
def header():
    body = re.search(r"struct tandem_generate_options \{(.*?)^\};", read(TREE, "client-lib", "include", "tandem.h"),
                     re.M | re.S)[1]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    members = set(re.findall(r"(\w+)(?:, \*?\w+)*;", body))
    counts = {"n_" + m for m in members} | {"prompt_size", "struct_size"}
    differ(members - counts - NOT_OPTIONS, [r.field for r in ROWS], "members of struct tandem_generate_options and rows")


@test
def command():
    """Flags, help, and what a bad value is told, by generate and by chat."""
    for name in ("generate", "chat"):
        text = subprocess.run([os.path.join(BIN, "tandem"), "help", name], stdout=subprocess.PIPE, text=True,
                              timeout=20 * SLOW).stdout
        lines = re.sub(r"\s+", " ", text)
        for row in ROWS:
            check(f"{row.letter + ', ' if row.letter else ''}{row.flag} " in lines, f"{row.flag} in help {name}", text)
            check(row.brief in lines, f"what {row.flag} does, in help {name}", text)
            if not row.bad():
                continue
            r = subprocess.run([os.path.join(BIN, "tandem"), name, row.flag, row.bad()], stdin=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, timeout=20 * SLOW)
            equal((r.returncode, r.stderr),
                  (2, f"tandem: {name}: {row.flag}: '{row.bad()}' is not {row.wants()} (see `tandem help {name}`)\n"),
                  "a bad value")


@test
def completions():
    folder = os.path.join(BUILD, "client-lib", "cli", "completions")
    for shell, spelt in (("tandem.bash", "{}"), ("_tandem", "{}"), ("tandem.fish", "-l {0}")):
        text = read(folder, shell)
        check("@" not in re.sub(r"\$@|\[@\]", "", text), f"parts of {shell} that were not filled in")
        for name in ("generate", "chat"):
            mine = "\n".join(line for line in text.splitlines() if re.search(r"\b%s\b" % name, line))
            for row in ROWS:
                flag = spelt.format(row.flag if spelt == "{}" else row.flag[2:])
                check(re.search(re.escape(flag) + r"(?![\w-])", mine), f"{row.flag} of {name} in {shell}", mine)


@test
def manual():
    pages = os.path.join(BUILD, "docs", "man")
    command_page, bus_page = read(pages, "tandem.1.scd"), read(pages, "dev.tandem.Tandem1.5.scd")
    types = {"BOOL": "b", "U32": "u", "U64": "t", "REAL": "d", "CHOICE": "s", "NAME": "s", "TEXT": "s", "TEXTS": "as"}
    for row in ROWS:
        check(f"*{row.flag}*" in command_page, f"{row.flag} in tandem(1)")
        check(f"*{row.name}* (_{types[row.type]}_)" in bus_page, f"{row.name} in dev.tandem.Tandem1(5)")


@test
def socket():
    """A running daemon refuses in the same words. (What the bus says is test-daemon-dbus-parts'.)"""
    with Daemon() as d:
        for row in ROWS:
            if not row.bad() or row.type == "CHOICE":
                continue
            value = row.bad() if row.type == "NAME" else float(row.bad()) if row.type == "REAL" else int(row.bad())
            fields = request(n=1)
            (fields["sampling"] if row.message == "sampling" else fields)[row.field] = value
            with d.wire() as w:
                kind, message = w.receive(w.send("generate", fields))
            equal((kind, message.get("code"), message.get("message")),
                  ("error", "bad-request", f"{row.name}: '{row.bad()}' is not {row.wants()}"), "a bad value")
        fields = dict(request(n=1), priority=7)
        with d.wire() as w:
            equal(w.receive(w.send("generate", fields))[1].get("message"),
                  "priority: '7' is not interactive or background", "a bad choice")


main()
