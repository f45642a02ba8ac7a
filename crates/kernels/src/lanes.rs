//! Sixteen f32 lanes: the one vector type every kernel is written in.
//!
//! Each instruction set implements [`Lanes`] with whatever registers it has; every operation is
//! defined lane by lane in IEEE binary32, so that all implementations give the same bits. (NaN
//! payloads and signs are not part of that promise: x86 leaves them to operand order.)

/// Lanes of a vector, output rows of a tile.
pub(crate) const LANES: usize = 16;

/// `1.5 * 2^23`: adding it rounds a small float to an integer, half to even, and leaves that
/// integer in the low mantissa bits.
pub(crate) const MAGIC: f32 = 12_582_912.0;

/// The bit pattern of `sqrt(1/2)`.
pub(crate) const SQRT_HALF_BITS: i32 = 0x3f35_04f3;

/// Sixteen f32 lanes.
///
/// # Safety
///
/// Every method needs the instruction set of the implementation; pointers need the stated number
/// of readable or writable elements, at any alignment.
#[allow(
    clippy::missing_safety_doc,
    reason = "the trait's section covers all methods"
)]
pub(crate) trait Lanes: Copy {
    /// Whether there are registers for 16 accumulators and more; else for half as many at best.
    const MANY: bool;
    /// Four bytes of codes of each of 16 rows, see [`lamella_program::encoding`].
    type Word: Copy;
    unsafe fn splat(x: f32) -> Self;
    /// Reads 16 f32.
    unsafe fn load(p: *const f32) -> Self;
    /// Writes 16 f32.
    unsafe fn store(self, p: *mut f32);
    /// Reads 16 IEEE binary16 and widens them.
    unsafe fn load_f16(p: *const u8) -> Self;
    /// Reads 16 interleaved pairs of bfloat16: the first ones and the second ones, widened.
    unsafe fn load_bf16_pairs(p: *const u8) -> (Self, Self);
    /// Reads 64 bytes.
    unsafe fn load_word(p: *const u8) -> Self::Word;
    /// The `J`th of eight E2M1 codes in a word.
    unsafe fn e2m1<const J: usize>(word: Self::Word) -> Self;
    /// The `J`th of four E4M3 codes in a word times 2^-8; there is no NaN among them.
    unsafe fn e4m3<const J: usize>(word: Self::Word) -> Self;
    /// Reads 16 E4M3 codes, times 2^-8.
    unsafe fn load_e4m3(p: *const u8) -> Self;
    /// Reads 16 E8M0 powers of two; there is no NaN among them.
    unsafe fn load_e8m0(p: *const u8) -> Self;
    unsafe fn add(self, b: Self) -> Self;
    unsafe fn sub(self, b: Self) -> Self;
    unsafe fn mul(self, b: Self) -> Self;
    unsafe fn div(self, b: Self) -> Self;
    unsafe fn sqrt(self) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// `if self > b { self } else { b }`, so `b` where either is NaN.
    unsafe fn max(self, b: Self) -> Self;
    /// `if self < b { self } else { b }`, so `b` where either is NaN.
    unsafe fn min(self, b: Self) -> Self;
    /// `2^n` for a lane holding `MAGIC + n` with integer `n` in -126..=127.
    unsafe fn exp2_of_magic(self) -> Self;
    /// `negative` where the sign bit of `self` is set, else `positive`. The sign of a NaN is
    /// anyone's: whoever passes one must not care which he gets.
    unsafe fn by_sign(self, negative: Self, positive: Self) -> Self;
    /// `(e, m)` with `self = m * 2^e` and `m` from `sqrt(1/2)` to `sqrt(2)`, for positive normal
    /// lanes.
    unsafe fn split(self) -> (Self, Self);
    /// The largest bit pattern of all lanes of both, sign bits cleared, as unsigned integers: the
    /// largest magnitude, with every NaN above infinity.
    unsafe fn max_abs_bits(self, b: Self) -> u32;
    /// The low byte of the integer each lane holds as `MAGIC + n`.
    unsafe fn store_codes(self, p: *mut i8);

    /// Reads `n <= 16` f32, the other lanes are `fill`.
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize, fill: f32) -> Self {
        // SAFETY: the caller gives `n` readable elements; the buffer holds 16.
        unsafe {
            if n >= LANES {
                return Self::load(p);
            }
            let mut buffer = [fill; LANES];
            for (i, slot) in buffer.iter_mut().enumerate().take(n) {
                *slot = *p.add(i);
            }
            Self::load(buffer.as_ptr())
        }
    }

    /// Writes the first `n <= 16` lanes.
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        // SAFETY: the caller gives `n` writable elements; the buffer holds 16.
        unsafe {
            if n >= LANES {
                return self.store(p);
            }
            let lanes = self.to_array();
            for (i, lane) in lanes.iter().enumerate().take(n) {
                *p.add(i) = *lane;
            }
        }
    }

    /// The lanes in order.
    #[inline(always)]
    unsafe fn to_array(self) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        // SAFETY: the array holds 16 elements.
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes
    }

    /// The sum of all lanes by a fixed tree: lane `i` takes lane `i + 8`, then `i + 4`, `i + 2`,
    /// `i + 1`.
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the instruction set is the caller's promise.
        let mut lanes = unsafe { self.to_array() };
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
            half /= 2;
        }
        lanes[0]
    }

    /// [`Lanes::sum`] of sixteen vectors: lane `i` is that of vector `i`.
    #[inline(always)]
    unsafe fn sums(vectors: &[Self; LANES]) -> Self {
        // SAFETY: the instruction set is the caller's promise; the array holds 16 elements.
        unsafe {
            let sums = vectors.map(|v| v.sum());
            Self::load(sums.as_ptr())
        }
    }

    /// The largest lane, by the tree and the rule of [`Lanes::max`].
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        // SAFETY: the instruction set is the caller's promise.
        let mut lanes = unsafe { self.to_array() };
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                if lanes[i + half] > lanes[i] {
                    lanes[i] = lanes[i + half];
                }
            }
            half /= 2;
        }
        lanes[0]
    }
}

/// Repeats `$body` for `$i` in `0..$n` with `$i` a constant in each copy, so that arrays indexed
/// by it live in registers whatever the loop unroller decides. `$n` is a constant of at most 8.
macro_rules! unroll {
    ($i:ident < $n:expr, $body:block) => {
        const { assert!($n <= 8) };
        $crate::lanes::unroll!(@ $i, $n, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident, $n:expr, $body:block, $($value:literal)*) => {
        $( { const $i: usize = $value; if $i < $n $body } )*
    };
}
pub(crate) use unroll;

/// [`unroll`] for a constant of at most 16.
macro_rules! unroll16 {
    ($i:ident < $n:expr, $body:block) => {
        const { assert!($n <= 16) };
        $crate::lanes::unroll!(@ $i, $n, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
}
pub(crate) use unroll16;
