//! Attention over a sliding window and compressed entries.

use super::attention::push;
use super::math::{dot, rotate, softmax, softmax_with_sink, top_k};
use super::{Reference, Row};
use crate::state::Item;
use lamella_program::block::{CompressedAttention, CompressedIndexer, Compressor, Rope};

impl Reference {
    /// Compressed attention of one row.
    pub(super) fn compressed_attention(
        &self,
        a: &CompressedAttention,
        x: &[f32],
        row: &mut Row<'_>,
    ) -> Vec<f32> {
        let position = row.position;
        let mut latent_query = self.linear(&a.query_down, x);
        self.norm_parts(&a.query_norm, latent_query.len(), &mut latent_query);
        let mut q = self.linear(&a.query_up, &latent_query);
        self.norm_parts(&a.query_head_norm, a.head_dim, &mut q);
        for head in q.chunks_exact_mut(a.head_dim) {
            rotate(&a.rope, position, false, head);
        }
        let mut new = self.linear(&a.key_value, x);
        self.norm_parts(&a.key_value_norm, a.head_dim, &mut new);
        rotate(&a.rope, position, false, &mut new);
        row.rows("window").row_mut(position).copy_from_slice(&new);
        let mut entries = Vec::new();
        if let Some(c) = &a.compressor {
            self.compress(c, &a.rope, a.head_dim, x, "compressed", row);
            entries = (0..(position + 1) / c.ratio).collect();
        }
        if let Some(ix) = &a.indexer {
            entries = self.select_entries(ix, x, &latent_query, row);
        }
        let window = (position + 1).saturating_sub(a.window)..=position;
        let mut visible: Vec<Vec<f32>> =
            window.map(|s| row.rows("window").row(s).to_vec()).collect();
        for &entry in &entries {
            visible.push(row.rows("compressed").row(entry).to_vec());
        }
        let mut heads = Vec::with_capacity(q.len());
        for (h, q) in q.chunks_exact(a.head_dim).enumerate() {
            let scores: Vec<f64> = visible
                .iter()
                .map(|v| dot(q, v) * f64::from(a.scale))
                .collect();
            let sink = f64::from(self.weight(a.sinks)[h]);
            let weights = softmax_with_sink(&scores, Some(sink));
            let mut out: Vec<f32> = (0..a.head_dim)
                .map(|d| {
                    let terms = weights.iter().zip(&visible);
                    terms.map(|(w, v)| w * f64::from(v[d])).sum::<f64>() as f32
                })
                .collect();
            rotate(&a.rope, position, true, &mut out);
            heads.extend(out);
        }
        let group = heads.len() / a.output_groups;
        let down = self.weight(a.output_down.weight);
        let per_group = down.len() / a.output_groups;
        let parts = heads.chunks_exact(group).zip(down.chunks_exact(per_group));
        let inner: Vec<f32> = parts
            .flat_map(|(heads, down)| super::math::matrix_vector(down, heads))
            .collect();
        self.linear(&a.output_up, &inner)
    }

    /// Feeds the compressor of state item `name` one token; stores an entry when a window is whole.
    fn compress(
        &self,
        c: &Compressor,
        rope: &Rope,
        width: usize,
        x: &[f32],
        name: &str,
        row: &mut Row<'_>,
    ) {
        let position = row.position;
        let values = self.linear(&c.value, x);
        let mut gates = self.linear(&c.gate, x);
        let channels = values.len();
        let bias = &self.weight(c.position)[position % c.ratio * channels..][..channels];
        super::math::add(&mut gates, bias);
        let raw_row = [values, gates].concat();
        let place = row.place(name);
        let Item::Compressed { finished, raw } = &mut row.state.items[place] else {
            unreachable!("a compressor declares compressed rows")
        };
        let raw = raw.edit();
        if (position + 1).is_multiple_of(c.ratio) {
            let mut rows: Vec<&[f32]> = raw.chunks_exact(2 * channels).collect();
            rows.push(&raw_row);
            let own = rows.len() - c.ratio;
            // The previous window gives its first half of the channels, this one its last.
            let mut slots: Vec<(&[f32], usize)> = Vec::new();
            if c.overlaps && position + 1 >= 2 * c.ratio {
                slots.extend(rows[own - c.ratio..own].iter().map(|r| (*r, 0)));
            }
            let first = if c.overlaps { width } else { 0 };
            slots.extend(rows[own..].iter().map(|r| (*r, first)));
            let mut entry: Vec<f32> = (0..width)
                .map(|d| {
                    let gate = |(r, at): &(&[f32], usize)| f64::from(r[channels + at + d]);
                    let weights = softmax(&slots.iter().map(gate).collect::<Vec<_>>());
                    let terms = weights.iter().zip(&slots);
                    terms
                        .map(|(w, (r, at))| w * f64::from(r[at + d]))
                        .sum::<f64>() as f32
                })
                .collect();
            self.norm_parts(&c.norm, width, &mut entry);
            rotate(rope, position + 1 - c.ratio, false, &mut entry);
            finished.row_mut(position / c.ratio).copy_from_slice(&entry);
        }
        push(raw, &raw_row);
    }

    /// The compressed entries that the indexer keeps.
    fn select_entries(
        &self,
        ix: &CompressedIndexer,
        x: &[f32],
        latent_query: &[f32],
        row: &mut Row<'_>,
    ) -> Vec<usize> {
        let CompressedIndexer {
            indexer: ix,
            compressor,
        } = ix;
        let position = row.position;
        let mut queries = self.linear(&ix.query, latent_query);
        let Some(rope) = &ix.rope else {
            unreachable!("the closure check demands a rotation")
        };
        for head in queries.chunks_exact_mut(ix.head_dim) {
            rotate(rope, position, false, head);
        }
        self.compress(compressor, rope, ix.head_dim, x, "index", row);
        let entries = (position + 1) / compressor.ratio;
        if entries <= ix.top_k {
            return (0..entries).collect();
        }
        let weights = ix.head_weights.as_ref().map(|w| self.linear(w, x));
        let keys = row.rows("index");
        let score = |e: usize| self.index_score(ix, &queries, weights.as_deref(), keys.row(e));
        top_k(&(0..entries).map(score).collect::<Vec<_>>(), ix.top_k)
    }
}
