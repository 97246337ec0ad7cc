//! Attention over one tile of the KV cache, written once over [`Vector`].
//!
//! A tile holds [`TILE_KEYS`] consecutive positions, aligned to absolute positions. Keys lie transposed,
//! `[head_dim][TILE_KEYS]`, so that eight lanes are eight keys and a score needs no reduction; values lie
//! `[TILE_KEYS][head_dim padded to 8]`. For a query row q that sees the keys a ≤ j < c of the tile:
//!
//! - `s_j = scale · Σ_d k_j[d]·q[d]`, d ascending by fused multiply-add from 0; with a soft cap, `cap · tanh(s_j / cap)` of it;
//! - `m = max_j s_j`, `p_j = exp(s_j − m)`, `l = Σ_j p_j` in eight lanes (j mod 8);
//! - `o[d] = Σ_j v_j[d]·p_j`, j ascending by fused multiply-add from 0.
//!
//! A tile's result (o, m, l) is merged into a row's state, tiles in ascending order (online softmax, Milakov & Gimelshein
//! 2018): at once by [`attend`], or later by [`merge`], if `attend` began with the empty state. Merging into the empty state
//! changes no bit, so the result does not depend on who computed which tile.

use super::TILE_KEYS;
use super::float::soft_cap;
use super::lanes::{Element, LANES, Lanes, Vector, exp, in_groups};
use std::mem::MaybeUninit;

/// Where one row's state lies: `padded` f32 of `o`, then m, then l.
pub const STATE_EXTRA: usize = 2;

/// Rows whose scores are held at once: they and a tile's keys, or its values, fit the first-level cache together.
const ROWS: usize = 24;

type Scores = [f32; TILE_KEYS];

/// One tile's keys and values and how to read them.
#[derive(Clone, Copy)]
pub struct Tile {
    /// `[head_dim][TILE_KEYS]` elements.
    pub k: *const u8,
    /// `[TILE_KEYS][padded]` elements.
    pub v: *const u8,
    /// The keys and values to bring near meanwhile; any addresses will do.
    pub next: (*const u8, *const u8),
    /// Width of a head.
    pub head_dim: usize,
    /// `head_dim` rounded up to eight.
    pub padded: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Their soft cap; 0 = none.
    pub cap: f32,
}

/// The keys of a tile that a query row sees, from the first to before the last; none if they are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visible {
    /// The first.
    pub from: usize,
    /// The one behind the last.
    pub to: usize,
}

/// Attends `rows` query rows `q`, `[rows][head_dim]`, to the keys `visible[r]` of a tile and merges the results into the
/// rows' states, at `state + r · (padded + 2)`. A row that sees no key keeps its state.
///
/// # Safety
/// The arrays have these sizes; every `visible[r]` has `from` ≤ `to` ≤ TILE_KEYS.
#[inline(always)]
pub unsafe fn attend<V: Vector, E: Element>(
    tile: Tile,
    q: *const f32,
    rows: usize,
    visible: *const Visible,
    state: *mut f32,
) {
    let stride = tile.padded + STATE_EXTRA;
    let mut scores = MaybeUninit::<[Scores; ROWS]>::uninit();
    // Passes over all rows at a time, so that the keys and then the values stay in the first-level cache.
    // SAFETY: r + R ≤ rows ≤ ROWS in each round, so the rows' queries, states and scores lie in their arrays. Of a row's scores
    // `score` writes those of the keys that the row sees, `softmax` the others, and `weigh` reads none of a row that sees no key.
    unsafe {
        let p = scores.as_mut_ptr().cast::<Scores>();
        for first in (0..rows).step_by(ROWS) {
            let rows = ROWS.min(rows - first);
            let (q, visible, state) = (q.add(first * tile.head_dim), visible.add(first), state.add(first * stride));
            in_groups!(rows, V::WIDTH == 16, [6], |r, R| {
                let (q, visible, p) = (q.add(r * tile.head_dim), visible.add(r), p.add(r));
                match (V::WIDTH, R) {
                    (LANES, 1) => score::<V, E, R, 8>(tile, q, visible, p),
                    (16, 6) => score::<V, E, R, 2>(tile, q, visible, p),
                    _ => score::<V, E, R, 4>(tile, q, visible, p),
                }
            });
            let mut factors = [(0.0, 0.0); ROWS];
            for r in 0..rows {
                let seen = *visible.add(r);
                if seen.from < seen.to {
                    let (m, l) = softmax::<V>(&mut *p.add(r), seen, tile.cap);
                    factors[r] = merge_totals::<V::Eight>(state.add(r * stride + tile.padded), m, l);
                }
            }
            in_groups!(rows, V::WIDTH == 16, [6], |r, R| {
                const N: usize = if R == 6 { 2 } else { 4 };
                let (p, visible, factors, state) =
                    (p.add(r), visible.add(r), &factors[r..r + R], state.add(r * stride));
                let mut d = 0;
                while d + N * V::WIDTH <= tile.padded {
                    weigh::<V, E, R, N>(tile, p, visible, factors, d, state);
                    d += N * V::WIDTH;
                }
                while d < tile.padded {
                    weigh::<V::Eight, E, R, 1>(tile, p, visible, factors, d, state);
                    d += LANES;
                }
            });
        }
    }
}

