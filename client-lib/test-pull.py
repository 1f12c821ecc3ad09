#!/usr/bin/python3
"""tandem pull as its users meet it, against a server that drops, truncates, throttles, lies and redirects.
Usage: test-pull.py TANDEM [TEST…]. Standard library only. Longer than 800 lines: all of it needs that one server."""

import hashlib
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

import test_models_support as support
import test_steps as steps
from test_models_support import MODEL, TANDEM

BODY = b"GGUF" + bytes(i * 7 % 251 for i in range(400_000))
SHA256 = hashlib.sha256(BODY).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def send(self, status, body=b"", length=None, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def range(self):
        """Where the answer begins: 0 unless the client says which file it has the beginning of."""
        m = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        return int(m[1]) if m and self.headers.get("If-Range") == self.etag() else 0

    def serve_big(self, name):
        """A file that several connections fetch, 64 KiB at a time; begin and end of each answer are recorded."""
        server, body = self.server, self.server.big
        m = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        ranged = m and self.headers.get("If-Range") == self.etag() and name != "no-ranges.gguf"
        begin = int(m[1]) if ranged else 0
        end = int(m[2]) + 1 if ranged and m[2] else len(body)
        with server.lock:
            server.n_open += 1
            server.most_open = max(server.most_open, server.n_open)
            alone = server.n_open == 1
        try:
            if name == "jealous.gguf" and not alone:
                return self.send(429)
            self.send_response(206 if ranged else 200)
            self.send_header("Content-Length", str(end - begin))
            self.send_header("ETag", self.etag())
            self.send_header("Accept-Ranges", "bytes")
            if ranged:
                self.send_header("Content-Range", "bytes %d-%d/%d" % (begin, end - 1, len(body)))
            self.end_headers()
            for i in range(begin, end, 1 << 16):
                if name == "drops.gguf" and i - begin >= 3 << 20:
                    break
                if server.gate is not None and server.sent >= server.gate:
                    self.connection.recv(1)  # the rest never comes: the client leaves
                    break
                piece = body[i:min(end, i + (1 << 16))]
                self.wfile.write(piece)
                with server.lock:
                    server.sent += len(piece)
                time.sleep(server.pause)  # so that the connections overlap
        except OSError:
            pass
        finally:
            with server.lock:
                server.n_open -= 1
            self.close_connection = True
        return None

    def etag(self):
        return '"%s"' % self.server.etag

    def serve(self, body, most=None):
        """The file from where the client asks, breaking off after `most` bytes."""
        begin = self.range()
        rest = body[begin:]
        headers = {"ETag": self.etag()}
        if begin:
            headers["Content_Range"] = "bytes %d-%d/%d" % (begin, len(body) - 1, len(body))
        sent = rest if most is None else rest[:most]
        self.server.sent += len(sent)
        self.send(206 if begin else 200, sent, len(rest), **headers)
        if len(sent) < len(rest):
            self.close_connection = True

    def do_GET(self):
        self.server.paths.append(self.path)
        self.server.heads.append(dict(self.headers))
        name = self.path.split("?")[0].strip("/").split("/")[-1]
        if self.path.startswith("/api/models/"):
            return self.send(200, json.dumps(self.server.tree).encode())
        if self.path.startswith("/big/"):
            return self.serve_big(name)
        if name == "ok.gguf" or "resolve/main" in self.path:
            return self.serve(BODY)
        if name == "drops.gguf":  # never more than 100,000 bytes at once
            return self.serve(BODY, 100_000)
        if name == "flaky.gguf":
            self.server.n_flaky += 1
            if self.server.n_flaky % 2:
                return self.send(503)
            return self.serve(BODY, 150_000)
        if name == "dead.gguf":
            return self.serve(BODY, 0)
        if name == "slow.gguf":
            self.send_response(200)
            self.send_header("Content-Length", str(len(BODY)))
            self.send_header("ETag", self.etag())
            self.end_headers()
            self.wfile.write(BODY[:100_000])
            self.connection.recv(1)  # the rest never comes: the client leaves
            self.close_connection = True
            return None
        if name == "moved.gguf":
            return self.send(302, Location="/ok.gguf", X_Linked_ETag='"%s"' % SHA256)
        if name == "lie.gguf":
            return self.send(302, Location="/ok.gguf", X_Linked_ETag='"%s"' % ("0" * 64))
        if name == "loop.gguf":
            return self.send(302, Location="/loop.gguf")
        if name == "file.gguf":
            return self.send(302, Location="file:///etc/passwd")
        if name == "page.gguf":
            return self.send(200, b"<html>Sign in</html>")
        if name == "huge.gguf":
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 50))
            self.end_headers()
            self.wfile.write(BODY)
            self.close_connection = True
            return None
        if name == "endless.gguf":  # says no size, and says another one than the tree of the repository
            self.send_response(200)
            self.send_header("ETag", self.etag())
            self.end_headers()
            try:
                self.wfile.write(BODY)
            except OSError:
                pass
            self.close_connection = True
            return None
        if name == "private.gguf":
            return self.send(401)
        return self.send(404)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.etag, self.tree, self.n_flaky, self.n_open = "one", [], 0, 0
        self.big, self.gate, self.lock, self.pause = b"", None, threading.Lock(), 0.0005
        self.forget()
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = "http://127.0.0.1:%d/" % self.server_address[1]

    def forget(self):
        """Once the answers to clients that have left are over."""
        end = time.monotonic() + 60
        while self.n_open > 0 and time.monotonic() < end:
            time.sleep(0.01)
        self.sent, self.paths, self.heads = 0, [], []
        self.n_open = self.most_open = 0

    def handle_error(self, request, client_address):
        pass  # a client that left


