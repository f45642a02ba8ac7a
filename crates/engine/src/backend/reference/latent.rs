//! Attention over a shared latent row, with top-k selection.

use super::math::{dot, rotate, sigmoid, softmax, top_k};
use super::{Reference, Row};
use lamella_program::block::{Indexer, LatentAttention, LatentSelection};

impl Reference {
    /// Latent attention of one row, in the absorbed form: queries are mapped into the latent space
    /// and values out of it.
    // long: the formula of the paper, read from top to bottom
    pub(super) fn latent_attention(
        &self,
        a: &LatentAttention,
        x: &[f32],
        row: &mut Row<'_>,
    ) -> Vec<f32> {
        let position = row.position;
        let mut latent_query = self.linear(&a.query_down, x);
        self.norm_parts(&a.query_norm, latent_query.len(), &mut latent_query);
        let mut q = self.linear(&a.query_up, &latent_query);
        let mut new = self.linear(&a.latent_down, x);
        self.norm_parts(&a.latent_norm, a.latent_dim, &mut new[..a.latent_dim]);
        let head_dim = a.nope_dim + a.rope_dim;
        if let Some(rope) = &a.rope {
            for head in q.chunks_exact_mut(head_dim) {
                rotate(rope, position, false, &mut head[a.nope_dim..]);
            }
            rotate(rope, position, false, &mut new[a.latent_dim..]);
        }
        row.rows("latent").row_mut(position).copy_from_slice(&new);
        match &a.selection {
            None => {}
            Some(LatentSelection::Shared) => {}
            Some(LatentSelection::Own(ix)) => {
                *row.selection = Some(self.select_positions(ix, x, &latent_query, row));
            }
        }
        let visible = match (&a.selection, &*row.selection) {
            (Some(_), Some(chosen)) => chosen.clone(),
            _ => (0..=position).collect(),
        };
        let up = self.weight(a.latent_up.weight);
        let per_head = (a.nope_dim + a.value_dim) * a.latent_dim;
        let latents = row.rows("latent");
        let mut heads = Vec::with_capacity(a.heads * a.value_dim);
        for (h, q) in q.chunks_exact(head_dim).enumerate() {
            let up = &up[h * per_head..(h + 1) * per_head];
            let (keys, values) = up.split_at(a.nope_dim * a.latent_dim);
            let mut absorbed = vec![0.0f64; a.latent_dim];
            for (key, &q) in keys.chunks_exact(a.latent_dim).zip(q) {
                for (sum, &k) in absorbed.iter_mut().zip(key) {
                    *sum += f64::from(k) * f64::from(q);
                }
            }
            let scores: Vec<f64> = visible
                .iter()
                .map(|&s| {
                    let (latent, rope) = latents.row(s).split_at(a.latent_dim);
                    let pairs = absorbed.iter().zip(latent);
                    let nope: f64 = pairs.map(|(a, &l)| a * f64::from(l)).sum();
                    (nope + dot(&q[a.nope_dim..], rope)) * f64::from(a.scale)
                })
                .collect();
            let weights = softmax(&scores);
            let mut mixed = vec![0.0f64; a.latent_dim];
            for (w, &s) in weights.iter().zip(&visible) {
                for (sum, &l) in mixed.iter_mut().zip(latents.row(s)) {
                    *sum += w * f64::from(l);
                }
            }
            heads.extend(values.chunks_exact(a.latent_dim).map(|value| {
                let terms = value.iter().zip(&mixed);
                terms.map(|(&v, m)| f64::from(v) * m).sum::<f64>() as f32
            }));
        }
        if let Some(gate) = &a.output_gate {
            for (y, g) in heads.iter_mut().zip(self.linear(gate, x)) {
                *y = (f64::from(*y) * sigmoid(f64::from(g))) as f32;
            }
        }
        self.linear(&a.output, &heads)
    }

    /// The positions that this layer's indexer keeps.
    fn select_positions(
        &self,
        ix: &Indexer,
        x: &[f32],
        latent_query: &[f32],
        row: &mut Row<'_>,
    ) -> Vec<usize> {
        let position = row.position;
        let mut queries = self.linear(&ix.query, latent_query);
        let Some(key) = &ix.key else {
            unreachable!("the closure check demands a key")
        };
        let mut key = self.linear(key, x);
        self.index_norm(ix, &mut key);
        if let Some(rope) = &ix.rope {
            for head in queries.chunks_exact_mut(ix.head_dim) {
                rotate(rope, position, false, head);
            }
            rotate(rope, position, false, &mut key);
        }
        row.rows("index").row_mut(position).copy_from_slice(&key);
        if position < ix.top_k {
            return (0..=position).collect();
        }
        let weights = ix.head_weights.as_ref().map(|w| self.linear(w, x));
        let keys = row.rows("index");
        let score = |s: usize| self.index_score(ix, &queries, weights.as_deref(), keys.row(s));
        top_k(&(0..=position).map(score).collect::<Vec<_>>(), ix.top_k)
    }
}
