//! The C ABI as the targets call it: what holds for every call is checked after every call.

use rie::ffi::chat::{rie_chat_render, rie_chat_tokenize};
use rie::ffi::constants::*;
use rie::ffi::error::{rie_error, rie_error_message, rie_error_new, rie_error_status};
use rie::ffi::info::rie_get_int;
use rie::ffi::library::{rie_free, rie_status_name};
use rie::ffi::model::{rie_inspect, rie_model, rie_model_load, rie_model_save};
use rie::ffi::options::{rie_options, rie_options_new, rie_options_set_int};
use rie::ffi::session::*;
use rie::ffi::text::{rie_detokenize, rie_text_stream, rie_text_stream_new, rie_text_stream_push, rie_tokenize};
use rie::ffi::{rie_status, rie_token};
use std::ffi::{CStr, CString, c_void};
use std::fmt::Debug;
use std::path::Path;
use std::ptr::{null, null_mut};

/// What a call gave, or its status.
pub type Result<T> = std::result::Result<T, rie_status>;

/// Elements before and behind a buffer that nobody may touch.
const GUARD: usize = 16;

/// A buffer of a host, and memory around it that must stay as it is.
pub struct Guarded<T> {
    memory: Vec<T>,
    fill: T,
}

impl<T: Copy + PartialEq + Debug> Guarded<T> {
    /// Room for `cap` elements, all `fill`.
    pub fn new(cap: usize, fill: T) -> Guarded<T> {
        Guarded { memory: vec![fill; cap + 2 * GUARD], fill }
    }

    /// Where the buffer begins.
    pub fn ptr(&mut self) -> *mut T {
        self.memory[GUARD..].as_mut_ptr()
    }

    /// The first `n` elements; nothing else may have been written.
    pub fn written(&self, n: usize) -> &[T] {
        let (before, rest) = self.memory.split_at(GUARD);
        let (written, behind) = rest.split_at(n);
        let untouched = |part: &[T]| part.iter().all(|value| *value == self.fill);
        assert!(untouched(before) && untouched(behind), "something was written outside the {n} elements");
        written
    }
}

/// A handle of the library, freed at the end.
pub struct Handle<T>(pub *mut T);

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        free(self.0.cast());
    }
}

/// Releases a handle of any kind.
pub fn free(handle: *mut c_void) {
    // SAFETY: takes any value.
    unsafe { rie_free(handle) }
}

/// The text of the last error that `err` was given.
pub fn message(err: *const rie_error) -> String {
    // SAFETY: takes any value; the text is NUL-terminated and copied before anything else is called.
    unsafe { CStr::from_ptr(rie_error_message(err)) }.to_str().expect("messages are UTF-8").to_owned()
}

/// Whether `status` is one that the header names, and no defect; `err` was given to the call.
pub fn check_status(status: rie_status, err: *const rie_error) {
    // SAFETY: a constant of the library, NUL-terminated.
    let name = unsafe { CStr::from_ptr(rie_status_name(status)) };
    assert_ne!(name, c"RIE_(unknown)", "status {status}");
    assert_ne!(status, RIE_ERR_INTERNAL, "{}", message(err));
}

/// A library with an error object.
pub struct Library(Handle<rie_error>);

impl Library {
    /// With a new error object.
    pub fn new() -> Library {
        Library(Handle(rie_error_new()))
    }

    /// Makes a call, and checks what holds for all: its status has a name, is no defect and is in the error object,
    /// with a message if and only if it is an error.
    pub fn call(&self, call: impl FnOnce(*mut rie_error) -> rie_status) -> Result<rie_status> {
        let err = self.0.0;
        let status = call(err);
        check_status(status, err);
        let text = message(err);
        // SAFETY: takes any value.
        assert_eq!(unsafe { rie_error_status(err) }, status, "{text}");
        assert_eq!(status < 0, text.starts_with("rie_"), "status {status}: {text:?}");
        if status < 0 { Err(status) } else { Ok(status) }
    }

    /// What the last call said.
    pub fn message(&self) -> String {
        message(self.0.0)
    }

