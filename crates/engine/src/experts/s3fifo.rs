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
    /// queue, or out.
    fn judge(&mut self, queue: u32, record: u32, keep: &dyn Fn(u32) -> bool) -> Verdict {
        self.pull(record);
        let uses = &mut self.uses[record as usize];
        if keep(record) {
            self.push(queue, record);
            return Verdict::Kept;
        }
        if *uses == 0 {
            self.forget_later(record);
            return Verdict::Out;
        }
        if queue == SMALL {
            *uses = 0;
        } else {
            *uses -= 1;
        }
        self.push(MAIN, record);
        Verdict::Stays
    }
}

/// What becomes of a record.
#[derive(PartialEq, Eq)]
enum Verdict {
    Out,
    Stays,
    /// It may not leave now.
    Kept,
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
        let mut kept = [0; 2];
        loop {
            let [small, main, _] = self.lengths;
            let full = small > self.slots / 10 || kept[MAIN as usize] >= main;
            let queue = match full && kept[SMALL as usize] < small {
                true => SMALL,
                false if kept[MAIN as usize] < main => MAIN,
                // Nothing is here that may leave.
                false => return None,
            };
            let record = self.queues.last(queue)?;
            match self.judge(queue, record, keep) {
                Verdict::Out => return Some(record),
                // It has fewer uses now, so this comes to an end.
                Verdict::Stays => kept = [0; 2],
                Verdict::Kept => kept[queue as usize] += 1,
            }
        }
    }

    fn remove(&mut self, record: u32) {
        self.pull(record);
        self.forget_later(record);
    }
}
