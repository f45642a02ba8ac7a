//! Lowering of Kimi K3: the fixtures, the released shape, and every kind of damage.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
mod damage;

use common::{
    check_bad_values, check_extra_tensors, fixture, one_defect, program, tensor, with, without,
};
use damage::{
    bytes, check_needed_keys, check_tensors, check_unknown_keys, lower_with_changed_bytes, slice,
};
use lamella_program::block::{
    Activation, DeltaNet, Ffn, GatedActivation, LatentAttention, Mixer, Residual, Routed, Scoring,
    WeightRule,
};
use lamella_program::operand::Coding;
use lamella_program::program::StreamReduction;
use lamella_program::{Program, Role, TensorInfo, state};
use serde_json::{Value, json};

/// The configuration of the released model.
fn released() -> Value {
    let full: Vec<usize> = (1..=23).map(|n| 4 * n).chain([93]).collect();
    let delta: Vec<usize> = (1..=93).filter(|n| !full.contains(n)).collect();
    let (mut config, _) = fixture("kimi_k3-101");
    for (key, value) in [
        ("hidden_size", json!(7168)),
        ("num_hidden_layers", json!(93)),
        ("vocab_size", json!(163_840)),
        ("intermediate_size", json!(33_792)),
        ("attn_res_block_size", json!(12)),
        ("activation_situ_linear_beta", json!(25.0)),
        ("num_attention_heads", json!(96)),
        ("num_key_value_heads", json!(96)),
        ("q_lora_rank", json!(1536)),
        ("kv_lora_rank", json!(512)),
        ("qk_nope_head_dim", json!(128)),
        ("qk_rope_head_dim", json!(64)),
        ("v_head_dim", json!(128)),
        ("num_experts", json!(896)),
        ("num_experts_per_token", json!(16)),
        ("moe_intermediate_size", json!(3072)),
        ("routed_expert_hidden_size", json!(3584)),
        ("linear_attn_config.kda_layers", json!(delta)),
        ("linear_attn_config.full_attn_layers", json!(full)),
        ("linear_attn_config.num_heads", json!(96)),
        ("linear_attn_config.head_dim", json!(128)),
    ] {
        config = with(&config, &format!("text_config.{key}"), value);
    }
    config
}

/// The tensors of the released model.
fn released_tensors() -> Vec<TensorInfo> {
    let mut table = vec![
        tensor("vision_tower.blocks.0.norm0.weight", "BF16", &[1024]),
        tensor("mm_projector.proj.0.weight", "BF16", &[7168, 4096]),
    ];
    let mut add = |name: &str, dtype: &str, shape: &[usize]| {
        table.push(tensor(format!("language_model.{name}"), dtype, shape));
    };
    let h = 7168;
    add("model.embed_tokens.weight", "BF16", &[163_840, h]);
    add("lm_head.weight", "BF16", &[163_840, h]);
    add("model.norm.weight", "BF16", &[h]);
    add("model.output_attn_res_norm.weight", "BF16", &[h]);
    add("model.output_attn_res_proj.weight", "BF16", &[1, h]);
    for i in 0..93 {
        let mut add = |name: &str, dtype: &str, shape: &[usize]| {
            add(&format!("model.layers.{i}.{name}"), dtype, shape);
        };
        for norm in [
            "input_layernorm",
            "post_attention_layernorm",
            "self_attention_res_norm",
            "mlp_res_norm",
        ] {
            add(&format!("{norm}.weight"), "BF16", &[h]);
        }
        add("self_attention_res_proj.weight", "BF16", &[1, h]);
        add("mlp_res_proj.weight", "BF16", &[1, h]);
        match i == 92 || i % 4 == 3 {
            true => latent_tensors(&mut add),
            false => delta_tensors(&mut add),
        }
        match i {
            0 => {
                add("mlp.gate_proj.weight", "BF16", &[33_792, h]);
                add("mlp.up_proj.weight", "BF16", &[33_792, h]);
                add("mlp.down_proj.weight", "BF16", &[h, 33_792]);
            }
            _ => expert_tensors(&mut add),
        }
    }
    table
}

