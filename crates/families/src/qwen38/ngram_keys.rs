//! Configuration keys of the n-gram embeddings.

use crate::config::{ConfigReader, MAX_LAYERS, MAX_VOCABULARY, MAX_WIDTH, Rejected};
use crate::qwen_keys::MAX_TAPS;

/// Longest n-gram that is believed.
const MAX_NGRAM: usize = 16;
/// Hash heads, over all orders and layers, that are believed: each costs a search for a prime.
const MAX_HASH_HEADS: usize = 1 << 10;
/// Smallest table of a hash head that is believed.
const MAX_HASH_ROWS: usize = 1 << 28;

/// The n-gram embeddings.
pub(super) struct Ngram {
    /// Layers they enter, counted from 0, ascending.
    pub(super) layers: Vec<usize>,
    /// Longest n-gram.
    pub(super) longest: usize,
    /// Hash heads of one order.
    pub(super) heads: usize,
    /// Lower bound of a head's table.
    pub(super) base: usize,
    /// The table is padded to a multiple of it.
    pub(super) multiple: usize,
    pub(super) seed: u64,
    /// Tensors the table is cut into.
    pub(super) shards: usize,
    /// Values of all heads' rows together.
    pub(super) width: usize,
    pub(super) taps: usize,
    /// Token that cuts the history.
    pub(super) boundary: u32,
}

impl Ngram {
    /// Numbers that are usable one by one and contradict each other.
    fn check_heads(&self, c: &mut ConfigReader<'_>) -> Result<(), Rejected> {
        let heads = (self.longest - 1) * self.heads;
        if heads == 0 {
            return Err(c.reject("ngram_size", "is 1, but a single token is no n-gram"));
        }
        if heads * self.layers.len() > MAX_HASH_HEADS {
            let message = format!("makes more than {MAX_HASH_HEADS} hash heads over all layers");
            return Err(c.reject("heads_per_ngram", message));
        }
        if !self.width.is_multiple_of(heads) {
            let message = format!(
                "{} values are not shared evenly by {heads} hash heads",
                self.width
            );
            return Err(c.reject("ple_embed_dim", message));
        }
        Ok(())
    }
}

/// The n-gram embeddings; `sizes` are the hidden size, the number of layers and the vocabulary.
pub(super) fn read_ngram(
    c: &mut ConfigReader<'_>,
    sizes: Result<[usize; 3], Rejected>,
) -> Result<Option<Ngram>, Rejected> {
    let ids = c.optional_wholes("ple_layer_ids", MAX_LAYERS, MAX_LAYERS);
    let width = c.optional_count("ple_embed_dim", MAX_WIDTH);
    let taps = c.optional_count("ple_conv_kernel_size", MAX_TAPS);
    let longest = c.optional_count("ngram_size", MAX_NGRAM);
    let heads = c.optional_count("heads_per_ngram", MAX_HASH_HEADS);
    let base = c.optional_count("ngram_vocab_size_base", MAX_HASH_ROWS);
    let multiple = c.optional_count("make_ngram_vocab_size_divisible_by", MAX_VOCABULARY);
    let shards = c.optional_count("split_ngram_parts", MAX_VOCABULARY);
    // Any seed gives a model of the same cost.
    let seed = c.optional_whole("seed", usize::MAX);
    let boundary = c.optional_first_whole("eos_token_id", MAX_VOCABULARY);
    let [hidden, depth, vocabulary] = sizes?;
    let mut ids = ids?.unwrap_or_default();
    ids.sort_unstable();
    ids.dedup();
    let rejected = [
        width, taps, longest, heads, base, multiple, shards, seed, boundary,
    ];
    for read in rejected {
        read?;
    }
    if ids.is_empty() {
        return Ok(None);
    }
    if let Some(id) = ids.iter().find(|&&id| id == 0 || id > depth) {
        let message = format!("names layer {id}, but layers are counted from 1 to {depth}");
        return Err(c.reject("ple_layer_ids", message));
    }
    // What is not said is what the published class assumes.
    let ngram = Ngram {
        layers: ids.iter().map(|id| id - 1).collect(),
        longest: longest?.unwrap_or(3),
        heads: heads?.unwrap_or(8),
        base: base?.unwrap_or(20_000_000),
        multiple: multiple?.unwrap_or(128),
        seed: seed?.unwrap_or(1234) as u64,
        shards: shards?.unwrap_or(512),
        width: width?.unwrap_or(hidden),
        taps: taps?.unwrap_or(4),
        boundary: read_boundary(c, boundary?, vocabulary)?,
    };
    ngram.check_heads(c)?;
    Ok(Some(ngram))
}

/// The token that cuts the history of n-grams.
fn read_boundary(
    c: &mut ConfigReader<'_>,
    found: Option<usize>,
    vocabulary: usize,
) -> Result<u32, Rejected> {
    let known = found.filter(|&id| id < vocabulary);
    match known.and_then(|id| u32::try_from(id).ok()) {
        Some(id) => Ok(id),
        None => {
            let message = match found {
                Some(id) => format!("is {id}, but the vocabulary has {vocabulary} tokens"),
                None => "is missing, and n-gram embeddings need it".to_owned(),
            };
            Err(c.reject("eos_token_id", message))
        }
    }
}
