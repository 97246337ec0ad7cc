#!/usr/bin/env python3
"""Writes smollm2/: what transformers computes with SmolLM2-135M-Instruct, for the tests of the real model.

    python smollm2.py --out DIR
    python reference_smollm2.py --model DIR     run once, by hand (about 15 minutes on two busy cores); not part of CI

Everything in float32 (for bf16: on the rounded weights), eager attention, float32 KV, CPU. Token ids come from the
tokenizers library and tokenizer.json as it stands, without adding special tokens; those in the text are parsed.

smollm2/reference.json      versions, SHA-256 of the files it was computed from, and
  prompts[]                 name, text, ids; greedy: 64 ids that go on through EOS; margins: the lead of the best logit
                            over the second best at each step; continuation: their text, special tokens included
  long                      the same, 256 steps
  bf16                      the same, 64 steps, from the bf16 directory
  score                     text, ids, logprobs (of ids[1:]), mean_nll, perplexity: float64 log-softmax of float32 logits
smollm2/logits.safetensors  f32.{prompt}, bf16.{prompt} [vocab]: the logits after the prompt's last token
"""
import argparse
import hashlib
import json
import math
import re
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, DynamicCache

OUT = Path(__file__).parent / "smollm2"
CHAT = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n")
PROMPTS = {
    "english": "The capital of France is",
    "story": "Once upon a time, in a small village by the sea, there lived an old fisherman who",
    "python": 'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "c": "#include <stdio.h>\n\n/* Prints the first 10 squares. */\nint main(void)\n{\n\tfor (int i = 1;",
    "chinese": "人工智能是计算机科学的一个分支，它",
    "arabic": "اللغة العربية هي لغة",
    "hindi": "नमस्ते, आप कैसे हैं?",
    "emoji": "Happy birthday! 🎉🎂 Family: 👩‍👩‍👧‍👦 Flag: 🇨🇭 Heart: ❤️ 👍🏽",
    "numbers": "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89,   144,",
    "chat": CHAT.format("What is gravity?"),
}
LONG = CHAT.format("Write a short story about a robot who learns to paint.")
LOGITS = ["english", "chinese", "chat"]
SCORE = """\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated \
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the \
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit \
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the \
Software.

A language model reads a text from left to right. At each position it gives a number to every word it knows, and the \
numbers, once they are made into probabilities, say how surprised it would be to see that word come next. The mean of \
these surprises over a long text is a good measure of the model: the lower it is, the better the model has learned how \
people write. It is also a good measure of the program that runs the model. If two programs read the same weights and \
the same text, they should be surprised by the same words, and to the same degree, up to the rounding of the last few \
digits. When they aren't, one of them has a bug: a table of angles that is off by one, a mask that lets a word see the \
future, a head that reads its neighbour's keys.

Such bugs don't always show. A model is a forgiving thing; give it slightly wrong numbers, and it still goes on in \
fluent English, perhaps a little duller than before. That is why this paragraph exists. In 1969, about 600 million \
people watched two astronauts walk on the Moon, 384,400 km from home. Water boils at 100 °C at sea level, but at only \
71 °C on top of Mount Everest. The café on the corner opens at 7:30 and sells a croissant for €1.80.
"""


def load(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


@torch.no_grad()
def greedy(model, ids, steps):
    """The logits after the prompt, the ids that follow, and their margins."""
    cache = DynamicCache(config=model.config)
    first = logits = model(input_ids=torch.tensor([ids]), cache=cache, use_cache=True).logits[0, -1]
    tokens, margins = [], []
    for _ in range(steps):
        best, second = torch.topk(logits, 2).values
        tokens.append(int(logits.argmax()))
        margins.append(round(float(best - second), 6))
        logits = model(input_ids=torch.tensor([tokens[-1:]]), cache=cache, use_cache=True).logits[0, -1]
    return first.clone(), tokens, margins


@torch.no_grad()
def score(model, ids):
    logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    logprobs = torch.log_softmax(logits.double(), -1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    nll = -float(logprobs.mean())
    return {"logprobs": [round(x, 7) for x in logprobs.tolist()], "mean_nll": nll, "perplexity": math.exp(nll)}


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--model", type=Path, required=True, help="the folder that smollm2.py wrote")
    folder = args.parse_args().model
    torch.set_num_threads(2)
    transformers.logging.disable_progress_bar()
    tokenizer = Tokenizer.from_file(str(folder / "f32" / "tokenizer.json"))
    tensors = {}

    def run(model, dtype, name, text, steps):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        logits, tokens, margins = greedy(model, ids, steps)
        if name in LOGITS:
            tensors[f"{dtype}.{name}"] = logits
        print(f"{dtype} {name}: {len(ids)} tokens, smallest margin {min(margins):.4f}", flush=True)
        return {"name": name, "text": text, "ids": ids, "greedy": tokens, "margins": margins,
                "continuation": tokenizer.decode(tokens, skip_special_tokens=False)}

    model = load(folder / "f32")
    ids = tokenizer.encode(SCORE, add_special_tokens=False).ids
    scored = {"text": SCORE, "ids": ids, **score(model, ids)}
    print(f"score: {len(ids)} tokens, perplexity {scored['perplexity']:.4f}", flush=True)
    prompts = [run(model, "f32", name, text, 64) for name, text in PROMPTS.items()]
    long = run(model, "f32", "long", LONG, 256)
    bf16 = run(load(folder / "bf16"), "bf16", "english", PROMPTS["english"], 64)
    files = [folder / f for f in ("f32/model.safetensors", "bf16/model.safetensors", "f32/tokenizer.json")]
    reference = {
        "versions": {m.__name__: m.__version__ for m in (torch, transformers, tokenizers)},
        "sha256": {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files},
        "prompts": prompts, "long": long, "bf16": bf16, "score": scored}
    OUT.mkdir(exist_ok=True)
    save_file(tensors, OUT / "logits.safetensors")
    text = json.dumps(reference, indent=1)
    # a list of numbers on one line (a string of JSON has no line breaks, so nothing else can match)
    text = re.sub(r"\[\n[-\d.e,\s]+\]", lambda m: re.sub(r"\s+", "", m[0]).replace(",", ", "), text)
    (OUT / "reference.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
