"""/v1/responses as agents use it: tools, calls in whole answers and in streams, items that come back, and what a client
sends beside. Shapes are seen with a daemon that plays its part; forced calls come from a real one."""
import json

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from http_test import FakeDaemon, Gateway  # noqa: E402
from tandem_test import *  # noqa: E402,F403

PATH = "/v1/responses"
HI = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather in Oslo?"}]}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 9007199254740993}}}
TOOLS = [{"type": "function", "name": "look", "description": "Looks.", "strict": False, "parameters": SCHEMA},
         {"type": "web_search", "external_web_access": False},
         {"type": "custom", "name": "patch", "description": "Edits.",
          "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"}},
         {"type": "namespace", "name": "mcp__files__", "description": "Files.",
          "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}]}]


def call(i, name, *pieces):
    """Tokens of one call: its begin, then its pieces."""
    return [{"text": b"", "calls": [{"call": i, "id": f"call{i:05}", "name": name, "arguments": b""}]}] + \
        [{"text": b"", "calls": [{"call": i, "arguments": p.encode()}]} for p in pieces]


ANSWER = [{"text": b"", "thinking": b"Hm."}, {"text": b"I look."}] + call(0, "look", '{"n":', "9007199254740993}") + \
    call(1, "patch", '{"input": "a\\n', '\\"b\\""}') + call(2, "mcp__files__read", "{}")


def without_ids(items):
    return [{k: v for k, v in item.items() if k != "id"} for item in items]


def blocks_of(events):
    """The content that a stream of /v1/messages adds up to."""
    blocks = []
    for e in events:
        if e["type"] == "content_block_start":
            blocks.append(dict(e["content_block"]))
        elif e["type"] == "content_block_delta":
            kind, = (k for k in e["delta"] if k != "type")
            name = "input" if kind == "partial_json" else kind
            blocks[-1][name] = (blocks[-1][name] or "") + e["delta"][kind]
    return [dict(b, input=json.loads(b["input"])) if b["type"] == "tool_use" else b for b in blocks]


@test
def order():
    """Text, thoughts and calls stand in a whole answer as they do in a stream: as they came."""
    a, b, c, thought, more = ({"text": t} for t in (b"a", b"b", b"c", b"", b""))
    thought["thinking"], more["thinking"] = b"Hm.", b"So."
    first, second = call(0, "look", '{"n":1}'), call(1, "patch", '{"input":"x"}')
    tools = [{"name": n, "input_schema": {"type": "object"}} for n in ("look", "patch")]
    for tokens, kinds in (([a] + first + [b] + second + [c], "message call message custom message"),
                          (first + [a, b] + second, "call message custom"),
                          ([thought, a] + first + [more] + second + [b],
                           "reasoning message call reasoning custom message"),
                          ([a, thought, b] + first, "message reasoning message call"), ([thought], "reasoning"),
                          ([thought] + first + [a, more, b], "reasoning call message reasoning message"),
                          ([], "message")):
        with FakeDaemon(tokens) as fake, Gateway(fake) as g:
            body = {"model": "tale", "input": [HI], "tools": TOOLS}
            whole = without_ids(g.post(PATH, body)["output"])
            equal(" ".join(i["type"].replace("_tool_call", "").replace("function_", "") for i in whole), kinds, tokens)
            equal(whole, without_ids([e for _, e in g.events(PATH, body)][-1]["response"]["output"]), "a stream")
            for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}):
                body = {"model": "tale", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2000,
                        "tools": tools, "thinking": thinking}
                content = g.post("/v1/messages", body)["content"]
                streamed = blocks_of([e for _, e in g.events("/v1/messages", body)])
                equal(content, streamed or [{"type": "text", "text": ""}], f"{tokens}: blocks with {thinking}")


WANT = [{"type": "reasoning", "status": "completed", "summary": [],
         "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "status": "completed", "role": "assistant",
         "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "status": "completed", "call_id": "call00000", "name": "look",
         "arguments": '{"n":9007199254740993}'},
        {"type": "custom_tool_call", "status": "completed", "call_id": "call00001", "name": "patch",
         "input": 'a\n"b"'},
        {"type": "function_call", "status": "completed", "call_id": "call00002", "name": "read", "arguments": "{}",
         "namespace": "mcp__files__"}]


