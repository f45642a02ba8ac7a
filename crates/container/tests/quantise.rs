//! The quantiser: layout, limits, and its error beside the plain recipes of llama.cpp.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use lamella_container::float::{f16_to_f32, f32_to_f16};
use lamella_container::{CodecError, decode, encode, quantise};
use lamella_program::Encoding;
use lamella_program::encoding::GROUP;
use proptest::prelude::*;

/// A splitmix generator, so that the figures are the same everywhere.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((x ^ (x >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    fn gaussian(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Student's t with four degrees of freedom: heavy tails.
    fn heavy(&mut self) -> f64 {
        let chi: f64 = (0..4).map(|_| self.gaussian().powi(2)).sum();
        self.gaussian() / (chi / 4.0).sqrt()
    }
}

/// Weights of a group after a round trip.
type Recipe = fn(&[f32]) -> Vec<f32>;

/// llama.cpp's `Q8_0`: scale = largest magnitude / 127, stored as f16.
fn plain_q8(group: &[f32]) -> Vec<f32> {
    let largest = group.iter().fold(0.0f32, |m, w| m.max(w.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let stored = f16_to_f32(f32_to_f16(scale));
    group
        .iter()
        .map(|w| (w * inverse).round() * stored)
        .collect()
}

/// llama.cpp's `Q4_0`: scale = signed extreme / -8, levels -8..=7, stored as f16.
fn plain_q4(group: &[f32]) -> Vec<f32> {
    let extreme = group
        .iter()
        .fold(0.0f32, |m, &w| if w.abs() > m.abs() { w } else { m });
    let scale = extreme / -8.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let stored = f16_to_f32(f32_to_f16(scale));
    let code = |w: &f32| ((w * inverse + 8.5) as i32).clamp(0, 15) - 8;
    group.iter().map(|w| code(w) as f32 * stored).collect()
}

fn squared_error(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
        .sum()
}

fn round_trip(encoding: Encoding, rows: usize, cols: usize, weights: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0xaa; encoding.matrix_bytes(rows, cols).unwrap()];
    encode(encoding, rows, cols, weights, &mut bytes).unwrap();
    let mut out = vec![f32::NAN; rows * cols];
    decode(encoding, rows, cols, &bytes, &mut out).unwrap();
    out
}

#[test]
fn errs_less_than_the_plain_recipes() {
    let (rows, cols) = (64, 1024);
    let mut random = Random(11);
    let gaussian: Vec<f32> = (0..rows * cols)
        .map(|_| (random.gaussian() * 0.02) as f32)
        .collect();
    let heavy: Vec<f32> = (0..rows * cols)
        .map(|_| (random.heavy() * 0.02) as f32)
        .collect();
    let plain: [(Encoding, Recipe, f64); 2] = [
        (Encoding::Q8, plain_q8, 0.86),
        (Encoding::Q4, plain_q4, 0.935),
    ];
    for (encoding, recipe, at_most) in plain {
        for (name, weights) in [("gaussian", &gaussian), ("heavy-tailed", &heavy)] {
            let ours = round_trip(encoding, rows, cols, weights);
            let theirs: Vec<f32> = weights.chunks(GROUP).flat_map(recipe).collect();
            let ratio = squared_error(weights, &ours) / squared_error(weights, &theirs);
            println!("{encoding} {name}: {ratio:.4} of the plain recipe's squared error");
            assert!(ratio < at_most, "{encoding} {name}: {ratio}");
            // Not only on average: hardly a group may be worse.
            let worse = weights
                .chunks(GROUP)
                .zip(ours.chunks(GROUP))
                .filter(|(w, o)| squared_error(w, o) > squared_error(w, &recipe(w)) * 1.001);
            let worse = worse.count() as f64 / (weights.len() / GROUP) as f64;
            assert!(
                worse < 0.001,
                "{encoding} {name}: {worse} of the groups are worse"
            );
        }
    }
}

#[test]
fn weights_on_the_grid_are_kept_exactly() {
    let scale = 0.125f32;
    let q8: Vec<f32> = (0..GROUP * 4)
        .map(|i| (i as f32 - 127.0 + 64.0) * scale)
        .collect();
    let mut q8 = q8;
    for group in q8.chunks_mut(GROUP) {
        group[3] = 127.0 * scale;
    }
    assert_eq!(round_trip(Encoding::Q8, 4, GROUP, &q8), q8);
    let q4: Vec<f32> = (0..GROUP * 4)
        .map(|i| ((i % 16) as f32 - 8.0) * scale)
        .collect();
    assert_eq!(round_trip(Encoding::Q4, 4, GROUP, &q4), q4);
    let mirrored: Vec<f32> = q4.iter().map(|w| -w).collect();
    assert_eq!(round_trip(Encoding::Q4, 4, GROUP, &mirrored), mirrored);
}

/// The layout, spelled out from the documentation of `lamella_program::encoding`.
#[test]
fn codes_and_scales_lie_where_they_are_documented() {
    let (rows, cols) = (18, 70);
    let groups = 3;
    let weight = |row: usize, col: usize| ((row * 7 + col * 3) % 16) as f32 - 8.0;
    let mut weights: Vec<f32> = (0..rows * cols)
        .map(|i| weight(i / cols, i % cols))
        .collect();
    // One -8 in every group pins the scale to 1.
    for row in weights.chunks_mut(cols) {
        for group in row.chunks_mut(GROUP) {
            group[0] = -8.0;
            group[1] = 7.0;
        }
    }
    let plane = (groups * 32usize).next_multiple_of(64);
    let block = plane + groups * 256;
    let mut q4 = vec![0xaa; 2 * block];
    quantise(Encoding::Q4, rows, cols, &weights, &mut q4).unwrap();
    for row in 0..32 {
        let block = &q4[(row / 16) * block..][..block];
        for col in 0..groups * GROUP {
            let (g, k, i) = (col / GROUP, col % GROUP, row % 16);
            let (p, high, j) = (k / 8, k % 8 >= 4, k % 4);
            let byte = block[plane + g * 256 + (p * 16 + i) * 4 + j];
            let value = i32::from(if high { byte >> 4 } else { byte & 15 }) - 8;
            let at = (g * 16 + i) * 2;
            let scale = f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]));
            if row < rows && col < cols {
                assert_eq!(
                    value as f32 * scale,
                    weights[row * cols + col],
                    "{row} {col}"
                );
            } else {
                assert_eq!(value, 0);
                assert!(row < rows || scale == 0.0);
            }
        }
    }
    assert!(q4[groups * 32..plane].iter().all(|&b| b == 0));

    let mut q8 = vec![0xaa; Encoding::Q8.matrix_bytes(1, 32).unwrap()];
    let row: Vec<f32> = (0..32)
        .map(|k| if k == 31 { 127.0 } else { k as f32 })
        .collect();
    quantise(Encoding::Q8, 1, 32, &row, &mut q8).unwrap();
    assert_eq!(f16_to_f32(u16::from_le_bytes([q8[0], q8[1]])), 1.0);
    for (k, w) in row.iter().enumerate() {
        let byte = q8[64 + (k / 4) * 64 + k % 4];
        assert_eq!(f32::from(byte) - 128.0, *w);
    }
}

