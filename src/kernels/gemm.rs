//! The matrix product of weights of any element type with many tokens: rows are packed, widened, and pass over packed tokens in
//! register tiles. Every dot product is the one that `gemv.rs` describes, whatever the tile, the block of k or the tier.

use super::Kernels;
use super::lanes::{Element, LANES, Lanes, Vector};
use crate::tensor::{AlignedBuffer, DType};
use std::ops::Range;

/// Weight rows of one register tile of the matrix product.
pub const TILE_ROWS: usize = 4;
/// Tokens of one register tile.
pub const TILE_TOKENS: usize = 3;
/// Most weight rows of one matrix product: so many stay in the second-level cache, widened, beside all else.
pub const GROUP_ROWS: usize = 64;
/// Most tokens of a matrix product that packs few rows at a time.
const FEW_FOR_ROWS: usize = 32;
/// Longest of [`k_blocks`].
pub const LONGEST_BLOCK: usize = 576;
/// Lane blocks of a tile in one round of its loop.
const UNROLLED_BLOCKS: usize = 4;

/// The partial sums of [`TILE_ROWS`] rows and one token, eight of each, in a tier's registers.
///
/// # Safety
/// As [`Lanes`].
pub trait Quad: Copy {
    /// The tier's lanes.
    type Lanes: Lanes;
    /// Eight activations of a token, as the products need them.
    type Token: Copy;
    /// Quads that the registers hold at once for each of [`TILE_TOKENS`] tokens: 1 or 4.
    const TOGETHER: usize;
    /// Tokens for each of which the registers hold a quad at once: 3 or 8.
    const MOST_TOKENS: usize;
    /// Nothing added yet.
    unsafe fn zero() -> Self;
    /// `[TILE_ROWS][8]` f32.
    unsafe fn load(p: *const f32) -> Self;
    /// `[TILE_ROWS][8]` f32.
    unsafe fn store(self, p: *mut f32);
    /// Eight f32.
    unsafe fn token(p: *const f32) -> Self::Token;
    /// Adds the products of the weights `w`, `[TILE_ROWS][8]`, and each token's activations.
    unsafe fn add<const T: usize>(sums: &mut [Self; T], w: *const f32, x: [Self::Token; T]);
    /// Adds the products of eight elements of each row, widened, and each token's activations. `widened`, if it is there,
    /// `[TILE_ROWS][8]`, receives the weights.
    unsafe fn add_rows<E: Element, const T: usize>(
        sums: &mut [Self; T],
        rows: [*const u8; TILE_ROWS],
        x: [Self::Token; T],
        widened: Option<*mut f32>,
    );
    /// Each row's sum of eight, as [`Lanes::sum`].
    unsafe fn sums(self) -> [f32; TILE_ROWS];
    /// [`sums`](Self::sums) of two.
    #[inline(always)]
    unsafe fn sums_of_two(a: Self, b: Self) -> [[f32; TILE_ROWS]; 2] {
        // SAFETY: as this function.
        unsafe { [a.sums(), b.sums()] }
    }
}

