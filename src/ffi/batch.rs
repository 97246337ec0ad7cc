//! One step of many sessions.

use super::constants::{RIE_END, RIE_OK, RIE_PENDING};
use super::error::rie_error;
use super::exclusive::Taken;
use super::handle;
use super::raw::{self, Buffer};
use super::sampler::{SamplerObject, rie_sampler};
use super::session::{SessionObject, rie_session};
use super::text::token_out;
use super::{guard, rie_status, rie_token};
use crate::bail;
use crate::error::{Error, Result};
use crate::memory;
use crate::model::Model;
use crate::sampler::Sampler;
use crate::session::{Progress, Session, Step, Turn, decode_batch};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What `out` says where no token was chosen.
const NO_TOKEN: rie_token = -1;

/// One step of each of `n` sessions of one model, together: as `rie_decode_step` for each, with the same tokens, in one
/// forward pass, which reads the weights once for all. The set may change with every call.
///
/// For session i, `out_status[i]` is `RIE_OK` or `RIE_END` and `out[i]` its token; or `RIE_PENDING` if a part of its
/// prompt is left for the next calls (`RIE_OPT_PROMPT_TOKENS`); or an error of its own, one of those of
/// `rie_decode_step`, which fails no other session; `out[i]` is then -1. Such an error is also a handle that is NULL or
/// bad, and a session without tokens or of another model than the first. A cancelled session leaves the batch with its
/// state as `rie_session_cancel` says, but the call goes on for the others. `samplers[i]` chooses for session i; NULL
/// there, or `samplers` NULL: the most probable token.
///
/// Returns `RIE_OK` also if single sessions failed, or `n` is 0; `err` alone tells of the first session that failed.
/// Threads: one call at a time with the same sessions and samplers. Errors: `RIE_ERR_INVALID_ARGUMENT` for a NULL array or a
/// session or sampler that is there twice, `RIE_ERR_NO_MEMORY`, `RIE_ERR_INTERNAL`; then no token is chosen, and `out` and
/// `out_status` are not written. `sessions`, `out` and `out_status` must not be NULL unless `n` is 0; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_decode_batch(
    sessions: *const *mut rie_session,
    samplers: *const *mut rie_sampler,
    n: usize,
    out: *mut rie_token,
    out_status: *mut rie_status,
    err: *mut rie_error,
) -> rie_status {
    guard::entry_noting("rie_decode_batch", err, |noted| {
        // SAFETY: the host vouches for `n` readable handles.
        let sessions = unsafe { raw::slice(sessions, n, "sessions") }?;
        let samplers = match samplers.is_null() {
            true => &[],
            // SAFETY: as above.
            false => unsafe { raw::slice(samplers, n, "samplers") }?,
        };
        // SAFETY: the host vouches for `n` writable elements of both.
        let outputs = unsafe { (Buffer::new(out, n, "out")?, Buffer::new(out_status, n, "out_status")?) };
        memory::expect_room(n.saturating_mul(512), "sessions")?; // small pieces for each
        no_twins(sessions, "sessions")?;
        no_twins(samplers, "samplers")?;
        let (mut tokens, mut statuses) = (memory::with_room(n)?, memory::with_room(n)?);
        let results = step(sessions, samplers)?;
        for (i, result) in results.into_iter().enumerate() {
            let (token, status) = match result {
                Ok(Progress::Step(Step::Token(id))) => (token_out(id)?, RIE_OK),
                Ok(Progress::Step(Step::End(id))) => (token_out(id)?, RIE_END),
                Ok(Progress::Pending) => (NO_TOKEN, RIE_PENDING),
                Err(error) => {
                    let status = error.status as rie_status;
                    noted.get_or_insert_with(|| error.at(&format!("sessions[{i}]")));
                    (NO_TOKEN, status)
                }
            };
            tokens.push(token);
            statuses.push(status);
        }
        outputs.0.fill(&tokens)?;
        outputs.1.fill(&statuses)?;
        Ok(RIE_OK)
    })
}

/// A session and its sampler, found and in use by nobody else.
type Found = (Arc<SessionObject>, Option<Arc<SamplerObject>>);
type Held<'a> = (Taken<'a, Session>, Option<Taken<'a, Sampler>>);

fn step(sessions: &[*mut rie_session], samplers: &[*mut rie_sampler]) -> Result<Vec<Result<Progress>>> {
    let find = |(i, &session): (usize, &*mut rie_session)| -> Result<Found> {
        let sampler = samplers.get(i).copied().unwrap_or(std::ptr::null_mut());
        Ok((handle::get(session, "session")?, handle::get_optional(sampler, "sampler")?))
    };
    let found = memory::collected(sessions.iter().enumerate().map(find))?;
    let mut model = None;
    let mut held = memory::with_room(found.len())?;
    for found in &found {
        held.push(hold(found, &mut model));
    }
    let Some(model) = model else {
        return memory::collected(held.into_iter().map(|held| held.map(|_| Progress::Pending)));
    };
    let mut results = memory::with_room(held.len())?; // now: later, what was chosen could get lost
    let turns = held.iter_mut().filter_map(|held| held.as_mut().ok());
    let turns = memory::collected(turns.map(|(session, sampler)| Turn { session, sampler: sampler.as_deref_mut() }))?;
    let outcomes = decode_batch(&model, turns);
    if outcomes.is_err() {
        held.iter().flatten().for_each(|held| learn(held, &outcomes));
    }
    let mut outcomes = outcomes?.into_iter();
    results.extend(held.into_iter().map(|held| {
        let held = held?;
        let outcome = outcomes.next().unwrap_or(Ok(Progress::Pending));
        learn(&held, &outcome);
        outcome
    }));
    Ok(results)
}

/// Refuses a session and its sampler from now on if their step met a defect.
fn learn<R>((session, sampler): &Held<'_>, outcome: &Result<R>) {
    session.learn(outcome);
    sampler.iter().for_each(|sampler| sampler.learn(outcome));
}

/// Takes a session and its sampler, if the session is of `model`, the first one's.
fn hold<'a>(found: &'a Result<Found>, model: &mut Option<Arc<Model>>) -> Result<Held<'a>> {
    let (session, sampler) = found.as_ref().map_err(Error::clone)?;
    let session = session.session.take("session")?;
    session.model().check_process()?;
    let sampler = sampler.as_ref().map(|sampler| sampler.take("sampler")).transpose()?;
    if !Arc::ptr_eq(model.get_or_insert_with(|| session.model().clone()), session.model()) {
        bail!(InvalidArgument, "session: of another model than the ones before it");
    }
    Ok((session, sampler))
}

/// An error if a handle is there twice; NULL may be.
fn no_twins<T>(handles: &[*mut T], arg: &str) -> Result<()> {
    let mut seen = BTreeMap::new();
    for (i, handle) in handles.iter().enumerate().filter(|(_, handle)| !handle.is_null()) {
        if let Some(first) = seen.insert(handle.addr(), i) {
            bail!(InvalidArgument, "{arg}[{i}]: the same handle as {arg}[{first}]");
        }
    }
    Ok(())
}
