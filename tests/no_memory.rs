//! No memory for a large buffer is `RIE_ERR_NO_MEMORY`, whichever buffer it is, and afterwards everything goes on with the same
//! bits. The test's own allocator refuses one large allocation after the other.
#![expect(unsafe_code, reason = "a global allocator, and the C ABI")]

#[path = "common/abi.rs"]
mod abi;
mod common;

use abi::{Model, Outcome, Sampler, Session, Settings, batch, call};
use common::{scratch, tiny_model};
use rie::ffi::constants::*;
use rie::ffi::session::rie_session_tokens;
use rie::ffi::text::rie_detokenize;
use rie::ffi::{rie_status, rie_token};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is refused. The promise begins at 64 KiB.
const LARGE: usize = 16 << 10;

/// How many more large allocations succeed before one does not; far below 0 = all do.
static LEFT: AtomicI64 = AtomicI64::new(NONE);
const NONE: i64 = i64::MIN / 2;

struct Refusing;

fn refused(size: usize) -> bool {
    size >= LARGE && LEFT.fetch_sub(1, Ordering::SeqCst) == 0
}

// SAFETY: the system's allocator; NULL says that there is no memory.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refused(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if refused(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// Does `f` with its `n`-th large allocation refused; whether there was one.
fn refusing<T>(n: i64, f: impl FnOnce() -> T) -> (T, bool) {
    LEFT.store(n, Ordering::SeqCst);
    let result = f();
    let left = LEFT.swap(NONE, Ordering::SeqCst);
    (result, (NONE / 2..0).contains(&left))
}

/// Refuses the first large allocation of `act`, the second, and so on until it has no more; each time on fresh objects by `make`.
/// It must say so, and do the same as ever when it is called again. Returns how many there were.
fn each_refusal<T, R: PartialEq + std::fmt::Debug>(
    name: &str,
    make: impl Fn() -> T,
    act: impl Fn(&T) -> Outcome<R>,
) -> i64 {
    let expected = act(&make()).unwrap_or_else(|e| panic!("{name}: {e:?}"));
    for n in 0.. {
        let made = make();
        let (outcome, was_refused) = refusing(n, || act(&made));
        if !was_refused {
            assert_eq!(outcome, Ok(expected), "{name}");
            return n;
        }
        match outcome {
            // What is only of use and not needed (the room for a draft, a shared page) may be done without.
            Ok(result) => assert_eq!(result, expected, "{name}: without allocation {n}"),
            Err((status, message)) => assert_eq!(status, RIE_ERR_NO_MEMORY, "{name}: allocation {n}: {message}"),
        }
        assert_eq!(act(&made).as_ref(), Ok(&expected), "{name}: after allocation {n} was refused");
    }
    unreachable!("there are fewer allocations than numbers");
}

/// The tests of this file share the allocator.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The model without its tokenizer, which is another crate's and has no way to fail.
fn model_path() -> PathBuf {
    let dir = scratch("no-memory");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(tiny_model().join(file), dir.join(file)).expect(file);
    }
    dir
}

fn load(path: &Path, weights: i32) -> Outcome<Model> {
    Model::load(
        path,
        Settings { ints: &[(RIE_OPT_WEIGHTS, weights.into()), (RIE_OPT_THREADS, 2)], ..Settings::default() },
    )
}

const ALONE: Settings<'_> = Settings { ints: &[(RIE_OPT_SHARE_PREFIXES, 0)], temperature: None };

fn prompt(n: usize) -> Vec<rie_token> {
    (0..n as rie_token).map(|i| i * 7 % 3000).collect()
}

/// A session of a model of its own, whose buffers have not grown yet, with `evaluated` of its tokens computed and the rest queued.
fn session(path: &Path, weights: i32, settings: Settings<'_>, evaluated: usize, queued: usize) -> (Model, Session) {
    let model = load(path, weights).expect("the model");
    let session = model.session(settings).expect("a session");
    let tokens = prompt(evaluated + queued);
    session.append(&tokens[..evaluated]).expect("tokens");
    session.eval().expect("evaluated");
    session.append(&tokens[evaluated..]).expect("tokens");
    (model, session)
}

fn logits((model, session): &(Model, Session)) -> Outcome<Vec<u32>> {
    let mut logits = vec![0.0f32; model.vocab()];
    session.logits(&mut logits)?;
    Ok(logits.iter().map(|logit| logit.to_bits()).collect())
}

