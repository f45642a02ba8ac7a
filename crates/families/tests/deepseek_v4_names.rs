//! DeepSeek V4 under the names that transformers gives its tensors, written out here.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
mod damage;

use common::{check_extra_tensors, fixture, one_defect, program, tensor};
use damage::{check_tensors, slice};
use lamella_program::block::{Ffn, Routed};
use lamella_program::operand::Coding;
use lamella_program::{Program, TensorInfo};
use serde_json::Value;

/// The names and shapes of fixture 101 as `DeepseekV4ForCausalLM` has them.
fn saved(config: &Value) -> Vec<TensorInfo> {
    let n = |key: &str| usize::try_from(config[key].as_u64().unwrap()).unwrap();
    let (d, v, hc) = (n("hidden_size"), n("vocab_size"), n("hc_mult"));
    let (head, heads) = (n("head_dim"), n("num_attention_heads"));
    let (rank, groups) = (n("q_lora_rank"), n("o_groups"));
    let outputs = groups * n("o_lora_rank");
    let (experts, width) = (n("n_routed_experts"), n("moe_intermediate_size"));
    let (index, queries) = (n("index_head_dim"), n("index_n_heads"));
    let mut table = vec![
        tensor("lm_head.weight", "F32", &[v, d]),
        tensor("model.embed_tokens.weight", "F32", &[v, d]),
        tensor("model.norm.weight", "F32", &[d]),
        tensor("model.hc_head.hc_fn", "F32", &[hc, hc * d]),
        tensor("model.hc_head.hc_base", "F32", &[hc]),
        tensor("model.hc_head.hc_scale", "F32", &[1]),
    ];
    for i in 0..n("num_hidden_layers") {
        let mut add = |end: &str, dtype: &str, shape: &[usize]| {
            table.push(tensor(format!("model.layers.{i}.{end}"), dtype, shape));
        };
        for site in ["attn_hc", "ffn_hc"] {
            add(&format!("{site}.fn"), "F32", &[(2 + hc) * hc, hc * d]);
            add(&format!("{site}.base"), "F32", &[(2 + hc) * hc]);
            add(&format!("{site}.scale"), "F32", &[3]);
        }
        add("input_layernorm.weight", "F32", &[d]);
        add("post_attention_layernorm.weight", "F32", &[d]);
        add("self_attn.q_a_proj.weight", "F32", &[rank, d]);
        add("self_attn.q_a_norm.weight", "F32", &[rank]);
        add("self_attn.q_b_proj.weight", "F32", &[heads * head, rank]);
        add("self_attn.kv_proj.weight", "F32", &[head, d]);
        add("self_attn.kv_norm.weight", "F32", &[head]);
        let group = heads * head / groups;
        add("self_attn.o_a_proj.weight", "F32", &[outputs, group]);
        add("self_attn.o_b_proj.weight", "F32", &[d, outputs]);
        add("self_attn.sinks", "F32", &[heads]);
        let ratio = usize::try_from(config["compress_ratios"][i].as_u64().unwrap()).unwrap();
        let mut compressor = |place: &str, channels: usize, width: usize| {
            let place = format!("self_attn.compressor{place}");
            add(&format!("{place}.kv_proj.weight"), "F32", &[channels, d]);
            add(&format!("{place}.gate_proj.weight"), "F32", &[channels, d]);
            add(&format!("{place}.position_bias"), "F32", &[ratio, channels]);
            add(&format!("{place}.kv_norm.weight"), "F32", &[width]);
        };
        match ratio {
            0 => {}
            4 => {
                compressor("", 2 * head, head);
                compressor(".indexer", 2 * index, index);
                let place = "self_attn.compressor.indexer";
                let shape = [queries * index, rank];
                add(&format!("{place}.q_b_proj.weight"), "F32", &shape);
                let name = format!("{place}.scorer.weights_proj.weight");
                add(&name, "F32", &[queries, d]);
            }
            _ => compressor("", head, head),
        }
        add("mlp.gate.weight", "F32", &[experts, d]);
        match i < n("num_hash_layers") {
            true => add("mlp.gate.tid2eid", "I64", &[v, n("num_experts_per_tok")]),
            false => add("mlp.gate.e_score_correction_bias", "F32", &[experts]),
        }
        add("mlp.experts.gate_up_proj", "F32", &[experts, 2 * width, d]);
        add("mlp.experts.down_proj", "F32", &[experts, d, width]);
        add("mlp.shared_experts.gate_proj.weight", "F32", &[width, d]);
        add("mlp.shared_experts.up_proj.weight", "F32", &[width, d]);
        add("mlp.shared_experts.down_proj.weight", "F32", &[d, width]);
    }
    table
}

