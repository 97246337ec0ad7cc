//! SafeTensors files, mapped: tensors by their Hugging Face names.

use super::Source;
use super::catalog::{Catalog, Entry};
use super::header::{Dims, Shown};
use super::mapping::Mapping;
use super::matrix::{Matrix, Panels};
use crate::bail;
use crate::error::Result;
use crate::tensor::{DType, Quant, View};
use safetensors::Dtype;
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

/// A tensor as it is kept.
#[derive(Debug)]
pub struct Content<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its element type as the file has it.
    pub dtype: Dtype,
    /// Its shape, which for a quantized matrix the bytes do not show.
    pub shape: &'a [usize],
    /// Its format, if it is quantized.
    pub quant: Option<Quant>,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl Content<'_> {
    /// The name of its element type.
    pub fn type_name(&self) -> String {
        self.quant.map_or_else(|| self.dtype.to_string(), |quant| quant.name().to_string())
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// All tensors of a model, mapped and not yet read.
///
/// The files must not be truncated or overwritten while this, or a [`Tensor`] of it, lives; replacing a file by a
/// rename, or deleting it, is harmless.
#[derive(Debug)]
pub struct Checkpoint {
    catalog: Catalog,
    /// The contents of each file of the catalog.
    mappings: Vec<Arc<Mapping>>,
}

impl Checkpoint {
    /// Maps every weight file of `source` and checks every header.
    pub fn map(source: &Source) -> Result<Checkpoint> {
        let mut mappings = Vec::with_capacity(source.weights.len());
        let catalog = Catalog::read(source, |file, weights| {
            mappings.push(Arc::new(Mapping::of(file, weights.length, &weights.name)?));
            Ok(())
        })?;
        Ok(Checkpoint { catalog, mappings })
    }

    /// The tensor `name` with exactly `shape`, found with or without the `model.` prefix. A missing tensor, another
    /// shape or an element type that cannot be used is an error that names the tensor, the expectation and the find.
    ///
    /// Where both names are there, the prefixed one is meant.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let Some(entry) = self.find(name) else {
            bail!(Tensor, "{name}: missing from {}", self.place());
        };
        let place = || format!("{} in {}", Shown(&entry.name), self.catalog.files[entry.file].name);
        let dtype = match entry.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            _ => bail!(Tensor, "{}: expected F32, F16 or BF16, found {}", place(), entry.type_name()),
        };
        if entry.shape != shape {
            bail!(Tensor, "{}: expected shape {}, found {}", place(), Dims(shape), Dims(&entry.shape));
        }
        if shape.contains(&0) {
            bail!(Tensor, "{}: expected elements, found none (shape {})", place(), Dims(shape));
        }
        let (mapping, extent) = (self.mappings[entry.file].clone(), entry.extent.clone());
        Ok(Tensor { name: entry.name.clone(), dtype, shape: shape.to_vec(), mapping, extent })
    }

    /// As [`tensor`](Self::tensor), the matrix `name`, `[rows][inputs]`, which may also be quantized.
    pub fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Matrix> {
        let Some(entry) = self.find(name).filter(|entry| entry.packing.is_some()) else {
            return self.tensor(name, &shape).map(Matrix::Float);
        };
        if entry.dims() != shape {
            let file = &self.catalog.files[entry.file].name;
            let (expected, found) = (Dims(&shape), Dims(entry.dims()));
            bail!(Tensor, "{} in {file}: expected shape {expected}, found {found}", Shown(&entry.name));
        }
        Ok(Matrix::Panels(Panels::mapped(entry, self.mappings[entry.file].clone())))
    }

    /// Whether [`tensor`](Self::tensor) would find the name.
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Number of elements of all tensors, and their bytes. `instead` as for [`contents`](Self::contents).
    pub fn totals(&self, instead: &[Panels]) -> (u64, u64) {
        // The sums are bounded by the bits of the files.
        let add = |(elements, bytes), c: &Content<'_>| (elements + c.elements() as u64, bytes + c.bytes.len() as u64);
        self.contents(instead).iter().fold((0, 0), add)
    }

    /// All tensors in the order of their names. Those of `instead`, in the same order, take the place of the ones in the files.
    pub fn contents<'a>(&'a self, instead: &'a [Panels]) -> Vec<Content<'a>> {
        let mut entries: Vec<_> = self.catalog.entries.iter().collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let content = |e: &'a Entry| {
            let panels = instead.binary_search_by(|panels| panels.name().cmp(&e.name)).ok().map(|i| &instead[i]);
            Content {
                name: &e.name,
                dtype: e.dtype,
                shape: e.dims(),
                quant: panels.map(Panels::quant).or(e.packing.map(|packing| packing.quant)),
                bytes: panels.map_or_else(|| &self.mappings[e.file].bytes()[e.extent.clone()], Panels::bytes),
            }
        };
        entries.into_iter().map(content).collect()
    }

    /// Asks the kernel to read the mapped weights ahead.
    pub fn will_need(&self) {
        self.mappings.iter().for_each(|mapping| mapping.will_need());
    }

    fn find(&self, name: &str) -> Option<&Entry> {
        const PREFIX: &str = "model.";
        // lm_head lies beside the model, not in it, and has no prefix in any checkpoint.
        if name.starts_with("lm_head.") {
            return self.catalog.get(name);
        }
        let bare = name.strip_prefix(PREFIX).unwrap_or(name);
        self.catalog.get(&format!("{PREFIX}{bare}")).or_else(|| self.catalog.get(bare))
    }

    /// The weight files as a message names them.
    fn place(&self) -> String {
        match &self.catalog.files[..] {
            [] => "the model, which has no weight file".to_owned(),
            [only] => only.name.clone(),
            [first, .., last] => {
                format!("the {} shards {} to {}", self.catalog.files.len(), first.name, last.file_name)
            }
        }
    }
}
