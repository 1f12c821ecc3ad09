"""Random-weight models of every supported size and type load and generate; what is not supported is refused
by name."""
import glob
import math
import re
import shutil
import struct
import tempfile
import time

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

from gguf_peek import Gguf  # noqa: E402

TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4")
TYPES_256 = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs", "tq1_0", "tq2_0", "nvfp4", "iq1_s", "iq1_m",
             "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")  # for rows that 256 divides


def load_and_generate(d, path, n=12):
    """Opens the file on the command line as a person would, then asks for tokens of it."""
    out = d.cli_json("generate", "-m", path, "--raw", "-n", str(n), "--temp", "1", "--seed", "5", "--json", "the cat",
                     timeout=300)
    done = out[-1]
    equal((done["event"], done["reason"] in ("length", "stop")), ("done", True), f"{path}")
    check(all(math.isfinite(t["logprob"]) for t in out if t["event"] == "token"), "finite log-probabilities", out)
    check(len(set(done["ids"])) > 1 or done["reason"] == "stop", "more than one token over and over", done["ids"])
    return done["ids"]


def whole_type(size, kind, **options):
    """Through split and through each worker alone: one answer."""
    path = make_model(size, kind, **options)
    name = os.path.basename(path)[:-5]
    with Daemon(models=[path]) as d:
        r = d.generate(model=name, ids=[2, 260, 300, 301], n=12)
        equal(len(r.ids), 12, f"tokens of {name}")
        check(all(math.isfinite(x) for x in r.logprobs), f"{name}: finite", r.logprobs)
        same_ids(d.generate(model=name, ids=[2, 260, 300, 301], n=12, placement="gpu").ids, r.ids,
                 f"{name} on the gpu worker")
        m = d.model(name)
        equal(m.get("architecture"), "gemma3", "architecture in status")
        check(kind.upper() in m.get("quantisation", "").upper(), "quantisation in status", m.get("quantisation"))


@test
def tiny():
    for kind in TYPES + TYPES_256:
        whole_type("tiny", kind)


@test
def mixed():
    """As in files of the _M kinds: several types in one file, another in its embedding."""
    whole_type("tiny", "q4_k", more_type="q6_k", embd_type="q5_0")


@test
def odd():
    """Shapes that no vector width divides: d 320, ff 928, head dim 96, five heads, linear RoPE scaling."""
    for kind in TYPES:
        whole_type("odd", kind)


@test
def cut_270m():
    for kind in times(("q8_0", "q4_0"), TYPES, ("q4_0",)):
        whole_type("270m", kind, layers=7, vocab=2048)


@full_only
def whole_270m_and_1b():
    """Full vocabularies; each file is deleted again, the largest has 4 GB."""
    if SANITIZER:
        raise Skip("gigabytes of random weights under a sanitizer show nothing that small ones do not")
    for size in ("270m", "1b"):
        for kind in TYPES + ("q4_k",):
            path = make_model(size, kind, fast=True)
            try:
                with Daemon(models=[path], threads=2) as d:
                    name = os.path.basename(path)[:-5]
                    begin = time.monotonic()
                    r = d.generate(model=name, prompt="the cat", n=16)
                    print(f"FIGURE {name}: 16 tokens, loading included, in {time.monotonic() - begin:.1f} s",
                          flush=True)
                    equal(len(r.ids), 16, "tokens")
                    check(all(math.isfinite(x) for x in r.logprobs), "finite", r.logprobs)
            finally:
                os.unlink(path)


