"""Text in and out through the daemon: golden ids, round trips decoded by an independent reader of the vocabulary,
whole characters only, and what happens to bytes that are not UTF-8."""
import random

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

from gguf_peek import Gguf  # noqa: E402


@test
def golden_prompts():
    with Daemon(models=[TALE, SPROUT]) as d:
        for model in ("tale", "sprout"):
            for g in golden(model):
                got = d.tokenize(g["prompt"], model=model, special=True)
                same_ids(got, g["ids"][:g["prompt_len"]], f"{model}: ids of {g['prompt'][:30]!r}")


def random_text(rng, n):
    ranges = [(0x20, 0x7F), (0x20, 0x7F), (0x61, 0x7B), (0xA0, 0x250), (0x370, 0x500), (0x4E00, 0x5000),
              (0x2581, 0x2582),
              (0x1F600, 0x1F650), (0xE000, 0xE010), (0x10FFFE, 0x110000), (1, 0x20), (0xD7F0, 0xD800)]
    return "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(n))


@test
def any_utf8_round_trips():
    rng, gguf = random.Random(4), Gguf(TALE)
    texts = [random_text(rng, rng.randrange(1, 200)) for _ in range(times(150, 2000, 60))]
    texts += [" ", "  ", " a", "a ", "\n\n\n", "\t", "<0x41>", "<bos>", "<start_of_turn>", "\u2581", "a\u2581b",
              "é" * 300]
    with Daemon() as d, d.wire() as w:
        for t in texts:
            ids = w.call("tokenize", {"text": t.encode(), "no_bos": True})["ids"]
            got, want = gguf.decode(ids), t.encode()
            # U+2581 is how the vocabulary writes a space: it cannot come back as itself.
            check(got.replace("\u2581".encode(), b" ") == want.replace("\u2581".encode(), b" "), "round trip", t, got,
                  ids[:20])


@test
def invalid_utf8_goes_through_as_bytes():
    """Documented in engine/text/tokenizer.h: each byte outside a well-formed sequence becomes its byte piece."""
    gguf = Gguf(TALE)
    with Daemon() as d:
        for raw in (b"\xff", b"a\x80b", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\xaf", b"ok \xe2\x82 end",
                    b"a\0b"):
            ids = d.tokenize(raw, no_bos=True)
            equal(gguf.decode(ids), raw, f"ids of {raw!r}")
            r = d.generate(prompt=raw, n=4)
            equal(len(r.ids), 4, f"a job with the prompt {raw!r}")


@test
def whole_characters_only():
    """Hot sampling draws byte pieces at random: still no piece of text may hold part of a character."""
    with Daemon() as d:
        for seed in range(times(4, 20, 2)):
            r = d.generate(n=300, temp=40.0, seed=seed)
            for piece in r.pieces:
                piece.decode()
            check(len(r.text) > 100, "text")


main()
