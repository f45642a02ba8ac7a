//! The adapters that a host has registered: the process-wide state that the interface asks for.

use crate::checks;
use crate::edge::abi::ColiEdgeAdapter;
use crate::handles::Handles;
use crate::lamella::LamellaCode;
use crate::report::{Refused, Report};
use crate::segment::abi::ColiSegmentAdapter;
use crate::{edge, segment};
use std::ffi::{CStr, c_char};
use std::sync::{PoisonError, RwLock};

/// Bytes of an engine id, its NUL included, in both interfaces.
const ID_CAP: usize = 64;

pub(crate) static SEGMENT_ADAPTERS: Adapters<ColiSegmentAdapter> = Adapters::new("Segment");
pub(crate) static SEGMENT_ENGINES: Handles<segment::Engine> = Handles::new("Segment engine");
pub(crate) static SEGMENT_SESSIONS: Handles<segment::Session> = Handles::new("Segment session");
pub(crate) static EDGE_ADAPTERS: Adapters<ColiEdgeAdapter> = Adapters::new("Edge");
pub(crate) static EDGE_ENGINES: Handles<edge::Engine> = Handles::new("Edge engine");

/// An engine id, copied: a host that changes its adapter afterwards does not rename it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id {
    bytes: [u8; ID_CAP],
    length: usize,
}

impl Id {
    /// The id in `text`, if it is one: 1 to 63 of `a-z`, `0-9`, `_` and `-`.
    pub(crate) fn parse(text: &CStr) -> Option<Id> {
        let text = text.to_bytes();
        let fits = (1..ID_CAP).contains(&text.len());
        let plain = |b: &u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
        if !fits || !text.iter().all(plain) {
            return None;
        }
        let mut bytes = [0; ID_CAP];
        bytes[..text.len()].copy_from_slice(text);
        Some(Id {
            bytes,
            length: text.len(),
        })
    }

    /// The id at `text`, which an adapter names itself with.
    ///
    /// # Safety
    /// `text` is NULL or ends with a NUL.
    pub(crate) unsafe fn read(report: &Report, text: *const c_char) -> Result<Id, Refused> {
        // SAFETY: the caller's contract.
        let text = unsafe { checks::text(report, text, "engine_id") }?;
        Id::parse(text).ok_or_else(|| {
            let rule = "engine_id: 1 to 63 of a-z, 0-9, _ and - make an id";
            report.argument(format_args!("{rule}"))
        })
    }

    pub(crate) fn as_str(&self) -> &str {
        // Ids are ASCII by `parse`.
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

/// Adapters of one interface, in the order in which they came.
pub(crate) struct Adapters<A> {
    /// What the interface is called in errors.
    interface: &'static str,
    list: RwLock<Vec<Entry<A>>>,
}

struct Entry<A> {
    id: Id,
    adapter: *const A,
}

// SAFETY: the registry only keeps and returns the address. Whoever registers an adapter promises
// that it lives and stays as it is for as long as the process does.
unsafe impl<A> Send for Entry<A> {}
// SAFETY: as above.
unsafe impl<A> Sync for Entry<A> {}

impl<A> Adapters<A> {
    const fn new(interface: &'static str) -> Adapters<A> {
        Adapters {
            interface,
            list: RwLock::new(Vec::new()),
        }
    }

    /// Adds an adapter whose other fields were checked.
    pub(crate) fn add(&self, report: &Report, id: Id, adapter: *const A) -> Result<(), Refused> {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        if list.iter().any(|entry| entry.id == id) {
            let (id, interface) = (id.as_str(), self.interface);
            let reason = format_args!("{interface} adapter `{id}` is registered already");
            return Err(report.refuse(LamellaCode::LAMELLA_DUPLICATE, reason));
        }
        checks::reserve_one(report, &mut list)?;
        list.push(Entry { id, adapter });
        Ok(())
    }

    /// The adapter with this id.
    pub(crate) fn find(&self, id: &CStr) -> Option<(Id, *const A)> {
        let id = Id::parse(id)?;
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        let found = list.iter().find(|entry| entry.id == id)?;
        Some((id, found.adapter))
    }

    /// As [`Adapters::find`] for a text of C.
    ///
    /// # Safety
    /// `id` is NULL or ends with a NUL.
    pub(crate) unsafe fn look_up(
        &self,
        report: &Report,
        id: *const c_char,
    ) -> Result<(Id, *const A), Refused> {
        // SAFETY: the caller's contract.
        let id = unsafe { checks::text(report, id, "engine id") }?;
        self.find(id).ok_or_else(|| {
            let (id, interface) = (id.to_string_lossy(), self.interface);
            let reason = format_args!("no {interface} adapter `{id:.80}` is registered");
            report.refuse(LamellaCode::LAMELLA_NOT_FOUND, reason)
        })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_short_and_plain() {
        let id = |text: &str| {
            let text = std::ffi::CString::new(text).unwrap();
            Id::parse(&text).map(|id| id.as_str().to_owned())
        };
        for good in ["a", "deepseek_v4", "0-9", &"x".repeat(63)] {
            assert_eq!(id(good).as_deref(), Some(good));
        }
        for bad in ["", "A", "a b", "a.b", "\u{e9}", &"x".repeat(64)] {
            assert_eq!(id(bad), None);
        }
    }
}
