"""Claude Code, Codex and opencode as npm has them, started by `tandem launch --run` in a home of their own and in a
network that has nothing but itself. Each edits a file by two calls of tools and ends.

What the model says is written in its weights (tests/lib/scripted_model.py), so the agents may send what they like:
their own prompts and tools, 12,000 to 33,000 tokens here, go through template, grammar, cache and gateway as always.

They are installed by npm under TANDEM_TEST_CACHE, once for each state of tests/clients/agents/package.json.
TANDEM_NPM_AGENTS names a node_modules folder that has them already. Skipped where npm cannot reach its registry."""
import ctypes
import fcntl
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403
from client_packages import SOURCES, npm_folder  # noqa: E402
from client_rounds import new_script, write_script  # noqa: E402
from http_test import Gateway  # noqa: E402

TASK = "Give the king of notes.txt a crown."
BEFORE, AFTER, LAST = "The king has no crown.\n", "The king has a golden crown.\n", "The king has his crown."
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
SET_FLAGS, UP_AND_RUNNING = 0x8914, 0x41


def write_to(path, text):
    with open(path, "w") as f:
        f.write(text)


def leave_the_network():
    """From here on this process and its children have a loopback device and no other."""
    if private_network():
        return
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NETWORK | (NEW_USER if uid else 0)) != 0:
        raise Skip(f"no network namespace to be had: {os.strerror(ctypes.get_errno())}")
    if uid:
        write_to("/proc/self/setgroups", "deny")
        write_to("/proc/self/uid_map", f"{uid} {uid} 1")
        write_to("/proc/self/gid_map", f"{gid} {gid} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SET_FLAGS, struct.pack("16sH14x", b"lo", UP_AND_RUNNING))
    check(private_network(), "a network that has nothing but itself")


def private_network():
    with open("/proc/self/net/dev") as f:
        devices = [line.split(":")[0].strip() for line in f if ":" in line]
    with open("/proc/self/net/route") as f:
        return devices == ["lo"] and len(f.readlines()) == 1


def model_of(folder, calls):
    """A model that says these two calls, one after the other, and then ends."""
    script = new_script()
    for k, (tool, arguments) in enumerate(calls):
        script.call_turn(k, ("I read the file first.", "Now I change it.")[k], tool, json.dumps(arguments))
    script.last_turn(len(calls), LAST)
    script.plain_turn(None, "A crown for the king")  # where an agent asks for a title
    return write_script(script, folder)


def edits_a_file(name, calls, args):
    """What the agent wrote. calls(notes) are those of its model, args(task) its own arguments."""
    modules = os.path.join(npm_folder("agents", os.path.join(SOURCES, "agents"), os.environ.get("TANDEM_NPM_AGENTS"),
                                      scripts=True), "node_modules")
    leave_the_network()
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder:
        work = os.path.join(folder, "work")
        notes = os.path.join(work, "notes.txt")
        os.mkdir(work)
        write_to(notes, BEFORE)
        model = model_of(folder, calls(notes))
        with Daemon(models=(model,), placement=None, threads=0) as d, Gateway(d, listen="127.0.0.1:11434") as g:
            path = os.path.join(modules, ".bin") + ":" + os.environ["PATH"]
            begin = time.monotonic()
            r = d.cli("launch", "--run", name, "--", *args(TASK), timeout=400, cwd=work, env={"PATH": path})
            text = r.stdout.decode(errors="replace")
            equal(r.returncode, 0, f"{name}: {text[-3000:]} {r.stderr.decode(errors='replace')[-1500:]}")
            with open(notes) as f:
                equal(f.read(), AFTER, f"{name}: the file; it said {text[-2000:]}")
            jobs = d.status()
            check(LAST in text, f"{name}: it ends with the model's last words", text[-2000:])
            check(jobs.get("jobs_done", 0) >= 3 and not jobs.get("jobs_failed"), f"{name}: jobs", jobs)
            warned = re.search(r"error|cannot", g.log())
            check(not warned, f"{name}: the gateway's log", g.log()[-1000:])
            print(f"FIGURE {name}: {jobs['prompt_tokens']} prompt tokens, {time.monotonic() - begin:.0f} s")
    return text


@test
def claude_code():
    text = edits_a_file("claude", lambda notes: (
        ("Read", {"file_path": notes}),
        ("Edit", {"file_path": notes, "old_string": "no crown", "new_string": "a golden crown"})),
        lambda task: ["-p", task, "--permission-mode", "acceptEdits", "--output-format", "json"])
    said = json.loads(text)
    equal((said["num_turns"], said["is_error"], said["result"], said["permission_denials"]), (3, False, LAST, []),
          "its own account")


@test
def codex():
    text = edits_a_file("codex", lambda notes: (
        ("exec_command", {"cmd": "cat notes.txt"}),
        ("exec_command", {"cmd": "sed -i 's/no crown/a golden crown/' notes.txt"})),
        lambda task: ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", task])
    events = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    ran = [e["item"] for e in events if e["type"] == "item.completed" and e["item"]["type"] == "command_execution"]
    equal([i["exit_code"] for i in ran], [0, 0], "its commands")


@test
def opencode():
    text = edits_a_file("opencode", lambda notes: (
        ("read", {"filePath": notes}),
        ("edit", {"filePath": notes, "oldString": "no crown", "newString": "a golden crown"})),
        lambda task: ["run", "--format", "json", task])
    events = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    used = [(e["part"]["tool"], e["part"]["state"]["status"]) for e in events if e["type"] == "tool_use"]
    equal(used, [("read", "completed"), ("edit", "completed")], "its calls")


main()
