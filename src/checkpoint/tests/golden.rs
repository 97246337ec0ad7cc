//! The golden fixtures (`tests/golden/cases`), which transformers wrote.

use super::*;

/// The cases; none where the crate was packaged without them.
fn cases() -> Vec<PathBuf> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    if !golden.exists() {
        return Vec::new();
    }
    let entries = std::fs::read_dir(golden.join("cases")).unwrap().map(|entry| entry.unwrap().path());
    let cases: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    assert!(!cases.is_empty(), "{} is empty", golden.display());
    cases
}

#[test]
fn every_case_has_the_tensors_of_its_config() {
    for case in cases() {
        let name = case.to_str().unwrap();
        let source = Source::open(name, &SourcePaths::default()).unwrap();
        let c = Config::parse(&source.config, source.generation_config.as_ref()).unwrap();
        let checkpoint = Checkpoint::map(&source).unwrap();
        let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        for layer in 0..c.num_hidden_layers {
            let shapes = [
                ("self_attn.q_proj", [q, c.hidden_size], c.attention_bias),
                ("self_attn.k_proj", [kv, c.hidden_size], c.attention_bias),
                ("self_attn.v_proj", [kv, c.hidden_size], c.attention_bias),
                ("self_attn.o_proj", [c.hidden_size, q], c.attention_bias),
                ("mlp.gate_proj", [c.intermediate_size, c.hidden_size], c.mlp_bias),
                ("mlp.up_proj", [c.intermediate_size, c.hidden_size], c.mlp_bias),
                ("mlp.down_proj", [c.hidden_size, c.intermediate_size], c.mlp_bias),
            ];
            for (part, shape, bias) in shapes {
                let tensor = checkpoint.tensor(&format!("model.layers.{layer}.{part}.weight"), &shape).unwrap();
                assert!(tensor.view().to_f32().iter().all(|v| v.is_finite()), "{name}");
                let bias_name = format!("model.layers.{layer}.{part}.bias");
                assert_eq!(checkpoint.contains(&bias_name), bias, "{name} {bias_name}");
            }
        }
        checkpoint.tensor("model.norm.weight", &[c.hidden_size]).unwrap();
        let json = super::super::inspect(name, &SourcePaths::default()).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let (parameters, bytes) = checkpoint.totals();
        assert_eq!((json["parameters"].as_u64(), json["bytes"].as_u64()), (Some(parameters), Some(bytes)), "{name}");
    }
}

#[test]
fn the_spellings_of_transformers_4_and_5_mean_the_same() {
    let mut pairs = 0;
    for case in cases() {
        let read = |file: &str| {
            let bytes = std::fs::read(case.join(file)).ok()?;
            Config::parse(&Document { name: case.join(file).display().to_string(), bytes }, None).map(Some).unwrap()
        };
        if let Some(v5) = read("config_v5.json") {
            assert_eq!(read("config.json").unwrap(), v5);
            pairs += 1;
        }
    }
    assert!(pairs >= 5 || cases().is_empty(), "{pairs} pairs");
}
