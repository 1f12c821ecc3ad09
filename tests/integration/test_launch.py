"""tandem launch: what it prints is what a shell and the agents take, and what --run hands over is the same. The agents
are programs of the test's own that write down how they were started."""
import os
import shutil
import sys
import tempfile
import tomllib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from http_test import Gateway  # noqa: E402
from tandem_test import *  # noqa: E402,F403

AGENTS = ("claude", "codex", "opencode")
RECORDER = """#!/usr/bin/python3
import json, os, sys
with open(os.environ["HOME"] + "/started", "w") as f:
    json.dump({"args": sys.argv[1:], "env": dict(os.environ)}, f)
sys.exit(7)
"""
MARK = "TANDEM_API_KEY"


def with_agents(d):
    """Variables with which the agents are found."""
    folder = os.path.join(d.dir, "agents")
    os.makedirs(folder, exist_ok=True)
    for name in AGENTS:
        path = os.path.join(folder, name)
        with open(path, "w") as f:
            f.write(RECORDER)
        os.chmod(path, 0o755)
    return {"PATH": folder + ":" + os.environ["PATH"]}


def started(d):
    path = os.path.join(d.environment()["HOME"], "started")
    with open(path) as f:
        got = json.load(f)
    os.unlink(path)
    return got


def changed(d, env):
    """Of a started agent's variables those that the caller did not set."""
    return {k: v for k, v in env.items() if d.environment().get(k) != v and k not in ("PATH", "_", "PWD", "SHLVL")}


def listed(d, name):
    return next(m for m in d.call("models")["models"] if m["name"] == name)


def hands_over(agent, got, url, model, key, context):
    """What the agent is told, in its own words."""
    env, args = got["env"], got["args"]
    if agent == "claude":
        equal((env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_AUTH_TOKEN"], env["ANTHROPIC_API_KEY"]), (url, key, ""), agent)
        for name in ("ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
                     "ANTHROPIC_DEFAULT_HAIKU_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"):
            equal(env[name], model, name)
        return args
    equal(env[MARK], key, f"{agent}: key")
    if agent == "opencode":
        said = json.loads(env["OPENCODE_CONFIG_CONTENT"])
        provider = said["provider"]["tandem"]
        equal((said["model"], said["small_model"], list(provider["models"])), (f"tandem/{model}",) * 2 + ([model],),
              "opencode: model")
        equal(provider["options"], {"baseURL": url + "/v1", "apiKey": "{env:TANDEM_API_KEY}"}, "opencode: gateway")
        equal(provider["models"][model].get("limit", {}).get("context"), context, "opencode: context")
        check("reasoning" not in provider["models"][model], "opencode: tale cannot think", provider)
        return args
    toml, rest = "", list(args)
    while rest[:1] == ["-c"]:
        toml += rest[1] + "\n"
        rest = rest[2:]
    said = tomllib.loads(toml)
    equal(said["model_providers"]["tandem"], {"name": "Tandem", "wire_api": "responses", "env_key": MARK,
                                              "base_url": url + "/v1"}, "codex: gateway")
    equal((said["model_provider"], said["model"], said.get("model_context_window")), ("tandem", model, context),
          "codex: model")
    return rest


@test
def printed_and_run():
    with Daemon() as d, Gateway(d) as g:
        env, url = with_agents(d), f"http://127.0.0.1:{g.port}"
        d.cli("launch", "claude", check_exit=0)
        context = listed(d, "tale")["context"]  # known once it is loaded, and that it is
        more = ["-p", "it's \"a\" $HOME; king\n"]
        for agent in AGENTS:
            for options, where, size in (([], "http://127.0.0.1:11434", context),
                                         (["-m", "tale", "--url", url], url, None)):
                for key in ("none", "a b'c"):
                    told = dict(env, **({MARK: key} if key != "none" else {}))
                    text = d.cli("launch", *options, agent, "--", *more, check_exit=0, env=told).stdout.decode()
                    check("a b'c" not in text, f"{agent}: the key is not printed", text)
                    r = subprocess.run(["sh", "-c", text], env=dict(d.environment(), **told), timeout=30 * SLOW,
                                       stderr=subprocess.PIPE)
                    equal(r.returncode, 7, f"a shell takes what {agent} needs: {r.stderr[-300:]}")
                    printed = started(d)
                    equal(hands_over(agent, printed, where, "tale", key, size), more, f"{agent}: its own arguments")
            r = d.cli("launch", "-m", "tale", "--url", url, "--run", agent, "--", *more,
                      env=dict(env, **{MARK: key}), check_exit=7)
            equal(r.stdout, b"", f"{agent}: nothing is printed")
            got = started(d)
            equal((got["args"], changed(d, got["env"])), (printed["args"], changed(d, printed["env"])),
                  f"{agent}: --run is what is printed")
            check(not any(key in a for a in got["args"]), f"{agent}: no argument tells the key", got["args"])


def refused(d, part, *args, code=2, env=None):
    r = d.cli("launch", *args, check_exit=code, env=env)
    check(part in r.stderr.decode(), f"{args}: {part!r} in the refusal", r.stderr)
    equal(r.stdout, b"", f"{args}: nothing on standard output")


@test
def refusals():
    with Daemon() as d:
        env = with_agents(d)
        refused(d, "which agent")
        refused(d, "'cursor' is none of claude, codex, opencode", "cursor")
        refused(d, "no model nosuch", "-m", "nosuch", "claude", code=1)
        refused(d, "a model has to be named", "--url", "http://127.0.0.1:1", "claude")
        for url in ("127.0.0.1:11434", "http://", "http://a/v1", "http://a:123456", "http://a'b", "ftp://a",
                    "http://a:", "http://a b"):
            refused(d, "is not http://HOST:PORT", "--url", url, "-m", "tale", "claude")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))  # nobody listens
            run = ("--url", f"http://127.0.0.1:{s.getsockname()[1]}", "-m", "tale", "--run", "claude")
            refused(d, "no gateway answers", *run, code=1, env=env)
            program = os.path.realpath(os.path.join(BIN, "tandem-http"))
            refused(d, f"start one (`{program} &`)", *run, code=1, env=env)
            s.listen()
            for answer, part in ((b"SSH-2.0-server\r\n", "does not answer as a gateway does"), (b"", "does not answer"),
                                 (b"HTTP/1.1 503 x\r\n\r\n", "answers 503 when it is asked for the model tale")):
                asked = []
                parallel([lambda: refused(d, part, *run, code=1, env=env),
                          lambda: asked.append(answer_once(s, answer))])
                check(asked[0].startswith(b"GET /v1/models/"), "what is asked", asked)
        with Gateway(d) as g:
            refused(d, "claude is not installed: npm install -g @anthropic-ai/claude-code", "--url",
                    f"http://127.0.0.1:{g.port}", "-m", "tale", "--run", "claude", code=1, env={"PATH": d.dir})


