//! The KV cache of a sequence: pages of [`TILE_KEYS`] positions, by KV head, never expanded to the query heads.

use super::pages::{Kind, Page, PagePool};
use super::{Exec, Scratch, Sequence};
use crate::bail;
use crate::error::Result;
use crate::kernels::{KvTile, LANES, TILE_KEYS};
use crate::tensor::DType;
use std::ops::Range;
use std::sync::Arc;

/// Sizes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Decoder layers.
    pub layers: usize,
    /// Key and value heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Element type: F16 or F32.
    pub dtype: DType,
}

impl KvLayout {
    fn key_bytes(&self) -> usize {
        self.head_dim * TILE_KEYS * self.dtype.size()
    }

    /// A head's keys `[head_dim][TILE_KEYS]` and values `[TILE_KEYS][head_dim padded to 8]` in one page.
    fn head_bytes(&self) -> usize {
        self.key_bytes() + self.head_dim.next_multiple_of(LANES) * TILE_KEYS * self.dtype.size()
    }

    fn layer_bytes(&self) -> usize {
        self.heads * self.head_bytes()
    }

    /// Bytes of one page: all layers.
    pub fn page_bytes(&self) -> usize {
        self.layers * self.layer_bytes()
    }

    /// Clears the positions of `page` from `slot` on.
    pub fn blank(&self, page: &mut [u8], slot: usize) {
        let size = self.dtype.size();
        for head in page.chunks_exact_mut(self.head_bytes()) {
            let (keys, values) = head.split_at_mut(self.key_bytes());
            keys.chunks_exact_mut(TILE_KEYS * size).for_each(|row| row[slot * size..].fill(0));
            let position_bytes = values.len() / TILE_KEYS;
            values[slot * position_bytes..].fill(0);
        }
    }

    /// Bytes that one position takes.
    pub fn token_bytes(&self) -> usize {
        self.page_bytes() / TILE_KEYS
    }
}

/// A sequence's keys and values. Pages are `[layers][heads][keys, values]`; some may be shared with other sequences.
#[derive(Debug)]
pub struct KvCache {
    layout: KvLayout,
    pool: Arc<PagePool>,
    pages: Vec<Arc<Page>>,
    /// Whether its keys are rotated as those of a long sequence (see `Rotary`).
    long: bool,
}

impl KvCache {
    /// An empty cache with pages from `pool`.
    pub fn new(layout: KvLayout, pool: Arc<PagePool>) -> Result<KvCache> {
        if layout.dtype == DType::BF16 {
            bail!(InvalidArgument, "KV cache type: expected F16 or F32, found BF16");
        }
        Ok(KvCache { layout, pool, pages: Vec::new(), long: false })
    }

    /// Its sizes.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Whether its keys are those of a long sequence.
    pub fn long(&self) -> bool {
        self.long
    }

    /// Empties it for the keys of a sequence that is long or not.
    pub fn restart(&mut self, long: bool) {
        self.pages.clear();
        self.long = long;
    }

    /// Where the index of pages has its first page: equal tokens give equal bits there.
    fn kind(&self) -> Kind {
        (self.layout.dtype, self.long)
    }

    /// Its pages.
    pub fn pages(&self) -> &[Arc<Page>] {
        &self.pages
    }

    /// How many of its pages others hold as well.
    pub fn shared_pages(&self) -> usize {
        self.pages.iter().filter(|page| Arc::strong_count(page) > 1).count()
    }

    /// A cache of the same pages. Whoever writes to one first makes a copy of it.
    pub fn fork(&self) -> Result<KvCache> {
        let mut pages = Vec::new();
        pages.try_reserve_exact(self.pages.len())?;
        pages.extend(self.pages.iter().cloned());
        Ok(KvCache { layout: self.layout, pool: Arc::clone(&self.pool), pages, long: self.long })
    }

    /// A cache of the pages that `bytes` hold one behind the other, of a sequence that is long or not. Nobody vouches for
    /// them, so they stay out of the index.
    pub fn restored(&self, bytes: &[u8], long: bool) -> Result<KvCache> {
        let (layout, pool) = (self.layout, &self.pool);
        let mut pages = Vec::new();
        for bytes in bytes.chunks_exact(layout.page_bytes()) {
            let mut page = pool.allocate(layout.page_bytes())?;
            page.bytes_mut().copy_from_slice(bytes);
            page.keep_private();
            pages.try_reserve(1)?;
            pages.push(Arc::new(page));
        }
        Ok(KvCache { layout, pool: Arc::clone(pool), pages, long })
    }

