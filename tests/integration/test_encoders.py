"""Encoders of BERT's kinds through a real tandemd: ids and vectors as the makers' implementations have them (golden
files of tools/make-bert-goldens.py), by every door; the same bits alone and in company; and what is refused."""
import glob
import json
import math
import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403

SIZES = ("mean", "cls", "unigram")
# The largest difference of a number of a vector in precision f32, and cosine distances as shipped.
F32_LIMIT, LIMITS = 1e-6, {"f32": 1e-6, "q8_0": 2e-3, "q4_0": 0.1}


def model(size, kind="f32"):
    return make_model(size, kind, arch="bert", seed=1)


def cases(size):
    with open(os.path.join(TREE, "tests", "golden", "archs", f"bert-{size}-f32.golden.json"), encoding="utf-8") as f:
        return json.load(f)["cases"]


def with_vectors(size):
    return [c for c in cases(size) if "vector" in c]


def distance(a, b):
    """1 - cosine, from the difference of unit vectors."""
    equal(len(a), len(b), "numbers of a vector")
    return math.fsum((x - y) ** 2 for x, y in zip(a, b)) / 2


def f32(vectors):
    """The nearest floats, which is what they were before they were printed."""
    return [list(struct.unpack(f"<{len(v)}f", struct.pack(f"<{len(v)}f", *v))) for v in vectors]


def embed(d, *args):
    return f32(d.cli_json("embed", *args)[0])


@test
def ids():
    """A text's ids, but for the end, which is added where a vector is made."""
    for size in SIZES:
        with Daemon(models=(model(size),)) as d:
            for c in cases(size):
                if "\0" not in c["text"]:
                    equal(d.cli_json("tokenize", "--", c["text"])[0] + c["ids"][-1:], c["ids"],
                          f"ids of {c['text'][:40]!r} by {size}")


@test
def vectors():
    for size in SIZES:
        goldens = with_vectors(size)
        with Daemon(models=(model(size),), env={"TANDEM_PRECISION": "f32"}) as d:
            got = embed(d, *(c["text"] for c in goldens))
            worst = max(abs(x - y) for v, c in zip(got, goldens) for x, y in zip(v, c["vector"]))
            print(f"{size} f32: worst number {worst:.1e}")
            check(worst <= F32_LIMIT, "difference from the makers' vectors", size, worst)
        for kind, limit in LIMITS.items():
            with Daemon(models=(model(size, kind),)) as d:
                got = embed(d, *(c["text"] for c in goldens))
                if kind == "f32":
                    want = [c["vector"] for c in goldens]
                else:
                    with Daemon(models=(model(size, kind),), env={"TANDEM_PRECISION": "f32"}) as exact:
                        want = embed(exact, *(c["text"] for c in goldens))
                worst = max(distance(a, b) for a, b in zip(got, want))
                print(f"{size} {kind} as shipped: worst distance {worst:.1e}")
                check(worst <= limit, "distance", size, kind, worst)


@test
def every_door_and_company():
    texts = [c["text"] for c in with_vectors("mean") if c["text"].strip()]
    with Daemon(models=(model("mean", "q8_0"),)) as d, Gateway(d) as g:
        alone = [embed(d, t)[0] for t in texts]
        equal(embed(d, *(texts[::-1] * 20)), alone[::-1] * 20, "many together")
        name = os.path.basename(model("mean", "q8_0"))[:-5]
        answer = g.post("/v1/embeddings", {"model": name, "input": texts})
        equal(f32(e["embedding"] for e in answer["data"]), alone, "/v1/embeddings")
        equal(f32(g.post("/api/embed", {"model": name, "input": texts})["embeddings"]), alone, "/api/embed")
        d.signal_worker("gpu")
        equal(embed(d, *texts), alone, "over a worker's death")
    with Daemon(models=(model("mean", "q8_0"),), threads=2, placement="npu") as d:
        equal(embed(d, *texts), alone, "elsewhere, with two threads")


@test
def on_a_machine_with_vulkan():
    """Vulkan computes no such layers: its worker runs the model on the CPU, with the bits of a machine without."""
    icd = glob.glob("/usr/share/vulkan/icd.d/lvp_icd*.json")
    if SANITIZER or not icd:
        raise Skip("no lavapipe (Debian: mesa-vulkan-drivers), or too slow under a sanitizer")
    env = {"TANDEM_GPU": "vulkan", "TANDEM_NPU": "host", "VK_DRIVER_FILES": icd[0]}
    for size in SIZES:
        texts = [c["text"] for c in with_vectors(size) if c["text"].strip()]
        with Daemon(models=(model(size),)) as d:
            want = embed(d, *texts)
        for placement in ("gpu", "npu", None):
            with Daemon(models=(model(size),), env=env, placement=placement) as d:
                d.wait_ready(120)
                equal(embed(d, *texts), want, f"{size}, placement {placement}")
                gpu = d.workers()["gpu"]
                equal(gpu["device"], "vulkan", "the GPU worker's device")
                check("runs on the CPU" in gpu["plan"] and "does not compute" in gpu["plan"], "the plan", gpu)


@test
def what_is_refused():
    with Daemon(models=(model("cls"),)) as d:
        for args, words in ((("embed", "word " * 100), "context is 64"), (("generate", "x"), "makes vectors of texts")):
            r = d.cli(*args)
            check(r.returncode != 0 and words in r.stderr.decode(), args[0], words, r.stderr)
    with open(model("mean"), "rb") as f:
        whole = f.read()
    changes = ((b"bert.attention.layer_norm_epsilon", b"bert.attention.layer_norm_epsilom", "layer_norm_epsilon"),
               (b"position_embd.weight", b"position_embx.weight", "position_embd.weight"),
               (b"token_embd_norm.bias", b"token_embd_norm.bia5", "token_embd_norm.bias"),
               (b"blk.1.layer_output_norm.bias", b"blk.1.layer_output_norm.bia5", "layer_output_norm.bias"),
               (b"bert.pooling_type", b"bert.pooling_typo", "pooling_type"),
               (b"blk.0.ffn_up.weight", b"blk.0.ffn_uq.weight", "ffn_up.weight"))
    with tempfile.TemporaryDirectory() as folder:
        for old, new, words in changes:
            path = os.path.join(folder, "changed.gguf")
            check(old in whole, "the file has", old)
            with open(path, "wb") as f:
                f.write(whole.replace(old, new))
            with Daemon() as d:
                r = d.cli("embed", "-m", path, "x")
                check(r.returncode == 1 and words in r.stderr.decode(), new, words, r.stderr)


main()
