//! The configuration of GLM.

use crate::common::{
    check_ends, check_mixed_size, choices, draft_depths, numbered, read_block_fp8, settled,
};
use crate::config::{
    ConfigReader, Domain, MAX_CONTEXT, MAX_EXPERTS, MAX_HEADS, MAX_LAYERS, MAX_VOCABULARY,
    MAX_WIDTH, Rejected,
};
use crate::rope_keys::read_rope;
use crate::sources::Sources;
use serde_json::{Value, json};
use std::ops::Range;

/// What a layer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// Experts instead of a dense unit.
    pub(super) sparse: bool,
    /// Chooses positions itself instead of taking an earlier layer's.
    pub(super) selects: bool,
}

/// The configuration keys that this family computes with.
pub(super) struct Config {
    pub(super) hidden: usize,
    pub(super) layers: Vec<Kind>,
    pub(super) heads: usize,
    pub(super) query_rank: usize,
    pub(super) latent: usize,
    pub(super) nope_dim: usize,
    pub(super) rope_dim: usize,
    pub(super) value_dim: usize,
    /// Inner width of a dense unit.
    pub(super) dense_width: usize,
    pub(super) experts: Experts,
    pub(super) index: Index,
    pub(super) vocabulary: usize,
    pub(super) context: usize,
    pub(super) eps: f32,
    pub(super) theta: f64,
    /// Whether the down maps and the output have biases.
    pub(super) biases: bool,
    pub(super) tied_head: bool,
    /// Layers of the draft heads, behind the others.
    pub(super) draft_layers: usize,
    /// Sides of an FP8 block.
    pub(super) block: Option<[usize; 2]>,
}

/// The mixture of experts.
pub(super) struct Experts {
    pub(super) count: usize,
    pub(super) top_k: usize,
    /// Inner width of one expert.
    pub(super) width: usize,
    /// Experts every token visits, stored as one unit of their joint width.
    pub(super) shared: usize,
    pub(super) groups: usize,
    pub(super) top_groups: usize,
    pub(super) renormalise: bool,
    pub(super) scale: f32,
}

/// The indexer of the layers that select.
pub(super) struct Index {
    pub(super) heads: usize,
    pub(super) dim: usize,
    pub(super) top_k: usize,
}

/// Keys that change nothing here. `head_dim` and `num_key_value_heads` describe no head of latent
/// attention, `ep_size` and `pretraining_tp` distribute training.
const INERT: &[&str] = &[
    "ep_size",
    "head_dim",
    "num_key_value_heads",
    "pretraining_tp",
];

impl Config {
    /// Numbers of the draft heads' layers.
    pub(super) fn drafts(&self) -> Range<usize> {
        self.layers.len()..self.layers.len() + self.draft_layers
    }

    /// Reads all keys before giving up on any, so that every fault is reported.
    pub(super) fn read(
        c: &mut ConfigReader<'_>,
        sources: &Sources<'_>,
    ) -> Result<Config, Rejected> {
        c.ignore(INERT);
        // Whether a draft head that follows itself keeps its first selection of positions. It never
        // does here: what it guesses is checked, so only its luck could change, and choosing anew
        // costs one indexer a guess where the pass that checks the guesses runs one in every layer
        // that selects. Up to as many tokens as are selected there is no difference.
        let _ = c.optional_flag("index_share_for_mtp_iteration");
        require_fixed(c);
        let hidden = c.count("hidden_size", MAX_WIDTH);
        let heads = c.count("num_attention_heads", MAX_HEADS);
        let query_rank = c.count("q_lora_rank", MAX_WIDTH);
        let latent = c.count("kv_lora_rank", MAX_WIDTH);
        let nope_dim = c.count("qk_nope_head_dim", MAX_WIDTH);
        let rope_dim = c.count("qk_rope_head_dim", MAX_WIDTH);
        let value_dim = c.count("v_head_dim", MAX_WIDTH);
        let head_dim = c.optional_count("qk_head_dim", 2 * MAX_WIDTH);
        let dense_width = c.count("intermediate_size", MAX_WIDTH);
        let vocabulary = c.count("vocab_size", MAX_VOCABULARY);
        let context = c.count("max_position_embeddings", MAX_CONTEXT);
        check_ends(c, vocabulary);
        let biases = c.optional_flag("attention_bias");
        let tied_head = c.optional_flag("tie_word_embeddings");
        let draft_layers = c.optional_whole("num_nextn_predict_layers", MAX_LAYERS);
        let block = read_block_fp8(c, sources);
        let experts = Experts::read(c);
        let index = Index::read(c);
        let layers = read_layers(c);
        // Values that shape no tensor: a bad one is a defect, and the tensors are checked all the
        // same with a stand-in that no program ever carries.
        let eps = c.number("rms_norm_eps", Domain::Epsilon).unwrap_or(1.0) as f32;
        let rope = read_rope(c, &[]);
        if rope.partial.is_some_and(|share| share != 1.0) {
            let _ = c.reject("partial_rotary_factor", "is not 1");
        }
        let mut config = Config {
            hidden: hidden?,
            layers: layers?,
            heads: heads?,
            query_rank: query_rank?,
            latent: latent?,
            nope_dim: nope_dim?,
            rope_dim: rope_dim?,
            value_dim: value_dim?,
            dense_width: dense_width?,
            experts: experts?,
            index: index?,
            vocabulary: vocabulary?,
            context: context?,
            eps,
            theta: rope.theta,
            biases: biases?.unwrap_or(false),
            tied_head: tied_head?.unwrap_or(false),
            draft_layers: 0,
            block: block?,
        };
        config.check_geometry(c, head_dim?)?;
        let (first, announced) = (config.layers.len(), draft_layers?.unwrap_or(0));
        config.draft_layers = draft_depths(sources, announced, |name| {
            let layer = numbered(name, "model.layers.").map(|(index, _)| index);
            layer.is_some_and(|index| (first..first + announced).contains(&index))
        });
        let sparse = config.layers.iter().filter(|kind| kind.sparse).count();
        let layers = [first, sparse].map(|n| n + config.draft_layers);
        let experts = config.experts.count;
        check_mixed_size(c, sources, layers, 12, ("n_routed_experts", experts))?;
        Ok(config)
    }

