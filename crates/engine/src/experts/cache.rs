//! Which records are in memory, and where.

use super::chooser::Chooser;
use super::lists::Lists;
use super::policy::{Policy, PolicyKind};

/// No slot, or no record.
const NONE: u32 = u32::MAX;

/// Records that a step may come to use soon.
const AWAITED: u32 = 0;
/// Records that the step did not use for which they came: the first to leave.
const MISTAKEN: u32 = 1;

/// A fixed number of slots for more records than that.
pub(super) struct Cache {
    /// The slot of each record, or [`NONE`].
    slots: Vec<u32>,
    /// Slots without a record.
    free: Vec<u32>,
    /// Every policy follows what is here and was used, so that any can take over.
    policies: Vec<Box<dyn Policy>>,
    active: usize,
    chooser: Option<Chooser>,
    /// The last step that used each record, to keep those of the running one.
    used: Vec<u64>,
    step: u64,
    /// What is on its way into its slot, and what was ordered before a step asked for it.
    loading: Vec<bool>,
    ahead: Vec<bool>,
    /// What no step has used yet, and no policy knows.
    unused: Lists,
    /// What leaves last.
    pinned: Vec<bool>,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is in this slot.
    Here(u32),
    /// It is not here, but this slot is now its own.
    New(u32),
    /// All slots are in use.
    Full,
}

impl Cache {
    /// `slots` slots for `records` records, under one policy, or under the best of all of them as
    /// it turns out.
    pub(super) fn new(records: u32, slots: u32, policy: Option<PolicyKind>) -> Cache {
        let all = policy.map_or(PolicyKind::ALL.to_vec(), |kind| vec![kind]);
        Cache {
            slots: vec![NONE; records as usize],
            free: (0..slots).rev().collect(),
            policies: all.iter().map(|kind| kind.of(records, slots)).collect(),
            active: 0,
            chooser: policy.is_none().then(|| Chooser::new(records, slots)),
            used: vec![0; records as usize],
            step: 0,
            loading: vec![false; records as usize],
            ahead: vec![false; records as usize],
            unused: Lists::new(records, 2),
            pinned: vec![false; records as usize],
        }
    }

    /// Begins a step that uses `records`, each named once. They stay until the next step begins.
    pub(super) fn begin(&mut self, records: &[u32]) {
        self.step += 1;
        for &record in records {
            self.used[record as usize] = self.step;
        }
        if let Some(chooser) = &mut self.chooser {
            chooser.step(records, &self.used, self.step);
        }
    }

    /// The place of a record of the running step, one made for it if it has none. A new one is
    /// loading until [`loaded`](Self::loaded) or [`remove`](Self::remove).
    pub(super) fn place(&mut self, record: u32) -> Place {
        let slot = self.slots[record as usize];
        let place = match slot {
            NONE => self.admit(record),
            slot => Place::Here(slot),
        };
        let policies = self.policies.iter_mut();
        match place {
            Place::Full => {}
            Place::Here(_) if !self.unused.holds(record) => policies.for_each(|p| p.touch(record)),
            _ => policies.for_each(|p| p.admit(record)),
        }
        self.unused.remove(record);
        place
    }

    /// The place of a record that a step may come to use, one made for it if it has none. Until it
    /// is used it counts for nothing with the policies.
    pub(super) fn place_ahead(&mut self, record: u32) -> Place {
        let slot = self.slots[record as usize];
        if slot != NONE {
            return Place::Here(slot);
        }
        let place = self.admit(record);
        if place != Place::Full {
            self.ahead[record as usize] = true;
            self.unused.push(AWAITED, record);
        }
        place
    }

    fn admit(&mut self, record: u32) -> Place {
        let Some(slot) = self.free.pop().or_else(|| self.make_room()) else {
            return Place::Full;
        };
        self.slots[record as usize] = slot;
        self.loading[record as usize] = true;
        Place::New(slot)
    }

