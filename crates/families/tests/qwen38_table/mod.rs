//! Tensor tables of Qwen3.8-Flash-Next in its published layouts, from a configuration.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "each test binary uses a part of it")]

use crate::common::{fixture, tensor};
use lamella_program::TensorInfo;
use serde_json::{Value, json};

/// The configuration of the release.
pub(crate) fn released() -> Value {
    let (mut config, _) = fixture("qwen38-111");
    let kinds: Vec<&str> = (1..=48)
        .map(|n| match n % 4 {
            0 => "full_attention",
            _ => "linear_attention",
        })
        .collect();
    let text = json!({
        "hidden_size": 2560, "num_hidden_layers": 48, "layer_types": kinds,
        "vocab_size": 248_320, "num_attention_heads": 24, "num_key_value_heads": 2,
        "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "num_experts": 512,
        "num_experts_per_tok": 10, "moe_intermediate_size": 640,
        "shared_expert_intermediate_size": 640, "hc_count": 4, "hc_lowrank": 320,
        "indexer_n_heads": 4, "indexer_head_dim": 128, "indexer_budget": 2048,
        "indexer_compress_ratio": 4, "ple_layer_ids": [2], "ple_embed_dim": 2560,
        "ngram_size": 3, "heads_per_ngram": 8, "ngram_vocab_size_base": 20_000_000,
        "make_ngram_vocab_size_divisible_by": 128, "split_ngram_parts": 128, "seed": 1234,
        "max_position_embeddings": 262_144, "eos_token_id": 248_044, "bos_token_id": 248_044
    });
    for (key, value) in text.as_object().unwrap() {
        config["text_config"][key] = value.clone();
    }
    let rope = &mut config["text_config"]["rope_parameters"];
    rope["rope_theta"] = json!(1e7);
    rope["mrope_section"] = json!([11, 11, 10]);
    config["text_config"]["mtp"]["rope_theta"] = json!(1e7);
    config
}

/// A configuration where everything is different: text only, a tied head, three streams, two n-gram
/// tables of 4-grams in parts of which the last are empty.
pub(crate) fn plain() -> Value {
    let kinds = ["linear_attention", "indexed_attention"].repeat(3);
    json!({
        "model_type": "qwen4_exp_text", "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "hidden_size": 72, "num_hidden_layers": 6, "layer_types": kinds, "vocab_size": 280,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32,
        "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 16,
        "linear_value_head_dim": 24, "linear_conv_kernel_dim": 3, "num_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 40, "norm_topk_prob": false, "hc_count": 3,
        "hc_lowrank": 10, "indexer_n_heads": 3, "indexer_kv_heads": 1, "indexer_head_dim": 24,
        "indexer_budget": 12, "indexer_compress_ratio": 2, "ple_layer_ids": [3, 1],
        "ple_embed_dim": 48, "ple_conv_kernel_size": 3, "ngram_size": 4, "heads_per_ngram": 2,
        "ngram_vocab_size_base": 1, "make_ngram_vocab_size_divisible_by": 2,
        "split_ngram_parts": 16, "seed": 77, "eos_token_id": [276, 274],
        "tie_word_embeddings": true, "max_position_embeddings": 512, "rope_theta": 1e6,
        "partial_rotary_factor": 0.5
    })
}

/// How a table of tensors is stored.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Stored {
    /// As trained.
    Bf16,
    /// Experts in FP8 blocks, n-gram tables in FP8 with one scale.
    Fp8,
    /// Experts and n-gram tables in NVFP4.
    Nvfp4,
}

struct Table<'c> {
    text: &'c Value,
    stored: Stored,
    prefix: &'static str,
    tensors: Vec<TensorInfo>,
}

