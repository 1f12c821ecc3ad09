"""What users of other servers reported of those, tried on tandem-http: models with several names, numbers that pass
through, values that mean a default, tokens of log-probabilities, answers in the providers' own forms."""
import datetime
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from gguf_peek import Gguf  # noqa: E402
from http_test import *  # noqa: E402,F403

HI = [{"role": "user", "content": "Tell me of a king"}]
CALLED = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def seconds_of(text):
    """Of a time in Ollama's answers."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


@test
def several_names():
    """One file with three names: two links in the folder of models, and one that --model names, into a folder of blobs.
    Each name answers alike, whichever was used first."""
    folder = tempfile.mkdtemp(prefix="tandem-test-")
    try:
        os.makedirs(folder + "/blobs")
        os.makedirs(folder + "/models")
        shutil.copy(SPROUT, folder + "/blobs/sha256-abc")
        os.symlink("../blobs/sha256-abc", folder + "/models/one.gguf")
        os.link(folder + "/blobs/sha256-abc", folder + "/models/two.gguf")
        os.symlink("blobs/sha256-abc", folder + "/named.gguf")
        with Daemon(models=[folder + "/named.gguf"], placement=None,
                    env={"TANDEM_MODEL_PATH": folder + "/models"}) as d, Gateway(d) as g:
            names = {"named", "one", "two"}
            for first in ("two", "named"):
                for name in sorted(names):
                    g.post("/v1/completions", {"model": name if first == "two" else first, "prompt": "A",
                                               "max_tokens": 1})
                listed = {m["id"]: m["state"] for m in g.get("/v1/models")["data"]}
                check("sha256-abc" not in listed, "the blob's own name", listed)
                equal({n: listed[n] for n in names}, {n: "loaded" for n in names}, "states")
                shows = [g.post("/api/show", {"model": n}) for n in sorted(names)]
                for show in shows:
                    equal(show["capabilities"], ["completion", "tools"], "capabilities")
                    equal(show["details"], shows[0]["details"], "details")
                check(names <= {m["name"].split(":")[0] for m in g.get("/api/ps")["models"]}, "ps")
                last = "one" if first == "two" else "two"
                equal(g.post("/api/generate", {"model": last, "keep_alive": 0})["done_reason"], "unload", "unload")
                equal(g.get("/api/ps")["models"], [], "its memory is back, whichever name was said")
    finally:
        shutil.rmtree(folder)


@test
def unloading_what_is_not_loaded():
    with Daemon(models=[SPROUT], placement=None) as d, Gateway(d) as g:
        for path in ("/api/generate", "/api/chat"):
            equal(g.post(path, {"model": "sprout", "keep_alive": 0})["done_reason"], "unload", path)
        check("does not exist" in g.post("/api/generate", {"model": "nope", "keep_alive": 0}, 404)["error"], "none")


@test
def times_and_sizes():
    """/api/tags has the file's date, /api/ps when the model leaves, both what was read of the file."""
    with Daemon(models=[SPROUT], placement=None) as d, Gateway(d) as g:
        tag = [m for m in g.get("/api/tags")["models"] if m["name"] == "sprout:latest"][0]
        equal(seconds_of(tag["modified_at"]), int(os.stat(SPROUT).st_mtime), "the file's date")
        tags = lambda: {m["name"]: m["details"] for m in g.get("/api/tags")["models"]}  # noqa: E731
        wait_for(lambda: all(m["family"] for m in tags().values()), "the heads of files that nobody used", 30)
        unused = tags()["sprout:latest"]
        before = int(time.time())
        g.post("/api/generate", {"model": "sprout", "prompt": "A", "stream": False, "keep_alive": "10m",
                                 "options": {"num_predict": 1}})
        wait_for(lambda: not d.jobs(), "the job is over")
        loaded = g.get("/api/ps")["models"][0]
        leaves = seconds_of(loaded["expires_at"]) - before
        check(595 <= leaves <= 605 + (time.time() - before), "ten minutes from now", loaded)
        details = g.post("/api/show", {"model": "sprout"})
        tag = [m for m in g.get("/api/tags")["models"] if m["name"] == "sprout:latest"][0]
        equal(tag["details"]["family"], details["model_info"]["general.architecture"], "family")
        equal(unused, tag["details"], "before the first use and after it")
        count = details["model_info"]["general.parameter_count"]
        size = tag["details"]["parameter_size"]
        check(abs(float(size[:-1]) * {"K": 1e3, "M": 1e6, "B": 1e9}[size[-1]] - count) <= count / 50, size, count)
        check(os.stat(SPROUT).st_size / 8 < count < 4 * os.stat(SPROUT).st_size, "weights in that file", count)


@test
def heads_are_known():
    """Context, family and sizes are those of the file's head before its first use, and still where it cannot be
    loaded: a part of it that is missing later, an architecture that is not computed."""
    folder = tempfile.mkdtemp(prefix="tandem-test-")
    try:
        for name in ("unused", "other"):
            shutil.copyfile(SPROUT, f"{folder}/{name}.gguf")
        with open(folder + "/other.gguf", "r+b") as f:
            f.seek(Gguf(folder + "/other.gguf").place["general.architecture"] + 8)
            f.write(b"llama7")
        size = os.stat(SPROUT).st_size
        with Daemon(placement=None, env={"TANDEM_MODEL_PATH": folder}) as d, Gateway(d) as g:
            def seen(name):
                tag = next(m for m in g.get("/api/tags")["models"] if m["name"] == name + ":latest")
                of = next(m for m in d.call("models")["models"] if m["name"] == name)
                return (tag["details"]["family"], tag["details"]["parameter_size"], tag["size"], of.get("context", 0),
                        g.get("/v1/models/" + name).get("max_model_len", 0),
                        g.get("/props?model=" + name)["default_generation_settings"]["n_ctx"])

            wait_for(lambda: seen("unused")[0] and seen("other")[0], "the heads of files that nobody used", 30)
            before = {name: seen(name) for name in ("unused", "other")}
            d.cli("load", "unused", check_exit=0)

            def has_failed():  # is told for three seconds, which may be over: then it is tried again
                g.post("/v1/completions", {"model": "other", "prompt": "A", "max_tokens": 1}, 400)
                return "llama7" in json.dumps([m.get("error") for m in d.status()["models"]])

            wait_for(has_failed, "it has failed")
            for name in sorted(before):
                equal(before[name], seen(name), f"{name}: before its first use and after it")
            check(before["unused"][3] > 0, "a context", before)
            equal(before["unused"][3:], before["unused"][3:4] * 3, "the same on all faces")
            equal((before["other"][0], before["other"][2]), ("llama7", size), "of one that cannot be loaded")
    finally:
        shutil.rmtree(folder)


