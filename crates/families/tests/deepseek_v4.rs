//! Lowering of DeepSeek V4: the fixtures and every kind of damage.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
mod damage;

use common::{
    check_bad_values, check_extra_tensors, defects, fixture, one_defect, program, tensor, with,
    without,
};
use damage::{
    check_needed_keys, check_tensors, check_unknown_keys, lower_with_changed_bytes, slice,
};
use lamella_program::block::{
    CompressedAttention, Ffn, GatedActivation, Mixer, Residual, Rope, RopePairing, RopePlace,
    Routed, Scoring, WeightRule,
};
use lamella_program::operand::Coding;
use lamella_program::program::StreamReduction;
use lamella_program::{Defect, Program, Role};
use serde_json::{Value, json};

fn attention(p: &Program, layer: usize) -> &CompressedAttention {
    match &p.layers[layer].mixer.body {
        Mixer::CompressedAttention(attention) => attention,
        other => panic!("{other:?}"),
    }
}

fn routed(p: &Program, layer: usize) -> &Routed {
    match &p.layers[layer].ffn.body {
        Ffn::Routed(routed) => routed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_stack_says_what_the_paper_says() {
    let (config, table) = fixture("deepseek_v4-101");
    let p = program(&config, &table);
    assert_eq!(p.family, "deepseek_v4");
    assert_eq!((p.boundary.width, p.boundary.needs_token_ids), (256, true));
    let Residual::HyperConnections {
        streams,
        sinkhorn_iterations,
        eps,
        norm_eps,
        mixer,
        ffn,
    } = &p.layers[2].residual
    else {
        panic!("{:?}", p.layers[2].residual)
    };
    assert_eq!((*streams, *sinkhorn_iterations), (4, 20));
    assert_eq!((*eps, *norm_eps), (1e-6, 1e-6));
    assert_eq!(slice(&p, mixer.function, 0).tensor, "layers.2.hc_attn_fn");
    assert_eq!(slice(&p, ffn.scale, 0).tensor, "layers.2.hc_ffn_scale");
    assert_eq!(p.operand(mixer.function).shape, [24, 256]);
    let Some(StreamReduction::HyperConnections { function, .. }) = &p.exit.reduction else {
        panic!("{:?}", p.exit)
    };
    assert_eq!(p.operand(*function).shape, [4, 256]);
    let ratios: Vec<_> = (0..7)
        .map(|i| {
            attention(&p, i)
                .compressor
                .as_ref()
                .map(|c| (c.ratio, c.overlaps))
        })
        .collect();
    let (wide, narrow) = (Some((16, false)), Some((4, true)));
    assert_eq!(ratios, [None, narrow, wide, narrow, wide, narrow, wide]);
    for layer in 0..7 {
        let indexed = attention(&p, layer).indexer.is_some();
        assert_eq!(indexed, layer % 2 == 1, "{layer}");
    }
}

#[test]
fn attention_says_what_the_paper_says() {
    let (config, table) = fixture("deepseek_v4-101");
    let p = program(&config, &table);
    let a = attention(&p, 3);
    assert_eq!((a.heads, a.head_dim, a.window), (4, 32, 8));
    assert_eq!(a.scale, (1.0 / 32f64.sqrt()) as f32);
    assert_eq!(
        (a.query_head_norm.weight, a.query_head_norm.eps),
        (None, 1e-6)
    );
    assert_eq!(a.output_groups, 2);
    assert_eq!(p.operand(a.output_down.weight).shape, [40, 64]);
    assert_eq!(p.operand(a.output_up.weight).shape, [64, 40]);
    let main = &attention(&p, 0).rope;
    assert_eq!((main.theta, main.dims), (10_000.0, 16));
    assert_eq!(
        (main.place, main.pairing),
        (RopePlace::Last, RopePairing::Adjacent)
    );
    assert!(main.yarn.is_none());
    for layer in [3, 4] {
        let rope = &attention(&p, layer).rope;
        assert_eq!((rope.theta, rope.dims), (160_000.0, 16));
        let yarn = rope.yarn.as_ref().unwrap();
        assert_eq!((yarn.factor, yarn.original_context), (16.0, 4096));
        assert_eq!((yarn.beta_fast, yarn.beta_slow), (32.0, 1.0));
    }
    let compressor = a.compressor.as_ref().unwrap();
    assert_eq!(p.operand(compressor.position).shape, [4, 64]);
    assert_eq!(p.operand(compressor.norm.weight.unwrap()).shape, [32]);
    let wide = attention(&p, 4).compressor.as_ref().unwrap();
    assert_eq!(p.operand(wide.position).shape, [16, 32]);
    let index = a.indexer.as_ref().unwrap();
    let ix = &index.indexer;
    assert_eq!((ix.heads, ix.head_dim, ix.top_k, ix.block), (10, 32, 6, 1));
    assert_eq!(ix.scale, (1.0 / (32f64.sqrt() * 10f64.sqrt())) as f32);
    assert_eq!(ix.rope.as_ref(), Some(&a.rope));
    assert!(ix.key.is_none() && ix.query_norm.is_none() && ix.key_norm.is_none());
    let weights = ix.head_weights.as_ref().unwrap().weight;
    assert_eq!(p.operand(weights).role, Role::Router);
    let source = slice(&p, weights, 0).tensor;
    assert_eq!(source, "layers.3.attn.indexer.weights_proj.weight");
    let source = slice(&p, index.compressor.gate.weight, 0).tensor;
    assert_eq!(source, "layers.3.attn.indexer.compressor.wgate.weight");
}

#[test]
fn experts_say_what_the_paper_says() {
    let (config, table) = fixture("deepseek_v4-303");
    let p = program(&config, &table);
    let (hashed, learned) = (routed(&p, 0), routed(&p, 1));
    let hash_table = hashed.router.hash_table.unwrap();
    assert_eq!(slice(&p, hash_table, 0).tensor, "layers.0.ffn.gate.tid2eid");
    assert_eq!(p.operand(hash_table).shape, [193, 3]);
    assert_eq!(p.operand(hash_table).role, Role::Table);
    assert!(hashed.router.selection_bias.is_none());
    let bias = learned.router.selection_bias.unwrap();
    assert_eq!(slice(&p, bias, 0).tensor, "layers.1.ffn.gate.bias");
    assert!(learned.router.hash_table.is_none());
    for r in [hashed, learned] {
        assert_eq!((r.experts, r.top_k, r.unit.width), (8, 3, 64));
        assert_eq!(r.router.scoring, Scoring::SqrtSoftplus);
        assert_eq!(r.router.weights, WeightRule::Normalised { eps: 1e-20 });
        assert_eq!(r.router.scale, Some(1.5));
        let clamped = GatedActivation::ClampedSilu { limit: 1.5 };
        assert_eq!(r.unit.activation, clamped);
        assert_eq!((r.shared.len(), r.shared[0].activation), (1, clamped));
    }
    for (id, w) in [
        (learned.unit.gate, "w1"),
        (learned.unit.up, "w3"),
        (learned.unit.down, "w2"),
    ] {
        let part = slice(&p, id, 5);
        let scale = format!("layers.1.ffn.experts.5.{w}.scale");
        assert_eq!(part.tensor, format!("layers.1.ffn.experts.5.{w}.weight"));
        assert_eq!(part.coding, Some(Coding::Mxfp4 { scale }));
    }
    let shared = slice(&p, learned.shared[0].up, 0);
    let scale = "layers.1.ffn.shared_experts.w3.scale".to_owned();
    let block = [128, 128];
    assert_eq!(shared.coding, Some(Coding::BlockFp8 { scale, block }));
}

#[test]
fn a_matrix_is_coded_as_its_type_says() {
    let (config, table) = fixture("deepseek_v4-303");
    let published = program(&config, &table);
    // Experts in FP8, and scales in F32, as other exports have them.
    let mut fp8 = table.clone();
    for t in fp8
        .iter_mut()
        .filter(|t| t.name.contains("layers.2.ffn.experts."))
    {
        let shape = t.shape.clone();
        let matrix = if t.name.contains(".w2.") {
            [192, 64]
        } else {
            [64, 192]
        };
        *t = match t.name.ends_with(".weight") {
            true => tensor(t.name.clone(), "F8_E4M3", &matrix),
            false => tensor(
                t.name.clone(),
                "F32",
                &matrix.map(|n: usize| n.div_ceil(128)),
            ),
        };
        assert_ne!(t.shape, shape);
    }
    let p = program(&config, &fp8);
    let part = slice(&p, routed(&p, 2).unit.down, 0);
    assert!(
        matches!(part.coding, Some(Coding::BlockFp8 { .. })),
        "{part:?}"
    );
    assert_eq!(p.parameters(), published.parameters());
    // The type whose shapes count codes, and bytes without a sign.
    for (dtype, factor) in [("F4", 2), ("U8", 1)] {
        let mut table = table.clone();
        for t in table.iter_mut().filter(|t| t.dtype == "I8") {
            t.shape[1] *= factor;
            t.dtype = dtype.to_owned();
        }
        assert_eq!(program(&config, &table).operands, published.operands);
    }
    let unscaled = without(&config, "quantization_config");
    let text = one_defect(&unscaled, &table);
    assert!(text.contains("needs the size of its blocks"), "{text}");
}

/// The configuration of fixture 303 as transformers saves it.
fn saved(config: &Value) -> Value {
    let mut saved = config.clone();
    for key in ["compress_ratios", "num_hash_layers", "rope_scaling"] {
        saved = without(&saved, key);
    }
    let [window, sparse, heavy] = [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
    ];
    for (key, value) in [
        ("layer_types", json!([window, sparse, heavy, sparse, heavy])),
        ("compress_rates", json!({sparse: 4, heavy: 128})),
        (
            "mlp_layer_types",
            json!(["hash_moe", "moe", "moe", "moe", "moe"]),
        ),
        ("partial_rotary_factor", json!(0.2)),
        (
            "rope_parameters",
            json!({
                "main": {
                    "partial_rotary_factor": 0.2, "rope_theta": 10000.0, "rope_type": "default"
                },
                "compress": {
                    "attention_factor": 1.0, "beta_fast": 32, "beta_slow": 1, "factor": 16,
                    "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.2,
                    "rope_theta": 160000.0, "rope_type": "yarn", "type": "yarn"
                }
            }),
        ),
        ("quantization_config.expert_dtype", json!("fp4")),
        ("mlp_bias", json!(false)),
        ("router_jitter_noise", json!(0.0)),
        ("router_aux_loss_coef", json!(0.001)),
        ("dtype", json!("bfloat16")),
    ] {
        saved = with(&saved, key, value);
    }
    saved
}

#[test]
fn without_scaling_nothing_is_stretched() {
    let (config, table) = fixture("deepseek_v4-303");
    let compressed = |config: &Value| {
        let p = program(config, &table);
        let ropes: Vec<Rope> = (0..p.layers.len())
            .map(|layer| attention(&p, layer))
            .filter(|a| a.compressor.is_some())
            .map(|a| a.rope.clone())
            .collect();
        assert!(ropes.len() > 2);
        ropes
    };
    let (theta, dims) = (compressed(&config)[0].theta, compressed(&config)[0].dims);
    for absent in [
        without(&config, "rope_scaling"),
        with(&config, "rope_scaling", Value::Null),
    ] {
        for rope in compressed(&absent) {
            assert_eq!((rope.theta, rope.dims, rope.yarn), (theta, dims, None));
        }
    }
    assert!(compressed(&config).iter().all(|rope| rope.yarn.is_some()));
}

#[test]
fn both_spellings_mean_one_program() {
    let (config, table) = fixture("deepseek_v4-303");
    let published = program(&config, &table);
    let saved = saved(&config);
    assert_eq!(program(&saved, &table), published);
    // Each number may stand in one place only.
    for key in ["qk_rope_head_dim", "rope_theta", "compress_rope_theta"] {
        assert_eq!(program(&without(&saved, key), &table), published, "{key}");
    }
    for key in ["compress_ratios", "num_hash_layers", "rope_scaling"] {
        let both = with(&saved, key, config[key].clone());
        assert_eq!(program(&both, &table), published, "{key}");
    }
}

#[test]
fn spellings_that_disagree_are_one_defect() {
    let (config, table) = fixture("deepseek_v4-303");
    let saved = saved(&config);
    let types = "layer_types";
    let scaling = with(&config, "rope_scaling.factor", json!(8))["rope_scaling"].clone();
    for (path, value) in [
        ("compress_ratios", json!([0, 4, 128, 4, 4])),
        ("num_hash_layers", json!(2)),
        ("rope_scaling", scaling),
        ("rope_theta", json!(20000.0)),
        ("compress_rope_theta", json!(10000.0)),
        ("partial_rotary_factor", json!(0.3)),
        ("partial_rotary_factor", json!(0.21)),
        ("partial_rotary_factor", json!(1.2)),
        (types, json!(["sliding_attention"])),
        (types, json!(["full_attention", "x", "x", "x", "x"])),
        ("mlp_layer_types", json!(["moe"])),
        (
            "mlp_layer_types",
            json!(["moe", "dense", "moe", "moe", "moe"]),
        ),
        ("compress_rates.compressed_sparse_attention", json!(8)),
        ("compress_rates.heavily_compressed_attention", json!(0)),
        ("rope_parameters.main.rope_type", json!("yarn")),
        ("rope_parameters.compress.rope_type", json!("linear")),
        ("rope_parameters.compress.type", json!("default")),
        ("rope_parameters.rope_type", json!("yarn")),
        ("rope_parameters.compress.attention_factor", json!(1.2)),
        ("rope_parameters.compress.factor", json!(-1)),
        ("quantization_config.expert_dtype", json!("int4")),
        ("mlp_bias", json!(true)),
    ] {
        let found = defects(&with(&saved, path, value.clone()), &table);
        let text = found[0].to_string();
        assert!(
            text.starts_with(&format!("config.json: {path}: ")),
            "{path} {value}: {text}"
        );
        assert_eq!(found.len(), 1, "{found:#?}");
    }
    let needed = [
        "compress_rates",
        "rope_parameters.main",
        "rope_parameters.main.rope_theta",
    ];
    check_needed_keys(&saved, &table, &needed);
    let objects = ["compress_rates", "rope_parameters", "rope_parameters.main"];
    check_unknown_keys(&saved, &table, &objects);
}

#[test]
fn rates_beside_ratios_must_fit_them() {
    let (config, table) = fixture("deepseek_v4-303");
    let rates = |heavy: usize| {
        let (sparse, plain) = (
            "compressed_sparse_attention",
            "heavily_compressed_attention",
        );
        with(&config, "compress_rates", json!({sparse: 4, plain: heavy}))
    };
    assert_eq!(program(&rates(128), &table), program(&config, &table));
    let text = one_defect(&rates(64), &table);
    assert!(
        text.starts_with("config.json: compress_rates: contradicts"),
        "{text}"
    );
}

#[test]
fn every_damaged_tensor_is_exactly_its_defect() {
    let (config, table) = fixture("deepseek_v4-101");
    // The first layers of each kind are as good as all of them.
    let some = |name: &str| !name.starts_with("layers.") || name.starts_with("layers.2.");
    check_tensors(&config, &table, some);
    let (config, table) = fixture("deepseek_v4-303");
    let kinds = ["layers.0.", "layers.1.", "layers.2.attn.", "mtp."];
    let few = |name: &str| !name.contains(".ffn.experts.") || name.contains(".ffn.experts.3.");
    check_tensors(&config, &table, |name| {
        few(name) && kinds.iter().any(|kind| name.starts_with(kind))
    });
}

#[test]
fn every_extra_tensor_is_exactly_its_defect() {
    let (config, table) = fixture("deepseek_v4-303");
    let names = [
        "layers.5.attn_norm.weight",
        "layers.0.attn.compressor.ape",
        "layers.2.attn.indexer.wq_b.weight",
        "layers.0.ffn.gate.bias",
        "layers.1.ffn.gate.tid2eid",
        "layers.1.ffn.experts.8.w1.weight",
        "layers.0.attn.wq_a.weight_scale_inv",
        "layers.0.attn.wq_a.bias",
        "mtp.1.norm.weight",
        "mtp.0.attn.compressor.ape",
        "mtp.0.ffn.experts.8.w1.weight",
        "mtp.0.ffn.experts.07.w1.weight",
        "mtp.0.ffn.experts.0.w4.weight",
        "mtp.0.e_proj.bias",
        "mtp.0.norm",
        "model.norm.weight",
    ];
    check_extra_tensors(&config, &table, &names);
    let mut copied = table.clone();
    copied.push(tensor("mtp.0.head.weight", "BF16", &[193, 192]));
    let p = program(&config, &copied);
    assert!(
        p.unused[0]
            .tensors
            .contains(&"mtp.0.head.weight".to_owned())
    );
    // A draft head that the configuration does not announce is not one.
    let none = with(&config, "num_nextn_predict_layers", json!(0));
    let none = with(&none, "compress_ratios", json!([0, 4, 128, 4, 128]));
    let drafts = table.iter().filter(|t| t.name.starts_with("mtp.")).count();
    let unknown = Defect::UnclaimedPart {
        part: "mtp.0.".to_owned(),
        count: drafts,
    };
    assert_eq!(defects(&none, &table), [unknown]);
}

#[test]
fn values_that_cannot_be_used_are_named() {
    let (config, table) = fixture("deepseek_v4-303");
    let bad = [
        ("hidden_act", json!("gelu")),
        ("hidden_size", json!(0)),
        ("num_hidden_layers", json!(1u64 << 50)),
        ("num_hidden_layers", json!("5")),
        ("vocab_size", json!(-1)),
        ("max_position_embeddings", json!(0.5)),
        ("num_attention_heads", json!(1u64 << 20)),
        ("num_key_value_heads", json!(4)),
        ("head_dim", json!([80])),
        ("qk_rope_head_dim", json!(15)),
        ("qk_rope_head_dim", json!(34)),
        ("q_lora_rank", json!(null)),
        ("o_groups", json!(0)),
        ("o_groups", json!(3)),
        ("o_lora_rank", json!(true)),
        ("n_shared_experts", json!(2)),
        ("n_routed_experts", json!(5000)),
        ("num_experts_per_tok", json!(9)),
        ("moe_intermediate_size", json!({})),
        ("num_hash_layers", json!(6)),
        ("num_hash_layers", json!(-1)),
        ("routed_scaling_factor", json!(0)),
        ("scoring_func", json!("sigmoid")),
        ("norm_topk_prob", json!(false)),
        ("topk_method", json!("group_limited_greedy")),
        ("swiglu_limit", json!(0.0)),
        ("sliding_window", json!(0)),
        ("index_n_heads", json!(-8)),
        ("index_head_dim", json!("32")),
        ("index_topk", json!(0)),
        ("hc_mult", json!(65)),
        ("hc_sinkhorn_iters", json!(0)),
        ("hc_eps", json!(-1e-6)),
        ("rms_norm_eps", json!(0)),
        ("rope_theta", json!("10000")),
        ("compress_rope_theta", json!(0)),
        ("rope_scaling.type", json!("linear")),
        ("rope_scaling.factor", json!(0)),
        ("rope_scaling.factor", json!(0.5)),
        ("rope_scaling.beta_fast", json!(1)),
        ("rope_theta", json!(1)),
        ("hc_sinkhorn_iters", json!(1001)),
        ("rope_scaling.original_max_position_embeddings", json!(1.5)),
        ("compress_ratios", json!([0, 4, 128, 4])),
        ("compress_ratios", json!([0, 4, 128, 4, 128, 4])),
        ("compress_ratios", json!([0, 4, 128, 4, 1e9, 0])),
        ("compress_ratios", json!("0, 4")),
        ("num_nextn_predict_layers", json!(9)),
        ("expert_dtype", json!("int4")),
        ("attention_bias", json!(true)),
        ("tie_word_embeddings", json!(true)),
        ("quantization_config.quant_method", json!("awq")),
        ("quantization_config.fmt", json!("e5m2")),
        ("quantization_config.scale_fmt", json!("float")),
        ("quantization_config.activation_scheme", json!("static")),
        ("quantization_config.weight_block_size", json!([128])),
        ("quantization_config.weight_block_size", json!([128, 0])),
        ("quantization_config", json!([])),
    ];
    check_bad_values(&config, &table, &bad);
}

#[test]
fn keys_are_needed_or_known() {
    let (config, table) = fixture("deepseek_v4-303");
    let objects = ["", "rope_scaling", "quantization_config"];
    check_unknown_keys(&config, &table, &objects);
    let needed: Vec<&str> = "hidden_size num_hidden_layers vocab_size max_position_embeddings \
        num_attention_heads num_key_value_heads head_dim qk_rope_head_dim q_lora_rank o_groups \
        o_lora_rank moe_intermediate_size n_routed_experts num_experts_per_tok n_shared_experts \
        num_hash_layers routed_scaling_factor scoring_func norm_topk_prob swiglu_limit \
        sliding_window index_n_heads index_head_dim index_topk hc_mult hc_sinkhorn_iters hc_eps \
        rms_norm_eps rope_theta compress_rope_theta compress_ratios hidden_act rope_scaling.type \
        rope_scaling.factor rope_scaling.beta_fast quantization_config.quant_method"
        .split_whitespace()
        .collect();
    check_needed_keys(&config, &table, &needed);
}

#[test]
fn hostile_sizes_are_one_defect() {
    let (config, table) = fixture("deepseek_v4-303");
    let text = one_defect(&with(&config, "n_routed_experts", json!(4096)), &table);
    assert!(
        text.contains(&format!("the checkpoint has {}", table.len())),
        "{text}"
    );
    assert!(lower_with_changed_bytes(&config, &table) > 20);
}
