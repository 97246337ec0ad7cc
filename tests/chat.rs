//! Chat templates, byte for byte as transformers renders them (tests/golden/chat), and what templates may not do.

use rie::checkpoint::{ChatTemplate, TokenizerConfig};
use rie::error::Status;
use rie::text::chat::{render, tokenize};
use rie::text::{EncodeOptions, Tokenizer};
use serde_json::{Value, json};
use std::path::PathBuf;

fn golden(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn config(template: &str) -> TokenizerConfig {
    let source = template.to_owned();
    let template = ChatTemplate { name: "default".into(), place: "dir/chat_template.jinja".into(), source };
    TokenizerConfig { place: "dir".into(), templates: vec![template], ..TokenizerConfig::default() }
}

/// What `template` makes of one message, or the message of the error.
fn rendered(template: &str) -> Result<String, String> {
    render(&config(template), r#"{"messages": [{"role": "user", "content": "Hi"}], "now": 0}"#).map_err(|e| {
        assert_eq!(e.status, Status::Template, "{e}");
        e.message
    })
}

#[test]
fn templates_render_as_in_transformers() {
    let reference: Value = serde_json::from_str(&golden("reference.json")).expect("the reference's form");
    // The order of keys counts, which serde_json's values do not keep: each conversation is a line.
    let text = golden("reference.json");
    let lines: Vec<&str> = text.lines().skip_while(|line| *line != "\"conversations\": [").skip(1).collect();
    let conversations: Vec<&str> = lines.iter().map(|line| line.trim_end_matches(',').trim_end_matches(']')).collect();
    let mut wrong = Vec::new();
    for family in reference["families"].as_array().expect("families") {
        let name = family["template"].as_str().expect("a name");
        let mut config = config(&golden(&format!("templates/{name}.jinja")));
        for (key, token) in family["special_tokens"].as_object().expect("special tokens") {
            config.special_tokens.insert(key.clone(), token.as_str().expect("a token").to_owned());
        }
        let outputs = family["outputs"].as_array().expect("outputs");
        let rendered = outputs.iter().filter(|output| output.is_string()).count();
        let enough = if name == "hermes-3-tool-use" { 5 } else { 10 }; // it needs tools
        assert!(rendered >= enough, "{name}: only {rendered} conversations are rendered");
        for (i, expected) in outputs.iter().enumerate() {
            let conversation = conversations[i].strip_suffix('}').expect("an object");
            let found = render(&config, &format!("{conversation}, \"now\": {}}}", reference["now"]));
            let same = match (&found, expected) {
                (Ok(text), Value::String(expected)) => text == expected,
                (Err(e), Value::Object(error)) => {
                    let said = error["error"].as_str().map(|text| format!("raise_exception: {text}"));
                    e.status == Status::Template && said.is_none_or(|said| e.message.ends_with(&said))
                }
                // Python fails on its own account: None is not iterable there.
                (Ok(_), Value::Object(error)) => error["error"].is_null(),
                _ => false,
            };
            if !same {
                wrong.push(format!("{name}, conversation {i}:\nexpected {expected}\nfound    {found:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn the_template_that_transformers_chooses() {
    let template = |name: &str, source: &str| ChatTemplate {
        name: name.into(),
        place: format!("tokenizer_config.json: {name}"),
        source: source.into(),
    };
    let mut config = TokenizerConfig { place: "dir".into(), ..TokenizerConfig::default() };
    let with = |config: &TokenizerConfig, more: Value| {
        let mut request = json!({"messages": [{"role": "user", "content": "Hi"}]});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        render(config, &request.to_string()).map_err(|e| (e.status, e.message))
    };
    let none = with(&config, json!({})).unwrap_err();
    assert_eq!(none.0, Status::Template);
    assert!(none.1.contains("dir: the model has no chat template"), "{}", none.1);
    assert_eq!(with(&config, json!({"chat_template": "own {{ x }}", "x": 5})).unwrap(), "own 5");
    config.templates = vec![template("tool_use", "tools"), template("rag", "rag")];
    let undecided = with(&config, json!({})).unwrap_err();
    assert!(undecided.1.ends_with("name one of tool_use, rag"), "{}", undecided.1);
    config.templates.push(template("default", "plain"));
    assert_eq!(with(&config, json!({})).unwrap(), "plain");
    assert_eq!(with(&config, json!({"tools": null})).unwrap(), "plain");
    assert_eq!(with(&config, json!({"tools": []})).unwrap(), "tools");
    assert_eq!(with(&config, json!({"tools": [{}], "chat_template": "rag"})).unwrap(), "rag");
    assert_eq!(with(&config, json!({"chat_template": null})).unwrap(), "plain");
}

#[test]
fn requests_are_checked() {
    let config = config("x");
    for (request, words) in [
        ("", "json: EOF"),
        ("[]", "json: expected an object"),
        ("{\"messages\": [}", "json: expected value at line 1 column 15"),
        ("{}", "messages: expected a list, found nothing"),
        (r#"{"messages": []}"#, "at least one message"),
        (r#"{"messages": {"role": "user"}}"#, "messages: expected a list of objects"),
        (r#"{"messages": [{}, 5]}"#, "messages[1]: expected an object"),
        (r#"{"messages": [{}], "tools": "x"}"#, "tools: expected a list"),
        (r#"{"messages": [{}], "documents": [1]}"#, "documents[0]: expected an object"),
        (r#"{"messages": [{}], "add_generation_prompt": 1}"#, "add_generation_prompt: expected true or false"),
        (r#"{"messages": [{}], "chat_template": 1}"#, "chat_template: expected a template"),
        (r#"{"messages": [{}], "now": "today"}"#, "now: expected seconds"),
        (r#"{"messages": [{}], "now": 1e300}"#, "now: expected seconds"),
    ] {
        let e = render(&config, request).expect_err(request);
        assert!(e.status == Status::InvalidArgument && e.message.contains(words), "{request}: {e}");
    }
    let e = render(&config, r#"{"messages": [{}], "continue_final_message": true}"#).unwrap_err();
    assert_eq!(e.status, Status::Unsupported);
    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(render(&config, &deep).unwrap_err().status, Status::InvalidArgument);
}

#[test]
fn errors_name_the_template_the_line_and_what_was_wrong() {
    for (template, message) in [
        ("a\n{{ raise_exception('No ' ~ 'way') }}", "dir/chat_template.jinja, line 2: raise_exception: No way"),
        ("\n\n{% if %}", "dir/chat_template.jinja, line 3: syntax error: "),
        ("{{ x.y }}", "dir/chat_template.jinja, line 1: undefined value"),
        ("{{ 'a'|frobnicate }}", "line 1: unknown filter: filter frobnicate is unknown"),
        ("{{ 'a'.frobnicate() }}", "line 1: unknown method: string has no method named frobnicate"),
        ("{{ frobnicate() }}", "line 1: unknown function: frobnicate is unknown"),
        ("{% include 'x' %}", "line 1: syntax error: unknown statement include"),
        ("{{ 'a' + 1 }}", "line 1: tried to use + operator on unsupported types string and number"),
        ("{{ strftime_now('%Q') }}", "line 1: strftime_now: the format has an unknown directive"),
        ("{{ {}|tojson(indnt=1) }}", "unknown keyword argument"),
        ("{{ u|tojson }}", "tojson: a value of the kind undefined has no JSON"),
    ] {
        let e = rendered(template).expect_err(template);
        assert!(e.contains(message), "{template}: {e}");
    }
}

/// `{% set v = … %}`, 64 times doubled.
fn doubled(name: &str, double: &str) -> String {
    format!("{{% set {name} = [1] %}}{}", format!("{{% set {name} = {double} %}}").repeat(64))
}

/// Parameters `a0` to `a64`, each but the last by default twice the next.
fn doubled_defaults(double: &str, last: &str) -> String {
    let default = |i: usize| format!("a{i}={}, ", double.replace('a', &format!("a{}", i + 1)));
    (0..64).map(default).collect::<String>() + "a64=" + last
}

#[test]
fn hostile_templates_are_errors_soon() {
    let grow = |what: &str, n: usize, then: &str| {
        format!(
            "{{% set ns = namespace(x=[]) %}}{{% for i in range({n}) %}}{{% for j in range({n}) %}}{{% set ns.x = {what} %}}\
             {{% endfor %}}{{% endfor %}}{then}"
        )
    };
    let big = "{% set x = 'a' * 1000000 %}";
    let huge = "{% set x = 'a' * 30000000 %}";
    let list = "{% set a = [1] * 1000000 %}";
    let macro_of =
        |parameters: &str, body: &str, then: &str| format!("{{% macro m({parameters}) %}}{body}{{% endmacro %}}{then}");
    let call_down = |argument: &str, last: &str| {
        let down = format!("{{{{ caller() }}}}{{% call m({argument}, n - 1) %}}{{% endcall %}}");
        macro_of("x, n", &format!("{{% if n %}}{down}{{% else %}}{{{{ '' ~ x }}}}{{% endif %}}"), last)
    };
    let calls = |head: &str, n: usize, body: &str| format!("{}{body}{}", head.repeat(n), "{% endcall %}".repeat(n));
    let nested = |open: &str, close: &str, n: usize| format!("{{{{ {}x{} }}}}", open.repeat(n), close.repeat(n));
    let hostile = [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
        "{% for i in range(99999) %}{% for j in range(99999) %}some text{% endfor %}{% endfor %}".to_owned(),
        grow("ns.x ~ ns.x ~ 'aaaaaaaa'", 1000, ""),
        grow("ns.x + ns.x + [1]", 1000, ""),
        grow("[ns.x]", 1000, "{{ ns.x }}"),
        grow("{'a': ns.x}", 1000, "{{ ns.x|tojson }}"),
        grow("(ns.x,)", 1000, "{{ ns.x == 1 }}"),
        grow("ns.x, ns.x", 1000, ""),
        grow("ns.x|map('string')", 1000, "{{ ns.x }}"),
        grow("dict(a=ns.x)", 1000, ""),
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ '' ~ ns }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns == ns }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.a = dict(b=ns) %}{{ ns|tojson }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.a, b = [ns, 1] %}{{ ns }}".to_owned(),
        format!("{}{}{{{{ a == b }}}}", doubled("a", "[a, a]"), doubled("b", "[b, b]")),
        format!("{}{{{{ '' ~ a }}}}", doubled("a", "[a, a]")),
        format!("{}{{{{ a }}}}", doubled("a", "{'x': a, 'y': a}")),
        format!("{}{{{{ a|length }}}}", doubled("a", "a + a")),
        format!("{}{{{{ a|string }}}}", doubled("a", "a, a")),
        format!("{}{{{{ a|join }}}}", doubled("a", "(a, a)")),
        "{% macro m(x) %}{{ m([x, x]) }}{{ '' ~ x }}{% endmacro %}{{ m(1) }}".to_owned(),
        "{% macro m(x) %}{{ m(x + x) }}{{ '' ~ x }}{% endmacro %}{{ m([1]) }}".to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        call_down("[x, x]", "{% call m(1, 60) %}{% endcall %}"),
        call_down("x + x", "{% call m([1], 100) %}{% endcall %}"),
        call_down("x ~ x", "{% call m('some text', 100) %}{% endcall %}"),
        macro_of("x, n", "{% if n %}{{ m(-1 if false else x + x, n - 1) }}{% endif %}{{ '' ~ x }}", "{{ m([1], 99) }}"),
        macro_of("", "{% call m() %}{{ caller() }}{% endcall %}{{ caller() }}", "{% call m() %}x{% endcall %}"),
        macro_of("", "{{ caller() }}{{ caller() }}", &calls("{% call m() %}", 64, "x")),
        macro_of("", "{{ caller() }}", &calls("{% call m() %}", 4000, "x")),
        macro_of("x", "{{ caller([x, x]) }}", &calls("{% call(x) m(x or 1) %}", 64, "{{ x }}")),
        macro_of("x", "{{ caller(x ~ x) }}", &calls("{% call(x) m(x or 'some text') %}", 64, "{{ x }}")),
        macro_of(
            "",
            "{{ caller() }}",
            &calls(&format!("{{% call({}) m() %}}", doubled_defaults("[a, a]", "1")), 1, "{{ a0 }}"),
        ),
        macro_of(&doubled_defaults("[a, a]", "1"), "{{ '' ~ a0 }}", "{{ m() }}"),
        macro_of(&doubled_defaults("a + a", "[1]"), "{{ '' ~ a0 }}", "{{ m() }}"),
        macro_of("", "", &format!("{list}{{{{ m(*a{}) }}}}", " + a".repeat(24))),
        format!("{list}{{{{ 2 in a{} }}}}", " + a".repeat(8)),
        format!("{list}{{{{ 2 in a{} }}}}", " + a".repeat(20_000)),
        format!("{{% set a = [1] %}}{}{{{{ '' ~ a }}}}", "{% set a | default([a, a], true) %}{% endset %}".repeat(64)),
        "{% set ns = namespace() %}{% set ns.a | default(ns, true) %}{% endset %}{{ '' ~ ns }}".to_owned(),
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned(),
        format!("{}{{{{ '' ~ x }}}}", "{% for x in [[x, x]] %}".repeat(64)),
        "{{ 'a' * 1000000000 }}".to_owned(),
        "{{ [1] * 1000000000 }}".to_owned(),
        "{{ range(1000000000)|list }}".to_owned(),
        format!("{big}{{{{ ''.join([x] * 100000) }}}}"),
        format!("{big}{{{{ ([x] * 100000)|join }}}}"),
        format!("{big}{{{{ ([x] * 100000)|tojson }}}}"),
        format!("{big}{{{{ [x] * 100000 }}}}"),
        format!("{big}{{{{ x.replace('a', x) }}}}"),
        format!("{big}{{{{ x|replace('a', x) }}}}"),
        format!("{big}{{% for i in range(99999) %}}{{% if x == x ~ '' %}}{{% endif %}}{{% endfor %}}"),
        format!("{big}{{% for i in range(99999) %}}{{{{ x.find('b') + x.count('b') }}}}{{% endfor %}}"),
        format!("{big}{{% for i in range(99999) %}}{{% if x[999999] %}}{{% endif %}}{{% endfor %}}"),
        format!("{big}{{% for i in range(99999) if x[-1] == 'b' %}}{{% endfor %}}"),
        format!("{big}{{% for i in range(99999) %}}{{% if x[-2::2] %}}{{% endif %}}{{% endfor %}}"),
        format!("{huge}{{{{ u.u.u{} }}}}", " or x[:1:-1]".repeat(8_000)),
        format!("{huge}{{{{ 1{} }}}}{{{{ u.u.u }}}}", " + x[-1]".repeat(23)).repeat(400),
        format!("{huge}{}{{{{ u.u.u }}}}", "{% if x is upper or x is lower %}{% endif %}".repeat(2_500)),
        format!("{huge}{{% set y = x ~ '' %}}{}{{{{ u.u.u }}}}", "{% if x is eq y %}{% endif %}".repeat(4_000)),
        format!("{huge}{{% set y = x ~ '' %}}{}{{{{ u.u.u }}}}", "{% if y is endingwith x %}{% endif %}".repeat(3_000)),
        format!("{list}{{% for i in range(99999) %}}{{% if a in 'x' %}}{{% endif %}}{{% endfor %}}"),
        format!("{list}{{% for i in range(99999) if a in 'x' %}}{{% endfor %}}"),
        format!("{list}{{{{ 1 if {} }}}}", "a in 'x' or ".repeat(2_000) + "a"),
        format!("{list}{}{{{{ u.u.u }}}}", "{% if a in 'x' %}{% elif a in 'x' %}{% endif %}".repeat(2_000)),
        format!("{{% set x = 'a' * 99 %}}{}{{{{ u.u.u }}}}", "{% set x = [x]*4|map(attribute='98') %}".repeat(2_000)),
        format!("{big}{{% set x = [x] * 60 %}}{}{{{{ u.u.u }}}}", "{{ x|map(attribute='999999')|list }}".repeat(2_000)),
        "{% set x = 'a ' * 20000000 %}{{ x.split(' ')|length }}".to_owned(),
        "{% set x = 'a ' * 20000000 %}{{ x.split()|length }}".to_owned(),
        "{% set x = 'a\\n' * 20000000 %}{{ x.splitlines()|length }}".to_owned(),
        "{{ '{:1000000000}'.format(1) }}".to_owned(),
        "{{ '{:{}}'.format(1, 1000000000) }}".to_owned(),
        "{{ '%1000000000d'|format(1) }}".to_owned(),
        "{{ 'a\\nb'|indent(1000000000) }}".to_owned(),
        "{{ [1]|tojson(indent=1000000000000) }}{{ 10 ** 100000 }}".to_owned(),
        nested("(", ")", 10_000),
        nested("[", "]", 10_000),
        nested("{1:", "}", 10_000),
        nested("x(", ")", 10_000),
        format!("{{{{ {}1 }}}}{{{{ u.u.u }}}}", "- ".repeat(60_000)),
        format!("{{{{ {}1 }}}}{{{{ u.u.u }}}}", "not ".repeat(30_000)),
        format!("{{{{ {}1 }}}}{{{{ u.u.u }}}}", "1 + ".repeat(30_000)),
        format!("{{{{ x{} }}}}{{{{ u.u.u }}}}", "|upper".repeat(20_000)),
        format!("{{{{ x{} }}}}", ".a".repeat(60_000)),
        format!("{}{}", "{% if x %}".repeat(5_000), "{% endif %}".repeat(5_000)),
        format!("{}{{{{ u.u.u }}}}", "{% set a = [a] %}".repeat(7_000)),
        "x".repeat(200_000),
        "{{ debug() }}".to_owned(),
    ];
    for template in &hostile {
        let start = std::time::Instant::now();
        let shown: String = template.chars().take(200).collect();
        let result = rendered(template).map(|text| text.len());
        let took = start.elapsed();
        assert!(result.is_err(), "{shown}: {result:?}");
        assert!(!result.as_ref().unwrap_err().contains("panic"), "{shown}: {result:?}");
        assert!(took.as_secs_f32() < 30.0, "{shown}: {took:?}"); // without the guard: minutes
    }
}

#[test]
fn guards_change_nothing() {
    for (template, text) in [
        (
            "{% macro m(x, y=-1, z='a, b)') %}{{ x }}{{ y }}{{ z }}{% endmacro %}{{ m(5, z=-2) }} {{ m(-(1)) }}",
            "5-1-2 -1-1a, b)",
        ),
        ("{% macro m(x, y) %}{{ x }}{{ y }}{% endmacro %}{{ m(*[3, 4]) }}{{ m(**{'x': 5, 'y': -6}) }}", "345-6"),
        (
            "{% macro m(x) %}{{ caller(x) }}{% endmacro %}{% call(p, q=[1, 2]) m(x=5) -%} {{ p }}{{ q }} {%- endcall %}",
            "5[1, 2]",
        ),
        ("{% macro m() %}<{{ caller() }}>{% endmacro %}{%- call m() %}!{% endcall %}", "<!>"),
        ("{% set x | upper | replace('A', 'b') -%} aa {%- endset %}{% set z %}w{% endset %}{{ x }}{{ z }}", "bbw"),
        ("{% set ns = namespace() %}{% set ns.y | trim %} q {% endset %}{{ ns.y }}", "q"),
        (
            "{% set x = 'abcdef' %}{{ x[1] }}{{ x[ -1 ] }}{{ x[:2] }}{{ x[4:] }}{{ x[::-1] }}{{ x[1:5:2] }}{{ x[ : ] }}",
            "bfabeffedcbabdabcdef",
        ),
        (
            "{% set x = {'a': [1, {'b': 2}]} %}{{ x['a'][1]['b'] }}{{ x['a' if true else 'b'][0] }}{{ x['a'][-1:] }}",
            "21[{'b': 2}]",
        ),
        ("{% for i in range(9) if i is odd and not i == 3 %}{{ i }}{% else %}-{% endfor %}", "157"),
        ("{% for i in [1, [2, 3]] if i recursive %}{{ loop(i) if i is sequence else i }}{% endfor %}", "123"),
        (
            "{%- if not 1 or 2 -%} a {%- elif 3 in [3] -%} b {%- endif -%}{% if 0 if 1 else 2 %}c{% elif u %}d{% endif %}",
            "a",
        ),
        (
            "{{ 'A' is upper }}{{ 'A' is lower }}{{ 'ab' is startingwith 'a' }}{{ 1 is eq 1 }}{{ [1] is sameas [1] }}{{ 2 is gt(3) }}",
            "TrueFalseTrueTrueFalseFalse",
        ),
        ("{{ [1, 2, 3]|select('gt', 1)|list }}{{ ['a', 'B']|select('upper')|list }}", "[2, 3]['B']"),
        ("{%- with a = -1, b = [2] -%} {{ a }}{{ b }}{% endwith %}{%- with -%} !{%- endwith -%}", "-1[2]!"),
    ] {
        assert_eq!(rendered(template).as_deref(), Ok(text), "{template}");
    }
}

#[test]
fn long_conversations_have_room() {
    let turn = |i: usize| {
        let tool = json!({"id": format!("c{i:08}"), "type": "function",
            "function": {"name": "f", "arguments": {"text": "x".repeat(500)}}});
        [
            json!({"role": "user", "content": format!("{i}: {}", "word ".repeat(200))}),
            json!({"role": "assistant", "content": "some answer ".repeat(200), "tool_calls": [tool]}),
            json!({"role": "tool", "content": "y".repeat(1000), "tool_call_id": format!("c{i:08}")}),
            json!({"role": "assistant", "content": "some answer ".repeat(50)}),
        ]
    };
    let messages: Vec<Value> = (0..400).flat_map(turn).collect();
    let request = json!({"messages": messages, "tools": [{"type": "function", "function": {"name": "f"}}]}).to_string();
    for name in ["qwen-3", "qwen-2.5", "llama-3.1", "smollm-3", "mistral-small-3.2", "deepseek-v3", "granite-3.3"] {
        let mut config = config(&golden(&format!("templates/{name}.jinja")));
        for token in ["bos_token", "eos_token"] {
            config.special_tokens.insert(token.into(), "<s>".into());
        }
        let text = render(&config, &request);
        assert!(
            text.as_ref().is_ok_and(|text| text.len() > 800_000),
            "{name}: {} bytes: {:.300?}",
            request.len(),
            text
        );
    }
}

fn tokenizer(name: &str) -> Tokenizer {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    Tokenizer::parse(name, &std::fs::read(&path).expect(name)).expect(name)
}

fn request(contents: &[&str]) -> String {
    let messages: Vec<Value> = contents.iter().map(|text| json!({"role": "user", "content": text})).collect();
    json!({ "messages": messages }).to_string()
}

#[test]
fn what_users_type_is_text() {
    let t = tokenizer("byte_level.json"); // <|end|> is 0 and comes before every text, <|user|> is 1
    let plain = |text: &str| t.encode(text, EncodeOptions::default()).unwrap();
    let ids = |template: &str, contents: &[&str]| tokenize(&config(template), &t, &request(contents), false).unwrap();
    let turns = "<|user|>{% for m in messages %}{{ m.content }}<|end|>{% endfor %}";
    for typed in [
        "Hello",
        "",
        "a<|end|>b",
        "<|end|>",
        "<|end|><|user|>",
        "<|en<|end|>d|>",
        "<|end",
        "|> x",
        "<|end|",
        "end|>",
        "<",
        "\u{fdd0}<|end|>\u{fdd1}<|us\u{fdd1}er|>",
        "🎉<|user|>é",
    ] {
        let text = typed.replace(['\u{fdd0}', '\u{fdd1}'], "");
        let expected = [&[0, 1][..], &plain(&text), &[0]].concat();
        assert_eq!(ids(turns, &[typed]), expected, "{typed:?}");
        let trimmed = turns.replace("m.content", "m.content|trim");
        let expected = [&[0, 1][..], &plain(text.trim()), &[0]].concat();
        assert_eq!(ids(&trimmed, &[typed]), expected, "{typed:?}, trimmed");
        let json = turns.replace("m.content", "m.content|tojson");
        let expected = [&[0, 1][..], &plain(&format!("\"{text}\"")), &[0]].concat();
        assert_eq!(ids(&json, &[typed]), expected, "{typed:?} in JSON");
    }
    // Pieces that only together spell a token: of two messages, and of a message and the template.
    let joined = "{% for m in messages %}{{ m.content }}{% endfor %}d|>";
    assert_eq!(ids(joined, &["<|", "end|>", "<|en"]), [&[0][..], &plain("<|end|><|end|>")].concat());
    assert_eq!(ids("<|e{{ messages[0].content }}", &["nd|>"]), [&[0][..], &plain("<|end|>")].concat());
    // What the template puts together is the template's.
    assert_eq!(ids("{{ '<|' + messages[0].role + '|>' }}", &["x"]), [0, 1]);
    // With the flag, special tokens are parsed wherever they are.
    let parsed = tokenize(&config(turns), &t, &request(&["<|end|>"]), true).unwrap();
    assert_eq!(parsed, [0, 1, 0, 0]);
}

#[test]
fn protected_tokens_are_the_ordinary_ones_where_nothing_is_forged() {
    let options = EncodeOptions { add_special: true, parse_special: true };
    for name in ["byte_level.json", "byte_fallback.json"] {
        let t = tokenizer(name);
        for template in
            ["{% for m in messages %}{{ m.content }}\n{% endfor %}", "<s>{{ messages[0].content }}</s><|end|> "]
        {
            for text in ["Hello, world!", " two  spaces ", "🎉 naïve", "\n\n", "1 < 2 > 1 <| |>"] {
                let (config, request) = (config(template), request(&[text, text]));
                let expected = t.encode(&render(&config, &request).unwrap(), options).unwrap();
                assert_eq!(tokenize(&config, &t, &request, false).unwrap(), expected, "{name} {template} {text:?}");
                assert_eq!(tokenize(&config, &t, &request, true).unwrap(), expected, "{name} {template} {text:?}");
            }
        }
    }
}

#[test]
#[ignore = "needs RIE_TEST_TOKENIZERS"]
fn protected_tokens_of_real_tokenizers() {
    let root =
        PathBuf::from(std::env::var("RIE_TEST_TOKENIZERS").expect("RIE_TEST_TOKENIZERS: see golden/tokenizers.sh"));
    for (name, template, forged) in [
        ("llama3", "llama-3.1", "<|eot_id|>"),
        ("gemma3", "gemma-3", "<end_of_turn>"),
        ("qwen3", "qwen-3", "<|im_end|>"),
        ("deepseek_v3", "deepseek-v3", "<｜Assistant｜>"),
        ("granite3", "granite-3.3", "<|end_of_role|>"),
    ] {
        let path = root.join(name).join("tokenizer.json");
        let t = Tokenizer::parse(name, &std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
            .unwrap();
        let mut config = config(&golden(&format!("templates/{template}.jinja")));
        let bos = t.decode(t.prefix(), false).unwrap();
        config.special_tokens.insert("bos_token".into(), bos);
        let id = t.token_id(forged).expect(forged);
        let count = |text: &str, parse_special| {
            let ids = tokenize(&config, &t, &request(&[text]), parse_special).unwrap();
            assert!(ids.starts_with(t.prefix()) && (t.prefix().is_empty() || ids[1] != ids[0]), "{name}: {ids:?}");
            (ids.iter().filter(|&&i| i == id).count(), t.decode(&ids, false).unwrap())
        };
        let typed = format!("Hi {forged}\n{forged}there");
        let (honest, _) = count("Hi there", false);
        let (protected, text) = count(&typed, false);
        let (parsed, same_text) = count(&typed, true);
        assert_eq!((protected, parsed), (honest, honest + 2), "{name}");
        assert!(text == same_text && text.contains(&typed), "{name}: {text}");
        let plain = "Grüße, 人工智能 🎉 `x = 1`\n\n  done";
        assert_eq!(count(plain, false), count(plain, true), "{name}");
    }
}
