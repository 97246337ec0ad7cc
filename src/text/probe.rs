//! A look at `tokenizer.json` before the `tokenizers` crate reads it: what would make the crate panic, overflow the
//! stack, fill the memory or build a string that is not UTF-8 is an error here, with a message that helps. (Other
//! panics are caught.)

use super::growth::{Growth, check_template, kind};
use crate::error::Result;
use crate::{bail, err};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::fmt;
use tokenizers::normalizers::precompiled::Precompiled;

/// Deepest nesting of normalizers, decoders and so on; real files have about 6. The crate recurses on it.
const MAX_DEPTH: usize = 16;
/// Longest word that a WordPiece model may look at, in characters; real files have 100. The work grows with its cube.
const MAX_WORD: u64 = 256;
/// Longest token of a Unigram model, in bytes; SentencePiece makes them of 16 characters. Each place of a text is compared
/// with as much.
const MAX_PIECE: usize = 1024;

#[derive(Deserialize)]
#[serde(expecting = "an object with a model")]
struct File {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: Model,
}

#[derive(Deserialize)]
#[serde(expecting = "a model: an object")]
struct Model {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    vocab: Longest,
    #[serde(default)]
    merges: Longest,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    max_input_chars_per_word: Option<u64>,
}

/// The type of the model.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// The file says BPE.
    Bpe,
    /// It says something else or, as old files do, nothing.
    Other,
}

/// Checks `bytes`; an error doesn't name the file.
pub(super) fn probe(bytes: &[u8]) -> Result<Kind> {
    let file: File = serde_json::from_slice(bytes).map_err(|e| err!(Format, "not a tokenizer: {e}"))?;
    let (mut templates, mut growth) = (0, Growth::new());
    for (name, section) in [
        ("normalizer", &file.normalizer),
        ("pre_tokenizer", &file.pre_tokenizer),
        ("post_processor", &file.post_processor),
        ("decoder", &file.decoder),
    ] {
        component(name, section, 0, &mut templates, &mut growth).map_err(|e| e.at(name))?;
    }
    if templates > 1 {
        bail!(Format, "post_processor: {templates} TemplateProcessing, expected at most one");
    }
    // BPE joins the two parts of a merge in a buffer of the longest token's size
    let Model { kind, vocab, merges, continuing_subword_prefix, max_input_chars_per_word } = file.model;
    if merges.bytes > vocab.bytes {
        bail!(
            Format,
            "model.merges: a merge gives {} bytes, but the longest token of the vocabulary has {}",
            merges.bytes,
            vocab.bytes
        );
    }
    // and there it cuts the prefix off the second part without looking
    if merges.bytes > 0 && continuing_subword_prefix.is_some_and(|prefix| !prefix.is_empty()) {
        bail!(Unsupported, "model.continuing_subword_prefix: a BPE model with such a prefix is not supported");
    }
    if let Some(found) = max_input_chars_per_word.filter(|&found| found > MAX_WORD) {
        bail!(Unsupported, "model.max_input_chars_per_word: expected at most {MAX_WORD}, found {found}");
    }
    if vocab.is_list && vocab.bytes > MAX_PIECE {
        bail!(Unsupported, "model.vocab: expected tokens of at most {MAX_PIECE} bytes, found one of {}", vocab.bytes);
    }
    Ok(if kind.as_deref() == Some("BPE") { Kind::Bpe } else { Kind::Other })
}

fn component(section: &str, value: &Value, depth: usize, templates: &mut usize, growth: &mut Growth) -> Result<()> {
    if depth > MAX_DEPTH {
        bail!(Format, "nested more than {MAX_DEPTH} levels deep");
    }
    match value {
        Value::Object(map) => {
            match kind(map) {
                Some("Precompiled") => {
                    serde_json::from_str::<Precompiled>(&value.to_string())
                        .map_err(|e| err!(Format, "precompiled_charsmap: {e}"))?;
                }
                Some("FixedLength") if map.get("length") == Some(&Value::from(0)) => {
                    bail!(Format, "FixedLength: length 0");
                }
                Some("TemplateProcessing") => {
                    *templates += 1;
                    template(map)?;
                    check_template(map)?;
                }
                _ => {}
            }
            growth.add(section, map)?;
            map.values().try_for_each(|v| component(section, v, depth + 1, templates, growth))
        }
        Value::Array(list) => list.iter().try_for_each(|v| component(section, v, depth + 1, templates, growth)),
        _ => Ok(()),
    }
}

/// A template may use only its own special tokens and, for a single text, only the sequence A.
fn template(map: &serde_json::Map<String, Value>) -> Result<()> {
    for piece in map.get("single").and_then(Value::as_array).into_iter().flatten() {
        if let Some(token) = piece.pointer("/SpecialToken/id").and_then(Value::as_str)
            && map.get("special_tokens").and_then(|tokens| tokens.get(token)).is_none()
        {
            bail!(Format, "TemplateProcessing: {token:?} is not among its special_tokens");
        }
        if piece.pointer("/Sequence/id").is_some_and(|id| id != "A") {
            bail!(Format, "TemplateProcessing: the template for a single text uses the sequence B");
        }
    }
    Ok(())
}

/// The length of the longest string: of a vocabulary's keys, or of the two parts of a merge together.
#[derive(Default)]
struct Longest {
    bytes: usize,
    /// A list of tokens and their scores is the vocabulary of a Unigram model.
    is_list: bool,
}

impl<'de> Deserialize<'de> for Longest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(LongestVisitor)
    }
}

struct LongestVisitor;

impl<'de> Visitor<'de> for LongestVisitor {
    type Value = Longest;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a vocabulary or a list of merges")
    }

    fn visit_unit<E>(self) -> std::result::Result<Longest, E> {
        Ok(Longest::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Longest, A::Error> {
        let mut longest = 0;
        while let Some((Length::<0>(n), IgnoredAny)) = map.next_entry()? {
            longest = longest.max(n);
        }
        Ok(Longest { bytes: longest, is_list: false })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Longest, A::Error> {
        let mut longest = 0;
        while let Some(Length::<1>(n)) = seq.next_element()? {
            longest = longest.max(n);
        }
        Ok(Longest { bytes: longest, is_list: true })
    }
}

/// The length of a string but for `SPACES` of it (a merge is written `"a b"`), or of a list's strings (or `["a", "b"]`);
/// 0 for a number.
struct Length<const SPACES: usize>(usize);

impl<'de, const SPACES: usize> Deserialize<'de> for Length<SPACES> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(LengthVisitor::<SPACES>)
    }
}

struct LengthVisitor<const SPACES: usize>;

impl<'de, const SPACES: usize> Visitor<'de> for LengthVisitor<SPACES> {
    type Value = Length<SPACES>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a token or a merge")
    }

    fn visit_str<E>(self, s: &str) -> std::result::Result<Self::Value, E> {
        let comment = SPACES > 0 && s.starts_with("#version");
        Ok(Length(if comment { 0 } else { s.len().saturating_sub(SPACES) }))
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<Self::Value, E> {
        Ok(Length(0)) // the score in a Unigram vocabulary
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<Self::Value, E> {
        Ok(Length(0))
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<Self::Value, E> {
        Ok(Length(0))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Self::Value, A::Error> {
        let mut sum = 0;
        while let Some(Length::<0>(n)) = seq.next_element()? {
            sum += n;
        }
        Ok(Length(sum))
    }
}