class Case(support.Case):
    def setUp(self):
        super().setUp()
        self.server = Server()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def environment(self, **more):
        return super().environment(HF_ENDPOINT=self.server.url[:-1], **more)

    def assert_whole(self, name):
        with open(self.models + "/" + name, "rb") as f:
            self.assertEqual(hashlib.sha256(f.read()).hexdigest(), SHA256)


def on_small_disk(self, kib, name):
    """A pull into a file system of that size, in a mount namespace of its own. Its status, what it said, and what
    lies in the folder afterwards."""
    script = ("mkdir -p $0/small && mount -t tmpfs -o size=%dk small $0/small || exit 99; "
              "%s pull --to $0/small %s; s=$?; echo files: $(ls -A $0/small); exit $s" %
              (kib, TANDEM, self.server.url + name))
    r = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, self.dir],
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
                       env=self.environment())
    if r.returncode == 99 or "unshare" in r.stderr:
        self.skipTest("no mount namespace here: " + r.stderr)
    return r.returncode, r.stdout + r.stderr


class Pull(Case):
    def test_plain(self):
        out = self.tandem("pull", self.server.url + "ok.gguf?download=true")
        self.assertIn("no SHA-256", out)
        self.assertEqual(self.files(), ["ok.gguf"])
        self.assert_whole("ok.gguf")
        self.server.forget()
        self.assertIn("there already", self.tandem("pull", self.server.url + "ok.gguf"))
        self.assertEqual(self.server.sent, 0)
        self.tandem("pull", "--name", "other", "--to", self.dir + "/else/where", "--sha256", SHA256,
                    self.server.url + "ok.gguf")
        self.assertEqual(os.listdir(self.dir + "/else/where"), ["other.gguf"])

    def test_resumes(self):
        """Each byte is fetched once, though no answer has more than a quarter of them."""
        self.tandem("pull", self.server.url + "drops.gguf")
        self.assert_whole("drops.gguf")
        self.assertEqual(self.server.sent, len(BODY))
        self.assertEqual(self.files(), ["drops.gguf"])

    def test_flaky(self):
        out = self.tandem("pull", self.server.url + "flaky.gguf")
        self.assertIn("answers 503; trying again", out)
        self.assert_whole("flaky.gguf")
        self.assertEqual(self.server.sent, len(BODY))

    def begin(self, name="slow.gguf"):
        """A pull that is stopped when it has some bytes."""
        p = subprocess.Popen([TANDEM, "pull", self.server.url + name], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment())
        part, end = self.models + "/" + name + ".part", time.monotonic() + 60
        while time.monotonic() < end and not (os.path.exists(part) and os.path.getsize(part) > 20_000):
            time.sleep(0.01)
        return p

    def test_interrupted(self):
        """A later run goes on where the first stopped, unless the file has changed since."""
        for changed in (False, True):
            self.server.etag = "one"
            p = self.begin()
            p.send_signal(signal.SIGINT)
            out = p.communicate(timeout=60)
            self.assertEqual(p.returncode, 130, out)
            self.assertEqual(self.files(), ["slow.gguf.part", "slow.gguf.part.info"])
            size = os.path.getsize(self.models + "/slow.gguf.part")
            if changed:
                self.server.etag = "two"
            self.server.forget()
            original = Handler.do_GET
            Handler.do_GET = lambda handler: handler.serve(BODY)
            try:
                self.tandem("pull", self.server.url + "slow.gguf")
            finally:
                Handler.do_GET = original
            self.assert_whole("slow.gguf")
            self.assertEqual(self.server.sent, len(BODY) if changed else len(BODY) - size)
            self.assertEqual(self.files(), ["slow.gguf"])
            os.unlink(self.models + "/slow.gguf")

    def test_killed(self):
        p = self.begin()
        p.kill()
        p.communicate()
        self.assertNotIn("slow.gguf", self.files())

    def test_two_at_once(self):
        p = self.begin()
        self.assertIn("is being fetched or copied by another process",
                      self.tandem("pull", self.server.url + "slow.gguf", status=1))
        p.terminate()
        p.communicate(timeout=60)

    def test_gives_up(self):
        self.assertIn("the transfer ended before its last byte",
                      self.tandem("pull", self.server.url + "dead.gguf", status=1))
        self.assertEqual(len(self.server.paths), 5)

    def test_hashes(self):
        self.assertIn("its SHA-256 is right", self.tandem("pull", self.server.url + "moved.gguf"))
        for args in (["lie.gguf"], ["ok.gguf", "--sha256", "1" * 64]):
            out = self.tandem("pull", self.server.url + args[0], *args[1:], status=1)
            self.assertIn("wrong bytes", out)
        self.assertEqual(self.files(), ["moved.gguf"])

    def test_wrong_files(self):
        for name, text in (("page.gguf", "is no GGUF file"), ("none.gguf", "no such file (404)"),
                           ("private.gguf", "HF_TOKEN"), ("huge.gguf", "its disk has"), ("loop.gguf", "redirect"),
                           ("file.gguf", "rotocol")):
            self.assertIn(text, self.tandem("pull", self.server.url + name, status=1), name)
        self.assertEqual([f for f in self.files() if not f.endswith(".info")], [])

    def test_disk_full(self):
        """Told before the first byte where the size is known; else the file never gets its name."""
        status, out = on_small_disk(self, 256, "ok.gguf")
        self.assertEqual(status, 1, out)
        self.assertIn("its disk has", out)
        self.assertLess(self.server.sent, len(BODY) + 1)
        status, out = on_small_disk(self, 256, "endless.gguf")
        self.assertEqual(status, 1, out)
        self.assertIn("No space left on device", out)
        self.assertNotRegex(out, r"files:.* endless\.gguf( |$)")
        self.assertNotRegex(out, r"files: endless\.gguf( |$)")
        status, out = on_small_disk(self, 1024, "endless.gguf")
        self.assertEqual(status, 0, out)
        self.assertIn("files: endless.gguf\n", out)

    def test_usage(self):
        self.tandem("pull", status=2)
        self.tandem("pull", "--sha256", "12", "x", status=2)
        self.tandem("pull", "--name", "a/b", "x", status=2)
        self.assertIn("does not end in .gguf", self.tandem("pull", "https://localhost/x.safetensors", status=1))
        self.assertIn("did you mean gemma3-1b", self.tandem("pull", "gemma3-1", status=1))
        self.assertIn("none of hf:OWNER/REPO", self.tandem("pull", "hf:owner", status=1))


