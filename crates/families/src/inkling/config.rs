//! What `config.json` says, in both spellings: the published one and that of re-exports.

use super::codes::Codes;
use super::drafts::{self, Drafts};
use crate::common::{MAX_ALL_EXPERTS, language_model, named_twice, settled};
use crate::config::{
    ConfigReader, Domain, MAX_CONTEXT, MAX_EXPERTS, MAX_HEADS, MAX_LAYERS, MAX_VOCABULARY,
    MAX_WIDTH, Rejected,
};
use crate::rope_keys::refuse_rope;
use crate::sources::Sources;
use serde_json::json;

/// Taps of a short convolution that are believed.
const MAX_TAPS: usize = 64;
/// Switches that every release sets; without one of them the model would be another.
const SWITCHES: [&str; 6] = [
    "use_embed_norm",
    "use_sconv",
    "use_gate_bias",
    "use_global_scale",
    "norm_after_topk",
    "shared_expert_sink",
];
/// Keys of the text model that change no logits: a norm that the router of this architecture does
/// not have.
const INERT: &[&str] = &["rms_norm_eps_moe_gate"];
/// Keys beside the text model that change no logits of text: the towers, and the tokens that stand
/// for what they saw or heard.
const INERT_OUTSIDE: &[&str] = &[
    "audio_bos_token_id",
    "audio_config",
    "audio_token_id",
    "image_bos_token_id",
    "image_token_id",
    "vision_config",
];

/// The configuration keys that this family computes with.
pub(super) struct Config {
    pub(super) hidden: usize,
    pub(super) layers: Vec<Kind>,
    /// Attention of layers that see everything.
    pub(super) global: Heads,
    /// Attention of layers that see a window.
    pub(super) local: Heads,
    pub(super) window: usize,
    /// Values per head that the relative bias is computed from.
    pub(super) bias_rank: usize,
    /// Distances that have a bias in global layers.
    pub(super) bias_extent: usize,
    /// Floor and growth of the score multiplier in global layers.
    pub(super) scaling: Option<(f64, f64)>,
    pub(super) taps: usize,
    pub(super) dense_width: usize,
    pub(super) expert_width: usize,
    pub(super) experts: usize,
    pub(super) top_k: usize,
    pub(super) shared: usize,
    pub(super) route_scale: f32,
    pub(super) vocabulary: usize,
    /// Rows of the head that are logits.
    pub(super) logits: usize,
    pub(super) context: usize,
    pub(super) eps: f32,
    /// The normed hidden state is divided by it.
    pub(super) width_multiplier: f64,
    pub(super) drafts: Drafts,
    /// Which tensors are codes.
    pub(super) codes: Codes,
}

/// Which of the two attentions and of the two feed-forward blocks a layer has.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) local: bool,
    pub(super) dense: bool,
}

/// Geometry of attention heads.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

impl Config {
    /// Reads everything, the keys around the text model included, and refuses a model far larger
    /// than its checkpoint.
    pub(super) fn read(
        c: &mut ConfigReader<'_>,
        sources: &Sources<'_>,
    ) -> Result<Config, Rejected> {
        c.ignore(INERT_OUTSIDE);
        // Not compared with the vocabulary: a small model of this family keeps the ids of the large
        // one, and what ends a text is told by the tokenizer's files.
        let _ = c.optional_tokens("eos_token_id");
        c.require_if_present("tie_word_embeddings", &json!(false));
        let drafts = drafts::read_published(c);
        let mut text = language_model(c, true)?.ok_or(Rejected)?;
        text.ignore_inert();
        text.ignore(INERT);
        let drafts = drafts::settle(c, &mut text, drafts, sources);
        let codes = Codes::read(c, &mut text);
        let config = Config::read_text(&mut text);
        let config = config.and_then(|mut config| {
            config.drafts = drafts?;
            config.codes = codes?;
            config.check_size(&mut text, sources)
        });
        c.absorb(text);
        if let Ok(config) = &config {
            config.codes.check(c, sources, config.layers.len());
        }
        config
    }

