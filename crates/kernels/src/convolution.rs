//! Short causal convolutions, each channel on its own.

use lamella_program::block::Activation;

use crate::Kernels;
use crate::elementary::{sigmoid_lanes, silu_lanes};
use crate::lanes::{LANES, Lanes};
use crate::tile::Machine;

/// The operands of one row.
pub(crate) struct Convolution<'a> {
    rows: &'a [&'a [f32]],
    /// Those of the given rows.
    weights: &'a [f32],
    residual: bool,
    activation: Option<Activation>,
}

impl Kernels {
    /// One row of a causal convolution: `y[c] = sum over taps j of weights[j][c] * rows[j][c]`, by
    /// fma, upward from +0; with `residual` the current row is added to it; then `activation`.
    ///
    /// `rows` are the inputs at the taps, the oldest first and the current one last, each of
    /// `out.len()` channels. Where fewer of them exist than there are taps, those before the
    /// first are zero. `weights` is `[tap][channel]`, see [`transpose_taps`].
    ///
    /// # Panics
    /// If there is no row, there are more rows than taps, or a length does not fit.
    pub fn short_convolution(
        &self,
        rows: &[&[f32]],
        weights: &[f32],
        residual: bool,
        activation: Option<Activation>,
        out: &mut [f32],
    ) {
        let channels = out.len();
        assert!(
            !rows.is_empty() && rows.iter().all(|row| row.len() == channels),
            "rows of {channels} channels"
        );
        assert!(
            weights.len().is_multiple_of(channels) && weights.len() / channels.max(1) >= rows.len(),
            "{} weights for {} rows of {channels} channels",
            weights.len(),
            rows.len()
        );
        let convolution = Convolution {
            rows,
            weights: &weights[weights.len() - rows.len() * channels..],
            residual,
            activation,
        };
        // SAFETY: checked lengths; `Kernels` vouches for the instruction set.
        unsafe { (self.table().convolve)(&convolution, out) }
    }
}

/// From the weights of a checkpoint, `[channel][tap]`, to `[tap][channel]`.
///
/// # Panics
/// If the lengths differ or are no multiple of `taps`.
pub fn transpose_taps(weights: &[f32], taps: usize, out: &mut [f32]) {
    assert!(
        weights.len() == out.len() && weights.len().is_multiple_of(taps),
        "{} weights of {taps} taps",
        weights.len()
    );
    let channels = weights.len() / taps.max(1);
    for (c, weights) in weights.chunks_exact(taps.max(1)).enumerate() {
        for (j, w) in weights.iter().enumerate() {
            out[j * channels + c] = *w;
        }
    }
}

/// # Safety
/// The instruction set of `M`; rows and weights of `out.len()` channels, at least one row.
#[inline(always)]
pub(crate) unsafe fn convolve<M: Machine>(job: &Convolution<'_>, out: &mut [f32]) {
    let channels = out.len();
    for c in (0..channels).step_by(LANES) {
        let n = channels - c;
        // SAFETY: every access is within its row.
        unsafe {
            let mut sum = M::L::splat(0.0);
            let mut x = sum;
            for (j, row) in job.rows.iter().enumerate() {
                let w = job.weights.as_ptr().add(j * channels + c);
                x = M::L::load_part(row.as_ptr().add(c), n, 0.0);
                sum = M::L::load_part(w, n, 0.0).fma(x, sum);
            }
            if job.residual {
                sum = sum.add(x);
            }
            let result = match job.activation {
                None => sum,
                Some(Activation::Silu) => silu_lanes(sum),
                Some(Activation::Sigmoid) => sigmoid_lanes(sum),
            };
            result.store_part(out.as_mut_ptr().add(c), n);
        }
    }
}
