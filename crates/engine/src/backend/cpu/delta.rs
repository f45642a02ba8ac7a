//! Gated delta rules: rows of a segment in order, heads side by side.

use super::mixers::{cut, delta_sizes};
use super::work::Work;
use super::{Core, Segment};
use crate::profile::Operator;
use crate::step::Span;
use lamella_kernels::{Epilogue, QuantisedRows, SharedRows};
use lamella_program::block::{DeltaNet, Linear};

/// Added to the sum of squares of queries and keys.
const L2_EPS: f32 = 1e-6;

/// Place of the recurrent matrices among the layer's state items; the convolutions stand before
/// them.
const RECURRENT: usize = 3;

impl Core {
    /// `output += output map(delta net(normed))`, moving the sessions' recurrent state on.
    pub(super) fn delta_net(
        &self,
        d: &DeltaNet,
        layer: usize,
        segments: &[Segment],
        spans: &mut [Span<'_>],
        work: &mut Work,
    ) {
        let (count, width) = (work.rows(), self.program.dims.hidden);
        let Work {
            normed,
            arena,
            quantised,
            mixers,
            hidden,
            branch,
            direct,
            ..
        } = work;
        let x = &normed[..count * width];
        let [query, key, value, decay, beta, gate, heads] = cut(arena, delta_sizes(d, count));
        let first = d.decay.first();
        let maps = [&d.query, &d.key, &d.value, &d.beta, &d.gate];
        self.prepare(maps.into_iter().chain(first), x, width, quantised);
        let targets = [&mut *query, key, value, beta, gate];
        for (map, out) in maps.into_iter().zip(targets) {
            self.project_prepared(map, x, quantised, out, Epilogue::Store);
        }
        let logits = self.decay_logits(&d.decay, x, quantised, decay, count);
        self.clock.stop(Operator::Projection);
        for (i, (c, x)) in d
            .convolutions
            .iter()
            .zip([&mut *query, key, value])
            .enumerate()
        {
            self.convolve(c, [layer, i], segments, spans, mixers, x);
        }
        self.clock.stop(Operator::Convolution);
        self.finish_decay(d, count, logits, beta);
        self.unit_heads(d, count, query, key);
        self.clock.stop(Operator::Heads);
        let inputs = Inputs {
            query,
            key,
            value,
            decay: logits,
            beta,
        };
        for segment in segments {
            let state = &mut spans[segment.span].session.layers[layer];
            let state = state.fixed_mut(RECURRENT).overwrite();
            self.run_heads(d, segment, &inputs, state, heads);
        }
        self.clock.stop(Operator::DeltaRule);
        self.gate_heads(d, count, gate, heads);
        self.clock.stop(Operator::Heads);
        let out = if *direct { hidden } else { branch };
        let out = &mut out[..count * width];
        self.project(&d.output, heads, quantised, out, Epilogue::Add);
        self.clock.stop(Operator::Projection);
    }

    /// The decay logits, in the first part of `buffer`: one a value head, or one a key channel.
    fn decay_logits<'a>(
        &self,
        maps: &[Linear],
        x: &[f32],
        quantised: &mut QuantisedRows,
        buffer: &'a mut [f32],
        count: usize,
    ) -> &'a mut [f32] {
        let half = buffer.len() / 2;
        let (mut out, mut other) = buffer.split_at_mut(half);
        let mut len = 0;
        for (i, map) in maps.iter().enumerate() {
            let rows = self.program.operand(map.weight).rows();
            if i == 0 {
                len = rows * count;
                self.project_prepared(map, x, quantised, &mut out[..len], Epilogue::Store);
            } else {
                let next = &mut other[..rows * count];
                self.project(map, &out[..len], quantised, next, Epilogue::Store);
                len = rows * count;
                std::mem::swap(&mut out, &mut other);
            }
        }
        &mut out[..len]
    }

    /// Turns decay logits into decay factors, and write logits into strengths.
    fn finish_decay(&self, d: &DeltaNet, count: usize, decay: &mut [f32], beta: &mut [f32]) {
        let (bias, log) = (self.vector(d.decay_bias), self.vector(d.decay_log));
        let width = decay.len() / count;
        let per_head = width / d.value_heads;
        self.kernels.sigmoid(beta);
        let rows = SharedRows::new(decay, width, width);
        self.over_rows(count, width, &|row| {
            // SAFETY: each row is one task's.
            let row = unsafe { rows.slice_mut(row, 0..width) };
            self.kernels.add(row, bias);
            match d.decay_floor {
                Some(floor) => {
                    for (head, log) in row.chunks_exact_mut(per_head).zip(log) {
                        self.kernels.scale(head, lamella_kernels::exp(*log));
                    }
                    self.kernels.sigmoid(row);
                    self.kernels.scale(row, floor);
                }
                None => {
                    self.kernels.softplus(row);
                    for (head, log) in row.chunks_exact_mut(per_head).zip(log) {
                        self.kernels.scale(head, -lamella_kernels::exp(*log));
                    }
                }
            }
            self.kernels.exp(row);
        });
    }

    /// Brings queries and keys of every head to length one, queries by `1 / sqrt(key_dim)` more.
    fn unit_heads(&self, d: &DeltaNet, count: usize, query: &mut [f32], key: &mut [f32]) {
        let width = d.key_heads * d.key_dim;
        let (query, key) = (
            SharedRows::new(query, width, width),
            SharedRows::new(key, width, width),
        );
        let scale = 1.0 / (d.key_dim as f32).sqrt();
        self.over_rows(count, 2 * width, &|row| {
            // SAFETY: each row is one task's.
            let (query, key) =
                unsafe { (query.slice_mut(row, 0..width), key.slice_mut(row, 0..width)) };
            for head in query.chunks_exact_mut(d.key_dim) {
                self.kernels.l2_norm(head, L2_EPS);
                self.kernels.scale(head, scale);
            }
            for head in key.chunks_exact_mut(d.key_dim) {
                self.kernels.l2_norm(head, L2_EPS);
            }
        });
    }

    /// The recurrence of every head over the rows of one segment.
    fn run_heads(
        &self,
        d: &DeltaNet,
        segment: &Segment,
        inputs: &Inputs<'_>,
        (from, state): (Option<&[f32]>, &mut [f32]),
        heads: &mut [f32],
    ) {
        let (keys, values) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
        let per_head = d.key_dim * d.value_dim;
        let decays = inputs.decay.len() / inputs.beta.len();
        let states = SharedRows::new(state, per_head, per_head);
        let out = SharedRows::new(heads, values, values);
        let body = |head: usize| {
            let key_head = head / (d.value_heads / d.key_heads);
            // SAFETY: each head is one task's.
            let state = unsafe { states.slice_mut(head, 0..per_head) };
            for row in segment.row..segment.row + segment.rows {
                let key = row * keys + key_head * d.key_dim;
                let value = head * d.value_dim..(head + 1) * d.value_dim;
                let at = row * d.value_heads + head;
                // SAFETY: as above.
                let out = unsafe { out.slice_mut(row, value.clone()) };
                let (query, key) = (
                    &inputs.query[key..][..d.key_dim],
                    &inputs.key[key..][..d.key_dim],
                );
                let value = &inputs.value[row * values..][..values][value];
                let decay = &inputs.decay[at * decays..][..decays];
                let beta = inputs.beta[at];
                match from.filter(|_| row == segment.row) {
                    Some(from) => {
                        let from = &from[head * per_head..][..per_head];
                        self.kernels
                            .delta_step_from(from, state, query, key, value, decay, beta, out);
                    }
                    None => self
                        .kernels
                        .delta_step(state, query, key, value, decay, beta, out),
                }
            }
        };
        self.over_rows(d.value_heads, per_head * segment.rows, &body);
    }

    /// Norm and gate of the heads' outputs.
    fn gate_heads(&self, d: &DeltaNet, count: usize, gate: &mut [f32], heads: &mut [f32]) {
        let width = d.value_heads * d.value_dim;
        let weight = self.norm_weight(&d.norm);
        let (gate, heads) = (
            SharedRows::new(gate, width, width),
            SharedRows::new(heads, width, width),
        );
        self.over_rows(count, 2 * width, &|row| {
            // SAFETY: each row is one task's.
            let (gate, heads) = unsafe {
                (
                    gate.slice_mut(row, 0..width),
                    heads.slice_mut(row, 0..width),
                )
            };
            for head in heads.chunks_exact_mut(d.value_dim) {
                self.kernels.rms_norm_in_place(head, weight, d.norm.eps);
            }
            self.activate(d.gate_activation, gate);
            self.kernels.mul(heads, gate);
        });
    }
}

/// What the recurrence reads, all rows of the piece.
struct Inputs<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    /// Factors, one or `key_dim` a head.
    decay: &'a [f32],
    beta: &'a [f32],
}
