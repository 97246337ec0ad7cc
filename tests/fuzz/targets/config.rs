//! `config.json` and `generation_config.json`, with weights for every family.

use super::abi::Library;
use super::model::{CONFIG, Directory, tensors_of_all_families, try_out, weights};
use super::reader::documents;
use rie::ffi::constants::RIE_INFO_MAX_CONTEXT;
use std::sync::LazyLock;

/// The input is `config.json` and, after a byte 0, `generation_config.json`.
pub fn run(data: &[u8]) {
    static OF_A_HEAD: LazyLock<Vec<u8>> = LazyLock::new(|| weights(&tensors_of_all_families(true)));
    static OF_ALL_HEADS: LazyLock<Vec<u8>> = LazyLock::new(|| weights(&tensors_of_all_families(false)));
    let [config, generation] = documents::<2>(data);
    let config = config.unwrap_or_default();
    let weights = if config.windows(4).any(|name| name == b"olmo") { &OF_ALL_HEADS } else { &OF_A_HEAD };
    let directory = Directory::new(&[("config.json", config), ("model.safetensors", weights)]);
    if let Some(generation) = generation {
        directory.put("generation_config.json", generation);
    }
    let library = Library::new();
    let described = library.inspect(directory.path());
    let Ok(model) = library.load(directory.path(), &[]) else { return };
    assert!(described.is_ok(), "a model that loads is described");
    if library.int(model.0, RIE_INFO_MAX_CONTEXT) >= 6 {
        try_out(&library, &model, &[]);
    }
}

/// Inputs to begin with.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let with = |model_type: &str, more: &str| {
        let config = CONFIG.replacen("\"llama\"", &format!("\"{model_type}\""), 1);
        config.replacen('}', &format!(",{more}}}"), 1).into_bytes()
    };
    let moe = r#""num_experts":3,"num_experts_per_tok":2,"moe_intermediate_size":12,"norm_topk_prob":true"#;
    let two = r#""num_hidden_layers":2,"layer_types":["full_attention","sliding_attention"]"#;
    let caps = r#""query_pre_attn_scalar":16,"attn_logit_softcapping":50.0,"final_logit_softcapping":30.0"#;
    let local = r#""sliding_window":4,"sliding_window_pattern":2,"rope_local_base_freq":1000.0"#;
    let multipliers =
        r#""embedding_multiplier":12.0,"attention_multiplier":0.01,"residual_multiplier":0.2,"logits_scaling":8.0"#;
    let gelu = r#""hidden_act":"gelu_pytorch_tanh","hidden_activation":"gelu_pytorch_tanh","num_hidden_layers":2"#;
    let scaled = |kind: &str, more: &str| format!(r#""rope_scaling":{{"rope_type":"{kind}","factor":4.0{more}}}"#);
    let original = r#","original_max_position_embeddings":40"#;
    let mut seeds: Vec<(String, Vec<u8>)> = [
        ("llama", r#""attention_bias":true,"mlp_bias":true"#),
        ("mistral", r#""sliding_window":5"#),
        ("qwen2", r#""use_sliding_window":true,"sliding_window":5,"max_window_layers":1"#),
        ("qwen3", &format!(r#"{two},"use_sliding_window":true,"sliding_window":4"#)),
        ("gemma", gelu),
        ("gemma2", &format!(r#"{gelu},{caps},"sliding_window":4"#)),
        ("gemma3_text", &format!("{gelu},{local}")),
        ("phi3", r#""partial_rotary_factor":0.5"#),
        ("smollm3", r#""no_rope_layers":[0],"no_rope_layer_interval":4"#),
        ("olmo2", r#""attention_bias":false"#),
        ("granite", multipliers),
        ("mixtral", r#""num_local_experts":3,"num_experts_per_tok":2,"sliding_window":null"#),
        ("qwen3_moe", &format!(r#"{moe},"decoder_sparse_step":2,"mlp_only_layers":[0],"num_hidden_layers":2"#)),
        ("olmoe", &format!(r#"{moe},"clip_qkv":3.0"#)),
    ]
    .into_iter()
    .map(|(name, more)| (name.to_owned(), with(name, more)))
    .collect();
    let factors = r#","short_factor":[1.0,2.0],"long_factor":[2.0,3.0]"#;
    for (kind, more) in [
        ("linear", String::new()),
        ("dynamic", original.to_owned()),
        (
            "yarn",
            format!(r#"{original},"beta_fast":32,"beta_slow":1,"mscale":1.0,"mscale_all_dim":1.0,"truncate":true"#),
        ),
        ("llama3", format!(r#"{original},"low_freq_factor":1.0,"high_freq_factor":4.0"#)),
        ("longrope", format!("{original}{factors}")),
    ] {
        let family = if kind == "longrope" { "phi3" } else { "llama" };
        seeds.push((format!("rope_{kind}"), with(family, &scaled(kind, &more))));
    }
    let generation = br#"{"bos_token_id":1,"eos_token_id":[2,3],"temperature":0.6}"#;
    seeds.push(("generation".into(), [CONFIG.as_bytes(), b"\0", generation].concat()));
    seeds
}