@test
def many_files():
    """1,500 models in a folder are listed, each. Of more than are listed the log says so."""
    folder = tempfile.mkdtemp(prefix="tandem-test-")
    try:
        shutil.copy(SPROUT, folder + "/model0.gguf")
        for i in range(1, 1500):
            os.link(folder + "/model0.gguf", f"{folder}/model{i}.gguf")
        with Daemon(models=(), placement=None, env={"TANDEM_MODEL_PATH": folder}) as d, Gateway(d) as g:
            listed = {m["id"] for m in g.get("/v1/models")["data"]}
            equal([i for i in range(1500) if f"model{i}" not in listed], [], "listed")
            equal(g.get("/v1/models/model1499")["id"], "model1499", "one of them")
            for i in range(1500, 8200):
                os.link(folder + "/model0.gguf", f"{folder}/model{i}.gguf")
            equal(len(g.get("/v1/models")["data"]), 8192, "as many as are listed")
            check("more than 8192 models" in d.log(), "a word in the log", d.log()[-500:])
    finally:
        shutil.rmtree(folder)


@test
def tokens_have_their_own_bytes():
    """Log-probabilities name the tokens that the model made, whatever text a stop text or a call holds back."""
    weather = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
    tools = make_model("npu", "q8_0", arch="qwen3", chat="qwen3")
    name = os.path.basename(tools)[:-len(".gguf")]
    with Daemon(models=[TALE, tools], placement=None) as d, Gateway(d) as g:
        body = {"model": "tale", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "logprobs": 0}
        free = g.post("/v1/completions", body)["choices"][0]
        tokens = free["logprobs"]["tokens"]
        at = next(i for i in range(6, len(tokens)) if len(tokens[i]) > 3)
        stop = "".join(tokens[at - 2:at + 1])[:-2]  # ends two characters before its last token does
        ended = g.post("/v1/completions", dict(body, stop=stop))["choices"][0]
        equal(ended["text"], free["text"][:free["text"].index(stop)], "the text ends before it")
        n = len(ended["logprobs"]["tokens"])
        equal(ended["logprobs"]["tokens"], tokens[:n], "tokens of a completion")
        equal(ended["logprobs"]["text_offset"], free["logprobs"]["text_offset"][:n], "offsets")
        events = g.events("/v1/completions", dict(body, stop=stop))
        columns = [e["choices"][0]["logprobs"] for _, e in events if isinstance(e, dict)]
        equal([t for c in columns if c for t in c["tokens"]], tokens[:n], "streamed")
        chat = {"model": "tale", "messages": HI, "max_tokens": 24, "temperature": 0, "logprobs": True}
        whole = g.post("/v1/chat/completions", chat)["choices"][0]
        pieces = [bytes(e["bytes"]) for e in whole["logprobs"]["content"]]
        at = next(i for i in range(6, len(pieces)) if len(pieces[i]) > 3)
        stop = b"".join(pieces[at - 2:at + 1])[:-2].decode()
        ended = g.post("/v1/chat/completions", dict(chat, stop=stop))["choices"][0]["logprobs"]["content"]
        equal([bytes(e["bytes"]) for e in ended], pieces[:len(ended)], "tokens of a chat")
        check(len(ended) > at - 3 and all(e["token"] for e in ended), "none is empty", ended)
        # A call: its bytes are the call as the model wrote it.
        called = g.post("/v1/chat/completions", {
            "model": name, "messages": HI, "max_tokens": 80, "temperature": 1.5, "logprobs": True, "seed": 1,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": weather}}],
            "tool_choice": "required"})["choices"][0]
        written = b"".join(bytes(e["bytes"]) for e in called["logprobs"]["content"]).decode(errors="replace")
        arguments = called["message"]["tool_calls"][0]["function"]["arguments"]
        check(arguments in written and '"f"' in written, "the call's text", written, arguments)


QWEN = make_model("npu", "q8_0", arch="qwen3", chat="qwen3")
QWEN_NAME = os.path.basename(QWEN)[:-len(".gguf")]
LONG_NUMBERS = '{"a":[0.1,1.50,1E5,-0,1e400,18446744073709551615,12345678901234567890123456789,0.30000000000000004]}'


def forced(schema, seed=1):
    """Bodies in which a model is made to call a tool with this schema's text: OpenAI's, Anthropic's, Ollama's."""
    start = f'{{"model":"{QWEN_NAME}","messages":[{{"role":"user","content":"x"}}],'
    tool = f'"tools":[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]'
    return {"/v1/chat/completions": start + f'"max_tokens":200,"seed":{seed},{tool},"tool_choice":"required"}}',
            "/v1/messages": start + f'"max_tokens":200,"seed":{seed},"tools":[{{"name":"f","input_schema":{schema}}}],'
                                    '"tool_choice":{"type":"any"}}'}


