//! Weight matrices: as the checkpoint stores them, or quantized.

use super::header::{Dims, Shown};
use super::packed::{GAP, Words};
use super::safetensors::{Content, Tensor};
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

/// The name of the tensor that has the order of the inputs of the matrix `name`: I32, the input at each place, −1 at a gap.
pub(super) fn order_name(name: &str) -> String {
    format!("{name}.order")
}

/// Whether a tensor is such an order, and no weights.
pub(super) fn is_order(name: &str, dtype: Dtype) -> bool {
    dtype == Dtype::I32 && name.ends_with(".weight.order")
}

/// What a matrix stored as bytes, `[panels][bytes of a panel]`, is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Its format.
    pub quant: Quant,
    /// Rows and inputs.
    pub shape: [usize; 2],
    /// Places of a row in a panel, if the inputs do not lie there as they are numbered.
    pub places: Option<usize>,
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
            let formats = Quant::ALL.map(Quant::name).join(" or ");
            fault(format!("__metadata__: expected {formats}, rows and inputs, found \"{}\"", Shown(text)))
        })?;
        let [rows, inputs] = packing.shape;
        let panel_bytes = packing.quant.panel_bytes(packing.places.unwrap_or(inputs));
        let expected = panel_bytes.map(|bytes| [rows.div_ceil(PANEL_ROWS), bytes]);
        if info.dtype != Dtype::U8 || expected.is_none_or(|expected| info.shape != expected) {
            let (expected, found) = (expected.unwrap_or_default(), Dims(&info.shape));
            return Err(fault(format!("{text}: expected U8 {}, found {} {found}", Dims(&expected), info.dtype)));
        }
        Ok(Some(packing))
    }

    /// The value of [`packing_key`]: "INT4 576 1536", and behind it the places if there are.
    pub fn value(&self) -> String {
        let (name, [rows, inputs]) = (self.quant.name(), self.shape);
        let places = self.places.map_or(String::new(), |places| format!(" {places}"));
        format!("{name} {rows} {inputs}{places}")
    }

    /// Reads what [`value`](Self::value) writes.
    fn parse(text: &str) -> Option<Packing> {
        let mut words = text.split(' ');
        let name = words.next()?;
        let quant = Quant::ALL.into_iter().find(|quant| quant.name() == name)?;
        let shape = [words.next()?.parse().ok()?, words.next()?.parse().ok()?];
        let places = words.next().map(str::parse).transpose().ok()?;
        let whole = words.next().is_none() && !shape.contains(&0) && places.is_none_or(|places| places >= shape[1]);
        whole.then_some(Packing { quant, shape, places })
    }
}

/// Rows of a quantized matrix. Keeps its memory alive; cloning is cheap.
#[derive(Clone, Debug)]
pub struct Panels {
    name: Arc<str>,
    packing: Packing,
    /// Which rows of the panels these are.
    rows: Range<usize>,
    bytes: Bytes,
    /// As many words as there are places.
    order: Option<Order>,
}

/// In which order panels have the inputs.
#[derive(Clone, Debug)]
struct Order {
    name: Arc<str>,
    /// The input at each place, or [`GAP`], as little-endian words.
    bytes: Bytes,
    /// Number of places.
    shape: [usize; 1],
}

#[derive(Clone, Debug)]
enum Bytes {
    Stored(Arc<Storage>, Range<usize>),
    Made(Arc<AlignedBuffer<u8>>),
}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Bytes::Stored(storage, extent) => &storage.bytes()[extent.clone()],
            Bytes::Made(bytes) => bytes,
        }
    }
}

impl Panels {
    /// A quantized matrix of a file, and the order of its inputs if it has one.
    pub(super) fn stored(
        packing: Packing,
        name: Arc<str>,
        (storage, extent): (Arc<Storage>, Range<usize>),
        order: Option<Words>,
    ) -> Panels {
        let order = order.map(|words| {
            let shape = [words.width];
            Order { name: words.name, bytes: Bytes::Stored(words.storage, words.extent), shape }
        });
        Panels { name, packing, rows: 0..packing.shape[0], bytes: Bytes::Stored(storage, extent), order }
    }

