"""Thinking through the HTTP doors: what asks for it, how thoughts are told, and how they come back. Shapes are
seen with a daemon that plays its part; what thinks really is the random model whose template has opened a thought."""
import json

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from http_test import FakeDaemon, Gateway, head, read_all  # noqa: E402
from tandem_test import *  # noqa: E402,F403

HI = [{"role": "user", "content": "Weather in Oslo?"}]
THOUGHT, TEXT = "Hm, ä king.", "Yes"
TOKENS = [{"text": b"", "thinking": "Hm, ä".encode()}, {"text": b"", "thinking": b" king."}, {"text": TEXT.encode()}]
AUTO, OFF, ON, LOW, MEDIUM, HIGH = range(6)
CHAT, RESPONSES, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"


def body_of(path, **more):
    return {"model": "tale", **({"input": HI} if path == RESPONSES else {"messages": HI}),
            **({"max_tokens": 99} if path == MESSAGES else {"stream": False} if path == OLLAMA else {}), **more}


def asked(fake, g, path, **more):
    """What the daemon is asked: thinking and budget."""
    g.post(path, body_of(path, **more))
    return fake.asked[-1].get("thinking", "THINKING_AUTO"), fake.asked[-1].get("thinking_budget", 0)


def refused(g, path, status=400, **more):
    _, _, data = g.request("POST", path, body_of(path, **more))
    error = json.loads(data)["error"]
    return error if isinstance(error, str) else error["message"]


def prompt_tokens(g, path, **more):
    limit = {OLLAMA: {"options": {"num_predict": 1}}, RESPONSES: {"max_output_tokens": 1}}
    answer = g.post(path, body_of(path, **limit.get(path, {"max_tokens": 1}), **more) if path != MESSAGES else
                    dict(body_of(path, **more), max_tokens=1))
    usage = answer.get("usage", answer)
    return next(usage[k] for k in ("prompt_tokens", "input_tokens", "prompt_eval_count") if k in usage)


@test
def asked_for():
    """Each API's switch becomes the job's option, and what is no such value is refused by name."""
    with FakeDaemon(TOKENS) as fake, Gateway(fake) as g:
        for word, want in (("none", "OFF"), ("minimal", "LOW"), ("low", "LOW"), ("medium", "MEDIUM"), ("high", "HIGH"),
                           ("xhigh", "HIGH")):
            equal(asked(fake, g, CHAT, reasoning_effort=word), ("THINKING_" + want, 0), f"chat, {word}")
            equal(asked(fake, g, RESPONSES, reasoning={"effort": word}), ("THINKING_" + want, 0), f"responses, {word}")
        for path in (CHAT, RESPONSES, MESSAGES, OLLAMA):
            equal(asked(fake, g, path), ("THINKING_AUTO", 0), f"{path}: nothing is said")
        equal(asked(fake, g, CHAT, reasoning_budget=7), ("THINKING_AUTO", 7), "a budget")
        equal(asked(fake, g, CHAT, reasoning_budget=0), ("THINKING_OFF", 0), "a budget of nothing")
        equal(asked(fake, g, CHAT, reasoning_budget=-1), ("THINKING_AUTO", 0), "no budget")
        equal(asked(fake, g, RESPONSES, reasoning={"effort": None, "summary": "auto"}), ("THINKING_AUTO", 0), "null")
        for think, want in ((True, "ON"), (False, "OFF"), ("low", "LOW"), ("high", "HIGH")):
            equal(asked(fake, g, OLLAMA, think=think), ("THINKING_" + want, 0), f"think: {think}")
        for thinking, want in (({"type": "enabled", "budget_tokens": 40}, ("THINKING_ON", 40)),
                               ({"type": "adaptive"}, ("THINKING_AUTO", 0)),
                               ({"type": "disabled"}, ("THINKING_OFF", 0))):
            equal(asked(fake, g, MESSAGES, thinking=thinking), want, f"thinking: {thinking}")
        for effort, want in (("low", "LOW"), ("medium", "MEDIUM"), ("xhigh", "HIGH"), ("max", "HIGH")):
            config = {"output_config": {"effort": effort}}
            equal(asked(fake, g, MESSAGES, thinking={"type": "enabled", "budget_tokens": 40}, **config),
                  ("THINKING_" + want, 40), f"effort {effort}")
            for thinking, same in (("adaptive", "AUTO"), ("disabled", "OFF")):
                equal(asked(fake, g, MESSAGES, thinking={"type": thinking}, **config), ("THINKING_" + same, 0),
                      f"effort {effort}, {thinking}")
            equal(asked(fake, g, MESSAGES, **config), ("THINKING_AUTO", 0), f"effort {effort} alone")
        for path, more, part in ((CHAT, {"reasoning_effort": "some"}, "'reasoning_effort' has to be"),
                                 (RESPONSES, {"reasoning": {"effort": "some"}}, "'reasoning.effort' has to be"),
                                 (RESPONSES, {"reasoning": {"depth": 1}}, "reasoning.depth"),
                                 (OLLAMA, {"think": "some"}, "'think' has to be"),
                                 (OLLAMA, {"think": 3}, "'think' has to be"),
                                 (MESSAGES, {"thinking": {"type": "some"}}, "'thinking.type' has to be"),
                                 (MESSAGES, {"thinking": {"type": "enabled"}}, "'thinking.budget_tokens' is missing"),
                                 (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 99}}, "less than"),
                                 (MESSAGES, {"thinking": {"type": "adaptive", "display": "omitted"}}, "display")):
            check(part in refused(g, path, **more), f"{path} with {more}", refused(g, path, **more))