fn delta_tensors(add: &mut impl FnMut(&str, &str, &[usize])) {
    let (h, p) = (7168, 12_288);
    for x in ["q", "k", "v"] {
        add(&format!("self_attn.{x}_proj.weight"), "BF16", &[p, h]);
        add(&format!("self_attn.{x}_conv1d.weight"), "F32", &[p, 1, 4]);
    }
    add("self_attn.g_proj.weight", "BF16", &[p, h]);
    add("self_attn.f_a_proj.weight", "BF16", &[128, h]);
    add("self_attn.f_b_proj.weight", "BF16", &[p, 128]);
    add("self_attn.b_proj.weight", "BF16", &[96, h]);
    add("self_attn.A_log", "F32", &[128]);
    add("self_attn.dt_bias", "F32", &[p]);
    add("self_attn.o_norm.weight", "F32", &[128]);
    add("self_attn.o_proj.weight", "BF16", &[h, p]);
}

fn latent_tensors(add: &mut impl FnMut(&str, &str, &[usize])) {
    let (h, p) = (7168, 12_288);
    add("self_attn.q_a_proj.weight", "BF16", &[1536, h]);
    add("self_attn.q_a_layernorm.weight", "BF16", &[1536]);
    add("self_attn.q_b_proj.weight", "BF16", &[18_432, 1536]);
    add("self_attn.kv_a_proj_with_mqa.weight", "BF16", &[576, h]);
    add("self_attn.kv_a_layernorm.weight", "BF16", &[512]);
    add("self_attn.kv_b_proj.weight", "BF16", &[24_576, 512]);
    add("self_attn.g_proj.weight", "BF16", &[p, h]);
    add("self_attn.o_proj.weight", "BF16", &[h, p]);
}

fn expert_tensors(add: &mut impl FnMut(&str, &str, &[usize])) {
    let h = 7168;
    let mut add = |name: &str, dtype: &str, shape: &[usize]| {
        add(&format!("block_sparse_moe.{name}"), dtype, shape);
    };
    add("gate.weight", "BF16", &[896, h]);
    add("gate.e_score_correction_bias", "F32", &[896]);
    add("routed_expert_down_proj.weight", "BF16", &[3584, h]);
    add("routed_expert_norm.weight", "BF16", &[3584]);
    add("routed_expert_up_proj.weight", "BF16", &[h, 3584]);
    add("shared_experts.gate_proj.weight", "BF16", &[6144, h]);
    add("shared_experts.up_proj.weight", "BF16", &[6144, h]);
    add("shared_experts.down_proj.weight", "BF16", &[h, 6144]);
    for e in 0..896 {
        for (w, rows, cols) in [("w1", 3072, 3584), ("w3", 3072, 3584), ("w2", 3584, 3072)] {
            let name = format!("experts.{e}.{w}");
            add(&format!("{name}.weight_packed"), "U8", &[rows, cols / 2]);
            add(&format!("{name}.weight_scale"), "U8", &[rows, cols / 32]);
        }
    }
}

fn delta(p: &Program, layer: usize) -> &DeltaNet {
    match &p.layers[layer].mixer.body {
        Mixer::Kda(delta) => delta,
        other => panic!("{other:?}"),
    }
}

fn latent(p: &Program, layer: usize) -> &LatentAttention {
    match &p.layers[layer].mixer.body {
        Mixer::LatentAttention(latent) => latent,
        other => panic!("{other:?}"),
    }
}

fn routed(p: &Program, layer: usize) -> &Routed {
    match &p.layers[layer].ffn.body {
        Ffn::Routed(routed) => routed,
        other => panic!("{other:?}"),
    }
}

fn seals(p: &Program) -> Vec<usize> {
    let seals = |index: &usize| match p.layers[*index].residual {
        Residual::AttentionResidual { seals, .. } => seals,
        _ => false,
    };
    (0..p.layers.len()).filter(seals).collect()
}

