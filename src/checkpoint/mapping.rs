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
use std::path::Path;

/// The bytes of a whole file, mapped. Unmapped when the last user lets go.
#[derive(Debug)]
pub(super) struct Mapping {
    map: Mmap,
}

impl Mapping {
    /// Maps the file at `path`; `name` is what messages call it.
    pub(super) fn open(path: &Path, name: &str) -> Result<Mapping> {
        let file = super::source::open_regular(path, name, "a SafeTensors file")?;
        Mapping::of(&file, name)
    }

    fn of(file: &File, name: &str) -> Result<Mapping> {
        let length = file.metadata().map_err(|e| err!(Io, "{name}: cannot be examined: {e}"))?.len();
        if length == 0 {
            bail!(Format, "{name}: expected a SafeTensors file, found an empty file");
        }
        // SAFETY: `Mmap` owns its address range until dropped, so the slice that `bytes` lends never dangles. What the
        // compiler may not assume is that the file stays as it is: another process can write or truncate it. Writing
        // changes only the values of floats, and every bit pattern is a valid u8 (and a valid float), sizes and shapes
        // were copied out of the header when it was checked, so no bound depends on mapped bytes afterwards.
        // Truncation ends the process; the module's documentation tells the user.
        let map = unsafe { Mmap::map(file) }.map_err(|e| err!(Io, "{name}: cannot be mapped: {e}"))?;
        if map.is_empty() {
            // The file shrank between the two calls.
            bail!(Format, "{name}: expected a SafeTensors file, found an empty file");
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
