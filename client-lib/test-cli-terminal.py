#!/usr/bin/python3
"""The tandem command on a terminal: chat, and what generate shows there. Against a fake daemon. Usage:
test-cli-terminal.py TANDEM FAKE_DAEMON [--full] [TEST…]."""

import json
import os
import re
import subprocess
import sys
import time
import unittest

import test_cli_support as support
from test_cli_support import PATIENCE, screen, settle, tandem, Terminal

FULL = "--full" in sys.argv

setUpModule, tearDownModule = support.set_up, support.tear_down


class Chat(unittest.TestCase):
    def chats(self):
        return [r["chat"] for r in support.fake.fresh() if r.get("request") == "generate"]

    def test_piped(self):
        self.chats()
        r = tandem("chat", "--system", "be brief", stdin=b"hello\n\nagain\n/reset\n//fresh\n/quit\nnever\n")
        self.assertEqual((r.returncode, r.stderr), (0, b""))
        self.assertEqual(r.stdout, b"turn 1 upon a time.\nturn 2 upon a time.\nturn 1 upon a time.\n")
        said = ["assistant", "turn 1 upon a time.\n"]
        self.assertEqual(self.chats(), [[["system", "be brief"], ["user", "hello"]],
                                        [["system", "be brief"], ["user", "hello"], said, ["user", "again"]],
                                        [["system", "be brief"], ["user", "/fresh"]]])

    def test_several_lines(self):
        self.chats()
        r = tandem("chat", stdin=b'"""one\ntwo\n"""\nthree\\\nfour')
        self.assertEqual(r.returncode, 0)
        self.assertEqual([c[-1][1] for c in self.chats()], ["one\ntwo\n", "three\nfour"])

    def test_failures(self):
        r = tandem("chat", "-m", "long", stdin=b"a\nb\n")
        self.assertEqual(r.returncode, 1)
        self.assertIn(b"tandem: too-long: ", r.stderr)
        self.assertIn(b"The message alone is too long", r.stderr)
        r = tandem("chat", "-m", "short", stdin=b"a\n" + b"b" * 90 + b"\n")
        self.assertEqual(r.returncode, 1)
        self.assertIn(b"/reset begins a new one", r.stderr)
        r = tandem("chat", "-m", "die", stdin=b"a\nb\n")
        self.assertEqual(r.returncode, 1)
        self.assertIn(b"tandem: daemon-lost: ", r.stderr)

    def test_terminal(self):
        t = Terminal("chat")
        t.until_prompt()
        t.type(b"hello\n")
        t.until(b"turn 1 upon a time.\r\n")
        t.until(b"212 tokens/s")
        t.type(b"/help\n")
        t.until(b"/reset, /clear        forget")
        t.type(b"\x04")  # before the prompt or at it
        self.assertEqual(t.finish(), 0)

    def test_typed_ahead(self):
        """Each of two lines is typed while the answer before it comes, and Ctrl-D during the last."""
        t = Terminal("chat", "-m", "slow", "-n", "25")
        t.until_prompt()
        for keys, since in ((b"hello\r", 0), (b"again\n", 1), (b"\x04", 2)):
            t.until(b"\x1b[?2004l", times=since)
            t.type(keys)
        self.assertEqual(t.finish(), 0)
        self.assertEqual(t.output.count(b"25 tokens, "), 2)
        answers = re.findall(rb"\x1b\[\?2004l(.*?)\x1b\[\?2004h", t.output, re.S)
        self.assertEqual([a for a in answers if b"again" in a], [])  # not in their midst

    def test_typed_ahead_of_ctrl_c(self):
        """Ctrl-C stops the answer, and what was typed stands at the prompt."""
        t = Terminal("chat", "-m", "slow")
        t.until_prompt()
        t.type(b"hello\r")
        t.until(b"turn 1 upon")
        t.type(b"next one\x03")
        t.until(b"next one")
        t.until(b"stopped; ")
        self.chats()
        t.type(b"\r")
        t.until(b"turn 2 upon")
        self.assertEqual(self.chats()[-1][-1], ["user", "next one"])
        t.type(b"\x03")
        t.until_prompt()
        t.type(b"\x04")
        self.assertEqual(t.finish(), 0)

    def test_again(self):
        """/retry asks the last message again, /edit another one in its place. What gets no answer changes nothing."""
        t = Terminal("chat")
        t.until_prompt()
        self.ask_in_vain(t, b"/retry\r", b"there is no message yet")
        self.ask(t, b"/".join([b"", b"", b"one\r"]))
        self.assertEqual(self.ask(t, b"two\r"), "two")
        self.chats()
        turn = [["user", "/one"], ["assistant", "turn 1 upon a time.\n"]]
        self.assertEqual(self.ask(t, b"/retry\r"), "two")
        self.assertEqual(self.chats(), [turn + [["user", "two"]]])
        self.edit(t, "two")
        self.assertEqual(self.ask(t, b"\x7fice\r"), "twice")
        self.assertEqual(self.ask(t, b"/edit thrice\r"), "thrice")
        self.chats()
        self.edit(t, "thrice")
        self.ask_in_vain(t, b"\x03", b">")
        self.ask_in_vain(t, b"/model long\r", b"Now: long")
        self.ask_in_vain(t, b"/edit nothing\r", b"too-long")
        self.ask_in_vain(t, b"/retry\r", b"too-long")
        self.ask_in_vain(t, b"/model tale\r", b"Now: tale")
        self.chats()
        self.ask(t, b"four\r")
        self.assertEqual([m[1] for m in self.chats()[-1] if m[0] == "user"], ["/one", "thrice", "four"])
        t.type(b"/reset\r")
        t.until(b"A new conversation")
        t.until_prompt()
        self.ask(t, b"//five\\\rsix\r")
        self.edit(t, "//five␤six")
        self.assertEqual(self.ask(t, b"!\r"), "/five\nsix!")
        t.type(b"\x04")
        self.assertEqual(t.finish(), 0)

    def test_terminal_too_long(self):
        t = Terminal("chat", "-m", "long")
        t.until_prompt()
        t.type(b"hello\n")
        t.until(b"The message alone is too long")
        t.until_prompt()
        t.type(b"/quit\n")
        self.assertEqual(t.finish(), 0)

    def test_context_full(self):
        """The oldest turns leave where the model answers without them. A message that is too long by itself takes none
        with it."""
        t = Terminal("chat", "-m", "short", "--system", "be brief")
        t.until_prompt()
        self.ask(t, b"o" * 30 + b"\r")
        self.ask(t, b"two\r")
        self.chats()
        self.ask_in_vain(t, b"x" * 120 + b"\r", b"The message alone is too long")
        self.assertNotIn(b"forgotten", t.output)
        self.chats()
        self.ask(t, b"y" * 30 + b"\r")
        self.assertIn(b"the oldest turn is forgotten", t.output)
        got = self.chats()
        self.assertEqual([m[1] for m in got[0] if m[0] == "user"], ["o" * 30, "two", "y" * 30])
        self.assertEqual([m[1] for m in got[-1] if m[0] != "assistant"], ["be brief", "two", "y" * 30])
        t.type(b"/quit\r")
        self.assertEqual(t.finish(), 0)

    def edit(self, t, offered):
        t.output = b""
        t.type(b"/edit\r")
        t.until(offered.encode())

    def ask_in_vain(self, t, keys, shown):
        t.output = b""
        t.type(keys)
        t.until(shown)
        t.until_prompt()

    def test_lost(self):
        """What had come when the daemon was lost stays, as a person has read it."""
        path = support.state_home + "/lost.json"
        t = Terminal("chat", "-m", "die")
        t.until_prompt()
        self.ask_in_vain(t, b"hello\r", b"The conversation is kept")
        self.ask_in_vain(t, b"/save %s\r" % path.encode(), b"Saved.")
        with open(path) as f:
            kept = json.load(f)["messages"]
        self.assertEqual([m["role"] for m in kept], ["user", "assistant"])
        self.assertTrue(kept[1]["content"], kept)
        t.type(b"\x04")
        self.assertEqual(t.finish(), 0)

    def test_cut_off(self):
        t = Terminal("chat", "-m", "slow", "-n", "5")
        t.until_prompt()
        self.ask(t, b"hello\r")
        self.assertIn(b"the answer was cut off at 5 tokens (/set n takes another number)", t.output)
        t.type(b"\x04")
        self.assertEqual(t.finish(), 0)

    def test_save(self):
        """A file that is no conversation stays. ~ and quotes are read as a shell does."""
        home = support.state_home + "/home"
        os.makedirs(home, exist_ok=True)
        with open(home + "/notes.txt", "w") as f:
            f.write("mine\n")
        open(home + "/real.json", "w").close()
        os.symlink("real.json", home + "/link.json")
        t = Terminal("chat", env={"HOME": home})
        t.until_prompt()
        for keys, shown in ((b"/save ~/notes.txt\r", b"is there already, and is no saved conversation"),
                            (b"/save ~/a.json\r", b"Saved."), (b"/save '~/a.json'\r", b"Saved."),
                            (b'/save "~/b c.json"\r', b"Saved."), (b'/save ""\r', b"a file has to be named"),
                            (b"/load ~/a.json\r", b"Loaded"), (b"/save ~/none/a.json\r", b"cannot write"),
                            (b"/save ~/link.json\r", b"Saved."), (b"/save /dev/null\r", b"Saved.")):
            self.ask_in_vain(t, keys, shown)
        t.type(b"\x04")
        self.assertEqual(t.finish(), 0)
        self.assertEqual(sorted(os.listdir(home)), ["a.json", "b c.json", "link.json", "notes.txt", "real.json"])
        self.assertEqual(os.readlink(home + "/link.json"), "real.json")
        self.assertGreater(os.path.getsize(home + "/real.json"), 0)
        self.assertEqual(os.stat(home + "/a.json").st_mode & 0o777, 0o600)
        with open(home + "/notes.txt") as f:
            self.assertEqual(f.read(), "mine\n")

    def ask(self, t, keys):
        """Types what ends in one message; the message that came."""
        since = len(support.fake.requests())
        t.output = b""  # so that the next prompt is the one after the answer
        t.type(keys)
        got = support.fake.wait_for(lambda r: r.get("request") == "generate", since)["chat"]
        t.until_prompt()
        return got[-1][1]

    def test_editing(self):
        """Wide characters, characters of several bytes, history and its search."""
        t = Terminal("chat")
        t.until_prompt()
        for keys, want in (("grüß\x7fn\r".encode(), "grün"),
                           ("日本語\x7f\x7f木\r".encode(), "日木"),
                           ("ab\x1b[D\x1b[DX\r".encode(), "Xab"),
                           (b"hello world\x17moon\r", "hello moon"),
                           (b"\x1b[A\x1b[A\r", "Xab"),
                           (b"\x12gr\r\r"[:-1], "grün")):
            self.assertEqual(self.ask(t, keys), want, keys)
        t.type(b"\x04")
        self.assertEqual(t.finish(), 0)
        path = support.state_home + "/tandem/chat_history"
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        t = Terminal("chat")  # the next run remembers
        t.until_prompt()
        self.assertEqual(self.ask(t, b"\x10\r"), "grün")
        t.type(b"/bye\r")
        self.assertEqual(t.finish(), 0)

    def test_window_changes(self):
        """A line that is being edited is drawn anew for the new width, and edited there."""
        import string
        text = string.ascii_letters
        t = Terminal("chat", columns=80)
        t.until_prompt()
        t.type(text.encode())
        t.until(text.encode())
        for columns, up in ((30, b""), (20, b"\x1b[1A"), (100, b"")):
            t.output = b""
            t.resize(columns)
            t.until(up + b"\r\x1b[J")
            t.type(b"\x01X\x05")  # at its begin, and back to its end
            text = "X" + text
            rows = [("> " + text)[i:i + columns] for i in range(0, len(text) + 2, columns)]
            end = time.monotonic() + PATIENCE
            while (shown := screen(t.output.split(up + b"\r\x1b[J")[1], columns)) != rows:
                self.assertLess(time.monotonic(), end, (columns, shown, t.output))
                t.read(0.1)
        self.assertEqual(self.ask(t, b"!\r"), text + "!")
        t.type(b"\x04")
        self.assertEqual(t.finish(), 0)

    def test_paste(self):
        t = Terminal("chat")
        t.until_prompt()
        self.assertEqual(self.ask(t, "\x1b[200~eins\r\tzwei\rdrei\x07\x1b[201~ vier\r".encode()),
                         "eins\n\tzwei\ndrei vier")
        self.assertEqual(self.ask(t, "kein ␤ hier\r".encode()), "kein ␤ hier")
        self.assertEqual(self.ask(t, b"\x1b[200~" + b"x" * 2000 + b"\x1b[201~\r"), "x" * 2000)
        t.type(b"/exit\r")
        self.assertEqual(t.finish(), 0)

    def test_commands(self):
        path = support.state_home + "/saved.json"
        t = Terminal("chat", "--system", "be brief")
        t.until_prompt()
        self.ask(t, b"hello\r")
        for keys, shown in ((b"/save %s\r" % path.encode(), b"Saved."), (b"/reset\r", b"A new conversation."),
                            (b"/rest\r", b"did you mean /reset?"), (b"/save\r", b"/save needs FILE"),
                            (b"/load /none\r", b"cannot open /none"), (b"/set temp hot\r", b"'hot' is not"),
                            (b"/set temp 0.25\r", b"Set."), (b"/model %s\r" % b"tale", b"Now: tale."),
                            (b"/clear\r", b"A new conversation."),
                            (b"/set\r", b"repeat-penalty"), (b"/set temp\r", b"It is set to 0.25."),
                            (b"/set n 40\r", b"Set."),
                            (b"/set parameter temperature 0.25\r", b"did you mean temp?"),
                            (b"/set tokens 60\r", b"did you mean max-tokens?"), (b"/list\r", b"* tale, loaded"),
                            (b"/set parameter temp 0.25\r", b"Set."),
                            (b"/show\r", b"`tandem show MODEL`"), (b"/\r", b"there is no command /; /help lists them"),
                            (b"/model nobody\r", b"/models lists what there is; /model ./FILE.gguf"),
                            (b"/load %s\r" % path.encode(), b"Loaded: 3 messages"),
                            (b"/load %s\r" % path.encode(), b"> hello\r\nturn 1 upon a time."),
                            (b"/stats\r", b"No line about")):
            t.output = b""
            t.type(keys)
            t.until(shown)
            t.until_prompt()
        self.chats()
        self.ask(t, b"again\r")
        self.assertNotIn(b"tokens/s", t.output)
        got = [r for r in support.fake.requests() if r.get("request") == "generate"][-1]
        self.assertEqual([m[0] for m in got["chat"]], ["system", "user", "assistant", "user"])
        self.assertEqual((got["model"], got["temperature"]), ("tale", 0.25))
        for text in ("{", "[]", '{"messages": [{"role": "robot", "content": "x"}]}',
                     '{"messages": [{"role": "user"}]}'):
            with open(path, "w") as f:
                f.write(text)
            t.output = b""
            t.type(b"/load %s\r" % path.encode())
            t.until(b"is no saved conversation")
            t.until_prompt()
        t.type(b"\x04")
        self.assertEqual(t.finish(), 0)

    def test_width(self):
        """Long lines break between words, below where their text begins; elsewhere they stay whole."""
        import fcntl
        import struct
        import termios
        t = Terminal("chat")
        t.until_prompt()
        fcntl.ioctl(t.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
        for keys, last in ((b"/help\r", b"leaves"), (b"/set\r", b"verbose"), (b"/set seed\r", b"It is not set"),
                           (b"/set temp hot\r", b"options)")):
            t.output = b""
            t.type(keys)
            t.until(last)
            t.until_prompt()
            lines = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", t.output).decode().replace("\r", "").split("\n")[1:]
            self.assertEqual([line for line in lines if len(line) > 49], [], keys)
            self.assertTrue(any(line.startswith(" " * 8) for line in lines) or keys == b"/set\r", lines)
        t.type(b"\x04")
        self.assertEqual(t.finish(), 0)
        r = tandem("doctor", "--root", "/nonexistent")
        self.assertTrue(max(map(len, r.stdout.split(b"\n"))) > 80, r.stdout)
        self.assertNotIn(b"\x1b", r.stdout)

    def test_set_file(self):
        """A file that an option names is read once, when it is set."""
        path = support.state_home + "/schema.json"
        with open(path, "w") as f:
            f.write('{"type": "string"}')
        t = Terminal("chat", "--seed", "5")
        t.until_prompt()
        for keys, shown in ((b"/set schema %s\r" % path.encode(), b"Set."), (b"/set temp 0.25\r", b"Set."),
                            (b"/set schema /none\r", b"cannot open /none"), (b"/set seed -1\r", b"Set."),
                            (b"/set n -1\r", b"Set."), (b"/set n -5\r", b"or -1; 0: until"),
                            (b"/set -n 0\r", b"Set."), (b"/set --ignore-end on\r", b"Set.")):
            t.output = b""
            t.type(keys)
            t.until(shown)
            t.until_prompt()
            self.assertEqual(t.output.count(b"tandem: "), shown != b"Set.", t.output)
        self.ask(t, b"hello\r")
        got = [r for r in support.fake.requests() if r.get("request") == "generate"][-1]
        self.assertEqual((got["json_schema"], got["temperature"], got["max_tokens"]), ('{"type": "string"}', 0.25, 0))
        self.assertNotEqual(got["seed"], 5)
        self.assertTrue(got["ignore_end"])
        self.ask_in_vain(t, b"/set ignore-end off\r", b"Set.")
        self.ask(t, b"hello\r")
        got = [r for r in support.fake.requests() if r.get("request") == "generate"][-1]
        self.assertFalse(got["ignore_end"])
        t.type(b"\x04")
        self.assertEqual(t.finish(), 0)

    def test_set_file_unread(self):
        """A file that cannot be read sets nothing, and that is the only thing said."""
        t = Terminal("chat")
        t.until_prompt()
        self.ask_in_vain(t, b"/set schema /none\r", b"cannot open /none")
        self.assertNotIn(b"Set.", t.output)
        self.ask_in_vain(t, b"/set\r", b"verbose")
        self.assertIn(b"Nothing is set.", t.output)
        t.type(b"\x04")
        self.assertEqual(t.finish(), 0)

    def test_calls(self):
        """Calls of tools are shown and kept, in what is asked next and in what is saved."""
        path = support.state_home + "/calls.json"
        call = ["call_1", "weather", '{"city": "Ulm"}']
        turn = [["user", "hello"], ["assistant", "", call]]
        self.chats()
        r = tandem("chat", "-m", "calls", stdin=b"hello\nagain\n/save %s\n" % path.encode())
        line = json.dumps(dict(zip(("id", "name", "arguments"), call)), separators=(",", ":")).encode() + b"\n"
        self.assertEqual((r.returncode, r.stdout), (0, line * 2), r)
        self.assertEqual(r.stderr.count(b"chat gives no results of tools: use `tandem generate --chat`, or HTTP"), 1, r)
        self.assertEqual(self.chats(), [turn[:1], turn + [["user", "again"]]])
        with open(path) as f:
            kept = json.load(f)["messages"]
        self.assertEqual(kept[:2], [{"role": "user", "content": "hello"}, {
            "role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": {
                "name": "weather", "arguments": '{"city": "Ulm"}'}}]}])
        r = tandem("chat", stdin=b"/load %s\n/system be kind\nmore\n" % path.encode())
        self.assertEqual(self.chats(),
                         [[["system", "be kind"]] + turn + [["user", "again"], turn[1], ["user", "more"]]])
        kept[1]["tool_calls"][0]["function"]["arguments"] = '{"city'
        with open(path, "w") as f:
            json.dump({"messages": kept}, f)
        r = tandem("chat", stdin=b"/load %s\n" % path.encode())
        self.assertIn(b"message 2 has a call of a tool without id, name or arguments", r.stderr)
        r = tandem("chat", "-m", "callcut", stdin=b"hello\nagain\n")  # no model takes half a call
        self.assertIn(b"was cut off, and is not kept (-n takes more tokens)", r.stderr)
        self.assertEqual(self.chats(), [turn[:1], [["user", "again"]]])

    def test_set_thinking(self):
        """Of a model that cannot think it is said what it refuses, and nothing where nothing asks it to think."""
        for value, cure in (("think auto", ""), ("think off", ""), ("think-budget 0", ""), ("think on", "think auto"),
                            ("think-budget 9", "think-budget 0"), ("think default", "")):
            t = Terminal("chat")
            t.until_prompt()
            t.output = b""
            t.type(b"/set %s\r" % value.encode())
            t.until_prompt()
            wanted = "set for another model: tale cannot think, and refuses messages until /set %s\r\n" % cure
            self.assertEqual(wanted.encode() in t.output, bool(cure), t.output)
            self.assertEqual(b"tandem: " in t.output, bool(cure), t.output)
            self.assertEqual(b"Set." in t.output, not cure and "default" not in value, t.output)
            t.type(b"\x04")
            self.assertEqual(t.finish(), 0)

    def test_take_back(self):
        """Whatever was given, `default` makes the next message as if it had not been."""
        path = support.state_home + "/object.json"
        with open(path, "w") as f:
            f.write("{}")
        given = (("max-tokens", "7"), ("temp", "0.5"), ("stop", "a"), ("schema", path), ("regex", "b"),
                 ("priority", "background"), ("placement", "npu"), ("logit-bias", "1:2"), ("one-call", ""),
                 ("seed", "5"), ("n", "9"), ("think", "on"))
        lines = "".join("/set %s %s\n" % (name, value) for name, value in given).replace(" \n", "\n") + "hello\n"
        lines += "".join("/set %s default\n" % name for name, _ in given) + "hello\n"
        lines += "/set schema /none\n/reset\nhello\n/set schema\n"
        self.chats()
        r = tandem("chat", stdin=b"hello\n" + lines.encode())
        self.assertEqual(r.returncode, 0, r)
        got = [q for q in support.fake.requests() if q.get("request") == "generate"][-4:]
        for q in got:
            q.pop("chat")
        before, with_all, after, last = got
        self.assertEqual((with_all["stop"], with_all["json_schema"], with_all["one_call"], with_all["seed"]),
                         (["a"], "{}", True, 5))
        self.assertNotEqual(after.pop("seed"), 5)
        before.pop("seed"), last.pop("seed")
        self.assertEqual(after, before)
        self.assertEqual(last, before)  # a file that cannot be read brings nothing back
        self.assertIn(b"schema FILE  the text is JSON", r.stdout)

    def test_set_list(self):
        """What is set in two columns, then the options by their names; what a chat does not have is not in it."""
        lines = tandem("chat", stdin=b"/set temp 0.5\n/set n 7\n/set\n").stdout.decode().splitlines()
        self.assertEqual(lines[:3], ["max-tokens            7", "temp                  0.5", ""])
        self.assertLess(len(lines), 20)
        names = " ".join(lines[4:]).split()
        self.assertGreater(len(names), 20)
        self.assertIn("logit-bias", names)
        self.assertIn(b"a chat shows no log-probabilities", tandem("chat", stdin=b"/set top-logprobs 3\n").stderr)
        for name in ("top-logprobs", "placement", "prefill-chunk", "ignore-end", "drawn", "may-degrade"):
            self.assertNotIn(name, names)

    def test_model_as_text(self):
        """Who gives a model's name alone is told how to give it."""
        self.assertIn(b"'tale' is one argument too many; a model: -m tale (see", tandem("chat", "tale").stderr)
        self.assertIn(b"cannot open tale: No such file or directory (a model: -m tale)",
                      tandem("render", "tale").stderr)
        self.assertNotIn(b"a model", tandem("render", "-m", "tale", "tale").stderr + tandem("render", "/a/b").stderr)

    def test_any_keys(self):
        """Whatever is typed, the program lives, the terminal is put back, and Ctrl-D leaves."""
        import random
        rng = random.Random(7)
        keys = [b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D", b"\x1b[3~", b"\x1b", b"\x1b[200~", b"\x1b[201~", b"\x12",
                b"\x17", b"\x15", b"\x0b", b"\x19", b"\x7f", b"\t", b"a", "ü".encode(), "日".encode(), b"\xff", b"\x00",
                b"\x01", b"\x05", b"\x0c", b"\x14", b" ", b"/", b'"']
        for _ in range(20):
            t = Terminal("chat")
            t.until_prompt()
            t.type(b"".join(rng.choice(keys) for _ in range(50)))
            settle(0.05, t.process)
            self.leave(t, b"\x1b[201~\x07\x15\x04\x03")  # ends a paste and a search, erases the line
            self.assertIn(t.finish(), (0, 130))
            self.assertEqual(t.modes_after, t.modes, "the terminal was not put back")

    def leave(self, t, keys):
        """Types keys that leave until the program has gone. Ctrl-C between two prompts drops what was typed ahead."""
        end = time.monotonic() + PATIENCE
        while t.process.poll() is None and time.monotonic() < end:
            t.type(keys)
            settle(0.02, t.process)
            t.read(0.01)

    def test_any_moment(self):
        """Keys, whole messages, Ctrl-C and new sizes at random, while answers come and at the prompt: the program lives
        or leaves as asked, and the terminal is as it was. --full: 1,000 sequences."""
        import fcntl
        import random
        import struct
        import termios
        n = 1000 if FULL else 12
        rng = random.Random(int(os.environ.get("TANDEM_TEST_SEED", "11")))
        keys = [b"hello\r", b"\r", b"\x03", b"\x03\x03", b"/stats\r", b"/set temp 0.2\r", b"/system be kind\r", b"/?\r",
                b"/model slow\r", b"/model\r", b"/reset\r", b"/load /nonexistent\r", b"\"\"\"\r", b"\\\r",
                "日本語".encode(), "ü".encode(), b"\x7f", b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D", b"\x17", b"\x12",
                b"\x1b", b"\x1b[200~a\nb\x1b[201~", b"\xff", b"\x0c", b"size", b"wait"]
        statuses = {}
        for i in range(n):
            t = Terminal("chat", "-m", rng.choice(("tale", "slow", "slow")))
            typed = []
            t.until_prompt()
            for key in (rng.choice(keys) for _ in range(rng.randint(1, 16))):
                typed.append(key)
                if t.process.poll() is not None:
                    break
                if key == b"size":
                    fcntl.ioctl(t.master, termios.TIOCSWINSZ,
                                struct.pack("HHHH", rng.randint(1, 60), rng.randint(1, 200), 0, 0))
                elif key == b"wait":
                    t.read(rng.random() * 0.05)
                else:
                    t.type(key)
                    t.read(0)
            self.leave(t, b"\x1b[201~\x07\x03")  # ends a paste and a search, stops an answer, leaves at the prompt
            try:
                status = t.finish()
                self.assertIn(status, (0, 130))
                statuses[status] = statuses.get(status, 0) + 1
                self.assertEqual(t.modes_after, t.modes, "the terminal was not put back")
                self.assertNotIn(b"Sanitizer", t.output)
            except AssertionError as e:
                raise AssertionError("%s; sequence %d: %r" % (e, i, typed)) from e
        print("FIGURE chat: %d sequences, exit statuses %r" % (n, statuses), file=sys.stderr)

    def test_ctrl_c(self):
        since = len(support.fake.requests())
        t = Terminal("chat", "-m", "slow")
        t.until_prompt()
        t.type(b"hello\n")
        t.until(b"turn 1 upon")
        t.type(b"\x03")
        support.fake.wait_for(lambda r: r.get("request") == "cancel", since)
        before = len(t.output)
        t.output = t.output[before:]
        t.until_prompt()
        self.assertIsNone(t.process.poll())
        t.type(b"more\n")
        r = support.fake.wait_for(lambda r: r.get("request") == "generate" and len(r["chat"]) == 3, since)
        self.assertTrue(r["chat"][1][1].startswith("turn 1 upon"))
        t.until(b"turn 2 upon")
        since = len(support.fake.requests())
        t.type(b"\x03")
        support.fake.wait_for(lambda r: r.get("request") == "cancel", since)
        t.output = b""
        t.until_prompt()  # during the answer a second one would leave
        t.type(b"\x03")
        t.until(b"Ctrl-C once more leaves")
        t.type(b"half a line")
        t.until(b"half a line")
        t.type(b"\x03")  # drops the line, and the warning
        t.until_prompt()
        t.type(b"\x03")
        t.until(b"Ctrl-C once more leaves", times=2)
        t.until_prompt()
        self.assertIsNone(t.process.poll())
        t.type(b"\x03")
        self.assertEqual(t.finish(), 130)

    def test_ctrl_c_twice_with_a_stuck_daemon(self):
        t = Terminal("chat", "-m", "stuck")
        t.until_prompt()
        since = len(support.fake.requests())
        t.type(b"hello\n")
        support.fake.wait_for(lambda r: r.get("request") == "generate", since)
        settle(0.1, t.process)
        t.type(b"\x03")
        support.fake.wait_for(lambda r: r.get("request") == "cancel", since)
        self.assertIsNone(t.process.poll())
        t.type(b"\x03")
        self.assertEqual(t.finish(), 130)

    def test_daemon_goes_while_nobody_types(self):
        t = Terminal("chat", "-m", "die")
        t.until_prompt()
        t.type(b"hello\n")
        t.until("tandemd is gone; going on as soon as it is back…".encode())
        t.until(b"daemon-lost")
        t.until(b"the next message connects again")
        t.until_prompt()
        # The prompt stays, and the next message, after another model was named, goes to a new connection.
        since = len(support.fake.requests())
        t.type(b"/model tale\r")
        t.until(b"tandemd was restarted meanwhile")
        t.until_prompt()
        self.assertEqual(self.ask(t, b"again\r"), "again")
        support.fake.wait_for(lambda r: r.get("request") == "generate", since)
        t.type(b"exit\r")
        self.assertEqual(t.finish(), 0)

    def test_wrong_model(self):
        """A name that nobody knows is told before a message is typed."""
        t = Terminal("chat", "-m", "nobody")
        self.assertEqual(t.finish(), 1)
        self.assertIn(b"no-model", t.output)
        self.assertNotIn(b"/help lists", t.output)


class OnATerminal(unittest.TestCase):
    def screen(self, *args):
        t = Terminal(*args)
        status = t.finish()
        return status, t.output

    def test_text_and_summary(self):
        status, out = self.screen("generate", "x")
        self.assertEqual(status, 0)
        summary = b"23 prompt tokens, 5 tokens, first after 83 ms, 212 tokens/s\r\n"
        self.assertEqual(out, b"\x1b[2mx\x1b[22mOnce upon a time.\r\n" + summary)
        status, out = self.screen("generate", "--chat", "x")
        self.assertEqual((status, out), (0, b"turn 1 upon a time.\r\n" + summary))

    def test_echo(self):
        """A long prompt is shown from a character on, without control characters, and dimmed only where it may be."""
        status, out = self.screen("generate", "\x1b[31m" + "ü" * 3000)
        self.assertEqual(out.split(b"Once")[0].decode(), "\x1b[2m…" + "ü" * 1024 + "\x1b[22m")
        status, out = self.screen("generate", "\x1b[31mred")
        self.assertTrue(out.startswith(b"\x1b[2m\\x1b[31mred\x1b[22mOnce"), out)
        os.environ["NO_COLOR"] = "1"
        try:
            status, out = self.screen("generate", "x")
        finally:
            del os.environ["NO_COLOR"]
        self.assertTrue(out.startswith(b"xOnce upon"), out)

    def test_states(self):
        """In colours on a terminal, unless they are unwanted; the columns stand where they do without."""
        for args, env, coloured in (((), {}, True), ((), {"NO_COLOR": "1"}, False), (("--color", "never"), {}, False),
                                    (("--color=always",), {"NO_COLOR": "1"}, True), ((), {"TERM": "dumb"}, False)):
            t = Terminal("jobs", *args, env=env, columns=120)
            self.assertEqual(t.finish(), 0)
            self.assertEqual(b"\x1b[3" in t.output, coloured, t.output)
            plain = re.sub(rb"\x1b\[[0-9;]*m|\r", b"", t.output)
            self.assertEqual(plain, tandem("jobs").stdout, (args, env))

    def test_markdown(self):
        """Headings and bold words are bold, code has a colour, wherever tokens are cut; every mark stays."""
        bold, thin, code, plain = b"\x1b[1m", b"\x1b[22m", b"\x1b[36m", b"\x1b[39m"
        shown = (bold + b"## A **head**ing\n" + thin + b"bol " + bold + b"**d**" + thin + b" " + code + b"`code`" +
                 plain + b"\n#tag\n" + code + b"```c\n# x\n```" + plain + b"\n####### seven\n#\n")
        for env, want in (({}, shown), ({"NO_COLOR": "1"}, re.sub(rb"\x1b\[\d+m", b"", shown))):
            t = Terminal("chat", "-m", "markup", env=env)
            t.until_prompt()
            t.output = b""
            t.type(b"x\r")
            t.until(b"tokens/s")
            t.type(b"\x04")
            self.assertEqual(t.finish(), 0)
            self.assertIn(want, t.output.replace(b"\r", b""))

    def test_words_stay_whole(self):
        """Lines break between words, though words come in pieces; what is copied has every character."""
        import fcntl
        import struct
        import termios
        for columns in (10, 13, 20, 40):
            t = Terminal("chat")
            t.until_prompt()
            fcntl.ioctl(t.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            t.output = b""
            t.type(b"/model tale\r")
            t.until(b"Now: tale")
            t.until_prompt()
            t.output = b""
            t.type(b"x\r")
            t.until(b"tokens/s")
            shown = re.search(rb"turn 1.*?time\.", re.sub(rb"\r", b"", t.output), re.S)
            self.assertTrue(shown, t.output)
            lines = [""]
            for m in re.finditer(r"\x1b\[(\d*)([DKm])|(\n)|(.)", shown[0].decode()):
                if m[2] == "D":
                    lines[-1] = lines[-1][:len(lines[-1]) - int(m[1])]
                elif m[3]:
                    lines.append("")
                elif m[4]:
                    lines[-1] += m[4]
            self.assertTrue(all(len(line.rstrip()) < columns for line in lines), (columns, lines))
            self.assertEqual(" ".join(" ".join(lines).split()), "turn 1 upon a time.")
            self.assertEqual(len(lines) > 1, columns < 20, (columns, lines))
            t.type(b"/bye\r")
            self.assertEqual(t.finish(), 0)

    def test_lists(self):
        """What goes on in an item of a list stands below the item's text."""
        t = Terminal("generate", "--", "- one two three four\n  10. six seven eight\n-5 plain words go on\n",
                     columns=16)
        self.assertEqual(t.finish(), 0)
        text = re.sub(r"\x1b\[\d*m|\r", "", t.output.decode())
        while taken := re.search(r"\x1b\[(\d+)D\x1b\[K", text):  # a word that goes to the next line
            text = text[:taken.start() - int(taken[1])] + text[taken.end():]
        lines = [line.rstrip() for line in text.split("\n")]
        self.assertEqual(lines[:6], ["- one two three", "  four", "  10. six seven", "      eight", "-5 plain words",
                                     "go on"])

    def test_progress(self):
        for model, text in (("loading", "loading loading… 43%"), ("queued", "queued, 3 before this one"),
                            ("reading", "reading the prompt: 1,024 of 1,718 tokens (59%)")):
            status, out = self.screen("generate", "-m", model, "x")
            self.assertEqual(status, 0)
            line = b"\r" + text.encode() + b"\x1b[K"
            self.assertIn(line, out)
            # Erased before the first token.
            self.assertIn(b"\r\x1b[K\x1b[2mx\x1b[22mOnce", out[out.index(line) + len(line):])

    def test_recovering(self):
        status, out = self.screen("generate", "-m", "recover", "x")
        self.assertEqual(status, 0)
        shown = "\x1b[2mx\x1b[22mOnce upon\x1bD\x1b[A\x1b7\x1bD\rrecovering: a worker was restarted…\x1b[K".encode()
        self.assertTrue(out.startswith(shown), out)
        self.assertTrue(out[len(shown):].startswith(b"\r\x1b[K\x1b8 a time."), out)
        self.assertTrue(out.endswith(b"212 tokens/s, 1 recovery\r\n"), out)

    def test_no_progress_elsewhere(self):
        r = tandem("generate", "-m", "recover", "x")
        self.assertEqual(r.stderr, b"")
        # Only stdout is no terminal: progress, but no summary.
        t = Terminal("generate", "-m", "loading", "x", stdout=subprocess.PIPE)
        out = t.process.stdout.read()
        t.process.stdout.close()
        self.assertEqual(t.finish(), 0)
        self.assertEqual(out, b"Once upon a time.\n")
        self.assertEqual(t.output, "\rloading loading… 43%\x1b[K\r\x1b[K".encode())

    def test_control_characters(self):
        status, out = self.screen("generate", "-m", "bytes", "x")
        self.assertEqual(status, 0)
        text = out[out.index(b"x\x1b[22m") + 6:out.index(b"23 prompt")].decode()
        self.assertEqual(text, 'a\\x1b[31mb"\\\r\n\t\\x01\ufffd\ufffd\\u009b31mgrüß\ufffd\r\n')

    def test_failure_on_its_own_line(self):
        status, out = self.screen("generate", "-m", "fault", "x")
        self.assertEqual(status, 1)
        self.assertEqual(out, b"\x1b[2mx\x1b[22mOnce upon\r\ntandem: device-fault: the fake device died\r\n")

    def test_ctrl_c(self):
        for model, shown in (("slow", b"upon"), ("stuck", None), ("loads", b"43%")):
            since = len(support.fake.requests())
            t = Terminal("generate", "-m", model, "-n", "0", "x")
            support.fake.wait_for(lambda r: r.get("request") == "generate", since)
            if shown:
                t.until(shown)
            t.type(b"\x03")
            self.assertEqual(t.finish(), 130)  # Interrupt measures how soon
            if model == "loads":
                self.assertIn(b"\r\x1b[K", t.output[t.output.index(shown):][8:])

    def test_needs_a_prompt(self):
        status, out = self.screen("generate")
        self.assertEqual(status, 2)
        self.assertIn(b"there is no PROMPT", out)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *(a for a in sys.argv[3:] if a != "--full")])
