//! Continuous batching: one step of any set of sessions in one forward pass.

use super::pass::{self, Part, Want};
use super::{Session, Step};
use crate::error::Result;
use crate::kernels::FEW_TOKENS;
use crate::memory;
use crate::model::Model;
use crate::sampler::Sampler;

/// Prompt tokens evaluated in one step beside sessions that are decoding, unless told otherwise: a step of eight sessions
/// then takes about twice as long as without them.
const DEFAULT_PROMPT_TOKENS: usize = 6;

/// A session's turn in a batch, with its sampler (`None` = greedy).
#[derive(Debug)]
pub struct Turn<'a> {
    /// The session; of the batch's model.
    pub session: &'a mut Session,
    /// Its sampler.
    pub sampler: Option<&'a mut Sampler>,
}

/// What a session's turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// As [`Session::decode_step`].
    Step(Step),
    /// Some of its prompt is left for later steps.
    Pending,
}

/// [`Session::decode_step`] for all sessions in one pass, with the same results. Prompts are cut so that a step evaluates at
/// most the model's `prompt_tokens` of them while others decode, shared evenly; by default fewer deep in a long context. One
/// session's error fails no other; the outer one is a defect or a lack of memory that concerns all.
pub fn decode_batch(model: &Model, turns: Vec<Turn<'_>>) -> Result<Vec<Result<Progress>>> {
    let mut outcomes: Vec<Result<Progress>> = memory::filled(Ok(Progress::Pending), turns.len())?;
    let mut parts = memory::with_room(turns.len())?;
    for (index, turn) in turns.into_iter().enumerate() {
        let session = turn.session;
        match session.prepare_step().and_then(|()| session.check_cancelled()) {
            Ok(()) => {
                let want = Want::Token(turn.sampler);
                session.settle(session.tokens.len(), &want);
                let left = session.tokens.len() - session.evaluated;
                let mut part = Part::new(session, left, want);
                part.index = index;
                parts.push(part);
            }
            Err(error) => outcomes[index] = Err(error),
        }
    }
    // Sessions with equally many tokens side by side, those that decode before those in their prompt.
    parts.sort_by_key(Part::rows);
    let decoding = parts.iter().take_while(|part| part.take <= 1).count();
    let (decoding, prompts) = parts.split_at_mut(decoding);
    match model.prompt_tokens() {
        _ if decoding.is_empty() => {
            let chunk = prompts.iter().map(|part| part.session.chunk).max().unwrap_or(0);
            share(chunk, prompts, |_| 1.0);
        }
        0 => share(DEFAULT_PROMPT_TOKENS, prompts, |part| model.decoder().token_cost(part.session.evaluated)),
        tokens => share(tokens, prompts, |_| 1.0),
    }
    // Drafts cost little while the weights are read once for few tokens.
    let mut room = if prompts.is_empty() { FEW_TOKENS.saturating_sub(decoding.len()) } else { 0 };
    for part in decoding {
        part.draft(room);
        room -= part.drafts;
    }
    parts.sort_by_key(Part::rows);
    pass::run(model, &mut parts)?;
    for part in parts {
        outcomes[part.index] = part.outcome.map(|step| step.map_or(Progress::Pending, Progress::Step));
    }
    Ok(outcomes)
}

/// Cuts the prompts, the shortest first, so that they cost at most `budget` together, or have one token each. What a short one
/// does not need of its even share goes to the longer ones. `cost` is that of a token of a session.
fn share(budget: usize, prompts: &mut [Part<'_>], cost: impl Fn(&Part<'_>) -> f64) {
    let (mut budget, mut left) = (budget as f64, prompts.len());
    for part in prompts {
        let cost = cost(part);
        let most = ((budget / left as f64 / cost) as usize).max(1);
        if part.take > most {
            (part.take, part.want) = (most, Want::Nothing);
        }
        budget = (budget - part.take as f64 * cost).max(0.0);
        left -= 1;
    }
}
