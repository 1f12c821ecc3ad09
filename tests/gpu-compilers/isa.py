"""What compile-kernels wrote, read: a driver's figures of a kernel, and the inner loop of its machine code.

An inner loop is what lies between a label and a branch back to it, with integer dot products or matrix operations in it
and no smaller loop that has them. Both sides of a branch inside count: lanes that part ways run both. Of a kernel for
prompts, where a subgroup as a whole takes one of two ways with matrix operations, the way with more of them counts.
"""
import collections
import os
import re

LABEL = re.compile(r"^(BB\d+):")
WHOLE_BRANCH = re.compile(r"^\s*s_cbranch_scc[01]\s+(BB\d+)")
LEAVE = re.compile(r"^\s*s_branch\s+(BB\d+)")
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

# Intel's: one line is an instruction for a subgroup or a part of it, in parentheses for how many lanes. Which memory a
# message goes to stands in the line below.
INTEL_LINE = re.compile(r"^(?:\([^)]*\)\s*)?([a-z][a-z0-9]*)[a-z0-9.]*\((\d+)\)")
INTEL_LABEL = re.compile(r"^(LABEL\d+):")
INTEL_BACK = re.compile(r"^(?:\([^)]*\)\s*)?while\(\d+\)\s+JIP:\s+(LABEL\d+)")
INTEL_MESSAGE = re.compile(r"^\s+(\w+) MsgDesc: \( (\w+)")
INTEL_ARRIVED = re.compile(r"\$\d+\.dst")
INTEL_NO_VECTOR = ("if", "else", "endif", "while", "break", "cont", "halt", "sync", "nop", "send", "sends")

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


def usual(lines):
    """The lines without the side that has fewer matrix operations, of branches on scc, which a subgroup takes as a
    whole. The innermost one first; one to a label that others branch to as well stays as it is."""
    where = {label: i for i, (label, _) in enumerate(lines) if label}
    to = [BRANCH.match(word) for _, word in lines]
    n_to = collections.Counter(match[1] for match in to if match)
    branches = []
    for i, (_, word) in enumerate(lines):
        middle = where.get(to[i][1], 0) if WHOLE_BRANCH.match(word) and n_to[to[i][1]] == 1 else 0
        leave = middle > i and LEAVE.match(lines[middle - 1][1])
        end = where.get(leave[1], 0) if leave else 0
        if end > middle:
            branches.append((end - i, (i + 1, middle - 1), (middle + 1, end)))
    dropped = set()
    for _, *sides in sorted(branches):
        units = [sum(1 for i in range(*side) if i not in dropped and UNITS.match(lines[i][1])) for side in sides]
        if all(units) and units[0] != units[1]:
            dropped.update(range(*sides[units.index(min(units))]))
    return [line for i, line in enumerate(lines) if i not in dropped]


def stage(text, n_units):
    """Of a kernel for matrix units: its inner loop as often as makes so many matrix operations, and once what the loop
    around it does besides."""
    lines = usual(instructions(text))
    work = sorted((span for span in spans(lines).items() if counted(lines, *span).units), key=lambda s: s[1] - s[0])
    if not work:
        return None
    inner = counted(lines, *work[0])
    if n_units % inner.units:
        raise SystemExit(f"an inner loop has {inner.units} matrix operations, of {n_units} between two barriers")
    around = counted(lines, *work[1]) if len(work) > 1 and inner.units < n_units else inner
    return Loop(*(n * (n_units // inner.units) + m - n for n, m in zip(inner, around)))


def intel_loop(text, lanes):
    """The inner loop with the most products of Intel's code, as Loop whose numbers are of instructions for 32 lanes.
    One for fewer than `lanes`, which a unit computes at once, takes as long as one for those."""
    where, best, lines = {}, None, text.splitlines()
    for i, line in enumerate(lines):
        label, back = INTEL_LABEL.match(line), INTEL_BACK.match(line)
        if label:
            where[label[1]] = i
        if not back or back[1] not in where:
            continue
        dots = vector = loads = lds = waits = 0
        for j in range(where[back[1]], i):
            word, message = INTEL_LINE.match(lines[j]), INTEL_MESSAGE.match(lines[j])
            if message:
                loads += message[1] == "ugm" and message[2] == "load"
                lds += message[1] == "slm"
            if word:
                part = max(int(word[2]), lanes) / LANES
                dots += part if word[1] == "dp4a" else 0
                vector += part if word[1] not in INTEL_NO_VECTOR else 0
                waits += bool(INTEL_ARRIVED.search(lines[j]))
        # loops end from the innermost one on: one around it has no products of its own
        if dots and (not best or dots > best.dots * 1.01):
            best = Loop(dots, 0, vector, loads, lds, waits)
    return best


class Kernel:
    """lanes: of Intel's GPUs, how many a unit computes at once."""
    def __init__(self, folder, fields, lanes=None):
        self.lanes = lanes
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
        """Of 32 bits, of a thread. Intel's driver counts 32 bytes of a subgroup."""
        live = self.figure("Max live registers")
        return -(-live * 8 // self.subgroup) if live else self.figure("VGPRs")

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

    def units_at_once(self):
        """Matrix operations of 16 by 16 by 16 between two barriers, of a kernel for prompts: its constants say how many
        tiles of rows and outputs a subgroup has, how many blocks lie in shared memory, and the parts of a row."""
        shape, parts = self.constants[2], self.constants[1]
        return (shape & 15) * (shape >> 4 & 15) * (shape >> 12 & 15) * 2 * parts

    def work(self):
        """What its loop does, and how often 1,024 products of bytes; None: no loop of products. Of a kernel for matrix
        units with what brings rows and weights into shared memory."""
        if self.shader.startswith("matmul-int8-any"):
            loop = stage(self.code, self.units_at_once())
            return loop and (loop, loop.units * 16 ** 3 / 1024)
        if self.lanes:
            loop = intel_loop(self.code, self.lanes)
            return loop and (loop, loop.dots / 8)
        loop = self.loop()
        return (loop, loop.dots * self.subgroup / LANES / 8) if loop and loop.dots else None

    def per_8(self):
        """{what: how often for 8 dot products of 32 lanes, in them}. cycles: in which a SIMD issues that."""
        work = self.work()
        if not work:
            return {}
        loop, n = work
        wide = self.subgroup / LANES  # a subgroup of 64 is issued in two passes
        if self.lanes:
            return {"vector": loop.vector / n, "units": 0, "loads": loop.loads * wide / n,
                    "shared": loop.lds * wide / n, "waits": loop.waits * wide / n,
                    "cycles": loop.vector * LANES / self.lanes / n}
        others = loop.vector - loop.units
        return {"vector": others * wide / n, "units": loop.units / n, "loads": loop.loads * wide / n,
                "shared": loop.lds * wide / n, "waits": loop.waits * wide / n,
                "cycles": (others * wide + loop.units * UNITS_CYCLES) / n}

    def vector_for_8(self):
        """Vector instructions, dot products included and matrix operations not, for 8 dot products; None: no loop."""
        return self.per_8().get("vector")


def read(folder, lanes=None):
    with open(os.path.join(folder, "kernels.tsv"), encoding="utf-8") as f:
        return [Kernel(folder, dict(field.split("=", 1) for field in line.rstrip("\n").split("\t")), lanes)
                for line in f]
