//! Choosing the next token from logits, in Hugging Face's order of processors.
//!
//! 1. **Bias**: added to the raw logits (first, where `generate` has its `SequenceBiasLogitsProcessor`).
//! 2. **Repetition penalty**, once for each distinct token of prompt and output; then **presence** (once) and
//!    **frequency** (per occurrence) penalties of the generated tokens.
//! 3. **Temperature**. At 0 the highest logit is taken, the lowest id among equals, and nothing below applies.
//! 4. **Top-k**, keeping all that tie with the k-th.
//! 5. **Top-p**: from the most probable on, while the mass before the token is below p; the lower id first among equals.
//! 6. **Min-p**, relative to the most probable token.
//! 7. **Draw**.
//!
//! Logits and steps 1 to 4 are f32, as in PyTorch; probabilities are f64. `exp` is the pure-Rust one of `libm`, and
//! each sum runs in a fixed order, so that a seed gives the same tokens on every platform.
//!
//! # The draw
//!
//! The generator is ChaCha with 8 rounds, a 64-bit counter from 0 and a zero nonce; its output is read as little-endian
//! u64. The key's eight u32 come from the seed `s` by PCG32: `s = s · 6364136223846793005 + 11634580027462260723`, then
//! `x = (((s >> 18) ^ s) >> 27) as u32` rotated right by `s >> 59` (this is `seed_from_u64` of the crate `rand_core`).
//! Each call that draws takes one u64, `r`, and with it u = (r >> 11) · 2⁻⁵³. With wᵢ = exp(xᵢ − max x), the token is
//! the first in ascending order of ids whose running sum of w exceeds u · Σw.
//!
//! An error (a NaN, +∞ or no token left) draws nothing. +∞ is an error because it tells of an overflow in the model,
//! not of certainty.

use crate::error::Result;
use crate::memory;
use crate::{bail, err};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{OsRng, RngCore, SeedableRng, TryRngCore};
use std::collections::BTreeMap;
use std::fmt;

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

impl Default for SamplerOptions {
    fn default() -> Self {
        SamplerOptions {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: None,
        }
    }
}

impl SamplerOptions {
    fn check(&self) -> Result<()> {
        let require = |ok: bool, name: &str, value: f32, range: &str| match ok {
            true => Ok(()),
            false => Err(err!(InvalidArgument, "{name}: expected {range}, found {value}")),
        };
        let SamplerOptions {
            temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, ..
        } = *self;
        let finite = |x: f32| x.is_finite();
        require(finite(temperature) && temperature >= 0.0, "temperature", temperature, "a number of at least 0")?;
        require(top_p > 0.0 && top_p <= 1.0, "top_p", top_p, "more than 0 and at most 1")?;
        require((0.0..=1.0).contains(&min_p), "min_p", min_p, "0 to 1")?;
        let positive = finite(repetition_penalty) && repetition_penalty > 0.0;
        require(positive, "repetition_penalty", repetition_penalty, "a number above 0")?;
        require(finite(presence_penalty), "presence_penalty", presence_penalty, "a finite number")?;
        require(finite(frequency_penalty), "frequency_penalty", frequency_penalty, "a finite number")
    }
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
pub struct Sampler {
    options: SamplerOptions,
    seed: u64,
    random: ChaCha8Rng,
    bias: BTreeMap<u32, f32>,
    scratch: Scratch,
}

/// Buffers kept from step to step, so that a step allocates nothing. No state: each step writes before it reads.
#[derive(Default)]
struct Scratch {
    /// The adjusted logits, `[vocab_size]`.
    logits: Vec<f32>,
    /// For each token how often it was generated; for the penalties. All zero between steps.
    counts: Vec<u32>,
    /// For each token whether it is in `touched`. All false between steps.
    seen: Vec<bool>,
    /// The distinct tokens of the history.
    touched: Vec<u32>,
    /// Candidates for the k highest logits.
    highest: Vec<f32>,
    /// What survives, by ascending id, with exp(x − max).
    kept: Vec<(u32, f64)>,
    /// The same, partly sorted by weight; for top-p.
    order: Vec<(u32, f64)>,
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scratch")
    }
}

impl Sampler {
    /// Checks the parameters; an error names the one at fault and its range.
    pub fn new(options: &SamplerOptions) -> Result<Sampler> {
        options.check()?;
        let seed = match options.seed {
            Some(seed) => seed,
            None => OsRng.try_next_u64().map_err(|e| err!(Io, "seed: the system gives no random number: {e}"))?,
        };
        Ok(Sampler {
            options: options.clone(),
            seed,
            random: ChaCha8Rng::seed_from_u64(seed),
            bias: BTreeMap::new(),
            scratch: Scratch::default(),
        })
    }

