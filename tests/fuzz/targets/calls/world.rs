//! The objects that calls have made, and what they must be.

use super::super::abi::{check_status, free, message};
use super::super::model::{CONFIG, Directory, TOKENIZER, tensors, weights};
use super::super::reader::Reader;
use super::sources::{lent, silence};
use rie::ffi::constants::*;
use rie::ffi::error::{rie_error_new, rie_error_status};
use rie::ffi::info::rie_get_int;
use rie::ffi::model::rie_model_load;
use rie::ffi::options::{rie_options_new, rie_options_set_int};
use rie::ffi::session::rie_session_tokens;
use std::ffi::{CString, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::LazyLock;

/// Most objects of a kind.
const OBJECTS: usize = 6;
/// Most saved sessions.
const SAVED: usize = 4;

/// Kinds of objects, and what else an argument may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Error,
    Options,
    Model,
    Session,
    Sampler,
    Stream,
    Source,
    OptionsOrNull,
    SamplerOrNull,
    /// A handle of any kind, or NULL.
    Any,
}

struct Object {
    kind: Kind,
    handle: *mut c_void,
    live: bool,
    /// Of a session.
    tokens: Vec<i32>,
}

/// The weights of the model.
pub fn model_weights() -> &'static [u8] {
    static WEIGHTS: LazyLock<Vec<u8>> = LazyLock::new(|| weights(&tensors()));
    &WEIGHTS
}

/// All objects of a run, freed at its end.
pub struct World {
    objects: Vec<Object>,
    saved: Vec<(Vec<u8>, Vec<i32>)>,
    directory: Directory,
}

impl World {
    /// One with an error object, options for one thread and a model.
    pub fn new() -> World {
        let directory = Directory::new(&[
            ("config.json", CONFIG.as_bytes()),
            ("tokenizer.json", TOKENIZER),
            ("model.safetensors", model_weights()),
        ]);
        let mut world = World { objects: Vec::new(), saved: Vec::new(), directory };
        world.publish(Kind::Error, rie_error_new().cast());
        world.publish_options();
        let options = world.objects[1].handle.cast();
        let (path, mut model) = (world.file(""), null_mut());
        // SAFETY: a good handle, a NUL-terminated path and a writable place.
        let status = unsafe { rie_model_load(path.as_ptr(), options, &mut model, null_mut()) };
        world.made(Kind::Model, status, Some(model.cast()));
        world
    }

    fn file(&self, name: &str) -> CString {
        super::super::abi::c_path(&self.directory.path().join(name))
    }

    /// A path for a load: of the model mostly.
    pub fn path(&self, r: &mut Reader<'_>) -> Option<CString> {
        match r.below(8) {
            0 => None,
            1 => Some(CString::default()),
            2 => Some(self.file("nothing")),
            3 => Some(self.file("config.json")),
            4 => Some(self.file("model.safetensors")),
            5 => Some(self.file("saved")),
            6 => CString::new(&b"\xff\xfe"[..]).ok(),
            _ => Some(self.file("")),
        }
    }

    /// A path for a file of that name: mostly where one is.
    pub fn path_of(&self, r: &mut Reader<'_>, name: &[u8]) -> Option<CString> {
        match r.below(6) {
            0 => self.path(r),
            _ => Some(self.file(std::str::from_utf8(name).unwrap_or("nothing"))),
        }
    }

    /// A path for a save, inside the directory.
    pub fn path_to_save(&self, r: &mut Reader<'_>) -> Option<CString> {
        match r.below(4) {
            0 => None,
            1 => Some(self.file("missing/saved")),
            2 => Some(self.file("config.json")),
            _ => Some(self.file("saved")),
        }
    }

    /// Takes a new handle in.
    pub fn publish(&mut self, kind: Kind, handle: *mut c_void) {
        assert!(!handle.is_null() && self.live(handle).is_none(), "a new handle");
        self.objects.push(Object { kind, handle, live: true, tokens: Vec::new() });
        let mut of_kind = self.objects.iter().filter(|object| object.live && object.kind == kind);
        if let Some(oldest) = of_kind.next().map(|object| object.handle).filter(|_| of_kind.count() >= OBJECTS) {
            free(oldest);
            self.forget(oldest);
        }
    }

    /// Takes in new options, for one thread: with more, most of the time is spent on waiting for them.
    pub fn publish_options(&mut self) {
        let options = rie_options_new();
        self.publish(Kind::Options, options.cast());
        // SAFETY: a good handle.
        assert_eq!(unsafe { rie_options_set_int(options, RIE_OPT_THREADS, 1, null_mut()) }, RIE_OK);
    }

    /// Takes in what a call made, if it did.
    pub fn made(&mut self, kind: Kind, status: i32, handle: Option<*mut c_void>) {
        if let Some(handle) = handle.filter(|_| status == RIE_OK) {
            self.publish(kind, handle);
        }
    }

    /// Knows that a handle was freed.
    pub fn forget(&mut self, handle: *mut c_void) {
        let freed = self.objects.iter_mut().find(|object| object.live && object.handle == handle);
        freed.into_iter().for_each(|object| object.live = false);
    }

    fn live(&self, handle: *mut c_void) -> Option<&Object> {
        self.objects.iter().find(|object| object.live && object.handle == handle)
    }

