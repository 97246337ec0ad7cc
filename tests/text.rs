//! Tokenizer and text stream, against the `tokenizers` crate and against what is known of the two small tokenizers in
//! `tests/data` (made by `tests/data/tokenizers.py`).

use rie::error::Status;
use rie::text::{EncodeOptions, TextStream, Tokenizer};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

const BYTE_LEVEL: &str = include_str!("data/byte_level.json");
const BYTE_FALLBACK: &str = include_str!("data/byte_fallback.json");

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const PARSING: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

const TEXTS: [&str; 18] = [
    "",
    " ",
    "  ",
    "Hello, world!",
    " leading",
    "trailing ",
    "a  b   c",
    "naïve café",
    "🎉",
    "🎉🎉 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽",
    "人工智能改变世界。",
    "\u{0}nul\u{0}",
    "\n\n\t \r\n",
    "\u{fffd} \u{10fffd}",
    "שלום",
    "<|end|> <s></s>",
    "\u{feff}BOM",
    "e\u{301}",
];

/// PCG-like; enough for tests.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
}

fn tokenizer(json: &str) -> Tokenizer {
    Tokenizer::parse("tokenizer.json", json.as_bytes()).unwrap()
}

fn with(json: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut value = serde_json::from_str(json).unwrap();
    change(&mut value);
    value.to_string()
}

/// The pieces of a stream, the flush last.
fn pieces(t: &Arc<Tokenizer>, ids: &[u32], skip_special: bool) -> Vec<String> {
    let mut stream = TextStream::new(t.clone(), skip_special);
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    pieces.push(stream.flush().unwrap());
    pieces
}

fn ids(t: &Tokenizer, tokens: &[&str]) -> Vec<u32> {
    tokens.iter().flat_map(|s| t.encode(s, PARSING).unwrap()).collect()
}

#[test]
fn encodes_as_the_crate_does() {
    for json in [BYTE_LEVEL, BYTE_FALLBACK] {
        let (ours, theirs) = (tokenizer(json), json.parse::<tokenizers::Tokenizer>().unwrap());
        for text in TEXTS {
            for add_special in [false, true] {
                let options = EncodeOptions { add_special, parse_special: true };
                let expected = theirs.encode(text, add_special).unwrap();
                let doubled = add_special && json == BYTE_LEVEL && text.starts_with("<|end|>");
                let expected = &expected.get_ids()[usize::from(doubled)..];
                assert_eq!(ours.encode(text, options).unwrap(), expected, "{text:?}");
            }
        }
        assert_eq!(ours.vocab_size(), theirs.get_vocab_size(true));
    }
}

#[test]
fn texts_come_back_whole() {
    for json in [BYTE_LEVEL, BYTE_FALLBACK] {
        let t = Arc::new(tokenizer(json));
        for text in TEXTS {
            for options in [PLAIN, PARSING] {
                let ids = t.encode(text, options).unwrap();
                if options.parse_special && text.contains("<s>") && json == BYTE_FALLBACK {
                    continue; // each part between special tokens gets a leading space, as in Hugging Face
                }
                assert_eq!(t.decode(&ids, false).unwrap(), text);
                assert_eq!(pieces(&t, &ids, false).concat(), text);
            }
        }
    }
}

#[test]
fn special_tokens_are_parsed_or_read_as_text() {
    let t = tokenizer(BYTE_LEVEL);
    assert_eq!(t.encode("<|end|>!<|user|>", PARSING).unwrap(), [0, t.encode("!", PLAIN).unwrap()[0], 1]);
    let plain = t.encode("<|end|>!<|user|>", PLAIN).unwrap();
    assert!(plain.len() == 16 && plain.iter().all(|&id| id > 1), "{plain:?}");
    assert_eq!(t.decode(&plain, true).unwrap(), "<|end|>!<|user|>");
    let options = EncodeOptions { add_special: true, parse_special: false };
    assert_eq!(t.encode("<|end|>", options).unwrap(), [&[0], &t.encode("<|end|>", PLAIN).unwrap()[..]].concat());
    assert_eq!(t.decode(&[0, 260, 1], true).unwrap(), " the");
    assert_eq!(t.decode(&[0, 260, 1], false).unwrap(), "<|end|> the<|user|>");
}

