"""The table of released files and checks: runs the suites as programs, and gathers what they print.

A line "FIGURE released FILE CHECK: TEXT" is a row; so is a check that failed or was skipped, which gave no figures."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SUITES = ("test_released.py", "test_embeddings.py", "test_evals.py")


class Table:
    def __init__(self):
        self.rows = {}  # (file, check): text

    def line(self, text):
        word, _, rest = text.rstrip("\n").partition(" ")
        if word == "FIGURE":
            head, _, figures = rest.removeprefix("released ").partition(": ")
            file, _, check = head.partition(" ")
            self.rows[file, check] = figures
        elif word in ("FAIL", "SKIP"):
            name, _, why = rest.partition(": ")
            self.rows[self.place(name)] = f"{word}: {why[:200]}"

    def place(self, test):
        """The file and the check of a test's name, FILE_CHECK."""
        for file in sorted({f for f, _ in self.rows} | {"gemma3-270m", "smollm2-135m"}, key=len, reverse=True):
            start = file.replace("-", "_") + "_"
            if test.startswith(start):
                return file, test[len(start):].replace("_", " ")
        return "", test.replace("_", " ")

    def run(self, suite, arguments):
        with subprocess.Popen([sys.executable, os.path.join(HERE, suite), *arguments], stdout=subprocess.PIPE,
                              text=True) as process:
            for text in process.stdout:
                print(text, end="", flush=True)
                self.line(text)
        return process.returncode

    def __str__(self):
        files = list(dict.fromkeys(file for file, _ in self.rows))
        lines = ["| file | check | figures |", "|---|---|---|"]
        for file in files:
            lines += [f"| {f} | {check} | {text.replace('|', chr(92) + '|')} |"
                      for (f, check), text in self.rows.items() if f == file]
        return "\n".join(lines)


def main(arguments):
    """Runs all suites with these arguments and prints the table. 1: one failed; 77: all were skipped."""
    table = Table()
    ended = [table.run(suite, arguments) for suite in SUITES]
    print(f"\n{table}")
    return 77 if set(ended) == {77} else int(any(x not in (0, 77) for x in ended))
