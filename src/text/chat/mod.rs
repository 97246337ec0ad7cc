//! Chat templates: messages in, the prompt that the model was trained on out, as transformers' `apply_chat_template`.
//!
//! - `guard.rs`: a template is code from strangers; its work, memory and stack are bounded.
//! - `python.rs`: the parts of Python that templates use.
//! - `clock.rs`: `strftime_now`.
//! - `protect.rs`: text of messages stays text, even where it is spelled like a special token.

mod clock;
mod guard;
mod protect;
mod python;

use super::{EncodeOptions, Tokenizer};
use crate::checkpoint::{ChatTemplate, TokenizerConfig};
use crate::error::{Error, Result};
use crate::memory;
use crate::panic::quietly;
use crate::pool::{BlockedSignals, DefaultFloats};
use crate::{bail, err};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, ErrorKind, Value};
use protect::Protector;

/// Marks around text of messages that is spelled like a control token. Noncharacters: no text has them.
const START: char = '\u{fdd0}';
const END: char = '\u{fdd1}';

/// Longest template; the longest known have 30 KiB. Bounds how deep its syntax can nest.
const MAX_TEMPLATE: usize = 128 << 10;
/// Longest request.
const MAX_REQUEST: usize = 16 << 20;
/// Bytes of memory for each byte of a request, at most: its values, and their marked copies.
const PARSED_BYTES: usize = 64;
/// Work of one rendering: instructions, or 64 bytes of text each. A fifth of a second, and at most 128 MB.
const FUEL: u64 = 2_000_000;
/// Stack of the thread that renders: enough for the deepest syntax and value that the other bounds let through. Only
/// what is touched takes memory.
const STACK: usize = 256 << 20;

/// Names under which a message's reasoning is known; the first is the one that templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Renders the request `json` (see `rie_chat_render`) by the templates of `config`.
pub fn render(config: &TokenizerConfig, json: &str) -> Result<String> {
    let request = Request::parse(json)?;
    let template = request.template(config)?;
    request.render(config, &template, &|text| text.to_owned())
}

/// The tokens of the rendered prompt, with the ones that the tokenizer puts at the beginning unless the template did.
/// Control tokens that are spelled in the request are text, unless `parse_special`.
pub fn tokenize(config: &TokenizerConfig, tokenizer: &Tokenizer, json: &str, parse_special: bool) -> Result<Vec<u32>> {
    let request = Request::parse(json)?;
    let template = request.template(config)?;
    let mut ids = if parse_special {
        let text = request.render(config, &template, &|text| text.to_owned())?;
        tokenizer.encode(&text, EncodeOptions { add_special: false, parse_special: true })?
    } else {
        let protector = Protector::new(tokenizer, &template.source);
        let text = request.render(config, &template, &|text| protector.mark(text))?;
        protector.encode(&text)?
    };
    if !ids.starts_with(tokenizer.prefix()) {
        ids.splice(0..0, tokenizer.prefix().iter().copied());
    }
    Ok(ids)
}

/// What a host asks for.
struct Request {
    /// Variables of the template, `messages` among them.
    variables: Vec<(String, Value)>,
    /// A template of the host's own, or the name of one of the model's.
    template: Option<String>,
    has_tools: bool,
    /// Seconds since 1970, for `strftime_now`.
    now: i64,
}

