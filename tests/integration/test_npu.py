"""The NPU worker through a real tandemd, on the emulated NPU behind the real XRT front end: what runs there, that ids
do not depend on company, chunks, restarts or faults, and what is said where there is no NPU or its programs are wrong.

Faults are written into the emulated NPU's control page (npu-worker/emulated/control.h); the next command takes them.
With --full each kind strikes 20 times, at random under four jobs.
"""
import ctypes
import glob
import json
import random
import re
import resource
import signal
import subprocess
import tempfile

import os
import shutil
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import tandem_test  # noqa: E402
from tandem_emulated import Control  # noqa: E402
from tandem_test import *  # noqa: E402,F403

PROGRAMS = os.path.join(BIN, "..", "lib", "npu-emulated", "programs")
ERROR, HANG, CONTEXT, GONE, FIRMWARE, SLOW_COMMAND, SUSPEND = 1, 2, 3, 4, 5, 6, 7
NAMES = {ERROR: "error", HANG: "hang", CONTEXT: "context lost", GONE: "device gone", FIRMWARE: "firmware timeout",
         SLOW_COMMAND: "slow", SUSPEND: "suspend and resume"}
SEED = int(os.environ.get("TANDEM_TEST_SEED", "6"))
LONG = "Once upon a time there was a king who had three sons. " * 6


def need_emulated():
    if not os.path.exists(os.path.join(PROGRAMS, "manifest")):
        raise Skip("the emulated NPU is not in this build (Debian: libxrt-dev, uuid-dev)")


def daemon(control=None, **env):
    need_emulated()
    env.setdefault("TANDEM_NPU", "emulated")
    env["TANDEM_GPU"] = "host"
    if control:
        env["TANDEM_NPU_EMULATED_CONTROL"] = control.path
    return Daemon(env=env)


def jobs(n):
    rng = random.Random(SEED)
    return [{"prompt": LONG if i % 2 else PROMPT, "n": n, "temp": (0.0, 0.8)[i % 2], "seed": i,
             "chunk": rng.choice((0, 7))} for i in range(4)]


def compare(results, want, what):
    for i, (r, w) in enumerate(zip(results, want)):
        same_ids(r.ids, w.ids, f"{what}: ids of job {i}")
        same_ids(r.logprobs, w.logprobs, f"{what}: log-probabilities of job {i}")


def shown(d):
    """What status shows of the NPU worker, the same as an object and as text. Returns it and device_use."""
    w = d.cli_json("status", "--json")[0]["workers"][0]
    use = w["device_use"]
    check("tale: 12 of 12 attention layers on the NPU in " in w["plan"] and "rows " in w["plan"], "the plan in status",
          w["plan"])
    text = d.cli("status", "-v").stdout.decode()
    check(w["plan"] in text, "the plan in the text", text)
    check(f"{100 * use['share']:.1f}% of its blocks' multiplications on the device" in text, "the share in the text",
          text)
    return w, use


@test
def over_the_bus():
    """The worker's object says the same as status."""
    need_emulated()
    try:
        import tandem_bus
        bus = tandem_bus.Bus()
    except ImportError as e:
        raise Skip(f"no Python bindings of D-Bus here: {e}") from e
    with bus, bus.daemon(env={"TANDEM_NPU": "emulated", "TANDEM_GPU": "host"}) as d:
        client = tandem_bus.Client(bus).wait()
        d.generate(n=8)
        w, use = shown(d)
        npu = client.all(tandem_bus.ROOT + "/workers/npu", tandem_bus.WORKER)
        equal(str(npu["Plan"]), w["plan"], "Plan")
        equal(str(npu["Reason"]), "", "Reason, of a device that was asked for by name")
        check(abs(float(npu["DeviceShare"]) - use["share"]) < 1e-4, "DeviceShare", npu["DeviceShare"], use)
        counts = {str(k): int(v) for k, v in npu["DeviceUse"].items()}
        equal({k: counts[k] for k in ("blocks", "submissions", "commands", "contexts-renewed")},
              {"blocks": use["blocks"], "submissions": use["submissions"], "commands": use["commands"],
               "contexts-renewed": 0},
              "DeviceUse")
        check("power-mw" not in counts and "context-errors" not in counts, "no driver, no telemetry", counts)
        equal(dict(client.all(tandem_bus.ROOT + "/workers/gpu", tandem_bus.WORKER)["DeviceUse"]), {},
              "the CPU counts nothing")


