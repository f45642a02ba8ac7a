//! Tests of the sampler, on crafted distributions.

use super::*;

fn sampler(sampling: Sampling, vocabulary: usize) -> Sampler {
    Sampler::new(sampling, vocabulary, 0, 0).unwrap()
}

fn logits_of(probabilities: &[f64]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln() as f32).collect()
}

/// The ids a random choice can fall on, in the sampler's own order.
fn kept(sampling: Sampling, logits: &[f32]) -> Vec<u32> {
    let mut s = sampler(sampling, logits.len());
    s.sample(logits).unwrap();
    s.kept
}

/// Adjusted logits after a prompt and an answer so far.
fn adjusted(sampling: Sampling, prompt: &[u32], answer: &[u32], logits: &[f32]) -> Vec<f64> {
    let mut s = sampler(sampling, logits.len());
    s.read_prompt(prompt);
    answer.iter().for_each(|&id| s.accept(id));
    s.adjust(logits);
    s.scores
}

#[test]
fn greedy_takes_the_largest_and_the_lowest_id_of_equals() {
    let mut s = sampler(Sampling::greedy(), 5);
    assert_eq!(s.sample(&[1.0, 3.0, 2.0, 3.0, -1.0]).unwrap(), 1);
    assert_eq!(s.sample(&[-3.0, -3.0, -9.0, -4.0, -5.0]).unwrap(), 0);
    assert_eq!(s.sample(&[-0.0, 0.0, -1.0, -1.0, -1.0]).unwrap(), 0);
    // The path with adjusted logits must agree.
    let biased = Sampling {
        logit_bias: vec![(4, 0.5)],
        ..Sampling::greedy()
    };
    let mut s = sampler(biased, 5);
    assert_eq!(s.sample(&[1.0, 3.0, 2.0, 3.0, 2.5]).unwrap(), 1);
    assert_eq!(s.sample(&[1.0, 3.0, 2.0, 3.0, 2.6]).unwrap(), 4);
}

#[test]
fn penalties_match_values_computed_by_hand() {
    let logits = [2.0, -2.0, 2.0, -2.0, 1.0];
    let repetition = Sampling {
        repetition_penalty: 2.0,
        ..Sampling::default()
    };
    // 0, 1 and 4 are in the prompt, 2 in the answer.
    assert_eq!(
        adjusted(repetition, &[0, 1, 1, 4], &[2], &logits),
        [1.0, -4.0, 1.0, -2.0, 0.5]
    );
    let counted = Sampling {
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        ..Sampling::default()
    };
    // The prompt does not count here; 2 stands there once, 3 three times.
    assert_eq!(
        adjusted(counted, &[0, 1], &[2, 3, 3, 3], &logits),
        [2.0, -2.0, 1.25, -3.75, 1.0]
    );
    let all = Sampling {
        repetition_penalty: 2.0,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        logit_bias: vec![(0, 10.0), (3, -1.0), (0, 1.0)],
        ..Sampling::default()
    };
    assert_eq!(
        adjusted(all, &[0], &[3, 3], &logits),
        [12.0, -2.0, 2.0, -6.25, 1.0]
    );
}

#[test]
fn a_negative_penalty_favours_what_was_said() {
    let favour = Sampling {
        presence_penalty: -1.0,
        ..Sampling::default()
    };
    assert_eq!(adjusted(favour, &[], &[1], &[0.0, 0.0]), [0.0, 1.0]);
}

#[test]
fn top_k_keeps_the_largest_with_ties_by_id() {
    let logits = [1.0, 5.0, 3.0, 3.0, 3.0, 4.0];
    let top = |top_k| {
        kept(
            Sampling {
                top_k,
                ..Sampling::default()
            },
            &logits,
        )
    };
    assert_eq!(top(1), [1]);
    assert_eq!(top(3), [1, 5, 2]);
    assert_eq!(top(4), [1, 5, 2, 3]);
    assert_eq!(top(6), [1, 5, 2, 3, 4, 0]);
    assert_eq!(top(100), [1, 5, 2, 3, 4, 0]);
    assert_eq!(top(0), [0, 1, 2, 3, 4, 5]);
}

