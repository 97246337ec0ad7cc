//! Text to tokens and back, whole and as a stream.

mod decoder;
mod probe;
mod stream;
mod tokenizer;

pub use stream::TextStream;
pub use tokenizer::{EncodeOptions, Tokenizer};
