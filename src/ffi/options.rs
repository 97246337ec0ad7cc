//! Options: integer keys, checked when they are set.

use super::constants::*;
use super::error::rie_error;
use super::exclusive::Exclusive;
use super::{guard, handle, raw, rie_status};
use crate::checkpoint::{Access, SourcePaths};
use crate::error::Result;
use crate::model::LoadOptions;
use crate::sampler::SamplerOptions;
use crate::session::SessionOptions;
use crate::tensor::{DType, Quant};
use crate::{bail, err};
use std::ffi::{c_char, c_void};

/// A set of options for `rie_model_load`, `rie_model_save`, `rie_inspect` (and the same from a source),
/// `rie_session_new` and `rie_sampler_new`. Each of them reads the keys that name it and ignores the others, so one set
/// can serve all. The values are copied during the call.
///
/// Owner: the host, from `rie_options_new` to `rie_free`. Threads: one call at a time.
pub struct rie_options {
    _private: (),
}

/// Called during a load or a save, in the thread that called `rie_model_load` or `rie_model_save` and before it returns, with the
/// bytes `done` out of `total`. Returning anything but 0 cancels, and the call fails with `RIE_ERR_CANCELLED`. `userdata` is what
/// `rie_options_set_progress` was given; the library never looks at it. It must return normally: no `longjmp`, no C++
/// exception.
pub type rie_progress_fn = Option<unsafe extern "C" fn(userdata: *mut c_void, done: u64, total: u64) -> i32>;

/// A new set with every option at its default.
///
/// Ownership: the host's; release it with `rie_free`. Threads: any. Errors: NULL if memory is exhausted.
#[unsafe(no_mangle)]
pub extern "C" fn rie_options_new() -> *mut rie_options {
    guard::new_handle::<OptionsObject>()
}

/// Sets an option whose description says "int" (`RIE_OPT_*`, 100 to 199).
///
/// Threads: one call at a time with the same `options`. Errors: `RIE_ERR_UNSUPPORTED` for a key that this version does
/// not know, `RIE_ERR_INVALID_ARGUMENT` for an option of another type or a value outside its range. `options` must not
/// be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_options_set_int(
    options: *mut rie_options,
    key: i32,
    value: i64,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_options_set_int", err, || set(options, key, Value::Int(value)))
}

/// Sets an option whose description says "float" (`RIE_OPT_*`, 200 to 299). The library computes with 32-bit floats.
///
/// Threads, errors and NULL: as for `rie_options_set_int`; NaN and infinity are outside every range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_options_set_float(
    options: *mut rie_options,
    key: i32,
    value: f64,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_options_set_float", err, || set(options, key, Value::Float(value as f32)))
}

/// Sets an option whose description says "str" (`RIE_OPT_*`, 300 to 399). `value` is NUL-terminated UTF-8 and is
/// copied.
///
/// Threads: as for `rie_options_set_int`. Errors: also `RIE_ERR_UTF8`; an empty path is `RIE_ERR_INVALID_ARGUMENT`.
/// `options` and `value` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_options_set_str(
    options: *mut rie_options,
    key: i32,
    value: *const c_char,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_options_set_str", err, || {
        // SAFETY: the host vouches for a NUL-terminated `value`.
        let value = unsafe { raw::c_str(value, "value") }?;
        set(options, key, Value::Str(value.to_string()))
    })
}

/// Sets the function that a load or a save reports its progress to. NULL for `progress` (the default) reports nothing.
///
/// Ownership: `userdata` stays the host's, may be NULL, and must be valid while a load or a save with these options runs.
/// Threads: one call at a time with the same `options`; the function is called only as `rie_progress_fn` says.
/// `options` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_options_set_progress(
    options: *mut rie_options,
    progress: rie_progress_fn,
    userdata: *mut c_void,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_options_set_progress", err, || {
        let userdata = userdata.expose_provenance();
        let progress = progress.map(|call| Progress { call, userdata });
        handle::get::<OptionsObject>(options, "options")?.with("options", |o| {
            o.progress = progress;
            Ok(())
        })
    })
}

/// Behind a [`rie_options`].
pub type OptionsObject = Exclusive<Options>;

/// The host's progress function.
#[derive(Clone, Copy)]
pub struct Progress {
    call: unsafe extern "C" fn(*mut c_void, u64, u64) -> i32,
    /// An address that only the host understands.
    userdata: usize,
}

