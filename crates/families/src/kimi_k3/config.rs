//! The keys of a Kimi K3 configuration.

use super::PACKED;
use crate::common::{check_ends, check_size, language_model};
use crate::compressed::{Format, MXFP4, Scheme};
use crate::config::{
    ConfigReader, Domain, MAX_CONTEXT, MAX_EXPERTS, MAX_HEADS, MAX_LAYERS, MAX_VOCABULARY,
    MAX_WIDTH, Rejected,
};
use crate::rope_keys::refuse_rope;
use crate::sources::Sources;
use lamella_program::block::GatedActivation;
use serde_json::json;

/// Longest short convolution that is believed, in taps.
const MAX_TAPS: usize = 64;
/// Most shared experts that are believed.
const MAX_SHARED: usize = 64;

/// Keys that older exporters write for every model and that change nothing here: how text is
/// sampled, and what only models with an encoder have.
const EXPORTED_KEYS: &[&str] = &[
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "is_decoder",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "prefix",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "temperature",
    "tf_legacy_loss",
    "top_k",
    "top_p",
    "typical_p",
];

/// The configuration keys that this family computes with.
pub(super) struct Config {
    pub(super) hidden: usize,
    pub(super) vocabulary: usize,
    pub(super) context: usize,
    pub(super) eps: f32,
    /// Layers between two sealed sums.
    pub(super) seal_every: usize,
    /// Whether each layer is Kimi delta attention; the others are latent attention.
    pub(super) delta_layers: Vec<bool>,
    pub(super) delta: Delta,
    pub(super) latent: Latent,
    /// The first layers, which have one dense unit in place of experts.
    pub(super) dense_layers: usize,
    pub(super) dense_width: usize,
    pub(super) experts: Experts,
    pub(super) activation: GatedActivation,
}

/// Geometry of Kimi delta attention.
pub(super) struct Delta {
    pub(super) heads: usize,
    pub(super) head_dim: usize,
    pub(super) taps: usize,
    /// Lower bound of the log decay.
    pub(super) floor: f32,
}

/// Geometry of latent attention.
pub(super) struct Latent {
    pub(super) heads: usize,
    pub(super) query_rank: usize,
    pub(super) rank: usize,
    pub(super) nope: usize,
    /// Channels of the shared key; they do not rotate in spite of their name in the checkpoint.
    pub(super) rope: usize,
    pub(super) value: usize,
    pub(super) gated: bool,
}

/// Geometry of the mixtures of experts.
pub(super) struct Experts {
    pub(super) count: usize,
    pub(super) top_k: usize,
    pub(super) width: usize,
    /// Width the routed experts work at.
    pub(super) latent: usize,
    pub(super) latent_norm: bool,
    /// Inner width of the shared unit, 0 where there is none.
    pub(super) shared_width: usize,
    pub(super) renormalise: bool,
    pub(super) scale: f32,
}

impl Config {
    /// Reads the whole configuration of a text and vision checkpoint.
    pub(super) fn read_composite(
        c: &mut ConfigReader<'_>,
        sources: &Sources<'_>,
    ) -> Result<Config, Rejected> {
        // What images are turned into; the vision tower is not executed.
        c.ignore(&[
            "auto_map",
            "ignore_index",
            "image_placeholder",
            "media_placeholder_token_id",
            "vision_config",
        ]);
        c.require_if_present("tie_word_embeddings", &json!(false));
        let mut text = language_model(c, true)?.ok_or(Rejected)?;
        text.ignore_inert();
        text.require("model_type", &json!("kimi_linear"));
        let config = Config::read(&mut text, sources);
        c.absorb(text);
        check_ends(c, config.as_ref().map(|config| config.vocabulary));
        config
    }

