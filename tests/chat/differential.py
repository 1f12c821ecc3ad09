"""tandem render-template against jinja2, set up as transformers sets it up, over random templates.

Templates are drawn from a small grammar of what chat templates use: statements, white space control, expressions over
values of all types, filters, tests and methods. Where jinja2 gives a text, Tandem must give the same,
    or refuse; where
jinja2 has an error, Tandem must have one too. Refusals of what jinja2 renders are counted, and may be no more than a
part."""
import datetime
import json
import os
import random
import subprocess
import sys
import warnings

try:
    import jinja2
    import jinja2.nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("skipped: no jinja2 (Debian: python3-jinja2)")
    sys.exit(77)

BIN = os.environ.get("TANDEM_BIN", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/bin"))
FULL = "--full" in sys.argv
N = 200000 if FULL else 3000
SEED = int(os.environ.get("TANDEM_TEST_SEED", "1"))
NOW = "2026-01-15T12:34:56"


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, "jinja2.ext.loopcontrols"])

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = datetime.datetime.fromisoformat(NOW).strftime
    return env


ENV = environment()
warnings.simplefilter("ignore")  # Python warns of templates that subscript numbers

VARIABLES = {
    "s": "Hello World", "t": "  a,b\nc é ", "e": "", "q": "it's \"so\" <b>&\\", "u": "ÄÖß ςΣ \u00a0x",
    "n": 7, "z": 0, "m": -3, "f": 2.5, "g": 1e20, "h": 0.1, "yes": True, "no": False, "nil": None,
    "l": [1, 2, 3], "w": ["b", "A", "c"], "el": [], "d": {"a": 1, "b": "two", "items": 3, "c": None}, "ed": {},
    "p": [{"k": "x", "v": 1}, {"k": "y", "v": 2}, {"k": "X", "v": None}, {"v": 4}],
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [{"type": "text",
                                                                                       "text": "Yo"}]}],
}
STRINGS = ["''", "'a'", "'b'", "', '", "'l'", "'o W'", "'é'", "'x\\ny'", "\"it's\"", "'%s'", "'World'", "'k'",
           "'text'"]
INTS = ["0", "1", "2", "3", "-1", "10", "100"]


def pick(r, options):
    return options[r.randrange(len(options))]


def name(r):
    return pick(r, list(VARIABLES) + ["missing", "ns", "x", "loop"])


def call_args(r, depth, options):
    return ", ".join(pick(r, o) if isinstance(o, list) else expression(r, depth - 1) for o in options)


def filter_of(r, depth):
    kind = r.randrange(30)
    if kind < 14:
        return pick(r, ["trim", "length", "string", "upper", "lower", "title", "capitalize", "list", "first", "last",
                        "tojson", "items", "join", "int", "float", "abs", "safe", "sort", "dictsort", "reverse",
                            "unique",
                        "min", "max", "default('D')", "default('D', true)", "default(0, boolean=True)", "count", "e",
                        "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(sort_keys=true)", "round",
                            "round(1)",
                        "tojson(separators=(',', ':'))", "wordcount", "sum", "indent", "indent(2, true)",
                            "indent(1, first=true)"])
    if kind < 17:
        return "join(%s)" % pick(r, STRINGS)
    if kind < 19:
        return "replace(%s, %s)" % (pick(r, STRINGS), pick(r, STRINGS))
    if kind < 22:
        return pick(r, ["map(attribute='k')", "map(attribute='v', default=0)", "map('upper')", "map('string')",
                        "map('length')",
                        "map('default', 'z')", "map(attribute='content')"]) + pick(r, ["|list", "|join(',')", "",
                                                                                       "|first"])
    if kind < 26:
        return pick(r, ["selectattr('k')", "selectattr('k', 'equalto', 'x')", "rejectattr('v')",
                        "selectattr('v', 'defined')",
                        "selectattr('v', 'gt', 1)", "select('string')", "reject('equalto', 2)", "select",
                            "reject('none')",
                        "select('in', [1, 'A'])", "rejectattr('k', 'undefined')", "select('odd')"]) + \
            pick(r, ["|list", "|list|length", "", "|map(attribute='v')|list", "|list|tojson"])
    return pick(r, ["sort(attribute='v')", "sort(reverse=true)", "sort(case_sensitive=true)", "dictsort(by='value')",
                    "unique|list", "groupby('k')", "attr('k')", "int(5)", "default(%s)" % pick(r, STRINGS),
                        "trim('H ')",
                    "tojson|safe", "reverse|list", "items|list", "format(1)", "dictsort(reverse=true)"])


