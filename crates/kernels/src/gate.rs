//! Gated activations: how the two branches of a gated unit (Shazeer 2020) become one.

use lamella_program::block::GatedActivation;

use crate::Kernels;
use crate::elementary::{sigmoid_lanes, silu_lanes, tanh_lanes};
use crate::lanes::{LANES, Lanes};
use crate::tile::Machine;

/// One gated activation, of 16 places at a time; a type each, so that no loop asks which it is.
pub(crate) trait Gate: Copy {
    /// # Safety
    /// The instruction set of `L`.
    unsafe fn apply<L: Lanes>(self, gate: L, up: L) -> L;
}

/// `silu(gate) * up`.
#[derive(Clone, Copy)]
pub(crate) struct Silu;

/// `silu(min(gate, limit)) * clamp(up, -limit, limit)`.
#[derive(Clone, Copy)]
pub(crate) struct ClampedSilu {
    pub limit: f32,
}

/// `((beta * tanh(gate / beta)) * sigmoid(gate)) * (linear_beta * tanh(up / linear_beta))`.
#[derive(Clone, Copy)]
pub(crate) struct Situ {
    pub beta: f32,
    pub linear_beta: f32,
}

impl Gate for Silu {
    #[inline(always)]
    unsafe fn apply<L: Lanes>(self, gate: L, up: L) -> L {
        // SAFETY: the instruction set is the caller's promise.
        unsafe { silu_lanes(gate).mul(up) }
    }
}

impl Gate for ClampedSilu {
    #[inline(always)]
    unsafe fn apply<L: Lanes>(self, gate: L, up: L) -> L {
        // SAFETY: the instruction set is the caller's promise.
        unsafe {
            let (low, high) = (L::splat(-self.limit), L::splat(self.limit));
            // The bounds come first, so that NaN passes through.
            silu_lanes(high.min(gate)).mul(high.min(low.max(up)))
        }
    }
}

impl Gate for Situ {
    #[inline(always)]
    unsafe fn apply<L: Lanes>(self, gate: L, up: L) -> L {
        // SAFETY: the instruction set is the caller's promise.
        unsafe {
            let (beta, linear) = (L::splat(self.beta), L::splat(self.linear_beta));
            let gated = beta
                .mul(tanh_lanes(gate.div(beta)))
                .mul(sigmoid_lanes(gate));
            gated.mul(linear.mul(tanh_lanes(up.div(linear))))
        }
    }
}

impl Kernels {
    /// `y = activation(y, x)`: `y` holds the gate branch and receives the result, `x` is the
    /// linear branch. The bits of [`Kernels::gated`] after its products. NaN in either branch
    /// gives NaN.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gate(&self, activation: GatedActivation, y: &mut [f32], x: &[f32]) {
        assert_eq!(x.len(), y.len(), "two branches of a gated unit");
        // SAFETY: equal lengths; `Kernels` vouches for the instruction set.
        unsafe { (self.table().gate)(activation, y, x) }
    }
}

/// # Safety
/// The instruction set of `M`; equal lengths.
#[inline(always)]
pub(crate) unsafe fn gate<M: Machine>(activation: GatedActivation, y: &mut [f32], x: &[f32]) {
    // SAFETY: the caller's promise.
    unsafe {
        match activation {
            GatedActivation::Silu => each::<M, _>(Silu, y, x),
            GatedActivation::ClampedSilu { limit } => each::<M, _>(ClampedSilu { limit }, y, x),
            GatedActivation::Situ { beta, linear_beta } => {
                each::<M, _>(Situ { beta, linear_beta }, y, x);
            }
        }
    }
}

#[inline(always)]
unsafe fn each<M: Machine, G: Gate>(gate: G, y: &mut [f32], x: &[f32]) {
    let n = y.len();
    for i in (0..n).step_by(LANES) {
        // SAFETY: every access is within the slices.
        unsafe {
            let out = y.as_mut_ptr().add(i);
            let up = M::L::load_part(x.as_ptr().add(i), n - i, 0.0);
            let result = gate.apply(M::L::load_part(out, n - i, 0.0), up);
            result.store_part(out, n - i);
        }
    }
}
