//! Taking back the last step of a session.
//!
//! A step that has succeeded leaves the state it overwrote in the second copy, where it stays until
//! the next step begins. So the step before is there for free, whatever the family; what else
//! changes a session, or tries to, makes it unreachable.

use super::{Checkpoint, Fixed, Item, Session};
use crate::error::Error;

/// Where a session was before its last step.
pub(super) struct Before {
    /// `None` if there is no way back.
    position: Option<usize>,
    recent: Vec<u32>,
}

impl Before {
    /// For a session that remembers `history` ids.
    pub(super) fn new(history: usize) -> Before {
        Before {
            position: None,
            recent: Vec::with_capacity(2 * history),
        }
    }

    pub(super) fn forget(&mut self) {
        self.position = None;
    }

    /// A step succeeds that began at `position`, with `recent` as the newest ids.
    pub(super) fn remember(&mut self, position: usize, recent: &[u32]) {
        self.position = Some(position);
        self.recent.clear();
        self.recent.extend_from_slice(recent);
    }
}

impl Session {
    /// A checkpoint, where dropping tokens would not bring the state back.
    ///
    /// # Errors
    /// As [`checkpoint`](Session::checkpoint).
    pub(crate) fn mark_if_overwritten(&self) -> Result<Option<Checkpoint>, Error> {
        self.overwrites().then(|| self.checkpoint()).transpose()
    }

    /// Takes back the last step whole, at no cost.
    ///
    /// # Errors
    /// [`Error::Irreversible`] if the last thing that happened to the session was not a step that
    /// succeeded, or if the step was so long that a sliding window no longer reaches back to its
    /// beginning. It is then unchanged.
    pub fn undo(&mut self) -> Result<(), Error> {
        let before = self.before.position.filter(|&start| self.reaches(start));
        let Some(start) = before else {
            return Err(Error::Irreversible {
                wanted: self.before.position.unwrap_or(self.position),
                position: self.position,
            });
        };
        self.before.forget();
        std::mem::swap(&mut self.recent, &mut self.before.recent);
        self.items_mut()
            .filter_map(Item::fixed_mut)
            .for_each(Fixed::undo);
        self.go_back(start);
        Ok(())
    }
}
