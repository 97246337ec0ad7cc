//! Any sequence of calls: with handles that are good, freed, of another kind, made up or NULL, with odd sizes and
//! buffers.
//!
//! A shadow of every object says what the calls may and must not do.

mod arguments;
mod sources;
mod world;

use super::reader::Reader;
use arguments::{Buffer, Place};
use rie::ffi::batch::rie_decode_batch;
use rie::ffi::chat::{rie_chat_render, rie_chat_tokenize};
use rie::ffi::constants::*;
use rie::ffi::error::{rie_error_message, rie_error_new, rie_error_status};
use rie::ffi::info::{rie_get_int, rie_get_str};
use rie::ffi::library::{rie_abi_version, rie_free, rie_version};
use rie::ffi::model::{rie_inspect, rie_model_load, rie_model_save};
use rie::ffi::options::*;
use rie::ffi::sampler::{rie_sampler_new, rie_sampler_set_bias};
use rie::ffi::session::*;
use rie::ffi::source::rie_source_new;
use rie::ffi::text::{rie_detokenize, rie_text_stream_new, rie_text_stream_push, rie_tokenize};
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use world::{Kind, World};

/// Most calls of an input.
const CALLS: usize = 120;

/// The input is a sequence of calls and their arguments.
pub fn run(data: &[u8]) {
    let mut world = World::new();
    let mut reader = Reader::new(data);
    for _ in 0..CALLS {
        if reader.is_empty() {
            break;
        }
        call(&mut world, &mut reader);
        world.check_sessions();
    }
}

const KEYS: [i32; 53] = [
    100,
    101,
    102,
    103,
    104,
    105,
    106,
    107,
    108,
    109,
    110,
    111,
    112,
    113,
    200,
    201,
    202,
    203,
    204,
    205,
    300,
    301,
    400,
    401,
    402,
    403,
    404,
    405,
    406,
    407,
    408,
    409,
    410,
    411,
    412,
    500,
    501,
    502,
    503,
    504,
    505,
    506,
    507,
    508,
    509,
    600,
    700,
    800,
    801,
    802,
    803,
    0,
    i32::MIN,
];
const FREED: [Kind; 7] =
    [Kind::Error, Kind::Options, Kind::Model, Kind::Session, Kind::Sampler, Kind::Stream, Kind::Source];
const COUNTS: [usize; 8] = [0, 1, 2, 3, 5, 63, 64, 70];
/// More elements than an address space has.
const TOO_MANY: usize = usize::MAX / 4 + 1;
const FLAGS: [u32; 8] = [0, 1, 2, 3, 4, 5, 8, u32::MAX];
const INTS: [i64; 12] = [0, 1, 2, 3, 4, 7, 64, 100, 4096, -1, i64::MAX, i64::MIN];
const FLOATS: [f64; 10] = [0.0, 1.0, 0.5, -1.0, 1e-30, 2.0, 1e300, f64::NAN, f64::INFINITY, -0.0];
const TEMPLATE: &str = "{{ messages[0].content }}";

