//! One decoder layer: its weights by their Hugging Face names.

use super::family::{Architecture, Norms, QkNorm};
use super::loader::{Loader, Purpose};
use crate::checkpoint::{Config, LayerConfig, Matrix, Tensor};
use crate::error::Result;
use crate::memory;
use crate::ops::linear::Linear;
use crate::ops::moe::{Experts, Mlp};

/// The weights of a layer. What a family lacks is `None`.
#[derive(Debug)]
pub struct Layer {
    /// Norms of the inputs of both branches and of their outputs, `[hidden]` each.
    pub attention_norm: Option<Vec<f32>>,
    pub attention_out_norm: Option<Vec<f32>>,
    pub mlp_norm: Option<Vec<f32>>,
    pub mlp_out_norm: Option<Vec<f32>>,
    /// q, k and v side by side.
    pub qkv: Linear,
    /// Norms of queries and of keys: of a head if they are as wide as one, else of all heads together.
    pub qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    /// Which of the decoder's rotary embeddings turns queries and keys.
    pub rotary: Option<usize>,
    /// How many tokens a token sees, itself included.
    pub window: Option<usize>,
    pub o: Linear,
    pub mlp: Branch,
}

/// The second branch of a layer.
#[derive(Debug)]
pub enum Branch {
    /// An MLP for all tokens.
    Dense(Mlp),
    /// A few of many MLPs for each token.
    Sparse(Experts),
}

impl Layer {
    /// Finds and checks the weights of layer `i`.
    pub fn load(config: &Config, architecture: &Architecture, loader: &Loader<'_>, i: usize) -> Result<Layer> {
        let hidden = config.hidden_size;
        let weights = Weights::new(loader, format!("model.layers.{i}"), architecture);
        let LayerConfig { window, rotated, sparse } = config.layers[i];
        let (q, kv) = (config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim);
        let qk_norm = |kind| -> Result<_> {
            let (q, kv) = if kind == QkNorm::Head { (config.head_dim, config.head_dim) } else { (q, kv) };
            Ok((weights.norm("self_attn.q_norm", q)?, weights.norm("self_attn.k_norm", kv)?))
        };
        let norm = |name: Option<&str>| name.map(|name| weights.norm(name, hidden)).transpose();
        let Norms { before_attention, after_attention, before_mlp, after_mlp } = architecture.norms;
        Ok(Layer {
            attention_norm: norm(before_attention)?,
            attention_out_norm: norm(after_attention)?,
            mlp_norm: norm(before_mlp)?,
            mlp_out_norm: norm(after_mlp)?,
            qkv: weights.joined(
                "self_attn.qkv_proj",
                &[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
                hidden,
                architecture.qkv_bias,
            )?,
            qk_norm: architecture.qk_norm.map(qk_norm).transpose()?,
            // Layers with a window may have a rotary embedding of their own, the second.
            rotary: rotated.then_some(usize::from(window.is_some() && config.rope_local.is_some())),
            window,
            o: weights.linear(&[("self_attn.o_proj", hidden)], q, architecture.o_bias)?,
            mlp: match (&config.experts, sparse) {
                (Some(experts), true) => Branch::Sparse(weights.experts(experts, hidden)?),
                _ => Branch::Dense(weights.mlp(
                    "mlp",
                    ["gate_proj", "up_proj", "down_proj"],
                    (hidden, config.intermediate_size),
                )?),
            },
        })
    }
}

impl Layer {
    /// Weights of the matrices that one token is multiplied by.
    pub fn elements(&self) -> usize {
        let of = |matrix: &Linear| matrix.inputs() * matrix.outputs();
        let mlp = |mlp: &Mlp| of(&mlp.gate_up) + of(&mlp.down);
        let branch = match &self.mlp {
            Branch::Dense(dense) => mlp(dense),
            Branch::Sparse(experts) => {
                of(&experts.router) + experts.experts.iter().take(experts.per_token).map(mlp).sum::<usize>()
            }
        };
        of(&self.qkv) + of(&self.o) + branch
    }
}

/// Weights by name, behind a prefix.
pub struct Weights<'a> {
    loader: &'a Loader<'a>,
    prefix: String,
    architecture: &'a Architecture,
}

