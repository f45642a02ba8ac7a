//! Reading a whole container and comparing it with its digests.

use crate::container::{Container, read_entry};
use crate::convert::Progress;
use crate::disk::{DataFile, MAX_TEXT_BYTES};
use crate::error::Error;
use crate::store::Store;
use crate::table::RECORD_ALIGN;
use crate::workers::gather;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How much of a container is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Extent {
    /// Everything.
    All,
    /// At most so many records, spread over all files.
    Sample(usize),
}

/// What a verification found.
#[derive(Debug)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Root of the digest tree.
    pub identity: String,
    /// Records read.
    pub records: usize,
    /// Bytes read from packs.
    pub bytes: u64,
    /// Everything that is damaged, in file order; empty for a sound container.
    pub damage: Vec<Error>,
}

/// Reads every byte of the container in `dir` and checks it.
///
/// # Errors
/// If manifest, program or operand table are damaged. Damage of packs and texts, absent ones
/// included, is listed in the report; of what an absent pack holds nothing more is said.
pub fn verify(dir: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<VerifyReport, Error> {
    verify_extent(dir, Extent::All, progress)
}

/// [`verify`], of so much of the records as `extent` says. Manifest, program, table, texts and the
/// sizes of all packs are checked in any case.
///
/// # Errors
/// As [`verify`].
pub fn verify_extent(
    dir: &Path,
    extent: Extent,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<VerifyReport, Error> {
    let (container, faults) = Container::open_damaged(dir)?;
    let mut damage: Vec<(usize, Error)> = faults.into_iter().map(|fault| (0, fault)).collect();
    for entry in &container.manifest.texts {
        damage.extend(read_entry(dir, entry, MAX_TEXT_BYTES).err().map(|e| (0, e)));
    }
    let records = &container.table.records;
    let chosen = chosen(records.len(), extent);
    let total: u64 = chosen.iter().map(|&number| records[number].length).sum();
    let (mut done, mut bytes) = (0, 0);
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let check = |send: &mut dyn FnMut((usize, Vec<Error>)) -> bool| {
        loop {
            let Some(&number) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            if !send((number, check_record(&container, number))) {
                return;
            }
        }
    };
    let take = |(number, found): (usize, Vec<Error>)| {
        let record = &records[number];
        done += 1;
        bytes += record.length;
        damage.extend(found.into_iter().map(|e| (number, e)));
        let operand = container.table.parts[record.parts.start].operand as usize;
        progress(Progress {
            records_done: done,
            records: chosen.len(),
            bytes_done: bytes,
            bytes: total,
            operand: &container.program.operands[operand].name,
        });
        ControlFlow::<()>::Continue(())
    };
    let _ = gather(threads.min(chosen.len()), check, take);
    damage.sort_by_key(|(number, _)| *number);
    Ok(VerifyReport {
        identity: container.manifest.identity.clone(),
        records: chosen.len(),
        bytes,
        damage: damage.into_iter().map(|(_, e)| e).collect(),
    })
}

/// Numbers of the records that are read, of so many: the first, the last, and others at even
/// distances.
fn chosen(records: usize, extent: Extent) -> Vec<usize> {
    match extent {
        Extent::Sample(count) if count < records => {
            let last = (records - 1) as u128;
            let place = |n: usize| (last * n as u128 / (count - 1).max(1) as u128) as usize;
            (0..count).map(place).collect()
        }
        _ => (0..records).collect(),
    }
}

/// Damage of one record: its parts, and the zeros between and behind them.
fn check_record(container: &Container, number: usize) -> Vec<Error> {
    let record = &container.table.records[number];
    let mut damage = Vec::new();
    let mut end = record.offset;
    // What is wrong with an unusable pack has been said.
    let Some(file) = container.file(record.file) else {
        return damage;
    };
    for part in &container.table.parts[record.parts.clone()] {
        let start = record.offset + part.offset;
        match digest_range(file, start, part.length) {
            Ok(digest) if digest == part.digest => {}
            Ok(_) => damage.push(container.damaged(part)),
            Err(e) => damage.push(e),
        }
        damage.extend(check_zeros(file, end, start).err());
        end = start + part.length;
    }
    damage.extend(check_zeros(file, end, end.next_multiple_of(RECORD_ALIGN)).err());
    damage
}

/// BLAKE3 of a range of a file.
pub(crate) fn digest_range(file: &DataFile, start: u64, length: u64) -> Result<[u8; 32], Error> {
    const CHUNK: u64 = 1 << 20;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0u8; length.min(CHUNK) as usize];
    let mut done = 0;
    while done < length {
        let chunk = &mut buffer[..(length - done).min(CHUNK) as usize];
        file.read_at(chunk, start + done)?;
        hasher.update(chunk);
        done += chunk.len() as u64;
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Padding is zero; it has no digest of its own. At most a page long.
fn check_zeros(file: &DataFile, start: u64, end: u64) -> Result<(), Error> {
    let mut padding = vec![0u8; (end - start) as usize];
    file.read_at(&mut padding, start)?;
    match padding.iter().position(|&b| b != 0) {
        None => Ok(()),
        Some(at) => Err(Error::Padding {
            path: file.path.clone(),
            offset: start + at as u64,
        }),
    }
}

impl Store {
    /// Looks at a few places of a checkpoint's weights files for long stretches of zeros, which a
    /// download leaves that reserved its file and stopped. Containers have digests for that.
    ///
    /// # Errors
    /// The first file that has one, or that cannot be read.
    pub fn check_filled(&self) -> Result<(), Error> {
        self.checkpoint().map_or(Ok(()), |c| c.check_filled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_reach_from_end_to_end() {
        assert_eq!(chosen(5, Extent::All), [0, 1, 2, 3, 4]);
        assert_eq!(chosen(5, Extent::Sample(9)), [0, 1, 2, 3, 4]);
        assert_eq!(chosen(101, Extent::Sample(3)), [0, 50, 100]);
        assert_eq!(chosen(9, Extent::Sample(1)), [0]);
        assert!(chosen(9, Extent::Sample(0)).is_empty() && chosen(0, Extent::All).is_empty());
    }
}
