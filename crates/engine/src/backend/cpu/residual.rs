//! How blocks read from the stream and write to it, row by row.

use super::work::{Site, Work};
use super::{Core, rows};
use crate::profile::Operator;
use lamella_kernels::{Epilogue, HyperMaps, QuantisedRows, Rows, SharedRows};
use lamella_program::OperandId;
use lamella_program::block::{Block, HyperGate, HyperMap, Layer, Residual, ResidualRead, RmsNorm};
use lamella_program::program::StreamReduction;

/// What surrounds a block's body.
pub(super) struct Frame<'a> {
    pub(super) residual: &'a Residual,
    pub(super) site: Site,
    pub(super) pre_norm: Option<&'a RmsNorm>,
    pub(super) post_norm: Option<&'a RmsNorm>,
    pub(super) convolved: bool,
    /// Layers before this one that have sealed a block of the attention residual.
    pub(super) sealed: usize,
}

impl<'a> Frame<'a> {
    pub(super) fn new<B>(layer: &'a Layer, site: Site, block: &'a Block<B>, sealed: usize) -> Self {
        Frame {
            residual: &layer.residual,
            site,
            pre_norm: block.pre_norm.as_ref(),
            post_norm: block.post_norm.as_ref(),
            convolved: block.convolution.is_some(),
            sealed,
        }
    }

    /// Whether the body may add to the stream itself.
    fn is_direct(&self) -> bool {
        matches!(self.residual, Residual::Plain) && !self.convolved && self.post_norm.is_none()
    }
}

impl Core {
    /// Reads the block's input from the stream into `work.normed`, and clears its output.
    pub(super) fn enter_block(&self, frame: &Frame<'_>, work: &mut Work) {
        let width = self.program.dims.hidden;
        let rows = work.rows();
        work.direct = frame.is_direct();
        if !work.direct {
            work.branch[..rows * width].fill(0.0);
        }
        match frame.residual {
            Residual::Plain => {
                let all = Rows::First(rows);
                let out = &mut work.normed[..rows * width];
                self.norm_rows(frame.pre_norm, &work.hidden, all, out, width);
                self.clock.stop(Operator::Norm);
                return;
            }
            Residual::AttentionResidual {
                mixer_read,
                ffn_read,
                seals,
            } => {
                let (read, sealed) = match frame.site {
                    Site::Mixer => (mixer_read, frame.sealed),
                    Site::Ffn => (ffn_read, frame.sealed + usize::from(*seals)),
                };
                self.attention_read(read, sealed, work);
                if *seals && frame.site == Site::Mixer {
                    seal(sealed, width, self.program.boundary.width, &mut work.hidden);
                }
            }
            Residual::HyperConnections {
                streams,
                sinkhorn_iterations,
                eps,
                norm_eps,
                mixer,
                ffn,
            } => {
                let map = match frame.site {
                    Site::Mixer => mixer,
                    Site::Ffn => ffn,
                };
                let shape = HyperMaps {
                    streams: *streams,
                    iterations: *sinkhorn_iterations,
                    eps: *eps,
                };
                self.connection_read(map, &shape, *norm_eps, work);
            }
            Residual::HyperResidual {
                streams,
                mixer,
                ffn,
            } => {
                let gate = match frame.site {
                    Site::Mixer => mixer,
                    Site::Ffn => ffn,
                };
                self.gated_read(gate, *streams, work);
            }
            _ => unreachable!("the closure check refuses residual schemes without rules"),
        }
        self.clock.stop(Operator::Residual);
        let all = Rows::First(rows);
        let out = &mut work.normed[..rows * width];
        self.norm_rows(frame.pre_norm, &work.mixed[..rows * width], all, out, width);
        self.clock.stop(Operator::Norm);
    }

