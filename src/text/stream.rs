//! Incremental decoding: tokens in, whole UTF-8 text out as early as it is certain.

use super::Tokenizer;
use crate::error::Result;
use std::sync::Arc;

/// Turns a sequence of tokens into pieces of text. The pieces concatenate to the full decode of the sequence, and
/// no piece ends inside a character.
#[derive(Clone, Debug)]
pub struct TextStream {}

impl TextStream {
    /// An empty stream.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> TextStream {
        todo!("{tokenizer:?} {skip_special}")
    }
    /// The text that `token` makes certain; often empty inside a multi-token character. On an error nothing changes.
    pub fn push(&mut self, token: u32) -> Result<String> {
        todo!("{token}")
    }
    /// What is still held back; the stream is then as new.
    pub fn flush(&mut self) -> Result<String> {
        todo!()
    }
}
