//! SafeTensors files, mapped: tensors by their Hugging Face names.

use super::Source;
use crate::error::Result;
use crate::tensor::{DType, View};
use std::ops::Range;

/// A two- or one-dimensional tensor of a mapped file. Keeps the mapping alive; cloning is cheap.
#[derive(Clone, Debug)]
pub struct Tensor {}

impl Tensor {
    /// The name in the file.
    pub fn name(&self) -> &str {
        todo!()
    }
    /// Element type as stored.
    pub fn dtype(&self) -> DType {
        todo!()
    }
    /// Shape as stored.
    pub fn shape(&self) -> &[usize] {
        todo!()
    }
    /// The bytes, row-major, little-endian, possibly unaligned.
    pub fn bytes(&self) -> &[u8] {
        todo!()
    }
    /// A strided view of the whole tensor.
    pub fn view(&self) -> View<'_> {
        todo!()
    }
    /// Rows `range` along the first dimension, sharing the mapping.
    pub fn rows(&self, range: Range<usize>) -> Tensor {
        todo!("{range:?}")
    }
}

/// All tensors of a model, mapped and not yet read.
#[derive(Debug)]
pub struct Checkpoint {}

impl Checkpoint {
    /// Maps every weight file of `source` and checks every header.
    pub fn map(source: &Source) -> Result<Checkpoint> {
        todo!("{source:?}")
    }

    /// The tensor `name` with exactly `shape`, found with or without the `model.` prefix. A missing tensor, another
    /// shape or an element type that cannot be used is an error that names the tensor, the expectation and the find.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        todo!("{name} {shape:?}")
    }

    /// Whether [`tensor`](Self::tensor) would find the name.
    pub fn contains(&self, name: &str) -> bool {
        todo!("{name}")
    }

    /// Number of elements of all tensors, and their bytes.
    pub fn totals(&self) -> (u64, u64) {
        todo!()
    }

    /// Asks the kernel to read the mapped weights ahead.
    pub fn will_need(&self) {
        todo!()
    }
}
