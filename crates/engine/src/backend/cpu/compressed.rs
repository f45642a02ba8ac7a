//! Attention over a sliding window and compressed entries.

use super::mixers::{ALL, SelectWork, TOGETHER, compressed_sizes, cut, no_query, store};
use super::work::{Angles, Work};
use super::{Core, Segment};
use crate::profile::Operator;
use crate::state::{Item, LayerState};
use crate::step::Span;
use lamella_kernels::{
    Epilogue, Input, KvRows, Matrix, QuantisedRows, RowQuery, Rows, Scores, SharedRows,
    block_bytes, exp,
};
use lamella_program::block::{CompressedAttention, Compressor, Rope};
use lamella_program::encoding::TILE_ROWS;

/// Places of the layer's state items.
const WINDOW: usize = 0;
const ENTRIES: usize = 1;
const INDEX: usize = 2;

impl Core {
    /// `output += output map(compressed attention(normed))`, extending the sessions' state.
    pub(super) fn compressed_attention(
        &self,
        a: &CompressedAttention,
        layer: usize,
        segments: &[Segment],
        spans: &mut [Span<'_>],
        work: &mut Work,
    ) {
        let (count, width) = (work.rows(), self.program.dims.hidden);
        let rank = self.program.operand(a.query_down.weight).rows();
        let inner_width = self.program.operand(a.output_down.weight).rows();
        let sizes = compressed_sizes(a, [rank, inner_width], count);
        let mut arena = std::mem::take(&mut work.arena);
        let [down, query, heads, new, inner, value, gate, iq, iv, ig, iw] = cut(&mut arena, sizes);
        let x = &work.normed[..count * width];
        let quantised = &mut work.quantised;
        self.prepare([&a.query_down, &a.key_value], x, width, quantised);
        self.project_prepared(&a.query_down, x, quantised, down, Epilogue::Store);
        self.project_prepared(&a.key_value, x, quantised, new, Epilogue::Store);
        self.norm_heads_of(&a.query_norm, rank, down);
        self.project(&a.query_up, down, quantised, query, Epilogue::Store);
        self.clock.stop(Operator::Projection);
        self.turn_heads(a, &work.angles, query, new);
        store([layer, WINDOW], segments, spans, new);
        self.clock.stop(Operator::Heads);
        work.mixers.counts.fill(ALL);
        if let Some(c) = &a.compressor {
            self.project(&c.value, x, quantised, value, Epilogue::Store);
            self.project(&c.gate, x, quantised, gate, Epilogue::Store);
            let place = [layer, ENTRIES];
            self.clock.stop(Operator::Projection);
            self.compress(c, &a.rope, a.head_dim, place, segments, spans, value, gate);
            self.clock.stop(Operator::Compressor);
        }
        if a.indexer.is_some() {
            let buffers = [iq, iv, ig, iw];
            self.index_entries(a, layer, segments, spans, down, buffers, work);
        }
        self.attend_entries(a, layer, segments, spans, (query, heads), work);
        self.clock.stop(Operator::Attention);
        self.turn_back(a, &work.back, heads);
        self.clock.stop(Operator::Heads);
        self.project_groups(a, heads, &mut work.quantised, inner);
        let Work {
            quantised,
            hidden,
            branch,
            direct,
            ..
        } = work;
        let out = if *direct { hidden } else { branch };
        let out = &mut out[..count * width];
        self.project(&a.output_up, inner, quantised, out, Epilogue::Add);
        self.clock.stop(Operator::Projection);
        work.arena = arena;
    }

    /// Norms and rotates queries and new rows.
    fn turn_heads(
        &self,
        a: &CompressedAttention,
        angles: &[Angles],
        query: &mut [f32],
        new: &mut [f32],
    ) {
        let (queries, count) = (a.heads * a.head_dim, new.len() / a.head_dim);
        let query = SharedRows::new(query, queries, queries);
        let new = SharedRows::new(new, a.head_dim, a.head_dim);
        self.over_rows(count, queries + a.head_dim, &|row| {
            let turn = self.row_angles(&a.rope, angles, row);
            // SAFETY: each row is one task's.
            let (query, new) = unsafe {
                (
                    query.slice_mut(row, 0..queries),
                    new.slice_mut(row, 0..a.head_dim),
                )
            };
            self.norm_heads_of(&a.query_head_norm, a.head_dim, query);
            self.rotate_by(&a.rope, turn, a.head_dim, query);
            self.norm_heads_of(&a.key_value_norm, a.head_dim, new);
            self.rotate_by(&a.rope, turn, a.head_dim, new);
        });
    }

    /// Undoes the rotation on the heads' outputs.
    fn turn_back(&self, a: &CompressedAttention, back: &[Angles], heads: &mut [f32]) {
        let width = a.heads * a.head_dim;
        let count = heads.len() / width;
        let heads = SharedRows::new(heads, width, width);
        self.over_rows(count, width, &|row| {
            let turn = self.row_angles(&a.rope, back, row);
            // SAFETY: each row is one task's.
            let heads = unsafe { heads.slice_mut(row, 0..width) };
            self.rotate_by(&a.rope, turn, a.head_dim, heads);
        });
    }

    /// Feeds the indexer's own compressor, and selects entries for every row.
    #[allow(
        clippy::too_many_arguments,
        reason = "operands of the selection, and where it reads and writes"
    )]
    fn index_entries(
        &self,
        a: &CompressedAttention,
        layer: usize,
        segments: &[Segment],
        spans: &mut [Span<'_>],
        down: &[f32],
        [iq, iv, ig, iw]: [&mut [f32]; 4],
        work: &mut Work,
    ) {
        let Some(ix) = &a.indexer else { return };
        let x = &work.normed[..work.rows() * self.program.dims.hidden];
        let quantised = &mut work.quantised;
        let c = &ix.compressor;
        self.project(&ix.indexer.query, down, quantised, iq, Epilogue::Store);
        self.project(&c.value, x, quantised, iv, Epilogue::Store);
        self.project(&c.gate, x, quantised, ig, Epilogue::Store);
        if let Some(map) = &ix.indexer.head_weights {
            self.project(map, x, quantised, iw, Epilogue::Store);
        }
        self.clock.stop(Operator::Projection);
        let Some(rope) = &ix.indexer.rope else {
            unreachable!("the closure check demands a rotation")
        };
        let index_width = ix.indexer.heads * ix.indexer.head_dim;
        for (row, queries) in iq.chunks_exact_mut(index_width).enumerate() {
            let turn = self.row_angles(rope, &work.angles, row);
            self.rotate_by(rope, turn, ix.indexer.head_dim, queries);
        }
        let place = [layer, INDEX];
        self.compress(c, rope, ix.indexer.head_dim, place, segments, spans, iv, ig);
        self.clock.stop(Operator::Compressor);
        let weights = ix.indexer.head_weights.is_some().then_some(&*iw);
        self.select_entries(a, layer, segments, spans, iq, weights, work);
    }

    /// Feeds a compressor the values and gates of the piece; entries of whole windows are stored.
    #[allow(
        clippy::too_many_arguments,
        reason = "a compressor stands in two places with operands of its own"
    )]
    fn compress(
        &self,
        c: &Compressor,
        rope: &Rope,
        width: usize,
        [layer, item]: [usize; 2],
        segments: &[Segment],
        spans: &mut [Span<'_>],
        values: &[f32],
        gates: &mut [f32],
    ) {
        let channels = self.program.operand(c.value.weight).rows();
        let bias = self.vector(c.position);
        for segment in segments {
            let state = &mut spans[segment.span].session.layers[layer];
            let Item::Compressed { finished, raw } = &mut state.items[item] else {
                unreachable!("a compressor declares compressed rows")
            };
            let raw = raw.edit();
            let part = segment.row * channels..(segment.row + segment.rows) * channels;
            let (values, gates) = (&values[part.clone()], &mut gates[part]);
            for (i, gate) in gates.chunks_exact_mut(channels).enumerate() {
                let place = (segment.position + i) % c.ratio;
                self.kernels
                    .add(gate, &bias[place * channels..][..channels]);
            }
            let rows = RawRows {
                before: raw,
                values,
                gates,
                channels,
            };
            let first = c.ratio - 1 - segment.position % c.ratio;
            for i in (first..segment.rows).step_by(c.ratio) {
                let position = segment.position + i;
                let entry = finished.row_mut(position / c.ratio);
                self.pool_window(c, position, &rows, i, entry);
                let norm = &c.norm;
                self.kernels
                    .rms_norm_in_place(entry, self.norm_weight(norm), norm.eps);
                self.rotate_to(rope, position + 1 - c.ratio, entry);
                debug_assert_eq!(entry.len(), width);
            }
            keep_raw(raw, values, gates, channels);
        }
    }

    /// The entry of the window that ends at `position`, row `last` of the segment: for each channel
    /// the values weighted by the softmax of the gates.
    fn pool_window(
        &self,
        c: &Compressor,
        position: usize,
        rows: &RawRows<'_>,
        last: usize,
        entry: &mut [f32],
    ) {
        let own = rows.held() + last + 1 - c.ratio;
        let width = entry.len();
        let before = c.overlaps && position + 1 >= 2 * c.ratio;
        let first = if c.overlaps { width } else { 0 };
        let slots = |f: &mut dyn FnMut(&[f32], &[f32])| {
            if before {
                for i in own - c.ratio..own {
                    let (value, gate) = rows.row(i);
                    f(&value[..width], &gate[..width]);
                }
            }
            for i in own..own + c.ratio {
                let (value, gate) = rows.row(i);
                f(&value[first..first + width], &gate[first..first + width]);
            }
        };
        pool_softmax(&slots, entry);
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "operands of the selection, and where it reads and writes"
    )]
    fn select_entries(
        &self,
        a: &CompressedAttention,
        layer: usize,
        segments: &[Segment],
        spans: &[Span<'_>],
        queries: &[f32],
        weights: Option<&[f32]>,
        work: &mut Work,
    ) {
        let Some(ix) = &a.indexer else { return };
        let count = work.rows();
        let Work {
            mixers,
            owner,
            scratch,
            scratch_per_thread,
            ..
        } = work;
        let owner = &*owner;
        let segment_of = |row: usize| &segments[owner[row] as usize];
        let keys = |row: usize| {
            let state = &spans[segment_of(row).span].session.layers[layer];
            state.rows(INDEX)
        };
        let entries = |row: usize| {
            let segment = segment_of(row);
            (segment.position + row - segment.row + 1) / ix.compressor.ratio
        };
        let target = SelectWork {
            rows: count,
            scratch: mixers,
            scores: scratch,
            per_thread: *scratch_per_thread,
        };
        self.select(&ix.indexer, queries, weights, &entries, &keys, target);
        self.clock.stop(Operator::Index);
    }

    /// Attention over the window and the entries, into `heads`.
    fn attend_entries(
        &self,
        a: &CompressedAttention,
        layer: usize,
        segments: &[Segment],
        spans: &[Span<'_>],
        (query, heads): (&[f32], &mut [f32]),
        work: &mut Work,
    ) {
        let count = work.rows();
        let Work {
            mixers,
            owner,
            scratch,
            scratch_per_thread,
            ..
        } = work;
        let (mixers, owner) = (&*mixers, &*owner);
        let out = SharedRows::new(heads, a.head_dim, a.head_dim);
        let per_thread = *scratch_per_thread;
        let scratch = SharedRows::new(scratch, per_thread, per_thread);
        let sinks = self.vector(a.sinks);
        let groups = a.heads.div_ceil(TOGETHER);
        self.pool.run(count * groups, &|task, worker| {
            let (row, first_head) = (count - 1 - task / groups, task % groups * TOGETHER);
            let together = TOGETHER.min(a.heads - first_head);
            let segment = &segments[owner[row] as usize];
            let position = segment.position + row - segment.row;
            let state = &spans[segment.span].session.layers[layer];
            let first = (position + 1).saturating_sub(a.window);
            let selection = mixers.selection(row);
            let entries = match (&a.compressor, selection) {
                (None, _) => 0,
                (Some(_), Some(list)) => list.len(),
                (Some(c), None) => (position + 1) / c.ratio,
            };
            let rows = Seen {
                state,
                first,
                window: position + 1 - first,
                selection,
            };
            let visible = rows.window + entries;
            let mut queries: [RowQuery<'_>; TOGETHER] = std::array::from_fn(|i| {
                if i >= together {
                    return no_query();
                }
                let head = first_head + i;
                let at = row * a.heads + head;
                RowQuery {
                    vector: &query[at * a.head_dim..][..a.head_dim],
                    bias: None,
                    sink: Some(sinks[head]),
                    // SAFETY: each (row, head) is one task's.
                    out: unsafe { out.slice_mut(at, 0..a.head_dim) },
                }
            });
            let rule = Scores {
                scale: a.scale,
                growth: 1.0,
            };
            // SAFETY: a worker number is in use by one thread at a time.
            let scratch = unsafe { scratch.slice_mut(worker, 0..per_thread) };
            let queries = &mut queries[..together];
            self.kernels
                .attend_rows(&rows, visible, rule, queries, scratch);
        });
    }

    /// The block-diagonal first output map: each group of heads has rows of its own.
    fn project_groups(
        &self,
        a: &CompressedAttention,
        heads: &[f32],
        quantised: &mut QuantisedRows,
        inner: &mut [f32],
    ) {
        let matrix = self.weights[a.output_down.weight.index()].matrix(0);
        let (rank, count) = (matrix.rows / a.output_groups, inner.len() / matrix.rows);
        // All groups' inputs as rows, group by group within a row of the piece; each product takes
        // the rows of its group and writes only its own outputs in the end.
        self.quantise_for(&[matrix.encoding], heads, matrix.cols, quantised);
        let input = super::rows::input(matrix.encoding, heads, matrix.cols, quantised);
        let mut wide = [0u32; 64];
        for start in (0..count).step_by(wide.len()) {
            let rows = wide.len().min(count - start);
            for group in 0..a.output_groups {
                for (i, row) in wide[..rows].iter_mut().enumerate() {
                    *row = ((start + i) * a.output_groups + group) as u32;
                }
                let target = &mut inner[start * matrix.rows..(start + rows) * matrix.rows];
                self.group_product(&matrix, input, Rows::At(&wide[..rows]), group, rank, target);
            }
        }
    }

    /// Outputs `group * rank..(group + 1) * rank` of the given input rows.
    fn group_product(
        &self,
        matrix: &Matrix<'_>,
        input: Input<'_>,
        rows: Rows<'_>,
        group: usize,
        rank: usize,
        target: &mut [f32],
    ) {
        const BLOCK: usize = TILE_ROWS;
        let outputs = group * rank..(group + 1) * rank;
        let (first, last) = (outputs.start / BLOCK, outputs.end.div_ceil(BLOCK));
        let view = SharedRows::new(target, matrix.rows, matrix.rows);
        self.over_blocks(last - first, rows.len(), &|blocks| {
            for block in first + blocks.start..first + blocks.end {
                let mut part = [0.0f32; 64 * BLOCK];
                let part = &mut part[..rows.len() * BLOCK];
                let columns = (block * BLOCK)..matrix.rows.min((block + 1) * BLOCK);
                // One block of outputs, as a matrix of its own.
                let one = one_block(matrix, block);
                let out = SharedRows::new(part, BLOCK, BLOCK);
                let to = Rows::First(rows.len());
                // SAFETY: the buffer is this task's.
                unsafe {
                    self.kernels
                        .matmul(&one, 0..1, input, rows, &out, to, Epilogue::Store);
                }
                let mine = columns.start.max(outputs.start)..columns.end.min(outputs.end);
                for (t, part) in part.chunks_exact(BLOCK).enumerate() {
                    // SAFETY: each output of a row is one task's.
                    let to = unsafe { view.slice_mut(t, mine.clone()) };
                    to.copy_from_slice(&part[mine.start - columns.start..][..mine.len()]);
                }
            }
        });
    }
}

