//! SafeTensors files, mapped: tensors by their Hugging Face names.

use super::Source;
use super::header::{self, Dims, Header, Shown};
use super::mapping::Mapping;
use super::source::weight_map;
use crate::error::Result;
use crate::tensor::{DType, View};
use crate::{bail, err};
use safetensors::Dtype;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A two- or one-dimensional tensor of a mapped file. Keeps the mapping alive; cloning is cheap.
///
/// The file must not be truncated while this lives: reading a page that the file no longer has ends the process.
#[derive(Clone, Debug)]
pub struct Tensor {
    name: Arc<str>,
    dtype: DType,
    shape: Vec<usize>,
    mapping: Arc<Mapping>,
    /// Where the bytes lie in the file: within the mapping, and as long as the shape says.
    extent: Range<usize>,
}

impl Tensor {
    /// The name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Element type as stored.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape as stored.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The bytes, row-major, little-endian, possibly unaligned.
    pub fn bytes(&self) -> &[u8] {
        &self.mapping.bytes()[self.extent.clone()]
    }

    /// A strided view of the whole tensor.
    pub fn view(&self) -> View<'_> {
        View::contiguous(self.bytes(), self.dtype, &self.shape).expect("the header's check compared shape and extent")
    }

    /// Rows `range` along the first dimension, sharing the mapping.
    ///
    /// # Panics
    /// If the range leaves the first dimension.
    pub fn rows(&self, range: Range<usize>) -> Tensor {
        let rows = self.shape.first().copied().unwrap_or(0);
        assert!(range.start <= range.end && range.end <= rows, "rows {range:?} of {:?}", self.shape);
        let row = self.extent.len() / rows.max(1);
        let start = self.extent.start;
        let mut part = self.clone();
        part.extent = start + range.start * row..start + range.end * row;
        part.shape[0] = range.len();
        part
    }
}

/// What a header says of one tensor, its extent counted from the file's first byte.
#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    extent: Range<usize>,
}

/// All tensors of a model, mapped and not yet read.
///
/// The files must not be truncated or overwritten while this, or a [`Tensor`] of it, lives; replacing a file by a
/// rename, or deleting it, is harmless.
#[derive(Debug)]
pub struct Checkpoint {
    /// Name for messages, and contents, of each weight file.
    files: Vec<(String, Arc<Mapping>)>,
    tensors: HashMap<Arc<str>, Entry>,
}

impl Checkpoint {
    /// Maps every weight file of `source` and checks every header.
    pub fn map(source: &Source) -> Result<Checkpoint> {
        let mut files = Vec::with_capacity(source.weights.len());
        let mut tensors: HashMap<Arc<str>, Entry> = HashMap::new();
        for path in &source.weights {
            let file_name = path.display().to_string();
            let mapping = Mapping::open(path, &file_name)?;
            let header = parse(mapping.bytes()).map_err(|e| e.at(&file_name))?;
            for (name, info) in header.tensors {
                let name: Arc<str> = name.into();
                let extent = header.data_start + info.data_offsets.0..header.data_start + info.data_offsets.1;
                let entry =
                    Entry { name: name.clone(), file: files.len(), dtype: info.dtype, shape: info.shape, extent };
                if let Some(first) = tensors.insert(name.clone(), entry) {
                    let (first, _) = &files[first.file];
                    bail!(Format, "{file_name}: tensor {}: also in {first}", Shown(&name));
                }
            }
            files.push((file_name, Arc::new(mapping)));
        }
        let checkpoint = Checkpoint { files, tensors };
        checkpoint.check_index(source)?;
        Ok(checkpoint)
    }

    /// Checks that each tensor of the index is in the shard that it names.
    fn check_index(&self, source: &Source) -> Result<()> {
        let Some(index) = &source.index else { return Ok(()) };
        for (tensor, shard) in weight_map(index)? {
            let tensor_shown = Shown(&tensor);
            let found = match self.tensors.get(tensor.as_str()) {
                None => "in none of the shards".to_owned(),
                Some(entry) => {
                    let name = source.weights[entry.file].file_name().unwrap_or_default();
                    if name == shard.as_str() {
                        continue;
                    }
                    format!("in {}", name.display())
                }
            };
            bail!(Format, "{}: tensor {tensor_shown}: expected in {}, found {found}", index.name, Shown(&shard));
        }
        Ok(())
    }

    /// The tensor `name` with exactly `shape`, found with or without the `model.` prefix. A missing tensor, another
    /// shape or an element type that cannot be used is an error that names the tensor, the expectation and the find.
    ///
    /// Where both names are there, the prefixed one is meant.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let Some(entry) = self.find(name) else {
            bail!(Tensor, "{name}: missing from {}", self.place());
        };
        let (file, mapping) = &self.files[entry.file];
        let place = || format!("{} in {file}", Shown(&entry.name));
        let dtype = match entry.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            other => bail!(Tensor, "{}: expected F32, F16 or BF16, found {other}", place()),
        };
        if entry.shape != shape {
            bail!(Tensor, "{}: expected shape {}, found {}", place(), Dims(shape), Dims(&entry.shape));
        }
        if shape.contains(&0) {
            bail!(Tensor, "{}: expected elements, found none (shape {})", place(), Dims(shape));
        }
        let (mapping, extent) = (mapping.clone(), entry.extent.clone());
        Ok(Tensor { name: entry.name.clone(), dtype, shape: shape.to_vec(), mapping, extent })
    }

    /// Whether [`tensor`](Self::tensor) would find the name.
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Number of elements of all tensors, and their bytes.
    pub fn totals(&self) -> (u64, u64) {
        self.tensors.values().fold((0, 0), |(elements, bytes), entry| {
            // The product of a checked header does not overflow, and the sum is bounded by the files' bits.
            (elements + entry.shape.iter().product::<usize>() as u64, bytes + entry.extent.len() as u64)
        })
    }

    /// Asks the kernel to read the mapped weights ahead.
    pub fn will_need(&self) {
        self.files.iter().for_each(|(_, mapping)| mapping.will_need());
    }

    fn find(&self, name: &str) -> Option<&Entry> {
        const PREFIX: &str = "model.";
        // lm_head lies beside the model, not in it, and has no prefix in any checkpoint.
        if name.starts_with("lm_head.") {
            return self.tensors.get(name);
        }
        let bare = name.strip_prefix(PREFIX).unwrap_or(name);
        self.tensors.get(format!("{PREFIX}{bare}").as_str()).or_else(|| self.tensors.get(bare))
    }

    /// The weight files as a message names them.
    fn place(&self) -> String {
        match &self.files[..] {
            [] => "the model, which has no weight file".to_owned(),
            [(only, _)] => only.clone(),
            [(first, _), .., (last, _)] => format!("the {} shards {first} to {last}", self.files.len()),
        }
    }
}

/// Parses and checks the header of a mapped file.
fn parse(bytes: &[u8]) -> Result<Header> {
    let length = header::length(bytes, bytes.len() as u64)?;
    let json = bytes.get(header::PREFIX..header::PREFIX + length);
    let json = json.ok_or_else(|| err!(Internal, "the header's length was not checked"))?;
    Header::parse(json, bytes.len() as u64)
}
