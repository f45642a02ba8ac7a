//! Lowering of Inkling: the fixtures, the released shapes, and every kind of damage.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
mod damage;
mod inkling_table;

use common::{
    check_bad_values, check_extra_tensors, fixture, one_defect, program, tensor, with, without,
};
use damage::{
    bytes, check_needed_keys, check_tensors, check_unknown_keys, lower_with_changed_bytes, slice,
};
use inkling_table::{drafts, tensors, towers};
use lamella_program::block::{
    Attention, Ffn, GatedUnit, Mixer, Residual, Routed, Scoring, ShortConvolution, Span, WeightRule,
};
use lamella_program::operand::Coding;
use lamella_program::{OperandId, Program, Role, TensorInfo, state};
use serde_json::{Value, json};

/// The configuration of Inkling, or of Inkling-Small.
fn released(small: bool) -> Value {
    let (mut config, _) = fixture("inkling-101");
    let layers = if small { 42 } else { 66 };
    let local: Vec<usize> = (0..layers).filter(|i| i % 6 != 5).collect();
    let pick = |large: usize, small_one: usize| if small { small_one } else { large };
    let text = json!({
        "hidden_size": pick(6144, 4096), "num_hidden_layers": layers, "local_layer_ids": local,
        "vocab_size": 201_024, "unpadded_vocab_size": 200_058,
        "num_attention_heads": pick(64, 32), "num_key_value_heads": 8, "head_dim": 128,
        "swa_num_attention_heads": pick(64, 32), "swa_num_key_value_heads": pick(16, 8),
        "swa_head_dim": 128, "sliding_window_size": 512, "d_rel": 16, "rel_extent": 1024,
        "log_scaling_n_floor": 128_000, "log_scaling_alpha": 0.1, "dense_mlp_idx": 2,
        "dense_intermediate_size": pick(24_576, 16_384), "intermediate_size": pick(3072, 2048),
        "n_routed_experts": 256, "num_experts_per_tok": 6, "n_shared_experts": 2,
        "route_scale": 8.0, "logits_mup_width_multiplier": pick(24, 16),
        "model_max_length": 1_048_576
    });
    for (key, value) in text.as_object().unwrap() {
        config["text_config"][key] = value.clone();
    }
    config["mtp_config"] = json!({
        "num_nextn_predict_layers": 8, "local_layer_ids": [0, 2, 4, 5, 6, 7],
        "chain_hidden_post_norm": false
    });
    config
}

fn attention(program: &Program, layer: usize) -> &Attention {
    match &program.layers[layer].mixer.body {
        Mixer::Attention(a) => a,
        other => panic!("{other:?}"),
    }
}

fn routed(program: &Program, layer: usize) -> &Routed {
    match &program.layers[layer].ffn.body {
        Ffn::Routed(r) => r,
        other => panic!("{other:?}"),
    }
}

/// Start, step and rows of the slice that an item of an operand is.
fn rows(program: &Program, id: OperandId, item: usize) -> [usize; 3] {
    let slice = slice(program, id, item);
    [slice.start, slice.step, slice.rows]
}

fn expert_parameters(program: &Program) -> u64 {
    let experts = program.operands.iter().filter(|o| o.role == Role::Expert);
    experts.map(|o| o.elements() as u64).sum()
}

#[test]
fn the_released_models_have_their_published_sizes() {
    // Millions of parameters: all, experts, draft heads; bytes of state in BF16.
    for (small, all, experts, heads, per_token) in [
        (false, 947_025, 927_712, 5_260, 45_056),
        (true, 263_655, 257_698, 2_231, 28_672),
    ] {
        let config = released(small);
        let mut table = tensors(&config, false);
        table.extend(drafts(&config));
        let p = program(&config, &table);
        assert_eq!(p.parameters() / 1_000_000, all);
        assert_eq!(expert_parameters(&p) / 1_000_000, experts);
        let one = 3 * if small { 4096 * 2048 } else { 6144 * 3072 };
        let count = if small { 10_240 } else { 16_384 };
        assert_eq!(expert_parameters(&p), count * one);
        assert_eq!(p.draft_parameters() / 1_000_000, heads);
        let draft = p.draft.as_ref().unwrap();
        assert_eq!((draft.depths.len(), draft.recycles), (8, false));
        assert_eq!(state::bytes_per_token(&p), 2 * per_token);
    }
}

