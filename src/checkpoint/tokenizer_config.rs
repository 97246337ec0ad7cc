//! What goes with a tokenizer: its chat templates and the spelling of its special tokens, from `tokenizer_config.json`,
//! `chat_template.jinja` and, of old, `special_tokens_map.json`.

use super::Document;
use super::json::{Reader, parse_object};
use crate::error::Result;
use serde_json::Value;
use std::collections::BTreeMap;

/// A chat template of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    /// `default`, or the name that a list of templates gives it.
    pub name: String,
    /// Its file and key, for messages.
    pub place: String,
    /// In Jinja.
    pub source: String,
}

/// The files beside `tokenizer.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    /// Where templates were looked for, for messages.
    pub place: String,
    /// The chat templates; empty if there are none.
    pub templates: Vec<ChatTemplate>,
    /// `bos_token`, `eos_token` and the like with their spelling.
    pub special_tokens: BTreeMap<String, String>,
}

impl TokenizerConfig {
    /// Reads the files that are there; `place` names them all. `chat_template.jinja` wins over the template of
    /// `tokenizer_config.json`, whose special tokens win over those of `special_tokens_map.json`.
    pub fn parse(
        place: &str,
        config: Option<&Document>,
        special_tokens_map: Option<&Document>,
        chat_template: Option<&Document>,
    ) -> Result<TokenizerConfig> {
        let mut parsed = TokenizerConfig { place: place.to_owned(), ..TokenizerConfig::default() };
        for document in [special_tokens_map, config].into_iter().flatten() {
            let map = parse_object(document)?;
            let reader = Reader::new(&document.name, &map);
            parsed.add_special_tokens(&reader)?;
            if let Some(extra) = reader.get("extra_special_tokens").and_then(Value::as_object) {
                parsed.add_special_tokens(&Reader::new(&document.name, extra))?;
            }
            if config.is_some_and(|config| std::ptr::eq(config, document)) {
                parsed.templates = templates(&reader)?;
            }
        }
        if let Some(document) = chat_template {
            let (name, place) = ("default".to_owned(), document.name.clone());
            let source = document.text()?.to_owned();
            parsed.templates.retain(|template| template.name != name);
            parsed.templates.push(ChatTemplate { name, place, source });
        }
        Ok(parsed)
    }

    /// Every `…_token`: its spelling, or an object with it as `content`.
    fn add_special_tokens(&mut self, reader: &Reader<'_>) -> Result<()> {
        for (key, value) in reader.iter().filter(|(key, value)| key.ends_with("_token") && !value.is_null()) {
            let content = match value {
                Value::Object(_) => value.get("content").and_then(Value::as_str),
                Value::Bool(_) => continue, // add_bos_token and its like
                other => other.as_str(),
            };
            let content =
                content.ok_or_else(|| reader.wrong(key, "a token: a string, or an object with its content"))?;
            self.special_tokens.insert(key.clone(), content.to_owned());
        }
        Ok(())
    }
}

/// `chat_template`: one, or a list of `{"name", "template"}`.
fn templates(reader: &Reader<'_>) -> Result<Vec<ChatTemplate>> {
    const KEY: &str = "chat_template";
    let wrong = || reader.wrong(KEY, "a template, or a list of objects with name and template");
    let template = |name: &str, source: &str| ChatTemplate {
        name: name.to_owned(),
        place: reader.place(KEY),
        source: source.to_owned(),
    };
    match reader.get(KEY) {
        None => Ok(Vec::new()),
        Some(Value::String(source)) => Ok(vec![template("default", source)]),
        Some(Value::Array(list)) => {
            let text = |entry: &Value, key| entry.get(key).and_then(Value::as_str).map(str::to_owned);
            list.iter()
                .map(|entry| {
                    let (name, source) = text(entry, "name").zip(text(entry, "template")).ok_or_else(wrong)?;
                    let named = template(&name, &source);
                    Ok(ChatTemplate { place: format!("{} \"{name}\"", named.place), ..named })
                })
                .collect()
        }
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Status;

    fn parse(config: Option<&str>, map: Option<&str>, template: Option<&str>) -> Result<TokenizerConfig> {
        let document = |name: &str, text: &str| Document { name: name.to_owned(), bytes: text.as_bytes().to_vec() };
        let config = config.map(|text| document("tokenizer_config.json", text));
        let map = map.map(|text| document("special_tokens_map.json", text));
        let template = template.map(|text| document("chat_template.jinja", text));
        TokenizerConfig::parse("dir", config.as_ref(), map.as_ref(), template.as_ref())
    }

    #[test]
    fn special_tokens_are_strings_or_objects() {
        let config = r#"{"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "unk_token": null,
            "add_bos_token": true, "extra_special_tokens": {"image_token": "<img>"}, "model_max_length": 1e30}"#;
        let map = r#"{"bos_token": "<old>", "pad_token": "<pad>"}"#;
        let tokens = parse(Some(config), Some(map), None).unwrap().special_tokens;
        let pairs: Vec<_> = tokens.iter().map(|(key, token)| (key.as_str(), token.as_str())).collect();
        let expected = [("bos_token", "<s>"), ("eos_token", "</s>"), ("image_token", "<img>"), ("pad_token", "<pad>")];
        assert_eq!(pairs, expected);
        assert_eq!(parse(None, None, None).unwrap().templates, []);
    }

    #[test]
    fn templates_are_one_or_several_and_the_file_wins() {
        let names = |parsed: TokenizerConfig| {
            let named = parsed.templates.into_iter().map(|t| format!("{}={} ({})", t.name, t.source, t.place));
            named.collect::<Vec<_>>().join("; ")
        };
        let one = r#"{"chat_template": "one"}"#;
        assert_eq!(names(parse(Some(one), None, None).unwrap()), "default=one (tokenizer_config.json: chat_template)");
        assert_eq!(names(parse(Some(one), None, Some("file")).unwrap()), "default=file (chat_template.jinja)");
        let two = r#"{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}"#;
        assert_eq!(
            names(parse(Some(two), None, Some("file")).unwrap()),
            "tool_use=b (tokenizer_config.json: chat_template \"tool_use\"); default=file (chat_template.jinja)"
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (config, words) in [
            ("[]", "tokenizer_config.json: expected a JSON object"),
            ("{", "tokenizer_config.json: expected JSON"),
            (r#"{"eos_token": 5}"#, "tokenizer_config.json: eos_token: expected a token"),
            (r#"{"eos_token": {"text": "x"}}"#, "tokenizer_config.json: eos_token: expected a token"),
            (r#"{"chat_template": 5}"#, "tokenizer_config.json: chat_template: expected a template"),
            (r#"{"chat_template": [{"name": "x"}]}"#, "tokenizer_config.json: chat_template: expected a template"),
        ] {
            let e = parse(Some(config), None, None).unwrap_err();
            assert!(matches!(e.status, Status::Format | Status::Config) && e.message.contains(words), "{config}: {e}");
        }
    }
}
