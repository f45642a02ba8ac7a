//! Lowering of GLM: the released shape, the fixtures, and every kind of damage.

#![recursion_limit = "256"]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
mod damage;
mod glm_table;

use common::{
    check_bad_values, check_extra_tensors, defects, fixture, one_defect, parameters, program,
    tensor, with, without,
};
use damage::{check_needed_keys, check_tensors, check_unknown_keys, lower_with_changed_bytes};
use glm_table::{Layout, quantised, released, small, tensors};
use lamella_program::block::{
    Ffn, IndexNorm, LatentAttention, LatentSelection, Mixer, Rope, RopePairing, RopePlace, Routed,
    RouterGroups, Scoring, WeightRule,
};
use lamella_program::operand::Coding;
use lamella_program::{Defect, Program, Role, TensorInfo, state};
use serde_json::json;

fn attention(program: &Program, layer: usize) -> &LatentAttention {
    match &program.layers[layer].mixer.body {
        Mixer::LatentAttention(attention) => attention,
        other => panic!("{other:?}"),
    }
}

fn routed(program: &Program, layer: usize) -> &Routed {
    match &program.layers[layer].ffn.body {
        Ffn::Routed(routed) => routed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_released_model_has_its_published_size() {
    let config = released();
    let table = tensors(&config, Layout::Apart);
    let p = program(&config, &table);
    assert_eq!(p.parameters(), 743_377_019_904);
    assert_eq!(parameters(&p, |role| role == Role::Expert), 724_775_731_200);
    assert_eq!(parameters(&p, |role| role != Role::Expert), 18_601_288_704);
    assert_eq!(p.draft_parameters(), 9_952_920_576);
    // The page counts bf16: 95,232 bytes.
    assert_eq!(state::bytes_per_token(&p), 2 * 95_232);
    assert_eq!(state::draft_bytes_per_token(&p), 2 * 1_408);
    assert_eq!(
        (state::fixed_bytes(&p), state::draft_fixed_bytes(&p)),
        (0, 0)
    );
    let owners = (0..78).filter(|&i| {
        let own = attention(&p, i).selection.as_ref();
        matches!(own, Some(LatentSelection::Own(_)))
    });
    assert_eq!(owners.count(), 21);
    assert_eq!((p.dims.context, p.exit.logits), (1 << 20, 154_880));
    assert_eq!(p.boundary.state_schema, "glm/stream.v1");

    let stacked = program(&config, &tensors(&config, Layout::Stacked));
    assert_eq!(stacked.parameters(), p.parameters());
    let config = quantised(&config);
    let fp8 = program(&config, &tensors(&config, Layout::Fp8));
    assert_eq!(fp8.parameters(), p.parameters());
}

#[test]
fn the_fixtures_close() {
    for name in ["glm-101", "glm-404"] {
        let (config, table) = fixture(name);
        let p = program(&config, &table);
        assert_eq!((p.unused.len(), p.depths().len()), (0, 1), "{name}");
        let used = |t: &&TensorInfo| !t.name.ends_with("_scale_inv");
        let shapes = table.iter().filter(used).map(|t| &t.shape);
        let elements: usize = shapes.map(|shape| shape.iter().product::<usize>()).sum();
        let parameters = p.parameters() + p.draft_parameters();
        assert_eq!(parameters, elements as u64, "{name}");
    }
}

#[test]
fn attention_says_what_the_page_says() {
    let config = small();
    let p = program(&config, &tensors(&config, Layout::Apart));
    let a = attention(&p, 1);
    assert_eq!((a.heads, a.nope_dim, a.rope_dim), (3, 6, 4));
    assert_eq!((a.value_dim, a.latent_dim), (5, 14));
    assert_eq!(a.scale, (10.0_f64).sqrt().recip() as f32);
    assert_eq!((a.query_norm.eps, a.latent_norm.eps), (1e-6, 1e-6));
    assert_eq!(p.layers[1].mixer.pre_norm.as_ref().unwrap().eps, 1e-5);
    assert!(!a.query_norm.unit_offset && a.output_gate.is_none());
    let rope = |place| Rope {
        theta: 8e6,
        dims: 4,
        place,
        pairing: RopePairing::Adjacent,
        yarn: None,
    };
    assert_eq!(a.rope, Some(rope(RopePlace::Last)));
    let Some(LatentSelection::Own(ix)) = &a.selection else {
        panic!("{:?}", a.selection)
    };
    assert_eq!((ix.heads, ix.head_dim, ix.top_k, ix.block), (2, 8, 4, 1));
    assert_eq!(ix.scale, 0.25);
    assert_eq!(ix.rope, Some(rope(RopePlace::First)));
    assert!(matches!(ix.key_norm, Some(IndexNorm::Layer { eps, .. }) if eps == 1e-6));
    let weights = p.operand(ix.head_weights.as_ref().unwrap().weight);
    assert_eq!(
        (weights.role, &weights.shape[..]),
        (Role::Router, &[2, 24][..])
    );
    assert_eq!(attention(&p, 2).selection, Some(LatentSelection::Shared));
    let query = p.operand(ix.query.weight);
    assert_eq!(query.name, "layers.1.attention.index.query");
    let source = "model.layers.1.self_attn.indexer.wq_b.weight";
    assert_eq!(query.parts[0][0].tensor, source);
}

#[test]
fn experts_say_what_the_page_says() {
    let config = small();
    let p = program(&config, &tensors(&config, Layout::Apart));
    let r = routed(&p, 3);
    assert_eq!((r.experts, r.top_k, r.unit.width), (8, 3, 7));
    assert_eq!(r.router.scoring, Scoring::Sigmoid);
    assert_eq!(r.router.weights, WeightRule::Normalised { eps: 1e-20 });
    assert_eq!(r.router.scale, Some(2.5));
    let groups = RouterGroups { count: 4, top_k: 2 };
    assert_eq!(r.router.groups, Some(groups));
    assert!(r.router.selection_bias.is_some());
    assert_eq!(r.shared.len(), 1);
    assert_eq!(r.shared[0].width, 14);
    assert!(r.shared[0].output_gate.is_none());
    assert!(matches!(&p.layers[0].ffn.body, Ffn::Dense(unit) if unit.width == 20));
    let changes = [
        ("n_group", json!(1)),
        ("topk_group", json!(1)),
        ("norm_topk_prob", json!(false)),
        ("routed_scaling_factor", json!(1.0)),
    ];
    let plain = changes
        .iter()
        .fold(config, |c, (key, value)| with(&c, key, value.clone()));
    let p = program(&plain, &tensors(&plain, Layout::Stacked));
    let r = routed(&p, 3);
    assert_eq!((r.router.groups, r.router.scale), (None, None));
    assert_eq!(r.router.weights, WeightRule::Raw);
    let up = &p.operand(r.unit.up).parts[5][0];
    assert_eq!(up.tensor, "model.layers.3.mlp.experts.gate_up_proj");
    assert_eq!((up.start, up.rows), (11 * 7, 7));
}

#[test]
fn each_tensor_decides_whether_it_is_in_codes() {
    let config = quantised(&small());
    let mut table = tensors(&config, Layout::Fp8);
    let p = program(&config, &table);
    let a = attention(&p, 0);
    let expected = Coding::BlockFp8 {
        scale: "model.layers.0.self_attn.kv_b_proj.weight_scale_inv".into(),
        block: [128, 128],
    };
    assert_eq!(
        p.operand(a.latent_up.weight).parts[0][0].coding,
        Some(expected)
    );
    assert_eq!(p.operand(p.entry.embedding).parts[0][0].coding, None);
    // One matrix left as it was: no scales, and an ordinary type.
    let name = "model.layers.0.self_attn.kv_b_proj.weight";
    table.retain(|t| t.name != format!("{name}_scale_inv"));
    let place = table.iter().position(|t| t.name == name).unwrap();
    table[place] = tensor(name, "BF16", &table[place].shape.clone());
    let p = program(&config, &table);
    let a = attention(&p, 0);
    assert_eq!(p.operand(a.latent_up.weight).parts[0][0].coding, None);
    // Without a block the codes mean nothing, which is said once.
    let text = one_defect(&small(), &tensors(&config, Layout::Fp8));
    assert!(text.contains("needs the size of its blocks"), "{text}");
}

#[test]
fn indexers_are_listed_or_follow_a_pattern_or_a_stride() {
    let config = small();
    let table = tensors(&config, Layout::Apart);
    let whole = program(&config, &table);
    let strided = without(&config, "indexer_types");
    assert_eq!(program(&strided, &table), whole);
    let bare = without(&strided, "index_topk_freq");
    let bare = without(&bare, "index_skip_topk_offset");
    for pattern in [json!("FFSF"), json!(["full", "full", "shared", "full"])] {
        let config = with(&bare, "index_topk_pattern", pattern);
        assert_eq!(program(&config, &table), whole);
    }
    // Without any of them every layer selects.
    let text = one_defect(&bare, &table);
    let start = "config.json: index_topk_freq: is missing, but the checkpoint fits 2; with it, \
                 tensor model.layers.2.self_attn.indexer.";
    assert!(text.starts_with(start), "{text}");
    let dense = without(&config, "mlp_layer_types");
    assert_eq!(program(&dense, &table), whole);
}

#[test]
fn biases_are_where_the_page_says() {
    let config = with(&small(), "attention_bias", json!(true));
    let mut table = tensors(&config, Layout::Apart);
    let text = one_defect(&config, &table);
    let start = "config.json: attention_bias: is true, but the checkpoint fits false; with it, ";
    assert!(text.starts_with(start), "{text}");
    // Three of each of four layers and a draft head.
    assert!(text.ends_with("and 14 more defects"), "{text}");
    for layer in 0..5 {
        for (map, len) in [("q_a_proj", 10), ("kv_a_proj_with_mqa", 18), ("o_proj", 24)] {
            let name = format!("model.layers.{layer}.self_attn.{map}.bias");
            table.push(tensor(name, "BF16", &[len]));
        }
    }
    let p = program(&config, &table);
    assert!(attention(&p, 0).output.bias.is_some());
    assert!(attention(&p, 0).query_up.bias.is_none());
}

#[test]
fn every_damaged_tensor_is_exactly_its_defect() {
    for layout in [Layout::Apart, Layout::Stacked, Layout::Fp8] {
        let config = match layout {
            Layout::Fp8 => quantised(&small()),
            _ => small(),
        };
        check_tensors(&config, &tensors(&config, layout), |_| true);
    }
}

#[test]
fn every_extra_tensor_is_exactly_its_defect() {
    let config = small();
    let names = [
        "model.layers.2.self_attn.indexer.wk.weight",
        "model.layers.0.self_attn.q_a_proj.bias",
        "model.layers.1.mlp.experts.8.up_proj.weight",
        "model.layers.1.mlp.experts.01.up_proj.weight",
        "model.layers.0.mlp.gate.weight",
        "model.layers.0.mlp.up_proj.weight_scale_inv",
        "model.layers.4.mlp.experts.8.up_proj.weight",
        "model.layers.4.mlp.experts.0.up_proj.weight_scale_inv",
        "model.layers.4.mlp.expert.0.up_proj.weight",
        "model.layers.4.self_attn.q_proj.weight",
        "model.layers.4.enorm.bias",
        "model.layers.5.enorm.weight",
        "model.layers.04.enorm.weight",
        "model.visual.patch_embed.proj.weight",
        "",
    ];
    check_extra_tensors(&config, &tensors(&config, Layout::Apart), &names);
    let mut table = tensors(&config, Layout::Apart);
    for name in ["embed_tokens", "shared_head.head"] {
        let name = format!("model.layers.4.{name}.weight");
        table.push(tensor(name, "BF16", &[31, 24]));
    }
    let copies = &program(&config, &table).unused[0];
    assert_eq!(
        copies.name,
        "copies of embedding and head in the draft heads"
    );
    assert_eq!(copies.tensors.len(), 2);
}

#[test]
fn a_checkpoint_may_come_without_its_draft_head() {
    let config = small();
    let mut table = tensors(&config, Layout::Apart);
    table.retain(|t| !t.name.starts_with("model.layers.4."));
    let p = program(&config, &table);
    assert!(p.draft.is_none() && p.unused.is_empty());
}

#[test]
fn values_that_cannot_be_used_are_named() {
    let cases = [
        ("hidden_act", json!("gelu")),
        ("scoring_func", json!("softmax")),
        ("topk_method", json!("greedy")),
        ("moe_router_dtype", json!("bfloat16")),
        ("moe_layer_freq", json!(2)),
        ("rope_interleave", json!(false)),
        ("indexer_rope_interleave", json!(false)),
        ("mlp_bias", json!(true)),
        ("rope_parameters.rope_type", json!("yarn")),
        ("rope_parameters.rope_theta", json!(0)),
        ("rope_scaling.type", json!("linear")),
        ("attention_bias", json!("no")),
        ("hidden_size", json!(0)),
        ("hidden_size", json!(1_u64 << 40)),
        ("num_hidden_layers", json!(-1)),
        ("num_attention_heads", json!(2.5)),
        ("qk_rope_head_dim", json!(u64::MAX)),
        ("qk_head_dim", json!(11)),
        ("index_head_dim", json!(2)),
        ("index_topk", json!(0)),
        ("index_topk_pattern", json!("FFXF")),
        ("index_topk_pattern", json!(4)),
        ("index_topk_freq", json!(0)),
        ("indexer_types", json!(["shared", "full", "shared", "full"])),
        ("indexer_types", json!(["full", "full", "shared"])),
        ("indexer_types", json!(["full", "full", "shared", "none"])),
        (
            "mlp_layer_types",
            json!(["dense", "sparse", "sparse", "moe"]),
        ),
        ("mlp_layer_types", json!("dense")),
        ("layer_types", json!(["full_attention"])),
        ("layer_types", json!(["indexed_attention"])),
        ("n_group", json!(3)),
        ("n_group", json!(8)),
        ("topk_group", json!(5)),
        ("num_experts_per_tok", json!(5)),
        ("n_shared_experts", json!(0)),
        ("norm_topk_prob", json!(1)),
        ("routed_scaling_factor", json!(-2.5)),
        ("rms_norm_eps", json!(0)),
        ("num_nextn_predict_layers", json!("one")),
        ("quantization_config", json!(8)),
    ];
    check_bad_values(&small(), &tensors(&small(), Layout::Apart), &cases);
    let config = quantised(&small());
    let cases = [
        ("quantization_config.quant_method", json!("awq")),
        ("quantization_config.fmt", json!("e5m2")),
        ("quantization_config.activation_scheme", json!("static")),
        ("quantization_config.weight_block_size", json!([128])),
        ("quantization_config.weight_block_size", json!([0, 128])),
        ("quantization_config.weight_block_size", json!(null)),
    ];
    check_bad_values(&config, &tensors(&config, Layout::Fp8), &cases);
}

#[test]
fn every_needed_key_is_missed() {
    let config = small();
    let table = tensors(&config, Layout::Apart);
    let needed = [
        "hidden_act",
        "hidden_size",
        "index_head_dim",
        "index_n_heads",
        "index_topk",
        "intermediate_size",
        "kv_lora_rank",
        "max_position_embeddings",
        "moe_intermediate_size",
        "n_routed_experts",
        "n_shared_experts",
        "norm_topk_prob",
        "num_attention_heads",
        "num_experts_per_tok",
        "num_hidden_layers",
        "q_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "rms_norm_eps",
        "routed_scaling_factor",
        "v_head_dim",
        "vocab_size",
    ];
    check_needed_keys(&config, &table, &needed);
    let text = one_defect(&without(&config, "rope_parameters"), &table);
    assert!(
        text.starts_with("config.json: rope_theta: is missing"),
        "{text}"
    );
}

#[test]
fn unknown_keys_are_exactly_their_defects() {
    let config = quantised(&small());
    let table = tensors(&config, Layout::Fp8);
    let objects = ["", "rope_parameters", "quantization_config"];
    check_unknown_keys(&config, &table, &objects);
    let misspelt = with(&small(), "Hidden_size", json!(1));
    let table = tensors(&small(), Layout::Apart);
    let expected = Defect::UnknownConfigKey("Hidden_size".into());
    assert_eq!(defects(&misspelt, &table), [expected]);
}

#[test]
fn sizes_far_beyond_the_checkpoint_are_one_defect() {
    let config = without(&without(&small(), "indexer_types"), "mlp_layer_types");
    let table = tensors(&small(), Layout::Apart);
    for (layers, experts) in [(1024, 8), (4, 4096), (1024, 4096)] {
        let config = with(&config, "num_hidden_layers", json!(layers));
        let config = with(&config, "n_routed_experts", json!(experts));
        let text = one_defect(&config, &table);
        assert!(text.contains(&format!("has {}", table.len())), "{text}");
    }
}

#[test]
fn no_changed_byte_breaks_lowering() {
    let table = tensors(&small(), Layout::Apart);
    let opened = lower_with_changed_bytes(&small(), &table);
    // Those that do not change the meaning, or only an inert value.
    assert!(opened > 50, "{opened}");
}
