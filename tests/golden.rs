//! Parity with PyTorch, tensor by tensor, on the small random checkpoints of `tests/golden/cases` (made by
//! `tests/golden/generate.py` with transformers), and equality to the bit across tiers, threads and chunks.

#![allow(clippy::print_stdout, reason = "tests report what they measured")]

use rie::checkpoint::{Access, SourcePaths};
use rie::model::{LoadOptions, Model};
use rie::session::{Session, SessionOptions};
use rie::tensor::DType;
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Tensors by name, row-major.
type Tensors = BTreeMap<String, Vec<f32>>;

const PROMPT: usize = 40;

fn cases_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cases")
}

/// Every case that the generator wrote, so none can be left out by mistake.
fn cases() -> Vec<String> {
    let text = std::fs::read(cases_dir().join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let names: Vec<String> = manifest["cases"].as_object().unwrap().keys().cloned().collect();
    assert!(names.len() >= 20, "{names:?}");
    names
}

struct Golden {
    ids: Vec<u32>,
    greedy: Vec<u32>,
    margins: Vec<f32>,
    tensors: Tensors,
}

fn golden(case: &str) -> Golden {
    let bytes = std::fs::read(cases_dir().join(case).join("golden.safetensors")).unwrap();
    let mut tensors = Tensors::new();
    let mut ids = BTreeMap::new();
    for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let words = view.data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
        match view.dtype() {
            safetensors::Dtype::I32 => drop(ids.insert(name, words.map(u32::from_le_bytes).collect::<Vec<_>>())),
            safetensors::Dtype::F32 => drop(tensors.insert(name, words.map(f32::from_le_bytes).collect())),
            other => panic!("{case}: {name} is {other:?}"),
        }
    }
    let margins = tensors.remove("greedy_margin").unwrap();
    Golden { ids: ids["input_ids"].clone(), greedy: ids["greedy"].clone(), margins, tensors }
}

fn load(dir: &Path, options: &LoadOptions) -> Arc<Model> {
    Arc::new(Model::load(dir.to_str().unwrap(), options, None).unwrap_or_else(|e| panic!("{}: {e}", dir.display())))
}

fn session(model: &Arc<Model>, chunk: usize) -> Session {
    let options = SessionOptions { context: 128, kv_type: DType::F32, chunk, ..Default::default() };
    Session::new(model.clone(), &options).unwrap()
}

/// A prompt longer than the length at which its rotary embedding changes: token by token, the first ones would have other
/// angles. So it is evaluated at once, and there are logits after its last token only.
const AT_ONCE: &str = "phi3_longrope_long";

/// Evaluates `ids`, so many at a time, and returns every intermediate tensor, with the logits after each piece.
fn trace(model: &Arc<Model>, ids: &[u32], piece: usize) -> Tensors {
    let seen = Arc::new(Mutex::new(Tensors::new()));
    let mut session = session(model, 0);
    let sink = seen.clone();
    session.set_tap(Some(Box::new(move |name, values| {
        sink.lock().unwrap().entry(name.to_string()).or_default().extend_from_slice(values);
    })));
    for piece in ids.chunks(piece) {
        session.append(piece).unwrap();
        session.logits().unwrap();
    }
    std::mem::take(&mut *seen.lock().unwrap())
}

/// The logits after `ids`, and `steps` greedy tokens (past any end of generation).
fn greedy(session: &mut Session, ids: &[u32], steps: usize) -> (Vec<f32>, Vec<u32>) {
    session.append(ids).unwrap();
    let logits = session.logits().unwrap().to_vec();
    let mut tokens = Vec::new();
    for _ in 0..steps {
        let logits = session.logits().unwrap();
        let best = (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a }).unwrap();
        tokens.push(best as u32);
        session.append(&[best as u32]).unwrap();
    }
    (logits, tokens)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The configs of a case: transformers 4 spelling, and 5 where the generator wrote it.
fn configs(dir: &Path) -> Vec<LoadOptions> {
    let v5 = dir.join("config_v5.json");
    let mut options = vec![LoadOptions::default()];
    if v5.exists() {
        let paths = SourcePaths { config: Some(v5.to_str().unwrap().to_string()), ..Default::default() };
        options.push(LoadOptions { paths, ..Default::default() });
    }
    options
}

