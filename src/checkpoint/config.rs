//! `config.json` and `generation_config.json`, in the spelling of transformers 4 and 5.

use super::json::{Reader, parse_object};
use super::{Document, Rope, rope};
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
    /// `hidden_act`, such as `"silu"`.
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
    /// Beginning-of-text token.
    pub bos_token_id: Option<u32>,
    /// End-of-generation tokens; `generation_config.json` wins over `config.json`, and a tokenizer's `eos_token` joins.
    pub eos_token_ids: Vec<u32>,
}

/// Widths beyond this are mistakes; products of two of them still fit 64 bits.
const WIDTH: RangeInclusive<usize> = 1..=1 << 24;
/// The same for layers, heads and head widths.
const COUNT: RangeInclusive<usize> = 1..=1 << 16;

impl Config {
    /// Reads and checks both files. Every error names the file and the key, what was expected and what was found.
    ///
    /// The keys that make the shape must be there. Other absent keys have the defaults of transformers' `LlamaConfig`,
    /// except `bos_token_id` and `eos_token_id`, whose defaults there fit one vocabulary only: absent means none.
    pub fn parse(config: &Document, generation_config: Option<&Document>) -> Result<Config> {
        let map = parse_object(config)?;
        let c = Reader::new(&config.name, &map);
        let generation = generation_config.map(parse_object).transpose()?;

        let model_type = c.text("model_type")?.ok_or_else(|| c.wrong("model_type", "a string"))?.to_owned();
        refuse_other_layouts(&c)?;

        let hidden_size = c.required_size("hidden_size", WIDTH)?;
        let num_attention_heads = c.required_size("num_attention_heads", COUNT)?;
        let num_key_value_heads = c.size("num_key_value_heads", COUNT)?.unwrap_or(num_attention_heads);
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            let expected = format!("a divisor of num_attention_heads, {num_attention_heads}");
            return Err(c.wrong("num_key_value_heads", expected));
        }
        let head_dim = head_dim(&c, hidden_size, num_attention_heads)?;
        let max_position_embeddings = c.size("max_position_embeddings", 1..=rope::MAX_POSITIONS)?.unwrap_or(2048);
        let rms_norm_eps = c
            .number("rms_norm_eps", "a number of at least 0 that fits an f32", |v| v >= 0.0 && (v as f32).is_finite())?
            .unwrap_or(1e-6) as f32;
        let vocab_size = c.required_size("vocab_size", WIDTH)?;

        let g = generation_config.zip(generation.as_ref()).map(|(document, map)| Reader::new(&document.name, map));
        let holder = |key| g.as_ref().filter(|g| g.has(key)).unwrap_or(&c);
        let parsed = Config {
            model_type,
            architecture: architecture(&c)?,
            vocab_size,
            hidden_size,
            intermediate_size: c.required_size("intermediate_size", WIDTH)?,
            num_hidden_layers: c.required_size("num_hidden_layers", COUNT)?,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            rms_norm_eps,
            hidden_act: c.text("hidden_act")?.unwrap_or("silu").to_owned(),
            max_position_embeddings,
            tie_word_embeddings: c.flag("tie_word_embeddings", false)?,
            attention_bias: c.flag("attention_bias", false)?,
            mlp_bias: c.flag("mlp_bias", false)?,
            rope: rope::read(&c, head_dim, max_position_embeddings)?,
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
    if let Some(quantization) = c.object("quantization_config")? {
        let method = quantization.text("quant_method")?.unwrap_or("unnamed");
        let why = format!("weights quantized by \"{method}\" are not supported; expected F32, F16 or BF16 weights");
        return Err(c.unsupported("quantization_config", why));
    }
    if c.get("text_config").is_some() {
        return Err(c.unsupported("text_config", "a language model nested in a larger one is not supported"));
    }
    Ok(())
}

fn architecture(c: &Reader<'_>) -> Result<String> {
    let Some(value) = c.get("architectures") else { return Ok(String::new()) };
    let wrong = || c.wrong("architectures", "a list of strings");
    match value.as_array().ok_or_else(wrong)?.first() {
        Some(first) => Ok(first.as_str().ok_or_else(wrong)?.to_owned()),
        None => Ok(String::new()),
    }
}

fn head_dim(c: &Reader<'_>, hidden_size: usize, heads: usize) -> Result<usize> {
    let (key, head_dim) = match c.size("head_dim", COUNT)? {
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
