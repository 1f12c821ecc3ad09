"""The sources of NPU programs (npu-worker/programs/) as far as they can be checked without mlir-aie: the design runs on
a stand-in of its Python bindings (standin/aie/machine.py), which holds it to the hardware's public rules, and the
cores' functions are compiled for this CPU against a stand-in of the AIE API. Rows and weights are packed by the
worker's own code, which also reads the manifest.

usage: test_programs.py PACK KERNELS      the program npu-programs-pack; a folder with the compiled functions"""
import ctypes
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.join(HERE, "..", "..")
PROGRAMS = os.path.join(TREE, "npu-worker", "programs")
sys.dont_write_bytecode = True
try:
    import numpy as np
except ImportError:
    print("SKIP python3-numpy is missing")
    sys.exit(77)
sys.path[:0] = [PROGRAMS, os.path.join(HERE, "standin")]
import design  # noqa: E402
import layout  # noqa: E402
import shapes  # noqa: E402
from aie.machine import Machine, Wrong  # noqa: E402
from aie.machine import check as must  # noqa: E402

TYPES = ("bf16", "int8", "int4")
# Largest difference from sums in double, relative to the largest sum. Measured: 3.3e-7, 0, 1.6e-7.
BOUNDS = {"bf16": 2e-6, "int8": 0, "int4a16": 2e-6}


