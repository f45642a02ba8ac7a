//! What each layer is: which earlier tokens it compresses, and how it chooses experts.

use super::config::MAX_DRAFTS;
use crate::common::settled;
use crate::config::{ConfigReader, MAX_LAYERS, Rejected};

/// Most tokens in one compressed entry that are believed.
const MAX_RATIO: usize = 1 << 16;
/// The ratio at which entries overlap and are chosen by an indexer.
const OVERLAPPING_RATIO: usize = 4;
/// What saved configurations call layers with a window alone, with overlapping and with plain
/// entries.
const WINDOW: &str = "sliding_attention";
const OVERLAPPING: &str = "compressed_sparse_attention";
const PLAIN: &str = "heavily_compressed_attention";
/// The same of layers that choose experts by token id, and of the others.
const HASHED: [&str; 2] = ["hash_moe", "moe"];

/// What one layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) compression: Compression,
    /// Whether experts are chosen by token id.
    pub(super) hashed: bool,
}

/// What a layer keeps of tokens outside its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    /// Nothing.
    Window,
    /// Overlapping entries of this many tokens, of which an indexer chooses.
    Overlapping(usize),
    /// Entries of this many tokens, all of them visible.
    Plain(usize),
}

/// Reads the schedule in both spellings; where both are there they must agree.
pub(super) fn read_schedule(
    c: &mut ConfigReader<'_>,
    layers: Result<usize, Rejected>,
    drafts: Result<usize, Rejected>,
) -> Result<Vec<Plan>, Rejected> {
    let ratios = c.optional_wholes("compress_ratios", MAX_RATIO, MAX_LAYERS + MAX_DRAFTS);
    let types = c.optional_texts("layer_types", MAX_LAYERS);
    let rates = read_rates(c);
    let hashed = c.optional_whole("num_hash_layers", MAX_LAYERS);
    let kinds = c.optional_texts("mlp_layer_types", MAX_LAYERS);
    let rates = rates?;
    let (layers, drafts) = (layers?, drafts?);
    let published = match ratios? {
        Some(ratios) => Some(by_ratios(c, ratios, layers, drafts)?),
        None => None,
    };
    let saved = match types? {
        Some(types) => Some(by_types(c, &types, rates, layers)?),
        None => None,
    };
    let compression = settled(c, ["compress_ratios", "layer_types"], published, saved)?;
    if let Some([_, rate]) = rates {
        let other = |kind: &_| matches!(kind, Compression::Plain(ratio) if *ratio != rate);
        if compression.iter().any(other) {
            return Err(c.reject("compress_rates", "contradicts compress_ratios"));
        }
    }
    let hashed = hashed?;
    if hashed.is_some_and(|n| n > layers) {
        return Err(c.reject(
            "num_hash_layers",
            format!("is more than the {layers} layers"),
        ));
    }
    let published = hashed.map(|n| (0..layers).map(|index| index < n).collect());
    let saved = match kinds? {
        Some(kinds) => Some(by_kinds(c, &kinds, layers)?),
        None => None,
    };
    let hashed = settled(c, ["num_hash_layers", "mlp_layer_types"], published, saved)?;
    let plan = |(compression, hashed)| Plan {
        compression,
        hashed,
    };
    Ok(compression.into_iter().zip(hashed).map(plan).collect())
}

/// `compress_ratios`: one number a layer, then one a draft head, which only has a window.
fn by_ratios(
    c: &mut ConfigReader<'_>,
    ratios: Vec<usize>,
    layers: usize,
    drafts: usize,
) -> Result<Vec<Compression>, Rejected> {
    let key = "compress_ratios";
    if ratios.len() != layers + drafts {
        let message = format!(
            "has {} entries for {layers} layers and {drafts} draft heads",
            ratios.len()
        );
        return Err(c.reject(key, message));
    }
    if ratios[layers..].iter().any(|&ratio| ratio != 0) {
        return Err(c.reject(key, "gives a draft head compressed entries"));
    }
    let compression = |&ratio: &usize| match ratio {
        0 => Compression::Window,
        OVERLAPPING_RATIO => Compression::Overlapping(ratio),
        _ => Compression::Plain(ratio),
    };
    Ok(ratios[..layers].iter().map(compression).collect())
}

/// `compress_rates`: the ratios of the overlapping and the plain layers.
fn read_rates(c: &mut ConfigReader<'_>) -> Result<Option<[usize; 2]>, Rejected> {
    let Some(mut rates) = c.object("compress_rates")? else {
        return Ok(None);
    };
    let key = OVERLAPPING;
    let overlapping = match rates.count(key, MAX_RATIO) {
        Ok(ratio) if ratio != OVERLAPPING_RATIO => {
            let message = format!("is {ratio}, but only {OVERLAPPING_RATIO} can be used");
            Err(rates.reject(key, message))
        }
        other => other,
    };
    let plain = rates.count(PLAIN, MAX_RATIO);
    c.absorb(rates);
    Ok(Some([overlapping?, plain?]))
}

/// `layer_types` with `compress_rates`.
fn by_types(
    c: &mut ConfigReader<'_>,
    types: &[&str],
    rates: Option<[usize; 2]>,
    layers: usize,
) -> Result<Vec<Compression>, Rejected> {
    c.note_words("layer_types", &[WINDOW, OVERLAPPING, PLAIN]);
    check_length(c, "layer_types", types.len(), layers)?;
    let Some([overlapping, plain]) = rates else {
        return Err(c.reject("compress_rates", "is missing, and layer_types needs it"));
    };
    let mut compression = Vec::with_capacity(layers);
    for &kind in types {
        compression.push(match kind {
            WINDOW => Compression::Window,
            OVERLAPPING => Compression::Overlapping(overlapping),
            PLAIN => Compression::Plain(plain),
            _ => return Err(unknown(c, "layer_types", kind)),
        });
    }
    Ok(compression)
}

/// `mlp_layer_types`.
fn by_kinds(
    c: &mut ConfigReader<'_>,
    kinds: &[&str],
    layers: usize,
) -> Result<Vec<bool>, Rejected> {
    c.note_words("mlp_layer_types", &HASHED);
    check_length(c, "mlp_layer_types", kinds.len(), layers)?;
    let mut hashed = Vec::with_capacity(layers);
    for &kind in kinds {
        hashed.push(match kind {
            kind if kind == HASHED[0] => true,
            kind if kind == HASHED[1] => false,
            _ => return Err(unknown(c, "mlp_layer_types", kind)),
        });
    }
    Ok(hashed)
}

fn check_length(
    c: &mut ConfigReader<'_>,
    key: &str,
    found: usize,
    layers: usize,
) -> Result<(), Rejected> {
    if found == layers {
        return Ok(());
    }
    Err(c.reject(key, format!("has {found} entries for {layers} layers")))
}

fn unknown(c: &mut ConfigReader<'_>, key: &str, kind: &str) -> Rejected {
    let kind = crate::config::shown(&kind.into());
    c.reject(key, format!("holds {kind}, which is not a kind of layer"))
}
