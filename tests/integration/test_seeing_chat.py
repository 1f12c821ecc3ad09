"""Pictures in `tandem chat`, on a terminal and from a pipe, and what the commands say of files that are none.

usage: test_seeing_chat.py
What went to the model is read from the file that /save writes, and from the tokens that a prompt had.
"""
import base64
import json
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from chat_terminal import ChatTerminal  # noqa: E402
from seeing import ROWS, Seeing, file_of, picture  # noqa: E402
from tandem_test import check, equal, main, test  # noqa: E402

ANSWER = ["--regex", "[a-z]{3}", "--temp", "0", "-v"]  # three letters, whatever the random model would like to say
WIDE, TALL, WEBP = NAMES = "wide.png", "tall.png", "lossy.webp"
GIF = b"GIF89a" + bytes(20)


class Pictures(Seeing):
    """With a folder of files: odd names, and some that are no pictures."""

    def start(self):
        super().start()
        self.files = os.path.join(self.folder, "files")
        os.makedirs(os.path.join(self.files, "of a cat"), exist_ok=True)
        for to, data in (("of a cat/it's wide.png", file_of("wide.png")), ("tall.png", file_of("tall.png")),
                         ("lossy.webp", file_of("lossy.webp")), ("note.png", b"no picture\n"), ("old.gif", GIF),
                         ("empty.png", b""), ("big.png", file_of("wide.png") + bytes(8 << 20))):
            with open(self.file(to), "wb") as f:
                f.write(data)

    def file(self, name):
        return os.path.join(self.files, name)

    def talk(self, *lines, args=(), status=0):
        """The lines from a pipe, and the saved conversation."""
        saved = self.file("saved.json")
        r = self.cli("chat", *ANSWER, *args, input="\n".join([*lines, f"/save {saved}", ""]).encode())
        equal(r.returncode, status, f"exit; {r.stderr}")
        return r, shown(saved) if status == 0 else None


def decoded(part):
    return base64.b64decode(part["image_url"]["url"].partition(";base64,")[2], validate=True)


def shown(path):
    """[(role, text and pictures)] of a saved conversation; a picture is the name of the file with the same bytes."""
    known = {file_of(name): name for name in NAMES}
    with open(path, encoding="utf-8") as f:
        said = json.load(f)["messages"]
    turns = []
    for message in said:
        parts = message["content"]
        if isinstance(parts, list):
            parts = [p["text"] if p["type"] == "text" else known.get(decoded(p), len(decoded(p))) for p in parts]
        turns.append((message["role"], parts))
    return turns


def asked(turns):
    return [parts for role, parts in turns if role == "user"]


@test
def from_a_pipe():
    """--image, /image, several pictures, a conversation that keeps them, and one that goes on from a file."""
    with Pictures() as d:
        r, said = d.talk("What is it?", "/image " + d.file("tall.png"), f"/image '{d.file('lossy.webp')}'",
                         "And these?", "/tmp is a folder, " + d.file("tall.png") + " a path", "/retry", "Well?",
                         args=["--image", d.file("of a cat/it's wide.png")])
        equal(asked(said), [[WIDE, "What is it?"], [TALL, WEBP, "And these?"]] + asked(said)[2:], "messages")
        equal(len(asked(said)), 3, "a line with / at its begin is a command where nobody sits")
        check(b"there is no command /tmp" in r.stderr, "a command", r.stderr)
        rows = [int(line.split(b" of pictures")[0].rpartition(b" ")[2]) for line in r.stderr.splitlines()
                if b"of pictures" in line]
        equal(rows, [ROWS, 3 * ROWS, 3 * ROWS, 3 * ROWS], "tokens of pictures, as -v tells them")
        want = d.generate(chat=[("user", "What is it?")], pictures=[picture("wide.png")], n=1)
        check(f"{want.done['prompt_tokens']} prompt tokens".encode() in r.stderr.splitlines()[0], "the prompt",
              want.done, r.stderr)
        shutil.copy(d.file("saved.json"), d.file("kept.json"))
        for name in ("tall.png", "lossy.webp"):
            os.unlink(d.file(name))
        again, more = d.talk("/load " + d.file("kept.json"), "And now?")
        equal(more[:len(said)], said, "what was loaded, without the files")
        check(f"{3 * ROWS} of pictures".encode() in again.stderr, "pictures go along", again.stderr)