@test
def told():
    """A whole answer and a stream have the same items; each item of a stream begins, grows and ends in order."""
    with FakeDaemon(ANSWER) as fake, Gateway(fake) as g:
        body = {"model": "tale", "input": [HI], "tools": TOOLS}
        whole = g.post(PATH, body)
        equal(without_ids(whole["output"]), WANT, "a whole answer")
        equal((whole["status"], whole["tools"], len({i["id"] for i in whole["output"]})), ("completed", TOOLS, 5), "it")
        events = [e for _, e in g.events(PATH, body)]
        equal([e["sequence_number"] for e in events], list(range(len(events))), "numbers")
        equal(without_ids(events[-1]["response"]["output"]), WANT, "the end of a stream")
        equal([e["item"] for e in events if e["type"] == "response.output_item.done"],
              events[-1]["response"]["output"], "each item when it is done")
        for i, kind in enumerate(WANT):
            own = [e for e in events if e.get("output_index") == i]
            middle = {"reasoning": ["content_part.added", "reasoning_text.delta", "reasoning_text.done",
                                    "content_part.done"],
                      "message": ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"],
                      "custom_tool_call": ["custom_tool_call_input.delta", "custom_tool_call_input.done"],
                      "function_call": ["function_call_arguments.delta"] * (2 if i == 2 else 1) +
                                       ["function_call_arguments.done"]}[kind["type"]]
            equal([e["type"] for e in own],
                  ["response." + t for t in ["output_item.added"] + middle + ["output_item.done"]], kind)
            equal({e["item_id"] for e in own if "item_id" in e}, {own[-1]["item"]["id"]}, "its id")
            equal(own[0]["item"]["status"], "in_progress", "its begin")
            told = "".join(e["delta"] for e in own if "delta" in e)
            if "call_id" in kind:
                equal(told, kind.get("arguments", kind.get("input")), "its pieces")
                equal([e.get("arguments", e.get("input")) for e in own if e["type"].endswith("s.done")], [told] *
                      (kind["type"] == "function_call"), "its arguments, whole")
        equal([e for e in events if e["type"] == "response.completed"], events[-1:], "one end")


@test
def cut_off():
    """What ends with the limit is incomplete: the last item, and the response."""
    for tokens, kind, held in ((ANSWER[:4], "function_call", {"arguments": '{"n":'}),
                               (ANSWER[:6], "custom_tool_call", {"input": ""})):
        with FakeDaemon(tokens, reason=1) as fake, Gateway(fake) as g:
            body = {"model": "tale", "input": [HI], "tools": TOOLS}
            for answer in (g.post(PATH, body), g.events(PATH, body)[-1][1]["response"]):
                last = answer["output"][-1]
                equal((answer["status"], last["type"], last["status"]), ("incomplete", kind, "incomplete"), "status")
                equal({k: last[k] for k in held}, held, "what it holds")
                equal(answer["output"][0]["status"], "completed", "the first item")


