//! AVX-512 (F, BW, DQ, VL, VNNI): one register is one tile column.

use std::arch::x86_64::*;

use crate::lanes::{Lanes, SQRT_HALF_BITS, unroll};
use crate::quantise::Record;
use crate::scalar::E2M1;
use crate::tile::{GROUP_SCALES, Machine, Tile, load, store};

/// Sixteen f32 in one register.
#[derive(Clone, Copy)]
pub(crate) struct Zmm(__m512);

impl Zmm {
    /// Sixteen integers at a 64-byte boundary, as floats.
    #[inline(always)]
    pub(crate) unsafe fn of_i32(p: *const i32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Zmm(_mm512_cvtepi32_ps(_mm512_load_si512(p.cast()))) }
    }
}

impl Lanes for Zmm {
    const MANY: bool = true;
    type Word = __m512i;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Zmm(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe { Zmm(_mm512_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe { Zmm(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(p: *const u8) -> (Self, Self) {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
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
    unsafe fn load_word(p: *const u8) -> __m512i {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn e2m1<const J: usize>(word: __m512i) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe {
            // The table's index is the low four bits of a lane.
            let code = _mm512_srlv_epi32(word, _mm512_set1_epi32(4 * J as i32));
            let table = _mm512_loadu_ps(E2M1.as_ptr());
            Zmm(_mm512_permutexvar_ps(code, table))
        }
    }
    #[inline(always)]
    unsafe fn e4m3<const J: usize>(word: __m512i) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe {
            let halves = as_f16(if J.is_multiple_of(2) {
                _mm512_slli_epi16::<8>(word)
            } else {
                word
            });
            let half = if J < 2 {
                _mm512_castsi512_si256(halves)
            } else {
                _mm512_extracti64x4_epi64::<1>(halves)
            };
            Zmm(_mm512_cvtph_ps(half))
        }
    }
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Self {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe {
            let codes = _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast())));
            let mask = _mm256_set1_epi16(E4M3_IN_F16);
            let halves = _mm256_and_si256(_mm256_srai_epi16::<1>(codes), mask);
            Zmm(_mm512_cvtph_ps(halves))
        }
    }
    #[inline(always)]
    unsafe fn load_e8m0(p: *const u8) -> Self {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            let least = _mm512_set1_epi32(0x0040_0000);
            let bits = _mm512_max_epu32(_mm512_slli_epi32::<23>(bytes), least);
            Zmm(_mm512_castsi512_ps(bits))
        }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Zmm(_mm512_add_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Zmm(_mm512_sub_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Zmm(_mm512_mul_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Zmm(_mm512_div_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Zmm(_mm512_sqrt_ps(self.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Zmm(_mm512_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Zmm(_mm512_max_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Zmm(_mm512_min_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn exp2_of_magic(self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
            let one = _mm512_castps_si512(_mm512_set1_ps(1.0));
            Zmm(_mm512_castsi512_ps(_mm512_add_epi32(exponent, one)))
        }
    }
    #[inline(always)]
    unsafe fn by_sign(self, negative: Self, positive: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe {
            let signs = _mm512_movepi32_mask(_mm512_castps_si512(self.0));
            Zmm(_mm512_mask_blend_ps(signs, positive.0, negative.0))
        }
    }
    #[inline(always)]
    unsafe fn split(self) -> (Self, Self) {
        // SAFETY: the trait's contract: this instruction set.
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let base = _mm512_set1_epi32(SQRT_HALF_BITS);
            let exponents = _mm512_srai_epi32::<23>(_mm512_sub_epi32(bits, base));
            let mantissas = _mm512_sub_epi32(bits, _mm512_slli_epi32::<23>(exponents));
            (
                Zmm(_mm512_cvtepi32_ps(exponents)),
                Zmm(_mm512_castsi512_ps(mantissas)),
            )
        }
    }
    #[inline(always)]
    unsafe fn max_abs_bits(self, b: Self) -> u32 {
        // SAFETY: the trait's contract: this instruction set.
        unsafe {
            let a = _mm512_castps_si512(_mm512_abs_ps(self.0));
            let b = _mm512_castps_si512(_mm512_abs_ps(b.0));
            _mm512_reduce_max_epu32(_mm512_max_epu32(a, b))
        }
    }
    #[inline(always)]
    unsafe fn store_codes(self, p: *mut i8) {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe {
            _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(_mm512_castps_si512(self.0)));
        }
    }
    #[inline(always)]
    unsafe fn sums(v: &[Self; 16]) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe {
            // Two registers at a time become one that holds the sums of the halves of both.
            let mut eights = [_mm512_setzero_ps(); 8];
            for i in 0..8 {
                let (a, b) = (v[i].0, v[i + 8].0);
                let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
                eights[i] = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b));
            }
            let mut fours = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                let (a, b) = (eights[i], eights[i + 4]);
                let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
                fours[i] = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
            }
            let mut pairs = [_mm512_setzero_ps(); 2];
            for i in 0..2 {
                let (a, b) = (fours[i], fours[i + 2]);
                let low = _mm512_shuffle_ps::<0b01_00_01_00>(a, b);
                pairs[i] = _mm512_add_ps(low, _mm512_shuffle_ps::<0b11_10_11_10>(a, b));
            }
            let [a, b] = pairs;
            let even = _mm512_shuffle_ps::<0b10_00_10_00>(a, b);
            let sums = _mm512_add_ps(even, _mm512_shuffle_ps::<0b11_01_11_01>(a, b));
            // Quarters are now in the order 0, 8, 4, 12, each of them 0, 2, 1, 3.
            let order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
            Zmm(_mm512_permutexvar_ps(order, sums))
        }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize, fill: f32) -> Self {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe { Zmm(_mm512_mask_loadu_ps(_mm512_set1_ps(fill), part(n), p)) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe { _mm512_mask_storeu_ps(p, part(n), self.0) }
    }
}

/// Sign, low four bits of the exponent and high three of the mantissa of an f16.
pub(crate) const E4M3_IN_F16: i16 = 0xbf80_u16 as i16;

/// The E4M3 codes in the high bytes of 16-bit elements as f16, times 2^-8.
#[inline(always)]
unsafe fn as_f16(codes: __m512i) -> __m512i {
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        let mask = _mm512_set1_epi16(E4M3_IN_F16);
        _mm512_and_si512(_mm512_srai_epi16::<1>(codes), mask)
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
pub(crate) unsafe fn q4_codes(p: *const u8) -> [__m512i; 8] {
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

/// Bytes ahead of the codes in use that are asked for into the second-level cache: more than the
/// latency of memory at the rate a core can stream.
const FAR: usize = 4096;
/// The same for the first-level cache, from the second.
const NEAR: usize = 1024;

macro_rules! integer_tile {
    ($name:ident, $codes:ident, $code_bytes:literal, $offset:ident) => {
        /// The tile body: exact integer dots of a group, then one fused multiply-add.
        #[inline(always)]
        unsafe fn $name<const T: usize, const R: usize>(tile: &Tile) {
            // SAFETY: `Tile` describes readable operands and accumulators of these shapes.
            unsafe {
                let mut acc = load::<Zmm, T, R>(tile);
                for g in tile.start..tile.end {
                    unroll!(R_ < R, {
                        let block = tile.weights.add(R_ * tile.block_bytes);
                        let at = block.add(tile.plane_bytes + g * $code_bytes);
                        if tile.cold {
                            prefetch::<{ $code_bytes / 64 }>(at);
                        }
                        let w = $codes(at);
                        let scale_w = Zmm::load_f16(block.add(g * GROUP_SCALES));
                        let mut x = [std::ptr::null(); T];
                        unroll!(T_ < T, {
                            x[T_] = tile.record(T_, g);
                        });
                        let mut dots = [_mm512_setzero_si512(); T];
                        unroll!(T_ < T, {
                            dots[T_] = _mm512_set1_epi32((*x[T_]).$offset);
                        });
                        dot_group(&mut dots, &w, &x);
                        unroll!(T_ < T, {
                            let scale = scale_w.mul(Zmm::splat((*x[T_]).scale));
                            let dot = Zmm(_mm512_cvtepi32_ps(dots[T_]));
                            acc[R_][T_] = dot.fma(scale, acc[R_][T_]);
                        });
                    });
                }
                store(&acc, tile);
            }
        }
    };
}

/// Asks for `LINES` cache lines [`FAR`] and [`NEAR`] ahead of `at`.
#[inline(always)]
pub(crate) unsafe fn prefetch<const LINES: usize>(at: *const u8) {
    unroll!(I < LINES, {
        let line = at.wrapping_add(64 * I);
        // SAFETY: a prefetch accesses nothing.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(FAR).cast());
            _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(NEAR).cast());
        }
    });
}

/// Adds the exact dot products of 16 rows with a group of each input row. The input rows take
/// turns, which hides the latency of their chains; a few alone get a second chain each.
#[inline(always)]
unsafe fn dot_group<const T: usize>(
    dots: &mut [__m512i; T],
    w: &[__m512i; 8],
    x: &[*const Record; T],
) {
    // SAFETY: records of the caller's; the instruction set is the caller's promise.
    unsafe {
        let mut odd = [_mm512_setzero_si512(); T];
        unroll!(Q < 8, {
            unroll!(T_ < T, {
                let quad = (*x[T_])
                    .codes
                    .as_ptr()
                    .cast::<i32>()
                    .add(Q)
                    .read_unaligned();
                let chain = if T <= 2 && Q % 2 == 1 {
                    &mut odd
                } else {
                    &mut *dots
                };
                chain[T_] = _mm512_dpbusd_epi32(chain[T_], w[Q], _mm512_set1_epi32(quad));
            });
        });
        if T <= 2 {
            unroll!(T_ < T, {
                dots[T_] = _mm512_add_epi32(dots[T_], odd[T_]);
            });
        }
    }
}

integer_tile!(q8_tile, q8_codes, 512, offset8);
integer_tile!(q4_tile, q4_codes, 256, offset4);

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
