"""The manual against the code, both ways: a flag, key, variable, method or property that one of them has and the other
has not is a defect of one of them. And the pages format without a warning."""
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

PAGES = ("tandem.1", "tandemd.8", "tandem-http.8", "tandem.conf.5", "dev.tandem.Tandem1.5")


def source(*path):
    with open(os.path.join(TREE, *path)) as f:
        return f.read()


def page(name):
    """With the parts that the build fills in."""
    with open(os.path.join(os.path.dirname(BIN), "docs", "man", name + ".scd")) as f:
        return f.read()


def both_ways(code, manual, what):
    check(not code - manual, f"{what} that the manual lacks", sorted(code - manual))
    check(not manual - code, f"{what} that only the manual knows", sorted(manual - code))


def help_of(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=20 * SLOW).stdout


@test
def command_flags():
    """The option tables of the command's sources; the help of each command has them too."""
    tables = {"help", "version"}
    folder = os.path.join("client-lib", "cli")
    names = [os.path.join(folder, n) for n in os.listdir(os.path.join(TREE, folder)) if not n.startswith("test-")]
    commands = {n[:-2] for n in os.listdir(os.path.join(TREE, folder, "commands"))}
    for name in names + [os.path.join(folder, "commands", c + ".c") for c in commands]:
        if name.endswith((".c", ".h")):
            tables |= set(re.findall(r'\.name = "([a-z0-9-]+)",[\s\\]*(?:\.range(?:[^{},]|\{[^}]*\})*,[\s\\]*)?\.at\b',
                                     source(name)))
    for row in re.findall(r"^OPTION\(.*?\)$", source("common", "job-options.def"), re.M | re.S):
        tables.add(re.search(r'\.(?:flag = |name = )"([a-z0-9-]+)"', re.sub(r'.*(?=\.flag)', "", row, flags=re.S))[1])
    check(len(tables) > 25, "found the tables", tables)
    both_ways(tables, set(re.findall(r"\*--([a-z0-9-]+)\*", page("tandem.1"))), "flags of tandem")
    program = os.path.join(BIN, "tandem")
    both_ways(commands, set(re.findall(r"^\*tandem ([a-z0-9-]+)\*", page("tandem.1"), re.M)), "commands of tandem")
    helps = "".join(help_of(program, "help", c) for c in commands) + help_of(program, "help")
    known = set(re.findall(r"--([a-z][a-z0-9-]+)", helps))
    check(not known - tables, "flags that only the help knows", sorted(known - tables))


@test
def daemon_flags():
    code = source("daemon", "service", "config.c")
    flags = set(re.findall(r'\{ "([a-z0-9-]+)", (?:no|required)_argument', code))
    both_ways(flags, set(re.findall(r"\*--([a-z0-9-]+)\*", page("tandemd.8"))) - {"user-only"}, "flags of tandemd")
    check(not flags - set(re.findall(r"--([a-z0-9-]+)", help_of(os.path.join(BIN, "tandemd"), "--help"))),
          "flags in its help", flags)


@test
def gateway_flags():
    flags = set(re.findall(r'\{ "([a-z0-9-]+)", (?:no|required)_argument', source("http-gateway", "config.c")))
    check(len(flags) > 8, "found the flags", flags)
    both_ways(flags, set(re.findall(r"^\*--([a-z0-9-]+)\*", page("tandem-http.8"), re.M)), "flags of tandem-http")
    in_help = set(re.findall(r"--([a-z0-9-]+)", help_of(os.path.join(BIN, "tandem-http"), "--help")))
    both_ways(flags, in_help, "flags in its help")


@test
def gateway_parameters():
    """The tables in docs/http-api.md are those of the program."""
    tables = help_of(os.path.join(BIN, "tandem-http"), "--list-parameters").rstrip("\n")
    check(tables.count("### ") == 46, "found the tables", tables[:200])
    check(tables in source("docs", "http-api.md"),
          "docs/http-api.md is older than the tables of tandem-http --list-parameters")


@test
def gateway_paths():
    """Each path of the program is in docs/http-api.md."""
    paths = {p.rstrip("/") for p in re.findall(r'^        \{ "(/[^"]*)", "', source("http-gateway", "routes.c"), re.M)}
    check(len(paths) > 20, "found the paths", paths)
    said = source("docs", "http-api.md").split("## Parameters")[0]
    missing = [p for p in paths if p and p not in said and f"`{p.split('/')[-1]}`" not in said]
    equal(missing, [], "paths that the page lacks")


