"""The vulkan device behind the daemon: split and single placement, what status shows, and the same tokens after the GPU
worker was killed, with its cache in shared memory. Skipped where there is no Vulkan device.

With VK_INSTANCE_LAYERS (and VK_LAYER_ENABLES) every GPU worker runs under the validation layers, which must say
nothing."""
import ctypes
import glob
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "tests", "lib"))
from tandem_test import *  # noqa: E402,F403

# A CPU implementation compiles a kernel when it first runs: kept between runs, and no deadline is fair to it.
SHADERS = os.path.join(os.environ.get("TANDEM_TEST_CACHE", "/tmp"), "shaders")


LAYERS = {name: os.environ[name] for name in ("VK_INSTANCE_LAYERS", "VK_LAYER_ENABLES") if os.environ.get(name)}
LAYER_BYTES = 520  # VkLayerProperties: 256 of name, two numbers, 256 of description
LAYERS_SAY = re.compile(r".*(VUID-|Validation Error|Validation Warning|SYNC-HAZARD|UNASSIGNED).*")


class Watched(Daemon):
    def stop(self):
        wrong, said = super().stop(), LAYERS_SAY.search(self.log())
        return wrong or (said and f"the validation layers are not silent: {said.group()}")


def there_is_vulkan():
    try:
        ctypes.CDLL("libvulkan.so.1")
    except OSError:
        return False
    return bool(glob.glob("/usr/share/vulkan/icd.d/*.json") + glob.glob("/etc/vulkan/icd.d/*.json"))


def missing_layer():
    """The first layer of VK_INSTANCE_LAYERS that the loader does not have; it says nothing about that itself."""
    layers, n = ctypes.create_string_buffer(256 * LAYER_BYTES), ctypes.c_uint32(256)
    if ctypes.CDLL("libvulkan.so.1").vkEnumerateInstanceLayerProperties(ctypes.byref(n), layers) < 0:
        n.value = 0
    have = {layers.raw[i * LAYER_BYTES:].split(b"\0", 1)[0].decode() for i in range(n.value)}
    wanted = LAYERS.get("VK_INSTANCE_LAYERS", "").split(":")
    return next((layer for layer in wanted if layer and layer not in have), None)


def vulkan(placement, memory, npu="host", more_env={}, **more):
    if not there_is_vulkan():
        raise Skip("no Vulkan loader or driver (Debian: libvulkan1 mesa-vulkan-drivers)")
    if missing_layer():
        raise Skip(f"the layer {missing_layer()} is not installed (Debian: vulkan-validationlayers)")
    os.makedirs(SHADERS, exist_ok=True)
    return Watched(models=(SPROUT,), placement=placement, hang_ms=60000,
                   env=dict(LAYERS, TANDEM_GPU="vulkan", TANDEM_NPU=npu, TANDEM_VULKAN_MEMORY=memory,
                            MESA_SHADER_CACHE_DIR=SHADERS, VK_LOADER_DEBUG="layer" if LAYERS else "none", **more_env),
                   **more)


@test
def shown():
    """Device, memory and path are in status; nothing was replaced silently."""
    for memory in ("import", "copy"):
        with vulkan("split", memory) as d:
            d.wait_ready()
            w = d.workers()
            equal(w["gpu"]["device"], "vulkan", "device of the gpu worker")
            equal(w["npu"]["device"], "host", "device of the npu worker")
            check(("imported" if memory == "import" else "copied") in w["gpu"]["detail"], "path of memory",
                  w["gpu"]["detail"])
            # else their silence would say nothing
            for layer in filter(None, LAYERS.get("VK_INSTANCE_LAYERS", "").split(":")):
                check(f'Insert instance layer "{layer}"' in d.log(), f"{layer} is in use", d.log()[-2000:])


KEPT = []  # files that go with this process


def config(text):
    f = tempfile.NamedTemporaryFile("w", prefix="tandem-", suffix=".conf")
    f.write("[engine]\n" + text)
    f.flush()
    KEPT.append(f)
    return ["--config", f.name]


