//! Matrix and row kernels on f32 activations and weights of any element type, written once over [`Quad`], [`Lanes`] and [`Vector`].
//!
//! Every dot product keeps eight partial sums, lane j taking the elements k ≡ j (mod 8) in ascending order by fused
//! multiply-add from 0; a tail is padded with zeros; the lanes are added as [`Lanes::sum`] says. So the result does
//! not depend on the tile, the block of k or the number of rows.

use super::gemm::{Quad, TILE_ROWS};
use super::lanes::{Element, F32, LANES, Lanes, MOST_LANES, Vector, exp, in_groups, tanh};

/// How far ahead of the current position weights are prefetched, in bytes.
const PREFETCH: usize = 1024;
const CACHE_LINE: usize = 64;

/// `out[s][t · stride + i] = w[s][i] · x[t]` for `rows` rows from each of four places, walked together, and `n` tokens: four
/// long sequential streams are what the hardware prefetchers like best. Tokens for which no registers are left find the rows in
/// the first-level cache.
///
/// # Safety
/// Each `w[s]` has `rows × k` elements of `E`, `x` has `n × k` f32, each `out[s]` room for `n` rows of `rows` f32, `stride`
/// from row to row.
#[inline(always)]
pub unsafe fn gemv<K: Quad, E: Element>(
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
            in_groups!(n, K::TOGETHER == 4, [8, 6, 4], |t, T| {
                let (x, out) = (x.add(t * k), out.map(|p| p.add(t * stride + row)));
                dot4::<K, E, T>(w, k, x, out, stride, t == 0);
            });
        }
    }
}

/// Four rows times `T` tokens, as in [`gemv`].
///
/// # Safety
/// As [`gemv`].
#[inline(always)]
unsafe fn dot4<K: Quad, E: Element, const T: usize>(
    w: [*const u8; TILE_ROWS],
    k: usize,
    x: *const f32,
    out: [*mut f32; TILE_ROWS],
    stride: usize,
    prefetch: bool,
) {
    const UNROLL: usize = 4 * LANES;
    let size = E::DTYPE.size();
    // SAFETY: every index below stays under k and T; prefetch takes any address.
    unsafe {
        let mut acc = [K::zero(); T];
        let mut i = 0;
        while i + UNROLL <= k {
            if prefetch {
                for p in w {
                    for line in (0..UNROLL * size).step_by(CACHE_LINE) {
                        K::Lanes::prefetch(p.wrapping_add(i * size + PREFETCH + line));
                    }
                }
            }
            for u in (i..i + UNROLL).step_by(LANES) {
                let mut xs = [K::token(x.add(u)); T];
                for t in 1..T {
                    xs[t] = K::token(x.add(t * k + u));
                }
                K::add_rows::<E, T>(&mut acc, w.map(|p| p.add(u * size)), xs);
            }
            i += UNROLL;
        }
        while i < k {
            let count = LANES.min(k - i);
            let mut ws = [[0.0f32; LANES]; TILE_ROWS];
            for s in 0..TILE_ROWS {
                load_elements::<K::Lanes, E>(w[s].add(i * size), count).store(ws[s].as_mut_ptr());
            }
            let mut xs = [K::token([0.0f32; LANES].as_ptr()); T];
            for t in 0..T {
                let mut padded = [0.0f32; LANES];
                load_some::<K::Lanes>(x.add(t * k + i), count).store(padded.as_mut_ptr());
                xs[t] = K::token(padded.as_ptr());
            }
            K::add(&mut acc, ws.as_ptr().cast(), xs);
            i += LANES;
        }
        for t in 0..T {
            let sums = acc[t].sums();
            for s in 0..TILE_ROWS {
                *out[s].add(t * stride) = sums[s];
            }
        }
    }
}

/// Asks for the `len` bytes at `p`.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub unsafe fn prefetch<V: Vector>(p: *const u8, len: usize) {
    for at in (0..len).step_by(CACHE_LINE) {
        // SAFETY: any address will do.
        unsafe { V::prefetch(p.wrapping_add(at)) }
    }
}

/// Offset and count of each block of lanes of `n` elements; less than all lanes only in the last.
#[inline(always)]
pub fn blocks<V: Vector>(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).step_by(V::WIDTH).map(move |i| (i, V::WIDTH.min(n - i)))
}

/// `count` f32 from `p` on, the other lanes zero.
///
/// # Safety
/// `p` has `count` f32.
#[inline(always)]
pub unsafe fn load_some<V: Vector>(p: *const f32, count: usize) -> V {
    // SAFETY: as this function.
    unsafe { load_elements::<V, F32>(p.cast(), count) }
}

/// # Safety
/// `p` has `count` elements of `E`, at most as many as there are lanes.
#[inline(always)]
unsafe fn load_elements<V: Vector, E: Element>(p: *const u8, count: usize) -> V {
    // SAFETY: as this function.
    unsafe { if count == V::WIDTH { E::load(p) } else { E::load_tail(p, count) } }
}

