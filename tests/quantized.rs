//! Models with INT8 and INT4 weights: the same bits however they are computed, saved and loaded again, and what is refused.

#![expect(clippy::print_stdout, reason = "how close each format came is worth reading")]

use rie::error::Status;
use rie::model::Model;
use rie::session::{Session, SessionOptions};
use rie::tensor::{DType, Quant};
use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod common;

use common::models::{
    Metadata, Tensors, bits, decode_saved, distance, expect_same_bits_everywhere, load, logits, options, rewrite,
    session, try_load,
};
use common::{case, copy_dir, root, scratch};

fn tokens(model: &Model, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i + 7 * i + 3) % model.config().vocab_size as u32).collect()
}

fn cases() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root("tests/golden/cases")).unwrap().map(|entry| entry.unwrap().path());
    let cases: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    assert!(cases.len() > 40);
    cases
}

/// Where a model is saved for one test.
fn free_name(test: &str) -> PathBuf {
    scratch(test).join("saved")
}

#[test]
fn every_family_gives_the_same_bits_with_any_tier_threads_chunks_and_batch() {
    for case in cases() {
        for quant in Quant::ALL {
            let prompt = tokens(&load(&case, &options(None)), 45);
            let expected = expect_same_bits_everywhere(&case, &options(Some(quant)), &prompt);
            let what = format!("{} {}", case.display(), quant.name());
            assert_ne!(expected, logits(&load(&case, &options(None)), &prompt, 0), "{what}: nothing was quantized");
            assert_eq!(load(&case, &options(Some(quant))).quant(), Some(quant), "{what}");
        }
    }
}

/// The model of `case` with its matrices as they are after quantizing, in F32.
fn decoded(case: &Path, quant: Quant) -> Arc<Model> {
    let (packed, dir) = (free_name("packed"), scratch("decoded"));
    load(case, &options(Some(quant))).save(packed.to_str().unwrap(), None).unwrap();
    copy_dir(&packed, &dir);
    decode_saved(&dir);
    load(&dir, &options(None))
}

#[test]
fn what_is_computed_is_the_quantized_weights_times_nearly_the_activations() {
    for name in ["base", "gqa9_3", "qwen2", "gemma3", "mixtral", "padded_vocab"] {
        let values = |model: &Arc<Model>| {
            let bits = logits(model, &tokens(model, 30), 0);
            bits.into_iter().map(f32::from_bits).collect::<Vec<_>>()
        };
        let exact = values(&load(&case(name), &options(None)));
        let errors = Quant::ALL.map(|quant| {
            let (got, same_weights) =
                (values(&load(&case(name), &options(Some(quant)))), values(&decoded(&case(name), quant)));
            [distance(&got, &exact), distance(&got, &same_weights)]
        });
        println!("{name}: off by (INT8, INT4) {errors:.3?}, of which by the activations the second");
        // Steps of 1/127 of the greatest of 32; the experts' router, which decides, makes more of them.
        assert!(errors.iter().all(|[_, by_activations]| *by_activations < 0.1), "{name}: {errors:?}");
        assert!(errors[0][0] < 0.2 && errors[0][0] < errors[1][0], "{name}: {errors:?}");
    }
}

#[test]
fn a_saved_model_gives_the_same_bits() {
    for (name, quant) in [
        ("base", Some(Quant::Int4)),
        ("base", Some(Quant::Int8)),
        ("base", None),
        ("bf16", Some(Quant::Int4)),
        ("phi3", Some(Quant::Int4)),
        ("qwen3_moe", Some(Quant::Int8)),
        ("gemma2", Some(Quant::Int4)),
    ] {
        let (model, saved) = (load(&case(name), &options(quant)), free_name("saves"));
        let mut heard = Vec::new();
        model
            .save(
                saved.to_str().unwrap(),
                Some(&mut |done, total| {
                    heard.push((done, total));
                    false
                }),
            )
            .unwrap();
        assert_eq!(heard.last(), Some(&(model.weight_bytes(), model.weight_bytes())), "{name}");
        let left: Vec<_> =
            std::fs::read_dir(saved.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["saved"], "{name}");
        let again = load(&saved, &options(None));
        let prompt = tokens(&model, 20);
        assert_eq!(logits(&again, &prompt, 0), logits(&model, &prompt, 0), "{name} {quant:?}");
        assert_eq!(again.fingerprint(), model.fingerprint(), "{name}");
        assert_eq!((again.parameters(), again.weight_bytes()), (model.parameters(), model.weight_bytes()), "{name}");
        assert_eq!(again.quant(), quant, "{name}");
        // Its own format may be asked for; another cannot be had any more.
        if let Some(quant) = quant {
            assert_eq!(load(&saved, &options(Some(quant))).fingerprint(), model.fingerprint());
            let other = if quant == Quant::Int4 { Quant::Int8 } else { Quant::Int4 };
            let error = try_load(&saved, &options(Some(other))).unwrap_err();
            assert!(error.status == Status::Unsupported && error.message.contains(quant.name()), "{error}");
        }
        // What was saved can be saved again, to the same bytes.
        let twice = free_name("saves-again");
        again.save(twice.to_str().unwrap(), None).unwrap();
        for file in ["model.safetensors", "config.json"] {
            assert!(
                std::fs::read(saved.join(file)).unwrap() == std::fs::read(twice.join(file)).unwrap(),
                "{name}: {file}"
            );
        }
    }
}

