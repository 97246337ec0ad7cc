//! Checkpoints that GPTQ and AWQ have quantized, `tests/golden/prequantized` (made by `tests/golden/prequantized.py`): their
//! weights to the bit, what they compute, saved and loaded again, and hostile ones.

#![expect(clippy::print_stdout, reason = "how close each layout came is worth reading")]

use rie::checkpoint::{Source, SourcePaths, inspect};
use rie::error::Status;
use rie::model::{LoadOptions, Model};
use rie::tensor::Quant;
use safetensors::Dtype;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod common;

use common::models::{
    Metadata, Tensors, decode_saved, distance, expect_same_bits_everywhere, load, logits, options, read_tensors,
    rewrite, session, try_load,
};
use common::{copy_dir, root, scratch};

fn case(name: &str) -> PathBuf {
    root("tests/golden/prequantized").join(name)
}

fn cases() -> Vec<String> {
    let entries = std::fs::read_dir(case("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let cases: Vec<_> = entries.collect();
    assert!(cases.len() >= 9, "{cases:?}");
    cases
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn prompt(name: &str) -> Vec<u32> {
    let (golden, _) = read_tensors(&case(name).join("golden.safetensors"));
    golden["input_ids"].2.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// The logits after each token of the prompt.
fn all_logits(model: &Arc<Model>, prompt: &[u32]) -> Vec<f32> {
    let mut session = session(model, 0);
    let after = |token: &u32| {
        session.append(&[*token]).unwrap();
        session.logits().unwrap().to_vec()
    };
    prompt.iter().flat_map(after).collect()
}

/// Saves the model of a case to a directory of this name.
fn saved(name: &str, test: &str) -> PathBuf {
    let dir = scratch(test).join("saved");
    load(&case(name), &options(None)).save(dir.to_str().unwrap(), None).unwrap();
    dir
}

/// The greatest difference.
fn farthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The mean over rows of the Kullback–Leibler divergence of the softmax of `got` from that of `expected`.
fn divergence(expected: &[f32], got: &[f32], width: usize) -> f64 {
    let softmax = |row: &[f32]| {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        let exp: Vec<f64> = row.iter().map(|v| f64::from(v - most).exp()).collect();
        let sum: f64 = exp.iter().sum();
        exp.into_iter().map(move |v| v / sum).collect::<Vec<_>>()
    };
    let rows = expected.chunks(width).zip(got.chunks(width));
    let of_row = |(p, q): (&[f32], &[f32])| {
        softmax(p).iter().zip(softmax(q)).map(|(p, q)| p * (p / q).ln()).sum::<f64>() / (expected.len() / width) as f64
    };
    rows.map(of_row).sum()
}

#[test]
fn weights_are_those_of_the_file_to_the_bit() {
    for name in cases() {
        let dir = saved(&name, "exact");
        decode_saved(&dir);
        let (golden, _) = read_tensors(&case(&name).join("golden.safetensors"));
        let (got, _) = read_tensors(&dir.join("model.safetensors"));
        let weights: Vec<_> = golden.iter().filter(|(key, _)| key.ends_with(".weight")).collect();
        assert!(!weights.is_empty(), "{name}");
        for (key, expected) in weights {
            assert_eq!(got.get(key), Some(expected), "{name}: {key}");
        }
        // All of them: what the float model computes is what transformers computes.
        let error = farthest(&all_logits(&load(&dir, &options(None)), &prompt(&name)), &floats(&golden["logits"].2));
        assert!(error <= 5e-5, "{name}: off by {error}");
    }
}

#[test]
fn logits_match_the_references() {
    for name in cases() {
        let (golden, _) = read_tensors(&case(&name).join("golden.safetensors"));
        let [exact, rounded] = ["logits", "logits_rounded"].map(|key| floats(&golden[key].2));
        let width = golden["logits"].1[1];
        let got = all_logits(&load(&case(&name), &options(None)), &prompt(&name));
        let (kl, off) = (divergence(&exact, &got, width), farthest(&got, &exact));
        let (close, same) = (distance(&got, &rounded), farthest(&got, &rounded));
        let of_rounding = divergence(&exact, &rounded, width);
        println!(
            "{name}: from float32: KL {kl:.2e} (by rounding inputs alone {of_rounding:.2e}), at most {off:.3}; from the same \
             rounding: {close:.1e} of its length, at most {same:.1e}"
        );
        // A sum that is off in its last bit may round an input to the next of its 255 values.
        assert!(close < 2e-3 && close < 0.1 * distance(&got, &exact), "{name}: {close}");
        assert!(kl < 2e-3 && kl < 1.5 * of_rounding, "{name}: {kl}, {of_rounding}");
    }
}

#[test]
fn the_same_bits_with_any_tier_threads_chunks_and_batch() {
    for name in cases() {
        let expected = expect_same_bits_everywhere(&case(&name), &options(None), &prompt(&name));
        // Saved and mapped back as well.
        let dir = saved(&name, "saves");
        assert_eq!(expect_same_bits_everywhere(&dir, &options(None), &prompt(&name)), expected, "{name}");
        let (model, again) = (load(&case(&name), &options(None)), load(&dir, &options(None)));
        assert_eq!(again.fingerprint(), model.fingerprint(), "{name}");
        assert_eq!((again.parameters(), again.weight_bytes()), (model.parameters(), model.weight_bytes()), "{name}");
        let twice = scratch("saves-again").join("saved");
        again.save(twice.to_str().unwrap(), None).unwrap();
        for file in ["model.safetensors", "config.json"] {
            let [once, twice] = [&dir, &twice].map(|dir| std::fs::read(dir.join(file)).unwrap());
            assert!(once == twice, "{name}: {file}");
        }
        // As many weights as the float model has.
        decode_saved(&dir);
        assert_eq!(load(&dir, &options(None)).parameters(), model.parameters(), "{name}");
    }
}

#[test]
fn symmetric_ones_take_the_symmetric_format() {
    for name in cases() {
        let symmetric = ["gptq_sym", "gptq_sym_act_order", "gptq_some"].contains(&&name[..]);
        let expected = if symmetric { Quant::Int4 } else { Quant::Int4Asymmetric };
        let model = load(&case(&name), &options(None));
        assert_eq!(model.quant(), Some(expected), "{name}");
        // What is not quantized may be, to as many bits; what is cannot be to others.
        let smaller = load(&case(&name), &options(Some(Quant::Int4)));
        assert!(smaller.weight_bytes() < model.weight_bytes() && smaller.parameters() == model.parameters(), "{name}");
        assert_ne!(logits(&smaller, &prompt(&name), 0), logits(&model, &prompt(&name), 0), "{name}");
        let error = try_load(&case(&name), &options(Some(Quant::Int8))).unwrap_err();
        assert_eq!(error.status, Status::Unsupported, "{error}");
        assert!(error.message.contains("INT4") && error.message.contains("already"), "{error}");
    }
}

#[test]
fn descriptions_count_weights() {
    for name in cases() {
        let describe = |dir: &Path| -> Value {
            let source = Source::open(dir.to_str().unwrap(), &SourcePaths::default()).unwrap();
            serde_json::from_str(&inspect(&source).unwrap()).unwrap()
        };
        let (dir, model) = (saved(&name, "described"), load(&case(&name), &options(None)));
        for report in [describe(&case(&name)), describe(&dir)] {
            assert_eq!(report["parameters"], model.parameters(), "{name}");
            assert_eq!(report["config_error"], Value::Null, "{name}");
            let config: Value =
                serde_json::from_slice(&std::fs::read(case(&name).join("config.json")).unwrap()).unwrap();
            assert_eq!(report["config"]["quantization"]["method"], config["quantization_config"]["quant_method"]);
        }
        assert_eq!(describe(&dir)["bytes"], model.weight_bytes(), "{name}");
    }
}

#[test]
fn loads_can_be_cancelled() {
    let path = case("gptq_sym");
    let mut calls = 0;
    let mut cancel = |_, _| {
        calls += 1;
        calls == 2 // with the first layer repacked
    };
    let cancelled = Model::load(path.to_str().unwrap(), &LoadOptions::default(), Some(&mut cancel));
    assert_eq!(cancelled.unwrap_err().status, Status::Cancelled);
}

/// Expects that the model of a case is refused after a change of its tensors.
fn refused(name: &str, fragments: &[&str], change: &dyn Fn(&mut Tensors, &mut Metadata)) {
    refused_in(&case(name), Status::Tensor, fragments, change);
}

fn refused_in(from: &Path, status: Status, fragments: &[&str], change: &dyn Fn(&mut Tensors, &mut Metadata)) {
    let dir = scratch("hostile");
    copy_dir(from, &dir);
    rewrite(&dir, change);
    let error = try_load(&dir, &options(None)).expect_err(fragments[0]);
    assert_eq!(error.status, status, "{error}");
    for fragment in fragments {
        assert!(error.message.contains(fragment), "no {fragment:?} in {error}");
    }
}

const V: &str = "model.layers.1.self_attn.v_proj"; // [32, 64]

fn tensor<'a>(tensors: &'a mut Tensors, suffix: &str) -> &'a mut (Dtype, Vec<usize>, Vec<u8>) {
    tensors.get_mut(&format!("{V}.{suffix}")).unwrap()
}

/// Sets the word at `at`.
fn word(tensors: &mut Tensors, suffix: &str, at: usize, value: i32) {
    tensor(tensors, suffix).2[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn hostile_tensors_are_named() {
    let order = "gptq_v2_act_order";
    for name in [order, "awq"] {
        for suffix in ["qweight", "qzeros", "scales"] {
            let key = &format!("{V}.{suffix}")[..];
            let removed = |tensors: &mut Tensors, _: &mut Metadata| drop(tensors.remove(key));
            // Without qweight it is a matrix that is not quantized, and not there.
            let missing = if suffix == "qweight" { format!("{V}.weight") } else { key.to_string() };
            refused(name, &[&missing, "missing"], &removed);
            refused(name, &[key, "expected"], &|tensors, _| {
                let (dtype, _, data) = tensor(tensors, suffix);
                (*dtype, *data) = (Dtype::U8, data[..data.len() / dtype.bitsize() * 8].to_vec());
            });
            refused(name, &[key, "expected shape"], &|tensors, _| tensor(tensors, suffix).1.reverse());
            refused(name, &[key, "expected shape", "found [0]"], &|tensors, _| {
                let (_, shape, data) = tensor(tensors, suffix);
                (*shape, *data) = (vec![0], Vec::new());
            });
        }
        for (value, shown) in [(0x7e00u16, "NaN"), (0x7c00, "inf"), (0xfc00, "-inf")] {
            refused(name, &[&format!("{V}.scales[1][5]"), "finite", shown], &|tensors, _| {
                tensor(tensors, "scales").2[2 * (32 + 5)..][..2].copy_from_slice(&value.to_le_bytes());
            });
        }
    }
    let key = &format!("{V}.g_idx")[..];
    refused(order, &[key, "missing"], &|tensors, _| drop(tensors.remove(key))); // desc_act promises it
    refused(order, &[key, "expected I32"], &|tensors, _| tensor(tensors, "g_idx").0 = Dtype::F32);
    refused(order, &[key, "expected shape [64]"], &|tensors, _| tensor(tensors, "g_idx").1 = vec![8, 8]);
    for group in [2, -1, i32::MAX, i32::MIN] {
        let what = format!("{key}[63]: expected one of 2 groups, found {group}");
        refused(order, &[&what], &|tensors, _| word(tensors, "g_idx", 63, group));
    }
    // Packed both ways, the plain one is taken: 8-bit words of it are no weights.
    refused(order, &[V, "expected F32, F16 or BF16"], &|tensors, _| {
        tensors.insert(format!("{V}.weight"), (Dtype::I8, vec![32, 64], vec![0; 32 * 64]));
    });
}

#[test]
fn any_groups_and_exact_scales_of_other_types_are_read() {
    let dir = scratch("groups");
    let accepted = |name: &str, change: &dyn Fn(&mut Tensors, &mut Metadata)| {
        copy_dir(&case(name), &dir);
        rewrite(&dir, change);
        logits(&load(&dir, &options(None)), &prompt(name), 0)
    };
    let name = "gptq_v2_act_order";
    let expected = logits(&load(&case(name), &options(None)), &prompt(name), 0);
    // Every input in the second group: the first takes no place.
    let all_in_one =
        accepted(name, &|tensors, _| tensor(tensors, "g_idx").2.as_chunks_mut().0.fill(1i32.to_le_bytes()));
    assert_ne!(all_in_one, expected);
    let widened = |tensors: &mut Tensors, dtype: Dtype| {
        let (found, _, data) = tensor(tensors, "scales");
        let halves = data.as_chunks::<2>().0.iter().map(|half| half::f16::from_le_bytes(*half).to_f32());
        *data = halves
            .flat_map(|v| if dtype == Dtype::F32 { v.to_le_bytes().to_vec() } else { v.to_le_bytes()[2..].to_vec() })
            .collect();
        *found = dtype;
    };
    assert_eq!(accepted(name, &|tensors, _| widened(tensors, Dtype::F32)), expected);
    // A tensor that happens to have the name of an order gives way to it.
    let stray = accepted(name, &|tensors, _| {
        tensors.insert(format!("{V}.weight.order"), (Dtype::I32, vec![1], vec![0; 4]));
    });
    assert_eq!(stray, expected);
    let saved = scratch("stray").join("saved");
    load(&dir, &options(None)).save(saved.to_str().unwrap(), None).unwrap();
    assert_eq!(logits(&load(&saved, &options(None)), &prompt(name), 0), expected);
    accepted(name, &|tensors, _| widened(tensors, Dtype::BF16)); // rounded to other scales, which are exact in 16 bits
    refused(name, &[&format!("{V}.scales[0][0]"), "exact in 16 bits", "0.1"], &|tensors, _| {
        widened(tensors, Dtype::F32);
        tensor(tensors, "scales").2[..4].copy_from_slice(&0.1f32.to_le_bytes());
    });
}

#[test]
fn damaged_orders_of_saved_models_are_refused() {
    let from = saved("gptq_v2_act_order", "orders");
    let key = &format!("{V}.weight.order")[..];
    let set =
        |at: usize, value: i32| move |tensors: &mut Tensors, _: &mut Metadata| word(tensors, "weight.order", at, value);
    let (_, metadata) = read_tensors(&from.join("model.safetensors"));
    assert_eq!(metadata[&format!("rie.{V}.weight")], "INT4_ASYMMETRIC 32 64 64");
    refused_in(&from, Status::Tensor, &[key, "missing"], &|tensors, _| drop(tensors.remove(key)));
    refused_in(&from, Status::Tensor, &[key, "expected I32"], &|tensors, _| {
        tensors.get_mut(key).unwrap().0 = Dtype::F32
    });
    refused_in(&from, Status::Tensor, &[key, "expected shape [64]"], &|tensors, _| {
        tensors.get_mut(key).unwrap().1 = vec![64, 1];
    });
    for input in [64, i32::MAX, i32::MIN] {
        let what = format!("{key}[3]: expected each of 64 inputs once, or -1, found {input}");
        refused_in(&from, Status::Tensor, &[&what], &set(3, input));
    }
    refused_in(&from, Status::Tensor, &[key, "64 inputs once", "is missing"], &set(3, -1));
    refused_in(&from, Status::Tensor, &[key, "64 inputs once"], &|tensors, _| {
        let data = &mut tensors.get_mut(key).unwrap().2;
        data.copy_within(0..4, 4);
    });
    // Without its order the matrix is another; with one of other places it is too short.
    refused_in(&from, Status::Format, &[V, "96: expected U8"], &|_, metadata| {
        metadata.insert(format!("rie.{V}.weight"), "INT4_ASYMMETRIC 32 64 96".to_string());
    });
}

/// Expects that the model of a case is refused, with the keys of its quantization_config set so.
fn refused_config(name: &str, status: Status, changes: &[(&str, Value)], fragments: &[&str]) {
    let dir = scratch("configs");
    copy_dir(&case(name), &dir);
    let mut config: Value = serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    changes.iter().for_each(|(key, value)| config["quantization_config"][*key] = value.clone());
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let error = try_load(&dir, &options(None)).unwrap_err();
    assert_eq!(error.status, status, "{error}");
    for fragment in fragments {
        assert!(error.message.contains(fragment), "no {fragment:?} in {error}");
    }
}

#[test]
fn other_methods_and_settings_are_named() {
    let unsupported = |name, key: &str, value: Value, fragments: &[&str]| {
        refused_config(name, Status::Unsupported, &[(key, value)], fragments);
    };
    for method in ["bitsandbytes", "fp8", "compressed-tensors", "eetq"] {
        unsupported("awq", "quant_method", json!(method), &["quantization_config", method, "gptq", "awq"]);
    }
    for name in ["gptq_sym", "awq"] {
        for bits in [2, 3, 8] {
            unsupported(name, "bits", json!(bits), &["quantization_config.bits", "expected 4", &bits.to_string()]);
        }
        refused_config(name, Status::Config, &[("bits", json!("4"))], &["quantization_config.bits", "\"4\""]);
        refused_config(name, Status::Config, &[("bits", Value::Null)], &["quantization_config.bits"]);
        for size in [json!(0), json!(-2), json!(8), json!(1u64 << 40), json!("32"), json!(32.5)] {
            let found = size.to_string();
            refused_config(
                name,
                Status::Config,
                &[("group_size", size)],
                &["quantization_config.group_size", "-1 or", &found],
            );
        }
        refused_config(
            name,
            Status::Tensor,
            &[("group_size", json!(64))],
            &["qzeros", "expected shape [1, ", "found [2, "],
        );
    }
    unsupported("gptq_sym", "checkpoint_format", json!("marlin"), &["checkpoint_format", "\"gptq\" or", "marlin"]);
    unsupported("gptq_rows", "format", json!("bitblas"), &["quantization_config.format", "\"gptq_v2\"", "bitblas"]);
    unsupported("gptq_sym", "pack_dtype", json!("int64"), &["pack_dtype", "int32", "int64"]);
    unsupported("gptq_sym", "is_marlin_format", json!(true), &["is_marlin_format"]);
    let rules = json!({"-:.*down.*": {}, "+:.*gate.*": {"bits": 8}});
    unsupported("gptq_sym", "dynamic", rules, &["quantization_config.dynamic.+:.*gate.*"]);
    for version in ["gemv", "gemv_fast", "marlin"] {
        unsupported("awq", "version", json!(version), &["quantization_config.version", "\"gemm\"", version]);
    }
    unsupported("awq", "backend", json!("llm-awq"), &["quantization_config.backend", "llm-awq"]);
    refused_config("awq", Status::Config, &[("version", json!(1))], &["quantization_config.version", "a string"]);
}

#[test]
fn a_quantized_checkpoint_needs_its_config() {
    let dir = scratch("no-config");
    copy_dir(&case("gptq_sym"), &dir);
    let mut config: Value = serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove("quantization_config");
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let error = try_load(&dir, &options(None)).unwrap_err();
    assert_eq!(error.status, Status::Config, "{error}");
    assert!(error.message.contains("q_proj.qweight") && error.message.contains("quantization_config"), "{error}");
}
