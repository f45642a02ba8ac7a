//! Parts of the checkpoint that are known and not executed, claimed name by name.

use super::codes;
use super::config::Config;
use super::hash::hashes;
use super::ngram::{shard_name, shards};
use super::ngram_keys::Ngram;
use crate::common::{component, numbered};
use crate::qwen::{is_gated_layer, vision_tower};
use crate::sources::Sources;
use lamella_program::program::UnusedComponent;

/// Constants of the hashes, as the checkpoint carries them.
const CONSTANTS: [&str; 3] = [
    "layer_multipliers",
    "ngram_heads_offsets",
    "ngram_heads_vocab_sizes",
];
/// Tensors of a read of the streams; the last one is where a block writes.
const GATE: [&str; 4] = [
    "hc_norm.weight",
    "input_mix_weight_down.weight",
    "input_mix_weight_up.weight",
    "block_inject_weight.weight",
];
/// Tensors of a draft head beside its layer.
const DRAFT: [&str; 4] = [
    "fc_embedding.weight",
    "fc_hidden.weight",
    "pre_fc_norm_embedding.weight",
    "pre_fc_norm_hidden.weight",
];
/// Tensors of an indexer.
const INDEXER: [&str; 3] = [
    "self_attn.indexer.index_qk_proj.weight",
    "self_attn.indexer.k_layernorm.weight",
    "self_attn.indexer.q_layernorm.weight",
];
/// Ends of the names of scales: FP8 blocks, then what ModelOpt writes.
const SCALES: [&str; 3] = ["_scale_inv", "_scale", "_scale_2"];

/// What of the checkpoint is not executed.
pub(super) fn components(c: &Config, prefix: &str, sources: &Sources<'_>) -> Vec<UnusedComponent> {
    let mut found: Vec<UnusedComponent> = vision_tower(sources).into_iter().collect();
    let drafts = sources.names(|name| is_draft(name, c, sources));
    let inputs = sources.names(|name| codes::is_input_scale(sources, name));
    let mut constants = Vec::new();
    let mut statistics = Vec::new();
    let mut empty = Vec::new();
    if let Some(n) = &c.ngram {
        constants = sources.names(|name| is_constant(name, prefix, n));
        statistics = sources.names(|name| is_statistic(name, prefix, n));
        empty = empty_shards(c, n, prefix);
        empty.retain(|name| sources.has(name));
    }
    found.extend(
        [
            component(
                "draft heads (multi-token prediction)",
                "not executed yet",
                drafts,
            ),
            component(
                "hash constants",
                "recomputed from the configuration",
                constants,
            ),
            component(
                "statistics of the hashes",
                "no embedding is made of them",
                statistics,
            ),
            component("parts of n-gram tables", "they are empty", empty),
            component(
                "scales of inputs",
                "inputs are not rounded to codes here",
                inputs,
            ),
        ]
        .into_iter()
        .flatten(),
    );
    found
}

/// What stands under `ple_embedding.` in a layer with n-gram embeddings.
fn hashed<'n>(name: &'n str, prefix: &str, n: &Ngram) -> Option<&'n str> {
    let (layer, end) = numbered(name, &format!("{prefix}.layers."))?;
    let end = end.strip_prefix("ple.ple_embedding.")?;
    n.layers.contains(&layer).then_some(end)
}

fn is_constant(name: &str, prefix: &str, n: &Ngram) -> bool {
    hashed(name, prefix, n).is_some_and(|end| CONSTANTS.contains(&end))
}

fn is_statistic(name: &str, prefix: &str, n: &Ngram) -> bool {
    hashed(name, prefix, n).is_some_and(|end| end == "token_lookup" || is_hash_statistic(end))
}

fn is_hash_statistic(end: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    end.strip_prefix("hashstats_")
        .is_some_and(|rest| !rest.is_empty() && rest.chars().all(word))
}

/// Parts beyond the end of a table that is shorter than their number.
fn empty_shards(c: &Config, n: &Ngram, prefix: &str) -> Vec<String> {
    let tables = n.layers.iter().zip(hashes(n, c.vocabulary));
    let names = tables.flat_map(|(layer, hashes)| {
        let empty = shards(hashes.rows, n.shards)
            .enumerate()
            .filter(|&(_, rows)| rows == 0);
        let tensor = format!("{prefix}.layers.{layer}");
        empty.map(move |(index, _)| shard_name(&tensor, index))
    });
    names.collect()
}

/// Whether `name` is a tensor of a draft head, or a scale of one that is there.
fn is_draft(name: &str, c: &Config, sources: &Sources<'_>) -> bool {
    let scaled = SCALES.iter().filter_map(|end| name.strip_suffix(end));
    let mut codes = scaled.filter(|weight| sources.has(weight));
    is_draft_weight(name, c) || codes.any(|weight| is_draft_weight(weight, c))
}

fn is_draft_weight(name: &str, c: &Config) -> bool {
    let Some(end) = name.strip_prefix("mtp.") else {
        return false;
    };
    let last = end.strip_prefix("hyper_connection_mixer.");
    DRAFT.contains(&end)
        || last.is_some_and(|end| GATE[..3].contains(&end))
        || numbered(end, "layers.").is_some_and(|(index, end)| {
            c.drafts.is_none_or(|count| index < count) && is_draft_layer(end, c)
        })
}

fn is_draft_layer(end: &str, c: &Config) -> bool {
    let gate = ["attn_hyper_connection.", "mlp_hyper_connection."]
        .iter()
        .find_map(|site| end.strip_prefix(site));
    INDEXER.contains(&end)
        || gate.is_some_and(|end| GATE.contains(&end))
        || is_gated_layer(end, c.mixture.experts)
}
