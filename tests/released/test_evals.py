"""Two evaluation harnesses, lm-eval and Inspect, ask released files through tandem-http, and transformers with the same
weights in f32. In f32 Tandem's answers are the same, as shipped its scores are within noise. Prints figures.

lm-eval's questions are made here, Inspect's samples are those that its package carries: no data set is fetched.
Multiple choice by log-probabilities of a prompt is not asked: tandem-http refuses echo with logprobs by name. Skipped
by name where a registry does not answer. TANDEM_EVALS_PYTHON names an interpreter that has the packages of evals.txt;
without it they are installed under TANDEM_TEST_CACHE. What transformers answers is kept: kept.py."""
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tandem_test import *  # noqa: E402,F403
from http_test import Gateway  # noqa: E402
import client_packages  # noqa: E402
import fetch  # noqa: E402
import kept  # noqa: E402
from released import GEMMA, SMOLLM  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
PRECISIONS = {"f32": {"TANDEM_PRECISION": "f32"}, "as shipped": {}}
CAPITALS = """
France Paris, Germany Berlin, Italy Rome, Spain Madrid, Portugal Lisbon, Greece Athens, Austria Vienna, Poland
Warsaw, Hungary Budapest, Norway Oslo, Sweden Stockholm, Finland Helsinki, Denmark Copenhagen, Ireland Dublin,
Russia Moscow, Ukraine Kyiv, Turkey Ankara, Egypt Cairo, Kenya Nairobi, Japan Tokyo, China Beijing, India Delhi,
Thailand Bangkok, Vietnam Hanoi, Iran Tehran, Iraq Baghdad, Cuba Havana, Peru Lima, Chile Santiago, Canada
Ottawa""".replace("\n", " ").strip().split(", ")
OPPOSITES = """
hot cold, big small, up down, open closed, day night, fast slow, happy sad, rich poor, young old, wet dry, hard
soft, light dark, early late, strong weak, true false, full empty, high low, black white, good bad, left right,
first last, love hate, war peace, win lose, buy sell, push pull, inside outside, above below, before after,
begin end""".replace("\n", " ").strip().split(", ")


def sums(n):
    draw = random.Random(3)
    return [(a, b) for a, b in ((draw.randrange(1, 20), draw.randrange(1, 20)) for _ in range(n))]


# The tasks of lm-eval: (what comes first, questions and answers).
TASKS = {
    "capitals": ("Country: Belgium\nCapital: Brussels\n\nCountry: Argentina\nCapital: Buenos Aires\n\n",
                 [(f"Country: {a}\nCapital:", b) for a, b in (x.split() for x in CAPITALS)]),
    "opposites": ("word: long\nopposite: short\n\nword: thick\nopposite: thin\n\n",
                  [(f"word: {a}\nopposite:", b) for a, b in (x.split() for x in OPPOSITES)]),
    "sums": ("Q: 2 + 2\nA: 4\n\nQ: 7 + 5\nA: 12\n\nQ: 10 + 3\nA: 13\n\n",
             [(f"Q: {a} + {b}\nA:", str(a + b)) for a, b in sums(30)]),
}


def python():
    return client_packages.python_of("released-evals", os.path.join(HERE, "evals.txt"),
                                     os.environ.get("TANDEM_EVALS_PYTHON"), 3600)


def row(r, name, text):
    print(f"FIGURE released {r.name} {name}: {text}", flush=True)


def run(command, where, **variables):
    """Runs a program that may ask this machine and no other."""
    env = dict(os.environ, HOME=where, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=os.path.join(where, "hf"),
               PYTHONDONTWRITEBYTECODE="1", OMP_WAIT_POLICY="passive", TOKENIZERS_PARALLELISM="false",
               OPENAI_API_KEY="none", **variables)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        env.pop(name, None)
    r = subprocess.run([python(), *command], cwd=where, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, timeout=3600)
    check(r.returncode == 0, " ".join(command), r.stdout[-3000:])