    /// Makes `positions` ready to be written: pages that are not there are added, shared ones copied. On failure the cache
    /// holds what it held.
    pub fn reserve(&mut self, positions: Range<usize>) -> Result<()> {
        let before = self.pages.len();
        let needed = positions.start / TILE_KEYS..positions.end.div_ceil(TILE_KEYS);
        let shared = needed.start..before.min(needed.end);
        let result = shared.into_iter().try_for_each(|page| self.own(page)).and_then(|()| {
            self.pages.try_reserve(needed.end.saturating_sub(before))?;
            (before..needed.end).try_for_each(|_| {
                self.pages.push(Arc::new(self.pool.allocate(self.layout.page_bytes())?));
                Ok(())
            })
        });
        if result.is_err() {
            self.pages.truncate(before);
        }
        result
    }

    /// Makes sure that nobody else holds `page`.
    fn own(&mut self, page: usize) -> Result<()> {
        if PagePool::writable(&mut self.pages[page]).is_none() {
            self.pages[page] = Arc::new(self.pages[page].copy()?);
        }
        Ok(())
    }

    /// Lets go of the pages beyond `positions`.
    pub fn truncate(&mut self, positions: usize) {
        self.pages.truncate(positions.div_ceil(TILE_KEYS));
    }

    /// Lets other sequences find the pages that hold `tokens`, from position `from` on.
    pub fn publish(&mut self, tokens: &[u32], from: usize) {
        for page in from / TILE_KEYS..tokens.len().div_ceil(TILE_KEYS) {
            let held = &tokens[page * TILE_KEYS..tokens.len().min((page + 1) * TILE_KEYS)];
            let before = page.checked_sub(1).map(|before| &*self.pages[before]);
            if let Some(same) = self.pool.enter(self.kind(), before, &self.pages[page], held) {
                self.pages[page] = same;
            }
        }
    }

    /// Takes over pages of other sequences that begin with `tokens`, of which it holds the first `held`. Returns how many
    /// it holds then.
    pub fn adopt(&mut self, tokens: &[u32], mut held: usize) -> usize {
        while held < tokens.len() {
            let page = held / TILE_KEYS;
            let wanted = &tokens[page * TILE_KEYS..tokens.len().min((page + 1) * TILE_KEYS)];
            let before = page.checked_sub(1).map(|before| &*self.pages[before]);
            let Some((found, common)) = self.pool.find(self.kind(), before, wanted) else { break };
            if page * TILE_KEYS + common <= held || self.pages.try_reserve(1).is_err() {
                break;
            }
            self.pages.truncate(page);
            self.pages.push(found);
            held = page * TILE_KEYS + common;
            if common < TILE_KEYS {
                break;
            }
        }
        held
    }

    /// Stores the keys and values of `rows`, consecutive positions from `start`, in `layer`; the pages are reserved.
    fn store(&mut self, exec: &Exec<'_>, layer: usize, start: usize, rows: Projected<'_>) {
        let layout = self.layout;
        self.each_slab(layer, start, rows, |slab, positions, rows| {
            exec.team_for(positions.len()).rows(slab, layout.head_bytes(), |worker, mut block| {
                for head in block.rows() {
                    layout.store(exec, &mut exec.scratch(worker), positions.start, rows, head, block.row(head));
                }
            });
        });
    }

    /// As [`store`](Self::store), by the calling thread alone.
    fn store_alone(&mut self, exec: &Exec<'_>, scratch: &mut Scratch, layer: usize, start: usize, rows: Projected<'_>) {
        let layout = self.layout;
        self.each_slab(layer, start, rows, |slab, positions, rows| {
            for (head, tile) in slab.chunks_exact_mut(layout.head_bytes()).enumerate() {
                layout.store(exec, scratch, positions.start, rows, head, tile);
            }
        });
    }

    /// Calls `f(the layer's part of the page, positions within the page, their rows)` for each page that the rows reach.
    fn each_slab(
        &mut self,
        layer: usize,
        start: usize,
        rows: Projected<'_>,
        mut f: impl FnMut(&mut [u8], Range<usize>, Projected<'_>),
    ) {
        let end = start + rows.qkv.len() / rows.width;
        let bytes = layer * self.layout.layer_bytes()..(layer + 1) * self.layout.layer_bytes();
        for page in start / TILE_KEYS..end.div_ceil(TILE_KEYS) {
            let first = page * TILE_KEYS;
            let positions = start.max(first)..end.min(first + TILE_KEYS);
            let part = (positions.start - start) * rows.width..(positions.end - start) * rows.width;
            let page = Arc::get_mut(&mut self.pages[page]).expect("a page that was not reserved");
            let positions = positions.start - first..positions.end - first;
            f(&mut page.bytes_mut()[bytes.clone()], positions, Projected { qkv: &rows.qkv[part], ..rows });
        }
    }

    /// One layer of it, to read.
    pub fn layer(&self, layer: usize) -> KvLayer<'_> {
        KvLayer { cache: self, layer }
    }
}

