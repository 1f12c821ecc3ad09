"""Any combination of thinking, schema, tools, stop texts, streams, guesses and a killed worker through the HTTP doors:
valid, and what the job alone says on the client socket, token by token where the door shows tokens."""
import json
import random
import re

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "grammar"))
import differential  # noqa: E402
from http_test import *  # noqa: E402,F403
from tandem_test import *  # noqa: E402,F403

AUTO, OFF, ON, LOW, MEDIUM, HIGH = range(6)
EFFORTS = {OFF: "none", LOW: "low", MEDIUM: "medium", HIGH: "high"}
CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"
DOORS = (CHAT, RESPONSES, MESSAGES, OLLAMA)
CHATS = ("qwen3", "qwen3-thinking", "gpt-oss", "mistral")
HI = "Weather in Oslo?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"],
          "additionalProperties": False}
DAY = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"],
       "additionalProperties": False}
TOOLS = {"look": SCHEMA, "day": DAY}
LIST = [{"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}
        for name, schema in TOOLS.items()]
TOGETHER = 12  # requests at a time


def model_of(chat):
    return make_model("npu", "q8_0", arch="qwen3", chat=chat)


def daemon(**more):
    return Daemon(models=tuple(model_of(c) for c in CHATS), placement=None, **more)


def combination(rng, i):
    """A request that its door can say and its model can do. Doors and forms take turns."""
    chat, door = rng.choice(CHATS), DOORS[i % len(DOORS)]
    levels = {"qwen3": (AUTO, OFF, ON, LOW), "qwen3-thinking": (AUTO, ON), "gpt-oss": (AUTO, LOW, HIGH)}
    c = {"chat": chat, "door": door, "stream": rng.random() < 0.5, "n": rng.choice((5, 30, 60)),
         "temp": rng.choice((0.0, 0.7, 1.0)), "seed": rng.randrange(1, 1000), "budget": 0, "stop": None, "form": None,
         "choice": "auto", "speculation": rng.choice(("auto", "auto", "off"))}
    thinking = rng.choice(levels.get(chat, (AUTO,)))
    if thinking == ON and door in (CHAT, RESPONSES):
        thinking = AUTO  # they have levels alone
    if door == MESSAGES and thinking in (LOW, HIGH):
        thinking = AUTO
    if thinking == ON and door == MESSAGES or door == CHAT and thinking != OFF and chat != "mistral":
        c["budget"] = rng.choice((1, 2, 3, 4) if c["n"] == 5 else (1, 2, 7, 20))
    if door != RESPONSES and rng.randrange(3) == 0:
        c["stop"] = rng.choice(("a", " b", "e"))
    form = ("schema", "tools", None, "regex")[i // len(DOORS) % 4]
    c["form"] = form if form != "regex" or door == CHAT else None
    if c["form"] == "tools":
        c["n"] = rng.choice((30, 120))
    if c["form"] == "tools" and door != OLLAMA:
        c["choice"] = rng.choice(("auto", "none", "required", "day"))
    return dict(c, thinking=thinking)


def job_of(c):
    """The fields of the job that it is."""
    more = {}
    if c["stop"]:
        more["stop"] = [c["stop"]]
    if c["budget"]:
        more["thinking_budget"] = c["budget"]
    if c["form"] == "schema":
        more["json_schema"] = json.dumps(SCHEMA)
    elif c["form"] == "regex":
        more["regex"] = "[a-f]{4,9}"
    elif c["form"] == "tools":
        more["tools"] = json.dumps(LIST)
        more["tool_choice"] = "function:day" if c["choice"] == "day" else c["choice"]
    return request(model=os.path.basename(model_of(c["chat"]))[:-len(".gguf")], chat=[("user", HI)], n=c["n"],
                   temp=c["temp"], seed=c["seed"], ignore_end=False, thinking=c["thinking"], speculation=1, **more)


def body_of(c):
    """The same, as its door has it."""
    door, thinking, choice = c["door"], c["thinking"], c["choice"]
    hi = [{"role": "user", "content": HI}]
    body = {"model": os.path.basename(model_of(c["chat"]))[:-len(".gguf")], "stream": c["stream"]}
    sampling = {"temperature": c["temp"], "seed": c["seed"], "speculation": c["speculation"]}
    if door == CHAT:
        body.update(sampling, messages=hi, max_tokens=c["n"], logprobs=True)
        body.update({"reasoning_effort": EFFORTS[thinking]} if thinking in EFFORTS else {})
        body.update({"reasoning_budget": c["budget"]} if c["budget"] else {})
        body.update({"stop": c["stop"]} if c["stop"] else {})
        body.update({"stream_options": {"include_usage": True}} if c["stream"] else {})
        if c["form"] == "schema":
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        elif c["form"] == "regex":
            body["regex"] = "[a-f]{4,9}"
        elif c["form"] == "tools":
            named = {"type": "function", "function": {"name": "day"}}
            body.update(tools=LIST, tool_choice=named if choice == "day" else choice)
    elif door == RESPONSES:
        body.update(sampling, input=hi, max_output_tokens=c["n"])
        body.update({"reasoning": {"effort": EFFORTS[thinking]}} if thinking in EFFORTS else {})
        if c["form"] == "schema":
            body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
        elif c["form"] == "tools":
            named = {"type": "function", "name": "day"}
            body["tools"] = [dict(t["function"], type="function") for t in LIST]
            body["tool_choice"] = named if choice == "day" else choice
    elif door == MESSAGES:
        body.update(sampling, messages=hi, max_tokens=c["n"])
        kind = {OFF: {"type": "disabled"}, ON: {"type": "enabled", "budget_tokens": c["budget"]}}
        body["thinking"] = kind.get(thinking, {"type": "adaptive"})
        body.update({"stop_sequences": [c["stop"]]} if c["stop"] else {})
        if c["form"] == "schema":
            body["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
        elif c["form"] == "tools":
            body["tools"] = [{"name": name, "description": "A tool.", "input_schema": s} for name, s in TOOLS.items()]
            kinds = {"required": {"type": "any"}, "day": {"type": "tool", "name": "day"}}
            body["tool_choice"] = kinds.get(choice, {"type": choice})
    else:
        body.update(messages=hi, options=dict(sampling, num_predict=c["n"], top_k=0, top_p=1, repeat_penalty=1))
        body.update({"think": EFFORTS.get(thinking, True) if thinking != OFF else False} if thinking != AUTO else {})
        body["options"].update({"stop": [c["stop"]]} if c["stop"] else {})
        body.update({"format": SCHEMA} if c["form"] == "schema" else {})
        body.update({"tools": LIST} if c["form"] == "tools" else {})
    return body


# ---- what was said: text, thought, calls as [name, arguments], tokens, whether it was cut off


def said(text, thought, calls, n, is_cut, **more):
    return {"text": text or "", "thought": thought or "", "calls": calls, "tokens": n, "cut": is_cut, **more}


def said_by_job(r):
    calls = []
    for delta in r.calls:
        if delta.get("name"):
            calls.append([delta["name"], ""])
        calls[-1][1] += delta.get("arguments", b"").decode()
    return said(r.text, b"".join(r.thoughts).decode(), calls, r.done.get("generated_tokens", 0),
                r.reason == "DONE_LENGTH", logprobs=r.logprobs)


def chat_whole(answer):
    choice = answer["choices"][0]
    m = choice["message"]
    return said(m["content"], m.get("reasoning_content"),
                [[x["function"]["name"], x["function"]["arguments"]] for x in m.get("tool_calls", [])],
                answer["usage"]["completion_tokens"], choice["finish_reason"] == "length",
                logprobs=[e["logprob"] for e in (choice["logprobs"] or {}).get("content", [])])


def chat_streamed(events):
    text, thought, calls, logprobs, end, n = "", "", [], [], None, 0
    for _, e in events:
        if not isinstance(e, dict):
            continue
        n = e["usage"]["completion_tokens"] if e.get("usage") else n
        for choice in e["choices"]:
            delta, end = choice["delta"], choice["finish_reason"] or end
            text += delta.get("content") or ""
            thought += delta.get("reasoning_content") or ""
            logprobs += [x["logprob"] for x in (choice.get("logprobs") or {}).get("content", [])]
            for call in delta.get("tool_calls", []):
                if "name" in call["function"]:
                    equal(call["index"], len(calls), "index of a call")
                    calls.append([call["function"]["name"], ""])
                calls[call["index"]][1] += call["function"]["arguments"]
    return said(text, thought, calls, n, end == "length", logprobs=logprobs)


def responses_whole(answer):
    def texts(kind):
        return "".join(p["text"] for item in answer["output"] if item["type"] == kind for p in item["content"])
    return said(texts("message"), texts("reasoning"),
                [[i["name"], i["arguments"]] for i in answer["output"] if i["type"] == "function_call"],
                answer["usage"]["output_tokens"], answer["status"] == "incomplete")


def responses_streamed(events):
    end = responses_whole(events[-1][1]["response"])
    deltas = {kind: "".join(e["delta"] for _, e in events if e["type"] == f"response.{kind}_text.delta")
              for kind in ("output", "reasoning")}
    calls = "".join(e["delta"] for _, e in events if e["type"] == "response.function_call_arguments.delta")
    equal((deltas["output"], deltas["reasoning"], calls),
          (end["text"], end["thought"], "".join(arguments for _, arguments in end["calls"])), "deltas and the end")
    return end


def messages_whole(answer):
    blocks = {kind: [b for b in answer["content"] if b["type"] == kind] for kind in ("text", "thinking", "tool_use")}
    return said("".join(b["text"] for b in blocks["text"]), "".join(b["thinking"] for b in blocks["thinking"]),
                [[b["name"], b["input"]] for b in blocks["tool_use"]], answer["usage"]["output_tokens"],
                answer["stop_reason"] == "max_tokens")


def messages_streamed(events):
    text, thought, calls, n, end = "", "", [], 0, None
    for _, e in events:
        delta = e.get("delta", {})
        if e["type"] == "content_block_start" and e["content_block"]["type"] == "tool_use":
            calls.append([e["content_block"]["name"], ""])
        text += delta.get("text", "")
        thought += delta.get("thinking", "")
        if "partial_json" in delta:
            calls[-1][1] += delta["partial_json"]
        if e["type"] == "message_delta":
            n, end = e["usage"]["output_tokens"], delta["stop_reason"]
    return said(text, thought, calls, n, end == "max_tokens")


def ollama_told(lines):
    messages = [e["message"] for e in lines]
    return said("".join(m["content"] for m in messages), "".join(m.get("thinking", "") for m in messages),
                [[x["function"]["name"], x["function"]["arguments"]] for m in messages
                 for x in m.get("tool_calls", [])], lines[-1]["eval_count"], lines[-1]["done_reason"] == "length")


def said_at_door(g, c):
    body, door = body_of(c), c["door"]
    if door == OLLAMA:
        return ollama_told(g.lines(door, body) if c["stream"] else [g.post(door, body)])
    whole, streamed = {CHAT: (chat_whole, chat_streamed), RESPONSES: (responses_whole, responses_streamed),
                       MESSAGES: (messages_whole, messages_streamed)}[door]
    return streamed(g.events(door, body)) if c["stream"] else whole(g.post(door, body))


def read(arguments):
    """A call's arguments as a value, or None where it was cut off."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return None


def valid_check(c, r):
    """What binds the answer, where it ended by itself."""
    for name, arguments in r["calls"]:
        check(name in TOOLS and c["form"] == "tools" and c["choice"] != "none", f"{c}: a call", r)
        check(c["choice"] != "day" or name == "day", f"{c}: the tool that was named", r)
        value = read(arguments)
        check(r["cut"] or c["stop"] or value is not None, f"{c}: whole arguments", r)
        check(value is None or differential.valid(TOOLS[name], value, TOOLS[name]), f"{c}: valid arguments", r)
    if r["cut"] or c["stop"]:
        return
    if c["form"] == "schema":
        check(differential.valid(SCHEMA, json.loads(r["text"]), SCHEMA), f"{c}: valid by the schema", r)
    if c["form"] == "regex":
        check(re.fullmatch("[a-f]{4,9}", r["text"]), f"{c}: the regular expression", r)
    check(c["choice"] not in ("required", "day") or r["calls"], f"{c}: a call", r)


def same_check(c, got, want):
    door = c["door"]
    if door in (MESSAGES, OLLAMA):
        hides = door == MESSAGES and c["thinking"] == OFF or door == OLLAMA and c["thinking"] == OFF
        want = dict(want, thought="" if hides else want["thought"])
    for key in ("text", "thought", "tokens", "cut"):
        equal(got[key], want[key], f"{c}: {key}")
    if "logprobs" in got:  # as good as the ids
        equal(len(got["logprobs"]), want["tokens"], f"{c}: tokens that are shown")
        check(all(abs(a - b) < 1e-6 for a, b in zip(got["logprobs"], want["logprobs"])), f"{c}: log-probabilities",
              got["logprobs"], want["logprobs"])
    values = [[name, read(arguments)] for name, arguments in want["calls"]]
    is_text = door == CHAT or door == RESPONSES or c["stream"] and door == MESSAGES
    if is_text:
        equal(got["calls"], want["calls"], f"{c}: calls")
    else:  # one that was cut off is left out
        equal(got["calls"], [x for x in values if x[1] is not None], f"{c}: calls")


def group_ask(d, g, cases, rng):
    """What the doors say to these requests at once, while a worker is killed; how many jobs met the kill."""
    got, workers = [None] * len(cases), d.worker_pids()

    def ask(k):
        got[k] = said_at_door(g, cases[k])

    def kill():
        def count(field):
            """Of jobs at work; True: none is left."""
            return all(got) or sum(j.get(field, 0) > 0 for j in d.jobs())
        with d.sliced(lambda: count("generated_tokens"), "jobs that answer", workers):
            d.signal_worker(rng.choice(("npu", "gpu")))
        met = wait_for(lambda: count("recoveries"), "jobs that go on", 60)
        return 0 if met is True else met
    met = parallel([kill] + [lambda k=k: ask(k) for k in range(len(cases))])[0]
    d.wait_ready(60)
    return got, met


@test
def combinations():
    rng, met, tally = random.Random(54), 0, {}
    cases = [combination(rng, i) for i in range(times(24, 500))]
    with daemon() as d:
        jobs = [Job(d, **job_of(c)).wait() for c in cases]
    check(not any(r.error for r in jobs), "jobs that end", [r.error for r in jobs if r.error])
    guesses = kept_file("\n4294967295\n".join(" ".join(map(str, r.ids)) for r in jobs), ".ids")
    with daemon(env={"TANDEM_GUESSES": guesses}, hang_ms=STANDING_MS) as d, Gateway(d) as g:
        d.wait_ready()
        starts = list(range(0, len(cases), TOGETHER))
        for i in starts:
            some = cases[i:i + TOGETHER]
            got, n = group_ask(d, g, some, rng)
            met += n
            if not met and len(starts) < 40:  # the answers were over before a kill was seen: these once more
                starts.append(i)
            for c, r, job in zip(some, got, jobs[i:]):
                valid_check(c, r)
                same_check(c, r, said_by_job(job))
                for what in (c["door"], c["form"], "streams" if c["stream"] else "whole",
                             "thoughts" if r["thought"] else "", "calls" if r["calls"] else ""):
                    tally[what] = tally.get(what, 0) + 1
    check(met > 0 and all(tally.get(x) for x in DOORS + ("thoughts", "calls", "schema", "tools", "streams", "whole")),
          "some of each kind", met, tally)
    print(f"FIGURE {len(cases)} combinations through the doors, {tally['thoughts']} with thoughts, {tally['calls']} "
          f"with calls, {met} met a kill: what each job says alone")


@test
def one_line():
    """A model may write its arguments on several lines; Ollama's stream has a line for each object."""
    call = {"call": 0, "id": "abcdefghi", "name": "look", "arguments": b'{\n "city":\r\n\t"a b"\n}'}
    with FakeDaemon([{"text": b"", "calls": [call]}]) as fake, Gateway(fake) as g:
        body = {"model": "tale", "messages": [{"role": "user", "content": HI}], "tools": LIST}
        for stream in (True, False):
            _, _, data = g.request("POST", OLLAMA, dict(body, stream=stream))
            told = ollama_told([json.loads(line) for line in data.decode().split("\n") if line])
            equal(told["calls"], [["look", {"city": "a b"}]], f"stream: {stream}")


main()
