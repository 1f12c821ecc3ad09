"""The chat page at / of tandem-http: who gets it and with which headers, and chats in headless Chromium with the tests'
models."""
import os
import re
import signal
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403
from page_browser import ENTER, NOTES, Browser  # noqa: E402

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
STORY = "Tell me a story about a king and his three sons."


class Paused:
    """The workers sleep, so that an answer that has begun cannot end."""

    def __init__(self, daemon):
        self.daemon = daemon

    def __enter__(self):
        self.pids = [self.daemon.worker_pid(name) for name in ("npu", "gpu")]
        for pid in self.pids:
            send_signal(pid, signal.SIGSTOP)

    def __exit__(self, *_):
        for pid in self.pids:
            send_signal(pid, signal.SIGCONT)


@test
def who_gets_it():
    with Daemon(placement=None) as d:
        with Gateway(d) as g:
            status, headers, page = g.request("GET", "/", headers=HTML)
            equal((status, headers["content-type"]), (200, "text/html; charset=utf-8"), "a browser")
            policy = headers["content-security-policy"]
            nonce = re.search(r"script-src 'nonce-([0-9a-f]{32})'", policy)[1]
            equal(re.findall(rb'nonce="([^"]*)"', page), [nonce.encode()] * 2, "the policy's nonce")
            check("default-src 'none'" in policy and "unsafe" not in policy, "policy", policy)
            check(nonce.encode() not in g.request("GET", "/", headers=HTML)[2], "another nonce each time")
            check(not re.findall(rb"https?://", page), "nothing from elsewhere is named")
            for accept in ("*/*", "application/json", None):
                status, headers, text = g.request("GET", "/", headers={"Accept": accept} if accept else None)
                equal((status, text, "content-security-policy" in headers), (200, b"Tandem is running\n", False),
                      f"Accept: {accept}")
            equal(g.request("GET", "/", headers={**HTML, "Host": "evil.example"})[0], 403, "another host's name")
        with Gateway(d, "--without-page") as g:
            equal(g.request("GET", "/", headers=HTML)[2], b"Tandem is running\n", "without the page")


@test
def a_chat():
    with Daemon(placement=None, hang_ms=STANDING_MS) as d, Gateway(d) as g, Browser(d.dir) as b:
        b.open(g, watched=False)
        wait_for(lambda: b.texts("#model option"), "the models")
        equal(b.texts("#model option")[0], "tale", "the default model is first")
        b.run("document.getElementById('temperature').value = 0; document.getElementById('limit').value = 60")
        b.type("#text", "Once upon a time <b>there</b> was" + ENTER)
        note = b.last_note("60 tokens")
        check(re.match(r"tale: 60 tokens, [\d.]+ a second, cut at the limit", note), "what stands below it", note)
        want = g.post("/v1/chat/completions", {
            "model": "tale", "temperature": 0, "max_tokens": 60,
            "messages": [{"role": "user", "content": "Once upon a time <b>there</b> was"}]})
        text = want["choices"][0]["message"]["content"]
        equal(b.said(), [text], "the answer")
        equal("".join(b.texts(".answer")).split(), text.split(), "the answer on the screen")
        equal(b.texts("article.user"), ["Once upon a time <b>there</b> was"], "a prompt is text, not HTML")
        with Paused(d):
            b.type("#text", "And then" + ENTER)
            wait_for(lambda: d.status().get("jobs_running", 0), "the second job")
            equal((b.shown("#stop"), b.disabled("#send")), (True, True), "the buttons while it runs, of an empty box")
            b.click("#stop")
            wait_for(lambda: b.texts(NOTES)[1:] == ["tale: stopped"], "it has stopped")
            equal((b.shown("#stop"), b.disabled("#send")), (False, False), "the buttons afterwards")
        wait_for(lambda: not d.status().get("jobs_running", 0), "the job ends too", 20)
        b.click("#clear")
        equal(b.texts("article"), [], "a new chat")
        equal(b.errors(), [], "errors in the browser's console")


