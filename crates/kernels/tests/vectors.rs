//! Operations on single vectors: the bits of the scalar kernels everywhere, and their accuracy.

#![allow(clippy::unwrap_used, reason = "a failed set-up should stop at once")]

mod common;

use common::{Random, assert_bits, others, scalar};
use lamella_kernels::{
    Kernels, NormWeight, READ_BLOCK, RopeTable, any_non_finite, exp, rope_frequencies, silu,
};
use lamella_program::block::{Rope, RopePairing, RopePlace};

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
fn reading_reads_every_value_of_whole_blocks() {
    let values = READ_BLOCK / 4;
    for kernels in others().into_iter().chain([scalar()]) {
        for streams in [1, 2, 3] {
            for at in 0..3 * streams * values {
                let mut memory = vec![0; (3 * streams * values + 5) * 4];
                memory[4 * at..4 * at + 4].copy_from_slice(&1.5f32.to_le_bytes());
                assert_eq!(
                    kernels.read(&memory, streams),
                    1.5,
                    "{streams} streams, {at}"
                );
            }
        }
    }
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
            each(&|y| kernels.l2_norm(y, 1e-6));
            each(&|y| kernels.layer_norm(y, &w, &x, 1e-6));
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

/// Squares beyond f32 are no reason for zeros; what is not finite stays so.
#[test]
fn norms_hold_where_squares_do_not() {
    for kernels in others().into_iter().chain([scalar()]) {
        for n in [1, 15, 16, 33, 100] {
            for size in [1e19, 1e25, 1e36] {
                let x: Vec<f32> = Random(n as u64)
                    .floats(n)
                    .iter()
                    .map(|x| x * size)
                    .collect();
                let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
                let near = |out: &[f32], factor: f64| {
                    let pairs = out.iter().zip(&x);
                    pairs.for_each(|(&out, &x)| {
                        let want = f64::from(x) * factor;
                        let error = (f64::from(out) - want).abs();
                        assert!(error <= 1e-5 * want.abs().max(1e-3), "{out}, {want}");
                    });
                };
                let mut out = x.clone();
                kernels.rms_norm_in_place(&mut out, NormWeight::None, 1e-5);
                near(&out, 1.0 / (squares / n as f64).sqrt());
                let mut out = x.clone();
                kernels.l2_norm(&mut out, 1e-5);
                near(&out, 1.0 / squares.sqrt());
                let (mut out, mut small) = (x.clone(), x.clone());
                kernels.scale(&mut small, 1.0 / size);
                let (one, none) = (vec![1.0; n], vec![0.0; n]);
                kernels.layer_norm(&mut out, &one, &none, 0.0);
                kernels.layer_norm(&mut small, &one, &none, 0.0);
                if n > 1 {
                    let mut pairs = out.iter().zip(&small);
                    assert!(
                        pairs.all(|(a, b)| (a - b).abs() < 1e-3),
                        "{out:?}, {small:?}"
                    );
                }
            }
            for bad in [f32::INFINITY, f32::NAN] {
                let mut x = Random(n as u64).floats(n);
                x[n / 2] = bad;
                let mut out = x.clone();
                kernels.rms_norm_in_place(&mut out, NormWeight::None, 1e-5);
                assert!(!out.iter().all(|x| x.is_finite()), "{bad}");
                kernels.l2_norm(&mut x, 1e-5);
                assert!(!x.iter().all(|x| x.is_finite()), "{bad}");
            }
        }
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
        let frequencies = rope_frequencies(&Rope {
            theta: 10_000.0,
            dims: 2 * pairs,
            place: RopePlace::First,
            pairing: RopePairing::Half,
            yarn: None,
        });
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
fn norms_follow_their_definitions() {
    for n in [1, 5, 16, 33, 128, 300] {
        let random = &mut Random(n as u64);
        let (x, w, b) = (random.floats(n), random.floats(n), random.floats(n));
        let x: Vec<f32> = x.iter().map(|x| x * 0.01 + 0.3).collect();
        let sum = |f: &dyn Fn(f64) -> f64| x.iter().map(|x| f(f64::from(*x))).sum::<f64>();
        let mean = sum(&|x| x) / n as f64;
        let variance = sum(&|x| (x - mean) * (x - mean)) / n as f64;
        let length = (sum(&|x| x * x) + 1e-6).sqrt();
        let (mut unit, mut normed) = (x.clone(), x.clone());
        scalar().l2_norm(&mut unit, 1e-6);
        scalar().layer_norm(&mut normed, &w, &b, 1e-6);
        for i in 0..n {
            let want = f64::from(x[i]) / length;
            assert!((want - f64::from(unit[i])).abs() < 1e-6, "l2 of {n}");
            let want = (f64::from(x[i]) - mean) / (variance + 1e-6).sqrt();
            let want = want * f64::from(w[i]) + f64::from(b[i]);
            let error = (want - f64::from(normed[i])).abs();
            assert!(error < 1e-4, "layer norm of {n}: {error}");
        }
        for kernels in others().into_iter().chain([scalar()]) {
            let mut x = x.clone();
            x[n / 2] = f32::NAN;
            let mut y = x.clone();
            kernels.l2_norm(&mut x, 1e-6);
            kernels.layer_norm(&mut y, &w, &b, 1e-6);
            assert!(x.iter().chain(&y).all(|x| x.is_nan()));
        }
    }
}

#[test]
fn dot_products_follow_the_lane_rule() {
    for n in [0, 1, 3, 15, 16, 17, 100, 576, 1000] {
        let random = &mut Random(n as u64);
        let (a, b) = (random.floats(n), random.floats(n));
        let mut lanes = [0.0f32; 16];
        for i in 0..n {
            lanes[i % 16] = a[i].mul_add(b[i], lanes[i % 16]);
        }
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        for kernels in others().into_iter().chain([scalar()]) {
            assert_bits(&[lanes[0]], &[kernels.dot(&a, &b)], &format!("dot of {n}"));
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
