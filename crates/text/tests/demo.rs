//! The demo model's text side against what `transformers` made of it (demo/reference.json,
//! demo/eval.jsonl).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use lamella_text::{Bundle, ChatOptions, Decoder, StopStrings, messages_from_json};
use serde_json::Value;

use common::{demo_bundle, demo_file, demo_text};

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn eval() -> Vec<Value> {
    demo_text("eval.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn tokenizer_strings_are_exact() {
    let bundle = demo_bundle();
    let reference: Value = serde_json::from_str(&demo_text("reference.json")).unwrap();
    let cases = reference["tokenizer"].as_array().unwrap();
    assert!(cases.len() > 20, "only {} cases", cases.len());
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected = ids(&case["ids"]);
        assert_eq!(
            bundle.tokenizer.encode(text, false).unwrap(),
            expected,
            "{text:?}"
        );
        assert_eq!(
            bundle.tokenizer.encode(text, true).unwrap(),
            expected,
            "{text:?}"
        );
        let decoded = bundle.tokenizer.decode(&expected, true);
        assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{text:?}");
    }
    for case in reference["continuations"].as_array().unwrap() {
        let prompt = case["prompt"].as_str().unwrap();
        assert_eq!(
            bundle.tokenizer.encode(prompt, true).unwrap(),
            ids(&case["prompt_ids"])
        );
    }
}

#[test]
fn heldout_text_has_the_tokens_of_the_reference() {
    let bundle = demo_bundle();
    let reference: Value = serde_json::from_str(&demo_text("reference.json")).unwrap();
    let text = demo_text("heldout_text.txt");
    let ids = bundle.tokenizer.encode(&text, false).unwrap();
    assert_eq!(
        ids.len() as u64,
        reference["perplexity"]["tokens"].as_u64().unwrap()
    );
    assert_eq!(bundle.tokenizer.decode(&ids, false), text);
}

#[test]
fn all_prompts_render_and_encode_as_the_reference_does() {
    let from_jinja = demo_bundle();
    let from_config = Bundle::load(&|name| match name {
        "chat_template.jinja" => None,
        other => demo_file(other),
    })
    .unwrap();
    let file = |bundle: &Bundle| bundle.chat().unwrap().template().unwrap().file().to_owned();
    assert_eq!(file(&from_jinja), "chat_template.jinja");
    assert_eq!(file(&from_config), "tokenizer_config.json");
    let cases = eval();
    assert_eq!(cases.len(), 200);
    for case in &cases {
        let messages = messages_from_json(case["messages"].clone()).unwrap();
        let tools = case["tools"].as_array().cloned();
        let options = ChatOptions {
            tools,
            ..ChatOptions::prompt()
        };
        for bundle in [&from_jinja, &from_config] {
            let chat = bundle.chat().unwrap();
            assert_eq!(
                chat.render(&messages, &options).unwrap().text(),
                case["prompt"].as_str().unwrap(),
                "prompt {}",
                case["id"]
            );
            let encoded = bundle.encode_chat(&messages, &options).unwrap();
            assert_eq!(encoded, ids(&case["prompt_ids"]), "prompt {}", case["id"]);
        }
    }
}

#[test]
fn answers_decode_as_the_reference_does_streaming_and_whole() {
    let bundle = demo_bundle();
    let none = StopStrings::none();
    for case in eval() {
        let expected = case["expected"].as_str().unwrap();
        let ids = ids(&case["expected_ids"]);
        assert_eq!(bundle.tokenizer.decode(&ids, false), expected);
        assert_eq!(bundle.stream(&none, false).whole(&ids), expected);
        let mut stream = bundle.stream(&none, false);
        let mut text = String::new();
        for &id in &ids {
            text.push_str(stream.push(id));
            assert!(
                expected.starts_with(&text),
                "{text:?} is no beginning of {expected:?}"
            );
        }
        text.push_str(stream.finish());
        assert_eq!(text, expected);
    }
}