/// Makes the next call.
fn call(w: &mut World, r: &mut Reader<'_>) {
    match r.below(42) {
        0 => w.publish(Kind::Error, rie_error_new().cast()),
        1 => w.publish_options(),
        2 => {
            let (options, err) = (w.pick(r, Kind::Options), w.error(r));
            let (key, value) = (r.choose(&KEYS), if r.below(4) == 0 { r.word() as i64 } else { r.choose(&INTS) });
            // A thousand threads only take time.
            let value = if key == RIE_OPT_THREADS && value > 3 && value <= 1024 { 3 } else { value };
            // SAFETY: takes any handles.
            let status = unsafe { rie_options_set_int(options.cast(), key, value, err.cast()) };
            w.judge("rie_options_set_int", status, err, &[(options, Kind::Options)]);
        }
        3 => {
            let (options, err) = (w.pick(r, Kind::Options), w.error(r));
            let key = r.choose(&KEYS);
            let value = if r.below(4) == 0 { f64::from_bits(r.word()) } else { r.choose(&FLOATS) };
            // SAFETY: takes any handles.
            let status = unsafe { rie_options_set_float(options.cast(), key, value, err.cast()) };
            w.judge("rie_options_set_float", status, err, &[(options, Kind::Options)]);
        }
        4 => {
            let (options, err) = (w.pick(r, Kind::Options), w.error(r));
            let (key, path) = (r.choose(&KEYS), w.path(r));
            // SAFETY: NUL-terminated, or NULL.
            let status = unsafe { rie_options_set_str(options.cast(), key, as_c(&path), err.cast()) };
            w.judge("rie_options_set_str", status, err, &[(options, Kind::Options)]);
        }
        5 => {
            let (options, err) = (w.pick(r, Kind::Options), w.error(r));
            let progress: rie_progress_fn = [None, Some(progress as _)][r.below(2)];
            let cancels = null_mut::<c_void>().wrapping_add(usize::from(r.below(4) == 0));
            // SAFETY: the function looks at the value of `userdata` only.
            let status = unsafe { rie_options_set_progress(options.cast(), progress, cancels, err.cast()) };
            w.judge("rie_options_set_progress", status, err, &[(options, Kind::Options)]);
        }
        6 => {
            let (options, err, path, mut out) =
                (w.pick(r, Kind::Options), w.error(r), w.path(r), Place::new(r, null_mut()));
            // SAFETY: NUL-terminated or NULL; a place that is writable or NULL.
            let status = unsafe { rie_model_load(as_c(&path), options.cast(), out.at(), err.cast()) };
            w.judge("rie_model_load", status, err, &[(options, Kind::OptionsOrNull)]);
            w.made(Kind::Model, status, out.result(status).map(|model| model.cast()));
        }
        7 => {
            let (model, options, err) = (w.pick(r, Kind::Model), w.pick(r, Kind::Options), w.error(r));
            let path = w.path_to_save(r);
            // SAFETY: NUL-terminated or NULL.
            let status = unsafe { rie_model_save(model.cast(), as_c(&path), options.cast(), err.cast()) };
            w.judge("rie_model_save", status, err, &[(model, Kind::Model), (options, Kind::OptionsOrNull)]);
        }
        8 => {
            let (options, err, path, mut b) = (w.pick(r, Kind::Options), w.error(r), w.path(r), Buffer::new(r, 0u8));
            // SAFETY: NUL-terminated or NULL; a buffer as large as it says, or refused.
            let status =
                unsafe { rie_inspect(as_c(&path), options.cast(), b.at().cast(), b.cap(), b.len_at(), err.cast()) };
            w.judge("rie_inspect", status, err, &[(options, Kind::OptionsOrNull)]);
            b.check(status);
        }
        9 => {
            let (kind, key) = (r.choose(&[Kind::Model, Kind::Session, Kind::Sampler]), r.choose(&KEYS));
            let (handle, err, mut out) = (w.pick(r, kind), w.error(r), Place::new(r, i64::MIN));
            // SAFETY: a place that is writable or NULL.
            let status = unsafe { rie_get_int(handle, key, out.at(), err.cast()) };
            w.judge("rie_get_int", status, err, &[(handle, Kind::Any)]);
            out.result(status);
        }
        10 => {
            let (kind, key) = (r.choose(&[Kind::Model, Kind::Session]), r.choose(&KEYS));
            let (handle, err, mut b) = (w.pick(r, kind), w.error(r), Buffer::new(r, 0u8));
            // SAFETY: a buffer as large as it says, or refused.
            let status = unsafe { rie_get_str(handle, key, b.at().cast(), b.cap(), b.len_at(), err.cast()) };
            w.judge("rie_get_str", status, err, &[(handle, Kind::Any)]);
            b.check(status);
        }
        11 => {
            let (model, err, flags, mut b) = (w.pick(r, Kind::Model), w.error(r), r.choose(&FLAGS), Buffer::new(r, -7));
            let (text, n) = bytes(r);
            // SAFETY: a text and a buffer as large as they say, or refused.
            let status =
                unsafe { rie_tokenize(model.cast(), text.cast(), n, flags, b.at(), b.cap(), b.len_at(), err.cast()) };
            w.judge("rie_tokenize", status, err, &[(model, Kind::Model)]);
            b.check(status);
        }
        12 => {
            let (model, err, flags, mut b) =
                (w.pick(r, Kind::Model), w.error(r), r.choose(&FLAGS), Buffer::new(r, 0u8));
            let (ids, n) = tokens(r);
            // SAFETY: tokens and a buffer as many as they say, or refused.
            let status = unsafe {
                rie_detokenize(model.cast(), ids.as_ptr(), n, flags, b.at().cast(), b.cap(), b.len_at(), err.cast())
            };
            w.judge("rie_detokenize", status, err, &[(model, Kind::Model)]);
            b.check(status);
        }
        13 => {
            let (model, err, flags) = (w.pick(r, Kind::Model), w.error(r), r.choose(&FLAGS));
            let mut out = Place::new(r, null_mut());
            // SAFETY: a place that is writable or NULL.
            let status = unsafe { rie_text_stream_new(model.cast(), flags, out.at(), err.cast()) };
            w.judge("rie_text_stream_new", status, err, &[(model, Kind::Model)]);
            w.made(Kind::Stream, status, out.result(status).map(|stream| stream.cast()));
        }
        14 | 15 => {
            let (stream, err, mut b) = (w.pick(r, Kind::Stream), w.error(r), Buffer::new(r, 0u8));
            let token = token(r);
            // SAFETY: a buffer as large as it says, or refused.
            let status =
                unsafe { rie_text_stream_push(stream.cast(), token, b.at().cast(), b.cap(), b.len_at(), err.cast()) };
            w.judge("rie_text_stream_push", status, err, &[(stream, Kind::Stream)]);
            b.check(status);
        }
        16 => {
            let (model, err, mut b) = (w.pick(r, Kind::Model), w.error(r), Buffer::new(r, 0u8));
            let json = request(r);
            // SAFETY: a text and a buffer as large as they say, or refused.
            let status = unsafe {
                let text = json.as_ptr().cast();
                rie_chat_render(model.cast(), text, json.len(), b.at().cast(), b.cap(), b.len_at(), err.cast())
            };
            w.judge("rie_chat_render", status, err, &[(model, Kind::Model)]);
            b.check(status);
        }
        17 => {
            let (model, err, flags, mut b) = (w.pick(r, Kind::Model), w.error(r), r.choose(&FLAGS), Buffer::new(r, -7));
            let json = request(r);
            // SAFETY: a text and a buffer as large as they say, or refused.
            let status = unsafe {
                let text = json.as_ptr().cast();
                rie_chat_tokenize(model.cast(), text, json.len(), flags, b.at(), b.cap(), b.len_at(), err.cast())
            };
            w.judge("rie_chat_tokenize", status, err, &[(model, Kind::Model)]);
            b.check(status);
        }
        18 => {
            let (model, options, err) = (w.pick(r, Kind::Model), w.pick(r, Kind::Options), w.error(r));
            let mut out = Place::new(r, null_mut());
            // SAFETY: a place that is writable or NULL.
            let status = unsafe { rie_session_new(model.cast(), options.cast(), out.at(), err.cast()) };
            w.judge("rie_session_new", status, err, &[(model, Kind::Model), (options, Kind::OptionsOrNull)]);
            w.made(Kind::Session, status, out.result(status).map(|session| session.cast()));
        }
        19 | 20 => {
            let (session, err) = (w.pick(r, Kind::Session), w.error(r));
            let (ids, n) = tokens(r);
            // SAFETY: tokens as many as they say, or refused.
            let status = unsafe { rie_session_append(session.cast(), ids.as_ptr(), n, err.cast()) };
            w.judge("rie_session_append", status, err, &[(session, Kind::Session)]);
            if status == RIE_OK {
                w.tokens_of(session).extend(&ids[..n]);
            }
        }
        21 => {
            let (session, err, n) = (w.pick(r, Kind::Session), w.error(r), r.choose(&[0, 1, 5, 64, usize::MAX]));
            // SAFETY: takes any handle.
            let status = unsafe { rie_session_eval(session.cast(), n, err.cast()) };
            w.judge("rie_session_eval", status, err, &[(session, Kind::Session)]);
        }
        22 => {
            let (session, err) = (w.pick(r, Kind::Session), w.error(r));
            let mut b = Buffer::of(r, -7.25f32, &[0, 1, 319, 320, 321, 400]);
            // SAFETY: a buffer as large as it says, or refused.
            let status = unsafe { rie_session_logits(session.cast(), b.at(), b.cap(), err.cast()) };
            w.judge("rie_session_logits", status, err, &[(session, Kind::Session)]);
            b.check_fixed(status, super::model::VOCAB);
        }
        23 => {
            let (session, err) = (w.pick(r, Kind::Session), w.error(r));
            let (ids, n) = tokens(r);
            let mut b = Buffer::exact(r, -7.25f32, ids.len());
            let n = if b.is_good() { n } else { ids.len() };
            // SAFETY: tokens and floats as many as they say, or refused.
            let status = unsafe { rie_session_score(session.cast(), ids.as_ptr(), n, b.at(), err.cast()) };
            w.judge("rie_session_score", status, err, &[(session, Kind::Session)]);
            b.check_fixed(status, ids.len());
        }
        24 => {
            let (session, err, mut b) = (w.pick(r, Kind::Session), w.error(r), Buffer::new(r, -7));
            // SAFETY: a buffer as large as it says, or refused.
            let status = unsafe { rie_session_tokens(session.cast(), b.at(), b.cap(), b.len_at(), err.cast()) };
            w.judge("rie_session_tokens", status, err, &[(session, Kind::Session)]);
            b.check(status);
        }
        25 => {
            let (session, err) = (w.pick(r, Kind::Session), w.error(r));
            let keep = r.choose(&[0, 1, 2, 10, 63, 64, 65, 100, usize::MAX]);
            // SAFETY: takes any handle.
            let status = unsafe { rie_session_truncate(session.cast(), keep, err.cast()) };
            w.judge("rie_session_truncate", status, err, &[(session, Kind::Session)]);
            if status == RIE_OK {
                w.tokens_of(session).truncate(keep);
            }
        }
        26 => {
            let (session, err, mut out) = (w.pick(r, Kind::Session), w.error(r), Place::new(r, null_mut()));
            // SAFETY: a place that is writable or NULL.
            let status = unsafe { rie_session_fork(session.cast(), out.at(), err.cast()) };
            w.judge("rie_session_fork", status, err, &[(session, Kind::Session)]);
            if let Some(fork) = out.result(status) {
                let tokens = w.tokens_of(session).clone();
                w.made(Kind::Session, status, Some(fork.cast()));
                *w.tokens_of(fork.cast()) = tokens;
            }
        }
        27 => {
            let (session, err) = (w.pick(r, Kind::Session), w.error(r));
            let mut b = Buffer::of(r, 0x5Au8, &[0, 1, 55, 72, 1 << 14]);
            // SAFETY: a buffer as large as it says, or refused.
            let status = unsafe { rie_session_save(session.cast(), b.at(), b.cap(), b.len_at(), err.cast()) };
            w.judge("rie_session_save", status, err, &[(session, Kind::Session)]);
            if let (Some(bytes), RIE_OK) = (b.check(status), status) {
                let tokens = w.tokens_of(session).clone();
                w.keep_saved(bytes.to_vec(), tokens);
            }
        }
        28 => {
            let (session, err) = (w.pick(r, Kind::Session), w.error(r));
            let (bytes, tokens) = w.saved(r);
            // SAFETY: bytes as many as it says.
            let status = unsafe { rie_session_load(session.cast(), bytes.as_ptr(), bytes.len(), err.cast()) };
            w.judge("rie_session_load", status, err, &[(session, Kind::Session)]);
            if status == RIE_OK {
                *w.tokens_of(session) = tokens;
            }
        }
        29 => {
            let (session, err, on) = (w.pick(r, Kind::Session), w.error(r), i32::from(r.below(3) == 0));
            // SAFETY: takes any handle.
            let status = unsafe { rie_session_cancel(session.cast(), on, err.cast()) };
            w.judge("rie_session_cancel", status, err, &[(session, Kind::Session)]);
        }
        30 | 31 => {
            let (session, sampler, err) = (w.pick(r, Kind::Session), w.pick(r, Kind::Sampler), w.error(r));
            let mut out = Place::new(r, -7);
            // SAFETY: a place that is writable or NULL.
            let status = unsafe { rie_decode_step(session.cast(), sampler.cast(), out.at(), err.cast()) };
            w.judge("rie_decode_step", status, err, &[(session, Kind::Session), (sampler, Kind::SamplerOrNull)]);
            if let (Some(token), RIE_OK) = (out.result(status), status) {
                w.tokens_of(session).push(token);
            }
        }
        32 => {
            let (options, err, mut out) = (w.pick(r, Kind::Options), w.error(r), Place::new(r, null_mut()));
            // SAFETY: a place that is writable or NULL.
            let status = unsafe { rie_sampler_new(options.cast(), out.at(), err.cast()) };
            w.judge("rie_sampler_new", status, err, &[(options, Kind::OptionsOrNull)]);
            w.made(Kind::Sampler, status, out.result(status).map(|sampler| sampler.cast()));
        }
        33 => {
            let (sampler, err) = (w.pick(r, Kind::Sampler), w.error(r));
            let (token, bias) = (token(r), r.choose(&FLOATS) as f32);
            // SAFETY: takes any handle.
            let status = unsafe { rie_sampler_set_bias(sampler.cast(), token, bias, err.cast()) };
            w.judge("rie_sampler_set_bias", status, err, &[(sampler, Kind::Sampler)]);
        }
        34 => batch(w, r),
        35 => w.publish(Kind::Source, rie_source_new().cast()),
        36 | 37 => sources::add(w, r),
        38 | 39 => sources::load(w, r),
        40 => sources::log(w, r),
        _ => {
            let kind = r.choose(&FREED);
            let handle = w.pick(r, kind);
            // SAFETY: both take any handle, the text is not used.
            unsafe {
                assert!(!rie_error_message(handle.cast()).is_null() && !rie_version().is_null());
                assert!(rie_error_status(handle.cast()) <= RIE_PENDING && rie_abi_version() == RIE_ABI_VERSION);
                rie_free(handle);
            }
            w.forget(handle);
        }
    }
}