@test
def configured():
    """tandem.conf says which device, programs, memory and format; the environment has the last word."""
    need_emulated()
    conf = tempfile.NamedTemporaryFile("w", prefix="tandem-test-npu-", suffix=".conf")
    conf.write(f"[engine]\nnpu = emulated\nnpu-programs = {os.path.realpath(PROGRAMS)}\n"
               "npu-memory = 3M\nnpu-format = int8\ngpu = host\n")
    conf.flush()
    for env, kind, n in (({}, "int8", 12), ({"TANDEM_NPU_FORMAT": "bf16"}, "bf16", 8)):
        with Daemon(args=("--config", conf.name), env=env) as d:
            w = d.wait_ready()["npu"]
            equal((w["device"], w["requested"]), ("emulated", "emulated"), "device")
            d.generate(n=4)
            found = re.search(r"tale: (\d+) of 12 attention layers on the NPU in (\w+):", d.workers()["npu"]["plan"])
            check(found and found[2] == kind, "the format", d.workers()["npu"]["plan"])
            check(int(found[1]) <= n, "the budget", d.workers()["npu"]["plan"])


@test
def runs_on_the_npu():
    """Every product of attention is a program; both sides count the same; nothing is refused."""
    control = Control()
    with daemon(control) as d:
        w = d.wait_ready()["npu"]
        equal(w["device"], "emulated", "device")
        check("bf16 programs, XRT " in w["detail"], "what it says of itself", w["detail"])
        r = d.generate(n=30)
        check("emulated-1-bf16-" in r.done["numerics_id"], "numerics id", r.done["numerics_id"])
        w, use = shown(d)
        check(use["blocks"] >= 12 * d.status()["steps_done"], "blocks in which the NPU had a part", use)
        equal(use["submissions"], 2 * use["blocks"], "submissions")
        print(f"status: {100 * use['share']:.1f}% of attention on the NPU, "
              f"{use['submissions'] / use['blocks']:.0f} submissions a block")
        d.expect_exit = None
        wrong = d.stop()
        check(not wrong, wrong)
        log = d.log()
    line = re.search(r"npu: ([0-9.]+)% of attention's multiplications ran on the NPU; "
                     r"(\d+) submissions of (\d+) commands", log)
    check(line, "the worker's account", log)
    got = control.counters()
    equal(int(line[3]), got["commands"], "commands that the worker and the emulated NPU count")
    equal(int(line[2]), got["commands"], "submissions: one for each product")
    equal(got["refused"], 0, "calls that a driver would refuse")
    check(float(line[1]) > 80, "share of attention on the NPU", line[0])
    check("12 of 12 attention layers on the NPU in bf16" in log, "the plan", log)


@full_only
def the_1b_shape():
    """Random weights in the 1B's shape: every product of attention on the NPU, whole and in company, in each type."""
    model = make_model("1b", "q4_0")
    for kind in ("bf16", "int8", "int4"):
        control = Control()
        with Daemon(models=(model,), hang_ms=60000,
                    env={"TANDEM_NPU": "emulated", "TANDEM_GPU": "host", "TANDEM_NPU_FORMAT": kind,
                         "TANDEM_NPU_EMULATED_CONTROL": control.path}) as d:
            d.wait_ready(120)
            wanted = [{"n": 8, "temp": 0.7, "seed": i, "prompt": PROMPT + " and" * i} for i in range(3)]
            alone = [d.generate(**q) for q in wanted]
            compare(together(d, wanted), alone, f"{kind}, together")
            w = d.cli_json("status", "--json")[0]["workers"][0]
            check("26 of 26 attention layers on the NPU in " + kind in w["plan"], "the plan", w["plan"])
            use = w["device_use"]
            equal(use["submissions"], 2 * use["blocks"], "submissions: two a block")
            equal(control.counters()["commands"], use["commands"],
                  "commands that the worker and the emulated NPU count")
            equal(control.counters()["refused"], 0, "calls that a driver would refuse")
            print(f"1b shape, {kind}: {100 * use['share']:.1f}% of attention on the NPU, {use['commands']} commands; "
                  f"{w['plan']}")


