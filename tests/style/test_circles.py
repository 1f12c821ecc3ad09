"""Files that need each other. A file needs another if it uses a function or a variable that the other one defines.
Files that need each other, directly or over others, can only be read and changed together: a circle has at most three.

What a file uses is read from its object file (nm), so from a build: static functions and comments do not count."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree  # noqa: E402

BUILD = os.path.dirname(os.environ["TANDEM_BIN"])
FOLDERS = ("client-lib", "daemon")
MOST = 3
TEST = re.compile(r"(test|bench|fuzz)[-_]")


def objects(folder):
    """(source file, its object file): of programs and libraries, not of tests, and not of sources that are gone."""
    # A library's objects lie in the folder that makes it, which may be above this one.
    for at, _, files in os.walk(os.path.join(BUILD, folder.split("/")[0])):
        for name in files:
            path = os.path.join(at, name)
            source = re.sub(r"CMakeFiles/[^/]+\.dir/", "", os.path.relpath(path, BUILD))[:-2]
            if (name.endswith(".c.o") and not TEST.match(name) and source.startswith(folder + "/") and
                    os.path.exists(os.path.join(tree.TREE, source))):
                yield source, path


def needs(folder):
    """For each source file those of the folder that it needs, each with what it uses of it."""
    listed = dict(objects(folder))
    defines, uses = {}, {source: set() for source in listed}
    for source, path in listed.items():
        for line in subprocess.run(["nm", path], stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines():
            *_, kind, symbol = line.split()
            if kind in "Uw":
                uses[source].add(symbol)
            elif kind.isupper():
                defines[symbol] = source
    graph = {}
    for source, symbols in uses.items():
        graph[source] = {}
        for symbol in sorted(symbols & defines.keys()):
            if defines[symbol] != source:
                graph[source].setdefault(defines[symbol], symbol)
    return graph


def circles(graph):
    """The sets of files that all reach each other (Tarjan's strongly connected components), without single files."""
    number, low, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph[node]:
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return sorted(found, key=len, reverse=True)


def check_itself():
    """The search finds what is there, or its silence means nothing."""
    graph = {"a": {"b": ""}, "b": {"c": ""}, "c": {"a": "", "d": ""}, "d": {"e": ""}, "e": {}, "f": {"f2": ""},
             "f2": {"f": ""}}
    assert circles(graph) == [["a", "b", "c"], ["f", "f2"]], circles(graph)


def main():
    check_itself()
    problems = 0
    for folder in FOLDERS:
        graph = needs(folder)
        if len(graph) < 5:
            print(f"{BUILD} has no objects of {folder}: build first")
            return 77
        for circle in circles(graph):
            if len(circle) <= MOST:
                continue
            problems += 1
            print(f"{folder}: {len(circle)} files need each other, {MOST} may:")
            for source in circle:
                others = ", ".join(f"{os.path.relpath(o, folder)} ({graph[source][o]})"
                                   for o in sorted(graph[source]) if o in circle)
                print(f"    {os.path.relpath(source, folder)} needs {others}")
        print(f"{folder}: {len(graph)} files, the largest circle has {max(map(len, circles(graph)), default=1)}")
    return 1 if problems else 0


sys.exit(main())
