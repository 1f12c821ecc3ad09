"""What is kept of makers' programs: it is asked for once, again where anything that it depends on is another, and again
in a run with --fresh; what was cut off leaves nothing."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tandem_test import *  # noqa: E402,F403
import kept  # noqa: E402


@contextlib.contextmanager
def own_cache():
    saved = os.environ.get("TANDEM_RELEASED_CACHE")
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as there:
        os.environ["TANDEM_RELEASED_CACHE"] = there
        try:
            yield there
        finally:
            os.environ.pop("TANDEM_RELEASED_CACHE")
            os.environ.update({"TANDEM_RELEASED_CACHE": saved} if saved else {})
            kept.renewed.clear()


def everything(there):
    return sorted(os.path.join(folder, f)[len(there) + 1:] for folder, _, files in os.walk(there) for f in files)


class Maker:
    """Counts how often it is asked."""

    def __init__(self):
        self.n = 0

    def answer(self):
        self.n += 1
        return {"said": self.n}

    def write(self, path):
        self.n += 1
        with open(path, "w") as f:
            f.write(str(self.n))


@contextlib.contextmanager
def fresh():
    sys.argv.append("--fresh")
    kept.renewed.clear()  # as in another process
    try:
        yield
    finally:
        sys.argv.remove("--fresh")


def read(path):
    with open(path) as f:
        return f.read()


@test
def answers():
    with own_cache() as there:
        maker = Maker()

        def ask(**on):
            return kept.answer("tale-score", on, maker.answer)["said"]
        equal([ask(file="a", texts=["x"]), ask(texts=["x"], file="a")], [1, 1], "the same question")
        equal([ask(file="b", texts=["x"]), ask(file="a", texts=["y"]), ask(file="a", texts=["x"], version="2")],
              [2, 3, 4], "another file, another text, another version")
        equal(ask(file="a", texts=["x"]), 1, "the first one is there still")
        with fresh():
            equal([ask(file="a", texts=["x"]), ask(file="a", texts=["x"])], [5, 5], "asked again, once in a run")
        equal(ask(file="a", texts=["x"]), 5, "what came is kept")
        equal(len(everything(there)), 4, "files")


@test
def files():
    with own_cache() as there:
        maker = Maker()
        first = kept.file("tale-f32.gguf", {"sum": "a"}, maker.write)
        equal((os.path.basename(first), read(first)), ("tale-f32.gguf", "1"), "its name and content")
        equal(kept.file("tale-f32.gguf", {"sum": "a"}, maker.write), first, "made once")
        other = kept.file("tale-f32.gguf", {"sum": "b"}, maker.write)
        equal((read(first), read(other)), ("1", "2"), "beside that of another sum")
        with fresh():
            equal(read(kept.file("tale-f32.gguf", {"sum": "a"}, maker.write)), "3", "made again")
        equal(len(everything(there)), 2, "files")


@test
def cut_off():
    """A maker that fails in its midst, and an answer that is no JSON, leave nothing that could be taken for whole."""
    def half(path):
        with open(path, "w") as f:
            f.write("half")
        raise RuntimeError("cut off")

    with own_cache() as there:
        for keep in (lambda: kept.file("x.gguf", {}, half), lambda: kept.answer("x", {}, lambda: half(os.devnull)),
                     lambda: kept.answer("x", {}, lambda: [1, {2}])):
            try:
                keep()
            except (RuntimeError, TypeError):
                pass
            else:
                check(False, "it fails")
        equal(everything(there), [], "nothing is left")
        maker = Maker()
        equal(read(kept.file("x.gguf", {}, maker.write)), "1", "made when it can be")


@test
def what_it_depends_on():
    """A file counts by its content, also when it changes in one run; programs by theirs; packages by their versions."""
    with own_cache() as there:
        path = os.path.join(there, "file")
        sums = []
        for text in ("one", "two", "one"):
            with open(path, "w") as f:
                f.write(text)
            os.utime(path, ns=(len(sums) + 1,) * 2)
            sums.append(kept.sum_of(path))
        equal((sums[0] == sums[2], sums[0] == sums[1]), (True, False), "sums")
        equal(kept.programs("kept.py"), {"kept.py": kept.sum_of(kept.__file__)}, "programs")
        pins = os.path.join(there, "pins.txt")
        python = os.path.join(there, "python")  # says which packages it was asked about, as their versions
        with open(python, "w") as f:
            f.write('#!/bin/sh\nshift 2\nprintf \'["%s 1", "%s 2"]\' "$1" "$2"\n')
        os.chmod(python, 0o755)
        with open(pins, "w") as f:
            f.write("# pinned\n--extra-index-url x\none[all]==1.0\ntwo==2.0\n")
        equal(kept.versions(python, pins), {"one": "one 1", "two": "two 2"}, "versions of packages")


main()
