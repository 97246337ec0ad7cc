//! `config.json` and `generation_config.json`, in the spelling of transformers 4 and 5.

use super::defaults::Defaults;
use super::json::{Reader, parse_object};
use super::{Document, Experts, LayerConfig, Quantization, Rope, layers, quantization, rope};
use crate::bail;
use crate::error::Result;
use serde_json::Value;
use std::ops::RangeInclusive;

/// What the checkpoint's configuration says. Nothing is guessed: a value is what a file says or what
/// transformers documents as the default of an absent key.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `model_type`, such as `"llama"`.
    pub model_type: String,
    /// `architectures[0]`, or empty.
    pub architecture: String,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Width of a head; explicit, or hidden_size / num_attention_heads.
    pub head_dim: usize,
    /// ε of RMSNorm.
    pub rms_norm_eps: f32,
    /// `hidden_act` or `hidden_activation`, such as `"silu"`.
    pub hidden_act: String,
    /// Longest trained context.
    pub max_position_embeddings: usize,
    /// Whether lm_head shares the embedding.
    pub tie_word_embeddings: bool,
    /// Whether q, k, v and o carry biases.
    pub attention_bias: bool,
    /// Whether gate, up and down carry biases.
    pub mlp_bias: bool,
    /// Rotary embedding.
    pub rope: Rope,
    /// Rotary embedding of the layers with a window, if they have one of their own.
    pub rope_local: Option<Rope>,
    /// What differs from layer to layer, one entry for each.
    pub layers: Vec<LayerConfig>,
    /// The experts of sparse layers.
    pub experts: Option<Experts>,
    /// Attention scores are divided by its square root, instead of head_dim's.
    pub query_pre_attn_scalar: Option<f64>,
    /// c: attention scores s become c · tanh(s / c).
    pub attn_logit_softcapping: Option<f64>,
    /// The same for logits.
    pub final_logit_softcapping: Option<f64>,
    /// Factor on embeddings.
    pub embedding_multiplier: Option<f64>,
    /// Factor on attention scores.
    pub attention_multiplier: Option<f64>,
    /// Factor on a branch before it is added to the residual stream.
    pub residual_multiplier: Option<f64>,
    /// Divisor of logits.
    pub logits_scaling: Option<f64>,
    /// Queries, keys and values are clamped to ± this.
    pub clip_qkv: Option<f64>,
    /// How matrices are stored that are quantized already.
    pub quantization: Option<Quantization>,
    /// Beginning-of-text token.
    pub bos_token_id: Option<u32>,
    /// End-of-generation tokens; `generation_config.json` wins over `config.json`, and a tokenizer's `eos_token` joins.
    pub eos_token_ids: Vec<u32>,
}

/// Widths beyond this are mistakes; products of two of them still fit 64 bits.
pub(super) const WIDTH: RangeInclusive<usize> = 1..=1 << 24;
/// The same for layers, heads and head widths.
pub(super) const COUNT: RangeInclusive<usize> = 1..=1 << 16;

