//! Models of which a part is open: rows go in and come out instead of tokens and logits.
//!
//! A chain `ends → layers a..b → layers b..c → ends` computes the bits of the whole model: the
//! same kernels run over the same rows, and what passes between the parts is everything that a
//! later layer needs ([`Program::row_width`]).

use crate::backend::{Backend, Segment};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::generate::{LogitsError, best_raw};
use crate::memory::room;
use crate::model::Model;
use crate::state::{Session, session_bytes};
use crate::step::{Entry, LOGITS_TOGETHER, Logits, Observer, Span, check_finite, check_logits};
use lamella_container::human_bytes;
use lamella_program::{Part, Program};
use std::ops::Range;
use std::sync::Arc;

/// Rows of one conversation to send through the open layers.
pub struct RowSpan<'a> {
    /// The conversation, as far as these layers remember it.
    pub session: &'a mut Session,
    /// Token ids of the rows, at least one. Where
    /// [`needs_token_ids`](lamella_program::program::Boundary::needs_token_ids) is false any ids
    /// of the vocabulary do.
    pub tokens: &'a [u32],
    /// `[tokens, row_width]`, as the entry or the layers before have made them.
    pub input: &'a [f32],
}

/// As [`RowSpan`], for rows that are replaced where they are.
pub struct RowsInPlace<'a> {
    /// The conversation, as far as these layers remember it.
    pub session: &'a mut Session,
    /// Token ids of the rows, as for [`RowSpan`].
    pub tokens: &'a [u32],
    /// `[tokens, row_width]`.
    pub rows: &'a mut [f32],
}

impl Model {
    /// The part of the model that is open.
    #[must_use]
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// Most bytes that a conversation of up to `context` tokens holds in the open layers, at most
    /// [`Options::step_rows`](crate::Options::step_rows) of them read in one step.
    #[must_use]
    pub fn session_bytes(&self, context: usize) -> u64 {
        session_bytes(&self.program, &self.part, context, self.rows_together())
    }

    /// An empty conversation of at most `context` tokens that holds at most `limit` bytes.
    ///
    /// # Errors
    /// [`Error::Setting`] for no context or one beyond the model's; [`Error::Memory`] with the sum
    /// if the limit is below [`session_bytes`](Model::session_bytes); [`Error::Allocation`] if the
    /// system refuses.
    pub fn session_within(&self, context: usize, limit: Option<u64>) -> Result<Session, Error> {
        let most = self.context;
        if !(1..=most).contains(&context) {
            return Err(Error::Setting {
                name: "context",
                message: format!("must be 1 to {most}, is {context}"),
            });
        }
        let need = self.session_bytes(context);
        if let Some(limit) = limit.filter(|&limit| need > limit) {
            return Err(Error::Memory {
                sum: format!(
                    "the state of a conversation of {context} tokens takes {need} bytes ({})",
                    human_bytes(need)
                ),
                limit,
                origin: "the session's limit".to_owned(),
                advice: "Take a shorter context".to_owned(),
            });
        }
        let identity = Arc::clone(&self.identity);
        let backend = self.report().backend;
        let mut session = Session::new(identity, &self.program, &self.part, context, backend);
        session.prepare()?;
        Ok(session.limited(limit))
    }

    /// Sends rows through the open layers: all spans or, on failure or cancellation, none.
    /// `output[i]` is replaced by what the next layers need of `spans[i]`, `[tokens, row_width]`.
    ///
    /// # Errors
    /// As [`step_in_place`](Model::step_in_place), all of `output` being empty then;
    /// [`Error::Setting`] if there is not one output for each span.
    pub fn step_rows(
        &self,
        spans: Vec<RowSpan<'_>>,
        output: &mut [Vec<f32>],
        cancel: &Cancel,
    ) -> Result<(), Error> {
        if spans.len() != output.len() {
            let (spans, outputs) = (spans.len(), output.len());
            return Err(Error::Setting {
                name: "output",
                message: format!("{outputs} lists for {spans} spans, needs one for each"),
            });
        }
        let spans = spans.into_iter().zip(output.iter_mut()).map(|(span, out)| {
            out.clear();
            room(out, span.input.len())?;
            out.extend_from_slice(span.input);
            Ok(RowsInPlace {
                session: span.session,
                tokens: span.tokens,
                rows: out,
            })
        });
        let spans: Result<Vec<_>, Error> = spans.collect();
        let result = spans.and_then(|spans| self.step_in_place(spans, cancel));
        if result.is_err() {
            output.iter_mut().for_each(Vec::clear);
        }
        result
    }