/// Logits without order, with many ties.
fn scrambled(count: u32) -> Vec<f32> {
    (0..count)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 512.0)
        .collect()
}

#[test]
fn short_and_long_selections_are_heads_of_the_full_order() {
    let mut logits = scrambled(5000);
    logits[17] = f32::NEG_INFINITY;
    let mut order: Vec<u32> = (0..5000).filter(|&id| id != 17).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    for top_k in [1, 2, 127, 128, 129, 1000, 4999, 5000] {
        let head = kept(
            Sampling {
                top_k,
                ..Sampling::default()
            },
            &logits,
        );
        assert_eq!(head, order[..top_k.min(4999)], "{top_k}");
    }
}

/// The filters must keep what their definition says, whatever they skip on the way.
#[test]
fn filters_keep_what_a_plain_definition_keeps() {
    let logits = scrambled(3000);
    let mut order: Vec<u32> = (0..3000).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    let best = f64::from(logits[order[0] as usize]);
    let weight = |id: &u32| (f64::from(logits[*id as usize]) - best).exp();
    let total: f64 = order.iter().map(weight).sum();
    for (top_p, min_p) in [
        (0.1, 0.0),
        (0.9, 0.0),
        (0.999, 0.0),
        (0.5, 0.3),
        (0.9999, 0.01),
    ] {
        let mut mass = 0.0;
        let expected = order
            .iter()
            .take_while(|&id| {
                let before = mass;
                mass += weight(id);
                before < top_p * total
            })
            .filter(|&id| weight(id) >= min_p);
        let found = kept(
            Sampling {
                top_p,
                min_p,
                ..Sampling::default()
            },
            &logits,
        );
        assert!(
            found.iter().eq(expected),
            "{top_p} {min_p}: {} kept",
            found.len()
        );
    }
}

#[test]
fn top_p_keeps_the_shortest_sufficient_run() {
    let logits = logits_of(&[0.05, 0.5, 0.15, 0.3]);
    let top = |top_p| {
        kept(
            Sampling {
                top_p,
                ..Sampling::default()
            },
            &logits,
        )
    };
    assert_eq!(top(0.0), [1]);
    assert_eq!(top(0.49), [1]);
    assert_eq!(top(0.51), [1, 3]);
    assert_eq!(top(0.79), [1, 3]);
    assert_eq!(top(0.81), [1, 3, 2]);
    assert_eq!(top(0.96), [1, 3, 2, 0]);
    assert_eq!(top(1.0), [0, 1, 2, 3]);
    // Shares are of what top-k left: 0.5 / 0.8 = 0.625.
    let both = |top_p| {
        kept(
            Sampling {
                top_k: 2,
                top_p,
                ..Sampling::default()
            },
            &logits,
        )
    };
    assert_eq!(both(0.62), [1]);
    assert_eq!(both(0.63), [1, 3]);
}

#[test]
fn top_p_reaches_beyond_the_first_sorted_run() {
    let logits = vec![0.0; 1000];
    let half = kept(
        Sampling {
            top_p: 0.5,
            ..Sampling::default()
        },
        &logits,
    );
    assert_eq!(half, (0..500).collect::<Vec<u32>>());
    let falling: Vec<f32> = (0..1000).map(|i| i as f32 * 1e-3).collect();
    let some = kept(
        Sampling {
            top_p: 0.9,
            ..Sampling::default()
        },
        &falling,
    );
    assert!(some.len() > 512 && some.iter().copied().eq((0..1000).rev().take(some.len())));
}

#[test]
fn min_p_is_relative_to_the_best() {
    let logits = logits_of(&[0.05, 0.5, 0.15, 0.3]);
    let min = |min_p| {
        kept(
            Sampling {
                min_p,
                ..Sampling::default()
            },
            &logits,
        )
    };
    assert_eq!(min(0.09), [0, 1, 2, 3]);
    assert_eq!(min(0.11), [1, 2, 3]);
    assert_eq!(min(0.31), [1, 3]);
    assert_eq!(min(1.0), [1]);
    let all = Sampling {
        top_k: 3,
        top_p: 0.9,
        min_p: 0.31,
        ..Sampling::default()
    };
    assert_eq!(kept(all, &logits), [1, 3]);
}

