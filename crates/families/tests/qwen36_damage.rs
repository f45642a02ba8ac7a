//! Lowering of the Qwen3.5 line and of Qwen3-Next: every kind of damage is exactly its defect.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
mod damage;
mod qwen36_table;

use common::{check_bad_values, check_extra_tensors, defects, one_defect, program, with, without};
use damage::{check_needed_keys, check_tensors, check_unknown_keys, lower_with_changed_bytes};
use lamella_program::Defect;
use qwen36_table::layouts;
use serde_json::json;

#[test]
fn every_damaged_tensor_is_exactly_its_defect() {
    for (config, table) in layouts() {
        check_tensors(&config, &table, |_| true);
    }
}

#[test]
fn every_extra_tensor_is_exactly_its_defect() {
    let names = [
        "model.language_model.layers.0.linear_attn.in_proj_qkvq.weight",
        "model.language_model.layers.0.self_attn.q_proj.weight",
        "model.language_model.layers.3.self_attn.q_proj.bias",
        "model.language_model.layers.4.input_layernorm.weight",
        "model.language_model.layers.0.mlp.experts.5.up_proj.weight",
        "model.layers.0.input_layernorm.weight",
        "model.visual.blocks.0.attn.kv.weight",
        "mtp.layers.0.mlp.experts.5.up_proj.weight",
        "mtp.layers.0.linear_attn.A_log",
        "mtp.layers.1.input_layernorm.weight",
        "mtp.layers.00.input_layernorm.weight",
        "mtp.layers.0.self_attn.q_proj.weight_scale_inv",
        "mtp.fc.bias",
        "mtp.norm",
        "",
    ];
    let (config, table) = &layouts()[0];
    check_extra_tensors(config, table, &names);
    let experts = [
        "mtp.layers.0.mlp.gate.weight",
        "model.language_model.layers.0.mlp.gate.weight",
    ];
    let (config, table) = &layouts()[3];
    check_extra_tensors(config, table, &experts);
}

#[test]
fn a_checkpoint_may_come_without_its_draft_head() {
    for (config, mut table) in layouts() {
        table.retain(|t| !t.name.starts_with("mtp."));
        let p = program(&config, &table);
        assert!(p.draft.is_none() && p.unused.is_empty());
    }
}

#[test]
fn values_that_cannot_be_used_are_named() {
    let cases = [
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("attn_output_gate", json!(false)),
        ("mamba_ssm_dtype", json!("bfloat16")),
        ("mtp_use_dedicated_embeddings", json!(true)),
        ("use_sliding_window", json!(true)),
        ("decoder_sparse_step", json!(2)),
        ("mlp_only_layers", json!([1])),
        ("norm_topk_prob", json!(false)),
        ("rope_parameters.rope_type", json!("yarn")),
        ("rope_parameters.rope_theta", json!("1e7")),
        ("rope_scaling.type", json!("yarn")),
        ("hidden_size", json!(0)),
        ("head_dim", json!(1_u64 << 40)),
        ("num_hidden_layers", json!(-1)),
        ("num_attention_heads", json!(2.5)),
        ("num_key_value_heads", json!(3)),
        ("linear_num_value_heads", json!(5)),
        ("linear_num_key_heads", json!(0)),
        ("linear_key_head_dim", json!("5")),
        ("linear_conv_kernel_dim", json!(65)),
        ("full_attention_interval", json!(0)),
        ("layer_types", json!(["linear_attention"])),
        (
            "layer_types",
            json!(["full_attention", "full_attention", "full_attention", "none"]),
        ),
        ("layer_types", json!("full_attention")),
        ("num_experts", json!(1)),
        ("num_experts_per_tok", json!(6)),
        ("shared_expert_intermediate_size", json!(0)),
        ("vocab_size", json!(u64::MAX)),
        ("rms_norm_eps", json!(-1e-6)),
        ("tie_word_embeddings", json!(1)),
        ("mtp_num_hidden_layers", json!("one")),
        ("model_type", json!("qwen3_5_text")),
    ];
    let (config, table) = &layouts()[0];
    for (key, value) in cases {
        let path = format!("text_config.{key}");
        let text = one_defect(&with(config, &path, value.clone()), table);
        let start = format!("config.json: {path}: ");
        assert!(text.starts_with(&start), "{key} = {value}: {text}");
    }
    for share in [1.5, 0.1, 0.4, -0.25] {
        let path = "text_config.rope_parameters.partial_rotary_factor";
        let text = one_defect(&with(config, path, json!(share)), table);
        assert!(text.contains("partial_rotary_factor"), "{text}");
    }
    let cases = [
        ("text_config", json!("text")),
        ("tie_word_embeddings", json!("no")),
        ("quantization_config", json!({"quant_method": "awq"})),
    ];
    for (key, value) in cases {
        let text = defects(&with(config, key, value), table)[0].to_string();
        assert!(text.starts_with(&format!("config.json: {key}")), "{text}");
    }
}