    /// Sends rows through the open layers, which replace them by what the next layers need: all
    /// spans or, on failure or cancellation, none. After a failure the rows of a span longer than
    /// [`Options::step_rows`](crate::Options::step_rows) may be partly replaced; those of one step
    /// are what they were.
    ///
    /// # Errors
    /// As [`step`](Model::step); [`Error::Activations`] if a size is wrong; [`Error::Part`] if no
    /// layers are open.
    pub fn step_in_place(&self, spans: Vec<RowsInPlace<'_>>, cancel: &Cancel) -> Result<(), Error> {
        if self.part == Part::Ends {
            return Err(self.lacks("layers"));
        }
        for span in &spans {
            self.check_rows(span.tokens.len(), span.rows)?;
        }
        let mut unused: Vec<Vec<f32>> = spans.iter().map(|_| Vec::new()).collect();
        let (mut steps, mut rows) = (Vec::new(), Vec::new());
        for (span, out) in spans.into_iter().zip(&mut unused) {
            steps.push(Span {
                session: span.session,
                tokens: span.tokens,
                logits: Logits::None,
                out,
            });
            rows.push(span.rows);
        }
        let entry = Entry::Rows(self.part.layers(&self.program));
        self.run(&mut steps, cancel, None, entry, &mut rows)
    }

    /// Runs one span from layer `layer` to the end of the model, entering with `rows`
    /// `[tokens, row_width]` as an observer saw them after layer `layer - 1`.
    ///
    /// # Errors
    /// As [`step`](Model::step); [`Error::Activations`] if the size is wrong.
    pub fn step_from_layer(
        &self,
        span: Span<'_>,
        layer: usize,
        rows: &[f32],
        cancel: &Cancel,
        observer: Option<&mut dyn Observer>,
    ) -> Result<(), Error> {
        self.check_rows(span.tokens.len(), rows)?;
        if layer > self.program.layers.len() {
            return Err(Error::Setting {
                name: "layer",
                message: "is beyond the last one".to_owned(),
            });
        }
        let entry = Entry::Layer(layer, &[rows]);
        self.run(&mut [span], cancel, observer, entry, &mut [])
    }

    /// Appends the rows that enter the first layer for `tokens`, `[tokens, row_width]`.
    ///
    /// # Errors
    /// [`Error::TokenRange`]; [`Error::Cancelled`]; [`Error::Part`] if the ends are not open.
    pub fn embed(&self, tokens: &[u32], out: &mut Vec<f32>, cancel: &Cancel) -> Result<(), Error> {
        self.needs_ends()?;
        let vocabulary = self.program.dims.vocabulary;
        if let Some(index) = tokens.iter().position(|&id| id as usize >= vocabulary) {
            let id = tokens[index];
            return Err(Error::TokenRange {
                id,
                index,
                vocabulary,
            });
        }
        let before = out.len();
        room(out, tokens.len().saturating_mul(self.program.row_width()))?;
        let made = self.in_pieces(tokens.len(), cancel, &mut |backend, piece, range| {
            backend.embed(piece, &tokens[range])?;
            out.extend_from_slice(backend.rows());
            Ok(())
        });
        made.inspect_err(|_| out.truncate(before))
    }

