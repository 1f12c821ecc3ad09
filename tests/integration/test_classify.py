"""Models that tell classes of texts apart, through a real tandemd: what their heads give as a float64 reference has it
(tests/lib/bert_reference.py, which is held to transformers' scores here); by every door; the same bits in any order and
company; and what is refused."""
import json
import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from gguf_edit import with_other_bytes  # noqa: E402
from http_test import *  # noqa: E402,F403

NAMES = {"classes": ["sadness", "joy", 'émerveillement "<&>"', "anger", "fear"],
         "xlm-classes": ["contradiction", "neutral", "entailment"], "distil-classes": ["NEGATIVE", "POSITIVE"],
         "many-classes": [f"LABEL_{i}" for i in range(40)]}
TEXTS = ["the tower is in paris", "", "hot water", "the long day of the people", "a", "they like it and so do we"]
LIMITS = 1e-5, 1e-5  # of what the head gives, and of probabilities


def model(kind, weights="f32"):
    return make_model(kind, weights, arch="bert", seed=1)


def name_of(kind):
    return os.path.basename(model(kind))[:-len(".gguf")]


def f32(x):
    """The nearest float, which is what it was before it was printed."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def as_told(classes, names):
    """Scores in the order of the model's labels, of [{"label", "score"}, …] with the likeliest first."""
    scores = [c["score"] for c in classes]
    equal(scores, sorted(scores, reverse=True), "the likeliest first")
    by_name = {c["label"]: f32(c["score"]) for c in classes}
    equal((len(classes), set(by_name)), (len(names), set(names)), "each class once")
    return [by_name[n] for n in names]


def classify(d, kind, texts, *args):
    return [as_told(classes, NAMES[kind]) for classes in d.cli_json("classify", *args, "--", *texts)[0]]


def reference(kind):
    from bert_reference import Bert
    return Bert(model(kind))


def worst(got, want):
    equal([len(g) for g in got], [len(w) for w in want], "numbers")
    return max(abs(a - b) for g, w in zip(got, want) for a, b in zip(g, w))


@test
def the_reference():
    """It gives the scores that transformers gives, of each text that it reads."""
    for kind in ("rank", "xlm-rank"):
        with open(os.path.join(TREE, "tests", "golden", "rerank", f"{kind}.golden.json"), encoding="utf-8") as f:
            cases = [c for c in json.load(f)["cases"]
                     if all(x == " " or "a" <= x <= "z" for x in c["query"] + c["document"])]
        check(len(cases) >= 4, "cases to compare", len(cases))
        bert = reference(kind)
        for c in cases:
            equal(len(bert.ids(c["query"], c["document"])[0]), c["n_ids"], f"{kind}: ids of {c}")
            score = bert.logits(c["query"], c["document"])[0]
            check(abs(score - c["score"]) < 1e-11, f"{kind}: the score of {c}", score)


@test
def goldens():
    from bert_reference import softmax
    for kind in NAMES:
        bert = reference(kind)
        with Daemon(models=(model(kind),), env={"TANDEM_PRECISION": "f32"}) as d:
            for second in (None, "water is hot"):
                args = () if second is None else ("--second", second)
                want = [bert.logits(t, second) for t in TEXTS]
                off = (worst(classify(d, kind, TEXTS, "--raw", *args), want),
                       worst(classify(d, kind, TEXTS, *args), [softmax(w) for w in want]))
                print(f"{kind}, second {second!r}: logits {off[0]:.1e}, probabilities {off[1]:.1e}")
                check(all(x <= y for x, y in zip(off, LIMITS)), "difference from the reference", kind, second, off)
            swapped = classify(d, kind, ["water is hot"], "--raw", "--second", TEXTS[0])
            check(worst(swapped, [bert.logits("water is hot", TEXTS[0])]) <= LIMITS[0], "the first of a pair is first")


@test
def any_order_and_company():
    for kind in ("classes", "many-classes"):
        path = model(kind, "q8_0")
        with Daemon(models=(path, TALE)) as d:
            alone = [classify(d, kind, [text], "-m", path)[0] for text in TEXTS]
            equal(classify(d, kind, TEXTS, "-m", path), alone, f"together, {kind}")
            equal(classify(d, kind, TEXTS[::-1] * 7, "-m", path), alone[::-1] * 7, "turned, and more than go at once")
            d.signal_worker("gpu")
            equal(classify(d, kind, TEXTS, "-m", path), alone, "over a worker's death")
        for more in ({"threads": 2}, {"placement": "npu"}):
            with Daemon(models=(path,), **more) as d:
                equal(classify(d, kind, TEXTS), alone, str(more))


