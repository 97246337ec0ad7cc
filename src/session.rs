//! A session: a sequence of tokens, its KV cache, and one decode step.

use crate::error::Result;
use crate::model::{Model, Operator, Pass, Profile, Tap};
use crate::ops::kv::KvCache;
use crate::sampler::{History, Sampler, greedy};
use crate::tensor::DType;
use crate::{bail, err};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prompt tokens per forward pass unless told otherwise.
const DEFAULT_CHUNK: usize = 512;

/// Rows of logits computed at once by [`Session::score`]: bounds its memory to so many times the vocabulary.
const SCORE_ROWS: usize = 16;

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
pub struct Session {
    model: Arc<Model>,
    context: usize,
    chunk: usize,
    kv: KvCache,
    tokens: Vec<u32>,
    /// For each token, whether a decode step sampled it.
    generated: Vec<bool>,
    /// How many tokens are in the cache.
    evaluated: usize,
    /// The residual stream after token `evaluated − 1`, `[hidden]`; empty if it is not known.
    last: Vec<f32>,
    /// The logits after token `evaluated − 1`, `[vocab]`; empty if they are not known.
    logits: Vec<f32>,
    cancel: Arc<AtomicBool>,
    profile: Profile,
    tap: Option<Tap>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session {{ tokens: {}, evaluated: {} }}", self.tokens.len(), self.evaluated)
    }
}

