"""Vectors of texts through a real tandemd: their distance from float64 reference values that another program computed
(tests/golden/archs), by every door; and a text's vector is the same bits alone and in company.
"""
import base64
import json
import math
import os
import struct
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403
from gguf_peek import Gguf  # noqa: E402

FILES = [(size, kind, seed) for size, seed in (("a", 1), ("b", 2)) for kind in ("f32", "q8_0", "q4_0")]
LIMITS = {"f32": 1e-5, "default": 2e-3}  # cosine distances


def model(size, kind, seed, **more):
    return make_model(size, kind, arch="gemma-embedding", seed=seed, **more)


def read_golden(size, kind):
    with open(os.path.join(TREE, "tests", "golden", "archs", f"gemma-embedding-{size}-{kind}.golden.json")) as f:
        return json.load(f)


def distance(a, b):
    """1 - cosine, from the difference of the unit vectors: nothing cancels."""
    equal(len(a), len(b), "numbers of a vector")
    la, lb = (math.sqrt(math.fsum(x * x for x in v)) for v in (a, b))
    check(abs(la - 1) < 1e-4, "a vector's length", la)
    return math.fsum((x / la - y / lb) ** 2 for x, y in zip(a, b)) / 2


def f32(vectors):
    """The nearest floats, which is what they were before they were printed."""
    return [list(struct.unpack(f"<{len(v)}f", struct.pack(f"<{len(v)}f", *v))) for v in vectors]


def embed(d, *args):
    return f32(d.cli_json("embed", *args)[0])


