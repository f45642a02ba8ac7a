//! One wrong thing at a time, the same ones for every family in every form it is shipped in: what
//! lowering then says is exactly that, and names it.

#![recursion_limit = "256"]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;
mod damage;
mod qwen38_table;

use common::{
    check_extra_tensors, defects, fixture, fixture_names, one_defect, program, tensor, with,
    without,
};
use damage::check_tensors;
use lamella_program::{Defect, TensorInfo};
use qwen38_table::Stored;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A checkpoint to damage.
struct Model {
    name: String,
    config: Value,
    table: Vec<TensorInfo>,
    /// Tensors that may have any type and shape, or be missing: they are not executed.
    idle: BTreeSet<String>,
}

/// Constants that are compared though they are not executed.
const CONSTANTS: &str = "hash constants";

fn model(name: String, config: Value, table: Vec<TensorInfo>) -> Model {
    let unused = program(&config, &table).unused.into_iter();
    let idle = unused.filter(|part| part.name != CONSTANTS);
    let idle = idle.flat_map(|part| part.tensors).collect();
    Model {
        name,
        config,
        table,
        idle,
    }
}

fn models() -> Vec<Model> {
    let names = fixture_names();
    // A fixture of each family at least, most of them also in codes.
    assert!(names.len() > 12, "{names:?}");
    let fixtures = names.into_iter().map(|name| {
        let (config, table) = fixture(&name);
        model(name, config, table)
    });
    fixtures.chain([nvfp4()]).collect()
}

/// Qwen3.8 as ModelOpt writes it, which no fixture is.
fn nvfp4() -> Model {
    let (config, table) = fixture("qwen38fp8-777");
    let codes = json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16});
    let mut config = with(&config, "quantization_config", codes);
    // Rows of whole groups.
    for (key, width) in [("moe_intermediate_size", 32), ("ple_embed_dim", 256)] {
        config["text_config"][key] = json!(width);
    }
    let parts = table.iter().filter(|t| t.name.contains(".shard_"));
    let rows = parts.map(|t| t.shape[0]).sum();
    let table = qwen38_table::tensors(&config, Stored::Nvfp4, false, &[rows]);
    model("qwen38 in NVFP4".to_owned(), config, table)
}

impl Model {
    /// A few tensors of each kind: the first layers and one expert of each.
    fn some(&self, name: &str) -> bool {
        let number = |part: &str| {
            let (_, end) = name.split_once(part)?;
            end.split('.').next()?.parse::<usize>().ok()
        };
        let layer = number("layers.").is_none_or(|layer| layer < 4);
        let expert = number(".experts.").is_none_or(|expert| expert == 1);
        layer && expert && !self.idle.contains(name)
    }
}

#[test]
fn a_missing_or_turned_or_widened_tensor() {
    for m in models() {
        check_tensors(&m.config, &m.table, |name| m.some(name));
    }
}

#[test]
fn an_extra_tensor() {
    for m in models() {
        let some = m.table.iter().filter(|t| m.some(&t.name));
        let names: Vec<String> = some.map(|t| format!("{}.extra", t.name)).collect();
        assert!(names.len() > 20, "{}", m.name);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        check_extra_tensors(&m.config, &m.table, &names);
    }
}

/// Whether a tensor of type `from` may as well be of type `to`: FP4 codes are bytes of any name,
/// scales in blocks have any of several types, and tables hold integers of either width.
fn interchangeable(name: &str, from: &str, to: &str) -> bool {
    let all = |types: &[&str]| types.contains(&from) && types.contains(&to);
    let scale = name.ends_with("scale") || name.ends_with("scale_inv");
    match (scale, name.ends_with("tid2eid")) {
        (true, _) if from == "F8_E4M3" => false,
        (true, _) => to == "F8_E8M0" && from != "U8" || all(&["U8", "F8_E8M0"]),
        (false, true) => all(&["I64", "I32"]),
        (false, false) => name.contains("experts") && all(&["U8", "I8"]),
    }
}