#[test]
fn what_begins_a_text_is_added_once() {
    let both = EncodeOptions { add_special: true, parse_special: true };
    for (json, token, id) in [(BYTE_LEVEL, "<|end|>", 0), (BYTE_FALLBACK, "<s>", 1)] {
        let t = tokenizer(json);
        assert_eq!((t.prefix(), t.token_id(token), t.token_id("nothing")), (&[id][..], Some(id), None));
        let count = |text: &str, options| t.encode(text, options).unwrap().iter().filter(|&&i| i == id).count();
        assert_eq!(count("a", both), 1);
        assert_eq!(count(&format!("{token}a"), both), 1);
        assert_eq!(count(&format!("{token}{token}a"), both), 2);
        assert_eq!(count(&format!("{token}a"), PARSING), 1);
        assert_eq!(count(&format!("{token}a"), EncodeOptions { add_special: true, parse_special: false }), 1);
    }
    assert!(tokenizer(&with(BYTE_LEVEL, |v| v["post_processor"] = Value::Null)).prefix().is_empty());
}

#[test]
fn unknown_ids_are_no_text() {
    let t = Arc::new(tokenizer(BYTE_LEVEL));
    assert_eq!(t.decode(&[260, 99_999, u32::MAX, 260], false).unwrap(), " the the");
    assert_eq!(pieces(&t, &[260, 99_999, 260], false), [" the", "", " the", ""]);
}