def load_build():
    loader = importlib.machinery.SourceFileLoader("build", os.path.join(PROGRAMS, "build"))
    spec = importlib.util.spec_from_loader("build", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


build = load_build()


def check(ok, what, *more):
    if not ok:
        print("FAILED", what, *more)
        sys.exit(1)


def kernels(folder, kind):
    return ctypes.CDLL(os.path.join(folder, f"lib{kind.define.lower()}-{kind.mmul_n}.so"))


def record(plan):
    """A design's machine, ready to run, and its text."""
    text = design.module(plan, "kernels.o")
    return Machine.now, text


def run(plan, memory, library):
    machine, _ = record(plan)
    return machine.run(memory, library)


def covers_exactly(plan):
    """Without arithmetic: each weight is read once, each row in every round, each result written once; every word that
    is sent is taken."""
    memory = [np.zeros(n, np.int32) for n in plan.sizes_words()]
    a, b, c = run(plan, memory, None)
    must((a.reads == plan.rounds).all() and (a.writes == 0).all(), f"not all rows are read in every round of {plan}")
    must((b.reads == 1).all() and (b.writes == 0).all(), f"not each weight is read once in {plan}")
    must((c.writes == 1).all() and (c.reads == 0).all(), f"not each result is written once in {plan}")


def all_sets():
    """Every program of every set: the rules, and that they share their configuration."""
    n = 0
    for device in layout.DEVICES.values():
        for type_name in TYPES:
            plans = build.plan_set(device, type_name, sorted(shapes.PRODUCTS))
            texts = set()
            for _, plan in plans:
                machine, text = record(plan)
                texts.add(build.configuration(text))
                cores = [t for t in machine.tiles.values() if t.has_core]
                check(len(cores) == 2 * device.columns - 1, "cores", len(cores))
                check({t.bytes for t in cores} == {layout.tile_bytes(plan.kind)}, "memory of a core",
                      {t.bytes for t in cores}, layout.tile_bytes(plan.kind))
                n += 1
            check(len(texts) == 1, f"{device.name} {type_name}: one configuration for all programs", len(texts))
            small = [p for _, p in plans if p.m == layout.ROWS and p.k * p.n <= 1152 * 1536]
            for plan in small + [plans[-1][1]] * (type_name == "int4"):
                covers_exactly(plan)
            print(f"{device.name} {type_name}: {len(plans)} programs share a configuration; a core's memory "
                  f"{layout.tile_bytes(plans[0][1].kind)} of {layout.TILE_BYTES}; {len(small)} moved word by word")
    return n


def pack(tool, plans, name, folder):
    path = os.path.join(folder, "manifest")
    with open(path, "w", encoding="utf-8") as f:
        f.write(build.manifest(plans, plans[0][1].device.generation))
    subprocess.run([tool, path, name, folder], check=True)
    read = lambda file, kind: np.fromfile(os.path.join(folder, file), kind)  # noqa: E731
    return read("a", np.int32), read("b", np.int32), read("c", np.float64)


def products(tool, folder):
    """Numbers, as the worker packs them, through design and functions."""
    for device in layout.DEVICES.values():
        for type_name in TYPES:
            kind = layout.kind(type_name, device.name)
            # The 1B's output (uneven shares), and less than a block for each core.
            plans = [(f"p{m}-{k}-{n}", layout.Plan(device, kind, m, k, n))
                     for m, k, n in ((4, 1024, 1152), (16, 256, 1152), (64, 256, 1152), (4, 256, 1152), (64, 128, 192))]
            first = None
            for i, (name, plan) in enumerate(plans):
                with tempfile.TemporaryDirectory() as work:
                    a, b, want = pack(tool, plans, name, work)
                got = np.zeros(plan.m * plan.n, np.int32)
                check((len(a), len(b), len(got)) == plan.sizes_words(), "sizes of buffers", len(a), len(b), plan)
                run(plan, [a, b, got], kernels(folder, kind))
                values = got.view(kind.c)
                worst = np.abs(values - want).max() / np.abs(want).max()
                check(worst <= BOUNDS[kind.name] and np.abs(want).max() > 0, f"{device.name} {kind.name} {name}", worst)
                # The same rows and weights in fewer rows: the same bits.
                if (plan.m, plan.k) == (16, 256):
                    first = (plan, a, b)
                if (plan.m, plan.k) == (64, 256):
                    few, words = plans[3][1], kind.row_words(plan.k)
                    again = np.zeros(few.m * few.n, np.int32)
                    run(few, [a[8 * words:12 * words].copy(), b, again], kernels(folder, kind))
                    check((again == got.reshape(64, -1)[8:12].reshape(-1)).all(), "4 rows of 64: the same bits", kind)
                print(f"{device.name} {kind.name} {plan.m}x{plan.k}x{plan.n}: off by {worst:.1e} at most")
            check(first is not None, "a program of 16 rows ran")


def broken():
    """The stand-in notices what is wrong, and so does the build."""
    device = layout.DEVICES["npu1"]
    kind = layout.kind("bf16", "npu1")
    plan = layout.Plan(device, kind, 4, 256, 1152)

    def fails(change, what):
        saved = {name: getattr(layout.Plan, name) for name in ("a", "b", "c", "share")}
        rows, depth = layout.MAX_ROWS, design.DEPTH
        try:
            change()
            covers_exactly(plan)
        except (Wrong, ValueError) as e:
            print(f"noticed: {what}: {e}")
            return
        finally:
            for name, f in saved.items():
                setattr(layout.Plan, name, f)
            layout.MAX_ROWS, design.DEPTH = rows, depth
        check(False, f"{what} is not noticed")

    a, b, c, share = layout.Plan.a, layout.Plan.b, layout.Plan.c, layout.Plan.share

    def replaced(name, f, **more):
        def method(self, *args):
            t = f(self, *args)
            return layout.Transfer(**{"offset": t.offset, "sizes": t.sizes, "strides": t.strides, **more})
        return lambda: setattr(layout.Plan, name, method)

    fails(replaced("b", b, offset=0), "all cores read the same weights")
    fails(replaced("c", c, offset=64), "results of two cores in one place")
    fails(replaced("a", a, sizes=(1, 2, 4, 64)), "rows that go past once only")
    fails(replaced("a", a, sizes=(65, 2, 4, 64)), "a loop too long for a DMA")
    fails(replaced("b", b, strides=(256, (1 << 20) + 1, 1, 1)), "a stride too long for a DMA")
    fails(lambda: setattr(layout.Plan, "share", lambda self, core: (share(self, core)[0], share(self, core)[1] + 1)),
          "one block of outputs too many")
    fails(lambda: setattr(layout, "MAX_ROWS", 256), "sums too large for a core's memory")
    fails(lambda: setattr(design, "DEPTH", 4), "buffers too large for a core's memory")
    for m, k, n in ((5, 128, 64), (68, 128, 64), (4, 100, 64), (4, 128, 65)):
        try:
            layout.Plan(device, kind, m, k, n)
        except ValueError:
            continue
        check(False, "a shape that no program can have is taken", m, k, n)


def command():
    """build without mlir-aie: says what is missing, makes nothing."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PEANO_INSTALL_DIR", "MLIR_AIE_INSTALL_DIR")}
    with tempfile.TemporaryDirectory() as work:
        out = os.path.join(work, "set")
        args = [sys.executable, os.path.join(PROGRAMS, "build"), "--device", "npu1", "--out", out]
        r = subprocess.run(args, env=env, capture_output=True, text=True, check=False)
        for word in ("these are missing", "aiecc", "PEANO_INSTALL_DIR", "aie_api/aie.hpp", "README"):
            check(r.returncode == 1 and word in r.stderr, f"the message names {word}", r.stderr)
        check(not os.path.exists(out), "nothing is made")
        with open(os.path.join(work, "file"), "w", encoding="utf-8"):
            pass
        r = subprocess.run(args[:-1] + [work], env=env, capture_output=True, text=True, check=False)
        check(r.returncode == 1 and "is not empty" in r.stderr, "a folder with something in it", r.stderr)
    r = subprocess.run(args[:2] + ["--device", "npu3", "--out", out], env=env, capture_output=True, text=True,
                       check=False)
    check(r.returncode == 2 and "npu1" in r.stderr, "an unknown device", r.stderr)


def whole_build():
    """build with tools that do nothing: every file that the manifest names is there."""
    with tempfile.TemporaryDirectory() as work:
        tools = os.path.join(work, "tools")
        os.makedirs(os.path.join(tools, "bin"))
        os.makedirs(os.path.join(tools, "include", "aie_api"))
        for name, text in (("bin/clang++", 'case "$*" in *aie2p-none*TANDEM_INT8*kernels.cc*) touch kernels.o;; '
                                           '*) exit 9;; esac'),
                           ("bin/aiecc", 'for a; do case $a in --help) echo --get-xclbin;; --xclbin-name=*) '
                                         'echo x > ${a#*=};; --npu-insts-name=*) echo abc > ${a#*=};; esac; done')):
            with open(os.path.join(tools, name), "w", encoding="utf-8") as f:
                f.write(f"#!/bin/sh\n{text}\n")
            os.chmod(os.path.join(tools, name), 0o755)
        with open(os.path.join(tools, "include", "aie_api", "aie.hpp"), "w", encoding="utf-8"):
            pass
        out = os.path.join(work, "set")
        env = dict(os.environ, PATH=os.path.join(tools, "bin") + ":" + os.environ["PATH"], PEANO_INSTALL_DIR=tools,
                   MLIR_AIE_INSTALL_DIR=tools, PYTHONPATH=os.path.join(HERE, "standin"))
        r = subprocess.run([sys.executable, os.path.join(PROGRAMS, "build"), "--device", "npu2", "--type", "int8",
                            "--model", "gemma3-1b", "--model", "gemma3-27b", "--out", out], env=env,
                           capture_output=True, text=True, check=False)
        check(r.returncode == 0, "build with tools that do nothing", r.stdout, r.stderr)
        with open(os.path.join(out, "manifest"), encoding="utf-8") as f:
            named = [line.split(" = ")[1].strip() for line in f if line.startswith(("instructions", "xclbin"))]
        check(len(named) == 1 + 2 * 2 * len(shapes.ROWS), "programs of two models", named)
        check(sorted(named + ["manifest"]) == sorted(os.listdir(out)), "files of the set", os.listdir(out))


def main(tool, folder):
    n = all_sets()
    products(tool, folder)
    broken()
    command()
    whole_build()
    print(f"{n} programs checked against a stand-in; none was compiled, none was run on an NPU")


if __name__ == "__main__":
    main(*sys.argv[1:])