@test
def dropped():
    """Paths in a line, as terminals write them: quoted, escaped, as a URL, with blanks."""
    with Pictures() as d:
        cat = d.file("of a cat/it's wide.png")
        quoted = "'" + cat.replace("'", "'\\''") + "'"
        escaped = cat.replace(" ", "\\ ").replace("'", "\\'")
        url = "file://" + cat.replace(" ", "%20").replace("'", "%27")
        with ChatTerminal(d, *ANSWER) as t:
            out = t.line(f"What is {quoted} ?")
            check("With the picture it's wide.png (PNG, " in out, "it is said", out)
            check(f", {ROWS} of pictures" in out, "tokens", out)
            t.line(f"{escaped} and {d.file('tall.png')}, please")
            t.line(f"{url} once more")
            out = t.line(cat + "   ")
            check("it's wide.png (PNG, " in out and "goes with the next message." in out, "it waits", out)
            out = t.line(f"{d.file('lossy.webp')} '{d.file('tall.png')}' ")
            check("lossy.webp (WebP, " in out and "tall.png (PNG, " in out, "they wait, too", out)
            t.line("Three of them")
            t.line(f"No picture is in {d.file('note.png')}, {d.folder}, /dev/null, {cat} or '{d.file('tall.png')}")
            t.line(f"/{cat} is a path")
            t.line("/save " + d.file("saved.json"))
            equal(t.leave(), 0, "exit")
        got = asked(shown(d.file("saved.json")))
        equal(got[:4], [["What is ", WIDE, " ?"], [WIDE, "and ", TALL, ", please"], [WIDE, "once more"],
                        [WIDE, WEBP, TALL, "Three of them"]], "messages")
        equal(got[4], f"No picture is in {d.file('note.png')}, {d.folder}, /dev/null, {cat} or '{d.file('tall.png')}",
              "a message of words")
        equal(got[5], cat + " is a path", "what // takes as it is")


@test
def again():
    """/retry and /edit keep a message's pictures. /image alone leaves those out that wait."""
    with Pictures() as d:
        with ChatTerminal(d, *ANSWER, "--image", d.file("tall.png")) as t:
            check("tall.png (PNG, " in t.output, "that it waits", t.output)
            check("No picture" not in t.line("/image"), "it is left out")
            check("No picture waits" in t.line("/image"), "there is none")
            t.line(f"Is {d.file('tall.png')} a tower?")
            out = t.line("/retry")
            check(f", {ROWS} of pictures" in out, "asked again", out)
            out = t.line("/edit And now?")
            check(f", {ROWS} of pictures" in out, "asked in another way", out)
            t.line("/image " + d.file("of a cat/it's wide.png"))
            check("Set." in t.line("/think off"), "/think is /set think", t.output)
            check("think off" in t.line("/set"), "it is set", t.output)
            check("Taken back." in t.line("/think default"), "and taken back", t.output)
            t.line("Both?")
            t.line("/save " + d.file("saved.json"))
            equal(t.leave(), 0, "exit")
        equal(asked(shown(d.file("saved.json"))), [[TALL, "And now?"], [WIDE, "Both?"]], "messages")


