#!/usr/bin/env python3
"""Reference values of a model: greedy continuation and log-probabilities of the golden prompts, in float64, from the
GGUF itself.

usage: golden.py MODEL.gguf PROMPTS.json OUT.json
       (models/tale.gguf tests/golden/prompts.json tests/golden/tale.golden.json)
      PROMPTS: [{"prompt": text, "ids": [...], "n": tokens to continue}, ...]
"""
import json, sys
import numpy as np
from gemma_ref import Model

m = Model(sys.argv[1]); out = []
for c in json.load(open(sys.argv[2])):
    ids, first = list(c["ids"]), len(c["ids"])
    for _ in range(c["n"]):
        ids.append(int(m.run(ids)[-1].argmax()))
    lp = m.run(ids[:-1]); top = np.argsort(-lp, -1)[:, :10]
    out.append({"prompt": c["prompt"], "ids": ids, "prompt_len": first,
                "nll": [float(-lp[i, ids[i + 1]]) for i in range(len(ids) - 1)],
                "top": [[[int(j), round(float(lp[i, j]), 6)] for j in top[i]] for i in range(first - 1, len(ids) - 1)]})
    print(sys.argv[1], first, len(ids), np.mean(out[-1]["nll"]), flush=True)
json.dump(out, open(sys.argv[3], "w"))
