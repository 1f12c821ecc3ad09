"""A model that was split into several files is one model: listed once, opened by its name, by its first file or by a
client; the same ids as the whole file. What is missing, swapped, changed or cut is said by name.
"""
import shutil
import struct
import tempfile

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from model_parts import part_name, split  # noqa: E402
from tandem_test import *  # noqa: E402,F403

N = times(40, 60, 24)


class Folder:
    """A directory of models of its own."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="tandem-test-split-")
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


def reference():
    with Daemon(models=[TALE]) as d:
        return d.generate(prompt=PROMPT, n=N)


def listed(d, size):
    """Once, with the size of all parts, loaded or not."""
    models = [m for m in d.call("models")["models"] if m["name"].startswith("story")]
    equal([m["name"] for m in models], ["story"], "the models in the list")
    equal(models[0]["file_bytes"], size, "the size of all parts")


@test
def one_model():
    want = reference()
    with Folder() as folder:
        paths = split(TALE, folder, "story", 3)
        bytes_ = sum(os.path.getsize(p) for p in paths)
        for models, env in (([], {"TANDEM_MODEL_PATH": folder}), ([paths[0]], {})):
            with Daemon(models=models, env=env) as d:
                listed(d, bytes_)
                got = d.generate(prompt=PROMPT, n=N, model="story")
                same_ids(got.ids, want.ids, "a model of three files")
                check(got.logprobs == want.logprobs, "log-probabilities of a model of three files")
                listed(d, bytes_)
        with Daemon(models=[TALE]) as d:  # a client's own, of a private daemon
            said = [d.cli("generate", "-m", m, "--raw", "--temp", "0", "-n", "12", PROMPT, check_exit=0).stdout
                    for m in (paths[0], TALE)]
            equal(said[0], said[1], "what a client's own files say")


def refused(d, model, *words):
    r = d.cli("generate", "-m", model, "--raw", "x")
    check(r.returncode != 0, f"{model} is refused", r.stdout)
    for word in words:
        check(word.encode() in r.stderr, f"the reason names {word}", r.stderr)


@test
def refusals():
    with Folder() as folder:
        paths = split(TALE, folder, "gone", 3)
        os.unlink(paths[2])
        paths = split(TALE, folder, "swapped", 3)
        os.rename(paths[1], folder + "/x")
        os.rename(paths[2], paths[1])
        os.rename(folder + "/x", paths[2])
        paths = split(TALE, folder, "cut", 3)
        with open(paths[1], "r+b") as f:
            f.truncate(os.path.getsize(paths[1]) - 100)
        split(TALE, folder, "fewer", 2, total=5)
        split(TALE, folder, "more", 2, count=3)
        paths = split(TALE, folder, "twice", 2)
        with open(paths[0], "rb") as f:  # the second has the first one's tensors
            first = f.read()
        at = first.index(b"split.no") + 8 + 4
        with open(paths[1], "wb") as f:
            f.write(first[:at] + struct.pack("<H", 1) + first[at + 2:])
        whole = split(TALE, folder, "lone", 2)  # the first one alone has another name
        os.rename(whole[0], os.path.join(folder, "renamed.gguf"))
        with Daemon(models=[TALE], env={"TANDEM_MODEL_PATH": folder}) as d:
            refused(d, "gone", "part 3 of 3", "gone-00003-of-00003.gguf", "No such file")
            refused(d, "swapped", "it says that it is part 3 of 3", "2 of 3")
            refused(d, "cut", "cut-00002-of-00003.gguf", "truncated")
            refused(d, "fewer", "announces 5 tensors")
            refused(d, "more", "first of 3 parts")
            refused(d, "twice", "two of its parts have a tensor")
            refused(d, "renamed", "first of 2 parts", "-00001-of-00002.gguf")
            refused(d, os.path.join(folder, part_name("lone", 2, 2)), "part 2 of 2; name the first part")


@test
def changes():
    """A part that is written to is a model that changed."""
    with Folder() as folder:
        paths = split(TALE, folder, "story", 3)
        with Daemon(env={"TANDEM_MODEL_PATH": folder}) as d:
            want = d.generate(prompt=PROMPT, n=N, model="story")
            with open(paths[2], "ab") as f:
                f.write(b"\0")
            d.cli("generate", "-m", "story", "--raw", "-n", "2", "x")  # looks at the files
            check(paths[2] in d.log() and "changed" in d.log(), "the part is named", d.log()[-2000:])
            os.truncate(paths[2], os.path.getsize(paths[2]) - 1)
            same_ids(d.generate(prompt=PROMPT, n=N, model="story").ids, want.ids, "loaded anew")


main()
