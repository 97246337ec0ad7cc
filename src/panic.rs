//! Catching panics: a defect becomes an [`Internal`](crate::error::Status::Internal) error, and nothing is printed.

use crate::error::{Error, Result, Status};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// How many calls of [`quietly`] this thread is inside. No destructor, so it can be read at any time.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Where the last caught panic of this thread began; touched only by a panic.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `f`. A panic is caught, prints nothing, and is returned as an error with its text and place. What `f` was
/// changing may be half changed: the caller must not use it again.
pub fn quietly<T>(f: impl FnOnce() -> T) -> Result<T> {
    static HOOK: Once = Once::new();
    // The hook cannot be changed by a panicking thread (a destructor may get here); then the default one prints.
    if !std::thread::panicking() {
        HOOK.call_once(silence_own_panics);
    }
    DEPTH.set(DEPTH.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(f));
    DEPTH.set(DEPTH.get() - 1);
    result.map_err(|payload| match payload.downcast::<Error>() {
        Ok(error) => *error, // from `give_up`
        Err(payload) => {
            let place = PLACE.try_with(RefCell::take).unwrap_or_default();
            Error::new(Status::Internal, format!("a defect of this library: panic{place}: {}", text(payload)))
        }
    })
}

/// Ends the innermost [`quietly`] with `error`. For the depths of a step, whose closures return nothing, and for what is no
/// defect: no memory for a buffer. What was being changed is given up as after a panic.
pub fn give_up(error: Error) -> ! {
    resume_unwind(Box::new(error))
}

/// Wraps the process's panic hook: panics inside [`quietly`] are kept from it, all others reach it as before.
fn silence_own_panics() {
    let previous = take_hook();
    set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
        if DEPTH.get() == 0 {
            return previous(info);
        }
        let place = info.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
        // Fails only in a thread that is being torn down; the place is then lost, the panic is not.
        let _ = PLACE.try_with(|p| p.replace(place));
    }));
}

fn text(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(s) => *s,
        Err(payload) => match payload.downcast_ref::<&str>() {
            Some(s) => s.to_string(),
            None => {
                std::mem::forget(payload); // its destructor may panic
                "(no text)".to_string()
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_passes_and_a_panic_becomes_an_error() {
        assert_eq!(quietly(|| 3), Ok(3));
        let e = quietly(|| -> u8 { panic!("row {} of {}", 7, 5) }).unwrap_err();
        assert_eq!(e.status, Status::Internal);
        assert!(e.message.contains("row 7 of 5") && e.message.contains("src/panic.rs:"), "{}", e.message);
        let e = quietly(|| -> u8 { std::panic::panic_any(1u8) }).unwrap_err();
        assert!(e.message.ends_with("(no text)"), "{}", e.message);
    }

    #[test]
    fn who_gives_up_says_why() {
        let e = Error::new(Status::NoMemory, "a buffer");
        assert_eq!(quietly(|| -> u8 { give_up(e.clone()) }), Err(e));
    }

    #[test]
    fn nested_calls_catch_their_own() {
        let outer = quietly(|| {
            let inner = quietly(|| -> u8 { panic!("inner") });
            assert!(inner.unwrap_err().message.contains("inner"));
            1
        });
        assert_eq!(outer, Ok(1));
    }
}
