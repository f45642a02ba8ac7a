//! Weights held as a checkpoint ships them: FP8 and FP4 codes with scales, decoded in registers.
//!
//! A group is the inputs of a row that share a scale. Within it `dot = fma(code, x, dot)` from +0,
//! k upward, the codes being exact; then `acc = fma(dot, scale, acc)`, groups upward. E4M3 codes
//! come out of the f16 conversion times 2^-8, which the dot gets back before it is scaled.

use std::marker::PhantomData;

use lamella_program::Encoding;
use lamella_program::encoding::TILE_ROWS;

use crate::lanes::{LANES, Lanes, unroll, unroll16};
use crate::scalar::{e2m1_to_f32, e4m3_to_f32};
use crate::tile::{Format, Machine, Tile, load, store};

/// Bytes of one word of every row of a block.
const WORD_BYTES: usize = TILE_ROWS * 4;
/// What [`Lanes::e4m3`] leaves out of a code's value.
pub(crate) const E4M3_FACTOR: f32 = 256.0;

/// What the codes are.
pub(crate) trait Codes {
    /// Inputs in a word.
    const INPUTS: usize;
    /// What a code was multiplied by when it was decoded, the other way round.
    const FACTOR: f32;
    /// # Safety
    /// The instruction set of `L`; `J` below [`Codes::INPUTS`].
    unsafe fn input<L: Lanes, const J: usize>(word: L::Word) -> L;
}

/// What the scales are.
pub(crate) trait Scales {
    /// Inputs of a row that share one.
    const GROUP: usize;
    /// The scales of group `g` of the rows of a block.
    ///
    /// # Safety
    /// The instruction set of `L`; a scale plane with this group.
    unsafe fn of<L: Lanes>(plane: *const u8, g: usize) -> L;
}

/// FP8, four inputs a word.
pub(crate) struct E4m3;
/// FP4, eight inputs a word.
pub(crate) struct E2m1;

impl Codes for E4m3 {
    const INPUTS: usize = 4;
    const FACTOR: f32 = E4M3_FACTOR;
    #[inline(always)]
    unsafe fn input<L: Lanes, const J: usize>(word: L::Word) -> L {
        // SAFETY: the same contract.
        unsafe { L::e4m3::<J>(word) }
    }
}

impl Codes for E2m1 {
    const INPUTS: usize = 8;
    const FACTOR: f32 = 1.0;
    #[inline(always)]
    unsafe fn input<L: Lanes, const J: usize>(word: L::Word) -> L {
        // SAFETY: the same contract.
        unsafe { L::e2m1::<J>(word) }
    }
}

/// One f32 for 128 inputs.
pub(crate) struct Wide;
/// One E8M0 for 32 inputs.
pub(crate) struct Powers;
/// One E4M3 for 16 inputs, one f32 for the row.
pub(crate) struct Nested;

impl Scales for Wide {
    const GROUP: usize = 128;
    #[inline(always)]
    unsafe fn of<L: Lanes>(plane: *const u8, g: usize) -> L {
        // SAFETY: 16 f32 a group.
        unsafe { L::load(plane.add(4 * LANES * g).cast()) }
    }
}

impl Scales for Powers {
    const GROUP: usize = 32;
    #[inline(always)]
    unsafe fn of<L: Lanes>(plane: *const u8, g: usize) -> L {
        // SAFETY: 16 bytes a group.
        unsafe { L::load_e8m0(plane.add(LANES * g)) }
    }
}

impl Scales for Nested {
    const GROUP: usize = 16;
    #[inline(always)]
    unsafe fn of<L: Lanes>(plane: *const u8, g: usize) -> L {
        // SAFETY: 16 f32, then 16 bytes a group.
        unsafe {
            let outer = L::load(plane.cast());
            let scale = L::load_e4m3(plane.add(4 * LANES + LANES * g));
            scale.mul(L::splat(E4M3_FACTOR)).mul(outer)
        }
    }
}

/// A format of codes and scales.
pub(crate) struct Coded<C, S>(PhantomData<(C, S)>);

pub(crate) type Fp8 = Coded<E4m3, Wide>;
pub(crate) type Mxfp8 = Coded<E4m3, Powers>;
pub(crate) type Mxfp4 = Coded<E2m1, Powers>;
pub(crate) type Nvfp4 = Coded<E2m1, Nested>;

