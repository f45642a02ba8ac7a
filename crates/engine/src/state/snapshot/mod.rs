//! A conversation as a stream of bytes, to be continued elsewhere.
//!
//! ```text
//! header   magic, version, model, layer range, context, position, payload bytes, state schema,
//!          numeric class, newest token ids, digest
//! payload  the state's items in their declared order, in chunks, each with its digest
//! digest   of the header's and all chunks' digests
//! ```
//!
//! Everything is little-endian. All sizes follow from the program and the position; those in the
//! stream are only compared. Restoring is all or nothing: the session takes the new state when the
//! last digest has been checked. Pages are written as the backend lays them out, which is part of
//! the numeric class.

mod arrival;
mod chunks;
mod header;

use super::page::{Page, Slab};
use super::{Item, Session};
use crate::error::Error;
use crate::memory::{Buffer, check_stacks, room};
use arrival::Arrival;
use header::Header;
pub use header::SNAPSHOT_VERSION;
use std::io::{Read, Write};
use std::ops::Range;
use zerocopy::IntoBytes;

/// What two sessions must have in common for one to continue the other's snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Digest of the model's files.
    pub(crate) model: [u8; 32],
    /// Layers whose state it is.
    pub(crate) layers: Range<u32>,
    /// Layout of what passes between layers.
    pub(crate) schema: String,
    /// What makes results equal bit for bit.
    pub(crate) numeric_class: String,
    /// Number of token ids.
    pub(crate) vocabulary: usize,
}

/// Why a snapshot could not be written or restored. The session is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The stream did not take the bytes.
    #[error("the snapshot could not be written: {0}")]
    Write(std::io::Error),
    /// The stream failed.
    #[error("the snapshot could not be read: {0}")]
    Read(std::io::Error),
    /// The stream ended early.
    #[error("the snapshot ends too early; it was not written or transferred to its end")]
    Truncated,
    /// Not a snapshot.
    #[error("this is not a Lamella snapshot")]
    Magic,
    /// Another version.
    #[error("snapshot version {0}; this Lamella reads version {SNAPSHOT_VERSION}")]
    Version(u32),
    /// The header contradicts itself or its digest.
    #[error("the header of the snapshot is damaged")]
    Header,
    /// A chunk does not fit its digest.
    #[error("chunk {index} of the snapshot is damaged")]
    Chunk {
        /// Which one.
        index: u64,
    },
    /// The last digest is wrong.
    #[error("the snapshot is damaged: its last digest does not fit")]
    Total,
    /// A snapshot of something else.
    #[error("the snapshot is of another {what}: {found}, and this session's is {expected}")]
    Other {
        /// What differs.
        what: &'static str,
        /// In the snapshot.
        found: String,
        /// In the session.
        expected: String,
    },
    /// More tokens than the session can hold.
    #[error("the snapshot holds {position} tokens and the session's context is {context}")]
    Context {
        /// Tokens of the snapshot.
        position: u64,
        /// Tokens the session may hold.
        context: usize,
    },
    /// The header says what cannot be.
    #[error("the snapshot makes no sense: {0}")]
    Meaning(String),
}

/// What stands for values that are in no memory yet.
static ZEROS: [u8; chunks::PIECE] = [0; chunks::PIECE];

/// Fewest bytes of new pages that are worth one mapping, and a thread that asks for its memory.
const LARGE: u64 = 4 << 20;

/// Writes `session` to `sink`.
///
/// # Errors
/// [`SnapshotError::Write`]; [`Error::Allocation`] if the system refuses memory.
pub(crate) fn write(
    identity: &Identity,
    session: &Session,
    sink: &mut dyn Write,
) -> Result<(), Error> {
    let position = session.position;
    let header = Header {
        model: identity.model,
        layers: identity.layers.clone(),
        context: session.context as u64,
        position: position as u64,
        payload: payload_bytes(session, position),
        schema: identity.schema.clone(),
        numeric_class: identity.numeric_class.clone(),
        recent: session.recent.clone(),
    };
    let (bytes, digest) = header.encode();
    sink.write_all(&bytes).map_err(SnapshotError::Write)?;
    Ok(chunks::write(sink, &digest, &parts(session)?)?)
}

/// The bytes of the state, in their order.
fn parts(session: &Session) -> Result<Vec<&[u8]>, Error> {
    let mut parts = Vec::new();
    for item in session.items() {
        if let Some(rows) = item.paged() {
            let pages = rows.needed_pages(session.position);
            room(&mut parts, pages.len())?;
            parts.extend(pages.map(|page| rows.page(page).as_bytes()));
        }
        if let Some(fixed) = item.fixed() {
            let values = fixed.values().as_bytes();
            // What is in no memory yet is zero.
            let zeros = size_of::<f32>() * fixed.len() - values.len();
            room(&mut parts, 2 + zeros / ZEROS.len())?;
            parts.push(values);
            let starts = (0..zeros).step_by(ZEROS.len());
            parts.extend(starts.map(|start| &ZEROS[..ZEROS.len().min(zeros - start)]));
        }
    }
    Ok(parts)
}

