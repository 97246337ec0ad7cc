//! Matrix and row kernels on f32 activations and weights of any element type, written once over [`Lanes`].
//!
//! Every dot product keeps eight partial sums, lane j taking the elements k ≡ j (mod 8) in ascending order by fused
//! multiply-add from 0; a tail is padded with zeros; the lanes are added as [`Lanes::sum`] says. So the result does
//! not depend on the tile, the block of k or the number of rows.

use super::TILE_ROWS;
use super::lanes::{Element, F32, LANES, Lanes, exp, tanh};

/// How far ahead of the current position weights are prefetched, in bytes.
const PREFETCH: usize = 512;
/// Lane blocks of a tile in one round of its loop.
pub const UNROLLED_BLOCKS: usize = 4;
/// Bytes.
pub const CACHE_LINE: usize = 64;

/// `out[s][t · stride + i] = w[s][i] · x[t]` for `rows` rows from each of four places, walked together, and `n` tokens, up to
/// [`FEW_TOKENS`](super::FEW_TOKENS): four long sequential streams are what the hardware prefetchers like best.
///
/// # Safety
/// Each `w[s]` has `rows × k` elements of `E`, `x` has `n × k` f32, each `out[s]` room for `n` rows of `rows` f32, `stride`
/// from row to row.
#[inline(always)]
pub unsafe fn gemv<L: Lanes, E: Element>(
    w: [*const u8; 4],
    rows: usize,
    (k, n): (usize, usize),
    x: *const f32,
    out: [*mut f32; 4],
    stride: usize,
) {
    // SAFETY: every index below stays under rows, n and k.
    unsafe {
        for row in 0..rows {
            let w = w.map(|p| p.add(row * k * E::DTYPE.size()));
            let out = out.map(|p| p.add(row));
            match n {
                1 => dot4::<L, E, 1>(w, k, x, out, stride, true),
                2 => dot4::<L, E, 2>(w, k, x, out, stride, true),
                3 => dot4::<L, E, 3>(w, k, x, out, stride, true),
                _ => {
                    // The second pair finds the rows in the first-level cache.
                    dot4::<L, E, 2>(w, k, x, out, stride, true);
                    dot4::<L, E, 2>(w, k, x.add(2 * k), out.map(|p| p.add(2 * stride)), stride, false);
                }
            }
        }
    }
}

/// Four rows times `T` tokens, as in [`gemv`].
///
/// # Safety
/// As [`gemv`].
#[inline(always)]
unsafe fn dot4<L: Lanes, E: Element, const T: usize>(
    w: [*const u8; 4],
    k: usize,
    x: *const f32,
    out: [*mut f32; 4],
    stride: usize,
    prefetch: bool,
) {
    const UNROLL: usize = 4 * LANES;
    let size = E::DTYPE.size();
    // SAFETY: every index below stays under k and T; prefetch takes any address.
    unsafe {
        let mut acc = [[L::splat(0.0); 4]; T];
        let mut i = 0;
        while i + UNROLL <= k {
            if prefetch {
                for p in w {
                    for line in (0..UNROLL * size).step_by(CACHE_LINE) {
                        L::prefetch(p.wrapping_add(i * size + PREFETCH + line));
                    }
                }
            }
            for u in (i..i + UNROLL).step_by(LANES) {
                let xs: [L; T] = std::array::from_fn(|t| L::load(x.add(t * k + u)));
                for s in 0..4 {
                    let ws = E::load::<L>(w[s].add(u * size));
                    for t in 0..T {
                        acc[t][s] = ws.fma(xs[t], acc[t][s]);
                    }
                }
            }
            i += UNROLL;
        }
        while i < k {
            let count = LANES.min(k - i);
            for s in 0..4 {
                let p = w[s].add(i * size);
                let ws = if count == LANES { E::load::<L>(p) } else { E::load_tail::<L>(p, count) };
                for t in 0..T {
                    acc[t][s] = ws.fma(load_some(x.add(t * k + i), count), acc[t][s]);
                }
            }
            i += LANES;
        }
        for (t, acc) in acc.into_iter().enumerate() {
            for (o, sum) in out.into_iter().zip(L::sum4(acc)) {
                *o.add(t * stride) = sum;
            }
        }
    }
}

/// Spreads `k` f32 at `src` over lane blocks: block b of eight goes to `dst + b · stride`, the last padded with 0.
///
/// # Safety
/// `src` has `k` f32; `dst` has room for every block.
#[inline(always)]
pub unsafe fn pack<L: Lanes>(src: *const f32, k: usize, dst: *mut f32, stride: usize) {
    // SAFETY: block b reads elements below k.
    unsafe { blocks(k, |i, count| load_some::<L>(src.add(i), count).store(dst.add(i / LANES * stride))) }
}

