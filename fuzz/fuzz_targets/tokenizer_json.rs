//! tokenizer.json: what loads must encode without panic, to ids that have bytes, and must decode
//! streaming as it decodes whole.
#![no_main]

use lamella_text::{StopStrings, TextStream, Tokenizer};
use libfuzzer_sys::fuzz_target;

const TEXTS: [&str; 3] = ["", "ab <a> foo b é日🦊\n\t 1234", "\u{0}a\u{301}ab<0x61>▁▁"];

fuzz_target!(|data: &[u8]| {
    let Ok(json) = std::str::from_utf8(data) else { return };
    let tokenizer = match Tokenizer::from_json("tokenizer.json", json) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return assert!(error.to_string().starts_with("tokenizer.json")),
    };
    let stops = StopStrings::none();
    for text in TEXTS {
        for add_special in [false, true] {
            let Ok(ids) = tokenizer.encode(text, add_special) else { continue };
            let mut stream = TextStream::new(&tokenizer, &stops, true);
            let mut streamed = String::new();
            for &id in &ids {
                streamed.push_str(stream.push(id));
            }
            streamed.push_str(stream.finish());
            assert_eq!(streamed, tokenizer.decode(&ids, true));
        }
    }
});
