//! Text to tokens and back, whole and as a stream; messages to prompts.

pub mod chat;
mod decoder;
mod growth;
mod probe;
mod stream;
mod tokenizer;

pub use stream::TextStream;
pub use tokenizer::{EncodeOptions, Tokenizer};
