//! What conversations and experts in memory take of the room that the model leaves them.

use crate::error::Error;
use crate::model::{Model, setting};
use lamella_container::human_bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

/// Bytes that may be taken, and how many are. One for each model that is open as a whole.
#[derive(Debug)]
pub(crate) struct Ledger {
    room: AtomicU64,
    taken: AtomicU64,
}

/// Bytes taken; given back when dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl Ledger {
    /// `room` bytes, all of them free.
    pub(crate) fn new(room: u64) -> Arc<Ledger> {
        Arc::new(Ledger {
            room: AtomicU64::new(room),
            taken: AtomicU64::new(0),
        })
    }

    /// Bytes nobody has taken.
    pub(crate) fn left(&self) -> u64 {
        self.room()
            .saturating_sub(self.taken.load(Ordering::Relaxed))
    }

    /// Bytes that lack for others to claim `bytes`.
    pub(crate) fn short(&self, bytes: u64) -> u64 {
        let need = self.taken.load(Ordering::Relaxed).saturating_add(bytes);
        need.saturating_sub(self.room())
    }

    /// Bytes that may be taken.
    pub(crate) fn room(&self) -> u64 {
        self.room.load(Ordering::Relaxed)
    }

    /// From now on so many bytes may be taken, whether or not more are.
    pub(crate) fn set_room(&self, room: u64) {
        self.room.store(room, Ordering::Relaxed);
    }

    /// Takes `bytes`.
    ///
    /// # Errors
    /// [`Error::Memory`] with the sum if there are no more so many.
    pub(crate) fn claim(self: &Arc<Ledger>, bytes: u64) -> Result<Claim, Error> {
        let more = |taken: u64| taken.checked_add(bytes).filter(|&sum| sum <= self.room());
        let (order, taken) = (Ordering::Relaxed, &self.taken);
        match taken.fetch_update(order, order, more) {
            Ok(_) => Ok(Claim {
                ledger: Arc::clone(self),
                bytes,
            }),
            Err(taken) => Err(self.refusal(taken, bytes)),
        }
    }

    fn give(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The error that says why `bytes` bytes more than `taken` are not there.
    pub(crate) fn refusal(&self, taken: u64, bytes: u64) -> Error {
        let need = taken.saturating_add(bytes);
        Error::Memory {
            sum: format!(
                "state of conversations and experts in memory {taken} + {bytes} more = {need} \
                 bytes ({})",
                human_bytes(need)
            ),
            limit: self.room(),
            origin: "what the model leaves of the memory limit".to_owned(),
            advice: "End other conversations, take a shorter context, or raise the memory limit"
                .to_owned(),
        }
    }
}

impl Claim {
    /// What it is claimed from.
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Gives back all but `bytes`, or takes as many.
    ///
    /// # Errors
    /// As [`Ledger::claim`]; nothing has changed then.
    pub(crate) fn resize(&mut self, bytes: u64) -> Result<(), Error> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => {
                let mut more = self.ledger.claim(more)?;
                more.bytes = 0;
            }
            None => self.ledger.give(self.bytes - bytes),
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.ledger.give(self.bytes);
    }
}

impl Model {
    /// Changes the memory limit to `bytes`: experts leave memory, or come back as far as there was
    /// room for them at first. Conversations keep what they have.
    ///
    /// # Errors
    /// [`Error::Memory`] if what is there does not fit, [`Error::Setting`] if only a part of the
    /// model is open; the limit is then what it was.
    pub fn set_memory_limit(&self, bytes: u64) -> Result<(), Error> {
        let Some(ledger) = &self.ledger else {
            return Err(setting("memory", "a part of a model keeps its limit"));
        };
        let before = ledger.room();
        ledger.set_room(bytes.saturating_sub(self.fixed_bytes));
        let made = self.make_room(0);
        let made = made.and_then(|()| match ledger.short(0) {
            0 => Ok(()),
            short => Err(ledger.refusal(ledger.room(), short)),
        });
        if made.is_err() {
            ledger.set_room(before);
        }
        made
    }

    /// Has experts leave memory that conversations will take, if they have it.
    ///
    /// # Errors
    /// Of reads that were on their way.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<(), Error> {
        // Only they can; a step that runs need not be waited for without them.
        if self.experts.is_none() || self.ledger.is_none() {
            return Ok(());
        }
        let mut executor = self.executor.lock().unwrap_or_else(PoisonError::into_inner);
        executor.backend.make_room(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_claimed_is_there_once() {
        let ledger = Ledger::new(100);
        let first = ledger.claim(60).expect("there is room");
        let refused = ledger.claim(41).expect_err("there is not");
        assert!(
            refused.to_string().contains("60 + 41 more = 101 bytes"),
            "{refused}"
        );
        let mut second = ledger.claim(40).expect("exactly");
        assert_eq!(ledger.left(), 0);
        drop(first);
        assert!(second.resize(101).is_err());
        second.resize(100).expect("grows");
        assert_eq!(ledger.left(), 0);
        second.resize(1).expect("shrinks");
        assert_eq!(ledger.left(), 99);
        assert!(ledger.claim(u64::MAX).is_err());
        drop(second);
        assert_eq!(ledger.left(), 100);
        let third = ledger.claim(50);
        ledger.set_room(40);
        assert_eq!((ledger.left(), ledger.short(5)), (0, 15));
        drop(third);
        assert_eq!((ledger.left(), ledger.short(41)), (40, 1));
    }
}
