//! Objects that take one call at a time.

use crate::error::{Result, Status};
use crate::{bail, err};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// A value that one call at a time may use. A second call is told so instead of waiting; after a defect of this
/// library the value may be half changed, and every later call is refused.
#[derive(Default)]
pub struct Exclusive<T> {
    value: Mutex<T>,
    broken: AtomicBool,
}

impl<T> Exclusive<T> {
    /// A value that nobody uses yet.
    pub fn new(value: T) -> Exclusive<T> {
        Exclusive { value: Mutex::new(value), broken: AtomicBool::new(false) }
    }

    /// Runs `f` on the value; `arg` names it in messages.
    pub fn with<R>(&self, arg: &str, f: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let mut value = self.take(arg)?;
        let result = f(&mut value);
        value.learn(&result);
        result
    }

    /// The value, until the result is dropped; `arg` names it in messages.
    pub fn take(&self, arg: &str) -> Result<Taken<'_, T>> {
        let value = match self.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::WouldBlock) => bail!(Busy, "{arg}: in use by another call"),
            Err(TryLockError::Poisoned(_)) => return Err(unusable(arg)), // a panic in this thread unwound through here
        };
        if self.broken.load(Ordering::Relaxed) {
            return Err(unusable(arg));
        }
        Ok(Taken { value, broken: &self.broken })
    }
}

/// The one use of a value.
pub struct Taken<'a, T> {
    value: MutexGuard<'a, T>,
    broken: &'a AtomicBool,
}

impl<T> Taken<'_, T> {
    /// Refuses the value from now on if what was done with it met a defect.
    pub fn learn<R>(&self, result: &Result<R>) {
        if result.as_ref().is_err_and(|e| e.status == Status::Internal) {
            self.broken.store(true, Ordering::Relaxed); // a panic in a worker arrives as an error
        }
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

fn unusable(arg: &str) -> crate::error::Error {
    err!(State, "{arg}: an earlier call hit a defect of this library (RIE_ERR_INTERNAL); free the object")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panic::quietly;

    #[test]
    fn a_second_call_is_busy() {
        let x = Exclusive::new(1);
        let inner = x.with("x", |_| Ok(x.with("x", |_| Ok(())))).unwrap().unwrap_err();
        assert_eq!((inner.status, inner.message.as_str()), (Status::Busy, "x: in use by another call"));
        assert_eq!(x.with("x", |v| Ok(*v)), Ok(1));
    }

    #[test]
    fn a_defect_ends_it_and_an_error_does_not() {
        let x = Exclusive::new(1);
        assert!(x.with("x", |_| -> Result<()> { bail!(Numeric, "NaN") }).is_err());
        assert!(x.with("x", |_| Ok(())).is_ok());
        assert!(x.with("x", |_| -> Result<()> { bail!(Internal, "a worker panicked") }).is_err());
        assert_eq!(x.with("x", |_| Ok(())).unwrap_err().status, Status::State);

        let x = Exclusive::new(1);
        assert!(quietly(|| x.with("x", |_| -> Result<()> { panic!("here") })).is_err());
        assert_eq!(x.with("x", |_| Ok(())).unwrap_err().status, Status::State);
    }
}
