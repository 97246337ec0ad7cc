//! Sessions: tokens in, logits and next tokens out.

use super::constants::{RIE_END, RIE_OK, RIE_PENDING};
use super::error::rie_error;
use super::exclusive::Exclusive;
use super::model::rie_model;
use super::options::{self, rie_options};
use super::raw::{self, Buffer, Out, SizedBuffer};
use super::sampler::{SamplerObject, rie_sampler};
use super::text::{ids_in, ids_out, token_out};
use super::{guard, handle, rie_status, rie_token};
use crate::error::Result;
use crate::memory;
use crate::model::Model;
use crate::session::{Session, Step};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A sequence of tokens and what the model has computed of it (the KV cache).
///
/// Owner: the host, from `rie_session_new` to `rie_free`; keeps its model alive. Threads: one call at a time, a second
/// one gets `RIE_ERR_BUSY`; `rie_session_cancel` alone may come at any time.
pub struct rie_session {
    _private: (),
}

/// A new, empty session of `model`.
///
/// Reads `RIE_OPT_CONTEXT`, `RIE_OPT_KV_TYPE`, `RIE_OPT_CHUNK`, `RIE_OPT_PROFILE`, `RIE_OPT_SHARE_PREFIXES` and
/// `RIE_OPT_SPECULATION`.
///
/// Ownership: `*out` is the host's; release it with `rie_free`. It is written only on success. Threads: any. Errors:
/// `RIE_ERR_NO_MEMORY`, `RIE_ERR_INVALID_ARGUMENT`. `options` NULL means the defaults; `model` and `out` must not be
/// NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_session_new(
    model: *const rie_model,
    options: *const rie_options,
    out: *mut *mut rie_session,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_session_new", err, || {
        let model = handle::get::<Model>(model, "model")?;
        // SAFETY: the host vouches for a writable `out`.
        let out = unsafe { Out::new(out, "out") }?;
        let session = Session::new(model, &options::copy(options)?.session())?;
        out.write(publish(session)?);
        Ok(())
    })
}

/// Queues `n` tokens behind those that the session has. Computes nothing.
///
/// Threads: one call at a time with the same `session`. Errors: `RIE_ERR_TOKEN`, `RIE_ERR_CONTEXT_FULL`,
/// `RIE_ERR_NO_MEMORY`; then none of the tokens is queued. `tokens` may be NULL if `n` is 0; `session` must not be
/// NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_session_append(
    session: *mut rie_session,
    tokens: *const rie_token,
    n: usize,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_session_append", err, || {
        let object = object(session)?;
        // SAFETY: the host vouches for `n` readable tokens.
        let tokens = ids_in(unsafe { raw::slice(tokens, n, "tokens") }?, object.vocab)?;
        object.with(|s| s.append(&tokens))
    })
}

/// Evaluates up to `max_tokens` of the queued tokens; 0 = all. Returns `RIE_PENDING` if some are left, else `RIE_OK`.
/// The functions that need a token evaluated do so by themselves: this one lets the host do it in portions of its own,
/// to show progress or to stay responsive. The portions never change a result.
///
/// Threads: one call at a time with the same `session`. Errors: `RIE_ERR_CANCELLED` and `RIE_ERR_NO_MEMORY`; what was
/// evaluated before stays evaluated, the rest stays queued. `session` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_session_eval(
    session: *mut rie_session,
    max_tokens: usize,
    err: *mut rie_error,
) -> rie_status {
    guard::entry("rie_session_eval", err, || {
        let left = object(session)?.with(|s| s.eval(max_tokens))?;
        Ok(if left { RIE_PENDING } else { RIE_OK })
    })
}

/// The logits after the session's last token: one float for each id of the model's vocabulary. Evaluates what is
/// queued first.
///
/// Writes `RIE_INFO_VOCAB_SIZE` floats (a number that the session tells as well) to `buf`, which holds `cap` floats. If
/// `cap` is less, nothing is evaluated and the call fails with `RIE_ERR_BUFFER_TOO_SMALL`. Threads: one call at a time
/// with the same `session`. Errors: `RIE_ERR_STATE` if the session has no tokens; otherwise as for `rie_session_eval`.
/// `session` and `buf` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_session_logits(
    session: *mut rie_session,
    buf: *mut f32,
    cap: usize,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_session_logits", err, || {
        let object = object(session)?;
        // SAFETY: the host vouches for `cap` writable floats.
        let buf = unsafe { Buffer::new(buf, cap, "buf") }?;
        buf.expect(object.vocab)?;
        object.with(|s| buf.fill(s.logits()?))
    })
}

