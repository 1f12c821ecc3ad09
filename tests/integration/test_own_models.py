"""A daemon that serves everybody does not look into a home: the command finds the models of its user's own folder and
hands them over. The first thing that a person does with an installed service."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from model_parts import split  # noqa: E402
from tandem_test import *  # noqa: E402,F403


class Person:
    """Somebody whose home is not that of the daemon."""

    def __init__(self, daemon):
        self.d = daemon
        self.home = os.path.join(daemon.dir, "person")
        os.makedirs(self.home)
        self.env = {"HOME": self.home, "XDG_DATA_HOME": os.path.join(self.home, "share")}

    def file(self, name, source=SPROUT):
        return shutil.copyfile(source, os.path.join(self.home, name))

    def cli(self, *args, status=0, input=None):
        r = self.d.cli(*args, env=self.env, cwd=self.home, check_exit=status, input=input)
        return r.stdout.decode() + r.stderr.decode()

    def rows(self):
        lines = [line[2:].split() for line in self.cli("models").splitlines()[1:] if not line.startswith("* is")]
        return {line[0]: line for line in lines}


@test
def a_name_of_ones_own():
    with Daemon(system=True) as d:
        p = Person(d)
        p.cli("add", p.file("story.gguf"))
        equal(p.rows()["story"][1], "available", "listed before it is used")
        for args in (("generate", "-m", "story", "-n", "3", "Once"),
                     ("generate", "-m", "story", "-n", "3", "--chat", "x"),
                     ("score", "-m", "story", "--text", "-"), ("tokenize", "-m", "story", "a"), ("show", "-m", "story"),
                     ("bench", "-m", "story", "-p", "8", "-n", "4", "-b", "1"), ("show", "story")):
            p.cli(*args, input=b"Once upon")
        said = p.cli("chat", "-m", "story", "-n", "3", input=b"hello\n")
        check(said.strip(), "chat answers")
        rows = p.rows()
        equal((rows["story"][1], rows["story"][-1]), ("loaded", "~/share/tandem/models/story.gguf"), "one row, loaded")
        check("did you mean story?" in p.cli("generate", "-m", "stroy", "x", status=1), "what was meant")
        p.cli("generate", "-m", p.file("other.gguf", TALE), "-n", "2", "x")
        check("other.gguf (handed over as a file" in " ".join(p.rows()["other"]), "what was handed over is marked")
        check("did you mean the file ./other.gguf?" in p.cli("generate", "-m", "other", "x", status=1),
              "a file of the current folder")
        for wrong in ("Tale", "tale.gguf"):
            check("did you mean tale?" in p.cli("generate", "-m", wrong, "x", status=1), wrong)
        check("did you mean story?" in p.cli("chat", "-m", "stroy", status=1, input=b"x\n"), "chat, too")
        check("no model is named" in d.cli("generate", "-m", "story", "x", check_exit=1).stderr.decode(),
              "for somebody else there is no such name")
        check("still has it in memory" in p.cli("rm", "story"), "rm says that it is loaded")
        p.cli("unload", "story")
        check("story" not in p.rows(), "gone", p.rows())
        check("the daemon has it from" in p.cli("rm", "tale", status=1), "rm says where a model of the service is")


@test
def other_programs_words():
    """What Ollama's users type: ls, cp, run -m, and a name with its tag."""
    with Daemon(system=True) as d:
        p = Person(d)
        p.cli("add", p.file("story.gguf"))
        check("linked" in p.cli("cp", "story", "twin"), "another name")
        check("did you mean" not in p.cli("cp", "tale", "fable"), "of a model of the service")
        equal({"story", "twin", "fable"} - set(p.rows()), set(), "the names")
        check("already" in p.cli("cp", "story", "fable", status=1), "a name that another file has")
        check("no model is named nosuch" in p.cli("cp", "nosuch", "x", status=1), "nothing to name")
        p.cli("cp", "story", status=2)
        equal(p.cli("ls"), p.cli("models"), "ls")
        for args in (("run", "story:latest", "Hi"), ("run", "-m", "story", "Hi"),
                     ("generate", "-m", "twin:latest", "Hi")):
            check(p.cli(*args, "-n", "3", "--temp", "0").strip(), f"{args} says something")
        check("one argument too many" in p.cli("run", "-m", "story", "one", "two", status=2), "one message")
        check("story: unloaded" in p.cli("stop", "story:latest"), "stop")
        check("story.gguf" in p.cli("show", "story:latest"), "show")
        check("did you mean twin?" in p.cli("rm", "twin:latest", status=1), "rm takes a name to the letter")


