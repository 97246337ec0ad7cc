//! The host's pointers: checked once, then safe to use. All that the other files know of raw memory is here.

use crate::error::Result;
use crate::{bail, err};
use std::ffi::{CStr, c_char};
use std::ptr::NonNull;

/// NULL, a misaligned pointer and a size that no object can have are errors that name `arg`.
fn check<T>(ptr: *const T, n: usize, arg: &str) -> Result<()> {
    if ptr.is_null() {
        bail!(InvalidArgument, "{arg}: NULL");
    }
    if !ptr.is_aligned() {
        bail!(InvalidArgument, "{arg}: expected a multiple of {} as address, found {ptr:p}", align_of::<T>());
    }
    if n > isize::MAX as usize / size_of::<T>() {
        bail!(InvalidArgument, "{arg}: {n} elements of {} bytes exceed the address space", size_of::<T>());
    }
    Ok(())
}

/// The array `ptr[0..n]`; NULL is fine when `n` is 0.
///
/// # Safety
/// The host's contract: if not NULL, `ptr` is readable for `n` elements for `'a`, and nobody writes there meanwhile.
pub unsafe fn slice<'a, T: Copy>(ptr: *const T, n: usize, arg: &str) -> Result<&'a [T]> {
    if n == 0 {
        return Ok(&[]);
    }
    check(ptr, n, arg)?;
    // SAFETY: `check` saw a non-null, aligned pointer and a size within isize; the host vouches for the memory.
    Ok(unsafe { std::slice::from_raw_parts(ptr, n) })
}

/// The UTF-8 text `ptr[0..n]`; NULL is fine when `n` is 0.
///
/// # Safety
/// As for [`slice`].
pub unsafe fn text<'a>(ptr: *const c_char, n: usize, arg: &str) -> Result<&'a str> {
    // SAFETY: the caller's contract is the same.
    utf8(unsafe { slice(ptr.cast::<u8>(), n, arg) }?, arg)
}

/// The NUL-terminated UTF-8 path at `ptr`, not empty.
///
/// # Safety
/// As for [`c_str`].
pub unsafe fn path<'a>(ptr: *const c_char, arg: &str) -> Result<&'a str> {
    // SAFETY: the caller's contract is the same.
    match unsafe { c_str(ptr, arg) }? {
        "" => bail!(InvalidArgument, "{arg}: expected a path, found an empty text"),
        path => Ok(path),
    }
}

/// The NUL-terminated UTF-8 text at `ptr`.
///
/// # Safety
/// The host's contract: if not NULL, `ptr` is NUL-terminated and nobody writes there for `'a`.
pub unsafe fn c_str<'a>(ptr: *const c_char, arg: &str) -> Result<&'a str> {
    check(ptr, 1, arg)?;
    // SAFETY: `check` saw that it is not NULL; the host vouches for the terminator.
    utf8(unsafe { CStr::from_ptr(ptr) }.to_bytes(), arg)
}

fn utf8<'a>(bytes: &'a [u8], arg: &str) -> Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|e| {
        let at = e.valid_up_to();
        err!(Utf8, "{arg}: invalid UTF-8 at byte {at} of {} (0x{:02x})", bytes.len(), bytes[at])
    })
}

/// A place for one result. Created before the work, so that a bad pointer costs nothing; written only on success.
pub struct Out<T>(NonNull<T>);

impl<T: Copy> Out<T> {
    /// # Safety
    /// The host's contract: if not NULL, `ptr` is writable for the whole call.
    pub unsafe fn new(ptr: *mut T, arg: &str) -> Result<Out<T>> {
        check(ptr, 1, arg)?;
        NonNull::new(ptr).map(Out).ok_or_else(|| err!(InvalidArgument, "{arg}: NULL"))
    }

    /// Stores the result.
    pub fn write(&self, value: T) {
        // SAFETY: `new` checked NULL and alignment, and its caller promised that the place stays writable.
        unsafe { self.0.write(value) }
    }
}

/// A buffer of the host, `cap` elements at `ptr`.
pub struct Buffer<T> {
    ptr: *mut T,
    cap: usize,
    arg: &'static str,
}

impl<T: Copy> Buffer<T> {
    /// NULL is fine when `cap` is 0.
    ///
    /// # Safety
    /// The host's contract: if not NULL, `ptr` is writable for `cap` elements for the whole call.
    pub unsafe fn new(ptr: *mut T, cap: usize, arg: &'static str) -> Result<Buffer<T>> {
        if cap > 0 {
            check(ptr, cap, arg)?;
        }
        Ok(Buffer { ptr, cap, arg })
    }

    /// Whether `n` elements fit; the error says how many are needed.
    pub fn expect(&self, n: usize) -> Result<()> {
        if n > self.cap {
            bail!(BufferTooSmall, "{}: {n} elements needed, room for {} given", self.arg, self.cap);
        }
        Ok(())
    }

