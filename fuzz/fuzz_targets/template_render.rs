//! Chat templates: whatever the source, parsing and rendering come back in bounded time and
//! memory, and what parses renders the same twice.
#![no_main]

use std::sync::LazyLock;

use lamella_text::{
    ChatOptions, ChatTemplate, Clock, DateTime, Message, NamedTemplate, SpecialTokens,
    messages_from_json,
};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

static MESSAGES: LazyLock<Vec<Message>> = LazyLock::new(|| {
    messages_from_json(json!([
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": " Hi é🦊\n"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"function": {"name": "f", "arguments": {"a": [1, 1.5, null, true]}}}]},
        {"role": "tool", "content": "ok"}
    ]))
    .unwrap_or_default()
});

fuzz_target!(|data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let only = NamedTemplate { name: "default".into(), source: source.into() };
    let clock = Clock::fixed(DateTime::from_unix(0));
    let special = SpecialTokens::new();
    let Ok(template) = ChatTemplate::named("t", &[only], special, clock) else { return };
    let options = ChatOptions {
        tools: Some(vec![json!({"function": {"name": "f", "parameters": {"x": "<&'>"}}})]),
        ..ChatOptions::prompt()
    };
    let first = template.render(&MESSAGES, &options);
    assert_eq!(first, template.render(&MESSAGES, &options));
});
