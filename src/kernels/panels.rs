//! Matrix products of quantized weights, and the quantizing, written once over [`IntLanes`].
//!
//! A row x of activations is quantized in groups of 32: `scale = max |x| / 127`, codes `round(x · 127 / max |x|)`. A product
//! adds the groups in ascending order, `acc = fma(w_scale · x_scale, Σ w_code · x_code, acc)` from 0, where the sum of integers
//! is exact. Eight lanes are the eight rows of a panel, so nothing depends on the tile or on the number of rows.

use super::float::{blocks, load_some};
use super::lanes::{LANES, Lanes, Vector};
use crate::tensor::quant::{GROUP, PANEL_ROWS, Quant, SCALE_BYTES, ZEROS_AT};

/// Tokens of a register tile.
pub const PANEL_TOKENS: usize = 4;
/// How far ahead of the current position weights are prefetched, in bytes.
const PREFETCH: usize = 1088;
pub const CACHE_LINE: usize = 64;

/// What a tier does with integers.
///
/// # Safety
/// As [`Lanes`].
pub trait IntLanes {
    /// The lanes that the integers become.
    type Float: Lanes;
    /// Sums of products for the eight rows of a panel.
    type Int: Copy;
    /// Nothing added yet.
    unsafe fn int_zero() -> Self::Int;
    /// `acc[t][r] += Σ w[r][i] · x[t][i]` over four i: `w` are the 32 i8 `[8][4]`, each `x[t]` points at four i8 in ±127. After
    /// eight calls [`int8_sums`](Self::int8_sums) is due.
    unsafe fn int8_dot<const T: usize>(acc: &mut [Self::Int; T], w: *const u8, x: [*const i8; T]);
    /// What [`int8_dot`](Self::int8_dot) has added up as plain sums; `eight` is that of the activations.
    unsafe fn int8_sums(acc: Self::Int, eight: i32) -> Self::Int;
    /// `acc[t][r] += Σ w[r][i] · x[t][i]` over eight i: `w` are 32 bytes `[8][4]`, of which the lower halves, from 0 to 15,
    /// meet the first four i8 at `x[t]` and the upper ones the next four. After four calls [`int4_sums`](Self::int4_sums) or
    /// [`int4_sums_less_zeros`](Self::int4_sums_less_zeros) is due.
    unsafe fn int4_dot<const T: usize>(acc: &mut [Self::Int; T], w: *const u8, x: [*const i8; T]);
    /// What [`int4_dot`](Self::int4_dot) has added up, less `eight`, as plain sums.
    unsafe fn int4_sums(acc: Self::Int, eight: i32) -> Self::Int;
    /// The same, less `zeros[r] · total`: eight u8, and a number that fits 16 bits.
    unsafe fn int4_sums_less_zeros(acc: Self::Int, zeros: *const u8, total: i32) -> Self::Int;
    /// As f32; the sums of a group are far below 2²⁴.
    unsafe fn from_int(v: Self::Int) -> Self::Float;
    /// A tier's own way of [`panel_gemm`] for some panels together: does the first ones so, and returns how many.
    ///
    /// # Safety
    /// As [`panel_gemm`].
    #[inline(always)]
    unsafe fn panels_together<Q: Format>(
        _w: *const u8,
        _panels: usize,
        _x: *const CodeGroup,
        _size: (usize, usize),
        _out: *mut f32,
        _stride: usize,
    ) -> usize {
        0
    }
}

/// A format that kernels are compiled for.
pub trait Format {
    /// As a value.
    const QUANT: Quant;
    /// The least and the greatest code.
    const CODES: (f32, f32);
    /// The codes that quantizing tries to give the greatest magnitude of a group, some beyond what there is.
    const GREATEST: &'static [[f32; 4]];
    /// The sums of the codes' products of one group.
    ///
    /// # Safety
    /// `w` is a group of a panel.
    unsafe fn sums<I: IntLanes, const T: usize>(w: *const u8, x: [&CodeGroup; T]) -> [I::Int; T];
}

