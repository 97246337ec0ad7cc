//! AVX-512 with VNNI (Cascade Lake, Ice Lake, Zen 4 and later): where each element stands alone, sixteen lanes; the eight that meet
//! are AVX2's. The matrix product holds two rows in a `zmm` register, and four products of integers are added up at once.

use super::avx2::Avx2;
use super::vnni::Vnni;
use crate::kernels::gemm::Quad;
use crate::kernels::lanes::{Element, LANES, Lanes, Vector};
use crate::tensor::DType;
use std::arch::x86_64::*;

/// A `zmm` register of f32.
#[derive(Clone, Copy)]
pub struct Sixteen(__m512);

// SAFETY of every block below: the traits' callers vouch for AVX-512 (F, DQ, VL, VNNI), AVX2, FMA and F16C and for the memory; the
// intrinsics used have no other precondition, and all loads and stores are the unaligned ones.
#[allow(clippy::undocumented_unsafe_blocks)] // one argument for all, above
impl Vector for Sixteen {
    const WIDTH: usize = 16;
    type Eight = Avx2;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Sixteen(unsafe { _mm512_set1_ps(value) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Sixteen(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        Sixteen(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) })
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            Sixteen(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u8) {
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        Sixteen(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        Sixteen(unsafe { _mm512_add_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        Sixteen(unsafe { _mm512_sub_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        Sixteen(unsafe { _mm512_mul_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        Sixteen(unsafe { _mm512_div_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        Sixteen(unsafe { _mm512_max_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        Sixteen(unsafe { _mm512_min_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn if_greater(self, b: Self, yes: Self, no: Self) -> Self {
        Sixteen(unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, b.0), no.0, yes.0) })
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        Sixteen(unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }
    #[inline(always)]
    unsafe fn exp2_of_integer(self) -> Self {
        Sixteen(unsafe {
            let n = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(n))
        })
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

/// Two `zmm` registers of f32: the sums of four rows, two in each.
#[derive(Clone, Copy)]
pub struct Pairs(__m512, __m512);

// SAFETY: as above.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Quad for Pairs {
    type Lanes = Avx2;
    type Token = __m512;
    const TOGETHER: usize = 4;
    const MOST_TOKENS: usize = 8;
    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { Pairs(_mm512_setzero_ps(), _mm512_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Pairs(_mm512_loadu_ps(p), _mm512_loadu_ps(p.add(2 * LANES))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe {
            _mm512_storeu_ps(p, self.0);
            _mm512_storeu_ps(p.add(2 * LANES), self.1);
        }
    }
    #[inline(always)]
    unsafe fn token(p: *const f32) -> __m512 {
        unsafe { _mm512_broadcast_f32x8(_mm256_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn add<const T: usize>(sums: &mut [Self; T], w: *const f32, x: [__m512; T]) {
        unsafe {
            add_quad(sums, Self::load(w), x);
        }
    }
    #[inline(always)]
    unsafe fn add_rows<E: Element, const T: usize>(
        sums: &mut [Self; T],
        rows: [*const u8; 4],
        x: [__m512; T],
        widened: Option<*mut f32>,
    ) {
        unsafe {
            let w = Pairs(two::<E>(rows[0], rows[1]), two::<E>(rows[2], rows[3]));
            if let Some(p) = widened {
                w.store(p);
            }
            add_quad(sums, w, x);
        }
    }
    #[inline(always)]
    unsafe fn sums(self) -> [f32; 4] {
        unsafe {
            Avx2::sum4([
                Avx2(_mm512_castps512_ps256(self.0)),
                Avx2(_mm512_extractf32x8_ps::<1>(self.0)),
                Avx2(_mm512_castps512_ps256(self.1)),
                Avx2(_mm512_extractf32x8_ps::<1>(self.1)),
            ])
        }
    }
    #[inline(always)]
    unsafe fn sums_of_two(a: Self, b: Self) -> [[f32; 4]; 2] {
        unsafe {
            // As AVX2's sum4, for rows 0 and 2 of both in one half and rows 1 and 3 in the other.
            let a = _mm512_add_ps(_mm512_unpacklo_ps(a.0, a.1), _mm512_unpackhi_ps(a.0, a.1));
            let b = _mm512_add_ps(_mm512_unpacklo_ps(b.0, b.1), _mm512_unpackhi_ps(b.0, b.1));
            let v = _mm512_add_ps(_mm512_shuffle_ps::<0b01_00_01_00>(a, b), _mm512_shuffle_ps::<0b11_10_11_10>(a, b));
            let v = _mm512_add_ps(v, _mm512_shuffle_f32x4::<0b11_11_01_01>(v, v));
            let order = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 11, 3, 10, 2, 9, 1, 8, 0);
            let mut out = [[0.0; 4]; 2];
            _mm256_storeu_ps(out.as_mut_ptr().cast(), _mm512_castps512_ps256(_mm512_permutexvar_ps(order, v)));
            out
        }
    }
}

/// Adds the products of the weights and each token's activations.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn add_quad<const T: usize>(sums: &mut [Pairs; T], w: Pairs, x: [__m512; T]) {
    // SAFETY: as this function.
    unsafe {
        for t in 0..T {
            sums[t].0 = _mm512_fmadd_ps(w.0, x[t], sums[t].0);
            sums[t].1 = _mm512_fmadd_ps(w.1, x[t], sums[t].1);
        }
    }
}

/// Eight elements at `a` and eight at `b`.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn two<E: Element>(a: *const u8, b: *const u8) -> __m512 {
    // SAFETY: as this function.
    unsafe {
        if let DType::F32 = E::DTYPE {
            let a = _mm512_castps256_ps512(_mm256_loadu_ps(a.cast()));
            return _mm512_insertf32x8::<1>(a, _mm256_loadu_ps(b.cast()));
        }
        let a = _mm256_castsi128_si256(_mm_loadu_si128(a.cast()));
        let both = _mm256_inserti128_si256::<1>(a, _mm_loadu_si128(b.cast()));
        match E::DTYPE {
            DType::F16 => _mm512_cvtph_ps(both),
            _ => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(both))),
        }
    }
}

crate::kernels::tier!(
    /// AVX-512 F, DQ, VL and VNNI, beside AVX2, FMA and F16C.
    AVX512, "avx512", (Sixteen, Pairs, Vnni), ["avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512vl", "avx512vnni"]
);
