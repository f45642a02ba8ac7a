//! The journal of an unfinished conversion: which records are on disk, with their digests.
//!
//! A header that binds it to source and plan, then entries. Each entry carries a check over itself
//! and the header, so that a torn tail is seen and dropped; the records it spoke of are made again.

use super::plan::Plan;
use crate::disk;
use crate::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"LAMJRNL1";
const HEADER_BYTES: usize = 8 + 32 + 32 + CHECK_BYTES;
const CHECK_BYTES: usize = 8;

/// A part that is on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) digest: [u8; 32],
    /// Whether it is a matrix and all its weights are zero.
    pub(super) zero: bool,
}

/// A record that is on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) record: u32,
    pub(super) parts: Vec<Made>,
}

/// What a journal belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) source: [u8; 32],
    pub(super) plan: [u8; 32],
}

impl Binding {
    fn header(&self) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &self.source, &self.plan].concat();
        bytes.extend_from_slice(&check(&[], &bytes));
        bytes
    }

    /// The binding at the head of a journal, or `None` if there is no whole header.
    pub(super) fn read(bytes: &[u8]) -> Option<Binding> {
        let (body, end) = bytes
            .get(..HEADER_BYTES)?
            .split_at(HEADER_BYTES - CHECK_BYTES);
        if !body.starts_with(MAGIC) || end != check(&[], body) {
            return None;
        }
        let binding = Binding {
            source: body[8..40].try_into().ok()?,
            plan: body[40..72].try_into().ok()?,
        };
        Some(binding)
    }
}

fn check(header: &[u8], body: &[u8]) -> [u8; CHECK_BYTES] {
    let mut hasher = blake3::Hasher::new_derive_key("lamella conversion journal v1");
    hasher.update(header);
    hasher.update(body);
    let mut out = [0; CHECK_BYTES];
    out.copy_from_slice(&hasher.finalize().as_bytes()[..CHECK_BYTES]);
    out
}

/// An open journal, positioned at its end.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    header: Vec<u8>,
}

impl Journal {
    /// Starts a journal that already holds `entries`: written beside the old one, then renamed.
    pub(super) fn create(
        path: &Path,
        binding: &Binding,
        entries: &[Entry],
    ) -> Result<Journal, Error> {
        let beside = path.with_extension("new");
        let wrap = |e| super::workshop::write_error(&beside, e);
        let file = disk::open_to_write(&beside, true).map_err(wrap)?;
        let header = binding.header();
        let mut journal = Journal {
            path: beside.clone(),
            file,
            header,
        };
        let mut bytes = journal.header.clone();
        for entry in entries {
            journal.encode(entry, &mut bytes);
        }
        journal.write(&bytes)?;
        std::fs::rename(&beside, path).map_err(wrap)?;
        journal.path = path.to_owned();
        Ok(journal)
    }

    /// Appends entries whose records are durable.
    pub(super) fn append(&mut self, entries: &[Entry]) -> Result<(), Error> {
        let mut bytes = Vec::new();
        for entry in entries {
            self.encode(entry, &mut bytes);
        }
        self.write(&bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = self
            .file
            .write_all(bytes)
            .and_then(|()| self.file.sync_data());
        written.map_err(|e| super::workshop::write_error(&self.path, e))
    }

    fn encode(&self, entry: &Entry, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&entry.record.to_le_bytes());
        for part in &entry.parts {
            out.push(u8::from(part.zero));
            out.extend_from_slice(&part.digest);
        }
        let end = check(&self.header, &out[start..]);
        out.extend_from_slice(&end);
    }
}

/// The entries of a journal up to the first that is torn; of several for one record the last.
pub(super) fn read_entries(bytes: &[u8], plan: &Plan) -> Vec<Entry> {
    let Some((header, mut rest)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Vec::new();
    };
    let mut entries: Vec<Entry> = Vec::new();
    let mut position = vec![None; plan.records.len()];
    while let Some((entry, tail)) = read_entry(header, rest, plan) {
        rest = tail;
        let place = &mut position[entry.record as usize];
        match *place {
            Some(at) => entries[at] = entry,
            None => {
                *place = Some(entries.len());
                entries.push(entry);
            }
        }
    }
    entries
}

fn read_entry<'b>(header: &[u8], bytes: &'b [u8], plan: &Plan) -> Option<(Entry, &'b [u8])> {
    let (number, _) = bytes.split_first_chunk::<4>()?;
    let record = u32::from_le_bytes(*number);
    let count = plan.records.get(record as usize)?.parts.len();
    let (body, rest) = bytes.split_at_checked(4 + 33 * count)?;
    let (end, rest) = rest.split_at_checked(CHECK_BYTES)?;
    if end != check(header, body) {
        return None;
    }
    let made = |b: &[u8]| {
        Some(Made {
            zero: b[0] != 0,
            digest: b[1..].try_into().ok()?,
        })
    };
    let parts = body[4..]
        .chunks_exact(33)
        .map(made)
        .collect::<Option<_>>()?;
    Some((Entry { record, parts }, rest))
}
