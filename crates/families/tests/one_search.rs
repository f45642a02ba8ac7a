//! Values of the configuration that no single hint leads to: lists that are wrong in several
//! places, strides, counts that are far off, another family. Each is one defect, which names the
//! key.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{FAMILIES, at, defects, fixture, leaves, with, without};
use lamella_families::known_model_types;
use lamella_program::Defect;
use serde_json::{Value, json};

/// Notes what is said of a change, unless it is one defect that starts like this.
fn check(found: &[Defect], start: &str, wrong: &mut Vec<String>) {
    let first = found.first().map(ToString::to_string);
    let named = first.as_ref().is_some_and(|text| text.starts_with(start));
    if found.len() != 1 || !named {
        wrong.push(format!("{start}: {} like {first:.300?}", found.len()));
    }
}

/// Fixtures, keys taken out, the key that is wrong then, and its value: lists of which several
/// entries are wrong, strides without the list that says the same, and numbers that only a search
/// finds.
const SEARCHED: &[[&str; 4]] = &[
    ["inkling-101", "", "text_config.local_layer_ids", "[]"],
    [
        "inkling-101",
        "",
        "text_config.local_layer_ids",
        "[1, 2, 3, 5, 6, 7]",
    ],
    [
        "inkling-101",
        "",
        "text_config.local_layer_ids",
        "[0, 1, 2, 4, 5, 7]",
    ],
    [
        "inkling-101",
        "",
        "text_config.local_layer_ids",
        "[0, 1, 2, 3, 4, 5, 6, 7]",
    ],
    [
        "inkling-nvfp4-303",
        "",
        "text_config.local_layer_ids",
        "[1, 2, 3, 4, 5]",
    ],
    [
        "deepseek_v4-101",
        "",
        "compress_ratios",
        "[0, 4, 128, 4, 128, 4, 128, 0]",
    ],
    [
        "deepseek_v4-303",
        "",
        "compress_ratios",
        "[0, 128, 4, 128, 4, 0]",
    ],
    [
        "deepseek_v4-303",
        "",
        "compress_ratios",
        "[0, 0, 0, 0, 0, 0]",
    ],
    [
        "qwen36-101",
        "text_config.layer_types",
        "text_config.full_attention_interval",
        "1",
    ],
    [
        "qwen36-101",
        "text_config.layer_types",
        "text_config.full_attention_interval",
        "8",
    ],
    [
        "qwen35dense-303",
        "text_config.layer_types",
        "text_config.full_attention_interval",
        "1",
    ],
    [
        "qwen35dense-303",
        "text_config.layer_types",
        "text_config.full_attention_interval",
        "8",
    ],
    [
        "qwen38-111",
        "text_config.layer_types",
        "text_config.full_attention_interval",
        "1",
    ],
    [
        "qwen38-111",
        "text_config.layer_types",
        "text_config.full_attention_interval",
        "2",
    ],
    [
        "qwen38-111",
        "text_config.layer_types",
        "text_config.full_attention_interval",
        "8",
    ],
    [
        "qwen3next-505",
        "layer_types",
        "full_attention_interval",
        "2",
    ],
    [
        "qwen3next-505",
        "layer_types",
        "full_attention_interval",
        "8",
    ],
    ["glm-101", "indexer_types", "index_topk_freq", "2"],
    ["glm-101", "indexer_types", "index_topk_freq", "8"],
    ["glm-101", "indexer_types", "index_topk_freq", "null"],
    [
        "glm-101",
        "index_topk_freq",
        "indexer_types",
        r#"["full", "shared", "full", "shared", "full", "shared", "shared", "shared"]"#,
    ],
    [
        "glm-101",
        "first_k_dense_replace",
        "mlp_layer_types",
        r#"["dense", "dense", "dense", "dense", "dense", "dense", "dense", "dense"]"#,
    ],
    ["qwen38-111", "", "text_config.ngram_vocab_size_base", "20"],
    ["qwen38-111", "", "text_config.ngram_vocab_size_base", "200"],
    [
        "qwen38-111",
        "",
        "text_config.ngram_vocab_size_base",
        "100000",
    ],
    [
        "qwen38-111",
        "",
        "text_config.make_ngram_vocab_size_divisible_by",
        "100",
    ],
    [
        "qwen38-111",
        "",
        "text_config.make_ngram_vocab_size_divisible_by",
        "2048",
    ],
];

/// Where one value makes defects of many layers, and no hint leads to another, it is found all the
/// same.
#[test]
fn a_list_or_stride_that_is_wrong_in_several_places() {
    let mut wrong = Vec::new();
    for [name, taken, path, value] in SEARCHED {
        let value: Value = serde_json::from_str(value).unwrap();
        let (mut config, table) = fixture(name);
        if !taken.is_empty() {
            config = without(&config, taken);
        }
        let found = defects(&with(&config, path, value), &table);
        check(&found, &format!("config.json: {path}: is "), &mut wrong);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The words for what layers are need not stand in the list.
#[test]
fn words_for_layers_that_are_wrong_in_several_places() {
    let mut wrong = Vec::new();
    for name in ["qwen36-101", "qwen38-111", "qwen35dense-303"] {
        let (config, table) = fixture(name);
        let config = without(&config, "text_config.full_attention_interval");
        let path = "text_config.layer_types";
        let layers = at(&config, path).as_array().unwrap().len();
        let words = ["linear_attention", "full_attention"];
        let lists = words.map(|word| vec![word; layers]);
        let turned: Vec<&str> = (0..layers)
            .map(|n| words[usize::from(n % 4 == 0)])
            .collect();
        for list in lists.into_iter().chain([turned]) {
            let found = defects(&with(&config, path, json!(list)), &table);
            check(&found, &format!("config.json: {path}: is ["), &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A count is to blame however far it is off, whatever lists name the layers too.
#[test]
fn a_count_that_is_far_off() {
    const KEYS: [&str; 3] = ["num_hidden_layers", "num_experts", "n_routed_experts"];
    const MORE: [&str; 3] = ["inkling-nvfp4-303", "kimi_k3-101", "qwen38fp8-777"];
    let mut wrong = Vec::new();
    for name in FAMILIES.into_iter().chain(MORE) {
        let (config, table) = fixture(name);
        let mut paths = Vec::new();
        leaves(&config, "", &mut paths);
        let counts = |path: &&String| KEYS.contains(&path.rsplit('.').next().unwrap());
        for path in paths.iter().filter(counts) {
            let right = at(&config, path).as_u64().unwrap();
            let others = [1, 3, right / 2, right + 3, 2 * right, 700];
            for n in others.into_iter().filter(|n| *n != right) {
                let found = defects(&with(&config, path, json!(n)), &table);
                let start = format!("config.json: {path}: is {n}, but the checkpoint fits {right}");
                check(&found, &start, &mut wrong);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Of the wrong family there is the `model_type`, and not a word of the keys that it would need.
#[test]
fn a_model_type_of_another_family() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for name in FAMILIES {
        let (config, table) = fixture(name);
        for other in known_model_types() {
            let found = defects(&with(&config, "model_type", json!(other)), &table);
            // Some types are two names of one thing.
            if found.is_empty() {
                continue;
            }
            let start = format!("config.json: model_type: is {other:?}, but the checkpoint fits ");
            check(&found, &start, &mut wrong);
            seen += 1;
        }
    }
    assert!(wrong.is_empty() && seen > 80, "{seen}: {wrong:#?}");
}
