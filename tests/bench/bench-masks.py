#!/usr/bin/env python3
"""What masks cost: this engine, llguidance and xgrammar over the same vocabulary, schemas and instances.

usage: bench-masks.py --tokenizer tokenizer.json [--maskbench DIR] [--suite DIR] [-n N] [--engines LIST] [--save FILE]

--tokenizer: a released tokenizer's file. --maskbench and --suite: as for json_schema.py. -n: so many of MaskBench's
schemas, drawn with a fixed seed (0: all). llguidance, xgrammar and tokenizers come from PyPI (pip install llguidance
xgrammar tokenizers).

Each engine is a process of its own on the same core. They take turns, schema by schema; one that takes longer than
--limit seconds for a schema is ended and counted as such. Times are processor time of the thread that does the work.
xgrammar compiles in one thread, as MaskBench has it. An instance is the text of Python's json.dumps(), cut by the
tokenizer, in the order of members that the instance has. It is accepted if each mask allows the next token, and the
last one the end of the text.

Prints of each engine: the time to compile, of a mask, of a mask of each schema's first text (later ones may find what
the engine keeps with the grammar), and of a mask with accepting a token, on the schemas that all
engines compile ("shared") and on all that it compiles itself; and how many schemas it refuses, and how many instances
it accepts or rejects wrongly."""
import argparse
import collections
import json
import os
import random
import select
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import json_schema  # noqa: E402

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
END = 1 << 31
ENGINES = ("tandem", "llguidance", "xgrammar")


