"""Released files (models.json) run here and are held to their makers: tokens, log-probabilities, perplexity, answers,
and what Tandem promises of any model, on real weights.

    test_released.py [NAME...]
    test_released.py --table      runs the suites of embeddings and of evaluations too, and prints all files × checks
    test_released.py --fresh      asks the makers' programs again, whose answers are kept otherwise (kept.py)

Skipped by name where a registry does not answer. The variables are told in released.py."""
import math
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "grammar"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tandem_test import *  # noqa: E402,F403
import corpus  # noqa: E402
import differential  # noqa: E402
import figures  # noqa: E402
import kept  # noqa: E402
from distance import NEAR, Distance, of_sequences, positions, score  # noqa: E402
from released import FILES, GEMMA, SMOLLM, LlamaServer, maker, of_llama_cpp, sequences  # noqa: E402

EXACT = {"TANDEM_PRECISION": "f32"}


def row(released, name, text):
    print(f"FIGURE released {released.name} {name}: {text}", flush=True)


def of_each(function):
    """A test for each file, named FILE_CHECK."""
    for released in FILES:
        name = f"{released.name}_{function.__name__}".replace("-", "_")
        TESTS.append((name, functools.partial(function, released)))
    return function


def daemon(released, env=None, **more):
    return Daemon(models=(released.path(),), env=env, placement=None, threads=0, **more)


# ---- tokens and weights


@of_each
def tokens(r):
    """2,000 texts have the ids that the makers' tokenizer gives; every marker is text, or a token in chats."""
    texts = {"plain": corpus.plain_texts(1600), "marked": corpus.marked_texts(400, r.begin, r.end)}
    want, n = maker(r, "tokens", **texts), 0
    with daemon(r) as d, d.wire() as w:
        for kind in texts:
            for text, ids in zip(texts[kind], want[kind]):
                got = w.call("tokenize", {"text": text.encode(), "special": kind == "marked", "no_bos": True,
                                          "model": {"name": r.model}})["ids"]
                same_ids(got, ids, f"{kind} text {text[:200]!r}")
                n += len(ids)
    row(r, "tokens", f"2,000 texts, {n} tokens, all equal")


@of_each
def weights(r):
    """The weights that the makers' values are computed with are those that transformers itself reads from the file."""
    got = maker(r, "readers")
    check(not got["wrong"] and got["tensors"] > 100, "tensors that transformers reads otherwise", got)
    row(r, "weights", f"{got['tensors']} tensors, read alike by transformers")


# ---- numbers


def golden(r):
    """(sequences, the makers' values)."""
    with daemon(r) as d:
        ids = sequences(r, d)
    return ids, maker(r, "score", sequences=ids, top=64)


def distance(r, env, some=slice(None), **more):
    ids, want = golden(r)
    with daemon(r, env, **more) as d:
        return of_sequences(d, r.model, ids[some], want[some])


@of_each
def exact_numbers(r):
    """In f32: within 1e-3 of transformers in f32."""
    got, nll = distance(r, EXACT)
    row(r, "f32", f"{got}, worst nll difference {nll:.5f}")
    check(len(got.values) > 700, "positions", len(got.values))
    check(max(got.values) <= 1e-3 and nll <= 1e-3, "f32 within 1e-3", str(got), nll)
    equal(got.same(), 1.0, "first choices")


def llama_tops(r, sequences, top=64):
    """llama.cpp's likeliest ids at the positions of sequences that are compared, kept."""
    def ask():
        with LlamaServer(r.path()) as server:
            return [[server.top(s[:i + 1], top) for i in positions(s)] for s in sequences]

    on = dict(of_llama_cpp(r.path()), sequences=sequences, positions=[list(positions(s)) for s in sequences], top=top)
    return kept.answer(f"{r.name}-llama-tops", on, ask)


@of_each
def rounded_numbers(r):
    """As shipped: the distance is at most 0.75 of llama.cpp's at the same positions, and the first choice is the same
    at 99% of the positions without a near tie."""
    got, _ = distance(r, {})
    row(r, "default", str(got))
    check(got.same() >= 0.99, "first choices", str(got))
    ids, want = golden(r)
    theirs = Distance()
    for s, w, said in zip(ids, want, llama_tops(r, ids)):
        for i, top in zip(positions(s), said):
            theirs.add(w["top"][i], top)
    row(r, "llama.cpp", f"{theirs}; Tandem's distance is {got.mean() / theirs.mean():.2f} of it")
    check(got.mean() <= 0.75 * theirs.mean(), "distance beside llama.cpp's", str(got), str(theirs))


@of_each
def on_lavapipe(r):
    """Mesa's Vulkan for CPUs finds three texts about as far from the makers as the host does."""
    if not glob.glob("/usr/share/vulkan/icd.d/lvp_icd*.json"):
        raise Skip("no lavapipe (Debian: mesa-vulkan-drivers)")
    host, _ = distance(r, {}, slice(3))
    env = {"TANDEM_GPU": "vulkan", "TANDEM_NPU": "host", "TANDEM_PLACEMENT": "gpu"}
    got, _ = distance(r, env, slice(3), hang_ms=120000)
    row(r, "lavapipe", f"mean {got.mean():.5f} at {len(got.values)} positions, host {host.mean():.5f}")
    check(got.mean() <= 1.25 * host.mean(), "distance on lavapipe", str(got), str(host))


