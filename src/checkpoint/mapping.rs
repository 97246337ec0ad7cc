//! A weight file mapped into memory, read-only.
//!
//! **Do not truncate or overwrite a weight file while a model uses it.** A mapping shows the file as it is at each
//! moment: where the file has become shorter, a read ends the process (SIGBUS), and no library can prevent that without
//! installing signal handlers, which this one does not. Replacing the file (write a new one, rename it over the old) is
//! harmless, and so is deleting it: the mapping keeps the old contents.

use crate::error::Result;
use crate::{bail, err};
use memmap2::Mmap;
use std::fs::File;

/// The bytes of a whole file, mapped. Unmapped when the last user lets go.
#[derive(Debug)]
pub(super) struct Mapping {
    map: Mmap,
}

impl Mapping {
    /// Maps all of `file`, whose length was `length` when its header was checked; `name` is what messages call it.
    pub(super) fn of(file: &File, length: u64, name: &str) -> Result<Mapping> {
        // SAFETY: `Mmap` owns its address range until dropped, so the slice that `bytes` lends never dangles. What the
        // compiler may not assume is that the file stays as it is: another process can write to it or truncate it.
        // Writing changes only bytes that are read as numbers: every bit pattern is a valid u8 and a valid float, and
        // names, shapes and extents come from the header, which was read into memory of its own, so no bound and no
        // `str` depends on mapped bytes. Truncation ends the process at a read; the page above tells the user.
        let map = unsafe { Mmap::map(file) }.map_err(|e| err!(Io, "{name}: cannot be mapped: {e}"))?;
        if map.len() as u64 != length {
            bail!(Format, "{name}: had {length} bytes when its header was read and has {} now", map.len());
        }
        Ok(Mapping { map })
    }

    /// The file's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Asks the kernel to read the file ahead. Advice only: a refusal changes nothing but speed.
    pub(super) fn will_need(&self) {
        #[cfg(unix)]
        let _ = self.map.advise(memmap2::Advice::WillNeed);
    }
}
