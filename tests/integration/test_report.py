"""`tandem doctor` and `tandem report` with a real daemon: without a device, with the emulated NPU, with lavapipe. What
a report has, and what it leaves out. (What the doctor says of a machine that is made up: test-machine.)"""
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

SECTIONS = ["## What was found", "## What this machine can do", "## Distance from the demo model's reference",
            "## Speed", "## Under load", "## Status"]
BENCH = """#!/bin/sh
# llama-bench, as far as the report reads it
echo "$@" >>"$0.calls"
echo '[{"n_prompt": 128, "n_gen": 0, "avg_ts": 1000.0}, {"n_prompt": 0, "n_gen": 32, "avg_ts": 200.0}]'
"""


def machine(folder, clock=3_000_000):
    """Sensors as the kernel shows them: a CPU's clock, a chip's temperature, power and clock, energy that goes up."""
    for path, text in (("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", clock),
                       ("sys/class/hwmon/hwmon0/name", "amdgpu"), ("sys/class/hwmon/hwmon0/temp1_input", 61500),
                       ("sys/class/hwmon/hwmon0/power1_average", 17_250_000),
                       ("sys/class/hwmon/hwmon0/freq1_input", 2_700_000_000),
                       ("sys/class/powercap/intel-rapl:0/name", "package-0"),
                       ("sys/class/powercap/intel-rapl:0/energy_uj", 5)):
        path = os.path.join(folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(f"{text}\n")


def report(d, *args, env=None, minutes="0.05"):
    r = subprocess.run([os.path.join(BIN, "tandem"), "--socket", d.socket, "report", "--minutes", minutes, *args],
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=d.dir,
                       env=dict(d.environment(), **(env or {})), timeout=600 * SLOW)
    return r


def doctor(d):
    return subprocess.run(
        [os.path.join(BIN, "tandem"), "--socket", d.socket, "doctor"], stdout=subprocess.PIPE, text=True,
        env=d.environment()).stdout


@test
def whole():
    """Every section, the sensors, pairs with llama-bench; without a terminal nothing is written unasked."""
    with Daemon(placement=None) as d:
        machine(d.dir + "/fake")
        os.makedirs(d.dir + "/bin")
        with open(d.dir + "/bin/llama-bench", "w") as f:
            f.write(BENCH)
        os.chmod(d.dir + "/bin/llama-bench", 0o755)
        env = {"PATH": d.dir + "/bin:" + os.environ["PATH"]}
        # A rate needs two looks, a second apart: there is time for some, where the command waits for a CPU too.
        r = report(d, "--llama", TALE, "--root", d.dir + "/fake", env=env, minutes="0.1")
        check(r.returncode == 0, "exit status", r.returncode, r.stderr)
        equal(re.findall(r"^## .*", r.stdout, re.M), SECTIONS, "sections")
        check(re.search(r"- Memory: [\d.]+ GB/s read", r.stdout), "memory", r.stdout)
        check(float(re.search(r"- CPU: ([\d.]+) T", r.stdout)[1]) > 0, "CPU", r.stdout)
        check("- GPU: no GPU" in r.stdout or "GB/s of its memory" in r.stdout, "GPU", r.stdout)
        mean = float(re.search(r"Mean ([\d.]+), worst", r.stdout)[1])
        check(0 < mean < 0.087, "the demo model's distance", mean)
        pairs = re.findall(r"^\| ([\d.]+) \| 1000.0 \| ([\d.]+) \| ([\d.]+) \| 200.0 \| ([\d.]+) \|$", r.stdout, re.M)
        check(len(pairs) == 3, "pairs", r.stdout)
        for prefill, ratio, decode, other in pairs:
            check(abs(float(prefill) / 1000 - float(ratio)) < 0.01 and abs(float(decode) / 200 - float(other)) < 0.01,
                  "ratios", pairs)
        with open(d.dir + "/bin/llama-bench.calls") as f:
            equal(f.read().count(f"-m {TALE} "), 3, "calls of llama-bench")
        check(re.search(r"^4 jobs at once, 128 tokens each, for [\d.]+ s: \d+ jobs ended, 0 failed", r.stdout, re.M),
              "the load", r.stdout)
        check(re.search(r"^First token, ms: half within \d+", r.stdout, re.M), "first tokens", r.stdout)
        for row in ("| CPU clock, mean of all | MHz | 3000.0 | 3000.0 | 3000.0 |",
                    "| amdgpu temperature | C | 61.5 | 61.5 | 61.5 |", "| amdgpu power | W | 17.2 | 17.2 | 17.2 |",
                    "| amdgpu clock | MHz | 2700.0 | 2700.0 | 2700.0 |", "| package-0 power (RAPL) | W | 0.0 |"):
            check(row in r.stdout, row, r.stdout)
        check("worker, in blocks | % of the time" in r.stdout, "the workers' shares", r.stdout)
        equal([n for n in os.listdir(d.dir) if n.startswith("tandem-report")], [], "files that nobody asked for")


@test
def written():
    """Personal words are left out, a file that is there stays, and --output alone is refused without a terminal."""
    with Daemon(models=[], placement=None) as d:
        home = d.environment()["HOME"]
        models = os.path.join(d.environment()["XDG_DATA_HOME"], "tandem", "models")
        os.makedirs(models)
        os.symlink(TALE, models + "/tale.gguf")
        r = report(d, "-o", "x.md", minutes="0")
        check(r.returncode == 2 and "needs --yes" in r.stderr, "no terminal and no --yes", r.stderr)
        r = report(d, "-o", "x.md", "--yes", minutes="0", env={"HOME": d.dir})
        check(r.returncode == 0, "exit status", r.returncode, r.stderr)
        with open(d.dir + "/x.md") as f:
            text = f.read()
        equal(text, r.stdout, "what was shown is what was written")
        check("## Under load" not in text, "no load was asked for")
        check('"path":"tale.gguf"' in text, "a model's folder is left out", text[-3000:])
        check(d.dir not in text and home not in text and '"socket":"~/' in text, "the home is left out", text[-600:])
        r = report(d, "-o", "x.md", "--yes", minutes="0")
        check(r.returncode == 1 and "File exists" in r.stderr, "a file that is there", r.stderr)
        equal(r.stdout, "", "what is measured for a file that cannot be made")


@test
def asks_on_a_terminal():
    with Daemon(placement=None) as d:
        for answer, there in (("n", False), ("y", True)):
            master, slave = pty.openpty()
            p = subprocess.Popen([os.path.join(BIN, "tandem"), "--socket", d.socket, "report", "--minutes", "0"],
                                 stdin=slave, stdout=slave, stderr=slave, cwd=d.dir, env=d.environment(),
                                 start_new_session=True)
            os.close(slave)
            out, end, asked = b"", time.monotonic() + 400 * SLOW, False
            while time.monotonic() < end:
                if select.select([master], [], [], 0.2)[0]:
                    try:
                        data = os.read(master, 65536)
                    except OSError:
                        break
                    out += data
                if not asked and b"[y/N]" in out:
                    check(b"## Status" in out, "shown whole before the question")
                    asked = True
                    os.write(master, answer.encode() + b"\n")
            check(exit_of(p, timeout=60) == 0, "exit status", out[-400:])
            os.close(master)
            equal(any(n.startswith("tandem-report-") for n in os.listdir(d.dir)), there, "a file after " + answer)


@test
def no_daemon():
    with tempfile.TemporaryDirectory() as folder:
        r = subprocess.run([os.path.join(BIN, "tandem"), "--socket", folder + "/none", "report"],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=300 * SLOW,
                           env={"HOME": folder, "PATH": os.environ["PATH"]})
        equal(r.returncode, 0, "exit status")
        check("Nothing else was measured, as the daemon does not answer" in r.stdout, "why", r.stdout)
        check("tandemd --user &" in r.stdout, "the command that helps", r.stdout)


@test
def no_device():
    """A device that was asked for by name and is not there: its worker says which, and how to have it without."""
    with Daemon(placement=None, env={"TANDEM_NPU": "xrt", "TANDEM_GPU": "vulkan", "VK_DRIVER_FILES": "/nowhere.json",
                                     "VK_ICD_FILENAMES": "/nowhere.json"}) as d:
        wait_for(lambda: len(re.findall(r"^MEND .*is quarantined", doctor(d), re.M)) == 2, "both workers are given up",
                 30)
        out = doctor(d)
        for key, device in (("npu", "xrt"), ("gpu", "vulkan")):
            check(re.search(rf"^MEND +{key} worker +is quarantined.*: device {device}: ", out, re.M), "the reason", out)
            check(f"{key} = auto in tandem.conf takes the CPU instead" in out, "what helps", out)


@full_only
def emulated_npu():
    if not os.path.exists(os.path.join(BIN, "..", "lib", "npu-emulated", "programs", "manifest")):
        raise Skip("the emulated NPU is not in this build (Debian: libxrt-dev, uuid-dev)")
    with Daemon(env={"TANDEM_NPU": "emulated", "TANDEM_GPU": "host"}) as d:
        d.generate(n=4)
        out = doctor(d)
        check(re.search(r"^ok +npu worker +ready on \w+: .*emulated", out, re.M), "the doctor names it", out)
        r = report(d)
        check(r.returncode == 0, "exit status", r.returncode, r.stderr)
        check(float(re.search(r"Mean ([\d.]+), worst", r.stdout)[1]) < 0.087, "the distance through it", r.stdout)
        check('"device_use"' in r.stdout and "npu worker, in blocks" in r.stdout, "its use", r.stdout)


@full_only
def lavapipe():
    probe = subprocess.run([os.path.join(BIN, "tandem-gpu-worker"), "--measure"], stdout=subprocess.PIPE, text=True,
                           env=dict(os.environ, TANDEM_GPU="vulkan"), timeout=120)
    if probe.returncode != 0:
        raise Skip("no Vulkan device here (Debian: mesa-vulkan-drivers): " + probe.stdout.strip())
    # The daemon chooses, and the CPU is faster: a report of lavapipe's own speeds would take minutes.
    with Daemon(env={"TANDEM_NPU": "host", "TANDEM_GPU": "vulkan"}, placement=None) as d:
        d.generate(n=4)
        check(re.search(r"^ok +gpu worker +ready on vulkan: ", doctor(d), re.M), "the doctor names it", doctor(d))
        r = report(d, env={"TANDEM_GPU": "vulkan"})
        check(r.returncode == 0, "exit status", r.returncode, r.stderr)
        check(re.search(r"^- GPU: .*: [\d.]+ GB/s of its memory", r.stdout, re.M), "its memory", r.stdout)
        check(re.search(r"^ok +gpu worker +ready on vulkan", r.stdout, re.M), "what the doctor said", r.stdout)


@test
def told_once():
    """Where the daemon answers, what its workers do is not guessed beside that."""
    with Daemon(placement=None) as d:
        d.wait_ready()
        out = doctor(d)
        for name in ("npu", "gpu"):
            lines = re.findall(rf"^(\w+) +{name} worker +(.*)$", out, re.M)
            check(len(lines) == 1 or lines[1][0] == "note", "one line, and a reason where that is news", lines)
            check(" on host" not in lines[0][1] and lines[0][1].startswith("ready on "), "words", lines)


@test
def stopped_by_hand():
    """It says how long it takes. Ctrl-C under load ends the measuring; what there is can still be written."""
    with Daemon(placement=None) as d:
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(d.dir)
            os.execve(os.path.join(BIN, "tandem"), ["tandem", "--socket", d.socket, "report", "--minutes", "5"],
                      dict(d.environment(), TERM="xterm"))
        seen = b""

        def until(text, limit=600):
            nonlocal seen
            end = time.monotonic() + limit * SLOW
            while text not in seen:
                check(time.monotonic() < end, f"{text} comes", seen[-600:])
                if select.select([terminal], [], [], 0.2)[0]:
                    seen += os.read(terminal, 65536)

        until(b"this takes about 6 minutes")
        until(b"under load for")
        os.write(terminal, b"\x03")
        until(b"Stopped here by hand")
        until(b"[y/N]")
        os.write(terminal, b"n\n")
        until(b"nothing was written")
        _, status = os.waitpid(pid, 0)
        equal(os.waitstatus_to_exitcode(status), 0, "exit status")
        os.close(terminal)
        check(b"jobs at once" in seen, "the load up to there", seen[-1500:])


main()
