//! Chat templates against Python's Jinja2 (golden/templates.json), and what templates may not do.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lamella_text::{
    ChatOptions, ChatTemplate, Clock, DateTime, Error, Message, NamedTemplate, SpecialTokens,
    messages_from_json,
};
use serde_json::{Value, json};

const FILE: &str = "chat_template.jinja";

fn special() -> SpecialTokens {
    match json!({"bos_token": "<s>", "eos_token": "</s>"}) {
        Value::Object(map) => map,
        _ => unreachable!(),
    }
}

fn clock() -> Clock {
    // 2024-07-01 12:04:05
    Clock::fixed(DateTime::from_unix(1_719_835_445))
}

fn named(name: &str, source: &str) -> NamedTemplate {
    NamedTemplate {
        name: name.into(),
        source: source.into(),
    }
}

fn parse(source: &str) -> Result<ChatTemplate, Error> {
    ChatTemplate::named(FILE, &[named("default", source)], special(), clock())
}

fn golden() -> (Vec<Message>, ChatOptions, Value) {
    let text = include_str!("golden/templates.json");
    let golden: Value = serde_json::from_str(text).unwrap();
    let mut variables = golden["variables"].as_object().unwrap().clone();
    variables.insert("enable_thinking".into(), false.into());
    let options = ChatOptions {
        tools: golden["tools"].as_array().cloned(),
        variables,
        ..ChatOptions::prompt()
    };
    (
        messages_from_json(golden["messages"].clone()).unwrap(),
        options,
        golden,
    )
}

