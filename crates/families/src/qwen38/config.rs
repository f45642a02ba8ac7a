//! What `config.json` says, wrapped as in the multimodal releases or plain.

use super::codes::Codes;
use super::ngram_keys::{Ngram, read_ngram};
use crate::common::{check_ends, check_size, draft_depths, language_model, settled};
use crate::config::{
    ConfigReader, Domain, MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, MAX_VOCABULARY, MAX_WIDTH, Rejected,
};
use crate::qwen::{DeltaHeads, GatedHeads, Mixture};
use crate::qwen_keys;
use crate::sources::Sources;
use lamella_program::block::Activation;
use serde_json::json;

/// Residual streams that are believed.
const MAX_STREAMS: usize = 64;
/// Tensors of a layer beside its experts, at most.
const PER_LAYER: usize = 24;

/// Keys beside the text model that change no logits of text: the tower, and the tokens that stand
/// for what it saw.
const INERT_OUTSIDE: &[&str] = &[
    "image_token_id",
    "language_model_only",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_start_token_id",
];
/// The configuration keys that this family computes with.
pub(super) struct Config {
    pub(super) hidden: usize,
    /// For each layer whether it is a delta net.
    pub(super) recurrent: Vec<bool>,
    pub(super) attention: GatedHeads,
    pub(super) index: Index,
    pub(super) delta: DeltaHeads,
    pub(super) mixture: Mixture,
    pub(super) streams: usize,
    /// Rank of the maps that gate the streams.
    pub(super) rank: usize,
    pub(super) ngram: Option<Ngram>,
    pub(super) vocabulary: usize,
    pub(super) context: usize,
    pub(super) eps: f32,
    /// Whether the head is the embedding, where the configuration says.
    pub(super) tied_head: Option<bool>,
    /// Layers of the draft heads.
    pub(super) drafts: usize,
    /// How tensors in codes are stored.
    pub(super) codes: Codes,
}

/// Selection of blocks of tokens.
pub(super) struct Index {
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    /// Tokens in a block.
    pub(super) block: usize,
    /// Blocks kept.
    pub(super) blocks: usize,
}

impl Config {
    /// Reads everything and refuses a model far larger than its checkpoint.
    pub(super) fn read(
        c: &mut ConfigReader<'_>,
        sources: &Sources<'_>,
    ) -> Result<Config, Rejected> {
        let codes = Codes::read(c, sources);
        let text = language_model(c, false);
        if let Ok(None) = text {
            let mut config = Config::read_text(c)?;
            config.check_size(c, sources)?;
            config.codes = codes?;
            return Ok(config);
        }
        c.ignore(INERT_OUTSIDE);
        let tied = c.optional_flag("tie_word_embeddings");
        let mut text = text?.ok_or(Rejected)?;
        text.ignore_inert();
        text.require_if_present("model_type", &json!("qwen4_exp_text"));
        let config = Config::read_text(&mut text).and_then(|mut config| {
            config.check_size(&mut text, sources)?;
            Ok(config)
        });
        c.absorb(text);
        let mut config = config?;
        check_ends(c, Ok::<_, Rejected>(config.vocabulary));
        config.codes = codes?;
        config.tied_head = match (tied?, config.tied_head) {
            (Some(a), Some(b)) if a != b => {
                let message = format!("is {a}, but text_config.tie_word_embeddings is {b}");
                return Err(c.reject("tie_word_embeddings", message));
            }
            (outer, inner) => outer.or(inner),
        };
        Ok(config)
    }

