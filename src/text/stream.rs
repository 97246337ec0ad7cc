//! Incremental decoding: tokens in, whole UTF-8 text out as early as it is certain.

use super::Tokenizer;
use super::decoder::State;
use crate::error::Result;
use std::sync::Arc;

/// Turns a sequence of tokens into pieces of text. The pieces concatenate to the full decode of the sequence, and
/// no piece ends inside a character (a Unicode scalar value; an emoji made of several may come in several pieces).
///
/// Both run the same machine over the same tokens (the decoder room explains it), which is why they agree.
#[derive(Clone, Debug)]
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    state: State,
}

impl TextStream {
    /// An empty stream.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> TextStream {
        let state = tokenizer.plan().start();
        TextStream { tokenizer, skip_special, state }
    }

    /// The text that `token` makes certain; often empty inside a multi-token character. On an error nothing changes.
    pub fn push(&mut self, token: u32) -> Result<String> {
        let mut out = String::new();
        if let Some(token) = self.tokenizer.token(token, self.skip_special) {
            let mut state = self.state.clone();
            self.tokenizer.plan().push(&mut state, token, &mut out)?;
            self.state = state;
        }
        Ok(out)
    }

    /// What is still held back; the stream is then as new. On an error nothing changes.
    pub fn flush(&mut self) -> Result<String> {
        let mut out = String::new();
        self.tokenizer.plan().finish(&mut self.state.clone(), &mut out)?;
        self.state = self.tokenizer.plan().start();
        Ok(out)
    }
}
