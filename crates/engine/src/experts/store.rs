//! Experts in memory and on disk: a fixed number of slots, filled while steps go on.

use super::cache::{Cache, Place};
use super::counts::{Counts, add, nanoseconds};
use super::heat::Heat;
use super::layers::{Layers, Which};
use super::reader::{Fetch, Finished, Job, Priority, Reader};
use super::records::Records;
use super::slots::Slots;
use crate::cancel::Cancel;
use crate::error::Error;
use crate::ledger::{Claim, Ledger};
use crate::options::{Options, ReadAccess};
use lamella_container::Store;
use lamella_kernels::Matrix;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What a layer will probably need that was not in memory when that was said.
#[derive(Default)]
struct Foreseen {
    bank: usize,
    /// With their rank: how many seemed more certain.
    records: Vec<(u32, usize)>,
    /// Whether there is no doubt.
    certain: bool,
}

/// Of what was foreseen of a layer with some rank, the share that it then needed: below this, it is
/// not read ahead.
const USEFUL: f32 = 0.6;

/// Ranks that are told apart.
const RANKS: usize = 16;

/// Slots, what is in them, and who fills them.
///
/// A slot is the reader's from the submission of its job until the job is finished or withdrawn:
/// the cache calls it loading so long, gives it to nobody else, and nobody looks into it.
pub(crate) struct ExpertStore {
    reader: Reader,
    layers: Arc<Layers>,
    slots: Arc<Slots>,
    cache: Cache,
    /// Records of the step that are held, and their slots.
    records: Vec<u32>,
    held: Vec<u32>,
    /// Which of the held have not been told to be there yet, and which were just now.
    pending: Vec<u32>,
    fresh: Vec<u32>,
    finished: Vec<Finished>,
    withdrawn: Vec<Job>,
    /// Whether anything is read before a step asks for it.
    ahead: bool,
    /// What was foreseen of the running layer, and of the next.
    due: Foreseen,
    next: Foreseen,
    /// Of each bank and rank, how much of what was foreseen was needed lately.
    useful: Vec<[f32; RANKS]>,
    /// The bank of the held experts.
    bank: usize,
    /// Counts what was held.
    step: u64,
    /// Slots there are, and those that are given up.
    most: usize,
    retired: Vec<u32>,
    /// The memory of the slots, where others want some of it.
    claim: Option<Claim>,
    /// What was used lately, where that is kept.
    heat: Option<Heat>,
    counts: Arc<Counts>,
}

impl ExpertStore {
    /// Empty slots, as many as told, for experts read as told from `sources`, which all have all;
    /// `threads` threads put them as the kernels read them, where they do not lie so.
    ///
    /// # Errors
    /// [`Error::Allocation`], [`Error::Threads`].
    pub(crate) fn new(
        sources: Vec<Arc<Store>>,
        layers: Layers,
        count: u32,
        threads: usize,
        access: ReadAccess,
        options: &Options,
    ) -> Result<Self, Error> {
        /// Reads on their way at once from each copy: one is finished while others are at the disk.
        const READERS: usize = 4;
        let (layers, counts) = (Arc::new(layers), Arc::new(Counts::default()));
        let readers = READERS * sources.len();
        let first = Arc::clone(&sources[0]);
        let how = (access, options.expert_verify);
        let mut records = Records::new(sources, Arc::clone(&layers), how, Arc::clone(&counts));
        if let Some(dir) = options.quarantine.as_ref().filter(|_| first.is_container()) {
            records.tell(dir, first.fingerprint()?);
        }
        counts.reads_by(access);
        let threads = match records.all_whole() {
            true => readers,
            false => threads,
        };
        let threads = threads.min(count as usize);
        records.queue(threads)?;
        let how = (threads, options.expert_ahead);
        Self::over(Arc::new(records), layers, count, how, counts)
    }

