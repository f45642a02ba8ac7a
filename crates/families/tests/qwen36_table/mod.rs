//! Configurations of the Qwen3.5 line and of Qwen3-Next, and the tensor tables of their published
//! layouts.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(dead_code, reason = "each test binary uses a part of it")]

use crate::common::tensor;
use lamella_program::TensorInfo;
use serde_json::{Value, json};

/// Start of the names of a language model beside a vision tower, and of one alone.
pub(crate) const WRAPPED: &str = "model.language_model";
pub(crate) const ALONE: &str = "model";

/// How a checkpoint is written.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Layout {
    /// Two tensors for all experts of a layer.
    Stacked,
    /// Three tensors an expert.
    Apart,
    /// Three tensors an expert, most matrices in FP8 with scales.
    Fp8,
}

/// Sizes that tell the models of the line apart.
pub(crate) struct Sizes {
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    /// Query heads, key heads.
    pub(crate) heads: [usize; 2],
    /// Value heads of the delta net.
    pub(crate) values: usize,
    /// Experts, those chosen, width of one, width of the shared one.
    pub(crate) experts: Option<[usize; 4]>,
    pub(crate) dense: usize,
    pub(crate) vocabulary: usize,
    pub(crate) tied: bool,
}

pub(crate) fn dense(
    hidden: usize,
    layers: usize,
    heads: [usize; 2],
    values: usize,
    dense: usize,
) -> Sizes {
    Sizes {
        hidden,
        layers,
        heads,
        values,
        experts: None,
        dense,
        vocabulary: 248_320,
        tied: hidden < 4096,
    }
}

pub(crate) fn sparse(hidden: usize, layers: usize, values: usize, experts: [usize; 4]) -> Sizes {
    Sizes {
        experts: Some(experts),
        tied: false,
        ..dense(hidden, layers, [16, 2], values, 0)
    }
}

/// The 35B-A3B, whose first and last layers stand for all.
pub(crate) fn a3b() -> Sizes {
    sparse(2048, 40, 32, [256, 8, 512, 512])
}

/// The text configuration of a model at production shape.
pub(crate) fn text(sizes: &Sizes) -> Value {
    let kinds = [
        "linear_attention",
        "linear_attention",
        "linear_attention",
        "full_attention",
    ];
    let types: Vec<&str> = (0..sizes.layers).map(|i| kinds[i % 4]).collect();
    let mut config = json!({
        "attention_bias": false,
        "attn_output_gate": true,
        "dtype": "bfloat16",
        "eos_token_id": sizes.vocabulary - 1,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "layer_types": types,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": sizes.values,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": false,
        "num_attention_heads": sizes.heads[0],
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.heads[1],
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": true,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default"
        },
        "tie_word_embeddings": sizes.tied,
        "use_cache": true,
        "vocab_size": sizes.vocabulary
    });
    if let Some([experts, chosen, width, shared]) = sizes.experts {
        config["model_type"] = json!("qwen3_5_moe_text");
        config["num_experts"] = json!(experts);
        config["num_experts_per_tok"] = json!(chosen);
        config["moe_intermediate_size"] = json!(width);
        config["shared_expert_intermediate_size"] = json!(shared);
        config["router_aux_loss_coef"] = json!(0.001);
    } else {
        config["intermediate_size"] = json!(sizes.dense);
    }
    config
}

/// The configuration of a multimodal release around that of its language model.
pub(crate) fn wrapped(text: &Value) -> Value {
    let model_type = text["model_type"].as_str().unwrap();
    json!({
        "image_token_id": 248056,
        "model_type": model_type.strip_suffix("_text").unwrap(),
        "text_config": text,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "video_token_id": 248057,
        "vision_config": {"depth": 27, "hidden_size": 1152},
        "vision_end_token_id": 248054,
        "vision_start_token_id": 248053
    })
}

/// The configuration as Qwen3-Next has it.
pub(crate) fn next(text: &Value) -> Value {
    let mut config = text.clone();
    let keys = config.as_object_mut().unwrap();
    for key in [
        "attn_output_gate",
        "layer_types",
        "mamba_ssm_dtype",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
        "rope_parameters",
    ] {
        keys.shift_remove(key).unwrap();
    }
    for (key, value) in [
        ("decoder_sparse_step", json!(1)),
        ("intermediate_size", json!(5120)),
        ("mlp_only_layers", json!([])),
        ("model_type", json!("qwen3_next")),
        ("norm_topk_prob", json!(true)),
        ("partial_rotary_factor", json!(0.25)),
        ("rope_scaling", json!(null)),
        ("rope_theta", json!(10_000_000)),
        ("use_sliding_window", json!(false)),
    ] {
        keys.insert(key.to_owned(), value);
    }
    config
}

