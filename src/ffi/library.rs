//! The library itself: versions, names of statuses, and the release of handles.

use super::constants::{RIE_ABI_VERSION, STATUS_NAMES};
use super::{guard, handle, rie_status};
use std::ffi::{CStr, c_char, c_void};

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version contains no NUL"),
};

/// The version of the ABI that the library speaks. It grows when functions or constants are added; none is ever
/// changed or taken away, so a program may require at least the `RIE_ABI_VERSION` that it was compiled with.
///
/// Threads: any. Cannot fail.
#[unsafe(no_mangle)]
pub extern "C" fn rie_abi_version() -> u32 {
    RIE_ABI_VERSION
}

/// The version of the library, such as `0.1.0`.
///
/// Ownership: a constant of the library, never NULL, valid for ever. Threads: any. Cannot fail.
#[unsafe(no_mangle)]
pub extern "C" fn rie_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The name of a status as this header spells it, such as `RIE_ERR_HANDLE`; `RIE_(unknown)` for any other number.
///
/// Ownership: a constant of the library, never NULL, valid for ever. Threads: any. Cannot fail.
#[unsafe(no_mangle)]
pub extern "C" fn rie_status_name(status: rie_status) -> *const c_char {
    let named = STATUS_NAMES.iter().find(|(number, _)| *number == status);
    named.map_or(c"RIE_(unknown)", |(_, name)| name).as_ptr()
}

/// Releases a handle of any kind. NULL, a handle that was freed before and one that never was are ignored.
///
/// The order does not matter: a session keeps its model alive, a text stream its tokenizer. A call that is using the
/// object in another thread ends normally, and the object goes with it. Freeing the last user of a model unmaps its
/// files, gives memory of a `rie_source` back (see `rie_release_fn`), and ends its threads. Threads: any. Cannot fail.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_free(handle: *mut c_void) {
    guard::value((), || handle::revoke(handle).map(drop));
}