/// A register for each row.
impl<L: Lanes> Quad for [L; TILE_ROWS] {
    type Lanes = L;
    type Token = L;
    const TOGETHER: usize = 1;
    const MOST_TOKENS: usize = 3;
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: as the caller, here and below.
        unsafe { [L::splat(0.0); TILE_ROWS] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: as above.
        unsafe { [L::load(p), L::load(p.add(LANES)), L::load(p.add(2 * LANES)), L::load(p.add(3 * LANES))] }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        for (r, lanes) in self.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { lanes.store(p.add(r * LANES)) }
        }
    }
    #[inline(always)]
    unsafe fn token(p: *const f32) -> L {
        // SAFETY: as above.
        unsafe { L::load(p) }
    }
    #[inline(always)]
    unsafe fn add<const T: usize>(sums: &mut [Self; T], w: *const f32, x: [L; T]) {
        for r in 0..TILE_ROWS {
            // SAFETY: as above.
            unsafe {
                let w = L::load(w.add(r * LANES));
                for t in 0..T {
                    sums[t][r] = w.fma(x[t], sums[t][r]);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn add_rows<E: Element, const T: usize>(
        sums: &mut [Self; T],
        rows: [*const u8; TILE_ROWS],
        x: [L; T],
        widened: Option<*mut f32>,
    ) {
        for r in 0..TILE_ROWS {
            // SAFETY: as above.
            unsafe {
                let w = E::load::<L>(rows[r]);
                if let Some(p) = widened {
                    w.store(p.add(r * LANES));
                }
                for t in 0..T {
                    sums[t][r] = w.fma(x[t], sums[t][r]);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn sums(self) -> [f32; TILE_ROWS] {
        // SAFETY: as above.
        unsafe { L::sum4(self) }
    }
}

/// Memory to be brought near, a `part` with each quad of rows: pieces of `length` bytes, one every `stride`.
#[derive(Clone, Copy)]
struct Ahead {
    at: *const u8,
    length: usize,
    stride: usize,
    part: usize,
    /// Parts that were asked for before.
    done: usize,
}

/// Packed quads of rows and the tokens, at most [`TILE_TOKENS`], that they pass over, in a block of k.
pub struct Pass {
    /// The quads, `quad_len` f32 apart: `[blocks][TILE_ROWS][8]` each.
    w: *const f32,
    quad_len: usize,
    quads: usize,
    /// `[blocks][tokens][8]`.
    x: *const f32,
    tokens: usize,
    blocks: usize,
    /// The partial lanes, `[quads][tokens][TILE_ROWS][8]`: read unless this is the first block, written unless it is the last.
    lanes: *mut f32,
    first: bool,
    last: bool,
    /// `out[t · GROUP_ROWS + TILE_ROWS · q + r]` receives the sums of the last block.
    out: *mut f32,
    ahead: Ahead,
}

/// Computes the products of a pass.
///
/// # Safety
/// The arrays have the sizes that [`Pass`] says.
#[inline(always)]
pub unsafe fn gemm<K: Quad>(pass: &Pass) {
    // SAFETY: as this function.
    unsafe {
        match pass.tokens {
            3 => gemm_tokens::<K, 3>(pass),
            2 => gemm_tokens::<K, 2>(pass),
            _ => gemm_tokens::<K, 1>(pass),
        }
    }
}

/// [`gemm`] of `T` tokens.
///
/// # Safety
/// As [`gemm`].
#[inline(always)]
unsafe fn gemm_tokens<K: Quad, const T: usize>(pass: &Pass) {
    const { assert!(K::TOGETHER == 1 || K::TOGETHER == 4) };
    let mut q = 0;
    // SAFETY: q + the quads of each tile ≤ pass.quads.
    unsafe {
        while q + 4 <= pass.quads && K::TOGETHER == 4 {
            tile::<K, T, 4>(pass, q);
            q += 4;
        }
        while q < pass.quads {
            tile::<K, T, 1>(pass, q);
            q += 1;
        }
    }
}

/// A register tile: `Q` quads of a pass, from `q` on, times `T` tokens.
///
/// # Safety
/// As [`gemm`]; the pass has these quads.
#[inline(always)]
unsafe fn tile<K: Quad, const T: usize, const Q: usize>(pass: &Pass, q: usize) {
    let Pass { quad_len, blocks, ahead, .. } = *pass;
    // SAFETY: indices follow the layouts that the caller vouches for; prefetch takes any address.
    unsafe {
        let w = pass.w.add(q * quad_len);
        let lanes = pass.lanes.wrapping_add(q * T * TILE_ROWS * LANES); // which may not be there, if they are not kept
        let mut sums = [[K::zero(); T]; Q];
        if !pass.first {
            for i in 0..Q {
                for t in 0..T {
                    sums[i][t] = K::load(lanes.add((i * T + t) * TILE_ROWS * LANES));
                }
            }
        }
        // Unrolled: where a neighbour shares the core, instructions are what is scarce.
        let whole = blocks / UNROLLED_BLOCKS * UNROLLED_BLOCKS;
        let step = ahead.part.div_ceil((blocks / UNROLLED_BLOCKS).max(1));
        let mut near = [ahead.at; Q];
        for (i, near) in near.iter_mut().enumerate() {
            let at = (ahead.done + q + i) * ahead.part;
            *near = near.wrapping_add(at / ahead.length * ahead.stride + at % ahead.length);
        }
        for b in (0..whole).step_by(UNROLLED_BLOCKS) {
            for near in &mut near {
                K::Lanes::prefetch(*near);
                *near = near.wrapping_add(step);
            }
            for b in b..b + UNROLLED_BLOCKS {
                tile_block(&mut sums, w.add(b * TILE_ROWS * LANES), quad_len, pass.x.add(b * T * LANES));
            }
        }
        for b in whole..blocks {
            tile_block(&mut sums, w.add(b * TILE_ROWS * LANES), quad_len, pass.x.add(b * T * LANES));
        }
        // Loops that the compiler unrolls whole, or else the sums would live in memory (tests/run.sh looks).
        if pass.last {
            for t in 0..T {
                let out = pass.out.add(t * GROUP_ROWS + q * TILE_ROWS).cast::<[f32; TILE_ROWS]>();
                for i in (0..Q / 2 * 2).step_by(2) {
                    out.add(i).cast::<[[f32; TILE_ROWS]; 2]>().write(K::sums_of_two(sums[i][t], sums[i + 1][t]));
                }
                if Q % 2 == 1 {
                    out.add(Q - 1).write(sums[Q - 1][t].sums());
                }
            }
        } else {
            for i in 0..Q {
                for t in 0..T {
                    sums[i][t].store(lanes.add((i * T + t) * TILE_ROWS * LANES));
                }
            }
        }
    }
}

/// One lane block of a [`tile`]. (A closure would not be compiled with the tier's CPU features.)
///
/// # Safety
/// `x` has `T` times eight f32, and from `w` on `Q` times TILE_ROWS times eight lie `quad_len` apart.
#[inline(always)]
unsafe fn tile_block<K: Quad, const T: usize, const Q: usize>(
    sums: &mut [[K; T]; Q],
    w: *const f32,
    quad_len: usize,
    x: *const f32,
) {
    // SAFETY: as this function.
    unsafe {
        let mut tokens = [K::token(x); T];
        for t in 1..T {
            tokens[t] = K::token(x.add(t * LANES));
        }
        for q in 0..Q {
            K::add(&mut sums[q], w.add(q * quad_len), tokens);
        }
    }
}

/// Interleaves the first `rows` (at most four) of `src`, `k` elements each, as f32: `dst` is `[k / 8][rows][8]`, the last
/// block padded with 0.
///
/// # Safety
/// Each of these rows has `k` elements of `E`; `dst` has room for every block.
#[inline(always)]
pub unsafe fn pack<L: Lanes, E: Element>(src: [*const u8; 4], rows: usize, k: usize, dst: *mut f32) {
    // SAFETY: as this function.
    unsafe {
        match rows {
            4 => pack_rows::<L, E, 4>(src, k, dst),
            3 => pack_rows::<L, E, 3>(src, k, dst),
            2 => pack_rows::<L, E, 2>(src, k, dst),
            _ => pack_rows::<L, E, 1>(src, k, dst),
        }
    }
}

/// [`pack`] of `R` rows.
///
/// # Safety
/// As [`pack`].
#[inline(always)]
unsafe fn pack_rows<L: Lanes, E: Element, const R: usize>(src: [*const u8; 4], k: usize, dst: *mut f32) {
    let size = E::DTYPE.size();
    let blocks = k / LANES;
    // SAFETY: block b < k / 8 reads elements below k; the tail reads the rest.
    unsafe {
        for b in 0..blocks {
            for r in 0..R {
                E::load::<L>(src[r].add(b * LANES * size)).store(dst.add((b * R + r) * LANES));
            }
        }
        let tail = k % LANES;
        if tail > 0 {
            for r in 0..R {
                E::load_tail::<L>(src[r].add(blocks * LANES * size), tail).store(dst.add((blocks * R + r) * LANES));
            }
        }
    }
}

/// How a matrix product cuts k: blocks of equal length, a multiple of eight, short enough for the caches.
pub fn k_blocks(k: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let block = k.div_ceil(k.div_ceil(LONGEST_BLOCK).max(1)).next_multiple_of(LANES).max(LANES);
    (0..k).step_by(block).map(move |start| start..k.min(start + block))
}

/// How a matrix product groups `n` tokens: in threes, as [`TILE_TOKENS`] says, but for the last two or four, in pairs (one token
/// would leave two thirds of a tile idle), or a single one.
pub fn token_groups(n: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let threes = threes(n);
    let pairs = (threes..n).step_by(2).map(move |t| t..n.min(t + 2));
    (0..threes).step_by(TILE_TOKENS).map(|t| t..t + TILE_TOKENS).chain(pairs)
}

/// How many of `n` tokens are grouped in threes by [`token_groups`], from the first on.
pub fn threes(n: usize) -> usize {
    let rest = if n % TILE_TOKENS == 1 { 4.min(n) } else { n % TILE_TOKENS };
    n - rest
}

/// f32 that `n` packed tokens of width `k` take.
pub fn packed_len(n: usize, k: usize) -> usize {
    n * k.next_multiple_of(LANES)
}

/// One thread's buffers for [`Kernels::gemm_group`].
#[derive(Debug, Default)]
pub struct GemmScratch {
    weights: AlignedBuffer<f32>,
    lanes: AlignedBuffer<f32>,
}

impl Kernels {
    /// Packs one of [`token_groups`] for [`gemm_group`](Self::gemm_group): `x` is `[tokens][k]`; the elements `block` of each
    /// row go to `dst`, `[block / 8][tokens][8]`.
    pub fn pack_tokens(&self, x: &[f32], k: usize, block: Range<usize>, dst: &mut [f32]) {
        let tokens = x.len() / k;
        assert!(x.len() == tokens * k && tokens <= TILE_TOKENS && block.end <= k, "pack_tokens: x");
        assert_eq!(dst.len(), packed_len(tokens, block.len()), "pack_tokens: dst");
        let row = |t: usize| x.as_ptr().wrapping_add(t * k + block.start).cast();
        // SAFETY: the rows from 0 to `tokens` lie in x, and dst has room for their blocks.
        unsafe {
            let pack = self.pack[DType::F32 as usize];
            pack(std::array::from_fn(row), tokens, block.len(), dst.as_mut_ptr());
        }
    }

    /// The matrix product of a group of rows with many tokens: `out[t][r] = rows[r] · x[t]`, `out` being `[n][GROUP_ROWS]`.
    /// `rows` has at most [`GROUP_ROWS`] rows of `k` elements. `packed` holds, for each of [`k_blocks`], each of
    /// [`token_groups`] as [`pack_tokens`](Self::pack_tokens) writes it.
    pub fn gemm_group(
        &self,
        dtype: DType,
        rows: &[&[u8]],
        k: usize,
        packed: &[f32],
        scratch: &mut GemmScratch,
        out: &mut [f32],
    ) {
        let n = packed.len() / k.next_multiple_of(LANES);
        assert_eq!(packed.len(), packed_len(n, k), "gemm_group: packed");
        assert_eq!(out.len(), n * GROUP_ROWS, "gemm_group: out");
        assert!(rows.len() <= GROUP_ROWS, "gemm_group: rows");
        assert!(rows.iter().all(|row| row.len() == k * dtype.size()), "gemm_group: row length");
        const QUADS: usize = GROUP_ROWS / TILE_ROWS;
        let longest = k_blocks(k).next().map_or(0, |b| b.len().next_multiple_of(LANES));
        let quad_len = longest * TILE_ROWS;
        // Of many tokens one group after another stays in the first-level cache while the packed rows, in the second-level one, pass
        // over it. Few tokens pass over a few quads of rows, packed just before.
        let together = if n > FEW_FOR_ROWS { QUADS } else { self.quads_together.max(2) };
        let weights = scratch.weights.grown(together * quad_len);
        // None where one block is the first and the last.
        let kept = if longest < k { n * GROUP_ROWS * LANES } else { 0 };
        let lanes = scratch.lanes.grown(kept);
        let stride = k * dtype.size();
        for block in k_blocks(k) {
            let blocks = block.len().div_ceil(LANES);
            let bytes = block.start * dtype.size()..block.end * dtype.size();
            let x = &packed[block.start * n..];
            for (pack, packed_rows) in rows.chunks(together * TILE_ROWS).enumerate() {
                for (q, quad) in packed_rows.chunks(TILE_ROWS).enumerate() {
                    // The last row again where there is none.
                    let row = |r: usize| quad[r.min(quad.len() - 1)][bytes.clone()].as_ptr();
                    let dst = &mut weights[q * quad_len..][..packed_len(TILE_ROWS, block.len())];
                    // SAFETY: the four rows have block.len() elements, and dst has room for their blocks.
                    unsafe {
                        let pack = self.pack[dtype as usize];
                        pack(std::array::from_fn(row), TILE_ROWS, block.len(), dst.as_mut_ptr());
                    }
                }
                let quads = packed_rows.len().div_ceil(TILE_ROWS);
                // Meanwhile the next rows, which mostly lie right behind, come near.
                let mut ahead = Ahead {
                    at: packed_rows[0].as_ptr().wrapping_add(packed_rows.len() * stride + bytes.start),
                    length: bytes.len(),
                    stride,
                    part: (packed_rows.len() * bytes.len()).div_ceil(n.div_ceil(TILE_TOKENS) * quads),
                    done: 0,
                };
                for tokens in token_groups(n) {
                    let first_lane = if kept > 0 {
                        (tokens.start * QUADS + pack * together * tokens.len()) * TILE_ROWS * LANES
                    } else {
                        0
                    };
                    let pass = Pass {
                        w: weights.as_ptr(),
                        quad_len,
                        quads,
                        x: x[packed_len(tokens.start, block.len())..packed_len(tokens.end, block.len())].as_ptr(),
                        tokens: tokens.len(),
                        blocks,
                        lanes: lanes.as_mut_ptr().wrapping_add(first_lane),
                        first: block.start == 0,
                        last: block.end == k,
                        out: out[tokens.start * GROUP_ROWS + pack * together * TILE_ROWS..].as_mut_ptr(),
                        ahead,
                    };
                    // SAFETY: the quads' weights and these tokens have `blocks` blocks; if lanes are kept, there are those of each
                    // token and quad; out has a row of GROUP_ROWS for each token.
                    unsafe { (self.gemm)(&pass) }
                    ahead.done += quads;
                }
            }
        }
    }
}
