"""A model and its projector are one: brought, shown and removed together, and looked at again when one changes.

usage: test_projectors.py
"""
import http.server
import json
import os
import shutil
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from seeing import HOST, IMAGES, ROWS, Seeing, make_pair, picture  # noqa: E402
from tandem_test import STANDING_MS, Daemon, check, equal, main, make_model, test, wait_for  # noqa: E402

JOB = {"prompt": "What is it?", "n": 6, "pictures": [picture("wide.png")]}
TEXT = {"prompt": "abc", "n": 40}


def bits(result):
    equal(result.error, None, "the job's error")
    return result.ids, result.logprobs


def projector(size="a", seed=1):
    return make_model(size, "f32", arch="mmproj", seed=seed)


def put(source, path):
    """As a program does that knows what it is about: the name comes when the bytes are there."""
    shutil.copy(source, path + ".new")
    os.rename(path + ".new", path)


def models_called(d, name):
    return [m for m in d.cli_json("models", "--json")[0]["models"] if m["name"] == name]


@test
def noticed():
    """A projector that is put beside a model, mended, exchanged or taken away after the model was read."""
    with Seeing() as d:
        want, text = bits(d.generate(**JOB)), bits(d.generate(**TEXT))
    with Seeing(size=None) as d:
        beside = os.path.join(d.folder, "mmproj-see.gguf")
        equal(bits(d.generate(**TEXT)), text, "a text before")
        d.refuses("unsupported", "mmproj-see.gguf beside its file", **JOB)
        with open(projector(), "rb") as f:
            whole = f.read()
        with open(beside, "wb") as f:
            f.write(whole[:len(whole) // 2])
        d.refuses("unsupported", "its vision tower: ", **JOB)
        put(projector(), beside)
        equal(bits(d.generate(**JOB)), want, "with the whole one")
        equal(bits(d.generate(**TEXT)), text, "a text")
        put(projector(seed=7), beside)
        check(bits(d.generate(**JOB)) != want, "another projector makes other rows")
        put(projector("b"), beside)
        d.refuses("unsupported", "do not belong together", **JOB)
        os.unlink(beside)
        d.refuses("unsupported", "mmproj-see.gguf beside its file", **JOB)
        equal(bits(d.generate(**TEXT)), text, "a text at the end")
        os.mkdir(beside)  # no file: it is no news each time
        d.refuses("unsupported", "mmproj-see.gguf beside its file", **JOB)


@test
def in_use():
    """Jobs that have begun end as they began, while others see by the new projector. Then one model is left."""
    with Seeing() as d:
        want, text = bits(d.generate(**JOB)), bits(d.generate(**TEXT))
    with Seeing(size=None, hang_ms=STANDING_MS) as d:
        with d.in_midst(TEXT, tokens=2) as (under_way,):
            put(projector(), os.path.join(d.folder, "mmproj-see.gguf"))
            sees = d.start_job(**JOB)
            wait_for(lambda: len(models_called(d, "see")) == 2, "the model that is read anew")
        equal(bits(under_way.wait()), text, "the job that had begun")
        equal(bits(sees.wait()), want, "the job with a picture")
        wait_for(lambda: len(models_called(d, "see")) == 1, "the older one to leave")
        equal(bits(d.generate(**JOB)), want, "another job with a picture")


def said(r):
    return (r.stdout + r.stderr).decode()


@test
def folder():
    """add, show, models, cp and rm: the two go together."""
    with Daemon(models=(), env=HOST) as d:
        there = os.path.join(d.dir, "downloads")
        own = os.path.join(d.dir, "data", "tandem", "models")
        os.mkdir(there)
        path = make_pair(there, size=None)
        other = os.path.join(there, "mmproj-model-f16.gguf")
        shutil.copy(projector(), other)
        shutil.copy(projector("b"), os.path.join(there, "mmproj-of-another.gguf"))
        check("sees pictures by " + other in said(d.cli("add", path, check_exit=0)), "add says so")
        equal(sorted(os.listdir(own)), ["mmproj-see.gguf", "see.gguf"], "the folder")
        check("see is there already" in said(d.cli("add", path, check_exit=0)), "the same again")
        equal([m["name"] for m in d.cli_json("models", "--json")[0]["models"] if m["path"].startswith(own)], ["see"],
              "models in the folder")
        shown = d.cli_json("show", "--json", "see")[0]
        equal((shown["picture_tokens"], shown["projector_bytes"]), (ROWS, os.path.getsize(other)), "what show says")
        check(f"{ROWS} tokens each" in said(d.cli("show", "see")), "in words")
        image = os.path.join(IMAGES, "pictures", "wide.png")
        d.cli("generate", "-m", "see", "--image", image, "-n", "2", "x", check_exit=0)

        d.cli("cp", "see", "saw", check_exit=0)
        equal(sorted(os.listdir(own)), ["mmproj-saw.gguf", "mmproj-see.gguf", "saw.gguf", "see.gguf"], "behind cp")
        d.cli("rm", "see", check_exit=0)
        equal(sorted(os.listdir(own)), ["mmproj-saw.gguf", "saw.gguf"], "behind rm")
        d.cli("rm", "mmproj-saw", check_exit=0)
        equal(os.listdir(own), ["saw.gguf"], "behind rm of the projector alone")
        check("none: no mmproj" in said(d.cli("show", "saw")), "show misses it")

        shutil.copy(other, os.path.join(there, "second-mmproj.gguf"))
        d.cli("add", "--name", "two", path, check_exit=0)
        check("mmproj-two.gguf" not in os.listdir(own), "of two that fit none is chosen")
        d.cli("add", "--name", "two", "--copy", "--mmproj", other, path, check_exit=0)
        check(not os.path.islink(os.path.join(own, "mmproj-two.gguf")), "a copy")
        d.cli("generate", "-m", "two", "--image", image, "-n", "2", "x", check_exit=0)
        r = d.cli("add", "--name", "wrong", "--mmproj", os.path.join(there, "mmproj-of-another.gguf"), path)
        check(r.returncode == 1 and "wrong takes texts alone: " in said(r), "one that does not fit", said(r))
        r = d.cli("add", "--name", "wrong", "--mmproj", path, path)
        check(r.returncode == 1 and "it is no projector" in said(r), "a model in its place", said(r))
        equal(d.cli("add", "--from", "hf", "--mmproj", other).returncode, 2, "--mmproj is for one file")


@test
def named_from_elsewhere():
    """A model that was named by a relative path is not called removed in another folder."""
    with Daemon(models=(), env=HOST) as d:
        os.mkdir(os.path.join(d.dir, "there"))
        make_pair(os.path.join(d.dir, "there"), size=None)
        d.cli("generate", "-m", "./see.gguf", "-n", "1", "abc", cwd=os.path.join(d.dir, "there"), check_exit=0)
        listed = said(d.cli("models", cwd="/", check_exit=0))
        check("./see.gguf" in listed and "removed" not in listed, "as it was named", listed)


class Hub(http.server.BaseHTTPRequestHandler):
    """A server that speaks as Hugging Face's does. files: path in the repository to the file here."""
    files, asked = {}, []

    def log_message(self, *args):
        pass

    def do_GET(self):
        path = self.path.split("?")[0]
        body = None
        if path.startswith("/api/models/"):
            body = json.dumps([{"path": p, "size": os.path.getsize(f)} for p, f in self.files.items()]).encode()
        elif "/resolve/main/" in path:
            name = path.partition("/resolve/main/")[2]
            self.asked.append(name)
            with open(self.files[name], "rb") as f:
                body = f.read()
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")


@test
def pulled():
    """pull hf: brings the projector of the model's folder along, in f16 where there are several, and only where it is
    of use."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}"}
    sees = make_model("a", "f32", arch="mmproj", text=True, seed=2, template=True)
    try:
        with Daemon(models=(), env=HOST) as d:
            own = os.path.join(d.dir, "data", "tandem", "models")
            Hub.files = {"see-Q4_K_M.gguf": sees, "mmproj-F32.gguf": projector("b"), "mmproj-F16.gguf": projector(),
                         "mmproj-BF16.gguf": projector("b"), "else/mmproj-F16.gguf": projector("b")}
            d.cli("pull", "hf:o/r", env=env, check_exit=0)
            equal(Hub.asked, ["see-Q4_K_M.gguf", "mmproj-F16.gguf"], "what was fetched")
            equal(sorted(os.listdir(own)), ["mmproj-see-Q4_K_M.gguf", "see-Q4_K_M.gguf"], "the folder")
            image = os.path.join(IMAGES, "pictures", "wide.png")
            d.cli("generate", "-m", "see-Q4_K_M", "--image", image, "-n", "2", "x", check_exit=0)
            d.cli("pull", "hf:o/r", env=env, check_exit=0)
            equal(len(Hub.asked), 2, "files that were fetched, behind the same again")
            d.cli("pull", "--text-only", "--name", "blind", "hf:o/r", env=env, check_exit=0)
            check("mmproj-blind.gguf" not in os.listdir(own), "--text-only")
            Hub.files = {"text-Q4_K_M.gguf": make_model("npu", arch="qwen3"), "mmproj-F16.gguf": projector()}
            out = said(d.cli("pull", "hf:o/r", env=env, check_exit=0))
            check("mmproj-F16.gguf is not fetched" in out, "a model that takes no pictures", out)
            Hub.files = {"bad-Q4_K_M.gguf": sees, "mmproj-F16.gguf": projector("b")}
            r = d.cli("pull", "hf:o/r", env=env)
            check(r.returncode == 1 and "takes texts alone" in said(r), "one that does not fit", said(r))
            for name in ("see-Q4_K_M", "blind", "text-Q4_K_M", "bad-Q4_K_M"):
                d.cli("rm", name, check_exit=0)
            equal(os.listdir(own), [], "behind rm")
    finally:
        server.shutdown()
        server.server_close()


main()
