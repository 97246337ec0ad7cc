//! SafeTensors files: what is read, and what is refused.

use super::*;
use crate::tensor::DType;

/// Four tensors, 2-byte aligned at most.
fn small() -> Vec<u8> {
    tensors(&[
        ("model.a.weight", "F32", 4, &[2, 3]),
        ("model.norm.weight", "BF16", 2, &[5]),
        ("b.weight", "F16", 2, &[2, 2]),
        ("lm_head.weight", "F32", 4, &[1, 2]),
    ])
}

#[test]
fn tensors_are_found_with_and_without_the_prefix_and_read_as_stored() {
    let dir = Dir::with_model(&small());
    let checkpoint = dir.map().unwrap();
    checkpoint.will_need();
    assert_eq!(checkpoint.totals(&[]), (6 + 5 + 4 + 2, 24 + 10 + 8 + 8));

    let a = checkpoint.tensor("a.weight", &[2, 3]).unwrap();
    assert_eq!((a.name(), a.dtype(), a.shape()), ("model.a.weight", DType::F32, &[2, 3][..]));
    assert_eq!(a.bytes(), (0..24).collect::<Vec<u8>>());
    assert_eq!(a.view().get(&[1, 2]), f32::from_le_bytes([20, 21, 22, 23]));
    // An odd header makes every tensor unaligned.
    let b = checkpoint.tensor("model.b.weight", &[2, 2]).unwrap();
    assert_eq!((b.name(), b.dtype()), ("b.weight", DType::F16));
    assert_eq!(b.bytes(), (34..42).collect::<Vec<u8>>());
    assert_eq!(checkpoint.tensor("model.norm.weight", &[5]).unwrap().dtype(), DType::BF16);
    assert_eq!(checkpoint.tensor("lm_head.weight", &[1, 2]).unwrap().bytes().len(), 8);
    assert!(checkpoint.contains("b.weight") && checkpoint.contains("model.b.weight"));
    assert!(!checkpoint.contains("c.weight"));
    assert!(!checkpoint.contains("model.lm_head.weight.other") && !checkpoint.contains(""));
}

#[test]
fn the_prefixed_name_wins_and_lm_head_has_no_prefix() {
    let dir = Dir::with_model(&tensors(&[
        ("x", "F32", 4, &[1]),
        ("model.x", "F32", 4, &[1]),
        ("model.lm_head.weight", "F32", 4, &[1]),
    ]));
    let checkpoint = dir.map().unwrap();
    assert_eq!(checkpoint.tensor("x", &[1]).unwrap().name(), "model.x");
    assert_eq!(checkpoint.tensor("model.x", &[1]).unwrap().name(), "model.x");
    assert!(!checkpoint.contains("lm_head.weight"));
}

#[test]
fn rows_share_the_mapping_and_outlive_the_checkpoint() {
    let dir = Dir::with_model(&small());
    let a = dir.map().unwrap().tensor("model.a.weight", &[2, 3]).unwrap();
    let second = a.rows(1..2);
    drop((a, dir));
    assert_eq!((second.shape(), second.bytes()), (&[1, 3][..], &(12..24).collect::<Vec<u8>>()[..]));
    assert!(second.rows(1..1).bytes().is_empty());
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| second.rows(0..2))).is_err());
}

#[test]
fn missing_misshapen_and_unusable_tensors_are_named() {
    let dir = Dir::with_model(&tensors(&[
        ("model.ids", "I64", 8, &[2]),
        ("model.bytes", "U8", 1, &[2]),
        ("model.double", "F64", 8, &[2]),
        ("model.empty", "F32", 4, &[0, 3]),
        ("model.fine", "F32", 4, &[3, 2]),
    ]));
    let checkpoint = dir.map().unwrap();
    let ask = |name: &str, shape: &[usize]| checkpoint.tensor(name, shape);
    let file = dir.file("model.safetensors");
    refused(ask("model.q.weight", &[1]), Status::Tensor, &["model.q.weight: missing from", &file]);
    refused(ask("model.ids", &[2]), Status::Tensor, &["model.ids", &file, "F32, F16 or BF16", "I64"]);
    refused(ask("model.bytes", &[2]), Status::Tensor, &["U8"]);
    refused(ask("double", &[2]), Status::Tensor, &["model.double", "F64"]);
    refused(ask("model.empty", &[0, 3]), Status::Tensor, &["model.empty", "[0, 3]"]);
    refused(ask("model.fine", &[2, 3]), Status::Tensor, &["model.fine", "[2, 3]", "[3, 2]"]);
    refused(ask("model.fine", &[6]), Status::Tensor, &["[6]"]);
}