/// Memory to be brought near while a tile is computed: `lines` cache lines from `at` on for every [`UNROLLED_BLOCKS`].
#[derive(Clone, Copy)]
pub struct Ahead {
    /// Any address will do.
    pub at: *const u8,
    /// Cache lines; 0 or a few.
    pub lines: usize,
}

/// What a tile multiplies: [`TILE_ROWS`] weight rows and up to [`TILE_TOKENS`](super::TILE_TOKENS) tokens over a block of k.
#[derive(Clone, Copy)]
pub struct Operands {
    /// The rows' elements of the block; [`tile`] looks at the first pointer only, where [`tile_stored`] kept them.
    pub w: [*const u8; TILE_ROWS],
    /// Elements of k.
    pub k: usize,
    /// `[lane blocks][tokens][8]`, the last padded with zeros.
    pub x: *const f32,
    /// How many tokens.
    pub tokens: usize,
}

/// Where a tile's results are.
#[derive(Clone, Copy)]
pub struct Results {
    /// The partial lanes `[tokens][rows][8]`, which start at zero if `first` and are kept unless `last`.
    pub lanes: *mut f32,
    /// Whether this is the first block of k, and whether it is the last.
    pub ends: (bool, bool),
    /// `out[t · stride + r]` receives the sums after the last block.
    pub out: *mut f32,
    /// f32 from token to token.
    pub stride: usize,
}

/// A tile of rows as they are stored. Leaves them at `keep` as f32, `[lane blocks][TILE_ROWS][8]`, for the [`tile`]s of the
/// same rows with other tokens.
///
/// # Safety
/// All arrays have these sizes.
#[inline(always)]
pub unsafe fn tile_stored<L: Lanes, E: Element>(from: Operands, keep: *mut f32, to: Results, ahead: Ahead) {
    // SAFETY: as this function.
    unsafe {
        match from.tokens {
            1 => multiply::<L, E, 1, true>(from, keep, to, ahead),
            2 => multiply::<L, E, 2, true>(from, keep, to, ahead),
            _ => multiply::<L, E, 3, true>(from, keep, to, ahead),
        }
    }
}

/// A tile of rows that [`tile_stored`] kept.
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn tile<L: Lanes>(from: Operands, to: Results, ahead: Ahead) {
    // SAFETY: as this function.
    unsafe {
        match from.tokens {
            1 => multiply::<L, F32, 1, false>(from, std::ptr::null_mut(), to, ahead),
            2 => multiply::<L, F32, 2, false>(from, std::ptr::null_mut(), to, ahead),
            _ => multiply::<L, F32, 3, false>(from, std::ptr::null_mut(), to, ahead),
        }
    }
}

/// A tile of `T` tokens; the rows are kept if `KEEP`.
///
/// # Safety
/// As [`tile_stored`].
#[inline(always)]
unsafe fn multiply<L: Lanes, E: Element, const T: usize, const KEEP: bool>(
    from: Operands,
    mut keep: *mut f32,
    to: Results,
    ahead: Ahead,
) {
    const LANES_KEPT: usize = TILE_ROWS * LANES;
    let step = if KEEP { LANES * E::DTYPE.size() } else { LANES_KEPT * size_of::<f32>() };
    // SAFETY: indices follow the layouts that the caller vouches for; prefetch takes any address.
    unsafe {
        let mut c = [[L::splat(0.0); TILE_ROWS]; T];
        if !to.ends.0 {
            for (t, c) in c.iter_mut().enumerate() {
                for (r, c) in c.iter_mut().enumerate() {
                    *c = L::load(to.lanes.add((t * TILE_ROWS + r) * LANES));
                }
            }
        }
        // Unrolled: where a neighbour shares the core, instructions are what is scarce.
        let whole = from.k / LANES;
        let unrolled = whole / UNROLLED_BLOCKS * UNROLLED_BLOCKS;
        let (mut x, mut at, mut near) = (from.x, 0, ahead.at);
        for _ in (0..unrolled).step_by(UNROLLED_BLOCKS) {
            for _ in 0..ahead.lines {
                L::prefetch(near);
                near = near.wrapping_add(CACHE_LINE);
            }
            for _ in 0..UNROLLED_BLOCKS {
                multiply_block::<L, E, T, KEEP>(&mut c, from.w, at, x, keep);
                (x, at) = (x.add(T * LANES), at + step);
                keep = keep.wrapping_add(LANES_KEPT);
            }
        }
        for _ in unrolled..whole {
            multiply_block::<L, E, T, KEEP>(&mut c, from.w, at, x, keep);
            (x, at) = (x.add(T * LANES), at + step);
            keep = keep.wrapping_add(LANES_KEPT);
        }
        let tail = from.k % LANES;
        if tail > 0 {
            for r in 0..TILE_ROWS {
                let w = E::load_tail::<L>(from.w[r].add(at), tail);
                if KEEP {
                    w.store(keep.add(r * LANES));
                }
                for t in 0..T {
                    c[t][r] = w.fma(L::load(x.add(t * LANES)), c[t][r]);
                }
            }
        }
        for (t, c) in c.into_iter().enumerate() {
            if to.ends.1 {
                to.out.add(t * to.stride).cast::<[f32; TILE_ROWS]>().write_unaligned(L::sum4(c));
            } else {
                for (r, c) in c.into_iter().enumerate() {
                    c.store(to.lanes.add((t * TILE_ROWS + r) * LANES));
                }
            }
        }
    }
}

