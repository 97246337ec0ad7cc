//! The header of a SafeTensors file: eight bytes of length, then JSON that names each tensor's type, shape and extent.
//!
//! The types and the final check are the `safetensors` crate's. The parsing is done here in a streaming way, so that a
//! hostile header costs no more memory than its own size, a name given twice is seen, and errors name the tensor.

use crate::error::{Error, Result};
use crate::memory;
use crate::{bail, err};
use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::Read;

/// Bytes of the length that a file begins with.
const PREFIX: usize = 8;

/// The format's own bound on headers.
const MAX_HEADER: u64 = 100_000_000;

/// Bytes of memory for each byte of JSON, at most: what is parsed, sorted, checked and catalogued.
const PARSED_BYTES: usize = 16;

/// A checked header.
#[derive(Debug)]
pub(super) struct Header {
    /// Names and descriptions in the order of the data; extents count from `data_start`.
    pub(super) tensors: Vec<(String, TensorInfo)>,
    /// Offset in the file of the first byte of data.
    pub(super) data_start: usize,
    /// `__metadata__`.
    pub(super) metadata: BTreeMap<String, String>,
}

/// The length of the JSON that follows the prefix, checked against the length of the file.
fn length(start: &[u8], file_length: u64) -> Result<usize> {
    let Some(prefix) = start.first_chunk::<PREFIX>() else {
        bail!(Format, "expected a SafeTensors file, found {file_length} bytes, less than the length of a header");
    };
    if prefix == b"version " {
        bail!(Format, "this is a Git LFS pointer instead of the weights: fetch them with `git lfs pull`");
    }
    let length = u64::from_le_bytes(*prefix);
    let room = file_length.saturating_sub(PREFIX as u64);
    if length > room {
        bail!(
            Format,
            "the header claims {length} bytes and the file has {room} after the length: truncated, or not SafeTensors"
        );
    }
    if length > MAX_HEADER {
        bail!(Format, "the header claims {length} bytes; the format allows {MAX_HEADER}");
    }
    usize::try_from(length).map_err(|_| err!(Format, "the header claims {length} bytes"))
}

impl Header {
    /// Reads and checks the header of a file of `file_length` bytes, and reads nothing else of it.
    pub(super) fn read(mut file: impl Read, file_length: u64) -> Result<Header> {
        let unreadable = |e| err!(Io, "the header cannot be read: {e}");
        let mut start = Vec::new();
        file.by_ref().take(PREFIX as u64).read_to_end(&mut start).map_err(unreadable)?;
        let length = length(&start, file_length)?;
        let mut json = Vec::new();
        json.try_reserve_exact(length)?;
        file.take(length as u64).read_to_end(&mut json).map_err(unreadable)?;
        if json.len() != length {
            bail!(Format, "expected {length} bytes of header, found {}", json.len());
        }
        memory::expect_room(json.len().saturating_mul(PARSED_BYTES), "the header")?;
        Header::parse(&json, file_length)
    }

    /// Parses the JSON of a header and checks every extent against the data that the file has.
    fn parse(json: &[u8], file_length: u64) -> Result<Header> {
        let Entries { mut tensors, metadata } =
            serde_json::from_slice(json).map_err(|e| err!(Format, "header: {e}"))?;
        // Zero-sized tensors share their offset with a neighbour; the end puts them first.
        tensors.sort_by_key(|(_, info)| info.data_offsets);
        let data_start = PREFIX + json.len();
        let data = file_length.saturating_sub(data_start as u64);
        let data = usize::try_from(data).map_err(|_| err!(Format, "{data} bytes of data exceed the address space"))?;
        check(&tensors, data)?;
        // The crate that defines the format has the last word.
        Metadata::new(None, tensors.clone()).map_err(|e| err!(Format, "header: {e}"))?;
        Ok(Header { tensors, data_start, metadata })
    }
}

/// Checks that the extents, in ascending order, tile the `data` bytes and fit their shapes.
fn check(tensors: &[(String, TensorInfo)], data: usize) -> Result<()> {
    let mut end = 0;
    let mut before = None;
    for (name, info) in tensors {
        let (first, last) = info.data_offsets;
        let fault = |what: String| -> Error { err!(Format, "tensor {}: {what}", Shown(name)) };
        if last < first || last > data {
            return Err(fault(format!("extent {first}..{last} is not within the file's {data} bytes of data")));
        }
        if first < end {
            return Err(fault(format!("extent {first}..{last} overlaps tensor {}", Shown(before.unwrap_or("")))));
        }
        if first > end {
            return Err(fault(format!("extent {first}..{last} leaves a gap: expected to begin at {end}")));
        }
        match size(info) {
            None => {
                let problem = "has no size in whole bytes that fits the address space";
                return Err(fault(format!("shape {} of {} {problem}", Dims(&info.shape), info.dtype)));
            }
            Some(size) if size != last - first => {
                return Err(fault(format!(
                    "shape {} of {} takes {size} bytes; its extent {first}..{last} has {}",
                    Dims(&info.shape),
                    info.dtype,
                    last - first
                )));
            }
            Some(_) => {}
        }
        end = last;
        before = Some(name);
    }
    if end != data {
        bail!(Format, "{} bytes of data follow the last tensor, which ends at {end}", data - end);
    }
    Ok(())
}

/// Bytes of a tensor by its shape; `None` on overflow or a broken byte.
fn size(info: &TensorInfo) -> Option<usize> {
    let elements = info.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    let bits = elements.checked_mul(info.dtype.bitsize())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// The header's JSON object, in its own order.
struct Entries {
    tensors: Vec<(String, TensorInfo)>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entries, A::Error> {
                let (mut tensors, mut metadata) = (Vec::new(), BTreeMap::new());
                let mut names = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("tensor {}: named twice", Shown(&name))));
                    }
                    if name == "__metadata__" {
                        let found = map.next_value::<Option<BTreeMap<String, String>>>();
                        metadata =
                            found.map_err(|e| A::Error::custom(format!("__metadata__: {e}")))?.unwrap_or_default();
                        continue;
                    }
                    let info = map
                        .next_value::<TensorInfo>()
                        .map_err(|e| A::Error::custom(format!("tensor {}: {e}", Shown(&name))))?;
                    tensors.push((name, info));
                }
                Ok(Entries { tensors, metadata })
            }
        }
        deserializer.deserialize_map(V)
    }
}

/// A name out of a file as a message shows it: no control characters, no more than is useful.
pub(super) struct Shown<'a>(pub(super) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 200;
        for c in self.0.chars().take(MOST) {
            if c.is_control() {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        if self.0.chars().nth(MOST).is_some() {
            f.write_str("…")?;
        }
        Ok(())
    }
}

/// A shape as a message shows it.
pub(super) struct Dims<'a>(pub(super) &'a [usize]);

impl fmt::Display for Dims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            long if long.len() > 8 => write!(f, "of {} dimensions", long.len()),
            short => write!(f, "{short:?}"),
        }
    }
}
