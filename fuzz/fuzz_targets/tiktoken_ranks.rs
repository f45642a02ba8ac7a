//! tiktoken.model: what loads encodes without panic, to ids that have bytes, and decodes streaming
//! as it decodes whole.
#![no_main]

use lamella_text::{Bundle, StopStrings};
use libfuzzer_sys::fuzz_target;

const CONFIG: &str = r#"{"tokenizer_class": "TikTokenTokenizer", "eos_token": "[EOS]",
    "added_tokens_decoder": {"259": {"content": "[EOS]", "special": true},
    "260": {"content": "<think>", "special": false}}}"#;
const TEXTS: [&str; 3] = ["", "ab [EOS] abc<think> é日🦊\n\t 1234", "\u{0}a\u{301}don't  日本"];

fuzz_target!(|data: &[u8]| {
    let Ok(ranks) = std::str::from_utf8(data) else { return };
    let bundle = match Bundle::load(&|file| match file {
        "tiktoken.model" => Some(ranks.to_owned()),
        "tokenizer_config.json" => Some(CONFIG.to_owned()),
        _ => None,
    }) {
        Ok(bundle) => bundle,
        // Where the two files contradict each other the second is named.
        Err(error) => return assert!(error.to_string().starts_with("t"), "{error}"),
    };
    for text in TEXTS {
        let Ok(ids) = bundle.tokenizer.encode(text, false) else { continue };
        assert!(ids.iter().all(|&id| bundle.tokenizer.bytes(id).is_some()));
        let mut stream = bundle.stream(&StopStrings::none(), true);
        let mut streamed = String::new();
        for &id in &ids {
            streamed.push_str(stream.push(id));
        }
        streamed.push_str(stream.finish());
        assert_eq!(streamed, bundle.tokenizer.decode(&ids, true));
    }
});
