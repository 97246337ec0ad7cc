#!/usr/bin/env python3
"""Compares the accuracy of quantized weights with llama.cpp's: how far each is from the F32 model on the same text.

    python3 tests/bench/accuracy.py [--windows 16]     # after compare.py, which builds and makes what this needs

The text is Python's own reference of the language (pydoc_data.topics), the same tokens for both. Both cut it into windows of
512 tokens and look at the second half of each: examples-c/perplexity, and llama-perplexity --kl-divergence. Prints a table in
Markdown.
"""
import argparse
import os
import re
import sys
from pathlib import Path
from pydoc_data.topics import topics

from compare import ROOT, WORK, build_peer, gguf, make_models, run

WINDOW = 512


def build_perplexity(programs):
    if not (programs / "llama-perplexity").exists():
        tools = {**os.environ, "PATH": f"{WORK / 'venv/bin'}:{os.environ['PATH']}"}
        run("cmake", "--build", programs.parent, "--target", "llama-perplexity", env=tools)
    return programs / "llama-perplexity"


def number(name, text):
    found = re.findall(rf"{re.escape(name)}\s*:?\s*([-\d.]+)", text)  # the last: a heading may say it before
    return float(found[-1]) if found else sys.exit(f"no '{name}' in:\n{text}")


def rie(model, windows, text):
    table = run(ROOT / "examples-c/perplexity", "--model", WORK / "models" / model, "--reference", WORK / "models/f32",
                "--text", text, "--window", WINDOW, "--windows", windows)
    names = ("perplexity", "mean KL divergence", "same likeliest", "... of the reference")
    return [number(name, table) for name in names]


def peer(program, model, windows, text):
    base = WORK / "f32.logits"
    common = ["-f", text, "-c", WINDOW, "--chunks", windows, "--kl-divergence-base", base]
    if not base.exists():
        run(program, "-m", gguf("f32"), *common)
    table = run(program, "-m", gguf(model), *common, "--kl-divergence")
    return [number(name, table) for name in ("Mean PPL(Q)", "Mean    KLD", "Same top p")]


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--windows", type=int, default=16)
    windows = args.parse_args().windows
    programs, version = build_peer()
    program = build_perplexity(programs)
    run("make", "--no-print-directory", "-C", ROOT / "examples-c", "perplexity", "quantize")
    make_models(["f32", "int8", "int4"])
    text = WORK / "topics.txt"
    text.write_text("\n".join(topics[name] for name in sorted(topics)))
    (WORK / "f32.logits").unlink(missing_ok=True)
    print("| weights | bytes | perplexity | mean KL divergence from F32 | same likeliest token |\n|---|---|---|---|---|")
    for model in ("int8", "int4"):
        values = rie(model, windows, text)
        if model == "int8":
            row("F32", WORK / "models/f32/model.safetensors", [values[3], 0, 100])
        row(model.upper(), WORK / "models" / model / "model.safetensors", values)
    for model in ("int8", "int4"):
        file = gguf(model)
        row(f"{file.stem.upper()}, llama.cpp", file, peer(program, model, windows, text))
    print(f"\n{windows} windows of {WINDOW} tokens, {windows * (WINDOW // 2 - 1)} predictions; llama.cpp of {version}.")


def row(name, file, values):
    perplexity, divergence, same, *_ = values
    print(f"| {name} | {file.stat().st_size / 1e6:.1f} MB | {perplexity:.4f} | {divergence:.6f} | {same:.2f} % |", flush=True)


if __name__ == "__main__":
    main()
