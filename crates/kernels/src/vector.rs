//! Operations on single vectors: maps, softmax, sums, extremes.

use crate::Kernels;
use crate::elementary::{
    exp_lanes, ln_lanes, sigmoid_lanes, silu_lanes, softplus_lanes, tanh_lanes,
};
use crate::lanes::{LANES, Lanes};
use crate::tile::Machine;

/// An operation on each element of a vector, with a second vector where it needs one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Map {
    /// `y + x`.
    Add,
    /// `fma(s, x, y)`.
    AddScaled(f32),
    /// `s * y`.
    Scale(f32),
    /// `y * x`.
    Mul,
    /// Within the bounds, NaN kept.
    Clamp(f32, f32),
    /// `silu(y) * x`.
    SiluMul,
    /// `exp(y)`.
    Exp,
    /// `silu(y)`.
    Silu,
    /// `sigmoid(y)`.
    Sigmoid,
    /// `sigmoid(y) * x`.
    SigmoidMul,
    /// `y * sigmoid(x)`.
    MulSigmoid,
    /// `tanh(y)`.
    Tanh,
    /// `ln(1 + exp(y))`.
    Softplus,
    /// `sqrt(ln(1 + exp(y)))`.
    SqrtSoftplus,
    /// `ln(y)`.
    Ln,
    /// `sqrt(y)`.
    Sqrt,
}

/// Bytes [`Kernels::read`] reads at one place before the next.
pub const READ_BLOCK: usize = 256;

impl Kernels {
    /// Replaces scores by probabilities: `exp(x - max) / sum`. The exponentials are summed in 16
    /// lanes (lane = index mod 16, upward), the lanes by a fixed tree. NaN or +inf anywhere makes
    /// every element NaN.
    pub fn softmax(&self, x: &mut [f32]) {
        // SAFETY: `Kernels` vouches for the instruction set.
        unsafe { (self.table().softmax)(x) }
    }

    /// `ln(sum(exp(x)))` with the sums of [`Kernels::softmax`]: what turns logits into
    /// log-probabilities.
    #[must_use]
    pub fn log_sum_exp(&self, x: &[f32]) -> f64 {
        // SAFETY: `Kernels` vouches for the instruction set.
        let (max, sum) = unsafe { (self.table().max_and_sum)(x) };
        f64::from(max) + libm::log(f64::from(sum))
    }

    /// The dot product of two vectors: summed in 16 lanes (lane = index mod 16, by fma, upward),
    /// the lanes by a fixed tree.
    ///
    /// # Panics
    /// If the lengths differ.
    #[must_use]
    pub fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len(), "a dot product of equal lengths");
        // SAFETY: equal lengths; `Kernels` vouches for the instruction set.
        unsafe { (self.table().dot)(a, b) }
    }

    /// `y = y + x`.
    ///
    /// # Panics
    /// If the lengths differ, as all two-vector operations here.
    pub fn add(&self, y: &mut [f32], x: &[f32]) {
        self.map(Map::Add, y, Some(x));
    }

    /// `y = fma(s, x, y)`.
    pub fn add_scaled(&self, y: &mut [f32], s: f32, x: &[f32]) {
        self.map(Map::AddScaled(s), y, Some(x));
    }

    /// `y = s * y`.
    pub fn scale(&self, y: &mut [f32], s: f32) {
        self.map(Map::Scale(s), y, None);
    }

    /// `y = y * x`.
    pub fn mul(&self, y: &mut [f32], x: &[f32]) {
        self.map(Map::Mul, y, Some(x));
    }

    /// Brings every element within `low..=high`; NaN stays.
    pub fn clamp(&self, y: &mut [f32], low: f32, high: f32) {
        self.map(Map::Clamp(low, high), y, None);
    }

    /// `y = silu(y) * x`.
    pub fn silu_mul(&self, y: &mut [f32], x: &[f32]) {
        self.map(Map::SiluMul, y, Some(x));
    }

    /// `y = exp(y)`.
    pub fn exp(&self, y: &mut [f32]) {
        self.map(Map::Exp, y, None);
    }

    /// `y = silu(y)`.
    pub fn silu(&self, y: &mut [f32]) {
        self.map(Map::Silu, y, None);
    }

    /// `y = sigmoid(y)`.
    pub fn sigmoid(&self, y: &mut [f32]) {
        self.map(Map::Sigmoid, y, None);
    }

    /// `y = sigmoid(y) * x`: `y` holds the gate logits and receives `x` gated.
    pub fn sigmoid_mul(&self, y: &mut [f32], x: &[f32]) {
        self.map(Map::SigmoidMul, y, Some(x));
    }

    /// `y = y * sigmoid(x)`: `y` is gated in place, `x` holds the gate logits. The same bits as
    /// [`Kernels::sigmoid_mul`] with the roles exchanged.
    pub fn mul_sigmoid(&self, y: &mut [f32], x: &[f32]) {
        self.map(Map::MulSigmoid, y, Some(x));
    }

    /// `y = tanh(y)`.
    pub fn tanh(&self, y: &mut [f32]) {
        self.map(Map::Tanh, y, None);
    }

    /// `y = ln(1 + exp(y))`.
    pub fn softplus(&self, y: &mut [f32]) {
        self.map(Map::Softplus, y, None);
    }

    /// `y = sqrt(ln(1 + exp(y)))`.
    pub fn sqrt_softplus(&self, y: &mut [f32]) {
        self.map(Map::SqrtSoftplus, y, None);
    }

    /// `y = ln(y)`; `-inf` for zeros, NaN for negative numbers.
    pub fn ln(&self, y: &mut [f32]) {
        self.map(Map::Ln, y, None);
    }

    /// `y = sqrt(y)`, correctly rounded; NaN for negative numbers.
    pub fn sqrt(&self, y: &mut [f32]) {
        self.map(Map::Sqrt, y, None);
    }

    /// `y = fma(a, b, y)`.
    pub fn add_product(&self, y: &mut [f32], a: &[f32], b: &[f32]) {
        assert!(
            a.len() == y.len() && b.len() == y.len(),
            "elementwise operands"
        );
        // SAFETY: equal lengths; `Kernels` vouches for the instruction set.
        unsafe { (self.table().add_product)(y, a, b) }
    }

    /// Reads all whole blocks of [`READ_BLOCK`] bytes with the widest loads, `streams` places in
    /// turn, for measuring how fast memory is. The largest value read as f32.
    ///
    /// # Panics
    /// If `streams` is 0.
    #[must_use]
    pub fn read(&self, memory: &[u8], streams: usize) -> f32 {
        // SAFETY: `Kernels` vouches for the instruction set.
        unsafe { (self.table().read)(memory, streams) }
    }

    fn map(&self, map: Map, y: &mut [f32], x: Option<&[f32]>) {
        if let Some(x) = x {
            assert_eq!(x.len(), y.len(), "elementwise operands");
        }
        // SAFETY: equal lengths; `Kernels` vouches for the instruction set.
        unsafe { (self.table().map)(map, y, x) }
    }

    /// The index of the largest element, the lowest one on ties; NaN never wins; 0 if there is
    /// nothing else.
    #[must_use]
    pub fn argmax(&self, x: &[f32]) -> usize {
        // SAFETY: `Kernels` vouches for the instruction set.
        let most = unsafe { (self.table().max_value)(x) };
        x.iter().position(|x| *x == most).unwrap_or(0)
    }
}