/// The natural logarithm of the probability of each of `n` tokens, given the session's tokens and those of `tokens`
/// before it. The session is left as it was, except that what was queued is evaluated.
///
/// Writes `n` floats to `logprobs`, on success only. Threads: one call at a time with the same `session`. Errors:
/// `RIE_ERR_STATE` if the session has no tokens, `RIE_ERR_TOKEN`, `RIE_ERR_CONTEXT_FULL`; otherwise as for
/// `rie_session_eval`. `tokens` and `logprobs` may be NULL if `n` is 0; `session` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_session_score(
    session: *mut rie_session,
    tokens: *const rie_token,
    n: usize,
    logprobs: *mut f32,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_session_score", err, || {
        let object = object(session)?;
        // SAFETY: the host vouches for `n` readable tokens and `n` writable floats.
        let (tokens, out) = unsafe { (raw::slice(tokens, n, "tokens")?, Buffer::new(logprobs, n, "logprobs")?) };
        let tokens = ids_in(tokens, object.vocab)?;
        let mut logprobs = memory::filled(0.0, n)?;
        object.with(|s| s.score(&tokens, &mut logprobs))?;
        out.fill(&logprobs)
    })
}

/// All tokens of the session: appended and generated, evaluated and queued.
///
/// Writes the ids to `buf`, which holds `cap` tokens, and their number to `*len`; if they do not fit, the number alone
/// and `RIE_ERR_BUFFER_TOO_SMALL`. Threads: one call at a time with the same `session`. `buf` may be NULL if `cap` is 0;
/// `session` and `len` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_session_tokens(
    session: *mut rie_session,
    buf: *mut rie_token,
    cap: usize,
    len: *mut usize,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_session_tokens", err, || {
        let object = object(session)?;
        // SAFETY: the host vouches for `cap` writable tokens at `buf` and a writable `len`.
        let buf = unsafe { SizedBuffer::new(buf, cap, len) }?;
        object.with(|s| buf.fill(&ids_out(s.tokens())?))
    })
}

/// Forgets all tokens from position `keep` on, so that the session has `keep` tokens; 0 empties it. What was computed
/// of the tokens kept is kept.
///
/// Threads: one call at a time with the same `session`. Errors: `RIE_ERR_INVALID_ARGUMENT` if the session has fewer
/// tokens. `session` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_session_truncate(
    session: *mut rie_session,
    keep: usize,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_session_truncate", err, || object(session)?.with(|s| s.truncate(keep)))
}

/// A new session with the tokens of `session`, evaluated and queued, and its options. What is computed is shared, and copied
/// in pages of 64 tokens where one of the two goes on differently. The new one is not cancelled.
///
/// Ownership: `*out` is the host's; release it with `rie_free`. It is written only on success. Threads: one call at a time
/// with the same `session`; afterwards the two are independent. Errors: `RIE_ERR_NO_MEMORY`. `session` and `out` must not
/// be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_session_fork(
    session: *mut rie_session,
    out: *mut *mut rie_session,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_session_fork", err, || {
        let object = object(session)?;
        // SAFETY: the host vouches for a writable `out`.
        let out = unsafe { Out::new(out, "out") }?;
        out.write(publish(object.with(|s| s.fork())?)?);
        Ok(())
    })
}

/// The session's tokens and what is computed of them, as bytes for `rie_session_load` in any process. The first call with a
/// model reads all its weights once, to know it again.
///
/// Writes the bytes to `buf`, which holds `cap` bytes, and their number to `*len`; if they do not fit, the number alone and
/// `RIE_ERR_BUFFER_TOO_SMALL`. Threads: one call at a time with the same `session`. Errors: `RIE_ERR_NO_MEMORY`. `buf` may be
/// NULL if `cap` is 0; `session` and `len` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_session_save(
    session: *mut rie_session,
    buf: *mut u8,
    cap: usize,
    len: *mut usize,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_session_save", err, || {
        let object = object(session)?;
        // SAFETY: the host vouches for `cap` writable bytes at `buf` and a writable `len`.
        let buf = unsafe { SizedBuffer::new(buf, cap, len) }?;
        object.with(|s| {
            buf.expect(s.saved_len())?;
            buf.fill_parts(&s.save()?)
        })
    })
}

