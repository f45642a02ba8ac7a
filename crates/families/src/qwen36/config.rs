//! The configuration of the Qwen3.5 line: at the top level, or under `text_config` where a vision
//! tower comes along.

use crate::common::{
    check_ends, check_mixed_size, choices, draft_depths, language_model, read_block_fp8, settled,
};
use crate::config::{
    ConfigReader, Domain, MAX_CONTEXT, MAX_LAYERS, MAX_VOCABULARY, MAX_WIDTH, Rejected,
};
use crate::qwen::{DeltaHeads, GatedHeads, Mixture};
use crate::qwen_keys;
use crate::sources::Sources;
use lamella_program::block::Activation;
use serde_json::json;

/// Share of a head's channels that rotate where the configuration does not say.
const ROTATED_SHARE: f64 = 0.25;

/// The three layouts that `model_type` tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// Qwen3.5 and Qwen3.6 with experts.
    Experts,
    /// Their dense models.
    Dense,
    /// Qwen3-Next: projections of the delta net joined by key head.
    Next,
}

impl Line {
    /// The line that `model_type` names, of the whole model or of its language part.
    fn of(model_type: &str) -> Option<Line> {
        match model_type {
            "qwen3_5_moe" | "qwen3_5_moe_text" => Some(Line::Experts),
            "qwen3_5" | "qwen3_5_text" => Some(Line::Dense),
            "qwen3_next" => Some(Line::Next),
            _ => None,
        }
    }
}

/// What a layer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// Attention instead of a delta net.
    pub(super) attends: bool,
    /// Experts instead of a dense unit.
    pub(super) sparse: bool,
}

/// The configuration keys that this family computes with.
pub(super) struct Config {
    /// Whether the language model is a part of a larger one.
    pub(super) wrapped: bool,
    pub(super) hidden: usize,
    pub(super) layers: Vec<Kind>,
    pub(super) attention: GatedHeads,
    pub(super) delta: DeltaHeads,
    /// Inner width of a dense unit; 0 where no layer has one.
    pub(super) dense_width: usize,
    pub(super) mixture: Option<Mixture>,
    pub(super) vocabulary: usize,
    pub(super) context: usize,
    pub(super) eps: f32,
    pub(super) tied_head: bool,
    /// Layers of the draft heads.
    pub(super) draft_layers: usize,
    /// Sides of an FP8 block.
    pub(super) block: Option<[usize; 2]>,
}

/// What stands at the top level, around a language model or beside its keys.
struct Outer {
    line: Line,
    tied_head: Result<Option<bool>, Rejected>,
    block: Result<Option<[usize; 2]>, Rejected>,
    wrapped: bool,
}

impl Config {
    /// Reads all keys before giving up on any, so that every fault is reported.
    pub(super) fn read(
        c: &mut ConfigReader<'_>,
        sources: &Sources<'_>,
    ) -> Result<Config, Rejected> {
        let Some(line) = c.optional_text("model_type")?.and_then(Line::of) else {
            return Err(c.reject("model_type", "is not one of this family"));
        };
        // Where images enter; a text has none of these tokens.
        c.ignore(&[
            "image_token_id",
            "video_token_id",
            "vision_config",
            "vision_end_token_id",
            "vision_start_token_id",
        ]);
        let mut outer = Outer {
            line,
            tied_head: c.optional_flag("tie_word_embeddings"),
            block: read_block_fp8(c, sources),
            wrapped: false,
        };
        let Some(mut text) = language_model(c, false)? else {
            return Config::read_text(c, sources, outer);
        };
        outer.wrapped = true;
        text.ignore_inert();
        let read = Config::read_inner(&mut text, sources, outer);
        c.absorb(text);
        check_ends(c, read.as_ref().map(|config| config.vocabulary));
        read
    }

    /// Reads the nested keys of a language model.
    fn read_inner(
        c: &mut ConfigReader<'_>,
        sources: &Sources<'_>,
        outer: Outer,
    ) -> Result<Config, Rejected> {
        let model_type = c.optional_text("model_type").unwrap_or(None);
        if model_type.is_some_and(|name| Line::of(name) != Some(outer.line)) {
            let _ = c.reject("model_type", "is not the language part of this model");
        }
        let inner = c.optional_flag("tie_word_embeddings");
        let tied_head = match (outer.tied_head, inner) {
            (Ok(Some(a)), Ok(Some(b))) if a != b => Err(c.reject(
                "tie_word_embeddings",
                format!("is {b}, but at the top level it is {a}"),
            )),
            (Ok(a), Ok(b)) => Ok(a.or(b)),
            _ => Err(Rejected),
        };
        Config::read_text(c, sources, Outer { tied_head, ..outer })
    }

