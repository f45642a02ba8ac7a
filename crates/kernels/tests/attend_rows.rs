//! Attention over listed rows, and the scores of selection: the same bits on every instruction
//! set and in every grouping of queries, and those of the documented recipe.

mod common;

use common::{Random, assert_bits, others, scalar};
use lamella_kernels::{IndexQueries, Kernels, KvRows, RowQuery, Scores, exp};

/// Rows at odd places of one buffer; values may be the first channels of the keys.
struct Rows {
    keys: Vec<Vec<f32>>,
    values: Option<Vec<Vec<f32>>>,
    value_dim: usize,
}

impl KvRows for Rows {
    fn key(&self, i: usize) -> &[f32] {
        &self.keys[i][1..]
    }
    fn value(&self, i: usize) -> &[f32] {
        match &self.values {
            Some(values) => &values[i],
            None => &self.keys[i][1..1 + self.value_dim],
        }
    }
}

struct Case {
    rows: Rows,
    count: usize,
    scores: Scores,
    queries: Vec<Vec<f32>>,
    biases: Option<Vec<Vec<f32>>>,
    sinks: Option<Vec<f32>>,
}

impl Case {
    fn new(seed: u64, [count, key_dim, value_dim, queries]: [usize; 4]) -> Case {
        let random = &mut Random(seed);
        let mut many = |n: usize, len: usize| -> Vec<Vec<f32>> {
            (0..n).map(|_| random.floats(len)).collect()
        };
        let values =
            (value_dim > key_dim || seed.is_multiple_of(2)).then(|| many(count, value_dim));
        Case {
            rows: Rows {
                keys: many(count, key_dim + 1),
                values,
                value_dim,
            },
            count,
            scores: Scores {
                scale: 0.3,
                growth: if seed.is_multiple_of(5) { 1.25 } else { 1.0 },
            },
            queries: many(queries, key_dim),
            biases: (seed.is_multiple_of(3)).then(|| many(queries, count)),
            sinks: (seed % 4 < 2).then(|| many(1, queries).remove(0)),
        }
    }

    /// Outputs of all queries, `together` in a call.
    fn run(&self, kernels: &Kernels, together: usize) -> Vec<f32> {
        let dim = self.rows.value_dim;
        let mut out = vec![f32::NAN; self.queries.len() * dim];
        let mut queries: Vec<RowQuery<'_>> = out
            .chunks_mut(dim)
            .enumerate()
            .map(|(t, out)| RowQuery {
                vector: &self.queries[t],
                bias: self.biases.as_ref().map(|b| &b[t][..]),
                sink: self.sinks.as_ref().map(|s| s[t]),
                out,
            })
            .collect();
        let len = Kernels::attend_rows_scratch(together, self.count);
        let mut scratch = vec![f32::NAN; len];
        for queries in queries.chunks_mut(together) {
            kernels.attend_rows(&self.rows, self.count, self.scores, queries, &mut scratch);
        }
        out
    }

    /// The documentation, one query and one number at a time.
    fn recipe(&self) -> Vec<f32> {
        let mut all = Vec::new();
        for (t, query) in self.queries.iter().enumerate() {
            let score = |i: usize| {
                let mut score = scalar().dot(query, self.rows.key(i)) * self.scores.scale;
                if let Some(biases) = &self.biases {
                    score += biases[t][i];
                }
                score * self.scores.growth
            };
            let scores: Vec<f32> = (0..self.count).map(score).collect();
            let sink = self.sinks.as_ref().map(|s| s[t]);
            let max = scores
                .iter()
                .copied()
                .chain(sink)
                .fold(f32::NEG_INFINITY, f32::max);
            let mut lanes = [0.0f32; 16];
            for (i, s) in scores.iter().enumerate() {
                lanes[i % 16] += exp(s - max);
            }
            for half in [8, 4, 2, 1] {
                (0..half).for_each(|i| lanes[i] += lanes[i + half]);
            }
            let sum = lanes[0] + sink.map_or(0.0, |s| exp(s - max));
            let mut out = vec![0.0f32; self.rows.value_dim];
            for (i, s) in scores.iter().enumerate() {
                let p = exp(s - max) / sum;
                for (out, v) in out.iter_mut().zip(self.rows.value(i)) {
                    *out = p.mul_add(*v, *out);
                }
            }
            all.extend(out);
        }
        all
    }
}

#[test]
fn outputs_follow_the_recipe_everywhere_in_every_grouping() {
    let shapes = [
        [0, 8, 8, 2],
        [1, 1, 1, 1],
        [3, 5, 3, 3],
        [17, 33, 20, 5],
        [64, 64, 64, 4],
        [65, 72, 64, 6],
        [130, 40, 150, 9],
        [200, 144, 129, 3],
        [31, 20, 33, 17],
    ];
    for (i, shape) in shapes.into_iter().enumerate() {
        for seed in [i as u64, i as u64 + 31, i as u64 + 60, i as u64 + 75] {
            let case = Case::new(seed, shape);
            let want = case.recipe();
            for kernels in others().into_iter().chain([scalar()]) {
                for together in [1, 2, 4, 7, 32] {
                    let got = case.run(&kernels, together);
                    let what = format!("{} {shape:?} seed {seed} by {together}", kernels.isa());
                    assert_bits(&want, &got, &what);
                }
            }
        }
    }
}