    /// Reads all keys before giving up on any, so that every fault is reported.
    fn read_text(c: &mut ConfigReader<'_>) -> Result<Config, Rejected> {
        c.require_if_present("mtp_use_dedicated_embeddings", &json!(false));
        let hidden = c.count("hidden_size", MAX_WIDTH);
        let depth = c.count("num_hidden_layers", MAX_LAYERS);
        let recurrent = read_kinds(c, depth);
        let attention = qwen_keys::read_attention(c, 1.0);
        let index = read_index(c);
        let delta = read_delta(c);
        let mixture = qwen_keys::read_mixture(c);
        let streams = c.count("hc_count", MAX_STREAMS);
        let rank = c.count("hc_lowrank", MAX_WIDTH);
        let vocabulary = c.count("vocab_size", MAX_VOCABULARY);
        let context = c.count("max_position_embeddings", MAX_CONTEXT);
        let tied_head = c.optional_flag("tie_word_embeddings");
        let theta = attention.as_ref().ok().map(|heads| heads.rope.theta);
        let drafts = read_drafts(c, theta);
        let sizes = hidden.and_then(|hidden| Ok([hidden, depth?, vocabulary?]));
        let ngram = read_ngram(c, sizes);
        // Values that shape no tensor: a bad one is a defect, and the tensors are checked all the
        // same with a stand-in that no program ever carries.
        let eps = c.number("rms_norm_eps", Domain::Epsilon).unwrap_or(1.0) as f32;
        refuse_other_models(c);
        let config = Config {
            hidden: hidden?,
            recurrent: recurrent?,
            attention: attention?,
            index: index?,
            delta: delta?,
            mixture: mixture?,
            streams: streams?,
            rank: rank?,
            ngram: ngram?,
            vocabulary: vocabulary?,
            context: context?,
            eps,
            tied_head: tied_head?,
            drafts: drafts?,
            codes: Codes::Plain,
        };
        config.check_geometry(c)?;
        Ok(config)
    }

    /// Numbers that are usable one by one and contradict each other.
    fn check_geometry(&self, c: &mut ConfigReader<'_>) -> Result<(), Rejected> {
        let mut result = Ok(());
        let rotated = self.attention.rope.dims;
        if rotated > self.index.head_dim {
            let message = format!("is less than the {rotated} channels of a head that rotate");
            result = Err(c.reject("indexer_head_dim", message));
        }
        if self.streams < 2 {
            result = Err(c.reject("hc_count", "is 1, but a single stream has no gates"));
        }
        result
    }

    /// Sees whether the checkpoint has draft heads, and refuses a configuration that is far larger
    /// than it, before anything of that size is built. A few missing tensors are the closure
    /// check's to name.
    fn check_size(
        &mut self,
        c: &mut ConfigReader<'_>,
        sources: &Sources<'_>,
    ) -> Result<(), Rejected> {
        self.drafts = draft_depths(sources, self.drafts, |name| name.starts_with("mtp."));
        let layers = self.recurrent.len() + self.drafts;
        let experts = ("num_experts", self.mixture.experts);
        check_size(c, sources, layers, PER_LAYER, experts)?;
        let Some(n) = &self.ngram else { return Ok(()) };
        let shards = n.shards.saturating_mul(n.layers.len());
        if shards > 4 * sources.len() + 4096 {
            let message = format!(
                "{} tables in {} parts each, but the checkpoint has {} tensors",
                n.layers.len(),
                n.shards,
                sources.len()
            );
            return Err(c.reject("split_ngram_parts", message));
        }
        Ok(())
    }
}

/// Values that would make it another model.
fn refuse_other_models(c: &mut ConfigReader<'_>) {
    c.require("hidden_act", &json!("silu"));
    c.require_if_present("attention_bias", &json!(false));
    c.require_if_present("attn_output_gate", &json!(true));
    // The recurrent matrices are kept in f32 here.
    c.require_if_present("mamba_ssm_dtype", &json!("float32"));
}

