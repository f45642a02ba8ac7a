//! Inkling as compressed-tensors ships it: names, codes, and a configuration that must agree with
//! both.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
mod damage;

use common::{check_bad_values, check_extra_tensors, defects, fixture, one_defect, program, with};
use common::{tensor, without};
use damage::{
    check_needed_keys, check_tensors, check_unknown_keys, lower_with_changed_bytes, slice,
};
use lamella_program::block::{Ffn, Mixer};
use lamella_program::operand::Coding;
use lamella_program::{Program, TensorInfo};
use serde_json::{Value, json};

const KEY: &str = "quantization_config";
const W13: &str = "model.llm.layers.2.mlp.experts.w13_weight";

/// The fixture in FP4 under the names of compressed-tensors, with what it says of itself.
fn compressed() -> (Value, Vec<TensorInfo>) {
    let (mut config, plain) = fixture("inkling-nvfp4-303");
    let mut table = Vec::new();
    for t in plain {
        let name = &t.name;
        if let Some(map) = name.strip_suffix(".scale2") {
            let parts = if map.ends_with("w13_weight") { 2 } else { 1 };
            let items = t.shape[0];
            table.push(tensor(
                format!("{map}.weight_global_scale"),
                "F32",
                &[items, parts],
            ));
            table.push(tensor(
                format!("{map}.input_global_scale"),
                "F32",
                &[items, 1],
            ));
        } else if let Some(map) = name.strip_suffix(".scale") {
            table.push(tensor(format!("{map}.weight_scale"), "F8_E4M3", &t.shape));
        } else if t.dtype == "U8" {
            table.push(tensor(format!("{name}.weight_packed"), "U8", &t.shape));
        } else if !name.ends_with(".input_amax") && !name.ends_with(".original_shape") {
            table.push(t);
        }
    }
    config[KEY] = json!({
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {
            "format": null, "targets": ["Linear"], "weights": four_bits(),
            "input_activations": {"num_bits": 4, "dynamic": "local"}, "output_activations": null
        }},
        "ignore": [
            "model.llm.layers.1.mlp.experts", "re:.*attn", "re:.*mlp.w[0-9]*_", "lm_head"
        ],
        "kv_cache_scheme": null, "quantization_status": "compressed", "version": "0.16.0",
        "sparsity_config": {}, "transform_config": {}, "global_compression_ratio": null
    });
    (config, table)
}

fn four_bits() -> Value {
    json!({
        "num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group",
        "symmetric": true, "dynamic": false, "scale_dtype": "torch.float8_e4m3fn",
        "actorder": null, "block_structure": null, "observer": "minmax", "observer_kwargs": {},
        "zp_dtype": null
    })
}

fn coding(p: &Program, layer: usize, up: bool) -> Option<Coding> {
    let Ffn::Routed(routed) = &p.layers[layer].ffn.body else {
        panic!("{:?}", p.layers[layer].ffn.body)
    };
    let id = if up { routed.unit.up } else { routed.unit.gate };
    slice(p, id, 3).coding
}

#[test]
fn codes_under_other_names_are_the_same_codes() {
    let (config, table) = compressed();
    let p = program(&config, &table);
    assert_eq!(coding(&p, 1, false), None);
    for up in [false, true] {
        let expected = Coding::DividedNvfp4 {
            scale: format!("{W13}.weight_scale"),
            divisor: format!("{W13}.weight_global_scale"),
            part: [usize::from(up), 2],
        };
        assert_eq!(coding(&p, 2, up), Some(expected));
    }
    let (other, modelopt) = fixture("inkling-nvfp4-303");
    let other = program(&other, &modelopt);
    assert_eq!(p.parameters(), other.parameters());
    // Every scale of inputs is known and unused.
    let beside = p.unused.iter().find(|u| u.name.starts_with("calibration"));
    assert_eq!(beside.unwrap().tensors.len(), 2 * 4);
    let names = ["model.llm.layers.0.attn.wq_du.input_global_scale"];
    check_extra_tensors(&config, &table, &names);
}

#[test]
fn divisors_may_be_shared() {
    let (config, table) = compressed();
    for shape in [&[16, 1][..], &[16], &[1], &[]] {
        let mut table = table.clone();
        for t in table
            .iter_mut()
            .filter(|t| t.name.ends_with(".weight_global_scale"))
        {
            t.shape = shape.to_vec();
        }
        program(&config, &table);
    }
}

#[test]
fn damaged_tensors_are_named() {
    let (config, table) = compressed();
    check_tensors(&config, &table, |name| {
        name.contains("layers.2.mlp.experts") && { !name.ends_with(".input_global_scale") }
    });
}