/// [`Quant::Int8`].
pub enum Int8 {}
/// [`Quant::Int4`].
pub enum Int4 {}
/// [`Quant::Int4Asymmetric`].
pub enum Int4Asymmetric {}

impl Format for Int8 {
    const QUANT: Quant = Quant::Int8;
    const CODES: (f32, f32) = (-128.0, 127.0);
    const GREATEST: &'static [[f32; 4]] = &[[-128.45, 128.45, -127.0, 127.45]];
    #[inline(always)]
    unsafe fn sums<I: IntLanes, const T: usize>(w: *const u8, x: [&CodeGroup; T]) -> [I::Int; T] {
        // SAFETY: eight times 32 bytes follow the scales, and each x[t] has 32 codes.
        unsafe {
            let mut acc = [I::int_zero(); T];
            for i in 0..GROUP / 4 {
                I::int8_dot(&mut acc, w.add(SCALE_BYTES + 32 * i), x.map(|x| x.codes.as_ptr().add(4 * i)));
            }
            for (acc, x) in acc.iter_mut().zip(x) {
                *acc = I::int8_sums(*acc, x.eight);
            }
            acc
        }
    }
}

/// The products of the stored halves of bytes of one group, from 0 to 15, still to be summed.
///
/// # Safety
/// `w` is a group of a panel of INT4, with zeros or without.
#[inline(always)]
unsafe fn int4_products<I: IntLanes, const T: usize>(w: *const u8, x: [&CodeGroup; T]) -> [I::Int; T] {
    // SAFETY: four times 32 bytes follow the scales, and each x[t] has 32 codes.
    unsafe {
        let mut acc = [I::int_zero(); T];
        for i in 0..GROUP / 8 {
            I::int4_dot(&mut acc, w.add(SCALE_BYTES + 32 * i), x.map(|x| x.codes.as_ptr().add(8 * i)));
        }
        acc
    }
}

impl Format for Int4 {
    const QUANT: Quant = Quant::Int4;
    const CODES: (f32, f32) = (-8.0, 7.0);
    const GREATEST: &'static [[f32; 4]] = &[[-7.0, -7.6, -8.3, -9.0], [7.0, 7.6, 8.3, 9.0], [6.5, -9.8, -6.5, 9.8]];
    #[inline(always)]
    unsafe fn sums<I: IntLanes, const T: usize>(w: *const u8, x: [&CodeGroup; T]) -> [I::Int; T] {
        // SAFETY: as the caller.
        unsafe {
            let mut acc = int4_products::<I, T>(w, x);
            for (acc, x) in acc.iter_mut().zip(x) {
                *acc = I::int4_sums(*acc, x.eight);
            }
            acc
        }
    }
}

impl Format for Int4Asymmetric {
    const QUANT: Quant = Quant::Int4Asymmetric;
    const CODES: (f32, f32) = Int4::CODES;
    const GREATEST: &'static [[f32; 4]] = Int4::GREATEST;
    #[inline(always)]
    unsafe fn sums<I: IntLanes, const T: usize>(w: *const u8, x: [&CodeGroup; T]) -> [I::Int; T] {
        // SAFETY: as the caller: eight zeros lie at the end of the group. The sum of 32 codes in ±127 fits 16 bits.
        unsafe {
            let mut acc = int4_products::<I, T>(w, x);
            for (acc, x) in acc.iter_mut().zip(x) {
                *acc = I::int4_sums_less_zeros(*acc, w.add(ZEROS_AT), x.eight / 8);
            }
            acc
        }
    }
}

/// A group of quantized activations: each is `scale` times its code.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CodeGroup {
    /// In −127..=127.
    pub codes: [i8; GROUP],
    /// NaN if one of the activations was NaN or infinite.
    pub scale: f32,
    /// Eight times the sum of the codes: what an offset of the weights by eight adds to a sum of products.
    pub eight: i32,
}

