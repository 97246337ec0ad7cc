//! The decoders of `tokenizer.json` as a chain of streaming stages.
//!
//! Hugging Face decodes a whole list of tokens at once: each decoder maps a list of strings to a list of strings, and
//! the last list is joined. Re-decoding a window of the history to learn what one more token adds is wrong as soon as
//! a decoder looks at the list as a whole (the first token's space, a run of byte tokens, a repeated token). So each
//! decoder is written here as a machine that takes one string at a time, emits what is certain and keeps the rest.
//! The whole decode is the same machine run over all tokens, hence the pieces of a stream concatenate to it exactly,
//! and a push costs what its own token costs, however long the history is.
//!
//! Until a stage fuses (`Fuse`, `ByteLevel`), the strings between two stages are tokens; from there on they are
//! fragments of one text, which the stages after it see as one token. What is kept:
//!
//! - `ByteLevel`: at most 3 bytes, the beginning of a character;
//! - `ByteFallback`: at most 3 bytes too, if the strings are joined right after it, as in all known tokenizers;
//!   else the run of byte tokens, since the next stage must see the run as one token;
//! - `Strip` at the end of the text: as many characters as it may strip; `BPEDecoder`: one token;
//! - a decoder other than `Strip` after a fusing one: the whole text (none of the known tokenizers has such);
//! - the others: whether a token was seen, and CTC the last token.
//!
//! One deliberate difference from Hugging Face: there, one bad byte turns the whole run of byte tokens around it into
//! U+FFFD, intact characters included, so that nothing of a run could be shown before its end. Here only the
//! bytes that form no character become U+FFFD, one for each byte as there.

use crate::err;
use crate::error::Result;
use crate::memory;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::strip::Strip;
use tokenizers::tokenizer::Decoder as _;

/// The stages, in order; shared by all streams of a tokenizer.
#[derive(Debug)]
pub(super) struct Plan(Vec<Stage>);

#[derive(Debug)]
enum Stage {
    /// No decoder at all: tokens are joined by spaces.
    Join,
    /// Each token for itself.
    Each(DecoderWrapper),
    /// Each token for itself, the first one in another way.
    First(DecoderWrapper),
    /// Each token for itself, the last one in another way.
    Last(DecoderWrapper),
    /// Each token for itself; repetitions are dropped.
    Distinct(DecoderWrapper),
    /// Strips each token.
    StripToken(Strip),
    /// `<0xNN>` tokens become text; `eager` if what follows sees no boundaries between tokens.
    ByteFallback { eager: bool },
    /// Characters become bytes, bytes become text.
    ByteLevel,
    /// Strips the text.
    StripText(Strip),
    /// A decoder that must see the text as a whole.
    Whole(DecoderWrapper),
}

/// What a stream keeps, one entry for each stage.
#[derive(Clone, Debug)]
pub(super) struct State(Vec<Kept>);

#[derive(Clone, Debug, Default)]
struct Kept {
    /// Whether a token was seen.
    started: bool,
    /// The last token (`Last`, `Distinct`) or the text so far (`Whole`).
    text: Option<String>,
    /// Bytes that don't form a character yet.
    bytes: Vec<u8>,
    /// Characters at the start of the text that `StripText` has dropped.
    head: usize,
    /// Characters at the end of the text that `StripText` has kept back.
    tail: usize,
}

