//! What keeps a hostile template from hanging the host, filling its memory or overflowing its stack.
//!
//! minijinja's fuel bounds instructions, output and the strings that operators make. It does not bound what a value
//! costs as a whole: 64 times `{% set a = [a, a] %}` is cheap, and then comparing or printing `a` takes for ever; a
//! namespace that holds itself, or a list nested 100,000 deep, overflows the stack. So the source is rewritten before it
//! is compiled: every expression that makes a container or gives a value a name goes through the filter [`guard`],
//! which measures the value and refuses a monster. `{% set a = [a, a] %}` becomes `{% set a = (([a, a]|_guard))|_guard %}`.
//!
//! Nor does fuel bound what walks over a value without making one: `x[999999]` of a text, `a in 'x'` of a list. So an index
//! and a condition ask the filter `_tick` first, which, like the others, refuses to go on after [`MAX_TIME`]:
//! `{% if true|_tick and (a in 'x') %}`.
//!
//! The same pass turns transformers' `{% generation %}` blocks into `{% with %}` blocks, which render their body as it is.

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value};
use std::time::{Duration, Instant};

/// The names of the three filters. A template that names them itself gains nothing.
const GUARD: &str = "_guard";
const GUARD_FIELD: &str = "_guard_field";
const TICK: &str = "_tick";
/// Before a condition, which gets a parenthesis behind it.
const CONDITION: &str = " true|_tick and (";

/// Longest rendering; what the fuel pays for takes a fifth of it.
const MAX_TIME: Duration = Duration::from_secs(1);

/// Deepest nesting of a value; the JSON of a request has at most 128 levels.
const MAX_DEPTH: usize = 160;
/// Most that a value may weigh: one for each element, and one for each 64 bytes of text.
const MAX_WEIGHT: u64 = 1 << 20;
/// Most `+` in one expression; known templates have 11. A sum of lists is measured when it gets a name, not before, and
/// minijinja copies the lists of a sum that is more than 32 deep, without fuel.
const MAX_ADDED: usize = 24;
/// Most `in` in one expression; known templates have 3. A list is written out to be found in a text, without fuel.
const MAX_SOUGHT: usize = 16;

/// Adds the filters to `env`. The time starts now.
pub(super) fn install(env: &mut Environment<'_>) {
    let start = Instant::now();
    let tick = move || match start.elapsed() > MAX_TIME {
        true => Err(refused("the template takes too long")),
        false => Ok(()),
    };
    env.add_filter(TICK, move |value: Value| tick().map(|()| value));
    env.add_filter(GUARD, move |state: &State<'_, '_>, value: Value| tick().and_then(|()| guard(state, value)));
    env.add_filter(GUARD_FIELD, move |state: &State<'_, '_>, value: Value| {
        tick().and_then(|()| guard_field(state, value))
    });
    env.set_formatter(move |out, state, value| {
        tick()?;
        charge(state, value)?;
        minijinja::escape_formatter(out, state, value)
    });
}

/// The filter for values that get a name.
fn guard(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    charge(state, &value)?;
    Ok(value)
}

/// The filter for values that go into a namespace, the only thing that can be changed: a namespace in it could end up
/// inside itself, and a lazy value in it could grow link by link.
fn guard_field(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    if is_namespace(&value) {
        return Err(refused("a namespace cannot be stored in a namespace"));
    }
    charge(state, &value)?;
    match value.kind() {
        ValueKind::Iterable => value.try_iter()?.checked().collect::<Result<Vec<_>, _>>().map(Value::from),
        _ => Ok(value),
    }
}

/// Measures a value and pays for the work.
pub(super) fn charge(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    if value.as_object().is_none() {
        return Ok(());
    }
    let mut weight = 0;
    measure(value, 0, &mut weight)?;
    state.consume_fuel(weight / 8)
}

