//! Rotary position embedding (Su et al. 2021).

use lamella_program::block::{Rope, RopePairing};

use crate::Kernels;
use crate::lanes::{LANES, Lanes};
use crate::tile::Machine;

/// Cosines and sines for every position up to a limit.
#[derive(Clone, Debug)]
pub struct RopeTable {
    pairs: usize,
    positions: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// The table for one frequency (radians a position) a channel pair.
    #[must_use]
    pub fn new(frequencies: &[f64], positions: usize) -> RopeTable {
        let pairs = frequencies.len();
        let mut cos = vec![0.0; positions * pairs];
        let mut sin = vec![0.0; positions * pairs];
        for position in 0..positions {
            let row = position * pairs..(position + 1) * pairs;
            angles(frequencies, position, &mut cos[row.clone()], &mut sin[row]);
        }
        RopeTable {
            pairs,
            positions,
            cos,
            sin,
        }
    }

    /// Bytes of a table; `None` on overflow.
    #[must_use]
    pub fn bytes(pairs: usize, positions: usize) -> Option<usize> {
        pairs.checked_mul(positions)?.checked_mul(8)
    }

    /// Positions it covers.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Cosines and sines of a position, one a channel pair.
    ///
    /// # Panics
    /// If the position is past the table.
    #[must_use]
    pub fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let row = position * self.pairs..(position + 1) * self.pairs;
        (&self.cos[row.clone()], &self.sin[row])
    }
}

/// `theta^(-2 j / dims)` for each of the `dims / 2` channel pairs, in f64; with YaRN (Peng et al.
/// 2023) frequencies of long waves are divided by its factor, with a linear ramp between.
#[must_use]
pub fn rope_frequencies(rope: &Rope) -> Vec<f64> {
    let dims = rope.dims as f64;
    let plain = |j: usize| libm::pow(rope.theta, -2.0 * j as f64 / dims);
    let Some(yarn) = &rope.yarn else {
        return (0..rope.dims / 2).map(plain).collect();
    };
    let correction = |rotations: f64| {
        let waves = yarn.original_context as f64 / (2.0 * std::f64::consts::PI * rotations);
        dims * libm::log(waves) / (2.0 * libm::log(rope.theta))
    };
    let low = libm::floor(correction(yarn.beta_fast)).max(0.0);
    let mut high = libm::ceil(correction(yarn.beta_slow)).min(dims - 1.0);
    if low == high {
        high += 0.001;
    }
    (0..rope.dims / 2)
        .map(|j| {
            let ramp = ((j as f64 - low) / (high - low)).clamp(0.0, 1.0);
            plain(j) / yarn.factor * ramp + plain(j) * (1.0 - ramp)
        })
        .collect()
}

/// Cosines and sines of `position * frequency`: computed in f64, rounded once to f32.
///
/// # Panics
/// If the lengths differ.
pub fn angles(frequencies: &[f64], position: usize, cos: &mut [f32], sin: &mut [f32]) {
    assert!(
        cos.len() == frequencies.len() && sin.len() == frequencies.len(),
        "one angle a pair"
    );
    for (j, frequency) in frequencies.iter().enumerate() {
        let angle = position as f64 * frequency;
        cos[j] = libm::cos(angle) as f32;
        sin[j] = libm::sin(angle) as f32;
    }
}

impl Kernels {
    /// Rotates the channel pairs `(a, b)` of `channels` by the given angles:
    /// `a' = fma(-b, sin, a cos)`, `b' = fma(a, sin, b cos)`.
    ///
    /// # Panics
    /// Unless `channels` has two channels for each cosine and sine.
    pub fn rotate(&self, channels: &mut [f32], cos: &[f32], sin: &[f32], pairing: RopePairing) {
        assert!(
            cos.len() == sin.len() && channels.len() == 2 * cos.len(),
            "two channels an angle"
        );
        // SAFETY: checked lengths; `Kernels` vouches for the instruction set.
        unsafe {
            match pairing {
                RopePairing::Half => (self.table().rotate_half)(channels, cos, sin),
                RopePairing::Adjacent => (self.table().rotate_adjacent)(channels, cos, sin),
            }
        }
    }
}

#[inline(always)]
unsafe fn turn<L: Lanes>(a: L, b: L, cos: L, sin: L) -> (L, L) {
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        let minus_b = L::splat(0.0).sub(b);
        (minus_b.fma(sin, a.mul(cos)), a.fma(sin, b.mul(cos)))
    }
}

/// # Safety
/// The instruction set of `M`; `x` has two channels for each cosine and sine.
#[inline(always)]
pub(crate) unsafe fn rotate_half<M: Machine>(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let pairs = cos.len();
    for j in (0..pairs).step_by(LANES) {
        let n = pairs - j;
        // SAFETY: every access is within its slice.
        unsafe {
            let a = x.as_mut_ptr().add(j);
            let b = a.add(pairs);
            let cos = M::L::load_part(cos.as_ptr().add(j), n, 0.0);
            let sin = M::L::load_part(sin.as_ptr().add(j), n, 0.0);
            let (x, y) = turn(
                M::L::load_part(a, n, 0.0),
                M::L::load_part(b, n, 0.0),
                cos,
                sin,
            );
            x.store_part(a, n);
            y.store_part(b, n);
        }
    }
}

/// # Safety
/// The instruction set of `M`; `x` has two channels for each cosine and sine.
#[inline(always)]
pub(crate) unsafe fn rotate_adjacent<M: Machine>(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    for (j, x) in x.chunks_mut(2 * LANES).enumerate() {
        let n = x.len() / 2;
        let mut a = [0.0; LANES];
        let mut b = [0.0; LANES];
        for i in 0..n {
            (a[i], b[i]) = (x[2 * i], x[2 * i + 1]);
        }
        // SAFETY: the arrays hold 16 lanes; there are `n` more cosines and sines.
        unsafe {
            let cos = M::L::load_part(cos.as_ptr().add(j * LANES), n, 0.0);
            let sin = M::L::load_part(sin.as_ptr().add(j * LANES), n, 0.0);
            let (c, d) = turn(M::L::load(a.as_ptr()), M::L::load(b.as_ptr()), cos, sin);
            (a, b) = (c.to_array(), d.to_array());
        }
        for i in 0..n {
            (x[2 * i], x[2 * i + 1]) = (a[i], b[i]);
        }
    }
}
