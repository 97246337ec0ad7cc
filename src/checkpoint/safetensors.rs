//! SafeTensors files, mapped or read: tensors by their Hugging Face names.

use super::catalog::{Catalog, Entry, packed_name};
use super::file::Opened;
use super::header::{Dims, Shown};
use super::matrix::{Matrix, Packing, Panels, is_order, order_name};
use super::packed::{GAP, PackedMatrix, Parts, Words};
use super::storage::Storage;
use super::{Quantization, Source};
use crate::bail;
use crate::error::Result;
use crate::memory;
use crate::tensor::{DType, View};
use safetensors::Dtype;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A two- or one-dimensional tensor of a file. Keeps its bytes alive; cloning is cheap.
///
/// A mapped file must not be truncated while this lives: reading a page that the file no longer has ends the process.
#[derive(Clone, Debug)]
pub struct Tensor {
    name: Arc<str>,
    dtype: DType,
    shape: Vec<usize>,
    storage: Arc<Storage>,
    /// Where the bytes lie in the storage: within it, and as long as the shape says.
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
        &self.storage.bytes()[self.extent.clone()]
    }

    /// A strided view of the whole tensor.
    pub fn view(&self) -> View<'_> {
        View::contiguous(self.bytes(), self.dtype, &self.shape).expect("the header's check compared shape and extent")
    }

    /// Rows `range` along the first dimension, sharing the bytes.
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
    /// What it is, if it is quantized.
    pub packing: Option<Packing>,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl Content<'_> {
    /// The name of its element type.
    pub fn type_name(&self) -> String {
        self.packing.map_or_else(|| self.dtype.to_string(), |packing| packing.quant.name().to_string())
    }

    /// Number of weights.
    pub fn weights(&self) -> usize {
        weights(self.name, self.dtype, self.shape)
    }
}

/// Number of weights of a tensor.
fn weights(name: &str, dtype: Dtype, shape: &[usize]) -> usize {
    if is_order(name, dtype) { 0 } else { shape.iter().product() }
}

/// How the weights of files come into memory. Those that are in the host's memory are used there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Files are mapped, and read by the system as they are needed.
    #[default]
    Map,
    /// Each tensor is read when it is asked for; the files may change once the model is loaded.
    Read,
}

/// The data of one weight file.
#[derive(Debug)]
enum Data {
    /// All of it, where it is.
    InPlace(Arc<Storage>),
    /// Still to be read, tensor by tensor.
    ToRead(Opened),
    /// What the model has of it was read.
    Read,
}

/// What was done with the tensors so far.
#[derive(Debug, Default)]
struct Requests {
    /// Names that were asked for and found.
    asked: BTreeSet<Arc<str>>,
    /// Tensors that were read, by name, as long as somebody has them.
    lent: BTreeMap<Arc<str>, Weak<Storage>>,
}

/// All tensors of a model.
///
/// Mapped files must not be truncated or overwritten while this, or a [`Tensor`] of it, lives; replacing a file by a
/// rename, or deleting it, is harmless.
#[derive(Debug)]
pub struct Checkpoint {
    catalog: Catalog,
    /// For each file of the catalog.
    files: Vec<Data>,
    requests: Mutex<Requests>,
    /// The tensors read that belong to the model, by name; complete once it is [`settled`](Self::settle).
    pub(super) kept: BTreeMap<Arc<str>, Arc<Storage>>,
}

impl Checkpoint {
    /// Opens every weight file of `source` and checks every header.
    pub fn open(source: &Source, access: Access) -> Result<Checkpoint> {
        let mut files = Vec::with_capacity(source.weights.len());
        let catalog = Catalog::read(source, |file, weights| {
            files.push(match (access, &file) {
                (Access::Read, Opened::Part(_)) => Data::ToRead(file),
                _ => Data::InPlace(Arc::new(Storage::in_place(&file, weights.length, &weights.name)?)),
            });
            Ok(())
        })?;
        Ok(Checkpoint { catalog, files, requests: Mutex::default(), kept: BTreeMap::new() })
    }