@functools.lru_cache(maxsize=None)
def made_folder():
    """A folder of lm-eval's tasks, and one for each file as transformers loads it."""
    return tempfile.mkdtemp(prefix="tandem-test-")


def original(r):
    path = os.path.join(made_folder(), r.name)
    if not os.path.exists(path):
        fetch.get(r.name)
        work = {"file": r.path(), "tokenizer": r.tokenizer_path(), "folder": path, "ends": r.ends}
        done = subprocess.run([python(), "-B", os.path.join(HERE, "evals_maker.py")], input=json.dumps(work),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800)
        check(done.returncode == 0, f"evals_maker.py of {r.name}", done.stdout[-2000:])
    return path


# ---- lm-eval


def tasks_folder():
    path = os.path.join(made_folder(), "tasks")
    os.makedirs(path, exist_ok=True)
    for name, (first, questions) in TASKS.items():
        data = os.path.join(path, f"{name}.jsonl")
        with open(data, "w") as f:
            for question, answer in questions:
                f.write(json.dumps({"question": first + question, "answer": answer}) + "\n")
        with open(os.path.join(path, f"{name}.yaml"), "w") as f:  # JSON is YAML
            json.dump({"task": f"tandem_{name}", "dataset_path": "json", "test_split": "test",
                       "dataset_kwargs": {"data_files": {"test": data}}, "output_type": "generate_until",
                       "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}", "num_fewshot": 0,
                       "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "do_sample": False,
                                             "temperature": 0.0},
                       "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True,
                                        "ignore_case": True}],
                       "filter_list": [{"name": "word", "filter": [
                           {"function": "regex", "regex_pattern": "([\\w-]+)"}, {"function": "take_first"}]}]}, f)
    return path


def lm_eval(model, arguments, *more):
    """{(task, question): (answer, whether it is right)}"""
    with tempfile.TemporaryDirectory() as where:
        run(["-m", "lm_eval", "--model", model, "--model_args", ",".join(f"{k}={v}" for k, v in arguments.items()),
             "--tasks", ",".join(f"tandem_{name}" for name in TASKS), "--include_path", tasks_folder(), "--batch_size",
             "1", "--output_path", os.path.join(where, "out"), "--log_samples", *more], where)
        out = {}
        for path in glob.glob(os.path.join(where, "out", "**", "samples_*.jsonl"), recursive=True):
            task = os.path.basename(path).split("_")[2]
            with open(path) as f:
                for line in f:
                    sample = json.loads(line)
                    out[task, sample["doc"]["question"]] = sample["resps"][0][0], bool(sample["exact_match"])
    equal(len(out), sum(len(questions) for _, questions in TASKS.values()), "answers of lm-eval")
    return out


# ---- Inspect


def inspect(model, variables, *more):
    """{(task, sample): (answer, whether it is right)}"""
    out = {}
    with tempfile.TemporaryDirectory() as where:
        shutil.copy(os.path.join(HERE, "inspect_tasks.py"), where)
        run(["-m", "inspect_ai", "eval", "inspect_tasks.py", "--model", model, "--log-dir", os.path.join(where, "logs"),
             "--log-format", "json", "--display", "plain", "--max-tokens", "24",
             "--max-connections", "1", *more], where, **variables)
        for path in glob.glob(os.path.join(where, "logs", "*.json")):
            with open(path) as f:
                log = json.load(f)
            equal(log["status"], "success", f"Inspect's {log['eval']['task']}")
            for sample in log["samples"]:
                score, = sample["scores"].values()
                out[log["eval"]["task"], str(sample["id"])] = (sample["output"]["choices"][0]["message"]["content"],
                                                              score["value"] in ("C", 1))
    check(len(out) >= 32, "answers of Inspect", len(out))
    return out


# ---- the comparison