#[test]
fn windows_and_rings_are_the_state_whatever_the_context() {
    let config = released(false);
    let p = program(&config, &tensors(&config, false));
    let windows = 55 * 2 * 512 * 16 * 128;
    let rings = 3 * (55 * 2 * 16 * 128 + 11 * 2 * 8 * 128 + 66 * 2 * 6144);
    assert_eq!(state::fixed_bytes(&p), 4 * (windows + rings));
    // 230.7 MB of windows in BF16, 3.18 million values in rings.
    assert_eq!((2 * windows / 100_000, rings / 10_000), (2306, 317));
    let config = released(true);
    let p = program(&config, &tensors(&config, false));
    let windows = 35 * 2 * 512 * 8 * 128;
    let rings = 3 * (42 * 2 * 8 * 128 + 42 * 2 * 4096);
    assert_eq!(state::fixed_bytes(&p), 4 * (windows + rings));
}

#[test]
fn the_small_release_in_nvfp4_has_its_published_tensors_and_bytes() {
    let config = released(true);
    let mut table = tensors(&config, true);
    table.extend(towers());
    let drafts = drafts(&config);
    let size = |tensors: &[TensorInfo]| -> u64 { tensors.iter().map(bytes).sum() };
    assert_eq!(table.len() + drafts.len(), 1360);
    assert_eq!(size(&table), 166_269_249_680);
    assert_eq!(size(&drafts), 4_463_824_912);
    table.extend(drafts);
    let p = program(&config, &table);
    assert_eq!(p.parameters() / 1_000_000, 263_655);
    let parts: Vec<_> = p.unused.iter().map(|u| u.tensors.len()).collect();
    assert_eq!(parts, [8, 2, 39 * 4]);
}

#[test]
fn the_golden_fixtures_close() {
    let names = |p: &Program| -> Vec<(String, usize)> {
        let parts = p.unused.iter();
        parts.map(|u| (u.name.clone(), u.tensors.len())).collect()
    };
    let (config, table) = fixture("inkling-101");
    let p = program(&config, &table);
    let expected = [("vision tower", 6), ("audio tower", 2)];
    assert_eq!(names(&p), expected.map(|(name, n)| (name.to_owned(), n)));
    assert_eq!(
        (p.dims.context, p.exit.logits, p.dims.vocabulary),
        (4096, 307, 320)
    );
    assert_eq!(p.exit.scale, Some(0.25));
    assert!(p.entry.norm.is_some() && p.exit.soft_cap.is_none());
    assert!(
        p.layers
            .iter()
            .all(|layer| layer.residual == Residual::Plain)
    );
    let (config, table) = fixture("inkling-nvfp4-303");
    let p = program(&config, &table);
    assert_eq!(names(&p)[2].1, 4 * 4);
}

#[test]
fn local_and_global_layers_differ_as_the_paper_says() {
    let (config, table) = fixture("inkling-101");
    let p = program(&config, &table);
    let (local, global) = (attention(&p, 2), attention(&p, 3));
    assert_eq!((local.heads, local.kv_heads, local.head_dim), (8, 4, 12));
    assert_eq!((global.heads, global.kv_heads, global.head_dim), (6, 2, 16));
    assert_eq!(local.span, Span::Sliding { window: 8 });
    assert_eq!(global.span, Span::Full);
    assert_eq!(local.scale, (1.0f64 / 12.0) as f32);
    assert!(local.rope.is_none() && global.rope.is_none());
    let extent = |a: &Attention| a.relative_bias.as_ref().unwrap().extent;
    assert_eq!((extent(local), extent(global)), (8, 20));
    assert!(local.position_scaling.is_none());
    let scaling = global.position_scaling.as_ref().unwrap();
    assert_eq!((scaling.floor, scaling.alpha), (24.0, 0.35));
    let off = with(&config, "text_config.log_scaling_n_floor", Value::Null);
    let p = program(&off, &table);
    assert!(attention(&p, 3).position_scaling.is_none());
}

#[test]
fn every_convolution_adds_its_input() {
    let (config, table) = fixture("inkling-101");
    let p = program(&config, &table);
    let layer = &p.layers[3];
    let inner = attention(&p, 3).convolutions.as_ref().unwrap();
    let outer = [&layer.mixer.convolution, &layer.ffn.convolution].map(|c| c.as_ref().unwrap());
    let check = |c: &ShortConvolution, end: &str, channels: usize| {
        assert!(c.residual && c.activation.is_none());
        assert_eq!((c.taps, c.dilation), (4, 1));
        assert_eq!(p.operand(c.weight).shape, [channels, 1, 4]);
        let tensor = slice(&p, c.weight, 0).tensor;
        assert_eq!(tensor, format!("model.llm.layers.3.{end}.weight"));
    };
    check(&inner.key, "attn.k_sconv", 32);
    check(&inner.value, "attn.v_sconv", 32);
    check(outer[0], "attn_sconv", 96);
    check(outer[1], "mlp_sconv", 96);
}

