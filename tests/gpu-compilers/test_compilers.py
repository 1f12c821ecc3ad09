"""What the compilers of GPUs that are not here make of the kernels: no spill, no scratch memory, code of at most
32 KiB, registers for four subgroups in kernels for matrices, and no more instructions than figures.json says.

Without arguments: gfx1103 with the Mesa of this machine. --full: four Radeons with the Mesa of Debian 13, in a root
that is made for it (needs root, mmdebstrap and the network), and more models. Intel's GPUs as well where
$TANDEM_INTEL_SHIM names a folder with Mesa's libintel_noop_drm_shim.so, and gfx1201 with the Mesa of Debian 13's
backports where $TANDEM_RADEON_SHIM names one with libamdgpu_noop_drm_shim.so (docs/gpu-compilers.md).
--record writes figures.json anew; --before PROGRAM, with it: what the last release's compile-kernels makes stands
beside. --print [WORD] compiles nothing: the tables of figures.json, of all GPUs or of those with this word in their
name.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
import isa  # noqa: E402

BIN = os.environ.get("TANDEM_BIN") or os.path.join(TREE, "build", "bin")
PROGRAM = os.path.join(os.path.dirname(BIN), "unit", "compile-kernels")
FIGURES = os.path.join(HERE, "figures.json")
CODE_MOST = 32 << 10  # RDNA's instruction cache
WAVES_LEAST = 4
WORSE = 1.03  # of a figure: less is another release of the compiler

MODELS = ["4b:Q4_0", "4b:Q4_K+Q6_K", "4b:Q8_0", "27b:Q4_0", "tiny-k:Q2_K"]
MORE_MODELS = [f"tiny-k:{name}" for name in ("Q4_1", "Q5_0", "Q5_1", "Q3_K", "Q5_K", "IQ4_NL", "IQ4_XS", "MXFP4", "F16",
                                             "BF16")] + ["1b:Q4_0", "tiny:Q4_0", "tiny-128:Q8_0"]


class Gpu:
    """families: what Mesa calls it, of the newest first. registers: of a SIMD, for subgroups of 64. intel: what the
    shim calls it; lanes: that its units compute at once. shim: what stands for the kernel's driver, and which variable
    names its folder."""
    def __init__(self, name, mesa, families, registers, is_discrete=False, intel=None, lanes=None, shim=None):
        self.name, self.mesa, self.families, self.registers = name, mesa, families, registers
        self.is_discrete, self.intel, self.lanes, self.shim = is_discrete, intel, lanes, shim

    @property
    def key(self):
        return f"{self.name}, Mesa {self.mesa}"


HERE_GPU = Gpu("gfx1103", "22.3", ["gfx1103_r1"], 512)
GPUS = [Gpu("gfx1103", "25.0", ["phoenix"], 512), Gpu("gfx1150", "25.0", ["gfx1150"], 512),
        Gpu("gfx1151", "25.0", ["gfx1151"], 768), Gpu("gfx1201", "25.0", ["gfx1201"], 768, True)]
INTEL_SHIM = "libintel_noop_drm_shim.so", "TANDEM_INTEL_SHIM"
RADEON_SHIM = "libamdgpu_noop_drm_shim.so", "TANDEM_RADEON_SHIM"
SHIMMED = [Gpu("gfx1201", "26.1", ["gfx1201"], 768, True, shim=RADEON_SHIM),
           Gpu("Xe-LPG", "25.0", [], 0, intel="mtl", lanes=8, shim=INTEL_SHIM),
           Gpu("Xe2", "25.0", [], 0, intel="lnl", lanes=16, shim=INTEL_SHIM)]

# Kernels of the table: words, shader, what the first constants are, and at most how many vector instructions 8 dot
# products take, those included, matrix operations not. Of several shapes that with the fewest.
Q4_0, Q8_0, Q2_K, Q4_K, Q6_K, TURNED, I8, I16, NARROW = 2, 8, 10, 12, 14, 64, 1, 2, 512
ROWS = [("Q4_0, 1 row", "matvec", (Q4_0, I8, 1), 32),
        ("Q4_0 turned, 1 row", "matvec", (Q4_0 | TURNED, I8, 1), 32),
        ("Q4_0, 16 rows", "matvec", (Q4_0, I8, 16), 13.5),
        ("Q8_0, 1 row", "matvec", (Q8_0, I8, 1), None),
        ("Q8_0, 16 rows", "matvec", (Q8_0, I8, 16), None),
        ("Q4_K, 1 row", "matvec-subblock", (Q4_K, I8, 1), 60),
        ("Q4_K, 16 rows", "matvec-subblock", (Q4_K, I8, 16), 20),
        ("Q6_K, 16-bit, 1 row", "matvec-subblock", (Q6_K, I16, 1), None),
        ("Q6_K, 16-bit, 16 rows", "matvec-subblock", (Q6_K, I16, 16), None),
        ("Q4_0, prompt", "matmul-int8-any", (Q4_0, I8), 3),
        ("Q4_0, 16-bit, prompt", "matmul-int8-any", (Q4_0, I16), 3),
        ("Q8_0, prompt", "matmul-int8-any", (Q8_0, I8), 3),
        ("Q2_K, prompt", "matmul-int8-any-subblock", (Q2_K, I8), 3),
        ("Q4_K, prompt", "matmul-int8-any-subblock", (Q4_K, I8), 3),
        ("Q4_K, 16-bit, prompt", "matmul-int8-any-subblock", (Q4_K, I16), 3),
        ("Q6_K, prompt", "matmul-int8-any-subblock", (Q6_K, I8), 3),
        ("Q6_K, 16-bit, prompt", "matmul-int8-any-subblock", (Q6_K, I16), 3),
        ("attention, 1 row", "attend", (256, 1, 1), None),
        ("attention, 4 rows", "attend", (256, 1, 4), None),
        ("logits chosen", "gather", (), None)]
INTEL_ROWS = [("Q4_0, 8 rows", "matvec", (Q4_0, I8, 8), None), ("Q8_0, 8 rows", "matvec", (Q8_0, I8, 8), None),
              ("attention, 1 row", "attend", (256, 1, NARROW | 1), None),
              ("attention, 2 rows", "attend", (256, 1, NARROW | 2), None)]


PROMPT_MOST = 3  # of prompts of any type: other vector instructions beside 8 dot products' share


def waves_of(kernel, gpu):
    return min(16, gpu.registers * 64 // kernel.subgroup // max(kernel.registers, 1))


def red(kernel, gpu):
    """What is wrong with it."""
    wrong = []
    if kernel.spills:
        wrong.append(f"{kernel.spills} registers spilled")
    if kernel.scratch:
        wrong.append(f"{kernel.scratch} bytes of scratch memory")
    if not gpu.intel and kernel.code_bytes > CODE_MOST:
        wrong.append(f"{kernel.code_bytes} bytes of code")
    if not gpu.intel and kernel.shader.startswith("mat") and waves_of(kernel, gpu) < WAVES_LEAST:
        wrong.append(f"{kernel.registers} registers, {waves_of(kernel, gpu)} subgroups")
    return wrong


def figures_of(kernels, gpu):
    """{words: figures} of the table's kernels."""
    result = {}
    for words, shader, constants, _ in ROWS + (INTEL_ROWS if gpu.intel else []):
        found = [k for k in kernels if k.shader == shader and k.constants[:len(constants)] == constants]
        if not found:
            continue
        k = min(found, key=lambda k: (k.vector_for_8() or 0, -k.code_bytes))
        per_8 = k.per_8()
        result[words] = {"registers": k.registers, "spills": k.spills, "code": k.code_bytes, "lds": k.lds,
                         **({"subgroup": k.subgroup} if gpu.intel else {"subgroups": waves_of(k, gpu)})}
        result[words].update({name: round(value, 2 if per_8["units"] else 1) for name, value in per_8.items()})
    return result


