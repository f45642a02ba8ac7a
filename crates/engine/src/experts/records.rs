//! Experts from a model's files: read, checked, and put as the kernels read them.

use super::counts::{Counts, add};
use super::layers::{Bank, Layers};
use super::reader::Fetch;
use crate::error::Error;
use crate::memory::MemoryLimit;
use crate::options::{Options, ReadAccess, Verify};
use crate::weights::load_rows;
use lamella_container::{ExpertBank, Store};
use lamella_program::Encoding;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use twox_hash::XxHash3_64;

/// The records of a model's files, of which there may be several copies.
pub(super) struct Records {
    copies: Vec<Copy>,
    layers: Arc<Layers>,
    /// Of each bank whose experts lie in the files as they lie in slots, that bank there.
    whole: Vec<Option<(ExpertBank, Encoding)>>,
    direct: bool,
    verify: Verify,
    /// Of each record whose bytes were once what they should be, a quick sum of them.
    sums: Vec<AtomicU64>,
    counts: Arc<Counts>,
}

/// The same files on another disk.
struct Copy {
    source: Arc<Store>,
    /// Bytes that are being read from it.
    outstanding: AtomicU64,
}

impl Records {
    /// The experts `layers`, which each of `sources` has.
    pub(super) fn new(
        sources: Vec<Arc<Store>>,
        layers: Arc<Layers>,
        (access, verify): (ReadAccess, Verify),
        counts: Arc<Counts>,
    ) -> Records {
        let whole = layers.banks.iter().map(|bank| whole(&sources[0], bank));
        let whole: Vec<_> = whole.collect();
        let records = layers.records() as usize;
        let copy = |source| Copy {
            source,
            outstanding: AtomicU64::new(0),
        };
        Records {
            direct: access == ReadAccess::Direct,
            sums: std::iter::repeat_with(AtomicU64::default)
                .take(records)
                .collect(),
            copies: sources.into_iter().map(copy).collect(),
            layers,
            whole,
            verify,
            counts,
        }
    }

    /// Whether every record is read as it lies, in one piece.
    pub(super) fn all_whole(&self) -> bool {
        self.whole.iter().all(Option::is_some)
    }

    /// Reads a record from one of the copies.
    fn once(&self, copy: &Copy, record: u32, slot: &mut [u8]) -> Result<u64, Error> {
        let (number, expert) = self.layers.expert_of(record);
        let bank = &self.layers.banks[number];
        let source = &copy.source;
        if let Some((whole, encoding)) = &self.whole[number]
            && let Some(place) = source.expert_record(whole, expert, *encoding)
        {
            source.read_record(&place, self.direct, slot)?;
            let bytes = &slot[..place.length as usize];
            let digest = || Ok(source.check_expert(whole, expert, *encoding, bytes)?);
            self.check(record, bytes, &digest)?;
            return Ok(place.length);
        }
        for map in &bank.maps {
            let slot = &mut slot[map.place.clone()];
            let id = (map.id, expert);
            load_rows(source, id, map.choice, 0..map.rows, slot)?;
        }
        // Reading so has checked the digests, where there are any.
        let changed = || {
            Err(Error::File {
                path: source.dir().to_owned(),
                message: "a file is not what it was when it was first read; it was changed or \
                          damaged while the model was open"
                    .to_owned(),
            })
        };
        let sum = self.sums[record as usize].load(Ordering::Relaxed);
        let known = if sum == 0 {
            &|| Ok(())
        } else {
            &changed as Digest<'_>
        };
        self.check(record, &slot[..bank.bytes()], known)?;
        Ok(bank.bytes() as u64)
    }

    /// Checks the bytes of a record by their digest; when they have passed once, by a sum that is
    /// much quicker, and by the digest again if that is another one.
    fn check(&self, record: u32, bytes: &[u8], digest: Digest<'_>) -> Result<(), Error> {
        match self.verify {
            Verify::Never => Ok(()),
            Verify::Always => digest(),
            Verify::First => {
                let known = &self.sums[record as usize];
                // Never 0, which says that there is none.
                let sum = XxHash3_64::oneshot(bytes) | 1;
                if known.load(Ordering::Relaxed) != sum {
                    digest()?;
                    known.store(sum, Ordering::Relaxed);
                }
                Ok(())
            }
        }
    }

