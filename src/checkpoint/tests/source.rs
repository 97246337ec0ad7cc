//! Directories, files and shards: what is found, and what is missing.

use super::*;

fn open(path: &str) -> Result<Source> {
    Source::open(path, &SourcePaths::default())
}

fn weight_names(source: &Source) -> Vec<&str> {
    source.weights.iter().map(|file| &file.name[..]).collect()
}

fn one_tensor(name: &str) -> Vec<u8> {
    tensors(&[(name, "F32", 4, &[2])])
}

fn index(pairs: &[(&str, &str)]) -> String {
    let map: Vec<String> = pairs.iter().map(|(name, shard)| format!("{name:?}: {shard:?}")).collect();
    format!(r#"{{"metadata": {{"total_size": 1}}, "weight_map": {{{}}}}}"#, map.join(","))
}

#[test]
fn a_directory_and_a_file_give_the_same_source() {
    let dir = Dir::with_model(&one_tensor("x"));
    dir.put("generation_config.json", "{}");
    dir.put("tokenizer.json", "[]");
    // The single file wins over an index, whatever the index says.
    dir.put("model.safetensors.index.json", "garbage");
    for path in [dir.path().to_owned(), dir.file("model.safetensors")] {
        let source = open(&path).unwrap();
        assert_eq!(source.name, path);
        assert_eq!(weight_names(&source), [dir.file("model.safetensors")]);
        assert_eq!(source.config.name, dir.file("config.json"));
        assert_eq!(source.config.bytes, CONFIG.as_bytes());
        assert_eq!(source.generation_config.unwrap().bytes, b"{}");
        assert_eq!(source.tokenizer.unwrap().bytes, b"[]");
        assert!(source.index.is_none());
    }
}

#[test]
fn companions_can_be_elsewhere() {
    let (dir, other) = (Dir::new(), Dir::new());
    dir.put("weights.SafeTensors", one_tensor("x"));
    other.put("c.json", CONFIG);
    other.put("t.json", "{}");
    let paths = SourcePaths { config: Some(other.file("c.json")), tokenizer: Some(other.file("t.json")) };
    let source = Source::open(&dir.file("weights.SafeTensors"), &paths).unwrap();
    assert_eq!(source.config.name, other.file("c.json"));
    assert_eq!(source.tokenizer.unwrap().name, other.file("t.json"));
    assert!(source.generation_config.is_none());

    let paths = SourcePaths { tokenizer: Some(other.file("no.json")), ..paths };
    refused(Source::open(&dir.file("weights.SafeTensors"), &paths), Status::Io, &["no.json", "tokenizer.json"]);
    let paths = SourcePaths { config: Some(other.path().to_owned()), tokenizer: None };
    refused(Source::open(&dir.file("weights.SafeTensors"), &paths), Status::Io, &[other.path(), "a directory"]);
}

#[test]
fn what_is_missing_is_named() {
    let dir = Dir::new();
    refused(open(&dir.file("nowhere")), Status::Io, &["nowhere", "model directory or a .safetensors file"]);
    refused(open(""), Status::Io, &["model directory"]);
    refused(open("a\0b"), Status::Io, &["model directory"]);
    refused(open(dir.path()), Status::Io, &[dir.path(), "model.safetensors.index.json", "found neither"]);
    dir.put("pytorch_model.bin", "");
    refused(open(dir.path()), Status::Io, &["pytorch_model.bin"]);
    refused(open(&dir.file("pytorch_model.bin")), Status::Format, &["pytorch_model.bin", "another kind"]);
    dir.put("model.safetensors", "");
    refused(open(dir.path()), Status::Io, &[&dir.file("config.json"), "no such file"]);
    dir.put("config.json", CONFIG);
    assert!(open(dir.path()).unwrap().tokenizer.is_none());
    refused(dir.map(), Status::Format, &["model.safetensors", "0 bytes"]);
}

#[test]
fn files_of_the_wrong_kind_or_size_are_refused() {
    let dir = Dir::with_model(&one_tensor("x"));
    let big = std::fs::File::create(dir.0.join("generation_config.json")).unwrap();
    big.set_len((16 << 20) + 1).unwrap();
    refused(dir.source(), Status::Format, &["generation_config.json", "16777216"]);
    big.set_len(2).unwrap();
    dir.source().unwrap();
    std::fs::create_dir(dir.0.join("tokenizer.json")).unwrap();
    refused(dir.source(), Status::Io, &["tokenizer.json", "a directory"]);
    let weights = Dir::with_model(b"");
    std::fs::remove_file(weights.0.join("model.safetensors")).unwrap();
    std::fs::create_dir(weights.0.join("model.safetensors")).unwrap();
    refused(weights.map(), Status::Io, &["model.safetensors", "a directory"]);
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_devices_refused() {
    use std::os::unix::fs::symlink;
    let (dir, blobs) = (Dir::new(), Dir::new());
    blobs.put("1", one_tensor("x"));
    blobs.put("2", CONFIG);
    // A snapshot of the Hugging Face cache is made of links.
    symlink(blobs.0.join("1"), dir.0.join("model.safetensors")).unwrap();
    symlink(blobs.0.join("2"), dir.0.join("config.json")).unwrap();
    assert!(dir.map().unwrap().contains("x"));
    symlink(blobs.0.join("3"), dir.0.join("tokenizer.json")).unwrap();
    refused(dir.source(), Status::Io, &["tokenizer.json", "link"]);
    std::fs::remove_file(dir.0.join("tokenizer.json")).unwrap();
    symlink("/dev/zero", dir.0.join("tokenizer.json")).unwrap();
    refused(dir.source(), Status::Io, &["tokenizer.json", "regular file"]);
}

#[test]
fn shards_are_one_checkpoint() {
    let dir = Dir::new();
    dir.put("config.json", CONFIG);
    dir.put("s1.safetensors", tensors(&[("model.x", "F32", 4, &[2]), ("extra", "I32", 4, &[1])]));
    dir.put("s2.safetensors", one_tensor("y"));
    let names = [("model.x", "s1.safetensors"), ("y", "s2.safetensors")];
    dir.put("model.safetensors.index.json", index(&names));
    let source = dir.source().unwrap();
    assert_eq!(weight_names(&source), [dir.file("s1.safetensors"), dir.file("s2.safetensors")]);
    let checkpoint = dir.map().unwrap();
    assert_eq!(checkpoint.totals(&[]), (5, 20));
    assert!(checkpoint.contains("x") && checkpoint.contains("model.y") && checkpoint.contains("extra"));
    refused(checkpoint.tensor("z", &[1]), Status::Tensor, &["z: missing", "2 shards", "s1.safetensors"]);
    let json = dir.inspect().unwrap();
    assert!(json.contains(r#""name":"y","dtype":"F32","shape":[2],"bytes":8,"file":"s2.safetensors""#), "{json}");

    let try_index = |pairs: &[(&str, &str)]| {
        dir.put("model.safetensors.index.json", index(pairs));
        let (mapped, inspected) = (dir.map(), dir.inspect());
        assert_eq!(mapped.as_ref().unwrap_err().message, inspected.unwrap_err().message);
        mapped
    };
    let (x, y) = (names[0], names[1]);
    refused(try_index(&[x, y, ("z", "s2.safetensors")]), Status::Format, &["tensor z", "s2.safetensors", "none"]);
    refused(
        try_index(&[("model.x", "s2.safetensors"), ("extra", "s1.safetensors")]),
        Status::Format,
        &["index.json", "tensor model.x", "expected in s2.safetensors", "in s1.safetensors"],
    );
    refused(try_index(&[x, ("y", "s3.safetensors")]), Status::Io, &["s3.safetensors", "no such file"]);
    dir.put("s3.safetensors", tensors(&[("y", "F32", 4, &[2])]));
    let both = [x, y, ("y2", "s3.safetensors")];
    refused(try_index(&both), Status::Format, &["s3.safetensors: tensor y", "also in", "s2.safetensors"]);
}

#[test]
fn an_index_cannot_leave_its_directory_and_must_be_one() {
    let dir = Dir::new();
    dir.put("config.json", CONFIG);
    for shard in ["../x", "/etc/passwd", "a/b", "a\\b", "..", ".", "", "c:x", "a\0b"] {
        let text = serde_json::json!({ "weight_map": { "model.x": shard } }).to_string();
        dir.put("model.safetensors.index.json", text);
        refused(dir.source(), Status::Format, &["index.json: weight_map: model.x", "file in this directory"]);
    }
    let cases = [
        ("", "line 1"),
        ("{", "line 1"),
        ("[]", "weight_map"),
        ("{}", "weight_map"),
        (r#"{"weight_map": {}}"#, "found none"),
        (r#"{"weight_map": {"x": 3}}"#, "invalid type"),
        (r#"{"weight_map": ["x"]}"#, "invalid type"),
    ];
    for (text, fragment) in cases {
        dir.put("model.safetensors.index.json", text);
        refused(dir.source(), Status::Format, &["index.json", fragment]);
    }
}
