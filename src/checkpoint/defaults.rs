//! What transformers' configuration classes (5.24) take where a config is silent, and which keys they read: a row for each
//! `model_type`.

use super::layers::Windows;

/// One row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    /// `None`: hidden_size / num_attention_heads.
    pub(super) head_dim: Option<usize>,
    /// For an absent key; `None`, and null in a config: as many as query heads.
    pub(super) num_key_value_heads: Option<usize>,
    pub(super) max_position_embeddings: usize,
    pub(super) rms_norm_eps: f64,
    pub(super) tie_word_embeddings: bool,
    /// The key of the activation, and its value if it is absent.
    pub(super) activation: (&'static str, &'static str),
    /// Whether "gelu" means its tanh approximation.
    pub(super) gelu_is_tanh: bool,
    pub(super) rope_theta: f64,
    /// The base of layers with a window, if they have one of their own.
    pub(super) rope_local_base_freq: Option<f64>,
    /// Whether `partial_rotary_factor` is read.
    pub(super) partial_rotary: bool,
    /// Whether every rope type but "default" means "longrope", which then is trained for this many positions.
    pub(super) longrope_only: Option<usize>,
    pub(super) windows: Windows,
    /// `sliding_window` if the key is absent; null means off.
    pub(super) sliding_window: Option<usize>,
    /// Every which layer has no RoPE, by `no_rope_layers` or `no_rope_layer_interval`.
    pub(super) no_rope_layer_interval: Option<usize>,
    pub(super) query_pre_attn_scalar: Option<f64>,
    /// For absent keys; null means off.
    pub(super) attn_logit_softcapping: Option<f64>,
    pub(super) final_logit_softcapping: Option<f64>,
    /// The key of the experts' width, where layers have experts.
    pub(super) expert_width: Option<&'static str>,
}

impl Defaults {
    const LLAMA: Defaults = Defaults {
        head_dim: None,
        num_key_value_heads: None,
        max_position_embeddings: 2048,
        rms_norm_eps: 1e-6,
        tie_word_embeddings: false,
        activation: ("hidden_act", "silu"),
        gelu_is_tanh: false,
        rope_theta: 10_000.0,
        rope_local_base_freq: None,
        partial_rotary: false,
        longrope_only: None,
        windows: Windows::Never,
        sliding_window: None,
        no_rope_layer_interval: None,
        query_pre_attn_scalar: None,
        attn_logit_softcapping: None,
        final_logit_softcapping: None,
        expert_width: None,
    };

    /// The row of a family. One that is not known has Llama's; the model's loader refuses it.
    pub(super) fn of(model_type: &str) -> Defaults {
        const LLAMA: Defaults = Defaults::LLAMA;
        const QWEN: Defaults =
            Defaults { max_position_embeddings: 32_768, sliding_window: Some(4096), ..Defaults::LLAMA };
        const GEMMA: Defaults = Defaults {
            head_dim: Some(256),
            num_key_value_heads: Some(4),
            max_position_embeddings: 8192,
            tie_word_embeddings: true,
            activation: ("hidden_activation", "gelu_pytorch_tanh"),
            sliding_window: Some(4096),
            query_pre_attn_scalar: Some(256.0),
            ..Defaults::LLAMA
        };
        match model_type {
            "mistral" => Defaults {
                num_key_value_heads: Some(8),
                max_position_embeddings: 131_072,
                windows: Windows::Always,
                sliding_window: Some(4096),
                ..LLAMA
            },
            "qwen2" => Defaults { num_key_value_heads: Some(32), windows: Windows::FromLayer(28), ..QWEN },
            "qwen3" => {
                Defaults { head_dim: Some(128), num_key_value_heads: Some(32), windows: Windows::FromLayer(28), ..QWEN }
            }
            "gemma" => Defaults {
                num_key_value_heads: Some(16),
                activation: ("hidden_act", "gelu_pytorch_tanh"),
                gelu_is_tanh: true,
                ..GEMMA
            },
            "gemma2" => Defaults {
                windows: Windows::ButEvery(2, None),
                attn_logit_softcapping: Some(50.0),
                final_logit_softcapping: Some(30.0),
                ..GEMMA
            },
            "gemma3_text" => Defaults {
                max_position_embeddings: 131_072,
                rope_theta: 1_000_000.0,
                rope_local_base_freq: Some(10_000.0),
                windows: Windows::ButEvery(6, Some("sliding_window_pattern")),
                ..GEMMA
            },
            "phi3" => Defaults {
                max_position_embeddings: 4096,
                rms_norm_eps: 1e-5,
                partial_rotary: true,
                longrope_only: Some(4096),
                windows: Windows::Always,
                ..LLAMA
            },
            "smollm3" => Defaults {
                num_key_value_heads: Some(4),
                max_position_embeddings: 32_768,
                tie_word_embeddings: true,
                rope_theta: 2_000_000.0,
                windows: Windows::WithoutRope,
                no_rope_layer_interval: Some(4),
                ..LLAMA
            },
            "olmo2" => Defaults { rms_norm_eps: 1e-5, ..LLAMA },
            "mixtral" => Defaults {
                num_key_value_heads: Some(8),
                max_position_embeddings: 131_072,
                rms_norm_eps: 1e-5,
                rope_theta: 1_000_000.0,
                windows: Windows::Always,
                expert_width: Some("intermediate_size"),
                ..LLAMA
            },
            "qwen3_moe" => Defaults {
                num_key_value_heads: Some(4),
                windows: Windows::AlwaysIfUsed,
                expert_width: Some("moe_intermediate_size"),
                ..QWEN
            },
            "olmoe" => Defaults {
                max_position_embeddings: 4096,
                rms_norm_eps: 1e-5,
                expert_width: Some("intermediate_size"),
                ..LLAMA
            },
            _ => LLAMA,
        }
    }
}
