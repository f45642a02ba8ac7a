//! An answer becomes a message, and the message the same tokens again.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::answers::{BLOCKS, Checkpoint, DSML, XTML};
use common::{demo_bundle, demo_text};
use lamella_text::{Bundle, ChatOptions, Message, StopStrings, messages_from_json};
use serde_json::{Map, Value, json};

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/chat_formats.json")).unwrap()
}

/// Renders `messages` up to the answer at `at` and with it, reads the tokens between as an answer,
/// and renders that. `None` if the answer does not follow its prompt.
fn again(bundle: &Bundle, messages: &[Message], at: usize, asked: &ChatOptions) -> Option<bool> {
    let chat = bundle.chat().unwrap();
    let told = ChatOptions {
        add_generation_prompt: false,
        ..asked.clone()
    };
    let prompt = chat.render(&messages[..at], asked).ok()?;
    let before = prompt.ids(&bundle.tokenizer).unwrap();
    let full = bundle.encode_chat(&messages[..=at], &told).ok()?;
    let mut said = full.strip_prefix(before.as_slice())?;
    while let Some((last, rest)) = said.split_last()
        && ends(bundle, *last)
    {
        said = rest;
    }
    let stream = bundle.answer(&prompt, asked, &StopStrings::none());
    let answer = stream.whole(said);
    assert!(
        answer.calls.iter().all(|call| !call.incomplete),
        "{answer:?}"
    );
    let mut messages = messages[..at].to_vec();
    messages.push(answer.message());
    let same = bundle.encode_chat(&messages, &told).unwrap();
    if same != full {
        let text = |ids: &[u32]| bundle.tokenizer.decode(ids, true);
        eprintln!("{}\n{}\n{answer:?}", text(&same), text(&full));
    }
    Some(same == full)
}

/// Whether generation ends with this token, or it stands behind the one it ends with.
fn ends(bundle: &Bundle, id: u32) -> bool {
    let ends = [
        "<｜end▁of▁sentence｜>",
        "<|end_of_msg|>",
        "<|content_model_end_sampling|>",
        "<|im_end|>",
    ];
    let bytes = bundle.tokenizer.token_bytes(id).unwrap();
    ends.iter().any(|end| end.as_bytes() == bytes) || bytes == b"\n"
}

