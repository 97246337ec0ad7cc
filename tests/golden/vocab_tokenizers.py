#!/usr/bin/env python3
"""Makes tokenizer.json of Phi-3 mini and of Granite 3.3 from two vocabularies that llama.cpp keeps for its tests.

    pip install -r requirements.txt
    python vocab_tokenizers.py --phi3 ggml-vocab-phi-3.gguf --granite3 ggml-vocab-refact.gguf --out DIR

writes DIR/phi3/tokenizer.json and DIR/granite3/tokenizer.json; tokenizers.sh fetches the vocabularies and calls this.

Real: the pieces, ids and scores of Phi-3; the tokens, ids and merges of Granite 3, whose vocabulary is StarCoder's, as
Refact's is. Made here: the merges of Phi-3, by the rule that transformers turns a SentencePiece vocabulary into merges
by, and its added tokens: the result is the published file to the byte. And Granite's own special tokens, in the form of
SmolLM2's tokenizer.json: no published file was at hand to compare with, but llama.cpp's 44 test texts get the ids that
transformers gives them by Refact's, and prompts of Granite 3.1 the ids that others published.
"""
import argparse
import sys
from pathlib import Path

from gguf import GGUFReader

import smollm2
from unpack_gguf import sha256, write_json

PHI3_SHA256 = "9e2ae3d66819f163cdcfedba5078f3a3af8118c2712491ed60912f77886bda6f"  # the published file
PHI3_ADDED = ["<|endoftext|>", "<|assistant|>", "<|placeholder1|>", "<|placeholder2|>", "<|placeholder3|>",
              "<|placeholder4|>", "<|system|>", "<|end|>", "<|placeholder5|>", "<|placeholder6|>", "<|user|>"]
GRANITE_ADDED = ["<|start_of_role|>", "<|end_of_role|>", "<|tool_call|>", "<|start_of_cite|>", "<|end_of_cite|>",
                 "<|start_of_plugin|>", "<|end_of_plugin|>"]


def vocabulary(path):
    fields = GGUFReader(path).fields
    return {name: fields[f"tokenizer.ggml.{name}"].contents()
            for name in ("tokens", "token_type", "scores", "merges") if f"tokenizer.ggml.{name}" in fields}


def merges(pieces, scores):
    """Each way to halve a piece into two pieces; the pieces by score, the halves by their ids."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    made = []
    for piece, score in zip(pieces, scores):
        halves = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in ids and piece[i:] in ids]
        made += [(score, pair) for pair in sorted(halves, key=lambda pair: (ids[pair[0]], ids[pair[1]]))]
    return [" ".join(pair) for _, pair in sorted(made, key=lambda entry: -entry[0])]


def phi3(vocab):
    pieces, scores = vocab["tokens"][:32000], vocab["scores"][:32000]  # the rest is padding
    # What takes in the whitespace behind it: all but these; </s> alone is not special.
    strict = {"<unk>", "<s>", "<|endoftext|>"}
    added = [*enumerate(pieces[:3]), *enumerate(PHI3_ADDED, start=len(pieces))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": token not in strict,
                          "normalized": False, "special": token != "</s>"} for i, token in added],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": merges(pieces, scores)},
    }


def granite3(vocab):
    tokens, kinds = vocab["tokens"][:49152], vocab["token_type"][:49152]  # the rest is padding
    if tokens[0] != "<|endoftext|>":
        sys.exit(f"the vocabulary isn't StarCoder's: it begins with {tokens[0]}")
    return smollm2.tokenizer({
        "tokenizer.ggml.tokens": ["<|end_of_text|>", *tokens[1:], *GRANITE_ADDED],
        "tokenizer.ggml.token_type": kinds + [3] * len(GRANITE_ADDED),
        "tokenizer.ggml.merges": vocab["merges"]})


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for option in ("--phi3", "--granite3", "--out"):
        args.add_argument(option, type=Path, required=True)
    args = args.parse_args()
    made = {"phi3": phi3(vocabulary(args.phi3)), "granite3": granite3(vocabulary(args.granite3))}
    for name, tokenizer in made.items():
        (args.out / name).mkdir(parents=True, exist_ok=True)
        write_json(args.out / name / "tokenizer.json", tokenizer, end="")
    if (digest := sha256(args.out / "phi3/tokenizer.json")) != PHI3_SHA256:
        sys.exit(f"{args.out}/phi3/tokenizer.json has SHA-256 {digest}, not the published file's {PHI3_SHA256}")


if __name__ == "__main__":
    main()
