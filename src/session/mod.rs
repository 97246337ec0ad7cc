//! Sessions: sequences of tokens, their KV caches, and the steps that many of them take together.

mod batch;
mod lookahead;
mod pass;
mod state;

pub use batch::{Progress, Turn, decode_batch};

use crate::error::Result;
use crate::memory;
use crate::model::{Model, Pass, Profile, Tap};
use crate::ops::Sequence;
use crate::ops::kv::KvCache;
use crate::sampler::{History, Sampler, greedy};
use crate::tensor::DType;
use crate::{bail, err, log};
use lookahead::Lookahead;
use pass::{Part, Want};
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
    /// Whether what other sessions have computed of the same tokens is used, and what this one computes offered to them.
    pub share_prefixes: bool,
    /// Most tokens drafted in one step by prompt lookup; 0 = no speculation.
    pub speculation: usize,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            context: 0,
            kv_type: DType::F16,
            chunk: 0,
            profile: false,
            share_prefixes: true,
            speculation: 0,
        }
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
    share_prefixes: bool,
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
    /// What is computed beyond `evaluated`.
    lookahead: Lookahead,
    /// How many tokens were found computed by other sessions.
    reused: u64,
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
        memory::expect_room(0, "a session")?;
        let kv = KvCache::new(model.decoder().kv_layout(options.kv_type), Arc::clone(model.pages()))?;
        Ok(Session {
            context,
            chunk: if options.chunk == 0 { DEFAULT_CHUNK } else { options.chunk },
            share_prefixes: options.share_prefixes,
            kv,
            tokens: Vec::new(),
            generated: Vec::new(),
            evaluated: 0,
            last: Vec::new(),
            logits: Vec::new(),
            lookahead: Lookahead::new(options.speculation),
            reused: 0,
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
        self.restart_if_rotation_changes();
        let all = self.tokens.len();
        let end = if max_tokens == 0 { all } else { all.min(self.evaluated.saturating_add(max_tokens)) };
        self.evaluate(end, Want::Nothing)?;
        Ok(self.evaluated < all)
    }

    /// The logits `[vocab_size]` after the last token; evaluates what is queued first.
    pub fn logits(&mut self) -> Result<&[f32]> {
        self.check_started()?;
        self.evaluate(self.tokens.len(), Want::Logits)?;
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
        self.logits()?;
        let room = self.room_before_rotation_changes();
        if context.len() > room {
            bail!(Unsupported, "score: after {room} more tokens this model's rotary embedding changes; append them");
        }
        let first = self.logits()?;
        logprobs[0] = log_softmax(first, tokens[0]);
        let before = self.evaluated;
        let result = self.score_rest(context, &tokens[1..], &mut logprobs[1..]);
        self.kv.truncate(before);
        self.publish(before);
        result?;
        match logprobs.iter().position(|p| p.is_nan()) {
            None => Ok(()),
            Some(i) => Err(err!(Numeric, "token {i}: its log-probability is not a number: the logits hold NaN")),
        }
    }

    fn score_rest(&mut self, mut inputs: &[u32], mut targets: &[u32], mut logprobs: &mut [f32]) -> Result<()> {
        let mut start = self.evaluated;
        self.kv.reserve(start..start + inputs.len())?;
        let decoder = self.model.decoder();
        let (hidden, vocab) = (decoder.hidden(), decoder.vocab());
        while !inputs.is_empty() {
            let n = inputs.len().min(self.chunk);
            let (now, then) = std::mem::take(&mut logprobs).split_at_mut(n);
            let (kv, cancel, profile) = (&mut self.kv, &*self.cancel, &mut self.profile);
            self.model.step(|exec, workspace| {
                let mut cancelled = None;
                let tokens = &inputs[..n];
                let sequence = Sequence { tokens, start, kv, cancel, cancelled: &mut cancelled, rows: 0..0 };
                let pass = Pass { sequences: &mut [sequence], profile, tap: None };
                let x = memory::copied(decoder.forward(exec, workspace, pass)?)?;
                pass::check_cancelled(cancelled, start)?;
                for ((x, targets), out) in
                    x.chunks(SCORE_ROWS * hidden).zip(targets.chunks(SCORE_ROWS)).zip(now.chunks_mut(SCORE_ROWS))
                {
                    let rows = x.chunks_exact(hidden);
                    let logits = decoder.logits(exec, workspace, out.len(), rows, profile, None)?;
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
            self.lookahead.clear();
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
        self.prepare_step()?;
        let step = self.evaluate(self.tokens.len(), Want::Token(sampler))?;
        step.ok_or_else(|| err!(Internal, "no token was chosen"))
    }

    /// A session of the same tokens that shares what is computed; it costs memory where the two go different ways.
    pub fn fork(&self) -> Result<Session> {
        memory::expect_room(0, "a fork")?;
        let mut fork = Session {
            model: Arc::clone(&self.model),
            kv: self.kv.fork()?,
            tokens: Vec::new(),
            generated: Vec::new(),
            last: Vec::new(),
            logits: Vec::new(),
            lookahead: self.lookahead.fork(),
            reused: 0,
            cancel: Arc::default(),
            profile: self.profile.fork(),
            tap: None,
            ..*self
        };
        fork.kv.truncate(self.evaluated);
        memory::replace(&mut fork.tokens, &self.tokens)?;
        memory::replace(&mut fork.generated, &self.generated)?;
        memory::replace(&mut fork.last, &self.last)?;
        Ok(fork)
    }

    /// The flag that another thread raises to cancel: while it is up, evaluation stops with `Cancelled` at the next
    /// layer, and the session stands at its last committed token.
    pub fn cancel_flag(&self) -> &Arc<AtomicBool> {
        &self.cancel
    }

    /// The KV cache.
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// How many tokens were not computed because another session had done so.
    pub fn reused(&self) -> u64 {
        self.reused
    }

    /// How many tokens were drafted by prompt lookup, and how many of them were right.
    pub fn drafted(&self) -> (u64, u64) {
        self.lookahead.counts()
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

    fn check_started(&self) -> Result<()> {
        if self.tokens.is_empty() {
            bail!(State, "the session has no tokens yet, so there are no logits");
        }
        Ok(())
    }

    fn check_cancelled(&self) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) {
            bail!(Cancelled, "cancelled by the host at position {}", self.evaluated);
        }
        Ok(())
    }

    /// Whether a token can be chosen and queued.
    fn prepare_step(&mut self) -> Result<()> {
        self.check_room(1)?;
        self.check_started()?;
        self.tokens.try_reserve(1)?;
        self.generated.try_reserve(1)?;
        Ok(())
    }

    /// Evaluates the tokens before `end`, then what is wanted after the last of them. Each chunk is committed as it is done.
    fn evaluate(&mut self, end: usize, mut want: Want<'_>) -> Result<Option<Step>> {
        self.check_cancelled()?;
        let model = Arc::clone(&self.model);
        loop {
            self.settle(end, &want);
            let left = end - self.evaluated;
            let take = left.min(self.chunk);
            let now = if take == left { std::mem::replace(&mut want, Want::Nothing) } else { Want::Nothing };
            let mut part = Part::new(self, take, now);
            part.draft(usize::MAX);
            pass::run(&model, std::slice::from_mut(&mut part))?;
            let outcome = part.outcome?;
            if take == left {
                return Ok(outcome);
            }
        }
    }

    /// Uses what is computed of the tokens before `end` already, by speculation or by other sessions.
    fn settle(&mut self, end: usize, want: &Want<'_>) {
        self.restart_if_rotation_changes();
        while self.evaluated < end && self.lookahead.take(self.tokens[self.evaluated], &mut self.last, &mut self.logits)
        {
            self.evaluated += 1;
            self.publish(self.evaluated - 1);
        }
        if self.evaluated < self.tokens.len() && self.lookahead.clear() {
            self.kv.truncate(self.evaluated);
        }
        if self.share_prefixes && end - self.evaluated > 1 {
            let before = self.evaluated;
            self.evaluated = self.kv.adopt(&self.tokens[..end - 1], before);
            if self.evaluated > before {
                self.reused += (self.evaluated - before) as u64;
                log!(Debug, "tokens {before} to {} were computed by another session already", self.evaluated - 1);
                self.last.clear();
                self.logits.clear();
            }
        }
        if !matches!(want, Want::Nothing) && self.evaluated == end && self.last.is_empty() {
            self.evaluated -= 1; // truncated: what followed the last token is not known any more
        }
    }

    /// Whether the model rotates a sequence of `tokens` in the way of long ones.
    fn is_long(&self, tokens: usize) -> bool {
        self.model.decoder().longest_usual().is_some_and(|most| tokens > most)
    }

    /// Whether the session's tokens, computed or queued, are to be rotated in another way than those in the cache.
    fn rotation_changes(&self) -> bool {
        self.is_long(self.tokens.len()) != self.kv.long()
    }

    /// Forgets what is computed if it was rotated in another way: as in Hugging Face's `generate`, a sequence that has
    /// become long is rotated anew from its first token.
    fn restart_if_rotation_changes(&mut self) {
        if self.rotation_changes() {
            self.lookahead.clear();
            self.evaluated = 0;
            self.last.clear();
            self.logits.clear();
            self.kv.restart(!self.kv.long());
        }
    }

    /// How many tokens can follow those the session has before all are rotated anew.
    fn room_before_rotation_changes(&self) -> usize {
        let most = self.model.decoder().longest_usual().filter(|_| !self.kv.long());
        most.map_or(usize::MAX, |most| most.saturating_sub(self.tokens.len()))
    }

    /// Lets other sessions find what is computed from position `from` on.
    fn publish(&mut self, from: usize) {
        if self.share_prefixes {
            self.kv.publish(&self.tokens[..self.evaluated], from);
        }
    }

    /// Chooses a token by the logits after the last one, and queues it unless it ends the text.
    fn choose(&mut self, sampler: Option<&mut Sampler>, logits: &[f32]) -> Result<Step> {
        let token = match sampler {
            None => greedy(logits)?,
            Some(s) => s.sample(logits, History { tokens: &self.tokens, generated: &self.generated })?,
        };
        if self.model.config().eos_token_ids.contains(&token) {
            return Ok(Step::End(token));
        }
        self.tokens.push(token);
        self.generated.push(true);
        Ok(Step::Token(token))
    }
}

/// The natural logarithm of the softmax of `logits` at `token`, summed in f64 in ascending order.
fn log_softmax(logits: &[f32], token: u32) -> f32 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| libm::exp(f64::from(l - highest))).sum();
    (f64::from(logits[token as usize] - highest) - libm::log(sum)) as f32
}
