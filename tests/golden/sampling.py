#!/usr/bin/env python3
"""Writes sampling/reference.json: transformers' own logits processors on fixed logits.

    python sampling.py      run once, by hand; not part of CI

Order: repetition penalty, temperature, top-k, top-p, min-p, as `generate` has it. A neutral value (1, 1, 0, 1, 0)
means that `generate` would leave the processor out, and so does this. The file:

  vectors   name → logits, float32 exactly; null stands for −∞
  cases[]   vector, ids (prompt and output so far, with repeats), the five parameters, and what is left:
            survivors (ascending ids whose score isn't −∞) and their probabilities (softmax in float64 of the float32 scores)

Left out are cases in which rounding, or the order among equal logits, decides whether top-p or min-p keeps a token:
every decision here is at least 1e-5 away from going the other way. Top-k's ties are in, it keeps them all.
"""
import itertools
import json
import math
from pathlib import Path

import torch
import transformers
from transformers import (MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper,
                          TopPLogitsWarper)

OUT = Path(__file__).parent / "sampling" / "reference.json"
KEYS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")
PARAMETERS = [
    (1.0, 1.0, 0, 1.0, 0.0), (1.3, 1.0, 0, 1.0, 0.0), (0.8, 1.0, 0, 1.0, 0.0), (1.0, 0.7, 0, 1.0, 0.0),
    (1.0, 1.9, 0, 1.0, 0.0), (1.0, 1.0, 1, 1.0, 0.0), (1.0, 1.0, 10, 1.0, 0.0), (1.0, 1.0, 100000, 1.0, 0.0),
    (1.0, 1.0, 0, 0.9, 0.0), (1.0, 1.0, 0, 0.35, 0.0), (1.0, 1.0, 0, 1e-6, 0.0), (1.0, 1.0, 0, 1.0, 0.05),
    (1.0, 1.0, 0, 1.0, 0.6), (1.0, 1.0, 0, 1.0, 1.0), (1.1, 0.8, 40, 0.95, 0.02), (1.5, 1.4, 7, 0.8, 0.1),
    (1.2, 0.05, 20, 0.99, 0.001), (1.05, 2.5, 25, 0.97, 0.0),
]


def vectors():
    g = torch.Generator().manual_seed(7)

    def normal(n, scale, shift=0.0):
        return torch.randn(n, generator=g) * scale + shift

    holes = normal(131, 2)
    holes[torch.randperm(131, generator=g)[:60]] = -math.inf
    only = torch.full((50,), -math.inf)
    only[17] = -3.5
    peak = normal(199, 0.5)
    peak[42] = 12.0
    zeros = torch.zeros(53)
    zeros[::2] = -0.0
    zeros[5], zeros[6] = 1.0, -1.0
    return {
        "normal": normal(97, 1), "wide": normal(300, 3), "flat": normal(64, 0.01), "steep": normal(128, 20),
        "huge": normal(83, 1e4), "negative": normal(101, 2, -30), "positive": normal(101, 2, 30),
        "ties": (normal(150, 2) * 2).round() / 2, "equal": torch.full((59,), 0.75), "zeros": zeros,
        "holes": holes, "only": only, "peak": peak, "ramp": torch.arange(257) / 32 - 4,
    }


def close_call(scores, top_p, min_p):
    """Whether top-p's cut lies within a tie or either cut within 1e-5 of a token."""
    p = torch.softmax(scores.double(), -1).sort(descending=True).values
    if top_p < 1:
        before = p.cumsum(0) - p  # a token stays while the mass before it is below top_p
        kept = int((before < top_p).sum())
        if (before[1:] - top_p).abs().min() < 1e-5 or (kept < len(p) and p[kept - 1] - p[kept] < 1e-9):
            return True
        p = p[:kept] / p[:kept].sum()
    return min_p > 0 and bool((p[1:] / p[0] - min_p).abs().min() < 1e-5) if len(p) > 1 else False


def process(logits, ids, repetition, temperature, top_k, top_p, min_p):
    steps = [
        RepetitionPenaltyLogitsProcessor(penalty=repetition) if repetition != 1 else None,
        TemperatureLogitsWarper(temperature) if temperature != 1 else None,
        TopKLogitsWarper(top_k=top_k) if top_k else None,
        TopPLogitsWarper(top_p=top_p) if top_p < 1 else None,
        MinPLogitsWarper(min_p=min_p) if min_p else None]
    ids, scores = torch.tensor([ids]), logits[None].clone()
    for i, step in enumerate(steps):
        if i == 3 and close_call(scores[0], top_p, min_p):
            return None
        scores = step(ids, scores) if step else scores
    return scores[0]


def main():
    known, cases, left_out = vectors(), [], 0
    g = torch.Generator().manual_seed(8)
    for (name, logits), parameters in itertools.product(known.items(), PARAMETERS):
        ids = torch.randint(len(logits), (12,), generator=g).tolist()
        ids += ids[:4] + [int(logits.argmax())]  # repeats, and the best token
        scores = process(logits, ids, *parameters)
        if scores is None:
            left_out += 1
            continue
        survivors = [i for i, x in enumerate(scores.tolist()) if x != -math.inf]
        probabilities = torch.softmax(scores.double(), -1)[survivors]
        cases.append({"vector": name, "ids": ids, **dict(zip(KEYS, parameters)), "survivors": survivors,
                      "probabilities": [float(f"{p:.9g}") for p in probabilities.tolist()]})
    numbers = {name: [None if x == -math.inf else x for x in v.tolist()] for name, v in known.items()}
    OUT.parent.mkdir(exist_ok=True)
    with open(OUT, "w", encoding="utf-8") as f:
        f.write('{"versions": %s,\n' % json.dumps({m.__name__: m.__version__ for m in (torch, transformers)}))
        f.write('"vectors": {\n' + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in numbers.items()) + "},\n")
        f.write('"cases": [\n' + ",\n".join(json.dumps(c, allow_nan=False) for c in cases) + "]}\n")
    print(f"{OUT.name}: {len(known)} vectors, {len(cases)} cases, {left_out} close calls left out")


if __name__ == "__main__":
    main()
