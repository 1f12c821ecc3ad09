"""A model file that is cut short or rewritten while it is in use fails that model, with a clear error, and
nothing else."""
import shutil
import tempfile
import time

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

CODES = ("model-changed", "bad-model")


def fails(d, name, what):
    try:
        r = d.generate(model=name, n=4)
    except Refused as e:
        check(e.code in CODES, f"{what}: {e.code}", e.message)
        check(name in e.message or "changed" in e.message, f"{what}: the message says what", e.message)
        return
    raise AssertionError(f"{what}: the model still answers: {r.ids}")


def serves(d, want):
    same_ids(d.generate(model="tale", n=10).ids, want.ids, "the other model")


@test
def after_loading():
    with Daemon(models=[TALE]) as d, tempfile.TemporaryDirectory() as tmp:
        want = d.generate(model="tale", n=10)
    for what in ("cut short", "rewritten", "emptied", "overwritten by another model"):
        with tempfile.TemporaryDirectory() as tmp:
            path = os.path.join(tmp, "victim.gguf")
            shutil.copyfile(SPROUT, path)
            with Daemon(models=[TALE, path]) as d:
                good = d.generate(model="victim", n=300)
                job = d.start_job(model="victim", n=300)
                job.until(3)
                time.sleep(0.01)
                if what == "cut short":
                    os.truncate(path, os.path.getsize(path) // 2)
                elif what == "emptied":
                    os.truncate(path, 0)
                elif what == "rewritten":
                    with open(path, "r+b") as f:
                        f.seek(os.path.getsize(path) - 200000)
                        f.write(os.urandom(100000))
                else:
                    with open(path, "r+b") as f:
                        f.write(open(TALE, "rb").read())
                # The running job has its weights in a sealed copy: it may end as it would have or fail, never differ.
                r = job.wait()
                if r.reason == "DONE_ERROR":
                    check(r.error["code"] in CODES, f"{what}: the running job", r.error)
                else:
                    same_ids(r.ids, good.ids, f"{what}: the running job")
                if what == "overwritten by another model":
                    # A whole new model under the old name: it is what the next job gets, and nothing of the old one.
                    new = d.generate(model="victim", n=30)
                    same_ids(new.ids, d.generate(model="tale", n=30).ids, what)
                else:
                    fails(d, "victim", what)
                serves(d, want)
                check(d.process.poll() is None, "tandemd lives")


@test
def while_loading():
    """The file shrinks under the map while its weights are being repacked."""
    path = make_model("270m", "f16", vocab=32768)
    seen = []
    with Daemon(models=[TALE]) as d, tempfile.TemporaryDirectory() as tmp:
        want = d.generate(model="tale", n=10)
        victim = os.path.join(tmp, "shrinking.gguf")
        for delay in (0.0, 0.02, 0.06, 0.12, 0.2)[:times(4, 5, 2)] + (0.0,) * 8:
            if len(seen) >= times(4, 5, 2) and any(s != "loaded in time" for s in seen):
                break  # else this test was kept waiting: once more
            shutil.copyfile(path, victim)
            with d.wire(timeout=120 * SLOW) as w, open(victim, "rb") as f:
                fields = request(ids=[2, 300], n=2)
                fields["model"] = {"name": victim, "from_fd": True}
                rid = w.send("generate", fields, fd=f.fileno())
                time.sleep(delay * SLOW)
                os.truncate(victim, 4096 if delay else 1 << 20)
                while True:
                    kind, m = w.receive(rid)
                    if kind in ("error", "done"):
                        break
                error = m if kind == "error" else m.get("error")
                seen.append(error["code"] if error else "loaded in time")
                if error:
                    check(error["code"] in CODES, "the error", error)
            serves(d, want)
        print(f"cut while loading: {seen}")
        check(any(s != "loaded in time" for s in seen), "no cut met the loading", seen)


main()
