//! What templates take from Python and minijinja does otherwise: methods, `tojson`, tests and filters.

use super::guard::{charge, refused};
use super::{END, START};
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, tests as builtin};
use minijinja_contrib::pycompat::unknown_method_callback;
use std::borrow::Cow;

/// Adds all of it to `env`.
pub(super) fn install(env: &mut Environment<'_>) {
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", tojson);
    env.add_filter("string", |state: &State<'_, '_>, value: &Value| text(state, value));
    env.add_filter("join", |state: &State<'_, '_>, items: &Value, by: Option<String>, kwargs: Kwargs| {
        let attribute = kwargs.get::<Option<String>>("attribute")?;
        let by = by.or(kwargs.get("d")?);
        kwargs.assert_all_used()?;
        join(state, items, &by.unwrap_or_default(), attribute.as_deref())
    });
    env.add_filter("trim", |state: &State<'_, '_>, value: &Value, chars: Option<String>| {
        text(state, value).map(|text| strip(&text, chars.as_deref(), true, true).to_owned())
    });
    install_tests(env);
}

/// minijinja's tests, which compare and search without fuel, after paying for it; and what Python does otherwise.
fn install_tests(env: &mut Environment<'_>) {
    type Comparison = fn(&Value, &Value) -> bool;
    type Search = fn(Cow<'_, str>, Cow<'_, str>) -> bool;
    type Case = fn(&Value) -> bool;
    let comparisons: [(&[&str], Comparison); 7] = [
        (&["eq", "equalto", "=="], builtin::is_eq),
        (&["ne", "!="], builtin::is_ne),
        (&["lt", "lessthan", "<"], builtin::is_lt),
        (&["le", "<="], builtin::is_le),
        (&["gt", "greaterthan", ">"], builtin::is_gt),
        (&["ge", ">="], builtin::is_ge),
        (&["sameas"], builtin::is_sameas),
    ];
    for (names, test) in comparisons {
        for &name in names {
            env.add_test(name, move |state: &State<'_, '_>, value: &Value, other: &Value| {
                pay_for(state, value)?;
                Ok::<_, Error>(test(value, other))
            });
        }
    }
    let searches: [(&str, Search); 2] =
        [("startingwith", builtin::is_startingwith), ("endingwith", builtin::is_endingwith)];
    for (name, test) in searches {
        env.add_test(name, move |state: &State<'_, '_>, value: &Value, other: &Value| {
            Ok::<_, Error>(test(text(state, value)?.into(), text(state, other)?.into()))
        });
    }
    let cases: [(&str, Case); 2] = [("lower", builtin::is_lower), ("upper", builtin::is_upper)];
    for (name, test) in cases {
        env.add_test(name, move |state: &State<'_, '_>, value: &Value| {
            pay_for(state, value)?;
            Ok::<_, Error>(test(value))
        });
    }
    // Strings and mappings have a length and items.
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
}

/// Pays for a walk over the whole value.
fn pay_for(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    state.consume_fuel(value.as_str().map_or(0, |text| text.len() as u64 / 64))?;
    charge(state, value)
}

fn text(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    pay_for(state, value)?;
    Ok(value.to_string())
}

fn join(state: &State<'_, '_>, items: &Value, by: &str, attribute: Option<&str>) -> Result<String, Error> {
    charge(state, items)?;
    let mut out = String::new();
    for (i, item) in items.try_iter()?.checked().enumerate() {
        let item = item?;
        let item = attribute.map_or(Ok(item.clone()), |name| item.get_attr(name))?;
        let item = text(state, &item)?;
        state.consume_fuel(1 + by.len() as u64 / 64)?; // the item is paid for
        if i > 0 {
            out.push_str(by);
        }
        out.push_str(&item);
    }
    Ok(out)
}

/// The methods of Python that minijinja's own collection lacks, does otherwise, or does without paying first.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(s) = value.as_str() else { return unknown_method_callback(state, value, name, args) };
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Ok(strip(s, chars, name != "rstrip", name != "lstrip").into())
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(s.strip_prefix(prefix).unwrap_or(s).into())
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(s.strip_suffix(suffix).unwrap_or(s).into())
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            Ok(join(state, items, s, None)?.into())
        }
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            state.consume_fuel(1 + s.matches(is_line_end).count() as u64)?;
            Ok(split_lines(s, keep_ends.unwrap_or(false)).map(Value::from).collect())
        }
        "split" => {
            // A list takes far more room than the text it was split from.
            let pieces = match args.first().and_then(Value::as_str) {
                Some("") => return Err(refused("split: the separator is empty")),
                Some(separator) => s.matches(separator).count(),
                None => s.split(is_space).count(),
            };
            state.consume_fuel(1 + pieces as u64)?;
            match args {
                [] => Ok(s.split(is_space).filter(|piece| !piece.is_empty()).map(Value::from).collect()),
                _ => unknown_method_callback(state, value, name, args),
            }
        }
        "format" if has_long_number(s) => Err(refused("format: a width or precision of more than 4 digits")),
        _ => unknown_method_callback(state, value, name, args),
    }
}

/// `str.strip`. The marks of protected text at an end fall with the characters that they stand between, and only then.
fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let strippable = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    let is_mark = |c: char| c == START || c == END;
    let mut text = text;
    while start && let Some(rest) = text.trim_start_matches(is_mark).strip_prefix(strippable) {
        text = rest;
    }
    while end && let Some(rest) = text.trim_end_matches(is_mark).strip_suffix(strippable) {
        text = rest;
    }
    text
}

fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn split_lines(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(at) = rest.find(is_line_end) else { return Some(std::mem::take(&mut rest)) };
        let end = if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(0, char::len_utf8) };
        let line = &rest[..if keep_ends { at + end } else { at }];
        rest = &rest[at + end..];
        Some(line)
    })
}

/// Whether a format string asks for a huge width, or takes it from an argument.
fn has_long_number(format: &str) -> bool {
    let longest = format.split(|c: char| !c.is_ascii_digit()).map(str::len).max();
    longest > Some(4) || format.contains(":{")
}

/// How `json.dumps` writes.
struct Dumps<'a, 's, 'e> {
    state: &'a State<'s, 'e>,
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    out: String,
}

/// `tojson` as transformers has it: Python's `json.dumps` without escaping of HTML.
fn tojson(state: &State<'_, '_>, value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    type Arguments<'a> = (Option<&'a Value>, Option<&'a Value>, Option<&'a Value>, Option<&'a Value>, Kwargs);
    let args = args.into_values();
    let (ensure_ascii, indent, separators, sort_keys, kwargs): Arguments<'_> = from_args(&args)?;
    let pick = |positional: Option<&Value>, name: &str| -> Result<Option<Value>, Error> {
        let given = positional.cloned().or(kwargs.get(name)?);
        Ok(given.filter(|value| !value.is_none()))
    };
    let indent = match pick(indent, "indent")? {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(number) => Some(" ".repeat(usize::try_from(number).unwrap_or(0).min(64))),
    };
    let separators = pick(separators, "separators")?;
    let flag = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let ensure_ascii = flag(pick(ensure_ascii, "ensure_ascii")?);
    let sort_keys = flag(pick(sort_keys, "sort_keys")?);
    kwargs.assert_all_used()?;
    let separator = |i: usize, default: &str| match &separators {
        Some(pair) => pair.get_item_by_index(i).map(|s| s.to_string()),
        None => Ok(default.to_owned()),
    };
    let item_separator = separator(0, if indent.is_some() { "," } else { ", " })?;
    let key_separator = separator(1, ": ")?;
    let mut dumps = Dumps { state, ensure_ascii, indent, item_separator, key_separator, sort_keys, out: String::new() };
    charge(state, value)?;
    dumps.value(value, 0)?;
    Ok(dumps.out)
}

impl Dumps<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                self.sequence('[', ']', &items, depth, |dumps, item| dumps.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()?.checked() {
                    let key = key?;
                    let item = value.get_item(&key)?;
                    pairs.push((key_text(&key)?, item));
                }
                if self.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.sequence('{', '}', &pairs, depth, |dumps, (key, item)| {
                    dumps.string(key)?;
                    dumps.out.push_str(&dumps.key_separator);
                    dumps.value(item, depth + 1)
                })?;
            }
            kind => return Err(not_serializable(kind)),
        }
        Ok(())
    }

    fn sequence<T>(
        &mut self,
        open: char,
        close: char,
        items: &[T],
        depth: usize,
        write: impl Fn(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (i, item) in items.iter().enumerate() {
            self.state.consume_fuel(1)?;
            if i > 0 {
                self.out.push_str(&self.item_separator);
            }
            self.new_line(depth + 1)?;
            write(self, item)?;
        }
        if !items.is_empty() {
            self.new_line(depth)?;
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            self.state.consume_fuel((indent.len() * depth) as u64 / 64)?;
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.state.consume_fuel(text.len() as u64 / 64)?;
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\x08' => self.out.push_str("\\b"),
                '\x0c' => self.out.push_str("\\f"),
                START | END => self.out.push(c), // taken out of the whole later
                _ if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => self.out.push(c),
            }
        }
        self.out.push('"');
        Ok(())
    }
}

fn not_serializable(kind: ValueKind) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: a value of the kind {kind} has no JSON"))
}

fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Number => number(key),
        kind => return Err(not_serializable(kind)),
    })
}

/// A number as Python writes it.
fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => float_repr(float),
        _ => value.to_string(),
    }
}

/// The shortest decimal that reads back as the same number, in the form of Python's `repr`.
fn float_repr(value: f64) -> String {
    if !value.is_finite() {
        let name = if value.is_nan() { "NaN" } else { "Infinity" };
        return format!("{}{name}", if value < 0.0 { "-" } else { "" });
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent @ (..-4 | 16..)) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ => format!("{value:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        for (value, expected) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1e20, "1e+20"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e100, "1e+100"),
            (123456.789, "123456.789"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
        ] {
            assert_eq!(float_repr(value), expected);
        }
    }

    #[test]
    fn lines_and_ends_are_pythons() {
        let lines = |text| split_lines(text, false).collect::<Vec<_>>();
        assert_eq!(lines("a\nb\r\nc\rd\u{2028}e\n"), ["a", "b", "c", "d", "e"]);
        assert_eq!(lines("\n\n"), ["", ""]);
        assert_eq!(split_lines("a\r\nb", true).collect::<Vec<_>>(), ["a\r\n", "b"]);
        assert_eq!(strip(" \x1f\u{a0}a \n", None, true, true), "a");
        assert_eq!(strip("xxaxx", Some("x"), true, false), "axx");
        let marked = format!("{START}<s>{END}");
        assert_eq!(strip(&format!(" {marked}\n"), None, true, true), marked);
        assert_eq!(strip(&format!("a\n{START}"), None, true, true), "a");
    }
}