impl Progress {
    /// Whether the host cancels.
    pub fn report(self, done: u64, total: u64) -> bool {
        // SAFETY: `rie_options_set_progress` was given this function with this userdata for this purpose, and the load or save
        // that calls here runs in the host's thread, during the host's call.
        unsafe { (self.call)(std::ptr::with_exposed_provenance_mut(self.userdata), done, total) != 0 }
    }
}

#[derive(Clone)]
enum Value {
    Int(i64),
    Float(f32),
    Str(String),
}

/// Type and range of an option.
enum Rule {
    Int(i64, i64),
    /// Smallest, largest, and whether the smallest itself is allowed.
    Float(f32, f32, bool),
    Path,
}

const COUNT: i64 = i32::MAX as i64;

/// Every option of this version.
const RULES: [(i32, &str, Rule); 22] = [
    (RIE_OPT_THREADS, "RIE_OPT_THREADS", Rule::Int(0, 1024)),
    (RIE_OPT_ISA, "RIE_OPT_ISA", Rule::Int(RIE_ISA_AUTO as i64, RIE_ISA_AVX512 as i64)),
    (RIE_OPT_CONTEXT, "RIE_OPT_CONTEXT", Rule::Int(0, COUNT)),
    (RIE_OPT_KV_TYPE, "RIE_OPT_KV_TYPE", Rule::Int(RIE_DTYPE_F32 as i64, RIE_DTYPE_F16 as i64)),
    (RIE_OPT_CHUNK, "RIE_OPT_CHUNK", Rule::Int(0, 65536)),
    (RIE_OPT_PROFILE, "RIE_OPT_PROFILE", Rule::Int(0, 1)),
    (RIE_OPT_SEED, "RIE_OPT_SEED", Rule::Int(i64::MIN, i64::MAX)),
    (RIE_OPT_TOP_K, "RIE_OPT_TOP_K", Rule::Int(0, COUNT)),
    (RIE_OPT_KV_LIMIT, "RIE_OPT_KV_LIMIT", Rule::Int(0, i64::MAX)),
    (RIE_OPT_PROMPT_TOKENS, "RIE_OPT_PROMPT_TOKENS", Rule::Int(0, 65536)),
    (RIE_OPT_SHARE_PREFIXES, "RIE_OPT_SHARE_PREFIXES", Rule::Int(0, 1)),
    (RIE_OPT_SPECULATION, "RIE_OPT_SPECULATION", Rule::Int(0, 64)),
    (RIE_OPT_WEIGHTS, "RIE_OPT_WEIGHTS", Rule::Int(RIE_WEIGHTS_AS_IS as i64, RIE_WEIGHTS_INT4 as i64)),
    (RIE_OPT_MAP, "RIE_OPT_MAP", Rule::Int(0, 1)),
    (RIE_OPT_TEMPERATURE, "RIE_OPT_TEMPERATURE", Rule::Float(0.0, f32::MAX, true)),
    (RIE_OPT_TOP_P, "RIE_OPT_TOP_P", Rule::Float(0.0, 1.0, false)),
    (RIE_OPT_MIN_P, "RIE_OPT_MIN_P", Rule::Float(0.0, 1.0, true)),
    (RIE_OPT_REPETITION_PENALTY, "RIE_OPT_REPETITION_PENALTY", Rule::Float(0.0, f32::MAX, false)),
    (RIE_OPT_PRESENCE_PENALTY, "RIE_OPT_PRESENCE_PENALTY", Rule::Float(f32::MIN, f32::MAX, true)),
    (RIE_OPT_FREQUENCY_PENALTY, "RIE_OPT_FREQUENCY_PENALTY", Rule::Float(f32::MIN, f32::MAX, true)),
    (RIE_OPT_CONFIG_PATH, "RIE_OPT_CONFIG_PATH", Rule::Path),
    (RIE_OPT_TOKENIZER_PATH, "RIE_OPT_TOKENIZER_PATH", Rule::Path),
];

impl Rule {
    fn check(&self, value: &Value) -> Result<()> {
        match (self, value) {
            (Rule::Int(min, max), Value::Int(v)) if !(min..=max).contains(&v) => {
                bail!(InvalidArgument, "expected {min} to {max}, found {v}")
            }
            // Written so that NaN fails.
            (Rule::Float(min, max, closed), Value::Float(v)) if !((v > min || *closed && v == min) && v <= max) => {
                let from = if *closed { "from" } else { "above" };
                bail!(InvalidArgument, "expected {from} {min:?} to {max:?}, found {v:?}")
            }
            (Rule::Path, Value::Str(v)) if v.is_empty() => {
                bail!(InvalidArgument, "expected a path, found an empty text")
            }
            (Rule::Int(..), Value::Int(_)) | (Rule::Float(..), Value::Float(_)) | (Rule::Path, Value::Str(_)) => Ok(()),
            (Rule::Int(..), _) => bail!(InvalidArgument, "an int option; use rie_options_set_int"),
            (Rule::Float(..), _) => bail!(InvalidArgument, "a float option; use rie_options_set_float"),
            (Rule::Path, _) => bail!(InvalidArgument, "a str option; use rie_options_set_str"),
        }
    }
}

