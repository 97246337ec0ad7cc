//! The log: what the library says to the host, if the host listens.

use super::error::rie_error;
use super::{guard, rie_status};
use crate::log::{self, Sink};
use std::ffi::{CString, c_char, c_void};

/// Hears what the library says. `level` is `RIE_LOG_*`; `message` is one line of UTF-8 without its end, NUL-terminated,
/// and valid during the call. `userdata` is what `rie_log_set` was given; the library never looks at it.
///
/// It runs in the thread whose call of the library the message is about, before that call returns, so in several
/// threads at once if several use the library. It may call the library, but not with the objects of the call it runs in
/// (`RIE_ERR_BUSY`), and not `rie_log_set` (`RIE_ERR_STATE`); what it calls says nothing. It must return normally: no
/// `longjmp`, no C++ exception.
pub type rie_log_fn = Option<unsafe extern "C" fn(userdata: *mut c_void, level: i32, message: *const c_char)>;

/// Sets the function that hears messages from the level `min_level` (`RIE_LOG_*`) on, for the whole process. NULL for
/// `function` (the default): nobody does, and messages are not even made. The texts are for people and may change.
///
/// Ownership: `userdata` stays the host's, may be NULL, and must be valid until another function was set. Threads: any,
/// also while other threads use the library. When this returns, the function that was set before is not running and is
/// never called again. So this waits for calls of it that are running: do not hold a lock that it takes, and do not call
/// this in a child of `fork()` if another thread of the parent may have been inside the function at that moment. Errors:
/// `RIE_ERR_STATE` if called by the log function, `RIE_ERR_INVALID_ARGUMENT` for a level that does not exist, also
/// without a function; then everything stays as it was. `function` and `err` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_log_set(
    function: rie_log_fn,
    userdata: *mut c_void,
    min_level: i32,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_log_set", err, || {
        let level = log::level(min_level).map_err(|e| e.at("min_level"))?;
        log::set(function.map(|call| sink(call, userdata.expose_provenance())), level)
    })
}

fn sink(call: unsafe extern "C" fn(*mut c_void, i32, *const c_char), userdata: usize) -> Sink {
    Box::new(move |level, message| {
        let message = CString::new(message).unwrap_or_default(); // `log` leaves no NUL in it
        // SAFETY: `rie_log_set` was given this function with this userdata, for calls from any thread until it is
        // replaced.
        unsafe { call(std::ptr::with_exposed_provenance_mut(userdata), level as i32, message.as_ptr()) }
    })
}
