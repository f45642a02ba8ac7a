//! The working buffers of a step, made once for the largest piece.

use super::attention::SharedPages;
use super::lookahead::{FEW_ROWS, Guess};
use super::{Segment, Shape, distinct_ropes, draft, mixers};
use crate::step::LOGITS_TOGETHER;
use lamella_kernels::{KvShape, QuantisedRows};
use lamella_program::block::{Ffn, Mixer, Residual};
use lamella_program::closure::part_operands;
use lamella_program::program::{Exit, StreamReduction};
use lamella_program::{OperandId, Part, Program, Role};

/// Which block of a layer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Site {
    Mixer,
    Ffn,
}

/// Widths that decide the size of the buffers.
#[derive(Default)]
struct Widths {
    hidden: usize,
    stream: usize,
    /// Whether any block cannot add to the stream itself.
    branch: bool,
    /// Values a site of several streams needs for each row.
    site: usize,
    /// Inner width of gated residual sites.
    rank: usize,
    /// Largest concatenation of query heads.
    query: usize,
    /// Largest concatenation of key or value heads.
    key_value: usize,
    /// Most that another mixer needs.
    arena: usize,
    /// Largest inner width of a dense unit.
    dense: usize,
    /// Largest `top_k * width` of a routed unit: inner values of a row.
    routed: usize,
    /// Width of latent experts' inputs.
    latent: usize,
    top_k: usize,
    /// Most router logits.
    experts: usize,
    /// Longest input of a linear map.
    input: usize,
    /// Widest concatenation of n-gram rows.
    ngram: usize,
    /// Values that joining a row and a token needs.
    join: usize,
}

impl Widths {
    fn of(program: &Program, part: &Part) -> Widths {
        let mut w = Widths {
            hidden: program.dims.hidden,
            stream: program.boundary.width,
            ..Widths::default()
        };
        let used = part_operands(program, part);
        for (number, operand) in program.operands.iter().enumerate() {
            let used = used.contains(&OperandId(number as u32));
            if used && matches!(operand.role, Role::Linear | Role::Head | Role::Router) {
                w.input = w.input.max(operand.cols());
            }
        }
        let tables = program.entry.per_layer_embeddings.iter();
        for table in tables.filter(|t| part.layers(program).contains(&t.layer)) {
            w.ngram = w.ngram.max(program.operand(table.key.weight).cols());
        }
        if part.has_ends() {
            w.exit(program, &program.exit);
        }
        for depth in program.depths() {
            w.join = w.join.max(draft::floats_per_row(program, &depth.join));
            w.exit(program, &depth.exit);
        }
        if part.has_ends() {
            // The entry makes the streams of the first layer, the exit reduces those of the last.
            let layers = program
                .layers
                .first()
                .into_iter()
                .chain(program.layers.last());
            layers.for_each(|layer| w.residual(program, &layer.residual));
        }
        for layer in program.layers_of(part) {
            w.branch |= layer.mixer.post_norm.is_some() || layer.ffn.post_norm.is_some();
            w.branch |= layer.mixer.convolution.is_some() || layer.ffn.convolution.is_some();
            w.residual(program, &layer.residual);
            if let Mixer::Attention(a) = &layer.mixer.body {
                w.query = w.query.max(a.heads * a.head_dim);
                w.key_value = w.key_value.max(a.kv_heads * a.head_dim);
            }
            w.arena = w
                .arena
                .max(mixers::floats_per_row(program, &layer.mixer.body));
            w.ffn(program, &layer.ffn.body);
        }
        w
    }

    fn exit(&mut self, program: &Program, exit: &Exit) {
        if let Some(StreamReduction::HyperResidual(gate)) = &exit.reduction {
            self.rank = self.rank.max(program.operand(gate.down.weight).rows());
        }
    }