@test
def names_that_agents_rewrite():
    """A name that the agent would not send as it is, is refused: opencode fills in {env:…} and {file:…} wherever they
    are in its settings, and Claude Code takes the size of a context off a name."""
    folder = tempfile.mkdtemp(prefix="tandem-test-")
    names = {"opencode": ("a{env:HOME}b", "{file:~", "x{Env:"), "claude": ("big[1m]", "big[1M]x"), "codex": ()}
    try:
        for name in {n for these in names.values() for n in these}:
            os.symlink(TALE, os.path.join(folder, name + ".gguf"))
        with Daemon(env={"TANDEM_MODEL_PATH": folder}) as d:
            env = with_agents(d)
            for agent, these in names.items():
                for name in {n for others in names.values() for n in others}:
                    for options in ([], ["--url", "http://127.0.0.1:1"]):
                        if name in these:
                            refused(d, f"cannot be told of the model {name}: it does not send '", "-m", name, *options,
                                    agent, code=1, env=env)
                        else:
                            d.cli("launch", "-m", name, *options, agent, check_exit=0, env=env)
            for key in ('a"b', "a\\b", "{file:~/x}"):
                told = dict(env, **{MARK: key})
                refused(d, "cannot be told of the key in TANDEM_API_KEY", "opencode", code=1, env=told)
                d.cli("launch", "codex", check_exit=0, env=told)
    finally:
        shutil.rmtree(folder)


def answer_once(listening, answer):
    """The request of the first who connects."""
    listening.settimeout(60 * SLOW)
    s, _ = listening.accept()
    with s:
        s.settimeout(60 * SLOW)
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += s.recv(65536)
        s.sendall(answer)
    return asked


@test
def gateway_refuses():
    """An agent that the gateway would turn away is not started."""
    key, wrong = "sk-launch-1", "sk-launch-2"
    with Daemon() as d:
        path = os.path.join(d.dir, "keys")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write(f"me {key}\n")
        with Gateway(d, "--api-key-file", path) as g:
            env, url = with_agents(d), f"http://127.0.0.1:{g.port}"
            for agent in AGENTS:
                run = ("--url", url, "--run", agent)
                refused(d, f"the gateway at {url} wants a key: set TANDEM_API_KEY", "-m", "tale", *run, code=1, env=env)
                refused(d, "wants another key than that in TANDEM_API_KEY", "-m", "tale", *run, code=1,
                        env=dict(env, **{MARK: wrong}))
                refused(d, "holds a control character", "-m", "tale", *run, code=1,
                        env=dict(env, **{MARK: key + "\r\nx-api-key: " + key}))
                env = dict(env, **{MARK: key})
                refused(d, f"the gateway at {url} has no model no/pe ä", "-m", "no/pe ä", *run, code=1, env=env)
                check(not os.path.exists(os.path.join(d.environment()["HOME"], "started")), f"{agent}: it was started")
                d.cli("launch", "-m", "tale:latest", *run, env=env, check_exit=7)
                started(d)
                del env[MARK]


@test
def what_the_model_can():
    """A context that an agent's first prompt does not fit in is told; so is whether the model thinks."""
    path = make_model("npu", "q8_0", arch="qwen3", chat="qwen3-thinking")
    name = os.path.basename(path)[:-len(".gguf")]
    titles = {"claude": ("Claude Code", 33000), "codex": ("Codex", 15000), "opencode": ("opencode", 12000)}
    with Daemon(models=(TALE, path)) as d:
        for agent, (title, tokens) in titles.items():
            r = d.cli("launch", "-m", "tale", agent, check_exit=0)
            equal(r.stderr.decode(), f"tandem: tale has a context of 4096 tokens; {title}'s first prompt takes about "
                                     f"{tokens}\n", agent)
        text = d.cli("launch", "-m", name, "opencode", check_exit=0).stdout.decode()
        check('"tool_call":true,"reasoning":true' in text, "a model that thinks", text)
        said = d.cli("help", "launch", check_exit=0).stdout.decode()
        check("65536 tokens or more for Claude Code, 32768 for the others" in " ".join(said.split()), "help", said)


main()
