"""Completions as the shells give them: bash and fish are asked, zsh's file is parsed by zsh. For each command every
flag of its own option table is offered, and nothing that it does not know."""
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

FOLDER = os.path.join(os.path.dirname(BIN), "client-lib", "cli", "completions")  # made by the build
PROGRAM = os.path.join(BIN, "tandem")
COMMANDS = [name[:-2] for name in os.listdir(os.path.join(TREE, "client-lib", "cli", "commands"))]


def flags_of(command):
    """What the command takes: it says so itself when it is given a flag it has not."""
    text = subprocess.run([PROGRAM, "help", command], stdout=subprocess.PIPE, text=True, timeout=20 * SLOW).stdout
    return set(re.findall(r"(?<![\w`-])--[a-z][a-z0-9-]+", text)) - {"--json:"} | {"--socket", "--color", "--help"}


def ask_bash(*words):
    # It waits for a second; a busy machine may take longer.
    script = f"""
timeout() {{ shift; "$@"; }}
source {FOLDER}/tandem.bash
COMP_WORDS=("$@"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _tandem
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    r = subprocess.run(["bash", "--norc", "-c", script, "bash", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True, timeout=30 * SLOW)
    equal(r.stderr, "", "what bash says")
    return [line for line in r.stdout.splitlines() if line]


@test
def bash_flags():
    equal(set(ask_bash("tandem", "")) - {"--socket", "--color", "--version", "--help"}, set(COMMANDS), "commands")
    for command in COMMANDS:
        known = flags_of(command)
        offered = {w for w in ask_bash("tandem", command, "--") if w.startswith("--")}
        # the help of some commands speaks of others' flags in a sentence: what the table has is told by a refusal
        for flag in sorted(known ^ offered):
            r = subprocess.run([PROGRAM, command, flag], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               stdin=subprocess.DEVNULL, timeout=20 * SLOW, env={"TANDEM_SOCKET": "/nonexistent"})
            unknown = "no option" in r.stderr or "not an option" in r.stderr or "unknown" in r.stderr
            check(unknown == (flag not in offered), f"{command} {flag}: offered {flag in offered}", r.stderr)


@test
def bash_words():
    equal(ask_bash("tandem", "re"), ["restart", "rerank", "render", "render-template", "report"], "a command")
    equal(ask_bash("tandem", "restart", "n"), ["npu"], "a worker")
    equal(ask_bash("tandem", "--socket", "/x", "generate", "--pri"), ["--priority"], "behind --socket")
    equal(ask_bash("tandem", "--color", "never", "status", "--color", "a"), ["auto", "always"], "colours")
    equal(ask_bash("tandem", "generate", "--priority", "b"), ["background"], "a value")


@test
def bash_files():
    """Where a file is the argument, files are offered; where it is a model, files of models and folders to them."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("one.gguf", "one.txt"):
            open(os.path.join(folder, name), "w").close()
        os.mkdir(os.path.join(folder, "one"))
        begin = os.path.join(folder, "on")
        every, models = {"one.gguf", "one.txt", "one"}, {"one.gguf", "one/"}
        for command, wanted in (("add", every), ("render", every), ("show", models), ("run", models), ("load", models),
                                ("chat", set())):
            offered = {os.path.relpath(w, folder) + "/" * w.endswith("/") for w in ask_bash(PROGRAM, command, begin)}
            equal(offered, wanted, f"{command} FILE")


@test
def bash_models_and_jobs():
    """Asked of the daemon."""
    with Daemon(hang_ms=STANDING_MS) as d:
        with d.in_midst(dict(n=3000)) as (job,):
            os.environ["TANDEM_SOCKET"] = d.socket
            try:
                offered = ask_bash(PROGRAM, "generate", "-m", "ta")
                check("tale" in offered, "the model", offered)
                offered = ask_bash(PROGRAM, "cancel", "")
                check(str(job.result.job) in offered, "the job", offered)
            finally:
                del os.environ["TANDEM_SOCKET"]
            job.cancel()
        job.wait()


@test
def fish():
    if not shutil.which("fish"):
        raise Skip("no fish here (Debian: fish)")
    with tempfile.TemporaryDirectory() as home:
        env = dict(os.environ, HOME=home, XDG_CONFIG_HOME=home, XDG_DATA_HOME=home)

        def ask(line):
            r = subprocess.run(["fish", "--no-config", "-c", f"source {FOLDER}/tandem.fish; complete -C '{line}'"],
                               env=env,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=30 * SLOW)
            equal(r.stderr, "", "what fish says")
            return {w.split("\t")[0] for w in r.stdout.splitlines()}
        equal({w for w in ask("tandem ") if not w.startswith("-")}, set(COMMANDS), "commands")
        for command in COMMANDS:
            fish_flags = {w for w in ask(f"tandem {command} --") if w.startswith("--")}
            bash_flags = {w for w in ask_bash("tandem", command, "--") if w.startswith("--")}
            equal(fish_flags, bash_flags, f"flags of {command}, fish and bash")
        check(not ask("tandem add ") & set(COMMANDS), "a FILE is no command", ask("tandem add "))


@test
def zsh():
    if not shutil.which("zsh"):
        raise Skip("no zsh here (Debian: zsh)")
    path = os.path.join(FOLDER, "_tandem")
    r = subprocess.run(["zsh", "-f", "-n", path], stderr=subprocess.PIPE, text=True, timeout=30 * SLOW)
    equal((r.returncode, r.stderr), (0, ""), "zsh -n")
    with open(path) as f:
        text = f.read()
    offered = {f for f in re.findall(r"--[a-z][a-z0-9-]+", text)}
    wanted = {f for c in COMMANDS for f in ask_bash("tandem", c, "--") if f.startswith("--")}
    equal(wanted - offered, set(), "flags that zsh's lacks")


main()
