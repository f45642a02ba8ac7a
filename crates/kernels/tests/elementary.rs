//! Elementary functions: the same bits everywhere, and their accuracy against f64.

mod common;

use common::{Random, assert_bits, others, scalar};
use lamella_kernels::{Kernels, ln, sigmoid, silu, softplus, tanh};
use lamella_program::block::GatedActivation;

/// Floats of every size and sign, dense where the functions bend, and the special ones.
fn arguments() -> Vec<f32> {
    let mut x = vec![
        0.0,
        f32::INFINITY,
        f32::NAN,
        f32::MIN_POSITIVE,
        1e-45,
        2e-39,
        f32::MAX,
        1.0,
        9.01,
        9.02,
        17.0,
        17.4,
        20.0,
        20.1,
        40.0,
        87.33,
        87.34,
        88.72,
        88.73,
        89.5,
        103.9,
        104.0,
        110.0,
        1e-8,
        0.346_573_6,
        std::f32::consts::SQRT_2,
        std::f32::consts::FRAC_1_SQRT_2,
    ];
    x.extend(x.clone().iter().map(|x| -x));
    let random = &mut Random(5);
    for scale in [0.01, 1.0, 10.0, 50.0] {
        x.extend((0..6000).map(|_| random.float() * scale));
    }
    x.extend((0..6000).map(|_| f32::from_bits(random.bits() as u32)));
    x
}

/// Checks `f` against `exact` to `units` in the last place wherever neither is NaN.
fn check(name: &str, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64, units: f64) {
    let ulp = |x: f64| 2f64.powi((x.abs().log2().floor() as i32).max(-126) - 23);
    let mut worst = (0.0, 0.0);
    for x in arguments() {
        let (y, want) = (f(x), exact(f64::from(x)));
        assert_eq!(y.is_nan(), want.is_nan(), "{name}({x}) = {y}, not {want}");
        if y.is_nan() || f64::from(y) == want {
            continue;
        }
        let error = (f64::from(y) - want).abs() / ulp(want);
        if error > worst.0 {
            worst = (error, x);
        }
    }
    let (error, x) = worst;
    assert!(error <= units, "{name}({x}) is {error} units off");
    println!("{name}: {error:.2} units at {x}");
}

