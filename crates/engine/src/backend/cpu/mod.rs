//! The cpu backend: the program on the kernels.
//!
//! Work is cut over output elements and rows, never over a reduction, so that the bits of a row do
//! not depend on the batch, the pieces or the number of threads. A step in steady state allocates
//! nothing: all buffers are made for [`Shape::step_rows`] rows at opening.

mod attention;
mod ffn;
mod rows;
mod work;

use super::{Backend, Segment};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::step::Span;
use crate::weights::Loaded;
use lamella_kernels::{
    Epilogue, Isa, Kernels, NormWeight, Pool, Rows, SharedRows, angles, rope_frequencies,
    unpack_row,
};
use lamella_program::block::{Ffn, Mixer, RmsNorm, Rope};
use lamella_program::{OperandId, Program};
use std::sync::Arc;
use work::Work;
pub(crate) use work::workspace_bytes;

/// What the buffers are made for.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) step_rows: usize,
    pub(crate) context: usize,
    pub(crate) threads: usize,
    pub(crate) isa: Isa,
}

/// A model prepared for the kernels.
pub(crate) struct Cpu {
    core: Core,
    work: Work,
}

/// What does not change between steps.
struct Core {
    program: Arc<Program>,
    weights: Vec<Loaded>,
    kernels: Kernels,
    pool: Pool,
    /// Distinct rotations of the program, with their frequencies.
    ropes: Vec<(Rope, Vec<f64>)>,
}

/// Distinct rotations of the program's layers.
fn distinct_ropes(program: &Program) -> Vec<Rope> {
    let mut ropes: Vec<Rope> = Vec::new();
    for layer in &program.layers {
        if let Mixer::Attention(a) = &layer.mixer.body
            && let Some(rope) = &a.rope
            && !ropes.contains(rope)
        {
            ropes.push(rope.clone());
        }
    }
    ropes
}

impl Cpu {
    /// Takes over the loaded operands of `program`.
    pub(crate) fn new(
        program: Arc<Program>,
        weights: Vec<Loaded>,
        shape: Shape,
    ) -> Result<Cpu, Error> {
        let threads = |e: std::io::Error| Error::Setting {
            name: "threads",
            message: format!("{} threads cannot be started: {e}", shape.threads),
        };
        let kernels = Kernels::new(shape.isa).ok_or_else(|| Error::Isa {
            isa: shape.isa.name().to_owned(),
            available: Isa::detect().name().to_owned(),
        })?;
        let ropes = distinct_ropes(&program)
            .into_iter()
            .map(|rope| {
                let frequencies = rope_frequencies(rope.theta, rope.dims);
                (rope, frequencies)
            })
            .collect();
        let work = Work::new(&program, shape);
        let pool = Pool::new(shape.threads).map_err(threads)?;
        Ok(Cpu {
            core: Core {
                program,
                weights,
                kernels,
                pool,
                ropes,
            },
            work,
        })
    }

    /// Prepares the buffers for a piece: its size, and the angles of its positions.
    fn begin(&mut self, segments: &[Segment]) {
        let rows = segments.last().map_or(0, |s| s.row + s.rows);
        self.work.begin(rows);
        for ((_, frequencies), table) in self.core.ropes.iter().zip(&mut self.work.angles) {
            let pairs = frequencies.len();
            for segment in segments {
                for i in 0..segment.rows {
                    let at = (segment.row + i) * pairs..(segment.row + i + 1) * pairs;
                    let (cos, sin) = (&mut table.cos[at.clone()], &mut table.sin[at]);
                    angles(frequencies, segment.position + i, cos, sin);
                }
            }
        }
    }
}

impl Core {
    fn norm_weight<'a>(&'a self, norm: &RmsNorm) -> NormWeight<'a> {
        match norm.weight {
            None => NormWeight::None,
            Some(id) if norm.unit_offset => NormWeight::UnitOffset(self.vector(id)),
            Some(id) => NormWeight::Plain(self.vector(id)),
        }
    }

    fn vector(&self, id: OperandId) -> &[f32] {
        self.weights[id.index()].vector()
    }
}

impl Backend for Cpu {
    fn resident_bytes(&self) -> u64 {
        self.core.weights.iter().map(Loaded::bytes).sum()
    }

    fn embed(&mut self, segments: &[Segment], tokens: &[u32]) {
        self.begin(segments);
        let core = &self.core;
        let entry = &core.program.entry;
        let width = core.program.dims.hidden;
        let table = core.weights[entry.embedding.index()].matrix(0);
        for (row, &token) in self.work.hidden.chunks_exact_mut(width).zip(tokens) {
            unpack_row(&table, token as usize, row);
            if let Some(scale) = entry.scale {
                core.kernels.scale(row, scale);
            }
            if let Some(norm) = &entry.norm {
                core.kernels
                    .rms_norm_in_place(row, core.norm_weight(norm), norm.eps);
            }
        }
    }

    fn load(&mut self, segments: &[Segment], activations: &[f32]) {
        self.begin(segments);
        self.work.hidden.copy_from_slice(activations);
    }

    fn layer(
        &mut self,
        index: usize,
        segments: &[Segment],
        spans: &mut [Span<'_>],
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let Cpu { core, work } = self;
        let layer = &core.program.layers[index];
        core.enter_block(
            layer.mixer.pre_norm.as_ref(),
            layer.mixer.post_norm.is_some(),
            work,
        );
        match &layer.mixer.body {
            Mixer::Attention(a) => core.attention(a, index, segments, spans, work),
            _ => unreachable!("the closure check refuses mixers without rules"),
        }
        core.leave_block(layer.mixer.post_norm.as_ref(), work);
        cancel.check()?;
        core.enter_block(
            layer.ffn.pre_norm.as_ref(),
            layer.ffn.post_norm.is_some(),
            work,
        );
        match &layer.ffn.body {
            Ffn::Dense(unit) => core.dense(unit, work),
            Ffn::Routed(routed) => core.routed(routed, work, cancel)?,
            _ => unreachable!("the closure check refuses ffn blocks without rules"),
        }
        core.leave_block(layer.ffn.post_norm.as_ref(), work);
        Ok(())
    }

    fn hidden(&self) -> &[f32] {
        &self.work.hidden
    }

    fn logits(&mut self, rows: &[u32], out: &mut Vec<f32>) {
        let Cpu { core, work } = self;
        let exit = &core.program.exit;
        let width = core.program.dims.hidden;
        let count = rows.len();
        let work = &mut *work;
        core.norm_rows(
            exit.norm.as_ref(),
            &work.hidden,
            Rows::At(rows),
            &mut work.normed[..count * width],
            width,
        );
        if let Some(scale) = exit.scale {
            core.kernels.scale(&mut work.normed[..count * width], scale);
        }
        let mut head = core.weights[exit.head.index()].matrix(0);
        head.rows = exit.logits;
        let normed = &work.normed[..count * width];
        core.quantise_for(&[head.encoding], normed, width, &mut work.quantised);
        let input = rows::input(head.encoding, normed, width, &work.quantised);
        let before = out.len();
        out.resize(before + count * exit.logits, 0.0);
        let target = SharedRows::new(&mut out[before..], exit.logits, exit.logits);
        core.over_blocks(head.blocks(), count, &|blocks| {
            let rows = Rows::First(count);
            // SAFETY: each task writes the columns of its own blocks.
            unsafe {
                core.kernels
                    .matmul(&head, blocks, input, rows, &target, rows, Epilogue::Store);
            }
        });
        if let Some(cap) = exit.soft_cap {
            for logit in &mut out[before..] {
                *logit = cap * libm::tanhf(*logit / cap);
            }
        }
    }
}
