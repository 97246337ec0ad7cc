//! Pages of the KV cache, shared by the sessions of a model, and the index by which a session finds those that another
//! one has computed of the same tokens.

use crate::error::Result;
use crate::kernels::TILE_KEYS;
use crate::memory;
use crate::tensor::{AlignedBuffer, DType};
use crate::{bail, err};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Pads the tokens of a page that is not full; no vocabulary reaches it.
const NO_TOKEN: u32 = u32::MAX;

/// The pages of one model: how many there are, how many there may be, and where to find them by their tokens.
#[derive(Debug)]
pub struct PagePool {
    /// Most bytes of all pages together; 0 = no limit.
    limit: usize,
    /// The process that made it: in a forked child the index may be locked by a thread that is not there.
    process: u32,
    pages: AtomicUsize,
    bytes: AtomicUsize,
    next_node: AtomicU64,
    index: Mutex<BTreeMap<Key, Entry>>,
}

/// The keys and values of [`TILE_KEYS`] positions in all layers. Freed when the last session lets go of it.
#[derive(Debug)]
pub struct Page {
    bytes: AlignedBuffer<u8>,
    pool: Arc<PagePool>,
    /// Where the index has it. While it is there, nobody writes to it.
    place: Mutex<Option<Place>>,
    /// It never gets there.
    private: bool,
}

/// The tokens of a page, behind those of the page before it. Tokens are compared, never a hash of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// The node of the page before, or a root.
    parent: u64,
    tokens: [u32; TILE_KEYS],
}

/// Where the index has a page. A node's number is never given twice, so it stands for the tokens of all pages up to it.
#[derive(Clone, Copy, Debug)]
struct Place {
    key: Key,
    node: u64,
}

#[derive(Debug)]
struct Entry {
    node: u64,
    page: Weak<Page>,
}

/// The type of a cache, and whether its keys are rotated as those of a long sequence.
pub type Kind = (DType, bool);

/// The node before the first page, one for each kind of cache.
fn root((dtype, long): Kind) -> u64 {
    2 * dtype as u64 + u64::from(long)
}

/// More than all roots.
const FIRST_NODE: u64 = 2 * DType::ALL.len() as u64;

impl Key {
    fn new(parent: u64, tokens: &[u32]) -> Key {
        let mut key = Key { parent, tokens: [NO_TOKEN; TILE_KEYS] };
        key.tokens[..tokens.len()].copy_from_slice(tokens);
        key
    }

    fn len(&self) -> usize {
        self.tokens.iter().position(|&token| token == NO_TOKEN).unwrap_or(TILE_KEYS)
    }

    /// How many tokens from the first on are the same and known in both.
    fn common(&self, other: &Key) -> usize {
        let same = |(a, b): &(&u32, &u32)| a == b && **a != NO_TOKEN;
        if self.parent == other.parent { self.tokens.iter().zip(&other.tokens).take_while(same).count() } else { 0 }
    }
}

impl PagePool {
    /// An empty pool. `limit` is in bytes, 0 = none.
    pub fn new(limit: usize) -> PagePool {
        PagePool {
            limit,
            process: std::process::id(),
            pages: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            next_node: AtomicU64::new(FIRST_NODE),
            index: Mutex::default(),
        }
    }