#[test]
fn gate_and_up_rows_alternate_everywhere() {
    let (config, table) = fixture("inkling-101");
    let p = program(&config, &table);
    let Ffn::Dense(dense) = &p.layers[1].ffn.body else {
        panic!("{:?}", p.layers[1].ffn.body)
    };
    assert_eq!(dense.width, 160);
    assert_eq!(rows(&p, dense.gate, 0), [0, 2, 160]);
    assert_eq!(rows(&p, dense.up, 0), [1, 2, 160]);
    assert_eq!(rows(&p, dense.down, 0), [0, 1, 96]);
    let scale = dense.output_scale.unwrap();
    assert_eq!(
        slice(&p, scale, 0).tensor,
        "model.llm.layers.1.mlp.global_scale"
    );
    let r = routed(&p, 2);
    assert_eq!((r.experts, r.top_k, r.unit.width), (12, 3, 40));
    assert_eq!(rows(&p, r.unit.gate, 5), [400, 2, 40]);
    assert_eq!(rows(&p, r.unit.up, 5), [401, 2, 40]);
    assert_eq!(rows(&p, r.unit.down, 5), [480, 1, 96]);
    let shared: &GatedUnit = &r.shared[1];
    assert_eq!(rows(&p, shared.gate, 0), [80, 2, 40]);
    assert_eq!(rows(&p, shared.up, 0), [81, 2, 40]);
    assert_eq!(rows(&p, shared.down, 0), [96, 1, 96]);
    let tensor = slice(&p, shared.gate, 0).tensor;
    assert_eq!(
        tensor,
        "model.llm.layers.2.mlp.shared_experts.shared_w13_weight"
    );
}

#[test]
fn shared_experts_compete_for_weight() {
    let (config, table) = fixture("inkling-101");
    let p = program(&config, &table);
    let r = routed(&p, 4);
    assert_eq!(r.shared.len(), 2);
    assert_eq!(r.router.weights, WeightRule::WithShared { shared: 2 });
    assert_eq!(r.router.scoring, Scoring::Sigmoid);
    assert_eq!(r.router.scale, Some(2.5));
    assert_eq!(p.operand(r.router.weight).shape, [14, 96]);
    assert_eq!(p.operand(r.router.selection_bias.unwrap()).shape, [12]);
    let scale = slice(&p, r.router.learned_scale.unwrap(), 0);
    assert_eq!(scale.tensor, "model.llm.layers.4.mlp.gate.global_scale");
}

#[test]
fn experts_in_codes_are_told_by_their_type() {
    let (config, table) = fixture("inkling-nvfp4-303");
    let p = program(&config, &table);
    let plain = slice(&p, routed(&p, 1).unit.gate, 3);
    assert_eq!(
        (plain.tensor_shape, plain.coding),
        (vec![16, 128, 128], None)
    );
    let coded = slice(&p, routed(&p, 2).unit.gate, 3);
    let name = "model.llm.layers.2.mlp.experts.w13_weight";
    assert_eq!(coded.tensor, name);
    assert_eq!([coded.start, coded.step, coded.rows], [384, 2, 64]);
    assert_eq!((coded.cols(), coded.tensor_shape), (128, vec![16, 128, 64]));
    let expected = Coding::Nvfp4 {
        scale: format!("{name}.scale"),
        global: format!("{name}.scale2"),
    };
    assert_eq!(coded.coding, Some(expected));
    assert_eq!(slice(&p, routed(&p, 2).shared[0].gate, 0).coding, None);
}

