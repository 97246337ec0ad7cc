//! Many sessions of one model: whatever they share, whatever is computed together or ahead, each gives the tokens and the
//! bits that it would give alone.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rie::error::{Result, Status};
use rie::model::{LoadOptions, Model};
use rie::sampler::{History, Sampler, SamplerOptions, greedy};
use rie::session::{Progress, Session, SessionOptions, Step, Turn, decode_batch};
use rie::tensor::DType;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

mod common;

const VOCAB: u32 = 259;

fn model_with(options: &LoadOptions) -> Arc<Model> {
    Arc::new(Model::load(common::case("base").to_str().unwrap(), options, None).unwrap())
}

fn model() -> Arc<Model> {
    model_with(&LoadOptions { threads: 2, ..Default::default() })
}

fn session(model: &Arc<Model>) -> Session {
    Session::new(model.clone(), &SessionOptions::default()).unwrap()
}

fn options() -> SessionOptions {
    SessionOptions::default()
}

/// Tokens that differ from one `series` to the next.
fn tokens(series: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| 3 + (i * i + 31 * series * (i + 1)) % (VOCAB - 3)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn below(random: &mut ChaCha8Rng, n: usize) -> usize {
    random.next_u32() as usize % n
}

fn status<T: std::fmt::Debug>(result: Result<T>) -> Status {
    result.unwrap_err().status
}

/// The logits after a sequence, each computed from scratch by a session of its own.
struct Naive {
    model: Arc<Model>,
    known: HashMap<(bool, Vec<u32>), Vec<f32>>,
}

impl Naive {
    fn logits(&mut self, kv_type: DType, tokens: &[u32]) -> &[f32] {
        let key = (kv_type == DType::F32, tokens.to_vec());
        self.known.entry(key).or_insert_with(|| {
            let options = SessionOptions { kv_type, share_prefixes: false, ..options() };
            let mut alone = Session::new(self.model.clone(), &options).unwrap();
            alone.append(tokens).unwrap();
            alone.logits().unwrap().to_vec()
        })
    }
}

/// A session, and what it must be.
struct Twin {
    session: Session,
    tokens: Vec<u32>,
    generated: Vec<bool>,
    /// The session's sampler and one that gets the naive model's logits; `None` = greedy.
    samplers: Option<(Sampler, Sampler)>,
    kv_type: DType,
    cancelled: bool,
}

fn samplers(random: &mut ChaCha8Rng) -> Option<(Sampler, Sampler)> {
    (below(random, 3) == 0).then(|| {
        let options =
            SamplerOptions { seed: Some(random.next_u64()), top_k: 5, frequency_penalty: 0.1, ..Default::default() };
        (Sampler::new(&options).unwrap(), Sampler::new(&options).unwrap())
    })
}

impl Twin {
    fn new(model: &Arc<Model>, random: &mut ChaCha8Rng) -> Twin {
        let kv_type = if below(random, 4) == 0 { DType::F32 } else { DType::F16 };
        let options = SessionOptions {
            context: [0, 150, 80][below(random, 3)],
            kv_type,
            chunk: [0, 1, 7, 64][below(random, 4)],
            profile: below(random, 2) == 0,
            share_prefixes: below(random, 4) > 0,
            speculation: [0, 0, 3, 16][below(random, 4)],
        };
        let session = Session::new(model.clone(), &options).unwrap();
        let samplers = samplers(random);
        Twin { session, tokens: Vec::new(), generated: Vec::new(), samplers, kv_type, cancelled: false }
    }

    fn fork(&self, random: &mut ChaCha8Rng) -> Result<Twin> {
        Ok(Twin {
            session: self.session.fork()?,
            tokens: self.tokens.clone(),
            generated: self.generated.clone(),
            samplers: samplers(random),
            kv_type: self.kv_type,
            cancelled: false,
        })
    }

    fn append(&mut self, more: &[u32]) {
        if self.tokens.len() + more.len() > self.session.context() {
            assert_eq!(status(self.session.append(more)), Status::ContextFull);
            return;
        }
        self.session.append(more).unwrap();
        self.tokens.extend(more);
        self.generated.resize(self.tokens.len(), false);
    }

    fn truncate(&mut self, keep: usize) {
        self.session.truncate(keep).unwrap();
        self.tokens.truncate(keep);
        self.generated.truncate(keep);
    }

    fn cancel(&mut self, on: bool) {
        self.cancelled = on;
        self.session.cancel_flag().store(on, Ordering::Relaxed);
    }

    /// Why a step must fail.
    fn obstacle(&self) -> Option<Status> {
        match () {
            () if self.tokens.len() == self.session.context() => Some(Status::ContextFull),
            () if self.tokens.is_empty() => Some(Status::State),
            () if self.cancelled => Some(Status::Cancelled),
            () => None,
        }
    }

    /// Checks what a step came to. A pool that has a limit may be exhausted.
    fn check_step(&mut self, naive: &mut Naive, step: Result<Step>, limited: bool) {
        if let Some(expected) = self.obstacle() {
            assert_eq!(status(step), expected);
            return;
        }
        if limited && step.as_ref().is_err_and(|e| e.status == Status::NoMemory) {
            return;
        }
        let logits = naive.logits(self.kv_type, &self.tokens);
        let history = History { tokens: &self.tokens, generated: &self.generated };
        let expected = match &mut self.samplers {
            None => greedy(logits).unwrap(),
            Some((_, sampler)) => sampler.sample(logits, history).unwrap(),
        };
        let is_end = self.session.model().config().eos_token_ids.contains(&expected);
        assert_eq!(step.unwrap(), if is_end { Step::End(expected) } else { Step::Token(expected) });
        if !is_end {
            self.tokens.push(expected);
            self.generated.push(true);
        }
    }

    fn check(&self) {
        assert_eq!(self.session.tokens(), self.tokens);
        assert!(self.session.evaluated() <= self.tokens.len());
    }
}

/// `steps` random operations on many sessions; `limited` says that the pool of pages may run out.
fn drive(model: &Arc<Model>, naive: &mut Naive, seed: u64, steps: usize, limited: bool) -> [usize; 12] {
    let random = &mut ChaCha8Rng::seed_from_u64(seed);
    let mut twins: Vec<Twin> = (0..3).map(|_| Twin::new(model, random)).collect();
    let mut saved = Vec::new();
    let mut counts = [0; 12];
    for _ in 0..steps {
        if twins.is_empty() || (twins.len() < 8 && below(random, 10) == 0) {
            twins.push(Twin::new(model, random));
        }
        let at = below(random, twins.len());
        let operation = below(random, 12);
        counts[operation] += 1;
        let may_run_out = |status: Status| assert!(limited && status == Status::NoMemory, "{status:?}");
        match operation {
            0..=1 => {
                let (series, n) = (below(random, 2) as u32, below(random, 140));
                let more = if twins[at].tokens.is_empty() { tokens(series, n) } else { tokens(7, n % 12) };
                twins[at].append(&more);
            }
            2 => match twins[at].session.eval(below(random, 100)) {
                Ok(left) => assert_eq!(left, twins[at].session.evaluated() < twins[at].tokens.len()),
                Err(e) if twins[at].cancelled => assert_eq!(e.status, Status::Cancelled),
                Err(e) => may_run_out(e.status),
            },
            3 => {
                let twin = &mut twins[at];
                match twin.session.logits().map(bits) {
                    Ok(found) => assert_eq!(found, bits(naive.logits(twin.kv_type, &twin.tokens))),
                    Err(e) if twin.tokens.is_empty() => assert_eq!(e.status, Status::State),
                    Err(e) if twin.cancelled => assert_eq!(e.status, Status::Cancelled),
                    Err(e) => may_run_out(e.status),
                }
            }
            4 => {
                let twin = &mut twins[at];
                for _ in 0..below(random, 20) {
                    let step = twin.session.decode_step(twin.samplers.as_mut().map(|(sampler, _)| sampler));
                    twin.check_step(naive, step, limited);
                }
            }
            5..=6 => {
                let mut chosen: Vec<&mut Twin> = twins.iter_mut().filter(|_| below(random, 3) > 0).collect();
                for _ in 0..1 + below(random, 6) {
                    let mut turns = Vec::new();
                    for twin in &mut chosen {
                        let Twin { session, samplers, .. } = &mut **twin;
                        turns.push(Turn { session, sampler: samplers.as_mut().map(|(sampler, _)| sampler) });
                    }
                    let outcomes = decode_batch(model, turns).unwrap();
                    assert_eq!(outcomes.len(), chosen.len());
                    for (twin, outcome) in chosen.iter_mut().zip(outcomes) {
                        match outcome {
                            Ok(Progress::Pending) => {
                                assert!(twin.obstacle().is_none());
                                assert!(twin.session.evaluated() < twin.tokens.len());
                            }
                            Ok(Progress::Step(step)) => twin.check_step(naive, Ok(step), limited),
                            Err(e) => twin.check_step(naive, Err(e), limited),
                        }
                    }
                }
            }
            7 => match twins[at].fork(random) {
                Ok(fork) => twins.push(fork),
                Err(e) => may_run_out(e.status),
            },
            8 => {
                let keep = below(random, twins[at].tokens.len() + 1);
                twins[at].truncate(keep);
            }
            9 => {
                let twin = &mut twins[at];
                let bytes = twin.session.save().unwrap().concat();
                assert_eq!(bytes.len(), twin.session.saved_len());
                saved.push((bytes, twin.tokens.clone(), twin.generated.clone(), twin.kv_type));
                let (bytes, tokens, generated, kv_type) = &saved[below(random, saved.len())];
                match twin.session.load(bytes) {
                    Ok(()) => {
                        assert_eq!(*kv_type, twin.kv_type);
                        (twin.tokens, twin.generated) = (tokens.clone(), generated.clone());
                    }
                    Err(e) if e.status == Status::Mismatch => assert_ne!(*kv_type, twin.kv_type),
                    Err(e) if e.status == Status::ContextFull => assert!(tokens.len() > twin.session.context()),
                    Err(e) => may_run_out(e.status),
                }
            }
            10 => {
                let on = below(random, 3) == 0;
                twins[at].cancel(on);
            }
            _ => drop(twins.swap_remove(at)),
        }
        twins.iter().for_each(Twin::check);
        twins.truncate(12);
    }
    counts
}

#[test]
fn any_sequence_of_operations_equals_a_naive_model() {
    let model = model();
    let mut naive = Naive { model: self::model(), known: HashMap::new() };
    let mut counts = [0; 12];
    for seed in 0..12 {
        let now = drive(&model, &mut naive, seed, 250, false);
        counts.iter_mut().zip(now).for_each(|(all, now)| *all += now);
        assert_eq!(model.pages().usage(), (0, 0), "seed {seed}: pages are left");
    }
    assert!(counts.iter().all(|&count| count > 50), "{counts:?}");
}

#[test]
fn a_pool_that_runs_out_is_an_error_and_nothing_is_lost() {
    // 2 layers × 2 KV heads × 64 positions × 2 × 8 elements of 2 bytes, eight times.
    let model = model_with(&LoadOptions { threads: 2, kv_limit: 8 * 8192, ..Default::default() });
    let mut naive = Naive { model: self::model(), known: HashMap::new() };
    for seed in 100..106 {
        drive(&model, &mut naive, seed, 250, true);
        assert_eq!(model.pages().usage(), (0, 0), "seed {seed}: pages are left");
    }
    let mut first = session(&model);
    first.append(&tokens(0, 256)).unwrap();
    first.logits().unwrap();
    let mut second = Session::new(model.clone(), &SessionOptions { share_prefixes: false, ..options() }).unwrap();
    second.append(&tokens(1, 255)).unwrap();
    second.logits().unwrap();
    assert_eq!(model.pages().usage(), (8, 65536));
    let mut third = session(&model);
    third.append(&tokens(2, 3)).unwrap();
    let error = third.logits().unwrap_err();
    assert_eq!(error.status, Status::NoMemory);
    assert!(error.message.contains("exceeds the limit of 65536 bytes: 65536 are in use"), "{}", error.message);
    drop(first);
    assert_eq!(bits(third.logits().unwrap()), bits(naive.logits(DType::F16, &tokens(2, 3))));
}

#[test]
fn a_prefix_that_lives_in_another_session_is_not_computed_again() {
    let model = model();
    let mut first = session(&model);
    first.append(&tokens(0, 200)).unwrap();
    first.decode_step(None).unwrap();
    let pages = model.pages().usage().0;
    assert_eq!(pages, 4);

    // Another end after 150 tokens: two whole pages and 22 tokens of the third.
    let mut second = session(&model);
    let mut prompt = tokens(0, 150);
    prompt.extend([200, 201, 202]);
    second.append(&prompt).unwrap();
    let logits = bits(second.logits().unwrap());
    assert_eq!((second.reused(), second.evaluated()), (150, 153));
    assert_eq!((second.kv().shared_pages(), model.pages().usage().0), (2, pages + 1));

    // The whole prompt and more of it: all but the last token.
    let mut third = session(&model);
    third.append(&tokens(0, 200)).unwrap();
    third.logits().unwrap();
    assert_eq!(third.reused(), 199);

    // Not asked for, another type of cache, or nobody left: computed.
    for options in
        [SessionOptions { share_prefixes: false, ..options() }, SessionOptions { kv_type: DType::F32, ..options() }]
    {
        let mut other = Session::new(model.clone(), &options).unwrap();
        other.append(&prompt).unwrap();
        other.logits().unwrap();
        assert_eq!(other.reused(), 0);
    }
    drop((first, second, third));
    assert_eq!(model.pages().usage(), (0, 0));
    let mut fourth = session(&model);
    fourth.append(&prompt).unwrap();
    assert_eq!(bits(fourth.logits().unwrap()), logits);
    assert_eq!(fourth.reused(), 0);
}

#[test]
fn equal_pages_computed_apart_become_one() {
    let model = model();
    let mut sessions: Vec<Session> = (0..3).map(|_| session(&model)).collect();
    for s in &mut sessions {
        s.append(&tokens(0, 130)).unwrap();
    }
    // One token at a time, in turn: nobody finds more than the others have.
    for _ in 0..130 {
        sessions.iter_mut().for_each(|s| assert_eq!(s.eval(1), Ok(s.evaluated() < 130)));
    }
    assert_eq!(model.pages().usage().0, 2 + 3, "two full pages in common, and an end each");
}

#[test]
fn a_fork_costs_what_differs() {
    let model = model();
    let mut first = session(&model);
    first.append(&tokens(0, 200)).unwrap();
    let logits = bits(first.logits().unwrap());
    let mut forks: Vec<Session> = (0..1000).map(|_| first.fork().unwrap()).collect();
    assert_eq!(model.pages().usage().0, 4);
    assert_eq!(forks[0].kv().shared_pages(), 4);
    forks[1].append(&[5]).unwrap();
    forks[1].logits().unwrap();
    assert_eq!(model.pages().usage().0, 5, "the last page was copied");
    assert_eq!(bits(forks[2].logits().unwrap()), logits);
    assert_eq!(bits(first.logits().unwrap()), logits);
}

#[test]
fn what_was_not_saved_by_this_model_is_refused_and_changes_nothing() {
    let model = model();
    let mut first = session(&model);
    first.append(&tokens(0, 70)).unwrap();
    first.decode_step(None).unwrap();
    first.append(&[9, 10]).unwrap();
    let bytes = first.save().unwrap().concat();
    let again = first.save().unwrap().concat();
    assert!(bytes == again, "saving twice gives the same bytes");

    let mut second = session(&model);
    second.append(&tokens(1, 5)).unwrap();
    let before = bits(second.logits().unwrap());
    let mut refuse = |bytes: &[u8], expected: Status, text: &str| {
        let error = second.load(bytes).unwrap_err();
        assert_eq!(error.status, expected, "{}", error.message);
        assert!(error.message.contains(text), "{}", error.message);
        assert_eq!(second.tokens(), tokens(1, 5));
        assert_eq!(bits(second.logits().unwrap()), before);
    };
    for end in [0, 7, 8, 40, 71, 100, bytes.len() - 1] {
        refuse(&bytes[..end], Status::Format, "saved session");
    }
    refuse(&[&bytes[..], &[0]].concat(), Status::Format, "damaged or cut off");
    for at in (0..bytes.len()).step_by(97).chain(0..60) {
        let mut tampered = bytes.clone();
        tampered[at] ^= 0x10;
        let expected = if (8..12).contains(&at) { Status::Mismatch } else { Status::Format };
        refuse(&tampered, expected, "saved");
    }
    // Sizes that lie under a right checksum.
    for (at, value) in [(32, 1u64 << 60), (40, 74), (40, u64::MAX), (48, 7), (48, 0)] {
        let mut lying = bytes[..bytes.len() - 16].to_vec();
        lying[at..at + 8].copy_from_slice(&value.to_le_bytes());
        lying.extend(twox_hash::XxHash3_128::oneshot(&lying).to_le_bytes());
        refuse(&lying, Status::Format, "expected");
    }
    let mut wide = Session::new(model.clone(), &SessionOptions { kv_type: DType::F32, ..options() }).unwrap();
    assert_eq!(status(wide.load(&bytes)), Status::Mismatch);
    let mut short = Session::new(model.clone(), &SessionOptions { context: 72, ..options() }).unwrap();
    assert_eq!(status(short.load(&bytes)), Status::ContextFull);
    let other = Model::load(common::case("attention_bias").to_str().unwrap(), &LoadOptions::default(), None).unwrap();
    let mut foreign = session(&Arc::new(other));
    let error = foreign.load(&bytes).unwrap_err();
    assert_eq!(error.status, Status::Mismatch, "{}", error.message);

    // Another load of the same model goes on with the same bits.
    let mut second = session(&self::model());
    second.load(&bytes).unwrap();
    assert_eq!((second.tokens(), second.evaluated()), (first.tokens(), 70));
    assert_eq!(bits(second.logits().unwrap()), bits(first.logits().unwrap()));
    assert_eq!(second.decode_step(None), first.decode_step(None));
}

#[test]
fn loaded_pages_are_not_offered_to_others() {
    let model = model();
    let mut first = session(&model);
    first.append(&tokens(0, 130)).unwrap();
    first.logits().unwrap();
    let bytes = first.save().unwrap().concat();
    drop(first);
    let mut loaded = session(&model);
    loaded.load(&bytes).unwrap();
    loaded.append(&tokens(3, 100)).unwrap();
    loaded.logits().unwrap();
    let mut third = session(&model);
    third.append(loaded.tokens()).unwrap();
    assert_eq!(bits(third.logits().unwrap()), bits(loaded.logits().unwrap()));
    assert_eq!(third.reused(), 0);
}

#[test]
fn one_session_fails_alone() {
    let model = model();
    let mut sessions: Vec<Session> = (0..5).map(|_| session(&model)).collect();
    let mut full = Session::new(model.clone(), &SessionOptions { context: 10, ..options() }).unwrap();
    for (i, s) in sessions.iter_mut().enumerate() {
        s.append(&tokens(i as u32, 10)).unwrap();
    }
    full.append(&tokens(9, 10)).unwrap();
    sessions[1].cancel_flag().store(true, Ordering::Relaxed);
    sessions[3].truncate(0).unwrap();
    sessions.push(full);
    let turns = sessions.iter_mut().map(|session| Turn { session, sampler: None }).collect();
    let outcomes: Vec<_> = decode_batch(&model, turns).unwrap();
    let statuses: Vec<Option<Status>> = outcomes.iter().map(|o| o.as_ref().err().map(|e| e.status)).collect();
    let expected = [None, Some(Status::Cancelled), None, Some(Status::State), None, Some(Status::ContextFull)];
    assert_eq!(statuses, expected);
    assert_eq!((sessions[1].evaluated(), sessions[5].evaluated()), (0, 0));
    assert!(decode_batch(&model, Vec::new()).unwrap().is_empty());
}

#[test]
fn a_long_prompt_is_fed_in_by_portions_while_others_decode() {
    let model = model_with(&LoadOptions { threads: 2, prompt_tokens: 20, ..Default::default() });
    let mut sessions: Vec<Session> = (0..3).map(|_| session(&model)).collect();
    sessions[0].append(&tokens(0, 5)).unwrap();
    sessions[1].append(&tokens(1, 100)).unwrap();
    sessions[2].append(&tokens(2, 7)).unwrap();
    let mut evaluated = Vec::new();
    let mut outcomes = Vec::new();
    for _ in 0..6 {
        let turns = sessions.iter_mut().map(|session| Turn { session, sampler: None }).collect();
        let outcome = decode_batch(&model, turns).unwrap();
        outcomes.push(outcome.iter().map(|o| matches!(o, Ok(Progress::Step(_)))).collect::<Vec<bool>>());
        evaluated.push(sessions[1].evaluated());
    }
    // Nobody decodes at first, so that the whole prompt goes in at once; then only the budget.
    assert_eq!((outcomes[0].clone(), evaluated[0]), (vec![true; 3], 100));
    sessions[1].truncate(0).unwrap();
    sessions[1].append(&tokens(3, 90)).unwrap();
    let mut steps = 0;
    loop {
        steps += 1;
        let turns = sessions.iter_mut().map(|session| Turn { session, sampler: None }).collect();
        let outcome = decode_batch(&model, turns).unwrap();
        assert!(matches!((&outcome[0], &outcome[2]), (Ok(Progress::Step(_)), Ok(Progress::Step(_)))));
        if outcome[1] != Ok(Progress::Pending) {
            break;
        }
        assert_eq!(sessions[1].evaluated(), 20 * steps);
    }
    assert_eq!(steps, 5);
}

#[test]
fn drafts_are_used_where_a_text_repeats_itself() {
    let model = Model::load(common::tiny_model().to_str().unwrap(), &LoadOptions::default(), None).unwrap();
    let model = Arc::new(model);
    let text: Vec<u32> = tokens(0, 12).repeat(6);
    let run = |speculation: usize| {
        let mut s =
            Session::new(model.clone(), &SessionOptions { speculation, share_prefixes: false, ..options() }).unwrap();
        s.append(&text).unwrap();
        let steps: Vec<Step> = (0..120).map(|_| s.decode_step(None).unwrap()).collect();
        let logits = bits(s.logits().unwrap());
        (steps, logits, s.drafted())
    };
    let (steps, logits, drafted) = run(0);
    assert_eq!(drafted, (0, 0));
    for most in [1, 3, 8, 64] {
        let (with, with_logits, (drafted, accepted)) = run(most);
        assert!(with == steps && with_logits == logits, "drafts of at most {most}");
        assert!(accepted >= 20 && drafted >= accepted, "drafts of at most {most}: {drafted}, {accepted}");
    }
}

/// Host threads open, step, cancel, fork and free sessions of one model at random. `RIE_TEST_STRESS_SECONDS` says for how
/// long.
#[test]
fn threads_at_random_on_one_model() {
    let seconds = std::env::var("RIE_TEST_STRESS_SECONDS").map_or(5, |s| s.parse().unwrap());
    let model = model_with(&LoadOptions { threads: 2, kv_limit: 40 * 8192, ..Default::default() });
    let (stop, steps) = (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (model, stop, steps) = (&model, &stop, &steps);
            scope.spawn(move || {
                let random = &mut ChaCha8Rng::seed_from_u64(thread);
                let mut sessions: Vec<Session> = Vec::new();
                let fine = |status: Status| {
                    assert!(matches!(status, Status::NoMemory | Status::Cancelled | Status::ContextFull), "{status:?}");
                };
                while !stop.load(Ordering::Relaxed) {
                    steps.fetch_add(1, Ordering::Relaxed);
                    if sessions.len() < 4 {
                        let options = SessionOptions { context: 200, speculation: below(random, 2) * 4, ..options() };
                        let mut s = Session::new(model.clone(), &options).unwrap();
                        s.append(&tokens(below(random, 3) as u32, 1 + below(random, 150))).unwrap();
                        sessions.push(s);
                    }
                    let at = below(random, sessions.len());
                    match below(random, 6) {
                        0 => drop(sessions.swap_remove(at)),
                        1 => {
                            let flag = sessions[at].cancel_flag().clone();
                            std::thread::scope(|scope| {
                                scope.spawn(|| flag.store(true, Ordering::Relaxed));
                                let _ = sessions[at].logits().map_err(|e| fine(e.status));
                            });
                            flag.store(false, Ordering::Relaxed);
                        }
                        2 if sessions.len() < 8 => match sessions[at].fork() {
                            Ok(fork) => sessions.push(fork),
                            Err(e) => fine(e.status),
                        },
                        3 => {
                            let turns = sessions.iter_mut().map(|session| Turn { session, sampler: None }).collect();
                            for outcome in decode_batch(model, turns).unwrap() {
                                let _ = outcome.map_err(|e| fine(e.status));
                            }
                        }
                        _ => {
                            let _ = sessions[at].decode_step(None).map_err(|e| fine(e.status));
                        }
                    }
                }
            });
        }
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(seconds) {
            std::thread::sleep(Duration::from_millis(20));
            assert!(model.pages().usage().1 <= 40 * 8192);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(steps.into_inner() > 100);
    assert_eq!(model.pages().usage(), (0, 0));
}
