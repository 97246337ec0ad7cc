//! Choosing the next token from logits, in Hugging Face's order of processors.

use crate::error::Result;

/// Parameters of a sampler. The defaults leave the model's distribution as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits; 0 = greedy.
    pub temperature: f32,
    /// Keep the k highest logits and what ties with the k-th; 0 = off.
    pub top_k: usize,
    /// Keep the smallest set of tokens whose probability reaches this; 1 = off.
    pub top_p: f32,
    /// Drop tokens less probable than this share of the most probable; 0 = off.
    pub min_p: f32,
    /// Divides (≥ 0) or multiplies (< 0) the logit of each distinct token of prompt and output; 1 = off.
    pub repetition_penalty: f32,
    /// Subtracted once from each generated token's logit; 0 = off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence from each generated token's logit; 0 = off.
    pub frequency_penalty: f32,
    /// Seed of the generator; `None` = random.
    pub seed: Option<u64>,
}

/// The tokens a penalty looks at.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// Prompt and output.
    pub tokens: &'a [u32],
    /// For each token, whether it was generated (by a decode step) rather than appended by the host.
    pub generated: &'a [bool],
}

/// A sampler with its own random stream.
#[derive(Debug)]
pub struct Sampler {}

impl Sampler {
    /// Checks the parameters; an error names the one at fault and its range.
    pub fn new(options: &SamplerOptions) -> Result<Sampler> {
        todo!("{options:?}")
    }
    /// The seed in use.
    pub fn seed(&self) -> u64 {
        todo!()
    }
    /// Adds `bias` to the logit of `token` (−∞ forbids it); 0 removes the bias.
    pub fn set_bias(&mut self, token: u32, bias: f32) -> Result<()> {
        todo!("{token} {bias}")
    }
    /// The next token. A NaN, or no token left, is an error and leaves the random stream as it was.
    pub fn sample(&mut self, logits: &[f32], history: History<'_>) -> Result<u32> {
        todo!("{logits:?} {history:?}")
    }
}

/// The token with the highest logit, the lowest id among equals. NaN, or all −∞, is an error.
pub fn greedy(logits: &[f32]) -> Result<u32> {
    todo!("{logits:?}")
}
