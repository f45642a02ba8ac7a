//! One value of the configuration that contradicts the tensors or another value: one defect, which
//! names the key, its value and what fits, and not one for everything the key governs.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{FAMILIES, at, defects, fixture, leaves, one_defect, tensor, with, without};
use lamella_program::Defect;
use serde_json::{Value, json};

/// Fixtures, keys, wrong values, and those that fit; null where neither tensors nor lists tell.
const CONTRADICTED: &[[&str; 4]] = &[
    ["deepseek_v4-303", "num_nextn_predict_layers", "null", "1"],
    ["deepseek_v4-303", "num_nextn_predict_layers", "0", "1"],
    ["deepseek_v4-303", "num_nextn_predict_layers", "2", "1"],
    ["deepseek_v4-303", "num_hidden_layers", "6", "5"],
    ["deepseek_v4-303", "num_hash_layers", "3", "1"],
    ["deepseek_v4-303", "hc_mult", "3", "4"],
    ["deepseek_v4-303", "n_routed_experts", "12", "8"],
    [
        "deepseek_v4-303",
        "compress_ratios",
        "[0, 4, 128, 128, 128, 0]",
        "[0, 4, 128, 4, 128, 0]",
    ],
    ["glm-101", "num_nextn_predict_layers", "null", "1"],
    ["glm-101", "num_nextn_predict_layers", "0", "1"],
    ["glm-101", "num_nextn_predict_layers", "2", "1"],
    ["glm-101", "num_hidden_layers", "7", "8"],
    ["glm-101", "num_hidden_layers", "9", "8"],
    ["glm-101", "attention_bias", "true", "false"],
    ["glm-101", "index_topk_freq", "3", "4"],
    ["glm-101", "index_skip_topk_offset", "2", "3"],
    ["glm-101", "first_k_dense_replace", "2", "3"],
    ["glm-101", "first_k_dense_replace", "8", "3"],
    [
        "glm-404",
        "quantization_config.weight_block_size",
        "[64, 64]",
        "null",
    ],
    [
        "glm-404",
        "quantization_config.weight_block_size",
        "[64, 128]",
        "null",
    ],
    ["inkling-101", "text_config.dense_mlp_idx", "1", "2"],
    ["inkling-101", "text_config.dense_mlp_idx", "3", "2"],
    ["inkling-101", "text_config.n_shared_experts", "3", "2"],
    ["inkling-101", "text_config.num_hidden_layers", "9", "8"],
    [
        "inkling-101",
        "mtp_config.num_nextn_predict_layers",
        "4",
        "3",
    ],
    [
        "inkling-101",
        "mtp_config.num_nextn_predict_layers",
        "2",
        "3",
    ],
    [
        "inkling-101",
        "mtp_config.num_nextn_predict_layers",
        "null",
        "3",
    ],
    ["kimi_k3-101", "text_config.num_hidden_layers", "8", "9"],
    ["kimi_k3-101", "text_config.first_k_dense_replace", "2", "1"],
    [
        "kimi_k3-101",
        "text_config.mla_use_output_gate",
        "false",
        "true",
    ],
    [
        "kimi_k3-101",
        "text_config.latent_moe_use_norm",
        "false",
        "true",
    ],
    ["olmoe-101", "num_hidden_layers", "4", "5"],
    ["olmoe-101", "num_hidden_layers", "7", "5"],
    ["olmoe-101", "num_experts", "17", "16"],
    ["olmoe-202", "num_key_value_heads", "null", "2"],
    ["qwen36-101", "text_config.mtp_num_hidden_layers", "0", "1"],
    ["qwen36-101", "text_config.mtp_num_hidden_layers", "2", "1"],
    ["qwen36-101", "text_config.num_hidden_layers", "7", "8"],
    [
        "qwen36-101",
        "text_config.full_attention_interval",
        "3",
        "4",
    ],
    [
        "qwen36fp8-707",
        "quantization_config.weight_block_size",
        "[64, 64]",
        "[128, 128]",
    ],
    ["qwen38-111", "text_config.mtp_num_hidden_layers", "2", "1"],
    [
        "qwen38-111",
        "text_config.full_attention_interval",
        "3",
        "4",
    ],
    ["qwen38-111", "text_config.hc_count", "3", "4"],
    ["qwen38-111", "text_config.hc_count", "5", "4"],
    ["qwen38-111", "text_config.split_ngram_parts", "5", "4"],
    ["qwen38-111", "text_config.split_ngram_parts", "3", "4"],
    ["qwen38-111", "text_config.ple_layer_ids", "[3]", "[2]"],
];

