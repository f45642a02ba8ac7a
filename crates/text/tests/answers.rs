//! Answers in every format: what is told of them, and what is no call.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::answers::{
    BLOCKS, Checkpoint, DSML, FUNCTION, OBJECT, PAIRS, XTML, told, with_text, with_tokens,
};
use lamella_text::Message;
use serde_json::json;

/// Answer, reasoning, content, calls.
type Row<'a> = (&'a str, &'a str, &'a str, &'a [&'a str]);

fn check(checkpoint: &Checkpoint, opening: &str, rows: &[Row<'_>]) {
    let mut failures = String::new();
    for (text, reasoning, content, calls) in rows {
        let got = told(&checkpoint.whole(opening, text));
        let calls: Vec<String> = calls.iter().map(|call| call.to_string()).collect();
        let expected = (reasoning.to_string(), content.to_string(), calls);
        if got != expected {
            failures.push_str(&format!("{text:?}\n  {got:?}\n  {expected:?}\n"));
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

#[test]
fn reasoning_begins_in_the_prompt_or_the_answer() {
    let rows: &[Row<'_>] = &[
        ("a</think>b", "a", "b", &[]),
        ("\na\n\n</think>\n\nb\n", "a", "b\n", &[]),
        ("\n\n</think>\n\nb", "", "b", &[]),
        ("a <tool_call> b\n", "a <tool_call> b\n", "", &[]),
        ("a</think>b</think><think>", "a", "b</think><think>", &[]),
    ];
    for checkpoint in [with_tokens(OBJECT), with_text(OBJECT)] {
        check(&checkpoint, "<think>\n", rows);
        let opened: Vec<String> = rows
            .iter()
            .map(|row| format!("\n<think>{}", row.0))
            .collect();
        let opened: Vec<Row<'_>> = opened
            .iter()
            .zip(rows)
            .map(|(text, row)| (text.as_str(), row.1, row.2, row.3))
            .collect();
        check(&checkpoint, "x", &opened);
        let plain: &[Row<'_>] = &[
            ("a<think>b", "", "a<think>b", &[]),
            (" \n", "", " \n", &[]),
            ("</think>a", "", "</think>a", &[]),
        ];
        check(&checkpoint, "quoted <think> x", plain);
        check(
            &checkpoint,
            "<think></think>\n\n",
            &[("\n\na", "", "a", &[])],
        );
    }
}

/// Where the tokenizer has a token for a marker, other tokens with its characters are text.
#[test]
fn markers_are_tokens_where_there_are_tokens() {
    let checkpoint = with_tokens(OBJECT);
    let tokenizer = &checkpoint.bundle.tokenizer;
    let spelled = tokenizer.encode_plain("<think>a</think>").unwrap();
    assert_eq!(spelled.len(), 16);
    let answer = checkpoint.stream("x", &[]).whole(&spelled);
    assert_eq!(told(&answer).1, "<think>a</think>");
}

#[test]
fn calls_that_are_objects() {
    let rows: &[Row<'_>] = &[
        (
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"é\"}}\n</tool_call>",
            "",
            "",
            &["f({\"s\": \"é\"})"],
        ),
        (
            "One.\n\n<tool_call>{\"arguments\": {}, \"name\": \"f\"}</tool_call>\n<tool_call>\
             {\"name\":\"g\"}</tool_call>\nTwo.",
            "",
            "One.\nTwo.",
            &["f({})", "g({})"],
        ),
        (
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"</tool_call>\\\"<tool_call>\"}}\
             </tool_call>",
            "",
            "",
            &["f({\"s\":\"</tool_call>\\\"<tool_call>\"})"],
        ),
        // An end that is missing.
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1}\n</tool_call>.",
            "",
            ".",
            &["f({\"n\": 1})"],
        ),
        ("<tool_call>{\"name\": \"f\"}", "", "", &["f({})"]),
    ];
    for checkpoint in [with_tokens(OBJECT), with_text(OBJECT)] {
        check(&checkpoint, "x", rows);
    }
}

#[test]
fn objects_that_are_no_calls_or_broken_ones() {
    let rows: &[Row<'_>] = &[
        // Calls that are none.
        (
            "a<tool_call>b</tool_call>",
            "",
            "a<tool_call>b</tool_call>",
            &[],
        ),
        (
            "<tool_call>{\"x\": 1}</tool_call>",
            "",
            "<tool_call>{\"x\": 1}</tool_call>",
            &[],
        ),
        (
            "<tool_call>{\"name\": \"a b\"}x",
            "",
            "<tool_call>{\"name\": \"a b\"}x",
            &[],
        ),
        ("the <tool_call", "", "the <tool_call", &[]),
        ("<tool_call>\n{\"na", "", "<tool_call>\n{\"na", &[]),
        // Calls that break.
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": x y}}</tool_call>.",
            "",
            ".",
            &["f({\"n\": x y})…"],
        ),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1",
            "",
            "",
            &["f({\"n\": 1)…"],
        ),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": <b>",
            "",
            "<b>",
            &["f({\"n\": )…"],
        ),
    ];
    for checkpoint in [with_tokens(OBJECT), with_text(OBJECT)] {
        check(&checkpoint, "x", rows);
    }
}