/// One lane block of a tile. (A closure would not be compiled with the tier's CPU features.)
///
/// # Safety
/// As [`tile_stored`]; the block is `at` bytes into the rows.
#[inline(always)]
unsafe fn multiply_block<L: Lanes, E: Element, const T: usize, const KEEP: bool>(
    c: &mut [[L; TILE_ROWS]; T],
    w: [*const u8; TILE_ROWS],
    at: usize,
    x: *const f32,
    keep: *mut f32,
) {
    // SAFETY: as this function.
    unsafe {
        let xs: [L; T] = std::array::from_fn(|t| L::load(x.add(t * LANES)));
        for r in 0..TILE_ROWS {
            let ws = if KEEP {
                E::load::<L>(w[r].add(at))
            } else {
                E::load::<L>(w[0].add(at + r * LANES * size_of::<f32>()))
            };
            if KEEP {
                ws.store(keep.add(r * LANES));
            }
            for t in 0..T {
                c[t][r] = ws.fma(xs[t], c[t][r]);
            }
        }
    }
}

/// Asks for the `len` bytes at `p`.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub unsafe fn prefetch<L: Lanes>(p: *const u8, len: usize) {
    for at in (0..len).step_by(CACHE_LINE) {
        // SAFETY: any address will do.
        unsafe { L::prefetch(p.wrapping_add(at)) }
    }
}

/// Calls `body(offset, count)` for each lane block of `n` elements; `count` < 8 only in the last.
#[inline(always)]
fn blocks(n: usize, mut body: impl FnMut(usize, usize)) {
    for i in (0..n).step_by(LANES) {
        body(i, LANES.min(n - i));
    }
}

/// # Safety
/// `p` has `count` f32.
#[inline(always)]
unsafe fn load_some<L: Lanes>(p: *const f32, count: usize) -> L {
    // SAFETY: as this function.
    unsafe { if count == LANES { L::load(p) } else { F32::load_tail(p.cast(), count) } }
}

/// # Safety
/// `p` has room for `count` f32.
#[inline(always)]
unsafe fn store_some<L: Lanes>(v: L, p: *mut f32, count: usize) {
    // SAFETY: as this function; the buffer has eight f32.
    unsafe {
        if count == LANES {
            return v.store(p);
        }
        let mut buffer = [0.0f32; LANES];
        v.store(buffer.as_mut_ptr());
        std::ptr::copy_nonoverlapping(buffer.as_ptr(), p, count);
    }
}

/// RMSNorm (Zhang & Sennrich 2019) as Hugging Face's LlamaRMSNorm: `out = weight · (x · 1/√(mean(x²) + ε))`.
///
/// # Safety
/// `x`, `weight` and `out` have `n` f32; `n` > 0; `out` may be `x`.
#[inline(always)]
pub unsafe fn rms_norm<L: Lanes>(x: *const f32, weight: *const f32, n: usize, eps: f32, out: *mut f32) {
    // SAFETY: `blocks` stays below n.
    unsafe {
        let mut acc = L::splat(0.0);
        blocks(n, |i, count| {
            let v = load_some::<L>(x.add(i), count);
            acc = v.fma(v, acc);
        });
        let scale = L::splat(1.0 / (acc.sum() / n as f32 + eps).sqrt());
        blocks(n, |i, count| {
            let v = load_some::<L>(x.add(i), count).mul(scale);
            store_some(load_some::<L>(weight.add(i), count).mul(v), out.add(i), count);
        });
    }
}

