"""See machine.py."""
import enum

from aie.machine import Buffer, Fifo, Function, Lock, Machine, Tile, check


class AIEDevice(enum.Enum):
    npu1 = 4
    npu2 = 8


class LockAction(enum.Enum):
    Acquire = 0
    Release = 1


class ObjectFifoPort(enum.Enum):
    Produce = 0
    Consume = 1


def device(which):
    Machine.now.say(f"device {which.name}")
    Machine.now.columns = which.value
    return lambda f: f()


def tile(column, row):
    machine = Machine.now
    check(0 <= column < machine.columns and 0 <= row < 6, f"there is no tile {column}, {row}")
    check((column, row) not in machine.tiles, f"tile {column}, {row} is declared twice")
    machine.tiles[column, row] = t = Tile(column, row)
    machine.say(f"tile {column} {row}")
    return t


def external_func(name, inputs, link_with):
    return Function(name, inputs, link_with)


def buffer(where, datatype, name, use_write_rtp=False):
    return Buffer(where, datatype, name, use_write_rtp)


def lock(where, init=0):
    return Lock(where, init)


def use_lock(which, action, value):
    check(action is LockAction.Acquire and which.tile.core_runs, "only a core acquires a lock here")
    check(which.value == value, f"a core waits for {value} in a lock that has {which.value}")
    which.value -= value


def object_fifo(name, producer, consumers, depth, datatype, to_stream=None, from_stream=None):
    return Fifo(name, producer, consumers, depth, datatype, to_stream, from_stream)


def core(where, stack_size, dynamic_objfifo_lowering):
    check(where.row > 1 and not where.has_core, f"no core can be at {where.place}")
    where.has_core = True
    where.bytes += stack_size
    Machine.now.say(f"core {where.place} {stack_size} {dynamic_objfifo_lowering}")

    def keep(body):
        Machine.now.cores.append((where, body))
        return body
    return keep
