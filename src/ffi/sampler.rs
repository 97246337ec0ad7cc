//! Samplers.

use super::error::rie_error;
use super::exclusive::Exclusive;
use super::options::{self, rie_options};
use super::raw::Out;
use super::{guard, handle, rie_status, rie_token};
use crate::bail;
use crate::sampler::Sampler;

/// Chooses tokens from logits; has its own random stream.
///
/// Owner: the host, from `rie_sampler_new` to `rie_free`. Threads: one call at a time. May serve several sessions in
/// turn; the penalties look at the session of the call.
pub struct rie_sampler {
    _private: (),
}

/// A new sampler. It works in this order: logit bias, repetition penalty, presence and frequency penalty, temperature,
/// top-k, top-p, min-p, then one draw. The same seed, options and logits give the same tokens on every platform.
///
/// Reads `RIE_OPT_SEED`, `RIE_OPT_TEMPERATURE`, `RIE_OPT_TOP_K`, `RIE_OPT_TOP_P`, `RIE_OPT_MIN_P` and the three
/// `RIE_OPT_*_PENALTY`.
///
/// Ownership: `*out` is the host's; release it with `rie_free`. It is written only on success. Threads: any. `options`
/// NULL means the defaults: the model's own distribution and a random seed. `out` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_sampler_new(
    options: *const rie_options,
    out: *mut *mut rie_sampler,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_sampler_new", err, || {
        // SAFETY: the host vouches for a writable `out`.
        let out = unsafe { Out::new(out, "out") }?;
        let sampler = Sampler::new(&options::copy(options)?.sampler())?;
        out.write(handle::publish(SamplerObject::new(sampler))?);
        Ok(())
    })
}

/// Adds `bias` to the logit of `token` from now on, in place of an earlier bias of that token. Minus infinity forbids
/// the token; 0 removes the bias. An id that a session's model does not have is without effect there.
///
/// Threads: one call at a time with the same `sampler`. Errors: `RIE_ERR_TOKEN` for a negative id,
/// `RIE_ERR_INVALID_ARGUMENT` for NaN and plus infinity. `sampler` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_sampler_set_bias(
    sampler: *mut rie_sampler,
    token: rie_token,
    bias: f32,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_sampler_set_bias", err, || {
        let sampler = handle::get::<SamplerObject>(sampler, "sampler")?;
        let Ok(id) = u32::try_from(token) else { bail!(Token, "token: expected an id from 0 on, found {token}") };
        if bias.is_nan() || bias == f32::INFINITY {
            bail!(InvalidArgument, "bias: expected a finite number or minus infinity, found {bias}");
        }
        sampler.with("sampler", |s| s.set_bias(id, bias))
    })
}

/// Behind a [`rie_sampler`].
pub type SamplerObject = Exclusive<Sampler>;