/// One group for attention in FP8, one for the experts.
fn mixed(strategy: &str) -> (Value, Vec<TensorInfo>) {
    let (mut config, mut table) = compressed();
    let block = match strategy {
        "block" => json!([128, 128]),
        _ => Value::Null,
    };
    let weights = json!({
        "num_bits": 8, "type": "float", "strategy": strategy, "block_structure": block,
        "symmetric": true, "dynamic": false, "group_size": null, "scale_dtype": null
    });
    let groups = &mut config[KEY]["config_groups"];
    groups["group_0"]["format"] = json!("nvfp4-pack-quantized");
    groups["group_0"]["targets"] = json!(["re:.*mlp.experts.*"]);
    groups["group_1"] = json!({
        "format": "float-quantized", "weights": weights, "targets": ["re:.*attn\\.w"],
        "input_activations": {"dynamic": true}
    });
    config[KEY]["format"] = json!("mixed-precision");
    config[KEY]["ignore"] = json!(["re:.*layers.1.mlp", "re:.*attn.wr_du"]);
    let mut scales = Vec::new();
    for t in &mut table {
        let map = t.name.strip_suffix(".weight").unwrap_or_default();
        if map.contains("llm.layers") && map.contains(".attn.w") && !map.ends_with("wr_du") {
            *t = tensor(t.name.clone(), "F8_E4M3", &t.shape);
            let shape = match strategy {
                "block" => [t.shape[0].div_ceil(128), t.shape[1].div_ceil(128)],
                _ => [t.shape[0], 1],
            };
            scales.push(tensor(format!("{}_scale", t.name), "BF16", &shape));
        }
    }
    table.extend(scales);
    (config, table)
}

#[test]
fn attention_may_be_in_fp8() {
    for (strategy, expected) in [("block", [128, 128]), ("channel", [1, 128])] {
        let (config, table) = mixed(strategy);
        let p = program(&config, &table);
        let Mixer::Attention(a) = &p.layers[3].mixer.body else {
            panic!("{:?}", p.layers[3].mixer.body)
        };
        let query = slice(&p, a.query.weight, 0);
        let name = "model.llm.layers.3.attn.wq_du.weight";
        assert_eq!(query.tensor, name);
        let scale = format!("{name}_scale");
        let block = expected;
        assert_eq!(query.coding, Some(Coding::BlockFp8 { scale, block }));
        let relative = a.relative_bias.as_ref().unwrap();
        assert_eq!(slice(&p, relative.query.weight, 0).coding, None);
        // One matrix is not in FP8 although it should be.
        let mut torn = table.clone();
        torn.retain(|t| t.name != format!("{name}_scale"));
        for t in torn.iter_mut().filter(|t| t.name == name) {
            *t = tensor(name, "BF16", &t.shape);
        }
        let text = one_defect(&config, &torn);
        assert!(
            text.contains("covers model.llm.layers.3.attn.wq_du, which is stored as plain"),
            "{text}"
        );
    }
    let (config, table) = mixed("block");
    check_tensors(&config, &table, |name| name.contains("layers.3.attn.wk_dv"));
    let group = format!("{KEY}.config_groups.group_1");
    check_bad_values(
        &config,
        &table,
        &[
            (&format!("{group}.format"), json!(null)),
            (&format!("{group}.weights.block_structure"), json!([128])),
            (&format!("{group}.weights.strategy"), json!("tensor")),
            (&format!("{group}.weights.num_bits"), json!(4)),
        ],
    );
}

#[test]
fn other_linear_maps_may_be_in_fp4() {
    let (mut config, table) = compressed();
    config[KEY]["ignore"] = json!(["model.llm.layers.1.mlp.experts", "re:.*mlp.w", "lm_head"]);
    let in_fp4 = |map: &str| map.contains("llm.layers") && map.contains(".attn.w");
    let mut coded = Vec::new();
    for t in table {
        match t.name.strip_suffix(".weight").filter(|map| in_fp4(map)) {
            Some(map) => {
                let [rows, cols] = t.shape[..] else {
                    panic!("{t:?}")
                };
                let name = |end: &str| format!("{map}.{end}");
                coded.extend([
                    tensor(name("weight_packed"), "U8", &[rows, cols / 2]),
                    tensor(name("weight_scale"), "F8_E4M3", &[rows, cols / 16]),
                    tensor(name("weight_global_scale"), "F32", &[1]),
                    tensor(name("input_global_scale"), "F32", &[1]),
                ]);
            }
            None => coded.push(t),
        }
    }
    let p = program(&config, &coded);
    let Mixer::Attention(a) = &p.layers[3].mixer.body else {
        panic!("{:?}", p.layers[3].mixer.body)
    };
    let expected = Coding::DividedNvfp4 {
        scale: "model.llm.layers.3.attn.wo_ud.weight_scale".into(),
        divisor: "model.llm.layers.3.attn.wo_ud.weight_global_scale".into(),
        part: [0, 1],
    };
    assert_eq!(slice(&p, a.output.weight, 0).coding, Some(expected));
}

