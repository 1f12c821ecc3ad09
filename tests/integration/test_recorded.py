"""Thirty jobs give the ids and log-probabilities that were recorded once.

Other tests compare a build with itself. This one compares it with builds of the past: whoever reshapes the code runs it
to see that no bit moved. The record is tests/golden/recorded-jobs.json. A change that means to move bits records them
anew, says so in its commit, and says why:

    TANDEM_BIN=build/bin /usr/bin/python3 -B tests/integration/test_recorded.py --full --record

The host device's jobs are quick. Those of the Vulkan device (recorded on lavapipe) and of the emulated NPU belong to
the full run, since they have bits of their own.
"""
import ctypes
import glob
import hashlib
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

RECORD = "--record" in sys.argv
PATH = os.path.join(TREE, "tests", "golden", "recorded-jobs.json")
SENTENCE = "Once upon a time there was a king who had three sons, and the youngest of them was called Simpleton. "
LONG = (SENTENCE * 6).strip()
CHAT = [("user", "Tell me a story about a fox and a crow.")]
GREEDY = {"temp": 0.0}
SAMPLED = {"temp": 0.9, "seed": 7}
FILTERED = {"temp": 1.1, "seed": 11, "top_k": 40, "top_p": 0.95, "min_p": 0.02}
PENALISED = {"temp": 0.7, "seed": 3, "repeat_penalty": 1.2}
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED, "filtered": FILTERED, "penalised": PENALISED}


def jobs(n, chunks=(0,), placements=("",), samplings=tuple(SAMPLINGS)):
    """Name and request of each job."""
    out = {}
    for sampling in samplings:
        out[f"{sampling}-short"] = dict(prompt=PROMPT, n=n, **SAMPLINGS[sampling])
    for chunk in chunks:
        out[f"sampled-long-chunks-{chunk}"] = dict(prompt=LONG, n=n, chunk=chunk, **SAMPLED)
    for placement in placements:
        if placement:
            out[f"filtered-long-{placement}"] = dict(prompt=LONG, n=n, placement=placement, **FILTERED)
    out["chat-greedy"] = dict(chat=CHAT, n=n, **GREEDY)
    return out


def digest(result):
    bits = b"".join(struct.pack("<f", p) for p in result.logprobs)
    return {"ids": result.ids, "logprobs_sha256": hashlib.sha256(bits).hexdigest()}


RECORDED = {}
if os.path.exists(PATH) and not RECORD:
    with open(PATH) as f:
        RECORDED = json.load(f)


def run(daemon, group, wanted):
    with daemon as d:
        for name, request in wanted.items():
            got = digest(d.generate(**request))
            key = f"{group}: {name}"
            if RECORD:
                RECORDED[key] = got
                continue
            check(key in RECORDED, f"a record of {key}")
            same_ids(got["ids"], RECORDED[key]["ids"], key)
            equal(got["logprobs_sha256"], RECORDED[key]["logprobs_sha256"], f"bits of {key}'s log-probabilities")


@test
def host_tale():
    run(Daemon(), "host, tale", jobs(64, chunks=(0, 1, 33), placements=("npu", "gpu")))


@test
def host_sprout():
    run(Daemon(models=(SPROUT,), threads=2), "host, sprout", jobs(64, chunks=(7,)))


@full_only
def lavapipe_sprout():
    """Split and whole on the GPU worker; on another Vulkan device the bits are that device's."""
    try:
        ctypes.CDLL("libvulkan.so.1")
    except OSError:
        raise Skip("no Vulkan loader (Debian: libvulkan1)")
    if not glob.glob("/usr/share/vulkan/icd.d/lvp_icd*.json"):
        raise Skip("no lavapipe (Debian: mesa-vulkan-drivers)")
    shaders = os.path.join(os.environ.get("TANDEM_TEST_CACHE", "/tmp"), "shaders")
    os.makedirs(shaders, exist_ok=True)
    env = {"TANDEM_GPU": "vulkan", "TANDEM_NPU": "host", "MESA_SHADER_CACHE_DIR": shaders}
    run(Daemon(models=(SPROUT,), env=env, hang_ms=60000), "lavapipe, sprout",
        jobs(24, chunks=(0, 33), placements=("gpu",), samplings=("greedy", "sampled", "filtered")))


@full_only
def emulated_npu_tale():
    if not os.path.exists(os.path.join(BIN, "..", "lib", "npu-emulated", "programs", "manifest")):
        raise Skip("the emulated NPU is not in this build (Debian: libxrt-dev, uuid-dev)")
    env = {"TANDEM_NPU": "emulated", "TANDEM_GPU": "host"}
    run(Daemon(env=env), "emulated NPU, tale",
        jobs(24, chunks=(0, 33), placements=("npu",), samplings=("greedy", "sampled", "filtered")))


if RECORD:
    @test
    def written():
        lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(RECORDED.items()))
        with open(PATH, "w") as f:
            f.write("{\n" + lines + "\n}\n")
        print(f"recorded {len(RECORDED)} jobs in {PATH}")


main()
