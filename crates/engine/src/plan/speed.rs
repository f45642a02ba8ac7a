//! How fast it will be.
//!
//! A token takes the time to read the weights it uses from memory, with a small price for every
//! layer. Experts that are not in memory come from the disk, partly while others are computed. The
//! constants here were measured; docs/plan.md has the figures.

use super::facts::{ModelFacts, Work};
use super::hits::{HitRate, union};
use super::machine::Machine;
use super::placement::Placement;
use crate::options::ReadAccess;
use serde::Serialize;

/// Seconds that a layer takes beside its weights: starting and joining threads, norms, routing.
const LAYER_SECONDS: f64 = 20e-6;
/// Products in a model are as fast as this part of one long product: between them threads wait for
/// each other.
const JOINED: f64 = 0.75;
/// Reading from the page cache beside computing, which it takes threads from, is as fast as this
/// part of reading alone.
const COPIED: f64 = 0.5;

/// A figure that depends on how often the experts are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Range {
    /// With the lowest hit rate.
    pub low: f64,
    /// With the expected one.
    pub expected: f64,
    /// With the highest.
    pub high: f64,
}

/// What bounds decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// Reading experts from the disk.
    Disk,
    /// Reading weights from memory.
    MemoryBandwidth,
    /// Arithmetic.
    Compute,
}

impl Limit {
    /// In words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Limit::Disk => "the disk",
            Limit::MemoryBandwidth => "memory bandwidth",
            Limit::Compute => "arithmetic",
        }
    }
}

/// Tokens per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Speed {
    /// Reading a prompt.
    pub prompt: f64,
    /// Decoding one conversation.
    pub decode: Range,
}

/// What is predicted.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Predicted {
    /// Most bytes of memory at any time.
    pub peak_bytes: u64,
    /// Experts in memory at once behind the prompt; 0 where all are among the resident.
    pub slots: u32,
    /// How often experts are in memory.
    pub hit_rate: HitRate,
    /// Bytes read from the disk for a decoded token; the low end belongs to the highest hit rate.
    pub bytes_read_per_token: Range,
    /// With nothing in the page cache of the system.
    pub cold: Speed,
    /// With as much of the files in the page cache as there is room for beside the model.
    pub warm: Speed,
    /// Seconds that a decoded token takes, cold: the disk's part, waited for or not.
    pub disk_seconds: f64,
    /// The memory's and the processor's part.
    pub compute_seconds: f64,
    /// Conversations of the asked context that fit as the experts are placed.
    pub safe_sessions: u64,
    /// The same with a single expert in memory.
    pub most_sessions: u64,
    /// What bounds decoding, cold.
    pub limited_by: Limit,
}

/// A decoded token in seconds.
struct Token {
    total: f64,
    disk: f64,
    compute: f64,
    bytes: f64,
}

/// All that speed depends on.
pub(super) struct Model<'a> {
    pub(super) facts: &'a ModelFacts,
    pub(super) work: &'a Work,
    pub(super) placement: &'a Placement,
    /// Experts in memory at once behind the prompt; 0 if all are.
    pub(super) slots: u32,
    pub(super) machine: &'a Machine,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// Bytes of state that a token reads behind such a prompt.
    pub(super) state: u64,
    /// Rows computed together.
    pub(super) step_rows: usize,
    /// How experts are read, where that is told.
    pub(super) access: Option<ReadAccess>,
}

