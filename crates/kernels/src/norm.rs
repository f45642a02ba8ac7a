//! Norms of vectors.

use crate::Kernels;
use crate::lanes::{LANES, Lanes};
use crate::tile::Machine;

/// The weight of an RMS norm.
#[derive(Clone, Copy, Debug)]
pub enum NormWeight<'a> {
    /// None: every factor is 1.
    None,
    /// `w`.
    Plain(&'a [f32]),
    /// `1 + w`.
    UnitOffset(&'a [f32]),
}

impl Kernels {
    /// `out = x / sqrt(mean(x^2) + eps) * weight` (Zhang and Sennrich 2019).
    ///
    /// The squares are summed in 16 lanes (lane = index mod 16, by fma, upward), the lanes by a
    /// fixed tree, or one by one in f64 where that sum is infinite; the mean is `sum / n`, the
    /// factor `1 / sqrt(mean + eps)`, and each output is `(x * factor) * weight`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn rms_norm(&self, x: &[f32], weight: NormWeight<'_>, eps: f32, out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "a norm keeps the length");
        // SAFETY: equal lengths; `Kernels` vouches for the instruction set.
        unsafe { self.norm(x.as_ptr(), x.len(), weight, eps, out.as_mut_ptr()) }
    }

    /// [`Kernels::rms_norm`] in place.
    ///
    /// # Panics
    /// If the weight has another length.
    pub fn rms_norm_in_place(&self, x: &mut [f32], weight: NormWeight<'_>, eps: f32) {
        let p = x.as_mut_ptr();
        // SAFETY: one vector of this length; `Kernels` vouches for the instruction set.
        unsafe { self.norm(p, x.len(), weight, eps, p) }
    }

    unsafe fn norm(&self, x: *const f32, n: usize, w: NormWeight<'_>, eps: f32, out: *mut f32) {
        if let NormWeight::Plain(w) | NormWeight::UnitOffset(w) = w {
            assert_eq!(w.len(), n, "one norm weight for each element");
        }
        // SAFETY: the caller's promise and the check above.
        unsafe { (self.table().rms_norm)(x, n, w, eps, out) }
    }

    /// `x = x / sqrt(sum(x^2) + eps)`: eps is added to the sum, not to a mean.
    ///
    /// The squares are summed as in [`Kernels::rms_norm`]; the factor is `1 / sqrt(sum + eps)`.
    pub fn l2_norm(&self, x: &mut [f32], eps: f32) {
        // SAFETY: `Kernels` vouches for the instruction set.
        unsafe { (self.table().l2_norm)(x, eps) }
    }

    /// `x = (x - mean) / sqrt(variance + eps) * weight + bias` (Ba et al. 2016).
    ///
    /// Mean and variance are sums of 16 lanes (lane = index mod 16, upward; the squares of the
    /// differences by fma) joined by a fixed tree and divided by n; an output is
    /// `fma((x - mean) * (1 / sqrt(variance + eps)), weight, bias)`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn layer_norm(&self, x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
        assert!(
            weight.len() == x.len() && bias.len() == x.len(),
            "one weight and bias for each element"
        );
        // SAFETY: equal lengths; `Kernels` vouches for the instruction set.
        unsafe { (self.table().layer_norm)(x, weight, bias, eps) }
    }
}

/// `1 / sqrt(sum((x - centre)^2) / divisor + eps)` for values whose squares f32 cannot hold: an
/// infinite sum would make zeros of them, which nothing finds. Values that are not finite give what
/// is not finite.
#[cold]
fn wide_factor(x: &[f32], centre: f32, divisor: usize, eps: f32) -> f32 {
    let differences = x.iter().map(|&x| f64::from(x) - f64::from(centre));
    let sum: f64 = differences.map(|d| d * d).sum();
    match sum.is_finite() {
        true => (1.0 / (sum / divisor as f64 + f64::from(eps)).sqrt()) as f32,
        false => f32::NAN,
    }
}