def test_of(r, depth):
    return pick(r, ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "boolean", "true",
                    "false",
                    "number", "integer", "float", "odd", "even", "callable", "upper", "lower", "eq 1",
                        "equalto('a')", "ne 2",
                    "in [1, 2]", "in 'abc'", "divisibleby 2", "divisibleby(3)", "gt 1", "sameas(true)", "ge(2)",
                        "lt 3"])


def method_of(r, depth):
    s, i = pick(r, STRINGS), pick(r, INTS)
    return pick(r, ["strip()", "lstrip()", "rstrip()", "strip(%s)" % s, "lstrip(%s)" % s, "rstrip(%s)" % s, "split()",
                    "split(%s)" % s, "split(%s, %s)" % (s, i), "rsplit(%s, 1)" % s, "split(none, 1)",
                        "startswith(%s)" % s,
                    "endswith(%s)" % s, "startswith((%s, 'H'))" % s, "replace(%s, 'R')" % s,
                        "replace(%s, 'R', 1)" % s,
                    "upper()", "lower()", "title()", "capitalize()", "find(%s)" % s, "rfind(%s)" % s,
                        "find(%s, 3)" % s,
                    "count(%s)" % s, "items()", "keys()", "values()", "get('a')", "get('zz', %s)" % s, "get(%s)" % s,
                    "items()|list", "keys()|list", "values()|list|tojson", "isdigit()", "isalpha()", "isspace()",
                        "isupper()",
                    "islower()", "splitlines()", "partition(%s)" % s, "rpartition(%s)" % s, "removeprefix('He')",
                    "removesuffix('ld')", "format(1, 'b')", "index(2)", "copy()", "join(['a', 'b'])", "isalnum()"])


def primary(r, depth):
    kind = r.randrange(20)
    if kind < 8 or depth <= 0:
        return name(r)
    if kind < 11:
        return pick(r, STRINGS)
    if kind < 13:
        return pick(r, INTS + ["1.5", "1e3", "true", "false", "none", "True", "None", "0.25", "3.0"])
    if kind == 13:
        return "[%s]" % ", ".join(expression(r, depth - 2) for _ in range(r.randrange(4)))
    if kind == 14:
        pairs = ["%s: %s" % (pick(r, STRINGS + INTS), expression(r, depth - 2)) for _ in range(r.randrange(3))]
        return "{%s}" % ", ".join(pairs)
    if kind == 15:
        return "(%s)" % ", ".join(expression(r,
                                             depth - 2) for _ in range(1 + r.randrange(2))) if r.randrange(3) else \
            "(%s,)" % expression(r, depth - 2)
    if kind == 16:
        return pick(r, ["range(3)", "range(1, 4)", "range(5, 0, -2)", "namespace(a=1).a", "dict(a=1, b=s)",
                        "strftime_now('%Y-%m-%d')", "range(n)", "namespace().q"])
    return "(%s)" % expression(r, depth - 1)


def postfix(r, depth):
    text = primary(r, depth)
    while r.randrange(3) == 0:
        kind = r.randrange(8)
        if kind == 0:
            text += "." + pick(r, ["a", "b", "k", "items", "zz", "content", "role", "0", "1"])
        elif kind < 3:
            text += "[%s]" % pick(r, INTS + STRINGS + ["'a'", "'items'", "'role'", name(r)])
        elif kind < 5:
            text += "[%s]" % pick(r, ["1:", ":1", "::-1", ":-1", "-2:", "::2", "1:3", ":", "-1::-1", "5:", ":100",
                                      "2:0:-1"])
        else:
            text += "." + method_of(r, depth)
    while r.randrange(4) == 0:
        text += pick(r, ["|", " | "]) + filter_of(r, depth)
    if r.randrange(9) == 0:
        text += pick(r, [" is ", " is not "]) + test_of(r, depth)
    return text


