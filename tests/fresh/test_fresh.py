"""`./bootstrap demo` and `./bootstrap test` on a Debian that was made a minute ago: as an ordinary user with sudo, as
root with the clone below a home of mode 0700, and as root. The root comes from the archive that this machine installs
from; its day is printed. The committed state of the tree is what is tested.

The three share one root, so that packages are installed once: by the user with sudo, who comes first.
$TANDEM_FRESH_BUSY is how many processes compute beside them all the time (0).

usage: test_fresh.py --suite bookworm|trixie|sid [TEST…]
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import SANITIZER, TREE, Skip, check, main, test  # noqa: E402

TOOL = os.path.join(TREE, "tools", "fresh-debian")
SUITE = sys.argv[sys.argv.index("--suite") + 1] if "--suite" in sys.argv else "bookworm"
BUSY = os.environ.get("TANDEM_FRESH_BUSY", "0")
STORY_CHARS = 200  # fewer would be no story


def fresh(folder, user, *command):
    """What a command prints in the root; it has to succeed."""
    begin = time.monotonic()
    r = subprocess.run([TOOL, "--suite", SUITE, "--user", user, "--busy", BUSY, "--keep", os.path.join(folder, "root"),
                        *command], env=dict(os.environ, TANDEM_FRESH_BASE=os.path.join(folder, "base")),
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       errors="replace")
    said = re.search(r"^== Debian .*$", r.stderr, re.M)
    print(said[0] if said else "no root was made", flush=True)
    print(f"FIGURE fresh {SUITE} {user}, {BUSY} busy: {' '.join(command)}: exit {r.returncode} "
          f"after {time.monotonic() - begin:.0f} s", flush=True)
    if r.returncode != 0:
        print(r.stdout[-20000:], r.stderr[-6000:], flush=True)
    check(r.returncode == 0, f"{' '.join(command)} on {SUITE} as {user}", r.returncode)
    return r.stdout


@test
def both_commands():
    if SANITIZER:
        raise Skip("the roots build without sanitizers; the release run has them")
    if os.geteuid() != 0:
        raise Skip("making a root needs root")
    for program in ("mmdebstrap", "git"):
        if not shutil.which(program):
            raise Skip(f"no {program} here (Debian: {program})")
    failed = []
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="tandem-fresh-") as folder:
        os.chmod(folder, 0o755)  # an ordinary user has to get to its home
        for user in ("sudo", "root-0700", "root"):
            try:
                story = fresh(folder, user, "./bootstrap", "demo")
                check(len(story) > STORY_CHARS, "a story", story)
                out = fresh(folder, user, "./bootstrap", "test")
                verdict = re.search(r"^release: (\d+) tests, .*$", out, re.M)
                check(verdict and int(verdict[1]) > 80, "tests ran", out[-600:])
                print(f"{user}: {verdict[0]}", flush=True)
            except AssertionError as e:  # the other users are tried all the same
                failed.append(f"{user}: {str(e)[:400]}")
    check(not failed, "each user", failed)


main(every=True)
