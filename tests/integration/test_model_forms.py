"""Model files as other converters write them, and files with something that is passed over: what the daemon makes of
them, and what it says. Whole families by each converter: test_converters.py."""
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

from gguf_edit import GgufEdit  # noqa: E402
from http_test import Gateway  # noqa: E402

IDS = [2, 300, 301, 302, 303, 304]


def edited(folder, source, name, change):
    path = os.path.join(folder, name + ".gguf")
    change(GgufEdit(source)).write(path)
    return path


@test
def gemma_without_epsilon():
    """Ollama's converter leaves out what every Gemma 3 has."""
    with tempfile.TemporaryDirectory() as folder:
        path = edited(folder, TALE, "bare", lambda g: g.drop("gemma3.attention.layer_norm_rms_epsilon",
                                                             "tokenizer.ggml.add_space_prefix"))
        with Daemon(models=[TALE, path]) as d:
            want, got = d.generate(model="tale", n=24), d.generate(model="bare", n=24)
            same_ids(got.ids, want.ids, "without epsilon and prefix")


@test
def ids_out_of_range():
    """A released file has -1: said, and not used."""
    with tempfile.TemporaryDirectory() as folder:
        path = edited(folder, TALE, "minus", lambda g: g.set("tokenizer.ggml.eos_token_id", "i32", -1))
        with Daemon(models=[path]) as d:
            equal(len(d.generate(model="minus", n=8).ids), 8, "tokens")
            check("the key tokenizer.ggml.eos_token_id is -1, which is none of the" in d.log(), "no warning", d.log())


@test
def listed_ends():
    """Generation ends at every piece in eos_token_ids: here at the first one that the model would say."""
    with Daemon() as d:
        first = d.generate(n=4).ids
    with tempfile.TemporaryDirectory() as folder:
        path = edited(folder, TALE, "ends", lambda g: g.set("tokenizer.ggml.eos_token_ids", "ai32", [1, first[2]]))
        with Daemon(models=[path]) as d:
            r = d.generate(model="ends", n=4, ignore_end=False)
            equal((r.ids[:2], len(r.ids) <= 3), (first[:2], True), "the job stops at the listed piece")


@test
def biases_of_keys():
    """Qwen 2 has biases of keys beside which q8_0 leaves few steps: it is said before anybody wonders."""
    source = make_model("dev", "q8_0", arch="qwen2", seed=1)
    with tempfile.TemporaryDirectory() as folder:
        path = edited(folder, source, "large", lambda g: g.set_floats("blk.1.attn_k.bias", 100.0))
        for kv_type, said in (("q8_0", True), ("f16", False)):
            with Daemon(models=[source, path], env={"TANDEM_KV_TYPE": kv_type}) as d:
                d.generate(model=os.path.basename(source)[:-5], ids=IDS, n=2)
                check("biases of its keys" not in d.log(), "a warning about small biases", d.log())
                d.generate(model="large", ids=IDS, n=2)
                equal("model large: biases of its keys reach 100" in d.log(), said, f"warning with {kv_type}")


@test
def beyond_f16():
    """Keys or values that an f16 cache does not hold: said once, with what to do."""
    loud = make_model("tiny", "q8_0", gain=1e5)
    name = os.path.basename(loud)[:-5]
    for kv_type, said in (("f16", 1), ("f32", 0)):
        with Daemon(models=[loud], env={"TANDEM_KV_TYPE": kv_type}) as d:
            for _ in range(2):
                d.generate(model=name, ids=[2, 260, 261, 262], n=8, placement="gpu")
            equal(d.log().count("are beyond what a KV cache of f16 holds"), said, f"warnings with {kv_type}")


@test
def refused_by_name():
    """A key that would change the result, and files that are no models."""
    with tempfile.TemporaryDirectory() as folder:
        for i, (change, words) in enumerate((
                (lambda g: g.set("gemma3.logit_scale", "f32", 0.0625), "the key gemma3.logit_scale is 0.0625"),
                (lambda g: g.set("gemma3.attention.clamp_kqv", "f32", 8.0), "the key gemma3.attention.clamp_kqv is 8"),
                (lambda g: g.set("general.type", "str", "adapter"), "of the type \"adapter\""))):
            path = edited(folder, TALE, f"no{i}", change)
            r = subprocess.run([os.path.join(BIN, "tandem"), "add", "--to", folder, "--name", "x", path],
                               capture_output=True, text=True)
            equal((r.returncode != 0, words in r.stderr), (True, True), f"add says {words}: {r.stderr}")


def draws_greedily(gguf):
    return gguf.set("general.sampling.temp", "f32", 0.0).set("general.sampling.top_k", "i32", 3)