#[test]
fn a_wrong_element_type() {
    const TYPES: [&str; 7] = ["U8", "I8", "F4", "F8_E4M3", "F8_E8M0", "I32", "U16"];
    for m in models() {
        for (index, t) in m.table.iter().enumerate().filter(|(_, t)| m.some(&t.name)) {
            let mut table = m.table.clone();
            for dtype in TYPES.into_iter().filter(|dtype| *dtype != t.dtype) {
                table[index] = tensor(t.name.clone(), dtype, &t.shape);
                let found = defects(&m.config, &table);
                let place = format!("{}: {} as {dtype}: {found:#?}", m.name, t.name);
                // Of FP8 codes without scales, the scales are what is missing.
                let stem = t.name.trim_end_matches("weight");
                match &found[..] {
                    [] => assert!(interchangeable(&t.name, &t.dtype, dtype), "{place}"),
                    [one] if dtype == "F8_E4M3" => {
                        assert!(one.to_string().contains(stem), "{place}")
                    }
                    [one] => assert!(one.to_string().contains(&t.name), "{place}"),
                    _ => panic!("{place}"),
                }
            }
        }
    }
}

/// Scales beside a tensor of plain numbers: they are what is too many, in whatever way a family
/// names them.
#[test]
fn extra_scales() {
    const ENDS: [(&str, &str); 7] = [
        (".weight", ".weight_scale_inv"),
        (".weight", ".weight_scale"),
        (".weight", ".weight_scale_2"),
        (".weight", ".scale"),
        ("_weight", "_weight.scale"),
        ("_weight", "_weight.scale2"),
        ("_proj", "_proj_scale_inv"),
    ];
    for m in models() {
        let plain = m
            .table
            .iter()
            .filter(|t| t.encoding.is_some() && m.some(&t.name));
        let scales = plain.flat_map(|t| {
            let scale = |(weight, scale)| Some(format!("{}{scale}", t.name.strip_suffix(weight)?));
            ENDS.into_iter().filter_map(scale)
        });
        let scales: Vec<String> = scales.collect();
        assert!(scales.len() > 20, "{}", m.name);
        // Each end with some of the tensors, and each tensor with some of the ends.
        let scales: Vec<&str> = scales.iter().step_by(3).map(String::as_str).collect();
        check_extra_tensors(&m.config, &m.table, &scales);
    }
}

/// Codes that are said to be plain numbers: where others of their kind are codes, the type is to
/// blame; of a single tensor it may as well be its scales.
#[test]
fn codes_of_a_plain_type() {
    let mut seen = 0;
    for m in models() {
        for (index, t) in m.table.iter().enumerate().filter(|(_, t)| m.some(&t.name)) {
            let codes = ["U8", "I8", "F8_E4M3"].contains(&t.dtype.as_str());
            if !codes || t.name.contains("scale") {
                continue;
            }
            let mut table = m.table.clone();
            table[index] = tensor(t.name.clone(), "BF16", &t.shape);
            let text = one_defect(&m.config, &table);
            let stem = t.name.trim_end_matches("weight");
            assert!(
                text.contains(stem),
                "{}: {} as BF16: {text}",
                m.name,
                t.name
            );
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen}");
}

/// Weights of plain numbers, whatever says that they are codes.
#[test]
fn a_quantization_config_too_many() {
    let fp8 = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    let packed = |format: &str| {
        let method = "compressed-tensors";
        json!({"quant_method": method, "format": format, "config_groups": {}})
    };
    let mxfp4 = fixture("kimi_k3-101").0["text_config"]["quantization_config"].clone();
    let model_opt = json!({"quant_method": "modelopt", "quant_algo": "NVFP4"});
    for (name, path, value) in [
        ("deepseek_v4-101", "quantization_config", &fp8),
        ("glm-101", "quantization_config", &fp8),
        (
            "inkling-101",
            "quantization_config",
            &packed("nvfp4-pack-quantized"),
        ),
        (
            "inkling-101",
            "text_config.quantization_config",
            &packed("float-quantized"),
        ),
        ("kimi_k3-bf16-404", "quantization_config", &mxfp4),
        (
            "kimi_k3-bf16-404",
            "quantization_config",
            &packed("mxfp4-pack-quantized"),
        ),
        ("qwen35dense-303", "quantization_config", &fp8),
        ("qwen36-101", "quantization_config", &fp8),
        ("qwen38-111", "quantization_config", &fp8),
        ("qwen38-111", "quantization_config", &model_opt),
        ("qwen3next-505", "quantization_config", &fp8),
    ] {
        let (config, table) = fixture(name);
        let text = one_defect(&with(&config, path, value.clone()), &table);
        let start = format!("config.json: {path}: is there, but all weights are plain numbers");
        assert!(text.starts_with(&start), "{name}: {text}");
    }
}

/// Every key of the configuration, nested ones as `a.b`.
fn keys(value: &Value, path: &str, out: &mut Vec<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{key}");
        out.push(path.clone());
        keys(value, &path, out);
    }
}

