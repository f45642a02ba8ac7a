//! Lowering of Qwen3.8-Flash-Next: the fixtures, the released shapes, and every kind of damage.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
mod damage;
mod qwen38_table;

use common::{
    check_bad_values, check_extra_tensors, defects, fixture, one_defect, program, tensor, with,
    without,
};
use damage::{
    bytes, check_needed_keys, check_tensors, check_unknown_keys, lower_with_changed_bytes, slice,
};
use lamella_program::block::{
    Activation, Attention, DeltaNet, Ffn, IndexNorm, Mixer, Residual, Routed, Scoring, WeightRule,
};
use lamella_program::operand::Coding;
use lamella_program::program::{PerLayerEmbedding, StreamReduction};
use lamella_program::{Defect, Program, Role, TensorInfo, state};
use qwen38_table::{Stored, drafts, plain, released, tensors};
use serde_json::{Value, json};

/// The checkpoint in FP8 whose weights are not among the fixtures.
fn fp8() -> (Value, Vec<TensorInfo>) {
    fixture("qwen38fp8-333")
}

fn delta(program: &Program, layer: usize) -> &DeltaNet {
    match &program.layers[layer].mixer.body {
        Mixer::GatedDeltaNet(d) => d,
        other => panic!("{other:?}"),
    }
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

fn elements(program: &Program, wanted: impl Fn(&str) -> bool) -> u64 {
    let operands = program.operands.iter().filter(|o| wanted(&o.name));
    operands.map(|o| o.elements() as u64).sum()
}

#[test]
fn the_released_model_has_its_published_size() {
    let config = released();
    let table = tensors(&config, Stored::Bf16, true, &[320_001_536]);
    assert_eq!(table.len(), 1294);
    let p = program(&config, &table);
    assert_eq!(p.parameters(), 176_943_899_520);
    assert_eq!(elements(&p, |n| n.contains(".delta.")), 2_086_510_464);
    let attention = |n: &str| n.contains(".attention.");
    assert_eq!(elements(&p, attention), 597_694_464);
    assert_eq!(elements(&p, |n| n.contains(".indexer.")), 19_663_872);
    assert_eq!(elements(&p, |n| n.contains("_gate.")), 640_624_640);
    assert_eq!(elements(&p, |n| n.contains(".shared")), 236_052_480);
    assert_eq!(elements(&p, |n| n.ends_with(".router")), 62_914_560);
    let table_rows = |n: &str| n.ends_with("ngram.table");
    assert_eq!(elements(&p, table_rows), 51_200_245_760);
    let rest = |n: &str| n.contains(".ngram.") && !table_rows(n);
    assert_eq!(elements(&p, rest), 32_839_680);
    let experts: Vec<_> = p
        .operands
        .iter()
        .filter(|o| o.role == Role::Expert)
        .collect();
    let count: usize = experts.iter().map(|o| o.items()).sum();
    assert_eq!(count, 3 * 24_576);
    let sizes = experts.iter().map(|o| o.elements() as u64);
    assert_eq!(sizes.sum::<u64>(), 120_795_955_200);
    let mut whole = table.clone();
    whole.extend(drafts(&config, Stored::Bf16));
    let drafting = program(&config, &whole);
    assert_eq!(drafting.draft_parameters(), 2_607_150_848);
    assert_eq!(drafting.parameters(), p.parameters());
    // Keys and values, and a quarter of an index key.
    assert_eq!(state::draft_bytes_per_token(&drafting), 4_096 + 32 * 4);
    // Keys and values of twelve layers, and a quarter of an index key.
    assert_eq!(state::bytes_per_token(&p), 49_152 + 384 * 4);
    assert_eq!(state::history(&p), 2);
    let matrices = 36 * 48 * 128 * 128;
    let rings = 36 * 3 * 10_240 + 9 * 10_240 + 12 * 3 * 128;
    assert_eq!(state::fixed_bytes(&p), 4 * (matrices + rings) + 2 * 4);
    assert_eq!(p.boundary.width, 10_240);
    assert!(p.boundary.needs_token_ids);
}

#[test]
fn the_releases_in_codes_have_the_same_numbers() {
    let config = released();
    let with_codes = |codes: Value| with(&config, "quantization_config", codes);
    let fp8 = with_codes(json!({
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]
    }));
    let mut table = tensors(&fp8, Stored::Fp8, false, &[320_001_536]);
    let text_only = table.len();
    table.extend(drafts(&fp8, Stored::Fp8));
    let p = program(&fp8, &table);
    assert_eq!(p.parameters(), 176_943_899_520);
    let size: u64 = table[..text_only].iter().map(bytes).sum();
    assert_eq!(
        size / 10_000_000,
        18_190,
        "181.9 GB without tower and draft head"
    );
    let modelopt = with_codes(json!({
        "quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt"}
    }));
    let table = tensors(&modelopt, Stored::Nvfp4, false, &[320_001_536]);
    let p = program(&modelopt, &table);
    assert_eq!(p.parameters(), 176_943_899_520);
    assert_eq!(p.unused[1].name, "scales of inputs");
    assert_eq!(p.unused[1].tensors.len(), 3 * 24_576);
}

