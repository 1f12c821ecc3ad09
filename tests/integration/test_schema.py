"""Jobs whose text follows a JSON schema, a grammar or a regular expression.

All texts that ended by themselves must satisfy the schema, by a validator that knows nothing of Tandem: the one of
tests/grammar/differential.py, and python3-jsonschema where that is installed. The reference of ids is the job alone in
a daemon with one thread; everything else is compared with it."""
import json
import random
import re
import shutil
import subprocess
import threading
import http.client
import time

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
sys.path.insert(0, os.path.join(HERE, "..", "grammar"))
import differential  # noqa: E402
from http_test import Gateway  # noqa: E402
from tandem_test import *  # noqa: E402,F403

try:
    import jsonschema
except ImportError:
    jsonschema = None

PERSON = {"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 30},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 150},
                                           "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}},
          "required": ["name", "age", "tags"], "additionalProperties": False}
TREE_OF = {"type": "object", "properties": {"v": {"type": "integer", "minimum": -99, "maximum": 99},
                                            "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
           "required": ["v", "next"], "additionalProperties": False}
DATED = {"type": "object", "properties": {"on": {"format": "date", "type": "string"},
                                          "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
                                          "price": {"type": "number", "minimum": 0, "maximum": 1000}},
         "required": ["on", "id", "price"]}
SCHEMAS = [PERSON, TREE_OF, DATED, {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 2}]
N = times(160, 240, 120)
HOT = {"temp": 1.5, "ignore_end": False, "n": N}


def follow(d, schema, **fields):
    return start(d, schema, **fields).wait()


def start(d, schema, constraint="json_schema", **fields):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return Job(d, **request(**{**HOT, **fields}), **{constraint: text})


def check_text(r, schema, what):
    """A text that ended by itself is valid; one that did not says that it is incomplete, or is valid too."""
    if r.reason == "DONE_STOP" or not r.done.get("incomplete"):
        value = json.loads(r.text)
        check(differential.valid(schema, value, schema), f"{what}: not valid", r.text)
        if jsonschema:
            jsonschema.Draft202012Validator(schema).validate(value)
    if r.reason == "DONE_STOP":
        check(not r.done.get("incomplete"), f"{what}: it ended by itself and says that it is incomplete", r.text)
    elif r.done.get("incomplete"):
        equal(r.reason, "DONE_LENGTH", f"{what}: reason")
        try:
            json.loads(r.text)
        except ValueError:
            return False
    return r.reason == "DONE_STOP"


@test
def valid_texts():
    """Random schemas, a random seed each, at temperature 1.5."""
    r = random.Random(int(os.environ.get("TANDEM_TEST_SEED", "31")))
    n, ended, refused = times(60, 600, 20), 0, 0
    with Daemon(placement=None, threads=0) as d:
        for i in range(n):
            schema = r.choice(SCHEMAS) if r.random() < 0.3 else differential.draw_schema(r, 2, [])
            try:
                ended += check_text(follow(d, schema, seed=i), schema, f"schema {json.dumps(schema)}, seed {i}")
            except Refused as refusal:
                check(refusal.code in ("unsupported", "bad-request"), "how it is refused", refusal.code, schema)
                refused += 1
    print(f"FIGURE {n} schemas: {ended} texts ended by themselves, {refused} schemas were refused"
          f"{'' if jsonschema else ' (python3-jsonschema is not there: the own validator alone)'}")
    check(ended > n // 4, "enough texts ended", ended)


@test
def valid_for_ajv():
    """The same against npm's ajv. TANDEM_NPM_AJV names a node_modules folder that has ajv and ajv-formats."""
    modules = os.environ.get("TANDEM_NPM_AJV", "")
    if not shutil.which("node") or not os.path.isdir(modules):
        raise Skip("node or npm's ajv is not there (TANDEM_NPM_AJV names its node_modules)")
    r = random.Random(int(os.environ.get("TANDEM_TEST_SEED", "32")))
    n, drawn, refused, ended, rows = times(60, 2000, 20), 0, 0, 0, []
    with Daemon(placement=None, threads=0) as d:
        while len(rows) < n:
            jobs = []
            for _ in range(min(16, n - len(rows))):
                schema = r.choice(SCHEMAS) if r.random() < 0.2 else differential.draw_schema(r, 3, [])
                jobs.append((schema, start(d, schema, seed=drawn)))
                drawn += 1
            for schema, job in jobs:
                try:
                    got = job.wait()
                except Refused as refusal:
                    check(refusal.code == "unsupported", "how it is refused", refusal.code, str(refusal), schema)
                    refused += 1
                    continue
                ended += got.reason == "DONE_STOP"
                rows.append({"schema": schema, "text": got.text, "ended": got.reason == "DONE_STOP"})
    run = subprocess.run(["node", os.path.join(HERE, "ajv.mjs"), modules], stdout=subprocess.PIPE,
                         input="".join(json.dumps(row) + "\n" for row in rows).encode(), check=True)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    equal(len(answers), ended, "answers of ajv")
    for answer in answers:
        check(answer["valid"], "ajv: not valid", answer, rows[answer["row"]])
    print(f"FIGURE {n} schemas that are held of {drawn} drawn ({refused} refused): {ended} texts ended by themselves, "
          f"all valid for ajv")
    check(ended > n // 3, "enough texts ended", ended)


REFERENCE = {}


def reference():
    if not REFERENCE:
        with Daemon() as d:
            for i, schema in enumerate(SCHEMAS):
                for temp in (0.0, 1.5):
                    REFERENCE[i, temp] = follow(d, schema, temp=temp, seed=i)
                    check_text(REFERENCE[i, temp], schema, f"alone, schema {i}, temperature {temp}")
        check(len({tuple(x.ids) for x in REFERENCE.values()}) > 4, "texts that differ")
    return REFERENCE


def same(r, want, what):
    same_ids(r.ids, want.ids, what)
    check(r.logprobs == want.logprobs, f"{what}: log-probabilities differ")
    equal((r.reason, r.done.get("incomplete", False)), (want.reason, want.done.get("incomplete", False)), what)


@test
def same_ids_everywhere():
    """In company of eight, in chunks, with other placements, with little memory, with all threads."""
    want = reference()
    little = tempfile.NamedTemporaryFile("w", prefix="tandem-", suffix=".conf")
    little.write("[engine]\nkv-memory = 4M\n")
    little.flush()
    for where, daemon in (("split", {}), ("measured", {"placement": None, "threads": 0}),
                          ("little memory", {"threads": 0, "args": ["--config", little.name]})):
        with Daemon(**daemon) as d:
            jobs = [(key, start(d, SCHEMAS[key[0]], temp=key[1], seed=key[0], chunk=i % 3)) for i, key in
                    enumerate(list(want) * times(2, 6, 1))]
            others = [d.start_job(n=100, temp=0.9, seed=i) for i in range(8)]
            for key, job in jobs:
                same(job.wait(), want[key], f"{where}, schema {key[0]}, temperature {key[1]}")
            for job in others:
                equal(len(job.wait().ids), 100, "tokens of a job without a schema")
        if where == "split":
            with Daemon() as d:
                for placement in ("npu", "gpu"):
                    for key in want:
                        same(follow(d, SCHEMAS[key[0]], temp=key[1], seed=key[0], placement=placement), want[key],
                             f"placement {placement}, schema {key}")


@test
def killed_workers():
    """Either worker dies at a random moment: the same ids, and so the same valid text."""
    want = reference()
    rng = random.Random(5)
    with Daemon(hang_ms=STANDING_MS) as d:
        met = 0
        for i in range(times(8, 40, 4)):
            d.wait_ready(60)
            key = rng.choice(list(want))
            n = rng.randrange(1, max(2, len(want[key].ids) // 2))
            with d.standing() as workers:
                jobs = [start(d, SCHEMAS[key[0]], temp=key[1], seed=key[0]) for _ in range(1 + i % 3)]
                run_in_slices(workers, lambda: jobs[0].has(n) or jobs[0].result.reason, "tokens")
                d.signal_worker(rng.choice(("npu", "gpu")))
            for job in jobs:
                r = job.wait()
                met += r.recoveries > 0
                same(r, want[key], f"round {i}, schema {key}")
        check(met > 0, "a job met a kill")


@test
def grammars_and_patterns():
    with Daemon() as d:
        for seed in range(5):
            r = follow(d, "[a-z]{3,8}( [a-z]{2,5}){2}[.!]", constraint="regex", seed=seed)
            check(re.fullmatch(r"[a-z]{3,8}( [a-z]{2,5}){2}[.!]", r.text), "the whole text matches", r.text)
            r = follow(d, 'root ::= "yes" | "no" | ("perhaps" " not"?)', constraint="grammar", seed=seed)
            check(r.text in ("yes", "no", "perhaps", "perhaps not"), "one of the grammar's texts", r.text)
            equal(r.reason, "DONE_STOP", "reason")


@test
def incomplete():
    with Daemon() as d:
        r = follow(d, PERSON, n=5)
        equal((r.reason, r.done.get("incomplete")), ("DONE_LENGTH", True), "cut at five tokens")
        out = d.cli("generate", "-m", "tale", "--regex", "a{2000}", "-n", "4", PROMPT, check_exit=1)
        check(b"incomplete" in out.stderr and b"(-n takes more tokens)" in out.stderr, "the command says so",
              out.stderr)
        check(out.stdout, "the text so far", out.stdout)
        events = d.cli_json("generate", "-m", "tale", "--regex", "a{2000}", "-n", "4", "--json", PROMPT)
        equal(events[-1]["incomplete"], True, "--json says so")
        r = follow(d, "[ab]*", constraint="regex", n=3, seed=1)
        if r.reason == "DONE_LENGTH":
            check(not r.done.get("incomplete"), "a text that satisfies it is not incomplete, wherever it is cut")


def refused(function, code, *words):
    try:
        function()
    except Refused as e:
        equal(e.code, code, "code")
        for word in words:
            check(word in str(e), f"the message says {word}", str(e))
        return
    raise AssertionError("was taken")


@test
def refusals():
    """By name and place; the daemon and others' jobs go on."""
    with Daemon() as d:
        refused(lambda: follow(d, {"properties": {"a": {"pattern": "(?<=x)y"}}}), "unsupported",
                "#/properties/a/pattern", "json-schema")
        refused(lambda: follow(d, '{"type": '), "bad-request", "json-schema: not JSON")
        refused(lambda: follow(d, "a(b", constraint="regex"), "bad-request", "regex")
        refused(lambda: follow(d, "root ::= missing", constraint="grammar"), "bad-request",
                "bad-request: grammar: there is no rule")
        refused(lambda: follow(d, "root ::= (", constraint="grammar"), "bad-request", "bad-request: grammar: line 1: ")
        refused(lambda: follow(d, 'root ::= r0{0,65554} [a-z] "afoobar"{2,}\nr0 ::= [a-zA-Z]{0,63} | [0-9]{4,20}\n',
                               constraint="grammar"), "unsupported", "grammar:", "too much work or memory", "simpler")
        refused(lambda: Job(d, **request(**HOT), regex="a", json_schema="{}").wait(), "bad-request", "not several")
        refused(lambda: follow(d, PERSON, ignore_end=True), "bad-request", "ignore-end")
        refused(lambda: follow(d, " " * 1048577), "bad-request", "json-schema")
        equal(len(d.generate(n=10).ids), 10, "tokens of the next job")
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            f.write('{"not": {"$dynamicRef": "#x"}, "type": 3}')
            f.flush()
            out = d.cli("generate", "-m", "tale", "--schema", f.name, PROMPT, check_exit=1)
            check(b"#/" in out.stderr, "the command names the place", out.stderr)
        d.cli("generate", "-m", "tale", "--schema", "/nonexistent", PROMPT, check_exit=1)


def gaps(job, n):
    """The longest time between two of a job's next n tokens, in seconds that other programs left free. None: it ended
    before."""
    longest = 0.0
    for _ in range(n):
        watch = Stopwatch()
        if not job.until(len(job.result.ids) + 1):
            return None
        longest = max(longest, watch.seconds())
    return longest


@test
def hostile_beside_others():
    """Schemas that were made to explode are refused or served, and another job's tokens come as before."""
    program = os.path.join(BIN, "..", "unit", "test-grammar-hostile")
    count = times(60, 2000, 20)
    lines = subprocess.run([program, str(count), "7", "print"], stdout=subprocess.PIPE, check=True).stdout.splitlines()
    equal(len(lines), count, "schemas")
    # A process that the machine keeps waiting makes a gap too, and not in each of five rounds.
    for _ in range(5):
        alone, beside = gap_beside(lines)
        if beside < 0.25 * SLOW:
            return
    check(False, "another job's tokens are undisturbed", alone, beside)


def gap_beside(lines):
    """Of another job, alone and beside these schemas."""
    count = len(lines)
    with Daemon(placement=None, threads=0) as d:
        other = d.start_job(n=1500, temp=0.9, seed=1)
        alone = gaps(other, 200)
        over, counts = threading.Event(), [0, 0]

        def attack(mine):
            for line in mine:
                try:
                    follow(d, line.decode(), n=12)
                    counts[0] += 1
                except Refused as e:
                    check(e.code in ("unsupported", "bad-request", "quota", "too-long"), "a refusal by name", str(e))
                    counts[1] += 1
            over.set()

        thread = threading.Thread(target=attack, args=(lines,))
        thread.start()
        beside, n = 0.0, 0
        while not over.is_set():
            gap = gaps(other, 50)
            if gap is None:
                other = d.start_job(n=1500, temp=0.9, seed=1)
                other.until(1)
            else:
                beside, n = max(beside, gap), n + 50
        thread.join()
        equal(sum(counts), count, "schemas refused or served")
        check(counts[0] > 0 and counts[1] > 0, "some were served and some refused", counts)
        print(f"FIGURE {counts[0]} hostile schemas served, {counts[1]} refused; longest gap of another job "
              f"{alone * 1000:.0f} ms before, {beside * 1000:.0f} ms of {n} tokens beside them")
        other.wait()
        return alone, beside


@test
def over_http():
    schema = {"name": "person", "schema": PERSON, "strict": True}
    chat = {"model": "tale", "messages": [{"role": "user", "content": "Who?"}], "max_tokens": N, "seed": 3}
    with Daemon() as d, Gateway(d) as g:
        def answer(path, body):
            status, text = post(g, path, body)
            equal(status, 200, f"status of {path}: {text}")
            return json.loads(text)

        def check_person(text, reason):
            if reason not in ("length", "max_tokens", "incomplete"):
                check(differential.valid(PERSON, json.loads(text), PERSON), "valid", text)

        prompt = {"model": "tale", "prompt": PROMPT, "max_tokens": N, "seed": 3}
        a = answer("/v1/completions", {**prompt, "response_format": {"type": "json_schema", "json_schema": schema}})
        check_person(a["choices"][0]["text"], a["choices"][0]["finish_reason"])
        equal(a["choices"][0]["finish_reason"], "stop", "the text is whole")
        a = answer("/v1/completions", {**prompt, "response_format": {"type": "json_object"}, "temperature": 0.2})
        if a["choices"][0]["finish_reason"] == "stop":
            check(isinstance(json.loads(a["choices"][0]["text"]), dict), "an object", a)
        check(a["choices"][0]["text"].startswith("{"), "an object", a)
        a = answer("/v1/completions", {**prompt, "regex": "yes|no"})
        check(a["choices"][0]["text"] in ("yes", "no"), "regex", a)
        a = answer("/v1/completions", {**prompt, "grammar": 'root ::= "left" | "right"'})
        check(a["choices"][0]["text"] in ("left", "right"), "grammar", a)
        a = answer("/api/generate", {"model": "tale", "prompt": PROMPT, "raw": True, "stream": False, "format": PERSON,
                                     "options": {"seed": 1, "num_predict": N}})
        check_person(a["response"], a["done_reason"])
        a = answer("/api/generate", {"model": "tale", "prompt": PROMPT, "raw": True, "stream": False,
                                     "format": "json", "options": {"seed": 1, "num_predict": 30}})
        check(a["response"].startswith("{"), "format json", a)
        for body, param, word in (
                ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 3}}}},
                 None, "#/type"),
                ({"response_format": {"type": "yaml"}}, "response_format", "json_schema"),
                ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
                ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex", "not several")):
            status, text = post(g, "/v1/completions", {**prompt, **body})
            equal(status, 400, f"{body}: {text}")
            check(word in text, f"{body} says {word}", text)
            if param:
                equal(json.loads(text)["error"]["param"], param, "param")
        status, text = post(g, "/api/generate", {"model": "tale", "prompt": PROMPT, "raw": True, "format": 7})
        equal(status, 400, f"format 7: {text}")
        # numbers reach the daemon as they were written: 0.3 is a multiple of 0.1
        a = answer("/v1/completions", {**prompt, "response_format": {"type": "json_schema", "json_schema": {
            "name": "n", "schema": {"enum": [0.3], "type": "number", "multipleOf": 0.1}}}})
        equal(float(a["choices"][0]["text"]), 0.3, "a decimal")
        for path, body in (("/v1/chat/completions", {**chat, "response_format": {"type": "json_schema",
                                                                                "json_schema": schema}}),
                           ("/v1/responses", {"model": "tale", "input": "Who?", "max_output_tokens": N,
                                              "text": {"format": {"type": "json_schema", **schema}}}),
                           ("/v1/messages", {**chat, "output_config": {"format": {"type": "json_schema",
                                                                                  "schema": PERSON}}}),
                           ("/api/chat", {"model": "tale", "messages": chat["messages"], "stream": False,
                                          "format": PERSON})):
            status, text = post(g, path, body)  # tale has no chat template that is known
            check(status == 200 or (status == 400 and "chat template" in text), f"{path}: {status}", text)


def post(g, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", g.port, timeout=120 * SLOW)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text


@test
def masks_are_checked_against_others():
    """One user's hard grammar does not hold up another job."""
    with Daemon(threads=0) as d:
        d.generate(n=4)
        begin = time.monotonic()
        hard = [start(d, "(.*a){200}", constraint="regex", seed=i, n=100) for i in range(4)]
        plain = d.generate(n=100)
        took = time.monotonic() - begin
        equal(len(plain.ids), 100, "tokens of the plain job")
        for job in hard:
            job.wait()
        print(f"FIGURE 100 tokens beside four hard grammars: {took * 1000:.0f} ms")


main()
