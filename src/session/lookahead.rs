//! Speculation by prompt lookup (Saxena 2023): tokens that followed the session's last ones before are evaluated in one pass
//! with the next token. Whatever is drafted, a token is chosen only by the logits after the tokens before it, so the
//! tokens and their bits are those of single steps.

use super::Step;
use crate::error::Result;

/// Fewest last tokens that must have occurred before, and most that are compared.
const MATCH: std::ops::RangeInclusive<usize> = 3..=16;

/// Tokens of a first draft; it doubles while drafts are right.
const FIRST_DRAFT: usize = 3;

/// Most steps without a draft after drafts that were wrong.
const LONGEST_PAUSE: u32 = 64;

/// Drafted tokens of one session and what is computed of them.
#[derive(Debug, Default)]
pub(super) struct Lookahead {
    /// Most tokens of a draft; 0 = never.
    most: usize,
    /// The session's last token and the draft behind it, as one pass evaluates them.
    tokens: Vec<u32>,
    /// The residual stream after each drafted token, `[drafted][hidden]`.
    rows: Vec<f32>,
    /// The logits after each drafted token, `[drafted][vocab]`; empty if the draft was wrong at once.
    logits: Vec<f32>,
    /// How many of the draft are taken.
    taken: usize,
    /// Tokens of the next draft.
    length: usize,
    /// Steps until the next draft, and how many it will be after the next wrong one.
    pause: u32,
    next_pause: u32,
    drafted: u64,
    accepted: u64,
}

impl Lookahead {
    pub fn new(most: usize) -> Lookahead {
        Lookahead { most, length: FIRST_DRAFT, next_pause: 1, ..Lookahead::default() }
    }

    /// One with the same option and nothing computed.
    pub fn fork(&self) -> Lookahead {
        Lookahead::new(self.most)
    }

    /// Tokens drafted and tokens that were right.
    pub fn counts(&self) -> (u64, u64) {
        (self.drafted, self.accepted)
    }

    /// Drafts up to `room` tokens behind `tokens`; returns how many.
    pub fn draft(&mut self, tokens: &[u32], room: usize) -> usize {
        self.clear();
        if self.most == 0 {
            return 0;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return 0;
        }
        let draft = continuation(tokens, self.length.min(self.most).min(room));
        if draft.is_empty() {
            return 0;
        }
        self.tokens.extend(tokens.last());
        self.tokens.extend_from_slice(draft);
        self.drafted += draft.len() as u64;
        draft.len()
    }

    /// The session's last token and the draft.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Makes room for what a pass computes of the drafted tokens: so many floats of rows and of logits.
    pub fn reserve(&mut self, rows: usize, logits: usize) -> Result<()> {
        self.rows.try_reserve(rows.saturating_sub(self.rows.len()))?;
        Ok(self.logits.try_reserve(logits.saturating_sub(self.logits.len()))?)
    }

    /// What the pass computed of the drafted tokens.
    pub fn set_rows(&mut self, rows: &[f32]) {
        self.rows.clear();
        self.rows.extend_from_slice(rows);
    }

    /// The residual stream after each drafted token.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// The logits after each drafted token, kept if the token just chosen is the first of the draft.
    pub fn set_logits(&mut self, chosen: &Result<Step>, logits: &[f32]) {
        self.logits.clear();
        if matches!(chosen, Ok(Step::Token(token)) if self.tokens.get(1) == Some(token)) {
            self.logits.extend_from_slice(logits);
        }
    }

    /// If `token` is the next of the draft, moves what is computed of it into `last` and `logits`.
    pub fn take(&mut self, token: u32, last: &mut Vec<f32>, logits: &mut Vec<f32>) -> bool {
        let drafted = self.tokens.len().saturating_sub(1);
        if self.logits.is_empty() || self.taken == drafted || self.tokens[self.taken + 1] != token {
            return false;
        }
        for (from, to) in [(&self.rows, last), (&self.logits, logits)] {
            let width = from.len() / drafted;
            to.clear();
            to.extend_from_slice(&from[self.taken * width..(self.taken + 1) * width]);
        }
        self.taken += 1;
        self.accepted += 1;
        true
    }

