//! Chat: messages to the prompt that a model was trained on, as text and as tokens.

use super::constants::RIE_TEXT_PARSE_SPECIAL;
use super::error::rie_error;
use super::model::rie_model;
use super::raw::{self, SizedBuffer};
use super::text::{check_flags, ids_out};
use super::{guard, handle, rie_status, rie_token};
use crate::model::Model;
use crate::text::chat;
use std::ffi::c_char;

/// The prompt for a conversation, rendered by the model's chat template: `chat_template.jinja` beside the tokenizer, or
/// `chat_template` of `tokenizer_config.json` (of several, `tool_use` if there are tools, else `default`), as
/// transformers' `apply_chat_template` does. `json` is `n` bytes of UTF-8, at most 16 MiB, an object with the keys
///
/// - `messages`: a list of at least one object, such as `{"role": "user", "content": "Hello"}`;
/// - `tools`, `documents`: lists of objects, for templates that use them;
/// - `add_generation_prompt`: true to end with the beginning of the answer; default false;
/// - `chat_template`: a template of the host's own, or the name of one of the model's;
/// - `now`: seconds since 1970, the moment that a template's `strftime_now` writes. Default: the system's clock, UTC;
///   add the offset of a time zone to have its local time;
/// - any other key is a variable of the template (`enable_thinking`, `date_string`), and wins over the special tokens
///   (`bos_token`) that the template sees by itself.
///
/// To tokenize, `rie_chat_tokenize` is safer: in the text, what users typed can no longer be told from what the template
/// wrote. If the text is wanted all the same, `rie_tokenize` with `RIE_TEXT_ADD_SPECIAL | RIE_TEXT_PARSE_SPECIAL` gives
/// each special token once.
///
/// A template is a program that nobody trusts: it can read nothing but `json` and the clock, and its work and memory are
/// bounded (about 2 million steps and 128 MB of text).
///
/// Writes the text, UTF-8 without NUL, to `buf`, which holds `cap` bytes, and its length in bytes to `*len`; if it does
/// not fit, the length alone and `RIE_ERR_BUFFER_TOO_SMALL`. Threads: any; the template runs in a thread of its own,
/// which ends before this returns. Errors: `RIE_ERR_TEMPLATE` if there is no template or it fails, its own
/// `raise_exception` included; `RIE_ERR_INVALID_ARGUMENT` for a wrong `json`, `RIE_ERR_UTF8`, `RIE_ERR_UNSUPPORTED` for
/// `continue_final_message`. `buf` may be NULL if `cap` is 0; `model`, `json` and `len` must not be NULL; `err` may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_chat_render(
    model: *const rie_model,
    json: *const c_char,
    n: usize,
    buf: *mut c_char,
    cap: usize,
    len: *mut usize,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_chat_render", err, || {
        let model = handle::get::<Model>(model, "model")?;
        // SAFETY: the host vouches for `n` readable bytes at `json`, `cap` writable bytes at `buf` and a writable `len`.
        let (json, buf) = unsafe { (raw::text(json, n, "json")?, SizedBuffer::new(buf.cast(), cap, len)?) };
        buf.fill(chat::render(model.tokenizer_config(), json)?.as_bytes())
    })
}

/// The tokens of the prompt that `rie_chat_render` gives for the same `json`, with the tokens that the tokenizer puts at
/// the beginning of a text, unless the template wrote them.
///
/// Special tokens come from the template alone: one that is spelled in `json`, in a message, a tool or a variable, is
/// plain text, so that no user can end a turn or speak as the system. So are added tokens that are not special but that
/// the template writes (`<think>`). `flags`: 0, or `RIE_TEXT_PARSE_SPECIAL` to read them as tokens, as transformers does by
/// default. One limit: what a template itself puts together from parts of `json`, such as `'<|' + role + '|>'`, is the
/// template's, so roles must be the host's choice, not a user's.
///
/// Writes the ids to `buf`, which holds `cap` tokens, and their number to `*len`; if they do not fit, the number alone
/// and `RIE_ERR_BUFFER_TOO_SMALL`. Threads, errors and NULL: as for `rie_chat_render`; also `RIE_ERR_TOKENIZER` if the
/// model has no tokenizer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rie_chat_tokenize(
    model: *const rie_model,
    json: *const c_char,
    n: usize,
    flags: u32,
    buf: *mut rie_token,
    cap: usize,
    len: *mut usize,
    err: *mut rie_error,
) -> rie_status {
    guard::call("rie_chat_tokenize", err, || {
        let model = handle::get::<Model>(model, "model")?;
        // SAFETY: the host vouches for `n` readable bytes at `json`, `cap` writable tokens at `buf` and a writable `len`.
        let (json, buf) = unsafe { (raw::text(json, n, "json")?, SizedBuffer::new(buf, cap, len)?) };
        check_flags(flags, RIE_TEXT_PARSE_SPECIAL)?;
        let parse_special = flags & RIE_TEXT_PARSE_SPECIAL != 0;
        buf.fill(&ids_out(&chat::tokenize(model.tokenizer_config(), model.tokenizer()?, json, parse_special)?)?)
    })
}