@test
def asked_for():
    """Tools become functions, each choice is the daemon's, and what a provider runs is left out with a warning."""
    with FakeDaemon([{"text": b"x"}]) as fake, Gateway(fake) as g:
        def asked(**more):
            status, headers, data = g.request("POST", PATH, dict({"model": "tale", "input": "Hi"}, **more))
            equal(status, 200, f"{more}: {data[:300]}")
            return fake.asked[-1], headers.get("x-tandem-warning", "")
        got, warning = asked(tools=TOOLS)
        tools = json.loads(got["tools"])
        equal([t["function"]["name"] for t in tools], ["look", "patch", "mcp__files__read"], "names")
        check("9007199254740993" in got["tools"], "numbers as they were written", got["tools"])
        equal(tools[1]["function"]["parameters"]["properties"], {"input": {"type": "string"}}, "a custom tool's")
        check("start: /x+/" in tools[1]["function"]["description"], "its grammar", tools[1])
        check("web_search are not used here" in warning and "not enforced" in warning, "warnings", warning)
        for choice, want in (("auto", "auto"), ("none", "none"), ("required", "required"),
                             ({"type": "function", "name": "look"}, "function:look"),
                             ({"type": "custom", "name": "patch"}, "function:patch"),
                             ({"type": "function", "name": "read", "namespace": "mcp__files__"},
                              "function:mcp__files__read")):
            equal(asked(tools=TOOLS, tool_choice=choice)[0]["tool_choice"], want, choice)
        equal([asked(tools=TOOLS, parallel_tool_calls=p)[0].get("one_call", False) for p in (True, False)],
              [False, True], "one call")
        # As agents send them: nothing of it is an error, and only what does nothing here is warned of.
        usual = {"store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
                 "client_metadata": {"a": "b"}, "reasoning": None, "service_tier": "auto", "tool_choice": "auto",
                 "parallel_tool_calls": False, "instructions": "You are an agent.", "tools": TOOLS[:1]}
        equal(asked(**usual)[1], "", "no warning")
        equal(asked(**usual, text={"verbosity": "low"})[1], "text.verbosity is not used here", "a warning")
        equal(asked(tools=[], include=[], previous_response_id=None, input="", max_output_tokens=1)[1], "",
              "an empty probe")
        for more, part in (({"previous_response_id": "resp_1"}, "'previous_response_id' cannot be taken"),
                           ({"include": ["message.output_text.logprobs"]}, "'include[0]' cannot be taken"),
                           ({"tools": [{"type": "local_shell"}]}, "'tools[0]' is a tool of type 'local_shell'"),
                           ({"tools": [{"type": "function"}]}, "'tools[0].name' is missing or no text"),
                           ({"tools": [{"type": "function", "function": {"name": "f"}}]},
                            "'tools[0].name' is missing or no text (name stands beside type here, not in function)"),
                           ({"tools": ["look"]}, "'tools[0]' is a tool of type ''"),
                           ({"tools": [dict(TOOLS[3], tools=TOOLS[1:2])]}, "'tools[0].tools[0]' is a tool of type"),
                           ({"tools": [dict(TOOLS[2], format={"type": "grammar", "x": 1})]}, "format.x"),
                           ({"tools": TOOLS[1:2], "tool_choice": "required"}, "there are no tools"),
                           ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "'tool_choice' has to be"),
                           ({"tools": TOOLS, "text": {"format": {"type": "json_object"}}}, "cannot be combined")):
            status, _, data = g.request("POST", PATH, dict({"model": "tale", "input": "Hi"}, **more))
            check(status == 400 and part in json.loads(data)["error"]["message"], f"{more}", data)


@test
def come_back():
    """An answer's items, sent back as they came, are one message of the model's; outputs are the tools' messages."""
    with FakeDaemon(ANSWER) as fake, Gateway(fake) as g:
        def chat(items, want=200, **more):
            data = g.post(PATH, {"model": "tale", "input": items, "tools": TOOLS, **more}, want)
            return fake.asked[-1]["chat"] if want == 200 else data["error"]["message"]
        output = g.post(PATH, {"model": "tale", "input": [HI], "tools": TOOLS})["output"]
        answers = [{"type": "function_call_output", "call_id": "call00000", "output": "ra\0in"},
                   {"type": "custom_tool_call_output", "call_id": "call00001",
                    "output": [{"type": "input_text", "text": "o"}, {"type": "input_text", "text": "k"}]},
                   {"type": "function_call_output", "call_id": "call00002", "output": ""}]
        got = chat([HI] + output + answers)
        equal([m["role"] for m in got], ["user", "assistant"] + ["tool"] * 3, "roles")
        equal((got[1]["text"], got[1]["thinking"]), (b"I look.", b"Hm."), "the model's message")
        equal([(c["id"], c["name"], json.loads(c["arguments"])) for c in got[1]["calls"]],
              [("call00000", "look", {"n": 9007199254740993}), ("call00001", "patch", {"input": 'a\n"b"'}),
               ("call00002", "mcp__files__read", {})], "its calls")
        equal([(m["call_id"], m.get("text", b"")) for m in got[2:]],
              [("call00000", b"ra\0in"), ("call00001", b"o\nk"), ("call00002", b"")], "what the tools said")
        # One call after the other, without text: each is a message.
        step = [dict(output[2], call_id="a"), {"type": "function_call_output", "call_id": "a", "output": "1"},
                dict(output[2], call_id="b"), {"type": "function_call_output", "call_id": "b", "output": "2"}]
        equal([(m["role"], [c["id"] for c in m.get("calls", [])]) for m in chat([HI] + step)],
              [("user", []), ("assistant", ["a"]), ("tool", []), ("assistant", ["b"]), ("tool", [])], "steps")
        for bad, part in (({"type": "function_call_output", "call_id": "x"}, "lacks call_id or output"),
                          ({"type": "function_call", "call_id": "x", "name": "look"}, "lacks call_id, name or argum"),
                          ({"type": "custom_tool_call", "call_id": "x", "name": "y"}, "lacks call_id, name or input"),
                          ({"type": "item_reference", "id": "x"}, "is of type 'item_reference'"),
                          ({"type": "function_call_output", "call_id": "x", "output": [
                              {"type": "input_image", "image_url": "x"}]}, "is no URL of a picture")):
            check(part in chat([HI, bad], 400), f"{bad}", chat([HI, bad], 400))


