"""The tables of kernels that this machine's CPU can run, as TANDEM_CPU names them."""
import re


def tables():
    with open("/proc/cpuinfo") as f:
        flags = set(re.search(r"^flags\s*:(.*)", f.read() + "\nflags:", re.M).group(1).split())
    return ["c"] + ["avx2"] * ({"avx2", "fma", "f16c"} <= flags) + ["avx512"] * ({"avx512bw", "avx512_vnni"} <= flags)
