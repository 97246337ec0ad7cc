//! Linear layers over weights in any stored format: `y = W·x + b`.

use super::Exec;
use crate::checkpoint::Tensor;
use crate::error::Result;
use crate::kernels::{GROUP_ROWS, TILE_ROWS, TILE_TOKENS, k_blocks, packed_len};
use crate::pool::Block;
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
        if n == 1 {
            return exec.team.columns(out, self.outputs, GRAIN_ROWS, |worker, mut block| {
                if block.columns().len() > GRAIN_ROWS {
                    prepare(worker); // with the worker's fixed range, not with each piece of the shared tail
                }
                self.dot_rows(exec, x, block.columns(), block.row(0));
            });
        }
        let packed = self.pack(exec, x, packed);
        exec.team.columns(out, self.outputs, GRAIN_ROWS, |worker, mut block| {
            for (part, rows, first) in self.cut(block.columns()) {
                for at in rows.clone().step_by(GROUP_ROWS) {
                    let group = at..rows.end.min(at + GROUP_ROWS);
                    self.group(exec, (worker, n), (part, group, first + at - rows.start), packed, &mut block);
                }
            }
        });
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

    /// One token: `out` = the joined rows `range` times `x`.
    fn dot_rows(&self, exec: &Exec<'_>, x: &[f32], range: Range<usize>, out: &mut [f32]) {
        for (part, rows, first) in self.cut(range.clone()) {
            let stride = self.inputs * part.dtype().size();
            let out = &mut out[first - range.start..first - range.start + rows.len()];
            exec.kernels.gemv(part.dtype(), &part.bytes()[rows.start * stride..rows.end * stride], x, out);
        }
        if !self.bias.is_empty() {
            out.iter_mut().zip(&self.bias[range]).for_each(|(y, b)| *y += b);
        }
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

    /// Many tokens: the rows `rows` of `part`, whose first is the joined row `first`, times all of them.
    fn group(
        &self,
        exec: &Exec<'_>,
        (worker, n): (usize, usize),
        (part, rows, first): (&Tensor, Range<usize>, usize),
        packed: &[f32],
        block: &mut Block<'_, f32>,
    ) {
        let stride = self.inputs * part.dtype().size();
        let bytes = &part.bytes()[rows.start * stride..rows.end * stride];
        let mut weights = [&[][..]; GROUP_ROWS];
        weights.iter_mut().zip(bytes.chunks_exact(stride)).for_each(|(w, row)| *w = row);
        let scratch = &mut *exec.scratch(worker);
        let products = scratch.products.grown(n.next_multiple_of(TILE_TOKENS) * GROUP_ROWS);
        let weights = &weights[..rows.len()];
        exec.kernels.gemm_group(part.dtype(), weights, self.inputs, packed, &mut scratch.gemm, products);
        let at = first - block.columns().start;
        for (t, products) in products.chunks_exact(GROUP_ROWS).take(n).enumerate() {
            let out = &mut block.row(t)[at..at + rows.len()];
            out.copy_from_slice(&products[..rows.len()]);
            if !self.bias.is_empty() {
                out.iter_mut().zip(&self.bias[first..]).for_each(|(y, b)| *y += b);
            }
        }
    }
}
