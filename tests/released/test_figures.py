"""The table of released files: each figure, failure and skip of a suite is a row under its file, and the exit status is
that of the suites. The suites are made here."""
import contextlib
import io
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tandem_test import *  # noqa: E402,F403
import figures  # noqa: E402


def run(*suites):
    """What is printed for suites that print these lines and exit so: (status, text)."""
    saved, out = figures.HERE, io.StringIO()
    names = [f"suite-{i}.py" for i in range(len(suites))]
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as there:
        for name, (lines, status) in zip(names, suites):
            with open(os.path.join(there, name), "w") as f:
                f.write(f"import sys\nprint({lines!r} + repr(sys.argv[1:]))\nsys.exit({status})\n")
        saved_suites = figures.SUITES
        figures.HERE, figures.SUITES = there, names
        try:
            with contextlib.redirect_stdout(out):
                status = figures.main(["--full"])
        finally:
            figures.HERE, figures.SUITES = saved, saved_suites
    return status, out.getvalue()


@test
def rows():
    status, text = run(
        ("FIGURE released gemma3-270m f32: mean 0.1: so | or so\nok   gemma3_270m_f32 (1 s)\n"
         "FAIL smollm2_135m_on_lavapipe: AssertionError: far\n", 1),
        ("FIGURE released minilm-l6-v2 not run: bert\nSKIP minilm_l6_v2_more: no registry\n"
         "FIGURE released gemma3-270m later: 5\nSKIP other: why\n", 0))
    table = text[text.index("| file |"):].splitlines()
    equal(table, ["| file | check | figures |", "|---|---|---|", "| gemma3-270m | f32 | mean 0.1: so \\| or so |",
                  "| gemma3-270m | later | 5 |", "| smollm2-135m | on lavapipe | FAIL: AssertionError: far |",
                  "| minilm-l6-v2 | not run | bert |", "| minilm-l6-v2 | more | SKIP: no registry |",
                  "|  | other | SKIP: why |"], "the table")
    check("['--full']" in text, "arguments of suites", text)
    equal(status, 1, "status when a suite failed")


@test
def statuses():
    for ended, want in (((0, 0), 0), ((0, 77), 0), ((77, 77), 77), ((77, 1), 1), ((-9, 0), 1)):
        suites = [("x\n", s) if s >= 0 else ("x\n", "__import__('os').kill(__import__('os').getpid(), 9)")
                  for s in ended]
        equal(run(*suites)[0], want, f"status of {ended}")


main()
