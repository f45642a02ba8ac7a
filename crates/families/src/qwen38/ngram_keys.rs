//! Configuration keys of the n-gram embeddings.

use crate::common::{named_twice, no_such_token};
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
    // What is not said is what the published class assumes.
    let ids = c.optional_wholes("ple_layer_ids", MAX_LAYERS, MAX_LAYERS);
    let hidden = sizes.map_or(1, |[hidden, ..]| hidden);
    let width = c.count_or("ple_embed_dim", MAX_WIDTH, hidden);
    let taps = c.count_or("ple_conv_kernel_size", MAX_TAPS, 4);
    let longest = c.count_or("ngram_size", MAX_NGRAM, 3);
    let heads = c.count_or("heads_per_ngram", MAX_HASH_HEADS, 8);
    let base = c.count_or("ngram_vocab_size_base", MAX_HASH_ROWS, 20_000_000);
    let multiple = c.count_or("make_ngram_vocab_size_divisible_by", MAX_VOCABULARY, 128);
    let shards = c.count_or("split_ngram_parts", MAX_VOCABULARY, 512);
    // Any seed gives a model of the same cost.
    let seed = c.whole_or("seed", usize::MAX, 1234);
    let boundary = c.optional_first_whole("eos_token_id", MAX_VOCABULARY);
    let [_, depth, vocabulary] = sizes?;
    let mut ids = ids?.unwrap_or_default();
    if let Some(id) = named_twice(&ids) {
        return Err(c.reject("ple_layer_ids", format!("names layer {id} once more")));
    }
    ids.sort_unstable();
    for read in [width, taps, longest, heads, base, multiple, shards, seed] {
        read?;
    }
    let boundary = boundary?;
    if ids.is_empty() {
        return Ok(None);
    }
    if let Some(id) = ids.iter().find(|&&id| id == 0 || id > depth) {
        let message = format!("names layer {id}, but layers are counted from 1 to {depth}");
        return Err(c.reject("ple_layer_ids", message));
    }
    let ngram = Ngram {
        layers: ids.iter().map(|id| id - 1).collect(),
        longest: longest?,
        heads: heads?,
        base: base?,
        multiple: multiple?,
        seed: seed? as u64,
        shards: shards?,
        width: width?,
        taps: taps?,
        boundary: read_boundary(c, boundary, vocabulary)?,
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
    let key = "eos_token_id";
    let Some(id) = found else {
        return Err(c.reject(key, "is missing, and n-gram embeddings need it"));
    };
    match u32::try_from(id) {
        Ok(token) if id < vocabulary => Ok(token),
        _ => Err(no_such_token(c, key, id, vocabulary)),
    }
}
