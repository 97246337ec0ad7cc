//! The C ABI: validate, call, translate. `build.rs` turns this room into `include/rie.h`.
//!
//! - `guard.rs`: the one way in. Panics are caught, errors become a status and the host's error object.
//! - `handle.rs`: the registry. What the host holds is a number, never an address.
//! - `exclusive.rs`: objects that take one call at a time.
//! - `fork.rs`: what a forked child finds unlocked.
//! - `raw.rs`: the host's pointers, checked once and then safe to use.
//! - one file per object with its functions, and `constants.rs` with every number.
//!
//! The safety contract of all functions is the one of C and is stated once, at the head of the header: a pointer is
//! valid for as many elements as its count says, for the duration of the call, and nobody else writes there meanwhile.

#![allow(non_camel_case_types, reason = "the names of the C types")]
#![allow(clippy::missing_safety_doc, reason = "one contract for all functions, stated above and in the header")]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("rie supports 64-bit targets only: handles are 64-bit numbers outside the address space");

mod exclusive;
mod fork;
mod guard;
mod handle;
mod raw;

// Public, and in the order of the header.

pub mod constants;

pub mod library;

pub mod error;
pub mod log;
pub mod options;

pub mod source;

pub mod model;

pub mod info;

pub mod text;

pub mod chat;

pub mod session;

pub mod sampler;

pub mod batch;

/// Status of a call: 0 is `RIE_OK`, positive are `RIE_END` and `RIE_PENDING`, negative are the `RIE_ERR_*`.
pub type rie_status = i32;

/// A token id, 0 to the model's `RIE_INFO_VOCAB_SIZE` - 1.
pub type rie_token = i32;
