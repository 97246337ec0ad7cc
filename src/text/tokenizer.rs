//! `tokenizer.json`, by the `tokenizers` crate.

use super::decoder::Plan;
use super::probe::{Kind, probe};
use crate::err;
use crate::error::Result;
use crate::memory;
use crate::panic::quietly;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::models::bpe::BPE;
use tokenizers::models::{ModelWrapper, TrainerWrapper};
use tokenizers::normalizer::Range;
use tokenizers::tokenizer::pre_tokenizer::Split;
use tokenizers::{
    AddedToken, DecoderWrapper, Model, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PostProcessorWrapper, PreTokenizedString, PreTokenizer, PreTokenizerWrapper, Token, TokenizerImpl,
};

/// Bytes of memory that the crate takes for each byte of a tokenizer.json, and of a text: measured, and rounded up.
const PARSED_BYTES: usize = 16;
const TOKENIZED_BYTES: usize = 256;

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncodeOptions {
    /// Add the special tokens that the tokenizer's post-processor adds (such as BOS).
    pub add_special: bool,
    /// Read special tokens spelled in the text as those tokens, not as text. Added tokens that are not special belong
    /// to the ordinary vocabulary and are recognised either way.
    pub parse_special: bool,
}

/// A loaded tokenizer. Shared freely between threads.
pub struct Tokenizer {
    /// Reads special tokens spelled in the text as tokens.
    parsing: Inner,
    /// Reads them as text. The vocabulary and the merges are those of `parsing`, not a copy.
    plain: Inner,
    plan: Plan,
    vocab_size: usize,
    /// What the post-processor puts before a text.
    prefix: Vec<u32>,
}

/// Where an added token is spelled in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddedMatch {
    /// Its bytes, with the whitespace that the token takes in.
    pub start: usize,
    pub end: usize,
    pub id: u32,
}

impl Tokenizer {
    /// Parses `tokenizer.json`; `name` is used in messages. Its settings of truncation, padding and BPE dropout, which
    /// are for training, are dropped.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Tokenizer> {
        memory::expect_room(bytes.len().saturating_mul(PARSED_BYTES), name)?;
        let parse = match probe(bytes).map_err(|e| e.at(name))? {
            Kind::Bpe => read::<BPE>, // faster by a third: the crate's ModelWrapper first copies all of it into JSON values
            Kind::Other => read::<ModelWrapper>,
        };
        let mut parsing = quietly(|| parse(bytes))
            .map_err(|_| err!(Format, "{name}: not a tokenizer: the crate that reads it panicked"))?
            .map_err(|e| err!(Format, "{name}: not a tokenizer: {e}"))?;
        parsing.set_encode_special_tokens(false);
        let mut plain = parsing.clone();
        plain.set_encode_special_tokens(true); // that is: encode them as if they were text
        let plan = Plan::new(parsing.get_decoder());
        let vocab_size = parsing.get_vocab_size(true);
        let mut tokenizer = Tokenizer { parsing, plain, plan, vocab_size, prefix: Vec::new() };
        tokenizer.prefix = tokenizer.find_prefix();
        Ok(tokenizer)
    }

    /// The tokens of `text`. A text that begins with what `add_special` adds there, and is read so, gets it once: it is
    /// a rendered prompt.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        let inner = if options.parse_special { &self.parsing } else { &self.plain };
        let encoding = guarded(text, || inner.encode_fast(text, options.add_special))?;
        let ids = encoding.get_ids();
        let prefix = if options.add_special && options.parse_special { &self.prefix[..] } else { &[] };
        let doubled = ids.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(prefix));
        memory::collected(ids.iter().copied().skip(if doubled { prefix.len() } else { 0 }))
    }

    /// What the tokenizer puts before a text by itself, such as a beginning-of-text token.
    pub fn prefix(&self) -> &[u32] {
        &self.prefix
    }

    fn find_prefix(&self) -> Vec<u32> {
        let ids =
            |add_special| self.encode("a", EncodeOptions { add_special, parse_special: false }).unwrap_or_default();
        let (bare, full) = (ids(false), ids(true));
        let at = full.windows(bare.len().max(1)).position(|window| window == bare);
        full[..at.unwrap_or(0)].to_vec()
    }

    /// The id of a token by its spelling.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.parsing.token_to_id(token)
    }

    /// The tokens that are recognised in a text before anything else happens to it.
    pub(super) fn added_tokens(&self) -> impl Iterator<Item = (u32, &AddedToken)> {
        self.parsing.get_added_vocabulary().get_added_tokens_decoder().iter().map(|(&id, token)| (id, token))
    }

    /// Where `text` spells added tokens, in order.
    pub(super) fn added_matches(&self, text: &str) -> Result<Vec<AddedMatch>> {
        let inner = &self.parsing;
        let split =
            guarded(text, || Ok(inner.get_added_vocabulary().extract_and_normalize(inner.get_normalizer(), text)))?;
        let found = split.get_splits(OffsetReferential::Original, OffsetType::Byte).into_iter();
        Ok(found
            .filter_map(|(_, (start, end), tokens)| {
                tokens.as_ref()?.first().map(|token| AddedMatch { start, end, id: token.id })
            })
            .collect())
    }

    /// The ids of `text` in which the added tokens are `found`, and these only.
    pub(super) fn encode_between(&self, text: &str, found: &[AddedMatch]) -> Result<Vec<u32>> {
        let inner = &self.parsing;
        let split = guarded(text, || {
            let mut split = PreTokenizedString::from(text);
            split.split(|_, whole| {
                let piece = |from, to| whole.slice(Range::Original(from..to)).unwrap_or_default();
                let mut pieces: Vec<Split> = Vec::new();
                let mut done = 0;
                for m in found {
                    pieces.push(piece(done, m.start).into());
                    let (token, value) = (piece(m.start, m.end), text[m.start..m.end].to_owned());
                    let length = token.get().len();
                    pieces.push((token, Some(vec![Token::new(m.id, value, (0, length))])).into());
                    done = m.end;
                }
                pieces.push(piece(done, text.len()).into());
                Ok(pieces)
            })?;
            if let Some(normalizer) = inner.get_normalizer() {
                split.normalize(|piece| normalizer.normalize(piece))?;
            }
            if let Some(pre_tokenizer) = inner.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut split)?;
            }
            split.tokenize(|piece| inner.get_model().tokenize(piece.get()))?;
            Ok(split)
        })?;
        let tokens = split.get_splits(OffsetReferential::Original, OffsetType::None).into_iter();
        Ok(tokens.flat_map(|(_, _, tokens)| tokens.iter().flatten().map(|token| token.id)).collect())
    }

    /// The text of `tokens`. Bytes that form no character become U+FFFD, as in Hugging Face; an id that the tokenizer
    /// doesn't know is no text, as there (models pad their vocabularies).
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> Result<String> {
        memory::expect_room(0, "the tokens' text")?;
        let mut state = self.plan.start();
        let mut out = String::new();
        for token in tokens.iter().filter_map(|&id| self.token(id, skip_special)) {
            self.plan.push(&mut state, token, &mut out)?;
        }
        self.plan.finish(&mut state, &mut out)?;
        Ok(out)
    }

    /// Number of tokens, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// How tokens become text.
    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the decoder is given for `id`: nothing for an unknown id, or for a special token to be skipped.
    pub(super) fn token(&self, id: u32, skip_special: bool) -> Option<String> {
        let token = self.parsing.id_to_token(id)?;
        let skipped = skip_special && self.parsing.get_added_vocabulary().is_special_token(&token);
        (!skipped).then_some(token)
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size)
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

