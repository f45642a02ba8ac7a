//! State of a fixed size that each step overwrites.

/// Values with a second copy for the running step, so that a failed one leaves no trace.
pub(crate) struct Fixed {
    now: Box<[f32]>,
    next: Box<[f32]>,
    /// Whether the running step has begun to write `next`.
    touched: bool,
    /// Whether the last finished step has left the values before it in `next`.
    replaced: bool,
}

impl Fixed {
    pub(super) fn new(len: usize) -> Fixed {
        Fixed {
            now: vec![0.0; len].into_boxed_slice(),
            next: vec![0.0; len].into_boxed_slice(),
            touched: false,
            replaced: false,
        }
    }

    /// The values between steps.
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

    pub(super) fn set(&mut self, values: &[f32]) {
        self.now.copy_from_slice(values);
        self.touched = false;
    }

    pub(super) fn bytes(&self) -> u64 {
        (2 * self.now.len() * 4) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_finished_step_changes_the_values() {
        let mut fixed = Fixed::new(2);
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
        fixed.clear();
        assert_eq!(fixed.edit(), [0.0, 0.0]);
    }

    #[test]
    fn the_last_finished_step_can_be_taken_back() {
        let mut fixed = Fixed::new(1);
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
