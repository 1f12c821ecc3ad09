"""tandem-http: a stream tells how much of its prompt has been read, as llama-server does, and of lost workers."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403

LONG = "The king went into the garden and saw a little bird. " * 12
APIS = {"/v1/completions": {"prompt": LONG}, "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}]}}
STATES = ("QUEUED", "LOADING", "PREFILL", "DECODE", "RECOVERING")
WORDS = [{"text": b"Hel"}, {"text": b"lo"}]


def told(state, done=0, total=0):
    return {"progress": {"state": STATES.index(state), "done": done, "total": total}}


def chunks(text):
    """What a stream says, in its order: prompt_progress as a dict, a text as a text, and comments."""
    out = []
    for block in text.split("\n\n"):
        if block.startswith(":"):
            out.append(block)
        for _, e in parse_events(block):
            check(not isinstance(e, dict) or "choices" in e, "no error", e)
            for c in e["choices"] if isinstance(e, dict) else []:
                said = c["text"] if "text" in c else c["delta"].get("content")
                if "prompt_progress" in e:
                    check(not said and c["finish_reason"] is None, "a chunk of progress alone", e)
                    out.append(dict(e["prompt_progress"], index=c["index"]))
                elif said:
                    out.append(said)
    return [c for c in out if c != ": wait"]


def ask(g, path, **more):
    body = dict(APIS[path], model="tale", max_tokens=8, temperature=0, stream=True, return_progress=True)
    return chunks(g.stream(path, dict(body, **more))[1])


def readings(said):
    return [{k: v for k, v in c.items() if k != "time_ms"} if isinstance(c, dict) else c for c in said]


def reading(processed, total=10, cache=2, index=0):
    return {"total": total, "cache": cache, "processed": processed, "index": index}


@test
def chunks_of_progress():
    """What the daemon tells of the reading, and the whole of it in front of the first token."""
    tokens = [told("QUEUED"), told("LOADING", 5, 1 << 30), told("PREFILL", 2, 10), told("PREFILL", 6, 10),
              told("DECODE", 10, 10), *WORDS]
    with FakeDaemon(tokens) as d, Gateway(d) as g:
        for path in APIS:
            said = ask(g, path)
            equal(readings(said), [reading(2), reading(6), reading(10), "Hel", "lo"], path)
            times = [c["time_ms"] for c in said[:3]]
            check(times == sorted(times) and times[0] >= 0, "time_ms", times)
            equal(ask(g, path, return_progress=False), ["Hel", "lo"], f"{path}: nobody asked")
            said = ask(g, path, n=2)
            for i in range(2):
                equal(readings([c for c in said if isinstance(c, dict) and c["index"] == i])[-1],
                      reading(10, index=i), f"{path}: the end of choice {i}'s")
            whole = g.post(path, dict(APIS[path], model="tale", return_progress=True))
            check("prompt_progress" not in json.dumps(whole), "an answer that is no stream", whole)
            g.post(path, dict(APIS[path], model="tale", return_progress=1), want=400)
    with FakeDaemon([told("PREFILL", 2, 10), told("PREFILL", 6, 10)]) as d, Gateway(d) as g:
        for path in APIS:
            equal(readings(ask(g, path)), [reading(2), reading(6), reading(10)], f"{path}: no token but the end")


@test
def recovering():
    """A comment, once until there is a token, and what is read again. There may be nothing to read."""
    tokens = [told("PREFILL", 2, 10), WORDS[0], told("RECOVERING", 10, 10), told("PREFILL", 4, 10),
              told("RECOVERING", 4, 10), told("PREFILL", 8, 10), WORDS[1], told("RECOVERING", 10, 10),
              told("DECODE", 10, 10), {"text": b"!"}]
    with FakeDaemon(tokens) as d, Gateway(d) as g:
        again = [reading(4, cache=4), reading(8, cache=8), reading(10, cache=8)]
        for path in APIS:
            equal(readings(ask(g, path)),
                  [reading(2), reading(10), "Hel", ": recovering", *again, "lo", ": recovering", "!"], path)
            equal(ask(g, path, return_progress=False), ["Hel", ": recovering", "lo", ": recovering", "!"],
                  f"{path}: the comments alone")
        kind, text = g.stream("/v1/responses", {"model": "tale", "input": LONG, "stream": True})
        equal(text.count(": recovering\n\n"), 2, "the comments in a stream of Responses")


@test
def of_a_daemon():
    """The first chunk comes before anything is read, and tells what the prefix cache has; the last one is whole."""
    with Daemon(env={"TANDEM_PREFILL_ROWS": "16"}) as d, Gateway(d) as g:
        for path in APIS:
            for cached in (False, True):
                kind, text = g.stream(path, dict(APIS[path], model="tale", max_tokens=8, temperature=0, stream=True,
                                                 return_progress=True, stream_options={"include_usage": True}))
                said = chunks(text)
                usage = [e["usage"] for _, e in parse_events(text) if isinstance(e, dict) and e.get("usage")][0]
                of = [c for c in said if isinstance(c, dict)]
                equal({(c["total"], c["cache"]) for c in of},
                      {(usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])}, f"{path}: sizes")
                equal((of[0]["processed"], of[-1]["processed"]), (of[0]["cache"], of[0]["total"]), f"{path}: its ends")
                equal(said[:len(of)], of, f"{path}: in front of the text")
                check([c["processed"] for c in of] == sorted({c["processed"] for c in of}), f"{path}: it grows", of)
                equal(of[0]["cache"] > 0, cached, f"{path}: cached")


@test
def a_worker_is_killed():
    """In the midst of a stream: it says so, and has the same text."""
    with Daemon(hang_ms=STANDING_MS) as d, Gateway(d) as g:
        d.wait_ready()
        want = "".join(c for c in ask(g, "/v1/completions", max_tokens=200, seed=3) if isinstance(c, str))

        def start():
            result = []
            thread = threading.Thread(target=lambda: result.extend(ask(g, "/v1/completions", max_tokens=200, seed=3)))
            thread.start()
            return thread, result

        def streams(_):
            return any(0 < j.get("generated_tokens", 0) <= 100 for j in d.jobs())

        with d.begun(start, streams, "it streams") as (thread, result):
            d.signal_worker("gpu")
        thread.join()
        equal(result.count(": recovering"), 1, "it is said once")
        equal("".join(c for c in result if isinstance(c, str) and c != ": recovering"), want, "the same text")


main()
