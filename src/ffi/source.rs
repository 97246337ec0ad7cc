//! Sources: the files of a model, named one by one instead of by a directory.

use super::error::rie_error;
use super::exclusive::Exclusive;
use super::{guard, handle, raw, rie_status};
use crate::bail;
use crate::checkpoint::{FileSet, HostMemory, ModelFile};
#[cfg(unix)]
use crate::err;
use crate::error::Result;
use std::ffi::{c_char, c_void};
use std::fs::File;

/// The files of a model, each in memory, a part of an open file, or at a path: for what lies in no directory, such as
/// Android assets, app bundles and encrypted stores. `rie_model_load_source` and `rie_inspect_source` use it as they
/// would use a directory with these files: `config.json`, `model.safetensors` (or `model.safetensors.index.json` and
/// the shards that it names), and if there are `generation_config.json`, `tokenizer.json`, `tokenizer_config.json`,
/// `special_tokens_map.json` and `chat_template.jinja`. Files of other names are not used, as in a directory, so a host
/// may add all that it has.
///
/// Every `name` is the file's name in such a directory, NUL-terminated UTF-8, without a path; it is copied. A name that
/// the source has already is `RIE_ERR_INVALID_ARGUMENT`. A source may be used for several models and freed before them:
/// each keeps what it needs of the files.
///
/// Owner: the host, from `rie_source_new` to `rie_free`. Threads: one call at a time; loading from it counts as a call
/// only at its beginning.
pub struct rie_source {
    _private: (),
}

/// Called when the library does not need memory of the host any more: exactly once for each `rie_source_add_memory`,
/// with the `userdata` that it was given. That is when the source is freed and no model loaded from it uses the memory,
/// at the latest when all those models are freed and no call is using them; or, if adding the memory failed, before
/// that call returns. It runs in a thread of the host's that is inside a call of this library, usually `rie_free`, not
/// always the one that added the memory. It must return normally: no `longjmp`, no C++ exception. It may call the
/// library, with other objects.
pub type rie_release_fn = Option<unsafe extern "C" fn(userdata: *mut c_void)>;

/// Behind a [`rie_source`].
pub type SourceObject = Exclusive<FileSet>;

/// A new source without files.
///
/// Ownership: the host's; release it with `rie_free`. Threads: any. Errors: NULL if memory is exhausted.
#[unsafe(no_mangle)]
pub extern "C" fn rie_source_new() -> *mut rie_source {
    guard::new_handle::<SourceObject>()
}

/// Adds the file at `path` (NUL-terminated UTF-8), which may have any name there. It is opened when a model is loaded,
/// and must then be a regular file.
///
/// Threads: one call at a time with the same `source`. Errors: `RIE_ERR_UTF8`. `source`, `name` and `path` must not be
/// NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_source_add_path(
    source: *mut rie_source,
    name: *const c_char,
    path: *const c_char,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_source_add_path", err, || {
        // SAFETY: the host vouches for NUL-terminated texts.
        let (name, path) = unsafe { (raw::c_str(name, "name")?, raw::path(path, "path")?) };
        add(source, ModelFile::at(path.into()).called(name))
    })
}

/// Adds the file that consists of the `len` bytes at `data`. They are not copied: weights are used where they lie, at
/// any alignment. So they must stay as they are until `release` is called with `userdata`; see `rie_release_fn`.
/// Without `release` (NULL) the host keeps them until the source and all models loaded from it are freed.
///
/// Ownership: the bytes stay the host's, and are lent until `release` is called, which happens also if this function
/// fails. Threads: one call at a time with the same `source`. Errors: `RIE_ERR_UTF8`. `data` may be NULL if `len` is 0,
/// `release` and `userdata` may be NULL; `source` and `name` must not be; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_source_add_memory(
    source: *mut rie_source,
    name: *const c_char,
    data: *const c_void,
    len: usize,
    release: rie_release_fn,
    userdata: *mut c_void,
    err: *mut rie_error,
) -> rie_status {
    // Outside, so that it is dropped whatever happens inside.
    let release = Release { call: release, userdata: userdata.expose_provenance() };
    guard::call("rie_source_add_memory", err, move || {
        // SAFETY: the host vouches for a NUL-terminated `name`, and for `len` bytes that nobody changes until `release`
        // is called. That is what `'static` stands for here: the slice goes nowhere but into `Lent`, which calls it at
        // its end.
        let (name, bytes) = unsafe { (raw::c_str(name, "name")?, raw::slice(data.cast::<u8>(), len, "data")?) };
        add(source, ModelFile::in_memory(name, HostMemory::new(Lent { bytes, _release: release })))
    })
}

/// Adds the file that consists of `len` bytes, from the byte `offset` on, of the regular file that is open for reading
/// as `fd`; `len` 0 means all from there on. So an Android asset that is stored uncompressed is given with the
/// descriptor, offset and length of `AAsset_openFileDescriptor64`. The descriptor is duplicated: the host may close its
/// own at once. The file's position is neither used nor changed. Weights are mapped or read as `RIE_OPT_MAP` says, and
/// where they are mapped the file must not be truncated or changed while a model lives.
///
/// Ownership: `fd` stays the host's. Threads: one call at a time with the same `source`. Errors: `RIE_ERR_IO` for a
/// descriptor that is not open or not of a regular file, `RIE_ERR_INVALID_ARGUMENT` for bytes that the file does not
/// have, `RIE_ERR_UTF8`, `RIE_ERR_UNSUPPORTED` on systems without file descriptors. `source` and `name` must not be
/// NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_source_add_fd(
    source: *mut rie_source,
    name: *const c_char,
    fd: i32,
    offset: u64,
    len: u64,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_source_add_fd", err, || {
        // SAFETY: the host vouches for a NUL-terminated `name`.
        let name = unsafe { raw::c_str(name, "name") }?;
        add(source, ModelFile::in_file(name, duplicate(fd)?, offset, len)?)
    })
}

fn add(source: *mut rie_source, file: ModelFile) -> Result<()> {
    handle::get::<SourceObject>(source, "source")?.with("source", |set| set.add(file))
}

/// The files of `source` so far.
pub fn files(source: *const rie_source) -> Result<FileSet> {
    handle::get::<SourceObject>(source, "source")?.with("source", |set| Ok(set.clone()))
}

#[cfg(unix)]
fn duplicate(fd: i32) -> Result<File> {
    if fd < 0 {
        bail!(InvalidArgument, "fd: expected a file descriptor, found {fd}");
    }
    // SAFETY: it is not -1. If it is open, the host vouches that it stays so during the call; if not, duplicating
    // fails.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let owned = borrowed.try_clone_to_owned().map_err(|e| err!(Io, "fd: {fd} cannot be duplicated: {e}"))?;
    Ok(File::from(owned))
}

#[cfg(not(unix))]
fn duplicate(fd: i32) -> Result<File> {
    bail!(Unsupported, "fd: {fd}: this system has no file descriptors; use a path or memory")
}

/// Bytes of the host.
struct Lent {
    /// Valid until `_release` is dropped.
    bytes: &'static [u8],
    _release: Release,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.bytes
    }
}

/// The host's release function; called once, when this is dropped.
struct Release {
    call: rie_release_fn,
    /// An address that only the host understands.
    userdata: usize,
}

impl Drop for Release {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            // SAFETY: `rie_source_add_memory` was given this function with this userdata to be called once.
            unsafe { call(std::ptr::with_exposed_provenance_mut(self.userdata)) }
        }
    }
}
