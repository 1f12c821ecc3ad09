#!/usr/bin/python3
"""Records a command on a terminal of its own and draws it as an animated SVG: text, no pixels.

usage: tools/terminal-svg.py [--columns N] [--rows N] [--hold S] [--slower N] OUT.svg COMMAND…

It knows what the command `tandem` and a shell write: printing characters, \\n \\r \\b, bold, dim and plain, erasing to
the end of a line, saving and restoring the cursor, up and down. Anything else that begins with ESC is left out.
docs/tandem-story.svg was made with:

    tools/terminal-svg.py --slower 4 docs/tandem-story.svg tools/story-that-survives build/bin
"""
import os
import pty
import re
import select
import struct
import sys
import time
from fcntl import ioctl
from html import escape
from termios import TIOCSWINSZ

FRAME_S = 0.1  # of the picture: what comes within this time is one frame
CELL_W, CELL_H = 8.4, 17


class Screen:
    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.cells = [[(" ", "")] * columns for _ in range(rows)]
        self.x = self.y = 0
        self.style, self.saved = "", (0, 0)

    def line_feed(self):
        if self.y + 1 < self.rows:
            self.y += 1
        else:
            self.cells = self.cells[1:] + [[(" ", "")] * self.columns]

    def write(self, text):
        for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b.|.|\n", text, re.S):
            if token == "\n":
                self.line_feed()
            elif token == "\r":
                self.x = 0
            elif token == "\b":
                self.x = max(0, self.x - 1)
            elif token == "\x1b7":
                self.saved = self.x, self.y
            elif token == "\x1b8":
                self.x, self.y = self.saved
            elif token == "\x1bD":
                self.line_feed()
            elif token == "\x1b[A":
                self.y = max(0, self.y - 1)
            elif token == "\x1b[K":
                self.cells[self.y][self.x:] = [(" ", "")] * (self.columns - self.x)
            elif token.startswith("\x1b[") and token.endswith("m"):
                for n in token[2:-1].split(";"):
                    self.style = {"1": "b", "2": "d", "31": "r", "32": "g"}.get(n, "" if n in ("", "0", "22", "39") else
                                                                               self.style)
            elif token >= " " and not token.startswith("\x1b"):
                if self.x == self.columns:
                    self.x = 0
                    self.line_feed()
                self.cells[self.y][self.x] = token, self.style
                self.x += 1

    def lines(self):
        return ["".join(c for c, _ in row).rstrip() and tuple(row) for row in self.cells]


def record(command, columns, rows, slower):
    """Frames: (seconds since the beginning, lines), which begin with the first character."""
    pid, master = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm", COLUMNS=str(columns), LINES=str(rows))
        os.execvp(command[0], command)
    ioctl(master, TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    screen, frames, begin, rest = Screen(columns, rows), [], time.monotonic(), b""
    while True:
        if select.select([master], [], [], FRAME_S / slower)[0]:
            try:
                data = os.read(master, 65536)
            except OSError:
                break
            if not data:
                break
            rest += data
            if not frames:
                begin = time.monotonic()
            text = rest.decode(errors="ignore")
            rest = b"" if rest.decode(errors="replace") == text else rest[-3:]
            screen.write(text)
        at = (time.monotonic() - begin) * slower
        if not any(screen.lines()):
            continue
        if not frames or at - frames[-1][0] >= FRAME_S and screen.lines() != frames[-1][1]:
            frames.append((at, screen.lines()))
    frames.append(((time.monotonic() - begin) * slower, screen.lines()))
    os.waitpid(pid, 0)
    return frames


def row_svg(y, row):
    out, x = "", 0
    while x < len(row):
        n = x
        while n < len(row) and row[n][1] == row[x][1]:
            n += 1
        text = "".join(c for c, _ in row[x:n])
        if text.strip():
            kind = f' class="{row[x][1]}"' if row[x][1] else ""
            lead = len(text) - len(text.lstrip())
            out += (f'<text x="{10 + (x + lead) * CELL_W:.1f}" y="{28 + y * CELL_H}"{kind}>'
                    f"{escape(text.strip(), False)}</text>")
        x = n
    return out


def svg(frames, columns, rows, hold):
    """A line that stays as it is over several frames is drawn once, and shown for their time."""
    total = frames[-1][0] + hold
    ends = [t for t, _ in frames[1:]] + [total]
    body, names = "", {}
    for y in range(rows):
        i = 0
        while i < len(frames):
            row, k = frames[i][1][y], i
            while k + 1 < len(frames) and frames[k + 1][1][y] == row:
                k += 1
            if row:
                a, b = 100 * frames[i][0] / total, 100 * ends[k] / total
                name = names.setdefault((round(a, 2), round(b, 2)), f"k{len(names)}")
                body += f'<g style="animation-name:{name}">{row_svg(y, row)}</g>\n'
            i = k + 1
    keys = ""
    for (a, b), name in names.items():
        keys += f"@keyframes {name}{{"
        if a > 0:
            keys += "0%{visibility:hidden}"
        keys += f"{a}%{{visibility:visible}}"
        if b < 100:
            keys += f"{b}%{{visibility:hidden}}"
        keys += "}\n"
    width, height = 20 + columns * CELL_W, 24 + rows * CELL_H
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}" font-family="monospace" font-size="14">\n<style>\n'
            f"g{{animation-duration:{total:.2f}s;animation-timing-function:step-end;"
            "animation-iteration-count:infinite}\n"
            "text{fill:#ddd;white-space:pre}.d{fill:#888}.b{font-weight:bold}.r{fill:#f77}.g{fill:#7d7}\n"
            f"{keys}</style>\n"
            f'<rect width="100%" height="100%" rx="8" fill="#1c1c22"/>\n{body}</svg>\n')


def main():
    args, columns, rows, hold, slower = sys.argv[1:], 84, 24, 5.0, 1.0
    while args and args[0].startswith("--"):
        value = args[1]
        if args[0] == "--columns":
            columns = int(value)
        elif args[0] == "--rows":
            rows = int(value)
        elif args[0] == "--hold":
            hold = float(value)
        elif args[0] == "--slower":
            slower = float(value)
        args = args[2:]
    if len(args) < 2:
        sys.exit(__doc__)
    frames = record(args[1:], columns, rows, slower)
    with open(args[0], "w") as f:
        f.write(svg(frames, columns, rows, hold))
    print(f"{len(frames)} frames, {frames[-1][0]:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
