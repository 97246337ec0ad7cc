//! Linear layers over weights in any stored format: `y = W·x + b`.

use super::{Exec, add_row, each_row};
use crate::bail;
use crate::checkpoint::{Matrix, Panels, Tensor};
use crate::error::Result;
use crate::kernels::{
    Activation, CodeGroup, GEMV_TOKENS, GROUP_ROWS, GemmScratch, PANEL_TOKENS, TILE_ROWS, TILE_TOKENS, k_blocks,
    packed_len, threes,
};
use crate::memory;
use crate::tensor::AlignedBuffer;
use crate::tensor::quant::{GROUP, PANEL_ROWS};
use std::ops::Range;

/// Rows that are handed to a thread together.
const GRAIN_ROWS: usize = 4 * TILE_ROWS;

/// Buffers for the input of a product.
#[derive(Debug, Default)]
pub struct Packed {
    /// As the tile kernel reads it.
    floats: AlignedBuffer<f32>,
    /// As the kernels of quantized weights read it.
    codes: AlignedBuffer<CodeGroup>,
}

/// One or several matrices with a common input, their outputs side by side: `[outputs][inputs]` each, as stored.
#[derive(Debug)]
pub struct Linear {
    parts: Vec<Part>,
    inputs: usize,
    outputs: usize,
    /// Empty, or one value per output.
    bias: Vec<f32>,
    /// In which orders quantized parts take the inputs.
    orders: Vec<Order>,
}

#[derive(Debug)]
struct Part {
    matrix: Matrix,
    /// Which of the orders, if it is quantized.
    order: usize,
}

/// An order of inputs, and where the codes of inputs in that order are.
#[derive(Debug)]
struct Order {
    /// The input at each place, beyond all inputs at a gap; `None` = as they are numbered.
    places: Option<Vec<u32>>,
    /// Its groups among those of all orders of one row of `x`.
    groups: Range<usize>,
}

impl Linear {
    /// Joins matrices `[outputs][inputs]` and their biases. All have the same number of inputs, all or none a bias.
    pub fn new(matrices: Vec<Matrix>, biases: &[Tensor]) -> Result<Linear> {
        let inputs = matrices.first().map_or(0, |p| p.shape()[1]);
        if let Some(odd) = matrices.iter().find(|p| p.shape()[1] != inputs) {
            bail!(Tensor, "{}: expected {inputs} inputs, found {:?}", odd.name(), odd.shape());
        }
        let outputs = matrices.iter().map(|p| p.shape()[0]).sum();
        let mut bias = memory::with_room(if biases.is_empty() { 0 } else { outputs })?;
        for part in biases {
            bias.extend(part.view().to_f32()?);
        }
        let (mut orders, mut parts) = (Vec::<Order>::new(), memory::with_room(matrices.len())?);
        for matrix in matrices {
            let order = match &matrix {
                Matrix::Float(_) => 0,
                Matrix::Panels(panels) => {
                    let places = panels.order().map(memory::collected).transpose()?;
                    orders.iter().position(|order| order.places == places).unwrap_or_else(|| {
                        let start = orders.last().map_or(0, |order| order.groups.end);
                        let groups = places.as_ref().map_or(inputs, Vec::len).div_ceil(GROUP);
                        orders.push(Order { places, groups: start..start + groups });
                        orders.len() - 1
                    })
                }
            };
            parts.push(Part { matrix, order });
        }
        Ok(Linear { parts, inputs, outputs, bias, orders })
    }

    /// Width of `x`.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Width of `y`.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Applies the layer to each row of `x`, `[n][inputs]`, giving `out`, `[n][outputs]`. `packed` is a buffer.
    pub fn apply(&self, exec: &Exec<'_>, x: &[f32], packed: &mut Packed, out: &mut [f32]) {
        self.apply_after(exec, |_| (), x, packed, out);
    }

