//! What differs from layer to layer: windows, rotation, experts.

use super::config::{COUNT, WIDTH};
use super::defaults::Defaults;
use super::json::Reader;
use super::rope::MAX_POSITIONS;
use crate::error::Result;
use serde_json::Value;

/// One decoder layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    /// How many tokens a token sees, itself included: j is seen by i iff i − window < j ≤ i. `None`: all before it.
    pub window: Option<usize>,
    /// Whether queries and keys are rotated.
    pub rotated: bool,
    /// Whether the MLP is a choice of experts.
    pub sparse: bool,
}

/// The experts of a sparse layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// `num_experts` or `num_local_experts`.
    pub count: usize,
    /// `num_experts_per_tok`: how many a token goes to.
    pub per_token: usize,
    /// Width of each.
    pub intermediate_size: usize,
    /// `norm_topk_prob`: whether the weights of the chosen are made to sum to 1.
    pub norm_topk_prob: bool,
}

/// Which layers see a window of `sliding_window` tokens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Windows {
    /// None, whatever the config says.
    Never,
    /// All.
    Always,
    /// All if `use_sliding_window`.
    AlwaysIfUsed,
    /// `layer_types`, or those from `max_window_layers` (or this) on; only if `use_sliding_window`.
    FromLayer(usize),
    /// `layer_types`, or all but every nth: n by this key or this number.
    ButEvery(usize, Option<&'static str>),
    /// `layer_types`, or those without RoPE if `use_sliding_window`.
    WithoutRope,
}

/// The layers of a config, `count` of them.
pub(super) fn read(c: &Reader<'_>, defaults: &Defaults, count: usize) -> Result<Vec<LayerConfig>> {
    let rotated = rotated(c, defaults, count)?;
    let windows = windows(c, defaults, &rotated)?;
    let sparse = sparse(c, defaults, count)?;
    let layers = windows.into_iter().zip(rotated).zip(sparse);
    Ok(layers.map(|((window, rotated), sparse)| LayerConfig { window, rotated, sparse }).collect())
}

/// The experts, where the family has them.
pub(super) fn experts(c: &Reader<'_>, defaults: &Defaults) -> Result<Option<Experts>> {
    let Some(width) = defaults.expert_width else { return Ok(None) };
    // One number to transformers 5, which writes the second name.
    let count = match c.size("num_experts", COUNT)? {
        None => c.required_size("num_local_experts", COUNT)?,
        Some(count) if c.size("num_local_experts", COUNT)?.is_none_or(|other| other == count) => count,
        Some(count) => return Err(c.wrong("num_local_experts", format!("num_experts, {count}"))),
    };
    Ok(Some(Experts {
        count,
        per_token: c.required_size("num_experts_per_tok", 1..=count)?,
        intermediate_size: c.required_size(width, WIDTH)?,
        norm_topk_prob: c.flag("norm_topk_prob", false)?,
    }))
}

fn rotated(c: &Reader<'_>, defaults: &Defaults, count: usize) -> Result<Vec<bool>> {
    let Some(interval) = defaults.no_rope_layer_interval else { return Ok(vec![true; count]) };
    let one_or_zero = |v: &Value| v.as_u64().filter(|v| *v <= 1).map(|v| v == 1);
    match c.list("no_rope_layers", "a list of 1 (with RoPE) and 0", one_or_zero)? {
        Some(layers) if layers.len() >= count => Ok(layers[..count].to_vec()),
        Some(_) => Err(c.wrong("no_rope_layers", format!("one entry for each of {count} layers"))),
        None => {
            let interval = c.size("no_rope_layer_interval", COUNT)?.unwrap_or(interval);
            Ok((1..=count).map(|layer| layer % interval != 0).collect())
        }
    }
}

fn windows(c: &Reader<'_>, defaults: &Defaults, rotated: &[bool]) -> Result<Vec<Option<usize>>> {
    let count = rotated.len();
    let in_use = match defaults.windows {
        Windows::Never => return Ok(vec![None; count]),
        Windows::FromLayer(_) | Windows::AlwaysIfUsed | Windows::WithoutRope => c.flag("use_sliding_window", false)?,
        Windows::Always | Windows::ButEvery(..) => true,
    };
    let stated = c.size("sliding_window", 1..=MAX_POSITIONS)?;
    let window = if c.has("sliding_window") { stated } else { defaults.sliding_window };
    let window = window.filter(|_| in_use);
    let sliding: Vec<bool> = match defaults.windows {
        Windows::Always | Windows::AlwaysIfUsed => {
            if c.get("layer_types").is_some() {
                return Err(c.unsupported("layer_types", "all layers of this family are alike"));
            }
            return Ok(vec![window; count]);
        }
        _ if c.get("layer_types").is_some() => layer_types(c, count)?,
        Windows::FromLayer(from) => {
            let from = c.size("max_window_layers", 0..=*COUNT.end())?.unwrap_or(from);
            (0..count).map(|layer| window.is_some() && layer >= from).collect()
        }
        Windows::ButEvery(every, key) => {
            let stated = key.map(|key| c.size(key, COUNT)).transpose()?.flatten();
            (1..=count).map(|layer| layer % stated.unwrap_or(every) != 0).collect()
        }
        Windows::WithoutRope => rotated.iter().map(|rotated| window.is_some() && !rotated).collect(),
        Windows::Never => vec![false; count],
    };
    if window.is_none() && sliding.contains(&true) {
        let expected = "a number of tokens, in use, as there are layers of the type sliding_attention";
        return Err(c.wrong("sliding_window", expected));
    }
    Ok(sliding.into_iter().map(|sliding| window.filter(|_| sliding)).collect())
}

/// Whether each layer has a window.
fn layer_types(c: &Reader<'_>, count: usize) -> Result<Vec<bool>> {
    const EXPECTED: &str = "a list of \"full_attention\" and \"sliding_attention\"";
    let sliding = |v: &Value| match v.as_str()? {
        "sliding_attention" => Some(true),
        "full_attention" => Some(false),
        _ => None,
    };
    let types = c.list("layer_types", EXPECTED, sliding)?.unwrap_or_default();
    match types.len() == count {
        true => Ok(types),
        false => Err(c.wrong("layer_types", format!("one entry for each of {count} layers"))),
    }
}

/// All layers of a family with experts, unless `decoder_sparse_step` or `mlp_only_layers` say otherwise.
fn sparse(c: &Reader<'_>, defaults: &Defaults, count: usize) -> Result<Vec<bool>> {
    if defaults.expert_width.is_none() {
        return Ok(vec![false; count]);
    }
    let step = c.size("decoder_sparse_step", COUNT)?.unwrap_or(1);
    let dense = c.list("mlp_only_layers", "a list of layers", Value::as_u64)?.unwrap_or_default();
    Ok((0..count).map(|layer| !dense.contains(&(layer as u64)) && (layer + 1).is_multiple_of(step)).collect())
}
