//! Which records are in memory, and where.

use super::chooser::Chooser;
use super::policy::{Policy, PolicyKind};

/// No slot, or no record.
const NONE: u32 = u32::MAX;

/// A fixed number of slots for more records than that.
pub(super) struct Cache {
    /// The slot of each record, or [`NONE`].
    slots: Vec<u32>,
    /// Slots without a record.
    free: Vec<u32>,
    /// Every policy follows what is here, so that any can take over.
    policies: Vec<Box<dyn Policy>>,
    active: usize,
    chooser: Option<Chooser>,
    /// The last step that used each record, to keep those of the running one.
    used: Vec<u64>,
    step: u64,
    /// What is on its way into its slot, and what was ordered before a step asked for it.
    loading: Vec<bool>,
    ahead: Vec<bool>,
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
        if slot == NONE {
            return self.admit(record);
        }
        // What came ahead of its first use has been counted by its coming.
        if !self.ahead[record as usize] {
            self.policies.iter_mut().for_each(|p| p.touch(record));
        }
        Place::Here(slot)
    }

    /// The place of a record that a step may come to use, one made for it if it has none.
    pub(super) fn place_ahead(&mut self, record: u32) -> Place {
        match self.slots[record as usize] {
            NONE => {
                let place = self.admit(record);
                self.ahead[record as usize] = place != Place::Full;
                place
            }
            slot => Place::Here(slot),
        }
    }

    fn admit(&mut self, record: u32) -> Place {
        let Some(slot) = self.free.pop().or_else(|| self.make_room()) else {
            return Place::Full;
        };
        self.slots[record as usize] = slot;
        self.loading[record as usize] = true;
        self.policies.iter_mut().for_each(|p| p.admit(record));
        Place::New(slot)
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
            ..
        } = self;
        let keep = |record: u32| used[record as usize] == *step || loading[record as usize];
        let keep_pinned = |record: u32| pinned[record as usize] || keep(record);
        let active = &mut self.policies[self.active];
        let record = active.evict(&keep_pinned).or_else(|| active.evict(&keep))?;
        let others = self.policies.iter_mut().enumerate();
        for (_, policy) in others.filter(|(i, _)| *i != self.active) {
            policy.remove(record);
        }
        self.ahead[record as usize] = false;
        Some(std::mem::replace(&mut self.slots[record as usize], NONE))
    }

    /// Takes out a record: what should have come into its slot has not.
    pub(super) fn remove(&mut self, record: u32) {
        let slot = std::mem::replace(&mut self.slots[record as usize], NONE);
        self.loading[record as usize] = false;
        self.ahead[record as usize] = false;
        if slot != NONE {
            self.free.push(slot);
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

    /// A token has gone through all layers.
    pub(super) fn token(&mut self) {
        self.policies.iter_mut().for_each(|p| p.token());
        if let Some(chooser) = &mut self.chooser {
            self.active = chooser.token();
        }
    }
}
