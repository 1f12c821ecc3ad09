"""Jobs on the NPU worker, the same ones behind whatever stands for the NPU: run by test_sid.py, twice.

usage: test_jobs.py reference OUT BUILD       XRT 2.13 and its emulated core library, of this build
       test_jobs.py kernel REFERENCE BUILD [STEP...]
                                              the XRT that is installed, the emulated kernel driver of BUILD: compares

The second also checks what the emulated kernel counted against what the worker says, and what xrt-smi shows.
"""
import ctypes
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import (BIN, PROMPT, TALE, Daemon, check, equal, golden_distances, make_model, same_ids,  # noqa: E402
                         send_signal, wait_for)

SETS = (("programs", "bf16", 2), ("programs", "int8", 2), ("programs-attention", "bf16", 1))  # commands a block
# The last has the driver library sync by ioctl, and an NPU that sees nothing else.
PROFILES = (("first",), ("import",), ("userptr",), ("userptr", "--shadow"))
LONG = "Once upon a time there was a king who had three sons. " * 6
SYNC, EXECUTE, GET_INFO, WAIT, GET_ARRAY = "0x45", "0x46", "0x47", "0xca", "0x4a"
# The last two strike in pairs: the heap is full when a lost context is made anew.
FAULTS = ("error", "context", "hang", "slow", "gone", "suspend", "asleep", "removed", "heap")
# docs/npu-kernels.md, what the formats cost: mean distance and share of equal first choices.
GOLDEN = {"programs bf16": (0.068, 0.991), "programs-attention bf16": (0.070, 0.997), "programs int8": (0.114, 0.984)}
DEVICE = "0000:c5:00.1"


class Kernel:
    """A server, and questions to it (protocol.h)."""

    def __init__(self, build, *args):
        self.build, self.args = build, args

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="tandem-npu-kernel-")
        read, write = os.pipe()
        self.process = subprocess.Popen([os.path.join(self.build, "npu-kernel", "npu-kernel"), "--ready-fd", str(write),
                                         *self.args, self.dir], pass_fds=(write,))
        os.close(write)
        check(os.read(read, 1) == b"r", "the emulated kernel starts")
        self.read = read
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(os.path.join(self.dir, "npu-kernel.socket"))
        # A path of libraries lets the worker's sandbox read what stands for /sys, as it reads /sys.
        paths = [os.path.join(self.dir, "tree", "sys"), os.environ.get("LD_LIBRARY_PATH")]
        self.env = {"TANDEM_NPU_KERNEL": self.dir, "LD_LIBRARY_PATH": ":".join(p for p in paths if p),
                    "LD_PRELOAD": os.path.join(self.build, "npu-kernel", "libnpu-kernel-preload.so")}
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        os.close(self.read)
        subprocess.run(["rm", "-rf", self.dir], check=True)

    def ask(self, line):
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.settimeout(60)
        with mine, theirs:
            data = line.encode()
            try:
                socket.send_fds(self.socket, [struct.pack("=4I64x", 4, 0, len(data), 0) + data], [theirs.fileno()])
                reply = mine.recv(131072)
            except OSError as e:
                ended = self.process.poll()
                check(False, f"{line!r} to the emulated kernel: {e}; its process "
                      f"{'runs' if ended is None else f'ended with {ended}'}")
        result, n = struct.unpack_from("=iI", reply)
        equal(result, 0, f"{line!r} to the emulated kernel")
        return reply[72:72 + n].rstrip(b"\0").decode()

    def counters(self):
        return json.loads(self.ask("counters"))

    def smi(self, *args):
        return subprocess.run(["xrt-smi", "examine", *args], env={**os.environ, **self.env}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60, check=True).stdout


def fields(i):
    return {"prompt": PROMPT if i % 2 else LONG, "n": 32, "temp": (0.0, 0.8)[i % 2], "seed": i}


