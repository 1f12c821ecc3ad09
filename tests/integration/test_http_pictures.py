"""Pictures over HTTP: in the forms of the four APIs, to what tandemd is asked and to the answer.

usage: test_http_pictures.py
What each door sends is seen by a daemon that keeps what it was asked. Answers come from a random pair of a text model
and its projector, and are those that the same job has over the client socket.
"""
import base64
import contextlib
import os
import select
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403
from lives import PATIENT  # noqa: E402
from seeing import ROWS, Seeing, file_of, picture  # noqa: E402

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
COUNT, OLLAMA, GENERATE = "/v1/messages/count_tokens", "/api/chat", "/api/generate"
TYPES = {"png": "image/png", "jpg": "image/jpeg", "webp": "image/webp"}
DRAWN = {"temperature": 1, "seed": 1}  # the likeliest tokens of this random model are the same whatever it sees
OPTIONS = {"num_predict": 6, "repeat_penalty": 1, "top_k": 0, "top_p": 1, **DRAWN}
USE = {"type": "tool_use", "id": "abcdefghi", "name": "look", "input": {}}


class Picture:
    """A part of a message, beside texts."""

    def __init__(self, name, data=None):
        self.name, self.file = name, file_of(name) if data is None else data

    def base64(self):
        return base64.b64encode(self.file).decode()

    def url(self):
        return f"data:{TYPES[self.name.rpartition('.')[2]]};base64,{self.base64()}"


def openai_part(p, **more):
    if isinstance(p, str):
        return {"type": "text", "text": p}
    return {"type": "image_url", "image_url": {"url": p.url(), **more}}


def responses_part(p, role="user", **more):
    if isinstance(p, str):
        return {"type": "output_text" if role == "assistant" else "input_text", "text": p}
    return {"type": "input_image", "image_url": p.url(), "detail": "auto", **more}


def block(p):
    if isinstance(p, str):
        return {"type": "text", "text": p}
    kind = TYPES[p.name.rpartition(".")[2]]
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": p.base64()}}


def ollama_message(role, parts):
    """Its pictures stand in front of its text."""
    out = {"role": role, "content": "".join(p for p in parts if isinstance(p, str))}
    images = [p.base64() for p in parts if isinstance(p, Picture)]
    return dict(out, images=images) if images else out


def body_of(path, turns, n=6):
    """A request of n tokens. turns: [(role, [parts])]."""
    if path == CHAT:
        return {"model": "see", "max_tokens": n, "logprobs": True, **DRAWN,
                "messages": [{"role": r, "content": [openai_part(p) for p in parts]} for r, parts in turns]}
    if path in (MESSAGES, COUNT):
        body = {"model": "see", "messages": [{"role": r, "content": [block(p) for p in parts]} for r, parts in turns]}
        return body if path == COUNT else dict(body, max_tokens=n, **DRAWN)
    if path == RESPONSES:
        return {"model": "see", "max_output_tokens": n, **DRAWN,
                "input": [{"role": r, "content": [responses_part(p, r) for p in parts]} for r, parts in turns]}
    return {"model": "see", "stream": False, "messages": [ollama_message(r, parts) for r, parts in turns],
            "options": dict(OPTIONS, num_predict=n)}


def asked_for(fake):
    """Texts and pictures of the last job: [(role, text)], [(file, message, offset)]."""
    job = fake.asked[-1]
    return ([(m.get("role", ""), m.get("text", b"").decode()) for m in job.get("chat", [])],
            [(p.get("file", b""), p.get("message", 0), p.get("offset", 0)) for p in job.get("pictures", [])])


