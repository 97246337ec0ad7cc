//! What is fuzzed: a function for each target, from any bytes to a run through the C ABI that must keep its promises.
//!
//! libFuzzer calls them from `fuzz_targets/`, and `tests/fuzz.rs` replays the corpora through them. A broken promise is
//! a panic here; what happens in the library itself never is one, as it catches its own.

pub mod abi;
pub mod model;
pub mod reader;

pub mod calls;
pub mod chat_template;
pub mod config;
pub mod index;
pub mod safetensors;
pub mod state;
pub mod tokenizer;

/// A target: its name, what runs an input, and what gives the inputs to begin with.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<(String, Vec<u8>)>);

/// Every target.
pub const ALL: [Target; 7] = [
    ("safetensors", safetensors::run, safetensors::seeds),
    ("config", config::run, config::seeds),
    ("index", index::run, index::seeds),
    ("tokenizer", tokenizer::run, tokenizer::seeds),
    ("chat_template", chat_template::run, chat_template::seeds),
    ("state", state::run, state::seeds),
    ("calls", calls::run, calls::seeds),
];