    /// Reads the configuration of the language model. All keys are read before any is given up on,
    /// so that every fault is reported.
    pub(super) fn read(
        c: &mut ConfigReader<'_>,
        sources: &Sources<'_>,
    ) -> Result<Config, Rejected> {
        c.ignore(EXPORTED_KEYS);
        read_fixed(c);
        let hidden = c.count("hidden_size", MAX_WIDTH);
        let layers = c.count("num_hidden_layers", MAX_LAYERS);
        let vocabulary = c.count("vocab_size", MAX_VOCABULARY);
        check_ends(c, vocabulary);
        let context = c.count("max_position_embeddings", MAX_CONTEXT);
        let seal_every = c.count("attn_res_block_size", MAX_LAYERS);
        let dense_layers = read_dense_layers(c, layers);
        let dense_width = c.count("intermediate_size", MAX_WIDTH);
        // Values that shape no tensor: a bad one is a defect, and the tensors are checked all the
        // same with a stand-in that no program ever carries.
        let eps = c.number("rms_norm_eps", Domain::Epsilon).unwrap_or(1.0) as f32;
        let activation = GatedActivation::Situ {
            beta: c
                .number("activation_situ_beta", Domain::Factor)
                .unwrap_or(1.0) as f32,
            linear_beta: c
                .number("activation_situ_linear_beta", Domain::Factor)
                .unwrap_or(1.0) as f32,
        };
        let latent = Latent::read(c);
        let linear = read_linear(c, layers.ok());
        let experts = Experts::read(c);
        read_quantisation(c, sources);
        let layers = layers?;
        let (delta_layers, delta) = linear?;
        let config = Config {
            hidden: hidden?,
            vocabulary: vocabulary?,
            context: context?,
            eps,
            seal_every: seal_every?,
            delta_layers,
            delta,
            latent: latent?,
            dense_layers: dense_layers?,
            dense_width: dense_width?,
            experts: experts?,
            activation,
        };
        let experts = ("num_experts", config.experts.count);
        check_size(c, sources, layers, 18, experts)?;
        Ok(config)
    }
}

/// How many layers have no experts, which may be none or all.
fn read_dense_layers(
    c: &mut ConfigReader<'_>,
    layers: Result<usize, Rejected>,
) -> Result<usize, Rejected> {
    let key = "first_k_dense_replace";
    let Some(count) = c.optional_whole(key, MAX_LAYERS)? else {
        return Err(c.reject(key, "is missing, and this family needs it"));
    };
    match layers? < count {
        true => Err(c.reject(key, "is more than num_hidden_layers")),
        false => Ok(count),
    }
}

/// Keys of which one value is expressed.
fn read_fixed(c: &mut ConfigReader<'_>) {
    c.require("hidden_act", &json!("situ"));
    c.require("mla_use_nope", &json!(true));
    c.require("moe_layer_freq", &json!(1));
    c.require("moe_router_activation_func", &json!("sigmoid"));
    c.require_if_present("topk_method", &json!("noaux_tc"));
    c.require_if_present("num_expert_group", &json!(1));
    c.require_if_present("topk_group", &json!(1));
    c.require_if_present("num_nextn_predict_layers", &json!(0));
    c.require_if_present("tie_word_embeddings", &json!(false));
    // What older exporters write for every model, and what would be another one.
    for key in [
        "add_cross_attention",
        "is_encoder_decoder",
        "tie_encoder_decoder",
    ] {
        c.require_if_present(key, &json!(false));
    }
    c.require_if_present("cross_attention_hidden_size", &json!(null));
    c.require_if_present("pruned_heads", &json!({}));
    refuse_rope(c);
    // With one group, grouped selection is plain selection. Neither kind of attention has heads of
    // `head_dim`: an exporter computes the key from two others.
    c.ignore(&["head_dim", "use_grouped_topk"]);
}

impl Latent {
    fn read(c: &mut ConfigReader<'_>) -> Result<Latent, Rejected> {
        let heads = c.count("num_attention_heads", MAX_HEADS);
        let kv_heads = c.optional_count("num_key_value_heads", MAX_HEADS);
        let query_rank = c.count("q_lora_rank", MAX_WIDTH);
        let rank = c.count("kv_lora_rank", MAX_WIDTH);
        let nope = c.count("qk_nope_head_dim", MAX_WIDTH);
        let rope = c.count("qk_rope_head_dim", MAX_WIDTH);
        let value = c.count("v_head_dim", MAX_WIDTH);
        let gated = c.flag("mla_use_output_gate");
        if let (Ok(heads), Ok(Some(kv_heads))) = (heads, kv_heads)
            && heads != kv_heads
        {
            let message = format!("is {kv_heads}, but latent attention has {heads} of both");
            return Err(c.reject("num_key_value_heads", message));
        }
        kv_heads?;
        Ok(Latent {
            heads: heads?,
            query_rank: query_rank?,
            rank: rank?,
            nope: nope?,
            rope: rope?,
            value: value?,
            gated: gated?,
        })
    }
}