/// The scores of `R` rows, with `R × N` accumulators.
///
/// # Safety
/// As [`attend`]; `p` has `R` rows.
#[inline(always)]
unsafe fn score<V: Vector, E: Element, const R: usize, const N: usize>(
    tile: Tile,
    q: *const f32,
    visible: *const Visible,
    p: *mut Scores,
) {
    let size = E::DTYPE.size();
    // SAFETY: keys are indexed below TILE_KEYS, dimensions below head_dim, rows below R.
    unsafe {
        let least = (0..R).map(|r| (*visible.add(r)).from).min().unwrap_or(0);
        let most = (0..R).map(|r| (*visible.add(r)).to).max().unwrap_or(0);
        for first in (least / (N * V::WIDTH) * (N * V::WIDTH)..most).step_by(N * V::WIDTH) {
            let mut acc = [[V::splat(0.0); N]; R];
            for d in 0..tile.head_dim {
                V::prefetch(tile.next.0.wrapping_add((d * TILE_KEYS + first) * size));
                // The rows' elements first: with them and one vector of keys, twelve sums fill sixteen registers.
                let mut queries = [V::splat(0.0); R];
                for r in 0..R {
                    queries[r] = V::splat(*q.add(r * tile.head_dim + d));
                }
                for n in 0..N {
                    let k = E::load::<V>(tile.k.add((d * TILE_KEYS + first + n * V::WIDTH) * size));
                    for r in 0..R {
                        acc[r][n] = k.fma(queries[r], acc[r][n]);
                    }
                }
            }
            for (r, acc) in acc.into_iter().enumerate() {
                for (n, s) in acc.into_iter().enumerate() {
                    s.mul(V::splat(tile.scale)).store(p.add(r).cast::<f32>().add(first + n * V::WIDTH));
                }
            }
        }
    }
}

/// Turns the `seen` scores, at least one, into exp(s − m) after the soft `cap`, and the others into 0; returns (m, l).
///
/// # Safety
/// As [`Vector`].
#[inline(always)]
unsafe fn softmax<V: Vector>(s: &mut Scores, seen: Visible, cap: f32) -> (f32, f32) {
    const BLOCKS: usize = TILE_KEYS / LANES;
    let fill_unseen = |s: &mut Scores, value| {
        s[..seen.from].fill(value);
        s[seen.to..].fill(value);
    };
    fill_unseen(s, f32::NEG_INFINITY);
    // SAFETY: block b < BLOCKS lies below TILE_KEYS.
    unsafe {
        if cap > 0.0 {
            soft_cap::<V>(s.as_mut_ptr(), TILE_KEYS, cap);
            fill_unseen(s, f32::NEG_INFINITY);
        }
        let p = s.as_mut_ptr();
        // Plain loops: the closure of a fold would not be compiled with the tier's CPU features.
        let mut m = V::Eight::splat(f32::NEG_INFINITY);
        for b in 0..BLOCKS {
            m = m.max(V::Eight::load(p.add(b * LANES)));
        }
        let m = m.highest();
        for at in (0..TILE_KEYS).step_by(V::WIDTH) {
            exp(V::load(p.add(at)).sub(V::splat(m))).store(p.add(at));
        }
        fill_unseen(s, 0.0);
        let p = s.as_ptr();
        let mut l = V::Eight::splat(0.0);
        for b in 0..BLOCKS {
            l = l.add(V::Eight::load(p.add(b * LANES)));
        }
        (m, l.sum())
    }
}

/// Merges a tile's m and l into those at `total`; returns the factors of the state's o and of the tile's.
///
/// # Safety
/// `total` has two f32.
#[inline(always)]
unsafe fn merge_totals<L: Lanes>(total: *mut f32, tile_m: f32, tile_l: f32) -> (f32, f32) {
    // SAFETY: the two f32.
    unsafe {
        let (m, l) = (*total, *total.add(1));
        let highest = if m > tile_m { m } else { tile_m };
        let (a, b) = (exp(L::splat(m - highest)), exp(L::splat(tile_m - highest)));
        *total = highest;
        *total.add(1) = L::splat(tile_l).fma(b, L::splat(l).mul(a)).first();
        (a.first(), b.first())
    }
}

