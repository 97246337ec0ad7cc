//! The rotary part of `config.json`, after transformers' `modeling_rope_utils.py` (5.24).

use super::defaults::Defaults;
use super::json::Reader;
use crate::error::{Error, Result, Status};
use serde_json::Value;

/// Rotary position embedding (`rope_theta` and `rope_scaling`, or `rope_parameters`).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// How many elements of each head are rotated, the first ones; the others pass as they are.
    pub rotary_dim: usize,
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
    /// `longrope`: a divisor for each frequency, of one set up to the trained length and of another beyond (Ding et al.
    /// 2024).
    LongRope {
        /// Divisors of sequences up to `original_max_position_embeddings`.
        short_factor: Vec<f64>,
        /// Divisors of longer ones.
        long_factor: Vec<f64>,
        /// Trained length.
        original_max_position_embeddings: usize,
        /// Factor on sine and cosine.
        attention_factor: f64,
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
const KNOWN: &str = "default, linear, dynamic, yarn, longrope, llama3";

/// Longest context that positions can count.
pub(super) const MAX_POSITIONS: usize = i32::MAX as usize;

/// Reads `rope_scaling` and `rope_theta` (transformers 4) or `rope_parameters` (5) of a config: for all layers, or, where
/// the family has a base for those with a window, for the others and for these.
pub(super) fn read(
    config: &Reader<'_>,
    defaults: &Defaults,
    head_dim: usize,
    max_position_embeddings: usize,
) -> Result<(Rope, Option<Rope>)> {
    let context = Context { config, defaults, head_dim, max_position_embeddings };
    let theta = Theta { key: "rope_theta", absent: defaults.rope_theta };
    let filled = |key| -> Result<_> { Ok(config.object(key)?.filter(|r| r.iter().next().is_some())) };
    let (scaling, parameters) = (filled("rope_scaling")?, filled("rope_parameters")?);
    let Some(absent) = defaults.rope_local_base_freq else {
        // As transformers: rope_scaling wins.
        return Ok((context.rope(scaling.or(parameters), theta)?, None));
    };
    let local_theta = Theta { key: "rope_local_base_freq", absent };
    let (full, sliding) = match (scaling, parameters) {
        (Some(_), Some(_)) => return Err(config.unsupported("rope_scaling", "beside rope_parameters it is ambiguous")),
        (scaling, None) => (scaling, None),
        (None, Some(parameters)) => {
            const TYPES: [&str; 2] = ["full_attention", "sliding_attention"];
            if let Some((key, _)) = parameters.iter().find(|(key, _)| !TYPES.contains(&&key[..])) {
                return Err(parameters.unsupported(key, format!("expected nothing but {}", TYPES.join(" and "))));
            }
            (parameters.object(TYPES[0])?, parameters.object(TYPES[1])?)
        }
    };
    Ok((context.rope(full, theta)?, Some(context.rope(sliding, local_theta)?)))
}

/// What a rotary embedding depends on besides its own parameters.
#[derive(Clone, Copy)]
struct Context<'a> {
    config: &'a Reader<'a>,
    defaults: &'a Defaults,
    head_dim: usize,
    max_position_embeddings: usize,
}

/// Where the base is if it is not among the parameters.
struct Theta {
    /// The key in the config.
    key: &'static str,
    /// The base if that is absent too.
    absent: f64,
}

