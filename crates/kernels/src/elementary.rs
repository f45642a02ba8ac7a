//! Elementary functions, ours, so that every instruction set and platform gives the same bits.

use crate::lanes::{Lanes, MAGIC};
use crate::scalar::Array;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// `ln 2` as the sum of two f32.
const LN_2_HIGH: f32 = std::f32::consts::LN_2;
const LN_2_LOW: f32 = -1.904_654_3e-9;
/// `(exp(r) - 1 - r) / r^2` on `|r| <= ln(2) / 2`: minimax for the relative error of `exp`
/// (Remez exchange, 3.1e-9 before rounding of the coefficients), constant term first.
const EXP_POLYNOMIAL: [f32; 5] = [
    0.499_999_94,
    0.166_665_21,
    0.041_668_39,
    0.008_368_724,
    0.001_381_458_4,
];

/// `(ln((1 + s) / (1 - s)) - 2 s) / s^3` as a polynomial of `s^2` on `|s| <= 1/3`: minimax for
/// the relative error of the logarithm (Remez exchange, 5.6e-10 as rounded), constant term first.
const LN_POLYNOMIAL: [f32; 5] = [
    0.666_666_75,
    0.399_988_9,
    0.286_165_95,
    0.214_307_41,
    0.242_895_57,
];

/// `n` and `exp(r) - 1` of `x = n ln 2 + r`, `n` the nearest integer to `x / ln 2`. `x` is within
/// ±105 or NaN.
#[inline(always)]
unsafe fn reduce<L: Lanes>(x: L) -> (L, L) {
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        let magic = L::splat(MAGIC);
        let n = x.fma(L::splat(LOG2_E), magic).sub(magic);
        let r = n.fma(L::splat(-LN_2_HIGH), x);
        let r = n.fma(L::splat(-LN_2_LOW), r);
        let mut p = L::splat(EXP_POLYNOMIAL[4]);
        p = p.fma(r, L::splat(EXP_POLYNOMIAL[3]));
        p = p.fma(r, L::splat(EXP_POLYNOMIAL[2]));
        p = p.fma(r, L::splat(EXP_POLYNOMIAL[1]));
        p = p.fma(r, L::splat(EXP_POLYNOMIAL[0]));
        (n, r.mul(r).fma(p, r))
    }
}

/// `exp(x)` lane by lane: within 1.1 units in the last place, 0 below the smallest subnormal,
/// infinite above the largest float, NaN for NaN.
///
/// `x = n ln 2 + r` with integer `n`; `2^n` is applied as two factors so that subnormal results
/// round once.
#[inline(always)]
pub(crate) unsafe fn exp_lanes<L: Lanes>(x: L) -> L {
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        let magic = L::splat(MAGIC);
        // The bounds come first, so that NaN passes through.
        let x = L::splat(89.0).min(L::splat(-105.0).max(x));
        let (n, p) = reduce(x);
        let p = p.add(L::splat(1.0));
        let half = n.fma(L::splat(0.5), magic);
        let rest = n.sub(half.sub(magic)).add(magic);
        p.mul(half.exp2_of_magic()).mul(rest.exp2_of_magic())
    }
}

/// `|x|` lane by lane, a zero becoming +0.
#[inline(always)]
unsafe fn abs<L: Lanes>(x: L) -> L {
    // SAFETY: the instruction set is the caller's promise.
    unsafe { x.max(L::splat(0.0).sub(x)) }
}

/// `x / (1 + exp(-x))` lane by lane.
#[inline(always)]
pub(crate) unsafe fn silu_lanes<L: Lanes>(x: L) -> L {
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        let e = exp_lanes(L::splat(0.0).sub(x));
        x.div(e.add(L::splat(1.0)))
    }
}

/// `1 / (1 + exp(-x))` lane by lane, as `e / (1 + e)` with `e = exp(-|x|)` where `x` is negative:
/// within 2.5 units in the last place everywhere.
#[inline(always)]
pub(crate) unsafe fn sigmoid_lanes<L: Lanes>(x: L) -> L {
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        let one = L::splat(1.0);
        let e = exp_lanes(L::splat(0.0).sub(abs(x)));
        x.by_sign(e, one).div(e.add(one))
    }
}

/// `tanh(x)` lane by lane, as `-t / (t + 2)` with `t = exp(-2 |x|) - 1` and the sign of `x`:
/// within 3 units in the last place, odd, ±1 where that is nearest.
#[inline(always)]
pub(crate) unsafe fn tanh_lanes<L: Lanes>(x: L) -> L {
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        // The bound is far past saturation; NaN passes through.
        let (n, p) = reduce(L::splat(-40.0).max(abs(x).mul(L::splat(-2.0))));
        let power = n.add(L::splat(MAGIC)).exp2_of_magic();
        let t = power.fma(p, power.sub(L::splat(1.0)));
        let size = L::splat(0.0).sub(t).div(t.add(L::splat(2.0)));
        x.by_sign(size.mul(L::splat(-1.0)), size)
    }
}