    /// Makes a call that writes a result through a pointer, on success only.
    pub fn made<T: Copy + PartialEq + Debug>(
        &self,
        nothing: T,
        call: impl FnOnce(*mut T, *mut rie_error) -> rie_status,
    ) -> Result<T> {
        let mut out = Guarded::new(1, nothing);
        let place = out.ptr();
        let status = self.call(|err| call(place, err));
        match status {
            Ok(_) => Ok(out.written(1)[0]),
            Err(status) => {
                out.written(0);
                Err(status)
            }
        }
    }

    /// Makes a call that fills a buffer: with room for `cap` elements, and if that is too little, with as much as it
    /// asks.
    pub fn filled<T: Copy + PartialEq + Debug>(
        &self,
        cap: usize,
        fill: T,
        call: impl Fn(*mut T, usize, *mut usize, *mut rie_error) -> rie_status,
    ) -> Result<Vec<T>> {
        let mut room = cap;
        loop {
            let (mut buf, mut len) = (Guarded::new(room, fill), Guarded::new(1, usize::MAX));
            let (buf_at, len_at) = (buf.ptr(), len.ptr());
            match self.call(|err| call(buf_at, room, len_at, err)) {
                Ok(_) => return Ok(buf.written(len.written(1)[0]).to_vec()),
                Err(RIE_ERR_BUFFER_TOO_SMALL) => {
                    buf.written(0);
                    let needed = len.written(1)[0];
                    assert!(needed > room && room == cap, "{needed} elements needed of {room}, then {cap}");
                    room = needed;
                }
                Err(status) => {
                    buf.written(0);
                    len.written(0);
                    return Err(status);
                }
            }
        }
    }

    /// Options for one thread, with these ints.
    pub fn options(&self, ints: &[(i32, i64)]) -> Handle<rie_options> {
        let options = Handle(rie_options_new());
        for &(key, value) in [(RIE_OPT_THREADS, 1)].iter().chain(ints) {
            // SAFETY: takes any handle.
            let set = self.call(|err| unsafe { rie_options_set_int(options.0, key, value, err) });
            set.expect("an option");
        }
        options
    }

    /// Loads the model at `path`.
    pub fn load(&self, path: &Path, ints: &[(i32, i64)]) -> Result<Handle<rie_model>> {
        let (path, options) = (c_path(path), self.options(ints));
        // SAFETY: a NUL-terminated path and a writable place.
        self.made(null_mut(), |out, err| unsafe { rie_model_load(path.as_ptr(), options.0, out, err) }).map(Handle)
    }

    /// Saves a model.
    pub fn save(&self, model: &Handle<rie_model>, path: &Path) -> Result<rie_status> {
        let path = c_path(path);
        // SAFETY: a NUL-terminated path.
        self.call(|err| unsafe { rie_model_save(model.0, path.as_ptr(), null(), err) })
    }

    /// Describes the model at `path`.
    pub fn inspect(&self, path: &Path) -> Result<String> {
        let path = c_path(path);
        // SAFETY: a NUL-terminated path; the buffer is as large as it says.
        let text = self.filled(1 << 12, 0, |buf, cap, len, err| unsafe {
            rie_inspect(path.as_ptr(), null(), buf.cast(), cap, len, err)
        });
        text.map(utf8)
    }

    /// A fact about a model or session.
    pub fn int<T>(&self, handle: *const T, key: i32) -> i64 {
        // SAFETY: takes any handle; a writable place.
        self.made(i64::MIN, |out, err| unsafe { rie_get_int(handle.cast(), key, out, err) }).expect("a known key")
    }

    /// The tokens of a text.
    pub fn tokenize(&self, model: &Handle<rie_model>, text: &str, flags: u32) -> Result<Vec<rie_token>> {
        // SAFETY: text and buffer are as long as they say.
        self.filled(64, -7, |buf, cap, len, err| unsafe {
            rie_tokenize(model.0, text.as_ptr().cast(), text.len(), flags, buf, cap, len, err)
        })
    }

