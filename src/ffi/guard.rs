//! The one way in: panics are caught, errors become a status and fill the host's error object.

use super::constants::{RIE_ERR_HANDLE, RIE_ERR_INTERNAL, RIE_OK};
use super::error::{ErrorObject, rie_error};
use super::handle::{self, Kind};
use super::rie_status;
use crate::error::Result;
use crate::panic::quietly;

/// Runs the body of the function `name`. An `err` that is no error object fails before the body runs: a host that
/// lost track of its handles hears of it.
pub fn entry(name: &str, err: *const rie_error, body: impl FnOnce() -> Result<rie_status>) -> rie_status {
    let guarded = quietly(|| {
        let Ok(err) = handle::get_optional::<ErrorObject>(err, "err") else {
            return RIE_ERR_HANDLE;
        };
        let (status, message) = match quietly(body).flatten() {
            Ok(status) => (status, String::new()),
            Err(e) => (e.status as i32, format!("{name}: {}", e.message)),
        };
        if let Some(err) = err {
            err.set(status, message);
        }
        status
    });
    guarded.unwrap_or(RIE_ERR_INTERNAL)
}

/// [`entry`] for a body without a result of its own.
pub fn call(name: &str, err: *const rie_error, body: impl FnOnce() -> Result<()>) -> rie_status {
    entry(name, err, || body().map(|()| RIE_OK))
}

/// Runs the body of a function that returns something else than a status; `otherwise` stands for every failure.
pub fn value<T>(otherwise: T, body: impl FnOnce() -> Result<T>) -> T {
    quietly(body).flatten().unwrap_or(otherwise)
}

/// A new handle, or NULL if there is no memory for one.
pub fn new_handle<K: Kind + Default>() -> *mut K::Public {
    value(std::ptr::null_mut(), || handle::publish(K::default()))
}
