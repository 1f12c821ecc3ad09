"""What stands for mlir-aie's Python bindings in tests: it records a design and can run it, instead of writing MLIR.

Only what npu-worker/programs/design.py uses is here, as mlir-aie's programming guide describes it. It holds a design to
the hardware's rules as far as these are public: channels and memory of a tile, descriptors, sizes and strides of a
shim tile's DMA, and that every word that is sent is taken. Broken rules raise Wrong. It is no model of the hardware: it
knows no time and no routes."""
import sys

import numpy as np

TILE_BYTES, CHANNELS, DESCRIPTORS, QUEUE = 64 << 10, 2, 16, 4
MAX_INNER, MAX_OUTER, MAX_STRIDE = 1023, 64, 1 << 20
MAX_TILE_SIZE = 255  # of a dimension of a compute tile's DMA


class Wrong(Exception):
    pass


def tile_memory(n):
    """Words of a tile, aligned as its buffers are."""
    raw = np.zeros(4 * n + 64, np.uint8)
    first = -raw.ctypes.data % 64
    return raw[first:first + 4 * n].view(np.int32)


def check(ok, text):
    if not ok:
        raise Wrong(text)


class Machine:
    """A design, from its recording to its run."""
    now = None

    def __init__(self):
        self.tiles, self.fifos, self.cores, self.functions, self.lines = {}, {}, [], {}, []
        self.buffers, self.sequence, self.sequence_types = [], None, None
        self.transfers, self.waited = [], set()
        self.library = None
        Machine.now = self

    def say(self, text):
        self.lines.append(text)

    # ---- rules ----

    def check_tiles(self):
        """Memory and DMA channels of each tile."""
        for t in self.tiles.values():
            check(len(t.sends) <= CHANNELS, f"tile {t.place} sends {len(t.sends)} streams")
            check(len(t.receives) <= CHANNELS, f"tile {t.place} receives {len(t.receives)} streams")
            if t.row > 1:
                check(t.bytes <= TILE_BYTES, f"tile {t.place} needs {t.bytes} bytes")

    # ---- running ----

    def run(self, memory, library):
        """memory: int32 arrays, one for each argument. library: the cores' functions, as ctypes has them."""
        check(self.sequence is not None, "there is no runtime sequence")
        self.library, self.transfers, self.waited = library, [], set()
        handles = []
        for words, ty in zip(memory, self.sequence_types, strict=True):
            check(len(words) == ty.__args__[0][0], f"an argument has {len(words)} words, not {ty.__args__[0][0]}")
            handles.append(HostMemory(words))
        self.sequence(*handles)
        self.check_descriptors()
        for t in self.transfers:
            if t.fifo.producer.row == 0:
                t.fifo.fill(t.gather())
        for where, body in self.cores:
            where.core_runs = True
            body()
            where.core_runs = False
        for t in self.transfers:
            if t.fifo.producer.row != 0:
                t.scatter(t.fifo.sent())
        for fifo in self.fifos.values():
            fifo.check_empty()
        return handles

    def check_descriptors(self):
        seen, queued = set(), {}
        for t in self.transfers:
            shim = t.fifo.producer if t.fifo.producer.row == 0 else t.fifo.consumers[0]
            check(t.bd < DESCRIPTORS, f"{t.fifo.name}: descriptor {t.bd}")
            check((shim.place, t.bd) not in seen, f"descriptor {t.bd} of tile {shim.place} is used twice")
            seen.add((shim.place, t.bd))
            queued[t.fifo.name] = queued.get(t.fifo.name, 0) + 1
            check(queued[t.fifo.name] <= QUEUE, f"{t.fifo.name}: more than {QUEUE} transfers wait for their channel")
        for t in self.transfers:
            if t.fifo.producer.row != 0:
                check(t.fifo.name in self.waited, f"nobody waits for {t.fifo.name}")


class Tile:
    def __init__(self, column, row):
        self.place, self.row = (column, row), row
        self.sends, self.receives, self.bytes = [], [], 0
        self.has_core = self.core_runs = False


class HostMemory:
    def __init__(self, words):
        self.words, self.reads, self.writes = words, np.zeros(len(words), np.uint16), np.zeros(len(words), np.uint16)


class Transfer:
    def __init__(self, fifo, bd, memory, offset, sizes, strides):
        self.fifo, self.bd, self.memory = fifo, bd, memory
        self.offset, self.sizes, self.strides = offset, sizes, strides
        check(1 <= sizes[0] <= MAX_OUTER, f"{fifo.name}: outermost size {sizes[0]}")
        check(all(1 <= n <= MAX_INNER for n in sizes[2:]), f"{fifo.name}: sizes {sizes}")
        check(all(n == 1 or 0 <= s <= MAX_STRIDE for n, s in zip(sizes, strides)), f"{fifo.name}: strides {strides}")
        check(all(n == 1 or s > 0 for n, s in zip(sizes[1:], strides[1:])), f"{fifo.name}: strides {strides}")
        end = offset + sum((n - 1) * s for n, s in zip(sizes, strides)) + 1
        check(end <= len(memory.words), f"{fifo.name}: ends {end - len(memory.words)} words behind its memory")

    def view(self, array):
        size = array.itemsize
        return np.lib.stride_tricks.as_strided(array[self.offset:], self.sizes, [s * size for s in self.strides])

    def gather(self):
        words = self.view(self.memory.words).reshape(-1).copy()
        outer = self.strides[0] == 0 and self.sizes[0] > 1
        reads = self.view(self.memory.reads)
        if outer:  # the same words again
            reads[0] += self.sizes[0]
        else:
            reads += 1
        return words

    def scatter(self, words):
        check(len(words) == np.prod(self.sizes), f"{self.fifo.name}: {len(words)} words came for {self.sizes}")
        self.view(self.memory.words)[...] = words.reshape(self.sizes)
        self.view(self.memory.writes)[...] += 1


