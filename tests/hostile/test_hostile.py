"""A worker that was taken over cannot get out: files, devices, sockets, programs, and all of it through io_uring. Here
as tandemd starts it without systemd; as a unit in test_nspawn.py, with the same program.

First the attempts are made without the sandbox, and each gets in: what is refused later is refused by the sandbox."""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "chaos"))
from tandem_test import *  # noqa: E402,F403
from private_bin import PrivateBin  # noqa: E402

HOSTILE = os.path.join(os.path.dirname(BIN), "hostile")
FILES = ("passwd", "create", "init", "device")
private = []  # one for all, made when it is needed
DEADLY = ("inet", "unix", "netlink", "exec", "uring-passwd", "uring-device", "uring-socket")


class Taken(Daemon):
    """A tandemd whose GPU worker is the hostile one; of what it tries the log tells."""

    def __init__(self, attempts, driver=False, **env):
        more = {"TANDEM_HOSTILE": ",".join(attempts), "TANDEM_GPU": "host", "TANDEM_NPU": "host", **env}
        if driver:
            more["TANDEM_HOSTILE_DRIVER"] = "1"
        super().__init__(env=more, placement=None)

    def said(self):
        return dict(re.findall(r"^hostile: ([\w-]+) at \w+: (refused \(.*\)|GOT IN)$", self.log(), re.M))


def with_hostile(function):
    if SANITIZER:
        raise Skip("a sanitizer needs what the sandbox takes away, so such builds have none")
    path = os.path.join(HOSTILE, "tandem-gpu-worker")
    if not os.path.exists(path):
        raise Skip(f"no hostile worker in {HOSTILE} (built with the tests)")
    if not private:
        private.append(PrivateBin())
    private[0].put("gpu", path)
    function()


@test
def attempts_are_real():
    """Without the sandbox each of them gets in, io_uring included where the kernel has it."""
    def run():
        with Taken(FILES + ("inet", "unix", "uring-passwd", "uring-device", "uring-socket"), TANDEM_SANDBOX="off") as d:
            d.generate(n=8)
            wait_for(lambda: "hostile: done" in d.log(), "the attempts")
            said = d.said()
            for name in FILES + ("inet", "unix", "uring-passwd", "uring-device", "uring-socket"):
                if name == "init":  # may be out of reach anyway
                    continue
                equal(said.get(name), "GOT IN", f"{name} without a sandbox")
    with_hostile(run)
    try:
        os.unlink("/var/tmp/tandem-hostile")
    except OSError:
        pass


def served(d):
    """A job beside a worker that dies of each load. After four deaths, half a second, the model is given up: where the
    other worker had no processor for that long, the job too. The next death is its last for a while."""
    try:
        return d.generate(n=8)
    except Refused as e:
        equal(e.code, "device-fault", f"why the model was given up ({e})")
    return d.generate(n=8)


def refused(driver):
    """Files one after the other in one life; what kills, each in a life of its own."""
    def run():
        with Taken(FILES + ("passwd-write", "parent-memory"), driver) as d:
            d.generate(n=8)
            wait_for(lambda: "hostile: done" in d.log(), "the attempts")
            said = d.said()
            for name in FILES + ("passwd-write", "parent-memory"):
                check(said.get(name, "").startswith("refused (") and "No such file" not in said[name],
                      f"{name} is refused", said.get(name))
            print("     refused: " + ", ".join(f"{k} {v[8:]}" for k, v in sorted(said.items())))
            worker = d.workers()["gpu"]
            check("landlock" in worker["sandbox"] and ("a driver's files" in worker["sandbox"]) == driver,
                  "which sandbox", worker)
        for name in DEADLY:
            with Taken([name], driver) as d:
                equal(len(served(d).ids), 8, "others are served, by the other worker")
                wait_for(lambda: "a system call that its sandbox forbids" in d.log(), f"{name} kills")
                check(f"hostile: {name} at load: trying" in d.log(), "it did try", d.log()[-600:])
                check("GOT IN" not in d.log() and "hostile: done" not in d.log(), f"{name} is refused", d.log()[-600:])
        print(f"     killed for: {', '.join(DEADLY)}")
    with_hostile(run)


@test
def while_opening():
    """A driver that is bad from the start: before the last wall stands, files, devices, sockets and io_uring are
    refused already."""
    names = FILES + ("passwd-write", "parent-memory", "inet", "unix", "netlink", "uring-passwd", "uring-device",
                     "uring-socket")

    def run():
        with Taken(names, True, TANDEM_HOSTILE_AT="open") as d:
            wait_for(lambda: "hostile: done at open" in d.log(), "the attempts")
            said = d.said()
            equal({k for k, v in said.items() if v.startswith("refused")}, set(names),
                  "refused while the device is opened")
            check(len(d.generate(n=8).ids) == 8, "it works all the same")
    with_hostile(run)


@test
def computing():
    """The sandbox of a device that only computes."""
    refused(False)


@test
def driving():
    """The wider one, of a device whose driver goes on opening files: not these."""
    refused(True)


main()
