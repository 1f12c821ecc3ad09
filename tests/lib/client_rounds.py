"""What the model of the clients' rounds says (tests/clients/rounds.mjs and clients.py): without tools a thought and a
text, or a JSON object where a schema wants one; with a tool a call, and an answer behind its result."""
import json
import os

from tandem_test import TREE, Skip

WANT = {"thought": "The user greets me.", "text": "A king greets you.", "last": "It is sunny in Oslo.",
        "arguments": {"city": "Oslo"}, "person": {"name": "Ann", "age": 7}}


def new_script():
    try:
        from scripted_model import Script
    except ModuleNotFoundError as e:
        raise Skip("python3-numpy is missing") from e
    return Script()


def write_script(script, folder, **more):
    path = os.path.join(folder, "scripted.gguf")
    with open(os.path.join(TREE, "tests", "golden", "chat", "templates", "qwen3.jinja"), encoding="utf-8") as f:
        script.write(path, f.read(), **more)
    return path


def rounds_model(folder):
    script = new_script()
    script.call_turn(0, "I ask the tower.", "weather", json.dumps(WANT["arguments"]))
    script.last_turn(1, WANT["last"])
    script.plain_turn(WANT["thought"], WANT["text"], json.dumps(WANT["person"]))
    return write_script(script, folder, context=8192)
