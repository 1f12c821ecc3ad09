#!/usr/bin/python3
"""libtandem exports what tandem.h declares, under a version, and nothing else.
Usage: test-symbols.py NM LIBRARY HEADER."""

import re
import subprocess
import sys

nm, library, header = sys.argv[1:]
with open(header) as f:
    declared = set(re.findall(r"^TANDEM_API [^;{]*?\b(tandem_\w+)\(", f.read(), re.M))
lines = subprocess.run([nm, "-D", "--defined-only", library], check=True, stdout=subprocess.PIPE,
                       text=True).stdout.split("\n")
exported = {line.split()[-1] for line in lines if line and line.split()[1] != "A"}
unversioned = {name for name in exported if not re.fullmatch(r"\w+@@TANDEM_[\d.]+", name)}
exported = {name.split("@")[0] for name in exported}
assert len(declared) > 30, declared
assert not unversioned, "without a version: %s" % unversioned
assert exported == declared, "declared only: %s, exported only: %s" % (declared - exported, exported - declared)