    /// Numbers that are usable one by one and contradict each other.
    fn check_geometry(
        &self,
        c: &mut ConfigReader<'_>,
        head_dim: Option<usize>,
    ) -> Result<(), Rejected> {
        let mut result = Ok(());
        let (e, index) = (&self.experts, &self.index);
        if !self.rope_dim.is_multiple_of(2) {
            result = Err(c.reject("qk_rope_head_dim", "is odd, and channels rotate in pairs"));
        } else if head_dim.is_some_and(|n| n != self.nope_dim + self.rope_dim) {
            let message = "is not qk_nope_head_dim + qk_rope_head_dim";
            result = Err(c.reject("qk_head_dim", message));
        } else if index.dim < self.rope_dim {
            let message = format!("is less than the {} rotated channels", self.rope_dim);
            result = Err(c.reject("index_head_dim", message));
        }
        if !e.count.is_multiple_of(e.groups) || e.groups > 1 && e.count < 2 * e.groups {
            let message = format!(
                "{} groups do not divide {} experts into groups of two or more",
                e.groups, e.count
            );
            result = Err(c.reject("n_group", message));
        } else if e.top_groups > e.groups {
            let message = format!("{} groups cannot be kept of {}", e.top_groups, e.groups);
            result = Err(c.reject("topk_group", message));
        } else if e.top_k > e.count / e.groups * e.top_groups {
            let open = e.count / e.groups * e.top_groups;
            let message = format!("{} experts cannot be chosen of {open}", e.top_k);
            result = Err(c.reject("num_experts_per_tok", message));
        }
        result
    }
}

/// Keys with one value that the mathematics here stands for.
fn require_fixed(c: &mut ConfigReader<'_>) {
    c.require("hidden_act", &json!("silu"));
    for (key, only) in [
        ("scoring_func", json!("sigmoid")),
        ("topk_method", json!("noaux_tc")),
        ("moe_router_dtype", json!("float32")),
        ("moe_layer_freq", json!(1)),
        ("rope_interleave", json!(true)),
        ("indexer_rope_interleave", json!(true)),
        ("mlp_bias", json!(false)),
    ] {
        c.require_if_present(key, &only);
    }
}

impl Experts {
    fn read(c: &mut ConfigReader<'_>) -> Result<Experts, Rejected> {
        let count = c.count("n_routed_experts", MAX_EXPERTS);
        let top_k = c.count("num_experts_per_tok", MAX_EXPERTS);
        let width = c.count("moe_intermediate_size", MAX_WIDTH);
        let shared = c.count("n_shared_experts", MAX_EXPERTS);
        let groups = c.count_or("n_group", MAX_EXPERTS, 1);
        let top_groups = c.count_or("topk_group", MAX_EXPERTS, 1);
        let renormalise = c.flag("norm_topk_prob").unwrap_or(false);
        let scale = c
            .number("routed_scaling_factor", Domain::Factor)
            .unwrap_or(1.0) as f32;
        Ok(Experts {
            count: count?,
            top_k: top_k?,
            width: width?,
            shared: shared?,
            groups: groups?,
            top_groups: top_groups?,
            renormalise,
            scale,
        })
    }
}

