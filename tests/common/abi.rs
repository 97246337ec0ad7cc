//! The C ABI as a Rust test calls it, in its own process: where it holds the allocator, or the places that panic.

#![allow(dead_code, reason = "each test binary uses its own part")]

use rie::ffi::batch::rie_decode_batch;
use rie::ffi::error::{rie_error, rie_error_message, rie_error_new};
use rie::ffi::info::rie_get_int;
use rie::ffi::library::rie_free;
use rie::ffi::model::{rie_model, rie_model_load};
use rie::ffi::options::{rie_options, rie_options_new, rie_options_set_float, rie_options_set_int};
use rie::ffi::sampler::{rie_sampler, rie_sampler_new};
use rie::ffi::session::*;
use rie::ffi::{constants::*, rie_status, rie_token};
use std::ffi::{CStr, CString};
use std::path::Path;
use std::ptr::{null, null_mut};

/// What a call returned, or its error and message.
pub type Outcome<T = rie_status> = Result<T, (rie_status, String)>;

/// Makes a call with an error object of its own.
pub fn call(f: impl FnOnce(*mut rie_error) -> rie_status) -> Outcome {
    let err = rie_error_new();
    let status = f(err);
    // SAFETY: never NULL, and NUL-terminated; copied before another call gets `err`.
    let message = unsafe { CStr::from_ptr(rie_error_message(err)) }.to_string_lossy().into_owned();
    free(err);
    if status < 0 { Err((status, message)) } else { Ok(status) }
}

fn free<T>(handle: *mut T) {
    // SAFETY: takes any pointer.
    unsafe { rie_free(handle.cast()) }
}

/// Numbers of options and a temperature, the only one that is not a whole number here.
#[derive(Clone, Copy, Default)]
pub struct Settings<'a> {
    pub ints: &'a [(i32, i64)],
    pub temperature: Option<f64>,
}

impl Settings<'_> {
    fn with<R>(self, f: impl FnOnce(*const rie_options) -> R) -> R {
        let options = rie_options_new();
        for &(key, value) in self.ints {
            // SAFETY: a handle, and NULL for no error object.
            assert_eq!(unsafe { rie_options_set_int(options, key, value, null_mut()) }, RIE_OK, "option {key}");
        }
        if let Some(value) = self.temperature {
            // SAFETY: as above.
            let status = unsafe { rie_options_set_float(options, RIE_OPT_TEMPERATURE, value, null_mut()) };
            assert_eq!(status, RIE_OK, "temperature");
        }
        let result = f(options);
        free(options);
        result
    }
}

pub struct Model(pub *mut rie_model);

impl Model {
    pub fn load(path: &Path, settings: Settings<'_>) -> Outcome<Model> {
        let path = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
        let mut model = null_mut();
        // SAFETY: the path is NUL-terminated and `model` writable.
        let load = |options| call(|err| unsafe { rie_model_load(path.as_ptr(), options, &mut model, err) });
        settings.with(load)?;
        Ok(Model(model))
    }

    pub fn session(&self, settings: Settings<'_>) -> Outcome<Session> {
        let mut session = null_mut();
        // SAFETY: `session` is writable.
        settings.with(|options| call(|err| unsafe { rie_session_new(self.0, options, &mut session, err) }))?;
        Ok(Session(session))
    }

    pub fn vocab(&self) -> usize {
        let mut vocab = 0;
        // SAFETY: `vocab` is writable.
        call(|err| unsafe { rie_get_int(self.0.cast(), RIE_INFO_VOCAB_SIZE, &mut vocab, err) }).expect("a size");
        vocab as usize
    }
}

pub struct Sampler(pub *mut rie_sampler);

impl Sampler {
    pub fn new(settings: Settings<'_>) -> Sampler {
        let mut sampler = null_mut();
        // SAFETY: `sampler` is writable.
        settings.with(|options| call(|err| unsafe { rie_sampler_new(options, &mut sampler, err) })).expect("a sampler");
        Sampler(sampler)
    }
}

pub struct Session(pub *mut rie_session);