#[test]
fn the_released_model_has_its_published_size() {
    let table = released_tensors();
    let p = program(&released(), &table);
    let text = |t: &&TensorInfo| t.name.starts_with("language_model.");
    let is_expert = |t: &&TensorInfo| t.name.contains(".experts.");
    let size = |tensors: Vec<&TensorInfo>| tensors.into_iter().map(bytes).sum::<u64>();
    let (experts, others): (Vec<_>, Vec<_>) = table.iter().filter(text).partition(is_expert);
    assert_eq!(size(others), 113_509_540_864);
    assert_eq!(size(experts), 82_432 * 17_547_264);

    let stacks = p.operands.iter().filter(|o| o.role == Role::Expert);
    let (mut count, mut parameters) = (0, 0);
    for operand in stacks {
        count += operand.items();
        parameters += operand.elements() as u64;
    }
    assert_eq!(count, 3 * 82_432);
    assert_eq!(parameters, 82_432 * 33_030_144);
    assert_eq!(p.parameters() / 1_000_000_000, 2779);
    let embedding = p.operand(p.entry.embedding).elements() as u64;
    let active = p.parameters() - parameters - embedding + 92 * 16 * 33_030_144;
    assert_eq!(active / 100_000_000, 1041);

    // 13,824 values a token; recurrent matrices and convolution rings beside them.
    assert_eq!(state::bytes_per_token(&p), 24 * 576 * 4);
    assert_eq!(state::fixed_bytes(&p), 434_110_464 + 30_523_392);
    assert_eq!(p.boundary.width, 9 * 7168);
    assert_eq!(seals(&p), [0, 12, 24, 36, 48, 60, 72, 84]);
    let full: Vec<usize> = (0..93)
        .filter(|&i| matches!(p.layers[i].mixer.body, Mixer::LatentAttention(_)))
        .collect();
    assert_eq!(full.len(), 24);
    assert_eq!((full[0], full[22], full[23]), (3, 91, 92));
    let parts: Vec<_> = p.unused.iter().map(|u| u.name.as_str()).collect();
    assert_eq!(parts, ["vision tower", "vision projector"]);
}

#[test]
fn the_stack_says_what_the_paper_says() {
    let (config, table) = fixture("kimi_k3-101");
    let p = program(&config, &table);
    assert_eq!(p.family, "kimi_k3");
    assert_eq!(seals(&p), [0, 4, 8]);
    assert_eq!(p.boundary.width, 4 * 96);
    assert!(!p.boundary.needs_token_ids);
    let kinds: Vec<bool> = p
        .layers
        .iter()
        .map(|l| matches!(l.mixer.body, Mixer::Kda(_)))
        .collect();
    let pattern = [true, true, true, false, true, true, true, false, false];
    assert_eq!(kinds, pattern);
    let Some(StreamReduction::AttentionResidual(read)) = &p.exit.reduction else {
        panic!("{:?}", p.exit)
    };
    let source = slice(&p, read.projection, 0).tensor;
    assert_eq!(source, "language_model.model.output_attn_res_proj.weight");
    let Ffn::Dense(unit) = &p.layers[0].ffn.body else {
        panic!("{:?}", p.layers[0].ffn)
    };
    let (beta, linear_beta) = (4.0, 3.0);
    assert_eq!(unit.width, 160);
    let situ = GatedActivation::Situ { beta, linear_beta };
    assert_eq!(unit.activation, situ);
    assert_eq!(routed(&p, 1).unit.activation, situ);
    assert_eq!(routed(&p, 1).shared[0].activation, situ);
}

#[test]
fn delta_attention_says_what_the_paper_says() {
    let (config, table) = fixture("kimi_k3-101");
    let p = program(&config, &table);
    let d = delta(&p, 4);
    assert_eq!((d.key_heads, d.value_heads), (3, 3));
    assert_eq!((d.key_dim, d.value_dim), (16, 16));
    assert_eq!((d.decay_floor, d.decay.len()), (Some(-5.0), 2));
    assert_eq!(d.gate_activation, Activation::Sigmoid);
    assert_eq!(d.norm.eps, 1e-5);
    for (convolution, source) in d.convolutions.iter().zip(["q", "k", "v"]) {
        assert_eq!((convolution.taps, convolution.dilation), (4, 1));
        assert!(!convolution.residual);
        assert_eq!(convolution.activation, Some(Activation::Silu));
        let source = format!("language_model.model.layers.4.self_attn.{source}_conv1d.weight");
        assert_eq!(slice(&p, convolution.weight, 0).tensor, source);
    }
    for (id, name, shape, source) in [
        (d.decay_log, "decay_log", vec![16], "A_log"),
        (d.decay_bias, "decay_bias", vec![48], "dt_bias"),
        (
            d.decay[0].weight,
            "decay_down",
            vec![16, 96],
            "f_a_proj.weight",
        ),
        (
            d.decay[1].weight,
            "decay_up",
            vec![48, 16],
            "f_b_proj.weight",
        ),
        (d.beta.weight, "beta", vec![3, 96], "b_proj.weight"),
        (d.gate.weight, "gate", vec![48, 96], "g_proj.weight"),
        (d.output.weight, "output", vec![96, 48], "o_proj.weight"),
    ] {
        let operand = p.operand(id);
        assert_eq!(operand.name, format!("layers.4.delta.{name}"));
        assert_eq!(operand.shape, shape);
        let source = format!("language_model.model.layers.4.self_attn.{source}");
        assert_eq!(slice(&p, id, 0).tensor, source);
    }
}