#[test]
fn functions_are_accurate() {
    check("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 2.5);
    check("tanh", tanh, f64::tanh, 3.0);
    check(
        "softplus",
        softplus,
        |x| x.max(0.0) + (-x.abs()).exp().ln_1p(),
        2.0,
    );
    check("ln", ln, f64::ln, 1.0);
}

#[test]
fn functions_are_exact_where_they_saturate() {
    for x in [17.5, 40.0, 1e30, f32::MAX, f32::INFINITY] {
        assert_eq!((sigmoid(x), tanh(x), softplus(x)), (1.0, 1.0, x));
        assert_eq!(tanh(-x), -1.0);
    }
    for x in [-104.1, -1e30, f32::NEG_INFINITY] {
        assert_eq!((sigmoid(x), softplus(x)), (0.0, 0.0));
    }
    assert_eq!((sigmoid(0.0), tanh(0.0), ln(1.0)), (0.5, 0.0, 0.0));
    assert!(tanh(-0.0).is_sign_negative());
    assert_eq!(ln(0.0), f32::NEG_INFINITY);
    assert_eq!(ln(-0.0), f32::NEG_INFINITY);
    assert!(ln(-1e-45).is_nan() && ln(f32::NEG_INFINITY).is_nan());
    for x in arguments().into_iter().filter(|x| !x.is_nan()) {
        assert_eq!(
            tanh(-x).to_bits(),
            (-tanh(x)).to_bits(),
            "tanh is odd at {x}"
        );
    }
}

type Function = (fn(&Kernels, &mut [f32]), fn(f32) -> f32);

#[test]
fn vectors_give_the_bits_of_single_numbers() {
    let functions: [Function; 7] = [
        (Kernels::sigmoid, sigmoid),
        (Kernels::tanh, tanh),
        (Kernels::softplus, softplus),
        (Kernels::sqrt_softplus, |x| softplus(x).sqrt()),
        (Kernels::ln, ln),
        (Kernels::sqrt, f32::sqrt),
        (Kernels::silu, silu),
    ];
    let x = arguments();
    for kernels in others().into_iter().chain([scalar()]) {
        for (index, (run, one)) in functions.iter().enumerate() {
            let what = format!("{} function {index}", kernels.isa());
            let want: Vec<f32> = x.iter().map(|x| one(*x)).collect();
            let mut y = x.clone();
            run(&kernels, &mut y);
            assert_bits(&want, &y, &what);
            for n in [1, 7, 15, 16, 17, 33] {
                let mut y = x[50..50 + n].to_vec();
                run(&kernels, &mut y);
                assert_bits(&want[50..50 + n], &y, &what);
            }
        }
    }
}

#[test]
fn gates_and_products_give_scalar_bits() {
    for n in [1, 15, 16, 17, 31, 33, 100] {
        let random = &mut Random(n as u64);
        let (x, y, z) = (random.floats(n), random.floats(n), random.floats(n));
        for kernels in others().into_iter().chain([scalar()]) {
            let want: Vec<f32> = y.iter().zip(&x).map(|(y, x)| sigmoid(*y) * x).collect();
            let mut got = y.clone();
            kernels.sigmoid_mul(&mut got, &x);
            assert_bits(&want, &got, "sigmoid_mul");
            let mut got = x.clone();
            kernels.mul_sigmoid(&mut got, &y);
            assert_bits(&want, &got, "mul_sigmoid");
            let want: Vec<f32> = (0..n).map(|i| y[i].mul_add(z[i], x[i])).collect();
            let mut got = x.clone();
            kernels.add_product(&mut got, &y, &z);
            assert_bits(&want, &got, "add_product");
        }
    }
}

/// A gated activation as its definition says, from single numbers.
fn gate(activation: GatedActivation, g: f32, u: f32) -> f32 {
    match activation {
        GatedActivation::Silu => silu(g) * u,
        GatedActivation::ClampedSilu { limit } => {
            let bounded = |x: f32| if x > limit { limit } else { x };
            let up = if u < -limit { -limit } else { bounded(u) };
            silu(bounded(g)) * up
        }
        GatedActivation::Situ { beta, linear_beta } => {
            beta * tanh(g / beta) * sigmoid(g) * (linear_beta * tanh(u / linear_beta))
        }
    }
}

#[test]
fn gated_activations_follow_their_definition_everywhere() {
    let gates = arguments();
    let ups: Vec<f32> = gates.iter().rev().copied().collect();
    for activation in [
        GatedActivation::Silu,
        GatedActivation::ClampedSilu { limit: 10.0 },
        GatedActivation::Situ {
            beta: 4.0,
            linear_beta: 25.0,
        },
    ] {
        let both = gates.iter().zip(&ups);
        let want: Vec<f32> = both.map(|(g, u)| gate(activation, *g, *u)).collect();
        for kernels in others().into_iter().chain([scalar()]) {
            let mut got = gates.clone();
            kernels.gate(activation, &mut got, &ups);
            assert_bits(&want, &got, &format!("{} {activation:?}", kernels.isa()));
            let (mut g, u) = ([f32::NAN, 1.0, 1.0], [1.0, f32::NAN, 1.0]);
            kernels.gate(activation, &mut g, &u);
            assert!(g[0].is_nan() && g[1].is_nan() && !g[2].is_nan());
        }
    }
    let mut place = ups.clone();
    scalar().silu_mul(&mut place, &gates);
    let mut same = ups;
    scalar().gate(GatedActivation::Silu, &mut same, &gates);
    assert_bits(&place, &same, "silu_mul");
}
