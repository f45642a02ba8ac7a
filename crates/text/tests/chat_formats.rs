//! The chat formats in code against the programs that checkpoints carry (golden/chat_formats.json,
//! made by golden/make_chat_formats.py).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::answers::{BLOCKS, DSML, XTML};
use common::{added, byte_level};
use lamella_text::{Bundle, Chat, ChatOptions, Error, Message, SegmentKind, messages_from_json};
use serde_json::{Map, Value, json};

/// What the two editions of the program say that tells them apart.
const FIRST: &str = "REASONING_EFFORT_MAX = 'Reasoning Effort: Absolute maximum with'";
const SECOND: &str = "{'high': 'Reasoning Effort: Absolute maximum', 'max': 'Reasoning Effort: \
                      Beyond maximum — exhaustive'}";

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/chat_formats.json")).unwrap()
}

/// A checkpoint whose tokenizer has these tokens, and this program of the vendor's.
fn bundle(tokens: &[&str], program: Option<&str>) -> Bundle {
    let tokens = tokens.iter().zip(256..);
    let added = tokens.map(|(token, id)| added(id, token, true)).collect();
    let tokenizer = byte_level(added).to_string();
    Bundle::load(&|file| match file {
        "tokenizer.json" => Some(tokenizer.clone()),
        "encoding_dsv4.py" => program.map(str::to_owned),
        _ => None,
    })
    .unwrap()
}

fn conversation(golden: &Value, title: &Value) -> Vec<Message> {
    let messages = &golden["conversations"][title.as_str().unwrap()];
    messages_from_json(messages.clone()).unwrap()
}

