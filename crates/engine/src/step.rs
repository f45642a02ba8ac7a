//! One pass of a batch of spans through the layers.
//!
//! Everything the engine does is a shape of this call: prefill of a chunk, decode of one token,
//! many conversations at once, verification of drafts. Rows of all spans go through a layer
//! together; each distinct expert is applied once to all rows that chose it. The bits of a row do
//! not depend on its company.

use crate::backend::{Backend, Segment};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::memory::room;
use crate::state::Session;
use lamella_kernels::any_non_finite;
use lamella_program::block::Ffn;
use lamella_program::{Part, Program};
use std::ops::Range;

/// Which logits a span wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// None: the span only fills state.
    None,
    /// Those after its last token.
    Last,
    /// Those after its last so many tokens, at most all of them.
    Tail(usize),
    /// Those after every token.
    All,
}

/// Tokens to add to one conversation.
pub struct Span<'a> {
    /// The conversation.
    pub session: &'a mut Session,
    /// Tokens to read, at least one.
    pub tokens: &'a [u32],
    /// Which logits to compute.
    pub logits: Logits,
    /// Replaced by the logits, a row of `vocabulary` for each token that wants them; empty if none
    /// are wanted or the step fails.
    pub out: &'a mut Vec<f32>,
}

impl Span<'_> {
    /// The token `back` places before `position`, which is one of the span's; `None` before the
    /// first of the conversation.
    pub(crate) fn token_before(&self, position: usize, back: usize) -> Option<u32> {
        let start = self.session.position();
        match (position - start).checked_sub(back) {
            Some(index) => self.tokens.get(index).copied(),
            None => self.session.recent(start + back - position),
        }
    }
}

/// Sees the stream after each layer.
pub trait Observer {
    /// Called after layer `layer` with the rows of `span` that start at `position`,
    /// `[rows, row_width]` ([`Program::row_width`]).
    ///
    /// # Errors
    /// An error ends the step as any failure does.
    fn layer(
        &mut self,
        layer: usize,
        span: usize,
        position: usize,
        rows: &[f32],
    ) -> Result<(), Error>;

    /// Called before [`layer`](Self::layer) where the layer has experts to choose from and the
    /// backend keeps the choice: the reference backend does not.
    ///
    /// # Errors
    /// An error ends the step as any failure does.
    fn routed(&mut self, _routing: Routing<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// The experts that rows of a span have chosen in a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing<'a> {
    /// The layer.
    pub layer: usize,
    /// The span.
    pub span: usize,
    /// Position of the first row in its conversation.
    pub position: usize,
    /// Experts that a row chooses.
    pub top_k: usize,
    /// `[rows, top_k]`: the experts of each row, ascending, with their weights.
    pub chosen: &'a [(u32, f32)],
}

/// What a step needs beside its spans.
pub(crate) struct StepContext<'a, 'o> {
    pub(crate) program: &'a Program,
    pub(crate) step_rows: usize,
    pub(crate) cancel: &'a Cancel,
    pub(crate) observer: Option<&'o mut (dyn Observer + 'o)>,
    /// Where the rows enter.
    pub(crate) entry: Entry<'a>,
    /// For each span `[tokens, width]`, written by the step: the rows behind the last layer of a
    /// range, or what a draft reads. Empty if nobody asks.
    pub(crate) rows: &'a mut [&'o mut [f32]],
}

/// Where the rows of a step enter the program.
#[derive(Clone)]
pub(crate) enum Entry<'a> {
    /// As embeddings of their tokens.
    Tokens,
    /// As [`StepContext::rows`], `[tokens, row_width]` of each span, before the first of these
    /// layers; those behind the last one replace them.
    Rows(Range<usize>),
    /// As rows `[tokens, row_width]` of each span before a layer, to the end of the model.
    Layer(usize, &'a [&'a [f32]]),
    /// As what a depth of the draft reads, `[tokens, width]` for each span, with their tokens.
    Draft(usize, &'a [&'a [f32]]),
}