/// Keys that may say anything: they change no logits, or another key says the same.
fn says_nothing(model: &str, path: &str) -> bool {
    let inert = [
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "audio_config",
        "audio_token_id",
        "auto_map",
        "bos_token_id",
        "dtype",
        "ep_size",
        "global_compression_ratio",
        "ignore_index",
        "image_placeholder",
        "image_token_id",
        "initializer_range",
        "language_model_only",
        "media_placeholder_token_id",
        "modules_to_convert",
        "modules_to_not_convert",
        "mrope_interleaved",
        "mrope_section",
        "observer",
        "observer_kwargs",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "router_aux_loss_coef",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "use_grouped_topk",
        "video_token_id",
        "vision_config",
        "vision_end_token_id",
        "vision_start_token_id",
        "zp_dtype",
    ];
    let last = path.rsplit('.').next().unwrap();
    let inside = path
        .split('.')
        .any(|key| key == "vision_config" || key == "audio_config");
    // Latent attention has no key heads, and its heads' size is the sum of two others.
    let latent = model.starts_with("glm") && ["head_dim", "num_key_value_heads"].contains(&last);
    inside || latent || inert.contains(&last)
}

#[test]
fn an_unknown_value_of_any_key() {
    for m in models() {
        let mut all = Vec::new();
        keys(&m.config, "", &mut all);
        for path in all.iter().filter(|path| *path != "model_type") {
            let changed = with(&m.config, path, json!("bits_of_magic"));
            let found = defects(&changed, &m.table);
            let place = format!("{}: {path}: {found:#?}", m.name);
            match &found[..] {
                [] => assert!(says_nothing(&m.name, path), "{place}"),
                [one] => {
                    let text = one.to_string();
                    assert!(
                        text.contains("config.json: ") && text.contains(path),
                        "{place}"
                    );
                    assert!(!says_nothing(&m.name, path), "{place}");
                }
                _ => panic!("{place}"),
            }
        }
    }
}

#[test]
fn an_unknown_key() {
    for m in models() {
        let mut objects = vec![String::new()];
        keys(&m.config, "", &mut objects);
        let object = |path: &&String| {
            let pointer = format!("/{}", path.replace('.', "/"));
            path.is_empty() || m.config.pointer(&pointer).is_some_and(Value::is_object)
        };
        for path in objects.iter().filter(object) {
            let dot = if path.is_empty() { "" } else { "." };
            let key = format!("{path}{dot}bits_of_magic");
            let found = defects(&with(&m.config, &key, json!(1)), &m.table);
            match &found[..] {
                [] => assert!(says_nothing(&m.name, path), "{}: {key}", m.name),
                _ => assert_eq!(found, [Defect::UnknownConfigKey(key)], "{}", m.name),
            }
        }
    }
}

