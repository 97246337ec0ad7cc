//! The scalar tier: eight plain f32. Slow, portable, and the oracle that the other tiers are compared with.

use super::lanes::{LANES, Lanes, Vector};
use super::panels::IntLanes;
use half::{bf16, f16};

/// Eight f32 in memory.
#[derive(Clone, Copy)]
pub struct Scalar([f32; 8]);

impl Scalar {
    #[inline(always)]
    fn map(self, f: impl Fn(f32) -> f32) -> Self {
        Scalar(self.0.map(f))
    }

    #[inline(always)]
    fn zip(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Scalar(std::array::from_fn(|i| f(self.0[i], b.0[i])))
    }

    /// Eight 16-bit elements at `p`.
    ///
    /// # Safety
    /// 16 bytes must be readable at `p`.
    #[inline(always)]
    unsafe fn halves(p: *const u8) -> [[u8; 2]; 8] {
        // SAFETY: the caller vouches for the bytes; byte arrays have no alignment.
        unsafe { p.cast::<[[u8; 2]; 8]>().read() }
    }
}

impl Vector for Scalar {
    const WIDTH: usize = LANES;
    type Eight = Self;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Scalar([value; 8])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller vouches for eight f32 at p.
        Scalar(unsafe { p.cast::<[f32; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        // SAFETY: the caller vouches for eight F16 at p.
        Scalar(unsafe { Self::halves(p) }.map(|b| f16::from_le_bytes(b).to_f32()))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self {
        // SAFETY: the caller vouches for eight BF16 at p.
        Scalar(unsafe { Self::halves(p) }.map(|b| bf16::from_le_bytes(b).to_f32()))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller vouches for eight f32 at p.
        unsafe { p.cast::<[f32; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u8) {
        let halves = self.0.map(|v| f16::from_f32(v).to_le_bytes());
        // SAFETY: the caller vouches for eight F16 at p; byte arrays have no alignment.
        unsafe { p.cast::<[[u8; 2]; 8]>().write(halves) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        Scalar(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        self.zip(b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        self.zip(b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        self.zip(b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        self.zip(b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        self.zip(b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        self.zip(b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn if_greater(self, b: Self, yes: Self, no: Self) -> Self {
        Scalar(std::array::from_fn(|i| if self.0[i] > b.0[i] { yes.0[i] } else { no.0[i] }))
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        self.map(f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn exp2_of_integer(self) -> Self {
        // A NaN casts to 0, as its product with this stays NaN.
        self.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
}

impl Lanes for Scalar {
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8) {
        // SAFETY: the caller vouches for eight i8 at p.
        unsafe { p.cast::<[i8; 8]>().write(self.0.map(|v| v as i8)) }
    }
    #[inline(always)]
    unsafe fn first(self) -> f32 {
        self.0[0]
    }
    #[inline(always)]
    unsafe fn highest(self) -> f32 {
        let max = |a: f32, b: f32| if a > b { a } else { b };
        let h: [f32; 4] = std::array::from_fn(|i| max(self.0[i], self.0[i + 4]));
        max(max(h[0], h[2]), max(h[1], h[3]))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let l = self.0;
        ((l[0] + l[2]) + (l[1] + l[3])) + ((l[4] + l[6]) + (l[5] + l[7]))
    }
}

impl IntLanes for Scalar {
    type Float = Self;
    type Int = [i32; 8];
    #[inline(always)]
    unsafe fn int_zero() -> [i32; 8] {
        [0; 8]
    }
    #[inline(always)]
    unsafe fn int8_dot<const T: usize>(acc: &mut [[i32; 8]; T], w: *const u8, x: [*const i8; T]) {
        // SAFETY: the caller vouches for 32 i8 at w and four at each x.
        let (w, x) = unsafe { (w.cast::<[[i8; 4]; 8]>().read(), x.map(|x| x.cast::<[i8; 4]>().read())) };
        for (acc, x) in acc.iter_mut().zip(x) {
            for (acc, w) in acc.iter_mut().zip(w) {
                *acc += (0..4).map(|i| i32::from(w[i]) * i32::from(x[i])).sum::<i32>();
            }
        }
    }
    #[inline(always)]
    unsafe fn int8_sums(acc: [i32; 8], _eight: i32) -> [i32; 8] {
        acc
    }
    #[inline(always)]
    unsafe fn int4_dot<const T: usize>(acc: &mut [[i32; 8]; T], w: *const u8, x: [*const i8; T]) {
        // SAFETY: the caller vouches for 32 bytes at w and eight i8 at each x.
        let (w, x) = unsafe { (w.cast::<[[u8; 4]; 8]>().read(), x.map(|x| x.cast::<[i8; 8]>().read())) };
        for (acc, x) in acc.iter_mut().zip(x) {
            for (acc, w) in acc.iter_mut().zip(w) {
                let both =
                    |i: usize| i32::from(w[i] & 15) * i32::from(x[i]) + i32::from(w[i] >> 4) * i32::from(x[i + 4]);
                *acc += (0..4).map(both).sum::<i32>();
            }
        }
    }
    #[inline(always)]
    unsafe fn int4_sums(acc: [i32; 8], eight: i32) -> [i32; 8] {
        acc.map(|sum| sum - eight)
    }
    #[inline(always)]
    unsafe fn int4_sums_less_zeros(acc: [i32; 8], zeros: *const u8, total: i32) -> [i32; 8] {
        // SAFETY: the caller vouches for eight u8 at zeros.
        let zeros = unsafe { zeros.cast::<[u8; 8]>().read() };
        std::array::from_fn(|r| acc[r] - i32::from(zeros[r]) * total)
    }
    #[inline(always)]
    unsafe fn from_int(v: [i32; 8]) -> Self {
        Scalar(v.map(|v| v as f32))
    }
}

super::tier!(
    /// Plain Rust, for every CPU.
    SCALAR, "scalar", (Scalar, [Scalar; 4], Scalar), []
);
