//! The tiers of AArch64.

pub mod neon;
