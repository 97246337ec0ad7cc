//! Architectures as data: what a `model_type` changes in the one forward pass of `decoder.rs`.

use crate::bail;
use crate::checkpoint::Config;
use crate::error::Result;
use crate::kernels::{Activation, Scoring};

/// What loading and the forward pass need to know beyond the sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// Bias on o.
    pub o_bias: bool,
    /// Biases on gate, up and down.
    pub mlp_bias: bool,
    /// Whether q, k and v are one matrix, `qkv_proj`, and gate and up another, `gate_up_proj`.
    pub fused: bool,
    /// The norms of a layer.
    pub norms: Norms,
    /// What is added to the stored weights of all norms.
    pub norm_offset: f32,
    /// Norms of queries and keys before they are rotated.
    pub qk_norm: Option<QkNorm>,
    /// Queries, keys and values are clamped to ± this, after those norms.
    pub clip_qkv: Option<f32>,
    /// Factor on attention scores.
    pub score_scale: f32,
    /// Their soft cap.
    pub score_cap: Option<f32>,
    /// The activation of the MLP.
    pub activation: Activation,
    /// Names of the experts' tensors.
    pub experts: ExpertNames,
    /// Whether the weights of a token's experts are made to sum to 1.
    pub normalize_experts: bool,
    /// Factor on embeddings.
    pub embedding_scale: Option<f32>,
    /// Factor on a branch before it is added to the residual stream.
    pub residual_scale: Option<f32>,
    /// Divisor of logits.
    pub logit_divisor: Option<f32>,
    /// Their soft cap.
    pub logit_cap: Option<f32>,
}

/// Names of a layer's norms: of the input of a branch, and of its output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norms {
    pub before_attention: Option<&'static str>,
    pub after_attention: Option<&'static str>,
    pub before_mlp: Option<&'static str>,
    pub after_mlp: Option<&'static str>,
}

/// What `q_norm` and `k_norm` are norms of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QkNorm {
    /// Each head.
    Head,
    /// All heads together.
    Projection,
}

/// Names within a sparse layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertNames {
    /// The block: `{block}.gate` is the router, `{block}.experts.{i}` an expert.
    pub block: &'static str,
    /// An expert's matrices.
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
}

type Build = fn(&Config) -> Result<Architecture>;

/// Every known `model_type`.
const FAMILIES: &[(&str, Build)] = &[
    ("llama", llama),
    ("mistral", unbiased),
    ("qwen2", qwen2),
    ("qwen3", qwen3),
    ("gemma", gemma),
    ("gemma2", gemma2),
    ("gemma3_text", gemma3),
    ("phi3", phi3),
    ("smollm3", llama),
    ("olmo2", olmo2),
    ("granite", granite),
    ("mixtral", mixtral),
    ("qwen3_moe", qwen3),
    ("olmoe", olmoe),
];

/// The architecture that `config` describes. An unknown `model_type` is an error that lists the known ones.
pub fn architecture(config: &Config) -> Result<Architecture> {
    let known = || FAMILIES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    match FAMILIES.iter().find(|(name, _)| *name == config.model_type) {
        Some((_, build)) => build(config),
        None => bail!(Unsupported, "model_type: expected one of: {}; found \"{}\"", known(), config.model_type),
    }
}

/// Llama 1–3.2, SmolLM, SmolLM2, TinyLlama (transformers `modeling_llama.py`), and SmolLM3.
fn llama(config: &Config) -> Result<Architecture> {
    expect_activation(config, "silu")?;
    Ok(base(config))
}

/// Llama with whatever activation.
fn base(config: &Config) -> Architecture {
    Architecture {
        qkv_bias: config.attention_bias,
        o_bias: config.attention_bias,
        mlp_bias: config.mlp_bias,
        fused: false,
        norms: Norms {
            before_attention: Some("input_layernorm"),
            after_attention: None,
            before_mlp: Some("post_attention_layernorm"),
            after_mlp: None,
        },
        norm_offset: 0.0,
        qk_norm: None,
        clip_qkv: None,
        score_scale: 1.0 / (config.head_dim as f32).sqrt(),
        score_cap: None,
        activation: Activation::Silu,
        experts: ExpertNames { block: "mlp", gate: "gate_proj", up: "up_proj", down: "down_proj" },
        normalize_experts: config.experts.as_ref().is_some_and(|experts| experts.norm_topk_prob),
        embedding_scale: None,
        residual_scale: None,
        logit_divisor: None,
        logit_cap: None,
    }
}

/// Mistral: Llama without biases, whatever the config says.
fn unbiased(config: &Config) -> Result<Architecture> {
    Ok(Architecture { qkv_bias: false, o_bias: false, mlp_bias: false, ..llama(config)? })
}

