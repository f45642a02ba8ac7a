//! Checkpoints as other exporters ship them: fixtures under other names and in other codes, made
//! here, against the reference logits of the fixtures themselves.

mod common;

use common::{Measured, measure, repository};
use lamella_container::safetensors::Header;
use lamella_engine::{BackendKind, Model, Options};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;

/// A tensor of a checkpoint.
#[derive(Clone)]
struct Tensor {
    dtype: String,
    shape: Vec<usize>,
    data: Vec<u8>,
}

type Tensors = BTreeMap<String, Tensor>;

fn tensor(dtype: &str, shape: &[usize], data: Vec<u8>) -> Tensor {
    let (dtype, shape) = (dtype.to_owned(), shape.to_vec());
    Tensor { dtype, shape, data }
}

fn f32s(shape: &[usize], values: &[f32]) -> Tensor {
    let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    tensor("F32", shape, data)
}

fn values(tensor: &Tensor) -> Vec<f32> {
    let bytes = tensor.data.chunks_exact(4);
    bytes
        .map(|b| f32::from_le_bytes(b.try_into().expect("four bytes")))
        .collect()
}

/// Configuration and tensors of a fixture.
fn fixture(name: &str) -> (Value, Tensors) {
    let dir = repository("fixtures").join(name);
    let config = std::fs::read(dir.join("config.json")).expect("a configuration");
    let file = std::fs::read(dir.join("model.safetensors")).expect("weights");
    let header = Header::from_file_bytes(&file).expect("a header");
    let all = header.tensors.into_iter().map(|t| {
        let (from, to) = (t.offset as usize, (t.offset + t.length) as usize);
        let data = file[from..to].to_vec();
        (t.name, tensor(&t.dtype, &t.shape, data))
    });
    let config = serde_json::from_slice(&config).expect("JSON");
    (config, all.collect())
}

/// Writes a checkpoint with the reference of a fixture beside it.
fn write(reference: &str, config: &Value, tensors: &Tensors) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let mut header = Map::new();
    let mut end = 0;
    for (name, t) in tensors {
        let start = end;
        end += t.data.len();
        let entry = json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [start, end]});
        header.insert(name.clone(), entry);
    }
    let mut header = Value::Object(header).to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend(tensors.values().flat_map(|t| &t.data));
    let put = |name: &str, bytes: &[u8]| {
        std::fs::write(dir.path().join(name), bytes).expect("writes");
    };
    put("model.safetensors", &file);
    put("config.json", config.to_string().as_bytes());
    for name in ["ref.json", "ref.safetensors"] {
        let from = repository("fixtures").join(reference).join(name);
        put(name, &std::fs::read(from).expect("a reference"));
    }
    dir
}

/// Both backends on a checkpoint.
fn check(what: &str, dir: &Path) {
    for backend in [BackendKind::Reference, BackendKind::Cpu] {
        let measured = measure(dir, backend).unwrap_or_else(|e| panic!("{what}: {e}"));
        let Measured { error, greedy } = measured;
        println!("{what} {backend:?}: maximum relative logit error {error:e}");
        assert!(error < 1e-4, "{what} {backend:?}: {error:e}");
        assert_eq!(greedy, None, "{what} {backend:?}: a greedy token differs");
    }
}

/// The E4M3 code of half the number.
fn halved(code: u8) -> u8 {
    let exponent = code >> 3 & 15;
    assert!(exponent > 1, "the half of {code} has fewer digits");
    code - 8
}

