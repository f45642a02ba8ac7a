//! Parts of the checkpoint that are known and not executed, claimed name by name.

use super::codes;
use super::config::Config;
use super::hash::hashes;
use super::ngram::{CONSTANTS, shard_name, shards};
use super::ngram_keys::Ngram;
use crate::common::{component, numbered};
use crate::qwen::vision_tower;
use crate::sources::Sources;
use lamella_program::program::UnusedComponent;

/// What of the checkpoint is not executed.
pub(super) fn components(c: &Config, prefix: &str, sources: &Sources<'_>) -> Vec<UnusedComponent> {
    let mut found: Vec<UnusedComponent> = vision_tower(sources).into_iter().collect();
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
                "hash constants",
                "they follow from the configuration and are compared with it",
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
