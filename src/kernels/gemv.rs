//! The product of weights of any element type with few tokens: the rows are read once, as they are stored.
//!
//! Every dot product keeps eight partial sums, lane j taking the elements k ≡ j (mod 8) in ascending order by fused
//! multiply-add from 0; a tail is padded with zeros; the lanes are added as [`Lanes::sum`](super::lanes::Lanes::sum) says. So the
//! result does not depend on the tile, the block of k or the number of rows.

use super::GEMV_TOKENS;
use super::float::{CACHE_LINE, load_elements};
use super::gemm::{LONGEST_BLOCK, Quad, TILE_ROWS, k_blocks, pack};
use super::lanes::{Element, LANES, Vector, in_groups};
use crate::tensor::DType;
use std::mem::MaybeUninit;
use std::ops::Range;

/// How far ahead of the current position weights are prefetched, in bytes.
const PREFETCH: usize = 1024;
/// Elements of a row in one round of its loop.
const UNROLL: usize = 4 * LANES;

/// `out[s][t · stride + i] = w[s][i] · x[t]` for `rows` rows from each of four places, walked together, and `n` tokens: four
/// long sequential streams are what the hardware prefetchers like best. Tokens for which no registers are left find the rows,
/// widened, in the first-level cache.
///
/// # Safety
/// Each `w[s]` has `rows × k` elements of `E`, `x` has `n × k` f32, `n` ≤ [`GEMV_TOKENS`], each `out[s]` room for `n` rows of
/// `rows` f32, `stride` from row to row.
#[inline(always)]
pub unsafe fn gemv<K: Quad, E: Element>(
    w: [*const u8; TILE_ROWS],
    rows: usize,
    (k, n): (usize, usize),
    x: *const f32,
    out: [*mut f32; TILE_ROWS],
    stride: usize,
) {
    // SAFETY: every index below stays under rows, n and k.
    unsafe {
        let at = |row: usize| (w.map(|p| p.add(row * k * E::DTYPE.size())), out.map(|p| p.add(row)));
        if n <= K::MOST_TOKENS {
            for row in 0..rows {
                let (w, out) = at(row);
                in_groups!(n, K::MOST_TOKENS == 8, [8, 7, 6, 5, 4], |t, T| {
                    let mut sums = [K::zero(); T];
                    add_stored::<K, E, T>(&mut sums, w, 0..k, k, x, None);
                    write_sums(sums, out.map(|p| p.add(t * stride)), stride);
                });
            }
        } else {
            for row in 0..rows {
                let (w, out) = at(row);
                many_tokens::<K, E>(w, (k, n), x, out, stride);
            }
        }
    }
}

/// [`gemv`] of one row from each place for more tokens than there are registers: a block of k after the other, the weights
/// widened with the first tokens.
///
/// # Safety
/// As [`gemv`].
#[inline(always)]
unsafe fn many_tokens<K: Quad, E: Element>(
    w: [*const u8; TILE_ROWS],
    (k, n): (usize, usize),
    x: *const f32,
    out: [*mut f32; TILE_ROWS],
    stride: usize,
) {
    let mut widened = MaybeUninit::<InLines<[f32; TILE_ROWS * LONGEST_BLOCK]>>::uninit();
    let widened = widened.as_mut_ptr().cast::<f32>();
    let mut kept = MaybeUninit::<InLines<[[f32; TILE_ROWS * LANES]; GEMV_TOKENS]>>::uninit();
    let kept = kept.as_mut_ptr().cast::<f32>();
    let first = K::MOST_TOKENS - usize::from(n == K::MOST_TOKENS + 1); // one left alone would leave registers idle
    // SAFETY: no block is longer than LONGEST_BLOCK, and there are at most GEMV_TOKENS tokens; what is read was written.
    unsafe {
        for block in k_blocks(k) {
            in_groups!(first, K::MOST_TOKENS == 8, [8, 7, 6, 5, 4], |_t, T| {
                let mut sums = begin::<K, T>(&block, kept);
                add_stored::<K, E, T>(&mut sums, w, block.clone(), k, x, Some(widened));
                end(sums, block.end == k, kept, out, stride);
            });
            in_groups!(n - first, K::MOST_TOKENS == 8, [8, 7, 6, 5, 4], |t, T| {
                let t = first + t;
                let kept = kept.add(t * TILE_ROWS * LANES);
                let mut sums = begin::<K, T>(&block, kept);
                add_widened(&mut sums, widened, block.clone(), k, x.add(t * k));
                end(sums, block.end == k, kept, out.map(|p| p.add(t * stride)), stride);
            });
        }
    }
}

