//! The rotary part of `config.json`, after transformers' `modeling_rope_utils.py` (5.24).

use super::json::Reader;
use crate::error::{Error, Result, Status};

/// Rotary position embedding (`rope_theta` and `rope_scaling`, or `rope_parameters`).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// What changes the frequencies for long contexts.
    pub scaling: RopeScaling,
}

/// Hugging Face's `rope_type`s (transformers `modeling_rope_utils.py`).
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// `default`.
    None,
    /// `linear`: positions divided by `factor`.
    Linear {
        /// Divisor of the positions.
        factor: f64,
    },
    /// `dynamic`: NTK-aware base, growing with the sequence beyond `original_max_position_embeddings`.
    Dynamic {
        /// Scaling factor.
        factor: f64,
        /// Length up to which the base is unchanged.
        original_max_position_embeddings: usize,
    },
    /// `yarn`: interpolation by parts (Peng et al. 2023).
    Yarn {
        /// Scaling factor.
        factor: f64,
        /// Trained length.
        original_max_position_embeddings: usize,
        /// Rotations above which a dimension is extrapolated.
        beta_fast: f64,
        /// Rotations below which a dimension is interpolated.
        beta_slow: f64,
        /// Factor on sine and cosine.
        attention_factor: f64,
        /// Whether the correction range is rounded to whole dimensions.
        truncate: bool,
    },
    /// `llama3`: bands by wavelength (Llama 3.1).
    Llama3 {
        /// Scaling factor of the long wavelengths.
        factor: f64,
        /// Wavelengths above original / low_freq_factor are scaled.
        low_freq_factor: f64,
        /// Wavelengths below original / high_freq_factor are kept.
        high_freq_factor: f64,
        /// Trained length.
        original_max_position_embeddings: usize,
    },
}

/// The rope types that [`read`] knows.
const KNOWN: &str = "default, linear, dynamic, yarn, llama3";

/// What transformers takes when a config has no base.
const DEFAULT_THETA: f64 = 10_000.0;

/// Longest context that positions can count.
pub(super) const MAX_POSITIONS: usize = i32::MAX as usize;

/// Reads `rope_scaling` and `rope_theta` (transformers 4) or `rope_parameters` (5) of a config.
pub(super) fn read(config: &Reader<'_>, head_dim: usize, max_position_embeddings: usize) -> Result<Rope> {
    // As transformers: rope_scaling wins, unless it is empty.
    let filled = |key| -> Result<_> { Ok(config.object(key)?.filter(|r| r.iter().next().is_some())) };
    let (key, rope) = match filled("rope_scaling")? {
        Some(rope) => ("rope_scaling", Some(rope)),
        None => ("rope_parameters", filled("rope_parameters")?),
    };
    for reader in [Some(config), rope.as_ref()].into_iter().flatten() {
        let partial = reader.number("partial_rotary_factor", "a number from 0 to 1", |v| (0.0..=1.0).contains(&v))?;
        if let Some(partial) = partial.filter(|&v| v != 1.0) {
            let why = format!("rotating a part of each head is not supported: expected 1, found {partial}");
            return Err(reader.unsupported("partial_rotary_factor", why));
        }
    }

    let base = |r: &Reader<'_>| r.number("rope_theta", "a number of at least 1", |v| v >= 1.0 && v <= f32::MAX.into());
    let outer_theta = base(config)?;
    let Some(rope) = rope else {
        return Ok(Rope { theta: outer_theta.unwrap_or(DEFAULT_THETA), scaling: RopeScaling::None });
    };
    if let Some((layers, _)) = rope.iter().find(|(_, value)| value.is_object()) {
        let why = format!("different parameters for different layers ({layers}) are not supported");
        return Err(config.unsupported(key, why));
    }
    let theta = base(&rope)?.or(outer_theta).unwrap_or(DEFAULT_THETA);

    // `type` is the older spelling of `rope_type`.
    let spelling = if rope.get("rope_type").is_some() { "rope_type" } else { "type" };
    let parameters = Parameters { config, rope, max_position_embeddings };
    let scaling = match parameters.rope.text(spelling)?.unwrap_or("default") {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: parameters.factor()? },
        "dynamic" => parameters.dynamic(head_dim)?,
        "yarn" => parameters.yarn(theta)?,
        "llama3" => parameters.llama3()?,
        _ => {
            let found = parameters.rope.wrong(spelling, format!("one of {KNOWN}"));
            return Err(Error { status: Status::Unsupported, ..found });
        }
    };
    Ok(Rope { theta, scaling })
}

struct Parameters<'a> {
    config: &'a Reader<'a>,
    rope: Reader<'a>,
    max_position_embeddings: usize,
}

