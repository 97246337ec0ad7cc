//! Sessions as bytes: saved in one process, loaded in another, going on with the same bits.
//!
//! All numbers little-endian. In this order:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `RIESTATE` |
//! | 4 | version of this format, [`VERSION`] |
//! | 4 | bytes of a cache element: 2 (F16) or 4 (F32) |
//! | 16 | the model's fingerprint |
//! | 8, 8, 8 | numbers of tokens, of evaluated tokens, and of floats of the residual stream: 0 or hidden_size |
//! | 4 each | the tokens |
//! | 1 each | for each token 1 if a decode step sampled it, else 0 |
//! | 4 each | the residual stream after the last evaluated token |
//! | … | the pages of the KV cache, of 64 positions each; what lies behind the evaluated ones is 0 |
//! | 16 | XXH3-128 of all before |

use super::Session;
use crate::error::Result;
use crate::kernels::TILE_KEYS;
use crate::memory;
use crate::model::Model;
use crate::ops::kv::KvLayout;
use crate::{bail, err};
use std::borrow::Cow;
use twox_hash::xxhash3_128::Hasher;

const MAGIC: [u8; 8] = *b"RIESTATE";
/// Grows when the layout changes, of the pages too.
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 8 + 4 + 4 + 16 + 3 * 8;
const CHECKSUM_BYTES: usize = 16;

impl Session {
    /// Bytes that [`save`](Self::save) gives.
    pub fn saved_len(&self) -> usize {
        let (evaluated, last) = self.to_save();
        let pages = evaluated.div_ceil(TILE_KEYS) * self.kv.layout().page_bytes();
        HEADER_BYTES + self.tokens.len() * 5 + last.len() * 4 + pages + CHECKSUM_BYTES
    }

    /// What is worth saving besides the tokens: how many are evaluated, and the residual stream after the last of them.
    fn to_save(&self) -> (usize, &[f32]) {
        if self.rotation_changes() { (0, &[]) } else { (self.evaluated, &self.last) }
    }

    /// The session's tokens and what is computed of them, in parts that follow one another.
    pub fn save(&self) -> Result<Vec<Cow<'_, [u8]>>> {
        let layout = self.kv.layout();
        let (evaluated, last) = self.to_save();
        let mut head = Vec::new();
        head.try_reserve_exact(HEADER_BYTES + self.tokens.len() * 5 + last.len() * 4)?;
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend((layout.dtype.size() as u32).to_le_bytes());
        head.extend(self.model.fingerprint()?.to_le_bytes());
        for count in [self.tokens.len(), evaluated, last.len()] {
            head.extend((count as u64).to_le_bytes());
        }
        head.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        head.extend(self.generated.iter().map(|&generated| u8::from(generated)));
        head.extend(last.iter().flat_map(|value| value.to_le_bytes()));
        let mut parts = memory::with_room(2 + evaluated.div_ceil(TILE_KEYS))?;
        parts.push(Cow::Owned(head));
        for (page, held) in self.kv.pages().iter().zip((0..evaluated).step_by(TILE_KEYS)) {
            let held = evaluated - held;
            let mut bytes = Cow::Borrowed(page.bytes());
            if held < TILE_KEYS {
                let mut copy = memory::copied(&bytes)?;
                layout.blank(&mut copy, held);
                bytes = Cow::Owned(copy);
            }
            parts.push(bytes);
        }
        let mut hasher = Hasher::new();
        parts.iter().for_each(|part| hasher.write(part));
        parts.push(Cow::Owned(hasher.finish_128().to_le_bytes().to_vec()));
        Ok(parts)
    }

    /// Replaces the session's tokens and what is computed of them by what was saved. On failure nothing has changed.
    pub fn load(&mut self, bytes: &[u8]) -> Result<()> {
        let layout = *self.kv.layout();
        let saved = Saved::read(bytes, &self.model, &layout)?;
        let Saved { tokens, generated, last, pages, evaluated } = saved;
        let vocab = self.model.config().vocab_size;
        let tokens = memory::collected(words(tokens).map(u32::from_le_bytes))?;
        if let Some(i) = tokens.iter().position(|&token| token as usize >= vocab) {
            bail!(Format, "token {i}: id {} is outside the vocabulary of {vocab}", tokens[i]);
        }
        if tokens.len() > self.context {
            bail!(ContextFull, "the saved {} tokens exceed the session's context of {}", tokens.len(), self.context);
        }
        let generated = memory::collected(generated.iter().map(|&generated| generated == 1))?;
        let last = memory::collected(words(last).map(f32::from_le_bytes))?;
        let kv = self.kv.restored(pages, self.is_long(tokens.len()))?;
        self.lookahead = self.lookahead.fork();
        self.logits.clear();
        (self.tokens, self.generated, self.last) = (tokens, generated, last);
        (self.kv, self.evaluated) = (kv, evaluated);
        Ok(())
    }
}

