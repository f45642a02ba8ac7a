//! Who computes: one trait, two implementations.
//!
//! A backend owns the prepared weights and the workspace of one model and runs *pieces* of a step:
//! rows of several conversations, layer after layer. It decides nothing about conversations,
//! rollback or cancellation between layers; that is [`step`](crate::step)'s.

pub(crate) mod cpu;
pub(crate) mod reference;

use crate::cancel::Cancel;
use crate::error::Error;
use crate::options::BackendKind;
use crate::profile::Clock;
use crate::state::RowLayout;
use crate::step::Span;
use lamella_program::Program;
use lamella_program::block::Mixer;

/// Puts streams `[rows, width]` and selections into rows as they pass between layers: `out` of
/// `[rows, row_width]`. A selection is in ascending order; `None` is every position.
pub(crate) fn join_rows<'a>(
    program: &Program,
    streams: &[f32],
    selection: impl Fn(usize) -> Option<&'a [u32]>,
    out: &mut Vec<f32>,
) {
    let (width, positions) = (program.boundary.width, program.carried_positions());
    out.clear();
    for (row, stream) in streams.chunks_exact(width).enumerate() {
        out.extend_from_slice(stream);
        let selected = selection(row);
        out.push(selected.map_or(-1.0, |list| list.len() as f32));
        let list = selected.unwrap_or_default();
        // A context is far below 2^24, where f32 stops to hold every integer.
        out.extend(list.iter().map(|&position| position as f32));
        out.resize(out.len() + positions - list.len(), 0.0);
    }
}

/// Takes rows apart again: the stream of each, and what is selected for it.
///
/// # Errors
/// [`Error::Rows`] if a selection is none that a row at its position can have.
pub(crate) fn split_rows(
    program: &Program,
    segments: &[Segment],
    rows: &[f32],
    mut give: impl FnMut(usize, &[f32], Option<&[f32]>),
) -> Result<(), Error> {
    let (width, positions) = (program.boundary.width, program.carried_positions());
    let places = segments
        .iter()
        .flat_map(|s| (0..s.rows).map(|i| s.position + i));
    let rows = rows.chunks_exact(program.row_width()).zip(places);
    for (row, (values, position)) in rows.enumerate() {
        let (stream, carried) = values.split_at(width);
        let wrong = || Error::Rows { row };
        let selected = match carried.split_first() {
            None | Some((&-1.0, _)) => None,
            Some((&count, list)) => {
                let whole = count.fract() == 0.0 && (1.0..=positions as f32).contains(&count);
                let list = whole.then(|| &list[..count as usize]).ok_or_else(wrong)?;
                let mut least = 0.0;
                for &place in list {
                    if place.fract() != 0.0 || place < least || place > position as f32 {
                        return Err(wrong());
                    }
                    least = place + 1.0;
                }
                Some(list)
            }
        };
        give(row, stream, selected);
    }
    Ok(())
}

/// How the backend `kind` lays rows in the pages of state item `item` of a mixer.
pub(crate) fn row_layout(kind: BackendKind, mixer: &Mixer, item: usize) -> RowLayout {
    match (kind, mixer) {
        (BackendKind::Cpu, Mixer::Attention(a)) => cpu::row_layout(a, item),
        _ => RowLayout::Plain,
    }
}

/// Consecutive rows of a piece that belong to one span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Index of the span in the step.
    pub(crate) span: usize,
    /// Position of the first row in its conversation.
    pub(crate) position: usize,
    /// First row in the piece.
    pub(crate) row: usize,
    /// Rows.
    pub(crate) rows: usize,
}

/// The arithmetic of one prepared model.
pub(crate) trait Backend: Send {
    /// Bytes of weights held in memory.
    fn resident_bytes(&self) -> u64;

    /// Its stopwatch, where it has one.
    fn clock(&mut self) -> Option<&mut Clock> {
        None
    }

    /// Is told that conversations will take `bytes` bytes more: what can be read again leaves
    /// memory for them.
    ///
    /// # Errors
    /// If waiting for what is on its way fails.
    fn make_room(&mut self, _bytes: u64) -> Result<(), Error> {
        Ok(())
    }

    /// Starts a piece of `tokens.len()` rows from their embeddings.
    ///
    /// # Errors
    /// If embeddings that stay on disk cannot be read.
    fn embed(&mut self, segments: &[Segment], tokens: &[u32]) -> Result<(), Error>;

    /// Starts a piece of depth `depth` of the draft: joins the embeddings of `tokens` with the rows
    /// `read` `[tokens, width]`.
    fn join(&mut self, depth: usize, segments: &[Segment], tokens: &[u32], read: &[f32]);

    /// Starts a piece from rows `[rows, row_width]` that enter some layer or the exit
    /// ([`row_width`](lamella_program::Program::row_width)).
    ///
    /// # Errors
    /// [`Error::Rows`] if they are no such rows.
    fn load(&mut self, segments: &[Segment], rows: &[f32]) -> Result<(), Error>;

    /// Runs layer `index` of [`every_layer`](lamella_program::Program::every_layer) over the piece,
    /// reading and extending the sessions' state of that layer.
    fn layer(
        &mut self,
        index: usize,
        segments: &[Segment],
        spans: &mut [Span<'_>],
        cancel: &Cancel,
    ) -> Result<(), Error>;

    /// The experts that the rows of the piece have chosen in layer `index`, which ran last,
    /// `[rows, top_k]`, ascending, with their weights; `None` where there is no choice or it is not
    /// kept.
    fn chosen(&self, _index: usize) -> Option<&[(u32, f32)]> {
        None
    }

    /// The stream between layers, `[rows, width]`.
    fn hidden(&self) -> &[f32];

    /// What the next layer needs of the piece, `[rows, row_width]`: what [`load`](Self::load)
    /// takes.
    fn rows(&mut self) -> &[f32];

    /// Appends the logits of the given rows of the piece to `out`, `[rows.len(), logits]`, through
    /// the exit of `depth` or of the main model.
    ///
    /// # Errors
    /// If a head that stays on disk cannot be read; `out` may then be longer than it was.
    fn logits(
        &mut self,
        depth: Option<usize>,
        rows: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), Error>;

    /// Replaces `out` by what a depth of the draft reads of the piece, `[rows, width]`, after the
    /// layer of `depth` or the main model's last.
    fn draft_rows(&mut self, depth: Option<usize>, out: &mut Vec<f32>);
}
