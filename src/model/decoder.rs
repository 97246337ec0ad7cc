//! The forward pass of a Llama-like decoder: one code path for prefill (n > 1) and decode (n = 1).

use super::family::Architecture;
use super::profile::{Operator, Profile};
use crate::bail;
use crate::checkpoint::{Checkpoint, Config, Tensor};
use crate::error::Result;
use crate::ops::attention::{Heads, Partials, Queries};
use crate::ops::kv::{self, KvLayout, Projected};
use crate::ops::linear::Linear;
use crate::ops::rope::{Rotary, rotate};
use crate::ops::{self, Exec, Sequence};
use crate::tensor::{AlignedBuffer, DType};
use std::sync::atomic::Ordering;

/// Receives intermediate tensors by name, row-major, one row per token. For tests; not part of the ABI.
pub type Tap = Box<dyn FnMut(&str, &[f32]) + Send + Sync>;

/// The weights and sizes of a model.
#[derive(Debug)]
pub struct Decoder {
    embedding: Tensor,
    layers: Vec<Layer>,
    /// Weight of the final RMSNorm, `[hidden]`.
    norm: Vec<f32>,
    lm_head: Linear,
    rotary: Rotary,
    heads: Heads,
    hidden: usize,
    intermediate: usize,
    eps: f32,
}

/// One decoder layer.
#[derive(Debug)]
struct Layer {
    input_norm: Vec<f32>,
    /// q, k and v side by side.
    qkv: Linear,
    o: Linear,
    post_norm: Vec<f32>,
    /// gate and up side by side.
    gate_up: Linear,
    down: Linear,
}

impl Layer {
    /// Weights of its matrices.
    fn elements(&self) -> usize {
        [&self.qkv, &self.o, &self.gate_up, &self.down].map(|matrix| matrix.inputs() * matrix.outputs()).iter().sum()
    }
}

/// The buffers of a forward pass over at most n tokens.
#[derive(Debug, Default)]
pub struct Workspace {
    /// The tokens of all sequences, `[n]`.
    tokens: AlignedBuffer<u32>,
    /// The residual stream, `[n][hidden]`.
    x: AlignedBuffer<f32>,
    /// Its norm, `[n][hidden]`.
    h: AlignedBuffer<f32>,
    /// Queries, keys and values, `[n][(heads + 2 · kv_heads) · head_dim]`.
    qkv: AlignedBuffer<f32>,
    /// Attention output, `[n][heads · head_dim]`.
    att: AlignedBuffer<f32>,
    /// A branch's output before it is added to the residual stream, `[n][hidden]`.
    branch: AlignedBuffer<f32>,
    /// silu(gate) · up, `[n][intermediate]`.
    ff: AlignedBuffer<f32>,
    /// Cosines and sines of the rotary angles, `[n][head_dim / 2]`.
    cos: AlignedBuffer<f32>,
    sin: AlignedBuffer<f32>,
    /// Activations as the tile kernel reads them.
    packed: AlignedBuffer<f32>,
    /// Partial attention results.
    partials: Partials,
    /// Rows of the residual stream whose logits are wanted, `[m][hidden]`, and the logits, `[m][vocab]`.
    last: AlignedBuffer<f32>,
    logits: AlignedBuffer<f32>,
}

/// One forward pass over the next tokens of several sequences.
pub struct Pass<'a, 's> {
    /// The sequences. Their rows lie one behind the other.
    pub sequences: &'a mut [Sequence<'s>],
    /// Where operators are timed.
    pub profile: &'a mut Profile,
    /// Where intermediate tensors go.
    pub tap: Option<&'a mut Tap>,
}

