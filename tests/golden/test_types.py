"""Every weight type against float64: random models of each, decoded a second time by tools/gguf_types.py, stay within a
stated distance of their reference on the host device, in every precision and with every table of kernels that is here.

usage: test_types.py GOLDEN_HOST [--full]
--full: the C reference computes `precise` too.
"""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from cpu_tables import tables  # noqa: E402
from tandem_test import TREE, Skip, make_model  # noqa: E402

TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "bf16",
         "mxfp4", "tq1_0", "tq2_0", "nvfp4", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
# Mean distance (see golden-host.c) and first choice. Measured: 0.034, 0.0009, 0.00001 at most. First choices of random
# models are often nearly equal.
LIMITS = {"default": (0.06, 95), "precise": (0.003, 98), "f32": (0.0002, 99)}


def reference(model):
    """A random text of 60 tokens, scored in float64; made once for each build directory."""
    path = model + ".short.json"
    part = f"{path}.part-{os.getpid()}"  # the full test may make it too, at the same time
    if not os.path.exists(path):
        subprocess.run([sys.executable, "-B", os.path.join(TREE, "tools", "demo-model", "gemma_ref.py"), model, part,
                        "--seqs", "1", "--len", "60"], check=True, stdout=subprocess.DEVNULL)
        os.rename(part, path)
    return path


def main():
    models = [make_model("tiny", kind, layers=3) for kind in TYPES]
    # As in a Q4_K_M file, and with what a width that 256 does not divide falls back to.
    models += [make_model("tiny", "q4_k", layers=3, more_type="q6_k"),
               make_model("tiny", "q5_0", layers=3, embd_type="q8_0")]
    failed = 0
    for model in models:
        for cpu in tables():
            for precision, (mean, first) in LIMITS.items():
                if cpu == "c" and (precision == "f32" or precision == "precise" and "--full" not in sys.argv):
                    continue  # slow, and the tables are equal: test-kernels-matmul-subblock.c
                failed += subprocess.run([sys.argv[1], model, reference(model), "--precision", precision, "--cpu", cpu,
                                          "--mean", str(mean), "--first", str(first)]).returncode != 0
    return 1 if failed else 0


try:
    sys.exit(main())
except Skip as e:
    print(f"SKIP {e}")
    sys.exit(77)
