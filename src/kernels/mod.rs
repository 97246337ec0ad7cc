//! Kernels by instruction set.
