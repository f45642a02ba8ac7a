//! Lowering of OLMoE: the released shape, the golden fixture, and every kind of damage.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use lamella_families::{LowerError, lower};
use lamella_program::block::{Ffn, Mixer, QkNormScope, WeightRule};
use lamella_program::{Defect, Encoding, Program, Role, TensorInfo, state};
use serde_json::{Value, json};

/// The released OLMoE-1B-7B-0924 configuration.
fn released() -> Value {
    json!({
        "architectures": ["OlmoeForCausalLM"],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "clip_qkv": null,
        "eos_token_id": 50279,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 1024,
        "max_position_embeddings": 4096,
        "model_type": "olmoe",
        "norm_topk_prob": false,
        "num_attention_heads": 16,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 16,
        "num_key_value_heads": 16,
        "output_router_logits": false,
        "pad_token_id": 1,
        "rms_norm_eps": 1e-5,
        "rope_scaling": null,
        "rope_theta": 10000.0,
        "router_aux_loss_coef": 0.01,
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0.dev0",
        "use_cache": true,
        "vocab_size": 50304
    })
}

/// A small configuration with grouped heads.
fn small() -> Value {
    with(
        released(),
        &[
            ("hidden_size", json!(24)),
            ("intermediate_size", json!(10)),
            ("num_attention_heads", json!(6)),
            ("num_key_value_heads", json!(2)),
            ("num_experts", json!(5)),
            ("num_experts_per_tok", json!(2)),
            ("num_hidden_layers", json!(2)),
            ("vocab_size", json!(31)),
            ("eos_token_id", json!(30)),
        ],
    )
}

fn with(mut config: Value, changes: &[(&str, Value)]) -> Value {
    for (key, value) in changes {
        config[*key] = value.clone();
    }
    config
}

fn without(mut config: Value, key: &str) -> Value {
    config.as_object_mut().unwrap().shift_remove(key).unwrap();
    config
}

fn tensor(name: impl Into<String>, shape: &[usize]) -> TensorInfo {
    TensorInfo {
        name: name.into(),
        dtype: "BF16".into(),
        encoding: Some(Encoding::Bf16),
        shape: shape.to_vec(),
    }
}

/// The tensors that the published layout has for `config`, experts stacked or one by one.
fn tensors(config: &Value, fused: bool) -> Vec<TensorInfo> {
    let n = |key: &str| usize::try_from(config[key].as_u64().unwrap()).unwrap();
    let (h, f, v, e) = (
        n("hidden_size"),
        n("intermediate_size"),
        n("vocab_size"),
        n("num_experts"),
    );
    let kv = h / n("num_attention_heads") * n("num_key_value_heads");
    let mut table = vec![
        tensor("model.embed_tokens.weight", &[v, h]),
        tensor("model.norm.weight", &[h]),
        tensor("lm_head.weight", &[v, h]),
    ];
    for i in 0..n("num_hidden_layers") {
        for (name, shape) in [
            ("input_layernorm.weight", vec![h]),
            ("post_attention_layernorm.weight", vec![h]),
            ("self_attn.q_proj.weight", vec![h, h]),
            ("self_attn.k_proj.weight", vec![kv, h]),
            ("self_attn.v_proj.weight", vec![kv, h]),
            ("self_attn.o_proj.weight", vec![h, h]),
            ("self_attn.q_norm.weight", vec![h]),
            ("self_attn.k_norm.weight", vec![kv]),
            ("mlp.gate.weight", vec![e, h]),
        ] {
            table.push(tensor(format!("model.layers.{i}.{name}"), &shape));
        }
        let experts = format!("model.layers.{i}.mlp.experts");
        if fused {
            table.push(tensor(format!("{experts}.gate_up_proj"), &[e, 2 * f, h]));
            table.push(tensor(format!("{experts}.down_proj"), &[e, h, f]));
            continue;
        }
        for j in 0..e {
            table.push(tensor(format!("{experts}.{j}.gate_proj.weight"), &[f, h]));
            table.push(tensor(format!("{experts}.{j}.up_proj.weight"), &[f, h]));
            table.push(tensor(format!("{experts}.{j}.down_proj.weight"), &[h, f]));
        }
    }
    table
}

