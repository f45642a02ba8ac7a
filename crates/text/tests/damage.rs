//! Damaged checkpoints: every kind of damage is an error that names the file, and no panic.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use lamella_text::{Bundle, Error, Tokenizer};
use serde_json::{Value, json};

use common::demo_file;

/// The demo model's files with one of them replaced (or removed).
fn with(name: &str, text: Option<&str>) -> Result<Bundle, Error> {
    Bundle::load(&|file| {
        if file == name {
            text.map(str::to_owned)
        } else {
            demo_file(file)
        }
    })
}

/// The demo's `tokenizer.json`, changed.
fn tokenizer_with(change: impl Fn(&mut Value)) -> String {
    let mut json: Value = serde_json::from_str(&demo_file("tokenizer.json").unwrap()).unwrap();
    change(&mut json);
    json.to_string()
}

fn check(name: &str, text: &str, parts: &[&str]) {
    let error = match with(name, Some(text)) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{name} is accepted, {parts:?} expected"),
    };
    assert!(error.starts_with(name), "{error}");
    for part in parts {
        assert!(error.contains(part), "{error} does not say {part:?}");
    }
}

#[test]
fn any_file_that_is_no_such_file() {
    let names = [
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
    ];
    for name in names {
        check(name, "", &["is empty"]);
        check(
            name,
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            &["Git LFS"],
        );
        check(name, "\0\0\0\0\0\0\0\0", &["zeros"]);
        check(name, "<!DOCTYPE html><html>Sign in</html>", &["web page"]);
    }
    for name in &names[..4] {
        check(name, "[]", &[]);
        check(name, "{\"a\": 1", &["line 1", "column 7"]);
        check(name, "nonsense", &["line 1"]);
        let deep = format!("{{\"normalizer\":{}", "[".repeat(100_000));
        check(name, &deep, &["recursion limit"]);
    }
}

#[test]
fn tokenizer_missing() {
    let error = with("tokenizer.json", None).unwrap_err();
    assert!(
        error.to_string().starts_with("tokenizer.json is missing: "),
        "{error}"
    );
}

type Change = fn(&mut Value);

fn check_tokenizer(cases: &[(Change, &[&str])]) {
    for (change, parts) in cases {
        check("tokenizer.json", &tokenizer_with(change), parts);
    }
}

#[test]
fn damaged_vocabulary() {
    check_tokenizer(&[
        (
            |t| drop(t["model"].as_object_mut().unwrap().remove("vocab")),
            &["`vocab`"],
        ),
        (
            |t| t["model"]["vocab"] = json!({}),
            &["`model.vocab`", "is empty"],
        ),
        (
            |t| t["model"]["vocab"]["the"] = json!(-1),
            &["invalid value", "u32"],
        ),
        (
            |t| t["model"]["vocab"]["the"] = json!("x"),
            &["invalid type"],
        ),
        (
            |t| t["model"]["vocab"]["the"] = json!(7),
            &["the same id 7"],
        ),
        (
            |t| t["model"]["vocab"]["zzz"] = json!(4_000_000_000_u32),
            &["4000000000", "damaged"],
        ),
        (
            |t| t["model"]["vocab"] = json!([["a", 0.0]]),
            &["`model.merges[0]`"],
        ),
        (
            |t| {
                // The whole of a merge is missing: the crate itself panics on this one.
                let vocab = t["model"]["vocab"].as_object_mut().unwrap();
                let longest = vocab.keys().max_by_key(|key| key.len()).unwrap().clone();
                let id = vocab.remove(&longest).unwrap();
                vocab.insert("x".into(), id);
            },
            &["is not in the vocabulary"],
        ),
    ]);
}

#[test]
fn damaged_model_settings_and_merges() {
    check_tokenizer(&[
        (|t| t["model"] = Value::Null, &["line"]),
        (
            |t| t["model"]["merges"][3] = json!(["zz", "yy"]),
            &["`model.merges[3]`: `zz`"],
        ),
        (
            |t| t["model"]["merges"][3] = json!(["a"]),
            &["a merge needs two tokens"],
        ),
        (
            |t| t["model"]["merges"][3] = json!(["a", "b", "c"]),
            &["no more"],
        ),
        (
            |t| t["model"]["merges"][3] = json!("abc"),
            &["is not two tokens"],
        ),
        (|t| t["model"]["merges"][3] = json!(5), &["a merge"]),
        (
            |t| t["model"]["continuing_subword_prefix"] = json!("##"),
            &["does not begin with `##`"],
        ),
        (|t| t["model"]["dropout"] = json!(0.1), &["`model.dropout`"]),
        (
            |t| t["model"]["unk_token"] = json!("<nope>"),
            &["`model.unk_token`", "<nope>"],
        ),
        (
            |t| t["model"]["type"] = json!("WordPiece"),
            &["`model.type`", "WordPiece"],
        ),
    ]);
}