#[test]
fn decays_may_come_without_padding() {
    let (config, mut table) = fixture("kimi_k3-101");
    let padded = program(&config, &table);
    for t in table.iter_mut().filter(|t| t.name.ends_with("A_log")) {
        t.shape = vec![3];
    }
    let p = program(&config, &table);
    assert_eq!(p.operand(delta(&p, 0).decay_log).shape, [3]);
    assert_eq!(p.layers, padded.layers);
}

#[test]
fn latent_attention_says_what_the_paper_says() {
    let (config, table) = fixture("kimi_k3-101");
    let p = program(&config, &table);
    let a = latent(&p, 8);
    assert_eq!((a.heads, a.latent_dim), (4, 24));
    assert_eq!((a.nope_dim, a.rope_dim, a.value_dim), (16, 8, 20));
    assert_eq!(a.scale, (1.0 / 24f64.sqrt()) as f32);
    assert!(a.rope.is_none() && a.selection.is_none());
    assert_eq!((a.query_norm.eps, a.latent_norm.eps), (1e-6, 1e-6));
    let gate = a.output_gate.as_ref().unwrap();
    assert_eq!(p.operand(gate.weight).shape, [80, 96]);
    assert_eq!(p.operand(a.latent_up.weight).shape, [144, 24]);
    assert_eq!(p.layers[8].mixer.pre_norm.as_ref().unwrap().eps, 1e-5);
}

#[test]
fn experts_say_what_the_paper_says() {
    let (config, table) = fixture("kimi_k3-101");
    let p = program(&config, &table);
    let r = routed(&p, 3);
    assert_eq!((r.experts, r.top_k, r.unit.width), (12, 4, 32));
    assert_eq!(r.router.scoring, Scoring::Sigmoid);
    assert_eq!(r.router.weights, WeightRule::Normalised { eps: 1e-20 });
    assert_eq!(r.router.scale, None);
    assert!(r.router.selection_bias.is_some() && r.router.groups.is_none());
    assert_eq!((r.shared.len(), r.shared[0].width), (1, 64));
    let l = r.latent.as_ref().unwrap();
    assert_eq!(l.norm.as_ref().unwrap().eps, 1e-5);
    assert_eq!(p.operand(l.down.weight).shape, [64, 96]);
    assert_eq!(p.operand(l.up.weight).shape, [96, 64]);
    for (id, matrix, shape) in [
        (r.unit.gate, "w1", [12, 32, 64]),
        (r.unit.up, "w3", [12, 32, 64]),
        (r.unit.down, "w2", [12, 64, 32]),
    ] {
        let base = format!("language_model.model.layers.3.block_sparse_moe.experts.7.{matrix}");
        let part = slice(&p, id, 7);
        assert_eq!(p.operand(id).shape, shape);
        assert_eq!(part.tensor, format!("{base}.weight_packed"));
        assert_eq!(part.tensor_shape, [shape[1], shape[2] / 2]);
        let scale = format!("{base}.weight_scale");
        assert_eq!(part.coding, Some(Coding::Mxfp4 { scale }));
    }
}

#[test]
fn a_language_model_alone_has_no_prefix() {
    let (config, table) = fixture("kimi_k3-bf16-404");
    let p = program(&config, &table);
    assert_eq!(p.family, "kimi_k3");
    assert!(p.unused.is_empty());
    let r = routed(&p, 1);
    assert_eq!(r.router.scale, Some(1.25));
    assert!(r.latent.as_ref().unwrap().norm.is_none());
    let part = slice(&p, r.unit.down, 2);
    let source = "model.layers.1.block_sparse_moe.experts.2.w2.weight";
    assert_eq!((part.tensor.as_str(), part.coding), (source, None));
    check_tensors(&config, &table, |_| true);
}

#[test]
fn every_damaged_tensor_is_exactly_its_defect() {
    let (config, table) = fixture("kimi_k3-101");
    // Two layers of experts are as good as eight.
    let used = |name: &str| {
        name.starts_with("language_model.")
            && (!name.contains(".experts.") || name.contains("layers.1."))
    };
    check_tensors(&config, &table, used);
}

