//! The C ABI.

pub mod constants;
