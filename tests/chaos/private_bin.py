"""A private bin directory. tandemd looks for its workers beside itself, so a test that replaces workers copies tandemd
to a directory of its own. There the workers are links. put() changes a link while tandemd runs, and the next start
takes the other program."""
import atexit
import os
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import tandem_test  # noqa: E402

NAMES = ("npu", "gpu")


class Speed:
    """How slow the device of a faulty worker is, in percent of its time, from now on."""

    def __init__(self, percent=100):
        self.file = tempfile.NamedTemporaryFile(prefix="tandem-test-slow-")
        self.set(percent)

    def set(self, percent):
        self.percent = int(percent)
        with open(self.file.name, "r+b") as f:
            f.write(struct.pack("<I", self.percent))

    def fault(self, name):
        return f"numerics=-{name},slow-file={self.file.name}"


class PrivateBin:
    def __init__(self, faulty=False):
        self.built = tandem_test.BIN
        self.faulty = os.path.join(os.path.dirname(self.built), "faulty")
        if faulty and not os.path.exists(os.path.join(self.faulty, "tandem-npu-worker")):
            raise tandem_test.Skip(f"no workers with faults in {self.faulty} (built with the tests)")
        self.dir = tempfile.mkdtemp(prefix="tandem-test-bin-")
        atexit.register(shutil.rmtree, self.dir, True)
        shutil.copy2(os.path.join(self.built, "tandemd"), self.dir)
        os.symlink(os.path.join(self.built, "tandem"), os.path.join(self.dir, "tandem"))
        for name in NAMES:
            self.put(name, self.worker(name, faulty))
        tandem_test.BIN = self.dir

    def worker(self, name, faulty=False):
        return os.path.join(self.faulty if faulty else self.built, f"tandem-{name}-worker")

    def put(self, name, target):
        """tandemd's next start of this worker runs target."""
        path = os.path.join(self.dir, f"tandem-{name}-worker")
        os.symlink(target, path + ".new")
        os.rename(path + ".new", path)

    def put_script(self, name, text):
        """Writes each script to a new file: a file that is being executed cannot be written."""
        fd, path = tempfile.mkstemp(dir=self.dir, suffix=".sh")
        with os.fdopen(fd, "w") as f:
            f.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o700)
        self.put(name, path)

    def restore(self, name):
        self.put(name, self.worker(name))
