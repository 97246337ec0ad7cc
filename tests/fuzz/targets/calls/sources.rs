//! Calls about sources and the log.

use super::super::model::{CONFIG, TOKENIZER};
use super::super::reader::Reader;
use super::arguments::{Buffer, Place};
use super::as_c;
use super::world::{Kind, World, model_weights};
use rie::ffi::constants::*;
use rie::ffi::log::rie_log_set;
use rie::ffi::model::{rie_inspect_source, rie_model_load_source};
use rie::ffi::source::*;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut, without_provenance_mut};

thread_local! {
    /// Buffers that were lent to sources and not given back.
    static LENT: Cell<usize> = const { Cell::new(0) };
}

/// How many buffers are lent.
pub fn lent() -> usize {
    LENT.get()
}

/// Names of files and what they hold.
fn contents(name: usize) -> (&'static [u8], &'static [u8]) {
    match name {
        0 | 1 => (b"config.json", CONFIG.as_bytes()),
        2 | 3 => (b"tokenizer.json", TOKENIZER),
        4 | 5 => (b"model.safetensors", model_weights()),
        6 => (b"chat_template.jinja", b"{{ messages[0].content }}"),
        7 => (b"generation_config.json", b"{\"eos_token_id\": 1}"),
        8 => (b"notes.txt", b"of no use"),
        9 => (b"", b""),
        10 => (b"a/config.json", CONFIG.as_bytes()),
        _ => (b"\xff", b"not UTF-8"),
    }
}

/// Adds a file, or all that a model has.
pub fn add(w: &mut World, r: &mut Reader<'_>) {
    let source = w.pick(r, Kind::Source);
    if r.below(3) == 0 {
        [0, 2, 4].into_iter().for_each(|name| add_one(w, r, source, name));
    } else {
        let name = r.below(12);
        add_one(w, r, source, name);
    }
}

fn add_one(w: &mut World, r: &mut Reader<'_>, source: *mut c_void, name: usize) {
    let (name, bytes) = contents(name);
    let (err, given) = (w.error(r), CString::new(name).ok().filter(|_| r.below(32) != 1));
    match r.below(4) {
        0 => {
            let path = w.path_of(r, name);
            // SAFETY: NUL-terminated, or NULL.
            let status = unsafe { rie_source_add_path(source.cast(), as_c(&given), as_c(&path), err.cast()) };
            w.judge("rie_source_add_path", status, err, &[(source, Kind::Source)]);
        }
        1 => {
            let file = w.path_of(r, name).and_then(|path| File::open(path.to_str().ok()?).ok());
            let fd = file.as_ref().map_or(r.choose(&[-1, i32::MIN, 1 << 20]), |file| file.as_raw_fd());
            let length = bytes.len() as u64;
            let (offset, len) = (r.choose(&[0, 0, 0, 0, 1, length, u64::MAX]), r.choose(&[0, length, 1, u64::MAX]));
            // SAFETY: NUL-terminated, or NULL; takes any descriptor.
            let status = unsafe { rie_source_add_fd(source.cast(), as_c(&given), fd, offset, len, err.cast()) };
            w.judge("rie_source_add_fd", status, err, &[(source, Kind::Source)]);
        }
        _ => {
            let lent = Lent::new(r, bytes);
            let (data, len) = match r.below(16) {
                1 => (null(), lent.len()),
                2 => (lent.at(), usize::MAX),
                3 => (null(), 0),
                _ => (lent.at(), lent.len()),
            };
            let (release, lent): (rie_release_fn, _) = (Some(release), Box::into_raw(Box::new(lent)));
            // SAFETY: NUL-terminated, or NULL; bytes as many as it says, or refused, until they are released.
            let status = unsafe {
                let (name, data, err) = (as_c(&given), data.cast(), err.cast());
                rie_source_add_memory(source.cast(), name, data, len, release, lent.cast(), err)
            };
            w.judge("rie_source_add_memory", status, err, &[(source, Kind::Source)]);
        }
    }
}

/// Memory that is gone once it is released, for a sanitizer to see who still uses it, or releases it again.
struct Lent {
    bytes: Vec<u8>,
    /// Where the file begins: nothing may count on alignment.
    start: usize,
}

