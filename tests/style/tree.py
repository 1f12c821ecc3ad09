"""The project's files: those that git knows, or, without git, every file outside build folders."""
import os
import subprocess

TREE = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))


def names():
    """Paths from the top of the tree, sorted."""
    try:
        r = subprocess.run(["git", "-C", TREE, "-c", f"safe.directory={TREE}", "ls-files"], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL)
        listed = r.stdout.decode().split("\n") if r.returncode == 0 else walked()
    except FileNotFoundError:
        listed = walked()
    return sorted(n for n in listed if n and os.path.isfile(os.path.join(TREE, n)))


def walked():
    out = []
    for folder, subfolders, files in os.walk(TREE):
        subfolders[:] = [s for s in subfolders
                         if s not in (".git", "__pycache__") and not (folder == TREE and s.startswith("build"))]
        out += [os.path.relpath(os.path.join(folder, f), TREE) for f in files]
    return out