/// FP4 stacks of experts as compressed-tensors names them. With `parts` gate and up have divisors
/// of their own, which differ by a factor that the scales of up's rows make good.
fn compressed(tensors: &Tensors, parts: bool) -> Tensors {
    let mut out = Tensors::new();
    for (name, t) in tensors {
        let codes = name.ends_with("13_weight") || name.ends_with("w2_weight");
        let first = name.contains(".w13_weight");
        if let Some(map) = name.strip_suffix(".scale2") {
            let divisors = values(t).into_iter().map(f32::recip);
            let (columns, list): (usize, Vec<f32>) = match first && parts {
                true => (2, divisors.flat_map(|d| [d, d / 2.0]).collect()),
                false => (1, divisors.collect()),
            };
            let items = list.len() / columns;
            out.insert(
                format!("{map}.weight_global_scale"),
                f32s(&[items, columns], &list),
            );
            let inputs = vec![448.0; items];
            out.insert(
                format!("{map}.input_global_scale"),
                f32s(&[items, 1], &inputs),
            );
        } else if let Some(map) = name.strip_suffix(".scale") {
            let mut scales = t.clone();
            if first && parts {
                let rows = scales.data.chunks_exact_mut(t.shape[2]);
                for row in rows.skip(1).step_by(2) {
                    row.iter_mut().for_each(|code| *code = halved(*code));
                }
            }
            out.insert(format!("{map}.weight_scale"), scales);
        } else if codes && t.dtype == "U8" {
            out.insert(format!("{name}.weight_packed"), t.clone());
        } else if !name.ends_with(".input_amax") && !name.ends_with(".original_shape") {
            out.insert(name.clone(), t.clone());
        }
    }
    out
}

/// What llm-compressor says of such a checkpoint.
fn compressed_config(config: &Value) -> Value {
    let mut config = config.clone();
    let inputs = json!({
        "actorder": null, "block_structure": null, "dynamic": "local", "group_size": 16,
        "num_bits": 4, "observer": "minmax", "observer_kwargs": {}, "strategy": "tensor_group",
        "symmetric": true, "type": "float"
    });
    let mut weights = inputs.clone();
    weights["dynamic"] = json!(false);
    weights["scale_dtype"] = json!("torch.float8_e4m3fn");
    config["quantization_config"] = json!({
        "config_groups": {"group_0": {
            "format": "nvfp4-pack-quantized", "input_activations": inputs,
            "output_activations": null, "targets": ["Linear"], "weights": weights
        }},
        "format": "nvfp4-pack-quantized", "global_compression_ratio": null,
        "ignore": [
            "model.llm.layers.1.mlp.experts", "re:.*attn.*", "re:.*shared_experts.*",
            "re:.*mlp\\.gate$", "re:.*w13_dn", "re:.*w2_md", "lm_head"
        ],
        "kv_cache_scheme": null, "quant_method": "compressed-tensors",
        "quantization_status": "compressed", "sparsity_config": {}, "transform_config": {},
        "version": "0.16.0"
    });
    config
}

#[test]
fn inkling_in_compressed_tensors() {
    let name = "inkling-nvfp4-303";
    let (config, tensors) = fixture(name);
    let config = compressed_config(&config);
    for parts in [false, true] {
        let tensors = compressed(&tensors, parts);
        let dir = write(name, &config, &tensors);
        check(&format!("{name}, own divisors: {parts}"), dir.path());
    }
}

/// A divisor that is none: opening names its tensor.
#[test]
fn divisors_that_are_no_numbers_are_refused_at_opening() {
    let name = "inkling-nvfp4-303";
    let (config, tensors) = fixture(name);
    let tensors = compressed(&tensors, true);
    let divisors = "model.llm.layers.3.mlp.experts.w13_weight.weight_global_scale";
    for bad in [0.0, f32::NAN] {
        let mut tensors = tensors.clone();
        let harmed = tensors.get_mut(divisors).expect("divisors");
        let mut list = values(harmed);
        // That of the up matrix of the expert at 5.
        list[11] = bad;
        *harmed = f32s(&harmed.shape.clone(), &list);
        let dir = write(name, &compressed_config(&config), &tensors);
        let opened = Model::open(dir.path(), &Options::default(), &mut |_| {});
        let message = opened.err().expect("refused").to_string();
        assert!(message.contains(divisors), "{message}");
    }
}