    /// A record that came ahead of its use counts as used.
    pub(super) fn trust(&mut self, record: u32) {
        if self.unused.holds(record) {
            self.unused.remove(record);
            self.policies.iter_mut().for_each(|p| p.admit(record));
        }
    }

    /// A record that came ahead of its use was not used by the step for which it came.
    pub(super) fn mistaken(&mut self, record: u32) {
        if self.unused.holds(record) {
            self.unused.remove(record);
            self.unused.push(MISTAKEN, record);
        }
    }

    /// Whether the record has a slot.
    pub(super) fn has(&self, record: u32) -> bool {
        self.slots[record as usize] != NONE
    }

    /// The record is in its slot now.
    pub(super) fn loaded(&mut self, record: u32) {
        self.loading[record as usize] = false;
    }

    /// Whether the record is on its way.
    pub(super) fn is_loading(&self, record: u32) -> bool {
        self.loading[record as usize]
    }

    /// Whether the record came ahead of its use, told once.
    pub(super) fn was_ahead(&mut self, record: u32) -> bool {
        std::mem::take(&mut self.ahead[record as usize])
    }

    /// Takes out the record that the policy in force gives up first; its slot. What the step uses
    /// stays, and what is on its way.
    fn make_room(&mut self) -> Option<u32> {
        let Cache {
            used,
            step,
            loading,
            pinned,
            unused,
            policies,
            ..
        } = self;
        let keep = |record: u32| used[record as usize] == *step || loading[record as usize];
        let keep_pinned = |record: u32| pinned[record as usize] || keep(record);
        let oldest = |list| unused.backwards(list).find(|&record| !keep(record));
        let active = &mut policies[self.active];
        let record = oldest(MISTAKEN)
            .or_else(|| active.evict(&keep_pinned))
            .or_else(|| active.evict(&keep))
            .or_else(|| oldest(AWAITED))?;
        if unused.holds(record) {
            unused.remove(record);
        } else {
            let others = policies.iter_mut().enumerate();
            for (_, policy) in others.filter(|(i, _)| *i != self.active) {
                policy.remove(record);
            }
        }
        self.ahead[record as usize] = false;
        Some(std::mem::replace(&mut self.slots[record as usize], NONE))
    }

    /// Takes out a record: what should have come into its slot has not.
    pub(super) fn remove(&mut self, record: u32) {
        let slot = std::mem::replace(&mut self.slots[record as usize], NONE);
        self.loading[record as usize] = false;
        self.ahead[record as usize] = false;
        if slot == NONE {
            return;
        }
        self.free.push(slot);
        if self.unused.holds(record) {
            self.unused.remove(record);
        } else {
            self.policies.iter_mut().for_each(|p| p.remove(record));
        }
    }

    /// Has a record leave last.
    pub(super) fn pin(&mut self, record: u32) {
        self.pinned[record as usize] = true;
    }

    /// Takes a slot out of use, with what is in it; `None` if everything is in use or on its way.
    pub(super) fn retire(&mut self) -> Option<u32> {
        let slot = self.free.pop().or_else(|| self.make_room())?;
        if let Some(chooser) = &mut self.chooser {
            chooser.shrink();
        }
        Some(slot)
    }

    /// Takes a retired slot into use again.
    pub(super) fn restore(&mut self, slot: u32) {
        self.free.push(slot);
        if let Some(chooser) = &mut self.chooser {
            chooser.grow();
        }
    }

    /// The policy in force, and by what share of all uses another one would have hit more lately;
    /// `None` where there is no choice.
    pub(super) fn choice(&self) -> Option<(PolicyKind, f64)> {
        let chooser = self.chooser.as_ref()?;
        Some((PolicyKind::ALL[self.active], chooser.regret()))
    }

    /// A token has gone through all layers.
    pub(super) fn token(&mut self) {
        self.policies.iter_mut().for_each(|p| p.token());
        // Nothing is awaited for longer.
        self.unused.append(AWAITED, MISTAKEN);
        if let Some(chooser) = &mut self.chooser {
            self.active = chooser.token();
        }
    }
}
