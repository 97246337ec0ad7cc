//! Rotary position embedding (Su et al. 2021), half-split as Hugging Face lays it out, with the scalings of
//! transformers' `modeling_rope_utils.py`.

use crate::checkpoint::{Rope, RopeScaling};
use std::f64::consts::PI;

/// The frequencies of one model. Angles are f32 as in Hugging Face; their sine and cosine are computed in f64 by a
/// pure-Rust libm and rounded once, so that they are the same on every platform.
#[derive(Debug)]
pub struct Rotary {
    rope: Rope,
    /// f32 inverse frequencies, `rotary_dim / 2`.
    inv_freq: Vec<f32>,
    /// Those of long sequences, if they differ.
    long_inv_freq: Option<Vec<f32>>,
    /// Factor on sine and cosine.
    attention_factor: f32,
}

impl Rotary {
    /// The frequencies of `rope`.
    pub fn new(rope: &Rope) -> Rotary {
        let dim = rope.rotary_dim;
        let mut inv_freq: Vec<f32> = base_frequencies(rope.theta, dim).collect();
        let mut long_inv_freq = None;
        let mut attention_factor = 1.0;
        match &rope.scaling {
            // The dynamic base depends on the position; see `angles`.
            RopeScaling::None | RopeScaling::Dynamic { .. } => {}
            RopeScaling::Linear { factor } => inv_freq.iter_mut().for_each(|f| *f /= *factor as f32),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                let bands = (*factor as f32, *low_freq_factor as f32, *high_freq_factor as f32);
                inv_freq.iter_mut().for_each(|f| *f = llama3(*f, bands, *original_max_position_embeddings as f32));
            }
            RopeScaling::Yarn { attention_factor: on_both, .. } => {
                yarn(rope, &mut inv_freq);
                attention_factor = *on_both as f32;
            }
            RopeScaling::LongRope { short_factor, long_factor, attention_factor: on_both, .. } => {
                let divided = |by: &[f64]| -> Vec<f32> {
                    by.iter().zip(powers(rope.theta, dim)).map(|(by, power)| 1.0 / (*by as f32 * power)).collect()
                };
                (inv_freq, long_inv_freq) = (divided(short_factor), Some(divided(long_factor)));
                attention_factor = *on_both as f32;
            }
        }
        Rotary { rope: rope.clone(), inv_freq, long_inv_freq, attention_factor }
    }

    /// Half the number of elements of a head that are rotated: pairs.
    pub fn pairs(&self) -> usize {
        self.inv_freq.len()
    }

    /// The longest sequence that is rotated by the usual frequencies; a longer one has its own, for all its positions.
    pub fn longest_usual(&self) -> Option<usize> {
        match self.rope.scaling {
            RopeScaling::LongRope { original_max_position_embeddings, .. } => Some(original_max_position_embeddings),
            _ => None,
        }
    }

    /// Cosines and sines of consecutive positions from `start` of a sequence that is `long` or not: `[n][pairs]` each.
    pub fn angles(&self, start: usize, long: bool, cos: &mut [f32], sin: &mut [f32]) {
        let half = self.pairs();
        let inv_freq = self.long_inv_freq.as_ref().filter(|_| long).unwrap_or(&self.inv_freq);
        for (t, (cos, sin)) in cos.chunks_exact_mut(half).zip(sin.chunks_exact_mut(half)).enumerate() {
            let position = start + t;
            let place = |(i, inv_freq): (usize, f32)| {
                let angle = f64::from(inv_freq * position as f32);
                cos[i] = libm::cos(angle) as f32 * self.attention_factor;
                sin[i] = libm::sin(angle) as f32 * self.attention_factor;
            };
            match self.dynamic_theta(position) {
                Some(theta) => base_frequencies(theta, self.rope.rotary_dim).enumerate().for_each(place),
                None => inv_freq.iter().copied().enumerate().for_each(place),
            }
        }
    }

    /// The dynamic NTK base of a position beyond the trained length. Hugging Face's cached `generate` rotates the token at
    /// position p with the base of a sequence of p + 1 tokens; so do we, for prompts too, since the angle may not
    /// depend on how a prompt was cut.
    fn dynamic_theta(&self, position: usize) -> Option<f64> {
        let RopeScaling::Dynamic { factor, original_max_position_embeddings: trained } = self.rope.scaling else {
            return None;
        };
        (position >= trained).then(|| {
            let dim = self.rope.rotary_dim as f64;
            let growth = factor * (position + 1) as f64 / trained as f64 - (factor - 1.0);
            self.rope.theta * libm::pow(growth, dim / (dim - 2.0))
        })
    }
}

/// 1 / θ^(2i/d), each step in f32 as torch does.
fn base_frequencies(theta: f64, dim: usize) -> impl Iterator<Item = f32> {
    powers(theta, dim).map(|p| 1.0 / p)
}

/// θ^(2i/d) as f32.
fn powers(theta: f64, dim: usize) -> impl Iterator<Item = f32> {
    (0..dim / 2).map(move |i| libm::pow(theta, f64::from((2 * i) as f32 / dim as f32)) as f32)
}

/// Llama 3.1: long wavelengths are scaled, short ones kept, those between blended.
fn llama3(inv_freq: f32, (factor, low, high): (f32, f32, f32), trained: f32) -> f32 {
    let wavelength = (2.0 * PI) as f32 / inv_freq;
    if wavelength > trained / low {
        inv_freq / factor
    } else if wavelength < trained / high {
        inv_freq
    } else {
        let smooth = (trained / wavelength - low) / (high - low);
        (1.0 - smooth) * inv_freq / factor + smooth * inv_freq
    }
}

/// YaRN (Peng et al. 2023): dimensions that turn often are kept, those that turn seldom interpolated.
fn yarn(rope: &Rope, inv_freq: &mut [f32]) {
    let RopeScaling::Yarn { factor, original_max_position_embeddings, beta_fast, beta_slow, truncate, .. } =
        rope.scaling
    else {
        return;
    };
    let dim = rope.rotary_dim as f64;
    let trained = original_max_position_embeddings as f64;
    let dimension = |turns: f64| dim * libm::log(trained / (turns * 2.0 * PI)) / (2.0 * libm::log(rope.theta));
    let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(dim - 1.0));
    if low == high {
        high += 0.001; // as Hugging Face, against a division by zero
    }
    for (i, (out, power)) in inv_freq.iter_mut().zip(powers(rope.theta, rope.rotary_dim)).enumerate() {
        let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
        let keep = 1.0 - ramp;
        *out = 1.0 / (factor as f32 * power) * (1.0 - keep) + 1.0 / power * keep;
    }
}

/// Rotates the first 2p elements of one head in place, p being the number of angles: the pair (`x[i]`, `x[i + p]`) by the
/// angle i. Product and sum are rounded separately, as in Hugging Face.
pub fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