/// The released FP8 checkpoints' addition to the configuration.
pub(crate) fn quantised(config: &Value) -> Value {
    let mut config = config.clone();
    config["quantization_config"] = json!({
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "modules_to_not_convert": ["lm_head"],
        "quant_method": "fp8",
        "weight_block_size": [128, 128]
    });
    config
}

/// The tensors that the published layout has for `text`, under `prefix`, draft head included.
pub(crate) fn tensors(text: &Value, prefix: &str, layout: Layout) -> Vec<TensorInfo> {
    let mut table = Table {
        text,
        layout,
        joined: text["model_type"] == "qwen3_next",
        tensors: Vec::new(),
    };
    let (h, v) = (table.n("hidden_size"), table.n("vocab_size"));
    table.add(format!("{prefix}.embed_tokens.weight"), &[v, h]);
    table.add(format!("{prefix}.norm.weight"), &[h]);
    if text["tie_word_embeddings"] != true {
        table.add("lm_head.weight".into(), &[v, h]);
    }
    for i in 0..table.n("num_hidden_layers") {
        let full = match text["layer_types"].as_array() {
            Some(types) => types[i] == "full_attention",
            None => (i + 1).is_multiple_of(4),
        };
        table.layer(&format!("{prefix}.layers.{i}"), full);
    }
    table.add("mtp.fc.weight".into(), &[h, 2 * h]);
    for norm in ["norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"] {
        table.add(format!("mtp.{norm}.weight"), &[h]);
    }
    table.layer("mtp.layers.0", true);
    table.tensors
}

/// A small model of each kind: uneven widths, three value heads a key head.
pub(crate) fn small(sizes: Sizes) -> Value {
    let mut config = text(&sizes);
    for (key, value) in [
        ("head_dim", json!(8)),
        ("linear_key_head_dim", json!(5)),
        ("linear_num_key_heads", json!(2)),
        ("linear_value_head_dim", json!(6)),
    ] {
        config[key] = value;
    }
    config
}

pub(crate) fn small_sparse() -> Value {
    small(Sizes {
        heads: [4, 2],
        vocabulary: 31,
        ..sparse(24, 4, 6, [5, 2, 7, 9])
    })
}

pub(crate) fn small_dense() -> Value {
    small(Sizes {
        vocabulary: 31,
        ..dense(24, 4, [4, 2], 6, 20)
    })
}

/// Every published way to write a small model: its configuration and its tensors.
pub(crate) fn layouts() -> Vec<(Value, Vec<TensorInfo>)> {
    let (sparse, dense) = (small_sparse(), small_dense());
    let joined = next(&sparse);
    vec![
        (wrapped(&sparse), tensors(&sparse, WRAPPED, Layout::Stacked)),
        (
            quantised(&wrapped(&sparse)),
            tensors(&sparse, WRAPPED, Layout::Fp8),
        ),
        (sparse.clone(), tensors(&sparse, ALONE, Layout::Apart)),
        (wrapped(&dense), tensors(&dense, WRAPPED, Layout::Stacked)),
        (joined.clone(), tensors(&joined, ALONE, Layout::Apart)),
    ]
}

/// The names of a vision tower of `depth` blocks, each with a shape that nobody looks at.
pub(crate) fn tower(depth: usize) -> Vec<TensorInfo> {
    let block = [
        "attn.proj",
        "attn.qkv",
        "mlp.linear_fc1",
        "mlp.linear_fc2",
        "norm1",
        "norm2",
    ];
    let blocks = (0..depth).flat_map(|i| block.map(|end| format!("blocks.{i}.{end}")));
    let merger = ["linear_fc1", "linear_fc2", "norm"].map(|end| format!("merger.{end}"));
    let stems = blocks.chain(merger).chain(["patch_embed.proj".to_owned()]);
    let pairs = stems.flat_map(|stem| [format!("{stem}.weight"), format!("{stem}.bias")]);
    let names = pairs.chain(["pos_embed.weight".to_owned()]);
    names
        .map(|name| tensor(format!("model.visual.{name}"), "BF16", &[3]))
        .collect()
}

struct Table<'c> {
    text: &'c Value,
    layout: Layout,
    /// Whether the delta net's maps come in two tensors.
    joined: bool,
    tensors: Vec<TensorInfo>,
}

