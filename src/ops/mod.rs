//! The operators of the forward pass, on plain slices. Activations are f32, row-major, one row per token.

pub mod attention;
pub mod kv;
pub mod linear;
pub mod moe;
pub mod pages;
pub mod rope;

use crate::checkpoint::Matrix;
use crate::kernels::{GemmScratch, Kernels, Visible};
use crate::pool::Team;
use crate::tensor::AlignedBuffer;
use kv::KvCache;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What every operator runs with during one step.
#[derive(Clone, Copy, Debug)]
pub struct Exec<'a> {
    /// The kernels of the chosen tier.
    pub kernels: &'static Kernels,
    /// The step's threads.
    pub team: &'a Team,
    /// The leader alone, for work too small to share.
    pub solo: &'a Team,
    /// One for each thread of the team.
    pub scratch: &'a [Mutex<Scratch>],
}

/// The next tokens of one sequence in a forward pass over several.
#[derive(Debug)]
pub struct Sequence<'a> {
    /// The tokens, at least one, ids below vocab_size.
    pub tokens: &'a [u32],
    /// Position of the first.
    pub start: usize,
    /// The cache, reserved for them.
    pub kv: &'a mut KvCache,
    /// Raised to stop.
    pub cancel: &'a AtomicBool,
    /// The layer before which it was found raised. The pass goes on for the others, and what it computes of this one is void.
    pub cancelled: &'a mut Option<usize>,
    /// Its rows among those of all sequences; set by the pass.
    pub rows: Range<usize>,
}

/// One thread's buffers. They grow to the largest use and stay.
#[derive(Debug, Default)]
pub struct Scratch {
    gemm: GemmScratch,
    /// Output of a group of rows, and of its counterpart in a gated MLP; query rows and their states; a tile of the cache; narrowed values.
    products: AlignedBuffer<f32>,
    ups: AlignedBuffer<f32>,
    queries: AlignedBuffer<f32>,
    states: AlignedBuffer<f32>,
    tile: AlignedBuffer<f32>,
    visible: AlignedBuffer<Visible>,
    bytes: AlignedBuffer<u8>,
}

impl<'a> Exec<'a> {
    /// The team if there are several rows, the leader alone for one.
    pub fn team_for(&self, rows: usize) -> &'a Team {
        if rows > 1 { self.team } else { self.solo }
    }

    /// The buffers of `worker`; never contended.
    fn scratch(&self, worker: usize) -> MutexGuard<'a, Scratch> {
        self.scratch[worker].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `f(row index, row)` on each row of `data`, rows of `width`.
pub fn each_row<T: Send + Sync>(exec: &Exec<'_>, data: &mut [T], width: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    exec.team_for(data.len() / width).rows(data, width, |_, mut block| {
        for t in block.rows() {
            f(t, block.row(t));
        }
    });
}

/// The rows `ids` of `table` as f32 in `out`, `[ids.len()][inputs]`.
pub fn gather(exec: &Exec<'_>, table: &Matrix, ids: &[u32], out: &mut [f32]) {
    each_row(exec, out, table.shape()[1], |t, out| {
        let row = ids[t] as usize;
        match table {
            Matrix::Float(table) => {
                let row_bytes = out.len() * table.dtype().size();
                exec.kernels.widen(table.dtype(), &table.bytes()[row * row_bytes..(row + 1) * row_bytes], out);
            }
            Matrix::Panels(table) => table.decode_row(row, out),
        }
    });
}

/// RMSNorm of every row of `x`, rows of `weight.len()`.
pub fn rms_norm(exec: &Exec<'_>, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    each_row(exec, out, width, |t, out| exec.kernels.rms_norm(&x[t * width..(t + 1) * width], weight, eps, out));
}

/// RMSNorm of every row of `x`, rows of `weight.len()`, in place.
pub fn rms_norm_in_place(exec: &Exec<'_>, x: &mut [f32], weight: &[f32], eps: f32) {
    each_row(exec, x, weight.len(), |_, row| exec.kernels.rms_norm_in_place(row, weight, eps));
}

/// `x *= factor`, rows of `width`.
pub fn scale(exec: &Exec<'_>, x: &mut [f32], factor: f32, width: usize) {
    each_row(exec, x, width, |_, row| row.iter_mut().for_each(|v| *v *= factor));
}

/// `x += branch`, rows of `width`.
pub fn add(exec: &Exec<'_>, x: &mut [f32], branch: &[f32], width: usize) {
    each_row(exec, x, width, |t, x| add_row(x, &branch[t * width..]));
}

/// `y += x`, as far as `y` goes.
fn add_row(y: &mut [f32], x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
}
