//! Who computes: one trait, two implementations.
//!
//! A backend owns the prepared weights and the workspace of one model and runs *pieces* of a step:
//! rows of several conversations, layer after layer. It decides nothing about conversations,
//! rollback or cancellation between layers; that is [`step`](crate::step)'s.

pub(crate) mod cpu;
pub(crate) mod reference;

use crate::cancel::Cancel;
use crate::error::Error;
use crate::step::Span;

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

    /// Starts a piece of `tokens.len()` rows from their embeddings.
    fn embed(&mut self, segments: &[Segment], tokens: &[u32]);

    /// Starts a piece of depth `depth` of the draft: joins the embeddings of `tokens` with the rows
    /// `read` `[tokens, width]`.
    fn join(&mut self, depth: usize, segments: &[Segment], tokens: &[u32], read: &[f32]);

    /// Starts a piece from activations `[rows, width]` that enter some later layer.
    fn load(&mut self, segments: &[Segment], activations: &[f32]);

    /// Runs layer `index` of [`every_layer`](lamella_program::Program::every_layer) over the piece,
    /// reading and extending the sessions' state of that layer.
    fn layer(
        &mut self,
        index: usize,
        segments: &[Segment],
        spans: &mut [Span<'_>],
        cancel: &Cancel,
    ) -> Result<(), Error>;

    /// The stream between layers, `[rows, width]`.
    fn hidden(&self) -> &[f32];

    /// Appends the logits of the given rows of the piece to `out`, `[rows.len(), logits]`, through
    /// the exit of `depth` or of the main model.
    fn logits(&mut self, depth: Option<usize>, rows: &[u32], out: &mut Vec<f32>);

    /// Replaces `out` by what a depth of the draft reads of the piece, `[rows, width]`, after the
    /// layer of `depth` or the main model's last.
    fn draft_rows(&mut self, depth: Option<usize>, out: &mut Vec<f32>);
}
