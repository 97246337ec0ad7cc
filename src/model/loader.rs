//! Where the weights of a model come from: its checkpoint, quantized on the way if that is asked for, or repacked if GPTQ or AWQ
//! has quantized them.

use crate::checkpoint::{Checkpoint, Config, Matrix, PackedMatrix, Panels, Quantization, Tensor};
use crate::error::Result;
use crate::kernels::Kernels;
use crate::pool::Pool;
use crate::tensor::quant::PANEL_ROWS;
use crate::tensor::{AlignedBuffer, Quant};
use crate::{bail, err};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// What a matrix is for, which decides how far it may be quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A layer's linear map: as far as asked for.
    Layer,
    /// The embedding and the map to logits: INT8 at most, as every error there is an error of the logits.
    Vocabulary,
    /// The choice of experts: never, it is small and decides much.
    Router,
}

/// A source of weights.
pub struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    quantization: Option<&'a Quantization>,
    kernels: &'static Kernels,
    pool: &'a Pool,
    /// The format asked for.
    quant: Option<Quant>,
    /// What was quantized or repacked so far, by name: some matrices are asked for twice.
    made: RefCell<BTreeMap<String, Panels>>,
}

impl<'a> Loader<'a> {
    /// One that gives what `checkpoint` has, quantized to `quant` by the threads of `pool`.
    pub fn new(
        checkpoint: &'a Checkpoint,
        config: &'a Config,
        kernels: &'static Kernels,
        pool: &'a Pool,
        quant: Option<Quant>,
    ) -> Self {
        let quantization = config.quantization.as_ref();
        Loader { checkpoint, quantization, kernels, pool, quant, made: RefCell::default() }
    }

    /// All that was quantized or repacked, by name.
    pub fn made(self) -> Vec<Panels> {
        self.made.into_inner().into_values().collect()
    }

    /// As [`Checkpoint::contains`].
    pub fn contains(&self, name: &str) -> bool {
        self.checkpoint.contains(name)
    }

