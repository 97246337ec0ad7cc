//! Places and buffers for results: good ones, and ones that must be refused.

use super::super::abi::Guarded;
use super::super::reader::Reader;
use rie::ffi::constants::{RIE_ERR_BUFFER_TOO_SMALL, RIE_OK};
use std::fmt::Debug;
use std::ptr::null_mut;

/// Room that buffers have.
const ROOM: [usize; 8] = [0, 1, 3, 16, 64, 100, 1000, 5000];

/// How a pointer is wrong.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    Null,
    Misaligned,
    TooLarge,
}

const FAULTS: [Fault; 32] = {
    let mut faults = [Fault::None; 32];
    (faults[1], faults[2], faults[3]) = (Fault::Null, Fault::Misaligned, Fault::TooLarge);
    faults
};

/// The place of one result.
pub struct Place<T> {
    memory: Guarded<T>,
    is_null: bool,
}

impl<T: Copy + PartialEq + Debug> Place<T> {
    /// A good one, or NULL.
    pub fn new(r: &mut Reader<'_>, nothing: T) -> Place<T> {
        Place { memory: Guarded::new(1, nothing), is_null: r.choose(&FAULTS) == Fault::Null }
    }

    /// What the call is given.
    pub fn at(&mut self) -> *mut T {
        if self.is_null { null_mut() } else { self.memory.ptr() }
    }

    /// What was written there, which only a success may do.
    pub fn result(&self, status: i32) -> Option<T> {
        assert!(status < 0 || !self.is_null, "a result without a place");
        if status < 0 {
            self.memory.written(0);
            return None;
        }
        Some(self.memory.written(1)[0])
    }
}

/// A buffer and the place of its length.
pub struct Buffer<T> {
    memory: Guarded<T>,
    cap: usize,
    fault: Fault,
    len: Place<usize>,
}

impl<T: Copy + PartialEq + Debug> Buffer<T> {
    /// One of some size.
    pub fn new(r: &mut Reader<'_>, fill: T) -> Buffer<T> {
        Buffer::of(r, fill, &ROOM)
    }

    /// One of one of these sizes.
    pub fn of(r: &mut Reader<'_>, fill: T, sizes: &[usize]) -> Buffer<T> {
        let (cap, fault) = (r.choose(sizes), r.choose(&FAULTS));
        let fault = match fault {
            Fault::Misaligned if align_of::<T>() == 1 => Fault::None,
            Fault::Null | Fault::Misaligned if cap == 0 => Fault::None,
            other => other,
        };
        Buffer { memory: Guarded::new(cap, fill), cap, fault, len: Place::new(r, usize::MAX) }
    }

    /// One of this size, which the call is not told.
    pub fn exact(r: &mut Reader<'_>, fill: T, cap: usize) -> Buffer<T> {
        let buffer = Buffer::of(r, fill, &[cap]);
        let fault = if buffer.fault == Fault::TooLarge { Fault::None } else { buffer.fault };
        Buffer { fault, ..buffer }
    }

    /// Whether the call need not refuse it.
    pub fn is_good(&self) -> bool {
        self.fault == Fault::None
    }

    /// What the call is given.
    pub fn at(&mut self) -> *mut T {
        match self.fault {
            Fault::Null => null_mut(),
            Fault::Misaligned => self.memory.ptr().wrapping_byte_add(1),
            _ => self.memory.ptr(),
        }
    }

    /// How many elements it is said to have.
    pub fn cap(&self) -> usize {
        if self.fault == Fault::TooLarge { usize::MAX / size_of::<T>() } else { self.cap }
    }

    /// Where the length goes.
    pub fn len_at(&mut self) -> *mut usize {
        self.len.at()
    }

    /// What a call wrote that reports a length, on success.
    pub fn check(&self, status: i32) -> Option<&[T]> {
        assert!(status < 0 || (self.is_good() && !self.len.is_null), "a bad buffer was taken");
        match status {
            RIE_OK => Some(self.memory.written(self.len.memory.written(1)[0])),
            RIE_ERR_BUFFER_TOO_SMALL => {
                self.memory.written(0);
                assert!(self.len.memory.written(1)[0] > self.cap, "the length fits");
                None
            }
            _ => {
                self.memory.written(0);
                self.len.memory.written(0);
                None
            }
        }
    }

    /// What a call wrote that fills `n` elements, on success.
    pub fn check_fixed(&self, status: i32, n: usize) -> Option<&[T]> {
        let fits = self.is_good() || n == 0;
        assert!(status < 0 || fits && n <= self.cap, "a bad buffer was taken");
        let written = self.memory.written(if status < 0 { 0 } else { n });
        (status >= 0).then_some(written)
    }
}