@test
def asked_for_by_variables():
    """chat_template_kwargs switches thinking on each API that takes messages, and agrees with the API's own switch."""
    own = {CHAT: {"reasoning_effort": "none"}, RESPONSES: {"reasoning": {"effort": "none"}},
           MESSAGES: {"thinking": {"type": "disabled"}}, OLLAMA: {"think": False}}
    with FakeDaemon(TOKENS) as fake, Gateway(fake) as g:
        for path, off in own.items():
            for given, want in (({}, "AUTO"), ({"enable_thinking": False}, "OFF"), ({"thinking": False}, "OFF"),
                                ({"enable_thinking": True}, "ON"), ({"reasoning_effort": "low"}, "LOW")):
                equal(asked(fake, g, path, chat_template_kwargs=given), ("THINKING_" + want, 0), f"{path}, {given}")
            equal(asked(fake, g, path, chat_template_kwargs={"enable_thinking": False}, **off), ("THINKING_OFF", 0),
                  f"{path}: both, agreed")
            for given in ({"enable_thinking": True}, {"reasoning_effort": "high"}):
                said = refused(g, path, chat_template_kwargs=given, **off)
                check("'chat_template_kwargs' contradicts" in said, f"{path} with {given}", said)
            asked(fake, g, path, chat_template_kwargs={"a": {"b": [1.5]}})
            equal(json.loads(fake.asked[-1]["chat_variables"]), {"a": {"b": [1.5]}}, f"{path}: another variable")
        blocks = g.post(MESSAGES, body_of(MESSAGES, chat_template_kwargs={"enable_thinking": True}))["content"]
        equal([b["type"] for b in blocks], ["thinking", "text"], "thoughts are told to whom asked for them")
        equal([b["type"] for b in g.post(MESSAGES, body_of(MESSAGES))["content"]], ["text"], "and to no other")