#[test]
fn the_golden_fixtures_close() {
    let (config, table) = fixture("qwen38-111");
    let p = program(&config, &table);
    let known: Vec<_> = p
        .unused
        .iter()
        .map(|u| (u.name.as_str(), u.tensors.len()))
        .collect();
    let expected = [("vision tower", 21), ("hash constants", 3)];
    assert_eq!(known, expected);
    assert!(p.unused[1].reason.contains("compared"));
    let n = &p.entry.per_layer_embeddings[0];
    assert_eq!((n.layer, n.sizes.len(), n.boundary_token), (1, 8, 317));
    let (config, table) = fp8();
    let p = program(&config, &table);
    assert_eq!(p.unused.len(), 2);
}

#[test]
fn streams_are_read_and_written_through_gates() {
    let (config, table) = fixture("qwen38-111");
    let p = program(&config, &table);
    assert_eq!((p.boundary.width, p.dims.hidden), (256, 64));
    let Residual::HyperResidual {
        streams,
        mixer,
        ffn,
    } = &p.layers[3].residual
    else {
        panic!("{:?}", p.layers[3].residual)
    };
    assert_eq!(*streams, 4);
    assert!(mixer.norm.unit_offset && ffn.norm.unit_offset);
    let source = |id| p.operand(id).parts[0][0].tensor.clone();
    let layer = "model.language_model.layers.3";
    for (gate, site) in [(mixer, "attn"), (ffn, "mlp")] {
        let inject = gate.inject.as_ref().unwrap();
        let expected = format!("{layer}.{site}_hyper_connection.block_inject_weight.weight");
        assert_eq!(source(inject.weight), expected);
        assert_eq!(p.operand(inject.weight).role, Role::Router);
        let down = format!("{layer}.{site}_hyper_connection.input_mix_weight_down.weight");
        assert_eq!(source(gate.down.weight), down);
    }
    let Some(StreamReduction::HyperResidual(last)) = &p.exit.reduction else {
        panic!("{:?}", p.exit.reduction)
    };
    assert!(last.inject.is_none() && p.exit.norm.is_none());
    let layer = &p.layers[0];
    assert!(layer.mixer.pre_norm.is_none() && layer.ffn.pre_norm.is_none());
}

#[test]
fn a_delta_net_takes_its_rows_from_one_projection() {
    let (config, table) = fixture("qwen38-111");
    let p = program(&config, &table);
    let d = delta(&p, 0);
    assert_eq!((d.key_heads, d.value_heads), (2, 6));
    assert_eq!((d.key_dim, d.value_dim), (16, 16));
    assert_eq!(d.gate_activation, Activation::Sigmoid);
    assert!(!d.norm.unit_offset);
    let rows = |id| {
        let slice = slice(&p, id, 0);
        (slice.tensor, slice.start, slice.rows)
    };
    let joined = "model.language_model.layers.0.linear_attn.in_proj_qkv.weight".to_owned();
    assert_eq!(rows(d.query.weight), (joined.clone(), 0, 32));
    assert_eq!(rows(d.key.weight), (joined.clone(), 32, 32));
    assert_eq!(rows(d.value.weight), (joined, 64, 96));
    let kernel = "model.language_model.layers.0.linear_attn.conv1d.weight".to_owned();
    assert_eq!(rows(d.convolutions[2].weight), (kernel, 64, 96));
    assert!(rows(d.decay[0].weight).0.ends_with("in_proj_a.weight"));
    assert!(rows(d.beta.weight).0.ends_with("in_proj_b.weight"));
    let silu = with(&config, "text_config.output_gate_type", Value::Null);
    assert_eq!(
        delta(&program(&silu, &table), 0).gate_activation,
        Activation::Silu
    );
}

