"""See machine.py."""
from aie.machine import forever as range_  # noqa: F401
