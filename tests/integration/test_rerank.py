"""Rerankers through a real tandemd: scores as the makers' implementations have them (golden files of
tools/make-rerank-goldens.py), by every door; the same bits in any order and company; and what is refused."""
import json
import math
import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from gguf_edit import with_other_bytes  # noqa: E402
from http_test import *  # noqa: E402,F403

KINDS = ("rank", "xlm-rank", "qwen3")
F32_LIMIT = 1e-6


def model(kind, weights="f32"):
    if kind == "qwen3":
        return make_model("dev", weights, arch="qwen3", pooling=4, chat="rerank", layers=2)
    return make_model(kind, weights, arch="bert", seed=1)


def pairs(kind):
    """{query: [case, …]}, in the order of the documents"""
    with open(os.path.join(TREE, "tests", "golden", "rerank", f"{kind}.golden.json"), encoding="utf-8") as f:
        cases = json.load(f)["cases"]
    return {c["query"]: [other for other in cases if other["query"] == c["query"]] for c in cases}


def f32(x):
    """The nearest float, which is what it was before it was printed."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def rank(d, query, documents, *args):
    """[(index, score), …], the best first"""
    return [(r["index"], f32(r["score"])) for r in d.cli_json("rerank", *args, "--", query, *documents)[0]]


def scores(d, query, documents, *args):
    """In the order of the documents."""
    return [score for _, score in sorted(rank(d, query, documents, *args))]


def sorted_by_score(values):
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


@test
def goldens():
    for kind in KINDS:
        with Daemon(models=(model(kind),), env={"TANDEM_PRECISION": "f32"}) as d:
            worst = 0
            for query, cases in pairs(kind).items():
                got = rank(d, query, [c["document"] for c in cases])
                want = [c["score"] for c in cases]
                worst = max(worst, max(abs(score - want[i]) for i, score in got))
                equal([i for i, _ in got], sorted_by_score(want), f"ranks of {kind} for {query!r}")
            print(f"{kind}: worst score {worst:.1e}")
            check(worst <= F32_LIMIT, "difference from the makers' scores", kind, worst)


@test
def any_order_and_company():
    for kind, weights in (("rank", "q8_0"), ("qwen3", "q8_0")):
        path = model(kind, weights)
        query, cases = next(iter(pairs(kind).items()))
        documents = [c["document"] for c in cases]
        with Daemon(models=(path, TALE)) as d:
            alone = [scores(d, query, [document], "-m", path)[0] for document in documents]
            job = d.start_job(model="tale", n=300, prompt="Once")
            job.until(1)
            equal(scores(d, query, documents, "-m", path), alone, f"together, beside a job, {kind}")
            equal(scores(d, query, documents[::-1] * 5, "-m", path), alone[::-1] * 5, "turned, and more at once")
            d.signal_worker("gpu")
            equal(scores(d, query, documents, "-m", path), alone, "over a worker's death")
            job.wait()
        for more in ({"threads": 2}, {"placement": "npu"}):
            with Daemon(models=(path,), **more) as d:
                equal(scores(d, query, documents), alone, str(more))


@test
def command():
    with Daemon(models=(model("rank"),)) as d, tempfile.TemporaryDirectory() as folder:
        documents = ["the tower is in paris", "a\tb\x1b[31m", "water can be hot"]
        want = rank(d, "tower", documents)
        lines = os.path.join(folder, "lines")
        with open(lines, "w") as f:
            f.write("\n\n".join(documents) + "\n")
        for args, given in ((("tower", "-f", lines), None), (("tower", "-"), "\n".join(documents)),
                            (("tower",), "\n".join(documents) + "\n")):
            r = d.cli("rerank", *args, input=(given or "").encode(), check_exit=0)
            equal([(o["index"], f32(o["score"])) for o in json.loads(r.stdout)], want, str(args))
        told = [line.split("\t") for line in
                d.cli("rerank", "--text", "tower", "-f", lines, check_exit=0).stdout.decode().splitlines()]
        equal([(int(n), f32(float(score)), text) for n, score, text in told],
              [(n, score, documents[i].replace("\t", "?").replace("\x1b", "?"))
               for n, (i, score) in enumerate(want, 1)], "as text")
        for args, status, words in (((), 2, "no QUERY"), (("x", "y", "-f", lines), 2, "take one"),
                                    (("x", "-f", "/dev/null"), 1, "no documents"), (("", "y"), 1, "query is empty")):
            r = d.cli("rerank", *args, input=b"")
            check(r.returncode == status and words in r.stderr.decode(), words, r.returncode, r.stderr)


@test
def what_is_refused():
    bert = make_model("mean", "f32", arch="bert", seed=1)
    with Daemon(models=(model("rank"), bert, TALE)) as d:
        for args, words in ((("rerank", "-m", TALE, "q", "d"), "makes text, and ranks no documents"),
                            (("rerank", "-m", bert, "q", "d"), "makes vectors of texts, and ranks no documents"),
                            (("embed", "x"), "`tandem rerank` asks for it"),
                            (("generate", "x"), "`tandem rerank` asks for it"),
                            (("rerank", "word " * 100, "word " * 100), "query with its document has")):
            r = d.cli(*args)
            check(r.returncode == 1 and words in r.stderr.decode(), args[0], words, r.stderr)
    with Daemon() as d, tempfile.TemporaryDirectory() as folder:
        for kind, old, new, words in (
                ("xlm-rank", b"cls.output.weight", b"cls.outpux.weight", "cls.output.weight is missing"),
                ("qwen3", b"classifier.output_labels", b"classifier.output_labelz", "tells 2 classes apart"),
                ("qwen3", b"chat_template.rerank", b"chat_template.rerunk", "tokenizer.chat_template.rerank"),
                ("qwen3", b"{document}", b"{dokument}", "not one {query} and one {document}")):
            r = d.cli("rerank", "-m", with_other_bytes(model(kind), folder, (old, new)), "q", "d")
            check(r.returncode == 1 and words in r.stderr.decode(), new, words, r.stderr)


@test
def shown():
    with Daemon() as d:
        for path, ranks, lacks in ((model("rank"), True, False), (model("qwen3"), True, False),
                                   (make_model("bare-rank", "f32", arch="bert", seed=1), True, True),
                                   (TALE, False, False)):
            out = d.cli("show", path, check_exit=0).stdout.decode()
            equal("ranks of documents (tandem rerank), and no text" in out, ranks, f"what it makes, in {out}")
            equal("lacks the tensor cls.weight" in out, lacks, f"what it lacks, in {out}")
            told = d.cli_json("show", "--json", path)[0]
            equal((told["ranks_documents"], told["makes_vectors"], "tokens_per_s" in told), (ranks, False, not ranks),
                  "the same in JSON")
        bare = make_model("bare-rank", "f32", arch="bert", seed=1)
        check(all(map(math.isfinite, scores(d, "tower", ["water", "paris"], "-m", bare))), "it ranks")


@test
def over_http():
    path = model("rank")
    name = os.path.basename(path)[:-len(".gguf")]
    query, cases = next(iter(pairs("rank").items()))
    documents = [c["document"] for c in cases]
    with Daemon(models=(path, TALE)) as d, Gateway(d) as g:
        want = rank(d, query, documents)
        body = {"model": name, "query": query, "documents": documents}
        for at in ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"):
            got = g.post(at, body)
            equal([(r["index"], f32(r["relevance_score"])) for r in got["results"]], want, at)
        equal(got["usage"]["prompt_tokens"], sum(c["n_ids"] for c in cases), "tokens")
        equal((got["object"], got["model"]), ("list", name), "the answer's head")
        as_objects = {**body, "documents": [{"text": t} for t in documents], "top_n": 3, "return_documents": True}
        equal([(r["index"], f32(r["relevance_score"]), r["document"]["text"])
               for r in g.post("/v1/rerank", as_objects)["results"]],
              [(i, score, documents[i]) for i, score in want[:3]], "objects, the best three, with their texts")
        for top_n, n in ((0, len(want)), (1, 1), (99, len(want))):
            equal(len(g.post("/v1/rerank", {**body, "top_n": top_n})["results"]), n, f"top_n {top_n}")
        many = g.post("/v1/rerank", {**body, "documents": documents * 10})["results"]
        equal([f32(r["relevance_score"]) for r in many], [s for _, s in want for _ in range(10)], "more at once")
        tei = {"model": name, "query": query, "texts": documents}
        equal([(r["index"], f32(r["score"]), r["text"]) for r in
               g.post("/rerank", {**tei, "raw_scores": True, "return_text": True})],
              [(i, score, documents[i]) for i, score in want], "text-embeddings-inference's form")
        equal([r["index"] for r in g.post("/rerank", {**tei, "top_n": 2})], [i for i, _ in want[:2]],
              "llama-server takes top_n with texts")
        for r, (i, score) in zip(g.post("/rerank", tei), want):
            check(r["index"] == i and abs(r["score"] - 1 / (1 + math.exp(-score))) < 1e-9, "a score from 0 to 1", r)
        for wrong, words in (({"query": ""}, "is empty"), ({"query": None}, "missing"),
                             ({"documents": None}, "missing"),
                             ({"documents": []}, "1 to 2048"), ({"documents": ["x"] * 2049}, "1 to 2048"),
                             ({"documents": ["x", 3]}, "documents[1]"),
                             ({"texts": ["x"]}, "take one"), ({"top_n": -1}, "top_n"), ({"truncate": True}, "truncate"),
                             ({"model": "tale"}, "ranks no documents"), ({"query": "word " * 200}, "has")):
            check(words in str(g.post("/v1/rerank", {**body, **wrong}, 400)), words, wrong)
        check("tandem rerank" in str(g.post("/v1/embeddings", {"model": name, "input": "x"}, 400)), "no vectors")
    path = model("qwen3")  # of yes and no: its scores are from 0 to 1 already
    with Daemon(models=(path,)) as d, Gateway(d) as g:
        body = {"model": os.path.basename(path)[:-len(".gguf")], "query": query, "texts": documents}
        for raw in (False, True):
            equal([(r["index"], f32(r["score"])) for r in g.post("/rerank", {**body, "raw_scores": raw})],
                  rank(d, query, documents), f"probabilities, raw_scores {raw}")


@test
def forms_over_http():
    """A document's members, and the members of each form: what has no effect is refused by its name."""
    path = model("rank")
    body = {"model": os.path.basename(path)[:-len(".gguf")], "query": "tower"}
    texts = ["the tower is in paris", "water can be hot"]
    with Daemon(models=(path,)) as d, Gateway(d) as g:
        want = rank(d, "tower", texts)
        given = [{"text": texts[0], "id": 2**64 - 3, "metadata": {"a": [1732968000.123456, None]}}, texts[1]]
        asked = {**body, "documents": given, "rank_fields": ["text"], "return_text": False}
        for returned in (True, False):
            got = g.post("/v1/rerank", {**asked, "return_documents": returned})["results"]
            equal([(r["index"], f32(r["relevance_score"])) for r in got], want, "only the text is ranked")
            equal([r.get("document") for r in got],
                  [{0: given[0], 1: {"text": texts[1]}}[r["index"]] if returned else None for r in got],
                  "an object comes back as it was given")
        exact = '{"text":"x","id":123456789012345678901234567890,"metadata":{"at":1.10,"small":1e-400}}'
        whole = json.dumps({**body, "documents": ["?"], "return_documents": True, "inputs": [2**70, 1e-300] * 50})
        status, _, got = g.request("POST", "/v1/rerank", whole.replace('"?"', exact))
        equal((status, exact in got.decode()), (200, True), "no number of a document changes")
        for on in (True, False):
            got = g.post("/v1/rerank", {**asked, "use_activation": on})["results"]
            for r, (i, score) in zip(got, want):
                wanted = 1 / (1 + math.exp(-score)) if on else score
                check(r["index"] == i and abs(r["relevance_score"] - wanted) < 1e-9, "use_activation", on, r, wanted)
        documents, tei = {**body, "documents": texts}, {**body, "texts": texts}
        equal([r["index"] for r in g.post("/rerank", {**tei, "return_documents": False})], [i for i, _ in want],
              "false asks for nothing")
        for form, wrong, param in (
                (documents, {"documents": [{"text": "x", "title": "y"}]}, "documents[0].title"),
                (documents, {"documents": ["x", {"text": "y", "image": "https://a.example/b.png"}]},
                 "documents[1].image"),
                (documents, {"documents": [{"text": {"text": "x"}}]}, "documents[0].text"),
                (documents, {"documents": [{"text": ["x"]}]}, "documents[0].text"),
                (documents, {"documents": [{"text": None, "id": 1}]}, "documents[0]"),
                (documents, {"documents": ["x", [{"text": "y"}]]}, "documents[1]"),
                (documents, {"documents": ["x", None]}, "documents[1]"),
                (documents, {"documents": {"content": [{"type": "text", "text": "x"}]}}, "documents"),
                (documents, {"documents": "x"}, "documents"),
                (documents, {"query": {"text": "x"}}, "query"), (documents, {"query": ["x"]}, "query"),
                (documents, {"activation": True}, "activation"),
                (documents, {"raw_scores": True}, "raw_scores"), (documents, {"raw_scores": False}, "raw_scores"),
                (documents, {"return_text": True}, "return_text"),
                (documents, {"rank_fields": ["title"]}, "rank_fields"),
                (tei, {"texts": [{"text": "x"}]}, "texts[0]"), (tei, {"texts": ["x", 1]}, "texts[1]"),
                (tei, {"return_documents": True}, "return_documents"),
                (tei, {"use_activation": True}, "use_activation"),
                (tei, {"raw_scores": 1}, "raw_scores"), (tei, {"raw_scores": "true"}, "raw_scores"),
                (tei, {"return_text": "yes"}, "return_text"), (tei, {"return_text": [True]}, "return_text"),
                (documents, {"return_documents": 1}, "return_documents"),
                (documents, {"return_documents": {}}, "return_documents"),
                (documents, {"top_n": "3"}, "top_n"), (documents, {"top_n": 2.5}, "top_n"),
                (documents, {"top_n": True}, "top_n"), (documents, {"top_n": [1]}, "top_n"),
                (tei, {"top_n": {}}, "top_n"), (documents, {"use_activation": "on"}, "use_activation")):
            for at in ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"):
                error = g.post(at, {**form, **wrong}, 400)["error"]
                equal(error["param"], param, f"{at} with {wrong}: {error}")
                check(f"'{param}" in error["message"], "it is named", error)


@test
def over_the_bus():
    from tandem_bus import MANAGER, ROOT, Bus, Client
    with Bus() as bus, bus.daemon(models=(model("rank"),)) as d:
        c = Client(bus).wait()
        documents = ["the tower", "", "water"]
        got = c.call(ROOT, MANAGER, "Rerank", "sasa{sv}", "tower", documents, {})
        equal([f32(float(x)) for x in got], scores(d, "tower", documents), "scores")
        for query, given, options, words in (("", ["x"], {}, "query is empty"), ("q", [], {}, "no texts"),
                                             ("q", ["x"] * 65, {}, "more than 64"),
                                             ("q", ["x"], {"dimensions": 3}, "dimensions"),
                                             ("q", ["x", "y"], {"model": "nope"}, "nope")):
            try:
                c.call(ROOT, MANAGER, "Rerank", "sasa{sv}", query, given, options)
            except c.dbus.DBusException as e:
                check(words in e.get_dbus_message(), words, e.get_dbus_message())
            else:
                check(False, "nothing was refused", words)


main()