@test
def numbers_of_calls():
    """What a model writes as a call's arguments is what the client gets, digit by digit, whole and in a stream."""
    with Daemon(models=[QWEN], placement=None) as d, Gateway(d) as g:
        for members, want in (('{"ts":{"const":1732871234.567}}', '"ts":1732871234.567'),
                              ('{"a":{"const":18446744073709551616}}', '"a":18446744073709551616'),
                              ('{"a":{"enum":[0.1]}}', '"a":0.1'), ('{"a":{"const":0.7}}', '"a":0.7')):
            name = members.split('"')[1]
            schema = f'{{"type":"object","properties":{members},"required":["{name}"],"additionalProperties":false}}'
            for path, body in forced(schema).items():
                status, _, data = g.request("POST", path, body)
                text = re.sub(r"\\[ntr]|\s", "", data.decode()).replace('\\"', '"')
                check(status == 200 and want in text, f"{path} with {members}", text)
                status, _, data = g.request("POST", path, body[:-1] + ',"stream":true}')
                pieces = "".join(e["delta"].get("partial_json", "") if "delta" in e else "".join(
                    f["function"].get("arguments", "") for c in e.get("choices", [])
                    for f in c["delta"].get("tool_calls", []))
                    for _, e in parse_events(data.decode()) if isinstance(e, dict))
                check(re.fullmatch(r"(\{%s\})+" % re.escape(want), re.sub(r"\s", "", pieces)), f"{path}, streamed",
                      pieces)
        # A call whose numbers no 64 bits hold is there, and may be sent back.
        for bound in ('"minimum":1e19,"maximum":2e19', '"maximum":18446744073709551615,"minimum":18446744073709551000'):
            schema = f'{{"type":"object","properties":{{"a":{{"type":"integer",{bound}}}}},"required":["a"]}}'
            status, _, data = g.request("POST", "/v1/messages", forced(schema)["/v1/messages"])
            check(b'"tool_use"' in data, "the call", data)
            block = data[data.index(b'{"type":"tool_use"'):].decode()
            block = block[:json.JSONDecoder().raw_decode(block)[1]]
            check(int(re.search(r'"input":\{\s*"a"\s*:\s*(\d+)', block)[1]) > 1 << 63, "a large number", block)
            turn = (f'{{"model":"{QWEN_NAME}","max_tokens":5,"messages":[{{"role":"user","content":"x"}},'
                    f'{{"role":"assistant","content":[{block}]}},{{"role":"user","content":[{{"type":"tool_result",'
                    f'"tool_use_id":"{json.loads(block)["id"]}","content":"y"}}]}}]}}')
            equal(g.request("POST", "/v1/messages", turn)[0], 200, "sent back in the next turn")


@test
def numbers_pass_through():
    """Schemas, arguments of the history and echoes reach the other side with the digits of the request, on each
    face."""
    with FakeDaemon([{"text": "x"}]) as d, Gateway(d) as g:
        def post(path, body):
            status, _, data = g.request("POST", path, body)
            equal(status, 200, f"{path}: {data[:300]}")
            return data.decode(), d.asked[-1]
        say = '"max_tokens":5,"messages":[{"role":"user","content":"x"}]'
        spaced = LONG_NUMBERS.replace(",", " ,\n ")  # white space goes, digits stay
        openai = f'"tools":[{{"type":"function","function":{{"name":"f","parameters":{spaced},"strict":true}}}}]'
        for path, tools in (("/v1/chat/completions", openai), ("/api/chat", openai + ',"stream":false'),
                            ("/v1/messages", f'"tools":[{{"name":"f","input_schema":{spaced}}}]')):
            _, asked = post(path, "{" + say[15 * (path == "/api/chat"):] + "," + tools + "}")
            check(f'"parameters":{LONG_NUMBERS}' in asked["tools"], f"{path}: tools", asked["tools"])
        for path, body in (
                ("/v1/chat/completions", '"response_format":{"type":"json_schema","json_schema":{"schema":%s}}'),
                ("/v1/chat/completions", '"response_format":{"type":"json_object","schema":%s}'),
                ("/v1/messages", '"output_config":{"format":{"type":"json_schema","schema":%s}}'),
                ("/v1/messages", '"output_format":{"type":"json_schema","schema":%s}'),
                ("/api/chat", '"stream":false,"format":%s')):
            _, asked = post(path, "{" + say[15 * (path == "/api/chat"):] + "," + body % spaced + "}")
            equal(asked["json_schema"], LONG_NUMBERS, f"{path}: a schema")
        _, asked = post("/v1/completions",
                        '{"prompt":"x","response_format":{"type":"json_object","schema":%s}}' % spaced)
        equal(asked["json_schema"], LONG_NUMBERS, "of a completion")
        data, asked = post("/v1/responses", '{"input":"x","temperature":0.70,"top_p":1e0,"metadata":%s,'
                           '"text":{"format":{"type":"json_schema","schema":%s}}}' % (spaced, spaced))
        equal(asked["json_schema"], LONG_NUMBERS, "of a response")
        for echoed in ('"temperature":0.70', '"top_p":1e0', f'"metadata":{LONG_NUMBERS}', f'"schema":{LONG_NUMBERS}'):
            check(echoed in data, f"echoed: {echoed}", data)
        call = '{"id":"abcdefghi","type":"function","function":{"name":"f","arguments":%s}}' % spaced
        turns = ('"max_tokens":5,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"",'
                 '"tool_calls":[%s]},{"role":"tool","tool_call_id":"abcdefghi","content":"y"}]' % call)
        blocks = ('"max_tokens":5,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":'
                  '"tool_use","id":"abcdefghi","name":"f","input":%s}]},{"role":"user","content":['
                  '{"type":"tool_result","tool_use_id":"abcdefghi","content":"y"}]}]' % spaced)
        for path, body in (("/v1/chat/completions", turns), ("/api/chat", turns + ',"stream":false'),
                           ("/v1/messages", blocks)):
            _, asked = post(path, "{" + body[15 * (path == "/api/chat"):] + "}")
            equal(asked["chat"][1]["calls"][0]["arguments"].decode(), LONG_NUMBERS, f"{path}: arguments of the history")
        # Where a number is used, and not passed on, its range is checked and the parameter named.
        for path, member in (("/v1/chat/completions", "temperature"), ("/v1/chat/completions", "seed"),
                             ("/v1/messages", "top_p"), ("/v1/responses", "max_output_tokens")):
            for number in ("1e400", "123456789012345678901234567890"):
                body = f'{{"{member}":{number},' + ('"input":"x"}' if path == "/v1/responses" else say + "}")
                status, _, data = g.request("POST", path, body)
                check(status == 400 and member in data.decode(), f"{path}: {member} {number}", status, data)


