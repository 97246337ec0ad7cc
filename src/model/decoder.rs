//! The forward pass of a Llama-like decoder: one code path for prefill (n > 1) and decode (n = 1).

use super::family::Architecture;
use super::layer::{Branch, Layer, Weights};
use super::loader::{Loader, Purpose};
use super::profile::{Operator, Profile};
use crate::bail;
use crate::checkpoint::{Config, Matrix};
use crate::error::Result;
use crate::faults;
use crate::memory;
use crate::ops::attention::{CacheLayer, Heads, Partials, Queries};
use crate::ops::kv::{self, KvLayout, Projected};
use crate::ops::linear::{Linear, Packed};
use crate::ops::moe::MoeBuffers;
use crate::ops::rope::{Rotary, rotate};
use crate::ops::{self, Exec, Sequence};
use crate::tensor::{AlignedBuffer, DType};
use std::sync::atomic::Ordering;

/// Receives intermediate tensors by name, row-major, one row per token. For tests; not part of the ABI.
pub type Tap = Box<dyn FnMut(&str, &[f32]) + Send + Sync>;

/// The weights and sizes of a model.
#[derive(Debug)]
pub struct Decoder {
    embedding: Matrix,
    layers: Vec<Layer>,
    /// Weight of the final RMSNorm, `[hidden]`.
    norm: Vec<f32>,
    lm_head: Linear,
    /// The rotary embeddings that the layers choose from.
    rotaries: Vec<Rotary>,
    heads: Heads,
    hidden: usize,
    intermediate: usize,
    eps: f32,
    architecture: Architecture,
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
    /// activation(gate) · up, `[n][intermediate]`.
    ff: AlignedBuffer<f32>,
    /// Of a layer with experts.
    moe: MoeBuffers,
    /// Cosines and sines of the rotary angles, `[rotaries][n][pairs]`.
    cos: AlignedBuffer<f32>,
    sin: AlignedBuffer<f32>,
    /// Activations as the kernels of matrices read them.
    packed: Packed,
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
        loader: &Loader<'_>,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Decoder> {
        let (hidden, vocab) = (config.hidden_size, config.vocab_size);
        let heads = Heads {
            kv: config.num_key_value_heads,
            group: config.num_attention_heads / config.num_key_value_heads,
            dim: config.head_dim,
            scoring: architecture.scoring(),
        };
        let mut layers = memory::with_room(config.num_hidden_layers)?;
        for i in 0..config.num_hidden_layers {
            if progress(i, config.num_hidden_layers) {
                bail!(Cancelled, "the load was cancelled at layer {i} of {}", config.num_hidden_layers);
            }
            layers.push(Layer::load(config, architecture, loader, i)?);
        }
        // Tied as Hugging Face does it: whichever of the two is there serves for both.
        const NAMES: [&str; 2] = ["model.embed_tokens.weight", "lm_head.weight"];
        let [embedding, lm_head] = NAMES.map(|name| if loader.contains(name) { name } else { "" });
        let either = |name: &'static str, other: &'static str| if name.is_empty() { other } else { name };
        let table = |name| loader.matrix(name, [vocab, hidden], Purpose::Vocabulary);
        let embedding = table(either(either(embedding, lm_head), NAMES[0]))?;
        let lm_head = match lm_head {
            "" => embedding.clone(),
            name => table(name)?,
        };
        progress(config.num_hidden_layers, config.num_hidden_layers);
        Ok(Decoder {
            embedding,
            layers,
            norm: Weights::new(loader, "model".to_string(), architecture).norm("norm", hidden)?,
            lm_head: Linear::new(vec![lm_head], &[])?,
            rotaries: [Some(&config.rope), config.rope_local.as_ref()].into_iter().flatten().map(Rotary::new).collect(),
            heads,
            hidden,
            intermediate: config.intermediate_size,
            eps: config.rms_norm_eps,
            architecture: architecture.clone(),
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
        let seen: usize = self.layers.iter().map(|layer| layer.window.unwrap_or(position).min(position)).sum();
        let attended = 2 * self.heads.kv * self.heads.group * self.heads.dim * seen;
        1.0 + 1.5 * attended as f64 / matrices as f64
    }

    /// Sizes of a KV cache of this model.
    pub fn kv_layout(&self, dtype: DType) -> KvLayout {
        KvLayout { layers: self.layers.len(), heads: self.heads.kv, head_dim: self.heads.dim, dtype }
    }

    /// The longest sequence that is rotated in the usual way, if there is another.
    pub fn longest_usual(&self) -> Option<usize> {
        self.rotaries[0].longest_usual()
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
        let pairs = self.rotaries[0].pairs();
        workspace.reserve(n, self)?;
        let Workspace { tokens, x, h, qkv, att, branch, ff, moe, cos, sin, packed, partials, .. } = workspace;
        let (x, h) = (&mut x[..n * self.hidden], &mut h[..n * self.hidden]);
        let (qkv, att) = (&mut qkv[..n * width], &mut att[..n * q_width]);
        let branch = &mut branch[..n * self.hidden];
        let angles = self.rotaries.len() * n * pairs;
        let (cos, sin) = (&mut cos[..angles], &mut sin[..angles]);

        let tokens = &mut tokens[..n];
        for sequence in &*sequences {
            tokens[sequence.rows.clone()].copy_from_slice(sequence.tokens);
            for (i, rotary) in self.rotaries.iter().enumerate() {
                let angles = (i * n + sequence.rows.start) * pairs..(i * n + sequence.rows.end) * pairs;
                let (cos, sin) = (&mut cos[angles.clone()], &mut sin[angles]);
                rotary.angles(sequence.start, sequence.kv.long(), cos, sin);
            }
        }
        clock.lap(Operator::Rope);
        ops::gather(exec, &self.embedding, tokens, x);
        if let Some(factor) = self.architecture.embedding_scale {
            ops::scale(exec, x, factor, self.hidden);
        }
        clock.lap(Operator::Embedding);
        trace(&mut tap, || "embeddings".into(), x);

        for (i, layer) in self.layers.iter().enumerate() {
            faults::point("layer");
            if all_cancelled(sequences, i) {
                break;
            }
            // x += Wo · attend(rope(Wq·h), rope(Wk·h), Wv·h)
            let input = self.branch_input(exec, x, &layer.attention_norm, h);
            clock.lap(Operator::RmsNorm);
            let cached = CacheLayer { index: i, window: layer.window };
            let prepare = |worker| heads.prefetch(exec, &sequences[0], cached, worker);
            layer.qkv.apply_after(exec, prepare, input, packed, qkv);
            clock.lap(Operator::Matmul);
            let turn = layer.rotary.map(|i| i * n * pairs..(i + 1) * n * pairs);
            self.prepare_rows(exec, layer, qkv, width, turn.map(|turn| (&cos[turn.clone()], &sin[turn])));
            clock.lap(Operator::Rope);
            trace_columns(&mut tap, || format!("layers.{i}.q_rope"), qkv, width, 0..q_width);
            trace_columns(&mut tap, || format!("layers.{i}.k_rope"), qkv, width, q_width..q_width + kv_width);
            kv::store(exec, sequences, i, Projected { qkv, width, keys: q_width });
            clock.lap(Operator::KvStore);
            heads.attend(exec, Queries { qkv, width }, sequences, cached, partials, att);
            clock.lap(Operator::Attention);
            trace(&mut tap, || format!("layers.{i}.attention"), att);
            layer.o.apply(exec, att, packed, branch);
            clock.lap(Operator::Matmul);
            trace(&mut tap, || format!("layers.{i}.attention_out"), branch);
            self.add_branch(exec, branch, &layer.attention_out_norm, x);
            clock.lap(Operator::Residual);

            // x += Wdown · (activation(Wgate·h) * Wup·h)
            let input = self.branch_input(exec, x, &layer.mlp_norm, h);
            clock.lap(Operator::RmsNorm);
            let activation = self.architecture.activation;
            match &layer.mlp {
                Branch::Dense(mlp) => mlp.apply(exec, activation, input, (ff, packed), branch),
                Branch::Sparse(experts) => experts.apply(exec, activation, input, moe, (ff, packed), branch),
            }
            clock.lap(Operator::Matmul);
            trace(&mut tap, || format!("layers.{i}.mlp"), branch);
            self.add_branch(exec, branch, &layer.mlp_out_norm, x);
            clock.lap(Operator::Residual);
            trace(&mut tap, || format!("layers.{i}.hidden"), x);
        }
        clock.count_step(n);
        Ok(x)
    }

    /// The residual stream as a branch gets it: its norm, in `h`, if the layer has one.
    fn branch_input<'x>(&self, exec: &Exec<'_>, x: &'x [f32], norm: &Option<Vec<f32>>, h: &'x mut [f32]) -> &'x [f32] {
        let Some(weight) = norm else { return x };
        ops::rms_norm(exec, x, weight, self.eps, h);
        h
    }

    /// Adds a branch's output, or its norm, to the residual stream.
    fn add_branch(&self, exec: &Exec<'_>, branch: &mut [f32], norm: &Option<Vec<f32>>, x: &mut [f32]) {
        if let Some(weight) = norm {
            ops::rms_norm_in_place(exec, branch, weight, self.eps);
        }
        if let Some(factor) = self.architecture.residual_scale {
            ops::scale(exec, branch, factor, self.hidden);
        }
        ops::add(exec, x, branch, self.hidden);
    }

    /// Normalizes, clamps and rotates the queries and keys of each row, as far as the layer does that.
    fn prepare_rows(
        &self,
        exec: &Exec<'_>,
        layer: &Layer,
        qkv: &mut [f32],
        width: usize,
        angles: Option<(&[f32], &[f32])>,
    ) {
        let heads = &self.heads;
        let (q, k) = (heads.kv * heads.group * heads.dim, heads.kv * heads.dim);
        let pairs = self.rotaries[0].pairs();
        let clip = self.architecture.clip_qkv;
        if layer.qk_norm.is_none() && clip.is_none() && angles.is_none() {
            return;
        }
        ops::each_row(exec, qkv, width, |t, row| {
            if let Some((q_norm, k_norm)) = &layer.qk_norm {
                for (part, weight) in [(0..q, q_norm), (q..q + k, k_norm)] {
                    let normalized = row[part].chunks_exact_mut(weight.len());
                    normalized.for_each(|x| exec.kernels.rms_norm_in_place(x, weight, self.eps));
                }
            }
            if let Some(clip) = clip {
                row.iter_mut().for_each(|v| *v = v.clamp(-clip, clip));
            }
            if let Some((cos, sin)) = angles {
                let turn = t * pairs..(t + 1) * pairs;
                for head in row[..q + k].chunks_exact_mut(heads.dim) {
                    rotate(head, &cos[turn.clone()], &sin[turn.clone()]);
                }
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
        self.finish_logits(exec, logits);
        clock.lap(Operator::LmHead);
        trace(&mut tap, || "logits".into(), logits);
        Ok(logits)
    }
}

impl Decoder {
    /// Divides and caps logits, as far as the model does that.
    fn finish_logits(&self, exec: &Exec<'_>, logits: &mut [f32]) {
        const GRAIN: usize = 4096;
        let Architecture { logit_divisor, logit_cap, .. } = self.architecture;
        if logit_divisor.is_none() && logit_cap.is_none() {
            return;
        }
        exec.team.blocks(logits, self.vocab(), (1, GRAIN), |_, mut block| {
            for t in block.rows() {
                let row = block.row(t);
                if let Some(divisor) = logit_divisor {
                    row.iter_mut().for_each(|v| *v /= divisor);
                }
                if let Some(cap) = logit_cap {
                    exec.kernels.soft_cap(row, cap);
                }
            }
        });
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
            (&mut self.cos, decoder.rotaries.len() * decoder.rotaries[0].pairs()),
            (&mut self.sin, decoder.rotaries.len() * decoder.rotaries[0].pairs()),
        ] {
            buffer.try_grow(n * width)?;
        }
        Ok(())
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
