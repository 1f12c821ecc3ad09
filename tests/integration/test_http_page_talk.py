"""What the chat page does with answers, settings and conversations, in headless Chromium. The answers are written here
and reach the page event by event (page_browser.py), so that no test waits for a model or depends on its words.
TANDEM_PAGE_PICTURE names a PNG to keep of the page."""
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403
from page_browser import *  # noqa: E402,F403

PICTURE = os.environ.get("TANDEM_PAGE_PICTURE")
SAMPLE = """# A *first* heading

Some **bold**, *italic*, ~~old~~ and `code <b>`; snake_case_name stays, so does 2 * 3 * 4.
Second line, [a link](https://example.org/a_(b)?q=1 "title"), <https://example.com/x>, and https://example.net/y.
[Not one](javascript:alert(1)) and ![a picture](https://example.org/p.png)

- one
  more of one
- two
  1. inner
  2. inner too

3. third
4. fourth

> quoted
> - list

| a | b \\| c | d |
|:--|---:|:-:|
| 1 | `2` | 3 |
| x | y |

```py
def f():
\treturn "# no heading"

```
***
<script>alert(1)</script>
"""
PRIMES = """The **sieve of Eratosthenes** crosses out the multiples of each prime:

```python
def primes(n):
    sieve = bytearray([1]) * n
    for i in range(2, n):
        if sieve[i]:
            yield i
            sieve[i * i::i] = bytes(len(range(i * i, n, i)))
```

| n | primes below it | share |
|--:|--:|--:|
| 100 | 25 | 25 % |
| 1,000 | 168 | 17 % |

- It needs one byte for each number.
- `list(primes(20))` is `[2, 3, 5, 7, 11, 13, 17, 19]`.
"""
# What the sample becomes: tags with their attributes and texts.
OUTLINE = """const outline = n => n.nodeType === 3 ? n.data : n.localName + (n.className ? '.' + n.className : '') +
  (n.start > 1 ? '@' + n.start : '') + (n.href ? '=' + n.href : '') + '(' + [...n.childNodes].map(outline).join('') +
  ')';
const div = document.createElement('div');
new MarkdownText(div).show(arguments[0]);
return [...div.childNodes].map(outline);"""
SAME = """const [texts, sizes] = arguments, wrong = [];
for (const text of texts) {
  const whole = document.createElement('div');
  new MarkdownText(whole).show(text);
  for (const size of sizes) {
    const grown = document.createElement('div'), view = new MarkdownText(grown);
    for (let n = size; n < text.length + size; n += size)
      view.show(text.slice(0, n));
    if (grown.innerHTML !== whole.innerHTML)
      wrong.push([text, size, grown.innerHTML, whole.innerHTML]);
  }
}
return wrong;"""
PIECES = ["# h\n", "a\n", "\n", "- x\n", "  - y\n", "    z\n", "1. n\n", "2) m\n", "> q\n", "```\n", "~~~sh\n", 
          "|a|b|\n", "|-|-|\n", "---\n", "**b", "*i*", "`c`", "``", "[t](https://a.example)",
          "\t", "  ", "* ", "_", "|", "-", "#", "\\*", "~~", "2. ", ">"]


def hold_begun(b, question):
    """Holds the answer to this question back when more than one event of it has come."""
    b.hold(f"(t => t && t.user === '{question}' && t.said.length > 8)"
           "(document.querySelector('.turn:last-of-type')?.view.turn)")


