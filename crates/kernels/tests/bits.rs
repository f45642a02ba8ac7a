//! Every instruction set gives the bits of the scalar kernels, and a row's bits do not depend on
//! its batch.

#![allow(clippy::unwrap_used, reason = "a failed set-up should stop at once")]

mod common;

use common::{Random, assert_bits, f16_bits, others, scalar, stored};
use lamella_kernels::{
    Epilogue, Input, Kernels, Matrix, QuantisedRows, Rows, SharedRows, any_non_finite, block_bytes,
    pack, packed_bytes, unpack_row,
};
use lamella_program::Encoding;
use lamella_program::block::GatedActivation;
use proptest::prelude::*;

/// A packed matrix at an odd address.
struct Packed {
    encoding: Encoding,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
    skew: usize,
}

impl Packed {
    fn new(encoding: Encoding, rows: usize, cols: usize, random: &mut Random) -> Packed {
        let stored = stored(encoding, rows, cols, random);
        let skew = random.below(70);
        let mut bytes = vec![0xa5; skew + packed_bytes(encoding, rows, cols).unwrap()];
        pack(encoding, rows, cols, &stored, &mut bytes[skew..]);
        Packed {
            encoding,
            rows,
            cols,
            bytes,
            skew,
        }
    }
    fn matrix(&self) -> Matrix<'_> {
        let Packed {
            encoding,
            rows,
            cols,
            ..
        } = *self;
        Matrix {
            encoding,
            rows,
            cols,
            data: &self.bytes[self.skew..],
        }
    }
}

/// Input rows in both forms.
struct Inputs {
    x: Vec<f32>,
    stride: usize,
    quantised: QuantisedRows,
}

impl Inputs {
    fn new(kernels: &Kernels, x: &[f32], rows: usize, cols: usize, stride: usize) -> Inputs {
        let mut quantised = QuantisedRows::with_capacity(rows, cols);
        quantised.quantise(kernels, x, rows, cols, stride);
        Inputs {
            x: x.to_vec(),
            stride,
            quantised,
        }
    }
    fn of(&self, encoding: Encoding) -> Input<'_> {
        match encoding.is_compiled() {
            true => Input::Quantised(&self.quantised),
            false => Input::F32 {
                x: &self.x,
                stride: self.stride,
            },
        }
    }
}

#[derive(Clone, Copy)]
enum How<'a> {
    Product(Epilogue<'a>),
    Gated(GatedActivation),
}

/// Every gated activation, the bounds within reach of the tests' products.
const ACTIVATIONS: [GatedActivation; 3] = [
    GatedActivation::Silu,
    GatedActivation::ClampedSilu { limit: 1.5 },
    GatedActivation::Situ {
        beta: 4.0,
        linear_beta: 2.5,
    },
];

/// All outputs for the given rows, starting from `out`.
fn product(
    kernels: &Kernels,
    matrices: [&Packed; 2],
    inputs: &Inputs,
    rows: Rows<'_>,
    out_rows: Rows<'_>,
    how: How<'_>,
    mut out: Vec<f32>,
) -> Vec<f32> {
    let [a, b] = matrices;
    let stride = a.rows + 3;
    let view = SharedRows::new(&mut out, a.rows, stride);
    let blocks = 0..a.matrix().blocks();
    let input = inputs.of(a.encoding);
    // SAFETY: one thread.
    unsafe {
        match how {
            How::Product(epilogue) => {
                kernels.matmul(&a.matrix(), blocks, input, rows, &view, out_rows, epilogue);
            }
            How::Gated(how) => {
                kernels.gated(&a.matrix(), &b.matrix(), blocks, input, rows, &view, how);
            }
        }
    }
    out
}

fn check_products(encoding: Encoding, seed: u64) {
    let random = &mut Random(seed);
    let (rows, cols, tokens) = (
        1 + random.below(70),
        1 + random.below(200),
        1 + random.below(20),
    );
    let stride = cols + random.below(5);
    let given = tokens + 2;
    let x = random.floats(given * stride);
    let (a, b) = (
        Packed::new(encoding, rows, cols, random),
        Packed::new(encoding, rows, cols, random),
    );
    let listed: Vec<u32> = (0..tokens).map(|_| random.below(given) as u32).collect();
    let scattered: Vec<u32> = (0..tokens).map(|_| random.below(given) as u32).collect();
    let weights = random.floats(tokens);
    let start = random.floats(given * (rows + 3));
    let reference = Inputs::new(&scalar(), &x, given, cols, stride);
    let hows = [
        How::Product(Epilogue::Store),
        How::Product(Epilogue::Add),
        How::Product(Epilogue::AddScaled(&weights)),
        How::Gated(ACTIVATIONS[0]),
        How::Gated(ACTIVATIONS[1]),
        How::Gated(ACTIVATIONS[2]),
    ];
    for how in hows {
        for (rows, out_rows) in [
            (Rows::First(tokens), Rows::First(tokens)),
            (Rows::At(&listed), Rows::At(&scattered)),
        ] {
            let out_rows = if matches!(how, How::Gated(_)) {
                Rows::First(tokens)
            } else {
                out_rows
            };
            let want = product(
                &scalar(),
                [&a, &b],
                &reference,
                rows,
                out_rows,
                how,
                start.clone(),
            );
            for kernels in others() {
                let inputs = Inputs::new(&kernels, &x, given, cols, stride);
                let got = product(
                    &kernels,
                    [&a, &b],
                    &inputs,
                    rows,
                    out_rows,
                    how,
                    start.clone(),
                );
                assert_bits(
                    &want,
                    &got,
                    &format!("{encoding} {} seed {seed}", kernels.isa()),
                );
            }
        }
    }
    check_batch_invariance(&a, &b, &reference, tokens, &start);
}