/// For each layer whether it is a delta net: a list, or every so many layers one that is not.
fn read_kinds(
    c: &mut ConfigReader<'_>,
    depth: Result<usize, Rejected>,
) -> Result<Vec<bool>, Rejected> {
    const RECURRENT: &str = "linear_attention";
    const SELECTING: [&str; 3] = [
        "full_attention",
        "qwen_sparse_attention",
        "indexed_attention",
    ];
    let interval = c.optional_count("full_attention_interval", MAX_LAYERS);
    let found = c.optional_texts("layer_types", MAX_LAYERS);
    let (depth, interval) = (depth?, interval?);
    let every = |interval| {
        let layers = (1..=depth).map(|n: usize| !n.is_multiple_of(interval));
        layers.collect::<Vec<_>>()
    };
    let Some(found) = found? else {
        return Ok(every(interval.unwrap_or(4)));
    };
    c.note_words("layer_types", &[RECURRENT, SELECTING[0]]);
    if found.len() != depth {
        let message = format!(
            "has {} layers, but num_hidden_layers is {depth}",
            found.len()
        );
        return Err(c.reject("layer_types", message));
    }
    let known = |kind: &&&str| **kind == RECURRENT || SELECTING.contains(*kind);
    if let Some(other) = found.iter().find(|kind| !known(kind)) {
        let message = format!(
            "has the type {other:.40?}, but only {RECURRENT:?} and {:?} can be used",
            SELECTING[0]
        );
        return Err(c.reject("layer_types", message));
    }
    let listed = found.iter().map(|kind| *kind == RECURRENT).collect();
    let keys = ["full_attention_interval", "layer_types"];
    settled(c, keys, interval.map(every), Some(listed))
}

fn read_index(c: &mut ConfigReader<'_>) -> Result<Index, Rejected> {
    let heads = c.count("indexer_n_heads", MAX_HEADS);
    let head_dim = c.count("indexer_head_dim", MAX_WIDTH);
    let budget = c.count("indexer_budget", MAX_CONTEXT);
    let block = c.count("indexer_compress_ratio", MAX_CONTEXT);
    c.require("indexer_kv_heads", &json!(1));
    let (budget, block) = (budget?, block?);
    if !budget.is_multiple_of(block) {
        let message = format!("{budget} tokens are no whole number of blocks of {block}");
        return Err(c.reject("indexer_budget", message));
    }
    Ok(Index {
        heads: heads?,
        head_dim: head_dim?,
        block,
        blocks: budget / block,
    })
}

fn read_delta(c: &mut ConfigReader<'_>) -> Result<DeltaHeads, Rejected> {
    let heads = qwen_keys::read_delta(c, Activation::Silu);
    let gate = match c.optional_text("output_gate_type")? {
        Some("sigmoid") => Activation::Sigmoid,
        // The activation of the model, where nothing is said.
        Some("silu") | None => Activation::Silu,
        Some(other) => {
            let message = format!("is {other:.40?}, but only \"sigmoid\" and \"silu\" can be used");
            return Err(c.reject("output_gate_type", message));
        }
    };
    Ok(DeltaHeads { gate, ..heads? })
}

/// Layers of the draft heads; one where nothing is said. They are like the model's layers that
/// attend.
fn read_drafts(c: &mut ConfigReader<'_>, theta: Option<f64>) -> Result<usize, Rejected> {
    let given = c.has("mtp_num_hidden_layers");
    let count = c.whole_or("mtp_num_hidden_layers", MAX_LAYERS, 1);
    let mut inner = Ok(None);
    if let Some(mut draft) = c.object("mtp")? {
        inner = draft.optional_whole("num_hidden_layers", MAX_LAYERS);
        draft.require_if_present("hybrid", &json!(true));
        draft.require_if_present("mtp_use_hidden_state_from_layer", &json!(null));
        if let Ok(Some(types)) = draft.optional_texts("layer_types", MAX_LAYERS)
            && types.iter().any(|&kind| kind != "full_attention")
        {
            let _ = draft.reject("layer_types", r#"may only say "full_attention""#);
        }
        if let (Ok(Some(own)), Some(theta)) =
            (draft.optional_number("rope_theta", Domain::Base), theta)
            && own != theta
        {
            let message = format!("is {own}, but the model rotates with {theta}");
            let _ = draft.reject("rope_theta", message);
        }
        c.absorb(draft);
    }
    match (count?, inner?) {
        (a, Some(b)) if given && a != b => {
            let message = format!("is {a}, but mtp.num_hidden_layers is {b}");
            Err(c.reject("mtp_num_hidden_layers", message))
        }
        (a, b) => Ok(b.unwrap_or(a)),
    }
}