@test
def markdown():
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        talk(b, g)
        link = "a={0}({1})span.address( ({0}))"
        equal(b.run(OUTLINE, SAMPLE), [
            "h3.h1(A em(first) heading)",
            "p(Some strong(bold), em(italic), del(old) and code(code <b>); snake_case_name stays, so does 2 * 3 * 4.\n"
            "Second line, " + link.format("https://example.org/a_(b)?q=1", "a link") +
            ", a=https://example.com/x(https://example.com/x), and a=https://example.net/y(https://example.net/y).\n"
            "[Not one](javascript:alert(1)) and " + link.format("https://example.org/p.png", "a picture") + ")",
            "ul(li(p(one\nmore of one))li(p(two)ol(li(p(inner))li(p(inner too)))))",
            "ol@3(li(p(third))li(p(fourth)))",
            "blockquote(p(quoted)ul(li(p(list))))",
            "div.table(table(thead(tr(th(a)th.right(b | c)th.center(d)))"
            "tbody(tr(td(1)td.right(code(2))td.center(3))tr(td(x)td.right(y)td.center()))))",
            "div.code(div.bar(span(py)button.copy(Copy))pre(code(def f():\n\treturn \"# no heading\"\n)))",
            "hr()", "p(<script>alert(1)</script>)"], "the sample")
        equal(b.run("""const div = document.createElement('div'); new MarkdownText(div).show(arguments[0]);
                       return [...div.querySelectorAll('a')].map(a => [a.target, a.rel])""", SAMPLE),
              [["_blank", "noopener noreferrer"]] * 4, "links open elsewhere, and know nothing of this page")

        # However it comes, the end is the same.
        texts = [SAMPLE, SAMPLE.replace("\n\n", "\n")]
        seed = 1
        for _ in range(150):
            text = ""
            for _ in range(14):
                seed = (seed * 1103515245 + 12345) % 2 ** 31
                text += PIECES[(seed >> 8) % len(PIECES)]
            texts.append(text)
        for text, size, grown, whole in b.run(SAME, texts, [1, 5])[:1]:
            equal(grown, whole, f"{text!r}, {size} characters at a time")

        # Long and hostile texts end, and nothing of them is lost.
        signs = ["*", "_a ", "**a ", "`", "``` ", "[", "[a](", "![", "<https:", "> ", "- ", "|", "|-", "\\", "#", "1. ",
                 "~~", "a*b_", "    ", "\t", "*a* _b_", "(", "[a](b (", "https://)"]
        equal(b.run("""return arguments[0].filter(sign => [19000, 100000].some(n => {
                         const div = document.createElement('div'), text = sign.repeat(n / sign.length);
                         new MarkdownText(div).show(text + '\\n' + text + '\\nEND');
                         return !div.textContent.includes('END');
                       }))""", signs), [], "signs whose end is missing")
        equal(b.errors(), [], "errors in the browser's console")


@test
def turns():
    """Retry, edit, instructions, what is typed ahead, and a failed request."""
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        talk(b, g)
        b.click("#gear")
        b.type("#system", "Be brief.")
        b.type("#seed", "7")
        b.type("#seed", ENTER)
        equal(b.run("return document.getElementById('settings').open"), False, "Enter closes the settings")
        say(b, "one", "First.", thinking="Let me see.")
        say(b, "two", "Second.")
        equal((b.asked()[-1]["seed"], contents(b)), (7, ["Be brief.", "one", "First.", "two"]), "what was asked")
        equal(b.asked()[-1]["messages"][0]["role"], "system", "the instructions")
        equal((b.texts("details.thinking > div")[0], b.shown("details.thinking > div")), ("Let me see.", False),
              "thinking is folded")

        # Again, and otherwise.
        def press(name):
            b.run("[...document.querySelectorAll('.turn:last-of-type .actions button')]"
                  ".find(e => e.textContent === arguments[0]).click()", name)
        b.answer(events("Second again."))
        press("Retry")
        wait_for(lambda: len(b.asked()) == 3, "it is asked again")
        b.last_note("tokens")
        equal((contents(b), b.said()), (["Be brief.", "one", "First.", "two"], ["First.", "Second again."]), "again")
        b.type("#text", UP)
        equal((b.value("#text"), len(b.texts(".edited"))), ("two", 1), "to be edited")
        b.type("#text", ESCAPE)
        equal((b.value("#text"), b.texts(".edited"), b.shown("#hint")), ("", [], False), "nothing is edited")
        press("Edit question")
        b.answer(events("Third."))
        b.type("#text", "fold" + ENTER)
        wait_for(lambda: len(b.asked()) == 4, "it is asked otherwise")
        b.last_note("tokens")
        equal((contents(b)[-1], b.texts("article.user"), b.said()),
              ("twofold", ["one", "twofold"], ["First.", "Third."]), "otherwise")

        # A turn stays where its replacement fails; a new question goes back into the box.
        b.answer({"status": 503, "error": {"message": "no room", "code": "busy"}})
        press("Retry")
        b.last_note("no room")
        equal((b.said(), b.texts("article.user"), b.value("#text")), (["First.", "Third."], ["one", "twofold"], ""),
              "a retry that failed")
        equal(b.shown(".turn:last-of-type"), True, "the turn that it should have replaced is on the screen again")
        b.answer({"status": 503, "error": {"message": "still none"}})
        b.type("#text", "three" + ENTER)
        b.last_note("still none")
        equal((b.said(), b.value("#text")), (["First.", "Third."], "three"), "a question that failed")
        b.answer(events("Fourth."))
        b.type("#text", ENTER)
        b.last_note("tokens")
        equal(contents(b), ["Be brief.", "one", "First.", "twofold", "Third.", "three"], "nothing of what failed")
        equal(b.texts(".refused"), [], "the failure is gone")

        # Typed ahead: sent when the answer is there, unless it is changed or taken back.
        b.answer(events("Slow.", size=1), events("Fifth."))
        b.hold("asked.length === 8 && current.turns.length === 3")
        b.type("#text", "four" + ENTER)
        b.wait_held()
        equal((b.shown("#stop"), b.shown("#send")), (True, True), "Stop beside Send")
        b.type("#text", "five" + ENTER)
        check(b.shown("#hint"), "it is said that the text waits")
        b.type("#text", ESCAPE)
        check(not b.shown("#hint"), "it does not wait any more")
        b.type("#text", ENTER)
        check(b.shown("#hint"), "it waits again")
        equal((b.value("#text"), len(b.asked())), ("five", 8), "still in the box")
        b.hold("false")
        wait_for(lambda: b.said()[-1:] == ["Fifth."], "it is sent")
        b.last_note("tokens")  # it is kept, too: until then what is typed waits
        equal((contents(b)[-3:], b.value("#text"), b.shown("#hint")), (["four", "Slow.", "five"], "", False),
              "typed ahead")

        # A long prompt: how much of it has been read, also when a worker is lost.
        def reading(done):
            return {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}],
                    "prompt_progress": {"total": 2000, "cache": 0, "processed": done, "time_ms": 1}}
        b.answer([reading(1500), {"comment": "recovering"}, reading(500), reading(2000), *events("Read.")])
        for done, words in ((1500, "reading 1,500 of 2,000 tokens (75%)"), (500, "a worker was lost"),
                            (500, "reading 500 of 2,000 tokens (25%)")):
            b.hold(f"document.querySelector('.turn:last-of-type .note')?.textContent.includes('{words}')")
            if done == 1500:
                b.type("#text", "long" + ENTER)
            b.wait_held()
        b.hold("false")
        b.last_note("tokens")
        equal((b.asked()[-1]["return_progress"], b.said()[-1]), (True, "Read."), "after the reading")
        check("2 tokens" in b.last_note("tokens"), "chunks that tell of the reading are no tokens")

        # While it comes: the speed.
        b.answer(events("word " * 20, size=5))
        hold_begun(b, "six")
        b.type("#text", "six" + ENTER)
        b.wait_held()
        wait_for(lambda: re.search(r"about \d+ tokens a second|waiting for the next word",
                                   b.texts(".turn:last-of-type .note")[0]), "how fast it is, or that it stands")
        b.hold("false")
        check("a second" in b.last_note("tokens"), "the speed in the end")

        # A reload keeps what was set; a new chat is told the same.
        b.reload()
        equal((b.value("#system"), b.value("#seed")), ("Be brief.", "7"), "the settings after a reload")
        # A field that is wrong is shown instead of sent.
        give_models(b)
        b.set("#temperature", "9")
        b.type("#text", "seven" + ENTER)
        equal((b.run("return document.getElementById('settings').open"), len(b.asked())), (True, 0), "a wrong field")


