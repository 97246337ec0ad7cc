//! AVX2 + FMA + F16C: one `ymm` register holds the eight lanes.

use crate::kernels::lanes::{LANES, Lanes, Vector};
use crate::kernels::panels::IntLanes;
use std::arch::x86_64::*;

/// A `ymm` register of f32.
#[derive(Clone, Copy)]
pub struct Avx2(pub(super) __m256);

// SAFETY of every block below: the trait's callers vouch for AVX2, FMA and F16C and for the memory; the
// intrinsics used have no other precondition, and all loads and stores are the unaligned ones.
#[allow(clippy::undocumented_unsafe_blocks)] // one argument for all, above
impl Vector for Avx2 {
    const WIDTH: usize = LANES;
    type Eight = Self;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Avx2(unsafe { _mm256_set1_ps(value) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Avx2(unsafe { _mm256_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        Avx2(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) })
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        Avx2(unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())))) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm256_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u8) {
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        Avx2(unsafe { _mm256_fmadd_ps(self.0, b.0, c.0) })
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        Avx2(unsafe { _mm256_add_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        Avx2(unsafe { _mm256_sub_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        Avx2(unsafe { _mm256_mul_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        Avx2(unsafe { _mm256_div_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        Avx2(unsafe { _mm256_max_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        Avx2(unsafe { _mm256_min_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn if_greater(self, b: Self, yes: Self, no: Self) -> Self {
        Avx2(unsafe { _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, b.0)) })
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        Avx2(unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }
    #[inline(always)]
    unsafe fn exp2_of_integer(self) -> Self {
        Avx2(unsafe {
            let n = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n))
        })
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

// SAFETY: as above.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Avx2 {
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8) {
        unsafe {
            let v = _mm256_cvtps_epi32(self.0);
            let v = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            _mm_storel_epi64(p.cast(), _mm_packs_epi16(v, v));
        }
    }
    #[inline(always)]
    unsafe fn first(self) -> f32 {
        unsafe { _mm256_cvtss_f32(self.0) }
    }
    #[inline(always)]
    unsafe fn highest(self) -> f32 {
        unsafe {
            let v = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let v = _mm256_add_ps(self.0, _mm256_permute_ps::<0b01_00_11_10>(self.0)); // l0+l2, l1+l3 | l4+l6, l5+l7
            let v = _mm256_add_ps(v, _mm256_movehdup_ps(v));
            _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)))
        }
    }
    #[inline(always)]
    unsafe fn sum4([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        unsafe {
            let ab = _mm256_add_ps(_mm256_unpacklo_ps(a.0, b.0), _mm256_unpackhi_ps(a.0, b.0));
            let cd = _mm256_add_ps(_mm256_unpacklo_ps(c.0, d.0), _mm256_unpackhi_ps(c.0, d.0));
            let v =
                _mm256_add_ps(_mm256_shuffle_ps::<0b01_00_01_00>(ab, cd), _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)));
            out
        }
    }
}

/// The four i8 at `x` for each row.
///
/// # Safety
/// As [`IntLanes::int8_dot`].
#[inline(always)]
pub(super) unsafe fn fours(x: *const i8) -> __m256i {
    // SAFETY: as this function.
    unsafe { _mm256_set1_epi32(x.cast::<i32>().read_unaligned()) }
}

/// The lower and the upper halves of 32 bytes.
///
/// # Safety
/// As [`IntLanes::int4_dot`].
#[inline(always)]
pub(super) unsafe fn halves(w: *const u8) -> (__m256i, __m256i) {
    // SAFETY: as this function.
    unsafe {
        let (w, mask) = (_mm256_loadu_si256(w.cast()), _mm256_set1_epi8(15));
        (_mm256_and_si256(w, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(w), mask))
    }
}

/// Eight u8 times a number that fits 16 bits.
///
/// # Safety
/// As [`IntLanes::int4_sums_less_zeros`].
#[inline(always)]
pub(super) unsafe fn zeros_times(zeros: *const u8, total: i32) -> __m256i {
    // The upper half of each zero's 32 bits is 0, so one product of a pair is 0.
    // SAFETY: as this function.
    unsafe {
        let zeros = _mm256_cvtepu8_epi32(_mm_loadl_epi64(zeros.cast()));
        _mm256_madd_epi16(zeros, _mm256_set1_epi16(total as i16))
    }
}

// SAFETY: as above.
#[allow(clippy::undocumented_unsafe_blocks)]
impl IntLanes for Avx2 {
    type Float = Self;
    type Int = __m256i;
    #[inline(always)]
    unsafe fn int_zero() -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn int8_dot<const T: usize>(acc: &mut [__m256i; T], w: *const u8, x: [*const i8; T]) {
        // |w| · (x with the sign of w): pairs are at most 2 · 128 · 127, so 16 bits hold them.
        unsafe {
            let w = _mm256_loadu_si256(w.cast());
            let magnitude = _mm256_abs_epi8(w);
            for t in 0..T {
                let x = fours(x[t]);
                let pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(x, w));
                acc[t] = _mm256_add_epi32(acc[t], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
        }
    }
    #[inline(always)]
    unsafe fn int8_sums(acc: __m256i, _eight: i32) -> __m256i {
        acc
    }
    #[inline(always)]
    unsafe fn int4_dot<const T: usize>(acc: &mut [__m256i; T], w: *const u8, x: [*const i8; T]) {
        // In 16 bits: after four calls sixteen products of at most 15 · 127 have come together, 30480.
        unsafe {
            let (lower, upper) = halves(w);
            for t in 0..T {
                let first = _mm256_maddubs_epi16(lower, fours(x[t]));
                let second = _mm256_maddubs_epi16(upper, fours(x[t].add(4)));
                acc[t] = _mm256_add_epi16(acc[t], _mm256_add_epi16(first, second));
            }
        }
    }
    #[inline(always)]
    unsafe fn int4_sums(acc: __m256i, eight: i32) -> __m256i {
        unsafe { _mm256_sub_epi32(_mm256_madd_epi16(acc, _mm256_set1_epi16(1)), _mm256_set1_epi32(eight)) }
    }
    #[inline(always)]
    unsafe fn int4_sums_less_zeros(acc: __m256i, zeros: *const u8, total: i32) -> __m256i {
        unsafe { _mm256_sub_epi32(_mm256_madd_epi16(acc, _mm256_set1_epi16(1)), zeros_times(zeros, total)) }
    }
    #[inline(always)]
    unsafe fn from_int(v: __m256i) -> Self {
        Avx2(unsafe { _mm256_cvtepi32_ps(v) })
    }
}

crate::kernels::tier!(
    /// AVX2, FMA and F16C.
    AVX2, "avx2", (Avx2, [Avx2; 4], Avx2), ["avx2", "fma", "f16c"]
);
