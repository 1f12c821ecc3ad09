"""A job that carries tokens which were drawn already goes on as if it had drawn them itself, wherever the cut is; and
tokens that no such job can have drawn are refused."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

TOOL = json.dumps([{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}}}])
THREE_WORDS = json.dumps({"type": "array", "items": {"enum": ["rain", "wind", 7]}, "minItems": 3, "maxItems": 4})
HI = [("user", "Tell me of a king")]
AT_ONCE = 16  # jobs that run beside each other
TALES = {
    "greedy": {"n": 24},
    "sampled": {"temp": 1.1, "seed": 3, "top_k": 50, "top_p": 0.95, "n": 24},
    "penalties": {"temp": 1.0, "seed": 4, "repeat_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.4,
                  "logit_bias": "300:2.5,400:-100", "n": 40},
    "guesses": {"speculation": 2, "n": 40},
    "schema": {"json_schema": THREE_WORDS, "ignore_end": False, "temp": 1.0, "seed": 5, "n": 60},
    "cut schema": {"json_schema": THREE_WORDS, "ignore_end": False, "temp": 1.0, "seed": 5, "n": 7},
    "grammar": {"grammar": 'root ::= ("a" | "é" | "字")+ "."', "ignore_end": False, "temp": 1.3, "seed": 6,
                "n": 20},
    "regex": {"regex": "[a-z]{4,9} [0-9]{2}", "ignore_end": False, "temp": 1.0, "seed": 7, "n": 40},
    "log-probabilities": {"temp": 0.8, "seed": 8, "top_logprobs": 3, "n": 12},
}
THOUGHTS = {
    "half characters": {"temp": 1.8, "seed": 9, "n": 60},
    "thoughts": {"chat": HI, "thinking": 2, "temp": 1.2, "seed": 10, "n": 40},
    "a budget": {"chat": HI, "thinking": 2, "thinking_budget": 6, "temp": 1.2, "seed": 11, "n": 40},
    "thoughts, then a schema": {"chat": HI, "thinking": 2, "thinking_budget": 5, "json_schema": THREE_WORDS,
                                "temp": 1.2, "seed": 12, "n": 60, "ignore_end": False},
    "a call": {"chat": HI, "tools": TOOL, "tool_choice": "required", "temp": 1.2, "seed": 13, "n": 60,
               "ignore_end": False},
    "tools and a budget": {"chat": HI, "tools": TOOL, "thinking": 2, "thinking_budget": 4, "temp": 1.2, "seed": 14,
                           "n": 40, "ignore_end": False},
}


def drawn(ids):
    return ",".join(map(str, ids))


def told(r, cut):
    """What comes behind the first cut tokens, which r may lack."""
    last = len(r.pieces) - (len(r.ids) - cut) - 1
    calls = [{k: v for k, v in c.items() if k != "id"} for c in r.calls_at[-(len(r.ids) - cut):] for c in c] \
        if len(r.ids) > cut else []
    ends = {k: r.done.get(k) for k in ("reason", "prompt_tokens", "generated_tokens", "incomplete", "thinking_tokens",
                                       "degraded", "numerics_id")}
    if cut == len(r.ids):  # it may have had nothing to compute
        ends.pop("numerics_id")
    return {"ids": r.ids[cut:], "log-probabilities": r.logprobs[len(r.logprobs) - (len(r.ids) - cut):],
            "texts": r.pieces[last:], "thoughts": r.thoughts[len(r.thoughts) - (len(r.ids) - cut):], "calls": calls,
            "end": ends}


def compare(d, name, fields):
    """Begins at all positions, or at every third, some at a time. Returns the undisturbed result."""
    want = d.generate(**fields)
    check(len(want.ids) > 2, f"{name}: it has tokens", want.ids, want.done)
    cuts = [i for i in range(1, len(want.ids) + 1) if FULL or i % 3 == len(name) % 3 or i >= len(want.ids) - 1]
    for at in range(0, len(cuts), AT_ONCE):
        jobs = [(cut, d.start_job(drawn=drawn(want.ids[:cut]), drawn_numerics=want.numerics, **fields))
                for cut in cuts[at:at + AT_ONCE]]
        for cut, job in jobs:
            r, tells = job.wait(), told(want, cut)
            for what, got in told(r, cut).items():
                equal(got, tells[what], f"{name}, from token {cut} of {len(want.ids)}: {what}")
    return want


@test
def every_position():
    with Daemon() as d:
        results = {name: compare(d, name, fields) for name, fields in TALES.items()}
        check(results["cut schema"].done.get("incomplete"), "a schema that was cut off", results["cut schema"].done)
        # The stop text begins in one token and ends in a later one; the last token of all is what ends the job.
        text = results["greedy"].text
        stop = text[len(text) // 2 - 6:len(text) // 2 + 6]
        r = compare(d, "stop", {"n": 24, "stop": [stop, "nothing says this"]})
        check(r.reason == "DONE_STOP" and text.startswith(r.text) and stop not in r.text, "the stop text", r.text)
        before = d.status()["tokens_generated"]
        d.generate(drawn=drawn(results["greedy"].ids[:20]), n=24)
        equal(d.status()["tokens_generated"] - before, 4, "tokens that were drawn")


@test
def chats():
    model = make_model("npu", "q8_0", arch="qwen3", chat="qwen3-thinking")
    with Daemon(models=(model,)) as d:
        results = {name: compare(d, name, fields) for name, fields in THOUGHTS.items()}
        half = results["half characters"]
        check(b"" in half.pieces[:-1] and any(len(p) > 1 and p[0] > 0xc0 for p in half.pieces), "half characters",
              half.pieces)
        check(any(results["thoughts"].thoughts), "thoughts", results["thoughts"].thoughts)
        check(results["a call"].calls, "a call")
        # A longer thought than the budget is none of such a job's, wherever it goes past it.
        free = results["thoughts"].ids
        check(results["thoughts"].done.get("thinking_tokens", 0) > 12, "a long thought", results["thoughts"].done)
        for budget, n in ((6, 20), (6, 40), (1, 3)):
            for more in ({}, {"json_schema": THREE_WORDS}, {"tools": TOOL}):
                refuse(d, f"past a budget of {budget}", "the thought ends there", drawn=drawn(free[:n]), chat=HI,
                       thinking=2, thinking_budget=budget, n=40, ignore_end=False, **more)


@test
def progress():
    """What is read is what the progress says: prompt and drawn tokens."""
    with Daemon(models=(slow_model(),)) as d:
        job = d.start_job(drawn=drawn([300] * 600), n=601)
        told = []
        while True:
            kind, m = job.wire.receive(job.id)
            if kind == "progress" and m.get("state") == "JOB_PREFILL":
                told.append((m.get("done", 0), m["total"]))
            if kind == "done":
                break
        job.wire.close()
        equal({total for _, total in told}, {600 + m["prompt_tokens"]}, "what there is to read")
        check(any(m["prompt_tokens"] < done < 600 for done, _ in told), "it says how far it is", told)


@test
def command():
    """tandem generate goes on behind the ids of a file."""
    with Daemon() as d:
        args = ["generate", "--json", "--raw", "-n", "24", "--temp", "1.1", "--seed", "3", PROMPT]
        want = d.cli_json(*args)
        ids, numerics = want[-1]["ids"], want[-1]["numerics_id"]
        for spaces in ("", " \n"):
            file = kept_file(f",{spaces}".join(map(str, ids[:9])) + spaces, ".ids")
            got = d.cli_json(*args, "--drawn", file, "--drawn-numerics", numerics)
            equal(got[:-1], want[9:-1], "tokens that it tells")
            equal((got[-1]["ids"], got[-1]["generated_tokens"]), (ids, 24), "and all of them")
        for content, wants in (("1,x", "is no token id"), ("1,2,", "is no token id"),
                               (drawn(ids + [5]), "may have 24")):
            r = d.cli(*args, "--drawn", kept_file(content, ".ids"), check_exit=1)
            check(wants in r.stderr.decode(), wants, r.stderr)


@test
def another_daemon():
    """The ids of one daemon go on in another one, and in one that computes otherwise they do not."""
    fields = {"temp": 1.1, "seed": 3, "n": 40}
    with Daemon() as a:
        want = a.generate(**fields)
    with Daemon() as b:
        r = b.generate(drawn=drawn(want.ids[:25]), drawn_numerics=want.numerics, **fields)
        equal((r.ids, r.done["numerics_id"]), (want.ids, want.numerics), "ids")
        check(not r.done.get("degraded"), "not degraded")
    with Daemon(args=config("[engine]\nkv-type = f32\n")) as c:
        for numerics in (want.numerics, "another"):
            refuse(c, "another arithmetic", f"drawn-numerics: '{numerics}' drew", "unsupported",
                   drawn=drawn(want.ids[:25]), drawn_numerics=numerics, **fields)
            r = c.generate(drawn=drawn(want.ids[:25]), drawn_numerics=numerics, may_degrade=True, **fields)
            check(r.done.get("degraded") and len(r.ids) == 40, "degraded", r.done)
        r = c.generate(drawn=drawn(want.ids[:25]), **fields)  # nobody said what drew them
        check(not r.done.get("degraded") and len(r.ids) == 40, "unsaid", r.done)


@test
def all_that_the_cache_holds():
    """A limit that nobody asked for is cut to the size of the cache, and the last token before it was drawn already."""
    with Daemon(args=config("[engine]\nkv-memory = 1M\n")) as d:
        want = d.generate(n=0, temp=1.0, seed=3)
        check(want.reason == "DONE_LENGTH" and len(want.ids) < 4000, "it ends where the cache does", want.done)
        for cut in (len(want.ids), len(want.ids) - 1):
            r = d.generate(n=0, temp=1.0, seed=3, drawn=drawn(want.ids[:cut]))
            equal((r.reason, r.ids), (want.reason, want.ids), f"from token {cut} of {len(want.ids)}")
        refuse(d, "more than the cache holds", "kv-memory", "no-memory", n=0, drawn=drawn(want.ids + [300]))


def refuse(d, what, wants, code="bad-request", **fields):
    accepted = False
    try:
        r = d.start_job(**{"n": 24, **fields}).wait()
        got, accepted = r.error or {"code": r.reason, "message": r.text}, True
    except Refused as e:
        got = {"code": e.code, "message": e.message}
    check(not accepted or code != "bad-request", f"{what}: refused before it was accepted", got)
    check(got.get("code") == code and wants in got.get("message", ""), f"{what}: {code}, '{wants}'", got)


@test
def hostile():
    with Daemon() as d:
        good = d.generate(n=24).ids
        end = [1]
        for text in (",", "1,", "1,,2", "x", "1;2", "-1", "1,2,99999999999", "4294967296", "1 2", "1,0x2"):
            refuse(d, f"the list '{text}'", "is no token id", drawn=text)
        refuse(d, "a long list", "bytes is not", drawn="1," * (5 << 20 >> 1) + "1")
        refuse(d, "no vocabulary has it", "is not in the vocabulary", drawn="5,4294967295")
        refuse(d, "more than max-tokens", "25 tokens, and the job may have 24", drawn=drawn(good + [5]))
        refuse(d, "more than the context", "what the context leaves", drawn=drawn([5] * 200000), n=0)
        refuse(d, "no tokens", "there are no drawn tokens", drawn_numerics="x")
        equal(d.generate(n=24, may_degrade=True).ids, good, "what is for later daemons changes nothing")
        for at in (0, 3, 10):
            refuse(d, "an end token", "ends the text", drawn=drawn(good[:at] + end + good[at:10]), ignore_end=False)
        text = d.generate(n=24).text
        refuse(d, "a stop text within", "the text ends at token", drawn=drawn(good), stop=[text[10:20]])
        for at, ids in (("first", good[:1]), ("in the midst", good[:9])):
            refuse(d, f"no JSON, {at}", "what the", drawn=drawn(ids), json_schema=THREE_WORDS, ignore_end=False)
        whole = d.generate(regex="ab", ignore_end=False, n=24).ids
        for extra in (whole[-1:], good[:1], whole):
            refuse(d, "behind a whole text", "what the", drawn=drawn(whole + extra), regex="ab", ignore_end=False)
        # They wait as a prompt does, and go with their job.
        slow = [d.start_job(drawn=drawn(good[:10] * 300), n=4000, seed=i) for i in range(8)]
        for job in slow:
            job.vanish()
        equal(d.generate(n=24).ids, good, "afterwards")


if __name__ == "__main__":
    main()