fn measure(value: &Value, depth: usize, weight: &mut u64) -> Result<(), Error> {
    *weight += 1 + value.as_str().map_or(0, |s| s.len() as u64 / 64);
    if *weight > MAX_WEIGHT {
        return Err(refused("a value is too large"));
    }
    if depth > MAX_DEPTH {
        return Err(refused("a value is nested too deep"));
    }
    let Some(object) = value.as_object() else { return Ok(()) };
    if depth > 0 && is_namespace(value) {
        return Err(refused("a namespace cannot be stored in a list or a mapping"));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()?.checked() {
                measure(&item?, depth + 1, weight)?;
            }
        }
        ValueKind::Map => {
            for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                measure(&key, depth + 1, weight)?;
                measure(&item, depth + 1, weight)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("Namespace"))
}

pub(super) fn refused(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

/// The source with its guards. Lines stay where they are. What is not well formed passes as it is: the compiler, which
/// reads the result, has the better message.
pub(super) fn rewrite(source: &str) -> Result<String, Error> {
    let mut r = Rewriter { rest: source, out: String::with_capacity(source.len() * 2), most_added: 0, most_sought: 0 };
    while let Some(at) = r.rest.find('{') {
        r.copy(at);
        match r.rest.as_bytes().get(1) {
            Some(b'#') => r.copy_through("#}"),
            Some(b'{') => {
                r.copy(2);
                r.expression("}}", Tail::None);
            }
            Some(b'%') => r.tag(),
            _ => r.copy(1),
        }
    }
    r.copy(r.rest.len());
    if r.most_added > MAX_ADDED {
        return Err(refused("an expression adds up too many values"));
    }
    if r.most_sought > MAX_SOUGHT {
        return Err(refused("an expression asks for too many values whether they are in others"));
    }
    Ok(r.out)
}

struct Rewriter<'a> {
    rest: &'a str,
    out: String,
    /// Most `+` in one expression.
    most_added: usize,
    /// Most `in` in one expression.
    most_sought: usize,
}

/// An open bracket.
#[derive(Clone, Copy, PartialEq)]
enum Open {
    /// Of a list, a mapping, a tuple or a group: guarded as a whole.
    Literal,
    /// Behind a value: `a[…]`; its first part is guarded if it is still open.
    Index(bool),
    /// Of arguments, each guarded; whether one is open.
    Arguments(bool),
}

/// What is guarded outside all brackets.
#[derive(Clone, Copy, PartialEq)]
enum Tail {
    None,
    /// The whole expression, by the filter of this name.
    Whole(&'static str),
    /// What a chain of filters makes, by one more of this name.
    Filters(&'static str),
    /// Each value of `a = …, b = …`; what stands alone is a parameter's name.
    Named,
    /// A condition as a whole.
    Condition,
    /// The condition of a loop, if it has one: `for a in b if …`.
    Loop,
}

impl<'a> Rewriter<'a> {
    fn copy(&mut self, n: usize) {
        let (done, rest) = self.rest.split_at(n);
        self.out.push_str(done);
        self.rest = rest;
    }

    fn copy_through(&mut self, end: &str) {
        self.copy(self.rest.find(end).map_or(self.rest.len(), |at| at + end.len()));
    }

    fn copy_spaces(&mut self) {
        self.copy(self.rest.len() - self.rest.trim_start().len());
    }

    fn word(&self) -> &'a str {
        let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        &self.rest[..end]
    }

    /// Copies the names that a `set` or a `for` gives values to, up to the `=` or through the `in`.
    fn targets(&mut self) -> &'a str {
        let before = self.rest;
        loop {
            let word = self.word();
            self.copy(word.len());
            if word == "in" || !self.rest.starts_with([' ', '\t', '\r', '\n', '(', ')', ',', '.']) {
                break;
            }
            self.copy(1);
        }
        &before[..before.len() - self.rest.len()]
    }