def run_jobs(env, meanwhile=lambda d: None, after=lambda d: None):
    """ids and log-probabilities of four jobs, and what status says of the NPU worker then."""
    results = []
    with Daemon(env={"TANDEM_GPU": "host", **env}) as d:
        wait_for(lambda: d.workers()["npu"].get("state") == "ready", "the NPU worker", 30)
        for i in range(4):
            job = d.start_job(**fields(i))
            job.until(8)
            if i == 0:
                meanwhile(d)
            r = job.wait()
            results.append([r.ids, r.logprobs])
        worker = d.workers()["npu"]
        after(d)
    return results, worker


def run_1b(env, path):
    """The same of two jobs on random weights in the 1B's shape."""
    with Daemon(models=(path,), hang_ms=60000, env={"TANDEM_GPU": "host", **env}) as d:
        d.wait_ready(120)
        found = [d.generate(n=8, temp=0.7, seed=i, prompt=PROMPT + " and" * i) for i in range(2)]
        worker = d.workers()["npu"]
    return [[r.ids, r.logprobs] for r in found], worker


def reference(out, build):
    found = {"1b": make_model("1b", "q4_0")}
    for name, kind, _ in SETS:
        env = {"TANDEM_NPU": "emulated", "TANDEM_NPU_FORMAT": kind,
               "TANDEM_NPU_PROGRAMS": os.path.join(build, "lib", "npu-emulated", name)}
        found[f"{name} {kind}"] = run_jobs(env)[0]
        if name == "programs":
            found[f"1b {kind}"] = run_1b(env, found["1b"])[0]
    with open(out, "w") as f:
        json.dump(found, f)


def same(got, want, what):
    for i, (g, w) in enumerate(zip(got, want)):
        same_ids(g[0], w[0], f"{what}: ids of job {i}")
        same_ids(g[1], w[1], f"{what}: log-probabilities of job {i}")


def the_1b_shape(want, build, path):
    """As the jobs of tale: ids, and the counters of the worker and of the kernel."""
    for kind in ("bf16", "int8"):
        with Kernel(build) as kernel:
            env = {"TANDEM_NPU": "xrt", "TANDEM_NPU_FORMAT": kind,
                   "TANDEM_NPU_PROGRAMS": os.path.join(build, "lib", "npu-kernel", "programs"), **kernel.env}
            results, worker = run_1b(env, path)
            same(results, want[f"1b {kind}"], f"the 1B shape, {kind}")
            use, counted = worker["use"], kernel.counters()
            check("26 of 26 attention layers on the NPU in " + kind in worker["plan"], "the plan", worker["plan"])
            equal(counted["commands"], use["commands"], "commands that the kernel counted")
            equal(counted["ioctls"][EXECUTE], use["submissions"], "ioctls that submit")
            print(f"the 1B shape, {kind}: ids and log-probabilities are those of 2.13; {use['blocks']} blocks, "
                  f"{use['submissions']} submissions of {use['commands']} commands", flush=True)


def golden(build):
    """The distances that docs/npu-kernels.md states."""
    for name, kind, _ in SETS:
        with Kernel(build) as kernel:
            env = {"TANDEM_NPU": "xrt", "TANDEM_NPU_FORMAT": kind, "TANDEM_GPU": "host",
                   "TANDEM_NPU_PROGRAMS": os.path.join(build, "lib", "npu-kernel", name), **kernel.env}
            with Daemon(env=env) as d:
                wait_for(lambda: d.workers()["npu"].get("state") == "ready", "the NPU worker", 30)
                mean, worst, first, _ = golden_distances(d, "tale")
                check(d.workers()["npu"]["use"]["blocks"] > 0, "the NPU had a part")
        limit, share = GOLDEN[f"{name} {kind}"]
        print(f"golden tale, {name} {kind}: mean {mean:.4f}, worst {worst:.3f}, first choice {100 * first:.1f}%",
              flush=True)
        check(mean <= limit + 0.0005, f"{name} {kind}: mean distance at most {limit}", mean)
        check(first >= share - 0.0005, f"{name} {kind}: first choices the same, at least {share}", first)


