#!/usr/bin/env python3
"""Compiles the shaders that the tree keeps compiled, and says whether they are up to date.

The kernels for matrix units need a compiler that knows cooperative matrices, which the glslc of Debian 12 does not. So
compiled/ holds their SPIR-V, made by one pinned compiler: a build gives the same code everywhere. Which shaders those
are stands in shaders.cmake (`kept`). compiled/manifest.json holds, for each of them, the command line and the SHA-256
of its source, of everything that it includes, and of the output.

  compile.py --glslc PATH [NAME...]   compiles all of them, or those that are named, and writes the manifest
  compile.py --check [--top FOLDER]   compiles nothing: exit status 1 where a source, an include, the command line or
                                      an output is not what the manifest says

The compiler is that of Debian 13 (packages glslc and libshaderc1, which can be unpacked into a folder and run from
there with its libc). Another version is refused: its code may differ.
"""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys

COMPILER = ("shaderc 2025.2-1", "spirv-tools 2025.1~rc1-1", "glslang 15.1.0+1.4.309.0-1")
OPTIONS = ["--target-env=vulkan1.3", "-O", "-I", "."]
SHADERS = "gpu-worker/vulkan/shaders"
MANIFEST = SHADERS + "/compiled/manifest.json"
ROW = re.compile(r'^  "(\S+) +(\S+) +(build|kept|test)((?: +-D\S+)*)"', re.M)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)


class Tree:
    def __init__(self, top):
        self.top = top

    def path(self, name):
        return os.path.join(self.top, name)

    def read(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def sha256(self, name):
        return hashlib.sha256(self.read(name)).hexdigest()

    def kept(self):
        """{name: (source, macros)} of the shaders that the tree keeps compiled."""
        rows = ROW.findall(self.read(SHADERS + "/shaders.cmake").decode())
        return {name: (f"{SHADERS}/{source}", macros.split()) for name, source, by, macros in rows if by == "kept"}

    def inputs(self, source):
        """The source and everything that it includes, at any depth. Paths are from the top of the tree."""
        found, todo = set(), [source]
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += INCLUDE.findall(self.read(name).decode())
        return sorted(found)

    def manifest(self):
        try:
            return json.loads(self.read(MANIFEST))
        except FileNotFoundError:
            return {"compiler": [], "shaders": {}}


def output_of(name):
    return f"{SHADERS}/compiled/{name}.spv"


def command(name, source, macros):
    return ["glslc", *OPTIONS, *macros, "-o", output_of(name), source]


def entry(tree, name, source, macros):
    return {"command": " ".join(command(name, source, macros)),
            "inputs": {path: tree.sha256(path) for path in tree.inputs(source)},
            "output": tree.sha256(output_of(name))}


def compile_all(tree, glslc, names):
    try:
        said = subprocess.run([glslc, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode().split("\n")
    except (OSError, subprocess.CalledProcessError) as e:
        raise SystemExit(f"cannot ask {glslc} for its version: {e}")
    if tuple(said[:3]) != COMPILER:
        raise SystemExit(f"{glslc} is {', '.join(said[:3])}; what is kept is made with {', '.join(COMPILER)} alone")
    kept, manifest = tree.kept(), tree.manifest()
    unknown = set(names) - set(kept)
    if unknown:
        raise SystemExit(f"shaders.cmake does not keep {', '.join(sorted(unknown))}")
    shaders = {name: manifest["shaders"][name] for name in kept if name in manifest["shaders"]}
    for name in names or kept:
        before = tree.sha256(output_of(name)) if os.path.exists(tree.path(output_of(name))) else None
        subprocess.run([glslc, *command(name, *kept[name])[1:]], cwd=tree.top, check=True)
        shaders[name] = entry(tree, name, *kept[name])
        print(f"{name}: {'the same bytes' if before == shaders[name]['output'] else 'new bytes'}")
    with open(tree.path(MANIFEST), "w", encoding="utf-8") as f:
        json.dump({"compiler": list(COMPILER), "shaders": shaders}, f, indent=1, sort_keys=True)
        f.write("\n")


def problems(tree):
    """What is not as the manifest says; empty: all is up to date."""
    kept, manifest = tree.kept(), tree.manifest()
    folder = SHADERS + "/compiled"
    wrong = []
    if not kept:
        wrong.append(f"{SHADERS}/shaders.cmake keeps no shader")
    if tuple(manifest["compiler"]) != COMPILER:
        wrong.append(f"{MANIFEST}: made with {', '.join(manifest['compiler'])}, not with {', '.join(COMPILER)}")
    for name in sorted(set(manifest["shaders"]) - set(kept)):
        wrong.append(f"{MANIFEST}: {name} is no kept row of shaders.cmake")
    for name in sorted(os.listdir(tree.path(folder))):
        if name != os.path.basename(MANIFEST) and os.path.splitext(name)[0] not in kept:
            wrong.append(f"{folder}/{name}: no kept row of shaders.cmake")
    for name, (source, macros) in sorted(kept.items()):
        was = manifest["shaders"].get(name)
        if not was or not os.path.exists(tree.path(output_of(name))):
            wrong.append(f"{name}: never compiled")
            continue
        now = entry(tree, name, source, macros)
        if was["command"] != now["command"]:
            wrong.append(f"{name}: compiled by `{was['command']}`, not by `{now['command']}`")
        for path in sorted(set(was["inputs"]) | set(now["inputs"])):
            if was["inputs"].get(path) != now["inputs"].get(path):
                wrong.append(f"{name}: {path} changed since it was compiled")
        if was["output"] != now["output"]:
            wrong.append(f"{output_of(name)} is not what the compiler made")
    return wrong


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--glslc", help="the pinned compiler")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--top", default=os.path.join(here, "..", "..", ".."), help="the tree")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    tree = Tree(os.path.realpath(args.top))
    if args.check == bool(args.glslc):
        parser.error("one of --check and --glslc")
    if args.glslc:
        compile_all(tree, args.glslc, args.names)
        return 0
    wrong = problems(tree)
    for line in wrong:
        print(line)
    if wrong:
        print(f"run {SHADERS}/compile.py --glslc PATH (its head says which compiler), and commit what it writes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