impl Model<'_> {
    /// Everything.
    pub(super) fn predict(&self, hits: HitRate, sessions: [u64; 2]) -> Predicted {
        let disk = self.machine.disk.per_second;
        let over = |rate: f64| {
            let token = |hits: f64| self.token(hits, rate);
            let speed = |hits: f64| 1.0 / token(hits).total;
            Speed {
                prompt: self.prompt_rate(rate),
                decode: Range {
                    low: speed(hits.low),
                    expected: speed(hits.expected),
                    high: speed(hits.high),
                },
            }
        };
        let token = self.token(hits.expected, disk);
        Predicted {
            peak_bytes: self.placement.peak_bytes,
            bytes_read_per_token: Range {
                low: self.token(hits.high, disk).bytes,
                expected: token.bytes,
                high: self.token(hits.low, disk).bytes,
            },
            slots: self.slots,
            hit_rate: hits,
            cold: over(disk),
            warm: over(self.warm_rate()),
            limited_by: self.limit(&token),
            disk_seconds: token.disk,
            compute_seconds: token.compute,
            safe_sessions: sessions[0],
            most_sessions: sessions[1],
        }
    }

    fn token(&self, hits: f64, disk: f64) -> Token {
        let rate = self.machine.decode.per_second * JOINED;
        // State is read by other kernels, but from the same memory.
        let state = self.state as f64 / self.machine.memory.per_second;
        let weights = self.work.active.all() as f64 / rate;
        let compute = weights + state + self.work.layers as f64 * LAYER_SECONDS;
        let bytes = (1.0 - hits) * self.facts.experts_per_token as f64;
        let bytes = bytes * self.facts.expert_stored_bytes as f64;
        let reading = bytes / disk;
        Token {
            total: together(compute, reading),
            disk: reading,
            compute,
            bytes,
        }
    }

    fn limit(&self, token: &Token) -> Limit {
        // A product with one row that takes in much less than memory gives is busy computing.
        const BUSY: f64 = 0.5;
        if token.disk > token.compute {
            return Limit::Disk;
        }
        match self.machine.decode.per_second < BUSY * self.machine.memory.per_second {
            true => Limit::Compute,
            false => Limit::MemoryBandwidth,
        }
    }

    /// Tokens per second of the prompt.
    fn prompt_rate(&self, disk: f64) -> f64 {
        let (mut seconds, mut left) = (0.0, self.prompt.max(1));
        while left > 0 {
            let rows = left.min(self.step_rows);
            seconds += self.step_seconds(rows as f64, disk);
            left -= rows;
        }
        self.prompt.max(1) as f64 / seconds
    }

    /// A step of `rows` rows: all weights that any of them uses, once; all products.
    fn step_seconds(&self, rows: f64, disk: f64) -> f64 {
        let active = &self.work.active;
        let rate = self.machine.decode.per_second * JOINED;
        let products = self.machine.products.per_second * JOINED;
        let roofline = |bytes: f64, work: f64| (bytes / rate).max(work / products);
        let used = union(self.work.share, rows);
        let distinct = used * self.facts.experts as f64;
        let dense = roofline(active.dense as f64, active.dense_products as f64 * rows);
        let experts = roofline(
            used * self.facts.experts_bytes as f64,
            active.expert_products as f64 * rows,
        );
        // What layers use one after the other, and cannot be kept together, is gone when the first
        // layer comes round again.
        let kept = match self.slots {
            0 => distinct,
            slots if distinct <= f64::from(slots) => distinct,
            _ => 0.0,
        };
        let reading = (distinct - kept) * self.facts.expert_stored_bytes as f64 / disk;
        let small = self.work.layers as f64 * LAYER_SECONDS * rows.sqrt();
        together(dense + experts + small, reading)
    }

    /// Bytes per second with as much of the files in the page cache as there is room for beside the
    /// model. Unless it is told otherwise, the engine passes it by if that is not all of them.
    fn warm_rate(&self) -> f64 {
        let disk = self.machine.disk.per_second;
        let room = self.machine.beside_bytes as f64 / self.facts.experts_bytes.max(1) as f64;
        let cached = match self.access {
            None if room < 1.0 => 0.0,
            Some(ReadAccess::Direct | ReadAccess::Queued) => 0.0,
            _ => room.min(1.0),
        };
        let copied = (self.machine.page_cache.per_second * COPIED).max(disk);
        1.0 / (cached / copied + (1.0 - cached) / disk)
    }
}

/// Seconds of computing and reading, of which a part happens at the same time: the longer each
/// takes beside the other, the more of it.
fn together(compute: f64, reading: f64) -> f64 {
    let sum = compute + reading;
    match sum > 0.0 {
        true => sum - compute * reading / sum,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computing_and_reading_overlap_in_part() {
        assert_eq!(together(0.0, 0.0), 0.0);
        assert_eq!((together(2.0, 0.0), together(0.0, 3.0)), (2.0, 3.0));
        // Measured: 46 ms of computing beside 48, 117 and 206 ms of reading.
        for (reading, measured) in [(48.4, 72.6), (116.6, 129.5), (206.2, 213.7)] {
            let predicted = together(46.0, reading);
            assert!(
                (predicted / measured - 1.0).abs() < 0.03,
                "{predicted} {measured}"
            );
            assert!(predicted > reading.max(46.0) && predicted < reading + 46.0);
        }
    }
}