/// Replaces the state of `session` by that of the snapshot in `source`, reading not a byte beyond
/// it. Another thread, if there are several, asks for memory meanwhile. `make_room` is told how
/// many bytes it will take.
///
/// # Errors
/// [`SnapshotError`]; [`Error::Memory`] if a limited session has no room for the new state beside
/// its own; [`Error::Allocation`] if the system has none. The session is then as it was.
pub(crate) fn read(
    identity: &Identity,
    session: &mut Session,
    source: &mut dyn Read,
    (threads, make_room): (usize, &dyn Fn(u64) -> Result<(), Error>),
) -> Result<(), Error> {
    let (header, digest) = Header::read(source)?;
    header.check(identity)?;
    let position = check_meaning(&header, identity, session)?;
    let paged = session.items().filter_map(Item::paged);
    let added = paged.map(|rows| rows.needed_pages(position).len() as u64 * rows.page_bytes());
    let added: u64 = added.sum();
    make_room(added.saturating_add(session.growth(0)))?;
    session.prepare()?;
    session.check_limit(added)?;
    let paged = session.items().filter_map(Item::paged);
    let count = paged.map(|rows| rows.needed_pages(position).len()).sum();
    let mut pages = Vec::new();
    room(&mut pages, count)?;
    let mut slab = slab(session, added);
    let read = std::thread::scope(|scope| {
        // A limited address space must have room for the thread's stack.
        let apart = |_: &&Slab| threads > 1 && check_stacks(2).is_ok();
        if let Some(mapping) = slab.as_ref().filter(apart).map(Slab::mapping) {
            let thread = std::thread::Builder::new().name("lamella-populate".to_owned());
            // Without it the memory comes as it is written.
            let _ = thread.spawn_scoped(scope, move || mapping.populate());
        }
        let mut arrival = Arrival::new(source, &digest);
        read_items(session, position, slab.as_mut(), &mut arrival, &mut pages)?;
        Ok(arrival.finish()?)
    });
    let restored = read.and_then(|()| session.adopt(position, pages, header.recent));
    if restored.is_err() {
        let fixed = session.items_mut().filter_map(Item::fixed_mut);
        fixed.for_each(super::Fixed::roll_back);
    }
    restored
}

/// One mapping for new pages of `bytes` bytes, if they are worth it and its last page of the system
/// fits too.
fn slab(session: &Session, bytes: u64) -> Option<Slab> {
    let length = usize::try_from(bytes).ok().filter(|_| bytes >= LARGE)?;
    session.check_limit(Buffer::taken(length)).ok()?;
    Slab::new(length).ok()
}

/// Checks what the header says against the session; the position.
fn check_meaning(
    header: &Header,
    identity: &Identity,
    session: &Session,
) -> Result<usize, SnapshotError> {
    let context = session.context;
    let position = usize::try_from(header.position)
        .ok()
        .filter(|&p| p <= context)
        .ok_or(SnapshotError::Context {
            position: header.position,
            context,
        })?;
    let meaning = |message: String| Err(SnapshotError::Meaning(message));
    if header.position > header.context {
        return meaning(format!(
            "{position} tokens in a context of {}",
            header.context
        ));
    }
    let expected = payload_bytes(session, position);
    if header.payload != expected {
        return meaning(format!(
            "{} bytes of state where {position} tokens have {expected}",
            header.payload
        ));
    }
    let recent = session.history.min(position);
    if header.recent.len() != recent {
        return meaning(format!(
            "{} newest token ids instead of {recent}",
            header.recent.len()
        ));
    }
    let vocabulary = identity.vocabulary;
    if let Some(id) = header.recent.iter().find(|&&id| id as usize >= vocabulary) {
        return meaning(format!("token id {id} of a vocabulary of {vocabulary}"));
    }
    Ok(position)
}

/// Reads all items. Pages are new; overwritten state goes into the copy that a step would write.
fn read_items(
    session: &mut Session,
    position: usize,
    mut slab: Option<&mut Slab>,
    arrival: &mut Arrival<'_>,
    pages: &mut Vec<Page>,
) -> Result<(), Error> {
    for (item, state) in session.items_mut().enumerate() {
        if let Some(rows) = state.paged() {
            for _ in rows.needed_pages(position) {
                let mut page = match &mut slab {
                    Some(slab) => slab.page(rows.page_values(), rows.claim()?)?,
                    None => rows.new_page()?,
                };
                arrival.fill(item, &mut page)?;
                pages.push(page);
            }
        }
        if let Some(fixed) = state.fixed_mut() {
            arrival.fill(item, fixed.overwrite().1)?;
        }
    }
    Ok(())
}

/// Bytes of state at `position`.
fn payload_bytes(session: &Session, position: usize) -> u64 {
    let items = session.items().map(|item| {
        let paged = item.paged().map_or(0, |rows| {
            rows.needed_pages(position).len() as u64 * rows.page_bytes()
        });
        let fixed = item
            .fixed()
            .map_or(0, |f| (size_of::<f32>() * f.len()) as u64);
        paged + fixed
    });
    items.sum()
}

impl Session {
    /// Takes restored state for its own: pages in the order of the items, and what the overwritten
    /// items hold in their second copy.
    ///
    /// # Errors
    /// [`Error::Allocation`] if the system refuses; the rows are then as they were.
    pub(super) fn adopt(
        &mut self,
        position: usize,
        pages: Vec<Page>,
        recent: Vec<u32>,
    ) -> Result<(), Error> {
        let mut pages = pages.into_iter();
        let paged = self.items().filter_map(Item::paged);
        let restored = paged.map(|rows| rows.restored(position, self.context, &mut pages));
        let restored = restored.collect::<Result<Vec<_>, Error>>()?;
        for (rows, new) in self.paged_mut().zip(restored) {
            *rows = new;
        }
        for item in self.items_mut() {
            if let Some(fixed) = item.fixed_mut() {
                fixed.commit();
            }
        }
        self.before.forget();
        self.position = position;
        self.recent.clear();
        self.recent.extend(recent);
        Ok(())
    }
}