/// The window's rows, then compressed entries.
struct Seen<'a> {
    state: &'a LayerState,
    /// First position of the window.
    first: usize,
    /// Rows of the window.
    window: usize,
    /// The entries that count; `None` = all from the first on.
    selection: Option<&'a [u32]>,
}

impl KvRows for Seen<'_> {
    fn key(&self, i: usize) -> &[f32] {
        match i.checked_sub(self.window) {
            None => self.state.rows(WINDOW).row(self.first + i),
            Some(entry) => {
                let entry = self.selection.map_or(entry, |list| list[entry] as usize);
                self.state.rows(ENTRIES).row(entry)
            }
        }
    }

    fn value(&self, i: usize) -> &[f32] {
        self.key(i)
    }
}

/// Row block `block` of a matrix.
fn one_block<'a>(matrix: &Matrix<'a>, block: usize) -> Matrix<'a> {
    let bytes = block_bytes(matrix.encoding, matrix.cols).unwrap_or(0);
    Matrix {
        encoding: matrix.encoding,
        rows: TILE_ROWS.min(matrix.rows - block * TILE_ROWS),
        cols: matrix.cols,
        data: &matrix.data[block * bytes..],
    }
}

/// Values and gates of tokens in order: those kept from before the segment, then the segment's.
struct RawRows<'a> {
    /// Rows of values, then gates, of one token.
    before: &'a [f32],
    values: &'a [f32],
    gates: &'a [f32],
    channels: usize,
}

