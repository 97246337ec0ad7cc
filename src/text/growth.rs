//! How far the parts of a `tokenizer.json` can blow up a text. Each is harmless, but ten that make ten letters of one
//! make ten thousand million, and memory that the crate cannot get ends the process. So the worst case is worked out
//! and bounded.

use crate::bail;
use crate::error::Result;
use serde_json::{Map, Value};

/// Most normalizers, pre-tokenizers, decoders and so on; real files have about 10.
const MAX_PARTS: usize = 64;
/// Most bytes that a byte may become. The most of real files is about 360: ALBERT's NFKD and its table of characters.
const MAX_GROWTH: usize = 512;
/// Most tokens that a template may add; real ones add one or two.
const MAX_ADDED: usize = 256;
/// U+FDFA has 3 bytes and is composed of 18 letters of 33 bytes.
const COMPATIBILITY_GROWTH: usize = 11;

/// The sum of what was looked at.
#[derive(Debug)]
pub(super) struct Growth {
    parts: usize,
    /// Bytes that a byte of a text becomes at most before the model sees it.
    before: usize,
    /// Bytes that a byte of a token becomes at most.
    after: usize,
}

impl Growth {
    pub(super) fn new() -> Growth {
        Growth { parts: 0, before: 1, after: 1 }
    }

    /// Adds a part of the section `section`.
    pub(super) fn add(&mut self, section: &str, part: &Map<String, Value>) -> Result<()> {
        let Some(kind) = kind(part) else { return Ok(()) };
        self.parts += 1;
        if self.parts > MAX_PARTS {
            bail!(Format, "more than {MAX_PARTS} normalizers, pre-tokenizers, post-processors and decoders");
        }
        let by = match (kind, section) {
            ("Replace", _) => replaced(part),
            (_, "decoder" | "post_processor") => 1,
            ("NFKC" | "NFKD", _) => COMPATIBILITY_GROWTH,
            ("Precompiled", _) => {
                part.get("precompiled_charsmap").and_then(Value::as_str).map_or(1, longest_replacement)
            }
            ("ByteLevel", _) => 2,
            ("Metaspace", _) => char::MAX.len_utf8(),
            _ => 1, // at most a few bytes, and the same again changes nothing
        };
        let growth = if section == "decoder" { &mut self.after } else { &mut self.before };
        *growth = growth.saturating_mul(by.max(1));
        if *growth > MAX_GROWTH {
            bail!(Format, "{kind}: a byte of text may become more than {MAX_GROWTH} by now");
        }
        Ok(())
    }
}

/// The type of a part, by its keys if they are telling: the crate goes by them if it does not know the type.
pub(super) fn kind(part: &Map<String, Value>) -> Option<&str> {
    const BY_KEYS: [(&str, &[&str]); 6] = [
        ("Replace", &["pattern", "content"]),
        ("Precompiled", &["precompiled_charsmap"]),
        ("TemplateProcessing", &["single", "special_tokens"]),
        ("ByteLevel", &["add_prefix_space", "trim_offsets"]),
        ("Metaspace", &["replacement"]),
        ("FixedLength", &["length"]),
    ];
    let by_keys = BY_KEYS.iter().find(|(_, keys)| keys.iter().all(|key| part.contains_key(*key)));
    by_keys.map(|(kind, _)| *kind).or_else(|| part.get("type").and_then(Value::as_str))
}

/// By how much `Replace` lets a text grow: a regular expression may match between any two characters.
fn replaced(part: &Map<String, Value>) -> usize {
    let content = part.get("content").and_then(Value::as_str).map_or(0, str::len);
    match part.get("pattern").and_then(|pattern| pattern.get("String")).and_then(Value::as_str) {
        Some(pattern) if !pattern.is_empty() => content.div_ceil(pattern.len()),
        _ => content + 1,
    }
}

