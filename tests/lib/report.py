"""What a test run showed, from CTest's JUnit file: which tests were skipped and whether they may be, and the record
of a full run.

A skipped test proves nothing. Each skip is printed with its reason, and a skip that tests/known-skips does not allow
on this machine fails the run. So a missing package or right cannot make the suite pass.
"""
import argparse
import datetime
import fnmatch
import glob
import os
import platform
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET

import clang_format


# A test's name; not "[  SKIPPED ] 1 test(s), …" and not, from cmocka 1.1.7 on, "[  SKIPPED ] GROUP: 1 test(s), …".
CMOCKA_SKIP = r"^\[  SKIPPED \] (?!(?:[\w-]+: )?\d+ test)(\w+)"


def has_newer_xrt(build):
    """Whether XRT's headers are installed, and newer than 2.13. CMake looks at the same files."""
    try:
        with open(os.path.join(build, "CMakeCache.txt")) as f:
            folder = re.search(r"^TANDEM_XRT_INCLUDE_DIR:\w+=(/.*)$", f.read(), re.M)
    except OSError:
        return False
    return folder is not None and os.path.exists(os.path.join(folder[1], "xrt", "xrt_hw_context.h"))


def conditions(preset, build):
    """The conditions of tests/known-skips that hold on this machine and for this build, by name."""
    out = {"always"}
    with open("/proc/cpuinfo") as f:
        flags = set(next((line for line in f if line.startswith("flags")), "").split())
    if os.geteuid() != 0:
        out.add("not-root")
    if preset in ("asan", "tsan"):
        out |= {"sanitized", preset}
    if "avx2" not in flags:
        out |= {"no-avx2", "no-avx512"}
    if not {"avx512f", "avx512bw", "avx512vl"} <= flags:
        out.add("no-avx512")
    if "avx512_vnni" not in flags:
        out.add("no-vnni")
    if not os.path.exists("/dev/udmabuf"):
        out.add("no-udmabuf")
    if not os.path.isdir(os.environ.get("TANDEM_NPM_CLIENTS", "")):
        out.add("no-npm-clients")
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        out.add("no-chromium")
    if not shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin"):
        out.add("no-haproxy")
    if not shutil.which("prometheus"):
        out.add("no-prometheus")
    if not os.path.isdir(os.environ.get("TANDEM_NPM_AJV", "")):
        out.add("no-npm-ajv")
    if not glob.glob("/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation*.json"):
        out.add("no-validation-layer")
    if not os.path.exists("/usr/share/vulkan/icd.d/radeon_icd.x86_64.json"):
        out.add("no-mesa-22")
    if not clang_format.find():
        out.add("no-clang-format-14")
    if has_newer_xrt(build):
        out |= {"newer-xrt"} | ({"newer-xrt-sanitized"} if "sanitized" in out else set())
    return out


def known(path):
    rules = []
    with open(path) as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                pattern, condition, reason = line.split(None, 2)
                rules.append((pattern, condition, reason.strip()))
    return rules


class Run:
    def __init__(self, junit):
        root = ET.parse(junit).getroot()
        self.tests = self.failed = 0
        self.seconds = 0.0
        self.skips = []    # (test or test:case, reason)
        self.figures = []  # lines that a test marked for the record
        self.failures = []
        for case in root.iter("testcase"):
            name, status = case.get("name"), case.get("status")
            output = case.findtext("system-out") or ""
            self.tests += 1
            self.seconds += float(case.get("time") or 0)
            inner = [(f"{name}:{n}", r) for n, r in re.findall(r"^SKIP (\S+): (.*)$", output, re.M)]
            inner += [(f"{name}:{n}", self._reason(output, n)) for n in
                      sorted(set(re.findall(CMOCKA_SKIP, output, re.M)))]
            if status == "fail":
                self.failed += 1
                self.failures.append(name)
            elif status in ("notrun", "disabled") or case.find("skipped") is not None:
                inner = inner or [(name, (output.strip().splitlines() or [status])[-1])]
            self.skips += inner
            self.figures += re.findall(r"^FIGURE (.*)$", output, re.M)

    @staticmethod
    def _reason(output, case):
        """cmocka prints no reason; a test says it on a line of its own just before."""
        lines = output.splitlines()
        at = next((i for i, l in enumerate(lines) if re.match(r"\[  SKIPPED \] " + case, l)), 0)
        before = lines[at - 1] if at else ""
        return before if before and not before.startswith("[") else "no reason given"