class Fifo:
    def __init__(self, name, producer, consumers, depth, ty, to_stream, from_stream):
        self.name, self.producer, self.depth = name, producer, depth
        self.consumers = consumers if isinstance(consumers, list) else [consumers]
        self.words = ty.__args__[0][0]
        check(not to_stream, f"{name}: dimensions to the stream are not known here")
        self.from_stream = from_stream or [[] for _ in self.consumers]
        check(len(self.from_stream) == len(self.consumers), f"{name}: {len(self.from_stream)} lists of dimensions for "
                                                             f"{len(self.consumers)} consumers")
        for dims in self.from_stream:
            check(len(dims) <= 3 and all(n <= MAX_TILE_SIZE for n, _ in dims), f"{name}: dimensions {dims}")
            check(not dims or np.prod([n for n, _ in dims]) == self.words, f"{name}: dimensions {dims} of {self.words}")
        machine = Machine.now
        check(name not in machine.fifos, f"two FIFOs are named {name}")
        machine.fifos[name] = self
        producer.sends.append(name)
        for tile in self.consumers:
            tile.receives.append(name)
        for tile in [producer] + self.consumers:
            if tile.row > 1:
                tile.bytes += 4 * depth * self.words
        self.queues, self.held = {tile.place: [] for tile in self.consumers}, {}
        self.out, self.made = [], []
        machine.say(f"fifo {name} {producer.place} {[t.place for t in self.consumers]} {depth} {self.words} "
                    f"{self.from_stream}")

    def fill(self, words):
        check(len(words) % self.words == 0, f"{self.name}: {len(words)} words are no number of objects of {self.words}")
        for tile, dims in zip(self.consumers, self.from_stream):
            for part in words.reshape(-1, self.words):
                got = tile_memory(self.words)
                got[:] = part
                if dims:
                    at = sum(np.arange(n).reshape([-1 if j == i else 1 for j in range(len(dims))]) * s
                             for i, (n, s) in enumerate(dims))
                    check(len(np.unique(at)) == self.words, f"{self.name}: dimensions {dims} miss a place")
                    got[at.reshape(-1)] = part
                self.queues[tile.place].append(got)

    def at(self):
        running = [tile for tile in [self.producer] + self.consumers if tile.core_runs]
        check(len(running) == 1, f"{self.name}: acquired by a core that is not at its end")
        return running[0].place

    def acquire(self, port, n):
        check(n == 1, "one object at a time is known here")
        place = self.at()
        held = self.held.setdefault(place, [])
        check(len(held) < self.depth, f"{self.name}: {len(held) + 1} objects held of {self.depth}")
        if port.name == "Produce":
            check(place == self.producer.place, f"{self.name}: {place} produces")
            held.append(tile_memory(self.words))
        else:
            check(self.queues.get(place), f"{self.name}: the core at {place} waits for words that nobody sends")
            held.append(self.queues[place].pop(0))
        return held[-1]

    def release(self, port, n):
        held = self.held.get(self.at(), [])
        check(n == 1 and held, f"{self.name}: released without being held")
        gone = held.pop(0)
        if port.name == "Produce":
            self.out.append(gone)

    def sent(self):
        words = np.concatenate(self.out) if self.out else np.zeros(0, np.int32)
        self.out = []
        return words

    def check_empty(self):
        left = sum(map(len, self.queues.values())) + len(self.out) + sum(map(len, self.held.values()))
        check(left == 0, f"{self.name}: {left} objects are left")


class Function:
    def __init__(self, name, inputs, link_with):
        self.name, self.words = name, [ty.__args__[0][0] for ty in inputs]
        Machine.now.functions[name] = self
        Machine.now.say(f"function {name} {self.words} {link_with}")

    def __call__(self, *args):
        arrays = [getattr(a, "words", a) for a in args]
        check([len(a) for a in arrays] == self.words, f"{self.name} is called with {[len(a) for a in arrays]} words, "
                                                      f"declared with {self.words}")
        if Machine.now.library is not None:
            getattr(Machine.now.library, self.name)(*[a.ctypes.data for a in arrays])


class Buffer:
    def __init__(self, tile, ty, name, is_parameter):
        self.words = tile_memory(ty.__args__[0][0])
        self.tile, self.is_parameter = tile, is_parameter
        tile.bytes += self.words.nbytes
        Machine.now.buffers.append(self)
        Machine.now.say(f"buffer {name} {tile.place} {len(self.words)}")

    def __getitem__(self, i):
        check(self.tile.core_runs, "a buffer is read by a core that is not its own")
        return int(self.words[i])

    def __setitem__(self, i, value):
        check(self.is_parameter and not self.tile.core_runs, "a buffer that is no parameter is written by instructions")
        self.words[i] = value


class Lock:
    def __init__(self, tile, value):
        self.tile, self.value = tile, value
        Machine.now.say(f"lock {tile.place} {value}")


def forever(n):
    """A core's endless loop is run once for each run of the instructions."""
    return range(1) if n == sys.maxsize else range(n)