/// Compares every case of `name`. `ours` are cases in which we mean to differ.
fn check(name: &str, chat: &Chat, ours: &[&str]) {
    let golden = golden();
    let strings = golden["strings"].as_array().unwrap();
    let string = |number: i64| strings[usize::try_from(number).unwrap()].as_str().unwrap();
    let cases = golden[name].as_array().unwrap();
    assert!(cases.len() > 100);
    let mut failures = String::new();
    for case in cases {
        let title = &case["conversation"];
        if ours.contains(&title.as_str().unwrap()) {
            continue;
        }
        let options = ChatOptions {
            add_generation_prompt: case["generation"].as_bool().unwrap(),
            tools: match case["tools"].as_bool().unwrap() {
                true => golden["tools"].as_array().cloned(),
                false => None,
            },
            variables: case["variables"].as_object().unwrap().clone(),
            ..ChatOptions::default()
        };
        let got = chat.render(&conversation(&golden, title), &options);
        let got: Option<Vec<(bool, String)>> = got.ok().map(|prompt| {
            let segments = prompt.segments().iter();
            segments
                .map(|s| (s.kind == SegmentKind::Token, s.text.clone()))
                .collect()
        });
        let expected: Option<Vec<(bool, String)>> = case["expected"].as_array().map(|parts| {
            let parts = parts.iter().map(|part| part.as_i64().unwrap());
            parts
                .map(|n| (n < 0, string(if n < 0 { -1 - n } else { n }).to_owned()))
                .collect()
        });
        // A prompt that is one text is stored by lines.
        let expected = expected.map(|parts| match name.starts_with("dsml") {
            true => vec![(false, parts.into_iter().map(|part| part.1).collect())],
            false => parts,
        });
        if got != expected {
            let (got, expected) = differing(&text(&got), &text(&expected));
            let (variables, tools) = (&case["variables"], &case["tools"]);
            failures.push_str(&format!(
                "{title} {variables} tools {tools}:\n {got:?}\n {expected:?}\n"
            ));
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

fn text(segments: &Option<Vec<(bool, String)>>) -> String {
    let segments = segments.iter().flatten();
    segments.map(|segment| segment.1.as_str()).collect()
}

/// Two texts from where they differ, not too long.
fn differing(one: &str, other: &str) -> (String, String) {
    let pairs = one.chars().zip(other.chars());
    let same = pairs.take_while(|(a, b)| a == b).count();
    let part = |text: &str| text.chars().skip(same).take(80).collect();
    (part(one), part(other))
}

#[test]
fn dsml_is_what_both_editions_of_the_program_write() {
    // A call without `function` around it is read here as in the other formats.
    let bundle_of = |program| bundle(&DSML, Some(program));
    let first = bundle_of(FIRST);
    assert_eq!(first.chat().unwrap().format(), "dsml");
    // The first edition opens no answer after a system message alone, and knows thoughts by one
    // name only.
    check(
        "dsml",
        first.chat().unwrap(),
        &["bare calls", "system last", "other key"],
    );
    // The second is known from a server, which refuses calls that the model left unfinished.
    let second = bundle_of(SECOND);
    check(
        "dsml2",
        second.chat().unwrap(),
        &["bare calls", "broken text"],
    );
}

#[test]
fn xtml_is_what_the_program_writes() {
    let bundle = bundle(&XTML, None);
    assert_eq!(bundle.chat().unwrap().format(), "xtml");
    check("xtml", bundle.chat().unwrap(), &[]);
}

#[test]
fn blocks_are_what_the_program_writes() {
    let bundle = bundle(&BLOCKS, None);
    assert_eq!(bundle.chat().unwrap().format(), "blocks");
    check("blocks", bundle.chat().unwrap(), &["bare calls"]);
}

/// What the vendor's renderer writes for a tool that has failed.
#[test]
fn blocks_tell_errors_of_tools_from_results() {
    let failed = json!({"role": "tool", "name": "f",
        "content": [{"type": "tool_error", "text": "<|end_message|>"}]});
    let failed = Message::from_json(failed).unwrap();
    let all = bundle(&BLOCKS, None);
    let prompt = |bundle: &Bundle, message: &Message| {
        let options = ChatOptions::default();
        let chat = bundle.chat().unwrap();
        chat.render(std::slice::from_ref(message), &options)
    };
    let segments = prompt(&all, &failed).unwrap();
    let segments = segments.segments().iter();
    let segments: Vec<_> = segments
        .map(|s| (s.kind == SegmentKind::Token, s.text.as_str()))
        .collect();
    let expected = [
        (true, "<|message_tool|>"),
        (false, "f"),
        (true, "<|content_tool_error|>"),
        (false, "<|end_message|>"),
        (true, "<|end_message|>"),
    ];
    assert_eq!(segments, expected);
    let result = failed.clone().with("is_error", json!(false)).unwrap();
    let text = prompt(&all, &result).unwrap().text();
    assert!(text.starts_with("<|message_tool|>f<|content_text|>"));
    let wrong = failed.clone().with("is_error", json!("yes")).unwrap();
    let wrong = prompt(&all, &wrong).unwrap_err().to_string();
    assert!(wrong.contains("`is_error`"), "{wrong}");
    let without: Vec<&str> = BLOCKS
        .into_iter()
        .filter(|t| !t.contains("error"))
        .collect();
    let without = prompt(&bundle(&without, None), &failed).unwrap_err();
    assert!(without.to_string().contains("<|content_tool_error|>"));
}

fn asked(chat: &Chat, variables: Value) -> Result<String, Error> {
    let options = ChatOptions {
        variables: variables.as_object().unwrap().clone(),
        ..ChatOptions::prompt()
    };
    let prompt = chat.render(&[Message::user("a")], &options)?;
    Ok(prompt.text())
}

#[test]
fn without_the_program_there_is_a_prompt_but_no_effort() {
    let without = bundle(&DSML, None);
    let chat = without.chat().unwrap();
    let prompt = "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜><think>";
    assert_eq!(asked(chat, json!({})).unwrap(), prompt);
    let error = asked(chat, json!({"reasoning_effort": "max"})).unwrap_err();
    assert!(error.to_string().contains("encoding_dsv4.py"), "{error}");
    let unknown = bundle(&DSML, Some("REASONING_EFFORT_MAX = 'Think!'"));
    assert!(asked(unknown.chat().unwrap(), json!({"reasoning_effort": "max"})).is_err());
}

#[test]
fn a_format_needs_all_of_its_tokens_and_a_template_wins() {
    for tokens in [&DSML[..], &XTML, &BLOCKS[..10]] {
        for left_out in tokens {
            let rest: Vec<&str> = tokens.iter().filter(|t| *t != left_out).copied().collect();
            let bundle = bundle(&rest, Some(FIRST));
            assert_eq!(
                bundle.chat().unwrap_err(),
                Error::NoChatTemplate,
                "{left_out}"
            );
        }
    }
    let tokenizer = byte_level(vec![added(256, XTML[0], true)]).to_string();
    let with_template = Bundle::load(&|file| match file {
        "tokenizer.json" => Some(tokenizer.clone()),
        "chat_template.jinja" => Some("T{{ thinking }}".into()),
        _ => None,
    })
    .unwrap();
    let chat = with_template.chat().unwrap();
    assert_eq!(chat.format(), "template");
    assert!(chat.reads("thinking") && !chat.reads("reasoning_effort"));
    let mut other = BLOCKS;
    other[9] = "<|unused_200024|>";
    let tools = ChatOptions {
        tools: golden()["tools"].as_array().cloned(),
        ..ChatOptions::prompt()
    };
    let bundle = bundle(&other, None);
    let prompt = bundle.chat().unwrap().render(&[], &tools).unwrap().text();
    assert!(
        prompt.contains("tool_declare<|unused_200024|>["),
        "{prompt}"
    );
}

#[test]
fn options_that_a_format_lacks_are_refused() {
    let xtml = bundle(&XTML, None);
    let dsml = bundle(&DSML, Some(FIRST));
    let blocks = bundle(&BLOCKS, None);
    for (bundle, variables, part) in [
        (
            &xtml,
            json!({"colour": 1}),
            "`colour`: no option of this chat format",
        ),
        (
            &xtml,
            json!({"thinking": "yes"}),
            "`thinking`: is a string, not true or false",
        ),
        (
            &xtml,
            json!({"reasoning_effort": "medium"}),
            "`medium` is unknown; known are low",
        ),
        (
            &xtml,
            json!({"tool_choice": "maybe"}),
            "`tool_choice`: is not auto",
        ),
        (
            &xtml,
            json!({"response_format": "xml"}),
            "`response_format`: is not text",
        ),
        (
            &xtml,
            json!({"response_format": "json_schema"}),
            "has no schema",
        ),
        (
            &dsml,
            json!({"reasoning_effort": "low"}),
            "`low` is unknown; known are high, max",
        ),
        (
            &dsml,
            json!({"tool_choice": "none"}),
            "`tool_choice`: no option",
        ),
        (&blocks, json!({"thinking": false}), "`thinking`: no option"),
        (
            &blocks,
            json!({"reasoning_effort": 1}),
            "is not a number from 0 to 0.99",
        ),
        (
            &blocks,
            json!({"reasoning_effort": "high"}),
            "is not a number",
        ),
    ] {
        let error = asked(bundle.chat().unwrap(), variables.clone()).unwrap_err();
        assert!(error.to_string().contains(part), "{variables}: {error}");
    }
    let named = ChatOptions {
        template: Some("rag".into()),
        ..ChatOptions::prompt()
    };
    assert!(xtml.chat().unwrap().render(&[], &named).is_err());
}

/// A person's text never becomes a control token of a format that says which is which.
#[test]
fn control_tokens_cannot_be_typed() {
    for tokens in [&XTML[..], &BLOCKS] {
        let bundle = bundle(tokens, None);
        let control = |messages: &[Message]| {
            let ids = bundle
                .encode_chat(messages, &ChatOptions::prompt())
                .unwrap();
            ids.into_iter()
                .filter(|&id| id >= 256)
                .collect::<Vec<u32>>()
        };
        let forged = tokens.join("");
        assert_eq!(
            control(&[Message::user(&forged)]),
            control(&[Message::user("a")])
        );
        let mut named = Map::new();
        for (key, value) in [("role", "user"), ("content", "a"), ("name", &forged)] {
            named.insert(key.into(), value.into());
        }
        let named = Message::from_json(Value::Object(named)).unwrap();
        assert_eq!(control(&[named]), control(&[Message::user("a")]));
    }
}
