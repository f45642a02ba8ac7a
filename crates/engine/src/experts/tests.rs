//! Policies on routing of known kinds.

use super::cache::{Cache, Place};
use super::{PolicyKind, Trace};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

const EXPERTS: usize = 64;
const LAYERS: u32 = 4;
const TOP: usize = 8;

/// Draws `TOP` different experts with these weights.
fn draw(rng: &mut ChaCha8Rng, weights: &[f64]) -> Vec<u32> {
    let mut chosen: Vec<u32> = Vec::new();
    while chosen.len() < TOP {
        let unit = f64::from(rng.next_u32()) / f64::from(u32::MAX);
        let mut at = unit * weights.iter().sum::<f64>();
        let expert = weights.iter().position(|w| {
            at -= w;
            at < 0.0
        });
        let expert = expert.unwrap_or(weights.len() - 1) as u32;
        if !chosen.contains(&expert) {
            chosen.push(expert);
        }
    }
    chosen
}

/// A trace of `tokens` tokens; `weights` gives those of the experts of a layer at a token, and
/// `rows` how many rows the step has.
fn trace(
    tokens: usize,
    weights: impl Fn(usize, u32) -> Vec<f64>,
    rows: impl Fn(usize) -> usize,
) -> Trace {
    let mut rng = ChaCha8Rng::seed_from_u64(20_261_130);
    let mut trace = Trace::default();
    for token in 0..tokens {
        for layer in 0..LAYERS {
            let weights = weights(token, layer);
            for _ in 0..rows(token) {
                trace.push(layer, &draw(&mut rng, &weights));
            }
        }
    }
    trace
}

fn zipf(first: usize) -> Vec<f64> {
    let rank = |e: usize| (e + EXPERTS - first % EXPERTS) % EXPERTS;
    (0..EXPERTS).map(|e| 1.0 / (1.0 + rank(e) as f64)).collect()
}

/// Traces by name.
fn traces() -> Vec<(&'static str, Trace)> {
    let one = |_| 1;
    // A hot set that moves on slowly, as the subject of a text does.
    let drift = |token: usize, layer: u32| zipf(token / 12 + 7 * layer as usize);
    vec![
        ("uniform", trace(600, |_, _| vec![1.0; EXPERTS], one)),
        (
            "zipf",
            trace(600, |_, layer| zipf(layer as usize * 11), one),
        ),
        (
            "phase change",
            trace(800, |token, _| zipf(token / 200 * 31), one),
        ),
        ("drift", trace(800, drift, one)),
        (
            "long prefill",
            trace(
                600,
                |_, layer| zipf(layer as usize * 11),
                |token| if token % 150 == 149 { 40 } else { 1 },
            ),
        ),
    ]
}

#[test]
fn the_policy_in_force_is_about_as_good_as_the_best() {
    for (name, trace) in traces() {
        for slots in [8, 16, 24, 32] {
            let slots = slots * LAYERS;
            let rate = |policy| trace.replay(slots, policy).hit_rate() * 100.0;
            let single = PolicyKind::ALL.map(|kind| rate(Some(kind)));
            let best = single.iter().copied().fold(0.0, f64::max);
            let online = rate(None);
            let belady = trace.belady(slots).hit_rate() * 100.0;
            println!(
                "{name:14} {slots:3} slots: {single:5.1?} online {online:.1} belady {belady:.1}"
            );
            assert!(online >= best - 1.5, "{name}: {online} of {best}");
            assert!(
                online >= single[0] - 2.0,
                "{name}: {online}, lru {}",
                single[0]
            );
            assert!(belady >= best, "{name}: nothing passes {belady}");
        }
    }
}

#[test]
fn a_cache_for_all_misses_each_record_once() {
    for (name, trace) in traces() {
        for policy in PolicyKind::ALL.map(Some).into_iter().chain([None]) {
            let replayed = trace.replay(trace.records(), policy);
            let misses = replayed.uses - replayed.hits;
            assert!(misses <= u64::from(trace.records()), "{name}: {misses}");
            assert_eq!(replayed, trace.belady(trace.records()), "{name}");
        }
    }
}

#[test]
fn a_trace_is_read_row_by_row() {
    let trace = Trace::parse("0 3 1\n0 1 2\n1 0 5\n1 5 0\n\n0 4 5\n1 5 0\n").expect("sound");
    assert_eq!(trace.records(), 2 * 6);
    let replayed = trace.replay(12, Some(PolicyKind::Lru));
    assert_eq!((replayed.uses, replayed.hits, replayed.tokens), (9, 2, 3));
    // Only empty lines tell the steps of one layer apart; layers without experts hold none.
    let one = |text| {
        let trace = Trace::parse(text).expect("sound");
        let all = trace.replay(8, None);
        (trace.records(), all.uses, all.hits, all.tokens)
    };
    assert_eq!(one("3 1 2\n3 2 4\n3 1 2\n"), (5, 3, 0, 3));
    assert_eq!(one("3 1 2\n3 2 4\n\n3 1 2\n"), (5, 5, 2, 3));
    assert_eq!(one("3 1 2\n\n\n7 2 4\n"), (10, 4, 0, 2));
    for (text, line) in [("0 1\n1 x", 2), ("7", 1), ("0 99999", 1)] {
        assert_eq!(Trace::parse(text).map_err(|(line, _)| line), Err(line));
    }
}

#[test]
fn whatever_is_in_use_room_is_found_for_as_many_as_there_are_slots() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for policy in PolicyKind::ALL.map(Some).into_iter().chain([None]) {
        for slots in [1, 2, 3, 7, 20] {
            let mut cache = Cache::new(40, slots, policy);
            let mut inside = [None; 40];
            for step in 0..3000 {
                let count = 1 + rng.next_u32() % slots;
                let mut records: Vec<u32> = (0..count).map(|_| rng.next_u32() % 40).collect();
                // Some are used far more often than others.
                records
                    .iter_mut()
                    .filter(|r| **r % 3 > 0)
                    .for_each(|r| *r %= 7);
                records.sort_unstable();
                records.dedup();
                cache.begin(&records);
                for &record in &records {
                    let slot = match cache.place(record) {
                        Place::Here(slot) => {
                            assert_eq!(inside[record as usize], Some(slot));
                            slot
                        }
                        Place::New(slot) => slot,
                        Place::Full => panic!("{policy:?}, {slots} slots, step {step}"),
                    };
                    inside
                        .iter_mut()
                        .filter(|s| **s == Some(slot))
                        .for_each(|s| *s = None);
                    inside[record as usize] = Some(slot);
                    cache.loaded(record);
                }
                let mut held: Vec<u32> =
                    records.iter().filter_map(|&r| inside[r as usize]).collect();
                held.sort_unstable();
                held.dedup();
                assert_eq!(
                    held.len(),
                    records.len(),
                    "all of a step are there together"
                );
                if step % 4 == 0 {
                    cache.token();
                }
                if step % 50 == 0 {
                    cache.remove(records[0]);
                    inside[records[0] as usize] = None;
                }
            }
        }
    }
}
