"""What compile-kernels wrote, read: a driver's figures of a kernel, and the inner loop of its machine code.

An inner loop is what lies between a label and a branch back to it, with integer dot products or matrix operations in it
and no smaller loop that has them. Both sides of a branch inside count: lanes that part ways run both.
"""
import collections
import os
import re

LABEL = re.compile(r"^(BB\d+):")
BRANCH = re.compile(r"^\s*s_c?branch\w*\s+(BB\d+)")
DOT = re.compile(r"^v_dot4")
UNITS = re.compile(r"^v_(s?wmma)")
VECTOR = re.compile(r"^v_")
LOAD = re.compile(r"^(global|flat|buffer)_load")
LDS = re.compile(r"^ds_")
WAIT = re.compile(r"^s_wait(?!_idle|_event)")
SCRATCH = re.compile(r"^scratch_")
UNITS_CYCLES = 32  # in which a matrix operation of 16 by 16 by 16 is issued

LANES = 32  # products are counted for as many: 8 of four bytes each are 8 * 4 * 32 = 1,024

# Intel's: one line is an instruction for a subgroup, in parentheses how many lanes at once.
INTEL_LINE = re.compile(r"^(?:\([^)]*\)\s*)?([a-z][a-z0-9.]*)\((\d+)\)")

Loop = collections.namedtuple("Loop", "dots units vector loads lds waits")
PATTERNS = (DOT, UNITS, VECTOR, LOAD, LDS, WAIT)


def instructions(text):
    """[(label or None, instruction)] in their order."""
    lines, label = [], None
    for line in text.splitlines():
        at = LABEL.match(line)
        if at:
            label = at[1]
            lines.append((label, ""))
            continue
        word = line.split(";")[0].strip()
        if word:
            lines.append((None, word))
    return lines


def spans(lines):
    """{begin: end} of what lies between a label and the last branch back to it."""
    where = {label: i for i, (label, _) in enumerate(lines) if label}
    found = {}
    for i, (_, word) in enumerate(lines):
        to = BRANCH.match(word)
        if to and where.get(to[1], i) < i:  # of two that begin together the longer one is the whole loop
            found[where[to[1]]] = max(i, found.get(where[to[1]], 0))
    return found


def counted(lines, begin, end):
    return Loop(*(sum(1 for _, word in lines[begin:end] if pattern.match(word)) for pattern in PATTERNS))


def loops(text):
    """Inner loops of RDNA code as Loop, the one with the most products first."""
    lines = instructions(text)
    work = [span for span in spans(lines).items() if any(counted(lines, *span)[:2])]
    inner = [(b, e) for b, e in work if not any((b2, e2) != (b, e) and b <= b2 and e2 <= e for b2, e2 in work)]
    return sorted((counted(lines, b, e) for b, e in inner), key=lambda loop: -(loop.dots + loop.units))


def stage(text, times):
    """Of a kernel for matrix units: its inner loop so many times, and once what the loop around it does besides."""
    lines = instructions(text)
    work = sorted((span for span in spans(lines).items() if counted(lines, *span).units), key=lambda s: s[1] - s[0])
    if not work:
        return None
    inner = counted(lines, *work[0])
    around = counted(lines, *work[1]) if len(work) > 1 else inner
    return Loop(*(n * times + m - n for n, m in zip(inner, around)))


class Kernel:
    def __init__(self, folder, fields):
        self.name = fields.pop("kernel")
        self.executable = fields.pop("executable")
        self.subgroup = int(fields.pop("subgroup"))
        self.figures = fields
        parts = self.name.rsplit("-", 4)
        self.shader, self.constants = parts[0], tuple(int(c) for c in parts[1:])
        path = os.path.join(folder, f"{self.name}.{self.executable}.isa")
        self.code = ""
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="replace") as f:
                self.code = f.read()

    def figure(self, *names):
        """The first of these figures that the driver tells; 0: none."""
        for name in names:
            if name in self.figures:
                return int(float(self.figures[name]))
        return 0

    @property
    def registers(self):
        return self.figure("VGPRs", "Max live registers")

    @property
    def spills(self):
        return self.figure("Spilled VGPRs", "Spill Count") + self.figure("Spilled SGPRs", "Fill Count")

    @property
    def scratch(self):
        return self.figure("Scratch size", "Scratch Memory Size")

    @property
    def code_bytes(self):
        """Intel's driver counts instructions, which have 16 bytes each, or 8."""
        return self.figure("Code size") or self.figure("Instruction Count") * 16

    @property
    def lds(self):
        return self.figure("LDS size", "Workgroup Memory Size")

    def loop(self):
        found = loops(self.code)
        return found[0] if found else None

    def work(self):
        """What its loop does, and how often 1,024 products of bytes; None: no loop of products. Of a kernel for matrix
        units with what brings rows and weights into shared memory."""
        if self.shader.startswith("matmul-int8-any"):
            loop = stage(self.code, self.constants[2] >> 12 & 15)
            return loop and (loop, loop.units * 16 ** 3 / 1024)
        loop = self.loop()
        return (loop, loop.dots * self.subgroup / LANES / 8) if loop and loop.dots else None

    def per_8(self):
        """{what: how often for 8 dot products of 32 lanes, in them}. cycles: in which a SIMD issues that."""
        work = self.work()
        if not work:
            return {}
        loop, n = work
        wide = self.subgroup / LANES  # a subgroup of 64 is issued in two passes
        others = loop.vector - loop.units
        return {"vector": others * wide / n, "units": loop.units / n, "loads": loop.loads * wide / n,
                "shared": loop.lds * wide / n, "waits": loop.waits * wide / n,
                "cycles": (others * wide + loop.units * UNITS_CYCLES) / n}

    def vector_for_8(self):
        """Vector instructions, dot products included and matrix operations not, for 8 dot products; None: no loop."""
        return self.per_8().get("vector")


def read(folder):
    with open(os.path.join(folder, "kernels.tsv"), encoding="utf-8") as f:
        return [Kernel(folder, dict(field.split("=", 1) for field in line.rstrip("\n").split("\t"))) for line in f]
