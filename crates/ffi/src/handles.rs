//! Handles: numbers that C takes for pointers.
//!
//! A handle is looked up, never followed, so that a closed one, one of another kind and one that
//! never was are refused rather than read. Numbers are not given twice.

use crate::checks;
use crate::lamella::LamellaCode;
use crate::report::{Refused, Report};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Handles of all kinds come from one row of numbers: no number means two things.
static NEXT: AtomicUsize = AtomicUsize::new(1);

/// The live handles of one kind.
pub(crate) struct Handles<T> {
    /// What the handles are called in errors.
    kind: &'static str,
    /// Sorted by number, because new numbers are larger than old ones.
    live: RwLock<Vec<(usize, Arc<T>)>>,
}

impl<T> Handles<T> {
    pub(crate) const fn new(kind: &'static str) -> Handles<T> {
        Handles {
            kind,
            live: RwLock::new(Vec::new()),
        }
    }

    /// A handle for `value`.
    ///
    /// # Errors
    /// Without memory, or after all numbers were given (on 64 bits: never).
    pub(crate) fn insert<H>(&self, report: &Report, value: Arc<T>) -> Result<*mut H, Refused> {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        checks::reserve_one(report, &mut live)?;
        let next = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1));
        let Ok(number) = next.map(|n| n.checked_mul(16)) else {
            return Err(self.exhausted(report));
        };
        let number = number.ok_or_else(|| self.exhausted(report))?;
        // Another kind may have taken a larger number between the two steps, this one may not.
        live.push((number, value));
        Ok(std::ptr::without_provenance_mut(number))
    }

    /// What `handle` stands for.
    ///
    /// # Errors
    /// If it is NULL, closed, or no handle of this kind.
    pub(crate) fn get<H>(&self, report: &Report, handle: *const H) -> Result<Arc<T>, Refused> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        match position(&live, handle) {
            Some(at) => Ok(Arc::clone(&live[at].1)),
            None => Err(self.unknown(report, handle)),
        }
    }

    /// Closes `handle`. What it stood for lives until the calls that use it have returned.
    ///
    /// # Errors
    /// As [`Handles::get`].
    pub(crate) fn remove<H>(&self, report: &Report, handle: *const H) -> Result<Arc<T>, Refused> {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        match position(&live, handle) {
            Some(at) => Ok(live.remove(at).1),
            None => Err(self.unknown(report, handle)),
        }
    }

    fn unknown<H>(&self, report: &Report, handle: *const H) -> Refused {
        let kind = self.kind;
        if handle.is_null() {
            return checks::refuse_null(report, kind);
        }
        let reason = format_args!("the {kind} {handle:p} is closed, or never was one");
        report.refuse(LamellaCode::LAMELLA_HANDLE, reason)
    }

    fn exhausted(&self, report: &Report) -> Refused {
        let reason = format_args!("no {} can be made any more: restart", self.kind);
        report.refuse(LamellaCode::LAMELLA_MEMORY, reason)
    }
}

fn position<T, H>(live: &[(usize, Arc<T>)], handle: *const H) -> Option<usize> {
    live.binary_search_by_key(&handle.addr(), |entry| entry.0)
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_end_with_what_they_stand_for() {
        let (these, those) = (Handles::<u8>::new("thing"), Handles::<u8>::new("other"));
        // SAFETY: no buffer.
        let report = unsafe { Report::new(std::ptr::null_mut(), 0) };
        let made = [1, 2, 3].map(|n| these.insert::<u8>(&report, Arc::new(n)).unwrap());
        assert_eq!(*these.get(&report, made[1]).unwrap(), 2);
        assert!(those.get(&report, made[1]).is_err());
        assert_eq!(*these.remove(&report, made[1]).unwrap(), 2);
        assert!(these.get(&report, made[1]).is_err());
        assert!(these.remove(&report, made[1]).is_err());
        assert_eq!(crate::report::last().0, LamellaCode::LAMELLA_HANDLE);
        assert_eq!(*these.get(&report, made[2]).unwrap(), 3);
        let again = these.insert::<u8>(&report, Arc::new(4)).unwrap();
        assert!(!made.contains(&again));
        assert!(these.get::<u8>(&report, std::ptr::null()).is_err());
        assert_eq!(crate::report::last().0, LamellaCode::LAMELLA_ARGUMENT);
    }
}