impl<C: Codes, S: Scales> Coded<C, S> {
    /// Adds the products of `inputs` inputs from `k` on, all of one word.
    #[inline(always)]
    unsafe fn word<L: Lanes, const T: usize, const R: usize>(
        dots: &mut [[L; T]; R],
        tile: &Tile,
        k: usize,
        inputs: usize,
    ) {
        // SAFETY: the blocks hold this word, the input rows these inputs; the instruction set is
        // the caller's promise.
        unsafe {
            let at = tile.plane_bytes + k / C::INPUTS * WORD_BYTES;
            unroll!(R_ < R, {
                let word = L::load_word(tile.weights.add(R_ * tile.block_bytes + at));
                unroll!(J_ < 8, {
                    if J_ < C::INPUTS && J_ < inputs {
                        let w = C::input::<L, J_>(word);
                        unroll!(T_ < T, {
                            let x = tile.x[T_].cast::<f32>().add(k + J_).read_unaligned();
                            dots[R_][T_] = w.fma(L::splat(x), dots[R_][T_]);
                        });
                    }
                });
            });
        }
    }
}

impl<C: Codes, S: Scales> Format for Coded<C, S> {
    #[inline(always)]
    unsafe fn tile<M: Machine, const T: usize, const R: usize>(tile: &Tile) {
        // SAFETY: the blocks hold the words and scales of `end` columns; `start` is a multiple of
        // the group.
        unsafe {
            let mut acc = load::<M::L, T, R>(tile);
            let mut start = tile.start;
            while start < tile.end {
                let end = tile.end.min(start + S::GROUP);
                let mut dots = [[M::L::splat(0.0); T]; R];
                let mut k = start;
                while k + C::INPUTS <= end {
                    Self::word(&mut dots, tile, k, C::INPUTS);
                    k += C::INPUTS;
                }
                if k < end {
                    Self::word(&mut dots, tile, k, end - k);
                }
                unroll!(R_ < R, {
                    let plane = tile.weights.add(R_ * tile.block_bytes);
                    let scale: M::L = S::of(plane, start / S::GROUP);
                    unroll16!(T_ < T, {
                        let mut dot = dots[R_][T_];
                        if C::FACTOR != 1.0 {
                            dot = dot.mul(M::L::splat(C::FACTOR));
                        }
                        acc[R_][T_] = dot.fma(scale, acc[R_][T_]);
                    });
                });
                start = end;
            }
            store(&acc, tile);
        }
    }
}

/// Row `i` of a coded block: the values the codes and scales stand for.
pub(crate) fn unpack_coded(encoding: Encoding, block: &[u8], i: usize, out: &mut [f32]) {
    let plane = encoding.scale_bytes(out.len()).unwrap_or(0);
    let (group, inputs) = (encoding.group(), encoding.word_inputs());
    let (Some(group), Some(inputs)) = (group, inputs) else {
        return;
    };
    let (scales, codes) = block.split_at(plane);
    let float = |at: usize| {
        f32::from_le_bytes([scales[at], scales[at + 1], scales[at + 2], scales[at + 3]])
    };
    for (g, values) in out.chunks_mut(group).enumerate() {
        let byte = |head: usize| scales[head + TILE_ROWS * g + i];
        let (scale, outer) = match encoding {
            Encoding::Fp8 => (float(4 * (TILE_ROWS * g + i)), 1.0),
            Encoding::Nvfp4 => (e4m3_to_f32(byte(4 * TILE_ROWS)), float(4 * i)),
            _ => (f32::from_bits(e8m0_bits(byte(0))), 1.0),
        };
        for (n, value) in values.iter_mut().enumerate() {
            let k = g * group + n;
            let word = &codes[k / inputs * WORD_BYTES..][..WORD_BYTES];
            let code = if inputs == 4 {
                e4m3_to_f32(word[e4m3_place(i, k % 4)])
            } else {
                let byte = word[4 * i + k % 8 / 2];
                e2m1_to_f32(if k.is_multiple_of(2) {
                    byte & 15
                } else {
                    byte >> 4
                })
            };
            *value = code * scale * outer;
        }
    }
}

/// Place of the code of row `i`, input `j` of a word of E4M3 codes.
#[inline(always)]
pub(crate) fn e4m3_place(i: usize, j: usize) -> usize {
    2 * TILE_ROWS * (j / 2) + 2 * i + j % 2
}

/// The bits of `2^(byte - 127)`; 0 is the subnormal 2^-127.
#[inline(always)]
pub(crate) fn e8m0_bits(byte: u8) -> u32 {
    (u32::from(byte) << 23).max(0x0040_0000)
}