/// `ln(1 + f)` lane by lane for `f` in `-0.3..=1`, accurate near 0 too.
///
/// With `s = f / (2 + f)`, `ln(1 + f) = 2 atanh(s) = f - s f + s^3 P(s^2)`.
#[inline(always)]
unsafe fn ln_of_one_plus<L: Lanes>(f: L) -> L {
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        let s = f.div(f.add(L::splat(2.0)));
        let z = s.mul(s);
        let mut p = L::splat(LN_POLYNOMIAL[4]);
        p = p.fma(z, L::splat(LN_POLYNOMIAL[3]));
        p = p.fma(z, L::splat(LN_POLYNOMIAL[2]));
        p = p.fma(z, L::splat(LN_POLYNOMIAL[1]));
        p = p.fma(z, L::splat(LN_POLYNOMIAL[0]));
        // `s f = h - s h` with `h = f^2 / 2`, whose rounding weighs less.
        let half = f.mul(f).mul(L::splat(0.5));
        f.sub(half.sub(s.mul(z.fma(p, half))))
    }
}

/// `ln(x)` lane by lane: within 1 unit in the last place; `-inf` for zeros, NaN below them.
#[inline(always)]
pub(crate) unsafe fn ln_lanes<L: Lanes>(x: L) -> L {
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        let infinity = L::splat(f32::INFINITY);
        // Subnormal numbers are brought into the normal range.
        let small = x.sub(L::splat(f32::MIN_POSITIVE));
        let scaled = small.by_sign(x.mul(L::splat(33_554_432.0)), x);
        let shift = small.by_sign(L::splat(-25.0), L::splat(0.0));
        let (e, m) = scaled.split();
        let e = e.add(shift);
        let y = ln_of_one_plus(m.sub(L::splat(1.0)));
        let y = e.fma(L::splat(LN_2_LOW), y);
        let y = e.fma(L::splat(LN_2_HIGH), y);
        // What is not finite becomes NaN here, infinity itself below.
        let y = y.add(x.sub(x));
        let y = L::splat(f32::MAX).sub(x).by_sign(x, y);
        // The root is NaN for what is below zero.
        let least = x.sub(L::splat(f32::from_bits(1)));
        least.by_sign(x.sqrt().sub(infinity), y)
    }
}

/// `ln(1 + exp(x))` lane by lane, as `max(x, 0) + ln(1 + exp(-|x|))`: within 2 units in the last
/// place, and `x` itself from 17 on.
#[inline(always)]
pub(crate) unsafe fn softplus_lanes<L: Lanes>(x: L) -> L {
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        let zero = L::splat(0.0);
        let e = exp_lanes(zero.sub(abs(x)));
        zero.max(x).add(ln_of_one_plus(e))
    }
}

/// `exp(x)`, the bits every kernel uses: within 1.1 units in the last place.
#[must_use]
pub fn exp(x: f32) -> f32 {
    // SAFETY: arrays need no instruction set.
    unsafe { exp_lanes(Array::splat(x)).to_array()[0] }
}

/// The sigmoid-weighted linear unit `x / (1 + exp(-x))`, the bits every kernel uses.
#[must_use]
pub fn silu(x: f32) -> f32 {
    // SAFETY: arrays need no instruction set.
    unsafe { silu_lanes(Array::splat(x)).to_array()[0] }
}

/// The logistic function `1 / (1 + exp(-x))`, the bits every kernel uses: within 2.5 units in the
/// last place.
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    // SAFETY: arrays need no instruction set.
    unsafe { sigmoid_lanes(Array::splat(x)).to_array()[0] }
}

/// `tanh(x)`, the bits every kernel uses: within 3 units in the last place.
#[must_use]
pub fn tanh(x: f32) -> f32 {
    // SAFETY: arrays need no instruction set.
    unsafe { tanh_lanes(Array::splat(x)).to_array()[0] }
}

/// `ln(1 + exp(x))`, the bits every kernel uses: within 2 units in the last place.
#[must_use]
pub fn softplus(x: f32) -> f32 {
    // SAFETY: arrays need no instruction set.
    unsafe { softplus_lanes(Array::splat(x)).to_array()[0] }
}

/// The natural logarithm, the bits every kernel uses: within 1 unit in the last place, `-inf`
/// for zeros, NaN for negative numbers.
#[must_use]
pub fn ln(x: f32) -> f32 {
    // SAFETY: arrays need no instruction set.
    unsafe { ln_lanes(Array::splat(x)).to_array()[0] }
}