#[test]
fn each_large_allocation_may_be_refused() {
    let _turn = turn();
    let path = model_path();
    let weights = [RIE_WEIGHTS_AS_IS, RIE_WEIGHTS_INT8, RIE_WEIGHTS_INT4];
    let note = |name: &'static str, found: i64, least: i64| {
        assert!(found >= least, "{name}: only {found} large allocations, so the test shows little");
    };
    for weights in weights {
        // A load keeps nothing from one try to the next.
        let found = each_refusal(
            "load",
            || (),
            |()| {
                let model = load(&path, weights)?;
                let session = model.session(ALONE)?;
                session.append(&prompt(3))?;
                logits(&(model, session))
            },
        );
        note("load", found, 3);
        let found = each_refusal("prompt", || session(&path, weights, ALONE, 0, 200), logits);
        note("prompt", found, 10);
    }
    let (long, many) = (Settings { ints: &[(RIE_OPT_CONTEXT, 100_000)], temperature: None }, prompt(3000).repeat(20));
    let found = each_refusal(
        "append",
        || session(&path, 0, long, 0, 0),
        |(_, s)| {
            s.truncate(0)?;
            s.append(&many[..10_000]).and_then(|_| s.append(&many[10_000..]))
        },
    );
    note("append", found, 3);
    let sampling = Settings { ints: &[(RIE_OPT_SEED, 5), (RIE_OPT_TOP_K, 2000)], temperature: Some(0.7) };
    let found = each_refusal(
        "sampling",
        || session(&path, 0, ALONE, 0, 9),
        |(_, s)| {
            s.truncate(9)?;
            (0..4).map(|_| s.step(Some(&Sampler::new(sampling)))).collect::<Outcome<Vec<_>>>()
        },
    );
    note("sampling", found, 5);
    let drafting = Settings { ints: &[(RIE_OPT_SPECULATION, 16), (RIE_OPT_SHARE_PREFIXES, 0)], temperature: None };
    let found = each_refusal(
        "drafts",
        || session(&path, 0, drafting, 0, 0),
        |(_, s)| {
            s.truncate(0)?;
            s.append(&prompt(20).repeat(3))?;
            (0..30).map(|_| s.step(None)).collect::<Outcome<Vec<_>>>()
        },
    );
    note("drafts", found, 5);
    let found = each_refusal(
        "score",
        || session(&path, 0, ALONE, 0, 9),
        |(_, s)| {
            let mut logprobs = vec![0.0; 300];
            s.score(&prompt(300), &mut logprobs)?;
            Ok(logprobs.into_iter().map(f32::to_bits).collect::<Vec<_>>())
        },
    );
    note("score", found, 10);
    let lengths = [73, 10, 20, 30, 40, 50];
    let sessions = || {
        let (model, first) = session(&path, 0, ALONE, 70, 3);
        let others = lengths[1..].iter().map(|&n| {
            let session = model.session(ALONE).expect("a session");
            session.append(&prompt(n)).expect("tokens");
            session
        });
        let sessions: Vec<Session> = [first].into_iter().chain(others).collect();
        (model, sessions)
    };
    let found = each_refusal("batch", sessions, |(_, sessions)| {
        sessions.iter().zip(lengths).try_for_each(|(s, n)| s.truncate(n).map(drop))?;
        while sessions.iter().zip(lengths).any(|(s, n)| s.tokens().len() < n + 3) {
            let (_, statuses) = batch(sessions, None)?;
            if let Some(&failed) = statuses.iter().find(|&&status| status < 0) {
                return Err((failed, "one session's".to_string()));
            }
        }
        // How the prompts are cut depends on what is evaluated already; the tokens do not.
        let first_tokens = |(s, n): (&Session, usize)| s.tokens().into_iter().skip(n).take(3).collect::<Vec<_>>();
        Ok(sessions.iter().zip(lengths).map(first_tokens).collect::<Vec<_>>())
    });
    note("batch", found, 10);
    let found = each_refusal(
        "fork",
        || session(&path, 0, Settings::default(), 100, 0),
        |(model, s)| {
            let fork = s.fork()?;
            fork.append(&[3, 4, 5])?;
            let mut bits = vec![0.0f32; model.vocab()];
            fork.logits(&mut bits)?;
            Ok(bits.into_iter().map(f32::to_bits).collect::<Vec<_>>())
        },
    );
    note("fork", found, 2);
    let room = Mutex::new(vec![0; 1 << 20]);
    let found = each_refusal(
        "save",
        || session(&path, 0, ALONE, 100, 0),
        |(_, s)| {
            let mut room = room.lock().expect("one at a time");
            let len = s.save(&mut room)?;
            Ok(room[..len].iter().fold(0u64, |sum, &byte| sum.wrapping_mul(31) + u64::from(byte)))
        },
    );
    note("save", found, 1);
    let mut saved = vec![0; 1 << 20];
    let (model, whole) = session(&path, 0, ALONE, 100, 0);
    let len = whole.save(&mut saved).expect("a saved session");
    let found = each_refusal(
        "restore",
        || session(&path, 0, ALONE, 70, 0),
        |(model, s)| {
            s.load(&saved[..len])?;
            let mut bits = vec![0.0f32; model.vocab()];
            s.logits(&mut bits)?;
            Ok(bits.into_iter().map(f32::to_bits).collect::<Vec<_>>())
        },
    );
    note("restore", found, 3);
    drop((model, whole));
}

/// Sizes that no machine has are refused before anything is done.
#[test]
fn sizes_without_measure_are_refused() {
    let _turn = turn();
    let model = Model::load(&tiny_model(), Settings::default()).expect("the model");
    let session = model.session(ALONE).expect("a session");
    let (token, mut text, mut len) = ([1; 1], [0; 8], 0);
    // SAFETY: what lies behind the one token is not read: the first error is before.
    let outcome = call(|err| unsafe {
        let n = usize::MAX / 8;
        rie::ffi::session::rie_session_append(session.0, token.as_ptr(), n, err)
    });
    assert!(matches!(outcome, Err((RIE_ERR_NO_MEMORY | RIE_ERR_INVALID_ARGUMENT, _))), "{outcome:?}");
    // SAFETY: as above.
    let outcome: Outcome<rie_status> = call(|err| unsafe {
        rie_detokenize(model.0, token.as_ptr(), usize::MAX / 8, 0, text.as_mut_ptr(), 8, &mut len, err)
    });
    assert!(matches!(outcome, Err((RIE_ERR_NO_MEMORY | RIE_ERR_INVALID_ARGUMENT, _))), "{outcome:?}");
    // SAFETY: `len` is writable.
    let outcome = call(|err| unsafe { rie_session_tokens(session.0, std::ptr::null_mut(), 0, &mut len, err) });
    assert_eq!((outcome, len), (Ok(RIE_OK), 0), "nothing was queued");
}