impl Parameters<'_> {
    fn positive(&self, key: &str) -> Result<Option<f64>> {
        self.rope.number(key, "a number above 0", |v| v > 0.0)
    }

    fn factor_if_present(&self) -> Result<Option<f64>> {
        self.rope.number("factor", "a number of at least 1", |v| v >= 1.0)
    }

    fn factor(&self) -> Result<f64> {
        self.factor_if_present()?.ok_or_else(|| self.rope.wrong("factor", "a number of at least 1"))
    }

    /// The trained length: beside the rope parameters (which wins in transformers) or among them.
    fn original(&self) -> Result<Option<usize>> {
        let read = |r: &Reader<'_>| r.size("original_max_position_embeddings", 1..=MAX_POSITIONS);
        let inner = read(&self.rope)?;
        Ok(read(self.config)?.or(inner))
    }

    fn dynamic(&self, head_dim: usize) -> Result<RopeScaling> {
        if head_dim <= 2 {
            let expected = format!("heads wider than 2 with rope type dynamic, not {head_dim}");
            return Err(self.config.wrong("head_dim", expected));
        }
        // transformers 4 and 5 measure the growth from max_position_embeddings, whatever the parameters say.
        Ok(RopeScaling::Dynamic {
            factor: self.factor()?,
            original_max_position_embeddings: self.max_position_embeddings,
        })
    }

    fn llama3(&self) -> Result<RopeScaling> {
        let needed = |key| self.positive(key)?.ok_or_else(|| self.rope.wrong(key, "a number above 0"));
        let low_freq_factor = needed("low_freq_factor")?;
        let high_freq_factor = needed("high_freq_factor")?;
        if high_freq_factor <= low_freq_factor {
            return Err(self.rope.wrong("high_freq_factor", format!("more than low_freq_factor, {low_freq_factor}")));
        }
        Ok(RopeScaling::Llama3 {
            factor: self.factor()?,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: self.original()?.unwrap_or(self.max_position_embeddings),
        })
    }

    fn yarn(&self, theta: f64) -> Result<RopeScaling> {
        if theta <= 1.0 {
            return Err(self.config.wrong("rope_theta", "more than 1 with rope type yarn"));
        }
        let original = self.original()?;
        let original_max_position_embeddings = original.unwrap_or(self.max_position_embeddings);
        let factor = match (self.factor_if_present()?, original) {
            (Some(factor), _) => factor,
            (None, None) => return Err(self.rope.wrong("factor", "a number, or original_max_position_embeddings")),
            // As DeepSeek writes it: the factor is what the lengths say.
            (None, Some(original)) => {
                let factor = self.max_position_embeddings as f64 / original as f64;
                if factor < 1.0 {
                    let expected = format!("at most max_position_embeddings, {}", self.max_position_embeddings);
                    return Err(self.rope.wrong("original_max_position_embeddings", expected));
                }
                factor
            }
        };
        // Python's `or`: zero means the default.
        let rotations = |key, default: f64| -> Result<f64> {
            let given = self.rope.number(key, "a number of at least 0", |v| v >= 0.0)?;
            Ok(given.filter(|&v| v != 0.0).unwrap_or(default))
        };
        let beta_fast = rotations("beta_fast", 32.0)?;
        let beta_slow = rotations("beta_slow", 1.0)?;
        if beta_fast < beta_slow {
            return Err(self.rope.wrong("beta_fast", format!("at least beta_slow, {beta_slow}")));
        }
        let attention_factor = match self.positive("attention_factor")? {
            Some(given) => given,
            None => self.attention_factor(factor)?,
        };
        // A null is false to transformers, an absent key is true.
        let truncate = self.rope.flag("truncate", !self.rope.has("truncate"))?;
        Ok(RopeScaling::Yarn {
            factor,
            original_max_position_embeddings,
            beta_fast,
            beta_slow,
            attention_factor,
            truncate,
        })
    }

    /// YaRN's factor on sine and cosine where the config has none (equation 22 of the paper; DeepSeek's mscale).
    fn attention_factor(&self, factor: f64) -> Result<f64> {
        let mscale = |mscale: f64| 0.1 * mscale * libm::log(factor) + 1.0; // log(1) is 0
        let scale = |key| self.rope.number(key, "a number of at least 0", |v| v >= 0.0);
        match (scale("mscale")?, scale("mscale_all_dim")?) {
            (Some(one), Some(all)) if one != 0.0 && all != 0.0 => Ok(mscale(one) / mscale(all)),
            _ => Ok(mscale(1.0)),
        }
    }
}
