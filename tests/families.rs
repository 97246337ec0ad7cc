//! What the model families add to Llama, beyond the parity that `golden.rs` shows: the edges of windows, experts that are not
//! read, rotation that changes with the length, batches of every family, and configs that are refused.

use rie::error::Status;
use rie::model::{LoadOptions, Model};
use rie::session::{Progress, Session, SessionOptions, Step, Turn, decode_batch};
use rie::tensor::DType;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use std::path::Path;
use std::sync::Arc;

mod common;

use common::models::{self, bits, logits, session};

/// The window of every case that has one.
const WINDOW: usize = 8;

fn load(dir: &Path) -> Arc<Model> {
    models::load(dir, &models::options(None))
}

/// Tokens that differ from one `series` to the next.
fn tokens(model: &Model, series: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i + 31 * series * (i + 1)) % model.config().vocab_size as u32).collect()
}

/// The prompt of a golden case, and the logits after each of its tokens.
fn golden(case: &str) -> (Vec<u32>, Vec<Vec<f32>>) {
    let bytes = std::fs::read(common::case(case).join("golden.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name| tensors.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
    let ids: Vec<u32> = words("input_ids").into_iter().map(u32::from_le_bytes).collect();
    let logits: Vec<f32> = words("logits").into_iter().map(f32::from_le_bytes).collect();
    let rows = logits.chunks_exact(logits.len() / ids.len()).map(<[f32]>::to_vec).collect();
    (ids, rows)
}

#[test]
fn prompts_that_end_at_the_edge_of_a_window() {
    let cases = ["mistral_window", "qwen2_window", "gemma2", "gemma3", "phi3", "smollm3_window", "mixtral_window"];
    for case in cases {
        let model = load(&common::case(case));
        let (ids, expected) = golden(case);
        for n in [1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 2 * WINDOW + 1] {
            let at_once = logits(&model, &ids[..n], 0);
            for (got, expected) in at_once.iter().zip(&expected[n - 1]) {
                let error = (f32::from_bits(*got) - expected).abs();
                assert!(error <= 5e-5, "{case}: {n} tokens: off by {error}");
            }
            for chunk in [1, 3, WINDOW - 1, WINDOW, WINDOW + 1] {
                assert_eq!(logits(&model, &ids[..n], chunk), at_once, "{case}: {n} tokens in chunks of {chunk}");
            }
        }
        // Across the tiles of the cache, of 64 positions.
        let long = tokens(&model, 1, 150);
        let at_once = logits(&model, &long, 0);
        for chunk in [1, WINDOW + 1, 63, 65] {
            assert_eq!(logits(&model, &long, chunk), at_once, "{case}: 150 tokens in chunks of {chunk}");
        }
    }
}

#[test]
fn a_window_reaches_exactly_so_far() {
    let model = load(&common::case("mistral_window"));
    let layers = model.config().num_hidden_layers;
    // Token i sees i − 7 ..= i, and through each further layer seven more.
    let reach = layers * (WINDOW - 1);
    for n in [reach + 1, 70, 150] {
        let mut far = tokens(&model, 1, n);
        let expected = logits(&model, &far, 0);
        far[..n - 1 - reach].iter_mut().for_each(|token| *token = (*token + 1) % 97);
        assert_eq!(logits(&model, &far, 0), expected, "{n} tokens: one that is out of reach counts");
        far[n - 1 - reach] = (far[n - 1 - reach] + 1) % 97;
        assert_ne!(logits(&model, &far, 0), expected, "{n} tokens: the last in reach does not count");
    }
}

/// Copies a case, its tensors changed in place by name.
fn changed(case: &str, scratch: &str, change: impl Fn(&str, &mut [u8])) -> std::path::PathBuf {
    let (from, to) = (common::case(case), common::scratch(scratch));
    std::fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let tensors: Vec<_> = stored
        .iter()
        .map(|(name, tensor)| {
            let mut data = tensor.data().to_vec();
            change(name, &mut data);
            (name.to_owned(), tensor.dtype(), tensor.shape().to_vec(), data)
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, data)| (name, TensorView::new(*dtype, shape.clone(), data).expect("the same size")));
    safetensors::serialize_to_file(views, None, &to.join("model.safetensors")).unwrap();
    to
}

#[test]
fn experts_that_are_not_chosen_are_not_read() {
    for (case, block, sparse_layers, experts, per_token) in [
        ("mixtral", "block_sparse_moe", vec![0, 1], 5, 2),
        ("qwen3_moe", "mlp", vec![0, 2], 7, 3),
        ("olmoe", "mlp", vec![0, 1], 6, 3),
    ] {
        let token = [11];
        let expected = logits(&load(&common::case(case)), &token, 0);
        for layer in sparse_layers {
            let mut read = 0;
            for expert in 0..experts {
                // NaN in every weight of the expert: read, it would be in the logits.
                let prefix = format!("model.layers.{layer}.{block}.experts.{expert}.");
                let dir = changed(case, "experts", |name, data| {
                    if name.starts_with(&prefix) {
                        data.fill(0xff);
                    }
                });
                let got = logits(&load(&dir), &token, 0);
                let poisoned = got.iter().any(|bits| f32::from_bits(*bits).is_nan());
                assert!(poisoned || got == expected, "{case}: layer {layer}, expert {expert}");
                read += usize::from(poisoned);
            }
            assert_eq!(read, per_token, "{case}: layer {layer}");
        }
    }
}

#[test]
fn a_damaged_router_is_found() {
    let dir = changed("mixtral", "router", |name, data| {
        if name == "model.layers.1.block_sparse_moe.gate.weight" {
            data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
    });
    let mut session = session(&load(&dir), 0);
    session.append(&[1, 2, 3]).unwrap();
    assert_eq!(session.decode_step(None).unwrap_err().status, Status::Numeric);
}

#[test]
fn a_sequence_that_becomes_long_is_rotated_anew() {
    let model = load(&common::case("phi3_longrope"));
    let trained = 64;
    let all = tokens(&model, 3, 90);
    let alone = |n: usize| logits(&model, &all[..n], 0);
    // In portions that do not know what follows.
    let mut portions = session(&model, 0);
    for (i, &token) in all.iter().enumerate() {
        portions.append(&[token]).unwrap();
        portions.eval(0).unwrap();
        if [trained - 1, trained, trained + 1, 90].contains(&(i + 1)) {
            assert_eq!(bits(portions.logits().unwrap()), alone(i + 1), "{} tokens", i + 1);
        }
    }
    // Back again, and forth.
    portions.truncate(trained).unwrap();
    assert_eq!(bits(portions.logits().unwrap()), alone(trained));
    let mut fork = portions.fork().unwrap();
    for session in [&mut portions, &mut fork] {
        session.append(&all[trained..80]).unwrap();
        assert_eq!(bits(session.logits().unwrap()), alone(80));
    }
    // Saved when it has just become long, and when it has not.
    for n in [trained, trained + 1, 90] {
        let mut before = session(&model, 0);
        before.append(&all[..n - 1]).unwrap();
        before.eval(0).unwrap();
        before.append(&all[n - 1..n]).unwrap();
        let saved: Vec<u8> = before.save().unwrap().concat();
        assert_eq!(saved.len(), before.saved_len());
        let mut after = session(&model, 0);
        after.load(&saved).unwrap();
        assert_eq!(bits(after.logits().unwrap()), alone(n), "{n} tokens, saved");
    }
    // Pages that other sessions have computed are those of as long sequences only.
    for n in [60, 90, 50, 80] {
        let mut sharing =
            Session::new(model.clone(), &SessionOptions { context: 256, kv_type: DType::F32, ..Default::default() })
                .unwrap();
        sharing.append(&all[..n]).unwrap();
        assert_eq!(bits(sharing.logits().unwrap()), alone(n), "{n} tokens, shared");
    }
    let mut scored = session(&model, 0);
    scored.append(&all[..60]).unwrap();
    let error = scored.score(&all[60..70], &mut [0.0; 10]).unwrap_err();
    assert!(error.status == Status::Unsupported && error.message.contains("after 4 more tokens"), "{error}");
    scored.score(&all[60..65], &mut [0.0; 5]).unwrap();
}

#[test]
fn every_family_decodes_in_batches_as_alone() {
    for case in std::fs::read_dir(common::root("tests/golden/cases")).unwrap().map(|entry| entry.unwrap().path()) {
        if !case.is_dir() {
            continue;
        }
        let model = load(&case);
        let prompts: Vec<Vec<u32>> = [1, 5, 9, 20].iter().map(|&n| tokens(&model, n as u32, n)).collect();
        let steps = 12;
        let mut together: Vec<Session> = prompts.iter().map(|_| session(&model, 0)).collect();
        together.iter_mut().zip(&prompts).for_each(|(session, prompt)| session.append(prompt).unwrap());
        let done = |session: &Session, prompt: &Vec<u32>| session.tokens().len() == prompt.len() + steps;
        let mut ended = vec![false; prompts.len()];
        while !together.iter().zip(&prompts).zip(&ended).all(|((s, p), ended)| *ended || done(s, p)) {
            let live: Vec<usize> =
                (0..prompts.len()).filter(|&i| !ended[i] && !done(&together[i], &prompts[i])).collect();
            let sessions = together.iter_mut().enumerate().filter(|(i, _)| live.contains(i));
            let turns = sessions.map(|(_, session)| Turn { session, sampler: None }).collect();
            for (i, progress) in live.iter().zip(decode_batch(&model, turns).unwrap()) {
                ended[*i] = matches!(progress.unwrap(), Progress::Step(Step::End(_)));
            }
        }
        for ((together, prompt), ended) in together.iter_mut().zip(&prompts).zip(ended) {
            let mut alone = session(&model, 0);
            alone.append(prompt).unwrap();
            for _ in 0..together.tokens().len() - prompt.len() {
                assert!(matches!(alone.decode_step(None).unwrap(), Step::Token(_)));
            }
            let what = format!("{}: prompt of {}", case.display(), prompt.len());
            assert_eq!(together.tokens(), alone.tokens(), "{what}");
            assert_eq!(bits(together.logits().unwrap()), bits(alone.logits().unwrap()), "{what}, ended: {ended}");
        }
    }
}

#[test]
fn what_no_family_has_is_refused() {
    let refused = |case: &str, changes: &[(&str, serde_json::Value)], fragments: &[&str]| {
        let (from, to) = (common::case(case), common::scratch("refused"));
        let config = std::fs::read(from.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        changes.iter().for_each(|(key, value)| config[*key] = value.clone());
        std::fs::write(to.join("config.json"), config.to_string()).unwrap();
        std::fs::copy(from.join("model.safetensors"), to.join("model.safetensors")).unwrap();
        let error = Model::load(to.to_str().unwrap(), &LoadOptions::default(), None).unwrap_err();
        for fragment in fragments {
            assert!(error.message.contains(fragment), "no {fragment:?} in {error}");
        }
    };
    refused("base", &[("model_type", "falcon".into())], &["config.json", "model_type", "olmoe", "falcon"]);
    refused("mistral_window", &[("hidden_act", "gelu".into())], &["hidden_act", "silu", "gelu"]);
    refused("gemma2", &[("hidden_activation", "gelu".into())], &["gelu_pytorch_tanh", "\"gelu\""]);
    refused("gemma3", &[("attn_logit_softcapping", 50.into())], &["attn_logit_softcapping", "50"]);
    refused("phi3", &[("num_key_value_heads", 1.into())], &["self_attn.qkv_proj.weight", "[80, 48]", "[144, 48]"]);
    refused("mixtral", &[("num_local_experts", 6.into())], &["block_sparse_moe.gate.weight", "[6, 24]", "[5, 24]"]);
}
