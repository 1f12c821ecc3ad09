"""What users of other servers reported of those, tried on tandem-http: models with several names, numbers that pass
through, values that mean a default, tokens of log-probabilities, answers in the providers' own forms."""
import datetime
import json
import os
import shutil
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403

HI = [{"role": "user", "content": "Tell me of a king"}]


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
                    equal(show["capabilities"], ["completion"], "capabilities")
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
        count = details["model_info"]["general.parameter_count"]
        size = tag["details"]["parameter_size"]
        check(abs(float(size[:-1]) * {"K": 1e3, "M": 1e6, "B": 1e9}[size[-1]] - count) <= count / 50, size, count)
        check(os.stat(SPROUT).st_size / 8 < count < 4 * os.stat(SPROUT).st_size, "weights in that file", count)


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


main()