/// A step of several sessions, some of which may be there twice.
fn batch(w: &mut World, r: &mut Reader<'_>) {
    let n = r.below(5);
    let sessions: Vec<_> = (0..n).map(|_| w.pick(r, Kind::Session)).collect();
    let samplers: Vec<_> = (0..n).map(|_| w.pick(r, Kind::Sampler)).collect();
    let err = w.error(r);
    let (mut out, mut statuses) = (Buffer::exact(r, -7, n), Buffer::exact(r, 77, n));
    let given = if r.below(2) == 0 { samplers.as_ptr() } else { std::ptr::null() };
    // SAFETY: arrays as long as they say, or refused.
    let status =
        unsafe { rie_decode_batch(sessions.as_ptr().cast(), given.cast(), n, out.at(), statuses.at(), err.cast()) };
    w.judge_batch(status, err);
    let tokens = out.check_fixed(status, n).map(<[i32]>::to_vec);
    let (Some(tokens), Some(statuses), RIE_OK) = (tokens, statuses.check_fixed(status, n), status) else { return };
    for ((session, token), status) in sessions.into_iter().zip(tokens).zip(statuses) {
        super::abi::check_status(*status, std::ptr::null());
        assert_eq!(token == -1, ![RIE_OK, RIE_END].contains(status), "{token} with status {status}");
        if *status == RIE_OK {
            w.tokens_of(session).push(token);
        }
    }
}