/// SwiGLU (Shazeer 2020): `out = silu(gate) · up`, silu(x) = x / (1 + e⁻ˣ).
///
/// # Safety
/// `gate`, `up` and `out` have `n` f32.
#[inline(always)]
pub unsafe fn swiglu<L: Lanes>(gate: *const f32, up: *const f32, n: usize, out: *mut f32) {
    // SAFETY: `blocks` stays below n.
    unsafe {
        blocks(n, |i, count| {
            let g = load_some::<L>(gate.add(i), count);
            store_some(sigmoid_times(g, g).mul(load_some(up.add(i), count)), out.add(i), count);
        });
    }
}

/// GeGLU (Shazeer 2020) with the tanh approximation of GELU: `out = gelu(gate) · up`,
/// gelu(x) = x / 2 · (1 + tanh(u)) = x / (1 + e⁻²ᵘ), u = √(2/π) · (x + 0.044715 x³).
///
/// # Safety
/// `gate`, `up` and `out` have `n` f32.
#[inline(always)]
pub unsafe fn geglu<L: Lanes>(gate: *const f32, up: *const f32, n: usize, out: *mut f32) {
    const TWICE_ROOT: f32 = 1.595_769; // 2 · √(2/π)
    // SAFETY: `blocks` stays below n.
    unsafe {
        blocks(n, |i, count| {
            let g = load_some::<L>(gate.add(i), count);
            let cubic = g.mul(g).mul(g).fma(L::splat(0.044_715), g);
            let gelu = sigmoid_times(cubic.mul(L::splat(TWICE_ROOT)), g);
            store_some(gelu.mul(load_some(up.add(i), count)), out.add(i), count);
        });
    }
}

/// y / (1 + e⁻ˣ).
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn sigmoid_times<L: Lanes>(x: L, y: L) -> L {
    // SAFETY: as this function.
    unsafe { y.div(exp(L::splat(0.0).sub(x)).add(L::splat(1.0))) }
}

/// `x = cap · tanh(x / cap)`.
///
/// # Safety
/// `x` has `n` f32.
#[inline(always)]
pub unsafe fn soft_cap<L: Lanes>(x: *mut f32, n: usize, cap: f32) {
    // SAFETY: `blocks` stays below n.
    unsafe {
        blocks(n, |i, count| {
            let v = load_some::<L>(x.add(i), count);
            store_some(tanh(v.div(L::splat(cap))).mul(L::splat(cap)), x.add(i), count);
        });
    }
}

/// `x = exp(x − m)`.
///
/// # Safety
/// `x` has `n` f32.
#[inline(always)]
pub unsafe fn exp_minus<L: Lanes>(x: *mut f32, n: usize, m: f32) {
    // SAFETY: `blocks` stays below n.
    unsafe {
        blocks(n, |i, count| {
            store_some(exp(load_some::<L>(x.add(i), count).sub(L::splat(m))), x.add(i), count);
        });
    }
}

/// `n` elements of `E` as f32, exactly.
///
/// # Safety
/// `src` has `n` elements, `dst` room for `n` f32.
#[inline(always)]
pub unsafe fn widen<L: Lanes, E: Element>(src: *const u8, n: usize, dst: *mut f32) {
    // SAFETY: `blocks` stays below n.
    unsafe {
        blocks(n, |i, count| {
            let p = src.add(i * E::DTYPE.size());
            let v: L = if count == LANES { E::load(p) } else { E::load_tail(p, count) };
            store_some(v, dst.add(i), count);
        });
    }
}

/// `n` f32 as F16, rounded to nearest even.
///
/// # Safety
/// `src` has `n` f32, `dst` room for `n` F16.
#[inline(always)]
pub unsafe fn narrow_f16<L: Lanes>(src: *const f32, n: usize, dst: *mut u8) {
    // SAFETY: `blocks` stays below n; the buffer has eight F16.
    unsafe {
        blocks(n, |i, count| {
            let v = load_some::<L>(src.add(i), count);
            if count == LANES {
                return v.store_f16(dst.add(2 * i));
            }
            let mut buffer = [0u8; 2 * LANES];
            v.store_f16(buffer.as_mut_ptr());
            std::ptr::copy_nonoverlapping(buffer.as_ptr(), dst.add(2 * i), 2 * count);
        });
    }
}
