//! The cpu backend: the program on the kernels.
//!
//! Work is cut over output elements and rows, never over a reduction, so that the bits of a row do
//! not depend on the batch, the pieces or the number of threads. A step in steady state allocates
//! nothing, unless it reads experts from disk: all buffers are made for [`Shape::step_rows`] rows
//! at opening.

mod attention;
mod compressed;
mod delta;
mod draft;
mod ffn;
mod latent;
mod listed;
mod lookahead;
mod mixers;
mod ngram;
mod residual;
mod router;
mod rows;
mod work;

use super::{Backend, Segment, join_rows, split_rows};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::experts::ExpertStore;
use crate::memory::Buffer;
use crate::profile::{Clock, Operator};
use crate::state::item_names;
use crate::step::Span;
use crate::weights::Loaded;
pub(crate) use attention::row_layout;
use lamella_container::Store;
use lamella_kernels::{
    Epilogue, Isa, Kernels, NormWeight, Pool, Rows, SharedRows, angles, rope_frequencies,
    transpose_taps, unpack_row,
};
use lamella_program::block::{
    Activation, Ffn, LatentSelection, Mixer, Residual, RmsNorm, Rope, ShortConvolution,
};
use lamella_program::{OperandId, Part, Program, Role};
use residual::Frame;
use std::sync::Arc;
pub(crate) use work::workspace_bytes;
use work::{Site, Work};

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
    /// Experts that do not all fit.
    experts: Option<ExpertStore>,
}

/// What does not change between steps.
struct Core {
    program: Arc<Program>,
    /// Where weights that stay on disk are read from.
    store: Arc<Store>,
    weights: Vec<Loaded>,
    kernels: Kernels,
    pool: Arc<Pool>,
    /// Distinct rotations of the program, with their frequencies.
    ropes: Vec<(Rope, Vec<f64>)>,
    sealed: Vec<usize>,
    taps: Vec<Box<[f32]>>,
    /// Names of each layer's state items.
    names: Vec<Vec<String>>,
    clock: Clock,
}

/// Distinct rotations of the program's layers, the draft's too.
fn distinct_ropes(program: &Program) -> Vec<Rope> {
    let mut ropes: Vec<Rope> = Vec::new();
    for layer in program.every_layer() {
        let (own, index) = match &layer.mixer.body {
            Mixer::Attention(a) => (a.rope.as_ref(), a.indexer.as_ref()),
            Mixer::LatentAttention(a) => (
                a.rope.as_ref(),
                match &a.selection {
                    Some(LatentSelection::Own(ix)) => Some(ix),
                    _ => None,
                },
            ),
            Mixer::CompressedAttention(a) => {
                (Some(&a.rope), a.indexer.as_ref().map(|ix| &ix.indexer))
            }
            _ => (None, None),
        };
        for rope in own.into_iter().chain(index.and_then(|ix| ix.rope.as_ref())) {
            if !ropes.contains(rope) {
                ropes.push(rope.clone());
            }
        }
    }
    ropes
}

/// Layers before each one that seal a block of the attention residual.
fn sealed_before(program: &Program) -> Vec<usize> {
    let mut sealed = 0;
    let layers = program.every_layer();
    layers
        .map(|layer| {
            let before = sealed;
            if let Residual::AttentionResidual { seals: true, .. } = layer.residual {
                sealed += 1;
            }
            before
        })
        .collect()
}

/// Weights of the convolutions, by operand: `[taps][channels]` for each [`mixers::CHANNELS`]
/// channels.
fn transposed_taps(program: &Program, weights: &[Loaded]) -> Vec<Box<[f32]>> {
    let operands = program.operands.iter().zip(weights);
    operands
        .map(|(operand, loaded)| {
            if operand.role != Role::Kernel || loaded.bytes() == 0 {
                return Box::default();
            }
            let (taps, weights) = (operand.cols(), loaded.vector());
            let mut out = vec![0.0; weights.len()].into_boxed_slice();
            let part = mixers::CHANNELS * taps;
            for (weights, out) in weights.chunks(part).zip(out.chunks_mut(part)) {
                transpose_taps(weights, taps, out);
            }
            out
        })
        .collect()
}

