//! What the mixers over row-major state share: buffers, convolutions, attention over listed rows.

use super::work::{Angles, Work};
use super::{Core, Segment, Shape};
use crate::state::PagedRows;
use crate::step::Span;
use lamella_kernels::{IndexQueries, Kernels, KvRows, RowQuery, SharedRows};
use lamella_program::Program;
use lamella_program::block::{
    Attention, CompressedAttention, DeltaNet, Indexer, LatentAttention, LatentSelection, Linear,
    MAX_TAPS, Mixer, Rope, RopePlace, ShortConvolution,
};
use lamella_program::state::{StateShape, layer_state};

/// Channels a convolution task takes at once, on the stack.
pub(super) const CHANNELS: usize = 256;

/// Heads over the same rows that one task takes.
pub(super) const TOGETHER: usize = 8;

/// Buffers whose size does not follow from the rows of a piece alone.
pub(super) struct Scratch {
    /// Inputs of a convolution before the piece.
    ring: Vec<f32>,
    /// Rows selected for each row of the piece: places or blocks, ascending.
    pub(super) selected: Vec<u32>,
    /// How many of them; [`ALL`] = every one there is.
    pub(super) counts: Vec<u32>,
    /// Most selected rows of any layer.
    pub(super) most: usize,
}

/// A selection that leaves nothing out.
pub(super) const ALL: u32 = u32::MAX;

impl Scratch {
    pub(super) fn new(program: &Program, shape: Shape) -> Scratch {
        let most = most_selected(program);
        Scratch {
            ring: vec![0.0; longest_ring(program)],
            selected: vec![0; shape.step_rows * most],
            counts: vec![ALL; shape.step_rows],
            most,
        }
    }

    pub(super) fn bytes(program: &Program, step_rows: usize) -> usize {
        4 * (longest_ring(program) + step_rows * (most_selected(program) + 2))
    }

    /// Starts a piece: nothing is left out.
    pub(super) fn begin(&mut self) {
        self.counts.fill(ALL);
    }

    /// Takes over what an earlier layer selected for `row`.
    pub(super) fn select(&mut self, row: usize, selected: Option<&[f32]>) {
        self.counts[row] = selected.map_or(ALL, |list| list.len() as u32);
        let places = &mut self.selected[row * self.most..];
        for (place, &position) in places.iter_mut().zip(selected.unwrap_or_default()) {
            *place = position as u32;
        }
    }

    /// What was selected for `row`, in ascending order; `None` = everything.
    pub(super) fn selection(&self, row: usize) -> Option<&[u32]> {
        match self.counts[row] {
            ALL => None,
            count => Some(&self.selected[row * self.most..][..count as usize]),
        }
    }
}

fn longest_ring(program: &Program) -> usize {
    let layers = 0..program.every_layer().count();
    let items = layers.flat_map(|index| layer_state(program, index));
    let rings = items.filter_map(|item| match item.shape {
        StateShape::Ring { rows, width } => Some(rows * width),
        _ => None,
    });
    rings.max().unwrap_or(0)
}

/// The indexer of a mixer.
fn indexer(mixer: &Mixer) -> Option<&Indexer> {
    match mixer {
        Mixer::Attention(a) => a.indexer.as_ref(),
        Mixer::LatentAttention(a) => match &a.selection {
            Some(LatentSelection::Own(ix)) => Some(ix),
            _ => None,
        },
        Mixer::CompressedAttention(a) => a.indexer.as_ref().map(|ix| &ix.indexer),
        _ => None,
    }
}

fn most_selected(program: &Program) -> usize {
    let layers = program.every_layer();
    let indexers = layers.filter_map(|layer| indexer(&layer.mixer.body));
    indexers.map(|ix| ix.top_k).max().unwrap_or(0)
}

/// Floats of `work.arena` that a mixer needs for each row.
pub(super) fn floats_per_row(program: &Program, mixer: &Mixer) -> usize {
    let rows = |map: &Linear| program.operand(map.weight).rows();
    match mixer {
        Mixer::Attention(a) => attention_sizes(program, a, 1).iter().sum(),
        Mixer::LatentAttention(a) => latent_sizes(a, rows(&a.query_down), 1).iter().sum(),
        Mixer::CompressedAttention(a) => {
            let widths = [rows(&a.query_down), rows(&a.output_down)];
            compressed_sizes(a, widths, 1).iter().sum()
        }
        Mixer::Kda(d) | Mixer::GatedDeltaNet(d) => delta_sizes(d, 1).iter().sum(),
        _ => 0,
    }
}

