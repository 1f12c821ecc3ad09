"""Lines keep to their limits (code 120 columns, Markdown 100), files to 800 lines, and C code to clang-format.

A file that is better whole says so near its head: "Longer than 800 lines: REASON". Data, generated files and pictures
do not count. The formatter is clang-format 14, since other versions lay the same code out differently: where there is
none, that part is skipped."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import clang_format  # noqa: E402
import tree  # noqa: E402

TREE = tree.TREE
COLUMNS = {".c": 120, ".h": 120, ".cc": 120, ".comp": 120, ".glsl": 120, ".py": 120, ".sh": 120, ".cmake": 120,
           ".txt": 120, ".proto": 120, ".md": 100, "bootstrap": 120}
FORMATTED = (".c", ".h", ".cc")
MAX_LINES = 800


def kind(name):
    base = os.path.basename(name)
    return base if base in COLUMNS else os.path.splitext(base)[1]


def problems(name, text):
    lines = text.split("\n")
    limit = COLUMNS[kind(name)]
    out = [f"{name}:{i}: {len(line)} columns, {limit} are allowed" for i, line in enumerate(lines, 1)
           if len(line) > limit and not (kind(name) == ".md" and re.fullmatch(r"\s*(\[[^]]*\]:|!\[.*|<)?\s*\S+", line))]
    if kind(name) != ".md" and len(lines) - 1 > MAX_LINES and \
            not re.search(r"Longer than 800 lines: \w", "\n".join(lines[:20])):
        out.append(f"{name}: {len(lines) - 1} lines; split it, or say near its head 'Longer than 800 lines: REASON'")
    return out


def self_test():
    if len(problems("a.c", "x" * 121 + "\n" * 802)) != 2 or len(problems("a.md", "y " * 51)) != 1:
        raise SystemExit("self-test: a long line or file is not found")
    if problems("a.c", "/* Longer than 800 lines: one table. */" + "\n" * 900) or problems("a.md", "z" * 200):
        raise SystemExit("self-test: what is allowed is refused")


self_test()
names = [n for n in tree.names() if kind(n) in COLUMNS]
wrong = []
for name in names:
    with open(os.path.join(TREE, name), encoding="utf-8") as f:
        wrong += problems(name, f.read())
formatter = clang_format.find()
if formatter:
    code = [n for n in names if n.endswith(FORMATTED)]
    said = subprocess.run([formatter, "--dry-run", "-Werror"] + code, cwd=TREE, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT).stdout.decode()
    wrong += sorted(set(re.findall(r"^(\S+:\d+):\d+: error: .*", said, re.M)))
else:
    print("SKIP format: no clang-format 14 here (Debian 12: clang-format-14)")
for line in wrong:
    print(line)
print(f"{len(names)} files, {len(wrong)} problems")
sys.exit(1 if wrong else 0)
