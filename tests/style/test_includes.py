"""Every #include against docs/folders.md: who may include whom, which headers are private, and that folders form no
cycle. It checks itself first: a planted violation of each kind must be found."""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree  # noqa: E402

TREE = tree.TREE
PAGE = os.path.join(TREE, "docs", "folders.md")
SOURCES = (".c", ".h", ".def", ".cc", ".comp", ".glsl")
FREE = re.compile(r"(^|/)(tests|examples)/|(^|/)(test|bench|fuzz)-[^/]*$")
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*([\"<])([^\">]+)[\">]", re.M)


def read_page(text):
    """{folder: {"includes": set, "public": set or None, "libraries": set}}"""
    folders = {}
    for entry in re.split(r"\n(?=- )", re.sub(r"\n(#|\n)", r"\n\n\1", text)):
        m = re.match(r"- `([^`]+)`:", entry)
        if not m:
            continue
        entry = entry.split("\n\n")[0]
        out = {"includes": set(), "public": None, "libraries": set()}
        for key in out:
            found = re.search(key.capitalize() + r": ((?:`[^`]+`[,.]\s*)+)", entry)
            if found:
                out[key] = set(re.findall(r"`([^`]+)`", found.group(1)))
        if m.group(1) in folders:
            raise SystemExit(f"docs/folders.md names {m.group(1)} twice")
        folders[m.group(1)] = out
    return folders


def sources():
    return [n for n in tree.names() if n.endswith(SOURCES)]


def contents():
    out = {}
    for name in sources():
        with open(os.path.join(TREE, name), encoding="utf-8") as f:
            out[name] = f.read()
    return out


def generated(path):
    return path.endswith((".pb-c.h", ".inc")) or path in ("spirv.h", "spirv-emulated.h")


def violations(files, folders):
    wrong = []
    known = set(files)
    libraries = {lib: [f for f in folders if lib in folders[f]["libraries"]]
                 for f in folders for lib in folders[f]["libraries"]}
    for name, text in files.items():
        if FREE.search(name):
            continue
        folder = os.path.dirname(name)
        if folder not in folders:
            wrong.append(f"{name}: docs/folders.md does not name the folder {folder}")
            continue
        for m in INCLUDE.finditer(text):
            kind, path = m.groups()
            at = f"{name}:{text.count(chr(10), 0, m.start()) + 1}"
            target = os.path.dirname(path)
            if kind == "<":
                lib = next((x for x in libraries if path == x or (x.endswith("/") and path.startswith(x))), None)
                if lib and folder not in libraries[lib]:
                    wrong.append(f"{at}: <{path}> belongs to {', '.join(libraries[lib])} alone")
                continue
            if not target:
                if os.path.join(folder, path) not in known and not generated(path) and path + "x" not in known \
                        and not name.endswith((".comp", ".glsl")):
                    wrong.append(f"{at}: \"{path}\" is no file here; includes name the path from the top")
                continue
            if path not in known and not generated(path):
                wrong.append(f"{at}: {path} is not there")
            elif target != folder:
                if target not in folders[folder]["includes"]:
                    wrong.append(f"{at}: {folder} may not include {target} (docs/folders.md)")
                base = os.path.basename(path)
                if base == "private.h" or base.endswith("-private.h"):
                    wrong.append(f"{at}: {path} is private to {target}")
                public = folders.get(target, {}).get("public")
                if public is not None and base not in public:
                    wrong.append(f"{at}: of {target} only {', '.join(sorted(public))} may be included, not {base}")
    for folder in folders:
        for target in folders[folder]["includes"]:
            if target not in folders:
                wrong.append(f"docs/folders.md: {folder} includes {target}, which has no entry")
    return wrong + cycles({f: folders[f]["includes"] for f in folders})


def cycles(graph):
    state, path, found = {}, [], []

    def visit(node):
        state[node] = 1
        path.append(node)
        for to in sorted(graph.get(node, ())):
            if state.get(to) == 1:
                found.append("docs/folders.md: a cycle: " + " -> ".join(path[path.index(to):] + [to]))
            elif to not in state:
                visit(to)
        path.pop()
        state[node] = 2

    for node in sorted(graph):
        if node not in state:
            visit(node)
    return found


def unused(files, folders):
    """What the page allows and no file needs: the page would say less than the truth."""
    used = {}
    for name, text in files.items():
        if not FREE.search(name):
            used.setdefault(os.path.dirname(name), set()).update(
                os.path.dirname(p) for k, p in INCLUDE.findall(text) if k == '"')
    return [f"docs/folders.md: {f} does not include {t}" for f in folders
            for t in sorted(folders[f]["includes"] - used.get(f, set()))]


def self_test():
    folders = read_page("- `a`: one.\n  Includes: `b`, `c`.\n  Public: `a.h`.\n"
                        "- `b`: two.\n  Libraries: `lib/`.\n\n- `c`: three.\n")
    good = {"a/a.h": "", "a/a.c": '#include "b/b.h"\n#include <stdio.h>', "b/b.h": "", "b/b.c": "#include <lib/x.h>",
            "c/private.h": "", "c/c.c": '#include "c/private.h"', "b/test-b.c": '#include "a/a.c"'}
    if violations(good, folders):
        raise SystemExit(f"self-test: {violations(good, folders)}")
    planted = {"b/up.c": '#include "a/a.h"', "a/lib.c": "#include <lib/x.h>", "a/peek.c": '#include "c/private.h"',
               "d/new.c": "", "a/gone.c": '#include "b/gone.h"'}
    for name, text in planted.items():
        if len(violations({**good, name: text}, folders)) != 1:
            raise SystemExit(f"self-test: the violation in {name} gives {violations({**good, name: text}, folders)}")
    if len(violations({**good, "a/in.h": "", "c/x.c": '#include "a/in.h"'},
                      {**folders, "c": {"includes": {"a"}, "public": None, "libraries": set()}})) != 2:
        raise SystemExit("self-test: a header that is not public, and a cycle, are not found")


self_test()
folders = read_page(open(PAGE, encoding="utf-8").read())
files = contents()
found = violations(files, folders) + unused(files, folders)
for line in found:
    print(line)
print(f"{len(files)} files, {len(folders)} folders, {len(found)} violations")
sys.exit(1 if found or len(files) < 100 else 0)
