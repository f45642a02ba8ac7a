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
        let n = x.fma(L::splat(LOG2_E), magic).sub(magic);
        let r = n.fma(L::splat(-LN_2_HIGH), x);
        let r = n.fma(L::splat(-LN_2_LOW), r);
        let mut p = L::splat(EXP_POLYNOMIAL[4]);
        p = p.fma(r, L::splat(EXP_POLYNOMIAL[3]));
        p = p.fma(r, L::splat(EXP_POLYNOMIAL[2]));
        p = p.fma(r, L::splat(EXP_POLYNOMIAL[1]));
        p = p.fma(r, L::splat(EXP_POLYNOMIAL[0]));
        let p = r.mul(r).fma(p, r).add(L::splat(1.0));
        let half = n.fma(L::splat(0.5), magic);
        let rest = n.sub(half.sub(magic)).add(magic);
        p.mul(half.exp2_of_magic()).mul(rest.exp2_of_magic())
    }
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
