//! What the families' configs say beyond Llama's: defaults, absent and null keys, both spellings, and what is refused.

use super::*;
use crate::checkpoint::{LayerConfig, Rope, RopeScaling};
use serde_json::{Value, json};

/// A config of a family: two layers, heads of 4, and `keys`.
fn parse(model_type: &str, keys: Value) -> Result<Config> {
    let mut config = json!({
        "model_type": model_type, "vocab_size": 5, "hidden_size": 16, "intermediate_size": 6, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 256,
    });
    for (key, value) in keys.as_object().unwrap() {
        match value.as_str() {
            Some("<absent>") => drop(config.as_object_mut().unwrap().remove(key)),
            _ => config[key] = value.clone(),
        }
    }
    Config::parse(&Document { name: "config.json".into(), bytes: config.to_string().into_bytes() }, None)
}

fn windows(model_type: &str, keys: Value) -> Vec<Option<usize>> {
    let config = parse(model_type, keys.clone()).unwrap_or_else(|e| panic!("{keys}: {e}"));
    config.layers.iter().map(|layer| layer.window).collect()
}

#[test]
fn windows_of_all_layers() {
    for (family, absent) in [("mistral", Some(4096)), ("phi3", None)] {
        assert_eq!(windows(family, json!({})), [absent; 2], "{family}");
        assert_eq!(windows(family, json!({"sliding_window": null})), [None; 2], "{family}");
        assert_eq!(windows(family, json!({"sliding_window": 8})), [Some(8); 2], "{family}");
        refused(parse(family, json!({"sliding_window": 0})), Status::Config, &["sliding_window", "0"]);
        refused(
            parse(family, json!({"layer_types": ["full_attention", "full_attention"]})),
            Status::Unsupported,
            &["layer_types"],
        );
    }
    let experts = json!({"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "sliding_window": 8,
        "use_sliding_window": true});
    assert_eq!(windows("qwen3_moe", experts), [Some(8); 2]);
    assert_eq!(windows("llama", json!({"sliding_window": 8})), [None; 2], "Llama has none");
}

#[test]
fn windows_from_a_layer_on() {
    for family in ["qwen2", "qwen3"] {
        let set = |more: Value| {
            let mut keys = json!({"use_sliding_window": true, "sliding_window": 8});
            keys.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            keys
        };
        let layer_types = json!({"layer_types": ["sliding_attention", "full_attention"]});
        assert_eq!(windows(family, json!({"sliding_window": 8, "max_window_layers": 0})), [None; 2]);
        assert_eq!(windows(family, set(json!({}))), [None; 2], "the first 28 layers have none");
        assert_eq!(windows(family, set(json!({"max_window_layers": 1}))), [None, Some(8)]);
        assert_eq!(windows(family, set(json!({"max_window_layers": 0, "sliding_window": null}))), [None; 2]);
        assert_eq!(
            windows(family, set(json!({"max_window_layers": 0, "sliding_window": "<absent>"}))),
            [Some(4096); 2]
        );
        assert_eq!(windows(family, set(layer_types.clone())), [Some(8), None]);
        refused(parse(family, layer_types), Status::Config, &["sliding_window", "in use", "nothing"]);
        for wrong in
            [json!(["full_attention"]), json!(["full_attention", "chunked_attention"]), json!("full_attention")]
        {
            refused(parse(family, json!({"layer_types": wrong})), Status::Config, &["layer_types"]);
        }
    }
}

#[test]
fn windows_of_all_but_every_nth_layer() {
    let six = json!({"num_hidden_layers": 6, "sliding_window": 8});
    let w = Some(8);
    assert_eq!(windows("gemma2", six.clone()), [w, None, w, None, w, None]);
    assert_eq!(windows("gemma3_text", six), [w, w, w, w, w, None]);
    assert_eq!(windows("gemma3_text", json!({"sliding_window_pattern": 2})), [Some(4096), None]);
    assert_eq!(windows("gemma2", json!({"sliding_window_pattern": 1})), [Some(4096), None], "not a key of Gemma 2");
    assert_eq!(windows("gemma2", json!({"layer_types": ["full_attention", "sliding_attention"]})), [None, Some(4096)]);
    refused(parse("gemma2", json!({"sliding_window": null})), Status::Config, &["sliding_window", "null"]);
}

