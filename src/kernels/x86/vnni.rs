//! Quantized weights by AVX-512 VNNI: four products of integers are added up at once, and where tokens are many, two panels share
//! the work on activations and sums.

use super::avx2::{Avx2, fours, halves, zeros_times};
use crate::kernels::panels::{CACHE_LINE, CodeGroup, Format, IntLanes, PANEL_TOKENS};
use crate::tensor::quant::{GROUP, PANEL_ROWS, Quant, SCALE_BYTES, ZEROS_AT};
use std::arch::x86_64::*;

/// Sums by `vpdpbusd`, which multiplies unsigned by signed bytes.
pub enum Vnni {}

// SAFETY of every block below: the trait's callers vouch for AVX-512 (F, DQ, VL, VNNI), AVX2, FMA and F16C and for the memory; the
// intrinsics used have no other precondition, and all loads and stores are the unaligned ones.
#[allow(clippy::undocumented_unsafe_blocks)] // one argument for all, above
impl IntLanes for Vnni {
    type Float = Avx2;
    type Int = __m256i;
    #[inline(always)]
    unsafe fn int_zero() -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn int8_dot<const T: usize>(acc: &mut [__m256i; T], w: *const u8, x: [*const i8; T]) {
        // The weights are 128 too large here.
        unsafe {
            let w = _mm256_xor_si256(_mm256_loadu_si256(w.cast()), _mm256_set1_epi8(-128));
            for t in 0..T {
                acc[t] = _mm256_dpbusd_epi32(acc[t], w, fours(x[t]));
            }
        }
    }
    #[inline(always)]
    unsafe fn int8_sums(acc: __m256i, eight: i32) -> __m256i {
        unsafe { _mm256_sub_epi32(acc, _mm256_set1_epi32(16 * eight)) }
    }
    #[inline(always)]
    unsafe fn int4_dot<const T: usize>(acc: &mut [__m256i; T], w: *const u8, x: [*const i8; T]) {
        unsafe {
            let (lower, upper) = halves(w);
            for t in 0..T {
                let first = _mm256_dpbusd_epi32(acc[t], lower, fours(x[t]));
                acc[t] = _mm256_dpbusd_epi32(first, upper, fours(x[t].add(4)));
            }
        }
    }
    #[inline(always)]
    unsafe fn int4_sums(acc: __m256i, eight: i32) -> __m256i {
        unsafe { _mm256_sub_epi32(acc, _mm256_set1_epi32(eight)) }
    }
    #[inline(always)]
    unsafe fn int4_sums_less_zeros(acc: __m256i, zeros: *const u8, total: i32) -> __m256i {
        unsafe { _mm256_sub_epi32(acc, zeros_times(zeros, total)) }
    }
    #[inline(always)]
    unsafe fn from_int(v: __m256i) -> Avx2 {
        unsafe { Avx2::from_int(v) }
    }
    #[inline(always)]
    unsafe fn panels_together<Q: Format>(
        w: *const u8,
        panels: usize,
        x: *const CodeGroup,
        (n, groups): (usize, usize),
        out: *mut f32,
        stride: usize,
    ) -> usize {
        let panel = groups * Q::QUANT.group_bytes();
        let pairs = panels / 2;
        // SAFETY: every index stays under 2 · pairs ≤ panels and n.
        unsafe {
            for p in (0..2 * pairs).step_by(2) {
                let (w, out) = ([w.add(p * panel), w.add((p + 1) * panel)], out.add(p * PANEL_ROWS));
                let mut t = 0;
                while t < n {
                    let (x, out, first) = (x.add(t * groups), out.add(t * stride), t == 0);
                    t += match n - t {
                        1 => two_panels::<Q, 1>(w, x, groups, first, out, stride),
                        2 => two_panels::<Q, 2>(w, x, groups, first, out, stride),
                        3 => two_panels::<Q, 3>(w, x, groups, first, out, stride),
                        _ => two_panels::<Q, PANEL_TOKENS>(w, x, groups, first, out, stride),
                    };
                }
            }
        }
        2 * pairs
    }
}