impl Context<'_> {
    fn rope(&self, rope: Option<Reader<'_>>, theta: Theta) -> Result<Rope> {
        let base = |r: &Reader<'_>, key| r.number(key, "a number of at least 1", |v| v >= 1.0 && v <= f32::MAX.into());
        let outer_theta = base(self.config, theta.key)?.unwrap_or(theta.absent);
        let rotary_dim = self.rotary_dim(rope.as_ref())?;
        let Some(rope) = rope else {
            return Ok(Rope { theta: outer_theta, rotary_dim, scaling: RopeScaling::None });
        };
        if let Some((layers, _)) = rope.iter().find(|(_, value)| value.is_object()) {
            return Err(rope.unsupported(layers, "different parameters for different layers are not supported"));
        }
        let theta = base(&rope, "rope_theta")?.unwrap_or(outer_theta);

        // `type` is the older spelling of `rope_type`.
        let spelling = if rope.get("rope_type").is_some() { "rope_type" } else { "type" };
        let parameters = Parameters { context: *self, rope, rotary_dim };
        let unsupported = |known: &str| {
            let found = parameters.rope.wrong(spelling, format!("one of {known}"));
            Error { status: Status::Unsupported, ..found }
        };
        let scaling = match (parameters.rope.text(spelling)?.unwrap_or("default"), self.defaults.longrope_only) {
            ("default", _) => RopeScaling::None,
            // Phi-3's older spellings; they never meant the other yarn.
            ("longrope" | "su" | "yarn", Some(trained)) => parameters.longrope(trained)?,
            (_, Some(_)) => return Err(unsupported("default, longrope, su, yarn")),
            ("linear", _) => RopeScaling::Linear { factor: parameters.factor()? },
            ("dynamic", _) => parameters.dynamic()?,
            ("yarn", _) => parameters.yarn(theta)?,
            ("longrope", _) => parameters.longrope(self.max_position_embeddings)?,
            ("llama3", _) => parameters.llama3()?,
            _ => return Err(unsupported(KNOWN)),
        };
        Ok(Rope { theta, rotary_dim, scaling })
    }

    /// `partial_rotary_factor`, among the parameters or beside them, as a number of elements.
    fn rotary_dim(&self, rope: Option<&Reader<'_>>) -> Result<usize> {
        const KEY: &str = "partial_rotary_factor";
        let mut dim = self.head_dim;
        for reader in [Some(self.config), rope].into_iter().flatten() {
            let Some(part) = reader.number(KEY, "a number from 0 to 1", |v| (0.0..=1.0).contains(&v))? else {
                continue;
            };
            if part != 1.0 && !self.defaults.partial_rotary {
                let why = format!("rotating a part of each head is not supported: expected 1, found {part}");
                return Err(reader.unsupported(KEY, why));
            }
            dim = (self.head_dim as f64 * part) as usize;
            if dim == 0 || !dim.is_multiple_of(2) {
                return Err(reader.wrong(KEY, format!("an even part of a head of {}, not {dim}", self.head_dim)));
            }
        }
        Ok(dim)
    }
}

/// The parameters of one rotary embedding.
struct Parameters<'a> {
    context: Context<'a>,
    rope: Reader<'a>,
    rotary_dim: usize,
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
        Ok(read(self.context.config)?.or(inner))
    }

    fn dynamic(&self) -> Result<RopeScaling> {
        if self.rotary_dim <= 2 {
            let expected = format!("heads wider than 2 with rope type dynamic, not {}", self.rotary_dim);
            return Err(self.context.config.wrong("head_dim", expected));
        }
        // transformers 4 and 5 measure the growth from max_position_embeddings, whatever the parameters say.
        Ok(RopeScaling::Dynamic {
            factor: self.factor()?,
            original_max_position_embeddings: self.context.max_position_embeddings,
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
            original_max_position_embeddings: self.original()?.unwrap_or(self.context.max_position_embeddings),
        })
    }

    fn yarn(&self, theta: f64) -> Result<RopeScaling> {
        if theta <= 1.0 {
            return Err(self.context.config.wrong("rope_theta", "more than 1 with rope type yarn"));
        }
        let original = self.original()?;
        let original_max_position_embeddings = original.unwrap_or(self.context.max_position_embeddings);
        let factor = match (self.factor_if_present()?, original) {
            (Some(factor), _) => factor,
            (None, None) => return Err(self.rope.wrong("factor", "a number, or original_max_position_embeddings")),
            // As DeepSeek writes it: the factor is what the lengths say.
            (None, Some(original)) => {
                let factor = self.context.max_position_embeddings as f64 / original as f64;
                if factor < 1.0 {
                    let expected = format!("at most max_position_embeddings, {}", self.context.max_position_embeddings);
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

    /// `trained` is the trained length if the config does not say it.
    fn longrope(&self, trained: usize) -> Result<RopeScaling> {
        let count = self.rotary_dim / 2;
        let expected = format!("a list of {count} numbers above 0, one for each pair of rotated elements");
        let factors = |key| -> Result<Vec<f64>> {
            let positive = |v: &Value| v.as_f64().filter(|&v| v > 0.0 && (v as f32).is_finite() && v as f32 > 0.0);
            let factors = self.rope.list(key, &expected, positive)?.filter(|factors| factors.len() == count);
            factors.ok_or_else(|| self.rope.wrong(key, &expected))
        };
        let original = self.original()?.unwrap_or(trained);
        let factor = match self.positive("factor")? {
            Some(factor) => factor,
            None => self.context.max_position_embeddings as f64 / original as f64,
        };
        let attention_factor = match self.positive("attention_factor")? {
            Some(given) => given,
            None if factor <= 1.0 => 1.0,
            None if original < 2 => {
                return Err(self.rope.wrong("original_max_position_embeddings", "at least 2 with rope type longrope"));
            }
            None => (1.0 + libm::log(factor) / libm::log(original as f64)).sqrt(),
        };
        Ok(RopeScaling::LongRope {
            short_factor: factors("short_factor")?,
            long_factor: factors("long_factor")?,
            original_max_position_embeddings: original,
            attention_factor,
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
