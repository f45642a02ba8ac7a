//! Experts from a model's files: read, checked, and put as the kernels read them.

use super::counts::{Counts, add};
use super::layers::{Bank, Layers};
use super::quarantine::{Quarantine, Quarantined};
use super::reader::Fetch;
use crate::error::Error;
use crate::memory::MemoryLimit;
use crate::options::{Options, ReadAccess, Verify};
use crate::weights::load_rows;
use lamella_container::{Access, ExpertBank, ReadQueue, Store};
use lamella_program::Encoding;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use twox_hash::XxHash3_64;

/// The records of a model's files, of which there may be several copies.
pub(super) struct Records {
    copies: Vec<Copy>,
    layers: Arc<Layers>,
    /// Of each bank whose experts lie in the files as they lie in slots, that bank there.
    whole: Vec<Option<(ExpertBank, Encoding)>>,
    access: ReadAccess,
    /// One for each thread that reads, where they read so.
    queues: Vec<Mutex<ReadQueue>>,
    verify: Verify,
    /// Of each record whose bytes were once what they should be, a quick sum of them.
    sums: Vec<AtomicU64>,
    quarantine: Option<Quarantine>,
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
            access,
            queues: Vec::new(),
            sums: std::iter::repeat_with(AtomicU64::default)
                .take(records)
                .collect(),
            copies: sources.into_iter().map(copy).collect(),
            layers,
            whole,
            verify,
            quarantine: None,
            counts,
        }
    }

    /// Has what is found damaged of `model` listed in `dir`.
    pub(super) fn tell(&mut self, dir: &Path, model: [u8; 32]) {
        self.quarantine = Some(Quarantine::load(dir, model));
    }

    /// Makes the queues through which `threads` threads read, if that is the way.
    ///
    /// # Errors
    /// [`Error::Threads`] if the kernel has no more of them.
    pub(super) fn queue(&mut self, threads: usize) -> Result<(), Error> {
        if self.access != ReadAccess::Queued {
            return Ok(());
        }
        let queue = |_| ReadQueue::new().map(Mutex::new);
        let queues: std::io::Result<_> = (0..threads).map(queue).collect();
        self.queues = queues.map_err(|cause| Error::Threads {
            wanted: threads,
            cause,
        })?;
        Ok(())
    }

    /// Whether every record is read as it lies, in one piece.
    pub(super) fn all_whole(&self) -> bool {
        self.whole.iter().all(Option::is_some)
    }

    /// Reads a record from one of the copies, by thread number `thread`.
    fn once(&self, copy: &Copy, thread: usize, record: u32, slot: &mut [u8]) -> Result<u64, Error> {
        let (number, expert) = self.layers.expert_of(record);
        let bank = &self.layers.banks[number];
        let source = &copy.source;
        if let Some((whole, encoding)) = &self.whole[number]
            && let Some(place) = source.expert_record(whole, expert, *encoding)
        {
            let mut sum = Sum::default();
            let mut seen = |piece: &[u8]| sum.add(piece);
            let mut ignored = |_: &[u8]| {};
            let seen: &mut dyn FnMut(&[u8]) = match self.verify {
                Verify::First => &mut seen,
                Verify::Always | Verify::Never => &mut ignored,
            };
            let queue = self.queues.get(thread);
            let mut queue = queue.map(|q| q.lock().unwrap_or_else(PoisonError::into_inner));
            let access = match (&mut queue, self.access) {
                (Some(queue), _) => Access::Queued(queue),
                (None, ReadAccess::Buffered) => Access::Buffered,
                (None, _) => Access::Direct,
            };
            source.read_record(&place, access, slot, seen)?;
            let bytes = &slot[..place.length as usize];
            let digest = || Ok(source.check_expert(whole, expert, *encoding, bytes)?);
            self.check(record, &sum, &digest)?;
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
        let known = match self.sums[record as usize].load(Ordering::Relaxed) {
            0 => &|| Ok(()),
            _ => &changed as Digest<'_>,
        };
        let mut sum = Sum::default();
        if self.verify == Verify::First {
            sum.add(&slot[..bank.bytes()]);
        }
        self.check(record, &sum, known)?;
        Ok(bank.bytes() as u64)
    }

    /// Checks the bytes of a record by their digest; when they have passed once, by their sum,
    /// and by the digest again if that is another one.
    fn check(&self, record: u32, sum: &Sum, digest: Digest<'_>) -> Result<(), Error> {
        match self.verify {
            Verify::Never => Ok(()),
            Verify::Always => digest(),
            Verify::First => {
                let known = &self.sums[record as usize];
                // Never 0, which says that there is none.
                let sum = sum.0 | 1;
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

/// A sum over the pieces of a record in their order, much quicker than a digest.
#[derive(Default)]
struct Sum(u64);

impl Sum {
    fn add(&mut self, piece: &[u8]) {
        self.0 = XxHash3_64::oneshot_with_seed(self.0, piece);
    }
}

/// Says whether bytes are what they should be.
type Digest<'a> = &'a dyn Fn() -> Result<(), Error>;

impl Fetch for Records {
    /// Tries every copy, and a single one twice: a disk may stumble, and what it gave damaged may
    /// come whole the next time.
    fn fetch(&self, thread: usize, record: u32, slot: &mut [u8]) -> Result<u64, Error> {
        let (number, expert) = self.layers.expert_of(record);
        let bank = &self.layers.banks[number];
        let (turns, bytes) = (self.turns(), bank.bytes() as u64);
        let again = turns.iter().take(usize::from(turns.len() == 1));
        let mut first = None;
        for (attempt, copy) in turns.iter().chain(again).enumerate() {
            copy.outstanding.fetch_add(bytes, Ordering::Relaxed);
            let read = self.once(copy, thread, record, slot);
            copy.outstanding.fetch_sub(bytes, Ordering::Relaxed);
            match read {
                Ok(bytes) => return Ok(bytes),
                Err(error) => {
                    add(&self.counts.failures, 1);
                    let last = attempt + 1 >= turns.len().max(2);
                    if let Some(list) = &self.quarantine
                        && is_damage(&error)
                        && (last || turns.len() > 1)
                    {
                        list.add(Quarantined {
                            dir: copy.source.dir().to_owned(),
                            layer: bank.layer,
                            expert,
                            problem: error.to_string(),
                        });
                    }
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

/// Whether it says that bytes were read and are not what they should be.
fn is_damage(error: &Error) -> bool {
    use lamella_container::Error as Found;
    matches!(
        error,
        Error::Container(Found::OperandDigest { .. } | Found::FileDigest { .. })
    )
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
/// model's limit has room there for all of them, through queues of the kernel's where it has such.
///
/// # Errors
/// [`Error::Setting`] if they are to be read past it and cannot be.
pub(crate) fn expert_access(
    source: &Store,
    layers: &Layers,
    options: &Options,
) -> Result<ReadAccess, Error> {
    let direct = || layers.banks.iter().all(|bank| is_direct(source, bank));
    let why = match options.expert_access {
        Some(ReadAccess::Direct | ReadAccess::Queued) if !direct() => match source.is_container() {
            true => "the file system refuses direct reads, or the encoding is made at load",
            false => "a checkpoint's experts are put together from several places",
        },
        Some(ReadAccess::Queued) if ReadQueue::new().is_err() => {
            "the kernel has no io_uring, or this process may not use it"
        }
        Some(access) => return Ok(access),
        None => {
            let free = MemoryLimit::resolve(None).bytes;
            let limit = MemoryLimit::resolve(options.memory_limit).bytes;
            let bytes = u64::from(layers.records()).saturating_mul(layers.slot_bytes());
            let roomy = free.saturating_sub(limit) >= bytes;
            return Ok(match !roomy && direct() {
                true if ReadQueue::new().is_ok() => ReadAccess::Queued,
                true => ReadAccess::Direct,
                false => ReadAccess::Buffered,
            });
        }
    };
    Err(Error::Setting {
        name: "reader",
        message: format!(
            "experts of {} cannot be read as told: {why}; leave the choice, or read them buffered",
            source.dir().display()
        ),
    })
}

/// Whether a bank's experts can be read past the page cache, straight into slots.
fn is_direct(source: &Store, bank: &Bank) -> bool {
    let place =
        whole(source, bank).and_then(|(whole, encoding)| source.expert_record(&whole, 0, encoding));
    place.is_some_and(|place| source.is_direct(place.file))
}
