"""A newcomer who does what README.md says, in a terminal, on a Debian that was made a minute ago: every command of its
blocks, in order, letter for letter, typed into a shell in tmux by a user with sudo. Each has to succeed.

What the text leaves to the reader is put in its place: ADDRESS is a clone of the committed state, the file and Ollama's
models that it speaks of are made of the demo's model, and a small server stands for Hugging Face.

usage: test_readme.py [--suite=bookworm|trixie|sid]
"""
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import SANITIZER, TREE, Skip, check, main, test  # noqa: E402

TOOL = os.path.join(TREE, "tools", "fresh-debian")
SUITE = next((a[8:] for a in sys.argv if a.startswith("--suite=")), "bookworm")
HOME = "home/newcomer"
BUILDS = 3600  # seconds until a command that builds is given up
# What needs a booted system: a root has no service manager. service-nspawn does the same there.
SERVICE = ('tandem generate "Once upon a time"',)
PROMPT = re.compile(r"\[(\d+)\]newcomer> ")  # lines of a daemon in the background may come behind it


def commands():
    """The lines of the blocks of commands."""
    with open(os.path.join(TREE, "README.md")) as f:
        text = f.read()
    found = [line for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S) for line in block.splitlines()]
    check(len(found) > 20, "commands in README.md", found)
    return found


class HuggingFace(http.server.BaseHTTPRequestHandler):
    """One repository, with the demo's model as its Q4_K_M."""
    with open(os.path.join(TREE, "models", "tale.gguf"), "rb") as f:
        body = f.read()

    def log_message(self, *args):
        pass

    def do_GET(self):
        listed = self.path.startswith("/api/models/ggml-org/gemma-3-1b-it-GGUF")
        data = json.dumps([{"type": "file", "path": "gemma-3-1b-it-Q4_K_M.gguf", "size": len(self.body),
                            "lfs": {"oid": hashlib.sha256(self.body).hexdigest()}}]).encode() if listed else self.body
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Terminal:
    """A newcomer's shell in a root, in tmux."""

    def __init__(self, folder, env):
        self.name = f"tandem-readme-{os.getpid()}"
        self.record = os.path.join(folder, "screen")
        self.socket = os.path.join(folder, "tmux")
        shell = " ".join(f"{k}='{v}'" for k, v in env.items())
        command = (f"TANDEM_FRESH_BASE={folder}/base exec {TOOL} --suite {SUITE} --user sudo --keep {folder}/root "
                   f"env {shell} PS1='[$?]newcomer> ' bash --norc -i")
        # The tool enters the clone; a newcomer begins at home.
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "40", "-s", self.name, command)
        self.tmux("pipe-pane", "-t", self.name, f"cat >>{self.record}")
        self.seen = 0

    def tmux(self, *args):
        subprocess.run(["tmux", "-S", self.socket, *args], check=True, stdin=subprocess.DEVNULL, timeout=60)

    def text(self):
        try:
            with open(self.record, "rb") as f:
                text = f.read().decode(errors="replace")
        except OSError:
            return ""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]|\r", "", text)

    def prompt(self, limit):
        """What came since the last command, and its status, once the shell waits again."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            new = self.text()[self.seen:]
            m = PROMPT.search(new)
            if m:
                return new, int(m[1])
            if re.search(r"\[Y/n\] $", new) and not new.endswith("answered"):
                self.type("y")
                time.sleep(1)
            if new.endswith("> ") and "/help lists commands" in new:  # chat waits
                if "tokens/s" in new or "wonderful" in new:
                    self.type("/bye")
                else:
                    self.type("Tell me something wonderful.")
                time.sleep(2)
            time.sleep(0.3)
        raise AssertionError("the shell did not come back: " + self.text()[-1500:])

    def type(self, line):
        self.tmux("send-keys", "-t", self.name, "-l", line)
        self.tmux("send-keys", "-t", self.name, "Enter")

    def run(self, line, limit):
        self.seen = len(self.text())
        self.type(line)
        time.sleep(0.5)
        return self.prompt(limit)

    def end(self):
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       check=False)


def furnish(root):
    """What the README takes for granted: a file in Downloads, and a model of Ollama's."""
    tale = os.path.join(TREE, "models", "tale.gguf")
    with open(tale, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    home = os.path.join(root, HOME)
    blobs = os.path.join(home, ".ollama", "models", "blobs")
    manifests = os.path.join(home, ".ollama", "models", "manifests", "registry.ollama.ai", "library", "little")
    for folder in (blobs, manifests, os.path.join(home, "Downloads")):
        os.makedirs(folder)
    shutil.copy(tale, os.path.join(home, "Downloads", "some-model.gguf"))
    shutil.copy(tale, os.path.join(blobs, "sha256-" + digest))
    with open(os.path.join(manifests, "latest"), "w") as f:
        json.dump({"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + digest}]}, f)
    subprocess.run(["chroot", root, "chown", "-R", "newcomer:", "/" + HOME], check=True)


def outside(root):
    """Every file of the root but those of homes, of the prefix, and of logs and running programs."""
    found = {}
    for folder, folders, files in os.walk(root):
        if folder == root:
            folders[:] = [f for f in folders if f not in ("home", "opt", "proc", "sys", "dev", "run", "tmp")]
        if os.path.relpath(folder, root) in ("var/log", "var/lib/sudo"):
            folders[:] = files[:] = []
        for name in files:
            st = os.lstat(os.path.join(folder, name))
            found[os.path.relpath(os.path.join(folder, name), root)] = (st.st_size, st.st_mtime_ns)
    return found


@test
def letter_for_letter():
    if SANITIZER:
        raise Skip("the roots build without sanitizers; the release run has them")
    if os.geteuid() != 0:
        raise Skip("making a root needs root")
    for program in ("mmdebstrap", "git", "tmux"):
        if not shutil.which(program):
            raise Skip(f"no {program} here (Debian: {program})")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), HuggingFace)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="tandem-readme-") as folder:
        os.chmod(folder, 0o755)
        root = os.path.join(folder, "root")
        t = Terminal(folder, {"HF_ENDPOINT": "http://127.0.0.1:%d" % server.server_address[1], "LC_ALL": "C.UTF-8"})
        try:
            t.prompt(900)
            furnish(root)
            t.run("cd", 30)
            failed = []
            for line in commands():
                begin, before = time.monotonic(), outside(root) if "--prefix" in line else None
                new, status = t.run(line.replace("ADDRESS", "src"), BUILDS)
                if line in SERVICE:
                    check(status == 1 and "systemctl start tandemd" in new, "what helps where no service runs", new)
                    print(f"here without a service manager: {line}")
                    continue
                print(f"{'ok  ' if status == 0 else 'FAIL'} {line} ({time.monotonic() - begin:.0f} s)", flush=True)
                if before is not None:
                    check(outside(root) == before, "files outside the prefix", set(outside(root).items()) ^
                          set(before.items()))
                if status != 0:
                    failed.append(line)
                    print(new[-3000:], flush=True)
            check(not failed, "commands of README.md that failed", failed)
            check(os.path.isdir(os.path.join(root, "opt", "tandem")), "the prefix")
            check(not os.path.exists(os.path.join(root, "usr", "bin", "tandem")), "purged")
        finally:
            t.run("kill %1", 30) if t.text() else None
            t.end()
            shutil.copy(t.record, os.path.join(os.environ.get("TANDEM_TEST_CACHE", folder), f"readme-{SUITE}.txt"))


main(every=True)