impl Entry<'_> {
    /// The layers to run, numbered as in [`Program::every_layer`].
    fn layers(&self, program: &Program) -> Range<usize> {
        let main = program.layers.len();
        match self {
            Entry::Tokens => 0..main,
            Entry::Rows(layers) => layers.clone(),
            Entry::Layer(first, _) => *first..main,
            Entry::Draft(depth, _) => main + depth..main + depth + 1,
        }
    }

    /// The depth whose exit ends the step.
    fn depth(&self) -> Option<usize> {
        match *self {
            Entry::Draft(depth, _) => Some(depth),
            _ => None,
        }
    }
}

/// Buffers a step reuses.
#[derive(Default)]
pub(crate) struct StepScratch {
    segments: Vec<Segment>,
    tokens: Vec<u32>,
    wanted: Vec<Wanted>,
    rows: Vec<u32>,
    logits: Vec<f32>,
    /// Rows from outside, or for a draft, on their way in or out.
    outer: Vec<f32>,
}

impl StepScratch {
    /// Buffers with room for the rows that enter the layers of `part`.
    ///
    /// # Errors
    /// [`Error::Allocation`].
    pub(crate) fn new(program: &Program, part: &Part, step_rows: usize) -> Result<Self, Error> {
        let mut outer = Vec::new();
        let bytes = StepScratch::bytes(program, part, step_rows);
        let values = usize::try_from(bytes / 4).unwrap_or(usize::MAX);
        let made = outer.try_reserve_exact(values);
        made.map_err(|_| Error::refused(values.saturating_mul(4)))?;
        Ok(StepScratch {
            outer,
            ..StepScratch::default()
        })
    }

    /// Bytes of these rows: of a layer range only, since the whole model embeds tokens itself.
    pub(crate) fn bytes(program: &Program, part: &Part, step_rows: usize) -> u64 {
        match part {
            Part::Layers(_) => {
                let row = (program.row_width() as u64).saturating_mul(4);
                row.saturating_mul(step_rows as u64)
            }
            _ => 0,
        }
    }
}

/// A row of a piece whose logits a span wants.
#[derive(Clone, Copy)]
struct Wanted {
    span: usize,
    row: u32,
}

/// Rows whose logits are computed together when they belong to several spans.
pub(crate) const LOGITS_TOGETHER: usize = 32;

