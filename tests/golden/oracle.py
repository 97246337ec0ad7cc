"""The forward pass of every family in float64, from the definition: what generate.py holds transformers' numbers against."""
import math

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from weights import head_dim


def window_of(config, layer):
    """How many tokens layer sees, itself included; None: all."""
    if config.model_type in ("mistral", "mixtral", "phi3", "qwen3_moe"):
        return config.sliding_window
    sliding = (getattr(config, "layer_types", None) or {}) and config.layer_types[layer] == "sliding_attention"
    return config.sliding_window if sliding else None


def tanh_gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def silu(x):
    return x * torch.sigmoid(x)


def frequencies(model, layer, n):
    """Inverse frequencies of each of n positions, and the factor on sine and cosine."""
    c, rope = model.config, model.model.rotary_emb
    if c.model_type == "gemma3_text":
        kind = c.layer_types[layer]
        return [getattr(rope, f"{kind}_original_inv_freq")] * n, getattr(rope, f"{kind}_attention_scaling")
    kind = c.rope_parameters["rope_type"]
    if kind == "dynamic":
        return [ROPE_INIT_FUNCTIONS[kind](c, seq_len=torch.tensor(p + 1))[0] for p in range(n)], rope.attention_scaling
    if kind == "longrope":
        return [ROPE_INIT_FUNCTIONS[kind](c, seq_len=n)[0]] * n, rope.attention_scaling
    return [rope.original_inv_freq] * n, rope.attention_scaling


@torch.no_grad()
def oracle(model, ids):
    """Every tensor of golden.safetensors but the greedy ones; only the frequencies of RoPE are transformers'."""
    c, t, n = model.config, {}, len(ids)
    kind, dim = c.model_type, head_dim(c)
    gemma = kind.startswith("gemma")
    w = {name: p.double() for name, p in model.named_parameters(remove_duplicate=False)}
    activation = tanh_gelu if gemma else silu
    q_width, kv_width = c.num_attention_heads * dim, c.num_key_value_heads * dim
    scale = getattr(c, "attention_multiplier", getattr(c, "query_pre_attn_scalar", dim) ** -0.5)

    def norm(x, name):
        if f"{name}.weight" not in w:
            return x
        return x / (x.pow(2).mean(-1, keepdim=True) + c.rms_norm_eps).sqrt() * (w[f"{name}.weight"] + float(gemma))

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def qkv(h, layer):
        if f"{layer}.qkv_proj.weight" in w:
            return linear(h, f"{layer}.qkv_proj").split([q_width, kv_width, kv_width], -1)
        return [linear(h, f"{layer}.{p}_proj") for p in "qkv"]

    def expert(h, gate_up, down):
        gate, up = (h @ gate_up.T).chunk(2, -1)
        return (activation(gate) * up) @ down.T

    def mlp(h, layer):
        if f"{layer}.gate_up_proj.weight" in w:
            return expert(h, w[f"{layer}.gate_up_proj.weight"], w[f"{layer}.down_proj.weight"])
        if f"{layer}.gate_proj.weight" in w:
            gate, up = linear(h, f"{layer}.gate_proj"), linear(h, f"{layer}.up_proj")
            return linear(activation(gate) * up, f"{layer}.down_proj")
        weights, chosen = torch.softmax(h @ w[f"{layer}.gate.weight"].T, -1).topk(c.num_experts_per_tok)
        if kind == "mixtral" or c.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        gate_up, down = w[f"{layer}.experts.gate_up_proj"], w[f"{layer}.experts.down_proj"]
        rows = [sum(p * expert(row, gate_up[e], down[e]) for p, e in zip(ps, es))
                for row, ps, es in zip(h, weights, chosen)]
        return torch.stack(rows)

    def cap(x, most):
        return most * torch.tanh(x / most) if most else x

    def rotate(x, layer):
        x = x.reshape(n, -1, dim)
        if kind == "smollm3" and not c.no_rope_layers[layer]:
            return x
        inv_freq, factor = frequencies(model, layer, n)
        angles = (torch.arange(n).float()[:, None] * torch.stack(inv_freq)).double()[:, None]  # the product is float32
        cos, sin = angles.cos() * factor, angles.sin() * factor
        turned = 2 * cos.shape[-1]
        a, b = x[..., :turned].chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., turned:]], -1)

    def attend(q, k, v, layer):
        distance = torch.arange(n)[:, None] - torch.arange(n)
        unseen = (distance < 0) | (distance >= (window_of(c, layer) or n))
        score_cap = c.attn_logit_softcapping if kind == "gemma2" else None
        group, heads = c.num_attention_heads // c.num_key_value_heads, []
        for j in range(c.num_attention_heads):
            scores = cap(q[:, j] @ k[:, j // group].T * scale, score_cap).masked_fill(unseen, -torch.inf)
            heads.append(torch.softmax(scores, -1) @ v[:, j // group])
        return torch.cat(heads, 1)

    def per_head(x, name):
        """A norm of each head, or of all heads together, as wide as its weight."""
        width = w[f"{name}.weight"].numel() if f"{name}.weight" in w else x.shape[-1]
        return norm(x.reshape(n, -1, width), name).reshape(n, -1)

    x = w["model.embed_tokens.weight"][ids]
    x = t["embeddings"] = x * (c.hidden_size ** 0.5 if gemma else getattr(c, "embedding_multiplier", 1.0))
    residual = getattr(c, "residual_multiplier", 1.0)
    four_norms = "model.layers.0.post_feedforward_layernorm.weight" in w
    for i in range(c.num_hidden_layers):
        at, layer = f"layers.{i}", f"model.layers.{i}"
        q, k, v = qkv(norm(x, f"{layer}.input_layernorm"), f"{layer}.self_attn")
        q, k = per_head(q, f"{layer}.self_attn.q_norm"), per_head(k, f"{layer}.self_attn.k_norm")
        if clip := getattr(c, "clip_qkv", None):
            q, k, v = (s.clamp(-clip, clip) for s in (q, k, v))
        q, k, v = rotate(q, i), rotate(k, i), v.reshape(n, -1, dim)
        t[f"{at}.q_rope"], t[f"{at}.k_rope"] = q.flatten(1), k.flatten(1)
        t[f"{at}.attention"] = attend(q, k, v, i)
        t[f"{at}.attention_out"] = linear(t[f"{at}.attention"], f"{layer}.self_attn.o_proj")
        after = f"{layer}.post_attention_layernorm"
        x = x + residual * (norm(t[f"{at}.attention_out"], after) if four_norms else t[f"{at}.attention_out"])
        t[f"{at}.mlp"] = mlp(norm(x, f"{layer}.pre_feedforward_layernorm" if four_norms else after), f"{layer}.mlp")
        x = t[f"{at}.hidden"] = x + residual * norm(t[f"{at}.mlp"], f"{layer}.post_feedforward_layernorm")
    t["final_norm"] = norm(x, "model.norm")
    logits = linear(t["final_norm"], "lm_head") / getattr(c, "logits_scaling", 1.0)
    t["logits"] = cap(logits, getattr(c, "final_logit_softcapping", None))
    return t