@test
def four_bits():
    """A model in Q4_0 in int4 programs: the same ids and log-probabilities as on the CPU."""
    need_emulated()
    model = make_model("tiny", "q4_0")
    wanted = jobs(16)
    results = {}
    for npu in ("host", "emulated"):
        with Daemon(models=(model,), env={"TANDEM_NPU": npu, "TANDEM_GPU": "host", "TANDEM_NPU_FORMAT": "int4"}) as d:
            d.wait_ready()
            results[npu] = [d.generate(**q) for q in wanted]
            w = d.cli_json("status", "--json")[0]["workers"][0]
            if npu == "emulated":
                check("6 of 6 attention layers on the NPU in int4: qkv 1 command of " in w["plan"], "the plan",
                      w["plan"])
                check(w["device_use"]["share"] > 0.5, "share of attention on the NPU", w["device_use"])
                compare(together(d, wanted), results[npu], "together")
    compare(results["emulated"], results["host"], "the NPU and the CPU")


@test
def attention_over_pages():
    """A set with attention over pages: one submission a block. The cache is copied, and imported where it may be
    locked."""
    need_emulated()
    conf = tempfile.NamedTemporaryFile("w", prefix="tandem-test-npu-", suffix=".conf")
    conf.write("[engine]\nkv-memory = 6M\n")
    conf.flush()
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    control = Control()
    want = None
    for args in ((), ("--config", conf.name)):
        env = {"TANDEM_NPU": "emulated", "TANDEM_GPU": "host",
               "TANDEM_NPU_PROGRAMS": os.path.realpath(PROGRAMS) + "-attention",
               "TANDEM_NPU_EMULATED_CONTROL": control.path}
        with Daemon(args=args, env=env) as d:
            d.wait_ready()
            alone = [d.generate(**q) for q in jobs(20)]
            w, use = shown(d)
            check("1 command a block over the cache's pages" in w["plan"], "the plan", w["plan"])
            kib = d.model("tale")["kv_bytes"] >> 10
            if limit != resource.RLIM_INFINITY and kib << 10 > limit:
                check(f"cache copied: RLIMIT_MEMLOCK is {limit >> 10} KiB, importing it takes {kib}" in w["plan"],
                      "why it is copied, and what to do", w["plan"])
            else:
                check("cache imported (user memory)" in w["plan"], "the path of the cache", w["plan"])
            equal(use["submissions"], use["blocks"] + use["repeats"], "submissions: one a block")
            equal(use["share"], 1, "share of attention on the NPU")
            compare(together(d, jobs(20)), alone, "together")
            compare([d.generate(**dict(q, chunk=5)) for q in jobs(20)], alone, "chunks of 5")
            if want:
                compare(alone, want, "the cache imported")
            want = want or alone
            control.fault(CONTEXT)
            job = d.start_job(**jobs(20)[0])
            job.until(10)
            d.signal_worker("npu")
            compare([job.wait()], alone[:1], "a context lost, the worker killed")
    equal(control.counters()["refused"], 0, "calls that a driver would refuse")