/// The configuration as re-exports spell it.
fn respelt(config: &Value) -> Value {
    let mut config = config.clone();
    let text = config["text_config"].as_object_mut().unwrap();
    let local: Vec<u64> = serde_json::from_value(text["local_layer_ids"].clone()).unwrap();
    let first_sparse = text["dense_mlp_idx"].as_u64().unwrap();
    let depth = text["num_hidden_layers"].as_u64().unwrap();
    let kinds: Vec<&str> = (0..depth)
        .map(|i| match local.contains(&i) {
            true => "hybrid_sliding",
            false => "hybrid",
        })
        .collect();
    let blocks: Vec<&str> = (0..depth)
        .map(|i| if i < first_sparse { "dense" } else { "sparse" })
        .collect();
    let mut rename = |from: &str, to: &str| {
        let value = text.shift_remove(from).unwrap();
        text.insert(to.to_owned(), value);
    };
    rename("intermediate_size", "moe_intermediate_size");
    rename("dense_intermediate_size", "intermediate_size");
    rename("sconv_kernel_size", "conv_kernel_size");
    rename("model_max_length", "max_position_embeddings");
    for key in ["local_layer_ids", "dense_mlp_idx", "use_sconv", "q_bias"] {
        text.shift_remove(key);
    }
    text.insert("layer_types".to_owned(), json!(kinds));
    text.insert("mlp_layer_types".to_owned(), json!(blocks));
    text.insert("model_type".to_owned(), json!("inkling_text"));
    text.insert("num_mtp_layers".to_owned(), json!(3));
    config
}

#[test]
fn both_spellings_of_the_configuration_mean_the_same() {
    let (config, table) = fixture("inkling-101");
    let other = respelt(&config);
    assert_eq!(program(&other, &table), program(&config, &table));
    for (key, value) in [
        ("sconv_kernel_size", json!(3)),
        ("model_max_length", json!(1)),
        ("dense_mlp_idx", json!(1)),
        ("local_layer_ids", json!([0, 1])),
    ] {
        let text = one_defect(&with(&other, &format!("text_config.{key}"), value), &table);
        assert!(
            text.starts_with(&format!("config.json: text_config.{key}: ")),
            "{text}"
        );
    }
    let torn = with(&config, "text_config.moe_intermediate_size", json!(41));
    let text = one_defect(&torn, &table);
    assert!(text.contains("moe_intermediate_size: is 41"), "{text}");
    let same = with(&config, "text_config.moe_intermediate_size", json!(40));
    assert_eq!(program(&same, &table), program(&config, &table));
}

/// What no operation uses: it may be absent.
fn optional(name: &str) -> bool {
    ["model.visual.", "model.audio."]
        .iter()
        .any(|start| name.starts_with(start))
        || name.ends_with(".input_amax")
        || name.ends_with(".original_shape")
}

#[test]
fn every_damaged_tensor_is_exactly_its_defect() {
    let (config, table) = fixture("inkling-101");
    check_tensors(&config, &table, |name| !optional(name));
    let (config, table) = fixture("inkling-nvfp4-303");
    check_tensors(&config, &table, |name| !optional(name));
}

#[test]
fn every_extra_tensor_is_exactly_its_defect() {
    let (config, table) = fixture("inkling-101");
    check_extra_tensors(
        &config,
        &table,
        &[
            "model.llm.layers.8.attn_norm.weight",
            "model.llm.layers.0.mlp.gate.weight",
            "model.llm.layers.2.mlp.global_scale",
            "model.llm.layers.2.mlp.experts.w13_weight.scale",
            "model.llm.layers.2.mlp.experts.w13_weight.input_amax",
            "model.llm.layers.2.attn.sinks",
            "model.llm.lm_head.weight",
            "model.mtp.layers.3.hidden_norm.weight",
            "model.mtp.layers.0.transformer_block.mlp.gate.weight",
            "model.mtp.layers.0.transformer_block.attn.wq_du.bias",
            "model.visual.layers.linear_00.weight",
            "model.visual.layers.linear_0.bias",
            "model.visual.layers.conv_0.weight",
            "model.audio.encoder.bias",
            "",
        ],
    );
    let (coded, codes) = fixture("inkling-nvfp4-303");
    let beside_plain = "model.llm.layers.1.mlp.experts.w2_weight.scale";
    check_extra_tensors(&coded, &codes, &[beside_plain]);
    check_extra_tensors(&config, &table, &["model.mtp.chain_norm.weight"]);
    let mut chained = table;
    chained.push(tensor("model.mtp.chain_norm.weight", "BF16", &[96]));
    let config = with(&config, "mtp_config.chain_hidden_post_norm", json!(true));
    let p = program(&config, &chained);
    assert!(p.depths().iter().all(|depth| depth.exit.norm.is_some()));
    chained.retain(|t| !t.name.starts_with("model.mtp."));
    assert_eq!(program(&config, &chained).draft, None);
}