impl Index {
    fn read(c: &mut ConfigReader<'_>) -> Result<Index, Rejected> {
        let heads = c.count("index_n_heads", MAX_HEADS);
        let dim = c.count("index_head_dim", MAX_WIDTH);
        let top_k = c.count("index_topk", MAX_CONTEXT);
        Ok(Index {
            heads: heads?,
            dim: dim?,
            top_k: top_k?,
        })
    }
}

/// What each layer is.
fn read_layers(c: &mut ConfigReader<'_>) -> Result<Vec<Kind>, Rejected> {
    let count = c.count("num_hidden_layers", MAX_LAYERS);
    let sparse = read_sparse(c, count);
    let selects = read_selects(c, count);
    // Written by newer exporters; every layer is of the one kind.
    if let Ok(Some(types)) = c.optional_texts("layer_types", MAX_LAYERS)
        && let Ok(count) = count
        && (types.len() != count || types.iter().any(|&t| t != "indexed_attention"))
    {
        let message = format!(r#"is not "indexed_attention" {count} times"#);
        let _ = c.reject("layer_types", message);
    }
    count?;
    let pairs = sparse?.into_iter().zip(selects?);
    Ok(pairs
        .map(|(sparse, selects)| Kind { sparse, selects })
        .collect())
}

fn read_sparse(
    c: &mut ConfigReader<'_>,
    count: Result<usize, Rejected>,
) -> Result<Vec<bool>, Rejected> {
    let dense = c.optional_whole("first_k_dense_replace", MAX_LAYERS);
    let types = c.optional_texts("mlp_layer_types", MAX_LAYERS);
    let dense = match dense? {
        Some(dense) => Some((0..count?).map(|index| index >= dense).collect()),
        None => None,
    };
    let (key, words) = ("mlp_layer_types", ["dense", "sparse"]);
    let types = match types? {
        Some(types) => Some(choices(c, key, &types, words, count?)?),
        None => None,
    };
    settled(c, ["first_k_dense_replace", key], dense, types)
}

/// Which layers have an indexer: the list, or a pattern, or every `freq`-th layer behind an offset,
/// or several of these, as in the released file.
fn read_selects(
    c: &mut ConfigReader<'_>,
    count: Result<usize, Rejected>,
) -> Result<Vec<bool>, Rejected> {
    const WORDS: [&str; 2] = ["shared", "full"];
    let every = c.optional_count("index_topk_freq", MAX_LAYERS);
    let offset = c.optional_whole("index_skip_topk_offset", MAX_LAYERS);
    let types = c.optional_texts("indexer_types", MAX_LAYERS);
    let pattern = read_pattern(c);
    let (every, offset, count) = (every?, offset?.unwrap_or(2), count?);
    let mut listed = |key, words: Option<Vec<&str>>| match words {
        Some(words) => choices(c, key, &words, WORDS, count).map(Some),
        None => Ok(None),
    };
    let list = listed("indexer_types", types?)?;
    let pattern = listed("index_topk_pattern", pattern?)?;
    let stride = |every: usize| {
        let chosen = |index: usize| (index + 1).saturating_sub(offset).is_multiple_of(every);
        (0..count).map(chosen).collect::<Vec<bool>>()
    };
    let stride = match (every, &list, &pattern) {
        (Some(every), ..) => Some(stride(every)),
        (None, None, None) => Some(stride(1)),
        _ => None,
    };
    let (key, list) = match (list, pattern) {
        (None, None) => ("index_skip_topk_offset", None),
        (None, pattern) => ("index_topk_pattern", pattern),
        (list, None) => ("indexer_types", list),
        (list, pattern) => {
            let keys = ["index_topk_pattern", "indexer_types"];
            (keys[1], Some(settled(c, keys, pattern, list)?))
        }
    };
    if let Some(false) = list
        .as_ref()
        .or(stride.as_ref())
        .and_then(|list| list.first())
    {
        let message = "the first layer has no earlier one whose selection it could share";
        return Err(c.reject(key, message));
    }
    settled(c, ["index_topk_freq", key], stride, list)
}

/// A pattern is a text of the letters F and S, or a list of words.
fn read_pattern<'c>(c: &mut ConfigReader<'c>) -> Result<Option<Vec<&'c str>>, Rejected> {
    let key = "index_topk_pattern";
    let Some(letters) = c.present(key).and_then(Value::as_str) else {
        return c.optional_texts(key, MAX_LAYERS);
    };
    let words = letters.chars().take(MAX_LAYERS + 1);
    let words = words.map(|letter| match letter {
        'F' => Some("full"),
        'S' => Some("shared"),
        _ => None,
    });
    match words.collect() {
        Some(words) => Ok(Some(words)),
        None => Err(c.reject(key, "may only have the letters F and S")),
    }
}