def byte_letters():
    """GPT-2's letters for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(b): b for b in plain}
    letters.update((chr(256 + i), b) for i, b in enumerate(b for b in range(256) if b not in plain))
    return letters


def vocabulary(path):
    """The bytes of each id (none: a control token), and the ids that end a text."""
    with open(path, encoding="utf-8") as f:
        tokenizer = json.load(f)
    model, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    n = max([*model.values(), *(t["id"] for t in added)]) + 1
    pieces, letters = [b""] * n, byte_letters()
    of_bytes = "ByteLevel" in json.dumps([tokenizer["pre_tokenizer"], tokenizer["decoder"]])
    for text, i in model.items():
        if of_bytes:
            pieces[i] = bytes(letters[c] for c in text)
        elif len(text) == 6 and text.startswith("<0x"):
            pieces[i] = bytes([int(text[3:5], 16)])
        else:
            pieces[i] = text.replace("\u2581", " ").encode()
    for t in added:
        pieces[t["id"]] = b"" if t["special"] else t["content"].replace("\u2581", " ").encode()
    names = ("<|eot_id|>", "<end_of_turn>", "<|im_end|>", "<|end_of_text|>", "</s>")
    ends = [t["id"] for t in added if t["content"] in names][-1:]
    return pieces, ends or sys.exit("bench-masks: the tokenizer has no end token that is known")


def pieces_write(path, pieces, ends):
    with open(path, "wb") as f:
        for i, piece in enumerate(pieces):
            f.write(struct.pack("<I", END if i in ends else len(piece)) + (b"" if i in ends else piece))


def pieces_read(path):
    with open(path, "rb") as f:
        data = f.read()
    pieces, ends, at = [], [], 0
    while at < len(data):
        size = struct.unpack_from("<I", data, at)[0]
        if size & END:
            ends.append(len(pieces))
        size &= END - 1
        pieces.append(data[at + 4:at + 4 + size])
        at += 4 + size
    return pieces, ends


# ---- the other engines, each in a process of its own: what bench-masks.c does, in Python ----

class Llguidance:
    def __init__(self, pieces, ends, file):
        import llguidance
        import numpy
        self.module = llguidance
        self.tokenizer = llguidance.LLTokenizer(file, n_vocab=len(pieces), eos_token=ends[0])
        self.words = numpy.zeros((len(pieces) + 31) // 32, dtype=numpy.int32)
        self.pointer, self.size = self.words.ctypes.data, self.words.nbytes

    def compile(self, schema):
        self.first = self.module.LLMatcher(self.tokenizer, json.dumps({"grammars": [{"json_schema": schema}]}))
        if self.first.is_error():
            raise ValueError(self.first.get_error())

    def begin(self):
        self.matcher = self.first.deep_copy()

    def mask(self):
        self.matcher.unsafe_compute_mask_ptr(self.pointer, self.size)
        return not self.matcher.is_error()

    def accept(self, token):
        return self.matcher.consume_token(token)


class Xgrammar:
    def __init__(self, pieces, ends, file):
        import xgrammar
        info = xgrammar.TokenizerInfo(pieces, vocab_size=len(pieces), stop_token_ids=ends)
        self.module, self.bits = xgrammar, xgrammar.allocate_token_bitmask(1, len(pieces))
        self.words = self.bits.numpy()[0]
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, schema):
        self.grammar = self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=False, strict_mode=True)

    def begin(self):
        self.matcher = self.module.GrammarMatcher(self.grammar)

    def mask(self):
        self.matcher.fill_next_token_bitmask(self.bits)
        return True

    def accept(self, token):
        return self.matcher.accept_token(token)


def text_run(engine, ids, end):
    masks, accepts, now = [], [], time.thread_time_ns
    engine.begin()
    for token in [*ids, end]:
        start = now()
        ok = engine.mask()
        masks.append(now() - start)
        ok = ok and bool(int(engine.words[token // 32]) >> token % 32 & 1)
        start = now()
        ok = ok and engine.accept(token)
        accepts.append(now() - start)
        if not ok:
            return {"accepted": False, "masks": masks, "accepts": accepts}
    return {"accepted": True, "masks": masks, "accepts": accepts}


def serve(name, path, file):
    pieces, ends = pieces_read(path)
    start = time.thread_time_ns()
    engine = {"llguidance": Llguidance, "xgrammar": Xgrammar}[name](pieces, ends, file)
    print(json.dumps({"vocabulary": time.thread_time_ns() - start}), flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        try:
            start = time.thread_time_ns()
            engine.compile(work["schema"])
            answer = {"compile": time.thread_time_ns() - start}
            answer["texts"] = [text_run(engine, ids, ends[0]) for ids in work["texts"]]
        except Exception as e:  # whatever an engine throws is its refusal
            answer = {"refused": str(e)[:200] or repr(e)[:200]}
        print(json.dumps(answer), flush=True)


# ---- the turns ----

class Child:
    def __init__(self, name, build, path, file, core):
        binary = os.path.join(build, "bench", "bench-masks")
        self.args = [binary, path] if name == "tandem" else [sys.executable, __file__, "--serve", name, path,
                                                                         file]
        self.core, self.process = core, None

    def start(self):
        self.process = subprocess.Popen(self.args, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL,
                                        preexec_fn=lambda: os.sched_setaffinity(0, {self.core}))
        first = self.process.stdout.readline()
        if not first:
            sys.exit(f"bench-masks: {self.args} does not start")
        return json.loads(first)

    def end(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        self.process = None

    def ask(self, line, limit):
        if not self.process:
            self.start()
        self.process.stdin.write(line)
        self.process.stdin.flush()
        deadline, answer = time.monotonic() + limit, b""
        while not answer.endswith(b"\n"):
            ready = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0]
            more = os.read(self.process.stdout.fileno(), 1 << 20) if ready else b""
            if not more:
                self.end()
                return {"refused": "it died" if ready else "it took too long", "late": True}
            answer += more
        return json.loads(answer)


def groups_of(args):
    """(set, schema, [(instance, valid)])"""
    groups = collections.OrderedDict()
    if args.maskbench:
        for name, schema, data, valid in json_schema.maskbench_cases(args.maskbench):
            groups.setdefault(("MaskBench", name), (schema, []))[1].append((data, valid))
        names = list(groups)
        random.Random(11).shuffle(names)
        groups = {name: groups[name] for name in names[:args.n or None]}
    if args.suite:
        for name, schema, data, valid in json_schema.suite_cases(args.suite):
            groups.setdefault(("suite", json.dumps(schema)), (schema, []))[1].append((data, valid))
    return [(key[0], schema, tests) for key, (schema, tests) in groups.items()]


def row(values):
    values = sorted(values) or [0]
    at = [values[len(values) // 2], values[len(values) * 9 // 10], values[len(values) * 99 // 100], values[-1]]
    return "".join(f"{ns / 1000:11,.1f}" for ns in at)


def times_print(what, names, results, keep):
    print(f"\n{what}, us{'':{34 - len(what)}}{'p50':>11}{'p90':>11}{'p99':>11}{'max':>11}   number")
    for name in names:
        answers = [r[name] for r in results if keep(r, name)]
        texts = [t for a in answers for t in a["texts"]]
        masks = [ns for t in texts for ns in t["masks"]]
        fresh = [ns for a in answers for t in a["texts"][:1] for ns in t["masks"]]
        both = [x + y for t in texts for x, y in zip(t["masks"], t["accepts"])]
        first = [a["compile"] + t["masks"][0] for a in answers for t in a["texts"][:1]]
        for kind, values in (("compile", [a["compile"] for a in answers]), ("compile, first mask", first),
                             ("mask", masks), ("mask, first text", fresh), ("mask and accept", both)):
            print(f"  {name:12}{kind:24}{row(values)}  {len(values):7}")


def counts_print(names, groups, results):
    for which in dict.fromkeys(g[0] for g in groups):
        print(f"\n{which:38}{'refused':>11}{'late':>11}{'accepted':>11}{'rejected':>11}   number")
        for name in names:
            refused = late = accepted = rejected = n = 0
            for (of, _, tests), result in zip(groups, results):
                if of != which:
                    continue
                n += 1
                refused += "refused" in result[name]
                late += "late" in result[name]
                for (_, valid), text in zip(tests, result[name].get("texts", ())):
                    accepted += text["accepted"] and not valid
                    rejected += valid and not text["accepted"]
            print(f"  {name:36}{refused:11}{late:11}{accepted:11}{rejected:11}  {n:7}")
    print("(refused, late: schemas, late among refused; accepted, rejected: instances, wrongly)")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokenizer", required=True)
    p.add_argument("--maskbench")
    p.add_argument("--suite")
    p.add_argument("-n", type=int, default=300)
    p.add_argument("--engines", default=",".join(ENGINES))
    p.add_argument("--build", default=os.path.join(TREE, "build"))
    p.add_argument("--core", type=int, default=0)
    p.add_argument("--limit", type=float, default=20)
    p.add_argument("--save", help="writes all that was measured there")
    args = p.parse_args()
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(args.tokenizer)
    pieces, ends = vocabulary(args.tokenizer)
    groups, names, results = groups_of(args), args.engines.split(","), []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "pieces")
        pieces_write(path, pieces, ends)
        children = {name: Child(name, args.build, path, args.tokenizer, args.core) for name in names}
        for name, child in children.items():
            print(f"{name}: vocabulary of {len(pieces)} pieces in {child.start()['vocabulary'] / 1e6:.0f} ms")
        for i, (_, schema, tests) in enumerate(groups):
            texts = [tokenizer.encode(json.dumps(data, ensure_ascii=False), add_special_tokens=False).ids
                     for data, _ in tests]
            line = (json.dumps({"schema": schema, "texts": texts}) + "\n").encode()
            order = names[i % len(names):] + names[:i % len(names)]
            answers = {name: children[name].ask(line, args.limit) for name in order}
            results.append(answers)
        for child in children.values():
            child.end()
    if args.save:
        with open(args.save, "w") as f:
            json.dump(results, f)
    times_print("shared schemas", names, results, lambda r, _: all("compile" in r[n] for n in names))
    times_print("all that it compiles", names, results, lambda r, name: "compile" in r[name])
    counts_print(names, groups, results)
    wrong = sum(text["accepted"] and not valid for (_, _, tests), r in zip(groups, results) if "tandem" in r
                for (_, valid), text in zip(tests, r["tandem"].get("texts", ())))
    if wrong:
        sys.exit(f"failed: tandem accepted {wrong} wrong instances")


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "--serve":
        serve(*sys.argv[2:])
    else:
        main()