/// `out[s][8·p + r] = w[s][p][r] · x` for `panels` panels from each of four places, walked together: four long sequential
/// streams are what the hardware prefetchers like best.
///
/// # Safety
/// Each `w[s]` has `panels` panels of `groups` groups, `x` as many, each `out[s]` room for 8 · `panels` f32.
#[inline(always)]
pub unsafe fn panel_gemv<I: IntLanes, Q: Format>(
    w: [*const u8; 4],
    panels: usize,
    x: *const CodeGroup,
    groups: usize,
    out: [*mut f32; 4],
) {
    let bytes = Q::QUANT.group_bytes();
    // SAFETY: every index below stays under panels and groups; prefetch takes any address.
    unsafe {
        for p in 0..panels {
            let mut acc = [I::Float::splat(0.0); 4];
            for g in 0..groups {
                let x = &*x.add(g);
                let scale = I::Float::splat(x.scale);
                for s in 0..4 {
                    let w = w[s].add((p * groups + g) * bytes);
                    for line in (0..bytes).step_by(CACHE_LINE) {
                        I::Float::prefetch(w.wrapping_add(PREFETCH + line));
                    }
                    let [sums] = Q::sums::<I, 1>(w, [x]);
                    acc[s] = I::Float::load_f16(w).mul(scale).fma(I::from_int(sums), acc[s]);
                }
            }
            for s in 0..4 {
                acc[s].store(out[s].add(p * PANEL_ROWS));
            }
        }
    }
}

/// `out[t · stride + 8·p + r] = w[p][r] · x[t]` for `panels` panels and `n` tokens.
///
/// # Safety
/// `w` has `panels` panels of `groups` groups, `x` has `n` rows of as many, `out` room for `n` rows of 8 · `panels` f32, `stride`
/// from row to row.
#[inline(always)]
pub unsafe fn panel_gemm<I: IntLanes, Q: Format>(
    w: *const u8,
    panels: usize,
    x: *const CodeGroup,
    (n, groups): (usize, usize),
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: every index below stays under panels and n.
    unsafe {
        for p in I::panels_together::<Q>(w, panels, x, (n, groups), out, stride)..panels {
            let (w, out) = (w.add(p * groups * Q::QUANT.group_bytes()), out.add(p * PANEL_ROWS));
            let mut t = 0;
            while t < n {
                let out = out.add(t * stride);
                t += match n - t {
                    1 => panel_tile::<I, Q, 1>(w, x.add(t * groups), groups, t == 0, out, stride),
                    2 => panel_tile::<I, Q, 2>(w, x.add(t * groups), groups, t == 0, out, stride),
                    3 => panel_tile::<I, Q, 3>(w, x.add(t * groups), groups, t == 0, out, stride),
                    _ => panel_tile::<I, Q, PANEL_TOKENS>(w, x.add(t * groups), groups, t == 0, out, stride),
                };
            }
        }
    }
}

/// One panel times `T` tokens; returns `T`. If asked to, it brings the next panel near.
///
/// # Safety
/// As [`panel_gemm`].
#[inline(always)]
unsafe fn panel_tile<I: IntLanes, Q: Format, const T: usize>(
    w: *const u8,
    x: *const CodeGroup,
    groups: usize,
    prefetch: bool,
    out: *mut f32,
    stride: usize,
) -> usize {
    let bytes = Q::QUANT.group_bytes();
    // SAFETY: as the caller; prefetch takes any address.
    unsafe {
        let mut acc = [I::Float::splat(0.0); T];
        for g in 0..groups {
            let w = w.add(g * bytes);
            if prefetch {
                // One stream: as far ahead as the four of `panel_gemv` together.
                for line in (0..bytes).step_by(CACHE_LINE) {
                    I::Float::prefetch(w.wrapping_add(4 * PREFETCH + line));
                }
            }
            let x: [&CodeGroup; T] = std::array::from_fn(|t| &*x.add(t * groups + g));
            let sums = Q::sums::<I, T>(w, x);
            let scales = I::Float::load_f16(w);
            for t in 0..T {
                acc[t] = scales.mul(I::Float::splat(x[t].scale)).fma(I::from_int(sums[t]), acc[t]);
            }
        }
        for t in 0..T {
            acc[t].store(out.add(t * stride));
        }
    }
    T
}