/// A row alone gives what it gives in the batch, and blocks one by one what they give together.
fn check_batch_invariance(a: &Packed, b: &Packed, inputs: &Inputs, tokens: usize, start: &[f32]) {
    for kernels in others() {
        for how in [How::Product(Epilogue::Store), How::Gated(ACTIVATIONS[2])] {
            let all = Rows::First(tokens);
            let together = product(&kernels, [a, b], inputs, all, all, how, start.to_vec());
            let stride = a.rows + 3;
            for t in 0..tokens {
                let one = [t as u32];
                let (row, first) = (Rows::At(&one), Rows::First(1));
                let alone = product(&kernels, [a, b], inputs, row, first, how, start.to_vec());
                assert_bits(&alone[..a.rows], &together[t * stride..][..a.rows], "alone");
            }
        }
        let mut out = start.to_vec();
        let view = SharedRows::new(&mut out, a.rows, a.rows + 3);
        let (input, all) = (inputs.of(a.encoding), Rows::First(tokens));
        for block in 0..a.matrix().blocks() {
            let blocks = block..block + 1;
            // SAFETY: one thread.
            unsafe {
                kernels.matmul(&a.matrix(), blocks, input, all, &view, all, Epilogue::Store);
            }
        }
        let how = How::Product(Epilogue::Store);
        let together = product(&kernels, [a, b], inputs, all, all, how, start.to_vec());
        assert_bits(&out, &together, "block by block");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn products_of_f32(seed: u64) { check_products(Encoding::F32, seed); }
    #[test]
    fn products_of_f16(seed: u64) { check_products(Encoding::F16, seed); }
    #[test]
    fn products_of_bf16(seed: u64) { check_products(Encoding::Bf16, seed); }
    #[test]
    fn products_of_fp8(seed: u64) { check_products(Encoding::Fp8, seed); }
    #[test]
    fn products_of_mxfp8(seed: u64) { check_products(Encoding::Mxfp8, seed); }
    #[test]
    fn products_of_mxfp4(seed: u64) { check_products(Encoding::Mxfp4, seed); }
    #[test]
    fn products_of_nvfp4(seed: u64) { check_products(Encoding::Nvfp4, seed); }
    #[test]
    fn products_of_q8(seed: u64) { check_products(Encoding::Q8, seed); }
    #[test]
    fn products_of_q4(seed: u64) { check_products(Encoding::Q4, seed); }
}

/// A gated product is the two products and [`Kernels::gate`].
#[test]
fn gated_products_are_products_and_a_gate() {
    let random = &mut Random(47);
    let (rows, cols, tokens) = (37, 65, 5);
    let x = random.floats(tokens * cols);
    for encoding in Encoding::ALL {
        let (a, b) = (
            Packed::new(encoding, rows, cols, random),
            Packed::new(encoding, rows, cols, random),
        );
        for kernels in others().into_iter().chain([scalar()]) {
            let inputs = Inputs::new(&kernels, &x, tokens, cols, cols);
            let all = Rows::First(tokens);
            let run = |matrices: [&Packed; 2], how: How<'_>| {
                let out = vec![0.0; tokens * (rows + 3)];
                product(&kernels, matrices, &inputs, all, all, how, out)
            };
            let store = How::Product(Epilogue::Store);
            let (gate, up) = (run([&a, &a], store), run([&b, &b], store));
            for activation in ACTIVATIONS {
                let mut want = gate.clone();
                kernels.gate(activation, &mut want, &up);
                let got = run([&a, &b], How::Gated(activation));
                assert_bits(&want, &got, &format!("{encoding} {activation:?}"));
            }
        }
    }
}

