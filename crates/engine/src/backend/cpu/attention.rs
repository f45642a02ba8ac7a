//! Multi-head attention over the paged cache.

use super::work::Work;
use super::{Core, Segment, rows};
use crate::profile::Operator;
use crate::state::{Page, PagedRows, RowLayout};
use crate::step::Span as Batch;
use lamella_kernels::{Epilogue, KvPages, KvShape, PAGE, Query, Rows, SharedRows};
use lamella_program::block::{Attention, Linear, QkNorm, QkNormScope, RmsNorm, Span};
use std::ops::Range;

/// Query rows of one head that one task takes.
const QUERY_ROWS: usize = 16;

/// Queries handed to the kernel at once.
const TOGETHER: usize = 4;

/// Keys and values of one layer of one session.
struct LayerPages<'a> {
    keys: &'a PagedRows,
    values: &'a PagedRows,
}

impl KvPages for LayerPages<'_> {
    fn keys(&self, page: usize) -> &[f32] {
        self.keys.page(page)
    }

    fn values(&self, page: usize) -> &[f32] {
        self.values.page(page)
    }
}

/// Where tasks write the keys and values of one segment, each task its own pages.
pub(super) struct SharedPages {
    /// Number of the first page.
    first: usize,
    keys: *mut Page,
    values: *mut Page,
}

// SAFETY: only `store_rows` uses the pointers, from tasks that each own one page of one session.
unsafe impl Sync for SharedPages {}
// SAFETY: as above; between steps there are none.
unsafe impl Send for SharedPages {}

/// Places of the convolutions' inputs among the state items, after keys and values.
const KEY_RING: usize = 2;
const VALUE_RING: usize = 3;

/// Whether keys and values lie row after row, because queries see listed rows or add to scores.
fn is_listed(a: &Attention) -> bool {
    a.indexer.is_some()
        || a.relative_bias.is_some()
        || a.position_scaling.is_some()
        || a.sinks.is_some()
}

fn kv_shape(a: &Attention) -> KvShape {
    KvShape {
        heads: a.kv_heads,
        key_dim: a.head_dim,
        value_dim: a.head_dim,
    }
}

/// How rows of item `item` of such a layer lie in their pages.
pub(crate) fn row_layout(a: &Attention, item: usize) -> RowLayout {
    match item {
        0 if !is_listed(a) => RowLayout::Keys(kv_shape(a)),
        1 if !is_listed(a) => RowLayout::Values(kv_shape(a)),
        _ => RowLayout::Plain,
    }
}

/// The first position that a query at `position` sees.
pub(super) fn first_seen(a: &Attention, position: usize) -> usize {
    match a.span {
        Span::Full => 0,
        Span::Sliding { window } => (position + 1).saturating_sub(window),
    }
}