@test
def values_that_mean_a_default():
    """Ollama's -1: a random seed, no top_k, the whole window; and what else means the default there."""
    with Daemon(placement=None) as d, Gateway(d) as g:
        def ask(**options):
            return g.post("/api/generate", {"model": "tale", "prompt": PROMPT, "raw": True, "stream": False,
                                            "options": {"num_predict": 12, **options}})["response"]
        check(len({ask(seed=-1, temperature=1.5) for _ in range(4)}) > 1, "-1 is another seed each time")
        equal(ask(seed=7), ask(seed=7), "a seed is one")
        equal(ask(seed=7, top_k=-1), ask(seed=7, top_k=0), "no top_k")
        equal(ask(seed=7, repeat_last_n=-1), ask(seed=7, repeat_last_n=256), "the whole window")
        for nothing in (0, -1):
            equal(ask(seed=7, num_ctx=nothing), ask(seed=7), "num_ctx")
        status, headers, _ = g.request("POST", "/api/generate", {
            "model": "tale", "prompt": "x", "stream": False, "options": {"num_predict": 1, "repeat_last_n": -1}})
        check("repeat_last_n" in headers.get("x-tandem-warning", ""), "a word of it", status, headers)
        body = {"model": "tale", "prompt": PROMPT, "max_tokens": 12, "seed": 7}
        equal(g.post("/v1/completions", dict(body, top_k=-1))["choices"][0]["text"],
              g.post("/v1/completions", body)["choices"][0]["text"], "vLLM's -1")


@test
def nested_members():
    """What is nested is held, or refused by name: nothing of it is ignored silently."""
    say = {"model": "tale", "messages": HI, "max_tokens": 400, "temperature": 0}
    with Daemon(placement=None) as d, Gateway(d) as g:
        held = dict(say, response_format={"type": "json_object", "schema": {"const": {"a": 1}}})
        equal(json.loads(g.post("/v1/chat/completions", held)["choices"][0]["message"]["content"]), {"a": 1}, "held")
        for path, member, name in (
                ("/v1/chat/completions", {"response_format": {"type": "text", "schema": {}}}, "schema"),
                ("/v1/chat/completions", {"response_format": {"type": "json_object", "strict": True}}, "strict"),
                ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": {"schema": {}},
                                                              "x": 1}}, "x"),
                ("/v1/messages", {"output_format": {"type": "text", "schema": {}}}, "schema"),
                ("/v1/messages", {"output_config": {"format": {"type": "json_object", "name": "n"}}}, "name"),
                ("/v1/chat/completions", {"stream_options": {"include_usage": "yes"}}, "include_usage"),
                ("/v1/chat/completions", {"stream_options": {"continuous_usage_stats": True}}, "continuous_usage"),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": [
                    {"type": "text", "text": "x", "weight": 2}]}]}, "weight"),
                ("/v1/messages", {"tool_choice": {"type": "auto", "x": 1}}, "x"),
                ("/v1/chat/completions", dict(tools=CALLED, tool_choice={
                    "type": "function", "function": {"name": "f"}, "strict": True}), "'tool_choice.strict'"),
                ("/v1/chat/completions", dict(tools=CALLED, tool_choice={
                    "type": "function", "function": {"name": "f", "x": 1}}), "'tool_choice.function.x'")):
            _, _, data = g.request("POST", path, dict(say, **member))
            check(b'"error"' in data and name in data.decode(), f"{path} with {member}", data)


@test
def members_of_thoughts():
    """An item of thoughts is checked wherever it is, also where no message of the assistant's follows."""
    part, spoken = {"type": "reasoning_text", "text": "x"}, {"role": "assistant", "content": "y"}
    with FakeDaemon([{"text": "z"}]) as d, Gateway(d) as g:
        for behind in ([spoken], []):
            def refused(member, **of):
                thoughts = {"type": "reasoning", "content": [dict(part, **of)], **member}
                body = {"input": HI + [thoughts] + behind + HI, "max_output_tokens": 1}
                status, _, data = g.request("POST", "/v1/responses", body)
                return json.loads(data)["error"]["message"] if status == 400 else status
            equal(refused({}), 200, "as it came")
            equal(d.asked[-1]["chat"][1].get("thinking"), b"x" if behind else None, "what the daemon gets")
            equal(refused({}, x=1), "'input[1].content[0].x' is not known there", behind)
            check("is not known; there are: type, content, id" in refused({"x": 1}), "of the item", behind)
            check("no 'reasoning_text'" in refused({}, type="image"), "a type", behind)
            check("has no text" in refused({}, text=5), "a text", behind)