#[test]
fn temperature_comes_before_top_p() {
    let logits = logits_of(&[0.6, 0.3, 0.1]);
    let at = |temperature| {
        kept(
            Sampling {
                temperature,
                top_p: 0.65,
                ..Sampling::default()
            },
            &logits,
        )
    };
    assert_eq!(at(1.0), [0, 1]);
    assert_eq!(at(0.5), [0]);
    assert_eq!(at(100.0), [0, 1]);
    assert_eq!(at(1e-300), [0]);
}

#[test]
fn a_seed_fixes_the_tokens() {
    let logits: Vec<f32> = (0..50).map(|i| ((i * 37 % 50) as f32) * 0.1).collect();
    let draw = |sampling: &Sampling, seed, choice| -> Vec<u32> {
        let mut s = Sampler::new(sampling.clone(), 50, seed, choice).unwrap();
        (0..16).map(|_| s.sample(&logits).unwrap()).collect()
    };
    let plain = Sampling::default();
    let filtered = Sampling {
        temperature: 0.8,
        top_k: 20,
        top_p: 0.9,
        ..Sampling::default()
    };
    // Golden, from a separate sampler in Python with its own ChaCha8: what a seed promises.
    assert_eq!(
        draw(&plain, 42, 0),
        [30, 43, 43, 28, 27, 35, 47, 16, 4, 35, 35, 4, 27, 43, 16, 4]
    );
    assert_eq!(
        draw(&filtered, 42, 0),
        [
            12, 24, 24, 12, 35, 16, 28, 31, 27, 43, 16, 27, 35, 24, 31, 27
        ]
    );
    assert_eq!(draw(&plain, 7, 1), draw(&plain, 7, 1));
    assert_ne!(draw(&plain, 7, 1), draw(&plain, 7, 0));
    assert_ne!(draw(&plain, 7, 1), draw(&plain, 8, 1));
}

#[test]
fn one_random_number_a_token_whatever_the_filters_left() {
    let logits: Vec<f32> = (0..50).map(|i| (i as f32) * 0.01).collect();
    let mut narrow = sampler(
        Sampling {
            top_k: 1,
            ..Sampling::default()
        },
        50,
    );
    let mut wide = sampler(Sampling::default(), 50);
    for _ in 0..5 {
        narrow.sample(&logits).unwrap();
        wide.sample(&logits).unwrap();
    }
    assert_eq!(narrow.random.unit(), wide.random.unit());
}

#[test]
fn draws_follow_the_distribution() {
    let probabilities = [0.4, 0.05, 0.25, 0.1, 0.2];
    let logits = logits_of(&probabilities);
    let draws = 20_000;
    for sampling in [
        Sampling::default(),
        Sampling {
            top_k: 5,
            ..Sampling::default()
        },
    ] {
        let mut s = sampler(sampling, 5);
        let mut counts = [0u32; 5];
        for _ in 0..draws {
            counts[s.sample(&logits).unwrap() as usize] += 1;
        }
        let chi_square: f64 = counts
            .iter()
            .zip(probabilities)
            .map(|(&n, p)| (f64::from(n) - p * f64::from(draws)).powi(2) / (p * f64::from(draws)))
            .sum();
        // 4 degrees of freedom: 18.5 is exceeded once in a thousand seeds.
        assert!(chi_square < 18.5, "{counts:?}: {chi_square}");
    }
}

