#!/usr/bin/python3
"""The inputs that the fuzzers begin with and the tests replay: one archive for each fuzzer, corpus/NAME.tar.gz.

  corpus.py list [NAME...]           how many inputs and bytes each has
  corpus.py unpack FOLDER [NAME...]  into FOLDER/NAME, one file for each input
  corpus.py add NAME FILE...         takes inputs in; their names are the SHA-1 of their bytes, as libFuzzer has them.
                                     `FILE=WORD` names one that somebody found: minimise keeps it
  corpus.py minimise NAME PROGRAM    keeps what reaches code that no smaller input does, by the libFuzzer program
                                     (./bootstrap fuzz builds build-fuzz/unit/fuzz-NAME), and all that have a word
  corpus.py check                    exit status 1 where an archive is not as this program packs it

The same inputs give the same archive, byte for byte before compression: sorted names, no owners, no times. The build
unpacks archives without this program. Inputs that lie in a folder corpus/NAME are replayed too, until `add` takes them.
"""
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile

CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
HASH = re.compile(r"[0-9a-f]{40}")


def names():
    return sorted(n[:-len(".tar.gz")] for n in os.listdir(CORPUS) if n.endswith(".tar.gz"))


def path_of(name):
    return os.path.join(CORPUS, name + ".tar.gz")


def packed(inputs):
    """{name: bytes} as the bytes of a tar file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(inputs.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def unpacked(tar_bytes):
    inputs = {}
    with tarfile.open(fileobj=io.BytesIO(tar_bytes), mode="r:") as tar:
        for member in tar:
            if not member.isfile() or not NAME.fullmatch(member.name) or member.name in inputs:
                raise SystemExit(f"{member.name}: an archive holds plain files of different, plain names alone")
            inputs[member.name] = tar.extractfile(member).read()
    return inputs


def read(name):
    if not os.path.exists(path_of(name)):
        return {}
    with gzip.open(path_of(name)) as f:
        return unpacked(f.read())


def write(name, inputs):
    with open(path_of(name) + ".part", "wb") as f:
        f.write(gzip.compress(packed(inputs), 9, mtime=0))
    os.rename(path_of(name) + ".part", path_of(name))


def unpack(folder, name):
    os.makedirs(os.path.join(folder, name), exist_ok=True)
    for file, data in read(name).items():
        with open(os.path.join(folder, name, file), "wb") as f:
            f.write(data)


def added(inputs, files):
    """The inputs with those of the files that are not there yet, whatever they are called."""
    inputs, there = dict(inputs), set(inputs.values())
    for file in files:
        path, _, word = file.partition("=")
        with open(path, "rb") as f:
            data = f.read()
        if word and not NAME.fullmatch(word) or HASH.fullmatch(word):
            raise SystemExit(f"{word}: a word of letters, digits, '.', '_' and '-', and no SHA-1")
        if data not in there:
            inputs[word or hashlib.sha1(data).hexdigest()] = data
            there.add(data)
    return inputs


def minimise(name, program):
    inputs = read(name)
    kept = {n: d for n, d in inputs.items() if not HASH.fullmatch(n)}
    with tempfile.TemporaryDirectory() as folder:
        unpack(folder, name)
        merged = os.path.join(folder, "merged")
        os.mkdir(merged)
        subprocess.run([program, "-merge=1", merged, os.path.join(folder, name)], check=True)
        files = [os.path.join(merged, n) for n in sorted(os.listdir(merged))]
        return inputs, added(kept, files)


def problems():
    wrong = []
    for name in names():
        with gzip.open(path_of(name)) as f:
            before = f.read()
        inputs = unpacked(before)
        if before != packed(inputs):
            wrong.append(f"{path_of(name)}: not as corpus.py packs it: names in order, no owners, no times")
        wrong += [f"{path_of(name)}: {n} is not the SHA-1 of its bytes" for n, data in inputs.items()
                  if HASH.fullmatch(n) and n != hashlib.sha1(data).hexdigest()]
        if len(set(inputs.values())) != len(inputs):
            wrong.append(f"{path_of(name)}: an input is there twice")
    return wrong


def main(args):
    if args[:1] == ["list"]:
        for name in args[1:] or names():
            inputs = read(name)
            print(f"{name}: {len(inputs)} inputs, {sum(map(len, inputs.values()))} bytes")
    elif args[:1] == ["unpack"] and len(args) > 1:
        for name in args[2:] or names():
            unpack(args[1], name)
    elif args[:1] == ["add"] and len(args) > 2 and NAME.fullmatch(args[1]):
        before = read(args[1])
        after = added(before, args[2:])
        write(args[1], after)
        print(f"{args[1]}: {len(after) - len(before)} of {len(args) - 2} are new")
    elif args[:1] == ["minimise"] and len(args) == 3:
        before, after = minimise(args[1], args[2])
        write(args[1], after)
        print(f"{args[1]}: {len(after)} of {len(before)} are kept")
    elif args == ["check"]:
        wrong = problems()
        print("\n".join(wrong) if wrong else f"ok: {len(names())} archives")
        return 1 if wrong else 0
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