@test
def places():
    """An error says which message, part, block, call or tool it means: by its index in the request, and as `param`."""
    user, said = HI[0], {"role": "assistant", "content": "y"}
    text, image = {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}
    sound = {"type": "input_audio", "input_audio": {}}
    call, bad_call = ({"type": "function", "function": f} for f in ({"name": "f"}, {"name": "f", "x": 1}))
    use, result = {"type": "tool_use", "id": "a", "name": "f", "input": {}}, {"type": "tool_result", "tool_use_id": "a"}
    plain, schema = {"type": "function", "function": {"name": "f"}}, {"name": "f", "input_schema": {}}
    flat, item = {"type": "function", "name": "f"}, {"type": "function_call", "call_id": "a", "name": "f"}
    custom, space = ({"type": kind, "name": "s"} for kind in ("custom", "namespace"))
    known, number = "is not known", "has to be a string"

    def calls(call):
        return [user, dict(said, tool_calls=[plain, call])]

    def blocks(*these, role="assistant"):
        return [user, {"role": role, "content": list(these)}]
    in_messages = [([user, dict(user, x=1)], "messages[1].x", known),
                   ([user, dict(user, role=5)], "messages[1].role", number),
                   ([user, dict(user, role="king")], "messages[1]", "system, developer, user")]
    in_chat = in_messages + [
        (blocks(text, sound), "messages[1].content[1]", "is a part of type 'input_audio'"),
        (blocks(text, image), "messages[1].content[1].image_url.url", "is no URL of a picture"),
        (blocks(text, {"type": "text", "x": 1}), "messages[1].content[1].x", known),
        (blocks({"type": "text"}), "messages[1].content[0]", "without its text"),
        (calls(dict(call, x=1)), "messages[1].tool_calls[1].x", known),
        (calls(bad_call), "messages[1].tool_calls[1].function.x", known),
        (calls({}), "messages[1].tool_calls[1]", "is not {")]
    in_blocks = in_messages[:2] + [
        ([user, dict(user, role="king")], "messages[1]", "system, user and assistant"),
        (blocks(use, text, sound), "messages[1].content[2]", "is a part of type 'input_audio'"),
        (blocks(use, text, image), "messages[1].content[2].image_url.url", "is no URL of a picture"),
        (blocks(use, dict(text, x=1)), "messages[1].content[1].x", known),
        (blocks(text, dict(use, x=1)), "messages[1].content[1].x", known),
        (blocks(text, {"type": "tool_use"}), "messages[1].content[1]", "without id or name"),
        (blocks(text, dict(result, x=1), role="user"), "messages[1].content[1].x", known),
        (blocks(text, {"type": "tool_result"}, role="user"), "messages[1].content[1]", "answers no tool_use_id"),
        (blocks(result, dict(result, content=[text, sound]), role="user"), "messages[1].content[1].content[1]",
         "is a part of type 'input_audio'"),
        (blocks(result, dict(result, content=[text, image]), role="user"),
         "messages[1].content[1].content[1].image_url.url", "is no URL of a picture"),
        (blocks(text, {"type": "thinking"}), "messages[1].content[1]", "without its text"),
        (blocks(text, {"type": "thinking", "x": 1}), "messages[1].content[1].x", known),
        (blocks(text, {"type": "thinking", "thinking": "z", "signature": "?"}), "messages[1].content[1]", "signature")]
    in_input = [([user, dict(user, x=1)], "input[1].x", known), ([user, dict(item, x=1)], "input[1].x", known),
                ([user, item], "input[1]", "lacks call_id, name or arguments"),
                ([user, {"type": "function_call_output"}], "input[1]", "lacks call_id or output"),
                ([user, {"type": "custom_tool_call", "x": 1}], "input[1].x", known),
                ([user, {"type": "reasoning", "x": 1}], "input[1].x", known),
                ([user, {"type": "reasoning", "content": [{"type": "text", "text": "a"}, {"type": "x"}]}],
                 "input[1].content[1]", "no 'reasoning_text'"),
                (blocks({"type": "output_text", "text": "a"}, sound), "input[1].content[1]", "is a part of type")]
    tools = {"/v1/chat/completions": ((dict(plain, x=1), ".x", known), (dict(plain, type="x"), "", "is not {"),
                                      ({"type": "function", "function": {"name": 5}}, ".function.name", number),
                                      ({"type": "function", "function": {"x": 5}}, ".function.x", known)),
             "/v1/messages": ((dict(schema, x=1), ".x", known), (dict(schema, type="x"), "", "is not {"),
                              (dict(schema, name=5), ".name", number)),
             "/v1/responses": ((dict(flat, x=1), ".x", known), (dict(flat, name="n" * 76), "", "more than 75 bytes"),
                               (dict(flat, description=5), ".description", number), (dict(custom, x=1), ".x", known),
                               (dict(custom, format={"x": 1}), ".format", "is not known there"),
                               (dict(space, x=1), ".x", known),
                               (dict(space, tools=[flat, dict(flat, x=1)]), ".tools[1].x", known))}
    tools["/api/chat"] = tools["/v1/chat/completions"]
    first = {"/v1/messages": schema, "/v1/responses": flat}
    bodies = [(path, {"messages": m}, where, part) for path, these in (
        ("/v1/chat/completions", in_chat), ("/api/chat", in_messages), ("/v1/messages", in_blocks)) for m, where, part
        in these] + [("/v1/responses", {"input": m}, where, part) for m, where, part in in_input]
    bodies += [("/api/chat", {"messages": [user, dict(user, images=["x"])]}, "messages[1].images[0]", "is no base64")]
    for path, these in tools.items():
        turn = {"input": "x"} if path == "/v1/responses" else {"messages": HI}
        bodies += [(path, dict(turn, tools=[first.get(path, plain), tool]), "tools[1]" + where, part)
                   for tool, where, part in these]
    with FakeDaemon([]) as d, Gateway(d) as g:
        for path, body, where, part in bodies:
            status, _, data = g.request("POST", path, dict(body, **{"max_tokens": 5} if path == "/v1/messages" else {}))
            error = json.loads(data).get("error")
            message = error["message"] if isinstance(error, dict) else error
            equal(status, 400, f"{path}: {body} {message}")
            check(f"'{where}" in message and part in message, f"{path}: {where}: {part}", message)
            if isinstance(error, dict) and "param" in error:
                check(error["param"].startswith(where), f"{path}: param", error)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@test
def many_late_words():
    """Many of them behind a long text are joined with it in linear time: about the work of as many short messages."""
    with FakeDaemon([]) as d, Gateway(d) as g:
        def cost(role):
            said = [{"role": "user", "content": "x" * (7 << 20)}] + [{"role": role, "content": "y"}] * 4000
            before = cpu_seconds(g.process.pid)
            g.request("POST", "/v1/messages", {"model": "tale", "max_tokens": 1, "messages": said})
            return cpu_seconds(g.process.pid) - before
        of_the_user, of_the_system = cost("user"), cost("system")
        check(of_the_system < 3 * of_the_user + 0.2, "seconds of a core", of_the_user, of_the_system)