#[test]
fn training_settings_are_dropped() {
    let json = with(BYTE_LEVEL, |v| {
        v["truncation"] = json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        v["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "<|end|>"});
        v["model"]["dropout"] = json!(0.9);
    });
    let (t, plain) = (tokenizer(&json), tokenizer(BYTE_LEVEL));
    for text in TEXTS {
        assert_eq!(t.encode(text, PLAIN).unwrap(), plain.encode(text, PLAIN).unwrap());
    }
}

#[test]
fn characters_come_when_they_are_complete() {
    let t = Arc::new(tokenizer(BYTE_LEVEL));
    let party = t.encode("🎉!", PLAIN).unwrap(); // the first token is two bytes
    assert_eq!(pieces(&t, &party, false), ["", "", "🎉", "!", ""]);
    let t = Arc::new(tokenizer(BYTE_FALLBACK));
    let party = t.encode("🎉🎉 a", PLAIN).unwrap();
    let expected = ["", "", "", "", "🎉", "", "", "", "🎉", " a", ""]; // the first token is the leading space
    assert_eq!(pieces(&t, &party, false), expected);
}

#[test]
fn only_the_first_space_is_stripped() {
    let t = Arc::new(tokenizer(BYTE_FALLBACK));
    let hello = t.encode("Hello world the a", PLAIN).unwrap();
    assert_eq!(pieces(&t, &hello, false), ["Hello", " world", " the", " a", ""]);
    let hello = ids(&t, &["<s>"]).into_iter().chain(hello).collect::<Vec<_>>();
    assert_eq!(pieces(&t, &hello, true), ["", "Hello", " world", " the", " a", ""]);
    assert_eq!(pieces(&t, &hello, false), ["<s>", " Hello", " world", " the", " a", ""]);
}

#[test]
fn bad_bytes_do_not_hold_back_what_follows() {
    let t = Arc::new(tokenizer(BYTE_FALLBACK));
    let byte = |b: u32| 3 + b;
    let the = t.encode("the", PLAIN).unwrap()[0];
    assert_eq!(pieces(&t, &[byte(0xff), the], false), ["\u{fffd}", " the", ""]);
    assert_eq!(pieces(&t, &[byte(0xf0), byte(0x9f), the], false), ["", "", "\u{fffd}\u{fffd} the", ""]);
    assert_eq!(pieces(&t, &[byte(0xf0), byte(0x9f)], false), ["", "", "\u{fffd}\u{fffd}"]);
    // a character beside a bad byte is still a character
    assert_eq!(pieces(&t, &[byte(0xc3), byte(0xa9), byte(0xf0), byte(0x41)], false), ["", "é", "", "\u{fffd}A", ""]);

    let t = Arc::new(tokenizer(BYTE_LEVEL));
    let f09f = t.encode("🎉", PLAIN).unwrap()[0];
    assert_eq!(pieces(&t, &[f09f, 260, f09f], false), ["", "\u{fffd} the", "", "\u{fffd}"]);
    assert_eq!(pieces(&t, &[f09f, f09f], false), ["", "\u{fffd}", "\u{fffd}"]);
}

#[test]
fn a_flush_makes_the_stream_new() {
    let t = Arc::new(tokenizer(BYTE_FALLBACK));
    let mut stream = TextStream::new(t.clone(), false);
    let hello = t.encode("Hello", PLAIN).unwrap()[0];
    for _ in 0..3 {
        assert_eq!(stream.push(hello).unwrap(), "Hello");
        assert_eq!(stream.push(3 + 0xf0).unwrap(), "");
        assert_eq!(stream.flush().unwrap(), "\u{fffd}");
    }
    assert_eq!(stream.flush().unwrap(), "");
}

/// Every decoder of the crate, and mixtures, on the byte-fallback vocabulary.
fn decoders() -> Vec<Value> {
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let regex = json!({"type": "Replace", "pattern": {"Regex": "[el]+"}, "content": "<>"});
    let (fuse, bytes) = (json!({"type": "Fuse"}), json!({"type": "ByteFallback"}));
    let strip = |start: usize, stop: usize| json!({"type": "Strip", "content": " ", "start": start, "stop": stop});
    let word_piece = json!({"type": "WordPiece", "prefix": "▁", "cleanup": true});
    let ctc = json!({"type": "CTC", "pad_token": "<unk>", "word_delimiter_token": "▁", "cleanup": true});
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let suffix = json!({"type": "BPEDecoder", "suffix": "o"});
    let sequence = |list: &[&Value]| json!({"type": "Sequence", "decoders": list});
    vec![
        Value::Null,
        metaspace.clone(),
        word_piece.clone(),
        ctc.clone(),
        suffix.clone(),
        level.clone(),
        sequence(&[]),
        sequence(&[&replace, &bytes, &fuse]),
        sequence(&[&replace, &bytes, &fuse, &strip(1, 0)]),
        sequence(&[&replace, &bytes, &fuse, &strip(2, 2)]),
        sequence(&[&replace, &fuse, &strip(1, 3), &sequence(&[&fuse, &strip(1, 0)])]),
        sequence(&[&bytes, &metaspace]),
        sequence(&[&bytes, &replace, &strip(1, 0)]),
        sequence(&[&metaspace, &bytes]),
        sequence(&[&regex, &replace, &fuse]),
        sequence(&[&replace, &fuse, &regex, &strip(1, 0)]),
        sequence(&[&ctc, &suffix, &word_piece]),
        sequence(&[&level, &word_piece]),
    ]
}

/// Hugging Face's decode with this crate's one difference: in a run of byte tokens, intact characters stay.
fn mended(theirs: &tokenizers::Tokenizer, ids: &[u32], skip_special: bool) -> String {
    // Each run is cut into the parts that Hugging Face turns into characters, or U+FFFD, one by one, by an unknown
    // token between them, which is nothing but the end of a run.
    let mut tokens = Vec::new();
    let mut run: Vec<u8> = Vec::new();
    let end_run = |run: &mut Vec<u8>, tokens: &mut Vec<String>| {
        for chunk in std::mem::take(run).utf8_chunks() {
            tokens.push(chunk.valid().to_string());
            tokens.extend(chunk.invalid().iter().map(|_| "\u{fffd}".to_string()));
        }
    };
    for &id in ids {
        let Some(token) = theirs.id_to_token(id) else { continue };
        if skip_special && theirs.get_added_vocabulary().is_special_token(&token) {
            continue;
        }
        match id {
            3..259 => run.push((id - 3) as u8),
            _ => {
                end_run(&mut run, &mut tokens);
                tokens.push(token);
            }
        }
    }
    end_run(&mut run, &mut tokens);
    let text = tokens.concat().replace('▁', " ");
    text.strip_prefix(' ').unwrap_or(&text).to_string()
}

/// Random tokens: special ones, unknown ones, words, and many bytes, half of them of real characters.
fn random_ids(random: &mut Random, t: &Tokenizer) -> Vec<u32> {
    let mut ids = Vec::new();
    for _ in 0..random.below(12) {
        match random.below(8) {
            0 => ids.push(random.below(3) as u32),
            1 => ids.push(t.vocab_size() as u32 + random.below(3) as u32),
            2 => ids.push(3 + random.below(256) as u32),
            3..5 => ids.extend(t.encode(TEXTS[random.below(TEXTS.len())], PLAIN).unwrap()),
            _ => ids.push(random.below(t.vocab_size()) as u32),
        }
    }
    ids
}

#[test]
fn pieces_concatenate_to_the_decode_under_every_decoder() {
    use tokenizers::tokenizer::Decoder;
    let mut random = Random(1);
    for decoder in decoders() {
        let json = with(BYTE_FALLBACK, |v| v["decoder"] = decoder.clone());
        let (t, theirs) = (Arc::new(tokenizer(&json)), json.parse::<tokenizers::Tokenizer>().unwrap());
        let falls_back = decoder.to_string().contains("ByteFallback");
        let mut compared = 0;
        for _ in 0..1000 {
            let (ids, skip_special) = (random_ids(&mut random, &t), random.below(2) == 0);
            let whole = t.decode(&ids, skip_special).unwrap();
            assert_eq!(pieces(&t, &ids, skip_special).concat(), whole, "{decoder} {ids:?}");
            let tokens: Vec<String> = ids
                .iter()
                .filter_map(|&id| theirs.id_to_token(id))
                .filter(|token| !skip_special || !theirs.get_added_vocabulary().is_special_token(token))
                .collect();
            // the crate itself panics on no tokens (BPEDecoder, also after CTC) and on empty ones (Strip with a stop)
            let empty = tokens.is_empty() || tokens.iter().all(|s| s == "<unk>" || s.chars().all(|c| c == '▁'));
            let expected = match theirs.get_decoder() {
                Some(_) if empty => continue,
                Some(decoder) => decoder.decode(tokens).unwrap(),
                None => theirs.decode(&ids, skip_special).unwrap(),
            };
            if !falls_back || !expected.contains('\u{fffd}') {
                assert_eq!(whole, expected, "{decoder} {ids:?}");
                compared += 1;
            }
        }
        assert!(compared > 100, "{decoder}: only {compared}");
    }
}

#[test]
fn byte_fallback_differs_from_the_crate_only_beside_bad_bytes() {
    let (t, theirs) = (Arc::new(tokenizer(BYTE_FALLBACK)), BYTE_FALLBACK.parse::<tokenizers::Tokenizer>().unwrap());
    let mut random = Random(2);
    for _ in 0..4000 {
        let (ids, skip_special) = (random_ids(&mut random, &t), random.below(2) == 0);
        assert_eq!(t.decode(&ids, skip_special).unwrap(), mended(&theirs, &ids, skip_special), "{ids:?}");
    }
}

#[test]
fn at_most_three_bytes_are_held_back() {
    let mut random = Random(3);
    for json in [BYTE_LEVEL, BYTE_FALLBACK] {
        let t = Arc::new(tokenizer(json));
        for _ in 0..500 {
            let ids = random_ids(&mut random, &t);
            let mut stream = TextStream::new(t.clone(), false);
            let mut shown = String::new();
            for n in 0..ids.len() {
                shown += &stream.push(ids[n]).unwrap();
                let whole = t.decode(&ids[..=n], false).unwrap();
                let held = whole.strip_prefix(&shown).unwrap_or_else(|| panic!("{shown:?} {whole:?}"));
                assert!(held.chars().count() <= 3 && held.chars().all(|c| c == '\u{fffd}'), "{held:?} {ids:?}");
            }
        }
    }
}

#[test]
fn damaged_files_are_named_errors() {
    for json in [BYTE_LEVEL, BYTE_FALLBACK] {
        for end in (0..json.trim_end().len()).step_by(23) {
            let e = Tokenizer::parse("dir/tokenizer.json", &json.as_bytes()[..end]).unwrap_err();
            assert!(e.status == Status::Format && e.message.starts_with("dir/tokenizer.json: "), "{e}");
            assert!(!e.message.contains("panicked"), "cut at {end}: {e}");
        }
        let mut random = Random(4);
        for _ in 0..300 {
            let mut bytes = json.as_bytes().to_vec();
            let at = random.below(bytes.len());
            bytes[at] = random.below(256) as u8;
            match Tokenizer::parse("t.json", &bytes) {
                Err(e) => assert!(!e.message.contains("panicked"), "byte {at} = {}: {e}", bytes[at]),
                Ok(t) => {
                    for text in TEXTS {
                        let panicked = t.encode(text, PARSING).is_err_and(|e| e.message.contains("panicked"));
                        assert!(!panicked, "byte {at} = {}", bytes[at]);
                    }
                    t.decode(&random_ids(&mut random, &tokenizer(json)), false).unwrap();
                }
            }
        }
    }
}

#[test]
fn hostile_files_are_errors_not_panics() {
    let hostile = |what: &str, status: Status, expected: &str, change: &dyn Fn(&mut Value)| {
        let e = Tokenizer::parse("t.json", with(BYTE_FALLBACK, |v| change(v)).as_bytes()).expect_err(what);
        assert_eq!(e.status, status, "{what}: {e}");
        assert!(e.message.starts_with("t.json: ") && e.message.contains(expected), "{what}: {e}");
        assert!(!e.message.contains("panicked"), "{what}: {e}");
    };
    let format = |what, expected, change: &dyn Fn(&mut Value)| hostile(what, Status::Format, expected, change);
    format("no model", "expected a model", &|v| v["model"] = Value::Null);
    format("no vocabulary", "vocab", &|v| v["model"]["vocab"] = Value::Null);
    format("a list for an object", "not a tokenizer", &|v| *v = json!([]));
    format("a negative id", "not a tokenizer", &|v| v["model"]["vocab"]["H"] = json!(-1));
    format("an unknown decoder", "not a tokenizer", &|v| v["decoder"] = json!({"type": "Encoder"}));
    format("long merge", "a merge gives 16 bytes", &|v| v["model"]["merges"] = json!([["▁Hello", "▁Hello"]]));
    format("long legacy merge", "a merge gives 16", &|v| v["model"]["merges"] = json!(["▁Hello ▁Hello"]));
    format("unknown merge", "not a tokenizer", &|v| v["model"]["merges"] = json!([["x", "y"]]));
    format("a bad charsmap", "precompiled_charsmap", &|v| {
        v["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAA"});
    });
    format("a strange token", "not among its special_tokens", &|v| {
        v["post_processor"]["special_tokens"] = json!({});
    });
    format("sequence B", "sequence B", &|v| {
        v["post_processor"]["single"] = json!([{"Sequence": {"id": "B", "type_id": 0}}]);
    });
    format("two templates", "2 TemplateProcessing", &|v| {
        v["post_processor"] = json!({"type": "Sequence", "processors": [v["post_processor"], v["post_processor"]]});
    });
    format("length 0", "FixedLength", &|v| v["pre_tokenizer"] = json!({"type": "FixedLength", "length": 0}));
    format("a deep decoder", "nested", &|v| {
        for _ in 0..60 {
            v["decoder"] = json!({"type": "Sequence", "decoders": [v["decoder"].take()]});
        }
    });
    format("a bad regex", "not a tokenizer", &|v| {
        v["decoder"] = json!({"type": "Replace", "pattern": {"Regex": "("}, "content": ""});
    });
    hostile("a prefix", Status::Unsupported, "continuing_subword_prefix", &|v| {
        v["model"]["continuing_subword_prefix"] = json!("##");
    });
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(Tokenizer::parse("t.json", deep.as_bytes()).unwrap_err().status, Status::Format);
    let deep = BYTE_LEVEL.replacen("\"normalizer\":null", &format!("\"normalizer\":{deep}"), 1);
    assert_eq!(Tokenizer::parse("t.json", deep.as_bytes()).unwrap_err().status, Status::Format);
    assert_eq!(Tokenizer::parse("t.json", b"\xff\xfe").unwrap_err().status, Status::Format);
}

