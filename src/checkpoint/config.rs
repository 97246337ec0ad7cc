//! `config.json` and `generation_config.json`, in the spelling of transformers 4 and 5.

use super::Document;
use crate::error::Result;

/// What the checkpoint's configuration says. Nothing is guessed: a value is what a file says or what
/// transformers documents as the default of an absent key.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `model_type`, such as `"llama"`.
    pub model_type: String,
    /// `architectures[0]`, or empty.
    pub architecture: String,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Width of a head; explicit, or hidden_size / num_attention_heads.
    pub head_dim: usize,
    /// ε of RMSNorm.
    pub rms_norm_eps: f32,
    /// `hidden_act`, such as `"silu"`.
    pub hidden_act: String,
    /// Longest trained context.
    pub max_position_embeddings: usize,
    /// Whether lm_head shares the embedding.
    pub tie_word_embeddings: bool,
    /// Whether q, k, v and o carry biases.
    pub attention_bias: bool,
    /// Whether gate, up and down carry biases.
    pub mlp_bias: bool,
    /// Rotary embedding.
    pub rope: Rope,
    /// Beginning-of-text token.
    pub bos_token_id: Option<u32>,
    /// End-of-generation tokens; `generation_config.json` wins over `config.json`.
    pub eos_token_ids: Vec<u32>,
}

/// Rotary position embedding (`rope_theta` and `rope_scaling`, or `rope_parameters`).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// What changes the frequencies for long contexts.
    pub scaling: RopeScaling,
}

/// Hugging Face's `rope_type`s (transformers `modeling_rope_utils.py`).
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// `default`.
    None,
    /// `linear`: positions divided by `factor`.
    Linear {
        /// Divisor of the positions.
        factor: f64,
    },
    /// `dynamic`: NTK-aware base, growing with the sequence beyond `original_max_position_embeddings`.
    Dynamic {
        /// Scaling factor.
        factor: f64,
        /// Length up to which the base is unchanged.
        original_max_position_embeddings: usize,
    },
    /// `yarn`: interpolation by parts (Peng et al. 2023).
    Yarn {
        /// Scaling factor.
        factor: f64,
        /// Trained length.
        original_max_position_embeddings: usize,
        /// Rotations above which a dimension is extrapolated.
        beta_fast: f64,
        /// Rotations below which a dimension is interpolated.
        beta_slow: f64,
        /// Factor on sine and cosine.
        attention_factor: f64,
        /// Whether the correction range is rounded to whole dimensions.
        truncate: bool,
    },
    /// `llama3`: bands by wavelength (Llama 3.1).
    Llama3 {
        /// Scaling factor of the long wavelengths.
        factor: f64,
        /// Wavelengths above original / low_freq_factor are scaled.
        low_freq_factor: f64,
        /// Wavelengths below original / high_freq_factor are kept.
        high_freq_factor: f64,
        /// Trained length.
        original_max_position_embeddings: usize,
    },
}

impl Config {
    /// Reads and checks both files. Every error names the file and the key, what was expected and what was found.
    pub fn parse(config: &Document, generation_config: Option<&Document>) -> Result<Config> {
        todo!("{config:?} {generation_config:?}")
    }
}