#[test]
fn every_extra_tensor_is_exactly_its_defect() {
    let (config, table) = fixture("kimi_k3-101");
    check_extra_tensors(
        &config,
        &table,
        &[
            "language_model.model.layers.9.input_layernorm.weight",
            "language_model.model.layers.0.self_attn.q_proj.bias",
            "language_model.model.layers.3.self_attn.A_log",
            "language_model.model.layers.1.block_sparse_moe.experts.12.w1.weight_packed",
            "language_model.model.layers.1.block_sparse_moe.experts.3.w1.weight",
            "language_model.vision_tower.patch_embed.proj.weight",
            "model.norm.weight",
            "vision_tower",
            "vision_towers.norm.weight",
            "mm_projectors.proj.0.weight",
            "",
        ],
    );
    let (config, table) = fixture("kimi_k3-bf16-404");
    let names = ["vision_tower.norm.weight", "language_model.lm_head.weight"];
    check_extra_tensors(&config, &table, &names);
}

#[test]
fn values_that_cannot_be_used_are_named() {
    let (config, table) = fixture("kimi_k3-101");
    let text = |key: &str, value: Value| (format!("text_config.{key}"), value);
    let linear = |key: &str, value: Value| text(&format!("linear_attn_config.{key}"), value);
    let quantised = |key: &str, value: Value| text(&format!("quantization_config.{key}"), value);
    let weights = "config_groups.group_0.weights";
    let bad = [
        ("tie_word_embeddings".to_owned(), json!(true)),
        ("text_config".to_owned(), json!([])),
        text("model_type", json!("kimi_k2")),
        text("hidden_act", json!("silu")),
        text("hidden_size", json!(0)),
        text("num_hidden_layers", json!(1u64 << 40)),
        text("num_hidden_layers", json!(-9)),
        text("vocab_size", json!(u64::MAX)),
        text("max_position_embeddings", json!("1048576")),
        text("attn_res_block_size", json!(0)),
        text("first_k_dense_replace", json!(10)),
        text("first_k_dense_replace", json!(1.5)),
        text("intermediate_size", json!(null)),
        text("rms_norm_eps", json!(0.0)),
        text("activation_situ_beta", json!(-4.0)),
        text("activation_situ_linear_beta", json!("25")),
        text("num_attention_heads", json!(0)),
        text("num_key_value_heads", json!(2)),
        text("q_lora_rank", json!(null)),
        text("qk_rope_head_dim", json!(-8)),
        text("mla_use_nope", json!(false)),
        text("mla_use_output_gate", json!("true")),
        text("moe_layer_freq", json!(2)),
        text("moe_renormalize", json!(1)),
        text("moe_router_activation_func", json!("softmax")),
        text("num_expert_group", json!(4)),
        text("topk_group", json!(2)),
        text("topk_method", json!("greedy")),
        text("num_nextn_predict_layers", json!(1)),
        text("tie_word_embeddings", json!(true)),
        text("num_experts", json!(5000)),
        text("num_experts_per_token", json!(13)),
        text("num_shared_experts", json!(65)),
        text("routed_scaling_factor", json!(1e60)),
        text("latent_moe_use_norm", json!(0)),
        linear("num_heads", json!(0)),
        linear("head_dim", json!([16])),
        linear("short_conv_kernel_size", json!(65)),
        linear("gate_lower_bound", json!(5.0)),
        linear("use_full_rank_gate", json!(false)),
        linear("kda_layers", json!([1, 2, 3, 5, 6, 7, 0])),
        linear("kda_layers", json!([1, 2, 3, 5, 6, 7, 7])),
        linear("kda_layers", json!([1, 2, 3, 5, 6, 7, 10])),
        linear("kda_layers", json!(6)),
        linear("full_attn_layers", json!([4, 8, 9, 1])),
        linear("full_attn_layers", json!([4, 8])),
        text("add_cross_attention", json!(true)),
        text("pruned_heads", json!({"1": [0]})),
        quantised("quant_method", json!("gptq")),
        quantised("format", json!("nvfp4-pack-quantized")),
        quantised("kv_cache_scheme", json!({"num_bits": 8})),
        quantised(&format!("{weights}.num_bits"), json!(8)),
        quantised(&format!("{weights}.group_size"), json!(16)),
        quantised(&format!("{weights}.symmetric"), json!(false)),
        quantised(
            "config_groups.group_0.input_activations",
            json!({"num_bits": 8}),
        ),
    ];
    let bad: Vec<(&str, Value)> = bad.iter().map(|(p, v)| (p.as_str(), v.clone())).collect();
    check_bad_values(&config, &table, &bad);
}

