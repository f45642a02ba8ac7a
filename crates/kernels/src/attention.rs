//! Softmax attention over a paged cache of keys and values.
//!
//! A page holds [`PAGE`] positions of one layer, in f32: keys `[kv head][position / 16][key
//! dim][16]` (the lanes of a score vector are sixteen positions), values `[kv head][position]
//! [value dim]`.
//!
//! For a query and its visible positions: `score = scale * (sum over k by fma, upward)`;
//! `p = exp(score - max)`; the sum of `p` has 16 lanes (lane = absolute position mod 16, upward)
//! joined by a fixed tree; `out = (sum over positions of p * value by fma, upward) / sum`. Nothing
//! depends on which queries run together, on pages or on threads.

use std::ops::Range;

use crate::Kernels;
use crate::lanes::{LANES, Lanes, unroll};
use crate::tile::Machine;
use crate::vector::{exp_of_excess, max_value};

/// Positions of a page.
pub const PAGE: usize = 64;

/// Queries that pass over keys and values together, page by page.
const TOGETHER: usize = 16;

/// Queries of a tile.
const TILE: usize = 4;

/// The shape of a layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key and value heads.
    pub heads: usize,
    /// Channels of a key head.
    pub key_dim: usize,
    /// Channels of a value head.
    pub value_dim: usize,
}

impl KvShape {
    /// Elements of the keys of a page.
    #[must_use]
    pub fn key_page_len(&self) -> usize {
        self.heads * PAGE * self.key_dim
    }

    /// Elements of the values of a page.
    #[must_use]
    pub fn value_page_len(&self) -> usize {
        self.heads * PAGE * self.value_dim
    }

    /// Puts the keys of one position (`[head][key dim]`) into slot `slot` of a page.
    ///
    /// # Panics
    /// If the slot or a length is out of range.
    pub fn store_key(&self, page: &mut [f32], slot: usize, keys: &[f32]) {
        assert!(slot < PAGE, "slot {slot}");
        assert_eq!(page.len(), self.key_page_len(), "key page");
        assert_eq!(keys.len(), self.heads * self.key_dim, "keys of a position");
        for (head, key) in keys.chunks_exact(self.key_dim).enumerate() {
            let block = (head * PAGE / LANES + slot / LANES) * self.key_dim * LANES;
            let lanes = page[block..][..self.key_dim * LANES].chunks_exact_mut(LANES);
            for (lanes, x) in lanes.zip(key) {
                lanes[slot % LANES] = *x;
            }
        }
    }

    /// Puts the values of one position (`[head][value dim]`) into slot `slot` of a page.
    ///
    /// # Panics
    /// If the slot or a length is out of range.
    pub fn store_value(&self, page: &mut [f32], slot: usize, values: &[f32]) {
        assert!(slot < PAGE, "slot {slot}");
        assert_eq!(page.len(), self.value_page_len(), "value page");
        assert_eq!(
            values.len(),
            self.heads * self.value_dim,
            "values of a position"
        );
        for (head, value) in values.chunks_exact(self.value_dim).enumerate() {
            page[(head * PAGE + slot) * self.value_dim..][..self.value_dim].copy_from_slice(value);
        }
    }

    /// Zeroes the keys of the positions in `slots` of a page.
    ///
    /// # Panics
    /// If a slot or the length is out of range.
    pub fn clear_keys(&self, page: &mut [f32], slots: Range<usize>) {
        assert!(slots.end <= PAGE, "slots {slots:?}");
        assert_eq!(page.len(), self.key_page_len(), "key page");
        for (block, keys) in page.chunks_exact_mut(self.key_dim * LANES).enumerate() {
            let first = block % (PAGE / LANES) * LANES;
            let [start, end] =
                [slots.start, slots.end].map(|slot| slot.saturating_sub(first).min(LANES));
            if start < end {
                let lanes = keys.chunks_exact_mut(LANES);
                lanes.for_each(|lanes| lanes[start..end].fill(0.0));
            }
        }
    }

    /// Zeroes the values of the positions in `slots` of a page.
    ///
    /// # Panics
    /// As [`clear_keys`](Self::clear_keys).
    pub fn clear_values(&self, page: &mut [f32], slots: Range<usize>) {
        assert!(slots.end <= PAGE, "slots {slots:?}");
        assert_eq!(page.len(), self.value_page_len(), "value page");
        for head in page.chunks_exact_mut(PAGE * self.value_dim) {
            head[slots.start * self.value_dim..slots.end * self.value_dim].fill(0.0);
        }
    }