    /// Reads all keys before giving up on any, so that every fault is reported.
    fn read_text(c: &mut ConfigReader<'_>) -> Result<Config, Rejected> {
        let hidden = c.count("hidden_size", MAX_WIDTH);
        let depth = c.count("num_hidden_layers", MAX_LAYERS);
        let global = Heads::read(c, "");
        let local = Heads::read(c, "swa_");
        let window = c.count("sliding_window_size", MAX_CONTEXT);
        let bias_rank = c.count("d_rel", MAX_WIDTH);
        let bias_extent = c.count("rel_extent", MAX_CONTEXT);
        let taps = spelt(c, "sconv_kernel_size", "conv_kernel_size", MAX_TAPS);
        let widths = read_widths(c);
        let experts = c.count("n_routed_experts", MAX_EXPERTS);
        let top_k = c.count("num_experts_per_tok", MAX_EXPERTS);
        let shared = c.count("n_shared_experts", MAX_EXPERTS);
        let vocabulary = c.count("vocab_size", MAX_VOCABULARY);
        let logits = c.optional_count("unpadded_vocab_size", MAX_VOCABULARY);
        let context = spelt(
            c,
            "model_max_length",
            "max_position_embeddings",
            MAX_CONTEXT,
        );
        // Values that shape no tensor: a bad one is a defect, and the tensors are checked all the
        // same with a stand-in that no program ever carries.
        let scaling = read_scaling(c).unwrap_or(None);
        let eps = c.number("rms_norm_eps", Domain::Epsilon).unwrap_or(1.0) as f32;
        let route_scale = c.number("route_scale", Domain::Factor).unwrap_or(1.0) as f32;
        let width_multiplier = c
            .number("logits_mup_width_multiplier", Domain::Factor)
            .unwrap_or(1.0);
        refuse_other_models(c);
        let layers = read_kinds(c, depth);
        let (dense_width, expert_width) = widths?;
        let (vocabulary, logits) = (vocabulary?, logits?);
        let config = Config {
            hidden: hidden?,
            layers: layers?,
            global: global?,
            local: local?,
            window: window?,
            bias_rank: bias_rank?,
            bias_extent: bias_extent?,
            scaling,
            taps: taps?,
            dense_width,
            expert_width,
            experts: experts?,
            top_k: top_k?,
            shared: shared?,
            route_scale,
            vocabulary,
            logits: logits.unwrap_or(vocabulary),
            context: context?,
            eps,
            width_multiplier,
            drafts: Drafts::default(),
            codes: Codes::default(),
        };
        config.check_geometry(c)?;
        Ok(config)
    }

    /// Numbers that are usable one by one and contradict each other.
    fn check_geometry(&self, c: &mut ConfigReader<'_>) -> Result<(), Rejected> {
        let mut result = Ok(());
        for (heads, key) in [
            (self.global, "num_key_value_heads"),
            (self.local, "swa_num_key_value_heads"),
        ] {
            if !heads.heads.is_multiple_of(heads.kv_heads) {
                let (q, kv) = (heads.heads, heads.kv_heads);
                let message = format!("{q} query heads cannot share {kv} key heads");
                result = Err(c.reject(key, message));
            }
        }
        if self.top_k > self.experts {
            let message = format!(
                "{} experts cannot be chosen of {}",
                self.top_k, self.experts
            );
            result = Err(c.reject("num_experts_per_tok", message));
        }
        if self.logits > self.vocabulary {
            let message = format!("is more than the {} rows of vocab_size", self.vocabulary);
            result = Err(c.reject("unpadded_vocab_size", message));
        }
        result
    }

    /// Refuses a configuration that is far larger than the checkpoint, before anything of that size
    /// is built. A few missing tensors are the closure check's to name.
    fn check_size(
        self,
        c: &mut ConfigReader<'_>,
        sources: &Sources<'_>,
    ) -> Result<Config, Rejected> {
        const PER_LAYER: usize = 17;
        let layers = self.layers.len();
        let needed = (layers + self.drafts.local.len()).saturating_mul(PER_LAYER);
        if needed > 4 * sources.len() + 4096 {
            let there = sources.len();
            let message =
                format!("{layers} layers need {needed} tensors, and the checkpoint has {there}");
            return Err(c.reject("num_hidden_layers", message));
        }
        if layers.saturating_mul(self.experts + self.shared) > MAX_ALL_EXPERTS {
            let message = format!("is more than can be used in {layers} layers");
            return Err(c.reject("n_routed_experts", message));
        }
        Ok(self)
    }
}

impl Heads {
    fn read(c: &mut ConfigReader<'_>, prefix: &str) -> Result<Heads, Rejected> {
        let heads = c.count(&format!("{prefix}num_attention_heads"), MAX_HEADS);
        let kv_heads = c.count(&format!("{prefix}num_key_value_heads"), MAX_HEADS);
        let head_dim = c.count(&format!("{prefix}head_dim"), MAX_WIDTH);
        Ok(Heads {
            heads: heads?,
            kv_heads: kv_heads?,
            head_dim: head_dim?,
        })
    }
}

/// Values that would make it another model.
fn refuse_other_models(c: &mut ConfigReader<'_>) {
    for key in SWITCHES {
        c.require_if_present(key, &json!(true));
    }
    for key in ["q_bias", "o_bias"] {
        c.require_if_present(key, &json!(false));
    }
    refuse_rope(c);
    c.require_if_present("model_type", &json!("inkling_text"));
    c.require_if_present("gate_activation", &json!("sigmoid"));
    c.require_if_present("hidden_act", &json!("silu"));
    c.require_if_present("final_logit_softcapping", &json!(null));
}