fn smollm2() -> (Arc<Tokenizer>, tokenizers::Tokenizer) {
    let directory = std::env::var("RIE_TEST_SMOLLM2").expect("RIE_TEST_SMOLLM2: the directory of SmolLM2");
    let path = PathBuf::from(directory).join("bf16/tokenizer.json");
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let theirs = tokenizers::Tokenizer::from_bytes(&bytes).unwrap();
    (Arc::new(Tokenizer::parse(&path.to_string_lossy(), &bytes).unwrap()), theirs)
}

#[test]
#[ignore = "needs RIE_TEST_SMOLLM2"]
fn smollm2_is_as_the_python_library_has_it() {
    let (t, _) = smollm2();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/text/reference.json");
    let reference: Value = serde_json::from_slice(&std::fs::read(path).expect(path)).unwrap();
    let numbers = |v: &Value| v.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect::<Vec<_>>();
    let cases = reference["cases"].as_array().unwrap();
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let ids = numbers(&case["ids"]);
        assert_eq!(t.encode(text, PARSING).unwrap(), ids, "{text:?}");
        let options = EncodeOptions { add_special: true, parse_special: true };
        assert_eq!(t.encode(text, options).unwrap(), numbers(&case["ids_special"]), "{text:?}");
        for (skip_special, key) in [(false, "decoded"), (true, "decoded_skipped")] {
            assert_eq!(t.decode(&ids, skip_special).unwrap(), case[key], "{text:?}");
            assert_eq!(pieces(&t, &ids, skip_special).concat(), case[key], "{text:?}");
        }
        if !text.contains("<|im_") && !text.contains("<|endoftext|>") && !text.contains("<repo_name>") {
            assert_eq!(t.encode(text, PLAIN).unwrap(), ids, "{text:?}");
        }
    }
    assert!(cases.len() >= 60);
}