    /// The bytes of a tensor: where they are, or read now if nobody has them.
    fn storage(&self, entry: &Entry) -> Result<(Arc<Storage>, Range<usize>)> {
        let mut requests = self.requests();
        requests.asked.insert(entry.name.clone());
        let file = match &self.files[entry.file] {
            Data::InPlace(storage) => return Ok((storage.clone(), entry.extent.clone())),
            Data::ToRead(file) => file,
            Data::Read => bail!(Internal, "{}: asked for after the load", entry.name),
        };
        let whole = 0..entry.extent.len();
        if let Some(lent) = requests.lent.get(&entry.name).and_then(Weak::upgrade) {
            return Ok((lent, whole));
        }
        let name = || format!("{} in {}", Shown(&entry.name), self.catalog.files[entry.file].name);
        let storage = Arc::new(Storage::read(file, entry.extent.clone(), name)?);
        requests.lent.insert(entry.name.clone(), Arc::downgrade(&storage));
        Ok((storage, whole))
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the load: what belongs to the model and is still to be read is read, except the tensors that `instead`
    /// replaces, and the files are closed. Nothing can be asked for afterwards.
    pub fn settle(&mut self, instead: &[Panels]) -> Result<()> {
        let mut kept = BTreeMap::new();
        for entry in self.stored(instead).filter(|entry| matches!(self.files[entry.file], Data::ToRead(_))) {
            kept.insert(entry.name.clone(), self.storage(entry)?.0);
        }
        self.kept = kept;
        self.files.iter_mut().filter(|data| matches!(data, Data::ToRead(_))).for_each(|data| *data = Data::Read);
        Ok(())
    }

    /// Names of the tensors that nobody has asked for.
    pub fn unused(&self) -> Vec<&str> {
        let requests = self.requests();
        let names = self.catalog.entries.iter().map(|entry| &entry.name);
        names.filter(|name| !requests.asked.contains(*name)).map(|name| &**name).collect()
    }

    /// The tensor `name` with exactly `shape`, found with or without the `model.` prefix. A missing tensor, another
    /// shape or an element type that cannot be used is an error that names the tensor, the expectation and the find.
    ///
    /// Where both names are there, the prefixed one is meant.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let (entry, dtype) = self.checked(name, shape, "F32, F16 or BF16", float)?;
        let (storage, extent) = self.storage(entry)?;
        Ok(Tensor { name: entry.name.clone(), dtype, shape: shape.to_vec(), storage, extent })
    }

    /// The entry `name` of exactly `shape`, and what `accepted`, which `expected` describes, makes of its element type.
    fn checked<T>(
        &self,
        name: &str,
        shape: &[usize],
        expected: &str,
        accepted: impl Fn(Dtype) -> Option<T>,
    ) -> Result<(&Entry, T)> {
        let Some(entry) = self.find(name) else {
            bail!(Tensor, "{name}: missing from {}", self.place());
        };
        let place = || format!("{} in {}", Shown(&entry.name), self.catalog.files[entry.file].name);
        let Some(dtype) = accepted(entry.dtype) else {
            bail!(Tensor, "{}: expected {expected}, found {}", place(), entry.type_name());
        };
        if entry.shape != shape {
            bail!(Tensor, "{}: expected shape {}, found {}", place(), Dims(shape), Dims(&entry.shape));
        }
        if shape.contains(&0) {
            bail!(Tensor, "{}: expected elements, found none (shape {})", place(), Dims(shape));
        }
        Ok((entry, dtype))
    }

    /// Words of 32 bits, in rows as long as the last dimension of `shape`.
    fn words(&self, name: &str, shape: &[usize]) -> Result<Words> {
        let (entry, ()) = self.checked(name, shape, "I32", |dtype| (dtype == Dtype::I32).then_some(()))?;
        let (storage, extent) = self.storage(entry)?;
        Ok(Words { name: entry.name.clone(), storage, extent, width: shape.last().copied().unwrap_or(1) })
    }

    /// As [`tensor`](Self::tensor), the matrix `name`, `[rows][inputs]`, which may also be quantized.
    pub fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Matrix> {
        let quantized = self.find(name).and_then(|entry| Some((entry, entry.packing?)));
        let Some((entry, packing)) = quantized else { return self.tensor(name, &shape).map(Matrix::Float) };
        if packing.shape != shape {
            let file = &self.catalog.files[entry.file].name;
            let (expected, found) = (Dims(&shape), Dims(&packing.shape));
            bail!(Tensor, "{} in {file}: expected shape {expected}, found {found}", Shown(&entry.name));
        }
        let order = packing.places.map(|places| self.order(&entry.name, places, shape[1])).transpose()?;
        Ok(Matrix::Panels(Panels::stored(packing, entry.name.clone(), self.storage(entry)?, order)))
    }