@test
def members_of_what_is_harmless():
    """An object that changes nothing here has its members checked all the same, in each place. What clients send in it
    passes without a warning."""
    block, function = {"type": "text", "text": "x"}, {"type": "function", "function": {"name": "f", "parameters": {}}}
    use = {"type": "tool_use", "id": "abcdefghi", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "abcdefghi", "content": "x"}

    def turn(**of):
        return {"messages": HI + [{"role": "assistant", "content": [dict(use, **of.get("use", {}))]},
                                  {"role": "user", "content": [dict(result, **of.get("result", {}))]}]}
    with Daemon(models=[QWEN], placement=None) as d, Gateway(d) as g:
        def refused(path, member, name, said):
            body = {"model": QWEN_NAME, "max_tokens": 1, "messages": HI}
            if path == "/v1/responses":
                body = {"model": QWEN_NAME, "input": "x", "max_output_tokens": 1}
            if path == "/v1/messages/count_tokens":
                del body["max_tokens"]
            status, headers, data = g.request("POST", path, dict(body, **member))
            equal(status, 400 if said else 200, f"{path} with {member}: {data[:300]}")
            check(not said or f"'{name}' {said}" in data.decode(), f"{path}: {name} {said}", data)
            equal(headers.get("x-tandem-warning"), None, "warning")
        for cache, name, said in (
                ({"type": "ephemeral"}, "", ""), ({"type": "ephemeral", "ttl": "1h", "scope": "global"}, "", ""),
                (None, "", ""), ({"type": "ephemeral", "tll": "1h"}, "cache_control.tll", "is not known")):
            held = {"cache_control": cache}
            tool = dict(name="f", input_schema={"type": "object"}, **held)
            for path, member, where in (("/v1/messages", held, ""), ("/v1/messages/count_tokens", held, ""),
                                        ("/v1/messages", {"system": [dict(block, **held)]}, "system[0]."),
                                        ("/v1/messages", {"tools": [tool]}, "tools[0]."),
                                        ("/v1/chat/completions", {"tools": [dict(function, **held)]}, "tools[0]."),
                                        ("/v1/messages", turn(use=held), "messages[1].content[0]."),
                                        ("/v1/messages", turn(result=held), "messages[2].content[0].")):
                refused(path, member, where + name, said)
        refused("/v1/messages", {"tools": [dict(name="f", input_schema={}, cache_control="x")]},
                "tools[0].cache_control", "has to be an object")
        refused("/v1/messages", {"metadata": {"user_id": "u"}}, "", "")
        refused("/v1/messages", {"metadata": {"user": "u"}}, "metadata.user", "is not known")
        refused("/v1/messages", {"metadata": ["u"]}, "metadata", "has to be an object")
        refused("/v1/chat/completions", {"metadata": {"any": "name"}}, "", "")  # the client's own names
        for options in ({}, {"include_obfuscation": False}, {"include_usage": True}):
            refused("/v1/responses", {"stream_options": options}, "", "")
        refused("/v1/responses", {"stream_options": {"obfuscate": 1}}, "stream_options.obfuscate", "is not known")
        refused("/v1/responses", {"stream_options": {"include_usage": 5}}, "stream_options.include_usage",
                "has to be true or false")
        refused("/v1/responses", {"stream_options": 5}, "stream_options", "has to be an object")


@test
def options_of_vectors():
    """Ollama's options pass, whatever their values, since none of them changes a vector. Other names are refused."""
    path = make_model("a", "q8_0", arch="gemma-embedding", seed=1)
    with Daemon(models=[path], placement=None) as d, Gateway(d) as g:
        for url, text in (("/api/embed", "input"), ("/api/embeddings", "prompt")):
            body = {"model": os.path.basename(path)[:-len(".gguf")], text: "x"}
            want = g.post(url, body)
            for options in ({"num_ctx": 2048, "temperature": 0, "mirostat": 2}, {"typical_p": 0.5}, {}, None):
                got = g.post(url, dict(body, options=options))
                equal({k: got[k] for k in got if k.startswith("embedding")},
                      {k: want[k] for k in want if k.startswith("embedding")}, options)
            error = g.post(url, dict(body, options={"num_ctxt": 1}), 400)["error"]
            check(error.startswith("'options.num_ctxt' is not known; there are: num_predict"), url, error)
            equal(g.post(url, dict(body, options="x"), 400)["error"], "'options' has to be an object", url)


@test
def members_of_show():
    with Daemon(placement=None) as d, Gateway(d) as g:
        def show(status, **members):
            got, headers, data = g.request("POST", "/api/show", members)
            equal(got, status, f"{members}: {data[:300]}")
            return headers.get("x-tandem-warning") if status == 200 else json.loads(data)["error"]
        # As Ollama's own program asks, and by the older name.
        equal(show(200, model="tale", system="", template="", verbose=False, options=None, name=""), None, "nothing")
        equal(show(200, name="tale"), None, "the older name")
        equal(show(200, model="tale", verbose=True), "not used here: verbose", "a longer answer")
        equal(show(200, model="tale", modle="x"), "not used here: modle", "what is not known")
        for member in ({"system": "x"}, {"template": "x"}, {"options": {"num_ctx": 1}}):
            check(f"'{list(member)[0]}' cannot be taken" in show(400, model="tale", **member), "refused", member)
        equal(show(400, model=5), "'model' has to be a string", "type")


@test
def sampling_that_is_left_open():
    """A response repeats how it was asked to draw, and names no value for what the request leaves open."""
    with Daemon(placement=None) as d, Gateway(d) as g:
        body = {"model": "tale", "input": "x", "max_output_tokens": 1}
        for given, want in (({}, (None, None)), ({"temperature": 0}, (0, None)), ({"top_p": 0.25}, (None, 0.25)),
                            ({"temperature": 1, "top_p": 1}, (1, 1))):
            whole = g.post("/v1/responses", dict(body, **given))
            equal((whole["temperature"], whole["top_p"]), want, given)
            for _, event in g.events("/v1/responses", dict(body, **given)):
                if "response" in event:
                    equal((event["response"]["temperature"], event["response"]["top_p"]), want, event["type"])


