//! A conversation's continuation state, allocated as its program declares it.

mod fixed;
mod layout;
mod page;
mod row_state;
mod rows;
mod size;
pub(crate) mod snapshot;
mod undo;

use crate::backend::row_layout;
use crate::error::Error;
use crate::ledger::Ledger;
use crate::memory::zeros;
use crate::options::BackendKind;
pub(crate) use fixed::Fixed;
use lamella_program::state::{StateShape, history, layer_state};
use lamella_program::{Part, Program};
pub(crate) use layout::RowLayout;
pub(crate) use page::Page;
pub use row_state::{RowState, StateRows};
pub(crate) use rows::PagedRows;
pub(crate) use size::{first_bytes, session_bytes};
use std::sync::Arc;
use undo::Before;

/// One piece of a layer's state.
pub(crate) enum Item {
    /// One row for each token, or for each few of them.
    Rows(PagedRows),
    /// Values that each step overwrites.
    Fixed(Fixed),
    /// Finished rows, and the raw rows of the unfinished window.
    Compressed {
        /// One row for each whole window of tokens.
        finished: PagedRows,
        /// The newest raw rows, oldest first.
        raw: Fixed,
    },
}

impl Item {
    fn new(shape: &StateShape, context: usize, layout: RowLayout) -> Item {
        let paged = |width, per, keep| PagedRows::new(width, per, keep, context, layout);
        match *shape {
            StateShape::Rows { width } => Item::Rows(paged(width, 1, None)),
            StateShape::Window { rows, width } => Item::Rows(paged(width, 1, Some(rows))),
            StateShape::Ring { rows, width } => Item::Fixed(Fixed::new(rows * width)),
            StateShape::Matrix { heads, rows, cols } => {
                Item::Fixed(Fixed::new(heads * rows * cols))
            }
            StateShape::Compressed {
                ratio,
                width,
                raw_width,
                raw_rows,
            } => Item::Compressed {
                finished: paged(width, ratio, None),
                raw: Fixed::new(raw_width * raw_rows),
            },
        }
    }

    fn paged(&self) -> Option<&PagedRows> {
        match self {
            Item::Rows(rows) | Item::Compressed { finished: rows, .. } => Some(rows),
            Item::Fixed(_) => None,
        }
    }

    fn paged_mut(&mut self) -> Option<&mut PagedRows> {
        match self {
            Item::Rows(rows) | Item::Compressed { finished: rows, .. } => Some(rows),
            Item::Fixed(_) => None,
        }
    }

    fn fixed(&self) -> Option<&Fixed> {
        match self {
            Item::Fixed(fixed) | Item::Compressed { raw: fixed, .. } => Some(fixed),
            Item::Rows(_) => None,
        }
    }

    fn fixed_mut(&mut self) -> Option<&mut Fixed> {
        match self {
            Item::Fixed(fixed) | Item::Compressed { raw: fixed, .. } => Some(fixed),
            Item::Rows(_) => None,
        }
    }
}

/// Names of the items of every layer, the draft's too, in their order.
pub(crate) fn item_names(program: &Program) -> Vec<Vec<String>> {
    let names = |index| {
        let items = layer_state(program, index).into_iter();
        items.map(|item| item.name).collect()
    };
    (0..program.every_layer().count()).map(names).collect()
}

/// State of one layer: its items in the order of
/// [`layer_state`](lamella_program::state::layer_state).
pub(crate) struct LayerState {
    pub(crate) items: Vec<Item>,
}

impl LayerState {
    fn new(program: &Program, index: usize, context: usize, backend: BackendKind) -> LayerState {
        let mixer = &program.layer(index).mixer.body;
        let items = layer_state(program, index).into_iter().enumerate();
        let items = items.map(|(number, item)| {
            Item::new(&item.shape, context, row_layout(backend, mixer, number))
        });
        LayerState {
            items: items.collect(),
        }
    }