@test
def goldens():
    for precision, limit in LIMITS.items():
        for file in FILES:
            g = read_golden(*file[:2])
            with Daemon(models=(model(*file),), env={"TANDEM_PRECISION": precision}) as d:
                texts = [c["text"] for c in g["cases"]]
                vectors = embed(d, *texts)
                worst = max(distance(v, c["vector"]) for v, c in zip(vectors, g["cases"]))
                print(f"{file} {precision}: worst {worst:.1e}")
                check(worst <= limit, "distance", file, precision, worst)
                cut = embed(d, "--dimensions", str(g["d"] // 4), texts[0])[0]
                check(distance(cut, g["cases"][0]["truncated"]) <= limit, "distance of a vector's beginning", file)


@test
def same_bits_in_company():
    """Beside other texts, jobs of another model, other threads, placements, and without a worker."""
    g = read_golden("a", "q8_0")
    texts = [c["text"] for c in g["cases"]]
    paths = (model("a", "q8_0", 1), TALE)
    with Daemon(models=paths) as d:
        alone = [embed(d, t)[0] for t in texts]
        job = d.start_job(model="tale", n=300, prompt="Once")
        job.until(1)
        equal(embed(d, *texts), alone, "together, beside a job")
        equal(embed(d, *(texts[::-1] * 4)), alone[::-1] * 4, "more of them than the command sends at once")
        d.signal_worker("gpu")
        equal(embed(d, *texts), alone, "over a worker's death")
        job.wait()
    for more in ({"threads": 2}, {"placement": "npu"}):
        with Daemon(models=paths, **more) as d:
            equal(embed(d, *texts), alone, str(more))


@test
def last_row():
    """Causal, the last row's: a prompt like any other, read in chunks and with the prefix cache."""
    path = make_model("dev", "q8_0", arch="qwen3", pooling=3)
    text = "there was a king in a far land who had no son and no peace " * 12
    with Daemon(models=(path,)) as d:
        first = embed(d, text)[0]
        equal(embed(d, text, text + "x", text)[::2], [first, first], "again, with its prefix known")
        check(embed(d, text + "x")[0] != first, "another text has another vector")
    with Daemon(models=(path,), placement="gpu", threads=2) as d:
        equal(embed(d, text)[0], first, "elsewhere")


@test
def what_is_refused():
    with Daemon(models=(model("a", "q8_0", 1), TALE)) as d:
        for args, words in ((("embed", "-m", "tale", "x"), "names no pooling"),
                            (("embed", "--dimensions", "129", "x"), "have 128"),
                            (("embed", "word " * 3000), "context is 2048"),
                            (("generate", "x"), "makes vectors of texts and no text"),
                            (("embed", "--dimensions", "0", "x"), "dimensions")):
            r = d.cli(*args)
            check(r.returncode != 0 and words in r.stderr.decode(), args[0], words, r.stderr)
        equal(len(embed(d, "")[0]), 128, "an empty text has a vector")
    other = model("a", "f32", 1, pair_from_0=True)
    with Daemon(models=(model("a", "f32", 1), other)) as d:
        equal(embed(d, "-m", other, "x"), embed(d, "x"), "another name of the pair")


@test
def shown():
    """tandem show promises an embedding model no tokens a second, and tells of no way to draw them."""
    with Daemon(models=(model("a", "q8_0", 1), TALE)) as d:
        for path, vectors in ((model("a", "q8_0", 1), True), (TALE, False)):
            out = d.cli("show", path, check_exit=0).stdout.decode()
            equal("vectors of 128 numbers (tandem embed), and no text" in out, vectors, f"what it makes, in {out}")
            equal("tokens/s" in out, not vectors, f"a speed, in {out}")
            told = d.cli_json("show", "--json", path)[0]
            equal((told["makes_vectors"], "tokens_per_s" in told), (vectors, not vectors), "the same in JSON")
            check("dense_2" not in out, "the matrices behind the pooling are there", out)
        out = d.cli("show", model("b", "q8_0", 2), check_exit=0).stdout.decode()
        check("lacks the tensors dense_2 and dense_3" in out, "that matrices are left out", out)


@test
def no_numbers():
    """A final norm so large that vectors overflow: the texts are refused, and no worker is to blame."""
    source = model("a", "f32", 1)
    g = Gguf(source)
    norm = g.tensors["output_norm.weight"]
    at = -(-g.head_bytes // 32) * 32 + norm["offset"]
    with open(source, "rb") as f:
        data = bytearray(f.read())
    with Daemon(models=(source, TALE), hang_ms=STANDING_MS) as d, tempfile.TemporaryDirectory() as tmp:
        want = embed(d, "-m", source, "x")
        before = {n: w["pid"] for n, w in d.wait_ready().items()}
        path = os.path.join(tmp, "spoilt.gguf")
        data[at:at + 4 * norm["shape"][0]] = struct.pack("<f", 3e38) * norm["shape"][0]
        with open(path, "wb") as f:
            f.write(data)
        for _ in range(5):
            r = d.cli("embed", "-m", path, "a text", "another")
            check(r.returncode != 0 and b"holds a NaN or an infinity" in r.stderr, "refused", r.stderr)
        equal(embed(d, "-m", source, "x"), want, "another model's vector")
        d.generate(model="tale", n=10)
        equal({n: w["pid"] for n, w in d.workers().items()}, before, "the workers are the same processes")


@test
def over_http():
    g_file = read_golden("a", "q8_0")
    texts = [c["text"] for c in g_file["cases"]]
    path = model("a", "q8_0", 1)
    name = os.path.basename(path)[:-len(".gguf")]
    with Daemon(models=(path, TALE)) as d, Gateway(d) as g:
        want = embed(d, *texts)
        body = {"model": name, "input": texts}
        got = g.post("/v1/embeddings", body)
        equal([e["index"] for e in got["data"]], list(range(len(texts))), "order")
        equal(f32(e["embedding"] for e in got["data"]), want, "numbers")
        equal(got["usage"]["prompt_tokens"], sum(len(c["ids"]) for c in g_file["cases"]), "tokens")
        coded = g.post("/v1/embeddings", {**body, "encoding_format": "base64"})["data"]
        equal([list(struct.unpack("<128f", base64.b64decode(e["embedding"]))) for e in coded], want, "base64")
        equal(len(g.post("/v1/embeddings", {"model": name, "input": "x", "dimensions": 32})["data"][0]["embedding"]),
              32, "dimensions")
        many = g.post("/v1/embeddings", {"model": name, "input": texts[:5] * 30})["data"]
        equal(f32(e["embedding"] for e in many), want[:5] * 30, "more than run at once")
        equal(f32(g.post("/api/embed", {"model": name, "input": texts})["embeddings"]), want, "Ollama's")
        equal(f32(g.post("/api/embed", {"model": name, "input": texts[1], "truncate": True})["embeddings"]), want[1:2],
              "one")
        equal(f32([g.post("/api/embeddings", {"model": name, "prompt": texts[2]})["embedding"]]), want[2:3],
              "Ollama's old one")
        for wrong, words in (({"input": [1, 2]}, "token ids"), ({"input": [[1]]}, "token ids"), ({}, "missing"),
                             ({"input": []}, "1 to 2048"), ({"input": "x", "encoding_format": "int8"}, "base64"),
                             ({"input": "x", "dimensions": 4096}, "have 128")):
            check(words in str(g.post("/v1/embeddings", {"model": name, **wrong}, 400)), words, wrong)
        status, headers, _ = g.request("POST", "/v1/embeddings", {"model": name, "input": "x", "wrong": 1})
        check(status == 200 and "wrong" in headers["x-tandem-warning"], "a warning of what is not known", headers)
        check("no pooling" in str(g.post("/v1/embeddings", {"model": "tale", "input": "x"}, 400)), "no vectors")
        check("no text" in str(g.post("/v1/completions", {"model": name, "prompt": "x"}, 400)), "no text")
        answers = [None] * 8

        def ask(i):
            answers[i] = g.post("/v1/embeddings", {"model": name, "input": texts[i]})["data"][0]["embedding"]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(answers))]
        [t.start() for t in threads]
        [t.join() for t in threads]
        equal(f32(answers), want[:8], "at the same time")


@test
def over_the_bus():
    from tandem_bus import MANAGER, ROOT, Bus, Client
    with Bus() as bus, bus.daemon(models=(model("a", "q8_0", 1),)) as d:
        c = Client(bus).wait()
        texts = ["one", "", "a third"]
        vectors = c.call(ROOT, MANAGER, "Embed", "asa{sv}", texts, {})
        equal(f32([float(x) for x in v] for v in vectors), embed(d, *texts), "vectors")
        equal(len(c.call(ROOT, MANAGER, "Embed", "asa{sv}", ["x"], {"dimensions": 16})[0]), 16, "dimensions")
        for given, options, words in (([], {}, "no texts"), (["x"] * 65, {}, "more than 64"),
                                      (["x"], {"dimension": 1}, "dimension"), (["x"], {"dimensions": 129}, "have 128"),
                                      (["x", "y"], {"model": "nope"}, "nope")):
            try:
                c.call(ROOT, MANAGER, "Embed", "asa{sv}", given, options)
            except c.dbus.DBusException as e:
                check(words in e.get_dbus_message(), words, e.get_dbus_message())
            else:
                check(False, "nothing was refused", words)


main()
