//! A loaded model: weights, tokenizer and the forward pass.

mod profile;

pub use profile::Profile;

use crate::checkpoint::Config;
use crate::error::Result;
use crate::text::Tokenizer;
use std::sync::Arc;

/// Called during a load with (done, total) bytes; returning `true` cancels.
pub type ProgressFn<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// How a model is loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Threads of the team; 0 = physical cores this process may use.
    pub threads: usize,
    /// Instruction set by name ("scalar", "avx2"); `None` = the best this CPU has.
    pub isa: Option<&'static str>,
    /// `config.json` in another place.
    pub config: Option<String>,
    /// `tokenizer.json` in another place.
    pub tokenizer: Option<String>,
}

/// A model ready to run. Shared freely between threads; steps of sessions take turns.
#[derive(Debug)]
pub struct Model {}

impl Model {
    /// Loads the model at `path` (a directory or a `.safetensors` file).
    pub fn load(path: &str, options: &LoadOptions, progress: Option<ProgressFn<'_>>) -> Result<Model> {
        todo!("{path} {options:?} {}", progress.is_some())
    }
    /// The checkpoint's configuration.
    pub fn config(&self) -> &Config {
        todo!()
    }
    /// The tokenizer; an error says that the directory has none.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        todo!()
    }
    /// Number of weights (elements of all tensors used).
    pub fn parameters(&self) -> u64 {
        todo!()
    }
    /// Bytes of all weights used.
    pub fn weight_bytes(&self) -> u64 {
        todo!()
    }
    /// Threads of the team.
    pub fn threads(&self) -> usize {
        todo!()
    }
    /// Name of the instruction set in use ("scalar", "avx2").
    pub fn isa(&self) -> &'static str {
        todo!()
    }
}