@test
def conversations():
    """What is in the window and in the conversation when answers are long, stopped, refused or begun anew."""
    with Daemon(placement=None, hang_ms=STANDING_MS) as d, Gateway(d) as g, Browser(d.dir) as b:
        b.open(g)
        wait_for(lambda: b.value("#model"), "the models")
        b.size(900, 420)
        b.set("#temperature", "0")
        b.set("#limit", "20")
        b.type("#text", "    if x:" + ENTER)
        b.last_note("20 tokens")
        first = b.asked()[0]
        equal((first["messages"], first["temperature"], first["max_tokens"]),
              ([{"role": "user", "content": "    if x:"}], 0, 20), "what was asked; an indentation is kept")
        turn = [first["messages"][0], {"role": "assistant", "content": b.said()[0]}]
        b.set("#limit", "")

        # A long answer is followed, but for one who reads above. Enter does not end it; a stop sends nothing.
        b.hold("chat.scrollHeight > chat.clientHeight + 300")
        b.type("#text", STORY + ENTER)
        b.wait_held()
        wait_for(lambda: b.below() < 40, "the end is in the window")
        b.run("chat.scrollTop = 0")
        wait_for(lambda: not b.run("return following"), "the page knows that someone reads above")
        size = b.run("return chat.scrollHeight")
        b.hold(f"chat.scrollHeight > {size}")
        b.wait_held()
        equal(b.run("return chat.scrollTop"), 0, "one who reads above stays there")
        b.type("#text", "And make it funny" + ENTER)
        equal((b.value("#text"), b.shown("#stop"), len(b.texts("article.user"))), ("And make it funny", True, 2),
              "Enter while an answer comes leaves both as they are")
        b.click("#stop")
        b.last_note("stopped")
        equal((b.value("#text"), len(b.asked())), ("And make it funny", 2), "a text that waited is still there")
        b.set("#text", "")
        b.hold("false")
        story = [{"role": "user", "content": STORY}, {"role": "assistant", "content": b.said()[1]}]

        # Stopped before it has said anything, and refused. Empty fields send nothing.
        b.set("#temperature", "")
        with Paused(d):
            b.type("#text", "Who is he?" + ENTER)
            wait_for(lambda: d.status().get("jobs_running", 0), "a third job")
            check(b.below() < 40, "a new question is in the window", b.below())
            b.click("#stop")
            b.last_note("stopped")
        equal({k: v for k, v in b.asked()[-1].items() if k != "messages"},
              {"model": "tale", "stream": True, "stream_options": {"include_usage": True}, "return_progress": True},
              "what was asked")
        equal(b.value("#text"), "Who is he?", "a question without an answer is back in the box")
        b.set("#temperature", "0")
        b.set("#limit", "5")
        huge = ("the king and his sons " * 1500).strip()
        b.set("#text", huge)
        b.type("#text", ENTER)
        note = b.last_note("This message alone is too long for the model", "4096")
        tokens_each = int(re.search(r"resulted in (\d+) tokens", note)[1]) / 1500
        equal(b.value("#text"), huge, "so is one that was refused")
        b.set("#text", "Who is she?")
        b.type("#text", ENTER)
        b.last_note("5 tokens")
        equal(b.asked()[-1]["messages"], turn + story + [{"role": "user", "content": "Who is she?"}],
              "the conversation is as it was, the huge message forgot nothing")
        equal(b.texts("article.user"), ["    if x:", STORY, "Who is she?"], "what is on the screen")

        # A conversation that is too long forgets its oldest turns.
        b.set("#text", "the king and his sons " * int(3950 / tokens_each))
        b.type("#text", ENTER)
        b.last_note("5 tokens")
        check("forgotten" in "".join(b.texts("article.note")), "it is said", b.texts("article.note"))
        check(0 < len(b.asked()[-1]["messages"]) < 7, "fewer turns", len(b.asked()[-1]["messages"]))
        n = len(b.asked()[-1]["messages"])
        b.type("#text", "Hi" + ENTER)
        b.last_note("5 tokens")
        wait_for(lambda: len(b.asked()[-1]["messages"]) <= n + 2 and b.asked()[-1]["messages"][-1]["content"] == "Hi",
                 "the conversation goes on")

        # A new chat gets nothing of an answer to the old one.
        b.set("#limit", "")
        b.hold("[...document.querySelectorAll('.answer')].pop().textContent")
        b.type("#text", STORY + ENTER)
        b.wait_held()
        b.click("#clear")
        b.hold("false")
        equal(b.run("return document.activeElement.id"), "text", "where the focus is")
        b.set("#limit", "5")
        b.type("#text", "What is 2+2?" + ENTER)
        b.last_note("5 tokens")
        equal(b.asked()[-1]["messages"], [{"role": "user", "content": "What is 2+2?"}], "a new conversation")
        equal(b.texts("article.user"), ["What is 2+2?"], "a new screen")


