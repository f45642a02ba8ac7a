//! What the tests of this crate share.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

pub mod answers;

use std::path::PathBuf;

use lamella_text::Bundle;
use serde_json::{Value, json};

/// Reads a file of the demo folder.
pub fn demo_text(name: &str) -> String {
    let path = demo_path(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn demo_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../demo")
        .join(name)
}

/// Reads a file of the demo model, as a bundle does.
pub fn demo_file(name: &str) -> Option<String> {
    std::fs::read_to_string(demo_path("model").join(name)).ok()
}

/// The demo model's bundle.
pub fn demo_bundle() -> Bundle {
    Bundle::load(&demo_file).expect("the demo model's files are good")
}

/// An added token of a `tokenizer.json`.
pub fn added(id: u32, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special})
}

/// A `tokenizer.json` with a token for every byte (ids in the order of the alphabet's characters)
/// and these added ones.
pub fn byte_level(added: Vec<Value>) -> Value {
    let bytes = (0x21..=0x7e).chain(0xa1..=0xac).chain(0xae..=0x143);
    let characters = bytes.filter_map(char::from_u32).zip(0..);
    let vocab: serde_json::Map<String, Value> = characters
        .map(|(c, id)| (c.to_string(), Value::from(id)))
        .collect();
    json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": []}
    })
}
