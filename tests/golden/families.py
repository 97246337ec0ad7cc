"""The cases of generate.py beyond Llama: one tiny model per family and one per switch of it, windows of eight tokens.

name: (what it is for, config in transformers v4's words over FAMILY_DEFAULTS, options of write_case). The v5 spelling of
these is what transformers 5 itself writes. Keys that a case leaves out have the family's own defaults on purpose.
"""

FAMILY_DEFAULTS = dict(
    num_hidden_layers=2, rms_norm_eps=1e-5, max_position_embeddings=256, bos_token_id=3, eos_token_id=5,
    torch_dtype="float32")


def tiny(model_type, architecture, **changes):
    """Sizes that no vector length divides."""
    return dict(
        model_type=model_type, architectures=[architecture], **{**dict(
            hidden_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=20, intermediate_size=37,
            vocab_size=97), **changes})


def mistral(**changes):
    return tiny("mistral", "MistralForCausalLM", **changes)


def qwen2(**changes):
    return tiny("qwen2", "Qwen2ForCausalLM", hidden_size=36, num_attention_heads=3, head_dim=12, **changes)


def qwen3(**changes):
    return tiny("qwen3", "Qwen3ForCausalLM", num_attention_heads=4, num_key_value_heads=2, **changes)


def gemma(version, **changes):
    names = {1: ("gemma", "Gemma"), 2: ("gemma2", "Gemma2"), 3: ("gemma3_text", "Gemma3")}
    return tiny(names[version][0], names[version][1] + "ForCausalLM", **changes)


def phi3(**changes):
    return tiny("phi3", "Phi3ForCausalLM", **{**dict(
        hidden_size=48, num_attention_heads=3, head_dim=16, pad_token_id=0), **changes})


def smollm3(**changes):
    return tiny("smollm3", "SmolLM3ForCausalLM", pad_token_id=0, **changes)


def olmo2(**changes):
    return tiny("olmo2", "Olmo2ForCausalLM", num_attention_heads=4, num_key_value_heads=2, head_dim=6, **changes)


def granite(**changes):
    return tiny("granite", "GraniteForCausalLM", head_dim=12, embedding_multiplier=1.2, attention_multiplier=0.37,
                residual_multiplier=0.81, logits_scaling=1.7, **changes)


def mixtral(**changes):
    return tiny("mixtral", "MixtralForCausalLM", head_dim=12, intermediate_size=19, num_local_experts=5,
                num_experts_per_tok=2, **changes)


def qwen3_moe(**changes):
    return tiny("qwen3_moe", "Qwen3MoeForCausalLM", head_dim=12, moe_intermediate_size=19, num_experts=7,
                num_experts_per_tok=3, **changes)


def olmoe(**changes):
    return tiny("olmoe", "OlmoeForCausalLM", head_dim=12, intermediate_size=19, num_experts=6, num_experts_per_tok=3,
                **changes)


def longrope(original, **changes):
    """Phi-4-mini's rotary embedding: three quarters of a head of 16."""
    return dict(
        partial_rotary_factor=0.75, original_max_position_embeddings=original, rope_theta=10000.0, rope_scaling={
            "type": "longrope", "short_factor": [1.0, 1.05, 1.1, 1.2, 1.4, 1.5],
            "long_factor": [1.1, 1.7, 2.9, 5.1, 9.7, 16.2]}, **changes)


