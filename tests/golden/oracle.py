"""The Llama forward pass in float64, from the definition: what generate.py holds transformers' numbers against."""
import math

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


@torch.no_grad()
def oracle(model, ids):
    """Every tensor of golden.safetensors but the greedy ones; only the frequencies of RoPE are transformers'."""
    c, t, n = model.config, {}, len(ids)
    w = {name: p.double() for name, p in model.named_parameters(remove_duplicate=False)}

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + c.rms_norm_eps).sqrt() * w[f"{name}.weight"]

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    rope, kind = model.model.rotary_emb, c.rope_parameters["rope_type"]
    frequencies = [ROPE_INIT_FUNCTIONS[kind](c, seq_len=torch.tensor(p + 1))[0] if kind == "dynamic"
                   else rope.original_inv_freq for p in range(n)]
    angles = (torch.arange(n).float()[:, None] * torch.stack(frequencies)).double()[:, None]  # the product is float32
    cos, sin = angles.cos() * rope.attention_scaling, angles.sin() * rope.attention_scaling

    def rotate(x):
        a, b = x.view(n, -1, c.head_dim).chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    mask = torch.full((n, n), -torch.inf, dtype=torch.float64).triu(1)
    x = t["embeddings"] = w["model.embed_tokens.weight"][ids]
    for i in range(c.num_hidden_layers):
        at, layer = f"layers.{i}", f"model.layers.{i}"
        h = norm(x, f"{layer}.input_layernorm")
        q, k, v = (linear(h, f"{layer}.self_attn.{p}_proj") for p in "qkv")
        q, k, v = rotate(q), rotate(k), v.view(n, -1, c.head_dim)
        t[f"{at}.q_rope"], t[f"{at}.k_rope"] = q.flatten(1), k.flatten(1)
        group = c.num_attention_heads // c.num_key_value_heads
        heads = [torch.softmax(q[:, j] @ k[:, j // group].T / math.sqrt(c.head_dim) + mask, -1) @ v[:, j // group]
                 for j in range(c.num_attention_heads)]
        t[f"{at}.attention"] = torch.cat(heads, 1)
        t[f"{at}.attention_out"] = linear(t[f"{at}.attention"], f"{layer}.self_attn.o_proj")
        x = x + t[f"{at}.attention_out"]
        h = norm(x, f"{layer}.post_attention_layernorm")
        gate, up = linear(h, f"{layer}.mlp.gate_proj"), linear(h, f"{layer}.mlp.up_proj")
        t[f"{at}.mlp"] = linear(gate * torch.sigmoid(gate) * up, f"{layer}.mlp.down_proj")
        x = t[f"{at}.hidden"] = x + t[f"{at}.mlp"]
    t["final_norm"] = norm(x, "model.norm")
    t["logits"] = linear(t["final_norm"], "lm_head")
    return t