#[test]
fn bad_logits_are_never_chosen_from() {
    let greedy = Sampling::greedy();
    let penalised = Sampling {
        presence_penalty: 1.0,
        ..Sampling::greedy()
    };
    let padded = Sampling {
        sampleable: Some(2),
        ..Sampling::greedy()
    };
    for sampling in [greedy, penalised, padded, Sampling::default()] {
        let mut s = sampler(sampling, 4);
        s.accept(0);
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for place in 0..4u32 {
                let mut logits = [0.5, 0.25, 1.0, -1.0];
                logits[place as usize] = bad;
                let error = s.sample(&logits).unwrap_err();
                assert!(
                    matches!(error, LogitsError::NotFinite { id, .. } if id == place),
                    "{bad} at {place}: {error}"
                );
            }
        }
        assert_eq!(
            s.sample(&[f32::NEG_INFINITY; 4]),
            Err(LogitsError::NothingLeft)
        );
        assert_eq!(
            s.sample(&[0.0; 3]),
            Err(LogitsError::Count {
                found: 3,
                vocabulary: 4
            })
        );
    }
}

#[test]
fn masked_banned_and_padded_tokens_are_never_chosen() {
    let masked = f32::NEG_INFINITY;
    let logits = [masked, 1.0, 9.0, 0.0, 99.0];
    for temperature in [0.0, 5.0] {
        let sampling = Sampling {
            temperature,
            logit_bias: vec![(2, f64::NEG_INFINITY)],
            sampleable: Some(4),
            ..Sampling::default()
        };
        let mut s = sampler(sampling, 5);
        for _ in 0..200 {
            assert!([1, 3].contains(&s.sample(&logits).unwrap()));
        }
    }
    let banned = Sampling {
        logit_bias: vec![(0, f64::NEG_INFINITY)],
        ..Sampling::greedy()
    };
    assert_eq!(
        sampler(banned, 1).sample(&[0.0]),
        Err(LogitsError::NothingLeft)
    );
}

#[test]
fn extreme_logits_and_settings_stay_finite() {
    let sampling = Sampling {
        temperature: 1e-9,
        repetition_penalty: 1e6,
        frequency_penalty: 1e6,
        logit_bias: vec![(0, 1e6)],
        ..Sampling::default()
    };
    let mut s = sampler(sampling, 3);
    s.accept(1);
    assert_eq!(s.sample(&[f32::MAX, f32::MAX, f32::MIN]).unwrap(), 0);
}

#[test]
fn settings_out_of_range_are_named() {
    type Change = fn(&mut Sampling);
    let changes: [(Change, &str); 10] = [
        (|s| s.temperature = -1.0, "temperature"),
        (|s| s.temperature = f64::NAN, "temperature"),
        (|s| s.top_p = 1.1, "top_p"),
        (|s| s.min_p = -0.1, "min_p"),
        (|s| s.repetition_penalty = 0.0, "repetition_penalty"),
        (|s| s.frequency_penalty = f64::INFINITY, "frequency_penalty"),
        (|s| s.presence_penalty = 1e9, "presence_penalty"),
        (|s| s.logit_bias = vec![(0, f64::NAN)], "logit_bias"),
        (|s| s.logit_bias = vec![(0, f64::INFINITY)], "logit_bias"),
        (
            |s| s.logit_bias = vec![(9, 0.0)],
            "logit_bias names token 9",
        ),
    ];
    for (change, name) in changes {
        let mut sampling = Sampling::default();
        change(&mut sampling);
        let error = Sampler::new(sampling, 9, 0, 0).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
    }
}

#[test]
fn buffers_are_reused() {
    let logits: Vec<f32> = (0..3000).map(|i| (i % 17) as f32).collect();
    let sampling = Sampling {
        top_p: 0.9,
        min_p: 0.01,
        repetition_penalty: 1.1,
        ..Sampling::default()
    };
    let mut s = sampler(sampling, 3000);
    let buffers = |s: &Sampler| {
        (
            s.scores.as_ptr(),
            s.weights.as_ptr(),
            s.kept.as_ptr(),
            s.past.seen.as_ptr(),
        )
    };
    let first = s.sample(&logits).unwrap();
    s.accept(first);
    let before = buffers(&s);
    for _ in 0..100 {
        let id = s.sample(&logits).unwrap();
        s.accept(id);
    }
    assert_eq!(buffers(&s), before);
}
