#!/usr/bin/env python3
"""Writes the two small tokenizers of tests/text.rs beside itself (run once, by hand; standard library only).

byte_level.json     GPT-2's scheme: 256 byte symbols, a few merges, some of which end inside a character
byte_fallback.json  Llama 2's scheme: a few words in SentencePiece's spelling, <0xNN> for all other bytes
"""
import json
from pathlib import Path

HERE = Path(__file__).parent


def special(i, content):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": i, "content": content, **flags}


def write(name, added, **parts):
    head = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    text = json.dumps(head | parts, ensure_ascii=True, separators=(",", ":"))
    (HERE / name).write_text(text.replace('"merges"', '\n"merges"').replace('"vocab"', '\n"vocab"') + "\n")


def merged(vocab, merges):
    for a, b in merges:
        vocab.setdefault(a + b, len(vocab))
    return {"vocab": vocab, "merges": [list(m) for m in merges]}


def byte_level():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    symbol = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    spell = lambda data: [symbol[b] for b in data]
    vocab = {s: i for i, s in enumerate(["<|end|>", "<|user|>", *(symbol[b] for b in range(256))])}
    merges = []
    for word in (b" the", b"he", b"ll", b"o,", "é".encode(), "🎉".encode()[:2], "👩".encode()[2:], "人".encode()[1:]):
        parts = spell(word)
        for n in range(1, len(parts)):
            if ["".join(parts[:n]), parts[n]] not in merges:
                merges.append(["".join(parts[:n]), parts[n]])
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [0], "tokens": ["<|end|>"]}}}
    write("byte_level.json", [special(0, "<|end|>"), special(1, "<|user|>")], normalizer=None, pre_tokenizer=level, post_processor=template,
          decoder=level, model={"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                                "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **merged(vocab, merges)})


def byte_fallback():
    words = ["\u2581Hello", "\u2581world", "\u2581the", "\u2581a", "ing", "\u2581\u2581", ",", "!", "\u00e9"]
    vocab = {s: i for i, s in enumerate(["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))])}
    merges = []
    for word in words:
        for c in word:
            vocab.setdefault(c, len(vocab))
        for n in range(1, len(word)):
            if [word[:n], word[n]] not in merges:
                merges.append([word[:n], word[n]])
    replace = lambda a, b: {"type": "Replace", "pattern": {"String": a}, "content": b}
    decoders = [replace("\u2581", " "), {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    write("byte_fallback.json", [special(i, t) for i, t in enumerate(("<unk>", "<s>", "</s>"))],
          normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")]},
          pre_tokenizer=None, post_processor=template, decoder={"type": "Sequence", "decoders": decoders},
          model={"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                 "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, **merged(vocab, merges)})


if __name__ == "__main__":
    byte_level()
    byte_fallback()
