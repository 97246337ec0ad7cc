//! A mixture of experts (Shazeer et al. 2017): for each token a router chooses a few of many gated MLPs.
//!
//! Each token's result is the sum over its experts in ascending order, so it depends neither on the other tokens nor on how
//! they are grouped. Experts that no token has chosen are not read.

use super::linear::{Linear, Packed};
use super::{Exec, each_row};
use crate::kernels::Activation;
use crate::tensor::AlignedBuffer;

/// A gated MLP: `down · (activation(gate · x) · (up · x))`.
#[derive(Debug)]
pub struct Mlp {
    /// gate and up side by side.
    pub gate_up: Linear,
    /// `[hidden][intermediate]`.
    pub down: Linear,
}

/// A router and its experts.
#[derive(Debug)]
pub struct Experts {
    /// `[experts][hidden]`.
    pub router: Linear,
    /// The experts.
    pub experts: Vec<Mlp>,
    /// How many each token goes to.
    pub per_token: usize,
    /// Whether the weights of a token's experts are made to sum to 1.
    pub normalize: bool,
}

/// Buffers of [`Experts::apply`] for n tokens.
#[derive(Debug, Default)]
pub struct MoeBuffers {
    /// The router's probabilities, then the weights of the chosen and 0 for the others, `[n][experts]`.
    weights: AlignedBuffer<f32>,
    /// The tokens of one expert; their inputs `[m][hidden]` and outputs `[m][hidden]`.
    tokens: AlignedBuffer<usize>,
    inputs: AlignedBuffer<f32>,
    outputs: AlignedBuffer<f32>,
}

impl Mlp {
    /// Applies it to each row of `x`, `[n][hidden]`, giving `out`, `[n][hidden]`. `ff` and `packed` are buffers.
    pub fn apply(
        &self,
        exec: &Exec<'_>,
        activation: Activation,
        x: &[f32],
        (ff, packed): (&mut AlignedBuffer<f32>, &mut Packed),
        out: &mut [f32],
    ) {
        let ff = ff.grown(x.len() / self.gate_up.inputs() * self.down.inputs());
        self.gate_up.apply_gated(exec, activation, x, packed, ff);
        self.down.apply(exec, ff, packed, out);
    }
}

impl Experts {
    /// Applies to each row of `x`, `[n][hidden]`, the experts that the router chooses for it, giving `out`, `[n][hidden]`.
    pub fn apply(
        &self,
        exec: &Exec<'_>,
        activation: Activation,
        x: &[f32],
        buffers: &mut MoeBuffers,
        (ff, packed): (&mut AlignedBuffer<f32>, &mut Packed),
        out: &mut [f32],
    ) {
        let (hidden, count) = (self.router.inputs(), self.experts.len());
        let n = x.len() / hidden;
        let weights = buffers.weights.grown(n * count);
        self.router.apply(exec, x, packed, weights);
        each_row(exec, weights, count, |_, row| {
            exec.kernels.softmax(row);
            self.choose(row);
        });
        out.fill(0.0);
        for (e, expert) in self.experts.iter().enumerate() {
            let tokens = buffers.tokens.grown(n);
            let mut m = 0;
            for t in (0..n).filter(|t| weights[t * count + e] != 0.0) {
                tokens[m] = t;
                m += 1;
            }
            if m == 0 {
                continue;
            }
            let inputs = buffers.inputs.grown(m * hidden);
            for (input, t) in inputs.chunks_exact_mut(hidden).zip(&*tokens) {
                input.copy_from_slice(&x[t * hidden..(t + 1) * hidden]);
            }
            let outputs = buffers.outputs.grown(m * hidden);
            expert.apply(exec, activation, inputs, (&mut *ff, &mut *packed), outputs);
            for (output, t) in outputs.chunks_exact(hidden).zip(&*tokens) {
                let weight = weights[t * count + e];
                let out = &mut out[t * hidden..(t + 1) * hidden];
                out.iter_mut().zip(output).for_each(|(out, v)| *out += v * weight);
            }
        }
    }

    /// Keeps the greatest of a token's probabilities, of equal ones the first, and sets the others to 0.
    fn choose(&self, row: &mut [f32]) {
        if row.iter().any(|p| p.is_nan()) {
            return row.fill(f32::NAN);
        }
        let mut chosen = 0.0;
        // Those chosen are negative until the others are gone.
        for _ in 0..self.per_token {
            let greatest = (0..row.len()).reduce(|a, b| if row[b] > row[a] { b } else { a }).unwrap_or(0);
            chosen += row[greatest];
            row[greatest] = -row[greatest];
        }
        let divisor = if self.normalize { chosen } else { 1.0 };
        row.iter_mut().for_each(|p| *p = if p.is_sign_negative() { -*p / divisor } else { 0.0 });
    }
}
