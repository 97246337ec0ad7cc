//! `model.safetensors.index.json`, beside two shards.

use super::abi::Library;
use super::model::{CONFIG, Directory, header, tensors, try_out, weights};
use serde_json::json;
use std::sync::LazyLock;

const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
/// How many tensors are in the first.
const IN_FIRST: usize = 4;

/// The input is the index.
pub fn run(data: &[u8]) {
    static FILES: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
        let tensors = tensors();
        let (first, second) = tensors.split_at(IN_FIRST);
        [weights(first), weights(second)]
    });
    let directory = Directory::new(&[
        ("config.json", CONFIG.as_bytes()),
        ("model.safetensors.index.json", data),
        (SHARDS[0], &FILES[0]),
        (SHARDS[1], &FILES[1]),
    ]);
    let library = Library::new();
    let described = library.inspect(directory.path());
    let Ok(model) = library.load(directory.path(), &[]) else { return };
    assert!(described.is_ok(), "a model that loads is described");
    try_out(&library, &model, &[]);
}

/// Inputs to begin with.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let shard = |i: usize| SHARDS[usize::from(i >= IN_FIRST)];
    let map: serde_json::Map<_, _> =
        tensors().into_iter().enumerate().map(|(i, (name, _))| (name, json!(shard(i)))).collect();
    let with = |map: &serde_json::Map<_, _>| json!({"metadata": {"total_size": 12}, "weight_map": map}).to_string();
    let other = |name: &str| with(&map).replace(SHARDS[0], name).into_bytes();
    vec![
        ("whole".into(), with(&map).into_bytes()),
        ("header".into(), header(&tensors()).into_bytes()),
        ("empty".into(), br#"{"weight_map":{}}"#.to_vec()),
        ("above".into(), other("../model.safetensors")),
        ("absolute".into(), other("/etc/passwd")),
        ("missing".into(), other("model.safetensors")),
        ("itself".into(), other("model.safetensors.index.json")),
    ]
}