#[test]
fn every_intermediate_tensor_equals_pytorch() {
    let mut worst = (0.0f32, String::new());
    // For each family the number of cases and the largest difference of logits.
    let mut families: BTreeMap<String, (usize, f32)> = BTreeMap::new();
    let (mut spelled_twice, mut with_layers) = (0, 0);
    for case in cases() {
        let dir = cases_dir().join(&case);
        let golden = golden(&case);
        assert!(golden.ids.len() >= PROMPT, "{case}");
        let mut traces = Vec::new();
        for options in configs(&dir) {
            let piece = if case == AT_ONCE { PROMPT } else { 1 };
            let model = load(&dir, &options);
            let family = families.entry(model.config().model_type.clone()).or_default();
            family.0 += usize::from(options.paths.config.is_none());
            let seen = trace(&model, &golden.ids, piece);
            with_layers += usize::from(golden.tensors.keys().eq(seen.keys()));
            for (name, expected) in &golden.tensors {
                let got = seen.get(name).unwrap_or_else(|| panic!("{case}: no tensor {name}"));
                let one_row = piece > 1 && matches!(&name[..], "final_norm" | "logits");
                let expected = &expected[if one_row { expected.len() - got.len() } else { 0 }..];
                assert_eq!(got.len(), expected.len(), "{case}: {name}");
                let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let tolerance = if name == "logits" { 5e-5 } else { 1e-5 + 1e-5 * largest };
                let error = got.iter().zip(expected).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(error <= tolerance, "{case}: {name}: off by {error}, tolerance {tolerance}");
                if name == "logits" {
                    family.1 = family.1.max(error);
                }
                if error / tolerance > worst.0 {
                    worst = (error / tolerance, format!("{case}: {name}"));
                }
            }
            traces.push(seen);
        }
        if let [v4, v5] = &traces[..] {
            spelled_twice += 1;
            assert!(v4.iter().all(|(name, v)| bits(v) == bits(&v5[name])), "{case}: v4 and v5 spelling differ");
        }
    }
    // Small cases that only vary the loading keep embeddings, final norm and logits alone.
    assert!(spelled_twice >= 20 && with_layers >= 50, "{spelled_twice} {with_layers}");
    println!("closest to its tolerance: {:.2} of it, {}", worst.0, worst.1);
    for (family, (cases, error)) in families {
        println!("{family}: {cases} cases, logits off by at most {error:.1e}");
    }
}

#[test]
fn greedy_tokens_equal_pytorch() {
    for case in cases() {
        let golden = golden(&case);
        let dir = cases_dir().join(&case);
        let (_, tokens) =
            greedy(&mut session(&load(&dir, &LoadOptions::default()), 0), &golden.ids, golden.greedy.len());
        // A margin that the tolerance could swallow would make the rest meaningless; the generator avoids it.
        assert!(golden.margins.iter().all(|&m| m > 20.0 * 5e-5), "{case}: {:?}", golden.margins);
        assert_eq!(tokens, golden.greedy, "{case}");
    }
}

#[test]
fn the_same_bits_in_every_tier() {
    expect_same_bits(&[(1, 0)]);
}

#[test]
fn the_same_bits_with_any_tier_threads_and_chunks() {
    expect_same_bits(&[(1, 0), (1, 1), (2, 7), (3, 64), (8, 0), (8, 7)]);
}

/// Of each case, in every tier and with each of these pairs of threads and chunks.
fn expect_same_bits(settings: &[(usize, usize)]) {
    for case in cases() {
        let dir = cases_dir().join(&case);
        let ids = golden(&case).ids;
        let mut reference: Option<(Vec<f32>, Vec<u32>)> = None;
        for tier in rie::kernels::supported() {
            for &(threads, chunk) in settings {
                let access = if threads == 2 { Access::Read } else { Access::Map };
                let options = LoadOptions { threads, isa: Some(tier.name()), access, ..Default::default() };
                let result = greedy(&mut session(&load(&dir, &options), chunk), &ids, 8);
                let (logits, tokens) = reference.get_or_insert_with(|| result.clone());
                let what = format!("{case}, {}, {threads} threads, {access:?}, chunks of {chunk}", tier.name());
                assert_eq!(bits(&result.0), bits(logits), "{what}");
                assert_eq!(&result.1, tokens, "{what}");
            }
        }
    }
}

#[test]
fn half_precision_weights_equal_their_f32_upcast_to_the_bit() {
    for case in ["f16", "bf16"] {
        let dir = cases_dir().join(case);
        let upcast = std::env::temp_dir().join(format!("rie-upcast-{case}-{}", std::process::id()));
        std::fs::create_dir_all(&upcast).unwrap();
        std::fs::copy(dir.join("config.json"), upcast.join("config.json")).unwrap();
        let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
        let stored = SafeTensors::deserialize(&bytes).unwrap();
        let wide: Vec<(String, Vec<usize>, Vec<u8>)> = stored
            .tensors()
            .into_iter()
            .map(|(name, view)| {
                let dtype = match view.dtype() {
                    safetensors::Dtype::F16 => DType::F16,
                    safetensors::Dtype::BF16 => DType::BF16,
                    other => panic!("{case}: {name} is {other:?}"),
                };
                let values = view.data().chunks_exact(2).flat_map(|b| dtype.decode(b).to_le_bytes()).collect();
                (name, view.shape().to_vec(), values)
            })
            .collect();
        let views = wide.iter().map(|(name, shape, data)| {
            let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), data).unwrap();
            (name.clone(), view)
        });
        safetensors::serialize_to_file(views, None, &upcast.join("model.safetensors")).unwrap();
        let ids = golden(case).ids;
        let [a, b] = [&dir, &upcast].map(|dir| greedy(&mut session(&load(dir, &LoadOptions::default()), 0), &ids, 30));
        assert_eq!(bits(&a.0), bits(&b.0), "{case}");
        assert_eq!(a.1, b.1, "{case}");
        std::fs::remove_dir_all(&upcast).unwrap();
    }
}
