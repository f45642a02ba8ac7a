//! What was needed of experts on disk, what was there, and what it took.

use super::policy::PolicyKind;
use crate::options::ReadAccess;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// Ways to read, by the number they are counted by.
const WAYS: [ReadAccess; 3] = [ReadAccess::Buffered, ReadAccess::Direct, ReadAccess::Queued];

/// Counts that others read while steps go on.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(super) experts: AtomicU64,
    pub(super) slots: AtomicU64,
    pub(super) uses: AtomicU64,
    pub(super) hits: AtomicU64,
    pub(super) bytes_read: AtomicU64,
    pub(super) ahead: AtomicU64,
    pub(super) ahead_used: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) waited_nanoseconds: AtomicU64,
    pub(super) busy_nanoseconds: AtomicU64,
    /// Numbers in [`WAYS`] and [`PolicyKind::ALL`], and millionths of all uses.
    way: AtomicU8,
    policy: AtomicU8,
    regret: AtomicU64,
}

impl Counts {
    /// Experts are read so.
    pub(super) fn reads_by(&self, access: ReadAccess) {
        let way = WAYS.iter().position(|&way| way == access).unwrap_or(0);
        self.way.store(way as u8, Ordering::Relaxed);
    }

    /// This policy is in force, and so much of all uses would another one have hit more.
    pub(super) fn chooses(&self, policy: PolicyKind, regret: f64) {
        let number = PolicyKind::ALL.iter().position(|&kind| kind == policy);
        self.policy
            .store(number.unwrap_or(0) as u8, Ordering::Relaxed);
        self.regret.store((regret * 1e6) as u64, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub(crate) fn statistics(&self) -> ExpertStatistics {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ExpertStatistics {
            experts: read(&self.experts),
            slots: read(&self.slots),
            uses: read(&self.uses),
            hits: read(&self.hits),
            bytes_read: read(&self.bytes_read),
            ahead: read(&self.ahead),
            ahead_used: read(&self.ahead_used),
            failures: read(&self.failures),
            waited: Duration::from_nanos(read(&self.waited_nanoseconds)),
            busy: Duration::from_nanos(read(&self.busy_nanoseconds)),
            access: WAYS[self.way.load(Ordering::Relaxed) as usize],
            policy: PolicyKind::ALL[self.policy.load(Ordering::Relaxed) as usize],
            regret: read(&self.regret),
        }
    }
}

/// Counts more.
pub(super) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

/// As a count.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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
    /// Bytes read for the others, and for those that were expected.
    pub bytes_read: u64,
    /// Experts read before a step asked for them.
    pub ahead: u64,
    /// Of those, asked for before they left.
    pub ahead_used: u64,
    /// Reads that failed, whether another one helped or not.
    pub failures: u64,
    /// Time that steps have waited for experts, with nothing else to do.
    pub waited: Duration,
    /// Time in which something was being read, whether a step waited for it or not.
    pub busy: Duration,
    /// How they are read.
    pub access: ReadAccess,
    /// Which policy says what leaves.
    pub policy: PolicyKind,
    /// Millionths of the uses of the last few dozen tokens that the best of all policies would have
    /// hit and the one in force would not, as their shadow caches tell.
    pub regret: u64,
}

impl ExpertStatistics {
    /// What was counted after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &ExpertStatistics) -> ExpertStatistics {
        ExpertStatistics {
            uses: self.uses.saturating_sub(earlier.uses),
            hits: self.hits.saturating_sub(earlier.hits),
            bytes_read: self.bytes_read.saturating_sub(earlier.bytes_read),
            ahead: self.ahead.saturating_sub(earlier.ahead),
            ahead_used: self.ahead_used.saturating_sub(earlier.ahead_used),
            failures: self.failures.saturating_sub(earlier.failures),
            waited: self.waited.saturating_sub(earlier.waited),
            busy: self.busy.saturating_sub(earlier.busy),
            ..*self
        }
    }
}