#[test]
fn attention_selects_blocks_and_gates_its_output() {
    let (config, table) = fixture("qwen38-111");
    let p = program(&config, &table);
    let a = attention(&p, 3);
    assert_eq!((a.heads, a.kv_heads, a.head_dim), (6, 2, 32));
    let rope = a.rope.as_ref().unwrap();
    assert_eq!((rope.dims, rope.theta), (8, 10_000.0));
    let starts = |id| -> Vec<[usize; 2]> {
        let slices = p.operand(id).parts[0].iter();
        slices.map(|s| [s.start, s.rows]).collect()
    };
    assert_eq!(starts(a.query.weight)[..2], [[0, 32], [64, 32]]);
    let gate = a.output_gate.as_ref().unwrap();
    assert_eq!(starts(gate.weight)[..2], [[32, 32], [96, 32]]);
    let norm = a.qk_norm.as_ref().unwrap();
    assert!(norm.query.unit_offset && norm.key.unit_offset);
    let ix = a.indexer.as_ref().unwrap();
    assert_eq!((ix.heads, ix.head_dim, ix.block, ix.top_k), (4, 16, 4, 4));
    assert_eq!(ix.scale, 0.25);
    assert_eq!(ix.rope, a.rope);
    assert_eq!(starts(ix.query.weight), [[0, 64]]);
    assert_eq!(starts(ix.key.as_ref().unwrap().weight), [[64, 16]]);
    assert!(matches!(&ix.key_norm, Some(IndexNorm::Rms(norm)) if norm.unit_offset));
    assert!(ix.head_weights.is_none());
}

#[test]
fn experts_and_their_codes_are_where_the_releases_have_them() {
    let (config, table) = fixture("qwen38-111");
    let p = program(&config, &table);
    let r = routed(&p, 0);
    assert_eq!((r.experts, r.top_k, r.unit.width), (16, 4, 24));
    assert_eq!(r.router.scoring, Scoring::Softmax);
    assert_eq!(r.router.weights, WeightRule::Normalised { eps: 0.0 });
    let up = slice(&p, r.unit.up, 3);
    assert_eq!((up.start, up.step, up.rows), (3 * 48 + 24, 1, 24));
    assert_eq!((r.shared.len(), r.shared[0].width), (1, 40));
    let gate = p.operand(r.shared[0].output_gate.unwrap());
    assert_eq!((&gate.shape, gate.role), (&vec![1, 64], Role::Vector));
    let (config, table) = fp8();
    let p = program(&config, &table);
    let down = slice(&p, routed(&p, 2).unit.down, 5);
    let name = "model.language_model.layers.2.mlp.experts.5.down_proj.weight";
    assert_eq!(down.tensor, name);
    let expected = Coding::BlockFp8 {
        scale: format!("{name}_scale_inv"),
        block: [128, 128],
    };
    assert_eq!(down.coding, Some(expected));
}

#[test]
fn the_ngram_table_is_its_parts_in_order() {
    let (config, table) = fp8();
    let p = program(&config, &table);
    let n: &PerLayerEmbedding = &p.entry.per_layer_embeddings[0];
    assert_eq!((n.layer, n.ngram, n.heads_per_ngram), (1, 3, 2));
    assert_eq!(n.sizes, [151, 157, 163, 167]);
    assert_eq!(n.offsets, [0, 151, 308, 471]);
    let operand = p.operand(n.table);
    assert_eq!(
        (&operand.shape, operand.role),
        (&vec![640, 32], Role::Embedding)
    );
    let parts: Vec<_> = operand.parts[0].iter().map(|s| s.rows).collect();
    assert_eq!(parts, [320, 320]);
    let embedding = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding";
    let last = &operand.parts[0][1];
    assert_eq!(last.tensor, format!("{embedding}.shard_1.weight"));
    let scale = format!("{embedding}.weight_scale");
    assert_eq!(last.coding, Some(Coding::TensorFp8 { scale }));
    assert_eq!((n.convolution.taps, n.convolution.dilation), (4, 3));
    assert_eq!(n.convolution.activation, Some(Activation::Silu));
    assert!(n.key_norm.unit_offset && n.query_norm.unit_offset);
    assert!(n.convolution_norm.unit_offset);
}

