//! Tokenizers of other kinds than the demo's: sentencepiece-style marks, byte fallback, unigram.
//! What they decode is compared with the `tokenizers` crate's own decoder.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::HashMap;

use common::added;
use lamella_text::Tokenizer;
use serde_json::{Value, json};

/// A vocabulary in the Llama style: byte tokens, marks, a few merges.
fn llama_style(decoder: Value) -> Value {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into()];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    for token in ["▁", "a", "b", "é", "▁a", "ab", "▁ab", "▁▁", "日"] {
        tokens.push(token.into());
    }
    let vocab: HashMap<&String, usize> = tokens.iter().zip(0..).collect();
    json!({
        "version": "1.0",
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": decoder,
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocab,
            "merges": [["▁", "▁"], ["a", "b"], ["▁", "a"], ["▁", "ab"]]}
    })
}

fn replace_mark() -> Value {
    json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "})
}

fn check_against_crate(json: &Value, texts: &[&str]) -> Tokenizer {
    let text = json.to_string();
    let ours = Tokenizer::from_json("tokenizer.json", &text).unwrap();
    let theirs: tokenizers::Tokenizer = text.parse().unwrap();
    for text in texts {
        for special in [false, true] {
            let ids = ours.encode(text, special).unwrap();
            let expected = theirs.encode(*text, special).unwrap();
            assert_eq!(ids, expected.get_ids(), "{text:?}");
            assert_eq!(
                ours.decode(&ids, false),
                theirs.decode(&ids, true).unwrap(),
                "{text:?}"
            );
        }
    }
    ours
}

const TEXTS: [&str; 8] = [
    "",
    "ab",
    " ab  a",
    "  a",
    "éx🦊",
    "日本",
    "a b",
    "\u{1f98a} ab\n",
];

#[test]
fn llama_style_with_byte_fallback() {
    let decoder = json!({"type": "Sequence", "decoders": [replace_mark(), {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    let tokenizer = check_against_crate(&llama_style(decoder), &TEXTS);
    assert_eq!(
        tokenizer.encode("ab", true).unwrap()[0],
        1,
        "a BOS, exactly one"
    );
    assert_eq!(
        tokenizer
            .encode("<s>ab", false)
            .unwrap()
            .iter()
            .filter(|&&id| id == 1)
            .count(),
        1
    );
    assert_eq!(tokenizer.token_bytes(3 + 0xe5), Some(vec![0xe5]));
    assert_eq!(
        tokenizer.token_bytes(tokenizer.token_id("▁ab").unwrap()),
        Some(b" ab".to_vec())
    );
    // Only the very first space goes, however the text is cut.
    let space = tokenizer.token_id("▁").unwrap();
    assert_eq!(tokenizer.decode(&[space, space], false), " ");
}

#[test]
fn gemma_style_keeps_the_first_space() {
    let decoder = json!({"type": "Sequence",
        "decoders": [replace_mark(), {"type": "ByteFallback"}, {"type": "Fuse"}]});
    let mut json = llama_style(decoder);
    json["normalizer"] = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    check_against_crate(&json, &TEXTS);
}

#[test]
fn metaspace_in_all_schemes() {
    for (scheme, prefix) in [("always", true), ("first", true), ("never", false)] {
        let part = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme,
            "add_prefix_space": prefix, "split": false});
        let mut json = llama_style(part.clone());
        json["normalizer"] = Value::Null;
        json["pre_tokenizer"] = part;
        // Without ByteFallback in the chain the crate shows byte tokens literally, and so do we.
        check_against_crate(&json, &TEXTS);
    }
}

#[test]
fn unigram() {
    let json = json!({
        "version": "1.0",
        "added_tokens": [added(0, "<unk>", true)],
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
            "vocab": [["<unk>", 0.0], ["▁", -2.0], ["a", -3.0], ["b", -3.0], ["▁ab", -2.5]]}
    });
    check_against_crate(&json, &["ab", "ab a", " a b", "b"]);
}

#[test]
fn added_tokens_stand_for_themselves() {
    // "é" is a letter of the byte alphabet, and must not be read as byte 0xE9 in an added token.
    let json = json!({
        "version": "1.0",
        "added_tokens": [added(2, "<|fin é|>", false), added(3, "<｜end▁x｜>", true)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false},
        "model": {"type": "BPE", "vocab": {"a": 0, "Ġ": 1}, "merges": []}
    });
    let tokenizer = Tokenizer::from_json("tokenizer.json", &json.to_string()).unwrap();
    let ids = tokenizer.encode("a<|fin é|> <｜end▁x｜>", false).unwrap();
    assert_eq!(ids, [0, 2, 1, 3]);
    assert_eq!(tokenizer.decode(&ids, true), "a<|fin é|> <｜end▁x｜>");
    assert_eq!(tokenizer.decode(&ids, false), "a<|fin é|> ");
    assert_eq!(tokenizer.special_ids(), [3]);
}

/// Padding and truncation in the file must change nothing.
#[test]
fn padding_and_truncation_are_ignored() {
    let mut json = llama_style(json!({"type": "Fuse"}));
    let plain = Tokenizer::from_json("tokenizer.json", &json.to_string()).unwrap();
    json["padding"] = json!({"strategy": {"Fixed": 4_000_000_000_u32}, "direction": "Right",
        "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"});
    json["truncation"] = json!({"direction": "Right", "max_length": 1, "strategy": "LongestFirst",
        "stride": 0});
    let padded = Tokenizer::from_json("tokenizer.json", &json.to_string()).unwrap();
    assert_eq!(padded.encode("ab ab", true), plain.encode("ab ab", true));
}
