//! Scratch memory that begins on a cache line.

use crate::error::Result;
use crate::panic::give_up;
use std::ops::{Deref, DerefMut};

/// A growing buffer whose first element lies on a cache line, so that no vector of it crosses one. What it holds is lost
/// when it grows.
#[derive(Debug, Default)]
pub struct AlignedBuffer<T> {
    memory: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> AlignedBuffer<T> {
    const LINE: usize = 64;

    /// Makes room for `len` elements; on failure nothing has changed.
    pub fn try_grow(&mut self, len: usize) -> Result<()> {
        if self.len < len {
            let mut memory = Vec::new();
            let whole = len + Self::LINE / size_of::<T>();
            memory.try_reserve_exact(whole)?;
            memory.resize(whole, T::default());
            // A vector is aligned to its elements, so the offset is less than a line of them.
            let start = memory.as_ptr().align_offset(Self::LINE).min(whole - len);
            *self = AlignedBuffer { memory, start, len };
        }
        Ok(())
    }

    /// The first `len` elements, after growing to them.
    pub fn grown(&mut self, len: usize) -> &mut [T] {
        if let Err(e) = self.try_grow(len) {
            give_up(e); // the step fails, and the next one may not
        }
        &mut self[..len]
    }
}

impl<T> Deref for AlignedBuffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for AlignedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