    /// [`apply`](Self::apply), where each worker of the team first does `prepare(worker)` if there is one row only.
    pub fn apply_after(
        &self,
        exec: &Exec<'_>,
        prepare: impl Fn(usize) + Sync,
        x: &[f32],
        packed: &mut Packed,
        out: &mut [f32],
    ) {
        let n = x.len() / self.inputs;
        let inputs = self.read(exec, x, packed);
        exec.team.columns(out, self.outputs, GRAIN_ROWS, |worker, mut block| {
            let columns = block.columns();
            if n == 1 && columns.len() > GRAIN_ROWS {
                prepare(worker); // with the worker's fixed range, not with each piece of the shared tail
            }
            let scratch = &mut *exec.scratch(worker);
            for (part, rows, first) in self.cut(columns.clone()) {
                let input = inputs.of(part);
                for group in pieces(rows.clone(), input.step()) {
                    let at = first + group.start - rows.start - columns.start;
                    let product = Product::new(input, &part.matrix, group);
                    if product.is_plain_row() {
                        let out = &mut block.row(0)[at..at + product.len()];
                        product.compute(exec, &mut scratch.gemm, out);
                        continue;
                    }
                    let products = scratch.products.grown(product.buffer_len());
                    product.compute(exec, &mut scratch.gemm, products);
                    for t in 0..n {
                        block.row(t)[at..at + product.len()].copy_from_slice(&products[product.row(t)]);
                    }
                }
            }
            if !self.bias.is_empty() {
                for t in 0..n {
                    add_row(block.row(t), &self.bias[columns.clone()]);
                }
            }
        });
    }

    /// [`apply`](Self::apply) of two matrices, gate and up, followed by a gated linear unit: `out`, `[n][outputs / 2]`, is
    /// `activation(gate · x) · (up · x)`.
    pub fn apply_gated(
        &self,
        exec: &Exec<'_>,
        activation: Activation,
        x: &[f32],
        packed: &mut Packed,
        out: &mut [f32],
    ) {
        let [gate, up] = &self.parts[..] else { panic!("a gated unit of {} matrices", self.parts.len()) };
        let (n, width) = (x.len() / self.inputs, self.outputs / 2);
        let inputs = self.read(exec, x, packed);
        exec.team.columns(out, width, GRAIN_ROWS, |worker, mut block| {
            let columns = block.columns();
            let scratch = &mut *exec.scratch(worker);
            let step = inputs.of(gate).step().min(inputs.of(up).step());
            for group in pieces(columns.clone(), step) {
                let [gate, up] = [gate, up].map(|part| Product::new(inputs.of(part), &part.matrix, group.clone()));
                let gates = scratch.products.grown(gate.buffer_len());
                let ups = scratch.ups.grown(up.buffer_len());
                gate.compute(exec, &mut scratch.gemm, gates);
                up.compute(exec, &mut scratch.gemm, ups);
                for t in 0..n {
                    let (gates, ups) = (&mut gates[gate.row(t)], &mut ups[up.row(t)]);
                    if !self.bias.is_empty() {
                        add_row(gates, &self.bias[group.clone()]);
                        add_row(ups, &self.bias[width + group.start..width + group.end]);
                    }
                    let at = group.start - columns.start;
                    exec.kernels.gated(activation, gates, ups, &mut block.row(t)[at..at + group.len()]);
                }
            }
        });
    }

    /// The activations as the parts read them.
    fn read<'a>(&'a self, exec: &Exec<'_>, x: &'a [f32], packed: &'a mut Packed) -> Inputs<'a> {
        let (k, n) = (self.inputs, x.len() / self.inputs);
        let Packed { floats, codes } = packed;
        let some_float = self.parts.iter().any(|part| matches!(part.matrix, Matrix::Float(_)));
        let floats = match some_float && n > GEMV_TOKENS {
            true => Input::Many { packed: self.pack(exec, x, floats), k, n },
            false => Input::Few { x, k, n },
        };
        Inputs { floats, codes: self.quantize(exec, x, codes), orders: &self.orders, n }
    }