impl Lent {
    /// `contents`, sometimes shorter or changed in one bit.
    fn new(r: &mut Reader<'_>, contents: &[u8]) -> Lent {
        LENT.set(LENT.get() + 1);
        let start = r.below(4);
        let mut bytes = vec![0; start];
        bytes.extend_from_slice(contents);
        match r.below(12) {
            1 => bytes.truncate(start + r.word() as usize % (contents.len() + 1)),
            2 => {
                let at = r.word() as usize % bytes.len().max(1);
                bytes[at..].iter_mut().take(1).for_each(|byte| *byte ^= 1 << r.below(8));
            }
            _ => {}
        }
        Lent { start: start.min(bytes.len()), bytes }
    }

    fn at(&self) -> *const u8 {
        self.bytes[self.start..].as_ptr()
    }

    fn len(&self) -> usize {
        self.bytes.len() - self.start
    }
}

unsafe extern "C" fn release(lent: *mut c_void) {
    LENT.set(LENT.get().checked_sub(1).expect("nothing is released twice"));
    // SAFETY: `add_one` gave it away for this call alone.
    drop(unsafe { Box::from_raw(lent.cast::<Lent>()) });
}

/// Loads or describes the model of a source.
pub fn load(w: &mut World, r: &mut Reader<'_>) {
    let (source, options, err) = (w.pick(r, Kind::Source), w.pick(r, Kind::Options), w.error(r));
    let handles = [(source, Kind::Source), (options, Kind::OptionsOrNull)];
    if r.below(3) == 0 {
        let mut b = Buffer::new(r, 0u8);
        // SAFETY: a buffer as large as it says, or refused.
        let status = unsafe {
            rie_inspect_source(source.cast(), options.cast(), b.at().cast(), b.cap(), b.len_at(), err.cast())
        };
        w.judge("rie_inspect_source", status, err, &handles);
        b.check(status);
        return;
    }
    let mut out = Place::new(r, null_mut());
    // SAFETY: a place that is writable or NULL.
    let status = unsafe { rie_model_load_source(source.cast(), options.cast(), out.at(), err.cast()) };
    w.judge("rie_model_load_source", status, err, &handles);
    w.made(Kind::Model, status, out.result(status).map(|model| model.cast()));
}

/// Sets the log function, which is told the level that it was set for.
pub fn log(w: &World, r: &mut Reader<'_>) {
    let (err, level) = (w.error(r), r.choose(&[RIE_LOG_DEBUG, RIE_LOG_INFO, RIE_LOG_WARN, RIE_LOG_ERROR, 0, 5, -1]));
    let function = [Some(hear as _), None][r.below(2)];
    let userdata = without_provenance_mut(level as usize);
    // SAFETY: the function looks at the value of `userdata` only.
    let status = unsafe { rie_log_set(function, userdata, level, err.cast()) };
    w.judge("rie_log_set", status, err, &[]);
    assert!(status != RIE_OK || (RIE_LOG_DEBUG..=RIE_LOG_ERROR).contains(&level), "level {level} was taken");
}

/// Ends what [`log`] began.
pub fn silence() {
    // SAFETY: no function.
    assert_eq!(unsafe { rie_log_set(None, null_mut(), RIE_LOG_DEBUG, null_mut()) }, RIE_OK);
}

unsafe extern "C" fn hear(userdata: *mut c_void, level: i32, message: *const c_char) {
    assert!((userdata.addr() as i32..=RIE_LOG_ERROR).contains(&level), "level {level}");
    // SAFETY: NUL-terminated, as promised.
    let text = unsafe { CStr::from_ptr(message) }.to_str().expect("messages are UTF-8");
    assert!(!text.is_empty() && !text.contains(['\n', '\r']), "{text:?}");
    // SAFETY: as in `silence`.
    let status = unsafe { rie_log_set(None, null_mut(), RIE_LOG_DEBUG, null_mut()) };
    assert_eq!(status, RIE_ERR_STATE, "the log function cannot be changed from inside");
}