/// Replaces the session's tokens and what is computed of them by the `n` bytes that `rie_session_save` wrote, in this process
/// or another, on this kind of machine or another. It goes on with the same bits. The options stay the session's own.
///
/// The bytes are checked for damage, not for malice: a checksum protects them, no signature. They are never shared with
/// sessions other than forks. Threads: one call at a time with the same `session`. Errors: `RIE_ERR_MISMATCH` for another
/// model, KV cache type or format version, `RIE_ERR_FORMAT` for what is no saved session or a damaged one,
/// `RIE_ERR_CONTEXT_FULL` if the tokens exceed `RIE_OPT_CONTEXT`, `RIE_ERR_NO_MEMORY`; the session is then as it was. `data`
/// and `session` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_session_load(
    session: *mut rie_session,
    data: *const u8,
    n: usize,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_session_load", err, || {
        let object = object(session)?;
        // SAFETY: the host vouches for `n` readable bytes.
        let data = unsafe { raw::slice(data, n, "data") }?;
        object.with(|s| s.load(data))
    })
}

/// Cancels the session's computations: while `on` is not 0, evaluation stops with `RIE_ERR_CANCELLED` after at most
/// one layer's work, in the call that is running and in every later one, until this is called with 0. The session stays
/// usable and stands at its last completely evaluated token.
///
/// Threads: any, at any time; never waits for the call that it cancels. Not to be called from a signal handler, which
/// should set a flag that the host's loop looks at. Errors: none of its own. `session` must not be NULL; `err` may be,
/// and must not be one that another thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_session_cancel(session: *mut rie_session, on: i32, err: *mut rie_error) -> rie_status {
    guard::call("rie_session_cancel", err, || {
        object(session)?.cancel.store(on != 0, Ordering::Relaxed);
        Ok(())
    })
}

/// One step of generation: evaluates what is queued, chooses the next token with `sampler`, or the most probable one if
/// `sampler` is NULL, writes it to `*out` and queues it, so that no forward pass is spent on a last token. Returns
/// `RIE_OK`, or `RIE_END` if an end-of-generation token was chosen: `*out` is that token, and it is not queued.
///
/// `*out` is written with `RIE_OK` and `RIE_END` only. Threads: one call at a time with the same `session` or `sampler`.
/// Errors: `RIE_ERR_CONTEXT_FULL` if there is no room for another token, `RIE_ERR_STATE` if the session has no tokens,
/// `RIE_ERR_NUMERIC` if no token can be chosen; no token is then chosen or queued, and the sampler's random stream stays
/// where it was. Otherwise as for `rie_session_eval`. `session` and `out` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_decode_step(
    session: *mut rie_session,
    sampler: *mut rie_sampler,
    out: *mut rie_token,
    err: *mut rie_error,
) -> rie_status {
    guard::entry("rie_decode_step", err, || {
        let object = object(session)?;
        let sampler = handle::get_optional::<SamplerObject>(sampler, "sampler")?;
        // SAFETY: the host vouches for a writable `out`.
        let out = unsafe { Out::new(out, "out") }?;
        let step = object.with(|session| match &sampler {
            Some(sampler) => sampler.with("sampler", |sampler| session.decode_step(Some(sampler))),
            None => session.decode_step(None),
        })?;
        let (id, status) = match step {
            Step::Token(id) => (id, RIE_OK),
            Step::End(id) => (id, RIE_END),
        };
        out.write(token_out(id)?);
        Ok(status)
    })
}

/// Behind a [`rie_session`].
pub struct SessionObject {
    pub(super) session: Exclusive<Session>,
    /// Outside the lock, so that another thread can raise it during a call.
    cancel: Arc<AtomicBool>,
    vocab: usize,
}

/// Gives a session to the host.
fn publish(session: Session) -> Result<*mut rie_session> {
    let (cancel, vocab) = (session.cancel_flag().clone(), session.model().config().vocab_size);
    handle::publish(SessionObject { session: Exclusive::new(session), cancel, vocab })
}

impl SessionObject {
    /// Runs `f` if no other call uses the session, in the process that made it.
    pub fn with<R>(&self, f: impl FnOnce(&mut Session) -> Result<R>) -> Result<R> {
        self.session.with("session", |session| {
            session.model().check_process()?;
            f(session)
        })
    }
}

fn object(session: *const rie_session) -> Result<Arc<SessionObject>> {
    handle::get(session, "session")
}
