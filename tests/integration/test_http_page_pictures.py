"""Pictures in the chat page, in headless Chromium: chosen, pasted, dropped, shown, sent, kept and refused. Answers are
written here (page_browser.py), but for one test with a model that sees. TANDEM_PAGE_PICTURE names a PNG to keep of the
page."""
import base64
import json
import os
import re
import shutil
import struct
import sys
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403
from page_browser import *  # noqa: E402,F403
from seeing import IMAGES, ROWS, Seeing, file_of  # noqa: E402

PICTURE = os.environ.get("TANDEM_PAGE_PICTURE")
SEEING = [{"id": "see", "default": True, "shows": ["completion", "vision"]}, {"id": "tale", "shows": ["completion"]}]
# Gives files to the page as a drop or a paste does: [[name, base64]].
GIVE = """const [kind, target, files, text] = arguments, data = new DataTransfer();
for (const [name, content] of files)
  data.items.add(new File([Uint8Array.from(atob(content), c => c.charCodeAt(0))], name, {type: 'image/png'}));
if (text)
  data.setData('text/plain', text);
const options = {bubbles: true, cancelable: true, dataTransfer: data, clipboardData: data};
const event = kind === 'paste' ? new ClipboardEvent(kind, options) : new DragEvent(kind, options);
document.querySelector(target).dispatchEvent(event);
return added.then(() => event.defaultPrevented);"""


def give(b, kind, *files, target="#text", text=""):
    """Whether the page took the event. files: (name, bytes)."""
    return b.run(GIVE, kind, target, [[name, base64.b64encode(data).decode()] for name, data in files], text)


def drop(b, *names, **more):
    return give(b, "drop", *[(name, file_of(name)) for name in names], **more)


def choose(b, *names):
    b.type("#files", "\n".join(os.path.join(IMAGES, "pictures", name) for name in names))
    b.run("return added")


def boxed(b):
    return b.run("return [...document.querySelectorAll('#boxed img')].map(i => i.alt)")


def url_of(name):
    kind = {"png": "png", "jpg": "jpeg", "webp": "webp"}[name.rpartition(".")[2]]
    return f"data:image/{kind};base64,{base64.b64encode(file_of(name)).decode()}"


def content_of(text, *names):
    parts = [{"type": "image_url", "image_url": {"url": url_of(name)}} for name in names]
    return parts + ([{"type": "text", "text": text}] if text else [])