/// Something that begins with a cache line: no register's worth of it lies in two.
#[repr(align(64))]
struct InLines<T>(T);

/// The sums of four rows and `T` tokens before a block: nothing, or what was kept, `[T][TILE_ROWS][8]`.
///
/// # Safety
/// After the first block [`end`] has kept them.
#[inline(always)]
unsafe fn begin<K: Quad, const T: usize>(block: &Range<usize>, kept: *const f32) -> [K; T] {
    // SAFETY: as this function.
    unsafe {
        let mut sums = [K::zero(); T];
        if block.start > 0 {
            for t in 0..T {
                sums[t] = K::load(kept.add(t * TILE_ROWS * LANES));
            }
        }
        sums
    }
}

/// Writes the sums after the last block, keeps them after another.
///
/// # Safety
/// There is room for them.
#[inline(always)]
unsafe fn end<K: Quad, const T: usize>(
    sums: [K; T],
    last: bool,
    kept: *mut f32,
    out: [*mut f32; TILE_ROWS],
    stride: usize,
) {
    // SAFETY: as this function.
    unsafe {
        if last {
            return write_sums(sums, out, stride);
        }
        for t in 0..T {
            sums[t].store(kept.add(t * TILE_ROWS * LANES));
        }
    }
}

/// Adds the products of the elements `block` of four rows and `T` tokens. `widened` receives the weights,
/// `[block / 8][TILE_ROWS][8]`, the last block padded with 0.
///
/// # Safety
/// Each row has these elements, each token's `k` f32 too, and `widened` has room for them.
#[inline(always)]
unsafe fn add_stored<K: Quad, E: Element, const T: usize>(
    sums: &mut [K; T],
    w: [*const u8; TILE_ROWS],
    block: Range<usize>,
    k: usize,
    x: *const f32,
    widened: Option<*mut f32>,
) {
    let size = E::DTYPE.size();
    let widened_at = |i: usize| widened.map(|p| p.wrapping_add((i - block.start) * TILE_ROWS));
    let mut near = MaybeUninit::<InLines<[[f32; TILE_ROWS * LANES]; UNROLL / LANES]>>::uninit();
    // SAFETY: every index below stays under k and T; prefetch takes any address; near has room for UNROLL elements of each row.
    unsafe {
        let mut i = block.start;
        while i + UNROLL <= block.end {
            for p in w {
                for line in (0..UNROLL * size).step_by(CACHE_LINE) {
                    K::Lanes::prefetch(p.wrapping_add(i * size + PREFETCH + line));
                }
            }
            if widens_first::<K, E, T>() {
                let near = widened_at(i).unwrap_or(near.as_mut_ptr().cast());
                pack::<K::Lanes, E>(w.map(|p| p.add(i * size)), TILE_ROWS, UNROLL, near);
                let near = std::hint::black_box(near.cast_const()); // or the compiler keeps what was just written in registers
                for b in 0..UNROLL / LANES {
                    K::add(sums, near.add(b * TILE_ROWS * LANES), tokens::<K, T>(x, k, i + b * LANES));
                }
            } else {
                for i in (i..i + UNROLL).step_by(LANES) {
                    K::add_rows::<E, T>(sums, w.map(|p| p.add(i * size)), tokens::<K, T>(x, k, i), widened_at(i));
                }
            }
            i += UNROLL;
        }
        // A loop for whole blocks too: behind a mere condition the compiler left vector loads as calls (tests/symbols.rs).
        while i < block.end {
            let rest = i..block.end.min(i + LANES);
            let mut rows = [[0.0f32; LANES]; TILE_ROWS];
            for s in 0..TILE_ROWS {
                load_elements::<K::Lanes, E>(w[s].add(i * size), rest.len()).store(rows[s].as_mut_ptr());
            }
            let rows = rows.as_ptr().cast::<f32>();
            K::add(sums, rows, last_tokens::<K, T>(x, k, rest));
            if let Some(p) = widened_at(i) {
                p.copy_from_nonoverlapping(rows, TILE_ROWS * LANES);
            }
            i += LANES;
        }
    }
}

