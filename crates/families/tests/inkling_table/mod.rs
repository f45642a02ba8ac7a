//! Tensor tables of Inkling in its published layout, from a configuration.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::tensor;
use lamella_program::TensorInfo;
use serde_json::Value;

struct Table<'c> {
    text: &'c Value,
    tensors: Vec<TensorInfo>,
}

impl Table<'_> {
    fn n(&self, key: &str) -> usize {
        usize::try_from(self.text[key].as_u64().unwrap()).unwrap()
    }

    fn add(&mut self, name: &str, dtype: &str, shape: &[usize]) {
        self.tensors.push(tensor(name, dtype, shape));
    }

    fn all(&mut self, prefix: &str, list: &[(&str, &[usize])]) {
        for (name, shape) in list {
            self.add(&format!("{prefix}.{name}"), "BF16", shape);
        }
    }

    /// What dense and sparse layers, and those of draft heads, have in common.
    fn layer(&mut self, tensor: &str, local: bool) {
        let h = self.n("hidden_size");
        let of = |key: &str| match local {
            true => self.n(&format!("swa_{key}")),
            false => self.n(key),
        };
        let (heads, kv, d) = (
            of("num_attention_heads"),
            of("num_key_value_heads"),
            of("head_dim"),
        );
        let extent = self.n(if local {
            "sliding_window_size"
        } else {
            "rel_extent"
        });
        let (rank, taps) = (self.n("d_rel"), self.n("sconv_kernel_size"));
        self.all(
            tensor,
            &[
                ("attn.wq_du.weight", &[heads * d, h]),
                ("attn.wk_dv.weight", &[kv * d, h]),
                ("attn.wv_dv.weight", &[kv * d, h]),
                ("attn.wr_du.weight", &[heads * rank, h]),
                ("attn.wo_ud.weight", &[h, heads * d]),
                ("attn.q_norm.weight", &[d]),
                ("attn.k_norm.weight", &[d]),
                ("attn.k_sconv.weight", &[kv * d, 1, taps]),
                ("attn.v_sconv.weight", &[kv * d, 1, taps]),
                ("attn.rel_logits_proj.proj", &[rank, extent]),
                ("attn_norm.weight", &[h]),
                ("mlp_norm.weight", &[h]),
                ("attn_sconv.weight", &[h, 1, taps]),
                ("mlp_sconv.weight", &[h, 1, taps]),
            ],
        );
    }

    fn dense(&mut self, tensor: &str) {
        let (h, width) = (self.n("hidden_size"), self.n("dense_intermediate_size"));
        self.all(
            tensor,
            &[
                ("mlp.w13_dn.weight", &[2 * width, h]),
                ("mlp.w2_md.weight", &[h, width]),
                ("mlp.global_scale", &[1]),
            ],
        );
    }

    fn sparse(&mut self, tensor: &str, codes: bool) {
        let (h, f) = (self.n("hidden_size"), self.n("intermediate_size"));
        let (e, s) = (self.n("n_routed_experts"), self.n("n_shared_experts"));
        self.all(
            tensor,
            &[
                ("mlp.gate.weight", &[e + s, h]),
                ("mlp.shared_experts.shared_w13_weight", &[s, 2 * f, h]),
                ("mlp.shared_experts.shared_w2_weight", &[s, h, f]),
            ],
        );
        self.add(&format!("{tensor}.mlp.gate.bias"), "F32", &[e]);
        self.add(&format!("{tensor}.mlp.gate.global_scale"), "F32", &[1]);
        for (end, rows, cols) in [("w13_weight", 2 * f, h), ("w2_weight", h, f)] {
            let name = format!("{tensor}.mlp.experts.{end}");
            if !codes {
                self.add(&name, "BF16", &[e, rows, cols]);
                continue;
            }
            self.add(&name, "U8", &[e, rows, cols / 2]);
            self.add(&format!("{name}.scale"), "F8_E4M3", &[e, rows, cols / 16]);
            self.add(&format!("{name}.scale2"), "F32", &[e]);
            self.add(&format!("{name}.input_amax"), "BF16", &[1]);
            self.add(&format!("{name}.original_shape"), "I64", &[3]);
        }
    }
}

/// The tensors of the text model in its published layout; `codes` where experts are in NVFP4 but
/// for those of the first sparse layer.
pub(crate) fn tensors(config: &Value, codes: bool) -> Vec<TensorInfo> {
    let mut t = Table {
        text: &config["text_config"],
        tensors: Vec::new(),
    };
    let table = [t.n("vocab_size"), t.n("hidden_size")];
    let h = table[1];
    t.all(
        "model.llm",
        &[
            ("embed.weight", &table),
            ("unembed.weight", &table),
            ("embed_norm.weight", &[h]),
            ("norm.weight", &[h]),
        ],
    );
    let local: Vec<usize> = serde_json::from_value(t.text["local_layer_ids"].clone()).unwrap();
    for i in 0..t.n("num_hidden_layers") {
        let name = format!("model.llm.layers.{i}");
        t.layer(&name, local.contains(&i));
        match i.cmp(&t.n("dense_mlp_idx")) {
            std::cmp::Ordering::Less => t.dense(&name),
            place => t.sparse(&name, codes && place.is_gt()),
        }
    }
    t.tensors
}

/// The tensors of the draft heads.
pub(crate) fn drafts(config: &Value) -> Vec<TensorInfo> {
    let mut t = Table {
        text: &config["text_config"],
        tensors: Vec::new(),
    };
    let h = t.n("hidden_size");
    let heads = &config["mtp_config"];
    let local: Vec<u64> = serde_json::from_value(heads["local_layer_ids"].clone()).unwrap();
    for i in 0..heads["num_nextn_predict_layers"].as_u64().unwrap() {
        let name = format!("model.mtp.layers.{i}");
        t.all(
            &name,
            &[
                ("hidden_norm.weight", &[h]),
                ("embed_norm.weight", &[h]),
                ("input_proj.weight", &[h, 2 * h]),
            ],
        );
        let block = format!("{name}.transformer_block");
        t.layer(&block, local.contains(&i));
        t.dense(&block);
    }
    t.tensors
}

/// The tensors of the towers of Inkling-Small.
pub(crate) fn towers() -> Vec<TensorInfo> {
    let shapes: [(&str, &[usize]); 10] = [
        ("visual.layers.linear_0.weight", &[128, 75]),
        ("visual.layers.norm_0.weight", &[128]),
        ("visual.layers.linear_1.weight", &[320, 512]),
        ("visual.layers.norm_1.weight", &[320]),
        ("visual.layers.linear_2.weight", &[4800, 5120]),
        ("visual.layers.norm_2.weight", &[4800]),
        ("visual.layers.linear_3.weight", &[4096, 9600]),
        ("visual.final_norm.weight", &[4096]),
        ("audio.encoder.weight", &[1280, 4096]),
        ("audio.final_norm.weight", &[4096]),
    ];
    let named = shapes.iter();
    named
        .map(|(name, shape)| tensor(format!("model.{name}"), "BF16", shape))
        .collect()
}
