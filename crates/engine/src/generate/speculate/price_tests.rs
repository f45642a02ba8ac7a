//! Tests of the price, on invented times.

use super::*;

/// A machine on which a pass takes `1 + share * (rows - 1)` milliseconds.
struct Machine {
    share: f64,
}

impl Machine {
    fn seconds(&self, rows: usize) -> f64 {
        1e-3 * (1.0 + self.share * (rows - 1) as f64)
    }
}

/// What a thousand passes brought, with drafts of which each is right with `chance`.
struct Played {
    tokens: usize,
    seconds: f64,
    /// Drafts of each pass.
    drafts: Vec<usize>,
}

impl Played {
    /// Tokens for one of plain decode.
    fn speed(&self, machine: &Machine) -> f64 {
        self.tokens as f64 * machine.seconds(1) / self.seconds
    }
}

/// Plays `passes` passes; `chance` and `machine` may change with their number.
fn play(
    passes: usize,
    terms: Terms,
    chance: impl Fn(usize) -> f64,
    machine: impl Fn(usize) -> Machine,
) -> Played {
    let (mut price, mut odds) = (Price::new(), Odds::new());
    let mut played = Played {
        tokens: 0,
        seconds: 0.0,
        drafts: Vec::new(),
    };
    let mut random = 7u64;
    let mut pending = 0;
    for pass in 0..passes {
        let terms = Terms { pending, ..terms };
        let offer = match price.must_measure() {
            true => None,
            false => price.best(&odds, 0, terms).filter(|o| price.accepts(o)),
        };
        let drafts = offer.map_or(0, |o| o.drafts);
        let mut right = 0;
        while right < drafts && {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            ((random >> 33) as f64 / (1u64 << 31) as f64) < chance(pass)
        } {
            right += 1;
        }
        let rows = 1 + pending + drafts;
        let seconds = machine(pass).seconds(rows);
        price.passed(rows, seconds);
        if rows > 1 {
            price.brought(1 + right, seconds);
        }
        odds.judge(0, right, (right + 1).min(drafts));
        let wrong = terms.reads_again && right < drafts;
        pending = if wrong { pending + 1 + right } else { 0 };
        played.tokens += 1 + right;
        played.seconds += seconds;
        played.drafts.push(drafts);
    }
    played
}

const TERMS: Terms = Terms {
    most: 8,
    pending: 0,
    reads_again: false,
};

fn mean(values: &[usize]) -> f64 {
    values.iter().sum::<usize>() as f64 / values.len() as f64
}

#[test]
fn good_drafts_on_cheap_rows_are_long_and_pay() {
    let machine = || Machine { share: 0.1 };
    let played = play(1000, TERMS, |_| 0.95, |_| machine());
    assert!(mean(&played.drafts[100..]) > 6.0);
    assert!(
        played.speed(&machine()) > 3.0,
        "{}",
        played.speed(&machine())
    );
}

#[test]
fn what_does_not_pay_costs_no_more_than_trials_may() {
    // Useless drafts; good drafts whose rows cost as much as passes; both.
    for (chance, share) in [(0.0, 0.3), (0.9, 1.1), (0.0, 1.1), (0.2, 0.5)] {
        for reads_again in [false, true] {
            let terms = Terms {
                reads_again,
                ..TERMS
            };
            let played = play(3000, terms, |_| chance, |_| Machine { share });
            let speed = played.speed(&Machine { share });
            assert!(speed > 0.97, "{chance} {share} {reads_again}: {speed}");
            let trials = played.drafts.iter().filter(|&&n| n > 0).count();
            assert!(trials > 5, "it never tries again: {trials}");
        }
    }
}

#[test]
fn doubtful_drafts_are_short() {
    let length = |chance: f64| {
        let played = play(2000, TERMS, |_| chance, |_| Machine { share: 0.25 });
        mean(&played.drafts[500..])
    };
    let lengths = [0.3, 0.6, 0.8, 0.95].map(length);
    assert!(lengths.is_sorted(), "{lengths:?}");
    assert!(lengths[0] < 1.5 && lengths[3] > 5.0, "{lengths:?}");
}

#[test]
fn it_follows_change() {
    // Drafts become good in the middle, then useless again.
    let chance = |pass| {
        if (1000..2000).contains(&pass) {
            0.9
        } else {
            0.0
        }
    };
    let played = play(3000, TERMS, chance, |_| Machine { share: 0.2 });
    assert!(mean(&played.drafts[500..1000]) < 0.3);
    assert!(mean(&played.drafts[1500..2000]) > 3.0);
    assert!(mean(&played.drafts[2500..]) < 0.3);
    // The rows become expensive.
    let machine = |pass| Machine {
        share: if pass < 1000 { 0.05 } else { 1.2 },
    };
    let played = play(2000, TERMS, |_| 0.8, machine);
    assert!(mean(&played.drafts[500..1000]) > 3.0);
    assert!(mean(&played.drafts[1500..]) < 0.5);
}

#[test]
fn reading_again_is_part_of_the_price() {
    let terms = |reads_again| Terms {
        reads_again,
        ..TERMS
    };
    let mut price = Price::new();
    for rows in 1..=20 {
        price.passed(rows, Machine { share: 0.3 }.seconds(rows));
    }
    let odds = Odds::new();
    let cheap = price.best(&odds, 0, terms(false)).unwrap();
    let dear = price.best(&odds, 0, terms(true)).unwrap();
    assert!(dear.speed < cheap.speed && dear.loss > cheap.loss);
    let pending = Terms {
        pending: 5,
        ..terms(true)
    };
    let with_pending = price.best(&odds, 0, pending).unwrap();
    assert!(with_pending.drafts >= dear.drafts);
}

#[test]
fn unmeasured_passes_lie_between_measured_ones() {
    let mut price = Price::new();
    assert_eq!(price.pass(3), 0.0);
    price.passed(1, 1.0);
    assert!((price.pass(3) - 1.4).abs() < 1e-12);
    price.passed(5, 3.0);
    assert!((price.pass(3) - 2.0).abs() < 1e-12);
    assert!((price.pass(6) - 3.2).abs() < 1e-12);
    assert_eq!(price.pass(MOST_ROWS + 9), price.pass(MOST_ROWS));
    price.passed(MOST_ROWS + 1, 1.0);
}

#[test]
fn one_interruption_does_not_throw_a_mean() {
    let mut mean = Mean::default();
    for _ in 0..10 {
        mean.add(1.0);
    }
    mean.add(1000.0);
    assert!(mean.get().unwrap() < 1.5);
    for _ in 0..40 {
        mean.add(2.0);
    }
    assert!((mean.get().unwrap() - 2.0).abs() < 0.05);
}

#[test]
fn grades_are_judged_apart() {
    let mut odds = Odds::new();
    for _ in 0..20 {
        odds.judge(0, 0, 1);
        odds.judge(3, 4, 4);
        odds.judge(99, 4, 4);
    }
    let chance = |grade| odds.chances(grade).next().unwrap();
    assert!(chance(0) < 0.1 && chance(3) > 0.9);
    assert_eq!(chance(1), CHANCE.0);
    assert_eq!(odds.chances(0).count(), MOST_DRAFTS);
}
