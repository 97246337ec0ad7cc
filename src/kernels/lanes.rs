//! f32 lanes: the vector types that every kernel is written in.
//!
//! A tier implements [`Vector`] and [`Lanes`] with its registers; the algorithms in `float.rs` and `attention.rs` are written
//! once over them.
//! Each operation is a single IEEE 754 operation per lane, so all tiers give the same bits.

use crate::tensor::DType;

/// Number of lanes of a dot product, fixed: lane j takes the elements k ≡ j (mod 8).
pub const LANES: usize = 8;
/// Lanes of the widest [`Vector`].
pub const MOST_LANES: usize = 16;

/// f32 lanes of one instruction set, for all that each element goes through alone.
///
/// # Safety
/// Every function needs the CPU features of the tier that implements it; the loads and stores also need the
/// bytes they name to be readable or writable. Nothing needs to be aligned.
pub trait Vector: Copy {
    /// Number of lanes, 8 or 16: with sixteen there are 32 registers of them.
    const WIDTH: usize;
    /// Where elements meet, there are eight lanes in every tier.
    type Eight: Lanes;
    /// All lanes `value`.
    unsafe fn splat(value: f32) -> Self;
    /// `WIDTH` f32.
    unsafe fn load(p: *const f32) -> Self;
    /// `WIDTH` F16, widened exactly.
    unsafe fn load_f16(p: *const u8) -> Self;
    /// `WIDTH` BF16, widened exactly.
    unsafe fn load_bf16(p: *const u8) -> Self;
    /// `WIDTH` f32.
    unsafe fn store(self, p: *mut f32);
    /// `WIDTH` F16, rounded to nearest even.
    unsafe fn store_f16(self, p: *mut u8);
    /// `self · b + c`, rounded once.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// `self + b`.
    unsafe fn add(self, b: Self) -> Self;
    /// `self − b`.
    unsafe fn sub(self, b: Self) -> Self;
    /// `self · b`.
    unsafe fn mul(self, b: Self) -> Self;
    /// `self / b`.
    unsafe fn div(self, b: Self) -> Self;
    /// `if self > b { self } else { b }`: a NaN in `b` stays.
    unsafe fn max(self, b: Self) -> Self;
    /// `if self < b { self } else { b }`: a NaN in `b` stays.
    unsafe fn min(self, b: Self) -> Self;
    /// `if self > b { yes } else { no }`.
    unsafe fn if_greater(self, b: Self, yes: Self, no: Self) -> Self;
    /// The nearest integer, halves to even.
    unsafe fn round(self) -> Self;
    /// 2ⁿ of lanes that are integers in −126..=127.
    unsafe fn exp2_of_integer(self) -> Self;
    /// Asks for the cache line at `p`; any address will do.
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}
}

/// Eight f32 lanes, which can meet.
///
/// # Safety
/// As [`Vector`].
pub trait Lanes: Vector {
    /// Eight integers in −128..=127 as i8.
    unsafe fn store_i8(self, p: *mut i8);
    /// `((l0+l2)+(l1+l3)) + ((l4+l6)+(l5+l7))`.
    unsafe fn sum(self) -> f32;
    /// Lane 0.
    unsafe fn first(self) -> f32;
    /// The highest lane, by [`max`](Vector::max) of the halves: l0..4 with l4..8, their l0..2 with l2..4, l0 with l1.
    unsafe fn highest(self) -> f32;
    /// [`sum`](Self::sum) of four.
    #[inline(always)]
    unsafe fn sum4(v: [Self; 4]) -> [f32; 4] {
        // SAFETY: as this function.
        unsafe { [v[0].sum(), v[1].sum(), v[2].sum(), v[3].sum()] }
    }
}

/// An element type that lanes can be loaded from.
pub trait Element {
    /// As a value.
    const DTYPE: DType;
    /// As many elements at `p` as there are lanes.
    ///
    /// # Safety
    /// As [`Vector`].
    unsafe fn load<V: Vector>(p: *const u8) -> V;

    /// The first `n` elements at `p`, fewer than there are lanes; the other lanes are zero.
    ///
    /// # Safety
    /// As [`Vector`]; only `n` elements are read.
    #[inline(always)]
    unsafe fn load_tail<V: Vector>(p: *const u8, n: usize) -> V {
        debug_assert!(n < V::WIDTH);
        let mut buffer = [0u8; MOST_LANES * 4];
        // SAFETY: the caller vouches for n elements at p, and fewer than 16 elements fit the buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(p, buffer.as_mut_ptr(), n * Self::DTYPE.size());
            Self::load(buffer.as_ptr())
        }
    }
}

