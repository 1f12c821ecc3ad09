"""What the suite of released files shares: the files, what their makers say of them, and llama.cpp beside them.

TANDEM_RELEASED_PYTHON names an interpreter that has the packages of python.txt; without it they are installed under
TANDEM_TEST_CACHE. TANDEM_LLAMA_CPP names a command that starts llama.cpp's programs: it gets a program's name and
arguments. What both say is kept: kept.py."""
import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
sys.path.insert(0, HERE)
import corpus  # noqa: E402
import fetch  # noqa: E402
import kept  # noqa: E402
from client_packages import python_of  # noqa: E402
from tandem_test import Skip, check  # noqa: E402


class Released:
    """A released file. tokenizer: (model of the table, file) with the makers' tokenizer, None: it is in the file."""

    def __init__(self, name, file, tokenizer, begin, end, ends):
        self.name, self.file, self.tokenizer, self.begin, self.end, self.ends = name, file, tokenizer, begin, end, ends
        self.model = os.path.splitext(file)[0]  # as Tandem calls it

    def path(self):
        return os.path.join(folder(self.name), self.file)

    def tokenizer_path(self):
        return os.path.join(folder(self.tokenizer[0]), self.tokenizer[1]) if self.tokenizer else None


GEMMA = Released("gemma3-270m", "gemma-3-270m-q4_k_m.gguf", ("gemma3-tokenizer", "tokenizer.json"), "<start_of_turn>",
                 "<end_of_turn>", (1, 106))
SMOLLM = Released("smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf", None, "<|im_start|>", "<|im_end|>", (2, 0))
FILES = (GEMMA, SMOLLM)


@functools.lru_cache(maxsize=None)
def folder(name):
    """Of the model's files, whose sums are looked at once."""
    try:
        return fetch.get(name)
    except fetch.Unreachable as e:
        raise Skip(f"{name} cannot be fetched: {e}") from e


def python():
    return python_of("released-python", os.path.join(HERE, "python.txt"), os.environ.get("TANDEM_RELEASED_PYTHON"))


def maker(released, task, **work):
    """What maker.py answers, kept."""
    on = dict(work, task=task, file=kept.sum_of(released.path()), program=kept.programs("maker.py"),
              versions=kept.versions(python(), "python.txt"))
    work = dict(work, task=task, file=released.path())
    if task == "tokens":
        work["tokenizer"] = released.tokenizer_path()
        on["tokenizer"] = released.tokenizer_path() and kept.sum_of(released.tokenizer_path())

    def ask():
        r = subprocess.run([python(), "-B", os.path.join(HERE, "maker.py")], input=json.dumps(work).encode(),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=7200)
        check(r.returncode == 0, f"maker.py {task} of {released.name}", r.stderr[-2000:])
        return json.loads(r.stdout)

    return kept.answer(f"{released.name}-{task}", on, ask)


def sequences(r, d):
    """Twelve short texts, and a long one that passes every window."""
    out = [d.tokenize(text, model=r.model)[:64] for text in corpus.pieces(12)]
    return out + [d.tokenize(corpus.tales()[:9000], model=r.model)[:1200]]


def llama_cpp():
    """The command that starts llama.cpp's programs. Raises Skip where there is none."""
    command = (os.environ.get("TANDEM_LLAMA_CPP") or "").split()
    if not command:
        raise Skip("TANDEM_LLAMA_CPP names no command that starts llama.cpp's programs")
    return command


def of_llama_cpp(path):
    """What an answer of llama-server on a file depends on, beside the question."""
    r = subprocess.run(llama_cpp() + ["llama-server", "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True, timeout=300)
    check(r.returncode == 0 and "version" in r.stdout, "llama-server --version", r.stdout[-2000:])
    return {"file": kept.sum_of(path), "llama.cpp": r.stdout, "program": kept.programs("released.py")}


class LlamaServer:
    """llama-server with a released file. Raises Skip where there is none."""

    def __init__(self, path, *more):
        self.command = llama_cpp()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.args = ["llama-server", "-m", path, "--port", str(self.port), "--host", "127.0.0.1", "-t", "2", "-np", "1",
                     "-c", "4096", "--no-webui", *more]

    def __enter__(self):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.command + self.args, stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log)
        for _ in range(1200):
            check(self.process.poll() is None, "llama-server left")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).read()
                return self
            time.sleep(0.25)
        raise AssertionError("llama-server does not answer")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def ask(self, path, **body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as r:
            return json.load(r)

    def top(self, ids, n):
        """The top n ids with log-probabilities after these ids. They are of the logits as they are; the bias makes the
        server choose a letter, since it tells nothing of a token that is no whole character."""
        letter = self.letter = getattr(self, "letter", None) or self.ask("/tokenize", content="a")["tokens"][-1]
        got = self.ask("/completion", prompt=ids, n_predict=1, n_probs=n, temperature=0, cache_prompt=True,
                       logit_bias=[[letter, 1000.0]])
        return [[t["id"], t["logprob"]] for t in got["completion_probabilities"][0]["top_logprobs"]]
