"""Large values: random models whose residuals reach 5e5 and whose gelu(gate) * up passes 1e5 (mkgguf.py --outliers)
stay within a stated bound of their float64 reference on the host device; models whose values do not fit f16 at all stay
finite, and what was saturated is counted.

usage: test_range.py GOLDEN_HOST
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import TREE, Skip, make_model  # noqa: E402

# Mean distance (see golden-host.c) and first choice. Measured: 0.084, 0.0019, 0.00001 with Q8_0.
LIMITS = {"default": (0.15, 97), "precise": (0.01, 99), "f32": (0.001, 99)}


def reference(model):
    """Two random texts of about 100 tokens, scored in float64; made once for each build directory."""
    path = model + ".json"
    if not os.path.exists(path):
        subprocess.run([sys.executable, "-B", os.path.join(TREE, "tools", "demo-model", "gemma_ref.py"), model,
                        path + ".part", "--seqs", "2", "--len", "100"], check=True, stdout=subprocess.DEVNULL)
        os.rename(path + ".part", path)
    return path


def main():
    failed = 0
    for kind in ("q8_0", "q4_0", "f16"):
        outliers, loud = make_model("tiny", kind, outliers=True), make_model("tiny", kind, gain=1e5)
        runs = [(outliers, p, ["--mean", str(mean), "--first", str(first)]) for p, (mean, first) in LIMITS.items()]
        runs += [(loud, "default", ["--mean", "1e6", "--saturated"]),
                 (loud, "precise", ["--mean", "1e6", "--saturated"]),
                 (loud, "f32", ["--mean", "1e6"])]
        for model, precision, limits in runs:
            command = [sys.argv[1], model, reference(model), "--precision", precision] + limits
            failed += subprocess.run(command).returncode != 0
    return 1 if failed else 0


try:
    sys.exit(main())
except Skip as e:
    print(f"SKIP {e}")
    sys.exit(77)