    /// Copies `data` in, if it fits.
    pub fn fill(&self, data: &[T]) -> Result<()> {
        self.expect(data.len())?;
        if !data.is_empty() {
            // SAFETY: `data` is not empty and fits in `cap`, so `new` checked NULL, alignment and size, and its caller
            // promised that the memory is writable; `data` is memory of this library, so the two do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.ptr, data.len()) }
        }
        Ok(())
    }
}

/// A buffer with the place for its length. The length is written on success and when the buffer is too small.
pub struct SizedBuffer<T> {
    buffer: Buffer<T>,
    len: Out<usize>,
}

impl<T: Copy> SizedBuffer<T> {
    /// # Safety
    /// As for [`Buffer::new`] (named `buf`) and [`Out::new`] (named `len`).
    pub unsafe fn new(ptr: *mut T, cap: usize, len: *mut usize) -> Result<SizedBuffer<T>> {
        // SAFETY: the caller's contract is the same.
        let (buffer, len) = unsafe { (Buffer::new(ptr, cap, "buf")?, Out::new(len, "len")?) };
        Ok(SizedBuffer { buffer, len })
    }

    /// Copies `data` in if it fits, and reports its length in any case.
    pub fn fill(&self, data: &[T]) -> Result<()> {
        self.fill_parts(&[data])
    }

    /// Reports the length `n`; an error if so many elements do not fit.
    pub fn expect(&self, n: usize) -> Result<()> {
        self.len.write(n);
        self.buffer.expect(n)
    }

    /// Copies the parts in, one behind the other, if they fit together.
    pub fn fill_parts(&self, parts: &[impl AsRef<[T]>]) -> Result<()> {
        self.expect(parts.iter().map(|part| part.as_ref().len()).sum())?;
        let mut at = 0;
        for part in parts {
            let part = part.as_ref();
            // Within the capacity, as all parts together are.
            let rest =
                Buffer { ptr: self.buffer.ptr.wrapping_add(at), cap: self.buffer.cap - at, arg: self.buffer.arg };
            rest.fill(part)?;
            at += part.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Status;
    use std::ptr::{dangling, null, null_mut};

    #[test]
    fn arrays_are_checked_before_they_are_read() {
        let data = [1i32, 2, 3];
        // SAFETY: `data` has three elements.
        assert_eq!(unsafe { slice(data.as_ptr(), 3, "a") }, Ok(&data[..]));
        // SAFETY: nothing is read of an empty array.
        assert_eq!(unsafe { slice::<i32>(null(), 0, "a") }, Ok(&[][..]));
        let refused = |ptr: *const i32, n| {
            // SAFETY: refused before anything is read.
            let e = unsafe { slice(ptr, n, "a") }.unwrap_err();
            assert_eq!(e.status, Status::InvalidArgument);
            e.message
        };
        assert_eq!(refused(null(), 1), "a: NULL");
        assert!(refused(dangling::<u8>().wrapping_add(1).cast(), 1).starts_with("a: expected a multiple of 4"));
        assert!(refused(data.as_ptr(), usize::MAX / 8 + 1).contains("exceed the address space"));
    }

    #[test]
    fn text_is_utf8() {
        let bytes = b"ab\xffc\0";
        // SAFETY: four readable bytes; NUL-terminated.
        let (counted, path) = unsafe { (text(bytes.as_ptr().cast(), 4, "t"), c_str(bytes.as_ptr().cast(), "p")) };
        assert_eq!(counted.unwrap_err().message, "t: invalid UTF-8 at byte 2 of 4 (0xff)");
        assert_eq!(path.unwrap_err().status, Status::Utf8);
        // SAFETY: two readable bytes.
        assert_eq!(unsafe { text(bytes.as_ptr().cast(), 2, "t") }, Ok("ab"));
    }

    #[test]
    fn too_small_a_buffer_reports_the_length_and_stays() {
        let (mut room, mut len) = ([7u8; 4], 0);
        // SAFETY: both are writable.
        let buffer = unsafe { SizedBuffer::new(room.as_mut_ptr(), 4, &mut len) }.unwrap();
        assert_eq!(buffer.fill(b"12345").unwrap_err().status, Status::BufferTooSmall);
        assert_eq!((room, len), ([7; 4], 5));
        // SAFETY: both are writable.
        let buffer = unsafe { SizedBuffer::new(room.as_mut_ptr(), 4, &mut len) }.unwrap();
        buffer.fill(b"123").unwrap();
        assert_eq!((room, len), (*b"123\x07", 3));
        // SAFETY: no room is given; `len` is writable.
        let buffer = unsafe { SizedBuffer::<u8>::new(null_mut(), 0, &mut len) }.unwrap();
        buffer.fill(b"").unwrap();
        assert_eq!(len, 0);
        // SAFETY: refused before anything is written.
        assert!(unsafe { SizedBuffer::<u8>::new(null_mut(), 1, &mut len) }.is_err());
        // SAFETY: refused before anything is written.
        assert!(unsafe { SizedBuffer::new(room.as_mut_ptr(), 4, null_mut()) }.is_err());
    }
}
