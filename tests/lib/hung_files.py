"""A file system that hangs: a FUSE server of some equal files, in a process of its own, which stops answering what it
is told to. It speaks the kernel's protocol itself (include/uapi/linux/fuse.h, 7.31), so no libfuse is needed; mounting
needs root and /dev/fuse. Whoever closes a file whose flush hangs waits until the server's process has gone."""
import ctypes
import os
import signal
import struct
import sys
import time

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
OPENDIR, RELEASEDIR, ACCESS, INTERRUPT, BATCH_FORGET = 27, 29, 34, 36, 42
NAMES = {"open": OPEN, "read": READ, "statfs": STATFS, "release": RELEASE, "flush": FLUSH, "getattr": GETATTR}
MNT_DETACH = 2


def available():
    return os.getuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)


class HungFiles:
    """`paths` are files with the contents of `source`. After hang(...) these operations are never answered, except to
    the processes that are spared: a server sees who asks."""

    def __init__(self, folder, source, uid, n=1, spared=()):
        self.spared = set(spared)
        self.folder, self.names = folder, [f"model-{i}.gguf".encode() for i in range(n)]
        self.paths = [os.path.join(folder, name.decode()) for name in self.names]
        self.path = self.paths[0]
        self.data = open(source, "rb").read()
        os.makedirs(folder, exist_ok=True)
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={device},rootmode=40000,user_id={uid},group_id={uid},allow_other".encode()
        self.libc = ctypes.CDLL(None, use_errno=True)
        if self.libc.mount(b"hung", folder.encode(), b"fuse.hung", 6, options) < 0:
            raise OSError(ctypes.get_errno(), "mount " + folder)
        orders, self.orders = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.orders)
                os.set_blocking(orders, False)
                self.serve(device, orders)
            finally:
                os._exit(0)
        os.close(orders)
        os.close(device)

    def hang(self, *names):
        os.write(self.orders, bytes(NAMES[n] for n in names))
        time.sleep(0.05)

    def end(self):
        """The server goes: all that hangs fails at once."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.libc.umount2(self.folder.encode(), MNT_DETACH)
            os.close(self.orders)
            self.pid = 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.end()

    # -- the server

    def attributes(self, node):
        size, mode = (0, 0o40755) if node == 1 else (len(self.data), 0o100644)
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, 1, 1, 1, 1, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def answer(self, op, node, body):
        if op == INIT:
            return 0, struct.pack("<IIIIHHIIHHI", 7, 31, 0, 0, 12, 10, 1 << 16, 1, 1, 0, 0).ljust(64, b"\0")
        if op == LOOKUP:
            if body.rstrip(b"\0") not in self.names:
                return -2, b""
            node = 2 + self.names.index(body.rstrip(b"\0"))
            return 0, struct.pack("<QQQQII", node, 0, 1000, 1000, 0, 0) + self.attributes(node)
        if op == GETATTR:
            return 0, struct.pack("<QII", 1000, 0, 0) + self.attributes(node)
        if op in (OPEN, OPENDIR):
            return 0, struct.pack("<QII", 1, 0, 0)
        if op == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return 0, self.data[offset:offset + size]
        if op == STATFS:
            return 0, struct.pack("<QQQQQIIII", 1, 1, 1, 1, 1, 4096, 255, 4096, 0).ljust(80, b"\0")
        return (0, b"") if op in (RELEASE, RELEASEDIR, FLUSH, ACCESS) else (-38, b"")

    def serve(self, device, orders):
        hung = set()
        while True:
            request = os.read(device, 1 << 20)
            try:
                hung |= set(os.read(orders, 100))
            except BlockingIOError:
                pass
            _, op, unique, node, _, _, pid = struct.unpack_from("<IIQQIII", request)
            if op in (FORGET, BATCH_FORGET, INTERRUPT) or (op in hung and pid not in self.spared):
                continue
            error, out = self.answer(op, node, request[40:])
            try:
                os.write(device, struct.pack("<IiQ", 16 + len(out), error, unique) + out)
            except OSError as e:
                print("fuse:", op, e, file=sys.stderr)
