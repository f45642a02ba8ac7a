//! The largest of many scores.

mod common;

use common::{Random, others, scalar};
use lamella_kernels::Kernels;

fn chosen(kernels: &Kernels, scores: &[f32], k: usize) -> Vec<u32> {
    let mut chosen = vec![u32::MAX; k];
    let count = kernels.top_k(scores, &mut chosen);
    assert!(chosen[count..].iter().all(|c| *c == u32::MAX));
    chosen.truncate(count);
    chosen
}

/// By sorting everything.
fn sorted(scores: &[f32], k: usize) -> Vec<u32> {
    let mut all: Vec<u32> = (0..scores.len() as u32).collect();
    let key = |i: u32| scores[i as usize];
    all.sort_by(|a, b| {
        let (x, y) = (key(*a), key(*b));
        let numbers = y.partial_cmp(&x);
        numbers
            .unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()))
            .then(a.cmp(b))
    });
    all.truncate(k);
    all.sort_unstable();
    all
}

#[test]
fn the_largest_are_chosen_in_every_order() {
    let random = &mut Random(9);
    for n in [0, 1, 2, 5, 16, 100, 1000] {
        let any = random.floats(n);
        let few: Vec<f32> = (0..n).map(|_| random.below(4) as f32 - 1.5).collect();
        let mut rising = any.clone();
        rising.sort_by(f32::total_cmp);
        let falling: Vec<f32> = rising.iter().rev().copied().collect();
        let wild: Vec<f32> = (0..n)
            .map(|_| match random.below(6) {
                0 => f32::NAN,
                1 => f32::NEG_INFINITY,
                2 => f32::INFINITY,
                3 => -0.0,
                4 => 0.0,
                _ => random.float(),
            })
            .collect();
        for scores in [
            any,
            few,
            rising,
            falling,
            wild,
            vec![f32::NAN; n],
            vec![0.5; n],
        ] {
            for k in [0, 1, 2, 3, 8, 50, n / 2, n, n + 3] {
                let want = sorted(&scores, k);
                for kernels in others().into_iter().chain([scalar()]) {
                    assert_eq!(chosen(&kernels, &scores, k), want, "{k} of {scores:?}");
                }
            }
        }
    }
}

#[test]
fn ties_go_to_the_lower_index_and_nan_comes_last() {
    let k = scalar();
    assert_eq!(chosen(&k, &[0.25, 0.3, 0.2, 0.25], 2), [0, 1]);
    assert_eq!(chosen(&k, &[-0.0, 0.0, -0.0, 0.0], 2), [0, 1]);
    let damaged = [f32::NAN, f32::NEG_INFINITY, f32::NAN, -1.0];
    assert_eq!(chosen(&k, &damaged, 2), [1, 3]);
    assert_eq!(chosen(&k, &damaged, 3), [0, 1, 3]);
    assert_eq!(chosen(&k, &[f32::NAN; 4], 3), [0, 1, 2]);
}
