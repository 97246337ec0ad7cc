//! `fork()`: the child has the one thread that forked, and a lock that another thread held at that moment would stay locked
//! there for ever. So the thread that forks takes the locks that all threads share, and both processes let go of them after it.
//! What belongs to one model is not locked: in the child its sessions answer with an error, see `Pool::check_process`.

use super::handle::{self, Registry};
use crate::panic::quietly;
use crate::pool::{Pool, hold_pools};
use std::cell::RefCell;
use std::sync::{MutexGuard, Once, RwLockWriteGuard, Weak};

type Held = (RwLockWriteGuard<'static, Registry>, MutexGuard<'static, Vec<Weak<Pool>>>);

thread_local! {
    /// The locks, while this thread forks.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Has every later `fork()` of the process do so.
pub fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(unix)]
        // SAFETY: the functions are of the library, which stays loaded (`-z nodelete`), and let no panic out. A refusal, for
        // lack of memory, leaves forks as they would be.
        unsafe {
            libc::pthread_atfork(Some(take), Some(release), Some(release));
        }
    });
}

extern "C" fn take() {
    // Nobody waits for the registry while holding the pools, or the reverse.
    let _ = quietly(|| HELD.try_with(|held| held.replace(Some((handle::hold(), hold_pools())))).map(drop));
}

extern "C" fn release() {
    let _ = quietly(|| HELD.try_with(RefCell::take).map(drop));
}
