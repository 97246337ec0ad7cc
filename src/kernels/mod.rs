//! Kernels by instruction set: one table per tier, chosen at run time.
//!
//! The algorithms are written once, generic over eight lanes (`gemv.rs`, `gemm.rs`, `float.rs`, `attention.rs`, `panels.rs`), and
//! instantiated by each tier with its registers and CPU features. Possession of a `&Kernels` proves that the CPU supports its tier:
//! [`supported`] is the only source. The methods check every length, so the callers need no `unsafe`.
//!
//! # Numerics
//! Every sum has one documented order (see these files), and each lane operation is one IEEE 754 operation, so all
//! tiers give the same bits. `tests/kernels.rs` and `tests/panels.rs` compare each supported tier with the scalar one and with
//! the order spelled out.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[expect(clippy::needless_range_loop, reason = "indices name the lane, row and token of several arrays at once")]
mod attention;
mod float;
#[expect(clippy::needless_range_loop, reason = "indices name the row and token of several arrays at once")]
mod gemm;
#[expect(clippy::needless_range_loop, reason = "indices name the row and token of several arrays at once")]
mod gemv;
mod lanes;
#[expect(clippy::needless_range_loop, reason = "indices name the stream and token of several arrays at once")]
mod panels;
mod quantized;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::tensor::{AlignedBuffer, DType, Quant};
pub use attention::Visible;
use attention::{STATE_EXTRA, Tile};
use gemm::Pass;
pub use gemm::{GROUP_ROWS, GemmScratch, TILE_ROWS, TILE_TOKENS, k_blocks, packed_len, threes, token_groups};
pub use lanes::LANES;
pub use panels::{CodeGroup, PANEL_TOKENS};

/// Tokens that a product reads the weights for at little more cost than for one.
pub const FEW_TOKENS: usize = 8;
/// Most tokens of [`Kernels::gemv`]: for more, [`Kernels::gemm_group`], which packs the weights, is faster.
pub const GEMV_TOKENS: usize = 24;
/// Positions of one tile (and one page) of the KV cache.
pub const TILE_KEYS: usize = 64;

type PerType<F> = [F; DType::ALL.len()];
type Gemv = unsafe fn([*const u8; 4], usize, (usize, usize), *const f32, [*mut f32; 4], usize);
type Pack = unsafe fn([*const u8; 4], usize, usize, *mut f32);
type Attend = unsafe fn(Tile, *const f32, usize, *const Visible, *mut f32);
type Gated = unsafe fn(*const f32, *const f32, usize, *mut f32);
type PerQuant<F> = [F; Quant::ALL.len()];
type PanelGemv = unsafe fn([*const u8; 4], usize, *const CodeGroup, usize, [*mut f32; 4]);
type PanelGemm = unsafe fn(*const u8, usize, *const CodeGroup, (usize, usize), *mut f32, usize);