CASES = {
    "mistral_window": ("Mistral with a window of 8 in all layers", mistral(sliding_window=8), dict(v5_too=True)),
    "mistral_full": (
        "Mistral with sliding_window null; head_dim absent; as many KV heads as heads",
        mistral(sliding_window=None, head_dim=None, num_key_value_heads=2, rope_theta=1e6), {}),
    "qwen2": (
        "Qwen 2: biases on q, k and v; use_sliding_window false, so the window of 8 is not used; tied",
        qwen2(use_sliding_window=False, sliding_window=8, max_window_layers=1, rope_theta=1e6, tie_word_embeddings=True),
        dict(v5_too=True)),
    "qwen2_window": (
        "Qwen 2 with a window of 8 from layer max_window_layers = 1 on",
        qwen2(num_hidden_layers=3, use_sliding_window=True, sliding_window=8, max_window_layers=1), dict(v5_too=True)),
    "qwen3": (
        "Qwen 3: norms of each head's q and k, heads of 20 where hidden/heads is 6; tied",
        qwen3(tie_word_embeddings=True, rope_theta=1e6, use_sliding_window=False, sliding_window=8,
              max_window_layers=1), dict(v5_too=True)),
    "qwen3_window": (
        "Qwen 3 with biases, and layer_types that name the layers with a window; RoPE 'yarn'",
        qwen3(attention_bias=True, use_sliding_window=True, sliding_window=8, max_window_layers=2,
              layer_types=["sliding_attention", "full_attention"],
              rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
        dict(v5_too=True)),
    "gemma": (
        "Gemma: hidden_act says 'gelu' and means its tanh approximation; embeddings times the root of hidden_size, norm "
        "weights 1 + w, tied without saying so",
        gemma(1, hidden_act="gelu", num_key_value_heads=2), dict(v5_too=True)),
    "gemma_bias": ("Gemma with biases and one KV head", gemma(1, attention_bias=True), {}),
    "gemma2": (
        "Gemma 2: four norms a layer, soft caps on scores and logits, a window of 8 in every other layer, "
        "query_pre_attn_scalar that is not head_dim",
        gemma(2, num_hidden_layers=3, hidden_activation="gelu_pytorch_tanh", sliding_window=8, query_pre_attn_scalar=7,
              attn_logit_softcapping=2.0, final_logit_softcapping=3.0), dict(v5_too=True)),
    "gemma2_uncapped": (
        "Gemma 2 with soft caps null, biases, and layer_types the other way round",
        gemma(2, sliding_window=8, query_pre_attn_scalar=20, attn_logit_softcapping=None, final_logit_softcapping=None,
              attention_bias=True, layer_types=["full_attention", "sliding_attention"]), dict(v5_too=True)),
    "gemma3": (
        "Gemma 3: q/k norms of 1 + w, a window of 8 but for every sixth layer, which has its own RoPE base; the bases by "
        "default",
        gemma(3, hidden_size=16, intermediate_size=21, head_dim=12, num_hidden_layers=7, sliding_window=8,
              query_pre_attn_scalar=12), dict(v5_too=True)),
    "gemma3_pattern": (
        "Gemma 3 with sliding_window_pattern 2, both RoPE bases, RoPE 'linear' in the full layers, and a soft cap on the "
        "logits",
        gemma(3, sliding_window=8, sliding_window_pattern=2, query_pre_attn_scalar=9, rope_theta=5000.0,
              rope_local_base_freq=100.0, rope_scaling={"rope_type": "linear", "factor": 8.0},
              final_logit_softcapping=4.0), dict(v5_too=True)),
    "phi3": (
        "Phi-3: qkv_proj and gate_up_proj in one piece each, a window of 8, as many KV heads as heads by default",
        phi3(num_key_value_heads=None, sliding_window=8), dict(v5_too=True)),
    "phi3_partial": (
        "Phi-3 rotating three quarters of each head, without a window",
        phi3(partial_rotary_factor=0.75, tie_word_embeddings=True), dict(v5_too=True)),
    "phi3_longrope": (
        "RoPE 'longrope': the sequence passes original_max_position_embeddings = 64 while it is generated, whereupon "
        "all of it is rotated by the long factors, as Hugging Face's generate does",
        phi3(**longrope(64)), dict(v5_too=True)),
    "phi3_longrope_long": (
        "RoPE 'longrope' of a prompt longer than original_max_position_embeddings = 24: the long factors throughout",
        phi3(**longrope(24)), dict(v5_too=True)),
    "smollm3": (
        "SmolLM3: every fourth layer without RoPE by default; tied without saying so",
        smollm3(num_hidden_layers=4, hidden_size=16, head_dim=10, intermediate_size=21, rope_theta=5000.0),
        dict(v5_too=True)),
    "smollm3_window": (
        "SmolLM3 with no_rope_layers, which have a window of 8 then; biases everywhere; RoPE base by default",
        smollm3(num_hidden_layers=3, no_rope_layers=[0, 1, 0], use_sliding_window=True, sliding_window=8,
                attention_bias=True, mlp_bias=True, tie_word_embeddings=False), dict(v5_too=True)),
    "olmo2": (
        "OLMo 2: norms after the branches instead of before, norms over all of q and all of k", olmo2(),
        dict(v5_too=True)),
    "granite": (
        "Granite: multipliers of embeddings, scores and residual branches, a divisor of logits; tied",
        granite(tie_word_embeddings=True), dict(v5_too=True)),
    "granite_bias": ("Granite with biases everywhere", granite(attention_bias=True, mlp_bias=True), {}),
    "mixtral": (
        "Mixtral: two of five experts, their weights made to sum to 1; RoPE base by default", mixtral(),
        dict(v5_too=True)),
    "mixtral_window": ("Mixtral with a window of 8", mixtral(sliding_window=8, rope_theta=10000.0), {}),
    "qwen3_moe": (
        "Qwen 3 MoE: three of seven experts, norm_topk_prob true; layer 1 dense by mlp_only_layers",
        qwen3_moe(num_hidden_layers=3, norm_topk_prob=True, mlp_only_layers=[1]), dict(v5_too=True)),
    "qwen3_moe_sparse_step": (
        "Qwen 3 MoE: norm_topk_prob false by default, every second layer sparse, biases, a window of 8 in all layers",
        qwen3_moe(decoder_sparse_step=2, attention_bias=True, use_sliding_window=True, sliding_window=8),
        dict(v5_too=True)),
    "olmoe": (
        "OLMoE: three of six experts, weights that do not sum to 1, clip_qkv after the norms of q and k",
        olmoe(clip_qkv=0.75), dict(v5_too=True)),
    "olmoe_norm": (
        "OLMoE with norm_topk_prob true, without clip_qkv, as many KV heads as heads",
        olmoe(norm_topk_prob=True, num_key_value_heads=None), {}),
}