    /// Empty slots, as many as told, for experts that `threads` threads get from `fetch`.
    ///
    /// # Errors
    /// [`Error::Allocation`], [`Error::Threads`].
    pub(super) fn over(
        fetch: Arc<dyn Fetch>,
        layers: Arc<Layers>,
        count: u32,
        (threads, ahead): (usize, bool),
        counts: Arc<Counts>,
    ) -> Result<Self, Error> {
        let records = layers.records();
        counts.experts.store(records.into(), Ordering::Relaxed);
        counts.slots.store(count.into(), Ordering::Relaxed);
        let slots = Arc::new(Slots::new(count, layers.slot)?);
        Ok(ExpertStore {
            reader: Reader::new(fetch, Arc::clone(&slots), threads)?,
            slots,
            cache: Cache::new(records, count, None),
            records: Vec::new(),
            held: Vec::new(),
            pending: Vec::new(),
            fresh: Vec::new(),
            finished: Vec::new(),
            withdrawn: Vec::new(),
            ahead,
            due: Foreseen::default(),
            next: Foreseen::default(),
            useful: vec![[USEFUL; RANKS]; layers.banks.len()],
            bank: 0,
            step: 0,
            most: count as usize,
            retired: Vec::new(),
            claim: None,
            heat: None,
            counts,
            layers,
        })
    }

    /// Has the memory of the slots claimed from `ledger`.
    ///
    /// # Errors
    /// [`Error::Memory`] if it has no room for them.
    pub(crate) fn charge(&mut self, ledger: &Arc<Ledger>) -> Result<(), Error> {
        self.claim = Some(ledger.claim(self.most as u64 * self.layers.slot_bytes())?);
        Ok(())
    }