    /// A handle for an argument: mostly a good one of that kind.
    pub fn pick(&self, r: &mut Reader<'_>, kind: Kind) -> *mut c_void {
        let choice = r.byte();
        let any = |n: usize| self.objects[n % self.objects.len()].handle;
        match choice {
            0..8 => null_mut(),
            8..14 => without_provenance_mut(r.word() as usize),
            14..20 => any(r.below(256)),
            20..24 => any(r.below(256)).map_addr(|addr| addr ^ 1 << (r.byte() % 64)),
            _ => {
                let good = self.objects.iter().rev().filter(|object| object.live && object.kind == kind);
                let good: Vec<_> = good.map(|object| object.handle).collect();
                if good.is_empty() { null_mut() } else { good[usize::from(choice) % good.len()] }
            }
        }
    }

    /// An error object, mostly.
    pub fn error(&self, r: &mut Reader<'_>) -> *mut c_void {
        self.pick(r, Kind::Error)
    }

    fn is_good(&self, handle: *mut c_void, kind: Kind) -> bool {
        match (self.live(handle), kind) {
            (None, Kind::OptionsOrNull | Kind::SamplerOrNull | Kind::Any) => handle.is_null(),
            (None, _) => false,
            (Some(_), Kind::Any) => true,
            (Some(object), Kind::OptionsOrNull) => object.kind == Kind::Options,
            (Some(object), Kind::SamplerOrNull) => object.kind == Kind::Sampler,
            (Some(object), kind) => object.kind == kind,
        }
    }

    /// Checks what the function `name` returned, given `err` and `handles`.
    pub fn judge(&self, name: &str, status: i32, err: *mut c_void, handles: &[(*mut c_void, Kind)]) {
        if !self.judge_error(name, status, err, status) {
            return;
        }
        let bad = handles.iter().any(|(handle, kind)| !self.is_good(*handle, *kind));
        let wrong = handles.iter().any(|(handle, kind)| !handle.is_null() && !self.is_good(*handle, *kind));
        assert!(status < 0 || !bad, "{name} took a bad handle");
        assert!(status != RIE_ERR_HANDLE || wrong, "{name} refused good handles");
    }

    /// Checks what a batch returned, given `err`, which has the error of a session if one failed.
    pub fn judge_batch(&self, status: i32, err: *mut c_void) {
        // SAFETY: takes any handle.
        let noted = unsafe { rie_error_status(err.cast()) };
        self.judge_error("rie_decode_batch", status, err, noted);
        assert!(status == RIE_OK || noted == status || !self.is_good(err, Kind::Error));
    }

    /// Checks that `err` says what became of the call; whether the call was to look at its other arguments.
    fn judge_error(&self, name: &str, status: i32, err: *mut c_void, noted: i32) -> bool {
        check_status(status, err.cast());
        if err.is_null() {
            return true;
        }
        if !self.is_good(err, Kind::Error) {
            assert_eq!(status, RIE_ERR_HANDLE, "{name} with a bad error object");
            return false;
        }
        let text = message(err.cast());
        check_status(noted, err.cast());
        // SAFETY: takes any handle.
        assert_eq!(unsafe { rie_error_status(err.cast()) }, noted, "{name}: {text:?}");
        let named = text.strip_prefix(name).is_some_and(|rest| rest.starts_with(": ") && rest.len() > 2);
        assert!(if noted < 0 { named } else { text.is_empty() }, "{name}: status {noted}: {text:?}");
        true
    }

    /// The tokens that a session must have.
    pub fn tokens_of(&mut self, session: *mut c_void) -> &mut Vec<i32> {
        let found = self.objects.iter_mut().find(|object| object.live && object.handle == session);
        &mut found.expect("a call succeeded only with a session").tokens
    }

    /// Keeps a saved session and its tokens.
    pub fn keep_saved(&mut self, bytes: Vec<u8>, tokens: Vec<i32>) {
        self.saved.truncate(SAVED - 1);
        self.saved.insert(0, (bytes, tokens));
    }

    /// A saved session, which may be damaged.
    pub fn saved(&self, r: &mut Reader<'_>) -> (Vec<u8>, Vec<i32>) {
        let Some((bytes, tokens)) = self.saved.get(r.below(SAVED)) else { return (vec![1, 2, 3], Vec::new()) };
        let mut bytes = bytes.clone();
        if r.below(4) == 0 {
            let at = r.word() as usize % bytes.len();
            bytes[at] ^= 1;
        }
        (bytes, tokens.clone())
    }

    /// Every session has the tokens that it must have, whatever was called.
    pub fn check_sessions(&self) {
        for object in self.objects.iter().filter(|object| object.live && object.kind == Kind::Session) {
            let (mut tokens, mut len, mut evaluated) = (vec![-7; object.tokens.len() + 1], 0, 0);
            let session = object.handle.cast();
            // SAFETY: a buffer as large as it says, and writable places.
            let statuses = unsafe {
                let evaluated = rie_get_int(object.handle, RIE_INFO_EVALUATED, &mut evaluated, null_mut());
                (evaluated, rie_session_tokens(session, tokens.as_mut_ptr(), tokens.len(), &mut len, null_mut()))
            };
            assert_eq!(statuses, (RIE_OK, RIE_OK));
            assert_eq!(tokens[..len], object.tokens);
            assert!(usize::try_from(evaluated).is_ok_and(|evaluated| evaluated <= len));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.objects.iter().filter(|object| object.live).for_each(|object| free(object.handle));
        silence();
        assert!(std::thread::panicking() || lent() == 0, "{} buffers were not released", lent());
        for object in self.objects.iter().filter(|_| !std::thread::panicking()) {
            let mut fact = 0;
            // SAFETY: takes any handle; a writable place.
            let status = unsafe { rie_get_int(object.handle, 0, &mut fact, null_mut()) };
            assert_eq!(status, RIE_ERR_HANDLE, "all objects are freed");
        }
    }
}
