//! Every instruction set gives the bits of the scalar kernels, and a row's bits do not depend on
//! its batch.

#![allow(clippy::unwrap_used, reason = "a failed set-up should stop at once")]

use lamella_kernels::{
    Epilogue, Input, Isa, Kernels, Matrix, NormWeight, QuantisedRows, RopeTable, Rows, SharedRows,
    any_non_finite, block_bytes, exp, pack, packed_bytes, rope_frequencies, silu, unpack_row,
};
use lamella_program::Encoding;
use lamella_program::block::RopePairing;
use proptest::prelude::*;

/// A small generator (splitmix64), so that a failing case is its seed.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
    /// Roughly normal.
    fn float(&mut self) -> f32 {
        let sum: f64 = (0..6)
            .map(|_| (self.bits() >> 11) as f64 / (1u64 << 53) as f64)
            .sum();
        (sum - 3.0) as f32
    }
    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

fn others() -> Vec<Kernels> {
    Isa::ALL
        .into_iter()
        .filter(|i| *i != Isa::Scalar)
        .filter_map(Kernels::new)
        .collect()
}

fn scalar() -> Kernels {
    Kernels::new(Isa::Scalar).unwrap()
}

/// Equal bits, any NaN equal to any other.
#[track_caller]
fn assert_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        let same = x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
        assert!(
            same,
            "{what}: element {i}: {x:e} ({:x}), {y:e} ({:x})",
            x.to_bits(),
            y.to_bits()
        );
    }
}

fn f16_bits(x: f32) -> u16 {
    // Truncation is enough to make test weights.
    let bits = x.to_bits();
    let exponent = ((bits >> 23) & 0xff) as i32 - 112;
    let sign = (bits >> 16) as u16 & 0x8000;
    if exponent <= 0 {
        sign
    } else {
        sign | (exponent as u16) << 10 | (bits >> 13) as u16 & 0x3ff
    }
}