/// Two panels times `T` tokens; returns `T`. If asked to, it brings the panels behind them near. A `zmm` register holds the products
/// of one panel, of two times four inputs; the sums of both panels, the two halves added, are in one.
///
/// # Safety
/// As [`IntLanes::panels_together`].
#[inline(always)]
unsafe fn two_panels<Q: Format, const T: usize>(
    w: [*const u8; 2],
    x: *const CodeGroup,
    groups: usize,
    prefetch: bool,
    out: *mut f32,
    stride: usize,
) -> usize {
    let bytes = Q::QUANT.group_bytes();
    // SAFETY: each panel has `groups` groups, x as many for each token; prefetch takes any address.
    unsafe {
        let mut acc = [_mm512_setzero_ps(); T];
        for g in 0..groups {
            let w = [w[0].add(g * bytes), w[1].add(g * bytes)];
            if prefetch {
                for w in w {
                    for line in (0..bytes).step_by(CACHE_LINE) {
                        _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(2 * groups * bytes + line).cast());
                    }
                }
            }
            let x: [&CodeGroup; T] = std::array::from_fn(|t| &*x.add(t * groups + g));
            let sums = match Q::QUANT {
                Quant::Int8 => int8_products(w, x),
                Quant::Int4 | Quant::Int4Asymmetric => int4_products(w, x),
            };
            let scales = _mm256_castsi128_si256(_mm_loadu_si128(w[0].cast()));
            let scales = _mm512_cvtph_ps(_mm256_inserti128_si256::<1>(scales, _mm_loadu_si128(w[1].cast())));
            let zeros = match Q::QUANT {
                Quant::Int4Asymmetric => {
                    let [a, b] =
                        [_mm_loadl_epi64(w[0].add(ZEROS_AT).cast()), _mm_loadl_epi64(w[1].add(ZEROS_AT).cast())];
                    _mm512_cvtepu8_epi32(_mm_unpacklo_epi64(a, b))
                }
                _ => _mm512_setzero_si512(),
            };
            for t in 0..T {
                let [a, b] = sums[t];
                let sums = _mm512_add_epi32(
                    _mm512_shuffle_i64x2::<0b01_00_01_00>(a, b),
                    _mm512_shuffle_i64x2::<0b11_10_11_10>(a, b),
                );
                let sums = match Q::QUANT {
                    // The weights were 128 too large.
                    Quant::Int8 => _mm512_sub_epi32(sums, _mm512_set1_epi32(16 * x[t].eight)),
                    Quant::Int4 => _mm512_sub_epi32(sums, _mm512_set1_epi32(x[t].eight)),
                    // The upper half of each zero's 32 bits is 0; the total of the codes, an eighth of that, fits 16 bits.
                    Quant::Int4Asymmetric => {
                        _mm512_dpwssd_epi32(sums, zeros, _mm512_set1_epi32((-x[t].eight / 8) & 0xffff))
                    }
                };
                let scales = _mm512_mul_ps(scales, _mm512_set1_ps(x[t].scale));
                acc[t] = _mm512_fmadd_ps(scales, _mm512_cvtepi32_ps(sums), acc[t]);
            }
        }
        for (t, acc) in acc.into_iter().enumerate() {
            _mm512_storeu_ps(out.add(t * stride), acc);
        }
    }
    T
}

/// The 32 codes of a group, twice.
///
/// # Safety
/// As [`IntLanes::panels_together`].
#[inline(always)]
unsafe fn codes(x: &CodeGroup) -> __m512i {
    // SAFETY: a group has 32 codes.
    unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(x.codes.as_ptr().cast())) }
}

/// Eight times the `a`th four codes and eight times the `b`th.
///
/// # Safety
/// As [`IntLanes::panels_together`].
#[inline(always)]
unsafe fn spread(codes: __m512i, a: i32, b: i32) -> __m512i {
    // SAFETY: as this function.
    unsafe { _mm512_permutexvar_epi32(_mm512_inserti64x4::<1>(_mm512_set1_epi32(a), _mm256_set1_epi32(b)), codes) }
}

/// The products of a group's codes in two panels, 128 too large each, summed in fours.
///
/// # Safety
/// `w` are groups of panels of INT8.
#[inline(always)]
unsafe fn int8_products<const T: usize>(w: [*const u8; 2], x: [&CodeGroup; T]) -> [[__m512i; 2]; T] {
    // SAFETY: four times 64 bytes follow the scales.
    unsafe {
        let mut sums = [[_mm512_setzero_si512(); 2]; T];
        for i in 0..GROUP / 8 {
            let at = SCALE_BYTES + 64 * i;
            let sign = _mm512_set1_epi8(-128);
            let w0 = _mm512_xor_si512(_mm512_loadu_si512(w[0].add(at).cast()), sign);
            let w1 = _mm512_xor_si512(_mm512_loadu_si512(w[1].add(at).cast()), sign);
            for t in 0..T {
                let x = spread(codes(x[t]), 2 * i as i32, 2 * i as i32 + 1);
                sums[t] = [_mm512_dpbusd_epi32(sums[t][0], w0, x), _mm512_dpbusd_epi32(sums[t][1], w1, x)];
            }
        }
        sums
    }
}

/// The products of the stored halves of bytes of a group in two panels, from 0 to 15, summed in fours.
///
/// # Safety
/// `w` are groups of panels of INT4, with zeros or without.
#[inline(always)]
unsafe fn int4_products<const T: usize>(w: [*const u8; 2], x: [&CodeGroup; T]) -> [[__m512i; 2]; T] {
    // SAFETY: two times 64 bytes follow the scales.
    unsafe {
        let mut sums = [[_mm512_setzero_si512(); 2]; T];
        for i in 0..GROUP / 16 {
            let at = SCALE_BYTES + 64 * i;
            let mask = _mm512_set1_epi8(15);
            let w0 = _mm512_loadu_si512(w[0].add(at).cast());
            let w1 = _mm512_loadu_si512(w[1].add(at).cast());
            let lower = [_mm512_and_si512(w0, mask), _mm512_and_si512(w1, mask)];
            let upper = [
                _mm512_and_si512(_mm512_srli_epi32::<4>(w0), mask),
                _mm512_and_si512(_mm512_srli_epi32::<4>(w1), mask),
            ];
            for t in 0..T {
                let (codes, first) = (codes(x[t]), 4 * i as i32);
                let x = spread(codes, first, first + 2);
                sums[t] = [_mm512_dpbusd_epi32(sums[t][0], lower[0], x), _mm512_dpbusd_epi32(sums[t][1], lower[1], x)];
                let x = spread(codes, first + 1, first + 3);
                sums[t] = [_mm512_dpbusd_epi32(sums[t][0], upper[0], x), _mm512_dpbusd_epi32(sums[t][1], upper[1], x)];
            }
        }
        sums
    }
}
