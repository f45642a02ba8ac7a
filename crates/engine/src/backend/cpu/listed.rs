//! Attention whose queries see listed rows: block-sparse selection, relative biases, scores that
//! grow with the position, sinks.

use super::attention::first_seen;
use super::mixers::{
    ALL, SelectWork, TOGETHER, attention_sizes, cut, no_query, scores_of, slide, store,
};
use super::work::Work;
use super::{Core, Segment};
use crate::profile::Operator;
use crate::state::{Item, PagedRows};
use crate::step::Span;
use lamella_kernels::{Epilogue, KvRows, RowQuery, Scores, SharedRows, angles};
use lamella_program::block::{Attention, Indexer, RelativeBias, Rope};
use std::ops::Range;

/// Places of keys and values among the layer's state items.
const KEY: usize = 0;
const VALUE: usize = 1;

impl Core {
    /// Attention of the piece's queries, into `work.heads`, extending keys and values.
    pub(super) fn listed_attention(
        &self,
        a: &Attention,
        layer: usize,
        segments: &[Segment],
        spans: &mut [Span<'_>],
        work: &mut Work,
    ) {
        let count = work.rows();
        let width = a.kv_heads * a.head_dim;
        store([layer, KEY], segments, spans, &work.key[..count * width]);
        store(
            [layer, VALUE],
            segments,
            spans,
            &work.value[..count * width],
        );
        self.clock.stop(Operator::Attention);
        match &a.indexer {
            Some(ix) => self.select_blocks(a, ix, layer, segments, spans, work),
            None => work.mixers.counts.fill(ALL),
        }
        if let Some(bias) = &a.relative_bias {
            self.relative_biases(a, bias, count, work);
        }
        self.attend_rows(a, layer, segments, spans, work);
    }

    /// Scores by distance for every row and head, in the arena.
    fn relative_biases(&self, a: &Attention, bias: &RelativeBias, count: usize, work: &mut Work) {
        let hidden = self.program.dims.hidden;
        let Work {
            normed,
            arena,
            quantised,
            ..
        } = work;
        let [_, _, _, relative, biases] = cut(arena, attention_sizes(&self.program, a, count));
        let x = &normed[..count * hidden];
        self.project(&bias.query, x, quantised, relative, Epilogue::Store);
        self.clock.stop(Operator::Projection);
        let projection = self.vector(bias.projection);
        let rank = projection.len() / bias.extent;
        let relative = &*relative;
        let out = SharedRows::new(biases, bias.extent, bias.extent);
        self.over_rows(count * a.heads, bias.extent * rank, &|at| {
            // SAFETY: each (row, head) is one task's.
            let out = unsafe { out.slice_mut(at, 0..bias.extent) };
            out.fill(0.0);
            let parts = projection.chunks_exact(bias.extent);
            for (&r, part) in relative[at * rank..][..rank].iter().zip(parts) {
                self.kernels.add_scaled(out, r, part);
            }
        });
    }

    // long: one task: what it sees, its queries, the call
    fn attend_rows(
        &self,
        a: &Attention,
        layer: usize,
        segments: &[Segment],
        spans: &[Span<'_>],
        work: &mut Work,
    ) {
        let count = work.rows();
        let Work {
            query,
            heads,
            arena,
            mixers,
            owner,
            scratch,
            scratch_per_thread,
            ..
        } = work;
        let [_, _, _, _, biases] = cut(arena, attention_sizes(&self.program, a, count));
        let (query, biases, mixers, owner) = (&*query, &*biases, &*mixers, &*owner);
        let out = SharedRows::new(heads, a.head_dim, a.head_dim);
        let per_thread = *scratch_per_thread;
        let scratch = SharedRows::new(scratch, per_thread, per_thread);
        let group = a.heads / a.kv_heads;
        let parts = group.div_ceil(TOGETHER);
        self.pool.run(count * a.kv_heads * parts, &|task, worker| {
            // Later rows see more: the longest tasks go first.
            let row = count - 1 - task / (a.kv_heads * parts);
            let (kv, part) = (task / parts % a.kv_heads, task % parts);
            let first = kv * group + part * TOGETHER;
            let together = TOGETHER.min((kv + 1) * group - first);
            let segment = &segments[owner[row] as usize];
            let position = segment.position + row - segment.row;
            let state = &spans[segment.span].session.layers[layer];
            let seen = Seen {
                places: Places::new(a, position, mixers.selection(row)),
                keys: state.rows(KEY),
                values: state.rows(VALUE),
                channels: kv * a.head_dim..(kv + 1) * a.head_dim,
            };
            let visible = seen.places.count;
            // SAFETY: a worker number is in use by one thread at a time.
            let scratch = unsafe { scratch.slice_mut(worker, 0..per_thread) };
            let (scores, spread) = scratch.split_at_mut(scores_of(visible));
            let mut spread = spread.chunks_exact_mut(visible);
            let mut queries: [RowQuery<'_>; TOGETHER] = std::array::from_fn(|i| {
                if i >= together {
                    return no_query();
                }
                let at = row * a.heads + first + i;
                let bias = a.relative_bias.as_ref().and_then(|bias| {
                    let by_distance = &biases[at * bias.extent..][..bias.extent];
                    let spread = spread.next()?;
                    for (i, slot) in spread.iter_mut().enumerate() {
                        let distance = position - seen.places.place(i);
                        *slot = by_distance.get(distance).copied().unwrap_or(0.0);
                    }
                    Some(&*spread)
                });
                RowQuery {
                    vector: &query[at * a.head_dim..][..a.head_dim],
                    bias,
                    sink: a.sinks.map(|id| self.vector(id)[first + i]),
                    // SAFETY: each (row, head) is one task's.
                    out: unsafe { out.slice_mut(at, 0..a.head_dim) },
                }
            });
            let rule = Scores {
                scale: a.scale,
                growth: growth(a, position),
            };
            let queries = &mut queries[..together];
            self.kernels
                .attend_rows(&seen, visible, rule, queries, scores);
        });
    }

    /// Makes the index keys of finished blocks and selects blocks for every row.
    fn select_blocks(
        &self,
        a: &Attention,
        ix: &Indexer,
        layer: usize,
        segments: &[Segment],
        spans: &mut [Span<'_>],
        work: &mut Work,
    ) {
        let (count, hidden) = (work.rows(), self.program.dims.hidden);
        let Work {
            normed,
            arena,
            quantised,
            angles,
            mixers,
            owner,
            scratch,
            scratch_per_thread,
            ..
        } = work;
        let [_, queries, keys, ..] = cut(arena, attention_sizes(&self.program, a, count));
        let x = &normed[..count * hidden];
        let Some(key) = &ix.key else {
            unreachable!("the closure check demands a key")
        };
        self.project(&ix.query, x, quantised, queries, Epilogue::Store);
        self.project(key, x, quantised, keys, Epilogue::Store);
        self.clock.stop(Operator::Projection);
        let width = ix.heads * ix.head_dim;
        for (row, queries) in queries.chunks_exact_mut(width).enumerate() {
            if let Some(norm) = &ix.query_norm {
                self.norm_heads_of(norm, ix.head_dim, queries);
            }
            if let Some(rope) = &ix.rope {
                let turn = self.row_angles(rope, angles, row);
                self.rotate_by(rope, turn, ix.head_dim, queries);
            }
        }
        let item = if a.convolutions.is_some() { 4 } else { 2 };
        for segment in segments {
            let state = &mut spans[segment.span].session.layers[layer];
            let keys = &keys[segment.row * ix.head_dim..][..segment.rows * ix.head_dim];
            self.pool_blocks(ix, segment.position, keys, &mut state.items[item]);
        }
        let (owner, spans) = (&*owner, &*spans);
        let segment_of = |row: usize| &segments[owner[row] as usize];
        let finished = |row: usize| {
            let state = &spans[segment_of(row).span].session.layers[layer];
            state.rows(item)
        };
        let blocks = |row: usize| {
            let segment = segment_of(row);
            (segment.position + row - segment.row + 1) / ix.block
        };
        let target = SelectWork {
            rows: count,
            scratch: mixers,
            scores: scratch,
            per_thread: *scratch_per_thread,
        };
        self.select(ix, queries, None, &blocks, &finished, target);
        self.clock.stop(Operator::Index);
    }

    /// Feeds raw index keys to the open block; finished blocks are averaged, normed and rotated to
    /// their first position.
    fn pool_blocks(&self, ix: &Indexer, position: usize, keys: &[f32], item: &mut Item) {
        let Item::Compressed { finished, raw } = item else {
            unreachable!("an indexer declares compressed rows")
        };
        let raw = raw.edit();
        for (i, key) in keys.chunks_exact(ix.head_dim).enumerate() {
            let end = position + i + 1;
            if end.is_multiple_of(ix.block) {
                let pooled = finished.row_mut(end / ix.block - 1);
                pooled.fill(0.0);
                for row in raw.chunks_exact(ix.head_dim).chain([key]) {
                    self.kernels.add(pooled, row);
                }
                self.kernels.scale(pooled, 1.0 / ix.block as f32);
                self.index_norm(ix, pooled);
                if let Some(rope) = &ix.rope {
                    self.rotate_to(rope, end - ix.block, pooled);
                }
            }
            slide(raw, key);
        }
    }

    /// Rotates one vector to a position that need not be one of the piece's.
    pub(super) fn rotate_to(&self, rope: &Rope, position: usize, x: &mut [f32]) {
        const MOST: usize = 256;
        let frequencies = &self.ropes[self.rope_index(rope)].1;
        let (mut cos, mut sin) = ([0.0; MOST], [0.0; MOST]);
        let (cos, sin) = (&mut cos[..frequencies.len()], &mut sin[..frequencies.len()]);
        angles(frequencies, position, cos, sin);
        self.rotate_by(rope, (cos, sin), x.len(), x);
    }
}

/// `1 + alpha * ln(max((t + 1) / floor, 1))`, 1 where there is no such growth.
fn growth(a: &Attention, position: usize) -> f32 {
    a.position_scaling.as_ref().map_or(1.0, |s| {
        let ratio = ((position + 1) as f64 / s.floor).max(1.0);
        (1.0 + s.alpha * libm::log(ratio)) as f32
    })
}

/// Keys and values of one head at the positions a query sees.
struct Seen<'a> {
    places: Places<'a>,
    keys: &'a PagedRows,
    values: &'a PagedRows,
    channels: Range<usize>,
}

impl KvRows for Seen<'_> {
    fn key(&self, i: usize) -> &[f32] {
        &self.keys.row(self.places.place(i))[self.channels.clone()]
    }

