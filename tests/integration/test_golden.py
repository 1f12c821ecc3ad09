"""Scores of both shipped models against float64 reference values, for each precision; and models with
outliers stay finite.

The distance is the mean, over all generated positions of a golden file, of the largest difference in log-
probability over the golden top ten. The limits are those the project has set itself; what is measured is printed
for docs/performance.md.
"""
import math
import tempfile

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from tandem_test import *  # noqa: E402,F403

LIMITS = {  # precision: {model: (mean distance, share of equal first choices)}
    "default": {"tale": (0.087, 0.98), "sprout": (0.087, 0.98)},
    "precise": {"tale": (0.01, 0.99), "sprout": (0.01, 0.99)},
    "f32": {"tale": (0.001, 0.99), "sprout": (0.001, 0.99)},
    "q8_0": {"tale": (0.104, 0.98), "sprout": (0.104, 0.98)},  # the cache; all else as shipped
}


def one(precision, env=None, kv_type="f16"):
    for model, path in (("tale", TALE), ("sprout", SPROUT)):
        with Daemon(models=[path], env=env or {}) as d:
            mean, worst, first, nll = golden_distances(d, model)
            equal(d.model(model).get("precision"), precision, "precision shown in status")
            equal(d.model(model).get("kv_type"), kv_type, "KV type shown in status")
            print(f"FIGURE golden {model} {precision} KV {kv_type}: mean {mean:.5f}, worst {worst:.4f}, "
                  f"first choice {100 * first:.1f}%, worst nll difference {nll:.4f}", flush=True)
            limit, share = LIMITS["q8_0" if kv_type == "q8_0" else precision][model]
            check(mean <= limit, f"{model} {precision}: mean distance {mean:.5f} over {limit}")
            check(first >= share, f"{model} {precision}: first choice the same at {first:.3f}, under {share}")


@test
def as_shipped():
    one("default")


@test
def precise():
    one("precise", {"TANDEM_PRECISION": "precise"})


@test
def f32():
    one("f32", {"TANDEM_PRECISION": "f32", "TANDEM_KV_TYPE": "q8_0"}, "f32")  # f32 is f32 throughout


@test
def cache_of_q8_0():
    one("default", {"TANDEM_KV_TYPE": "q8_0"}, "q8_0")


@test
def outliers_stay_finite():
    """Residuals of 5e5 and gelu(gate) * up past 1e5: whatever is f16 on the way would overflow."""
    for precision in ("default", "precise", "f32"):
        for kind in ("q8_0", "f16"):
            path = make_model("tiny", kind, outliers=True)
            with Daemon(models=[path], env={} if precision == "default" else {"TANDEM_PRECISION": precision}) as d:
                name = os.path.basename(path)[:-5]
                r = d.generate(model=name, ids=[2] + list(range(300, 400)), n=40)
                equal(len(r.ids), 40, "tokens")
                check(all(math.isfinite(x) for x in r.logprobs), f"{precision} {kind}: finite", r.logprobs)
                with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
                    f.write("the quick brown fox")
                    f.flush()
                    scored = d.cli_json("score", "-m", name, "--top", "10", "--text", f.name)[0]
                flat = scored["nll"] + [v for row in scored["top"] for _, v in row]
                check(all(isinstance(x, (int, float)) and math.isfinite(x) for x in flat),
                      f"{precision} {kind}: score finite")


main()
