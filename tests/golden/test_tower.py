"""Vision towers on the host device against float64: from a picture's file to the rows for the text, stage by stage, on
random projectors (tools/mkgguf_mmproj.py) whose values another program computed (tests/golden/images/towers.json).

usage: test_tower.py GOLDEN_TOWER DECODE_PICTURE_FILE
Limits: the decoded bytes equal; a patch's numbers 1e-6; each stage behind 1e-4 of its root mean square, at each number,
with f32 activations. As shipped, the rows' relative error: 0.01 of f32 and f16 files, 0.03 of q8_0. Of each stage three
rows are kept, and mean and root mean square of all numbers. A picture's rows are the same bits by any number of threads
and any instruction set.
"""
import array
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from cpu_tables import tables  # noqa: E402
from tandem_test import TREE, make_model  # noqa: E402

IMAGES = os.path.join(TREE, "tests", "golden", "images")
LIMIT, PATCH_LIMIT = 1e-4, 1e-6
SHIPPED = {"f32": 0.01, "f16": 0.01, "q8_0": 0.03}


def decoded(program, folder, picture):
    said = subprocess.run([program, os.path.join(IMAGES, "pictures", picture)], stdout=subprocess.PIPE, check=True,
                          cwd=TREE).stdout
    head, _, rgb = said.partition(b"\n")
    path = os.path.join(folder, picture + ".rgb")
    with open(path, "wb") as f:
        f.write(rgb)
    width, height = (int(v) for v in head.split())
    return path, width, height, hashlib.sha256(rgb).hexdigest()


def stages(program, model, picture, *options, cpu=None):
    """{name: (rows, columns, numbers)}"""
    path, width, height, _ = picture
    env = dict(os.environ, TANDEM_CPU=cpu) if cpu else os.environ
    said = subprocess.run([program, model, path, str(width), str(height), *options], stdout=subprocess.PIPE, check=True,
                          env=env).stdout
    out, at = {}, 0
    while at < len(said):
        end = said.index(b"\n", at)
        name, rows, columns = said[at:end].decode().split()
        n = 4 * int(rows) * int(columns)
        out[name] = int(rows), int(columns), array.array("f", said[end + 1:end + 1 + n])
        at = end + 1 + n
    return out


def rms(numbers):
    return math.sqrt(math.fsum(v * v for v in numbers) / len(numbers))


def differences(stage, want):
    """Pairs of ours and the kept numbers."""
    rows, columns, numbers = stage
    if [rows, columns] != want["shape"]:
        sys.exit(f"{rows} x {columns} numbers, not {want['shape']}")
    return [(numbers[row * columns + i], v) for row, kept in zip(want["rows"], want["values"])
            for i, v in enumerate(kept)]


def check_stages(name, got, golden):
    """The worst share of a limit, and how many problems."""
    wrong, worst = 0, 0.0
    if sorted(got) != sorted(golden["stages"]):
        sys.exit(f"{name}: stages {sorted(got)}, not {sorted(golden['stages'])}")
    for stage, want in golden["stages"].items():
        limit = PATCH_LIMIT if stage == "patch_rows" else LIMIT * want["rms"]
        far = max(abs(a - b) for a, b in differences(got[stage], want))
        numbers = got[stage][2]
        far = max(far, abs(math.fsum(numbers) / len(numbers) - want["mean"]), abs(rms(numbers) - want["rms"]))
        worst = max(worst, far / limit)
        if not far <= limit:
            print(f"{name} {stage}: {far:.3g} away, {limit:.3g} are allowed")
            wrong += 1
    return worst, wrong


def relative_error(got, want):
    pairs = differences(got, want)
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in pairs) / math.fsum(b * b for _, b in pairs))


def check_picture(name, program, model, kind, picture, golden):
    if [picture[1], picture[2], picture[3]] != golden["rgb"]:
        print(f"{name}: the file is decoded to other bytes")
        return 1
    got = stages(program, model, picture)
    worst, wrong = check_stages(name, got, golden)
    shipped = stages(program, model, picture, "--act", "i8", "--kv", "f16", "--projected-only")
    error = relative_error(shipped["projected"], golden["stages"]["projected"])
    if not error <= SHIPPED[kind]:
        print(f"{name}: as shipped a relative error of {error:.4f}, {SHIPPED[kind]} are allowed")
        wrong += 1
    print(f"{name}: {len(got)} stages, at most {worst:.3f} of what is allowed; as shipped {error:.5f}")
    return wrong


def check_bits(name, program, model, picture):
    """The same rows by other numbers of threads and other instruction sets."""
    wrong = 0
    for act, kv in (("f32", "f32"), ("i8", "f16")):
        options = ("--act", act, "--kv", kv)
        want = stages(program, model, picture, *options, "--threads", "1", "--projected-only")["projected"]
        for cpu in tables():
            for threads in ("2", "3"):
                got = stages(program, model, picture, *options, "--threads", threads, "--projected-only", cpu=cpu)
                if got["projected"] != want:
                    print(f"{name}: other bits with {threads} threads, {cpu} and {act}")
                    wrong += 1
    return wrong


def main():
    program, decode = sys.argv[1:3]
    wrong = 0
    with open(os.path.join(IMAGES, "towers.json"), encoding="utf-8") as f:
        goldens = json.load(f)
    with tempfile.TemporaryDirectory() as folder:
        for key, pictures in goldens.items():
            _, size, kind = key.split("-")
            model = make_model(size, kind, arch="mmproj")
            for golden in pictures:
                picture = decoded(decode, folder, golden["picture"])
                wrong += check_picture(f"{key} {golden['picture']}", program, model, kind, picture, golden)
            if size == "b" or kind == "q8_0":
                wrong += check_bits(key, program, model, picture)
    sys.exit(1 if wrong else 0)


main()
