"""`gpu = required` and `npu = required`: without the accelerator nothing runs, and everyone is told why. tandemd stays
up, so a service manager has nothing to start again. The accelerator is that of tests/chaos/faulty-worker.c: it is there
as long as a file is."""
import os
import re
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
sys.path.insert(0, os.path.join(HERE, "..", "chaos"))
from tandem_test import *  # noqa: E402,F403
import private_bin  # noqa: E402

PRIVATE = private_bin.PrivateBin(faulty=True)
NAMES = {"npu": "NPU", "gpu": "GPU"}
JOB = {"prompt": "Once upon a time", "n": 40, "ignore_end": True}


class Accelerator:
    """A file that stands for it, and the setting that requires it."""

    def __init__(self, name, there):
        self.name, self.path = name, os.path.join(tempfile.mkdtemp(prefix="tandem-test-required-"), name)
        self.env = {f"TANDEM_{name.upper()}": "required", f"TANDEM_FAULT_{name.upper()}": f"device={self.path}"}
        if there:
            self.appear()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        shutil.rmtree(os.path.dirname(self.path))

    def appear(self):
        open(self.path, "w").close()

    def check_message(self, text, who):
        for part in (f"{self.name} = required", f"the {NAMES[self.name]} cannot be used", f"no file {self.path}",
                     "`tandem doctor`", f"{self.name} = auto in tandem.conf"):
            check(part in text, f"{who} says {part!r}", text)

    def is_missed(self, d):
        w = d.workers()[self.name]
        return w["state"] == "quarantined" and self.path in w.get("last_exit", "")


def refusal(d, **more):
    """The error of a job, which must not run."""
    try:
        r = d.generate(**JOB, **more)
    except Refused as e:
        equal(e.code, "no-worker", "the kind of the error")
        return e.message
    raise AssertionError(f"a job ran without the required device: {r.ids}")


@test
def refuses_and_stays():
    for name in NAMES:
        other = "npu" if name == "gpu" else "gpu"
        with Accelerator(name, there=False) as a, Daemon(placement=None, env=a.env) as d:
            a.check_message(refusal(d), "a job that came before the worker knew")
            wait_for(lambda: a.is_missed(d), f"the {name} worker says that there is no device", 30)
            for placement in ("", other, "split"):
                a.check_message(refusal(d, placement=placement), f"a job with placement {placement!r}")
            w = d.workers()
            equal(w[name]["requested"], "required", "what was asked for")
            equal(sum(blocks(w[other]).values()), 0, "blocks that the CPU ran")
            check(re.search(rf"{name} worker cannot be used: .*{name} = required, so no job is run", d.log()),
                  "the log says so", d.log())
            r = d.cli("generate", "-m", "tale", "-n", "2", "x", check_exit=1)
            a.check_message(r.stderr.decode(), "`tandem generate`")
            r = d.cli("status", check_exit=0)
            check(re.search(rf"{name}.*quarantined(.|\n)*required", r.stdout.decode()), "`tandem status`", r.stdout)
            r = d.cli("doctor", check_exit=1)
            check(re.search(rf"^MEND +{name} worker .*no file", r.stdout.decode(), re.M), "`tandem doctor`", r.stdout)
            check(f"{name} = auto in tandem.conf takes the CPU instead" in r.stdout.decode(), "what helps", r.stdout)
            check(d.process.poll() is None, "tandemd is still there")
            # Once it is there, it is used without a new tandemd.
            a.appear()
            d.cli("restart", name, check_exit=0)
            d.wait_ready()
            equal(len(d.generate(**JOB).ids), JOB["n"], "tokens")
            # That job's steps may all have gone to the other worker, which is in reserve no less than this one.
            equal(len(d.generate(**JOB, placement=name).ids), JOB["n"], "tokens of the required device")
            check(sum(blocks(d.workers()[name]).values()) > 0, "blocks of the required device")


@test
def waits_for_a_lost_one():
    """A device that is lost in the midst of a job and comes back: the job goes on with the same tokens, and no block
    runs on the other worker meanwhile."""
    with Accelerator("gpu", there=True) as a, Daemon(placement="gpu", env=a.env, hang_ms=STANDING_MS) as d:
        d.wait_ready()
        want = d.generate(**JOB).ids
        with d.in_midst(JOB) as (job,):
            os.unlink(a.path)
            d.signal_worker("gpu", signal.SIGKILL)
            wait_for(lambda: a.path in d.workers()["gpu"].get("last_exit", ""), "the device is missing", 30)
            check(not job.result.reason, "the job waits", job.result)
            a.appear()
        equal(job.wait().ids, want, "ids")
        equal(sum(blocks(d.workers()["npu"]).values()), 0, "blocks of the CPU")


@test
def words():
    """A word that is none is refused with those that are."""
    r = subprocess.run([os.path.join(BIN, "tandemd"), "--check-config", "--config", "/dev/stdin"],
                       input="[engine]\ngpu = requird\n", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    check(r.returncode == 2 and "auto, required, vulkan, host, off" in r.stderr, "what it says", r.stderr)


if __name__ == "__main__":
    main()
