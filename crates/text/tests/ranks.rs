//! `tiktoken.model`: what it gives, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lamella_text::{Bundle, Error};
use serde_json::{Value, json};

const CLASS: &str = "TikTokenTokenizer";

/// Standard base64, for the tests.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit =
        |block: u32, place: u32| char::from(DIGITS[(block >> (18 - 6 * place)) as usize % 64]);
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let block = byte(0) << 16 | byte(1) << 8 | byte(2);
        text.extend((0..=three.len() as u32).map(|place| digit(block, place)));
        text.push_str(&"==="[..3 - three.len()]);
    }
    text
}

/// All bytes, then these tokens.
fn ranks(tokens: &[&str]) -> String {
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    let tokens = bytes.chain(tokens.iter().map(|token| token.as_bytes().to_vec()));
    let lines = tokens.zip(0..);
    lines
        .map(|(token, rank)| format!("{} {rank}\n", base64(&token)))
        .collect()
}

fn load(ranks: &str, config: &Value) -> Result<Bundle, Error> {
    let config = config.to_string();
    Bundle::load(&|file| match file {
        "tiktoken.model" => Some(ranks.to_owned()),
        "tokenizer_config.json" => Some(config.clone()),
        _ => None,
    })
}

fn config() -> Value {
    json!({"tokenizer_class": CLASS, "eos_token": "[EOS]", "added_tokens_decoder": {
        "258": {"content": "[BOS]", "special": true},
        "259": {"content": "[EOS]", "special": true},
        "260": {"content": "<think>", "special": false},
    }})
}

#[test]
fn bytes_ids_and_reserved_tokens() {
    let bundle = load(&ranks(&["ab", "abc"]), &config()).unwrap();
    let tokenizer = &bundle.tokenizer;
    assert_eq!(tokenizer.file(), "tiktoken.model");
    assert_eq!(tokenizer.vocabulary(), 258 + 256);
    assert_eq!(bundle.stop_ids(), [259]);
    let ids = tokenizer
        .encode("[BOS]abc\u{e9}<think>a[EOS", true)
        .unwrap();
    let eos = b"[EOS".map(u32::from);
    assert_eq!(ids, [&[258, 257, 0xc3, 0xa9, 260, 97], &eos[..]].concat());
    assert_eq!(tokenizer.decode(&ids, true), "[BOS]abc\u{e9}<think>a[EOS");
    assert_eq!(tokenizer.decode(&ids, false), "abc\u{e9}<think>a[EOS");
    assert_eq!(tokenizer.bytes(257), Some(&b"abc"[..]));
    assert_eq!(tokenizer.bytes(514), None);
    assert_eq!(tokenizer.token_id("ab"), Some(256));
    assert_eq!(tokenizer.token_id("<|reserved_token_300|>"), Some(300));
    assert_eq!(tokenizer.token_id("nothing"), None);
    assert!(tokenizer.is_special(259) && !tokenizer.is_special(260) && tokenizer.is_special(300));
    let plain = tokenizer.encode_plain("[BOS]").unwrap();
    assert_eq!(plain, b"[BOS]".map(u32::from));
}

/// Ranks decide, not the order in which a list of merges would be walked.
#[test]
fn the_lowest_rank_of_the_joined_bytes_is_merged_first() {
    let ids = |tokens: &[&str], text: &str| {
        let config = json!({"tokenizer_class": CLASS});
        let bundle = load(&ranks(tokens), &config).unwrap();
        bundle.tokenizer.encode(text, false).unwrap()
    };
    assert_eq!(ids(&["ab", "bc"], "abcd"), [256, 99, 100]);
    assert_eq!(ids(&["bc", "ab"], "abcd"), [97, 256, 100]);
    assert_eq!(ids(&["aa"], "aaaaab"), [256, 256, 97, 98]);
    // A whole piece is its token even if no merges lead to it.
    assert_eq!(ids(&["abcd"], "abcd"), [256]);
}

