"""Thoughts before an answer, through real workers: told from the answer, switched, ended by a budget. Models have
random weights: they think where their template has opened a thought, and end it where a budget makes them."""
import json
import pty
import random
import re
import subprocess

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

AUTO, OFF, ON, LOW, MEDIUM, HIGH = range(6)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"],
          "additionalProperties": False}
TOOLS = json.dumps([{"type": "function", "function": {"name": "look", "description": "A tool.", "parameters": SCHEMA}}])
CONTROL = 260  # <|im_start|>
OPEN, CLOSE = 264, 265  # <think>, </think> in the vocabulary of qwen3-thinking
HI = [("user", "Weather in Oslo?")]


def model_of(chat):
    return make_model("npu", "q8_0", arch="qwen3", chat=chat)


def name_of(chat):
    return os.path.basename(model_of(chat))[:-len(".gguf")]


def daemon(*chats, **more):
    return Daemon(models=tuple(model_of(c) for c in chats), placement=None, **more)


def thinker(n=60, **more):
    return dict(request(model=name_of("qwen3-thinking"), chat=HI, n=n, ignore_end=False, **more))


def thought_of(r):
    return b"".join(r.thoughts).decode()


def prompt_tokens(d, chat, **more):
    return Job(d, **request(model=name_of(chat), chat=HI, n=1, **more)).wait().done["prompt_tokens"]


def refused(d, part, **fields):
    try:
        error = Job(d, **fields).wait().error
    except Refused as e:
        error = {"code": str(e).split(":")[0], "message": str(e)}
    check(error and part in error["message"], f"{part!r} in the refusal", error)
    return error["code"]


@test
def told_from_the_answer():
    """In a chat without tools too. The budget ends the thought by its own mark, and what comes before is the same."""
    with daemon("qwen3-thinking") as d:
        free = Job(d, **thinker(temp=0.9, seed=3)).wait()
        equal(free.text, "", "all of it is a thought")
        check(len(thought_of(free)) > 20, "it thinks", free.thoughts)
        equal(free.done["thinking_tokens"], 60, "tokens of the thought")
        r = Job(d, **thinker(temp=0.9, seed=3, thinking_budget=12)).wait()
        same_ids(r.ids[:12], free.ids[:12], "before the end")
        equal(r.ids[12], CLOSE, "its end")
        check(thought_of(free).startswith(thought_of(r)), "the thought", r.thoughts)
        check(r.text and not any(r.thoughts[13:]), "an answer behind it", r.text)
        equal(r.done["thinking_tokens"], 13, "tokens of the thought and of its end")
        r = Job(d, **thinker(n=12, thinking_budget=4, logit_bias=f"{CONTROL}:100")).wait()
        equal((r.ids[0], r.text, thought_of(r)), (CONTROL, "", ""), "a control piece is no text")


@test
def binds_the_answer():
    """A schema, a grammar, a regular expression and stop texts are about the answer alone."""
    with daemon("qwen3-thinking") as d:
        for seed in range(times(2, 40)):
            r = Job(d, **thinker(n=200, temp=1.2, seed=seed, thinking_budget=9, json_schema=json.dumps(SCHEMA))).wait()
            # The model may end its thought itself. A budget that is over in the midst of a character waits for the rest
            # of it, at most three bytes.
            end = r.ids.index(CLOSE)
            check(r.reason == "DONE_STOP" and end <= 12, f"seed {seed}", r.reason, r.ids)
            check(len(json.loads(r.text)["city"]) <= 8, "valid by the schema", r.text)
            check(end < 9 or len(thought_of(r)) > 8, "a thought that no schema binds", thought_of(r))
            check(not r.done.get("incomplete"), "whole")
        r = Job(d, **thinker(n=200, seed=5, thinking_budget=9, regex="[0-9]{6}")).wait()
        check(re.fullmatch("[0-9]{6}", r.text), "a regular expression", r.text)
        r = Job(d, **thinker(n=9, seed=5, regex="[0-9]{6}")).wait()
        equal((r.reason, r.text, r.done.get("incomplete")), ("DONE_LENGTH", "", True), "cut in the thought")
        thought = Job(d, **thinker(n=40)).wait()
        letters = thought_of(thought)[8:11]
        r = Job(d, **thinker(n=40, stop=[letters])).wait()
        same_ids(r.ids, thought.ids, f"{letters!r} in a thought stops nothing")


