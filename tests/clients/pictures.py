"""Shows tandem-http pictures with the official Python clients, in the forms that each has. Run by
tests/integration/test_clients_pictures.py, which says where the gateway is (TANDEM_URL), which file the picture is
(TANDEM_PICTURE) and what the model says of it (TANDEM_WANT, JSON). Prints a line for each case; the exit status is 1
when one failed."""
import base64
import json
import os
import pathlib
import sys
import traceback

URL, WANT = os.environ["TANDEM_URL"], json.loads(os.environ["TANDEM_WANT"])
PATH = pathlib.Path(os.environ["TANDEM_PICTURE"])
os.environ.update(OPENAI_API_KEY="not used", ANTHROPIC_API_KEY="not used", OPENAI_BASE_URL=URL + "/v1",
                  ANTHROPIC_BASE_URL=URL, OLLAMA_HOST=URL)
MODEL, QUESTION, N = "see", "What is it?", WANT["n"]
DATA = base64.b64encode(PATH.read_bytes()).decode()
DATA_URL = "data:image/png;base64," + DATA
SEED = {"seed": 1}  # the likeliest tokens of a random model are the same whatever it sees
OPTIONS = {"num_predict": N, "temperature": 1, "repeat_penalty": 1, "top_k": 0, "top_p": 1, **SEED}


def same(got, want, what):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, want {want!r}")


def openai_chat():
    from openai import BadRequestError, OpenAI
    client = OpenAI(max_retries=0)

    def ask(**more):
        content = [{"type": "image_url", "image_url": dict({"url": DATA_URL}, **more)},
                   {"type": "text", "text": QUESTION}]
        return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": N, "temperature": 1,
                **SEED}
    for more in ({}, {"detail": "auto"}, {"detail": "low"}, {"detail": "high"}):
        got = client.chat.completions.create(**ask(**more))
        same((got.choices[0].message.content, got.usage.prompt_tokens), (WANT["text"], WANT["tokens"]), f"{more}")
    text = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(**ask(), stream=True))
    same(text, WANT["text"], "stream")
    turns = ask()["messages"] + [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "And then?"}]
    got = client.chat.completions.create(**dict(ask(), messages=turns))
    same((got.choices[0].message.content, got.usage.prompt_tokens_details.cached_tokens > 0), (WANT["second"], True),
         "second turn")
    try:
        client.chat.completions.create(**ask(url="https://example.org/a.png"))
    except BadRequestError as e:
        same((e.param, "nothing is fetched" in e.message), ("messages[0].content[0].image_url.url", True), str(e))
    else:
        raise AssertionError("a URL was taken")


def openai_responses():
    from openai import OpenAI
    client = OpenAI(max_retries=0)
    ask = {"model": MODEL, "max_output_tokens": N, "temperature": 1, "extra_body": SEED, "input": [
        {"role": "user", "content": [{"type": "input_image", "image_url": DATA_URL, "detail": "auto"},
                                     {"type": "input_text", "text": QUESTION}]}]}
    got = client.responses.create(**ask)
    same((got.output_text, got.usage.input_tokens), (WANT["text"], WANT["tokens"]), "answer")
    with client.responses.stream(**ask) as stream:  # it ends as incomplete, by the number of tokens
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    same(text, WANT["text"], "stream")


def anthropic_messages():
    from anthropic import Anthropic
    client = Anthropic(max_retries=0)
    for data in (DATA, PATH):
        source = {"type": "base64", "media_type": "image/png", "data": data}
        ask = {"model": MODEL, "messages": [{"role": "user", "content": [
            {"type": "image", "source": source}, {"type": "text", "text": QUESTION}]}]}
        drawn = {"max_tokens": N, "extra_body": {"temperature": 1, **SEED}}
        got = client.messages.create(**drawn, **ask)
        same([b.text for b in got.content], [WANT["text"]], f"answer to {type(data).__name__}")
        same(got.usage.input_tokens + got.usage.cache_read_input_tokens, WANT["tokens"], "usage")
        same(client.messages.count_tokens(**ask).input_tokens, WANT["tokens"], "count_tokens")
        with client.messages.stream(**drawn, **ask) as stream:
            same("".join(stream.text_stream), WANT["text"], "stream")


def ollama_client():
    import ollama
    client = ollama.Client(host=URL)
    for image in (str(PATH), PATH, PATH.read_bytes(), DATA, ollama.Image(value=PATH)):
        got = client.chat(MODEL, [{"role": "user", "content": QUESTION, "images": [image]}], options=OPTIONS)
        same((got.message.content, got.prompt_eval_count), (WANT["text"], WANT["tokens"]), f"{type(image).__name__}")
    got = client.generate(MODEL, QUESTION, images=[PATH], options=OPTIONS)
    same(got.response, WANT["text"], "generate")
    same("vision" in client.show(MODEL).capabilities, True, "capabilities")


def main():
    failed = 0
    for case in (openai_chat, openai_responses, anthropic_messages, ollama_client):
        try:
            case()
            print("ok  ", case.__name__, flush=True)
        except Exception:
            failed = 1
            print("FAIL", case.__name__, traceback.format_exc()[-3000:], flush=True)
    return failed


sys.exit(main())