@test
def switches_of_others():
    """Another API's switch of thinking is never ignored: it is honoured, or refused with what to send in its place."""
    raw = {"prompt": "x", "stream": False}
    bodies = {"/v1/completions": raw, "/api/generate": raw}
    with FakeDaemon(TOKENS) as fake, Gateway(fake) as g:
        for more, want in (({"reasoning": {"effort": "high"}}, "HIGH"), ({"reasoning_effort": "none"}, "OFF"),
                           ({"reasoning": {"effort": "low"}, "reasoning_effort": "minimal"}, "LOW"),
                           ({"reasoning": {"effort": None}, "reasoning_effort": "high"}, "HIGH")):
            for path in (CHAT, RESPONSES):
                equal(asked(fake, g, path, **more), ("THINKING_" + want, 0), f"{path}, {more}")
        for path in (CHAT, RESPONSES):
            said = refused(g, path, reasoning={"effort": "low"}, reasoning_effort="high")
            equal(said, "'reasoning.effort' contradicts 'reasoning_effort'", path)
        names = {"chat_template_kwargs", "enable_thinking", "reasoning", "reasoning_budget", "reasoning_effort",
                 "think", "thinking", "thinking_budget", "thinking_budget_tokens"}
        for path, taken, instead in (
                (CHAT, {"chat_template_kwargs", "reasoning", "reasoning_budget", "reasoning_effort"},
                 "'reasoning_effort', 'reasoning_budget'"),
                (RESPONSES, {"chat_template_kwargs", "reasoning", "reasoning_effort"}, "'reasoning_effort'"),
                (MESSAGES, {"chat_template_kwargs", "thinking"}, "'thinking'"),
                (OLLAMA, {"chat_template_kwargs", "think"}, "'think'"), ("/api/generate", {"think"}, "'think'"),
                ("/v1/completions", set(), "no chat template")):
            for name in sorted(names - taken):
                body = dict(bodies.get(path) or body_of(path), model="tale")
                for value in (False, True, 0, 99, "none", "high", {"enable_thinking": False}, {"a": None, "b": 0}, []):
                    status, _, data = g.request("POST", path, dict(body, **{name: value}))
                    check(status == 400 and f"'{name}' cannot be taken" in data.decode() and
                          instead in data.decode(), f"{path} with {name}={value}", data)
                for value in (None, {}, {"effort": None}):
                    g.post(path, dict(body, **{name: value}))


@test
def told():
    """In whole answers and in streams, and counted."""
    with FakeDaemon(TOKENS, thinking_tokens=2) as fake, Gateway(fake) as g:
        answer = g.post(CHAT, body_of(CHAT))
        message = answer["choices"][0]["message"]
        equal((message["reasoning_content"], message["content"]), (THOUGHT, TEXT), "chat")
        equal(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 2, "chat: tokens")
        events = g.events(CHAT, body_of(CHAT, stream=True))
        deltas = [e["choices"][0]["delta"] for _, e in events if isinstance(e, dict)]
        equal(["".join(x.get(k) or "" for x in deltas) for k in ("reasoning_content", "content")], [THOUGHT, TEXT],
              "chat, streamed")
        answer = g.post(RESPONSES, body_of(RESPONSES))
        equal([(i["type"], i["content"][0]["type"], i["content"][0]["text"]) for i in answer["output"]],
              [("reasoning", "reasoning_text", THOUGHT), ("message", "output_text", TEXT)], "responses")
        equal(answer["usage"]["output_tokens_details"]["reasoning_tokens"], 2, "responses: tokens")
        events = [e for _, e in g.events(RESPONSES, body_of(RESPONSES, stream=True))]
        equal([(e["type"], e.get("output_index")) for e in events],
              [("response.created", None), ("response.in_progress", None)] +
              [("response." + name, i) for i, kind, n in ((0, "reasoning", 2), (1, "output", 1))
               for name in ["output_item.added", "content_part.added"] + [kind + "_text.delta"] * n +
               [kind + "_text.done", "content_part.done", "output_item.done"]] + [("response.completed", None)],
              "responses, streamed")
        equal(events[-1]["response"]["output"], [e["item"] for e in events if e["type"].endswith("item.done")],
              "the end repeats the items")
        equal("".join(e["delta"] for e in events if e["type"] == "response.reasoning_text.delta"), THOUGHT, "deltas")
        message = g.post(OLLAMA, body_of(OLLAMA))["message"]
        equal((message["thinking"], message["content"]), (THOUGHT, TEXT), "Ollama's")
        lines = [e["message"] for e in g.lines(OLLAMA, body_of(OLLAMA, stream=True))]
        equal(["".join(m.get(k) or "" for m in lines) for k in ("thinking", "content")], [THOUGHT, TEXT],
              "Ollama's, streamed")