def http_texts(gateway, model, n=6, **sampling):
    """The text of a short answer by each of the first n doors of HTTP."""
    message = [{"role": "user", "content": "Once"}]
    requests = [("/v1/completions", {"prompt": "Once", "max_tokens": 12, **sampling}),
                ("/v1/chat/completions", {"messages": message, "max_tokens": 12, **sampling}),
                ("/v1/responses", {"input": "Once", "max_output_tokens": 16, **sampling}),
                ("/v1/messages", {"messages": message, "max_tokens": 12, **sampling}),
                ("/api/generate", {"prompt": "Once", "stream": False, "options": {"num_predict": 12, **sampling}}),
                ("/api/chat", {"messages": message, "stream": False, "options": {"num_predict": 12, **sampling}})]
    out = []
    for path, body in requests[:n]:
        status, _, data = gateway.request("POST", path, dict(body, model=model))
        equal(status, 200, f"{path}: {data[:300]}")
        texts = re.findall(rb'"(?:text|content|response)":\s*"((?:[^"\\]|\\.)*)"', data)
        out.append((path, max(texts, key=len)))
    return out


@test
def recommended_drawing():
    """What a file recommends goes before the defaults of each way in, and what a request says goes before it."""
    with tempfile.TemporaryDirectory() as folder:
        path = edited(folder, TALE, "greedy", draws_greedily)
        with Daemon(models=[TALE, path]) as d, Gateway(d) as gateway:
            said = d.cli("show", path, check_exit=0).stdout.decode()
            check("recommends    temp 0, top-k 3: what a request leaves open" in said, "show", said)
            equal(d.cli_json("show", "--json", path)[0]["recommends"], {"temperature": 0, "top_k": 3}, "show --json")
            check("recommends" not in d.cli("show", "tale", check_exit=0).stdout.decode(), "a file without")

            def text(model, *args):
                return d.cli("generate", "-m", model, "-n", "12", *args, "Once", check_exit=0).stdout

            greedy, chosen = text("tale", "--temp", "0"), ("--temp", "0.8", "--seed", "7")
            equal([text("greedy"), text("greedy", "--seed", "7")], [greedy] * 2, "the command")
            check(text("tale", *chosen) != greedy, "that draws otherwise")
            equal(text("greedy", "--top-k", "40", *chosen), text("tale", *chosen), "what was given, as the default is")

            fields = {"prompt": b"Once", "max_tokens": 12}
            want = d.generate(model="tale", prompt="Once", n=12).ids
            for left_open, sampling in ((63, {"seed": 7}), (1, {"seed": 7, "temperature": 2.0}),
                                        (62, {"seed": 7, "temperature": 0.0})):
                ids = Job(d, **fields, model={"name": "greedy"}, sampling={**sampling, "left_open": left_open},
                          ignore_end=True).wait().ids
                same_ids(ids, want, f"the socket, {left_open} open")
            old = {"seed": 7, "temperature": 0.8, "top_k": 40}
            equal(*(Job(d, **fields, model={"name": m}, sampling=old, ignore_end=True).wait().ids
                    for m in ("greedy", "tale")), "a client that knows nothing of it")

            equal(http_texts(gateway, "greedy"), http_texts(gateway, "tale", temperature=0), "HTTP")
            given = {"temperature": 1, "seed": 7, "top_k": 40, "top_p": 0.9}
            equal(http_texts(gateway, "greedy", 2, **given), http_texts(gateway, "tale", 2, **given), "what HTTP says")


@test
def recommended_drawing_that_is_none():
    def change(gguf):
        gguf.set("general.sampling.temp", "f32", -3.0).set("general.sampling.top_k", "str", "many")
        gguf.set("general.sampling.top_p", "f32", float("nan")).set("general.sampling.min_p", "f32", 1.0)
        gguf.set("general.sampling.penalty_last_n", "i32", -1).set("general.sampling.mirostat", "i32", 2)
        return gguf.set("general.sampling.penalty_repeat", "f32", float("inf"))

    with tempfile.TemporaryDirectory() as folder:
        path = edited(folder, TALE, "odd", change)
        with Daemon(models=[path]) as d:
            equal(d.cli_json("show", "--json", path)[0]["recommends"], {"repeat_last": 256}, "what is left")
            equal(len(d.generate(model="odd", n=8).ids), 8, "tokens")
            for key in ("temp is -3", "top_k is no number", "top_p is", "min_p is 1", "penalty_repeat is inf",
                        "mirostat is 2"):
                check(f"general.sampling.{key}" in d.log(), key, d.log())


@test
def flags_as_numbers():
    """0 and 1 are taken for false and true."""
    key = "tokenizer.ggml.add_bos_token"
    with tempfile.TemporaryDirectory() as folder:
        values = {"no": ("bool", False), "zero": ("u32", 0), "one": ("i32", 1), "two": ("u32", 2)}
        files = [edited(folder, TALE, name, lambda g, v=value: g.set(key, *v)) for name, value in values.items()]
        with Daemon(models=[TALE, *files]) as d:
            ids = {m: d.tokenize("Once", model=m) for m in ("tale", "no", "zero", "one")}
            equal((ids["zero"], ids["one"]), (ids["no"], ids["tale"]), "ids")
            check(ids["no"] != ids["tale"], "that they differ", ids)
            said = d.cli("tokenize", "-m", "two", "Once", check_exit=1).stderr.decode()
            check(f"the key {key} is not a boolean, nor 0 or 1" in said, "2", said)


main()
