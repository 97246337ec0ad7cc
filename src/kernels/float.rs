//! Kernels on rows of f32, written once over [`Lanes`] and [`Vector`].

use super::lanes::{Element, F32, Lanes, MOST_LANES, Vector, exp, tanh};

/// Bytes that come near together.
pub const CACHE_LINE: usize = 64;

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
pub unsafe fn load_elements<V: Vector, E: Element>(p: *const u8, count: usize) -> V {
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