    /// Item `index`, which is declared as rows.
    pub(crate) fn rows(&self, index: usize) -> &PagedRows {
        match self.items[index].paged() {
            Some(rows) => rows,
            None => unreachable!("the program declares item {index} otherwise"),
        }
    }

    /// Item `index`, which is declared as rows, writable.
    pub(crate) fn rows_mut(&mut self, index: usize) -> &mut PagedRows {
        match self.items[index].paged_mut() {
            Some(rows) => rows,
            None => unreachable!("the program declares item {index} otherwise"),
        }
    }

    /// The overwritten values of item `index`.
    pub(crate) fn fixed_mut(&mut self, index: usize) -> &mut Fixed {
        match self.items[index].fixed_mut() {
            Some(fixed) => fixed,
            None => unreachable!("the program declares item {index} otherwise"),
        }
    }
}

/// One conversation: how far it is and what each layer remembers.
///
/// A session grows by [`Model::step`](crate::Model::step) and shrinks by
/// [`truncate`](Session::truncate). It belongs to the model that made it. What a draft head
/// remembers of a conversation is a session too, and belongs to that head
/// ([`Model::draft_session`](crate::Model::draft_session)).
pub struct Session {
    /// Identity of the model, or of its draft head: the same allocation, not an equal value.
    model: Arc<()>,
    position: usize,
    context: usize,
    pub(crate) layers: Vec<LayerState>,
    /// The newest token ids, oldest first, where the program needs them.
    recent: Vec<u32>,
    /// Ids to remember.
    history: usize,
    /// What the last step cannot find again by itself.
    before: Before,
    /// Most bytes it may hold.
    limit: Option<u64>,
}

/// What a session cannot find again by itself, at some position. Made by
/// [`Session::checkpoint`].
#[derive(Clone)]
pub struct Checkpoint {
    position: usize,
    fixed: Vec<Box<[f32]>>,
    recent: Vec<u32>,
}

impl Session {
    /// An empty session for a part of `program`, whose steps `backend` runs. All other layers are
    /// empty. Its state is in no memory before [`prepare`](Session::prepare).
    pub(crate) fn new(
        model: Arc<()>,
        program: &Program,
        part: &Part,
        context: usize,
        backend: BackendKind,
    ) -> Session {
        let own = part.layers(program);
        let layer = |index| match own.contains(&index) {
            true => LayerState::new(program, index, context, backend),
            false => LayerState { items: Vec::new() },
        };
        let layers = (0..program.layers.len()).map(layer).collect();
        Session::of(model, layers, history(program), context)
    }

    /// An empty session for depth `depth` of the draft of `program`. It has layers up to that
    /// depth's, and all but the last one are empty.
    pub(crate) fn of_depth(
        model: Arc<()>,
        program: &Program,
        depth: usize,
        context: usize,
        backend: BackendKind,
    ) -> Session {
        let own = program.layers.len() + depth;
        let layer = |index| match index == own {
            true => LayerState::new(program, index, context, backend),
            false => LayerState { items: Vec::new() },
        };
        Session::of(model, (0..=own).map(layer).collect(), 0, context)
    }

    fn of(model: Arc<()>, layers: Vec<LayerState>, history: usize, context: usize) -> Session {
        Session {
            model,
            position: 0,
            context,
            layers,
            recent: Vec::with_capacity(2 * history),
            history,
            before: Before::new(history),
            limit: None,
        }
    }

    /// The same session, which may hold no more than `limit` bytes.
    pub(crate) fn limited(mut self, limit: Option<u64>) -> Session {
        self.limit = limit;
        self
    }

    /// The same session, whose state is claimed from `ledger`.
    pub(crate) fn charged(mut self, ledger: Option<&Arc<Ledger>>) -> Session {
        let Some(ledger) = ledger else {
            return self;
        };
        for item in self.items_mut() {
            if let Some(rows) = item.paged_mut() {
                rows.charge(ledger);
            }
            if let Some(fixed) = item.fixed_mut() {
                fixed.charge(ledger);
            }
        }
        self
    }