impl Config {
    /// Reads and checks both files. Every error names the file and the key, what was expected and what was found.
    ///
    /// The keys that make the shape must be there. Other absent keys have the defaults of transformers' configuration
    /// class, except `bos_token_id` and `eos_token_id`, whose defaults there fit one vocabulary only: absent means none.
    pub fn parse(config: &Document, generation_config: Option<&Document>) -> Result<Config> {
        let map = parse_object(config)?;
        let c = Reader::new(&config.name, &map);
        let generation = generation_config.map(parse_object).transpose()?;

        let model_type = c.text("model_type")?.ok_or_else(|| c.wrong("model_type", "a string"))?.to_owned();
        let quantization = quantization::read(&c)?;
        refuse_other_layouts(&c)?;
        let defaults = Defaults::of(&model_type);

        let hidden_size = c.required_size("hidden_size", WIDTH)?;
        let num_attention_heads = c.required_size("num_attention_heads", COUNT)?;
        let absent = defaults.num_key_value_heads.filter(|_| !c.has("num_key_value_heads"));
        let num_key_value_heads = c.size("num_key_value_heads", COUNT)?.or(absent).unwrap_or(num_attention_heads);
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            let expected = format!("a divisor of num_attention_heads, {num_attention_heads}");
            return Err(c.wrong("num_key_value_heads", expected));
        }
        let head_dim = head_dim(&c, &defaults, hidden_size, num_attention_heads)?;
        let max_position_embeddings =
            c.size("max_position_embeddings", 1..=rope::MAX_POSITIONS)?.unwrap_or(defaults.max_position_embeddings);
        let rms_norm_eps = c
            .number("rms_norm_eps", "a number of at least 0 that fits an f32", |v| v >= 0.0 && (v as f32).is_finite())?
            .unwrap_or(defaults.rms_norm_eps) as f32;
        let vocab_size = c.required_size("vocab_size", WIDTH)?;
        let num_hidden_layers = c.required_size("num_hidden_layers", COUNT)?;
        let (rope, rope_local) = rope::read(&c, &defaults, head_dim, max_position_embeddings)?;
        let positive = |key| c.number(key, "a number above 0 that fits an f32", |v| v > 0.0 && (v as f32).is_finite());
        // Null switches a soft cap off.
        let soft_cap = |key, absent| if c.has(key) { positive(key) } else { Ok(absent) };

        let g = generation_config.zip(generation.as_ref()).map(|(document, map)| Reader::new(&document.name, map));
        let holder = |key| g.as_ref().filter(|g| g.has(key)).unwrap_or(&c);
        let parsed = Config {
            model_type,
            architecture: architecture(&c)?,
            vocab_size,
            hidden_size,
            intermediate_size: c.required_size("intermediate_size", WIDTH)?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            rms_norm_eps,
            hidden_act: activation(&c, &defaults)?.to_owned(),
            max_position_embeddings,
            tie_word_embeddings: c.flag("tie_word_embeddings", defaults.tie_word_embeddings)?,
            attention_bias: c.flag("attention_bias", false)?,
            mlp_bias: c.flag("mlp_bias", false)?,
            rope,
            rope_local,
            layers: layers::read(&c, &defaults, num_hidden_layers)?,
            experts: layers::experts(&c, &defaults)?,
            query_pre_attn_scalar: positive("query_pre_attn_scalar")?.or(defaults.query_pre_attn_scalar),
            attn_logit_softcapping: soft_cap("attn_logit_softcapping", defaults.attn_logit_softcapping)?,
            final_logit_softcapping: soft_cap("final_logit_softcapping", defaults.final_logit_softcapping)?,
            embedding_multiplier: positive("embedding_multiplier")?,
            attention_multiplier: positive("attention_multiplier")?,
            residual_multiplier: positive("residual_multiplier")?,
            logits_scaling: positive("logits_scaling")?,
            clip_qkv: positive("clip_qkv")?,
            quantization,
            bos_token_id: bos(holder("bos_token_id"), vocab_size)?,
            eos_token_ids: eos(holder("eos_token_id"), vocab_size)?,
        };
        parsed.check_addressable(&config.name)?;
        Ok(parsed)
    }

    /// Makes `id` an end-of-generation token too, unless it lies outside the vocabulary.
    pub fn add_eos(&mut self, id: u32) {
        if (id as usize) < self.vocab_size && !self.eos_token_ids.contains(&id) {
            self.eos_token_ids.push(id);
        }
    }

    /// No matrix of the model may exceed the address space, even in f32.
    fn check_addressable(&self, file: &str) -> Result<()> {
        let heads = self.num_attention_heads.saturating_mul(self.head_dim);
        for (name, rows) in
            [("vocab_size", self.vocab_size), ("intermediate_size", self.intermediate_size), ("heads", heads)]
        {
            let bytes = rows.checked_mul(self.hidden_size).and_then(|n| n.checked_mul(size_of::<f32>()));
            if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
                bail!(
                    Config,
                    "{file}: {name} ({rows}) times hidden_size ({}) exceeds the address space",
                    self.hidden_size
                );
            }
        }
        Ok(())
    }
}

