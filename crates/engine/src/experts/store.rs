//! Experts in memory and on disk: a fixed number of slots, filled as steps ask for them.

use super::cache::{Cache, Place};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::memory::Buffer;
use crate::weights::{Choice, Layout, item_bytes, load_rows};
use lamella_container::Store;
use lamella_kernels::{Matrix, Pool};
use lamella_program::block::{Ffn, GatedUnit, Routed};
use lamella_program::{OperandId, Program};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The experts of one layer.
struct Bank {
    /// The layer's number, the draft's counted behind the others.
    layer: usize,
    /// Record of the layer's first expert.
    first: u32,
    experts: u32,
    maps: [Map; 3],
}

/// Gate, up or down of a layer's experts.
#[derive(Clone)]
struct Map {
    id: OperandId,
    choice: Choice,
    rows: usize,
    cols: usize,
    /// Where it lies in a slot.
    place: Range<usize>,
}

/// Which of an expert's maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// `gate`, inside.
    Gate,
    /// `up`, inside.
    Up,
    /// `down`, back out.
    Down,
}

/// What the experts of a program take that are not all in memory.
pub(crate) struct Layers {
    banks: Vec<Bank>,
    /// Bytes of the largest expert, in whole lines.
    slot: usize,
}

impl Layers {
    /// The routed experts that `choices` hold in a cache; `None` if there are none.
    ///
    /// # Errors
    /// [`Error::Setting`] if a size overflows.
    pub(crate) fn of(program: &Program, choices: &[Choice]) -> Result<Option<Layers>, Error> {
        let (mut banks, mut first, mut slot) = (Vec::new(), 0u32, 0);
        for (layer, block) in program.every_layer().enumerate() {
            let Ffn::Routed(routed) = &block.ffn.body else {
                continue;
            };
            if choices[routed.unit.gate.index()].layout != Layout::Cached {
                continue;
            }
            let mut end = 0;
            let maps = operands(&routed.unit).map(|id| {
                let (operand, choice) = (program.operand(id), choices[id.index()]);
                let bytes = item_bytes(operand, choice)?;
                let place = end..end + bytes;
                end = place.end;
                Ok::<Map, Error>(Map {
                    id,
                    choice,
                    rows: operand.rows(),
                    cols: operand.cols(),
                    place,
                })
            });
            let [gate, up, down] = maps;
            let experts = u32::try_from(routed.experts).unwrap_or(u32::MAX);
            banks.push(Bank {
                layer,
                first,
                experts,
                maps: [gate?, up?, down?],
            });
            first = first.saturating_add(experts);
            slot = slot.max(end);
        }
        Ok((!banks.is_empty()).then_some(Layers { banks, slot }))
    }

    /// Experts of all layers.
    pub(crate) fn records(&self) -> u32 {
        let last = self.banks.last();
        last.map_or(0, |bank| bank.first.saturating_add(bank.experts))
    }

    /// Bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slot as u64
    }

    /// Bytes of the lists for so many experts, beside the slots.
    pub(crate) fn list_bytes(&self) -> u64 {
        /// Of each expert: where it is, when it was used, and each policy's order, twice.
        const EACH: u64 = 192;
        /// The ends of all orders.
        const ORDERS: u64 = 48 << 10;
        u64::from(self.records()).saturating_mul(EACH) + ORDERS
    }
}

/// The maps of a unit.
fn operands(unit: &GatedUnit) -> [OperandId; 3] {
    [unit.gate, unit.up, unit.down]
}

/// Counts that others read while steps go on.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    experts: AtomicU64,
    slots: AtomicU64,
    uses: AtomicU64,
    hits: AtomicU64,
    bytes_read: AtomicU64,
    waited_nanoseconds: AtomicU64,
}

impl Counts {
    /// What was counted so far.
    pub(crate) fn statistics(&self) -> ExpertStatistics {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ExpertStatistics {
            experts: read(&self.experts),
            slots: read(&self.slots),
            uses: read(&self.uses),
            hits: read(&self.hits),
            bytes_read: read(&self.bytes_read),
            waited: Duration::from_nanos(read(&self.waited_nanoseconds)),
        }
    }
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

/// How often what was needed was in memory, and what it took where it was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertStatistics {
    /// Experts there are, of all layers.
    pub experts: u64,
    /// Of those, as many as fit into memory.
    pub slots: u64,
    /// Experts that steps have used, each once a step and layer.
    pub uses: u64,
    /// Of those, found in memory.
    pub hits: u64,
    /// Bytes of the others, as they lie in memory.
    pub bytes_read: u64,
    /// Time that steps have waited for them.
    pub waited: Duration,
}

impl ExpertStatistics {
    /// What was counted after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &ExpertStatistics) -> ExpertStatistics {
        ExpertStatistics {
            uses: self.uses.saturating_sub(earlier.uses),
            hits: self.hits.saturating_sub(earlier.hits),
            bytes_read: self.bytes_read.saturating_sub(earlier.bytes_read),
            waited: self.waited.saturating_sub(earlier.waited),
            ..*self
        }
    }
}

/// Slots, and what is in them.
pub(crate) struct ExpertStore {
    source: Arc<Store>,
    layers: Layers,
    slots: Buffer,
    cache: Cache,
    /// The slot of each expert of the step.
    held: Vec<u32>,
    records: Vec<u32>,
    /// The bank of the held experts.
    bank: usize,
    /// Slots there are.
    most: usize,
    counts: Arc<Counts>,
}

