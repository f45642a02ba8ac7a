//! Softmax attention over a list of rows: a window, selected positions, latent rows that serve as
//! keys and values of every head.
//!
//! For a query and row `i` of `n`: `score = (scale * dot + bias) * growth`, the dot product being
//! that of [`Kernels::dot`]; `p = exp(score - max) / sum`, max and sum over all rows and the sink,
//! if there is one; the sum has 16 lanes (lane = `i` mod 16, upward) joined by a fixed tree, the
//! sink's term comes last; `out = sum over i of p * value` by fma, upward from +0. So nothing
//! depends on which queries run together.

use crate::Kernels;
use crate::elementary::exp_lanes;
use crate::lanes::{LANES, Lanes, unroll};
use crate::tile::Machine;
use crate::vector::{exp_of_excess, max_value};

/// Rows that pass over all queries before the next ones are read.
const TOGETHER: usize = 64;

/// The rows some queries attend to.
pub trait KvRows {
    /// The key of row `i`: `[key dim]`.
    fn key(&self, i: usize) -> &[f32];
    /// The value of row `i`: `[value dim]`. It may be a part of the key.
    fn value(&self, i: usize) -> &[f32];
}

/// One query of one head.
pub struct RowQuery<'a> {
    /// `[key dim]`.
    pub vector: &'a [f32],
    /// Added to the scaled score of each row, where there is such a thing.
    pub bias: Option<&'a [f32]>,
    /// A logit that takes part in the softmax and has no value.
    pub sink: Option<f32>,
    /// `[value dim]`.
    pub out: &'a mut [f32],
}

/// What makes scores of dot products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Multiplier of the dot product.
    pub scale: f32,
    /// Multiplier of the scaled and biased score; 1 for none.
    pub growth: f32,
}

/// The queries of a token that score rows for selection.
#[derive(Clone, Copy, Debug)]
pub struct IndexQueries<'a> {
    /// Heads.
    pub heads: usize,
    /// `[head][key dim]`.
    pub vectors: &'a [f32],
    /// One a head; `None` = 1.
    pub weights: Option<&'a [f32]>,
    /// Multiplier of every head's part.
    pub scale: f32,
}

/// A list of rows.
pub(crate) struct List<'a> {
    rows: &'a dyn KvRows,
    count: usize,
}