    /// As [`Checkpoint::tensor`].
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.checkpoint.tensor(name, shape)
    }

    /// The matrix `name`, `[rows][inputs]`, in the format that is asked for.
    pub fn matrix(&self, name: &str, shape: [usize; 2], purpose: Purpose) -> Result<Matrix> {
        let made = self.made.borrow().get(name).cloned().map(Matrix::Panels);
        if let Some(matrix) = made.filter(|matrix| matrix.shape() == shape) {
            return Ok(matrix);
        }
        if let Some(packed) = self.checkpoint.packed(name, shape, self.quantization)? {
            let quant = packed.quant();
            self.expect_bits(name, quant)?;
            return self.repacked(&packed, quant).map(Matrix::Panels);
        }
        let wanted = match purpose {
            Purpose::Layer => self.quant,
            Purpose::Vocabulary => self.quant.map(|_| Quant::Int8),
            Purpose::Router => None,
        };
        let matrix = self.checkpoint.matrix(name, shape)?;
        match (&matrix, wanted) {
            (Matrix::Float(tensor), Some(quant)) => return self.quantized(tensor, quant).map(Matrix::Panels),
            (Matrix::Panels(panels), Some(quant)) if panels.quant() != quant => {
                self.expect_bits(name, panels.quant())?
            }
            _ => {}
        }
        Ok(matrix)
    }

    /// An error if a matrix in the format `found` is not what was asked for.
    fn expect_bits(&self, name: &str, found: Quant) -> Result<()> {
        match self.quant {
            Some(asked) if asked.bits() != found.bits() => {
                let (found, asked) = (found.name(), asked.name());
                bail!(
                    Unsupported,
                    "{name}: the weights are {found} already; load them as they are instead of as {asked}"
                )
            }
            _ => Ok(()),
        }
    }

    /// `tensor` in the format `quant`, straight from where it is mapped.
    fn quantized(&self, tensor: &Tensor, quant: Quant) -> Result<Panels> {
        let inputs = tensor.shape()[1];
        let mut scratch = Vec::new();
        for _ in 0..self.pool.threads() {
            let mut values = AlignedBuffer::default();
            values.try_grow(PANEL_ROWS * inputs)?;
            scratch.push(Mutex::new(values));
        }
        let kernels = self.kernels;
        let write = |worker: usize, panel, out: &mut [u8]| {
            let mut values = scratch[worker].lock().unwrap_or_else(PoisonError::into_inner);
            widen_panel(kernels, tensor, panel, &mut values);
            kernels.quantize_panel(quant, &values, out)
        };
        let shape = [tensor.shape()[0], inputs];
        self.panels(tensor.name(), shape, quant, None, write, || unfit(tensor, quant))
    }

    /// `packed` in the format `quant`, which holds it, straight from where it is mapped.
    fn repacked(&self, packed: &PackedMatrix, quant: Quant) -> Result<Panels> {
        let write = |_, panel, out: &mut [u8]| packed.write_panel(quant, panel, out);
        self.panels(packed.name(), packed.shape(), quant, packed.order(), write, || packed.fault())
    }

    /// The matrix `name` as the threads of the pool `write(worker, panel, bytes)` it. Where that gives `false`, the error
    /// is what `fault` finds.
    fn panels(
        &self,
        name: &str,
        [rows, inputs]: [usize; 2],
        quant: Quant,
        order: Option<&[u32]>,
        write: impl Fn(usize, usize, &mut [u8]) -> bool + Sync,
        fault: impl Fn() -> crate::error::Error,
    ) -> Result<Panels> {
        let too_large = || err!(NoMemory, "{name}: {rows} × {inputs} weights exceed the address space");
        let panel_bytes = quant.panel_bytes(order.map_or(inputs, <[u32]>::len)).ok_or_else(too_large)?;
        let mut bytes = AlignedBuffer::default();
        bytes.try_grow(panel_bytes.checked_mul(rows.div_ceil(PANEL_ROWS)).ok_or_else(too_large)?)?;
        let good = AtomicBool::new(true);
        self.pool.step(|team| {
            team.rows(&mut bytes, panel_bytes, |worker, mut block| {
                for panel in block.rows() {
                    if !write(worker, panel, block.row(panel)) {
                        good.store(false, Ordering::Relaxed);
                    }
                }
            });
            Ok(())
        })?;
        if !good.into_inner() {
            return Err(fault());
        }
        let panels = Panels::new(name, [rows, inputs], quant, bytes, order)?;
        self.made.borrow_mut().insert(name.to_string(), panels.clone());
        Ok(panels)
    }
}

/// The rows of panel `panel` as f32, those that are not there as zeros.
fn widen_panel(kernels: &Kernels, tensor: &Tensor, panel: usize, values: &mut [f32]) {
    let (rows, inputs) = (tensor.shape()[0], tensor.shape()[1]);
    let row_bytes = inputs * tensor.dtype().size();
    for (i, values) in values.chunks_exact_mut(inputs).enumerate() {
        let row = panel * PANEL_ROWS + i;
        match row < rows {
            true => kernels.widen(tensor.dtype(), &tensor.bytes()[row * row_bytes..(row + 1) * row_bytes], values),
            false => values.fill(0.0),
        }
    }
}

/// Why `tensor` cannot be quantized: the first weight that is at fault.
fn unfit(tensor: &Tensor, quant: Quant) -> crate::error::Error {
    let inputs = tensor.shape()[1];
    let decode = |bytes| tensor.dtype().decode(bytes);
    let fault = tensor.bytes().chunks_exact(tensor.dtype().size()).map(decode).position(|value| !value.is_finite());
    let (name, quant) = (tensor.name(), quant.name());
    match fault {
        Some(at) => {
            let value = decode(&tensor.bytes()[at * tensor.dtype().size()..]);
            err!(Tensor, "{name}[{}][{}]: expected finite weights to quantize, found {value}", at / inputs, at % inputs)
        }
        None => err!(Tensor, "{name}: has weights beyond what {quant} with scales of 16 bits can hold"),
    }
}
