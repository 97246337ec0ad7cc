//! Panics on demand, for the tests of what a panic may do. Without the feature `faults` there are none.

/// A place where a test can make the library panic.
#[inline]
pub fn point(place: &str) {
    #[cfg(feature = "faults")]
    armed::point(place);
    #[cfg(not(feature = "faults"))]
    let _ = place;
}

#[cfg(feature = "faults")]
pub use armed::arm;

#[cfg(feature = "faults")]
mod armed {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, PoisonError};

    /// The place that panics, and how many times it is passed before.
    static ARMED: Mutex<Option<(String, usize)>> = Mutex::new(None);
    /// Whether there is one. While there is none, nobody takes the lock.
    static ANY: AtomicBool = AtomicBool::new(false);

    /// Makes `place` panic once, when it was passed `before` times. Replaces what was armed before.
    pub fn arm(place: &str, before: usize) {
        *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = Some((place.to_string(), before));
        ANY.store(true, Ordering::SeqCst);
    }

    pub(super) fn point(place: &str) {
        if !ANY.load(Ordering::SeqCst) {
            return;
        }
        let mut armed = ARMED.lock().unwrap_or_else(PoisonError::into_inner);
        let now = match &mut *armed {
            Some((name, before)) if name == place => {
                let now = *before == 0;
                *before = before.saturating_sub(1);
                now
            }
            _ => false,
        };
        if now {
            *armed = None;
            ANY.store(false, Ordering::SeqCst);
            drop(armed);
            panic!("forced at {place}");
        }
    }
}
