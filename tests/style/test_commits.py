"""Messages of commits since the rule was made: a subject of at most 72 characters, `area: verb …`, an empty line, and a
body that says why. Skipped where the history is not there: in a source package and in a shallow clone."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree  # noqa: E402

RULE = "f2edb7d504c2a8e00748b41f05be7691c9320b1c"  # the last commit before it
SUBJECT = re.compile(r"[a-z][a-z0-9/_.-]*( [a-z0-9-]+)?: [a-z][a-z-]* \S")
NO_VERB = re.compile(r": (a|an|of|in|on|for|with|no|not|some|all|more|new|review|fixes|wip|"
                     r"(?!string)[a-z]{3,}(ing|[^e]ed)) ")


def problems(commit, message):
    subject, _, rest = message.partition("\n")
    out = []
    if len(subject) > 72:
        out.append(f"{len(subject)} characters in the subject, 72 are allowed")
    if not SUBJECT.match(subject) or NO_VERB.search(subject):
        out.append("the subject is not `area: verb …`")
    if not rest.startswith("\n") or not rest.strip():
        out.append("no body behind an empty line")
    return [f"{commit[:12]} {subject!r}: {line}" for line in out]


def self_test():
    good = "gateway: copy the descriptor before asking again\n\nThe peer may close it meanwhile.\n"
    if problems("0", good):
        raise SystemExit(f"self-test: a good message is refused: {problems('0', good)}")
    for bad in (good.split("\n")[0], good.replace("\n\n", "\n"), good.replace("again", "again" + " x" * 20),
                good.replace("gateway: ", ""), good.replace("copy", "Copy"), good.replace("copy", "copied"),
                good.replace("copy", "a copy of")):
        if not problems("0", bad):
            raise SystemExit(f"self-test: this message is let through: {bad!r}")


def git(*args):
    return subprocess.run(["git", "-C", tree.TREE, "-c", f"safe.directory={tree.TREE}", *args], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL)


def main():
    self_test()
    try:
        known = git("merge-base", "--is-ancestor", RULE, "HEAD").returncode == 0
    except FileNotFoundError:
        known = False
    if not known:
        print(f"SKIP commits: no history here that reaches back to {RULE}")
        return 77
    messages = git("log", "--no-merges", "--format=%H%x00%B%x01", f"{RULE}..HEAD").stdout.decode().split("\x01")
    wrong, n = [], 0
    for commit, _, message in (m.strip("\n").partition("\0") for m in messages if m.strip()):
        wrong += problems(commit, message)
        n += 1
    print("\n".join(wrong + [f"{n} commits, {len(wrong)} problems"]))
    return 1 if wrong else 0


sys.exit(main())
