//! A conversation's continuation state, allocated as its program declares it.

use crate::error::Error;
use lamella_kernels::PAGE;
use lamella_program::Program;
use lamella_program::state::{StateShape, layer_state};
use std::sync::Arc;

/// One page of rows: [`PAGE`] positions. How values lie inside is the backend's business.
pub(crate) type Page = Box<[f32]>;

/// Append-only rows of one width, in pages that come with use.
pub(crate) struct PagedRows {
    width: usize,
    pages: Vec<Page>,
}

impl PagedRows {
    fn new(width: usize, context: usize) -> PagedRows {
        PagedRows {
            width,
            pages: Vec::with_capacity(context.div_ceil(PAGE)),
        }
    }

    /// Makes room for `rows` rows in all.
    fn reserve(&mut self, rows: usize) {
        while self.pages.len() * PAGE < rows {
            self.pages
                .push(vec![0.0; self.width * PAGE].into_boxed_slice());
        }
    }

    /// Drops the pages that hold none of the first `rows` rows.
    fn truncate(&mut self, rows: usize) {
        self.pages.truncate(rows.div_ceil(PAGE));
    }

    /// The pages allocated so far.
    pub(crate) fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// The pages allocated so far, writable.
    pub(crate) fn pages_mut(&mut self) -> &mut [Page] {
        &mut self.pages
    }

    fn bytes(&self) -> u64 {
        (self.pages.len() * self.width * PAGE * 4) as u64
    }
}

/// State of one layer: its items in declaration order.
pub(crate) struct LayerState {
    pub(crate) rows: Vec<PagedRows>,
}

/// One conversation: how far it is and what each layer remembers.
///
/// A session grows by [`Model::step`](crate::Model::step) and shrinks by
/// [`truncate`](Session::truncate). It belongs to the model that made it.
pub struct Session {
    /// Identity of the model: the same allocation, not an equal value.
    model: Arc<()>,
    position: usize,
    context: usize,
    /// Pages of each item when the running step began.
    pages_before: usize,
    pub(crate) layers: Vec<LayerState>,
}

impl Session {
    /// An empty session for `program`.
    ///
    /// # Errors
    /// [`Error::Setting`] if the program declares state this engine cannot hold.
    pub(crate) fn new(model: Arc<()>, program: &Program, context: usize) -> Result<Session, Error> {
        let mut layers = Vec::with_capacity(program.layers.len());
        for layer in &program.layers {
            let mut rows = Vec::new();
            for item in layer_state(layer) {
                match item.shape {
                    StateShape::Rows { width } => rows.push(PagedRows::new(width, context)),
                    other => {
                        return Err(Error::Setting {
                            name: "state",
                            message: format!("{}: {other:?} cannot be held yet", item.name),
                        });
                    }
                }
            }
            layers.push(LayerState { rows });
        }
        Ok(Session {
            model,
            position: 0,
            context,
            pages_before: 0,
            layers,
        })
    }

    /// Tokens the session has read.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Tokens it may hold.
    #[must_use]
    pub fn context(&self) -> usize {
        self.context
    }

    /// Bytes of state held now.
    #[must_use]
    pub fn state_bytes(&self) -> u64 {
        self.layers
            .iter()
            .flat_map(|l| &l.rows)
            .map(PagedRows::bytes)
            .sum()
    }

    /// Makes room for `tokens` tokens in all, so that steps up to there allocate nothing.
    ///
    /// # Errors
    /// [`Error::ContextLength`] beyond the session's context.
    pub fn reserve(&mut self, tokens: usize) -> Result<(), Error> {
        if tokens > self.context {
            return Err(Error::ContextLength {
                position: self.position,
                tokens: tokens.saturating_sub(self.position),
                context: self.context,
            });
        }
        for rows in self.layers.iter_mut().flat_map(|l| &mut l.rows) {
            rows.reserve(tokens);
        }
        Ok(())
    }

    /// Forgets all but the first `tokens` tokens.
    ///
    /// # Errors
    /// [`Error::Rollback`] if the session has fewer.
    pub fn truncate(&mut self, tokens: usize) -> Result<(), Error> {
        if tokens > self.position {
            return Err(Error::Rollback {
                wanted: tokens,
                position: self.position,
            });
        }
        self.position = tokens;
        for rows in self.layers.iter_mut().flat_map(|l| &mut l.rows) {
            rows.truncate(tokens);
        }
        Ok(())
    }

    /// Remembers the state to go back to if the step that begins now fails.
    pub(crate) fn begin(&mut self) {
        self.pages_before = self.page_count();
    }

    /// Undoes what the failed step allocated; its rows lie beyond `position` and are not part of
    /// the conversation.
    pub(crate) fn roll_back(&mut self) {
        let pages = self.pages_before;
        for rows in self.layers.iter_mut().flat_map(|l| &mut l.rows) {
            rows.pages.truncate(pages);
        }
    }

    fn page_count(&self) -> usize {
        self.layers
            .iter()
            .flat_map(|l| &l.rows)
            .map(|r| r.pages.len())
            .next()
            .unwrap_or(0)
    }

    pub(crate) fn belongs_to(&self, model: &Arc<()>) -> bool {
        Arc::ptr_eq(&self.model, model)
    }

    /// Makes rows that a step has written part of the conversation.
    pub(crate) fn commit(&mut self, tokens: usize) {
        self.position += tokens;
    }
}
