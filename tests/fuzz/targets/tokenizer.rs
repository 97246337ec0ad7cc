//! `tokenizer.json` and `tokenizer_config.json`, and texts through what they make.

use super::abi::{Handle, Library};
use super::model::{CONFIG, Directory, TOKENIZER, tensors, weights};
use super::reader::documents;
use rie::ffi::constants::*;
use rie::ffi::model::rie_model;
use std::sync::LazyLock;

/// Texts that every tokenizer is given.
const TEXTS: [&str; 3] =
    ["Hello,  world! it's 12345\n", "naïve 人工智能 🎉 <s></s><unk>", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"];

/// The input is `tokenizer.json` and, each after a byte 0, `tokenizer_config.json` and a text.
pub fn run(data: &[u8]) {
    static WEIGHTS: LazyLock<Vec<u8>> = LazyLock::new(|| weights(&tensors()));
    let [tokenizer, config, text] = documents::<3>(data);
    let directory = Directory::new(&[
        ("config.json", CONFIG.as_bytes()),
        ("tokenizer.json", tokenizer.unwrap_or_default()),
        ("model.safetensors", &WEIGHTS),
    ]);
    if let Some(config) = config {
        directory.put("tokenizer_config.json", config);
    }
    let library = Library::new();
    let Ok(model) = library.load(directory.path(), &[]) else { return };
    let own = text.map(String::from_utf8_lossy);
    for text in TEXTS.into_iter().chain(own.as_deref()) {
        for flags in [0, RIE_TEXT_ADD_SPECIAL, RIE_TEXT_ADD_SPECIAL | RIE_TEXT_PARSE_SPECIAL] {
            let ids = library.tokenize(&model, text, flags);
            assert_eq!(ids, library.tokenize(&model, text, flags), "{text:?} twice");
            match ids {
                Ok(ids) => check_text(&library, &model, &ids),
                Err(status) => assert_eq!(status, RIE_ERR_TOKENIZER, "{}", library.message()),
            }
        }
    }
    let few: Vec<i32> = (0..60).chain((0..60).rev().step_by(7)).collect();
    check_text(&library, &model, &few);
}

/// A stream gives the text of all tokens at once.
fn check_text(library: &Library, model: &Handle<rie_model>, ids: &[i32]) {
    for flags in [0, RIE_TEXT_SKIP_SPECIAL] {
        let whole = library.detokenize(model, ids, flags);
        let stream = library.stream(model, flags).expect("a stream");
        let pieces: Result<String, _> = ids.iter().chain(&[-1]).map(|id| library.push(&stream, *id)).collect();
        assert_eq!(whole, pieces, "{ids:?}");
    }
}

/// Inputs to begin with.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let others: serde_json::Value =
        serde_json::from_str(include_str!("../../golden/text/tokenizers.json")).expect("the tokenizers of the tests");
    let config: &[u8] = br#"{"bos_token":"<s>","eos_token":{"content":"</s>"},"chat_template":"{{ messages }}"}"#;
    let mut seeds = vec![
        ("byte_level".to_owned(), TOKENIZER.to_vec()),
        ("byte_fallback".to_owned(), include_bytes!("../../data/byte_fallback.json").to_vec()),
    ];
    for (i, (name, tokenizer)) in others.as_object().into_iter().flatten().enumerate() {
        let text = serde_json::to_vec(tokenizer).expect("JSON");
        seeds.push((format!("{i}-{}", name.replace(|c: char| !c.is_alphanumeric(), "_")), text));
    }
    seeds
        .push(("config".to_owned(), [TOKENIZER, b"\0", config, b"\0", "A text of its own\u{301}".as_bytes()].concat()));
    seeds
}