@test
def branches():
    """A copy of a conversation up to a turn, and a conversation without a turn."""
    turn = "(i => document.querySelectorAll('.turn')[i])"
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        talk(b, g)
        titles = lambda: b.texts("#kept .open")  # noqa: E731

        def press(name, i):
            b.run(f"[...{turn}(arguments[1]).querySelectorAll('.actions button')]"
                  ".find(e => e.textContent === arguments[0]).focus()", name, i)
            b.ask("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": [
                {"type": kind, "value": ENTER} for kind in ("keyDown", "keyUp")]}]})

        for word in ("one", "two", "three"):
            say(b, word, word.capitalize() + ".")
        first = b.run("return current.id")
        b.run("current.turns[0].forgotten = true")
        press("Branch", 1)
        wait_for(lambda: titles() == ["Branch of one", "one"], "a copy in the list")
        equal((b.said(), b.texts("article.user"), b.run("return location.hash.slice(1) === current.id")),
              (["One.", "Two."], ["one", "two"], True), "the copy is on the screen")
        check(b.shown("#hint") and b.run("return document.activeElement.id") == "text", "it is said, and one can write")
        say(b, "four", "Four.")
        equal(contents(b), ["one", "One.", "two", "Two.", "four"], "it goes on; what was forgotten may fit")
        equal(b.shown("#hint"), False, "what was said is over")
        wait_for(lambda: b.run("return readChat(arguments[0]).then(c => c.turns.map(t => t.said))", first) ==
                 ["One.", "Two.", "Three."], "the other one is as it was")
        press("Branch", 2)
        wait_for(lambda: titles() == ["Branch of one", "Branch of one", "one"], "a branch of a branch")
        equal(len(set(b.run("return listChats().then(l => l.map(c => c.id))"))), 3, "each is one of its own")

        # Without its second turn.
        b.run("return openChat(arguments[0])", first)
        press("Delete", 1)
        check(b.shown("#sure-title"), "it is asked")
        b.type("#sure-no", ESCAPE)
        equal(b.said(), ["One.", "Two.", "Three."], "nothing is deleted unasked")
        press("Delete", 1)
        b.click("#sure-yes")
        wait_for(lambda: b.said() == ["One.", "Three."], "it is deleted")
        equal((b.texts("article.user"), b.run("return document.activeElement.id")), (["one", "three"], "text"),
              "on the screen")
        wait_for(lambda: b.run("return readChat(arguments[0]).then(c => c.turns.length)", first) == 2, "it is kept so")
        b.run("current.turns[0].forgotten = false")
        say(b, "five", "Five.")
        equal(contents(b), ["one", "One.", "three", "Three.", "five"], "it is not sent any more")

        # The last one may be edited meanwhile; while an answer comes nothing goes.
        b.type("#text", UP)
        press("Delete", 2)
        b.click("#sure-yes")
        wait_for(lambda: b.said() == ["One.", "Three."], "the one that was edited")
        equal((b.value("#text"), b.shown("#hint")), ("", False), "nothing is edited any more")
        b.answer(events("One two three four"))
        hold_begun(b, "six")
        b.type("#text", "six" + ENTER)
        b.wait_held()
        for name in ("Branch", "Delete"):
            press(name, 0)
            check("An answer comes" in b.texts("#hint")[0] and not b.shown("#sure-title"), name, b.texts("#hint"))
        b.hold("false")
        b.last_note("tokens")
        equal((b.said(), b.shown("#hint")), (["One.", "Three.", "One two three four"], False), "as it was")

        # A conversation without turns is none.
        for i in range(3):
            press("Delete", 0)
            b.click("#sure-yes")
            wait_for(lambda: len(b.said()) == 2 - i, "one less")
        wait_for(lambda: titles() == ["Branch of one", "Branch of one"], "it is gone from the list")
        equal((b.run("return readChat(arguments[0])", first), b.texts(".hello h1")),
              (None, ["Hello. What can I do for you?"]), "and from the screen")
        equal(b.errors(), [], "errors in the browser's console")


