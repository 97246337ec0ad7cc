//! Files that the host names one by one, and weights that are read instead of mapped.

use super::super::{FileSet, HostMemory, ModelFile, Panels};
use super::*;
use crate::tensor::{AlignedBuffer, Quant};
use std::fs::{File, OpenOptions};

fn small() -> Vec<u8> {
    tensors(&[("model.a", "F32", 4, &[8, 32]), ("model.b", "F16", 2, &[3]), ("model.odd", "U8", 1, &[5])])
}

fn in_memory(name: &str, bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> ModelFile {
    ModelFile::in_memory(name, HostMemory::new(bytes))
}

fn set(files: Vec<ModelFile>) -> FileSet {
    let mut set = FileSet::default();
    files.into_iter().for_each(|file| set.add(file).unwrap());
    set
}

/// Names and bytes of all tensors.
fn contents(checkpoint: &Checkpoint) -> Vec<(String, Vec<u8>)> {
    checkpoint.contents(&[]).iter().map(|c| (c.name.to_owned(), c.bytes.to_vec())).collect()
}

#[test]
fn a_set_of_files_is_what_a_directory_with_them_is() {
    let dir = Dir::with_model(&small());
    dir.put("generation_config.json", "{}");
    dir.put("tokenizer.json", "[]");
    dir.put("chat_template.jinja", "{{ x }}");
    // The weights in the middle of another file.
    dir.put("package", [b"12345", &small()[..], b"behind"].concat());
    let package = || File::open(dir.0.join("package")).unwrap();
    let length = small().len() as u64;
    let weights = [
        in_memory("model.safetensors", small()),
        ModelFile::at(dir.0.join("model.safetensors")),
        ModelFile::in_file("model.safetensors", package(), 5, length).unwrap(),
    ];
    let expected = contents(&dir.map().unwrap());
    let described: serde_json::Value = serde_json::from_str(&dir.inspect().unwrap()).unwrap();
    for (weights, access) in weights.iter().flat_map(|w| [(w, Access::Map), (w, Access::Read)]) {
        let set = set(vec![
            in_memory("config.json", CONFIG),
            in_memory("generation_config.json", "{}"),
            in_memory("tokenizer.json", "[]"),
            ModelFile::at(dir.0.join("chat_template.jinja")),
            in_memory("README.md", "not used"),
            weights.clone(),
        ]);
        let source = Source::of(&set, &SourcePaths::default()).unwrap();
        assert_eq!((source.name.as_str(), source.config.bytes.as_slice()), ("source", CONFIG.as_bytes()));
        assert_eq!(source.tokenizer.as_ref().unwrap().bytes, b"[]");
        assert_eq!(source.tokenizer_config.templates[0].source, "{{ x }}");
        assert_eq!(source.companions.len(), 4);
        let mut checkpoint = Checkpoint::open(&source, access).unwrap();
        checkpoint.settle(&[]).unwrap();
        assert_eq!(contents(&checkpoint), expected, "{weights:?}");
        let mut json: serde_json::Value = serde_json::from_str(&super::super::inspect(&source).unwrap()).unwrap();
        json["path"] = dir.path().into();
        assert_eq!(json, described);
        let copy = Dir::new();
        source.companions.iter().for_each(|file| file.copy_into(&copy.0).unwrap());
        assert_eq!(std::fs::read(copy.file("config.json")).unwrap(), CONFIG.as_bytes());
        assert_eq!(std::fs::read(copy.file("chat_template.jinja")).unwrap(), b"{{ x }}");
    }
    // A path in the options wins.
    let dir2 = Dir::new();
    dir2.put("c.json", CONFIG.replace("llama", "other"));
    let paths = SourcePaths { config: Some(dir2.file("c.json")), tokenizer: None };
    let source = Source::of(&set(vec![weights[0].clone()]), &paths).unwrap();
    assert_eq!(source.config.name, dir2.file("c.json"));
    assert_eq!(source.companions[0].file_name, "config.json");
}

#[test]
fn a_set_says_what_is_missing_and_refuses_what_cannot_be() {
    let of = |files| Source::of(&set(files), &SourcePaths::default());
    refused(of(vec![]), Status::Io, &["source: expected model.safetensors or", "found neither"]);
    let bin = || in_memory("pytorch_model.bin", "");
    refused(of(vec![bin()]), Status::Io, &["source", "there is a pytorch_model.bin"]);
    let weights = || in_memory("model.safetensors", small());
    refused(of(vec![weights()]), Status::Io, &["config.json: expected the model's config.json, found no such file"]);
    let index = || in_memory("model.safetensors.index.json", r#"{"weight_map": {"x": "s1.safetensors"}}"#);
    refused(of(vec![index(), bin()]), Status::Io, &["s1.safetensors: expected a shard", "no such file"]);
    let config = || in_memory("config.json", CONFIG);
    let source = of(vec![config(), in_memory("model.safetensors", "")]).unwrap();
    refused(Checkpoint::open(&source, Access::Map), Status::Format, &["model.safetensors: expected", "0 bytes"]);
    let nowhere = ModelFile::at("/no/such/t.json".into()).called("tokenizer.json");
    refused(of(vec![weights(), config(), nowhere]), Status::Io, &["/no/such/t.json", "no such file"]);

    let mut set = set(vec![config()]);
    refused(set.add(config()), Status::InvalidArgument, &["has a config.json already"]);
    for name in ["", ".", "..", "a/b", "a\\b", "c:x", "/x"] {
        refused(set.add(index().called(name)), Status::InvalidArgument, &["name: expected a file's name"]);
    }
    let dir = Dir::new();
    dir.put("x", "0123456789");
    let part = |start, length| ModelFile::in_file("x", File::open(dir.0.join("x")).unwrap(), start, length);
    refused(part(11, 0), Status::InvalidArgument, &["x: from 11 on", "the file's 10 bytes"]);
    refused(part(3, 8), Status::InvalidArgument, &["x: 8 bytes from 3 on", "the file's 10 bytes"]);
    refused(part(u64::MAX, u64::MAX), Status::InvalidArgument, &["10 bytes"]);
    let read = |start, length| part(start, length).unwrap().read("x", 10).unwrap().bytes;
    assert_eq!((read(3, 4), read(3, 0), read(10, 0)), (b"3456".to_vec(), b"3456789".to_vec(), vec![]));
}

#[test]
fn tensors_that_are_read_do_not_need_the_file() {
    let dir = Dir::with_model(&small());
    let expected = contents(&dir.map().unwrap());
    let open = || Checkpoint::open(&dir.source().unwrap(), Access::Read).unwrap();
    let mut checkpoint = open();
    assert_eq!(checkpoint.totals(&[]), (8 * 32 + 3 + 5, 8 * 32 * 4 + 6 + 5));
    let a = checkpoint.tensor("a", &[8, 32]).unwrap();
    assert!(std::ptr::eq(a.bytes(), checkpoint.tensor("a", &[8, 32]).unwrap().bytes()), "read once");
    assert_eq!(a.bytes().as_ptr().align_offset(64), 0);
    assert_eq!(checkpoint.unused(), ["model.b", "model.odd"]);
    checkpoint.settle(&[]).unwrap();
    let file = OpenOptions::new().write(true).open(dir.0.join("model.safetensors")).unwrap();
    file.set_len(0).unwrap();
    assert_eq!(contents(&checkpoint), expected);
    assert_eq!(a.bytes(), expected[0].1);

    // What is quantized is not kept.
    dir.put("model.safetensors", small());
    let mut checkpoint = open();
    let a = checkpoint.tensor("a", &[8, 32]).unwrap();
    let mut bytes = AlignedBuffer::default();
    bytes.try_grow(Quant::Int8.panel_bytes(32).unwrap()).unwrap();
    let panels = [Panels::new(a.name(), [8, 32], Quant::Int8, bytes, None).unwrap()];
    drop(a);
    checkpoint.settle(&panels).unwrap();
    assert_eq!(checkpoint.kept.keys().map(|name| &**name).collect::<Vec<_>>(), ["model.b", "model.odd"]);
    assert!(checkpoint.contents(&panels).iter().all(|c| !c.bytes.is_empty()));
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error() {
    let dir = Dir::with_model(&small());
    let mut checkpoint = Checkpoint::open(&dir.source().unwrap(), Access::Read).unwrap();
    let file = OpenOptions::new().write(true).open(dir.0.join("model.safetensors")).unwrap();
    file.set_len(small().len() as u64 - 6).unwrap();
    checkpoint.tensor("a", &[8, 32]).unwrap();
    let place = dir.file("model.safetensors");
    refused(checkpoint.tensor("b", &[3]), Status::Format, &["model.b in", &place, "has become shorter"]);
    refused(checkpoint.settle(&[]), Status::Format, &["model.b in", &place]);
    // Mapped, it is seen as long as it is not used yet.
    file.set_len(small().len() as u64).unwrap();
    let set = set(vec![
        in_memory("config.json", CONFIG),
        ModelFile::in_file("model.safetensors", File::open(&place).unwrap(), 0, 0).unwrap(),
    ]);
    let source = Source::of(&set, &SourcePaths::default()).unwrap();
    file.set_len(small().len() as u64 - 6).unwrap();
    refused(Checkpoint::open(&source, Access::Map), Status::Format, &["model.safetensors: had", "now"]);
}