#[test]
fn damaged_added_tokens_and_version() {
    check_tokenizer(&[
        (|t| t["version"] = json!("9"), &["version '9'"]),
        (
            |t| t["added_tokens"][1]["id"] = json!(5),
            &["`added_tokens[1]`", "says id 5 but is id 1"],
        ),
        (
            |t| t["added_tokens"][1]["content"] = json!(""),
            &["`added_tokens[1]`", "cannot be"],
        ),
        (
            |t| t["added_tokens"][1]["content"] = json!(3),
            &["invalid type"],
        ),
        (|t| t["added_tokens"] = json!({}), &["invalid type"]),
    ]);
}

#[test]
fn damaged_normalizer() {
    check_tokenizer(&[
        (
            |t| t["normalizer"] = json!({"type": "Prepend", "prepend": ""}),
            &["prepends nothing"],
        ),
        (
            |t| t["normalizer"] = json!({"type": "Nonsense"}),
            &["`normalizer`: `Nonsense` is not supported"],
        ),
        (
            |t| {
                t["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"});
            },
            &["`normalizer`", "Precompiled"],
        ),
        (
            |t| {
                let grow = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
                t["normalizer"] = json!({"type": "Sequence", "normalizers": vec![grow; 40]});
            },
            &["`normalizer`", "times longer"],
        ),
        (
            |t| {
                t["normalizer"] =
                    json!({"type": "Replace", "pattern": {"String": ""}, "content": "a"});
            },
            &["replaces the empty text"],
        ),
        (
            |t| {
                t["normalizer"] =
                    json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "a"});
            },
            &["`normalizer`", "replaces the empty text"],
        ),
        (
            |t| {
                let star = json!({"type": "Replace", "pattern": {"Regex": "y*"}, "content": "a"});
                t["normalizer"] = json!({"type": "Sequence", "normalizers": [star]});
            },
            &["`normalizer.normalizers[0]`", "replaces the empty text"],
        ),
        (
            |t| t["normalizer"] = json!({"normalizers": []}),
            &["`normalizer`", "no `type`"],
        ),
    ]);
}

#[test]
fn patterns_that_the_crate_can_replace_are_left_to_it() {
    for (pattern, content) in [(" +", "a"), ("$", "a"), ("y*", ""), ("", "")] {
        let json = tokenizer_with(|t| {
            t["normalizer"] =
                json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": content});
        });
        let tokenizer = Tokenizer::from_json("tokenizer.json", &json).unwrap();
        for text in ["a", "a b", "\u{e9} a\n"] {
            tokenizer.encode(text, false).unwrap();
        }
    }
}

