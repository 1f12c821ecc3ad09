"""tandem schema-check against a naive validator of its own, over random schemas and instances.

The validator below is written from the specification, without a look at the compiler's ways: a recursive walk over the
value. Schemas are drawn from all keywords that both hold; instances are drawn for the schema, so that about half are
valid. Where schema-check says accept or reject, the validator must agree; what it calls unsupported is counted, and may
be no more than a part of the schemas."""
import datetime
import json
import os
import random
import re
import subprocess
import sys
from fractions import Fraction

BIN = os.environ.get("TANDEM_BIN", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/bin"))
FULL = "--full" in sys.argv
N = 20000 if FULL else 3000
SEED = int(os.environ.get("TANDEM_TEST_SEED", "1"))
NAMES = ["a", "b", "ab", "x1", "é"]
STRINGS = ["", "a", "ab", "abc", "b", "x1", "é", "a\"b", "zz\n", "2024-02-29", "2023-02-29", "ba", "aab"]
NUMBERS = [0, 1, 2, 3, 5, 10, -1, -7, 12, 100, 0.5, 1.5, -2.25, 2.0, 7.75]
PATTERNS = ["^a", "b$", "^[a-c]+$", "a.?b", "^(a|x\\d)$", "^[^a]*$", "^.{2,3}$", "\\d"]


def fraction(x):
    return Fraction(repr(x)) if isinstance(x, float) else Fraction(x)


def is_number(v):
    return isinstance(v, (int, float)) and not isinstance(v, bool)


def equal(a, b):
    if is_number(a) and is_number(b):
        return fraction(a) == fraction(b)
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return a == b


def has_type(v, t):
    return {"null": v is None, "boolean": isinstance(v, bool), "string": isinstance(v, str),
            "array": isinstance(v, list), "object": isinstance(v, dict), "number": is_number(v),
            "integer": is_number(v) and fraction(v).denominator == 1}[t]


def search(pattern, text):  # $ is the end alone in ECMA, and \d is ASCII
    return re.search(pattern.replace("$", "\\Z"), text, re.ASCII) is not None


def is_date(text):
    try:
        return re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text) and bool(datetime.date.fromisoformat(text))
    except ValueError:  # year 0 is a year of RFC 3339, and a leap year
        return text[:4] == "0000" and is_date("2000" + text[4:])


def valid(s, v, root):
    if isinstance(s, bool):
        return s
    ok = []
    if "$ref" in s:
        ok.append(valid(root if s["$ref"] == "#" else root["$defs"][s["$ref"].split("/")[-1]], v, root))
    if "type" in s:
        ok.append(any(has_type(v, t) for t in (s["type"] if isinstance(s["type"], list) else [s["type"]])))
    if "enum" in s:
        ok.append(any(equal(v, x) for x in s["enum"]))
    if "const" in s:
        ok.append(equal(v, s["const"]))
    if is_number(v):
        f = fraction(v)
        ok += [f >= fraction(s["minimum"])] if "minimum" in s else []
        ok += [f <= fraction(s["maximum"])] if "maximum" in s else []
        ok += [f > fraction(s["exclusiveMinimum"])] if "exclusiveMinimum" in s else []
        ok += [f < fraction(s["exclusiveMaximum"])] if "exclusiveMaximum" in s else []
        ok += [(f / fraction(s["multipleOf"])).denominator == 1] if "multipleOf" in s else []
    if isinstance(v, str):
        ok += [len(v) >= s["minLength"]] if "minLength" in s else []
        ok += [len(v) <= s["maxLength"]] if "maxLength" in s else []
        ok += [search(s["pattern"], v)] if "pattern" in s else []
        ok += [is_date(v)] if s.get("format") == "date" else []
    if isinstance(v, list):
        ok += [len(v) >= s["minItems"]] if "minItems" in s else []
        ok += [len(v) <= s["maxItems"]] if "maxItems" in s else []
        ok += [not any(equal(x, y) for i, x in enumerate(v) for y in v[:i])] if s.get("uniqueItems") else []
        prefix = s.get("prefixItems", [])
        ok += [valid(p, x, root) for p, x in zip(prefix, v)]
        ok += [valid(s["items"], x, root) for x in v[len(prefix):]] if "items" in s else []
        if "contains" in s:
            n = sum(valid(s["contains"], x, root) for x in v)
            ok += [s.get("minContains", 1) <= n <= s.get("maxContains", 1 << 30)]
    if isinstance(v, dict):
        ok += [k in v for k in s.get("required", [])]
        ok += [len(v) >= s["minProperties"]] if "minProperties" in s else []
        ok += [len(v) <= s["maxProperties"]] if "maxProperties" in s else []
        for k, x in v.items():
            known = k in s.get("properties", {})
            if known:
                ok.append(valid(s["properties"][k], x, root))
            for p, t in s.get("patternProperties", {}).items():
                if search(p, k):
                    known = True
                    ok.append(valid(t, x, root))
            if not known and "additionalProperties" in s:
                ok.append(valid(s["additionalProperties"], x, root))
            if "propertyNames" in s:
                ok.append(valid(s["propertyNames"], k, root))
        ok += [d in v for k, ds in s.get("dependentRequired", {}).items() if k in v for d in ds]
        ok += [valid(t, v, root) for k, t in s.get("dependentSchemas", {}).items() if k in v]
    ok += [valid(t, v, root) for t in s.get("allOf", [])]
    ok += [any(valid(t, v, root) for t in s["anyOf"])] if "anyOf" in s else []
    ok += [sum(valid(t, v, root) for t in s["oneOf"]) == 1] if "oneOf" in s else []
    ok += [not valid(s["not"], v, root)] if "not" in s else []
    if "if" in s:
        branch = "then" if valid(s["if"], v, root) else "else"
        ok.append(valid(s.get(branch, True), v, root))
    return all(ok)


