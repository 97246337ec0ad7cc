//! The operators of the forward pass, on plain slices.