/// # Safety
/// `p` has room for `count` f32.
#[inline(always)]
unsafe fn store_some<V: Vector>(v: V, p: *mut f32, count: usize) {
    // SAFETY: as this function; the buffer holds all lanes.
    unsafe {
        if count == V::WIDTH {
            return v.store(p);
        }
        let mut buffer = [0.0f32; MOST_LANES];
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
        for (i, count) in blocks::<L>(n) {
            let v = load_some::<L>(x.add(i), count);
            acc = v.fma(v, acc);
        }
        let scale = L::splat(1.0 / (acc.sum() / n as f32 + eps).sqrt());
        for (i, count) in blocks::<L>(n) {
            let v = load_some::<L>(x.add(i), count).mul(scale);
            store_some(load_some::<L>(weight.add(i), count).mul(v), out.add(i), count);
        }
    }
}

/// SwiGLU (Shazeer 2020): `out = silu(gate) · up`, silu(x) = x / (1 + e⁻ˣ).
///
/// # Safety
/// `gate`, `up` and `out` have `n` f32.
#[inline(always)]
pub unsafe fn swiglu<V: Vector>(gate: *const f32, up: *const f32, n: usize, out: *mut f32) {
    // SAFETY: `blocks` stays below n.
    unsafe {
        for (i, count) in blocks::<V>(n) {
            let g = load_some::<V>(gate.add(i), count);
            store_some(sigmoid_times(g, g).mul(load_some(up.add(i), count)), out.add(i), count);
        }
    }
}

/// GeGLU (Shazeer 2020) with the tanh approximation of GELU: `out = gelu(gate) · up`,
/// gelu(x) = x / 2 · (1 + tanh(u)) = x / (1 + e⁻²ᵘ), u = √(2/π) · (x + 0.044715 x³).
///
/// # Safety
/// `gate`, `up` and `out` have `n` f32.
#[inline(always)]
pub unsafe fn geglu<V: Vector>(gate: *const f32, up: *const f32, n: usize, out: *mut f32) {
    const TWICE_ROOT: f32 = 1.595_769; // 2 · √(2/π)
    // SAFETY: `blocks` stays below n.
    unsafe {
        for (i, count) in blocks::<V>(n) {
            let g = load_some::<V>(gate.add(i), count);
            let cubic = g.mul(g).mul(g).fma(V::splat(0.044_715), g);
            let gelu = sigmoid_times(cubic.mul(V::splat(TWICE_ROOT)), g);
            store_some(gelu.mul(load_some(up.add(i), count)), out.add(i), count);
        }
    }
}

/// y / (1 + e⁻ˣ).
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn sigmoid_times<V: Vector>(x: V, y: V) -> V {
    // SAFETY: as this function.
    unsafe { y.div(exp(V::splat(0.0).sub(x)).add(V::splat(1.0))) }
}

/// `x = cap · tanh(x / cap)`.
///
/// # Safety
/// `x` has `n` f32.
#[inline(always)]
pub unsafe fn soft_cap<V: Vector>(x: *mut f32, n: usize, cap: f32) {
    // SAFETY: `blocks` stays below n.
    unsafe {
        for (i, count) in blocks::<V>(n) {
            let v = load_some::<V>(x.add(i), count);
            store_some(tanh(v.div(V::splat(cap))).mul(V::splat(cap)), x.add(i), count);
        }
    }
}

/// `x = exp(x − m)`.
///
/// # Safety
/// `x` has `n` f32.
#[inline(always)]
pub unsafe fn exp_minus<V: Vector>(x: *mut f32, n: usize, m: f32) {
    // SAFETY: `blocks` stays below n.
    unsafe {
        for (i, count) in blocks::<V>(n) {
            store_some(exp(load_some::<V>(x.add(i), count).sub(V::splat(m))), x.add(i), count);
        }
    }
}

/// `n` elements of `E` as f32, exactly.
///
/// # Safety
/// `src` has `n` elements, `dst` room for `n` f32.
#[inline(always)]
pub unsafe fn widen<V: Vector, E: Element>(src: *const u8, n: usize, dst: *mut f32) {
    // SAFETY: `blocks` stays below n.
    unsafe {
        for (i, count) in blocks::<V>(n) {
            let p = src.add(i * E::DTYPE.size());
            let v = load_elements::<V, E>(p, count);
            store_some(v, dst.add(i), count);
        }
    }
}

/// `n` f32 as F16, rounded to nearest even.
///
/// # Safety
/// `src` has `n` f32, `dst` room for `n` F16.
#[inline(always)]
pub unsafe fn narrow_f16<V: Vector>(src: *const f32, n: usize, dst: *mut u8) {
    // SAFETY: `blocks` stays below n; the buffer holds all lanes.
    unsafe {
        for (i, count) in blocks::<V>(n) {
            let v = load_some::<V>(src.add(i), count);
            if count == V::WIDTH {
                v.store_f16(dst.add(2 * i));
                continue;
            }
            let mut buffer = [0u8; 2 * MOST_LANES];
            v.store_f16(buffer.as_mut_ptr());
            std::ptr::copy_nonoverlapping(buffer.as_ptr(), dst.add(2 * i), 2 * count);
        }
    }
}