@test
def forms():
    """Files, texts and their order are what tandemd is asked with, whatever the API."""
    wide, exif, lossy = Picture("wide.png"), Picture("exif.jpg"), Picture("lossy.webp")
    turns = [("user", ["Löok: ", wide, " and ", exif, "?"]), ("assistant", ["yes"]), ("user", [lossy, "And this?"])]
    texts = [("user", "Löok:  and ?"), ("assistant", "yes"), ("user", "And this?")]
    with FakeDaemon([{"text": b"x"}]) as fake, Gateway(fake) as g:
        for path in (CHAT, MESSAGES, RESPONSES, COUNT):
            g.post(path, body_of(path, turns))
            equal(asked_for(fake), (texts, [(wide.file, 0, 7), (exif.file, 0, 12), (lossy.file, 2, 0)]), path)
        g.post(OLLAMA, body_of(OLLAMA, turns))
        equal(asked_for(fake), (texts, [(wide.file, 0, 0), (exif.file, 0, 0), (lossy.file, 2, 0)]), OLLAMA)
        # /api/generate: with a system's message in front, and raw
        body = {"model": "see", "prompt": "What?", "images": [wide.base64(), exif.base64()], "stream": False}
        g.post(GENERATE, dict(body, system="Be brief."))
        equal(asked_for(fake), ([("system", "Be brief."), ("user", "What?")],
                                [(wide.file, 1, 0), (exif.file, 1, 0)]), GENERATE)
        g.post(GENERATE, dict(body, raw=True))
        equal((fake.asked[-1].get("prompt"), asked_for(fake)), (b"What?", ([], [(wide.file, 0, 0), (exif.file, 0, 0)])),
              "a raw prompt")
        # a picture alone; forms that clients have beside these
        for part in (openai_part(wide), dict(openai_part(wide), image_url=wide.url()), responses_part(wide),
                     openai_part(wide, detail="low"), openai_part(Picture("wide.png"), detail="auto")):
            g.post(CHAT, {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1})
            equal(asked_for(fake), ([("user", "")], [(wide.file, 0, 0)]), f"{str(part)[:60]}")
        url = wide.url().replace("data:image/png;", "DATA:Image/PNG;charset=x;")
        g.post(CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]})
        equal(asked_for(fake)[1], [(wide.file, 0, 0)], "a URL in capitals, with a parameter")
        status, headers, _ = g.request("POST", CHAT, {"messages": [
            {"role": "user", "content": [openai_part(wide, detail="high"), openai_part(wide, detail="high")]}]})
        equal((status, headers.get("x-tandem-warning", "").count("detail high")), (200, 1), "detail high")
        # every length of padding
        for n in range(1, 9):
            some = Picture("x.png", bytes(range(250, 250 - n, -1)))
            g.post(CHAT, body_of(CHAT, [("user", [some])]))
            equal(asked_for(fake)[1], [(some.file, 0, 0)], f"{n} bytes")


