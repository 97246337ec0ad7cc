"""Random weights for any family of generate.py, under the names of the hub."""
import math

import torch

# The norms of a layer: before attention, and after.
NORMS = {
    "gemma2": (["input_layernorm"], ["post_attention_layernorm", "pre_feedforward_layernorm",
                                     "post_feedforward_layernorm"]),
    "olmo2": ([], ["post_attention_layernorm", "post_feedforward_layernorm"]),
}
NORMS["gemma3_text"] = NORMS["gemma2"]
LLAMA_NORMS = (["input_layernorm"], ["post_attention_layernorm"])

MIXTRAL_EXPERT = {"gate": "w1", "up": "w3", "down": "w2"}


def head_dim(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def experts(config, layer):
    """How many experts the layer has; 0: a dense one."""
    if config.model_type in ("mixtral", "olmoe"):
        return config.num_local_experts
    sparse = config.model_type == "qwen3_moe" and layer not in config.mlp_only_layers
    return config.num_experts if sparse and (layer + 1) % config.decoder_sparse_step == 0 else 0


def random_weights(config, dtype, generator):
    """Matrices of variance 1/fan_in (q, k and o of 4/fan_in: sharp attention that counts), norms 1 ± 0.2, biases."""
    def normal(*shape, std):
        return torch.randn(*shape, generator=generator) * std

    kind, hidden, vocab = config.model_type, config.hidden_size, config.vocab_size
    q, kv = config.num_attention_heads * head_dim(config), config.num_key_value_heads * head_dim(config)
    gemma = kind.startswith("gemma")
    attention_bias = getattr(config, "attention_bias", False)
    mlp_bias = getattr(config, "mlp_bias", False)
    w = {}

    def linear(name, n, k, bias=False):
        w[f"{name}.weight"] = normal(n, k, std=(2 if name[-6:] in ("q_proj", "k_proj", "o_proj") else 1) / math.sqrt(k))
        if bias:
            w[f"{name}.bias"] = normal(n, std=0.3) + 0.1

    def norm(name, n=hidden):
        w[f"{name}.weight"] = 1 + 0.4 * (torch.rand(n, generator=generator) - 0.5)
        if gemma:
            w[f"{name}.weight"] -= 1

    def mlp(name, n, names={"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}):
        for part, n, k in [("gate", n, hidden), ("up", n, hidden), ("down", hidden, n)]:
            linear(f"{name}.{names[part]}", n, k, mlp_bias)

    def fuse(name, parts):
        w[f"{name}.weight"] = torch.cat([w.pop(f"{part}.weight") for part in parts])

    # small beside the layers' contributions, lest a tied model just repeat the last token
    w["model.embed_tokens.weight"] = normal(vocab, hidden, std=0.08 if gemma else 0.2)
    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}"
        before, after = NORMS.get(kind, LLAMA_NORMS)
        for name in before:
            norm(f"{layer}.{name}")
        for name, n, k in [("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)]:
            bias = name != "o" if kind == "qwen2" else attention_bias
            linear(f"{layer}.self_attn.{name}_proj", n, k, bias)
        if kind in ("qwen3", "qwen3_moe", "gemma3_text", "olmo2", "olmoe"):
            whole = kind.startswith("olmo")
            norm(f"{layer}.self_attn.q_norm", q if whole else head_dim(config))
            norm(f"{layer}.self_attn.k_norm", kv if whole else head_dim(config))
        for name in after:
            norm(f"{layer}.{name}")
        count = experts(config, i)
        if kind == "mixtral":
            linear(f"{layer}.block_sparse_moe.gate", count, hidden)
            for e in range(count):
                mlp(f"{layer}.block_sparse_moe.experts.{e}", config.intermediate_size, MIXTRAL_EXPERT)
        elif count:
            linear(f"{layer}.mlp.gate", count, hidden)
            for e in range(count):
                mlp(f"{layer}.mlp.experts.{e}", getattr(config, "moe_intermediate_size", config.intermediate_size))
        else:
            mlp(f"{layer}.mlp", config.intermediate_size)
        if kind == "phi3":
            fuse(f"{layer}.self_attn.qkv_proj", [f"{layer}.self_attn.{p}_proj" for p in "qkv"])
            fuse(f"{layer}.mlp.gate_up_proj", [f"{layer}.mlp.{p}_proj" for p in ("gate", "up")])
    norm("model.norm")
    w["lm_head.weight"] = normal(vocab, hidden, std=2 / math.sqrt(hidden))
    return {name: t.to(dtype) for name, t in w.items()}
