//! The reference backend: the program read aloud in plain loops.
//!
//! Weights are f32, sums are f64, nothing is tiled, threaded or shared with the kernels. It is the
//! oracle the kernels are compared with, and itself compared with independent implementations. It
//! keeps every weight as f32, so it is for small models.

mod attention;
mod compressed;
mod delta;
mod draft;
mod ffn;
mod latent;
mod math;
mod ngram;
mod residual;

use super::{Backend, Segment, join_rows, split_rows};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::state::{Fixed, LayerState, PagedRows, item_names};
use crate::step::Span;
use crate::weights::{self, Choice, Layout};
use lamella_container::Store;
use lamella_program::block::{Linear, Mixer, Residual, RmsNorm};
use lamella_program::state::history;
use lamella_program::{OperandId, Program};
use math::{add, matrix_vector};
use std::sync::Arc;

/// All operands as f32, row-major, and the stream.
pub(crate) struct Reference {
    program: Arc<Program>,
    operands: Vec<Vec<f32>>,
    /// Names of each layer's state items.
    names: Vec<Vec<String>>,
    hidden: Vec<f32>,
    /// Positions selected for each row of the piece by the last layer that selects.
    selections: Vec<Option<Vec<usize>>>,
    /// Rows as they pass to the next node.
    carried: Vec<f32>,
}

/// One row on its way through a layer.
struct Row<'s> {
    position: usize,
    /// The row's token, then the ones before it.
    recent: Vec<Option<u32>>,
    /// Layers before this one that have sealed a block of the attention residual.
    sealed: usize,
    names: &'s [String],
    state: &'s mut LayerState,
    selection: &'s mut Option<Vec<usize>>,
}

impl Row<'_> {
    fn token(&self) -> u32 {
        self.recent.first().copied().flatten().unwrap_or(0)
    }

    fn place(&self, name: &str) -> usize {
        match self.names.iter().position(|known| known == name) {
            Some(place) => place,
            None => unreachable!("the layer declares {name}"),
        }
    }

    fn rows(&mut self, name: &str) -> &mut PagedRows {
        let place = self.place(name);
        self.state.rows_mut(place)
    }

    fn fixed(&mut self, name: &str) -> &mut Fixed {
        let place = self.place(name);
        self.state.fixed_mut(place)
    }
}

impl Reference {
    /// Reads the operands of `program`, which is the store's with or without its draft, and widens
    /// them.
    pub(crate) fn prepare(
        store: &Store,
        program: Arc<Program>,
        choices: &[Choice],
    ) -> Result<Reference, Error> {
        let mut operands = Vec::with_capacity(program.operands.len());
        for (index, operand) in program.operands.iter().enumerate() {
            let here = choices[index].layout != Layout::Absent;
            let items = if here { operand.items() } else { 0 };
            let mut values = Vec::with_capacity(items * operand.item_elements());
            for item in 0..items {
                values.extend(weights::read_f32(
                    store,
                    OperandId(index as u32),
                    item,
                    choices[index],
                )?);
            }
            operands.push(values);
        }
        let names = item_names(&program);
        Ok(Reference {
            program,
            operands,
            names,
            hidden: Vec::new(),
            selections: Vec::new(),
            carried: Vec::new(),
        })
    }

    fn weight(&self, id: OperandId) -> &[f32] {
        &self.operands[id.index()]
    }

    fn linear(&self, linear: &Linear, x: &[f32]) -> Vec<f32> {
        let mut y = matrix_vector(self.weight(linear.weight), x);
        if let Some(bias) = linear.bias {
            add(&mut y, self.weight(bias));
        }
        y
    }

    /// Norms each `width` values of `x` on their own. A longer weight covers all of them.
    fn norm_parts(&self, norm: &RmsNorm, width: usize, x: &mut [f32]) {
        let weight = norm.weight.map(|id| self.weight(id));
        let offset = if norm.unit_offset { 1.0 } else { 0.0 };
        for (part, x) in x.chunks_exact_mut(width).enumerate() {
            let squares: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
            let scale = 1.0 / (squares / width as f64 + f64::from(norm.eps)).sqrt();
            for (i, v) in x.iter_mut().enumerate() {
                let w = weight.map_or(1.0, |w| {
                    let at = if w.len() == width {
                        i
                    } else {
                        part * width + i
                    };
                    f64::from(w[at]) + offset
                });
                *v = (f64::from(*v) * scale * w) as f32;
            }
        }
    }

    fn mixer(&self, mixer: &Mixer, x: &[f32], row: &mut Row<'_>) -> Vec<f32> {
        match mixer {
            Mixer::Attention(a) => self.attention(a, x, row),
            Mixer::LatentAttention(a) => self.latent_attention(a, x, row),
            Mixer::CompressedAttention(a) => self.compressed_attention(a, x, row),
            Mixer::Kda(d) | Mixer::GatedDeltaNet(d) => self.delta_net(d, x, row),
            _ => unreachable!("the closure check refuses mixers without rules"),
        }
    }

    /// Layers before `index` that seal a block of the attention residual.
    fn sealed_before(&self, index: usize) -> usize {
        let layers = self.program.every_layer().take(index);
        let seals = |r: &Residual| matches!(r, Residual::AttentionResidual { seals: true, .. });
        layers.filter(|layer| seals(&layer.residual)).count()
    }

