//! How often the expert that is needed will be in memory, before anything was counted.

use serde::Serialize;

/// Part of the uses of experts that find them in memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HitRate {
    /// The least to be expected.
    pub low: f64,
    /// What speeds are computed with.
    pub expected: f64,
    /// The most to be expected.
    pub high: f64,
    /// What it is based on.
    pub basis: &'static str,
}

/// How much of what least recently used hits in recorded routing is expected, the rest being what
/// uniform choices hit: conversations are short, and reading ahead is sometimes in vain.
const EXPECTED: f64 = 0.75;

/// What hit, by parts of the experts in memory: recorded routing of a model of 64 experts in each
/// of 16 layers, 8 used by a token, on text; least recently used, and the policy chosen online
/// (docs/plan.md).
const RECORDED: [(f64, f64, f64); 7] = [
    (0.0, 0.0, 0.0),
    (0.125, 0.333, 0.433),
    (0.25, 0.491, 0.622),
    (0.375, 0.693, 0.758),
    (0.5, 0.823, 0.863),
    (0.75, 0.967, 0.968),
    (1.0, 1.0, 1.0),
];

impl HitRate {
    /// Without any knowledge of the routing, with `slots` of `experts` in memory: at least their
    /// share, which is what uniform choices hit, and at most what recorded choices hit under the
    /// policy that suits them best.
    #[must_use]
    pub fn prior(slots: u64, experts: u64) -> HitRate {
        if slots >= experts {
            return HitRate {
                low: 1.0,
                expected: 1.0,
                high: 1.0,
                basis: "all experts are in memory",
            };
        }
        let share = slots as f64 / experts as f64;
        let (lru, online) = recorded(share);
        HitRate {
            low: share,
            expected: (lru * EXPECTED + share * (1.0 - EXPECTED)).clamp(share, online.max(share)),
            high: online.max(share),
            basis: "no routing is known: uniform choices up to recorded ones",
        }
    }

    /// As it was counted or asked for.
    #[must_use]
    pub fn known(rate: f64, basis: &'static str) -> HitRate {
        let rate = rate.clamp(0.0, 1.0);
        HitRate {
            low: rate,
            expected: rate,
            high: rate,
            basis,
        }
    }
}

/// Between the sizes that were replayed, on a straight line.
fn recorded(share: f64) -> (f64, f64) {
    let above = RECORDED.iter().position(|(size, ..)| *size >= share);
    let (Some(above), Some(last)) = (above, RECORDED.last()) else {
        return (1.0, 1.0);
    };
    let (from, to) = match above {
        0 => (&RECORDED[0], &RECORDED[0]),
        n => (&RECORDED[n - 1], RECORDED.get(n).unwrap_or(last)),
    };
    let width = to.0 - from.0;
    let part = match width > 0.0 {
        true => (share - from.0) / width,
        false => 0.0,
    };
    let between = |from: f64, to: f64| from + (to - from) * part;
    (between(from.1, to.1), between(from.2, to.2))
}

/// Experts of one layer that `rows` tokens use together, each `share` of them, if they choose
/// independently and alike: the share of all.
pub(super) fn union(share: f64, rows: f64) -> f64 {
    1.0 - libm::pow(1.0 - share, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prior_is_an_interval_around_what_is_expected() {
        for slots in [0, 1, 64, 128, 200, 511, 512, 900, 1023] {
            let rate = HitRate::prior(slots, 1024);
            assert!(
                rate.low <= rate.expected && rate.expected <= rate.high,
                "{rate:?}"
            );
            assert!(
                (0.0..1.0).contains(&rate.low) && rate.high <= 1.0,
                "{rate:?}"
            );
        }
        let quarter = HitRate::prior(256, 1024);
        assert_eq!((quarter.low, quarter.high), (0.25, 0.622));
        assert!((quarter.expected - 0.43075).abs() < 1e-9, "{quarter:?}");
        assert_eq!(HitRate::prior(1024, 1024).low, 1.0);
        assert_eq!(HitRate::prior(0, 0).expected, 1.0);
    }

    #[test]
    fn more_slots_never_hit_less() {
        let rates: Vec<_> = (0..=512).map(|slots| HitRate::prior(slots, 512)).collect();
        for pair in rates.windows(2) {
            assert!(pair[0].expected <= pair[1].expected && pair[0].high <= pair[1].high);
        }
    }

    #[test]
    fn unions_grow_to_all() {
        assert!((union(0.125, 1.0) - 0.125).abs() < 1e-12);
        assert!(union(0.125, 64.0) > 0.999 && union(0.125, 8.0) < 0.7);
    }
}
