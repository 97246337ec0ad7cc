//! The KV cache: pages of [`TILE_KEYS`] positions, by KV head, never expanded to the query heads.

use super::Exec;
use crate::error::Result;
use crate::kernels::{KvTile, LANES, TILE_KEYS};
use crate::tensor::{AlignedBuffer, DType};
use crate::{bail, err};

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

    /// Bytes that one position takes.
    pub fn token_bytes(&self) -> usize {
        self.page_bytes() / TILE_KEYS
    }
}

/// One page, `[layers][heads][keys, values]`.
type Page = AlignedBuffer<u8>;

fn new_page(len: usize) -> Result<Page> {
    let mut page = Page::default();
    page.try_grow(len).map_err(|_| err!(NoMemory, "a page of the KV cache ({len} bytes) cannot be allocated"))?;
    Ok(page)
}

/// A sequence's keys and values.
#[derive(Debug)]
pub struct KvCache {
    layout: KvLayout,
    pages: Vec<Page>,
}

impl KvCache {
    /// An empty cache.
    pub fn new(layout: KvLayout) -> Result<KvCache> {
        if layout.dtype == DType::BF16 {
            bail!(InvalidArgument, "KV cache type: expected F16 or F32, found BF16");
        }
        Ok(KvCache { layout, pages: Vec::new() })
    }

    /// Its sizes.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.pages.len() * self.layout.page_bytes()
    }

    /// Makes room for `positions`; on failure nothing has changed.
    pub fn reserve(&mut self, positions: usize) -> Result<()> {
        let before = self.pages.len();
        let result = (before..positions.div_ceil(TILE_KEYS)).try_for_each(|_| {
            self.pages.try_reserve(1)?;
            self.pages.push(new_page(self.layout.page_bytes())?);
            Ok(())
        });
        if result.is_err() {
            self.pages.truncate(before);
        }
        result
    }

    /// Frees the pages beyond `positions`.
    pub fn truncate(&mut self, positions: usize) {
        self.pages.truncate(positions.div_ceil(TILE_KEYS));
    }

    /// Stores the keys and values of consecutive positions from `start` in `layer`. Each row of `qkv`, `width` f32, holds the
    /// keys from `keys` on and the values right behind them, `[heads][head_dim]` both. The pages are reserved before.
    pub fn store(&mut self, exec: &Exec<'_>, layer: usize, start: usize, qkv: &[f32], width: usize, keys: usize) {
        let layout = self.layout;
        let (head_dim, size) = (layout.head_dim, layout.dtype.size());
        let values = keys + layout.heads * head_dim;
        let end = start + qkv.len() / width;
        for page in start / TILE_KEYS..end.div_ceil(TILE_KEYS) {
            let first = page * TILE_KEYS;
            let positions = start.max(first)..end.min(first + TILE_KEYS);
            let slab = &mut self.pages[page][layer * layout.layer_bytes()..(layer + 1) * layout.layer_bytes()];
            exec.team_for(positions.len()).rows(slab, layout.head_bytes(), |worker, mut block| {
                let scratch = &mut *exec.scratch(worker);
                let row_bytes = head_dim * size;
                let narrowed = scratch.bytes.grown(positions.len() * row_bytes);
                for head in block.rows() {
                    let (k, v) = block.row(head).split_at_mut(layout.key_bytes());
                    let head = head * head_dim..(head + 1) * head_dim;
                    for (position, narrowed) in positions.clone().zip(narrowed.chunks_exact_mut(row_bytes)) {
                        let (row, slot) = (&qkv[(position - start) * width..], position - first);
                        exec.kernels.narrow(layout.dtype, &row[keys..][head.clone()], narrowed);
                        let at = slot * head_dim.next_multiple_of(LANES) * size;
                        exec.kernels.narrow(layout.dtype, &row[values..][head.clone()], &mut v[at..at + row_bytes]);
                    }
                    match size {
                        2 => transpose::<2>(narrowed, head_dim, positions.start - first, k),
                        _ => transpose::<4>(narrowed, head_dim, positions.start - first, k),
                    }
                }
            });
        }
    }

    /// One layer of it, to read.
    pub fn layer(&self, layer: usize) -> KvLayer<'_> {
        KvLayer { cache: self, layer }
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
        let bytes = &self.cache.pages[page][start..start + layout.head_bytes()];
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