@test
def refused():
    """What is wrong is said by its name, and the line stays, to be mended. What waits goes on waiting."""
    with Pictures() as d:
        with ChatTerminal(d, *ANSWER) as t:
            for name, words in (("none.png", "cannot open the picture"), ("note.png", "is no picture"),
                                ("old.gif", "is a GIF: pictures are PNG, JPEG or WebP"), ("empty.png", "is empty"),
                                ("of a cat", "is a folder"), ("big.png", "is too large")):
                out = t.line("/image " + d.file(name), offered="/image " + d.file(name))
                check(words in out and name in out, f"the words of {name}", out)
                t.keys_away()
            line = f"What is {d.file('old.gif')} ?"
            check("is a GIF" in t.line(line, offered=line), "in a line, too", t.output)
            t.keys_away()
            line = f"{d.file('tall.png')} and {d.file('big.png')}"
            check("is too large" in t.line(line, offered=line), "too large", t.output)
            t.keys_away()
            t.line("/image " + d.file("tall.png"))
            t.line("/model tale")
            out = t.line("What is it?", offered="What is it?")
            check("model tale takes no pictures" in out and "/model takes another model" in out, "blind", out)
            t.keys_away()
            out = t.line("/image " + d.file("tall.png"), offered="/image " + d.file("tall.png"))
            check("tale takes no pictures" in out and "mmproj-tale.gguf" in out, "told at once", out)
            t.keys_away()
            t.line("/model see")
            t.line("What is it?")
            t.line("/save " + d.file("saved.json"))
            equal(t.leave(), 0, "exit")
        equal(asked(shown(d.file("saved.json"))), [[TALL, "What is it?"]], "messages")
        for args, status, words in ((["/image " + d.file("none.png"), "x"], 1, b"cannot open the picture"),):
            r = d.cli("chat", *ANSWER, input="\n".join(args).encode())
            equal((r.returncode, r.stdout), (status, b""), "a pipe ends at a picture that is not there")
            check(words in r.stderr, "its words", r.stderr)


@test
def many():
    """Where one request cannot hold all pictures of a conversation, the oldest turns leave; one message that cannot be
    held is refused, and a prompt from a pipe, too."""
    tall = file_of("tall.png")
    large = 3 << 20
    data = tall + bytes(large - len(tall))  # bytes behind the picture's end are no part of it
    with Pictures() as d:
        for i in range(3):
            with open(d.file(f"large{i}.png"), "wb") as f:
                f.write(data)
        names = [d.file(f"large{i}.png") for i in range(3)]
        with ChatTerminal(d, *ANSWER) as t:
            t.line(f"one {names[0]}")
            t.line(f"two {names[1]}")
            out = t.line(f"three {names[2]}")
            check("a request has no room for all pictures: the oldest turn is forgotten" in out, "forgotten", out)
            line = " ".join(names) + " all"
            out = t.line(line, offered=line)
            check("the pictures have 9.0 MiB; a request has room for 8 MiB" in out, "too many", out)
            t.keys_away()
            t.line("/save " + d.file("saved.json"))
            equal(t.leave(), 0, "exit")
        equal(asked(shown(d.file("saved.json"))), [["two", large], ["three", large]], "messages")
        r = d.cli("generate", *sum((["--image", n] for n in names), []), "x")
        check(r.returncode == 1 and b"the pictures have 9.0 MiB" in r.stderr, "generate", r.stderr)


@test
def commands():
    """`tandem run` takes --image for one message and for a conversation, and --image - is standard input."""
    with Pictures() as d:
        want = d.cli("generate", "--chat", *ANSWER[:-1], "-m", "see", "--image", d.file("tall.png"), "x", check_exit=0)
        once = d.cli("run", *ANSWER[:-1], "see", "x", "--image", "-", input=file_of("tall.png"), check_exit=0)
        equal(once.stdout, want.stdout, "one message")
        check(len(want.stdout.strip()) == 3, "three letters", want.stdout)
        both = d.cli("generate", "--chat", *ANSWER[:-1], "-m", "see", "--image", d.file("tall.png"), "--json", "x")
        done = json.loads(both.stdout.splitlines()[-1])
        equal(done["picture_tokens"], ROWS, "tokens of pictures")
        for args in (["chat", "--image", "-"], ["generate", "--image", "-"], ["run", "see", "--image", "-"],
                     ["generate", "--image", "-", "--image", "-", "x"], ["generate", "--image", "-", "-f", "-", "x"]):
            r = d.cli(*args, input=b"x")
            check(r.returncode == 2 and b"--image" in r.stderr, f"{args}", r.returncode, r.stderr)
        for name, words in (("note.png", b"is no picture"), ("old.gif", b"is a GIF"), ("empty.png", b"is empty"),
                            ("of a cat", b"is a folder"), ("none.png", b"No such file"), ("big.png", b"too large")):
            r = d.cli("generate", "--image", d.file(name), "x")
            check(r.returncode == 1 and words in r.stderr, f"the words of {name}", r.stderr)


main()
