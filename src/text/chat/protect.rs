//! Keeps the text of messages text: `<|im_end|>` typed by a user must not end the user's turn.
//!
//! What is spelled like a control token in a string of the request is put between two marks before the template sees
//! it, and a string whose end could join what comes next into one is marked there. A mark forbids: no control token may
//! begin at a [`START`], end at an [`END`], or have a mark inside. After rendering the marks are taken out, the control
//! tokens that are left are found, and everything between them is encoded as text in one go, so that ids differ from
//! those of an ordinary tokenization only where a control token was forged.
//!
//! Control tokens are the special tokens and those added tokens that the template's source spells, as in transformers.
//! What a template itself builds from strings (`'<|' + message.role + '|>'`) is the template's.

use super::{END, START};
use crate::error::Result;
use crate::text::EncodeOptions;
use crate::text::tokenizer::{AddedMatch, Tokenizer};
use std::collections::HashSet;

/// Marks the strings of a request and encodes what a template made of them.
pub(super) struct Protector<'a> {
    tokenizer: &'a Tokenizer,
    control: HashSet<u32>,
    /// Proper beginnings and ends of control tokens.
    heads: HashSet<String>,
    tails: HashSet<String>,
    longest: usize,
}

impl<'a> Protector<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, template: &str) -> Protector<'a> {
        let mut this =
            Protector { tokenizer, control: HashSet::new(), heads: HashSet::new(), tails: HashSet::new(), longest: 0 };
        for (id, token) in tokenizer.added_tokens() {
            let spelled = !token.content.trim().is_empty() && template.contains(&token.content);
            if token.special || spelled {
                this.control.insert(id);
                this.longest = this.longest.max(token.content.chars().count());
                for (at, _) in token.content.char_indices().skip(1) {
                    this.heads.insert(token.content[..at].to_owned());
                    this.tails.insert(token.content[at..].to_owned());
                }
            }
        }
        this
    }

    /// `text` with its marks. Marks that are in it are dropped: they are not characters.
    pub(super) fn mark(&self, text: &str) -> String {
        let text = text.replace([START, END], "");
        let mut out = String::with_capacity(text.len());
        if self.starts_with_tail(&text) {
            out.push(START);
        }
        let mut done = 0;
        for found in self.tokenizer.added_matches(&text).unwrap_or_default() {
            if self.control.contains(&found.id) {
                out.push_str(&text[done..found.start]);
                out.push(START);
                out.push_str(&text[found.start..found.end]);
                out.push(END);
                done = found.end;
            }
        }
        out.push_str(&text[done..]);
        if self.ends_with_head(&text) {
            out.push(END);
        }
        out
    }

    fn starts_with_tail(&self, text: &str) -> bool {
        let ends = text.char_indices().map(|(at, c)| at + c.len_utf8()).take(self.longest);
        ends.into_iter().any(|end| self.tails.contains(&text[..end]))
    }

    fn ends_with_head(&self, text: &str) -> bool {
        let starts = text.char_indices().rev().map(|(at, _)| at).take(self.longest);
        starts.into_iter().any(|start| self.heads.contains(&text[start..]))
    }

    /// The ids of a text with marks.
    pub(super) fn encode(&self, marked: &str) -> Result<Vec<u32>> {
        // Behind a START and before an END is a character of the request's: hidden, it can be part of no token.
        let (mut text, mut masked) = (String::with_capacity(marked.len()), String::with_capacity(marked.len()));
        let mut hidden = HashSet::new();
        let mut after_start = false;
        let mut last = 0;
        for c in marked.chars() {
            match c {
                START => after_start = true,
                END => {
                    hide(&mut masked, last, &mut hidden);
                    after_start = false;
                }
                c => {
                    last = text.len();
                    text.push(c);
                    masked.push(c);
                    if std::mem::take(&mut after_start) {
                        hide(&mut masked, last, &mut hidden);
                    }
                }
            }
        }
        if hidden.is_empty() {
            return self.tokenizer.encode(&text, EncodeOptions { add_special: false, parse_special: true });
        }
        let mut found: Vec<AddedMatch> = self.tokenizer.added_matches(&masked)?;
        found.retain(|m| !(m.start..m.end).any(|at| hidden.contains(&at)));
        self.tokenizer.encode_between(&text, &found)
    }
}

/// Replaces the last character, which is at byte `at`, by one of the same length that no token has.
fn hide(masked: &mut String, at: usize, hidden: &mut HashSet<usize>) {
    if at >= masked.len() {
        return; // a mark before any text
    }
    let filler = match masked.len() - at {
        1 => '\u{1}',
        2 => '\u{80}',
        3 => '\u{fdd2}',
        _ => '\u{1fffe}',
    };
    masked.truncate(at);
    masked.push(filler);
    hidden.insert(at);
}