/// Reports a load or a save; a `userdata` that is not NULL cancels it.
unsafe extern "C" fn progress(userdata: *mut c_void, done: u64, total: u64) -> i32 {
    assert!(done <= total);
    i32::from(!userdata.is_null())
}

fn as_c(text: &Option<CString>) -> *const std::ffi::c_char {
    text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr())
}

/// A text or something like it, and its length, which may be impossible.
fn bytes<'a>(r: &mut Reader<'a>) -> (*const u8, usize) {
    let n = r.below(40);
    let text: &'a [u8] = r.take(n);
    match r.below(8) {
        0 => (std::ptr::null(), text.len()),
        1 => (text.as_ptr(), usize::MAX),
        _ => (text.as_ptr(), text.len()),
    }
}

fn token(r: &mut Reader<'_>) -> i32 {
    match r.below(8) {
        0 => r.choose(&[-1, i32::MIN, i32::MAX, 319, 320, 0]),
        _ => i32::from(r.byte()),
    }
}

/// Tokens, and their number, which may be impossible.
fn tokens(r: &mut Reader<'_>) -> (Vec<i32>, usize) {
    let n = r.choose(&COUNTS);
    let first = token(r);
    let ids: Vec<i32> =
        (0..n as i32).map(|i| if i == 0 { first } else { (first.wrapping_add(i * 7)) & 0xFF }).collect();
    let n = if r.below(16) == 0 { TOO_MANY } else { n };
    (ids, n)
}

/// A conversation, with a template of its own.
fn request(r: &mut Reader<'_>) -> Vec<u8> {
    let n = r.below(40);
    let text = String::from_utf8_lossy(r.take(n)).into_owned();
    let request = serde_json::json!({"messages": [{"role": "user", "content": text}], "chat_template": TEMPLATE});
    let mut json = request.to_string().into_bytes();
    if r.below(4) == 0 {
        json.truncate(r.below(json.len()));
    }
    json
}

/// Inputs to begin with: sequences of calls whose arguments are all the ordinary ones, and some others.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut state = 9u32;
    let mut random = move || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 24) as u8
    };
    (0..24).map(|i| (format!("random-{i}"), (0..600).map(|_| random()).collect())).collect()
}