#[test]
fn damaged_pre_tokenizer() {
    check_tokenizer(&[
        (
            |t| {
                t["pre_tokenizer"] = json!({"type": "Sequence",
                    "pretokenizers": [{"type": "FixedLength", "length": 0}]});
            },
            &["`pre_tokenizer.pretokenizers[0]`", "length 0"],
        ),
        (
            |t| {
                t["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "(((("},
                    "behavior": "Isolated", "invert": false});
            },
            &["does not describe a tokenizer"],
        ),
        (
            |t| {
                t["pre_tokenizer"] = json!({"type": "Split", "behavior": "Isolated",
                    "pattern": {"Regex": "(".repeat(100_000)}, "invert": false});
            },
            &["does not describe a tokenizer"],
        ),
        (
            |t| t["pre_tokenizer"] = json!({"type": "Nope"}),
            &["`pre_tokenizer`: `Nope`"],
        ),
    ]);
}

#[test]
fn damaged_post_processor() {
    check_tokenizer(&[
        (
            |t| {
                t["post_processor"] = json!({"type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}}], "pair": [],
                    "special_tokens": {}});
            },
            &["`post_processor`: `single` does not hold the text once"],
        ),
        (
            |t| {
                t["post_processor"] = json!({"type": "Sequence", "processors": [
                    {"type": "TemplateProcessing", "pair": [], "special_tokens": {}, "single": [
                        {"SpecialToken": {"id": "<x>", "type_id": 0}},
                        {"Sequence": {"id": "A", "type_id": 0}}]}]});
            },
            &["`post_processor.processors[0]`: `<x>` is not among"],
        ),
        (
            |t| {
                t["post_processor"] = json!({"type": "TemplateProcessing", "pair": [],
                    "special_tokens": {}, "single": [{"Sequence": {"id": "B", "type_id": 0}}]});
            },
            &["`post_processor`: `single` does not hold the text once"],
        ),
        (
            |t| t["post_processor"] = json!({"type": "Nope"}),
            &["`post_processor`: `Nope`"],
        ),
        (
            |t| t["post_processor"] = json!(3),
            &["`post_processor`: has no `type`"],
        ),
    ]);
}

#[test]
fn damaged_decoder() {
    check_tokenizer(&[
        (|t| t["decoder"] = Value::Null, &["`decoder`", "is missing"]),
        (
            |t| t["decoder"] = json!({"type": "WordPiece"}),
            &["`decoder`", "WordPiece"],
        ),
        (|t| t["decoder"] = json!(3), &["`decoder`"]),
        (
            |t| {
                t["decoder"] = json!({"type": "Sequence", "decoders": [
                    {"type": "Strip", "content": " ", "start": 0, "stop": 9}]});
            },
            &["`decoder.decoders[0]`"],
        ),
    ]);
}

/// Whatever byte goes wrong, loading comes back, and an error names the file.
#[test]
fn bytes_flipped_anywhere() {
    let good = demo_file("tokenizer.json").unwrap();
    // A small tokenizer with every part, so that each byte's turn comes.
    let mut small: Value = serde_json::from_str(&good).unwrap();
    let model = small["model"].as_object_mut().unwrap();
    let keep = |key: &str| key.starts_with("<|") || key.chars().count() == 1;
    model["vocab"]
        .as_object_mut()
        .unwrap()
        .retain(|key, id| keep(key) && id.as_u64() < Some(40));
    model["merges"] = json!([]);
    let small = small.to_string();
    assert!(Tokenizer::from_json("tokenizer.json", &small).is_ok());
    let texts = [
        ("tokenizer.json", small),
        (
            "tokenizer_config.json",
            demo_file("tokenizer_config.json").unwrap(),
        ),
        (
            "generation_config.json",
            demo_file("generation_config.json").unwrap(),
        ),
        (
            "chat_template.jinja",
            demo_file("chat_template.jinja").unwrap(),
        ),
    ];
    for (name, text) in texts {
        let step = if name == "tokenizer_config.json" {
            7
        } else {
            3
        };
        for at in (0..text.len()).step_by(step) {
            for byte in *b"\"{}[],:0-x%\n" {
                let mut bytes = text.clone().into_bytes();
                bytes[at] = byte;
                let Ok(damaged) = String::from_utf8(bytes) else {
                    continue;
                };
                if let Err(error) = load_part(name, &damaged) {
                    let error = error.to_string();
                    let named = ["tokenizer", "generation_config", "chat_template"];
                    assert!(named.iter().any(|name| error.starts_with(name)), "{error}");
                }
            }
        }
    }
}

/// Loads a damaged file beside good ones; the large tokenizer is left out where it is not meant.
fn load_part(name: &str, damaged: &str) -> Result<(), Error> {
    static SMALL: &str = r#"{"version": "1.0", "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"<|im_end|>": 0}, "merges": []}}"#;
    Bundle::load(&|file| match file {
        _ if file == name => Some(damaged.to_owned()),
        "tokenizer.json" => Some(SMALL.to_owned()),
        _ => None,
    })
    .map(|bundle| {
        let _ = bundle.tokenizer.encode("<|im_start|>user\nHi!", true);
    })
}

#[test]
fn configuration_damage() {
    check(
        "tokenizer_config.json",
        r#"{"eos_token": 3}"#,
        &["`eos_token`", "an integer"],
    );
    check(
        "tokenizer_config.json",
        r#"{"eos_token": "<nope>"}"#,
        &["`eos_token`", "<nope>"],
    );
    check(
        "tokenizer_config.json",
        r#"{"bos_token": {"text": "x"}}"#,
        &["`bos_token`"],
    );
    check(
        "special_tokens_map.json",
        r#"{"bos_token": []}"#,
        &["`bos_token`", "an array"],
    );
    check(
        "generation_config.json",
        r#"{"eos_token_id": "two"}"#,
        &["`eos_token_id`"],
    );
    check(
        "generation_config.json",
        r#"{"temperature": []}"#,
        &["`temperature`"],
    );
    check(
        "chat_template.jinja",
        "{% if x %}\n\n{{",
        &["line 3", "does not parse"],
    );
    check(
        "chat_template.jinja",
        "{% for x in y %}\n{% endif %}",
        &["line 2"],
    );
    for (template, part) in [
        (
            json!("{% if %}"),
            "line 1: the chat template does not parse",
        ),
        (json!(3), "neither a template nor a list"),
        (json!([{"name": "a"}]), "no `name` or no `template`"),
        (json!([]), "0 templates"),
        (
            json!([{"name": "default", "template": "x"}, {"name": "t", "template": "{{"}]),
            "(template `t`)",
        ),
    ] {
        let config = json!({"chat_template": template}).to_string();
        let error = Bundle::load(&|file| match file {
            "chat_template.jinja" => None,
            "tokenizer_config.json" => Some(config.clone()),
            other => demo_file(other),
        });
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("tokenizer_config.json"), "{error}");
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_token_that_is_there_twice() {
    let text = demo_file("tokenizer.json").unwrap();
    let twice = text.replacen("\"!\": 3", "\"!\": 3, \"!\": 5000", 1);
    assert_ne!(text, twice);
    check("tokenizer.json", &twice, &["has `!` twice"]);
}

#[test]
fn a_broken_template_is_never_replaced_by_another() {
    // tokenizer_config.json carries the same template, unbroken.
    assert!(with("chat_template.jinja", Some("{% nonsense %}")).is_err());
}

#[test]
fn no_template_means_no_chat_and_says_what_to_do() {
    let bundle = Bundle::load(&|file| match file {
        "tokenizer.json" | "generation_config.json" => demo_file(file),
        _ => None,
    })
    .unwrap();
    let error = bundle.chat().unwrap_err();
    assert_eq!(error, Error::NoChatTemplate);
    assert!(error.to_string().contains("chat_template.jinja"));
    assert_eq!(bundle.stop_ids(), [0, 2]);
}

#[test]
fn what_is_no_stop_id_names_file_and_key() {
    for bad in [
        "-1",
        "1.5",
        "\"x\"",
        "[2, null]",
        "4294967296",
        "true",
        "{}",
    ] {
        let text = format!(r#"{{"eos_token_id": {bad}}}"#);
        check(
            "generation_config.json",
            &text,
            &["`eos_token_id`", "not a token id"],
        );
        // Also where generation_config.json speaks and the value would not be used.
        check("config.json", &text, &["`eos_token_id`", "not a token id"]);
        let nested = format!(r#"{{"text_config": {text}}}"#);
        check(
            "config.json",
            &nested,
            &["`eos_token_id`", "not a token id"],
        );
    }
    let beyond = r#"{"eos_token_id": [2, 99999]}"#;
    check(
        "generation_config.json",
        beyond,
        &["`eos_token_id`", "99999", "2048"],
    );
    let load = |config: &str| {
        Bundle::load(&|file| match file {
            "generation_config.json" => None,
            "config.json" => Some(config.to_owned()),
            other => demo_file(other),
        })
        .unwrap_err()
        .to_string()
    };
    let error = load(beyond);
    assert!(
        error.starts_with("config.json: `eos_token_id`: has 99999"),
        "{error}"
    );
    let error = load(&format!(r#"{{"text_config": {beyond}}}"#));
    assert!(
        error.starts_with("config.json: `text_config.eos_token_id`: has 99999"),
        "{error}"
    );
}

#[test]
fn a_key_that_is_there_twice_is_refused() {
    let twice = r#"{"eos_token_id": 0, "eos_token_id": 2}"#;
    for file in [
        "generation_config.json",
        "config.json",
        "tokenizer_config.json",
    ] {
        check(file, twice, &["line 1", "`eos_token_id` is there twice"]);
    }
}

#[test]
fn a_tokenizer_that_drops_every_text_is_refused() {
    let empty = tokenizer_with(|json| {
        json["model"]["vocab"] = json!({});
        json["model"]["merges"] = json!([]);
    });
    check("tokenizer.json", &empty, &["`model.vocab`", "is empty"]);
    let erased = tokenizer_with(|json| {
        json["normalizer"] =
            json!({"type": "Replace", "pattern": {"Regex": "(?s)."}, "content": ""});
    });
    check("tokenizer.json", &erased, &["drops every text"]);
}
