//! Draft heads of a model: guesses of the tokens behind the next one.
//!
//! What a head remembers of a conversation is a [`Session`] of its own, in which row `i` joins what
//! the main model made of position `i` with the token behind it. It rolls back as any session does.

use crate::cancel::Cancel;
use crate::error::Error;
use crate::memory::room;
use crate::model::Model;
use crate::state::Session;
use crate::step::{Entry, Span};
use lamella_program::draft::Draft;
use std::sync::Arc;

impl Model {
    /// The draft heads, where the model has some and [`Options::draft`](crate::Options::draft)
    /// asked for them.
    #[must_use]
    pub fn draft(&self) -> Option<&Draft> {
        self.program.draft.as_ref()
    }

    /// What draft head `depth` remembers of a conversation: nothing yet.
    ///
    /// # Errors
    /// [`Error::NoDraft`] if there is no such head.
    pub fn draft_session(&self, depth: usize) -> Result<Session, Error> {
        let identity = Arc::clone(self.head(depth)?);
        let (context, backend) = (self.context, self.report().backend);
        let session = Session::of_depth(identity, &self.program, depth, context, backend);
        Ok(session.charged(self.ledger.as_ref()))
    }

    /// [`step`](Model::step), which also replaces `rows[i]` by what the first draft head reads of
    /// the tokens of `spans[i]`, `[tokens, width]` with the boundary's width.
    ///
    /// # Errors
    /// As [`step`](Model::step), `rows` being empty then; [`Error::NoDraft`];
    /// [`Error::Setting`] if there is not one of `rows` for each span.
    pub fn step_for_draft(
        &self,
        spans: &mut [Span<'_>],
        rows: &mut [Vec<f32>],
        cancel: &Cancel,
    ) -> Result<(), Error> {
        self.head(0)?;
        one_for_each(spans, rows.len())?;
        let width = self.program.boundary.width;
        into_lists(spans, rows, width, |spans, rows| {
            self.run(spans, cancel, None, Entry::Tokens, rows)
        })
    }

    /// Runs draft head `depth` over spans of its sessions: token `i` of a span is joined with row
    /// `i` of its `read`, `[tokens, width]`, and the logits are those of the token behind it.
    /// `write` is replaced by what the next head reads, or the first one where the draft recycles.
    ///
    /// All of it or, on failure or cancellation, nothing of it; the bits of a row do not depend on
    /// its company.
    ///
    /// # Errors
    /// As [`step`](Model::step), `write` being empty then; [`Error::NoDraft`];
    /// [`Error::Activations`] if rows are missing; [`Error::Setting`] if there is not one of `read`
    /// and of `write` for each span.
    pub fn draft_step(
        &self,
        depth: usize,
        spans: &mut [Span<'_>],
        read: &[&[f32]],
        write: &mut [Vec<f32>],
        cancel: &Cancel,
    ) -> Result<(), Error> {
        self.head(depth)?;
        one_for_each(spans, read.len())?;
        one_for_each(spans, write.len())?;
        let width = self.program.boundary.width;
        for (span, read) in spans.iter().zip(read) {
            let rows = span.tokens.len();
            if read.len() != rows * width {
                return Err(Error::Activations {
                    rows,
                    width,
                    values: read.len(),
                });
            }
        }
        into_lists(spans, write, width, |spans, write| {
            self.run(spans, cancel, None, Entry::Draft(depth, read), write)
        })
    }

    /// The identity of draft head `depth`.
    fn head(&self, depth: usize) -> Result<&Arc<()>, Error> {
        self.depths.get(depth).ok_or(Error::NoDraft {
            reason: match self.depths.len() {
                0 => "the model was opened without its draft heads",
                _ => "the model has fewer of them",
            },
        })
    }
}

/// Runs a step that writes `[tokens, width]` of each span into its list; empty if it fails.
fn into_lists(
    spans: &mut [Span<'_>],
    lists: &mut [Vec<f32>],
    width: usize,
    step: impl FnOnce(&mut [Span<'_>], &mut [&mut [f32]]) -> Result<(), Error>,
) -> Result<(), Error> {
    lists.iter_mut().for_each(Vec::clear);
    let mut sized = spans.iter().zip(lists.iter_mut()).map(|(span, list)| {
        room(list, span.tokens.len().saturating_mul(width))?;
        list.resize(span.tokens.len() * width, 0.0);
        Ok(list.as_mut_slice())
    });
    let rows: Result<Vec<_>, Error> = sized.by_ref().collect();
    let result = rows.and_then(|mut rows| step(spans, &mut rows));
    if result.is_err() {
        lists.iter_mut().for_each(Vec::clear);
    }
    result
}

fn one_for_each(spans: &[Span<'_>], count: usize) -> Result<(), Error> {
    match spans.len() == count {
        true => Ok(()),
        false => Err(Error::Setting {
            name: "rows of the draft",
            message: format!(
                "{count} lists for {} spans, needs one for each",
                spans.len()
            ),
        }),
    }
}