@test
def schema():
    """A schema in the settings: what is no JSON is shown and not sent, what is goes out as it was written."""
    text = '{ "type": "object", "properties": {"n": {"maximum": 9007199254740993.10}} }'
    said = '{"n": "*a* ```"}'
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        talk(b, g)
        b.click("#gear")
        b.type("#schema", '{"type": ')
        equal(b.texts("#schema-wrong"), [""], "nothing is said while it is written")
        b.type("#seed", "1")
        check(b.texts("#schema-wrong")[0].startswith("The schema is no JSON: "), "left", b.texts("#schema-wrong"))
        b.type("#seed", ENTER)
        equal(b.run("return $('settings').open"), True, "Done waits for it")
        b.type("#seed", ESCAPE)
        b.type("#text", "one" + ENTER)
        equal((b.run("return $('settings').open"), len(b.asked()), b.value("#text")), (True, 0, "one"), "not sent")
        for wrong in ("[1]", "1", '"text"', "null"):
            b.set("#schema", wrong)
            b.run("$('schema').dispatchEvent(new Event('change'))")
            equal(b.texts("#schema-wrong"), ["A JSON Schema is an object: it stands in { }."], wrong)
        b.set("#schema", "")
        b.type("#schema", text)
        equal(b.texts("#schema-wrong"), [""], "it is right")
        b.type("#seed", ENTER)
        equal(b.run("return $('settings').open"), False, "the settings close")
        check("JSON Schema" in b.texts(".hello p")[0], "the empty page says it", b.texts(".hello p"))
        b.run("window.bodies = []; const before = fetch;"
              "fetch = (path, o) => { bodies.push(o.body); return before(path, o); }")
        say(b, "one", said)
        equal(b.asked()[-1]["response_format"]["json_schema"]["name"], "answer", "a format of OpenAI's")
        check(text in b.run("return bodies.find(x => x)"), "as it was written", b.run("return bodies"))
        equal((b.texts(".answer code"), b.texts(".answer em")), ([said], []), "the answer is code")
        check("by the schema" in b.last_note("tokens"), "its note")
        equal(b.run("return asMarkdown(current)").split("## tale\n\n")[1], "```json\n" + said + "\n```\n", "Markdown")

        b.reload()
        wait_for(lambda: b.texts(".answer code") == [said], "after a reload")
        equal(b.value("#schema"), text, "the schema, too")
        give_models(b)
        b.answer({"status": 400, "error": {"message": "response_format: no such word"}})
        b.set("#text", "two")
        b.type("#text", ENTER)
        b.last_note("no such word")
        equal(b.value("#text"), "two", "what the server refuses goes back into the box")
        b.set("#schema", "")
        say(b, "two", "*Yes.*")
        equal(("response_format" in b.asked()[-1], b.texts(".answer em")), (False, ["Yes."]), "without one")
        equal(b.said(), [said, "*Yes.*"], "the conversation")