impl RawRows<'_> {
    /// Rows from before the segment.
    fn held(&self) -> usize {
        self.before.len() / (2 * self.channels)
    }

    /// Values and gates of the row `i`, counted from the oldest kept.
    fn row(&self, i: usize) -> (&[f32], &[f32]) {
        let (n, held) = (self.channels, self.held());
        match i.checked_sub(held) {
            None => self.before[i * 2 * n..][..2 * n].split_at(n),
            Some(i) => (&self.values[i * n..][..n], &self.gates[i * n..][..n]),
        }
    }
}

/// Keeps the newest rows of a segment's values and gates behind what is left of the older ones.
fn keep_raw(raw: &mut [f32], values: &[f32], gates: &[f32], channels: usize) {
    let (held, new) = (raw.len() / (2 * channels), values.len() / channels);
    let taken = held.min(new);
    raw.copy_within(taken * 2 * channels.., 0);
    let rows = raw[(held - taken) * 2 * channels..].chunks_exact_mut(2 * channels);
    for (i, row) in rows.enumerate() {
        let from = (new - taken + i) * channels;
        let (value, gate) = row.split_at_mut(channels);
        value.copy_from_slice(&values[from..from + channels]);
        gate.copy_from_slice(&gates[from..from + channels]);
    }
}

/// Shows each slot's values and gates to a function.
type Slots<'a> = dyn Fn(&mut dyn FnMut(&[f32], &[f32])) + 'a;

/// For each channel, the slots' values weighted by the softmax of their gates, slots in order.
fn pool_softmax(slots: &Slots<'_>, out: &mut [f32]) {
    const CHANNELS: usize = 64;
    for (nth, out) in out.chunks_mut(CHANNELS).enumerate() {
        let part = nth * CHANNELS..nth * CHANNELS + out.len();
        let (mut most, mut sum) = ([f32::NEG_INFINITY; CHANNELS], [0.0f32; CHANNELS]);
        slots(&mut |_, gates| {
            for (most, &gate) in most.iter_mut().zip(&gates[part.clone()]) {
                *most = most.max(gate);
            }
        });
        out.fill(0.0);
        slots(&mut |values, gates| {
            let pairs = values[part.clone()].iter().zip(&gates[part.clone()]);
            for (i, (&value, &gate)) in pairs.enumerate() {
                let weight = exp(gate - most[i]);
                sum[i] += weight;
                out[i] = weight.mul_add(value, out[i]);
            }
        });
        out.iter_mut().zip(sum).for_each(|(out, sum)| *out /= sum);
    }
}