def draw_value(r, depth):
    k = r.randrange(7 if depth > 0 else 5)
    if k == 0:
        return r.choice([None, True, False])
    if k <= 2:
        return r.choice(NUMBERS)
    if k <= 4:
        return r.choice(STRINGS)
    if k == 5:
        return [draw_value(r, depth - 1) for _ in range(r.randrange(4))]
    return {n: draw_value(r, depth - 1) for n in r.sample(NAMES, r.randrange(4))}


def draw_schema(r, depth, refs):
    if r.random() < 0.06:
        return r.choice([True, True, False])
    s = {}
    leaves = [True, {"type": "integer"}, {"type": "string"}]
    sub = lambda: draw_schema(r, depth - 1, refs) if depth > 0 else r.choice(leaves)
    t = r.choice(["integer", "number", "string", "array", "object", "object", "any"])
    if t != "any":
        s["type"] = t if r.random() < 0.8 else sorted({t, r.choice(["null", "boolean", "string"])})
    if r.random() < 0.1:
        s["enum"] = [draw_value(r, 1) for _ in range(r.randrange(1, 5))]
    if r.random() < 0.04:
        s["const"] = draw_value(r, 1)
    if t in ("integer", "number") or r.random() < 0.1:
        for k in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if r.random() < 0.25:
                s[k] = r.choice(NUMBERS)
        if r.random() < 0.15:
            s["multipleOf"] = r.choice([2, 3, 0.5, 0.25, 5])
    if t == "string" or r.random() < 0.1:
        if r.random() < 0.3:
            s["minLength"] = r.randrange(4)
        if r.random() < 0.3:
            s["maxLength"] = r.randrange(4)
        if r.random() < 0.3:
            s["pattern"] = r.choice(PATTERNS)
        if r.random() < 0.05:
            s["format"] = "date"
    if t == "array" or r.random() < 0.05:
        if r.random() < 0.6:
            s["items"] = sub()
        if r.random() < 0.3:
            s["prefixItems"] = [sub() for _ in range(r.randrange(1, 3))]
        if r.random() < 0.1:
            s["uniqueItems"] = True
            if r.random() < 0.8:
                s["items"] = r.choice([{"enum": [draw_value(r, 1) for _ in range(r.randrange(1, 6))]},
                                       {"type": "boolean"}])
        if r.random() < 0.25:
            s["minItems"] = r.randrange(3)
        if r.random() < 0.25:
            s["maxItems"] = r.randrange(4)
        if r.random() < 0.15:
            s["contains"] = sub()
            if r.random() < 0.4:
                s["minContains"] = r.randrange(3)
            if r.random() < 0.3:
                s["maxContains"] = r.randrange(1, 3)
    if t == "object" or r.random() < 0.1:
        if r.random() < 0.85:
            s["properties"] = {n: sub() for n in r.sample(NAMES, r.randrange(1, 4))}
        if r.random() < 0.5:
            s["required"] = r.sample(NAMES, r.randrange(1, 3))
        if r.random() < 0.3:
            s["additionalProperties"] = r.choice([False, sub()])
        if r.random() < 0.15:
            s["patternProperties"] = {p: sub() for p in r.sample(PATTERNS, r.randrange(1, 3))}
        if r.random() < 0.08:
            s["propertyNames"] = r.choice([{"pattern": r.choice(PATTERNS)}, {"maxLength": 1}, {"enum": NAMES[:2]}])
        if r.random() < 0.1:
            s["minProperties"] = r.randrange(3)
        if r.random() < 0.1:
            s["maxProperties"] = r.randrange(4)
        if r.random() < 0.06:
            s["dependentRequired"] = {r.choice(NAMES): [r.choice(NAMES)]}
        if r.random() < 0.05:
            s["dependentSchemas"] = {r.choice(NAMES): sub()}
    if depth > 0:
        for k, p in (("allOf", 0.08), ("anyOf", 0.12), ("oneOf", 0.08)):
            if r.random() < p:
                s[k] = [sub() for _ in range(r.randrange(1, 4))]
        if r.random() < 0.06:
            s["not"] = sub()
        elif r.random() < 0.03:
            s["not"] = {"enum": [draw_value(r, 2) for _ in range(r.randrange(1, 4))]}
        if r.random() < 0.04:
            s["if"] = sub()
            s["then"] = sub()
            if r.random() < 0.5:
                s["else"] = sub()
    if refs and r.random() < 0.08:
        s["$ref"] = "#/$defs/" + r.choice(refs)
    return s


