//! Chat templates and the conversations that they are given.

use super::model::with_model;
use super::reader::documents;
use rie::ffi::constants::*;
use serde_json::Value;

/// What a template is given if the input has nothing of its own.
const REQUEST: &str = r#"{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi <|end|> é"},
{"role":"assistant","content":"Hello","tool_calls":[{"type":"function","function":{"name":"f",
"arguments":{"x":[1,2.5,null]}}}]},
{"role":"tool","content":"3","name":"f"}],"tools":[{"type":"function","function":{"name":"f","description":"d",
"parameters":{"type":"object","properties":{"x":{"type":"array"}}}}}],"add_generation_prompt":true,"bos_token":"<s>",
"eos_token":"<|end|>","now":1700000000}"#;

/// Longest text that is tokenized as well.
const MAX_TEXT: usize = 1 << 14;

/// The input is a template and, after a byte 0, a request, to which the template is added.
pub fn run(data: &[u8]) {
    let [template, request] = documents::<2>(data);
    let template = Value::from(String::from_utf8_lossy(template.unwrap_or_default())).to_string();
    let request = request.unwrap_or(REQUEST.as_bytes());
    let json = match request.strip_prefix(b"{") {
        Some(rest) => [format!("{{\"chat_template\":{template},\"now\":0,").as_bytes(), rest].concat(),
        None => request.to_vec(),
    };
    with_model(|library, model| {
        let text = match library.render(model, &json) {
            Ok(text) => text,
            Err(status) => {
                let named =
                    [RIE_ERR_TEMPLATE, RIE_ERR_INVALID_ARGUMENT, RIE_ERR_UTF8, RIE_ERR_UNSUPPORTED, RIE_ERR_NO_MEMORY];
                assert!(named.contains(&status), "{}", library.message());
                return;
            }
        };
        if text.len() > MAX_TEXT {
            return;
        }
        let flags = RIE_TEXT_ADD_SPECIAL | RIE_TEXT_PARSE_SPECIAL;
        let expected = library.tokenize(model, &text, flags);
        for flags in [RIE_TEXT_PARSE_SPECIAL, 0] {
            match library.chat_tokenize(model, &json, flags) {
                Ok(ids) => assert!(flags == 0 || Ok(&ids) == expected.as_ref(), "{ids:?}, not {expected:?}: {text:?}"),
                // Marked text is longer, and a template may count it; and there is a clock that ends them all.
                Err(status) => assert_eq!(status, RIE_ERR_TEMPLATE, "{}", library.message()),
            }
        }
    });
}

/// Inputs to begin with.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    macro_rules! templates {
        ($($name:literal)*) => {
            vec![$(($name.to_owned(), include_bytes!(concat!("../../golden/chat/templates/", $name, ".jinja")).to_vec())),*]
        };
    }
    let mut seeds = templates!["deepseek-r1-distill" "deepseek-v3" "features" "gemma-3" "granite-3.3" "llama-3.1"
        "mistral-7b" "mistral-small-3.2" "phi-3.5" "qwen-3" "smollm-2" "smollm-3" "hermes-3-tool-use"];
    let small = [
        "{% macro m(x, y=-1, z='a, b)') %}{{ x }}{{ y }}{{ z }}{{ caller(x) }}{% endmacro %}{% call(p, q=[1]) \
         m(5) %}{{ p }}{% endcall %}",
        "{% set ns = namespace(a=1) %}{% for m in messages recursive %}{% set ns.a = ns.a + 1 %}{{ loop.index \
         }}{% endfor %}{{ ns.a }}",
        "{% set ns.y | trim %} q {% endset %}{% with a = -1, b = [2] %}{{ a }}{{ b }}{% endwith %}{% raw %}{{ \
         }}{% endraw %}",
        "{{ messages|tojson(indent=2) }}{{ messages|map(attribute='role')|join(',') }}{{ \
         messages|selectattr('role', 'equalto', 'user')|list }}",
        "{{ 'a,b'.split(',')[1:] }}{{ '%5.2f %s'|format(1.5, 'x') }}{{ '{:>5}'.format('a') }}{{ 'x' * 3 }}{{ 7 \
         // 2 ** 3 % 5 }}",
        "{{ strftime_now('%Y-%m-%d %H:%M:%S %j %B %a') }}{{ raise_exception('no') }}",
        "{% generation %}{{ messages[0]['content'] }}{% endgeneration %}{{ {'a': [1, (2, 3)], **{}} }}",
        "{% for k, v in tools[0].function.items() if v is not none %}{{ k }}={{ v|string|length }}{% if \
         loop.last %}.{% endif %}{% break %}{% endfor %}",
        "{% set a = [1] %}{% for i in range(64) %}{% set a = a + a %}{% endfor %}{{ a }}",
        "{{ messages|groupby('role') }}{{ messages|batch(2)|list }}{{ range(9)|slice(2)|list }}{{ 'a \
         b'|title|indent(2)|replace('A', 'bb')|reverse }}",
        "{{ messages|sort(attribute='content')|unique|first }}{{ cycler('a','b') }}{{ joiner() }}{{ lipsum }}{{ \
         dict(a=1)|dictsort }}",
        "{{ 10 ** 20 }}{{ 1.0e308 * 10 }}{{ -9223372036854775807 - 1 }}{{ 9223372036854775807 + 1 }}{{ 5 % 0 \
         }}{{ 'abc'[::-1] }}{{ 'abc'[5:-9:2] }}",
    ];
    seeds.extend(small.iter().enumerate().map(|(i, text)| (format!("small-{i}"), text.as_bytes().to_vec())));
    let request =
        br#"{"messages":[{"role":"user","content":[{"type":"text"}],"thinking":"t"}],"documents":[{}],"x":{"y":1e9}}"#;
    seeds.push(("request".to_owned(), [b"{{ messages }}{{ documents }}{{ x.y }}\0", &request[..]].concat()));
    seeds
}
