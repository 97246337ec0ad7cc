//! The library's results through the ABI, by the C program tests/c/parity.c.

use super::{Program, expect_success};
use std::fmt::Write;
use std::path::Path;
use std::sync::LazyLock;

static PROGRAM: LazyLock<Program> = LazyLock::new(|| Program::test("parity"));

/// What a greedy run gave; floats are bits.
#[derive(Debug, PartialEq, Eq)]
pub struct Greedy {
    /// The ids after the prompt.
    pub ids: Vec<u32>,
    /// The logits after the prompt.
    pub first: Vec<u32>,
    /// The logits after the last id.
    pub last: Vec<u32>,
}

/// Runs each prompt for `steps` greedy steps, with the options of tests/c/parity.c.
pub fn greedy(model: &Path, options: &str, steps: usize, prompts: &[&[u32]]) -> Vec<Greedy> {
    let mut input = String::new();
    for prompt in prompts {
        writeln!(input, "greedy {steps} {}", join(prompt)).expect("a string");
    }
    let output = ask(model, options, &input);
    let mut lines = output.lines();
    let mut next = |name: &str, radix| numbers(lines.next().unwrap_or_default(), name, radix);
    prompts.iter().map(|_| Greedy { ids: next("ids", 10), first: next("first", 16), last: next("last", 16) }).collect()
}

/// The log-probability of each id but the first.
pub fn score(model: &Path, options: &str, ids: &[u32]) -> Vec<f32> {
    let output = ask(model, options, &format!("score {}\n", join(ids)));
    floats(&numbers(output.trim_end(), "logprobs", 16))
}

/// The ids of each text, special tokens parsed and none added.
pub fn tokenize(model: &Path, texts: &[&str]) -> Vec<Vec<u32>> {
    let mut input = String::new();
    for text in texts {
        let hex: String = text.bytes().map(|b| format!("{b:02x}")).collect();
        writeln!(input, "text {hex}").expect("a string");
    }
    ask(model, "", &input).lines().map(|line| numbers(line, "ids", 10)).collect()
}

/// Bits as floats.
pub fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|b| f32::from_bits(*b)).collect()
}

fn ask(model: &Path, options: &str, input: &str) -> String {
    expect_success(PROGRAM.command().arg(model).args(options.split_whitespace()), input)
}

fn join(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

fn numbers(line: &str, name: &str, radix: u32) -> Vec<u32> {
    let rest = line.strip_prefix(name).unwrap_or_else(|| panic!("not a line of '{name}': {line:.80}"));
    rest.split_whitespace().map(|w| u32::from_str_radix(w, radix).expect("a number")).collect()
}
