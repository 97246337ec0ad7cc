//! Causal grouped-query attention (Ainslie et al. 2023) over the paged cache.
//!
//! Tiles of the cache are computed independently and merged in ascending order, so many (head, tile) pairs can be
//! shared between threads for one token, and a block of query rows can walk over the tiles for many: same bits.

use super::{Exec, Scratch, Sequence};
use crate::kernels::{Scoring, TILE_KEYS, Visible, attention_state_len, clear_state, finish_state};
use crate::pool::Block;
use crate::tensor::AlignedBuffer;
use std::ops::Range;

/// Heads of an attention layer. Query head h reads KV head h / group.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// KV heads.
    pub kv: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Width of a head.
    pub dim: usize,
    /// What becomes of the scores.
    pub scoring: Scoring,
}

/// A layer as attention sees it.
#[derive(Clone, Copy, Debug)]
pub struct CacheLayer {
    /// Its number in the cache.
    pub index: usize,
    /// How many tokens a token sees, itself included; `None`: all before it.
    pub window: Option<usize>,
}

impl CacheLayer {
    /// The tiles that tokens at `positions` see some of; the others are not read.
    fn tiles(&self, positions: Range<usize>) -> Range<usize> {
        self.first_seen(positions.start) / TILE_KEYS..positions.end.div_ceil(TILE_KEYS)
    }

    /// The first position that a token at `position` sees.
    fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// Query rows at once: enough to widen a KV tile once for many, few enough to share them evenly between the threads.
const BLOCK_ROWS: usize = 48;

/// Where the queries are: each row of `qkv`, `width` f32, begins with `[kv][group][dim]` queries.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// Rows of `width`, those of all sequences.
    pub qkv: &'a [f32],
    /// f32 from row to row.
    pub width: usize,
}

/// Buffers of a pass. They grow to the largest use and stay.
#[derive(Debug, Default)]
pub struct Partials {
    /// States of (sequence, head, tile) triples.
    states: AlignedBuffer<f32>,
    /// For each sequence the number of (head, tile) pairs before its own, then that of all.
    pairs: AlignedBuffer<usize>,
}

