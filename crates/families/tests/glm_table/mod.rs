//! Configurations of GLM, and the tensor tables of its published layouts.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::{tensor, with};
use lamella_program::TensorInfo;
use serde_json::{Value, json};

/// Configuration of the released GLM-5.2.
pub(crate) fn released() -> Value {
    let full = |i: usize| i < 3 || i % 4 == 2;
    let indexers: Vec<&str> = (0..78)
        .map(|i| if full(i) { "full" } else { "shared" })
        .collect();
    let units: Vec<&str> = (0..78)
        .map(|i| if i < 3 { "dense" } else { "sparse" })
        .collect();
    json!({
        "architectures": ["GlmMoeDsaForCausalLM"],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "eos_token_id": [154820, 154827, 154829],
        "ep_size": 1,
        "first_k_dense_replace": 3,
        "head_dim": 192,
        "hidden_act": "silu",
        "hidden_size": 6144,
        "index_head_dim": 128,
        "index_n_heads": 32,
        "index_share_for_mtp_iteration": true,
        "index_skip_topk_offset": 3,
        "index_topk": 2048,
        "index_topk_freq": 4,
        "index_topk_pattern": null,
        "indexer_rope_interleave": true,
        "indexer_types": indexers,
        "initializer_range": 0.02,
        "intermediate_size": 12288,
        "kv_lora_rank": 512,
        "max_position_embeddings": 1048576,
        "mlp_layer_types": units,
        "model_type": "glm_moe_dsa",
        "moe_intermediate_size": 2048,
        "moe_layer_freq": 1,
        "moe_router_dtype": "float32",
        "n_group": 1,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": true,
        "num_attention_heads": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 78,
        "num_key_value_heads": 64,
        "num_nextn_predict_layers": 1,
        "pad_token_id": 154820,
        "pretraining_tp": 1,
        "q_lora_rank": 2048,
        "qk_head_dim": 256,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_interleave": true,
        "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": false,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "transformers_version": "5.12.0",
        "use_cache": true,
        "v_head_dim": 256,
        "vocab_size": 154880
    })
}

/// A small configuration: one dense layer, three with experts, one of which shares.
pub(crate) fn small() -> Value {
    let mut config = released();
    for (key, value) in [
        ("hidden_size", json!(24)),
        ("num_hidden_layers", json!(4)),
        ("indexer_types", json!(["full", "full", "shared", "full"])),
        (
            "mlp_layer_types",
            json!(["dense", "sparse", "sparse", "sparse"]),
        ),
        ("first_k_dense_replace", json!(1)),
        ("num_attention_heads", json!(3)),
        ("q_lora_rank", json!(10)),
        ("kv_lora_rank", json!(14)),
        ("qk_nope_head_dim", json!(6)),
        ("qk_rope_head_dim", json!(4)),
        ("qk_head_dim", json!(10)),
        ("v_head_dim", json!(5)),
        ("index_n_heads", json!(2)),
        ("index_head_dim", json!(8)),
        ("index_topk", json!(4)),
        ("intermediate_size", json!(20)),
        ("moe_intermediate_size", json!(7)),
        ("n_routed_experts", json!(8)),
        ("num_experts_per_tok", json!(3)),
        ("n_shared_experts", json!(2)),
        ("n_group", json!(4)),
        ("topk_group", json!(2)),
        ("vocab_size", json!(31)),
        ("eos_token_id", json!([30, 29])),
        ("index_topk_freq", json!(2)),
        ("index_skip_topk_offset", json!(2)),
    ] {
        config = with(&config, key, value);
    }
    config
}

/// How a checkpoint is written.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Layout {
    /// Three tensors an expert.
    Apart,
    /// Two tensors for all experts of a layer.
    Stacked,
    /// Three tensors an expert, most matrices in FP8 with scales.
    Fp8,
}

/// The tensors that the published layout has for `config`, draft head included.
pub(crate) fn tensors(config: &Value, layout: Layout) -> Vec<TensorInfo> {
    let n = |key: &str| usize::try_from(config[key].as_u64().unwrap()).unwrap();
    let (h, v, layers) = (n("hidden_size"), n("vocab_size"), n("num_hidden_layers"));
    let mut table = vec![
        tensor("model.embed_tokens.weight", "BF16", &[v, h]),
        tensor("model.norm.weight", "BF16", &[h]),
        tensor("lm_head.weight", "BF16", &[v, h]),
    ];
    let says = |list: &str, i: usize, word: &str| config[list][i] == word;
    for i in 0..layers {
        let full = says("indexer_types", i, "full");
        let sparse = says("mlp_layer_types", i, "sparse");
        layer(config, layout, i, full, sparse, &mut table);
    }
    for i in layers..layers + n("num_nextn_predict_layers") {
        layer(config, layout, i, true, true, &mut table);
        for (name, shape) in [
            ("enorm", vec![h]),
            ("hnorm", vec![h]),
            ("eh_proj", vec![h, 2 * h]),
            ("shared_head.norm", vec![h]),
        ] {
            let name = format!("model.layers.{i}.{name}.weight");
            table.push(tensor(name, "BF16", &shape));
        }
    }
    table
}

