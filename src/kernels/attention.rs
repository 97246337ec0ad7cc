//! Attention over one tile of the KV cache, written once over [`Lanes`].
//!
//! A tile holds [`TILE_KEYS`] consecutive positions, aligned to absolute positions. Keys lie transposed,
//! `[head_dim][TILE_KEYS]`, so that eight lanes are eight keys and a score needs no reduction; values lie
//! `[TILE_KEYS][head_dim padded to 8]`. For a query row q that sees the first c keys of the tile:
//!
//! - `s_j = scale · Σ_d k_j[d]·q[d]`, d ascending by fused multiply-add from 0;
//! - `m = max_{j<c} s_j`, `p_j = exp(s_j − m)`, `l = Σ_j p_j` in eight lanes (j mod 8);
//! - `o[d] = Σ_{j<c} v_j[d]·p_j`, j ascending by fused multiply-add from 0.
//!
//! Tiles are computed independently and merged in ascending order by [`merge`] (online softmax, Milakov & Gimelshein
//! 2018), so the result does not depend on who computed which tile.

use super::TILE_KEYS;
use super::lanes::{Element, LANES, Lanes, exp};

/// Where one row's partial result lies: `padded` f32 of `o`, then m, then l.
pub const STATE_EXTRA: usize = 2;

/// One tile's keys and values and how to read them.
#[derive(Clone, Copy)]
pub struct Tile {
    /// `[head_dim][TILE_KEYS]` elements.
    pub k: *const u8,
    /// `[TILE_KEYS][padded]` elements.
    pub v: *const u8,
    /// Width of a head.
    pub head_dim: usize,
    /// `head_dim` rounded up to eight.
    pub padded: usize,
    /// Factor on the scores.
    pub scale: f32,
}

/// Attends `rows` query rows `q`, `[rows][head_dim]`, to the first `visible[r]` keys of a tile; row r's partial
/// result goes to `out + r · (padded + 2)`.
///
/// # Safety
/// The arrays have these sizes; every `visible[r]` ≤ TILE_KEYS.
#[inline(always)]
pub unsafe fn attend<L: Lanes, E: Element>(
    tile: Tile,
    q: *const f32,
    rows: usize,
    visible: *const usize,
    out: *mut f32,
) {
    let stride = tile.padded + STATE_EXTRA;
    let mut r = 0;
    // SAFETY: r + (1, 2 or 3) ≤ rows.
    unsafe {
        while r < rows {
            let (q, visible, out) = (q.add(r * tile.head_dim), visible.add(r), out.add(r * stride));
            // Four rows are two pairs: three and one would leave registers idle.
            r += match rows - r {
                1 => attend_rows::<L, E, 1, 8>(tile, q, visible, out),
                2 | 4 => attend_rows::<L, E, 2, 4>(tile, q, visible, out),
                _ => attend_rows::<L, E, 3, 4>(tile, q, visible, out),
            };
        }
    }
}

/// [`attend`] for `R` rows with `R × N` accumulators; returns `R`.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn attend_rows<L: Lanes, E: Element, const R: usize, const N: usize>(
    tile: Tile,
    q: *const f32,
    visible: *const usize,
    out: *mut f32,
) -> usize {
    let size = E::DTYPE.size();
    let mut p = [[0.0f32; TILE_KEYS]; R];
    // SAFETY: keys are indexed below TILE_KEYS, dimensions below head_dim or padded, rows below R.
    unsafe {
        let seen: [usize; R] = std::array::from_fn(|r| *visible.add(r));
        let most = seen.iter().copied().max().unwrap_or(0);
        for first in (0..most).step_by(N * LANES) {
            let mut acc = [[L::splat(0.0); N]; R];
            for d in 0..tile.head_dim {
                let k: [L; N] =
                    std::array::from_fn(|n| E::load(tile.k.add((d * TILE_KEYS + first + n * LANES) * size)));
                for (r, acc) in acc.iter_mut().enumerate() {
                    let q = L::splat(*q.add(r * tile.head_dim + d));
                    for n in 0..N {
                        acc[n] = k[n].fma(q, acc[n]);
                    }
                }
            }
            for (p, acc) in p.iter_mut().zip(acc) {
                for (n, s) in acc.into_iter().enumerate() {
                    s.mul(L::splat(tile.scale)).store(p.as_mut_ptr().add(first + n * LANES));
                }
            }
        }
        for r in 0..R {
            let (m, l) = softmax::<L>(&mut p[r], seen[r]);
            let state = out.add(r * (tile.padded + STATE_EXTRA) + tile.padded);
            *state = m;
            *state.add(1) = l;
        }
        let mut d = 0;
        while d + 4 * LANES <= tile.padded {
            weigh::<L, E, R, 4>(tile, &p, seen, d, out);
            d += 4 * LANES;
        }
        while d < tile.padded {
            weigh::<L, E, R, 1>(tile, &p, seen, d, out);
            d += LANES;
        }
    }
    R
}

