//! Multi-head attention in its forms.

use super::math::{dot, rotate, sigmoid, softmax_with_sink, top_k};
use super::{Reference, Row};
use crate::state::Item;
use lamella_program::block::{Attention, IndexNorm, Indexer, QkNorm, QkNormScope, Span};

impl Reference {
    /// Attention of one row, which joins the sequence.
    pub(super) fn attention(&self, a: &Attention, x: &[f32], row: &mut Row<'_>) -> Vec<f32> {
        let position = row.position;
        let mut q = self.linear(&a.query, x);
        let mut k = self.linear(&a.key, x);
        let mut v = self.linear(&a.value, x);
        if let Some(c) = &a.convolutions {
            k = self.convolve(&c.key, &k, row.fixed("conv.key"));
            v = self.convolve(&c.value, &v, row.fixed("conv.value"));
        }
        if let Some(norm) = &a.qk_norm {
            self.qk_norm(norm, a.head_dim, &mut q, &mut k);
        }
        if let Some(limit) = a.clip {
            for value in q.iter_mut().chain(&mut k).chain(&mut v) {
                *value = value.clamp(-limit, limit);
            }
        }
        if let Some(rope) = &a.rope {
            for head in q
                .chunks_exact_mut(a.head_dim)
                .chain(k.chunks_exact_mut(a.head_dim))
            {
                rotate(rope, position, false, head);
            }
        }
        row.rows("key").row_mut(position).copy_from_slice(&k);
        row.rows("value").row_mut(position).copy_from_slice(&v);
        let visible: Vec<usize> = match (&a.indexer, a.span) {
            (Some(indexer), _) => self.select_blocks(indexer, x, row),
            (None, Span::Full) => (0..=position).collect(),
            (None, Span::Sliding { window }) => {
                ((position + 1).saturating_sub(window)..=position).collect()
            }
        };
        let mut heads = self.attend(a, x, &q, &visible, row);
        if let Some(gate) = &a.output_gate {
            for (y, g) in heads.iter_mut().zip(self.linear(gate, x)) {
                *y = (f64::from(*y) * sigmoid(f64::from(g))) as f32;
            }
        }
        self.linear(&a.output, &heads)
    }

    /// The heads' outputs over the visible positions.
    fn attend(
        &self,
        a: &Attention,
        x: &[f32],
        q: &[f32],
        visible: &[usize],
        row: &mut Row<'_>,
    ) -> Vec<f32> {
        let position = row.position;
        let relative = a
            .relative_bias
            .as_ref()
            .map(|bias| (bias, self.linear(&bias.query, x)));
        let growth = a.position_scaling.as_ref().map_or(1.0, |s| {
            1.0 + s.alpha * ((position + 1) as f64 / s.floor).max(1.0).ln()
        });
        let mut heads = vec![0.0f32; a.heads * a.head_dim];
        for (h, out) in heads.chunks_exact_mut(a.head_dim).enumerate() {
            let kv = h / (a.heads / a.kv_heads);
            let channels = kv * a.head_dim..(kv + 1) * a.head_dim;
            let query = &q[h * a.head_dim..(h + 1) * a.head_dim];
            let bias = |distance: usize| match &relative {
                Some((bias, r)) if distance < bias.extent => {
                    let rank = r.len() / a.heads;
                    let r = &r[h * rank..(h + 1) * rank];
                    let projection = self.weight(bias.projection);
                    let column = |d: usize| f64::from(projection[d * bias.extent + distance]);
                    r.iter()
                        .enumerate()
                        .map(|(d, &r)| f64::from(r) * column(d))
                        .sum()
                }
                _ => 0.0,
            };
            let keys = row.rows("key");
            let scores: Vec<f64> = visible
                .iter()
                .map(|&s| {
                    let score = dot(query, &keys.row(s)[channels.clone()]) * f64::from(a.scale);
                    (score + bias(position - s)) * growth
                })
                .collect();
            let sink = a.sinks.map(|id| f64::from(self.weight(id)[h]));
            let weights = softmax_with_sink(&scores, sink);
            let values = row.rows("value");
            for (out, d) in out.iter_mut().zip(channels) {
                let terms = weights.iter().zip(visible);
                *out = terms
                    .map(|(w, &s)| w * f64::from(values.row(s)[d]))
                    .sum::<f64>() as f32;
            }
        }
        heads
    }