@test
def sealed():
    """Thoughts in encrypted_content come back in it alone; what was changed is refused, another provider's ignored."""
    with FakeDaemon(ANSWER) as fake, Gateway(fake) as g:
        body = {"model": "tale", "tools": TOOLS[:1], "include": ["reasoning.encrypted_content"]}
        item = g.post(PATH, dict(body, input=[HI]))["output"][0]
        done = [e["item"] for _, e in g.events(PATH, dict(body, input=[HI])) if e["type"].endswith("item.done")][0]
        equal(done["encrypted_content"], item["encrypted_content"], "in a stream")
        back = {"type": "reasoning", "summary": [], "encrypted_content": item["encrypted_content"]}

        def sent(thought, want=200):
            status, headers, data = g.request("POST", PATH, dict(body, input=[HI, thought, {
                "type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}, {
                    "type": "function_call_output", "call_id": "a", "output": "x"}]))
            equal(status, want, data)
            return headers.get("x-tandem-warning", "") if want == 200 else json.loads(data)["error"]["message"]
        equal((sent(back), fake.asked[-1]["chat"][1]["thinking"]), ("", b"Hm."), "as it came")
        check("was changed" in sent(dict(back, encrypted_content=item["encrypted_content"] + "x"), 400), "changed")
        check("of others" in sent(dict(back, encrypted_content="gAAAA")), "another provider's")
        equal(fake.asked[-1]["chat"][1].get("thinking"), None, "no thought")


@test
def real():
    """A forced call of a model, whole and streamed, and its answer's turn."""
    model = make_model("npu", "q8_0", arch="qwen3", chat="qwen3")
    tool = {"type": "function", "name": "set_unit", "parameters": {
        "type": "object", "properties": {"to": {"enum": ["C", "F"]}}, "required": ["to"],
        "additionalProperties": False}}
    with Daemon(models=(TALE, model), placement=None) as d, Gateway(d) as g:
        body = {"model": os.path.basename(model)[:-len(".gguf")], "input": [HI], "tools": [tool], "seed": 3,
                "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 200}
        whole = g.post(PATH, body)
        made = whole["output"][-1]
        equal((whole["status"], made["type"], made["name"]), ("completed", "function_call", "set_unit"), "a call")
        check(json.loads(made["arguments"])["to"] in ("C", "F"), "its arguments", made)
        streamed = g.events(PATH, body)[-1][1]["response"]["output"][-1]
        equal(streamed["arguments"], made["arguments"], "streamed")
        said = {"type": "function_call_output", "call_id": made["call_id"], "output": "done"}
        after = g.post(PATH, dict(body, input=[HI, made, said], tool_choice="none", max_output_tokens=4))
        check(after["usage"]["input_tokens"] > whole["usage"]["input_tokens"], "the turn is longer", after["usage"])


main()