impl Table<'_> {
    fn n(&self, key: &str) -> usize {
        usize::try_from(self.text[key].as_u64().unwrap()).unwrap()
    }

    fn add(&mut self, name: &str, shape: &[usize]) {
        self.tensors.push(tensor(name, "BF16", shape));
    }

    fn all(&mut self, prefix: &str, list: &[(&str, &[usize])]) {
        for (name, shape) in list {
            self.add(&format!("{prefix}.{name}"), shape);
        }
    }

    /// A matrix of an expert, `name` without `.weight`.
    fn coded(&mut self, name: &str, [rows, cols]: [usize; 2]) {
        let mut add = |end: &str, dtype: &str, shape: &[usize]| {
            self.tensors
                .push(tensor(format!("{name}.{end}"), dtype, shape));
        };
        match self.stored {
            Stored::Bf16 => add("weight", "BF16", &[rows, cols]),
            Stored::Fp8 => {
                add("weight", "F8_E4M3", &[rows, cols]);
                let blocks = [rows.div_ceil(128), cols.div_ceil(128)];
                add("weight_scale_inv", "BF16", &blocks);
            }
            Stored::Nvfp4 => {
                add("weight", "U8", &[rows, cols / 2]);
                add("weight_scale", "F8_E4M3", &[rows, cols / 16]);
                add("weight_scale_2", "F32", &[]);
                add("input_scale", "F32", &[]);
            }
        }
    }

    fn gate(&mut self, tensor: &str, writes: bool) {
        let (n, rank) = (self.n("hc_count"), self.n("hc_lowrank"));
        let all = n * self.n("hidden_size");
        let list: [(&str, &[usize]); 4] = [
            ("hc_norm.weight", &[all]),
            ("input_mix_weight_down.weight", &[rank, all]),
            ("input_mix_weight_up.weight", &[all, rank]),
            ("block_inject_weight.weight", &[n, all]),
        ];
        self.all(tensor, &list[..if writes { 4 } else { 3 }]);
    }

    fn delta(&mut self, tensor: &str) {
        let h = self.n("hidden_size");
        let (values, value_dim) = (
            self.n("linear_num_value_heads"),
            self.n("linear_value_head_dim"),
        );
        let keys = self.n("linear_num_key_heads") * self.n("linear_key_head_dim");
        let z = values * value_dim;
        let channels = 2 * keys + z;
        self.all(
            tensor,
            &[
                ("in_proj_qkv.weight", &[channels, h]),
                ("in_proj_z.weight", &[z, h]),
                ("in_proj_a.weight", &[values, h]),
                ("in_proj_b.weight", &[values, h]),
                ("A_log", &[values]),
                ("dt_bias", &[values]),
                (
                    "conv1d.weight",
                    &[channels, 1, self.n("linear_conv_kernel_dim")],
                ),
                ("norm.weight", &[value_dim]),
                ("out_proj.weight", &[h, z]),
            ],
        );
    }

    fn attention(&mut self, tensor: &str) {
        let (h, d) = (self.n("hidden_size"), self.n("head_dim"));
        let (q, kv) = (
            self.n("num_attention_heads") * d,
            self.n("num_key_value_heads") * d,
        );
        let (heads, width) = (self.n("indexer_n_heads"), self.n("indexer_head_dim"));
        self.all(
            tensor,
            &[
                ("q_proj.weight", &[2 * q, h]),
                ("k_proj.weight", &[kv, h]),
                ("v_proj.weight", &[kv, h]),
                ("o_proj.weight", &[h, q]),
                ("q_norm.weight", &[d]),
                ("k_norm.weight", &[d]),
                ("indexer.index_qk_proj.weight", &[(heads + 1) * width, h]),
                ("indexer.q_layernorm.weight", &[width]),
                ("indexer.k_layernorm.weight", &[width]),
            ],
        );
    }

    fn mixture(&mut self, tensor: &str, stacked: bool) {
        let (h, e) = (self.n("hidden_size"), self.n("num_experts"));
        let (f, s) = (
            self.n("moe_intermediate_size"),
            self.n("shared_expert_intermediate_size"),
        );
        self.all(
            tensor,
            &[
                ("gate.weight", &[e, h]),
                ("shared_expert_gate.weight", &[1, h]),
                ("shared_expert.gate_proj.weight", &[s, h]),
                ("shared_expert.up_proj.weight", &[s, h]),
                ("shared_expert.down_proj.weight", &[h, s]),
            ],
        );
        let experts = format!("{tensor}.experts");
        if stacked {
            self.add(&format!("{experts}.gate_up_proj"), &[e, 2 * f, h]);
            self.add(&format!("{experts}.down_proj"), &[e, h, f]);
            return;
        }
        for i in 0..e {
            self.coded(&format!("{experts}.{i}.gate_proj"), [f, h]);
            self.coded(&format!("{experts}.{i}.up_proj"), [f, h]);
            self.coded(&format!("{experts}.{i}.down_proj"), [h, f]);
        }
    }

    /// The n-gram embedding of a layer with tables of `rows` rows.
    fn ngram(&mut self, tensor: &str, rows: usize) {
        let (h, width) = (self.n("hidden_size"), self.n("ple_embed_dim"));
        let (all, taps) = (self.n("hc_count") * h, self.n("ple_conv_kernel_size"));
        self.all(
            tensor,
            &[
                ("key_proj.weight", &[all, width]),
                ("value_proj.weight", &[h, width]),
                ("norm_key.weight", &[all]),
                ("norm_query.weight", &[all]),
                ("norm_conv.weight", &[all]),
                ("conv1d.weight", &[all, 1, taps]),
            ],
        );
        let order = self.n("ngram_size");
        let heads = (order - 1) * self.n("heads_per_ngram");
        let parts = self.n("split_ngram_parts");
        let (each, cols) = (rows.div_ceil(parts), width / heads);
        let embedding = format!("{tensor}.ple_embedding");
        let mut add = |end: &str, dtype: &str, shape: &[usize]| {
            let name = format!("{embedding}.{end}");
            self.tensors
                .push(crate::common::tensor(&name, dtype, shape));
        };
        for i in 0..parts {
            let rows = rows.saturating_sub(i * each).min(each);
            let name = format!("ngram_embedding.shard_{i}.weight");
            match self.stored {
                Stored::Bf16 => add(&name, "BF16", &[rows, cols]),
                Stored::Fp8 => add(&name, "F8_E4M3", &[rows, cols]),
                Stored::Nvfp4 => {
                    add(&name, "U8", &[rows, cols / 2]);
                    add(&format!("{name}_scale"), "F8_E4M3", &[rows, cols / 16]);
                }
            }
        }
        match self.stored {
            Stored::Bf16 => {}
            Stored::Fp8 => add("ngram_embedding.weight_scale", "BF16", &[1]),
            Stored::Nvfp4 => add("ngram_embedding.weight_scale_2", "F32", &[1]),
        }
        add("layer_multipliers", "I64", &[order]);
        add("ngram_heads_vocab_sizes", "I64", &[heads]);
        add("ngram_heads_offsets", "I64", &[heads]);
    }

    fn layer(&mut self, tensor: &str, recurrent: bool, stacked: bool) {
        self.gate(&format!("{tensor}.attn_hyper_connection"), true);
        self.gate(&format!("{tensor}.mlp_hyper_connection"), true);
        match recurrent {
            true => self.delta(&format!("{tensor}.linear_attn")),
            false => self.attention(&format!("{tensor}.self_attn")),
        }
        self.mixture(&format!("{tensor}.mlp"), stacked);
    }
}