@test
def of_tools():
    """What a tool answers may have pictures, and an agent's late word of the system."""
    wide, exif = Picture("wide.png"), Picture("exif.jpg")
    with FakeDaemon([{"text": b"x"}]) as fake, Gateway(fake) as g:
        result = {"type": "tool_result", "tool_use_id": "abcdefghi", "content": [block(p) for p in ("a", wide, "b")]}
        g.post(MESSAGES, {"max_tokens": 1, "messages": [
            {"role": "user", "content": "Look."}, {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [block("Here: "), block(exif), result]}]})
        equal(asked_for(fake), ([("user", "Look."), ("assistant", ""), ("tool", "a\nb"), ("user", "Here: ")],
                                [(wide.file, 2, 1), (exif.file, 3, 6)]), MESSAGES)
        g.post(MESSAGES, {"max_tokens": 1, "messages": [
            {"role": "user", "content": [block(wide), block("Hi")]},
            {"role": "system", "content": [block("s"), block(exif)]}, {"role": "user", "content": "x"}]})
        equal(asked_for(fake), ([("user", "Hi\n\ns"), ("user", "x")], [(wide.file, 0, 0), (exif.file, 0, 5)]), "late")
        g.post(RESPONSES, {"input": [
            {"role": "user", "content": "Look."},
            {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": [responses_part("a"), responses_part(wide)]}]})
        equal(asked_for(fake), ([("user", "Look."), ("assistant", ""), ("tool", "a")], [(wide.file, 2, 1)]), RESPONSES)
        call = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        g.post(CHAT, {"messages": [
            {"role": "user", "content": "Look."}, {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "abcdefghi", "content": [openai_part(wide), openai_part("b")]}]})
        equal(asked_for(fake), ([("user", "Look."), ("assistant", ""), ("tool", "b")], [(wide.file, 2, 0)]), CHAT)


def refused(g, path, body, status=400):
    """The message, and which member it is about where the API says that."""
    error = g.post(path, body, status)["error"]
    return (error, None) if isinstance(error, str) else (error["message"], error.get("param"))


@test
def refusals():
    """Each says which picture it means, what is wrong with it and what to do. tandemd is not asked."""
    wide = Picture("wide.png")
    good = wide.base64()
    place = "messages[0].content[1]"

    def chat(part):
        return {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}], "max_tokens": 1}

    def image_url(url, **more):
        return chat({"type": "image_url", "image_url": {"url": url, **more}})

    def source(**s):
        return chat({"type": "image", "source": s})

    def images(*these):
        return {"messages": [{"role": "user", "content": "a", "images": list(these)}]}
    encoded = [("AAA=AAAA", "its character 4 is none of"), ("AAA\nAAAA", "one line without spaces"),
               ("AA-_", "base64 for URLs"), ("AAA", "no multiple of 4"), ("AAAA=", "no multiple of 4"),
               ("A===", "padding stands at the end"), ("AB==", "belong to no byte"), ("AAB=", "belong to no byte"),
               ("", "a picture of no bytes"), ("AAAé", "its character 4 is none of"), (good + "!", "is none of")]
    with FakeDaemon([{"text": b"x"}]) as fake, Gateway(fake) as g:
        url = place + ".image_url.url"
        cases = [(CHAT, image_url("data:image/png;base64," + text), url, why) for text, why in encoded]
        cases += [(CHAT, image_url(u), url, why) for u, why in (
            ("http://example.org/a.png", "nothing is fetched here: send the picture itself, as data:image/png;base64"),
            ("HTTPS://example.org/a.png", "nothing is fetched"), ("file:///etc/passwd", "no file is read here"),
            ("blob:x", "only the browser"), ("x", "no URL of a picture"), ("", "no URL of a picture"),
            ("data:image/png," + good, "without ';base64,'"), ("data:image/png;base64", "without ';base64,'"),
            ("data:;base64," + good, "is of type ''"), ("data:image/gif;base64," + good, "is of type 'image/gif'"),
            ("data:image/svg+xml;base64," + good, "image/png, image/jpeg and image/webp"),
            ("data:application/pdf;base64," + good, "is of type 'application/pdf'"))]
        cases += [(CHAT, chat({"type": "image_url"}), place + ".image_url", "has to be a string"),
                  (CHAT, chat({"type": "image_url", "image_url": {}}), url, "has to be a string"),
                  (CHAT, chat({"type": "image_url", "image_url": 5}), place + ".image_url", "has to be a string"),
                  (CHAT, image_url(wide.url(), x=1), place + ".image_url.x", "is not known"),
                  (CHAT, image_url(wide.url(), detail="best"), place + ".image_url.detail", "auto, low or high"),
                  (CHAT, chat({"type": "image_url", "image_url": {"url": wide.url()}, "x": 1}), place + ".x",
                   "is not known"),
                  (CHAT, chat({"type": "input_audio"}), place, "read text and pictures only")]
        cases += [(RESPONSES, {"input": chat(part)["messages"]}, where, why) for part, where, why in (
            ({"type": "input_image", "image_url": "https://x"}, "input[0].content[1].image_url", "nothing is fetched"),
            ({"type": "input_image", "file_id": "file-1"}, "input[0].content[1].file_id", "no files are kept"),
            ({"type": "input_image"}, "input[0].content[1].image_url", "has to be a string"),
            ({"type": "input_image", "image_url": wide.url(), "detail": "x"}, "input[0].content[1].detail", "auto,"),
            ({"type": "input_file", "file_data": "x"}, "input[0].content[1]", "read text and pictures only"))]
        png = {"type": "base64", "media_type": "image/png"}
        cases += [(MESSAGES, body, None, why) for body, why in [
            (source(type="url", url="https://x"), "nothing is fetched here: send the picture itself"),
            (source(type="file", file_id="x"), "no files are kept here"), (source(**png), "is not {"),
            (source(type="base64", data=good), "is not {"), (source(**png, data=5), "has to be a string"),
            (source(**png, data=good, x=1), "source.x' is not known"),
            (source(**dict(png, media_type="image/gif"), data=good), "is of type 'image/gif'"),
            (chat({"type": "image"}), "is not {")] + [(source(**png, data=text), why) for text, why in encoded]]
        cases += [(OLLAMA, images(good, text), None, why) for text, why in encoded + [
            (wide.url(), "send the picture's base64 alone"), (5, "has to be a string")]]
        cases += [(GENERATE, {"prompt": "x", "images": [good, "AAA"]}, None, "'images[1]' is no base64"),
                  (GENERATE, {"images": [good]}, None, "'images' belong to a 'prompt'"),
                  (OLLAMA, images(good, "AAA"), None, "'messages[0].images[1]' is no base64"),
                  (OLLAMA, {"messages": [{"role": "user", "content": "a", "images": good}]}, None, "be an array")]
        # As many as are taken, and one more: over several messages.
        some = Picture("x.png", b"x")
        many = [("user", [some] * 40), ("assistant", ["a"]), ("user", [some] * 24)]
        for path in (CHAT, MESSAGES, RESPONSES, OLLAMA):
            g.post(path, body_of(path, many))
            equal(len(asked_for(fake)[1]), 64, f"pictures over {path}")
            cases.append((path, body_of(path, many[:2] + [("user", [some] * 25)]), None, "is picture 65 of this"))
        n_asked = len(fake.asked)
        for path, body, where, why in cases:
            said, param = refused(g, path, body)
            check(why in said, f"{path}: {why} expected", said, body)
            if where:
                equal(param, where, f"{path}: {said}")
        equal(len(fake.asked), n_asked, "jobs that tandemd was asked for")


def whole(d, g, path, turns, n=6):
    """(text, tokens of the prompt, cached ones) of an answer; the log-probabilities where the API has them."""
    out = g.post(path, body_of(path, turns, n))
    if path == CHAT:
        choice, u = out["choices"][0], out["usage"]
        return (choice["message"]["content"], u["prompt_tokens"], u["prompt_tokens_details"]["cached_tokens"],
                [e["logprob"] for e in choice["logprobs"]["content"]])
    if path == MESSAGES:
        u = out["usage"]
        return (out["content"][0]["text"], u["input_tokens"] + u["cache_read_input_tokens"],
                u["cache_read_input_tokens"], None)
    if path == RESPONSES:
        u = out["usage"]
        return (out["output"][-1]["content"][0]["text"], u["input_tokens"], u["input_tokens_details"]["cached_tokens"],
                None)
    return out["message"]["content"], out["prompt_eval_count"], None, None


def of_the_socket(d, turns, n=6):
    """The same job over the client socket, each picture in front of what follows it."""
    chat, pictures = [], []
    for role, parts in turns:
        text = ""
        for p in parts:
            if isinstance(p, Picture):
                pictures.append(picture(p.file, len(chat), len(text.encode())))
            else:
                text += p
        chat.append((role, text))
    return d.generate(chat=chat, pictures=pictures, n=n, temp=1.0, seed=1, ignore_end=False)


@test
def answers():
    """Each door gives what the same job has over the socket, and usage counts a picture's rows."""
    wide, other = Picture("wide.png"), Picture("square224.png")
    with Seeing() as d, Gateway(d) as g:
        for turns in ([("user", [wide, "What is it?"])],
                      [("system", ["Be kind."]), ("user", [wide, "One"]), ("assistant", ["yes"]),
                       ("user", [other, "and another"])]):
            want = of_the_socket(d, turns)
            equal(want.error, None, "the error over the socket")
            n_pictures = sum(isinstance(p, Picture) for _, parts in turns for p in parts)
            check(want.done["prompt_tokens"] > n_pictures * ROWS, "tokens of the prompt", want.done)
            for path in (CHAT, MESSAGES, RESPONSES, OLLAMA):
                text, n_prompt, _, logprobs = whole(d, g, path, turns)
                equal((text, n_prompt), (want.text, want.done["prompt_tokens"]), path)
                if logprobs:
                    check(all(abs(a - b) < 1e-6 for a, b in zip(logprobs, want.logprobs)), "log-probabilities",
                          logprobs, want.logprobs)
            equal(g.post(COUNT, body_of(COUNT, turns))["input_tokens"], want.done["prompt_tokens"], "counted")
            events = g.events(CHAT, body_of(CHAT, turns))
            equal("".join(c["delta"].get("content") or "" for _, e in events if isinstance(e, dict)
                          for c in e["choices"]), want.text, "streamed")
        seen = of_the_socket(d, [("user", [wide, "What is it?"])])
        check(seen.text != of_the_socket(d, [("user", [other, "What is it?"])]).text, "a picture matters", seen.text)
        # Between texts, where Ollama's API has no place for one.
        turns = [("user", ["Look at ", wide, " this, and ", other, "."])]
        want = of_the_socket(d, turns)
        for path in (CHAT, MESSAGES, RESPONSES):
            equal(whole(d, g, path, turns)[:2], (want.text, want.done["prompt_tokens"]), path)
        raw = g.post(GENERATE, {"model": "see", "prompt": "What is it?", "images": [wide.base64()], "raw": True,
                                "stream": False, "options": OPTIONS})
        want = d.generate(prompt="What is it?", pictures=[picture("wide.png")], n=6, temp=1.0, seed=1,
                          ignore_end=False)
        equal((raw["response"], raw["prompt_eval_count"]), (want.text, want.done["prompt_tokens"]), "raw")


@test
def turns():
    """The second turn reads no picture again: its rows are cached, whichever door each turn comes through."""
    seen = [("user", [Picture("strokes.png"), "What does it show?"])]
    with Seeing() as d, Gateway(d) as g:
        whole(d, g, CHAT, seen)
        reader = d.readers()[0]
        os.kill(reader, signal.SIGKILL)
        wait_for(lambda: reader not in d.readers(), "the end of the tower's process")
        for path in (CHAT, MESSAGES, RESPONSES):
            seen += [("assistant", [f"It is {path}."]), ("user", ["And then?"])]
            _, n_prompt, n_cached, _ = whole(d, g, path, seen)
            check(ROWS < n_cached < n_prompt, "cached tokens", n_cached, n_prompt)
        equal(d.readers(), [], "processes with a tower")


@test
def models():
    """Which models see is told by name, and one that does not says so when it is shown a picture."""
    seen = [("user", [Picture("wide.png"), "What is it?"])]
    with Seeing() as d, Gateway(d) as g:
        for name, sees in (("see", True), ("tale", False)):
            equal("vision" in g.post("/api/show", {"model": name})["capabilities"], sees, f"/api/show of {name}")
            equal("vision" in g.get(f"/v1/models/{name}")["capabilities"], sees, f"/v1/models/{name}")
            equal(g.get(f"/props?model={name}")["modalities"]["vision"], sees, f"/props of {name}")
        for path in (CHAT, MESSAGES, RESPONSES, OLLAMA, COUNT):
            said, _ = refused(g, path, dict(body_of(path, seen), model="tale"))
            check("model tale takes no pictures: it has no vision tower" in said, path, said)
        # Files that are no pictures, and the place of the one that is meant.
        for name in ("cut.png", "bomb.png", "animated.webp"):
            bad = Picture(name, file_of(name, "refused"))
            said, param = refused(g, CHAT, body_of(CHAT, [("user", ["a", Picture("wide.png"), "b", bad])]))
            check(said.startswith("picture 2: "), name, said)
            equal(param, "messages[0].content[3]", name)
        equal(g.post(CHAT, body_of(CHAT, seen))["usage"]["completion_tokens"], 6, "and it goes on")
    with Seeing(size=None) as d, Gateway(d) as g:
        check("vision" not in g.post("/api/show", {"model": "see"})["capabilities"], "without its projector")
        check("mmproj-see.gguf" in refused(g, CHAT, body_of(CHAT, seen))[0], "what is missing")


@test
def large():
    """What a body has room for reaches tandemd; what has more is refused before it is read."""
    with Seeing() as d, Gateway(d) as g:
        for n, status, why in ((6 * 2**20 - 4096, 400, "picture 1: "), (6 * 2**20, 413, "at most 8388608 bytes")):
            said, _ = refused(g, CHAT, body_of(CHAT, [("user", [Picture("x.png", bytes(n)), "a"])]), status)
            check(why in said, f"{n} bytes", said)
        equal(g.post(CHAT, body_of(CHAT, [("user", [Picture("wide.png")])]))["usage"]["completion_tokens"], 6, "after")


@test
def shares():
    """While a job runs, its owner holds each picture as a file and as what libtandem keeps; no base64 beside them."""
    size, share = 5 << 20, 128 << 20
    body = json.dumps(body_of(CHAT, [("user", [Picture("x.png", bytes(size)), "a"])])).encode()
    head = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with FakeDaemon(None, max_frame=8 << 20) as fake, Gateway(fake) as g, contextlib.ExitStack() as stack:
        answer = b""
        while not answer and len(fake.asked) < share // size:
            s, n = stack.enter_context(g.connect()), len(fake.asked)
            s.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            wait_for(lambda: len(fake.asked) > n or select.select([s], [], [], 0)[0], "a job, or an answer")
            answer = first_answer(s) if len(fake.asked) == n else b""
        check(b" 429 " in answer and b"more than your share" in answer, "the share has an end", answer)
        # To be read, one takes its body, the values and a copy of their texts at once.
        equal(len(fake.asked), (share - 3 * len(body)) // (2 * size) + 1, "requests that fill a share")


LONG = [("user", [Picture("wide.png"), "One"]), ("assistant", ["yes"]), ("user", [Picture("alpha.png"), "and more"])]


class Stream(threading.Thread):
    """A chat's answer while it comes: (token, log-probability) of each event."""

    def __init__(self, g, n=60):
        super().__init__()
        self.g, self.n_tokens = g, n
        self.told, self.reason, self.wrong = [], None, None
        self.start()

    def run(self):
        body = dict(body_of(CHAT, LONG, self.n_tokens), stream=True)
        c = http.client.HTTPConnection("127.0.0.1", self.g.port, timeout=PATIENCE * 3)
        try:
            c.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            while line := r.readline():
                if line.startswith(b"data: {"):
                    self.take(json.loads(line[6:]))
        except (OSError, http.client.HTTPException) as e:
            self.wrong = e
        finally:
            c.close()

    def take(self, event):
        self.wrong = event.get("error", self.wrong)
        for choice in event.get("choices", []):
            self.told += [(e["token"], e["logprob"]) for e in (choice["logprobs"] or {}).get("content", [])]
            self.reason = choice["finish_reason"] or self.reason

    def wait(self):
        self.join()
        equal((self.wrong, self.reason, len(self.told)), (None, "length", self.n_tokens), "how it ended")
        return self.told


def dies_in_the_midst(d, g):
    """A stream whose daemon is killed when it has some tokens and more to come."""
    for _ in range(20):
        d.wait_ready()
        with d.standing() as workers:
            stream = Stream(g)
            run_in_slices(workers, lambda: len(stream.told) >= 5 or not stream.is_alive(), "tokens")
            if d.jobs():
                d.kill()
                return stream
        stream.join()  # on a busy machine a slice may last to its end
    raise AssertionError("no stream was in its midst")


@test
def next_daemon():
    """The daemon dies and another one starts: the job goes there with its pictures, and ends with the same tokens."""
    with Seeing(hang_ms=STANDING_MS, env={"TANDEM_REATTACH": PATIENT}) as d, Gateway(d) as g:
        want = Stream(g).wait()
        stream = dies_in_the_midst(d, g)
        d.start()
        equal(stream.wait(), want, "tokens and log-probabilities")
        d.expect_exit = 0


def peers_file(d, g):
    path = os.path.join(d.dir, "peers")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
        f.write(f"http://127.0.0.1:{g.port}\n")
    return path


@test
def peer():
    """The daemon dies, and a peer goes on with the job and its pictures: from its midst, and from its beginning."""
    with Seeing() as other, Gateway(other) as b, Seeing(hang_ms=STANDING_MS) as d, \
            Gateway(d, "--peers", peers_file(d, b)) as a:
        want = Stream(b).wait()
        equal(Stream(a).wait(), want, "at home")
        stream = dies_in_the_midst(d, a)
        equal(stream.wait(), want, "from its midst")
        check("goes on at" in a.log(), "at the peer", a.log())
        equal(Stream(a).wait(), want, "from its beginning")
        raw = {"model": "see", "prompt": "What is it?", "images": [Picture("wide.png").base64()], "raw": True,
               "stream": False, "options": OPTIONS}
        equal(a.post(GENERATE, raw)["response"], b.post(GENERATE, raw)["response"], "a raw prompt")
        d.expect_exit = None


@test
def peers_of_both_kinds():
    """A peer that knows no pictures finds no prompt in such a job. One that is sent pictures that are none refuses."""
    with FakeDaemon([{"text": b"x"}]) as fake, Gateway(fake) as g:
        job = {"model": "see", "seed": 1}
        good = Picture("wide.png").base64()
        said = g.post("/tandem/generate", dict(job, messages_with_pictures=[{"role": "user", "text": "a"}]), 400)
        check("prompt" in said["error"]["message"], "no prompt", said)
        for pictures, why in (([{"message": 0, "offset": 0, "file": "AAA"}], "'pictures[0]' is no base64"),
                              ([{"message": 0, "file": good}], "'pictures[0]' lacks"),
                              ([{"message": 0, "offset": 2**40, "file": good}], "stands too far behind"),
                              ([5], "lacks message"), ([{"message": 0, "offset": 0, "file": good}] * 65, "at most 64")):
            said, _ = refused(g, "/tandem/generate", dict(job, pictures=pictures, messages_with_pictures=[
                {"role": "user", "text": "a"}]))
            check(why in said, why, said)
        equal(fake.asked, [], "what tandemd was asked")


main()