    /// The copies, those first that have the least to do.
    fn turns(&self) -> Vec<&Copy> {
        let mut copies: Vec<&Copy> = self.copies.iter().collect();
        copies.sort_by_key(|copy| copy.outstanding.load(Ordering::Relaxed));
        copies
    }
}

/// Says whether bytes are what they should be.
type Digest<'a> = &'a dyn Fn() -> Result<(), Error>;

impl Fetch for Records {
    /// Tries every copy, and a single one twice: a disk may stumble, and what it gave damaged may
    /// come whole the next time.
    fn fetch(&self, record: u32, slot: &mut [u8]) -> Result<u64, Error> {
        let (number, expert) = self.layers.expert_of(record);
        let bank = &self.layers.banks[number];
        let (turns, bytes) = (self.turns(), bank.bytes() as u64);
        let again = turns.iter().take(usize::from(turns.len() == 1));
        let mut first = None;
        for copy in turns.iter().chain(again) {
            copy.outstanding.fetch_add(bytes, Ordering::Relaxed);
            let read = self.once(copy, record, slot);
            copy.outstanding.fetch_sub(bytes, Ordering::Relaxed);
            match read {
                Ok(bytes) => return Ok(bytes),
                Err(error) => {
                    add(&self.counts.failures, 1);
                    first.get_or_insert(error);
                }
            }
        }
        let none = Error::Stopped {
            doing: "reading an expert",
        };
        Err(Error::Expert {
            layer: bank.layer,
            expert,
            cause: Box::new(first.unwrap_or(none)),
        })
    }
}

/// The bank in the files, if its experts lie there in one piece that slots take as it is.
fn whole(source: &Store, bank: &Bank) -> Option<(ExpertBank, Encoding)> {
    let encoding = bank.maps[0].choice.stored;
    let as_is = bank.maps.iter().all(|map| {
        let choice = map.choice;
        choice.stored == encoding && choice.resident == encoding && encoding.is_tiled()
    });
    let found = source.bank(bank.layer).filter(|_| as_is)?;
    let layout = source.expert_layout(found, encoding)?;
    let ranges = [&layout.gate, &layout.up, &layout.down];
    let same = ranges
        .into_iter()
        .zip(&bank.maps)
        .all(|(there, here)| there.start == here.place.start && there.end <= here.place.end);
    let record = source.expert_record(found, 0, encoding);
    (same && record.is_some()).then_some((*found, encoding))
}

/// How the experts of `source` are read: as told, or past the page cache unless memory beyond the
/// model's limit has room there for all of them.
///
/// # Errors
/// [`Error::Setting`] if they are to be read past it and cannot be.
pub(crate) fn expert_access(
    source: &Store,
    layers: &Layers,
    options: &Options,
) -> Result<ReadAccess, Error> {
    let direct = || layers.banks.iter().all(|bank| is_direct(source, bank));
    match options.expert_access {
        Some(ReadAccess::Direct) if !direct() => {
            let why = match source.is_container() {
                true => "the file system refuses direct reads, or the encoding is made at load",
                false => "a checkpoint's experts are put together from several places",
            };
            Err(Error::Setting {
                name: "reader",
                message: format!(
                    "experts of {} cannot be read past the page cache: {why}; read them buffered",
                    source.dir().display()
                ),
            })
        }
        Some(access) => Ok(access),
        None => {
            let free = MemoryLimit::resolve(None).bytes;
            let limit = MemoryLimit::resolve(options.memory_limit).bytes;
            let bytes = u64::from(layers.records()).saturating_mul(layers.slot_bytes());
            let roomy = free.saturating_sub(limit) >= bytes;
            Ok(match !roomy && direct() {
                true => ReadAccess::Direct,
                false => ReadAccess::Buffered,
            })
        }
    }
}

/// Whether a bank's experts can be read past the page cache, straight into slots.
fn is_direct(source: &Store, bank: &Bank) -> bool {
    let place =
        whole(source, bank).and_then(|(whole, encoding)| source.expert_record(&whole, 0, encoding));
    place.is_some_and(|place| source.is_direct(place.file))
}
