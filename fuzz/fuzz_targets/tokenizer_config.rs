//! tokenizer_config.json, beside each of the two kinds of tokenizer: what loads renders a
//! conversation or says why not, and its stop ids are tokens.
#![no_main]

#[path = "../../crates/text/tests/common/mod.rs"]
mod common;

use lamella_text::{Bundle, ChatOptions, Message};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

const RANKS: &str = include_str!("../seeds/tiktoken_ranks/bytes.txt");

static JSON: LazyLock<String> = LazyLock::new(|| {
    common::byte_level(vec![common::added(256, "<s>", true), common::added(257, "</s>", true)])
        .to_string()
});

fuzz_target!(|data: &[u8]| {
    let Ok(config) = std::str::from_utf8(data) else { return };
    for (name, text) in [("tokenizer.json", JSON.as_str()), ("tiktoken.model", RANKS)] {
        let bundle = match Bundle::load(&|file| match file {
            "tokenizer_config.json" => Some(config.to_owned()),
            _ => (file == name).then(|| text.to_owned()),
        }) {
            Ok(bundle) => bundle,
            Err(error) => {
                assert!(error.to_string().contains("tokenizer_config.json"), "{error}");
                continue;
            }
        };
        assert!(bundle.stop_ids().iter().all(|&id| bundle.tokenizer.bytes(id).is_some()));
        let _ = bundle.encode_chat(&[Message::user("hi </s>")], &ChatOptions::prompt());
    }
});