/// An expert on its way into its slot.
struct Load<'s> {
    index: usize,
    slot: &'s mut [u8],
}

impl ExpertStore {
    /// Empty slots, as many as told, for experts read from `source`.
    ///
    /// # Errors
    /// [`Error::Allocation`].
    pub(crate) fn new(source: Arc<Store>, layers: Layers, slots: u32) -> Result<Self, Error> {
        let bytes = layers.slot.checked_mul(slots as usize);
        let records = layers.records();
        Ok(ExpertStore {
            source,
            slots: Buffer::zeroed(bytes.unwrap_or(usize::MAX))?,
            cache: Cache::new(records, slots, None),
            held: Vec::new(),
            records: Vec::new(),
            bank: 0,
            most: slots as usize,
            counts: Arc::new(Counts {
                experts: u64::from(records).into(),
                slots: u64::from(slots).into(),
                ..Counts::default()
            }),
            layers,
        })
    }

    /// Bytes of the slots.
    pub(crate) fn mapped(&self) -> u64 {
        Buffer::taken(self.slots.len())
    }

    /// What is counted.
    pub(crate) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Has the first of `experts` of layer `layer` in memory, as many as there are slots for; how
    /// many that is. [`matrix`](Self::matrix) numbers them in their order.
    ///
    /// # Errors
    /// If reading fails or what is read is damaged: none of those that were not there before is
    /// there then. [`Error::Cancelled`].
    pub(crate) fn hold(
        &mut self,
        layer: usize,
        experts: &[u32],
        pool: &Pool,
        cancel: &Cancel,
    ) -> Result<usize, Error> {
        let bank = match self.layers.banks.binary_search_by_key(&layer, |b| b.layer) {
            Ok(bank) => bank,
            Err(_) => unreachable!("layer {layer} has no experts in a cache"),
        };
        if bank < std::mem::replace(&mut self.bank, bank) {
            self.cache.token();
        }
        let count = experts.len().min(self.most);
        let first = self.layers.banks[bank].first;
        self.records.clear();
        self.records
            .extend(experts[..count].iter().map(|e| first + e));
        self.cache.begin(&self.records);
        self.held.clear();
        let mut missing = Vec::new();
        for (index, &record) in self.records.iter().enumerate() {
            match self.cache.place(record) {
                Place::Here(slot) => self.held.push(slot),
                Place::New(slot) => {
                    self.held.push(slot);
                    missing.push(index);
                }
                Place::Full => unreachable!("no more are asked for than there are slots"),
            }
        }
        add(&self.counts.uses, count as u64);
        add(&self.counts.hits, (count - missing.len()) as u64);
        if missing.is_empty() {
            return Ok(count);
        }
        let start = Instant::now();
        let read = self.read(&mut missing, pool, cancel);
        let waited = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        add(&self.counts.waited_nanoseconds, waited);
        match read {
            Ok(bytes) => add(&self.counts.bytes_read, bytes),
            Err(error) => {
                for index in missing {
                    self.cache.remove(self.records[index]);
                }
                return Err(error);
            }
        }
        Ok(count)
    }

    /// Reads the missing of the held records into their slots; the bytes.
    fn read(&mut self, missing: &mut [usize], pool: &Pool, cancel: &Cancel) -> Result<u64, Error> {
        let (bank, length) = (&self.layers.banks[self.bank], self.layers.slot);
        let (mut rest, mut end) = (&mut self.slots[..], 0);
        let mut loads = Vec::with_capacity(missing.len());
        missing.sort_unstable_by_key(|&index| self.held[index]);
        for &mut index in missing {
            let start = self.held[index] as usize * length;
            let behind = &mut std::mem::take(&mut rest)[start - end..];
            let (slot, behind) = behind.split_at_mut(length);
            loads.push(Mutex::new(Load { index, slot }));
            (rest, end) = (behind, start + length);
        }
        let (source, records) = (&self.source, &self.records);
        let failed = Mutex::new(None);
        pool.run(loads.len(), &|task, _| {
            let mut load = loads[task].lock().unwrap_or_else(PoisonError::into_inner);
            let expert = records[load.index] - bank.first;
            let done = cancel
                .check()
                .and_then(|()| bank.load(source, expert as usize, load.slot));
            if let Err(error) = done {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert(error);
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(bank.maps[2].place.end as u64 * loads.len() as u64),
        }
    }

    /// A map of the held expert number `index`.
    pub(crate) fn matrix(&self, index: usize, which: Which) -> Matrix<'_> {
        let map = &self.layers.banks[self.bank].maps[which as usize];
        let start = self.held[index] as usize * self.layers.slot;
        Matrix {
            encoding: map.choice.resident,
            rows: map.rows,
            cols: map.cols,
            data: &self.slots[start + map.place.start..start + map.place.end],
        }
    }
}

impl Bank {
    fn load(&self, source: &Store, expert: usize, slot: &mut [u8]) -> Result<(), Error> {
        for map in &self.maps {
            let slot = &mut slot[map.place.clone()];
            load_rows(source, (map.id, expert), map.choice, 0..map.rows, slot)?;
        }
        Ok(())
    }
}

/// Operands of routed experts, layer by layer.
pub(crate) fn expert_operands(program: &Program) -> Vec<[OperandId; 3]> {
    let layers = program.every_layer();
    let routed = layers.filter_map(|layer| match &layer.ffn.body {
        Ffn::Routed(Routed { unit, .. }) => Some(operands(unit)),
        _ => None,
    });
    routed.collect()
}