def skips(args):
    run = Run(args.junit)
    have, rules, unknown = conditions(args.preset, os.path.dirname(args.junit)), known(args.known), 0
    for name, reason in run.skips:
        allowed = next((r for r in rules if r[1] in have and
                        (fnmatch.fnmatch(name, r[0]) or fnmatch.fnmatch(name.split(":")[0], r[0]))), None)
        unknown += allowed is None
        print(f"skipped {name}: {reason}" + (f" [known: {allowed[1]}]" if allowed else " [NOT in tests/known-skips]"))
    print(f"{args.preset}: {run.tests} tests, {run.tests - run.failed} passed or skipped, {run.failed} failed, "
          f"{len(run.skips)} skips, {unknown} of them not allowed here")
    return 1 if unknown or run.failed or not run.tests else 0


def output_of(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode().strip()


def verdict(said, runs):
    """A run with a failure did not pass, even if the tests after it did."""
    failed = sum(run.failed for run in runs)
    return f"FAILED: {failed} tests failed in these runs ({said})" if failed and said.startswith("passed") else said


def record(args):
    with open("/proc/cpuinfo") as f:
        cpu = re.search(r"model name\s*:\s*(.*)", f.read())
    with open("/proc/meminfo") as f:
        memory = int(f.readline().split()[1]) >> 20
    dirty = output_of("git", "status", "--porcelain", "--untracked-files=no")
    head = output_of("git", "rev-parse", "HEAD")
    runs, commits = [], []
    for item in args.runs:
        preset, path = item.split("=", 1)
        path, _, commit = path.partition("@")
        if os.path.exists(path):
            runs.append((preset, Run(path)))
            commits.append(commit or head[:7])
    lines = ["# A full test run", "",
             "Written by `./bootstrap test --full --record` or by tests/lib/report.py from several runs; "
             "never by hand.", "",
             f"- commit: `{head}`" + (" with uncommitted changes" if dirty else "")
             + "; a preset's own where it ran on another one",
             f"- date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
             f"- machine: {len(os.sched_getaffinity(0))} cores of {cpu.group(1) if cpu else platform.machine()}, "
             f"{memory} GiB, Linux {platform.release().split('-')[0]}, "
             f"{platform.freedesktop_os_release().get('PRETTY_NAME', '?')}",
             f"- verdict: **{verdict(args.verdict, [run for _, run in runs])}**, "
             f"{args.seconds // 60} min {args.seconds % 60} s in all", "",
             "| preset | commit | tests | failed | skips | time summed over tests |", "|---|---|---|---|---|---|"]
    for (preset, run), commit in zip(runs, commits):
        lines.append(f"| {preset} | {commit} | {run.tests} | {run.failed} | {len(run.skips)} | {run.seconds:.0f} s |")
    for title, pick in (("Failed", lambda r: r.failures), ("Skipped", lambda r: [f"{n}: {w}" for n, w in r.skips]),
                        ("Figures", lambda r: r.figures)):
        rows = [f"- {preset}: {row}" for preset, run in runs for row in pick(run)]
        if title == "Figures" and args.figures and os.path.exists(args.figures):
            with open(args.figures) as f:
                rows += [f"- {line[7:].strip()}" for line in f if line.startswith("FIGURE ")]
        if rows:
            lines += ["", f"## {title}", ""] + rows
    with open(args.out, "w") as f:
        f.write("\n".join(lines) + "\n")
    return 0


def main():
    parser = argparse.ArgumentParser()
    sub = parser.add_subparsers(required=True)
    p = sub.add_parser("skips")
    p.add_argument("--junit", required=True)
    p.add_argument("--preset", required=True)
    p.add_argument("--known", required=True)
    p.set_defaults(run=skips)
    p = sub.add_parser("record")
    p.add_argument("--out", required=True)
    p.add_argument("--verdict", required=True)
    p.add_argument("--seconds", type=int, required=True)
    p.add_argument("--figures")
    p.add_argument("runs", nargs="+")
    p.set_defaults(run=record)
    args = parser.parse_args()
    sys.exit(args.run(args))


main()