@test
def embeds_too():
    with Daemon(system=True) as d:
        p = Person(d)
        p.cli("add", p.file("story.gguf"))
        said = p.cli("embed", "-m", "story", "x", status=1)
        check("no model is named" not in said and "pooling" in said, "it was found, and embeds nothing", said)


@test
def a_private_daemon_opens_it_itself():
    """Where the daemon looks into the same folder the name goes to it: the model is its own, and may be its default."""
    with Daemon(models=()) as d:
        path = shutil.copyfile(SPROUT, os.path.join(d.dir, "tale.gguf"))
        d.cli("add", path, check_exit=0)
        for _ in range(2):
            d.cli("generate", "-m", "tale", "-n", "3", "Once", check_exit=0)
            m = d.model("tale")
            check(m["is_default"] and m["path"].endswith("data/tandem/models/tale.gguf"), "by name", m)
        d.cli("rm", "tale", check_exit=0)
        shown = d.cli("models", check_exit=0).stdout.decode()
        check("tale.gguf (removed; unload it to forget it)" in shown, "a loaded model whose file has gone", shown)
        shown = d.cli("status").stdout.decode()
        check(re.search("^model tale: loaded, its file was removed", shown, re.M), "status", shown)
        d.cli("generate", "-m", "tale", "-n", "3", "Once", check_exit=0)
        equal([os.path.samefile(m["path"], TALE) for m in d.status()["models"]], [True], "the next one of that name")


@test
def a_draft_of_ones_own():
    """A draft is found as -m finds a model: in one's own folder, or as a file."""
    with Daemon(system=True, env={"TANDEM_GUESSES": "all"}) as d:
        p = Person(d)
        p.cli("add", p.file("little.gguf", TALE))
        args = ("generate", "--temp", "0", "-n", "40", "--json", "--speculation", "draft", "--draft")
        for draft in ("little", "./little.gguf", p.file("other.gguf", TALE)):
            def drafted():
                return json.loads(p.cli(*args, draft, PROMPT).splitlines()[-1])["drafted"] > 0
            wait_for(drafted, f"guesses of {draft}", 30 * SLOW)  # the draft is loaded beside the first job
        # The file that is passed as the model is the draft's, too, under another name.
        os.link(os.path.join(p.home, "other.gguf"), os.path.join(p.home, "twin.gguf"))
        p.cli("generate", "-m", "./twin.gguf", *args[1:], "./other.gguf", PROMPT)
        p.cli("generate", "-m", os.path.join(p.home, "twin.gguf"), *args[1:], "./other.gguf", PROMPT)
        check("No such file" in p.cli("generate", "--draft", "./nowhere.gguf", "x", status=1), "no such file")
        check("no model is named nosuch" in p.cli("generate", "-m", "little", "--draft", "nosuch", "x", status=1),
              "no such name")
        p.cli("bench", "-p", "8", "-n", "4", "-b", "1", "--draft", "little")
        check(p.cli("chat", "-n", "3", "--draft", "little", input=b"hello\n").strip(), "chat answers")


@test
def added_again():
    """A model that was removed and added anew is another file: what nobody uses of the first one leaves."""
    for system in (False, True):
        with Daemon(system=system, models=()) as d:
            p = Person(d)
            for _ in range(2):
                p.cli("add", "--copy", p.file("story.gguf"))
                p.cli("generate", "-m", "story", "-n", "3", "Once")
                equal([m["name"] for m in d.status()["models"]], ["story"], "what is in memory")
                p.cli("rm", "story")


@test
def ones_own_goes_first():
    """The same name in both: the caller's own."""
    with Daemon(system=True) as d:
        p = Person(d)
        p.cli("add", p.file("tale.gguf"))
        text = p.cli("generate", "-m", "tale", "-n", "8", "--temp", "0", "Once")
        equal(text, p.cli("generate", "-m", os.path.join(p.home, "tale.gguf"), "-n", "8", "--temp", "0", "Once"), "own")
        d.cli("generate", "-m", "tale", "-n", "8", "--temp", "0", "Once", check_exit=0)
        shown = [m["file_bytes"] for m in d.status()["models"] if m["name"] == "tale"]
        equal(sorted(shown), sorted([os.path.getsize(SPROUT), os.path.getsize(TALE)]), "both are loaded")


