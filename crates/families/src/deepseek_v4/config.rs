//! The keys of a DeepSeek V4 configuration, in the published spelling and in the one that
//! transformers saves.

use super::codes::experts_in_fp4;
use super::names::scale_of;
use super::rotation::{Rotation, read_rotation};
use super::schedule::{Plan, read_schedule};
use crate::common::{check_ends, check_size, draft_depths, needs_no_blocks};
use crate::config::{
    ConfigReader, Domain, MAX_CONTEXT, MAX_EXPERTS, MAX_HEADS, MAX_LAYERS, MAX_VOCABULARY,
    MAX_WIDTH, Rejected,
};
use crate::sources::Sources;
use serde_json::json;

/// Most streams that are believed.
const MAX_STREAMS: usize = 64;
/// Most Sinkhorn passes that are believed.
const MAX_PASSES: usize = 1000;
/// Most draft heads that are believed.
pub(super) const MAX_DRAFTS: usize = 8;

/// The configuration keys that this family computes with.
pub(super) struct Config {
    pub(super) hidden: usize,
    pub(super) vocabulary: usize,
    pub(super) context: usize,
    pub(super) eps: f32,
    /// What each layer is.
    pub(super) layers: Vec<Plan>,
    pub(super) streams: Streams,
    pub(super) attention: Geometry,
    pub(super) rotation: Rotation,
    pub(super) experts: Experts,
    /// Draft heads the checkpoint carries.
    pub(super) drafts: usize,
    /// Rows and columns that share a scale in FP8.
    pub(super) block: [usize; 2],
}

/// The residual streams.
pub(super) struct Streams {
    pub(super) count: usize,
    pub(super) iterations: usize,
    pub(super) eps: f32,
}

/// Geometry of attention.
pub(super) struct Geometry {
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    pub(super) query_rank: usize,
    pub(super) window: usize,
    pub(super) output_groups: usize,
    pub(super) output_rank: usize,
    pub(super) index_heads: usize,
    pub(super) index_dim: usize,
    pub(super) index_top_k: usize,
}

/// Geometry of the mixtures of experts.
pub(super) struct Experts {
    pub(super) count: usize,
    pub(super) top_k: usize,
    pub(super) width: usize,
    pub(super) scale: f32,
    pub(super) limit: f32,
}

impl Config {
    /// Reads all keys before giving up on any, so that every fault is reported.
    pub(super) fn read(
        c: &mut ConfigReader<'_>,
        sources: &Sources<'_>,
    ) -> Result<Config, Rejected> {
        read_fixed(c, sources);
        let hidden = c.count("hidden_size", MAX_WIDTH);
        let layers = c.count("num_hidden_layers", MAX_LAYERS);
        let vocabulary = c.count("vocab_size", MAX_VOCABULARY);
        let context = c.count("max_position_embeddings", MAX_CONTEXT);
        check_ends(c, vocabulary);
        let drafts = c.optional_whole("num_nextn_predict_layers", MAX_DRAFTS);
        // Values that shape no tensor: a bad one is a defect, and the tensors are checked all the
        // same with a stand-in that no program ever carries.
        let eps = c.number("rms_norm_eps", Domain::Epsilon).unwrap_or(1.0) as f32;
        let streams = Streams::read(c);
        let attention = Geometry::read(c);
        let smallest_head = attention
            .as_ref()
            .map(|g| [g.head_dim, g.index_dim])
            .map_err(|&rejected| rejected);
        let rotation = read_rotation(c, smallest_head);
        let experts = Experts::read(c);
        let block = read_quantisation(c, sources);
        let drafts = drafts.map(|n| n.unwrap_or(0));
        let schedule = read_schedule(c, layers, drafts);
        let config = Config {
            hidden: hidden?,
            vocabulary: vocabulary?,
            context: context?,
            eps,
            layers: schedule?,
            streams: streams?,
            attention: attention?,
            rotation: rotation?,
            experts: experts?,
            drafts: draft_depths(sources, drafts?, |name| name.starts_with("mtp.")),
            block: block?,
        };
        let layers = layers? + config.drafts;
        let experts = ("n_routed_experts", config.experts.count);
        check_size(c, sources, layers, 32, experts)?;
        Ok(config)
    }
}

/// Keys of which one value is expressed.
fn read_fixed(c: &mut ConfigReader<'_>, sources: &Sources<'_>) {
    c.require("hidden_act", &json!("silu"));
    c.require("num_key_value_heads", &json!(1));
    c.require("n_shared_experts", &json!(1));
    c.require("scoring_func", &json!("sqrtsoftplus"));
    c.require("norm_topk_prob", &json!(true));
    c.require_if_present("topk_method", &json!("noaux_tc"));
    c.require_if_present("tie_word_embeddings", &json!(false));
    c.require_if_present("attention_bias", &json!(false));
    c.require_if_present("mlp_bias", &json!(false));
    // Noise of training.
    c.ignore(&["router_jitter_noise"]);
    read_expert_dtype(c, sources);
}