impl Request {
    fn parse(json: &str) -> Result<Request> {
        if json.len() > MAX_REQUEST {
            bail!(InvalidArgument, "json: expected at most {MAX_REQUEST} bytes, found {}", json.len());
        }
        memory::expect_room(json.len().saturating_mul(PARSED_BYTES), "json")?;
        let value: Value = serde_json::from_str(json).map_err(|e| err!(InvalidArgument, "json: {e}"))?;
        let mut request = Request { variables: Vec::new(), template: None, has_tools: false, now: clock::now() };
        let mut add_generation_prompt = Value::from(false);
        let (mut messages, mut tools, mut documents) = (None, Value::from(()), Value::from(()));
        for (key, value) in pairs(&value).ok_or_else(|| wrong("json", "an object", &value))? {
            let absent = value.is_none();
            match key.as_str() {
                "messages" => messages = Some(read_messages(&value)?),
                "tools" => tools = if absent { value } else { list_of_objects("tools", value)? },
                "documents" => documents = if absent { value } else { list_of_objects("documents", value)? },
                "add_generation_prompt" => add_generation_prompt = boolean(&key, value)?,
                "continue_final_message" if value.is_true() => {
                    bail!(Unsupported, "json: continue_final_message: not supported by this version")
                }
                "chat_template" if absent => {}
                "chat_template" => match value.as_str() {
                    Some(text) => request.template = Some(text.to_owned()),
                    None => return Err(wrong("json: chat_template", "a template or its name", &value)),
                },
                "now" => {
                    let seconds = value.as_i64().filter(|s| s.unsigned_abs() < 1 << 40);
                    request.now = seconds.ok_or_else(|| wrong("json: now", "seconds since 1970", &value))?;
                }
                _ => request.variables.push((key, value)),
            }
        }
        let messages =
            messages.ok_or_else(|| err!(InvalidArgument, "json: messages: expected a list, found nothing"))?;
        request.has_tools = !tools.is_none();
        request.variables.extend(
            [
                ("messages", messages),
                ("tools", tools),
                ("documents", documents),
                ("add_generation_prompt", add_generation_prompt),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        Ok(request)
    }

    /// The host's own template, or the one of the model that transformers would choose.
    fn template(&self, config: &TokenizerConfig) -> Result<ChatTemplate> {
        let named = |name: &str| config.templates.iter().find(|template| template.name == name);
        if let Some(own) = &self.template {
            let place = "json: chat_template".to_owned();
            return Ok(named(own).cloned().unwrap_or(ChatTemplate { name: String::new(), place, source: own.clone() }));
        }
        let chosen = if self.has_tools { named("tool_use") } else { None }.or_else(|| named("default"));
        chosen.cloned().ok_or_else(|| match &config.templates[..] {
            [] => err!(Template, "{}: the model has no chat template; give one as chat_template", config.place),
            some => {
                let names: Vec<&str> = some.iter().map(|template| &template.name[..]).collect();
                err!(Template, "{}: no template is the default; name one of {}", config.place, names.join(", "))
            }
        })
    }

    /// Renders; each string of the request goes through `mark` first.
    fn render(&self, config: &TokenizerConfig, template: &ChatTemplate, mark: &Mark<'_>) -> Result<String> {
        if template.source.len() > MAX_TEMPLATE {
            let (place, found) = (&template.place, template.source.len());
            bail!(Template, "{place}: expected a template of at most {MAX_TEMPLATE} bytes, found {found}");
        }
        let own = self.variables.iter().map(|(name, value)| (name.as_str(), marked(value, mark)));
        let special = config.special_tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token.as_str())));
        // The request's variables come last, and win.
        let variables = Value::from_pairs(special.chain(own));
        on_a_deep_stack(move || run(template, variables, self.now))?
    }
}

type Mark<'a> = dyn Fn(&str) -> String + Sync + 'a;

/// Runs `f` where even the deepest template that the bounds allow finds room, whatever the stack of the host's thread.
fn on_a_deep_stack<T: Send>(f: impl FnOnce() -> T + Send) -> Result<T> {
    memory::expect_room(STACK, "the thread that renders the template")?;
    std::thread::scope(|scope| {
        let signals = BlockedSignals::set();
        let thread = std::thread::Builder::new().name("rie-chat".into()).stack_size(STACK);
        let thread = thread
            .spawn_scoped(scope, || {
                let _floats = DefaultFloats::set();
                quietly(f)
            })
            .map_err(|e| err!(NoMemory, "the thread that renders the template cannot be started: {e}"))?;
        drop(signals); // not while it waits
        thread.join().map_err(|_| err!(Internal, "the thread that renders the template ended"))?
    })
}