#[test]
#[ignore = "needs RIE_TEST_SMOLLM2"]
fn smollm2_streams_random_tokens() {
    let (t, theirs) = smollm2();
    let mut random = Random(5);
    for _ in 0..3000 {
        let skip_special = random.below(2) == 0;
        let ids: Vec<u32> = (0..random.below(40)).map(|_| random.below(t.vocab_size() + 2) as u32).collect();
        let whole = t.decode(&ids, skip_special).unwrap();
        assert_eq!(pieces(&t, &ids, skip_special).concat(), whole, "{ids:?}");
        assert_eq!(whole, theirs.decode(&ids, skip_special).unwrap(), "{ids:?}");
    }
}

fn fnv(bytes: impl Iterator<Item = u8>) -> String {
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

#[test]
#[ignore = "needs RIE_TEST_TOKENIZERS"]
fn real_tokenizers_are_as_the_python_library_has_them() {
    let root = PathBuf::from(std::env::var("RIE_TEST_TOKENIZERS").expect("RIE_TEST_TOKENIZERS: golden/tokenizers.sh"));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/text/tokenizers.json");
    let reference: Value = serde_json::from_slice(&std::fs::read(path).expect(path)).unwrap();
    let strings: Vec<&str> = reference["strings"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
    let families = reference["families"].as_array().unwrap();
    assert!(strings.len() == 200 && families.len() == 8);
    for family in families {
        let path = root.join(family["name"].as_str().unwrap()).join("tokenizer.json");
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let t = Arc::new(Tokenizer::parse(&path.to_string_lossy(), &bytes).unwrap());
        assert_eq!(json!(t.prefix()), family["prefix"], "{}", path.display());
        for (i, text) in strings.iter().enumerate() {
            let ids = t.encode(text, PARSING).unwrap();
            let hash = fnv(ids.iter().flat_map(|id| id.to_le_bytes()));
            assert_eq!(hash, family["ids"][i].as_str().unwrap(), "{}: {text:?}: {ids:?}", path.display());
            for skip_special in [false, true] {
                let whole = t.decode(&ids, skip_special).unwrap();
                assert_eq!(pieces(&t, &ids, skip_special).concat(), whole, "{}: {text:?}", path.display());
                if !skip_special && !whole.contains('\u{fffd}') {
                    assert_eq!(fnv(whole.bytes()), family["decoded"][i].as_str().unwrap(), "{text:?}");
                }
            }
        }
    }
}
