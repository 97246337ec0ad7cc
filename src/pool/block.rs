//! Matrices cut into blocks that threads write side by side.

use std::marker::PhantomData;
use std::ops::Range;

/// A matrix that is about to be cut.
pub struct Whole<'a, T> {
    data: *mut T,
    width: usize,
    height: usize,
    _owner: PhantomData<&'a mut [T]>,
}

// SAFETY: shared only to cut disjoint blocks from it, each used by one thread.
unsafe impl<T: Send> Sync for Whole<'_, T> {}

impl<'a, T> Whole<'a, T> {
    /// `data` as rows of `width`.
    pub fn new(data: &'a mut [T], width: usize) -> Self {
        assert!(data.len().is_multiple_of(width), "a matrix of {} elements has no rows of {width}", data.len());
        Whole { data: data.as_mut_ptr(), width, height: data.len() / width, _owner: PhantomData }
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// A block of it.
    ///
    /// # Safety
    /// No two blocks that live at once have an element in common.
    ///
    /// # Panics
    /// If the block leaves the matrix.
    pub unsafe fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Block<'a, T> {
        assert!(rows.end <= self.height && columns.end <= self.width, "{rows:?} × {columns:?}");
        Block { data: self.data, width: self.width, rows, columns, _owner: PhantomData }
    }
}

/// A block of a matrix, for one thread to write.
pub struct Block<'a, T> {
    data: *mut T,
    width: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    _owner: PhantomData<&'a mut [T]>,
}

impl<T> Block<'_, T> {
    /// Which rows of the matrix.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Which columns of the matrix.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The block's part of the matrix's row `row`.
    ///
    /// # Panics
    /// If the row is not the block's.
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(self.rows.contains(&row), "row {row} of {:?}", self.rows);
        // SAFETY: the row, checked above, and the columns, checked by `Whole::block`, lie in the matrix, which is borrowed for 'a;
        // no other block that lives has these elements, as the caller of `Whole::block` promised.
        unsafe {
            let start = self.data.add(row * self.width + self.columns.start);
            std::slice::from_raw_parts_mut(start, self.columns.len())
        }
    }
}
