//! Real models of families other than Llama through the C ABI, against what transformers computes
//! (tests/golden/families).
//!
//! `RIE_TEST_FAMILIES` names the directory that tests/golden/real_families.py made (1.8 GB): too large for the usual run of
//! the tests, which therefore calls it ignored.

#![expect(clippy::print_stdout, reason = "how close each comparison came is worth reading")]

mod common;

use common::parity::{floats, greedy};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

const TOLERANCE: f32 = 2e-4;

#[derive(Deserialize)]
struct Reference {
    /// Every so many of the logits are recorded.
    stride: usize,
    models: BTreeMap<String, Recorded>,
}

#[derive(Deserialize)]
struct Recorded {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    ids: Vec<u32>,
    greedy: Vec<u32>,
    margins: Vec<f32>,
    logits: Vec<f32>,
}

#[test]
#[ignore = "1.8 GB of models, by RIE_TEST_FAMILIES"]
fn large_models_give_the_ids_and_logits_of_transformers() {
    let root = std::env::var_os("RIE_TEST_FAMILIES").expect("RIE_TEST_FAMILIES: the directory of real_families.py");
    let text = std::fs::read_to_string(common::root("tests/golden/families/reference.json")).expect("the reference");
    let reference: Reference = serde_json::from_str(&text).expect("the reference's form");
    for (model, Recorded { prompts }) in &reference.models {
        let mut worst = 0.0f32;
        for prompt in prompts {
            let what = format!("{model}, {}", prompt.name);
            let steps = prompt.greedy.len();
            let run = &greedy(&Path::new(&root).join(model), "--kv f32", steps, &[&prompt.ids])[0];
            let logits = floats(&run.first).into_iter().step_by(reference.stride);
            assert_eq!(logits.len(), prompt.logits.len(), "{what}");
            let off = logits.zip(&prompt.logits).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs()));
            assert!(off <= TOLERANCE, "{what}: logits differ by {off}");
            worst = worst.max(off);
            // A difference at a near tie is legitimate, but what follows is another text.
            let same = run.ids.iter().zip(&prompt.greedy).take_while(|(a, b)| a == b).count();
            let lead = prompt.margins.get(same).copied().unwrap_or(0.0);
            assert!(same == steps || lead <= 20.0 * TOLERANCE, "{what}: id {same} differs, whose lead is {lead}");
            println!("{what}: {} tokens, {same} of {steps} ids the same, logits off by {off:.1e}", prompt.ids.len());
        }
        println!("{model}: logits off by at most {worst:.1e}");
    }
}
