#!/usr/bin/env python3
"""How much of the JSON-Schema-Test-Suite and of MaskBench `tandem schema-check` answers rightly, and what masks cost.

usage: json_schema.py [--build BUILD] [--suite DIR] [--maskbench DIR] [--masks N] [--list]

--suite: a checkout of json-schema-org/JSON-Schema-Test-Suite; its tests/draft2020-12 without the optional ones.
--maskbench: the folder maskbench/data of guidance-ai/jsonschemabench. --masks N: N of its schemas, drawn with a fixed
seed, go through bench-grammar, each with its first valid instance (0: all of them). --list prints each case that is not
right. Neither set is part of the tree.

Fails where a wrong instance was accepted, where less than 90% of the suite is right, or where less than 85% of
MaskBench's schemas are held."""
import argparse
import collections
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def suite_cases(folder):
    for path in sorted(glob.glob(os.path.join(folder, "tests", "draft2020-12", "*.json"))):
        with open(path) as f:
            for group in json.load(f):
                for test in group["tests"]:
                    yield os.path.basename(path), group["schema"], test["data"], test["valid"]


def maskbench_cases(folder):
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(path) as f:
            whole = json.load(f)
        for test in whole.get("tests", []):
            yield os.path.basename(path), whole["schema"], test["data"], test["valid"]


def verdicts(binary, cases):
    lines = [json.dumps({"id": i, "schema": schema, "instance": data}) for i, (_, schema, data, _) in enumerate(cases)]
    run = subprocess.run([binary, "schema-check"], input="\n".join(lines) + "\n", stdout=subprocess.PIPE, text=True,
                         check=True)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(cases), (len(answers), len(cases))
    return answers


def kind_of(answer, valid):
    if answer["verdict"] == "unsupported":
        return "refused by name" if answer["why"] else "refused without a name"
    if (answer["verdict"] == "accept") == valid:
        return "right"
    return "wrongly rejected" if valid else "wrongly accepted"


def count(what, binary, cases, list_them):
    kinds, refused, reasons = collections.Counter(), set(), collections.Counter()
    for (name, _, _, valid), answer in zip(cases, verdicts(binary, cases)):
        kind = kind_of(answer, valid)
        kinds[kind] += 1
        if kind.startswith("refused") and name not in refused:
            reasons[answer["why"].split(": ", 1)[-1][:60]] += 1
            refused.add(name)
        if list_them and kind != "right":
            print(f"  {kind}: {name}: {answer['why']}")
    schemas = {name for name, _, _, _ in cases}
    print(f"{what}: {len(cases)} cases: " + ", ".join(f"{n} {kind} ({100 * n / len(cases):.1f}%)"
                                                       for kind, n in kinds.most_common()))
    for reason, n in reasons.most_common(8):
        print(f"  {n} files: {reason}")
    return kinds, 1 - len(refused) / len(schemas)


def masks(build, cases, n):
    first = {}
    for name, schema, data, valid in cases:
        if valid:
            first.setdefault(name, {"schema": schema, "instance": data})
    rows = list(first.values())
    random.Random(11).shuffle(rows)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        for row in rows[:n or None]:
            f.write(json.dumps(row, ensure_ascii=False) + "\n")
        f.flush()
        subprocess.run([os.path.join(build, "bench", "bench-grammar"), f.name], check=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(TREE, "build"))
    p.add_argument("--suite")
    p.add_argument("--maskbench")
    p.add_argument("--masks", type=int)
    p.add_argument("--list", action="store_true")
    args = p.parse_args()
    binary = os.path.join(args.build, "bin", "tandem")
    failed = []
    if args.suite:
        cases = list(suite_cases(args.suite))
        kinds, _ = count("test suite", binary, cases, args.list)
        failed += ["wrongly accepted"] if kinds["wrongly accepted"] else []
        failed += ["less than 90% right"] if kinds["right"] < 0.9 * len(cases) else []
    if args.maskbench:
        cases = list(maskbench_cases(args.maskbench))
        kinds, held = count("MaskBench", binary, cases, args.list)
        print(f"  {100 * held:.1f}% of the schemas are held")
        failed += ["wrongly accepted"] if kinds["wrongly accepted"] else []
        failed += ["less than 85% held"] if held < 0.85 else []
        if args.masks is not None:
            masks(args.build, cases, args.masks)
    if failed:
        sys.exit("failed: " + ", ".join(failed))


if __name__ == "__main__":
    main()
