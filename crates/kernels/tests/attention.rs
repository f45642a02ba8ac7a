//! Attention: the same bits on every instruction set, in every grouping of queries, and right.

#![allow(clippy::unwrap_used, reason = "a failed set-up should stop at once")]

use lamella_kernels::{Isa, Kernels, KvPages, KvShape, PAGE, Query};

struct Pages {
    shape: KvShape,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl KvPages for Pages {
    fn keys(&self, page: usize) -> &[f32] {
        &self.keys[page]
    }
    fn values(&self, page: usize) -> &[f32] {
        &self.values[page]
    }
}

fn noise(seed: usize) -> f32 {
    let bits = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (bits >> 40) as f32 / (1 << 23) as f32 - 1.0
}

impl Pages {
    /// `n` positions; slots past them hold NaN, which nothing may touch.
    fn new(shape: KvShape, n: usize) -> Pages {
        let pages = n.div_ceil(PAGE);
        let keys = vec![vec![f32::NAN; shape.key_page_len()]; pages];
        let values = vec![vec![f32::NAN; shape.value_page_len()]; pages];
        let mut all = Pages {
            shape,
            keys,
            values,
        };
        for j in 0..n {
            let (key, value) = (all.key(j), all.value(j));
            shape.store_key(&mut all.keys[j / PAGE], j % PAGE, &key);
            shape.store_value(&mut all.values[j / PAGE], j % PAGE, &value);
        }
        all
    }
    fn key(&self, j: usize) -> Vec<f32> {
        let n = self.shape.heads * self.shape.key_dim;
        (0..n).map(|d| noise(j * 1009 + d)).collect()
    }
    fn value(&self, j: usize) -> Vec<f32> {
        let n = self.shape.heads * self.shape.value_dim;
        (0..n).map(|d| noise(j * 2003 + d + 500_000)).collect()
    }
}

type Ranges<'a> = &'a [std::ops::Range<usize>];

/// Outputs of one query for each range, `together` at a time.
fn outputs(
    kernels: &Kernels,
    pages: &Pages,
    head: usize,
    ranges: Ranges,
    together: usize,
) -> Vec<f32> {
    let KvShape {
        key_dim, value_dim, ..
    } = pages.shape;
    let vectors: Vec<Vec<f32>> = (0..ranges.len())
        .map(|t| {
            (0..key_dim)
                .map(|k| noise(t * 77 + k + 9_000_000))
                .collect()
        })
        .collect();
    let mut out = vec![0.5; ranges.len() * value_dim];
    let mut queries: Vec<Query> = Vec::new();
    for ((vector, visible), out) in vectors.iter().zip(ranges).zip(out.chunks_mut(value_dim)) {
        queries.push(Query {
            vector,
            visible: visible.clone(),
            out,
        });
    }
    let most = ranges.iter().map(|r| r.end).max().unwrap_or(0);
    let mut scratch = vec![f32::NAN; KvShape::attend_scratch(most)];
    for queries in queries.chunks_mut(together) {
        kernels.attend(&pages.shape, head, 0.37, pages, queries, &mut scratch);
    }
    out
}

fn every_kernels() -> Vec<Kernels> {
    Isa::ALL.into_iter().filter_map(Kernels::new).collect()
}

#[test]
fn bits_do_not_depend_on_grouping_or_instruction_set() {
    for (key_dim, value_dim, n) in [
        (8, 8, 5),
        (16, 20, 70),
        (33, 64, 130),
        (128, 128, 200),
        (7, 150, 65),
    ] {
        let shape = KvShape {
            heads: 3,
            key_dim,
            value_dim,
        };
        let pages = Pages::new(shape, n);
        let mut ranges: Vec<_> = (0..9).map(|t| 0..n - t.min(n - 1)).collect();
        ranges.extend((0..7).map(|t| (t * 5).min(n - 1)..n));
        ranges.extend([n - 1..n, 0..1, 0..0, n / 2..n / 2 + 1]);
        let scalar = Kernels::new(Isa::Scalar).unwrap();
        for head in 0..3 {
            let want = outputs(&scalar, &pages, head, &ranges, 1);
            assert!(want.iter().all(|x| x.is_finite()));
            for kernels in every_kernels() {
                for together in [1, 2, 3, 4, 5, 100] {
                    let got = outputs(&kernels, &pages, head, &ranges, together);
                    let same = want
                        .iter()
                        .zip(&got)
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(
                        same,
                        "{} {key_dim} {value_dim} {n} by {together}",
                        kernels.isa()
                    );
                }
            }
        }
    }
}

#[test]
fn attention_is_the_softmax_average() {
    let shape = KvShape {
        heads: 2,
        key_dim: 24,
        value_dim: 12,
    };
    let pages = Pages::new(shape, 150);
    let range = 3..141;
    let got = outputs(&Kernels::best(), &pages, 1, std::slice::from_ref(&range), 1);
    let vector: Vec<f64> = (0..24).map(|k| f64::from(noise(k + 9_000_000))).collect();
    let score = |j: usize| -> f64 {
        let key = pages.key(j);
        0.37 * vector
            .iter()
            .zip(&key[24..])
            .map(|(q, k)| q * f64::from(*k))
            .sum::<f64>()
    };
    let sum: f64 = range.clone().map(|j| score(j).exp()).sum();
    for (d, got) in got.iter().enumerate() {
        let weighted = |j: usize| score(j).exp() * f64::from(pages.value(j)[12 + d]);
        let want = range.clone().map(weighted).sum::<f64>() / sum;
        assert!(
            (want - f64::from(*got)).abs() < 1e-6,
            "channel {d}: {want} {got}"
        );
    }
}

#[test]
fn non_finite_scores_and_values_show() {
    let shape = KvShape {
        heads: 1,
        key_dim: 16,
        value_dim: 16,
    };
    for kernels in every_kernels() {
        let mut pages = Pages::new(shape, 40);
        let mut key = pages.key(20);
        key[3] = f32::NAN;
        shape.store_key(&mut pages.keys[0], 20, &key);
        assert!(
            outputs(&kernels, &pages, 0, std::slice::from_ref(&(0..40)), 1)
                .iter()
                .all(|x| x.is_nan())
        );
        assert!(
            outputs(&kernels, &pages, 0, std::slice::from_ref(&(0..20)), 1)
                .iter()
                .all(|x| x.is_finite())
        );
    }
}