class Connections(Case):
    """A file of 48 MiB, which four connections fetch."""

    def setUp(self):
        super().setUp()
        self.server.big = b"GGUF" + os.urandom((48 << 20) + 12_345)
        self.sha256 = hashlib.sha256(self.server.big).hexdigest()

    def pull(self, name, *args):
        return self.tandem("pull", self.server.url + "big/" + name, "--sha256", self.sha256, *args)

    def test_ranges(self):
        self.server.pause = 0.002  # also where the client has no CPU for a while, little lies in the sockets
        self.assertIn("its SHA-256 is right", self.pull("x.gguf"))
        self.assertEqual(self.files(), ["x.gguf"])
        self.assertGreaterEqual(self.server.most_open, 3)
        # What the first connection was sent beyond its part lay in the sockets between the two.
        self.assertLess(self.server.sent, len(self.server.big) + (16 << 20))
        self.server.forget()
        self.pull("y.gguf", "--connections", "1")
        self.assertEqual((self.server.most_open, self.server.sent), (1, len(self.server.big)))

    def test_no_ranges(self):
        """The server says that it takes ranges, and sends the whole file for each."""
        self.pull("no-ranges.gguf")
        self.assertEqual(self.files(), ["no-ranges.gguf"])

    def test_one_connection_allowed(self):
        self.pull("jealous.gguf")
        self.assertEqual(self.files(), ["jealous.gguf"])

    def test_drops(self):
        self.pull("drops.gguf")
        self.assertEqual(self.files(), ["drops.gguf"])

    def test_killed(self):
        """A process that is killed with several parts begun: the next one fetches what is missing, and no more."""
        self.server.gate = 24 << 20
        p = subprocess.Popen([TANDEM, "pull", self.server.url + "big/x.gguf"], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment())
        # What the server has sent may lie in the sockets for a while.
        part, end = self.models + "/x.gguf.part", time.monotonic() + 60
        while time.monotonic() < end and not (os.path.exists(part) and os.stat(part).st_blocks * 512 >= 20 << 20):
            time.sleep(0.01)
        p.kill()
        p.communicate()
        self.assertEqual(self.files(), ["x.gguf.part", "x.gguf.part.info"])
        here = self.bytes_here()
        self.assertGreaterEqual(here, (20 << 20) - 16 * 4096)  # each part's last page may be half there
        self.server.gate = None
        self.server.forget()
        self.pull("x.gguf")
        self.assertEqual(self.files(), ["x.gguf"])
        self.assertLess(self.server.sent, len(self.server.big) - here + (4 << 20))

    def bytes_here(self):
        """How much of the file has been fetched; about, as it is compared in pages."""
        try:
            with open(self.models + "/x.gguf.part", "rb") as f:
                part, big = f.read(), self.server.big
        except FileNotFoundError:
            return 0
        return sum(4096 for i in range(0, len(big), 4096) if part[i:i + 4096] == big[i:i + 4096])

    def test_changed(self):
        """The file has changed between two runs: none of the first one's bytes stay."""
        self.server.gate = 24 << 20
        p = subprocess.Popen([TANDEM, "pull", self.server.url + "big/x.gguf"], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment())
        end = time.monotonic() + 60
        while time.monotonic() < end and self.server.sent < self.server.gate:
            time.sleep(0.01)
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=60)
        self.assertEqual(p.returncode, 130)
        self.server.gate, self.server.etag = None, "two"
        self.server.big = b"GGUF" + os.urandom(30 << 20)
        self.sha256 = hashlib.sha256(self.server.big).hexdigest()
        self.pull("x.gguf")
        self.assertEqual(self.files(), ["x.gguf"])

    def test_no_library_for_others(self):
        """Only the program that fetches loads libcurl: all other commands start without it."""
        for program, has in ((TANDEM, False), (os.path.dirname(TANDEM) + "/tandem-pull", True)):
            needed = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
            self.assertEqual("libcurl" in needed, has, program)
            self.assertEqual("libcrypto" in needed, has, program)