    /// Bytes that `tokens` more tokens take beyond what it holds.
    pub(crate) fn growth(&self, tokens: usize) -> u64 {
        let end = self.position + tokens;
        let paged = self.items().filter_map(Item::paged);
        let fixed = self.items().filter_map(Item::fixed);
        paged.map(|rows| rows.growth(end)).sum::<u64>() + fixed.map(Fixed::growth).sum::<u64>()
    }

    /// Whether it has a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.limit.is_some()
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
        let paged = self.items().filter_map(Item::paged).map(PagedRows::bytes);
        let fixed = self.items().filter_map(Item::fixed).map(Fixed::bytes);
        paged.sum::<u64>() + fixed.sum::<u64>()
    }

    /// Makes room for `tokens` tokens in all, so that steps up to there allocate nothing.
    ///
    /// # Errors
    /// [`Error::ContextLength`] beyond the session's context; [`Error::Allocation`] if the system
    /// refuses. The session then holds what it held.
    pub fn reserve(&mut self, tokens: usize) -> Result<(), Error> {
        if tokens > self.context {
            return Err(Error::ContextLength {
                position: self.position,
                tokens: tokens.saturating_sub(self.position),
                context: self.context,
            });
        }
        self.prepare()?;
        self.paged_mut().for_each(PagedRows::begin);
        let position = self.position;
        let made = self.paged_mut().try_for_each(|rows| rows.reserve(tokens));
        if made.is_err() {
            for rows in self.paged_mut() {
                rows.roll_back(position..position);
            }
        }
        made
    }

    /// Takes the memory of the state that does not grow.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system refuses.
    pub(crate) fn prepare(&mut self) -> Result<(), Error> {
        let mut fixed = self.items_mut().filter_map(Item::fixed_mut);
        fixed.try_for_each(Fixed::prepare)
    }

    /// Forgets all but the first `tokens` tokens. A session whose model has recurrent state can
    /// only forget everything; [`checkpoint`](Session::checkpoint) before going on.
    ///
    /// # Errors
    /// [`Error::Rollback`] if the session has fewer; [`Error::Irreversible`] if it cannot go back
    /// there. It is then unchanged.
    pub fn truncate(&mut self, tokens: usize) -> Result<(), Error> {
        if tokens > self.position {
            return Err(Error::Rollback {
                wanted: tokens,
                position: self.position,
            });
        }
        if tokens > 0 && !self.goes_back_to(tokens) {
            return Err(Error::Irreversible {
                wanted: tokens,
                position: self.position,
            });
        }
        self.rewind(tokens);
        Ok(())
    }

    /// Goes back to at most `tokens` tokens, as far as the state allows; the position it has then.
    /// If that is below `tokens`, the session is empty.
    pub fn rewind(&mut self, tokens: usize) -> usize {
        self.before.forget();
        let tokens = tokens.min(self.position);
        let tokens = if self.goes_back_to(tokens) { tokens } else { 0 };
        if tokens == 0 {
            self.items_mut()
                .filter_map(Item::fixed_mut)
                .for_each(Fixed::clear);
            self.recent.clear();
        }
        self.go_back(tokens);
        tokens
    }

    /// Takes `tokens` for the position, and drops the rows behind it.
    fn go_back(&mut self, tokens: usize) {
        let before = std::mem::replace(&mut self.position, tokens);
        for rows in self.paged_mut() {
            rows.truncate(tokens, before);
        }
    }

    /// Remembers this position, to come back by [`restore`](Session::restore) after reading on.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system has no memory for a copy of what steps overwrite.
    pub fn checkpoint(&self) -> Result<Checkpoint, Error> {
        let copy = |fixed: &Fixed| {
            let mut copy = zeros(fixed.values().len())?;
            copy.copy_from_slice(fixed.values());
            Ok(copy)
        };
        let fixed = self.items().filter_map(Item::fixed).map(copy);
        Ok(Checkpoint {
            position: self.position,
            fixed: fixed.collect::<Result<_, Error>>()?,
            recent: self.recent.clone(),
        })
    }

    /// Goes back to a checkpoint of this session.
    ///
    /// # Errors
    /// [`Error::Irreversible`] if the session has been further back since, or has read so far that
    /// a sliding window no longer reaches there. It is then unchanged.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), Error> {
        let position = checkpoint.position;
        let fixed = self.items().filter_map(Item::fixed).count();
        if position > self.position || !self.reaches(position) || fixed != checkpoint.fixed.len() {
            return Err(Error::Irreversible {
                wanted: position,
                position: self.position,
            });
        }
        self.before.forget();
        let targets = self.items_mut().filter_map(Item::fixed_mut);
        for (target, values) in targets.zip(&checkpoint.fixed) {
            target.set(values);
        }
        self.recent.clone_from(&checkpoint.recent);
        self.go_back(position);
        Ok(())
    }

    /// The `back`th token before the session's next one; `None` before the first.
    pub(crate) fn recent(&self, back: usize) -> Option<u32> {
        let index = self.recent.len().checked_sub(back)?;
        self.recent.get(index).copied()
    }

    /// Remembers the state to go back to if the step that begins now fails.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system refuses memory; no step has begun then.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        self.prepare()?;
        self.before.forget();
        self.paged_mut().for_each(PagedRows::begin);
        Ok(())
    }

    /// Makes room for `tokens` more tokens, in the step that has begun.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system refuses.
    pub(crate) fn grow(&mut self, tokens: usize) -> Result<(), Error> {
        let end = self.position + tokens;
        self.paged_mut().try_for_each(|rows| rows.reserve(end))
    }

    /// Undoes the failed step of `tokens` tokens, and clears what it has left behind the position.
    pub(crate) fn roll_back(&mut self, tokens: usize) {
        let failed = self.position..self.position + tokens;
        for item in self.items_mut() {
            if let Some(rows) = item.paged_mut() {
                rows.roll_back(failed.clone());
            }
            if let Some(fixed) = item.fixed_mut() {
                fixed.roll_back();
            }
        }
    }

    pub(crate) fn belongs_to(&self, model: &Arc<()>) -> bool {
        Arc::ptr_eq(&self.model, model)
    }

    /// Makes what a step has written part of the conversation.
    pub(crate) fn commit(&mut self, tokens: &[u32]) {
        self.before.remember(self.position, &self.recent);
        self.position += tokens.len();
        let position = self.position;
        for item in self.items_mut() {
            if let Some(rows) = item.paged_mut() {
                rows.commit(position);
            }
            if let Some(fixed) = item.fixed_mut() {
                fixed.commit();
            }
        }
        let new = &tokens[tokens.len().saturating_sub(self.history)..];
        let keep = (self.history - new.len()).min(self.recent.len());
        self.recent.drain(..self.recent.len() - keep);
        self.recent.extend_from_slice(new);
    }

    /// Whether reading a token replaces state that cannot be found again.
    pub(crate) fn overwrites(&self) -> bool {
        self.history > 0 || self.items().any(|item| item.fixed().is_some())
    }

    /// Whether dropping the tokens after the first `tokens` leaves the state of those.
    fn goes_back_to(&self, tokens: usize) -> bool {
        tokens == self.position || !self.overwrites() && self.reaches(tokens)
    }

    fn reaches(&self, tokens: usize) -> bool {
        let mut paged = self.items().filter_map(Item::paged);
        paged.all(|rows| rows.reaches(tokens))
    }

    fn items(&self) -> impl Iterator<Item = &Item> {
        self.layers.iter().flat_map(|l| &l.items)
    }

    fn items_mut(&mut self) -> impl Iterator<Item = &mut Item> {
        self.layers.iter_mut().flat_map(|l| &mut l.items)
    }

    fn paged_mut(&mut self) -> impl Iterator<Item = &mut PagedRows> {
        self.items_mut().filter_map(Item::paged_mut)
    }
}