    /// Gives up slots until others may claim `bytes`, or a single one is left; takes some back if
    /// there is room beyond that.
    ///
    /// # Errors
    /// If waiting for what is on its way into slots fails.
    pub(crate) fn make_room(&mut self, bytes: u64) -> Result<(), Error> {
        let Some(claim) = &self.claim else {
            return Ok(());
        };
        let (ledger, slot) = (claim.ledger(), self.layers.slot_bytes());
        let count = match ledger.short(bytes) {
            0 => {
                let more = ledger.left().saturating_sub(bytes) / slot;
                self.most + more.min(self.retired.len() as u64) as usize
            }
            short => {
                let fewer = short.div_ceil(slot).min(self.most as u64 - 1);
                self.give_up(fewer as usize)?;
                self.most
            }
        };
        let Some(claim) = &mut self.claim else {
            return Ok(());
        };
        // Somebody else may have been quicker: then there are no more slots.
        if claim.resize(count as u64 * slot).is_ok() {
            while self.most < count {
                let Some(slot) = self.retired.pop() else {
                    break;
                };
                self.cache.restore(slot);
                self.most += 1;
            }
        }
        self.counts.slots.store(self.most as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Gives up `count` slots.
    fn give_up(&mut self, count: usize) -> Result<(), Error> {
        // Nothing is in use between steps.
        self.records.clear();
        self.cache.begin(&[]);
        for _ in 0..count {
            let slot = loop {
                match self.cache.retire() {
                    Some(slot) => break slot,
                    // The rest is on its way.
                    None => self.empty_a_slot(&Cancel::new())?,
                }
            };
            // SAFETY: no record has the slot, so nobody reads or fills it.
            unsafe { self.slots.forget(slot) };
            self.retired.push(slot);
            self.most -= 1;
        }
        Ok(())
    }

    /// Keeps in `dir` what is used of `model`, and begins to read what was used last time, of which
    /// the hottest leave last: as many as `pinned` percent of the slots.
    pub(crate) fn warm(&mut self, dir: &Path, model: [u8; 32], pinned: u8) {
        let heat = Heat::load(dir, model, self.layers.records());
        let hottest = heat.hottest();
        let pins = self.most * usize::from(pinned.min(100)) / 100;
        hottest.iter().take(pins).for_each(|&r| self.cache.pin(r));
        for &record in hottest.iter().take(self.most) {
            self.order(record, Priority::Warm);
        }
        self.heat = Some(heat);
    }

    /// A token has gone through all layers.
    fn token(&mut self) {
        self.cache.token();
        if let Some((policy, regret)) = self.cache.choice() {
            self.counts.chooses(policy, regret);
        }
        self.heat.iter_mut().for_each(Heat::token);
    }

    /// Bytes of the slots.
    pub(crate) fn mapped(&self) -> u64 {
        self.slots.mapped()
    }

    /// What is counted.
    pub(crate) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Takes the first of `experts` of layer `layer` into memory, or orders them to come; how many
    /// those are: all if there are slots for all of them, otherwise so many that others may come
    /// meanwhile. [`arrive`](Self::arrive) tells which are there, by their number among these.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub(crate) fn hold(
        &mut self,
        layer: usize,
        experts: &[u32],
        cancel: &Cancel,
    ) -> Result<usize, Error> {
        let bank = self.bank_of(layer);
        if bank < std::mem::replace(&mut self.bank, bank) {
            self.token();
        }
        // What was expected of this layer and not begun: it is needed now, or was a mistake.
        let of = self.range_of(bank);
        self.withdraw(&|job, priority| priority == Priority::Ahead && of.contains(&job.record));
        self.step += 1;
        self.records.clear();
        self.reader.collect(&mut self.finished);
        self.settle()?;
        self.judge(bank, experts);
        let count = match experts.len() {
            all if all <= self.most => all,
            _ => (self.most / 2).max(1),
        };
        self.records
            .extend(experts[..count].iter().map(|e| of.start + e));
        self.cache.begin(&self.records);
        for &record in &self.records {
            self.heat.iter_mut().for_each(|heat| heat.touch(record));
        }
        let placed = self.place_all(cancel);
        if placed.is_err() {
            self.abandon();
        }
        placed.map(|()| count)
    }

    /// Places all records of the step.
    fn place_all(&mut self, cancel: &Cancel) -> Result<(), Error> {
        self.held.clear();
        self.pending.clear();
        let mut hits = 0;
        for index in 0..self.records.len() {
            let (slot, found) = self.place(self.records[index], cancel)?;
            self.held.push(slot);
            self.pending.push(index as u32);
            hits += u64::from(found);
        }
        if hits < self.records.len() as u64 {
            self.reader.begin();
        }
        add(&self.counts.uses, self.records.len() as u64);
        add(&self.counts.hits, hits);
        Ok(())
    }

    /// Gives up the step: what nobody has begun is not read any more.
    fn abandon(&mut self) {
        self.pending.clear();
        self.withdraw(&|_, _| true);
    }

    /// Orders experts of `layer` that a step will perhaps need, as far as there is room.
    pub(crate) fn expect(&mut self, layer: usize, experts: &[u32]) {
        if !self.ahead {
            return;
        }
        let first = self.range_of(self.bank_of(layer)).start;
        for expert in experts {
            if !self.order(first + expert, Priority::Ahead) {
                return;
            }
        }
    }

    /// Whether it is of use to know what `layer` will need.
    pub(crate) fn looks_ahead(&self, layer: usize) -> bool {
        self.ahead && self.layers.bank_of(layer).is_some()
    }

    /// Takes note that `layer`, the next one, will need `experts`: certainly, or probably. With
    /// each comes its rank, 0 for what is most certain; they are in the order of their ranks.
    pub(crate) fn foresee(&mut self, layer: usize, experts: &[(u32, usize)], certain: bool) {
        let bank = self.bank_of(layer);
        let first = self.range_of(bank).start;
        std::mem::swap(&mut self.due, &mut self.next);
        self.next.bank = bank;
        self.next.certain = certain;
        self.next.records.clear();
        let records = experts.iter().map(|&(expert, rank)| (first + expert, rank));
        let cache = &self.cache;
        self.next
            .records
            .extend(records.filter(|&(record, _)| !cache.has(record)));
    }

    /// Orders what was foreseen of the next layer, as far as that has been of use there.
    pub(crate) fn expect_foreseen(&mut self) {
        let useful = self.useful[self.next.bank];
        let certain = self.next.certain;
        let records = std::mem::take(&mut self.next.records);
        let wanted = records
            .iter()
            .filter(|&&(_, rank)| certain || useful[rank.min(RANKS - 1)] >= USEFUL);
        // What is read ahead should not drive out everything else.
        for &(record, _) in wanted.take(self.most / 2) {
            if !self.order(record, Priority::Ahead) {
                break;
            }
        }
        self.next.records = records;
    }

    /// Orders a record that is not needed yet; whether there was room.
    fn order(&mut self, record: u32, priority: Priority) -> bool {
        match self.cache.place_ahead(record) {
            Place::New(slot) => {
                add(&self.counts.ahead, 1);
                let step = 0;
                self.reader.submit(Job { record, slot, step }, priority);
                if priority == Priority::Warm {
                    self.cache.trust(record);
                }
                true
            }
            Place::Here(_) => true,
            Place::Full => false,
        }
    }

    /// Learns from what was foreseen of a layer that now uses `experts`.
    fn judge(&mut self, bank: usize, experts: &[u32]) {
        /// Weight of one record that was foreseen.
        const STEP: f32 = 1.0 / 64.0;
        let due = match (self.due.bank == bank, self.next.bank == bank) {
            (true, _) => &mut self.due,
            (_, true) => &mut self.next,
            _ => return,
        };
        let first = self.layers.banks[bank].first;
        for (record, rank) in due.records.drain(..) {
            let used = experts.binary_search(&(record - first)).is_ok();
            if !used {
                self.cache.mistaken(record);
            }
            if !due.certain {
                let target = if used { 1.0 } else { 0.0 };
                let useful = &mut self.useful[bank][rank.min(RANKS - 1)];
                *useful += STEP * (target - *useful);
            }
        }
    }

    /// Lists those of the held as [`fresh`](Self::fresh) that have come since the last call; waits
    /// if there are none, unless all had come.
    ///
    /// # Errors
    /// If reading one fails or what is read is damaged; [`Error::Cancelled`].
    pub(crate) fn arrive(&mut self, cancel: &Cancel) -> Result<(), Error> {
        self.fresh.clear();
        self.list_fresh();
        if self.fresh.is_empty() && !self.pending.is_empty() {
            self.wait(cancel)?;
        }
        let fresh = &self.fresh;
        self.pending.retain(|index| !fresh.contains(index));
        Ok(())
    }

    /// Those of the held that came with the last call of [`arrive`](Self::arrive), by their number.
    pub(crate) fn fresh(&self) -> &[u32] {
        &self.fresh
    }

    /// How many of the held, from the first on, are there.
    pub(crate) fn ready(&self) -> usize {
        let first = self.pending.first();
        first.map_or(self.held.len(), |&index| index as usize)
    }

    fn list_fresh(&mut self) {
        let (cache, records) = (&self.cache, &self.records);
        let there = |index: &u32| !cache.is_loading(records[*index as usize]);
        self.fresh
            .extend(self.pending.iter().copied().filter(there));
    }

    /// Waits until some of the pending are there, and lists them as fresh.
    fn wait(&mut self, cancel: &Cancel) -> Result<(), Error> {
        let start = Instant::now();
        let mut result = Ok(());
        while self.fresh.is_empty() && result.is_ok() {
            result = self.reader.wait(cancel, &mut self.finished);
            let settled = self.settle();
            result = result.and(settled);
            self.list_fresh();
        }
        add(
            &self.counts.waited_nanoseconds,
            nanoseconds(start.elapsed()),
        );
        let busy = nanoseconds(self.reader.busy());
        self.counts.busy_nanoseconds.store(busy, Ordering::Relaxed);
        if result.is_err() {
            self.abandon();
        }
        result
    }

    /// A map of the held expert number `index`, which has arrived.
    pub(crate) fn matrix(&self, index: usize, which: Which) -> Matrix<'_> {
        let map = &self.layers.banks[self.bank].maps[which as usize];
        // SAFETY: the record has arrived, and stays in its slot until the next step of the store,
        // which needs `&mut self`.
        let slot = unsafe { self.slots.read(self.held[index]) };
        Matrix {
            encoding: map.choice.resident,
            rows: map.rows,
            cols: map.cols,
            data: &slot[map.place.clone()],
        }
    }

