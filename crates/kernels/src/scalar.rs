//! The portable implementation and the reference for all others: plain arrays, one lane at a
//! time.

use crate::coded::{E4M3_FACTOR, e4m3_place, e8m0_bits};
use crate::lanes::{LANES, Lanes, SQRT_HALF_BITS};
use crate::tile::{Machine, Tile, q4_tile_plain, q8_tile_plain};

/// Sixteen f32 in an array.
#[derive(Clone, Copy)]
pub(crate) struct Array([f32; LANES]);

impl Array {
    #[inline(always)]
    fn zip(self, b: Self, op: impl Fn(f32, f32) -> f32) -> Self {
        Array(std::array::from_fn(|i| op(self.0[i], b.0[i])))
    }
}

/// An IEEE binary16 as f32, exactly.
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let mantissa = u32::from(bits & 0x3ff);
    match exponent {
        // A subnormal is `mantissa * 2^-24`, which f32 holds exactly.
        0 => {
            let value = mantissa as f32 * f32::from_bits(0x3380_0000);
            f32::from_bits(value.to_bits() | sign)
        }
        31 => f32::from_bits(sign | 0x7f80_0000 | (mantissa << 13)),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (mantissa << 13)),
    }
}

/// An E4M3 code's value times 2^-8, as the f16 whose exponent field is the code's.
fn e4m3_scaled(code: u8) -> f32 {
    let code = u16::from(code);
    f16_to_f32((code & 0x80) << 8 | (code & 0x7f) << 7)
}

/// An E4M3 code's value; codes of NaN are 480 here.
pub(crate) fn e4m3_to_f32(code: u8) -> f32 {
    e4m3_scaled(code) * E4M3_FACTOR
}

/// The value of an E2M1 code (0 to 15).
pub(crate) fn e2m1_to_f32(code: u8) -> f32 {
    E2M1[usize::from(code)]
}

/// The values of E2M1 codes; bit 3 is the sign.
pub(crate) static E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

impl Lanes for Array {
    const MANY: bool = false;
    type Word = [u8; 4 * LANES];
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Array([x; LANES])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: 16 readable elements are the caller's promise.
        Array(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: 16 writable elements are the caller's promise.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self {
        // SAFETY: 32 readable bytes are the caller's promise.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        Array(bits.map(|b| f16_to_f32(u16::from_le(b))))
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(p: *const u8) -> (Self, Self) {
        // SAFETY: 64 readable bytes are the caller's promise.
        let pairs = unsafe { p.cast::<[u32; LANES]>().read_unaligned() }.map(u32::from_le);
        let first = pairs.map(|pair| f32::from_bits(pair << 16));
        let second = pairs.map(|pair| f32::from_bits(pair & 0xffff_0000));
        (Array(first), Array(second))
    }
    #[inline(always)]
    unsafe fn load_word(p: *const u8) -> Self::Word {
        // SAFETY: 64 readable bytes are the caller's promise.
        unsafe { p.cast::<Self::Word>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn e2m1<const J: usize>(word: Self::Word) -> Self {
        Array(std::array::from_fn(|i| {
            e2m1_to_f32((word[4 * i + J / 2] >> (4 * (J % 2))) & 15)
        }))
    }
    #[inline(always)]
    unsafe fn e4m3<const J: usize>(word: Self::Word) -> Self {
        Array(std::array::from_fn(|i| e4m3_scaled(word[e4m3_place(i, J)])))
    }
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Self {
        // SAFETY: 16 readable bytes are the caller's promise.
        Array(unsafe { p.cast::<[u8; LANES]>().read_unaligned() }.map(e4m3_scaled))
    }
    #[inline(always)]
    unsafe fn load_e8m0(p: *const u8) -> Self {
        // SAFETY: 16 readable bytes are the caller's promise.
        let bytes = unsafe { p.cast::<[u8; LANES]>().read_unaligned() };
        Array(bytes.map(|byte| f32::from_bits(e8m0_bits(byte))))
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        self.zip(b, |x, y| x + y)
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        self.zip(b, |x, y| x - y)
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        self.zip(b, |x, y| x * y)
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        self.zip(b, |x, y| x / y)
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        Array(self.0.map(f32::sqrt))
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        Array(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        self.zip(b, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        self.zip(b, |x, y| if x < y { x } else { y })
    }
    #[inline(always)]
    unsafe fn exp2_of_magic(self) -> Self {
        Array(
            self.0
                .map(|x| f32::from_bits((x.to_bits() << 23).wrapping_add(1.0f32.to_bits()))),
        )
    }
    #[inline(always)]
    unsafe fn by_sign(self, negative: Self, positive: Self) -> Self {
        Array(std::array::from_fn(|i| {
            if self.0[i].is_sign_negative() {
                negative.0[i]
            } else {
                positive.0[i]
            }
        }))
    }
    #[inline(always)]
    unsafe fn split(self) -> (Self, Self) {
        let bits = self.0.map(|x| x.to_bits().cast_signed());
        let exponents = bits.map(|b| b.wrapping_sub(SQRT_HALF_BITS) >> 23);
        let mantissas = std::array::from_fn(|i| {
            f32::from_bits(bits[i].wrapping_sub(exponents[i] << 23).cast_unsigned())
        });
        (Array(exponents.map(|e| e as f32)), Array(mantissas))
    }
    #[inline(always)]
    unsafe fn max_abs_bits(self, b: Self) -> u32 {
        self.0
            .iter()
            .chain(&b.0)
            .fold(0, |most, x| most.max(x.abs().to_bits()))
    }
    #[inline(always)]
    unsafe fn store_codes(self, p: *mut i8) {
        let codes = self.0.map(|x| x.to_bits() as i8);
        // SAFETY: 16 writable bytes are the caller's promise.
        unsafe { p.cast::<[i8; LANES]>().write_unaligned(codes) }
    }
}

/// The portable machine.
pub(crate) struct Scalar;

impl Machine for Scalar {
    type L = Array;
    #[inline(always)]
    unsafe fn q8_tile<const T: usize, const R: usize>(tile: &Tile) {
        // SAFETY: the same contract.
        unsafe { q8_tile_plain::<T, R>(tile) }
    }
    #[inline(always)]
    unsafe fn q4_tile<const T: usize, const R: usize>(tile: &Tile) {
        // SAFETY: the same contract.
        unsafe { q4_tile_plain::<T, R>(tile) }
    }
}