impl Cpu {
    /// Takes over the loaded operands of `program`, which came from `store`.
    pub(crate) fn new(
        program: Arc<Program>,
        store: Arc<Store>,
        part: &Part,
        weights: Vec<Loaded>,
        experts: Option<ExpertStore>,
        shape: Shape,
    ) -> Result<Cpu, Error> {
        let threads = |cause| Error::Threads {
            wanted: shape.threads,
            cause,
        };
        let kernels = Kernels::new(shape.isa).ok_or_else(|| Error::Isa {
            isa: shape.isa.name().to_owned(),
            available: Isa::detect().name().to_owned(),
        })?;
        let ropes = distinct_ropes(&program)
            .into_iter()
            .map(|rope| {
                let frequencies = rope_frequencies(&rope);
                (rope, frequencies)
            })
            .collect();
        let sealed = sealed_before(&program);
        let taps = transposed_taps(&program, &weights);
        let names = item_names(&program);
        let pool = Pool::shared(shape.threads).map_err(threads)?;
        // Asked for as a whole, untouched: a vector that gets no memory ends the process.
        let bytes = workspace_bytes(&program, part, shape);
        drop(Buffer::zeroed(
            usize::try_from(bytes).unwrap_or(usize::MAX),
        )?);
        let work = Work::new(&program, part, shape);
        Ok(Cpu {
            core: Core {
                program,
                store,
                weights,
                kernels,
                pool,
                ropes,
                sealed,
                taps,
                names,
                clock: Clock::new(),
            },
            work,
            experts,
        })
    }

