"""The official npm clients (openai, ollama, @anthropic-ai/sdk, ai and its providers) against a private tandem-http:
tests/clients/clients.mjs and rounds.mjs.

They are installed by npm under TANDEM_TEST_CACHE, once for each version of tests/clients/package-lock.json.
TANDEM_NPM_CLIENTS names a node_modules folder that has them already. Skipped where node or npm is missing, or where npm
cannot reach its registry."""
import os
import select
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from client_packages import SOURCES, npm_folder  # noqa: E402
from client_rounds import WANT, rounds_model  # noqa: E402
from http_test import Gateway  # noqa: E402

QUESTION = "Tell me of a king"


def by_hand(d, *more, prompt):
    events = d.cli_json("generate", "-m", "tale", "-n", "40", "--temp", "1", "--top-k", "0", "--top-p", "0", "--seed",
                        "7", "--json", *more, prompt)
    return "".join(e["text"] for e in events[:-1])


def run_cases(script, path, g, want, n):
    """A case that hangs fails the test. How long all of them take says more of the machine: they need some ten seconds
    of a core, of which others may leave little."""
    said = ""
    env = dict(os.environ, TANDEM_URL=f"http://127.0.0.1:{g.port}", TANDEM_WANT=json.dumps(want))
    with subprocess.Popen(["node", script], cwd=path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env) as p:
        while True:
            if not select.select([p.stdout], [], [], 240 * SLOW)[0]:
                p.kill()
                raise AssertionError(f"no case has ended for {240 * SLOW:.0f} s: {said[-4000:]}")
            piece = os.read(p.stdout.fileno(), 65536).decode(errors="replace")
            if not piece:
                break
            print(piece, end="", flush=True)
            said += piece
    equal(p.returncode, 0, f"the clients' cases: {said[-4000:]}")
    equal(len(re.findall("^ok   ", said, re.M)), n, "cases")


@test
def official_clients():
    path = npm_folder("clients", SOURCES, os.environ.get("TANDEM_NPM_CLIENTS"))
    thinker = make_model("npu", "q8_0", arch="qwen3", chat="qwen3-thinking")
    with Daemon(models=(TALE, thinker), placement=None) as d, Gateway(d) as g:
        banned = d.tokenize(by_hand(d, "--raw", prompt=PROMPT))[3]
        want = {"thinker": os.path.basename(thinker)[:-len(".gguf")], "prompt": PROMPT,
                "question": QUESTION, "bias": {str(banned): -100, "300": 2.5},
                "text": by_hand(d, "--raw", prompt=PROMPT),
                "chat": by_hand(d, "--chat", prompt=QUESTION),
                "moved": by_hand(d, "--raw", "--frequency-penalty", "0.7", "--presence-penalty", "-0.4", "--logit-bias",
                                 f"{banned}:-100,300:2.5", prompt=PROMPT)}
        run_cases("clients.mjs", path, g, want, 19)


@test
def whole_rounds():
    """A chat, a stream, a thought, a call with its result and answer, and a schema, each compared word by word."""
    path = npm_folder("clients", SOURCES, os.environ.get("TANDEM_NPM_CLIENTS"))
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder, \
            Daemon(models=(rounds_model(folder),), placement=None) as d, Gateway(d) as g:
        run_cases("rounds.mjs", path, g, WANT, 11)


main()