    fn bank_of(&self, layer: usize) -> usize {
        match self.layers.bank_of(layer) {
            Some(bank) => bank,
            None => unreachable!("layer {layer} has no experts in a cache"),
        }
    }

    fn range_of(&self, bank: usize) -> std::ops::Range<u32> {
        let bank = &self.layers.banks[bank];
        bank.first..bank.first + bank.experts
    }

    /// The slot of a record of the step, and whether it is there; ordered if it is not.
    fn place(&mut self, record: u32, cancel: &Cancel) -> Result<(u32, bool), Error> {
        loop {
            match self.cache.place(record) {
                Place::Here(slot) => {
                    let loading = self.cache.is_loading(record);
                    if loading {
                        self.reader.hurry(record);
                    }
                    if self.cache.was_ahead(record) {
                        add(&self.counts.ahead_used, 1);
                    }
                    return Ok((slot, !loading));
                }
                Place::New(slot) => {
                    let step = self.step;
                    self.reader
                        .submit(Job { record, slot, step }, Priority::Demand);
                    return Ok((slot, false));
                }
                Place::Full => self.empty_a_slot(cancel)?,
            }
        }
    }

    /// Slots are full of what is expected: takes that back, or waits until it is there and may
    /// leave.
    fn empty_a_slot(&mut self, cancel: &Cancel) -> Result<(), Error> {
        if self.withdraw(&|_, priority| priority != Priority::Demand) > 0 {
            return Ok(());
        }
        self.reader.wait(cancel, &mut self.finished)?;
        self.settle()
    }