def decode_step(build):
    """Two jobs alone that differ in 32 tokens: what 32 decode steps call, by the default settings of XRT."""
    for name, kind, n_commands in SETS:
        with Kernel(build) as kernel:
            env = {"TANDEM_NPU": "xrt", "TANDEM_NPU_FORMAT": kind, "TANDEM_GPU": "host",
                   "TANDEM_NPU_PROGRAMS": os.path.join(build, "lib", "npu-kernel", name), **kernel.env}
            with Daemon(env=env) as d:
                wait_for(lambda: d.workers()["npu"].get("state") == "ready", "the NPU worker", 30)
                counted = []
                for n in (8, 8, 40):
                    d.generate(prompt=PROMPT, n=n, temp=0.8, seed=5, speculation=1)
                    # After its last step the daemon may still be asked for nothing: the counters stand.
                    counted.append((kernel.counters()["ioctls"], d.workers()["npu"]["use"]["blocks"]))
        short, long = ({k: b[0].get(k, 0) - a[0].get(k, 0) for k in b[0]} for a, b in zip(counted, counted[1:]))
        blocks = counted[2][1] - 2 * counted[1][1] + counted[0][1]
        calls = {k: v - short.get(k, 0) for k, v in long.items() if k != GET_INFO and v != short.get(k, 0)}
        equal(blocks, 32 * 12, "blocks of 32 steps")
        equal(calls.pop(EXECUTE), n_commands * blocks, "ioctls that submit")
        waits = calls.pop(WAIT, 0)
        check(waits <= n_commands * blocks, "at most one wait a submission", waits)
        equal(calls, {}, "other ioctls in a decode step")
        print(f"decode step, {name} {kind}: {n_commands} submissions a block and {waits / blocks:.2f} waits, nothing "
              f"else", flush=True)


def sync_by_ioctl(wanted):
    with open(os.path.join(BIN, "xrt.ini"), "w") as f:  # where XRT looks: beside the program
        f.write(f"[Debug]\nforce_driver_sync={'true' if wanted else 'false'}\n")


def through_kernel(want, build, profile, name, kind, n_commands):
    what = f"{name} {kind} on kernel {' '.join(profile)}"
    sync_by_ioctl("--shadow" in profile)
    with Kernel(build, "--profile", *profile) as kernel:
        shown = kernel.smi()
        check(DEVICE in shown and "RyzenAI-npu4" in shown and "6x8" in shown, "xrt-smi shows the device", shown)
        before = kernel.counters()
        seen = {}

        def meanwhile(d):
            text = kernel.smi("-d", DEVICE, "-r", "aie-partitions")
            pid = d.workers()["npu"]["pid"]
            row = re.search(rf"\|{pid} +\|(\d+) +\|(\d+) +\|", text)
            check(row and int(row[2]) > 0, f"xrt-smi shows the context of process {pid}", text)
            check("Columns: [0, 1, 2, 3]" in text, "xrt-smi shows its columns", text)
            seen["smi"] = int(row[2])

        def telemetry(d):
            """Idle now: the driver's own counters, as AMD's tool reads them, and what the worker was told."""
            text = kernel.smi("-d", DEVICE, "-r", "aie-partitions")
            w = d.workers()["npu"]
            row = re.search(rf"\|{w['pid']} +\|(\d+) +\|(\d+) +\|", text)
            counted = kernel.counters()["ioctls"][EXECUTE] - before["ioctls"].get(EXECUTE, 0)
            equal((int(row[2]), counted), (w["use"]["submissions"],) * 2,
                  f"{what}: submissions by the driver's telemetry and by the kernel, and those of the worker")
            told = w["use"].get("telemetry") or {}
            equal((told.get("contexts"), told.get("context_errors", 0)), (1, 0), f"{what}: the worker's telemetry")
            check("seccomp" in w["sandbox"] and "off" not in w["sandbox"], "the sandbox is on", w["sandbox"])

        env = {"TANDEM_NPU": "xrt", "TANDEM_NPU_FORMAT": kind,
               "TANDEM_NPU_PROGRAMS": os.path.join(build, "lib", "npu-kernel", name), **kernel.env}
        results, worker = run_jobs(env, meanwhile, telemetry)
        same(results, want, what)
        check("contexts and run lists" in worker["detail"], "which XRT", worker["detail"])
        after = wait_for(lambda: (lambda c: c if c["files"] == 0 else None)(kernel.counters()), "the file is closed")
        use = worker["use"]
        calls = {k: after["ioctls"].get(k, 0) - before["ioctls"].get(k, 0) for k in after["ioctls"]}
        equal(use["submissions"], n_commands * use["blocks"], f"{what}: submissions")
        equal(after["commands"] - before["commands"], use["commands"], f"{what}: commands that the kernel counted")
        equal(calls[EXECUTE], use["submissions"], f"{what}: ioctls that submit")
        check(calls.get(WAIT, 0) <= use["submissions"], f"{what}: at most one wait a submission", calls)
        equal((after["handles"], after["contexts"], after["mappings"], after["buffers"]), (0, 0, 0, 0),
              f"{what}: what is left")
        equal(after["refused"] - before["refused"] - after["ioctls"].get("0x4a", 0) * (profile[0] != "userptr"), 0,
              f"{what}: refused calls, but for GET_ARRAY where there is none ({kernel.ask('why')})")
        synced = calls.get(SYNC, 0)
        check((synced > use["submissions"]) == ("--shadow" in profile), f"{what}: syncs by ioctl", calls)
        equal(after["unsynced"], 0, f"{what}: commands that read what was not synced")
        print(f"{what}: ids and log-probabilities are those of 2.13; {use['blocks']} blocks, {calls[EXECUTE]} "
              f"submissions, {calls.get(WAIT, 0)} waits, {synced} syncs; xrt-smi saw {seen['smi']}", flush=True)