    /// Writes the block's output to the stream, where the body has not done so itself.
    pub(super) fn leave_block(&self, frame: &Frame<'_>, work: &mut Work) {
        if work.direct {
            return;
        }
        let (rows, width) = (work.rows(), self.program.dims.hidden);
        let stream_width = self.program.boundary.width;
        if let Some(norm) = frame.post_norm {
            let weight = self.norm_weight(norm);
            for y in work.branch[..rows * width].chunks_exact_mut(width) {
                self.kernels.rms_norm_in_place(y, weight, norm.eps);
            }
        }
        let Work {
            hidden,
            branch,
            wide,
            site,
            site_width,
            ..
        } = work;
        let (branch, site, site_width) = (&branch[..rows * width], &*site, *site_width);
        let stream = SharedRows::new(hidden, stream_width, stream_width);
        let old = SharedRows::new(wide, stream_width, stream_width);
        self.over_rows(rows, stream_width, &|row| {
            // SAFETY: each row is one task's.
            let stream = unsafe { stream.slice_mut(row, 0..stream_width) };
            let y = &branch[row * width..][..width];
            let site = &site[row * site_width..][..site_width];
            match frame.residual {
                Residual::HyperConnections { streams, .. } => {
                    let n = *streams;
                    // SAFETY: each row is one task's.
                    let old = unsafe { old.slice_mut(row, 0..stream_width) };
                    old.copy_from_slice(stream);
                    for (k, target) in stream.chunks_exact_mut(width).enumerate() {
                        target.fill(0.0);
                        for (j, from) in old.chunks_exact(width).enumerate() {
                            let mix = site[2 * n + j * n + k];
                            self.kernels.add_scaled(target, mix, from);
                        }
                        self.kernels.add_scaled(target, site[n + k], y);
                    }
                }
                Residual::HyperResidual { .. } => {
                    for (target, &c) in stream.chunks_exact_mut(width).zip(site) {
                        self.kernels.add_scaled(target, c, y);
                    }
                }
                // The running sum of an attention residual is the last part of the stream.
                _ => self.kernels.add(&mut stream[stream_width - width..], y),
            }
        });
    }

    /// Attention over the first `sealed` parts of the stream and its running sum, into
    /// `work.mixed`.
    fn attention_read(&self, read: &ResidualRead, sealed: usize, work: &mut Work) {
        let (rows, width) = (work.rows(), self.program.dims.hidden);
        let stream_width = self.program.boundary.width;
        let (weight, projection) = (self.norm_weight(&read.norm), self.vector(read.projection));
        let Work {
            hidden,
            mixed,
            site,
            site_width,
            ..
        } = work;
        let hidden = &*hidden;
        let mixed = SharedRows::new(mixed, width, width);
        let site = SharedRows::new(site, *site_width, *site_width);
        self.over_rows(rows, stream_width, &|row| {
            let stream = &hidden[row * stream_width..][..stream_width];
            // SAFETY: each row is one task's.
            let (mixed, scores) = unsafe {
                (
                    mixed.slice_mut(row, 0..width),
                    site.slice_mut(row, 0..sealed + 1),
                )
            };
            let candidate = |i: usize| match i < sealed {
                true => &stream[i * width..][..width],
                false => &stream[stream_width - width..],
            };
            for (i, score) in scores.iter_mut().enumerate() {
                self.kernels
                    .rms_norm(candidate(i), weight, read.norm.eps, mixed);
                *score = self.kernels.dot(mixed, projection);
            }
            self.kernels.softmax(scores);
            mixed.fill(0.0);
            for (i, &p) in scores.iter().enumerate() {
                self.kernels.add_scaled(mixed, p, candidate(i));
            }
        });
    }