@test
def what_asks_for_nothing():
    say = {"model": "tale", "messages": HI, "max_tokens": 2}
    with Daemon(placement=None) as d, Gateway(d) as g:
        for path, members in (("/v1/responses", ({"reasoning": {"effort": "none"}}, {"reasoning": {"effort": None}},
                                                 {"text": {"verbosity": "medium"}}, {"reasoning": {}})),
                              ("/v1/messages", ({"context_management": {"edits": []}},
                                                {"context_management": {"edits": [{"type": "clear_thinking_20251015",
                                                                                   "keep": "all"}]}},
                                                {"output_config": {"effort": "high"}},
                                                {"output_config": {"effort": "max"},
                                                 "thinking": {"type": "adaptive"}})),
                              ("/v1/chat/completions", ({"modalities": []}, {"modalities": ["text"]},
                                                        {"reasoning_effort": "none"}, {"verbosity": "medium"}))):
            for member in members:
                body = {"model": "tale", "input": "x", "max_output_tokens": 2} if path == "/v1/responses" else say
                g.post(path, dict(body, **member))
        said = g.post("/v1/responses", {"model": "tale", "input": "x", "max_output_tokens": 2, "tool_choice": "none",
                                        "parallel_tool_calls": False})
        equal((said["tool_choice"], said["parallel_tool_calls"]), ("none", False), "what was said comes back")
        for path, member in (("/v1/responses", {"reasoning": {"effort": "high"}}),
                             ("/v1/messages", {"context_management": {"edits": [{"type": "clear"}]}}),
                             ("/v1/messages", {"context_management": {"edits": [{"type": "clear_tool_uses"}]}}),
                             ("/v1/messages", {"context_management": {"edits": {}}}),
                             ("/v1/messages", {"context_management": {"trigger": 1}}),
                             ("/v1/messages", {"output_config": {"effort": "minimal"}}),
                             ("/v1/messages", {"output_config": {"effort": 3}}),
                             ("/v1/chat/completions", {"modalities": ["audio"]})):
            body = {"model": "tale", "input": "x", "max_output_tokens": 2} if path == "/v1/responses" else say
            g.post(path, dict(body, **member), 400)


@test
def late_words_of_the_system():
    """Behind other messages they are the user's, as agents send them; in front they are the system's."""
    def asked(*messages, **more):
        g.post("/v1/messages", {"model": "tale", "max_tokens": 9, "messages": list(messages), **more})
        return [(m["role"], m.get("text", b"").decode()) for m in fake.asked[-1]["chat"]]

    def say(role, *texts):
        return {"role": role, "content": [{"type": "text", "text": t} for t in texts] if len(texts) > 1 else texts[0]}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sun"}]}
    with FakeDaemon([{"text": b"Yes"}]) as fake, Gateway(fake) as g:
        equal(asked(say("system", "S"), say("user", "a")), [("system", "S"), ("user", "a")], "in front")
        equal(asked(say("user", "a"), say("system", "S", "T")), [("user", "a\n\nS\nT")], "last")
        equal(asked(say("user", "a"), say("system", "S"), say("system", "T"), system="Q"),
              [("system", "Q"), ("user", "a\n\nS\n\nT")], "two of them")
        equal(asked(say("user", "a"), call, result, say("system", "S")),
              [("user", "a"), ("assistant", ""), ("tool", "sun"), ("user", "S")], "behind a result")
        equal(asked(say("user", "a"), say("assistant", "b"), say("system", "S")),
              [("user", "a"), ("assistant", "b"), ("user", "S")], "behind an answer")


@test
def names_of_tools():
    """Clients name the tool in its result, beside the call's id or alone. Nobody else has a name here."""
    call = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function",
                                                 "function": {"name": "look", "arguments": "{}"}}]}
    with FakeDaemon([{"text": b"Yes"}]) as fake, Gateway(fake) as g:
        for path, answers in (("/v1/chat/completions", ({"tool_call_id": "c1", "name": "look"}, {"name": "look"})),
                              ("/api/chat", ({"tool_name": "look"}, {"name": "look"}))):
            for answer in answers:
                g.post(path, {"model": "tale", "stream": False, "messages": HI + [
                    call if path != "/api/chat" else
                    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look",
                                                                                      "arguments": {}}}]},
                    {"role": "tool", "content": "sun", **answer}]})
                last = fake.asked[-1]["chat"][-1]
                equal((last["role"], last["text"], last.get("name")), ("tool", b"sun", "look"), f"{path}, {answer}")
            said = g.post(path, {"model": "tale", "messages": [dict(HI[0], name="Ann")]}, 400)["error"]
            check("messages[0].name" in str(said), f"{path}: the speaker's name", said)


@test
def copies_of_clients():
    """What a client's parser puts into an answer comes back with it."""
    one = {"role": "assistant", "content": [{"type": "text", "text": "{}", "parsed": {}}], "parsed": {}, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}", "parsed_arguments": {}}}]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "sun"}
    item = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}", "parsed_arguments": {}}
    block = {"role": "assistant", "content": [{"type": "text", "text": "{}", "parsed_output": {}}]}
    with FakeDaemon([{"text": b"Yes"}]) as fake, Gateway(fake) as g:
        for path, body in (("/v1/chat/completions", {"messages": HI + [one, result]}),
                           ("/v1/responses", {"input": HI + [item, {"type": "function_call_output", "call_id": "c1",
                                                                    "output": "sun"}]}),
                           ("/v1/messages", {"messages": HI + [block] + HI, "max_tokens": 9})):
            g.post(path, {"model": "tale", **body})
            check(len(fake.asked[-1]["chat"]) == 3, path, fake.asked[-1])


