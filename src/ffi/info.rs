//! Facts about a model, a session, a sampler or the library, by integer key.

use super::constants::*;
use super::error::rie_error;
use super::handle::{self, Object};
use super::raw::{Out, SizedBuffer};
use super::{guard, rie_status};
use crate::error::Result;
use crate::model::Model;
use crate::pool;
use crate::session::Session;
use crate::tensor::Quant;
use crate::{bail, err, kernels};
use std::ffi::{c_char, c_void};

/// The fact `key` (`RIE_INFO_*`, 400 to 799) about `handle`: a model, a session, a sampler, or NULL for the library. A
/// session answers what is a fact about models only, such as `RIE_INFO_VOCAB_SIZE`, for its model.
///
/// Writes to `*out` on success only. Threads: any with a model or NULL; one call at a time with the same session or
/// sampler, so of two threads that watch a session and decode with it one gets `RIE_ERR_BUSY`. Errors:
/// `RIE_ERR_UNSUPPORTED` for a key that this version does not know for such a handle. `out` must not be NULL; `handle`
/// and `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_get_int(
    handle: *const c_void,
    key: i32,
    out: *mut i64,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_get_int", err, || {
        // SAFETY: the host vouches for a writable `out`.
        let out = unsafe { Out::new(out, "out") }?;
        let object = if handle.is_null() { None } else { Some(handle::any(handle, "handle")?) };
        out.write(match &object {
            None if key == RIE_INFO_CORES => pool::cores() as i64,
            None => return unknown(key, "the library"),
            Some(Object::Model(model)) => known(model_int(model, key), key, "a model")?,
            Some(Object::Session(session)) => session.with(|session| {
                let fact = session_int(session, key).or_else(|| model_int(session.model(), key));
                known(fact, key, "a session")
            })?,
            Some(Object::Sampler(sampler)) if key == RIE_INFO_SEED => {
                sampler.with("handle", |s| Ok(s.seed() as i64))? // the same 64 bits
            }
            Some(other) => return unknown(key, other.kind()),
        });
        Ok(())
    })
}

/// The text `key` (`RIE_INFO_*`, from 800) about `handle`: a model, a session (also what is about its model), or NULL
/// for the library.
///
/// Writes the text, UTF-8 without NUL, to `buf`, which holds `cap` bytes, and its length in bytes to `*len`; if it does
/// not fit, the length alone and `RIE_ERR_BUFFER_TOO_SMALL`. Threads and errors: as for `rie_get_int`. `buf` may be NULL
/// if `cap` is 0; `len` must not be NULL; `handle` and `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_get_str(
    handle: *const c_void,
    key: i32,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_get_str", err, || {
        // SAFETY: the host vouches for `cap` writable bytes at `buf` and a writable `len`.
        let buf = unsafe { SizedBuffer::new(buf.cast(), cap, len) }?;
        let object = if handle.is_null() { None } else { Some(handle::any(handle, "handle")?) };
        let text = match (&object, key) {
            (None, RIE_INFO_ISA) => best_isa()?.to_string(),
            (None, _) => return unknown(key, "the library"),
            (Some(Object::Model(model)), _) => known(model_str(model, key), key, "a model")?.to_string(),
            (Some(Object::Session(session)), RIE_INFO_PROFILE) => session.with(|s| Ok(s.profile().to_json()))?,
            (Some(Object::Session(session)), _) => {
                session.with(|session| Ok(known(model_str(session.model(), key), key, "a session")?.to_string()))?
            }
            (Some(other), _) => return unknown(key, other.kind()),
        };
        buf.fill(text.as_bytes())
    })
}

fn unknown<T>(key: i32, of: &str) -> Result<T> {
    bail!(Unsupported, "key: {key} is no such fact about {of} in this version")
}

fn known<T>(fact: Option<T>, key: i32, of: &str) -> Result<T> {
    fact.map_or_else(|| unknown(key, of), Ok)
}

fn model_str(model: &Model, key: i32) -> Option<&str> {
    Some(match key {
        RIE_INFO_ARCHITECTURE => &model.config().architecture,
        RIE_INFO_MODEL_TYPE => &model.config().model_type,
        RIE_INFO_ISA => model.isa(),
        _ => return None,
    })
}

fn model_int(model: &Model, key: i32) -> Option<i64> {
    let config = model.config();
    let id = |id: Option<u32>| id.map_or(-1, i64::from);
    Some(match key {
        RIE_INFO_VOCAB_SIZE => config.vocab_size as i64,
        RIE_INFO_HIDDEN_SIZE => config.hidden_size as i64,
        RIE_INFO_LAYERS => config.num_hidden_layers as i64,
        RIE_INFO_HEADS => config.num_attention_heads as i64,
        RIE_INFO_KV_HEADS => config.num_key_value_heads as i64,
        RIE_INFO_HEAD_DIM => config.head_dim as i64,
        RIE_INFO_MAX_CONTEXT => config.max_position_embeddings as i64,
        RIE_INFO_BOS_TOKEN => id(config.bos_token_id),
        RIE_INFO_EOS_TOKEN => id(config.eos_token_ids.first().copied()),
        RIE_INFO_PARAMETERS => model.parameters() as i64,
        RIE_INFO_WEIGHT_BYTES => model.weight_bytes() as i64,
        RIE_INFO_THREADS => model.threads() as i64,
        RIE_INFO_WEIGHTS => i64::from(match model.quant() {
            None => RIE_WEIGHTS_AS_IS,
            Some(Quant::Int8) => RIE_WEIGHTS_INT8,
            Some(Quant::Int4 | Quant::Int4Asymmetric) => RIE_WEIGHTS_INT4,
        }),
        RIE_INFO_KV_PAGES => model.pages().usage().0 as i64,
        RIE_INFO_KV_BYTES => model.pages().usage().1 as i64,
        _ => return None,
    })
}

fn session_int(session: &Session, key: i32) -> Option<i64> {
    let kv = session.kv();
    let (layout, (drafted, accepted)) = (kv.layout(), session.drafted());
    Some(match key {
        RIE_INFO_TOKENS => session.tokens().len() as i64,
        RIE_INFO_EVALUATED => session.evaluated() as i64,
        RIE_INFO_CONTEXT => session.context() as i64,
        RIE_INFO_KV_BYTES_PER_TOKEN => layout.token_bytes() as i64,
        RIE_INFO_KV_BYTES => (kv.pages().len() * layout.page_bytes()) as i64,
        RIE_INFO_KV_PAGES => kv.pages().len() as i64,
        RIE_INFO_KV_SHARED_BYTES => (kv.shared_pages() * layout.page_bytes()) as i64,
        RIE_INFO_REUSED_TOKENS => session.reused() as i64,
        RIE_INFO_DRAFTED_TOKENS => drafted as i64,
        RIE_INFO_ACCEPTED_TOKENS => accepted as i64,
        _ => return None,
    })
}

fn best_isa() -> Result<&'static str> {
    let best = kernels::supported().first().map(|k| k.name());
    best.ok_or_else(|| err!(Internal, "no instruction set is supported"))
}
