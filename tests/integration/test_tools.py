"""Calls of tools through real workers: each family of chat templates that has them, each face, and the tool loops of
the official npm clients. The models have random weights: they call because tool_choice makes them, and whatever they
call with has to be valid."""
import json
import random
import shutil
import subprocess
import tempfile

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
sys.path.insert(0, os.path.join(HERE, "..", "grammar"))
import differential  # noqa: E402
from http_test import PATIENCE, Gateway  # noqa: E402
from tandem_test import *  # noqa: E402,F403

FAMILIES = ("qwen3", "llama3.1", "mistral", "gpt-oss")
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8},
                                            "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}
UNIT = {"type": "object", "properties": {"to": {"enum": ["C", "F"]}}, "required": ["to"], "additionalProperties": False}
SCHEMAS = {"get_weather": WEATHER, "set_unit": UNIT}
TOOLS = [{"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}
         for name, schema in SCHEMAS.items()]
CLIENTS = os.environ.get("TANDEM_NPM_CLIENTS", "")


def model_of(family):
    return make_model("npu", "q8_0", arch="qwen3", chat=family)


def name_of(family):
    return os.path.basename(model_of(family))[:-len(".gguf")]


def daemon(*families):
    return Daemon(models=tuple(model_of(f) for f in families), placement=None)


def assert_calls(calls, what, names=tuple(SCHEMAS)):
    for call in calls:
        function = call["function"]
        check(function["name"] in names, f"{what}: a tool that there is not", call)
        value = json.loads(function["arguments"])
        schema = SCHEMAS[function["name"]]
        check(differential.valid(schema, value, schema), f"{what}: arguments are not valid", call)
        check(len(call["id"]) == 9 and call["id"].isalnum(), f"{what}: an id that templates do not take", call)


def ask(family, choice, **more):
    return {"model": name_of(family), "messages": [{"role": "user", "content": "Weather in Oslo?"}], "tools": TOOLS,
            "tool_choice": choice, "temperature": 1.5, "max_tokens": 200, **more}


def named(name):
    return {"type": "function", "function": {"name": name}}


@test
def families():
    """required, named and none hold from the first token, in whole answers and in streams."""
    n = 0
    with daemon(*FAMILIES) as d, Gateway(d) as g:
        for family in FAMILIES:
            for seed in range(times(2, 25)):
                choice, names = (("required", tuple(SCHEMAS)), (named("set_unit"), ("set_unit",)))[seed % 2]
                what = f"{family}, {choice}, seed {seed}"
                body = ask(family, choice, seed=seed, parallel_tool_calls=False)
                answer = g.post("/v1/chat/completions", body)["choices"][0]
                equal(answer["finish_reason"], "tool_calls", f"{what}: finish_reason")
                equal((answer["message"]["content"], len(answer["message"]["tool_calls"])), (None, 1), what)
                assert_calls(answer["message"]["tool_calls"], what, names)
                n += 1
                calls, end, text = streamed(g, body)
                equal((end, text), ("tool_calls", ""), f"{what}: streamed")
                for call, other in zip(calls, answer["message"]["tool_calls"]):
                    equal(call["function"], other["function"], f"{what}: streamed and whole")
                assert_calls(calls, what, names)
            answer = g.post("/v1/chat/completions", ask(family, "none", max_tokens=24))["choices"][0]
            check("tool_calls" not in answer["message"], f"{family}: none", answer)
    print(f"FIGURE {n} forced calls of {len(FAMILIES)} families: all valid")


def streamed(g, body):
    """The calls, the finish_reason and the text of a stream."""
    calls, end, text = [], None, ""
    for _, data in g.events("/v1/chat/completions", dict(body, stream=True)):
        if data == "[DONE]" or not data["choices"]:
            continue
        choice = data["choices"][0]
        end = choice["finish_reason"] or end
        text += choice["delta"].get("content") or ""
        for delta in choice["delta"].get("tool_calls", []):
            if "id" in delta:
                equal(delta["index"], len(calls), "index of a call")
                calls.append({"id": delta["id"], "function": {"name": delta["function"]["name"], "arguments": ""}})
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    return calls, end, text


@test
def killed():
    """The same ids and the same call after workers were killed."""
    with daemon("qwen3") as d:
        fields = request(model=name_of("qwen3"), chat=[("user", "Weather in Oslo?")], n=200, temp=1.0, seed=8,
                         ignore_end=False)
        fields.update(tools=json.dumps(TOOLS), tool_choice="required")
        want = Job(d, **fields).wait()
        equal(want.reason, "DONE_STOP", "reason")
        job = Job(d, **fields)
        job.until(3)
        d.signal_worker("gpu")
        got = job.wait()
        same_ids(got.ids, want.ids, "after a kill")


def forced(d, family, seed, **more):
    fields = request(model=name_of(family), chat=[("user", "Weather in Oslo?")], n=200, temp=1.0 + 0.5 * (seed % 2),
                     seed=seed, ignore_end=False, **more)
    return Job(d, **fields, tools=json.dumps(TOOLS), tool_choice=("required", "auto", "function:set_unit")[seed % 3],
               one_call=seed % 2 == 0)


CASES = [(family, seed) for family in ("qwen3", "mistral") for seed in range(3)]


def alone():
    want = {}
    with Daemon(models=tuple(model_of(f) for f in ("qwen3", "mistral")), placement=None, threads=1) as d:
        for case in CASES:
            want[case] = forced(d, *case).wait()
    check(len({tuple(r.ids) for r in want.values()}) == len(CASES), "texts that differ")
    return want


def same(r, want, what):
    same_ids(r.ids, want.ids, what)
    equal((r.text, r.reason, r.done.get("incomplete", False)),
          (want.text, want.reason, want.done.get("incomplete", False)), what)


@test
def same_ids_everywhere():
    """Jobs with tools in company of each other and of plain jobs, in chunks, with little memory, and with kills of
    both workers: the ids that each has alone."""
    want = alone()
    rng, met = random.Random(6), 0
    little = tempfile.NamedTemporaryFile("w", prefix="tandem-", suffix=".conf")
    little.write("[engine]\nkv-memory = 4M\n")
    little.flush()
    models = tuple(model_of(f) for f in ("qwen3", "mistral"))
    for where, more in (("split", {"placement": "split"}), ("measured", {"placement": None}),
                        ("little memory", {"placement": None, "args": ["--config", little.name]})):
        with Daemon(models=models, threads=0, hang_ms=STANDING_MS, **more) as d:
            for kills in (False, True):
                i, rounds = 0, times(1, 10) if kills else 1
                # Under split each worker has a part of each job. Where a slice lasted long, the jobs were over.
                while i < rounds or kills and where == "split" and not met and i < 20:
                    d.wait_ready(60)
                    with d.standing() if kills else contextlib.nullcontext() as workers:
                        jobs = [(case, forced(d, *case, chunk=k % 3)) for k, case in enumerate(CASES)]
                        others = [d.start_job(model=name_of("qwen3"), n=60, temp=0.9, seed=k) for k in range(3)]
                        if kills:
                            case, job = rng.choice(jobs)
                            n = rng.randrange(1, max(2, len(want[case].ids) // 2))
                            run_in_slices(workers, lambda: job.has(n) or job.result.reason, "tokens")
                            d.signal_worker(rng.choice(("npu", "gpu")))
                    for case, job in jobs:
                        r = job.wait()
                        met += r.recoveries > 0
                        same(r, want[case], f"{where}, {'round %d with a kill' % i if kills else 'no kill'}, {case}")
                    for job in others:
                        equal(len(job.wait().ids), 60, "tokens of a plain job")
                    i += 1
    check(met > 0, "a job met a kill")
    print(f"FIGURE jobs with tools that met a kill and have the ids of the job alone: {met}")


@test
def explained():
    """A model whose template shows no tools is told of them, and calls them in fences."""
    with Daemon(models=(TALE,), placement=None) as d, Gateway(d) as g:
        answer = g.post("/v1/chat/completions", ask(
            "qwen3", named("set_unit"), model="tale", parallel_tool_calls=False, temperature=0))["choices"][0]
        equal(answer["finish_reason"], "tool_calls", "finish_reason")
        assert_calls(answer["message"]["tool_calls"], "tale", ("set_unit",))
        for choice in ("required", named("get_weather")):
            for seed in range(times(3, 30)):
                body = ask("qwen3", choice, model="tale", temperature=1, seed=seed)
                answer = g.post("/v1/chat/completions", body)["choices"][0]
                equal((answer["finish_reason"], len(answer["message"]["tool_calls"])), ("tool_calls", 1),
                      f"a forced call ends the answer: {choice}, seed {seed}")
            for n in (1, 3, 5, 8):
                answer = g.post("/v1/chat/completions", dict(body, max_tokens=n))["choices"][0]
                equal((answer["finish_reason"], answer["message"]["content"] or ""), ("length", ""),
                      f"one that is cut off behind {n} tokens is no text: {choice}")


@test
def refused():
    with Daemon(models=(TALE, model_of("qwen3")), placement=None) as d, Gateway(d) as g:
        for change, part in (({"tool_choice": named("fly")}, "fly is none of the tools"),
                             ({"tools": [], "tool_choice": "required"}, "no tools"),
                             ({"response_format": {"type": "json_object"}}, "cannot be combined"),
                             ({"tools": [{"type": "web_search"}]}, "tools[0]"),
                             ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {
                                 "type": "object", "properties": {"x": {"pattern": "\\bword"}}}}}]}, "pattern"),
                             ({"messages": [{"role": "user", "content": "Hi", "tool_calls": [
                                 {"function": {"name": "a", "arguments": "{}"}}]}]}, "not the assistant's")):
            sent = json.dumps(dict(ask("qwen3", "auto"), **change))
            status, _, body = g.request("POST", "/v1/chat/completions", sent, {"Content-Type": "application/json"})
            check(status == 400 and part in body.decode(), f"{change}: how it is refused", status, body)
        many = [{"type": "function", "function": {"name": f"t{i}", "parameters": {}}} for i in range(1025)]
        bare = [{"name": f"t{i}", "input_schema": {"type": "object"}} for i in range(1025)]
        flat = [dict(t["function"], type="function") for t in many]
        for path, tools, more in (("/v1/chat/completions", many, {}), ("/api/chat", many, {"stream": False}),
                                  ("/v1/responses", flat, {"input": "Hi"}),
                                  ("/v1/messages", bare, {"max_tokens": 9})):
            said = more if "input" in more else dict(more, messages=[{"role": "user", "content": "Hi"}])
            status, _, body = g.request("POST", path, dict(model="tale", tools=tools, **said))
            check(status == 400 and "1025 tools; at most 1024" in body.decode(), f"{path}: too many", status, body)
        long = "\u00e4" * 38  # 76 bytes
        for path, tool, choice, more in (
                ("/v1/chat/completions", {"type": "function", "function": {"name": long, "parameters": {}}},
                 named(long), {}),
                ("/api/chat", {"type": "function", "function": {"name": long, "parameters": {}}}, None,
                 {"stream": False}),
                ("/v1/responses", {"type": "function", "name": long}, {"type": "function", "name": long},
                 {"input": "Hi"}),
                ("/v1/messages", {"name": long, "input_schema": {"type": "object"}}, {"type": "tool", "name": long},
                 {"max_tokens": 9})):
            said = more if "input" in more else dict(more, messages=[{"role": "user", "content": "Hi"}])
            for more in ({}, {"tool_choice": choice}) if choice else ({},):
                status, _, body = g.request("POST", path, dict(said, model=name_of("qwen3"), tools=[tool], **more))
                text = body.decode()  # not cut in the midst of a character
                want = "none of the tools" if more else "tools: '\u00e4"
                want = "more than 75 bytes" if path == "/v1/responses" else want
                check(status == 400 and want in text, f"{path}: a name of 76 bytes", status, text)
        try:
            Job(d, **request(chat=[("user", "Hi")], n=4, ignore_end=False), tools=json.dumps(many)).wait()
            said = "nothing"
        except Refused as e:
            said = str(e)
        equal(said, "bad-request: tools: 1025 are given; at most 1024 are taken", "through the socket")
        run = d.cli("generate", "--tools", "/nonexistent", "Hi")
        check(run.returncode != 0, "a file that there is not")


