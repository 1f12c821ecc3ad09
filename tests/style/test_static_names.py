"""No static function's name stands in three or more files of the product: a name says what its function works on.

`run` or `find` alone sends a reader, a debugger and a search to as many places as there are files. Each name counts
over the whole product. It checks itself first: a planted name in three files must be found, and one in two must not."""
import collections
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree  # noqa: E402

MOST = 2
FOLDERS = ("client-lib/", "common/", "daemon/", "engine/", "gpu-worker/", "http-gateway/", "npu-worker/",
           "picture-decoder/")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
# At the beginning of a line: a definition at file level, or its declaration.
STATIC = re.compile(r"^static\b(?![^;={]*\binline\b)[^;={()]*?\b(\w+)\s*\(", re.M)


def statics(text):
    return {name for name in STATIC.findall(COMMENT.sub(" ", text)) if not name.startswith("_")}  # attributes


def shared(files):
    """{name: [files that have it]} of names in more than MOST files."""
    where = collections.defaultdict(list)
    for name, text in sorted(files.items()):
        for function in statics(text):
            where[function].append(name)
    return {function: names for function, names in where.items() if len(names) > MOST}


def check_itself():
    one = "static int run(int a)\n{\n}\n/* static int find(void) */\nstatic const int n = f(1);\n"
    for n, found in ((MOST, {}), (MOST + 1, {"run": [f"d/{i}.c" for i in range(MOST + 1)]})):
        if shared({f"d/{i}.c": one for i in range(n)}) != found:
            raise SystemExit("the check does not find a planted name as it should")


def main():
    files = {}
    check_itself()
    for name in tree.names():
        if not name.startswith(FOLDERS) or not name.endswith(".c") or "/tests/" in name:
            continue
        if os.path.basename(name).startswith(("test-", "bench-", "fuzz-")):
            continue
        with open(os.path.join(tree.TREE, name), encoding="utf-8") as f:
            files[name] = f.read()
    wrong = shared(files)
    for function, names in sorted(wrong.items()):
        print(f"{function}: static in {len(names)} files: {', '.join(names)}")
    print(f"{len(files)} files, {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