@test
def models():
    """The list of models: what it tells, what can be pressed, and what fails."""
    rows = """return [...document.querySelectorAll('#models-list li')].map(li => [
                li.querySelector('strong').textContent, li.querySelector('.note').textContent,
                ...[...li.querySelectorAll('button')].filter(e => !e.hidden)
                .map(e => e.textContent + (e.disabled ? ' (off)' : ''))])"""
    known = [{"id": "tale", "default": True, "state": "loaded"}, {"id": "eye", "state": "available",
             "capabilities": ["completion", "vision"]}, {"id": "slow", "state": "loading"},
             {"id": "bad", "state": "failed"}]
    files = [{"name": "tale:latest", "size": 1234567890, "details": {"parameter_size": "1.5B",
                                                                     "quantization_level": "Q4_K_M"}},
             {"name": "eye:latest", "size": 2500000, "details": {"parameter_size": "", "quantization_level": ""}}]
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        talk(b, g)
        b.run("said['/api/tags'] = {models: arguments[1]}; models = arguments[0];", known, files)
        b.run("document.getElementById('models-open').focus()")
        b.type("#models-open", ENTER)
        wait_for(lambda: b.run(rows) == [
            ["tale", "1.2 GB, 1.5B parameters, Q4_K_M, the default, in memory", "Unload"],
            ["eye", "2.5 MB, takes pictures, on disk", "Load"], ["slow", "is being loaded", "Load (off)"],
            ["bad", "cannot be used", "Load"]], "the list")
        equal(unnamed(b, "#models "), [], "buttons that a screen reader cannot name")
        equal(b.run("return [...document.querySelectorAll('#models-list button')].map(e => e.ariaLabel)"),
              ["Unload tale", "Load eye", "Load slow", "Load bad"], "each by its model")

        # One at work, until the server has answered.
        b.run("""const before = fetch;
                 fetch = (path, o) => path !== '/api/generate' ? before(path, o) : new Promise((resolve, reject) => {
                   window.asked_for = JSON.parse(o.body);
                   window.answer = (value, status) => resolve(Response.json(value, {status})); });""")
        b.type("#models-list .load", ENTER)
        wait_for(lambda: b.run(rows)[1] == ["eye", "2.5 MB, takes pictures, is being loaded", "Load (off)"], "at work")
        equal(b.run("return asked_for"), {"model": "eye", "stream": False}, "what was asked")
        b.run("models = arguments[0]; answer({done: true}, 200)",
              [dict(m, state="loaded") if m["id"] == "eye" else m for m in known])
        wait_for(lambda: b.run(rows)[1] == ["eye", "2.5 MB, takes pictures, in memory", "Unload"], "done")
        equal(b.texts("#models-said"), ["eye is in memory."], "it is said")
        b.click("#models-list .load:enabled")
        b.run("answer({error: 'tensor x is missing'}, 500)")
        wait_for(lambda: b.texts("#models-failed") == ["“bad” was not loaded: tensor x is missing"], "why it failed")
        b.click("#models-list .unload")
        equal(b.run("return asked_for"), {"model": "tale", "stream": False, "keep_alive": 0}, "what was asked")
        b.run("answer({error: 'only root or the daemon’s own user may unload models'}, 403)")
        wait_for(lambda: "owner of Tandem’s daemon" in b.texts("#models-failed")[0], "who may")
        wait_for(lambda: [r[2:] for r in b.run(rows)] == [[], [], ["Load (off)"], ["Load"]], "it is not offered again")
        b.type("#models-close", ESCAPE)
        equal((b.run("return document.getElementById('models').open"), b.run("return document.activeElement.id")),
              (False, "models-open"), "Escape closes it")
        b.run("said['/api/tags'] = {status: 503, error: {message: 'no', code: 'no_daemon'}}")
        b.click("#models-open")
        wait_for(lambda: b.texts("#models-wrong") == ["Tandem's daemon does not run, or does not answer."], "no list")
        b.run("said['/api/tags'] = {models: []}")
        wait_for(lambda: b.texts("#models-wrong") == [""], "it is read again while it is on the screen")
        equal([e for e in b.errors() if "status of" not in e], [], "errors in the browser's console")


