"""What .ci/run does beside the tests here, and the table of cells, on copies of the scripts: the root itself is made
up, as making one takes minutes. fresh-* and a run of ./bootstrap other make real ones."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import TREE, Skip, check, equal, main, test  # noqa: E402

# In place of tools/fresh-debian: says what it was asked for; ROOT and TESTS are the statuses of both calls.
FAKE_TOOL = """#!/bin/bash
echo "asked: $*"
case "${!#}" in true) exit "$ROOT" ;; *) exit "$TESTS" ;; esac
"""


class Tree:
    """A folder with the scripts, and a dpkg-query that finds every package."""

    def __init__(self, folder):
        self.folder = folder
        for sub in ("tools", "docs", "bin"):
            os.mkdir(os.path.join(folder, sub))
        for path in ("bootstrap", "tools/fresh-debian", "docs/testing.md"):
            shutil.copy(os.path.join(TREE, path), os.path.join(folder, path))
        self.script("bin/dpkg-query", "#!/bin/sh\nprintf installed\n")

    def script(self, path, text):
        with open(os.path.join(self.folder, path), "w") as f:
            f.write(text)
        os.chmod(os.path.join(self.folder, path), 0o755)

    def run(self, *command, user=None, **env):
        return subprocess.run([os.path.join(self.folder, command[0]), *command[1:]], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, user=user,
                              env={"PATH": os.path.join(self.folder, "bin") + ":" + os.environ["PATH"], **env})


def in_tree(body):
    with tempfile.TemporaryDirectory(prefix="tandem-other-") as folder:
        os.chmod(folder, 0o755)
        body(Tree(folder))


@test
def other_debian():
    """The tests run in the root and their failure is CI's; a machine without a root says so by name and goes on."""
    def body(t):
        t.script("tools/fresh-debian", FAKE_TOOL)
        user = 65534 if os.geteuid() == 0 else None
        r = t.run("bootstrap", "other", user=user, ROOT="0", TESTS="1")
        equal(r.returncode, 0, "without root: " + r.stdout)
        check("NOT TESTED on Debian's " in r.stdout and "needs root" in r.stdout, "it says so", r.stdout)
        check("asked:" not in r.stdout, "no root is tried", r.stdout)
        if os.geteuid() != 0:
            raise Skip("making a root needs root")
        r = t.run("bootstrap", "other", ROOT="1", TESTS="1")
        equal(r.returncode, 0, "where none can be made: " + r.stdout)
        check("NOT TESTED on Debian's " in r.stdout, "it says so", r.stdout)
        r = t.run("bootstrap", "other", ROOT="0", TESTS="0", CI="true")
        equal(r.returncode, 0, "green: " + r.stdout)
        check("NOT TESTED" not in r.stdout, "tested", r.stdout)
        with open("/etc/os-release") as f:
            here = "trixie" if "VERSION_CODENAME=trixie" in f.read() else "another"
        suite = "bookworm" if here == "trixie" else "trixie"
        check(f"asked: --suite {suite} --keep " in r.stdout and "./bootstrap test --system" in r.stdout, "the other's",
              r.stdout)
        equal(t.run("bootstrap", "other", ROOT="0", TESTS="3").returncode, 1, "red")
        kept = re.search(r"--keep (\S+) true", r.stdout)[1]
        check(not os.path.exists(kept), "the root is removed", kept)
    in_tree(body)


def cells():
    with open(os.path.join(TREE, "docs", "testing.md")) as f:
        rows = [[c.strip() for c in line.strip("|\n ").split("|")] for line in f
                if line.startswith(("| bookworm ", "| trixie ", "| sid "))]
    return {(row[0], row[1]): row for row in rows}


@test
def nine_cells():
    found = cells()
    equal(set(found), {(s, u) for s in ("bookworm", "trixie", "sid") for u in ("root", "root-0700", "sudo")}, "cells")
    for row in found.values():
        check(len(row) == 7 and (row[2] == "never" or len(row[2]) == 10), "a row", row)

    def body(t):
        path = os.path.join(t.folder, "docs", "testing.md")
        with open(path) as f:
            text = f.read()
        dates = {key: f"2026-0{i % 9 + 1}-11" for i, key in enumerate(sorted(found))}
        dates["trixie", "root"] = "never"
        for (suite, user), date in dates.items():
            old = next(line for line in text.splitlines() if line.startswith(f"| {suite:8} | {user:9} |"))
            text = text.replace(old, f"| {suite:8} | {user:9} | {date:10} | 12345678 | green, 215 | 30 | A CPU |")
        with open(path, "w") as f:
            f.write(text)
        r = t.run("tools/fresh-debian", "--oldest")
        equal(r.returncode, 0, r.stdout)
        got = [tuple(line.split(" | ")[:2]) for line in r.stdout.splitlines()]
        equal(got, sorted(dates, key=lambda k: (dates[k] != "never", dates[k])), "the oldest first")
        equal(r.stdout.splitlines()[0], "trixie | root | never | 12345678 | green, 215 | 30 | A CPU", "a row")
        equal(t.run("tools/fresh-debian", "--cell", "etch/root").returncode != 0, True, "an unknown suite")
    in_tree(body)


main(every=True)
