//! Tiles: a few blocks of 16 output rows times a few input rows, accumulated over a part of k.
//! Accumulators are read from and written to memory, so that k can be cut to fit the cache.
//!
//! Float weights: `acc = fma(w[k], x[k], acc)` from +0, k upward. Compiled weights: per group of
//! 32 inputs the exact integer dot, then `acc = fma(dot, scale_w * scale_x, acc)`, groups upward.

use lamella_program::encoding::{Encoding, GROUP, TILE_ROWS};

use crate::lanes::{LANES, Lanes, unroll, unroll16};
use crate::quantise::Record;
use crate::scalar::f16_to_f32;

/// Most input rows of a tile.
pub(crate) const MAX_TOKENS: usize = 16;
/// Most row blocks of a tile.
pub(crate) const MAX_BLOCKS: usize = 4;
/// Bytes of the scales of one group of a row block.
pub(crate) const GROUP_SCALES: usize = TILE_ROWS * 2;

/// The operands of a tile. Entries of `x` past the tile's input rows are not read.
pub(crate) struct Tile {
    /// The first row block.
    pub weights: *const u8,
    /// Distance of row blocks.
    pub block_bytes: usize,
    /// Bytes between the start of a tiled row block and its codes.
    pub plane_bytes: usize,
    /// The part of the inputs to accumulate: columns, or groups of a compiled encoding.
    pub start: usize,
    pub end: usize,
    /// The same groups of the first row block as a matrix unit wants them, if there is one.
    pub prepared: *const u8,
    /// Whether the weights are not yet in cache.
    pub cold: bool,
    /// Input rows: f32, or [`Record`]s.
    pub x: [*const u8; MAX_TOKENS],
    /// Accumulators: `[block][input row][16]`.
    pub acc: *mut f32,
}

impl Tile {
    /// Group `g` of a quantised input row.
    #[inline(always)]
    pub(crate) unsafe fn record(&self, t: usize, g: usize) -> *const Record {
        // SAFETY: the row has this group: the caller's promise.
        unsafe { self.x[t].cast::<Record>().add(g) }
    }
}

/// Computes one tile.
pub(crate) type TileFn = unsafe fn(&Tile);

/// A compiled tile shape.
#[derive(Clone, Copy)]
pub(crate) struct TileShape {
    /// Input rows.
    pub tokens: usize,
    /// Row blocks.
    pub blocks: usize,
    /// The body.
    pub run: TileFn,
}

