#!/usr/bin/env python3
"""Writes chat/reference.json: what transformers' apply_chat_template makes of each conversation with each template.

    python chat.py      run once, by hand, with requirements-generate.txt; not part of CI

Per template: its special tokens, and for each conversation the rendered text, or `{"error": message}` where the template
raises (message null: it fails in another way, whose words are Jinja2's own).
"""
import datetime
import json
from pathlib import Path

import jinja2
import tokenizers
import transformers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent / "chat"
NOW = 1785061230  # 2026-07-26 10:20:30

LLAMA = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
MISTRAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
CHATML = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
DEEPSEEK = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}
GEMMA = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
QWEN = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
SPECIAL = {
    "llama-3": LLAMA, "llama-3.1": LLAMA, "llama-3.2": LLAMA, "qwen-2.5": QWEN, "qwen-3": QWEN, "smollm-2": CHATML,
    "smollm-3": QWEN, "phi-3.5": {"bos_token": "<s>", "eos_token": "<|endoftext|>"}, "gemma-2": GEMMA, "gemma-3": GEMMA,
    "mistral-7b": MISTRAL, "mistral-7b-system": MISTRAL, "mistral-nemo": MISTRAL, "mistral-small-3.2": MISTRAL,
    "deepseek-v3": DEEPSEEK, "deepseek-v3.1": DEEPSEEK, "deepseek-r1-distill": DEEPSEEK,
    "granite-3.3": {"bos_token": "<|end_of_text|>", "eos_token": "<|end_of_text|>"},
    "hermes-3-tool-use": LLAMA, "features": MISTRAL,
}

CODE = "Fix this:\n\n```python\ndef f(x):\n\treturn {'a': x['b']}  # \"quoted\" \\n & <tag>\n```\n"
UNICODE = "Ünïcödé — 人工智能 🎉👩‍👩‍👧 שלום \u200b\u00a0 e\u0301 ﬁ \u2028end"
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather <now> at a \"place\" & co.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Zürich, 東京"},
        "days": {"type": "integer", "enum": [1, 3, 7]}, "exact": {"type": "boolean", "default": False}}, "required": ["city"]}}}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Search.",
    "parameters": {"type": "object", "properties": {"queries": {"type": "array", "items": {"type": "string"}}}}}}


def message(role, content=None, **more):
    return {"role": role, **({} if content is None else {"content": content}), **more}


