"""A browser on the page of tandem-http: headless Chromium, driven by ChromeDriver over its own protocol (W3C
WebDriver). The standard library only."""
import base64
import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request

from tandem_test import Skip, exit_of, wait_for

ENTER, ESCAPE, UP, TAB = "\ue007", "\ue00c", "\ue013", "\ue004"
MODELS = [{"id": "tale", "default": True, "context_length": 4096}]
NOTES = "article.assistant .note"
# Keeps what the page asks for. An answer reaches it event by event, and none while held() is true: so a test can look
# at an answer that is half there, however fast the model and however slow the browser. What is in `script` is answered
# instead of the server: a list of events, or {status, error}. `models` stands for the list of models; with it the other
# paths are answered from `said` (JSON, or {status, error}), and what they were asked is in `told`. A model's `shows` is
# what /api/show tells of it.
WATCH = """const real = fetch, pause = ms => new Promise(wake => setTimeout(wake, ms));
window.asked = []; window.held = () => false; window.script = []; window.models = null; window.violations = [];
window.said = {}; window.told = [];
document.addEventListener('securitypolicyviolation', e => violations.push(e.violatedDirective));
function scripted(answer) {
  if (answer.error)
    return Response.json({error: answer.error}, {status: answer.status || 400});
  const text = [...answer.map(e => e.comment ? ': ' + e.comment : 'data: ' + JSON.stringify(e)), 'data: [DONE]']
    .map(e => e + '\\n\\n').join('');
  return new Response(text);
}
function other(path, body) {
  const capabilities = (models.find(m => body && m.id === body.model) || {}).shows || ['completion'];
  const answer = path === '/v1/models' ? {data: models} : said[path] || (path === '/api/show' ? {capabilities} : {});
  told.push([path, body]);
  return Response.json(answer, {status: answer.status || 200});
}
fetch = async (path, o) => {
  if (path !== '/v1/chat/completions')
    return models ? other(path, o.body ? JSON.parse(o.body) : null) : real(path, o);
  asked.push(JSON.parse(o.body));
  const r = script.length ? scripted(script.shift()) : await real(path, o), encoder = new TextEncoder();
  const gate = new TransformStream({
    async transform(text, controller) {
      for (const event of text.split(/(?<=\\n\\n)/)) {
        while (held() && !o.signal.aborted)
          await pause(10);
        if (o.signal.aborted)
          throw new DOMException('stopped', 'AbortError');
        controller.enqueue(encoder.encode(event));
        await pause(0);
      }
    }});
  return new Response(r.body.pipeThrough(new TextDecoderStream()).pipeThrough(gate), r);
}"""