/// Turns the first `seen` scores into exp(s − m) and the others into 0; returns (m, l), (−∞, 0) if none is seen.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn softmax<L: Lanes>(s: &mut [f32; TILE_KEYS], seen: usize) -> (f32, f32) {
    s[seen..].fill(f32::NEG_INFINITY);
    if seen == 0 {
        s.fill(0.0);
        return (f32::NEG_INFINITY, 0.0);
    }
    // SAFETY: i + 8 ≤ TILE_KEYS, a multiple of 8.
    unsafe {
        let used = seen.next_multiple_of(LANES);
        let mut highest = L::splat(f32::NEG_INFINITY);
        for i in (0..used).step_by(LANES) {
            highest = highest.max(L::load(s.as_ptr().add(i)));
        }
        let mut lanes = [0.0f32; LANES];
        highest.store(lanes.as_mut_ptr());
        let m = lanes.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b });
        for i in (0..used).step_by(LANES) {
            let p = s.as_mut_ptr().add(i);
            exp(L::load(p).sub(L::splat(m))).store(p);
        }
        s[seen..].fill(0.0);
        let mut l = L::splat(0.0);
        for i in (0..used).step_by(LANES) {
            l = l.add(L::load(s.as_ptr().add(i)));
        }
        (m, l.sum())
    }
}

/// `o[d..d + 8·N]` of `R` rows: the values weighed by `p`.
///
/// # Safety
/// As [`attend`]; `d + 8·N ≤ padded`.
#[inline(always)]
unsafe fn weigh<L: Lanes, E: Element, const R: usize, const N: usize>(
    tile: Tile,
    p: &[[f32; TILE_KEYS]; R],
    seen: [usize; R],
    d: usize,
    out: *mut f32,
) {
    let size = E::DTYPE.size();
    // SAFETY: j < seen ≤ TILE_KEYS and d + 8·N ≤ padded.
    unsafe {
        let values = |j: usize| -> [L; N] {
            std::array::from_fn(|n| E::load(tile.v.add((j * tile.padded + d + n * LANES) * size)))
        };
        let mut acc = [[L::splat(0.0); N]; R];
        // The keys that all rows see share their loads; a row never touches a key it does not see (it may be NaN).
        let common = seen.iter().copied().min().unwrap_or(0);
        for j in 0..common {
            let v = values(j);
            for r in 0..R {
                let weight = L::splat(p[r][j]);
                for n in 0..N {
                    acc[r][n] = v[n].fma(weight, acc[r][n]);
                }
            }
        }
        for r in 0..R {
            for j in common..seen[r] {
                let v = values(j);
                let weight = L::splat(p[r][j]);
                for n in 0..N {
                    acc[r][n] = v[n].fma(weight, acc[r][n]);
                }
            }
            for n in 0..N {
                acc[r][n].store(out.add(r * (tile.padded + STATE_EXTRA) + d + n * LANES));
            }
        }
    }
}

/// Merges the partial result `tile` into `state`, both `padded + 2` f32 (o, m, l). The empty state is o = 0, m = −∞, l = 0.
///
/// # Safety
/// The arrays have these sizes.
#[inline(always)]
pub unsafe fn merge<L: Lanes>(state: *mut f32, tile: *const f32, padded: usize) {
    // SAFETY: indices stay below padded + 2.
    unsafe {
        let (m, l) = (*state.add(padded), *state.add(padded + 1));
        let (tile_m, tile_l) = (*tile.add(padded), *tile.add(padded + 1));
        let highest = if m > tile_m { m } else { tile_m };
        let a = exp(L::splat(m - highest));
        let b = exp(L::splat(tile_m - highest));
        for d in (0..padded).step_by(LANES) {
            let o = L::load(state.add(d)).mul(a);
            L::load(tile.add(d)).fma(b, o).store(state.add(d));
        }
        let mut lanes = [0.0f32; LANES];
        L::splat(tile_l).fma(b, L::splat(l).mul(a)).store(lanes.as_mut_ptr());
        *state.add(padded) = highest;
        *state.add(padded + 1) = lanes[0];
    }
}