class Lies(Case):
    """A server whose words do not fit what it sends, or what it said before."""

    OLD = MODEL
    NEW = MODEL[:-4096] + b"n" * 4096

    def serve(self, *answers):
        """One after the other; the last one again and again. An answer: (status, headers, body), what a function makes
        of the handler, or what it writes itself (None)."""
        answers = list(answers)
        self.asked = []

        def get(handler):
            self.asked.append({k: handler.headers.get(k) for k in ("Range", "If-Range")})
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if callable(answer):
                answer = answer(handler)
            handler.close_connection = True
            if answer is None:
                return
            status, headers, body = answer
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            try:
                handler.wfile.write(body)
            except OSError:
                pass

        original = Handler.do_GET
        Handler.do_GET = get
        self.addCleanup(setattr, Handler, "do_GET", original)

    def half(self, etag='"old"', **more):
        """The first half of a file, and the connection breaks off."""
        return 200, {"Content-Length": len(self.OLD), "Accept-Ranges": "bytes", **({"ETag": etag} if etag else {}),
                     **more}, self.OLD[:len(self.OLD) // 2]

    def rest(self, of, etag, total=None, begin=None):
        """What follows of a file, whether it is the same or not."""
        def answer(handler):
            m = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range") or "")
            at = int(m[1]) if m else 0
            headers = {"Content-Length": len(of) - at, **({"ETag": etag} if etag else {})}
            if m:
                headers["Content-Range"] = "bytes %s-%d/%s" % (at if begin is None else begin, len(of) - 1,
                                                               len(of) if total is None else total)
            return 206 if m else 200, headers, of[at:]
        return answer

    def pull(self, *args, status=0):
        return self.tandem("pull", "--connections", "1", *args, self.server.url + "m.gguf", status=status)

    def got(self):
        with open(self.models + "/m.gguf", "rb") as f:
            return f.read()

    def test_other_etag(self):
        """The rest of another file is never joined to the beginning of the first: not in one run, not in the next."""
        for etag in ('"new"', None, 'W/"old"'):
            self.serve(self.half(), self.rest(self.NEW, etag))
            self.pull()
            self.assertEqual(self.got(), self.NEW, etag)
            self.assertEqual([a["Range"] is not None for a in self.asked], [False, True, False], etag)
            os.unlink(self.models + "/m.gguf")
        self.serve(self.half(), self.rest(self.OLD, '"old"'))
        self.pull()
        self.assertEqual((self.got(), len(self.asked)), (self.OLD, 2))
        os.unlink(self.models + "/m.gguf")
        for of, etag in ((self.NEW, '"new"'), (self.OLD, '"old"')):
            self.serve(self.half(), (404, {"Content-Length": 0}, b""))
            self.pull(status=1)
            self.assertEqual(self.files(), ["m.gguf.part", "m.gguf.part.info"])
            self.serve(self.rest(of, etag))
            self.pull()
            self.assertEqual((self.got(), len(self.asked)), (of, 2 if of is self.NEW else 1))
            os.unlink(self.models + "/m.gguf")

    def test_etags_that_are_none(self):
        """What cannot be compared or sent back is not: the file is fetched anew."""
        for etag in ('W/"old"', '"o"ld"', '"o\rX-Y: z"', '"' + "o" * 200 + '"'):
            self.serve(self.half(etag), self.rest(self.OLD, '"old"'))
            r = self.run_tandem("pull", "--connections", "1", self.server.url + "m.gguf")
            if "\r" in etag and r.returncode:  # a newer libcurl takes no part of such an answer
                self.assertIn("Carriage return found in header", r.stderr)
                self.pull()
            else:
                self.assertEqual(r.returncode, 0, r)
            self.assertEqual(self.got(), self.OLD)
            self.assertEqual(self.asked[1], {"Range": None, "If-Range": None}, etag)
            os.unlink(self.models + "/m.gguf")

    def test_other_etag_in_several_connections(self):
        """One of several answers is of another file: one connection fetches the whole."""
        self.server.big = b"GGUF" + os.urandom(40 << 20)
        original = Handler.etag
        answers = []

        def etag(handler):
            answers.append(handler)
            return '"another"' if len(answers) == 3 else original(handler)

        Handler.etag = etag
        try:
            self.tandem("pull", self.server.url + "big/x.gguf", "--sha256",
                        hashlib.sha256(self.server.big).hexdigest())
        finally:
            Handler.etag = original
        self.assertEqual(self.files(), ["x.gguf"])

    def test_ranges(self):
        """Answers to a question for the rest that are of other bytes, or of none."""
        n = len(self.OLD)
        for begin, total in ((0, None), (None, n - 1), (None, (1 << 64) - 1), (None, "*"), (-5, None)):
            self.serve(self.half(), self.rest(self.OLD, '"old"', total, begin))
            self.assertIn("sends other bytes than those asked for", self.pull(status=1), (begin, total))
            self.assertNotIn("m.gguf", self.files())
            self.tandem("rm", "m")
        self.assertEqual(self.files(), [])

    def test_part_for_the_whole(self):
        """A part that nobody asked for is no file."""
        for span in ("bytes 0-99/1000", "bytes 0-2035007/2035008", "bytes 0-99/*"):
            self.serve((206, {"Content-Range": span, "Content-Length": 100, "ETag": '"x"'}, MODEL[:100]))
            self.assertIn("a part of the file where all of it was asked for", self.pull(status=1), span)
            self.assertEqual(self.files(), [])

    def test_cut_without_a_length(self):
        """Where the end of the connection is the end of the file, the file says whether it is whole."""
        self.serve((200, {}, MODEL))
        self.pull()
        self.assertEqual(self.got(), MODEL)
        os.unlink(self.models + "/m.gguf")
        self.serve((200, {}, MODEL[:-5000]))
        self.assertIn("truncated download?", self.pull(status=1))
        self.assertEqual(self.files(), [])

    def test_lengths_that_are_none(self):
        """A cut would go unseen where the length overflows, or where there are two."""
        def answer(*lengths):
            def send(handler):
                handler.send_response(200)
                for length in lengths:
                    handler.send_header("Content-Length", str(length))
                handler.end_headers()
                handler.wfile.write(MODEL)
                handler.close_connection = True
            return send

        n = len(MODEL)
        for lengths in ((1 << 63,), ((1 << 64) + n,), (n, n - 5), (n - 5, n), ("0x10",), ("",), (f"{n}, {n - 5}",)):
            self.serve(answer(*lengths))
            self.assertRegex(self.pull(status=1), "a length that no file has|Invalid Content-Length", lengths)
            self.assertEqual(self.files(), [], lengths)
        self.serve(answer(n, n))
        self.pull()
        self.assertEqual(self.got(), MODEL)

    def test_no_end(self):
        """Headers, pages of errors and of redirections, and files without an end: each is ended, and nothing stays."""
        def write(handler, text, n):
            try:
                for _ in range(n):
                    handler.wfile.write(text)
                handler.server.sent += 1  # all of it was taken
            except OSError:
                pass

        def headers(handler):
            handler.send_response(200)
            handler.flush_headers()
            write(handler, b"X-More: " + b"x" * 1000 + b"\r\n", 100_000)

        def page(status):
            def answer(handler):
                handler.send_response(status)
                handler.send_header("Location", "/ok.gguf")
                handler.send_header("Content-Length", str(65536 * 2000))
                handler.end_headers()
                write(handler, b"x" * 65536, 2000)
            return answer

        for answer, said in ((headers, "eader"), (page(404), "no such file"), (page(403), "HF_TOKEN"),
                             (page(302), "redirection has no end")):
            self.server.sent = 0
            self.serve(answer)
            self.assertIn(said, self.pull(status=1))
            self.assertEqual((self.server.sent, self.files()), (0, []), said)

    def test_lists(self):
        """The list of a repository's files: without an end, of a million entries, with sizes that no file has."""
        def write(handler, head, text, n):
            try:
                handler.wfile.write(head)
                for _ in range(n):
                    handler.wfile.write(text)
                handler.server.sent += 1
            except OSError:
                pass

        def answer(status, *what):
            def write_it(handler):
                handler.send_response(status)
                handler.send_header("Location", "/ok.gguf")
                handler.send_header("Content-Length", str(1 << 30))
                handler.end_headers()
                write(handler, *what)
            return write_it

        def headers(handler):
            write(handler, b"HTTP/1.1 200 OK\r\n", b"X: " + b"x" * 1000 + b"\r\n", 100_000)

        for got, said in ((answer(200, b"[", b"x" * 65536, 2000), "longer than 8388608 bytes"),
                          (answer(302, b"", b"x" * 65536, 2000), "no end"),
                          (headers, "eader")):
            self.server.sent = 0
            self.serve(got)
            self.assertIn(said, self.tandem("pull", "hf:o/r", status=1))
            self.assertEqual(self.server.sent, 0, said)
        for text, said in ((b"[" + b",".join([b"{}"] * 2_000_000) + b"]", "has no GGUF file"),
                           (b"[" * 1_000_000, "no list"),
                           (b"[" + b",".join([b'{"path":"m-Q4_K_M.gguf"}'] * 300_000) + b"]", "more than 64"),
                           (b'[{"path":"m-Q4_K_M.gguf","size":1e999}]', "no list")):
            self.serve((200, {"Content-Length": len(text)}, text))
            self.assertIn(said, self.tandem("pull", "hf:o/r", status=1))
        tree = json.dumps([{"path": "../../m-Q4_K_M.gguf", "size": -1, "lfs": {"oid": "../x"}}]).encode()
        self.serve((200, {"Content-Length": len(tree)}, tree), self.rest(MODEL, '"x"'))
        self.tandem("pull", "hf:o/r")
        self.assertEqual(self.files(), ["m-Q4_K_M.gguf"])

    def test_no_progress(self):
        """A server that begins anew each time is given up, though bytes come each time. What cannot be taken up later
        does not stay."""
        self.serve(self.half(etag=None))
        self.assertIn("ended before its last byte", self.pull(status=1))
        self.assertEqual((len(self.asked), self.files()), (5, []))

    def test_endless_file(self):
        """Some of the disk stays free; what cannot be taken up again does not stay on it."""
        def endless(handler):
            handler.send_response(200)
            handler.end_headers()
            try:
                handler.wfile.write(b"GGUF")
                for _ in range(1000):
                    handler.wfile.write(b"x" * 65536)
            except OSError:
                pass

        self.serve(endless)
        status, out = on_small_disk(self, 16384, "m.gguf")
        self.assertEqual(status, 1, out)
        self.assertIn("its disk has", out)
        self.assertIn("files:\n", out)

    def test_there_already(self):
        """A file of the name is success only where it is the one that is wanted."""
        self.serve(self.rest(MODEL, '"x"'))
        self.write_model(self.models + "/m.gguf")
        right = hashlib.sha256(MODEL).hexdigest()
        self.assertIn("its SHA-256 is right", self.pull("--sha256", right))
        self.assertIn("its SHA-256 is right", self.pull("--sha256", right.upper()))
        self.assertIn("there is another", self.pull("--sha256", "a" * 64, status=1))
        self.assertIn("is there already", self.pull())
        self.assertEqual(self.asked, [])
        os.unlink(self.models + "/m.gguf")
        os.symlink("nowhere", self.models + "/m.gguf")
        self.assertIn("there is another", self.pull(status=1))
        self.assertEqual(self.files(), ["m.gguf"])

    def test_name_taken_meanwhile(self):
        """A file that got the name while the download ran stays."""
        def answer(handler):
            self.write_model(self.models + "/m.gguf", b"another")
            return self.rest(MODEL, '"x"')(handler)

        self.serve(answer)
        self.assertIn("there is another", self.pull(status=1))
        self.assertEqual((self.files(), self.got()), (["m.gguf"], b"another"))


class Steps(Case):
    """tandem-pull is killed at its calls: what stays is known to the next run, and to rm."""

    def test_killed(self):
        if steps.NUMBERS is None:
            self.skipTest("the numbers of this machine's system calls are not known")
        argv = [TANDEM, "pull", "--connections", "1", self.server.url + "ok.gguf"]
        names = ("write", "pwrite64", "flock", "fsync", "fchmod", "ftruncate", "linkat", "unlinkat")
        stops, status = steps.stops_of(argv, self.environment(), names, since="flock")
        self.assertEqual((status, self.files()), (0, ["ok.gguf"]))
        # The server's bytes come in a differing number of pieces: some stops at writes are enough.
        writes = [s for s in stops if "write" in s.name]
        seen = set()
        for at in [s for s in stops if s not in writes] + writes[:4] + writes[4::max(1, len(writes) // 10)]:
            self.tandem("rm", "ok", status=0 if self.files() else 1)
            self.assertEqual(self.files(), [])
            p = steps.Stepped(argv, self.environment())
            p.step_to(at)
            p.kill()
            seen.add(tuple(self.files()))
            if "ok.gguf" in self.files():
                self.assert_whole("ok.gguf")
            self.tandem("pull", self.server.url + "ok.gguf")
            self.assertEqual(self.files(), ["ok.gguf"], at)
            self.assert_whole("ok.gguf")
        part, info = "ok.gguf.part", "ok.gguf.part.info"
        self.assertLessEqual({(part,), (part, info), ("ok.gguf", part, info), ("ok.gguf",)}, seen)


class HuggingFace(Case):
    def tree(self, *names):
        self.server.tree = [{"type": "file", "path": n, "size": len(BODY), "lfs": {"oid": SHA256}} for n in names]

    def test_quantisations(self):
        self.tree("README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-Q8_0.gguf", "m-IQ4_XS.gguf")
        self.assertIn("its SHA-256 is right", self.tandem("pull", "hf:o/r"))
        self.tandem("pull", "hf:o/r:q8_0")
        self.assertEqual(self.files(), ["m-Q4_K_M.gguf", "m-Q8_0.gguf"])
        out = self.tandem("pull", "hf:o/r:Q5_0", status=1)
        self.assertIn("has no GGUF file of Q5_0; it has m-Q4_K_M.gguf, m-Q8_0.gguf", out)
        self.tandem("pull", "hf:o/r/m-IQ4_XS.gguf")
        self.assertIn("m-IQ4_XS.gguf", self.files())

    def test_known_names(self):
        """Help lists the names that are known. What has one file is called so here, unless --name says otherwise."""
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "fetch", "source.c")) as f:
            known = dict(re.findall(r'\{ "([a-z0-9.-]+)", "hf:([^"]+)"', f.read()))
        self.assertGreater(len(known), 9)
        words = re.split(r"[\s,;()]+", self.tandem("help", "pull"))
        self.assertEqual([name for name in known if name not in words and name + "," not in words], [])
        self.tree("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q8_0.gguf")
        self.tandem("pull", "smollm2-135m")
        self.tandem("pull", "smollm2-135m", "--name", "own")
        self.assertEqual(self.files(), ["own.gguf", "smollm2-135m.gguf"])
        self.assertEqual(self.server.paths[1], "/%s/resolve/main/SmolLM2-135M-Instruct.Q4_1.gguf" %
                         known["smollm2-135m"].split(":")[0])
        self.assertIn("did you mean smollm2-135m", self.tandem("pull", "smollm2-135", status=1))

    def test_parts(self):
        parts = ["d/m-Q4_K_M-0000%d-of-00003.gguf" % i for i in (3, 1, 2)]
        self.tree(*parts)
        self.tandem("pull", "hf:o/r")
        self.assertEqual(self.files(), sorted(os.path.basename(p) for p in parts))
        # The first one last: a model in parts is found by its first.
        self.assertEqual([p for p in self.server.paths if "resolve" in p],
                         ["/o/r/resolve/main/" + p for p in sorted(parts)[1:] + sorted(parts)[:1]])
        self.tree(*parts[:2])
        self.assertIn("not the parts of one", self.tandem("pull", "hf:o/r2", status=1))
        self.assertIn("removed", self.tandem("rm", "m-Q4_K_M"))
        self.assertEqual(self.files(), [])

    def test_lies(self):
        """A repository's list that lies about the size or the hash: an error that says so, and no file."""
        for change, said in (({"size": len(BODY) - 5}, "bytes"), ({"size": len(BODY) + 5}, "bytes"),
                             ({"lfs": {"oid": "0" * 64}}, "SHA-256")):
            self.tree("m-Q4_K_M.gguf")
            self.server.tree[0].update(change)
            out = self.tandem("pull", "hf:o/r", status=1)
            self.assertIn(said, out, change)
            self.assertNotIn("m-Q4_K_M.gguf", self.files(), change)
            for name in self.files():
                os.unlink(self.models + "/" + name)

    def test_token(self):
        self.tree("m-Q4_K_M.gguf")
        self.tandem("pull", "hf:o/r", HF_TOKEN="secret")
        self.assertEqual([h.get("Authorization") for h in self.server.heads], ["Bearer secret"] * 2)
        self.server.forget()
        self.tandem("pull", self.server.url + "ok.gguf", HF_TOKEN="secret")
        self.assertEqual([h.get("Authorization") for h in self.server.heads], [None])

    def test_token_stays(self):
        """A redirection to another server does not take the token along."""
        self.tree("m-Q4_K_M.gguf")
        other = Server()
        self.addCleanup(other.server_close)
        self.addCleanup(other.shutdown)
        original = Handler.do_GET

        def get(handler):
            if handler.server is self.server and "resolve/main" in handler.path:
                self.server.heads.append(dict(handler.headers))
                return handler.send(302, Location=other.url + "ok.gguf")
            return original(handler)

        Handler.do_GET = get
        try:
            self.tandem("pull", "hf:o/r", HF_TOKEN="secret")
        finally:
            Handler.do_GET = original
        self.assertEqual([h.get("Authorization") for h in self.server.heads], ["Bearer secret"] * 2)
        self.assertEqual([h.get("Authorization") for h in other.heads], [None])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