/// Quantizes a row of `k` activations in groups of 32; what is missing in the last counts as 0. A group with NaN or infinity gets
/// the scale NaN, one below 1e-30 throughout becomes 0.
///
/// # Safety
/// `x` has `k` f32, `out` room for all groups.
#[inline(always)]
pub unsafe fn quantize_row<I: IntLanes>(x: *const f32, k: usize, out: *mut CodeGroup) {
    const SMALLEST: f32 = 1e-30;
    // SAFETY: group g reads below k and writes its own codes.
    unsafe {
        for g in 0..k.div_ceil(GROUP) {
            let (v, most, poison) = load_group::<I::Float>(x.add(g * GROUP), GROUP.min(k - g * GROUP));
            let (scale, factor) = if most > SMALLEST { (most / 127.0, 127.0 / most) } else { (0.0, 0.0) };
            let (out, mut total) = (&mut *out.add(g), I::Float::splat(0.0));
            for (b, v) in v.into_iter().enumerate() {
                let code = clamp(v.mul(I::Float::splat(factor)).round(), 127.0);
                total = total.add(code);
                code.store_i8(out.codes.as_mut_ptr().add(b * LANES));
            }
            out.scale = scale + poison;
            out.eight = 8 * total.sum() as i32;
        }
    }
}

/// A group as four times eight lanes, its greatest magnitude, and 0, or NaN if it holds NaN or infinity.
///
/// # Safety
/// `x` has `count` ≤ 32 f32.
#[inline(always)]
unsafe fn load_group<L: Lanes>(x: *const f32, count: usize) -> ([L; GROUP / LANES], f32, f32) {
    // SAFETY: `blocks` stays below count.
    unsafe {
        let mut v = [L::splat(0.0); GROUP / LANES];
        for (i, count) in blocks::<L>(count) {
            v[i / LANES] = load_some(x.add(i), count);
        }
        let (mut most, mut poison) = (L::splat(0.0), L::splat(0.0));
        for v in v {
            most = most.max(v.max(L::splat(0.0).sub(v)));
            poison = v.fma(L::splat(0.0), poison);
        }
        (v, most.highest(), poison.sum())
    }
}

/// `v` between ± `most`.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn clamp<L: Lanes>(v: L, most: f32) -> L {
    // SAFETY: as this function.
    unsafe { L::splat(most).min(L::splat(-most).max(v)) }
}

/// Quantizes a panel of weights, `[8][k]` f32, to `panel`. Returns whether that is possible: no scale may be NaN or beyond F16.
///
/// # Safety
/// `x` has eight rows of `k` f32, `panel` room for [`Quant::panel_bytes`].
#[inline(always)]
pub unsafe fn quantize_panel<I: IntLanes, Q: Format>(x: *const f32, k: usize, panel: *mut u8) -> bool {
    let bytes = Q::QUANT.group_bytes();
    let mut good = true;
    // SAFETY: group g reads below k and writes its own bytes.
    unsafe {
        for g in 0..k.div_ceil(GROUP) {
            let count = GROUP.min(k - g * GROUP);
            let mut rows = [[0.0f32; GROUP]; PANEL_ROWS];
            let mut columns = [[0.0f32; PANEL_ROWS]; GROUP];
            for (r, row) in rows.iter_mut().enumerate() {
                std::ptr::copy_nonoverlapping(x.add(r * k + g * GROUP), row.as_mut_ptr(), count);
                for i in 0..GROUP {
                    columns[i][r] = row[i];
                }
            }
            let group = std::slice::from_raw_parts_mut(panel.add(g * bytes), bytes);
            best_scales::<I::Float, Q>(&columns).store_f16(group.as_mut_ptr());
            // As they are stored, so that the codes fit them.
            let mut scales = [0.0f32; PANEL_ROWS];
            I::Float::load_f16(group.as_ptr()).store(scales.as_mut_ptr());
            let mut codes = [[0i8; GROUP]; PANEL_ROWS];
            for (r, codes) in codes.iter_mut().enumerate() {
                good &= scales[r].is_finite();
                let factor = I::Float::splat(if scales[r] == 0.0 { 0.0 } else { 1.0 / scales[r] });
                for at in (0..GROUP).step_by(LANES) {
                    let v = I::Float::load(rows[r].as_ptr().add(at)).mul(factor);
                    nearest_codes::<I::Float, Q>(v).store_i8(codes.as_mut_ptr().add(at));
                }
            }
            Q::QUANT.place(&codes, group);
        }
    }
    good
}