/// Whether an element is infinite or NaN.
#[must_use]
pub fn any_non_finite(x: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    // Whole chunks without a branch, so that the compiler uses vectors.
    x.chunks(256).any(|chunk| {
        chunk
            .iter()
            .fold(false, |any, x| any | (x.to_bits() & EXPONENT == EXPONENT))
    })
}

/// # Safety
/// The instruction set of `M`; equal lengths.
#[inline(always)]
pub(crate) unsafe fn dot<M: Machine>(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len();
    // SAFETY: every access is within the slices.
    unsafe {
        let mut sum = M::L::splat(0.0);
        for i in (0..n).step_by(LANES) {
            let x = M::L::load_part(a.as_ptr().add(i), n - i, 0.0);
            let y = M::L::load_part(b.as_ptr().add(i), n - i, 0.0);
            sum = x.fma(y, sum);
        }
        sum.sum()
    }
}

/// The largest element, NaN passed over; `-inf` if there is none.
///
/// # Safety
/// The instruction set of `M`.
#[inline(always)]
pub(crate) unsafe fn max_value<M: Machine>(x: &[f32]) -> f32 {
    // SAFETY: every access is within the slice.
    unsafe {
        let mut most = M::L::splat(f32::NEG_INFINITY);
        for i in (0..x.len()).step_by(LANES) {
            let v = M::L::load_part(x.as_ptr().add(i), x.len() - i, f32::NEG_INFINITY);
            most = v.max(most);
        }
        most.max_lane()
    }
}

/// # Safety
/// The instruction set of `M`.
#[inline(always)]
pub(crate) unsafe fn read<M: Machine>(memory: &[u8], streams: usize) -> f32 {
    const PARTS: usize = READ_BLOCK / (4 * LANES);
    let blocks = memory.len() / READ_BLOCK / streams;
    // SAFETY: every access is within the slice.
    unsafe {
        let mut most = [M::L::splat(f32::NEG_INFINITY); PARTS];
        for block in 0..blocks {
            for stream in 0..streams {
                let at = memory.as_ptr().add((stream * blocks + block) * READ_BLOCK);
                for (part, most) in most.iter_mut().enumerate() {
                    let values = M::L::load(at.add(4 * LANES * part).cast());
                    *most = values.max(*most);
                }
            }
        }
        let all = most.into_iter().reduce(|a, b| a.max(b));
        all.map_or(f32::NEG_INFINITY, |all| all.max_lane())
    }
}

