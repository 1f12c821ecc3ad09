"""Where the numbers of a product C [M][N] = A [M][K] * B [K][N] lie, which core computes what, and in which order the
array's DMAs move it. Plain arithmetic: needs nothing that is not in Python.

A core has its own weights and its own outputs. It takes 64 outputs at a time over all of K, in pieces of 128. All
cores read the same rows, 4 at a time, from one stream. So each of the array's ports to memory that can carry weights
feeds one core, and a core's arithmetic keeps up with its port: at 64 rows it needs as many cycles as the weights, at 4
rows far fewer. A second core on a port would only share what it brings.

All lengths here are in words of 32 bits, which is what DMAs count in. How a buffer is laid out is the manifest's
business (npu-worker/manifest/manifest.h)."""
from dataclasses import dataclass

ROWS, OUTPUTS, PIECE = 4, 64, 128  # of a step of a core: rows of A, outputs, and inputs
MAX_ROWS = 64  # whose sums a core holds
# A shim tile's DMA: sizes of the two inner dimensions, of the outermost one, and strides.
MAX_INNER, MAX_OUTER, MAX_STRIDE = 1023, 64, 1 << 20
TILE_BYTES, STACK_BYTES = 64 << 10, 4 << 10
CORE_ROW = 2  # the lowest row of cores; 0 is shim tiles, 1 memory tiles


@dataclass(frozen=True)
class Device:
    name: str
    generation: str  # as manifests have it
    columns: int
    target: str  # of the compiler for cores


DEVICES = {d.name: d for d in (Device("npu1", "phoenix", 4, "aie2"), Device("npu2", "strix", 8, "aie2p"))}


@dataclass(frozen=True)
class Kind:
    """A type of weights and rows."""
    name: str
    order: str  # of sums; a name of its own for each way to add
    b: str  # layout of the weights
    define: str  # for kernels.cc
    c: str  # numpy's name of the sums
    mmul_n: int  # outputs of one multiplication of matrices

    def row_words(self, k):
        if self.name == "int4a16":
            return k // PIECE * self.a_words()
        return k // (2 if self.name == "bf16" else 4)

    def a_words(self):
        """A row's part of a piece: numbers; of int4a16 also 4 scales, and two halves of each number."""
        return {"bf16": PIECE // 2, "int8": PIECE // 4, "int4a16": 4 + 2 * PIECE // 4}[self.name]

    def b_words(self):
        """A core's weights of a piece."""
        return {"bf16": PIECE * OUTPUTS // 2, "int8": PIECE * OUTPUTS // 4,
                "int4a16": PIECE // 32 * (OUTPUTS // 32) * BLOCK_WORDS}[self.name]

    def weights_words(self, k, n):
        return self.b_words() * (k // PIECE) * (n // OUTPUTS)


BLOCK_WORDS = 144  # int4: 32 x 32 weights and their 32 scales


def kind(name, device):
    """Of a name and a device's name. Phoenix multiplies matrices of bf16 in 4 x 8 x 4."""
    if name == "bf16":
        n = 4 if device == "npu1" else 8
        return Kind("bf16", f"tandem-4x8x{n}", f"tiles 8x{n}", "TANDEM_BF16", "float32", n)
    if name == "int8":
        return Kind("int8", "exact", "tiles 8x8", "TANDEM_INT8", "int32", 8)
    if name == "int4":
        return Kind("int4a16", "blocks32-aie", "blocks 16x8", "TANDEM_INT4A16", "float32", 8)
    raise ValueError(f"there is no type {name}")


@dataclass(frozen=True)
class Transfer:
    """One DMA between memory and the array: up to four loops, the outermost first."""
    offset: int
    sizes: tuple
    strides: tuple


@dataclass(frozen=True)
class Core:
    index: int
    column: int
    row: int


def cores(device):
    """Two in a column, one for each of a shim tile's ports; the rows of A take one port of the first column."""
    at = [(column, CORE_ROW + i) for column in range(device.columns) for i in range(1 if column == 0 else 2)]
    return [Core(i, *place) for i, place in enumerate(at)]


@dataclass(frozen=True)
class Plan:
    device: Device
    kind: Kind
    m: int
    k: int
    n: int

    def __post_init__(self):
        fits = 0 < self.m <= MAX_ROWS and self.k > 0 and self.n > 0
        if not fits or self.m % ROWS or self.k % PIECE or self.n % OUTPUTS:
            raise ValueError(f"{self.m}x{self.k}x{self.n}: M must be a multiple of {ROWS} up to {MAX_ROWS}, K of "
                             f"{PIECE}, N of {OUTPUTS}")

    @property
    def groups(self):
        return self.m // ROWS

    @property
    def pieces(self):
        return self.k // PIECE

    def share(self, core):
        """First block of 64 outputs of a core, and how many it has. The shares differ by one at most."""
        blocks, n = self.n // OUTPUTS, len(cores(self.device))
        first = core.index * (blocks // n) + min(core.index, blocks % n)
        return first, blocks // n + (core.index < blocks % n)

    @property
    def rounds(self):
        """Times that all rows go past the cores: as often as the busiest core needs them."""
        return max(self.share(core)[1] for core in cores(self.device))

    def a(self):
        words = self.kind.a_words()
        return Transfer(0, (self.rounds, self.pieces, self.m, words), (0, words, self.kind.row_words(self.k), 1))

    def b(self, core):
        """None: the core has no outputs."""
        first, count = self.share(core)
        if count == 0:
            return None
        if self.kind.name == "int4a16":
            group = self.k // 32 * BLOCK_WORDS  # 32 outputs over all of K
            return Transfer(first * 2 * group, (count, self.pieces, 2, PIECE // 32 * BLOCK_WORDS),
                            (2 * group, PIECE // 32 * BLOCK_WORDS, group, 1))
        per_word = 2 if self.kind.name == "bf16" else 4
        strip, line = 8 * OUTPUTS // per_word, 8 * self.n // per_word  # 8 inputs of a core's outputs; of all
        return Transfer(first * strip, (count, self.pieces, PIECE // 8, strip), (strip, PIECE // 8 * line, line, 1))

    def c(self, core):
        first, count = self.share(core)
        if count == 0:
            return None
        return Transfer(first * OUTPUTS, (1, count, self.m, OUTPUTS), (0, OUTPUTS, self.n, 1))

    def sizes_words(self):
        """Of the three buffers."""
        return (self.m * self.kind.row_words(self.k), self.kind.weights_words(self.k, self.n), self.m * self.n)


def tile_bytes(kind_):
    """Of a core's memory: rows, weights and results twice each, the sums, the counts, the stack."""
    objects = ROWS * kind_.a_words() + kind_.b_words() + ROWS * OUTPUTS
    return 4 * (2 * objects + MAX_ROWS * OUTPUTS + 5) + STACK_BYTES


def check_transfer(t, what):
    """A DMA that the hardware cannot do is refused here, with its name."""
    if not 1 <= t.sizes[0] <= MAX_OUTER:
        raise ValueError(f"{what}: its outermost loop runs {t.sizes[0]} times, {MAX_OUTER} are possible")
    for size in t.sizes[2:]:
        if not 1 <= size <= MAX_INNER:
            raise ValueError(f"{what}: a loop of {size}, {MAX_INNER} are possible")
    for size, stride in zip(t.sizes, t.strides):
        if size > 1 and stride > MAX_STRIDE:
            raise ValueError(f"{what}: a stride of {stride} words, {MAX_STRIDE} are possible")
    if t.strides[3] != 1:
        raise ValueError(f"{what}: its innermost stride is {t.strides[3]}")