#[test]
fn the_plain_layout_closes_too() {
    let config = plain();
    // Heads of 2, 3, 5, 7, 11, 13 rows, then of 17, 19, 23, 29, 31, 37.
    let rows = [42, 156];
    let table = tensors(&config, Stored::Bf16, false, &rows);
    let p = program(&config, &table);
    assert_eq!(p.exit.head, p.entry.embedding);
    let layers: Vec<_> = p.entry.per_layer_embeddings.iter().collect();
    assert_eq!((layers[0].layer, layers[1].layer), (0, 2));
    assert_eq!(layers[1].sizes, [17, 19, 23, 29, 31, 37]);
    assert_eq!(layers[1].offsets[5], 119);
    assert_eq!((layers[0].boundary_token, layers[0].ngram), (276, 4));
    assert_eq!(p.operand(layers[0].table).shape, [42, 8]);
    let empty = p
        .unused
        .iter()
        .find(|u| u.reason == "they are empty")
        .unwrap();
    let shard = "model.layers.0.ple.ple_embedding.ngram_embedding.shard_14.weight";
    assert_eq!(empty.tensors.len(), 2);
    assert_eq!(empty.tensors[0], shard);
    assert_eq!(routed(&p, 0).router.weights, WeightRule::Raw);
    assert_eq!(delta(&p, 0).gate_activation, Activation::Silu);
    assert_eq!(attention(&p, 1).rope.as_ref().unwrap().dims, 16);
    assert_eq!(state::history(&p), 3);
    // Without n-gram embeddings nothing needs the tokens.
    let none = with(&config, "ple_layer_ids", json!([]));
    let p = program(&none, &tensors(&none, Stored::Bf16, false, &[]));
    assert!(p.entry.per_layer_embeddings.is_empty() && !p.boundary.needs_token_ids);
}

#[test]
fn layer_kinds_may_follow_from_their_interval() {
    let (config, table) = fixture("qwen38-111");
    let short = without(&config, "text_config.layer_types");
    assert_eq!(program(&short, &table), program(&config, &table));
    let kinds = ["linear_attention", "linear_attention"].map(str::to_owned);
    let bad = with(&config, "text_config.layer_types", json!(kinds));
    let text = one_defect(&bad, &table);
    assert!(
        text.contains("has 2 layers, but num_hidden_layers is 8"),
        "{text}"
    );
}

/// The constants of the hashes follow from the configuration: a checkpoint may leave them out.
#[test]
fn constants_are_all_there_or_none() {
    let (config, table) = fixture("qwen38-111");
    let p = program(&config, &table);
    let stored: Vec<_> = p.entry.per_layer_embeddings[0].stored_constants().collect();
    let expected = [
        ("layer_multipliers", 3),
        ("ngram_heads_vocab_sizes", 8),
        ("ngram_heads_offsets", 8),
    ];
    assert_eq!(stored.len(), expected.len());
    for ((tensor, values), (end, count)) in stored.iter().zip(expected) {
        assert!(tensor.ends_with(end) && values.len() == count, "{tensor}");
    }
    let names: Vec<&str> = stored.iter().map(|(tensor, _)| *tensor).collect();
    let mut bare = table.clone();
    bare.retain(|t| !names.contains(&t.name.as_str()));
    let without = program(&config, &bare);
    assert_eq!(without.entry.per_layer_embeddings[0].stored, None);
    assert_eq!(without.layers, p.layers);
}

/// What no operation uses: it may be absent.
fn optional(name: &str) -> bool {
    name.starts_with("mtp.") || name.starts_with("model.visual.")
}