#[test]
fn layers_without_rope() {
    let layers = |keys: Value| {
        let layers = parse("smollm3", keys).unwrap().layers;
        layers.into_iter().map(|layer| (layer.rotated, layer.window)).collect::<Vec<_>>()
    };
    let (with, without) = ((true, None), (false, None));
    assert_eq!(layers(json!({"num_hidden_layers": 5})), [with, with, with, without, with]);
    assert_eq!(layers(json!({"no_rope_layer_interval": 2})), [with, without]);
    assert_eq!(layers(json!({"no_rope_layers": [0, 1, 1]})), [without, with]);
    let window = json!({"no_rope_layers": [0, 1], "use_sliding_window": true, "sliding_window": 8});
    assert_eq!(layers(window), [(false, Some(8)), with]);
    for wrong in [json!([1]), json!([1, 2]), json!([true, false]), json!(1)] {
        refused(parse("smollm3", json!({"no_rope_layers": wrong})), Status::Config, &["no_rope_layers"]);
    }
    assert!(parse("smollm3", json!({})).unwrap().tie_word_embeddings);
}

#[test]
fn gemma_has_defaults_of_its_own() {
    let absent = json!({"head_dim": "<absent>", "num_key_value_heads": "<absent>"});
    let gemma2 = parse("gemma2", absent.clone()).unwrap();
    assert_eq!((gemma2.head_dim, gemma2.num_key_value_heads), (256, 4));
    assert_eq!((gemma2.attn_logit_softcapping, gemma2.final_logit_softcapping), (Some(50.0), Some(30.0)));
    assert_eq!((gemma2.query_pre_attn_scalar, gemma2.tie_word_embeddings), (Some(256.0), true));
    let off = json!({"attn_logit_softcapping": null, "final_logit_softcapping": null, "num_key_value_heads": null});
    let off = parse("gemma2", off).unwrap();
    assert_eq!((off.attn_logit_softcapping, off.final_logit_softcapping), (None, None));
    assert_eq!(off.num_key_value_heads, 4, "null: as many as heads");
    refused(parse("gemma2", json!({"final_logit_softcapping": 0})), Status::Config, &["final_logit_softcapping", "0"]);
    for (family, key) in [("gemma", "hidden_act"), ("gemma2", "hidden_activation")] {
        assert_eq!(parse(family, json!({})).unwrap().hidden_act, "gelu_pytorch_tanh");
        let gelu = parse(family, json!({key: "gelu"})).unwrap().hidden_act;
        assert_eq!(gelu, if family == "gemma" { "gelu_pytorch_tanh" } else { "gelu" });
    }
    let both_ways = parse("gemma3_text", json!({"use_bidirectional_attention": true}));
    refused(both_ways, Status::Unsupported, &["use_bidirectional_attention", "later tokens"]);
}

#[test]
fn layers_with_a_window_may_have_a_rope_of_their_own() {
    let rope = |theta, scaling| Rope { theta, rotary_dim: 4, scaling };
    let of = |keys: Value| {
        let config = parse("gemma3_text", keys).unwrap();
        (config.rope, config.rope_local.unwrap())
    };
    let linear = RopeScaling::Linear { factor: 8.0 };
    assert_eq!(of(json!({})), (rope(1e6, RopeScaling::None), rope(1e4, RopeScaling::None)));
    let v4 =
        json!({"rope_theta": 5000, "rope_local_base_freq": 100, "rope_scaling": {"rope_type": "linear", "factor": 8}});
    let v5 = json!({"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 5000},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100}}});
    assert_eq!(of(v4.clone()), (rope(5000.0, linear.clone()), rope(100.0, RopeScaling::None)));
    assert_eq!(of(v5.clone()), of(v4));
    let one = json!({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8}}});
    assert_eq!(of(one), (rope(1e6, linear), rope(1e4, RopeScaling::None)));
    let flat = json!({"rope_parameters": {"rope_type": "default", "rope_theta": 5000}});
    refused(parse("gemma3_text", flat), Status::Unsupported, &["rope_parameters.rope_", "full_attention"]);
    let mut both = v5.clone();
    both["rope_scaling"] = json!({"rope_type": "linear", "factor": 8});
    refused(parse("gemma3_text", both), Status::Unsupported, &["rope_scaling", "ambiguous"]);
    refused(parse("gemma2", v5), Status::Unsupported, &["rope_parameters.", "different layers"]);
}