def prompts_over(kernels, gpu):
    """Types whose kernel for prompts has too many vector instructions, in the shape with the fewest."""
    least = {}
    for k in kernels:
        if k.shader.startswith("matmul-int8-any"):
            least[k.constants[:2]] = min(k.vector_for_8(), least.get(k.constants[:2], 99))
    return [f"{gpu.key}: prompts of type {what[0]}, rows {what[1]}: {vector:.2f} other vector instructions, at most "
            f"{PROMPT_MOST} are allowed"
            for what, vector in least.items() if vector > PROMPT_MOST]


def compile_here(gpu, program, folder, models):
    icd = "/usr/share/vulkan/icd.d/radeon_icd.x86_64.json"
    if not os.path.exists(icd):
        print("skipped: no Mesa driver for Radeons here (Debian: mesa-vulkan-drivers)")
        sys.exit(77)
    env = dict(os.environ, RADV_FORCE_FAMILY=gpu.families[0], VK_ICD_FILENAMES=icd, TANDEM_VULKAN_TUNE="off")
    r = subprocess.run([program, folder, *models], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(r.stdout, end="", flush=True)
    if r.returncode != 0 and ("Unknown family" in r.stdout or "no Vulkan" in r.stdout):
        print(f"skipped: the Mesa of this machine does not know {gpu.families[0]}")
        sys.exit(77)
    if r.returncode != 0:
        raise SystemExit(f"compile-kernels failed for {gpu.key}")
    return isa.read(folder)


def backported(root):
    """Where the Mesa of Debian 13's backports lies in the root, unpacked beside its own: it has no null device."""
    where = "/compilers/backports"
    if not os.path.exists(root + where):
        subprocess.run(["chroot", root, "bash", "-euc", f"""
            cd /etc/apt
            sed -n 's/ trixie main/ trixie-backports main/p' sources.list >sources.list.d/backports.list
            apt-get -q update >&2
            mkdir {where}.part && cd {where}.part
            apt-get -s install -t trixie-backports --no-install-recommends mesa-vulkan-drivers |
                    sed -n 's/^Inst \\([^ ]*\\) .*/\\1/p' | xargs apt-get -q download -t trixie-backports >&2
            for package in *.deb; do dpkg -x "$package" .; done
            mv {where}.part {where}"""], check=True)
        with open(f"{root}{where}/radeon.json", "w", encoding="utf-8") as f:
            json.dump({"file_format_version": "1.0.0",
                       "ICD": {"library_path": f"{where}/usr/lib/x86_64-linux-gnu/libvulkan_radeon.so",
                               "api_version": "1.3.0"}}, f)
    return where


def compile_in(root, gpu, program, folder, models, tune):
    """In a Debian 13 root."""
    inside = os.path.join(root, "compilers")
    os.makedirs(inside, exist_ok=True)
    shutil.copy2(program, inside)
    out = tempfile.mkdtemp(dir=inside)
    env = {"TANDEM_VULKAN_TUNE": "on" if tune else "off"}
    if gpu.shim:
        shutil.copy2(os.path.join(os.environ[gpu.shim[1]], gpu.shim[0]), inside)
        env.update(LD_PRELOAD="/compilers/" + gpu.shim[0])
    if gpu.intel:
        env.update(VK_ICD_FILENAMES="/usr/share/vulkan/icd.d/intel_icd.json", INTEL_STUB_GPU_PLATFORM=gpu.intel)
    elif gpu.shim:
        driver = backported(root)
        env.update(VK_ICD_FILENAMES=driver + "/radeon.json", LD_LIBRARY_PATH=driver + "/usr/lib/x86_64-linux-gnu",
                   AMDGPU_GPU_ID=gpu.families[0])
    else:
        env.update(VK_ICD_FILENAMES="/usr/share/vulkan/icd.d/radeon_icd.json", RADV_FORCE_FAMILY=gpu.families[0])
    r = subprocess.run(["chroot", root, "/usr/bin/env", *(f"{k}={v}" for k, v in env.items()),
                        "/compilers/" + os.path.basename(program), *(["-d"] if gpu.is_discrete else []),
                        out[len(root):], *models], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(r.stdout, end="", flush=True)
    if r.returncode != 0:
        raise SystemExit(f"compile-kernels failed for {gpu.key}")
    shutil.copytree(out, folder, dirs_exist_ok=True)
    return isa.read(folder, gpu.lanes)


def make_root():
    """A Debian 13 root with Mesa, $TANDEM_COMPILERS_ROOT where it is there already."""
    root = os.environ.get("TANDEM_COMPILERS_ROOT")
    if root and os.path.exists(os.path.join(root, "etc")):
        return root, False
    for missing, why in ((os.geteuid() != 0, "making a root of Debian 13 needs root"),
                         (not shutil.which("mmdebstrap"), "mmdebstrap is missing (apt-get install mmdebstrap)")):
        if missing:
            print(f"skipped: {why}")
            sys.exit(77)
    root = root or tempfile.mkdtemp(prefix="tandem-compilers-", dir="/var/tmp")
    subprocess.run([os.path.join(TREE, "tools", "fresh-debian"), "--suite", "trixie", "--keep", root, "bash", "-c",
                    "apt-get -q update >&2 && DEBIAN_FRONTEND=noninteractive apt-get -q -y install "
                    "--no-install-recommends mesa-vulkan-drivers libvulkan1 >&2"], check=True)
    return root, True


# ---- the table ----

COLUMNS = [[("registers", "registers"), ("spilled", "spills"), ("subgroups", "subgroups"), ("code, bytes", "code"),
            ("shared, bytes", "lds")],
           [("instructions", "vector"), ("cycles", "cycles"), ("loads", "loads"), ("shared", "shared"),
            ("waits", "waits")]]  # of two tables


def tables(figures):
    """Markdown."""
    lines = []

    def cell(kernel, name):
        now, before = kernel["now"].get(name), (kernel.get("before") or {}).get(name)
        return f"{now:g}" if before is None else f"{before:g} → {now:g}"
    for key, kernels in figures.items():
        lines += [f"### {key}", ""]
        for columns in COLUMNS:
            if any("subgroup" in kernel["now"] for kernel in kernels.values()):  # Intel's
                columns = [("subgroup of", "subgroup") if name == "subgroups" else (words, name)
                           for words, name in columns]
            lines += ["| kernel | " + " | ".join(words for words, _ in columns) + " |", "|---" * 6 + "|"]
            for words, kernel in kernels.items():
                if columns[0][1] in kernel["now"]:
                    lines.append(f"| {words} | " + " | ".join(cell(kernel, name) for _, name in columns) + " |")
            lines.append("")
    return "\n".join(lines)


def judge(gpu, kernels, known):
    """Lines that say what is wrong."""
    wrong = [f"{gpu.key}: {k.name}: {', '.join(red(k, gpu))}" for k in kernels if red(k, gpu)]
    now = figures_of(kernels, gpu)
    for words, _, _, most in ROWS + INTEL_ROWS:
        f, before = now.get(words), known.get(gpu.key, {}).get(words, {}).get("now")
        if not f:
            if before:
                wrong.append(f"{gpu.key}: {words}: no such kernel was compiled")
            continue
        print(f"FIGURE {gpu.key}: {words}: " + ", ".join(f"{k} {v}" for k, v in f.items()), flush=True)
        if (most or "prompt" in words) and not gpu.intel and not f.get("vector"):
            wrong.append(f"{gpu.key}: {words}: its code has no loop of dot products")
        if most and not gpu.intel and f.get("vector", 0) > most:
            wrong.append(f"{gpu.key}: {words}: {f['vector']} vector instructions, at most {most} are allowed")
        for name in ("registers", "code", "vector"):
            if before and f.get(name, 0) > before.get(name, 0) * WORSE:
                wrong.append(f"{gpu.key}: {words}: {name} {f[name]}, which was {before.get(name)}: make it less, or "
                             "record it with --record")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--before", metavar="PROGRAM")
    parser.add_argument("--print", metavar="WORD", nargs="?", const="", dest="word")
    args = parser.parse_args()
    if args.word is not None:
        with open(FIGURES, encoding="utf-8") as f:
            print(tables({gpu: kernels for gpu, kernels in json.load(f).items() if args.word in gpu}), end="")
        return
    if os.environ.get("TANDEM_TEST_SANITIZER"):
        print("skipped: what compilers make is the same with a sanitizer in the host's code")
        sys.exit(77)
    with open(FIGURES, encoding="utf-8") as f:
        known = json.load(f)
    wrong, root, made = [], None, False
    folder = tempfile.mkdtemp(prefix="tandem-compilers-")
    gpus = [HERE_GPU] + (GPUS + [gpu for gpu in SHIMMED if os.environ.get(gpu.shim[1])] if args.full else [])
    try:
        if args.full:
            root, made = make_root()
        for i, gpu in enumerate(gpus):
            def compiled(program, models, tune, what):
                to = os.path.join(folder, f"{i}-{what}")
                os.makedirs(to)
                return compile_here(gpu, program, to, models) if gpu is HERE_GPU else \
                    compile_in(root, gpu, program, to, models, tune)
            kernels = compiled(PROGRAM, MODELS, False, "now")
            if args.record:
                old = known.get(gpu.key, {})
                before = figures_of(compiled(args.before, MODELS, False, "before"), gpu) if args.before else \
                    {words: old[words].get("before") for words in old}
                known[gpu.key] = {words: {"before": before.get(words), "now": now}
                                  for words, now in figures_of(kernels, gpu).items()}
            wrong += judge(gpu, kernels, known)
            if args.full and gpu is not HERE_GPU:  # every shape that is tried, every type, 16-bit and f32 rows
                more = compiled(PROGRAM, MODELS + MORE_MODELS, True, "more")
                wrong += [f"{gpu.key}: {k.name}: {', '.join(red(k, gpu))}" for k in more if red(k, gpu)]
                wrong += [] if gpu.intel else prompts_over(more, gpu)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if made and not os.environ.get("TANDEM_COMPILERS_ROOT"):
            subprocess.run(["rm", "-rf", "--one-file-system", root], check=False)
    if args.record:
        with open(FIGURES, "w", encoding="utf-8") as f:
            json.dump(known, f, indent=1)
            f.write("\n")
    for line in wrong:
        print(line)
    print(f"{len(wrong)} red, {len(gpus)} GPUs")
    sys.exit(1 if wrong else 0)


main()