    /// The seed in use.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Adds `bias` to the logit of `token` (−∞ forbids it); 0 removes the bias. A token outside the vocabulary is an
    /// error of the next [`sample`](Sampler::sample), since the vocabulary isn't known here.
    pub fn set_bias(&mut self, token: u32, bias: f32) -> Result<()> {
        if bias.is_nan() || bias == f32::INFINITY {
            bail!(InvalidArgument, "bias of token {token}: expected a finite number or -inf, found {bias}");
        }
        match bias == 0.0 {
            true => self.bias.remove(&token),
            false => self.bias.insert(token, bias),
        };
        Ok(())
    }

    /// The next token. A NaN, +∞, or no token left is an error and leaves the random stream as it was.
    pub fn sample(&mut self, logits: &[f32], history: History<'_>) -> Result<u32> {
        self.adjust(logits, history)?;
        if self.options.temperature == 0.0 {
            return greedy(self.adjusted(logits));
        }
        let total = self.weigh(logits)?;
        let uniform = (self.random.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
        let target = uniform * total;
        let mut sum = 0.0;
        let mut token = None;
        for &(id, weight) in &self.scratch.kept {
            if weight > 0.0 {
                token = Some(id); // the last one, should rounding leave the target at the total
                sum += weight;
                if sum > target {
                    break;
                }
            }
        }
        token.ok_or_else(|| err!(Internal, "a distribution without weight"))
    }

    /// What [`sample`](Sampler::sample) would draw from: the surviving tokens by ascending id, with their
    /// probabilities (0 where `exp` underflows). Draws nothing.
    pub fn distribution(&mut self, logits: &[f32], history: History<'_>) -> Result<Vec<(u32, f64)>> {
        self.adjust(logits, history)?;
        if self.options.temperature == 0.0 {
            return Ok(vec![(greedy(self.adjusted(logits))?, 1.0)]);
        }
        let total = self.weigh(logits)?;
        Ok(self.scratch.kept.iter().map(|&(id, weight)| (id, weight / total)).collect())
    }

    /// Bias and penalties; into the scratch if there are any.
    fn adjust(&mut self, logits: &[f32], history: History<'_>) -> Result<()> {
        let Scratch { logits: out, counts, seen, touched, .. } = &mut self.scratch;
        let options = &self.options;
        out.clear();
        let counting = options.presence_penalty != 0.0 || options.frequency_penalty != 0.0;
        let penalties = counting || options.repetition_penalty != 1.0;
        if self.bias.is_empty() && !penalties {
            return Ok(());
        }
        out.try_reserve(logits.len())?;
        out.extend_from_slice(logits);
        for (&token, bias) in &self.bias {
            let Some(x) = out.get_mut(token as usize) else {
                bail!(Token, "bias of token {token}: the vocabulary has {} tokens", logits.len());
            };
            *x += bias;
        }
        if !penalties {
            return Ok(());
        }
        let History { tokens, generated } = history;
        if tokens.len() != generated.len() {
            bail!(InvalidArgument, "a history of {} tokens with {} marks", tokens.len(), generated.len());
        }
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= logits.len()) {
            bail!(Token, "token {token} of the history: the vocabulary has {} tokens", logits.len());
        }
        counts.try_reserve(logits.len().saturating_sub(counts.len()))?;
        seen.try_reserve(logits.len().saturating_sub(seen.len()))?;
        touched.clear();
        touched.try_reserve(logits.len().min(tokens.len()))?;
        counts.resize(logits.len(), 0);
        seen.resize(logits.len(), false);
        for (&token, &generated) in tokens.iter().zip(generated) {
            let i = token as usize;
            if !seen[i] {
                seen[i] = true;
                touched.push(token);
            }
            counts[i] += u32::from(generated);
        }
        for &token in touched.iter() {
            let i = token as usize;
            let count = std::mem::take(&mut counts[i]);
            seen[i] = false;
            let x = &mut out[i];
            *x = if *x < 0.0 { *x * options.repetition_penalty } else { *x / options.repetition_penalty };
            if counting && count > 0 {
                *x -= options.presence_penalty + options.frequency_penalty * count as f32;
            }
        }
        Ok(())
    }

    /// What `adjust` left.
    fn adjusted<'a>(&'a self, logits: &'a [f32]) -> &'a [f32] {
        if self.scratch.logits.is_empty() { logits } else { &self.scratch.logits }
    }

