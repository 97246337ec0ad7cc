//! A session: a sequence of tokens, its KV cache, and one decode step.

use crate::error::Result;
use crate::model::{Model, Profile};
use crate::sampler::Sampler;
use crate::tensor::DType;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// How a session is made.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Most tokens the session can hold; 0 = the model's `max_position_embeddings`.
    pub context: usize,
    /// Element type of the KV cache: F16 or F32.
    pub kv_type: DType,
    /// Most prompt tokens evaluated in one forward pass; 0 = the default.
    pub chunk: usize,
    /// Whether operators are timed.
    pub profile: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions { context: 0, kv_type: DType::F16, chunk: 0, profile: false }
    }
}

/// What [`Session::decode_step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The token was sampled and appended; it is pending until the next step.
    Token(u32),
    /// An end-of-generation token was sampled; it was not appended.
    End(u32),
}

/// A sequence of tokens and what the model has computed of it.
#[derive(Debug)]
pub struct Session {}

impl Session {
    /// An empty session of `model`.
    pub fn new(model: Arc<Model>, options: &SessionOptions) -> Result<Session> {
        todo!("{model:?} {options:?}")
    }
    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        todo!()
    }
    /// Queues tokens; computes nothing. Context exceeded or an id outside the vocabulary: nothing is queued.
    pub fn append(&mut self, tokens: &[u32]) -> Result<()> {
        todo!("{tokens:?}")
    }
    /// Evaluates up to `max_tokens` queued tokens (0 = all). `true` if some are still left.
    pub fn eval(&mut self, max_tokens: usize) -> Result<bool> {
        todo!("{max_tokens}")
    }
    /// The logits `[vocab_size]` after the last token; evaluates what is queued first.
    pub fn logits(&mut self) -> Result<&[f32]> {
        todo!()
    }
    /// The log-probability of each of `tokens`, given the session's tokens and the ones before it. The session is
    /// left as it was.
    pub fn score(&mut self, tokens: &[u32], logprobs: &mut [f32]) -> Result<()> {
        todo!("{tokens:?} {logprobs:?}")
    }
    /// All tokens, evaluated or queued.
    pub fn tokens(&self) -> &[u32] {
        todo!()
    }
    /// How many of the tokens are in the KV cache.
    pub fn evaluated(&self) -> usize {
        todo!()
    }
    /// Most tokens the session can hold.
    pub fn context(&self) -> usize {
        todo!()
    }
    /// Forgets all tokens from position `keep` on; an error if there are fewer.
    pub fn truncate(&mut self, keep: usize) -> Result<()> {
        todo!("{keep}")
    }
    /// Evaluates what is queued, samples (`None` = greedy) and leaves the new token queued. An error changes nothing.
    pub fn decode_step(&mut self, sampler: Option<&mut Sampler>) -> Result<Step> {
        todo!("{}", sampler.is_some())
    }
    /// The flag that another thread raises to cancel: while it is up, evaluation stops with `Cancelled` at the next
    /// layer, and the session stands at its last committed token.
    pub fn cancel_flag(&self) -> &Arc<AtomicBool> {
        todo!()
    }
    /// Bytes of KV cache that one token takes, and bytes allocated now.
    pub fn kv_bytes(&self) -> (u64, u64) {
        todo!()
    }
    /// Operator times so far; empty unless asked for.
    pub fn profile(&self) -> &Profile {
        todo!()
    }
}
