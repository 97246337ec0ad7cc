//! Error objects: the status and message of the last call that was given one.

use super::constants::{RIE_ERR_HANDLE, RIE_ERR_INVALID_ARGUMENT};
use super::{guard, handle, rie_status};
use std::ffi::{CString, c_char};
use std::sync::{Mutex, PoisonError};

/// The status and message of the last call that it was given to. Optional: every `err` argument may be NULL.
///
/// Owner: the host, from `rie_error_new` to `rie_free`. Threads: one call at a time; make one per thread, or per call.
pub struct rie_error {
    _private: (),
}

/// Behind a [`rie_error`].
#[derive(Default)]
pub struct ErrorObject(Mutex<(rie_status, CString)>);

impl ErrorObject {
    /// Replaces what was there, and with it the text that `rie_error_message` returned.
    pub fn set(&self, status: rie_status, message: String) {
        // A name out of a file may contain NUL.
        let text = CString::new(message).unwrap_or_else(|e| {
            let bytes = e.into_vec().split(|&b| b == 0).collect::<Vec<_>>().join(&b"\\0"[..]);
            CString::new(bytes).unwrap_or_default()
        });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (status, text);
    }
}

/// A new error object with status `RIE_OK` and an empty message.
///
/// Ownership: the host's; release it with `rie_free`. Threads: any. Errors: NULL if memory is exhausted, which the
/// other functions take as "no error object".
#[unsafe(no_mangle)]
pub extern "C" fn rie_error_new() -> *mut rie_error {
    guard::new_handle::<ErrorObject>()
}

/// What happened in the last call that was given `err`: one line of UTF-8 that begins with the function's name, then
/// the thing at fault, such as `rie_session_append: tokens[3]: ...`. Empty after a call that succeeded.
///
/// `err` may be NULL, which gives an empty text. Never returns NULL; a handle that is not an error object gives a text
/// that says so. Ownership: the text belongs to `err` and is valid until the next call that is given `err`, or
/// `rie_free(err)`. Threads: not during another call with the same `err`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_error_message(err: *const rie_error) -> *const c_char {
    guard::value(c"rie_error_message: err: not an error object".as_ptr(), || {
        Ok(match handle::get_optional::<ErrorObject>(err, "err")? {
            // Lives in the object, which the registry keeps, until `set` replaces it.
            Some(e) => e.0.lock().unwrap_or_else(PoisonError::into_inner).1.as_ptr(),
            None => c"".as_ptr(),
        })
    })
}

/// The status of the last call that was given `err`; `RIE_OK` for a new one.
///
/// `err` NULL gives `RIE_ERR_INVALID_ARGUMENT`, a handle that is not an error object `RIE_ERR_HANDLE`. Threads: one
/// call at a time with the same `err`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_error_status(err: *const rie_error) -> rie_status {
    guard::value(RIE_ERR_HANDLE, || {
        Ok(match handle::get_optional::<ErrorObject>(err, "err")? {
            Some(e) => e.0.lock().unwrap_or_else(PoisonError::into_inner).0,
            None => RIE_ERR_INVALID_ARGUMENT,
        })
    })
}
