"""The emulated NPU's control page (npu-worker/emulated/control.h)."""
import mmap
import struct
import tempfile
import time


class Control:
    """The control page: faults in, counters out."""

    def __init__(self):
        self.file = tempfile.NamedTemporaryFile(prefix="tandem-test-npu-")
        self.file.truncate(4096)
        self.page = mmap.mmap(self.file.fileno(), 4096)
        self.path = self.file.name

    def fault(self, kind):
        struct.pack_into("<I", self.page, 0, kind)

    def taken(self):
        return struct.unpack_from("<I", self.page, 0)[0] == 0

    def counters(self):
        n_faults, = struct.unpack_from("<I", self.page, 4)
        commands, macs, contexts, refused, up, down = struct.unpack_from("<6Q", self.page, 8)
        return {"faults": n_faults, "commands": commands, "macs": macs, "contexts": contexts, "refused": refused,
                "up": up, "down": down}

    def absent(self, seconds):
        """From now on nothing can be opened, for so long."""
        struct.pack_into("<Q", self.page, 56, time.monotonic_ns() + int(seconds * 1e9))
