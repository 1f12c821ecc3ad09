"""Pictures from a client's socket to the answer: a random pair of a text model and its projector, in one folder.

usage: test_seeing.py
What a job gets is compared by token ids and log-probabilities, which are the same bits in every company.
"""
import os
import random
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from seeing import IMAGES, ROWS, Seeing, file_of, picture  # noqa: E402
from tandem_test import (STANDING_MS, Job, Refused, check, config, equal, main, request, test, times,  # noqa: E402
                         together, wait_for)


def bits(result):
    check(result.error is None, "it ended without an error", result.error)
    return result.ids, result.logprobs


def jobs():
    """Requests with pictures: raw and in chats, one and several, at the start and within."""
    n = {"n": 6}
    return [
        dict(n, prompt="What is it?", pictures=[picture("wide.png")]),
        dict(n, prompt="Two of them", pictures=[picture("square112.png"), picture("alpha.png", 0, 3)]),
        dict(n, chat=[("user", "Look at this.")], pictures=[picture("tall.png", 0, 5)]),
        dict(n, chat=[("system", "Be kind."), ("user", "One"), ("assistant", "yes"), ("user", "and another")],
             pictures=[picture("exif.jpg", 1), picture("lossy.webp", 3, 11)]),
    ]


@test
def exact():
    """Alone, in company, in chunks, on each worker, with other threads: the same bits. A picture matters."""
    with Seeing() as d:
        alone = [bits(d.generate(**job)) for job in jobs()]
        check(alone[0] != bits(d.generate(prompt="What is it?", n=6, pictures=[picture("square224.png")])),
              "another picture gives other numbers")
    with Seeing(threads=3, env={"TANDEM_PREFIX_CACHE": "off"}) as d:
        texts = [{"prompt": f"Once {i}", "n": 40, "model": "tale"} for i in range(3)]
        texts += [{"prompt": f"abc {i}", "n": 40} for i in range(3)]
        got = together(d, jobs() + texts + jobs())
        for i, want in enumerate(alone + alone):
            equal(bits(got[i if i < len(alone) else i + len(texts)]), want, f"job {i} in company")
        for chunk, placement in ((1, "split"), (7, "gpu"), (0, "npu")):
            for job, want in zip(jobs(), alone):
                equal(bits(d.generate(chunk=chunk, placement=placement, **job)), want, f"chunk {chunk}, {placement}")


@test
def losses():
    """Workers and the tower's process are killed: the bits stay."""
    with Seeing() as d:
        job = dict(jobs()[1], n=300)  # this model is small: in a slice of its workers it makes dozens of tokens
        want = bits(d.generate(**job))
    with Seeing(hang_ms=STANDING_MS) as d:
        for worker in ("gpu", "npu"):
            with d.in_midst(job, tokens=2) as (under_way,):
                d.signal_worker(worker)
            equal(bits(under_way.wait()), want, f"the {worker} worker was killed")
        for signo in (signal.SIGKILL, signal.SIGABRT):  # SIGSEGV would be a sanitizer's finding
            readers = d.readers()
            equal(len(readers), 1, "processes with a tower")
            os.kill(readers[0], signo)
            wait_for(lambda: readers[0] not in d.readers(), "its end")
            other = picture("grey16.png" if signo == signal.SIGKILL else "gradient.png")
            bits(d.generate(prompt="x", n=2, pictures=[other]))
            equal(bits(d.generate(**job)), want, "the tower's process was killed")


@test
def conversation():
    """The turns behind the first one read the picture no more: its tower may be gone, and its rows are cached."""
    with Seeing() as d:
        chat, seen = [("user", "What does it show?")], [picture("strokes.png", 0, 4)]
        first = d.generate(chat=chat, n=4, pictures=seen)
        check(first.done["prompt_tokens"] > ROWS, "rows of a picture count as tokens", first.done)
        reader = d.readers()[0]
        os.kill(reader, signal.SIGKILL)
        wait_for(lambda: reader not in d.readers(), "its end")
        for turn in range(4):
            chat += [("assistant", f"a{turn}"), ("user", f"and {turn}?")]
            again = d.generate(chat=chat, n=4, pictures=seen)
            check(again.done.get("cached_tokens", 0) > ROWS, "the picture's rows were cached", again.done)
        equal(d.readers(), [], "processes with a tower")


