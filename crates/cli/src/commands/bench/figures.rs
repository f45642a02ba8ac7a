//! What is measured, as it is reported.

use lamella_engine::ExpertStatistics;
use serde::Serialize;
use std::time::Duration;

/// What one test gave under one memory limit.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line {
    pub(super) test: String,
    /// The memory limit in bytes.
    pub(super) memory: u64,
    pub(super) threads: usize,
    pub(super) tokens: usize,
    pub(super) batch: usize,
    /// Tokens per second, mean of the repetitions.
    pub(super) mean: f64,
    /// Standard deviation.
    pub(super) deviation: f64,
    pub(super) rates: Vec<f64>,
    /// Bytes of weights in memory.
    pub(super) resident_bytes: u64,
    /// Bytes of weights that a step of one token reads.
    pub(super) active_bytes: u64,
    /// Share of the read bandwidth that the weights of a decode step take up.
    pub(super) bandwidth_share: Option<f64>,
    /// What was counted of experts, where not all fit into memory.
    pub(super) experts: Option<serde_json::Value>,
    /// The same a token and a second.
    pub(super) reads: Option<Reads>,
}

/// What reading experts came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Reads {
    /// Share of the uses of experts that found them in memory.
    pub(super) hit_rate: f64,
    /// Bytes read from disk for a token.
    pub(super) bytes_per_token: f64,
    /// Bytes per second while something was being read; `None` where nothing was.
    pub(super) disk_bytes_per_second: Option<f64>,
    /// Share of the time in which steps waited for experts.
    pub(super) waited_share: f64,
}

impl Reads {
    /// From the counts of `tokens` tokens that took `time`.
    pub(super) fn of(counts: &ExpertStatistics, tokens: usize, time: Duration) -> Reads {
        let (uses, busy) = (counts.uses.max(1) as f64, counts.busy.as_secs_f64());
        let read = counts.bytes_read as f64;
        Reads {
            hit_rate: counts.hits as f64 / uses,
            bytes_per_token: read / tokens.max(1) as f64,
            disk_bytes_per_second: (busy > 0.0).then(|| read / busy),
            waited_share: match time.is_zero() {
                true => 0.0,
                false => counts.waited.as_secs_f64() / time.as_secs_f64(),
            },
        }
    }
}

/// What a memory limit has no room for.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Refused {
    /// The memory limit in bytes.
    pub(super) memory: u64,
    /// Threads asked for.
    pub(super) threads: Option<usize>,
    /// The test; `None` where the model could not be opened.
    pub(super) test: Option<String>,
    pub(super) reason: String,
}

/// Read bandwidth of the memory, in bytes per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Bandwidth {
    pub(super) threads: usize,
    pub(super) bytes_per_second: f64,
}

/// Mean and standard deviation of a sample.
pub(super) fn statistics(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
    (
        mean,
        if values.len() < 2 {
            0.0
        } else {
            (squares / (count - 1.0)).sqrt()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_a_sample() {
        let (mean, deviation) = statistics(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert!((mean - 5.0).abs() < 1e-12 && (deviation - (32f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(statistics(&[3.0]), (3.0, 0.0));
    }

    #[test]
    fn reads_are_shares_and_rates() {
        let counts = ExpertStatistics {
            uses: 40,
            hits: 10,
            bytes_read: 3000,
            waited: Duration::from_secs(1),
            busy: Duration::from_secs(2),
            ..ExpertStatistics::default()
        };
        let reads = Reads {
            hit_rate: 0.25,
            bytes_per_token: 300.0,
            disk_bytes_per_second: Some(1500.0),
            waited_share: 0.25,
        };
        assert_eq!(Reads::of(&counts, 10, Duration::from_secs(4)), reads);
        let nothing = Reads::of(&ExpertStatistics::default(), 0, Duration::ZERO);
        assert_eq!(
            (nothing.hit_rate, nothing.disk_bytes_per_second),
            (0.0, None)
        );
    }
}
