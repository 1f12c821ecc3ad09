"""What makers' programs answer, kept in the cache of released files: their numbers do not depend on Tandem, so a second
run computes Tandem's alone.

The name of what is kept has a digest of all that it depends on: what was asked, the sums of the files, the programs of
this folder that ask, and the versions of those that answer. It is written beside and renamed, so it is whole or not
there. A run with --fresh asks for everything again."""
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

import fetch
from tandem_test import check

HERE = os.path.dirname(os.path.abspath(__file__))
renewed = set()  # of a run with --fresh: what it has asked for


@functools.lru_cache(maxsize=None)
def sum_of_state(path, size, changed_ns):
    return fetch.sum_of(path)


def sum_of(path):
    state = os.stat(path)
    return sum_of_state(path, state.st_size, state.st_mtime_ns)


def programs(*names):
    """The sums of programs of this folder."""
    return {name: sum_of(os.path.join(HERE, name)) for name in names}


@functools.lru_cache(maxsize=None)
def versions(python, pins):
    """What an interpreter has of the packages that a list for pip names."""
    with open(os.path.join(HERE, pins), encoding="utf-8") as f:
        names = [line.split("=")[0].split("[")[0].strip() for line in f if line.strip() and line[0] not in "#-"]
    ask = ("import json, sys; from importlib.metadata import version; "
           "print(json.dumps([version(n) for n in sys.argv[1:]]))")
    r = subprocess.run([python, "-c", ask, *names], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    check(r.returncode == 0, f"versions of {python}", r.stderr[-2000:])
    return dict(zip(names, json.loads(r.stdout)))


def path_of(folder, name, end, on):
    digest = hashlib.sha256(json.dumps(on, sort_keys=True).encode()).hexdigest()[:16]
    where = os.path.join(fetch.cache(), folder)
    os.makedirs(where, exist_ok=True)
    return os.path.join(where, f"{name}-{digest}{end}")


def is_kept(path):
    return os.path.exists(path) and ("--fresh" not in sys.argv or path in renewed)


def answer(name, on, ask):
    """What ask() returned, as JSON has it. on: all that it depends on."""
    path = path_of("answers", name, ".json", on)
    if not is_kept(path):
        said = ask()
        with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path), suffix=".part", encoding="utf-8",
                                         delete=False) as f:
            try:
                json.dump(said, f)
                f.flush()
                os.fsync(f.fileno())
                os.rename(f.name, path)
            except BaseException:
                os.unlink(f.name)
                raise
        renewed.add(path)
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def file(name, on, make):
    """The path of a file called so, which make(path) has written."""
    stem, end = os.path.splitext(name)
    folder = path_of("made", stem, "", on)
    path = os.path.join(folder, stem + end)
    if not is_kept(path):
        work = tempfile.mkdtemp(dir=os.path.dirname(folder), suffix=".part")
        try:
            make(os.path.join(work, name))
            os.makedirs(folder, exist_ok=True)
            os.rename(os.path.join(work, name), path)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        renewed.add(path)
    return path
