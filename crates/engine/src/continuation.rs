//! Sessions over continuation state that the caller owns.
//!
//! A [`Session`] is such state, in pages; a [`RowState`] is the same state row by row. Both go
//! through a prompt ([`Model::prefill_into`]), are picked up again ([`Model::session_with_state`])
//! and generate ([`continue_session`](crate::generate::continue_session)), to the same bits:
//!
//! ```
//! use lamella_engine::generate::{GenerateOptions, continue_session};
//! use lamella_engine::{Model, Options};
//! use std::ops::ControlFlow;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/model");
//! let model = Model::open(demo.as_ref(), &Options::default(), &mut |_| {})?;
//! let prompt = [5, 6, 7, 8];
//! let options = GenerateOptions {
//!     max_tokens: 4,
//!     earlier: prompt.to_vec(),
//!     ..GenerateOptions::default()
//! };
//!
//! let mut pages = model.session();
//! let mut rows = model.row_state()?;
//! let mut answers = [Vec::new(), Vec::new()];
//! let logits = model.prefill_into(&prompt, &mut pages)?;
//! let mut session = model.session_with_state(&mut pages)?;
//! continue_session(&mut session, &logits, &options, &mut |token| {
//!     answers[0].push(token.id);
//!     ControlFlow::Continue(())
//! })?;
//! let logits = model.prefill_into(&prompt, &mut rows)?;
//! let mut session = model.session_with_state(&mut rows)?;
//! continue_session(&mut session, &logits, &options, &mut |token| {
//!     answers[1].push(token.id);
//!     ControlFlow::Continue(())
//! })?;
//! assert_eq!(answers[0], answers[1]);
//! // The last token of the budget is emitted and not read.
//! assert_eq!((pages.position(), rows.position()), (7, 7));
//! # Ok(())
//! # }
//! ```

use crate::cancel::Cancel;
use crate::error::Error;
use crate::generate::LogitsSession;
use crate::model::Model;
use crate::state::{RowState, Session};
use crate::step::{Logits, Span};

/// Continuation state of either kind.
pub enum StateRef<'s> {
    /// In pages, as the kernels read it.
    Paged(&'s mut Session),
    /// Row by row.
    Rows(&'s mut RowState),
}

impl<'s> From<&'s mut Session> for StateRef<'s> {
    fn from(session: &'s mut Session) -> Self {
        StateRef::Paged(session)
    }
}

impl<'s> From<&'s mut RowState> for StateRef<'s> {
    fn from(rows: &'s mut RowState) -> Self {
        StateRef::Rows(rows)
    }
}

/// A conversation over state of the caller's, which has read what the session has read, whenever
/// the session ends.
pub struct StateSession<'s> {
    model: &'s Model,
    state: Held<'s>,
    cancel: Cancel,
    logits: Vec<f32>,
}

/// The state that steps work on.
enum Held<'s> {
    Paged(&'s mut Session),
    /// The rows follow the copy in pages after each step.
    Rows {
        rows: &'s mut RowState,
        pages: Box<Session>,
    },
}

impl Held<'_> {
    fn session(&self) -> &Session {
        match self {
            Held::Paged(session) => session,
            Held::Rows { pages, .. } => pages,
        }
    }

    fn session_mut(&mut self) -> &mut Session {
        match self {
            Held::Paged(session) => session,
            Held::Rows { pages, .. } => pages,
        }
    }
}

impl Model {
    /// Empty continuation state in plain rows. The like in pages is a [`session`](Model::session).
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system refuses memory.
    pub fn row_state(&self) -> Result<RowState, Error> {
        RowState::like(&self.program, &self.session())
    }

    /// A conversation that goes on where `state` is, a `&mut Session` or a `&mut RowState`.
    ///
    /// # Errors
    /// [`Error::ForeignSession`] if another model has made the state; [`Error::Allocation`] if the
    /// system has no memory for the copy of rows in pages.
    pub fn session_with_state<'s>(
        &'s self,
        state: impl Into<StateRef<'s>>,
    ) -> Result<StateSession<'s>, Error> {
        let state = match state.into() {
            StateRef::Paged(session) if session.belongs_to(&self.identity) => Held::Paged(session),
            StateRef::Rows(rows) if rows.belongs_to(&self.identity) => {
                let mut pages = Box::new(self.session());
                rows.fill(&mut pages)?;
                Held::Rows { rows, pages }
            }
            _ => return Err(Error::ForeignSession),
        };
        Ok(StateSession {
            model: self,
            state,
            cancel: Cancel::new(),
            logits: Vec::new(),
        })
    }

    /// Reads `tokens` (at least one) into `state`, after what it has read already; the logits
    /// after the last of them, `[vocabulary]`. A long prompt can be read in several calls.
    ///
    /// # Errors
    /// As [`session_with_state`](Model::session_with_state) and [`step`](Model::step); the state
    /// is as it was.
    pub fn prefill_into<'s>(
        &'s self,
        tokens: &[u32],
        state: impl Into<StateRef<'s>>,
    ) -> Result<Vec<f32>, Error> {
        let mut session = self.session_with_state(state)?;
        session.prefill(tokens)?;
        Ok(session.logits)
    }
}

impl StateSession<'_> {
    /// The same conversation, whose running call ends when `cancel` says so.
    #[must_use]
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }
}

impl LogitsSession for StateSession<'_> {
    type Error = Error;

    fn vocabulary(&self) -> usize {
        self.model.vocabulary()
    }

    fn position(&self) -> usize {
        self.state.session().position()
    }

    fn context(&self) -> usize {
        self.state.session().context()
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        if let Held::Rows { rows, pages } = &mut self.state {
            rows.reserve(pages, tokens.len())?;
        }
        let span = Span {
            session: self.state.session_mut(),
            tokens,
            logits: Logits::Last,
            out: &mut self.logits,
        };
        self.model.step(&mut [span], &self.cancel)?;
        if let Held::Rows { rows, pages } = &mut self.state {
            rows.follow(pages);
        }
        Ok(&self.logits)
    }

    fn step(&mut self, token: u32) -> Result<&[f32], Error> {
        self.prefill(&[token])
    }
}