/// What transformers calls a tensor, step by step as its loader does.
fn in_transformers(vendor: &str) -> String {
    const STEPS: [(&str, &str); 29] = [
        (".attn.", ".self_attn."),
        (".ffn.", ".mlp."),
        (".indexer.compressor.", ".compressor.indexer."),
        (".attn_norm.", ".input_layernorm."),
        (".ffn_norm.", ".post_attention_layernorm."),
        (".hc_attn_", ".attn_hc."),
        (".hc_ffn_", ".ffn_hc."),
        (".attn_sink", ".sinks"),
        (
            ".indexer.weights_proj.",
            ".compressor.indexer.scorer.weights_proj.",
        ),
        (".indexer.wq_b.", ".compressor.indexer.q_b_proj."),
        (".norm.", ".kv_norm."),
        (".ape", ".position_bias"),
        (".wq_a.", ".q_a_proj."),
        (".self_attn.wq_b.", ".self_attn.q_b_proj."),
        (".wkv.", ".kv_proj."),
        (".wgate.", ".gate_proj."),
        (".wo_a.", ".o_a_proj."),
        (".wo_b.", ".o_b_proj."),
        (".q_norm.", ".q_a_norm."),
        (".gate.bias", ".gate.e_score_correction_bias"),
        (".shared_experts.w1.", ".shared_experts.gate_proj."),
        (".shared_experts.w2.", ".shared_experts.down_proj."),
        (".shared_experts.w3.", ".shared_experts.up_proj."),
        (".w1.", ".gate_proj."),
        (".w2.", ".down_proj."),
        (".w3.", ".up_proj."),
        (".scale", ".weight_scale_inv"),
        ("embed.", "embed_tokens."),
        ("hc_head_", "hc_head.hc_"),
    ];
    if vendor == "head.weight" {
        return "lm_head.weight".to_owned();
    }
    // `.scale` ends the name of scales only.
    let steps = STEPS.iter().fold(vendor.to_owned(), |name, (from, to)| {
        match *from == ".scale" && !name.ends_with(from) || name.contains("_hc.scale") {
            true => name,
            false => name.replace(from, to),
        }
    });
    format!("model.{steps}")
}

/// A checkpoint under the names of transformers; with `stacked` the experts of a layer are joined
/// in two tensors. Draft heads keep their names, where they are wanted.
fn respelt(tensors: &Tensors, stacked: bool, drafts: bool) -> Tensors {
    let mut out = Tensors::new();
    for (name, t) in tensors {
        if name.starts_with("mtp.") {
            if drafts {
                out.insert(name.clone(), t.clone());
            }
            continue;
        }
        out.insert(in_transformers(name), t.clone());
    }
    if stacked {
        stack(&mut out);
    }
    out
}

/// Joins experts, gate before up.
fn stack(tensors: &mut Tensors) {
    let first = ".experts.0.gate_proj.weight";
    let names = tensors.keys().filter_map(|n| n.strip_suffix(first));
    let blocks: Vec<String> = names.map(str::to_owned).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        for (ends, joined) in [
            (&["gate_proj", "up_proj"][..], "gate_up_proj"),
            (&["down_proj"][..], "down_proj"),
        ] {
            for (what, end) in [("weight", ""), ("weight_scale_inv", "_scale_inv")] {
                let mut data = Vec::new();
                let mut one: Option<Tensor> = None;
                let mut experts = 0;
                while let Some(parts) = ends
                    .iter()
                    .map(|e| tensors.remove(&format!("{block}.experts.{experts}.{e}.{what}")))
                    .collect::<Option<Vec<_>>>()
                {
                    data.extend(parts.iter().flat_map(|t| t.data.clone()));
                    one = parts.into_iter().next();
                    experts += 1;
                }
                if let Some(one) = one {
                    let shape = [experts, ends.len() * one.shape[0], one.shape[1]];
                    let name = format!("{block}.experts.{joined}{end}");
                    tensors.insert(name, tensor(&one.dtype, &shape, data));
                }
            }
        }
    }
}

#[test]
fn deepseek_v4_under_the_names_of_transformers() {
    for (name, stacked, drafts) in [
        ("deepseek_v4-101", true, false),
        ("deepseek_v4-101", false, true),
        ("deepseek_v4-303", true, true),
        ("deepseek_v4-303", false, false),
    ] {
        let (config, tensors) = fixture(name);
        let dir = write(name, &config, &respelt(&tensors, stacked, drafts));
        check(&format!("{name}, stacked: {stacked}"), dir.path());
        let options = Options {
            draft: true,
            ..Options::default()
        };
        let opened = Model::open(dir.path(), &options, &mut |_| {});
        assert_eq!(opened.is_ok_and(|model| model.draft().is_some()), drafts);
    }
}