/// The parts of a saved session, their sizes checked.
struct Saved<'a> {
    tokens: &'a [u8],
    generated: &'a [u8],
    last: &'a [u8],
    pages: &'a [u8],
    evaluated: usize,
}

impl<'a> Saved<'a> {
    fn read(bytes: &'a [u8], model: &Model, layout: &KvLayout) -> Result<Saved<'a>> {
        if !bytes.starts_with(&MAGIC) {
            bail!(Format, "expected a saved session, which begins with RIESTATE");
        }
        let short = || err!(Format, "the saved session ends after {} bytes", bytes.len());
        let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or_else(short)?;
        let header = body.first_chunk::<HEADER_BYTES>().ok_or_else(short)?;
        let number = |at: usize, bytes: usize| {
            let digits = header[at..at + bytes].iter().rev();
            digits.fold(0u128, |n, &byte| n << 8 | u128::from(byte))
        };
        let version = number(8, 4);
        if version != VERSION.into() {
            bail!(Mismatch, "the session was saved in format {version}; this version reads format {VERSION}");
        }
        let mut hasher = Hasher::new();
        hasher.write(body);
        if hasher.finish_128() != u128::from_le_bytes(*checksum) {
            bail!(
                Format,
                "the saved session is damaged or cut off: its checksum does not fit its {} bytes",
                bytes.len()
            );
        }
        let (fingerprint, own) = (number(16, 16), model.fingerprint()?);
        if fingerprint != own {
            bail!(Mismatch, "the session was saved with another model: {fingerprint:032x}, not {own:032x}");
        }
        let (element_bytes, dtype) = (number(12, 4), layout.dtype);
        if element_bytes as usize != dtype.size() {
            bail!(Mismatch, "the session was saved with KV cache elements of {element_bytes} bytes, not {dtype:?}");
        }
        // Of 64 bits each, so that sums and products of them fit.
        let [tokens, evaluated, floats] = [32, 40, 48].map(|at| number(at, 8));
        let (hidden, page_bytes) = (model.decoder().hidden(), layout.page_bytes());
        let pages = evaluated.div_ceil(TILE_KEYS as u128) * page_bytes as u128;
        let expected = HEADER_BYTES as u128 + tokens * 5 + floats * 4 + pages;
        if evaluated > tokens || (floats != 0 && floats != hidden as u128) || expected != body.len() as u128 {
            bail!(
                Format,
                "{tokens} tokens, {evaluated} evaluated, {floats} floats: expected {expected} bytes and the checksum, \
                 found {}",
                bytes.len()
            );
        }
        let (tokens, rest) = body[HEADER_BYTES..].split_at(tokens as usize * 4);
        let (generated, rest) = rest.split_at(tokens.len() / 4);
        let (last, pages) = rest.split_at(floats as usize * 4);
        Ok(Saved { tokens, generated, last, pages, evaluated: evaluated as usize })
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.as_chunks::<4>().0.iter().copied()
}