impl Decoder {
    /// Finds and checks all weights. `progress` hears (done, total) layers and cancels by `true`.
    pub fn load(
        config: &Config,
        architecture: &Architecture,
        checkpoint: &Checkpoint,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Decoder> {
        let (hidden, intermediate, vocab) = (config.hidden_size, config.intermediate_size, config.vocab_size);
        let heads = Heads {
            kv: config.num_key_value_heads,
            group: config.num_attention_heads / config.num_key_value_heads,
            dim: config.head_dim,
            scale: architecture.score_scale,
        };
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for i in 0..config.num_hidden_layers {
            if progress(i, config.num_hidden_layers) {
                bail!(Cancelled, "the load was cancelled at layer {i} of {}", config.num_hidden_layers);
            }
            let weights = Weights { checkpoint, prefix: format!("model.layers.{i}") };
            let (q, kv) = (heads.kv * heads.group * heads.dim, heads.kv * heads.dim);
            layers.push(Layer {
                input_norm: weights.norm("input_layernorm", hidden)?,
                qkv: weights.linear(
                    &[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
                    hidden,
                    architecture.qkv_bias,
                )?,
                o: weights.linear(&[("self_attn.o_proj", hidden)], q, architecture.o_bias)?,
                post_norm: weights.norm("post_attention_layernorm", hidden)?,
                gate_up: weights.linear(
                    &[("mlp.gate_proj", intermediate), ("mlp.up_proj", intermediate)],
                    hidden,
                    architecture.mlp_bias,
                )?,
                down: weights.linear(&[("mlp.down_proj", hidden)], intermediate, architecture.mlp_bias)?,
            });
        }
        // Tied as Hugging Face does it: whichever of the two is there serves for both.
        const NAMES: [&str; 2] = ["model.embed_tokens.weight", "lm_head.weight"];
        let [embedding, lm_head] = NAMES.map(|name| if checkpoint.contains(name) { name } else { "" });
        let either = |name: &'static str, other: &'static str| if name.is_empty() { other } else { name };
        let embedding = checkpoint.tensor(either(either(embedding, lm_head), NAMES[0]), &[vocab, hidden])?;
        let lm_head = match lm_head {
            "" => embedding.clone(),
            name => checkpoint.tensor(name, &[vocab, hidden])?,
        };
        progress(config.num_hidden_layers, config.num_hidden_layers);
        Ok(Decoder {
            embedding,
            layers,
            norm: Weights { checkpoint, prefix: "model".to_string() }.norm("norm", hidden)?,
            lm_head: Linear::new(vec![lm_head], &[])?,
            rotary: Rotary::new(&config.rope, config.head_dim),
            heads,
            hidden,
            intermediate,
            eps: config.rms_norm_eps,
        })
    }

    /// Width of the residual stream.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Number of logits.
    pub fn vocab(&self) -> usize {
        self.lm_head.outputs()
    }

    /// What a prompt token at `position` costs, as a multiple of one at 0: attending to the cache adds to the matrices' work,
    /// and is half as much again for each operation.
    pub fn token_cost(&self, position: usize) -> f64 {
        let matrices: usize = self.layers.iter().map(Layer::elements).sum();
        let attended = 2 * self.layers.len() * self.heads.kv * self.heads.group * self.heads.dim * position;
        1.0 + 1.5 * attended as f64 / matrices as f64
    }

    /// Sizes of a KV cache of this model.
    pub fn kv_layout(&self, dtype: DType) -> KvLayout {
        KvLayout { layers: self.layers.len(), heads: self.heads.kv, head_dim: self.heads.dim, dtype }
    }

    /// Runs the tokens through all layers; returns the residual stream after the last, `[n][hidden]`, where each sequence
    /// has its rows. A row's result does not depend on the others. Stops early if all sequences are cancelled.
    pub fn forward<'w>(&self, exec: &Exec<'_>, workspace: &'w mut Workspace, pass: Pass<'_, '_>) -> Result<&'w [f32]> {
        let Pass { sequences, profile, mut tap } = pass;
        let mut clock = profile.clock();
        let mut n = 0;
        for sequence in &mut *sequences {
            sequence.rows = n..n + sequence.tokens.len();
            n = sequence.rows.end;
        }
        let heads = &self.heads;
        let (q_width, kv_width) = (heads.kv * heads.group * heads.dim, heads.kv * heads.dim);
        let width = q_width + 2 * kv_width;
        let half = heads.dim / 2;
        workspace.reserve(n, self)?;
        let Workspace { tokens, x, h, qkv, att, branch, ff, cos, sin, packed, partials, .. } = workspace;
        let (x, h) = (&mut x[..n * self.hidden], &mut h[..n * self.hidden]);
        let (qkv, att) = (&mut qkv[..n * width], &mut att[..n * q_width]);
        let branch = &mut branch[..n * self.hidden];
        let ff = &mut ff[..n * self.intermediate];
        let (cos, sin) = (&mut cos[..n * half], &mut sin[..n * half]);

        let tokens = &mut tokens[..n];
        for sequence in &*sequences {
            tokens[sequence.rows.clone()].copy_from_slice(sequence.tokens);
            let angles = sequence.rows.start * half..sequence.rows.end * half;
            self.rotary.angles(sequence.start, &mut cos[angles.clone()], &mut sin[angles]);
        }
        clock.lap(Operator::Rope);
        ops::gather(exec, self.embedding.dtype(), self.embedding.bytes(), self.hidden, tokens, x);
        clock.lap(Operator::Embedding);
        trace(&mut tap, || "embeddings".into(), x);

        for (i, layer) in self.layers.iter().enumerate() {
            if all_cancelled(sequences, i) {
                break;
            }
            // x += Wo · attend(rope(Wq·h), rope(Wk·h), Wv·h)
            ops::rms_norm(exec, x, &layer.input_norm, self.eps, h);
            clock.lap(Operator::RmsNorm);
            let prepare = |worker| heads.prefetch(exec, &sequences[0], i, worker);
            layer.qkv.apply_after(exec, prepare, h, packed, qkv);
            clock.lap(Operator::Matmul);
            self.rotate(exec, qkv, width, cos, sin);
            clock.lap(Operator::Rope);
            trace_columns(&mut tap, || format!("layers.{i}.q_rope"), qkv, width, 0..q_width);
            trace_columns(&mut tap, || format!("layers.{i}.k_rope"), qkv, width, q_width..q_width + kv_width);
            kv::store(exec, sequences, i, Projected { qkv, width, keys: q_width });
            clock.lap(Operator::KvStore);
            heads.attend(exec, Queries { qkv, width }, sequences, i, partials, att);
            clock.lap(Operator::Attention);
            trace(&mut tap, || format!("layers.{i}.attention"), att);
            layer.o.apply(exec, att, packed, branch);
            clock.lap(Operator::Matmul);
            trace(&mut tap, || format!("layers.{i}.attention_out"), branch);
            ops::add(exec, x, branch, self.hidden);
            clock.lap(Operator::Residual);

            // x += Wdown · (silu(Wgate·h) * Wup·h)
            ops::rms_norm(exec, x, &layer.post_norm, self.eps, h);
            clock.lap(Operator::RmsNorm);
            layer.gate_up.apply_swiglu(exec, h, packed, ff);
            clock.lap(Operator::Matmul);
            layer.down.apply(exec, ff, packed, branch);
            clock.lap(Operator::Matmul);
            trace(&mut tap, || format!("layers.{i}.mlp"), branch);
            ops::add(exec, x, branch, self.hidden);
            clock.lap(Operator::Residual);
            trace(&mut tap, || format!("layers.{i}.hidden"), x);
        }
        clock.count_step(n);
        Ok(x)
    }

    /// Rotates the queries and keys of each row.
    fn rotate(&self, exec: &Exec<'_>, qkv: &mut [f32], width: usize, cos: &[f32], sin: &[f32]) {
        let half = self.heads.dim / 2;
        let rotated = (self.heads.kv * self.heads.group + self.heads.kv) * self.heads.dim;
        ops::each_row(exec, qkv, width, |t, row| {
            let angles = t * half..(t + 1) * half;
            for head in row[..rotated].chunks_exact_mut(self.heads.dim) {
                rotate(head, &cos[angles.clone()], &sin[angles.clone()]);
            }
        });
    }

    /// The logits of `n` rows of the residual stream, `[hidden]` each, as `[n][vocab]`.
    pub fn logits<'w, 'r>(
        &self,
        exec: &Exec<'_>,
        workspace: &'w mut Workspace,
        n: usize,
        rows: impl Iterator<Item = &'r [f32]>,
        profile: &mut Profile,
        mut tap: Option<&mut Tap>,
    ) -> Result<&'w [f32]> {
        let mut clock = profile.clock();
        workspace.reserve(n, self)?;
        let Workspace { h, packed, last, logits, .. } = workspace;
        last.try_grow(n * self.hidden)?;
        logits.try_grow(n * self.vocab())?;
        let (last, logits) = (&mut last[..n * self.hidden], &mut logits[..n * self.vocab()]);
        last.chunks_exact_mut(self.hidden).zip(rows).for_each(|(last, row)| last.copy_from_slice(row));
        let h = &mut h[..last.len()];
        ops::rms_norm(exec, last, &self.norm, self.eps, h);
        clock.lap(Operator::RmsNorm);
        trace(&mut tap, || "final_norm".into(), h);
        self.lm_head.apply(exec, h, packed, logits);
        clock.lap(Operator::LmHead);
        trace(&mut tap, || "logits".into(), logits);
        Ok(logits)
    }
}

impl Workspace {
    /// Makes room for `n` tokens.
    pub fn reserve(&mut self, n: usize, decoder: &Decoder) -> Result<()> {
        let heads = &decoder.heads;
        let q = heads.kv * heads.group * heads.dim;
        self.tokens.try_grow(n)?;
        for (buffer, width) in [
            (&mut self.x, decoder.hidden),
            (&mut self.h, decoder.hidden),
            (&mut self.qkv, q + 2 * heads.kv * heads.dim),
            (&mut self.att, q),
            (&mut self.branch, decoder.hidden),
            (&mut self.ff, decoder.intermediate),
            (&mut self.cos, heads.dim / 2),
            (&mut self.sin, heads.dim / 2),
        ] {
            buffer.try_grow(n * width)?;
        }
        Ok(())
    }
}

/// A layer's weights by name.
struct Weights<'a> {
    checkpoint: &'a Checkpoint,
    prefix: String,
}