impl Heads {
    /// Attends the queries of each sequence to its cache in `layer`, which holds their own keys already; `out` is
    /// `[n][kv · group · dim]`.
    pub fn attend(
        &self,
        exec: &Exec<'_>,
        queries: Queries<'_>,
        sequences: &[Sequence<'_>],
        layer: CacheLayer,
        partials: &mut Partials,
        out: &mut [f32],
    ) {
        let width = self.kv * self.group * self.dim;
        // Sequences with as many tokens share one hand-over to the threads: when many decode together, all of them.
        for run in sequences.chunk_by(|a, b| a.tokens.len() == b.tokens.len()) {
            let tokens = run[0].tokens.len();
            if 2 * tokens * self.group <= BLOCK_ROWS {
                let out = &mut out[run[0].rows.start * width..run[run.len() - 1].rows.end * width];
                self.few(exec, queries, run, layer, partials, out);
                continue;
            }
            for sequence in run {
                let out = &mut out[sequence.rows.start * width..sequence.rows.end * width];
                let block = (BLOCK_ROWS / self.group).max(1).min(tokens.div_ceil(2));
                let size = (block, self.group * self.dim);
                exec.team.blocks(out, width, size, |worker, mut block| {
                    self.many(exec, queries, sequence, layer, &mut exec.scratch(worker), &mut block);
                });
            }
        }
    }

    /// Brings near what `worker` will read when the one token of `sequence` attends, as far as that stays near until then.
    pub fn prefetch(&self, exec: &Exec<'_>, sequence: &Sequence<'_>, layer: CacheLayer, worker: usize) {
        const MOST_BYTES: usize = 128 * 1024;
        let (kv, tiles) = (sequence.kv.layer(layer.index), layer.tiles(sequence.start..sequence.start + 1));
        let pairs = self.kv * tiles.len();
        let (from, to) = (pairs * worker / exec.team.threads(), pairs * (worker + 1) / exec.team.threads());
        let mut bytes = 0;
        for pair in (from..to).rev() {
            let tile = kv.tile(pair / tiles.len(), tiles.start + pair % tiles.len());
            bytes += tile.keys.len() + tile.values.len();
            if bytes > MOST_BYTES {
                return;
            }
            exec.kernels.prefetch(tile.keys);
            exec.kernels.prefetch(tile.values);
        }
    }

    /// A block of a sequence's tokens of one KV head: walks over the tiles that its last token sees.
    fn many(
        &self,
        exec: &Exec<'_>,
        queries: Queries<'_>,
        sequence: &Sequence<'_>,
        layer: CacheLayer,
        scratch: &mut Scratch,
        block: &mut Block<'_, f32>,
    ) {
        let (head, kv) = (block.columns().start / (self.group * self.dim), sequence.kv.layer(layer.index));
        let tokens = block.rows();
        let len = attention_state_len(self.dim);
        let rows = tokens.len() * self.group;
        let q = scratch.queries.grown(rows * self.dim);
        self.load(queries, head, sequence.rows.start + tokens.start..sequence.rows.start + tokens.end, q);
        let states = scratch.states.grown(rows * len);
        states.chunks_exact_mut(len).for_each(clear_state);
        let visible = scratch.visible.grown(rows);
        for tile in layer.tiles(sequence.start + tokens.start..sequence.start + tokens.end) {
            self.find_visible(layer, sequence.start + tokens.start, tile, visible);
            let tile = exec.kernels.widen_tile(kv.tile(head, tile), &mut scratch.tile);
            exec.kernels.attend(tile, None, self.scoring, q, visible, states);
        }
        for (token, states) in tokens.zip(states.chunks_exact(self.group * len)) {
            for (out, state) in block.row(token).chunks_exact_mut(self.dim).zip(states.chunks_exact(len)) {
                finish_state(state, out);
            }
        }
    }

    /// Sequences of equally many, few tokens: the (sequence, head, tile) triples are shared between the threads, then each
    /// head's tiles are merged. `out` has the rows of these sequences.
    fn few(
        &self,
        exec: &Exec<'_>,
        queries: Queries<'_>,
        sequences: &[Sequence<'_>],
        layer: CacheLayer,
        partials: &mut Partials,
        out: &mut [f32],
    ) {
        let tokens = sequences[0].tokens.len();
        let tiles = |s: usize| layer.tiles(sequences[s].start..sequences[s].start + tokens);
        let Partials { states, pairs } = partials;
        let pairs = pairs.grown(sequences.len() + 1);
        pairs[0] = 0;
        (0..sequences.len()).for_each(|s| pairs[s + 1] = pairs[s] + self.kv * tiles(s).len());
        let (pairs, all) = (&*pairs, pairs[sequences.len()]);
        // The sequence, head and tile of a pair.
        let place = |pair: usize| {
            let s = pairs.partition_point(|&first| first <= pair) - 1;
            let (tiles, pair) = (tiles(s), pair - pairs[s]);
            (s, pair / tiles.len(), tiles.start + pair % tiles.len())
        };
        let tile_at = |(s, head, tile): (usize, usize, usize)| sequences[s].kv.layer(layer.index).tile(head, tile);
        let len = attention_state_len(self.dim);
        let rows = tokens * self.group;
        let states = states.grown(all * rows * len);
        exec.team.rows(states, rows * len, |worker, mut block| {
            let scratch = &mut *exec.scratch(worker);
            let q = scratch.queries.grown(rows * self.dim);
            let visible = scratch.visible.grown(rows);
            let mut loaded = None;
            for pair in block.rows() {
                let (s, head, tile) = place(pair);
                if loaded.replace((s, head)) != Some((s, head)) {
                    self.load(queries, head, sequences[s].rows.clone(), q);
                }
                self.find_visible(layer, sequences[s].start, tile, visible);
                block.row(pair).chunks_exact_mut(len).for_each(clear_state);
                let next = (pair + 1 < block.rows().end).then(|| tile_at(place(pair + 1)));
                let tile = tile_at((s, head, tile));
                exec.kernels.attend(tile, next, self.scoring, q, visible, block.row(pair));
            }
        });
        let states = &*states;
        let heads = self.kv * self.group;
        let team = if all > 4 * self.kv { exec.team } else { exec.solo };
        team.blocks(out, heads * self.dim, (1, self.dim), |worker, mut block| {
            let scratch = &mut *exec.scratch(worker);
            let state = scratch.states.grown(len);
            let (head, group) =
                (block.columns().start / self.dim / self.group, block.columns().start / self.dim % self.group);
            for row in block.rows() {
                let (s, row_of_head) = (row / tokens, row % tokens * self.group + group);
                clear_state(state);
                let tiles = tiles(s).len();
                for tile in 0..tiles {
                    let at = ((pairs[s] + head * tiles + tile) * rows + row_of_head) * len;
                    exec.kernels.merge(state, &states[at..at + len]);
                }
                finish_state(state, block.row(row));
            }
        });
    }

    /// Gathers the query rows of `head` in `rows`: `[rows][group][dim]`.
    fn load(&self, queries: Queries<'_>, head: usize, rows: Range<usize>, q: &mut [f32]) {
        let width = self.group * self.dim;
        for (row, q) in rows.zip(q.chunks_exact_mut(width)) {
            q.copy_from_slice(&queries.qkv[row * queries.width + head * width..][..width]);
        }
    }

    /// Which keys of `tile` each query row sees, the first row's token being at `position`.
    fn find_visible(&self, layer: CacheLayer, position: usize, tile: usize, visible: &mut [Visible]) {
        let within = |key: usize| key.saturating_sub(tile * TILE_KEYS).min(TILE_KEYS);
        for (row, visible) in visible.iter_mut().enumerate() {
            let position = position + row / self.group;
            *visible = Visible { from: within(layer.first_seen(position)), to: within(position + 1) };
        }
    }
}