@test
def on_a_machine_with_vulkan():
    """Shaders do not know NVFP4: the worker runs such a model on the CPU, with the same bits. They know what the
    ternary types, IQ1, IQ2 and IQ3 are packed as."""
    icd = glob.glob("/usr/share/vulkan/icd.d/lvp_icd*.json")
    if SANITIZER or not icd:
        raise Skip("no lavapipe (Debian: mesa-vulkan-drivers), or too slow under a sanitizer")
    env = {"TANDEM_GPU": "vulkan", "TANDEM_NPU": "host", "VK_DRIVER_FILES": icd[0]}
    for kind, is_left in (("nvfp4", True), ("tq2_0", False), ("iq2_xxs", False)):
        path = make_model("tiny", kind, layers=2)
        job = dict(model=os.path.basename(path)[:-5], ids=[2, 260, 300, 301], n=12, placement="gpu")
        with Daemon(models=[path]) as d:
            want = d.generate(**job)
        with Daemon(models=[path], env=env, hang_ms=60000) as d:
            d.wait_ready(120)
            got, plan = d.generate(**job), d.workers()["gpu"]["plan"]
        equal("runs on the CPU" in plan and "does not compute NVFP4" in plan, is_left, f"the plan: {plan}")
        equal(len(got.ids), 12, f"tokens of {kind}")
        if is_left:
            same_ids(got.ids, want.ids, f"{kind} beside Vulkan")
            equal(got.logprobs, want.logprobs, f"{kind} beside Vulkan: log-probabilities")


@test
def from_the_command_line():
    """A model outside the model directories travels as an open file."""
    path = make_model("tiny", "q8_0")
    with Daemon() as d:
        ids = load_and_generate(d, path)
        same_ids(load_and_generate(d, path), ids, "the same file again")
        equal(len(d.generate(model="tale", n=5).ids), 5, "tale beside it")


@test
def memory_in_show():
    """Types that are packed as larger ones take more memory than their file, and show says so."""
    path = make_model("tiny", "iq2_xs", layers=2)
    with Daemon() as d:
        shown = d.cli_json("show", "--json", path)[0]
        text = d.cli("show", path, check_exit=0).stdout.decode()
    packed = sum(t["bytes"] // 74 * 106 - t["bytes"] for t in shown["types"] if t["name"] == "IQ2_XS")
    check(packed > 0, "tensors of IQ2_XS", shown["types"])
    equal(shown["memory_bytes"], os.path.getsize(path) + packed, "bytes in memory")
    check("in memory" in text, "a line of it", text)


def refused(d, path, *words):
    r = d.cli("generate", "-m", path, "--raw", "-n", "4", "hello", check_exit=1, timeout=120)
    said = r.stderr.decode()
    for w in words:
        check(re.search(w, said, re.I), f"the message for {os.path.basename(path)} names {w}", said)
    equal(len(d.generate(model="tale", n=3).ids), 3, "the daemon still serves")


@test
def unsupported_types():
    """Types that no kernel knows: one as wide as F16, so that nothing else is wrong, and numbers that no file has."""
    with Daemon() as d, tempfile.TemporaryDirectory() as tmp:
        for tensor in ("blk.0.ffn_up.weight", "token_embd.weight"):
            for number, said in ((25, "I16"), (60, "60"), (99, "99")):  # 60: weights are packed so, no file has it
                path = os.path.join(tmp, f"type{number}-{tensor[0]}.gguf")
                shutil.copyfile(make_model("tiny", "f16", layers=1), path)
                with open(path, "r+b") as f:
                    data = f.read()
                    at = data.index(struct.pack("<Q", len(tensor)) + tensor.encode()) + 8 + len(tensor) + 4 + 2 * 8
                    equal(struct.unpack_from("<I", data, at)[0], 1, f"{tensor} is F16")
                    f.seek(at)
                    f.write(struct.pack("<I", number))
                refused(d, path, said, tensor.replace(".", r"\."))


@test
def unsupported_architecture():
    with Daemon() as d, tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "other.gguf")
        shutil.copyfile(SPROUT, path)
        at = Gguf(path).place["general.architecture"] + 8
        with open(path, "r+b") as f:
            f.seek(at)
            f.write(b"llama7")
        refused(d, path, "llama7")


main()
