"""Small models of every kind with a few wrong bytes each, through mutate-models: refused by an error with a message, or
used. With --full 10,000 of each kind. KIND: only the kinds that have this word in their name.

usage: mutated.py MUTATE_MODELS [--full] [KIND]
"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from model_parts import split  # noqa: E402
from tandem_test import Skip, make_model  # noqa: E402

SEED = int(os.environ.get("TANDEM_TEST_SEED", "27"))
KINDS = [("dev", "q4_0", {"arch": a, "vocab": 400, "layers": 1}) for a in ("llama", "qwen2", "qwen3", "qwen3moe")] + [
    ("dev", "mxfp4", {"arch": "gpt-oss", "vocab": 400, "layers": 2}),
    ("dev", "q8_0", {"arch": "qwen3", "vocab": 400, "layers": 1, "pooling": 3}),
    ("gen", "q4_0", {"arch": "gemma3n", "vocab": 400}), ("e", "q4_0", {"arch": "gemma4", "vocab": 400}),
    ("m", "q4_0", {"arch": "gemma4", "vocab": 400, "layers": 6}),
    ("a", "q4_0", {"arch": "gemma-embedding", "vocab": 400, "layers": 6})]

SPLIT = [(("dev", "q4_0", {"arch": "qwen3", "vocab": 400, "layers": 2}), 2),
         (("gen", "q4_0", {"arch": "gemma3n", "vocab": 400}), 3)]

only = [word for word in sys.argv[2:] if word != "--full"]
n = "10000" if "--full" in sys.argv else "60"
with tempfile.TemporaryDirectory(prefix="tandem-mutated-") as directory:
    try:
        paths = [make_model(size, kind, **more) for size, kind, more in KINDS]
        for i, ((size, kind, more), n_parts) in enumerate(SPLIT):
            paths.append(",".join(split(make_model(size, kind, **more), directory, f"split-{i}", n_parts)))
    except Skip as e:
        print(f"SKIP {e}")
        sys.exit(77)
    paths = [path for path in paths if all(word in path for word in only)]
    sys.exit(subprocess.run([sys.argv[1], n, str(SEED)] + paths).returncode != 0)