    fn residual(&mut self, program: &Program, residual: &Residual) {
        let streams = self.stream / self.hidden.max(1);
        self.branch |= !matches!(residual, Residual::Plain);
        match residual {
            Residual::HyperConnections { .. } => self.site = (2 + streams) * streams,
            Residual::AttentionResidual { .. } | Residual::HyperResidual { .. } => {
                self.site = self.site.max(streams);
            }
            _ => {}
        }
        if let Residual::HyperResidual { mixer, ffn, .. } = residual {
            for gate in [mixer, ffn] {
                self.rank = self.rank.max(program.operand(gate.down.weight).rows());
            }
        }
    }

    fn ffn(&mut self, program: &Program, ffn: &Ffn) {
        match ffn {
            Ffn::Dense(unit) => self.dense = self.dense.max(unit.width),
            Ffn::Routed(r) => {
                self.routed = self.routed.max(r.top_k * r.unit.width);
                self.top_k = self.top_k.max(r.top_k);
                self.experts = self.experts.max(program.operand(r.router.weight).rows());
                for unit in &r.shared {
                    self.dense = self.dense.max(unit.width);
                }
                if let Some(latent) = &r.latent {
                    let width = program.operand(latent.down.weight).rows();
                    self.latent = self.latent.max(width);
                }
            }
            _ => {}
        }
    }

    /// Whether the stream is several vectors wide.
    fn several(&self) -> bool {
        self.stream > self.hidden
    }

    /// Inputs of a router.
    fn hidden_if_routed(&self) -> usize {
        if self.top_k > 0 { self.hidden } else { 0 }
    }