#[test]
fn every_damaged_tensor_is_exactly_its_defect() {
    let (config, table) = fixture("qwen38-111");
    check_tensors(&config, &table, |name| !optional(name));
    let (config, table) = fp8();
    let coded = |name: &str| name.contains("layers.0.mlp.experts.1") || name.contains("shard_");
    check_tensors(&config, &table, coded);
    let scales = |name: &str| name.ends_with("embedding.weight_scale");
    let index = table.iter().position(|t| scales(&t.name)).unwrap();
    let mut damaged = table.clone();
    let lost = damaged.remove(index);
    assert!(matches!(&defects(&config, &damaged)[..],
        [Defect::MissingTensor { tensor, .. }] if *tensor == lost.name));
}

#[test]
fn every_damaged_tensor_in_fp4_is_exactly_its_defect() {
    let (config, _) = fp8();
    let codes = json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16});
    let config = with(&config, "quantization_config", codes);
    let table = tensors(&config, Stored::Nvfp4, false, &[640]);
    let used = |name: &str| !name.ends_with(".input_scale");
    check_tensors(&config, &table, |name| {
        used(name) && (name.contains("layers.0.mlp.experts.1.") || name.contains("ngram_embedding"))
    });
    let extra = "model.language_model.layers.0.mlp.gate.input_scale";
    check_extra_tensors(&config, &table, &[extra]);
    check_bad_values(
        &config,
        &table,
        &[
            ("quantization_config.quant_algo", json!("W4A8_AWQ")),
            ("quantization_config.group_size", json!(32)),
        ],
    );
    check_unknown_keys(&config, &table, &["quantization_config"]);
}

#[test]
fn every_extra_tensor_is_exactly_its_defect() {
    let (config, table) = fixture("qwen38-111");
    check_extra_tensors(
        &config,
        &table,
        &[
            "model.language_model.norm.weight",
            "model.language_model.layers.0.input_layernorm.weight",
            "model.language_model.layers.8.mlp.gate.weight",
            "model.language_model.layers.0.mlp.experts.3.up_proj.weight",
            "model.language_model.layers.0.mlp.experts.down_proj_scale_inv",
            "model.language_model.layers.1.ple.ple_embedding.layer_multiplier",
            "model.language_model.layers.2.ple.ple_embedding.layer_multipliers",
            "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_4.weight",
            "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.weight_scale",
            "model.language_model.layers.1.ple.ple_embedding.hashstats_",
            "model.visual.blocks.0.attn.qkv.weights",
            "model.visual.blocks.00.attn.qkv.weight",
            "model.visual.merger.linear_fc3.weight",
            "mtp.layers.1.mlp.gate.weight",
            "mtp.layers.0.self_attn.indexer.k_norm.weight",
            "mtp.hyper_connection_mixer.block_inject_weight.weight",
            "mtp.fc_hidden.weight_scale_2_",
            "",
        ],
    );
    let statistics = [
        "model.language_model.layers.1.ple.ple_embedding.hashstats_hits_0",
        "model.language_model.layers.1.ple.ple_embedding.token_lookup",
    ];
    let mut table = table;
    table.extend(statistics.map(|name| tensor(name, "I64", &[3])));
    assert_eq!(program(&config, &table).unused[2].tensors, statistics);
}

#[test]
fn every_needed_key_is_missed() {
    let (config, table) = fixture("qwen38-111");
    let needed = [
        "hidden_size",
        "num_hidden_layers",
        "vocab_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "hc_count",
        "hc_lowrank",
        "indexer_n_heads",
        "indexer_kv_heads",
        "indexer_head_dim",
        "indexer_budget",
        "indexer_compress_ratio",
        "max_position_embeddings",
        "rms_norm_eps",
        "hidden_act",
        "eos_token_id",
    ];
    let pointers = needed.map(|key| format!("text_config.{key}"));
    let pointers: Vec<&str> = pointers.iter().map(String::as_str).collect();
    check_needed_keys(&config, &table, &pointers);
}

#[test]
fn unknown_keys_are_exactly_their_defects() {
    let (config, table) = fixture("qwen38-111");
    let objects = [
        "",
        "text_config",
        "text_config.rope_parameters",
        "text_config.mtp",
    ];
    check_unknown_keys(&config, &table, &objects);
    let (config, table) = fp8();
    check_unknown_keys(&config, &table, &["quantization_config"]);
}

