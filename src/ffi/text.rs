//! Text to tokens and back, whole and as a stream.

use super::constants::{RIE_TEXT_ADD_SPECIAL, RIE_TEXT_PARSE_SPECIAL, RIE_TEXT_SKIP_SPECIAL};
use super::error::rie_error;
use super::exclusive::Exclusive;
use super::model::rie_model;
use super::raw::{self, Out, SizedBuffer};
use super::{guard, handle, rie_status, rie_token};
use crate::error::Result;
use crate::model::Model;
use crate::text::{EncodeOptions, TextStream, Tokenizer};
use crate::{bail, err};
use std::ffi::c_char;

/// Turns tokens into text as they come. Pieces never end inside a character, and together they are the text that
/// `rie_detokenize` gives for all tokens at once.
///
/// Owner: the host, from `rie_text_stream_new` to `rie_free`. Threads: one call at a time.
pub struct rie_text_stream {
    _private: (),
}

/// The tokens of the text `text`, `n` bytes of UTF-8; NUL bytes are text like any other. `flags`: 0, or
/// `RIE_TEXT_ADD_SPECIAL` and `RIE_TEXT_PARSE_SPECIAL` combined by `|`.
///
/// Writes the ids to `buf`, which holds `cap` tokens, and their number to `*len`; if they do not fit, the number alone
/// and `RIE_ERR_BUFFER_TOO_SMALL`. `n` + 16 tokens are enough for most tokenizers. Threads: any. Errors:
/// `RIE_ERR_TOKENIZER` if the model has no tokenizer, `RIE_ERR_UTF8`. `text` may be NULL if `n` is 0, `buf` if `cap`
/// is 0; `model` and `len` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_tokenize(
    model: *const rie_model,
    text: *const c_char,
    n: usize,
    flags: u32,
    buf: *mut rie_token,
    cap: usize,
    len: *mut usize,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_tokenize", err, || {
        let model = handle::get::<Model>(model, "model")?;
        // SAFETY: the host vouches for `n` readable bytes at `text`, `cap` writable tokens at `buf` and a writable `len`.
        let (text, buf) = unsafe { (raw::text(text, n, "text")?, SizedBuffer::new(buf, cap, len)?) };
        check_flags(flags, RIE_TEXT_ADD_SPECIAL | RIE_TEXT_PARSE_SPECIAL)?;
        let options = EncodeOptions {
            add_special: flags & RIE_TEXT_ADD_SPECIAL != 0,
            parse_special: flags & RIE_TEXT_PARSE_SPECIAL != 0,
        };
        buf.fill(&ids_out(&model.tokenizer()?.encode(text, options)?)?)
    })
}

/// The text of `n` tokens. `flags`: 0 or `RIE_TEXT_SKIP_SPECIAL`. Bytes that form no character become U+FFFD.
///
/// Writes the text, UTF-8 without NUL, to `buf`, which holds `cap` bytes, and its length in bytes to `*len`; if it does
/// not fit, the length alone and `RIE_ERR_BUFFER_TOO_SMALL`. Threads: any. Errors: `RIE_ERR_TOKENIZER` if the model has
/// no tokenizer, `RIE_ERR_TOKEN`. `tokens` may be NULL if `n` is 0, `buf` if `cap` is 0; `model` and `len` must not be
/// NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_detokenize(
    model: *const rie_model,
    tokens: *const rie_token,
    n: usize,
    flags: u32,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_detokenize", err, || {
        let model = handle::get::<Model>(model, "model")?;
        // SAFETY: the host vouches for `n` readable tokens, `cap` writable bytes at `buf` and a writable `len`.
        let (tokens, buf) = unsafe { (raw::slice(tokens, n, "tokens")?, SizedBuffer::new(buf.cast(), cap, len)?) };
        check_flags(flags, RIE_TEXT_SKIP_SPECIAL)?;
        let tokenizer = model.tokenizer()?;
        let tokens = ids_in(tokens, text_vocab(&model, tokenizer))?;
        buf.fill(tokenizer.decode(&tokens, flags & RIE_TEXT_SKIP_SPECIAL != 0)?.as_bytes())
    })
}