/// Replaces `x` by `exp(x - max)`; the sum of these.
///
/// # Safety
/// The instruction set of `M`.
#[inline(always)]
pub(crate) unsafe fn exp_of_excess<M: Machine>(x: &mut [f32], max: f32) -> f32 {
    // SAFETY: every access is within the slice.
    unsafe {
        let mut sum = M::L::splat(0.0);
        let max = M::L::splat(max);
        let whole = x.len() / LANES * LANES;
        let p = x.as_mut_ptr();
        for i in (0..whole).step_by(LANES) {
            let e = exp_lanes(M::L::load(p.add(i)).sub(max));
            e.store(p.add(i));
            sum = sum.add(e);
        }
        if whole < x.len() {
            let left = x.len() - whole;
            let e = exp_lanes(M::L::load_part(p.add(whole), left, 0.0).sub(max));
            e.store_part(p.add(whole), left);
            // Lanes past the end add nothing.
            sum = sum.add(M::L::load_part(p.add(whole), left, 0.0));
        }
        sum.sum()
    }
}

/// # Safety
/// The instruction set of `M`.
#[inline(always)]
pub(crate) unsafe fn softmax<M: Machine>(x: &mut [f32]) {
    // SAFETY: every access is within the slice.
    unsafe {
        let max = max_value::<M>(x);
        let sum = M::L::splat(exp_of_excess::<M>(x, max));
        let n = x.len();
        for i in (0..n).step_by(LANES) {
            let p = x.as_mut_ptr().add(i);
            M::L::load_part(p, n - i, 0.0).div(sum).store_part(p, n - i);
        }
    }
}

/// The largest element and the sum of `exp(x - max)`.
///
/// # Safety
/// The instruction set of `M`.
#[inline(always)]
pub(crate) unsafe fn max_and_sum<M: Machine>(x: &[f32]) -> (f32, f32) {
    // SAFETY: every access is within the slice.
    unsafe {
        let max = max_value::<M>(x);
        let mut sum = M::L::splat(0.0);
        for i in (0..x.len()).step_by(LANES) {
            let left = x.len() - i;
            let v = M::L::load_part(x.as_ptr().add(i), left, f32::NEG_INFINITY);
            sum = sum.add(exp_lanes(v.sub(M::L::splat(max))));
        }
        (max, sum.sum())
    }
}

/// Replaces each `$y` by `$result`, 16 at a time; `$x` is `$y` where there is no second vector.
macro_rules! each {
    ($y:ident, $x:ident, $result:expr) => {{
        let n = $y.len();
        let (to, from) = ($y.as_mut_ptr(), $x.map(<[f32]>::as_ptr));
        for i in (0..n).step_by(LANES) {
            let $y = M::L::load_part(to.add(i), n - i, 0.0);
            let $x = match from {
                Some(from) => M::L::load_part(from.add(i), n - i, 0.0),
                None => $y,
            };
            $result.store_part(to.add(i), n - i);
        }
    }};
}

/// # Safety
/// The instruction set of `M`; `x`, where there is one, has the length of `y`.
#[inline(always)]
pub(crate) unsafe fn map<M: Machine>(map: Map, y: &mut [f32], x: Option<&[f32]>) {
    // SAFETY: every access is within the slices.
    unsafe {
        match map {
            Map::Add => each!(y, x, y.add(x)),
            Map::AddScaled(s) => each!(y, x, M::L::splat(s).fma(x, y)),
            Map::Scale(s) => each!(y, x, M::L::splat(s).mul(x)),
            Map::Mul => each!(y, x, y.mul(x)),
            Map::Clamp(low, high) => {
                each!(y, x, M::L::splat(high).min(M::L::splat(low).max(x)))
            }
            Map::SiluMul => each!(y, x, silu_lanes(y).mul(x)),
            Map::Exp => each!(y, x, exp_lanes(x)),
            Map::Silu => each!(y, x, silu_lanes(x)),
            Map::Sigmoid => each!(y, x, sigmoid_lanes(x)),
            Map::SigmoidMul => each!(y, x, sigmoid_lanes(y).mul(x)),
            Map::MulSigmoid => each!(y, x, y.mul(sigmoid_lanes(x))),
            Map::Tanh => each!(y, x, tanh_lanes(x)),
            Map::Softplus => each!(y, x, softplus_lanes(x)),
            Map::SqrtSoftplus => each!(y, x, softplus_lanes(x).sqrt()),
            Map::Ln => each!(y, x, ln_lanes(x)),
            Map::Sqrt => each!(y, x, x.sqrt()),
        }
    }
}

/// # Safety
/// The instruction set of `M`; equal lengths.
#[inline(always)]
pub(crate) unsafe fn add_product<M: Machine>(y: &mut [f32], a: &[f32], b: &[f32]) {
    let n = y.len();
    for i in (0..n).step_by(LANES) {
        // SAFETY: every access is within the slices.
        unsafe {
            let out = y.as_mut_ptr().add(i);
            let a = M::L::load_part(a.as_ptr().add(i), n - i, 0.0);
            let b = M::L::load_part(b.as_ptr().add(i), n - i, 0.0);
            a.fma(b, M::L::load_part(out, n - i, 0.0))
                .store_part(out, n - i);
        }
    }
}
