#!/usr/bin/python3
"""An agent with two tools: it lets the model list and read the files of one folder until the model answers. Calls are
valid by construction, so there is no text to take apart and no argument to check again. Standard library only.

    python3 agent.py MODEL FOLDER QUESTION [URL]        URL: of tandem-http, http://127.0.0.1:11434
"""
import json
import os
import sys
import urllib.error
import urllib.request

TURNS = 8
MAX_TOKENS = 400


def tool(called, description, **parameters):
    schema = {"type": "object", "properties": parameters, "required": list(parameters), "additionalProperties": False}
    return {"type": "function", "function": {"name": called, "description": description, "parameters": schema}}


def ask(url, request):
    body = json.dumps(request).encode()
    head = {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url + "/v1/chat/completions", body, head)) as answer:
            return json.load(answer)["choices"][0]
    except urllib.error.HTTPError as e:
        sys.exit(json.load(e)["error"]["message"])


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(f"usage: {sys.argv[0]} MODEL FOLDER QUESTION [URL]")
    model, folder, question, url = (sys.argv + ["http://127.0.0.1:11434"])[1:5]
    names = sorted(n for n in os.listdir(folder) if os.path.isfile(os.path.join(folder, n)))
    # A name that there is not cannot be asked for: the schema has only those of the folder.
    tools = [tool("list_files", "The names of all files."),
             tool("read_file", "The first lines of a file.", name={"enum": names},
                  lines={"type": "integer", "minimum": 1, "maximum": 50})]

    def run(name, arguments):
        if name == "list_files":
            return "\n".join(names)
        with open(os.path.join(folder, arguments["name"]), errors="replace") as f:
            return "".join(line for line, _ in zip(f, range(arguments["lines"])))

    messages = [{"role": "user", "content": question}]
    for turn in range(TURNS):
        # The first turn has to look; the last one has to answer.
        choice = "required" if turn == 0 else "none" if turn == TURNS - 1 else "auto"
        # One call a turn: a model that goes on calling could use up all tokens within a call. One seed: the same
        # question about the same folder gets the same calls.
        answer = ask(url, {"model": model, "messages": messages, "tools": tools, "tool_choice": choice,
                           "parallel_tool_calls": False, "seed": 1, "max_tokens": MAX_TOKENS})
        if answer["finish_reason"] != "tool_calls":
            print(answer["message"]["content"] or "")
            if answer["finish_reason"] == "length":
                print(f"(cut off after {MAX_TOKENS} tokens)", file=sys.stderr)
            return
        messages.append(answer["message"])
        for call in answer["message"]["tool_calls"]:
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            print(f"{name} {json.dumps(arguments)}", file=sys.stderr)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": run(name, arguments)})


main()