// long: one list of names and shapes, as the release has them
fn layer(
    config: &Value,
    layout: Layout,
    index: usize,
    full: bool,
    sparse: bool,
    table: &mut Vec<TensorInfo>,
) {
    let n = |key: &str| usize::try_from(config[key].as_u64().unwrap()).unwrap();
    let (h, heads) = (n("hidden_size"), n("num_attention_heads"));
    let (nope, rope, value) = (
        n("qk_nope_head_dim"),
        n("qk_rope_head_dim"),
        n("v_head_dim"),
    );
    let (q, kv) = (n("q_lora_rank"), n("kv_lora_rank"));
    let (ih, id) = (n("index_n_heads"), n("index_head_dim"));
    let mut plain = |end: &str, dtype: &str, shape: &[usize]| {
        table.push(tensor(format!("model.layers.{index}.{end}"), dtype, shape));
    };
    plain("input_layernorm.weight", "BF16", &[h]);
    plain("post_attention_layernorm.weight", "BF16", &[h]);
    plain("self_attn.q_a_layernorm.weight", "BF16", &[q]);
    plain("self_attn.kv_a_layernorm.weight", "BF16", &[kv]);
    if full {
        plain("self_attn.indexer.k_norm.weight", "BF16", &[id]);
        plain("self_attn.indexer.k_norm.bias", "BF16", &[id]);
        plain("self_attn.indexer.weights_proj.weight", "BF16", &[ih, h]);
    }
    if sparse {
        let e = n("n_routed_experts");
        plain("mlp.gate.weight", "BF16", &[e, h]);
        plain("mlp.gate.e_score_correction_bias", "F32", &[e]);
    }
    let mut matrix = |end: &str, shape: [usize; 2]| {
        let name = format!("model.layers.{index}.{end}.weight");
        if layout == Layout::Fp8 {
            let blocks = shape.map(|side| side.div_ceil(128));
            table.push(tensor(format!("{name}_scale_inv"), "F32", &blocks));
            table.push(tensor(name, "F8_E4M3", &shape));
        } else {
            table.push(tensor(name, "BF16", &shape));
        }
    };
    matrix("self_attn.q_a_proj", [q, h]);
    matrix("self_attn.q_b_proj", [heads * (nope + rope), q]);
    matrix("self_attn.kv_a_proj_with_mqa", [kv + rope, h]);
    matrix("self_attn.kv_b_proj", [heads * (nope + value), kv]);
    matrix("self_attn.o_proj", [h, heads * value]);
    if full {
        matrix("self_attn.indexer.wq_b", [ih * id, q]);
        matrix("self_attn.indexer.wk", [id, h]);
    }
    let mut unit = |name: &str, width: usize| {
        matrix(&format!("{name}.gate_proj"), [width, h]);
        matrix(&format!("{name}.up_proj"), [width, h]);
        matrix(&format!("{name}.down_proj"), [h, width]);
    };
    if !sparse {
        return unit("mlp", n("intermediate_size"));
    }
    let (e, f) = (n("n_routed_experts"), n("moe_intermediate_size"));
    unit("mlp.shared_experts", f * n("n_shared_experts"));
    if layout == Layout::Stacked {
        let experts = format!("model.layers.{index}.mlp.experts");
        for (end, shape) in [("gate_up_proj", [e, 2 * f, h]), ("down_proj", [e, h, f])] {
            table.push(tensor(format!("{experts}.{end}"), "BF16", &shape));
        }
        return;
    }
    for expert in 0..e {
        unit(&format!("mlp.experts.{expert}"), f);
    }
}

/// The released FP8 checkpoints' addition to the configuration.
pub(crate) fn quantised(config: &Value) -> Value {
    let blocks = json!({
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "modules_to_not_convert": ["lm_head"],
        "quant_method": "fp8",
        "weight_block_size": [128, 128]
    });
    with(config, "quantization_config", blocks)
}
