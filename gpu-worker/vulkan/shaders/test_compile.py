"""The shaders that the tree keeps compiled are up to date (compile.py --check).

It checks itself first, on a copy: a changed source, a changed include, a damaged output, an output that nothing makes
and a missing row must each be found, and a compiler of another version must be refused."""
import os
import shutil
import stat
import subprocess
import sys
import tempfile

import compile as compiler

TREE = compiler.Tree(os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")))


def create(path):
    with open(path, "wb"):
        pass


def change(path, old=b"", new=b"\n"):
    with open(path, "rb") as f:
        data = f.read()
    with open(path, "wb") as f:
        f.write(data.replace(old, new, 1) if old else data + new)


def plant(tree):
    """Each row: what is done to the copy, and a word of what must be said about it."""
    shaders = tree.path(compiler.SHADERS)
    yield lambda: change(shaders + "/matmul/matmul-f16.comp"), "matmul-f16.comp changed"
    yield lambda: change(shaders + "/common/fragments.glsl"), "common/fragments.glsl changed since"
    yield (lambda: change(shaders + "/compiled/matmul-int8.spv", b"\x03\x02\x23\x07", b"\x04\x02\x23\x07"),
           "is not what the compiler made")
    yield lambda: create(shaders + "/compiled/none.spv"), "none.spv: no kept row"
    yield lambda: os.unlink(shaders + "/compiled/attend-f16.spv"), "attend-f16: never compiled"
    yield (lambda: change(shaders + "/shaders.cmake", b"matmul-f16.comp           kept", b"matmul-f16.comp  build"),
           "matmul-f16 is no kept row")
    yield lambda: change(tree.path(compiler.MANIFEST), b"shaderc 2025.2", b"shaderc 2024.1"), "made with shaderc 2024.1"
    yield lambda: change(tree.path(compiler.MANIFEST), b" -O ", b" -O0 "), "compiled by `glslc"


def copy(top):
    shutil.copytree(TREE.path(compiler.SHADERS), os.path.join(top, compiler.SHADERS),
                    ignore=shutil.ignore_patterns("__pycache__"))
    return compiler.Tree(top)


def refuses_other_compilers(folder):
    fake = os.path.join(folder, "glslc")
    with open(fake, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\necho shaderc 2023.2-1\n")
    os.chmod(fake, os.stat(fake).st_mode | stat.S_IXUSR)
    done = subprocess.run([sys.executable, "-B", compiler.__file__, "--top", folder, "--glslc", fake],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode != 0 and b"shaderc 2023.2-1" in done.stdout


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        n = sum(1 for _ in plant(TREE))
        for i in range(n):
            tree = copy(os.path.join(folder, str(i)))
            before = compiler.problems(tree)
            damage, word = list(plant(tree))[i]
            damage()
            if not any(word in line for line in compiler.problems(tree) if line not in before):
                print(f"FAIL self-test: what is planted is not found: {word}")
                failed = 1
        if not refuses_other_compilers(copy(os.path.join(folder, "other")).top):
            print("FAIL self-test: another compiler is not refused")
            failed = 1
    for line in compiler.problems(TREE):
        print("FAIL " + line)
        failed = 1
    if not failed:
        print(f"ok: {len(TREE.kept())} shaders are as their sources are")
    return failed


if __name__ == "__main__":
    sys.exit(main())