/// Runs what the crate does with `text`; it may panic.
fn guarded<T>(text: &str, f: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    memory::expect_room(text.len().saturating_mul(TOKENIZED_BYTES), "the text's tokens")?;
    quietly(f)
        .map_err(|_| err!(Tokenizer, "the tokenizer panicked on a text of {} bytes", text.len()))?
        .map_err(|e| err!(Tokenizer, "the tokenizer refused a text of {} bytes: {e}", text.len()))
}

type Inner<M = ModelWrapper> =
    TokenizerImpl<Shared<M>, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// Reads a tokenizer whose model is an `M`; truncation and padding stay behind.
fn read<M>(bytes: &[u8]) -> tokenizers::Result<Inner>
where
    M: DeserializeOwned + Into<ModelWrapper>,
{
    let read: Inner<M> = serde_json::from_slice(bytes)?;
    let mut inner = Inner::new(Shared(read.get_model().0.clone(), PhantomData));
    inner.with_normalizer(read.get_normalizer().cloned())?;
    inner.with_pre_tokenizer(read.get_pre_tokenizer().cloned());
    inner.with_post_processor(read.get_post_processor().cloned());
    inner.with_decoder(read.get_decoder().cloned());
    inner.with_added_vocabulary(read.get_added_vocabulary().clone());
    Ok(inner)
}

/// A model that several tokenizers can hold, read as an `M`.
struct Shared<M>(Arc<ModelWrapper>, PhantomData<fn() -> M>);

impl<M> Clone for Shared<M> {
    fn clone(&self) -> Self {
        Shared(self.0.clone(), PhantomData)
    }
}

impl<'de, M: Deserialize<'de> + Into<ModelWrapper>> Deserialize<'de> for Shared<M> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let mut model = M::deserialize(deserializer)?.into();
        if let ModelWrapper::BPE(bpe) = &mut model {
            bpe.dropout = None; // the same text gives the same tokens
            bpe.resize_cache(0); // it lives in each of the host's threads and outlives the model
        }
        Ok(Shared(Arc::new(model), PhantomData))
    }
}

impl<M> Model for Shared<M> {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, sequence: &str) -> tokenizers::Result<Vec<Token>> {
        self.0.tokenize(sequence)
    }
    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }
    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }
    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.get_vocab()
    }
    fn get_vocab_size(&self) -> usize {
        self.0.get_vocab_size()
    }
    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        self.0.save(folder, prefix)
    }
    fn get_trainer(&self) -> TrainerWrapper {
        self.0.get_trainer()
    }
}