/// Rows of projected queries, keys and values: each, `width` f32, holds the keys from `keys` on and the values right
/// behind them, `[heads][head_dim]` both.
#[derive(Clone, Copy, Debug)]
pub struct Projected<'a> {
    /// Rows of `width`.
    pub qkv: &'a [f32],
    /// f32 from row to row.
    pub width: usize,
    /// Where the keys begin.
    pub keys: usize,
}

/// Stores each sequence's keys and values in `layer` of its cache; the rows are those of all sequences.
pub fn store(exec: &Exec<'_>, sequences: &mut [Sequence<'_>], layer: usize, rows: Projected<'_>) {
    let of = |rows_of: Range<usize>| Projected {
        qkv: &rows.qkv[rows_of.start * rows.width..rows_of.end * rows.width],
        ..rows
    };
    if let [sequence] = sequences {
        return sequence.kv.store(exec, layer, sequence.start, of(sequence.rows.clone()));
    }
    exec.team.rows(sequences, 1, |worker, mut block| {
        for i in block.rows() {
            let sequence = &mut block.row(i)[0];
            let rows = of(sequence.rows.clone());
            sequence.kv.store_alone(exec, &mut exec.scratch(worker), layer, sequence.start, rows);
        }
    });
}

impl KvLayout {
    /// Stores one head's keys and values of `rows` in its part of a page, the first at `slot`.
    fn store(
        &self,
        exec: &Exec<'_>,
        scratch: &mut Scratch,
        slot: usize,
        rows: Projected<'_>,
        head: usize,
        tile: &mut [u8],
    ) {
        let row_bytes = self.head_dim * self.dtype.size();
        let narrowed = scratch.bytes.grown(rows.qkv.len() / rows.width * row_bytes);
        let (k, v) = tile.split_at_mut(self.key_bytes());
        let keys = rows.keys + head * self.head_dim;
        let values = keys + self.heads * self.head_dim;
        let padded_bytes = self.head_dim.next_multiple_of(LANES) * self.dtype.size();
        let v = v[slot * padded_bytes..].chunks_exact_mut(padded_bytes);
        for ((row, v), k) in rows.qkv.chunks_exact(rows.width).zip(v).zip(narrowed.chunks_exact_mut(row_bytes)) {
            exec.kernels.narrow(self.dtype, &row[keys..][..self.head_dim], k);
            exec.kernels.narrow(self.dtype, &row[values..][..self.head_dim], &mut v[..row_bytes]);
        }
        match self.dtype.size() {
            2 => transpose::<2>(narrowed, self.head_dim, slot, k),
            _ => transpose::<4>(narrowed, self.head_dim, slot, k),
        }
    }
}

/// One layer of a cache.
#[derive(Clone, Copy, Debug)]
pub struct KvLayer<'a> {
    cache: &'a KvCache,
    layer: usize,
}

impl<'a> KvLayer<'a> {
    /// The keys and values of one head in one page.
    pub fn tile(self, head: usize, page: usize) -> KvTile<'a> {
        let layout = &self.cache.layout;
        let start = self.layer * layout.layer_bytes() + head * layout.head_bytes();
        let bytes = &self.cache.pages[page].bytes()[start..start + layout.head_bytes()];
        let (keys, values) = bytes.split_at(layout.key_bytes());
        KvTile { dtype: layout.dtype, keys, values, head_dim: layout.head_dim }
    }
}

/// Puts the rows of keys `rows`, `[positions][head_dim]` elements of `SIZE` bytes, into the tile's `[head_dim][TILE_KEYS]`,
/// the first at `slot`.
fn transpose<const SIZE: usize>(rows: &[u8], head_dim: usize, slot: usize, tile: &mut [u8]) {
    let (rows, _) = rows.as_chunks::<SIZE>();
    let (tile, _) = tile.as_chunks_mut::<SIZE>();
    for (d, tile) in tile.chunks_exact_mut(TILE_KEYS).enumerate() {
        for (tile, row) in tile[slot..].iter_mut().zip(rows.chunks_exact(head_dim)) {
            *tile = row[d];
        }
    }
}