/// Output gate, the indexer's queries and keys, relative queries and biases.
pub(super) fn attention_sizes(program: &Program, a: &Attention, rows: usize) -> [usize; 5] {
    let gate = a.output_gate.as_ref().map_or(0, |_| a.heads * a.head_dim);
    let (queries, key) = match &a.indexer {
        Some(ix) => (ix.heads * ix.head_dim, ix.head_dim),
        None => (0, 0),
    };
    let (relative, bias) = match &a.relative_bias {
        Some(bias) => {
            let rank = program.operand(bias.projection).rows();
            (a.heads * rank, a.heads * bias.extent)
        }
        None => (0, 0),
    };
    [gate, queries, key, relative, bias].map(|n| n * rows)
}

/// Query, key and value before and after their convolutions in place, decay and its inner logits,
/// strength, gate, heads.
pub(super) fn delta_sizes(d: &DeltaNet, rows: usize) -> [usize; 7] {
    let (keys, values) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
    let decay = d.value_heads * d.key_dim;
    [keys, keys, values, 2 * decay, d.value_heads, values, values].map(|n| n * rows)
}

/// Query latent, query, new row, absorbed queries, mixed latents, heads, gate, and the indexer's
/// queries, key and head weights.
pub(super) fn latent_sizes(a: &LatentAttention, rank: usize, rows: usize) -> [usize; 10] {
    let row = a.latent_dim + a.rope_dim;
    let (heads, dim, index_heads) = match &a.selection {
        Some(LatentSelection::Own(ix)) => (ix.heads * ix.head_dim, ix.head_dim, ix.heads),
        _ => (0, 0, 0),
    };
    [
        rank,
        a.heads * (a.nope_dim + a.rope_dim),
        row,
        a.heads * row,
        a.heads * a.latent_dim,
        a.heads * a.value_dim,
        a.heads * a.value_dim,
        heads,
        dim,
        index_heads,
    ]
    .map(|n| n * rows)
}

/// Query latent, queries, heads, new row, inner of the output map, values and gates of the
/// compressor, and the indexer's queries, values, gates and head weights.
pub(super) fn compressed_sizes(
    a: &CompressedAttention,
    [rank, inner]: [usize; 2],
    rows: usize,
) -> [usize; 11] {
    let channels = |overlaps: bool, width: usize| if overlaps { 2 * width } else { width };
    let raw = a
        .compressor
        .as_ref()
        .map_or(0, |c| channels(c.overlaps, a.head_dim));
    let (heads, index_raw, index_heads) = a.indexer.as_ref().map_or((0, 0, 0), |ix| {
        let i = &ix.indexer;
        let raw = channels(ix.compressor.overlaps, i.head_dim);
        (i.heads * i.head_dim, raw, i.heads)
    });
    let queries = a.heads * a.head_dim;
    [
        rank,
        queries,
        queries,
        a.head_dim,
        inner,
        raw,
        raw,
        heads,
        index_raw,
        index_raw,
        index_heads,
    ]
    .map(|n| n * rows)
}

/// Floats of attention scratch a thread needs: scores of [`TOGETHER`] queries, and biases.
pub(super) fn scratch_floats(program: &Program, context: usize) -> usize {
    let layers = program.every_layer();
    let needs = layers.map(|layer| match &layer.mixer.body {
        Mixer::CompressedAttention(a) => scores_of(a.window + context),
        Mixer::Attention(a) if a.relative_bias.is_some() => 2 * scores_of(context),
        Mixer::Attention(_) | Mixer::LatentAttention(_) => scores_of(context),
        _ => 0,
    });
    needs.max().unwrap_or(0)
}

/// Scratch for the scores of [`TOGETHER`] queries over `count` rows.
pub(super) fn scores_of(count: usize) -> usize {
    Kernels::attend_rows_scratch(TOGETHER, count)
}

