"""Debian sid's XRT 2.25 and AMD's own NPU driver library on the emulated kernel driver: ids and log-probabilities equal
those of 2.13's emulator, the counters agree, xrt-smi shows device and contexts.

Needs root and mmdebstrap (tools/fresh-debian), and the network for packages. The daemon and the workers are this
build's; the module for XRT is compiled in sid, from the committed state of this tree.
"""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
BIN = os.environ.get("TANDEM_BIN") or os.path.join(TREE, "build", "bin")
BUILD = os.path.dirname(BIN)


def main():
    for missing, why in ((os.environ.get("TANDEM_TEST_SANITIZER"), "programs with a sanitizer need its library in sid"),
                         (os.geteuid() != 0, "making a root of Debian sid needs root"),
                         (not shutil.which("mmdebstrap"), "mmdebstrap is missing (apt-get install mmdebstrap)"),
                         (not os.path.exists(os.path.join(BUILD, "lib", "npu-emulated", "lib", "libxrt_core.so.2")),
                          "the emulator of XRT 2.13, which it compares with, is not in this build")):
        if missing:
            print(f"skipped: {why}")
            sys.exit(77)
    root = tempfile.mkdtemp(prefix="tandem-npu-sid-", dir="/var/tmp")
    try:
        tandem = os.path.join(root, "tandem")
        os.makedirs(os.path.join(tandem, "bin"))
        for name in ("tandemd", "tandem", "tandem-npu-worker", "tandem-gpu-worker"):
            shutil.copy2(os.path.join(BIN, name), os.path.join(tandem, "bin"))
        os.makedirs(os.path.join(tandem, "lib"))
        for library in glob.glob(os.path.join(BUILD, "lib", "libtandem.so*")):
            shutil.copy2(library, os.path.join(tandem, "lib"), follow_symlinks=False)
        found = os.path.join(tandem, "reference.json")
        subprocess.run([sys.executable, "-B", os.path.join(HERE, "test_jobs.py"), "reference", found, BUILD],
                       check=True)
        with open(found) as f:
            want = json.load(f)
        shutil.copy2(want["1b"], tandem)
        want["1b"] = os.path.join("/tandem", os.path.basename(want["1b"]))
        with open(found, "w") as f:
            json.dump(want, f)
        sys.exit(subprocess.run([os.path.join(TREE, "tools", "fresh-debian"), "--suite", "sid", "--keep", root,
                                 "tests/npu-kernel/in-sid"]).returncode)
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", root], check=False)


main()