    /// The panels of all rows of the matrix `name`, which somebody has made, with the inputs in this order if there is one.
    ///
    /// # Panics
    /// If there are not as many bytes as that takes.
    pub fn new(
        name: &str,
        shape: [usize; 2],
        quant: Quant,
        bytes: AlignedBuffer<u8>,
        order: Option<&[u32]>,
    ) -> Result<Panels> {
        let packing = Packing { quant, shape, places: order.map(<[u32]>::len) };
        let panel_bytes = quant.panel_bytes(packing.places.unwrap_or(shape[1]));
        assert_eq!(panel_bytes.map(|panel| panel * shape[0].div_ceil(PANEL_ROWS)), Some(bytes.len()));
        let made = |bytes| Bytes::Made(Arc::new(bytes));
        let order = match order {
            None => None,
            Some(places) => {
                let mut bytes = AlignedBuffer::default();
                bytes.try_grow(size_of_val(places))?;
                bytes.as_chunks_mut::<4>().0.iter_mut().zip(places).for_each(|(to, input)| *to = input.to_le_bytes());
                Some(Order { name: order_name(name).into(), bytes: made(bytes), shape: [places.len()] })
            }
        };
        Ok(Panels { name: name.into(), packing, rows: 0..shape[0], bytes: made(bytes), order })
    }

    /// The name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The format.
    pub fn quant(&self) -> Quant {
        self.packing.quant
    }

    /// The input at each place of a panel, or [`GAP`]; `None` = as they are numbered.
    pub fn order(&self) -> Option<impl Iterator<Item = u32>> {
        let order = self.order.as_ref()?;
        Some(order.bytes.get().as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)))
    }

    /// What a file of them has: the bytes of all panels, and the order.
    pub(super) fn contents(&self) -> impl Iterator<Item = Content<'_>> {
        let panels = Content {
            name: &self.name,
            dtype: Dtype::U8,
            shape: &self.packing.shape,
            packing: Some(self.packing),
            bytes: self.bytes.get(),
        };
        let order = self.order.as_ref().map(|order| Content {
            name: &order.name,
            dtype: Dtype::I32,
            shape: &order.shape,
            packing: None,
            bytes: order.bytes.get(),
        });
        std::iter::once(panels).chain(order)
    }

    /// The panels that have the rows `rows`, and how many rows before them the first panel has.
    ///
    /// # Panics
    /// If they leave the matrix.
    pub fn panels(&self, rows: Range<usize>) -> (&[u8], usize) {
        assert!(rows.start <= rows.end && rows.end <= self.rows.len(), "rows {rows:?} of {:?}", self.rows);
        let (start, end) = (self.rows.start + rows.start, self.rows.start + rows.end);
        let Packing { quant, shape, places } = self.packing;
        let bytes = quant.panel_bytes(places.unwrap_or(shape[1])).expect("there are such panels");
        let panels = start / PANEL_ROWS..end.div_ceil(PANEL_ROWS);
        (&self.bytes.get()[panels.start * bytes..panels.end * bytes], start % PANEL_ROWS)
    }

    /// Row `row` as f32.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        let (panel, before) = self.panels(row..row + 1);
        let Some(order) = self.order() else { return self.packing.quant.decode_row(panel, before, out) };
        let mut places = vec![0.0; self.packing.places.unwrap_or(0)];
        self.packing.quant.decode_row(panel, before, &mut places);
        order.zip(places).filter(|(input, _)| *input != GAP).for_each(|(input, weight)| out[input as usize] = weight);
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
            Matrix::Panels(panels) => [panels.rows.len(), panels.packing.shape[1]],
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
