//! Configs: both spellings, defaults, and what is refused.

use super::*;
use crate::checkpoint::{LayerConfig, Method, Quantization, Rope, RopeScaling};
use serde_json::{Value, json};

fn document(name: &str, text: impl Into<Vec<u8>>) -> Document {
    Document { name: name.to_owned(), bytes: text.into() }
}

fn parse_text(text: &str) -> Result<Config> {
    Config::parse(&document("config.json", text), None)
}

/// The small config with changes; a change to `"<absent>"` removes the key.
fn changed(changes: &[(&str, Value)]) -> String {
    let mut config: Value = serde_json::from_str(CONFIG).unwrap();
    config["max_position_embeddings"] = json!(256);
    for (key, value) in changes {
        match value.as_str() {
            Some("<absent>") => drop(config.as_object_mut().unwrap().remove(*key)),
            _ => config[*key] = value.clone(),
        }
    }
    config.to_string()
}

fn parse(changes: &[(&str, Value)]) -> Result<Config> {
    parse_text(&changed(changes))
}

#[test]
fn absent_keys_have_the_defaults_of_transformers() {
    let expected = Config {
        model_type: "llama".into(),
        architecture: String::new(),
        vocab_size: 5,
        hidden_size: 4,
        intermediate_size: 6,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        num_key_value_heads: 2,
        head_dim: 2,
        rms_norm_eps: 1e-6,
        hidden_act: "silu".into(),
        max_position_embeddings: 2048,
        tie_word_embeddings: false,
        attention_bias: false,
        mlp_bias: false,
        rope: Rope { theta: 10000.0, rotary_dim: 2, scaling: RopeScaling::None },
        rope_local: None,
        layers: vec![LayerConfig { window: None, rotated: true, sparse: false }],
        experts: None,
        query_pre_attn_scalar: None,
        attn_logit_softcapping: None,
        final_logit_softcapping: None,
        embedding_multiplier: None,
        attention_multiplier: None,
        residual_multiplier: None,
        logits_scaling: None,
        clip_qkv: None,
        quantization: None,
        bos_token_id: None,
        eos_token_ids: vec![],
    };
    assert_eq!(parse_text(CONFIG).unwrap(), expected);
    let nulls = [
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "hidden_act",
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "partial_rotary_factor",
        "bos_token_id",
        "eos_token_id",
        "architectures",
        "quantization_config",
        "text_config",
    ];
    let nulls: Vec<_> = nulls.into_iter().map(|key| (key, Value::Null)).collect();
    assert_eq!(parse(&nulls).unwrap(), Config { max_position_embeddings: 256, ..expected });
}

#[test]
fn stated_keys_are_taken() {
    let config = parse(&[
        ("architectures", json!(["LlamaForCausalLM", "Other"])),
        ("num_attention_heads", json!(9)),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(64)),
        ("rms_norm_eps", json!(1e-5)),
        ("hidden_act", json!("gelu")),
        ("tie_word_embeddings", json!(true)),
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("rope_theta", json!(500000)),
        ("bos_token_id", json!(0)),
        ("eos_token_id", json!([4, 2, 4])),
        ("torch_dtype", json!("bfloat16")),
        ("unknown_key", json!({"a": [1]})),
    ])
    .unwrap();
    assert_eq!(config.architecture, "LlamaForCausalLM");
    assert_eq!((config.num_attention_heads, config.num_key_value_heads, config.head_dim), (9, 3, 64));
    assert_eq!((config.rms_norm_eps, config.hidden_act.as_str(), config.rope.theta), (1e-5, "gelu", 500000.0));
    assert!(config.tie_word_embeddings && config.attention_bias && config.mlp_bias);
    assert_eq!((config.bos_token_id, config.eos_token_ids), (Some(0), vec![4, 2]));
}