@test
def command():
    kind = "classes"
    with Daemon(models=(model(kind),)) as d, tempfile.TemporaryDirectory() as folder:
        texts = ["the tower", "a\tb\x1b[31m", "hot water"]
        want = d.cli("classify", *texts, check_exit=0).stdout
        lines = os.path.join(folder, "lines")
        with open(lines, "w") as f:
            f.write("\n\n".join(texts) + "\n")
        for args, given in ((("-f", lines), ""), (("-",), "\n".join(texts)), ((), "\n".join(texts) + "\n")):
            equal(d.cli("classify", *args, input=given.encode(), check_exit=0).stdout, want, str(args))
        told = d.cli("classify", "--text", "-f", lines, check_exit=0).stdout.decode().splitlines()
        equal([line.split("\t") for line in told],
              [[c[0]["label"], f"{f32(c[0]['score']):.9g}", t.replace("\t", "?").replace("\x1b", "?")]
               for c, t in zip(json.loads(want), texts)], "as text")
        for args, status, words in ((("x", "-f", lines), 2, "take one"), (("-f", "/dev/null"), 1, "no texts")):
            r = d.cli("classify", *args, input=b"")
            check(r.returncode == status and words in r.stderr.decode(), words, r.returncode, r.stderr)


@test
def what_is_refused():
    head = b"cls.output.weight"
    ranks, means = make_model("rank", "f32", arch="bert", seed=1), make_model("mean", "f32", arch="bert", seed=1)
    with Daemon(models=(model("classes"), ranks, means, TALE)) as d, tempfile.TemporaryDirectory() as folder:
        for args, words in ((("classify", "-m", TALE, "x"), "makes text, and tells no classes apart"),
                            (("classify", "-m", means, "x"), "makes vectors of texts, and tells no classes apart"),
                            (("classify", "-m", ranks, "x"), "`tandem rerank` asks for it"),
                            (("embed", "x"), "makes no vectors; `tandem classify` asks for it"),
                            (("rerank", "q", "x"), "ranks no documents; `tandem classify` asks for it"),
                            (("generate", "x"), "makes no text; `tandem classify` asks for it"),
                            (("classify", "word " * 200), "the text has")):
            r = d.cli(*args)
            check(r.returncode == 1 and words in r.stderr.decode(), args[0], words, r.stderr)
        for old, new, words in ((b"sadness", b"sadn\x1bss", "has a control character"),
                                (b"sadness", b"sadn\xffss", "is not UTF-8"),
                                (head + struct.pack("<IQQ", 2, 64, 5), head + struct.pack("<IQQ", 2, 64, 4),
                                 "has 5 names, and the head tells 4 classes apart"),
                                (head + struct.pack("<IQQ", 2, 64, 5), head + struct.pack("<IQQ", 2, 4, 80),
                                 "tells 80 classes apart, 2 to 64 are supported"),
                                (head, b"cls.outpux.weight", "pooling_type")):
            r = d.cli("classify", "-m", with_other_bytes(model("classes"), folder, (old, new)), "x")
            check(r.returncode == 1 and words in r.stderr.decode(), new, words, r.stderr)
        other_key = b"classifier.output_labels", b"classifier.output_labelz"
        nameless = with_other_bytes(model("classes"), folder, other_key)
        told = d.cli_json("classify", "-m", nameless, "x")[0][0]
        equal({c["label"] for c in told}, {f"LABEL_{i}" for i in range(5)}, "names of a file without names")


@test
def shown():
    with Daemon(models=(model("classes"),)) as d:
        for kind, n, lacks in (("classes", 5, False), ("distil-classes", 2, False), ("many-classes", 40, True)):
            out = d.cli("show", model(kind), check_exit=0).stdout.decode()
            check(f"{n} classes of texts (tandem classify), and no text" in out, "what it makes", out)
            equal("lacks the tensor cls.weight" in out, lacks, f"what it lacks, in {out}")
            told = d.cli_json("show", "--json", model(kind))[0]
            equal((told["classes"], told["ranks_documents"], told["makes_vectors"]), (n, False, False), "in JSON")


