//! Where the time of steps goes, operator by operator.
//!
//! The cpu backend says after each operator which one it was; what has passed since it last said so
//! is that operator's. So nothing counts twice and nothing between is lost. Switched off, this is
//! one branch an operator.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What a step spends time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// Embeddings, the joins of draft heads, and the rotation angles of a piece.
    Embedding,
    /// Hashed n-gram embeddings.
    Ngram,
    /// Reading blocks' inputs from several streams, and writing their outputs.
    Residual,
    /// Norms of blocks' inputs.
    Norm,
    /// Linear maps of mixers, the quantisation of their inputs included.
    Projection,
    /// Norms, rotation and gates of heads, decays and strengths.
    Heads,
    /// Short convolutions.
    Convolution,
    /// The recurrence of delta nets.
    DeltaRule,
    /// Index keys, their scores, and the choice of the largest.
    Index,
    /// Compressed entries.
    Compressor,
    /// Queries into the latent space, and values out of it.
    Latent,
    /// Keys and values into the cache, scores, softmax, sums.
    Attention,
    /// Scores of experts and their choice.
    Router,
    /// Routed experts.
    Experts,
    /// Maps to and from the width of latent experts.
    ExpertLatent,
    /// Shared experts.
    SharedExperts,
    /// Dense units.
    Dense,
    /// The exit norm and the head.
    Head,
}

impl Operator {
    /// All of them, in the order in which a layer runs them.
    pub const ALL: [Operator; 18] = [
        Operator::Embedding,
        Operator::Ngram,
        Operator::Residual,
        Operator::Norm,
        Operator::Projection,
        Operator::Heads,
        Operator::Convolution,
        Operator::DeltaRule,
        Operator::Index,
        Operator::Compressor,
        Operator::Latent,
        Operator::Attention,
        Operator::Router,
        Operator::Experts,
        Operator::ExpertLatent,
        Operator::SharedExperts,
        Operator::Dense,
        Operator::Head,
    ];

    /// A few words for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Operator::Embedding => "embedding",
            Operator::Ngram => "n-grams",
            Operator::Residual => "residual scheme",
            Operator::Norm => "norms",
            Operator::Projection => "projections",
            Operator::Heads => "heads",
            Operator::Convolution => "convolutions",
            Operator::DeltaRule => "delta rule",
            Operator::Index => "index",
            Operator::Compressor => "compressor",
            Operator::Latent => "latent maps",
            Operator::Attention => "attention",
            Operator::Router => "router",
            Operator::Experts => "experts",
            Operator::ExpertLatent => "expert latent",
            Operator::SharedExperts => "shared experts",
            Operator::Dense => "dense unit",
            Operator::Head => "head",
        }
    }
}

/// Time by operator.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    times: [Duration; Operator::ALL.len()],
}

impl Profile {
    /// Time spent on one operator.
    #[must_use]
    pub fn of(&self, operator: Operator) -> Duration {
        self.times[operator as usize]
    }

    /// Time spent on all of them.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.times.iter().sum()
    }
}

/// Where profiles have the time from.
#[derive(Clone, Copy, Debug)]
pub enum TimeSource {
    /// The clock on the wall.
    Wall,
    /// Another one, which must not run backwards: say, the processor time of the calling thread,
    /// which with one thread is the cost on a machine that has other things to do.
    Other(fn() -> Duration),
}

/// A stopwatch with a hand for every operator. The thread that runs a step stops it.
pub(crate) struct Clock {
    source: Option<TimeSource>,
    made: Instant,
    /// Nanoseconds when it was stopped last.
    last: AtomicU64,
    nanos: [AtomicU64; Operator::ALL.len()],
}

impl Clock {
    /// A clock that is switched off.
    pub(crate) fn new() -> Clock {
        Clock {
            source: None,
            made: Instant::now(),
            last: AtomicU64::new(0),
            nanos: [const { AtomicU64::new(0) }; Operator::ALL.len()],
        }
    }

    /// Switches on or off.
    pub(crate) fn set(&mut self, source: Option<TimeSource>) {
        self.source = source;
    }

    /// What was counted since the last call of this.
    pub(crate) fn take(&mut self) -> Profile {
        Profile {
            times: std::array::from_fn(|i| {
                Duration::from_nanos(std::mem::take(self.nanos[i].get_mut()))
            }),
        }
    }

    /// Starts counting: what came before is no operator's.
    pub(crate) fn start(&self) {
        if let Some(source) = self.source {
            self.last.store(self.now(source), Relaxed);
        }
    }

    /// What has passed since the clock was stopped or started last was `operator`.
    pub(crate) fn stop(&self, operator: Operator) {
        if let Some(source) = self.source {
            let now = self.now(source);
            let passed = now.saturating_sub(self.last.swap(now, Relaxed));
            self.nanos[operator as usize].fetch_add(passed, Relaxed);
        }
    }

    fn now(&self, source: TimeSource) -> u64 {
        let time = match source {
            TimeSource::Wall => self.made.elapsed(),
            TimeSource::Other(now) => now(),
        };
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operator_has_its_place() {
        for (place, operator) in Operator::ALL.into_iter().enumerate() {
            assert_eq!(operator as usize, place);
        }
    }

    #[test]
    fn time_is_counted_only_when_on_and_once() {
        let mut clock = Clock::new();
        clock.start();
        clock.stop(Operator::Norm);
        assert_eq!(clock.take().total(), Duration::ZERO);
        clock.set(Some(TimeSource::Wall));
        clock.start();
        std::thread::sleep(Duration::from_millis(2));
        clock.stop(Operator::Attention);
        clock.stop(Operator::Router);
        let profile = clock.take();
        assert!(profile.of(Operator::Attention) >= Duration::from_millis(2));
        assert!(profile.total() <= clock.made.elapsed());
        assert_eq!(profile.of(Operator::Norm), Duration::ZERO);
        assert_eq!(clock.take().total(), Duration::ZERO);
    }

    #[test]
    fn another_source_of_time_is_asked() {
        let mut clock = Clock::new();
        clock.set(Some(TimeSource::Other(|| Duration::from_secs(7))));
        clock.stop(Operator::Heads);
        clock.stop(Operator::Heads);
        assert_eq!(clock.take().of(Operator::Heads), Duration::from_secs(7));
    }
}