    fn value(&self, i: usize) -> &[f32] {
        &self.values.row(self.places.place(i))[self.channels.clone()]
    }
}

/// The positions one query sees, ascending: a run, or whole blocks and the open one.
struct Places<'a> {
    count: usize,
    first: usize,
    /// Selected blocks, and their size.
    blocks: Option<(&'a [u32], usize)>,
    /// First position after the whole blocks.
    tail: usize,
}

impl<'a> Places<'a> {
    fn new(a: &Attention, position: usize, selection: Option<&'a [u32]>) -> Places<'a> {
        let first = first_seen(a, position);
        match (&a.indexer, selection) {
            (Some(ix), Some(blocks)) => {
                let tail = (position + 1) / ix.block * ix.block;
                Places {
                    count: blocks.len() * ix.block + position + 1 - tail,
                    first,
                    blocks: Some((blocks, ix.block)),
                    tail,
                }
            }
            _ => Places {
                count: position + 1 - first,
                first,
                blocks: None,
                tail: 0,
            },
        }
    }

    fn place(&self, i: usize) -> usize {
        match self.blocks {
            None => self.first + i,
            Some((blocks, size)) => match blocks.get(i / size) {
                Some(&block) => block as usize * size + i % size,
                None => self.tail + i - blocks.len() * size,
            },
        }
    }
}