/// The kernels of one tier. Private function pointers whose safety contracts the methods check.
pub struct Kernels {
    name: &'static str,
    gemv: PerType<Gemv>,
    pack: PerType<Pack>,
    gemm: unsafe fn(&Pass),
    /// Of rows, in a register tile of `gemm`.
    quads_together: usize,
    rms_norm: unsafe fn(*const f32, *const f32, usize, f32, *mut f32),
    /// By [`Activation`].
    gated: [Gated; 2],
    soft_cap: unsafe fn(*mut f32, usize, f32),
    exp_minus: unsafe fn(*mut f32, usize, f32),
    widen: PerType<unsafe fn(*const u8, usize, *mut f32)>,
    narrow_f16: unsafe fn(*const f32, usize, *mut u8),
    attend: PerType<Attend>,
    merge: unsafe fn(*mut f32, *const f32, usize),
    prefetch: unsafe fn(*const u8, usize),
    panel_gemv: PerQuant<PanelGemv>,
    panel_gemm: PerQuant<PanelGemm>,
    quantize_row: unsafe fn(*const f32, usize, *mut CodeGroup),
    quantize_panel: PerQuant<unsafe fn(*const f32, usize, *mut u8) -> bool>,
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Defines a tier: the table `$NAME` and the functions behind it, compiled with the given CPU features, on the tier's types of
/// [`Vector`](lanes::Vector), [`Quad`](gemm::Quad) and [`IntLanes`](panels::IntLanes).
macro_rules! tier {
    ($(#[$doc:meta])* $NAME:ident, $name:literal, ($V:ty, $K:ty, $I:ty), [$($feature:literal),*]) => {
        $(#[$doc])*
        pub static $NAME: $crate::kernels::Kernels = {
            use $crate::kernels::lanes::{BF16, F16, F32};
            use $crate::kernels::panels::{Int4, Int4Asymmetric, Int8};
            $crate::kernels::Kernels {
                name: $name,
                gemv: [gemv::<F32>, gemv::<F16>, gemv::<BF16>],
                pack: [pack::<F32>, pack::<F16>, pack::<BF16>],
                gemm,
                quads_together: <$K as $crate::kernels::gemm::Quad>::TOGETHER,
                rms_norm,
                gated: [swiglu, geglu],
                soft_cap,
                exp_minus,
                widen: [widen::<F32>, widen::<F16>, widen::<BF16>],
                narrow_f16,
                attend: [attend::<F32>, attend::<F16>, attend::<BF16>],
                merge,
                prefetch,
                panel_gemv: [panel_gemv::<Int8>, panel_gemv::<Int4>, panel_gemv::<Int4Asymmetric>],
                panel_gemm: [panel_gemm::<Int8>, panel_gemm::<Int4>, panel_gemm::<Int4Asymmetric>],
                quantize_row,
                quantize_panel: [quantize_panel::<Int8>, quantize_panel::<Int4>, quantize_panel::<Int4Asymmetric>],
            }
        };

        $crate::kernels::tier!(@fn [$($feature),*] $K, gemv, gemv<E: $crate::kernels::lanes::Element>(
            w: [*const u8; 4], rows: usize, size: (usize, usize), x: *const f32, out: [*mut f32; 4], stride: usize));
        $crate::kernels::tier!(@fn [$($feature),*] <$V as $crate::kernels::lanes::Vector>::Eight, gemm, pack<E: $crate::kernels::lanes::Element>(
            src: [*const u8; 4], rows: usize, k: usize, dst: *mut f32));
        $crate::kernels::tier!(@fn [$($feature),*] $K, gemm, gemm(pass: &$crate::kernels::gemm::Pass));
        $crate::kernels::tier!(@fn [$($feature),*] <$V as $crate::kernels::lanes::Vector>::Eight, float, rms_norm(
            x: *const f32, weight: *const f32, n: usize, eps: f32, out: *mut f32));
        $crate::kernels::tier!(@fn [$($feature),*] $V, float, swiglu(
            gate: *const f32, up: *const f32, n: usize, out: *mut f32));
        $crate::kernels::tier!(@fn [$($feature),*] $V, float, geglu(
            gate: *const f32, up: *const f32, n: usize, out: *mut f32));
        $crate::kernels::tier!(@fn [$($feature),*] $V, float, soft_cap(x: *mut f32, n: usize, cap: f32));
        $crate::kernels::tier!(@fn [$($feature),*] $V, float, exp_minus(x: *mut f32, n: usize, m: f32));
        $crate::kernels::tier!(@fn [$($feature),*] $V, float, widen<E: $crate::kernels::lanes::Element>(
            src: *const u8, n: usize, dst: *mut f32));
        $crate::kernels::tier!(@fn [$($feature),*] $V, float, narrow_f16(src: *const f32, n: usize, dst: *mut u8));
        $crate::kernels::tier!(@fn [$($feature),*] $V, attention, attend<E: $crate::kernels::lanes::Element>(
            tile: $crate::kernels::attention::Tile, q: *const f32, rows: usize,
            visible: *const $crate::kernels::attention::Visible, state: *mut f32));
        $crate::kernels::tier!(@fn [$($feature),*] <$V as $crate::kernels::lanes::Vector>::Eight, attention, merge(
            state: *mut f32, tile: *const f32, padded: usize));
        $crate::kernels::tier!(@fn [$($feature),*] $V, float, prefetch(p: *const u8, len: usize));
        $crate::kernels::tier!(@fn [$($feature),*] $I, panels, panel_gemv<Q: $crate::kernels::panels::Format>(
            w: [*const u8; 4], panels: usize, x: *const $crate::kernels::CodeGroup, groups: usize, out: [*mut f32; 4]));
        $crate::kernels::tier!(@fn [$($feature),*] $I, panels, panel_gemm<Q: $crate::kernels::panels::Format>(
            w: *const u8, panels: usize, x: *const $crate::kernels::CodeGroup, size: (usize, usize), out: *mut f32,
            stride: usize));
        $crate::kernels::tier!(@fn [$($feature),*] $I, panels, quantize_row(
            x: *const f32, k: usize, out: *mut $crate::kernels::CodeGroup));
        $crate::kernels::tier!(@fn [$($feature),*] $I, panels, quantize_panel<Q: $crate::kernels::panels::Format>(
            x: *const f32, k: usize, panel: *mut u8) -> bool);
    };
    (@fn [$($feature:literal),*] $L:ty, $module:ident, $f:ident<$E:ident: $Kind:path>($($arg:ident: $T:ty),*) $(-> $R:ty)?) => {
        $(#[target_feature(enable = $feature)])*
        unsafe fn $f<$E: $Kind>($($arg: $T),*) $(-> $R)? {
            // SAFETY: the same contract, and the CPU features of the tier's types are enabled here.
            unsafe { $crate::kernels::$module::$f::<$L, $E>($($arg),*) }
        }
    };
    (@fn [$($feature:literal),*] $L:ty, $module:ident, $f:ident($($arg:ident: $T:ty),*)) => {
        $(#[target_feature(enable = $feature)])*
        unsafe fn $f($($arg: $T),*) {
            // SAFETY: the same contract, and the CPU features of the tier's types are enabled here.
            unsafe { $crate::kernels::$module::$f::<$L>($($arg),*) }
        }
    };
}
use tier;

/// The tiers that this CPU supports, the best first; the scalar one is always the last.
pub fn supported() -> Vec<&'static Kernels> {
    let mut tiers = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        if avx2 && avx512 {
            tiers.push(&x86::avx512::AVX512);
        }
        if avx2 {
            tiers.push(&x86::avx2::AVX2);
        }
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("neon") {
        tiers.push(&aarch64::neon::NEON);
    }
    tiers.push(&scalar::SCALAR);
    tiers
}

/// A tile of keys and values of one KV head.
#[derive(Clone, Copy, Debug)]
pub struct KvTile<'a> {
    /// Element type of both.
    pub dtype: DType,
    /// `[head_dim][TILE_KEYS]`.
    pub keys: &'a [u8],
    /// `[TILE_KEYS][head_dim rounded up to 8]`.
    pub values: &'a [u8],
    /// Width of a head.
    pub head_dim: usize,
}

/// What becomes of attention scores before the softmax.
#[derive(Clone, Copy, Debug)]
pub struct Scoring {
    /// Factor on them.
    pub scale: f32,
    /// c, if s becomes c · tanh(s / c) then.
    pub cap: Option<f32>,
}

/// The activation of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// silu(x) = x / (1 + e⁻ˣ).
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
}

/// f32 of one row's attention state: o (padded to 8), m, l.
pub fn attention_state_len(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES) + STATE_EXTRA
}

impl Kernels {
    /// The tier's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// `out[t][r] = w[r] · x[t]` for each row of `w`, `[rows][k]` elements of `dtype`, and up to [`GEMV_TOKENS`] rows of `x`,
    /// `[n][k]`; `out` is `[n][rows]`.
    pub fn gemv(&self, dtype: DType, w: &[u8], k: usize, x: &[f32], out: &mut [f32]) {
        let n = x.len() / k;
        assert!((1..=GEMV_TOKENS).contains(&n), "gemv: {n} tokens");
        let (rows, stride) = (out.len() / n, k * dtype.size());
        assert_eq!((w.len(), x.len(), out.len()), (rows * stride, n * k, n * rows), "gemv: lengths");
        let gemv = self.gemv[dtype as usize];
        let quarter = rows / 4;
        let base: [usize; 4] = std::array::from_fn(|s| s * quarter);
        // SAFETY: quarter s reads rows [s·quarter, (s+1)·quarter) of w, checked above, and writes the same columns of out.
        unsafe {
            let p = out.as_mut_ptr();
            gemv(base.map(|r| w.as_ptr().add(r * stride)), quarter, (k, n), x.as_ptr(), base.map(|r| p.add(r)), rows);
        }
        let rest = 4 * quarter..rows;
        if !rest.is_empty() {
            let mut sums = [[0.0f32; 4]; GEMV_TOKENS];
            let row = |i: usize| (rest.start + i).min(rows - 1); // the last row again where there is none
            // SAFETY: row(i) < rows, and the sums have a row of four for each of n ≤ GEMV_TOKENS tokens.
            unsafe {
                let p = sums.as_mut_ptr().cast::<f32>();
                let w = std::array::from_fn(|i| w.as_ptr().add(row(i) * stride));
                gemv(w, 1, (k, n), x.as_ptr(), std::array::from_fn(|i| p.add(i)), 4);
            }
            for (out, sums) in out.chunks_exact_mut(rows).zip(sums) {
                out[rest.clone()].copy_from_slice(&sums[..rest.len()]);
            }
        }
    }