#[test]
fn tensors_that_contradict_the_configuration_are_defects() {
    let (config, table) = compressed();
    let ignore = format!("{KEY}.ignore");
    let list = |more: &[&str]| {
        let mut list = config[KEY]["ignore"].as_array().unwrap().clone();
        list.extend(more.iter().map(|&name| json!(name)));
        json!(list)
    };
    // In codes, and to be left alone: by name, by pattern, in the names of other programs.
    for name in [
        W13,
        "re:.*layers.2.mlp.experts.w13",
        "re:model.llm.layers.2.mlp.experts.w1",
        "model.layers.2.mlp.experts.gate_up_proj",
        "model.language_model.layers.2.mlp.experts.0.gate_proj",
    ] {
        let text = one_defect(&with(&config, &ignore, list(&[name])), &table);
        let expected = format!("config.json: {ignore}: covers {W13}, which is stored in codes");
        assert_eq!(text, expected, "{name}");
    }
    // A pattern matches from the start, a name as a whole.
    for name in [
        "re:layers.2",
        "model.llm.layers.2.mlp",
        "re:.*w13_weight.weight_packed",
    ] {
        program(&with(&config, &ignore, list(&[name])), &table);
    }
    // Plain, and to be in codes.
    let every = json!(["re:.*attn", "re:.*mlp.w", "lm_head"]);
    let found = defects(&with(&config, &ignore, every), &table);
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 2, "{found:?}");
    let plain = "covers model.llm.layers.1.mlp.experts.w13_weight, which is stored as plain";
    assert!(found[0].contains(plain), "{found:?}");
    // In codes, and no group's.
    let groups = format!("{KEY}.config_groups");
    let targets = format!("{groups}.group_0.targets");
    let some = json!(["re:.*layers.[345].*experts", "re:.*layers.2.*w2_weight"]);
    let text = one_defect(&with(&config, &targets, some), &table);
    let expected = format!("config.json: {groups}: cover no {W13}, which is stored in codes");
    assert_eq!(text, expected);
    // In codes without a word.
    let text = one_defect(&without(&config, KEY), &table);
    let expected = format!("config.json: {KEY}: is missing, and {W13}.weight_packed needs it");
    assert_eq!(text, expected);
    // The lists may follow the names of other programs.
    for other in [
        "model.layers.1.mlp.experts",
        "re:model.language_model.layers.1.mlp.experts",
    ] {
        let mut list = list(&[other]);
        list.as_array_mut().unwrap().remove(0);
        program(&with(&config, &ignore, list), &table);
    }
}

#[test]
fn what_the_configuration_may_say() {
    let (config, table) = compressed();
    let group = format!("{KEY}.config_groups.group_0");
    let weights = format!("{group}.weights");
    let at = |key: &str, value: Value| (format!("{KEY}.{key}"), value);
    let of = |place: &str, key: &str, value: Value| (format!("{place}.{key}"), value);
    let bad = [
        at("quant_method", json!("gptq")),
        at("format", json!("pack-quantized")),
        at("format", json!(null)),
        at("kv_cache_scheme", json!({"num_bits": 8})),
        at("quantization_status", json!("frozen")),
        at("sparsity_config", json!({"format": "dense"})),
        at("transform_config", json!({"config_groups": {}})),
        at("ignore", json!("lm_head")),
        at("ignore", json!(["re:("])),
        at("ignore", json!(["re:(?!visual)"])),
        at("ignore", json!(["re:a{1000}{1000}"])),
        at("ignore", json!(vec!["re:x"; 65])),
        of(&group, "targets", json!([1])),
        of(&group, "format", json!("mxfp4-pack-quantized")),
        of(&group, "output_activations", json!({})),
        of(&group, "weights", json!(null)),
        of(&weights, "num_bits", json!(8)),
        of(&weights, "group_size", json!(32)),
        of(&weights, "type", json!("int")),
        of(&weights, "strategy", json!("channel")),
        of(&weights, "symmetric", json!(false)),
        of(&weights, "dynamic", json!(true)),
        of(&weights, "scale_dtype", json!("torch.uint8")),
        of(&weights, "actorder", json!("group")),
    ];
    let bad: Vec<(&str, Value)> = bad.iter().map(|(p, v)| (p.as_str(), v.clone())).collect();
    check_bad_values(&config, &table, &bad);
    let groups = format!("{KEY}.config_groups");
    check_unknown_keys(&config, &table, &[KEY, &groups, &group, &weights]);
    check_needed_keys(&config, &table, &[&format!("{KEY}.format")]);
    // It may stand in the text model's part, but in one place only.
    let inside = with(&config, &format!("text_config.{KEY}"), config[KEY].clone());
    let text = one_defect(&inside, &table);
    assert!(text.contains("stands in text_config too"), "{text}");
    let moved = without(&inside, KEY);
    assert_eq!(program(&moved, &table), program(&config, &table));
    let harmed = with(&moved, &format!("text_config.{KEY}.ignore"), json!([W13]));
    assert!(defects(&harmed, &table).len() > 1);
}

#[test]
fn a_changed_byte_is_answered() {
    let (config, table) = compressed();
    assert!(lower_with_changed_bytes(&config, &table) > 0);
}
