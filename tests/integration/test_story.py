"""The main job: a story comes out, and the counters prove which worker ran what. The command line is a client
like any other."""
import json
import time

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403


@test
def split_counters():
    """Attention in the NPU worker, everything else in the GPU worker, both processes of their own."""
    with Daemon() as d:
        d.wait_ready()
        before = {n: blocks(w) for n, w in d.workers().items()}
        r = d.generate(n=40, speculation=1)  # off: a step has one row
        equal(len(r.ids), 40, "tokens")
        equal(r.reason, "DONE_LENGTH", "reason")
        w = d.workers()
        ran = {n: {k: v - before[n].get(k, 0) for k, v in blocks(w[n]).items() if v - before[n].get(k, 0)} for n in w}
        attention, ffn = ran["npu"].get("attention", 0), ran["gpu"].get("ffn", 0)
        layers = 12
        check(attention >= 40 * layers, "attention blocks on the npu worker", ran)
        equal(ffn, attention, "as many FFN as attention blocks")
        check(set(ran["npu"]) == {"attention"}, "the npu worker ran attention only", ran)
        check("attention" not in ran["gpu"] and ran["gpu"].get("head", 0) >= 40 and ran["gpu"].get("embed", 0) >= 40,
              "the gpu worker ran the rest", ran)
        pids = {d.process.pid, w["npu"]["pid"], w["gpu"]["pid"]}
        equal(len(pids), 3, "three processes")
        check(all(alive(p) for p in pids), "all alive", pids)
        check(all(x.get("device") == "host" for x in w.values()), "devices shown", w)


@test
def second_start_is_quick():
    """From the start of tandemd to the first token in under 2 s."""
    watch = Stopwatch()
    with Daemon() as d:
        job = d.start_job(n=8)
        check(job.until(1), "a token")
        took = watch.seconds()
        job.wait()
        print(f"FIGURE start of tandemd to first token: {took * 1000:.0f} ms")
        check(took < 2 * SLOW, f"first token after {took:.2f} s")


@test
def default_model():
    """tale is found when nobody names a model: in the tree of the build, else in the user's own model directory."""
    with Daemon(models=()) as d:
        if not os.path.realpath(BIN).startswith(TREE + os.sep):
            models = os.path.join(d.environment()["XDG_DATA_HOME"], "tandem", "models")
            os.makedirs(models)
            shutil.copy(TALE, models)
        r = d.cli("generate", "--raw", "-n", "8", "--temp", "0", PROMPT, check_exit=0)
        check(len(r.stdout) > 10, "text", r.stdout)


@test
def command_line():
    with Daemon() as d:
        r = d.generate(n=24, ignore_end=False)
        out = d.cli("generate", "-m", "tale", "--raw", "-n", "24", "--temp", "0", PROMPT, check_exit=0)
        text = out.stdout.decode()
        check(r.text.strip() in text, "the text on stdout", text, r.text)
        events = d.cli_json("generate", "-m", "tale", "--raw", "-n", "24", "--temp", "0", "--json", PROMPT)
        tokens, done = [e for e in events if e["event"] == "token"], events[-1]
        same_ids([t["id"] for t in tokens], r.ids, "ids of --json tokens")
        same_ids(done["ids"], r.ids, "ids of the done event")
        equal("".join(t["text"] for t in tokens).strip(), r.text.strip(), "text of --json")
        equal((done["event"], done["reason"], done["generated_tokens"], done["recoveries"], done["degraded"]),
              ("done", "length", len(r.ids), 0, False), "the done event")
        for key in ("prompt_tokens", "cached_tokens", "ttft_ms", "prefill_tps", "decode_tps"):
            check(isinstance(done[key], (int, float)), f"done has {key}", done)
        piped = d.cli("generate", "-m", "tale", "--raw", "-n", "24", "--temp", "0", "-", input=PROMPT.encode(),
                      check_exit=0)
        equal(piped.stdout, out.stdout, "the prompt from stdin")
        status = d.cli_json("status", "--json")[0]
        check(len(status["workers"]) == 2, "workers in status --json", status)
        human = d.cli("status", "-v", check_exit=0).stdout.decode()
        check("npu" in human and "gpu" in human and "attention" in human and "ffn" in human, "status for people", human)
        models = d.cli("models", check_exit=0).stdout.decode()
        check("tale" in models, "models", models)
        ids = d.cli_json("tokenize", "-m", "tale", PROMPT)[0]
        same_ids(ids, golden("tale")[0]["ids"][:5], "tandem tokenize")
        d.cli("jobs", check_exit=0)
        d.cli("restart", "npu", check_exit=0)
        wait_for(lambda: d.workers()["npu"].get("restarts", 0) == 1, "the npu worker's restart")
        same_ids(d.generate(n=24, ignore_end=False).ids, r.ids, "ids after a restart")