@test
def kept():
    """Conversations are listed, found, renamed, saved and deleted, and outlive a reload."""
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        talk(b, g)
        titles = lambda: b.texts("#kept .open")  # noqa: E731
        wait_for(lambda: b.texts("#kept-note") != [""], "the empty list says what it is for")
        say(b, "Red apples\nand more", "They are **sweet**.")
        b.run("""window.put = IDBObjectStore.prototype.put;
                 IDBObjectStore.prototype.put = () => {
                   throw new DOMException('The disk is full.', 'QuotaExceededError'); }""")
        say(b, "And plums?", "Those too.")
        give_models(b)
        equal(b.texts(".wrong"), ["The browser could not keep this conversation: The disk is full."], "a full disk")
        equal(b.run("return readChat(current.id).then(c => c.turns.length)"), 1, "what was kept before is as it was")
        b.run("IDBObjectStore.prototype.put = put")
        b.type("#text", UP)  # the next message replaces it
        say(b, "And pears?", "Also.", calls=[("look_up", '{"fruit": "pear"}')])
        equal(b.texts(".wrong"), [], "it is kept again")
        b.click("#clear")
        equal((b.texts("article"), b.texts(".hello h1")), ([], ["Hello. What can I do for you?"]), "a new chat")
        say(b, "Blue cars", "They are fast.")
        wait_for(lambda: titles() == ["Blue cars", "Red apples"], "the list, the newest first")
        equal(b.texts("#kept [aria-current=page]"), ["Blue cars"], "the one on the screen")
        b.reload()
        wait_for(lambda: b.said() == ["They are fast."], "the conversation after a reload")
        wait_for(lambda: titles() == ["Blue cars", "Red apples"], "the list after a reload")
        give_models(b)

        b.set("#find", "SWEE")
        b.type("#find", "T")
        wait_for(lambda: titles() == ["Red apples"], "found by its answer")
        b.click("#kept .open")
        wait_for(lambda: b.said() == ["They are **sweet**.", "Also."], "it is opened")
        equal((b.texts(".answer strong"), b.texts("details.call summary"), b.texts("details.call code")),
              (["sweet"], ["Calls look_up"], ['{"fruit": "pear"}']), "as it was")
        say(b, "More", "Much.")
        equal(contents(b), ["Red apples\nand more", "They are **sweet**.", "And pears?", "Also.", "More"], "it goes on")
        b.set("#find", "nowhere")
        b.run("return showList()")
        equal((titles(), b.texts("#kept-note")), ([], ["Nothing found."]), "nothing is found")
        b.set("#find", "")
        b.run("return showList()")
        equal(titles(), ["Red apples", "Blue cars"], "the newest first")

        # As files.
        files = saved_files(b)
        equal(files[1::2], ["Red-apples.md", "Red-apples.json", "conversations.json"], "their names")
        equal(files[0], "# Red apples\n\n## You\n\nRed apples\nand more\n\n## tale\n\nThey are **sweet**.\n\n## You\n\n"
              "And pears?\n\n## tale\n\nCalls `look_up` with `{\"fruit\": \"pear\"}`\n\nAlso.\n\n## You\n\nMore\n\n"
              "## tale\n\nMuch.\n", "as Markdown")
        equal([t["said"] for t in json.loads(files[2])["turns"]], ["They are **sweet**.", "Also.", "Much."], "as JSON")
        equal([c["title"] for c in json.loads(files[4])], ["Red apples", "Blue cars"], "all")

        # One question behind the other: the event of the first dialog's end comes when the second one is there.
        equal(b.run("""const first = askUser('First?', 'Yes');
                       const then = () => setTimeout(() => $('sure').close('yes'));
                       $('sure').addEventListener('close', then, {once: true});
                       $('sure').close('');
                       return Promise.all([first, askUser('Second?', 'Yes')]);"""), [None, True], "two answers")

        # Names, and the end.
        b.click("#kept .rename")
        b.type("#sure-text", "\ue009a\ue009Fruit" + ENTER)
        wait_for(lambda: titles() == ["Fruit", "Blue cars"], "another name")
        b.click("#kept .delete")
        b.type("#sure-no", ESCAPE)
        equal((b.shown("#sure-title"), titles()), (False, ["Fruit", "Blue cars"]), "nothing is deleted unasked")
        b.click("#kept .delete")
        b.click("#sure-yes")
        wait_for(lambda: titles() == ["Blue cars"], "one is deleted")
        equal(b.texts("article"), [], "and is not on the screen")

        # One that is deleted while an answer comes does not return with it.
        b.click("#kept .open")
        wait_for(lambda: b.said(), "it is opened")
        b.answer(events("One two three four"), events("Here."))
        hold_begun(b, "Count")
        b.type("#text", "Count" + ENTER)
        b.wait_held()
        b.click("#kept .delete")
        b.click("#sure-yes")
        wait_for(lambda: titles() == [], "it is deleted")
        b.hold("false")
        b.type("#text", "Another" + ENTER)
        b.last_note("tokens")
        wait_for(lambda: titles() == ["Another"], "only the one that came later")  # the list may be made once more
        b.click("#gear")
        b.click("#wipe")
        b.click("#sure-yes")
        wait_for(lambda: titles() == [], "all are deleted")
        b.reload()
        equal(b.run("return listChats()"), [], "for good")
        equal(b.errors(), [], "errors in the browser's console")