def png_head(width, height, size=0):
    """A PNG that has these sides and no pixel, of `size` bytes at least."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return head + chunk(b"IDAT", zlib.compress(b"\0")) + b"\0" * size


def complaints(b):
    return b.texts("#complaint .wrong")


@test
def ways():
    """Into the box by three ways, out of it by keys, and with a question to the model."""
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        policy = g.request("GET", "/", headers={"Accept": "text/html"})[1]["content-security-policy"]
        equal([p for p in policy.split("; ") if p.startswith("img-src")], ["img-src data:"], "pictures of nowhere else")
        b.open(g)
        give_models(b, SEEING)
        wait_for(lambda: b.shown("#attach"), "the button")
        b.run("$('files').addEventListener('click', e => { window.opened = true; e.preventDefault(); }, {once: true})")
        b.run("document.getElementById('attach').focus()")
        b.type("#attach", ENTER)
        equal(b.run("return window.opened"), True, "the button opens the browser's own dialog, by keys too")
        equal((b.disabled("#send"), b.shown("#boxed")), (True, False), "nothing to send")
        choose(b, "gradient.png", "sub420.jpg")
        wait_for(lambda: boxed(b) == ["gradient.png", "sub420.jpg"], "chosen")
        equal(b.disabled("#send"), False, "pictures alone can be sent")
        equal(give(b, "paste", ("clip.png", file_of("strokes.png"))), True, "a paste")
        equal(give(b, "paste", ("table.png", file_of("strokes.png")), text="1 2 3"), False, "a text with a picture")
        equal(drop(b, "lossy.webp", target="#chat"), True, "a drop, wherever")
        equal(boxed(b), ["gradient.png", "sub420.jpg", "clip.png", "lossy.webp"], "in the box")
        wait_for(lambda: b.run("return [...document.querySelectorAll('#boxed img')].every(i => i.complete && "
                               "i.naturalWidth > 0)"), "they are drawn")
        equal(b.run("return [...document.querySelectorAll('#boxed .remove')].map(e => e.getAttribute('aria-label'))"),
              ["Remove " + name for name in boxed(b)], "names of buttons")
        b.run("document.querySelectorAll('#boxed .remove')[2].focus()")
        b.ask("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": [
            {"type": kind, "value": ENTER} for kind in ("keyDown", "keyUp")]}]})
        equal((boxed(b), b.run("return document.activeElement.getAttribute('aria-label')")),
              (["gradient.png", "sub420.jpg", "lossy.webp"], "Remove lossy.webp"), "one is removed, the next has focus")

        say(b, "What is it?", "A picture.")
        names = ["gradient.png", "sub420.jpg", "lossy.webp"]
        equal(contents(b), [content_of("What is it?", *names)], "what was asked: the files' own bytes")
        equal((boxed(b), b.shown("#boxed"), b.texts("article.user")), ([], False, ["What is it?"]), "sent")
        equal(b.run("return [...document.querySelectorAll('article.user img')].map(i => i.alt)"), names, "in the talk")
        wait_for(lambda: b.run("return [...document.querySelectorAll('article.user img')].every(i => i.complete && "
                               "i.naturalWidth > 0)"), "they are drawn in the talk")
        b.click("article.user .picture")
        check(b.shown("#look img") and "gradient.png" in b.texts("#look-name")[0], "large", b.texts("#look-name"))
        b.type("#look .accent", ENTER)
        equal(b.shown("#look"), False, "closed")
        say(b, "And then?", "Nothing.")
        equal(contents(b), [content_of("What is it?", *names), "A picture.", "And then?"], "the next turn")
        drop(b, "wide.png")
        say(b, "", "Wide.")
        equal(contents(b)[-1], content_of("", "wide.png"), "a picture without a word")
        equal((b.errors(), b.run("return violations")), ([], []), "the browser has nothing against it")


@test
def back():
    """A question that fails, is edited, or is asked again has its pictures."""
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        b.open(g)
        give_models(b, SEEING)
        drop(b, "wide.png", "tall.png")
        b.answer({"status": 503, "error": {"message": "no room"}})
        b.type("#text", "Which?" + ENTER)
        b.last_note("no room")
        equal((boxed(b), b.value("#text")), (["wide.png", "tall.png"], "Which?"), "back in the box")
        say(b, "Which?", "This.")
        b.type("#text", UP)
        equal((boxed(b), b.value("#text")), (["wide.png", "tall.png"], "Which?"), "to be edited")
        b.type("#text", ESCAPE)
        equal((boxed(b), b.value("#text")), ([], ""), "left")
        b.type("#text", UP)
        b.click("#boxed .remove")
        say(b, "This one?", "Yes.")
        equal(contents(b), [content_of("This one?", "tall.png")], "with one picture less")
        wait_for(lambda: b.run("return inStore('readonly', (l, c, p) => done(p.getAll())).then(a => a.length)") == 1,
                 "the other one is not kept any more")
        n = len(b.asked())
        b.answer(events("Again."))
        b.click(".retry")
        wait_for(lambda: len(b.asked()) > n, "a request")
        b.last_note("tokens")
        equal((contents(b), b.said()), ([content_of("This one?", "tall.png")], ["Again."]), "asked again")
        b.answer({"status": 503, "error": {"message": "none"}})
        b.click(".retry")
        b.last_note("none")
        equal((boxed(b), b.texts("article.user"), b.said()), ([], ["This one?"], ["Again."]), "a retry that failed")


@test
def of_another_chat():
    """A question that is edited and then sent in a new chat takes a copy of its pictures along."""
    owners = "return inStore('readonly', (l, c, p) => done(p.getAll())).then(a => [new Set(a.map(x => x.chat)).size, " \
             "a.every(x => x.url), a.length])"
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        b.open(g)
        give_models(b, SEEING)
        drop(b, "gradient.png")
        say(b, "First", "Blue.")
        b.click(".edit")
        b.click("#clear")
        equal(boxed(b), ["gradient.png"], "the box stays")
        say(b, "Second", "Blue too.")
        wait_for(lambda: b.run(owners) == [2, True, 2], "each chat has its own")
        b.click("#kept li:nth-child(2) .open")
        wait_for(lambda: b.said() == ["Blue."], "the first chat")
        wait_for(lambda: b.run("return [...document.querySelectorAll('article.user img')].map(i => i.naturalWidth > 0)")
                 == [True], "its picture is there")


@test
def an_older_page_is_open():
    """It holds the store as it was: what is said meanwhile is kept when it is closed."""
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        b.open(g)
        give_models(b, SEEING)
        equal(b.run("""return openStore().then(db => new Promise(resolve => {
            db.close();
            indexedDB.deleteDatabase('tandem').onsuccess = () => {
              const r = indexedDB.open('tandem', 1);
              r.onupgradeneeded = () => ['list', 'chats'].forEach(n => r.result.createObjectStore(n, {keyPath: 'id'}));
              r.onsuccess = () => { window.older = r.result; store.opened = null; resolve('open'); };
            };
          }))"""), "open", "a page of before")
        b.run("return showList()")
        check("keeps nothing" in b.texts("#kept-note")[0], "it says so", b.texts("#kept-note")[0])
        drop(b, "gradient.png")
        say(b, "Meanwhile", "Yes.")
        b.run("older.close()")
        wait_for(lambda: "keeps nothing" not in b.texts("#kept-note")[0], "the store is there")
        b.reload()
        wait_for(lambda: b.texts("#kept .open") == ["Meanwhile"], "what was said meanwhile")
        wait_for(lambda: b.said() == ["Yes."], "its turns")


@test
def kept():
    """With the conversation, and outside of the list that is searched; saved; deleted with it."""
    stored = "return inStore('readonly', (l, c, p) => done(p.getAll())).then(a => a.map(x => x.url.length))"
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        b.open(g)
        # The page before this one kept conversations without pictures: they are there still.
        equal(b.run("""store.opened = null; return new Promise(resolve => {
            const gone = indexedDB.deleteDatabase('tandem');
            gone.onsuccess = () => {
              const r = indexedDB.open('tandem', 1);
              r.onupgradeneeded = () => ['list', 'chats'].forEach(n => r.result.createObjectStore(n, {keyPath: 'id'}));
              r.onsuccess = () => {
                const t = r.result.transaction(['list', 'chats'], 'readwrite');
                t.objectStore('list').put({id: 'old', title: 'Old', changed: 1});
                t.objectStore('chats').put({id: 'old', turns: [{user: 'Old', said: 'Yes', thought: '', calls: []}]});
                t.oncomplete = () => { r.result.close(); resolve('made'); };
              };
            };
          })"""), "made", "a store of the page before")
        b.reload()
        wait_for(lambda: b.texts("#kept .open") == ["Old"], "what it kept")
        give_models(b, SEEING)
        drop(b, "gradient.png", "wide.png")
        say(b, "", "Blue and wide.")
        wait_for(lambda: b.texts("#kept .open") == ["gradient.png", "Old"], "a title")
        equal(sorted(b.run(stored)), sorted(len(url_of(n)) for n in ("gradient.png", "wide.png")), "what is kept")
        equal(b.run("return inStore('readonly', (l, c) => done(c.getAll())).then(a => JSON.stringify(a))")
              .count("base64"), 0, "the turns themselves have no picture's bytes")
        b.set("#find", "WIDE.P")
        equal(b.run("return showList().then(() => $('kept').children.length)"), 1, "found by a picture's name")
        b.set("#find", "")
        b.reload()
        wait_for(lambda: b.said() == ["Blue and wide."], "after a reload")
        give_models(b, SEEING)
        wait_for(lambda: b.run("return [...document.querySelectorAll('article.user img')].map(i => i.naturalWidth > 0)")
                 == [True, True], "they are drawn again")
        say(b, "More", "Much.")
        equal(contents(b)[0], content_of("", "gradient.png", "wide.png"), "and sent again")

        text, _, one, _, every, _ = saved_files(b)
        check("## You\n\nPicture “gradient.png”\n\nPicture “wide.png”\n\n## " in text, "as Markdown", text)
        equal([p["url"] for p in json.loads(one)["turns"][0]["pictures"]], [url_of("gradient.png"), url_of("wide.png")],
              "as JSON")
        every = json.loads(every)
        equal(([c["title"] for c in every], every[0]["turns"]), (["gradient.png", "Old"], json.loads(one)["turns"]),
              "all as JSON")

        # A branch has pictures of its own; a turn goes with its pictures.
        b.click(".branch")
        wait_for(lambda: b.texts("#kept .open") == ["Branch of gradient.png", "gradient.png", "Old"], "a branch")
        equal(len(b.run(stored)), 4, "each has its own")
        b.click(".turn .delete")
        b.click("#sure-yes")
        wait_for(lambda: b.texts("#kept .open") == ["gradient.png", "Old"], "it is deleted")
        equal(len(b.run(stored)), 2, "those of the branch are gone, the others are not")
        b.click("#kept .delete")
        b.click("#sure-yes")
        wait_for(lambda: b.texts("#kept .open") == ["Old"], "it is deleted")
        equal(b.run(stored), [], "with its pictures")
        drop(b, "wide.png")
        say(b, "Once more", "Yes.")
        b.run("""window.put = IDBObjectStore.prototype.put;
                 IDBObjectStore.prototype.put = function(o) {
                   if (o.url)
                     throw new DOMException('The disk is full.', 'QuotaExceededError');
                   return put.call(this, o); }""")
        drop(b, "tall.png")
        say(b, "Too much", "No.")
        equal(complaints(b), ["The browser could not keep this conversation: The disk is full."], "a full disk")
        equal(b.run("return readChat(current.id).then(c => c.turns.length)"), 1, "nothing is kept by half")
        b.run("IDBObjectStore.prototype.put = put")
        b.click("#gear")
        b.click("#wipe")
        b.click("#sure-yes")
        wait_for(lambda: b.texts("#kept .open") == [], "all are deleted")
        equal(b.run(stored), [], "with all pictures")


@test
def refused():
    """What cannot be sent is said before, in the page's own words."""
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        b.open(g)
        give_models(b, SEEING)
        for name, data, words in (
                ("a.gif", b"GIF89a" + b"\0" * 40, "“a.gif” is no PNG, JPEG or WebP"),
                ("cut.png", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "“cut.png” is damaged"),
                ("empty.png", b"", "“empty.png” is no PNG"),
                ("long.png", png_head(16385, 1), "“long.png” has 16,385 × 1 pixels"),
                ("huge.png", png_head(16384, 4097), "“huge.png” has 16,384 × 4,097 pixels"),
                ("large.png", png_head(2, 2, 6000000), "“large.png” has 6.1 MB; the server takes 6 MB")):
            equal(give(b, "drop", (name, data)), True, name)
            check(len(complaints(b)) == 1 and words in complaints(b)[0], name, complaints(b))
            equal(boxed(b), [], name)
        give(b, "drop", *[(f"{i}.txt", b"text") for i in range(5)], ("ok.png", file_of("wide.png")))
        equal((complaints(b)[0].count("is no PNG"), boxed(b)), (3, []), "a folder of other files ends soon")
        give(b, "drop", ("one.png", png_head(2, 2, 4000000)), ("two.png", png_head(2, 2, 3000000)))
        check("“two.png” has 3.1 MB, and this conversation’s other pictures have 4.1 MB" in complaints(b)[0], "a sum",
              complaints(b))
        equal(boxed(b), ["one.png"], "the one that fits is there")
        say(b, "Look", "I see.")
        equal(complaints(b), [], "said once")
        give(b, "drop", ("two.png", png_head(2, 2, 3000000)))
        check("Together they may have 6 MB" in complaints(b)[0], "earlier turns count", complaints(b))
        b.click("#clear")
        drop(b, *["tiny.png"] * 65)
        equal((len(boxed(b)), complaints(b)), (64, ["A conversation has 64 pictures at most: begin a new chat."]),
              "how many")
        b.run("setBoxed([])")

        # A model without eyes: no button, and words instead of a request.
        drop(b, "wide.png")
        b.run("model.value = 'tale'; model.dispatchEvent(new Event('change')); return learnWhatItTakes()")
        equal(b.shown("#attach"), False, "no button")
        n = len(b.asked())
        b.type("#text", "What is it?" + ENTER)
        wait_for(lambda: complaints(b), "words")
        equal((complaints(b), len(b.asked()), boxed(b), b.value("#text")),
              (["“tale” takes no pictures: choose a model that does, such as “see”."], n, ["wide.png"], "What is it?"),
              "nothing is sent, nothing is lost")
        b.run("setBoxed([])")
        drop(b, "tall.png")
        equal((complaints(b), boxed(b)), (["“tale” takes no pictures: choose a model that does, such as “see”."], []),
              "it does not come into the box")
        b.run("model.value = 'see'; model.dispatchEvent(new Event('change')); return learnWhatItTakes()")
        equal((complaints(b), b.shown("#attach")), ([], True), "another model")
        drop(b, "tall.png")
        say(b, "What is it?", "A tree.")
        b.run("model.value = 'tale'; model.dispatchEvent(new Event('change')); return learnWhatItTakes()")
        n = len(b.asked())
        b.type("#text", "Sure?" + ENTER)
        wait_for(lambda: complaints(b), "words")
        check(complaints(b)[0].startswith("This conversation has pictures. “tale” takes no pictures"), "earlier ones",
              complaints(b))
        equal(len(b.asked()), n, "nothing is sent")
        # A server that does not tell: it decides itself.
        b.run("said['/api/show'] = {status: 500, error: 'none'}")
        give_models(b, [{"id": "other", "default": True}])
        b.run("return learnWhatItTakes()")
        equal(b.shown("#attach"), False, "no button")
        equal((drop(b, "tall.png"), boxed(b)), (True, ["tall.png"]), "a drop is taken")
        # One that has told it in the list is not asked.
        b.run("told.length = 0")
        give_models(b, [{"id": "other", "default": True, "capabilities": ["completion", "vision"]}])
        equal((b.shown("#attach"), b.run("return told.map(t => t[0])")), (True, ["/v1/models"]), "the list")
        equal(b.run("return violations"), [], "the policy")