#[test]
fn the_generation_config_wins_key_by_key() {
    let config = changed(&[("bos_token_id", json!(1)), ("eos_token_id", json!(2))]);
    let with = |generation: &str| {
        Config::parse(&document("config.json", &config[..]), Some(&document("generation_config.json", generation)))
    };
    let ids = |generation: &str| with(generation).map(|c| (c.bos_token_id, c.eos_token_ids)).unwrap();
    assert_eq!(ids("{}"), (Some(1), vec![2]));
    assert_eq!(ids(r#"{"eos_token_id": [3, 4]}"#), (Some(1), vec![3, 4]));
    assert_eq!(ids(r#"{"bos_token_id": 0, "eos_token_id": null}"#), (Some(0), vec![]));
    refused(
        with(r#"{"eos_token_id": [3, 5]}"#),
        Status::Config,
        &["generation_config.json: eos_token_id", "5", "[3, 5]"],
    );
    refused(with("[]"), Status::Format, &["generation_config.json", "object"]);
    refused(with(""), Status::Format, &["generation_config.json", "line 1"]);
}

#[test]
fn rope_is_read_as_transformers_reads_it() {
    let yarn = |factor, original, attention_factor| RopeScaling::Yarn {
        factor,
        original_max_position_embeddings: original,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor,
        truncate: true,
    };
    let llama3 = |original| RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: original,
    };
    let dynamic = RopeScaling::Dynamic { factor: 2.0, original_max_position_embeddings: 256 };
    // The attention factors are Python's, to the last digit.
    let cases = [
        (json!({}), RopeScaling::None),
        (json!({"type": "default"}), RopeScaling::None),
        (json!({"rope_type": null, "type": "linear", "factor": 4}), RopeScaling::Linear { factor: 4.0 }),
        (json!({"rope_type": "linear", "type": "yarn", "factor": 2.5}), RopeScaling::Linear { factor: 2.5 }),
        (json!({"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}), dynamic),
        (
            json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
            yarn(4.0, 32, 1.138629436111989),
        ),
        (json!({"type": "yarn", "factor": 1.0}), yarn(1.0, 256, 1.0)),
        (
            json!({"type": "yarn", "factor": null, "original_max_position_embeddings": 64}),
            yarn(4.0, 64, 1.138629436111989),
        ),
        (json!({"type": "yarn", "factor": 4.0, "attention_factor": 0.5}), yarn(4.0, 256, 0.5)),
        (
            json!({"type": "yarn", "factor": 8.0, "mscale": 1.5, "mscale_all_dim": 0.5}),
            yarn(8.0, 256, 1.188359976202698),
        ),
        (json!({"type": "yarn", "factor": 4.0, "mscale": 0.7}), yarn(4.0, 256, 1.138629436111989)),
        (json!({"type": "yarn", "factor": 4.0, "mscale": 0, "mscale_all_dim": 2}), yarn(4.0, 256, 1.138629436111989)),
        (json!({"type": "yarn", "factor": 4.0, "beta_fast": 0, "beta_slow": null}), yarn(4.0, 256, 1.138629436111989)),
        (json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}), llama3(256)),
        (
            json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                "original_max_position_embeddings": 32}),
            llama3(32),
        ),
    ];
    for (parameters, scaling) in cases {
        let expected = Rope { theta: 500.0, rotary_dim: 4, scaling };
        let wide = ("head_dim", json!(4));
        let v4 = parse(&[wide.clone(), ("rope_theta", json!(500.0)), ("rope_scaling", parameters.clone())]).unwrap();
        assert_eq!(v4.rope, expected, "{parameters}");
        let mut inside = parameters.clone();
        inside["rope_theta"] = json!(500.0);
        let v5 = parse(&[wide.clone(), ("rope_parameters", inside.clone())]).unwrap();
        assert_eq!(v4, v5, "{parameters}");
        // The base among the parameters wins over the one beside them.
        let both = parse(&[wide, ("rope_parameters", inside), ("rope_theta", json!(7.0))]).unwrap();
        assert_eq!(v4, both, "{parameters}");
    }
    let beside = parse(&[
        ("original_max_position_embeddings", json!(16)),
        ("rope_scaling", json!({"type": "yarn", "original_max_position_embeddings": 64})),
    ]);
    assert_eq!(beside.unwrap().rope.scaling, yarn(16.0, 16, 1.2772588722239782));
    for (truncate, expected) in [(json!(false), false), (json!(null), false), (json!(true), true)] {
        let config = parse(&[("rope_scaling", json!({"type": "yarn", "factor": 2, "truncate": truncate}))]).unwrap();
        assert!(matches!(config.rope.scaling, RopeScaling::Yarn { truncate, .. } if truncate == expected));
    }
}

#[test]
fn impossible_configs_are_refused_by_key() {
    let absent = || json!("<absent>");
    let cases: Vec<(&str, Value, &[&str])> = vec![
        ("model_type", absent(), &["model_type", "string", "nothing"]),
        ("model_type", json!(3), &["model_type", "string", "3"]),
        ("architectures", json!("Llama"), &["architectures", "list"]),
        ("architectures", json!([1]), &["architectures", "list", "[1]"]),
        ("vocab_size", absent(), &["vocab_size", "from 1 to 16777216", "nothing"]),
        ("vocab_size", json!(null), &["vocab_size", "null"]),
        ("vocab_size", json!(0), &["vocab_size", "found 0"]),
        ("vocab_size", json!(-5), &["vocab_size", "-5"]),
        ("vocab_size", json!("5"), &["vocab_size", "\"5\""]),
        ("vocab_size", json!(5.5), &["vocab_size", "5.5"]),
        ("vocab_size", json!(u64::MAX), &["vocab_size", "18446744073709551615"]),
        ("hidden_size", absent(), &["hidden_size", "nothing"]),
        ("hidden_size", json!(0), &["hidden_size"]),
        ("hidden_size", json!(5), &["hidden_size", "multiple of num_attention_heads, 2", "5"]),
        ("hidden_size", json!(6), &["hidden_size", "even", "3"]),
        ("hidden_size", json!(1 << 25), &["hidden_size", "16777216"]),
        ("hidden_size", json!([4]), &["hidden_size", "[4]"]),
        ("hidden_size", json!({"a": 4}), &["hidden_size", "object of 1 keys"]),
        ("intermediate_size", absent(), &["intermediate_size"]),
        ("intermediate_size", json!(true), &["intermediate_size", "true"]),
        ("num_hidden_layers", absent(), &["num_hidden_layers"]),
        ("num_hidden_layers", json!(0), &["num_hidden_layers"]),
        ("num_hidden_layers", json!(1_000_000), &["num_hidden_layers", "65536"]),
        ("num_attention_heads", absent(), &["num_attention_heads"]),
        ("num_attention_heads", json!(0), &["num_attention_heads", "found 0"]),
        ("num_key_value_heads", json!(0), &["num_key_value_heads"]),
        ("num_key_value_heads", json!(3), &["num_key_value_heads", "divisor", "found 3"]),
        ("num_key_value_heads", json!(4), &["num_key_value_heads"]),
        ("head_dim", json!(0), &["head_dim", "found 0"]),
        ("head_dim", json!(3), &["head_dim", "even"]),
        ("head_dim", json!(1 << 20), &["head_dim"]),
        ("rms_norm_eps", json!(-1e-5), &["rms_norm_eps"]),
        ("rms_norm_eps", json!(1e300), &["rms_norm_eps", "f32"]),
        ("rms_norm_eps", json!("1e-5"), &["rms_norm_eps"]),
        ("hidden_act", json!(1), &["hidden_act", "string"]),
        ("max_position_embeddings", json!(0), &["max_position_embeddings"]),
        ("max_position_embeddings", json!(1u64 << 31), &["max_position_embeddings", "2147483647"]),
        ("tie_word_embeddings", json!(1), &["tie_word_embeddings", "true or false"]),
        ("attention_bias", json!("false"), &["attention_bias"]),
        ("mlp_bias", json!([]), &["mlp_bias", "[]"]),
        ("rope_theta", json!(0), &["rope_theta"]),
        ("rope_theta", json!(-10000.0), &["rope_theta"]),
        ("rope_theta", json!("x"), &["rope_theta"]),
        ("rope_scaling", json!("linear"), &["rope_scaling", "object"]),
        ("partial_rotary_factor", json!(2), &["partial_rotary_factor"]),
        ("bos_token_id", json!(5), &["bos_token_id", "vocab_size, 5"]),
        ("bos_token_id", json!(-1), &["bos_token_id"]),
        ("bos_token_id", json!([1]), &["bos_token_id"]),
        ("eos_token_id", json!(5), &["eos_token_id", "5"]),
        ("eos_token_id", json!([1, -1]), &["eos_token_id", "[1, -1]"]),
        ("eos_token_id", json!(1.5), &["eos_token_id"]),
        ("eos_token_id", json!("2"), &["eos_token_id"]),
        ("quantization_config", json!(true), &["quantization_config"]),
    ];
    for (key, value, fragments) in cases {
        refused(parse(&[(key, value)]), Status::Config, &[&["config.json: "], fragments].concat());
    }
    // Head counts and widths that are fine one by one.
    let wide = [("num_attention_heads", json!(65536)), ("head_dim", json!(65536))];
    refused(parse(&wide), Status::Config, &["head_dim", "65536 of 65536"]);
}

#[test]
fn impossible_rope_parameters_are_refused_by_key() {
    let cases: Vec<(Value, Status, &[&str])> = vec![
        (json!({"type": "linear"}), Status::Config, &["rope_scaling.factor", "nothing"]),
        (json!({"type": "linear", "factor": 0.5}), Status::Config, &["rope_scaling.factor", "0.5"]),
        (json!({"type": "linear", "factor": "4"}), Status::Config, &["rope_scaling.factor", "\"4\""]),
        (json!({"type": "linear", "factor": [4]}), Status::Config, &["rope_scaling.factor"]),
        (json!({"type": 4}), Status::Config, &["rope_scaling.type", "string"]),
        (json!({"type": "dynamic", "factor": 2}), Status::Config, &["head_dim"]),
        (json!({"type": "yarn"}), Status::Config, &["rope_scaling.factor", "original_max_position_embeddings"]),
        (json!({"type": "yarn", "factor": 0}), Status::Config, &["rope_scaling.factor"]),
        (json!({"type": "yarn", "original_max_position_embeddings": 0}), Status::Config, &["original_max"]),
        (json!({"type": "yarn", "original_max_position_embeddings": 512}), Status::Config, &["original_max", "256"]),
        (json!({"type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2}), Status::Config, &["beta_fast"]),
        (json!({"type": "yarn", "factor": 2, "beta_slow": -1}), Status::Config, &["beta_slow"]),
        (json!({"type": "yarn", "factor": 2, "attention_factor": 0}), Status::Config, &["attention_factor"]),
        (json!({"type": "yarn", "factor": 2, "mscale": "a"}), Status::Config, &["mscale"]),
        (json!({"type": "yarn", "factor": 2, "truncate": 1}), Status::Config, &["truncate"]),
        (json!({"type": "yarn", "factor": 2, "rope_theta": 1}), Status::Config, &["rope_theta"]),
        (json!({"type": "llama3", "factor": 8}), Status::Config, &["low_freq_factor"]),
        (
            json!({"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}),
            Status::Config,
            &["high_freq_factor", "more than low_freq_factor, 4"],
        ),
        (
            json!({"type": "llama3", "factor": 8, "low_freq_factor": 0, "high_freq_factor": 4}),
            Status::Config,
            &["low_freq_factor"],
        ),
        (
            json!({"rope_type": "proportional"}),
            Status::Unsupported,
            &["rope_scaling.rope_type", "proportional", "longrope, llama3"],
        ),
        (json!({"type": "mrope"}), Status::Unsupported, &["rope_scaling.type", "mrope", "default, linear"]),
        (json!({"full_attention": {"rope_type": "default"}}), Status::Unsupported, &["rope_scaling", "full_attention"]),
        (json!({"partial_rotary_factor": 0.5}), Status::Unsupported, &["rope_scaling.partial_rotary_factor", "0.5"]),
    ];
    for (parameters, status, fragments) in cases {
        refused(parse(&[("rope_scaling", parameters)]), status, fragments);
    }
    refused(
        parse(&[("rope_parameters", json!({"rope_type": "what"}))]),
        Status::Unsupported,
        &["rope_parameters.rope_type", "what"],
    );
}

#[test]
fn other_layouts_are_unsupported() {
    let fp8 = json!({"quant_method": "fp8", "bits": 8});
    refused(parse(&[("quantization_config", fp8)]), Status::Unsupported, &["quantization_config", "fp8", "\"awq\""]);
    let nested = parse_text(r#"{"model_type": "llava", "text_config": {"hidden_size": 4}}"#);
    refused(nested, Status::Unsupported, &["text_config", "nested"]);
    refused(parse(&[("partial_rotary_factor", json!(0.25))]), Status::Unsupported, &["partial_rotary_factor", "0.25"]);
}

#[test]
fn weights_quantized_by_others_are_described() {
    let read = |config: serde_json::Value| parse(&[("quantization_config", config)]).unwrap().quantization.unwrap();
    let gptq = |zeros_less_one| Method::Gptq { zeros_less_one };
    let plain = read(json!({"quant_method": "gptq", "bits": 4}));
    assert_eq!(plain, Quantization { method: gptq(true), group_size: Some(128), desc_act: false });
    let v2 = json!({"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": true, "checkpoint_format": "GPTQ_v2",
        "format": "gptq", "pack_dtype": "int32", "dynamic": {"-:.*down.*": {}}, "lm_head": true});
    assert_eq!(read(v2), Quantization { method: gptq(false), group_size: None, desc_act: true });
    let format = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "format": "gptq_v2"});
    assert_eq!(read(format).method, gptq(false));
    let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "GEMM", "backend": "autoawq",
        "zero_point": true, "modules_to_not_convert": ["lm_head"]});
    assert_eq!(read(awq), Quantization { method: Method::Awq, group_size: Some(64), desc_act: false });
}

#[test]
fn what_is_not_json_is_refused_with_its_place() {
    let deep = "[".repeat(100_000);
    for text in ["", "{", "nul", "{\"a\": 1,}", "{\"a\": NaN}", "{\"a\": 1e999}", "{} {}", "\u{feff}{}", &deep] {
        refused(parse_text(text), Status::Format, &["config.json: expected JSON", "line 1"]);
    }
    refused(parse_text("[1]"), Status::Format, &["config.json", "object", "[1]"]);
    let binary = document("config.json", [b'{', b'"', 0xff, b'"', b':', b'1', b'}']);
    refused(Config::parse(&binary, None), Status::Format, &["config.json", "line 1"]);
}

#[test]
fn every_damaged_byte_of_a_config_is_an_answer() {
    let yarn = json!({"type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1.0, "truncate": true});
    let config = changed(&[("rope_scaling", yarn), ("eos_token_id", json!([1, 2])), ("head_dim", json!(4))]);
    parse_text(&config).unwrap();
    for at in 0..config.len() {
        for new in (0..8).map(|bit| config.as_bytes()[at] ^ 1 << bit).chain(*b"09-.e\"{}[],: ") {
            let mut bytes = config.clone().into_bytes();
            bytes[at] = new;
            if let Err(e) = Config::parse(&document("config.json", bytes), None) {
                assert!(matches!(e.status, Status::Format | Status::Config | Status::Unsupported), "{e}");
                assert!(e.message.starts_with("config.json: "), "{e}");
            }
        }
        refused(parse_text(&config[..at]), Status::Format, &["config.json"]);
    }
}