#[test]
fn keys_are_needed_known_or_defects() {
    let (config, table) = fixture("kimi_k3-101");
    let objects = [
        "",
        "text_config",
        "text_config.linear_attn_config",
        "text_config.quantization_config",
        "text_config.quantization_config.config_groups",
        "text_config.quantization_config.config_groups.group_0",
        "text_config.quantization_config.config_groups.group_0.weights",
    ];
    check_unknown_keys(&config, &table, &objects);
    let needed: Vec<String> = "hidden_size num_hidden_layers vocab_size max_position_embeddings \
        attn_res_block_size first_k_dense_replace intermediate_size rms_norm_eps hidden_act \
        activation_situ_beta activation_situ_linear_beta num_attention_heads q_lora_rank \
        kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim mla_use_nope \
        mla_use_output_gate moe_layer_freq moe_router_activation_func moe_renormalize \
        num_experts num_experts_per_token moe_intermediate_size routed_expert_hidden_size \
        latent_moe_use_norm routed_scaling_factor model_type linear_attn_config \
        linear_attn_config.kda_layers linear_attn_config.full_attn_layers \
        linear_attn_config.num_heads linear_attn_config.head_dim \
        linear_attn_config.short_conv_kernel_size linear_attn_config.gate_lower_bound \
        linear_attn_config.use_full_rank_gate"
        .split_whitespace()
        .map(|key| format!("text_config.{key}"))
        .chain(["text_config".to_owned()])
        .collect();
    let needed: Vec<&str> = needed.iter().map(String::as_str).collect();
    check_needed_keys(&config, &table, &needed);
    // What older exporters write beside it changes nothing.
    let plain = program(&config, &table);
    for (key, value) in [
        ("temperature", json!(1.0)),
        ("is_decoder", json!(false)),
        ("is_encoder_decoder", json!(false)),
        ("pruned_heads", json!({})),
        ("auto_map", json!({"AutoConfig": "x"})),
        ("head_dim", json!(24)),
        ("id2label", json!({})),
    ] {
        let more = with(&config, &format!("text_config.{key}"), value);
        assert_eq!(program(&more, &table), plain);
    }
    let bare = without(&config, "text_config.quantization_config");
    let text = one_defect(&bare, &table);
    let start = "config.json: text_config.quantization_config: is missing, and ";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn nothing_rotates() {
    let (config, table) = fixture("kimi_k3-101");
    let cases = [
        ("text_config.rope_scaling.type", json!("yarn")),
        ("text_config.rope_scaling", json!({"factor": 4.0})),
        (
            "text_config.rope_parameters",
            json!({"rope_type": "default"}),
        ),
        ("text_config.rope_theta", json!(10000.0)),
    ];
    check_bad_values(&config, &table, &cases);
}

#[test]
fn options_reach_the_program() {
    let (config, table) = fixture("kimi_k3-bf16-404");
    let raw = program(&with(&config, "moe_renormalize", json!(false)), &table);
    assert_eq!(routed(&raw, 1).router.weights, WeightRule::Raw);
    let one = program(&with(&config, "num_experts_per_token", json!(1)), &table);
    assert_eq!(routed(&one, 1).router.weights, WeightRule::Raw);
    let open = with(&config, "mla_use_output_gate", json!(false));
    let text = one_defect(&open, &table);
    let start = "config.json: mla_use_output_gate: is false, but the checkpoint fits true";
    assert!(text.starts_with(start), "{text}");
    let gate = |t: &&TensorInfo| {
        let layer = t.name.split('.').nth(2).unwrap_or_default();
        ["3", "5"].contains(&layer) && t.name.ends_with(".self_attn.g_proj.weight")
    };
    assert_eq!(table.iter().filter(gate).count(), 2);
    let without_gates: Vec<TensorInfo> = table.iter().filter(|t| !gate(t)).cloned().collect();
    assert!(
        latent(&program(&open, &without_gates), 3)
            .output_gate
            .is_none()
    );
    let alone = with(&config, "num_shared_experts", json!(0));
    let no_shared: Vec<TensorInfo> = table
        .into_iter()
        .filter(|t| !t.name.contains("shared_experts"))
        .collect();
    assert!(routed(&program(&alone, &no_shared), 1).shared.is_empty());
}

#[test]
fn hostile_sizes_are_one_defect() {
    let (config, table) = fixture("kimi_k3-101");
    for experts in [4096, 2000] {
        let config = with(&config, "text_config.num_experts", json!(experts));
        let text = one_defect(&config, &table);
        assert!(
            text.contains(&format!("the checkpoint has {}", table.len())),
            "{text}"
        );
    }
    assert!(lower_with_changed_bytes(&config, &table) > 100);
}