@test
def keeps_white_space():
    """What goes on with a text, or is bound, is told as it was drawn, with the white space in front and behind."""
    with daemon("qwen3-thinking", "qwen3") as d:
        space = d.tokenize("a b", model=name_of("qwen3-thinking"), no_bos=True)[1]
        said = [*HI, ("assistant", "def f(x):")]
        job = dict(model=name_of("qwen3-thinking"), chat=said, ignore_end=False)
        equal(Job(d, **request(n=3, logit_bias=f"{space}:100", **job)).wait().text, "   ", "spaces that go on")
        code = r"\n    return x\n"
        want = "\n    return x\n"
        equal(Job(d, **request(n=40, regex=code, **job)).wait().text, want, "bound, and goes on")
        r = Job(d, **thinker(n=200, seed=5, thinking_budget=9, regex=code)).wait()
        equal((r.text, len(thought_of(r)) > 8), (want, True), "bound, behind a thought")
        r = Job(d, **request(model=name_of("qwen3"), chat=HI, n=40, regex=code, thinking=OFF, ignore_end=False)).wait()
        equal(r.text, want, "bound, thinking is off")


@test
def call_at_once():
    """A call that has to come leaves no thought, whatever the budget: the model ends the open one, in letters too."""
    with daemon("qwen3-thinking") as d:
        for seed in range(times(12, 100)):
            r = Job(d, **thinker(n=200, temp=1.0, seed=seed, thinking_budget=1 + seed % 3, tools=TOOLS,
                                 tool_choice="required", one_call=True)).wait()
            equal((r.reason, r.text), ("DONE_STOP", ""), f"seed {seed}: {r.error}")
            value = json.loads(b"".join(x.get("arguments", b"") for x in r.calls))
            check(len(value["city"]) <= 8, f"seed {seed}: valid", value)


@test
def whole_characters():
    """With tools, a budget that is over in the midst of a character ends the thought behind it."""
    with daemon("qwen3-thinking") as d:
        for budget in (1, 2, 3):
            r = Job(d, **thinker(n=12, temp=1.0, tools=TOOLS, logit_bias="234:100", thinking_budget=budget)).wait()
            equal((r.error, r.ids[0], r.ids.index(CLOSE)), (None, 234, 3), f"{budget}: three bytes, then the end")

@test
def same_ids_everywhere():
    """A budget, alone and with a schema: after a killed worker, with guesses, in company, the ids that it has alone."""
    cases = [dict(n=50, temp=1.0, seed=seed, thinking_budget=4 + 5 * ((seed + 2) % 8), chunk=seed % 3,
                  **({"json_schema": json.dumps(SCHEMA)} if seed % 2 else {})) for seed in range(times(4, 30))]
    with daemon("qwen3-thinking") as d:
        want = [Job(d, **thinker(speculation=1, **case)).wait() for case in cases]
        for r, case in zip(want, cases):
            check(CLOSE in r.ids[:case["thinking_budget"] + 1], "the thought ends within its budget", r.ids)
    guesses = kept_file("\n4294967295\n".join(" ".join(map(str, r.ids)) for r in want), ".ids")
    drafted = 0
    for env, kills in (({"TANDEM_GUESSES": guesses}, False), ({"TANDEM_GUESSES": guesses}, True), ({}, True)):
        with daemon("qwen3-thinking", env=env) as d:
            jobs = [Job(d, **thinker(**case)) for case in cases]
            for job in jobs[:2] if kills else ():
                job.until(3)
                d.signal_worker("gpu")
            for job, w, case in zip(jobs, want, cases):
                r = job.wait()
                same_ids(r.ids, w.ids, f"{case}, {'guesses, ' if env else ''}{'kills' if kills else 'no kill'}")
                equal((r.text, thought_of(r)), (w.text, thought_of(w)), f"{case}: text and thought")
                drafted += r.done.get("drafted", 0)
    check(drafted > 0, "guesses were checked")


def combination(rng):
    """A chat with any of thinking, budget, schema, tools, stop text, that its model can do."""
    chat = rng.choice(("qwen3", "qwen3-thinking", "qwen3-thinking", "gpt-oss"))
    job = {"model": name_of(chat), "chat": HI, "n": rng.choice((5, 30, 60)), "temp": rng.choice((0.0, 0.7, 1.2)),
           "seed": rng.randrange(1000), "chunk": rng.choice((0, 0, 1, 5)), "ignore_end": False,
           "thinking": rng.choice({"qwen3": (AUTO, OFF, ON, LOW), "gpt-oss": (AUTO, LOW, HIGH)}.get(chat, (AUTO, ON)))}
    if job["thinking"] != OFF and rng.randrange(3):
        job["thinking_budget"] = rng.choice((1, 2, 7, 20, 100))
    if rng.randrange(3) == 0:
        job["stop"] = [rng.choice(("a", " b", "e"))]
    form = rng.randrange(4)
    if form == 0:
        job["json_schema"] = json.dumps(SCHEMA)
    elif form == 1:
        job.update(tools=TOOLS, tool_choice=rng.choice(("auto", "none", "required")))
    elif form == 2:
        job["regex"] = "[a-f]{4,9}"
    return job


