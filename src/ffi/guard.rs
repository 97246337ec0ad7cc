//! The one way in: panics are caught, errors become a status and fill the host's error object, and whatever floating-point
//! mode the host's thread is in, the library computes in the default one.

use super::constants::{RIE_ERR_HANDLE, RIE_ERR_INTERNAL, RIE_OK};
use super::error::{ErrorObject, rie_error};
use super::handle::{self, Kind};
use super::rie_status;
use crate::error::{Error, Result, Status};
use crate::panic::quietly;
use crate::pool::DefaultFloats;
use crate::{faults, log};

/// Runs the body of the function `name`. An `err` that is no error object fails before the body runs: a host that
/// lost track of its handles hears of it.
pub fn entry(name: &str, err: *const rie_error, body: impl FnOnce() -> Result<rie_status>) -> rie_status {
    entry_noting(name, err, |_| body())
}

/// [`entry`] for a body that may note an error without failing: the error object gets it.
pub fn entry_noting(
    name: &str,
    err: *const rie_error,
    body: impl FnOnce(&mut Option<Error>) -> Result<rie_status>,
) -> rie_status {
    let _floats = DefaultFloats::set();
    let guarded = quietly(|| {
        let Ok(err) = handle::get_optional::<ErrorObject>(err, "err") else {
            return RIE_ERR_HANDLE;
        };
        let mut noted = None;
        let outcome = quietly(|| {
            faults::point(name);
            body(&mut noted)
        });
        let (status, error) = match outcome.flatten() {
            Ok(status) => (status, noted),
            Err(e) => (e.status as i32, Some(e)),
        };
        error.iter().for_each(|error| log_defect(name, error));
        match (err, error) {
            (Some(err), Some(e)) => err.set(e.status as i32, format!("{name}: {}", e.message)),
            (Some(err), None) => err.set(status, String::new()),
            (None, _) => {}
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
    let _floats = DefaultFloats::set();
    quietly(body).flatten().unwrap_or_else(|error| {
        log_defect("a function without error object", &error);
        otherwise
    })
}

/// Tells the log what only a defect of this library can cause.
fn log_defect(name: &str, error: &Error) {
    if error.status == Status::Internal {
        log!(Error, "{name}: {}", error.message);
    }
}

/// A new handle, or NULL if there is no memory for one.
pub fn new_handle<K: Kind + Default>() -> *mut K::Public {
    value(std::ptr::null_mut(), || handle::publish(K::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bail;
    use crate::ffi::constants::{RIE_ERR_NUMERIC, RIE_PENDING};
    use crate::ffi::error::{rie_error_message, rie_error_new, rie_error_status};
    use crate::ffi::library::rie_free;
    use crate::ffi::options::rie_options_new;
    use std::ffi::CStr;
    use std::sync::{Arc, Mutex, PoisonError};

    fn message(err: *const rie_error) -> String {
        // SAFETY: never NULL, and NUL-terminated; copied before another call gets `err`.
        unsafe { CStr::from_ptr(rie_error_message(err)) }.to_str().unwrap().to_string()
    }

    fn status(err: *const rie_error) -> rie_status {
        // SAFETY: takes any pointer.
        unsafe { rie_error_status(err) }
    }

    fn free<T>(handle: *mut T) {
        // SAFETY: takes any pointer.
        unsafe { rie_free(handle.cast()) }
    }

    #[test]
    fn each_call_replaces_the_error() {
        let err = rie_error_new();
        assert_eq!((status(err), message(err).as_str()), (RIE_OK, ""));
        assert_eq!(call("rie_f", err, || bail!(Numeric, "x: NaN")), RIE_ERR_NUMERIC);
        assert_eq!((status(err), message(err).as_str()), (RIE_ERR_NUMERIC, "rie_f: x: NaN"));
        assert_eq!(entry("rie_f", err, || Ok(RIE_PENDING)), RIE_PENDING);
        assert_eq!((status(err), message(err).as_str()), (RIE_PENDING, ""));
        assert_eq!(call("rie_f", err, || bail!(Numeric, "tensor a\0b")), RIE_ERR_NUMERIC);
        assert_eq!(message(err), "rie_f: tensor a\\0b");
        assert_eq!(call("rie_f", std::ptr::null(), || bail!(Numeric, "x")), RIE_ERR_NUMERIC);
        free(err);
    }

    #[test]
    fn a_panic_is_an_error_with_its_text() {
        let err = rie_error_new();
        assert_eq!(call("rie_f", err, || panic!("row {}", 7)), RIE_ERR_INTERNAL);
        let text = message(err);
        assert!(text.starts_with("rie_f: a defect of this library") && text.ends_with("row 7"), "{text}");
        assert_eq!(value(3, || panic!("here too")), 3);
        free(err);
    }

    #[test]
    fn the_log_hears_of_a_defect_and_of_no_other_error() {
        let _alone = log::TESTING.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let to = heard.clone();
        // Other tests have defects meanwhile.
        let sink = move |level, text: &str| {
            to.lock().unwrap().extend(text.contains("mine").then(|| (level, text.to_string())))
        };
        log::set(Some(Box::new(sink)), log::Level::Debug).unwrap();
        call("rie_f", std::ptr::null(), || bail!(Numeric, "mine, an error"));
        call("rie_f", std::ptr::null(), || panic!("mine, a panic"));
        value((), || panic!("mine, too"));
        log::set(None, log::Level::Debug).unwrap();
        let heard = heard.lock().unwrap();
        let [(log::Level::Error, first), (log::Level::Error, second)] = &heard[..] else { panic!("{heard:?}") };
        assert!(first.starts_with("rie_f: a defect") && first.ends_with("mine, a panic"), "{first}");
        assert!(second.starts_with("a function without error object: a defect"), "{second}");
    }

    #[test]
    fn what_is_no_error_object_stops_the_call() {
        let options = rie_options_new();
        let freed = rie_error_new();
        free(freed);
        free(freed);
        let foreign: *mut rie_error = std::ptr::without_provenance_mut(0x7fff_1234_5678);
        for err in [options.cast(), freed, foreign] {
            assert_eq!(call("rie_f", err, || panic!("must not run")), RIE_ERR_HANDLE);
            assert_eq!(message(err), "rie_error_message: err: not an error object");
            assert_eq!(status(err), RIE_ERR_HANDLE);
        }
        assert_eq!(message(std::ptr::null()), "");
        free(options);
        free(std::ptr::null_mut::<rie_error>());
    }
}