/// A count under its published name or under the one of re-exports.
fn spelt(
    c: &mut ConfigReader<'_>,
    published: &str,
    other: &str,
    max: usize,
) -> Result<usize, Rejected> {
    let first = c.optional_count(published, max);
    let second = c.optional_count(other, max);
    match (first?, second?) {
        (Some(a), Some(b)) if a != b => {
            Err(c.reject(published, format!("is {a}, but {other} is {b}")))
        }
        (Some(n), _) | (None, Some(n)) => Ok(n),
        (None, None) => c.count(published, max),
    }
}

/// Widths of the dense unit and of an expert. `intermediate_size` is the expert's in the published
/// spelling, which gives the other as `dense_intermediate_size`, and the dense one in re-exports,
/// which give the other as `moe_intermediate_size`.
fn read_widths(c: &mut ConfigReader<'_>) -> Result<(usize, usize), Rejected> {
    let plain = c.count("intermediate_size", MAX_WIDTH);
    let dense = c.optional_count("dense_intermediate_size", MAX_WIDTH);
    let expert = c.optional_count("moe_intermediate_size", MAX_WIDTH);
    match (dense?, expert?, plain?) {
        (Some(_), Some(expert), plain) if expert != plain => {
            let message = format!(
                "is {expert}, but intermediate_size, which beside dense_intermediate_size is the \
                 same width, is {plain}"
            );
            Err(c.reject("moe_intermediate_size", message))
        }
        (Some(dense), _, expert) | (None, Some(expert), dense) => Ok((dense, expert)),
        (None, None, _) => c
            .count("dense_intermediate_size", MAX_WIDTH)
            .map(|_| (0, 0)),
    }
}

/// Floor and growth of the score multiplier; a floor of null turns it off.
fn read_scaling(c: &mut ConfigReader<'_>) -> Result<Option<(f64, f64)>, Rejected> {
    let floor = c.optional_number("log_scaling_n_floor", Domain::Positive);
    let alpha = c.optional_number("log_scaling_alpha", Domain::Factor);
    match (floor?, alpha?) {
        (Some(floor), Some(alpha)) => Ok(Some((floor, alpha))),
        (Some(_), None) => Err(c.reject("log_scaling_alpha", "is missing")),
        (None, _) => Ok(None),
    }
}

/// What each layer is made of: lists of local and of dense layers, or the type of every layer.
fn read_kinds(
    c: &mut ConfigReader<'_>,
    depth: Result<usize, Rejected>,
) -> Result<Vec<Kind>, Rejected> {
    let ids = c.optional_wholes("local_layer_ids", MAX_LAYERS, MAX_LAYERS);
    let local = read_types(c, "layer_types", ["hybrid_sliding", "hybrid"], depth);
    let first_sparse = c.optional_whole("dense_mlp_idx", MAX_LAYERS);
    let dense = read_types(c, "mlp_layer_types", ["dense", "sparse"], depth);
    let depth = depth?;
    let (ids, first_sparse) = (ids?, first_sparse?);
    if let Some(id) = ids.iter().flatten().find(|&&id| id >= depth) {
        let message = format!("names layer {id}, but they count from 0 to {}", depth - 1);
        return Err(c.reject("local_layer_ids", message));
    }
    if first_sparse.is_some_and(|n| n > depth) {
        return Err(c.reject("dense_mlp_idx", format!("is more than the {depth} layers")));
    }
    if let Some(id) = ids.as_deref().and_then(named_twice) {
        let message = format!("names layer {id} once more");
        return Err(c.reject("local_layer_ids", message));
    }
    let ids = ids.map(|ids| (0..depth).map(|i| ids.contains(&i)).collect());
    let local = settled(c, ["local_layer_ids", "layer_types"], ids, local?);
    let leading = first_sparse.map(|n| (0..depth).map(|i| i < n).collect());
    let dense = settled(c, ["dense_mlp_idx", "mlp_layer_types"], leading, dense?);
    let kinds = local?.into_iter().zip(dense?);
    Ok(kinds.map(|(local, dense)| Kind { local, dense }).collect())
}

/// For each layer whether its type is the first of `types`.
fn read_types(
    c: &mut ConfigReader<'_>,
    key: &str,
    types: [&str; 2],
    depth: Result<usize, Rejected>,
) -> Result<Option<Vec<bool>>, Rejected> {
    let Some(found) = c.optional_texts(key, MAX_LAYERS)? else {
        return Ok(None);
    };
    c.note_words(key, &types);
    let depth = depth?;
    if found.len() != depth {
        let message = format!(
            "has {} layers, but num_hidden_layers is {depth}",
            found.len()
        );
        return Err(c.reject(key, message));
    }
    if let Some(other) = found.iter().find(|text| !types.contains(text)) {
        let message = format!(
            "has the type {other:.40?}, but only {:?} and {:?} can be used",
            types[0], types[1]
        );
        return Err(c.reject(key, message));
    }
    Ok(Some(found.iter().map(|text| *text == types[0]).collect()))
}