    /// Appends the logits of rows that have left the last layer, `[rows, vocabulary]`.
    ///
    /// # Errors
    /// [`Error::Activations`] if `rows` is no number of whole rows; [`Error::NonFinite`];
    /// [`Error::Cancelled`]; [`Error::Part`] if the ends are not open.
    pub fn logits(&self, rows: &[f32], out: &mut Vec<f32>, cancel: &Cancel) -> Result<(), Error> {
        self.needs_ends()?;
        let width = self.program.row_width();
        self.check_rows(rows.len() / width, rows)?;
        let before = out.len();
        room(out, (rows.len() / width).saturating_mul(self.vocabulary()))?;
        let mut wanted = Vec::new();
        let made = self.in_pieces(rows.len() / width, cancel, &mut |backend, piece, range| {
            backend.load(piece, &rows[range.start * width..range.end * width])?;
            wanted.clear();
            wanted.extend(0..range.len() as u32);
            let start = out.len();
            backend.logits(None, &wanted, out)?;
            check_logits(&out[start..])
        });
        made.inspect_err(|_| out.truncate(before))
    }

    /// Appends the most probable token of each row that has left the last layer, and its logit; of
    /// equals the lowest id.
    ///
    /// # Errors
    /// As [`logits`](Model::logits); nothing is appended then.
    pub fn select(
        &self,
        rows: &[f32],
        out: &mut Vec<(u32, f32)>,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        self.needs_ends()?;
        let width = self.program.row_width();
        self.check_rows(rows.len() / width, rows)?;
        let before = out.len();
        room(out, rows.len() / width)?;
        let mut logits = Vec::new();
        for piece in rows.chunks(LOGITS_TOGETHER * width) {
            logits.clear();
            let made = self.logits(piece, &mut logits, cancel).and_then(|()| {
                logits.chunks_exact(self.vocabulary()).try_for_each(|row| {
                    let id = best_raw(row).map_err(unusable)?;
                    out.push((id, row[id as usize]));
                    Ok(())
                })
            });
            if let Err(error) = made {
                out.truncate(before);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Runs `work` over `rows` rows of no conversation, a piece at a time.
    fn in_pieces(
        &self,
        rows: usize,
        cancel: &Cancel,
        work: &mut PieceWork<'_>,
    ) -> Result<(), Error> {
        let mut executor = self.executor();
        let mut first = 0;
        while first < rows {
            cancel.check()?;
            let end = rows.min(first + self.rows_together());
            let piece = Segment {
                span: 0,
                // No layer runs that asks where the rows are, but what they carry lies before them.
                position: self.context - 1,
                row: 0,
                rows: end - first,
            };
            work(executor.backend.as_mut(), &[piece], first..end)?;
            first = end;
        }
        Ok(())
    }

    fn check_rows(&self, rows: usize, values: &[f32]) -> Result<(), Error> {
        let width = self.program.row_width();
        match rows.checked_mul(width) == Some(values.len()) {
            true => check_finite(values, || "among the rows given".to_owned()),
            false => Err(Error::Activations {
                rows,
                width,
                values: values.len(),
            }),
        }
    }

    fn needs_ends(&self) -> Result<(), Error> {
        match self.part.has_ends() {
            true => Ok(()),
            false => Err(self.lacks("the entry and the exit")),
        }
    }

    /// The error of a call that needs another part.
    pub(crate) fn lacks(&self, needs: &'static str) -> Error {
        Error::Part {
            needs,
            open: describe(&self.part, &self.program),
        }
    }
}

/// What a piece of rows without a conversation goes through.
type PieceWork<'a> =
    dyn FnMut(&mut dyn Backend, &[Segment], Range<usize>) -> Result<(), Error> + 'a;

/// Logits that nothing can be selected from.
fn unusable(_: LogitsError) -> Error {
    Error::NonFinite {
        place: "in the logits".to_owned(),
    }
}

/// A part in words.
fn describe(part: &Part, program: &Program) -> String {
    match part {
        Part::Whole => "all of it".to_owned(),
        Part::Layers(range) => format!(
            "layers {}..{} of {}",
            range.start,
            range.end,
            program.layers.len()
        ),
        Part::Ends => "the entry and the exit".to_owned(),
    }
}