/// The tensors of the published layout; `tables` are the rows of each n-gram table.
pub(crate) fn tensors(
    config: &Value,
    stored: Stored,
    stacked: bool,
    tables: &[usize],
) -> Vec<TensorInfo> {
    let (text, prefix) = match config.get("text_config") {
        Some(text) => (text, "model.language_model"),
        None => (config, "model"),
    };
    let mut t = Table {
        text,
        stored,
        prefix,
        tensors: Vec::new(),
    };
    let table = [t.n("vocab_size"), t.n("hidden_size")];
    t.add(&format!("{prefix}.embed_tokens.weight"), &table);
    if config["tie_word_embeddings"] != json!(true) {
        t.add("lm_head.weight", &table);
    }
    let kinds = text["layer_types"].as_array().unwrap();
    for (i, kind) in kinds.iter().enumerate() {
        let recurrent = kind == "linear_attention";
        t.layer(&format!("{prefix}.layers.{i}"), recurrent, stacked);
    }
    let mut ids: Vec<u64> = serde_json::from_value(text["ple_layer_ids"].clone()).unwrap();
    ids.sort_unstable();
    for (id, &rows) in ids.iter().zip(tables) {
        t.ngram(&format!("{}.layers.{}.ple", t.prefix, id - 1), rows);
    }
    t.gate(&format!("{prefix}.hyper_connection_mixer"), false);
    t.tensors
}

/// Tensors of the draft head.
pub(crate) fn drafts(config: &Value, stored: Stored) -> Vec<TensorInfo> {
    let mut t = Table {
        text: &config["text_config"],
        stored,
        prefix: "",
        tensors: Vec::new(),
    };
    let h = t.n("hidden_size");
    let all = t.n("hc_count") * h;
    t.all(
        "mtp",
        &[
            ("fc_embedding.weight", &[h, h]),
            ("fc_hidden.weight", &[h, h]),
            ("pre_fc_norm_embedding.weight", &[h]),
            ("pre_fc_norm_hidden.weight", &[all]),
        ],
    );
    t.layer("mtp.layers.0", false, stored == Stored::Bf16);
    t.gate("mtp.hyper_connection_mixer", false);
    t.tensors
}