impl Plan {
    pub(super) fn new(decoder: Option<&DecoderWrapper>) -> Plan {
        let Some(decoder) = decoder else { return Plan(vec![Stage::Join]) };
        let mut flat = Vec::new();
        flatten(decoder, &mut flat);
        let mut fused = false;
        let mut stages = Vec::new();
        for (i, &decoder) in flat.iter().enumerate() {
            let joined_next = matches!(flat.get(i + 1), None | Some(DecoderWrapper::Fuse(_)));
            stages.push(match decoder {
                DecoderWrapper::Fuse(_) => {
                    fused = true;
                    continue;
                }
                DecoderWrapper::Strip(strip) if fused => Stage::StripText(strip.clone()),
                _ if fused => Stage::Whole(decoder.clone()),
                DecoderWrapper::ByteLevel(_) => {
                    fused = true;
                    Stage::ByteLevel
                }
                DecoderWrapper::Strip(strip) => Stage::StripToken(strip.clone()),
                DecoderWrapper::ByteFallback(_) => Stage::ByteFallback { eager: joined_next },
                DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_) => Stage::First(decoder.clone()),
                DecoderWrapper::BPE(_) => Stage::Last(decoder.clone()),
                DecoderWrapper::CTC(_) => Stage::Distinct(decoder.clone()),
                DecoderWrapper::Replace(_) | DecoderWrapper::Sequence(_) => Stage::Each(decoder.clone()),
            });
        }
        Plan(stages)
    }

    pub(super) fn start(&self) -> State {
        State(vec![Kept::default(); self.0.len()])
    }

    /// Appends to `out` the text that `token` makes certain. After an error `state` is of no use.
    pub(super) fn push(&self, state: &mut State, token: String, out: &mut String) -> Result<()> {
        let mut strings = vec![token];
        for (stage, kept) in self.0.iter().zip(&mut state.0) {
            let mut next = Vec::new();
            for s in strings {
                stage.push(kept, s, &mut next)?;
            }
            strings = next;
        }
        strings.iter().try_for_each(|s| memory::push_str(out, s))
    }

    /// Appends to `out` what is kept back. `state` is of no use afterwards.
    pub(super) fn finish(&self, state: &mut State, out: &mut String) -> Result<()> {
        let mut strings = Vec::new();
        for (stage, kept) in self.0.iter().zip(&mut state.0) {
            let mut next = Vec::new();
            for s in strings {
                stage.push(kept, s, &mut next)?;
            }
            stage.finish(kept, &mut next)?;
            strings = next;
        }
        strings.iter().try_for_each(|s| memory::push_str(out, s))
    }
}

fn flatten<'a>(decoder: &'a DecoderWrapper, out: &mut Vec<&'a DecoderWrapper>) {
    match decoder {
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().for_each(|d| flatten(d, out)),
        _ => out.push(decoder),
    }
}

/// The crate's own decoder, on the tokens given.
fn chain(decoder: &DecoderWrapper, tokens: Vec<String>) -> Result<Vec<String>> {
    decoder.decode_chain(tokens).map_err(|e| err!(Tokenizer, "the tokenizer's decoder failed: {e}"))
}

impl Stage {
    fn push(&self, kept: &mut Kept, token: String, out: &mut Vec<String>) -> Result<()> {
        let first = !std::mem::replace(&mut kept.started, true);
        match self {
            Stage::Join if first => out.push(token),
            Stage::Join => out.push(format!(" {token}")),
            Stage::Each(decoder) => out.extend(chain(decoder, vec![token])?),
            Stage::First(decoder) if first => out.extend(chain(decoder, vec![token])?),
            // an empty token in the first place makes this one a later one
            Stage::First(decoder) => out.extend(chain(decoder, vec![String::new(), token])?.pop()),
            Stage::Last(decoder) => {
                if let Some(earlier) = kept.text.replace(token) {
                    out.extend(chain(decoder, vec![earlier, String::new()])?.into_iter().next());
                }
            }
            Stage::Distinct(decoder) => {
                if kept.text.as_ref() != Some(&token) {
                    kept.text = Some(token.clone());
                    out.extend(chain(decoder, vec![token])?);
                }
            }
            Stage::StripToken(strip) => out.push(strip_token(strip, &token)),
            Stage::ByteFallback { eager } => match byte_token(&token) {
                Some(byte) => {
                    kept.bytes.push(byte);
                    if *eager {
                        out.push(characters(&mut kept.bytes, Bad::EachByte));
                    }
                }
                None => {
                    self.finish(kept, out)?;
                    out.push(token);
                }
            },
            Stage::ByteLevel => {
                match token.chars().map(level_byte).collect::<Option<Vec<u8>>>() {
                    Some(bytes) => kept.bytes.extend(bytes),
                    None => kept.bytes.extend(token.as_bytes()), // an added token, spelled as it is
                }
                out.push(characters(&mut kept.bytes, Bad::EachSequence));
            }
            Stage::StripText(strip) => out.push(strip_fragment(strip, kept, &token)),
            Stage::Whole(_) => memory::push_str(kept.text.get_or_insert_default(), &token)?,
        }
        Ok(())
    }

