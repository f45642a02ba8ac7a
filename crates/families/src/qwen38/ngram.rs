//! Hashed n-gram embeddings.

use super::Lowering;
use super::hash::{Hashes, hashes};
use super::ngram_keys::Ngram;
use lamella_program::block::{Activation, ShortConvolution};
use lamella_program::program::{PerLayerEmbedding, StoredHashes};
use lamella_program::{OperandId, Role, Slice};

/// Constants of the hashes, as the checkpoint carries them: multipliers, sizes, offsets.
pub(super) const CONSTANTS: [&str; 3] = [
    "layer_multipliers",
    "ngram_heads_vocab_sizes",
    "ngram_heads_offsets",
];

/// Rows of each part of a table of `rows` rows: all the same, the last ones cropped.
pub(super) fn shards(rows: usize, parts: usize) -> impl Iterator<Item = usize> {
    let each = rows.div_ceil(parts);
    (0..parts).map(move |i| rows.saturating_sub(i * each).min(each))
}

/// The name of part `index` of the table of a layer under `tensor`.
pub(super) fn shard_name(tensor: &str, index: usize) -> String {
    format!("{tensor}.ple.ple_embedding.ngram_embedding.shard_{index}.weight")
}

impl Lowering<'_> {
    pub(super) fn ngram_embeddings(&mut self) -> Vec<PerLayerEmbedding> {
        let Some(n) = &self.config.ngram else {
            return Vec::new();
        };
        let hashes = hashes(n, self.config.vocabulary);
        let tables = n.layers.iter().zip(hashes);
        tables
            .map(|(&layer, hashes)| self.ngram_embedding(n, layer, hashes))
            .collect()
    }

    fn ngram_embedding(&mut self, n: &Ngram, layer: usize, h: Hashes) -> PerLayerEmbedding {
        let c = self.config;
        let all = c.streams * c.hidden;
        let name = format!("layers.{layer}.ngram");
        let tensor = format!("{}.layers.{layer}", self.prefix);
        let head_dim = n.width / h.sizes.len();
        let table = self.ngram_table(&name, &tensor, [h.rows, head_dim], n.shards);
        let mut linear = |end: &str, source: &str, rows| {
            let source = format!("{tensor}.ple.{source}.weight");
            self.b
                .linear(&format!("{name}.{end}"), source, [rows, n.width])
        };
        let key = linear("key", "key_proj", all);
        let value = linear("value", "value_proj", c.hidden);
        let mut norm = |end: &str, source: &str| {
            let (name, source) = (format!("{name}.{end}"), format!("{tensor}.ple.{source}"));
            self.norm(&name, &source, all)
        };
        let key_norm = norm("key_norm", "norm_key");
        let query_norm = norm("query_norm", "norm_query");
        let convolution_norm = norm("convolution_norm", "norm_conv");
        let kernel = Slice::whole(format!("{tensor}.ple.conv1d.weight"), &[all, 1, n.taps]);
        let (kernel_name, shape) = (format!("{name}.convolution"), [all, 1, n.taps]);
        let kernels = vec![vec![kernel]];
        PerLayerEmbedding {
            layer,
            ngram: n.longest,
            heads_per_ngram: n.heads,
            boundary_token: n.boundary,
            multipliers: h.multipliers,
            sizes: h.sizes,
            offsets: h.offsets,
            stored: self.stored_hashes(&tensor),
            table,
            key,
            value,
            key_norm,
            query_norm,
            convolution_norm,
            convolution: ShortConvolution {
                weight: self
                    .b
                    .operands
                    .parts(&kernel_name, Role::Kernel, &shape, kernels),
                taps: n.taps,
                dilation: n.longest,
                residual: false,
                activation: Some(Activation::Silu),
            },
        }
    }

    /// The constants of the layer called `tensor` in the checkpoint: all of them where it has any,
    /// so that one that is missing is named.
    fn stored_hashes(&self, tensor: &str) -> Option<StoredHashes> {
        let names = CONSTANTS.map(|end| format!("{tensor}.ple.ple_embedding.{end}"));
        let any = names.iter().any(|name| self.b.sources.has(name));
        let [multipliers, sizes, offsets] = names;
        any.then_some(StoredHashes {
            multipliers,
            sizes,
            offsets,
        })
    }

    /// The table, put together from its parts.
    fn ngram_table(
        &mut self,
        name: &str,
        tensor: &str,
        [rows, cols]: [usize; 2],
        parts: usize,
    ) -> OperandId {
        let filled = shards(rows, parts).enumerate().filter(|&(_, n)| n > 0);
        let slices = filled
            .map(|(index, rows)| self.b.slice(shard_name(tensor, index), &[rows, cols]))
            .collect();
        let name = format!("{name}.table");
        self.b
            .operands
            .parts(&name, Role::Embedding, &[rows, cols], vec![slices])
    }
}
