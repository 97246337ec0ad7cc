//! Model directories as Hugging Face lays them out: where the files are, what the tensors and the config say.
//!
//! Everything here treats its files as hostile: sizes are checked before anything is allocated, and every error names
//! the file, the place in it, what was expected and what was found.

mod catalog;
mod config;
mod defaults;
mod file;
mod header;
mod inspect;
mod json;
mod layers;
mod matrix;
mod packed;
mod quantization;
mod rope;
mod safetensors;
mod source;
#[expect(unsafe_code, reason = "maps weight files; storage.rs argues why that is sound and where it is not")]
mod storage;
mod tokenizer_config;

pub use config::Config;
pub use file::{Document, HostMemory, ModelFile};
pub use inspect::inspect;
pub use layers::{Experts, LayerConfig};
pub use matrix::{LAYOUT_KEY, Matrix, Packing, Panels, packing_key};
pub use packed::{GAP, PackedMatrix};
pub use quantization::{Method, Quantization};
pub use rope::{Rope, RopeScaling};
pub use safetensors::{Access, Checkpoint, Content, Tensor};
pub use source::{FileSet, Source, SourcePaths};
pub use tokenizer_config::{ChatTemplate, TokenizerConfig};

#[cfg(test)]
mod tests;