/// Fixtures, keys, values that do not go with others, and what is said of them.
const TOGETHER: &[[&str; 4]] = &[
    [
        "deepseek_v4-303",
        "expert_dtype",
        r#""fp8""#,
        "is \"fp8\", but the experts are stored in FP4",
    ],
    [
        "deepseek_v4-303",
        "quantization_config.expert_dtype",
        r#""fp8""#,
        "is \"fp8\", but the experts are stored in FP4",
    ],
    [
        "deepseek_v4-101",
        "expert_dtype",
        r#""fp4""#,
        "is \"fp4\", but the experts are stored as plain numbers: leave the key out",
    ],
    [
        "deepseek_v4-101",
        "expert_dtype",
        r#""fp8""#,
        "is \"fp8\", but the experts are stored as plain numbers: leave the key out",
    ],
    [
        "deepseek_v4-303",
        "compress_ratios",
        "[0, 4, 128, 4, 128]",
        "has 5 entries for 5 layers and 1 draft heads",
    ],
    [
        "glm-101",
        "index_topk_pattern",
        r#""FFFFFFFF""#,
        "says something else of layer 3 than indexer_types",
    ],
    [
        "glm-101",
        "index_topk_freq",
        "8",
        "says something else of layer 6 than indexer_types",
    ],
    [
        "inkling-101",
        "text_config.moe_intermediate_size",
        "41",
        "which beside dense_intermediate_size is the same width, is 40",
    ],
    ["inkling-101", "text_config.conv_kernel_size", "3", ""],
    [
        "kimi_k3-101",
        "text_config.rope_theta",
        "10000.0",
        "can only be null, as nothing rotates in this family",
    ],
    [
        "kimi_k3-101",
        "text_config.quantization_config.config_groups",
        "{}",
        "cover no language_model.model.layers.1.block_sparse_moe.experts.0.w1, which is",
    ],
    [
        "kimi_k3-101",
        "text_config.quantization_config.config_groups.group_0.targets",
        r#"["re:.*vision.*"]"#,
        "",
    ],
    [
        "kimi_k3-101",
        "text_config.quantization_config.ignore",
        r#"["re:.*experts.*"]"#,
        "covers language_model.model.layers.1.block_sparse_moe.experts.0.w1, which is",
    ],
    [
        "qwen38-111",
        "text_config.ple_layer_ids",
        "[2, 2]",
        "names layer 2 once more",
    ],
    [
        "olmoe-101",
        "eos_token_id",
        "-1",
        "is -1, but only a token id or a list of them can be used",
    ],
    [
        "olmoe-101",
        "eos_token_id",
        "197",
        "is 197, but the vocabulary has 197 tokens",
    ],
    [
        "glm-101",
        "eos_token_id",
        "[1, 211]",
        "is 211, but the vocabulary has 211 tokens",
    ],
    [
        "qwen36-101",
        "text_config.eos_token_id",
        "320",
        "is 320, but the vocabulary has 320 tokens",
    ],
    [
        "qwen36-101",
        "eos_token_id",
        "[318, 320]",
        "is 320, but the vocabulary has 320 tokens",
    ],
    [
        "qwen3next-505",
        "eos_token_id",
        "272",
        "is 272, but the vocabulary has 272 tokens",
    ],
    [
        "qwen38-111",
        "eos_token_id",
        "320",
        "is 320, but the vocabulary has 320 tokens",
    ],
    [
        "kimi_k3-101",
        "eos_token_id",
        "400",
        "is 400, but the vocabulary has 400 tokens",
    ],
    [
        "olmoe-101",
        "attention_bias",
        "true",
        "is true, but only false can be used",
    ],
];

/// Null, a count that is one off, a flag the other way round, a list one entry short: whatever key
/// it is, there is at most one defect.
#[test]
fn whatever_value_is_wrong_there_is_one_defect() {
    let mut seen = [0; 2];
    for name in FAMILIES {
        let (config, table) = fixture(name);
        let mut paths = Vec::new();
        leaves(&config, "", &mut paths);
        for path in paths.iter().filter(|path| *path != "model_type") {
            let old = at(&config, path);
            let mut others = vec![Value::Null];
            if let Some(n) = old.as_u64() {
                others.extend([n.saturating_sub(1), n + 1].map(Value::from));
            }
            others.extend(old.as_bool().map(|flag| json!(!flag)));
            if let Some([_, rest @ ..]) = old.as_array().map(Vec::as_slice) {
                others.push(json!(rest));
            }
            for value in others.into_iter().filter(|value| value != old) {
                let found = defects(&with(&config, path, value.clone()), &table);
                assert!(found.len() < 2, "{name}: {path} = {value}: {found:#?}");
                seen[found.len()] += 1;
            }
        }
    }
    assert!(seen.iter().all(|&n| n > 300), "{seen:?}");
}

