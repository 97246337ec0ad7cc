//! Another Rust library in the same program, with a standard library, threads and panics of its own.

use std::panic::{catch_unwind, set_hook};

/// Panics in a thread of its own `n` times and returns how many of them it caught.
#[unsafe(no_mangle)]
pub extern "C" fn other_caught(n: u32) -> u32 {
    set_hook(Box::new(|_| {}));
    let threads: Vec<_> = (0..n).map(|i| std::thread::spawn(move || catch_unwind(|| panic!("{i}")).is_err())).collect();
    threads.into_iter().map(|t| u32::from(t.join().unwrap_or(false))).sum()
}
