"""The chat page at / of tandem-http: who gets it and with which headers, and a chat in headless Chromium, driven by
ChromeDriver over its own protocol (W3C WebDriver). TANDEM_PAGE_PICTURE names a PNG to keep of it."""
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PICTURE = os.environ.get("TANDEM_PAGE_PICTURE")


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
            self.process.wait(10)
            self.log.close()

    def ask(self, method, path, body=None):
        request = urllib.request.Request(self.base + path, method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as r:
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
    with Daemon(placement=None, hang_ms=60000) as d, Gateway(d) as g, Browser(d.dir) as b:
        b.ask("POST", "/url", {"url": f"http://127.0.0.1:{g.port}/"})
        wait_for(lambda: b.texts("#model option"), "the models")
        equal(b.texts("#model option")[0], "tale", "the default model is first")
        b.run("document.getElementById('temperature').value = 0; document.getElementById('limit').value = 60")
        if PICTURE:
            b.type("#text", "Tell me a story about a king and his three sons.\ue007")
            wait_for(lambda: any("tokens" in t for t in b.texts("article.assistant .note")), "a story")
            with open(PICTURE, "wb") as f:
                f.write(base64.b64decode(b.ask("GET", "/screenshot")))
            b.click("#clear")
        b.type("#text", "Once upon a time <b>there</b> was\ue007")  # Enter
        note = wait_for(lambda: [t for t in b.texts("article.assistant .note") if "tokens" in t], "an answer", 30)[0]
        check(re.match(r"60 tokens, [\d.]+ a second, cut at the limit", note), "what stands below it", note)
        want = g.post("/v1/chat/completions", {
            "model": "tale", "temperature": 0, "max_tokens": 60,
            "messages": [{"role": "user", "content": "Once upon a time <b>there</b> was"}]})
        equal(b.texts("article.assistant .answer"), [want["choices"][0]["message"]["content"]], "the answer")
        equal(b.texts("article.user"), ["Once upon a time <b>there</b> was"], "a prompt is text, not HTML")
        # The workers sleep, so that the answer cannot end before the click.
        workers = [d.worker_pid(name) for name in ("npu", "gpu")]
        for pid in workers:
            send_signal(pid, signal.SIGSTOP)
        b.type("#text", "And then\ue007")
        wait_for(lambda: d.status().get("jobs_running", 0), "the second job")
        equal(b.texts("#send"), ["Stop"], "the button while it runs")
        b.click("#send")
        wait_for(lambda: b.texts("article.assistant .note")[1:] == ["stopped"], "it has stopped")
        equal(b.texts("#send"), ["Send"], "the button afterwards")
        for pid in workers:
            send_signal(pid, signal.SIGCONT)
        wait_for(lambda: not d.status().get("jobs_running", 0), "the job ends too", 20)
        b.click("#clear")
        equal(b.texts("article"), [], "a new chat")
        errors = [e["message"] for e in b.ask("POST", "/se/log", {"type": "browser"}) if e["level"] == "SEVERE"]
        equal(errors, [], "errors in the browser's console")


@test
def with_a_key():
    with Daemon(placement=None) as d:
        keys = os.path.join(d.dir, "keys")
        with open(os.open(keys, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("alice 12345678\n")
        with Gateway(d, "--api-key-file", keys) as g, Browser(d.dir) as b:
            b.ask("POST", "/url", {"url": f"http://127.0.0.1:{g.port}/"})
            wait_for(lambda: any("API key" in t for t in b.texts(".wrong")), "the page says what is missing")
            b.type("#key", "12345678\t")
            wait_for(lambda: "tale" in b.texts("#model option"), "the models, with the key")


main()