/// A stored matrix with random content.
fn stored(encoding: Encoding, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    match encoding {
        Encoding::F32 => {
            (0..rows * cols).for_each(|_| bytes.extend(random.float().to_le_bytes()));
        }
        Encoding::F16 => {
            (0..rows * cols).for_each(|_| bytes.extend(f16_bits(random.float()).to_le_bytes()));
        }
        Encoding::Bf16 => {
            let mut bf16 = || (random.float().to_bits() >> 16) as u16;
            (0..rows * cols).for_each(|_| bytes.extend(bf16().to_le_bytes()));
        }
        _ => {
            let groups = cols.div_ceil(32);
            let plane = (groups * 32).next_multiple_of(64);
            for _ in 0..rows.div_ceil(16) {
                let start = bytes.len();
                (0..groups * 16).for_each(|_| {
                    bytes.extend(f16_bits(random.float() * 0.01).to_le_bytes());
                });
                bytes.resize(start + plane, 0);
                let codes = groups * encoding.tile_code_bytes().unwrap();
                (0..codes).for_each(|_| bytes.push(random.bits() as u8));
            }
        }
    }
    assert_eq!(Some(bytes.len()), encoding.matrix_bytes(rows, cols));
    bytes
}

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
    Gated,
}

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
            How::Gated => kernels.gated(&a.matrix(), &b.matrix(), blocks, input, rows, &view),
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
        How::Gated,
    ];
    for how in hows {
        for (rows, out_rows) in [
            (Rows::First(tokens), Rows::First(tokens)),
            (Rows::At(&listed), Rows::At(&scattered)),
        ] {
            let out_rows = if matches!(how, How::Gated) {
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
        for how in [How::Product(Epilogue::Store), How::Gated] {
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
    fn products_of_q8(seed: u64) { check_products(Encoding::Q8, seed); }
    #[test]
    fn products_of_q4(seed: u64) { check_products(Encoding::Q4, seed); }
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

/// The reference itself follows the recipe: against loops written from the documentation.
#[test]
fn scalar_products_follow_the_documented_recipe() {
    let random = &mut Random(7);
    let (rows, cols) = (37, 75);
    let x = random.floats(cols);
    for encoding in Encoding::ALL {
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

fn special_values() -> Vec<f32> {
    let mut x = vec![
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
        f32::MIN_POSITIVE,
        -f32::MIN_POSITIVE,
        1e-45,
        -1e-45,
        f32::MAX,
        f32::MIN,
        1.0,
        -1.0,
        88.72,
        88.73,
        89.5,
        -87.3,
        -87.4,
        -103.9,
        -104.0,
        -110.0,
        1e-8,
        -1e-8,
        0.346_573_6,
        0.346_573_62,
    ];
    let random = &mut Random(5);
    x.extend((0..4000).map(|_| random.float() * 30.0));
    x.extend((0..4000).map(|_| f32::from_bits(random.bits() as u32)));
    x
}

#[test]
fn vector_operations_give_scalar_bits() {
    for n in [1, 2, 15, 16, 17, 31, 33, 100, 257] {
        let random = &mut Random(n as u64);
        let (x, y, w) = (random.floats(n), random.floats(n), random.floats(n));
        let run = |kernels: &Kernels| {
            let mut all = Vec::new();
            for weight in [
                NormWeight::None,
                NormWeight::Plain(&w),
                NormWeight::UnitOffset(&w),
            ] {
                let mut out = vec![0.0; n];
                kernels.rms_norm(&x, weight, 1e-5, &mut out);
                let mut place = x.clone();
                kernels.rms_norm_in_place(&mut place, weight, 1e-5);
                assert_bits(&out, &place, "in place");
                all.extend(out);
            }
            let mut each = |f: &dyn Fn(&mut [f32])| {
                let mut out = y.clone();
                f(&mut out);
                all.extend(out);
            };
            each(&|y| kernels.softmax(y));
            each(&|y| kernels.add(y, &x));
            each(&|y| kernels.add_scaled(y, 0.3, &x));
            each(&|y| kernels.scale(y, 0.3));
            each(&|y| kernels.mul(y, &x));
            each(&|y| kernels.clamp(y, -0.5, 0.4));
            each(&|y| kernels.silu_mul(y, &x));
            each(&|y| y[0] = kernels.log_sum_exp(&x) as f32);
            all
        };
        let want = run(&scalar());
        others()
            .iter()
            .for_each(|k| assert_bits(&want, &run(k), &format!("{} n {n}", k.isa())));
    }
}

#[test]
fn elementary_functions_are_accurate_and_the_same_everywhere() {
    let x = special_values();
    let want_exp: Vec<f32> = x.iter().map(|x| exp(*x)).collect();
    let want_silu: Vec<f32> = x.iter().map(|x| silu(*x)).collect();
    for kernels in others().into_iter().chain([scalar()]) {
        let mut y = x.clone();
        kernels.exp(&mut y);
        assert_bits(&want_exp, &y, "exp");
        let mut y = x.clone();
        kernels.silu(&mut y);
        assert_bits(&want_silu, &y, "silu");
        let mut y = x.clone();
        kernels.clamp(&mut y, -1.0, 1.0);
        assert!(y.iter().zip(&x).all(|(y, x)| y.is_nan() == x.is_nan()));
    }
    let ulp = |x: f64| 2f64.powi((x.abs().log2().floor() as i32).max(-126) - 23);
    for (x, e) in x.iter().zip(&want_exp) {
        let exact = f64::from(*x).exp();
        if x.is_nan() {
            assert!(e.is_nan());
        } else if exact > f64::from(f32::MAX) * 1.000_000_1 {
            assert_eq!(*e, f32::INFINITY);
        } else if exact < 1e-50 {
            assert_eq!(*e, 0.0);
        } else if exact < f64::from(f32::MAX) * 0.999_999 {
            assert!(
                (f64::from(*e) - exact).abs() <= 1.1 * ulp(exact),
                "exp({x}) = {e}"
            );
        }
    }
    for (x, s) in x.iter().zip(&want_silu).filter(|(x, _)| x.abs() < 80.0) {
        let exact = f64::from(*x) / (1.0 + f64::from(-*x).exp());
        assert!(
            (f64::from(*s) - exact).abs() <= 3.0 * ulp(exact),
            "silu({x}) = {s}"
        );
    }
    assert_eq!(
        (exp(0.0), exp(f32::NEG_INFINITY), silu(0.0)),
        (1.0, 0.0, 0.0)
    );
}

#[test]
fn softmax_propagates_what_is_not_finite() {
    for kernels in others().into_iter().chain([scalar()]) {
        for bad in [f32::NAN, f32::INFINITY] {
            for n in [3, 20, 40] {
                let mut x = vec![0.5; n];
                x[n / 2] = bad;
                kernels.softmax(&mut x);
                assert!(x[n / 2].is_nan(), "{bad} of {n}");
            }
        }
        let mut x = [1.0, f32::NEG_INFINITY, 1.0];
        kernels.softmax(&mut x);
        assert_eq!(x, [0.5, 0.0, 0.5]);
    }
}

#[test]
fn rotation_gives_scalar_bits_and_the_documented_angles() {
    for pairs in [1, 3, 8, 16, 21, 64] {
        let frequencies = rope_frequencies(10_000.0, 2 * pairs);
        let table = RopeTable::new(&frequencies, 70);
        let (cos, sin) = table.at(69);
        for (j, frequency) in frequencies.iter().enumerate() {
            let angle = 69.0 * 10_000f64.powf(-(j as f64) / pairs as f64);
            assert!((frequency * 69.0 - angle).abs() < 1e-12 * angle);
            assert!((f64::from(cos[j]) - angle.cos()).abs() < 1e-7);
            assert!((f64::from(sin[j]) - angle.sin()).abs() < 1e-7);
        }
        let x = Random(pairs as u64).floats(2 * pairs);
        for pairing in [RopePairing::Half, RopePairing::Adjacent] {
            let mut want = x.clone();
            scalar().rotate(&mut want, cos, sin, pairing);
            let (i, j) = if pairing == RopePairing::Half {
                (0, pairs)
            } else {
                (0, 1)
            };
            let turned = f64::from(x[i]) * f64::from(cos[0]) - f64::from(x[j]) * f64::from(sin[0]);
            assert!((f64::from(want[i]) - turned).abs() < 1e-6);
            for kernels in others() {
                let mut got = x.clone();
                kernels.rotate(&mut got, cos, sin, pairing);
                assert_bits(&want, &got, "rotate");
            }
        }
    }
}

#[test]
fn argmax_takes_the_lowest_of_equals_and_never_nan() {
    for kernels in others().into_iter().chain([scalar()]) {
        for n in [1, 16, 37] {
            let mut x = vec![-1.0; n];
            assert_eq!(kernels.argmax(&x), 0);
            x[n - 1] = 2.0;
            x[n / 2] = 2.0;
            assert_eq!(kernels.argmax(&x), n / 2);
            x[0] = f32::NAN;
            assert_eq!(kernels.argmax(&x), n / 2 * usize::from(n > 1));
        }
        assert_eq!(kernels.argmax(&[f32::NAN, f32::NEG_INFINITY]), 1);
        assert_eq!(kernels.argmax(&[]), 0);
    }
    assert!(any_non_finite(&[1.0, f32::NAN]) && any_non_finite(&[f32::INFINITY]));
    assert!(!any_non_finite(&[f32::MAX, 0.0, -1e-45]));
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
