"""Hidden rows as a dma-buf, for real: in a guest whose kernel has udmabuf and whose Vulkan driver (Mesa's on CPUs)
imports dma-bufs, with `split` placement, so that rows go to and fro between the NPU worker, which computes with the
CPU, and the GPU worker's device. The ids are those of the run over memfds, status says which way was taken, a killed
worker changes nothing, and without the device node the next best way is taken, or a model refused where the
configuration forbids that."""
import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from guest import boot  # noqa: E402
from tandem_test import *  # noqa: E402,F403

TOKENS = 24
PROGRAMS = ("tandemd", "tandem", "tandem-npu-worker", "tandem-gpu-worker")

# Answers are lines "@what rest". The daemon's log comes last, for people.
INIT = """#!/bin/dash
export PATH=/usr/bin:/bin:/usr/sbin:/sbin HOME=/tmp LANG=C.UTF-8
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp; mount -t tmpfs run /run
mkdir /dev/shm; mount -t tmpfs shm /dev/shm
export XDG_RUNTIME_DIR=/run TANDEM_GPU=vulkan TANDEM_NPU=host TANDEM_PLACEMENT=split TANDEM_HANG_MS=60000
export XDG_CACHE_HOME=/tmp/cache XDG_STATE_HOME=/tmp/state
mkdir /tmp/cache /tmp/state; : >/tmp/killed
exec 2>&1
say() { echo "@$*"; }
seconds() { read up rest </proc/uptime; echo "$up"; }
tandem() { /tandem/bin/tandem --socket /run/socket "$@"; }
generate() {
        tandem generate --temp 0 -n TOKENS --ignore-end --json "Once upon a time" >/tmp/out 2>&1
        say "$1" done $(tail -n 1 /tmp/out)
}
start() {
        printf '[engine]\\nactivations = %s\\n' "$2" >/tmp/conf
        /tandem/bin/tandemd --user --bus none --socket /run/socket --config /tmp/conf \\
                --model /tandem/sprout.gguf >/tmp/log.$1 2>&1 &
        daemon=$!
        for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do [ -S /run/socket ] || sleep 1; done
}
stop() {
        say "$1" status $(tandem status --json)
        kill $daemon; wait $daemon; say "$1" exit $?
        cat /tmp/log.$1
        say "$1" seconds $(seconds)
}
run() { start "$@"; generate "$1"; stop "$1"; }

say kernel $(uname -r)
say node $(ls /dev/udmabuf)
/tandem/unit/test-dmabuf; say unit $?
mkdir /tmp/cache/tandem
MESA_SHADER_CACHE_DIR=/tmp/cache/tandem /tandem/unit/test-vulkan '*_dmabuf'; say vulkan $?
say vulkan seconds $(seconds)
run memfd memfd
start dmabuf dma-buf
generate dmabuf
tandem generate --temp 0 -n TOKENS --ignore-end --json "Once upon a time" >/tmp/killed 2>&1 & job=$!
n=0; while [ "$(wc -l </tmp/killed)" -lt 6 ] && [ $n -lt 600 ]; do n=$((n + 1)); sleep 0.1; done
kill -9 $(tandem status --json | sed 's/.*"name":"gpu"[^}]*"pid":\\([0-9]*\\).*/\\1/')
wait $job; say killed done $(tail -n 1 /tmp/killed)
stop dmabuf
run auto auto
rm /dev/udmabuf
run away auto
run forced dma-buf
sync; echo o >/proc/sysrq-trigger; sleep 60
"""


@test
def split_over_dmabufs():
    if SANITIZER:
        raise Skip("an emulated machine is slow enough; the release run boots it")
    files = {f"tandem/bin/{p}": os.path.join(BIN, p) for p in PROGRAMS}
    files["usr/lib/x86_64-linux-gnu/libtandem.so.0"] = os.path.join(os.path.dirname(BIN), "lib", "libtandem.so.0")
    files["tandem/sprout.gguf"] = SPROUT
    files.update({f"tandem/unit/{p}": os.path.join(os.path.dirname(BIN), "unit", p)
                  for p in ("test-dmabuf", "test-vulkan")})
    begin = time.monotonic()
    text = boot(INIT.replace("TOKENS", str(TOKENS)), files, 1500)
    said = {}
    for who, what, rest in re.findall(r"^@(\w+) (\w+) ?(.*)$", text, re.M):
        said[who, what] = rest
    try:
        judge(text, said)
    except BaseException:
        print("---- the guest's serial line\n" + text[-20000:] + "\n----", flush=True)
        raise
    print(f"FIGURE guest: split over dma-bufs gives the {TOKENS} ids of the memfd run, "
          f"booted and run in {time.monotonic() - begin:.0f} s")


def judge(text, said):
    def ids(who):
        done = json.loads(said[who, "done"])
        equal((done["event"], len(done["ids"])), ("done", TOKENS), f"the last event of {who}")
        return done["ids"]

    def gpu(who):
        return next(w for w in json.loads(said[who, "status"])["workers"] if w["name"] == "gpu")
    check("@node /dev/udmabuf" in text, "udmabuf in the guest")
    check("@unit 0\n" in text, "test-dmabuf in the guest")
    check("@vulkan 0\n" in text, "test-vulkan in the guest")
    check(not re.search(r"\[  SKIPPED \] (same_memory|too_large|as_dmabuf)", text), "what they skipped")
    check("hidden rows imported in place (dma-buf)" in text.split("@memfd")[0], "a dma-buf in test-vulkan")
    want = ids("memfd")
    check(len(set(want)) > 4, "ids that say something", want)
    for who, way in (("memfd", "(host pointer);"), ("dmabuf", "(dma-buf);"),
                     ("auto", "(dma-buf);"), ("away", "(host pointer);")):
        same_ids(ids(who), want, who)
        check("hidden rows imported in place " + way in gpu(who)["plan"], f"the way of hidden rows, {who}",
              gpu(who)["plan"])
        equal(gpu(who)["device"], "vulkan", "the device")
        check("seccomp" in gpu(who)["sandbox"] and "off" not in gpu(who)["sandbox"], "the sandbox", gpu(who)["sandbox"])
        model = json.loads(said[who, "status"])["models"][0]
        equal(model["placement"], "split", "the placement")
        equal(said[who, "exit"], "0", f"how tandemd left, {who}")
    same_ids(ids("killed"), want, "the GPU worker killed in the middle")
    check(json.loads(said["killed", "done"])["recoveries"] >= 1, "it was a recovery", said["killed", "done"])
    check("activations = dma-buf" in said["forced", "done"] and "/dev/udmabuf" in said["forced", "done"],
          "refused, with the reason", said["forced", "done"])
    print("     " + "; ".join(f"{who} at {said[who, 'seconds']} s"
                              for who in ("vulkan", "memfd", "dmabuf", "auto", "away", "forced")))
    print(f"     kernel {re.search(r'^@kernel (.*)$', text, re.M)[1]}, {gpu('dmabuf')['detail']}; "
          f"sandbox {gpu('dmabuf')['sandbox']}")


main()