#[test]
fn the_bundle_knows_where_answers_end() {
    let bundle = demo_bundle();
    assert_eq!(bundle.stop_ids(), [0, 2]);
    assert_eq!(bundle.generation.eos_token_ids, [2, 0]);
    assert_eq!(bundle.generation.do_sample, Some(false));
    assert_eq!(bundle.tokenizer.special_ids(), [0, 1, 2]);
    assert_eq!(bundle.tokenizer.vocabulary(), 2048);
    assert_eq!(bundle.tokenizer.token_id("<|im_end|>"), Some(2));
    assert_eq!(bundle.special_tokens()["eos_token"], "<|im_end|>");
}

/// Every token's bytes agree with what the `tokenizers` crate decodes, where that is text.
#[test]
fn token_bytes_agree_with_an_independent_decoder() {
    let bundle = demo_bundle();
    let text = common::demo_file("tokenizer.json").unwrap();
    let other: tokenizers::Tokenizer = text.parse().unwrap();
    let mut whole = 0;
    for id in 0..2048 {
        let bytes = bundle.tokenizer.token_bytes(id).unwrap();
        let theirs = other.decode(&[id], false).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), theirs, "token {id}");
        whole += usize::from(String::from_utf8(bytes).is_ok());
    }
    assert!(whole > 1500);
}

#[test]
fn special_tokens_are_skipped_unless_kept_and_unknown_ids_give_no_text() {
    let tokenizer = demo_bundle().tokenizer;
    let ids = [1, 1104, 2048, 3, u32::MAX, 2];
    assert_eq!(tokenizer.decode(&ids, false), "Hello!");
    assert_eq!(tokenizer.decode(&ids, true), "<|im_start|>Hello!<|im_end|>");
    assert_eq!(tokenizer.token_bytes(2048), None);
    assert_eq!(tokenizer.token_bytes(u32::MAX), None);
}

#[test]
fn special_tokens_written_in_a_text_become_their_ids() {
    let tokenizer = demo_bundle().tokenizer;
    let ids = tokenizer
        .encode("<|im_start|>Hello!<|im_end|>", false)
        .unwrap();
    assert_eq!(ids, [1, 1104, 3, 2]);
}

/// Text of every kind cut into single-byte tokens: the hardest split there is.
#[test]
fn characters_split_over_tokens_come_whole() {
    let tokenizer = demo_bundle().tokenizer;
    let by_byte: Vec<u32> = (0..=255)
        .map(|byte: u8| {
            (0..2048)
                .find(|&id| {
                    !tokenizer.is_special(id) && tokenizer.bytes(id) == Some([byte].as_slice())
                })
                .unwrap_or(u32::MAX)
        })
        .collect();
    for text in [
        "é",
        "\u{7ff}",
        "日本",
        "\u{ffff}",
        "🦊🏽",
        "a\u{10ffff}z",
        "👩‍👩‍👧",
    ] {
        let ids: Vec<u32> = text.bytes().map(|byte| by_byte[byte as usize]).collect();
        assert!(!ids.contains(&u32::MAX), "the vocabulary has every byte");
        let mut decoder = Decoder::new(&tokenizer, false);
        let mut out = String::new();
        for (at, &id) in ids.iter().enumerate() {
            decoder.push(id, &mut out);
            let whole = (0..=at + 1)
                .rev()
                .find(|&end| text.is_char_boundary(end))
                .unwrap();
            assert_eq!(out, text[..whole], "after byte {at} of {text}");
            assert_eq!(decoder.held(), at + 1 - whole);
        }
        decoder.finish(&mut out);
        assert_eq!(out, text);
        // Ended in the middle of a character: one replacement, as for the whole.
        for cut in 0..ids.len() {
            let expected = String::from_utf8_lossy(&text.as_bytes()[..cut]).into_owned();
            assert_eq!(tokenizer.decode(&ids[..cut], false), expected);
        }
    }
}

#[test]
fn a_text_that_is_absurdly_long_is_refused() {
    let tokenizer = demo_bundle().tokenizer;
    let text = " ".repeat(lamella_text::MAX_TEXT_BYTES + 1);
    assert!(matches!(
        tokenizer.encode(&text, false),
        Err(lamella_text::Error::TextTooLong { .. })
    ));
}
