//! Model directories as Hugging Face lays them out: where the files are, what the tensors and the config say.

mod config;
mod inspect;
mod safetensors;
mod source;

pub use config::{Config, Rope, RopeScaling};
pub use inspect::inspect;
pub use safetensors::{Checkpoint, Tensor};
pub use source::{Document, Source, SourcePaths};