@test
def command():
    with daemon("qwen3") as d:
        path = os.path.join(d.dir, "tools.json")
        with open(path, "w") as f:
            json.dump(TOOLS, f)
        said = []
        for words in (("generate", "--chat", "--model", name_of("qwen3")), ("run", name_of("qwen3"))):
            run = d.cli(*words, "--tools", path, "--tool-choice", "function:set_unit", "--one-call", "-n", "400",
                        "--seed", "5", "Celsius, please.")
            check(run.returncode == 0, "exit status", run.returncode, run.stderr)
            call = json.loads(run.stdout)
            equal(call["name"], "set_unit", "name")
            check(json.loads(call["arguments"])["to"] in ("C", "F"), "arguments", call)
            said.append((call["name"], call["arguments"]))
        equal(said[0], said[1], "run says what generate says")


@test
def agent():
    """The example: it has to look, and ends with an answer or a text that was cut off."""
    with daemon("qwen3") as d, Gateway(d) as g:
        folder = os.path.join(d.dir, "folder")
        os.mkdir(folder)
        with open(os.path.join(folder, "beds.txt"), "w") as f:
            f.write("twelve beds\n")
        run = subprocess.run([sys.executable, os.path.join(TREE, "examples", "agent.py"), name_of("qwen3"), folder,
                              "How many beds?", f"http://127.0.0.1:{g.port}"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, timeout=PATIENCE * 4)
        check(run.returncode == 0 and run.stdout, "the agent", run.returncode, run.stdout, run.stderr)
        name, arguments = run.stderr.splitlines()[0].split(" ", 1)
        check(name in ("list_files", "read_file"), "its first call", run.stderr)
        check(json.loads(arguments).get("name", "beds.txt") == "beds.txt", "a name of the folder", run.stderr)


def loop(g, client):
    if not shutil.which("node") or not os.path.isdir(CLIENTS):
        raise Skip("node or the npm clients are not there (TANDEM_NPM_CLIENTS names their node_modules)")
    run = subprocess.run(["node", os.path.join(HERE, "tool_loops.mjs"), f"http://127.0.0.1:{g.port}",
                          name_of("mistral" if client == "openai" else "qwen3"), CLIENTS, client],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE * 4)
    check(run.returncode == 0, f"{client}: the loop failed", run.stderr[-2000:])
    got = json.loads(run.stdout)
    for call in got["calls"]:
        check(differential.valid(WEATHER, call["args"], WEATHER), f"{client}: arguments are not valid", call)
    return got


@test
def npm_clients():
    with daemon("qwen3", "mistral") as d, Gateway(d) as g:
        got = loop(g, "openai")
        equal((got["ends"], len(got["calls"])), (["tool_calls"] * 2, 2), "openai")
        got = loop(g, "anthropic")
        equal((got["ends"], len(got["calls"])), (["tool_use"] * 2, 2), "anthropic")
        got = loop(g, "ai")
        check(got["ends"][0] == "tool-calls" and len(got["calls"]) >= 1, "ai", got)
        equal(len(loop(g, "ollama")["ends"]), 2, "ollama")


main()