/// A new, empty stream with the model's tokenizer. `flags`: 0 or `RIE_TEXT_SKIP_SPECIAL`.
///
/// Ownership: `*out` is the host's; release it with `rie_free`. It is written only on success. Threads: any. Errors:
/// `RIE_ERR_TOKENIZER` if the model has no tokenizer. `model` and `out` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_text_stream_new(
    model: *const rie_model,
    flags: u32,
    out: *mut *mut rie_text_stream,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_text_stream_new", err, || {
        let model = handle::get::<Model>(model, "model")?;
        // SAFETY: the host vouches for a writable `out`.
        let out = unsafe { Out::new(out, "out") }?;
        check_flags(flags, RIE_TEXT_SKIP_SPECIAL)?;
        let tokenizer = model.tokenizer()?;
        let vocab = text_vocab(&model, tokenizer);
        let stream = TextStream::new(tokenizer.clone(), flags & RIE_TEXT_SKIP_SPECIAL != 0);
        let stream = Exclusive::new(stream);
        out.write(handle::publish(TextStreamObject { stream, vocab })?);
        Ok(())
    })
}

/// Takes the next token and gives the text that it makes certain, which may be empty. `token` -1 takes no token: it
/// gives what is still held back, and the stream is then as new.
///
/// Writes the text, UTF-8 without NUL, to `buf`, which holds `cap` bytes, and its length in bytes to `*len`; if it does
/// not fit, the length alone and `RIE_ERR_BUFFER_TOO_SMALL`: the stream is then as before the call, and the same call
/// with a larger buffer loses nothing. Threads: one call at a time with the same `stream`. Errors: `RIE_ERR_TOKEN`;
/// after any error the stream is as before. `buf` may be NULL if `cap` is 0; `stream` and `len` must not be NULL; `err`
/// may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_text_stream_push(
    stream: *mut rie_text_stream,
    token: rie_token,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_text_stream_push", err, || {
        let object = handle::get::<TextStreamObject>(stream, "stream")?;
        // SAFETY: the host vouches for `cap` writable bytes at `buf` and a writable `len`.
        let buf = unsafe { SizedBuffer::new(buf.cast(), cap, len) }?;
        object.stream.with("stream", |stream| {
            // On a copy, which replaces the stream only when the host has the text.
            let mut next = stream.clone();
            let piece = match token {
                -1 => next.flush()?,
                _ => next.push(id_in(token, object.vocab).map_err(|e| e.at("token"))?)?,
            };
            buf.fill(piece.as_bytes())?;
            *stream = next;
            Ok(())
        })
    })
}

/// Behind a [`rie_text_stream`].
pub struct TextStreamObject {
    stream: Exclusive<TextStream>,
    vocab: usize,
}

/// The ids that text functions take: the model's, and those that only its tokenizer knows.
fn text_vocab(model: &Model, tokenizer: &Tokenizer) -> usize {
    model.config().vocab_size.max(tokenizer.vocab_size())
}

/// Refuses flags that a function does not know.
pub fn check_flags(flags: u32, known: u32) -> Result<()> {
    if flags & !known != 0 {
        bail!(InvalidArgument, "flags: 0x{:x} is no flag of this function", flags & !known);
    }
    Ok(())
}

/// A token id within the vocabulary.
fn id_in(token: rie_token, vocab: usize) -> Result<u32> {
    match u32::try_from(token) {
        Ok(id) if (id as usize) < vocab => Ok(id),
        _ => bail!(Token, "{token} is outside the vocabulary of {vocab} tokens"),
    }
}

/// The host's `tokens`, each checked.
pub fn ids_in(tokens: &[rie_token], vocab: usize) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    ids.try_reserve_exact(tokens.len())?;
    for (i, &token) in tokens.iter().enumerate() {
        ids.push(id_in(token, vocab).map_err(|e| e.at(&format!("tokens[{i}]")))?);
    }
    Ok(ids)
}

/// Ids as the host sees them.
pub fn ids_out(ids: &[u32]) -> Result<Vec<rie_token>> {
    let mut tokens = Vec::new();
    tokens.try_reserve_exact(ids.len())?;
    for &id in ids {
        tokens.push(token_out(id)?);
    }
    Ok(tokens)
}

/// An id as the host sees it.
pub fn token_out(id: u32) -> Result<rie_token> {
    rie_token::try_from(id).map_err(|_| err!(Token, "the id {id} does not fit in 31 bits"))
}
