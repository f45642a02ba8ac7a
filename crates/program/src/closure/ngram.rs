//! N-gram embeddings: hashed histories, their table, and how rows of it enter the streams.

use super::checker::{Checker, Size};
use crate::program::PerLayerEmbedding;
use std::collections::HashSet;
use std::ops::Range;

/// Longest n-gram: the state remembers so many token ids.
const MAX_NGRAM: usize = 64;

impl Checker<'_> {
    /// Checks the embeddings that enter before the layers of `range`.
    pub(super) fn ngram_embeddings(&mut self, range: Range<usize>) {
        let mut layers = HashSet::new();
        let tables = self.program.entry.per_layer_embeddings.iter();
        for embedding in tables.filter(|table| range.contains(&table.layer)) {
            let place = format!("layers.{}.ngram", embedding.layer);
            let count = self.program.layers.len();
            if embedding.layer >= count {
                self.geometry(&place, format!("there are {count} layers"));
            }
            if !layers.insert(embedding.layer) {
                let message = "n-gram embeddings enter twice before one layer";
                self.geometry(&place, message.to_owned());
            }
            self.needs_token_ids(&place);
            self.ngram_hashes(&place, embedding);
            self.ngram_maps(&place, embedding);
        }
    }

    fn ngram_hashes(&mut self, place: &str, e: &PerLayerEmbedding) {
        if !(2..=MAX_NGRAM).contains(&e.ngram) {
            let message = format!("n-grams of {}, needs 2 to {MAX_NGRAM}", e.ngram);
            self.geometry(place, message);
        }
        let vocabulary = self.program.dims.vocabulary as u64;
        if u64::from(e.boundary_token) >= vocabulary {
            let message = format!("boundary token {} of {vocabulary}", e.boundary_token);
            self.geometry(place, message);
        }
        if e.multipliers.len() != e.ngram {
            let message = format!("{} multipliers for {}-grams", e.multipliers.len(), e.ngram);
            self.geometry(place, message);
        }
        // A product beyond 63 bits would mean another row elsewhere.
        let usable = |m: u64| m % 2 == 1 && m.checked_mul(vocabulary).is_some_and(|p| p < 1 << 63);
        if let Some(bad) = e.multipliers.iter().find(|&&m| !usable(m)) {
            self.geometry(place, format!("multiplier {bad} is even or too large"));
        }
        if e.sizes.len() != e.offsets.len() {
            let (sizes, offsets) = (e.sizes.len(), e.offsets.len());
            self.geometry(place, format!("{sizes} sizes and {offsets} offsets"));
        }
    }

    fn ngram_maps(&mut self, place: &str, e: &PerLayerEmbedding) {
        let hidden = self.hidden();
        let streams = self.stream_count();
        if streams.is_none() && !self.program.layers.is_empty() {
            let message = "n-gram embeddings have no streams to enter";
            self.geometry(place, message.to_owned());
        }
        let all = match (streams, hidden) {
            (Some(streams), Some(hidden)) => {
                self.product(place, &[("streams", streams), ("hidden size", hidden)])
            }
            _ => None,
        };
        let width = self.ngram_table(place, e);
        self.linear(place, &e.key, all, width);
        self.linear(place, &e.value, hidden, width);
        self.norm(place, &e.key_norm, all);
        self.norm(place, &e.query_norm, all);
        self.norm(place, &e.convolution_norm, all);
        self.convolution(place, &e.convolution, all);
    }

    /// The table and where each head reads in it; the width of all heads' rows together.
    fn ngram_table(&mut self, place: &str, e: &PerLayerEmbedding) -> Size {
        let orders = e.ngram.saturating_sub(1);
        let heads = self.product(
            place,
            &[
                ("n-gram orders", orders),
                ("heads per order", e.heads_per_ngram),
            ],
        );
        if let Some(heads) = heads
            && heads != e.sizes.len()
        {
            let message = format!("{heads} heads, but {} table sizes", e.sizes.len());
            self.geometry(place, message);
        }
        let [rows, width] = self.embedding(place, e.table)?;
        for (&size, &offset) in e.sizes.iter().zip(&e.offsets) {
            let end = offset.checked_add(size);
            if size == 0 || end.is_none_or(|end| end > rows as u64) {
                let message = format!("{size} rows from {offset} on, of a table of {rows}");
                self.geometry(place, message);
            }
        }
        self.product(place, &[("heads", heads?), ("row width", width)])
    }
}