/// Every answer of the published examples, thinking or not, with tools or not.
fn examples(bundle: &Bundle, variables: &[Value], but: &[&str]) -> usize {
    let golden = golden();
    let mut count = 0;
    let mut failures = Vec::new();
    for (title, messages) in golden["conversations"].as_object().unwrap() {
        let messages = messages_from_json(messages.clone()).unwrap();
        for variables in variables {
            for tools in [None, golden["tools"].as_array().cloned()] {
                let asked = ChatOptions {
                    tools,
                    variables: variables.as_object().cloned().unwrap_or_else(Map::new),
                    ..ChatOptions::prompt()
                };
                let answers = (0..messages.len()).filter(|&at| messages[at].role() == "assistant");
                for at in answers {
                    match again(bundle, &messages, at, &asked) {
                        Some(true) => count += 1,
                        Some(false) if !but.contains(&title.as_str()) => {
                            failures.push(format!("{title} {at} {variables}"));
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    count
}

#[test]
fn examples_of_the_formats_in_code_come_back() {
    let thinking = [json!({"thinking": true}), json!({"thinking": false})];
    // What says it goes on has no end to come back; tokens of the format typed as text are
    // themselves there; a reminder stands between the opening of an answer and the answer.
    let dsml = Checkpoint::new(&DSML, true, None).bundle;
    let count = examples(&dsml, &thinking, &["goes on", "markers", "reminder"]);
    assert!(count >= 60, "{count}");
    let xtml = Checkpoint::new(&XTML, true, None).bundle;
    let count = examples(&xtml, &thinking, &[]);
    assert!(count >= 60, "{count}");
    let blocks = Checkpoint::new(&BLOCKS, true, None).bundle;
    let count = examples(&blocks, &[json!({})], &[]);
    assert!(count >= 30, "{count}");
}

/// The answers the demo model gives, calls among them.
#[test]
fn answers_of_the_demo_come_back() {
    let bundle = demo_bundle();
    let mut calls = 0;
    for line in demo_text("eval.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let messages = messages_from_json(case["messages"].clone()).unwrap();
        let asked = ChatOptions {
            tools: case["tools"].as_array().cloned(),
            ..ChatOptions::prompt()
        };
        let prompt = bundle.chat().unwrap().render(&messages, &asked).unwrap();
        let mut ids: Vec<u32> = serde_json::from_value(case["expected_ids"].clone()).unwrap();
        ids.retain(|id| !bundle.stop_ids().contains(id));
        let answer = bundle
            .answer(&prompt, &asked, &StopStrings::none())
            .whole(&ids);
        let text = case["expected"].as_str().unwrap();
        calls += answer.calls.len();
        if answer.calls.is_empty() {
            assert_eq!(answer.content, text);
        }
        let all = [messages, vec![answer.message()]].concat();
        let told = ChatOptions {
            add_generation_prompt: false,
            ..asked
        };
        let full = bundle.chat().unwrap().render(&all, &told).unwrap().text();
        assert_eq!(full, format!("{}{text}<|im_end|>\n", prompt.text()));
    }
    assert!(calls > 10, "{calls}");
}

/// Short templates that write thoughts and calls as published ones do.
const OBJECT: &str = r#"
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\n' }}
    {%- if m.reasoning_content %}
        {{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}
    {%- endif %}
    {{- m.content }}
    {%- for c in m.tool_calls or [] %}
        {%- if m.content or not loop.first %}{{- '\n' }}{% endif %}
        {{- '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' }}
        {{- c.function.arguments | tojson }}
        {{- '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"#;

const FUNCTION: &str = r#"
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\n' }}
    {%- if m.role == 'assistant' %}
        {{- '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}
    {%- endif %}
    {{- m.content }}
    {%- for c in m.tool_calls or [] %}
        {%- if m.content and loop.first %}{{- '\n\n' }}{% endif %}
        {%- if not loop.first %}{{- '\n' }}{% endif %}
        {{- '<tool_call>\n<function=' + c.function.name + '>\n' }}
        {%- for k, v in c.function.arguments | items %}
            {{- '<parameter=' + k + '>\n' }}
            {{- v if v is string else v | tojson }}
            {{- '\n</parameter>\n' }}
        {%- endfor %}
        {{- '</function>\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{% endif %}"#;

const PAIRS: &str = r#"
{%- for m in messages %}
    {{- '<|' + m.role + '|>' }}
    {%- if m.role == 'assistant' %}
        {{- '<think>' + (m.reasoning_content or '') + '</think>' }}
    {%- endif %}
    {{- m.content }}
    {%- for c in m.tool_calls or [] %}
        {{- '<tool_call>' + c.function.name }}
        {%- for k, v in c.function.arguments | items %}
            {{- '<arg_key>' + k + '</arg_key><arg_value>' }}
            {{- v if v is string else v | tojson }}
            {{- '</arg_value>' }}
        {%- endfor %}
        {{- '</tool_call>' }}
    {%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|><think>' }}{% endif %}"#;

#[test]
fn answers_of_templates_come_back() {
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters":
        {"properties": {"text": {"type": "string"}, "list": {"type": "array"}}}}}]);
    let arguments = [
        json!({}),
        json!({"text": "5", "list": [1, {"a": "</parameter> é"}]}),
        json!({"text": "a\n</tool_call>\n \n", "list": []}),
        json!({"text": "", "x": 1.5, "y": null, "z": true}),
    ];
    let call = |arguments: &Value| json!({"function": {"name": "f", "arguments": arguments}});
    let mut answers = vec![
        json!({"role": "assistant", "content": "One.\nTwo.", "reasoning_content": "hm\n\nso"}),
    ];
    for one in &arguments {
        for content in ["", "I call."] {
            answers.push(json!({"role": "assistant", "content": content,
                "reasoning_content": "why", "tool_calls": [call(one), call(&arguments[0])]}));
        }
    }
    let tokens = [
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
    ];
    for (template, tokens) in [
        (OBJECT, &tokens[..2]),
        (OBJECT, &tokens),
        (FUNCTION, &tokens[..4]),
        (FUNCTION, &tokens),
        (PAIRS, &[]),
        (PAIRS, &tokens),
    ] {
        let bundle = Checkpoint::new(tokens, false, Some(template)).bundle;
        assert!(bundle.answers().has_calls());
        let asked = ChatOptions {
            tools: tools.as_array().cloned(),
            ..ChatOptions::prompt()
        };
        for answer in &answers {
            let messages = messages_from_json(json!([{"role": "user", "content": "?"}, answer]));
            let same = again(&bundle, &messages.unwrap(), 1, &asked);
            assert_eq!(same, Some(true), "{template} {answer}");
        }
    }
}