@of_each
def perplexity(r):
    """Of a fixed text, in windows of 512 tokens: as transformers finds it, within half a percent."""
    with daemon(r) as d:
        ids = d.tokenize(corpus.tales()[20000:34000], model=r.model)
        first = ids[:1] if r is GEMMA else []
        windows = [first + ids[i:i + 512] for i in range(1, 2560, 512)]
        got = [x for w in windows for x in score(d, r.model, w, 0)["nll"]]
    want = [x for s in maker(r, "score", sequences=windows, top=0) for x in s["nll"]]
    equal(len(got), len(want), "positions")
    ours, theirs = (math.exp(sum(x) / len(x)) for x in (got, want))
    row(r, "perplexity", f"{ours:.3f}, transformers {theirs:.3f} ({100 * (ours / theirs - 1):+.2f}%), "
                         f"{len(got)} tokens")
    check(abs(ours / theirs - 1) < 0.005, "perplexity", ours, theirs)


# ---- answers


def prompts(r, d):
    """(what a job is asked, the ids of its prompt as the makers give them)."""
    out = []
    for q in corpus.QUESTIONS:
        if r is GEMMA:  # it was not tuned for chats and has no template
            out.append(({"prompt": q + "\n"}, d.tokenize(q + "\n", model=r.model)))
        else:
            text = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
                    f"<|im_end|>\n<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n")
            out.append(({"chat": [("user", q)]}, d.tokenize(text, model=r.model, special=True, no_bos=True)))
    return out


def judged(r, asked, got):
    """Of each answer how much likelier than its token the makers' first choice is, at each token: 0 where it is the
    same. Asked for whole answers at once, which gives the same values as token by token."""
    texts = []
    for (_, ids), answer in zip(asked, got):
        if answer.reason == "DONE_STOP" and not (answer.ids and answer.ids[-1] in r.ends):
            answer.ids.append(r.ends[0])  # an end that is chosen is no part of what a client gets
        texts.append(ids + answer.ids)
    said = maker(r, "score", sequences=texts, top=1)
    return [[w["top"][i][0][1] + w["nll"][i] for i in range(len(ids) - 1, len(w["ids"]) - 1)]
            for (_, ids), w in zip(asked, said)]


@of_each
def answers(r):
    """50 questions, greedy: each token is the first choice of transformers, or one that is as likely but for a near
    tie; so are ends. No marker is in a text."""
    with daemon(r) as d:
        asked = prompts(r, d)
    for mode, env, near in (("default", {}, 2 * NEAR), ("f32", EXACT, 0.001)):
        with daemon(r, env) as d:
            jobs = [dict(job, n=40 if r is GEMMA else 80, ignore_end=False) for job, _ in asked]
            got = [x for i in range(0, 50, 10) for x in together(d, jobs[i:i + 10])]
        for (job, _), answer in zip(asked, got):
            check(not re.search(r"<\|im_|<\|endof|<start_of|<end_of|<eos>|<bos>", answer.text), "marker", answer.text)
        gaps = judged(r, asked, got)
        for (job, _), answer, g in zip(asked, got, gaps):
            equal(len(g), len(answer.ids), "tokens judged")
            at = max(range(len(g)), key=g.__getitem__)
            check(g[at] < near, f"{mode}, {job}: token {at} is no near tie", g[at], answer.ids[:at + 1], answer.text)
        every = [x for g in gaps for x in g]
        other = [x for x in every if x > 1e-9]
        row(r, f"answers, {mode}", f"{len(every)} tokens, {len(other)} of them not transformers' first choice, by "
                                   f"{max(other, default=0):.4f} at most; {sum(x.reason == 'DONE_STOP' for x in got)} "
                                   "of 50 ended by themselves, where they should")


# ---- what is promised of any model


def some_jobs():
    cut = random.Random(5)
    return [dict(prompt=corpus.piece(cut, corpus.tales(), 60, 900), n=48, temp=(0.0, 0.8)[i % 2], seed=i)
            for i in range(8)]


def same(got, want, what):
    for i, (a, b) in enumerate(zip(got, want)):
        same_ids(a.ids, b.ids, f"{what}, job {i}")
        check(a.logprobs == b.logprobs, f"{what}, job {i}: log-probabilities differ")


