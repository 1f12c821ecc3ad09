"""Every name that a Python file reads is one that it, a file whose names it imports with a star, or Python itself
defines. Tests that run for an hour are run seldom: a missing import is found here instead of there.

Scopes are not told apart: a name that any function of the file defines counts for the whole file."""
import ast
import builtins
import functools
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tree  # noqa: E402

PYTHON = set(dir(builtins)) | {"__file__", "__name__", "__doc__"}


@functools.lru_cache(maxsize=None)  # a module of tests is asked for by each test that imports it
def parsed(path):
    with open(path, encoding="utf-8") as f:
        return ast.parse(f.read(), path)


def defined(root):
    """Names that a tree assigns, imports, declares or takes as parameters."""
    for node in ast.walk(root):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in node.names:
                yield (name.asname or name.name).split(".")[0]
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name


def starred(root, path, files):
    """What the file gets by `from MODULE import *`."""
    for node in ast.walk(root):
        if isinstance(node, ast.ImportFrom) and any(name.name == "*" for name in node.names):
            beside = os.path.join(os.path.dirname(path), node.module + ".py")
            found = [beside] if beside in files else [f for f in files if os.path.basename(f) == node.module + ".py"]
            for module in found:
                inner = parsed(module)
                yield from (n for statement in inner.body for n in exported(statement))
                yield from starred(inner, module, files)


def exported(statement):
    """The names that one statement at a file's top level gives to it."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    return list(defined(statement))


def problems(path, files):
    root = parsed(path)
    known = PYTHON | set(defined(root)) | set(starred(root, path, files))
    return sorted({(node.lineno, node.id) for node in ast.walk(root)
                   if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in known})


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ("lib.py", "user.py")]
        for path, text in zip(files, ("import os\ndef shared():\n    hidden = 1\n",
                                      "from lib import *\nshared(os.sep, [x for x in ()])\nresource.x = hidden\n")):
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        if problems(files[1], files) != [(3, "hidden"), (3, "resource")]:
            sys.exit("the check itself does not work")


def main():
    self_test()
    files = [os.path.join(tree.TREE, n) for n in tree.names() if n.endswith(".py")]
    found = 0
    for path in files:
        for line, name in problems(path, files):
            print(f"{os.path.relpath(path, tree.TREE)}:{line}: {name} is defined nowhere")
            found += 1
    print(f"{len(files)} files, {found} problems")
    sys.exit(1 if found else 0)


main()