/// What was set, by key, and the progress function.
#[derive(Clone, Default)]
pub struct Options {
    values: Vec<(i32, Value)>,
    /// For a load.
    pub progress: Option<Progress>,
}

fn set(options: *mut rie_options, key: i32, value: Value) -> Result<()> {
    handle::get::<OptionsObject>(options, "options")?.with("options", |o| o.set(key, value))
}

/// A copy of the host's options, so that the work that follows holds no lock. NULL: all defaults.
pub fn copy(options: *const rie_options) -> Result<Options> {
    match handle::get_optional::<OptionsObject>(options, "options")? {
        Some(o) => o.with("options", |o| Ok(o.clone())),
        None => Ok(Options::default()),
    }
}

impl Options {
    fn set(&mut self, key: i32, value: Value) -> Result<()> {
        let rule = RULES.iter().find(|(k, ..)| *k == key);
        let (_, name, rule) = rule.ok_or_else(|| err!(Unsupported, "key: {key} is no option of this version"))?;
        rule.check(&value).map_err(|e| e.at(name))?;
        self.values.retain(|(k, _)| *k != key);
        self.values.push((key, value));
        Ok(())
    }

    fn get(&self, key: i32) -> Option<&Value> {
        self.values.iter().find(|(k, _)| *k == key).map(|(_, v)| v)
    }

    fn int(&self, key: i32) -> Option<i64> {
        self.get(key).and_then(|v| if let Value::Int(v) = v { Some(*v) } else { None })
    }

    /// A count, 0 if not set; the rules keep it within 31 bits.
    fn count(&self, key: i32) -> usize {
        self.int(key).unwrap_or(0) as usize
    }

    fn float(&self, key: i32, default: f32) -> f32 {
        self.get(key).and_then(|v| if let Value::Float(v) = v { Some(*v) } else { None }).unwrap_or(default)
    }

    fn path(&self, key: i32) -> Option<String> {
        self.get(key).and_then(|v| if let Value::Str(v) = v { Some(v.clone()) } else { None })
    }

    /// What a load reads.
    pub fn load(&self) -> LoadOptions {
        LoadOptions {
            threads: self.count(RIE_OPT_THREADS),
            kv_limit: usize::try_from(self.int(RIE_OPT_KV_LIMIT).unwrap_or(0)).unwrap_or(usize::MAX),
            prompt_tokens: self.count(RIE_OPT_PROMPT_TOKENS),
            isa: match self.int(RIE_OPT_ISA) {
                Some(isa) if isa == i64::from(RIE_ISA_SCALAR) => Some("scalar"),
                Some(isa) if isa == i64::from(RIE_ISA_AVX2) => Some("avx2"),
                Some(isa) if isa == i64::from(RIE_ISA_NEON) => Some("neon"),
                Some(isa) if isa == i64::from(RIE_ISA_AVX512) => Some("avx512"),
                _ => None,
            },
            weights: match self.int(RIE_OPT_WEIGHTS) {
                Some(weights) if weights == i64::from(RIE_WEIGHTS_INT8) => Some(Quant::Int8),
                Some(weights) if weights == i64::from(RIE_WEIGHTS_INT4) => Some(Quant::Int4),
                _ => None,
            },
            access: if self.int(RIE_OPT_MAP) == Some(0) { Access::Read } else { Access::Map },
            paths: self.paths(),
        }
    }

    /// Files in other places than usual.
    pub fn paths(&self) -> SourcePaths {
        SourcePaths { config: self.path(RIE_OPT_CONFIG_PATH), tokenizer: self.path(RIE_OPT_TOKENIZER_PATH) }
    }

    /// What a new session reads.
    pub fn session(&self) -> SessionOptions {
        SessionOptions {
            context: self.count(RIE_OPT_CONTEXT),
            kv_type: if self.int(RIE_OPT_KV_TYPE) == Some(RIE_DTYPE_F32.into()) { DType::F32 } else { DType::F16 },
            chunk: self.count(RIE_OPT_CHUNK),
            profile: self.count(RIE_OPT_PROFILE) == 1,
            share_prefixes: self.int(RIE_OPT_SHARE_PREFIXES) != Some(0),
            speculation: self.count(RIE_OPT_SPECULATION),
        }
    }