/// Configs whose weights this library would misread.
fn refuse_other_layouts(c: &Reader<'_>) -> Result<()> {
    if c.get("text_config").is_some() {
        return Err(c.unsupported("text_config", "a language model nested in a larger one is not supported"));
    }
    if c.flag("use_bidirectional_attention", false)? {
        return Err(c.unsupported("use_bidirectional_attention", "attention to later tokens is not supported"));
    }
    Ok(())
}

/// As transformers, which knows that Gemma's "gelu" never meant the exact one.
fn activation<'a>(c: &Reader<'a>, defaults: &Defaults) -> Result<&'a str> {
    let (key, absent) = defaults.activation;
    let stated = c.text(key)?.unwrap_or(absent);
    Ok(if defaults.gelu_is_tanh && stated == "gelu" { "gelu_pytorch_tanh" } else { stated })
}

fn architecture(c: &Reader<'_>) -> Result<String> {
    let Some(value) = c.get("architectures") else { return Ok(String::new()) };
    let wrong = || c.wrong("architectures", "a list of strings");
    match value.as_array().ok_or_else(wrong)?.first() {
        Some(first) => Ok(first.as_str().ok_or_else(wrong)?.to_owned()),
        None => Ok(String::new()),
    }
}

fn head_dim(c: &Reader<'_>, defaults: &Defaults, hidden_size: usize, heads: usize) -> Result<usize> {
    let (key, head_dim) = match c.size("head_dim", COUNT)?.or(defaults.head_dim) {
        Some(head_dim) => ("head_dim", head_dim),
        None if hidden_size.is_multiple_of(heads) => ("hidden_size", hidden_size / heads),
        None => {
            let expected = format!("a multiple of num_attention_heads, {heads}, as there is no head_dim");
            return Err(c.wrong("hidden_size", expected));
        }
    };
    // The rotary embedding turns pairs.
    if !head_dim.is_multiple_of(2) {
        return Err(c.wrong(key, format!("an even width of a head, which is {head_dim}")));
    }
    if heads * head_dim > *WIDTH.end() {
        let expected = format!("heads of at most {} together, not {heads} of {head_dim}", WIDTH.end());
        return Err(c.wrong(key, expected));
    }
    Ok(head_dim)
}

/// A token id below `vocab_size`.
fn token(value: &Value, vocab_size: usize) -> Option<u32> {
    value.as_u64().filter(|&id| id < vocab_size as u64).and_then(|id| u32::try_from(id).ok())
}

fn bos(c: &Reader<'_>, vocab_size: usize) -> Result<Option<u32>> {
    let Some(value) = c.get("bos_token_id") else { return Ok(None) };
    let expected = || format!("a token id below vocab_size, {vocab_size}");
    token(value, vocab_size).map(Some).ok_or_else(|| c.wrong("bos_token_id", expected()))
}

/// One id or a list of ids, each once.
fn eos(c: &Reader<'_>, vocab_size: usize) -> Result<Vec<u32>> {
    let ids = match c.get("eos_token_id") {
        None => return Ok(Vec::new()),
        Some(Value::Array(ids)) => ids,
        Some(one) => std::slice::from_ref(one),
    };
    let mut tokens = Vec::new();
    for id in ids {
        let expected = || format!("token ids below vocab_size, {vocab_size}");
        let id = token(id, vocab_size).ok_or_else(|| c.wrong("eos_token_id", expected()))?;
        if !tokens.contains(&id) {
            tokens.push(id);
        }
    }
    Ok(tokens)
}
