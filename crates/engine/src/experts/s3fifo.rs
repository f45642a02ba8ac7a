//! Three queues: S3-FIFO (Yang and others, SOSP 2023).

use super::lists::Lists;
use super::policy::Policy;

/// Records that have come once.
const SMALL: u32 = 0;
/// Records that were used again.
const MAIN: u32 = 1;
/// Records that have left a short while ago.
const GHOST: u32 = 2;

/// Most uses that are counted.
const MOST: u8 = 3;

/// New records wait in a small queue of a tenth of the cache. One that is used there, or that comes
/// back soon after it has left, goes into the main queue, where each use gives it one more round.
pub(super) struct S3Fifo {
    queues: Lists,
    lengths: [u32; 3],
    /// The queue of each record that is in one.
    of: Vec<u32>,
    /// Uses since the record came, or came round.
    uses: Vec<u8>,
    slots: u32,
}

impl S3Fifo {
    pub(super) fn new(records: u32, slots: u32) -> S3Fifo {
        S3Fifo {
            queues: Lists::new(records, 3),
            lengths: [0; 3],
            of: vec![GHOST; records as usize],
            uses: vec![0; records as usize],
            slots,
        }
    }

    fn push(&mut self, queue: u32, record: u32) {
        self.queues.push(queue, record);
        self.of[record as usize] = queue;
        self.lengths[queue as usize] += 1;
    }

    fn pull(&mut self, record: u32) {
        if self.queues.holds(record) {
            self.queues.remove(record);
            self.lengths[self.of[record as usize] as usize] -= 1;
        }
    }

    /// A record that leaves the cache is remembered for as long as the main queue is.
    fn forget_later(&mut self, record: u32) {
        self.push(GHOST, record);
        while self.lengths[GHOST as usize] > self.slots {
            let Some(oldest) = self.queues.last(GHOST) else {
                return;
            };
            self.pull(oldest);
        }
    }

    /// What happens to the last record of `queue` when room is needed: another round, the main
    /// queue, or out. Whether it is out.
    fn judge(&mut self, queue: u32, record: u32, keep: &dyn Fn(u32) -> bool) -> bool {
        self.pull(record);
        let uses = &mut self.uses[record as usize];
        let stays = keep(record);
        if *uses == 0 && !stays {
            self.forget_later(record);
            return true;
        }
        if queue == SMALL && *uses > 0 {
            *uses = 0;
            self.push(MAIN, record);
        } else {
            *uses = uses.saturating_sub(u8::from(!stays));
            self.push(queue, record);
        }
        false
    }
}

impl Policy for S3Fifo {
    fn touch(&mut self, record: u32) {
        let uses = &mut self.uses[record as usize];
        *uses = (*uses + 1).min(MOST);
    }

    fn admit(&mut self, record: u32) {
        let known = self.queues.holds(record) && self.of[record as usize] == GHOST;
        self.pull(record);
        self.uses[record as usize] = 0;
        self.push(if known { MAIN } else { SMALL }, record);
    }

    fn evict(&mut self, keep: &dyn Fn(u32) -> bool) -> Option<u32> {
        let held = self.lengths[SMALL as usize] + self.lengths[MAIN as usize];
        // Each record comes round at most so often before it has no more uses.
        for _ in 0..held.saturating_mul(u32::from(MOST) + 2) {
            let small = self.lengths[SMALL as usize];
            let queue = match small > self.slots / 10 || self.lengths[MAIN as usize] == 0 {
                true => SMALL,
                false => MAIN,
            };
            let record = self.queues.last(queue)?;
            if self.judge(queue, record, keep) {
                return Some(record);
            }
        }
        None
    }

    fn remove(&mut self, record: u32) {
        self.pull(record);
        self.forget_later(record);
    }
}
