"""Schemas and tools over D-Bus: texts that follow a schema, a grammar or a pattern, calls as events, and messages with
calls and their answers. The same jobs over the socket are the reference."""
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
sys.path.insert(0, os.path.join(HERE, "..", "grammar"))
import differential  # noqa: E402
from tandem_test import *  # noqa: E402,F403
from tandem_bus import *  # noqa: E402,F403

PERSON = {"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 30},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"], "additionalProperties": False}
SCHEMAS = {"get_weather": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8},
                                                            "days": {"type": "integer", "minimum": 1, "maximum": 9}},
                           "required": ["city", "days"], "additionalProperties": False},
           "set_unit": {"type": "object", "properties": {"to": {"enum": ["C", "F"]}}, "required": ["to"],
                        "additionalProperties": False}}
TOOLS = json.dumps([{"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}
                    for name, schema in SCHEMAS.items()])


def model_of(family):
    return make_model("npu", "q8_0", arch="qwen3", chat=family)


def name_of(family):
    return os.path.basename(model_of(family))[:-len(".gguf")]


def chat(c, messages, **options):
    """The events of a chat."""
    messages = c.dbus.Array(messages, signature="(ss)")
    path, fd = c.call(ROOT, MANAGER, "Chat", "a(ss)a{sv}", messages, c.options({"output": "events", **options}))
    events = [json.loads(line) for line in read_all(fd.take()).decode().splitlines()]
    equal([e["seq"] for e in events], list(range(len(events))), "seq")
    return events


def calls_of(events):
    """(id, name, arguments) of each call; they come in order."""
    calls = []
    for e in events:
        if e["event"] == "call":
            equal(e["call"], len(calls), "index of a call")
            calls.append((e["id"], e["name"], ""))
        elif e["event"] == "arguments":
            calls[e["call"]] = (*calls[e["call"]][:2], calls[e["call"]][2] + e["text"])
    return calls


@test
def constrained_texts():
    with Bus() as bus, bus.daemon() as d:
        c = Client(bus).wait()
        options = {"max_tokens": 160, "temperature": 1.5}
        for seed in range(3):
            path, fd = c.generate(PROMPT, json_schema=json.dumps(PERSON), seed=seed, **options)
            text = read_all(fd).decode()
            want = Job(d, **request(n=160, temp=1.5, seed=seed, ignore_end=False), json_schema=json.dumps(PERSON))
            want = want.wait()
            equal(text, want.text, "text by pipe and by socket")
            if str(c.until_done(path)["Result"]) == "stop":
                check(differential.valid(PERSON, json.loads(text), PERSON), "valid", text)
            path, fd = c.generate(PROMPT, regex="[a-z]{3,8}( [a-z]{2,5}){2}[.!]", seed=seed, **options)
            check(re.fullmatch("[a-z]{3,8}( [a-z]{2,5}){2}[.!]", read_all(fd).decode()), "the whole text matches")
            path, fd = c.generate(PROMPT, grammar='root ::= "left" | "right"', seed=seed, **options)
            check(read_all(fd).decode() in ("left", "right"), "one of the grammar's texts")
        path, fd = c.generate(PROMPT, regex="a{2000}", max_tokens=4, output="events")
        end = json.loads(read_all(fd).decode().splitlines()[-1])
        equal((end["event"], end["reason"], end["incomplete"]), ("done", "length", True), "cut at four tokens")
        for more, part in (({"json_schema": '{"type": 3}'}, "#/type"), ({"regex": "(?<=a)b"}, "regex"),
                           ({"grammar": "root ::= missing"}, "missing"),
                           ({"json_schema": "{}", "regex": "a"}, "not several")):
            try:
                path, fd = c.generate(PROMPT, **more)
                os.close(fd)
                p = c.until_done(path)
                equal(str(p["Result"]), "error", f"{more}")
                message = str(p["ErrorMessage"])
            except c.dbus.DBusException as e:
                message = e.get_dbus_message()
            check(part in message, f"{more}: the message says {part}", message)


@test
def calls():
    """Forced calls of each family: valid, and those of the same job over the socket; then their answers."""
    families = ("qwen3", "llama3.1", "mistral", "gpt-oss")
    with Bus() as bus, bus.daemon(models=tuple(model_of(f) for f in families), placement=None) as d:
        c = Client(bus).wait()
        D = c.dbus
        for family in families:
            options = {"model": name_of(family), "tools": TOOLS, "max_tokens": D.UInt32(200), "temperature": 1.5}
            for seed, choice in enumerate(("required", "function:set_unit")):
                what = f"{family}, {choice}"
                events = chat(c, [("user", "Weather in Oslo?")], tool_choice=choice, one_call=True, seed=seed,
                              **options)
                got = calls_of(events)
                equal((len(got), events[-1]["event"], events[-1]["reason"]), (1, "done", "stop"), what)
                check(not events[-1].get("incomplete"), f"{what}: whole", events[-1])
                call_id, name, arguments = got[0]
                check(name in SCHEMAS and (seed == 0 or name == "set_unit"), f"{what}: the tool", name)
                check(differential.valid(SCHEMAS[name], json.loads(arguments), SCHEMAS[name]), f"{what}: arguments",
                      got)
                check(len(call_id) == 9 and call_id.isalnum(), f"{what}: the call's id", call_id)
                want = Job(d, **request(model=name_of(family), chat=[("user", "Weather in Oslo?")], n=200, temp=1.5,
                                        seed=seed, ignore_end=False), tools=TOOLS, tool_choice=choice,
                           one_call=True).wait()
                same_ids([e["id"] for e in events if e["event"] == "token"], want.ids, f"{what}: ids by bus and socket")
            # The answer goes back with the call that it belongs to.
            calls = D.Array([(D.UInt32(1), call_id, name, arguments)], signature="(usss)")
            answers = D.Array([(D.UInt32(2), call_id, name)], signature="(uss)")
            messages = [("user", "Weather in Oslo?"), ("assistant", ""), ("tool", "7 degrees")]
            after = chat(c, messages, tool_calls=calls, tool_answers=answers, tool_choice="none",
                         **{**options, "max_tokens": D.UInt32(8)})
            equal(calls_of(after), [], f"{family}: none")
            n = [next(e["prompt_tokens"] for e in x if e["event"] == "accepted") for x in (events, after)]
            check(n[1] > n[0], f"{family}: the prompt has the call and its answer", n)


@test
def thoughts():
    """What a model thinks comes as events of its own, is counted, and is no part of the text."""
    name = name_of("qwen3-thinking")
    with Bus() as bus, bus.daemon(models=tuple(model_of(f) for f in ("qwen3", "qwen3-thinking", "llama3.1")),
                                    placement=None) as d:
        c = Client(bus).wait()
        D = c.dbus
        options = {"model": name, "max_tokens": D.UInt32(40), "temperature": 1.0, "thinking_budget": D.UInt32(9)}
        events = chat(c, [("user", "Weather in Oslo?")], seed=4, **options)
        want = Job(d, **request(model=name, chat=[("user", "Weather in Oslo?")], n=40, temp=1.0, seed=4,
                                ignore_end=False), thinking_budget=9).wait()
        same_ids([e["id"] for e in events if e["event"] == "token"], want.ids, "ids by bus and socket")
        thought = "".join(e["text"] for e in events if e["event"] == "thinking")
        equal(thought, b"".join(want.thoughts).decode(), "thought")
        equal("".join(e["text"] for e in events if e["event"] in ("token", "done")), want.text, "text")
        equal((events[-1]["thinking_tokens"], want.done["thinking_tokens"]), (10, 10), "tokens of the thought")
        messages = D.Array([("user", "Weather in Oslo?")], signature="(ss)")
        path, fd = c.call(ROOT, MANAGER, "Chat", "a(ss)a{sv}", messages,
                          c.options({"output": "text", "seed": 4, **options}))
        equal(read_all(fd.take()).decode(), want.text, "the pipe of text has the answer alone")
        # Thoughts go back with the call that they led to: templates show them between calls alone.
        call = D.Array([(D.UInt32(1), "abcdefghi", "now", "{}")], signature="(usss)")
        turns = [("user", "Hi"), ("assistant", ""), ("tool", "7")]
        n = []
        for thoughts in ("", "I have to look at my watch first."):
            thoughts = D.Array([(D.UInt32(1), thoughts)], signature="(us)")
            events = chat(c, turns, tool_calls=call, thoughts=thoughts, model=name_of("qwen3"), max_tokens=D.UInt32(1),
                          tool_answers=D.Array([(D.UInt32(2), "abcdefghi", "now")], signature="(uss)"))
            n.append(next(e["prompt_tokens"] for e in events if e["event"] == "accepted"))
        check(n[1] > n[0], "the prompt has the thought", n)
        try:
            path, fd = c.call(ROOT, MANAGER, "Chat", "a(ss)a{sv}", messages,
                              c.options({"model": name_of("llama3.1"), "thinking": "high"}))
            os.close(fd.take())
            message = str(c.until_done(str(path))["ErrorMessage"])
        except D.DBusException as e:
            message = e.get_dbus_message()
        check("thinking" in message, "what a model cannot do", message)


@test
def refusals():
    with Bus() as bus, bus.daemon(models=(TALE, model_of("qwen3")), placement=None) as d:
        c = Client(bus).wait()
        D = c.dbus
        user = [("user", "Hi")]
        right = {"model": name_of("qwen3"), "tools": TOOLS}
        for messages, change, part in (
                (user, {"tool_choice": "sometimes"}, "tool-choice"),
                (user, {"tool_choice": "function:fly"}, "fly"),
                (user, {"tools": "[7]"}, "the one at index 0 is not"),
                (user, {"regex": "a"}, "not several"),
                (user, {"tool_calls": D.Array([(D.UInt32(4), "a", "b", "{}")], signature="(usss)")}, "tool-calls"),
                (user, {"tool_answers": D.Array([(D.UInt32(0), "a", "b")], signature="(uss)")}, "tool-answers"),
                (user, {"tool_answers": D.Array(["a"], signature="s")}, "tool-answers"),
                (user, {"thoughts": D.Array([(D.UInt32(0), "a")], signature="(us)")}, "thoughts"),
                (user, {"thoughts": D.Array(["a"], signature="s")}, "thoughts")):
            options = c.options({**right, **change})
            try:
                path, fd = c.call(ROOT, MANAGER, "Chat", "a(ss)a{sv}", D.Array(messages, signature="(ss)"), options)
                os.close(fd.take())
                p = c.until_done(str(path))
                equal(str(p["Result"]), "error", f"{change}")
                message = str(p["ErrorMessage"])
            except D.DBusException as e:
                message = e.get_dbus_message()
            check(part in message, f"{change}: the message says {part}", message)
        equal(len(d.generate(n=10).ids), 10, "tokens of the next job")


main()
