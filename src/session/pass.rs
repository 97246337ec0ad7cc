//! One forward pass over the next tokens of several sessions, and what follows it for each of them.

use super::{Session, Step};
use crate::bail;
use crate::error::Result;
use crate::faults;
use crate::memory;
use crate::model::{Decoder, Model, Operator, Pass, Profile, Tap, Workspace};
use crate::ops::{Exec, Sequence};
use crate::panic::quietly;
use crate::sampler::Sampler;
use std::ops::Range;

/// What is wanted of the logits after the last token.
pub(super) enum Want<'a> {
    /// Nothing.
    Nothing,
    /// That the session keeps them.
    Logits,
    /// A token chosen by a sampler (`None` = greedy).
    Token(Option<&'a mut Sampler>),
}

/// One session's part in a pass.
pub(super) struct Part<'a> {
    /// The session's place in the batch.
    pub index: usize,
    pub session: &'a mut Session,
    /// How many of its queued tokens are evaluated.
    pub take: usize,
    /// How many drafted tokens are evaluated behind them.
    pub drafts: usize,
    pub want: Want<'a>,
    /// The token chosen; an error if the part failed, which fails no other.
    pub outcome: Result<Option<Step>>,
    /// Before which layer it was cancelled.
    cancelled: Option<usize>,
    /// Where its logits are among those of the pass.
    logits: Range<usize>,
}

impl<'a> Part<'a> {
    pub fn new(session: &'a mut Session, take: usize, want: Want<'a>) -> Part<'a> {
        Part { index: 0, session, take, drafts: 0, want, outcome: Ok(None), cancelled: None, logits: 0..0 }
    }

    /// Rows it has in the pass.
    pub fn rows(&self) -> usize {
        self.take + self.drafts
    }

    /// Drafts at most `most` tokens behind its last one, if that may pay.
    pub fn draft(&mut self, most: usize) {
        if let (Want::Token(_), 1) = (&self.want, self.take) {
            let most = most.min(self.session.room_before_rotation_changes());
            let Session { tokens, context, lookahead, .. } = &mut *self.session;
            self.drafts = lookahead.draft(tokens, most.min(*context - tokens.len()));
        }
    }

    /// It takes no further part.
    fn fail(&mut self, error: crate::error::Error) {
        self.outcome = Err(error);
        (self.take, self.drafts, self.want) = (0, 0, Want::Nothing);
    }

    /// Rows of logits that are to be computed for it.
    fn wanted(&self) -> usize {
        if matches!(self.want, Want::Nothing) || self.knows() { 0 } else { 1 + self.drafts }
    }

    /// Makes room for what the pass computes of it, so that nothing can fail once it is computed.
    fn reserve(&mut self, decoder: &Decoder) -> Result<()> {
        let (start, rows, drafts) = (self.session.evaluated, self.rows(), self.drafts);
        let (hidden, vocab) = (decoder.hidden(), decoder.vocab());
        let session = &mut *self.session;
        session.kv.reserve(start..start + rows)?;
        session.last.try_reserve_exact(hidden.saturating_sub(session.last.len()))?;
        if drafts > 0 || matches!(self.want, Want::Logits) {
            session.logits.try_reserve_exact(vocab.saturating_sub(session.logits.len()))?;
        }
        session.lookahead.reserve(drafts * hidden, drafts * vocab)
    }

    fn sequence(&mut self) -> Sequence<'_> {
        let session = &mut *self.session;
        let start = session.evaluated;
        let tokens = match self.drafts {
            0 => &session.tokens[start..start + self.take],
            _ => session.lookahead.tokens(),
        };
        Sequence {
            tokens,
            start,
            kv: &mut session.kv,
            cancel: &session.cancel,
            cancelled: &mut self.cancelled,
            rows: 0..0,
        }
    }

    /// Takes the rows of the residual stream, `[rows][hidden]`.
    fn commit(&mut self, x: &[f32]) {
        let (rows, session) = (self.rows(), &mut *self.session);
        let hidden = x.len() / rows;
        let (taken, drafted) = x.split_at(self.take * hidden);
        session.last.clear();
        session.last.extend_from_slice(&taken[taken.len() - hidden..]);
        session.logits.clear();
        session.lookahead.set_rows(drafted);
        let from = session.evaluated;
        session.evaluated += self.take;
        session.publish(from);
    }

    /// Whether the session has the logits already.
    fn knows(&self) -> bool {
        self.take == 0 && !self.session.logits.is_empty()
    }

    /// Does what is wanted, with the logits `[wanted][vocab]` or those that the session has.
    fn deliver(&mut self, logits: &[f32]) {
        faults::point("deliver");
        let (known, wanted) = (self.knows(), self.wanted());
        let session = &mut *self.session;
        match &mut self.want {
            Want::Token(sampler) if known => {
                let logits = std::mem::take(&mut session.logits);
                self.outcome = session.choose(sampler.as_deref_mut(), &logits).map(Some);
                session.logits = logits;
            }
            Want::Token(sampler) => {
                let (first, drafted) = logits.split_at(logits.len() / wanted);
                let step = session.choose(sampler.as_deref_mut(), first);
                session.lookahead.set_logits(&step, drafted);
                self.outcome = step.map(Some);
            }
            Want::Logits if !known => {
                session.logits.clear();
                session.logits.extend_from_slice(logits);
            }
            Want::Logits | Want::Nothing => {}
        }
    }
}