fn run(template: &ChatTemplate, variables: Value, now: i64) -> Result<String> {
    let failed = |e| template_error(template, &e);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?;
    let mut env = Environment::new();
    env.set_syntax(syntax);
    env.set_fuel(Some(FUEL));
    guard::install(&mut env);
    python::install(&mut env);
    env.remove_global("debug");
    env.add_function("raise_exception", |message: &Value| -> std::result::Result<(), _> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("raise_exception: {message}")))
    });
    env.add_function("strftime_now", move |format: &str| {
        let directive = || guard::refused("strftime_now: the format has an unknown directive");
        clock::strftime(format, now).ok_or_else(directive)
    });
    let source = guard::rewrite(&template.source).map_err(failed)?;
    let compiled = env.template_from_named_str("chat_template", &source).map_err(failed)?;
    compiled.render(variables).map_err(failed)
}

/// The template's place, the line, and what was wrong.
fn template_error(template: &ChatTemplate, e: &minijinja::Error) -> Error {
    let place = &template.place;
    let line = e.line().map(|line| format!(", line {line}")).unwrap_or_default();
    let mut what = match (e.kind(), e.detail()) {
        (ErrorKind::OutOfFuel, _) => "the template does too much work or makes too much text".to_owned(),
        (ErrorKind::InvalidOperation, Some(detail)) => detail.to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    let mut source = std::error::Error::source(e);
    while let Some(cause) = source {
        what = format!("{what}: {cause}");
        source = cause.source();
    }
    err!(Template, "{place}{line}: {}", what.replace([START, END], ""))
}

/// The keys and values of an object, in the order of the text.
fn pairs(value: &Value) -> Option<Vec<(String, Value)>> {
    if value.kind() != ValueKind::Map {
        return None;
    }
    let pairs = value.as_object()?.try_iter_pairs()?;
    Some(pairs.map(|(key, value)| (key.to_string(), value)).collect())
}

fn items(value: &Value) -> Option<Vec<Value>> {
    if value.kind() != ValueKind::Seq {
        return None;
    }
    value.try_iter().ok().map(Iterator::collect)
}

fn wrong(place: &str, expected: &str, found: &Value) -> Error {
    err!(InvalidArgument, "{place}: expected {expected}, found a value of the kind {}", found.kind())
}

fn boolean(key: &str, value: Value) -> Result<Value> {
    match value.kind() {
        ValueKind::Bool => Ok(value),
        _ => Err(wrong(&format!("json: {key}"), "true or false", &value)),
    }
}

fn list_of_objects(key: &str, value: Value) -> Result<Value> {
    let list = items(&value).ok_or_else(|| wrong(&format!("json: {key}"), "a list of objects", &value))?;
    match list.iter().position(|item| item.kind() != ValueKind::Map) {
        Some(i) => Err(wrong(&format!("json: {key}[{i}]"), "an object", &list[i])),
        None => Ok(value),
    }
}

/// The messages as transformers hands them to a template: without keys that are null, and with a message's reasoning
/// under the names that templates read.
fn read_messages(value: &Value) -> Result<Value> {
    let list = items(&list_of_objects("messages", value.clone())?).unwrap_or_default();
    if list.is_empty() {
        bail!(InvalidArgument, "json: messages: expected at least one message, found none");
    }
    let messages = list.iter().map(|message| {
        let mut fields = pairs(message).unwrap_or_default();
        fields.retain(|(_, value)| !value.is_none());
        let find = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        if let Some(reasoning) = REASONING.iter().find_map(|name| find(name)) {
            if find("thinking").is_none() {
                fields.insert(0, ("thinking".to_owned(), reasoning.clone()));
            }
            match fields.iter_mut().find(|(key, _)| key == "reasoning_content") {
                Some((_, value)) => *value = reasoning,
                None => fields.push(("reasoning_content".to_owned(), reasoning)),
            }
        }
        Value::from_pairs(fields)
    });
    Ok(Value::from(messages.collect::<Vec<_>>()))
}

/// The value with each of its strings, keys included, marked.
fn marked(value: &Value, mark: &Mark<'_>) -> Value {
    if let Some(text) = value.as_str() {
        return Value::from(mark(text));
    }
    if let Some(pairs) = pairs(value) {
        return Value::from_pairs(pairs.into_iter().map(|(key, value)| (mark(&key), marked(&value, mark))));
    }
    match items(value) {
        Some(items) => Value::from(items.iter().map(|item| marked(item, mark)).collect::<Vec<_>>()),
        None => value.clone(),
    }
}
