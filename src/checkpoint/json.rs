//! Typed reading of a JSON object. Every error names the file and the key, what was expected and what was found.

use super::Document;
use super::header::Shown;
use crate::err;
use crate::error::{Error, Result};
use crate::memory;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// Bytes of memory for each byte of JSON, at most: `[0,0,…` as values, in vectors that grow by doubling.
const PARSED_BYTES: usize = 64;

/// Parses a file that must hold a JSON object.
pub(super) fn parse_object(document: &Document) -> Result<Map<String, Value>> {
    let name = &document.name;
    memory::expect_room(document.bytes.len().saturating_mul(PARSED_BYTES), name)?;
    match serde_json::from_slice(&document.bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(err!(Format, "{name}: expected a JSON object, found {}", found(Some(&other)))),
        Err(e) => Err(err!(Format, "{name}: expected JSON: {e}")),
    }
}

/// An object of a file, read key by key. A key that is null counts as absent, as in transformers.
pub(super) struct Reader<'a> {
    file: &'a str,
    /// Where the object is in the file: empty, or `rope_scaling.`
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a str, map: &'a Map<String, Value>) -> Self {
        Reader { file, path: String::new(), map }
    }

    /// The value of `key`, unless it is absent or null.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// Whether the key is there, even if null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// The keys and values of the object.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter()
    }

    /// A Config error at `key`.
    pub(super) fn wrong(&self, key: &str, expected: impl std::fmt::Display) -> Error {
        err!(Config, "{}: expected {expected}, found {}", self.place(key), found(self.map.get(key)))
    }

    /// An Unsupported error at `key`.
    pub(super) fn unsupported(&self, key: &str, why: impl std::fmt::Display) -> Error {
        err!(Unsupported, "{}: {why}", self.place(key))
    }

    /// Where `key` is, for messages.
    pub(super) fn place(&self, key: &str) -> String {
        format!("{}: {}{key}", self.file, self.path)
    }

    /// A whole number within `range`, if there is one.
    pub(super) fn size(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let size = value.as_u64().and_then(|v| usize::try_from(v).ok()).filter(|v| range.contains(v));
        let expected = || format!("a whole number from {} to {}", range.start(), range.end());
        size.map(Some).ok_or_else(|| self.wrong(key, expected()))
    }

    /// A whole number within `range` that must be there.
    pub(super) fn required_size(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.size(key, range)?.ok_or_else(|| self.wrong(key, expected))
    }

    /// A number that `valid` accepts, if there is one; `expected` describes it. JSON numbers are finite.
    pub(super) fn number(&self, key: &str, expected: &str, valid: impl Fn(f64) -> bool) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_f64().filter(|&v| v.is_finite() && valid(v)).map(Some).ok_or_else(|| self.wrong(key, expected))
    }

    /// `true` or `false`, or `default` if absent.
    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool> {
        let Some(value) = self.get(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.wrong(key, "true or false"))
    }

    /// A string, if there is one.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a string"))
    }

    /// A list of what `item` accepts, if there is one; `expected` describes it.
    pub(super) fn list<T>(
        &self,
        key: &str,
        expected: &str,
        item: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let items = value.as_array().and_then(|items| items.iter().map(item).collect());
        items.map(Some).ok_or_else(|| self.wrong(key, expected))
    }

    /// An object inside this one, if there is one.
    pub(super) fn object(&self, key: &str) -> Result<Option<Reader<'a>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.wrong(key, "an object"))?;
        Ok(Some(Reader { file: self.file, path: format!("{}{key}.", self.path), map }))
    }
}

/// A value as a message shows it.
fn found(value: Option<&Value>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(Value::Object(map)) => format!("an object of {} keys", map.len()),
        Some(Value::Array(items)) if items.len() > 8 => format!("a list of {}", items.len()),
        Some(Value::Array(items)) => {
            format!("[{}]", items.iter().map(|v| found(Some(v))).collect::<Vec<_>>().join(", "))
        }
        Some(Value::String(text)) => format!("\"{}\"", Shown(text)),
        Some(scalar) => scalar.to_string(),
    }
}
