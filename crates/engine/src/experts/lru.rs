//! The least recently used record leaves.

use super::lists::Lists;
use super::policy::Policy;

/// Records in the order of their last use.
pub(super) struct Lru(Lists);

impl Lru {
    pub(super) fn new(records: u32) -> Lru {
        Lru(Lists::new(records, 1))
    }
}

impl Policy for Lru {
    fn touch(&mut self, record: u32) {
        self.0.remove(record);
        self.0.push(0, record);
    }

    fn admit(&mut self, record: u32) {
        self.touch(record);
    }

    fn evict(&mut self, keep: &dyn Fn(u32) -> bool) -> Option<u32> {
        let record = self.0.backwards(0).find(|&r| !keep(r))?;
        self.0.remove(record);
        Some(record)
    }

    fn remove(&mut self, record: u32) {
        self.0.remove(record);
    }
}
