//! Panics forced inside the library (feature `faults`): at every entry of the ABI, in the forward pass, in workers, in one
//! session of a batch. Each is `RIE_ERR_INTERNAL` with a message, ends the objects it hit and no others, and prints nothing.
#![expect(unsafe_code, reason = "calls the C ABI, and has stderr in a file")]

#[path = "common/abi.rs"]
mod abi;
mod common;

use abi::{Model, Outcome, Sampler, Session, Settings, batch, call};
use common::{case, root, scratch, tiny_model};
use rie::faults::arm;
use rie::ffi::error::rie_error;
use rie::ffi::{batch::*, chat::*, constants::*, info::*, log::*, model::*, options::*, sampler::*, session::*};
use rie::ffi::{rie_status, rie_token};
use rie::ffi::{source::*, text::*};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::{null, null_mut};

/// A function of the ABI, called with its error object and nothing else.
type Entry = (&'static str, unsafe fn(*mut rie_error) -> rie_status);

/// Every function that takes an error object.
// SAFETY of every call: NULL and 0 are arguments that each function may be given.
#[allow(clippy::undocumented_unsafe_blocks)] // one argument for all, above
const ENTRIES: [Entry; 29] = [
    ("rie_chat_render", |err| unsafe { rie_chat_render(null(), null(), 0, null_mut(), 0, null_mut(), err) }),
    ("rie_chat_tokenize", |err| unsafe { rie_chat_tokenize(null(), null(), 0, 0, null_mut(), 0, null_mut(), err) }),
    ("rie_decode_batch", |err| unsafe { rie_decode_batch(null(), null(), 1, null_mut(), null_mut(), err) }),
    ("rie_decode_step", |err| unsafe { rie_decode_step(null_mut(), null_mut(), null_mut(), err) }),
    ("rie_detokenize", |err| unsafe { rie_detokenize(null(), null(), 0, 0, null_mut(), 0, null_mut(), err) }),
    ("rie_get_int", |err| unsafe { rie_get_int(null(), 0, null_mut(), err) }),
    ("rie_get_str", |err| unsafe { rie_get_str(null(), 0, null_mut(), 0, null_mut(), err) }),
    ("rie_inspect", |err| unsafe { rie_inspect(null(), null(), null_mut(), 0, null_mut(), err) }),
    ("rie_model_load", |err| unsafe { rie_model_load(null(), null(), null_mut(), err) }),
    ("rie_model_save", |err| unsafe { rie_model_save(null(), null(), null(), err) }),
    ("rie_options_set_float", |err| unsafe { rie_options_set_float(null_mut(), RIE_OPT_TOP_P, 1.0, err) }),
    ("rie_options_set_int", |err| unsafe { rie_options_set_int(null_mut(), RIE_OPT_THREADS, 1, err) }),
    ("rie_options_set_progress", |err| unsafe { rie_options_set_progress(null_mut(), None, null_mut(), err) }),
    ("rie_options_set_str", |err| unsafe { rie_options_set_str(null_mut(), RIE_OPT_CONFIG_PATH, null(), err) }),
    ("rie_sampler_new", |err| unsafe { rie_sampler_new(null(), null_mut(), err) }),
    ("rie_sampler_set_bias", |err| unsafe { rie_sampler_set_bias(null_mut(), 0, 0.0, err) }),
    ("rie_session_append", |err| unsafe { rie_session_append(null_mut(), null(), 0, err) }),
    ("rie_session_cancel", |err| unsafe { rie_session_cancel(null_mut(), 0, err) }),
    ("rie_session_eval", |err| unsafe { rie_session_eval(null_mut(), 0, err) }),
    ("rie_session_fork", |err| unsafe { rie_session_fork(null_mut(), null_mut(), err) }),
    ("rie_session_load", |err| unsafe { rie_session_load(null_mut(), null(), 0, err) }),
    ("rie_session_logits", |err| unsafe { rie_session_logits(null_mut(), null_mut(), 0, err) }),
    ("rie_session_new", |err| unsafe { rie_session_new(null(), null(), null_mut(), err) }),
    ("rie_session_save", |err| unsafe { rie_session_save(null_mut(), null_mut(), 0, null_mut(), err) }),
    ("rie_session_score", |err| unsafe { rie_session_score(null_mut(), null(), 0, null_mut(), err) }),
    ("rie_session_tokens", |err| unsafe { rie_session_tokens(null_mut(), null_mut(), 0, null_mut(), err) }),
    ("rie_session_truncate", |err| unsafe { rie_session_truncate(null_mut(), 0, err) }),
    ("rie_text_stream_new", |err| unsafe { rie_text_stream_new(null(), 0, null_mut(), err) }),
    ("rie_text_stream_push", |err| unsafe { rie_text_stream_push(null_mut(), 0, null_mut(), 0, null_mut(), err) }),
];

/// And the others.
// SAFETY of every call: as above.
#[allow(clippy::undocumented_unsafe_blocks)]
const MORE_ENTRIES: [Entry; 7] = [
    ("rie_inspect_source", |err| unsafe { rie_inspect_source(null(), null(), null_mut(), 0, null_mut(), err) }),
    ("rie_log_set", |err| unsafe { rie_log_set(None, null_mut(), 0, err) }),
    ("rie_model_load_source", |err| unsafe { rie_model_load_source(null(), null(), null_mut(), err) }),
    ("rie_source_add_fd", |err| unsafe { rie_source_add_fd(null_mut(), null(), -1, 0, 0, err) }),
    ("rie_source_add_memory", |err| unsafe {
        rie_source_add_memory(null_mut(), null(), null(), 0, None, null_mut(), err)
    }),
    ("rie_source_add_path", |err| unsafe { rie_source_add_path(null_mut(), null(), null(), err) }),
    ("rie_tokenize", |err| unsafe { rie_tokenize(null(), null(), 0, 0, null_mut(), 0, null_mut(), err) }),
];

/// Those that take none and cannot fail, or only by a value of their own.
const WITHOUT_ERROR: [&str; 9] = [
    "rie_abi_version",
    "rie_error_message",
    "rie_error_new",
    "rie_error_status",
    "rie_free",
    "rie_options_new",
    "rie_source_new",
    "rie_status_name",
    "rie_version",
];

fn entries() -> impl Iterator<Item = Entry> {
    ENTRIES.into_iter().chain(MORE_ENTRIES)
}

fn expect_defect<T>(outcome: Outcome<T>, words: &[&str]) {
    let (status, message) = outcome.err().expect("a defect");
    assert_eq!(status, RIE_ERR_INTERNAL, "{message}");
    for word in ["a defect of this library", "forced at"].iter().chain(words) {
        assert!(message.contains(word), "{word}: {message}");
    }
}

/// Every later call says why it is refused.
fn expect_ended(session: &Session) {
    let outcomes = [session.append(&[1]), session.eval(), session.step(None), session.truncate(0)];
    for outcome in outcomes {
        let (status, message) = outcome.expect_err("a refusal");
        assert!(status == RIE_ERR_STATE && message.contains("RIE_ERR_INTERNAL"), "{message}");
    }
    assert_eq!(session.fork().err().expect("a refusal").0, RIE_ERR_STATE);
}

fn every_entry_reports_a_panic() {
    let listed = std::fs::read_to_string(root("tests/abi/symbols.txt")).expect("the list of symbols");
    for symbol in listed.lines() {
        let known = WITHOUT_ERROR.contains(&symbol) || entries().any(|(name, _)| name == symbol);
        assert!(known, "{symbol} is not in this test");
    }
    for (name, entry) in entries() {
        arm(name, 0);
        // SAFETY: as said at the list.
        expect_defect(call(|err| unsafe { entry(err) }), &[name]);
        arm(name, 0);
        // SAFETY: the same call without an error object: nothing but the status.
        assert_eq!(unsafe { entry(null_mut()) }, RIE_ERR_INTERNAL, "{name}");
        // SAFETY: as above.
        let later = call(|err| unsafe { entry(err) });
        assert_ne!(later.err().map(|(status, _)| status), Some(RIE_ERR_INTERNAL), "{name} goes on");
    }
}

const PROMPT: [rie_token; 7] = [5, 17, 40, 2, 8, 33, 61];
const STEPS: usize = 10;

fn start(model: &Model) -> Session {
    let session = model.session(Settings { ints: &[(RIE_OPT_SHARE_PREFIXES, 0)], ..Settings::default() });
    let session = session.expect("a session");
    session.append(&PROMPT).expect("tokens");
    session
}

fn tokens(session: &Session) -> Vec<rie_token> {
    (0..STEPS).map(|_| session.step(None).expect("a step")).collect()
}

/// A panic in one session's pass, on the leader or on a worker, early or late.
fn a_pass_ends_its_session_only(path: &Path) {
    const THREADS: [Settings<'_>; 2] = [
        Settings { ints: &[(RIE_OPT_THREADS, 1)], temperature: None },
        Settings { ints: &[(RIE_OPT_THREADS, 3)], temperature: None },
    ];
    let places = [("layer", 0, [0, 1, 4]), ("layer", 1, [0, 2, 7]), ("deliver", 1, [0; 3]), ("worker", 1, [0, 1, 9])];
    // The jobs of a very small model are done before a worker comes.
    let shared = path == tiny_model();
    for (place, n, rounds) in places.into_iter().filter(|(place, ..)| shared || *place != "worker") {
        let model = Model::load(path, THREADS[n]).expect("the model");
        let expected = tokens(&start(&model));
        let other = start(&model);
        let first = other.step(None).expect("a step");
        for before in rounds {
            let session = start(&model);
            let sampler = Sampler::new(Settings { ints: &[(RIE_OPT_SEED, 3)], ..Settings::default() });
            arm(place, before);
            // On a busy machine a worker may take part in no job of a step.
            let outcome = (0..200).map(|_| session.step(Some(&sampler))).find(Result::is_err).expect("a panic");
            expect_defect(outcome, &[place]);
            expect_ended(&session);
            let refused = other.fork().expect("a fork").step(Some(&sampler)).expect_err("the sampler was in the step");
            assert!(refused.0 == RIE_ERR_STATE && refused.1.contains("sampler"), "{}", refused.1);
            assert_eq!(tokens(&start(&model)), expected, "{place} {before}: the model goes on");
        }
        let rest: Vec<_> = [first].into_iter().chain((1..STEPS).map(|_| other.step(None).expect("a step"))).collect();
        assert_eq!(rest, expected, "{place}: the other session goes on");
    }
}

/// What a failed pass computed is offered to no other session.
fn nothing_half_computed_is_shared(path: &Path) {
    let settings = Settings { ints: &[(RIE_OPT_THREADS, 3)], ..Settings::default() };
    let model = Model::load(path, settings).expect("the model");
    let prompt: Vec<rie_token> = (0..200).map(|i| i * 7 % 90).collect();
    let alone = model.session(Settings { ints: &[(RIE_OPT_SHARE_PREFIXES, 0)], ..Settings::default() });
    let alone = alone.expect("a session");
    alone.append(&prompt).expect("tokens");
    let expected = tokens(&alone);
    for (place, before) in [("worker", 0), ("worker", 3), ("layer", 1)] {
        let fails = model.session(Settings::default()).expect("a session");
        fails.append(&prompt).expect("tokens");
        arm(place, before);
        let outcome = fails.eval();
        if place == "worker" && outcome.is_ok() {
            arm("nowhere", 0); // no worker came in time
            continue;
        }
        expect_defect(outcome, &[place]);
        let next = model.session(Settings::default()).expect("a session");
        next.append(&prompt).expect("tokens");
        assert_eq!(tokens(&next), expected, "after a panic at {place}");
    }
}

fn a_batch_loses_what_was_hit(path: &Path) {
    let model = Model::load(path, Settings::default()).expect("the model");
    let expected = tokens(&start(&model));
    let sessions: Vec<Session> = (0..4).map(|_| start(&model)).collect();
    let (first, statuses) = batch(&sessions, None).expect("a step");
    assert!(first.iter().all(|&token| token == expected[0]) && statuses == [RIE_OK; 4]);
    // While the tokens are chosen, a panic is one session's.
    arm("deliver", 2);
    let (_, statuses) = batch(&sessions, None).expect("a step, of which one session failed");
    let hit: Vec<usize> = (0..4).filter(|&i| statuses[i] == RIE_ERR_INTERNAL).collect();
    assert!(hit.len() == 1 && statuses.iter().filter(|&&status| status == RIE_OK).count() == 3, "{statuses:?}");
    expect_ended(&sessions[hit[0]]);
    let (tokens_then, statuses) = batch(&sessions, None).expect("a step");
    for i in 0..4 {
        let wanted = if i == hit[0] { (RIE_ERR_STATE, -1) } else { (RIE_OK, expected[2]) };
        assert_eq!((statuses[i], tokens_then[i]), wanted, "session {i}");
    }
    // In the pass, it is that of all sessions in it.
    let outside = start(&model);
    arm("layer", 1);
    expect_defect(batch(&sessions, None), &["layer"]);
    sessions.iter().for_each(expect_ended);
    assert_eq!(tokens(&outside), expected);
    assert_eq!(tokens(&start(&model)), expected);
}

#[test]
fn a_forced_panic_is_an_error_of_what_it_hit_and_prints_nothing() {
    let printed = scratch("faults").join("stderr");
    let file = File::create(&printed).expect("a file");
    // SAFETY: both are open; nothing else in this process looks at fd 2 now.
    let stderr = unsafe {
        let stderr = libc::dup(2);
        libc::dup2(file.as_raw_fd(), 2);
        stderr
    };
    every_entry_reports_a_panic();
    for path in [case("base"), tiny_model()] {
        a_pass_ends_its_session_only(&path);
        nothing_half_computed_is_shared(&path);
        a_batch_loses_what_was_hit(&path);
    }
    // SAFETY: as above.
    unsafe { libc::dup2(stderr, 2) };
    let printed = std::fs::read_to_string(&printed).expect("what was printed");
    assert_eq!(printed, "");
}