    /// The activations as the kernels of quantized weights read them, in each order: `[n][groups]`, one order behind the other.
    fn quantize<'p>(&self, exec: &Exec<'_>, x: &[f32], codes: &'p mut AlignedBuffer<CodeGroup>) -> &'p [CodeGroup] {
        let (k, n) = (self.inputs, x.len() / self.inputs);
        let codes = codes.grown(n * self.orders.last().map_or(0, |order| order.groups.end));
        for Order { places, groups } in &self.orders {
            each_row(exec, &mut codes[n * groups.start..n * groups.end], groups.len(), |t, out| {
                let x = &x[t * k..(t + 1) * k];
                match places {
                    None => exec.kernels.quantize_row(x, out),
                    Some(places) => places.chunks(GROUP).zip(out).for_each(|(places, out)| {
                        let mut values = [0.0; GROUP];
                        let at = |place: &u32| x.get(*place as usize).copied().unwrap_or(0.0);
                        values.iter_mut().zip(places).for_each(|(value, place)| *value = at(place));
                        exec.kernels.quantize_row(&values, std::slice::from_mut(out));
                    }),
                }
            });
        }
        codes
    }

    /// The matrices that the joined rows `range` touch: (matrix, its rows, their first joined row).
    fn cut(&self, range: Range<usize>) -> impl Iterator<Item = (&Part, Range<usize>, usize)> {
        let mut end = 0;
        self.parts.iter().filter_map(move |part| {
            let start = end;
            end += part.matrix.shape()[0];
            let (from, to) = (range.start.max(start), range.end.min(end));
            (from < to).then(|| (part, from - start..to - start, from))
        })
    }

    /// The activations as the tile kernel reads them.
    fn pack<'p>(&self, exec: &Exec<'_>, x: &[f32], packed: &'p mut AlignedBuffer<f32>) -> &'p [f32] {
        let (k, n) = (self.inputs, x.len() / self.inputs);
        let packed = packed.grown(packed_len(n, k));
        let mut rest = &mut *packed;
        for cut in k_blocks(k) {
            let width = packed_len(1, cut.len());
            let (now, later) = rest.split_at_mut(n * width);
            let (many, few) = now.split_at_mut(threes(n) * width);
            let (many_x, few_x) = x.split_at(threes(n) * k);
            for (team, x, now, size) in [(exec.team, many_x, many, TILE_TOKENS), (exec.solo, few_x, few, 2)] {
                team.rows(now, size * width, |_, mut block| {
                    for i in block.rows() {
                        let tokens = &x[i * size * k..(i + 1) * size * k];
                        exec.kernels.pack_tokens(tokens, k, cut.clone(), block.row(i));
                    }
                });
            }
            rest = later;
        }
        packed
    }
}

/// The activations of a layer.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    floats: Input<'a>,
    codes: &'a [CodeGroup],
    orders: &'a [Order],
    n: usize,
}

impl<'a> Inputs<'a> {
    /// As `part` reads them.
    fn of(self, part: &Part) -> Input<'a> {
        match part.matrix {
            Matrix::Float(_) => self.floats,
            Matrix::Panels(_) => {
                let groups = &self.orders[part.order].groups;
                Input::Codes { codes: &self.codes[self.n * groups.start..self.n * groups.end], n: self.n }
            }
        }
    }
}

/// The activations of a product: quantized if the weights are; else as they are for few tokens, and as the tile kernel reads them
/// for many.
#[derive(Clone, Copy)]
enum Input<'a> {
    Codes { codes: &'a [CodeGroup], n: usize },
    Few { x: &'a [f32], k: usize, n: usize },
    Many { packed: &'a [f32], k: usize, n: usize },
}

impl Input<'_> {
    /// How many rows are multiplied at once: for few tokens all, so that the kernel can walk far-apart parts of them.
    fn step(self) -> usize {
        match self {
            Input::Codes { n: 1, .. } | Input::Few { .. } => usize::MAX,
            Input::Codes { .. } | Input::Many { .. } => GROUP_ROWS,
        }
    }
}

/// `rows` in pieces of `step`.
fn pieces(rows: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let step = step.min(rows.len()).max(1);
    rows.clone().step_by(step).map(move |at| at..rows.end.min(at + step))
}

/// The product of the rows `group` of a matrix with all tokens.
struct Product<'a> {
    input: Input<'a>,
    part: &'a Matrix,
    group: Range<usize>,
    /// f32 from one token's products to the next.
    stride: usize,
    /// f32 before a token's products: rows that share a panel with the first.
    before: usize,
}