impl Session {
    /// An empty session of `model`.
    pub fn new(model: Arc<Model>, options: &SessionOptions) -> Result<Session> {
        let context = if options.context == 0 { model.config().max_position_embeddings } else { options.context };
        let kv = KvCache::new(model.decoder().kv_layout(options.kv_type))?;
        let mut logits = Vec::new();
        logits.try_reserve_exact(model.decoder().vocab())?;
        Ok(Session {
            context,
            chunk: if options.chunk == 0 { DEFAULT_CHUNK } else { options.chunk },
            kv,
            tokens: Vec::new(),
            generated: Vec::new(),
            evaluated: 0,
            last: Vec::with_capacity(model.decoder().hidden()),
            logits,
            cancel: Arc::new(AtomicBool::new(false)),
            profile: Profile::new(options.profile),
            tap: None,
            model,
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Queues tokens; computes nothing. Context exceeded or an id outside the vocabulary: nothing is queued.
    pub fn append(&mut self, tokens: &[u32]) -> Result<()> {
        self.check_tokens(tokens)?;
        self.check_room(tokens.len())?;
        self.tokens.try_reserve(tokens.len())?;
        self.generated.try_reserve(tokens.len())?;
        self.tokens.extend_from_slice(tokens);
        self.generated.resize(self.tokens.len(), false);
        Ok(())
    }

    /// Evaluates up to `max_tokens` queued tokens (0 = all). `true` if some are still left.
    pub fn eval(&mut self, max_tokens: usize) -> Result<bool> {
        let all = self.tokens.len();
        let end = if max_tokens == 0 { all } else { all.min(self.evaluated.saturating_add(max_tokens)) };
        self.evaluate(end, false)?;
        Ok(self.evaluated < all)
    }

    /// The logits `[vocab_size]` after the last token; evaluates what is queued first.
    pub fn logits(&mut self) -> Result<&[f32]> {
        if self.tokens.is_empty() {
            bail!(State, "the session has no tokens yet, so there are no logits");
        }
        if self.evaluated == self.tokens.len() && self.last.is_empty() {
            self.evaluated -= 1; // truncated: what followed the last token is not known any more
        }
        self.evaluate(self.tokens.len(), true)?;
        Ok(&self.logits)
    }

    /// The log-probability of each of `tokens`, given the session's tokens and the ones before it. The session is
    /// left as it was.
    pub fn score(&mut self, tokens: &[u32], logprobs: &mut [f32]) -> Result<()> {
        if tokens.len() != logprobs.len() {
            bail!(InvalidArgument, "score: {} tokens but room for {} log-probabilities", tokens.len(), logprobs.len());
        }
        let Some((_, context)) = tokens.split_last() else { return Ok(()) };
        self.check_tokens(tokens)?;
        self.check_room(context.len())?;
        let first = self.logits()?;
        logprobs[0] = log_softmax(first, tokens[0]);
        let before = self.evaluated;
        let result = self.score_rest(context, &tokens[1..], &mut logprobs[1..]);
        self.kv.truncate(before);
        result?;
        match logprobs.iter().position(|p| p.is_nan()) {
            None => Ok(()),
            Some(i) => Err(err!(Numeric, "token {i}: its log-probability is not a number: the logits hold NaN")),
        }
    }

    fn score_rest(&mut self, mut inputs: &[u32], mut targets: &[u32], mut logprobs: &mut [f32]) -> Result<()> {
        let mut start = self.evaluated;
        self.kv.reserve(start + inputs.len())?;
        let decoder = self.model.decoder();
        let (hidden, vocab) = (decoder.hidden(), decoder.vocab());
        while !inputs.is_empty() {
            let n = inputs.len().min(self.chunk);
            let (now, then) = std::mem::take(&mut logprobs).split_at_mut(n);
            let (kv, cancel, profile) = (&mut self.kv, &*self.cancel, &mut self.profile);
            self.model.step(|exec, workspace| {
                let pass = Pass { tokens: &inputs[..n], start, kv, cancel, profile, tap: None };
                let x = decoder.forward(exec, workspace, pass)?.to_vec();
                for ((x, targets), out) in
                    x.chunks(SCORE_ROWS * hidden).zip(targets.chunks(SCORE_ROWS)).zip(now.chunks_mut(SCORE_ROWS))
                {
                    let mut logits = Vec::new();
                    logits.try_reserve_exact(out.len() * vocab)?;
                    logits.resize(out.len() * vocab, 0.0);
                    decoder.logits(exec, workspace, x, &mut logits, profile, None)?;
                    exec.team.rows(out, 1, |_, mut block| {
                        for t in block.rows() {
                            block.row(t)[0] = log_softmax(&logits[t * vocab..(t + 1) * vocab], targets[t]);
                        }
                    });
                }
                Ok(())
            })?;
            (inputs, targets, logprobs, start) = (&inputs[n..], &targets[n..], then, start + n);
        }
        Ok(())
    }

    /// All tokens, evaluated or queued.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many of the tokens are in the KV cache.
    pub fn evaluated(&self) -> usize {
        self.evaluated
    }

    /// Most tokens the session can hold.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Forgets all tokens from position `keep` on; an error if there are fewer.
    pub fn truncate(&mut self, keep: usize) -> Result<()> {
        if keep > self.tokens.len() {
            bail!(InvalidArgument, "truncate: the session has {} tokens, fewer than {keep}", self.tokens.len());
        }
        self.tokens.truncate(keep);
        self.generated.truncate(keep);
        if keep < self.evaluated {
            self.evaluated = keep;
            self.last.clear();
            self.logits.clear();
            self.kv.truncate(keep);
        }
        Ok(())
    }

    /// Evaluates what is queued, samples (`None` = greedy) and leaves the new token queued. An error changes nothing
    /// but that tokens may have been evaluated.
    pub fn decode_step(&mut self, sampler: Option<&mut Sampler>) -> Result<Step> {
        self.check_room(1)?;
        self.tokens.try_reserve(1)?;
        self.generated.try_reserve(1)?;
        self.logits()?;
        let mut clock = self.profile.clock();
        let token = match sampler {
            None => greedy(&self.logits)?,
            Some(s) => s.sample(&self.logits, History { tokens: &self.tokens, generated: &self.generated })?,
        };
        clock.lap(Operator::Sampling);
        if self.model.config().eos_token_ids.contains(&token) {
            return Ok(Step::End(token));
        }
        self.tokens.push(token);
        self.generated.push(true);
        Ok(Step::Token(token))
    }

    /// The flag that another thread raises to cancel: while it is up, evaluation stops with `Cancelled` at the next
    /// layer, and the session stands at its last committed token.
    pub fn cancel_flag(&self) -> &Arc<AtomicBool> {
        &self.cancel
    }

    /// Bytes of KV cache that one token takes, and bytes allocated now.
    pub fn kv_bytes(&self) -> (u64, u64) {
        (self.kv.layout().token_bytes() as u64, self.kv.bytes() as u64)
    }

    /// Operator times so far; empty unless asked for.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Sends intermediate tensors of the following evaluations to `tap`. For tests; not part of the ABI.
    pub fn set_tap(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let vocab = self.model.config().vocab_size;
        match tokens.iter().position(|&t| t as usize >= vocab) {
            None => Ok(()),
            Some(i) => Err(err!(Token, "token {i}: id {} is outside the vocabulary of {vocab}", tokens[i])),
        }
    }

    fn check_room(&self, more: usize) -> Result<()> {
        let (used, context) = (self.tokens.len(), self.context);
        if more > context.saturating_sub(used) {
            bail!(ContextFull, "{more} more tokens do not fit: the context of {context} holds {used}");
        }
        Ok(())
    }

    /// Evaluates the tokens before `end`, then the logits after the last of them if they are wanted. Each chunk is
    /// committed as it is done.
    fn evaluate(&mut self, end: usize, want_logits: bool) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) {
            bail!(Cancelled, "cancelled by the host at position {}", self.evaluated);
        }
        self.kv.reserve(end)?;
        let decoder = self.model.decoder();
        while self.evaluated < end || (want_logits && self.logits.is_empty()) {
            let tokens = &self.tokens[self.evaluated..end.min(self.evaluated + self.chunk)];
            let head = want_logits && self.evaluated + tokens.len() == end;
            let (kv, evaluated, cancel) = (&mut self.kv, &mut self.evaluated, &*self.cancel);
            let (last, logits, profile, tap) = (&mut self.last, &mut self.logits, &mut self.profile, &mut self.tap);
            self.model.step(|exec, workspace| {
                if !tokens.is_empty() {
                    let pass = Pass { tokens, start: *evaluated, kv, cancel, profile, tap: tap.as_mut() };
                    let x = decoder.forward(exec, workspace, pass)?;
                    // Committed only now: a cancelled pass leaves what was known.
                    last.clear();
                    last.extend_from_slice(&x[x.len() - decoder.hidden()..]);
                    logits.clear();
                    *evaluated += tokens.len();
                }
                if head {
                    logits.resize(decoder.vocab(), 0.0);
                    decoder.logits(exec, workspace, last, logits, profile, tap.as_mut())?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// The natural logarithm of the softmax of `logits` at `token`, summed in f64 in ascending order.
fn log_softmax(logits: &[f32], token: u32) -> f32 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| libm::exp(f64::from(l - highest))).sum();
    (f64::from(logits[token as usize] - highest) - libm::log(sum)) as f32
}