/// The encodings that weights are converted to.
fn made() -> impl Iterator<Item = Encoding> {
    Encoding::ALL.into_iter().filter(|e| !e.is_coded())
}

#[test]
fn codes_are_never_made() {
    for encoding in Encoding::ALL.into_iter().filter(|e| e.is_coded()) {
        let mut out = vec![0; encoding.matrix_bytes(2, 3).unwrap()];
        let error = encode(encoding, 2, 3, &[0.0; 6], &mut out).unwrap_err();
        assert_eq!(error, CodecError::OnlyShipped(encoding));
    }
}

#[test]
fn bad_weights_are_named() {
    let (rows, cols) = (20, 40);
    for encoding in made() {
        let mut out = vec![0; encoding.matrix_bytes(rows, cols).unwrap()];
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut weights = vec![0.5; rows * cols];
            weights[17 * cols + 33] = value;
            let error = encode(encoding, rows, cols, &weights, &mut out).unwrap_err();
            assert!(
                matches!(
                    error,
                    CodecError::NonFinite {
                        row: 17,
                        column: 33,
                        ..
                    }
                ),
                "{encoding}: {error}"
            );
        }
    }
    for (encoding, limit) in [
        (Encoding::Q8, 65504.0 * 127.0),
        (Encoding::Q4, 65504.0 * 8.0),
        (Encoding::F16, 65504.0),
    ] {
        let mut out = vec![0; encoding.matrix_bytes(rows, cols).unwrap()];
        let mut weights = vec![1.0; rows * cols];
        weights[19 * cols + 39] = -limit;
        encode(encoding, rows, cols, &weights, &mut out).unwrap();
        weights[19 * cols + 39] = -limit * 1.01;
        let error = encode(encoding, rows, cols, &weights, &mut out).unwrap_err();
        assert!(
            matches!(
                error,
                CodecError::TooLarge {
                    row: 19,
                    column: 39,
                    ..
                }
            ),
            "{encoding}: {error}"
        );
    }
}

