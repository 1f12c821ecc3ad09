"""Five applications' first requests (tests/clients/fixtures) are answered as the applications expect."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
sys.path.insert(0, os.path.join(HERE, "..", "grammar"))
import differential  # noqa: E402
from tandem_test import *  # noqa: E402,F403
from http_test import *  # noqa: E402,F403

FIXTURES = os.path.join(HERE, "..", "clients", "fixtures")
APPS = ("continue", "home-assistant", "open-webui", "vscode", "zed")


def read(app, model, tools):
    with open(os.path.join(FIXTURES, app + ".json"), encoding="utf-8") as f:
        text = f.read()
    for sign, value in (("$MODEL", model + ":latest"), ("$NAME", model), ("$TOOLS", tools + ":latest")):
        text = text.replace(f'"{sign}"', json.dumps(value))
    return json.loads(text)["steps"]


def fits(value, schema, what):
    check(differential.valid(schema, value, schema), what, value, schema)


def replay(g, step):
    request, expect = step["request"], step["expect"]
    status, headers, data = g.request(request["method"], request["path"], request.get("body"), request.get("headers"))
    equal(status, expect["status"], f"status: {data[:300]}")
    if "type" in expect:
        equal(headers["content-type"].split(";")[0], expect["type"], "content type")
    if "json" in expect:
        fits(json.loads(data), expect["json"], "the answer")
    parts = []
    if "lines" in expect:
        parts = [json.loads(line) for line in data.decode().splitlines()]
    if "events" in expect:
        parts = [e for _, e in parse_events(data.decode())]
        if expect.get("done"):
            equal(parts.pop(), "[DONE]", "the end")
    for part in parts:
        fits(part, expect.get("lines") or expect["events"], "a part of the answer")
    if "last" in expect:
        check(len(parts) > 1, "more than one part", parts)
        fits(parts[-1], expect["last"], "the last part")


@test
def applications():
    tools = make_model("npu", "q8_0", arch="qwen3", chat="qwen3")
    names = "tale", os.path.basename(tools)[:-len(".gguf")]
    with Daemon(models=(TALE, tools), placement=None) as d, Gateway(d) as g:
        for app in APPS:
            for step in read(app, *names):
                try:
                    replay(g, step)
                except AssertionError as e:
                    raise AssertionError(f"{app}, {step['name']}: {e}") from e
            print(f"     {app}")
        equal(sorted(f for f in os.listdir(FIXTURES) if f.endswith(".json")), [a + ".json" for a in APPS], "files")


main()