@test
def too_long():
    """In the words that agents look for, each provider's."""
    long = "king " * 5000
    with Daemon(placement=None) as d, Gateway(d) as g:
        n = len(d.tokenize(long))
        error = g.post("/v1/messages", {"model": "tale", "max_tokens": 5,
                                        "messages": [{"role": "user", "content": long}]}, 400)["error"]
        found = re.fullmatch(r"prompt is too long: (\d+) tokens > 4096 maximum", error["message"])
        check(error["type"] == "invalid_request_error" and found and int(found[1]) >= n, "Anthropic's", error)
        for path, body in (("/api/generate", {"prompt": long}), ("/api/chat", {"messages": [
                {"role": "user", "content": long}]})):
            # As a stream it would be an answer after a second, with the error in it.
            error = g.post(path, dict(body, model="tale", stream=False), 400)["error"]
            check(re.search(r"prompt is too long: \d+ tokens > 4096 maximum", error) and
                  "input length exceeds the context length" in error, path, error)
        g.post("/api/generate", {"model": "tale", "prompt": long, "stream": False,
                                 "options": {"num_ctx": 9000, "seed": 1}}, 400)
        error = g.post("/api/generate", {"model": "tale", "prompt": PROMPT, "raw": True, "stream": False,
                                         "options": {"num_ctx": 4}}, 400)["error"]
        check("prompt is too long: 5 tokens > 4 maximum" in error, "num_ctx", error)
        error = g.post("/v1/completions", {"model": "tale", "prompt": long}, 400)["error"]
        check("maximum context length is 4096 tokens" in error["message"] and
              error["code"] == "context_length_exceeded", "OpenAI's", error)


@test
def without_a_model_and_with_more():
    """No model: the daemon's default, whose name the answer has. Unknown members: a warning, and a line in the log."""
    with Daemon(models=[SPROUT, TALE], placement=None) as d, Gateway(d) as g:
        for path, body in (("/v1/chat/completions", {"messages": HI, "max_tokens": 2}),
                           ("/v1/completions", {"prompt": "x", "max_tokens": 2}),
                           ("/v1/responses", {"input": "x", "max_output_tokens": 2}),
                           ("/v1/messages", {"messages": HI, "max_tokens": 2}),
                           ("/api/chat", {"messages": HI, "stream": False, "options": {"num_predict": 2}}),
                           ("/api/generate", {"prompt": "x", "stream": False, "options": {"num_predict": 2}})):
            for model in ({}, {"model": ""}, {"model": None}):
                equal(g.post(path, dict(body, **model))["model"], "sprout", f"{path} {model}")
            for _ in range(2):
                status, headers, data = g.request("POST", path, dict(body, cache_prompt=True, client_field={"a": [1]}))
                equal(status, 200, f"{path}: {data[:200]}")
                warning = headers["x-tandem-warning"]
                check("cache_prompt" in warning and "client_field" in warning, path, warning)
            status, _, data = g.request("POST", path, dict(body, guided_regex="a+"))
            check(status == 400 and b"guided_regex" in data and b"docs/" not in data, f"{path}: would change it", data)
        equal(g.log().count("'client_field'"), 1, "a line in the log, once")
        events = g.events("/v1/completions", {"prompt": "x", "max_tokens": 2})
        equal({e["model"] for _, e in events if isinstance(e, dict)}, {"sprout"}, "in a stream")
        odd = {"prompt": "x", "max_tokens": 1, "a\r\nX-Evil: 1": 1, "\u00e9" * 300: 1,
               **{f"m{i}": 1 for i in range(50)}}
        status, headers, _ = g.request("POST", "/v1/completions", odd)
        check(status == 200 and "x-evil" not in headers and len(headers["x-tandem-warning"]) < 512, "hostile names",
              headers)
        for path in ("/completion", "/prop"):
            error = g.get(path, 404)["error"]["message"]
            check("/v1/chat/completions" in error and "docs/" not in error, "what there is", error)


@test
def large_bodies_hold_up_nobody():
    """Bodies of 8 MiB are read beside the loop: another user's first byte comes as it comes beside small ones."""
    keys = ("alice sk-alice-1", "bob sk-bob-12")
    ids = json.dumps({"prompt": list(range(100000, 100000 + 290000)), "max_tokens": 1})
    texts = json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 150}] * 10}] * 1000})
    with FakeDaemon([{"text": "x"}]) as d:
        path = os.path.join(d.dir, "keys")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("\n".join(keys) + "\n")
        with Gateway(d, "--api-key-file", path) as g:
            def first_byte():
                begin = time.monotonic()
                equal(g.request("GET", "/v1/models", headers={"Authorization": "Bearer sk-bob-12"})[0], 200, "bob's")
                return time.monotonic() - begin

            def measure(bodies):
                stop, n = threading.Event(), [0]

                def alice(path, body):
                    while not stop.is_set():
                        g.request("POST", path, body, {"Authorization": "Bearer sk-alice-1"})
                        n[0] += 1
                threads = [threading.Thread(target=alice, args=b) for b in bodies]
                for t in threads:
                    t.start()
                times_ = []
                while n[0] < 2 * len(bodies) or len(times_) < 40:
                    times_.append(first_byte())
                stop.set()
                for t in threads:
                    t.join()
                return sorted(times_)
            small = json.dumps({"prompt": "x", "max_tokens": 1})
            seen = []
            for _ in range(3):  # other programs may begin between two measures
                begin = time.monotonic()
                json.loads(ids)
                reading = time.monotonic() - begin  # what reading such a body takes on this machine, about
                before = measure([("/v1/completions", small)] * 2)
                slow = measure([("/v1/completions", ids), ("/v1/chat/completions", texts)])
                after = measure([("/v1/completions", small)] * 2)
                median, most = slow[len(slow) // 2], max(before[-1], after[-1])
                seen.append((median, most, reading))
                if median < 4 * most + reading:
                    return
            check(False, "the median beside large bodies, the longest beside small ones, reading one", seen)


main()
