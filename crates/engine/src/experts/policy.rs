//! Which expert makes room for another.

use super::lfru::Lfru;
use super::lru::Lru;
use super::s3fifo::S3Fifo;

/// A way to choose the record that leaves a full cache.
///
/// A policy knows what is in the cache and nothing of where it lies. Every call takes constant
/// time, averaged over calls.
pub(super) trait Policy: Send + Sync {
    /// A record that is in the cache is used.
    fn touch(&mut self, record: u32);

    /// A record comes into the cache, to be used.
    fn admit(&mut self, record: u32);

    /// Takes out a record of which `keep` is false; `None` if there is none.
    fn evict(&mut self, keep: &dyn Fn(u32) -> bool) -> Option<u32>;

    /// Takes out this record.
    fn remove(&mut self, record: u32);

    /// A token has gone through all layers.
    fn token(&mut self) {}
}

/// The policies there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// The least recently used record leaves.
    #[default]
    Lru,
    /// A record that was used once leaves soon; what is used again stays (S3-FIFO: Yang and
    /// others, FIFO queues are all you need for cache eviction, SOSP 2023).
    S3Fifo,
    /// The record of the least heat leaves, where a use weighs half after a few dozen tokens.
    LfruShort,
    /// The same with a half-life of some hundred tokens, close to the least frequently used.
    LfruLong,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [PolicyKind; 4] = [
        PolicyKind::Lru,
        PolicyKind::S3Fifo,
        PolicyKind::LfruShort,
        PolicyKind::LfruLong,
    ];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Lru => "lru",
            PolicyKind::S3Fifo => "s3-fifo",
            PolicyKind::LfruShort => "lfru-short",
            PolicyKind::LfruLong => "lfru-long",
        }
    }

    /// The policy for a cache of `slots` of `records` records.
    pub(super) fn of(self, records: u32, slots: u32) -> Box<dyn Policy> {
        match self {
            PolicyKind::Lru => Box::new(Lru::new(records)),
            PolicyKind::S3Fifo => Box::new(S3Fifo::new(records, slots)),
            PolicyKind::LfruShort => Box::new(Lfru::new(records, 32.0)),
            PolicyKind::LfruLong => Box::new(Lfru::new(records, 512.0)),
        }
    }
}