@test
def in_one_piece():
    """A token that ends a thought and begins the text: the thought is told first, by each door."""
    tokens = [{"text": b"", "thinking": b"Hm"}, {"text": b"Ye", "thinking": b"."}, {"text": b"s"}]
    with FakeDaemon(tokens) as fake, Gateway(fake) as g:
        events = [e for _, e in g.events(CHAT, body_of(CHAT, stream=True)) if isinstance(e, dict)]
        deltas = [e["choices"][0]["delta"] for e in events]
        equal([list(x) for x in deltas if "role" not in x and x],
              [["reasoning_content"]] * 2 + [["content"]] * 2, "chat")
        events = [e for _, e in g.events(RESPONSES, body_of(RESPONSES, stream=True))]
        equal([i["content"][0]["text"] for i in events[-1]["response"]["output"]], ["Hm.", "Yes"], "responses")
        want = {"thinking": {"type": "adaptive"}}
        events = [e for _, e in g.events(MESSAGES, body_of(MESSAGES, stream=True, **want))]
        equal([e["content_block"]["type"] for e in events if "content_block" in e], ["thinking", "text"], "messages")
        lines = [e["message"] for e in g.lines(OLLAMA, body_of(OLLAMA, stream=True))]
        equal(["".join(m.get(k) or "" for m in lines) for k in ("thinking", "content")], ["Hm.", "Yes"], "Ollama's")


@test
def signed():
    """Anthropic's blocks: with a signature, in streams too, taken back as they came and refused when changed."""
    want = {"thinking": {"type": "enabled", "budget_tokens": 40}}
    with FakeDaemon(TOKENS) as fake, Gateway(fake) as g:
        equal([b["type"] for b in g.post(MESSAGES, body_of(MESSAGES))["content"]], ["text"], "nobody asked for them")
        content = g.post(MESSAGES, body_of(MESSAGES, **want))["content"]
        equal([(b["type"], b.get("thinking") or b.get("text")) for b in content],
              [("thinking", THOUGHT), ("text", TEXT)], "blocks")
        events = [e for _, e in g.events(MESSAGES, body_of(MESSAGES, stream=True, **want))]
        blocks = [e for e in events if "index" in e]
        equal([(e["type"], e["index"]) + ((e["delta"]["type"],) if "delta" in e else ()) for e in blocks],
              [("content_block_start", 0)] + [("content_block_delta", 0, "thinking_delta")] * 2 +
              [("content_block_delta", 0, "signature_delta"), ("content_block_stop", 0), ("content_block_start", 1),
               ("content_block_delta", 1, "text_delta"), ("content_block_stop", 1)], "streamed")
        deltas = [e["delta"] for e in events if "delta" in e]
        equal("".join(d.get("thinking", "") for d in deltas), THOUGHT, "deltas")
        equal("".join(d.get("signature", "") for d in deltas), content[0]["signature"], "the same signature")

        def again(block):
            return {"messages": HI + [{"role": "assistant", "content": [block, content[1]]}] + HI, **want}
        g.post(MESSAGES, body_of(MESSAGES, **again(content[0])))
        equal(fake.asked[-1]["chat"][1].get("thinking"), THOUGHT.encode(), "handed to the daemon")
        for change in ({"thinking": THOUGHT + " "}, {"signature": ""}, {"signature": content[0]["signature"] + "0"}):
            said = refused(g, MESSAGES, **again(dict(content[0], **change)))
            check("invalid `signature`" in said and "messages[1].content" in said, f"changed: {change}", said)
        g.post(CHAT, body_of(CHAT, messages=HI + [{"role": "assistant", "content": TEXT,
                                                   "reasoning_content": THOUGHT}] + HI))
        equal(fake.asked[-1]["chat"][1].get("thinking"), THOUGHT.encode(), "chat: comes back")
        output = g.post(RESPONSES, body_of(RESPONSES))["output"]
        g.post(RESPONSES, body_of(RESPONSES, input=HI + output + HI))
        equal((len(fake.asked[-1]["chat"]), fake.asked[-1]["chat"][1].get("thinking")), (3, THOUGHT.encode()),
              "responses: comes back")