@test
def another_of_the_same_name():
    """rm speaks of the model that it removed, not of the service's that has the same name."""
    with Daemon(system=True) as d:
        p = Person(d)
        d.cli("generate", "-m", "tale", "-n", "3", "Once", check_exit=0)
        p.cli("add", p.file("tale.gguf"))
        check("in memory" not in p.cli("rm", "tale"), "nothing of the service's tale")


@test
def all_parts_or_none():
    """One part's place is taken: half a model would have a name and not load."""
    with Daemon(system=True) as d:
        p = Person(d)
        parts = split(SPROUT, p.home, "many", 3)
        folder = os.path.join(p.home, "share", "tandem", "models")
        os.makedirs(folder)
        taken = shutil.copyfile(SPROUT, os.path.join(folder, os.path.basename(parts[2])))
        check("already" in p.cli("add", parts[0], status=1), "it says why")
        equal(os.listdir(folder), [os.path.basename(taken)], "what is there")
        os.unlink(taken)
        check("linked" in p.cli("add", parts[0]), "all are linked")
        os.unlink(os.path.join(folder, os.path.basename(parts[0])))
        check("linked" in p.cli("add", parts[0]), "the one that was missing")
        check("already" in p.cli("add", parts[0]), "again")


@test
def the_default():
    """default-model in tandem.conf is taken where no model is named, and has the mark in the list."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
        f.write("[daemon]\ndefault-model = sprout\n")
        f.flush()
        with Daemon(models=(), args=("--config", f.name)) as d:
            d.cli("generate", "-n", "3", "Once", check_exit=0)
            equal([m["name"] for m in d.status()["models"]], ["sprout"], "what is loaded")
            lines = d.cli("models", check_exit=0).stdout.decode().splitlines()
            equal([line.split()[1] for line in lines if re.match(r"\* \w+ +(loaded|available)", line)], ["sprout"],
                  "the mark")
            with open(f.name, "w") as again:
                again.write("[daemon]\ndefault-model = tale\n")
            d.process.send_signal(signal.SIGHUP)
            wait_for(lambda: "default-model = tale, was sprout; takes effect now" in d.log(), "the reload", 10 * SLOW)
            d.cli("generate", "-n", "3", "Once", check_exit=0)
            equal([m["name"] for m in d.status()["models"] if m.get("is_default")], ["tale"], "another default")


@test
def a_default_that_is_not_there():
    """It is said where it was written, by a check, at the start and at a reload, and to who names no model."""
    warning = "default-model = nosuch: there is no such model now"
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
        f.write("[daemon]\ndefault-model = nosuch\n")
        f.flush()
        with Daemon(models=(), args=("--config", f.name)) as d:
            check(warning in d.log(), "at the start", d.log())
            check("/etc/tandem/tandem.conf" in d.cli("models", check_exit=0).stdout.decode(), "where it is set")
            said = d.cli("generate", "-n", "3", "Once", check_exit=1).stderr.decode()
            check("no model was named, and the default model is not there (default-model in tandem.conf): no model is "
                  "named nosuch" in said, "what a job is told", said)
            with open(f.name, "w") as again:
                again.write("[daemon]\ndefault-model = tale\n")
            d.process.send_signal(signal.SIGHUP)
            wait_for(lambda: d.log().count("the configuration was read again") == 1, "a reload", 10 * SLOW)
            d.cli("generate", "-n", "3", "Once", check_exit=0)
            equal(d.log().count(warning), 1, "nothing is wrong now")
            with open(f.name, "w") as again:
                again.write("[daemon]\ndefault-model = nosuch\n")
            d.process.send_signal(signal.SIGHUP)
            wait_for(lambda: d.log().count(warning) == 2, "it is said again", 10 * SLOW)
        r = subprocess.run([os.path.join(BIN, "tandemd"), "--user", "--config", f.name, "--check-config"],
                           env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "XDG_RUNTIME_DIR": "/nonexistent"},
                           stdin=subprocess.DEVNULL, capture_output=True, timeout=30 * SLOW)
        equal((r.returncode, warning.encode() in r.stderr), (0, True), f"--check-config: {r.stderr}")


@test
def root_says_whom_to_serve():
    """`sudo tandemd` would take the system service's place and serve root alone."""
    if os.geteuid() != 0:
        raise Skip("it is root who has to say it")
    r = subprocess.run([os.path.join(BIN, "tandemd")], env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL,
                       capture_output=True, timeout=30 * SLOW)
    equal(r.returncode, 2, "exit status")
    check(b"--system everybody" in r.stderr, "what it says", r.stderr)


main()