impl<'a> Weights<'a> {
    /// Those of `loader` whose names begin with `prefix`.
    pub fn new(loader: &'a Loader<'a>, prefix: String, architecture: &'a Architecture) -> Weights<'a> {
        Weights { loader, prefix, architecture }
    }

    /// The weight of a norm.
    pub fn norm(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let mut weight = self.tensor(name, "weight", &[len])?.view().to_f32()?;
        if self.architecture.norm_offset != 0.0 {
            weight.iter_mut().for_each(|w| *w += self.architecture.norm_offset);
        }
        Ok(weight)
    }

    fn tensor(&self, name: &str, kind: &str, shape: &[usize]) -> Result<Tensor> {
        self.loader.tensor(&format!("{}.{name}.{kind}", self.prefix), shape)
    }

    fn matrix(&self, name: &str, shape: [usize; 2], purpose: Purpose) -> Result<Matrix> {
        self.loader.matrix(&format!("{}.{name}.weight", self.prefix), shape, purpose)
    }

    /// The matrices `(name, outputs)` side by side.
    fn linear(&self, parts: &[(&str, usize)], inputs: usize, bias: bool) -> Result<Linear> {
        let weights = parts.iter().map(|(name, outputs)| self.matrix(name, [*outputs, inputs], Purpose::Layer));
        let biases = parts.iter().filter(|_| bias).map(|(name, outputs)| self.tensor(name, "bias", &[*outputs]));
        Linear::new(weights.collect::<Result<_>>()?, &biases.collect::<Result<Vec<_>>>()?)
    }

    /// As [`linear`](Self::linear), where the parts are rows of one matrix, `fused`, if the family stores them so.
    fn joined(&self, fused: &str, parts: &[(&str, usize)], inputs: usize, bias: bool) -> Result<Linear> {
        if !self.architecture.fused {
            return self.linear(parts, inputs, bias);
        }
        let outputs = parts.iter().map(|(_, outputs)| outputs).sum();
        let whole = self.matrix(fused, [outputs, inputs], Purpose::Layer)?;
        let mut end = 0;
        let rows = parts.iter().map(|(_, outputs)| {
            end += outputs;
            whole.rows(end - outputs..end)
        });
        Linear::new(rows.collect(), &[])
    }

    /// The MLP `block` of matrices gate, up and down with these names.
    fn mlp(&self, block: &str, names: [&str; 3], (hidden, intermediate): (usize, usize)) -> Result<Mlp> {
        let [gate, up, down] = names.map(|name| format!("{block}.{name}"));
        let bias = self.architecture.mlp_bias;
        let fused = format!("{block}.gate_up_proj");
        Ok(Mlp {
            gate_up: self.joined(&fused, &[(&gate, intermediate), (&up, intermediate)], hidden, bias)?,
            down: self.linear(&[(&down, hidden)], intermediate, bias)?,
        })
    }

    fn experts(&self, experts: &crate::checkpoint::Experts, hidden: usize) -> Result<Experts> {
        let names = self.architecture.experts;
        let expert = |e: usize| {
            let block = format!("{}.experts.{e}", names.block);
            self.mlp(&block, [names.gate, names.up, names.down], (hidden, experts.intermediate_size))
        };
        let router = self.matrix(&format!("{}.gate", names.block), [experts.count, hidden], Purpose::Router)?;
        let mut loaded = memory::with_room(experts.count)?;
        for e in 0..experts.count {
            loaded.push(expert(e)?);
        }
        Ok(Experts {
            router: Linear::new(vec![router], &[])?,
            experts: loaded,
            per_token: experts.per_token,
            normalize: self.architecture.normalize_experts,
        })
    }
}