impl Experts {
    fn read(c: &mut ConfigReader<'_>) -> Result<Experts, Rejected> {
        let count = c.count("num_experts", MAX_EXPERTS);
        let top_k = c.count("num_experts_per_token", MAX_EXPERTS);
        let shared = c.whole_or("num_shared_experts", MAX_SHARED, 0);
        let width = c.count("moe_intermediate_size", MAX_WIDTH);
        let latent = c.count("routed_expert_hidden_size", MAX_WIDTH);
        let latent_norm = c.flag("latent_moe_use_norm");
        let renormalise = c.flag("moe_renormalize");
        let scale = c
            .number("routed_scaling_factor", Domain::Factor)
            .unwrap_or(1.0) as f32;
        let (count, top_k, width) = (count?, top_k?, width?);
        if top_k > count {
            let message = format!("{top_k} experts cannot be chosen of {count}");
            return Err(c.reject("num_experts_per_token", message));
        }
        Ok(Experts {
            count,
            top_k,
            width,
            latent: latent?,
            latent_norm: latent_norm?,
            shared_width: shared? * width,
            // Of one expert the score is the weight.
            renormalise: renormalise.unwrap_or(false) && top_k > 1,
            scale,
        })
    }
}

/// Which layers are Kimi delta attention, and its geometry.
fn read_linear(
    c: &mut ConfigReader<'_>,
    layers: Option<usize>,
) -> Result<(Vec<bool>, Delta), Rejected> {
    let Some(mut linear) = c.object("linear_attn_config")? else {
        return Err(c.reject("linear_attn_config", "is missing, and this family needs it"));
    };
    linear.require("use_full_rank_gate", &json!(true));
    let heads = linear.count("num_heads", MAX_HEADS);
    let head_dim = linear.count("head_dim", MAX_WIDTH);
    let taps = linear.count("short_conv_kernel_size", MAX_TAPS);
    let floor = linear
        .number("gate_lower_bound", Domain::Negative)
        .unwrap_or(-1.0) as f32;
    let pattern = read_pattern(&mut linear, layers);
    c.absorb(linear);
    let delta = Delta {
        heads: heads?,
        head_dim: head_dim?,
        taps: taps?,
        floor,
    };
    Ok((pattern?, delta))
}

/// The two lists of layers, which count from 1 and must name each layer once.
fn read_pattern(
    linear: &mut ConfigReader<'_>,
    layers: Option<usize>,
) -> Result<Vec<bool>, Rejected> {
    let delta = linear.optional_wholes("kda_layers", MAX_LAYERS, MAX_LAYERS);
    let full = linear.optional_wholes("full_attn_layers", MAX_LAYERS, MAX_LAYERS);
    let (delta, full) = (delta?, full?);
    let count = layers.ok_or(Rejected)?;
    let mut pattern = vec![None; count];
    for (key, list, is_delta) in [
        ("kda_layers", delta, true),
        ("full_attn_layers", full, false),
    ] {
        let Some(list) = list else {
            return Err(linear.reject(key, "is missing, and this family needs it"));
        };
        for layer in list {
            let place = layer
                .checked_sub(1)
                .and_then(|index| pattern.get_mut(index));
            match place {
                None => {
                    let message = format!("names layer {layer}, but they count from 1 to {count}");
                    return Err(linear.reject(key, message));
                }
                Some(Some(_)) => {
                    return Err(linear.reject(key, format!("names layer {layer} once more")));
                }
                Some(kind) => *kind = Some(is_delta),
            }
        }
    }
    let missed = pattern.iter().position(Option::is_none);
    if let Some(index) = missed {
        let message = format!("neither this list nor kda_layers names layer {}", index + 1);
        return Err(linear.reject("full_attn_layers", message));
    }
    Ok(pattern.into_iter().flatten().collect())
}

/// Checks that `quantization_config` means MXFP4 weights, and those that are. Which matrices are in
/// it is decided by the tensors themselves: the published list of those left alone leaves out some
/// that are in BF16.
fn read_quantisation(c: &mut ConfigReader<'_>, sources: &Sources<'_>) {
    let key = "quantization_config";
    let packed = sources.names(|name| name.ends_with(PACKED));
    let mut q = match (c.object(key), packed.first()) {
        (Ok(Some(q)), _) => q,
        (Ok(None), Some(name)) => {
            let _ = c.refuse(key, format!("is missing, and {name} needs it"));
            return;
        }
        _ => return,
    };
    let method = q.require_kind("quant_method", &json!("compressed-tensors"));
    if let Ok(scheme) = method.and_then(|()| Scheme::read(&mut q, &[MXFP4])) {
        let maps = packed.iter().filter_map(|name| name.strip_suffix(PACKED));
        for map in maps.map(|map| map.trim_end_matches('.')) {
            // Lists may name modules of the language model alone.
            let short = map.trim_start_matches(super::COMPOSITE);
            let names = [map, short].map(str::to_owned);
            if scheme.format(&names) != Some(Format::Mxfp4) {
                let _ = scheme.refuse_codes(&mut q, "", map, &names);
                break;
            }
        }
    }
    c.absorb(q);
}