/// Cuts a buffer into consecutive parts.
pub(super) fn cut<const N: usize>(mut buffer: &mut [f32], sizes: [usize; N]) -> [&mut [f32]; N] {
    sizes.map(|size| {
        let (part, rest) = std::mem::take(&mut buffer).split_at_mut(size);
        buffer = rest;
        part
    })
}

/// Rows of paged state, some of them: each is a key, and its first values are the value.
pub(super) struct PlacedRows<'a> {
    pub(super) rows: &'a PagedRows,
    /// Place of each row that counts; `None` = all from the first on.
    pub(super) places: Option<&'a [u32]>,
    /// Length of a value.
    pub(super) value: usize,
}

/// A place in a list of queries that is not used.
pub(super) fn no_query<'a>() -> RowQuery<'a> {
    RowQuery {
        vector: &[],
        bias: None,
        sink: None,
        out: &mut [],
    }
}

impl KvRows for PlacedRows<'_> {
    fn key(&self, i: usize) -> &[f32] {
        self.rows
            .row(self.places.map_or(i, |places| places[i] as usize))
    }

    fn value(&self, i: usize) -> &[f32] {
        &self.key(i)[..self.value]
    }
}

impl Core {
    /// Runs a convolution over the rows of every segment in place; state item `item` of the layer
    /// holds the inputs before them.
    pub(super) fn convolve(
        &self,
        c: &ShortConvolution,
        [layer, item]: [usize; 2],
        segments: &[Segment],
        spans: &mut [Span<'_>],
        scratch: &mut Scratch,
        x: &mut [f32],
    ) {
        let rows: usize = segments.iter().map(|s| s.rows).sum();
        let width = x.len() / rows;
        let weights = self.taps(c);
        let history = (c.taps - 1) * c.dilation;
        for segment in segments {
            let state = &mut spans[segment.span].session.layers[layer];
            let ring = state.fixed_mut(item).edit();
            let before = &mut scratch.ring[..history * width];
            before.copy_from_slice(ring);
            let x = &mut x[segment.row * width..(segment.row + segment.rows) * width];
            slide(ring, x);
            let before = &*before;
            let view = SharedRows::new(x, width, width);
            let tasks = width.div_ceil(CHANNELS);
            self.over_rows(tasks, CHANNELS * segment.rows, &|task| {
                let channels = task * CHANNELS..width.min((task + 1) * CHANNELS);
                let mut result = [0.0f32; CHANNELS];
                let result = &mut result[..channels.len()];
                let weights = &weights[channels.start * c.taps..channels.end * c.taps];
                // Later rows first: each still finds the inputs before it.
                for row in (0..segment.rows).rev() {
                    let inputs: [&[f32]; MAX_TAPS] = std::array::from_fn(|tap| {
                        if tap >= c.taps {
                            return &[][..];
                        }
                        let back = (c.taps - 1 - tap) * c.dilation;
                        if back <= row {
                            // SAFETY: these channels are one task's, and nothing writes them
                            // while the inputs are read.
                            unsafe { &*view.slice_mut(row - back, channels.clone()) }
                        } else {
                            &before[(history + row - back) * width..][..width][channels.clone()]
                        }
                    });
                    let inputs = &inputs[..c.taps];
                    self.kernels.short_convolution(
                        inputs,
                        weights,
                        c.residual,
                        c.activation,
                        result,
                    );
                    // SAFETY: as above.
                    unsafe { view.slice_mut(row, channels.clone()) }.copy_from_slice(result);
                }
            });
        }
    }

    /// Convolves a block's output, which is in `work.branch`.
    pub(super) fn convolve_branch(
        &self,
        c: &ShortConvolution,
        place: [usize; 2],
        segments: &[Segment],
        spans: &mut [Span<'_>],
        work: &mut Work,
    ) {
        let len = work.rows() * self.program.dims.hidden;
        let Work { branch, mixers, .. } = work;
        self.convolve(c, place, segments, spans, mixers, &mut branch[..len]);
    }

    /// Rotates the given channels' end of every vector of `head_dim` in `x` by the angles of a row.
    pub(super) fn rotate_by(
        &self,
        rope: &Rope,
        (cos, sin): (&[f32], &[f32]),
        head_dim: usize,
        x: &mut [f32],
    ) {
        let start = match rope.place {
            RopePlace::First => 0,
            RopePlace::Last => head_dim - rope.dims,
        };
        for head in x.chunks_exact_mut(head_dim) {
            self.kernels
                .rotate(&mut head[start..start + rope.dims], cos, sin, rope.pairing);
        }
    }

    /// The angles of `rope` at a row of the piece.
    pub(super) fn row_angles<'a>(
        &self,
        rope: &Rope,
        angles: &'a [Angles],
        row: usize,
    ) -> (&'a [f32], &'a [f32]) {
        let index = self.rope_index(rope);
        let pairs = rope.dims / 2;
        let part = row * pairs..(row + 1) * pairs;
        (&angles[index].cos[part.clone()], &angles[index].sin[part])
    }

    /// Fills `selected` and `counts` for every row: the best `ix.top_k` of the candidates it sees.
    pub(super) fn select<'k>(
        &self,
        ix: &Indexer,
        queries: &[f32],
        weights: Option<&[f32]>,
        candidates: &(dyn Fn(usize) -> usize + Sync),
        keys: &(dyn Fn(usize) -> &'k PagedRows + Sync),
        work: SelectWork<'_>,
    ) {
        let SelectWork {
            rows,
            scratch,
            scores,
            per_thread,
        } = work;
        let most = scratch.most;
        let counts = SelectTarget(scratch.counts.as_mut_ptr());
        let selected = SelectTarget(scratch.selected.as_mut_ptr());
        let scores = SharedRows::new(scores, per_thread, per_thread);
        let width = ix.heads * ix.head_dim;
        self.pool.run(rows, &|row, worker| {
            let count = candidates(row);
            if count <= ix.top_k {
                // SAFETY: each row's count is one task's.
                unsafe { *counts.at(row) = ALL };
                return;
            }
            // SAFETY: each row's count and list are one task's; a worker number is in use by one
            // thread at a time.
            let (target, list, scores) = unsafe {
                (
                    &mut *counts.at(row),
                    std::slice::from_raw_parts_mut(selected.at(row * most), ix.top_k),
                    scores.slice_mut(worker, 0..count),
                )
            };
            let rows = PlacedRows {
                rows: keys(row),
                places: None,
                value: 0,
            };
            let index = IndexQueries {
                heads: ix.heads,
                vectors: &queries[row * width..][..width],
                weights: weights.map(|w| &w[row * ix.heads..][..ix.heads]),
                scale: ix.scale,
            };
            self.kernels.index_scores(&rows, &index, scores);
            *target = self.kernels.top_k(scores, list) as u32;
        });
    }
}

/// What [`Core::select`] writes to.
pub(super) struct SelectWork<'a> {
    pub(super) rows: usize,
    pub(super) scratch: &'a mut Scratch,
    pub(super) scores: &'a mut [f32],
    pub(super) per_thread: usize,
}