fn program(config: &Value, tensors: &[TensorInfo]) -> Program {
    lower(&config.to_string(), tensors).unwrap_or_else(|e| panic!("{e}"))
}

fn defects(config: &Value, tensors: &[TensorInfo]) -> Vec<Defect> {
    match lower(&config.to_string(), tensors) {
        Err(LowerError::Defects(defects)) => defects,
        other => panic!("expected defects, got {other:?}"),
    }
}

/// The one defect of a configuration change, as text.
fn config_defect(config: &Value) -> String {
    let found = defects(config, &tensors(&small(), false));
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].to_string()
}

#[test]
fn the_released_model_has_its_published_size() {
    let config = released();
    let table = tensors(&config, false);
    assert_eq!(table.len(), 3 + 16 * (9 + 3 * 64));
    let p = program(&config, &table);
    assert_eq!(p.parameters(), 6_919_161_856);
    assert_eq!(state::bytes_per_token(&p), 262_144);
    assert_eq!(state::fixed_bytes(&p), 0);
    assert_eq!(
        (p.dims.context, p.layers.len(), p.exit.logits),
        (4096, 16, 50304)
    );
    let experts: usize = p
        .operands
        .iter()
        .filter(|o| o.role == Role::Expert)
        .map(|o| o.elements())
        .sum();
    assert_eq!(experts, 6_442_450_944);
    let fused = program(&config, &tensors(&config, true));
    assert_eq!(fused.parameters(), p.parameters());
}

#[test]
fn the_layer_says_what_the_paper_says() {
    let config = small();
    let p = program(&config, &tensors(&config, false));
    let layer = &p.layers[1];
    let Mixer::Attention(a) = &layer.mixer.body else {
        panic!("{layer:?}")
    };
    assert_eq!((a.heads, a.kv_heads, a.head_dim), (6, 2, 4));
    assert_eq!((a.scale, a.clip), (0.5, None));
    assert_eq!(a.rope.as_ref().unwrap().theta, 10000.0);
    assert_eq!(a.qk_norm.as_ref().unwrap().scope, QkNormScope::Projection);
    let Ffn::Routed(r) = &layer.ffn.body else {
        panic!("{layer:?}")
    };
    assert_eq!((r.experts, r.top_k, r.unit.width), (5, 2, 10));
    assert_eq!(r.router.weights, WeightRule::Raw);
}

#[test]
fn operands_have_plain_names_and_published_sources() {
    let config = small();
    let p = program(&config, &tensors(&config, false));
    let Mixer::Attention(a) = &p.layers[1].mixer.body else {
        panic!("no attention")
    };
    let Ffn::Routed(r) = &p.layers[1].ffn.body else {
        panic!("not routed")
    };
    for (id, name, shape, source) in [
        (
            a.query.weight,
            "layers.1.attention.query",
            vec![24, 24],
            "self_attn.q_proj.weight",
        ),
        (
            a.key.weight,
            "layers.1.attention.key",
            vec![8, 24],
            "self_attn.k_proj.weight",
        ),
        (
            a.output.weight,
            "layers.1.attention.output",
            vec![24, 24],
            "self_attn.o_proj.weight",
        ),
        (
            r.router.weight,
            "layers.1.router",
            vec![5, 24],
            "mlp.gate.weight",
        ),
        (
            r.unit.gate,
            "layers.1.experts.gate",
            vec![5, 10, 24],
            "mlp.experts.0.gate_proj.weight",
        ),
        (
            r.unit.up,
            "layers.1.experts.up",
            vec![5, 10, 24],
            "mlp.experts.0.up_proj.weight",
        ),
        (
            r.unit.down,
            "layers.1.experts.down",
            vec![5, 24, 10],
            "mlp.experts.0.down_proj.weight",
        ),
    ] {
        let operand = p.operand(id);
        assert_eq!((operand.name.as_str(), &operand.shape), (name, &shape));
        assert_eq!(
            operand.parts[0][0].tensor,
            format!("model.layers.1.{source}")
        );
    }
    assert_eq!(
        p.operand(r.unit.up).parts[4][0].tensor,
        "model.layers.1.mlp.experts.4.up_proj.weight"
    );
    assert_eq!(p.operand(p.entry.embedding).name, "embedding");
    assert_eq!(p.operand(p.exit.head).name, "head");
}

