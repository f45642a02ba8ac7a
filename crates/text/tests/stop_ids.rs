//! Where the tokens that end an answer come from.

mod common;

use common::demo_file;
use lamella_text::Bundle;

#[test]
fn stop_ids_come_from_everywhere_they_are_said() {
    let load = |generation: Option<&str>, tokenizer: Option<&str>, config: Option<&str>| {
        let own = |text: Option<&str>| text.map(str::to_owned);
        Bundle::load(&|file| match file {
            "generation_config.json" => own(generation),
            "tokenizer_config.json" => own(tokenizer),
            "config.json" => own(config),
            "tokenizer.json" => demo_file(file),
            _ => None,
        })
        .map(|bundle| bundle.stop_ids().to_vec())
    };
    let eos = Some(r#"{"eos_token": {"content": "<|im_end|>", "lstrip": false}}"#);
    let config = Some(r#"{"eos_token_id": [9, 8]}"#);
    assert_eq!(
        load(Some(r#"{"eos_token_id": 7}"#), eos, config),
        Ok(vec![2, 7]),
        "generation_config.json speaks instead of config.json, not instead of the tokenizer"
    );
    assert_eq!(
        load(Some(r#"{"eos_token_id": 7}"#), None, config),
        Ok(vec![7])
    );
    assert_eq!(load(None, eos, config), Ok(vec![2, 8, 9]));
    assert_eq!(load(Some("{}"), eos, config), Ok(vec![2, 8, 9]));
    assert_eq!(load(None, None, config), Ok(vec![8, 9]));
    let nested = Some(r#"{"text_config": {"eos_token_id": 4}}"#);
    assert_eq!(load(None, None, nested), Ok(vec![4]));
    let both = Some(r#"{"eos_token_id": 9, "text_config": {"eos_token_id": [4, 9]}}"#);
    assert_eq!(load(None, eos, both), Ok(vec![2, 4, 9]));
    assert_eq!(load(None, None, None), Ok(vec![]));
    assert!(load(None, None, Some(r#"{"eos_token_id": "x"}"#)).is_err());
}
