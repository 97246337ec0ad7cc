//! Strided views: a shape and strides over bytes. Slicing and transposing move no data.

use super::DType;
use crate::error::Result;
use crate::memory;
use std::ops::Range;

/// A read-only view of a tensor. Strides are in elements; the data need not be aligned.
#[derive(Clone, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<usize>,
    /// Element index of the first element in `bytes`.
    offset: usize,
}

impl<'a> View<'a> {
    /// A contiguous row-major view; `None` unless `bytes` has exactly the bytes of `shape`.
    pub fn contiguous(bytes: &'a [u8], dtype: DType, shape: &[usize]) -> Option<Self> {
        let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
        if elements.checked_mul(dtype.size())? != bytes.len() {
            return None;
        }
        let mut strides = vec![1usize; shape.len()];
        for i in (1..shape.len()).rev() {
            // Cannot overflow where the product of a nonempty shape does not; an empty one is never indexed.
            strides[i - 1] = strides[i].saturating_mul(shape[i]);
        }
        Some(View { bytes, dtype, shape: shape.to_vec(), strides, offset: 0 })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Length of each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Distance in elements between neighbours along each dimension.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether a dimension is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&length, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if length != 1 && stride != expected {
                return false;
            }
            expected *= length;
        }
        true
    }

    /// The bytes of a contiguous view, `None` otherwise.
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        let start = self.offset * self.dtype.size();
        self.is_contiguous().then(|| &self.bytes[start..start + self.len() * self.dtype.size()])
    }

    /// The view with dimensions `a` and `b` exchanged.
    ///
    /// # Panics
    /// If a dimension does not exist.
    pub fn transposed(mut self, a: usize, b: usize) -> Self {
        self.shape.swap(a, b);
        self.strides.swap(a, b);
        self
    }

    /// The view restricted to `range` along `dim`.
    ///
    /// # Panics
    /// If the dimension does not exist or the range leaves it.
    pub fn sliced(mut self, dim: usize, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.shape[dim], "slice {range:?} of {:?}", self.shape);
        if !range.is_empty() {
            self.offset += range.start * self.strides[dim];
        }
        self.shape[dim] = range.len();
        self
    }

    /// The element at `index`, as f32.
    ///
    /// # Panics
    /// If the index leaves the shape.
    pub fn get(&self, index: &[usize]) -> f32 {
        assert_eq!(index.len(), self.shape.len(), "index {index:?} of {:?}", self.shape);
        let mut at = self.offset;
        for ((&i, &length), &stride) in index.iter().zip(&self.shape).zip(&self.strides) {
            assert!(i < length, "index {index:?} of {:?}", self.shape);
            at += i * stride;
        }
        self.element(at)
    }

    /// All elements in row-major order of the view, as f32.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        let mut out = memory::with_room(self.len())?;
        self.push_from(0, self.offset, &mut out);
        Ok(out)
    }

    fn push_from(&self, dim: usize, at: usize, out: &mut Vec<f32>) {
        match self.shape.get(dim) {
            None => out.push(self.element(at)),
            Some(&length) => (0..length).for_each(|i| self.push_from(dim + 1, at + i * self.strides[dim], out)),
        }
    }

    fn element(&self, at: usize) -> f32 {
        let size = self.dtype.size();
        self.dtype.decode(&self.bytes[at * size..(at + 1) * size])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(n: u16) -> Vec<u8> {
        (0..n).flat_map(|i| f32::from(i).to_le_bytes()).collect()
    }

    #[test]
    fn transposed_and_sliced_views_read_the_right_elements() {
        let data = bytes(24);
        let v = View::contiguous(&data, DType::F32, &[2, 3, 4]).unwrap();
        assert!(v.is_contiguous());
        assert_eq!(v.strides(), [12, 4, 1]);
        let t = v.clone().transposed(0, 2);
        assert_eq!(t.shape(), [4, 3, 2]);
        assert!(!t.is_contiguous() && t.as_bytes().is_none());
        assert_eq!(t.get(&[3, 1, 1]), v.get(&[1, 1, 3]));
        let s = t.sliced(0, 1..3);
        assert_eq!(s.to_f32().unwrap(), [1., 13., 5., 17., 9., 21., 2., 14., 6., 18., 10., 22.]);
        let rows = v.sliced(0, 1..2);
        assert_eq!(rows.as_bytes().unwrap(), &data[48..]);
    }

    #[test]
    fn unaligned_and_half_precision_bytes_are_read_exactly() {
        let mut data = vec![0u8];
        data.extend(half::f16::from_f32(1.5).to_le_bytes());
        data.extend(half::f16::from_f32(-0.25).to_le_bytes());
        let v = View::contiguous(&data[1..], DType::F16, &[2]).unwrap();
        assert_eq!(v.to_f32().unwrap(), [1.5, -0.25]);
        let b = half::bf16::from_f32(3.0).to_le_bytes();
        assert_eq!(View::contiguous(&b, DType::BF16, &[1, 1]).unwrap().get(&[0, 0]), 3.0);
    }

    #[test]
    fn a_shape_that_does_not_fit_the_bytes_is_refused() {
        let data = bytes(6);
        assert!(View::contiguous(&data, DType::F32, &[2, 4]).is_none());
        assert!(View::contiguous(&data, DType::F32, &[usize::MAX, 3]).is_none());
        assert!(View::contiguous(&[], DType::F32, &[0, 3]).unwrap().is_empty());
    }
}