def compare(r, harness, precision, got, want):
    """Answers that are alike, and scores: in f32 the same, as shipped within noise (McNemar's, two deviations)."""
    equal(sorted(got), sorted(want), "questions")
    other = [k for k in want if got[k][0].strip() != want[k][0].strip()]
    gained, lost = (sum(a[k][1] and not b[k][1] for k in want) for a, b in ((got, want), (want, got)))
    scores = []
    for task in sorted({task for task, _ in want}):
        keys = [k for k in want if k[0] == task]
        ours, theirs = (sum(x[k][1] for k in keys) for x in (got, want))
        scores.append(f"{task} {ours} of {len(keys)} (transformers {theirs})")
    row(r, f"{harness}, {precision}", f"{', '.join(scores)}; {len(want) - len(other)} of {len(want)} answers the same")
    if precision == "f32":
        check(not other, "answers in f32", [(k[0], got[k], want[k]) for k in other])
    check(abs(gained - lost) <= 2 * (gained + lost) ** 0.5, "scores within noise", gained, lost)
    check(any(x[1] for x in want.values()) and not all(x[1] for x in want.values()), "some are right, some wrong")


def through_gateway(r, ask):
    for precision, env in PRECISIONS.items():
        with Daemon(models=(r.path(),), env=env, placement=None, threads=0) as d, Gateway(d) as g:
            yield precision, ask(f"http://127.0.0.1:{g.port}/v1")


def of_transformers(r, harness, ask):
    """The answers of transformers to a harness, kept."""
    on = {"file": kept.sum_of(r.path()), "tokenizer": r.tokenizer_path() and kept.sum_of(r.tokenizer_path()),
          "tasks": TASKS, "ends": r.ends, "versions": kept.versions(python(), "evals.txt"),
          "programs": kept.programs("maker.py", "evals_maker.py", "inspect_tasks.py", "test_evals.py")}
    return {tuple(key): tuple(value) for key, value in kept.answer(
        f"{r.name}-{harness}", on, lambda: [[key, value] for key, value in ask().items()])}


def lm_eval_completions(r):
    python()
    more = {"add_bos_token": "True"} if r is GEMMA else {}
    want = of_transformers(r, "lm-eval", lambda: lm_eval("hf", {"pretrained": original(r), "dtype": "float32", **more},
                                                         "--device", "cpu"))
    for precision, got in through_gateway(r, lambda url: lm_eval("local-completions", {
            "model": r.model, "base_url": f"{url}/completions", "tokenized_requests": "False", "tokenizer_backend":
            "None", "num_concurrent": 4, "max_retries": 1})):
        compare(r, "lm-eval", precision, got, want)


@test
def gemma3_270m_lm_eval():
    lm_eval_completions(GEMMA)


@test
def smollm2_135m_lm_eval():
    lm_eval_completions(SMOLLM)


@test
def smollm2_135m_inspect():
    r = SMOLLM
    python()
    want = of_transformers(r, "inspect", lambda: inspect(
        "hf/original", {}, "-M", f"model_path={original(r)}", "-M", "do_sample=false", "-M", "device=cpu", "-M",
        "dtype=float32"))
    for precision, got in through_gateway(r, lambda url: inspect(
            f"openai-api/tandem/{r.model}", {"TANDEM_API_KEY": "none", "TANDEM_BASE_URL": url}, "--temperature", "0")):
        compare(r, "Inspect", precision, got, want)


@test
def echo_with_logprobs_refused():
    """Why no task of multiple choice is asked: it is the gateway's word, so that a harness says so too."""
    with Daemon(models=(SMOLLM.path(),)) as d, Gateway(d) as g:
        said = g.post("/v1/completions", {"model": SMOLLM.model, "prompt": "x", "echo": True, "logprobs": 1,
                                          "max_tokens": 1}, want=400)
    check("echo" in json.dumps(said) and "logprobs" in json.dumps(said), "what is refused", said)


try:
    main()
finally:
    if made_folder.cache_info().currsize:
        shutil.rmtree(made_folder(), ignore_errors=True)