#[test]
fn a_state_goes_from_the_quantized_model_to_the_saved_one() {
    let (model, saved) = (load(&case("base"), &options(Some(Quant::Int8))), free_name("states"));
    model.save(saved.to_str().unwrap(), None).unwrap();
    let mut before = session(&model, 0);
    before.append(&tokens(&model, 70)).unwrap();
    let expected = bits(before.logits().unwrap());
    let state = before.save().unwrap().concat();
    let mut after = session(&load(&saved, &options(None)), 0);
    after.load(&state).unwrap();
    assert_eq!(bits(after.logits().unwrap()), expected);
    // Another format computes other keys and values.
    let error = session(&load(&case("base"), &options(Some(Quant::Int4))), 0).load(&state).unwrap_err();
    assert_eq!(error.status, Status::Mismatch, "{error}");
}

#[test]
fn the_small_files_go_along() {
    let from = scratch("companions");
    copy_dir(&root("tests/golden/tiny_model/model"), &from);
    std::fs::write(from.join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    std::fs::write(from.join("notes.txt"), "not the model's").unwrap();
    let saved = free_name("companions-saved");
    load(&from, &options(Some(Quant::Int4))).save(saved.to_str().unwrap(), None).unwrap();
    for file in ["config.json", "tokenizer.json", "chat_template.jinja"] {
        assert_eq!(std::fs::read(saved.join(file)).unwrap(), std::fs::read(from.join(file)).unwrap(), "{file}");
    }
    assert!(!saved.join("notes.txt").exists());
    let again = load(&saved, &options(None));
    assert!(again.tokenizer().is_ok());
}

#[test]
fn saving_never_leaves_half_a_model() {
    let model = load(&case("base"), &options(Some(Quant::Int8)));
    let saved = free_name("half");
    let (path, parent) = (saved.to_str().unwrap(), saved.parent().unwrap());
    let entries = || std::fs::read_dir(parent).unwrap().count();
    let error = model.save(path, Some(&mut |_, _| true)).unwrap_err();
    assert!(error.status == Status::Cancelled && entries() == 0, "{error}");
    std::fs::write(&saved, "something").unwrap();
    let error = model.save(path, None).unwrap_err();
    assert!(error.status == Status::Io && error.message.contains("something else") && entries() == 1, "{error}");
    assert_eq!(std::fs::read(&saved).unwrap(), b"something");
    std::fs::remove_file(&saved).unwrap();
    std::fs::create_dir(&saved).unwrap();
    std::fs::write(saved.join("mine"), "precious").unwrap();
    let error = model.save(path, None).unwrap_err();
    assert!(error.status == Status::Io && error.message.contains("files in it") && entries() == 1, "{error}");
    assert_eq!(std::fs::read(saved.join("mine")).unwrap(), b"precious");
    std::fs::remove_file(saved.join("mine")).unwrap();
    model.save(path, None).unwrap(); // into the empty directory
    assert!(load(&saved, &options(None)).quant().is_some() && entries() == 1);
    let nowhere = parent.join("no/such/place");
    assert_eq!(model.save(nowhere.to_str().unwrap(), None).unwrap_err().status, Status::Io);
    assert_eq!(model.save("..", None).unwrap_err().status, Status::Io);
}

#[test]
fn weights_that_cannot_be_quantized_are_named() {
    let dir = scratch("unfit");
    let refused = |value: f32, fragments: &[&str]| {
        copy_dir(&case("base"), &dir);
        let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
        let stored = SafeTensors::deserialize(&bytes).unwrap();
        let name = "model.layers.1.mlp.up_proj.weight";
        let mut data = stored.tensor(name).unwrap().data().to_vec();
        let at = 4 * (stored.tensor(name).unwrap().shape()[1] * 3 + 5); // row 3, input 5
        data[at..at + 4].copy_from_slice(&value.to_le_bytes());
        rewrite(&dir, |tensors, _| tensors.get_mut(name).unwrap().2 = data.clone());
        for quant in Quant::ALL {
            let error = try_load(&dir, &options(Some(quant))).unwrap_err();
            assert_eq!(error.status, Status::Tensor, "{error}");
            for fragment in fragments.iter().chain(&[name]) {
                assert!(error.message.contains(fragment), "no {fragment:?} in {error}");
            }
        }
        load(&dir, &options(None)); // as it is, it is the model's own affair
    };
    refused(f32::NAN, &["[3][5]", "NaN"]);
    refused(f32::INFINITY, &["[3][5]", "inf"]);
    refused(1e30, &["beyond"]);
}

const Q: &str = "model.layers.0.self_attn.q_proj.weight";

#[test]
fn damaged_saved_files_are_refused() {
    let saved = free_name("damage");
    load(&case("base"), &options(Some(Quant::Int4))).save(saved.to_str().unwrap(), None).unwrap();
    let refused = |status: Status, fragments: &[&str], change: &dyn Fn(&mut Tensors, &mut Metadata)| {
        let dir = scratch("damaged");
        copy_dir(&saved, &dir);
        rewrite(&dir, change);
        let error = try_load(&dir, &options(None)).expect_err(fragments[0]);
        assert_eq!(error.status, status, "{error}");
        for fragment in fragments {
            assert!(error.message.contains(fragment), "no {fragment:?} in {error}");
        }
    };
    let key = &format!("rie.{Q}")[..];
    let set = |key: &str, value: &str| {
        let (key, value) = (key.to_string(), value.to_string());
        move |_: &mut Tensors, metadata: &mut Metadata| drop(metadata.insert(key.clone(), value.clone()))
    };
    refused(Status::Unsupported, &["model.safetensors", "rie.layout", "version 1", "found 2"], &set("rie.layout", "2"));
    refused(Status::Unsupported, &["rie.layout", "version 1", "one"], &set("rie.layout", "one"));
    refused(Status::Format, &["quantized", "no rie.layout"], &|_, metadata| drop(metadata.remove("rie.layout")));
    for text in [
        "",
        "INT4",
        "INT4 48",
        "INT4 48 x",
        "INT4 48 48 47",
        "INT4 48 48 48 48",
        "INT5 48 48",
        "INT4 0 48",
        "INT4 48 -1",
        "int4 48 48",
    ] {
        refused(Status::Format, &[Q, "expected INT8 or INT4 or INT4_ASYMMETRIC"], &set(key, text));
    }
    refused(Status::Format, &[Q, "expected U8 [6, 544]", "found U8 [6, 288]"], &set(key, "INT8 48 48"));
    refused(Status::Format, &[Q, "expected U8"], &set(key, "INT4 4800 48"));
    refused(Status::Format, &[Q, "expected U8"], &set(key, "INT4 48 18446744073709551615"));
    refused(Status::Tensor, &[Q, "expected shape [48, 48]", "[41, 48]"], &set(key, "INT4 41 48"));
    // Taken for what the bytes are, it is no weight.
    refused(Status::Tensor, &[Q, "U8"], &|_, metadata| drop(metadata.remove(key)));
    refused(Status::Format, &[Q, "expected U8"], &|tensors, _| {
        let (_, _, data) = &tensors[Q];
        let values = (Dtype::F32, vec![data.len() / 4], data.clone());
        tensors.insert(Q.to_string(), values);
    });
    let bytes = std::fs::read(saved.join("model.safetensors")).unwrap();
    let dir = scratch("truncated");
    copy_dir(&saved, &dir);
    for length in [0, 7, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(dir.join("model.safetensors"), &bytes[..length]).unwrap();
        assert_eq!(try_load(&dir, &options(None)).unwrap_err().status, Status::Format, "{length} bytes");
    }
}

#[test]
fn a_damaged_scale_is_found_when_it_is_used() {
    let dir = free_name("scale");
    load(&case("base"), &options(Some(Quant::Int8))).save(dir.to_str().unwrap(), None).unwrap();
    rewrite(&dir, |tensors, _| tensors.get_mut(Q).unwrap().2[..2].copy_from_slice(&[0xff, 0x7f])); // NaN
    let mut session = session(&load(&dir, &options(None)), 0);
    session.append(&[1, 2, 3]).unwrap();
    assert_eq!(session.decode_step(None).unwrap_err().status, Status::Numeric);
}

#[test]
fn both_caches_and_loads_can_be_cancelled() {
    let model = load(&case("base"), &options(Some(Quant::Int4)));
    for kv_type in [DType::F16, DType::F32] {
        let mut session = Session::new(model.clone(), &SessionOptions { kv_type, ..Default::default() }).unwrap();
        session.append(&tokens(&model, 9)).unwrap();
        assert!(session.logits().unwrap().iter().all(|v| v.is_finite()));
    }
    let path = case("base");
    let cancelled = Model::load(path.to_str().unwrap(), &options(Some(Quant::Int4)), Some(&mut |_, _| true));
    assert_eq!(cancelled.unwrap_err().status, Status::Cancelled);
}
