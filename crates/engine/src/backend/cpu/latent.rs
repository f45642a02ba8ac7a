//! Latent attention, in the absorbed form: queries are mapped into the latent space and values out
//! of it, so that the cache holds one row a token for all heads.

use super::mixers::{
    ALL, PlacedRows, Scratch, SelectWork, TOGETHER, cut, latent_sizes, no_query, store,
};
use super::work::{Angles, Work};
use super::{Core, Segment};
use crate::profile::Operator;
use crate::step::Span;
use lamella_kernels::{Epilogue, QuantisedRows, RowQuery, Scores, SharedRows};
use lamella_program::block::{IndexNorm, Indexer, LatentAttention, LatentSelection};

/// Places of the layer's state items.
const LATENT: usize = 0;
const INDEX: usize = 1;

impl Core {
    /// `output += output map(latent attention(normed))`, extending the sessions' latent rows.
    // long: the steps of one block, each a call
    pub(super) fn latent_attention(
        &self,
        a: &LatentAttention,
        layer: usize,
        segments: &[Segment],
        spans: &mut [Span<'_>],
        work: &mut Work,
    ) {
        let (count, width) = (work.rows(), self.program.dims.hidden);
        let rank = self.program.operand(a.query_down.weight).rows();
        let Work {
            normed,
            arena,
            quantised,
            mixers,
            owner,
            hidden,
            branch,
            direct,
            angles,
            scratch,
            scratch_per_thread,
            ..
        } = work;
        let (x, owner) = (&normed[..count * width], &*owner);
        let sizes = latent_sizes(a, rank, count);
        let [down, query, new, absorbed, mixed, heads, gate, iq, ik, iw] = cut(arena, sizes);
        self.project_latents(a, x, quantised, [down, query, new, gate]);
        self.turn_latents(a, angles, query, new);
        self.clock.stop(Operator::Heads);
        store([layer, LATENT], segments, spans, new);
        match &a.selection {
            None => mixers.counts.fill(ALL),
            Some(LatentSelection::Shared) => {}
            Some(LatentSelection::Own(ix)) => {
                self.project(&ix.query, down, quantised, iq, Epilogue::Store);
                self.clock.stop(Operator::Projection);
                self.index_keys(ix, x, quantised, angles, iq, ik);
                store([layer, INDEX], segments, spans, ik);
                if let Some(map) = &ix.head_weights {
                    self.project(map, x, quantised, iw, Epilogue::Store);
                }
                let weights = ix.head_weights.is_some().then_some(&*iw);
                let target = SelectWork {
                    rows: count,
                    scratch: mixers,
                    scores: scratch,
                    per_thread: *scratch_per_thread,
                };
                let rows = (segments, &*spans, owner.as_slice());
                self.select_positions(ix, layer, rows, iq, weights, target);
                self.clock.stop(Operator::Index);
            }
        }
        let up = self.vector(a.latent_up.weight);
        self.absorb(a, up, query, absorbed);
        self.clock.stop(Operator::Latent);
        let seen = Seen {
            layer,
            segments,
            spans,
            owner,
            mixers,
        };
        self.attend_latents(a, &seen, absorbed, mixed, (scratch, *scratch_per_thread));
        self.clock.stop(Operator::Attention);
        self.expand(a, up, mixed, heads);
        self.clock.stop(Operator::Latent);
        if a.output_gate.is_some() {
            self.kernels.mul_sigmoid(heads, gate);
            self.clock.stop(Operator::Heads);
        }
        let out = if *direct { hidden } else { branch };
        let out = &mut out[..count * width];
        self.project(&a.output, heads, quantised, out, Epilogue::Add);
        self.clock.stop(Operator::Projection);
    }

    /// Query latents, queries, new latent rows and the output gate of normed rows.
    fn project_latents(
        &self,
        a: &LatentAttention,
        x: &[f32],
        quantised: &mut QuantisedRows,
        [down, query, new, gate]: [&mut [f32]; 4],
    ) {
        let rank = self.program.operand(a.query_down.weight).rows();
        let width = self.program.dims.hidden;
        self.prepare([&a.query_down, &a.latent_down], x, width, quantised);
        self.project_prepared(&a.query_down, x, quantised, down, Epilogue::Store);
        self.project_prepared(&a.latent_down, x, quantised, new, Epilogue::Store);
        if let Some(map) = &a.output_gate {
            self.project(map, x, quantised, gate, Epilogue::Store);
        }
        self.norm_heads_of(&a.query_norm, rank, down);
        self.project(&a.query_up, down, quantised, query, Epilogue::Store);
        self.clock.stop(Operator::Projection);
    }

    /// Norms new latent rows, and rotates their shared channels and those of the queries.
    fn turn_latents(
        &self,
        a: &LatentAttention,
        angles: &[Angles],
        query: &mut [f32],
        new: &mut [f32],
    ) {
        let (row_width, head_dim) = (a.latent_dim + a.rope_dim, a.nope_dim + a.rope_dim);
        let (queries, count) = (a.heads * head_dim, new.len() / row_width);
        let norm = self.norm_weight(&a.latent_norm);
        let query = SharedRows::new(query, queries, queries);
        let new = SharedRows::new(new, row_width, row_width);
        self.over_rows(count, row_width + a.heads * a.rope_dim, &|row| {
            // SAFETY: each row is one task's.
            let (query, new) = unsafe {
                (
                    query.slice_mut(row, 0..queries),
                    new.slice_mut(row, 0..row_width),
                )
            };
            let (latent, shared) = new.split_at_mut(a.latent_dim);
            self.kernels
                .rms_norm_in_place(latent, norm, a.latent_norm.eps);
            if let Some(rope) = &a.rope {
                let turn = self.row_angles(rope, angles, row);
                self.rotate_by(rope, turn, a.rope_dim, shared);
                for head in query.chunks_exact_mut(head_dim) {
                    self.rotate_by(rope, turn, a.rope_dim, &mut head[a.nope_dim..]);
                }
            }
        });
    }

    /// Selects the positions of every row by its index queries.
    fn select_positions(
        &self,
        ix: &Indexer,
        layer: usize,
        (segments, spans, owner): (&[Segment], &[Span<'_>], &[u32]),
        queries: &[f32],
        weights: Option<&[f32]>,
        target: SelectWork<'_>,
    ) {
        let segment_of = |row: usize| &segments[owner[row] as usize];
        let keys = |row: usize| {
            let state = &spans[segment_of(row).span].session.layers[layer];
            state.rows(INDEX)
        };
        let visible = |row: usize| {
            let segment = segment_of(row);
            segment.position + row - segment.row + 1
        };
        self.select(ix, queries, weights, &visible, &keys, target);
    }

    /// Maps the unrotated part of every query into the latent space; the rotated part follows.
    fn absorb(&self, a: &LatentAttention, up: &[f32], query: &[f32], absorbed: &mut [f32]) {
        let (head_dim, row_width) = (a.nope_dim + a.rope_dim, a.latent_dim + a.rope_dim);
        let per_head = (a.nope_dim + a.value_dim) * a.latent_dim;
        let count = query.len() / head_dim;
        let out = SharedRows::new(absorbed, row_width, row_width);
        // Head by head, so that a head's map stays in cache for all rows.
        self.over_rows(count, per_head, &|task| {
            let rows = count / a.heads;
            let (head, row) = (task / rows, task % rows);
            let at = row * a.heads + head;
            // SAFETY: each (row, head) is one task's.
            let out = unsafe { out.slice_mut(at, 0..row_width) };
            let query = &query[at * head_dim..][..head_dim];
            let (latent, rotated) = out.split_at_mut(a.latent_dim);
            latent.fill(0.0);
            let keys = up[head * per_head..].chunks_exact(a.latent_dim);
            for (key, &q) in keys.zip(&query[..a.nope_dim]) {
                self.kernels.add_scaled(latent, q, key);
            }
            rotated.copy_from_slice(&query[a.nope_dim..]);
        });
    }

    /// Attention over the latent rows, into `mixed`.
    fn attend_latents(
        &self,
        a: &LatentAttention,
        seen: &Seen<'_, '_>,
        absorbed: &[f32],
        mixed: &mut [f32],
        (scratch, per_thread): (&mut [f32], usize),
    ) {
        let row_width = a.latent_dim + a.rope_dim;
        let count = absorbed.len() / row_width / a.heads;
        let groups = a.heads.div_ceil(TOGETHER);
        let mixed = SharedRows::new(mixed, a.latent_dim, a.latent_dim);
        let scratch = SharedRows::new(scratch, per_thread, per_thread);
        self.pool.run(count * groups, &|task, worker| {
            // Later rows see more: the longest tasks go first.
            let (row, first) = (count - 1 - task / groups, task % groups * TOGETHER);
            let heads = TOGETHER.min(a.heads - first);
            let segment = &seen.segments[seen.owner[row] as usize];
            let position = segment.position + row - segment.row;
            let places = seen.mixers.selection(row);
            let rows = PlacedRows {
                rows: seen.spans[segment.span].session.layers[seen.layer].rows(LATENT),
                places,
                value: a.latent_dim,
            };
            let visible = places.map_or(position + 1, <[u32]>::len);
            let mut queries: [RowQuery<'_>; TOGETHER] = std::array::from_fn(|i| {
                if i >= heads {
                    return no_query();
                }
                let at = row * a.heads + first + i;
                RowQuery {
                    vector: &absorbed[at * row_width..][..row_width],
                    bias: None,
                    sink: None,
                    // SAFETY: each (row, head) is one task's.
                    out: unsafe { mixed.slice_mut(at, 0..a.latent_dim) },
                }
            });
            let scores = Scores {
                scale: a.scale,
                growth: 1.0,
            };
            // SAFETY: a worker number is in use by one thread at a time.
            let scratch = unsafe { scratch.slice_mut(worker, 0..per_thread) };
            let queries = &mut queries[..heads];
            self.kernels
                .attend_rows(&rows, visible, scores, queries, scratch);
        });
    }

    /// Maps every head's mixed latent row to its values.
    fn expand(&self, a: &LatentAttention, up: &[f32], mixed: &[f32], heads: &mut [f32]) {
        let per_head = (a.nope_dim + a.value_dim) * a.latent_dim;
        let count = heads.len() / a.value_dim;
        let out = SharedRows::new(heads, a.value_dim, a.value_dim);
        self.over_rows(count, per_head, &|task| {
            let rows = count / a.heads;
            let (head, row) = (task / rows, task % rows);
            let at = row * a.heads + head;
            // SAFETY: each (row, head) is one task's.
            let out = unsafe { out.slice_mut(at, 0..a.value_dim) };
            let mixed = &mixed[at * a.latent_dim..][..a.latent_dim];
            let up = &up[head * per_head..][..per_head];
            let values = up[a.nope_dim * a.latent_dim..].chunks_exact(a.latent_dim);
            for (out, value) in out.iter_mut().zip(values) {
                *out = self.kernels.dot(value, mixed);
            }
        });
    }

    /// Rotates index queries, and makes index keys of the layer's input.
    fn index_keys(
        &self,
        ix: &Indexer,
        x: &[f32],
        quantised: &mut QuantisedRows,
        angles: &[Angles],
        queries: &mut [f32],
        keys: &mut [f32],
    ) {
        let Some(map) = &ix.key else {
            unreachable!("the closure check demands a key")
        };
        self.project(map, x, quantised, keys, Epilogue::Store);
        let width = ix.heads * ix.head_dim;
        for (row, key) in keys.chunks_exact_mut(ix.head_dim).enumerate() {
            self.index_norm(ix, key);
            if let Some(rope) = &ix.rope {
                let turn = self.row_angles(rope, angles, row);
                self.rotate_by(rope, turn, ix.head_dim, key);
                let queries = &mut queries[row * width..][..width];
                self.rotate_by(rope, turn, ix.head_dim, queries);
            }
        }
    }

    /// Norm of one index key.
    pub(super) fn index_norm(&self, ix: &Indexer, key: &mut [f32]) {
        match &ix.key_norm {
            None => {}
            Some(IndexNorm::Rms(norm)) => {
                self.kernels
                    .rms_norm_in_place(key, self.norm_weight(norm), norm.eps);
            }
            Some(IndexNorm::Layer { weight, bias, eps }) => {
                let (weight, bias) = (self.vector(*weight), self.vector(*bias));
                self.kernels.layer_norm(key, weight, bias, *eps);
            }
        }
    }
}

/// The rows of a piece and what they see.
struct Seen<'a, 's> {
    layer: usize,
    segments: &'a [Segment],
    spans: &'a [Span<'s>],
    owner: &'a [u32],
    mixers: &'a Scratch,
}
