"""No struct has more than 40 members: one that grows is made of parts that have names of their own.

The members of a struct that is written inside another one count as the outer one's too. Structs of a wire format, whose
members a protocol lists, are exempt by name below. It checks itself first: a planted struct of 41 members must be
found, and one of 40 must not."""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree  # noqa: E402

MOST = 40
FOLDERS = ("client-lib/", "common/", "daemon/", "engine/", "gpu-worker/", "http-gateway/", "npu-worker/",
           "picture-decoder/")
# What a peer, a file or a command line lists one by one, and nothing else.
PROTOCOLS = {"tdm_config", "tandem_generate_options"}  # for each setting of tandem.conf, each option of a job
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
STRING = re.compile(r'"(?:\\.|[^"\\])*"')
DIRECTIVE = re.compile(r"^[ \t]*#(?:.*\\\n)*.*$", re.M)
STRUCT = re.compile(r"\bstruct\s+(\w+)\s*\{")


def without_noise(text):
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))  # noqa: E731
    return DIRECTIVE.sub(blank, STRING.sub(blank, COMMENT.sub(blank, text)))


def body_of(text, begin):
    """What lies between the brace at begin - 1 and its partner."""
    depth, at = 1, begin
    while depth and at < len(text):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return text[begin:at - 1]


def declarators(declaration):
    """The names that one declaration declares: its commas outside of parentheses and brackets, and one."""
    depth = n = 0
    for c in declaration:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(c, 0)
        n += c == "," and depth == 0
    return n + 1


def members(body):
    # The constants of an enum are no members.
    body = re.sub(r"\benum\b(\s+\w+)?\s*\{[^{}]*\}", "int", body)
    # An inner struct's members count, and so do the names of that type behind its brace.
    flat = re.sub(r"\b(?:struct|union)\b(\s+\w+)?\s*\{", " ", body).replace("}", " ")
    return sum(declarators(d) for d in flat.split(";") if d.strip())


def structs(text):
    """[(name, line, members)]"""
    text = without_noise(text)
    return [(m.group(1), text.count("\n", 0, m.start()) + 1, members(body_of(text, m.end())))
            for m in STRUCT.finditer(text)]


def check_itself():
    for n, found in ((MOST, 0), (MOST + 1, 1)):
        plain = "struct a {\n" + "".join(f"        int m{i}; /* a; b */\n" for i in range(n)) + "};\n"
        inner = "struct a {\n int x, *y[2];\n struct b {\n" + "int z;\n" * (n - 3) + "} c;\n};\n"
        for text in (plain, inner):
            if sum(m > MOST for _, _, m in structs(text)) != found:
                raise SystemExit(f"the check does not see a struct of {n} members as it should: {structs(text)}")
    if members("enum { A, B, C } kind; int (*f)(int a, int b), g[A + B];") != 3:
        raise SystemExit("the check does not count members as it should")


def main():
    wrong = n = 0
    check_itself()
    for name in tree.names():
        if not name.startswith(FOLDERS) or not name.endswith((".c", ".h")):
            continue
        if os.path.basename(name).startswith(("test-", "bench-", "fuzz-")) or "/tests/" in name:
            continue
        with open(os.path.join(tree.TREE, name), encoding="utf-8") as f:
            for struct, line, count in structs(f.read()):
                n += 1
                if count > MOST and struct not in PROTOCOLS:
                    wrong += 1
                    print(f"{name}:{line}: struct {struct} has {count} members, {MOST} are allowed")
    print(f"{n} structs, {wrong} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
