//! `quantization_config` of `config.json`: how others have quantized the weights.

use super::config::WIDTH;
use super::json::Reader;
use crate::error::Result;

/// How a checkpoint stores the matrices that GPTQ or AWQ has quantized to 4 bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// By which method.
    pub method: Method,
    /// Inputs that share a scale and a zero; `None` = all of a row.
    pub group_size: Option<usize>,
    /// Whether only the file knows which inputs share them, in `g_idx`.
    pub desc_act: bool,
}

/// Who has quantized, and so in which order codes lie in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `checkpoint_format` "gptq", whose zeros are stored less one, or "gptq_v2".
    Gptq {
        /// Whether they are.
        zeros_less_one: bool,
    },
    /// `version` "gemm".
    Awq,
}

impl Method {
    /// Its name in `quant_method`.
    pub fn name(self) -> &'static str {
        match self {
            Method::Gptq { .. } => "gptq",
            Method::Awq => "awq",
        }
    }
}

/// Nobody makes smaller groups, and each is filled up to one of 32.
const SMALLEST_GROUP: usize = 16;

/// The key of a config.
const KEY: &str = "quantization_config";

/// What `config` says of quantized weights. What this library would misread is an error that names the key.
///
/// Which matrices are quantized (`modules_to_not_convert`, `modules_in_block_to_quantize`, `lm_head`) is seen from their tensors.
pub(super) fn read(config: &Reader<'_>) -> Result<Option<Quantization>> {
    let Some(c) = config.object(KEY)? else { return Ok(None) };
    let quantization = match c.text("quant_method")? {
        Some("gptq") => gptq(&c)?,
        Some("awq") => awq(&c)?,
        other => {
            let method = other.unwrap_or("unnamed");
            let why = format!("weights quantized by \"{method}\" are not supported; expected \"gptq\" or \"awq\"");
            return Err(config.unsupported(KEY, why));
        }
    };
    Ok(Some(quantization))
}

fn gptq(c: &Reader<'_>) -> Result<Quantization> {
    expect_4_bits(c)?;
    let format_key = if c.get("checkpoint_format").is_some() { "checkpoint_format" } else { "format" };
    let zeros_less_one = choice(c, format_key, "gptq", &["gptq", "gptq_v2"])? == "gptq";
    choice(c, "pack_dtype", "int32", &["int32"])?;
    if c.flag("is_marlin_format", false)? {
        return Err(c.unsupported("is_marlin_format", "the layout of Marlin is not supported"));
    }
    // Rules for single matrices. Those that begin with "-:" leave matrices as they are, which their tensors tell.
    if let Some(dynamic) = c.object("dynamic")?
        && let Some((rule, _)) = dynamic.iter().find(|(rule, _)| !rule.starts_with("-:"))
    {
        return Err(dynamic.unsupported(rule, "settings for some of the matrices are not supported"));
    }
    let method = Method::Gptq { zeros_less_one };
    Ok(Quantization { method, group_size: group_size(c)?, desc_act: c.flag("desc_act", false)? })
}

fn awq(c: &Reader<'_>) -> Result<Quantization> {
    expect_4_bits(c)?;
    choice(c, if c.get("version").is_some() { "version" } else { "format" }, "gemm", &["gemm"])?;
    if c.text("backend")? == Some("llm-awq") {
        return Err(
            c.unsupported("backend", "the layout of \"llm-awq\" is not supported; expected that of \"autoawq\"")
        );
    }
    Ok(Quantization { method: Method::Awq, group_size: group_size(c)?, desc_act: false })
}

fn expect_4_bits(c: &Reader<'_>) -> Result<()> {
    match c.required_size("bits", 1..=32)? {
        4 => Ok(()),
        bits => Err(c.unsupported("bits", format!("expected 4, found {bits}"))),
    }
}

/// Which of `known` the string at `key` is, in capitals or not.
fn choice(c: &Reader<'_>, key: &str, absent: &'static str, known: &[&'static str]) -> Result<&'static str> {
    let stated = c.text(key)?.unwrap_or(absent);
    known.iter().copied().find(|name| name.eq_ignore_ascii_case(stated)).ok_or_else(|| {
        let known = known.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(" or ");
        c.unsupported(key, format!("expected {known}, found \"{}\"", super::header::Shown(stated)))
    })
}

/// `None` for −1. Absent, it is 128, as in transformers.
fn group_size(c: &Reader<'_>) -> Result<Option<usize>> {
    match c.get("group_size") {
        Some(value) if value.as_i64() == Some(-1) => Ok(None),
        None => Ok(Some(128)),
        Some(_) => {
            let expected = format!("-1 or a whole number from {SMALLEST_GROUP} to {}", WIDTH.end());
            c.size("group_size", SMALLEST_GROUP..=*WIDTH.end()).map_err(|_| c.wrong("group_size", expected))
        }
    }
}