    /// Asks for `bytes` to be brought near. A hint: it changes no result.
    pub fn prefetch(&self, bytes: &[u8]) {
        // SAFETY: nothing is read.
        unsafe { (self.prefetch)(bytes.as_ptr(), bytes.len()) }
    }

    /// RMSNorm of one row: `out = weight · (x / √(mean(x²) + eps))`.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert!(!x.is_empty() && x.len() == weight.len() && x.len() == out.len(), "rms_norm: lengths");
        // SAFETY: all three have x.len() f32.
        unsafe { (self.rms_norm)(x.as_ptr(), weight.as_ptr(), x.len(), eps, out.as_mut_ptr()) }
    }

    /// [`rms_norm`](Self::rms_norm) of a row into itself.
    pub fn rms_norm_in_place(&self, x: &mut [f32], weight: &[f32], eps: f32) {
        assert!(!x.is_empty() && x.len() == weight.len(), "rms_norm: lengths");
        // SAFETY: both have x.len() f32, and the kernel allows the result where x is.
        unsafe { (self.rms_norm)(x.as_ptr(), weight.as_ptr(), x.len(), eps, x.as_mut_ptr()) }
    }

    /// `out = activation(gate) · up`.
    pub fn gated(&self, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
        assert!(gate.len() == up.len() && gate.len() == out.len(), "gated: lengths");
        // SAFETY: all three have gate.len() f32.
        unsafe { (self.gated[activation as usize])(gate.as_ptr(), up.as_ptr(), gate.len(), out.as_mut_ptr()) }
    }

