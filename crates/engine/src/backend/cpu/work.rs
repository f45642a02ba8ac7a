//! The working buffers of a step, made once for the largest piece.

use super::attention::SharedPages;
use super::{Shape, distinct_ropes};
use crate::step::LOGITS_TOGETHER;
use lamella_kernels::{KvShape, QuantisedRows};
use lamella_program::Program;
use lamella_program::block::{Ffn, Mixer};

/// Widths that decide the size of the buffers.
#[derive(Default)]
struct Widths {
    hidden: usize,
    /// Largest concatenation of query heads.
    query: usize,
    /// Largest concatenation of key or value heads.
    key_value: usize,
    /// Largest inner width of a dense unit.
    dense: usize,
    /// Largest `top_k * width` of a routed unit: inner values of a row.
    routed: usize,
    top_k: usize,
    experts: usize,
}

impl Widths {
    fn of(program: &Program) -> Widths {
        let mut w = Widths {
            hidden: program.dims.hidden,
            ..Widths::default()
        };
        for layer in &program.layers {
            if let Mixer::Attention(a) = &layer.mixer.body {
                w.query = w.query.max(a.heads * a.head_dim);
                w.key_value = w.key_value.max(a.kv_heads * a.head_dim);
            }
            match &layer.ffn.body {
                Ffn::Dense(unit) => w.dense = w.dense.max(unit.width),
                Ffn::Routed(r) => {
                    w.routed = w.routed.max(r.top_k * r.unit.width);
                    w.top_k = w.top_k.max(r.top_k);
                    w.experts = w.experts.max(r.experts);
                }
                _ => {}
            }
        }
        w
    }

    fn widest_input(&self) -> usize {
        self.hidden.max(self.query)
    }

    fn inner(&self) -> usize {
        self.dense.max(self.routed)
    }
}

/// Cosines and sines of a piece's positions, `[row][pair]`.
pub(super) struct Angles {
    pub(super) cos: Vec<f32>,
    pub(super) sin: Vec<f32>,
}

/// Rows grouped by the expert they chose.
pub(super) struct Routes {
    /// Router logits, then probabilities, `[rows, experts]`.
    pub(super) scores: Vec<f32>,
    /// Chosen experts of each row and their weights, `[rows][top_k]`, experts ascending.
    pub(super) chosen: Vec<(u32, f32)>,
    /// First entry of each expert in `rows` and `weights`, and their end.
    pub(super) offsets: Vec<u32>,
    /// Rows, expert by expert.
    pub(super) rows: Vec<u32>,
    /// Their weights.
    pub(super) weights: Vec<f32>,
    /// Experts with at least one row, ascending.
    pub(super) active: Vec<u32>,
    /// 0, 1, 2, …: rows of the inner buffer.
    pub(super) identity: Vec<u32>,
}

/// All buffers. `hidden` has the length of the running piece, the others that of the largest.
pub(super) struct Work {
    pub(super) hidden: Vec<f32>,
    pub(super) normed: Vec<f32>,
    /// Output of a block that has a post-norm.
    pub(super) branch: Vec<f32>,
    pub(super) query: Vec<f32>,
    pub(super) key: Vec<f32>,
    pub(super) value: Vec<f32>,
    pub(super) heads: Vec<f32>,
    pub(super) inner: Vec<f32>,
    /// Quantised block inputs.
    pub(super) quantised: QuantisedRows,
    /// Quantised block inputs of every (expert, row) pair.
    pub(super) quantised_gathered: QuantisedRows,
    /// Quantised inner values.
    pub(super) quantised_inner: QuantisedRows,
    pub(super) routes: Routes,
    /// Pages of the piece's segments, while their rows are stored.
    pub(super) pages: Vec<SharedPages>,
    pub(super) angles: Vec<Angles>,
    /// Attention scratch of each thread.
    pub(super) scratch: Vec<f32>,
    pub(super) scratch_per_thread: usize,
    hidden_width: usize,
}

impl Work {
    pub(super) fn new(program: &Program, shape: Shape) -> Work {
        let w = Widths::of(program);
        let rows = shape.step_rows;
        let post_norms = program
            .layers
            .iter()
            .any(|l| l.mixer.post_norm.is_some() || l.ffn.post_norm.is_some());
        let scratch_per_thread = KvShape::attend_scratch(shape.context);
        let inner_rows = rows * w.top_k.max(1);
        Work {
            hidden: Vec::with_capacity(rows * w.hidden),
            normed: vec![0.0; rows * w.hidden],
            branch: vec![0.0; if post_norms { rows * w.hidden } else { 0 }],
            query: vec![0.0; rows * w.query],
            key: vec![0.0; rows * w.key_value],
            value: vec![0.0; rows * w.key_value],
            heads: vec![0.0; rows * w.query],
            inner: vec![0.0; rows * w.inner()],
            quantised: QuantisedRows::with_capacity(rows, w.widest_input()),
            quantised_gathered: QuantisedRows::with_capacity(rows * w.top_k, w.hidden),
            quantised_inner: QuantisedRows::with_capacity(
                inner_rows,
                w.inner().div_ceil(w.top_k.max(1)),
            ),
            routes: Routes {
                scores: vec![0.0; rows * w.experts],
                chosen: vec![(0, 0.0); rows * w.top_k],
                offsets: vec![0; w.experts + 1],
                rows: vec![0; rows * w.top_k],
                weights: vec![0.0; rows * w.top_k],
                active: Vec::with_capacity(w.experts),
                identity: (0..inner_rows as u32).collect(),
            },
            pages: Vec::with_capacity(rows),
            angles: distinct_ropes(program)
                .iter()
                .map(|rope| Angles {
                    cos: vec![0.0; rows * rope.dims / 2],
                    sin: vec![0.0; rows * rope.dims / 2],
                })
                .collect(),
            scratch: vec![0.0; shape.threads * scratch_per_thread],
            scratch_per_thread,
            hidden_width: w.hidden,
        }
    }

    /// Sizes `hidden` for a piece of `rows` rows.
    pub(super) fn begin(&mut self, rows: usize) {
        self.hidden.clear();
        self.hidden.resize(rows * self.hidden_width, 0.0);
    }

    /// Rows of the running piece.
    pub(super) fn rows(&self) -> usize {
        self.hidden.len() / self.hidden_width
    }
}

/// Bytes [`Work::new`] allocates, and the buffer for the logits of several spans.
pub(crate) fn workspace_bytes(
    program: &Program,
    step_rows: usize,
    context: usize,
    threads: usize,
) -> u64 {
    let w = Widths::of(program);
    let ropes: usize = distinct_ropes(program).iter().map(|r| r.dims).sum();
    let floats = 3 * w.hidden + 2 * w.query + 2 * w.key_value + w.inner() + w.experts + ropes;
    // Chosen experts (8 bytes), their rows, weights and identities; pages of a segment.
    let routes = w.top_k * (8 + 4 + 4 + 4) + size_of::<SharedPages>();
    let quantised = QuantisedRows::bytes(1, w.widest_input()).unwrap_or(0)
        + QuantisedRows::bytes(1, w.hidden).unwrap_or(0) * w.top_k
        + QuantisedRows::bytes(1, w.inner().div_ceil(w.top_k.max(1))).unwrap_or(0) * w.top_k.max(1);
    let per_row = (floats * 4 + routes + quantised) as u64;
    let scratch = (threads * KvShape::attend_scratch(context) * 4) as u64;
    let logits = step_rows.min(LOGITS_TOGETHER) * program.exit.logits * 4;
    per_row * step_rows as u64 + scratch + (w.experts * 8 + logits) as u64
}