#[test]
fn outputs_are_attention() {
    let case = Case::new(12, [100, 24, 16, 2]);
    let got = case.run(&scalar(), 2);
    let (biases, sinks) = (case.biases.as_ref(), case.sinks.as_ref());
    for t in 0..2 {
        let score = |i: usize| {
            let pairs = case.queries[t].iter().zip(case.rows.key(i));
            let dot: f64 = pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            let bias = biases.map_or(0.0, |b| f64::from(b[t][i]));
            ((dot * f64::from(case.scores.scale) + bias) * f64::from(case.scores.growth)).exp()
        };
        let sink = sinks.map_or(0.0, |s| f64::from(s[t]).exp());
        let sum: f64 = (0..100).map(score).sum::<f64>() + sink;
        for d in 0..16 {
            let value = |i: usize| f64::from(case.rows.value(i)[d]);
            let want: f64 = (0..100).map(|i| score(i) / sum * value(i)).sum();
            assert!((want - f64::from(got[t * 16 + d])).abs() < 1e-5, "{t} {d}");
        }
    }
}

#[test]
fn what_is_not_finite_is_not_hidden() {
    for kernels in others().into_iter().chain([scalar()]) {
        let run = |bad: f32, at: usize, sink: Option<f32>| {
            let mut case = Case::new(2, [20, 8, 8, 5]);
            case.queries.iter_mut().for_each(|q| q.fill(1.0));
            case.rows.keys[at].fill(bad);
            case.sinks = sink.map(|s| vec![s; 5]);
            case.run(&kernels, 5)
        };
        for at in [0, 7, 19] {
            for bad in [f32::NAN, f32::INFINITY] {
                assert!(run(bad, at, None).iter().all(|x| x.is_nan()));
            }
            // A row of -inf is not seen.
            assert!(
                run(f32::NEG_INFINITY, at, None)
                    .iter()
                    .all(|x| x.is_finite())
            );
            assert!(run(1.0, at, Some(f32::NAN)).iter().all(|x| x.is_nan()));
            assert!(run(1.0, at, Some(f32::INFINITY)).iter().all(|x| x.is_nan()));
            let (plain, sunk) = (run(1.0, at, None), run(1.0, at, Some(f32::NEG_INFINITY)));
            assert_bits(&plain, &sunk, "a sink of -inf");
        }
        let mut case = Case::new(2, [9, 8, 8, 2]);
        case.rows
            .keys
            .iter_mut()
            .for_each(|k| k.fill(f32::NEG_INFINITY));
        case.queries.iter_mut().for_each(|q| q.fill(1.0));
        case.sinks = None;
        assert!(case.run(&kernels, 2).iter().all(|x| x.is_nan()));
        case.sinks = Some(vec![0.0; 2]);
        assert!(case.run(&kernels, 2).iter().all(|x| *x == 0.0));
    }
}

#[test]
fn index_scores_follow_the_recipe_everywhere() {
    for (i, [count, dim, heads]) in [
        [0, 4, 1],
        [1, 3, 1],
        [70, 16, 4],
        [133, 40, 7],
        [64, 128, 9],
    ]
    .into_iter()
    .enumerate()
    {
        let random = &mut Random(i as u64);
        let vectors = random.floats(heads * dim);
        let weights = random.floats(heads);
        let mut keys: Vec<Vec<f32>> = (0..count).map(|_| random.floats(dim + 1)).collect();
        if count > 20 {
            keys[5][2] = f32::NAN;
        }
        let rows = Rows {
            keys,
            values: None,
            value_dim: 0,
        };
        for weights in [None, Some(&weights[..])] {
            let queries = IndexQueries {
                heads,
                vectors: &vectors,
                weights,
                scale: 0.2,
            };
            let mut want = vec![0.0f32; count];
            for (i, score) in want.iter_mut().enumerate() {
                for (h, query) in vectors.chunks_exact(dim).enumerate() {
                    let dot = scalar().dot(query, rows.key(i));
                    let fit = if dot < 0.0 { 0.0 } else { dot };
                    let weight = weights.map_or(1.0, |w| w[h]);
                    *score = weight.mul_add(fit * 0.2, *score);
                }
            }
            for kernels in others().into_iter().chain([scalar()]) {
                let mut got = vec![f32::NAN; count];
                kernels.index_scores(&rows, &queries, &mut got);
                assert_bits(
                    &want,
                    &got,
                    &format!("{} {count} {dim} {heads}", kernels.isa()),
                );
            }
            assert!(count <= 20 || want[5].is_nan());
        }
    }
}
