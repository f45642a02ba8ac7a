//! The families' real tokenizers (golden/ids.json, made by oracle/text_goldens.py): ids of several
//! hundred strings, by the rules of each and the part of its vocabulary that these strings can
//! reach; and by the whole, where somebody has it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashMap;
use std::path::PathBuf;

use lamella_text::{Bundle, Tokenizer};
use serde_json::{Map, Value, json};

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/ids.json")).unwrap()
}

fn numbers(list: &Value) -> Vec<u32> {
    let list = list.as_array().unwrap().iter();
    list.map(|one| u32::try_from(one.as_u64().unwrap()).unwrap())
        .collect()
}

/// A tokenizer of the kept tokens, and the original id of each of its ids.
struct Small {
    tokenizer: Tokenizer,
    original: HashMap<u32, u32>,
}

impl Small {
    fn new(small: &Value) -> Self {
        let kept: Vec<(&str, u32)> = small["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .map(pair)
            .collect();
        let mut original: HashMap<u32, u32> = (0..).zip(kept.iter().map(|it| it.1)).collect();
        let tokenizer = match small.get("reserved") {
            None => of_json(small, &kept, &mut original),
            Some(config) => of_ranks(config, &kept, &mut original),
        };
        Self {
            tokenizer,
            original,
        }
    }

    fn ids(&self, text: &str) -> Vec<u32> {
        let ids = self.tokenizer.encode(text, false).unwrap();
        ids.iter().map(|id| self.original[id]).collect()
    }
}

fn pair(value: &Value) -> (&str, u32) {
    let id = u32::try_from(value[1].as_u64().unwrap()).unwrap();
    (value[0].as_str().unwrap(), id)
}

fn of_json(small: &Value, kept: &[(&str, u32)], original: &mut HashMap<u32, u32>) -> Tokenizer {
    let mut json = small["config"].clone();
    let merges = small["merges"].as_array().unwrap().iter();
    let name = |at: &Value| kept[usize::try_from(at.as_u64().unwrap()).unwrap()].0;
    let merges: Vec<Value> = merges
        .map(|pair| json!([name(&pair[0]), name(&pair[1])]))
        .collect();
    json["model"]["merges"] = merges.into();
    let vocab: Map<String, Value> = kept
        .iter()
        .zip(0..)
        .map(|((token, _), id)| ((*token).to_owned(), Value::from(id)))
        .collect();
    let added = json["added_tokens"].as_array_mut().unwrap();
    for (token, next) in added.iter_mut().zip(u32::try_from(kept.len()).unwrap()..) {
        let content = token["content"].as_str().unwrap();
        // Some tokenizers list an added token in the vocabulary too.
        let known = vocab.get(content).and_then(Value::as_u64);
        let id = known.map_or(next, |id| u32::try_from(id).unwrap());
        original.insert(id, u32::try_from(token["id"].as_u64().unwrap()).unwrap());
        token["id"] = id.into();
    }
    json["model"]["vocab"] = vocab.into();
    Tokenizer::from_json("tokenizer.json", &json.to_string()).unwrap()
}

fn of_ranks(config: &Value, kept: &[(&str, u32)], original: &mut HashMap<u32, u32>) -> Tokenizer {
    let lines = kept.iter().zip(0..);
    let ranks: String = lines
        .map(|((token, _), rank)| format!("{token} {rank}\n"))
        .collect();
    let kept = u32::try_from(kept.len()).unwrap();
    // Reserved tokens follow the ranks, wherever those end.
    let first = 163_584;
    let mut config = config.clone();
    let named = config["added_tokens_decoder"].as_object().unwrap();
    let mut moved = Map::new();
    for place in 0..256 {
        let id = first + place;
        original.insert(kept + place, id);
        let spelled = json!({"content": format!("<|reserved_token_{id}|>")});
        let token = named.get(&id.to_string()).cloned().unwrap_or(spelled);
        moved.insert((kept + place).to_string(), token);
    }
    config["added_tokens_decoder"] = moved.into();
    let bundle = Bundle::load(&|file| match file {
        "tiktoken.model" => Some(ranks.clone()),
        "tokenizer_config.json" => Some(config.to_string()),
        _ => None,
    });
    bundle.unwrap().tokenizer
}

#[test]
fn every_string_has_the_ids_of_the_real_tokenizer() {
    let golden = golden();
    let strings = golden["strings"].as_array().unwrap();
    assert!(strings.len() >= 300);
    let tokenizers = golden["tokenizers"].as_object().unwrap();
    assert_eq!(tokenizers.len(), 8);
    let mut failures = String::new();
    for (name, one) in tokenizers {
        let small = Small::new(&one["small"]);
        let normalises = one["small"].get("config").is_some_and(changes_text);
        for (text, expected) in strings.iter().zip(one["ids"].as_array().unwrap()) {
            let text = text.as_str().unwrap();
            let ids = small.ids(text);
            if ids != numbers(expected) {
                failures.push_str(&format!("{name} {text:?}:\n {ids:?}\n {expected}\n"));
            }
            let own = small.tokenizer.encode(text, false).unwrap();
            let back = small.tokenizer.decode(&own, true);
            if back != text && !normalises {
                failures.push_str(&format!("{name} {text:?} comes back as {back:?}\n"));
            }
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

fn changes_text(config: &Value) -> bool {
    let node = &config["normalizer"];
    let parts = node["normalizers"].as_array();
    !node.is_null() && parts.is_none_or(|parts| !parts.is_empty())
}

/// Plain text has the same ids as any text without added tokens, and no added token otherwise.
#[test]
fn plain_text_holds_no_added_token() {
    let golden = golden();
    for (name, one) in golden["tokenizers"].as_object().unwrap() {
        let Small { tokenizer, .. } = Small::new(&one["small"]);
        let mut first = u32::try_from(one["small"]["tokens"].as_array().unwrap().len()).unwrap();
        let added = one["small"]["config"]["added_tokens"].as_array();
        let added: Vec<&str> = match added {
            Some(added) => added
                .iter()
                .map(|it| it["content"].as_str().unwrap())
                .collect(),
            None => vec!["[BOS]", "[EOS]", "[PAD]", "<|"],
        };
        // Added tokens that are in the vocabulary too are ordinary tokens as well.
        let in_vocabulary = added.iter().filter_map(|token| tokenizer.token_id(token));
        first = in_vocabulary
            .filter(|&id| id >= first)
            .min()
            .unwrap_or(first);
        for text in golden["strings"].as_array().unwrap() {
            let text = text.as_str().unwrap();
            let plain = tokenizer.encode_plain(text).unwrap();
            if added.iter().any(|token| text.contains(token)) {
                assert!(
                    plain.iter().all(|&id| id < first),
                    "{name} {text:?}: {plain:?}"
                );
            } else {
                assert_eq!(
                    plain,
                    tokenizer.encode(text, false).unwrap(),
                    "{name} {text:?}"
                );
            }
        }
    }
}

/// `LAMELLA_TOKENIZERS` is a folder with a folder for each of the golden tokenizers, with its whole
/// files.
#[test]
#[ignore = "needs the whole tokenizers in the folder LAMELLA_TOKENIZERS"]
fn the_whole_tokenizers_give_the_same_ids_long_texts_included() {
    let folder = PathBuf::from(std::env::var_os("LAMELLA_TOKENIZERS").unwrap());
    let golden = golden();
    let strings = golden["strings"].as_array().unwrap();
    let mut failures = String::new();
    for (name, one) in golden["tokenizers"].as_object().unwrap() {
        let read = |file: &str| std::fs::read_to_string(folder.join(name).join(file)).ok();
        let tokenizer = Bundle::load(&read).unwrap().tokenizer;
        for (text, expected) in strings.iter().zip(one["ids"].as_array().unwrap()) {
            let text = text.as_str().unwrap();
            let ids = tokenizer.encode(text, false).unwrap();
            if ids != numbers(expected) {
                failures.push_str(&format!("{name} {text:?}:\n {ids:?}\n {expected}\n"));
            }
        }
        let runs = golden["long_runs"].as_array().unwrap();
        for (run, expected) in runs.iter().zip(one["long"].as_array().unwrap()) {
            let (text, count) = pair(run);
            let text = text.repeat(usize::try_from(count).unwrap());
            let ids = tokenizer.encode(&text, false).unwrap();
            if json!([ids.len(), crc32(&ids)]) != *expected {
                let got = ids.len();
                failures.push_str(&format!("{name} {run}: {got} ids, not {expected}\n"));
            }
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

/// CRC-32 of ids as little-endian u32.
fn crc32(ids: &[u32]) -> u32 {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    !bytes.fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1))
        })
    })
}
