//! The reference backend: the program read aloud in plain loops.
//!
//! Weights are f32, sums are f64, nothing is tiled, threaded or shared with the kernels. It is the
//! oracle the kernels are compared with, and itself compared with independent implementations. It
//! keeps every weight as f32, so it is for small models.

use super::{Backend, Segment};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::state::LayerState;
use crate::step::Span;
use crate::weights::{self, Choice};
use lamella_container::Store;
use lamella_program::block::{
    Attention, Block, Ffn, GatedUnit, Linear, Mixer, QkNorm, QkNormScope, RmsNorm, Rope,
    RopePairing, RopePlace, Routed, WeightRule,
};
use lamella_program::{OperandId, Program};
use std::sync::Arc;

/// All operands as f32, row-major, and the stream.
pub(crate) struct Reference {
    program: Arc<Program>,
    operands: Vec<Vec<f32>>,
    hidden: Vec<f32>,
}

impl Reference {
    /// Reads every operand of the store and widens it.
    pub(crate) fn prepare(store: &Store, choices: &[Choice]) -> Result<Reference, Error> {
        let program = Arc::new(store.program().clone());
        let mut operands = Vec::with_capacity(program.operands.len());
        for (index, operand) in program.operands.iter().enumerate() {
            let mut values = Vec::with_capacity(operand.elements());
            for item in 0..operand.items() {
                values.extend(weights::read_f32(
                    store,
                    OperandId(index as u32),
                    item,
                    choices[index],
                )?);
            }
            operands.push(values);
        }
        Ok(Reference {
            program,
            operands,
            hidden: Vec::new(),
        })
    }

    fn weight(&self, id: OperandId) -> &[f32] {
        &self.operands[id.index()]
    }

    fn linear(&self, linear: &Linear, x: &[f32]) -> Vec<f32> {
        let mut y = matrix_vector(self.weight(linear.weight), x);
        if let Some(bias) = linear.bias {
            y.iter_mut()
                .zip(self.weight(bias))
                .for_each(|(y, b)| *y += b);
        }
        y
    }

    fn norm(&self, norm: &RmsNorm, x: &[f32]) -> Vec<f32> {
        let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(norm.eps)).sqrt();
        let weight = norm.weight.map(|id| self.weight(id));
        let offset = if norm.unit_offset { 1.0 } else { 0.0 };
        x.iter()
            .enumerate()
            .map(|(i, &v)| {
                let w = weight.map_or(1.0, |w| f64::from(w[i]) + offset);
                (f64::from(v) * scale * w) as f32
            })
            .collect()
    }

    /// Runs one row through a block: pre-norm, body, post-norm.
    fn block<B>(
        &self,
        block: &Block<B>,
        x: &[f32],
        body: impl FnOnce(&B, &[f32]) -> Vec<f32>,
    ) -> Vec<f32> {
        let y = match &block.pre_norm {
            Some(norm) => body(&block.body, &self.norm(norm, x)),
            None => body(&block.body, x),
        };
        match &block.post_norm {
            Some(norm) => self.norm(norm, &y),
            None => y,
        }
    }

    fn mixer(&self, mixer: &Mixer, x: &[f32], position: usize, state: &mut LayerState) -> Vec<f32> {
        match mixer {
            Mixer::Attention(a) => self.attention(a, x, position, state),
            _ => unreachable!("the closure check refuses mixers without rules"),
        }
    }

    fn attention(
        &self,
        a: &Attention,
        x: &[f32],
        position: usize,
        state: &mut LayerState,
    ) -> Vec<f32> {
        let mut q = self.linear(&a.query, x);
        let mut k = self.linear(&a.key, x);
        let mut v = self.linear(&a.value, x);
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
                rotate(rope, position, head);
            }
        }
        state.rows_mut(0).row_mut(position).copy_from_slice(&k);
        state.rows_mut(1).row_mut(position).copy_from_slice(&v);
        let row = |item: usize, s: usize, kv: usize| {
            &state.rows(item).row(s)[kv * a.head_dim..][..a.head_dim]
        };
        let mut heads = vec![0.0f32; a.heads * a.head_dim];
        for (h, out) in heads.chunks_exact_mut(a.head_dim).enumerate() {
            let kv = h / (a.heads / a.kv_heads);
            let query = &q[h * a.head_dim..(h + 1) * a.head_dim];
            let scores: Vec<f64> = (0..=position)
                .map(|s| dot(query, row(0, s, kv)) * f64::from(a.scale))
                .collect();
            let weights = softmax(&scores);
            for (d, out) in out.iter_mut().enumerate() {
                *out = weights
                    .iter()
                    .enumerate()
                    .map(|(s, w)| w * f64::from(row(1, s, kv)[d]))
                    .sum::<f64>() as f32;
            }
        }
        self.linear(&a.output, &heads)
    }

    fn qk_norm(&self, norm: &QkNorm, head_dim: usize, q: &mut [f32], k: &mut [f32]) {
        for (values, norm_of) in [(q, &norm.query), (k, &norm.key)] {
            let width = match norm.scope {
                QkNormScope::Projection => values.len(),
                QkNormScope::Head => head_dim,
            };
            for part in values.chunks_exact_mut(width) {
                let normed = self.norm(norm_of, part);
                part.copy_from_slice(&normed);
            }
        }
    }

    fn ffn(&self, ffn: &Ffn, x: &[f32]) -> Vec<f32> {
        match ffn {
            Ffn::Dense(unit) => self.gated_unit(unit, 0, x),
            Ffn::Routed(routed) => self.routed(routed, x),
            _ => unreachable!("the closure check refuses ffn blocks without rules"),
        }
    }

    fn gated_unit(&self, unit: &GatedUnit, item: usize, x: &[f32]) -> Vec<f32> {
        let part = |id: OperandId, elements: usize| {
            &self.weight(id)[item * elements..(item + 1) * elements]
        };
        let size = unit.width * x.len();
        let gate = matrix_vector(part(unit.gate, size), x);
        let up = matrix_vector(part(unit.up, size), x);
        let inner: Vec<f32> = gate
            .iter()
            .zip(&up)
            .map(|(&g, &u)| {
                let g = f64::from(g);
                (g / (1.0 + (-g).exp()) * f64::from(u)) as f32
            })
            .collect();
        matrix_vector(part(unit.down, size), &inner)
    }

    fn routed(&self, r: &Routed, x: &[f32]) -> Vec<f32> {
        let logits: Vec<f64> = matrix_vector(self.weight(r.router.weight), x)
            .into_iter()
            .map(f64::from)
            .collect();
        let scores = softmax(&logits);
        let mut order: Vec<usize> = (0..r.experts).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        order.truncate(r.top_k);
        order.sort_unstable();
        let sum: f64 = order.iter().map(|&e| scores[e]).sum();
        let divisor = match r.router.weights {
            WeightRule::Raw => 1.0,
            WeightRule::Normalised { eps } => sum + f64::from(eps),
            WeightRule::WithShared { .. } => {
                unreachable!("the closure check refuses this weight rule")
            }
        };
        let factor = r.router.scale.map_or(1.0, f64::from) / divisor;
        let mut out = vec![0.0f64; x.len()];
        for &e in &order {
            for (out, y) in out.iter_mut().zip(self.gated_unit(&r.unit, e, x)) {
                *out += scores[e] * factor * f64::from(y);
            }
        }
        out.into_iter().map(|v| v as f32).collect()
    }
}