def expression(r, depth):
    if depth <= 0:
        return postfix(r, 0)
    kind = r.randrange(24)
    if kind < 11:
        return postfix(r, depth)
    a, b = expression(r, depth - 1), expression(r, depth - 1)
    if kind < 14:
        return "%s + %s" % (a, b)
    if kind == 14:
        return "%s ~ %s" % (a, b)
    if kind == 15:
        return "%s %s %s" % (a, pick(r, ["-", "*", "/", "//", "%", "**"]), pick(r, INTS + [b]))
    if kind < 18:
        return "%s %s %s" % (a, pick(r, ["==", "!=", "<", ">", "<=", ">=", "in", "not in"]), b)
    if kind < 20:
        return "%s %s %s" % (a, pick(r, ["and", "or"]), b)
    if kind == 20:
        return "not " + a
    if kind == 21:
        return "-" + postfix(r, depth - 1)
    return "%s if %s%s" % (a, b, pick(r, ["", " else " + expression(r, depth - 1)]))


OF_TYPE = {  # expressions that mostly fit each other, so that more than errors are compared
    "string": ["s", "t", "e", "q", "u", "'é'", "w[0]", "d.b", "messages[0].content", "messages[0]['role']",
               "w|join", "d|tojson"],
    "list": ["l", "w", "el", "p", "messages", "d.items()|list", "range(4)|list", "s.split()", "t.split('\\n')",
             "w[:2]", "l[::-1]"],
    "dict": ["d", "ed", "p[0]", "messages[1]", "dict(a=1)", "{'z': 1, 'y': s}"],
    "number": ["n", "z", "m", "f", "h", "g", "yes", "l[0]", "l|length", "s.find('o')", "3", "1.5", "-2"],
}


def typed(r):
    kind = pick(r, list(OF_TYPE))
    text = pick(r, OF_TYPE[kind])
    for _ in range(r.randrange(3)):
        text += "|" + filter_of(r, 1) if kind != "string" or r.randrange(2) else "." + method_of(r, 1)
    other = pick(r, OF_TYPE[kind])
    operators = {"string": ["+", "~", "==", "<", "in", "*2 ~"], "list": ["+", "==", "in", "~", "and"],
                 "dict": ["==", "!=", "or", "~"], "number": ["+", "-", "*", "/", "//", "%", "**", "<", ">=", "==",
                                                             "~"]}[kind]
    if r.randrange(3) == 0:
        text = "%s %s %s" % (text, pick(r, operators), other)
    if r.randrange(6) == 0:
        text = "(%s)[%s]" % (text, pick(r, INTS + ["1:", "-1", ":2", "::-1", "'a'", "-2:"]))
    if r.randrange(8) == 0:
        text += " is " + test_of(r, 1)
    return text


def data(r):
    return "".join(pick(r, [" ", "\n", "x", "  ", "\n\n", "a b", "\t", "{", "%}", "é", "\r\n",
                            "}"]) for _ in range(r.randrange(5)))


def tag(r, text):
    return "{%" + pick(r, ["", "", "-", "+"]) + " " + text + " " + pick(r, ["", "", "-", "+"]) + "%}"


def block(r, depth):
    return "".join(statement(r, depth) + data(r) for _ in range(r.randrange(1, 4)))


def statement(r, depth):
    kind = r.randrange(22) if depth > 0 else r.randrange(9)
    if kind < 6:
        return "{{" + pick(r, ["", "", "-"]) + " " + expression(r, 3) + " " + pick(r, ["", "", "-"]) + "}}"
    if kind == 6:
        return "{#" + pick(r, ["", "-"]) + data(r).replace("#", "") + pick(r, ["", "-", "+"]) + "#}"
    if kind < 9:
        return tag(r, "set %s = %s" % (pick(r, ["x", "y", "ns.a", "x, y", "s"]), expression(r, 3)))
    if kind < 13:
        return tag(r, "if " + expression(r, 2)) + data(r) + block(r, depth - 1) + \
            (tag(r, "elif " + expression(r, 2)) + block(r, depth - 1) if r.randrange(3) == 0 else "") + \
            (tag(r, "else") + block(r, depth - 1) if r.randrange(2) else "") + tag(r, "endif")
    if kind < 17:
        head = "for " + pick(r, ["x", "x", "k, v"]) + " in " + \
            pick(r, ["l", "w", "p", "messages", "d.items()", "d", "s", "range(3)", "el", "d|items", expression(r, 1)])
        if r.randrange(5) == 0:
            head += " if " + expression(r, 1)
        body = block(r, depth - 1)
        if r.randrange(3) == 0:
            body += "{{ loop." + pick(r, ["index", "index0", "first", "last", "length", "revindex", "previtem",
                                          "nextitem",
                                         "cycle('a', 'b')", "changed(x)", "depth"]) + " }}"
        if r.randrange(6) == 0:
            body += tag(r, "if " + expression(r, 1)) + tag(r, pick(r, ["break", "continue"])) + tag(r, "endif")
        return tag(r, head) + body + (tag(r, "else") + data(r) if r.randrange(6) == 0 else "") + tag(r, "endfor")
    if kind == 17:
        return tag(r, "set x") + block(r, depth - 1) + tag(r, "endset")
    if kind == 18:
        return tag(r, "macro m(a, b=%s)" % expression(r, 1)) + block(r, depth - 1) + "{{ a }}{{ b }}" + \
            tag(r, "endmacro") + "{{ m(%s) }}" % pick(r, ["1", "s, 2", "b=3", "a=1, b=2", "", "1, 2, 3", "s, b=l"])
    if kind == 19:
        return tag(r, "generation") + block(r, depth - 1) + tag(r, "endgeneration")
    if kind == 20:
        return tag(r, "raw") + data(r) + "{{ x }}" + tag(r, "endraw")
    filters = pick(r, ["upper", "trim", "replace('a', 'b')", "indent(2)"])
    return tag(r, "filter " + filters) + block(r, depth - 1) + tag(r, "endfilter")