def signature(text):
    a, b = 0xcbf29ce484222325, 0x84222325cbf29ce4
    for c in text.encode():
        a = (a ^ c) * 0x100000001b3 % 2**64
        b = (b ^ (~c & 255)) * 0x100000001b3 % 2**64
    return f"tandem1-{a:016x}{b:016x}"


@test
def many_thoughts():
    """Thoughts in thousands of parts, blocks and items are joined once: memory follows the body, not its square."""
    text = "x" * 69
    part, reasoning = {"type": "reasoning_text", "text": text}, {"type": "reasoning", "summary": []}
    block = {"type": "thinking", "thinking": text, "signature": signature(text)}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    end = [{"role": "user", "content": "And?"}]
    cases = ((RESPONSES, 12000, {"input": HI + [dict(reasoning, content=[part] * 12000), {
                  "role": "assistant", "content": TEXT}] + end}),
             (RESPONSES, 1900, {"input": HI + [
                 dict(reasoning, content=[dict(part, text=text * 6)]), call] * 1900 + end}),
             (MESSAGES, 9000, {"messages": HI + [{"role": "assistant", "content": [block] * 9000 + [
                  {"type": "text", "text": TEXT}]}] + end}))
    for path, n, more in cases:
        with FakeDaemon(TOKENS) as fake, Gateway(fake) as g:
            g.post(path, body_of(path))
            before = g.memory_peak_kb()
            g.post(path, body_of(path, **more))
            each = len(text) * (6 if n == 1900 else 1) + 1
            equal(len(fake.asked[-1]["chat"][1]["thinking"]), n * each - 1, f"{path}: all of it comes through")
            grown = g.memory_peak_kb() - before
            check(SANITIZER or grown < 160 << 10, f"{path}: memory of {n} thoughts, in KiB", grown)