/// Numbers outside of what a key may be, in whatever place a family has it.
#[test]
fn a_number_out_of_its_domain() {
    let eps: &[Value] = &[
        json!(0),
        json!(-1e-6),
        json!(1),
        json!(2e9),
        json!("1e-6"),
        json!([]),
    ];
    let factor: &[Value] = &[json!(0), json!(-1), json!(1e9), json!(1e39), json!("1")];
    let base: &[Value] = &[json!(0), json!(1), json!(-1e4), json!(1e39), json!("1e4")];
    let limit: &[Value] = &[json!(0), json!(-7), json!(1e39), json!(false)];
    let share: &[Value] = &[
        json!(0),
        json!(-0.25),
        json!(1.5),
        json!(2e9),
        json!("0.25"),
    ];
    let count: &[Value] = &[
        json!(0),
        json!(-1),
        json!(1.5),
        json!("4"),
        json!(1u64 << 60),
    ];
    let domains = [
        ("rms_norm_eps", eps),
        ("hc_eps", eps),
        ("routed_scaling_factor", factor),
        ("route_scale", factor),
        ("logits_mup_width_multiplier", factor),
        ("activation_situ_beta", factor),
        ("rope_theta", base),
        ("compress_rope_theta", base),
        ("partial_rotary_factor", share),
        ("swiglu_limit", limit),
        ("clip_qkv", limit),
        ("hidden_size", count),
        ("num_hidden_layers", count),
        ("vocab_size", count),
        ("num_attention_heads", count),
        ("num_experts_per_tok", count),
        ("max_position_embeddings", count),
    ];
    for m in models() {
        let mut all = Vec::new();
        keys(&m.config, "", &mut all);
        let mut seen = 0;
        for path in all.iter().filter(|path| !says_nothing(&m.name, path)) {
            let last = path.rsplit('.').next().unwrap();
            // What draft heads repeat is named together with what it repeats.
            let known = domains.iter().find(|(key, _)| *key == last);
            let Some((_, values)) = known.filter(|_| !path.contains(".mtp.")) else {
                continue;
            };
            seen += 1;
            for value in *values {
                let text = one_defect(&with(&m.config, path, value.clone()), &m.table);
                let start = format!("config.json: {path}: ");
                assert!(
                    text.starts_with(&start),
                    "{}: {path} = {value}: {text}",
                    m.name
                );
            }
        }
        assert!(seen > 4, "{}: {seen}", m.name);
    }
}

/// A type of rotation with the keys that files have beside it.
fn rotation(names: &[&str], kind: &str) -> Value {
    let keys = match kind {
        "yarn" => json!({
            "factor": 4.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
            "beta_slow": 1.0, "attention_factor": 1.2, "mscale": 1.0, "mscale_all_dim": 1.0,
            "truncate": false
        }),
        "longrope" => json!({
            "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0], "factor": 4.0,
            "original_max_position_embeddings": 4096
        }),
        "llama3" => json!({
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 4096
        }),
        _ => json!({"factor": 2.0}),
    };
    let kinds = names.iter().map(|name| (*name, json!(kind)));
    kinds.fold(keys, |keys, (name, kind)| with(&keys, name, kind))
}

/// One that no family has, or this one has not: one defect, which names the key of the type and its
/// value, wherever it stands and whatever stands beside it.
#[test]
fn an_unsupported_rope_type() {
    const KINDS: [&str; 5] = ["yarn", "linear", "dynamic", "longrope", "llama3"];
    const NAMES: [&[&str]; 3] = [&["rope_type"], &["type"], &["rope_type", "type"]];
    for m in models() {
        let inner = match m.config.get("text_config") {
            Some(_) => "text_config.",
            None => "",
        };
        let yarn = m.name.starts_with("deepseek_v4");
        for (names, kind) in NAMES.iter().flat_map(|n| KINDS.map(|kind| (n, kind))) {
            for place in ["rope_parameters", "rope_scaling"] {
                if yarn && kind == "yarn" && place == "rope_scaling" {
                    continue;
                }
                let path = format!("{inner}{place}");
                let mut rope = rotation(names, kind);
                let old = m.config.pointer(&format!("/{}", path.replace('.', "/")));
                if let Some(Value::Object(old)) = old {
                    let types = ["type", "rope_type"];
                    for (key, value) in old.iter().filter(|(key, _)| !types.contains(&&key[..])) {
                        rope[key] = value.clone();
                    }
                }
                let changed = with(&m.config, &path, rope);
                let beside = format!("{inner}original_max_position_embeddings");
                for changed in [with(&changed, &beside, json!(4096)), changed] {
                    let text = one_defect(&changed, &m.table);
                    let start = format!("config.json: {path}.{}: is {kind:?}, but ", names[0]);
                    assert!(text.starts_with(&start), "{}: {text}", m.name);
                }
            }
        }
    }
}

/// Codes without what says how they are stored: one defect, and not one for every tensor.
#[test]
fn a_missing_quantization_config() {
    let mut seen = 0;
    for m in models()
        .iter()
        .filter(|m| m.config.get("quantization_config").is_some())
    {
        let text = one_defect(&without(&m.config, "quantization_config"), &m.table);
        let start = "config.json: quantization_config: is missing, and ";
        assert!(text.starts_with(start), "{}: {text}", m.name);
        seen += 1;
    }
    assert!(seen > 4, "{seen}");
}