# A landscape, so that the page's picture has one.
SCENE = """const c = Object.assign(document.createElement('canvas'), {width: 960, height: 600}), g = c.getContext('2d');
const fill = (style, ...points) => { g.fillStyle = style; g.beginPath();
  points.forEach(([x, y], i) => i ? g.lineTo(x, y) : g.moveTo(x, y)); g.fill(); };
const sky = g.createLinearGradient(0, 0, 0, 420);
sky.addColorStop(0, '#27508f'); sky.addColorStop(1, '#f6c28b');
fill(sky, [0, 0], [960, 0], [960, 600], [0, 600]);
g.fillStyle = '#fff3c4'; g.beginPath(); g.arc(690, 250, 58, 0, 7); g.fill();
fill('#5d6f91', [0, 420], [210, 170], [400, 420]); fill('#46587c', [230, 420], [500, 130], [800, 420]);
fill('#f3f6fb', [444, 192], [500, 130], [566, 197], [520, 186], [488, 205]);
fill('#5d6f91', [620, 420], [850, 230], [960, 320], [960, 420]);
fill('#2f6f62', [0, 400], [960, 400], [960, 600], [0, 600]);
fill('#7fb3c9', [0, 470], [960, 440], [960, 540], [0, 520]);
fill('#a23b2a', [150, 380], [205, 330], [260, 380]); fill('#e9d9b8', [162, 380], [248, 380], [248, 440], [162, 440]);
return c.toDataURL().split(',')[1];"""