    /// Temperature, top-k, top-p and min-p; leaves `kept` and returns the sum of its weights. The temperature isn't 0.
    fn weigh(&mut self, logits: &[f32]) -> Result<f64> {
        let SamplerOptions { temperature, top_k, top_p, min_p, .. } = self.options;
        let Scratch { logits: adjusted, highest, kept, order, .. } = &mut self.scratch;
        if adjusted.is_empty() {
            adjusted.try_reserve(logits.len())?;
            adjusted.extend_from_slice(logits);
        }
        let max = highest_logit(adjusted)?;
        if (max / temperature).is_finite() {
            adjusted.iter_mut().for_each(|x| *x /= temperature);
        } else {
            adjusted.iter_mut().for_each(|x| *x = (*x - max) / temperature); // the same distribution
        }
        let max = highest_logit(adjusted)?;
        let mut least = f32::MIN; // −∞ is out in any case
        if top_k > 0 && top_k < adjusted.len() {
            least = least.max(kth_highest(adjusted, top_k, highest)?);
        }
        let max = f64::from(max);
        // Min-p alone decides without exp, but for what is close to the border.
        let far = if top_p < 1.0 { f64::NEG_INFINITY } else { libm::log(f64::from(min_p)) - 1e-9 };
        kept.clear();
        for (id, &x) in adjusted.iter().enumerate() {
            let below = f64::from(x) - max;
            if x >= least && below >= far {
                memory::push(kept, (id as u32, libm::exp(below)))?;
            }
        }
        if top_p < 1.0 {
            nucleus(kept, order, f64::from(top_p))?;
        }
        if min_p > 0.0 {
            kept.retain(|&(_, weight)| weight >= f64::from(min_p)); // the highest weight is 1
        }
        Ok(kept.iter().map(|&(_, weight)| weight).sum())
    }
}

/// The token with the highest logit, the lowest id among equals. NaN, +∞, or all −∞, is an error.
pub fn greedy(logits: &[f32]) -> Result<u32> {
    let max = highest_logit(logits)?;
    let id = logits.iter().position(|&x| x == max).unwrap_or_default(); // the maximum is one of them
    Ok(id as u32)
}

/// The highest logit; an error names the first NaN or +∞.
fn highest_logit(logits: &[f32]) -> Result<f32> {
    const LANES: usize = 16; // without a chain of dependent comparisons, the compiler vectorizes
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut bad = [false; LANES];
    let mut take = |chunk: &[f32]| {
        for ((lane, bad), &x) in lanes.iter_mut().zip(&mut bad).zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
            *bad |= x.is_nan();
        }
    };
    let chunks = logits.chunks_exact(LANES);
    let rest = chunks.remainder();
    chunks.for_each(&mut take);
    take(rest);
    let max = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if bad.contains(&true) || max == f32::INFINITY {
        let found = logits.iter().enumerate().find(|(_, x)| x.is_nan() || **x == f32::INFINITY);
        let (id, x) = found.unwrap_or((0, &f32::NAN));
        bail!(Numeric, "the logit of token {id} is {x}");
    }
    if max == f32::NEG_INFINITY {
        bail!(Numeric, "no token left: all {} logits are -inf", logits.len());
    }
    Ok(max)
}

/// The k-th highest of `logits`, 0 < k < its length. Keeps at most 2k candidates at a time; the bar that a logit must
/// exceed to become one rises quickly, so that most cost one comparison.
fn kth_highest(logits: &[f32], k: usize, highest: &mut Vec<f32>) -> Result<f32> {
    let descending = |a: &f32, b: &f32| b.total_cmp(a);
    let room = k.saturating_mul(2).max(64);
    let mut bar = f32::NEG_INFINITY;
    highest.clear();
    highest.try_reserve(room.min(logits.len()))?;
    for &x in logits {
        if x > bar {
            highest.push(x);
            if highest.len() == room {
                bar = *highest.select_nth_unstable_by(k - 1, descending).1;
                highest.truncate(k);
            }
        }
    }
    if highest.len() < k {
        return Ok(f32::NEG_INFINITY); // fewer than k above −∞
    }
    Ok(*highest.select_nth_unstable_by(k - 1, descending).1)
}

/// Keeps the most probable tokens while the mass before them is below `top_p`. Sorts no more than it needs.
fn nucleus(kept: &mut Vec<(u32, f64)>, order: &mut Vec<(u32, f64)>, top_p: f64) -> Result<()> {
    let descending = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let total: f64 = kept.iter().map(|&(_, weight)| weight).sum();
    let limit = top_p * total;
    // Tokens below an even share of 1 − p have less than 1 − p of the mass together: the limit is reached without them.
    let floor = (1.0 - top_p) * total / kept.len() as f64;
    order.clear();
    order.try_reserve(kept.len())?;
    order.extend(kept.iter().filter(|&&(_, weight)| weight >= floor));
    let (mut sorted, mut mass) = (0, 0.0);
    while sorted < order.len() {
        let rest = &mut order[sorted..];
        let more = (3 * sorted).max(128).min(rest.len());
        if more < rest.len() {
            rest.select_nth_unstable_by(more, descending);
        }
        rest[..more].sort_unstable_by(descending);
        for last in &rest[..more] {
            mass += last.1;
            if mass >= limit {
                kept.retain(|token| descending(token, last).is_le());
                return Ok(());
            }
        }
        sorted += more;
    }
    Ok(())
}
