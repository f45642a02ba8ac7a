//! Hashed n-gram embeddings added to the streams.

use super::math::{add, dot, sigmoid};
use super::{Reference, Row};
use lamella_program::program::PerLayerEmbedding;

impl Reference {
    /// Adds an n-gram embedding to one row of the streams.
    pub(super) fn add_ngrams(&self, t: &PerLayerEmbedding, stream: &mut [f32], row: &mut Row<'_>) {
        let hidden = self.program.dims.hidden;
        let embedding = self.ngram_embedding(t, row);
        let mut keys = self.linear(&t.key, &embedding);
        let value = self.linear(&t.value, &embedding);
        self.norm_parts(&t.key_norm, hidden, &mut keys);
        let mut queries = stream.to_vec();
        self.norm_parts(&t.query_norm, hidden, &mut queries);
        let mut gated = Vec::with_capacity(stream.len());
        let streams = keys.chunks_exact(hidden).zip(queries.chunks_exact(hidden));
        for (key, query) in streams {
            let score = dot(key, query) / (hidden as f64).sqrt();
            let sign = if score == 0.0 { 0.0 } else { score.signum() };
            let gate = sigmoid(sign * score.abs().max(1e-6).sqrt());
            gated.extend(value.iter().map(|&v| (gate * f64::from(v)) as f32));
        }
        let mut normed = gated.clone();
        self.norm_parts(&t.convolution_norm, hidden, &mut normed);
        let convolved = self.convolve(&t.convolution, &normed, row.fixed("ngram"));
        add(stream, &gated);
        add(stream, &convolved);
    }

    /// The rows of all hash heads, concatenated.
    fn ngram_embedding(&self, t: &PerLayerEmbedding, row: &Row<'_>) -> Vec<f32> {
        let boundary = u64::from(t.boundary_token);
        let mut history = vec![u64::from(row.token())];
        for back in 1..t.ngram {
            let cut = history.len() > 1 && history[back - 1] == boundary;
            let id = match row.recent.get(back).copied().flatten() {
                Some(id) if !cut => u64::from(id),
                _ => boundary,
            };
            history.push(id);
        }
        let table = self.weight(t.table);
        let width = self.program.operand(t.table).cols();
        let mut embedding = Vec::new();
        for order in 2..=t.ngram {
            let terms = history[..order].iter().zip(&t.multipliers);
            let mix = terms.fold(0u64, |mix, (&id, &m)| mix ^ id.wrapping_mul(m));
            for i in 0..t.heads_per_ngram {
                let head = (order - 2) * t.heads_per_ngram + i;
                let at = (mix % t.sizes[head] + t.offsets[head]) as usize * width;
                embedding.extend_from_slice(&table[at..at + width]);
            }
        }
        embedding
    }
}