#[test]
fn every_needed_key_is_missed() {
    let (config, table) = fixture("inkling-101");
    let needed = [
        "hidden_size",
        "num_hidden_layers",
        "vocab_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "swa_num_attention_heads",
        "swa_num_key_value_heads",
        "swa_head_dim",
        "sliding_window_size",
        "d_rel",
        "rel_extent",
        "sconv_kernel_size",
        "model_max_length",
        "dense_intermediate_size",
        "intermediate_size",
        "n_routed_experts",
        "num_experts_per_tok",
        "n_shared_experts",
        "route_scale",
        "rms_norm_eps",
        "logits_mup_width_multiplier",
        "local_layer_ids",
        "dense_mlp_idx",
        "log_scaling_alpha",
    ];
    let paths = needed.map(|key| format!("text_config.{key}"));
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    check_needed_keys(&config, &table, &paths);
    check_needed_keys(&config, &table, &["text_config"]);
}

#[test]
fn unknown_keys_are_exactly_their_defects() {
    let (config, table) = fixture("inkling-101");
    check_unknown_keys(&config, &table, &["", "text_config", "mtp_config"]);
}

#[test]
fn values_that_cannot_be_used_are_named() {
    let (config, table) = fixture("inkling-101");
    let bad = [
        ("use_embed_norm", json!(false)),
        ("use_sconv", json!(false)),
        ("use_gate_bias", json!(false)),
        ("use_global_scale", json!(false)),
        ("norm_after_topk", json!(false)),
        ("shared_expert_sink", json!(false)),
        ("q_bias", json!(true)),
        ("o_bias", json!(true)),
        ("gate_activation", json!("softmax")),
        ("hidden_act", json!("gelu")),
        ("final_logit_softcapping", json!(30.0)),
        ("model_type", json!("inkling2")),
        ("rms_norm_eps", json!(0)),
        ("route_scale", json!("8")),
        ("logits_mup_width_multiplier", json!(0)),
        ("log_scaling_n_floor", json!(-1)),
        ("hidden_size", json!(u64::MAX)),
        ("num_hidden_layers", json!(1_000_000)),
        ("num_key_value_heads", json!(4)),
        ("swa_num_key_value_heads", json!(3)),
        ("sliding_window_size", json!(0)),
        ("sconv_kernel_size", json!(65)),
        ("n_routed_experts", json!(1_000_000)),
        ("num_experts_per_tok", json!(13)),
        ("n_shared_experts", json!(0)),
        ("unpadded_vocab_size", json!(321)),
        ("local_layer_ids", json!([8])),
        ("local_layer_ids", json!("all")),
        ("dense_mlp_idx", json!(9)),
        ("layer_types", json!(["hybrid"])),
        ("layer_types", json!(vec!["full"; 8])),
        ("num_mtp_layers", json!(2)),
        ("mtp_local_layer_ids", json!([1])),
        ("mtp_hidden_states_first", json!(false)),
    ];
    let bad = bad.map(|(key, value)| (format!("text_config.{key}"), value));
    let bad: Vec<_> = bad.iter().map(|(p, v)| (p.as_str(), v.clone())).collect();
    check_bad_values(&config, &table, &bad);
    let twice = with(&config, "text_config.local_layer_ids", json!([0, 1, 0]));
    let text = one_defect(&twice, &table);
    assert!(
        text.ends_with("local_layer_ids: names layer 0 once more"),
        "{text}"
    );
    check_bad_values(
        &config,
        &table,
        &[
            ("tie_word_embeddings", json!(true)),
            ("text_config", json!(7)),
            ("mtp_config", json!([])),
            ("mtp_config.num_nextn_predict_layers", json!(-1)),
            ("mtp_config.local_layer_ids", json!("all")),
            ("mtp_config.chain_hidden_post_norm", json!(1)),
        ],
    );
}

#[test]
fn a_model_far_larger_than_its_checkpoint_is_one_defect() {
    let (config, table) = fixture("inkling-101");
    let deep = without(&config, "text_config.local_layer_ids");
    let deep = with(&deep, "text_config.num_hidden_layers", json!(1024));
    let deep = with(
        &deep,
        "text_config.layer_types",
        json!(vec!["hybrid"; 1024]),
    );
    let wide = with(&deep, "text_config.n_routed_experts", json!(4096));
    for config in [deep, wide] {
        let text = one_defect(&config, &table);
        assert!(
            text.contains("num_hidden_layers: 1024 layers need"),
            "{text}"
        );
    }
}

#[test]
fn no_changed_byte_breaks_lowering() {
    let (config, table) = fixture("inkling-101");
    assert!(lower_with_changed_bytes(&config, &table) > 0);
}