/// Evaluates `take` and `drafts` tokens of each part, and gives each what it wants. An error concerns all.
pub(super) fn run(model: &Model, parts: &mut [Part<'_>]) -> Result<()> {
    for part in &mut *parts {
        if let Err(error) = part.reserve(model.decoder()) {
            part.fail(error);
        }
    }
    if parts.iter().all(|part| part.take == 0 && matches!(part.want, Want::Nothing)) {
        return Ok(());
    }
    let mut profile = Profile::new(parts.iter().any(|part| part.session.profile.enabled()));
    // Intermediate tensors are for tests, which look at one session at a time.
    let mut tap = if let [part] = &mut *parts { part.session.tap.take() } else { None };
    let result = model.step(|exec, workspace| {
        let mut step = Run { decoder: model.decoder(), exec, workspace, profile: &mut profile, tap: tap.as_mut() };
        if parts.iter().any(|part| part.take > 0) {
            step.forward(parts)?;
        }
        step.deliver(parts)
    });
    if let [part] = &mut *parts {
        part.session.tap = tap;
    }
    result?;
    parts.iter_mut().for_each(|part| part.session.profile.add(&profile, part.take));
    Ok(())
}

/// A pass while it runs.
struct Run<'a> {
    decoder: &'a Decoder,
    exec: &'a Exec<'a>,
    workspace: &'a mut Workspace,
    profile: &'a mut Profile,
    tap: Option<&'a mut Tap>,
}

impl Run<'_> {
    /// Evaluates the parts' tokens and commits what came of them.
    fn forward(&mut self, parts: &mut [Part<'_>]) -> Result<()> {
        let mut rest = {
            let (mut one, mut many);
            let sequences = match &mut *parts {
                [part] => {
                    one = [part.sequence()]; // a step of one session allocates nothing
                    &mut one[..]
                }
                _ => {
                    many = memory::collected(parts.iter_mut().filter(|part| part.take > 0).map(Part::sequence))?;
                    &mut many[..]
                }
            };
            let pass = Pass { sequences, profile: &mut *self.profile, tap: self.tap.as_deref_mut() };
            self.decoder.forward(self.exec, self.workspace, pass)?
        };
        for part in parts.iter_mut().filter(|part| part.take > 0) {
            let (rows, later) = rest.split_at(part.rows() * self.decoder.hidden());
            match check_cancelled(part.cancelled, part.session.evaluated) {
                Ok(()) => part.commit(rows),
                Err(error) => part.fail(error),
            }
            rest = later;
        }
        Ok(())
    }

    /// Computes the logits that are wanted and gives each part its own.
    fn deliver(self, parts: &mut [Part<'_>]) -> Result<()> {
        let (hidden, vocab) = (self.decoder.hidden(), self.decoder.vocab());
        let mut wanted = 0;
        for part in &mut *parts {
            part.logits = wanted * vocab..(wanted + part.wanted()) * vocab;
            wanted += part.wanted();
        }
        let mut logits = &[][..];
        if wanted > 0 {
            let rows = parts.iter().filter(|part| part.wanted() > 0).flat_map(|part| {
                let drafted = part.session.lookahead.rows().chunks_exact(hidden).take(part.drafts);
                std::iter::once(&part.session.last[..]).chain(drafted)
            });
            logits = self.decoder.logits(self.exec, self.workspace, wanted, rows, self.profile, self.tap)?;
        }
        let mut clock = self.profile.clock();
        self.exec.team_for(parts.len()).rows(parts, 1, |_, mut block| {
            for i in block.rows() {
                let part = &mut block.row(i)[0];
                // What fails here, in a sampler, is the part's own: the others have their tokens already, or get them.
                if let Err(error) = quietly(|| part.deliver(&logits[part.logits.clone()])) {
                    part.outcome = Err(error);
                }
            }
        });
        clock.lap(Operator::Sampling);
        Ok(())
    }
}

/// An error if a sequence at `position` was cancelled before a layer.
pub(super) fn check_cancelled(layer: Option<usize>, position: usize) -> Result<()> {
    match layer {
        None => Ok(()),
        Some(layer) => bail!(Cancelled, "cancelled by the host at position {position}, layer {layer}"),
    }
}