@test
def combinations():
    """Thinking with formats, tools, stop texts, guesses and killed workers: valid, and the ids of the job alone."""
    rng, met, thought = random.Random(54), 0, 0
    jobs = [combination(rng) for _ in range(times(24, 500))]
    with daemon("qwen3", "qwen3-thinking", "gpt-oss") as d:
        want = [Job(d, **request(**job, speculation=1)).wait() for job in jobs]
    for r, job in zip(want, jobs):
        thought += bool(any(r.thoughts))
        if r.reason == "DONE_STOP" and not r.done.get("incomplete") and "stop" not in job:
            check("json_schema" not in job or "city" in json.loads(r.text), f"{job}: valid", r.text)
            check("regex" not in job or re.fullmatch("[a-f]{4,9}", r.text), f"{job}: valid", r.text)
    guesses = kept_file("\n4294967295\n".join(" ".join(map(str, r.ids)) for r in want), ".ids")
    with daemon("qwen3", "qwen3-thinking", "gpt-oss", env={"TANDEM_GUESSES": guesses}, hang_ms=STANDING_MS) as d:
        d.wait_ready(60)
        starts = list(range(0, len(jobs), 12))
        for i in starts:
            with d.standing() as workers:
                running = [Job(d, **request(**job)) for job in jobs[i:i + 12]]
                run_in_slices(workers, lambda: running[3].has(2) or running[3].result.reason, "tokens")
                d.signal_worker(rng.choice(("npu", "gpu")))
            for job, w, fields in zip(running, want[i:], jobs[i:]):
                r = job.wait()
                met += r.recoveries > 0
                same_ids(r.ids, w.ids, f"{fields}")
                equal((r.text, thought_of(r), r.reason), (w.text, thought_of(w), w.reason), f"{fields}")
            d.wait_ready(60)
            if not met and len(starts) < 40:  # the jobs were over, or the other worker had them: these once more
                starts.append(i)
    check(met > 0 and thought > len(jobs) // 4, "jobs met a kill, and jobs thought", met, thought)
    print(f"FIGURE {len(jobs)} combinations, {thought} with thoughts, {met} met a kill: the ids of each job alone")


@test
def switched():
    """Each switch reaches the template, and what a model cannot do is refused by name."""
    with daemon("qwen3", "qwen3-thinking", "gpt-oss", "llama3.1") as d:
        auto = prompt_tokens(d, "qwen3")
        equal(prompt_tokens(d, "qwen3", thinking=ON), auto, "thinks by itself")
        equal(prompt_tokens(d, "qwen3", thinking=HIGH), auto, "a level is on, where there are none")
        check(prompt_tokens(d, "qwen3", thinking=OFF) > auto, "off is written in the prompt")
        equal(prompt_tokens(d, "gpt-oss", thinking=MEDIUM), prompt_tokens(d, "gpt-oss"), "medium is the template's own")
        check(prompt_tokens(d, "gpt-oss", thinking=LOW) != prompt_tokens(d, "gpt-oss"), "a level is in the prompt")
        equal(prompt_tokens(d, "llama3.1", thinking=OFF), prompt_tokens(d, "llama3.1"), "it never thinks")
        for chat, part, more in (("gpt-oss", "always thinks", {"thinking": OFF}),
                                 ("qwen3-thinking", "always thinks", {"thinking": OFF}),
                                 ("llama3.1", "no form for thoughts", {"thinking": LOW}),
                                 ("llama3.1", "thinking-budget", {"thinking_budget": 5})):
            equal(refused(d, part, **request(model=name_of(chat), chat=HI, **more)), "unsupported", chat)
        for part, more in (("a model thinks in a chat", {"thinking": ON}),
                           ("a model thinks in a chat", {"thinking_budget": 5}),
                           ("thinking is off", {"chat": HI, "thinking": OFF, "thinking_budget": 5})):
            equal(refused(d, part, **request(model=name_of("qwen3"), **more)), "bad-request", str(more))


@test
def guesses_behind_a_thought():
    """Once its budget is used up and the thought has ended, guesses at the answer are checked, and change nothing."""
    cases = [dict(n=60, temp=1.0, seed=5 + i, thinking_budget=4, **({"logit_bias": f"{OPEN}:{7 + i}"} if i else {}))
             for i in range(times(5, 40))]
    with daemon("qwen3-thinking") as d:
        want = [Job(d, **thinker(speculation=1, **case)).wait() for case in cases]
    guesses = kept_file("\n4294967295\n".join(" ".join(map(str, r.ids)) for r in want), ".ids")
    with daemon("qwen3-thinking", env={"TANDEM_GUESSES": guesses}) as d:
        got = [Job(d, **thinker(**case)).wait() for case in cases]
    for r, w, case in zip(got, want, cases):
        same_ids(r.ids, w.ids, f"with guesses, {case}")
    check(got[0].done["accepted"] > len(got[0].ids) / 2, "most tokens of the answer were guessed", got[0].done)
    again = sum(w.ids[w.ids.index(CLOSE):].count(OPEN) for w in want)
    check(again > len(cases), "answers open more thoughts, which end at once", again)


def on_terminal(d, *args):
    """What the command writes to a terminal."""
    master, slave = pty.openpty()
    env = dict(d.environment(), TANDEM_SOCKET=d.socket, TERM="xterm", HOME=d.dir, XDG_STATE_HOME=d.dir)
    p = subprocess.Popen([os.path.join(BIN, "tandem"), *args], stdin=slave, stdout=slave, stderr=slave, env=env,
                         start_new_session=True)
    os.close(slave)
    out = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        out += piece
    exit_of(p)
    os.close(master)
    return out.decode(errors="replace")


@test
def command():
    """A pipe gets the answer alone, a terminal the thought too, dimmed, and --json has both."""
    args = ("generate", "-m", name_of("qwen3-thinking"), "--think-budget", "9", "-n", "30", "--seed", "3", HI[0][1])
    with daemon("qwen3-thinking", "llama3.1") as d:
        lines = [json.loads(line) for line in d.cli(*args, "--json").stdout.splitlines()]
        thought = "".join(e.get("thinking", "") for e in lines)
        text = "".join(e["text"] for e in lines if e["event"] == "token") + lines[-1]["tail"]
        equal((lines[-1]["thinking_tokens"], lines[-1]["ids"][9]), (10, CLOSE), "--json")
        check(thought and text, "both", lines)
        equal(d.cli(*args).stdout.decode(), text, "a pipe gets the answer alone")
        shown = on_terminal(d, *args)
        dimmed = "".join(re.findall("\x1b\\[0?;?2m(.*?)\x1b\\[", shown, re.S))
        word = max(thought.split(), key=len)
        check(word in dimmed, f"{word!r} is dimmed", shown)
        check(max(text.split(), key=len) in shown.replace("\r\n", ""), "the answer", shown)
        said = d.cli("chat", *args[1:-1], input=HI[0][1].encode() + b"\n").stdout.decode()
        equal(said.rstrip("\n"), text.rstrip("\n"), "chat, from a pipe")
        said = d.cli("chat", "-m", name_of("llama3.1"), input=b"/set think high\nHi\n")
        check(said.returncode != 0 and "no form for thoughts" in said.stderr.decode(), "/set think", said.stderr)
        r = d.cli("generate", "-m", name_of("qwen3-thinking"), "--think-budget", "50", "-n", "9", "--seed", "3",
                  HI[0][1])
        equal((r.stdout, r.returncode), (b"", 0), "an answer that is all thought")
        check("only thought, for 9 tokens, and was cut off" in r.stderr.decode(), "is told of", r.stderr)
        check("only thought" not in d.cli(*args).stderr.decode(), "one with a text is not")
        said = d.cli("chat", "-m", name_of("llama3.1"), input=b"/set think off\n/set temp 0.25\n/set\n")
        equal(said.stderr.decode(), "", "a switch that asks for nothing")
        lines = said.stdout.decode().splitlines()
        equal([line.split() for line in lines[:3]], [["temp", "0.25"], ["think", "off"], []], "/set")
        said = d.cli("chat", "-m", name_of("qwen3-thinking"), input=b"/set think high\n")
        check("cannot think" not in said.stderr.decode(), "a model that thinks", said.stderr)
        for name, thinking, tools in (("qwen3-thinking", "always", "json"), ("llama3.1", "none", "json"),
                                      ("qwen3", "switch", "json")):
            shown = json.loads(d.cli("show", model_of(name), "--json").stdout)
            equal((shown["thinking"], shown["tools"]), (thinking, tools), f"show {name}")
        shown = d.cli("show", model_of("qwen3")).stdout.decode()
        check("can be switched on and off" in shown and "the template's own form, with JSON" in shown, "show", shown)
        r = d.cli("generate", "--raw", "--think", "on", "Hi")
        check(r.returncode == 2 and "--raw excludes" in r.stderr.decode(), "raw text", r.stderr)


main()