    /// What a new sampler reads.
    pub fn sampler(&self) -> SamplerOptions {
        SamplerOptions {
            temperature: self.float(RIE_OPT_TEMPERATURE, 1.0),
            top_k: self.count(RIE_OPT_TOP_K),
            top_p: self.float(RIE_OPT_TOP_P, 1.0),
            min_p: self.float(RIE_OPT_MIN_P, 0.0),
            repetition_penalty: self.float(RIE_OPT_REPETITION_PENALTY, 1.0),
            presence_penalty: self.float(RIE_OPT_PRESENCE_PENALTY, 0.0),
            frequency_penalty: self.float(RIE_OPT_FREQUENCY_PENALTY, 0.0),
            seed: self.int(RIE_OPT_SEED).map(|seed| seed as u64), // the same 64 bits
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Status;

    fn refused(key: i32, value: Value, status: Status, message: &str) {
        let e = Options::default().set(key, value).unwrap_err();
        assert_eq!((e.status, e.message.as_str()), (status, message));
    }

    #[test]
    fn every_option_reaches_its_reader() {
        let mut o = Options::default();
        assert_eq!(o.sampler(), Options::default().sampler());
        for (key, value) in [(RIE_OPT_THREADS, 3), (RIE_OPT_ISA, 2), (RIE_OPT_CONTEXT, 100), (RIE_OPT_KV_TYPE, 1)] {
            o.set(key, Value::Int(value)).unwrap();
        }
        for (key, value) in [(RIE_OPT_CHUNK, 7), (RIE_OPT_PROFILE, 1), (RIE_OPT_SEED, -1), (RIE_OPT_TOP_K, 40)] {
            o.set(key, Value::Int(value)).unwrap();
        }
        for key in RIE_OPT_TEMPERATURE..=RIE_OPT_FREQUENCY_PENALTY {
            o.set(key, Value::Float(0.5)).unwrap();
        }
        o.set(RIE_OPT_CONFIG_PATH, Value::Str("a".into())).unwrap();
        o.set(RIE_OPT_CONFIG_PATH, Value::Str("b".into())).unwrap();
        o.set(RIE_OPT_TOKENIZER_PATH, Value::Str("c".into())).unwrap();
        let load = o.load();
        assert_eq!((load.threads, load.isa), (3, Some("avx2")));
        assert_eq!((load.paths.config.as_deref(), load.paths.tokenizer.as_deref()), (Some("b"), Some("c")));
        assert_eq!(load.access, Access::Map);
        o.set(RIE_OPT_MAP, Value::Int(0)).unwrap();
        assert_eq!(o.load().access, Access::Read);
        let session = o.session();
        assert_eq!((session.context, session.kv_type, session.chunk, session.profile), (100, DType::F32, 7, true));
        let half = SamplerOptions {
            temperature: 0.5,
            top_k: 40,
            top_p: 0.5,
            min_p: 0.5,
            repetition_penalty: 0.5,
            presence_penalty: 0.5,
            frequency_penalty: 0.5,
            seed: Some(u64::MAX),
        };
        assert_eq!(o.sampler(), half);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        use Status::{InvalidArgument, Unsupported};
        refused(99, Value::Int(0), Unsupported, "key: 99 is no option of this version");
        refused(RIE_OPT_THREADS, Value::Int(-1), InvalidArgument, "RIE_OPT_THREADS: expected 0 to 1024, found -1");
        refused(
            RIE_OPT_THREADS,
            Value::Float(1.0),
            InvalidArgument,
            "RIE_OPT_THREADS: an int option; use rie_options_set_int",
        );
        refused(
            RIE_OPT_TOP_P,
            Value::Float(0.0),
            InvalidArgument,
            "RIE_OPT_TOP_P: expected above 0.0 to 1.0, found 0.0",
        );
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for key in RIE_OPT_TEMPERATURE..=RIE_OPT_FREQUENCY_PENALTY {
                assert!(Options::default().set(key, Value::Float(bad)).is_err(), "{key} {bad}");
            }
        }
        refused(
            RIE_OPT_CONFIG_PATH,
            Value::Str(String::new()),
            InvalidArgument,
            "RIE_OPT_CONFIG_PATH: expected a path, found an empty text",
        );
    }
}
