//! Conversations and tools as strangers send them, in every format in code: rendering comes back
//! the same twice, and where text is kept apart from control tokens none of it becomes one.
//!
//! The input is JSON: `messages`, and `tools` if there are any.
#![no_main]

#[path = "../../crates/text/tests/common/mod.rs"]
mod common;

use common::answers::{BLOCKS, Checkpoint, DSML, OBJECT, XTML};
use lamella_text::{ChatOptions, SegmentKind, StopStrings, messages_from_json};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use std::sync::LazyLock;

static CHECKPOINTS: LazyLock<[Checkpoint; 4]> = LazyLock::new(|| {
    [
        Checkpoint::new(&DSML, true, None),
        Checkpoint::new(&XTML, true, None),
        Checkpoint::new(&BLOCKS, true, None),
        Checkpoint::new(&["<tool_call>"], false, Some(OBJECT)),
    ]
});

fuzz_target!(|data: &[u8]| {
    let Ok(Value::Object(mut input)) = serde_json::from_slice(data) else { return };
    let messages = input.remove("messages").unwrap_or_default();
    let Ok(messages) = messages_from_json(messages) else { return };
    let tools = match input.remove("tools") {
        Some(Value::Array(tools)) => Some(tools),
        _ => None,
    };
    let options = ChatOptions { tools, ..ChatOptions::prompt() };
    for checkpoint in CHECKPOINTS.iter() {
        let bundle = &checkpoint.bundle;
        let Ok(chat) = bundle.chat() else { unreachable!("all of them have a format") };
        let rendered = chat.render(&messages, &options);
        assert_eq!(rendered, chat.render(&messages, &options));
        let Ok(prompt) = rendered else { continue };
        for segment in prompt.segments() {
            if segment.kind != SegmentKind::Text {
                continue;
            }
            let Ok(ids) = bundle.tokenizer.encode_plain(&segment.text) else { continue };
            assert!(!ids.iter().any(|&id| bundle.tokenizer.is_special(id)));
        }
        if prompt.ids(&bundle.tokenizer).is_ok() {
            let stream = bundle.answer(&prompt, &options, &StopStrings::none());
            let _ = stream.whole(&[]);
        }
    }
});
