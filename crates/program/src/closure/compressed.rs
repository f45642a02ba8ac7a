//! Attention over a window and compressed entries.

use super::attention::IndexerPlace;
use super::checker::{Checker, Form, Size, known};
use crate::block::{CompressedAttention, CompressedIndexer, Compressor};

impl Checker<'_> {
    pub(super) fn compressed_attention(&mut self, place: &str, a: &CompressedAttention) {
        let hidden = self.hidden();
        let width = self.product(place, &[("head size", a.head_dim)]);
        let queries = self.product(place, &[("heads", a.heads), ("head size", a.head_dim)]);
        self.count(place, "window", a.window);
        let rank = self.linear_rows(place, &a.query_down, hidden);
        self.norm(place, &a.query_norm, rank);
        self.linear(place, &a.query_up, queries, rank);
        self.norm(place, &a.query_head_norm, width);
        self.linear(place, &a.key_value, width, hidden);
        self.norm(place, &a.key_value_norm, width);
        self.rope(place, &a.rope, a.head_dim);
        self.positive(place, "score scale", a.scale.into());
        self.vector(place, a.sinks, known(a.heads));
        self.grouped_output(place, a, queries);
        if let Some(compressor) = &a.compressor {
            self.compressor(&format!("{place}.compressor"), compressor, a.head_dim);
        }
        if let Some(indexer) = &a.indexer {
            self.compressed_indexer(place, a, indexer, rank);
        }
    }

    /// The block-diagonal first output map, and the second.
    fn grouped_output(&mut self, place: &str, a: &CompressedAttention, queries: Size) {
        let hidden = self.hidden();
        let groups = self.product(place, &[("output groups", a.output_groups)]);
        let fits = groups.is_none_or(|groups| a.heads.is_multiple_of(groups));
        if !fits {
            let message = format!("{} heads in {} output groups", a.heads, a.output_groups);
            self.geometry(place, message);
        }
        let cols = match (queries, groups) {
            (Some(queries), Some(groups)) if fits => Some(queries / groups),
            _ => None,
        };
        let rows = self.linear_rows(place, &a.output_down, cols);
        if let (Some(rows), Some(groups)) = (rows, groups)
            && !rows.is_multiple_of(groups)
        {
            let message = format!("{rows} rows of the output map in {groups} groups");
            self.geometry(place, message);
        }
        self.linear(place, &a.output_up, hidden, rows);
    }

    /// A compressor of entries of `width` values.
    fn compressor(&mut self, place: &str, c: &Compressor, width: usize) {
        let hidden = self.hidden();
        let parts = if c.overlaps { 2 } else { 1 };
        let channels = self.product(place, &[("parts", parts), ("entry width", width)]);
        let ratio = self.count(place, "compression ratio", c.ratio);
        self.expect(place, c.position, Form::Plain, &[ratio, channels]);
        self.linear(place, &c.value, channels, hidden);
        self.linear(place, &c.gate, channels, hidden);
        self.norm(place, &c.norm, known(width));
    }

    fn compressed_indexer(
        &mut self,
        place: &str,
        a: &CompressedAttention,
        ix: &CompressedIndexer,
        rank: Size,
    ) {
        let here = format!("{place}.indexer");
        self.indexer(&here, &ix.indexer, rank, IndexerPlace::Compressed);
        let width = ix.indexer.head_dim;
        self.compressor(&format!("{here}.compressor"), &ix.compressor, width);
        match &a.compressor {
            None => self.geometry(&here, "there are no entries to select from".to_owned()),
            Some(compressor) if compressor.ratio != ix.compressor.ratio => {
                let (entries, scored) = (compressor.ratio, ix.compressor.ratio);
                let message = format!("scores entries of {scored} tokens, selects of {entries}");
                self.geometry(&here, message);
            }
            Some(_) => {}
        }
    }
}
