#!/usr/bin/env python3
"""Writes text/reference.json: what the tokenizers library makes of 60 difficult strings with SmolLM2's tokenizer.json.

    python text.py --tokenizer DIR/f32/tokenizer.json      run once, by hand; not part of CI

Per string: text; ids (add_special_tokens=False; special tokens in the text are parsed all the same), ids_special (True);
decoded (ids with skip_special_tokens=False) and decoded_skipped (True). SmolLM2's vocabulary
lacks symbols for some bytes (0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2
and those UTF-8 never has); tokenizers drops them silently, so two of the texts don't come back whole.
"""
import argparse
import hashlib
import json
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer

OUT = Path(__file__).parent / "text" / "reference.json"
STRINGS = [
    "", " ", "  ", "\n", "\t", "\r\n", "a", "Hello, world!",
    "The quick brown fox jumps over the lazy dog.", " leading space", "trailing space ", "two  spaces   three    four",
    "It's we're I'll they'd can't I'VE won’t", "naïve café façade Ångström", "nai\u0308ve cafe\u0301 (combining)",
    "ﬁne ligature, ½ cup, x² + y² ≠ z³", "1234567890", "3.14159 -2.5e-10 0x1F 1,000,000 12:34:56", "٠١٢٣٤ ४५६ 七八九 Ⅻ ①",
    "CamelCase snake_case kebab-case SCREAMING", "https://example.org/a/b?c=d&e=%20f#g", "user@example.com +41 (0)44 123-45-67",
    "def f(x):\n    return x ** 2  # square\n\n\nprint(f(3))\n", "int main(void)\n{\n\tputs(\"hi\\n\");\n\treturn 0;\n}\n",
    "fn main() {\r\n    let v: Vec<&'static str> = vec![];\r\n}\r\n", "SELECT * FROM t WHERE a <> 'b' -- c\n", "{\"k\": [1, null, true], \"s\": \"\\u00e9\"}",
    "<html>\n  <body class=\"x\">&nbsp;&lt;</body>\n</html>", "| a | b |\n|---|---|\n| 1 | 2 |", "# Title\n\n- item\n  - nested\n\n```rust\nlet x = 1;\n```",
    "人工智能改变世界。", "日本語のテキスト、カタカナとひらがな。", "한국어 문장입니다.", "Привет, мир! Ёлка.", "Γειά σου Κόσμε", "שלום עולם", "مرحبا بالعالم، كيف الحال؟",
    "नमस्ते दुनिया, क्षत्रिय", "สวัสดีชาวโลก", "வணக்கம் உலகம்", "ሰላም ልዑል", "გამარჯობა", "Tiếng Việt có dấu", "Ůňïçödé İstanbul ß ẞ",
    "😀", "👩‍👩‍👧‍👦 family", "🏳️‍🌈🏴‍☠️", "👍🏽👍🏿", "🇨🇭🇯🇵", "❤️ vs ❤", "text😀text🎉🎉🎉", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𓀀 🀄",
    "\u0000nul\u0000", "\u0001\u0002\u0003\u0004\u0005\u0006\u0007\b\u000b\f\u000e\u0013\u001b\u001d\u007f", "\ufeffBOM \u200bzero\u200b width\u00a0nbsp\u2028line\u3000wide",
    "\ufffd replacement \U0010fffd private \U000e0041 tag \U00040000 unassigned",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<|endoftext|><|endoftext|> <|im_end|>x<|im_end|>", "<|im_start <|im_end| |> <|IM_END|> <repo_name>a/b<file_sep>c.rs",
    "\n\n\n\n\n          \t\t  \n   x\n" + " " * 70 + "y" + "a" * 120,
]


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--tokenizer", type=Path, required=True)
    path = args.parse_args().tokenizer
    tokenizer = Tokenizer.from_file(str(path))
    cases = []
    for text in STRINGS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids, "ids_special": tokenizer.encode(text, add_special_tokens=True).ids}
        case["decoded"] = tokenizer.decode(ids, skip_special_tokens=False)
        case["decoded_skipped"] = tokenizer.decode(ids, skip_special_tokens=True)
        cases.append(case)
    assert len(cases) == len({c["text"] for c in cases}) == 60, len(cases)
    head = {"versions": {"tokenizers": tokenizers.__version__},
            "sha256": {"tokenizer.json": hashlib.sha256(path.read_bytes()).hexdigest()}}
    OUT.parent.mkdir(exist_ok=True)
    # escaped, one string a line: an editor or a checkout cannot change them
    OUT.write_text(json.dumps(head)[:-1] + ',\n"cases": [\n' + ",\n".join(map(json.dumps, cases)) + "]}\n")
    changed = [c["text"] for c in cases if c["decoded"] != c["text"]]
    print(f"{OUT.name}: {len(cases)} strings; {len(changed)} don't come back whole: {changed}")


if __name__ == "__main__":
    main()
