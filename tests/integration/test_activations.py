"""The key `activations`: whatever way hidden rows go, the ids are the same; and where only a dma-buf will do and none
can be made, the model is refused with the reason. What a GPU makes of it: guest-dmabuf, test-vulkan."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

NODE = "/dev/udmabuf"


def ids(activations):
    with tempfile.NamedTemporaryFile("w", prefix="tandem-", suffix=".conf") as f:
        f.write(f"[engine]\nactivations = {activations}\n")
        f.flush()
        with Daemon(models=(SPROUT,), args=["--config", f.name]) as d:
            return d.generate(n=16).ids


@test
def same_ids_either_way():
    same_ids(ids("auto"), ids("memfd"), "auto, memfd")


@test
def forced():
    if os.access(NODE, os.R_OK | os.W_OK):
        same_ids(ids("dma-buf"), ids("memfd"), "dma-buf, memfd")
        return
    try:
        ids("dma-buf")
    except Refused as e:
        check("activations = dma-buf, but cannot open " + NODE in str(e), "what is said", str(e))
    else:
        check(False, "a model was served without the dma-buf that was asked for")


main()
