//! What carries state from token to token: the gated delta rule and short convolutions.

mod common;

use common::{Random, assert_bits, others, scalar};
use lamella_kernels::{Kernels, sigmoid, silu, transpose_taps};
use lamella_program::block::Activation;

struct Token {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    decay: Vec<f32>,
    beta: f32,
}

impl Token {
    fn new(random: &mut Random, keys: usize, values: usize, each: bool) -> Token {
        let decays = if each { keys } else { 1 };
        Token {
            query: random.floats(keys),
            key: random.floats(keys),
            value: random.floats(values),
            decay: random.floats(decays).iter().map(|x| sigmoid(*x)).collect(),
            beta: sigmoid(random.float()),
        }
    }

    fn step(&self, kernels: &Kernels, state: &mut [f32], out: &mut [f32]) {
        let Token {
            query,
            key,
            value,
            decay,
            beta,
        } = self;
        kernels.delta_step(state, query, key, value, decay, *beta, out);
    }

    /// The documentation, one number at a time.
    fn recipe(&self, state: &mut [f32]) -> Vec<f32> {
        let width = self.value.len();
        let mut out = vec![0.0f32; width];
        for (c, out) in out.iter_mut().enumerate() {
            let mut told = 0.0f32;
            for (i, key) in self.key.iter().enumerate() {
                let s = &mut state[i * width + c];
                *s *= self.decay[i % self.decay.len()];
                told = key.mul_add(*s, told);
            }
            let change = self.beta * (self.value[c] - told);
            for (i, key) in self.key.iter().enumerate() {
                let s = &mut state[i * width + c];
                *s = key.mul_add(change, *s);
                *out = self.query[i].mul_add(*s, *out);
            }
        }
        out
    }
}

#[test]
fn delta_steps_follow_the_recipe_everywhere() {
    for [keys, values] in [
        [1, 1],
        [3, 17],
        [16, 16],
        [20, 75],
        [128, 128],
        [33, 200],
        [7, 64],
    ] {
        for each in [false, true] {
            let random = &mut Random(keys as u64 * 1000 + values as u64);
            let start = random.floats(keys * values);
            let tokens: Vec<Token> = (0..3)
                .map(|_| Token::new(random, keys, values, each))
                .collect();
            let mut state = start.clone();
            let want: Vec<Vec<f32>> = tokens.iter().map(|t| t.recipe(&mut state)).collect();
            for kernels in others().into_iter().chain([scalar()]) {
                let what = format!("{} {keys} x {values}, {each}", kernels.isa());
                let mut got = start.clone();
                let mut out = vec![f32::NAN; values];
                for (token, want) in tokens.iter().zip(&want) {
                    token.step(&kernels, &mut got, &mut out);
                    assert_bits(want, &out, &what);
                }
                assert_bits(&state, &got, &what);
                let mut to = vec![f32::NAN; keys * values];
                let t = &tokens[0];
                let (query, key, value, decay) = (&t.query, &t.key, &t.value, &t.decay);
                kernels
                    .delta_step_from(&start, &mut to, query, key, value, decay, t.beta, &mut out);
                assert_bits(&want[0], &out, &what);
                let mut place = start.clone();
                t.recipe(&mut place);
                assert_bits(&place, &to, &what);
            }
        }
    }
}

#[test]
fn nan_stays_in_its_column() {
    for kernels in others().into_iter().chain([scalar()]) {
        let mut token = Token::new(&mut Random(3), 5, 70, true);
        token.value[40] = f32::NAN;
        let (mut state, mut out) = (vec![0.5; 5 * 70], vec![0.0; 70]);
        token.step(&kernels, &mut state, &mut out);
        assert!(out.iter().enumerate().all(|(c, x)| x.is_nan() == (c == 40)));
        assert!(
            state
                .iter()
                .enumerate()
                .all(|(i, x)| x.is_nan() == (i % 70 == 40))
        );
        token.query[2] = f32::NAN;
        token.step(&kernels, &mut state, &mut out);
        assert!(out.iter().all(|x| x.is_nan()));
    }
}

#[test]
fn convolutions_follow_the_recipe_everywhere() {
    for channels in [1, 15, 16, 17, 40, 100] {
        for taps in 1..=5 {
            let random = &mut Random((channels * 10 + taps) as u64);
            let stored = random.floats(channels * taps);
            let mut weights = vec![0.0; channels * taps];
            transpose_taps(&stored, taps, &mut weights);
            let inputs: Vec<Vec<f32>> = (0..taps).map(|_| random.floats(channels)).collect();
            for known in 1..=taps {
                let rows: Vec<&[f32]> = inputs[taps - known..].iter().map(|row| &row[..]).collect();
                for (residual, activation) in [
                    (false, None),
                    (true, None),
                    (false, Some(Activation::Silu)),
                    (true, Some(Activation::Sigmoid)),
                ] {
                    let one = |c: usize| {
                        let mut y = 0.0f32;
                        for (j, row) in rows.iter().enumerate() {
                            y = stored[c * taps + taps - known + j].mul_add(row[c], y);
                        }
                        if residual {
                            y += rows[known - 1][c];
                        }
                        match activation {
                            None => y,
                            Some(Activation::Silu) => silu(y),
                            Some(Activation::Sigmoid) => sigmoid(y),
                        }
                    };
                    let want: Vec<f32> = (0..channels).map(one).collect();
                    for kernels in others().into_iter().chain([scalar()]) {
                        let mut got = vec![f32::NAN; channels];
                        kernels.short_convolution(&rows, &weights, residual, activation, &mut got);
                        assert_bits(&want, &got, &format!("{channels} {taps} {known}"));
                    }
                }
            }
            // Missing rows are zeros.
            let zero = vec![0.0; channels];
            let mut rows = vec![&zero[..]; taps];
            rows[taps - 1] = &inputs[0];
            let (mut all, mut last) = (vec![0.0; channels], vec![0.0; channels]);
            let one = &rows[taps - 1..];
            scalar().short_convolution(&rows, &weights, false, None, &mut all);
            scalar().short_convolution(one, &weights, false, None, &mut last);
            assert_bits(&all, &last, "zeros before the first row");
        }
    }
}
