"""Random models against their golden files, by golden-host, golden-vulkan and test-host-exact: what the tests of
families of architectures (tests/golden/test_*.py) share. A model's key is its architecture, size and weight type.
"""
import os
import re
import subprocess
import sys

from cpu_tables import tables
from tandem_test import TREE, Skip, make_model

F32_LIMIT = 0.001  # the mean distance that is allowed in precision f32, of any file
CHUNKS_LIMIT = 0.00005  # the same where a text is read in small steps: a state in f16 costs at least twice as much


def run(program, *args, **env):
    """Whether the program fails. Memory that it did not write is not zero: none passes by luck."""
    r = subprocess.run([program, *args], env=dict(os.environ, MALLOC_PERTURB_="90", **env)).returncode
    if r == 77:
        raise Skip("no Vulkan device")
    return r != 0


def n_differing(program, runs):
    """Of runs (arguments of golden-host) those whose tokens and log-probabilities are not the same bits with every
    instruction set of this machine's CPU."""
    failed = 0
    for args in runs:
        bits = {}
        for cpu in tables():
            r = subprocess.run([program, *args, "--cpu", cpu], stdout=subprocess.PIPE, text=True)
            found = re.search(r" bits ([0-9a-f]{16}):", r.stdout)
            bits[cpu] = found.group(1) if found and r.returncode == 0 else f"exit status {r.returncode}"
        same = len(set(bits.values())) == 1 and "exit" not in bits["c"]
        failed += not same
        print(("same " if same else "DIFFERENT ") + " ".join(args) + f": {bits}", flush=True)
    return failed


def chosen(keys):
    """Those of the architectures that the command line names; all where it names none."""
    archs = [a for a in sys.argv[3:] if not a.startswith("-")]
    return [key for key in keys if not archs or key[0] in archs]


class Family:
    """limits: by key, the mean distance that is allowed as shipped; the median of those in by_median. seed(key): of the
    model. options(key): further arguments of golden-host."""

    def __init__(self, folder, limits, seed, options=lambda key: [], by_median=()):
        self.folder, self.limits, self.seed, self.options, self.by_median = folder, limits, seed, options, by_median

    def model(self, of, **options):
        return make_model(of[1], of[2], arch=of[0], seed=self.seed(of), **options)

    def golden(self, key):
        return os.path.join(TREE, "tests", "golden", self.folder, "-".join(key) + ".golden.json")

    def distance(self, program, cpus):
        """cpus: by key, the instruction sets that compute it as shipped. The last one of the machine's also computes
        it in precision f32."""
        failed = 0
        for key in chosen(cpus):
            runs = [("default", self.limits[key], cpu) for cpu in cpus[key]]
            for precision, limit, cpu in runs + [("f32", F32_LIMIT, tables()[-1])]:
                failed += run(program, self.model(key), self.golden(key), "--precision", precision, "--cpu", cpu,
                              "--median" if key in self.by_median else "--mean", str(limit), *self.options(key))
        return failed

    def chunks(self, program, keys, sizes):
        """In precision f32, with each text read in steps of so many rows: what a layer keeps of the rows before is the
        only way from one step to the next. A reference rounded nothing, so neither may what is kept."""
        return sum(run(program, self.model(key), self.golden(key), "--precision", "f32", "--chunk", str(size),
                       "--mean", str(CHUNKS_LIMIT), *self.options(key)) for key in chosen(keys) for size in sizes)

    def bits(self, program):
        return n_differing(program, [(self.model(key), self.golden(key), "--precision", precision)
                                     for key in chosen(self.limits) for precision in ("default", "f32")])

    def exact(self, program, keys, full):
        return sum(run(program, self.model(key), self.golden(key), *["--full"] * full) for key in chosen(keys))

    def refused(self, program, refused, neutral):
        """refused: architecture, size, a key that is put in, and words of the refusal. neutral: keys that change
        nothing."""
        failed = 0
        for arch, size, key, words in refused:
            r = subprocess.run([program, self.model((arch, size, "q8_0"), key=key), self.golden((arch, size, "f32"))],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            said = r.stdout.decode(errors="replace")
            if r.returncode == 0 or words not in said:
                print(f"{key}: not refused with \"{words}\": {said}")
                failed += 1
        for arch, size, key in neutral:
            of = (arch, size, "f32")
            failed += run(program, self.model(of, key=key), self.golden(of), "--precision", "f32",
                          "--mean", str(F32_LIMIT), *self.options(of))
        return failed

    def vulkan(self, program, runs):
        """runs: keys and precisions. One text of each: a CPU implementation takes seconds for it, and longer to
        compile kernels."""
        wanted = chosen({key for key, _ in runs})
        return sum(run(program, self.model(key), self.golden(key), "--cases", "1", "--precision", precision, "--mean",
                       str(F32_LIMIT if precision == "f32" else self.limits[key]))
                   for key, precision in runs if key in wanted)


def main(modes):
    """By the command line's first word: a function of the program to run and of whether --full was asked for."""
    try:
        sys.exit(1 if modes[sys.argv[1]](sys.argv[2], "--full" in sys.argv) else 0)
    except Skip as e:
        print(f"SKIP {e}")
        sys.exit(77)
