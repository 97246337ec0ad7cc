//! Linear layers over weights in any stored format: `y = W·x + b`.

use super::{Exec, add_row};
use crate::checkpoint::Tensor;
use crate::error::Result;
use crate::kernels::{Activation, FEW_TOKENS, GROUP_ROWS, GemmScratch, TILE_ROWS, TILE_TOKENS, k_blocks, packed_len};
use crate::tensor::AlignedBuffer;
use std::ops::Range;

/// Rows that are handed to a thread together.
const GRAIN_ROWS: usize = 4 * TILE_ROWS;

/// One or several matrices with a common input, their outputs side by side: `[outputs][inputs]` each, as stored.
#[derive(Debug)]
pub struct Linear {
    parts: Vec<Tensor>,
    inputs: usize,
    outputs: usize,
    /// Empty, or one value per output.
    bias: Vec<f32>,
}

impl Linear {
    /// Joins matrices `[outputs][inputs]` and their biases. All have the same number of inputs, and all or none a bias.
    pub fn new(parts: Vec<Tensor>, biases: &[Tensor]) -> Result<Linear> {
        let inputs = parts.first().map_or(0, |p| p.shape()[1]);
        if let Some(odd) = parts.iter().find(|p| p.shape()[1] != inputs) {
            crate::bail!(Tensor, "{}: expected {inputs} inputs, found {:?}", odd.name(), odd.shape());
        }
        let outputs = parts.iter().map(|p| p.shape()[0]).sum();
        let bias = biases.iter().flat_map(|b| b.view().to_f32()).collect();
        Ok(Linear { parts, inputs, outputs, bias })
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
    pub fn apply(&self, exec: &Exec<'_>, x: &[f32], packed: &mut AlignedBuffer<f32>, out: &mut [f32]) {
        self.apply_after(exec, |_| (), x, packed, out);
    }

    /// [`apply`](Self::apply), where each worker of the team first does `prepare(worker)` if there is one row only.
    pub fn apply_after(
        &self,
        exec: &Exec<'_>,
        prepare: impl Fn(usize) + Sync,
        x: &[f32],
        packed: &mut AlignedBuffer<f32>,
        out: &mut [f32],
    ) {
        let n = x.len() / self.inputs;
        let input = self.input(exec, x, packed);
        exec.team.columns(out, self.outputs, GRAIN_ROWS, |worker, mut block| {
            let columns = block.columns();
            if n == 1 && columns.len() > GRAIN_ROWS {
                prepare(worker); // with the worker's fixed range, not with each piece of the shared tail
            }
            let scratch = &mut *exec.scratch(worker);
            for (part, rows, first) in self.cut(columns.clone()) {
                for group in input.groups(rows.clone()) {
                    let at = first + group.start - rows.start - columns.start;
                    if n == 1 {
                        let out = &mut block.row(0)[at..at + group.len()];
                        input.multiply(exec, part, group, &mut scratch.gemm, out);
                        continue;
                    }
                    let products = scratch.products.grown(input.products_len(group.len()));
                    input.multiply(exec, part, group.clone(), &mut scratch.gemm, products);
                    for (t, products) in products.chunks_exact(input.width(group.len())).take(n).enumerate() {
                        block.row(t)[at..at + group.len()].copy_from_slice(&products[..group.len()]);
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
        packed: &mut AlignedBuffer<f32>,
        out: &mut [f32],
    ) {
        let [gate, up] = &self.parts[..] else { panic!("a gated unit of {} matrices", self.parts.len()) };
        let (n, width) = (x.len() / self.inputs, self.outputs / 2);
        let input = self.input(exec, x, packed);
        exec.team.columns(out, width, GRAIN_ROWS, |worker, mut block| {
            let columns = block.columns();
            let scratch = &mut *exec.scratch(worker);
            for group in input.groups(columns.clone()) {
                let (len, stride) = (group.len(), input.width(group.len()));
                let gates = scratch.products.grown(input.products_len(len));
                let ups = scratch.ups.grown(input.products_len(len));
                input.multiply(exec, gate, group.clone(), &mut scratch.gemm, gates);
                input.multiply(exec, up, group.clone(), &mut scratch.gemm, ups);
                for (t, (gates, ups)) in
                    gates.chunks_exact_mut(stride).zip(ups.chunks_exact_mut(stride)).take(n).enumerate()
                {
                    let (gates, ups) = (&mut gates[..len], &mut ups[..len]);
                    if !self.bias.is_empty() {
                        add_row(gates, &self.bias[group.clone()]);
                        add_row(ups, &self.bias[width + group.start..width + group.end]);
                    }
                    let at = group.start - columns.start;
                    exec.kernels.gated(activation, gates, ups, &mut block.row(t)[at..at + len]);
                }
            }
        });
    }

    fn input<'a>(&self, exec: &Exec<'_>, x: &'a [f32], packed: &'a mut AlignedBuffer<f32>) -> Input<'a> {
        let (k, n) = (self.inputs, x.len() / self.inputs);
        if n <= FEW_TOKENS { Input::Few { x, k, n } } else { Input::Many { packed: self.pack(exec, x, packed), k, n } }
    }

    /// The matrices that the joined rows `range` touch: (matrix, its rows, their first joined row).
    fn cut(&self, range: Range<usize>) -> impl Iterator<Item = (&Tensor, Range<usize>, usize)> {
        let mut end = 0;
        self.parts.iter().filter_map(move |part| {
            let start = end;
            end += part.shape()[0];
            let (from, to) = (range.start.max(start), range.end.min(end));
            (from < to).then(|| (part, from - start..to - start, from))
        })
    }

    /// The activations as the tile kernel reads them.
    fn pack<'p>(&self, exec: &Exec<'_>, x: &[f32], packed: &'p mut AlignedBuffer<f32>) -> &'p [f32] {
        let (k, n) = (self.inputs, x.len() / self.inputs);
        let triples = n.div_ceil(TILE_TOKENS);
        let packed = packed.grown(packed_len(n, k));
        let mut rest = &mut *packed;
        for cut in k_blocks(k) {
            let width = packed_len(1, cut.len());
            let (now, later) = rest.split_at_mut(triples * width);
            exec.team.rows(now, width, |_, mut block| {
                for t in block.rows() {
                    let tokens = &x[t * TILE_TOKENS * k..n.min((t + 1) * TILE_TOKENS) * k];
                    exec.kernels.pack_tokens(tokens, k, cut.clone(), block.row(t));
                }
            });
            rest = later;
        }
        packed
    }
}

/// The activations of a product: as they are for few tokens, as the tile kernel reads them for many.
#[derive(Clone, Copy)]
enum Input<'a> {
    Few { x: &'a [f32], k: usize, n: usize },
    Many { packed: &'a [f32], k: usize, n: usize },
}

impl Input<'_> {
    /// The rows that are multiplied at once: for few tokens all, so that the kernel can walk far-apart parts of them.
    fn groups(self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let step = match self {
            Input::Few { .. } => rows.len(),
            Input::Many { .. } => GROUP_ROWS,
        };
        rows.clone().step_by(step).map(move |at| at..rows.end.min(at + step))
    }

    /// f32 from one token's products to the next, for a group of `rows`.
    fn width(self, rows: usize) -> usize {
        match self {
            Input::Few { .. } => rows,
            Input::Many { .. } => GROUP_ROWS,
        }
    }

    /// f32 of the products of a group of `rows`.
    fn products_len(self, rows: usize) -> usize {
        match self {
            Input::Few { n, .. } => n * rows,
            Input::Many { n, .. } => n.next_multiple_of(TILE_TOKENS) * GROUP_ROWS,
        }
    }

    /// The products of a group of rows of `part` with all tokens: rows of [`width`](Self::width), one for each token.
    fn multiply(
        self,
        exec: &Exec<'_>,
        part: &Tensor,
        group: Range<usize>,
        scratch: &mut GemmScratch,
        products: &mut [f32],
    ) {
        let stride = part.shape()[1] * part.dtype().size();
        let bytes = &part.bytes()[group.start * stride..group.end * stride];
        match self {
            Input::Few { x, k, .. } => exec.kernels.gemv(part.dtype(), bytes, k, x, products),
            Input::Many { packed, k, .. } => {
                let mut rows = [&[][..]; GROUP_ROWS];
                rows.iter_mut().zip(bytes.chunks_exact(stride)).for_each(|(to, row)| *to = row);
                exec.kernels.gemm_group(part.dtype(), &rows[..group.len()], k, packed, scratch, products);
            }
        }
    }
}