#[test]
fn stacked_experts_are_cut_gate_rows_first() {
    let config = small();
    let p = program(&config, &tensors(&config, true));
    let Ffn::Routed(r) = &p.layers[0].ffn.body else {
        panic!("not routed")
    };
    let rows = |id, expert: usize| {
        let slice = &p.operand(id).parts[expert][0];
        (slice.tensor.clone(), slice.start, slice.step, slice.rows)
    };
    let stacked = "model.layers.0.mlp.experts.gate_up_proj".to_owned();
    assert_eq!(rows(r.unit.gate, 3), (stacked.clone(), 60, 1, 10));
    assert_eq!(rows(r.unit.up, 3), (stacked, 70, 1, 10));
    let down = "model.layers.0.mlp.experts.down_proj".to_owned();
    assert_eq!(rows(r.unit.down, 3), (down, 72, 1, 24));
}

#[test]
fn options_reach_the_program() {
    let config = with(
        small(),
        &[("clip_qkv", json!(1.4)), ("norm_topk_prob", json!(true))],
    );
    let p = program(&config, &tensors(&config, false));
    let Mixer::Attention(a) = &p.layers[0].mixer.body else {
        panic!("no attention")
    };
    let Ffn::Routed(r) = &p.layers[0].ffn.body else {
        panic!("not routed")
    };
    assert_eq!(a.clip, Some(1.4));
    assert_eq!(r.router.weights, WeightRule::Normalised { eps: 0.0 });
}

