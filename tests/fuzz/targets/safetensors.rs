//! Weight files: loaded, described, run, quantized and saved.

use super::abi::Library;
use super::model::{self, CONFIG, Directory, file, try_out};
use rie::ffi::constants::*;
use serde_json::Value;

/// Longest data that is made up for a header.
const MAX_DATA: u64 = 1 << 16;
/// In every format of floats, four of it or two are a small number.
const DATA: u8 = 0x3c;

/// The input is a file; or, if it begins with `{`, a header, to which the length and as many data are added as it
/// speaks of.
pub fn run(data: &[u8]) {
    let whole = match data.first() {
        Some(b'{') => file(data, &vec![DATA; data_bytes(data)]),
        _ => data.to_vec(),
    };
    let directory = Directory::new(&[("config.json", CONFIG.as_bytes()), ("model.safetensors", &whole)]);
    let library = Library::new();
    let described = library.inspect(directory.path());
    if let Ok(text) = &described {
        serde_json::from_str::<Value>(text).expect("a description in JSON");
    }
    let path = directory.path().join("model.safetensors");
    let Ok(loaded) = library.load(&path, &[]) else { return };
    assert!(described.is_ok(), "a model that loads is described");
    let steps = try_out(&library, &loaded, &[]);
    for weights in [RIE_WEIGHTS_AS_IS, RIE_WEIGHTS_INT8, RIE_WEIGHTS_INT4] {
        let Ok(first) = library.load(directory.path(), &[(RIE_OPT_WEIGHTS, weights.into())]) else { continue };
        let expected = try_out(&library, &first, &[]);
        assert!(weights != RIE_WEIGHTS_AS_IS || expected == steps, "{expected:?}, not {steps:?}");
        let saved = directory.path().join(format!("saved-{weights}"));
        library.save(&first, &saved).expect("a saved model");
        let second = library.load(&saved, &[]).expect("a saved model loads");
        assert_eq!(try_out(&library, &second, &[]), expected, "weights {weights}");
        let facts = [RIE_INFO_PARAMETERS, RIE_INFO_WEIGHT_BYTES, RIE_INFO_WEIGHTS];
        assert_eq!(facts.map(|key| library.int(first.0, key)), facts.map(|key| library.int(second.0, key)));
    }
}

/// The greatest end of a tensor that `header` states.
fn data_bytes(header: &[u8]) -> usize {
    let Ok(Value::Object(entries)) = serde_json::from_slice(header) else { return 0 };
    let end = |entry: &Value| entry.get("data_offsets")?.get(1)?.as_u64();
    entries.values().filter_map(end).max().unwrap_or(0).min(MAX_DATA) as usize
}

/// Inputs to begin with.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let float = model::header(&model::tensors());
    let mut seeds = vec![
        ("f32".into(), float.clone().into_bytes()),
        ("all".into(), model::header(&model::tensors_of_all_families(true)).into_bytes()),
        ("metadata".into(), float.replacen('{', r#"{"__metadata__":{"format":"pt"},"#, 1).into_bytes()),
        ("bf16".into(), float.replace("F32", "BF16").into_bytes()),
        ("empty".into(), b"{}".to_vec()),
        ("lfs".into(), b"version https://git-lfs.github.com/spec/v1".to_vec()),
        ("file".into(), file(br#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#, b"abc")),
    ];
    let directory = Directory::new(&[
        ("config.json", CONFIG.as_bytes()),
        ("model.safetensors", &model::weights(&model::tensors())),
    ]);
    let library = Library::new();
    for (name, weights) in [("int8", RIE_WEIGHTS_INT8), ("int4", RIE_WEIGHTS_INT4)] {
        let model = library.load(directory.path(), &[(RIE_OPT_WEIGHTS, weights.into())]).expect("a model");
        let saved = directory.path().join(name);
        library.save(&model, &saved).expect("a saved model");
        let whole = std::fs::read(saved.join("model.safetensors")).expect("its weights");
        let (length, rest) = whole.split_first_chunk().expect("a length");
        seeds.push((name.into(), rest[..u64::from_le_bytes(*length) as usize].to_vec()));
    }
    seeds
}