HOSTILE = ["<script>ran()</script>", "<img src=x onerror=ran()>", "<svg onload=ran()>",
           "<iframe src='javascript:ran()'>", "\"><script>ran()</script>", "'-ran()-'",
           "</textarea><script>ran()</script>", "</title><svg/onload=ran()>",
           "<style>@import 'https://evil.example/'</style>", "<link rel=stylesheet href=https://evil.example/x>",
           "<base href=https://evil.example/>", "<meta http-equiv=refresh content='0;url=javascript:ran()'>",
           "<form action=javascript:ran()><button>x", "<a href=javascript:ran()>x</a>", "<details open ontoggle=ran()>",
           "<video><source onerror=ran()>", "<body onload=ran()>", "<math><mtext><script>ran()</script>",
           "<object data=javascript:ran()>", "<template><script>ran()</script></template>", "${ran()}", "{{ran()}}",
           "javascript:ran()", "<!--<script>ran()//-->", "<x onclick=ran()>\0\ufeff\u202e"]
# A hostile text in what Markdown makes nodes of.
PLACES = ["{}", "[{}](https://example.org)", "[x]({})", "![x]({})", "<{}>", "`{}`", "**{}**", "```{}\n{}\n```",
          "| {} | b |\n|---|---|\n| {} | {} |", "# {}", "- {}\n  1. {}", "> {}", "https://example.org/{}",
          "[x](https://example.org/\"onmouseover=ran()\"{})", "[x](<JaVaScRiPt:ran()//{}>)", "[x](data:text/html,{})"]
JUDGE = """const tags = new Set(['SECTION', 'ARTICLE', 'DIV', 'P', 'H1', 'H3', 'H4', 'H5', 'H6', 'UL', 'OL', 'LI', 'A',
  'SPAN', 'EM', 'STRONG', 'DEL', 'CODE', 'PRE', 'BUTTON', 'TABLE', 'THEAD', 'TBODY', 'TR', 'TH', 'TD', 'BLOCKQUOTE',
  'HR', 'DETAILS', 'SUMMARY', 'OPTION', 'svg', 'path']), wrong = [];
for (const e of document.querySelectorAll('#chat *, #kept *, #model *, #complaint *')) {
  if (!tags.has(e.tagName))
    wrong.push(e.outerHTML);
  for (const a of e.attributes)
    if (a.name.startsWith('on') || a.name === 'style' || a.name === 'src' ||
        (a.name === 'href' && !/^(https?|mailto):/.test(a.value)))
      wrong.push(e.outerHTML);
}
return wrong.slice(0, 3);"""


@test
def hostile():
    """Texts that would run, in answers, thinking, calls, questions, titles, errors and names: each is only shown."""
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        talk(b, g)
        b.run("window.n_ran = 0; window.ran = window.alert = () => { n_ran++; }")
        n = 0

        def judge(what, *texts):
            shown = b.run("return document.body.innerText + [...document.querySelectorAll('#chat, option, #kept')]"
                          ".map(e => e.textContent).join('')")
            for text in texts:
                check(text.split("\0")[0] in shown, what + " is shown", text)
            equal((b.run(JUDGE), b.run("return [n_ran, violations]")), ([], [0, []]), what)

        for place in PLACES:
            texts = [place.replace("{}", text) for text in HOSTILE]
            b.answer(events("\n\n".join(texts), size=500))
            b.run("return ask(arguments[0])", place)
            judge(place, *(HOSTILE if place in ("{}", "# {}", "> {}") else ()))
            n += len(texts)
        for text in HOSTILE:
            b.answer(events("x", thinking=text, calls=[(text, text)], size=500),
                     {"status": 400, "error": {"message": text, "code": text}})
        b.run("""return (async () => {
          for (const text of arguments[0]) {
            showChat(freshChat());
            await ask(text);
            await ask('error');
            $('text').value = '';
          }})()""", HOSTILE)
        judge("a question, an error", HOSTILE[-1])
        equal(b.texts("#kept .open")[::-1][-len(HOSTILE):], HOSTILE, "titles")
        n += 5 * len(HOSTILE)
        give_models(b, [{"id": text, "state": text, "default": False} for text in HOSTILE])
        judge("models", *HOSTILE)
        b.run("""models = null; window.fetch = async () => Response.json({error: {message: arguments[0].join(' ')}},
                 {status: 500}); return listModels()""", HOSTILE)
        judge("a complaint", *HOSTILE)
        n += 2 * len(HOSTILE)
        check(n >= 500, "how many texts", n)
        b.reload()
        b.run("window.n_ran = 0; window.ran = window.alert = () => { n_ran++; }")
        judge("after a reload")
        check(not [e for e in b.errors() if "Content Security" in e or "Refused" in e], "the policy had nothing to do")


