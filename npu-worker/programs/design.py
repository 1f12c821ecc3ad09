"""The array's configuration and a program's instructions, in the words of mlir-aie's Python bindings (its programming
guide: sections 2a, 2c and 2d, runtime parameters in RuntimeTasks). layout.py says what goes where and why.

Everything but the last function is the same for all programs of a set: one xclbin serves them, and only instructions
differ. How often a core loops is told to it by the instructions, as four numbers in its memory; a lock says when they
are there."""
import sys

import numpy as np
from aie.dialects.aie import (AIEDevice, LockAction, ObjectFifoPort, buffer, core, device, external_func, lock,
                              object_fifo, tile, use_lock)
from aie.dialects.aiex import dma_wait, npu_dma_memcpy_nd, runtime_sequence, set_lock_value
from aie.extras.context import mlir_mod_ctx
from aie.iron.controlflow import range_

import layout

DEPTH = 2  # a DMA fills or empties one while the core has the other
BD_A, BD_B, BD_C = 0, 2, 4  # descriptors of a shim tile, + 1 for a column's second core


def words(n):
    return np.ndarray[(n,), np.dtype[np.int32]]


def functions(kind, object_file):
    """Of kernels.cc."""
    a, b, c = words(layout.ROWS * kind.a_words()), words(kind.b_words()), words(layout.ROWS * layout.OUTPUTS)
    sums, at = words(layout.MAX_ROWS * layout.OUTPUTS), words(1)
    inputs = {"tandem_clear": [sums], "tandem_first": [at], "tandem_multiply": [a, b, sums, at],
              "tandem_take": [sums, c, at]}
    return {name: external_func(name, inputs=types, link_with=object_file) for name, types in inputs.items()}


def a_from_stream(kind):
    """Rows arrive one after the other and are wanted as [piece / 8][4 rows][8]. None: as they come."""
    if kind.name == "int4a16":
        return []
    eight = 8 // (2 if kind.name == "bf16" else 4)
    return [(layout.ROWS, eight), (layout.PIECE // 8, layout.ROWS * eight), (eight, 1)]


class Fifos:
    def __init__(self, device_, kind, tiles):
        places = layout.cores(device_)
        shim = [tiles[place.column, 0] for place in places]
        at = [tiles[place.column, place.row] for place in places]
        self.a = object_fifo("rows", tiles[0, 0], at, DEPTH, words(layout.ROWS * kind.a_words()), [],
                             [a_from_stream(kind)] * len(at))
        self.b = [object_fifo(f"weights{p.index}", shim[p.index], at[p.index], DEPTH, words(kind.b_words()))
                  for p in places]
        self.c = [object_fifo(f"results{p.index}", at[p.index], shim[p.index], DEPTH,
                              words(layout.ROWS * layout.OUTPUTS)) for p in places]


def make_core(where, index, fifos, do):
    """One core's loop. Returns its counts and the lock that says that they are set."""
    counts = buffer(where, words(4), name=f"counts{index}", use_write_rtp=True)
    sums = buffer(where, words(layout.MAX_ROWS * layout.OUTPUTS), name=f"sums{index}")
    at = buffer(where, words(1), name=f"at{index}")
    go = lock(where, init=0)
    rows, weights, results = fifos.a, fifos.b[index], fifos.c[index]

    # The turns of a loop are not known ahead, so which buffer of two comes next is counted while it runs.
    @core(where, stack_size=layout.STACK_BYTES, dynamic_objfifo_lowering=True)
    def body():
        for _ in range_(sys.maxsize):
            use_lock(go, LockAction.Acquire, value=1)
            groups, pieces, mine, idle = counts[0], counts[1], counts[2], counts[3]
            for _ in range_(mine):
                do["tandem_clear"](sums)
                for _ in range_(pieces):
                    b = weights.acquire(ObjectFifoPort.Consume, 1)
                    do["tandem_first"](at)
                    for _ in range_(groups):
                        a = rows.acquire(ObjectFifoPort.Consume, 1)
                        do["tandem_multiply"](a, b, sums, at)
                        rows.release(ObjectFifoPort.Consume, 1)
                    weights.release(ObjectFifoPort.Consume, 1)
                do["tandem_first"](at)
                for _ in range_(groups):
                    c = results.acquire(ObjectFifoPort.Produce, 1)
                    do["tandem_take"](sums, c, at)
                    results.release(ObjectFifoPort.Produce, 1)
            # Rows go to all cores: those with fewer outputs let the rest go past.
            for _ in range_(idle):
                for _ in range_(pieces):
                    for _ in range_(groups):
                        rows.acquire(ObjectFifoPort.Consume, 1)
                        rows.release(ObjectFifoPort.Consume, 1)

    return counts, go


def start(fifo, bd, memory, t, **more):
    npu_dma_memcpy_nd(fifo, bd, memory, offsets=[0, 0, 0, t.offset], sizes=list(t.sizes), strides=list(t.strides),
                      **more)


def run(plan, fifos, made, a, b, c):
    """A program: counts to the cores, one DMA for each port, and the wait for all results."""
    places = layout.cores(plan.device)
    for place, (counts, go) in zip(places, made):
        mine = plan.share(place)[1]
        for i, value in enumerate((plan.groups, plan.pieces, mine, plan.rounds - mine)):
            counts[i] = value
        set_lock_value(go, 1)
    busy = [place for place in places if plan.share(place)[1] > 0]
    for place in busy:
        start(fifos.c[place.index], BD_C + place.row - layout.CORE_ROW, c, plan.c(place), issue_token=True)
    for place in busy:
        start(fifos.b[place.index], BD_B + place.row - layout.CORE_ROW, b, plan.b(place))
    start(fifos.a, BD_A, a, plan.a())
    dma_wait(*[fifos.c[place.index] for place in busy])


def module(plan, object_file):
    """The design's text for aiecc."""
    with mlir_mod_ctx() as context:
        @device(getattr(AIEDevice, plan.device.name))
        def whole():
            do = functions(plan.kind, object_file)
            places = layout.cores(plan.device)
            at = {(place.column, row) for place in places for row in (0, place.row)}
            tiles = {where: tile(*where) for where in sorted(at)}
            fifos = Fifos(plan.device, plan.kind, tiles)
            made = [make_core(tiles[p.column, p.row], p.index, fifos, do) for p in places]

            @runtime_sequence(*[words(n) for n in plan.sizes_words()])
            def sequence(a, b, c):
                run(plan, fifos, made, a, b, c)

        return str(context.module)
