//! Tests of reading keys.

use super::*;
use serde_json::json;

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn messages(reader: ConfigReader<'_>) -> Vec<String> {
    reader.finish().iter().map(ToString::to_string).collect()
}

#[test]
fn unread_keys_are_defects_and_inert_ones_are_not() {
    let values = map(json!({"a": 1, "use_cache": true, "b": {"c": 1}, "transformers_version": 4}));
    let mut reader = ConfigReader::new(&values);
    assert_eq!(reader.count("a", 1).unwrap(), 1);
    assert_eq!(reader.finish(), [Defect::UnknownConfigKey("b".into())]);
}

#[test]
fn counts_are_whole_and_bounded() {
    let values = map(
        json!({"zero": 0, "minus": -1, "half": 1.5, "text": "3", "many": 11,
        "huge": 1e30, "null": null, "fine": 10}),
    );
    for key in [
        "zero", "minus", "half", "text", "many", "huge", "null", "absent",
    ] {
        let mut reader = ConfigReader::bare(&values, String::new());
        assert!(reader.count(key, 10).is_err(), "{key}");
        assert!(
            reader.defects[0]
                .to_string()
                .starts_with(&format!("config.json: {key}: is "))
        );
    }
    let mut reader = ConfigReader::bare(&values, String::new());
    assert_eq!(reader.count("fine", 10).unwrap(), 10);
    assert_eq!(reader.optional_count("null", 10).unwrap(), None);
    assert_eq!(reader.optional_count("absent", 10).unwrap(), None);
    assert!(reader.optional_count("many", 10).is_err());
}

#[test]
fn lists_and_texts_are_bounded_too() {
    let values = map(json!({
        "zero": 0, "three": 3, "list": [0, 3], "long": [0, 0, 0], "mixed": [0, "a"],
        "minus": [-1], "words": ["a", "b"], "word": "a", "null": null
    }));
    let mut reader = ConfigReader::bare(&values, String::new());
    assert_eq!(reader.optional_whole("zero", 2).unwrap(), Some(0));
    assert_eq!(reader.optional_whole("null", 2).unwrap(), None);
    assert!(reader.optional_whole("three", 2).is_err());
    assert!(reader.optional_whole("word", 2).is_err());
    let list = reader.optional_wholes("list", 3, 2).unwrap();
    assert_eq!(list, Some(vec![0, 3]));
    assert!(reader.optional_wholes("list", 2, 2).is_err());
    for key in ["long", "mixed", "minus", "zero", "words"] {
        assert!(reader.optional_wholes(key, 9, 2).is_err(), "{key}");
    }
    assert_eq!(reader.optional_first_whole("list", 9).unwrap(), Some(0));
    assert_eq!(reader.optional_first_whole("three", 9).unwrap(), Some(3));
    assert_eq!(reader.optional_first_whole("null", 9).unwrap(), None);
    for key in ["words", "minus", "word"] {
        assert!(reader.optional_first_whole(key, 9).is_err(), "{key}");
    }
    assert_eq!(reader.optional_text("word").unwrap(), Some("a"));
    assert!(reader.optional_text("zero").is_err());
    let words = reader.optional_texts("words", 2).unwrap();
    assert_eq!(words, Some(vec!["a", "b"]));
    assert!(reader.optional_texts("words", 1).is_err());
    assert!(reader.optional_texts("mixed", 9).is_err());
    assert_eq!(reader.optional_texts("absent", 9).unwrap(), None);
}

#[test]
fn numbers_must_survive_f32() {
    use Domain::{Base, Epsilon, Factor, Negative, Positive, Share};
    let values = map(json!({
        "tiny": 1e-60, "big": 1e60, "zero": 0.0, "minus": -1.0, "fine": 1e-5, "whole": 3,
        "one": 1.0, "almost": 1.0 - 1e-12, "many": 65536, "more": 65537, "text": "1e-5"
    }));
    let keys = [
        "tiny", "big", "zero", "minus", "fine", "whole", "one", "almost", "many", "more", "text",
        "absent",
    ];
    let mut reader = ConfigReader::bare(&values, String::new());
    let mut passes = |domain| -> Vec<&str> {
        let good = |key: &&&str| reader.number(key, domain).is_ok();
        keys.iter().filter(good).copied().collect()
    };
    let positive = ["fine", "whole", "one", "almost", "many", "more"];
    assert_eq!(passes(Positive), positive);
    assert_eq!(passes(Negative), ["minus"]);
    // What an f32 rounds to 1 is 1.
    assert_eq!(passes(Epsilon), ["fine"]);
    assert_eq!(passes(Factor), positive[..5]);
    assert_eq!(passes(Share), ["fine", "one", "almost"]);
    assert_eq!(passes(Base), ["whole", "many", "more"]);
    assert_eq!(reader.number("fine", Epsilon).unwrap(), 1e-5);
    assert_eq!(reader.optional_number("absent", Epsilon).unwrap(), None);
}

#[test]
fn nested_keys_are_named_in_full() {
    let values = map(json!({"rope": {"theta": 0, "other": 1}}));
    let mut reader = ConfigReader::new(&values);
    let mut nested = reader.object("rope").unwrap().unwrap();
    assert!(nested.number("theta", Domain::Base).is_err());
    reader.absorb(nested);
    let found = messages(reader);
    assert!(found[0].contains("rope.theta: is 0"), "{found:?}");
    assert!(found[1].contains("rope.other"), "{found:?}");
}

#[test]
fn only_the_supported_value_passes() {
    let values = map(json!({"act": "gelu", "same": "silu", "null": null}));
    let silu = json!("silu");
    let mut reader = ConfigReader::new(&values);
    reader.require("same", &silu);
    reader.require_if_present("same", &silu);
    reader.require_if_present("null", &silu);
    reader.require_if_present("absent", &silu);
    reader.require("act", &silu);
    reader.require("null", &silu);
    reader.require("absent", &silu);
    let found = messages(reader);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(
        found[0].contains(r#"is "gelu", but only "silu""#),
        "{found:?}"
    );
}

#[test]
fn long_values_are_cut() {
    assert!(shown(&json!("ä".repeat(100_000))).chars().count() < 70);
    assert_eq!(shown(&json!([1, 2])), "[1,2]");
}