#[test]
fn malformed_headers_are_refused_with_file_and_tensor() {
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#""t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let one = |dtype, shape, offsets| file(&format!("{{{}}}", entry(dtype, shape, offsets)), 8);
    let two = |second: &str| file(&format!("{{{},{second}}}", entry("F32", "[2]", "[0,8]")), 12);
    let huge = |length: u64| [&length.to_le_bytes()[..], b"{}"].concat();
    let deep = "[".repeat(100_000);
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty file", Vec::new(), &["0 bytes"]),
        ("7 bytes", vec![0; 7], &["7 bytes"]),
        ("length 0", huge(0), &["header"]),
        ("length beyond the file", huge(3), &["claims 3 bytes", "has 2"]),
        ("length 2^63", huge(1 << 63), &["9223372036854775808"]),
        ("length 2^64 - 1", huge(u64::MAX), &["18446744073709551615"]),
        ("LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n".to_vec(), &["git lfs pull"]),
        ("not JSON", file("hello", 0), &["header", "line 1"]),
        ("not UTF-8", [&4u64.to_le_bytes()[..], b"{\"\xff\""].concat(), &["header"]),
        ("a list", file("[]", 0), &["object of tensors"]),
        ("deep nesting", file(&deep, 0), &["header"]),
        ("deep nesting in an unknown key", file(&format!(r#"{{"t":{{"x":{deep}"#), 0), &["t"]),
        ("trailing text", file("{} {}", 0), &["trailing"]),
        ("unknown type", one("F7", "[2]", "[0,8]"), &["tensor t", "F7"]),
        ("negative size", one("F32", "[-2]", "[0,8]"), &["tensor t", "-2"]),
        ("size of 2^64", one("F32", "[18446744073709551616]", "[0,8]"), &["tensor t"]),
        ("three offsets", one("F32", "[2]", "[0,8,9]"), &["tensor t"]),
        ("no shape", file(r#"{"t":{"dtype":"F32","data_offsets":[0,8]}}"#, 8), &["tensor t", "shape"]),
        ("null", file(r#"{"t":null}"#, 0), &["tensor t"]),
        ("metadata that is no object of strings", file(r#"{"__metadata__":{"a":1}}"#, 0), &["__metadata__"]),
        ("backwards", one("F32", "[2]", "[8,0]"), &["tensor t", "8..0"]),
        ("out of range", one("F32", "[4]", "[0,16]"), &["tensor t", "0..16", "8 bytes"]),
        ("offset near 2^64", one("F32", "[2]", "[18446744073709551608,18446744073709551615]"), &["tensor t"]),
        ("gap at the start", one("F32", "[1]", "[4,8]"), &["tensor t", "gap"]),
        ("rest at the end", one("F32", "[1]", "[0,4]"), &["4 bytes of data follow"]),
        ("shape too small", one("F32", "[1]", "[0,8]"), &["tensor t", "takes 4 bytes", "has 8"]),
        ("product overflow", one("F32", "[4294967296,4294967296]", "[0,8]"), &["tensor t", "4294967296"]),
        ("bits overflow", one("F32", "[4611686018427387904]", "[0,8]"), &["tensor t"]),
        ("product overflow to 0", one("F32", "[9223372036854775808,2]", "[0,0]"), &["tensor t"]),
        ("half a byte", one("F4", "[3]", "[0,8]"), &["tensor t", "F4"]),
        ("overlap", two(r#""u":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}"#), &["tensor u", "tensor t"]),
        ("same extent", two(r#""u":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#), &["tensor u", "overlaps"]),
        ("gap between", two(r#""u":{"dtype":"U8","shape":[3],"data_offsets":[9,12]}"#), &["tensor u", "gap"]),
        ("named twice", two(r#""t":{"dtype":"U8","shape":[4],"data_offsets":[8,12]}"#), &["tensor t", "twice"]),
        ("control characters in a name", file(r#"{"a\u0000\n\u001b":3}"#, 0), &[r"a\u{0}\n\u{1b}"]),
    ];
    let dir = Dir::with_model(b"");
    let path = dir.file("model.safetensors");
    for (what, bytes, fragments) in cases {
        dir.put("model.safetensors", &bytes);
        in_case(what, || {
            refused(dir.map(), Status::Format, &[&[&path[..]], fragments].concat());
            refused(dir.inspect(), Status::Format, fragments);
        });
    }
}

/// Names the case that failed.
fn in_case(what: &str, test: impl FnOnce()) {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
    assert!(result.is_ok(), "in the case: {what}");
}

#[test]
fn legal_oddities_are_read() {
    // Not in order of their data, with metadata, an unknown key, padding, scalars and empty tensors.
    let header = r#"  {"z":{"dtype":"F32","shape":[],"data_offsets":[2,6],"note":[1]},"__metadata__":{"format":"pt"},
        "e":{"dtype":"F16","shape":[0,9223372036854775807],"data_offsets":[2,2]},
        "a":{"dtype":"F4","shape":[2,2],"data_offsets":[0,2]}}    "#;
    let dir = Dir::with_model(&file(header, 6));
    let checkpoint = dir.map().unwrap();
    assert_eq!(checkpoint.totals(&[]), (5, 6));
    assert_eq!(checkpoint.tensor("z", &[]).unwrap().view().get(&[]), f32::from_le_bytes([2, 3, 4, 5]));
    let dir = Dir::with_model(&file("{}", 0));
    assert_eq!(dir.map().unwrap().totals(&[]), (0, 0));
    refused(dir.map().unwrap().tensor("x", &[1]), Status::Tensor, &["x: missing"]);
}

/// Uses all that a checkpoint that opened offers.
fn touch(dir: &Dir) {
    let inspected = dir.inspect();
    match dir.map() {
        Ok(checkpoint) => {
            assert!(inspected.is_ok());
            checkpoint.totals(&[]);
            for (name, shape) in [
                ("model.a.weight", &[2, 3][..]),
                ("model.norm.weight", &[5]),
                ("b.weight", &[2, 2]),
                ("lm_head.weight", &[1, 2]),
            ] {
                if let Ok(tensor) = checkpoint.tensor(name, shape) {
                    assert_eq!(tensor.view().to_f32().unwrap().len(), shape.iter().product::<usize>());
                }
            }
        }
        Err(Error { status, message }) => {
            assert_eq!(status, Status::Format, "{message}");
            assert!(message.contains("model.safetensors"), "{message}");
            assert_eq!(inspected.unwrap_err().message, message);
        }
    }
}

#[test]
fn every_flipped_bit_of_a_header_is_an_answer() {
    let whole = small();
    let dir = Dir::with_model(&whole);
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for at in 0..header {
        for change in (0..8).map(|bit| 1 << bit).chain([0xff]) {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            dir.put("model.safetensors", &bytes);
            touch(&dir);
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    let whole = small();
    let dir = Dir::with_model(&whole);
    for length in 0..whole.len() {
        dir.put("model.safetensors", &whole[..length]);
        refused(dir.map(), Status::Format, &["model.safetensors"]);
        refused(dir.inspect(), Status::Format, &["model.safetensors"]);
    }
    dir.put("model.safetensors", [&whole[..], &[0]].concat());
    refused(dir.map(), Status::Format, &["1 bytes of data follow"]);
}

#[test]
fn inspect_lists_files_types_and_tensors_in_order() {
    let dir = Dir::with_model(&tensors(&[("w", "BF16", 2, &[2, 3]), ("ids", "I64", 8, &[1]), ("v", "BF16", 2, &[4])]));
    let text = dir.inspect().unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["path"], dir.path());
    assert_eq!(json["model_type"], "llama");
    assert_eq!((json["parameters"].as_u64(), json["bytes"].as_u64()), (Some(11), Some(28)));
    assert_eq!(json["dtypes"]["BF16"], serde_json::json!({"tensors": 2, "parameters": 10, "bytes": 20}));
    assert_eq!(json["dtypes"]["I64"]["bytes"], 8);
    assert_eq!(json["config"]["num_key_value_heads"], 2);
    assert_eq!(json["config"]["rms_norm_eps"], 1e-6);
    assert_eq!((json["has_tokenizer"].as_bool(), json.get("config_error")), (Some(false), None));
    assert_eq!(json["files"][0]["name"], "model.safetensors");
    let names: Vec<_> = json["tensors"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["w", "ids", "v"]);
    let file = "model.safetensors";
    let w = serde_json::json!({"name": "w", "dtype": "BF16", "shape": [2, 3], "bytes": 12, "file": file});
    assert_eq!(json["tensors"][0], w);

    // What cannot be loaded is still described.
    dir.put("config.json", r#"{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257}"#);
    let json: serde_json::Value = serde_json::from_str(&dir.inspect().unwrap()).unwrap();
    assert_eq!((&json["architecture"], &json["model_type"]), (&"GPT2LMHeadModel".into(), &"gpt2".into()));
    assert_eq!(json["config"], serde_json::json!({"vocab_size": 50257}));
    assert!(json["config_error"].as_str().unwrap().contains("hidden_size"), "{json}");
    dir.put("config.json", "{");
    refused(dir.inspect(), Status::Format, &["config.json", "line 1"]);
}
