"""Programs and libraries of other makers that tests drive Tandem with: installed by npm and pip under
TANDEM_TEST_CACHE, once for each state of the file that pins their versions. Raises Skip where a package client is
missing or its registry does not answer."""
import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile

from tandem_test import TREE, Skip

SOURCES = os.path.join(TREE, "tests", "clients")
UNREACHABLE = re.compile(r"ENOTFOUND|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT|ENETUNREACH|E403|Connection refused|"
                         r"Temporary failure in name resolution|Name or service not known|Network is unreachable|"
                         r"No route to host|[Tt]imed out")


def cache(name):
    root = os.environ.get("TANDEM_TEST_CACHE") or os.path.join(tempfile.gettempdir(), f"tandem-test-{os.getuid()}")
    path = os.path.join(root, name)
    os.makedirs(path, exist_ok=True)
    return path


def install(path, pins, command, program, timeout):
    """Runs the command in path, unless it has run there for the same pins (the path of a file)."""
    with open(pins) as f:
        wanted = f.read()
    stamp = os.path.join(path, "installed")
    with open(os.path.join(path, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(stamp):
            with open(stamp) as f:
                if f.read() == wanted:
                    return
            os.unlink(stamp)
        try:
            r = subprocess.run(command, cwd=path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, timeout=timeout)
        except subprocess.TimeoutExpired as e:
            raise Skip(f"{program} was not done after {timeout} s") from e
        if r.returncode != 0:
            if UNREACHABLE.search(r.stdout):
                raise Skip(f"{program} cannot reach its registry")
            raise AssertionError(f"{program}: {r.stdout[:2000]} … {r.stdout[-2000:]}")
        with open(stamp, "w") as f:
            f.write(wanted)


def npm_folder(name, sources, given=None, scripts=False, timeout=2400):
    """A folder with node_modules, and beside them what sources holds. given: a node_modules that is there already.
    scripts: the packages' own may run, as programs need that put themselves together."""
    if not shutil.which("node"):
        raise Skip("no node (Debian: nodejs)")
    path = cache(name)
    for entry in os.listdir(sources):
        if os.path.isfile(os.path.join(sources, entry)):
            shutil.copy(os.path.join(sources, entry), path)
    modules = os.path.join(path, "node_modules")
    if os.path.islink(modules):
        os.unlink(modules)
    if given:
        shutil.rmtree(modules, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(path, "installed"))
        os.symlink(given, modules)
        return path
    if not shutil.which("npm"):
        raise Skip("no npm (Debian: npm)")
    lock = os.path.join(sources, "package-lock.json")
    locked = os.path.exists(lock)  # programs that need no other package have none: package.json pins them
    command = ["npm", *(["ci"] if locked else ["install", "--no-package-lock"]), "--no-audit", "--no-fund",
               "--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=3000"]
    install(path, lock if locked else os.path.join(sources, "package.json"),
            command + ([] if scripts else ["--ignore-scripts"]), "npm", timeout)
    return path


def python_of(name, pins, given=None, timeout=2400):
    """The interpreter of an environment with the packages that pins, a list for pip, names. given: one that is there
    already."""
    if given:
        return given
    path = cache(name)
    python = os.path.join(path, "venv", "bin", "python")
    if sys.version_info < (3, 10):
        raise Skip("the clients want Python 3.10")
    r = subprocess.run(["/usr/bin/python3", "-c", "import ensurepip, venv"], stderr=subprocess.DEVNULL)
    if r.returncode != 0:
        raise Skip("no venv (Debian: python3-venv)")
    install(path, pins, ["sh", "-c", 'rm -rf venv && /usr/bin/python3 -m venv venv && '
                         f'venv/bin/pip install --disable-pip-version-check --no-compile -r "{pins}"'], "pip", timeout)
    return python
