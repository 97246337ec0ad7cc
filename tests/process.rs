//! The process that the library lives in, from C: its threads, files, signals, environment, memory and stack, its forks and its
//! end; and a host with a thread pool of its own.

mod common;

use common::{Program, case, copy_dir, root, run, scratch, text, tiny_model};
use rayon::prelude::*;
use rie::model::{LoadOptions, Model};
use rie::session::{Session, SessionOptions, Step};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Runs a program of tests/c, which prints what is not as it should be.
fn expect_ok(command: &mut Command) {
    let output = run(command, "");
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && printed.ends_with("ok\n"), "{}\n{printed}\n{errors}", output.status);
    assert_eq!(errors, "", "something was printed to stderr");
}

/// A directory for LOCPATH that has a locale with a decimal comma.
fn locales() -> PathBuf {
    let dir = scratch("locales");
    let output = run(Command::new("localedef").args(["-i", "de_DE", "-f", "UTF-8"]).arg(dir.join("de_DE.UTF-8")), "");
    assert!(dir.join("de_DE.UTF-8").is_dir(), "localedef and its sources are needed: {}", text(&output.stderr));
    dir
}

#[test]
fn the_process_is_left_alone() {
    let program = Program::test("process");
    expect_ok(program.command().arg(tiny_model()).arg(scratch("process")).env("LOCPATH", locales()));
}

#[test]
fn forks_and_exits() {
    expect_ok(Program::test("fork").command().arg(tiny_model()).arg(case("base")));
}

#[test]
fn crowds_and_leftovers() {
    expect_ok(Program::test("crowd").command().arg(tiny_model()).arg(case("base")));
}

#[test]
fn the_library_is_opened_and_closed() {
    let program = Program::test("library");
    expect_ok(program.command().arg(program.library()).arg(case("base")));
}

#[test]
fn memory_runs_out() {
    expect_ok(Program::test("limits").command().arg(tiny_model()));
}

/// The model `from` with one of its files replaced.
fn with_file(from: &Path, name: &str, file: &str, contents: &str) -> PathBuf {
    let dir = scratch(name);
    copy_dir(from, &dir);
    std::fs::write(dir.join(file), contents).expect("a file");
    dir
}

/// `open` n times, `middle`, `close` n times.
fn nested(open: &str, middle: &str, close: &str, n: usize) -> String {
    [open.repeat(n), middle.to_string(), close.repeat(n)].concat()
}

/// Models whose files are nested as deep as the parsers let through, and deeper.
fn hostile_models() -> Vec<PathBuf> {
    let model = tiny_model();
    let read = |file: &str| std::fs::read_to_string(model.join(file)).expect("a file");
    let (config, tokenizer) = (read("config.json"), read("tokenizer.json"));
    let mut models = Vec::new();
    for depth in [100, 126, 5000] {
        let deep = format!("{{\"x\": {}, {}", nested("[", "", "]", depth), config.trim_start().trim_start_matches('{'));
        models.push(with_file(&model, &format!("deep-config-{depth}"), "config.json", &deep));
        let deep = format!(
            "{{\"x\": {}, {}",
            nested("{\"a\":", "1", "}", depth),
            tokenizer.trim_start().trim_start_matches('{')
        );
        models.push(with_file(&model, &format!("deep-tokenizer-{depth}"), "tokenizer.json", &deep));
    }
    let mut parsed: serde_json::Value = serde_json::from_str(&tokenizer).expect("JSON");
    let patterns = [
        nested("(", "a|b", ")+", 60),
        nested("(?:a|", "b", ")*", 240),
        nested("(?=", "a", ")", 200),
        "(a|b|ab)*c".into(),
    ];
    for (i, pattern) in patterns.iter().enumerate() {
        parsed["pre_tokenizer"] = serde_json::json!({
            "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false
        });
        models.push(with_file(&model, &format!("deep-pattern-{i}"), "tokenizer.json", &parsed.to_string()));
    }
    for depth in [10, 16, 60] {
        let mut normalizer = serde_json::json!({"type": "NFC"});
        for _ in 0..depth {
            normalizer = serde_json::json!({"type": "Sequence", "normalizers": [normalizer]});
        }
        let mut parsed: serde_json::Value = serde_json::from_str(&tokenizer).expect("JSON");
        parsed["normalizer"] = normalizer;
        models.push(with_file(&model, &format!("deep-normalizer-{depth}"), "tokenizer.json", &parsed.to_string()));
    }
    models
}

#[test]
fn a_small_stack_is_enough() {
    let program = Program::test("stack");
    expect_ok(program.command().arg(tiny_model()).arg(scratch("stack")).args(hostile_models()));
}

#[test]
#[ignore = "needs the tokenizers of tests/golden/tokenizers.sh; CI runs it"]
fn a_small_stack_is_enough_for_real_tokenizers() {
    let directory = std::env::var_os("RIE_TEST_TOKENIZERS").expect("RIE_TEST_TOKENIZERS: a directory");
    let read = std::fs::read_dir(&directory).expect("the tokenizers").map(|entry| entry.expect("an entry").path());
    let tokenizers: Vec<PathBuf> = read.map(|dir| dir.join("tokenizer.json")).filter(|file| file.is_file()).collect();
    assert!(!tokenizers.is_empty(), "{} has no tokenizers", directory.display());
    let models: Vec<PathBuf> = tokenizers
        .iter()
        .enumerate()
        .map(|(i, file)| {
            let dir = scratch(&format!("stack-tokenizer-{i}"));
            copy_dir(&case("base"), &dir);
            std::fs::copy(file, dir.join("tokenizer.json")).expect("a tokenizer");
            dir
        })
        .collect();
    expect_ok(Program::test("stack").command().arg(tiny_model()).arg(scratch("stack-real")).args(models));
}

/// Greedy tokens of a session of its own.
fn tokens(model: &Arc<Model>, first: u32) -> Vec<u32> {
    let mut session = Session::new(Arc::clone(model), &SessionOptions::default()).expect("a session");
    session.append(&[first, 5, 9]).expect("tokens");
    let step = |_| match session.decode_step(None).expect("a step") {
        Step::Token(token) | Step::End(token) => token,
    };
    (0..20).map(step).collect()
}

/// A step waits for no pool but the library's own: not even with all workers of the host's inside steps.
#[test]
fn a_host_inside_its_own_rayon_pool() {
    let path = root("tests/golden/cases/base");
    let load =
        |threads| Model::load(path.to_str().expect("UTF-8"), &LoadOptions { threads, ..Default::default() }, None);
    let model = Arc::new(load(2).expect("the model"));
    let alone: Vec<_> = (0..24).map(|first| tokens(&model, first)).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("a pool");
    let together: Vec<_> = pool.install(|| (0..24).into_par_iter().map(|first| tokens(&model, first)).collect());
    assert_eq!(together, alone);
    let loaded: Vec<_> = pool.install(|| {
        (0..6).into_par_iter().map(|n| tokens(&Arc::new(load(1 + n % 3).expect("the model")), n as u32)).collect()
    });
    assert_eq!(loaded, alone[..6]);
    let nested: Vec<_> = pool
        .install(|| (0..8).into_par_iter().map(|n| rayon::join(|| tokens(&model, n), || tokens(&model, n))).collect());
    nested.iter().enumerate().for_each(|(n, (a, b))| assert!(a == &alone[n] && b == &alone[n]));
}