    /// The maps of a hyper-connection site, into `work.site`, and what it reads, into `work.mixed`.
    fn connection_read(&self, map: &HyperMap, shape: &HyperMaps, norm_eps: f32, work: &mut Work) {
        let (base, scale) = (self.vector(map.base), self.vector(map.scale));
        self.joint_norm(norm_eps, work);
        let (rows, width) = (work.rows(), self.program.dims.hidden);
        let stream_width = self.program.boundary.width;
        let Work {
            hidden,
            mixed,
            wide,
            site,
            site_width,
            quantised,
            ..
        } = work;
        let count = (2 + shape.streams) * shape.streams;
        let wide = &wide[..rows * stream_width];
        self.map_rows(map.function, wide, quantised, site, *site_width);
        let hidden = &*hidden;
        let mixed = SharedRows::new(mixed, width, width);
        let site = SharedRows::new(site, *site_width, *site_width);
        self.over_rows(rows, stream_width, &|row| {
            // SAFETY: each row is one task's.
            let (mixed, site) = unsafe {
                (
                    mixed.slice_mut(row, 0..width),
                    site.slice_mut(row, 0..count),
                )
            };
            shape.finish(site, base, scale);
            let stream = &hidden[row * stream_width..][..stream_width];
            self.sum_streams(&site[..shape.streams], stream, mixed);
        });
    }

    /// The strengths of a gated residual site, into `work.site`, and what it reads, into
    /// `work.mixed`.
    fn gated_read(&self, gate: &HyperGate, streams: usize, work: &mut Work) {
        let (rows, width) = (work.rows(), self.program.dims.hidden);
        let stream_width = self.program.boundary.width;
        let Work {
            hidden,
            mixed,
            wide,
            wide_too,
            rank,
            site,
            site_width,
            quantised,
            ..
        } = work;
        let share = 1.0 / streams as f32;
        let all = Rows::First(rows);
        self.norm_streams(&gate.norm, hidden, all, &mut wide[..rows * stream_width]);
        let normed = &wide[..rows * stream_width];
        let down = self.weights[gate.down.weight.index()].matrix(0).rows;
        self.map_rows(gate.down.weight, normed, quantised, rank, down);
        let inner = &mut rank[..rows * down];
        self.kernels.scale(inner, share);
        self.kernels.silu(inner);
        self.map_rows(gate.up.weight, inner, quantised, wide_too, stream_width);
        if let Some(inject) = &gate.inject {
            self.map_rows(inject.weight, normed, quantised, site, *site_width);
        }
        let mixed = SharedRows::new(mixed, width, width);
        let gates = SharedRows::new(wide_too, stream_width, stream_width);
        let site = SharedRows::new(site, *site_width, *site_width);
        self.over_rows(rows, stream_width, &|row| {
            // SAFETY: each row is one task's.
            let (mixed, gates, site) = unsafe {
                (
                    mixed.slice_mut(row, 0..width),
                    gates.slice_mut(row, 0..stream_width),
                    site.slice_mut(row, 0..streams),
                )
            };
            let normed = &normed[row * stream_width..][..stream_width];
            self.kernels.sigmoid_mul(gates, normed);
            mixed.fill(0.0);
            for gated in gates.chunks_exact(width) {
                self.kernels.add(mixed, gated);
            }
            self.kernels.scale(mixed, share);
            if gate.inject.is_some() {
                self.kernels.scale(site, share);
                self.kernels.sigmoid(site);
                self.kernels.scale(site, 2.0);
            }
        });
    }

    /// Divides every row of the stream by its root mean square, into `work.wide`.
    fn joint_norm(&self, eps: f32, work: &mut Work) {
        let norm = RmsNorm {
            weight: None,
            eps,
            unit_offset: false,
        };
        let width = self.program.boundary.width;
        let rows = Rows::First(work.rows());
        let out = &mut work.wide[..rows.len() * width];
        self.norm_rows(Some(&norm), &work.hidden, rows, out, width);
    }

    /// Norms each stream of the given rows on its own; the weight covers all of them.
    pub(super) fn norm_streams(&self, norm: &RmsNorm, x: &[f32], rows: Rows<'_>, out: &mut [f32]) {
        let (width, stream_width) = (self.program.dims.hidden, self.program.boundary.width);
        let out = SharedRows::new(out, stream_width, stream_width);
        self.over_rows(rows.len(), stream_width, &|t| {
            let x = &x[rows.get(t) * stream_width..][..stream_width];
            // SAFETY: each row is one task's.
            let out = unsafe { out.slice_mut(t, 0..stream_width) };
            for (s, (x, out)) in x
                .chunks_exact(width)
                .zip(out.chunks_exact_mut(width))
                .enumerate()
            {
                let weight = rows::part_of(self.norm_weight(norm), s * width..(s + 1) * width);
                self.kernels.rms_norm(x, weight, norm.eps, out);
            }
        });
    }