class Browser:
    def __init__(self, folder):
        for program in ("chromedriver", "chromium"):
            if not shutil.which(program):
                raise Skip("no chromium and chromedriver (Debian: chromium-driver)")
        self.log = open(os.path.join(folder, "chromedriver.log"), "w+")
        self.process = subprocess.Popen(["chromedriver", "--port=0"], stdout=self.log, stderr=self.log,
                                        env=dict(os.environ, HOME=folder))
        try:
            self.base = f"http://127.0.0.1:{int(wait_for(self._port, 'the port of chromedriver', 20))}"
            arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                         "--window-size=900,760", f"--user-data-dir={folder}/chromium"]
            r = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": {
                "goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}}})
            self.base += "/session/" + r["sessionId"]
            self.ask("POST", "/timeouts", {"script": 120000})
        except BaseException:
            self.process.kill()
            raise

    def _port(self):
        self.log.seek(0)
        found = re.search(r"started successfully on port (\d+)", self.log.read())
        return found and found[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.ask("DELETE", "")
        finally:
            self.process.terminate()
            exit_of(self.process, "chromedriver's end", 30)
            self.log.close()

    def ask(self, method, path, body=None):
        request = urllib.request.Request(self.base + path, method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=150) as r:
                return json.load(r)["value"]
        except urllib.error.HTTPError as e:
            raise AssertionError(f"{method} {path}: {e.read()[:600]}") from e

    def run(self, script, *args):
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(args)})

    def type(self, selector, text):
        element = self.ask("POST", "/element", {"using": "css selector", "value": selector})
        self.ask("POST", "/element/" + next(iter(element.values())) + "/value", {"text": text})

    def click(self, selector):
        element = self.ask("POST", "/element", {"using": "css selector", "value": selector})
        self.ask("POST", "/element/" + next(iter(element.values())) + "/click", {})

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)

    def open(self, gateway, watched=True):
        self.ask("POST", "/url", {"url": f"http://127.0.0.1:{gateway.port}/"})
        if watched:
            self.run(WATCH)

    def reload(self):
        self.ask("POST", "/refresh", {})
        self.run(WATCH)

    def answer(self, *answers):
        """What the next requests get: of each the events, or {status, error}."""
        self.run("script.push(...arguments[0])", list(answers))

    def picture(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.ask("GET", "/screenshot")))

    def size(self, width, height):
        self.ask("POST", "/window/rect", {"width": width, "height": height})

    def errors(self):
        """What the browser's console has against the page since the last call."""
        return [e["message"] for e in self.ask("POST", "/se/log", {"type": "browser"}) if e["level"] == "SEVERE"]

    def hold(self, condition):
        """From now on answers are held back while this expression is true in the page."""
        self.run(f"window.n_held = 0; window.held = () => ({condition}) && ++n_held")

    def wait_held(self):
        wait_for(lambda: self.run("return n_held"), "an answer that is held back", 30)

    def value(self, selector):
        return self.run("return document.querySelector(arguments[0]).value", selector)

    def set(self, selector, value):
        self.run("document.querySelector(arguments[0]).value = arguments[1]", selector, value)

    def shown(self, selector):
        return self.run("return document.querySelector(arguments[0]).checkVisibility()", selector)

    def disabled(self, selector):
        return self.run("return document.querySelector(arguments[0]).disabled", selector)

    def said(self):
        """The answers of the conversation on the screen, as the model wrote them."""
        return self.run("return current.turns.map(t => t.said)")

    def asked(self):
        """The bodies of all requests since the page was opened."""
        return self.run("return asked")

    def last_note(self, *words):
        """Waits until the last answer is over, and its note has these words."""
        def note():
            notes = [] if self.run("return running !== null") else self.texts(NOTES)[-1:]
            return notes[0] if notes and all(w in notes[0] for w in words) else None
        return wait_for(note, f"a note with {words}", 30)

    def below(self):
        """How many pixels of the chat are below the window."""
        return self.run("const c = document.getElementById('chat');"
                        "return c.scrollHeight - c.scrollTop - c.clientHeight")


def events(text="", thinking="", calls=(), usage=True, size=8):
    """The events of an answer, some characters in each."""
    def event(delta, end=None):
        return {"choices": [{"index": 0, "delta": delta, "finish_reason": end}]}

    def pieces(whole):
        return [whole[i:i + size] for i in range(0, len(whole), size)]

    out = [event({"reasoning_content": piece}) for piece in pieces(thinking)]
    for i, (name, arguments) in enumerate(calls):
        for call in [{"name": name, "arguments": ""}] + [{"arguments": piece} for piece in pieces(arguments)]:
            out.append(event({"tool_calls": [{"index": i, "function": call}]}))
    out += [event({"content": piece}) for piece in pieces(text)] + [event({}, "stop")]
    return out + [{"choices": [], "usage": {"completion_tokens": len(out)}}] if usage else out


def talk(b, gateway):
    b.open(gateway)
    give_models(b)


def give_models(b, models=MODELS):
    b.run("models = arguments[0]; return Promise.resolve(listing).then(listModels)", models)


def say(b, text, answer="Yes.", **parts):
    n = len(b.asked())
    b.answer(events(answer, **parts))
    b.set("#text", text)
    b.type("#text", ENTER)
    wait_for(lambda: len(b.asked()) > n, "a request")
    b.last_note("tokens")


def saved_files(b):
    """What the settings' three buttons save: of each the text and the file's name."""
    b.run("""window.files = []; URL.createObjectURL = blob => { files.push(blob); return 'blob:x'; };
             HTMLAnchorElement.prototype.click = function() { files.push(this.download); };""")
    for name in ("markdown", "json", "all"):
        b.click("#gear")
        b.click("#save-" + name)
        b.click("#settings-close")
    wait_for(lambda: b.run("return files.length") == 6, "three files")
    return b.run("return Promise.all(files.map(f => f.text ? f.text() : f))")


def contents(b, i=-1):
    return [m["content"] for m in b.asked()[i]["messages"]]


def unnamed(b, within):
    out = []
    kinds = ", ".join(within + kind for kind in ("button", "input", "select", "textarea", "summary"))
    for element in b.ask("POST", "/elements", {"using": "css selector", "value": kinds}):
        element_id = next(iter(element.values()))
        if b.run("return arguments[0].checkVisibility()", element) and \
                not b.ask("GET", f"/element/{element_id}/computedlabel"):
            out.append(b.run("return arguments[0].outerHTML", element))
    return out
