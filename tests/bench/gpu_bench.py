"""What the benchmarks of a GPU share (bench-h200.py, bench-gpu.py): models of random weights, a daemon of one's own
with everything on the GPU, and one measurement through it. Needs python3 alone (models of other families: numpy).
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TANDEM_BIN") or os.path.join(TREE, "build", "bin")
MIXES = {"q4_k_m": ("q4_k", "q6_k"), "q5_k_m": ("q5_k", "q6_k")}  # and what attn_v and ffn_down have in some layers


def model(folder, size, kind="q4_0"):
    path = os.path.join(folder, f"{size}-{kind}.gguf")
    if not os.path.exists(path):
        base, more = MIXES.get(kind, (kind, None))
        arch, _, released = size.rpartition(":")
        tool = ["mkgguf_archs.py", "--arch", arch] if arch else ["mkgguf.py"]
        subprocess.run([sys.executable, os.path.join(TREE, "tools", tool[0]), *tool[1:], "--size", released,
                        "--type", base, *(["--more-type", more] if more else []), "--fast", path + ".part"],
                       check=True, stdout=subprocess.DEVNULL)
        os.rename(path + ".part", path)
    return path


class Server:
    """A private tandemd. cache: a folder for compiled kernels, which may outlive it."""

    def __init__(self, cache, **more):
        self.dir = tempfile.mkdtemp(prefix="tandem-bench-")
        self.socket = os.path.join(self.dir, "socket")
        env = dict(os.environ, HOME=self.dir, XDG_CACHE_HOME=cache, XDG_STATE_HOME=self.dir, TANDEM_GPU="vulkan",
                   TANDEM_NPU="off", TANDEM_PLACEMENT="gpu", MEMORY_PRESSURE_WATCH="/dev/null")
        env.update(more)
        self.log_path = os.path.join(self.dir, "log")
        with open(self.log_path, "wb") as log:
            self.begin = time.monotonic()
            self.process = subprocess.Popen([os.path.join(BIN, "tandemd"), "--user", "--socket", self.socket,
                                             "--bus", "none"],
                                            env=env, stderr=log, stdout=log)
        while not os.path.exists(self.socket) and self.process.poll() is None:
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def cli(self, *args, timeout=300):
        r = subprocess.run([os.path.join(BIN, "tandem"), "--socket", self.socket] + [str(a) for a in args],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout)
        if r.returncode != 0:
            with open(self.log_path, errors="replace") as log:
                raise RuntimeError(f"tandem {' '.join(map(str, args))}: {r.stderr.decode(errors='replace')[-300:]}\n"
                                   f"{log.read()[-1500:]}")
        return r.stdout.decode()

    def status(self):
        return json.loads(self.cli("status", "--json"))

    def gpu(self):
        return next(w for w in self.status()["workers"] if w["name"] == "gpu")

    def generate(self, path, n, *args):
        return json.loads(
            self.cli("generate", "-m", path, "-n", n, "--json", *args, "Once upon a time").strip().splitlines()[-1])


def measure(server, path, prompt, n, together):
    """What `tandem bench` says of so many jobs at once. Before it a few tokens of the same shape are run."""
    server.cli("bench", "-m", path, "-p", min(prompt, 512), "-n", 8, "-b", together, "--json")
    return json.loads(server.cli("bench", "-m", path, "-p", prompt, "-n", n, "-b", together, "--json"))["results"][-1]
