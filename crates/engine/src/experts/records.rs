//! Experts from a model's files: read, checked, and put as the kernels read them.

use super::layers::{Bank, Layers};
use super::reader::Fetch;
use crate::error::Error;
use crate::memory::MemoryLimit;
use crate::options::{Options, ReadAccess, Verify};
use crate::weights::load_rows;
use lamella_container::{ExpertBank, Store};
use lamella_program::Encoding;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The records of a model's files.
pub(super) struct Records {
    source: Arc<Store>,
    layers: Arc<Layers>,
    /// Of each bank whose experts lie in the files as they lie in slots, that bank there.
    whole: Vec<Option<(ExpertBank, Encoding)>>,
    direct: bool,
    verify: Verify,
    /// Records whose bytes were once what they should be.
    verified: Vec<AtomicBool>,
}

impl Records {
    /// The experts `layers` in `source`.
    pub(super) fn new(
        source: Arc<Store>,
        layers: Arc<Layers>,
        access: ReadAccess,
        verify: Verify,
    ) -> Records {
        let whole = layers.banks.iter().map(|bank| whole(&source, bank));
        let whole: Vec<_> = whole.collect();
        let records = layers.records() as usize;
        Records {
            direct: access == ReadAccess::Direct,
            verified: std::iter::repeat_with(AtomicBool::default)
                .take(records)
                .collect(),
            source,
            layers,
            whole,
            verify,
        }
    }

    /// Whether every record is read as it lies, in one piece.
    pub(super) fn all_whole(&self) -> bool {
        self.whole.iter().all(Option::is_some)
    }

    fn once(&self, record: u32, slot: &mut [u8]) -> Result<u64, Error> {
        let at = record as usize;
        let check = match self.verify {
            Verify::Always => true,
            Verify::First => !self.verified[at].load(Ordering::Relaxed),
            Verify::Never => false,
        };
        let (bank, expert) = self.layers.expert_of(record);
        let number = self.layers.bank_of(bank.layer).unwrap_or_default();
        if let Some((whole, encoding)) = &self.whole[number]
            && let Some(place) = self.source.expert_record(whole, expert, *encoding)
        {
            self.source.read_record(&place, self.direct, slot)?;
            if check {
                let bytes = &slot[..place.length as usize];
                self.source.check_expert(whole, expert, *encoding, bytes)?;
                self.verified[at].store(true, Ordering::Relaxed);
            }
            return Ok(place.length);
        }
        for map in &bank.maps {
            let slot = &mut slot[map.place.clone()];
            load_rows(
                &self.source,
                (map.id, expert),
                map.choice,
                0..map.rows,
                slot,
            )?;
        }
        Ok(bank.bytes() as u64)
    }
}

impl Fetch for Records {
    /// Tries twice: a disk may stumble, and what it gave damaged may come whole the next time.
    fn fetch(&self, record: u32, slot: &mut [u8]) -> Result<u64, Error> {
        let read = self.once(record, slot);
        let read = read.or_else(|_| self.once(record, slot));
        read.map_err(|cause| {
            let (bank, expert) = self.layers.expert_of(record);
            Error::Expert {
                layer: bank.layer,
                expert,
                cause: Box::new(cause),
            }
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
    (same && record.is_some()).then(|| (found.clone(), encoding))
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
