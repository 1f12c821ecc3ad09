"""See machine.py."""
from aie.machine import Machine, Transfer, check


def dma_wait(*fifos):
    for fifo in fifos:
        check(any(t.fifo is fifo and t.token for t in Machine.now.transfers), f"{fifo.name} gives no token to wait for")
        Machine.now.waited.add(fifo.name)


def npu_dma_memcpy_nd(fifo, bd_id, mem, offsets, sizes, strides, issue_token=None):
    check(offsets[:3] == [0, 0, 0] and len(sizes) == len(strides) == 4, f"{fifo.name}: {offsets} {sizes} {strides}")
    t = Transfer(fifo, bd_id, mem, offsets[3], sizes, strides)
    t.token = issue_token
    Machine.now.transfers.append(t)


def runtime_sequence(*types):
    def keep(f):
        Machine.now.sequence, Machine.now.sequence_types = f, types
    return keep


def set_lock_value(lock, value):
    lock.value = value