impl Kernels {
    /// Attention of some queries over the rows `0..count` of `rows`. They read every row from
    /// memory once for all of them: put heads that share rows into one call. A query over no rows
    /// gets zeros; one that sees NaN or +inf, or nothing but -inf, gets NaN.
    ///
    /// `scratch` has [`Kernels::attend_rows_scratch`] elements.
    ///
    /// # Panics
    /// If a length does not fit.
    pub fn attend_rows(
        &self,
        rows: &dyn KvRows,
        count: usize,
        scores: Scores,
        queries: &mut [RowQuery<'_>],
        scratch: &mut [f32],
    ) {
        let needed = Kernels::attend_rows_scratch(queries.len(), count);
        assert!(needed <= scratch.len(), "attention scratch: {needed}");
        let Some(first) = queries.first() else { return };
        let (keys, values) = (first.vector.len(), first.out.len());
        for query in queries.iter() {
            assert!(
                query.vector.len() == keys && query.out.len() == values,
                "queries of one shape"
            );
            let biases = query.bias.map_or(count, <[f32]>::len);
            assert_eq!(biases, count, "one bias a row");
        }
        let list = List { rows, count };
        // SAFETY: checked lengths; `Kernels` vouches for the instruction set.
        unsafe { (self.table().attend_rows)(&list, scores, queries, scratch) }
    }

    /// Elements of scratch that [`Kernels::attend_rows`] needs.
    #[must_use]
    pub fn attend_rows_scratch(queries: usize, count: usize) -> usize {
        queries * count.next_multiple_of(LANES)
    }

    /// How well the keys `0..out.len()` of `rows` fit the index queries of a token: the sum over
    /// heads, by fma upward from +0, of `weight * (scale * max(dot, 0))`, the dot product being
    /// that of [`Kernels::dot`]. NaN stays NaN.
    ///
    /// # Panics
    /// If a length does not fit.
    pub fn index_scores(&self, rows: &dyn KvRows, queries: &IndexQueries<'_>, out: &mut [f32]) {
        let (heads, channels) = (queries.heads, queries.vectors.len());
        assert!(
            channels.is_multiple_of(heads) && queries.weights.is_none_or(|w| w.len() == heads),
            "{channels} channels of {heads} heads"
        );
        // SAFETY: checked lengths; `Kernels` vouches for the instruction set.
        unsafe { (self.table().index_scores)(rows, queries, out) }
    }
}

impl<'a> List<'a> {
    /// The vectors that `get` finds for the rows from `start` on, and how many they are.
    #[inline(always)]
    fn gather(
        &self,
        start: usize,
        dim: usize,
        get: impl Fn(&'a dyn KvRows, usize) -> &'a [f32],
    ) -> ([&'a [f32]; TOGETHER], usize) {
        let mut rows: [&[f32]; TOGETHER] = [&[]; TOGETHER];
        let n = TOGETHER.min(self.count - start);
        for (i, row) in rows.iter_mut().enumerate().take(n) {
            *row = get(self.rows, start + i);
            assert_eq!(row.len(), dim, "channels of row {}", start + i);
        }
        (rows, n)
    }
}

/// The dot products of some queries with some keys, all of `dim` channels: that of query `t` with
/// key `r` goes to `out[t * stride + r]`.
#[inline(always)]
unsafe fn dots<L: Lanes>(
    queries: &[*const f32],
    keys: &[&[f32]],
    dim: usize,
    out: *mut f32,
    stride: usize,
) {
    let mut t = 0;
    while t < queries.len() {
        let left = &queries[t..];
        // SAFETY: the caller's promise.
        unsafe {
            let out = out.add(t * stride);
            t += if L::MANY && left.len() >= 4 {
                across::<L, 4, 4>(left, keys, dim, out, stride)
            } else if L::MANY && left.len() == 1 {
                across::<L, 1, 8>(left, keys, dim, out, stride)
            } else if left.len() == 1 {
                across::<L, 1, 4>(left, keys, dim, out, stride)
            } else {
                across::<L, 2, 2>(left, keys, dim, out, stride)
            };
        }
    }
}

/// [`dots`] of the first `T` queries, `R` keys at a time. Returns `T`.
#[inline(always)]
unsafe fn across<L: Lanes, const T: usize, const R: usize>(
    queries: &[*const f32],
    keys: &[&[f32]],
    dim: usize,
    out: *mut f32,
    stride: usize,
) -> usize {
    let mut r = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while keys.len() - r >= R {
            dot_tile::<L, T, R>(queries, &keys[r..], dim, out.add(r), stride);
            r += R;
        }
        while r < keys.len() {
            dot_tile::<L, T, 1>(queries, &keys[r..], dim, out.add(r), stride);
            r += 1;
        }
    }
    T
}

#[inline(always)]
unsafe fn dot_tile<L: Lanes, const T: usize, const R: usize>(
    queries: &[*const f32],
    keys: &[&[f32]],
    dim: usize,
    out: *mut f32,
    stride: usize,
) {
    const { assert!(T * R <= LANES) };
    assert!(queries.len() >= T && keys.len() >= R, "a tile's vectors");
    let mut x = [std::ptr::null(); T];
    unroll!(T_ < T, {
        x[T_] = queries[T_];
    });
    let mut y = [std::ptr::null(); R];
    unroll!(R_ < R, {
        y[R_] = keys[R_].as_ptr();
    });
    // SAFETY: all vectors have `dim` channels; the output has a place for each pair.
    unsafe {
        let mut acc = [[L::splat(0.0); T]; R];
        let whole = dim / LANES * LANES;
        for k in (0..whole).step_by(LANES) {
            dot_step::<L, T, R>(&mut acc, &x, &y, k, LANES);
        }
        if whole < dim {
            dot_step::<L, T, R>(&mut acc, &x, &y, whole, dim - whole);
        }
        let mut all = [L::splat(0.0); LANES];
        unroll!(T_ < T, {
            unroll!(R_ < R, {
                all[T_ * R + R_] = acc[R_][T_];
            });
        });
        let sums = L::sums(&all).to_array();
        unroll!(T_ < T, {
            unroll!(R_ < R, {
                *out.add(T_ * stride + R_) = sums[T_ * R + R_];
            });
        });
    }
}

/// Channels `k..k + n` of a tile, `n` at most 16.
#[inline(always)]
unsafe fn dot_step<L: Lanes, const T: usize, const R: usize>(
    acc: &mut [[L; T]; R],
    x: &[*const f32; T],
    y: &[*const f32; R],
    k: usize,
    n: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut a = [L::splat(0.0); T];
        unroll!(T_ < T, {
            a[T_] = L::load_part(x[T_].add(k), n, 0.0);
        });
        unroll!(R_ < R, {
            let b = L::load_part(y[R_].add(k), n, 0.0);
            unroll!(T_ < T, {
                acc[R_][T_] = a[T_].fma(b, acc[R_][T_]);
            });
        });
    }
}

/// `out[t][d] += p[t][j] * rows[j][d]` over all rows, for `T` queries and the `D` vectors of
/// channels from `d` on; the last vector has `last` channels. Outputs begin at channel `d`.
#[inline(always)]
unsafe fn value_tile<L: Lanes, const T: usize, const D: usize>(
    out: &[*mut f32; T],
    p: &[*const f32; T],
    rows: &[&[f32]],
    d: usize,
    last: usize,
) {
    // SAFETY: the caller gives rows with these channels, as many `p`, and outputs.
    unsafe {
        let mut acc = [[L::splat(0.0); T]; D];
        unroll!(D_ < D, {
            let n = if D_ + 1 == D { last } else { LANES };
            unroll!(T_ < T, {
                acc[D_][T_] = L::load_part(out[T_].add(D_ * LANES), n, 0.0);
            });
        });
        for (j, row) in rows.iter().enumerate() {
            let row = row.as_ptr().add(d);
            let mut v = [L::splat(0.0); D];
            unroll!(D_ < D, {
                let n = if D_ + 1 == D { last } else { LANES };
                v[D_] = L::load_part(row.add(D_ * LANES), n, 0.0);
            });
            unroll!(T_ < T, {
                let p = L::splat(*p[T_].add(j));
                unroll!(D_ < D, {
                    acc[D_][T_] = p.fma(v[D_], acc[D_][T_]);
                });
            });
        }
        unroll!(D_ < D, {
            let n = if D_ + 1 == D { last } else { LANES };
            unroll!(T_ < T, {
                acc[D_][T_].store_part(out[T_].add(D_ * LANES), n);
            });
        });
    }
}

/// [`value_tile`]s of all queries, `T` at a time and the rest one by one; `p` of query `t` are at
/// `p[t * stride]`. Returns how many channels it did.
#[inline(always)]
unsafe fn value_stripe<L: Lanes, const T: usize, const D: usize>(
    queries: &mut [RowQuery<'_>],
    p: *const f32,
    stride: usize,
    rows: &[&[f32]],
    d: usize,
    last: usize,
) -> usize {
    let tiles = queries.len() / T * T;
    let mut outs = [std::ptr::null_mut(); T];
    let mut ps = [std::ptr::null(); T];
    // SAFETY: the caller's promise.
    unsafe {
        for (t, query) in queries.iter_mut().enumerate() {
            let (out, p) = (query.out.as_mut_ptr().add(d), p.add(t * stride));
            if t >= tiles {
                value_tile::<L, 1, D>(&[out], &[p], rows, d, last);
                continue;
            }
            (outs[t % T], ps[t % T]) = (out, p);
            if t % T + 1 == T {
                value_tile::<L, T, D>(&outs, &ps, rows, d, last);
            }
        }
    }
    (D - 1) * LANES + last
}

/// Adds the weighted values of some rows to the outputs of all queries.
#[inline(always)]
unsafe fn add_values<L: Lanes>(
    queries: &mut [RowQuery<'_>],
    p: *const f32,
    stride: usize,
    rows: &[&[f32]],
) {
    let (few, dim) = (queries.len() < 4, queries[0].out.len());
    let mut d = 0;
    while d < dim {
        let vectors = (dim - d) / LANES;
        let last = LANES.min(dim - d);
        // SAFETY: the caller's promise.
        unsafe {
            d += match (L::MANY, few) {
                (true, true) if vectors >= 8 => {
                    value_stripe::<L, 1, 8>(queries, p, stride, rows, d, LANES)
                }
                (true, _) if vectors >= 4 => {
                    value_stripe::<L, 4, 4>(queries, p, stride, rows, d, LANES)
                }
                (true, _) => value_stripe::<L, 4, 1>(queries, p, stride, rows, d, last),
                (false, _) if vectors >= 2 => {
                    value_stripe::<L, 2, 2>(queries, p, stride, rows, d, LANES)
                }
                (false, _) => value_stripe::<L, 2, 1>(queries, p, stride, rows, d, last),
            };
        }
    }
}

/// Turns the dot products of a query into probabilities.
#[inline(always)]
unsafe fn weigh<M: Machine>(
    x: &mut [f32],
    scores: Scores,
    bias: Option<&[f32]>,
    sink: Option<f32>,
) {
    let n = x.len();
    let p = x.as_mut_ptr();
    // SAFETY: every access is within the slices; a bias is as long as `x`.
    unsafe {
        let (scale, growth) = (M::L::splat(scores.scale), M::L::splat(scores.growth));
        for i in (0..n).step_by(LANES) {
            let mut score = M::L::load_part(p.add(i), n - i, 0.0).mul(scale);
            if let Some(bias) = bias {
                score = score.add(M::L::load_part(bias.as_ptr().add(i), n - i, 0.0));
            }
            score.mul(growth).store_part(p.add(i), n - i);
        }
        let mut max = max_value::<M>(x);
        if let Some(sink) = sink
            && sink > max
        {
            max = sink;
        }
        let mut sum = exp_of_excess::<M>(x, max);
        if let Some(sink) = sink {
            sum += exp_lanes(M::L::splat(sink - max)).to_array()[0];
        }
        let sum = M::L::splat(sum);
        for i in (0..n).step_by(LANES) {
            let e = M::L::load_part(p.add(i), n - i, 0.0);
            e.div(sum).store_part(p.add(i), n - i);
        }
    }
}

/// # Safety
/// The instruction set of `M`; checked lengths, at least one query.
#[inline(always)]
pub(crate) unsafe fn attend_rows<M: Machine>(
    list: &List<'_>,
    scores: Scores,
    queries: &mut [RowQuery<'_>],
    scratch: &mut [f32],
) {
    let (count, dim) = (list.count, queries[0].vector.len());
    let stride = count.next_multiple_of(LANES);
    let p = scratch.as_mut_ptr();
    for start in (0..count).step_by(TOGETHER) {
        let (keys, n) = list.gather(start, dim, |rows, i| rows.key(i));
        for (t, tile) in queries.chunks(4).enumerate() {
            let mut vectors = [std::ptr::null(); 4];
            for (vector, query) in vectors.iter_mut().zip(tile) {
                *vector = query.vector.as_ptr();
            }
            // SAFETY: vectors and keys have `dim` channels, the scratch a row for each query.
            unsafe {
                let out = p.add(4 * t * stride + start);
                dots::<M::L>(&vectors[..tile.len()], &keys[..n], dim, out, stride);
            }
        }
    }
    for (t, query) in queries.iter_mut().enumerate() {
        query.out.fill(0.0);
        let row = &mut scratch[t * stride..][..count];
        // SAFETY: the instruction set is the caller's promise; biases are as long as the list.
        unsafe { weigh::<M>(row, scores, query.bias, query.sink) };
    }
    let dim = queries[0].out.len();
    for start in (0..count).step_by(TOGETHER) {
        let (values, n) = list.gather(start, dim, |rows, i| rows.value(i));
        // SAFETY: values and outputs have `dim` channels, the scratch has a row for each query.
        unsafe {
            let p = scratch.as_ptr().add(start);
            add_values::<M::L>(queries, p, stride, &values[..n]);
        }
    }
}

/// # Safety
/// The instruction set of `M`; checked lengths.
#[inline(always)]
pub(crate) unsafe fn index_scores<M: Machine>(
    rows: &dyn KvRows,
    queries: &IndexQueries<'_>,
    out: &mut [f32],
) {
    let dim = queries.vectors.len() / queries.heads.max(1);
    let list = List {
        rows,
        count: out.len(),
    };
    for start in (0..out.len()).step_by(TOGETHER) {
        let (keys, n) = list.gather(start, dim, |rows, i| rows.key(i));
        let out = &mut out[start..start + n];
        out.fill(0.0);
        for first in (0..queries.heads).step_by(4) {
            let tile = 4.min(queries.heads - first);
            let mut vectors = [std::ptr::null(); 4];
            for (t, vector) in vectors.iter_mut().enumerate().take(tile) {
                *vector = queries.vectors[(first + t) * dim..].as_ptr();
            }
            let mut fits = [0.0; 4 * TOGETHER];
            // SAFETY: vectors and keys have `dim` channels; there is room for four rows.
            unsafe {
                dots::<M::L>(
                    &vectors[..tile],
                    &keys[..n],
                    dim,
                    fits.as_mut_ptr(),
                    TOGETHER,
                );
                for (t, fits) in fits.chunks_exact(TOGETHER).enumerate().take(tile) {
                    let weight = queries.weights.map_or(1.0, |w| w[first + t]);
                    add_fits::<M::L>(out, fits, queries.scale, weight);
                }
            }
        }
    }
}

/// `out = fma(weight, max(fit, 0) * scale, out)`.
#[inline(always)]
unsafe fn add_fits<L: Lanes>(out: &mut [f32], fits: &[f32], scale: f32, weight: f32) {
    let n = out.len();
    // SAFETY: `fits` has at least as many elements as `out`.
    unsafe {
        for i in (0..n).step_by(LANES) {
            let to = out.as_mut_ptr().add(i);
            let fit = L::load_part(fits.as_ptr().add(i), n - i, 0.0);
            let part = L::splat(0.0).max(fit).mul(L::splat(scale));
            let sum = L::load_part(to, n - i, 0.0);
            L::splat(weight).fma(part, sum).store_part(to, n - i);
        }
    }
}
