//! `tokenizer.json`, by the `tokenizers` crate.

use crate::error::Result;

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncodeOptions {
    /// Add the special tokens that the tokenizer's post-processor adds (such as BOS).
    pub add_special: bool,
    /// Read special tokens spelled in the text as those tokens, not as text.
    pub parse_special: bool,
}

/// A loaded tokenizer. Shared freely between threads.
#[derive(Debug)]
pub struct Tokenizer {}

impl Tokenizer {
    /// Parses `tokenizer.json`; `name` is used in messages.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Tokenizer> {
        todo!("{name} {bytes:?}")
    }
    /// The tokens of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        todo!("{text} {options:?}")
    }
    /// The text of `tokens`. Bytes that form no character become U+FFFD, as in Hugging Face.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> Result<String> {
        todo!("{tokens:?} {skip_special}")
    }
    /// Number of tokens, added ones included.
    pub fn vocab_size(&self) -> usize {
        todo!()
    }
}
