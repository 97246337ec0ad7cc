//! Causal grouped-query attention (Ainslie et al. 2023) over the paged cache.
//!
//! Tiles of the cache are computed independently and merged in ascending order, so many (head, tile) pairs can be
//! shared between threads for one token, and a block of query rows can walk over the tiles for many: same bits.

use super::kv::KvLayer;
use super::{Exec, Scratch};
use crate::kernels::{TILE_KEYS, attention_state_len, clear_state, finish_state};
use crate::pool::Block;
use crate::tensor::AlignedBuffer;

/// Heads of an attention layer. Query head h reads KV head h / group.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// KV heads.
    pub kv: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Width of a head.
    pub dim: usize,
    /// Factor on the scores.
    pub scale: f32,
}

/// Query rows at once: enough to widen a KV tile once for many, few enough to share them evenly between the threads.
const BLOCK_ROWS: usize = 48;

/// Where the queries are: each row of `qkv`, `width` f32, begins with `[kv][group][dim]` queries; the first row is
/// at position `start`.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// Rows of `width`.
    pub qkv: &'a [f32],
    /// f32 from row to row.
    pub width: usize,
    /// Position of the first row.
    pub start: usize,
}

impl Heads {
    /// Attends the queries to a layer of the cache, which holds their own keys already; `out` is
    /// `[n][kv · group · dim]`. `partials` is a buffer.
    pub fn attend(
        &self,
        exec: &Exec<'_>,
        queries: Queries<'_>,
        kv: KvLayer<'_>,
        partials: &mut AlignedBuffer<f32>,
        out: &mut [f32],
    ) {
        let tokens = queries.qkv.len() / queries.width;
        if tokens * self.group <= BLOCK_ROWS {
            self.few(exec, queries, kv, partials, out);
        } else {
            let size = ((BLOCK_ROWS / self.group).max(1), self.group * self.dim);
            exec.team.blocks(out, self.kv * self.group * self.dim, size, |worker, mut block| {
                self.many(exec, queries, kv, &mut exec.scratch(worker), &mut block);
            });
        }
    }

    /// Brings near what `worker` will read when one token at `position` attends, as far as that stays near until then.
    pub fn prefetch(&self, exec: &Exec<'_>, kv: KvLayer<'_>, position: usize, worker: usize) {
        const MOST_BYTES: usize = 128 * 1024;
        let tiles = position / TILE_KEYS + 1;
        let pairs = self.kv * tiles;
        let (from, to) = (pairs * worker / exec.team.threads(), pairs * (worker + 1) / exec.team.threads());
        let mut bytes = 0;
        for pair in (from..to).rev() {
            let tile = kv.tile(pair / tiles, pair % tiles);
            bytes += tile.keys.len() + tile.values.len();
            if bytes > MOST_BYTES {
                return;
            }
            exec.kernels.prefetch(tile.keys);
            exec.kernels.prefetch(tile.values);
        }
    }

    /// A block of tokens of one KV head: walks over the tiles that its last token sees.
    fn many(
        &self,
        exec: &Exec<'_>,
        queries: Queries<'_>,
        kv: KvLayer<'_>,
        scratch: &mut Scratch,
        block: &mut Block<'_, f32>,
    ) {
        let head = block.columns().start / (self.group * self.dim);
        let tokens = block.rows();
        let len = attention_state_len(self.dim);
        let rows = tokens.len() * self.group;
        let q = scratch.queries.grown(rows * self.dim);
        self.load(queries, head, tokens.clone(), q);
        let states = scratch.states.grown(rows * len);
        states.chunks_exact_mut(len).for_each(clear_state);
        let visible = scratch.visible.grown(rows);
        for tile in 0..(queries.start + tokens.end).div_ceil(TILE_KEYS) {
            self.count_visible(queries.start + tokens.start, tile, visible);
            let tile = exec.kernels.widen_tile(kv.tile(head, tile), &mut scratch.tile);
            exec.kernels.attend(tile, None, self.scale, q, visible, states);
        }
        for (token, states) in tokens.zip(states.chunks_exact(self.group * len)) {
            for (out, state) in block.row(token).chunks_exact_mut(self.dim).zip(states.chunks_exact(len)) {
                finish_state(state, out);
            }
        }
    }

    /// Few query rows: the (head, tile) pairs are shared between the threads, then each head's tiles are merged.
    fn few(
        &self,
        exec: &Exec<'_>,
        queries: Queries<'_>,
        kv: KvLayer<'_>,
        partials: &mut AlignedBuffer<f32>,
        out: &mut [f32],
    ) {
        let tokens = queries.qkv.len() / queries.width;
        let tiles = (queries.start + tokens).div_ceil(TILE_KEYS);
        let len = attention_state_len(self.dim);
        let rows = tokens * self.group;
        let partials = partials.grown(self.kv * tiles * rows * len);
        exec.team.rows(partials, rows * len, |worker, mut block| {
            let scratch = &mut *exec.scratch(worker);
            let q = scratch.queries.grown(rows * self.dim);
            let visible = scratch.visible.grown(rows);
            let mut loaded = None;
            for pair in block.rows() {
                let (head, tile) = (pair / tiles, pair % tiles);
                if loaded.replace(head) != Some(head) {
                    self.load(queries, head, 0..tokens, q);
                }
                self.count_visible(queries.start, tile, visible);
                block.row(pair).chunks_exact_mut(len).for_each(clear_state);
                let next = pair + 1;
                let next = (next < block.rows().end).then(|| kv.tile(next / tiles, next % tiles));
                exec.kernels.attend(kv.tile(head, tile), next, self.scale, q, visible, block.row(pair));
            }
        });
        let partials = &*partials;
        let heads = self.kv * self.group;
        let team = if tiles > 4 { exec.team } else { exec.solo };
        team.columns(out, heads * self.dim, self.dim, |worker, mut block| {
            let scratch = &mut *exec.scratch(worker);
            let state = scratch.states.grown(len);
            let columns = block.columns();
            for token in 0..tokens {
                for (h, out) in (columns.start / self.dim..).zip(block.row(token).chunks_exact_mut(self.dim)) {
                    let (head, row) = (h / self.group, token * self.group + h % self.group);
                    clear_state(state);
                    for tile in 0..tiles {
                        let at = ((head * tiles + tile) * rows + row) * len;
                        exec.kernels.merge(state, &partials[at..at + len]);
                    }
                    finish_state(state, out);
                }
            }
        });
    }

    /// Gathers the query rows of `head` for `tokens`: `[tokens][group][dim]`.
    fn load(&self, queries: Queries<'_>, head: usize, tokens: std::ops::Range<usize>, q: &mut [f32]) {
        let width = self.group * self.dim;
        for (token, q) in tokens.zip(q.chunks_exact_mut(width)) {
            q.copy_from_slice(&queries.qkv[token * queries.width + head * width..][..width]);
        }
    }

    /// How many keys of `tile` each query row sees, the first row's token being at `position`: token i sees the keys 0..=i.
    fn count_visible(&self, position: usize, tile: usize, visible: &mut [usize]) {
        for (row, visible) in visible.iter_mut().enumerate() {
            let seen = position + row / self.group + 1;
            *visible = seen.saturating_sub(tile * TILE_KEYS).min(TILE_KEYS);
        }
    }
}
