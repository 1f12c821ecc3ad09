"""What test-pull.py and test-store.py share: a home in a temporary directory, and a command that runs in it."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

TANDEM = os.path.abspath(sys.argv[1])
MODEL_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "sprout.gguf")
with open(MODEL_PATH, "rb") as _f:
    MODEL = _f.read()


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="tandem-test-models-")
        self.addCleanup(shutil.rmtree, self.dir)
        self.models = self.dir + "/data/tandem/models"

    def environment(self, **more):
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("TANDEM_", "HF_", "http", "XDG_", "OLLAMA"))}
        return {**keep, "HOME": self.dir, "XDG_DATA_HOME": self.dir + "/data", "TANDEM_SOCKET": self.dir + "/none",
                **more}

    def run_tandem(self, *args, before=None, **env):
        """before: runs in the child before the program."""
        r = subprocess.run([TANDEM, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
                           env=self.environment(**env), preexec_fn=before)
        self.assertNotIn("Sanitizer", r.stderr)
        return r

    def tandem(self, *args, status=0, **options):
        r = self.run_tandem(*args, **options)
        self.assertEqual(r.returncode, status, r)
        return r.stdout + r.stderr

    def files(self):
        return sorted(os.listdir(self.models)) if os.path.isdir(self.models) else []

    def write_model(self, path, data=MODEL):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)
        return path