def faults(want, build, n, kinds=FAULTS):
    """Each fault strikes n times under four jobs: their ids stay, and nothing is left at the end."""
    with Kernel(build, "--timeout-ms", "500") as kernel:
        env = {"TANDEM_NPU": "xrt", "TANDEM_GPU": "host",
               "TANDEM_NPU_PROGRAMS": os.path.join(build, "lib", "npu-kernel", "programs"), **kernel.env}
        with Daemon(env=env) as d:
            wait_for(lambda: d.workers()["npu"].get("state") == "ready", "the NPU worker", 30)
            for fault in kinds:
                longest = 0.0
                for _ in range(n):
                    jobs = [d.start_job(**fields(i)) for i in range(4)]
                    jobs[0].until(4)
                    before = kernel.counters()["faults"]
                    begin = time.monotonic()
                    kernel.ask("fault " + fault)
                    if fault == "heap":
                        kernel.ask("fault context")
                    jobs[0].until(12)
                    longest = max(longest, time.monotonic() - begin)
                    results = [job.wait() for job in jobs]
                    equal(kernel.counters()["faults"], before + 1 + (fault == "heap"), f"{fault}: faults that struck")
                    for i, r in enumerate(results):
                        same_ids(r.ids, want[i][0], f"{fault}: ids of job {i}")
                        same_ids(r.logprobs, want[i][1], f"{fault}: log-probabilities of job {i}")
                print(f"{fault}: {n} times under four jobs, their ids as without; eight more tokens after at most "
                      f"{longest:.2f} s", flush=True)
        left = wait_for(lambda: (lambda c: c if c["files"] == 0 else None)(kernel.counters()), "the file is closed")
        equal((left["handles"], left["contexts"], left["mappings"], left["buffers"]), (0, 0, 0, 0), "what is left")


