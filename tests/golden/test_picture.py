"""Text behind pictures on the host device against float64, from the picture's file to log-probabilities, on random
pairs of a projector and a text model (tools/mkgguf_mmproj.py) whose values another program computed
(tests/golden/images/texts.json); and what a sequence with pictures gets is the same bits in every company.

usage: test_picture.py distance|exact GOLDEN_PICTURE DECODE_PICTURE_FILE
distance: of each pair of files the mean, over the positions behind the first picture of its prompts, of the largest
difference of log-probability over the reference's top ten. exact: each position's hidden row and log-probabilities.
"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from cpu_tables import tables  # noqa: E402
from tandem_test import TREE, make_model  # noqa: E402

IMAGES = os.path.join(TREE, "tests", "golden", "images")
F32 = ("--precision", "f32")
LIMIT_F32 = 1e-3  # an f32 file with the precision f32
SHIPPED = {"f32": 0.01, "f16": 0.01, "q8_0": 0.058}  # q8_0: three quarters of llama.cpp's own distance
EXACT = (("gemma3-a-q8_0", 3), ("gemma3-b-f16", 0))  # which prompt: two pictures
WAYS = (("--chunk", "1"), ("--chunk", "1", "--company", "7"), ("--chunk", "5", "--threads", "3"),
        ("--chunk", "13", "--company", "3", "--threads", "2"), ("--chunk", "400", "--company", "5", "--threads", "3"),
        ("--split", "2"), ("--split", "1", "--chunk", "7", "--company", "2"))


class Pairs:
    def __init__(self, program, decode, folder):
        self.program, self.decode, self.folder = program, decode, folder
        self.pictures = {}
        with open(os.path.join(IMAGES, "texts.json"), encoding="utf-8") as f:
            self.goldens = json.load(f)

    def picture(self, name):
        """"FILE WIDTH HEIGHT" of its RGB bytes."""
        if name not in self.pictures:
            said = subprocess.run([self.decode, os.path.join(IMAGES, "pictures", name)], stdout=subprocess.PIPE,
                                  check=True, cwd=TREE).stdout
            head, _, rgb = said.partition(b"\n")
            path = os.path.join(self.folder, name + ".rgb")
            with open(path, "wb") as f:
                f.write(rgb)
            self.pictures[name] = f"{path} {head.decode()}"
        return self.pictures[name]

    def prompt(self, case):
        path = os.path.join(self.folder, "prompt")
        ids = [-1 if i is None else i for i in case["ids"]]
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"IDS {len(ids)}\n" + " ".join(str(i) for i in ids) + "\n")
            f.write("".join(self.picture(name) + "\n" for name in case["pictures"]))
        return path

    def run(self, key, case, *options, cpu=None):
        """Lines of text."""
        _, size, kind = key.split("-")
        text = make_model(size, kind, arch="mmproj", text=True, seed=2)
        env = dict(os.environ, TANDEM_CPU=cpu) if cpu else os.environ
        return subprocess.run([self.program, text, make_model(size, kind, arch="mmproj"), self.prompt(case), *options],
                              stdout=subprocess.PIPE, check=True, env=env).stdout.decode()


def distances_of(said, case):
    """Of the positions behind the first picture."""
    got = {}
    for line in said.splitlines():
        position, _, *pairs = line.split()
        got[int(position)] = {int(pairs[i]): float.fromhex(pairs[i + 1]) for i in range(0, len(pairs), 2)}
    if sorted(got) != list(range(len(case["ids"]))):
        sys.exit("not a line for each position")
    return [max(abs(got[position].get(token, -99.0) - logprob) for token, logprob in top)
            for position, top in zip(case["positions"], case["top"])]


def distance(pairs):
    wrong = 0
    for key, cases in pairs.goldens.items():
        kind = key.split("-")[2]
        checks = [("f32", LIMIT_F32, F32)] if kind == "f32" else []
        for name, limit, options in checks + [("as shipped", SHIPPED[kind], ())]:
            far = [d for case in cases for d in distances_of(pairs.run(key, case, *options), case)]
            mean = sum(far) / len(far)
            print(f"{key}, {len(cases)} prompts, {name}: {mean:.6f} of {limit}, worst {max(far):.6f}")
            wrong += not mean <= limit
    return wrong


def exact(pairs):
    wrong = 0
    for key, number in EXACT:
        case = pairs.goldens[key][number]
        for precision in ((), F32):
            want = pairs.run(key, case, "--threads", "1", *precision)
            if len(set(line.split()[1] for line in want.splitlines())) != len(case["ids"]):
                sys.exit("rows are equal: nothing would be compared")
            ways = [(way, None) for way in WAYS] + [(("--chunk", "13"), cpu) for cpu in tables()]
            for way, cpu in ways:
                if pairs.run(key, case, *way, *precision, cpu=cpu) != want:
                    print(f"{key} {' '.join(way + precision)} {cpu or ''}: other bits")
                    wrong += 1
    return wrong


def main():
    with tempfile.TemporaryDirectory() as folder:
        pairs = Pairs(*sys.argv[2:4], folder)
        sys.exit(1 if {"distance": distance, "exact": exact}[sys.argv[1]](pairs) else 0)


if __name__ == "__main__":
    main()
