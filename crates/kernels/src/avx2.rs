//! AVX2 with FMA and F16C: a tile column is a pair of registers.

use std::arch::x86_64::*;

use crate::lanes::{Lanes, SQRT_HALF_BITS, unroll};
use crate::scalar::E2M1;
use crate::tile::{GROUP_SCALES, Machine, Tile, load, store};

/// Sixteen f32 in two registers: lanes 0..8 and 8..16.
#[derive(Clone, Copy)]
pub(crate) struct Ymm2(__m256, __m256);

impl Ymm2 {
    #[inline(always)]
    unsafe fn bits(self) -> (__m256i, __m256i) {
        // SAFETY: the instruction set is the caller's promise.
        unsafe { (_mm256_castps_si256(self.0), _mm256_castps_si256(self.1)) }
    }
    /// The E4M3 codes in the high bytes of 16-bit elements, times 2^-8.
    #[inline(always)]
    unsafe fn of_e4m3(codes: __m256i) -> Self {
        // SAFETY: the instruction set is the caller's promise.
        unsafe {
            // Sign, low four bits of the exponent and high three of the mantissa of an f16.
            let mask = _mm256_set1_epi16(0xbf80_u16 as i16);
            let halves = _mm256_and_si256(_mm256_srai_epi16::<1>(codes), mask);
            let high = _mm256_extracti128_si256::<1>(halves);
            Ymm2(
                _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                _mm256_cvtph_ps(high),
            )
        }
    }
    #[inline(always)]
    unsafe fn of_bits(a: __m256i, b: __m256i) -> Self {
        // SAFETY: the instruction set is the caller's promise.
        unsafe { Ymm2(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)) }
    }
}