impl Weights<'_> {
    fn norm(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        Ok(self.checkpoint.tensor(&format!("{}.{name}.weight", self.prefix), &[len])?.view().to_f32())
    }

    /// The matrices `(name, outputs)` side by side.
    fn linear(&self, parts: &[(&str, usize)], inputs: usize, bias: bool) -> Result<Linear> {
        let tensor = |name: &str, kind: &str, shape: &[usize]| {
            self.checkpoint.tensor(&format!("{}.{name}.{kind}", self.prefix), shape)
        };
        let weights = parts.iter().map(|(name, outputs)| tensor(name, "weight", &[*outputs, inputs]));
        let biases = parts.iter().filter(|_| bias).map(|(name, outputs)| tensor(name, "bias", &[*outputs]));
        Linear::new(weights.collect::<Result<_>>()?, &biases.collect::<Result<Vec<_>>>()?)
    }
}

/// Notes for each sequence whether it is cancelled before `layer`; `true` if all are.
fn all_cancelled(sequences: &mut [Sequence<'_>], layer: usize) -> bool {
    for sequence in &mut *sequences {
        if sequence.cancelled.is_none() && sequence.cancel.load(Ordering::Relaxed) {
            *sequence.cancelled = Some(layer);
        }
    }
    sequences.iter().all(|sequence| sequence.cancelled.is_some())
}

fn trace(tap: &mut Option<&mut Tap>, name: impl FnOnce() -> String, values: &[f32]) {
    if let Some(tap) = tap {
        tap(&name(), values);
    }
}

fn trace_columns(
    tap: &mut Option<&mut Tap>,
    name: impl FnOnce() -> String,
    values: &[f32],
    width: usize,
    columns: std::ops::Range<usize>,
) {
    if tap.is_some() {
        let rows = values.chunks_exact(width).flat_map(|row| &row[columns.clone()]).copied();
        trace(tap, name, &rows.collect::<Vec<_>>());
    }
}
