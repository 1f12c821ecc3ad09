"""The faces of one table: what common/job-options.def says of an option, the wire, the library's header, the command,
its completions, the manual and a running daemon say too. The same for the fields of common/status-fields.def. This test
reads the rows by itself, so that a face that is made from the table wrongly is found as well as one that is a copy."""
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
import tandem_wire  # noqa: E402

BUILD = os.path.dirname(BIN)
# What a job is made of, beside its options.
NOT_OPTIONS = {"model", "prompt", "chat", "chat_details", "prompt_ids", "pictures", "picture_fds", "meant",
               "left_open"}


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
            found = re.search(r"\.range\.%s = (-?[0-9.]+)" % key, text)
            return found[1] if found else otherwise
        self.min, self.max = number("min", "0"), number("max", None)
        self.below, self.or_zero = ".below_max = true" in text, ".or_zero = true" in text
        self.or_minus_one = ".minus_one = " in text

    def wants(self, of_the_command=False):
        """What comes behind "is not". The command takes -1 for some."""
        if self.type in ("U32", "U64"):
            return (f"a whole number from {self.min} to {self.max or 2 ** int(self.type[1:]) - 1}" +
                    " or -1" * (of_the_command and self.or_minus_one))
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
    differ(members - counts - NOT_OPTIONS, [r.field for r in ROWS],
           "members of struct tandem_generate_options and rows")


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
            wrong = f"{row.flag}: '{row.bad()}' is not {row.wants(True)}"
            equal((r.returncode, r.stderr), (2, f"tandem: {name}: {wrong} (see `tandem help {name}`)\n"), "a bad value")


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


# ---- status

FIELDS = re.findall(r"^(\w+)_FIELD\((\w+), (\w+), '(.)', \"([\w-]*)\", BUS_(TOLD|ASKED)\)$",
                    read(TREE, "common", "status-fields.def"), re.M)
# What is no row: it consists of several things, or D-Bus makes it of the others.
COMPOUND = {"WORKER": {"blocks", "use"}, "MODEL": set(), "DAEMON": {"workers", "models"}, "JOB": {"state", "priority"}}
MADE_BY_BUS = {"Worker": {"BusyShare", "PlacementShare", "BlocksDone", "DeviceShare", "DeviceUse"}, "Model": set()}
KINDS = {"WORKER": ("WorkerStatus", "tandem_worker"), "MODEL": ("ModelStatus", "tandem_model"),
         "DAEMON": ("Status", "tandem_status"), "JOB": ("JobStatus", "tandem_job_info")}


def rows_of(kind):
    return {f[2]: f for f in FIELDS if f[0] == kind}


@test
def status_wire_and_header():
    """Every field of the wire has a row and a member in tandem.h, and the other way round."""
    proto, text = read(TREE, "proto", "tandem.proto"), read(TREE, "client-lib", "include", "tandem.h")
    types = {"TEXT": "string", "U32": "uint32", "U64": "uint64", "REAL": "double", "BOOL": "bool"}
    for kind, (message, struct) in KINDS.items():
        rows = rows_of(kind)
        check(len(rows) > 8, f"rows of {kind}", rows)
        body = re.search(r"^message %s \{(.*?)^\}" % message, proto, re.M | re.S)[1]
        fields = {f: t for t, f in re.findall(r"^  ((?:repeated )?\w+) (\w+) = \d+;", body, re.M)}
        differ(set(fields) - COMPOUND[kind], rows, f"fields of {message} and rows")
        for name, row in rows.items():
            equal(fields[name], types[row[1]], f"type of {message}.{name}")
        body = re.search(r"^struct %s \{(.*?)^\};" % struct, text, re.M | re.S)[1]
        body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
        members = {m for line in body.split(";") for m in re.findall(r"(\w+)(?=\s*(?:,|$))", line.strip())}
        differ({m for m in members if not m.startswith("n_")} - COMPOUND[kind], rows, f"members of {struct} and rows")


@test
def status_bus():
    """Properties as they are declared. (That they are answered so is integration-dbus'.)"""
    root = ET.parse(os.path.join(TREE, "proto", "dev.tandem.Tandem1.xml")).getroot()
    declared = {i.get("name").rpartition(".")[2]: i for i in root.iter("interface")}
    for kind, name in (("WORKER", "Worker"), ("MODEL", "Model")):
        properties = {p.get("name"): p for p in declared[name].iter("property")}
        rows = {f[4]: f for f in rows_of(kind).values()}
        differ(set(properties) - MADE_BY_BUS[name], rows, f"properties of {name} and rows")
        for bus_name, row in rows.items():
            p = properties[bus_name]
            told = next((a.get("value") for a in p.iter("annotation")), "true")
            equal((p.get("type"), told == "true"), (row[3], row[5] == "TOLD"),
                  f"{name}.{bus_name}: type, told of changes")
    job = {p.get("name") for p in declared["Job"].iter("property")}
    check(not {f[4] for f in rows_of("JOB").values()} - job - {""}, "properties that a job lacks", job)


@test
def status_json():
    """What the command prints of a daemon with a loaded model and a job."""
    with Daemon(hang_ms=STANDING_MS) as d:
        d.wait_ready()
        with d.in_midst(dict(n=2000), tokens=2) as (job,):
            status = json.loads(d.cli("status", "--json", check_exit=0).stdout)
            jobs = json.loads(d.cli("jobs", "--json", check_exit=0).stdout)["jobs"]
        for kind, got in (("DAEMON", status), ("WORKER", status["workers"][0]), ("MODEL", status["models"][0])):
            differ(set(got) - COMPOUND[kind] - {"device_use"}, rows_of(kind), f"--json and rows of {kind}")
        check(jobs, "the job is listed")
        differ(set(jobs[0]) - COMPOUND["JOB"], rows_of("JOB"), "--json and rows of JOB")
        equal((status["models"][0]["progress"], status["models"][0]["resident_bytes"] > 0), (1, True), "a loaded model")
        job.vanish()


main()