@test
def which_model():
    """The default is chosen whatever is loaded, a choice is kept, answers say who made them, and a page that was opened
    without a daemon finds the models when there is one."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
        f.write("[daemon]\ndefault-model = tale\n")
        f.flush()
        with Daemon(models=(), placement=None, args=("--config", f.name)) as d, Gateway(d) as g, Browser(d.dir) as b:
            d.cli("generate", "-m", "sprout", "-n", "3", "Once", check_exit=0)
            equal(g.get("/v1/models")["data"][0]["id"], "sprout", "what is loaded is first")
            b.open(g)
            wait_for(lambda: b.value("#model"), "the models")
            equal(b.value("#model"), "tale", "the default is chosen")
            b.set("#limit", "3")
            for name in ("tale", "sprout"):
                b.run("model.value = arguments[0]; model.dispatchEvent(new Event('change'))", name)
                b.type("#text", "Once" + ENTER)
                b.last_note(name + ": 3 tokens")
            d.stop()
            b.open(g)
            wait_for(lambda: any("daemon" in t for t in b.texts(".wrong")), "the page says what is missing")
            b.type("#text", "Once" + ENTER)
            equal((b.value("#text"), b.texts("article.user")), ("Once", []), "nothing is asked of a model unknown")
            d.start()
            wait_for(lambda: b.value("#model"), "the models of the new daemon", 20)
            equal((b.value("#model"), b.texts(".wrong")), ("sprout", []), "the choice is kept, the complaint is gone")


@test
def loaded_and_unloaded():
    """The list of models loads and unloads one; with a key it loads alone."""
    def row(b, name):
        return b.run("""const li = [...document.querySelectorAll('#models-list li')]
                          .find(li => li.querySelector('strong').textContent === arguments[0]);
                        return li && li.querySelector('.note').textContent + '|' +
                          [...li.querySelectorAll('button:enabled')].filter(e => !e.hidden).map(e => e.textContent)""",
                     name)

    def press(b, name, word):
        wait_for(lambda: row(b, name) and row(b, name).endswith("|" + word), f"{word} of {name}")
        b.run("[...document.querySelectorAll('#models-list button')].find(e => e.getAttribute('aria-label') === "
              "arguments[0]).click()", f"{word} {name}")

    with Daemon(models=(), placement=None) as d:
        with Gateway(d) as g, Browser(d.dir) as b:
            b.open(g, watched=False)
            b.click("#models-open")
            press(b, "sprout", "Load")
            wait_for(lambda: "in memory|Unload" in row(b, "sprout"), "it is loaded")
            equal([m["name"] for m in g.get("/api/ps")["models"]], ["sprout:latest"], "what is in memory")
            size = next(m["size"] for m in g.get("/api/tags")["models"] if m["name"] == "sprout:latest")
            check(row(b, "sprout").startswith(f"{size / 1e6:.1f} MB, "), "its file's size", row(b, "sprout"), size)
            press(b, "sprout", "Unload")
            wait_for(lambda: "on disk|Load" in row(b, "sprout"), "it is unloaded")
            equal((g.get("/api/ps")["models"], b.texts("#models-said")), ([], ["sprout is no longer in memory."]),
                  "nothing is in memory")
        keys = os.path.join(d.dir, "keys")
        with open(os.open(keys, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("alice 12345678\n")
        with Gateway(d, "--api-key-file", keys) as g, Browser(d.dir) as b:
            b.open(g, watched=False)
            wait_for(lambda: b.shown("#key"), "the key is asked for")
            b.type("#key", "12345678\t")
            wait_for(lambda: b.value("#model"), "the models, with the key")
            b.click("#models-open")
            press(b, "sprout", "Load")
            press(b, "sprout", "Unload")
            wait_for(lambda: "owner of Tandem’s daemon" in b.texts("#models-failed")[0], "who may unload")
            wait_for(lambda: row(b, "sprout").endswith("in memory|"), "it is in memory, and no button is left")


@test
def with_a_key():
    with Daemon(placement=None) as d:
        keys = os.path.join(d.dir, "keys")
        with open(os.open(keys, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("alice 12345678\n")
        with Gateway(d, "--api-key-file", keys) as g, Browser(d.dir) as b:
            b.open(g)
            wait_for(lambda: any("API key" in t for t in b.texts(".wrong")), "the page says what is missing")
            b.type("#key", "12345678\t")
            wait_for(lambda: "tale" in b.texts("#model option"), "the models, with the key")


main()
