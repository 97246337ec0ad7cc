//! A model's description as JSON, from headers alone.

use super::catalog::Catalog;
use super::json::parse_object;
use super::{Config, Document, Rope, RopeScaling, Source};
use crate::err;
use crate::error::{Error, Result, Status};
use crate::memory;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Describes the model of `source` as JSON: architecture, parameters, bytes per dtype, and each tensor's name, dtype,
/// shape and file. Reads headers only; no weight is mapped or read.
///
/// A well-formed config that this library cannot run (an unknown architecture, a missing key) is described as it
/// stands, and `config_error` says why it would not load.
pub fn inspect(source: &Source) -> Result<String> {
    let mut report = Report {
        path: &source.name,
        has_tokenizer: source.tokenizer.is_some(),
        ..describe_config(&source.config, source.generation_config.as_ref())?
    };
    let packed = !report.config.get("quantization").is_none_or(Value::is_null);
    let catalog = Catalog::read(source, |_, _| Ok(()))?;
    memory::expect_room(catalog.entries.len() * 1024, &source.name)?; // a description and its JSON, for each tensor
    report.add(&catalog, packed);
    serde_json::to_string(&report)
        .map_err(|e| err!(Internal, "{}: the description cannot be written: {e}", source.name))
}

#[derive(Default, Serialize)]
struct Report<'a> {
    path: &'a str,
    architecture: String,
    model_type: String,
    parameters: u64,
    bytes: u64,
    dtypes: BTreeMap<String, Totals>,
    config: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config_error: Option<String>,
    has_tokenizer: bool,
    files: Vec<FileReport>,
    tensors: Vec<TensorReport>,
}

#[derive(Default, Serialize)]
struct Totals {
    tensors: u64,
    parameters: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct FileReport {
    name: String,
    bytes: u64,
}

#[derive(Serialize)]
struct TensorReport {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    bytes: u64,
    file: String,
}

impl Report<'_> {
    /// Adds files, tensors and their sums; `packed` as for [`Entry::weights`](super::catalog::Entry::weights).
    fn add(&mut self, catalog: &Catalog, packed: bool) {
        for file in &catalog.files {
            self.files.push(FileReport { name: file.file_name.clone(), bytes: file.length });
        }
        for entry in &catalog.entries {
            let (parameters, bytes) = (entry.weights(packed) as u64, entry.extent.len() as u64);
            self.parameters += parameters;
            self.bytes += bytes;
            let dtype = entry.type_name();
            let totals = self.dtypes.entry(dtype.clone()).or_default();
            totals.tensors += 1;
            totals.parameters += parameters;
            totals.bytes += bytes;
            let (name, shape) = (entry.name.to_string(), entry.dims().to_vec());
            let file = catalog.files[entry.file].file_name.clone();
            self.tensors.push(TensorReport { name, dtype, shape, bytes, file });
        }
    }
}

/// The part of the report that comes from the config.
fn describe_config<'a>(config: &Document, generation: Option<&Document>) -> Result<Report<'a>> {
    let raw = parse_object(config)?;
    let (resolved, config_error) = match Config::parse(config, generation) {
        Ok(parsed) => (resolved(&parsed), None),
        Err(Error { status: Status::Config | Status::Unsupported, message }) => (stated(&raw), Some(message)),
        Err(other) => return Err(other),
    };
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(Report {
        architecture: text(raw.get("architectures").and_then(|list| list.get(0))),
        model_type: text(raw.get("model_type")),
        config: resolved,
        config_error,
        ..Report::default()
    })
}

/// The keys of a config that could not be resolved which say something about its size.
fn stated(raw: &Map<String, Value>) -> Map<String, Value> {
    const KEYS: [&str; 10] = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "hidden_act",
        "tie_word_embeddings",
    ];
    let scalar = |value: &&Value| !value.is_object() && !value.is_array();
    let keys = KEYS.into_iter();
    keys.filter_map(|key| Some((key.to_owned(), raw.get(key).filter(scalar)?.clone()))).collect()
}

/// A config with its defaults filled in.
fn resolved(config: &Config) -> Map<String, Value> {
    let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
    let windows = windows.iter().any(Option::is_some).then_some(windows);
    let value = json!({
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        // Through the shortest decimal that gives the same f32: 1e-5, not 9.999999747378752e-6.
        "rms_norm_eps": config.rms_norm_eps.to_string().parse::<f64>().unwrap_or_default(),
        "hidden_act": config.hidden_act,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "rope": rope(&config.rope),
        "rope_local": config.rope_local.as_ref().map(rope),
        "windows": windows,
        "num_experts": config.experts.as_ref().map(|experts| experts.count),
        "num_experts_per_tok": config.experts.as_ref().map(|experts| experts.per_token),
        "quantization": config.quantization.as_ref().map(|quantization| json!({
            "method": quantization.method.name(), "bits": 4, "group_size": quantization.group_size,
            "desc_act": quantization.desc_act,
        })),
        "bos_token_id": config.bos_token_id,
        "eos_token_ids": config.eos_token_ids,
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn rope(rope: &Rope) -> Value {
    let theta = rope.theta;
    match &rope.scaling {
        RopeScaling::None => json!({ "type": "default", "theta": theta }),
        RopeScaling::Linear { factor } => json!({ "type": "linear", "theta": theta, "factor": factor }),
        RopeScaling::Dynamic { factor, original_max_position_embeddings } => json!({
            "type": "dynamic", "theta": theta, "factor": factor,
            "original_max_position_embeddings": original_max_position_embeddings,
        }),
        RopeScaling::Yarn {
            factor,
            original_max_position_embeddings,
            beta_fast,
            beta_slow,
            attention_factor,
            truncate,
        } => json!({
            "type": "yarn", "theta": theta, "factor": factor,
            "original_max_position_embeddings": original_max_position_embeddings,
            "beta_fast": beta_fast, "beta_slow": beta_slow,
            "attention_factor": attention_factor, "truncate": truncate,
        }),
        RopeScaling::LongRope { short_factor, long_factor, original_max_position_embeddings, attention_factor } => {
            json!({
                "type": "longrope", "theta": theta, "rotary_dim": rope.rotary_dim,
                "short_factor": short_factor, "long_factor": long_factor,
                "original_max_position_embeddings": original_max_position_embeddings,
                "attention_factor": attention_factor,
            })
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => json!({
            "type": "llama3", "theta": theta, "factor": factor,
            "low_freq_factor": low_freq_factor, "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_position_embeddings,
        }),
    }
}