#[test]
fn long_texts_take_no_time() {
    let config = json!({"tokenizer_class": CLASS});
    let bundle = load(&ranks(&["aa", "aaaa", "  ", "    "]), &config).unwrap();
    for text in ["a", " ", "ab", "[", "\n", "\u{4f60}", "'"] {
        let text = text.repeat((1 << 19) / text.len());
        let ids = bundle.tokenizer.encode(&text, false).unwrap();
        assert_eq!(bundle.tokenizer.decode(&ids, false), text);
    }
}

#[test]
fn what_is_damaged_is_named() {
    let good = ranks(&["ab"]);
    let line = |line: &str| format!("{good}{line}\n");
    for (text, part) in [
        (String::new(), "tiktoken.model: is empty"),
        (
            "version https://git-lfs.github.com/spec/v1\n".into(),
            "Git LFS pointer",
        ),
        (line("YWI"), "`line 258`: is not a token and its rank"),
        (line("YWI 257"), "`line 258`: the token is no base64"),
        (line("Y?== 257"), "`line 258`: the token is no base64"),
        (line("YWM= x"), "`line 258`: the rank is no number"),
        (line("YWM= -1"), "`line 258`: the rank is no number"),
        (line("YWM= 257 1"), "`line 258`: the rank is no number"),
        (
            line("YWM= 99999999999999999999"),
            "`line 258`: the rank is no number",
        ),
        (
            line("YWM= 4294967295"),
            "`line 258`: rank 4294967295; at most 4194304",
        ),
        (line(" 257"), "`line 258`: the token is empty"),
        (line("YWI= 257"), "`line 258`: the token is there twice"),
        (line("YWM= 256"), "`line 258`: rank 256 is there twice"),
        (line("YWM= 300"), "rank 257 is missing"),
        (good.replace("AA== 0\n", ""), "rank 0 is missing"),
        (
            good.replace("AA== 0\n", "YWM= 0\n"),
            "has no token for the byte 0x00",
        ),
    ] {
        let error = load(&text, &config()).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
        assert!(error.starts_with("tiktoken.model"), "{error}");
    }
    // Empty lines and the line ends of other systems are no damage.
    let spaced = good.replace('\n', "\r\n\r\n");
    assert!(load(&spaced, &json!({"tokenizer_class": CLASS})).is_ok());
}

#[test]
fn a_configuration_that_does_not_fit_is_named() {
    let good = ranks(&["ab"]);
    let with = |decoder: Value| json!({"tokenizer_class": CLASS, "added_tokens_decoder": decoder});
    for (config, part) in [
        (
            json!({}),
            "`tokenizer_class`: is missing; with tiktoken.model only",
        ),
        (
            json!({"tokenizer_class": "GPT2"}),
            "`tokenizer_class`: is `GPT2`",
        ),
        (with(json!([])), "`added_tokens_decoder`: is an array"),
        (
            with(json!({"256": {"content": "x"}})),
            "`added_tokens_decoder.256`: reserved ids are 257 to 512",
        ),
        (
            with(json!({"513": {"content": "x"}})),
            "reserved ids are 257 to 512",
        ),
        (
            with(json!({"x": {"content": "x"}})),
            "`added_tokens_decoder.x`",
        ),
        (with(json!({"257": {"content": ""}})), "has no `content`"),
        (with(json!({"257": "x"})), "has no `content`"),
        (
            with(json!({"257": {"content": "x", "special": 1}})),
            "`special` is not true or false",
        ),
        (
            with(json!({"257": {"content": "x"}, "258": {"content": "x"}})),
            "`x` is there twice",
        ),
    ] {
        let error = load(&good, &config).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
        assert!(error.starts_with("tokenizer_config.json"), "{error}");
    }
    let none = Bundle::load(&|file| (file == "tiktoken.model").then(|| good.clone()));
    assert!(
        none.unwrap_err()
            .to_string()
            .contains("`tokenizer_class`: is missing")
    );
}

#[test]
fn tokenizer_json_wins_where_both_are_there() {
    let error = Bundle::load(&|file| match file {
        "tokenizer.json" => Some("{}".into()),
        "tiktoken.model" => Some(ranks(&[])),
        _ => None,
    });
    assert!(error.unwrap_err().to_string().starts_with("tokenizer.json"));
}
