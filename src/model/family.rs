//! Architectures as data: what a `model_type` changes in the one forward pass of `decoder.rs`.

use crate::bail;
use crate::checkpoint::Config;
use crate::error::Result;

/// What the forward pass needs to know beyond the sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// Bias on o.
    pub o_bias: bool,
    /// Biases on gate, up and down.
    pub mlp_bias: bool,
    /// Factor on the attention scores.
    pub score_scale: f32,
}

type Build = fn(&Config) -> Result<Architecture>;

/// Every known `model_type`.
const FAMILIES: &[(&str, Build)] = &[("llama", llama)];

/// The architecture that `config` describes. An unknown `model_type` is an error that lists the known ones.
pub fn architecture(config: &Config) -> Result<Architecture> {
    let known = || FAMILIES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    match FAMILIES.iter().find(|(name, _)| *name == config.model_type) {
        Some((_, build)) => build(config),
        None => bail!(Unsupported, "model_type: expected one of: {}; found \"{}\"", known(), config.model_type),
    }
}

/// Llama 1–3.2, SmolLM, SmolLM2, TinyLlama (transformers `modeling_llama.py`).
fn llama(config: &Config) -> Result<Architecture> {
    if config.hidden_act != "silu" {
        bail!(Unsupported, "hidden_act: expected \"silu\", found \"{}\"", config.hidden_act);
    }
    Ok(Architecture {
        qkv_bias: config.attention_bias,
        o_bias: config.attention_bias,
        mlp_bias: config.mlp_bias,
        score_scale: 1.0 / (config.head_dim as f32).sqrt(),
    })
}
