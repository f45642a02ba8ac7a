//! The maps of manifold-constrained hyper-connections (DeepSeek V4): how residual streams are
//! read, written and mixed.

use crate::elementary::{exp, sigmoid};

/// What the maps of a hyper-connection site are made with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HyperMaps {
    /// Residual streams `n`.
    pub streams: usize,
    /// Sinkhorn passes, the first one over columns only.
    pub iterations: usize,
    /// Added to read weights, to the entries of the mixing matrix and to the sums it is divided by.
    pub eps: f32,
}

impl HyperMaps {
    /// Turns the `(2 + n) n` products of a site into its maps, in place:
    ///
    /// * `0..n`: read weights `sigmoid(m * scale[0] + base) + eps`;
    /// * `n..2 n`: write weights `2 * sigmoid(m * scale[1] + base)`;
    /// * the rest: the mixing matrix `[from][to]`: a softmax of `m * scale[2] + base` over each
    ///   row plus `eps`, each column divided by its sum plus `eps`, and then `iterations - 1`
    ///   times first the rows and then the columns (Sinkhorn and Knopp 1967).
    ///
    /// All sums run upward from the first term, `m * scale` and `+ base` are rounded one by one.
    /// NaN or +inf among the products of the matrix makes all of it NaN.
    ///
    /// # Panics
    /// If a length does not fit.
    pub fn finish(&self, site: &mut [f32], base: &[f32], scale: &[f32]) {
        let n = self.streams;
        assert!(
            site.len() == (2 + n) * n && base.len() == site.len() && scale.len() == 3,
            "the products of {n} streams"
        );
        for (i, (m, base)) in site.iter_mut().zip(base).enumerate() {
            *m = *m * scale[(i / n.max(1)).min(2)] + base;
        }
        let (read, rest) = site.split_at_mut(n);
        let (write, mix) = rest.split_at_mut(n);
        read.iter_mut().for_each(|x| *x = sigmoid(*x) + self.eps);
        write.iter_mut().for_each(|x| *x = 2.0 * sigmoid(*x));
        for row in mix.chunks_exact_mut(n.max(1)) {
            softmax(row);
            row.iter_mut().for_each(|x| *x += self.eps);
        }
        for pass in 0..self.iterations {
            if pass > 0 {
                self.divide(mix, n, 1);
            }
            self.divide(mix, 1, n);
        }
    }

    /// Divides each line of a matrix by its sum plus eps: lines start `apart` elements from each
    /// other, their elements are `step` apart.
    fn divide(&self, mix: &mut [f32], apart: usize, step: usize) {
        for line in 0..self.streams {
            let at = |i: usize| line * apart + i * step;
            let sum = (0..self.streams).fold(0.0, |sum, i| sum + mix[at(i)]) + self.eps;
            (0..self.streams).for_each(|i| mix[at(i)] /= sum);
        }
    }
}

fn softmax(row: &mut [f32]) {
    let most = row.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
    row.iter_mut().for_each(|x| *x = exp(*x - most));
    let sum = row.iter().fold(0.0, |sum, x| sum + x);
    row.iter_mut().for_each(|x| *x /= sum);
}