@test
def real():
    """Through workers: a budget, a schema behind it, a stop text; and what a model cannot do, by the API's own name."""
    model = make_model("npu", "q8_0", arch="qwen3", chat="qwen3-thinking")
    switched = make_model("npu", "q8_0", arch="qwen3", chat="qwen3")
    name, switch = (os.path.basename(m)[:-len(".gguf")] for m in (model, switched))
    with Daemon(models=(TALE, model, switched), placement=None) as d, Gateway(d) as g:
        schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
                  "required": ["n"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body = body_of(CHAT, model=name, max_tokens=120, temperature=1, seed=4, reasoning_budget=9)
        answer = g.post(CHAT, dict(body, response_format=form))
        message = answer["choices"][0]["message"]
        check(json.loads(message["content"])["n"] in range(10), "a schema behind the thought", message)
        check(len(message["reasoning_content"]) > 5, "a thought", message)
        equal(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 10, "nine tokens and the end")
        stop = message["reasoning_content"][2:4]
        other = g.post(CHAT, dict(body, stop=[stop], max_tokens=9))["choices"][0]
        equal((other["message"]["reasoning_content"][:9], other["finish_reason"]),
              (message["reasoning_content"][:9], "length"), f"{stop!r} in a thought stops nothing")
        content = g.post(MESSAGES, body_of(MESSAGES, model=name, thinking={"type": "enabled", "budget_tokens": 9}))
        equal([b["type"] for b in content["content"]], ["thinking", "text"], "Anthropic's")
        for path, off in ((CHAT, {"reasoning_effort": "none"}), (MESSAGES, {"thinking": {"type": "disabled"}}),
                          (RESPONSES, {"reasoning": {"effort": "none"}}), (OLLAMA, {"think": False})):
            n = [prompt_tokens(g, path, model=switch, **more) for more in ({}, off)]
            check(n[1] > n[0], f"{path}: off is written in the prompt", n)
        for path, more, part in ((CHAT, {"reasoning_effort": "high"}, "'reasoning_effort': "),
                                 (RESPONSES, {"reasoning": {"effort": "high"}}, "'reasoning.effort': "),
                                 (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 9}}, "'thinking': "),
                                 (OLLAMA, {"think": True}, "'think': ")):
            said = refused(g, path, **more)
            check(part in said and "no form for thoughts" in said, f"{path}: tale does not think", said)
            off = {CHAT: "none", RESPONSES: {"effort": "none"}, MESSAGES: {"type": "disabled"}, OLLAMA: False}[path]
            said = refused(g, path, model=name, **{next(iter(more)): off})
            check(part in said and "always thinks" in said, f"{path}: it always thinks", said)
        for path, member in ((CHAT, lambda e: {"reasoning_effort": e}),
                             (RESPONSES, lambda e: {"reasoning": {"effort": e}})):
            for effort, warns in (("none", False), ("minimal", False), ("medium", True)):
                for stream in (False, True):
                    n = {"n": 2} if path == CHAT else {}
                    status, headers, data = g.request("POST", path,
                                                      body_of(path, stream=stream, **n, **member(effort)))
                    said = headers.get("x-tandem-warning", "") + data.decode()  # a busy machine knows it late
                    equal((status, said.count("cannot think")), (200, int(warns)), f"{path} {effort} {stream}: {data}")
            check("no form for thoughts" in refused(g, path, **member("low")), f"{path}: low is a wish")
        check("no form for thoughts" in refused(g, OLLAMA, think="medium"), "Ollama refuses it too")


class Thoughtless(FakeDaemon):
    """Takes no job that is to think, and says so when the test wants it."""

    def __init__(self):
        super().__init__([{"text": TEXT.encode()}])
        self.may_say = threading.Event()

    def refusal(self, generate):
        if generate.get("thinking", "THINKING_AUTO") == "THINKING_AUTO":
            return None
        self.may_say.wait()
        return {"code": "unsupported", "message": "thinking: this model has no form for thoughts"}


@test
def warned_late():
    """The stream has begun when it is known that the model cannot think: the warning is a comment in it, once."""
    warning = "x-tandem-warning: the model cannot think: an effort of 'medium' has no effect"
    medium = "medium"
    for path, more in ((CHAT, {"reasoning_effort": medium, "n": 2}), (RESPONSES, {"reasoning": {"effort": medium}})):
        with Thoughtless() as fake, Gateway(fake) as g, g.connect() as s:
            body = json.dumps(body_of(path, stream=True, **more)).encode()
            s.sendall(head("POST", path, f"Content-Length: {len(body)}", "Connection: close") + body)
            begun = b""
            while b"\r\n\r\n" not in begun:
                piece = s.recv(4096)
                check(piece, "the gateway hung up", begun)
                begun += piece
            check(b" 200 " in begun and b"x-tandem-warning" not in begun, "its head", begun)
            fake.may_say.set()
            data = read_all(s)
            equal((data.count(b": " + warning.encode() + b"\n\n"), data.count(b"cannot think")), (1, 1), data)
            check(TEXT.encode() in data and b"error" not in data.replace(b'"error":null', b""), "the answer", data)


main()