    /// `out = sum over streams of weight * stream`.
    fn sum_streams(&self, weights: &[f32], stream: &[f32], out: &mut [f32]) {
        out.fill(0.0);
        for (&weight, stream) in weights.iter().zip(stream.chunks_exact(out.len())) {
            self.kernels.add_scaled(out, weight, stream);
        }
    }

    /// Makes one hidden vector of every row of the stream, in `work.mixed`.
    pub(super) fn reduce(&self, reduction: &StreamReduction, work: &mut Work) {
        let streams = self.program.boundary.width / self.program.dims.hidden;
        match reduction {
            StreamReduction::AttentionResidual(read) => {
                self.attention_read(read, streams - 1, work);
            }
            StreamReduction::HyperConnections {
                function,
                base,
                scale,
                eps,
                norm_eps,
            } => {
                self.joint_norm(*norm_eps, work);
                self.connection_exit([*function, *base, *scale], *eps, work);
            }
            StreamReduction::HyperResidual(gate) => self.gated_read(gate, streams, work),
            _ => unreachable!("the closure check refuses reductions without rules"),
        }
    }

    /// The exit of hyper-connections: `sum of (sigmoid(map * scale + base) + eps) * stream`.
    fn connection_exit(&self, ids: [OperandId; 3], eps: f32, work: &mut Work) {
        let [function, base, scale] = ids;
        let (rows, width) = (work.rows(), self.program.dims.hidden);
        let stream_width = self.program.boundary.width;
        let streams = stream_width / width;
        let (base, scale) = (self.vector(base), self.vector(scale)[0]);
        let Work {
            hidden,
            mixed,
            wide,
            site,
            site_width,
            quantised,
            ..
        } = work;
        let wide = &wide[..rows * stream_width];
        self.map_rows(function, wide, quantised, site, *site_width);
        for row in 0..rows {
            let weights = &mut site[row * *site_width..][..streams];
            for (w, b) in weights.iter_mut().zip(base) {
                *w = w.mul_add(scale, *b);
            }
            self.kernels.sigmoid(weights);
            weights.iter_mut().for_each(|w| *w += eps);
            let stream = &hidden[row * stream_width..][..stream_width];
            self.sum_streams(weights, stream, &mut mixed[row * width..][..width]);
        }
    }

    /// `out[t] = W x[t]` for every row of `x`, rows of `out` being `stride` apart.
    fn map_rows(
        &self,
        id: OperandId,
        x: &[f32],
        quantised: &mut QuantisedRows,
        out: &mut [f32],
        stride: usize,
    ) {
        let matrix = self.weights[id.index()].matrix(0);
        let count = x.len() / matrix.cols;
        self.quantise_for(&[matrix.encoding], x, matrix.cols, quantised);
        let input = rows::input(matrix.encoding, x, matrix.cols, quantised);
        let target = SharedRows::new(out, stride, stride);
        let rows = Rows::First(count);
        self.over_blocks(matrix.blocks(), count, &|blocks| {
            // SAFETY: each task writes the columns of its own blocks.
            unsafe {
                self.kernels
                    .matmul(&matrix, blocks, input, rows, &target, rows, Epilogue::Store);
            }
        });
    }
}

/// Seals the running sum of every row of the stream as part number `sealed` and empties it.
fn seal(sealed: usize, width: usize, stream_width: usize, stream: &mut [f32]) {
    for row in stream.chunks_exact_mut(stream_width) {
        row.copy_within(stream_width - width.., sealed * width);
        row[stream_width - width..].fill(0.0);
    }
}