@test
def chat_template():
    """A conversation is the golden chat prompt: the model's own template is applied."""
    g = golden("tale")[1]
    with Daemon() as d:
        job = d.start_job(chat=[("user", "Tell me a story about a fox.")], n=40)
        r = job.wait()
        equal(r.done.get("prompt_tokens"), g["prompt_len"], "prompt tokens of the templated conversation")
        raw = d.generate(prompt=g["prompt"], n=40)
        same_ids(r.ids, raw.ids, "chat and the same prompt spelt out")


@test
def sampling_is_seeded():
    with Daemon() as d:
        a, b, c = (d.generate(n=40, temp=0.9, seed=s) for s in (7, 7, 8))
        same_ids(a.ids, b.ids, "the same seed")
        check(a.ids != c.ids, "another seed, another story", a.ids[:10])
        greedy = d.generate(n=40)
        same_ids(d.generate(n=40, temp=0.9, top_k=1, seed=3).ids, greedy.ids, "top-k 1 is greedy")
        same_ids(d.generate(n=40, temp=0.9, min_p=0.999, seed=3).ids, greedy.ids, "min-p near 1 is greedy")
        same_ids(d.generate(n=40, temp=0.9, top_p=1e-6, seed=3).ids, greedy.ids, "top-p near 0 is greedy")
        check(d.generate(n=200, repeat_penalty=1.5).ids != d.generate(n=200).ids,
              "a repetition penalty changes something")


@test
def penalties_and_biases():
    """Seen at the ids that they move; the same whatever else runs, and whatever step reads the prompt."""
    with Daemon() as d:
        plain = d.generate(n=60)
        first, second = plain.ids[:2]
        banned = d.generate(n=60, logit_bias=f"{first}:-100,{second}:-100")
        check(not {first, second} & set(banned.ids), "banned tokens", banned.ids)
        wanted = d.tokenize(" fox")[-1]
        only = d.generate(n=5, logit_bias=f"{wanted}:100")
        same_ids(only.ids, [wanted] * 5, "a bias of 100 gives that token alone")
        check(max(only.logprobs) < -1, "log-probabilities stay the model's", only.logprobs)
        often = d.generate(n=12, logit_bias=f"{wanted}:60", frequency_penalty=2.0)
        check(often.ids.count(wanted) == 12, "12 times 2 does not outweigh 60", often.ids)
        for name in ("frequency_penalty", "presence_penalty"):
            got = d.generate(n=200, **{name: 2.0})
            usual = d.generate(n=200)
            check(len(set(got.ids)) > len(set(usual.ids)), f"{name}: more different tokens", len(set(got.ids)))
            same_ids(d.generate(n=200, chunk=1, **{name: 2.0}).ids, got.ids, f"{name}, the prompt row by row")
        many = [d.start_job(n=40, temp=0.9, seed=s, frequency_penalty=0.5, logit_bias=f"{first}:-3.5,7:1e-1")
                for s in range(8)]
        together = [j.wait().ids for j in many]
        for s in range(0, 8, 3):
            same_ids(d.generate(n=40, temp=0.9, seed=s, frequency_penalty=0.5,
                                logit_bias=f"{first}:-3.5,7:1e-1").ids, together[s], f"seed {s}, alone and among 8")


@test
def alternatives():
    with Daemon() as d:
        args = ("--top-logprobs", "3", "--json", "--raw", "--temp", "0", "-n", "12", PROMPT)
        out = d.cli("generate", *args, check_exit=0).stdout
        tokens = [json.loads(line) for line in out.splitlines()]
        tokens = [t for t in tokens if t["event"] == "token"]
        equal(len(tokens), 12, "tokens")
        for t in tokens:
            equal((len(t["top"]), t["top"][0]), (3, [t["id"], t["logprob"]]), "greedy takes the first of three")
            check(t["top"] == sorted(t["top"], key=lambda a: -a[1]), "by falling log-probability", t)
        ids = d.tokenize(PROMPT) + [t["id"] for t in tokens]
        path = os.path.join(d.dir, "ids")
        with open(path, "w") as f:
            f.write(json.dumps(ids))
        score = json.loads(d.cli("score", "-m", "tale", "--ids", path, "--top", "3", check_exit=0).stdout)
        for i, t in enumerate(tokens):
            at = score["top"][len(ids) - 12 + i - 1]
            equal([a[0] for a in t["top"]], [a[0] for a in at], f"the alternatives of a score at {i}")
        sampled = ("--temp", "1", "--top-k", "0", "--seed", "5", "-n", "12", "--json", "--raw", PROMPT)
        without = [json.loads(x).get("id") for x in d.cli("generate", *sampled, check_exit=0).stdout.splitlines()]
        given = [json.loads(x) for x in
                 d.cli("generate", "--top-logprobs", "20", *sampled, check_exit=0).stdout.splitlines()]
        equal([x.get("id") for x in given], without, "ids do not depend on what is reported")


@test
def stops():
    with Daemon() as d:
        whole = d.generate(n=60)
        word = whole.text.split()[5]
        r = d.generate(n=60, stop=[word])
        equal(r.reason, "DONE_STOP", "reason")
        equal(r.text, whole.text[:whole.text.index(word)], "the text before the stop")


main()