/// Qwen 2 and 2.5: biases on q, k and v.
fn qwen2(config: &Config) -> Result<Architecture> {
    Ok(Architecture { qkv_bias: true, ..unbiased(config)? })
}

/// Qwen 3, dense or with experts: norms of each head's queries and keys.
fn qwen3(config: &Config) -> Result<Architecture> {
    Ok(Architecture { qk_norm: Some(QkNorm::Head), mlp_bias: false, ..llama(config)? })
}

/// Gemma: weights of norms count from 1, embeddings are scaled by √hidden_size, GELU.
fn gemma(config: &Config) -> Result<Architecture> {
    expect_activation(config, "gelu_pytorch_tanh")?;
    Ok(Architecture {
        mlp_bias: false,
        norm_offset: 1.0,
        activation: Activation::GeluTanh,
        embedding_scale: Some((config.hidden_size as f64).sqrt() as f32),
        ..base(config)
    })
}

/// Gemma 2: norms before and after both branches, soft caps on scores and logits.
fn gemma2(config: &Config) -> Result<Architecture> {
    Ok(Architecture {
        norms: Norms {
            before_attention: Some("input_layernorm"),
            after_attention: Some("post_attention_layernorm"),
            before_mlp: Some("pre_feedforward_layernorm"),
            after_mlp: Some("post_feedforward_layernorm"),
        },
        score_scale: config.query_pre_attn_scalar.unwrap_or(config.head_dim as f64).sqrt().recip() as f32,
        score_cap: config.attn_logit_softcapping.map(|cap| cap as f32),
        logit_cap: config.final_logit_softcapping.map(|cap| cap as f32),
        ..gemma(config)?
    })
}

/// Gemma 3, its language model: as Gemma 2, with norms of each head's queries and keys.
fn gemma3(config: &Config) -> Result<Architecture> {
    if let Some(cap) = config.attn_logit_softcapping {
        bail!(Unsupported, "attn_logit_softcapping: expected null, as Gemma 3 has no such cap; found {cap}");
    }
    Ok(Architecture { qk_norm: Some(QkNorm::Head), ..gemma2(config)? })
}

/// Phi-3, 3.5 and 4-mini: fused matrices.
fn phi3(config: &Config) -> Result<Architecture> {
    Ok(Architecture { fused: true, ..unbiased(config)? })
}

/// OLMo 2: norms of the branches' outputs instead of their inputs, norms of all queries and of all keys together.
fn olmo2(config: &Config) -> Result<Architecture> {
    Ok(Architecture {
        norms: Norms {
            before_attention: None,
            after_attention: Some("post_attention_layernorm"),
            before_mlp: None,
            after_mlp: Some("post_feedforward_layernorm"),
        },
        qk_norm: Some(QkNorm::Projection),
        mlp_bias: false,
        ..llama(config)?
    })
}

/// Granite 3: multipliers, 1 by default.
fn granite(config: &Config) -> Result<Architecture> {
    let multiplier = |value: Option<f64>| value.map(|v| v as f32);
    Ok(Architecture {
        embedding_scale: multiplier(config.embedding_multiplier),
        score_scale: multiplier(config.attention_multiplier).unwrap_or(1.0),
        residual_scale: multiplier(config.residual_multiplier),
        logit_divisor: multiplier(config.logits_scaling),
        ..llama(config)?
    })
}

/// Mixtral: Mistral with experts, whose matrices have names of their own and whose weights always sum to 1.
fn mixtral(config: &Config) -> Result<Architecture> {
    let experts = ExpertNames { block: "block_sparse_moe", gate: "w1", up: "w3", down: "w2" };
    Ok(Architecture { experts, normalize_experts: true, ..unbiased(config)? })
}

/// OLMoE: experts, norms of all queries and of all keys together, which are clamped then.
fn olmoe(config: &Config) -> Result<Architecture> {
    Ok(Architecture {
        qk_norm: Some(QkNorm::Projection),
        clip_qkv: config.clip_qkv.map(|clip| clip as f32),
        mlp_bias: false,
        ..llama(config)?
    })
}

fn expect_activation(config: &Config, expected: &str) -> Result<()> {
    match config.hidden_act == expected {
        true => Ok(()),
        false => bail!(
            Unsupported,
            "hidden_act or hidden_activation: expected \"{expected}\", found \"{}\"",
            config.hidden_act
        ),
    }
}

impl Architecture {
    /// What becomes of attention scores.
    pub fn scoring(&self) -> Scoring {
        Scoring { scale: self.score_scale, cap: self.score_cap }
    }
}