    /// The embedding of a token as it enters the streams.
    fn embedding(&self, token: u32) -> Vec<f32> {
        let (entry, width) = (&self.program.entry, self.program.dims.hidden);
        let at = token as usize * width;
        let mut row = self.weight(entry.embedding)[at..at + width].to_vec();
        if let Some(scale) = entry.scale {
            row.iter_mut().for_each(|v| *v *= scale);
        }
        if let Some(norm) = &entry.norm {
            self.norm_parts(norm, width, &mut row);
        }
        row
    }

    /// The stream that starts from one embedded token.
    fn enter(&self, embedded: &[f32]) -> Vec<f32> {
        let width = self.program.boundary.width;
        match self.program.layers.first().map(|layer| &layer.residual) {
            // The running sum is the last part; nothing is sealed yet.
            Some(Residual::AttentionResidual { .. }) => {
                let mut stream = vec![0.0; width - embedded.len()];
                stream.extend_from_slice(embedded);
                stream
            }
            _ => embedded.repeat(width / embedded.len()),
        }
    }
}

impl Backend for Reference {
    fn resident_bytes(&self) -> u64 {
        self.operands.iter().map(|o| o.len() as u64 * 4).sum()
    }

    fn embed(&mut self, _segments: &[Segment], tokens: &[u32]) -> Result<(), Error> {
        let rows = tokens.iter();
        self.hidden = rows
            .flat_map(|&token| self.enter(&self.embedding(token)))
            .collect();
        self.selections = vec![None; tokens.len()];
        Ok(())
    }

    fn join(&mut self, depth: usize, _segments: &[Segment], tokens: &[u32], read: &[f32]) {
        let width = self.program.boundary.width;
        let rows = tokens.iter().zip(read.chunks_exact(width));
        self.hidden = rows
            .flat_map(|(&token, row)| self.join_row(depth, token, row))
            .collect();
        self.selections = vec![None; tokens.len()];
    }

    fn load(&mut self, segments: &[Segment], rows: &[f32]) -> Result<(), Error> {
        self.hidden.clear();
        self.selections.clear();
        let (hidden, selections) = (&mut self.hidden, &mut self.selections);
        split_rows(&self.program, segments, rows, |_, stream, selected| {
            hidden.extend_from_slice(stream);
            let list = selected.map(|list| list.iter().map(|&place| place as usize));
            selections.push(list.map(Iterator::collect));
        })
    }

    fn layer(
        &mut self,
        index: usize,
        segments: &[Segment],
        spans: &mut [Span<'_>],
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let program = Arc::clone(&self.program);
        let (layer, width) = (program.layer(index), program.boundary.width);
        let (history, sealed) = (history(&program), self.sealed_before(index));
        for segment in segments {
            for i in 0..segment.rows {
                cancel.check()?;
                let (position, at) = (segment.position + i, segment.row + i);
                let span = &mut spans[segment.span];
                let recent = (0..=history).map(|back| span.token_before(position, back));
                let mut selection = self.selections[at].take();
                let mut row = Row {
                    position,
                    recent: recent.collect(),
                    sealed,
                    names: &self.names[index],
                    state: &mut span.session.layers[index],
                    selection: &mut selection,
                };
                let mut stream = self.hidden[at * width..(at + 1) * width].to_vec();
                for table in &program.entry.per_layer_embeddings {
                    if table.layer == index {
                        self.add_ngrams(table, &mut stream, &mut row);
                    }
                }
                self.walk(layer, &mut stream, &mut row);
                self.hidden[at * width..(at + 1) * width].copy_from_slice(&stream);
                self.selections[at] = selection;
            }
        }
        Ok(())
    }

    fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    fn rows(&mut self) -> &[f32] {
        if self.program.carried_positions() == 0 {
            return &self.hidden;
        }
        let lists = self.selections.iter().map(|selection| {
            let list = selection.as_ref()?;
            Some(list.iter().map(|&place| place as u32).collect::<Vec<_>>())
        });
        let lists: Vec<_> = lists.collect();
        let selection = |row: usize| lists[row].as_deref();
        join_rows(&self.program, &self.hidden, selection, &mut self.carried);
        &self.carried
    }

    fn draft_rows(&mut self, depth: Option<usize>, out: &mut Vec<f32>) {
        *out = self.read_by_draft(depth);
    }

    fn logits(
        &mut self,
        depth: Option<usize>,
        rows: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), Error> {
        let exit = self.program.exit_of(depth);
        let (width, hidden) = (self.program.boundary.width, self.program.dims.hidden);
        for &row in rows {
            let row = row as usize;
            let mut x = self.reduce(exit, &self.hidden[row * width..(row + 1) * width]);
            if let Some(norm) = &exit.norm {
                self.norm_parts(norm, hidden, &mut x);
            }
            if let Some(scale) = exit.scale {
                x.iter_mut().for_each(|v| *v *= scale);
            }
            let head = &self.weight(exit.head)[..exit.logits * hidden];
            out.extend(
                matrix_vector(head, &x)
                    .into_iter()
                    .map(|l| match exit.soft_cap {
                        Some(cap) => cap * (l / cap).tanh(),
                        None => l,
                    }),
            );
        }
        Ok(())
    }
}