/// Runs the step: all of it or, on failure or cancellation, nothing of it.
pub(crate) fn run(
    backend: &mut dyn Backend,
    scratch: &mut StepScratch,
    spans: &mut [Span<'_>],
    mut context: StepContext<'_, '_>,
) -> Result<(), Error> {
    for span in spans.iter_mut() {
        span.out.clear();
    }
    for span in spans.iter() {
        validate(span, context.program, context.step_rows)?;
    }
    let growth = |span: &Span<'_>| span.session.growth(span.tokens.len());
    backend.make_room(spans.iter().map(growth).sum())?;
    for span in spans.iter_mut() {
        span.session.begin()?;
    }
    let result = run_pieces(backend, scratch, spans, &mut context);
    for span in spans.iter_mut() {
        match result {
            Ok(()) => span.session.commit(span.tokens),
            Err(_) => {
                span.out.clear();
                span.session.roll_back(span.tokens.len());
            }
        }
    }
    result
}

fn validate(span: &Span<'_>, program: &Program, step_rows: usize) -> Result<(), Error> {
    if span.tokens.is_empty() {
        return Err(Error::EmptySpan);
    }
    // Rows of a step are there until it has succeeded, behind every window: its limit counts them.
    if span.session.is_limited() && span.tokens.len() > step_rows {
        let rows = span.tokens.len();
        return Err(Error::Setting {
            name: "tokens",
            message: format!("{rows} in one step, at most {step_rows} in a session with a limit"),
        });
    }
    let (position, context) = (span.session.position(), span.session.context());
    if span.tokens.len() > context - position {
        return Err(Error::ContextLength {
            position,
            tokens: span.tokens.len(),
            context,
        });
    }
    let vocabulary = program.dims.vocabulary;
    match span.tokens.iter().position(|&id| id as usize >= vocabulary) {
        Some(index) => Err(Error::TokenRange {
            id: span.tokens[index],
            index,
            vocabulary,
        }),
        None => Ok(()),
    }
}

fn run_pieces(
    backend: &mut dyn Backend,
    scratch: &mut StepScratch,
    spans: &mut [Span<'_>],
    context: &mut StepContext<'_, '_>,
) -> Result<(), Error> {
    for span in spans.iter_mut() {
        span.session.grow(span.tokens.len())?;
        let logits = wanted_rows(span).saturating_mul(context.program.exit.logits);
        room(span.out, logits)?;
    }
    // A cursor over all rows of all spans: (span, token within it).
    let (mut span, mut token) = (0, 0);
    while span < spans.len() {
        scratch.segments.clear();
        scratch.tokens.clear();
        while span < spans.len() && scratch.tokens.len() < context.step_rows {
            let tokens = &spans[span].tokens[token..];
            let take = tokens.len().min(context.step_rows - scratch.tokens.len());
            scratch.segments.push(Segment {
                span,
                position: spans[span].session.position() + token,
                row: scratch.tokens.len(),
                rows: take,
            });
            scratch.tokens.extend_from_slice(&tokens[..take]);
            token += take;
            if token == spans[span].tokens.len() {
                (span, token) = (span + 1, 0);
            }
        }
        run_piece(backend, scratch, spans, context)?;
    }
    Ok(())
}

fn run_piece(
    backend: &mut dyn Backend,
    scratch: &mut StepScratch,
    spans: &mut [Span<'_>],
    context: &mut StepContext<'_, '_>,
) -> Result<(), Error> {
    match &context.entry {
        Entry::Tokens => backend.embed(&scratch.segments, &scratch.tokens)?,
        Entry::Rows(_) => {
            gather(scratch, spans, &*context.rows, context.program.row_width());
            backend.load(&scratch.segments, &scratch.outer)?;
        }
        Entry::Layer(_, read) => {
            gather(scratch, spans, read, context.program.row_width());
            backend.load(&scratch.segments, &scratch.outer)?;
        }
        Entry::Draft(depth, read) => {
            gather(scratch, spans, read, context.program.boundary.width);
            backend.join(*depth, &scratch.segments, &scratch.tokens, &scratch.outer);
        }
    }
    for index in context.entry.layers(context.program) {
        context.cancel.check()?;
        backend.layer(index, &scratch.segments, spans, context.cancel)?;
        check_finite(backend.hidden(), || match context.entry.depth() {
            None => format!("after layer {index}"),
            Some(depth) => format!("after the layer of draft head {depth}"),
        })?;
        if let Some(observer) = context.observer.as_deref_mut() {
            show(backend, &scratch.segments, index, context.program, observer)?;
        }
    }
    context.cancel.check()?;
    write_rows(backend, scratch, spans, context);
    write_logits(backend, scratch, spans, context.entry.depth())
}

/// Shows `observer` what layer `index` has made of the piece.
fn show(
    backend: &mut dyn Backend,
    segments: &[Segment],
    index: usize,
    program: &Program,
    observer: &mut dyn Observer,
) -> Result<(), Error> {
    if let (Ffn::Routed(routed), Some(chosen)) =
        (&program.layer(index).ffn.body, backend.chosen(index))
    {
        let top_k = routed.top_k;
        for s in segments {
            observer.routed(Routing {
                layer: index,
                span: s.span,
                position: s.position,
                top_k,
                chosen: &chosen[s.row * top_k..(s.row + s.rows) * top_k],
            })?;
        }
    }
    let width = program.row_width();
    let rows = backend.rows();
    for s in segments {
        let rows = &rows[s.row * width..(s.row + s.rows) * width];
        observer.layer(index, s.span, s.position, rows)?;
    }
    Ok(())
}

/// Puts together the rows of the piece from those of each span, `width` values each.
fn gather<R: AsRef<[f32]>>(
    scratch: &mut StepScratch,
    spans: &[Span<'_>],
    read: &[R],
    width: usize,
) {
    scratch.outer.clear();
    for s in &scratch.segments {
        let rows = &read[s.span].as_ref()[place_in_span(s, spans, width)];
        scratch.outer.extend_from_slice(rows);
    }
}

/// Where the rows of a segment are among those of its span.
fn place_in_span(s: &Segment, spans: &[Span<'_>], width: usize) -> Range<usize> {
    let first = s.position - spans[s.span].session.position();
    first * width..(first + s.rows) * width
}

/// Gives every span what the next node or a draft reads of its rows of this piece, where somebody
/// asks.
fn write_rows(
    backend: &mut dyn Backend,
    scratch: &mut StepScratch,
    spans: &[Span<'_>],
    context: &mut StepContext<'_, '_>,
) {
    if context.rows.is_empty() {
        return;
    }
    let (rows, width) = match context.entry {
        Entry::Rows(..) => (backend.rows(), context.program.row_width()),
        _ => {
            backend.draft_rows(context.entry.depth(), &mut scratch.outer);
            (&*scratch.outer, context.program.boundary.width)
        }
    };
    for s in &scratch.segments {
        context.rows[s.span][place_in_span(s, spans, width)]
            .copy_from_slice(&rows[s.row * width..(s.row + s.rows) * width]);
    }
}

/// Tokens of a span whose logits it wants, the last ones.
fn wanted_rows(span: &Span<'_>) -> usize {
    let tokens = span.tokens.len();
    match span.logits {
        Logits::None => 0,
        Logits::Last => 1,
        Logits::Tail(count) => count.min(tokens),
        Logits::All => tokens,
    }
}

/// Gives every span the logits it wants of this piece. The head is read once for many rows, not
/// once a span.
fn write_logits(
    backend: &mut dyn Backend,
    scratch: &mut StepScratch,
    spans: &mut [Span<'_>],
    depth: Option<usize>,
) -> Result<(), Error> {
    let StepScratch {
        segments,
        wanted,
        rows,
        logits,
        ..
    } = scratch;
    wanted.clear();
    for s in segments {
        let span = &spans[s.span];
        let (tokens, count) = (span.tokens.len(), wanted_rows(span));
        // Rows of the segment before the first wanted one.
        let first = span.session.position() + tokens - count;
        let skipped = first.saturating_sub(s.position).min(s.rows);
        let range = s.row + skipped..s.row + s.rows;
        wanted.extend(range.map(|row| Wanted {
            span: s.span,
            row: row as u32,
        }));
    }
    let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else {
        return Ok(());
    };
    if first.span == last.span {
        rows.clear();
        rows.extend(wanted.iter().map(|w| w.row));
        let out = &mut *spans[first.span].out;
        let before = out.len();
        backend.logits(depth, rows, out)?;
        return check_logits(&out[before..]);
    }
    for part in wanted.chunks(LOGITS_TOGETHER) {
        rows.clear();
        rows.extend(part.iter().map(|w| w.row));
        logits.clear();
        backend.logits(depth, rows, logits)?;
        check_logits(logits)?;
        let each = logits.len() / part.len();
        for (w, row) in part.iter().zip(logits.chunks_exact(each)) {
            spans[w.span].out.extend_from_slice(row);
        }
    }
    Ok(())
}

/// Refuses values of which one is infinite or no number; `place` says where they are.
pub(crate) fn check_finite(values: &[f32], place: impl Fn() -> String) -> Result<(), Error> {
    match any_non_finite(values) {
        true => Err(Error::NonFinite { place: place() }),
        false => Ok(()),
    }
}

pub(crate) fn check_logits(logits: &[f32]) -> Result<(), Error> {
    check_finite(logits, || "in the logits".to_owned())
}
