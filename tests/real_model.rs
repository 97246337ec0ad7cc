//! SmolLM2-135M-Instruct through the C ABI against what transformers computes (tests/golden/smollm2).
//!
//! `RIE_TEST_SMOLLM2` names the directory that tests/golden/smollm2.py made, with f32/ and bf16/ in it.

#![expect(clippy::print_stdout, reason = "how close each comparison came is worth reading")]

mod common;

use common::parity::{Greedy, floats, greedy, score, tokenize};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::Deserialize;
use std::path::{Path, PathBuf};

const TOLERANCE: f32 = 1e-3;

#[derive(Deserialize)]
struct Reference {
    prompts: Vec<Prompt>,
    long: Prompt,
    bf16: Prompt,
    score: Score,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    text: String,
    ids: Vec<u32>,
    greedy: Vec<u32>,
    margins: Vec<f32>,
}

#[derive(Deserialize)]
struct Score {
    text: String,
    ids: Vec<u32>,
    logprobs: Vec<f64>,
    perplexity: f64,
}

fn reference() -> Reference {
    let path = common::root("tests/golden/smollm2/reference.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).expect("the reference's form")
}

fn reference_logits(name: &str) -> Option<Vec<f32>> {
    let path = common::root("tests/golden/smollm2/logits.safetensors");
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let tensors = SafeTensors::deserialize(&bytes).expect("logits.safetensors");
    let tensor = tensors.tensor(name).ok()?;
    assert_eq!(tensor.dtype(), Dtype::F32);
    Some(tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes"))).collect())
}

fn model(dtype: &str) -> PathBuf {
    let root = std::env::var_os("RIE_TEST_SMOLLM2").expect("RIE_TEST_SMOLLM2 is not set");
    let path = Path::new(&root).join(dtype);
    assert!(path.join("model.safetensors").is_file(), "RIE_TEST_SMOLLM2: {} holds no model", path.display());
    path
}

/// Fails if an id differs where the reference's margin is clear. A difference at a near tie is legitimate, but what
/// follows is another text, so that the comparison ends there; it returns how many ids were compared.
fn compare_ids(name: &str, found: &[u32], prompt: &Prompt) -> usize {
    assert_eq!(found.len(), prompt.greedy.len(), "{name}");
    let Some(at) = (0..found.len()).find(|&i| found[i] != prompt.greedy[i]) else { return found.len() };
    let margin = prompt.margins[at];
    assert!(
        margin <= 20.0 * TOLERANCE,
        "{name}: step {at}: id {} instead of {}, whose lead is {margin}",
        found[at],
        prompt.greedy[at]
    );
    println!("{name}: another token at step {at} of {}, a near tie (lead {margin})", found.len());
    at
}

fn compare_logits(name: &str, found: &Greedy) -> bool {
    let Some(wanted) = reference_logits(name) else { return false };
    assert_eq!(found.first.len(), wanted.len(), "{name}");
    let differences = floats(&found.first).into_iter().zip(wanted).map(|(a, b)| (a - b).abs());
    let worst = differences.fold(0.0, |worst: f32, d| if d.is_nan() { f32::INFINITY } else { worst.max(d) });
    println!("{name}: logits differ by at most {worst:.2e}");
    assert!(worst <= TOLERANCE, "{name}: logits differ by {worst}");
    true
}

#[test]
#[ignore = "needs RIE_TEST_SMOLLM2"]
fn the_same_ids_and_logits_as_transformers() {
    let reference = reference();
    let prompts: Vec<&[u32]> = reference.prompts.iter().map(|p| &p.ids[..]).collect();
    assert!(prompts.len() >= 8);
    let runs = greedy(&model("f32"), "--kv f32", 64, &prompts);
    let (mut same, mut with_logits) = (0, 0);
    for (prompt, run) in reference.prompts.iter().zip(&runs) {
        same += usize::from(compare_ids(&prompt.name, &run.ids, prompt) == 64);
        with_logits += usize::from(compare_logits(&format!("f32.{}", prompt.name), run));
    }
    println!("{same} of {} prompts: the same 64 ids", prompts.len());
    assert!(same >= 8 && with_logits >= 3);
}

#[test]
#[ignore = "needs RIE_TEST_SMOLLM2"]
fn the_same_256_ids_as_transformers() {
    let long = reference().long;
    let run = greedy(&model("f32"), "--kv f32", 256, &[&long.ids]);
    compare_ids("long", &run[0].ids, &long);
}

#[test]
#[ignore = "needs RIE_TEST_SMOLLM2"]
fn bf16_weights_as_in_transformers() {
    let prompt = reference().bf16;
    let run = greedy(&model("bf16"), "--kv f32", 64, &[&prompt.ids]);
    compare_ids("bf16", &run[0].ids, &prompt);
    assert!(compare_logits(&format!("bf16.{}", prompt.name), &run[0]));
}

#[test]
#[ignore = "needs RIE_TEST_SMOLLM2"]
fn the_same_perplexity_as_transformers() {
    let wanted = reference().score;
    let logprobs = score(&model("f32"), "--kv f32", &wanted.ids);
    assert_eq!(logprobs.len(), wanted.logprobs.len());
    let mean = logprobs.iter().map(|x| f64::from(*x)).sum::<f64>() / logprobs.len() as f64;
    let perplexity = (-mean).exp();
    let off = (perplexity / wanted.perplexity - 1.0).abs();
    println!("perplexity {perplexity:.6}, reference {:.6}: off by {:.2e}", wanted.perplexity, off);
    assert!(off < 1e-4, "perplexity {perplexity} instead of {}", wanted.perplexity);
    for (i, (found, wanted)) in logprobs.iter().zip(&wanted.logprobs).enumerate() {
        assert!((f64::from(*found) - wanted).abs() < 2e-3, "token {i}: log-probability {found} instead of {wanted}");
    }
}

#[test]
#[ignore = "needs RIE_TEST_SMOLLM2"]
fn the_same_tokens_as_hugging_face() {
    let reference = reference();
    let mut texts: Vec<&str> = reference.prompts.iter().map(|p| &p.text[..]).collect();
    texts.extend([&reference.long.text[..], &reference.score.text]);
    let mut wanted: Vec<&Vec<u32>> = reference.prompts.iter().map(|p| &p.ids).collect();
    wanted.extend([&reference.long.ids, &reference.score.ids]);
    for ((text, found), wanted) in texts.iter().zip(tokenize(&model("f32"), &texts)).zip(wanted) {
        assert_eq!(&found, wanted, "{text}");
    }
}

/// The results of every row of options must be the same to the bit.
fn expect_same_bits(model: &Path, options: &[&str], steps: usize, prompts: &[&[u32]]) {
    let first = greedy(model, options[0], steps, prompts);
    for other in &options[1..] {
        assert!(greedy(model, other, steps, prompts) == first, "'{other}' and '{}' differ", options[0]);
    }
}

#[test]
#[ignore = "needs RIE_TEST_SMOLLM2"]
fn the_same_bits_with_any_number_of_threads() {
    let chat = reference().prompts.pop().expect("a prompt").ids;
    for kv in ["f32", "f16"] {
        let options = [1, 2, 3, 8].map(|n| format!("--kv {kv} --threads {n}"));
        expect_same_bits(&model("bf16"), &options.each_ref().map(|s| &s[..]), 8, &[&chat]);
    }
}

#[test]
#[ignore = "needs RIE_TEST_SMOLLM2"]
fn the_same_bits_with_any_chunks() {
    let ids = &reference().score.ids[..150];
    for kv in ["f32", "f16"] {
        let options = [1, 7, 64, 4096].map(|n| format!("--kv {kv} --chunk {n}"));
        expect_same_bits(&model("bf16"), &options.each_ref().map(|s| &s[..]), 4, &[ids]);
    }
}

#[test]
#[ignore = "needs RIE_TEST_SMOLLM2"]
fn the_same_bits_in_scalar_and_the_best_tier() {
    let ids = &reference().score.ids[..9];
    for dtype in ["f32", "bf16"] {
        expect_same_bits(&model(dtype), &["--kv f16 --isa scalar", "--kv f16 --isa auto"], 2, &[ids]);
    }
}

#[test]
#[ignore = "needs RIE_TEST_SMOLLM2"]
fn bf16_equals_its_upcast_to_the_bit() {
    let ids = &reference().score.ids[..70];
    let bf16 = model("bf16");
    let f32 = common::scratch("smollm2-upcast");
    upcast(&bf16, &f32);
    let run = |model: &Path| greedy(model, "--kv f32", 8, &[ids]);
    let same = run(&bf16) == run(&f32);
    std::fs::remove_dir_all(&f32).expect("half a gigabyte removed");
    assert!(same, "a BF16 model and its F32 upcast differ");
}

#[test]
#[ignore = "needs RIE_TEST_SMOLLM2"]
fn memory_is_weights_cache_and_64_mib_at_most() {
    for dtype in ["f32", "bf16"] {
        common::expect_success(common::Program::test("memory").command().arg(model(dtype)), "");
    }
    for weights in ["int8", "int4"] {
        common::expect_success(common::Program::test("memory").command().arg(model("f32")).arg(weights), "");
    }
    for weights in ["as-is", "int4"] {
        common::expect_success(common::Program::test("memory").command().arg(model("f32")).args([weights, "read"]), "");
    }
}

/// Writes the model with every BF16 tensor as F32.
fn upcast(from: &Path, to: &Path) {
    for name in ["config.json", "tokenizer.json"] {
        std::fs::copy(from.join(name), to.join(name)).expect(name);
    }
    let bytes = std::fs::read(from.join("model.safetensors")).expect("model.safetensors");
    let tensors = SafeTensors::deserialize(&bytes).expect("model.safetensors");
    let wide: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, tensor)| {
            assert_eq!(tensor.dtype(), Dtype::BF16, "{name}");
            let data = tensor.data().chunks_exact(2).flat_map(|b| [0, 0, b[0], b[1]]).collect();
            (name.to_owned(), tensor.shape().to_vec(), data)
        })
        .collect();
    let views = wide.iter().map(|(name, shape, data)| {
        (name, TensorView::new(Dtype::F32, shape.clone(), data).expect("as many bytes as the shape says"))
    });
    safetensors::serialize_to_file(views, None, &to.join("model.safetensors")).expect("the F32 model");
}