    /// The text of tokens.
    pub fn detokenize(&self, model: &Handle<rie_model>, tokens: &[rie_token], flags: u32) -> Result<String> {
        // SAFETY: tokens and buffer are as long as they say.
        let text = self.filled(64, 0, |buf, cap, len, err| unsafe {
            rie_detokenize(model.0, tokens.as_ptr(), tokens.len(), flags, buf.cast(), cap, len, err)
        });
        text.map(utf8)
    }

    /// A new text stream.
    pub fn stream(&self, model: &Handle<rie_model>, flags: u32) -> Result<Handle<rie_text_stream>> {
        // SAFETY: takes any handle; a writable place.
        self.made(null_mut(), |out, err| unsafe { rie_text_stream_new(model.0, flags, out, err) }).map(Handle)
    }

    /// The text that `token` makes certain; -1 flushes.
    pub fn push(&self, stream: &Handle<rie_text_stream>, token: rie_token) -> Result<String> {
        // SAFETY: the buffer is as large as it says.
        let text = self.filled(4, 0, |buf, cap, len, err| unsafe {
            rie_text_stream_push(stream.0, token, buf.cast(), cap, len, err)
        });
        text.map(utf8)
    }

    /// A conversation, rendered.
    pub fn render(&self, model: &Handle<rie_model>, json: &[u8]) -> Result<String> {
        // SAFETY: request and buffer are as long as they say.
        let text = self.filled(1 << 12, 0, |buf, cap, len, err| unsafe {
            rie_chat_render(model.0, json.as_ptr().cast(), json.len(), buf.cast(), cap, len, err)
        });
        text.map(utf8)
    }

    /// A conversation's tokens.
    pub fn chat_tokenize(&self, model: &Handle<rie_model>, json: &[u8], flags: u32) -> Result<Vec<rie_token>> {
        // SAFETY: request and buffer are as long as they say.
        self.filled(1 << 12, -7, |buf, cap, len, err| unsafe {
            rie_chat_tokenize(model.0, json.as_ptr().cast(), json.len(), flags, buf, cap, len, err)
        })
    }

    /// A new session.
    pub fn session(&self, model: &Handle<rie_model>, ints: &[(i32, i64)]) -> Result<Handle<rie_session>> {
        let options = self.options(ints);
        // SAFETY: takes any handle; a writable place.
        self.made(null_mut(), |out, err| unsafe { rie_session_new(model.0, options.0, out, err) }).map(Handle)
    }

    /// Queues tokens.
    pub fn append(&self, session: &Handle<rie_session>, tokens: &[rie_token]) -> Result<rie_status> {
        // SAFETY: the tokens are as many as it says.
        self.call(|err| unsafe { rie_session_append(session.0, tokens.as_ptr(), tokens.len(), err) })
    }

    /// The next token, greedily.
    pub fn step(&self, session: &Handle<rie_session>) -> Result<rie_token> {
        // SAFETY: takes any handle; a writable place.
        self.made(-7, |out, err| unsafe { rie_decode_step(session.0, null_mut(), out, err) })
    }

    /// All tokens of a session.
    pub fn tokens(&self, session: &Handle<rie_session>) -> Result<Vec<rie_token>> {
        // SAFETY: the buffer is as large as it says.
        self.filled(64, -7, |buf, cap, len, err| unsafe { rie_session_tokens(session.0, buf, cap, len, err) })
    }

    /// A session as bytes.
    pub fn saved(&self, session: &Handle<rie_session>) -> Result<Vec<u8>> {
        // SAFETY: the buffer is as large as it says.
        self.filled(256, 0x5A, |buf, cap, len, err| unsafe { rie_session_save(session.0, buf, cap, len, err) })
    }

    /// Replaces a session by saved bytes.
    pub fn restore(&self, session: &Handle<rie_session>, bytes: &[u8]) -> Result<rie_status> {
        // SAFETY: the bytes are as many as it says.
        self.call(|err| unsafe { rie_session_load(session.0, bytes.as_ptr(), bytes.len(), err) })
    }
}

fn utf8(text: Vec<u8>) -> String {
    String::from_utf8(text).expect("texts are UTF-8")
}

/// A path as C has it.
pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).expect("a path without NUL")
}