    /// Pages and bytes allocated now, each page counted once however many sessions share it.
    pub fn usage(&self) -> (usize, usize) {
        (self.pages.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// A new page of `len` bytes, all zero.
    pub fn allocate(self: &Arc<PagePool>, len: usize) -> Result<Page> {
        let grown = |used: usize| used.checked_add(len).filter(|&used| self.limit == 0 || used <= self.limit);
        if let Err(used) = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown) {
            let limit = self.limit;
            bail!(
                NoMemory,
                "a page of the KV cache ({len} bytes) exceeds the limit of {limit} bytes: {used} are in use"
            );
        }
        self.pages.fetch_add(1, Ordering::Relaxed);
        let mut bytes = AlignedBuffer::default();
        let result = memory::expect_room(len, "a page").and_then(|()| bytes.try_grow(len));
        // From here on its destructor counts it off.
        let page = Page { bytes, pool: Arc::clone(self), place: Mutex::new(None), private: false };
        match result {
            Ok(()) => Ok(page),
            Err(_) => {
                self.bytes.fetch_sub(len, Ordering::Relaxed); // the buffer is empty
                Err(err!(NoMemory, "a page of the KV cache ({len} bytes) cannot be allocated"))
            }
        }
    }

    /// Enters `page`, which holds `tokens` behind those of the page `before`. If the index has another page of the same
    /// tokens and it is full, returns that one, to be used instead: their bits are equal.
    pub fn enter(&self, kind: Kind, before: Option<&Page>, page: &Arc<Page>, tokens: &[u32]) -> Option<Arc<Page>> {
        let parent = before.map_or(Some(root(kind)), Page::node)?;
        let mut place = page.place();
        let key = Key::new(parent, tokens);
        let mut index = self.index();
        match &*place {
            _ if page.private => return None,
            // More of what it holds has become known.
            Some(known) if known.key != key && known.key.common(&key) == known.key.len() => {
                drop(index.remove(&known.key))
            }
            Some(_) => return None,
            None => {}
        }
        if let Some(other) = index.get(&key).and_then(|entry| entry.page.upgrade()) {
            *place = None;
            drop(index); // before `other`, whose destructor needs it
            return (tokens.len() == TILE_KEYS).then_some(other);
        }
        let node = self.next_node.fetch_add(1, Ordering::Relaxed);
        index.insert(key, Entry { node, page: Arc::downgrade(page) });
        *place = Some(Place { key, node });
        None
    }

    /// The page behind `before` that has the most of `tokens` from the first on, and how many.
    pub fn find(&self, kind: Kind, before: Option<&Page>, tokens: &[u32]) -> Option<(Arc<Page>, usize)> {
        let key = Key::new(before.map_or(Some(root(kind)), Page::node)?, tokens);
        let index = self.index();
        // In the order of the keys, those that share most with it are next to it.
        let neighbours = [index.range(..=key).next_back(), index.range(key..).next()];
        let (found, entry) = neighbours.into_iter().flatten().max_by_key(|(other, _)| other.common(&key))?;
        let common = found.common(&key);
        let page = entry.page.upgrade();
        drop(index);
        page.map(|page| (page, common)).filter(|(_, common)| *common > 0)
    }

    /// The page to write to, if nobody else holds it; it leaves the index.
    pub fn writable(page: &mut Arc<Page>) -> Option<&mut Page> {
        {
            let pool = &page.pool;
            let mut place = page.place();
            let mut index = pool.index(); // while it is held, nobody finds the page
            if Arc::strong_count(page) > 1 {
                return None;
            }
            if let Some(place) = place.take() {
                index.remove(&place.key);
            }
        }
        Arc::get_mut(page)
    }

    fn index(&self) -> MutexGuard<'_, BTreeMap<Key, Entry>> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Page {
    /// What it holds.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What it holds, to change.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Keeps it out of the index for ever.
    pub fn keep_private(&mut self) {
        self.private = true;
    }

    /// Another page that holds the same.
    pub fn copy(&self) -> Result<Page> {
        let mut copy = self.pool.allocate(self.bytes.len())?;
        copy.bytes.copy_from_slice(&self.bytes);
        copy.private = self.private;
        Ok(copy)
    }

    /// Its number in the index, if it is there.
    fn node(&self) -> Option<u64> {
        self.place().map(|place| place.node)
    }

    fn place(&self) -> MutexGuard<'_, Option<Place>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.pool.process != std::process::id() {
            return;
        }
        let place = self.place.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Place { key, node }) = place {
            let mut index = self.pool.index();
            // Another page of the same tokens may have come in its place already.
            if index.get(&key).is_some_and(|entry| entry.node == node) {
                index.remove(&key);
            }
        }
        self.pool.pages.fetch_sub(1, Ordering::Relaxed);
        self.pool.bytes.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}