/// # Safety
/// The instruction set of `M`; `n` readable and writable elements; weights of that length.
#[inline(always)]
pub(crate) unsafe fn rms_norm<M: Machine>(
    x: *const f32,
    n: usize,
    weight: NormWeight<'_>,
    eps: f32,
    out: *mut f32,
) {
    // SAFETY: every access is within `n` elements.
    unsafe {
        let mut squares = M::L::splat(0.0);
        for i in (0..n).step_by(LANES) {
            let v = M::L::load_part(x.add(i), n - i, 0.0);
            squares = v.fma(v, squares);
        }
        let sum = squares.sum();
        let factor = match sum.is_finite() {
            true => 1.0 / (sum / n as f32 + eps).sqrt(),
            false => wide_factor(std::slice::from_raw_parts(x, n), 0.0, n, eps),
        };
        let factor = M::L::splat(factor);
        for i in (0..n).step_by(LANES) {
            let scaled = M::L::load_part(x.add(i), n - i, 0.0).mul(factor);
            let result = match weight {
                NormWeight::None => scaled,
                NormWeight::Plain(w) => scaled.mul(M::L::load_part(w.as_ptr().add(i), n - i, 0.0)),
                NormWeight::UnitOffset(w) => {
                    let w = M::L::load_part(w.as_ptr().add(i), n - i, 0.0);
                    scaled.mul(w.add(M::L::splat(1.0)))
                }
            };
            result.store_part(out.add(i), n - i);
        }
    }
}

/// # Safety
/// The instruction set of `M`.
#[inline(always)]
pub(crate) unsafe fn l2_norm<M: Machine>(x: &mut [f32], eps: f32) {
    let n = x.len();
    let p = x.as_mut_ptr();
    // SAFETY: every access is within the slice.
    unsafe {
        let mut squares = M::L::splat(0.0);
        for i in (0..n).step_by(LANES) {
            let v = M::L::load_part(p.add(i), n - i, 0.0);
            squares = v.fma(v, squares);
        }
        let sum = squares.sum();
        let factor = match sum.is_finite() {
            true => 1.0 / (sum + eps).sqrt(),
            false => wide_factor(x, 0.0, 1, eps),
        };
        let factor = M::L::splat(factor);
        for i in (0..n).step_by(LANES) {
            let v = M::L::load_part(p.add(i), n - i, 0.0);
            v.mul(factor).store_part(p.add(i), n - i);
        }
    }
}

/// # Safety
/// The instruction set of `M`; equal lengths.
#[inline(always)]
pub(crate) unsafe fn layer_norm<M: Machine>(x: &mut [f32], w: &[f32], b: &[f32], eps: f32) {
    let n = x.len();
    let p = x.as_mut_ptr();
    // SAFETY: every access is within the slices.
    unsafe {
        let mut sum = M::L::splat(0.0);
        for i in (0..n).step_by(LANES) {
            sum = sum.add(M::L::load_part(p.add(i), n - i, 0.0));
        }
        let mean = sum.sum() / n as f32;
        let centre = M::L::splat(mean);
        let mut squares = M::L::splat(0.0);
        for i in (0..n).step_by(LANES) {
            // Lanes past the end hold the mean and add nothing.
            let v = M::L::load_part(p.add(i), n - i, mean).sub(centre);
            squares = v.fma(v, squares);
        }
        let sum = squares.sum();
        let factor = match sum.is_finite() {
            true => 1.0 / (sum / n as f32 + eps).sqrt(),
            false => wide_factor(x, mean, n, eps),
        };
        let factor = M::L::splat(factor);
        for i in (0..n).step_by(LANES) {
            let w = M::L::load_part(w.as_ptr().add(i), n - i, 0.0);
            let b = M::L::load_part(b.as_ptr().add(i), n - i, 0.0);
            let v = M::L::load_part(p.add(i), n - i, 0.0).sub(centre);
            v.mul(factor).fma(w, b).store_part(p.add(i), n - i);
        }
    }
}