def restarts(want, build, n):
    """The worker is killed in the middle of a job, again and again. What it had is gone each time."""
    with Kernel(build) as kernel:
        env = {"TANDEM_NPU": "xrt", "TANDEM_GPU": "host",
               "TANDEM_NPU_PROGRAMS": os.path.join(build, "lib", "npu-kernel", "programs"), **kernel.env}
        with Daemon(env=env) as d:
            held, n_fds, begin = None, None, time.monotonic()
            for i in range(n):
                wait_for(lambda: d.workers()["npu"].get("state") == "ready", "the NPU worker", 30)
                job = d.start_job(**fields(1))
                job.until(4)
                pid = d.worker_pid("npu")
                counted = kernel.counters()
                now = {k: counted[k] for k in ("files", "handles", "contexts", "mappings", "syncobjs", "buffers",
                                               "heap_used", "bytes")}
                if held:
                    equal(now, held, f"what there is with worker {i}, and what there was with the first one")
                held = held or now
                # A reply that is under way has one.
                fds = [len(os.listdir(f"/proc/{p.pid}/fd")) for p in (kernel.process, d.process)]
                n_fds = n_fds or fds
                check(all(a <= b + 16 for a, b in zip(fds, n_fds)), "descriptors of server and tandemd", fds, n_fds)
                send_signal(pid, signal.SIGKILL)
                same_ids(job.wait().ids, want[1][0], "ids of a job whose worker was killed")
                if i % 100 == 99:
                    print(f"{i + 1} workers were killed in {time.monotonic() - begin:.0f} s", flush=True)
            wait_for(lambda: d.workers()["npu"].get("restarts", 0) >= n, "each of them was another process")
        left = wait_for(lambda: (lambda c: c if c["files"] == 0 else None)(kernel.counters()), "the file is closed")
        equal((left["handles"], left["contexts"], left["mappings"], left["syncobjs"], left["buffers"]), (0,) * 5,
              "what is left")
        print(f"{n} workers were killed: each held {held}, nothing is left", flush=True)


def memlock(build):
    """The driver library locks a heap of 64 MiB. With the usual limit of 8 MiB the worker says so and what helps."""
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(24, 14, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_IPC_LOCK: root obeys the limit
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 << 20, 8 << 20))
        with Kernel(build) as kernel:
            for device in ("xrt", "auto"):
                env = {"TANDEM_NPU": device, "TANDEM_GPU": "host",
                       "TANDEM_NPU_PROGRAMS": os.path.join(build, "lib", "npu-kernel", "programs"), **kernel.env}
                with Daemon(env=env) as d:
                    if device == "xrt":
                        wait_for(lambda: d.workers()["npu"].get("state") == "quarantined", "no device", 30)
                        says = d.workers()["npu"]["last_exit"]
                    else:
                        d.wait_ready()
                        says = d.workers()["npu"]["reason"]
                        d.generate(n=4)
                    check("may lock 8 MiB" in says and "64 MiB" in says and "LimitMEMLOCK" in says,
                          "what the worker says", says)
                    print(f"memlock, {device}: {says}", flush=True)
        sys.stdout.flush()
        os._exit(0)
    equal(os.wait()[1], 0, "the part with a limit")


def main():
    mode, path, build = sys.argv[1:4]
    if mode == "reference":
        reference(path, build)
        return
    with open(path) as f:
        want = json.load(f)
    steps = {"golden": lambda: golden(build), "decode_step": lambda: decode_step(build),
             "memlock": lambda: memlock(build),
             "1b": lambda: the_1b_shape(want, build, want["1b"]),
             "faults": lambda: faults(want["programs bf16"], build, 20),
             "restarts": lambda: restarts(want["programs bf16"], build, 1000),
             "profiles": lambda: profiles(want, build)}
    for kind in FAULTS:
        steps["fault-" + kind] = lambda kind=kind: faults(want["programs bf16"], build, 20, (kind,))
    for name in sys.argv[4:] or [name for name in steps if not name.startswith("fault-")]:
        sync_by_ioctl(False)
        steps[name]()


def profiles(want, build):
    for profile in PROFILES:
        for name, kind, n_commands in SETS:
            through_kernel(want[f"{name} {kind}"], build, profile, name, kind, n_commands)


main()