    /// What has the order of the inputs of the matrix `name`: each of them once.
    fn order(&self, name: &str, places: usize, inputs: usize) -> Result<Words> {
        let order = self.words(&order_name(name), &[places])?;
        let mut seen = memory::filled(false, inputs)?;
        for (place, input) in order.all().enumerate().filter(|(_, input)| *input != GAP) {
            if seen.get(input as usize).is_none_or(|&seen| seen) {
                let input = input as i32;
                bail!(Tensor, "{}[{place}]: expected each of {inputs} inputs once, or -1, found {input}", order.name);
            }
            seen[input as usize] = true;
        }
        if let Some(input) = seen.iter().position(|seen| !seen) {
            bail!(Tensor, "{}: expected each of {inputs} inputs once, {input} is missing", order.name);
        }
        Ok(order)
    }

    /// The matrix `name`, `[rows][inputs]`, as GPTQ or AWQ stores it; `None` if it is not stored so.
    pub fn packed(
        &self,
        name: &str,
        shape: [usize; 2],
        quantization: Option<&Quantization>,
    ) -> Result<Option<PackedMatrix>> {
        let part = |suffix| packed_name(name, suffix);
        let Some(codes) = self.find(&part("qweight")).filter(|_| self.find(name).is_none()) else { return Ok(None) };
        let place = || format!("{} in {}", Shown(&codes.name), self.catalog.files[codes.file].name);
        let Some(quantization) = quantization else {
            bail!(Config, "{}: quantized, but config.json has no quantization_config", place());
        };
        let name = packed_name(&codes.name, "weight");
        let shapes = PackedMatrix::shapes(&name, shape, quantization)?;
        let has_groups = quantization.desc_act || self.find(&part("g_idx")).is_some();
        let g_idx = has_groups.then(|| self.words(&part("g_idx"), &[shape[1]])).transpose()?;
        let parts = Parts {
            codes: self.words(&part("qweight"), &shapes.codes)?,
            zeros: self.words(&part("qzeros"), &shapes.zeros)?,
            scales: self.tensor(&part("scales"), &shapes.scales)?,
            g_idx,
        };
        PackedMatrix::new(name, shape, quantization, parts).map(Some)
    }

    /// Whether there is something of this name, or, if it is the name of a matrix, that matrix as GPTQ or AWQ stores it.
    pub fn contains(&self, name: &str) -> bool {
        let packed = || name.ends_with(".weight") && self.find(&packed_name(name, "qweight")).is_some();
        self.find(name).is_some() || packed()
    }

    /// Number of weights of all tensors, and their bytes. `instead` as for [`contents`](Self::contents).
    pub fn totals(&self, instead: &[Panels]) -> (u64, u64) {
        // The sums are bounded by the bits of the files.
        let stored = self.stored(instead).map(|e| (weights(&e.name, e.dtype, e.dims()), e.extent.len()));
        let made = instead.iter().flat_map(Panels::contents).map(|c| (c.weights(), c.bytes.len()));
        stored.chain(made).fold((0, 0), |(sum, all), (weights, bytes)| (sum + weights as u64, all + bytes as u64))
    }

    /// All tensors in the order of their names. The matrices `instead`, in the same order, take the place of what the files have
    /// of them. Tensors that are read have their bytes once the load is [`settled`](Self::settle).
    pub fn contents<'a>(&'a self, instead: &'a [Panels]) -> Vec<Content<'a>> {
        let stored = self.stored(instead).map(|e| Content {
            name: &e.name,
            dtype: e.dtype,
            shape: e.dims(),
            packing: e.packing,
            bytes: self.bytes(e),
        });
        let mut contents: Vec<_> = stored.chain(instead.iter().flat_map(Panels::contents)).collect();
        contents.sort_by(|a, b| a.name.cmp(b.name));
        contents
    }

    /// The tensors whose place nothing of `instead` takes.
    fn stored(&self, instead: &[Panels]) -> impl Iterator<Item = &Entry> {
        let made = move |name: &str| instead.binary_search_by(|panels| panels.name().cmp(name)).is_ok();
        let replaced = move |e: &&Entry| {
            let matrix = e.packed_weight();
            made(e.name.strip_suffix(".order").unwrap_or(&e.name)) || matrix.is_some_and(|matrix| made(&matrix))
        };
        self.catalog.entries.iter().filter(move |e| !replaced(e))
    }

    fn bytes(&self, entry: &Entry) -> &[u8] {
        match &self.files[entry.file] {
            Data::InPlace(storage) => &storage.bytes()[entry.extent.clone()],
            _ => self.kept.get(&entry.name).map_or(&[], |storage| storage.bytes()),
        }
    }

    /// Asks the kernel to read mapped weights ahead.
    pub fn will_need(&self) {
        for file in &self.files {
            if let Data::InPlace(storage) = file {
                storage.will_need();
            }
        }
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

/// An element type that weights can be used in.
fn float(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::BF16),
        _ => None,
    }
}