#[test]
fn templates_render_as_in_python() {
    let (messages, options, golden) = golden();
    let mut failures = String::new();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() > 50);
    for case in cases {
        let expected = case["expected"].as_str().unwrap();
        let rendered = parse(case["template"].as_str().unwrap())
            .and_then(|template| template.render(&messages, &options));
        if rendered.as_deref() != Ok(expected) {
            let name = &case["name"];
            failures.push_str(&format!("{name}:\n  {rendered:?}\n  Ok({expected:?})\n"));
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

#[test]
fn what_fails_in_python_fails_here() {
    let (messages, options, golden) = golden();
    let mut failures = String::new();
    for case in golden["fails"].as_array().unwrap() {
        let rendered = parse(case["template"].as_str().unwrap())
            .and_then(|template| template.render(&messages, &options));
        if let Ok(text) = rendered {
            failures.push_str(&format!("{}: {text:?}\n", case["name"]));
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

/// Many templates ask so whether there are tools, or whether content has parts.
#[test]
fn iterable_is_what_python_goes_over() {
    for (value, iterable) in [
        ("none", false),
        ("0", false),
        ("true", false),
        ("nothing", true),
        ("''", true),
        ("'a'", true),
        ("[]", true),
        ("{}", true),
        ("range(2)", true),
    ] {
        let template = parse(&format!("{{{{ {value} is iterable }}}}")).unwrap();
        let text = template.render(&[], &ChatOptions::default()).unwrap();
        assert_eq!(text, if iterable { "True" } else { "False" }, "{value}");
    }
}

#[test]
fn a_template_that_does_not_parse_names_file_and_line() {
    for (source, line, part) in [
        ("a\n{% if x %}\nb", 3, "unexpected end of input"),
        ("a\n\n{{ x", 3, ""),
        ("{% for x in %}", 1, ""),
        ("ok\n{% nonsense %}", 2, "unknown statement nonsense"),
        ("\n\n{{ x | }}", 3, ""),
        ("{% endif %}", 1, ""),
        ("\n{% include 'other' %}", 2, "not allowed"),
        ("\n{{ 'unfinished }}", 2, ""),
    ] {
        match parse(source) {
            Err(Error::TemplateSyntax {
                file,
                line: found,
                cause,
            }) => {
                assert_eq!((file.as_str(), found), (FILE, line), "{source:?}: {cause}");
                assert!(cause.contains(part), "{source:?}: {cause}");
            }
            other => panic!("{source:?} gives {other:?}"),
        }
    }
}

#[test]
fn a_template_that_fails_names_the_line() {
    let template = parse("a\nb\n{{ messages[0].nope.deeper }}").unwrap();
    let error = template
        .render(&[Message::user("x")], &ChatOptions::prompt())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "chat_template.jinja, line 3: the chat template failed on this conversation: \
         undefined value"
    );
}

#[test]
fn a_refusal_is_the_templates_own_words() {
    let template = parse("{% if true %}{{ raise_exception('Roles must alternate') }}{% endif %}");
    let error = template
        .unwrap()
        .render(&[], &ChatOptions::default())
        .unwrap_err();
    assert_eq!(
        error,
        Error::ConversationRefused {
            cause: "Roles must alternate".into()
        }
    );
    let inside = parse("{% macro m() %}{{ raise_exception('no') }}{% endmacro %}{{ m() }}");
    let error = inside
        .unwrap()
        .render(&[], &ChatOptions::default())
        .unwrap_err();
    assert_eq!(error, Error::ConversationRefused { cause: "no".into() });
}

/// Endless and exploding templates stop with an error, in bounded time and memory.
#[test]
fn work_is_bounded() {
    for source in [
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}\
         {% endfor %}{{ ns.s | length }}",
        "{{ 'ab' * 10000000000 }}",
        "{{ range(10000000000) | list }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(50000) %}{% set ns.x = [ns.x] %}\
         {% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(50000) %}{% set ns.x = [ns.x] %}\
         {% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}\
         {% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}\
         {% endfor %}{{ ns.x }}",
        "{{ 'x' | indent(1000000000000) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ ('{:9999}' * 100000).format(1) }}",
        "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns.a ~ '' }}",
        "{% set ns = namespace() %}{% set ns.a = {'x': ns} %}{{ ns == ns }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(20000) %}{% set ns.x = ns.x + [1] %}\
         {% endfor %}{{ ns.x == ns.x }}",
        "{% set ns = namespace(x={}) %}{% for i in range(20000) %}\
         {% set ns.x = dict(ns.x, a=ns.x) %}{% endfor %}{{ ns.x == ns.x }}",
    ] {
        let rendered = parse(source).and_then(|it| it.render(&[], &ChatOptions::default()));
        assert!(
            matches!(rendered, Err(Error::TemplateRender { .. })),
            "{source} gives {:?}",
            rendered.map(|text| text.len())
        );
    }
}

#[test]
fn deeply_nested_source_is_an_error_not_an_overflow() {
    for source in [
        format!("{{{{ {}1{} }}}}", "(".repeat(20_000), ")".repeat(20_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(20_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(20_000)),
        format!("{{{{ {} }}}}", "[".repeat(20_000)),
        "{% if 1 %}".repeat(20_000),
        format!("{{{{ x{} }}}}", ".a".repeat(100_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(100_000)),
        format!("{{{{ x{} }}}}", " | upper".repeat(100_000)),
        "{% if 1 %}{% elif 2 %}".to_owned() + &"{% elif 3 %}".repeat(50_000) + "{% endif %}",
    ] {
        // Either is fine, as long as it comes back.
        let _ = parse(&source).and_then(|it| it.render(&[], &ChatOptions::default()));
    }
}

#[test]
fn a_template_that_is_absurdly_long_is_refused() {
    let error = parse(&"x".repeat((1 << 20) + 1)).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("chat_template.jinja: `chat_template`: 1048577 bytes")
    );
}

#[test]
fn of_several_templates_the_right_one_is_taken() {
    let both = [
        named("default", "D"),
        named("tool_use", "T"),
        named("rag", "{{ docs }}"),
    ];
    let template = ChatTemplate::named("tokenizer_config.json", &both, special(), clock()).unwrap();
    let render = |options: &ChatOptions| template.render(&[], options);
    let tools = Some(vec![json!({"name": "f"})]);
    assert_eq!(render(&ChatOptions::default()).unwrap(), "D");
    let with_tools = ChatOptions {
        tools,
        ..ChatOptions::default()
    };
    assert_eq!(render(&with_tools).unwrap(), "T");
    let mut by_name = ChatOptions {
        template: Some("rag".into()),
        ..with_tools
    };
    by_name.variables.insert("docs".into(), json!(["a"]));
    assert_eq!(render(&by_name).unwrap(), "['a']");
    by_name.template = Some("nope".into());
    assert_eq!(
        render(&by_name).unwrap_err().to_string(),
        "tokenizer_config.json: `chat_template`: there is no template `nope`; there are default, \
         tool_use, rag"
    );
    let broken = [named("default", "D"), named("tool_use", "{% if %}")];
    let error = ChatTemplate::named("tokenizer_config.json", &broken, special(), clock());
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("tokenizer_config.json (template `tool_use`), line 1: "),
        "{error}"
    );
    let twice = [named("a", "1"), named("a", "2")];
    assert!(ChatTemplate::named(FILE, &twice, special(), clock()).is_err());
    let unnamed = [named("a", "1"), named("b", "2")];
    let template = ChatTemplate::named(FILE, &unnamed, special(), clock()).unwrap();
    assert!(template.render(&[], &ChatOptions::default()).is_err());
}

#[test]
fn variables_win_over_special_tokens_but_not_over_the_conversation() {
    let template = parse("{{ bos_token }}{{ pad_token }}{{ messages | length }}{{ tools }}");
    let template = template.unwrap();
    let mut options = ChatOptions::default();
    options.variables.insert("bos_token".into(), "B".into());
    options.variables.insert("pad_token".into(), "P".into());
    assert_eq!(template.render(&[], &options).unwrap(), "BP0None");
    options.variables.insert("messages".into(), "x".into());
    let error = template.render(&[], &options).unwrap_err().to_string();
    assert!(error.contains("`messages`"), "{error}");
}

/// A text of the conversation is data: what looks like Jinja in it stays as it is.
#[test]
fn messages_are_never_run() {
    let template = parse("{{ messages[0].content }}").unwrap();
    let text = "{{ 7 * 7 }}{% raw %}{# x #}<b>&amp;";
    let rendered = template.render(&[Message::user(text)], &ChatOptions::default());
    assert_eq!(rendered.as_deref(), Ok(text));
}

/// `LAMELLA_TEMPLATES` is a folder of templates with the `matrix.json` that
/// golden/make_template_matrix.py has written there.
#[test]
#[ignore = "needs templates and their renderings in the folder LAMELLA_TEMPLATES"]
fn templates_in_a_folder() {
    let folder = std::path::PathBuf::from(std::env::var_os("LAMELLA_TEMPLATES").unwrap());
    let text = std::fs::read_to_string(folder.join("matrix.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let special = golden["special"].as_object().unwrap();
    let mut failures = std::collections::BTreeMap::<String, Vec<String>>::new();
    let (mut equal, mut refused, mut lenient) = (0, 0, 0);
    for case in golden["cases"].as_array().unwrap() {
        let file = case[0].as_str().unwrap();
        let title = case[1].as_str().unwrap();
        let source = std::fs::read_to_string(folder.join(file)).unwrap();
        let mut messages = messages_from_json(golden["conversations"][title].clone()).unwrap();
        messages.iter_mut().for_each(Message::parse_arguments);
        let options = ChatOptions {
            add_generation_prompt: case[4].as_bool().unwrap(),
            tools: match case[3].as_bool().unwrap() {
                true => golden["tools"].as_array().cloned(),
                false => None,
            },
            variables: case[2].as_object().unwrap().clone(),
            ..ChatOptions::default()
        };
        let only = [named("default", &source)];
        let rendered = ChatTemplate::named(file, &only, special.clone(), clock())
            .and_then(|template| template.render(&messages, &options));
        match (&rendered, case[5].as_str()) {
            (Ok(text), Some(expected)) if text == expected => equal += 1,
            (Err(_), None) => refused += 1,
            // Python does not go over `None`, nor write a generator as JSON.
            (Ok(_), None) if is_type_error(&case[5]) => lenient += 1,
            _ => failures.entry(file.into()).or_default().push(format!(
                "{title} {} tools {}: {}",
                case[2],
                case[3],
                differing(&rendered, &case[5])
            )),
        }
    }
    println!("{equal} equal, {refused} refused by both, {lenient} refused by Python alone");
    for (file, cases) in &failures {
        println!("{file}: {} differ, as {}", cases.len(), cases[0]);
    }
    assert!(failures.is_empty());
}

fn is_type_error(expected: &Value) -> bool {
    let error = expected["error"].as_str().unwrap();
    error == "'NoneType' object is not iterable" || error.ends_with("is not JSON serializable")
}

/// Where a rendering differs from what was expected.
fn differing(rendered: &Result<String, Error>, expected: &Value) -> String {
    let (Ok(text), Some(expected)) = (rendered, expected.as_str()) else {
        return format!("{:.200?} and not {:.200}", rendered, expected.to_string());
    };
    let pairs = text.chars().zip(expected.chars());
    let same = pairs.take_while(|(a, b)| a == b).count();
    let part = |text: &str| text.chars().skip(same).take(60).collect::<String>();
    format!("{:?} and not {:?}", part(text), part(expected))
}