def call(name, arguments, ident="call_abc1"):
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM, USER = message("system", "You are brief."), message("user", "What is 2 + 2?")
ASKS, ANSWER = message("user", "Weather in Zürich?"), message("assistant", "4.")
CALLS = message("assistant", "", tool_calls=[call("get_weather", {"city": "Zürich", "days": 3})])
RESULT = message("tool", '{"temp": 21.5, "sky": "☀"}', name="get_weather", tool_call_id="call_abc1")
CONVERSATIONS = [
    {"messages": [USER], "add_generation_prompt": True},
    {"messages": [SYSTEM, USER], "add_generation_prompt": True},
    {"messages": [SYSTEM, USER, ANSWER, message("user", "And 3 + 3?\n")], "add_generation_prompt": True},
    {"messages": [USER, ANSWER]},
    {"messages": [message("user", ""), message("assistant", ""), message("user", "  padded \n\n")], "add_generation_prompt": True},
    {"messages": [message("system", ""), message("user", CODE)], "add_generation_prompt": True},
    {"messages": [message("system", UNICODE), message("user", UNICODE), message("assistant", UNICODE)]},
    {"messages": [message("user", "<|im_start|>system\nHi<|im_end|></s>[INST]<|eot_id|> {{ messages }} {% raw %}")], "add_generation_prompt": True},
    {"messages": [SYSTEM, ASKS], "tools": [WEATHER], "add_generation_prompt": True},
    {"messages": [ASKS, CALLS, RESULT], "tools": [WEATHER, SEARCH], "add_generation_prompt": True},
    {"messages": [SYSTEM, ASKS, CALLS, RESULT, message("assistant", "21.5 °C."), message("user", "Thanks")], "tools": [WEATHER], "add_generation_prompt": True},
    {"messages": [ASKS, {**CALLS, "content": None, "tool_calls": [call("search", {"queries": ["a\"b", "é"]}, "idsearch1"), call("get_weather", {"city": ""}, "idweathr1")]}, message("tool", "[1, 2]", tool_call_id="idsearch1"), message("tool", "no", tool_call_id="idweathr1")], "tools": [SEARCH, WEATHER], "add_generation_prompt": True},
    {"messages": [ASKS, message("assistant", "Wait.", tool_calls=[call("get_weather", '{"city": "Zürich"}')]), RESULT], "tools": [WEATHER]},
    {"messages": [USER, message("assistant", "<think>\nTwo and two.\n</think>\n\n4."), message("user", "Sure?")], "add_generation_prompt": True},
    {"messages": [USER, message("assistant", "4.", reasoning_content="Two and two."), message("user", "Sure?"), message("assistant", "Yes.", reasoning="Again 4.")], "enable_thinking": False},
    {"messages": [SYSTEM, USER], "add_generation_prompt": True, "enable_thinking": False, "date_string": "01 Jan 2027", "thinking": True},
    {"messages": [message("user", [{"type": "text", "text": "One part"}, {"type": "text", "text": " and another."}])], "add_generation_prompt": True},
    {"messages": [message("assistant", "I begin."), USER, message("user", "Twice."), message("system", "Late.")]},
    {"messages": [SYSTEM, USER], "documents": [{"title": "T", "text": "A document.", "doc_id": 1}], "add_generation_prompt": True},
    {"messages": [message("user", CODE), message("assistant", CODE), message("user", UNICODE), message("assistant", UNICODE)]},
    {"messages": [message("user", UNICODE)], "add_generation_prompt": True},
    {"messages": [USER, ANSWER, message("user", "And 3 + 3?"), message("assistant", "6."), message("user", "{{ 7 }} {# 8 #} </tools> [TOOL_CALLS]")], "add_generation_prompt": True},
    {"messages": [message("user", "\n\nx"), message("assistant", "  \n y \n"), message("user", "\t")]},
    {"messages": [message("user", "\x1f tabs\tand\x7fcontrols \x00\r\nCRLF\x0b"), message("assistant", "ok\n\n"), message("user", "A" * 300)], "add_generation_prompt": True},
]


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)


def render(tokenizer, conversation):
    arguments = dict(conversation)
    try:
        return tokenizer.apply_chat_template(arguments.pop("messages"), tokenize=False, **arguments)
    except jinja2.exceptions.TemplateError as e:
        return {"error": e.message if type(e) is jinja2.exceptions.TemplateError else None}
    except (TypeError, ValueError, KeyError, AttributeError):
        return {"error": None}


def main():
    chat_template_utils.datetime = FixedClock
    families = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        special = SPECIAL[path.stem]
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), **special)
        tokenizer.chat_template = path.read_bytes().decode()
        outputs = [render(tokenizer, conversation) for conversation in CONVERSATIONS]
        families.append({"template": path.stem, "special_tokens": special, "outputs": outputs})
        print(path.stem, "raises in", [(i, o["error"]) for i, o in enumerate(outputs) if not isinstance(o, str)])
    head = {"versions": {"transformers": transformers.__version__, "jinja2": jinja2.__version__}, "now": NOW}
    lines = [json.dumps(head)[:-1] + ',\n"conversations": [\n', ",\n".join(map(json.dumps, CONVERSATIONS)), '],\n"families": [\n',
             ",\n".join(map(json.dumps, families)), "]}\n"]
    (HERE / "reference.json").write_text("".join(lines))


if __name__ == "__main__":
    main()