    /// Takes the keys of one position back out of a page, as [`store_key`](Self::store_key) was
    /// given them.
    ///
    /// # Panics
    /// As [`store_key`](Self::store_key).
    pub fn load_key(&self, page: &[f32], slot: usize, keys: &mut [f32]) {
        assert!(slot < PAGE, "slot {slot}");
        assert_eq!(page.len(), self.key_page_len(), "key page");
        assert_eq!(keys.len(), self.heads * self.key_dim, "keys of a position");
        for (head, key) in keys.chunks_exact_mut(self.key_dim).enumerate() {
            let block = (head * PAGE / LANES + slot / LANES) * self.key_dim * LANES;
            let lanes = page[block..][..self.key_dim * LANES].chunks_exact(LANES);
            for (lanes, x) in lanes.zip(key) {
                *x = lanes[slot % LANES];
            }
        }
    }

    /// Takes the values of one position back out of a page, as
    /// [`store_value`](Self::store_value) was given them.
    ///
    /// # Panics
    /// As [`store_value`](Self::store_value).
    pub fn load_value(&self, page: &[f32], slot: usize, values: &mut [f32]) {
        assert!(slot < PAGE, "slot {slot}");
        assert_eq!(page.len(), self.value_page_len(), "value page");
        let width = self.heads * self.value_dim;
        assert_eq!(values.len(), width, "values of a position");
        for (head, value) in values.chunks_exact_mut(self.value_dim).enumerate() {
            let from = &page[(head * PAGE + slot) * self.value_dim..];
            value.copy_from_slice(&from[..self.value_dim]);
        }
    }

    /// Elements of scratch that [`Kernels::attend`] needs when no position past `positions` is
    /// visible.
    #[must_use]
    pub fn attend_scratch(positions: usize) -> usize {
        TOGETHER * (positions.next_multiple_of(LANES) + LANES)
    }
}

/// The pages of one layer of one session.
pub trait KvPages {
    /// The keys of page `page`: [`KvShape::key_page_len`] elements.
    fn keys(&self, page: usize) -> &[f32];
    /// The values of page `page`: [`KvShape::value_page_len`] elements.
    fn values(&self, page: usize) -> &[f32];
}

/// One query of one head.
pub struct Query<'a> {
    /// `[key dim]`.
    pub vector: &'a [f32],
    /// The positions it sees.
    pub visible: Range<usize>,
    /// `[value dim]`.
    pub out: &'a mut [f32],
}

/// Keys and values of one head.
pub(crate) struct Head<'a> {
    shape: KvShape,
    head: usize,
    scale: f32,
    pages: &'a dyn KvPages,
}

impl Kernels {
    /// Attention of some queries over kv head `head`. Queries are taken sixteen at a time; put
    /// those that see nearly the same positions next to each other. A query that sees nothing
    /// gets zeros.
    ///
    /// `scratch` has [`KvShape::attend_scratch`] elements.
    ///
    /// # Panics
    /// If a length is out of range or a page is missing.
    pub fn attend(
        &self,
        shape: &KvShape,
        head: usize,
        scale: f32,
        pages: &dyn KvPages,
        queries: &mut [Query<'_>],
        scratch: &mut [f32],
    ) {
        assert!(head < shape.heads, "kv head {head} of {}", shape.heads);
        for query in queries.iter() {
            assert_eq!(query.vector.len(), shape.key_dim, "query channels");
            assert_eq!(query.out.len(), shape.value_dim, "output channels");
            let needed = KvShape::attend_scratch(query.visible.end);
            assert!(
                needed <= scratch.len(),
                "attention scratch: {needed} elements"
            );
        }
        let head = Head {
            shape: *shape,
            head,
            scale,
            pages,
        };
        for queries in queries.chunks_mut(TOGETHER) {
            // SAFETY: checked lengths; `Kernels` vouches for the instruction set.
            unsafe { (self.table().attend)(&head, queries, scratch) }
        }
    }
}

impl Head<'_> {
    /// The keys of block `block` (16 positions) and the blocks left in its page.
    #[inline(always)]
    fn key_block(&self, block: usize) -> (&[f32], usize) {
        let blocks = PAGE / LANES;
        let page = self.pages.keys(block / blocks);
        let len = self.shape.key_dim * LANES;
        let start = (self.head * blocks + block % blocks) * len;
        let left = blocks - block % blocks;
        (&page[start..start + left * len], left)
    }

    /// The values at some positions of one page.
    #[inline(always)]
    fn value_rows(&self, positions: Range<usize>) -> &[f32] {
        let page = self.pages.values(positions.start / PAGE);
        let dim = self.shape.value_dim;
        let start = (self.head * PAGE + positions.start % PAGE) * dim;
        &page[start..start + positions.len() * dim]
    }
}