impl Backend for Reference {
    fn resident_bytes(&self) -> u64 {
        self.operands.iter().map(|o| o.len() as u64 * 4).sum()
    }

    fn embed(&mut self, _segments: &[Segment], tokens: &[u32]) {
        let entry = &self.program.entry;
        let width = self.program.dims.hidden;
        let mut hidden = Vec::with_capacity(tokens.len() * width);
        for &token in tokens {
            let at = token as usize * width;
            let mut row = self.weight(entry.embedding)[at..at + width].to_vec();
            if let Some(scale) = entry.scale {
                row.iter_mut().for_each(|v| *v *= scale);
            }
            if let Some(norm) = &entry.norm {
                row = self.norm(norm, &row);
            }
            hidden.extend(row);
        }
        self.hidden = hidden;
    }

    fn load(&mut self, _segments: &[Segment], activations: &[f32]) {
        self.hidden = activations.to_vec();
    }

    fn layer(
        &mut self,
        index: usize,
        segments: &[Segment],
        spans: &mut [Span<'_>],
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let program = Arc::clone(&self.program);
        let (layer, width) = (&program.layers[index], program.boundary.width);
        for segment in segments {
            let state = &mut spans[segment.span].session.layers[index];
            for i in 0..segment.rows {
                cancel.check()?;
                let at = (segment.row + i) * width;
                let mut x = self.hidden[at..at + width].to_vec();
                let y = self.block(&layer.mixer, &x, |mixer, x| {
                    self.mixer(mixer, x, segment.position + i, state)
                });
                x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
                let y = self.block(&layer.ffn, &x, |ffn, x| self.ffn(ffn, x));
                x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
                self.hidden[at..at + width].copy_from_slice(&x);
            }
        }
        Ok(())
    }

    fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    fn logits(&mut self, rows: &[u32], out: &mut Vec<f32>) {
        let exit = &self.program.exit;
        let width = self.program.dims.hidden;
        for &row in rows {
            let row = row as usize;
            let mut x = self.hidden[row * width..(row + 1) * width].to_vec();
            if let Some(norm) = &exit.norm {
                x = self.norm(norm, &x);
            }
            if let Some(scale) = exit.scale {
                x.iter_mut().for_each(|v| *v *= scale);
            }
            let head = &self.weight(exit.head)[..exit.logits * width];
            out.extend(
                matrix_vector(head, &x)
                    .into_iter()
                    .map(|l| match exit.soft_cap {
                        Some(cap) => cap * (l / cap).tanh(),
                        None => l,
                    }),
            );
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(&a, &b)| f64::from(a) * f64::from(b))
        .sum()
}

/// `W x` for a row-major `W` with `x.len()` columns.
fn matrix_vector(w: &[f32], x: &[f32]) -> Vec<f32> {
    w.chunks_exact(x.len())
        .map(|row| dot(row, x) as f32)
        .collect()
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = logits.iter().map(|l| (l - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.into_iter().map(|e| e / sum).collect()
}

/// Rotates one head to `position` (Su et al. 2021).
fn rotate(rope: &Rope, position: usize, head: &mut [f32]) {
    let offset = match rope.place {
        RopePlace::First => 0,
        RopePlace::Last => head.len() - rope.dims,
    };
    let channels = &mut head[offset..offset + rope.dims];
    let pairs = rope.dims / 2;
    for j in 0..pairs {
        let angle = position as f64 * rope.theta.powf(-2.0 * j as f64 / rope.dims as f64);
        let (sin, cos) = angle.sin_cos();
        let (a, b) = match rope.pairing {
            RopePairing::Half => (j, j + pairs),
            RopePairing::Adjacent => (2 * j, 2 * j + 1),
        };
        let (p, q) = (f64::from(channels[a]), f64::from(channels[b]));
        channels[a] = (p * cos - q * sin) as f32;
        channels[b] = (q * cos + p * sin) as f32;
    }
}