#[test]
fn phi3_rotates_a_part_and_knows_longrope() {
    let config = parse("phi3", json!({"partial_rotary_factor": 0.5})).unwrap();
    assert_eq!((config.rope.rotary_dim, config.rope.scaling), (2, RopeScaling::None));
    refused(parse("phi3", json!({"partial_rotary_factor": 0.25})), Status::Config, &["partial_rotary_factor", "even"]);
    refused(parse("mistral", json!({"partial_rotary_factor": 0.5})), Status::Unsupported, &["partial_rotary_factor"]);

    let factors = |name: &str| json!({"type": name, "short_factor": [1.0, 1.5], "long_factor": [2, 4]});
    let expected = |original: usize, attention_factor: f64| RopeScaling::LongRope {
        short_factor: vec![1.0, 1.5],
        long_factor: vec![2.0, 4.0],
        original_max_position_embeddings: original,
        attention_factor,
    };
    let scaling = |keys: Value| parse("phi3", keys).unwrap().rope.scaling;
    for name in ["longrope", "su", "yarn"] {
        let keys = json!({"rope_scaling": factors(name), "original_max_position_embeddings": 64});
        assert_eq!(scaling(keys), expected(64, (1.0 + 4f64.ln() / 64f64.ln()).sqrt()), "{name}");
    }
    assert_eq!(scaling(json!({"rope_scaling": factors("longrope")})), expected(4096, 1.0), "Phi-3's trained length");
    let mut stated = factors("longrope");
    stated["attention_factor"] = json!(1.25);
    assert_eq!(scaling(json!({"rope_scaling": stated})), expected(4096, 1.25));
    let llama = parse("llama", json!({"rope_scaling": factors("longrope")})).unwrap();
    assert_eq!(llama.rope.scaling, expected(256, 1.0), "elsewhere it is max_position_embeddings");

    let cases: [(Value, Status, &[&str]); 4] = [
        (json!({"type": "linear", "factor": 2}), Status::Unsupported, &["rope_scaling.type", "linear", "longrope, su"]),
        (json!({"type": "longrope", "short_factor": [1, 1]}), Status::Config, &["long_factor", "2 numbers", "nothing"]),
        (json!({"type": "su", "short_factor": [1], "long_factor": [1, 1]}), Status::Config, &["short_factor", "[1]"]),
        (json!({"type": "su", "short_factor": [1, 0], "long_factor": [1, 1]}), Status::Config, &["short_factor"]),
    ];
    for (parameters, status, fragments) in cases {
        refused(parse("phi3", json!({"rope_scaling": parameters})), status, fragments);
    }
}

#[test]
fn experts_and_their_layers() {
    let keys = json!({"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 9, "num_hidden_layers": 4,
        "decoder_sparse_step": 2, "mlp_only_layers": [3], "norm_topk_prob": true});
    let config = parse("qwen3_moe", keys.clone()).unwrap();
    let experts = config.experts.unwrap();
    assert_eq!((experts.count, experts.per_token, experts.intermediate_size, experts.norm_topk_prob), (7, 3, 9, true));
    assert_eq!(config.layers.iter().map(|layer| layer.sparse).collect::<Vec<_>>(), [false, true, false, false]);
    let mut v5 = keys.clone();
    v5["num_local_experts"] = json!(7);
    v5["num_experts"] = json!(null);
    assert_eq!(parse("qwen3_moe", v5).unwrap().experts.unwrap().count, 7);
    let mixtral = parse("mixtral", json!({"num_local_experts": 8, "num_experts_per_tok": 2})).unwrap();
    assert_eq!((mixtral.experts.unwrap().intermediate_size, mixtral.rope.theta), (6, 1e6));
    assert_eq!(mixtral.layers[0], LayerConfig { window: None, rotated: true, sparse: true });
    let cases: [(&str, Value, &[&str]); 4] = [
        ("num_experts", json!(null), &["num_local_experts", "nothing"]),
        ("num_local_experts", json!(8), &["num_local_experts", "num_experts, 7", "8"]),
        ("num_experts_per_tok", json!(8), &["num_experts_per_tok", "from 1 to 7"]),
        ("moe_intermediate_size", json!(null), &["moe_intermediate_size"]),
    ];
    for (key, value, fragments) in cases {
        let mut keys = keys.clone();
        keys[key] = value;
        refused(parse("qwen3_moe", keys), Status::Config, fragments);
    }
    assert!(parse("llama", keys).unwrap().experts.is_none());
}

#[test]
fn head_widths_and_kv_heads_by_family() {
    let absent = json!({"head_dim": "<absent>", "num_key_value_heads": "<absent>", "num_attention_heads": 8});
    for (family, head_dim, kv) in [("mistral", 2, 8), ("qwen3", 128, 8), ("olmo2", 2, 8), ("smollm3", 2, 4)] {
        let mut keys = absent.clone();
        if family == "qwen3" {
            keys["num_key_value_heads"] = json!(null); // its default, 32, does not divide 8
        }
        let config = parse(family, keys).unwrap();
        assert_eq!((config.head_dim, config.num_key_value_heads), (head_dim, kv), "{family}");
    }
    refused(parse("qwen2", absent), Status::Config, &["num_key_value_heads", "divisor", "nothing"]);
}
