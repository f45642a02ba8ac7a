//! The gated delta rule (Yang et al. 2024): one token through the recurrent matrix of a head.

use crate::Kernels;
use crate::lanes::{LANES, Lanes, unroll};
use crate::tile::Machine;

/// What a token brings to the matrix of one head.
pub(crate) struct Token<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    decay: &'a [f32],
    beta: f32,
}

impl Kernels {
    /// Moves the matrix `state`, `[key dim][value dim]`, on by one token and reads it:
    ///
    /// * `S = decay * S`, each row by its own factor or all by one;
    /// * `u = S^T key`, by fma over rows, upward from +0;
    /// * `S = fma(key[i], beta * (value - u), S)` in row `i`;
    /// * `out = S^T query`, as `u`.
    ///
    /// `decay` are factors (exponentials already taken), one or `key dim` of them; queries and
    /// keys come normed and scaled. `value` and `out` have `value dim` elements. NaN in a column
    /// stays in that column.
    ///
    /// # Panics
    /// If the lengths do not fit together.
    #[allow(clippy::too_many_arguments, reason = "the operands of the rule")]
    pub fn delta_step(
        &self,
        state: &mut [f32],
        query: &[f32],
        key: &[f32],
        value: &[f32],
        decay: &[f32],
        beta: f32,
        out: &mut [f32],
    ) {
        let token = Token {
            query,
            key,
            value,
            decay,
            beta,
        };
        token.check(state.len(), out.len());
        let state = state.as_mut_ptr();
        // SAFETY: checked lengths; `Kernels` vouches for the instruction set.
        unsafe { (self.table().delta_step)(&token, state, state, out) }
    }

    /// [`Kernels::delta_step`] from the matrix `from`, which stays as it is, to the matrix `to`:
    /// the same bits.
    ///
    /// # Panics
    /// If the lengths do not fit together.
    #[allow(clippy::too_many_arguments, reason = "the operands of the rule")]
    pub fn delta_step_from(
        &self,
        from: &[f32],
        to: &mut [f32],
        query: &[f32],
        key: &[f32],
        value: &[f32],
        decay: &[f32],
        beta: f32,
        out: &mut [f32],
    ) {
        let token = Token {
            query,
            key,
            value,
            decay,
            beta,
        };
        token.check(from.len(), out.len());
        assert_eq!(from.len(), to.len(), "two matrices of a head");
        // SAFETY: checked lengths; `Kernels` vouches for the instruction set.
        unsafe { (self.table().delta_step)(&token, from.as_ptr(), to.as_mut_ptr(), out) }
    }
}

impl Token<'_> {
    fn check(&self, state: usize, out: usize) {
        let (keys, values) = (self.key.len(), self.value.len());
        assert!(
            self.query.len() == keys && out == values && keys.checked_mul(values) == Some(state),
            "a matrix of {state} elements, {keys} key and {values} value channels"
        );
        assert!(
            self.decay.len() == 1 || self.decay.len() == keys,
            "{} decay factors of {keys} key channels",
            self.decay.len()
        );
    }
}

/// # Safety
/// The instruction set of `M`; a checked token; matrices of its size, the same or apart.
#[inline(always)]
pub(crate) unsafe fn delta_step<M: Machine>(
    token: &Token<'_>,
    from: *const f32,
    to: *mut f32,
    out: &mut [f32],
) {
    let width = out.len();
    let mut c = 0;
    while c < width {
        let out = &mut out[c..];
        // SAFETY: the vectors of a stripe are within a row, but for the last one's cut.
        unsafe {
            let (from, to) = (from.add(c), to.add(c));
            c += if M::L::MANY && out.len() >= 8 * LANES {
                stripe::<M::L, 8>(token, c, from, to, out, LANES)
            } else if out.len() >= 4 * LANES {
                stripe::<M::L, 4>(token, c, from, to, out, LANES)
            } else {
                let last = LANES.min(out.len());
                stripe::<M::L, 1>(token, c, from, to, out, last)
            };
        }
    }
}

/// `D` vectors of columns from column `c` on, the last one of `last` columns: both passes over
/// the rows, the second with the stripe in cache. The matrices start at column `c`. Returns how
/// many columns it did.
#[inline(always)]
unsafe fn stripe<L: Lanes, const D: usize>(
    token: &Token<'_>,
    c: usize,
    from: *const f32,
    to: *mut f32,
    out: &mut [f32],
    last: usize,
) -> usize {
    let (rows, width) = (token.key.len(), token.value.len());
    let one_each = usize::from(token.decay.len() > 1);
    let (query, key) = (token.query.as_ptr(), token.key.as_ptr());
    let decay = token.decay.as_ptr();
    // SAFETY: rows and columns are within the matrices, by the caller's promise.
    unsafe {
        let value = token.value.as_ptr().add(c);
        let mut told = [L::splat(0.0); D];
        for i in 0..rows {
            let (k, decay) = (L::splat(*key.add(i)), L::splat(*decay.add(i * one_each)));
            unroll!(D_ < D, {
                let n = if D_ + 1 == D { last } else { LANES };
                let s = L::load_part(from.add(i * width + D_ * LANES), n, 0.0);
                told[D_] = k.fma(s.mul(decay), told[D_]);
            });
        }
        let mut change = [L::splat(0.0); D];
        unroll!(D_ < D, {
            let n = if D_ + 1 == D { last } else { LANES };
            let v = L::load_part(value.add(D_ * LANES), n, 0.0);
            change[D_] = L::splat(token.beta).mul(v.sub(told[D_]));
        });
        let mut read = [L::splat(0.0); D];
        for i in 0..rows {
            let (k, q) = (L::splat(*key.add(i)), L::splat(*query.add(i)));
            let decay = L::splat(*decay.add(i * one_each));
            unroll!(D_ < D, {
                let n = if D_ + 1 == D { last } else { LANES };
                let at = i * width + D_ * LANES;
                let s = L::load_part(from.add(at), n, 0.0);
                let s = k.fma(change[D_], s.mul(decay));
                s.store_part(to.add(at), n);
                read[D_] = q.fma(s, read[D_]);
            });
        }
        unroll!(D_ < D, {
            let n = if D_ + 1 == D { last } else { LANES };
            read[D_].store_part(out.as_mut_ptr().add(D_ * LANES), n);
        });
    }
    (D - 1) * LANES + last
}
