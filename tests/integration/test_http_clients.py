"""The official npm clients (openai, ollama, @anthropic-ai/sdk, ai) against a private tandem-http: tests/clients/.

They are installed by npm under TANDEM_TEST_CACHE, once for each version of tests/clients/package-lock.json.
TANDEM_NPM_CLIENTS names a node_modules folder that has them already. Skipped where node or npm is missing, or where npm
cannot reach its registry."""
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from http_test import Gateway  # noqa: E402

SOURCES = os.path.join(TREE, "tests", "clients")
QUESTION = "Tell me of a king"


def folder():
    """One with clients.mjs and node_modules beside each other: where node looks for packages."""
    if not shutil.which("node"):
        raise Skip("no node (Debian: nodejs)")
    given = os.environ.get("TANDEM_NPM_CLIENTS")
    path = os.path.join(os.environ.get("TANDEM_TEST_CACHE", "/tmp"), "clients")
    os.makedirs(path, exist_ok=True)
    stamp, lock = os.path.join(path, "installed"), os.path.join(SOURCES, "package-lock.json")
    for name in ("package.json", "package-lock.json", "clients.mjs"):
        shutil.copy(os.path.join(SOURCES, name), path)
    modules = os.path.join(path, "node_modules")
    with open(lock) as f:
        wanted = f.read()
    if given:
        if os.path.islink(modules):
            os.unlink(modules)
        if not os.path.exists(modules):
            os.symlink(given, modules)
        return path
    if os.path.exists(stamp):
        with open(stamp) as f:
            if f.read() == wanted and os.path.isdir(modules):
                return path
    if not shutil.which("npm"):
        raise Skip("no npm (Debian: npm)")
    if os.path.islink(modules):
        os.unlink(modules)
    r = subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=path, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, timeout=300)
    if r.returncode != 0:
        if re.search(r"ENOTFOUND|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT|ENETUNREACH|E403", r.stdout):
            raise Skip("npm cannot reach its registry")
        raise AssertionError(f"npm ci failed: {r.stdout[-2000:]}")
    with open(stamp, "w") as f:
        f.write(wanted)
    return path


def by_hand(d, *more, prompt):
    events = d.cli_json("generate", "-m", "tale", "-n", "40", "--temp", "1", "--top-k", "0", "--top-p", "0", "--seed",
                        "7", "--json", *more, prompt)
    return "".join(e["text"] for e in events[:-1])


@test
def official_clients():
    path = folder()
    thinker = make_model("npu", "q8_0", arch="qwen3", chat="qwen3-thinking")
    with Daemon(models=(TALE, thinker), placement=None) as d, Gateway(d) as g:
        banned = d.tokenize(by_hand(d, "--raw", prompt=PROMPT))[3]
        want = {"thinker": os.path.basename(thinker)[:-len(".gguf")], "prompt": PROMPT,
                "question": QUESTION, "bias": {str(banned): -100, "300": 2.5},
                "text": by_hand(d, "--raw", prompt=PROMPT),
                "chat": by_hand(d, "--chat", prompt=QUESTION),
                "moved": by_hand(d, "--raw", "--frequency-penalty", "0.7", "--presence-penalty", "-0.4", "--logit-bias",
                                 f"{banned}:-100,300:2.5", prompt=PROMPT)}
        r = subprocess.run(["node", "clients.mjs"], cwd=path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, timeout=240 * SLOW,
                           env=dict(os.environ, TANDEM_URL=f"http://127.0.0.1:{g.port}", TANDEM_WANT=json.dumps(want)))
        print(r.stdout, end="")
        equal(r.returncode, 0, f"the clients' cases: {r.stdout[-4000:]}")
        equal(len(re.findall("^ok   ", r.stdout, re.M)), 19, "cases")


main()