@test
def over_http():
    kind, path = "classes", model("classes")
    with Daemon(models=(path, TALE)) as d, Gateway(d) as g:
        for second in (None, "water is hot"):
            args = () if second is None else ("--second", second)
            probabilities, raw = classify(d, kind, TEXTS, "-m", path, *args), \
                classify(d, kind, TEXTS, "-m", path, "--raw", *args)
            items = [[t] if second is None else [t, second] for t in TEXTS]
            body = {"model": name_of(kind), "inputs": items}
            for more, want in (({}, probabilities), ({"raw_scores": False}, probabilities),
                               ({"raw_scores": True}, raw)):
                got = g.post("/predict", {**body, **more})
                equal([as_told(classes, NAMES[kind]) for classes in got], want, f"text-embeddings-inference's {more}")
            for item, want in zip(items, probabilities):
                equal(as_told(g.post("/predict", {**body, "inputs": item}), NAMES[kind]), want, f"one: {item}")
        probabilities, raw = classify(d, kind, TEXTS, "-m", path), classify(d, kind, TEXTS, "-m", path, "--raw")
        equal(as_told(g.post("/predict", {**body, "inputs": TEXTS[0]}), NAMES[kind]), probabilities[0], "a text")
        body = {"model": name_of(kind), "input": TEXTS}
        for at in ("/classify", "/v1/classify"):
            for more, want in (({}, probabilities), ({"use_activation": True}, probabilities),
                               ({"use_activation": False}, raw)):
                got = g.post(at, {**body, **more})
                equal((got["object"], got["model"], got["id"] != "", got["created"] > 0),
                      ("list", name_of(kind), True, True), "the answer's head")
                equal([(r["index"], r["num_classes"], [f32(p) for p in r["probs"]]) for r in got["data"]],
                      [(i, 5, scores) for i, scores in enumerate(want)], f"{at} with {more}")
                equal([r["label"] for r in got["data"]],
                      [NAMES[kind][max(range(5), key=lambda k: scores[k])] for scores in want], "the likeliest")
        n_ids = got["usage"]["prompt_tokens"]
        equal(n_ids, sum(len(reference(kind).ids(t)[0]) for t in TEXTS), "tokens")
        equal(g.post("/classify", {**body, "input": TEXTS * 10})["usage"]["prompt_tokens"], 10 * n_ids, "more at once")
        one = g.post("/classify", {**body, "input": TEXTS[0]})["data"]
        equal([[f32(p) for p in r["probs"]] for r in one], probabilities[:1], "one text")
        for wrong, param in (({"input": None}, "input"), ({"input": []}, "input"), ({"input": [1, 2]}, "input"),
                             ({"input": [["x"]]}, "input"), ({"input": ["x"] * 2049}, "input"),
                             ({"input": {"text": "x"}}, "input"), ({"use_activation": "no"}, "use_activation"),
                             ({"activation": False}, "activation"), ({"softmax": False}, "softmax"),
                             ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
                             ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
                             ({"add_special_tokens": False}, "add_special_tokens")):
            equal(g.post("/classify", {**body, **wrong}, 400)["error"]["param"], param, str(wrong)[:80])
        for inputs in (None, [], {}, 5, ["x", "y", "z"], [["x", "y", "z"]], [[]], [["x"], "y"], ["x", ["y"]], [[1]],
                       ["x", None], [["x"]] * 2049):
            error = g.post("/predict", {"model": name_of(kind), "inputs": inputs}, 400)["error"]
            equal(error["param"], "inputs", str(inputs)[:80])
        error = g.post("/predict", {"model": name_of(kind), "inputs": "x", "truncate": True}, 400)["error"]
        equal(error["param"], "truncate", "nothing is shortened")
        for at, body, words in (("/classify", {"model": "tale", "input": "x"}, "tells no classes apart"),
                                ("/predict", {"model": "tale", "inputs": "x"}, "tells no classes apart"),
                                ("/predict", {"model": name_of(kind), "inputs": ["x", "word " * 200]}, "the text has"),
                                ("/v1/embeddings", {"model": name_of(kind), "input": "x"}, "tandem classify"),
                                ("/v1/rerank", {"model": name_of(kind), "query": "x", "documents": ["y"]},
                                 "tandem classify")):
            check(words in str(g.post(at, body, 400)), at, words)
        equal(g.post("/api/show", {"model": name_of(kind)})["capabilities"], ["classify"], "what it can do")


@test
def over_the_bus():
    from tandem_bus import MANAGER, ROOT, Bus, Client
    kind = "xlm-classes"
    with Bus() as bus, bus.daemon(models=(model(kind),)) as d:
        c = Client(bus).wait()

        def ask(texts, **options):
            labels, scores = c.call(ROOT, MANAGER, "Classify", "asa{sv}", texts, options)
            equal([str(x) for x in labels], NAMES[kind], "labels")
            return [[f32(float(x)) for x in row] for row in scores]
        for options, args in (({}, ()), ({"raw": True}, ("--raw",)), ({"second": "hot"}, ("--second", "hot")),
                              ({"second": "", "raw": True}, ("--second", "", "--raw"))):
            equal(ask(TEXTS, **options), classify(d, kind, TEXTS, *args), f"scores with {options}")
        for texts, options, words in (([], {}, "no texts"), (["x"] * 65, {}, "more than 64"),
                                      (["x"], {"dimensions": 3}, "dimensions"), (["x"], {"raw": "yes"}, "raw"),
                                      (["x"], {"second": 3}, "second"), (["x", "y"], {"model": "nope"}, "nope")):
            try:
                c.call(ROOT, MANAGER, "Classify", "asa{sv}", texts, options)
            except c.dbus.DBusException as e:
                check(words in e.get_dbus_message(), words, e.get_dbus_message())
            else:
                check(False, "nothing was refused", words)


main()
