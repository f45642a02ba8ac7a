//! One layer of each kind at production shape: the configuration of a fixture with the published
//! sizes.

use serde_json::{Value, json};
use std::path::Path;

/// One layer of a released model.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    fixture: &'static str,
    /// Where the keys of the language model are.
    text: Option<&'static str>,
    /// The published values, and one layer; null takes a key away.
    keys: Value,
    experts: Option<Experts>,
}

/// The keys that count experts, and the size of one.
struct Experts {
    count: &'static str,
    chosen: &'static str,
    parameters: usize,
}

impl Shape {
    /// The configuration with experts of at most `limit` parameters, and how many they are of how
    /// many. At least twice as many as a token chooses stay.
    pub(crate) fn config(&self, limit: usize) -> (Value, [usize; 2]) {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = here
            .join("../../fixtures")
            .join(self.fixture)
            .join("config.json");
        let text = std::fs::read_to_string(file).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        let place = match self.text {
            Some(key) => &mut config[key],
            None => &mut config,
        };
        let place = place.as_object_mut().unwrap();
        for (key, value) in self.keys.as_object().unwrap() {
            match value {
                Value::Null => {
                    place.shift_remove(key);
                }
                Value::Object(inner) => {
                    for (key_of, value) in inner {
                        place[key][key_of] = value.clone();
                    }
                }
                _ => {
                    place.insert(key.clone(), value.clone());
                }
            }
        }
        let mut counts = [0, 0];
        if let Some(experts) = &self.experts {
            let number = |key: &str| usize::try_from(place[key].as_u64().unwrap()).unwrap();
            let (all, chosen) = (number(experts.count), number(experts.chosen));
            let held = (limit / experts.parameters).max(2 * chosen).min(all);
            place.insert(experts.count.to_owned(), json!(held));
            counts = [held, all];
        }
        (config, counts)
    }

    /// Layers that are run together.
    pub(crate) fn layers(&self) -> usize {
        let layers = self.keys["num_hidden_layers"].as_u64();
        layers.and_then(|n| n.try_into().ok()).unwrap()
    }
}

/// Every kind of layer.
pub(crate) fn all() -> Vec<Shape> {
    let mut shapes = vec![olmoe()];
    shapes.extend([2048, 512].map(glm));
    shapes.extend([1, 2].map(glm_dense));
    shapes.extend([true, false].map(inkling));
    shapes.extend([true, false].map(kimi));
    shapes.extend([true, false].map(qwen36));
    shapes.extend([true, false].map(qwen38_delta));
    shapes.extend([2048, 512].map(qwen38));
    shapes.extend([[0, 512], [4, 512], [4, 128], [128, 512]].map(deepseek));
    shapes
}

/// Recurrent layers beside full attention of the same width: that of their own model, and for the
/// one whose model has latent attention, a plain one of as many heads too.
pub(crate) fn pairs() -> [[Shape; 2]; 4] {
    [
        [qwen36(true), qwen36(false)],
        [qwen38_delta(false), qwen38(2048)],
        [kimi(true), kimi(false)],
        [kimi(true), kimi_plain()],
    ]
}

fn olmoe() -> Shape {
    Shape {
        name: "OLMoE attention",
        fixture: "olmoe-101",
        text: None,
        keys: json!({
            "hidden_size": 2048, "num_hidden_layers": 1, "vocab_size": 1024,
            "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 1024,
            "num_experts": 64, "num_experts_per_tok": 8
        }),
        experts: Some(Experts {
            count: "num_experts",
            chosen: "num_experts_per_tok",
            parameters: 3 * 2048 * 1024,
        }),
    }
}

fn glm(top_k: usize) -> Shape {
    Shape {
        name: match top_k {
            2048 => "GLM-5.2 latent attention",
            _ => "GLM-5.2 latent attention, selecting 512",
        },
        fixture: "glm-101",
        text: None,
        keys: json!({
            "hidden_size": 6144, "num_hidden_layers": 1, "vocab_size": 1024,
            "intermediate_size": 12_288, "moe_intermediate_size": 2048,
            "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 2048,
            "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
            "qk_head_dim": 256, "v_head_dim": 256, "index_n_heads": 32, "index_head_dim": 128,
            "index_topk": top_k, "n_routed_experts": 256, "num_experts_per_tok": 8,
            "n_group": 1, "topk_group": 1, "indexer_types": ["full"],
            "mlp_layer_types": ["sparse"], "first_k_dense_replace": 0,
            "num_nextn_predict_layers": 0
        }),
        experts: Some(Experts {
            count: "n_routed_experts",
            chosen: "num_experts_per_tok",
            parameters: 3 * 6144 * 2048,
        }),
    }
}