def keep_picture(b):
    b.size(1000, 900)
    scene = base64.b64decode(b.run(SCENE))
    give(b, "drop", ("lake.png", scene))
    say(b, "Describe this picture in a few words.",
        "A **mountain lake at sunset**: a low sun stands between blue peaks, one of them with snow. A small house with "
        "a red roof is on the near shore.")
    give(b, "drop", ("lake.png", scene), ("strokes.png", file_of("strokes.png")))
    b.type("#text", "And what do these two have in common?")
    b.picture(PICTURE)
    b.run("setBoxed([])")
    b.set("#text", "")
    b.click("#clear")


@test
def looks():
    """Names for screen readers, and a phone."""
    with FakeDaemon([]) as d, Gateway(d) as g, Browser(d.dir) as b:
        b.open(g)
        give_models(b, SEEING)
        if PICTURE:
            keep_picture(b)
        drop(b, "wide.png")
        say(b, "What is it?", "A line.")
        drop(b, "gradient.png", "tall.png", "square224.png", "wide.png")
        equal(unnamed(b, ""), [], "controls that a screen reader cannot name")
        b.ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}})
        wait_for(lambda: b.run("return [document.documentElement.scrollWidth, chat.scrollWidth - chat.clientWidth]") ==
                 [360, 0], "the width of a phone")
        b.click("article.user .picture")
        check(b.run("return document.querySelector('#look img').getBoundingClientRect().right") <= 360, "large")