def template(seed):
    r = random.Random(seed)
    if r.randrange(3) < 2:  # a short one is more often right
        return data(r) + "{{ " + typed(r) + " }}" + data(r)
    return ("{% set ns = namespace(a=0) %}" if r.randrange(2) else "") + data(r) + block(r, 3) + pick(r, ["", "\n",
                                                                                                          " \n\n"])


def jinja2_text(source):
    variables = json.loads(json.dumps(VARIABLES))
    return ENV.from_string(source).render(tools=None, documents=None, add_generation_prompt=True, bos_token="<s>",
                                          eos_token="</s>", **variables)


def expected(source):
    try:
        return jinja2_text(source), None
    except RecursionError:
        return None, "recursion"
    except Exception as e:  # whatever Python says is an error of the template
        return None, "%s: %s" % (type(e).__name__, e)


# jinja2 prints these with an address, or in a way that depends on Python's version.
UNSTABLE = ("object at 0x", "<generator", "<built-in", "<bound", "<function", "<class", "dict_items", "dict_keys",
            "dict_values", "<Namespace", "<LoopContext", "<Macro", "<jinja2", "_GroupTuple", "<method",
                "<listreverse", "<list_")


def main():
    sources = [template(SEED * 1000003 + i) for i in range(N)]
    lines = "".join(json.dumps(dict(VARIABLES, id=i, template=s, bos="<s>", eos="</s>", now=NOW,
                                    add_generation_prompt=True))
                    + "\n" for i, s in enumerate(sources))
    run = subprocess.run([os.path.join(BIN, "tandem"), "render-template"], input=lines.encode(),
                         stdout=subprocess.PIPE,
                         check=True)
    answers = [json.loads(line) for line in run.stdout.decode().splitlines()]
    assert len(answers) == N, f"{len(answers)} answers to {N} lines"
    wrong = refused = texts = errors = 0
    reasons = {}
    for source, answer in zip(sources, answers):
        text, error = expected(source)
        if text is not None and any(mark in text for mark in UNSTABLE):
            continue
        texts += text is not None
        errors += text is None
        if text is not None and "error" in answer:
            refused += 1
            reason = answer["error"].split(": ", 1)[-1]
            reasons.setdefault(reason, []).append(source)
        elif (text is None) != ("error" in answer) or (text is not None and text != answer["text"]):
            wrong += 1
            if wrong <= 10:
                got = answer.get("text", answer.get("error"))
                print("template %r\n  jinja2 %r %r\n  tandem %r" % (source, text, error, got))
    print(f"seed {SEED}: {texts} texts, {errors} errors, {wrong} wrong, {refused} refused")
    for reason, of in sorted(reasons.items(), key=lambda item: -len(item[1]))[:10]:
        print(f"  {len(of)} times: {reason}" + (f"   {of[0]!r}" if "-v" in sys.argv else ""))
    # What a random template meets and Tandem does not do: printed generators, whole numbers beyond 64 bits.
    assert wrong == 0, f"{wrong} templates are not rendered as jinja2 renders them"
    assert refused <= texts // 50, f"{refused} of {texts} texts are refused"


main()