#[test]
fn values_that_cannot_be_used_are_named() {
    let (config, table) = fixture("qwen38-111");
    let bad = [
        ("mtp.num_hidden_layers", json!("one")),
        ("mtp.hybrid", json!(false)),
        ("mtp.layer_types", json!(["linear_attention"])),
        ("mtp.rope_theta", json!(5000)),
        ("mtp.mtp_use_hidden_state_from_layer", json!(3)),
        ("mtp_num_hidden_layers", json!(2)),
        ("mtp_use_dedicated_embeddings", json!(true)),
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("attn_output_gate", json!(false)),
        ("mamba_ssm_dtype", json!("bfloat16")),
        ("output_gate_type", json!("tanh")),
        ("rms_norm_eps", json!(0)),
        ("norm_topk_prob", json!(1)),
        ("model_type", json!("qwen3_5_text")),
        ("num_hidden_layers", json!(1_000_000)),
        ("num_experts", json!(0)),
        ("num_experts", json!(1_000_000_000_000_u64)),
        ("num_experts_per_tok", json!(17)),
        ("num_key_value_heads", json!(4)),
        ("linear_num_value_heads", json!(5)),
        ("linear_conv_kernel_dim", json!(65)),
        ("hc_count", json!(1)),
        ("hc_count", json!(65)),
        ("hidden_size", json!(u64::MAX)),
        ("indexer_kv_heads", json!(2)),
        ("indexer_budget", json!(18)),
        ("indexer_head_dim", json!(6)),
        ("layer_types", json!("linear_attention")),
        ("layer_types", json!(vec!["mamba"; 8])),
        ("ple_layer_ids", json!([0])),
        ("ple_layer_ids", json!([9])),
        ("ple_layer_ids", json!(["2"])),
        ("ple_embed_dim", json!(63)),
        ("ngram_size", json!(1)),
        ("ngram_size", json!(17)),
        ("heads_per_ngram", json!(513)),
        ("ngram_vocab_size_base", json!(1_u64 << 40)),
        ("split_ngram_parts", json!(1_000_000)),
        ("seed", json!(-1)),
        ("eos_token_id", json!(320)),
        ("eos_token_id", json!([])),
        ("eos_token_id", json!("</s>")),
        ("mtp_num_hidden_layers", json!(1.5)),
        ("rope_scaling.type", json!("yarn")),
        ("rope_parameters.rope_type", json!("yarn")),
        ("rope_parameters.rope_theta", json!("many")),
        ("rope_theta", json!(0.5)),
        ("partial_rotary_factor", json!(0.5)),
    ];
    let pointers = bad.map(|(key, value)| (format!("text_config.{key}"), value));
    let bad: Vec<_> = pointers
        .iter()
        .map(|(p, v)| (p.as_str(), v.clone()))
        .collect();
    check_bad_values(&config, &table, &bad);
}

#[test]
fn values_beside_and_around_the_text_model_are_named_too() {
    let (config, table) = fixture("qwen38-111");
    let lone = without(&config, "text_config.rope_parameters");
    let lone = with(&lone, "text_config.rope_theta", json!(1e4));
    check_bad_values(
        &lone,
        &table,
        &[
            ("text_config.rope_theta", json!(1.0)),
            ("text_config.partial_rotary_factor", json!(1.5)),
            ("text_config.partial_rotary_factor", json!(0.03)),
        ],
    );
    check_bad_values(
        &config,
        &table,
        &[
            ("tie_word_embeddings", json!(true)),
            ("text_config", json!([])),
        ],
    );
    let (config, table) = fp8();
    check_bad_values(
        &config,
        &table,
        &[
            ("quantization_config.quant_method", json!("gptq")),
            ("quantization_config.fmt", json!("e5m2")),
            ("quantization_config.weight_block_size", json!([128])),
        ],
    );
}

#[test]
fn no_changed_byte_breaks_lowering() {
    let (config, table) = fixture("qwen38-111");
    assert!(lower_with_changed_bytes(&config, &table) > 0);
}