    fn finish(&self, kept: &mut Kept, out: &mut Vec<String>) -> Result<()> {
        match self {
            Stage::Last(decoder) => {
                if let Some(last) = kept.text.take() {
                    out.extend(chain(decoder, vec![last])?);
                }
            }
            Stage::ByteFallback { .. } => {
                if !kept.bytes.is_empty() {
                    let mut run = characters(&mut kept.bytes, Bad::EachByte);
                    run.extend(kept.bytes.drain(..).map(|_| char::REPLACEMENT_CHARACTER));
                    out.push(run);
                }
            }
            Stage::ByteLevel => {
                if !kept.bytes.is_empty() {
                    kept.bytes.clear();
                    out.push(char::REPLACEMENT_CHARACTER.into());
                }
            }
            Stage::Whole(decoder) => out.extend(chain(decoder, vec![kept.text.take().unwrap_or_default()])?),
            Stage::Join
            | Stage::Each(_)
            | Stage::First(_)
            | Stage::Distinct(_)
            | Stage::StripToken(_)
            | Stage::StripText(_) => {}
        }
        Ok(())
    }
}

/// What becomes U+FFFD in bytes that form no character.
#[derive(Clone, Copy)]
enum Bad {
    /// Each byte, as in Hugging Face's `ByteFallback`.
    EachByte,
    /// Each longest beginning of a character, as in `String::from_utf8_lossy`, which Hugging Face's `ByteLevel` uses.
    EachSequence,
}

/// Takes the characters out of `bytes` and leaves there the beginning of one that more bytes may complete: at most 3 bytes.
fn characters(bytes: &mut Vec<u8>, bad: Bad) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut rest = bytes.as_slice();
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                rest = &[];
                break;
            }
            Err(e) => {
                let (valid, after) = rest.split_at(e.valid_up_to());
                text.extend(valid.utf8_chunks().map(|chunk| chunk.valid()));
                rest = after;
                let Some(n) = e.error_len() else { break };
                rest = &rest[n..];
                let count = if matches!(bad, Bad::EachByte) { n } else { 1 };
                text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, count));
            }
        }
    }
    let done = bytes.len() - rest.len();
    bytes.drain(..done);
    text
}

/// The byte that a token such as `<0x0A>` stands for, by the same reading as in `tokenizers`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// The byte that GPT-2's alphabet writes as `c`: printable Latin-1 stands for itself, the other 68 bytes follow from
/// U+0100 on, in order.
fn level_byte(c: char) -> Option<u8> {
    let c = u32::from(c);
    let byte = match c {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => c,
        0x100..=0x120 => c - 0x100,        // 0x00 to 0x20
        0x121..=0x142 => c - 0x121 + 0x7f, // 0x7f to 0xa0
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

fn strip_token(strip: &Strip, token: &str) -> String {
    let matching = |c: &char| *c == strip.content;
    let head = token.chars().take(strip.start).take_while(matching).count();
    let tail = token.chars().rev().take(strip.stop).take_while(matching).count();
    let keep = token.chars().count().saturating_sub(head + tail);
    token.chars().skip(head).take(keep).collect()
}

fn strip_fragment(strip: &Strip, kept: &mut Kept, fragment: &str) -> String {
    let mut out = String::with_capacity(fragment.len());
    for c in fragment.chars() {
        if c != strip.content {
            kept.head = usize::MAX; // the text has begun
            out.extend(std::iter::repeat_n(strip.content, std::mem::take(&mut kept.tail)));
            out.push(c);
        } else if kept.head < strip.start {
            kept.head += 1;
        } else if kept.tail < strip.stop {
            kept.tail += 1;
        } else {
            out.push(c);
        }
    }
    out
}