impl Session {
    pub fn append(&self, tokens: &[rie_token]) -> Outcome {
        // SAFETY: `tokens` is a slice.
        call(|err| unsafe { rie_session_append(self.0, tokens.as_ptr(), tokens.len(), err) })
    }

    pub fn eval(&self) -> Outcome {
        // SAFETY: takes any handle.
        call(|err| unsafe { rie_session_eval(self.0, 0, err) })
    }

    pub fn truncate(&self, keep: usize) -> Outcome {
        // SAFETY: takes any handle.
        call(|err| unsafe { rie_session_truncate(self.0, keep, err) })
    }

    pub fn step(&self, sampler: Option<&Sampler>) -> Outcome<rie_token> {
        let mut token = -1;
        // SAFETY: `token` is writable.
        call(|err| unsafe { rie_decode_step(self.0, sampler.map_or(null_mut(), |s| s.0), &mut token, err) })?;
        Ok(token)
    }

    /// The logits' bits, in `bits`, which is as long as the vocabulary.
    pub fn logits(&self, bits: &mut [f32]) -> Outcome {
        // SAFETY: `bits` is a slice.
        call(|err| unsafe { rie_session_logits(self.0, bits.as_mut_ptr(), bits.len(), err) })
    }

    pub fn score(&self, tokens: &[rie_token], logprobs: &mut [f32]) -> Outcome {
        // SAFETY: slices of the same length.
        call(|err| unsafe { rie_session_score(self.0, tokens.as_ptr(), tokens.len(), logprobs.as_mut_ptr(), err) })
    }

    pub fn fork(&self) -> Outcome<Session> {
        let mut fork = null_mut();
        // SAFETY: `fork` is writable.
        call(|err| unsafe { rie_session_fork(self.0, &mut fork, err) })?;
        Ok(Session(fork))
    }

    /// Saves into `room`; returns how many bytes that takes.
    pub fn save(&self, room: &mut [u8]) -> Outcome<usize> {
        let mut len = 0;
        // SAFETY: `room` is a slice and `len` writable.
        call(|err| unsafe { rie_session_save(self.0, room.as_mut_ptr(), room.len(), &mut len, err) })?;
        Ok(len)
    }

    pub fn load(&self, saved: &[u8]) -> Outcome {
        // SAFETY: `saved` is a slice.
        call(|err| unsafe { rie_session_load(self.0, saved.as_ptr(), saved.len(), err) })
    }

    /// All tokens.
    pub fn tokens(&self) -> Vec<rie_token> {
        let (mut room, mut len) = (vec![0; 2048], 0);
        // SAFETY: `room` is a vector and `len` writable.
        call(|err| unsafe { rie_session_tokens(self.0, room.as_mut_ptr(), room.len(), &mut len, err) })
            .expect("tokens");
        room.truncate(len);
        room
    }
}

/// A greedy step of each session: tokens and statuses.
pub fn batch(sessions: &[Session], samplers: Option<&[Sampler]>) -> Outcome<(Vec<rie_token>, Vec<rie_status>)> {
    let handles: Vec<_> = sessions.iter().map(|session| session.0).collect();
    let samplers: Option<Vec<_>> = samplers.map(|samplers| samplers.iter().map(|sampler| sampler.0).collect());
    let samplers = samplers.as_ref().map_or(null(), |samplers| samplers.as_ptr());
    let (mut tokens, mut statuses) = (vec![-1; sessions.len()], vec![0; sessions.len()]);
    // SAFETY: all arrays have as many elements as there are sessions.
    call(|err| unsafe {
        let (tokens, statuses) = (tokens.as_mut_ptr(), statuses.as_mut_ptr());
        rie_decode_batch(handles.as_ptr(), samplers, handles.len(), tokens, statuses, err)
    })?;
    Ok((tokens, statuses))
}

macro_rules! freed_on_drop {
    ($($object:ident)*) => {
        $(impl Drop for $object {
            fn drop(&mut self) {
                free(self.0);
            }
        })*
    };
}

freed_on_drop!(Model Sampler Session);