/// [`DType::F32`].
pub enum F32 {}
/// [`DType::F16`].
pub enum F16 {}
/// [`DType::BF16`].
pub enum BF16 {}

impl Element for F32 {
    const DTYPE: DType = DType::F32;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u8) -> V {
        // SAFETY: as the caller; `load` needs no alignment.
        unsafe { V::load(p.cast()) }
    }
}

impl Element for F16 {
    const DTYPE: DType = DType::F16;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u8) -> V {
        // SAFETY: as the caller.
        unsafe { V::load_f16(p) }
    }
}

impl Element for BF16 {
    const DTYPE: DType = DType::BF16;
    #[inline(always)]
    unsafe fn load<V: Vector>(p: *const u8) -> V {
        // SAFETY: as the caller.
        unsafe { V::load_bf16(p) }
    }
}

/// eˣ per lane, the same polynomial in every tier (coefficients: Cephes `expf`, Moshier 1989), within 1 ulp or two.
/// Clamped to e^±87, so the result is always normal and finite; NaN stays NaN.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub unsafe fn exp<V: Vector>(x: V) -> V {
    // SAFETY: as this function.
    unsafe {
        let x = V::splat(87.0).min(V::splat(-87.0).max(x));
        // x = n·ln 2 + r with ln 2 in two parts, |r| ≤ ln 2 / 2.
        let n = x.mul(V::splat(std::f32::consts::LOG2_E)).round();
        let r = n.fma(V::splat(-0.693_359_4), x);
        let r = n.fma(V::splat(2.121_944_4e-4), r);
        let p = V::splat(1.987_569_2e-4);
        let p = p.fma(r, V::splat(1.398_2e-3));
        let p = p.fma(r, V::splat(8.333_452e-3));
        let p = p.fma(r, V::splat(4.166_579_6e-2));
        let p = p.fma(r, V::splat(1.666_666_5e-1));
        let p = p.fma(r, V::splat(0.5));
        let p = p.fma(r.mul(r), r.add(V::splat(1.0)));
        p.mul(n.exp2_of_integer())
    }
}

/// tanh(x) per lane, the same rational function in every tier (coefficients: Eigen, `ptanh_float`), within 3·10⁻⁷; odd, so small
/// values keep their precision, and never beyond ±1. NaN stays NaN.
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
pub unsafe fn tanh<V: Vector>(x: V) -> V {
    const LIMIT: f32 = 7.905_311; // tanh is 1 − 3·10⁻⁷ there, and the function below would leave ±1 soon after
    // SAFETY: as this function.
    unsafe {
        let x = V::splat(LIMIT).min(V::splat(-LIMIT).max(x));
        let z = x.mul(x);
        let p = V::splat(-2.760_768_5e-16);
        let p = p.fma(z, V::splat(2.000_188e-13));
        let p = p.fma(z, V::splat(-8.604_672e-11));
        let p = p.fma(z, V::splat(5.122_297e-8));
        let p = p.fma(z, V::splat(1.485_722_4e-5));
        let p = p.fma(z, V::splat(6.372_619_3e-4));
        let p = p.fma(z, V::splat(4.893_524_6e-3));
        let q = V::splat(1.198_258_4e-6);
        let q = q.fma(z, V::splat(1.185_347_1e-4));
        let q = q.fma(z, V::splat(2.268_434_6e-3));
        let q = q.fma(z, V::splat(4.893_525e-3));
        x.mul(p).div(q)
    }
}

/// Runs `$body` for the items from 0 to `$count`, `$N` (1, 2 or 3) of them from `$i` on at a time. Four are two pairs: three and
/// one would leave registers idle. Where `$more` holds, there are registers for larger groups: of each `$size` from the largest
/// on, unless that would leave one alone.
macro_rules! in_groups {
    ($count:expr, $more:expr, [$($size:literal),*], |$i:ident, $N:ident| $body:expr) => {{
        let mut $i = 0;
        while $i < $count {
            $i += match $count - $i {
                $(n if $more && (n == $size || n > $size + 1) => in_groups!(@group $N, $size, $body),)*
                1 => in_groups!(@group $N, 1, $body),
                2 | 4 => in_groups!(@group $N, 2, $body),
                _ => in_groups!(@group $N, 3, $body),
            };
        }
    }};
    (@group $N:ident, $size:literal, $body:expr) => {{
        const $N: usize = $size;
        $body;
        $N
    }};
}
pub(super) use in_groups;