#[test]
fn calls_of_functions_and_parameters() {
    let call =
        |inside: &str| format!("<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>");
    let quoted = call("<parameter=s>\nif </parameter> or </tool_call>\n\n</parameter>\n");
    let typed = call(
        "<parameter=n>\n5\n</parameter>\n<parameter=s>\n5\n</parameter>\n<parameter=x>\
                      [1]</parameter><parameter=y>[1</parameter>",
    );
    let rows: &[Row<'_>] = &[
        (&call(""), "", "", &["f({})"]),
        (
            &quoted,
            "",
            "",
            &["f({\"s\": \"if </parameter> or </tool_call>\\n\"})"],
        ),
        (
            &typed,
            "",
            "",
            &["f({\"n\": 5, \"s\": \"5\", \"x\": [1], \"y\": \"[1\"})"],
        ),
        (
            "a\n\n<tool_call><function=f></function><function=g></function></tool_call>\n",
            "",
            "a",
            &["f({})", "g({})"],
        ),
        ("<tool_call>\n<func", "", "<tool_call>\n<func", &[]),
        (
            "<tool_call> <function=a b>",
            "",
            "<tool_call> <function=a b>",
            &[],
        ),
        (
            "<tool_call>f</tool_call>",
            "",
            "<tool_call>f</tool_call>",
            &[],
        ),
        ("<tool_call><function=f>\nx", "", "\nx", &["f()…"]),
        (
            "<tool_call><function=f><parameter=n>1</parameter>",
            "",
            "",
            &["f({\"n\": 1)…"],
        ),
        (
            "<tool_call><function=f><parameter=n>1</para",
            "",
            "",
            &["f()…"],
        ),
        ("<tool_call><function=f></function>x", "", "x", &["f({})"]),
    ];
    for checkpoint in [with_tokens(FUNCTION), with_text(FUNCTION)] {
        check(&checkpoint, "x", rows);
    }
}

#[test]
fn calls_of_keys_and_values() {
    let rows: &[Row<'_>] = &[
        ("<tool_call>f</tool_call>", "", "", &["f({})"]),
        (
            "a<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n<arg_key> s </arg_key>\
             <arg_value> </arg_value> </arg_value></tool_call><tool_call>g</tool_call>",
            "",
            "a",
            &["f({\"n\": 5, \"s\": \" </arg_value> \"})", "g({})"],
        ),
        (
            "the <tool_call> begins a call",
            "",
            "the <tool_call> begins a call",
            &[],
        ),
        (
            "<tool_call>f g</tool_call>",
            "",
            "<tool_call>f g</tool_call>",
            &[],
        ),
        ("<tool_call>f<arg_key>n</arg_key>5", "", "5", &["f()…"]),
        (
            "<tool_call>f<arg_key>n</arg_key><arg_value>5",
            "",
            "",
            &["f()…"],
        ),
    ];
    for checkpoint in [with_tokens(PAIRS), with_text(PAIRS)] {
        check(&checkpoint, "x", rows);
    }
    let long = format!("<tool_call>{}", "a".repeat(300));
    check(&with_tokens(PAIRS), "x", &[(&long, "", &long, &[])]);
}