/// As many layers with dense units, of which the second takes the first one's selection.
fn glm_dense(layers: usize) -> Shape {
    let mut shape = glm(512);
    let first = |word, other| [word, other][..layers].to_vec();
    shape.name = match layers {
        1 => "GLM-5.2 latent attention, selecting 512, dense",
        _ => "GLM-5.2 latent attention, selecting 512, dense, and one that shares the selection",
    };
    shape.keys["num_hidden_layers"] = json!(layers);
    shape.keys["indexer_types"] = json!(first("full", "shared"));
    shape.keys["mlp_layer_types"] = json!(first("dense", "dense"));
    shape.keys["first_k_dense_replace"] = json!(layers);
    shape.experts = None;
    shape
}

fn inkling(local: bool) -> Shape {
    Shape {
        name: match local {
            true => "Inkling sliding attention",
            false => "Inkling global attention",
        },
        fixture: "inkling-101",
        text: Some("text_config"),
        keys: json!({
            "hidden_size": 6144, "num_hidden_layers": 1,
            "local_layer_ids": if local { vec![0] } else { vec![] },
            "vocab_size": 1024, "unpadded_vocab_size": 1024, "num_attention_heads": 64,
            "num_key_value_heads": 8, "head_dim": 128, "swa_num_attention_heads": 64,
            "swa_num_key_value_heads": 16, "swa_head_dim": 128, "sliding_window_size": 512,
            "d_rel": 16, "rel_extent": 1024, "log_scaling_n_floor": 128_000,
            "log_scaling_alpha": 0.1, "dense_mlp_idx": 0, "dense_intermediate_size": 24_576,
            "intermediate_size": 3072, "n_routed_experts": 256, "num_experts_per_tok": 6,
            "n_shared_experts": 2, "route_scale": 8.0, "logits_mup_width_multiplier": 24
        }),
        experts: Some(Experts {
            count: "n_routed_experts",
            chosen: "num_experts_per_tok",
            parameters: 3 * 6144 * 3072,
        }),
    }
}

fn kimi(delta: bool) -> Shape {
    let layers = |there: bool| if there { vec![1] } else { vec![] };
    Shape {
        name: match delta {
            true => "Kimi K3 delta attention",
            false => "Kimi K3 latent attention",
        },
        fixture: "kimi_k3-bf16-404",
        text: None,
        keys: json!({
            "hidden_size": 7168, "num_hidden_layers": 1, "vocab_size": 1024,
            "intermediate_size": 33_792, "attn_res_block_size": 12, "first_k_dense_replace": 0,
            "num_attention_heads": 96, "num_key_value_heads": 96, "q_lora_rank": 1536,
            "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "num_experts": 896, "num_experts_per_token": 16,
            "moe_intermediate_size": 3072, "routed_expert_hidden_size": 3584,
            "num_shared_experts": 2, "latent_moe_use_norm": true,
            "linear_attn_config": {
                "kda_layers": layers(delta), "full_attn_layers": layers(!delta),
                "num_heads": 96, "head_dim": 128
            }
        }),
        experts: Some(Experts {
            count: "num_experts",
            chosen: "num_experts_per_token",
            parameters: 3 * 3584 * 3072,
        }),
    }
}

/// Attention with keys and values for every head of Kimi K3's delta attention, and a gate as there.
/// Its feed-forward block is small: only mixers are worth comparing.
fn kimi_plain() -> Shape {
    let mut shape = qwen36(false);
    shape.name = "full attention of 96 heads of 128";
    shape.keys["hidden_size"] = json!(7168);
    shape.keys["num_attention_heads"] = json!(96);
    shape.keys["num_key_value_heads"] = json!(96);
    shape.keys["head_dim"] = json!(128);
    shape
}