fn routed(p: &Program, layer: usize) -> &Routed {
    match &p.layers[layer].ffn.body {
        Ffn::Routed(routed) => routed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_names_of_transformers_mean_the_same_program() {
    let (config, table) = fixture("deepseek_v4-101");
    let published = program(&config, &table);
    let table = saved(&config);
    let p = program(&config, &table);
    assert_eq!((&p.layers, &p.exit), (&published.layers, &published.exit));
    assert!(p.draft.is_none());
    let shapes = |p: &Program| -> Vec<_> {
        let main = p.operands.iter().filter(|o| !o.name.starts_with("draft."));
        main.map(|o| (o.name.clone(), o.shape.clone(), o.role))
            .collect()
    };
    assert_eq!(shapes(&p), shapes(&published));
    let up = slice(&p, routed(&p, 3).unit.up, 2);
    assert_eq!(up.tensor, "model.layers.3.mlp.experts.gate_up_proj");
    assert_eq!([up.start, up.rows], [160, 32]);
}

#[test]
fn the_place_of_the_weights_of_heads_has_changed_once() {
    let (config, _) = fixture("deepseek_v4-101");
    let mut table = saved(&config);
    for t in &mut table {
        t.name = t.name.replace(".scorer.", ".");
    }
    program(&config, &table);
    // Not within a checkpoint.
    let moved = table.iter_mut().find(|t| t.name.contains("weights_proj"));
    let moved = moved.unwrap();
    moved.name = moved.name.replace("weights_proj", "scorer.weights_proj");
    assert_eq!(common::defects(&config, &table).len(), 2);
}

#[test]
fn damage_is_told_in_the_names_of_the_file() {
    let (config, _) = fixture("deepseek_v4-101");
    let table = saved(&config);
    check_tensors(&config, &table, |name| {
        !name.contains("layers.") || name.contains("layers.1.") || name.contains("layers.2.")
    });
    let names = [
        "layers.extra",
        "model.layers.0.attn_norm.weight",
        "model.layers.0.self_attn.compressor.kv_proj.weight",
        "model.layers.7.input_layernorm.weight",
    ];
    check_extra_tensors(&config, &table, &names[1..]);
    // One of the vendor's names makes it the vendor's spelling, of which all is missing.
    let mut both = table.clone();
    both.push(tensor(names[0], "F32", &[1]));
    assert!(common::defects(&config, &both).len() > 100);
}

#[test]
fn codes_have_the_scales_of_transformers() {
    let (config, table) = fixture("deepseek_v4-303");
    // Stacks in FP4, and the rest in FP8, of one layer; the others in BF16.
    let mut coded = saved(&config);
    let fp8 = ["q_a_proj", "q_b_proj", "kv_proj", "o_a_proj", "o_b_proj"];
    let mut scales = Vec::new();
    for t in coded.iter_mut().filter(|t| t.name.contains("layers.0.")) {
        let stack = t.name.contains(".experts.");
        let maps = fp8.iter().any(|map| t.name.contains(map));
        let shape = t.shape.clone();
        let name = format!("{}_scale_inv", t.name);
        if stack {
            *t = tensor(t.name.clone(), "I8", &[shape[0], shape[1], shape[2] / 2]);
            scales.push(tensor(
                name,
                "F8_E8M0",
                &[shape[0], shape[1], shape[2] / 32],
            ));
        } else if maps {
            *t = tensor(t.name.clone(), "F8_E4M3", &shape);
            let blocks = [shape[0].div_ceil(128), shape[1].div_ceil(128)];
            scales.push(tensor(name, "F32", &blocks));
        }
    }
    coded.extend(scales);
    let p = program(&config, &coded);
    let stack = "model.layers.0.mlp.experts.down_proj";
    let scale = format!("{stack}_scale_inv");
    let part = slice(&p, routed(&p, 0).unit.down, 5);
    assert_eq!(part.tensor, stack);
    assert_eq!(part.coding, Some(Coding::Mxfp4 { scale }));
    let published = program(&config, &table);
    assert_eq!(p.parameters(), published.parameters());
    let mut torn = coded.clone();
    torn.retain(|t| t.name != format!("{stack}_scale_inv"));
    let text = one_defect(&config, &torn);
    assert!(text.contains(&format!("{stack}_scale_inv")), "{text}");
}
