"""`tandem chat` on a pseudo-terminal, with a daemon of tandem_test's."""
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios

from tandem_test import BIN, wait_for

MARKS_ON, MARKS_OFF = "\x1b[?2004h", "\x1b[?2004l"  # of pastes: on while a line is read
PATIENCE = 60  # seconds, until a test gives up that waits for text which has to come


class ChatTerminal:
    def __init__(self, d, *args, columns=200):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self.process = subprocess.Popen([os.path.join(BIN, "tandem"), "--socket", d.socket, "chat", *args], stdin=slave,
                                        stdout=slave, stderr=slave, start_new_session=True,
                                        env=dict(d.environment(), TERM="xterm", LC_ALL="C.UTF-8"))
        os.close(slave)
        self.output = ""

    def __enter__(self):
        self._until(lambda: self._waits(0, ""), "the prompt")
        return self

    def __exit__(self, *exit):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)

    def _read(self):
        """Takes what comes next. False: it has ended, or nothing came for a moment."""
        if not select.select([self.master], [], [], 0.05)[0]:
            return False
        try:
            piece = os.read(self.master, 65536)
        except OSError:
            piece = b""
        self.output += piece.decode("utf-8", "replace")
        return bool(piece)

    def _until(self, come, what):
        def came():
            while not come():
                if not self._read():
                    return False
            return True
        try:
            wait_for(came, what, PATIENCE, 0.005)
        except AssertionError as e:
            raise AssertionError(f"{e}; there is {self.output[-1500:]!r}") from e

    def _waits(self, begin, offered):
        """Whether it reads keys behind what came since: pastes are marked then, and keys come one by one. It shows the
        prompt and what it offers a moment before that, in which the terminal itself would obey Ctrl-U."""
        out = self.output[begin:]
        if MARKS_ON not in out or out.rfind(MARKS_OFF) > out.rfind(MARKS_ON) or (begin and MARKS_OFF not in out):
            return False
        shown = plain(out[out.rfind(MARKS_ON):]) == f"> {offered}".strip()
        return shown and not termios.tcgetattr(self.master)[3] & termios.ICANON

    def line(self, text, offered=""):
        """Types a line and waits for the next prompt, in which this text stands. Returns what came."""
        begin = len(self.output)
        os.write(self.master, text.encode() + b"\r")
        self._until(lambda: self._waits(begin, offered), f"a prompt behind {text!r} with {offered!r}")
        return plain(self.output[begin:])

    def keys_away(self):
        """Ctrl-U: what is offered leaves the line."""
        os.write(self.master, b"\x15")

    def leave(self):
        """Ctrl-U and Ctrl-D: whatever stands in the line. Its exit status."""
        os.write(self.master, b"\x15\x04")
        wait_for(lambda: not self._read() and self.process.poll() is not None, "its end", PATIENCE, 0.005)
        return self.process.returncode


def plain(output):
    """Without colours, and in one line."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;?]*[@-~]", "", output)).strip()