#[test]
fn tiny_weights_underflow_gracefully() {
    for encoding in [Encoding::Q8, Encoding::Q4] {
        for magnitude in [1e-4f32, 1e-6, 3e-7, 1e-7, 1e-9, 1e-30, 1e-45] {
            let weights: Vec<f32> = (0..32)
                .map(|k| magnitude * (k as f32 / 31.0 - 0.5))
                .collect();
            let out = round_trip(encoding, 1, 32, &weights);
            for (w, o) in weights.iter().zip(&out) {
                // A step of the grid, or half the smallest scale's worth.
                assert!(
                    (w - o).abs() <= magnitude * 0.07 + 6e-8,
                    "{encoding} {w} {o}"
                );
            }
        }
    }
}

#[test]
fn wrong_buffers_are_refused() {
    let mut out = vec![0; 10];
    for encoding in made() {
        assert!(encode(encoding, 0, 3, &[], &mut []).is_ok());
    }
    for encoding in Encoding::ALL {
        assert!(encode(encoding, 2, 3, &[0.0; 6], &mut out).is_err());
        assert!(encode(encoding, 2, 3, &[0.0; 5], &mut out).is_err());
        assert!(decode(encoding, 2, 3, &out, &mut [0.0; 6]).is_err());
        assert!(decode(encoding, usize::MAX, 3, &out, &mut []).is_err());
        assert!(decode(encoding, 3, 0, &[], &mut []).is_ok());
    }
    assert_eq!(
        quantise(Encoding::F32, 1, 1, &[0.0], &mut [0; 4]),
        Err(CodecError::NotCompiled(Encoding::F32))
    );
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Row-major encodings keep what they can represent; compiled ones stay within a step.
    #[test]
    fn any_matrix_survives(
        rows in 1usize..40,
        cols in 1usize..100,
        seed in any::<u64>(),
        exponent in -20i32..10,
    ) {
        let mut random = Random(seed);
        let unit = 2f64.powi(exponent);
        let weights: Vec<f32> =
            (0..rows * cols).map(|_| (random.gaussian() * unit) as f32).collect();
        prop_assert_eq!(&round_trip(Encoding::F32, rows, cols, &weights), &weights);
        let bf16 = round_trip(Encoding::Bf16, rows, cols, &weights);
        prop_assert_eq!(&round_trip(Encoding::Bf16, rows, cols, &bf16), &bf16);
        for (encoding, steps) in [(Encoding::Q8, 127.0), (Encoding::Q4, 6.0)] {
            let out = round_trip(encoding, rows, cols, &weights);
            for (w, o) in weights.chunks(cols).zip(out.chunks(cols)) {
                for (w, o) in w.chunks(GROUP).zip(o.chunks(GROUP)) {
                    let largest = w.iter().fold(0.0f32, |m, w| m.max(w.abs()));
                    for (w, o) in w.iter().zip(o) {
                        // Where scales are few, cutting the extreme off can be the least error.
                        prop_assert!((w - o).abs() <= largest / steps * 1.6 + 2.5e-7);
                    }
                }
            }
        }
    }
}