@of_each
def exactness(r):
    """Alone, together, in chunks, by one thread, in each placement, and with both workers killed: the same bits."""
    jobs = some_jobs()
    with daemon(r) as d:
        want = [d.generate(**q) for q in jobs]
        same(together(d, jobs), want, "together")
        same(together(d, [dict(q, chunk=7) for q in jobs]), want, "in chunks of 7")
        for placement in ("split", "npu", "gpu"):
            same(together(d, [dict(q, placement=placement) for q in jobs]), want, placement)
    with Daemon(models=(r.path(),), threads=1, placement="split", hang_ms=60000) as d:
        d.generate(**jobs[0])
        recoveries = 0
        for k in range(3):
            started = [d.start_job(**q) for q in jobs]
            started[0].until((0, 9, 25)[k])
            for victim in (("npu",), ("gpu",), ("npu", "gpu"))[k]:
                d.signal_worker(victim)
            got = [job.wait() for job in started]
            same(got, want, f"workers killed, round {k}")
            recoveries += sum(x.recoveries for x in got)
    check(recoveries > 0, "workers were killed while jobs ran")
    row(r, "exactness", "8 jobs: the same bits together, in chunks, in 3 placements, by 1 thread, through "
                        f"{recoveries} recoveries")


@of_each
def prefix_cache(r):
    """A conversation that grows: what was read is not read again, and the ids stay."""
    text = corpus.tales()
    with daemon(r) as d, daemon(r, args=config("[engine]\nprefix-cache = off\n")) as plain:
        ids, found = d.tokenize(text[:2600], model=r.model)[:600], 0
        for turn in range(4):
            got, want = (x.generate(ids=ids, n=40, temp=0.7, seed=turn) for x in (d, plain))
            same([got], [want], f"turn {turn}")
            if turn:
                check(got.done.get("cached_tokens", 0) >= known - 32, "tokens from the cache", got.done)
            found += got.done.get("cached_tokens", 0)
            known = len(ids) + len(got.ids) - 1
            ids = ids + got.ids + d.tokenize(text[3000 + turn * 200:3100 + turn * 200], model=r.model, no_bos=True)
    row(r, "prefix cache", f"4 turns, {found} tokens from the cache, the same ids")


@of_each
def speculation(r):
    """Guesses by lookup, and by the file as its own draft: the same tokens, and guesses are right."""
    jobs = [dict(q, n=64) for q in some_jobs()[:4]]
    jobs.append(dict(prompt="Copy this list.\n" + "- red apple\n- green pear\n- blue plum\n" * 6, n=64))
    with daemon(r, {"TANDEM_GUESSES": "all"}) as d:
        want = [d.generate(**q, speculation=1) for q in jobs]
        told = []
        for how, more in (("lookup", {"speculation": 2}), ("as its own draft", {"speculation": 3, "draft": r.model})):
            got = [d.generate(**q, **more) for q in jobs]
            same(got, want, how)
            drafted, right = (sum(x.done.get(k, 0) for x in got) for k in ("drafted", "accepted"))
            check(drafted > 0 and right > 0, f"{how}: guesses", drafted, right)
            told.append(f"{how} {right} of {drafted} guesses right")
    row(r, "speculation", "; ".join(told) + "; the same tokens")


@of_each
def schema(r):
    """Answers by a schema are valid, and alone as together."""
    wanted = {"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 30}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "hobbies": {"type": "array", "items": {"enum": ["music", "chess", "sport"]}, "maxItems": 3}},
        "required": ["name", "age", "hobbies"], "additionalProperties": False}
    jobs = []
    for i in range(20):
        ask = f"Describe person number {i + 1} as JSON with name, age and hobbies."
        jobs.append({**({"prompt": ask + "\n"} if r is GEMMA else {"chat": [("user", ask)]}), "n": 160,
                     "temp": (0.0, 0.9)[i % 2], "seed": i, "json_schema": json.dumps(wanted), "ignore_end": False})
    with daemon(r) as d:
        alone = [d.generate(**q) for q in jobs]
        same(together(d, jobs), alone, "together")
    for got in alone:
        equal(got.reason, "DONE_STOP", f"end of {got.text!r}")
        check(differential.valid(wanted, json.loads(got.text), wanted), "valid", got.text)
    row(r, "schema", f"{len(jobs)} answers, all valid, e.g. {json.dumps(json.loads(alone[0].text))}")


WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 40}}, "required": ["city"],
           "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.",
                                           "parameters": WEATHER}}]


@test
def smollm2_135m_tools():
    """A call that is required is one of the tool, with valid arguments; one that is not never breaks an answer."""
    r, named = SMOLLM, 0
    with daemon(r) as d:
        for i, city in enumerate(("Oslo", "Paris", "Tokyo", "Lima", "Rome", "Cairo")):
            for choice in ("required", "auto"):
                got = d.generate(chat=[("user", f"What is the weather in {city}?")], n=120, tools=json.dumps(TOOLS),
                                 tool_choice=choice, ignore_end=False, temp=(0.0, 0.8)[i % 2], seed=i)
                whole = b"".join(c.get("arguments", b"") for c in got.calls).decode()
                check("<tool" not in got.text and "<|" not in got.text, "no marker in a text", got.text)
                if choice == "required":
                    equal([c["name"] for c in got.calls if c.get("name")][:1], ["get_weather"], "the tool called")
                    equal(got.reason, "DONE_STOP", f"end: {whole}")
                    named += json.loads(whole)["city"] == city
    row(r, "tools", f"6 required calls, all valid; {named} name the city that was asked for")


if "--table" in sys.argv:
    sys.exit(figures.main([a for a in sys.argv[1:] if a != "--table"]))
main()
