//! Where a model's files are: a directory, or one `.safetensors` file with its companions.

use crate::error::Result;
use std::path::PathBuf;

/// A small file read whole, with the name that messages use.
#[derive(Clone, Debug)]
pub struct Document {
    /// The path as given to the library.
    pub name: String,
    /// The contents.
    pub bytes: Vec<u8>,
}

/// Paths that replace the ones beside the weights.
#[derive(Clone, Debug, Default)]
pub struct SourcePaths {
    /// `config.json`.
    pub config: Option<String>,
    /// `tokenizer.json`.
    pub tokenizer: Option<String>,
}

/// The files of one model.
#[derive(Clone, Debug)]
pub struct Source {
    /// The path that was opened.
    pub name: String,
    /// `config.json`.
    pub config: Document,
    /// `generation_config.json`, if there is one.
    pub generation_config: Option<Document>,
    /// `tokenizer.json`, if there is one.
    pub tokenizer: Option<Document>,
    /// `model.safetensors.index.json`, if the weights are sharded.
    pub index: Option<Document>,
    /// The weight files: one, or each shard that the index names.
    pub weights: Vec<PathBuf>,
}

impl Source {
    /// Finds and reads the small files of the model at `path`, a directory or a `.safetensors` file.
    pub fn open(path: &str, paths: &SourcePaths) -> Result<Source> {
        todo!("{path} {paths:?}")
    }
}