/// Sizes past every cut: of k for the cache, of input rows, of row blocks.
#[test]
fn products_larger_than_every_cut() {
    let (rows, cols, tokens) = (70, 2300, 133);
    for encoding in Encoding::ALL {
        let random = &mut Random(41);
        let x = random.floats(tokens * cols);
        let packed = Packed::new(encoding, rows, cols, random);
        let all = Rows::First(tokens);
        let how = How::Product(Epilogue::Store);
        let run = |kernels: &Kernels| {
            let inputs = Inputs::new(kernels, &x, tokens, cols, cols);
            let out = vec![0.0; tokens * (rows + 3)];
            product(kernels, [&packed; 2], &inputs, all, all, how, out)
        };
        let want = run(&scalar());
        for kernels in others() {
            assert_bits(
                &want,
                &run(&kernels),
                &format!("{encoding} {}", kernels.isa()),
            );
        }
    }
}

/// Gathered rows are copies, and consecutive rows listed one by one are the same rows.
#[test]
fn gathered_rows_give_the_same_products() {
    let random = &mut Random(43);
    let (rows, cols, given) = (40, 200, 60);
    let x = random.floats(given * cols);
    let listed: Vec<u32> = (0..37).map(|_| random.below(given) as u32).collect();
    for encoding in [Encoding::Q8, Encoding::Q4] {
        let packed = Packed::new(encoding, rows, cols, random);
        let how = How::Product(Epilogue::Store);
        for kernels in others() {
            let inputs = Inputs::new(&kernels, &x, given, cols, cols);
            let run = |inputs: &Inputs, rows_in: Rows<'_>| {
                let out_rows = Rows::First(rows_in.len());
                let out = vec![0.0; 40 * (rows + 3)];
                product(&kernels, [&packed; 2], inputs, rows_in, out_rows, how, out)
            };
            let mut gathered = Inputs::new(&kernels, &x, 0, cols, cols);
            gathered.quantised.gather(&inputs.quantised, &listed);
            let want = run(&inputs, Rows::At(&listed));
            assert_bits(
                &want,
                &run(&gathered, Rows::First(listed.len())),
                "gathered",
            );
            let shifted: Vec<u32> = (9..45).collect();
            let reversed: Vec<u32> = (9..45).rev().collect();
            let (up, down) = (
                run(&inputs, Rows::At(&shifted)),
                run(&inputs, Rows::At(&reversed)),
            );
            for t in 0..36 {
                let row = |t: usize| t * (rows + 3)..t * (rows + 3) + rows;
                assert_bits(&up[row(t)], &down[row(35 - t)], "consecutive");
            }
        }
    }
}

/// The reference itself follows the recipe: against loops written from the documentation. For
/// codes with scales see `coded.rs`.
#[test]
fn scalar_products_follow_the_documented_recipe() {
    let random = &mut Random(7);
    let (rows, cols) = (37, 75);
    let x = random.floats(cols);
    for encoding in Encoding::ALL.into_iter().filter(|e| !e.is_coded()) {
        let packed = Packed::new(encoding, rows, cols, random);
        let inputs = Inputs::new(&scalar(), &x, 1, cols, cols);
        let one = Rows::First(1);
        let how = How::Product(Epilogue::Store);
        let got = product(
            &scalar(),
            [&packed; 2],
            &inputs,
            one,
            one,
            how,
            vec![0.0; rows],
        );
        let mut w = vec![0.0; cols];
        for (row, got) in got.iter().enumerate().take(rows) {
            unpack_row(&packed.matrix(), row, &mut w);
            let want = if encoding.is_compiled() {
                compiled_dot(&packed, row, &inputs.quantised)
            } else {
                w.iter()
                    .zip(&x)
                    .fold(0.0f32, |acc, (w, x)| w.mul_add(*x, acc))
            };
            assert_eq!(want.to_bits(), got.to_bits(), "{encoding} row {row}");
            let plain: f64 = w
                .iter()
                .zip(&x)
                .map(|(w, x)| f64::from(*w) * f64::from(*x))
                .sum();
            let size: f64 = w
                .iter()
                .zip(&x)
                .map(|(w, x)| f64::from((w * x).abs()))
                .sum();
            assert!(
                (plain - f64::from(*got)).abs() <= 0.02 * size,
                "{encoding} row {row}"
            );
        }
    }
}