#[test]
fn calls_of_the_formats_in_code() {
    let dsml = Checkpoint::new(&DSML, true, None);
    let rows: &[Row<'_>] = &[
        (
            "hm</think>\n\nOn it.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n\
             <｜DSML｜parameter name=\"s\" string=\"true\"></｜DSML｜parameter> 5\
             </｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">5\
             </｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n\n\
             </｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            "hm",
            "\n\nOn it.",
            &["f({\"s\": \"</｜DSML｜parameter> 5\", \"n\": 5})", "g({})"],
        ),
        ("</think>a\n\n<｜DSML｜to", "", "a", &[]),
        ("</think><｜DSML｜tools>", "", "<｜DSML｜tools>", &[]),
    ];
    check(&dsml, "x", rows);
    let xtml = Checkpoint::new(&XTML, true, None);
    let rows: &[Row<'_>] = &[
        (
            "hm<|close|>think<|sep|><|open|>response<|sep|>a<|close|>response<|sep|><|open|>tools\
             <|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"n\" \
             type=\"number\"<|sep|>5<|close|>argument<|sep|><|open|>argument key=\"&quot;\" \
             type=\"string\"<|sep|>5<|close|>argument<|sep|><|close|>call<|sep|><|open|>call \
             tool=\"g\" index=\"2\"<|sep|><|open|>json type=\"object\"<|sep|>{\"a\"<|close|>json\
             <|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>",
            "hm",
            "a",
            &["f({\"n\": 5, \"\\\"\": \"5\"})", "g({\"a\")"],
        ),
        ("hm<|open|>response<|sep|>a<|close|>resp", "hm", "a", &[]),
        ("hm<|close|>think<|sep|>a", "hm", "a", &[]),
        (
            "hm<|open|>tools<|sep|><|open|>call tool=\"f\"<|sep|>",
            "hm",
            "",
            &["f()…"],
        ),
    ];
    check(&xtml, "x", rows);
}

#[test]
fn calls_and_errors_in_blocks() {
    let blocks = Checkpoint::new(&BLOCKS, true, None);
    let rows: &[Row<'_>] = &[
        (
            "<|content_thinking|>hm<|end_message|><|message_model|><|content_text|>a<|end_message|>\
             <|message_model|>f<|content_invoke_tool_json|>{\"name\": \"f\",\"args\":{\"n\":5}}\
             <|end_message|><|content_model_end_sampling|>",
            "hm",
            "a",
            &["f({\"n\":5})"],
        ),
        ("<|content_text|>a", "", "a", &[]),
        ("a", "", "a", &[]),
        (
            "f<|content_invoke_tool_json|>{\"name\": \"f\",\"args\":{\"n\"",
            "",
            "",
            &["f({\"n\")…"],
        ),
        (
            "f<|content_invoke_tool_json|>5",
            "",
            "f<|content_invoke_tool_json|>5",
            &[],
        ),
        // As the vendor's parser reads them: text without a tool's name, and errors.
        (
            "<|content_thinking|>hm<|end_message|><|content_invoke_tool_text|>f 5<|end_message|>\
             <|content_model_end_sampling|>",
            "hm",
            "f 5",
            &[],
        ),
        (
            "f<|content_invoke_tool_text|>a<|content_text|>b<|end_message|>\
             <|content_invoke_tool_json|>{\"name\":\"f\",\"args\":{}}<|end_message|>",
            "",
            "a<|content_text|>b",
            &["f({})"],
        ),
        (
            "<|content_text|>a<|end_message|><|message_model|><|content_tool_error|>b\
             <|end_message|><|content_text|>c<|end_message|>",
            "",
            "abc",
            &[],
        ),
        ("<|content_invoke_tool_text|>", "", "", &[]),
    ];
    check(&blocks, "x", rows);
}

/// Incomplete calls stand in the message's content as they were written, in their place.
#[test]
fn the_message_of_an_answer() {
    let checkpoint = with_text(OBJECT);
    let text = "<think>hm</think>a\n<tool_call>{\"id\": \"7\", \"name\": \"f\", \"arguments\": \
                {}}</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": {x}}</tool_call> b";
    let message = checkpoint.whole("x", text).message();
    let call = "\n<tool_call>{\"name\": \"g\", \"arguments\": {x}}</tool_call>";
    let content = format!("a{} b", &call[1..]);
    let expected = json!({"role": "assistant", "content": content, "reasoning_content": "hm",
        "tool_calls": [{"id": "7", "type": "function",
            "function": {"name": "f", "arguments": "{}"}}]});
    assert_eq!(serde_json::to_value(&message).unwrap(), expected);
    let plain = checkpoint.whole("x", "a").message();
    assert_eq!(plain, Message::assistant("a"));
}

#[test]
fn stop_strings_apply_to_content() {
    let checkpoint = with_text(OBJECT);
    let text = "<think>STOP</think>\n\na<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \
                \"STOP\"}}</tool_call>\nb ST STOP c <tool_call>{\"name\": \"g\"}</tool_call>";
    let mut stream = checkpoint.stream("x", &["STOP", "\n\n"]);
    for id in checkpoint.bytes(text) {
        stream.push(id);
    }
    stream.finish();
    assert_eq!(stream.stop_string(), Some("STOP"));
    let (reasoning, content, calls) = told(stream.answer());
    assert_eq!((reasoning.as_str(), content.as_str()), ("STOP", "a\nb ST "));
    assert_eq!(calls, ["f({\"s\": \"STOP\"})"]);
}