/// What counts and flags say is compared with the tensors they govern.
#[test]
fn a_count_or_flag_that_the_tensors_contradict() {
    let mut wrong = Vec::new();
    for [name, path, value, fits] in CONTRADICTED {
        let value: Value = serde_json::from_str(value).unwrap();
        let (config, table) = fixture(name);
        let text = one_defect(&with(&config, path, value.clone()), &table);
        let start = format!("config.json: {path}: is {value}, ");
        let fits: Value = serde_json::from_str(fits).unwrap();
        let named = match fits.is_null() {
            // Several values would do, or none that tensors or lists tell of.
            true => "which the checkpoint does not fit; with it, ".to_owned(),
            false => format!("but the checkpoint fits {fits}"),
        };
        if !(text.starts_with(&start) && text.contains(&named)) {
            wrong.push(format!("{name}: {text}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Null is no count where a count is needed, and no model where there has to be one.
#[test]
fn a_null_that_means_nothing() {
    for (name, path) in [
        ("glm-101", "n_group"),
        ("inkling-101", "text_config"),
        ("inkling-101", "text_config.dense_mlp_idx"),
        ("kimi_k3-101", "text_config"),
        ("kimi_k3-101", "text_config.num_shared_experts"),
        ("qwen36-101", "text_config"),
        ("qwen36-101", "text_config.mtp_num_hidden_layers"),
        ("qwen38-111", "text_config"),
        ("qwen38-111", "text_config.split_ngram_parts"),
        ("qwen38-111", "text_config.heads_per_ngram"),
        ("qwen38-111", "text_config.hc_count"),
        ("qwen38fp8-777", "quantization_config.weight_block_size"),
    ] {
        let (config, table) = fixture(name);
        let text = one_defect(&with(&config, path, Value::Null), &table);
        let start = format!("config.json: {path}: is n");
        assert!(text.starts_with(&start), "{name}: {text}");
    }
    for name in ["inkling-101", "kimi_k3-101", "qwen36-101", "qwen38-111"] {
        let (config, table) = fixture(name);
        let text = one_defect(&without(&config, "text_config"), &table);
        let expected = "config.json: text_config: is missing, and this family needs it";
        assert_eq!(text, expected, "{name}");
    }
}

/// Values that contradict each other, or tensors that nothing compares them with later.
#[test]
fn two_things_that_do_not_go_together() {
    for [name, path, value, message] in TOGETHER {
        let value: Value = serde_json::from_str(value).unwrap();
        let (config, table) = fixture(name);
        let text = one_defect(&with(&config, path, value.clone()), &table);
        let key = path.strip_suffix(".group_0.targets").unwrap_or(path);
        let start = format!("config.json: {key}: ");
        assert!(
            text.starts_with(&start) && text.contains(message),
            "{name}: {text}"
        );
    }
    // Of a pair that agrees, either may be there.
    for (name, path, value) in [
        (
            "deepseek_v4-303",
            "quantization_config.expert_dtype",
            json!("fp4"),
        ),
        ("glm-101", "index_topk_pattern", json!("FFFSSSFS")),
        (
            "inkling-101",
            "text_config.moe_intermediate_size",
            json!(40),
        ),
        ("kimi_k3-101", "text_config.rope_theta", json!(null)),
        ("olmoe-101", "eos_token_id", json!([0, 196])),
        ("olmoe-101", "eos_token_id", json!(null)),
    ] {
        let (config, table) = fixture(name);
        assert_eq!(
            defects(&with(&config, path, value), &table),
            [],
            "{name}: {path}"
        );
    }
}

/// A key is named as the file spells it.
#[test]
fn a_key_of_the_spelling_that_the_file_has() {
    let (config, table) = fixture("inkling-101");
    let text = one_defect(&without(&config, "mtp_config"), &table);
    assert_eq!(
        text,
        "config.json: mtp_config: is missing, and this family needs it"
    );
    for path in [
        "mtp_config.num_nextn_predict_layers",
        "mtp_config.local_layer_ids",
    ] {
        for changed in [without(&config, path), with(&config, path, Value::Null)] {
            let text = one_defect(&changed, &table);
            assert!(
                text.starts_with(&format!("config.json: {path}: is ")),
                "{text}"
            );
        }
    }
}

/// Of a part that is not there at all the tensors are not told one by one, but of one that is there
/// each is.
#[test]
fn whole_parts_are_one_defect() {
    let (config, table) = fixture("qwen36-101");
    let lost = "model.language_model.layers.7.";
    let kept: Vec<_> = table
        .iter()
        .filter(|t| !t.name.starts_with(lost))
        .cloned()
        .collect();
    let part = lost.to_owned();
    assert_eq!(defects(&config, &kept), [Defect::MissingPart { part }]);

    let mut some = table.clone();
    some.retain(|t| !t.name.contains("layers.7.self_attn.q_"));
    let found = defects(&config, &some);
    let missing = |defect: &Defect| matches!(defect, Defect::MissingTensor { .. });
    assert!(found.len() == 2 && found.iter().all(missing), "{found:#?}");

    let mut more = table.clone();
    more.extend(["a", "b"].map(|end| tensor(format!("model.audio.blocks.3.{end}"), "BF16", &[1])));
    let part = "model.audio.blocks.3.".to_owned();
    assert_eq!(
        defects(&config, &more),
        [Defect::UnclaimedPart { part, count: 2 }]
    );
}