def keep_picture(b):
    b.size(1000, 900)
    say(b, "Write a Python function that finds all primes below n.", PRIMES, thinking="A sieve is best.", size=4)
    b.run("chat.scrollTop = 0")
    b.picture(PICTURE)
    b.click("#clear")


@test
def looks():
    """The empty start, names for screen readers, contrast, keys, and a phone."""
    contrast = """const parse = c => { const m = c.match(/[\\d.]+/g).map(Number);
        return m.length > 3 && !m[3] ? null : m; };
      const light = c => c.slice(0, 3).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
      const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
        if (c) return c; } return [255, 255, 255]; };
      return [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() &&
          !e.matches(':disabled, option') &&
          [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).map(e => {
        const pair = [light(parse(getComputedStyle(e).color)), light(ground(e))].sort((a, b) => b - a);
        return [e.className + ' ' + e.localName + ' ' + e.textContent.slice(0, 20), (pair[0] + .05) / (pair[1] + .05)];
      }).filter(([, ratio]) => ratio < 4.5)"""
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        talk(b, g)
        if PICTURE:
            keep_picture(b)
        check("tale" in b.texts(".hello p")[0] and "4,096" in b.texts(".hello p")[0], "the model", b.texts(".hello p"))
        equal(len(b.texts(".hello button")), 3, "three questions")
        question = b.texts(".hello button")[0]
        b.answer(events(SAMPLE, thinking="hm", calls=[("f", "{}")]))
        b.click(".hello button")
        b.last_note("tokens")
        equal(contents(b), [question], "what a click asks")
        b.answer({"status": 400, "error": {"message": "wrong"}})
        b.type("#text", "x" + ENTER)
        b.last_note("wrong")

        b.run("""Object.defineProperty(navigator, 'clipboard',
                 {value: {writeText: async text => { window.copied = text; }}});
                 document.querySelector('.code .copy').click()""")
        wait_for(lambda: b.run("return copied") == 'def f():\n\treturn "# no heading"\n', "code is copied")
        b.run("document.querySelector('.actions .copy').click()")
        wait_for(lambda: b.run("return copied") == SAMPLE, "an answer is copied as it was written")

        for scheme in ("light", "dark"):
            b.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {
                "features": [{"name": "prefers-color-scheme", "value": scheme}]}})
            equal(b.run(contrast), [], f"contrast below AA, {scheme}")
        equal(unnamed(b, ""), [], "controls that a screen reader cannot name")
        b.click("#gear")
        equal(b.run(contrast), [], "contrast below AA, the settings")
        equal(unnamed(b, "#settings "), [], "settings that a screen reader cannot name")

        b.type("#settings-close", ESCAPE)
        b.click("#models-open")
        wait_for(lambda: b.texts("#models-list strong"), "the list of models")
        equal(b.run(contrast), [], "contrast below AA, the models")
        b.type("#models-close", ESCAPE)
        b.click("#gear")

        # By keys alone: the settings close, Tab reaches everything, a conversation is opened.
        def press(keys):
            b.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": [
                {"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]}]})
        press([ESCAPE])
        equal(b.run("return [document.getElementById('settings').open, document.activeElement.id]"), [False, "gear"],
              "Escape closes the settings, and the focus is where it was")
        b.run("document.getElementById('find').focus()")
        reached = []
        for _ in range(40):
            press([TAB])
            reached.append(b.run("const e = document.activeElement; return e.id || e.className || e.localName"))
        for want in ("open", "icon rename", "icon delete", "model", "models-open", "clear", "gear", "summary", "pre",
                     "text", "send"):
            check(want in reached, f"Tab reaches {want}", reached)
        b.click("#clear")
        b.run("document.querySelector('#kept .open').focus()")
        press([ENTER])
        wait_for(lambda: b.texts("article.user") == [question], "Enter opens a conversation")

        # A phone: nothing is wider than it, the list is behind a button.
        b.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}})
        wait_for(lambda: b.run("return [document.documentElement.scrollWidth, chat.scrollWidth - chat.clientWidth]") ==
                 [360, 0], "the width of a phone")
        wait_for(lambda: [b.run("return getComputedStyle(side).visibility"), b.shown("#sides")] == ["hidden", True],
                 "no list")
        b.click("#sides")
        wait_for(lambda: b.run("return getComputedStyle(side).visibility") == "visible", "the list")
        press([ESCAPE])
        wait_for(lambda: b.run("return getComputedStyle(side).visibility") == "hidden", "Escape hides it")


main()