/// Merges some lanes of a tile's o into the state's.
///
/// # Safety
/// `state` has as many f32.
#[inline(always)]
unsafe fn merge_lanes<V: Vector>(state: *mut f32, o: V, (a, b): (V, V)) {
    // SAFETY: these f32. Adding 0 turns −0 into +0, which merging into the empty state first does as well.
    unsafe { o.add(V::splat(0.0)).fma(b, V::load(state).mul(a)).store(state) }
}

/// The `n`th lanes of the value of key `j`.
///
/// # Safety
/// `values` has them, rows of `padded`.
#[inline(always)]
unsafe fn value<V: Vector, E: Element>(values: *const u8, padded: usize, j: usize, n: usize) -> V {
    // SAFETY: as this function.
    unsafe { E::load(values.add((j * padded + n * V::WIDTH) * E::DTYPE.size())) }
}

/// Row `r`'s weight of key `j`.
///
/// # Safety
/// `p` has the row.
#[inline(always)]
unsafe fn weight<V: Vector>(p: *const Scores, r: usize, j: usize) -> V {
    // SAFETY: as this function; j < TILE_KEYS.
    unsafe { V::splat(*p.add(r).cast::<f32>().add(j)) }
}

/// The values weighed by `p`, elements `d..d + N·lanes` of `R` rows, merged into the states.
///
/// # Safety
/// As [`attend`]; `p` and `factors` have `R` rows, and `d + N·lanes ≤ padded`.
#[inline(always)]
unsafe fn weigh<V: Vector, E: Element, const R: usize, const N: usize>(
    tile: Tile,
    p: *const Scores,
    visible: *const Visible,
    factors: &[(f32, f32)],
    d: usize,
    state: *mut f32,
) {
    let size = E::DTYPE.size();
    // SAFETY: j < seen ≤ TILE_KEYS and d + N·lanes ≤ padded.
    unsafe {
        let values = tile.v.add(d * size);
        let seen: [Visible; R] = std::array::from_fn(|r| *visible.add(r));
        let mut acc = [[V::splat(0.0); N]; R];
        // The keys that all rows see share their loads; a row never touches a key it does not see (it may be NaN).
        let from = seen.iter().map(|seen| seen.from).max().unwrap_or(0);
        let to = seen.iter().map(|seen| seen.to).min().unwrap_or(0).max(from);
        for r in 0..R {
            for j in seen[r].from..from.min(seen[r].to) {
                for n in 0..N {
                    acc[r][n] = value::<V, E>(values, tile.padded, j, n).fma(weight(p, r, j), acc[r][n]);
                }
            }
        }
        for j in from..to {
            V::prefetch(tile.next.1.wrapping_add((j * tile.padded + d) * size));
            let mut weights = [V::splat(0.0); R];
            for r in 0..R {
                weights[r] = weight(p, r, j);
            }
            for n in 0..N {
                let v = value::<V, E>(values, tile.padded, j, n);
                for r in 0..R {
                    acc[r][n] = v.fma(weights[r], acc[r][n]);
                }
            }
        }
        for r in 0..R {
            for j in to..seen[r].to {
                for n in 0..N {
                    acc[r][n] = value::<V, E>(values, tile.padded, j, n).fma(weight(p, r, j), acc[r][n]);
                }
            }
            if seen[r].from < seen[r].to {
                let factors = (V::splat(factors[r].0), V::splat(factors[r].1));
                for n in 0..N {
                    merge_lanes(state.add(r * (tile.padded + STATE_EXTRA) + d + n * V::WIDTH), acc[r][n], factors);
                }
            }
        }
    }
}

/// Merges the state `tile` into `state`, both `padded + 2` f32 (o, m, l). The empty state is o = 0, m = −∞, l = 0.
///
/// # Safety
/// The arrays have these sizes.
#[inline(always)]
pub unsafe fn merge<L: Lanes>(state: *mut f32, tile: *const f32, padded: usize) {
    // SAFETY: indices stay below padded + 2.
    unsafe {
        let (a, b) = merge_totals::<L>(state.add(padded), *tile.add(padded), *tile.add(padded + 1));
        let factors = (L::splat(a), L::splat(b));
        for d in (0..padded).step_by(LANES) {
            merge_lanes(state.add(d), L::load(tile.add(d)), factors);
        }
    }
}