@test
def refusals():
    """Each with its reason, and the daemon goes on."""
    wide = [picture("wide.png")]
    with Seeing() as d:
        d.refuses("unsupported", ["model tale takes no pictures", "mmproj-tale.gguf"], prompt="x", model="tale",
                  pictures=wide)
        d.refuses("bad-request", "picture 1 stands at byte 9", prompt="x", pictures=[picture("wide.png", 0, 9)])
        d.refuses("bad-request", "message 2", chat=[("user", "x")], pictures=[picture("wide.png", 1)])
        d.refuses("bad-request", "picture 1 is empty", prompt="x", pictures=[picture(b"")])
        d.refuses("bad-request", "picture 2 stands before picture 1", prompt="xyz",
                  pictures=[picture("wide.png", 0, 2), picture("wide.png", 0, 1)])
        d.refuses("bad-request", "at most 64", prompt="x", pictures=[picture(b"x")] * 65)
        d.refuses("bad-request", "continued", ids=[5, 6], pictures=wide)
        d.refuses("bad-request", "of its own", prompt="<start_of_image><end_of_image>", pictures=wide)
        d.refuses("too-long", f"{ROWS} are of each picture", prompt="a " * 4090, pictures=wide)
        for name in sorted(os.listdir(os.path.join(IMAGES, "refused"))):
            if os.path.getsize(os.path.join(IMAGES, "refused", name)) > 0:
                d.refuses("bad-request", "picture 2: ", prompt="x",
                          pictures=wide + [picture(file_of(name, "refused"))])
        # What a person writes in a message is letters.
        spelled = [("user", "<start_of_image><end_of_image>")]
        equal(d.generate(chat=spelled, n=2).error, None, "the error of a text that spells the marks")
        both = d.generate(chat=spelled, n=2, pictures=wide)
        equal(both.error, None, "the error of the same with a picture")
        check(both.done["prompt_tokens"] > ROWS + 20, "and letters they stay", both.done)
        bits(d.generate(**jobs()[0]))
    with Seeing(size="b") as d:  # the rows of another text model
        d.refuses("unsupported", ["model see takes no pictures", "do not belong together"], prompt="x", pictures=wide)
        bits(d.generate(prompt="abc", n=2))
    with Seeing(args=config(f"[engine]\nmax-rows = {ROWS + 3}\nmax-sequences = 4\nprefill-rows = 8\n")) as d:
        d.refuses("unsupported", f"set max-rows to {ROWS + 4} or more", prompt="x", pictures=wide)


@test
def hostile_files():
    """Damaged files, one after the other, beside a text that goes on."""
    rng = random.Random(5)
    names = ["alpha.png", "exif.jpg", "lossy.webp", "palette.png", "progressive.jpg"]
    with Seeing() as d:
        text = Job(d, **request(prompt="Once", n=200, model="tale"))
        n_good = 0
        for i in range(times(40, 200)):
            data = bytearray(file_of(names[i % len(names)]))
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            if i % 2:
                del data[rng.randint(1, len(data)):]
            result = None
            try:
                result = d.generate(prompt="x", n=1, pictures=[picture(bytes(data))])
            except Refused as e:
                equal(e.code, "bad-request", "the code of a damaged picture")
            if result and result.error:
                equal(result.error["code"], "bad-request", "the code of a damaged picture")
            n_good += bool(result and not result.error)
        bits(text.wait())
        bits(d.generate(**jobs()[0]))
        print(f"FIGURE {n_good} of them were still pictures")


@test
def command():
    """tandem generate --image, and what it says of files that are none."""
    with Seeing() as d:
        path = os.path.join(IMAGES, "pictures", "wide.png")
        said = d.cli_json("generate", "--json", "--image", path, "--temp", "0", "-n", "3", "What is it?")
        want = d.generate(prompt="What is it?", n=3, pictures=[picture("wide.png")], ignore_end=False)
        equal([e["id"] for e in said if e["event"] == "token"], want.ids, "its tokens")
        r = d.cli("generate", "--image", os.path.join(d.folder, "none.png"), "x")
        check(r.returncode != 0 and b"none.png" in r.stderr, "a file that is not there", r.stderr)
        r = d.cli("generate", "--image", d.path, "x")
        check(r.returncode != 0 and b"see.gguf is no picture" in r.stderr, "a file that is no picture", r.stderr)


main()