/// A place that tasks write, each its own elements.
struct SelectTarget(*mut u32);

impl SelectTarget {
    fn at(&self, index: usize) -> *mut u32 {
        self.0.wrapping_add(index)
    }
}

// SAFETY: each task writes elements of its own row only.
unsafe impl Sync for SelectTarget {}

/// Drops the oldest rows of `ring` and appends the newest of `x`.
pub(super) fn slide(ring: &mut [f32], x: &[f32]) {
    if x.len() >= ring.len() {
        ring.copy_from_slice(&x[x.len() - ring.len()..]);
    } else {
        ring.copy_within(x.len().., 0);
        let keep = ring.len() - x.len();
        ring[keep..].copy_from_slice(x);
    }
}

/// Appends every row of the segments to state item `item` of `layer`, whose rows lie one after
/// another.
pub(super) fn store(
    [layer, item]: [usize; 2],
    segments: &[Segment],
    spans: &mut [Span<'_>],
    x: &[f32],
) {
    let rows: usize = segments.iter().map(|s| s.rows).sum();
    let width = x.len() / rows;
    for segment in segments {
        let state = spans[segment.span].session.layers[layer].rows_mut(item);
        for i in 0..segment.rows {
            let from = &x[(segment.row + i) * width..][..width];
            state.row_mut(segment.position + i).copy_from_slice(from);
        }
    }
}