impl Table<'_> {
    fn n(&self, key: &str) -> usize {
        usize::try_from(self.text[key].as_u64().unwrap()).unwrap()
    }

    fn add(&mut self, name: String, shape: &[usize]) {
        self.tensors.push(tensor(name, "BF16", shape));
    }

    /// A matrix that the FP8 releases convert.
    fn matrix(&mut self, name: &str, shape: [usize; 2]) {
        let name = format!("{name}.weight");
        if self.layout == Layout::Fp8 {
            let blocks = shape.map(|side| side.div_ceil(128));
            let scales = tensor(format!("{name}_scale_inv"), "BF16", &blocks);
            self.tensors.push(scales);
            self.tensors.push(tensor(name, "F8_E4M3", &shape));
        } else {
            self.add(name, &shape);
        }
    }

    fn layer(&mut self, prefix: &str, full: bool) {
        let h = self.n("hidden_size");
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            self.add(format!("{prefix}.{norm}.weight"), &[h]);
        }
        match full {
            true => self.attention(&format!("{prefix}.self_attn")),
            false => self.delta(&format!("{prefix}.linear_attn")),
        }
        match self.text["num_experts"].as_u64() {
            Some(_) => self.mixture(&format!("{prefix}.mlp")),
            None => self.unit(&format!("{prefix}.mlp"), self.n("intermediate_size")),
        }
    }

    fn attention(&mut self, prefix: &str) {
        let (h, d) = (self.n("hidden_size"), self.n("head_dim"));
        let (q, kv) = (
            self.n("num_attention_heads") * d,
            self.n("num_key_value_heads") * d,
        );
        self.matrix(&format!("{prefix}.q_proj"), [2 * q, h]);
        self.matrix(&format!("{prefix}.k_proj"), [kv, h]);
        self.matrix(&format!("{prefix}.v_proj"), [kv, h]);
        self.matrix(&format!("{prefix}.o_proj"), [h, q]);
        self.add(format!("{prefix}.q_norm.weight"), &[d]);
        self.add(format!("{prefix}.k_norm.weight"), &[d]);
    }

    fn delta(&mut self, prefix: &str) {
        let (h, taps) = (self.n("hidden_size"), self.n("linear_conv_kernel_dim"));
        let heads = self.n("linear_num_value_heads");
        let keys = self.n("linear_num_key_heads") * self.n("linear_key_head_dim");
        let width = self.n("linear_value_head_dim");
        let values = heads * width;
        if self.joined {
            self.matrix(
                &format!("{prefix}.in_proj_qkvz"),
                [2 * keys + 2 * values, h],
            );
            self.add(format!("{prefix}.in_proj_ba.weight"), &[2 * heads, h]);
        } else {
            self.matrix(&format!("{prefix}.in_proj_qkv"), [2 * keys + values, h]);
            self.matrix(&format!("{prefix}.in_proj_z"), [values, h]);
            self.add(format!("{prefix}.in_proj_a.weight"), &[heads, h]);
            self.add(format!("{prefix}.in_proj_b.weight"), &[heads, h]);
        }
        self.matrix(&format!("{prefix}.out_proj"), [h, values]);
        self.add(
            format!("{prefix}.conv1d.weight"),
            &[2 * keys + values, 1, taps],
        );
        self.add(format!("{prefix}.A_log"), &[heads]);
        self.add(format!("{prefix}.dt_bias"), &[heads]);
        self.add(format!("{prefix}.norm.weight"), &[width]);
    }

    fn mixture(&mut self, prefix: &str) {
        let (h, e) = (self.n("hidden_size"), self.n("num_experts"));
        let f = self.n("moe_intermediate_size");
        self.add(format!("{prefix}.gate.weight"), &[e, h]);
        self.add(format!("{prefix}.shared_expert_gate.weight"), &[1, h]);
        let shared = self.n("shared_expert_intermediate_size");
        self.unit(&format!("{prefix}.shared_expert"), shared);
        if self.layout == Layout::Stacked {
            self.add(format!("{prefix}.experts.gate_up_proj"), &[e, 2 * f, h]);
            self.add(format!("{prefix}.experts.down_proj"), &[e, h, f]);
            return;
        }
        for expert in 0..e {
            self.unit(&format!("{prefix}.experts.{expert}"), f);
        }
    }

    fn unit(&mut self, prefix: &str, width: usize) {
        let h = self.n("hidden_size");
        self.matrix(&format!("{prefix}.gate_proj"), [width, h]);
        self.matrix(&format!("{prefix}.up_proj"), [width, h]);
        self.matrix(&format!("{prefix}.down_proj"), [h, width]);
    }
}
