//! The tiers of x86-64.

pub mod avx2;
pub mod avx512;
pub mod vnni;