impl<'a> Product<'a> {
    fn new(input: Input<'a>, part: &'a Matrix, group: Range<usize>) -> Product<'a> {
        let before = match part {
            Matrix::Panels(panels) => panels.panels(group.clone()).1,
            Matrix::Float(_) => 0,
        };
        let stride = match input {
            Input::Few { .. } => group.len(),
            Input::Codes { .. } => (before + group.len()).next_multiple_of(PANEL_ROWS),
            Input::Many { .. } => GROUP_ROWS,
        };
        Product { input, part, group, stride, before }
    }

    /// Number of rows.
    fn len(&self) -> usize {
        self.group.len()
    }

    /// Whether [`compute`](Self::compute) fills one row, without anything beside it.
    fn is_plain_row(&self) -> bool {
        matches!(self.input, Input::Few { n: 1, .. })
    }

    /// f32 that [`compute`](Self::compute) needs.
    fn buffer_len(&self) -> usize {
        match self.input {
            Input::Few { n, .. } | Input::Codes { n, .. } | Input::Many { n, .. } => n * self.stride,
        }
    }

    /// Where in the buffer the products of token `t` are.
    fn row(&self, t: usize) -> Range<usize> {
        let start = t * self.stride + self.before;
        start..start + self.len()
    }

    /// Computes the products into `out`, [`buffer_len`](Self::buffer_len) f32.
    fn compute(&self, exec: &Exec<'_>, scratch: &mut GemmScratch, out: &mut [f32]) {
        match (self.input, self.part) {
            (Input::Codes { codes, n }, Matrix::Panels(panels)) => self.compute_panels(exec, panels, codes, n, out),
            (Input::Few { x, k, .. }, Matrix::Float(part)) => {
                exec.kernels.gemv(part.dtype(), self.bytes(part), k, x, out);
            }
            (Input::Many { packed, k, .. }, Matrix::Float(part)) => {
                let mut rows = [&[][..]; GROUP_ROWS];
                let row_bytes = k * part.dtype().size();
                rows.iter_mut().zip(self.bytes(part).chunks_exact(row_bytes)).for_each(|(to, row)| *to = row);
                exec.kernels.gemm_group(part.dtype(), &rows[..self.len()], k, packed, scratch, out);
            }
            _ => panic!("an input of another kind"), // `Inputs::of` chooses by the matrix
        }
    }

    fn bytes<'t>(&self, part: &'t Tensor) -> &'t [u8] {
        let row_bytes = part.shape()[1] * part.dtype().size();
        &part.bytes()[self.group.start * row_bytes..self.group.end * row_bytes]
    }

    /// So many tokens at a time that their codes stay near while the panels pass over them.
    fn compute_panels(&self, exec: &Exec<'_>, panels: &Panels, codes: &[CodeGroup], n: usize, out: &mut [f32]) {
        const NEAR_BYTES: usize = 256 * 1024;
        let (bytes, _) = panels.panels(self.group.clone());
        let (groups, stride) = (codes.len() / n, self.stride);
        let together = (NEAR_BYTES / (groups * size_of::<CodeGroup>())).max(1).next_multiple_of(PANEL_TOKENS);
        for (codes, out) in codes.chunks(together * groups).zip(out.chunks_mut(together * stride)) {
            exec.kernels.panel_product(panels.quant(), bytes, codes, codes.len() / groups, out, stride);
        }
    }
}