@test
def with_a_model():
    """A model that sees gets the very picture."""
    with Seeing(placement=None) as d, Gateway(d) as g, Browser(d.dir) as b:
        b.open(g)
        wait_for(lambda: b.value("#model") == "see", "the models")
        wait_for(lambda: b.shown("#attach"), "the button, as /api/show tells")
        b.set("#temperature", "1")
        b.set("#seed", "1")
        b.set("#limit", "6")
        choose(b, "strokes.png")
        wait_for(lambda: boxed(b) == ["strokes.png"], "chosen")
        b.set("#text", "What is it?")
        b.type("#text", ENTER)
        b.last_note("tokens")
        asked = b.asked()[-1]
        equal(asked["messages"][0]["content"], content_of("What is it?", "strokes.png"), "what was asked")
        body = {k: v for k, v in asked.items() if k not in ("stream", "stream_options", "return_progress")}
        want = g.post("/v1/chat/completions", body)
        check(want["usage"]["prompt_tokens"] > ROWS, "the picture's rows", want["usage"])
        equal(b.said(), [want["choices"][0]["message"]["content"]], "the answer")
        b.run("model.value = 'tale'; model.dispatchEvent(new Event('change'))")
        wait_for(lambda: not b.shown("#attach") and b.run("return takesPictures('tale')") is False, "one that reads")


@test
def projector_comes_later():
    """A model that is shown a picture is asked again whether it sees: its projector may be there by now."""
    with Seeing(size=None, placement=None) as d, Gateway(d) as g, Browser(d.dir) as b:
        b.open(g)
        wait_for(lambda: b.value("#model") == "see" and b.run("return takesPictures('see')") is False, "no projector")
        drop(b, "strokes.png")
        check("“see” takes no pictures" in complaints(b)[0], "it is said", complaints(b))
        shutil.copy(make_model("a", "f32", arch="mmproj", seed=1), os.path.join(d.folder, "mmproj-see.gguf"))
        drop(b, "strokes.png")
        equal((complaints(b), boxed(b), b.shown("#attach")), ([], ["strokes.png"], True), "it sees")
        b.set("#limit", "3")
        b.set("#text", "What is it?")
        b.type("#text", ENTER)
        b.last_note("3 tokens")


main()