def draw_for(r, s, root, depth):
    """A value that has a chance to be valid."""
    if isinstance(s, bool) or r.random() < 0.12 or depth <= 0:
        return draw_value(r, max(depth, 0))
    if "$ref" in s and r.random() < 0.5:
        return draw_for(r, root["$defs"][s["$ref"].split("/")[-1]], root, depth - 1)
    if "const" in s:
        return s["const"]
    if "enum" in s:
        return r.choice(s["enum"])
    for k in ("anyOf", "oneOf", "allOf"):
        if k in s and r.random() < 0.4:
            return draw_for(r, r.choice(s[k]), root, depth - 1)
    t = s.get("type", "any")
    t = r.choice(t) if isinstance(t, list) else t
    if t == "any":
        t = "object" if "properties" in s else "array" if "items" in s else r.choice(["number", "string"])
    if t == "object":
        v = {}
        for n, sub in s.get("properties", {}).items():
            if n in s.get("required", []) or r.random() < 0.6:
                v[n] = draw_for(r, sub, root, depth - 1)
        for n in s.get("required", []):
            v.setdefault(n, draw_for(r, s.get("additionalProperties", True), root, depth - 1))
        if r.random() < 0.2:
            v[r.choice(NAMES)] = draw_for(r, s.get("additionalProperties", True), root, depth - 1)
        items = list(v.items())
        r.shuffle(items)
        return dict(items)
    if t == "array":
        v = [draw_for(r, p, root, depth - 1) for p in s.get("prefixItems", [])]
        return v + [draw_for(r, s.get("items", True), root, depth - 1) for _ in range(r.randrange(3))]
    if t in ("integer", "number"):
        return r.choice(NUMBERS)
    if t == "string":
        return r.choice(STRINGS)
    return r.choice([None, True, False])


def main():
    r = random.Random(SEED)
    lines, cases = [], []
    while len(cases) < N:
        refs = ["p", "q"] if r.random() < 0.3 else []
        s = draw_schema(r, 3, refs)
        if isinstance(s, dict) and refs:
            s["$defs"] = {n: draw_schema(r, 1, []) for n in refs}
        for _ in range(4):
            v = draw_for(r, s, s, 4)
            lines.append(json.dumps({"id": len(cases), "schema": s, "instance": v}, ensure_ascii=False))
            cases.append((s, v))
    ran = subprocess.run([os.path.join(BIN, "tandem"), "schema-check"], input=("\n".join(lines) + "\n").encode(),
                         stdout=subprocess.PIPE, check=True)
    results = [json.loads(line) for line in ran.stdout.decode().splitlines()]
    assert len(results) == len(cases), f"{len(results)} answers to {len(cases)} lines"
    count = {"accept": 0, "reject": 0, "unsupported": 0}
    wrong = 0
    for i, ((s, v), got) in enumerate(zip(cases, results)):
        assert got["id"] == i
        count[got["verdict"]] += 1
        if got["verdict"] != "unsupported" and (got["verdict"] == "accept") != valid(s, v, s):
            wrong += 1
            if wrong <= 10:
                print(f"{got['verdict']}, but not by the specification: {lines[i]}\n    {got['why']}")
    print(f"seed {SEED}: {count}, {wrong} wrong")
    assert wrong == 0
    assert min(count["accept"], count["reject"]) > N // 10, "the cases say little"
    assert count["unsupported"] < N // 4, "too much is refused"


if __name__ == "__main__":
    main()
