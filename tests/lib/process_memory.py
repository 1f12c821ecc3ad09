"""What a process holds, from /proc: memory by kind of mapping, open files, threads.

A worker is not dumpable, so only root may read its smaps and list its fds. For other users this file takes what the
kernel tells everybody: the resident sizes in /proc/PID/status, and the number of open files as the size of
/proc/PID/fd. These figures do not say which shared mapping the pages belong to; shared segments are then counted by
tandemd (arena_bytes of its status).
"""
import os
import re

SHARED = "shared"  # the kind of shared pages whose mappings cannot be told apart


def status_field(pid, name):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(rf"^{name}:\s+(\d+)", f.read(), re.M).group(1))


def mappings(pid, files=True):
    """{kind: bytes of Pss}: by memfd name, by file name, or "anonymous". PermissionError where smaps is closed. Without
    `files`, pages of programs, libraries and models are left out: the kernel drops and reads them as it likes."""
    kinds, kind, counts = {}, "", True
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                fields = line.split(None, 5)
                path = fields[5].strip() if len(fields) > 5 else ""
                m = re.match(r"/memfd:([\w.-]+)", path)
                plain = "anonymous" if not path or path.startswith("[") else os.path.basename(path)
                kind = m.group(1) if m else plain
                counts = files or m or plain == "anonymous"
            elif line.startswith("Pss:") and counts:
                kinds[kind] = kinds.get(kind, 0) + (int(line.split()[1]) << 10)
    return kinds


def resident(pid):
    """The same by what the kernel tells every user: {"anonymous", "files", SHARED: bytes}. A page that several
    processes share counts in each of them."""
    return {kind: status_field(pid, name) << 10
            for kind, name in (("anonymous", "RssAnon"), ("files", "RssFile"), (SHARED, "RssShmem"))}


def memory(pid):
    try:
        return mappings(pid)
    except PermissionError:
        return resident(pid)


def memory_of_all(pids, arena_bytes):
    """{kind: bytes} of processes that share segments of arena_bytes in all. Each page counts once, except that a page
    of a file may count more often."""
    kinds, arena_counted = {}, False
    for pid in pids:
        for kind, size in memory(pid).items():
            if kind == SHARED:  # tandemd's segments count once; shared pages beyond them are the worker's own
                size = max(0, size - arena_bytes)
                if not arena_counted:
                    size, arena_counted = size + arena_bytes, True
            kinds[kind] = kinds.get(kind, 0) + size
    return kinds


def open_files(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        # st_size is the number of fds since Linux 6.2, and 0 before. Older kernels tell only the size of the table of
        # fds, which grows in powers of two.
        return os.stat(f"/proc/{pid}/fd").st_size or status_field(pid, "FDSize")


def threads(pid):
    return status_field(pid, "Threads")