#[test]
fn the_rope_base_may_stand_in_rope_parameters() {
    let theta = |config: &Value| {
        let p = program(config, &tensors(&small(), false));
        let Mixer::Attention(a) = &p.layers[0].mixer.body else {
            panic!("no attention")
        };
        a.rope.as_ref().unwrap().theta
    };
    let nested = json!({"rope_theta": 500.0, "rope_type": "default"});
    let moved = with(
        without(small(), "rope_theta"),
        &[("rope_parameters", nested.clone())],
    );
    assert_eq!(theta(&moved), 500.0);
    assert_eq!(
        theta(&with(moved.clone(), &[("rope_theta", json!(500))])),
        500.0
    );
    let torn = config_defect(&with(moved.clone(), &[("rope_theta", json!(10000))]));
    assert!(torn.contains("10000") && torn.contains("500"), "{torn}");
    let yarn = json!({"rope_theta": 500.0, "rope_type": "yarn"});
    let text = config_defect(&with(moved.clone(), &[("rope_parameters", yarn)]));
    assert!(
        text.contains(r#"rope_parameters.rope_type: is "yarn""#),
        "{text}"
    );
    let extra = json!({"rope_theta": 500.0, "factor": 2.0});
    let text = config_defect(&with(moved, &[("rope_parameters", extra)]));
    assert!(text.contains("key rope_parameters.factor"), "{text}");
}

#[test]
fn a_tied_head_is_the_embedding() {
    let config = with(small(), &[("tie_word_embeddings", json!(true))]);
    let mut table = tensors(&config, false);
    assert_eq!(
        defects(&config, &table),
        [Defect::UnclaimedTensor("lm_head.weight".into())]
    );
    table.retain(|t| t.name != "lm_head.weight");
    let p = program(&config, &table);
    assert_eq!(p.exit.head, p.entry.embedding);
    let untied = without(config, "tie_word_embeddings");
    assert!(matches!(&defects(&untied, &table)[..],
        [Defect::MissingTensor { tensor, operand }]
            if tensor == "lm_head.weight" && operand == "head"));
}

#[test]
fn key_heads_default_to_the_query_heads() {
    let config = with(small(), &[("num_key_value_heads", json!(6))]);
    let table = tensors(&config, false);
    let whole = program(&config, &table);
    assert_eq!(
        program(&without(config.clone(), "num_key_value_heads"), &table),
        whole
    );
    assert_eq!(
        program(
            &with(config, &[("num_key_value_heads", Value::Null)]),
            &table
        ),
        whole
    );
}

#[test]
fn every_missing_tensor_is_exactly_its_defect() {
    for fused in [false, true] {
        let config = small();
        let table = tensors(&config, fused);
        for index in 0..table.len() {
            let mut damaged = table.clone();
            let lost = damaged.remove(index);
            let found = defects(&config, &damaged);
            assert!(
                matches!(&found[..],
                    [Defect::MissingTensor { tensor, .. }] if *tensor == lost.name),
                "{}: {found:?}",
                lost.name
            );
        }
    }
}

#[test]
fn every_misshaped_tensor_is_exactly_its_defect() {
    for fused in [false, true] {
        let config = small();
        let table = tensors(&config, fused);
        for index in 0..table.len() {
            for dim in 0..table[index].shape.len() {
                let mut damaged = table.clone();
                damaged[index].shape[dim] += 1;
                let expected = Defect::TensorShape {
                    tensor: table[index].name.clone(),
                    found: damaged[index].shape.clone(),
                    expected: table[index].shape.clone(),
                };
                assert_eq!(defects(&config, &damaged), [expected]);
            }
        }
    }
}

#[test]
fn every_extra_tensor_is_exactly_its_defect() {
    let config = small();
    for name in [
        "model.layers.2.mlp.gate.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.mlp.experts.5.up_proj.weight",
        "model.layers.0.mlp.shared_expert.up_proj.weight",
        "",
    ] {
        let mut table = tensors(&config, false);
        table.push(tensor(name, &[1]));
        assert_eq!(
            defects(&config, &table),
            [Defect::UnclaimedTensor(name.into())]
        );
    }
}

#[test]
fn unusable_element_types_are_named() {
    let config = small();
    let mut table = tensors(&config, false);
    table[4].dtype = "F8_E4M3".into();
    table[4].encoding = None;
    let expected = Defect::ElementType {
        tensor: table[4].name.clone(),
        dtype: "F8_E4M3".into(),
    };
    assert_eq!(defects(&config, &table), [expected]);
}

#[test]
fn every_needed_key_is_missed() {
    for key in [
        "hidden_size",
        "intermediate_size",
        "hidden_act",
        "max_position_embeddings",
        "norm_topk_prob",
        "num_attention_heads",
        "num_experts",
        "num_experts_per_tok",
        "num_hidden_layers",
        "rms_norm_eps",
        "rope_theta",
        "vocab_size",
    ] {
        let text = config_defect(&without(small(), key));
        assert!(
            text.starts_with(&format!("config.json: {key}: is missing")),
            "{text}"
        );
    }
}

#[test]
fn values_that_cannot_be_used_are_named() {
    for (key, value) in [
        ("hidden_act", json!("gelu")),
        ("hidden_act", json!(1)),
        ("rope_scaling", json!({"factor": 2.0})),
        ("attention_bias", json!(true)),
        ("clip_qkv", json!(0)),
        ("clip_qkv", json!("1.4")),
        ("rms_norm_eps", json!(-1e-5)),
        ("norm_topk_prob", json!("false")),
        ("tie_word_embeddings", json!(1)),
        ("num_experts", json!(0)),
        ("num_experts", json!(1_000_000_000_000_u64)),
        ("num_hidden_layers", json!(1_000_000_000)),
        ("num_hidden_layers", json!(-1)),
        ("hidden_size", json!(2.5)),
        ("hidden_size", json!([24])),
        ("vocab_size", json!(u64::MAX)),
        ("num_key_value_heads", json!(4)),
        ("num_attention_heads", json!(24)),
        ("num_experts_per_tok", json!(6)),
        ("head_dim", json!(8)),
        ("rope_theta", json!(0)),
    ] {
        let text = config_defect(&with(small(), &[(key, value.clone())]));
        assert!(
            text.starts_with(&format!("config.json: {key}: ")),
            "{key} {value}: {text}"
        );
    }
}

#[test]
fn sizes_far_beyond_the_checkpoint_are_one_defect() {
    let table = tensors(&small(), false);
    for (layers, experts) in [(1024, 5), (2, 4096), (1024, 4096)] {
        let config = with(
            small(),
            &[
                ("num_hidden_layers", json!(layers)),
                ("num_experts", json!(experts)),
            ],
        );
        let text = config_defect(&config);
        assert!(
            text.contains(&format!("the checkpoint has {}", table.len())),
            "{text}"
        );
    }
}

#[test]
fn unknown_keys_are_exactly_their_defects() {
    for key in [
        "sliding_window",
        "quantization_config",
        "num_shared_experts",
        "Hidden_size",
        "",
    ] {
        let config = with(small(), &[(key, json!({"bits": 4}))]);
        let expected = Defect::UnknownConfigKey(key.into());
        assert_eq!(defects(&config, &tensors(&small(), false)), [expected]);
    }
}

#[test]
fn defects_of_all_kinds_are_reported_together() {
    let config = with(
        small(),
        &[("hidden_act", json!("gelu")), ("window", json!(3))],
    );
    let mut table = tensors(&config, false);
    let lost = table.remove(5).name;
    table[0].shape[0] += 1;
    table.push(tensor("vision.weight", &[2, 2]));
    let found = defects(&config, &table);
    assert_eq!(found.len(), 5, "{found:#?}");
    let text = LowerError::Defects(found).to_string();
    for needle in [
        "hidden_act",
        "window",
        &lost,
        "model.embed_tokens.weight",
        "vision.weight",
    ] {
        assert!(text.contains(needle), "{needle} is not in\n{text}");
    }
    let unreadable = with(
        small(),
        &[("hidden_size", json!(0)), ("num_experts", json!("x"))],
    );
    assert_eq!(defects(&unreadable, &[]).len(), 2);
}

/// Whatever one changed byte makes of a configuration, lowering answers.
#[test]
fn no_changed_byte_breaks_lowering() {
    let table = tensors(&small(), false);
    let text = small().to_string();
    let mut opened = 0;
    for index in 0..text.len() {
        for byte in [b'0', b'9', b'"', b'{', b'}', b',', b'-', b'e', b' ', 0] {
            let mut damaged = text.clone().into_bytes();
            damaged[index] = byte;
            let damaged = String::from_utf8(damaged).unwrap();
            opened += u32::from(lower(&damaged, &table).is_ok());
        }
    }
    // Those that do not change the meaning, or only an inert value.
    assert!(opened > 100, "{opened}");
}

#[test]
fn the_golden_fixture_closes() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/olmoe-101");
    let config = std::fs::read_to_string(format!("{dir}/config.json")).unwrap();
    let bytes = std::fs::read(format!("{dir}/model.safetensors")).unwrap();
    let length = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let table: Vec<TensorInfo> = header
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| *name != "__metadata__")
        .map(|(name, entry)| TensorInfo {
            name: name.clone(),
            dtype: entry["dtype"].as_str().unwrap().to_owned(),
            encoding: (entry["dtype"] == "F32").then_some(Encoding::F32),
            shape: serde_json::from_value(entry["shape"].clone()).unwrap(),
        })
        .collect();
    let p = lower(&config, &table).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(p.parameters() * 4, (bytes.len() - 8 - length) as u64);
}