    /// Forgets the draft and learns from how much of it was right; `true` if there was one.
    pub fn clear(&mut self) -> bool {
        let drafted = self.tokens.len().saturating_sub(1);
        if drafted == 0 {
            return false;
        }
        if self.taken == 0 {
            (self.pause, self.next_pause) = (self.next_pause, (2 * self.next_pause).min(LONGEST_PAUSE));
            self.length = FIRST_DRAFT;
        } else {
            self.next_pause = 1;
            self.length = if self.taken == drafted { 2 * drafted } else { (self.taken + 1).max(FIRST_DRAFT) };
        }
        self.tokens.clear();
        self.rows.clear();
        self.logits.clear();
        self.taken = 0;
        true
    }
}

/// Up to `most` tokens that followed the longest earlier occurrence of the last tokens, the latest of equally long ones.
fn continuation(tokens: &[u32], most: usize) -> &[u32] {
    let (mut best, mut best_end) = (MATCH.start() - 1, tokens.len());
    for end in (1..tokens.len()).rev() {
        let same = |(a, b): &(&u32, &u32)| a == b;
        let matched = tokens[..end].iter().rev().zip(tokens.iter().rev()).take(*MATCH.end()).take_while(same).count();
        if matched > best {
            (best, best_end) = (matched, end);
            if matched == *MATCH.end() {
                break;
            }
        }
    }
    &tokens[best_end..tokens.len().min(best_end + most)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_and_latest_occurrence_is_continued() {
        assert_eq!(continuation(&[1, 2, 3, 7, 8, 1, 2, 3], 2), [7, 8]);
        assert_eq!(continuation(&[1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3], 4), [8, 1, 2, 3]);
        assert_eq!(continuation(&[9, 1, 2, 3, 7, 1, 2, 3, 8, 9, 1, 2, 3], 1), [7], "four tokens beat three");
        assert_eq!(continuation(&[5, 5, 5, 5, 5], 3), [5], "an occurrence may overlap the end");
        assert!(continuation(&[1, 2, 7, 1, 2], 3).is_empty(), "two tokens are too few");
        assert!(continuation(&[1], 3).is_empty() && continuation(&[], 3).is_empty());
    }

    #[test]
    fn wrong_drafts_make_pauses_and_right_ones_longer_drafts() {
        let tokens = [1, 2, 3, 7, 8, 9, 4, 5, 6, 1, 2, 3];
        let mut ahead = Lookahead::new(8);
        let mut pauses = Vec::new();
        for _ in 0..4 {
            let mut pause = 0;
            while ahead.draft(&tokens, 100) == 0 {
                pause += 1;
            }
            pauses.push(pause);
        }
        assert_eq!(pauses, [0, 1, 2, 4]);
        assert_eq!(ahead.tokens(), [3, 7, 8, 9]);
        ahead.set_rows(&[0.7, 0.8, 0.9]);
        ahead.set_logits(&Ok(Step::Token(7)), &[1.7, 1.8, 1.9]);
        let (mut last, mut logits) = (Vec::new(), Vec::new());
        assert!(ahead.take(7, &mut last, &mut logits));
        assert_eq!((&last[..], &logits[..]), (&[0.7][..], &[1.7][..]));
        assert!(!ahead.take(9, &mut last, &mut logits));
        assert!(ahead.take(8, &mut last, &mut logits) && ahead.take(9, &mut last, &mut logits));
        assert!(!ahead.take(4, &mut last, &mut logits), "the draft is used up");
        assert_eq!((&last[..], ahead.counts()), (&[0.9][..], (12, 3)));
        assert_eq!(ahead.draft(&tokens, 100), 6, "twice as many");
        assert_eq!(ahead.fork().draft(&tokens, 2), 2, "room for two");
        assert_eq!(Lookahead::new(0).draft(&tokens, 100), 0);
    }
}