/// Whether rows are widened in memory before they meet the tokens. Where sums of three tokens leave a register or two, the compiler
/// converts F16 ahead of time and spills sums, and their additions wait for memory. (BF16 and F32 gain nothing.)
const fn widens_first<K: Quad, E: Element, const T: usize>() -> bool {
    matches!(E::DTYPE, DType::F16) && T == 3 && K::MOST_TOKENS == 3
}

/// Adds the products of the elements `block` of four rows, `[block / 8][TILE_ROWS][8]`, and `T` tokens.
///
/// # Safety
/// As [`add_stored`], which wrote `w`.
#[inline(always)]
unsafe fn add_widened<K: Quad, const T: usize>(
    sums: &mut [K; T],
    w: *const f32,
    block: Range<usize>,
    k: usize,
    x: *const f32,
) {
    // SAFETY: as this function.
    unsafe {
        let mut i = block.start;
        while i + UNROLL <= block.end {
            for i in (i..i + UNROLL).step_by(LANES) {
                K::add(sums, w.add((i - block.start) * TILE_ROWS), tokens::<K, T>(x, k, i));
            }
            i += UNROLL;
        }
        while i < block.end {
            let rest = i..block.end.min(i + LANES);
            K::add(sums, w.add((i - block.start) * TILE_ROWS), last_tokens::<K, T>(x, k, rest));
            i += LANES;
        }
    }
}

/// The eight activations of each token from `i` on.
///
/// # Safety
/// `x` has `T × k` f32, `i` + 8 ≤ `k`.
#[inline(always)]
unsafe fn tokens<K: Quad, const T: usize>(x: *const f32, k: usize, i: usize) -> [K::Token; T] {
    // SAFETY: as this function.
    unsafe {
        let mut tokens = [K::token(x.add(i)); T];
        for t in 1..T {
            tokens[t] = K::token(x.add(t * k + i));
        }
        tokens
    }
}

/// The activations `rest`, at most eight, of each token, padded with 0.
///
/// # Safety
/// `x` has `T × k` f32, `rest` is below `k`.
#[inline(always)]
unsafe fn last_tokens<K: Quad, const T: usize>(x: *const f32, k: usize, rest: Range<usize>) -> [K::Token; T] {
    let mut padded = [[0.0f32; LANES]; T];
    // SAFETY: as this function.
    unsafe {
        for t in 0..T {
            padded[t].as_mut_ptr().copy_from_nonoverlapping(x.add(t * k + rest.start), rest.len());
        }
        tokens::<K, T>(padded.as_ptr().cast(), LANES, 0)
    }
}

/// `out[s][t · stride]` = the sum of row s and token t.
///
/// # Safety
/// There is room for it.
#[inline(always)]
unsafe fn write_sums<K: Quad, const T: usize>(sums: [K; T], out: [*mut f32; TILE_ROWS], stride: usize) {
    // SAFETY: as this function.
    unsafe {
        for t in 0..T {
            let row_sums = sums[t].sums();
            for s in 0..TILE_ROWS {
                *out[s].add(t * stride) = row_sums[s];
            }
        }
    }
}