    /// `x = cap · tanh(x / cap)`.
    pub fn soft_cap(&self, x: &mut [f32], cap: f32) {
        // SAFETY: x has x.len() f32.
        unsafe { (self.soft_cap)(x.as_mut_ptr(), x.len(), cap) }
    }

    /// The softmax of `x` in place; the sum is taken in ascending order.
    pub fn softmax(&self, x: &mut [f32]) {
        let highest = x.iter().copied().fold(f32::NEG_INFINITY, |m, v| if v > m { v } else { m });
        // SAFETY: x has x.len() f32.
        unsafe { (self.exp_minus)(x.as_mut_ptr(), x.len(), highest) };
        let sum = x.iter().fold(0.0, |sum, v| sum + v);
        x.iter_mut().for_each(|v| *v /= sum);
    }

    /// Elements of `dtype` as f32, exactly.
    pub fn widen(&self, dtype: DType, src: &[u8], dst: &mut [f32]) {
        assert_eq!(src.len(), dst.len() * dtype.size(), "widen: lengths");
        // SAFETY: src has dst.len() elements.
        unsafe { (self.widen[dtype as usize])(src.as_ptr(), dst.len(), dst.as_mut_ptr()) }
    }

    /// f32 as elements of `dtype` (F32 or F16), rounded to nearest even.
    pub fn narrow(&self, dtype: DType, src: &[f32], dst: &mut [u8]) {
        assert_eq!(dst.len(), src.len() * dtype.size(), "narrow: lengths");
        match dtype {
            DType::F32 => dst.chunks_exact_mut(4).zip(src).for_each(|(d, v)| d.copy_from_slice(&v.to_le_bytes())),
            // SAFETY: dst has room for src.len() F16.
            DType::F16 => unsafe { (self.narrow_f16)(src.as_ptr(), src.len(), dst.as_mut_ptr()) },
            DType::BF16 => unreachable!("no kernel rounds to BF16"),
        }
    }

