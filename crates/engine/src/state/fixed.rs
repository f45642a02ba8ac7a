//! State of a fixed size that each step overwrites.

use crate::error::Error;
use crate::ledger::{Claim, Ledger};
use crate::memory::zeros;
use std::sync::Arc;

/// Values with a second copy for the running step, so that a failed one leaves no trace. They are
/// zero at first, and in no memory before [`prepare`](Fixed::prepare).
pub(crate) struct Fixed {
    len: usize,
    now: Box<[f32]>,
    next: Box<[f32]>,
    /// Whether the running step has begun to write `next`.
    touched: bool,
    /// Whether the last finished step has left the values before it in `next`.
    replaced: bool,
    /// What its memory is claimed from, if from anything, and the claim.
    ledger: Option<Arc<Ledger>>,
    claim: Option<Claim>,
}

impl Fixed {
    pub(super) fn new(len: usize) -> Fixed {
        Fixed {
            len,
            now: Box::default(),
            next: Box::default(),
            touched: false,
            replaced: false,
            ledger: None,
            claim: None,
        }
    }

    /// Has its memory claimed from `ledger`.
    pub(super) fn charge(&mut self, ledger: &Arc<Ledger>) {
        self.ledger = Some(Arc::clone(ledger));
    }

    /// Bytes that [`prepare`](Fixed::prepare) takes.
    pub(super) fn growth(&self) -> u64 {
        let missing = self.len - self.now.len();
        2 * (size_of::<f32>() * missing) as u64
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes the memory that writing needs.
    ///
    /// # Errors
    /// [`Error::Memory`]; [`Error::Allocation`] if the system refuses.
    pub(super) fn prepare(&mut self) -> Result<(), Error> {
        if self.now.len() < self.len {
            let claim = self.ledger.as_ref().map(|l| l.claim(self.growth()));
            self.claim = claim.transpose()?;
            let next = zeros(self.len)?;
            (self.now, self.next) = (zeros(self.len)?, next);
        }
        Ok(())
    }

    /// The values between steps; none while they are in no memory.
    pub(super) fn values(&self) -> &[f32] {
        &self.now
    }

    /// The values of the running step, writable.
    pub(crate) fn edit(&mut self) -> &mut [f32] {
        if !self.touched {
            self.next.copy_from_slice(&self.now);
            self.touched = true;
        }
        &mut self.next
    }

    /// For state that a step overwrites as a whole: the values to start from and the place to
    /// write, which the caller fills completely; `None` if the place holds the values already.
    pub(crate) fn overwrite(&mut self) -> (Option<&[f32]>, &mut [f32]) {
        let first = !std::mem::replace(&mut self.touched, true);
        (first.then_some(&*self.now), &mut self.next)
    }

    pub(super) fn commit(&mut self) {
        self.replaced = self.touched;
        if self.touched {
            std::mem::swap(&mut self.now, &mut self.next);
            self.touched = false;
        }
    }

    /// Takes back the last finished step. Nothing may have been changed since, and no step begun.
    pub(super) fn undo(&mut self) {
        if std::mem::take(&mut self.replaced) {
            std::mem::swap(&mut self.now, &mut self.next);
        }
    }

    pub(super) fn roll_back(&mut self) {
        self.touched = false;
    }

    pub(super) fn clear(&mut self) {
        self.now.fill(0.0);
        self.touched = false;
    }

    /// Replaces the values by what [`values`](Fixed::values) has given.
    pub(super) fn set(&mut self, values: &[f32]) {
        match values {
            [] => self.now.fill(0.0),
            values => self.now.copy_from_slice(values),
        }
        self.touched = false;
    }

    /// Bytes of both copies, also while they are in no memory.
    pub(super) fn bytes(&self) -> u64 {
        (2 * self.len * size_of::<f32>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_finished_step_changes_the_values() {
        let mut fixed = Fixed::new(2);
        assert_eq!((fixed.values(), fixed.bytes()), (&[][..], 16));
        fixed.prepare().expect("memory");
        fixed.edit()[0] = 1.0;
        fixed.roll_back();
        assert_eq!(fixed.edit(), [0.0, 0.0]);
        fixed.edit()[1] = 2.0;
        fixed.commit();
        assert_eq!(fixed.values(), [0.0, 2.0]);
        fixed.edit()[1] += 1.0;
        fixed.edit()[1] += 1.0;
        fixed.commit();
        assert_eq!(fixed.values(), [0.0, 4.0]);
        let (from, to) = fixed.overwrite();
        assert_eq!(from, Some(&[0.0, 4.0][..]));
        to.copy_from_slice(&[5.0, 6.0]);
        assert_eq!(fixed.overwrite().0, None);
        fixed.commit();
        assert_eq!(fixed.values(), [5.0, 6.0]);
        fixed.set(&[]);
        assert_eq!(fixed.edit(), [0.0, 0.0]);
        fixed.edit()[0] = 1.0;
        fixed.commit();
        fixed.clear();
        assert_eq!(fixed.edit(), [0.0, 0.0]);
    }

    #[test]
    fn the_last_finished_step_can_be_taken_back() {
        let mut fixed = Fixed::new(1);
        fixed.prepare().expect("memory");
        fixed.edit()[0] = 1.0;
        fixed.commit();
        fixed.edit()[0] = 2.0;
        fixed.commit();
        fixed.undo();
        assert_eq!(fixed.values(), [1.0]);
        // A step that wrote nothing has nothing to take back.
        fixed.commit();
        fixed.undo();
        assert_eq!(fixed.values(), [1.0]);
        fixed.edit()[0] += 4.0;
        fixed.commit();
        assert_eq!(fixed.values(), [5.0]);
    }
}
