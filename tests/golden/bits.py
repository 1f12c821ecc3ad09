"""Whether all instruction sets of this machine's CPU compute the same bits."""
import re
import subprocess

from cpu_tables import tables


def n_differing(program, runs):
    """Of runs (arguments of golden-host) those whose tokens and log-probabilities are not the same bits with every
    instruction set."""
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