/// Scores of `T` queries with `B` blocks of 16 keys: `out[t][b][16]`, rows `stride` apart.
#[inline(always)]
unsafe fn score_tile<L: Lanes, const T: usize, const B: usize>(
    queries: &[Query<'_>],
    keys: &[f32],
    scale: f32,
    out: *mut f32,
    stride: usize,
) {
    let dim = queries[0].vector.len();
    assert!(
        keys.len() >= B * dim * LANES && queries.len() >= T,
        "keys of {B} blocks"
    );
    let mut rows = [std::ptr::null(); T];
    for (row, query) in rows.iter_mut().zip(queries) {
        *row = query.vector.as_ptr();
    }
    // SAFETY: the queries have `dim` channels, the keys `B` blocks; the output is the caller's.
    unsafe {
        let mut acc = [[L::splat(0.0); T]; B];
        for k in 0..dim {
            let mut x = [L::splat(0.0); T];
            unroll!(T_ < T, {
                x[T_] = L::splat(*rows[T_].add(k));
            });
            unroll!(B_ < B, {
                let key = L::load(keys.as_ptr().add((B_ * dim + k) * LANES));
                unroll!(T_ < T, {
                    acc[B_][T_] = key.fma(x[T_], acc[B_][T_]);
                });
            });
        }
        unroll!(B_ < B, {
            unroll!(T_ < T, {
                let score = acc[B_][T_].mul(L::splat(scale));
                score.store(out.add(T_ * stride + B_ * LANES));
            });
        });
    }
}

/// `out[t][d] += p[t][j] * v[j][d]` over `count` positions, for `T` queries and the `D` vectors of
/// channels from `d` on; the last vector has `last` channels.
#[inline(always)]
unsafe fn value_tile<L: Lanes, const T: usize, const D: usize>(
    out: &[*mut f32; T],
    p: &[*const f32; T],
    values: *const f32,
    count: usize,
    dim: usize,
    last: usize,
) {
    // SAFETY: the caller gives `count` rows of `dim` values, as many `p`, and outputs.
    unsafe {
        let mut acc = [[L::splat(0.0); T]; D];
        unroll!(D_ < D, {
            let n = if D_ + 1 == D { last } else { LANES };
            unroll!(T_ < T, {
                acc[D_][T_] = L::load_part(out[T_].add(D_ * LANES), n, 0.0);
            });
        });
        for j in 0..count {
            let row = values.add(j * dim);
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

/// The output and the weights of a query: `p` of position `low` is the first.
#[derive(Clone, Copy)]
struct Lane {
    out: *mut f32,
    p: *const f32,
}

/// Adds the values at `positions`, all of one page, for `T` queries.
#[inline(always)]
unsafe fn weigh<M: Machine, const T: usize>(
    head: &Head<'_>,
    positions: Range<usize>,
    lanes: &[Lane],
    low: usize,
) {
    if positions.start >= positions.end {
        return;
    }
    let values = head.value_rows(positions.clone());
    let dim = head.shape.value_dim;
    let count = positions.len();
    assert!(lanes.len() >= T, "{T} queries");
    let mut d = 0;
    while d < dim {
        // SAFETY: `count` rows of `dim` values were sliced; the outputs have `dim` channels, the
        // weights begin with position `low`.
        unsafe {
            let mut out = [std::ptr::null_mut(); T];
            let mut p = [std::ptr::null(); T];
            for t in 0..T {
                out[t] = lanes[t].out.add(d);
                p[t] = lanes[t].p.add(positions.start - low);
            }
            let v = values.as_ptr().add(d);
            if dim - d >= 4 * LANES {
                value_tile::<M::L, T, 4>(&out, &p, v, count, dim, LANES);
                d += 4 * LANES;
            } else {
                value_tile::<M::L, T, 1>(&out, &p, v, count, dim, LANES.min(dim - d));
                d += LANES;
            }
        }
    }
}

/// Fills `scores` (rows `stride` apart, from position `low`, a multiple of 16) for all blocks up
/// to `high`.
#[inline(always)]
unsafe fn score<M: Machine>(
    head: &Head<'_>,
    queries: &[Query<'_>],
    low: usize,
    high: usize,
    scores: &mut [f32],
    stride: usize,
) {
    let (mut block, end) = (low / LANES, high.div_ceil(LANES));
    while block < end {
        let (keys, left) = head.key_block(block);
        let blocks = if left == 4 && end - block >= 4 { 4 } else { 1 };
        let out = &mut scores[block * LANES - low..];
        assert!(
            out.len() >= (queries.len() - 1) * stride + blocks * LANES,
            "score rows"
        );
        let out = out.as_mut_ptr();
        let scale = head.scale;
        // SAFETY: the output rows have room for `blocks` blocks.
        unsafe {
            for (i, tile) in queries.chunks(TILE).enumerate() {
                let out = out.add(i * TILE * stride);
                match (tile.len(), blocks) {
                    (TILE, 4) => score_tile::<M::L, 4, 4>(tile, keys, scale, out, stride),
                    (TILE, _) => score_tile::<M::L, 4, 1>(tile, keys, scale, out, stride),
                    (_, blocks) => {
                        for (t, one) in tile.chunks(1).enumerate() {
                            let out = out.add(t * stride);
                            if blocks == 4 {
                                score_tile::<M::L, 1, 4>(one, keys, scale, out, stride);
                            } else {
                                score_tile::<M::L, 1, 1>(one, keys, scale, out, stride);
                            }
                        }
                    }
                }
            }
        }
        block += blocks;
    }
}

/// Attention of at most [`TOGETHER`] queries.
///
/// # Safety
/// The instruction set of `M`; checked lengths.
#[inline(always)]
pub(crate) unsafe fn attend<M: Machine>(
    head: &Head<'_>,
    queries: &mut [Query<'_>],
    scratch: &mut [f32],
) {
    let seen = queries.iter().filter(|q| !q.visible.is_empty());
    let low = seen.clone().map(|q| q.visible.start).min().unwrap_or(0) / LANES * LANES;
    let high = seen.map(|q| q.visible.end).max().unwrap_or(0);
    let stride = high.next_multiple_of(LANES) - low;
    // SAFETY: the instruction set is the caller's promise.
    unsafe { score::<M>(head, queries, low, high, scratch, stride) };
    let mut sums = [0.0; TOGETHER];
    let mut lanes = [Lane {
        out: std::ptr::null_mut(),
        p: std::ptr::null(),
    }; TOGETHER];
    for (t, query) in queries.iter_mut().enumerate() {
        query.out.fill(0.0);
        let row = &mut scratch[t * stride..(t + 1) * stride];
        lanes[t] = Lane {
            out: query.out.as_mut_ptr(),
            p: row.as_ptr(),
        };
        if query.visible.is_empty() {
            continue;
        }
        row[..query.visible.start - low].fill(f32::NEG_INFINITY);
        row[query.visible.end - low..].fill(f32::NEG_INFINITY);
        // SAFETY: the instruction set is the caller's promise.
        sums[t] = unsafe {
            let max = max_value::<M>(row);
            exp_of_excess::<M>(row, max)
        };
    }
    let mut page = low / PAGE;
    while page * PAGE < high {
        for (queries, lanes) in queries.chunks(TILE).zip(lanes.chunks(TILE)) {
            // SAFETY: weights begin with position `low`, outputs have the channels of a value.
            unsafe { weigh_page::<M>(head, queries, lanes, page, low) };
        }
        page += 1;
    }
    for (query, sum) in queries.iter_mut().zip(sums) {
        if !query.visible.is_empty() {
            query.out.iter_mut().for_each(|x| *x /= sum);
        }
    }
}

/// The weighted values of one page for at most [`TILE`] queries: together where all of them see,
/// else one by one.
#[inline(always)]
unsafe fn weigh_page<M: Machine>(
    head: &Head<'_>,
    queries: &[Query<'_>],
    lanes: &[Lane],
    page: usize,
    low: usize,
) {
    let within =
        |q: &Query<'_>| q.visible.start.max(page * PAGE)..q.visible.end.min((page + 1) * PAGE);
    let start = queries.iter().map(|q| within(q).start).max().unwrap_or(0);
    let end = queries.iter().map(|q| within(q).end).min().unwrap_or(0);
    let common = queries.len() == TILE && start < end;
    // SAFETY: the caller's promise.
    unsafe {
        for (query, lane) in queries.iter().zip(lanes.chunks(1)) {
            let visible = within(query);
            let before = if common {
                visible.start..start
            } else {
                visible
            };
            weigh::<M, 1>(head, before, lane, low);
        }
        if !common {
            return;
        }
        weigh::<M, TILE>(head, start..end, lanes, low);
        for (query, lane) in queries.iter().zip(lanes.chunks(1)) {
            weigh::<M, 1>(head, end..within(query).end, lane, low);
        }
    }
}
