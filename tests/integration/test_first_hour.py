"""What newcomers stumbled over in their first hour and no other test holds: the log in a file, counts that agree with
what was written, names that are wider than their bytes, root's first command, and the installed service's advice."""
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403


@test
def a_log_in_a_file():
    """The journal's marks of a line's level are for the journal alone."""
    with Daemon() as d:
        d.generate(n=3)
        lines = d.log().splitlines()
        check(lines and not any(line.startswith("<") for line in lines), "no marks", lines)


@test
def a_trace_says_what_it_has():
    with Daemon() as d:
        d.wait_ready()
        job = d.start_job(n=3000)  # it outlasts the trace
        check(job.until(3), "tokens")
        path = os.path.join(d.dir, "t.json")
        said = d.cli("trace", "-o", path, "--seconds", "0.2", check_exit=0).stderr.decode()
        job.vanish()
        with open(path) as f:
            events = [e for e in json.load(f)["traceEvents"] if e["ph"] != "M"]
        equal(int(re.search(r"(\d+) events", said)[1]), len(events), "events, as said and as written")


@test
def a_trace_says_how_long_it_was():
    """Also of a daemon that has little to do or nothing."""
    with Daemon() as d:
        d.wait_ready()
        began = time.monotonic()
        said = d.cli("trace", "-o", os.path.join(d.dir, "t.json"), "--seconds", "0.7", check_exit=0).stderr.decode()
        took = time.monotonic() - began
        check(0.7 <= float(re.match(r"([\d.]+) s, \d+ events", said)[1]) <= took, f"the time in {said!r} of {took} s")


@test
def columns_of_wide_names():
    """A name's columns are not its bytes."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("märchen", "日本", "plain"):
            shutil.copyfile(SPROUT, os.path.join(folder, name + ".gguf"))
        with Daemon(env={"TANDEM_MODEL_PATH": folder}) as d:
            lines = d.cli("models", check_exit=0).stdout.decode().splitlines()
            at = {sum(2 if ord(c) > 0x2e80 else 1 for c in line[:line.index("available")])
                  for line in lines if folder in line}
            equal(len(at), 1, f"the columns of STATE in {lines}")


@test
def where_it_looked():
    """A name that nobody knows: each folder that was searched is named, and no other."""
    with tempfile.TemporaryDirectory() as folder:
        with Daemon(env={"TANDEM_MODEL_PATH": folder}) as d:
            said = d.cli("generate", "-m", "xyzzy", "x", check_exit=1).stderr.decode()
            named = re.search(r"no xyzzy\.gguf in ([^()]*) \(", said)[1].split(", ")
            equal(named[:3], [folder, os.path.join(d.dir, "data/tandem/models"), "/var/lib/tandem/models"], "folders")
            check(os.path.join(TREE, "models") in named or not BIN.startswith(TREE), "the build's own", named)


@test
def why_it_ends():
    """A text that breaks off in a sentence says why."""
    with Daemon() as d:
        said = d.cli("generate", "-v", "-n", "3", "Once", check_exit=0).stderr.decode()
        check(", cut off at -n 3\n" in said, "the summary", said)


@test
def an_empty_file():
    """It is no model that somebody could take."""
    with tempfile.TemporaryDirectory() as folder:
        open(os.path.join(folder, "keep.gguf"), "w").close()
        with Daemon(env={"TANDEM_MODEL_PATH": folder}) as d:
            check("keep" not in d.cli("models", check_exit=0).stdout.decode(), "not listed")
            check("0 bytes" in d.cli("generate", "-m", "keep", "x", check_exit=1).stderr.decode(), "and why not")


@test
def the_first_command():
    """README's first line, as whoever runs this, root too, without a session: it serves, and the command finds it."""
    with tempfile.TemporaryDirectory() as home:
        env = {"PATH": os.environ["PATH"], "HOME": home, "XDG_RUNTIME_DIR": home}
        daemon = subprocess.Popen([os.path.join(BIN, "tandemd"), "--user", "--bus", "none"], env=env,
                                  stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        try:
            wait_for(lambda: listens(home + "/tandem/socket"), "the socket", 20 * SLOW)
            r = subprocess.run([os.path.join(BIN, "tandem"), "status"], env=env, stdin=subprocess.DEVNULL,
                               capture_output=True, timeout=30 * SLOW)
            check(r.returncode == 0 and r.stdout.startswith(b"tandemd "), "status", r)
        finally:
            daemon.send_signal(signal.SIGTERM)
            equal(exit_of(daemon), 0, "its end, as README's kill %1")
            daemon.stderr.close()


@test
def ways_to_use_it():
    """README's commands that try the gateway in a build folder, where no daemon runs before: clients get an answer."""
    with open(os.path.join(TREE, "README.md")) as f:
        section = f.read().split("\n## Ways to use it\n")[1].split("\n## ")[0]
    more = {"tandemd": ["--bus", "none"], "tandem-http": ["--listen", "127.0.0.1:0"]}  # other tests run beside this one
    running = []
    with tempfile.TemporaryDirectory() as home:
        log = os.path.join(home, "log")
        try:
            for command in re.findall(r"`build/bin/([^`]*) &`", " ".join(section.split())):
                program, *args = [word for word in command.split() if not word.startswith("2>")]
                with open(log, "ab") as out:
                    running.append(subprocess.Popen(
                        [os.path.join(BIN, program), *args, *more[program]], stdin=subprocess.DEVNULL, stdout=out,
                        stderr=out, env={"PATH": os.environ["PATH"], "HOME": home, "XDG_RUNTIME_DIR": home}))
            port = int(wait_for(lambda: logged_port(log), "the gateway's port", 20 * SLOW))
            url = f"http://127.0.0.1:{port}/v1/models"
            wait_for(lambda: answers(url) == 200, "the gateway's answer", 20 * SLOW)
        finally:
            for process in reversed(running):
                process.terminate()
                exit_of(process)


def logged_port(path):
    with open(path) as f:
        found = re.search(r"answering on .*, port (\d+)", f.read())
    return found and found[1]


def answers(url):
    """The status of an answer."""
    try:
        with urllib.request.urlopen(url, timeout=20 * SLOW) as r:
            return r.status
    except urllib.error.HTTPError as e:
        return e.code


@test
def who_asked():
    with Daemon() as d:
        d.wait_ready()
        d.cli("restart", "gpu", check_exit=0)
        wait_for(lambda: d.workers()["gpu"].get("restarts") == 1, "the restart")
        by = "root" if os.geteuid() == 0 else f"user {pwd.getpwuid(os.geteuid()).pw_name}"
        said = d.cli("status", check_exit=0).stdout.decode()
        check(f"1 restart, the last: asked for by {by}\n" in said, "who asked", said)


main()