/// Bytes of the longest text in a table of characters: after the length of its index, 4 bytes, and the index come all
/// texts, each ended by NUL.
fn longest_replacement(charsmap: &str) -> usize {
    let bytes = base64(charsmap);
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return 1 };
    let texts = rest.get(u32::from_le_bytes(*length) as usize..).unwrap_or_default();
    texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(1)
}

/// Decodes what the crate has accepted as base64.
fn base64(text: &str) -> Vec<u8> {
    let (mut out, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0u32, 0);
    for digit in text.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => break,
        };
        (bits, count) = (bits << 6 | u32::from(value), count + 6);
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    out
}

/// A template adds few tokens to a text, which is there once.
pub(super) fn check_template(template: &Map<String, Value>) -> Result<()> {
    let pieces = template.get("single").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let ids = |piece: &Value| {
        let token = piece.pointer("/SpecialToken/id").and_then(Value::as_str)?;
        template.get("special_tokens")?.get(token)?.get("ids")?.as_array().map(Vec::len)
    };
    let added: usize = pieces.iter().filter_map(ids).sum();
    let texts = pieces.iter().filter(|piece| piece.get("Sequence").is_some()).count();
    if added > MAX_ADDED || texts > 1 || pieces.len() > MAX_ADDED {
        bail!(
            Format,
            "TemplateProcessing: expected the text once and at most {MAX_ADDED} tokens with it, found it {texts} times and \
             {added} in {} pieces",
            pieces.len()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn grown(parts: &[Value]) -> Result<()> {
        let mut growth = Growth::new();
        parts.iter().try_for_each(|part| growth.add("normalizer", part.as_object().expect("an object")))
    }

    #[test]
    fn what_multiplies_is_refused() {
        let replace =
            |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        let ten = replace(json!({"String": "a"}), "aaaaaaaaaa");
        assert!(grown(&[ten.clone(), ten.clone()]).is_ok());
        assert!(grown(&[ten.clone(), ten.clone(), ten]).unwrap_err().message.contains("more than 512"));
        let same = replace(json!({"String": "``"}), "\"");
        assert!(grown(&vec![same; 64]).is_ok());
        let between = replace(json!({"Regex": ""}), "aaaaaaaa");
        assert!(grown(&[between.clone(), between.clone(), between]).is_err());
        assert!(grown(&vec![json!({"type": "ByteLevel"}); 9]).is_ok());
        assert!(grown(&vec![json!({"type": "ByteLevel"}); 10]).is_err());
        assert!(grown(&vec![json!({"type": "NFC"}); 65]).unwrap_err().message.contains("more than 64"));
        let untyped = json!({"type": "unknown", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"});
        assert!(grown(&vec![untyped; 3]).is_err());
        let albert = [json!({"type": "NFKD"}), json!({"type": "StripAccents"}), json!({"type": "Lowercase"})];
        assert!(grown(&albert).is_ok());
    }

    #[test]
    fn a_table_of_characters_grows_by_its_longest_text() {
        // An index of 4 bytes, then "ab", "cdefg" and "h".
        assert_eq!(base64("BAAAAAAAAABhYgBjZGVmZwBoAA=="), b"\x04\0\0\0\0\0\0\0ab\0cdefg\0h\0");
        assert_eq!(longest_replacement("BAAAAAAAAABhYgBjZGVmZwBoAA=="), 5);
        assert_eq!(longest_replacement("AA"), 1);
    }

    #[test]
    fn templates_add_little() {
        let template = |times: usize, ids: usize, texts: usize| {
            let piece = json!({"SpecialToken": {"id": "x", "type_id": 0}});
            let single = [vec![piece; times], vec![json!({"Sequence": {"id": "A", "type_id": 0}}); texts]].concat();
            let template = json!({"single": single, "special_tokens": {"x": {"ids": vec![0; ids]}}});
            check_template(template.as_object().expect("an object"))
        };
        assert!(template(2, 128, 1).is_ok() && template(1, 1, 0).is_ok());
        assert!(template(2, 129, 1).is_err() && template(1, 1, 2).is_err() && template(300, 0, 1).is_err());
    }
}