    /// `{% … %}`, from its beginning.
    fn tag(&mut self) {
        self.copy(2);
        if self.rest.starts_with(['-', '+']) {
            self.copy(1);
        }
        self.copy_spaces();
        let word = self.word();
        match word {
            "generation" | "endgeneration" => {
                self.out.push_str(if word == "generation" { "with" } else { "endwith" });
                self.rest = &self.rest[word.len()..];
                self.copy_through("%}");
            }
            "raw" => {
                // To the tag before `endraw`, which is then copied like any other.
                let end = self.rest.find("endraw").and_then(|at| self.rest[..at].rfind("{%"));
                self.copy(end.unwrap_or(self.rest.len()));
            }
            "macro" => {
                self.copy(word.len());
                self.copy_spaces();
                self.copy(self.word().len());
                self.parameters();
                self.copy_through("%}");
            }
            "call" => {
                self.copy(word.len());
                self.parameters();
                self.expression("%}", Tail::None);
            }
            "set" => {
                self.copy(word.len());
                let targets = self.targets();
                let filter = if targets.contains('.') { GUARD_FIELD } else { GUARD };
                if self.rest.starts_with('=') {
                    self.copy(1);
                    self.expression("%}", Tail::Whole(filter));
                } else if self.rest.starts_with('|') {
                    // A block; its value is a text until a filter makes something else of it.
                    self.expression("%}", Tail::Filters(filter));
                }
            }
            "for" => {
                self.copy(word.len());
                self.targets();
                self.expression("%}", Tail::Loop);
            }
            "if" | "elif" => {
                self.copy(word.len());
                self.expression("%}", Tail::Condition);
            }
            "with" => {
                self.copy(word.len());
                self.expression("%}", Tail::Named);
            }
            _ => {
                self.copy(word.len());
                self.expression("%}", Tail::None);
            }
        }
    }

    /// The parameters of a macro or of a call block, if there are any; their defaults are guarded.
    fn parameters(&mut self) {
        self.copy_spaces();
        if self.rest.starts_with('(') {
            self.copy(1);
            self.expression(")", Tail::Named);
        }
    }

