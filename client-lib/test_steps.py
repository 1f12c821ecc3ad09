"""Two ways to be at a program's side at each of its system calls: to stop it there (ptrace), and to have one fail
(seccomp). Linux on x86-64 and 64-bit ARM."""

import collections
import ctypes
import os
import platform
import signal
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long

_X86 = {"write": 1, "pread64": 17, "flock": 73, "fsync": 74, "ftruncate": 77, "fchmod": 91, "pwrite64": 18,
        "openat": 257, "newfstatat": 262, "unlinkat": 263, "linkat": 265, "symlinkat": 266, "readlink": 89,
        "readlinkat": 267, "renameat2": 316, "open": 2, "stat": 4, "lstat": 6, "fdatasync": 75, "mkdir": 83,
        "rename": 82, "unlink": 87, "symlink": 88, "close": 3}
_ARM = {"write": 64, "pread64": 67, "flock": 32, "fsync": 82, "ftruncate": 46, "fchmod": 52, "pwrite64": 68,
        "openat": 56, "newfstatat": 79, "unlinkat": 35, "linkat": 37, "symlinkat": 36, "readlinkat": 78,
        "renameat2": 276, "fdatasync": 83, "close": 57}
NUMBERS = {"x86_64": _X86, "aarch64": _ARM}.get(platform.machine())
O_TMPFILE_BIT = 0o20000000

# Before or behind the nth call of a name, from 1. How often a program waits and reads differs from run to run, so a
# stop is not counted among all calls.
Stop = collections.namedtuple("Stop", "name nth before")

_TRACEME, _CONT, _SYSCALL, _SETOPTIONS, _SYSCALL_INFO = 0, 7, 24, 0x4200, 0x420E
_TRACESYSGOOD, _TRACEEXEC, _EXITKILL = 1, 0x10, 0x100000


def _ptrace(request, pid, address=0, data=0):
    r = _libc.ptrace(request, pid, address, data)
    if r < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return r


class Stepped:
    """A program that runs from one stop to the next: before and after each call of its first thread."""

    def __init__(self, argv, env, output="/dev/null"):
        self.status, self._signal = None, 0
        self.pid = os.fork()
        if self.pid == 0:
            try:
                null, out = os.open("/dev/null", os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                for fd, at in ((null, 0), (out, 1), (out, 2)):
                    os.dup2(fd, at)
                # A sanitizer cannot look for leaks in a process that is traced.
                env = {**env, "ASAN_OPTIONS": (env.get("ASAN_OPTIONS", "") + ":detect_leaks=0").lstrip(":")}
                _libc.ptrace(_TRACEME, 0, 0, 0)
                os.kill(os.getpid(), signal.SIGSTOP)
                os.execve(argv[0], argv, env)
            finally:
                os._exit(99)
        os.waitpid(self.pid, 0)
        _ptrace(_SETOPTIONS, self.pid, 0, _TRACESYSGOOD | _TRACEEXEC | _EXITKILL)

    def step(self):
        """The number of the call at which it stopped, and whether that begins; None: it has ended."""
        while True:
            _ptrace(_SYSCALL, self.pid, 0, self._signal)
            self._signal = 0
            _, status = os.waitpid(self.pid, 0)
            if not os.WIFSTOPPED(status):
                self.status = os.waitstatus_to_exitcode(status)
                return None
            stopped_by = os.WSTOPSIG(status)
            if stopped_by == signal.SIGTRAP | 0x80:
                info = ctypes.create_string_buffer(88)
                _ptrace(_SYSCALL_INFO, self.pid, 88, ctypes.addressof(info))
                return (struct.unpack_from("<Q", info, 24)[0] if info.raw[0] == 1 else None), info.raw[0] == 1
            if stopped_by != signal.SIGTRAP:
                self._signal = stopped_by

    def step_to(self, stop):
        """On to a Stop. False: it ended before."""
        number, seen = NUMBERS[stop.name], 0
        while (step := self.step()) is not None:
            seen += step == (number, True)
            if seen == stop.nth:
                return stop.before or self.step() is not None
        return False

    def finish(self):
        while self.status is None and self.step() is not None:
            pass
        return self.status

    def kill(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            while os.WIFSTOPPED(status):
                _, status = os.waitpid(self.pid, 0)
            self.status = os.waitstatus_to_exitcode(status)


def stops_of(argv, env, names, since=None):
    """The Stops at the named calls, before and behind each, of one whole run, from the first call named since on; and
    its exit status."""
    name_of = {NUMBERS[n]: n for n in names if n in NUMBERS}
    p, stops, seen, begun = Stepped(argv, env), [], collections.Counter(), since is None
    while (step := p.step()) is not None:
        number, begins = step
        begun = begun or (begins and number == NUMBERS[since])
        name = name_of.get(number) if begins else None
        if name is not None:
            seen[name] += 1
            if begun:
                stops += [Stop(name, seen[name], True), Stop(name, seen[name], False)]
    return stops, p.status


def failing(*rules):
    """For preexec_fn: system calls that fail. A rule: (name, errno[, argument, mask]): only where the argument has one
    of the mask's low 32 bits."""
    program = b""

    def op(code, k, true=0, false=0):
        return struct.pack("<HBBI", code, true, false, k)

    for name, error, *where in rules:
        fail = op(0x06, 0x00050000 | error)
        body = op(0x20, 16 + 8 * where[0]) + op(0x45, where[1], 0, 1) + fail if where else fail
        program += op(0x20, 0) + op(0x15, NUMBERS[name], 0, len(body) // 8) + body
    program += op(0x06, 0x7FFF0000)

    def install():
        code = ctypes.create_string_buffer(program)
        head = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
        if _libc.prctl(38, 1, 0, 0, 0) != 0 or _libc.prctl(22, 2, ctypes.create_string_buffer(head), 0, 0) != 0:
            os._exit(98)

    return install
