"""See machine.py."""
import contextlib

from aie.machine import Machine


class Context:
    @property
    def module(self):
        machine = Machine.now
        machine.check_tiles()
        return "\n".join(machine.lines + [f"aie.runtime_sequence {machine.sequence_types}"])


@contextlib.contextmanager
def mlir_mod_ctx():
    Machine()
    yield Context()
