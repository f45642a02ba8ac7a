//! Answers of any ids, in every format: what is streamed is the whole, complete calls have JSON
//! arguments, and the message for the history can be rendered.
//!
//! The input is a byte for format and stop strings, then ids in two bytes each.
#![no_main]

#[path = "../../crates/text/tests/common/mod.rs"]
mod common;

use common::answers::{BLOCKS, Checkpoint, DSML, FUNCTION, OBJECT, PAIRS, XTML};
use lamella_text::{AnswerEvent, ChatOptions, Message, StopStrings};
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use std::sync::LazyLock;

const MARKERS: [&str; 8] = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>",
];

static CHECKPOINTS: LazyLock<[Checkpoint; 6]> = LazyLock::new(|| {
    [
        Checkpoint::new(&DSML, true, None),
        Checkpoint::new(&XTML, true, None),
        Checkpoint::new(&BLOCKS, true, None),
        Checkpoint::new(&MARKERS, false, Some(OBJECT)),
        Checkpoint::new(&MARKERS, false, Some(FUNCTION)),
        Checkpoint::new(&MARKERS, false, Some(PAIRS)),
    ]
});

fuzz_target!(|data: &[u8]| {
    let Some((&choice, rest)) = data.split_first() else { return };
    let bundle = &CHECKPOINTS[usize::from(choice) % CHECKPOINTS.len()].bundle;
    let vocabulary = bundle.tokenizer.vocabulary() as u32;
    // One beyond the vocabulary too.
    let ids = rest.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let ids: Vec<u32> = ids.map(|id| u32::from(id) % (vocabulary + 1)).collect();
    let stops = match choice & 0x80 {
        0 => StopStrings::none(),
        _ => StopStrings::new(&["</t", "é"]).unwrap_or_else(|_| StopStrings::none()),
    };
    let tools = vec![json!({"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}}})];
    let options = ChatOptions { tools: Some(tools), ..ChatOptions::prompt() };
    let prompt = bundle.chat().and_then(|chat| chat.render(&[Message::user("q")], &options));
    let Ok(prompt) = prompt else { unreachable!("this conversation renders") };
    let fresh = || bundle.answer(&prompt, &options, &stops);
    let (mut stream, mut content, mut reasoning) = (fresh(), String::new(), String::new());
    let mut take = |events: &[AnswerEvent]| {
        for event in events {
            match event {
                AnswerEvent::Content(text) => content.push_str(text),
                AnswerEvent::Reasoning(text) => reasoning.push_str(text),
                _ => {}
            }
        }
    };
    for &id in &ids {
        if stream.stopped() {
            break;
        }
        take(stream.push(id));
    }
    take(stream.finish());
    let answer = stream.into_answer();
    assert_eq!((&content, &reasoning), (&answer.content, &answer.reasoning));
    assert_eq!(answer, fresh().whole(&ids));
    let _ = bundle.encode_chat(&[Message::user("q"), answer.message()], &options);
});