impl Lanes for Ymm2 {
    const MANY: bool = false;
    type Word = (__m256i, __m256i);
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Ymm2(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe { Ymm2(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe {
            let low = _mm_loadu_si128(p.cast());
            let high = _mm_loadu_si128(p.add(16).cast());
            Ymm2(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(p: *const u8) -> (Self, Self) {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe {
            let a = _mm256_loadu_si256(p.cast());
            let b = _mm256_loadu_si256(p.add(32).cast());
            let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let first = Ymm2::of_bits(_mm256_slli_epi32::<16>(a), _mm256_slli_epi32::<16>(b));
            (
                first,
                Ymm2::of_bits(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_word(p: *const u8) -> Self::Word {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe {
            let low = _mm256_loadu_si256(p.cast());
            (low, _mm256_loadu_si256(p.add(32).cast()))
        }
    }
    #[inline(always)]
    unsafe fn e2m1<const J: usize>(word: Self::Word) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Ymm2(e2m1::<J>(word.0), e2m1::<J>(word.1)) }
    }
    #[inline(always)]
    unsafe fn e4m3<const J: usize>(word: Self::Word) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe {
            let codes = if J < 2 { word.0 } else { word.1 };
            Ymm2::of_e4m3(match J % 2 {
                0 => _mm256_slli_epi16::<8>(codes),
                _ => codes,
            })
        }
    }
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Self {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe {
            let codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast()));
            Ymm2::of_e4m3(_mm256_slli_epi16::<8>(codes))
        }
    }
    #[inline(always)]
    unsafe fn load_e8m0(p: *const u8) -> Self {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe {
            let bytes = _mm_loadu_si128(p.cast());
            let (a, b) = (bytes, _mm_srli_si128::<8>(bytes));
            let least = _mm256_set1_epi32(0x0040_0000);
            let power = |bytes| {
                let exponent = _mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(bytes));
                _mm256_max_epu32(exponent, least)
            };
            Ymm2::of_bits(power(a), power(b))
        }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Ymm2(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Ymm2(_mm256_sub_ps(self.0, b.0), _mm256_sub_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Ymm2(_mm256_mul_ps(self.0, b.0), _mm256_mul_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Ymm2(_mm256_div_ps(self.0, b.0), _mm256_div_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Ymm2(_mm256_sqrt_ps(self.0), _mm256_sqrt_ps(self.1)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe {
            Ymm2(
                _mm256_fmadd_ps(self.0, b.0, c.0),
                _mm256_fmadd_ps(self.1, b.1, c.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Ymm2(_mm256_max_ps(self.0, b.0), _mm256_max_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe { Ymm2(_mm256_min_ps(self.0, b.0), _mm256_min_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn exp2_of_magic(self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe {
            let (a, b) = self.bits();
            let one = _mm256_castps_si256(_mm256_set1_ps(1.0));
            let a = _mm256_add_epi32(_mm256_slli_epi32::<23>(a), one);
            Ymm2::of_bits(a, _mm256_add_epi32(_mm256_slli_epi32::<23>(b), one))
        }
    }
    #[inline(always)]
    unsafe fn by_sign(self, negative: Self, positive: Self) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe {
            Ymm2(
                _mm256_blendv_ps(positive.0, negative.0, self.0),
                _mm256_blendv_ps(positive.1, negative.1, self.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn split(self) -> (Self, Self) {
        // SAFETY: the trait's contract: this instruction set.
        unsafe {
            let (a, b) = self.bits();
            let base = _mm256_set1_epi32(SQRT_HALF_BITS);
            let x = _mm256_srai_epi32::<23>(_mm256_sub_epi32(a, base));
            let y = _mm256_srai_epi32::<23>(_mm256_sub_epi32(b, base));
            let a = _mm256_sub_epi32(a, _mm256_slli_epi32::<23>(x));
            let b = _mm256_sub_epi32(b, _mm256_slli_epi32::<23>(y));
            let exponents = Ymm2(_mm256_cvtepi32_ps(x), _mm256_cvtepi32_ps(y));
            (exponents, Ymm2::of_bits(a, b))
        }
    }
    #[inline(always)]
    unsafe fn max_abs_bits(self, b: Self) -> u32 {
        // SAFETY: the trait's contract: this instruction set.
        unsafe {
            let ((a0, a1), (b0, b1)) = (self.bits(), b.bits());
            let magnitude = _mm256_set1_epi32(i32::MAX);
            let clear = |x| _mm256_and_si256(x, magnitude);
            let m = _mm256_max_epu32(clear(a0), clear(a1));
            let m = _mm256_max_epu32(m, _mm256_max_epu32(clear(b0), clear(b1)));
            let m = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256::<1>(m));
            let m = _mm_max_epu32(m, _mm_shuffle_epi32::<0b01_00_11_10>(m));
            let m = _mm_max_epu32(m, _mm_shuffle_epi32::<0b10_11_00_01>(m));
            _mm_cvtsi128_si32(m) as u32
        }
    }
    #[inline(always)]
    unsafe fn store_codes(self, p: *mut i8) {
        // SAFETY: the trait's contract: this instruction set, and the elements behind `p`.
        unsafe {
            let (a, b) = self.bits();
            // The low byte of each 32-bit lane, gathered to the front of its 128-bit half.
            let low = _mm256_set1_epi32(0x0c08_0400);
            let a = _mm256_shuffle_epi8(a, low);
            let b = _mm256_shuffle_epi8(b, low);
            let quads = _mm256_unpacklo_epi32(a, b);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
            let packed = _mm256_permutevar8x32_epi32(quads, order);
            _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(packed));
        }
    }
    #[inline(always)]
    unsafe fn sums(v: &[Self; 16]) -> Self {
        // SAFETY: the trait's contract: this instruction set.
        unsafe {
            let mut eights = [_mm256_setzero_ps(); 16];
            for (eight, v) in eights.iter_mut().zip(v) {
                *eight = _mm256_add_ps(v.0, v.1);
            }
            let (first, second) = eights.split_at(8);
            Ymm2(sums8(first), sums8(second))
        }
    }
}

/// The `J`th of eight E2M1 codes in each 32-bit lane: magnitudes from a table, and their sign.
#[inline(always)]
unsafe fn e2m1<const J: usize>(codes: __m256i) -> __m256 {
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        // The table's index is the low three bits of a lane.
        let code = _mm256_srlv_epi32(codes, _mm256_set1_epi32(4 * J as i32));
        let magnitude = _mm256_permutevar8x32_ps(_mm256_loadu_ps(E2M1.as_ptr()), code);
        let sign = _mm256_sllv_epi32(codes, _mm256_set1_epi32(28 - 4 * J as i32));
        let sign = _mm256_and_si256(sign, _mm256_set1_epi32(i32::MIN));
        _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign))
    }
}

/// The sums of eight registers by the tree of [`Lanes::sum`]: two registers at a time become one
/// that holds the sums of the halves of both.
#[inline(always)]
unsafe fn sums8(v: &[__m256]) -> __m256 {
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        let mut fours = [_mm256_setzero_ps(); 4];
        for i in 0..4 {
            let (a, b) = (v[i], v[i + 4]);
            let low = _mm256_permute2f128_ps::<0x20>(a, b);
            fours[i] = _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(a, b));
        }
        let mut pairs = [_mm256_setzero_ps(); 2];
        for i in 0..2 {
            let (a, b) = (fours[i], fours[i + 2]);
            let low = _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
            pairs[i] = _mm256_add_ps(low, _mm256_shuffle_ps::<0b11_10_11_10>(a, b));
        }
        let [a, b] = pairs;
        let even = _mm256_shuffle_ps::<0b10_00_10_00>(a, b);
        let sums = _mm256_add_ps(even, _mm256_shuffle_ps::<0b11_01_11_01>(a, b));
        // Each half is now in the order 0, 2, 1, 3.
        _mm256_permute_ps::<0b11_01_10_00>(sums)
    }
}

/// A processor with AVX2, FMA and F16C.
pub(crate) struct Avx2;

/// The float accumulation of one group: one product of scales, one fused multiply-add.
#[inline(always)]
unsafe fn scaled(dot: (__m256i, __m256i), scale_w: Ymm2, scale_x: f32, acc: Ymm2) -> Ymm2 {
    // SAFETY: the instruction set is the caller's promise.
    unsafe {
        let scale = scale_w.mul(Ymm2::splat(scale_x));
        Ymm2(_mm256_cvtepi32_ps(dot.0), _mm256_cvtepi32_ps(dot.1)).fma(scale, acc)
    }
}

/// Exact dots of a q8 group: `|w| * (sign(w) x)` keeps every 16-bit pair sum within 32,512.
#[inline(always)]
unsafe fn q8_dot(codes: *const u8, x: *const i8, _offset: i32) -> (__m256i, __m256i) {
    // SAFETY: 512 code and 32 input bytes; the instruction set is the caller's promise.
    unsafe {
        let bias = _mm256_set1_epi8(-128);
        let ones = _mm256_set1_epi16(1);
        let mut acc = [_mm256_setzero_si256(); 2];
        for q in 0..8 {
            let quad = _mm256_set1_epi32(x.cast::<i32>().add(q).read_unaligned());
            for (h, acc) in acc.iter_mut().enumerate() {
                let raw = _mm256_loadu_si256(codes.add(64 * q + 32 * h).cast());
                let w = _mm256_xor_si256(raw, bias);
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(quad, w));
                *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(pairs, ones));
            }
        }
        (acc[0], acc[1])
    }
}

/// Exact dots of a q4 group: a pair sum is at most `2 * 15 * 127`, eight of them fit in 16 bits.
#[inline(always)]
unsafe fn q4_dot(codes: *const u8, x: *const i8, offset: i32) -> (__m256i, __m256i) {
    // SAFETY: 256 code and 32 input bytes; the instruction set is the caller's promise.
    unsafe {
        let low = _mm256_set1_epi8(0x0f);
        let mut pairs = [_mm256_setzero_si256(); 2];
        for p in 0..4 {
            let quad = x.cast::<i32>().add(2 * p);
            let even = _mm256_set1_epi32(quad.read_unaligned());
            let odd = _mm256_set1_epi32(quad.add(1).read_unaligned());
            for (h, pairs) in pairs.iter_mut().enumerate() {
                let packed = _mm256_loadu_si256(codes.add(64 * p + 32 * h).cast());
                let first = _mm256_and_si256(packed, low);
                let second = _mm256_and_si256(_mm256_srli_epi16::<4>(packed), low);
                let sum = _mm256_add_epi16(
                    _mm256_maddubs_epi16(first, even),
                    _mm256_maddubs_epi16(second, odd),
                );
                *pairs = _mm256_add_epi16(*pairs, sum);
            }
        }
        let ones = _mm256_set1_epi16(1);
        let start = _mm256_set1_epi32(offset);
        let a = _mm256_add_epi32(start, _mm256_madd_epi16(pairs[0], ones));
        (
            a,
            _mm256_add_epi32(start, _mm256_madd_epi16(pairs[1], ones)),
        )
    }
}

macro_rules! integer_tile {
    ($name:ident, $dot:ident, $code_bytes:literal, $offset:ident) => {
        #[inline(always)]
        unsafe fn $name<const T: usize, const R: usize>(tile: &Tile) {
            // SAFETY: `Tile` describes readable operands and accumulators of these shapes.
            unsafe {
                let mut acc = load::<Ymm2, T, R>(tile);
                for g in tile.start..tile.end {
                    unroll!(R_ < R, {
                        let block = tile.weights.add(R_ * tile.block_bytes);
                        let codes = block.add(tile.plane_bytes + g * $code_bytes);
                        let scale_w = Ymm2::load_f16(block.add(g * GROUP_SCALES));
                        unroll!(T_ < T, {
                            let x = tile.record(T_, g);
                            let dot = $dot(codes, (*x).codes.as_ptr(), (*x).$offset);
                            acc[R_][T_] = scaled(dot, scale_w, (*x).scale, acc[R_][T_]);
                        });
                    });
                }
                store(&acc, tile);
            }
        }
    };
}

integer_tile!(q8_tile, q8_dot, 512, offset8);
integer_tile!(q4_tile, q4_dot, 256, offset4);

impl Machine for Avx2 {
    type L = Ymm2;
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
