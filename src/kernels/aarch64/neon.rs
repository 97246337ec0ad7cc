//! NEON, which every AArch64 has: two `v` registers hold the eight lanes.

use crate::kernels::lanes::{LANES, Lanes, Vector};
use crate::kernels::panels::IntLanes;
use std::arch::aarch64::*;
use std::arch::asm;

/// Two `v` registers of f32: the lanes 0 to 3 and 4 to 7.
#[derive(Clone, Copy)]
pub struct Neon(float32x4_t, float32x4_t);

// SAFETY of every block below: the trait's callers vouch for NEON and for the memory; the intrinsics and instructions used
// have no other precondition, and no load or store needs alignment.
#[allow(clippy::undocumented_unsafe_blocks)] // one argument for all, above
impl Neon {
    #[inline(always)]
    unsafe fn zip(self, b: Self, f: unsafe fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        unsafe { Neon(f(self.0, b.0), f(self.1, b.1)) }
    }

    /// (l0 + l2, l1 + l3, l4 + l6, l5 + l7).
    #[inline(always)]
    unsafe fn halves(self) -> float32x4_t {
        unsafe {
            let half = |v| vadd_f32(vget_low_f32(v), vget_high_f32(v));
            vcombine_f32(half(self.0), half(self.1))
        }
    }
}

/// `if a > b { a } else { b }`; the instruction for the maximum treats NaN differently.
#[inline(always)]
unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: as above.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

#[inline(always)]
unsafe fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: as above.
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

