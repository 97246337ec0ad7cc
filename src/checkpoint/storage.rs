//! The bytes of weights, read-only: a file mapped into memory, a tensor read into it, or memory of the host.
//!
//! **Do not truncate or overwrite a weight file while a model that maps it is used.** A mapping shows the file as it is
//! at each moment: where the file has become shorter, a read ends the process (SIGBUS), and no library can prevent that
//! without installing signal handlers, which this one does not. Replacing the file (write a new one, rename it over the
//! old) is harmless, and so is deleting it: the mapping keeps the old contents. Where neither can be relied on, weights
//! are read.

use super::file::{HostMemory, Opened};
use crate::error::Result;
use crate::tensor::AlignedBuffer;
use crate::{bail, err};
use memmap2::{Mmap, MmapOptions};
use std::io::{ErrorKind, Read};
use std::ops::Range;

/// The bytes of a whole file, or of one tensor of it. Released when the last user lets go.
#[derive(Debug)]
pub(super) enum Storage {
    Mapped(Mmap),
    Read(AlignedBuffer<u8>),
    Host(HostMemory),
}

impl Storage {
    /// All of `file`, whose length was `length` when its header was checked, where it is; `name` is what messages call
    /// it.
    pub(super) fn in_place(file: &Opened, length: u64, name: &str) -> Result<Storage> {
        let part = match file {
            Opened::Memory(memory) => return Ok(Storage::Host(memory.clone())),
            Opened::Part(part) => part,
        };
        let bytes = usize::try_from(length).map_err(|_| err!(Format, "{name}: exceeds the address space"))?;
        let mut options = MmapOptions::new();
        options.offset(part.start).len(bytes);
        // SAFETY: `Mmap` owns its address range until dropped, so the slice that `bytes` lends never dangles. What the
        // compiler may not assume is that the file stays as it is: another process can write to it or truncate it.
        // Writing changes only bytes that are read as numbers: every bit pattern is a valid u8 and a valid float, and
        // names, shapes and extents come from the header, which was read into memory of its own, so no bound and no
        // `str` depends on mapped bytes. Truncation ends the process at a read; the page above tells the user.
        let map = unsafe { options.map(&*part.file) }.map_err(|e| err!(Io, "{name}: cannot be mapped: {e}"))?;
        // Looked at after mapping, so that what was cut off before is seen.
        let (end, now) = (part.start + length, part.file.metadata().map_or(0, |found| found.len()));
        if now < end {
            bail!(Format, "{name}: had {end} bytes when its header was read and has {now} now");
        }
        Ok(Storage::Mapped(map))
    }

    /// Reads the bytes `extent` of `file`; `name` is what messages call them.
    pub(super) fn read(file: &Opened, extent: Range<usize>, name: impl Fn() -> String) -> Result<Storage> {
        let mut bytes = AlignedBuffer::default();
        bytes.try_grow(extent.len()).map_err(|e| e.at(&name()))?;
        match file.reader(extent.start as u64).read_exact(&mut bytes) {
            Ok(()) => Ok(Storage::Read(bytes)),
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => Err(err!(
                Format,
                "{}: expected bytes {} to {} of the file, found its end before: it has become shorter",
                name(),
                extent.start,
                extent.end
            )),
            Err(e) => Err(err!(Io, "{}: cannot be read: {e}", name())),
        }
    }

    /// The bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Storage::Mapped(map) => map,
            Storage::Read(bytes) => bytes,
            Storage::Host(memory) => memory.bytes(),
        }
    }

    /// Asks the kernel to read a mapped file ahead. Advice only: a refusal changes nothing but speed.
    pub(super) fn will_need(&self) {
        #[cfg(unix)]
        if let Storage::Mapped(map) = self {
            let _ = map.advise(memmap2::Advice::WillNeed);
        }
    }
}
