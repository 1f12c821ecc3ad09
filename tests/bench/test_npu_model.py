"""tools/npu-model.py against figures reckoned by hand from its sources, and against what can never be."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import TREE, check, equal, main, test  # noqa: E402


def model(*args):
    out = subprocess.run([sys.executable, "-B", os.path.join(TREE, "tools", "npu-model.py"), "--json", *args],
                         stdout=subprocess.PIPE, check=True, timeout=60).stdout
    return {(r["device"], r["model"], r["type"], r["rows"]): r for r in json.loads(out)}


@test
def by_hand():
    m = model()
    equal([m[d, "gemma3-1b", "int8", 1]["ghz"] for d in ("phoenix", "hawk-point", "strix")], [0.977, 1.562, 1.526],
          "clocks: 10, 16, 50 TOPS of 20, 20, 32 tiles")
    r = m["strix", "gemma3-27b", "int8", 1]["qkv"]
    equal(r["bytes"], 8192 * 5376 + 5376 + 4 * 8192, "weights, a row in, a row of sums out")
    # 8 columns, 2 channels of 4 bytes a cycle each: 64 bytes a cycle, less than the memory has at that clock.
    equal(r["memory_cycles"], round((8192 * 5376 + 5376) / 64), "cycles of memory")
    equal(r["bound"], "memory", "a single row")
    r = m["phoenix", "gemma3-1b", "bf16", 256]["qkv"]
    equal(r["compute_cycles"], 64 * 384 * 1152 // 128, "16 tiles, 64 rows and 384 outputs each, 128 products a cycle")
    slower = model("--submission-us", "100", "--device", "strix")
    for key, r in slower.items():
        check(abs(r["layer_us"] - m[key]["layer_us"] - 200) < 1e-6, "two submissions a layer", key)


@test
def our_programs():
    """Of npu-worker/programs/: a word a cycle through the busiest core's ports, and never better than the best."""
    best, ours = model(), model("--programs")
    r = ours["phoenix", "gemma3-1b", "bf16", 1]
    # 24 blocks of 64 outputs on 7 cores: one has 4.
    equal(r["qkv"]["memory_cycles"], 4 * 64 * 1152 // 2, "words of weights")
    equal(ours["strix", "gemma3-1b", "int4", 1]["qkv"]["memory_cycles"], 2 * 2 * 36 * 144, "2 blocks on a core")
    equal(ours["phoenix", "gemma3-1b", "bf16", 256]["qkv"]["commands"], 4, "64 rows a command")
    for key, r in ours.items():
        check(r["layer_us"] >= best[key]["layer_us"], "no better than the best", key)


@test
def never_better_than_possible():
    tops = {"phoenix": 10e12, "hawk-point": 16e12, "strix": 50e12}
    faster = {"bf16": 0.5, "int8": 1, "int4": 2}
    for (device, shape, kind, rows), r in model("--rows", "1,7,64,300").items():
        for part in ("qkv", "output"):
            d = {"gemma3-1b": (1152, 1536, 1024), "gemma3-4b": (2560, 4096, 2048), "gemma3-12b": (3840, 8192, 4096),
                 "gemma3-27b": (5376, 8192, 4096)}[shape]
            k, n = (d[0], d[1]) if part == "qkv" else (d[2], d[0])
            least = 2 * rows * k * n / (tops[device] * faster[kind]) * 1e6
            check(r[part]["us"] >= least, "no product beats the peak", device, shape, kind, rows, part)
            check(r[part]["us"] * 120e3 >= n * k * {"bf16": 2, "int8": 1, "int4": 0.5}[kind], "nor the memory",
                  device, shape, kind, rows)


main()