@test
def chosen():
    """Which GPU and how much of its memory: by name or number in the configuration. What is not there or too much
    is said."""
    with vulkan("gpu", "copy", args=config("gpu-device = LLVMPIPE\ngpu-memory = 1G\n")) as d:
        d.wait_ready()
        check("llvmpipe" in d.workers()["gpu"]["detail"], "the named device", d.workers()["gpu"])
        equal(len(d.generate(n=3).ids), 3, "tokens")
    with vulkan("gpu", "copy", args=config("gpu-device = 0\ngpu-memory = 2M\n")) as d:
        try:
            d.generate(n=3)
            check(False, "a model that takes more than 2 MiB was refused")
        except Refused as e:
            check("MiB on the GPU" in str(e) and "gpu-memory" in str(e), "what is said", str(e))
    with vulkan("measured", "copy", args=config("gpu-device = No such card\n")) as d:
        wait_for(lambda: "no Vulkan 1.3 device like No such card (there" in d.log(),
                 "the message")
        equal(d.generate(n=3).reason, "DONE_LENGTH", "the other worker goes on")


@test
def same_tokens():
    """Memory imported or copied: the same ids; and greedy text has the prompt's language."""
    ids = {}
    for placement in ("split", "gpu"):
        for memory in ("import", "copy"):
            with vulkan(placement, memory) as d:
                ids[placement, memory] = d.generate(n=24).ids
        equal(ids[placement, "import"], ids[placement, "copy"], f"ids of {placement}")


@test
def draws():
    """What comes to the host of the logits changes no draw: without a filter, with penalties, biases, alternatives."""
    samplings = [dict(temp=t, seed=s, **more) for t in (0.8, 3.0) for s, more in enumerate((
        {}, {"repeat_penalty": 1.3}, {"frequency_penalty": 1.5, "presence_penalty": -0.5}, {"top_logprobs": 5},
        {"logit_bias": "300:4,301:-2,5:60", "repeat_penalty": 0.7}, {"logit_bias": "300:4,301:-2", "top_k": 40},
        {"frequency_penalty": 2.0, "top_p": 0.9, "min_p": 0.01}))]
    samplings.append(dict(temp=0.0, presence_penalty=1.0, logit_bias="300:3"))
    found = []
    for logits in ("", "whole"):
        with vulkan("gpu", "copy", more_env={"TANDEM_VULKAN_LOGITS": logits}) as d:
            found.append([(r.ids, r.logprobs) for r in (d.generate(n=24, **s) for s in samplings)])
    for few, whole, sampling in zip(*found, samplings):
        same_ids(few[0], whole[0], f"{sampling}")
        equal(few[1], whole[1], f"log-probabilities of {sampling}")


@test
def killed_often():
    """split with imported memory (no copy of hidden rows: status says so): either worker dies again and again, 20
    times in all with --full, and every job's ids are those of an undisturbed one."""
    with vulkan("split", "import") as d:
        want = d.generate(n=120).ids
        check("hidden rows imported in place" in d.workers()["gpu"].get("plan", ""), "path of hidden rows",
              d.workers()["gpu"])
        kills = 0
        while kills < times(4, 20):
            job = d.start_job(n=120)
            for at in (20, 60):
                name = ("gpu", "npu")[kills % 2]
                job.until(at)
                send_signal(d.worker_pid(name), signal.SIGKILL)
                kills += 1
            got = job.wait()
            equal(got.ids, want, f"ids after {kills} kills")
            check(got.recoveries >= 1, "it was a recovery", got)
            d.wait_ready(120)
        print(f"FIGURE {kills} kills of either worker, ids identical")


@test
def killed():
    """kill -9 of the GPU worker in the middle of a job: no token is lost or changed, in both ways of memory."""
    for placement, memory in (("split", "import"), ("gpu", "copy")):
        with vulkan(placement, memory) as d:
            want = d.generate(n=40).ids
            job = d.start_job(n=40)
            job.until(12)
            send_signal(d.worker_pid("gpu"), signal.SIGKILL)
            got = job.wait()
            equal(got.ids, want, f"ids, {placement}, {memory}")
            check(got.recoveries >= 1, "it was a recovery", got)


main()