// SAFETY: as above.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Neon {
    const WIDTH: usize = LANES;
    type Eight = Self;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Neon(vdupq_n_f32(value), vdupq_n_f32(value)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Neon(vld1q_f32(p), vld1q_f32(p.add(4))) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        // The conversions are in ARMv8.0; their intrinsics are not in stable Rust.
        unsafe {
            let halves = vld1q_u8(p);
            let (low, high): (float32x4_t, float32x4_t);
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) low, in(vreg) halves, options(pure, nomem, nostack));
            asm!("fcvtl2 {0:v}.4s, {1:v}.8h", out(vreg) high, in(vreg) halves, options(pure, nomem, nostack));
            Neon(low, high)
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        unsafe {
            let halves = vreinterpretq_u16_u8(vld1q_u8(p));
            let low = vshll_n_u16::<16>(vget_low_u16(halves));
            let high = vshll_n_u16::<16>(vget_high_u16(halves));
            Neon(vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe {
            vst1q_f32(p, self.0);
            vst1q_f32(p.add(4), self.1);
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u8) {
        unsafe {
            let mut halves: uint8x16_t;
            asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) halves, in(vreg) self.0, options(pure, nomem, nostack));
            asm!("fcvtn2 {0:v}.8h, {1:v}.4s", inout(vreg) halves, in(vreg) self.1, options(pure, nomem, nostack));
            vst1q_u8(p, halves);
        }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Neon(vfmaq_f32(c.0, self.0, b.0), vfmaq_f32(c.1, self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        unsafe { Neon(vaddq_f32(self.0, b.0), vaddq_f32(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        unsafe { Neon(vsubq_f32(self.0, b.0), vsubq_f32(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        unsafe { Neon(vmulq_f32(self.0, b.0), vmulq_f32(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        unsafe { Neon(vdivq_f32(self.0, b.0), vdivq_f32(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        unsafe { self.zip(b, max) }
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        unsafe { self.zip(b, min) }
    }
    #[inline(always)]
    unsafe fn if_greater(self, b: Self, yes: Self, no: Self) -> Self {
        unsafe {
            let first = vbslq_f32(vcgtq_f32(self.0, b.0), yes.0, no.0);
            Neon(first, vbslq_f32(vcgtq_f32(self.1, b.1), yes.1, no.1))
        }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe { Neon(vrndnq_f32(self.0), vrndnq_f32(self.1)) }
    }
    #[inline(always)]
    unsafe fn exp2_of_integer(self) -> Self {
        unsafe {
            let bits = |v| vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(v), vdupq_n_s32(127)));
            Neon(vreinterpretq_f32_s32(bits(self.0)), vreinterpretq_f32_s32(bits(self.1)))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { asm!("prfm pldl1keep, [{}]", in(reg) p, options(nostack, readonly, preserves_flags)) }
    }
}

// SAFETY: as above.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Neon {
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8) {
        unsafe {
            let half = |v| vqmovn_s32(vcvtq_s32_f32(v));
            vst1_s8(p, vqmovn_s16(vcombine_s16(half(self.0), half(self.1))));
        }
    }
    #[inline(always)]
    unsafe fn first(self) -> f32 {
        unsafe { vgetq_lane_f32::<0>(self.0) }
    }
    #[inline(always)]
    unsafe fn highest(self) -> f32 {
        unsafe {
            let v = max(self.0, self.1);
            let v = max(v, vextq_f32::<2>(v, v));
            vgetq_lane_f32::<0>(max(v, vextq_f32::<1>(v, v)))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let v = self.halves();
            let v = vpadd_f32(vget_low_f32(v), vget_high_f32(v));
            vget_lane_f32::<0>(vpadd_f32(v, v))
        }
    }
    #[inline(always)]
    unsafe fn sum4([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        unsafe {
            let (ab, cd) = (vpaddq_f32(a.halves(), b.halves()), vpaddq_f32(c.halves(), d.halves()));
            let mut out = [0.0; 4];
            vst1q_f32(out.as_mut_ptr(), vpaddq_f32(ab, cd));
            out
        }
    }
}

/// The sums of four products of i8 for each of four rows.
#[inline(always)]
unsafe fn dot_fours(w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: as above.
    unsafe {
        let (low, high) = (vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x));
        vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high))
    }
}

// SAFETY: as above.
#[allow(clippy::undocumented_unsafe_blocks)]
impl IntLanes for Neon {
    type Float = Self;
    type Int = (int32x4_t, int32x4_t);
    #[inline(always)]
    unsafe fn int_zero() -> Self::Int {
        unsafe { (vdupq_n_s32(0), vdupq_n_s32(0)) }
    }
    #[inline(always)]
    unsafe fn int8_dot<const T: usize>(acc: &mut [Self::Int; T], w: *const u8, x: [*const i8; T]) {
        unsafe {
            let w = [vld1q_s8(w.cast()), vld1q_s8(w.cast::<i8>().add(16))];
            for t in 0..T {
                let x = vreinterpretq_s8_s32(vdupq_n_s32(x[t].cast::<i32>().read_unaligned()));
                acc[t].0 = vaddq_s32(acc[t].0, dot_fours(w[0], x));
                acc[t].1 = vaddq_s32(acc[t].1, dot_fours(w[1], x));
            }
        }
    }
    #[inline(always)]
    unsafe fn int8_sums(acc: Self::Int, _eight: i32) -> Self::Int {
        acc
    }
    #[inline(always)]
    unsafe fn int4_dot<const T: usize>(acc: &mut [Self::Int; T], w: *const u8, x: [*const i8; T]) {
        unsafe {
            let w = [vld1q_u8(w), vld1q_u8(w.add(16))];
            let lower = w.map(|w| vreinterpretq_s8_u8(vandq_u8(w, vdupq_n_u8(15))));
            let upper = w.map(|w| vreinterpretq_s8_u8(vshrq_n_u8::<4>(w)));
            for t in 0..T {
                let x = x[t].cast::<i32>();
                let first = vreinterpretq_s8_s32(vdupq_n_s32(x.read_unaligned()));
                let second = vreinterpretq_s8_s32(vdupq_n_s32(x.add(1).read_unaligned()));
                let sums = |i: usize| vaddq_s32(dot_fours(lower[i], first), dot_fours(upper[i], second));
                acc[t] = (vaddq_s32(acc[t].0, sums(0)), vaddq_s32(acc[t].1, sums(1)));
            }
        }
    }
    #[inline(always)]
    unsafe fn int4_sums(acc: Self::Int, eight: i32) -> Self::Int {
        unsafe { (vsubq_s32(acc.0, vdupq_n_s32(eight)), vsubq_s32(acc.1, vdupq_n_s32(eight))) }
    }
    #[inline(always)]
    unsafe fn int4_sums_less_zeros(acc: Self::Int, zeros: *const u8, total: i32) -> Self::Int {
        unsafe {
            let zeros = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(zeros)));
            let (low, high) = (vget_low_s16(zeros), vget_high_s16(zeros));
            (vmlsl_n_s16(acc.0, low, total as i16), vmlsl_n_s16(acc.1, high, total as i16))
        }
    }
    #[inline(always)]
    unsafe fn from_int(v: Self::Int) -> Self {
        unsafe { Neon(vcvtq_f32_s32(v.0), vcvtq_f32_s32(v.1)) }
    }
}

crate::kernels::tier!(
    /// NEON.
    NEON, "neon", (Neon, [Neon; 4], Neon), ["neon"]
);