    /// An expression up to `end`, which is copied too.
    fn expression(&mut self, end: &str, tail: Tail) {
        let mut stack: Vec<Open> = Vec::new();
        let mut after_value = false;
        let (mut added, mut sought) = (0, 0);
        let mut in_condition = tail == Tail::Condition;
        match tail {
            Tail::Condition => self.out.push_str(CONDITION),
            Tail::Whole(_) => self.out.push_str(" ("),
            Tail::Named => stack.push(self.begin_argument(end, true)),
            Tail::Filters(_) | Tail::Loop | Tail::None => {}
        }
        let outermost = stack.len();
        while let Some(c) = self.rest.chars().next() {
            let tail_at = usize::from(matches!(c, '-' | '+'));
            if stack.len() == outermost && self.rest[tail_at..].starts_with(end) {
                break;
            }
            match c {
                '\'' | '"' => {
                    self.copy(string_literal(self.rest));
                    after_value = true;
                }
                '(' | '[' | '{' => {
                    let open = match (after_value, c) {
                        (true, '(') => {
                            self.copy(1);
                            self.begin_argument(")", false)
                        }
                        (true, '[') => {
                            self.copy(1);
                            self.begin_index()
                        }
                        _ => {
                            self.out.push('(');
                            self.copy(1);
                            Open::Literal
                        }
                    };
                    stack.push(open);
                    after_value = false;
                }
                ')' | ']' | '}' if stack.len() > outermost => {
                    self.end_index(&mut stack);
                    match stack.pop() {
                        Some(Open::Literal) => {
                            self.copy(1);
                            self.out.push_str("|_guard)");
                        }
                        Some(open) => {
                            self.end_argument(open);
                            self.copy(1);
                        }
                        None => {}
                    }
                    after_value = true;
                }
                ',' => {
                    match stack.pop() {
                        Some(open @ Open::Arguments(_)) => {
                            self.end_argument(open);
                            self.copy(1);
                            let outer = stack.len() + 1 == outermost;
                            stack.push(self.begin_argument(if outer { end } else { ")" }, outer));
                        }
                        other => {
                            stack.extend(other);
                            self.copy(1);
                        }
                    }
                    after_value = false;
                }
                ':' => {
                    self.end_index(&mut stack);
                    self.copy(1);
                    after_value = false;
                }
                _ if c.is_alphanumeric() || c == '_' => {
                    let word = self.word();
                    if tail == Tail::Loop && in_condition && word == "recursive" && stack.is_empty() {
                        self.out.push_str(") ");
                        in_condition = false;
                    }
                    self.copy(word.len());
                    sought += usize::from(word == "in");
                    if tail == Tail::Loop && word == "if" && stack.is_empty() && !in_condition {
                        self.out.push_str(CONDITION);
                        in_condition = true;
                    }
                    after_value = !matches!(word, "and" | "or" | "not" | "in" | "is" | "if" | "else" | "elif");
                }
                _ => {
                    added += usize::from(c == '+');
                    self.copy(c.len_utf8());
                    after_value &= c.is_whitespace();
                }
            }
        }
        self.most_added = self.most_added.max(added);
        self.most_sought = self.most_sought.max(sought);
        match tail {
            Tail::Whole(filter) => {
                self.out.push_str(")|");
                self.out.push_str(filter);
                self.out.push(' ');
            }
            Tail::Filters(filter) => {
                self.out.push('|');
                self.out.push_str(filter);
                self.out.push(' ');
            }
            Tail::Named => stack.first().into_iter().for_each(|&open| self.end_argument(open)),
            Tail::Condition | Tail::Loop if in_condition => self.out.push_str(") "),
            Tail::Condition | Tail::Loop | Tail::None => {}
        }
        self.copy_through(end);
    }

    /// Behind the `[` of an index: the parenthesis of its guard, with `none` for what a slice leaves out.
    fn begin_index(&mut self) -> Open {
        self.copy_spaces();
        if self.rest.starts_with(':') {
            self.out.push_str("none|_tick");
        }
        let guarded = !self.rest.starts_with([':', ']']);
        if guarded {
            self.out.push('(');
        }
        Open::Index(guarded)
    }

    /// At the end of an index, or of the first part of a slice.
    fn end_index(&mut self, stack: &mut [Open]) {
        if let Some(Open::Index(guarded @ true)) = stack.last_mut() {
            self.out.push_str(")|_tick");
            *guarded = false;
        }
    }

    /// Before an argument, if there is one: its name, and the parenthesis of its guard.
    fn begin_argument(&mut self, end: &str, only_named: bool) -> Open {
        self.copy_spaces();
        let word = self.word();
        let behind = self.rest[word.len()..].trim_start();
        let named = !word.is_empty() && behind.starts_with('=') && !behind.starts_with("==");
        if named {
            self.copy(self.rest.len() - behind.len() + 1);
        }
        // What `*` or `**` spreads is guarded as one value.
        self.copy(self.rest.len() - self.rest.trim_start_matches('*').len());
        // The end may have the sign of a tag that takes whitespace away, as in `-%}`.
        let behind_sign = self.rest.strip_prefix(['-', '+']).unwrap_or(self.rest);
        let guarded = (named || !only_named) && !self.rest.starts_with(end) && !behind_sign.starts_with(end);
        if guarded {
            self.out.push('(');
        }
        Open::Arguments(guarded)
    }

    fn end_argument(&mut self, open: Open) {
        if open == Open::Arguments(true) {
            self.out.push_str(")|_guard");
        }
    }
}

/// The length of the string literal that `text` begins with.
fn string_literal(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut escaped = false;
    for (i, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if byte == quote => return i + 1,
            _ => {}
        }
    }
    text.len()
}
