"""Processes that a test signals and lets stand still."""
import contextlib
import os
import signal
import time


def send_signal(pid, signo):
    """Signals one process. Status gives pid 0 for a worker that is being restarted, and kill(0) would signal this test
    and its runner."""
    if pid <= 0:
        raise AssertionError(f"a process to signal: {pid}")
    os.kill(pid, signo)


def state_of(pid):
    """The letter of /proc/PID/stat, "" when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def alive(pid):
    """Whether the process runs; a zombie does not."""
    return state_of(pid) not in ("", "Z", "X")


def let_go(pids):
    """Lets those of them that are still there go on."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            send_signal(pid, signal.SIGCONT)


def stand_still(pids):
    """Stops processes. Whether all of them stand still now: one that has ended does not, and kill() does not say so
    before somebody has waited for it."""
    try:
        for pid in pids:
            send_signal(pid, signal.SIGSTOP)
    except ProcessLookupError:
        return False
    while not all(state_of(pid) == "T" for pid in pids):
        if not all(alive(pid) for pid in pids):
            return False
        time.sleep(0.0005)
    return True