    /// Prepares the buffers for a piece: its size, and the angles of its positions.
    fn begin(&mut self, segments: &[Segment]) {
        self.core.clock.start();
        self.work.begin(segments);
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
        for (table, back) in self.work.angles.iter().zip(&mut self.work.back) {
            back.cos.copy_from_slice(&table.cos);
            for (back, sin) in back.sin.iter_mut().zip(&table.sin) {
                *back = -sin;
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

    /// Weights of a convolution, see [`transposed_taps`].
    fn taps(&self, convolution: &ShortConvolution) -> &[f32] {
        &self.taps[convolution.weight.index()]
    }

    fn rope_index(&self, rope: &Rope) -> usize {
        match self.ropes.iter().position(|(known, _)| known == rope) {
            Some(index) => index,
            None => unreachable!("all rotations were collected at opening"),
        }
    }

    fn activate(&self, activation: Activation, x: &mut [f32]) {
        match activation {
            Activation::Silu => self.kernels.silu(x),
            Activation::Sigmoid => self.kernels.sigmoid(x),
        }
    }

    /// The embedding of a token as it enters the streams.
    fn embed_token(&self, token: u32, out: &mut [f32]) {
        let entry = &self.program.entry;
        let (first, table) = self.weights[entry.embedding.index()].tile();
        unpack_row(&table, token as usize - first, out);
        if let Some(scale) = entry.scale {
            self.kernels.scale(out, scale);
        }
        if let Some(norm) = &entry.norm {
            self.kernels
                .rms_norm_in_place(out, self.norm_weight(norm), norm.eps);
        }
    }

    /// Norms each `width` values of `x` on their own.
    fn norm_heads_of(&self, norm: &RmsNorm, width: usize, x: &mut [f32]) {
        let weight = self.norm_weight(norm);
        for part in x.chunks_exact_mut(width) {
            self.kernels.rms_norm_in_place(part, weight, norm.eps);
        }
    }

    /// Runs a layer's mixer over the piece.
    fn mixer(&self, index: usize, segments: &[Segment], spans: &mut [Span<'_>], work: &mut Work) {
        match &self.program.layer(index).mixer.body {
            Mixer::Attention(a) => self.attention(a, index, segments, spans, work),
            Mixer::LatentAttention(a) => {
                self.latent_attention(a, index, segments, spans, work);
            }
            Mixer::CompressedAttention(a) => {
                self.compressed_attention(a, index, segments, spans, work);
            }
            Mixer::Kda(d) | Mixer::GatedDeltaNet(d) => {
                self.delta_net(d, index, segments, spans, work);
            }
            _ => unreachable!("the closure check refuses mixers without rules"),
        }
    }

    /// Place of the state item `name` of a layer; only the ones after the mixer's need it.
    fn item(&self, index: usize, name: &str) -> usize {
        match self.names[index].iter().position(|known| known == name) {
            Some(place) => place,
            None => unreachable!("the layer declares {name}"),
        }
    }
}

impl Backend for Cpu {
    fn resident_bytes(&self) -> u64 {
        let loaded = self.core.weights.iter().map(Loaded::mapped);
        loaded.sum::<u64>() + self.experts.as_ref().map_or(0, ExpertStore::mapped)
    }

    fn make_room(&mut self, bytes: u64) -> Result<(), Error> {
        self.experts.as_mut().map_or(Ok(()), |e| e.make_room(bytes))
    }

    fn embed(&mut self, segments: &[Segment], tokens: &[u32]) -> Result<(), Error> {
        self.begin(segments);
        let core = &mut self.core;
        let embedding = core.program.entry.embedding;
        let (width, stream) = (core.program.dims.hidden, core.program.boundary.width);
        let first = core.program.layers.first().map(|layer| &layer.residual);
        let last_only = matches!(first, Some(Residual::AttentionResidual { .. }));
        for (row, &token) in self.work.hidden.chunks_exact_mut(stream).zip(tokens) {
            // The last part is the running sum of an attention residual; other streams all start
            // as the embedding.
            let (others, own) = row.split_at_mut(stream - width);
            core.weights[embedding.index()].hold_row(&core.store, embedding, token as usize)?;
            core.embed_token(token, own);
            if last_only {
                // Nothing is sealed yet; a row that goes to another node has no leftovers in it.
                others.fill(0.0);
            } else {
                others
                    .chunks_exact_mut(width)
                    .for_each(|s| s.copy_from_slice(own));
            }
        }
        core.clock.stop(Operator::Embedding);
        Ok(())
    }

    fn join(&mut self, depth: usize, segments: &[Segment], tokens: &[u32], read: &[f32]) {
        self.begin(segments);
        self.core.join(depth, tokens, read, &mut self.work);
        self.core.clock.stop(Operator::Embedding);
    }

    fn clock(&mut self) -> Option<&mut Clock> {
        Some(&mut self.core.clock)
    }

    fn load(&mut self, segments: &[Segment], rows: &[f32]) -> Result<(), Error> {
        self.begin(segments);
        let Work { hidden, mixers, .. } = &mut self.work;
        let width = self.core.program.boundary.width;
        split_rows(
            &self.core.program,
            segments,
            rows,
            |row, stream, selected| {
                hidden[row * width..(row + 1) * width].copy_from_slice(stream);
                mixers.select(row, selected);
            },
        )
    }

    fn layer(
        &mut self,
        index: usize,
        segments: &[Segment],
        spans: &mut [Span<'_>],
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let Cpu {
            core,
            work,
            experts,
        } = self;
        let layer = core.program.layer(index);
        core.clock.start();
        core.add_ngrams(index, segments, spans, work);
        core.clock.stop(Operator::Ngram);
        let frame = Frame::new(layer, Site::Mixer, &layer.mixer, core.sealed[index]);
        core.enter_block(&frame, work);
        core.mixer(index, segments, spans, work);
        if let Some(convolution) = &layer.mixer.convolution {
            let place = [index, core.item(index, "conv.mixer")];
            core.convolve_branch(convolution, place, segments, spans, work);
            core.clock.stop(Operator::Convolution);
        }
        core.leave_block(&frame, work);
        core.clock.stop(Operator::Residual);
        cancel.check()?;
        let frame = Frame::new(layer, Site::Ffn, &layer.ffn, core.sealed[index]);
        core.enter_block(&frame, work);
        match &layer.ffn.body {
            Ffn::Dense(unit) => {
                core.dense(unit, work);
                core.clock.stop(Operator::Dense);
            }
            Ffn::Routed(routed) => {
                // The next layer's are looked up ahead.
                let looks_up = |layer| hash_table(&core.program, layer);
                if looks_up(index) || (experts.is_some() && looks_up(index + 1)) {
                    tokens_of(segments, spans, &mut work.tokens);
                }
                core.routed((index, routed), experts.as_mut(), work, cancel)?;
            }
            _ => unreachable!("the closure check refuses ffn blocks without rules"),
        }
        if let Some(convolution) = &layer.ffn.convolution {
            let place = [index, core.item(index, "conv.ffn")];
            core.convolve_branch(convolution, place, segments, spans, work);
            core.clock.stop(Operator::Convolution);
        }
        core.leave_block(&frame, work);
        core.clock.stop(Operator::Residual);
        Ok(())
    }

    fn chosen(&self, index: usize) -> Option<&[(u32, f32)]> {
        match &self.core.program.layer(index).ffn.body {
            Ffn::Routed(routed) => {
                Some(&self.work.routes.chosen[..self.work.rows() * routed.top_k])
            }
            _ => None,
        }
    }

    fn hidden(&self) -> &[f32] {
        &self.work.hidden
    }

    fn rows(&mut self) -> &[f32] {
        let work = &mut self.work;
        if self.core.program.carried_positions() == 0 {
            return &work.hidden;
        }
        let (mixers, out) = (&work.mixers, &mut work.carried);
        join_rows(
            &self.core.program,
            &work.hidden,
            |row| mixers.selection(row),
            out,
        );
        out
    }

    fn draft_rows(&mut self, depth: Option<usize>, out: &mut Vec<f32>) {
        self.core.draft_rows(depth, &self.work, out);
    }

    fn logits(
        &mut self,
        depth: Option<usize>,
        rows: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), Error> {
        let Cpu { core, work, .. } = self;
        core.clock.start();
        core.enter_exit(depth, rows, work);
        let exit = core.program.exit_of(depth);
        let (head, logits, cap) = (exit.head, exit.logits, exit.soft_cap);
        let before = out.len();
        out.resize(before + rows.len() * logits, 0.0);
        let target = SharedRows::new(&mut out[before..], logits, logits);
        let mut first = 0;
        while first < logits {
            let weights = &mut core.weights[head.index()];
            let held = match weights.is_streamed() {
                true => weights.hold_tile(&core.store, head, first)?,
                false => logits,
            };
            let end = (first + held).min(logits);
            core.head_columns(head, rows.len(), work, &target.columns(first..end));
            first = end;
        }
        if let Some(cap) = cap {
            for logit in &mut out[before..] {
                *logit = cap * libm::tanhf(*logit / cap);
            }
        }
        core.clock.stop(Operator::Head);
        Ok(())
    }
}

impl Core {
    /// Norms the given rows of the piece as the exit wants them, into the first of `work.normed`.
    fn enter_exit(&self, depth: Option<usize>, rows: &[u32], work: &mut Work) {
        let exit = self.program.exit_of(depth);
        let width = self.program.dims.hidden;
        if let Some(reduction) = &exit.reduction
            && !work.reduced
        {
            self.reduce(reduction, work);
            work.reduced = true;
        }
        let source = match exit.reduction {
            Some(_) => &work.mixed,
            None => &work.hidden,
        };
        let normed = &mut work.normed[..rows.len() * width];
        self.norm_rows(exit.norm.as_ref(), source, Rows::At(rows), normed, width);
        if let Some(scale) = exit.scale {
            self.kernels.scale(normed, scale);
        }
        let encoding = self.weights[exit.head.index()].encoding();
        let normed = &work.normed[..rows.len() * width];
        self.quantise_for(&[encoding], normed, width, &mut work.quantised);
    }

    /// Logits of `count` normed rows through the rows of the head that are in memory, as many as
    /// `target` has columns.
    fn head_columns(&self, head: OperandId, count: usize, work: &Work, target: &SharedRows<'_>) {
        let width = self.program.dims.hidden;
        let (_, mut matrix) = self.weights[head.index()].tile();
        matrix.rows = target.width();
        let normed = &work.normed[..count * width];
        let input = rows::input(matrix.encoding, normed, width, &work.quantised);
        self.over_blocks(matrix.blocks(), count, &|blocks| {
            let rows = Rows::First(count);
            // SAFETY: each task writes the columns of its own blocks.
            unsafe {
                self.kernels
                    .matmul(&matrix, blocks, input, rows, target, rows, Epilogue::Store);
            }
        });
    }
}

/// The token ids of the piece's rows.
/// Whether a layer there is looks its experts up by token ids.
fn hash_table(program: &Program, layer: usize) -> bool {
    let layer = program.every_layer().nth(layer);
    matches!(
        layer.map(|layer| &layer.ffn.body),
        Some(Ffn::Routed(routed)) if routed.router.hash_table.is_some()
    )
}

fn tokens_of(segments: &[Segment], spans: &[Span<'_>], tokens: &mut Vec<u32>) {
    tokens.clear();
    for segment in segments {
        for i in 0..segment.rows {
            let id = spans[segment.span].token_before(segment.position + i, 0);
            tokens.push(id.unwrap_or(0));
        }
    }
}
