"""The Q8_0 weights of tale.gguf and the same weights as F16 find a text equally likely: within half a percent of
perplexity, and so the kernels of quantised types lose nothing that matters.

The text is the last 2% of what the model was trained on (tests/golden/tales-tail.txt.xz), in pieces as long as its
training windows: how likely the text is does not matter here, only that both agree. The quick run takes three pieces of
its middle.
"""
import lzma
import math
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

PIECE = 2600  # characters: some 700 tokens
LIMIT = 0.005


def pieces():
    with lzma.open(os.path.join(TREE, "tests", "golden", "tales-tail.txt.xz"), "rt", encoding="utf-8") as f:
        text = f.read()
    all_pieces = [text[i:i + PIECE] for i in range(0, len(text) - PIECE, PIECE)]
    return times(all_pieces[len(all_pieces) // 2:][:3], all_pieces, all_pieces[:1])


def perplexity(d, model, texts):
    total, n = 0.0, 0
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as f:
        for text in texts:
            f.seek(0)
            f.truncate()
            f.write(text)
            f.flush()
            nll = d.cli_json("score", "-m", model, "--text", f.name, timeout=120)[0]["nll"]
            total += sum(nll)
            n += len(nll)
    check(n > 500, "enough tokens", n)
    return math.exp(total / n), n


@test
def q8_0_and_f16():
    texts = pieces()
    with tempfile.TemporaryDirectory() as tmp:
        f16 = os.path.join(tmp, "tale-f16.gguf")
        r = subprocess.run([sys.executable, "-B", os.path.join(TREE, "tools", "gguf-to-f16.py"), TALE, f16],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if b"No module named 'numpy'" in r.stdout:
            raise Skip("python3-numpy is missing")
        check(r.returncode == 0, "gguf-to-f16.py failed", r.stdout[-2000:])
        with Daemon(models=[TALE, f16]) as d:
            q8_0, n = perplexity(d, "tale", texts)
            wide, _ = perplexity(d, "tale-f16", texts)
            equal(d.model("tale-f16").get("quantisation"), "F16", "types in status")
    print(f"FIGURE perplexity of {n} tokens: Q8_0 {q8_0:.4f}, F16 {wide:.4f}, {100 * (q8_0 / wide - 1):+.3f}%",
          flush=True)
    check(abs(q8_0 / wide - 1) <= LIMIT, f"perplexity {q8_0:.4f} with Q8_0, {wide:.4f} with F16")


main()