@test
def exact():
    """Chunks, company and a restart change nothing, in either type."""
    for kind in ("bf16", "int8"):
        n = times(24, 60, 8)
        with daemon(TANDEM_NPU_FORMAT=kind) as d:
            alone = [d.generate(**q) for q in jobs(n)]
            compare(together(d, jobs(n)), alone, f"{kind}, together")
            compare([d.generate(**dict(q, chunk=5)) for q in jobs(n)], alone, f"{kind}, chunks of 5")
            job = d.start_job(**jobs(n)[0])
            job.until(n // 2)
            d.signal_worker("npu")
            compare([job.wait()], alone[:1], f"{kind}, the worker killed")
        with daemon(TANDEM_NPU_FORMAT=kind) as d:
            compare([d.generate(**q) for q in jobs(n)], alone, f"{kind}, another daemon")


@test
def faults():
    """Four jobs, faults at random moments: the same ids; the worker never dies by a signal."""
    control = Control()
    rng = random.Random(SEED)
    n = times(150, 400, 40)
    plan = [kind for kind in NAMES for _ in range(times(2, 20, 1))]
    rng.shuffle(plan)
    took = {}
    with daemon(control) as d:
        want = together(d, jobs(n))
        while plan:
            results, stop = [], threading.Event()
            runner = threading.Thread(target=lambda: results.append(together(d, jobs(n))))
            runner.start()
            while plan and runner.is_alive():
                time.sleep(rng.uniform(0.01, 0.1))
                kind = plan.pop()
                begin, rows = time.monotonic(), d.status().get("tokens_generated", 0)
                control.fault(kind)
                while runner.is_alive() and not control.taken():
                    time.sleep(0.002)
                if not control.taken():
                    control.fault(0)
                    plan.append(kind)  # the jobs were over first
                    break
                # Until others have taken their turn with the device: not one fault into the recovery of another.
                wait_for(lambda: not runner.is_alive() or d.status().get("tokens_generated", 0) > rows + 8,
                         "going on", 60)
                took.setdefault(NAMES[kind], []).append(time.monotonic() - begin)
            runner.join()
            check(results, "four jobs")
            compare(results[0], want, "faults")
        log = d.log()
    check("signal" not in log, "a worker that died by a signal", log[-3000:])
    check("is left alone" not in log, "no quarantine", log[-3000:])
    for name, seconds in sorted(took.items()):
        seconds.sort()
        print(f"{name}: {len(seconds)} times, going on after {seconds[len(seconds) // 2] * 1e3:.0f} ms (median), "
              f"{seconds[-1] * 1e3:.0f} ms (longest)")


@test
def says_what_is_missing():
    """auto goes on with the CPU and says why; what was asked for by name is not replaced."""
    if not os.path.exists("/dev/accel"):
        with daemon(TANDEM_NPU="auto") as d:
            w = d.wait_ready()["npu"]
            equal(w["device"], "host", "device")
            check("there is no /dev/accel" in w["reason"], "the reason", w)
            d.generate(n=4)
        with daemon(TANDEM_NPU="xrt") as d:
            wait_for(lambda: d.workers()["npu"].get("state") == "quarantined", "no device")
            check("no xrt device" in d.workers()["npu"]["last_exit"], "the reason", d.workers()["npu"])
    directory = tempfile.mkdtemp(prefix="tandem-test-npu-")
    try:
        for name, change, says in (
                ("manifest", lambda s: s.replace(b"generation = emulated", b"generation = strix"),
                 "is for generation strix"),
                ("manifest", lambda s: s.replace(b"op = gemm", b"op = magic", 1), 'there is no "magic"'),
                ("tandem.xclbin", lambda s: s[:-1], "truncated copy?"),
                ("tandem.xclbin", None, "No such file"),
                ("general-bf16-8.insts", lambda s: s[:-1], "not a number of 32-bit words")):
            shutil.rmtree(directory)
            shutil.copytree(PROGRAMS, directory)
            path = os.path.join(directory, name)
            with open(path, "rb") as f:
                data = f.read()
            os.unlink(path)
            if change:
                with open(path, "wb") as f:
                    f.write(change(data))
            with daemon(TANDEM_NPU_PROGRAMS=directory) as d:
                wait_for(lambda: "is left alone" in d.log(), "no device")
                check(says in d.log(), f"{name}: the reason", d.log())
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def install(to):
    """`cmake --install` of what the daemon needs, below `to`."""
    build = os.path.dirname(BIN)
    if not shutil.which("cmake") or not os.path.exists(os.path.join(build, "cmake_install.cmake")):
        raise Skip("no CMake or no build tree here")
    for component in ("daemon", "library", "xrt"):
        r = subprocess.run(["cmake", "--install", build, "--component", component], env=dict(os.environ, DESTDIR=to),
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        if "file INSTALL cannot find" in r.stdout:
            raise Skip(f"not everything is built here: {r.stdout[-200:]}")
        check(r.returncode == 0, f"install {component}", r.stdout)
    return {os.path.relpath(os.path.join(at, name), to) for at, _, names in os.walk(to) for name in names}


@test
def installed():
    """The module for XRT is installed beside the worker, the emulated NPU nowhere; each that is missing is named."""
    need_emulated()
    with tempfile.TemporaryDirectory(prefix="tandem-test-npu-") as to:
        files = install(to)
        module = next((f for f in files if os.path.basename(f) == "tandem-xrt.so"), None)
        check(module and os.path.basename(os.path.dirname(module)) == "tandem", "tandem-xrt.so beside the workers",
              files)
        check(os.path.join(os.path.dirname(module), "tandem-npu-worker") in files, "the worker", files)
        check(not [f for f in files if "emulated" in f or "libxrt_core" in f or "xclbin" in f], "nothing emulated",
              files)
        worker = next(os.path.join(to, f) for f in files if f.endswith("bin/tandemd"))
        module = os.path.join(to, module)
        with open(module, "rb") as f:
            data = f.read()
        check(b"libxrt_coreutil.so.2" in data, "the module names XRT's library")

        class Installed(Daemon):
            def start(self):
                here, tandem_test.BIN = tandem_test.BIN, os.path.dirname(worker)
                try:
                    super().start()
                finally:
                    tandem_test.BIN = here

        def refusal(device, says):
            with Installed(env={"TANDEM_NPU": device, "TANDEM_GPU": "host"}) as d:
                wait_for(lambda: d.workers()["npu"].get("state") == "quarantined", "no device")
                check(says in d.workers()["npu"]["last_exit"] or says in d.log(), says, d.log())

        refusal("emulated", "it is never installed")
        with open(module, "wb") as f:
            f.write(data.replace(b"libxrt_coreutil.so.2", b"libxrt_notthere.so.2"))
        refusal("xrt", "XRT is not installed or of another version (Debian 12: libxrt1): libxrt_notthere.so.2")
        os.unlink(module)
        refusal("xrt", "install the package tandem-xrt")
        with Installed(env={"TANDEM_NPU": "auto", "TANDEM_GPU": "host"}) as d:
            equal(d.wait_ready()["npu"]["device"], "host", "device of auto without XRT")
            d.generate(n=4)


@test
def chain_with_vulkan():
    """tandemd, emulated NPU and lavapipe, memory shared all the way: ids as alone, and both tracks at work at once."""
    need_emulated()
    try:
        ctypes.CDLL("libvulkan.so.1")
    except OSError as e:
        raise Skip("no Vulkan loader (Debian: libvulkan1 mesa-vulkan-drivers)") from e
    if SANITIZER or not glob.glob("/usr/share/vulkan/icd.d/lvp_icd*.json"):
        raise Skip("no lavapipe, or too slow under a sanitizer")
    shaders = os.path.join(os.environ.get("TANDEM_TEST_CACHE", "/tmp"), "shaders")
    os.makedirs(shaders, exist_ok=True)
    with Daemon(models=(SPROUT,), hang_ms=STANDING_MS,
                env=dict(TANDEM_NPU="emulated", TANDEM_GPU="vulkan", TANDEM_VULKAN_MEMORY="import",
                         MESA_SHADER_CACHE_DIR=shaders,
                         VK_ICD_FILENAMES=glob.glob("/usr/share/vulkan/icd.d/lvp_icd*.json")[0])) as d:
        w = d.wait_ready(120)
        equal((w["npu"]["device"], w["gpu"]["device"]), ("emulated", "vulkan"), "devices")
        check("imported" in w["gpu"]["detail"], "the GPU's path of memory", w["gpu"]["detail"])
        wanted = [{"n": 24, "temp": 0.7, "seed": i, "prompt": PROMPT + " " + "and" * i} for i in range(4)]
        alone = [d.generate(**q) for q in wanted]
        path = os.path.join(d.dir, "t.json")
        compare(all_there(d, wanted), alone, "together")  # one after the other they would not overlap
        d.cli("trace", "-o", path, "--past", "--seconds", "0", check_exit=0)  # what the workers did last
        with open(path) as f:
            tracks = {2: [], 3: []}  # of the npu and the gpu worker
            for e in json.load(f)["traceEvents"]:
                if e["ph"] == "X" and e["tid"] in tracks:
                    tracks[e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
        both = sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in tracks[2] for b in tracks[3])
        npu = sum(end - begin for begin, end in tracks[2])
        check(both > 0, "both tracks at work at once", both)
        print(f"npu track busy for {npu / 1e3:.0f} ms, {100 * both / npu:.0f}% of it while the gpu track was")


@test
def budget():
    """What does not fit the NPU's memory stays on the CPU."""
    with daemon(TANDEM_NPU_MEMORY_MB="3") as d:
        d.wait_ready()
        a = d.generate(n=12)
        check(re.search(r"layers from \d+ on run on the CPU", d.log()), "what does not fit", d.log())
        same_ids(d.generate(n=12, chunk=2).ids, a.ids, "part on the NPU, part on the CPU")


main()