impl Streams {
    fn read(c: &mut ConfigReader<'_>) -> Result<Streams, Rejected> {
        let count = c.count("hc_mult", MAX_STREAMS);
        let iterations = c.count("hc_sinkhorn_iters", MAX_PASSES);
        let eps = c.number("hc_eps", Domain::Epsilon).unwrap_or(1.0) as f32;
        Ok(Streams {
            count: count?,
            iterations: iterations.unwrap_or(1),
            eps,
        })
    }
}

impl Geometry {
    fn read(c: &mut ConfigReader<'_>) -> Result<Geometry, Rejected> {
        let heads = c.count("num_attention_heads", MAX_HEADS);
        let head_dim = c.count("head_dim", MAX_WIDTH);
        let query_rank = c.count("q_lora_rank", MAX_WIDTH);
        let window = c.count("sliding_window", MAX_CONTEXT);
        let output_groups = c.count("o_groups", MAX_HEADS);
        let output_rank = c.count("o_lora_rank", MAX_WIDTH);
        let index_heads = c.count("index_n_heads", MAX_HEADS);
        let index_dim = c.count("index_head_dim", MAX_WIDTH);
        let index_top_k = c.count("index_topk", MAX_CONTEXT);
        let (heads, output_groups) = (heads?, output_groups?);
        if !heads.is_multiple_of(output_groups) {
            let message = format!("{output_groups} groups do not divide {heads} heads");
            return Err(c.reject("o_groups", message));
        }
        Ok(Geometry {
            heads,
            head_dim: head_dim?,
            query_rank: query_rank?,
            window: window.unwrap_or(1),
            output_groups,
            output_rank: output_rank?,
            index_heads: index_heads?,
            index_dim: index_dim?,
            index_top_k: index_top_k.unwrap_or(1),
        })
    }
}

impl Experts {
    fn read(c: &mut ConfigReader<'_>) -> Result<Experts, Rejected> {
        let count = c.count("n_routed_experts", MAX_EXPERTS);
        let top_k = c.count("num_experts_per_tok", MAX_EXPERTS);
        let width = c.count("moe_intermediate_size", MAX_WIDTH);
        let scale = c
            .number("routed_scaling_factor", Domain::Factor)
            .unwrap_or(1.0) as f32;
        let limit = c.number("swiglu_limit", Domain::Positive).unwrap_or(1.0) as f32;
        let (count, top_k) = (count?, top_k?);
        if top_k > count {
            let message = format!("{top_k} experts cannot be chosen of {count}");
            return Err(c.reject("num_experts_per_tok", message));
        }
        Ok(Experts {
            count,
            top_k,
            width: width?,
            scale,
            limit,
        })
    }
}

/// What the experts are stored in. The tensors' own types decide; the key is only checked.
fn read_expert_dtype(c: &mut ConfigReader<'_>, sources: &Sources<'_>) {
    let key = "expert_dtype";
    let said = match c.optional_text(key) {
        Ok(Some("fp4")) => true,
        Ok(Some("fp8")) => false,
        Ok(Some(_)) => {
            let _ = c.refuse(key, "is neither \"fp4\" nor \"fp8\"");
            return;
        }
        _ => return,
    };
    let stored = match experts_in_fp4(sources) {
        Some(fp4) if fp4 == said => return,
        Some(true) => "in FP4",
        Some(false) => "in FP8",
        None => "as plain numbers: leave the key out, or take the tensors that it was written for",
    };
    let said = if said { "fp4" } else { "fp8" };
    let message = format!("is {said:?}, but the experts are stored {stored}");
    let _ = c.refuse(key, message);
}

/// The sides of an FP8 block. They are needed where the checkpoint has FP8 tensors.
fn read_quantisation(
    c: &mut ConfigReader<'_>,
    sources: &Sources<'_>,
) -> Result<[usize; 2], Rejected> {
    let Some(mut q) = c.object("quantization_config")? else {
        return needs_no_blocks(c, sources, scale_of).map(|()| [1, 1]);
    };
    if let Err(rejected) = q.require_kind("quant_method", &json!("fp8")) {
        c.absorb(q);
        return Err(rejected);
    }
    q.require_if_present("fmt", &json!("e4m3"));
    // In which type the scales are stored: the tensors say it themselves.
    q.require_if_present("scale_fmt", &json!("ue8m0"));
    // How inputs were rounded when the model was served; the weights are the same numbers.
    q.require_if_present("activation_scheme", &json!("dynamic"));
    read_expert_dtype(&mut q, sources);
    let block = match q.optional_wholes("weight_block_size", MAX_WIDTH, 2) {
        Err(rejected) => Err(rejected),
        Ok(Some(sides)) if sides.len() == 2 && !sides.contains(&0) => Ok([sides[0], sides[1]]),
        Ok(_) => Err(q.refuse("weight_block_size", "is not the two sides of a block")),
    };
    c.absorb(q);
    block
}
