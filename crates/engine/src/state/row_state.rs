//! A conversation's state row by row, in the caller's hands.

use super::{Fixed, Item, Page, PagedRows, RowLayout, Session};
use crate::error::Error;
use crate::memory::{room, zeros};
use lamella_kernels::PAGE;
use lamella_program::Program;
use lamella_program::state::layer_state;
use std::sync::Arc;

/// Continuation state in plain rows: what each token has left in each layer, in the order of the
/// tokens, to be looked at, copied and kept as the caller likes.
///
/// It is the same state as a [`Session`]'s, which lies in pages as the kernels read them, and
/// continues to the same bits. A session over it ([`Model::session_with_state`]) works on a copy in
/// pages, so that it takes twice the memory; what a step adds is appended here. Cloning it
/// remembers a position to come back to.
///
/// [`Model::session_with_state`]: crate::Model::session_with_state
#[derive(Clone)]
pub struct RowState {
    model: Arc<()>,
    position: usize,
    context: usize,
    /// Items of every layer, in their declared order.
    layers: Vec<Vec<PlainItem>>,
    recent: Vec<u32>,
}

/// One item: rows, values that each step overwrites, or both.
#[derive(Clone)]
struct PlainItem {
    name: String,
    width: usize,
    /// Number of the first row that is held.
    first: usize,
    rows: Vec<f32>,
    fixed: Vec<f32>,
}

/// The rows of one item of one layer.
#[derive(Clone, Copy, Debug)]
pub struct StateRows<'a> {
    /// Number of the first row; above 0 where a window has slid on.
    pub first: usize,
    /// Values of a row.
    pub width: usize,
    /// `[rows, width]`, oldest first.
    pub values: &'a [f32],
}

impl RowState {
    /// An empty state like `session`, an empty session of `program`.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system refuses.
    pub(crate) fn like(program: &Program, session: &Session) -> Result<RowState, Error> {
        let plain = |index: usize| {
            let items = layer_state(program, index);
            let held = &session.layers[index].items;
            let items = items.into_iter().zip(held);
            items
                .map(|(item, held)| PlainItem::new(item.name, held))
                .collect()
        };
        let layers = (0..session.layers.len()).map(plain);
        Ok(RowState {
            model: Arc::clone(&session.model),
            position: 0,
            context: session.context,
            layers: layers.collect::<Result<_, Error>>()?,
            recent: Vec::new(),
        })
    }

    /// Tokens it has read.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Tokens it may hold.
    #[must_use]
    pub fn context(&self) -> usize {
        self.context
    }

    /// Rows that layer `layer` has kept under the name `item`; names and shapes are those that the
    /// program declares ([`layer_state`](lamella_program::state::layer_state)). `None` if there is
    /// no such item, or it has no rows.
    #[must_use]
    pub fn rows(&self, layer: usize, item: &str) -> Option<StateRows<'_>> {
        let item = self.item(layer, item)?;
        (item.width > 0).then_some(StateRows {
            first: item.first,
            width: item.width,
            values: &item.rows,
        })
    }

    /// Values of layer `layer` under the name `item` that every token overwrites, as the backend
    /// lays them out. `None` if there is no such item, or it has no such values.
    #[must_use]
    pub fn overwritten(&self, layer: usize, item: &str) -> Option<&[f32]> {
        let item = self.item(layer, item)?;
        (!item.fixed.is_empty()).then_some(&item.fixed)
    }

    fn item(&self, layer: usize, name: &str) -> Option<&PlainItem> {
        self.layers
            .get(layer)?
            .iter()
            .find(|item| item.name == name)
    }

    pub(crate) fn belongs_to(&self, model: &Arc<()>) -> bool {
        Arc::ptr_eq(&self.model, model)
    }

    /// Puts the state into `session`, an empty session of the same model.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system refuses; `session` is of no use then.
    pub(crate) fn fill(&self, session: &mut Session) -> Result<(), Error> {
        session.prepare()?;
        let mut pages: Vec<Page> = Vec::new();
        let layers = session.layers.iter_mut().zip(&self.layers);
        let items = layers.flat_map(|(state, plain)| state.items.iter_mut().zip(plain));
        for (item, plain) in items {
            if let Some(rows) = item.paged() {
                for page in rows.needed_pages(self.position) {
                    room(&mut pages, 1)?;
                    pages.push(plain.page(page, rows.layout(), rows.new_page()?));
                }
            }
            if let Some(fixed) = item.fixed_mut() {
                fixed.overwrite().1.copy_from_slice(&plain.fixed);
            }
        }
        session.adopt(self.position, pages, self.recent.clone())
    }

    /// Makes room for what `session`, which is as far as this state, leaves of `tokens` more
    /// tokens.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system refuses.
    pub(crate) fn reserve(&mut self, session: &Session, tokens: usize) -> Result<(), Error> {
        let position = session.position + tokens;
        for (item, plain) in self.beside(session) {
            if let Some(rows) = item.paged() {
                let new = rows.rows_for(position).saturating_sub(plain.end());
                room(&mut plain.rows, new.saturating_mul(plain.width))?;
            }
        }
        Ok(())
    }

    /// Takes over what `session`, which began as this state, has read since.
    pub(crate) fn follow(&mut self, session: &Session) {
        self.position = session.position;
        self.recent.clone_from(&session.recent);
        for (item, plain) in self.beside(session) {
            if let Some(rows) = item.paged() {
                plain.append(rows, session.position, rows.layout());
            }
            if let Some(fixed) = item.fixed() {
                plain.fixed.copy_from_slice(fixed.values());
            }
        }
    }

    /// The items of `session` beside those of this state.
    fn beside<'a>(
        &'a mut self,
        session: &'a Session,
    ) -> impl Iterator<Item = (&'a Item, &'a mut PlainItem)> {
        let layers = session.layers.iter().zip(&mut self.layers);
        layers.flat_map(|(state, plain)| state.items.iter().zip(plain))
    }
}

impl PlainItem {
    /// An item without tokens, like `item`.
    fn new(name: String, item: &Item) -> Result<PlainItem, Error> {
        Ok(PlainItem {
            name,
            width: item.paged().map_or(0, PagedRows::width),
            first: 0,
            rows: Vec::new(),
            fixed: zeros(item.fixed().map_or(0, Fixed::len))?.into_vec(),
        })
    }

    /// Rows held, and before them.
    fn end(&self) -> usize {
        self.first + self.rows.len() / self.width.max(1)
    }

    /// Page number `number` with the rows it has, in `page`, which is all zeros.
    fn page(&self, number: usize, layout: RowLayout, mut page: Page) -> Page {
        let rows = (number * PAGE).max(self.first)..((number + 1) * PAGE).min(self.end());
        for row in rows {
            let values = &self.rows[(row - self.first) * self.width..][..self.width];
            layout.store(&mut page, row % PAGE, values);
        }
        page
    }

    /// Appends the rows that are new at `position`, and forgets those that no token needs any more.
    fn append(&mut self, rows: &PagedRows, position: usize, layout: RowLayout) {
        let oldest = rows.needed_pages(position).start * PAGE;
        if oldest >= self.end() {
            self.rows.clear();
            self.first = oldest;
        } else if oldest > self.first {
            self.rows.drain(..(oldest - self.first) * self.width);
            self.first = oldest;
        }
        for row in self.end()..rows.rows_for(position) {
            let start = self.rows.len();
            self.rows.resize(start + self.width, 0.0);
            layout.load(rows.page(row / PAGE), row % PAGE, &mut self.rows[start..]);
        }
    }
}
