//! Whose turn it is on the threads and buffers of one opened part: calls compute one after
//! another, in the order in which they came.

use super::host::Questions;
use crate::lamella::LamellaCode;
use crate::report::{Refused, Report};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

/// How often a call that waits asks its host whether to go on waiting.
const ASKED: Duration = Duration::from_millis(2);

/// The calls of one part, by their threads. A thread is in it at most once, which is what keeps a
/// callback from waiting for the call that it interrupts.
#[derive(Default)]
pub(super) struct Turns {
    /// The first one computes, the others wait.
    line: Mutex<VecDeque<ThreadId>>,
    left: Condvar,
}

/// The right to compute, until it is dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    thread: ThreadId,
}

impl Turns {
    /// Waits until the calls that came earlier have ended, and asks `questions` meanwhile: `None`
    /// if one of them says so.
    ///
    /// # Errors
    /// `LAMELLA_BUSY` from a callback of another call of the same part; `LAMELLA_MEMORY` without
    /// memory for the line.
    pub(super) fn take(
        &self,
        report: &Report,
        questions: &Questions,
    ) -> Result<Option<Turn<'_>>, Refused> {
        let thread = std::thread::current().id();
        let mut line = self.line();
        if line.contains(&thread) {
            let reason = format_args!(
                "a callback of a call in this engine cannot use the engine: the call has its turn"
            );
            return Err(report.refuse(LamellaCode::LAMELLA_BUSY, reason));
        }
        if line.try_reserve(1).is_err() {
            return Err(report.no_memory(size_of::<ThreadId>()));
        }
        line.push_back(thread);
        // From here on, dropping the turn leaves the line.
        let turn = Turn {
            turns: self,
            thread,
        };
        while line.front() != Some(&thread) {
            if questions.none() {
                line = self.left.wait(line).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = self.left.wait_timeout(line, ASKED);
            line = waited.unwrap_or_else(PoisonError::into_inner).0;
            if line.front() != Some(&thread) {
                // A host may do anything when it is asked, also let others leave the line.
                drop(line);
                if questions.cancel() {
                    return Ok(None);
                }
                line = self.line();
            }
        }
        drop(line);
        Ok(Some(turn))
    }

    fn line(&self) -> MutexGuard<'_, VecDeque<ThreadId>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut line = self.turns.line();
        line.retain(|thread| *thread != self.thread);
        drop(line);
        self.turns.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{c_int, c_void};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    fn nobody() -> Questions {
        // SAFETY: there is nobody to ask.
        unsafe { Questions::new(Vec::new()) }
    }

    fn quiet() -> Report {
        // SAFETY: no buffer.
        unsafe { Report::new(std::ptr::null_mut(), 0) }
    }

    fn wait_for(turns: &Turns, calls: usize) {
        let start = Instant::now();
        while turns.line().len() != calls {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
    }

    #[test]
    fn calls_come_in_the_order_in_which_they_asked() {
        let (turns, order) = (Turns::default(), Mutex::new(vec![]));
        let (turns, order) = (&turns, &order);
        let first = turns.take(&quiet(), &nobody()).unwrap();
        std::thread::scope(|scope| {
            for n in 0..9 {
                scope.spawn(move || {
                    let _turn = turns.take(&quiet(), &nobody()).unwrap();
                    order.lock().unwrap().push(n);
                });
                wait_for(turns, n + 2);
            }
            drop(first);
        });
        assert_eq!(*order.lock().unwrap(), (0..9).collect::<Vec<_>>());
        assert!(turns.line().is_empty());
    }

    #[test]
    fn a_thread_has_one_turn_at_a_time() {
        let turns = Turns::default();
        let turn = turns.take(&quiet(), &nobody()).unwrap();
        assert!(turns.take(&quiet(), &nobody()).is_err());
        assert_eq!(crate::report::last().0, LamellaCode::LAMELLA_BUSY);
        drop(turn);
        assert!(turns.take(&quiet(), &nobody()).is_ok());
    }

    unsafe extern "C-unwind" fn third(count: *mut c_void) -> c_int {
        // SAFETY: the test passes a counter that lives.
        let count = unsafe { &*count.cast::<AtomicUsize>() };
        c_int::from(count.fetch_add(1, Ordering::Relaxed) == 2)
    }

    #[test]
    fn who_waits_is_asked_and_may_leave_the_line() {
        let turns = Turns::default();
        let turn = turns.take(&quiet(), &nobody()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let asked = AtomicUsize::new(0);
                let question = (Some(third as _), (&raw const asked).cast_mut().cast());
                // SAFETY: `third` takes the counter, which lives.
                let questions = unsafe { Questions::new(vec![question]) };
                assert!(turns.take(&quiet(), &questions).unwrap().is_none());
                assert_eq!(asked.load(Ordering::Relaxed), 3);
            });
        });
        assert_eq!(turns.line().len(), 1);
        drop(turn);
    }
}
