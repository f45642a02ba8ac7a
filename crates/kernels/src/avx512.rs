//! AVX-512 (F, BW, DQ, VL, VNNI): one register is one tile column.

use std::arch::x86_64::*;

use crate::lanes::{Lanes, unroll};
use crate::tile::{GROUP_SCALES, Machine, Tile};

/// Sixteen f32 in one register.
#[derive(Clone, Copy)]
pub(crate) struct Zmm(__m512);

// SAFETY (all blocks of this impl): the trait's contract is this instruction set and the element
// counts of the pointers; all accesses are unaligned ones.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one contract for all, stated above"
)]
impl Lanes for Zmm {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Zmm(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Zmm(_mm512_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        unsafe { Zmm(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(p: *const u8) -> (Self, Self) {
        unsafe {
            let pairs = _mm512_loadu_si512(p.cast());
            let first = _mm512_slli_epi32::<16>(pairs);
            let second = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (
                Zmm(_mm512_castsi512_ps(first)),
                Zmm(_mm512_castsi512_ps(second)),
            )
        }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        unsafe { Zmm(_mm512_add_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        unsafe { Zmm(_mm512_sub_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        unsafe { Zmm(_mm512_mul_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        unsafe { Zmm(_mm512_div_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Zmm(_mm512_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        unsafe { Zmm(_mm512_max_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        unsafe { Zmm(_mm512_min_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn exp2_of_magic(self) -> Self {
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
            let one = _mm512_castps_si512(_mm512_set1_ps(1.0));
            Zmm(_mm512_castsi512_ps(_mm512_add_epi32(exponent, one)))
        }
    }
    #[inline(always)]
    unsafe fn max_abs_bits(self, b: Self) -> u32 {
        unsafe {
            let a = _mm512_castps_si512(_mm512_abs_ps(self.0));
            let b = _mm512_castps_si512(_mm512_abs_ps(b.0));
            _mm512_reduce_max_epu32(_mm512_max_epu32(a, b))
        }
    }
    #[inline(always)]
    unsafe fn store_codes(self, p: *mut i8) {
        unsafe {
            _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(_mm512_castps_si512(self.0)));
        }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize, fill: f32) -> Self {
        unsafe { Zmm(_mm512_mask_loadu_ps(_mm512_set1_ps(fill), part(n), p)) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, part(n), self.0) }
    }
}

/// A mask of the first `n` lanes.
#[inline(always)]
fn part(n: usize) -> __mmask16 {
    if n >= 16 { 0xffff } else { (1 << n) - 1 }
}

/// A processor with AVX-512 VNNI.
pub(crate) struct Avx512;

/// The eight code registers of a q8 group.
#[inline(always)]
unsafe fn q8_codes(p: *const u8) -> [__m512i; 8] {
    // SAFETY: a group has 512 code bytes; the instruction set is the caller's promise.
    unsafe { std::array::from_fn(|q| _mm512_loadu_si512(p.add(64 * q).cast())) }
}

/// The eight code registers of a q4 group, unpacked to one code a byte.
#[inline(always)]
unsafe fn q4_codes(p: *const u8) -> [__m512i; 8] {
    // SAFETY: a group has 256 code bytes; the instruction set is the caller's promise.
    unsafe {
        let low = _mm512_set1_epi8(0x0f);
        std::array::from_fn(|q| {
            let packed = _mm512_loadu_si512(p.add(64 * (q / 2)).cast());
            let wanted = if q % 2 == 0 {
                packed
            } else {
                _mm512_srli_epi16::<4>(packed)
            };
            _mm512_and_si512(wanted, low)
        })
    }
}

/// Bytes ahead of the codes in use that are asked for: about the latency of memory at the rate a
/// core can stream.
const AHEAD: usize = 3072;

macro_rules! integer_tile {
    ($name:ident, $codes:ident, $code_bytes:literal, $offsets:ident) => {
        /// The tile body: exact integer dots of a group, then one fused multiply-add.
        #[inline(always)]
        unsafe fn $name<const T: usize, const R: usize>(tile: &Tile) {
            // SAFETY: `Tile` describes readable operands of these shapes and a writable output.
            unsafe {
                let mut acc = [[_mm512_setzero_ps(); T]; R];
                let plane = tile.scale_plane_bytes();
                for g in 0..tile.groups() {
                    unroll!(R_ < R, {
                        let block = tile.weights.add(R_ * tile.block_bytes);
                        let at = block.add(plane + g * $code_bytes);
                        if T <= 2 {
                            let mut line = 0;
                            while line < $code_bytes {
                                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD + line).cast());
                                line += 64;
                            }
                        }
                        let w = $codes(at);
                        let scales = block.add(g * GROUP_SCALES);
                        let scale_w = _mm512_cvtph_ps(_mm256_loadu_si256(scales.cast()));
                        unroll!(T_ < T, {
                            let x = tile.x[T_].add(32 * g);
                            let dot = dot_group(&w, x, *tile.$offsets[T_].add(g));
                            let scale_x = _mm512_set1_ps(*tile.scales[T_].add(g));
                            let scale = _mm512_mul_ps(scale_w, scale_x);
                            acc[R_][T_] =
                                _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, acc[R_][T_]);
                        });
                    });
                }
                unroll!(R_ < R, {
                    unroll!(T_ < T, {
                        _mm512_storeu_ps(tile.out.add(16 * (R_ * T + T_)), acc[R_][T_]);
                    });
                });
            }
        }
    };
}

/// The exact dot products of 16 rows with one group of inputs; `offset` undoes the bias of the
/// unsigned codes.
#[inline(always)]
unsafe fn dot_group(w: &[__m512i; 8], x: *const u8, offset: i32) -> __m512i {
    // SAFETY: a group has 32 input bytes; the instruction set is the caller's promise.
    unsafe {
        let mut even = _mm512_set1_epi32(offset);
        let mut odd = _mm512_setzero_si512();
        let quad = |q: usize| _mm512_set1_epi32(x.cast::<i32>().add(q).read_unaligned());
        even = _mm512_dpbusd_epi32(even, w[0], quad(0));
        odd = _mm512_dpbusd_epi32(odd, w[1], quad(1));
        even = _mm512_dpbusd_epi32(even, w[2], quad(2));
        odd = _mm512_dpbusd_epi32(odd, w[3], quad(3));
        even = _mm512_dpbusd_epi32(even, w[4], quad(4));
        odd = _mm512_dpbusd_epi32(odd, w[5], quad(5));
        even = _mm512_dpbusd_epi32(even, w[6], quad(6));
        odd = _mm512_dpbusd_epi32(odd, w[7], quad(7));
        _mm512_add_epi32(even, odd)
    }
}

integer_tile!(q8_tile, q8_codes, 512, offsets8);
integer_tile!(q4_tile, q4_codes, 256, offsets4);

impl Machine for Avx512 {
    type L = Zmm;
    #[inline(always)]
    unsafe fn q8_tile<const T: usize, const R: usize>(tile: &Tile) {
        // SAFETY: the same contract.
        unsafe { q8_tile::<T, R>(tile) }
    }
    #[inline(always)]
    unsafe fn q4_tile<const T: usize, const R: usize>(tile: &Tile) {
        // SAFETY: the same contract.
        unsafe { q4_tile::<T, R>(tile) }
    }
}
