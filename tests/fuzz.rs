//! The targets of the fuzzer (tests/fuzz) on their corpora and on inputs derived from them, the same in every run.
//!
//! With `RIE_UPDATE_SEEDS=1` the inputs that fuzzing begins with are written to the corpora first.
//! `RIE_FUZZ_INPUTS=100000` derives as many inputs: fuzzing without a fuzzer.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

#[path = "fuzz/targets/mod.rs"]
#[expect(unsafe_code, reason = "calls the C ABI")]
mod targets;

/// Inputs derived from each corpus, if the environment does not say how many.
const DERIVED: usize = 200;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target)
}

/// The committed inputs of a target, by name.
fn inputs(target: &str) -> BTreeMap<String, Vec<u8>> {
    let directory = corpus(target);
    let entries = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().display().to_string();
        (name, fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    };
    entries.map(|entry| read(entry.expect("a directory entry").path())).collect()
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// `input` changed in a few places, with pieces of `other`.
fn derived(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = bytes.len().min(at + 1 + random.below(16));
        match random.below(6) {
            0 => drop(bytes.drain(at..end)),
            1 => bytes.truncate(at),
            2 => {
                let from = random.below(other.len() + 1);
                let to = other.len().min(from + 1 + random.below(64));
                bytes.splice(at..at, other[from..to].iter().copied());
            }
            3 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            4 => bytes[at..end].iter_mut().take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
            _ => {
                let digit = b"0129-\"\0{[\xff"[random.below(10)];
                bytes[at..end].iter_mut().take(1).for_each(|byte| *byte = digit);
            }
        }
    }
    bytes
}

fn replay(target: &str) {
    // What one target makes must not be found by another that guesses.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, run, seeds) = targets::ALL.into_iter().find(|(name, ..)| *name == target).expect("a target");
    if std::env::var_os("RIE_UPDATE_SEEDS").is_some() {
        fs::create_dir_all(corpus(target)).expect("a directory");
        seeds().iter().for_each(|(name, seed)| fs::write(corpus(target).join(name), seed).expect("a seed"));
    }
    let inputs = inputs(target);
    assert!(!inputs.is_empty(), "{target} has no corpus");
    let run = |name: &str, input: &[u8]| {
        let failed = std::panic::catch_unwind(|| run(input)).is_err();
        assert!(!failed, "{target}: {name}: {}", input.escape_ascii());
    };
    inputs.iter().for_each(|(name, input)| run(name, input));
    let inputs: Vec<_> = inputs.iter().collect();
    let mut random = Random(7);
    let derive = std::env::var("RIE_FUZZ_INPUTS").map_or(DERIVED, |text| text.parse().expect("a number"));
    for _ in 0..derive {
        let ((name, input), (_, other)) = (inputs[random.below(inputs.len())], inputs[random.below(inputs.len())]);
        run(&format!("derived from {name}"), &derived(input, other, &mut random));
    }
}

#[test]
fn safetensors() {
    replay("safetensors");
}

#[test]
fn config() {
    replay("config");
}

#[test]
fn index() {
    replay("index");
}

#[test]
fn tokenizer() {
    replay("tokenizer");
}

#[test]
fn chat_template() {
    replay("chat_template");
}

#[test]
fn state() {
    replay("state");
}

#[test]
fn calls() {
    replay("calls");
}