/// For each row of a group of a panel, a lane, the scale with (nearly) the least squared error; NaN if a weight is NaN or
/// infinite. For codes q the best scale is Σxq / Σq², and leaves Σx² − (Σxq)² / Σq²; the codes tried are those of a few
/// scales, with either sign, around the one that just holds the greatest magnitude, and of a few around the best of them.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn best_scales<L: Lanes, Q: Format>(columns: &[[f32; PANEL_ROWS]; GROUP]) -> L {
    const AROUND: [f32; 4] = [0.97, 0.99, 1.01, 1.03];
    /// What is smaller throughout has the scale 0 in 16 bits, whatever its codes.
    const SMALLEST: f32 = 1e-30;
    // SAFETY: as this function.
    unsafe {
        let (mut most, mut poison) = (L::splat(SMALLEST), L::splat(0.0));
        for column in columns {
            let v = L::load(column.as_ptr());
            most = most.max(v.max(L::splat(0.0).sub(v)));
            poison = v.fma(L::splat(0.0), poison);
        }
        let mut best = (L::splat(0.0), L::splat(1.0));
        for codes in Q::GREATEST {
            let mut factors = [most; 4];
            for i in 0..4 {
                factors[i] = L::splat(codes[i]).div(most);
            }
            keep_best::<L, Q>(columns, factors, &mut best);
        }
        let mut factors = [best.1.div(best.0); 4];
        for i in 0..4 {
            factors[i] = factors[i].mul(L::splat(AROUND[i]));
        }
        keep_best::<L, Q>(columns, factors, &mut best);
        best.0.div(best.1).add(poison)
    }
}

/// Puts into `best` the Σxq and Σq² that explain most of the squares, of what is there and of the codes q = round(x · factor);
/// a factor that is not finite explains nothing.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn keep_best<L: Lanes, Q: Format>(columns: &[[f32; PANEL_ROWS]; GROUP], factors: [L; 4], best: &mut (L, L)) {
    // SAFETY: as this function.
    unsafe {
        let (mut xq, mut qq) = ([L::splat(0.0); 4], [L::splat(0.0); 4]);
        for column in columns {
            let v = L::load(column.as_ptr());
            for i in 0..4 {
                let q = nearest_codes::<L, Q>(v.mul(factors[i]));
                (xq[i], qq[i]) = (v.fma(q, xq[i]), q.fma(q, qq[i]));
            }
        }
        for i in 0..4 {
            let (new, old) = (xq[i].mul(xq[i]).mul(best.1), best.0.mul(best.0).mul(qq[i]));
            *best = (new.if_greater(old, xq[i], best.0), new.if_greater(old, qq[i], best.1));
        }
    }
}

/// The nearest codes of a format.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn nearest_codes<L: Lanes, Q: Format>(v: L) -> L {
    let (least, greatest) = Q::CODES;
    // SAFETY: as this function.
    unsafe { L::splat(greatest).min(L::splat(least).max(v.round())) }
}
