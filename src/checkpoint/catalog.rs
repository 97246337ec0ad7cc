//! Every tensor of a model's weight files, from their headers.

use super::Source;
use super::file::Opened;
use super::header::{Header, Shown};
use super::matrix::{Packing, is_order};
use super::packed::PER_WORD;
use super::source::weight_map;
use crate::error::Result;
use crate::{bail, err};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// What a header says of one tensor.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: Arc<str>,
    /// Which of the files.
    pub(super) file: usize,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Where in the file, from its first byte.
    pub(super) extent: Range<usize>,
    /// If it is a quantized matrix, stored as bytes.
    pub(super) packing: Option<Packing>,
}

impl Entry {
    /// Number of elements. The checks of the header and of the packing computed the same product without overflow.
    pub(super) fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// The shape of what is stored.
    pub(super) fn dims(&self) -> &[usize] {
        self.packing.as_ref().map_or(&self.shape, |packing| &packing.shape)
    }

    /// The element type of what is stored.
    pub(super) fn type_name(&self) -> String {
        self.packing.as_ref().map_or_else(|| self.dtype.to_string(), |packing| packing.quant.name().to_string())
    }
}

/// What a matrix of GPTQ or AWQ has instead of its `weight`.
const PACKED: [&str; 4] = ["qweight", "qzeros", "scales", "g_idx"];

/// The name beside `name` that ends with `suffix`: `layer.qweight` for `layer.weight`.
pub(super) fn packed_name(name: &str, suffix: &str) -> String {
    let stem = name.rsplit_once('.').map_or("", |(stem, _)| stem);
    format!("{stem}.{suffix}")
}

impl Entry {
    /// Number of weights, if GPTQ or AWQ has packed matrices to 4 bits or not.
    pub(super) fn weights(&self, packed: bool) -> usize {
        match self.name.rsplit_once('.') {
            Some((_, "qweight")) if packed => PER_WORD * self.elements(),
            Some((_, suffix)) if packed && PACKED.contains(&suffix) => 0,
            _ if is_order(&self.name, self.dtype) => 0,
            _ => self.elements(),
        }
    }

    /// The name of the matrix that this would be a part of, if GPTQ or AWQ has quantized it.
    pub(super) fn packed_weight(&self) -> Option<String> {
        let (_, suffix) = self.name.rsplit_once('.')?;
        PACKED.contains(&suffix).then(|| packed_name(&self.name, "weight"))
    }
}

/// A weight file.
#[derive(Debug)]
pub(super) struct WeightFile {
    /// As messages name it.
    pub(super) name: String,
    /// As the index names it.
    pub(super) file_name: String,
    /// Bytes.
    pub(super) length: u64,
}

/// The weight files of a model and their tensors, no name twice.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    pub(super) files: Vec<WeightFile>,
    /// By file, and in the order of the data within a file.
    pub(super) entries: Vec<Entry>,
    index: HashMap<Arc<str>, usize>,
}

impl Catalog {
    /// Reads and checks every header of `source`. Each file goes to `visit` while it is open.
    pub(super) fn read(source: &Source, mut visit: impl FnMut(Opened, &WeightFile) -> Result<()>) -> Result<Catalog> {
        let mut catalog = Catalog::default();
        for file in &source.weights {
            let (name, file_name) = (file.name.clone(), file.file_name.clone());
            let opened = file.open("a SafeTensors file")?;
            let length = opened.length().map_err(|e| err!(Io, "{name}: cannot be examined: {e}"))?;
            let header = Header::read(opened.reader(0), length).map_err(|e| e.at(&name))?;
            let weights = WeightFile { name, file_name, length };
            visit(opened, &weights)?;
            catalog.add(weights, header)?;
        }
        catalog.check_index(source)?;
        Ok(catalog)
    }

    /// The entry of exactly this name.
    pub(super) fn get(&self, name: &str) -> Option<&Entry> {
        self.index.get(name).map(|&i| &self.entries[i])
    }

    fn add(&mut self, weights: WeightFile, header: Header) -> Result<()> {
        for (name, info) in header.tensors {
            let name: Arc<str> = name.into();
            if let Some(other) = self.get(&name) {
                let other = &self.files[other.file].name;
                bail!(Format, "{}: tensor {}: is also in {other}", weights.name, Shown(&name));
            }
            self.index.insert(name.clone(), self.entries.len());
            let extent = header.data_start + info.data_offsets.0..header.data_start + info.data_offsets.1;
            let packing = Packing::of(&name, &info, &header.metadata).map_err(|e| e.at(&weights.name))?;
            let (file, TensorInfo { dtype, shape, .. }) = (self.files.len(), info);
            self.entries.push(Entry { name, file, dtype, shape, extent, packing });
        }
        self.files.push(weights);
        Ok(())
    }

    /// Checks that each tensor of the index is in the shard that the index names.
    fn check_index(&self, source: &Source) -> Result<()> {
        let Some(index) = &source.index else { return Ok(()) };
        for (tensor, shard) in weight_map(index)? {
            let found = match self.get(&tensor).map(|entry| &self.files[entry.file].file_name) {
                Some(name) if *name == shard => continue,
                Some(name) => format!("in {name}"),
                None => "in none of the shards".to_owned(),
            };
            let (tensor, shard) = (Shown(&tensor), Shown(&shard));
            bail!(Format, "{}: tensor {tensor}: expected in {shard}, found {found}", index.name);
        }
        Ok(())
    }
}