fn qwen36(delta: bool) -> Shape {
    Shape {
        name: match delta {
            true => "Qwen3.6 delta net",
            false => "Qwen3.6 gated attention",
        },
        fixture: "qwen36-101",
        text: Some("text_config"),
        keys: json!({
            "hidden_size": 2048, "num_hidden_layers": 1, "layer_types": [kind(delta)],
            "full_attention_interval": 4, "vocab_size": 1024, "num_attention_heads": 16,
            "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "num_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
            "max_position_embeddings": 262_144
        }),
        experts: Some(Experts {
            count: "num_experts",
            chosen: "num_experts_per_tok",
            parameters: 3 * 2048 * 512,
        }),
    }
}

fn kind(delta: bool) -> &'static str {
    match delta {
        true => "linear_attention",
        false => "full_attention",
    }
}

fn qwen38_delta(ngrams: bool) -> Shape {
    let mut shape = qwen38(2048);
    shape.name = match ngrams {
        true => "Qwen3.8 delta net with n-grams",
        false => "Qwen3.8 delta net",
    };
    shape.keys["layer_types"] = json!([kind(true)]);
    shape.keys["ple_layer_ids"] = json!(if ngrams { vec![1] } else { vec![] });
    shape
}

/// Block-sparse attention over the best `budget` tokens.
fn qwen38(budget: usize) -> Shape {
    Shape {
        name: match budget {
            2048 => "Qwen3.8 block-sparse attention",
            _ => "Qwen3.8 block-sparse attention, selecting 512",
        },
        fixture: "qwen38-111",
        text: Some("text_config"),
        // The table of n-grams is cut down; a row is read from it as from the whole one.
        keys: json!({
            "hidden_size": 2560, "num_hidden_layers": 1, "layer_types": [kind(false)],
            "full_attention_interval": 4, "vocab_size": 1024, "num_attention_heads": 24,
            "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
            "linear_num_value_heads": 48, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "num_experts": 512, "num_experts_per_tok": 10,
            "moe_intermediate_size": 640, "shared_expert_intermediate_size": 640,
            "hc_count": 4, "hc_lowrank": 320, "indexer_n_heads": 4, "indexer_head_dim": 128,
            "indexer_budget": budget, "indexer_compress_ratio": 4, "ple_layer_ids": [],
            "ple_embed_dim": 2560, "ngram_size": 3, "heads_per_ngram": 8,
            "ngram_vocab_size_base": 20_000, "split_ngram_parts": 1, "eos_token_id": 1023,
            "max_position_embeddings": 262_144, "mtp_num_hidden_layers": 0, "mtp": null
        }),
        experts: Some(Experts {
            count: "num_experts",
            chosen: "num_experts_per_tok",
            parameters: 3 * 2560 * 640,
        }),
    }
}

/// A layer that compresses so many tokens to one, and selects `top_k` of them where they are four.
fn deepseek([ratio, top_k]: [usize; 2]) -> Shape {
    Shape {
        name: match [ratio, top_k] {
            [0, _] => "DeepSeek V4 Flash window",
            [4, 512] => "DeepSeek V4 Flash window and chosen entries",
            [4, _] => "DeepSeek V4 Flash window and chosen entries, selecting 128",
            _ => "DeepSeek V4 Flash window and all entries",
        },
        fixture: "deepseek_v4-101",
        text: None,
        keys: json!({
            "hidden_size": 4096, "num_hidden_layers": 1, "num_hash_layers": 0,
            "num_attention_heads": 64, "head_dim": 512, "qk_rope_head_dim": 64,
            "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024,
            "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 6,
            "swiglu_limit": 10.0, "sliding_window": 128, "index_n_heads": 64,
            "index_head_dim": 128, "index_topk": top_k, "vocab_size": 1024, "hc_mult": 4,
            "hc_sinkhorn_iters": 20, "compress_ratios": [ratio], "num_nextn_predict_layers": 0
        }),
        experts: Some(Experts {
            count: "n_routed_experts",
            chosen: "num_experts_per_tok",
            parameters: 3 * 4096 * 2048,
        }),
    }
}