    fn widest_input(&self) -> usize {
        self.hidden.max(self.query).max(self.input)
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

impl Angles {
    fn of(program: &Program, rows: usize) -> Vec<Angles> {
        let ropes = distinct_ropes(program).into_iter();
        ropes
            .map(|rope| Angles {
                cos: vec![0.0; rows * rope.dims / 2],
                sin: vec![0.0; rows * rope.dims / 2],
            })
            .collect()
    }
}

/// Whether a mixer undoes its rotation on its output.
fn undoes(program: &Program) -> bool {
    let mut layers = program.every_layer();
    layers.any(|layer| matches!(layer.mixer.body, Mixer::CompressedAttention(_)))
}

/// Rows grouped by the expert they chose.
pub(super) struct Routes {
    /// Router logits, then scores, `[rows, experts + shared]`.
    pub(super) scores: Vec<f32>,
    /// Scores with the selection bias, `[experts]`.
    pub(super) biased: Vec<f32>,
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

impl Routes {
    fn new(w: &Widths, rows: usize) -> Routes {
        Routes {
            scores: vec![0.0; rows * w.experts],
            biased: vec![0.0; w.experts],
            chosen: vec![(0, 0.0); rows * w.top_k],
            offsets: vec![0; w.experts + 1],
            rows: vec![0; rows * w.top_k],
            weights: vec![0.0; rows * w.top_k],
            active: Vec::with_capacity(w.experts),
            identity: (0..(rows * w.top_k.max(1)) as u32).collect(),
        }
    }
}

/// All buffers. `hidden` has the length of the running piece, the others that of the largest.
pub(super) struct Work {
    /// The stream, `[rows, boundary width]`.
    pub(super) hidden: Vec<f32>,
    /// The block's input after its norm.
    pub(super) normed: Vec<f32>,
    /// What a block reads from several streams.
    pub(super) mixed: Vec<f32>,
    /// Whether `mixed` holds the piece's reduced stream.
    pub(super) reduced: bool,
    /// Several streams of every row, twice.
    pub(super) wide: Vec<f32>,
    pub(super) wide_too: Vec<f32>,
    pub(super) rank: Vec<f32>,
    /// Weights with which a site reads and writes the streams.
    pub(super) site: Vec<f32>,
    pub(super) site_width: usize,
    /// Output of a block that does not add to the stream itself.
    pub(super) branch: Vec<f32>,
    /// Whether the running block adds to the stream itself.
    pub(super) direct: bool,
    pub(super) query: Vec<f32>,
    pub(super) key: Vec<f32>,
    pub(super) value: Vec<f32>,
    pub(super) heads: Vec<f32>,
    /// Buffers of the other mixers, cut as each needs it.
    pub(super) arena: Vec<f32>,
    pub(super) inner: Vec<f32>,
    /// Inputs of latent experts, and their outputs.
    pub(super) latent: Vec<f32>,
    pub(super) latent_out: Vec<f32>,
    /// Output of a shared unit.
    pub(super) shared: Vec<f32>,
    /// Rows of n-gram tables.
    pub(super) ngram: Vec<f32>,
    /// What a draft joins.
    pub(super) join: Vec<f32>,
    /// Rows as they pass to the next node, where more than the streams does.
    pub(super) carried: Vec<f32>,
    /// Quantised block inputs.
    pub(super) quantised: QuantisedRows,
    /// Quantised block inputs of every (expert, row) pair.
    pub(super) quantised_gathered: QuantisedRows,
    /// Quantised inner values.
    pub(super) quantised_inner: QuantisedRows,
    pub(super) routes: Routes,
    /// What the next layer will probably choose.
    pub(super) guess: Guess,
    /// Pages of the piece's segments, while their rows are stored.
    pub(super) pages: Vec<SharedPages>,
    pub(super) mixers: mixers::Scratch,
    /// Segment of every row of the piece.
    pub(super) owner: Vec<u32>,
    /// Token ids of the piece, where a layer asks for them.
    pub(super) tokens: Vec<u32>,
    pub(super) angles: Vec<Angles>,
    /// The same angles backwards, where a mixer undoes its rotation.
    pub(super) back: Vec<Angles>,
    /// Attention scratch of each thread.
    pub(super) scratch: Vec<f32>,
    pub(super) scratch_per_thread: usize,
    stream_width: usize,
}

impl Work {
    pub(super) fn new(program: &Program, part: &Part, shape: Shape) -> Work {
        let w = Widths::of(program, part);
        let rows = shape.step_rows;
        let several = if w.several() { rows } else { 0 };
        let scratch_per_thread = scratch_per_thread(program, shape.context);
        let inner_rows = rows * w.top_k.max(1);
        Work {
            hidden: Vec::with_capacity(rows * w.stream),
            normed: vec![0.0; rows * w.hidden],
            mixed: vec![0.0; several * w.hidden],
            reduced: false,
            wide: vec![0.0; several * w.stream],
            wide_too: vec![0.0; if w.rank > 0 { several * w.stream } else { 0 }],
            rank: vec![0.0; rows * w.rank],
            site: vec![0.0; rows * w.site],
            site_width: w.site,
            branch: vec![0.0; if w.branch { rows * w.hidden } else { 0 }],
            direct: true,
            query: vec![0.0; rows * w.query],
            key: vec![0.0; rows * w.key_value],
            value: vec![0.0; rows * w.key_value],
            heads: vec![0.0; rows * w.query],
            arena: vec![0.0; rows * w.arena],
            inner: vec![0.0; rows * w.inner()],
            latent: vec![0.0; rows * w.latent],
            latent_out: vec![0.0; rows * w.latent],
            shared: vec![0.0; rows * w.hidden],
            ngram: vec![0.0; rows * w.ngram],
            join: vec![0.0; rows * w.join],
            carried: Vec::with_capacity(rows * carried(program)),
            quantised: QuantisedRows::with_capacity(rows, w.widest_input()),
            quantised_gathered: QuantisedRows::with_capacity(
                rows * w.top_k,
                w.hidden.max(w.latent),
            ),
            quantised_inner: QuantisedRows::with_capacity(
                inner_rows,
                w.inner().div_ceil(w.top_k.max(1)),
            ),
            routes: Routes::new(&w, rows),
            guess: {
                let few = rows.min(FEW_ROWS);
                Guess::new(w.hidden_if_routed(), few, Routes::new(&w, few))
            },
            pages: Vec::with_capacity(rows),
            mixers: mixers::Scratch::new(program, shape),
            owner: Vec::with_capacity(rows),
            tokens: Vec::with_capacity(rows),
            angles: Angles::of(program, rows),
            back: if undoes(program) {
                Angles::of(program, rows)
            } else {
                Vec::new()
            },
            scratch: vec![0.0; shape.threads * scratch_per_thread],
            scratch_per_thread,
            stream_width: w.stream,
        }
    }

    /// Sizes `hidden` for the rows of `segments`.
    pub(super) fn begin(&mut self, segments: &[Segment]) {
        let rows = segments.last().map_or(0, |s| s.row + s.rows);
        self.owner.clear();
        for (index, segment) in segments.iter().enumerate() {
            let owner = std::iter::repeat_n(index as u32, segment.rows);
            self.owner.extend(owner);
        }
        self.mixers.begin();
        self.hidden.clear();
        self.hidden.resize(rows * self.stream_width, 0.0);
        self.reduced = false;
    }

    /// Rows of the running piece.
    pub(super) fn rows(&self) -> usize {
        self.hidden.len() / self.stream_width
    }
}

/// Values of a row that passes to the next node, where that is more than the streams.
fn carried(program: &Program) -> usize {
    match program.carried_positions() {
        0 => 0,
        _ => program.row_width(),
    }
}

/// Floats of attention scratch a thread needs.
fn scratch_per_thread(program: &Program, context: usize) -> usize {
    KvShape::attend_scratch(context).max(mixers::scratch_floats(program, context))
}

/// Bytes [`Work::new`] allocates, those of convolution weights in another order, and the buffer for
/// the logits of several spans.
pub(crate) fn workspace_bytes(program: &Program, part: &Part, shape: Shape) -> u64 {
    let Shape {
        step_rows,
        context,
        threads,
        ..
    } = shape;
    let w = Widths::of(program, part);
    let ropes: usize = distinct_ropes(program).iter().map(|r| r.dims).sum();
    let ropes = ropes * (1 + usize::from(undoes(program)));
    let several = if w.several() {
        w.hidden + 2 * w.stream
    } else {
        0
    };
    let floats = w.stream
        + 3 * w.hidden
        + several
        + w.rank
        + w.site
        + 2 * w.query
        + 2 * w.key_value
        + w.arena
        + w.inner()
        + w.ngram
        + w.join
        + carried(program)
        + 2 * w.latent
        + w.experts
        + ropes;
    // Chosen experts (8 bytes), their rows, weights and identities.
    let routes = w.top_k * (8 + 4 + 4 + 4);
    let guess = (w.hidden_if_routed() + w.experts) * 4 + routes;
    // Pages of a segment; whose row it is, and its token.
    let routes = routes + size_of::<SharedPages>() + 4 + 4;
    let quantised = QuantisedRows::bytes(1, w.widest_input()).unwrap_or(0)
        + QuantisedRows::bytes(1, w.hidden.max(w.latent)).unwrap_or(0) * w.top_k
        + QuantisedRows::bytes(1, w.inner().div_ceil(w.top_k.max(1))).unwrap_or(0) * w.top_k.max(1);
    let per_row = (floats * 4 + routes + quantised) as u64;
    let scratch = (threads * scratch_per_thread(program, context) * 4) as u64;
    let logits = step_rows.min(LOGITS_TOGETHER) * program.exit.logits * 4;
    let mixers = mixers::Scratch::bytes(program, step_rows) as u64;
    let guess = guess * step_rows.min(FEW_ROWS);
    let rest = 2 * (w.experts * 12 + 4) + guess + logits + taps_bytes(program, part);
    per_row * step_rows as u64 + scratch + mixers + rest as u64
}

/// Bytes of the weights of convolutions, which are there twice.
fn taps_bytes(program: &Program, part: &Part) -> usize {
    let used = part_operands(program, part);
    let operands = (0..).map(OperandId).zip(&program.operands);
    let taps = operands.filter(|(id, o)| o.role == Role::Kernel && used.contains(id));
    taps.map(|(_, operand)| 4 * operand.elements()).sum()
}