/// Hardware that multiplies small integer matrices, for compiled encodings (q8, then q4) and
/// evenly spaced input rows.
pub(crate) struct MatrixUnit {
    /// Its tiles, one row block each; those for few input rows may be ordinary ones.
    pub tiles: [&'static [TileShape]; 2],
    /// Writes the codes of some groups as its tiles want them: `(codes, groups, out)`.
    pub prepare: [unsafe fn(*const u8, usize, *mut u8); 2],
    /// Claims and releases the unit for this thread.
    pub begin: unsafe fn(),
    pub end: unsafe fn(),
}

/// An instruction set: its lanes and its integer dot products.
pub(crate) trait Machine {
    /// Its sixteen lanes.
    type L: Lanes;
    /// # Safety
    /// The instruction set; a tile with `T` q8-quantised input rows and `R` q8 row blocks.
    unsafe fn q8_tile<const T: usize, const R: usize>(tile: &Tile);
    /// # Safety
    /// The instruction set; a tile with `T` quantised input rows and `R` q4 row blocks.
    unsafe fn q4_tile<const T: usize, const R: usize>(tile: &Tile);
}

/// A weight encoding, as a type.
pub(crate) trait Format {
    /// # Safety
    /// The instruction set of `M`; a tile of this encoding with `T` input rows and `R` blocks.
    unsafe fn tile<M: Machine, const T: usize, const R: usize>(tile: &Tile);
}

/// The formats; [`Encoding`] as types.
pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;
pub(crate) struct Q8;
pub(crate) struct Q4;

/// Position of an encoding in the tables of tiles.
pub(crate) fn format_index(encoding: Encoding) -> Option<usize> {
    Encoding::ALL.iter().position(|e| *e == encoding)
}

/// One step along k: `acc[r][t] += w[r] * x[t][k]`.
#[inline(always)]
unsafe fn step<L: Lanes, const T: usize, const R: usize>(
    acc: &mut [[L; T]; R],
    w: &[L; R],
    tile: &Tile,
    k: usize,
) {
    // SAFETY: `T` input rows have an element `k`; the instruction set is the caller's promise.
    unsafe {
        unroll!(T_ < T, {
            let x = L::splat(tile.x[T_].cast::<f32>().add(k).read_unaligned());
            unroll!(R_ < R, {
                acc[R_][T_] = w[R_].fma(x, acc[R_][T_]);
            });
        });
    }
}

/// The accumulators of a tile.
#[inline(always)]
pub(crate) unsafe fn load<L: Lanes, const T: usize, const R: usize>(tile: &Tile) -> [[L; T]; R] {
    // SAFETY: there are `R * T` groups of 16 accumulators.
    unsafe {
        let mut acc = [[L::splat(0.0); T]; R];
        unroll!(R_ < R, {
            unroll16!(T_ < T, {
                acc[R_][T_] = L::load(tile.acc.add(LANES * (R_ * T + T_)));
            });
        });
        acc
    }
}

#[inline(always)]
pub(crate) unsafe fn store<L: Lanes, const T: usize, const R: usize>(
    acc: &[[L; T]; R],
    tile: &Tile,
) {
    // SAFETY: there are `R * T` groups of 16 accumulators.
    unsafe {
        unroll!(R_ < R, {
            unroll16!(T_ < T, {
                acc[R_][T_].store(tile.acc.add(LANES * (R_ * T + T_)));
            });
        });
    }
}

impl Format for F32 {
    #[inline(always)]
    unsafe fn tile<M: Machine, const T: usize, const R: usize>(tile: &Tile) {
        // SAFETY: the blocks hold `end` columns of 16 f32.
        unsafe {
            let mut acc = load::<M::L, T, R>(tile);
            for k in tile.start..tile.end {
                let mut w = [M::L::splat(0.0); R];
                unroll!(R_ < R, {
                    let block = tile.weights.add(R_ * tile.block_bytes);
                    w[R_] = M::L::load(block.add(64 * k).cast());
                });
                step(&mut acc, &w, tile, k);
            }
            store(&acc, tile);
        }
    }
}

impl Format for F16 {
    #[inline(always)]
    unsafe fn tile<M: Machine, const T: usize, const R: usize>(tile: &Tile) {
        // SAFETY: the blocks hold `end` columns of 16 f16.
        unsafe {
            let mut acc = load::<M::L, T, R>(tile);
            for k in tile.start..tile.end {
                let mut w = [M::L::splat(0.0); R];
                unroll!(R_ < R, {
                    let block = tile.weights.add(R_ * tile.block_bytes);
                    w[R_] = M::L::load_f16(block.add(32 * k));
                });
                step(&mut acc, &w, tile, k);
            }
            store(&acc, tile);
        }
    }
}

impl Format for Bf16 {
    #[inline(always)]
    unsafe fn tile<M: Machine, const T: usize, const R: usize>(tile: &Tile) {
        // SAFETY: the blocks hold `ceil(end / 2)` columns of 16 pairs of bf16; `start` is even.
        unsafe {
            let mut acc = load::<M::L, T, R>(tile);
            let mut first = [M::L::splat(0.0); R];
            let mut second = [M::L::splat(0.0); R];
            for pair in tile.start / 2..tile.end / 2 {
                unroll!(R_ < R, {
                    let block = tile.weights.add(R_ * tile.block_bytes);
                    (first[R_], second[R_]) = M::L::load_bf16_pairs(block.add(64 * pair));
                });
                step(&mut acc, &first, tile, 2 * pair);
                step(&mut acc, &second, tile, 2 * pair + 1);
            }
            if tile.end % 2 == 1 {
                unroll!(R_ < R, {
                    let block = tile.weights.add(R_ * tile.block_bytes);
                    first[R_] = M::L::load_bf16_pairs(block.add(64 * (tile.end / 2))).0;
                });
                step(&mut acc, &first, tile, tile.end - 1);
            }
            store(&acc, tile);
        }
    }
}

impl Format for Q8 {
    #[inline(always)]
    unsafe fn tile<M: Machine, const T: usize, const R: usize>(tile: &Tile) {
        // SAFETY: the same contract.
        unsafe { M::q8_tile::<T, R>(tile) }
    }
}

impl Format for Q4 {
    #[inline(always)]
    unsafe fn tile<M: Machine, const T: usize, const R: usize>(tile: &Tile) {
        // SAFETY: the same contract.
        unsafe { M::q4_tile::<T, R>(tile) }
    }
}

/// The reference for compiled weights: `value` gives the integer at `(group codes, row, input)`.
#[inline(always)]
unsafe fn integer_tile_plain<const T: usize, const R: usize>(
    tile: &Tile,
    code_bytes: usize,
    value: impl Fn(&[u8], usize, usize) -> i32,
) {
    for r in 0..R {
        for t in 0..T {
            // SAFETY: the block has a scale plane and codes for every group; so has the input
            // row; there are `R * T` groups of 16 accumulators.
            unsafe {
                let block = tile.weights.add(r * tile.block_bytes);
                let place = tile.acc.add(LANES * (r * T + t)).cast::<[f32; LANES]>();
                let mut acc = place.read_unaligned();
                for g in tile.start..tile.end {
                    let codes = block.add(tile.plane_bytes + g * code_bytes);
                    let codes = std::slice::from_raw_parts(codes, code_bytes);
                    let scales = block.add(g * GROUP_SCALES).cast::<[u16; LANES]>();
                    let scales = scales.read_unaligned().map(u16::from_le);
                    let x = &*tile.record(t, g);
                    for (i, lane) in acc.iter_mut().enumerate() {
                        let terms = x.codes.iter().enumerate();
                        let dot: i32 = terms.map(|(k, x)| value(codes, i, k) * i32::from(*x)).sum();
                        *lane = (dot as f32).mul_add(f16_to_f32(scales[i]) * x.scale, *lane);
                    }
                }
                place.write_unaligned(acc);
            }
        }
    }
}

/// The integer of a q8 group at `row`, input `k`.
pub(crate) fn q8_value(codes: &[u8], row: usize, k: usize) -> i32 {
    i32::from(codes[64 * (k / 4) + 4 * row + k % 4]) - 128
}

/// The integer of a q4 group at `row`, input `k`.
pub(crate) fn q4_value(codes: &[u8], row: usize, k: usize) -> i32 {
    let byte = codes[64 * (k / 8) + 4 * row + k % 4];
    let code = if k % 8 < 4 { byte & 0x0f } else { byte >> 4 };
    i32::from(code) - 8
}

/// # Safety
/// A tile with `T` quantised input rows and `R` q8 blocks.
#[inline(always)]
pub(crate) unsafe fn q8_tile_plain<const T: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the same contract.
    unsafe { integer_tile_plain::<T, R>(tile, TILE_ROWS * GROUP, q8_value) }
}

/// # Safety
/// A tile with `T` quantised input rows and `R` q4 blocks.
#[inline(always)]
pub(crate) unsafe fn q4_tile_plain<const T: usize, const R: usize>(tile: &Tile) {
    // SAFETY: the same contract.
    unsafe { integer_tile_plain::<T, R>(tile, TILE_ROWS * GROUP / 2, q4_value) }
}