    fn qk_norm(&self, norm: &QkNorm, head_dim: usize, q: &mut [f32], k: &mut [f32]) {
        for (values, norm_of) in [(q, &norm.query), (k, &norm.key)] {
            let width = match norm.scope {
                QkNormScope::Projection => values.len(),
                QkNormScope::Head => head_dim,
            };
            self.norm_parts(norm_of, width, values);
        }
    }

    /// Block-sparse selection: the positions of the best whole blocks and of the open one.
    fn select_blocks(&self, ix: &Indexer, x: &[f32], row: &mut Row<'_>) -> Vec<usize> {
        let position = row.position;
        let mut queries = self.linear(&ix.query, x);
        if let Some(norm) = &ix.query_norm {
            self.norm_parts(norm, ix.head_dim, &mut queries);
        }
        if let Some(rope) = &ix.rope {
            for head in queries.chunks_exact_mut(ix.head_dim) {
                rotate(rope, position, false, head);
            }
        }
        let Some(key) = &ix.key else {
            unreachable!("the closure check demands a key")
        };
        let key = self.linear(key, x);
        let place = row.place("index");
        let Item::Compressed { finished, raw } = &mut row.state.items[place] else {
            unreachable!("an indexer declares compressed rows")
        };
        let raw = raw.edit();
        let blocks = (position + 1) / ix.block;
        if (position + 1).is_multiple_of(ix.block) {
            let mut pooled = key.clone();
            for (c, value) in pooled.iter_mut().enumerate() {
                let earlier = raw.iter().skip(c).step_by(ix.head_dim);
                let sum: f64 = earlier.map(|&v| f64::from(v)).sum::<f64>() + f64::from(*value);
                *value = (sum / ix.block as f64) as f32;
            }
            self.index_norm(ix, &mut pooled);
            if let Some(rope) = &ix.rope {
                rotate(rope, position + 1 - ix.block, false, &mut pooled);
            }
            finished.row_mut(blocks - 1).copy_from_slice(&pooled);
        }
        push(raw, &key);
        let chosen: Vec<usize> = if blocks <= ix.top_k {
            (0..blocks).collect()
        } else {
            let score = |b: usize| self.index_score(ix, &queries, None, finished.row(b));
            top_k(&(0..blocks).map(score).collect::<Vec<_>>(), ix.top_k)
        };
        chosen
            .into_iter()
            .flat_map(|b| b * ix.block..(b + 1) * ix.block)
            .chain(blocks * ix.block..=position)
            .collect()
    }

    pub(super) fn index_norm(&self, ix: &Indexer, key: &mut [f32]) {
        match &ix.key_norm {
            None => {}
            Some(IndexNorm::Rms(norm)) => self.norm_parts(norm, key.len(), key),
            Some(IndexNorm::Layer { weight, bias, eps }) => {
                let n = key.len() as f64;
                let mean = key.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
                let square = |v: f32| (f64::from(v) - mean).powi(2);
                let variance = key.iter().map(|&v| square(v)).sum::<f64>() / n;
                let scale = 1.0 / (variance + f64::from(*eps)).sqrt();
                let (weight, bias) = (self.weight(*weight), self.weight(*bias));
                for (i, v) in key.iter_mut().enumerate() {
                    let normed = (f64::from(*v) - mean) * scale;
                    *v = (normed * f64::from(weight[i]) + f64::from(bias[i])) as f32;
                }
            }
        }
    }

    /// The score of one candidate.
    pub(super) fn index_score(
        &self,
        ix: &Indexer,
        queries: &[f32],
        weights: Option<&[f32]>,
        key: &[f32],
    ) -> f64 {
        let heads = queries.chunks_exact(ix.head_dim).enumerate();
        heads
            .map(|(h, query)| {
                let weight = weights.map_or(1.0, |w| f64::from(w[h]));
                weight * dot(query, key).max(0.0) * f64::from(ix.scale)
            })
            .sum()
    }
}

/// Drops the oldest row and appends `row`.
pub(super) fn push(ring: &mut [f32], row: &[f32]) {
    if let Some(keep) = ring.len().checked_sub(row.len())
        && !ring.is_empty()
    {
        ring.copy_within(row.len().., 0);
        ring[keep..].copy_from_slice(row);
    }
}