@test
def config_keys():
    code = source("daemon", "service", "config-ini.c")
    keys = re.findall(r'\{ "([a-z]+)", "([a-z0-9-]+)", KIND_', code)
    check(len(keys) > 12, "found the table", keys)
    manual, section = set(), None
    for line in page("tandem.conf.5").splitlines():
        heading = re.match(r"# SECTION \[(\w+)\]", line)
        section = heading[1] if heading else None if line.startswith("# ") else section
        if section and line.startswith("*"):
            manual |= {(section, k) for k in re.findall(r"\*([a-z0-9-]+)\* = ", line)}
    both_ways(set(keys), manual, "keys of tandem.conf")
    live = set(re.findall(r'"([a-z0-9-]+)"', re.search(r"live_keys\[\] = \{([^}]*)\}", code)[1]))
    said, key = set(), None
    for line in page("tandem.conf.5").splitlines():
        found = re.match(r"\*([a-z0-9-]+)\* = ", line)
        key = found[1] if found else key
        if line.endswith("_live_"):
            said.add(key)
    both_ways(live, said, "keys that change while it runs")


@test
def variables():
    read = set()
    for folder in ("daemon", "common", "engine", "npu-worker", "gpu-worker"):
        for base, _, names in os.walk(os.path.join(TREE, folder)):
            for name in names:
                if name.endswith(".c") and not name.startswith(("test-", "fuzz-")):
                    read |= set(re.findall(r'"(TANDEM_[A-Z_]+)"', source(os.path.join(base, name))))
    told = set(re.findall(r"\b(TANDEM_[A-Z_]+)\b", page("tandemd.8")))
    check(not told - read, "variables that only the manual knows", sorted(told - read))
    helped = set(re.findall(r"\b(TANDEM_[A-Z_]+)\b", source("daemon", "service", "config.c")))
    check(not helped - told, "variables that the manual lacks", sorted(helped - told))


@test
def bus_interface():
    path = os.path.join(TREE, "proto", "dev.tandem.Tandem1.xml")
    if not os.path.exists(path):
        raise Skip("this tree has no D-Bus interface")
    text, told = page("dev.tandem.Tandem1.5"), {}
    parts = re.split(r"^# INTERFACE (\S+)$", text, flags=re.M)
    for name, body in zip(parts[1::2], parts[2::2]):
        told[name] = body.split("\n# ")[0]
    interfaces = {i.get("name"): i for i in ET.parse(path).getroot().iter("interface")
                  if i.get("name").startswith("dev.tandem.")}
    both_ways(set(interfaces), set(told), "interfaces")
    for name, node in interfaces.items():
        members = {m.get("name") for m in node if m.tag in ("method", "signal")}
        properties = {m.get("name") for m in node if m.tag == "property"}
        body = told[name]
        both_ways(members, set(re.findall(r"\*(\w+)\*\((?!\d\))", body)), f"methods and signals of {name}")
        listed = re.search(r"^Properties:\s(.*?)(?:\n\n|\Z)", body, re.M | re.S)[1]
        both_ways(properties, set(re.findall(r"\*(\w+)\*", listed)), f"properties of {name}")
    options = source("daemon", "faces", "dbus", "options.c")
    names = set(re.findall(r'\[[A-Z_]+\] = "([a-z0-9-]+)"', options.split("};")[1]))
    names |= set(re.findall(r'OPTION\([^"]*\.name = "([a-z0-9-]+)"', source("common", "job-options.def")))
    section = text.split("## Options of Generate and Chat")[1].split("\n# ")[0]
    both_ways(names, set(re.findall(r"\*([a-z0-9-]+)\*(?: \(|,|\n)", section)) - {"tandem"}, "options of Generate")
    # Made of the socket's names: "no-model" is NoModel.
    spelt = re.findall(r'\[TDM_E_\w+\] = "([a-z0-9-]+)"', source("common", "error.c"))
    errors = {name.title().replace("-", "") for name in spelt} - {"None"}
    both_ways(errors, set(re.findall(r"\*(\w+)\*", text.split("# ERRORS")[1].split("\n# ")[0])), "errors")


@test
def formats():
    if not shutil.which("scdoc") or not shutil.which("man"):
        raise Skip("no scdoc or no man here (Debian: scdoc, man-db)")
    with tempfile.TemporaryDirectory() as d:
        for name in PAGES:
            path = os.path.join(d, name)
            with open(path, "w") as out:
                subprocess.run(["scdoc"], input=page(name), stdout=out, check=True, text=True, timeout=120 * SLOW)
            r = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", path],
                               stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, timeout=120 * SLOW,
                               env=dict(os.environ, LC_ALL="C.UTF-8", MANROFFSEQ="", MANWIDTH="80"))
            equal(r.stderr, "", f"warnings of {name}")


@test
def pages_without_warnings():
    """man shows each page in the plainest language without a word on standard error."""
    folder = os.path.join(os.path.dirname(BIN), "docs", "man")
    pages = [n for n in os.listdir(folder) if re.fullmatch(r".*\.[1-8]", n)]
    if not pages or not shutil.which("man"):
        raise Skip("manual pages were not built (scdoc), or there is no man")
    for name in pages:
        r = subprocess.run(["man", "--warnings", "-l", os.path.join(folder, name)], capture_output=True,
                           env={**os.environ, "LC_ALL": "C", "MANWIDTH": "80"}, timeout=120 * SLOW)
        equal((r.returncode, r.stderr), (0, b""), f"man {name}")
        check(r.stdout.isascii(), f"{name} has other characters than ASCII")


main()
