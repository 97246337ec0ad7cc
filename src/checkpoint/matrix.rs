//! Weight matrices: as the checkpoint stores them, or quantized.

use super::catalog::Entry;
use super::header::{Dims, Shown};
use super::safetensors::Tensor;
use super::storage::Storage;
use crate::error::Result;
use crate::tensor::quant::{LAYOUT_VERSION, PANEL_ROWS};
use crate::tensor::{AlignedBuffer, Quant};
use crate::{bail, err};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The key of [`LAYOUT_VERSION`] in `__metadata__` of a file that has quantized matrices.
pub const LAYOUT_KEY: &str = "rie.layout";

/// The key in `__metadata__` of what the matrix `name` is.
pub fn packing_key(name: &str) -> String {
    format!("rie.{name}")
}

/// The value of that key: "INT4 576 1536".
pub fn packing_value(quant: Quant, rows: usize, inputs: usize) -> String {
    format!("{} {rows} {inputs}", quant.name())
}

/// What a matrix stored as bytes, `[panels][bytes of a panel]`, is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packing {
    pub(super) quant: Quant,
    /// Rows and inputs.
    pub(super) shape: [usize; 2],
}

impl Packing {
    /// As `metadata` has it of the tensor `name`; `None` if it is not quantized.
    pub(super) fn of(name: &str, info: &TensorInfo, metadata: &BTreeMap<String, String>) -> Result<Option<Packing>> {
        let key = packing_key(name);
        let Some(text) = metadata.get(&key).filter(|_| key != LAYOUT_KEY) else { return Ok(None) };
        let fault = |what: String| err!(Format, "tensor {}: {what}", Shown(name));
        match metadata.get(LAYOUT_KEY).map(String::as_str) {
            Some(version) if version.parse() == Ok(LAYOUT_VERSION) => {}
            Some(version) => bail!(
                Unsupported,
                "{LAYOUT_KEY} in __metadata__: this library reads layout version {LAYOUT_VERSION} of quantized weights, found {}",
                Shown(version)
            ),
            None => return Err(fault(format!("quantized, but __metadata__ has no {LAYOUT_KEY}"))),
        }
        let packing = Packing::parse(text).ok_or_else(|| {
            fault(format!("__metadata__: expected INT8 or INT4, rows and inputs, found \"{}\"", Shown(text)))
        })?;
        let [rows, inputs] = packing.shape;
        let expected = packing.quant.panel_bytes(inputs).map(|bytes| [rows.div_ceil(PANEL_ROWS), bytes]);
        if info.dtype != Dtype::U8 || expected.is_none_or(|expected| info.shape != expected) {
            let (expected, found) = (expected.unwrap_or_default(), Dims(&info.shape));
            return Err(fault(format!("{text}: expected U8 {}, found {} {found}", Dims(&expected), info.dtype)));
        }
        Ok(Some(packing))
    }

    /// Reads what [`packing_value`] writes.
    fn parse(text: &str) -> Option<Packing> {
        let mut words = text.split(' ');
        let name = words.next()?;
        let quant = Quant::ALL.into_iter().find(|quant| quant.name() == name)?;
        let shape = [words.next()?.parse().ok()?, words.next()?.parse().ok()?];
        (words.next().is_none() && !shape.contains(&0)).then_some(Packing { quant, shape })
    }
}

/// Rows of a quantized matrix. Keeps its memory alive; cloning is cheap.
#[derive(Clone, Debug)]
pub struct Panels {
    name: Arc<str>,
    quant: Quant,
    inputs: usize,
    /// Which rows of the panels these are.
    rows: Range<usize>,
    bytes: Bytes,
}

#[derive(Clone, Debug)]
enum Bytes {
    Stored(Arc<Storage>, Range<usize>),
    Made(Arc<AlignedBuffer<u8>>),
}

impl Panels {
    /// A quantized matrix of a file.
    pub(super) fn stored(entry: &Entry, storage: Arc<Storage>, extent: Range<usize>) -> Panels {
        let Packing { quant, shape: [rows, inputs] } = entry.packing.expect("the caller found one");
        let bytes = Bytes::Stored(storage, extent);
        Panels { name: entry.name.clone(), quant, inputs, rows: 0..rows, bytes }
    }

    /// The panels of all rows of `tensor`, which somebody has quantized.
    ///
    /// # Panics
    /// If there are not as many bytes as that takes.
    pub fn new(tensor: &Tensor, quant: Quant, bytes: AlignedBuffer<u8>) -> Panels {
        let (rows, inputs) = (tensor.shape()[0], tensor.shape()[1]);
        assert_eq!(quant.panel_bytes(inputs).map(|panel| panel * rows.div_ceil(PANEL_ROWS)), Some(bytes.len()));
        Panels { name: tensor.name().into(), quant, inputs, rows: 0..rows, bytes: Bytes::Made(Arc::new(bytes)) }
    }

    /// The name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The format.
    pub fn quant(&self) -> Quant {
        self.quant
    }

    /// The bytes of all panels.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Stored(storage, extent) => &storage.bytes()[extent.clone()],
            Bytes::Made(bytes) => bytes,
        }
    }

    /// The panels that have the rows `rows`, and how many rows before them the first panel has.
    ///
    /// # Panics
    /// If they leave the matrix.
    pub fn panels(&self, rows: Range<usize>) -> (&[u8], usize) {
        assert!(rows.start <= rows.end && rows.end <= self.rows.len(), "rows {rows:?} of {:?}", self.rows);
        let (start, end) = (self.rows.start + rows.start, self.rows.start + rows.end);
        let bytes = self.quant.panel_bytes(self.inputs).expect("there are such panels");
        let panels = start / PANEL_ROWS..end.div_ceil(PANEL_ROWS);
        (&self.bytes()[panels.start * bytes..panels.end * bytes], start % PANEL_ROWS)
    }

    /// Row `row` as f32.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        let (panel, before) = self.panels(row..row + 1);
        self.quant.decode_row(panel, before, out);
    }
}

/// A weight matrix, `[rows][inputs]`.
#[derive(Clone, Debug)]
pub enum Matrix {
    /// As stored.
    Float(Tensor),
    /// Quantized.
    Panels(Panels),
}

impl Matrix {
    /// The name in the file.
    pub fn name(&self) -> &str {
        match self {
            Matrix::Float(tensor) => tensor.name(),
            Matrix::Panels(panels) => panels.name(),
        }
    }

    /// Rows and inputs.
    pub fn shape(&self) -> [usize; 2] {
        match self {
            Matrix::Float(tensor) => [tensor.shape()[0], tensor.shape()[1]],
            Matrix::Panels(panels) => [panels.rows.len(), panels.inputs],
        }
    }

    /// The rows `range`, sharing the memory.
    ///
    /// # Panics
    /// If the range leaves the rows.
    pub fn rows(&self, range: Range<usize>) -> Matrix {
        match self {
            Matrix::Float(tensor) => Matrix::Float(tensor.rows(range)),
            Matrix::Panels(panels) => {
                assert!(range.start <= range.end && range.end <= panels.rows.len(), "{range:?} of {:?}", panels.rows);
                let rows = panels.rows.start + range.start..panels.rows.start + range.end;
                Matrix::Panels(Panels { rows, ..panels.clone() })
            }
        }
    }
}