    fn read_text(
        c: &mut ConfigReader<'_>,
        sources: &Sources<'_>,
        outer: Outer,
    ) -> Result<Config, Rejected> {
        require_fixed(c, outer.line);
        let hidden = c.count("hidden_size", MAX_WIDTH);
        let attention = qwen_keys::read_attention(c, ROTATED_SHARE);
        let vocabulary = c.count("vocab_size", MAX_VOCABULARY);
        check_ends(c, vocabulary);
        let context = c.count("max_position_embeddings", MAX_CONTEXT);
        let draft_layers = c.whole_or("mtp_num_hidden_layers", MAX_LAYERS, 1);
        let delta = qwen_keys::read_delta(c, Activation::Silu);
        let mixture = match outer.line {
            Line::Dense => Ok(None),
            Line::Experts | Line::Next => qwen_keys::read_mixture(c).map(Some),
        };
        let layers = read_layers(c, outer.line);
        let dense_width = c.optional_count("intermediate_size", MAX_WIDTH);
        // Values that shape no tensor: a bad one is a defect, and the tensors are checked all the
        // same with a stand-in that no program ever carries.
        let eps = c.number("rms_norm_eps", Domain::Epsilon).unwrap_or(1.0) as f32;
        let config = Config {
            wrapped: outer.wrapped,
            hidden: hidden?,
            layers: layers?,
            attention: attention?,
            delta: delta?,
            dense_width: dense_width?.unwrap_or(0),
            mixture: mixture?,
            vocabulary: vocabulary?,
            context: context?,
            eps,
            tied_head: outer.tied_head?.unwrap_or(false),
            draft_layers: draft_depths(sources, draft_layers?, |name| name.starts_with("mtp.")),
            block: outer.block?,
        };
        config.check_geometry(c)?;
        let sparse = config.layers.iter().filter(|kind| kind.sparse).count();
        let layers = [config.layers.len(), sparse].map(|n| n + config.draft_layers);
        let experts = config.mixture.as_ref().map_or(0, |m| m.experts);
        check_mixed_size(c, sources, layers, 8, ("num_experts", experts))?;
        Ok(config)
    }

    /// Numbers that are usable one by one and contradict each other.
    fn check_geometry(&self, c: &mut ConfigReader<'_>) -> Result<(), Rejected> {
        if self.layers.iter().any(|kind| !kind.sparse) && self.dense_width == 0 {
            let message = "is missing, and a layer without experts needs it";
            return Err(c.reject("intermediate_size", message));
        }
        Ok(())
    }
}

/// Keys with one value that the mathematics here stands for.
fn require_fixed(c: &mut ConfigReader<'_>, line: Line) {
    c.require("hidden_act", &json!("silu"));
    for (key, only) in [
        ("attention_bias", json!(false)),
        ("attn_output_gate", json!(true)),
        ("mamba_ssm_dtype", json!("float32")),
        ("mtp_use_dedicated_embeddings", json!(false)),
        ("use_sliding_window", json!(false)),
    ] {
        c.require_if_present(key, &only);
    }
    if line == Line::Experts {
        c.require_if_present("decoder_sparse_step", &json!(1));
        c.require_if_present("mlp_only_layers", &json!([]));
        c.require_if_present("norm_topk_prob", &json!(true));
    }
}

/// What each layer is: a list of mixers, the interval of those that attend, or both.
fn read_layers(c: &mut ConfigReader<'_>, line: Line) -> Result<Vec<Kind>, Rejected> {
    const WORDS: [&str; 2] = ["linear_attention", "full_attention"];
    let count = c.count("num_hidden_layers", MAX_LAYERS);
    let interval = c.optional_count("full_attention_interval", MAX_LAYERS);
    let types = c.optional_texts("layer_types", MAX_LAYERS);
    let sparse = read_sparse(c, line, count);
    let types = match types? {
        Some(types) => Some(choices(c, "layer_types", &types, WORDS, count?)?),
        None => None,
    };
    let every = match interval? {
        Some(n) => Some((1..=count?).map(|index| index.is_multiple_of(n)).collect()),
        None => None,
    };
    let attends = settled(c, ["full_attention_interval", "layer_types"], every, types)?;
    let pairs = attends.into_iter().zip(sparse?);
    Ok(pairs
        .map(|(attends, sparse)| Kind { attends, sparse })
        .collect())
}

/// Which layers have experts.
fn read_sparse(
    c: &mut ConfigReader<'_>,
    line: Line,
    count: Result<usize, Rejected>,
) -> Result<Vec<bool>, Rejected> {
    if line != Line::Next {
        return Ok(vec![line == Line::Experts; count?]);
    }
    let step = c.optional_count("decoder_sparse_step", MAX_LAYERS);
    let dense = c.optional_wholes("mlp_only_layers", MAX_LAYERS, MAX_LAYERS);
    let (count, step, dense) = (count?, step?.unwrap_or(1), dense?.unwrap_or_default());
    if let Some(index) = dense.iter().find(|&&index| index >= count) {
        let message = format!("names layer {index} of {count}");
        return Err(c.reject("mlp_only_layers", message));
    }
    let mut sparse: Vec<bool> = (1..=count)
        .map(|index| index.is_multiple_of(step))
        .collect();
    for index in dense {
        sparse[index] = false;
    }
    Ok(sparse)
}