    /// Attends the rows `q`, `[visible.len()][head_dim]`, to the keys `visible[r]` of a tile and merges the results into
    /// the rows' `states`, [`attention_state_len`] f32 each, tiles in ascending order. A state begins as
    /// [`clear_state`] leaves it; a row that sees no key keeps it. The tile `next` is brought near meanwhile.
    pub fn attend(
        &self,
        tile: KvTile<'_>,
        next: Option<KvTile<'_>>,
        scoring: Scoring,
        q: &[f32],
        visible: &[Visible],
        states: &mut [f32],
    ) {
        let KvTile { dtype, keys, values, head_dim } = tile;
        let padded = head_dim.next_multiple_of(LANES);
        assert_eq!(keys.len(), head_dim * TILE_KEYS * dtype.size(), "attend: keys");
        assert_eq!(values.len(), padded * TILE_KEYS * dtype.size(), "attend: values");
        assert_eq!(q.len(), visible.len() * head_dim, "attend: q");
        assert_eq!(states.len(), visible.len() * attention_state_len(head_dim), "attend: states");
        assert!(visible.iter().all(|v| v.from <= v.to && v.to <= TILE_KEYS), "attend: visible");
        let next = next.map_or((keys, values), |next| (next.keys, next.values));
        let next = (next.0.as_ptr(), next.1.as_ptr());
        let Scoring { scale, cap } = scoring;
        let cap = cap.unwrap_or(0.0);
        let tile = Tile { k: keys.as_ptr(), v: values.as_ptr(), next, head_dim, padded, scale, cap };
        // SAFETY: the sizes were checked above.
        unsafe {
            (self.attend[dtype as usize])(tile, q.as_ptr(), visible.len(), visible.as_ptr(), states.as_mut_ptr());
        }
    }

    /// The tile in f32, in `buffer` unless it is that already: worth it where many query rows read it.
    pub fn widen_tile<'a>(&self, tile: KvTile<'a>, buffer: &'a mut AlignedBuffer<f32>) -> KvTile<'a> {
        if tile.dtype == DType::F32 {
            return tile;
        }
        let size = tile.dtype.size();
        let (keys, values) = (tile.keys.len() / size, tile.values.len() / size);
        let buffer = buffer.grown(keys + values);
        self.widen(tile.dtype, tile.keys, &mut buffer[..keys]);
        self.widen(tile.dtype, tile.values, &mut buffer[keys..]);
        // SAFETY: the same memory, as long borrowed; every byte of an f32 is a u8.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), size_of_val(buffer)) };
        let (keys, values) = bytes.split_at(4 * keys);
        KvTile { dtype: DType::F32, keys, values, ..tile }
    }

    /// Merges `tile`, the state of one later tile alone, into `state`; an empty one changes nothing.
    pub fn merge(&self, state: &mut [f32], tile: &[f32]) {
        assert!(state.len() == tile.len() && state.len() % LANES == STATE_EXTRA, "merge: lengths");
        if tile[tile.len() - 1] != 0.0 {
            // SAFETY: both have padded + 2 f32.
            unsafe { (self.merge)(state.as_mut_ptr(), tile.as_ptr(), state.len() - STATE_EXTRA) }
        }
    }
}

/// Makes the empty attention state: o = 0, m = −∞, l = 0.
pub fn clear_state(state: &mut [f32]) {
    state.fill(0.0);
    let m = state.len() - STATE_EXTRA;
    state[m] = f32::NEG_INFINITY;
}

/// The attention output of a finished state: o / l, 0 if no key was seen.
pub fn finish_state(state: &[f32], out: &mut [f32]) {
    let l = state[state.len() - 1];
    for (out, o) in out.iter_mut().zip(state) {
        *out = if l == 0.0 { 0.0 } else { o / l };
    }
}