/// One output of a compiled matrix, from the layout's documentation.
fn compiled_dot(packed: &Packed, row: usize, x: &QuantisedRows) -> f32 {
    let block_bytes = block_bytes(packed.encoding, packed.cols).unwrap();
    let block = &packed.matrix().data[row / 16 * block_bytes..][..block_bytes];
    let (i, groups) = (row % 16, packed.cols.div_ceil(32));
    let codes = &block[(groups * 32).next_multiple_of(64)..];
    let mut one = vec![0.0; packed.cols];
    unpack_row(&packed.matrix(), row, &mut one);
    let mut acc = 0.0f32;
    for g in 0..groups {
        let mut dot = 0i32;
        for k in 0..32 {
            let value = if packed.encoding == Encoding::Q8 {
                i32::from(codes[512 * g + 64 * (k / 4) + 4 * i + k % 4]) - 128
            } else {
                let byte = codes[256 * g + 64 * (k / 8) + 4 * i + k % 4];
                i32::from(if k % 8 < 4 { byte & 15 } else { byte >> 4 }) - 8
            };
            dot += value * i32::from(x.group(0, g).0[k]);
        }
        let at = 32 * g + 2 * i;
        let bits = u16::from_le_bytes([block[at], block[at + 1]]);
        // Test scales are normal numbers or zero.
        let magnitude = match bits & 0x7fff {
            0 => 0.0,
            m => f32::from_bits((u32::from(m) << 13) + (112 << 23)),
        };
        let scale = if bits & 0x8000 != 0 {
            -magnitude
        } else {
            magnitude
        };
        acc = (dot as f32).mul_add(scale * x.group(0, g).1, acc);
    }
    acc
}

#[test]
fn quantised_rows_follow_the_documented_recipe() {
    let random = &mut Random(3);
    let mut x = random.floats(32 * 8 + 5);
    x[32..64].fill(0.0);
    x[70] = f32::NAN;
    x[100] = f32::INFINITY;
    x[128..160].iter_mut().for_each(|x| *x *= 1e-37);
    x[160..192].iter_mut().for_each(|x| *x *= 1e38);
    for kernels in others().into_iter().chain([scalar()]) {
        let mut rows = QuantisedRows::default();
        rows.quantise(&kernels, &x, 1, x.len(), x.len());
        for (g, group) in x.chunks(32).enumerate() {
            let (codes, scale) = rows.group(0, g);
            let amax = group
                .iter()
                .fold(0.0f32, |m, x| if x.is_nan() { *x } else { m.max(x.abs()) });
            if g == 2 || g == 3 {
                assert!(scale.is_nan() && codes.iter().all(|c| *c == 0), "group {g}");
            } else if g == 1 || g == 4 {
                assert!(scale == 0.0 && codes.iter().all(|c| *c == 0), "group {g}");
            } else {
                assert_eq!(scale.to_bits(), (amax / 127.0).to_bits());
                for (k, x) in group.iter().enumerate() {
                    let exact = f64::from(*x) * f64::from(127.0 / amax);
                    assert_eq!(f64::from(codes[k]), exact.round_ties_even(), "group {g}");
                }
                assert!(codes[group.len()..].iter().all(|c| *c == 0));
            }
        }
    }
}

/// A non-finite input makes its row's outputs non-finite, in every encoding and epilogue.
#[test]
fn non_finite_inputs_are_not_hidden() {
    let random = &mut Random(11);
    for encoding in Encoding::ALL {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let packed = Packed::new(encoding, 20, 64, random);
            let mut x = random.floats(3 * 64);
            x[64 + 17] = bad;
            for kernels in others().into_iter().chain([scalar()]) {
                let inputs = Inputs::new(&kernels, &x, 3, 64, 64);
                let all = Rows::First(3);
                let how = How::Product(Epilogue::Store);
                let out = product(
                    &kernels,
                    [&packed; 2],
                    &inputs,
                    all,
                    all,
                    how,
                    vec![0.0; 69],
                );
                assert!(!any_non_finite(&out[..20]) && !any_non_finite(&out[46..66]));
                assert!(
                    out[23..43].iter().all(|x| !x.is_finite()),
                    "{encoding} {bad}"
                );
            }
        }
    }
}

#[test]
fn rows_unpack_to_what_was_stored() {
    let random = &mut Random(23);
    for encoding in [Encoding::F32, Encoding::F16, Encoding::Bf16] {
        let (rows, cols) = (21, 7);
        let bytes = stored(encoding, rows, cols, random);
        let mut packed = vec![0xff; packed_bytes(encoding, rows, cols).unwrap()];
        pack(encoding, rows, cols, &bytes, &mut packed);
        let matrix = Matrix {
            encoding,
            rows,
            cols,
            data: &packed,
        };
        let size = encoding.element_bytes().unwrap();
        let mut out = vec![0.0; cols];
        for row in 0..rows {
            unpack_row(&matrix, row, &mut out);
            for (k, x) in out.iter().enumerate() {
                let b = &bytes[(row * cols + k) * size..][..size];
                match encoding {
                    Encoding::F32 => assert_eq!(x.to_le_bytes(), *b),
                    Encoding::Bf16 => {
                        assert_eq!(x.to_bits() >> 16, u32::from(b[0]) | u32::from(b[1]) << 8)
                    }
                    _ => assert_eq!(f16_bits(*x).to_le_bytes(), *b),
                }
            }
        }
    }
    assert_eq!(packed_bytes(Encoding::F32, usize::MAX, 8), None);
}