#[test]
fn values_of_codes_and_of_the_older_layout_are_named() {
    let (config, table) = &layouts()[1];
    let cases = [
        ("quantization_config.quant_method", json!("gptq")),
        ("quantization_config.fmt", json!("e5m2")),
        ("quantization_config.activation_scheme", json!("static")),
        ("quantization_config.weight_block_size", json!(128)),
    ];
    check_bad_values(config, table, &cases);
    let (config, table) = &layouts()[4];
    let cases = [
        ("mlp_only_layers", json!([4])),
        ("mlp_only_layers", json!("none")),
        ("decoder_sparse_step", json!(0)),
        ("norm_topk_prob", json!(1)),
        ("rope_theta", json!(0)),
        ("partial_rotary_factor", json!(2)),
        ("rope_scaling.rope_type", json!("yarn")),
    ];
    check_bad_values(config, table, &cases);
}

#[test]
fn every_needed_key_is_missed() {
    let shared = [
        "head_dim",
        "hidden_act",
        "hidden_size",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_value_head_dim",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "vocab_size",
    ];
    let experts = [
        "moe_intermediate_size",
        "num_experts",
        "num_experts_per_tok",
        "shared_expert_intermediate_size",
    ];
    let (config, table) = &layouts()[2];
    check_needed_keys(config, table, &[&shared[..], &experts].concat());
    let text = one_defect(&without(config, "rope_parameters"), table);
    assert!(
        text.starts_with("config.json: rope_theta: is missing"),
        "{text}"
    );
    let neither = without(&without(config, "layer_types"), "full_attention_interval");
    let text = one_defect(&neither, table);
    assert!(
        text.starts_with(
            "config.json: full_attention_interval: is missing, but the checkpoint fits 4"
        ),
        "{text}"
    );

    let (config, table) = &layouts()[3];
    let paths = shared.map(|key| format!("text_config.{key}"));
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    check_needed_keys(config, table, &paths);
    check_needed_keys(config, table, &["text_config.intermediate_size"]);
    let (config, table) = &layouts()[4];
    check_needed_keys(config, table, &["rope_theta"]);
}

#[test]
fn unknown_keys_are_exactly_their_defects() {
    let (config, table) = &layouts()[1];
    let objects = [
        "",
        "text_config",
        "text_config.rope_parameters",
        "quantization_config",
    ];
    check_unknown_keys(config, table, &objects);
    let (config, table) = &layouts()[3];
    let experts = with(config, "text_config.num_experts", json!(8));
    let expected = Defect::UnknownConfigKey("text_config.num_experts".into());
    assert_eq!(defects(&experts, table), [expected]);
}

#[test]
fn sizes_far_beyond_the_checkpoint_are_one_defect() {
    let (config, table) = layouts().remove(2);
    let config = without(&config, "layer_types");
    for (layers, experts) in [(1024, 5), (4, 4096), (1024, 4096)] {
        let config = with(&config, "num_hidden_layers", json!(layers));
        let config = with(&config, "num_experts", json!(experts));
        let text = one_defect(&config, &table);
        assert!(text.contains(&format!("has {}", table.len())), "{text}");
    }
    // Heads cost nothing before the tensors bear them out.
    let config = with(&config, "num_attention_heads", json!(4096));
    let config = with(&config, "num_hidden_layers", json!(150));
    assert!(defects(&config, &table).len() > 140);
}

#[test]
fn no_changed_byte_breaks_lowering() {
    for index in [0, 4] {
        let (config, table) = &layouts()[index];
        let opened = lower_with_changed_bytes(config, table);
        // Those that do not change the meaning, or only an inert value.
        assert!(opened > 20, "{opened}");
    }
}