    /// Takes back what nobody has begun; how many.
    fn withdraw(&mut self, which: &dyn Fn(Job, Priority) -> bool) -> usize {
        self.withdrawn.clear();
        self.reader.withdraw(which, &mut self.withdrawn);
        for job in &self.withdrawn {
            if self.cache.was_ahead(job.record) {
                self.counts.ahead.fetch_sub(1, Ordering::Relaxed);
            }
            self.cache.remove(job.record);
        }
        self.withdrawn.len()
    }

    /// Takes note of what was finished.
    ///
    /// # Errors
    /// The first of those that met records of the step and were read for it. What was begun for
    /// another reason is read again, since the disk may be sound by now; what the step does not
    /// need is gone as if never ordered.
    fn settle(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        for Finished { job, result: read } in self.finished.drain(..) {
            match read {
                Ok(bytes) => {
                    add(&self.counts.bytes_read, bytes);
                    self.cache.loaded(job.record);
                }
                Err(error) => {
                    let needed = self.records.contains(&job.record);
                    if needed && job.step != self.step {
                        let job = Job {
                            step: self.step,
                            ..job
                        };
                        self.reader.submit(job, Priority::Demand);
                        continue;
                    }
                    self.cache.remove(job.record);
                    if needed && result.is_ok() {
                        result = Err(error);
                    }
                }
            }
        }
        result
    }
}

impl Drop for ExpertStore {
    fn drop(&mut self) {
        // What is lost is only what made the next start quicker, and nobody is there to be told.
        let saved = self.heat.as_mut().map_or(Ok(()), Heat::save);
        drop(saved);
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