impl Core {
    /// `stream += output(attention(normed))`, extending the sessions' keys and values.
    pub(super) fn attention(
        &self,
        a: &Attention,
        layer: usize,
        segments: &[Segment],
        spans: &mut [Batch<'_>],
        work: &mut Work,
    ) {
        let count = work.rows();
        self.project_heads(a, count, work);
        self.clock.stop(Operator::Projection);
        if let Some(c) = &a.convolutions {
            let Work {
                key, value, mixers, ..
            } = work;
            let width = count * a.kv_heads * a.head_dim;
            let (key, value) = (&mut key[..width], &mut value[..width]);
            self.convolve(&c.key, [layer, KEY_RING], segments, spans, mixers, key);
            self.convolve(
                &c.value,
                [layer, VALUE_RING],
                segments,
                spans,
                mixers,
                value,
            );
        }
        self.clock.stop(Operator::Convolution);
        self.shape_heads(a, count, work);
        self.clock.stop(Operator::Heads);
        if is_listed(a) {
            self.listed_attention(a, layer, segments, spans, work);
        } else {
            self.paged_attention(a, layer, segments, spans, work);
        }
        self.clock.stop(Operator::Attention);
        if let Some(gate) = &a.output_gate {
            let width = self.program.dims.hidden;
            let Work {
                normed,
                arena,
                quantised,
                heads,
                ..
            } = work;
            let gates = &mut arena[..count * a.heads * a.head_dim];
            self.project(
                gate,
                &normed[..count * width],
                quantised,
                gates,
                Epilogue::Store,
            );
            self.clock.stop(Operator::Projection);
            self.kernels.mul_sigmoid(&mut heads[..gates.len()], gates);
            self.clock.stop(Operator::Heads);
        }
        self.project_output(&a.output, count, work);
        self.clock.stop(Operator::Projection);
    }

    /// Attention over pages in the kernels' own layout.
    fn paged_attention(
        &self,
        a: &Attention,
        layer: usize,
        segments: &[Segment],
        spans: &mut [Batch<'_>],
        work: &mut Work,
    ) {
        let shape = kv_shape(a);
        self.store_rows(&shape, layer, segments, spans, work);
        for segment in segments {
            let state = &spans[segment.span].session.layers[layer];
            let pages = LayerPages {
                keys: state.rows(0),
                values: state.rows(1),
            };
            self.attend(a, &shape, segment, &pages, work);
        }
    }

    fn project_heads(&self, a: &Attention, count: usize, work: &mut Work) {
        let width = self.program.dims.hidden;
        let Work {
            normed,
            quantised,
            query,
            key,
            value,
            ..
        } = work;
        let normed = &normed[..count * width];
        let maps = [&a.query, &a.key, &a.value];
        let matrices = maps.map(|m| self.weights[m.weight.index()].matrix(0));
        self.quantise_for(&matrices.map(|m| m.encoding), normed, width, quantised);
        let targets = [
            SharedRows::new(query, matrices[0].rows, matrices[0].rows),
            SharedRows::new(key, matrices[1].rows, matrices[1].rows),
            SharedRows::new(value, matrices[2].rows, matrices[2].rows),
        ];
        // The three products as one range of blocks, so that they share one fork.
        let blocks = matrices.map(|m| m.blocks());
        let total: usize = blocks.iter().sum();
        let rows = Rows::First(count);
        self.over_blocks(total, count, &|range| {
            let mut first = 0;
            for i in 0..3 {
                let part = clip(&range, first, blocks[i]);
                first += blocks[i];
                if part.is_empty() {
                    continue;
                }
                let input = rows::input(matrices[i].encoding, normed, width, quantised);
                // SAFETY: each task writes the columns of its own blocks.
                unsafe {
                    self.kernels.matmul(
                        &matrices[i],
                        part,
                        input,
                        rows,
                        &targets[i],
                        rows,
                        Epilogue::Store,
                    );
                }
            }
        });
    }

    /// Bias, norm, clip and rotation of queries, keys and values.
    fn shape_heads(&self, a: &Attention, count: usize, work: &mut Work) {
        let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let (rope, angles) = (a.rope.as_ref(), &work.angles);
        let query = SharedRows::new(&mut work.query[..count * q], q, q);
        let key = SharedRows::new(&mut work.key[..count * kv], kv, kv);
        let value = SharedRows::new(&mut work.value[..count * kv], kv, kv);
        self.over_rows(count, q + 2 * kv, &|row| {
            // SAFETY: each row is one task's.
            let (query, key, value) = unsafe {
                (
                    query.slice_mut(row, 0..q),
                    key.slice_mut(row, 0..kv),
                    value.slice_mut(row, 0..kv),
                )
            };
            for (map, out) in [(&a.query, &mut *query), (&a.key, key), (&a.value, value)] {
                if let Some(bias) = map.bias {
                    self.kernels.add(out, self.vector(bias));
                }
            }
            if let Some(norm) = &a.qk_norm {
                self.norm_heads(norm, &norm.query, a.head_dim, query);
                self.norm_heads(norm, &norm.key, a.head_dim, key);
            }
            if let Some(limit) = a.clip {
                for out in [&mut *query, key, value] {
                    self.kernels.clamp(out, -limit, limit);
                }
            }
            if let Some(rope) = rope {
                let turn = self.row_angles(rope, angles, row);
                self.rotate_by(rope, turn, a.head_dim, query);
                self.rotate_by(rope, turn, a.head_dim, key);
            }
        });
    }

    fn norm_heads(&self, scope: &QkNorm, norm: &RmsNorm, head_dim: usize, out: &mut [f32]) {
        let width = match scope.scope {
            QkNormScope::Projection => out.len(),
            QkNormScope::Head => head_dim,
        };
        for part in out.chunks_exact_mut(width) {
            self.kernels
                .rms_norm_in_place(part, self.norm_weight(norm), norm.eps);
        }
    }

    /// Puts the segments' keys and values into the pages of their sessions.
    fn store_rows(
        &self,
        shape: &KvShape,
        layer: usize,
        segments: &[Segment],
        spans: &mut [Batch<'_>],
        work: &mut Work,
    ) {
        let Work {
            key, value, pages, ..
        } = work;
        pages.clear();
        pages.extend(segments.iter().map(|segment| {
            let state = &mut spans[segment.span].session.layers[layer];
            let (first, keys) = state.rows_mut(0).held_mut();
            let keys = keys.as_mut_ptr();
            let (_, values) = state.rows_mut(1).held_mut();
            SharedPages {
                first,
                keys,
                values: values.as_mut_ptr(),
            }
        }));
        let width = shape.heads * shape.key_dim;
        let pages = &*pages;
        let store_page = |index: usize, nth: usize| {
            let (segment, pages) = (&segments[index], &pages[index]);
            let page = segment.position / PAGE + nth;
            let end = segment.position + segment.rows;
            let positions = segment.position.max(page * PAGE)..end.min((page + 1) * PAGE);
            if positions.is_empty() {
                return;
            }
            // SAFETY: `reserve` has made pages up to `end`; each page is one task's, a session is
            // in one segment only, and nobody reads pages while rows are stored.
            let (keys, values) = unsafe {
                let index = page - pages.first;
                (&mut *pages.keys.add(index), &mut *pages.values.add(index))
            };
            for position in positions {
                let row = segment.row + position - segment.position;
                let at = row * width..(row + 1) * width;
                shape.store_key(keys, position % PAGE, &key[at.clone()]);
                shape.store_value(values, position % PAGE, &value[at]);
            }
        };
        let most = segments.iter().map(|s| s.rows.div_ceil(PAGE) + 1).max();
        let most = most.unwrap_or(0);
        if segments.len() == 1 && segments[0].rows == 1 {
            store_page(0, 0);
        } else {
            self.pool.run(segments.len() * most, &|task, _| {
                store_page(task / most, task % most);
            });
        }
    }

    /// Attention of the segment's queries, into `work.heads`.
    fn attend(
        &self,
        a: &Attention,
        shape: &KvShape,
        segment: &Segment,
        pages: &LayerPages<'_>,
        work: &mut Work,
    ) {
        let width = a.heads * a.head_dim;
        let Work {
            query,
            heads,
            scratch,
            scratch_per_thread,
            ..
        } = work;
        let rows = segment.row..segment.row + segment.rows;
        let query = &query[rows.start * width..rows.end * width];
        let out = SharedRows::new(
            &mut heads[rows.start * width..rows.end * width],
            width,
            width,
        );
        let needed = *scratch_per_thread;
        let scratch = SharedRows::new(scratch, needed, needed);
        let chunks = segment.rows.div_ceil(QUERY_ROWS);
        let group = a.heads / a.kv_heads;
        self.pool.run(a.kv_heads * chunks, &|task, worker| {
            // Later rows see more: the longest tasks go first.
            let chunk = chunks - 1 - task / a.kv_heads;
            let kv_head = task % a.kv_heads;
            // SAFETY: a worker number is in use by one thread at a time.
            let scratch = unsafe { scratch.slice_mut(worker, 0..needed) };
            let first = chunk * QUERY_ROWS;
            let end = segment.rows.min(first + QUERY_ROWS);
            for head in kv_head * group..(kv_head + 1) * group {
                let channels = head * a.head_dim..(head + 1) * a.head_dim;
                for start in (first..end).step_by(TOGETHER) {
                    let count = TOGETHER.min(end - start);
                    let mut queries: [Query<'_>; TOGETHER] = std::array::from_fn(|i| {
                        if i >= count {
                            return Query {
                                vector: &[],
                                visible: 0..0,
                                out: &mut [],
                            };
                        }
                        let row = start + i;
                        Query {
                            vector: &query[row * width..][channels.clone()],
                            visible: first_seen(a, segment.position + row)
                                ..segment.position + row + 1,
                            // SAFETY: each (row, head) is one task's.
                            out: unsafe { out.slice_mut(row, channels.clone()) },
                        }
                    });
                    let queries = &mut queries[..count];
                    self.kernels
                        .attend(shape, kv_head, a.scale, pages, queries, scratch);
                }
            }
        });
    }

    /// Adds the output projection of the heads to the block's target.
    fn project_output(&self, output: &Linear, count: usize, work: &mut Work) {
        let matrix = self.weights[output.weight.index()].matrix(0);
        let (inputs, width) = (matrix.cols, matrix.rows);
        let Work {
            heads,
            quantised,
            hidden,
            branch,
            direct,
            ..
        } = work;
        let heads = &heads[..count * inputs];
        self.quantise_for(&[matrix.encoding], heads, inputs, quantised);
        let input = rows::input(matrix.encoding, heads, inputs, quantised);
        let out = if *direct { hidden } else { branch };
        let target = SharedRows::new(&mut out[..count * width], width, width);
        let rows = Rows::First(count);
        self.over_blocks(matrix.blocks(), count, &|blocks| {
            // SAFETY: each task writes the columns of its own blocks.
            unsafe {
                self.kernels
                    .matmul(&matrix, blocks, input, rows, &target, rows, Epilogue::Add);
            }
        });
        if let Some(bias) = output.bias {
            for row in out[..count * width].chunks_exact_mut(width) {
                self.kernels.add(row, self.vector(bias));
            }
        }
    }
}

/// The part of `range` that falls into the `count` blocks from `first` on, counted from there.
fn clip(range: &Range<usize>, first: usize, count: usize) -> Range<usize> {
    let start = range.start.clamp(first, first + count) - first;
    let end = range.end.clamp(first, first + count) - first;
    start..end
}
